//! Gauges of cluster objects. The gauges are rebuilt periodically, so that series of deleted nodes
//! disappear.

// Instance types and offerings.
mod offerings;
// Scheduled sweeps.
mod sweeps;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;

use crate::engine::views::measures::Measures;
use crate::model::clock_skew::ClockSkew;
use crate::model::id::{ClusterName, NodeName, PodKey, PoolName};
use crate::model::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, POOL, ZONE};
use crate::model::node::Node;
use crate::model::pod::PodPhase;
use crate::model::pool::{Budget, Reason};
use crate::model::quantity::Resources;
use crate::state::State;
use crate::telemetry::metric_definitions::PLANNER;

/// Karpenter's value for a missing label, or for a pod without a node.
const NONE: &str = "N/A";

/// Maximum number of series per metric of single pods.
const PODS_MAX: usize = 1000;

/// Resources of every node.
const COMMON: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];

/// Node labels, with Karpenter's metric label names.
const OF_NODES: [(&str, &str); 5] = [
    ("nodepool", POOL),
    ("zone", ZONE),
    ("arch", ARCH),
    ("capacity_type", CAPACITY_TYPE),
    ("instance_type", INSTANCE_TYPE),
];

/// A sample.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    name: &'static str,
    /// The labels of the sample, in Prometheus syntax.
    labels: String,
    value: f64,
}

/// Collects the samples of one cluster.
struct SampleBuffer {
    cluster: String,
    samples: Vec<MetricSample>,
}

impl SampleBuffer {
    fn for_cluster(cluster: &ClusterName) -> Self {
        let mut labels = String::new();
        append_label(&mut labels, "cluster", cluster.as_str());
        Self { cluster: labels, samples: Vec::new() }
    }

    fn add_sample(&mut self, name: &'static str, labels: &[(&str, &str)], value: f64) {
        let mut all = self.cluster.clone();
        for (key, value) in labels {
            append_label(&mut all, key, value);
        }
        self.samples.push(MetricSample { name, labels: all, value });
    }
}

/// Appends a label with an escaped value.
fn append_label(out: &mut String, key: &str, value: &str) {
    if !out.is_empty() {
        out.push(',');
    }
    out.push_str(key);
    out.push_str("=\"");
    for letter in value.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
    out.push('"');
}

/// A pool, a reason for disruption, and the verdict that blocks the disruption of nodes of this
/// pool for this reason.
pub type Held = (PoolName, Reason, &'static str);

/// State of the watches: since when the cluster state is out of sync (if it is), when the watch
/// that has been silent longest was last active, and the clock skews.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sync {
    /// Since when the cluster state is out of sync. `None` if it is in sync.
    pub unready_since: Option<Timestamp>,
    /// The last activity of the watch that has been silent longest.
    pub oldest_activity: Option<Timestamp>,
    /// The known clock skews of the API server and the provider.
    pub clock_skews: [Option<ClockSkew>; 2],
}

/// Returns samples of the current age of the state of a cluster, and of the clock skews.
pub fn sync_samples(cluster: &ClusterName, sync: Sync, now: Timestamp) -> Vec<MetricSample> {
    let mut buffer = SampleBuffer::for_cluster(cluster);
    let unsynced = sync.unready_since.map_or(0.0, |since| seconds_since(since, now));
    buffer.add_sample("karpenter_cluster_state_unsynced_time_seconds", &[], unsynced);
    if let Some(seen) = sync.oldest_activity {
        buffer.add_sample("outrigger_watch_lag_seconds", &[], seconds_since(seen, now));
    }
    for skew in sync.clock_skews.into_iter().flatten() {
        let labels = [("peer", skew.peer.as_str())];
        let ahead = skew.ahead.as_secs_f64();
        buffer.add_sample("outrigger_clock_skew_seconds", &labels, ahead);
    }
    buffer.samples
}

fn seconds_since(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

/// What the samples of a cluster are collected from.
#[derive(Debug)]
pub struct CollectedView<'e> {
    /// The cluster state.
    pub state: &'e State,
    /// Values that the engine has measured.
    pub measures: Measures<'e>,
    /// Whether to add series per node, per waiting pod and per offering.
    pub per_node: bool,
    /// The current time.
    pub now: Timestamp,
}

/// Returns all samples of one cluster.
pub fn collect_samples<'h>(
    cluster: &ClusterName,
    view: &CollectedView<'_>,
    held: impl Iterator<Item = &'h Held>,
) -> Vec<MetricSample> {
    let (state, per_node) = (view.state, view.per_node);
    let mut buffer = SampleBuffer::for_cluster(cluster);
    for (pool, reason, verdict) in held {
        let labels =
            [("nodepool", pool.as_str()), ("reason", reason.as_str()), ("verdict", verdict)];
        buffer.add_sample("outrigger_disruption_held", &labels, 1.0);
    }
    let nodes = state.objects.nodes.len();
    buffer.add_sample("karpenter_cluster_state_node_count", &[], count_to_f64(nodes));
    let unschedulable = count_to_f64(view.measures.unschedulable);
    let planner = [("controller", PLANNER)];
    buffer.add_sample("karpenter_scheduler_unschedulable_pods_count", &planner, unschedulable);
    collect_utilization(&mut buffer, state);
    collect_pools(&mut buffer, state);
    collect_budgets(&mut buffer, view);
    sweeps::add_sweeps(&mut buffer, &view.measures);
    collect_pods(&mut buffer, state, per_node);
    if per_node {
        for node in state.objects.nodes.values() {
            collect_node_resources(&mut buffer, state, node);
            collect_node_age(&mut buffer, node, view.now);
        }
        collect_waiting_pods(&mut buffer, view);
        offerings::collect_offerings(&mut buffer, state, view.now);
    }
    buffer.samples
}

/// Adds the requests of the pods on all nodes, in percent of the nodes' allocatable resources.
fn collect_utilization(buffer: &mut SampleBuffer, state: &State) {
    let (mut allocatable, mut requested) = (Resources::default(), Resources::default());
    for node in state.objects.nodes.values() {
        allocatable.add(&node.allocatable);
        requested.add(&state.total_requests_on(node));
    }
    for (resource, total) in resource_values(&allocatable).filter(|(_, total)| *total > 0.0) {
        let used = resource_value(resource, requested.get(resource));
        let labels = [("resource_type", metric_resource_name(resource))];
        let labels = labels.each_ref().map(|(key, value)| (*key, value.as_str()));
        let percent = 100.0 * used / total;
        buffer.add_sample("karpenter_cluster_utilization_percent", &labels, percent);
    }
}

/// Adds for each configured pool how many nodes its budgets allow to be disrupted, by reason, and
/// how many nodes are being disrupted.
fn collect_budgets(buffer: &mut SampleBuffer, view: &CollectedView<'_>) {
    for pool in &view.state.cluster.pools {
        let counts = view.measures.budget_counts.get(&pool.name);
        let (total, disrupted) = counts.copied().unwrap_or_default();
        for reason in Reason::BUDGETED {
            let budgets = &pool.disruption.budgets;
            let allowed = allowed_disruptions(budgets, reason, total, view.now);
            let reason = capitalized(reason.as_str());
            let labels = [("nodepool", pool.name.as_str()), ("reason", &reason)];
            buffer.add_sample("karpenter_nodepools_allowed_disruptions", &labels, allowed);
            let disrupted = count_to_f64(disrupted);
            buffer.add_sample("karpenter_nodepools_nodes_consuming_budgets", &labels, disrupted);
        }
    }
}

/// Returns how many of `total` nodes may be disrupted simultaneously, or Karpenter's value for no
/// limit if no budget applies to the reason now.
fn allowed_disruptions(budgets: &[Budget], reason: Reason, total: usize, now: Timestamp) -> f64 {
    let allowed = budgets.iter().filter_map(|budget| budget.allowed_nodes(reason, total, now));
    allowed.min().map_or(f64::from(i32::MAX), count_to_f64)
}

/// A reason as Karpenter's budgets spell it: `empty` gives `Empty`.
fn capitalized(reason: &str) -> String {
    let mut letters = reason.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn collect_pools(buffer: &mut SampleBuffer, state: &State) {
    for (pool, holding) in state.stats_by_pool() {
        let pool = ("nodepool", pool.as_str());
        let capacity = &holding.usage.capacity;
        // A pool without usage reports 0, and its series do not disappear.
        let usage = [("nodes", count_to_f64(holding.usage.nodes))]
            .into_iter()
            .chain(COMMON.map(|name| (name, resource_value(name, capacity.get(name)))))
            .chain(resource_values(capacity).filter(|(name, _)| !COMMON.contains(name)));
        for (resource, value) in usage {
            let labels = [pool, ("resource_type", &metric_resource_name(resource))];
            buffer.add_sample("karpenter_nodepools_usage", &labels, value);
        }
        for (phase, claims) in &holding.claims {
            let labels = [pool, ("phase", phase.as_str())];
            buffer.add_sample("outrigger_claims", &labels, count_to_f64(*claims));
        }
        for name in ["karpenter_nodepools_cost_total", "outrigger_cost_dollars_per_hour"] {
            buffer.add_sample(name, &[pool], holding.cost.usd_per_h());
        }
    }
    for pool in &state.cluster.pools {
        let limits = &pool.limits;
        let nodes = limits.nodes.map(|limit| ("nodes", i64::from(limit)));
        let capacity = limits.capacity.iter();
        let capacity = capacity.map(|(name, limit)| (name.as_str(), *limit));
        for (name, limit) in capacity.chain(nodes) {
            let labels =
                [("nodepool", pool.name.as_str()), ("resource_type", &metric_resource_name(name))];
            buffer.add_sample("karpenter_nodepools_limit", &labels, resource_value(name, limit));
        }
    }
}

/// Adds the pods by phase and node properties. Without series per node, pods on nodes with equal
/// labels are counted together. The sums over all series are the same.
fn collect_pods(buffer: &mut SampleBuffer, state: &State, per_node: bool) {
    let mut counts: BTreeMap<Vec<(&str, &str)>, usize> = BTreeMap::new();
    for (alike, pods) in state.pod_counts() {
        let mut labels = vec![("namespace", alike.namespace), ("phase", alike.phase)];
        let node = alike.node.and_then(|name| state.objects.nodes.get(name));
        if per_node {
            labels.push(("node", alike.node.map_or(NONE, NodeName::as_str)));
        }
        labels.extend(labels_of(node));
        *counts.entry(labels).or_insert(0) += pods;
    }
    for (labels, pods) in counts {
        buffer.add_sample("karpenter_pods_state", &labels, count_to_f64(pods));
    }
}

fn collect_node_resources(buffer: &mut SampleBuffer, state: &State, node: &Node) {
    let requested = state.requested_on(node);
    let labels = labels_of(Some(node));
    let name = ("node_name", node.name.as_str());
    for (resource, allocatable) in resource_values(&node.allocatable) {
        let kind = metric_resource_name(resource);
        let labels: Vec<_> =
            [name, ("resource_type", kind.as_str())].into_iter().chain(labels).collect();
        buffer.add_sample("karpenter_nodes_allocatable", &labels, allocatable);
        for (series, requests) in [
            ("karpenter_nodes_total_daemon_requests", &requested.daemons),
            ("karpenter_nodes_total_pod_requests", &requested.pods),
        ] {
            buffer.add_sample(series, &labels, resource_value(resource, requests.get(resource)));
        }
    }
    for (resource, capacity) in resource_values(&node.capacity) {
        let kind = metric_resource_name(resource);
        let labels: Vec<_> =
            [name, ("resource_type", kind.as_str())].into_iter().chain(labels).collect();
        let allocatable = resource_value(resource, node.allocatable.get(resource));
        let overhead = (capacity - allocatable).max(0.0);
        buffer.add_sample("karpenter_nodes_system_overhead", &labels, overhead);
    }
}

/// Adds the age of a node, if the time of its creation is known.
fn collect_node_age(buffer: &mut SampleBuffer, node: &Node, now: Timestamp) {
    if let Some(created) = node.created {
        let name = ("node_name", node.name.as_str());
        let labels: Vec<_> = [name].into_iter().chain(labels_of(Some(node))).collect();
        let age = seconds_since(created, now);
        buffer.add_sample("karpenter_nodes_current_lifetime_seconds", &labels, age);
    }
}

/// Waiting times of pods that are not bound, do not run or are not planned yet.
fn collect_waiting_pods(buffer: &mut SampleBuffer, view: &CollectedView<'_>) {
    let pods = view.state.objects.pods.values();
    let pending = pods.filter(|pod| pod.phase == PodPhase::Pending);
    let pending: Vec<_> =
        pending.filter_map(|pod| Some((&pod.key, pod.created?, pod.node.is_none()))).collect();
    let unbound = pending.iter().filter(|(_, _, is_unbound)| *is_unbound);
    let unbound = unbound.map(|(pod, created, _)| (*pod, *created)).collect();
    let unstarted = pending.iter().map(|(pod, created, _)| (*pod, *created)).collect();
    let undecided = view.measures.unplanned.clone();
    for (name, waiting) in [
        ("karpenter_pods_unbound_time_seconds", unbound),
        ("karpenter_pods_unstarted_time_seconds", unstarted),
        ("karpenter_pods_provisioning_scheduling_undecided_time_seconds", undecided),
    ] {
        for (pod, since) in oldest(waiting) {
            let labels = [("name", pod.name.as_str()), ("namespace", &pod.namespace)];
            buffer.add_sample(name, &labels, seconds_since(since, view.now));
        }
    }
}

/// Returns the pods that have waited longest, [`PODS_MAX`] at most.
fn oldest(mut waiting: Vec<(&PodKey, Timestamp)>) -> Vec<(&PodKey, Timestamp)> {
    waiting.sort_unstable_by_key(|(pod, since)| (*since, *pod));
    waiting.truncate(PODS_MAX);
    waiting
}

fn labels_of(node: Option<&Node>) -> [(&'static str, &str); 5] {
    OF_NODES.map(|(name, key)| {
        let value = node.and_then(|node| node.labels.get(key));
        (name, value.map_or(NONE, String::as_str))
    })
}

fn resource_values(resources: &Resources) -> impl Iterator<Item = (&str, f64)> {
    let all = resources.iter();
    all.map(|(name, amount)| (name, resource_value(name, amount)))
}

/// A resource name in Karpenter's spelling.
fn metric_resource_name(resource: &str) -> String {
    resource.replace('-', "_")
}

/// A quantity in cores, bytes or units.
#[expect(clippy::cast_precision_loss, reason = "the value is rounded for display")]
fn resource_value(resource: &str, amount: i64) -> f64 {
    match resource {
        "cpu" => amount as f64 / 1000.0,
        _ => amount as f64,
    }
}

#[expect(clippy::cast_precision_loss, reason = "no count of a cluster reaches 2^52")]
pub(super) fn count_to_f64(count: usize) -> f64 {
    count as f64
}

/// Renders the samples of all clusters in the Prometheus text format, grouped by name. `help_of`
/// returns the help text.
pub fn render<'s>(
    all: impl Iterator<Item = &'s [MetricSample]>,
    help_of: impl Fn(&str) -> &'static str,
) -> String {
    let mut all: Vec<&MetricSample> = all.flatten().collect();
    all.sort_by_key(|sample| sample.name);
    let mut out = String::new();
    let mut last = "";
    for MetricSample { name, labels, value } in all {
        if *name != last {
            let help = help_of(name);
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n");
        }
        last = name;
        let _ = writeln!(out, "{name}{{{labels}}} {value}");
    }
    out
}
