//! The scheduler: filters and scores nodes, reserves resources, and binds after a short delay.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::id::{NodeName, PodKey};
use crate::model::labels::ZONE;
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::sim::cluster::scheduler_filters::{
    fits, is_within_skew, labels_match, untolerated_preferences,
};
use crate::sim::cluster::{ClusterTimer, SimCluster, Waiter};
use crate::sim::timeline::TimelineFact;
use crate::sim::workload::Workload;

/// Requests and priorities of nominated pods, by node.
type Promised = BTreeMap<NodeName, BTreeMap<PodKey, (i32, Resources)>>;

impl SimCluster {
    pub(super) fn trigger_scheduler(&mut self, now: Timestamp) {
        if self.scheduling || self.waiting.is_empty() {
            return;
        }
        self.scheduling = true;
        self.set_timer(now, 20, 100, ClusterTimer::Schedule);
    }

    /// Tries every pending pod once, by priority and age.
    pub(super) fn schedule_pods(&mut self, now: Timestamp) {
        self.scheduling = false;
        let mut bound: BTreeMap<NodeName, Vec<Waiter>> = BTreeMap::new();
        let mut hopeless = BTreeSet::new();
        let mut newly_pending = 0;
        let mut promised = self.promised_resources();
        for (rank, (key, uid)) in std::mem::take(&mut self.waiting) {
            let Some(pod) = self.store.pod(&key, &uid).filter(|pod| is_pending(pod)) else {
                continue;
            };
            let Some(owner) = self.owner_index(pod) else {
                continue;
            };
            let daemon = pod.is_daemon();
            // Free resources only decrease during one pass. If a pod does not fit, no other replica
            // of its workload fits. Nominated pods are an exception, because resources are reserved
            // for each of them.
            let choice = if hopeless.contains(&owner) && pod.nominated_node.is_none() {
                None
            } else {
                self.choose_node(owner, pod, &promised)
            };
            if let Some(node) = choice {
                let requests = pod.requests.clone();
                let nominated = pod.nominated_node.as_ref();
                if let Some(promises) = nominated.and_then(|name| promised.get_mut(name)) {
                    promises.remove(&key);
                }
                self.store.reserve(&node, &requests);
                self.assumed.insert(key.clone(), node.clone());
                let waiter = Waiter { rank, key, uid };
                bound.entry(node).or_default().push(waiter);
                continue;
            }
            if !daemon {
                hopeless.insert(owner);
            }
            if !pod.unschedulable {
                self.store.change_pod(&key, &uid, now, |pod| pod.unschedulable = true);
                newly_pending += usize::from(!daemon);
            }
            self.waiting.insert(rank, (key, uid));
        }
        for (node, pods) in bound {
            // Binding is a separate call. The node may change in between.
            self.set_timer(now, 5, 120, ClusterTimer::Bind(node, pods));
        }
        if newly_pending > 0 {
            self.facts
                .push(TimelineFact::Waiting { pods: newly_pending, pending: self.pending_pods() });
        }
    }

    /// Number of pending pods, without daemons.
    pub fn pending_pods(&self) -> usize {
        self.waiting.values().filter(|(key, _)| !self.targets.contains_key(key)).count()
    }

    /// Pending nominated pods, by node. For pods of the same or lower priority, the resources of
    /// these pods are treated as used. Source: Kubernetes documentation, nominated node names.
    fn promised_resources(&self) -> Promised {
        let mut promised = Promised::new();
        for (key, uid) in self.waiting.values() {
            let pod = self.store.pod(key, uid).filter(|pod| is_pending(pod));
            if let Some(pod) = pod
                && let Some(node) = &pod.nominated_node
            {
                let promise = (pod.priority, pod.requests.clone());
                let promises = promised.entry(node.clone()).or_default();
                promises.insert(key.clone(), promise);
            }
        }
        promised
    }

    fn choose_node(&self, owner: usize, pod: &Pod, promised: &Promised) -> Option<NodeName> {
        let workload = &self.owned.get(owner)?.workload;
        if let Some(target) = self.targets.get(&pod.key) {
            let node = self.store.nodes().get(target)?;
            let used = &self.store.load_of(target.as_str())?.used;
            return fits(workload, node, used).then(|| target.clone());
        }
        let zones = self.zones_of(workload);
        let nodes = self.store.nodes();
        let nominated = pod.nominated_node.as_ref();
        let mut best: Option<((usize, i64), &NodeName)> = None;
        let first = nominated.and_then(|name| nodes.get(name));
        for node in first.into_iter().chain(nodes.values()) {
            let Some(load) = self.store.load_of(node.name.as_str()) else {
                continue;
            };
            let used = with_promised(&load.used, promised.get(&node.name), pod);
            if !fits(workload, node, &used) || !is_within_skew(workload, node, &zones) {
                continue;
            }
            if nominated == Some(&node.name) {
                return nominated.cloned();
            }
            let score =
                (untolerated_preferences(workload, node), -free_share(workload, node, &load.used));
            // Nodes are sorted by name, so the first of equal nodes is selected.
            if best.as_ref().is_none_or(|(lowest, _)| score < *lowest) {
                best = Some((score, &node.name));
            }
        }
        best.map(|(_, name)| name.clone())
    }

    /// Number of pods per zone of a workload with topology spread. All nodes with matching labels
    /// are included, regardless of taints. Source: Kubernetes documentation, topology spread
    /// constraints.
    fn zones_of(&self, workload: &Workload) -> BTreeMap<&str, u32> {
        let mut zones = BTreeMap::new();
        if workload.max_skew.is_none() {
            return zones;
        }
        let nodes = self.store.nodes();
        for node in nodes.values() {
            let zone = node.labels.get(ZONE);
            if let Some(zone) = zone.filter(|_| labels_match(workload, &node.labels)) {
                zones.entry(zone.as_str()).or_insert(0);
            }
        }
        for pod in self.store.active_pods_of(&workload.name) {
            let node = pod.node.as_ref().or_else(|| self.assumed.get(&pod.key));
            let node = node.and_then(|name| nodes.get(name));
            let zone = node.and_then(|node| node.labels.get(ZONE));
            if let Some(count) = zone.and_then(|zone| zones.get_mut(zone.as_str())) {
                *count += 1;
            }
        }
        zones
    }

    pub(super) fn bind_pods(&mut self, node: &NodeName, pods: Vec<Waiter>, now: Timestamp) {
        let exists = self.store.nodes().contains_key(node);
        let mut count = 0;
        for Waiter { rank, key, uid } in pods {
            self.assumed.remove(&key);
            let Some(pod) = self.store.pod(&key, &uid) else {
                self.release_template(node, &key);
                continue;
            };
            let (requests, daemon) = (pod.requests.clone(), pod.is_daemon());
            let wanted = is_pending(pod);
            self.store.release(node, &requests);
            if !wanted {
                continue;
            }
            if !exists {
                self.waiting.insert(rank, (key, uid));
                continue;
            }
            self.on_pod_bound(&key, &uid, node, now);
            count += usize::from(!daemon);
        }
        if count > 0 {
            self.facts.push(TimelineFact::Bound { node: node.clone(), pods: count });
        }
        self.trigger_scheduler(now);
    }

    /// Records that a pod was bound to a node.
    pub(super) fn on_pod_bound(
        &mut self,
        key: &PodKey,
        uid: &str,
        node: &NodeName,
        now: Timestamp,
    ) {
        let mut waited = None;
        self.store.change_pod(key, uid, now, |pod| {
            pod.node = Some(node.clone());
            pod.unschedulable = false;
            waited = pod.created.filter(|_| !pod.is_daemon());
        });
        let waited = waited.map(|created| now.duration_since(created));
        self.bind_waits.extend(waited);
        self.set_timer(now, 800, 3000, ClusterTimer::Run(key.clone(), uid.to_owned()));
    }

    /// Releases the reserved resources of a pod that was deleted before it was bound.
    fn release_template(&mut self, node: &NodeName, pod: &PodKey) {
        let owner = pod.name.rsplit_once('-').and_then(|(owner, _)| self.owners.get(owner));
        let Some(owned) = owner.and_then(|owner| self.owned.get(*owner)) else {
            return;
        };
        let requests = Resources { pods: 1, ..owned.workload.requests.clone() };
        self.store.release(node, &requests);
    }
}

fn is_pending(pod: &Pod) -> bool {
    pod.node.is_none() && pod.is_active()
}

/// The used resources of a node when a pod is scheduled. They include resources promised to other
/// pods of the same or a higher priority.
fn with_promised<'a>(
    used: &'a Resources,
    promised: Option<&BTreeMap<PodKey, (i32, Resources)>>,
    pod: &Pod,
) -> Cow<'a, Resources> {
    let mut used = Cow::Borrowed(used);
    for (key, (priority, requests)) in promised.into_iter().flatten() {
        if *key != pod.key && *priority >= pod.priority {
            used.to_mut().add(requests);
        }
    }
    used
}

/// Free resources of the node after it accepts the pod, in ten-thousandths of its capacity,
/// averaged over CPU and memory. By default, the scheduler spreads pods (`NodeResourcesFit`,
/// LeastAllocated).
fn free_share(workload: &Workload, node: &Node, used: &Resources) -> i64 {
    let (has, requests) = (&node.allocatable, &workload.requests);
    let [cpu, memory] = [
        (has.cpu_milli, used.cpu_milli, requests.cpu_milli),
        (has.memory, used.memory, requests.memory),
    ]
    .map(|(has, used, wanted)| match has {
        1.. => (has - used - wanted).max(0).saturating_mul(10_000) / has,
        _ => 0,
    });
    i64::midpoint(cpu, memory)
}
