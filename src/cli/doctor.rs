//! `outrigger doctor`: checks that the daemon can run on this host, and prints fixes.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::args::ConfigArguments;
use crate::doctor::options::{DoctorRun, TOPICS};
use crate::doctor::run::{NoSuchCluster, run_checks};

/// The meaning of the exit codes.
const CODES: &str = "Exit codes: 0 all checks passed, 1 doctor could not run, 2 warnings, 3 some \
                     checks could not run, 4 errors. If several apply, the order is 4, 2, 3. \
                     Checks left out with --skip do not count. doctor writes nothing, neither to \
                     a cluster nor to AWS.";

#[derive(Args, Debug)]
#[command(after_help = CODES)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    config: ConfigArguments,
    /// The cluster to check; default: all clusters
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Skip a check; can be given several times
    #[arg(long, value_name = "CHECK", value_parser = PossibleValuesParser::new(TOPICS))]
    skip: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &DoctorArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let report = super::wait_for(async {
        let scope = DoctorRun::new(arguments.skip.iter().cloned());
        let only = arguments.cluster.as_deref();
        run_checks(&arguments.config.config_sources(), only, &scope).await
    })?;
    let report = match report {
        Ok(report) => report,
        Err(NoSuchCluster { known }) => bail!(
            "the configuration has no cluster {:?}; it has {}",
            arguments.cluster.as_deref().unwrap_or_default(),
            known.join(", ")
        ),
    };
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", report.to_json())?;
    } else {
        let text = report.render_text(colour && out.is_terminal());
        out.write_all(text.as_bytes())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}
