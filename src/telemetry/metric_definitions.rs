//! Definitions of all metrics: name, kind, labels and help text. docs/METRICS.md is generated from
//! them.

use crate::engine::report::description::{
    BOUND, CLAIM_ENDS, DECISIONS, INSTANCE_ENDS, LIFETIMES, UNHEALTHY,
};

/// The Prometheus type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value only increases.
    Counter,
    /// The value increases and decreases.
    Gauge,
    /// Quantiles 0, 0.5, 0.9, 0.99 and 1, a sum and a count.
    Summary,
    /// Counts of values up to each bound, a sum and a count.
    Histogram,
}

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// The name of the metric.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: MetricKind,
    /// The labels of the metric.
    pub labels: &'static [&'static str],
    /// The help text of the metric.
    pub about: &'static str,
}

/// Duration of engine passes, under the name that dashboards use for controllers.
pub const PASSES: &str = "controller_runtime_reconcile_time_seconds";

/// Duration of engine passes that planned pods.
pub const PLANS: &str = "karpenter_scheduler_scheduling_duration_seconds";

/// Age of interruption queue messages.
pub const NOTICES: &str = "karpenter_interruption_message_queue_duration_seconds";

/// Duration of calls of a provider.
pub const CALLS: &str = "karpenter_cloudprovider_duration_seconds";

/// The label `controller` of passes and provider calls.
pub const CONTROLLER: &str = "engine";

/// The label `controller` of plans for pending pods, as in Karpenter.
pub const PLANNER: &str = "provisioner";

const CLUSTER: &[&str] = &["cluster"];
const OF_POOL: &[&str] = &["cluster", "nodepool"];
const OF_REASON: &[&str] = &["cluster", "reason"];
const OF_RESOURCE: &[&str] = &["cluster", "nodepool", "resource_type"];
const OF_CONTROLLER: &[&str] = &["cluster", "controller"];
const OF_POD: &[&str] = &["cluster", "name", "namespace"];
const OF_TYPE: &[&str] = &["cluster", "instance_type"];
const OF_OFFERING: &[&str] = &["cluster", "instance_type", "capacity_type", "zone"];
const OF_BUDGET: &[&str] = &["cluster", "nodepool", "reason"];
const OF_DECISION: &[&str] = &["cluster", "nodepool", "decision", "reason", "consolidation_type"];
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
    Metric { name, kind, labels, about }
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

/// All metrics, sorted by name.
#[rustfmt::skip]
pub const ALL: &[Metric] = &[
    metric(PASSES, MetricKind::Histogram, OF_CONTROLLER,
        "Duration of reconcile passes of the engine."),
    counter("controller_runtime_reconcile_total", &["cluster", "controller", "result"],
        "Reconcile passes of the engine. `result` is always `success`."),
    gauge("karpenter_build_info", &["version"],
        "Always 1. The version is Outrigger's, as in `outrigger_build_info`."),
    metric(CALLS, MetricKind::Histogram, &["cluster", "controller", "method", "provider"],
        "Duration of calls to the provider: `Create`, `Delete` and `List` of instances."),
    counter("karpenter_cloudprovider_errors_total",
        &["cluster", "controller", "method", "provider", "error"],
        "Failed calls to the provider. `error` is empty except for missing capacity and missing \
         instances."),
    gauge("karpenter_cloudprovider_instance_type_cpu_cores", OF_TYPE,
        "vCPUs of an instance type. Only with `per_node`, and only types of existing nodes."),
    gauge("karpenter_cloudprovider_instance_type_memory_bytes", OF_TYPE,
        "Memory of an instance type. Only with `per_node`, and only types of existing nodes."),
    gauge("karpenter_cloudprovider_instance_type_offering_available", OF_OFFERING,
        "1 if an offering can be launched. Only with `per_node`, and only types of existing \
         nodes."),
    gauge("karpenter_cloudprovider_instance_type_offering_price_estimate", OF_OFFERING,
        "Price of an offering per hour. Only with `per_node`, and only types of existing nodes."),
    gauge("karpenter_cluster_state_node_count", CLUSTER,
        "Nodes of the cluster, including nodes that Outrigger did not launch."),
    gauge("karpenter_cluster_state_synced", CLUSTER,
        "1 while the cluster state is in sync, as in `outrigger_cluster_up`."),
    gauge("karpenter_cluster_state_unsynced_time_seconds", CLUSTER,
        "Time since the cluster state went out of sync. 0 while it is in sync."),
    gauge("karpenter_cluster_utilization_percent", &["cluster", "resource_type"],
        "Requests of all pods on nodes, in percent of the allocatable resources of all nodes."),
    counter("karpenter_interruption_deleted_messages_total", &[],
        "Messages handled and deleted from the interruption queue."),
    counter(UNHEALTHY, CLUSTER, "Instances with failed status checks."),
    metric(NOTICES, MetricKind::Histogram, &[],
        "Age of interruption queue messages when received."),
    counter("karpenter_interruption_received_messages_total", &["message_type"],
        "Messages received from the interruption queue."),
    counter("karpenter_nodeclaims_created_total",
        &["cluster", "nodepool", "reason", "min_values_relaxed"], "Claims created."),
    counter("karpenter_nodeclaims_disrupted_total",
        &["cluster", "nodepool", "reason", "capacity_type"], "Nodes disrupted."),
    metric(INSTANCE_ENDS, MetricKind::Histogram, OF_POOL,
        "Time from the first termination request until the instance of a node was terminated."),
    counter("karpenter_nodeclaims_terminated_total",
        &["cluster", "nodepool", "zone", "capacity_type"], "Claims terminated."),
    metric(CLAIM_ENDS, MetricKind::Histogram, OF_POOL,
        "Time from the start of disruption until a claim with a node was terminated."),
    gauge("karpenter_nodepools_allowed_disruptions", OF_BUDGET,
        "Nodes of a pool that its budgets allow to be disrupted at the same time. `reason` is \
         spelled as in budgets of Karpenter (`Empty`). 2147483647 if no budget applies. Rates, \
         windows, pauses, and budgets of the cluster and the fleet may allow fewer."),
    gauge("karpenter_nodepools_cost_total", OF_POOL,
        "Cost per hour of the instances of a pool, as in `outrigger_cost_dollars_per_hour`."),
    gauge("karpenter_nodepools_limit", OF_RESOURCE,
        "Resource limits of a pool, in cores, bytes or units."),
    gauge("karpenter_nodepools_nodes_consuming_budgets", OF_BUDGET,
        "Nodes of a pool that are disrupted or not ready. They count for the budgets of all \
         reasons."),
    gauge("karpenter_nodepools_usage", OF_RESOURCE,
        "Resource usage that counts toward the limits of a pool, in cores, bytes or units."),
    gauge("karpenter_nodes_allocatable", OF_NODE,
        "Allocatable resources of a node, in cores, bytes or units. Only with `per_node`."),
    counter("karpenter_nodes_created_total", &["cluster", "nodepool", "zone"],
        "Nodes registered."),
    gauge("karpenter_nodes_current_lifetime_seconds",
        &["cluster", "node_name", "nodepool", "zone", "arch", "capacity_type", "instance_type"],
        "Age of a node. Only with `per_node`."),
    counter("karpenter_nodes_drained_total", OF_POOL,
        "Nodes drained until no pods remained."),
    metric(LIFETIMES, MetricKind::Histogram, OF_POOL,
        "Age of nodes when terminated."),
    gauge("karpenter_nodes_system_overhead", OF_NODE,
        "Capacity of a node that pods cannot request, in cores, bytes or units. Only with \
         `per_node`."),
    counter("karpenter_nodes_terminated_total", &["cluster", "nodepool", "zone"],
        "Nodes terminated."),
    summary("karpenter_nodes_termination_duration_seconds", OF_POOL,
        "Time from the start of disruption until the node was removed."),
    gauge("karpenter_nodes_total_daemon_requests", OF_NODE,
        "Resource requests of DaemonSet pods on a node. Only with `per_node`."),
    gauge("karpenter_nodes_total_pod_requests", OF_NODE,
        "Resource requests of all other pods on a node. Only with `per_node`."),
    metric(BOUND, MetricKind::Histogram, CLUSTER,
        "Time from the creation of a pod until it is bound. Not measured if the cluster is polled \
         or while a watch is down."),
    counter("karpenter_pods_disruption_initiated_total", OF_REASON,
        "Pods to reschedule because their node is disrupted."),
    counter("karpenter_pods_drained_total", OF_REASON, "Pods evicted."),
    gauge("karpenter_pods_provisioning_scheduling_undecided_time_seconds", OF_POD,
        "Time since a pending pod was first seen, until it is planned. Only with `per_node`, and \
         only the 1,000 oldest pods."),
    metric(DECISIONS, MetricKind::Histogram, CLUSTER,
        "Time from when a pending pod is first seen until it is planned."),
    summary("karpenter_pods_startup_duration_seconds", CLUSTER,
        "Time from the creation of a pending pod until it runs. Not measured if the cluster is \
         polled or while a watch is down."),
    gauge("karpenter_pods_state",
        &["cluster", "namespace", "phase", "node", "nodepool", "zone", "arch", "capacity_type",
            "instance_type"],
        "Pods by phase and node properties. `node` is set only with `per_node`. Otherwise pods on \
         nodes with equal labels are counted together."),
    gauge("karpenter_pods_unbound_time_seconds", OF_POD,
        "Time since the creation of a pending pod, until it is bound. Only with `per_node`, and \
         only the 1,000 oldest pods."),
    gauge("karpenter_pods_unstarted_time_seconds", OF_POD,
        "Time since the creation of a pending pod, until it runs. Only with `per_node`, and only \
         the 1,000 oldest pods."),
    metric(PLANS, MetricKind::Histogram, OF_CONTROLLER,
        "Duration of engine passes that planned pods."),
    gauge("karpenter_scheduler_unschedulable_pods_count", OF_CONTROLLER,
        "Pods that were unschedulable in the last plan."),
    counter("karpenter_voluntary_disruption_decisions_by_nodepool_total", OF_DECISION,
        "Decisions to disrupt nodes that are empty or underutilized, once for each of their \
         pools."),
    counter("karpenter_voluntary_disruption_decisions_total", OF_DECISION,
        "Decisions to disrupt nodes that are empty or underutilized. `nodepool` is empty for \
         decisions that span several pools."),
    gauge("karpenter_voluntary_disruption_eligible_nodes", OF_REASON,
        "Nodes eligible for disruption, by reason. Budgets, windows and pauses may still block \
         them."),
    counter("karpenter_voluntary_disruption_failed_validations_total", OF_REASON,
        "Disruptions cancelled because validation failed."),
    gauge("leader_election_master_status", &["cluster", "name"],
        "1 while this host is the leader of the cluster, as in `outrigger_cluster_leader`. `name` \
         is the name of the Lease."),
    counter("outrigger_aws_requests_total", &["region", "service", "operation"],
        "AWS API requests."),
    gauge("outrigger_build_info", &["version"], "Always 1."),
    gauge("outrigger_capacity_shortfall", &["cluster", "need", "name"],
        "Missing static capacity: nodes of a static pool (`need` is `nodes`), or pods of a \
         CapacityBuffer that do not fit (`need` is `room`)."),
    gauge("outrigger_claims", &["cluster", "nodepool", "phase"], "Claims by phase."),
    gauge("outrigger_clock_skew_seconds", &["cluster", "peer"],
        "Clock of this host minus the clock of a peer (`api_server`, `aws`). Negative if this host \
         is behind."),
    gauge("outrigger_cluster_leader", CLUSTER, "1 while this host is the leader of the cluster."),
    gauge("outrigger_cluster_up", CLUSTER,
        "1 while the cluster state is in sync and Outrigger makes decisions for the cluster."),
    summary("outrigger_command_duration_seconds", &["cluster", "command"],
        "Duration of commands."),
    counter("outrigger_commands_total", &["cluster", "command", "outcome"],
        "Commands executed, by outcome."),
    gauge("outrigger_config_hash", &[],
        "Hash of the configuration. Hosts that share clusters must report the same value."),
    gauge("outrigger_config_last_reload_successful", &[],
        "1 if the last configuration load or reload succeeded."),
    gauge("outrigger_config_last_reload_timestamp_seconds", &[],
        "Unix time of the last configuration load or reload."),
    gauge("outrigger_cost_dollars_per_hour", OF_POOL,
        "Cost of the instances of a pool, as far as prices are known. Reserved instances count as \
         0."),
    gauge("outrigger_disruption_held", &["cluster", "nodepool", "reason", "verdict"],
        "1 if nodes are due for disruption but blocked. The labels name the disruption reason and \
         the verdict that blocks it. Only for managed clusters."),
    gauge("outrigger_disruption_suspended", &["cluster", "for"],
        "1 while a safeguard suspends changes: too many nodes are not ready (`health`), a \
         configuration change would disrupt too many nodes (`change`), too many instances would be \
         terminated without a drain (`undrained`), the API server and the instances belong to \
         different clusters (`identity`), or nodes of a pool fail to register (`registration`)."),
    counter("outrigger_drains_forced_total", CLUSTER, "Drains that timed out."),
    counter("outrigger_drains_held_total", CLUSTER,
        "Drains reported as blocked."),
    counter("outrigger_ec2_throttled_total", &["region", "api"],
        "Throttled AWS API calls. Throttled calls are retried."),
    counter("outrigger_evictions_refused_total", CLUSTER,
        "Evictions refused by the API server, for example because of a PodDisruptionBudget."),
    counter("outrigger_exec_ends_total", CLUSTER,
        "Unexpected exits of the exec program."),
    counter("outrigger_exec_invalid_lines_total", CLUSTER,
        "Lines of the exec program that are not valid responses."),
    counter("outrigger_failures_total", &["cluster", "command", "kind"],
        "Failed commands. Failed commands are retried."),
    counter("outrigger_ice_total", &["cluster", "zone", "capacity_type", "reason"],
        "Offerings refused at launch."),
    counter("outrigger_interruptions_total", &["cluster", "kind"],
        "Interruption notices."),
    gauge("outrigger_invalid_buffers", CLUSTER,
        "CapacityBuffers ignored because they are invalid or cannot be read."),
    counter("outrigger_launches_total", &["cluster", "capacity_type"], "Instances launched."),
    counter("outrigger_out_of_sync_total", CLUSTER,
        "Number of times that the cluster state went out of sync and decisions were suspended."),
    gauge("outrigger_plan_claims", CLUSTER, "New nodes in the last plan."),
    gauge("outrigger_plan_pods", &["cluster", "state"], "Pods in the last plan."),
    counter("outrigger_plans_total", CLUSTER, "Plans computed for pending pods."),
    summary("outrigger_pods_decided_seconds", CLUSTER,
        "Quantiles of `karpenter_pods_scheduling_decision_duration_seconds`."),
    counter("outrigger_slow_terminations_total", CLUSTER,
        "Instances that did not terminate in time after the request."),
    gauge("outrigger_sweep_found_nodes", &["cluster", "sweep", "outcome"],
        "Nodes that the last sweep found, by outcome: `disrupted`, `blocked` or `observed`."),
    gauge("outrigger_sweep_last_timestamp_seconds", &["cluster", "sweep"],
        "The occurrence of the last scheduled sweep, as Unix time."),
    gauge("outrigger_sweep_next_timestamp_seconds", &["cluster", "sweep"],
        "When the next scheduled sweep runs, as Unix time."),
    gauge("outrigger_sweep_overdue_timestamp_seconds", &["cluster", "sweep"],
        "When the scheduled sweep is overdue, as Unix time: two periods after the last one."),
    counter("outrigger_sweeps_total", &["cluster", "sweep"],
        "Sweeps that have completed, scheduled and requested."),
    gauge("outrigger_watch_lag_seconds", CLUSTER,
        "Time since the last activity of the watch that has been silent longest."),
];

/// Returns the help text of a metric, or an empty string if the metric does not exist.
pub fn metric_help(name: &str) -> &'static str {
    let metric = ALL.iter().find(|metric| metric.name == name);
    metric.map_or("", |metric| metric.about)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    use super::{
        ALL, BOUND, CALLS, CLAIM_ENDS, DECISIONS, INSTANCE_ENDS, LIFETIMES, MetricKind, NOTICES,
        PASSES, PLANS, UNHEALTHY,
    };

    const BEGIN: &str = "<!-- From here on written from the code: \
                         UPDATE_REFERENCE=1 cargo test --features aws. -->\n";

    fn reference() -> String {
        let mut out = format!("{BEGIN}\n| name | kind | labels | |\n|---|---|---|---|\n");
        for metric in ALL {
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Summary => "summary",
                MetricKind::Histogram => "histogram",
            };
            let labels: Vec<String> = metric.labels.iter().map(|it| format!("`{it}`")).collect();
            let (name, labels, about) = (metric.name, labels.join(", "), metric.about);
            let _ = writeln!(out, "| `{name}` | {kind} | {labels} | {about} |");
        }
        out
    }

    #[test]
    fn metrics_reference_matches_the_definitions() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
        let text = fs::read_to_string(&path).expect("the reference exists");
        let (head, table) = text.split_at(text.find(BEGIN).expect("the reference has the mark"));
        if option_env!("UPDATE_REFERENCE").is_some() {
            fs::write(&path, format!("{head}{}", reference())).expect("it is written");
            return;
        }
        assert_eq!(table, reference(), "run UPDATE_REFERENCE=1 cargo test --features aws");
    }

    /// Metric names in string literals of the code.
    fn collect_metric_names(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect_metric_names(&path, found);
                continue;
            }
            let text = fs::read_to_string(&path).expect("it is text");
            let production = text.split("\nmod tests {").next().unwrap_or_default();
            let words = production.split('"').filter(|_| !path.ends_with("metric_definitions.rs"));
            let starts = ["karpenter_", "outrigger_", "controller_runtime_", "leader_election_"];
            let is_name = |word: &&str| {
                starts.iter().any(|start| word.starts_with(start))
                    && !starts.contains(word)
                    && word.chars().all(|letter| {
                        letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
                    })
            };
            found.extend(words.filter(is_name).map(str::to_owned));
        }
    }

    #[test]
    fn each_metric_is_defined_and_recorded() {
        let mut found = BTreeSet::from(
            [
                BOUND,
                CALLS,
                CLAIM_ENDS,
                DECISIONS,
                INSTANCE_ENDS,
                LIFETIMES,
                NOTICES,
                PASSES,
                PLANS,
                UNHEALTHY,
            ]
            .map(str::to_owned),
        );
        collect_metric_names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        let names: Vec<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert!(names.is_sorted(), "the table is sorted by name");
        assert_eq!(found, names.into_iter().map(str::to_owned).collect());
    }
}
