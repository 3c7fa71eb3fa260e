//! Statistics of a cluster: allocatable and requested resources, pods by phase, use and cost per
//! pool.

use std::collections::BTreeMap;

use crate::model::claim::ClaimPhase;
use crate::model::id::{NodeName, PoolName};
use crate::model::instance::Price;
use crate::model::node::Node;
use crate::model::quantity::Resources;
use crate::state::State;
use crate::state::snapshot::Usage;

/// Requests of the active pods of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Requests of DaemonSet pods.
    pub daemons: Resources,
    /// Requests of all other pods.
    pub pods: Resources,
}

/// Key of a pod count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodStatsKey<'a> {
    /// Their node, or `None` if they are not bound.
    pub node: Option<&'a NodeName>,
    /// Their namespace.
    pub namespace: &'a str,
    /// Their phase, as Kubernetes spells it.
    pub phase: &'static str,
}

/// Number of nodes of a pool by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Ready nodes.
    pub ready: usize,
    /// Initialized nodes that are not ready.
    pub unready: usize,
    /// In-flight nodes.
    pub starting: usize,
    /// Nodes being disrupted.
    pub leaving: usize,
}

impl NodeCounts {
    fn count_node(&mut self, phase: ClaimPhase, is_ready: bool) {
        let counter = match phase {
            ClaimPhase::Initialized if is_ready => &mut self.ready,
            ClaimPhase::Initialized => &mut self.unready,
            ClaimPhase::Draining | ClaimPhase::Terminating | ClaimPhase::Gone => &mut self.leaving,
            _ => &mut self.starting,
        };
        *counter += 1;
    }

    /// Returns the total number of nodes.
    pub fn total(&self) -> usize {
        self.ready + self.unready + self.starting + self.leaving
    }
}

/// Statistics of one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolStats {
    /// Usage that the limits of the pool restrict.
    pub usage: Usage,
    /// Its claims, by phase.
    pub claims: BTreeMap<ClaimPhase, usize>,
    /// Nodes by state. If instances cannot be listed, nodes count as claims.
    pub nodes: NodeCounts,
    /// Price of its instances, as far as the catalog contains them.
    pub cost: Price,
}

impl State {
    /// Returns the requests of the pods on a node.
    pub fn requested_on(&self, node: &Node) -> Requested {
        let mut requested = Requested::default();
        let pods = self.objects.pods_on(node.name.as_str());
        for pod in pods.filter(|pod| !pod.is_terminal()) {
            let sum = match pod.is_daemon() {
                true => &mut requested.daemons,
                false => &mut requested.pods,
            };
            sum.add(&pod.requests);
        }
        requested
    }

    /// Returns the total requests of a node, which are updated incrementally.
    pub fn total_requests_on(&self, node: &Node) -> Resources {
        self.objects.node_usage(node.name.as_str()).requests()
    }

    /// Returns the number of pods by key.
    pub fn pod_counts(&self) -> BTreeMap<PodStatsKey<'_>, usize> {
        let mut counts = BTreeMap::new();
        for pod in self.objects.pods.values() {
            let alike = PodStatsKey {
                node: pod.node.as_ref(),
                namespace: &pod.key.namespace,
                phase: pod.phase.as_str(),
            };
            *counts.entry(alike).or_insert(0) += 1;
        }
        counts
    }

    /// Returns statistics of each configured pool, and of removed pools with remaining nodes.
    pub fn stats_by_pool(&self) -> BTreeMap<PoolName, PoolStats> {
        let pools = self.cluster.pools.iter();
        let mut pools: BTreeMap<PoolName, PoolStats> =
            pools.map(|pool| (pool.name.clone(), PoolStats::default())).collect();
        for (pool, usage) in self.usage_by_pool() {
            pools.entry(pool).or_default().usage = usage;
        }
        for claim in self.ledger.claims.values() {
            let stats = pools.entry(claim.record.pool.clone()).or_default();
            *stats.claims.entry(claim.phase).or_insert(0) += 1;
            let is_ready = self.node_of(claim).is_some_and(|node| node.ready);
            stats.nodes.count_node(claim.phase, is_ready);
            let prices = [Some(stats.cost), self.price_of_instance(claim)];
            stats.cost = prices.into_iter().flatten().sum();
        }
        for node in self.claimless_nodes() {
            let stats = pools.entry(node.pool_name().unwrap_or_default()).or_default();
            let phase = match (node.is_leaving(), node.is_initialized()) {
                (true, _) => ClaimPhase::Draining,
                (false, true) => ClaimPhase::Initialized,
                (false, false) => ClaimPhase::Registered,
            };
            stats.nodes.count_node(phase, node.ready);
            let prices = [Some(stats.cost), self.price_of(node, None)];
            stats.cost = prices.into_iter().flatten().sum();
        }
        pools
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{NodeCounts, PodStatsKey};
    use crate::model::cluster::Cluster;
    use crate::model::id::NodeName;
    use crate::model::labels::{INITIALIZED, POOL};
    use crate::model::node::Node;
    use crate::model::pod::{Owner, PodPhase};
    use crate::model::pool::Pool;
    use crate::model::watched_object::WatchedObject;
    use crate::state::State;
    use crate::state::fixtures::{NOW, pod};

    #[test]
    fn pod_requests_are_summed_by_node_and_counted_by_phase() {
        let mut state = State::default();
        let node = Node { name: "n".into(), ..Node::default() };
        let mut pods = ["a", "b", "d", "e", "w"].map(|name| {
            let mut pod = pod("default", name, "n");
            (pod.requests.cpu_milli, pod.phase) = (100, PodPhase::Running);
            pod
        });
        pods[2].owner = Some(Owner { kind: "DaemonSet".to_owned(), ..Owner::default() });
        pods[3].phase = PodPhase::Succeeded;
        (pods[4].node, pods[4].phase) = (None, PodPhase::Pending);
        for pod in pods {
            state.objects.apply(pod.into(), NOW);
        }
        let requested = state.requested_on(&node);
        let cpu = (requested.daemons.cpu_milli, requested.pods.cpu_milli);
        assert_eq!(cpu, (100, 200), "finished pods have no requests");
        let name: NodeName = "n".into();
        let key = |node, phase| PodStatsKey { node, namespace: "default", phase };
        let counts: Vec<_> = state.pod_counts().into_iter().collect();
        let expect = [
            (key(None, "Pending"), 1),
            (key(Some(&name), "Running"), 3),
            (key(Some(&name), "Succeeded"), 1),
        ];
        assert_eq!(counts, expect);
    }

    #[test]
    fn pool_without_nodes_has_zero_counts() {
        let mut state = State::default();
        state.apply_configuration(Arc::new(Cluster {
            pools: vec![Pool::new("general")],
            ..Cluster::default()
        }));
        let stats = state.stats_by_pool();
        let general = stats.get("general").expect("the pool has stats");
        assert_eq!((general.usage.nodes, general.claims.len()), (0, 0));
        assert_eq!(general.nodes.total(), 0);
    }

    #[test]
    fn nodes_are_counted_when_instances_cannot_be_listed() {
        let node = |name: &str, initialized: &str, ready: bool| {
            let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            let labels = [label(POOL, "general"), label(INITIALIZED, initialized)];
            Node { name: name.into(), labels: labels.into(), ready, ..Node::default() }
        };
        let mut nodes = [
            node("ready", "true", true),
            node("unready", "true", false),
            node("starting", "false", true),
            node("leaving", "true", true),
        ];
        nodes[3].deleting = Some(NOW);
        let cluster = Arc::new(Cluster { pools: vec![Pool::new("general")], ..Cluster::default() });
        let nodes = nodes.into_iter().map(|node| WatchedObject::Node(Box::new(node)));
        let state = State::offline(cluster, Arc::default(), nodes.collect(), NOW);
        let stats = state.stats_by_pool();
        let expect = NodeCounts { ready: 1, unready: 1, starting: 1, leaving: 1 };
        assert_eq!(stats["general"].nodes, expect);
    }
}
