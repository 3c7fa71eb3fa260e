//! Bound pods, grouped and counted by the properties that topology rules use.

use std::collections::BTreeMap;

use crate::model::affinity::PodTerm;
use crate::model::id::NodeName;
use crate::model::labels::Labels;
use crate::model::pod::Pod;
use crate::state::snapshot::BoundPodGroup;

/// Properties of pods that topology rules use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodGroupKey {
    namespace: String,
    labels: Labels,
    anti_affinity: Vec<PodTerm>,
    deleting: bool,
}

impl PodGroupKey {
    fn from_pod(pod: &Pod) -> Self {
        Self {
            namespace: pod.key.namespace.clone(),
            labels: pod.labels.clone(),
            anti_affinity: pod.anti_affinity.clone(),
            deleting: pod.deleting.is_some(),
        }
    }
}

/// Returns the node of a bound, active pod. Only such pods are counted, as in kube-scheduler.
fn counted_node_of(pod: &Pod) -> Option<&NodeName> {
    pod.node.as_ref().filter(|_| !pod.is_terminal())
}

/// Increments the count of a key if `comes`, otherwise decrements it. A key with the count zero is
/// removed.
pub(super) fn change_count<K: Clone + Ord>(counts: &mut BTreeMap<K, u32>, key: &K, comes: bool) {
    match (counts.get_mut(key), comes) {
        (Some(uses), true) => *uses = uses.saturating_add(1),
        (None, true) => drop(counts.insert(key.clone(), 1)),
        (Some(uses), false) if *uses > 1 => *uses -= 1,
        (_, false) => drop(counts.remove(key)),
    }
}

/// Bound, active pods by group and node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BoundPods {
    groups: BTreeMap<PodGroupKey, BTreeMap<NodeName, u32>>,
}

impl BoundPods {
    /// Adds a pod to the counts, or removes it with the same properties with which it was added.
    pub(super) fn count_pod(&mut self, pod: &Pod, comes: bool) {
        let Some(node) = counted_node_of(pod) else {
            return;
        };
        let group = PodGroupKey::from_pod(pod);
        if comes {
            change_count(self.groups.entry(group).or_default(), node, true);
        } else if let Some(nodes) = self.groups.get_mut(&group) {
            change_count(nodes, node, false);
            if nodes.is_empty() {
                self.groups.remove(&group);
            }
        }
    }

    /// Returns the label sets of the pods of one namespace and the nodes of these pods. A label set
    /// can occur several times.
    pub(super) fn nodes_by_labels<'a>(
        &'a self,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a Labels, impl Iterator<Item = &'a NodeName>)> {
        let first = PodGroupKey {
            namespace: namespace.to_owned(),
            labels: Labels::new(),
            anti_affinity: Vec::new(),
            deleting: false,
        };
        self.groups
            .range(first.clone()..)
            .take_while(move |(group, _)| group.namespace == first.namespace)
            .map(|(group, nodes)| (&group.labels, nodes.keys()))
    }

    /// Returns all groups with their nodes, in a fixed order, without the given pods.
    pub(super) fn groups_without(&self, but: &[&Pod]) -> Vec<BoundPodGroup<'_>> {
        let mut absent: BTreeMap<PodGroupKey, BTreeMap<&NodeName, u32>> = BTreeMap::new();
        for (pod, node) in but.iter().filter_map(|pod| Some((pod, counted_node_of(pod)?))) {
            let nodes = absent.entry(PodGroupKey::from_pod(pod)).or_default();
            *nodes.entry(node).or_insert(0) += 1;
        }
        self.groups
            .iter()
            .filter_map(|(group, counts)| -> Option<BoundPodGroup<'_>> {
                let (group, counts): (&PodGroupKey, &BTreeMap<NodeName, u32>) = (group, counts);
                let mut nodes: Vec<(&NodeName, u32)> =
                    counts.iter().map(|(node, count)| (node, *count)).collect();
                if let Some(absent) = absent.get(group) {
                    for (node, count) in &mut nodes {
                        *count = count.saturating_sub(absent.get(node).copied().unwrap_or(0));
                    }
                    nodes.retain(|(_, count)| *count > 0);
                }
                (!nodes.is_empty()).then_some(BoundPodGroup {
                    namespace: &group.namespace,
                    labels: &group.labels,
                    anti_affinity: &group.anti_affinity,
                    deleting: group.deleting,
                    nodes,
                })
            })
            .collect()
    }
}
