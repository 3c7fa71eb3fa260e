//! `outrigger validate`: whether a configuration can be used, without using it.
//! It must not know what a configuration is used for.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::arguments::VariableArguments;
use super::diagnostics;
use crate::config::problem::report_json;
use crate::shell::files::{self, DEFAULT_CONFIG, LoadError};
use crate::shell::text;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Files and directories that make one configuration
    #[arg(
        value_name = "PATH",
        env = "OUTRIGGER_CONFIG",
        value_delimiter = ':',
        default_value = DEFAULT_CONFIG
    )]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    variables: VariableArguments,
    /// Print one JSON object, as `terraform validate -json` does
    #[arg(long)]
    json: bool,
    /// Print problems only
    #[arg(long)]
    quiet: bool,
}

pub(crate) fn execute(arguments: &Arguments, colour: bool) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let loaded = files::load(&arguments.variables.wanted(arguments.paths.clone()));
    if arguments.json {
        let report = match &loaded {
            Ok(config) => report_json(&config.warnings),
            Err(LoadError::Problems(problems)) => report_json(problems),
            Err(LoadError::Files(error)) => unreadable(&text::chain(error)),
        };
        writeln!(out, "{report:#}")?;
    } else {
        match &loaded {
            Ok(config) => {
                diagnostics::show(&config.warnings, colour);
                if !arguments.quiet {
                    let (clusters, pools) = (
                        config.clusters.len(),
                        config
                            .clusters
                            .iter()
                            .map(|it| it.pools.len())
                            .sum::<usize>(),
                    );
                    writeln!(
                        out,
                        "The configuration is valid: {clusters} clusters, {pools} pools."
                    )?;
                }
            }
            Err(error) => diagnostics::show_error(error, colour),
        }
    }
    Ok(if loaded.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The report of a configuration that could not even be read.
fn unreadable(why: &str) -> Value {
    json!({
        "format_version": "1.0",
        "valid": false,
        "error_count": 1,
        "warning_count": 0,
        "diagnostics": [{
            "severity": "error",
            "code": "unreadable",
            "summary": "Unreadable configuration",
            "detail": why,
        }],
    })
}
