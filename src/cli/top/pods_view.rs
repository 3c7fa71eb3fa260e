//! The pending pods view: one row per pod, with the reason that it is pending.

use jiff::Timestamp;

use super::nodes_view::empty_message;
use super::table::{Cell, CellStyle, Column, Table, TableRow};
use crate::runtime::control_inventory::{ToldInventory, ToldPod};

/// Builds the table of the pending pods.
pub fn pods_table(inventory: Option<&ToldInventory>, now: Timestamp) -> Table {
    let holds = inventory.and_then(|inventory| inventory.holds.as_ref());
    let pods = holds.iter().flat_map(|inventory| &inventory.pods);
    Table {
        columns: vec![
            Column::new("pod", "POD", 12, 20, 0),
            Column::new("waiting", "PENDING", 7, 7, 1).right_aligned(),
            Column::new("reason", "REASON", 12, 12, 2),
        ],
        rows: pods.map(|pod| pod_row(pod, now)).collect(),
        more: holds.map_or(0, |inventory| inventory.more_pods),
        empty: empty_message(inventory, "no pending pods"),
    }
}

fn pod_row(pod: &ToldPod, now: Timestamp) -> TableRow {
    let style = if pod.is_unplaced { CellStyle::Bad } else { CellStyle::Plain };
    TableRow {
        key: pod.name.clone(),
        cells: vec![
            Cell::from_text(&pod.name),
            Cell::from_age(pod.since, now),
            Cell::from_text(&pod.why).with_style(style),
        ],
        detail: format!("{}: {}", pod.name, pod.why),
    }
}
