//! `outrigger man`: writes the manual pages, one for the program and one for each verb.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_mangen::generate_to;

#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory for the manual pages; created if it does not exist
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(crate) fn execute(arguments: &ManArgs) -> anyhow::Result<ExitCode> {
    let into = &arguments.directory;
    fs::create_dir_all(into)
        .and_then(|()| generate_to(super::CommandLine::command(), into))
        .with_context(|| format!("cannot write manual pages to {}", into.display()))?;
    Ok(ExitCode::SUCCESS)
}
