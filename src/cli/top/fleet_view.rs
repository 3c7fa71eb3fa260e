//! The fleet view: one row per cluster.

use super::daemon_data::DaemonData;
use super::table::{Cell, CellStyle, Column, Table, TableRow};
use crate::cli::cluster_notes::{describe_sweep, pending_approvals};
use crate::runtime::cluster_health::ClusterHealth;
use crate::runtime::control_status::ClusterStatusResponse;

/// Builds the table of the clusters.
pub fn fleet_table(data: &DaemonData, only: Option<&str>) -> Table {
    let clusters = data.clusters(only);
    Table {
        columns: vec![
            Column::new("cluster", "CLUSTER", 8, 12, 0),
            Column::new("mode", "MODE", 7, 7, 4),
            Column::new("leader", "LEADER", 9, 9, 6),
            Column::new("health", "HEALTH", 6, 10, 2),
            Column::new("nodes", "NODES", 5, 6, 1).right_aligned(),
            Column::new("unready", "NOT READY", 9, 9, 7).right_aligned(),
            Column::new("waiting", "PENDING", 7, 7, 3).right_aligned(),
            Column::new("unplaced", "UNPLACED", 8, 8, 8).right_aligned(),
            Column::new("price", "$/H", 7, 7, 5).right_aligned(),
        ],
        rows: clusters.into_iter().map(cluster_row).collect(),
        more: 0,
        empty: match (data.has_fleet(), only) {
            (false, _) => "waiting for the daemon".to_owned(),
            (true, None) => "the daemon has no cluster".to_owned(),
            (true, Some(name)) => format!("the daemon no longer has a cluster {name:?}"),
        },
    }
}

fn cluster_row(cluster: &ClusterStatusResponse) -> TableRow {
    let status = cluster.status.as_ref();
    let (health, style) = health_status(cluster);
    let price = status.map(|status| status.cost_per_hour);
    TableRow {
        key: cluster.name.clone(),
        cells: vec![
            Cell::from_text(&cluster.name),
            Cell::from_optional(status.map(|status| status.mode.as_str())),
            leader_cell(cluster),
            Cell::from_text(health).with_style(style),
            count_cell(status.map(|it| it.nodes), CellStyle::Plain),
            count_cell(status.map(|it| it.unready_nodes), CellStyle::Warns),
            count_cell(status.map(|it| it.waiting_pods), CellStyle::Plain),
            count_cell(status.map(|it| it.unplaced_pods), CellStyle::Bad),
            match price {
                Some(price) => Cell::ranked(&format!("{price:.2}"), price),
                None => Cell::from_optional(None),
            },
        ],
        detail: cluster_details(cluster),
    }
}

/// Returns the cell of a count, in this style unless the count is zero.
#[expect(clippy::cast_precision_loss, reason = "no cluster has 2^52 of anything")]
fn count_cell(count: Option<usize>, style: CellStyle) -> Cell {
    match count {
        Some(0) => Cell::ranked("0", 0.0),
        Some(count) => Cell::ranked(&count.to_string(), count as f64).with_style(style),
        None => Cell::from_optional(None),
    }
}

/// Returns the leader of a cluster. A cluster in observe mode has no leader.
fn leader_cell(cluster: &ClusterStatusResponse) -> Cell {
    let mode = cluster.status.as_ref().map(|status| status.mode.as_str());
    match (mode, &cluster.led_by) {
        (Some("observe"), _) => Cell::from_text("none").with_faint_style(),
        (Some(_), _) => Cell::from_text("this host"),
        (None, Some(_)) if cluster.standing == ClusterHealth::Standby.as_str() => {
            Cell::from_text("other host")
        }
        (None, _) => Cell::from_optional(None),
    }
}

fn health_status(cluster: &ClusterStatusResponse) -> (&str, CellStyle) {
    let status = cluster.status.as_ref();
    if let Some(status) = status.filter(|_| cluster.is_well) {
        if status.paused.is_some() {
            return ("paused", CellStyle::Warns);
        }
        if status.unaccepted.is_some() || status.held_ends.is_some() {
            return ("unapproved", CellStyle::Warns);
        }
    }
    let is_suspended = status.is_some_and(|status| status.held_by.is_some());
    let has_overdue_sweep =
        status.is_some_and(|status| status.sweeps.iter().any(|sweep| sweep.overdue));
    match (cluster.is_well, is_suspended) {
        (true, _) => (&cluster.standing, CellStyle::Good),
        (false, true) if cluster.standing == "ready" => ("suspended", CellStyle::Bad),
        (false, false) if cluster.standing == "ready" && has_overdue_sweep => {
            ("overdue", CellStyle::Bad)
        }
        (false, _) => (&cluster.standing, CellStyle::Bad),
    }
}

/// Formats the details of a cluster: leader, suspension, pauses, pending approvals, sweeps and
/// pools.
fn cluster_details(cluster: &ClusterStatusResponse) -> String {
    let mut all: Vec<String> = cluster.led_by.iter().cloned().collect();
    if let Some(status) = &cluster.status {
        let suspensions = status.held_by.iter();
        all.extend(suspensions.map(|why| format!("voluntary disruption is suspended: {why}")));
        let pools = status.pools.iter();
        let pools = pools.map(|pool| (format!("pool {}", pool.name), pool.paused.as_ref()));
        let whole = ("the cluster".to_owned(), status.paused.as_ref());
        for (target, pause) in [whole].into_iter().chain(pools) {
            let Some(pause) = pause else { continue };
            let until = pause.until.map(|at| format!(" until {at}"));
            let until = until.unwrap_or_default();
            all.push(format!("{target} is paused{until}: {}", pause.reason));
        }
        all.extend(pending_approvals(status));
        let (overdue, others): (Vec<_>, Vec<_>) =
            status.sweeps.iter().partition(|sweep| sweep.overdue);
        all.extend(overdue.into_iter().chain(others).map(describe_sweep));
        let pools = status.pools.iter();
        all.extend(pools.map(|pool| {
            let (ready, coming, leaving) = (pool.ready, pool.starting, pool.leaving);
            format!(
                "pool {}: {ready} ready, {} not ready, {coming} starting, {leaving} draining",
                pool.name, pool.unready
            )
        }));
    }
    all.join("; ")
}
