//! Log lines and metrics: one line a decision, one counter a fact.
//! It must not know why anything was decided.

pub(crate) mod journal;

pub(crate) mod traces;

pub(crate) mod log;

pub(crate) mod names;

pub(crate) mod series;

pub(crate) mod metrics;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::engine::command::Answer;
use crate::engine::report::Report;
use crate::model::id::ClusterName;
use crate::shell::clock;
use crate::shell::telemetry::series::Sample;
use crate::state::State;

/// Logs and counts what an engine decided or saw.
pub(crate) fn report(cluster: &ClusterName, managed: bool, report: &Report) {
    log::report(cluster, managed, report);
    metrics::report(cluster, managed, report);
}

/// Counts a command that was carried out, or not: what came of it, in a word.
pub(crate) fn command(
    cluster: &ClusterName,
    name: &'static str,
    answer: &Answer,
    took: Duration,
) -> &'static str {
    let outcome = outcome(answer);
    tracing::debug!(%cluster, command = name, outcome, ?took, "command");
    metrics::command(cluster, name, outcome, took);
    outcome
}

/// Shows whether decisions are made.
pub(crate) fn status(cluster: &ClusterName, ready: bool) {
    metrics::status(cluster, ready);
}

/// Shows whether this host leads a cluster.
pub(crate) fn leads(cluster: &ClusterName, leads: bool) {
    metrics::leads(cluster, leads);
}

/// Counts a look of an engine at what is due.
pub(crate) fn pass(cluster: &ClusterName, took: Duration) {
    metrics::pass(cluster, took);
}

/// Counts a pass in which pods were planned for.
pub(crate) fn planned(cluster: &ClusterName, took: Duration) {
    metrics::planned(cluster, took);
}

/// Shows how the view of a cluster is: since when it has not been whole, if it is not.
pub(crate) fn view(cluster: &ClusterName, state: &State, unready: Option<Timestamp>) {
    let now = clock::now();
    let seconds = |since: Option<Timestamp>| {
        let age = since.map_or(SignedDuration::ZERO, |since| now.duration_since(since));
        age.as_secs_f64().max(0.0)
    };
    let oldest = state.views.seen_least(state.cluster.kinds());
    metrics::view(cluster, seconds(unready), seconds(oldest));
}

/// What a cluster holds now.
pub(crate) fn samples(cluster: &ClusterName, state: &State) -> Vec<Sample> {
    series::samples(cluster, state, metrics::per_node())
}

fn outcome(answer: &Answer) -> &'static str {
    match answer {
        Answer::LaunchRefused(_) | Answer::EvictRefused(_) | Answer::Denied { .. } => "refused",
        Answer::Failed { kind, .. } => kind.as_str(),
        Answer::Launched(_)
        | Answer::Terminating(_)
        | Answer::Instances(_)
        | Answer::Pods(_)
        | Answer::Attachments(_)
        | Answer::Probed { .. }
        | Answer::Lease(_)
        | Answer::Granted
        | Answer::Done => "done",
    }
}
