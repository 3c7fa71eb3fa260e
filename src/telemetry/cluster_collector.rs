//! Gauges of cluster objects. They are rebuilt periodically, so that series of deleted nodes
//! disappear.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;

use crate::model::clock_skew::ClockSkew;
use crate::model::id::{ClusterName, NodeName, PoolName};
use crate::model::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, POOL, ZONE};
use crate::model::node::Node;
use crate::model::pool::Reason;
use crate::model::quantity::Resources;
use crate::state::State;

/// Karpenter's value for a missing label, or for a pod without a node.
const NONE: &str = "N/A";

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
    /// Its labels in Prometheus syntax.
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

/// Verdicts that block the disruption of due nodes of a pool, by reason.
pub type Held = (PoolName, Reason, &'static str);

/// State of the watches: since when the cluster state is out of sync, if it is, when the longest
/// silent watch was last active, and the clock skews.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sync {
    /// Since when the cluster state is out of sync. `None` if it is in sync.
    pub unready_since: Option<Timestamp>,
    /// The last activity of the watch that has been silent longest.
    pub oldest_activity: Option<Timestamp>,
    /// The known clock skews of the API server and the provider.
    pub clock_skews: [Option<ClockSkew>; 2],
}

/// Current age of the state of a cluster.
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

/// All samples of one cluster. `per_node` adds series per node.
pub fn collect_samples<'h>(
    cluster: &ClusterName,
    state: &State,
    held: impl Iterator<Item = &'h Held>,
    per_node: bool,
) -> Vec<MetricSample> {
    let mut buffer = SampleBuffer::for_cluster(cluster);
    for (pool, reason, verdict) in held {
        let labels =
            [("nodepool", pool.as_str()), ("reason", reason.as_str()), ("verdict", verdict)];
        buffer.add_sample("outrigger_disruption_held", &labels, 1.0);
    }
    let nodes = state.objects.nodes.len();
    buffer.add_sample("karpenter_cluster_state_node_count", &[], count_to_f64(nodes));
    collect_pools(&mut buffer, state);
    collect_pods(&mut buffer, state, per_node);
    if per_node {
        for node in state.objects.nodes.values() {
            collect_node_resources(&mut buffer, state, node);
        }
    }
    buffer.samples
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
        buffer.add_sample("outrigger_cost_dollars_per_hour", &[pool], holding.cost.usd_per_h());
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

/// Pods by phase and node properties. Without series per node, pods on nodes with equal labels are
/// counted together. Sums are the same.
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
