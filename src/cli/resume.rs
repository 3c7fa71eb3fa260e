//! `outrigger resume`: a pause of a cluster, or of one of its pools, is over.
//! It must not know what is done then.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;

use super::pause::PauseTarget;

#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    target: PauseTarget,
}

pub(crate) fn execute(arguments: &ResumeArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let target = &arguments.target;
    let Some(cluster) = target.read(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let said = target.write(&cluster, None)?;
    if !said {
        // One that is not configured any more may still be paused.
        target.find_pool(&cluster)?;
    }
    let end = match (said, target.is_dry_run()) {
        (false, _) => "is not paused",
        (true, true) => "would be paused no more",
        (true, false) => "is paused no more",
    };
    writeln!(io::stdout().lock(), "{} {end}", target.what())?;
    Ok(ExitCode::SUCCESS)
}
