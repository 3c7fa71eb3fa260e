//! `outrigger plan`: prints what would be launched and disrupted now. It writes nothing.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::cluster_source::ClusterSource;
use crate::host::clock::{self, Stopwatch};
use crate::plan;
use crate::plan::render::{FORMAT_VERSION, RenderedPlan};
use crate::state::sweeps::scheduled_sweeps;

/// The exit code of `--detailed-exitcode` if the plan would launch or disrupt nodes.
const WORK: u8 = 2;

/// The exit code if the verb could not run, for example because of wrong arguments.
const COULD_NOT_RUN: u8 = 1;

/// The meaning of the exit codes.
const CODES: &str = "Exit codes: 0 the plan is complete, 1 plan could not run or the state of a \
                     cluster is incomplete. With --detailed-exitcode also 2: the plan is complete \
                     and would launch or disrupt nodes. plan writes nothing, neither to a cluster \
                     nor to AWS.";

#[derive(Args, Debug)]
#[command(after_help = CODES)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    given: ClusterSource,
    /// Print one JSON object, with a list of all clusters unless one is chosen
    #[arg(long)]
    json: bool,
    /// Exit with status 2 if nodes would be launched or disrupted
    #[arg(long)]
    detailed_exitcode: bool,
}

pub(crate) fn execute(arguments: &PlanArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(loaded) = arguments.given.load_all(colour)? else {
        return Ok(ExitCode::from(COULD_NOT_RUN));
    };
    let now = clock::now();
    let mut is_idle = true;
    let mut plans: Vec<Value> = Vec::new();
    let mut out = io::stdout().lock();
    for (index, (state, missing)) in loaded.states.iter().enumerate() {
        let began = Stopwatch::start();
        let plan = plan::full_plan(state, now);
        let solve_seconds = began.elapsed().as_secs_f64();
        let unbudgeted = plan::plan_without_budgets(state, now);
        let rendered = RenderedPlan {
            cluster: state.cluster.name.as_str(),
            plan: &plan,
            solve_seconds,
            missing: missing.as_deref(),
            unbudgeted: Some(&unbudgeted),
            before: state.total_cost(),
            sweeps: scheduled_sweeps(&state.cluster, now),
        };
        is_idle &= plan.is_empty();
        if arguments.json {
            plans.push(rendered.json());
            continue;
        }
        if index > 0 {
            writeln!(out)?;
        }
        out.write_all(rendered.text().as_bytes())?;
    }
    let is_one = arguments.given.is_one();
    if arguments.json {
        let unread = loaded.unseen.iter();
        let unread = unread.map(|(cluster, why)| json!({"cluster": cluster.as_str(), "why": why}));
        let all = match plans.as_mut_slice() {
            [only] if is_one => only.take(),
            _ => json!({
                "format_version": FORMAT_VERSION,
                "clusters": plans,
                "unseen": unread.collect::<Vec<_>>(),
            }),
        };
        writeln!(out, "{all:#}")?;
    }
    Ok(match (loaded.failed, is_idle || !arguments.detailed_exitcode) {
        (true, _) => ExitCode::from(COULD_NOT_RUN),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(WORK),
    })
}
