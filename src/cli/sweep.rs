//! `outrigger sweep`: runs a sweep now on the local daemon, and prints the nodes that it found.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use clap::builder::PossibleValuesParser;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use http::{Method, StatusCode};

use super::args::SocketArguments;
use crate::host::text::{bounded_line, single_line};
use crate::model::sweep::SweepKind;
use crate::runtime::control::SWEEP;
use crate::runtime::control::client::send_request;
use crate::runtime::control_sweep::{SweepRequestBody, SweepResponse};

/// Time limit for the daemon, which waits less for its engine.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Args, Debug)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    socket: SocketArguments,
    /// What to look for
    #[arg(
        value_name = "KIND",
        value_parser = PossibleValuesParser::new(SweepKind::ALL.iter().map(|kind| kind.as_str()))
    )]
    kind: String,
    /// The cluster whose nodes are checked
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Check only the nodes of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Print what the sweep would find, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &SweepArgs) -> anyhow::Result<ExitCode> {
    let request = SweepRequestBody {
        cluster: arguments.cluster.clone(),
        sweep: arguments.kind.clone(),
        pool: arguments.pool.clone(),
        dry_run: arguments.dry_run,
    };
    let body = serde_json::to_vec(&request)?;
    let socket = &arguments.socket.socket;
    let request = send_request(socket, Method::POST, SWEEP, body.into(), PATIENCE);
    let (status, body) = super::wait_for(request)??;
    if status != StatusCode::OK {
        let why = anyhow!("{}", single_line(&String::from_utf8_lossy(&body)));
        return Err(why.context(format!("cannot run the {} sweep", arguments.kind)));
    }
    let response: SweepResponse = serde_json::from_slice(&body)
        .context("cannot read the daemon's response: the daemon has a different version")?;
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", serde_json::to_value(&response)?)?;
    } else {
        out.write_all(format_sweep(&response).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the result as text: one line per node, then the totals.
fn format_sweep(response: &SweepResponse) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    for node in &response.nodes {
        let why = node.text.as_deref().unwrap_or_default();
        table.add_row([&node.node, &node.pool, &node.outcome, why].map(bounded_line));
    }
    let mut out = String::new();
    if !response.nodes.is_empty() {
        let _ = writeln!(out, "{}", table.trim_fmt());
    }
    let more = response.found.saturating_sub(response.nodes.len());
    if more > 0 {
        let _ = writeln!(out, "and {more} more");
    }
    let SweepResponse { sweep, cluster, found, disrupted, blocked, observed, .. } = response;
    let end = if response.dry_run { ". Dry run: nothing was changed." } else { "." };
    let _ = writeln!(
        out,
        "Sweep {} of cluster {} found {found}: {disrupted} disrupted, {blocked} blocked, \
         {observed} observed{end}",
        bounded_line(sweep),
        bounded_line(cluster),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::{SweepResponse, format_sweep};
    use crate::runtime::control_sweep::SweptNodeBody;

    #[test]
    fn sweep_result_lists_each_node_with_its_verdict() {
        let node = |node: &str, outcome: &str, text: Option<&str>| SweptNodeBody {
            node: node.to_owned(),
            pool: "general".to_owned(),
            outcome: outcome.to_owned(),
            text: text.map(str::to_owned),
            ..SweptNodeBody::default()
        };
        let response = SweepResponse {
            cluster: "prod\u{1b}".to_owned(),
            sweep: "drift".to_owned(),
            dry_run: true,
            found: 3,
            blocked: 1,
            observed: 2,
            nodes: vec![node("a", "observed", None), node("b", "blocked", Some("a window"))],
            ..SweepResponse::default()
        };
        let text = format_sweep(&response);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let total = "Sweep drift of cluster prod\u{fffd} found 3: 0 disrupted, 1 blocked, 2 \
                     observed. Dry run: nothing was changed.";
        let first = [" a  general  observed", " b  general  blocked   a window", "and 1 more"];
        assert_eq!(lines[..3], first, "{text}");
        assert_eq!(lines[3].replace(' ', ""), total.replace([' ', '\u{fffd}'], ""), "{text}");
    }
}
