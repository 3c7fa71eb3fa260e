//! Records what an engine reports and executes: as log lines, counters and samples.

use std::time::Duration;

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::engine::report::description::Description;
use crate::model::id::ClusterName;
use crate::provider::{CommandResult, FailureKind};
use crate::telemetry::cluster_collector::{self, CollectedView, MetricSample};
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
    now: Timestamp,
) -> Vec<MetricSample> {
    let measures = engine.measures();
    let held = measures.blocked.clone().into_iter().filter(|_| managed);
    let view = CollectedView {
        state: engine.state(),
        measures,
        per_node: report_metrics::per_node(),
        now,
    };
    cluster_collector::collect_samples(cluster, &view, held)
}

/// Records a command as a call of the provider, if it is a command for providers. `provider` is the
/// name of the provider.
pub(crate) fn record_provider_call(
    cluster: &ClusterName,
    provider: &'static str,
    name: &'static str,
    answer: &CommandResult,
    took: Duration,
) {
    // Karpenter's names of the methods.
    let method = match name {
        "launch" => "Create",
        "terminate" => "Delete",
        "list_instances" => "List",
        _ => return,
    };
    if provider.is_empty() {
        return;
    }
    report_metrics::record_provider_call(cluster, [method, provider], provider_error(answer), took);
}

/// Returns Karpenter's name of the error of a provider, empty if it has none. `None` if the call
/// has succeeded.
fn provider_error(answer: &CommandResult) -> Option<&'static str> {
    match answer {
        CommandResult::LaunchRefused(_) => Some("InsufficientCapacityError"),
        CommandResult::Failed { kind: FailureKind::Gone, .. } => Some("NodeClaimNotFoundError"),
        CommandResult::Failed { .. } | CommandResult::Denied { .. } => Some(""),
        _ => None,
    }
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
