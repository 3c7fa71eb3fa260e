//! `outrigger version`: what this binary is.
//! It must not know what it can do.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(
            out,
            "{}",
            json!({ "format_version": "1.0", "outrigger": version })
        )?;
    } else {
        writeln!(out, "outrigger {version}")?;
    }
    Ok(ExitCode::SUCCESS)
}
