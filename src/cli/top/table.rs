//! A table before layout: columns with their width limits, and sorted rows of cells.

use std::cmp::Ordering;

use jiff::Timestamp;

use super::format;
use crate::host::text::bounded_line;

/// The style of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CellStyle {
    /// A value without emphasis.
    #[default]
    Plain,
    /// A value in its normal state.
    Good,
    /// A value that needs attention.
    Warns,
    /// A failure.
    Bad,
    /// A value that is less important than others.
    Faint,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The text, sanitized.
    pub text: String,
    /// The sort value. If `None`, the cell is sorted by its text.
    rank: Option<f64>,
    /// The filled fraction of a bar. `None` if the cell is not a bar.
    pub share: Option<f64>,
    /// The style.
    pub style: CellStyle,
}

impl Cell {
    /// Creates a cell from an untrusted string.
    pub fn from_text(text: &str) -> Self {
        Self { text: bounded_line(text), ..Self::default() }
    }

    /// Creates a cell from an optional string.
    pub fn from_optional(text: Option<&str>) -> Self {
        match text {
            Some(text) => Self::from_text(text),
            None => Self::from_text("-").with_faint_style(),
        }
    }

    /// Creates a cell that is sorted by `rank`.
    pub fn ranked(text: &str, rank: f64) -> Self {
        Self { rank: Some(rank), ..Self::from_text(text) }
    }

    /// Creates a cell with the time since `since`, sorted with the latest last.
    #[expect(clippy::cast_precision_loss, reason = "times are below 2^52 seconds")]
    pub fn from_age(since: Option<Timestamp>, now: Timestamp) -> Self {
        match since {
            Some(at) => Self::ranked(&format::format_age(at, now), -(at.as_second() as f64)),
            None => Self::from_optional(None),
        }
    }

    /// Creates a bar with this filled fraction.
    pub fn usage_bar(share: Option<f64>) -> Self {
        let Some(share) = share else {
            return Self::from_optional(None);
        };
        Self {
            share: Some(share),
            style: if share > 0.9 { CellStyle::Warns } else { CellStyle::Good },
            ..Self::ranked(&format!("{:.0}%", share * 100.0), share)
        }
    }

    /// Sets the style.
    pub fn with_style(self, style: CellStyle) -> Self {
        Self { style, ..self }
    }

    /// Sets the style of less important cells.
    pub fn with_faint_style(self) -> Self {
        self.with_style(CellStyle::Faint)
    }

    /// Compares two cells. Unknown values are last in both orders.
    fn compare_with(&self, other: &Self, is_descending: bool) -> Ordering {
        let order = match (self.rank, other.rank) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            (Some(_), None) => return Ordering::Less,
            (None, Some(_)) => return Ordering::Greater,
            (None, None) => self.text.cmp(&other.text),
        };
        match is_descending {
            true => order.reverse(),
            false => order,
        }
    }
}

/// One column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Column {
    /// The sort key of the column.
    pub key: String,
    /// The title, sanitized.
    pub title: String,
    /// The minimum width.
    pub least: usize,
    /// The width that is reserved before less important columns are shown.
    pub fair: usize,
    /// The rank: columns with a greater rank are hidden first.
    pub leaves: u8,
    /// True if the column is aligned to the right.
    pub is_right: bool,
}

impl Column {
    /// Creates a left-aligned column with its minimum and fair width.
    pub fn new(key: &str, title: &str, least: usize, fair: usize, leaves: u8) -> Self {
        Self {
            key: key.to_owned(),
            title: bounded_line(title),
            least,
            fair,
            leaves,
            is_right: false,
        }
    }

    /// Aligns the column to the right, for numbers.
    pub fn right_aligned(self) -> Self {
        Self { is_right: true, ..self }
    }
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableRow {
    /// The key that identifies the row after the table changes.
    pub key: String,
    /// One cell for each column.
    pub cells: Vec<Cell>,
    /// The detail line of the selected row.
    pub detail: String,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The columns, from left to right.
    pub columns: Vec<Column>,
    /// The rows, from top to bottom.
    pub rows: Vec<TableRow>,
    /// The number of rows that the daemon omitted.
    pub more: usize,
    /// The message for a table without rows.
    pub empty: String,
}

impl Table {
    /// Returns the index of the column with this key.
    pub fn column_index(&self, key: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.key == key)
    }

    /// Sorts the rows by a column, then by key.
    pub fn sort_rows(&mut self, column: usize, is_descending: bool) {
        self.rows.sort_by(|one, other| {
            let order = match (one.cells.get(column), other.cells.get(column)) {
                (Some(one), Some(other)) => one.compare_with(other, is_descending),
                _ => Ordering::Equal,
            };
            order.then_with(|| one.key.cmp(&other.key))
        });
    }
}
