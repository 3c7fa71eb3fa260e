//! The objects of one cluster as its watches report them, with the pods of each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::labels::{HOSTNAME, Labels, NODE_NAME};
use crate::model::node::Node;
use crate::model::pdb::Pdb;
use crate::model::pod::{DaemonSet, Pod};
use crate::model::requirement::{Requirement, Requirements};
use crate::model::watched_object::{
    CsiNode, Namespace, ObjectKind, StorageClass, Volume, VolumeClaim, WatchedObject,
};
use crate::state::bound_pods::BoundPods;
use crate::state::disruption_cost::DisruptionCost;
use crate::state::node_instances::NodeInstances;
use crate::state::node_usage::NodeUsage;
use crate::state::selectors::WorkloadSelectors;
use crate::state::sorted_map::SortedHashMap;

/// All watched objects, by key.
#[derive(Clone, Debug, Default)]
pub struct ObjectCache {
    /// Pods.
    pub pods: SortedHashMap<PodKey, Pod>,
    /// Nodes.
    pub nodes: SortedHashMap<NodeName, Node>,
    /// DaemonSets.
    pub daemon_sets: BTreeMap<ObjectKey, DaemonSet>,
    /// PodDisruptionBudgets.
    pub pdbs: BTreeMap<ObjectKey, Pdb>,
    /// PersistentVolumeClaims.
    pub volume_claims: BTreeMap<ObjectKey, VolumeClaim>,
    /// PersistentVolumes.
    pub volumes: BTreeMap<String, Volume>,
    /// StorageClasses.
    pub storage_classes: BTreeMap<String, StorageClass>,
    /// CSINodes.
    pub csi_nodes: BTreeMap<NodeName, CsiNode>,
    /// Namespaces.
    pub namespaces: BTreeMap<String, Namespace>,
    /// Selectors of workloads.
    pub selectors: WorkloadSelectors,
    /// Nodes by instance.
    pub node_instances: NodeInstances,
    labels: BTreeMap<NodeName, Arc<Requirements>>,
    by_node: BTreeMap<NodeName, NodePods>,
    by_claim: BTreeMap<ObjectKey, BTreeSet<PodKey>>,
    /// The pods of each DaemonSet, the newest last.
    by_set: BTreeMap<ObjectKey, BTreeSet<(Option<Timestamp>, PodKey)>>,
    /// DaemonSets whose newest pod has different requests from their template.
    asking: BTreeMap<ObjectKey, DaemonSet>,
    /// Bound pods, counted by group and node.
    pub(super) bound_pods: BoundPods,
    waiting: BTreeSet<PodKey>,
    /// Pods without a scheduling result, with the time they were first seen.
    untried: BTreeMap<PodKey, Timestamp>,
    pods_changed: BTreeMap<NodeName, Timestamp>,
    /// The pods of a node without pods.
    no_pods: NodePods,
}

/// The pods bound to one node, including terminated ones, with the usage and disruption cost of the
/// active ones.
#[derive(Clone, Debug, Default)]
struct NodePods {
    keys: BTreeSet<PodKey>,
    load: NodeUsage,
    disruption_cost: DisruptionCost,
}

impl ObjectCache {
    /// Adds or replaces an object.
    pub fn apply(&mut self, object: WatchedObject, now: Timestamp) {
        match object {
            WatchedObject::Pod(pod) => self.apply_pod(*pod, now),
            WatchedObject::Node(node) => {
                let old = self.nodes.get(&node.name);
                self.node_instances.replace(old, Some(&node));
                if old.is_none_or(|old| old.labels != node.labels) {
                    let labels = Arc::new(labels_of(&node.name, &node.labels));
                    self.labels.insert(node.name.clone(), labels);
                }
                self.nodes.insert(node.name.clone(), *node);
            }
            WatchedObject::DaemonSet(set) => {
                let key = set.key.clone();
                self.daemon_sets.insert(key.clone(), *set);
                self.update_requests(&key);
            }
            WatchedObject::Pdb(pdb) => drop(self.pdbs.insert(pdb.key.clone(), pdb)),
            WatchedObject::VolumeClaim(claim) => {
                drop(self.volume_claims.insert(claim.key.clone(), claim))
            }
            WatchedObject::Volume(volume) => drop(self.volumes.insert(volume.name.clone(), volume)),
            WatchedObject::StorageClass(class) => {
                drop(self.storage_classes.insert(class.name.clone(), class))
            }
            WatchedObject::CsiNode(node) => drop(self.csi_nodes.insert(node.name.clone(), node)),
            WatchedObject::Namespace(namespace) => {
                drop(self.namespaces.insert(namespace.name.clone(), namespace))
            }
            WatchedObject::Selecting(selector) => self.selectors.apply(selector),
        }
    }

    /// Forgets an object.
    pub fn delete(&mut self, kind: ObjectKind, key: &ObjectKey, now: Timestamp) {
        let name = key.name.as_str();
        match kind {
            ObjectKind::Pod => {
                if let Some(pod) = self.pods.remove(key) {
                    self.waiting.remove(key);
                    self.untried.remove(key);
                    self.note_change(&pod, now);
                    self.count_pod(&pod, false);
                    set_of(&pod).iter().for_each(|set| self.update_requests(set));
                }
            }
            ObjectKind::Node => {
                self.node_instances.replace(self.nodes.get(name), None);
                self.nodes.remove(name);
                self.labels.remove(name);
            }
            ObjectKind::DaemonSet => {
                self.daemon_sets.remove(key);
                self.update_requests(key);
            }
            ObjectKind::Pdb => drop(self.pdbs.remove(key)),
            ObjectKind::VolumeClaim => drop(self.volume_claims.remove(key)),
            ObjectKind::Volume => drop(self.volumes.remove(name)),
            ObjectKind::StorageClass => drop(self.storage_classes.remove(name)),
            ObjectKind::CsiNode => drop(self.csi_nodes.remove(name)),
            ObjectKind::Namespace => drop(self.namespaces.remove(name)),
            ObjectKind::Service
            | ObjectKind::ReplicationController
            | ObjectKind::ReplicaSet
            | ObjectKind::StatefulSet => self.selectors.delete(kind, key),
        }
    }

    /// Replaces all objects of a kind by a full listing. Returns the objects that vanished, with
    /// UIDs for pods and nodes.
    pub fn reset(
        &mut self,
        kind: ObjectKind,
        objects: Vec<WatchedObject>,
        now: Timestamp,
    ) -> Vec<(ObjectKey, String)> {
        let listed: BTreeSet<ObjectKey> = objects.iter().map(WatchedObject::key).collect();
        let vanished: Vec<(ObjectKey, String)> =
            self.keys_of_kind(kind).into_iter().filter(|(key, _)| !listed.contains(key)).collect();
        for (key, _) in &vanished {
            self.delete(kind, key, now);
        }
        for object in objects.into_iter().filter(|object| object.kind() == kind) {
            self.apply(object, now);
        }
        vanished
    }

    /// Returns the number of objects of a kind.
    pub fn object_count(&self, kind: ObjectKind) -> usize {
        match kind {
            ObjectKind::Pod => self.pods.len(),
            ObjectKind::Node => self.nodes.len(),
            _ => self.keys_of_kind(kind).len(),
        }
    }

    /// Returns whether the cache contains a pod or node with this key.
    pub fn contains_object(&self, kind: ObjectKind, key: &ObjectKey) -> bool {
        match kind {
            ObjectKind::Pod => self.pods.contains_key(key),
            ObjectKind::Node => self.nodes.contains_key(key.name.as_str()),
            _ => self.keys_of_kind(kind).iter().any(|(listed, _)| listed == key),
        }
    }

    fn keys_of_kind(&self, kind: ObjectKind) -> Vec<(ObjectKey, String)> {
        let keys: Vec<ObjectKey> = match kind {
            ObjectKind::Pod => {
                let pods = self.pods.iter();
                return pods.map(|(key, pod)| (key.clone(), pod.uid.clone())).collect();
            }
            ObjectKind::Node => {
                let nodes = self.nodes.values();
                return nodes
                    .map(|node| (ObjectKey::new("", node.name.as_str()), node.uid.clone()))
                    .collect();
            }
            ObjectKind::DaemonSet => self.daemon_sets.keys().cloned().collect(),
            ObjectKind::Pdb => self.pdbs.keys().cloned().collect(),
            ObjectKind::VolumeClaim => self.volume_claims.keys().cloned().collect(),
            ObjectKind::Volume => cluster_keys(self.volumes.keys()),
            ObjectKind::StorageClass => cluster_keys(self.storage_classes.keys()),
            ObjectKind::CsiNode => cluster_keys(self.csi_nodes.keys().map(NodeName::as_str)),
            ObjectKind::Namespace => cluster_keys(self.namespaces.keys()),
            ObjectKind::Service
            | ObjectKind::ReplicationController
            | ObjectKind::ReplicaSet
            | ObjectKind::StatefulSet => self.selectors.keys_of_kind(kind).cloned().collect(),
        };
        keys.into_iter().map(|key| (key, String::new())).collect()
    }

    /// Returns the labels of a node as requirements, including its name.
    pub(super) fn node_requirements(&self, node: &NodeName) -> Arc<Requirements> {
        self.labels.get(node).cloned().unwrap_or_default()
    }

    /// The pods bound to a node.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        let keys = self.node_pods(node).keys.iter();
        keys.filter_map(|key| self.pods.get(key))
    }

    /// Returns whether pods on a node are being deleted and have not terminated.
    pub fn has_terminating_pods(&self, node: &str) -> bool {
        self.pods_on(node).any(|pod| pod.deleting.is_some() && !pod.is_terminal())
    }

    /// Sets `deletion_seen` of a pod that the API server has just listed: when the engine first saw
    /// the deletion, in the watch or in this listing.
    pub fn note_deletion(&self, listed: &mut Pod, now: Timestamp) {
        listed.deletion_seen = deletion_seen(self.pods.get(&listed.key), listed, now);
    }

    /// Returns the usage of the pods on a node.
    pub(super) fn node_usage(&self, node: &str) -> &NodeUsage {
        &self.node_pods(node).load
    }

    /// Returns the disruption totals of the pods on a node.
    pub(super) fn disruption_cost_of(&self, node: &str) -> &DisruptionCost {
        &self.node_pods(node).disruption_cost
    }

    fn node_pods(&self, node: &str) -> &NodePods {
        self.by_node.get(node).unwrap_or(&self.no_pods)
    }

    /// Returns the bound, active pods that use a PersistentVolumeClaim, by key.
    pub(super) fn users_of_claim(&self, claim: &ObjectKey) -> impl Iterator<Item = &PodKey> {
        self.by_claim.get(claim).into_iter().flatten()
    }

    /// Returns the keys of pending pods, including nominated ones.
    pub fn waiting_pods(&self) -> &BTreeSet<PodKey> {
        &self.waiting
    }

    /// Returns the pods without a scheduling result, with the time they were first seen.
    pub fn untried_pods(&self) -> impl Iterator<Item = (&Pod, Timestamp)> {
        let untried = self.untried.iter();
        untried.filter_map(|(key, since)| Some((self.pods.get(key)?, *since)))
    }

    /// Returns when a pod, except DaemonSet pods, was last observed to be added to or removed from
    /// a node.
    pub fn pods_changed_at(&self, node: &str) -> Option<Timestamp> {
        self.pods_changed.get(node).copied()
    }

    /// Returns names of missing Nodes to which pods are bound: a sign of an incomplete view.
    pub fn unknown_nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.by_node.keys().filter(|name| !self.nodes.contains_key(*name))
    }

    /// Removes data of deleted nodes.
    pub fn forget_gone_nodes(&mut self) {
        self.pods_changed.retain(|name, _| self.nodes.contains_key(name));
    }

    /// Removes the observed times of pod changes, if all objects were loaded together. The
    /// timestamps of the API server are used instead.
    pub fn forget_changes(&mut self) {
        self.pods_changed.clear();
        self.pods.change_each(|pod| pod.deletion_seen = None);
    }

    fn apply_pod(&mut self, mut pod: Pod, now: Timestamp) {
        let old = self.pods.remove(&pod.key);
        pod.deletion_seen = deletion_seen(old.as_ref(), &pod, now);
        if old.as_ref().is_none_or(|old| has_moved(old, &pod)) {
            for version in old.iter().chain([&pod]) {
                self.note_change(version, now);
            }
        }
        let recounts = old.as_ref().is_none_or(|old| changes_totals(old, &pod));
        if recounts {
            if let Some(old) = &old {
                self.count_pod(old, false);
            }
            self.count_pod(&pod, true);
        }
        if pod.is_waiting() {
            self.waiting.insert(pod.key.clone());
        } else {
            self.waiting.remove(&pod.key);
        }
        if pod.is_untried() {
            self.untried.entry(pod.key.clone()).or_insert(now);
        } else {
            self.untried.remove(&pod.key);
        }
        let sets = old.iter().chain([&pod]).filter(|_| recounts);
        let sets: Vec<ObjectKey> = sets.filter_map(set_of).collect();
        self.pods.insert(pod.key.clone(), pod);
        sets.iter().for_each(|set| self.update_requests(set));
    }

    /// Updates the requests of a DaemonSet from its newest pod. Admission may add requests that the
    /// template lacks, also to future pods. Source: spec/scheduling.md §2.9.
    fn update_requests(&mut self, key: &ObjectKey) {
        let newest = self.by_set.get(key).and_then(BTreeSet::last);
        let pod = newest.and_then(|(_, pod)| self.pods.get(pod));
        let pod_and_set = pod.zip(self.daemon_sets.get(key));
        let other = pod_and_set.filter(|(pod, set)| pod.requests != set.template.requests);
        let Some((pod, set)) = other else {
            self.asking.remove(key);
            return;
        };
        let mut asking = set.clone();
        asking.template.requests = pod.requests.clone();
        self.asking.insert(key.clone(), asking);
    }

    /// Returns the DaemonSets with the requests that their future pods will have.
    pub(super) fn expected_daemon_sets(&self) -> impl Iterator<Item = &DaemonSet> {
        let sets = self.daemon_sets.iter();
        sets.map(|(key, set)| self.asking.get(key).unwrap_or(set))
    }

    /// Records that a pod was added to its node or starts to terminate.
    fn note_change(&mut self, pod: &Pod, now: Timestamp) {
        if let Some(node) = pod.node.as_ref().filter(|_| pod.occupies_node()) {
            self.pods_changed.insert(node.clone(), now);
        }
    }

    /// Adds a pod to the totals, or removes it in the version in which it was added.
    fn count_pod(&mut self, pod: &Pod, comes: bool) {
        let Some(node) = &pod.node else { return };
        let pods = self.by_node.entry(node.clone()).or_default();
        match comes {
            true => pods.keys.insert(pod.key.clone()),
            false => pods.keys.remove(&pod.key),
        };
        pods.load.count_pod(pod, comes);
        pods.disruption_cost.count_pod(pod, comes);
        if pods.keys.is_empty() {
            self.by_node.remove(node);
        }
        self.bound_pods.count_pod(pod, comes);
        for claim in active_claim_keys(pod) {
            change_set(&mut self.by_claim, claim, pod.key.clone(), comes);
        }
        if let Some(set) = set_of(pod) {
            let newest_last = (pod.created, pod.key.clone());
            change_set(&mut self.by_set, set, newest_last, comes);
        }
    }
}

/// Adds an element to the set of a key, or removes it. Empty sets are removed.
fn change_set<K: Ord, V: Ord>(
    sets: &mut BTreeMap<K, BTreeSet<V>>,
    key: K,
    element: V,
    comes: bool,
) {
    if comes {
        sets.entry(key).or_default().insert(element);
    } else if let Some(set) = sets.get_mut(&key) {
        set.remove(&element);
        if set.is_empty() {
            sets.remove(&key);
        }
    }
}

/// Returns the keys of cluster-scoped objects with these names.
fn cluster_keys<'a>(
    names: impl Iterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>,
) -> Vec<ObjectKey> {
    names.map(|name| ObjectKey::new("", name.as_ref())).collect()
}

/// Returns the labels of a node as requirements. The node name replaces a missing host name. It is
/// not a label that a user could set.
pub(super) fn labels_of(node: &NodeName, labels: &Labels) -> Requirements {
    let mut requirements = Requirements::default();
    for (key, value) in labels.iter().filter(|(key, _)| *key != NODE_NAME) {
        requirements.add(key, Requirement::is_in([value.as_str()]));
    }
    let name = Requirement::is_in([node.as_str()]);
    if !labels.contains_key(HOSTNAME) {
        requirements.add(HOSTNAME, name.clone());
    }
    requirements.add(NODE_NAME, name);
    requirements
}

/// Returns the DaemonSet of an active pod.
fn set_of(pod: &Pod) -> Option<ObjectKey> {
    let owner = pod.owner.as_ref().filter(|_| pod.is_daemon() && !pod.is_terminal())?;
    Some(ObjectKey::new(pod.key.namespace.as_str(), owner.name.as_str()))
}

/// The volume claims that a pod uses until it terminates.
fn active_claim_keys(pod: &Pod) -> impl Iterator<Item = ObjectKey> {
    let names = pod.volume_claims.iter().filter(|_| !pod.is_terminal());
    names.map(|name| ObjectKey::new(pod.key.namespace.as_str(), name.as_str()))
}

/// Returns when the deletion of a pod was first seen with its current grace period. A second
/// deletion may shorten the period, which the kubelet then counts from this deletion.
fn deletion_seen(old: Option<&Pod>, pod: &Pod, now: Timestamp) -> Option<Timestamp> {
    pod.deleting?;
    let same = old.filter(|old| old.uid == pod.uid && old.gone_by == pod.gone_by);
    same.and_then(|old| old.deletion_seen).or(Some(now))
}

/// Returns whether a pod changed its node, or started to terminate or terminated.
fn has_moved(old: &Pod, new: &Pod) -> bool {
    old.node != new.node
        || old.is_terminal() != new.is_terminal()
        || old.deleting.is_some() != new.deleting.is_some()
}

/// Returns whether a change affects the totals. Most pod updates do not change the totals.
fn changes_totals(old: &Pod, new: &Pod) -> bool {
    has_moved(old, new)
        || old.requests != new.requests
        || old.created != new.created
        || old.labels != new.labels
        || old.owner != new.owner
        || old.host_ports != new.host_ports
        || old.volume_claims != new.volume_claims
        || old.anti_affinity != new.anti_affinity
        || old.annotations != new.annotations
        || old.priority != new.priority
        || old.local_volumes != new.local_volumes
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use jiff::Timestamp;
    use proptest::prelude::{Just, Strategy, any};
    use proptest::sample::select;
    use proptest::{collection, option, prop_assert_eq, proptest};

    use super::ObjectCache;
    use crate::model::affinity::PodTerm;
    use crate::model::id::ObjectKey;
    use crate::model::labels::{DO_NOT_DISRUPT, HOSTNAME, NODE_NAME};
    use crate::model::pod::{DaemonSet, Owner, Pod, PodPhase};
    use crate::model::quantity::Resources;
    use crate::model::watched_object::{ObjectKind, WatchedObject};
    use crate::state::disruption_cost::DisruptionCost;
    use crate::state::fixtures::{NOW, node};

    /// One of a few pods, in any state.
    fn any_pod() -> impl Strategy<Value = Pod> {
        let amount = || select(vec![0, 1, 100, -1, i64::MAX, i64::MIN]);
        let key = (select(vec!["a", "b"]), select(vec!["p", "q", "r", "s"]));
        let place = (
            option::of(select(vec!["n", "m"])),
            option::weighted(0.3, Just(Timestamp::UNIX_EPOCH)),
            select(vec![PodPhase::Running, PodPhase::Pending, PodPhase::Failed]),
            any::<bool>(),
        );
        let looks = (
            option::of(select(vec!["x", "y"])),
            collection::vec(select(vec!["zone", "host"]), 0..3),
            option::of(select(vec!["DaemonSet", "ReplicaSet"])),
        );
        let takes = (
            (amount(), amount()),
            option::of((select(vec!["gpu", "fpga"]), amount())),
            collection::btree_set(select(vec![80, 443]), 0..3),
            collection::vec(select(vec!["data", "logs"]), 0..3),
            option::of(select(vec!["true", "1h", "soon"])),
        );
        (key, place, looks, takes).prop_map(|(key, place, looks, takes)| {
            let term =
                |topology: &str| PodTerm { topology_key: topology.into(), ..PodTerm::default() };
            let owner = |kind: &str| Owner {
                kind: kind.into(),
                name: format!("{kind}-of-{}", key.1),
                uid: String::new(),
            };
            let ((cpu_milli, memory), extended, ports, claims, stays) = takes;
            let extended = extended.map(|(name, amount)| (name.to_owned(), amount));
            Pod {
                key: ObjectKey::new(key.0, key.1),
                node: place.0.map(Into::into),
                deleting: place.1,
                phase: place.2,
                unschedulable: place.3,
                labels: looks.0.map(|app| ("app".into(), app.into())).into_iter().collect(),
                anti_affinity: looks.1.into_iter().map(term).collect(),
                owner: looks.2.map(owner),
                requests: Resources {
                    cpu_milli,
                    memory,
                    pods: 1,
                    extended: extended.into_iter().collect(),
                    ..Resources::default()
                },
                host_ports: ports
                    .into_iter()
                    .map(|port| ("TCP".into(), String::new(), port))
                    .collect(),
                volume_claims: claims.into_iter().map(str::to_owned).collect(),
                annotations: stays
                    .map(|value| (DO_NOT_DISRUPT.to_owned(), value.to_owned()))
                    .into_iter()
                    .collect(),
                ..Pod::default()
            }
        })
    }

    /// An update of a pod that changes everything or a single field. `None` for its deletion.
    fn changed_pod(old: Option<&Pod>, what: u8, other: Pod) -> Option<Pod> {
        let old = old.cloned().unwrap_or_else(|| other.clone());
        Some(match what {
            0 => return None,
            1 => Pod { node: other.node, ..old },
            2 => Pod { labels: other.labels, ..old },
            3 => Pod { phase: other.phase, ..old },
            4 => Pod { deleting: other.deleting, ..old },
            5 => Pod { owner: other.owner, ..old },
            6 => Pod { requests: other.requests, ..old },
            7 => Pod { host_ports: other.host_ports, ..old },
            8 => Pod { volume_claims: other.volume_claims, ..old },
            9 => Pod { anti_affinity: other.anti_affinity, ..old },
            10 => Pod { unschedulable: other.unschedulable, ..old },
            11 => Pod { annotations: other.annotations, ..old },
            _ => other,
        })
    }

    /// The incremental counts must equal a full recount of all pods.
    fn check_counts(objects: &ObjectCache) {
        check_node_usage(objects);
        check_claim_users(objects);
        check_bound_pod_groups(objects);
        let waiting = objects.pods.values().filter(|pod| pod.is_waiting());
        assert!(objects.waiting_pods().iter().eq(waiting.map(|pod| &pod.key)));
    }

    fn live(objects: &ObjectCache) -> impl Iterator<Item = &Pod> {
        let pods = objects.pods.values();
        pods.filter(|pod| pod.node.is_some() && !pod.is_terminal())
    }

    fn check_node_usage(objects: &ObjectCache) {
        for name in ["n", "m"] {
            let on = |pod: &&Pod| pod.node.as_ref().is_some_and(|node| node.as_str() == name);
            assert!(objects.pods_on(name).eq(objects.pods.values().filter(on)));
            let here: Vec<&Pod> = live(objects).filter(on).collect();
            let sum = |of: &dyn Fn(&Resources) -> i64| {
                let sum: i128 = here.iter().map(|pod| i128::from(of(&pod.requests))).sum();
                sum.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
            };
            let load = objects.node_usage(name);
            let mut cost = DisruptionCost::default();
            here.iter().for_each(|pod| cost.count_pod(pod, true));
            assert_eq!(objects.disruption_cost_of(name), &cost);
            let requests = load.requests();
            for resource in ["cpu", "memory", "pods", "gpu", "fpga"] {
                assert_eq!(requests.get(resource), sum(&|asked| asked.get(resource)), "{resource}");
            }
            let ports = here.iter().flat_map(|pod| pod.host_ports.iter().cloned());
            assert_eq!(load.host_ports(), ports.collect());
            let claims = here.iter().flat_map(|pod| super::active_claim_keys(pod));
            assert!(load.volume_claims().eq(claims.collect::<BTreeSet<_>>().iter()));
            for pod in objects.pods.values() {
                let name = format!("DaemonSet-of-{}", pod.key.name);
                let set = ObjectKey::new(pod.key.namespace.as_str(), name);
                let mut bound = here.iter().filter(|bound_pod| bound_pod.key == pod.key);
                assert_eq!(
                    load.has_daemon(&set),
                    bound.any(|bound_pod| bound_pod.is_daemon()),
                    "{set}"
                );
            }
        }
    }

    fn check_claim_users(objects: &ObjectCache) {
        for (namespace, name) in [("a", "data"), ("a", "logs"), ("b", "data"), ("b", "logs")] {
            let claim = ObjectKey::new(namespace, name);
            let uses = |pod: &&Pod| {
                let mut names = pod.volume_claims.iter();
                pod.key.namespace == namespace && names.any(|mounted| mounted == name)
            };
            let users = live(objects).filter(uses).map(|pod| &pod.key);
            assert!(objects.users_of_claim(&claim).eq(users), "{claim}");
        }
    }

    fn check_bound_pod_groups(objects: &ObjectCache) {
        let mut residents = BTreeMap::new();
        for pod in live(objects) {
            let group = (&pod.key.namespace[..], &pod.labels, &pod.anti_affinity[..]);
            let home = (group, pod.deleting.is_some(), pod.node.as_ref());
            *residents.entry(home).or_insert(0) += 1;
        }
        let counted = objects.bound_pods.groups_without(&[]);
        assert!(counted.iter().all(|group| !group.nodes.is_empty()));
        let counted = counted.iter().flat_map(|bound_group| {
            let group = (bound_group.namespace, bound_group.labels, bound_group.anti_affinity);
            let home = move |(node, count)| ((group, bound_group.deleting, Some(node)), count);
            bound_group.nodes.iter().copied().map(home)
        });
        assert_eq!(counted.collect::<BTreeMap<_, _>>(), residents);
    }

    proptest! {
        #[test]
        fn counts_equal_a_full_recount(steps in collection::vec((0u8..16, any_pod()), 0..60)) {
            let mut objects = ObjectCache::default();
            for (what, other) in steps {
                let key = other.key.clone();
                match changed_pod(objects.pods.get(&key), what, other) {
                    Some(pod) => objects.apply(pod.into(), NOW),
                    None => objects.delete(ObjectKind::Pod, &key, NOW),
                }
                check_counts(&objects);
            }
            // No entries remain in the end.
            for key in objects.pods.keys().cloned().collect::<Vec<_>>() {
                objects.delete(ObjectKind::Pod, &key, NOW);
            }
            prop_assert_eq!(objects.by_node.len(), 0);
            prop_assert_eq!(objects.by_claim.len(), 0);
            prop_assert_eq!(objects.by_set.len(), 0);
            prop_assert_eq!(&objects.bound_pods, &super::BoundPods::default());
        }
    }

    #[test]
    fn bound_pod_groups_can_exclude_given_pods() {
        let mut objects = ObjectCache::default();
        for name in ["a", "b", "c"] {
            let node = if name == "c" { "m" } else { "n" };
            let pod = crate::state::fixtures::pod("default", name, node);
            objects.apply(pod.into(), NOW);
        }
        let count = |excluded: &[&str]| {
            let excluded: Vec<&Pod> = excluded
                .iter()
                .map(|name| &objects.pods[&ObjectKey::new("default", *name)])
                .collect();
            let groups = objects.bound_pods.groups_without(&excluded);
            let nodes = groups.iter().flat_map(|group| &group.nodes);
            let texts: Vec<String> = nodes.map(|(node, count)| format!("{node}{count}")).collect();
            texts.join(" ")
        };
        let cases: [(&[&str], &str); 4] =
            [(&[], "m1 n2"), (&["a"], "m1 n1"), (&["a", "b"], "m1"), (&["a", "b", "c"], "")];
        for (excluded, expect) in cases {
            assert_eq!(count(excluded), expect, "{excluded:?}");
        }
    }

    #[test]
    fn daemon_set_requests_follow_its_newest_pod() {
        let mut objects = ObjectCache::default();
        let key = ObjectKey::new("default", "agent");
        let set = |cpu_milli| {
            let mut set = DaemonSet { key: key.clone(), ..DaemonSet::default() };
            set.template.requests.cpu_milli = cpu_milli;
            WatchedObject::DaemonSet(Box::new(set))
        };
        let pod = |name: &str, created: i64, cpu_milli| {
            let mut pod = crate::state::fixtures::pod("default", name, "n");
            pod.owner =
                Some(Owner { kind: "DaemonSet".into(), name: "agent".into(), uid: String::new() });
            pod.created = Timestamp::from_second(created).ok();
            pod.requests.cpu_milli = cpu_milli;
            WatchedObject::Pod(Box::new(pod))
        };
        let cpu_requests = |objects: &ObjectCache| -> Vec<i64> {
            let all = objects.expected_daemon_sets();
            all.map(|set| set.template.requests.cpu_milli).collect()
        };
        let key_of = |name: &str| ObjectKey::new("default", name);
        objects.apply(pod("b", 1, 200), NOW);
        assert!(cpu_requests(&objects).is_empty());
        objects.apply(set(100), NOW);
        assert_eq!(cpu_requests(&objects), [200]);
        objects.apply(pod("a", 2, 300), NOW);
        assert_eq!(cpu_requests(&objects), [300]);
        objects.apply(pod("a", 2, 400), NOW);
        assert_eq!(cpu_requests(&objects), [400]);
        objects.delete(ObjectKind::Pod, &key_of("a"), NOW);
        assert_eq!(cpu_requests(&objects), [200]);
        objects.delete(ObjectKind::Pod, &key_of("b"), NOW);
        assert_eq!(cpu_requests(&objects), [100]);
        objects.apply(pod("c", 3, 500), NOW);
        objects.delete(ObjectKind::DaemonSet, &key, NOW);
        assert!(cpu_requests(&objects).is_empty());
        objects.apply(set(600), NOW);
        assert_eq!(cpu_requests(&objects), [500]);
    }

    #[test]
    fn node_requirements_follow_node_updates_and_deletion() {
        let mut objects = ObjectCache::default();
        let name = "n".into();
        let text = |objects: &ObjectCache, key: &str| {
            let labels = objects.node_requirements(&name);
            labels.get(key).map(ToString::to_string)
        };
        assert_eq!(text(&objects, NODE_NAME), None);
        let WatchedObject::Node(mut changed_node) = node("n") else { panic!("a node") };
        let n = || Some("in [n]".to_owned());
        // The host name label, the expected host name, and the expected node name. A label with the
        // key of the node name is ignored.
        let cases = [(None, n(), n()), (Some("host"), Some("in [host]".to_owned()), n())];
        for (host, host_name, node_name) in cases {
            changed_node.labels.insert(NODE_NAME.into(), "forged".into());
            changed_node.labels.extend(host.map(|host| (HOSTNAME.to_owned(), host.to_owned())));
            objects.apply(WatchedObject::Node(changed_node.clone()), NOW);
            assert_eq!(text(&objects, HOSTNAME), host_name);
            assert_eq!(text(&objects, NODE_NAME), node_name);
        }
        objects.delete(ObjectKind::Node, &ObjectKey::new("", "n"), NOW);
        assert_eq!(text(&objects, NODE_NAME), None);
    }
}
