//! Counters and gauges of reports, with Karpenter's names if the meaning is the same, otherwise
//! `outrigger_*`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ::metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use thiserror::Error;

use crate::config::config_diff::ConfigValues;
use crate::config::settings::{MetricNames, Telemetry};
use crate::engine::report::Report;
use crate::engine::report::description::{
    BOUND, CLAIM_ENDS, DECISIONS, Description, ELIGIBLE, INSTANCE_ENDS, LIFETIMES, MetricChange,
    PLAN_CLAIMS, PLAN_PODS, PLAN_STATES, SUSPENDED, SUSPENDED_FOR,
};
use crate::host::clock;
use crate::model::id::{ClusterName, LeaseName};
use crate::model::pool::Reason;
use crate::scheduling::static_pools::StaticDemand;
use crate::telemetry::cluster_collector::{self, MetricSample, count_to_f64};
use crate::telemetry::metric_definitions::{
    ALL, CALLS, CONTROLLER, MetricKind, NOTICES, PASSES, PLANNER, PLANS, metric_help,
};

/// Why metrics cannot be set up.
#[derive(Debug, Error)]
pub(crate) enum MetricsError {
    #[error("cannot set up metrics")]
    Build(#[source] BuildError),
    #[error("cannot set up metrics: already set up")]
    Twice,
}

/// All recorded metrics.
#[derive(Clone)]
pub(crate) struct MetricsRecorder {
    handle: PrometheusHandle,
    /// Prefixes of disabled metrics.
    unwanted: Vec<&'static str>,
}

/// True if per-node metrics are enabled, for the whole process.
static PER_NODE: OnceLock<bool> = OnceLock::new();

/// Histogram buckets in seconds for the duration of passes.
const PASS_BOUNDS: [f64; 11] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Histogram buckets in seconds for waiting times of pods, nodes and messages.
const WAIT_BOUNDS: [f64; 14] =
    [0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];

/// Histogram buckets in seconds for the age of nodes: from ten minutes to a quarter of a year.
const AGE_BOUNDS: [f64; 10] = [
    600.0,
    3600.0,
    14_400.0,
    43_200.0,
    86_400.0,
    172_800.0,
    604_800.0,
    1_209_600.0,
    2_592_000.0,
    7_776_000.0,
];

/// The buckets of each histogram.
const BOUNDS: [(&str, &[f64]); 9] = [
    (PASSES, &PASS_BOUNDS),
    (PLANS, &PASS_BOUNDS),
    (DECISIONS, &WAIT_BOUNDS),
    (NOTICES, &WAIT_BOUNDS),
    (LIFETIMES, &AGE_BOUNDS),
    (BOUND, &WAIT_BOUNDS),
    (CALLS, &WAIT_BOUNDS),
    (CLAIM_ENDS, &WAIT_BOUNDS),
    (INSTANCE_ENDS, &WAIT_BOUNDS),
];

/// Returns the cluster label of a line. Cluster names need no escaping.
fn cluster_of(line: &str) -> Option<&str> {
    let (_, labels) = line.split_once('{')?;
    let start = match labels.strip_prefix("cluster=\"") {
        Some(rest) => rest,
        None => labels.split_once(",cluster=\"")?.1,
    };
    start.split('"').next()
}

/// Returns whether per-node metrics are enabled.
pub(crate) fn per_node() -> bool {
    PER_NODE.get().copied().unwrap_or(false)
}

impl MetricsRecorder {
    /// Installs the recorder for the whole process. Only enabled metrics are exported.
    pub(crate) fn init(
        telemetry: &Telemetry,
        written: &ConfigValues,
    ) -> Result<Self, MetricsError> {
        let mut builder = PrometheusBuilder::new().set_quantiles(&[0.0, 0.5, 0.9, 0.99, 1.0]);
        for (name, bounds) in BOUNDS {
            let name = Matcher::Full(name.to_owned());
            builder = builder.and_then(|builder| builder.set_buckets_for_metric(name, bounds));
        }
        let recorder = builder.map_err(MetricsError::Build)?.build_recorder();
        let handle = recorder.handle();
        ::metrics::set_global_recorder(recorder).map_err(|_| MetricsError::Twice)?;
        PER_NODE.get_or_init(|| telemetry.per_node);
        for metric in ALL {
            match metric.kind {
                MetricKind::Counter => describe_counter!(metric.name, metric.about),
                MetricKind::Gauge => describe_gauge!(metric.name, metric.about),
                MetricKind::Summary | MetricKind::Histogram => {
                    describe_histogram!(metric.name, metric.about)
                }
            }
        }
        for name in ["outrigger_build_info", "karpenter_build_info"] {
            gauge!(name, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        }
        // The configuration was loaded before the recorder was created.
        record_reload(true);
        set_config_hash(written);
        let all = [
            (MetricNames::Karpenter, "karpenter_"),
            (MetricNames::Karpenter, "controller_runtime_"),
            (MetricNames::Karpenter, "leader_election_"),
            (MetricNames::Outrigger, "outrigger_"),
        ];
        let names = &telemetry.metric_names;
        let unwanted = all.into_iter().filter(|(name, _)| !names.contains(name));
        Ok(Self { handle, unwanted: unwanted.map(|(_, prefix)| prefix).collect() })
    }

    /// Renders all metrics of these clusters and samples in the Prometheus text format. Metrics of
    /// removed clusters are hidden until the cluster is configured again.
    pub(crate) fn render<'s>(
        &self,
        clusters: &BTreeSet<&str>,
        samples: impl Iterator<Item = &'s [MetricSample]>,
    ) -> String {
        let mut text = self.handle.render();
        text.push_str(&cluster_collector::render(samples, metric_help));
        text.split_inclusive('\n')
            .filter(|line| {
                let name = line.strip_prefix("# TYPE ");
                let name = name.or(line.strip_prefix("# HELP ")).unwrap_or(line);
                let mut unwanted = self.unwanted.iter();
                !unwanted.any(|prefix| name.starts_with(prefix))
                    && cluster_of(name).is_none_or(|cluster| clusters.contains(cluster))
            })
            .collect()
    }

    /// Drops old samples of summaries.
    pub(crate) fn drop_old_samples(&self) {
        self.handle.run_upkeep();
    }
}

/// Records the metrics of a report of an engine.
pub(crate) fn count_report(cluster: &ClusterName, report: &Report, described: &Description<'_>) {
    for (name, labels, change) in &described.metrics {
        let labels = cluster_labels(cluster, labels);
        match *change {
            MetricChange::Add(count) => {
                counter!(*name, &labels).increment(u64::try_from(count).unwrap_or(u64::MAX));
            }
            MetricChange::Set(count) => gauge!(*name, &labels).set(count_to_f64(count)),
            MetricChange::Observe(value) => histogram!(*name, &labels).record(value),
        }
    }
    match report {
        Report::Short(short) => update_shortfall(cluster.as_str(), &short.need, short.missing),
        Report::Enough(need) => update_shortfall(cluster.as_str(), need, 0),
        _ => {}
    }
}

/// Increments a counter of a cluster by one.
fn increment(series: &'static str, cluster: &ClusterName, labels: &[(&'static str, &str)]) {
    counter!(series, &cluster_labels(cluster, labels)).increment(1);
}

/// Returns the labels of a series of a cluster.
fn cluster_labels(
    cluster: &ClusterName,
    labels: &[(&'static str, &str)],
) -> Vec<(&'static str, String)> {
    let cluster = ("cluster", cluster.to_string());
    let labels = labels.iter().map(|(key, value)| (*key, (*value).to_owned()));
    std::iter::once(cluster).chain(labels).collect()
}

/// Resets the metrics that only the next report of an engine would reset. An engine that has
/// stopped reports nothing, and the next engine may run on a different host.
pub(crate) fn reset_engine_metrics(cluster: &ClusterName) {
    let reset = |series, labels: &[(&'static str, &str)]| {
        gauge!(series, &cluster_labels(cluster, labels)).set(0.0);
    };
    for safeguard in SUSPENDED_FOR {
        reset(SUSPENDED, &[("for", safeguard)]);
    }
    for state in PLAN_STATES {
        reset(PLAN_PODS, &[("state", state)]);
    }
    reset(PLAN_CLAIMS, &[]);
    for reason in Reason::ALL {
        reset(ELIGIBLE, &[("reason", reason.as_str())]);
    }
    let shortfalls = {
        let mut all = SHORTFALLS.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(cluster.as_str()).unwrap_or_default()
    };
    for need in shortfalls {
        set_shortfall(cluster.as_str(), &need, 0);
    }
}

/// Static demands for capacity that are not met, by cluster.
static SHORTFALLS: Mutex<BTreeMap<String, BTreeSet<StaticDemand>>> = Mutex::new(BTreeMap::new());

/// Sets the capacity shortfall.
fn update_shortfall(cluster: &str, need: &StaticDemand, missing: usize) {
    {
        let mut all = SHORTFALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let needs = all.entry(cluster.to_owned()).or_default();
        match missing {
            0 => needs.remove(need),
            _ => needs.insert(need.clone()),
        };
    }
    set_shortfall(cluster, need, missing);
}

fn set_shortfall(cluster: &str, need: &StaticDemand, missing: usize) {
    let (kind, name) = match need {
        StaticDemand::Nodes(pool) => ("nodes", pool.to_string()),
        StaticDemand::Room(buffer) => ("room", buffer.clone()),
    };
    let cluster = cluster.to_owned();
    gauge!("outrigger_capacity_shortfall", "cluster" => cluster, "need" => kind, "name" => name)
        .set(count_to_f64(missing));
}

/// Records an engine pass, under the controller name that dashboards use.
pub(crate) fn record_pass(cluster: &ClusterName, took: Duration) {
    let controller = ("controller", CONTROLLER);
    // Success is the only result of a pass.
    let labels = [controller, ("result", "success")];
    increment("controller_runtime_reconcile_total", cluster, &labels);
    histogram!(PASSES, &cluster_labels(cluster, &[controller])).record(took.as_secs_f64());
}

/// Records a pass that planned pods.
pub(crate) fn record_planned_pass(cluster: &ClusterName, took: Duration) {
    let labels = cluster_labels(cluster, &[("controller", PLANNER)]);
    histogram!(PLANS, &labels).record(took.as_secs_f64());
}

/// Records a command and its outcome.
pub(crate) fn record_command(
    cluster: &ClusterName,
    name: &'static str,
    outcome: &'static str,
    took: Duration,
) {
    let labels = [("command", name), ("outcome", outcome)];
    increment("outrigger_commands_total", cluster, &labels);
    let cluster = cluster.to_string();
    histogram!("outrigger_command_duration_seconds", "cluster" => cluster, "command" => name)
        .record(took.as_secs_f64());
}

/// Sets whether decisions are made for a cluster.
pub(crate) fn set_ready(cluster: &ClusterName, ready: bool) {
    for name in ["outrigger_cluster_up", "karpenter_cluster_state_synced"] {
        gauge!(name, "cluster" => cluster.to_string()).set(f64::from(u8::from(ready)));
    }
}

/// Sets whether this host is the leader of a managed cluster and holds its Lease.
pub(crate) fn set_leader(cluster: &ClusterName, lease: &LeaseName, leads: bool) {
    let (cluster, leads) = (cluster.to_string(), f64::from(u8::from(leads)));
    gauge!("outrigger_cluster_leader", "cluster" => cluster.clone()).set(leads);
    let name = lease.name.clone();
    gauge!("leader_election_master_status", "cluster" => cluster, "name" => name).set(leads);
}

/// Records a call of a provider, by its method and the name of the provider, and its error, if
/// there was one.
pub(crate) fn record_provider_call(
    cluster: &ClusterName,
    [method, provider]: [&'static str; 2],
    error: Option<&'static str>,
    took: Duration,
) {
    let call = [("controller", CONTROLLER), ("method", method), ("provider", provider)];
    histogram!(CALLS, &cluster_labels(cluster, &call)).record(took.as_secs_f64());
    if let Some(error) = error {
        let [controller, method, provider] = call;
        let labels = [controller, method, provider, ("error", error)];
        increment("karpenter_cloudprovider_errors_total", cluster, &labels);
    }
}

/// Sets the number of CapacityBuffers that are invalid or cannot be read.
pub(crate) fn set_invalid_buffers(cluster: &str, left_out: usize) {
    gauge!("outrigger_invalid_buffers", "cluster" => cluster.to_owned())
        .set(count_to_f64(left_out));
}

/// Counts an unexpected exit of the exec program of a cluster.
pub(crate) fn count_program_exit(cluster: &ClusterName) {
    increment("outrigger_exec_ends_total", cluster, &[]);
}

/// Counts an invalid line of the exec program.
pub(crate) fn count_invalid_line(cluster: &ClusterName) {
    increment("outrigger_exec_invalid_lines_total", cluster, &[]);
}

/// Records the result of the last configuration load.
pub(crate) fn record_reload(well: bool) {
    gauge!("outrigger_config_last_reload_successful").set(f64::from(u8::from(well)));
    let now = clock::now().as_second();
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit 52 bits")]
    gauge!("outrigger_config_last_reload_timestamp_seconds").set(now as f64);
}

/// Sets the hash of the current configuration.
pub(crate) fn set_config_hash(written: &ConfigValues) {
    gauge!("outrigger_config_hash").set(f64::from(written.config_hash()));
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use std::time::Duration;

    use jiff::SignedDuration;

    use super::{
        cluster_of, count_report, record_pass, record_planned_pass, record_provider_call,
        reset_engine_metrics, set_leader, update_shortfall,
    };
    use crate::engine::report::Report;
    use crate::model::claim::ClaimPhase;
    use crate::model::id::LeaseName;
    use crate::model::instance::{CapacityType, OfferingKey, Price};
    use crate::model::pool::Reason;
    use crate::provider::{FailureKind, OfferingRefusal, RefusalKind};
    use crate::scheduling::static_pools::StaticDemand;
    use crate::state::cluster_identity::Mismatch;

    /// The exported metrics of one cluster after these reports.
    fn metrics_after(reports: &[Report], managed: bool) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for reported in reports {
                count_report(&"prod".into(), reported, &reported.describe(managed));
            }
        });
        recorder.handle().render()
    }

    fn check(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|known| known == *line), "{line} is not in\n{text}");
        }
    }

    fn disrupted(reason: Reason, pods: usize) -> Report {
        Report::Retire {
            claim: "c".into(),
            pool: "general".into(),
            node: Some("n".into()),
            capacity_type: Some(CapacityType::Spot),
            reason,
            price: None,
            pods,
        }
    }

    fn consolidated(nodes: usize, claims: usize) -> Report {
        Report::Consolidates {
            pools: ["general".into()].into(),
            nodes,
            claims,
            before: Price::default(),
            after: Price::default(),
        }
    }

    #[test]
    fn gauges_of_a_stopped_engine_are_reset() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let cluster = "reset".into();
            let short = StaticDemand::Room("spare".to_owned());
            let report = Report::Mismatch(Mismatch::Unidentified);
            count_report(&cluster, &report, &report.describe(true));
            update_shortfall("reset", &short, 3);
            reset_engine_metrics(&cluster);
        });
        let text = recorder.handle().render();
        check(
            &text,
            &[
                "outrigger_disruption_suspended{cluster=\"reset\",for=\"identity\"} 0",
                "outrigger_capacity_shortfall{cluster=\"reset\",need=\"room\",name=\"spare\"} 0",
                "outrigger_plan_pods{cluster=\"reset\",state=\"unplaced\"} 0",
            ],
        );
    }

    #[test]
    fn cluster_is_read_from_a_metric_line() {
        for (line, expect) in [
            ("outrigger_cluster_up{cluster=\"a\"} 1", Some("a")),
            ("x{state=\"placed\",cluster=\"b-1\"} 0", Some("b-1")),
            ("x{eks_cluster=\"c\"} 0", None),
            ("# TYPE outrigger_cluster_up gauge", None),
            ("x 1", None),
        ] {
            assert_eq!(cluster_of(line), expect, "{line}");
        }
    }

    #[test]
    fn disruption_decisions_are_counted_by_reason_and_type() {
        let reports = [
            disrupted(Reason::Empty, 0),
            disrupted(Reason::Empty, 0),
            consolidated(1, 0),
            consolidated(1, 1),
            consolidated(3, 0),
            consolidated(5, 1),
            consolidated(2, 2),
        ];
        let series = |decision: &str, reason: &str, what: &str, count: u32| {
            format!(
                "karpenter_voluntary_disruption_decisions_total{{cluster=\"prod\",\
                 nodepool=\"general\",decision=\"{decision}\",reason=\"{reason}\",\
                 consolidation_type=\"{what}\"}} {count}"
            )
        };
        let lines = [
            series("delete", "empty", "empty", 2),
            series("delete", "underutilized", "single", 1),
            series("replace", "underutilized", "single", 1),
            series("delete", "underutilized", "multi", 1),
            series("replace", "underutilized", "multi", 2),
        ];
        let text = metrics_after(&reports, true);
        check(&text, &lines.each_ref().map(String::as_str));
        let by_pool =
            lines.map(|line| line.replace("decisions_total", "decisions_by_nodepool_total"));
        check(&text, &by_pool.each_ref().map(String::as_str));
        let text = metrics_after(&reports, false);
        assert_eq!(text, "", "what is merely observed is no decision");
    }

    #[test]
    fn a_decision_about_nodes_of_several_pools_counts_for_each() {
        let text = metrics_after(
            &[Report::Consolidates {
                pools: ["batch".into(), "general".into()].into(),
                nodes: 2,
                claims: 1,
                before: Price::default(),
                after: Price::default(),
            }],
            true,
        );
        let series = |name: &str, pool: &str| {
            format!(
                "karpenter_voluntary_disruption_{name}{{cluster=\"prod\",nodepool=\"{pool}\",\
                 decision=\"replace\",reason=\"underutilized\",consolidation_type=\"multi\"}} 1"
            )
        };
        let lines = [
            series("decisions_total", ""),
            series("decisions_by_nodepool_total", "batch"),
            series("decisions_by_nodepool_total", "general"),
        ];
        check(&text, &lines.each_ref().map(String::as_str));
    }

    #[test]
    fn calls_and_passes_are_recorded_with_karpenters_labels() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let (cluster, second) = ("prod".into(), Duration::from_secs(1));
            record_pass(&cluster, second);
            record_planned_pass(&cluster, second);
            set_leader(&cluster, &LeaseName::default(), true);
            record_provider_call(&cluster, ["Create", "aws"], None, second);
            record_provider_call(&cluster, ["Create", "aws"], Some("x"), second);
        });
        let call = "cluster=\"prod\",controller=\"engine\",method=\"Create\",provider=\"aws\"";
        let lines = [
            "controller_runtime_reconcile_total{cluster=\"prod\",controller=\"engine\",\
             result=\"success\"} 1"
                .to_owned(),
            "karpenter_scheduler_scheduling_duration_seconds_count{cluster=\"prod\",\
             controller=\"provisioner\"} 1"
                .to_owned(),
            "leader_election_master_status{cluster=\"prod\",name=\"outrigger\"} 1".to_owned(),
            format!("karpenter_cloudprovider_duration_seconds_count{{{call}}} 2"),
            format!("karpenter_cloudprovider_errors_total{{{call},error=\"x\"}} 1"),
        ];
        check(&recorder.handle().render(), &lines.each_ref().map(String::as_str));
    }

    #[test]
    fn disrupted_and_retained_nodes_are_counted_with_their_pods() {
        let retained = |reason| Report::Kept { claim: "c".into(), reason, why: "x".to_owned() };
        let evicted = |reason| Report::Evicted {
            pod: crate::model::id::ObjectKey::new("default", "p"),
            reason,
        };
        let text = metrics_after(
            &[
                disrupted(Reason::Expired, 3),
                disrupted(Reason::Expired, 4),
                disrupted(Reason::Unhealthy, 1),
                retained(Reason::Empty),
                retained(Reason::Underutilized),
                retained(Reason::Underutilized),
                evicted(Reason::Drifted),
                evicted(Reason::Drifted),
                evicted(Reason::Interrupted),
            ],
            true,
        );
        let lines = [
            ("nodeclaims_disrupted_total", "expired", 2),
            ("nodeclaims_disrupted_total", "unhealthy", 1),
            ("pods_disruption_initiated_total", "expired", 7),
            ("pods_disruption_initiated_total", "unhealthy", 1),
            ("voluntary_disruption_failed_validations_total", "empty", 1),
            ("voluntary_disruption_failed_validations_total", "underutilized", 2),
            ("pods_drained_total", "drifted", 2),
            ("pods_drained_total", "interrupted", 1),
        ];
        let lines = lines.map(|(name, reason, count)| {
            let (pool, capacity_type) = match name {
                "nodeclaims_disrupted_total" => {
                    (",nodepool=\"general\"", ",capacity_type=\"spot\"")
                }
                _ => ("", ""),
            };
            format!(
                "karpenter_{name}{{cluster=\"prod\"{pool},reason=\"{reason}\"{capacity_type}}} \
                 {count}"
            )
        });
        check(&text, &lines.each_ref().map(String::as_str));
    }

    #[test]
    fn eligible_nodes_gauge_shows_the_latest_count() {
        let all = [(Reason::Empty, 3), (Reason::Drifted, 2), (Reason::Empty, 1)];
        let text =
            metrics_after(&all.map(|(reason, nodes)| Report::Eligible { reason, nodes }), true);
        let name = "karpenter_voluntary_disruption_eligible_nodes";
        let lines = [("empty", 1), ("drifted", 2)].map(|(reason, nodes)| {
            format!("{name}{{cluster=\"prod\",reason=\"{reason}\"}} {nodes}")
        });
        check(&text, &lines.each_ref().map(String::as_str));
    }

    #[test]
    fn terminated_nodes_are_counted_with_duration_and_lifetime() {
        let phase = |phase, drained| Report::ClaimPhase {
            claim: "c".into(),
            pool: "general".into(),
            node: Some("n".into()),
            offering: Some(OfferingKey {
                instance_type: "m5.large".into(),
                zone: "a".into(),
                capacity_type: CapacityType::Spot,
                reservation: None,
            }),
            phase,
            drained,
            found: false,
        };
        let ended = Report::Ended {
            node: "n".into(),
            pool: "general".into(),
            took: SignedDuration::from_secs(90),
            ending: Some(SignedDuration::from_secs(30)),
            age: SignedDuration::from_hours(2),
        };
        let reports = [
            phase(ClaimPhase::Registered, false),
            phase(ClaimPhase::Terminating, true),
            phase(ClaimPhase::Terminating, false),
            phase(ClaimPhase::Gone, false),
            ended,
        ];
        let text = metrics_after(&reports, true);
        let of = "cluster=\"prod\",nodepool=\"general\"";
        let lines = [
            format!("karpenter_nodes_created_total{{{of},zone=\"a\"}} 1"),
            format!("karpenter_nodes_drained_total{{{of}}} 1"),
            format!("karpenter_nodes_terminated_total{{{of},zone=\"a\"}} 1"),
            format!(
                "karpenter_nodeclaims_terminated_total{{{of},zone=\"a\",capacity_type=\"spot\"}} 1"
            ),
            format!("karpenter_nodes_termination_duration_seconds_sum{{{of}}} 90"),
            format!("karpenter_nodeclaims_termination_duration_seconds_sum{{{of}}} 90"),
            format!("karpenter_nodeclaims_instance_termination_duration_seconds_sum{{{of}}} 30"),
            format!("karpenter_nodes_lifetime_duration_seconds_sum{{{of}}} 7200"),
        ];
        check(&text, &lines.each_ref().map(String::as_str));
    }

    /// Failed launches count by zone and reason, failed calls by operation.
    #[test]
    fn failures_are_counted_by_zone_reason_and_command() {
        let refusal = |zone: &str, kind| OfferingRefusal {
            offering: OfferingKey {
                instance_type: "m5.large".into(),
                zone: zone.into(),
                capacity_type: CapacityType::Spot,
                reservation: None,
            },
            kind,
        };
        let failed = |command, kind| Report::Failed { command, kind, text: "x".to_owned() };
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
        let text = metrics_after(&reports, true);
        let lines = [
            "outrigger_ice_total{cluster=\"prod\",zone=\"a\",capacity_type=\"spot\",\
             reason=\"insufficient-capacity\"} 2",
            "outrigger_ice_total{cluster=\"prod\",zone=\"b\",capacity_type=\"spot\",\
             reason=\"limit-exceeded\"} 1",
            "outrigger_failures_total{cluster=\"prod\",command=\"launch\",kind=\"invalid\"} 1",
            "outrigger_failures_total{cluster=\"prod\",command=\"terminate\",kind=\"denied\"} 1",
        ];
        check(&text, &lines);
    }
}
