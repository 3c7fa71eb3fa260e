//! `outrigger status`: prints the status of the clusters that the local daemon manages.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use http::{Method, StatusCode};
use jiff::Timestamp;

use super::args::SocketArguments;
use super::success_or;
use crate::cli::cluster_notes::{cluster_notes, describe_sweep};
use crate::engine::views::status::{ClusterStatus, PoolStatus};
use crate::host::clock;
use crate::host::text::bounded_line;
use crate::runtime::control::STATUS;
use crate::runtime::control::client::send_without_body;
use crate::runtime::control_status::{ClusterStatusResponse, StatusResponse};

/// The exit code if a cluster is unhealthy or the last reload failed.
const UNWELL: u8 = 2;

/// Time limit for the daemon's response; the daemon waits less for its engines.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    socket: SocketArguments,
    /// The cluster to show; default: all clusters
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &StatusArgs) -> anyhow::Result<ExitCode> {
    let mut response = request_status(arguments)?;
    if let Some(name) = &arguments.cluster {
        let names: Vec<String> =
            response.clusters.iter().map(|cluster| cluster.name.clone()).collect();
        response.clusters.retain(|cluster| cluster.name == *name);
        if response.clusters.is_empty() {
            bail!("the daemon has no cluster {name:?}; it has {}", names.join(", "));
        }
    }
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", serde_json::to_value(&response)?)?;
    } else {
        out.write_all(format_status(&response, clock::now()).as_bytes())?;
    }
    let well =
        response.reload_fault.is_none() && response.clusters.iter().all(|cluster| cluster.is_well);
    Ok(success_or(UNWELL, well))
}

fn request_status(arguments: &StatusArgs) -> anyhow::Result<StatusResponse> {
    let socket = &arguments.socket.socket;
    let request = send_without_body(socket, Method::GET, STATUS, PATIENCE);
    let (status, body) = super::wait_for(request)??;
    if status != StatusCode::OK {
        bail!("the daemon returned {status}: {}", bounded_line(&String::from_utf8_lossy(&body)));
    }
    serde_json::from_slice(&body)
        .context("cannot read the daemon's response: the daemon has a different version")
}

/// Formats the status as text.
fn format_status(response: &StatusResponse, now: Timestamp) -> String {
    let mut out = String::new();
    if let Some(why) = &response.reload_fault {
        let _ = writeln!(out, "configuration not reloaded: {}\n", bounded_line(why));
    }
    for cluster in &response.clusters {
        write_cluster(&mut out, cluster, now);
    }
    let unwell = response.clusters.iter().filter(|cluster| !cluster.is_well).count();
    let cost: f64 = response
        .clusters
        .iter()
        .map(|cluster| cluster.status.as_ref().map_or(0.0, |status| status.cost_per_hour))
        .sum();
    let (all, version) = (response.clusters.len(), &response.outrigger);
    let _ = writeln!(
        out,
        "Clusters: {all}, {unwell} unhealthy. Cost: ${cost:.2}/h. Outrigger {version}."
    );
    out
}

fn write_cluster(out: &mut String, cluster: &ClusterStatusResponse, now: Timestamp) {
    let _ = write!(out, "cluster {}: {}", bounded_line(&cluster.name), cluster.standing);
    let Some(status) = &cluster.status else {
        out.push('\n');
        if let Some(why) = &cluster.led_by {
            let _ = writeln!(out, "  {}", bounded_line(why));
        }
        out.push('\n');
        return;
    };
    let ClusterStatus { mode, nodes, .. } = status;
    let _ = writeln!(out, ", {mode}, {nodes} nodes, ${:.2}/h", status.cost_per_hour);
    for note in cluster_notes(status, now) {
        let _ = writeln!(out, "  {note}");
    }
    for sweep in &status.sweeps {
        let _ = writeln!(out, "  {}", describe_sweep(sweep));
    }
    if !status.pools.is_empty() {
        let _ = writeln!(out, "{}", pool_table(&status.pools).trim_fmt());
    }
    out.push('\n');
}

fn pool_table(pools: &[PoolStatus]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["POOL", "READY", "NOT READY", "STARTING", "DRAINING", "LIMIT", "$/H"]);
    for pool in pools {
        let name = bounded_line(&pool.name);
        let suffix = if pool.configured { "" } else { " (not configured)" };
        table.add_row([
            format!("{name}{suffix}"),
            pool.ready.to_string(),
            pool.unready.to_string(),
            pool.starting.to_string(),
            pool.leaving.to_string(),
            pool.limit.map_or("-".to_owned(), |limit| limit.to_string()),
            format!("{:.3}", pool.cost_per_hour),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
