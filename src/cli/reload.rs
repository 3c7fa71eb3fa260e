//! `outrigger reload`: nodes may leave by a configuration by which many would.
//! It must not know which nodes these are, nor who has loaded it: the cluster's Lease tells them.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

use super::arguments::ConfigArguments;
use super::diagnostics;
use super::pause::annotate;
use crate::model::cluster::Cluster;
use crate::model::hash::change_id;
use crate::model::notes::ACCEPTED;
use crate::shell::files;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// Let the nodes go that the configuration of this id makes due, as the daemon tells it
    #[arg(long, value_name = "ID")]
    accept: String,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn execute(arguments: &Arguments, colour: bool) -> anyhow::Result<ExitCode> {
    let config = match files::load(&arguments.config.wanted()) {
        Ok(config) => config,
        Err(problems) => {
            diagnostics::show(&problems, colour);
            return Ok(ExitCode::FAILURE);
        }
    };
    let id = arguments.accept.trim();
    let mut clusters = config.clusters.iter();
    let Some(cluster) = clusters.find(|own| change_id(own) == id) else {
        let known = |own: &Cluster| format!("{} of cluster {}", change_id(own), own.name);
        let known: Vec<String> = config.clusters.iter().map(known).collect();
        let known = known.join(", ");
        bail!("this configuration is not {id:?}; it is {known}");
    };
    let news = annotate(cluster, ACCEPTED, Some(id.to_owned()), arguments.dry_run)?;
    let end = match (news, arguments.dry_run) {
        (false, _) => "was accepted before",
        (true, true) => "would be accepted",
        (true, false) => "is accepted",
    };
    let name = &cluster.name;
    writeln!(
        io::stdout().lock(),
        "configuration {id} of cluster {name} {end}"
    )?;
    Ok(ExitCode::SUCCESS)
}
