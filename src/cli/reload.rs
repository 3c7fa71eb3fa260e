//! `outrigger reload`: reloads the configuration of the local daemon, or approves a change that the
//! daemon holds back.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use http::{Method, StatusCode};

use super::args::{ConfigArguments, SocketArguments};
use super::pause::annotate_lease;
use crate::coordination::lease_annotations::{ACCEPTED, accepted_with};
use crate::host::text::single_line;
use crate::model::template_hash::{accepted_cluster, change_id};
use crate::runtime::control::RELOAD;
use crate::runtime::control::client::send_without_body;

/// Time limit for the daemon to load its configuration, which can include calls to AWS.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Args, Debug)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    config: ConfigArguments,
    #[command(flatten)]
    socket: SocketArguments,
    /// Wait until the daemon has applied or rejected the configuration; this is the default
    #[arg(long, conflicts_with = "accept")]
    wait: bool,
    /// Do not reload; approve what the daemon holds back under this id: nodes that a configuration
    /// change disrupts, instances to terminate without a drain, or a recreated cluster
    #[arg(long, value_name = "ID")]
    accept: Option<String>,
    /// Print what would be approved, and approve nothing
    #[arg(long, requires = "accept")]
    dry_run: bool,
}

pub(crate) fn execute(arguments: &ReloadArgs, colour: bool) -> anyhow::Result<ExitCode> {
    match &arguments.accept {
        Some(id) => approve_change(arguments, id.trim(), colour),
        None => reload_config(arguments),
    }
}

/// Waits until the daemon has applied or rejected the configuration.
fn reload_config(arguments: &ReloadArgs) -> anyhow::Result<ExitCode> {
    let request = send_without_body(&arguments.socket.socket, Method::POST, RELOAD, PATIENCE);
    let (status, body) = super::wait_for(request)??;
    if status != StatusCode::OK {
        let why = anyhow!("{}", single_line(&String::from_utf8_lossy(&body)));
        return Err(why.context("cannot reload the configuration"));
    }
    let mut out = io::stdout().lock();
    writeln!(out, "the daemon has reloaded its configuration")?;
    // Changes that wait for approval.
    for pending in String::from_utf8_lossy(&body).lines() {
        writeln!(out, "{}", single_line(pending))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn approve_change(arguments: &ReloadArgs, id: &str, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(config) = arguments.config.read_config(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let mut clusters = config.clusters.iter();
    let cluster_name = accepted_cluster(id);
    let Some(cluster) = clusters.find(|cluster| match cluster_name {
        Some(name) => cluster.name.as_str() == name,
        None => change_id(cluster) == id,
    }) else {
        if let Some(name) = cluster_name {
            bail!("the configuration has no cluster {name:?}");
        }
        let ids: Vec<String> = config
            .clusters
            .iter()
            .map(|cluster| format!("{} of cluster {}", change_id(cluster), cluster.name))
            .collect();
        let ids = ids.join(", ");
        bail!("the id of this configuration is not {id:?}; it is {ids}");
    };
    let is_new = annotate_lease(
        cluster,
        ACCEPTED,
        |current| Some(accepted_with(current, id)),
        arguments.dry_run,
    )?;
    let end = match (is_new, arguments.dry_run) {
        (false, _) => "is already approved",
        (true, true) => "would be approved",
        (true, false) => "is approved",
    };
    let name = &cluster.name;
    writeln!(
        io::stdout().lock(),
        "{} of cluster {name} {end}",
        if cluster_name.is_some() { id.to_owned() } else { format!("configuration {id}") }
    )?;
    Ok(ExitCode::SUCCESS)
}
