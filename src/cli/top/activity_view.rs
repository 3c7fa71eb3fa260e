//! The timeline view: recent decisions, actions and events of a cluster.

use jiff::Timestamp;

use super::format;
use super::table::{Cell, CellStyle, Column, Table, TableRow};
use crate::runtime::activity_log::ActivityEntry;
use crate::runtime::control_inventory::ToldInventory;

/// Builds the table of the timeline.
pub fn activity_table(inventory: Option<&ToldInventory>, now: Timestamp) -> Table {
    let lines = inventory.iter().flat_map(|inventory| &inventory.timeline);
    let is_told = inventory.is_some();
    Table {
        columns: vec![
            Column::new("ago", "AGO", 4, 5, 1).right_aligned(),
            Column::new("what", "EVENT", 8, 12, 0),
            Column::new("of", "OBJECT", 8, 12, 2),
            Column::new("more", "DETAIL", 12, 20, 3),
        ],
        rows: lines.enumerate().map(|(index, entry)| activity_row(index, entry, now)).collect(),
        more: 0,
        empty: match is_told {
            true => "no events yet".to_owned(),
            false => "waiting for the daemon".to_owned(),
        },
    }
}

/// Entries are ranked by position, because several can have the same time.
#[expect(clippy::cast_precision_loss, reason = "there are some hundreds at most")]
fn activity_row(index: usize, entry: &ActivityEntry, now: Timestamp) -> TableRow {
    let style = if entry.warns { CellStyle::Warns } else { CellStyle::Plain };
    let event = match entry.times {
        0 | 1 => entry.what.to_string(),
        times => format!("{} ×{times}", entry.what),
    };
    let (at, of, text) = (entry.at, &entry.of, &entry.text);
    // The time is rounded down to seconds.
    let at_second = Timestamp::from_second(at.as_second()).unwrap_or(at);
    TableRow {
        key: format!("{at} {event} {of}"),
        cells: vec![
            Cell::ranked(&format::format_age(at, now), index as f64),
            Cell::from_text(&event).with_style(style),
            Cell::from_text(of),
            Cell::from_text(text),
        ],
        detail: format!("{at_second} {event} {of} {text}"),
    }
}
