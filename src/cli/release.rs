//! `outrigger release`: removes Outrigger's finalizers and taints from the Nodes of a cluster.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::args::ConfigArguments;
use super::cluster_source::choose_cluster;
use super::{FAILED, diagnostics, success_or};
use crate::kubernetes::release::release_all;
use crate::model::cluster::ManagementMode;
use crate::runtime::clusters::ClusterSet;

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    config: ConfigArguments,
    /// The name of the cluster
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Print what would be removed from each node, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn execute(arguments: &ReleaseArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(config) = arguments.config.read_config(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    diagnostics::print_problems(&config.warnings, colour);
    let cluster = choose_cluster(config.clusters, Some(&arguments.cluster))?;
    if cluster.mode == ManagementMode::Manage && !arguments.dry_run {
        super::print_error_line(&format!(
            "Warning: {} still has mode = \"manage\": a running daemon continues to manage it.",
            cluster.name
        ));
    }
    let dry_run = arguments.dry_run;
    let released = super::wait_for(async {
        let connection = ClusterSet::start().connect(&cluster).await?;
        let released = release_all(&connection, &cluster.installation, dry_run).await;
        released.context("cannot list the nodes")
    })??;
    let mut out = io::stdout().lock();
    let verb = if dry_run { "would remove" } else { "removed" };
    for node in &released {
        let removed = match (node.finalizer, node.taints) {
            (true, true) => "Outrigger's finalizer and taints",
            (true, false) => "Outrigger's finalizer",
            _ => "Outrigger's taints",
        };
        match &node.fault {
            None => writeln!(out, "node {}: {verb} {removed}", node.node)?,
            Some(why) => writeln!(out, "node {}: cannot remove {removed}: {why}", node.node)?,
        }
    }
    if released.is_empty() {
        writeln!(out, "no node has a finalizer or taint of Outrigger")?;
    }
    let is_well = released.iter().all(|node| node.fault.is_none());
    Ok(success_or(FAILED, is_well))
}
