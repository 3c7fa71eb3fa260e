//! A table before it has a width: columns with what they may shrink to, rows of cells, an order.
//! It must not know what is in it, nor how wide a screen is.

use std::cmp::Ordering;

use ratatui::text::Span;

use crate::host::text::bounded;

/// How a text is meant.
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
    /// By what it is sorted; by its text where there is nothing.
    rank: Option<f64>,
    /// The part of a bar that is full; none where it is no bar.
    pub(super) share: Option<f64>,
    pub(super) tone: CellStyle,
}

impl Cell {
    /// A text of elsewhere.
    pub(super) fn text(text: &str) -> Self {
        Self {
            text: bounded(text),
            ..Self::default()
        }
    }

    /// A text that may be missing.
    pub(super) fn maybe(text: Option<&str>) -> Self {
        match text {
            Some(text) => Self::text(text),
            None => Self::text("-").faint(),
        }
    }

    /// A text that is sorted by this.
    pub(super) fn ranked(text: &str, rank: f64) -> Self {
        Self {
            rank: Some(rank),
            ..Self::text(text)
        }
    }

    /// A bar, of which this share is full.
    pub(super) fn bar(share: Option<f64>) -> Self {
        let Some(share) = share else {
            return Self::maybe(None);
        };
        Self {
            share: Some(share),
            tone: if share > 0.9 {
                CellStyle::Warns
            } else {
                CellStyle::Good
            },
            ..Self::ranked(&format!("{:.0}%", share * 100.0), share)
        }
    }

    /// The same, meant so.
    pub(super) fn toned(self, tone: CellStyle) -> Self {
        Self { tone, ..self }
    }

    pub(super) fn faint(self) -> Self {
        self.toned(CellStyle::Faint)
    }

    /// The columns of the screen that it would take.
    fn width(&self) -> usize {
        match self.share {
            Some(_) => BAR,
            None => width(&self.text),
        }
    }

    /// What is not known comes last, whichever way the others stand.
    fn order(&self, other: &Self, is_descending: bool) -> Ordering {
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

/// A bar with its per cent: ten steps, a space, four letters.
const BAR: usize = 15;

/// The columns of the screen that a text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// One column.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Column {
    /// What it is called where it is sorted by.
    pub(super) key: String,
    pub(super) title: String,
    /// What it may shrink to before it is left out.
    pub(super) least: usize,
    /// What it has before columns that matter less have any room.
    pub(super) fair: usize,
    /// The greater, the sooner it is left out.
    pub(super) leaves: u8,
    pub(super) is_right: bool,
}

impl Column {
    /// A column of texts, which may shrink to the first of these, and is fair with the other.
    pub(super) fn new(key: &str, title: &str, (least, fair): (usize, usize), leaves: u8) -> Self {
        Self {
            key: key.to_owned(),
            title: bounded(title),
            least,
            fair,
            leaves,
            is_right: false,
        }
    }

    /// The same with its texts on the right, as numbers stand.
    pub(super) fn right(self) -> Self {
        Self {
            is_right: true,
            ..self
        }
    }
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TableRow {
    /// What it is found by when it is elsewhere next time.
    pub(super) key: String,
    pub(super) cells: Vec<Cell>,
    /// All that is to be said of it, in a line of its own.
    pub(super) detail: String,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<TableRow>,
    /// Rows that were not told.
    pub(super) more: usize,
    /// What is said where there are no rows.
    pub(super) empty: String,
}

impl Table {
    /// The column of this name.
    pub(super) fn column(&self, key: &str) -> Option<usize> {
        self.columns.iter().position(|own| own.key == key)
    }

    /// Puts the rows in order by a column; those that are alike by their keys.
    pub(super) fn sort(&mut self, column: usize, is_descending: bool) {
        self.rows.sort_by(|one, other| {
            let order = match (one.cells.get(column), other.cells.get(column)) {
                (Some(one), Some(other)) => one.order(other, is_descending),
                _ => Ordering::Equal,
            };
            order.then_with(|| one.key.cmp(&other.key))
        });
    }

    /// The columns of the screen that a column would take.
    pub(super) fn wanted(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.cells.get(column));
        let title = self.columns.get(column).map_or(0, |own| width(&own.title));
        cells.map(Cell::width).max().unwrap_or(0).max(title)
    }
}
