//! Counters and gauges under Karpenter's names where they mean the same, else `outrigger_*`.
//! It must not know who reads them.

use std::time::Duration;

use ::metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use thiserror::Error;

use crate::config::settings::MetricNames;
use crate::engine::report::Report;
use crate::model::claim::Phase;
use crate::model::id::ClusterName;
use crate::shell::clock;
use crate::solve::replicas::Need;

/// Why nothing is counted.
#[derive(Debug, Error)]
pub(crate) enum MetricsError {
    #[error("set the metrics up")]
    Build(#[source] BuildError),
    #[error("set the metrics up: they are already")]
    Twice,
}

/// Everything that was counted.
#[derive(Clone)]
pub(crate) struct Counted {
    handle: PrometheusHandle,
    /// How the names of series begin that are not wanted.
    unwanted: Vec<&'static str>,
}

impl Counted {
    /// Counts from here on, for the whole process; only series under these names are shown.
    pub(crate) fn init(names: &[MetricNames]) -> Result<Self, MetricsError> {
        let builder = PrometheusBuilder::new().set_quantiles(&[0.0, 0.5, 0.9, 0.99, 1.0]);
        let recorder = builder.map_err(MetricsError::Build)?.build_recorder();
        let handle = recorder.handle();
        ::metrics::set_global_recorder(recorder).map_err(|_| MetricsError::Twice)?;
        gauge!("outrigger_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        // Whoever counts has read one.
        reloaded(true);
        let both = [
            (MetricNames::Karpenter, "karpenter_"),
            (MetricNames::Outrigger, "outrigger_"),
        ];
        let unwanted = both.into_iter().filter(|(name, _)| !names.contains(name));
        Ok(Self {
            handle,
            unwanted: unwanted.map(|(_, prefix)| prefix).collect(),
        })
    }

    /// In the text format of Prometheus.
    pub(crate) fn render(&self) -> String {
        let text = self.handle.render();
        if self.unwanted.is_empty() {
            return text;
        }
        let name = |line: &str| {
            let line = line
                .strip_prefix("# TYPE ")
                .or(line.strip_prefix("# HELP "))
                .unwrap_or(line);
            self.unwanted.iter().any(|prefix| line.starts_with(prefix))
        };
        text.split_inclusive('\n')
            .filter(|line| !name(line))
            .collect()
    }

    /// Drops what summaries need no more.
    pub(crate) fn keep_small(&self) {
        self.handle.run_upkeep();
    }
}

/// Counts what an engine decided or saw. What is merely observed is not done, so not counted.
#[expect(clippy::too_many_lines, reason = "a table: one arm a kind")]
pub(crate) fn report(cluster: &ClusterName, managed: bool, report: &Report) {
    let name = || cluster.to_string();
    match report {
        Report::Planned {
            pending,
            placed,
            claims,
            unplaced,
            ..
        } => {
            counter!("outrigger_plans_total", "cluster" => name()).increment(1);
            for (state, pods) in [
                ("pending", pending),
                ("placed", placed),
                ("unplaced", unplaced),
            ] {
                gauge!("outrigger_plan_pods", "cluster" => name(), "state" => state)
                    .set(count(*pods));
            }
            gauge!("outrigger_plan_claims", "cluster" => name()).set(count(*claims));
        }
        Report::Decided(waited) => {
            let series = histogram!(
                "karpenter_pods_scheduling_decision_duration_seconds", "cluster" => name()
            );
            for own in waited {
                series.record(own.as_secs_f64());
            }
        }
        Report::ClaimPlanned { pool, .. } if managed => {
            let pool = pool.to_string();
            counter!("karpenter_nodeclaims_created_total", "cluster" => name(), "nodepool" => pool)
                .increment(1);
        }
        Report::ClaimLaunched { offering, .. } => {
            let kind = offering.capacity_type.as_str();
            counter!("outrigger_launches_total", "cluster" => name(), "capacity_type" => kind)
                .increment(1);
        }
        Report::ClaimRefused { refusals, .. } => {
            for refusal in refusals {
                let zone = refusal.offering.zone.to_string();
                let kind = refusal.offering.capacity_type.as_str();
                let reason = refusal.kind.as_str();
                counter!(
                    "outrigger_ice_total",
                    "cluster" => name(), "zone" => zone, "capacity_type" => kind,
                    "reason" => reason
                )
                .increment(1);
            }
        }
        Report::ClaimPhase { node, phase, .. } => phase_reached(&name(), node.is_some(), *phase),
        Report::Retire { reason, .. } if managed => {
            let reason = reason.as_str();
            counter!(
                "karpenter_nodeclaims_disrupted_total", "cluster" => name(), "reason" => reason
            )
            .increment(1);
        }
        Report::Interrupted { what, .. } => {
            let what = what.as_str();
            counter!("outrigger_interruptions_total", "cluster" => name(), "kind" => what)
                .increment(1);
        }
        Report::DrainHeld { .. } => {
            counter!("outrigger_drains_held_total", "cluster" => name()).increment(1);
        }
        Report::DrainForced { .. } => {
            counter!("outrigger_drains_forced_total", "cluster" => name()).increment(1);
        }
        Report::Lingers { .. } => {
            counter!("outrigger_instances_lingering_total", "cluster" => name()).increment(1);
        }
        Report::EvictRefused { .. } => {
            counter!("outrigger_evictions_refused_total", "cluster" => name()).increment(1);
        }
        Report::Failed { command, kind, .. } => {
            let kind = kind.as_str();
            counter!(
                "outrigger_failures_total",
                "cluster" => name(), "command" => *command, "kind" => kind
            )
            .increment(1);
        }
        Report::Short(short) => missing(&name(), &short.need, short.missing),
        Report::Enough(need) => missing(&name(), need, 0),
        Report::Frozen(_) => {
            counter!("outrigger_freezes_total", "cluster" => name()).increment(1);
        }
        Report::Ready
        | Report::Thawed
        | Report::Unplaced(_)
        | Report::ClaimPlanned { .. }
        | Report::Retire { .. }
        | Report::Consolidates { .. }
        | Report::Kept { .. }
        | Report::Misread(_)
        | Report::ClaimDenied { .. }
        | Report::ClaimRenewed { .. }
        | Report::BoundEarly { .. }
        | Report::NotEarly { .. }
        | Report::Stranger { .. } => {}
    }
}

/// Shows how much of what shall be there cannot be had.
fn missing(cluster: &str, need: &Need, missing: usize) {
    let (kind, name) = match need {
        Need::Nodes(pool) => ("nodes", pool.to_string()),
        Need::Room(buffer) => ("room", buffer.clone()),
    };
    let cluster = cluster.to_owned();
    gauge!("outrigger_missing", "cluster" => cluster, "need" => kind, "name" => name)
        .set(count(missing));
}

fn phase_reached(cluster: &str, has_node: bool, phase: Phase) {
    let name = || cluster.to_owned();
    match phase {
        Phase::Registered => {
            counter!("karpenter_nodes_created_total", "cluster" => name()).increment(1);
        }
        Phase::Gone => {
            counter!("karpenter_nodeclaims_terminated_total", "cluster" => name()).increment(1);
            if has_node {
                counter!("karpenter_nodes_terminated_total", "cluster" => name()).increment(1);
            }
        }
        _ => {}
    }
}

#[expect(clippy::cast_precision_loss, reason = "no cluster has 2^52 pods")]
fn count(count: usize) -> f64 {
    count as f64
}

/// Counts a command that was carried out, or not.
pub(crate) fn command(
    cluster: &ClusterName,
    name: &'static str,
    outcome: &'static str,
    took: Duration,
) {
    let cluster = cluster.to_string();
    counter!(
        "outrigger_commands_total",
        "cluster" => cluster.clone(), "command" => name, "outcome" => outcome
    )
    .increment(1);
    histogram!("outrigger_command_duration_seconds", "cluster" => cluster, "command" => name)
        .record(took.as_secs_f64());
}

/// Shows whether decisions are made for a cluster.
pub(crate) fn status(cluster: &ClusterName, ready: bool) {
    gauge!("outrigger_cluster_up", "cluster" => cluster.to_string())
        .set(f64::from(u8::from(ready)));
}

/// Shows how many buffers that objects declare make no sense, or may not be read.
pub(crate) fn buffers_left_out(cluster: &str, left_out: usize) {
    gauge!("outrigger_buffers_left_out", "cluster" => cluster.to_owned()).set(count(left_out));
}

/// Counts an end of the program that launches for a cluster, which was not meant to end.
pub(crate) fn program_ended(cluster: &ClusterName) {
    counter!("outrigger_exec_ends_total", "cluster" => cluster.to_string()).increment(1);
}

/// Counts a line of that program that answers nothing.
pub(crate) fn program_rambled(cluster: &ClusterName) {
    counter!("outrigger_exec_garbage_total", "cluster" => cluster.to_string()).increment(1);
}

/// Notes how the last attempt to read the configuration went.
pub(crate) fn reloaded(well: bool) {
    gauge!("outrigger_config_last_reload_successful").set(f64::from(u8::from(well)));
    let now = clock::now().as_second();
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit 52 bits")]
    gauge!("outrigger_config_last_reload_timestamp_seconds").set(now as f64);
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::report;
    use crate::engine::command::{FailureKind, Refusal, RefusalKind};
    use crate::engine::report::Report;
    use crate::model::instance::{CapacityType, OfferingKey};

    /// Launches that are refused count by zone and reason, calls that fail by what was to be done.
    #[test]
    fn what_fails_is_counted_by_what_it_is_about() {
        let refusal = |zone: &str, kind| Refusal {
            offering: OfferingKey {
                instance_type: "m5.large".into(),
                zone: zone.into(),
                capacity_type: CapacityType::Spot,
                reservation: None,
            },
            kind,
        };
        let failed = |command, kind| Report::Failed {
            command,
            kind,
            text: "x".to_owned(),
        };
        let reports = [
            Report::ClaimRefused {
                claim: "c".into(),
                refusals: vec![
                    refusal("a", RefusalKind::InsufficientCapacity),
                    refusal("b", RefusalKind::LimitExceeded),
                ],
            },
            Report::ClaimRefused {
                claim: "d".into(),
                refusals: vec![refusal("a", RefusalKind::InsufficientCapacity)],
            },
            failed("launch", FailureKind::Invalid),
            failed("terminate", FailureKind::Denied),
        ];
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for own in &reports {
                report(&"prod".into(), true, own);
            }
        });
        let text = recorder.handle().render();
        for line in [
            "outrigger_ice_total{cluster=\"prod\",zone=\"a\",capacity_type=\"spot\",\
             reason=\"insufficient-capacity\"} 2",
            "outrigger_ice_total{cluster=\"prod\",zone=\"b\",capacity_type=\"spot\",\
             reason=\"limit-exceeded\"} 1",
            "outrigger_failures_total{cluster=\"prod\",command=\"launch\",kind=\"invalid\"} 1",
            "outrigger_failures_total{cluster=\"prod\",command=\"terminate\",kind=\"denied\"} 1",
        ] {
            assert!(
                text.lines().any(|own| own == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
