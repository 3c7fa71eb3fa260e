//! `outrigger release`: takes our finalizers and taints off a cluster's Nodes, and leaves them.
//! It must not know how, nor what else could be done with them.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::args::ConfigArguments;
use super::cluster_source::chosen;
use super::diagnostics;
use crate::kubernetes::release::release_all;
use crate::model::cluster::ManagementMode;
use crate::runtime::clusters::ClusterSet;

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    config: ConfigArguments,
    /// The cluster
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Only say what would be taken off which node
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn execute(arguments: &ReleaseArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(config) = arguments.config.read(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    diagnostics::show(&config.warnings, colour);
    let cluster = chosen(config.clusters, Some(&arguments.cluster))?;
    if cluster.mode == ManagementMode::Manage && !arguments.dry_run {
        super::say(&format!(
            "The configuration still manages {}: a daemon that runs with it goes on as before.",
            cluster.name
        ));
    }
    let dry_run = arguments.dry_run;
    let released = super::wait_for(async {
        let connection = ClusterSet::start().connect(&cluster).await?;
        let released = release_all(&connection, &cluster.installation, dry_run).await;
        released.context("list the nodes")
    })??;
    let mut out = io::stdout().lock();
    let verb = if dry_run { "would lose" } else { "has lost" };
    for own in &released {
        let what = match (own.finalizer, own.taints) {
            (true, true) => "our finalizer and marks",
            (true, false) => "our finalizer",
            _ => "our marks",
        };
        match &own.fault {
            None => writeln!(out, "node {} {verb} {what}", own.node)?,
            Some(why) => writeln!(out, "node {} still has {what}: {why}", own.node)?,
        }
    }
    if released.is_empty() {
        writeln!(out, "no node has anything of ours that it would wait for")?;
    }
    Ok(match released.iter().any(|own| own.fault.is_some()) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}
