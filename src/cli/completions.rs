//! `outrigger completions`: prints the completion script for a shell.

use std::io;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell to print the script for
    shell: Shell,
}

pub(crate) fn execute(arguments: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut command = super::CommandLine::command();
    let mut text = Vec::new();
    generate(arguments.shell, &mut command, "outrigger", &mut text);
    io::Write::write_all(&mut io::stdout().lock(), &text)?;
    Ok(ExitCode::SUCCESS)
}
