//! `outrigger doctor`: whether the daemon would work here, check by check, with what puts it right.
//! It must not know what is looked at, nor write anything.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::args::ConfigArguments;
use crate::doctor::{self, DoctorRun, NoSuchCluster, TOPICS};

/// What the exit code says.
const CODES: &str = "Exit codes: 0 all is well, 1 doctor could not run, 2 warnings, 3 something \
                     could not be looked at, 4 something does not work; of several the worst \
                     counts: 4, then 2, then 3. What --skip leaves out does not count. Nothing is \
                     written, in no cluster and not in AWS.";

#[derive(Args, Debug)]
#[command(after_help = CODES)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    config: ConfigArguments,
    /// One cluster; all if missing
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Leave out a check; may be given several times
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
        doctor::examine(&arguments.config.wanted(), only, &scope).await
    })?;
    let report = match report {
        Ok(report) => report,
        Err(NoSuchCluster { known }) => bail!(
            "there is no cluster {:?}; the configuration has {}",
            arguments.cluster.as_deref().unwrap_or_default(),
            known.join(", ")
        ),
    };
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        let text = report.text(colour && out.is_terminal());
        out.write_all(text.as_bytes())?;
    }
    Ok(ExitCode::from(report.code()))
}
