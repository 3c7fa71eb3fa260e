//! The nodes view: one row per node, with its capacity and usage.

use jiff::Timestamp;

use super::format;
use super::table::{Cell, CellStyle, Column, Table, TableRow};
use crate::runtime::control_inventory::{InventoryRequest, NodeDto, ToldInventory};

/// The sort keys of the columns that are always present.
const NAMED: [&str; 9] =
    ["name", "pool", "type", "zone", "capacity", "pods", "age", "price", "state"];

/// Returns the sort keys of the nodes, including the requested resources and labels.
pub fn sort_keys(request: &InventoryRequest) -> Vec<String> {
    let named = NAMED.iter().map(|name| (*name).to_owned());
    let requested = request.resources.iter().chain(&request.labels).cloned();
    named.chain(requested).collect()
}

/// Builds the table of the nodes.
pub fn nodes_table(
    inventory: Option<&ToldInventory>,
    request: &InventoryRequest,
    now: Timestamp,
) -> Table {
    let mut columns = vec![
        Column::new("name", "NAME", 8, 19, 0),
        Column::new("pool", "POOL", 5, 10, 7),
        Column::new("type", "TYPE", 9, 12, 3),
        Column::new("zone", "ZONE", 5, 10, 10),
        Column::new("capacity", "CAPACITY", 8, 9, 8),
    ];
    let resources = request.resources.iter();
    columns.extend(
        resources
            .map(|name| Column::new(name, &format::column_title(name), 4, 10, 2).right_aligned()),
    );
    columns.extend([
        Column::new("pods", "PODS", 4, 4, 9).right_aligned(),
        Column::new("age", "AGE", 4, 5, 4).right_aligned(),
        Column::new("price", "$/H", 6, 6, 5).right_aligned(),
        Column::new("state", "STATE", 5, 12, 1),
    ]);
    let labels = request.labels.iter();
    columns.extend(labels.map(|label| Column::new(label, &format::column_title(label), 5, 10, 6)));
    columns.push(Column::new("why", "WHY", 12, 24, 11));
    let holds = inventory.and_then(|inventory| inventory.holds.as_ref());
    let nodes = holds.iter().flat_map(|inventory| &inventory.nodes);
    Table {
        columns,
        rows: nodes.map(|node| node_row(node, now)).collect(),
        more: holds.map_or(0, |inventory| inventory.more_nodes),
        empty: empty_message(inventory, "the cluster has no nodes"),
    }
}

/// Returns the message for a table without rows.
pub fn empty_message(inventory: Option<&ToldInventory>, none: &str) -> String {
    let Some(inventory) = inventory else {
        return "waiting for the daemon".to_owned();
    };
    match (&inventory.holds, &inventory.led_by) {
        (Some(_), _) => none.to_owned(),
        (None, Some(reason)) => format!("no data on this host: {reason}"),
        (None, None) => format!("no data yet: the cluster is {}", inventory.standing),
    }
}

#[expect(clippy::cast_precision_loss, reason = "pod counts are below 2^52")]
fn node_row(node: &NodeDto, now: Timestamp) -> TableRow {
    let mut cells = vec![
        Cell::from_text(&node.name),
        Cell::from_optional(node.pool.as_deref()),
        Cell::from_optional(node.instance_type.as_deref()),
        Cell::from_optional(node.zone.as_deref()),
        Cell::from_optional(node.capacity_type.as_deref()),
    ];
    cells.extend(node.amounts.iter().map(|amount| Cell::usage_bar(format::used_share(*amount))));
    cells.extend([
        Cell::ranked(&node.pods.to_string(), node.pods as f64),
        Cell::from_age(node.born, now),
        match node.usd_per_h {
            Some(price) => Cell::ranked(&format!("{price:.4}"), price),
            None => Cell::from_optional(None),
        },
        Cell::from_text(&node.state).with_style(node_style(node)),
    ]);
    cells.extend(node.labels.iter().map(|it| Cell::from_optional(it.as_deref())));
    let why = node.why.as_deref().unwrap_or_default();
    cells.push(Cell::from_text(why).with_faint_style());
    let detail = match &node.why {
        Some(why) => format!("{}: {}; {why}", node.name, node.state),
        None => format!("{}: {}", node.name, node.state),
    };
    TableRow { key: node.name.clone(), cells, detail }
}

fn node_style(node: &NodeDto) -> CellStyle {
    match node.state.as_str() {
        _ if node.is_well => CellStyle::Good,
        "not ready" => CellStyle::Bad,
        _ => CellStyle::Warns,
    }
}
