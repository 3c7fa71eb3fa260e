//! Every series there is: its name, its labels and what it says; docs/METRICS.md is made of this.
//! It must not know what any of them is worth now.

/// What a series is to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// It only rises.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Quantiles 0, 0.5, 0.9, 0.99 and 1, a sum and a count.
    Summary,
    /// How many were below each of some bounds, a sum and a count.
    Histogram,
}

/// A series.
#[derive(Debug)]
pub(crate) struct Metric {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it is.
    pub(crate) kind: MetricKind,
    /// Its labels.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the reference names them"))]
    pub(crate) labels: &'static [&'static str],
    /// What it says.
    pub(crate) about: &'static str,
}

/// How long passes of engines took, under the name by which dashboards know controllers.
pub(crate) const PASSES: &str = "controller_runtime_reconcile_time_seconds";

/// How long passes took in which pods were planned for.
pub(crate) const PLANS: &str = "karpenter_scheduler_scheduling_duration_seconds";

/// How long pods waited for a plan.
pub(crate) const DECISIONS: &str = "karpenter_pods_scheduling_decision_duration_seconds";

/// How old messages of a queue were.
pub(crate) const NOTICES: &str = "karpenter_interruption_message_queue_duration_seconds";

/// How old nodes got.
pub(crate) const LIFETIMES: &str = "karpenter_nodes_lifetime_duration_seconds";

/// Instances whose status checks fail.
pub(crate) const UNHEALTHY: &str = "karpenter_interruption_instance_status_unhealthy_total";

const CLUSTER: &[&str] = &["cluster"];
const OF_POOL: &[&str] = &["cluster", "nodepool"];
const OF_REASON: &[&str] = &["cluster", "reason"];
const OF_RESOURCE: &[&str] = &["cluster", "nodepool", "resource_type"];
const OF_CONTROLLER: &[&str] = &["cluster", "controller"];
const OF_NODE: &[&str] = &[
    "cluster",
    "node_name",
    "resource_type",
    "nodepool",
    "zone",
    "arch",
    "capacity_type",
    "instance_type",
];

const fn metric(
    name: &'static str,
    kind: MetricKind,
    labels: &'static [&'static str],
    about: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        labels,
        about,
    }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    about: &'static str,
) -> Metric {
    metric(name, MetricKind::Counter, labels, about)
}

const fn gauge(name: &'static str, labels: &'static [&'static str], about: &'static str) -> Metric {
    metric(name, MetricKind::Gauge, labels, about)
}

const fn summary(
    name: &'static str,
    labels: &'static [&'static str],
    about: &'static str,
) -> Metric {
    metric(name, MetricKind::Summary, labels, about)
}

/// All of them, by name.
#[rustfmt::skip]
pub(crate) const ALL: &[Metric] = &[
    metric(PASSES, MetricKind::Histogram, OF_CONTROLLER, "How long passes of the engine took."),
    counter("controller_runtime_reconcile_total", OF_CONTROLLER, "Passes of the engine."),
    gauge("karpenter_build_info", &["version"],
        "1. The version is Outrigger's, as of `outrigger_build_info`."),
    gauge("karpenter_cluster_state_node_count", CLUSTER,
        "Nodes of the cluster, whoever made them."),
    gauge("karpenter_cluster_state_synced", CLUSTER,
        "1 while the view of the cluster is whole, as of `outrigger_cluster_up`."),
    gauge("karpenter_cluster_state_unsynced_time_seconds", CLUSTER,
        "For how long the view of the cluster has not been whole; 0 while it is."),
    counter("karpenter_interruption_deleted_messages_total", &[],
        "Messages of the interruption queue that were dealt with."),
    counter(UNHEALTHY, CLUSTER, "Instances that were seen to fail their status checks."),
    metric(NOTICES, MetricKind::Histogram, &[],
        "How old messages of the interruption queue were when they were read."),
    counter("karpenter_interruption_received_messages_total", &["message_type"],
        "Messages of the interruption queue that were read."),
    counter("karpenter_nodeclaims_created_total", OF_POOL, "Claims that were planned."),
    counter("karpenter_nodeclaims_disrupted_total", &["cluster", "nodepool", "reason"],
        "Nodes that were asked to leave."),
    counter("karpenter_nodeclaims_terminated_total", OF_POOL, "Claims whose instance is gone."),
    gauge("karpenter_nodepools_limit", OF_RESOURCE,
        "What a pool may have: cores, bytes or pieces."),
    gauge("karpenter_nodepools_usage", OF_RESOURCE, "What counts towards these limits."),
    gauge("karpenter_nodes_allocatable", OF_NODE,
        "What pods may have of a node: cores, bytes or pieces. Only with `per_node`."),
    counter("karpenter_nodes_created_total", OF_POOL,
        "Nodes that registered."),
    metric(LIFETIMES, MetricKind::Histogram, OF_POOL,
        "How old nodes were when they ended."),
    counter("karpenter_nodes_terminated_total", OF_POOL, "Nodes that are gone."),
    summary("karpenter_nodes_termination_duration_seconds", OF_POOL,
        "How long nodes took to leave, from when they were asked."),
    gauge("karpenter_nodes_total_daemon_requests", OF_NODE,
        "What pods of DaemonSets on a node ask for. Only with `per_node`."),
    gauge("karpenter_nodes_total_pod_requests", OF_NODE,
        "What all other pods on a node ask for. Only with `per_node`."),
    counter("karpenter_pods_disruption_initiated_total", OF_REASON,
        "Pods that need another place since their node was asked to leave."),
    counter("karpenter_pods_drained_total", OF_REASON, "Pods that were evicted."),
    metric(DECISIONS, MetricKind::Histogram, CLUSTER,
        "How long pods waited until they were planned for."),
    summary("karpenter_pods_startup_duration_seconds", CLUSTER,
        "How old pods that were seen to wait were when they were seen to run; not where a cluster \
         is polled, nor while a watch is broken."),
    gauge("karpenter_pods_state",
        &["cluster", "namespace", "phase", "node", "nodepool", "zone", "arch", "capacity_type",
            "instance_type"],
        "Pods by phase and place. `node` only with `per_node`: else those on nodes that are alike \
         are counted together."),
    metric(PLANS, MetricKind::Histogram, CLUSTER,
        "How long passes of the engine took in which pods were planned for."),
    counter("karpenter_voluntary_disruption_decisions_total",
        &["cluster", "nodepool", "decision", "reason", "consolidation_type"],
        "Decisions that nodes leave since they are empty or their pods can be had for less; of \
         those of several pools `nodepool` is empty."),
    gauge("karpenter_voluntary_disruption_eligible_nodes", OF_REASON,
        "Nodes that may leave for a reason, as far as they are concerned."),
    counter("karpenter_voluntary_disruption_failed_validations_total", OF_REASON,
        "Nodes that stay after all, since what was decided did not hold any more."),
    counter("outrigger_aws_requests_total", &["region", "service", "operation"],
        "Requests to AWS."),
    gauge("outrigger_braked", &["cluster", "for"],
        "1 while something is held back: too many nodes are unready (`health`), another \
         configuration would change too much (`change`), too many instances would end without a \
         drain (`undrained`), the API server and the instances are not of one cluster \
         (`identity`), or nodes of a pool do not register (`registration`)."),
    gauge("outrigger_buffers_left_out", CLUSTER,
        "Buffers that make no sense, or may not be read."),
    gauge("outrigger_build_info", &["version"], "1."),
    gauge("outrigger_claims", &["cluster", "nodepool", "phase"], "Claims by phase."),
    gauge("outrigger_clock_skew_seconds", &["cluster", "peer"],
        "By how much the clock of this host is ahead of that of a peer (`api_server`, `aws`); \
         negative where it is behind."),
    gauge("outrigger_cluster_leader", CLUSTER, "1 while this host leads the cluster."),
    gauge("outrigger_cluster_up", CLUSTER, "1 while decisions are made for the cluster."),
    summary("outrigger_command_duration_seconds", &["cluster", "command"],
        "How long commands took."),
    counter("outrigger_commands_total", &["cluster", "command", "outcome"],
        "Commands that were carried out, or not."),
    gauge("outrigger_config_hash", &[],
        "A number that differs where configurations do: hosts that share clusters show the same."),
    gauge("outrigger_config_last_reload_successful", &[],
        "1 if the configuration was read when it last was to be."),
    gauge("outrigger_config_last_reload_timestamp_seconds", &[], "When that was."),
    gauge("outrigger_cost_dollars_per_hour", OF_POOL,
        "What the instances of a pool cost, as far as their prices are known. What is reserved is \
         paid for anyhow, and costs nothing."),
    gauge("outrigger_disruption_held", &["cluster", "nodepool", "reason", "verdict"],
        "1 while nodes of a pool would leave for a reason and stay until it is time or somebody \
         lets them. Only of clusters that are managed."),
    counter("outrigger_drains_forced_total", CLUSTER, "Drains whose time was over."),
    counter("outrigger_drains_held_total", CLUSTER,
        "Drains of which it was said that something holds them."),
    counter("outrigger_ec2_throttled_total", &["region", "api"],
        "Answers of AWS that too much was asked; each is tried again."),
    counter("outrigger_evictions_refused_total", CLUSTER,
        "Evictions that the API server refused, such as for a disruption budget."),
    counter("outrigger_exec_ends_total", CLUSTER,
        "Unexpected ends of the program that launches instances."),
    counter("outrigger_exec_garbage_total", CLUSTER,
        "Lines of that program that answer nothing."),
    counter("outrigger_failures_total", &["cluster", "command", "kind"],
        "Commands that failed and are tried again."),
    counter("outrigger_freezes_total", CLUSTER,
        "Times that the view of the cluster was not whole, so that nothing voluntary was done."),
    counter("outrigger_ice_total", &["cluster", "zone", "capacity_type", "reason"],
        "Offerings that were refused."),
    counter("outrigger_instances_lingering_total", CLUSTER,
        "Instances that were told to end and did not."),
    counter("outrigger_interruptions_total", &["cluster", "kind"],
        "Notices that an instance will be interrupted."),
    counter("outrigger_launches_total", &["cluster", "capacity_type"], "Instances launched."),
    gauge("outrigger_missing", &["cluster", "need", "name"],
        "Nodes or room that shall be there whatever pods ask for and cannot be had."),
    gauge("outrigger_plan_claims", CLUSTER, "New nodes in the last plan."),
    gauge("outrigger_plan_pods", &["cluster", "state"], "Pods in the last plan."),
    counter("outrigger_plans_total", CLUSTER, "Plans for pods that wait."),
    summary("outrigger_pods_decided_seconds", CLUSTER,
        "The same as `karpenter_pods_scheduling_decision_duration_seconds`, by quantiles."),
    gauge("outrigger_watch_lag_seconds", CLUSTER,
        "How old the last sign of life is of the watch that is silent for longest."),
];

/// What a series says; nothing if there is no such series.
pub(crate) fn about(name: &str) -> &'static str {
    let own = ALL.iter().find(|own| own.name == name);
    own.map_or("", |own| own.about)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    use super::{ALL, DECISIONS, LIFETIMES, MetricKind, NOTICES, PASSES, PLANS, UNHEALTHY};

    const BEGIN: &str = "<!-- From here on written from the code: \
                         UPDATE_REFERENCE=1 cargo test --features aws. -->\n";

    fn reference() -> String {
        let mut out = format!("{BEGIN}\n| name | kind | labels | |\n|---|---|---|---|\n");
        for own in ALL {
            let kind = match own.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Summary => "summary",
                MetricKind::Histogram => "histogram",
            };
            let labels: Vec<String> = own.labels.iter().map(|own| format!("`{own}`")).collect();
            let (name, labels, about) = (own.name, labels.join(", "), own.about);
            let _ = writeln!(out, "| `{name}` | {kind} | {labels} | {about} |");
        }
        out
    }

    #[test]
    fn the_reference_says_what_there_is() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
        let text = fs::read_to_string(&path).expect("it is there");
        let (head, own) = text.split_at(text.find(BEGIN).expect("the mark is there"));
        if option_env!("UPDATE_REFERENCE").is_some() {
            fs::write(&path, format!("{head}{}", reference())).expect("it is written");
            return;
        }
        assert_eq!(
            own,
            reference(),
            "run UPDATE_REFERENCE=1 cargo test --features aws"
        );
    }

    /// Names as they stand in the code, in quotes.
    fn named(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                named(&path, found);
                continue;
            }
            let text = fs::read_to_string(&path).expect("it is text");
            let own = text.split("\nmod tests {").next().unwrap_or_default();
            let words = own
                .split('"')
                .filter(|_| !path.ends_with("metric_definitions.rs"));
            let starts = ["karpenter_", "outrigger_", "controller_runtime_"];
            let is_name = |own: &&str| {
                starts.iter().any(|start| own.starts_with(start))
                    && !starts.contains(own)
                    && own
                        .chars()
                        .all(|own| own.is_ascii_lowercase() || own.is_ascii_digit() || own == '_')
            };
            found.extend(words.filter(is_name).map(str::to_owned));
        }
    }

    #[test]
    fn every_series_is_in_the_table_and_is_told_by_someone() {
        let mut found = BTreeSet::from(
            [PASSES, PLANS, DECISIONS, NOTICES, LIFETIMES, UNHEALTHY].map(str::to_owned),
        );
        named(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut found,
        );
        let names: Vec<&str> = ALL.iter().map(|own| own.name).collect();
        assert!(names.is_sorted(), "by name");
        assert_eq!(found, names.into_iter().map(str::to_owned).collect());
    }
}
