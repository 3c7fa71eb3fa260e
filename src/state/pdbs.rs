//! Finds the PodDisruptionBudgets that currently block the eviction of a pod.
//!
//! For one pod, the PodDisruptionBudgets of its namespace are checked. For all pods, distinct label
//! sets are checked instead, which are far fewer, each against few PodDisruptionBudgets.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::id::{NodeName, ObjectKey};
use crate::model::labels::Labels;
use crate::model::pdb::Pdb;
use crate::model::pod::Pod;
use crate::state::object_cache::ObjectCache;

/// The PodDisruptionBudgets that may block the eviction of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PdbMatch<'a> {
    /// Exactly one PodDisruptionBudget.
    One(&'a Pdb),
    /// More than one PodDisruptionBudget: the eviction API rejects such a pod.
    Many(&'a Pdb, &'a Pdb),
}

impl<'a> PdbMatch<'a> {
    fn from_pdbs(mut budgets: impl Iterator<Item = &'a Pdb>) -> Option<Self> {
        let first = budgets.next()?;
        Some(match budgets.next() {
            Some(second) => Self::Many(first, second),
            None => Self::One(first),
        })
    }

    /// Returns whether these PodDisruptionBudgets block the eviction of a pod now.
    pub(super) fn blocks_eviction(self, pod: &Pod) -> bool {
        match self {
            Self::One(pdb) => pdb.blocks_eviction(pod),
            Self::Many(..) => true,
        }
    }
}

impl ObjectCache {
    /// Returns the PodDisruptionBudgets of a pod, if any.
    pub(super) fn pdb_match(&self, pod: &Pod) -> Option<PdbMatch<'_>> {
        let budgets = budgets_in(&self.pdbs, &pod.key.namespace);
        PdbMatch::from_pdbs(budgets.filter(|pdb| pdb.covers_pod(pod)))
    }

    /// Returns whether PodDisruptionBudgets block the eviction of a pod now.
    pub fn blocks_eviction(&self, pod: &Pod) -> bool {
        self.pdb_match(pod).is_some_and(|cover| cover.blocks_eviction(pod))
    }

    /// Returns whether PodDisruptionBudgets permanently block the eviction of a pod.
    pub(super) fn is_permanently_blocked(&self, pod: &Pod, now: Timestamp) -> bool {
        pod.is_evictable(now) && self.blocks_while(pod, Pdb::blocks_permanently)
    }

    /// Returns whether the eviction of a pod is blocked until a user changes its annotations, its
    /// PodDisruptionBudgets or its replicas.
    pub fn is_stuck(&self, pod: &Pod, now: Timestamp) -> bool {
        pod.is_active()
            && pod.holds_drain(now)
            && (pod.active_protection(now).is_some_and(|protection| protection.lasts.is_none())
                || self.blocks_while(pod, Pdb::requires_all_pods))
    }

    fn blocks_while(&self, pod: &Pod, lasts: impl Fn(&Pdb) -> bool) -> bool {
        self.pdb_match(pod).is_some_and(|cover| match cover {
            PdbMatch::One(pdb) => lasts(pdb) && pdb.blocks_eviction(pod),
            PdbMatch::Many(..) => true,
        })
    }
}

fn budgets_in<'a>(
    pdbs: &'a BTreeMap<ObjectKey, Pdb>,
    namespace: &str,
) -> impl Iterator<Item = &'a Pdb> {
    let first = ObjectKey::new(namespace, "");
    pdbs.range(first.clone()..)
        .take_while(move |(key, _)| key.namespace == first.namespace)
        .map(|(_, pdb)| pdb)
}

/// All PodDisruptionBudgets that currently block evictions, by namespace and labels of the pods,
/// and the nodes of these pods.
#[derive(Clone, Debug, Default)]
pub(super) struct PdbIndex<'a> {
    covers: BTreeMap<(&'a str, &'a Labels), PdbMatch<'a>>,
    nodes: BTreeSet<&'a NodeName>,
}

impl<'a> PdbIndex<'a> {
    /// Builds the index from the current objects.
    pub(super) fn new(objects: &'a ObjectCache) -> Self {
        let mut pdb_index = Self::default();
        let mut pdbs = objects.pdbs.values().peekable();
        while let Some(first) = pdbs.peek().copied() {
            let namespace = first.key.namespace.as_str();
            let budgets = std::iter::from_fn(|| pdbs.next_if(|pdb| pdb.key.namespace == namespace));
            let pdbs_by_label = NamespacePdbs::new(budgets);
            for (labels, nodes) in objects.bound_pods.nodes_by_labels(namespace) {
                if let Some(cover) = pdbs_by_label.pdb_match(labels).filter(|cover| match cover {
                    PdbMatch::One(pdb) => pdb.allows_no_eviction(),
                    PdbMatch::Many(..) => true,
                }) {
                    pdb_index.covers.insert((namespace, labels), cover);
                    pdb_index.nodes.extend(nodes);
                }
            }
        }
        pdb_index
    }

    /// Returns whether the eviction of a pod on a node may be blocked.
    pub(super) fn may_block_eviction_on(&self, node: &NodeName) -> bool {
        self.nodes.contains(node)
    }

    /// Returns the PodDisruptionBudgets that may block a pod, if any.
    pub(super) fn pdb_match(&self, pod: &'a Pod) -> Option<PdbMatch<'a>> {
        let key = (pod.key.namespace.as_str(), &pod.labels);
        self.covers.get(&key).copied()
    }
}

/// The PodDisruptionBudgets of one namespace, indexed by a label that its pods must have, if
/// possible.
#[derive(Default)]
struct NamespacePdbs<'a> {
    by_label: BTreeMap<(&'a str, &'a str), Vec<&'a Pdb>>,
    others: Vec<&'a Pdb>,
}

impl<'a> NamespacePdbs<'a> {
    fn new(budgets: impl Iterator<Item = &'a Pdb>) -> Self {
        let mut index = Self::default();
        for pdb in budgets {
            let Some(selector) = &pdb.selector else {
                continue;
            };
            let mut single = selector.expressions().iter().filter_map(|(key, requirement)| {
                let mut values = requirement.values()?.iter();
                let value = values.next()?;
                values.next().is_none().then_some((key.as_str(), value.as_str()))
            });
            match single.next() {
                Some(label) => index.by_label.entry(label).or_default().push(pdb),
                None => index.others.push(pdb),
            }
        }
        index
    }

    fn pdb_match(&self, labels: &Labels) -> Option<PdbMatch<'a>> {
        let by_label = labels
            .iter()
            .filter_map(|(key, value)| self.by_label.get(&(key.as_str(), value.as_str())));
        let pdbs = by_label.flatten().chain(&self.others).copied();
        PdbMatch::from_pdbs(pdbs.filter(|pdb| {
            let selector = pdb.selector.as_ref();
            selector.is_some_and(|selector| selector.matches(labels))
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, any, proptest};
    use proptest::sample::select;
    use proptest::{collection, prop_assert, prop_assert_eq};

    use super::PdbIndex;
    use crate::model::id::{NodeName, ObjectKey};
    use crate::model::labels::Labels;
    use crate::model::pdb::Pdb;
    use crate::model::pod::Pod;
    use crate::model::requirement::Requirement;
    use crate::model::selector::Selector;
    use crate::model::watched_object::WatchedObject;
    use crate::state::fixtures::{NOW, pod};
    use crate::state::object_cache::ObjectCache;

    fn any_selector() -> impl Strategy<Value = Option<Selector>> {
        let value = || select(vec!["a", "b"]);
        let expression = (select(vec!["app", "tier"]), value(), value(), 0..4).prop_map(
            |(key, one, other, kind)| {
                let requirement = match kind {
                    0 => Requirement::is_in([one]),
                    1 => Requirement::is_in([one, other]),
                    2 => Requirement::not_in([one]),
                    _ => Requirement::exists(),
                };
                (key.to_owned(), requirement)
            },
        );
        let some = collection::vec(expression, 0..3).prop_map(|all| Some(Selector::new(all)));
        (some, 0..10).prop_map(|(some, none)| some.filter(|_| none > 0))
    }

    fn any_pdb() -> impl Strategy<Value = Pdb> {
        let key = (select(vec!["x", "y"]), select(vec!["1", "2", "3"]));
        (key, any_selector(), 0i64..2).prop_map(|(key, selector, allowed)| Pdb {
            key: ObjectKey::new(key.0, key.1),
            selector,
            disruptions_allowed: allowed,
            ..Pdb::default()
        })
    }

    fn any_pod() -> impl Strategy<Value = Pod> {
        let value = || select(vec!["", "a", "b", "c"]);
        let place = (select(vec!["x", "y"]), select(vec!["n", "m"]), 0..40);
        (place, value(), value(), any::<bool>()).prop_map(|(place, app, tier, ends)| {
            let mut pod = pod(place.0, &format!("p{}", place.2), place.1);
            let pairs = [("app", app), ("tier", tier)].into_iter();
            let pairs = pairs.filter(|(_, value)| !value.is_empty());
            pod.labels =
                pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<Labels>();
            pod.deleting = ends.then_some(NOW);
            pod
        })
    }

    proptest! {
        #[test]
        fn pdb_index_agrees_with_the_lookup_of_each_pod(
            pdbs in collection::vec(any_pdb(), 0..7),
            pods in collection::vec(any_pod(), 0..20),
        ) {
            let mut objects = ObjectCache::default();
            for pdb in pdbs {
                objects.apply(WatchedObject::Pdb(pdb), NOW);
            }
            for pod in pods {
                objects.apply(pod.into(), NOW);
            }
            let pdb_index = PdbIndex::new(&objects);
            for pod in objects.pods.values() {
                let covering = objects.pdb_match(pod).filter(|cover| cover.blocks_eviction(pod));
                let found = pdb_index.pdb_match(pod).filter(|cover| cover.blocks_eviction(pod));
                prop_assert_eq!(found.is_some(), covering.is_some(), "{:?}", pod.key);
                let node: NodeName = pod.node.clone().expect("it is bound");
                prop_assert!(covering.is_none() || pdb_index.may_block_eviction_on(&node));
            }
        }
    }
}
