//! `outrigger export`: converts a configuration to Karpenter objects.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, iter};

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::args::ConfigArguments;
use super::diagnostics;
use crate::migrate::karpenter::export::export_cluster;

/// The format of the exported objects.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// NodePool and EC2NodeClass v1, NodeOverlay and CapacityBuffer objects
    Karpenter,
}

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    config: ConfigArguments,
    /// Output format
    #[arg(long, value_enum, default_value = "karpenter")]
    format: Format,
    /// The cluster to export if the configuration has several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Write to this file instead of standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) fn execute(arguments: &ExportArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(config) = arguments.config.read_config(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let Format::Karpenter = arguments.format;
    let exported = export_cluster(&config, arguments.cluster.as_deref())?;
    match &arguments.file {
        Some(path) => fs::write(path, &exported.text)
            .with_context(|| format!("cannot write {}", path.display()))?,
        None => io::stdout().write_all(exported.text.as_bytes())?,
    }
    Ok(diagnostics::print_losses(&exported.losses, iter::empty()))
}
