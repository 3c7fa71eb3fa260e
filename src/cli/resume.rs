//! `outrigger resume`: ends the pause of a cluster or of one of its pools.

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
    let Some(cluster) = target.read_cluster(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let changed = target.write_pause(&cluster, None)?;
    if !changed {
        // A pool that is no longer configured can still be paused.
        target.find_pool(&cluster)?;
    }
    let end = match (changed, target.dry_run) {
        (false, _) => "is not paused",
        (true, true) => "would no longer be paused",
        (true, false) => "is no longer paused",
    };
    writeln!(io::stdout().lock(), "{} {end}", target.describe_target())?;
    Ok(ExitCode::SUCCESS)
}
