//! Records what an engine reports and executes: as log lines, counters and samples.

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::engine::report::description::Description;
use crate::model::id::ClusterName;
use crate::provider::CommandResult;
use crate::telemetry::cluster_collector::{self, MetricSample};
use crate::telemetry::{report_log, report_metrics};

/// Logs and counts a report of an engine.
pub(crate) fn record_report(cluster: &ClusterName, report: &Report, described: &Description<'_>) {
    report_log::log_report(cluster, report, described);
    report_metrics::count_report(cluster, report, described);
}

/// Records a command and its outcome.
pub(crate) fn record_command(
    cluster: &ClusterName,
    name: &'static str,
    answer: &CommandResult,
    took: Duration,
) -> &'static str {
    let outcome = command_outcome(answer);
    tracing::debug!(%cluster, command = name, outcome, ?took, "command");
    report_metrics::record_command(cluster, name, outcome, took);
    outcome
}

/// Samples of the cluster state, and the blocked disruptions of managed clusters.
pub(crate) fn cluster_samples(
    cluster: &ClusterName,
    engine: &Engine,
    managed: bool,
) -> Vec<MetricSample> {
    let held = engine.blocked_disruptions().filter(|_| managed);
    cluster_collector::collect_samples(cluster, engine.state(), held, report_metrics::per_node())
}

fn command_outcome(answer: &CommandResult) -> &'static str {
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
