//! A table before layout: columns with their width limits, and sorted rows of cells.

use std::cmp::Ordering;

use jiff::Timestamp;
use ratatui::text::Span;

use super::format;
use crate::host::text::bounded_line;

/// The style of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CellStyle {
    #[default]
    Plain,
    Good,
    Warns,
    Bad,
    Faint,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    /// The sort value. If `None`, the cell is sorted by its text.
    rank: Option<f64>,
    /// The filled share of a bar. `None` if the cell is not a bar.
    pub(super) share: Option<f64>,
    pub(super) tone: CellStyle,
}

impl Cell {
    /// Creates a cell from an untrusted string.
    pub(super) fn from_text(text: &str) -> Self {
        Self { text: bounded_line(text), ..Self::default() }
    }

    /// Creates a cell from an optional string.
    pub(super) fn from_optional(text: Option<&str>) -> Self {
        match text {
            Some(text) => Self::from_text(text),
            None => Self::from_text("-").with_faint_style(),
        }
    }

    /// Creates a cell that is sorted by `rank`.
    pub(super) fn ranked(text: &str, rank: f64) -> Self {
        Self { rank: Some(rank), ..Self::from_text(text) }
    }

    /// Creates a cell with the time since `since`, sorted with the latest last.
    #[expect(clippy::cast_precision_loss, reason = "times are below 2^52 seconds")]
    pub(super) fn from_age(since: Option<Timestamp>, now: Timestamp) -> Self {
        match since {
            Some(at) => Self::ranked(&format::format_age(at, now), -(at.as_second() as f64)),
            None => Self::from_optional(None),
        }
    }

    /// Creates a bar with this filled share.
    pub(super) fn usage_bar(share: Option<f64>) -> Self {
        let Some(share) = share else {
            return Self::from_optional(None);
        };
        Self {
            share: Some(share),
            tone: if share > 0.9 { CellStyle::Warns } else { CellStyle::Good },
            ..Self::ranked(&format!("{:.0}%", share * 100.0), share)
        }
    }

    /// Sets the style.
    pub(super) fn with_style(self, tone: CellStyle) -> Self {
        Self { tone, ..self }
    }

    pub(super) fn with_faint_style(self) -> Self {
        self.with_style(CellStyle::Faint)
    }

    /// Returns the display width of the cell.
    fn display_width(&self) -> usize {
        match self.share {
            Some(_) => BAR,
            None => text_width(&self.text),
        }
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

/// The width of a bar: ten steps, a space and a percentage of four characters.
const BAR: usize = 15;

/// Returns the display width of a string.
pub(super) fn text_width(text: &str) -> usize {
    Span::raw(text).width()
}

/// One column.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Column {
    /// The sort key of the column.
    pub(super) key: String,
    pub(super) title: String,
    /// The minimum width.
    pub(super) least: usize,
    /// The width that is reserved before less important columns are shown.
    pub(super) fair: usize,
    /// The rank: columns with a greater rank are hidden first.
    pub(super) leaves: u8,
    pub(super) is_right: bool,
}

impl Column {
    /// Creates a left-aligned column with its minimum and fair width.
    pub(super) fn new(key: &str, title: &str, least: usize, fair: usize, leaves: u8) -> Self {
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
    pub(super) fn right_aligned(self) -> Self {
        Self { is_right: true, ..self }
    }
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TableRow {
    /// The key that identifies the row after the table changes.
    pub(super) key: String,
    pub(super) cells: Vec<Cell>,
    /// The detail line of the selected row.
    pub(super) detail: String,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<TableRow>,
    /// The number of rows that the daemon omitted.
    pub(super) more: usize,
    /// The message for a table without rows.
    pub(super) empty: String,
}

impl Table {
    /// Returns the index of the column with this key.
    pub(super) fn column_index(&self, key: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.key == key)
    }

    /// Sorts the rows by a column, then by key.
    pub(super) fn sort_rows(&mut self, column: usize, is_descending: bool) {
        self.rows.sort_by(|one, other| {
            let order = match (one.cells.get(column), other.cells.get(column)) {
                (Some(one), Some(other)) => one.compare_with(other, is_descending),
                _ => Ordering::Equal,
            };
            order.then_with(|| one.key.cmp(&other.key))
        });
    }

    /// Returns the display width of the widest cell of a column, including the title.
    pub(super) fn wanted_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.cells.get(column));
        let title = self.columns.get(column).map_or(0, |column| text_width(&column.title));
        cells.map(Cell::display_width).max().unwrap_or(0).max(title)
    }
}
