//! The nodes view: one row per node, with its capacity and usage.

use jiff::Timestamp;

use super::format;
use super::table::{Cell, CellStyle, Column, Table, TableRow};
use crate::runtime::control::inventory::{InventoryRequest, NodeDto, ToldInventory};

/// The sort keys of the columns that are always present.
const NAMED: [&str; 9] = [
    "name", "pool", "type", "zone", "capacity", "pods", "age", "price", "state",
];

/// Returns the sort keys of the nodes, including the requested resources and labels.
pub(super) fn keys(asked: &InventoryRequest) -> Vec<String> {
    let named = NAMED.iter().map(|own| (*own).to_owned());
    let asked = asked.resources.iter().chain(&asked.labels).cloned();
    named.chain(asked).collect()
}

/// Builds the table of the nodes.
pub(super) fn sheet(
    told: Option<&ToldInventory>,
    asked: &InventoryRequest,
    now: Timestamp,
) -> Table {
    let mut columns = vec![
        Column::new("name", "NAME", (8, 19), 0),
        Column::new("pool", "POOL", (5, 10), 7),
        Column::new("type", "TYPE", (9, 12), 3),
        Column::new("zone", "ZONE", (5, 10), 10),
        Column::new("capacity", "CAPACITY", (8, 9), 8),
    ];
    let resources = asked.resources.iter();
    let bar = |own: &String| Column::new(own, &format::title(own), (4, 10), 2);
    columns.extend(resources.map(|resource| bar(resource).right()));
    columns.extend([
        Column::new("pods", "PODS", (4, 4), 9).right(),
        Column::new("age", "AGE", (4, 5), 4).right(),
        Column::new("price", "$/H", (6, 6), 5).right(),
        Column::new("state", "STATE", (5, 12), 1),
    ]);
    let labels = asked.labels.iter();
    columns.extend(labels.map(|label| Column::new(label, &format::title(label), (5, 10), 6)));
    columns.push(Column::new("why", "WHY", (12, 24), 11));
    let holds = told.and_then(|own| own.holds.as_ref());
    let nodes = holds.iter().flat_map(|own| &own.nodes);
    Table {
        columns,
        rows: nodes.map(|node| row(node, now)).collect(),
        more: holds.map_or(0, |own| own.more_nodes),
        empty: empty(told, "the cluster has no nodes"),
    }
}

/// Returns the message for a table without rows.
pub(super) fn empty(told: Option<&ToldInventory>, none: &str) -> String {
    let Some(told) = told else {
        return "waiting for the daemon".to_owned();
    };
    match (&told.holds, &told.led_by) {
        (Some(_), _) => none.to_owned(),
        (None, Some(who)) => format!("no data on this host: {who}"),
        (None, None) => format!("no data yet: the cluster is {}", told.standing),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "times and pod counts are below 2^52"
)]
fn row(own: &NodeDto, now: Timestamp) -> TableRow {
    let mut cells = vec![
        Cell::text(&own.name),
        Cell::maybe(own.pool.as_deref()),
        Cell::maybe(own.instance_type.as_deref()),
        Cell::maybe(own.zone.as_deref()),
        Cell::maybe(own.capacity_type.as_deref()),
    ];
    cells.extend(
        own.amounts
            .iter()
            .map(|amount| Cell::bar(format::share(*amount))),
    );
    cells.extend([
        Cell::ranked(&own.pods.to_string(), own.pods as f64),
        match own.born {
            Some(at) => Cell::ranked(&format::age(at, now), -(at.as_second() as f64)),
            None => Cell::maybe(None),
        },
        match own.usd_per_h {
            Some(price) => Cell::ranked(&format!("{price:.4}"), price),
            None => Cell::maybe(None),
        },
        Cell::text(&own.state).toned(tone(own)),
    ]);
    cells.extend(own.labels.iter().map(|label| Cell::maybe(label.as_deref())));
    let why = own.why.as_deref().unwrap_or_default();
    cells.push(Cell::text(why).faint());
    let detail = match &own.why {
        Some(why) => format!("{}: {}; {why}", own.name, own.state),
        None => format!("{}: {}", own.name, own.state),
    };
    TableRow {
        key: own.name.clone(),
        cells,
        detail,
    }
}

fn tone(own: &NodeDto) -> CellStyle {
    match own.state.as_str() {
        _ if own.is_well => CellStyle::Good,
        "not ready" => CellStyle::Bad,
        _ => CellStyle::Warns,
    }
}
