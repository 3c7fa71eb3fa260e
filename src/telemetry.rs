//! Log lines and metrics: one line a decision, one counter a fact.
//! It must not know why anything was decided.

pub(crate) mod journal;
pub(crate) mod otlp;
pub(crate) mod report_log;
pub(crate) mod metric_definitions;
pub(crate) mod cluster_collector;
pub(crate) mod report_metrics;

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::command::CommandResult;
use crate::engine::report::Report;
use crate::model::id::ClusterName;
use crate::telemetry::cluster_collector::MetricSample;

/// Logs and counts what an engine decided or saw.
pub(crate) fn report(cluster: &ClusterName, managed: bool, report: &Report) {
    report_log::report(cluster, managed, report);
    report_metrics::report(cluster, managed, report);
}

/// Counts a command that was carried out, or not: what came of it, in a word.
pub(crate) fn command(
    cluster: &ClusterName,
    name: &'static str,
    answer: &CommandResult,
    took: Duration,
) -> &'static str {
    let outcome = outcome(answer);
    tracing::debug!(%cluster, command = name, outcome, ?took, "command");
    report_metrics::command(cluster, name, outcome, took);
    outcome
}

/// Shows whether decisions are made.
pub(crate) fn status(cluster: &ClusterName, ready: bool) {
    report_metrics::status(cluster, ready);
}

/// Shows whether this host leads a cluster.
pub(crate) fn leads(cluster: &ClusterName, leads: bool) {
    report_metrics::leads(cluster, leads);
}

/// Counts a look of an engine at what is due.
pub(crate) fn pass(cluster: &ClusterName, took: Duration) {
    report_metrics::pass(cluster, took);
}

/// Counts a pass in which pods were planned for.
pub(crate) fn planned(cluster: &ClusterName, took: Duration) {
    report_metrics::planned(cluster, took);
}

/// What a cluster holds now, and what stays in it that would leave, where that is done.
pub(crate) fn samples(cluster: &ClusterName, engine: &Engine, managed: bool) -> Vec<MetricSample> {
    let held = engine.held_back().filter(|_| managed);
    cluster_collector::samples(cluster, engine.state(), held, report_metrics::per_node())
}

fn outcome(answer: &CommandResult) -> &'static str {
    match answer {
        CommandResult::LaunchRefused(_)
        | CommandResult::EvictRefused(_)
        | CommandResult::Denied { .. } => "refused",
        CommandResult::Failed { kind, .. } => kind.as_str(),
        CommandResult::Launched(_)
        | CommandResult::Terminating(_)
        | CommandResult::Instances(_)
        | CommandResult::Pods(_)
        | CommandResult::Attachments(_)
        | CommandResult::Probed { .. }
        | CommandResult::Lease(_)
        | CommandResult::Version(_)
        | CommandResult::Granted
        | CommandResult::Done => "done",
    }
}
