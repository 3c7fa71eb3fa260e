//! `outrigger man`: the manual pages, one of the program and one of each verb.
//! It must not know the verbs: they are read off the command line itself.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_mangen::generate_to;

#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory to write them into, which is made if it is not there
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(crate) fn execute(arguments: &ManArgs) -> anyhow::Result<ExitCode> {
    let into = &arguments.directory;
    let write = || {
        fs::create_dir_all(into)?;
        generate_to(super::CommandLine::command(), into)
    };
    write().with_context(|| format!("write manual pages into {}", into.display()))?;
    Ok(ExitCode::SUCCESS)
}
