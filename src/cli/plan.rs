//! `outrigger plan`: what would be done about clusters now. Nothing is written in any of them.
//! It must not know how a plan is made, nor how a cluster is seen.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::cluster_source::ClusterSource;
use crate::host::clock::{self, Stopwatch};
use crate::plan;
use crate::plan::render::{FORMAT_VERSION, RenderedPlan};

/// The exit code where there is something to do, if it was asked for.
const WORK: u8 = 2;

/// The exit code where the verb could not run, wrong arguments among the reasons: 2 says something
/// else.
const COULD_NOT_RUN: u8 = 1;

/// What the exit code says.
const CODES: &str = "Exit codes: 0 all is told, 1 something of a cluster is not known; with \
                     --detailed-exitcode also 2: all is known, and something would be launched or \
                     retired. Nothing is written, in no cluster and not in AWS.";

#[derive(Args, Debug)]
#[command(after_help = CODES)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    given: ClusterSource,
    /// Print one JSON object; of all clusters, where none was asked for by name
    #[arg(long)]
    json: bool,
    /// End with 2 where there is something to do
    #[arg(long)]
    detailed_exitcode: bool,
}

pub(crate) fn execute(arguments: &PlanArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(seen) = arguments.given.all(colour)? else {
        return Ok(ExitCode::from(COULD_NOT_RUN));
    };
    let now = clock::now();
    let mut is_idle = true;
    let mut plans: Vec<Value> = Vec::new();
    let mut out = io::stdout().lock();
    for (index, (state, missing)) in seen.states.iter().enumerate() {
        let began = Stopwatch::start();
        let plan = plan::foreseen(state, now);
        let solve_seconds = began.elapsed().as_secs_f64();
        let unbudgeted = plan::unbudgeted(state, now);
        let shown = RenderedPlan {
            cluster: state.cluster.name.as_str(),
            plan: &plan,
            solve_seconds,
            missing: missing.as_deref(),
            unbudgeted: Some(&unbudgeted),
            before: state.cost(),
        };
        is_idle &= plan.is_empty();
        if arguments.json {
            plans.push(shown.json());
            continue;
        }
        if index > 0 {
            writeln!(out)?;
        }
        out.write_all(shown.text().as_bytes())?;
    }
    let is_one = arguments.given.is_one();
    if arguments.json {
        let unseen = seen.unseen.iter();
        let unseen = unseen.map(|(own, why)| json!({"cluster": own.as_str(), "why": why}));
        let all = match plans.as_mut_slice() {
            [own] if is_one => own.take(),
            _ => json!({
                "format_version": FORMAT_VERSION,
                "clusters": plans,
                "unseen": unseen.collect::<Vec<_>>(),
            }),
        };
        writeln!(out, "{all:#}")?;
    }
    Ok(
        match (seen.failed, is_idle || !arguments.detailed_exitcode) {
            (true, _) => ExitCode::from(COULD_NOT_RUN),
            (false, true) => ExitCode::SUCCESS,
            (false, false) => ExitCode::from(WORK),
        },
    )
}
