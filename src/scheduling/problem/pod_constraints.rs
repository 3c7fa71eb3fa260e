//! Topology rules between pods, in ordinals: pod groups, topology keys and rules.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::affinity::{PodTerm, TopologySpread};
use crate::model::labels::{HOSTNAME, Labels};
use crate::model::selector::Selector;
use crate::scheduling::index::{GroupIndex, IndexVec, KeyIndex};

/// Required pod affinity: the domain of each key contains a pod of the group. The first pod may be
/// placed anywhere if it is a member of the group itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AffinityTerm {
    pub(crate) group: GroupIndex,
    pub(crate) keys: Vec<KeyIndex>,
}

/// Pod anti-affinity: the domain contains no pod of the group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AntiAffinityTerm {
    pub(crate) group: GroupIndex,
    pub(crate) key: KeyIndex,
    /// Whether the anti-affinity is required or preferred.
    pub(crate) is_hard: bool,
}

/// Topology spread of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SpreadConstraint {
    pub(crate) group: GroupIndex,
    pub(crate) key: KeyIndex,
    /// By how many pods a domain may exceed the domain with the fewest pods.
    pub(crate) skew: u32,
    /// If there are fewer domains than `minDomains`, the minimum count is zero.
    pub(crate) least: u32,
    /// Whether the selector is empty. kube-scheduler then treats the pod as selected but counts no
    /// pods (`countPodsMatchSelector`).
    pub(crate) is_vacant: bool,
    /// Whether only those nodes are included that match the node affinity of the pod.
    pub(crate) affinity: bool,
    /// Whether only those nodes are included whose taints the pod tolerates.
    pub(crate) taints: bool,
}

/// The topology rules of one kind of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodConstraints {
    pub(crate) near: Vec<AffinityTerm>,
    pub(crate) away: Vec<AntiAffinityTerm>,
    pub(crate) even: Vec<SpreadConstraint>,
}

impl PodConstraints {
    /// Adds required pod affinity and the remaining preferences.
    pub(crate) fn add_affinity(
        &mut self,
        required: &[PodTerm],
        preferred: &[&PodTerm],
        groups: &mut PodGroups,
    ) {
        // All required terms form one group: kube-scheduler counts pods that match all of them.
        let required: Vec<&PodTerm> = required.iter().collect();
        let preferred = preferred.iter().map(|term| vec![*term]);
        let all = [required].into_iter().chain(preferred);
        for terms in all.filter(|terms| !terms.is_empty()) {
            let keys = terms.iter().map(|term| &term.topology_key);
            let mut keys: Vec<KeyIndex> = keys.map(|key| groups.key_ordinal(key)).collect();
            keys.sort_unstable();
            keys.dedup();
            self.near.push(AffinityTerm { group: groups.of_terms(&terms), keys });
        }
    }

    /// Adds required pod anti-affinity and the remaining preferences.
    pub(crate) fn add_anti_affinity(
        &mut self,
        required: &[PodTerm],
        preferred: &[&PodTerm],
        groups: &mut PodGroups,
    ) {
        let required = required.iter().map(|term| (term, true));
        for (term, is_hard) in required.chain(preferred.iter().map(|term| (*term, false))) {
            self.away.push(AntiAffinityTerm {
                group: groups.of_terms(&[term]),
                key: groups.key_ordinal(&term.topology_key),
                is_hard,
            });
        }
    }

    /// Adds topology spread of pods in a namespace.
    pub(crate) fn add_spread<'s>(
        &mut self,
        spread: impl Iterator<Item = &'s TopologySpread>,
        namespace: &str,
        groups: &mut PodGroups,
    ) {
        for spread in spread {
            let selector = spread.selector.as_ref();
            let non_empty = selector.filter(|selector| !selector.expressions().is_empty());
            self.even.push(SpreadConstraint {
                group: groups.of_selector(non_empty, namespace),
                is_vacant: selector.is_some() && non_empty.is_none(),
                key: groups.key_ordinal(&spread.topology_key),
                skew: spread.max_skew,
                least: spread.min_domains,
                affinity: spread.honors_affinity,
                taints: spread.honors_taints,
            });
        }
    }

    /// Returns the groups that the topology rules select.
    pub(crate) fn selected_groups(&self) -> impl Iterator<Item = GroupIndex> {
        let near = self.near.iter().map(|term| term.group);
        let away = self.away.iter().map(|term| term.group);
        near.chain(away).chain(self.even.iter().map(|constraint| constraint.group))
    }

    /// Returns whether the kind has no topology rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.near.is_empty() && self.away.is_empty() && self.even.is_empty()
    }
}

/// Selects pods that match every term, on any node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodMatcher(Vec<PodTerm>);

impl PodMatcher {
    fn from_terms<'t>(terms: impl IntoIterator<Item = &'t PodTerm>) -> Self {
        let mut terms: Vec<PodTerm> = terms
            .into_iter()
            .map(|term| PodTerm { topology_key: String::new(), ..term.clone() })
            .collect();
        terms.sort_unstable();
        terms.dedup();
        Self(terms)
    }

    /// Returns a label that all selected pods have, with the possible values of the label.
    fn common_label(&self) -> Option<(&str, &BTreeSet<String>)> {
        let selector = self.0.first()?.selector.as_ref()?;
        let mut expressions = selector.expressions().iter();
        expressions.find_map(|(key, requirement)| {
            let values = requirement.values();
            Some((&key[..], values.filter(|_| !requirement.allows_absence())?))
        })
    }
}

/// Pod groups and topology keys of the rules.
#[derive(Debug)]
pub(crate) struct PodGroups {
    known: BTreeMap<PodMatcher, GroupIndex>,
    all: IndexVec<GroupIndex, PodMatcher>,
    /// Groups whose pods all have a label, by its key and value.
    by_label: BTreeMap<String, BTreeMap<String, Vec<GroupIndex>>>,
    /// All other groups.
    unlabelled: Vec<GroupIndex>,
    /// Topology keys; the first is the host name.
    pub(crate) keys: IndexVec<KeyIndex, String>,
}

/// For each group, whether the given pods are members.
pub(crate) type GroupMembership = IndexVec<GroupIndex, bool>;

/// Ordinal of the host name key.
pub(crate) const HOST: KeyIndex = KeyIndex(0);

impl Default for PodGroups {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            all: IndexVec::default(),
            by_label: BTreeMap::new(),
            unlabelled: Vec::new(),
            keys: vec![HOSTNAME.to_owned()].into(),
        }
    }
}

impl PodGroups {
    /// Returns the ordinal of a topology key.
    pub(crate) fn key_ordinal(&mut self, key: &str) -> KeyIndex {
        self.known_key(key).unwrap_or_else(|| self.keys.push_and_get_key(key.to_owned()))
    }

    /// Returns the index of a topology key, if it is known.
    pub(crate) fn known_key(&self, key: &str) -> Option<KeyIndex> {
        self.keys.position(|known| known == key)
    }

    /// Returns the group of pods that all these terms match.
    pub(crate) fn of_terms(&mut self, terms: &[&PodTerm]) -> GroupIndex {
        self.intern(PodMatcher::from_terms(terms.iter().copied()))
    }

    /// Returns the group of pods of a namespace that a selector matches.
    fn of_selector(&mut self, selector: Option<&Selector>, namespace: &str) -> GroupIndex {
        self.intern(PodMatcher::from_terms([&PodTerm {
            selector: selector.cloned(),
            namespaces: BTreeSet::from([namespace.to_owned()]),
            ..PodTerm::default()
        }]))
    }

    fn intern(&mut self, audience: PodMatcher) -> GroupIndex {
        if let Some(known) = self.known.get(&audience) {
            return *known;
        }
        let group = self.all.push_and_get_key(audience.clone());
        match audience.common_label() {
            Some((key, values)) => {
                let of_key = self.by_label.entry(key.to_owned()).or_default();
                for value in values {
                    of_key.entry(value.clone()).or_default().push(group);
                }
            }
            None => self.unlabelled.push(group),
        }
        self.known.insert(audience, group);
        group
    }

    /// Returns the group and key of a term, if they exist.
    pub(crate) fn group_and_key(&self, term: &PodTerm) -> Option<(GroupIndex, KeyIndex)> {
        let key = self.known_key(&term.topology_key)?;
        let group = self.known.get(&PodMatcher::from_terms([term]))?;
        Some((*group, key))
    }

    /// Returns the group membership of pods with these labels in a namespace.
    pub(crate) fn membership_of(
        &self,
        namespace: &str,
        labels: &Labels,
        namespaces: &BTreeMap<&str, &Labels>,
    ) -> GroupMembership {
        let of_namespace = namespaces.get(namespace).copied();
        // There may be thousands of groups, but a pod is a member of few.
        let labelled = labels.iter().filter_map(|(key, value)| self.by_label.get(key)?.get(value));
        let mut membership: GroupMembership = vec![false; self.all.len()].into();
        for group in labelled.flatten().chain(&self.unlabelled).filter(|group| {
            let mut terms = self.all[**group].0.iter();
            terms.all(|term| term.matches(namespace, of_namespace, labels))
        }) {
            membership[*group] = true;
        }
        membership
    }
}
