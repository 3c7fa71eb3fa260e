//! `outrigger validate`: checks a configuration without applying it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::args::VariableArguments;
use super::{FAILED, count_noun, diagnostics, success_or};
use crate::config::diagnostic::report_json;
use crate::host::files::{self, DEFAULT_CONFIG};

#[derive(Args, Debug)]
pub(crate) struct ValidateArgs {
    /// Files and directories of one configuration
    #[arg(
        value_name = "PATH",
        env = "OUTRIGGER_CONFIG",
        value_delimiter = ':',
        default_value = DEFAULT_CONFIG
    )]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    variables: VariableArguments,
    /// Print one JSON object, in the format of `terraform validate -json`
    #[arg(long)]
    json: bool,
    /// Print only errors and warnings
    #[arg(long)]
    quiet: bool,
}

pub(crate) fn execute(arguments: &ValidateArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let loaded = files::load_config(&arguments.variables.config_sources(arguments.paths.clone()));
    if arguments.json {
        let report = match &loaded {
            Ok(config) => report_json(&config.warnings),
            Err(problems) => report_json(problems),
        };
        writeln!(out, "{report:#}")?;
    } else {
        match &loaded {
            Ok(config) => {
                diagnostics::print_problems(&config.warnings, colour);
                if !arguments.quiet {
                    let pools = config.clusters.iter().map(|it| it.pools.len()).sum();
                    let clusters = count_noun(config.clusters.len(), "cluster");
                    let pools = count_noun(pools, "pool");
                    writeln!(out, "The configuration is valid: {clusters}, {pools}.")?;
                }
            }
            Err(problems) => diagnostics::print_problems(problems, colour),
        }
    }
    Ok(success_or(FAILED, loaded.is_ok()))
}
