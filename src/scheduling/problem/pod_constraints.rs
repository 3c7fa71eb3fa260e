//! What pods ask of each other's places, in ordinals: groups of pods, topology keys, and rules.
//! It must not know where anybody is, nor which pods are of a group.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::affinity::{PodTerm, TopologySpread};
use crate::model::labels::{HOSTNAME, Labels};
use crate::model::selector::Selector;

/// Pods must be in a place where there is a pod of a group; places by each of these keys.
/// The first of them all may start anywhere if it is of the group itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AffinityTerm {
    pub(crate) group: usize,
    pub(crate) keys: Vec<usize>,
}

/// Pods must not be in a place where there is a pod of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AntiAffinityTerm {
    pub(crate) group: usize,
    pub(crate) key: usize,
    /// Whether it must hold or is a wish.
    pub(crate) is_hard: bool,
}

/// The pods of a group are spread over places.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SpreadConstraint {
    pub(crate) group: usize,
    pub(crate) key: usize,
    /// By how many a place may lead the emptiest.
    pub(crate) skew: u32,
    /// With fewer places the emptiest counts as having none.
    pub(crate) least: u32,
    /// Whether the selector is empty. The scheduler takes the pod itself for selected, and yet
    /// counts nobody (`countPodsMatchSelector`).
    pub(crate) is_vacant: bool,
    /// Whether only nodes that the pod's labels allow are places.
    pub(crate) affinity: bool,
    /// Whether only nodes whose taints the pod tolerates are places.
    pub(crate) taints: bool,
}

/// All that one kind of pods asks of the others' places.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodConstraints {
    pub(crate) near: Vec<AffinityTerm>,
    pub(crate) away: Vec<AntiAffinityTerm>,
    pub(crate) even: Vec<SpreadConstraint>,
}

impl PodConstraints {
    /// The rules of required terms and of the wishes that are kept.
    pub(crate) fn new<'s>(
        (affinity, near): (&[PodTerm], &[&PodTerm]),
        (anti_affinity, away): (&[PodTerm], &[&PodTerm]),
        (spread, namespace): (impl Iterator<Item = &'s TopologySpread>, &str),
        groups: &mut PodGroups,
    ) -> Self {
        let mut rules = Self::default();
        // All required terms speak of one group: the scheduler counts pods that match them all.
        let required: Vec<&PodTerm> = affinity.iter().collect();
        let wished = near.iter().map(|term| vec![*term]);
        for terms in [required]
            .into_iter()
            .chain(wished)
            .filter(|terms| !terms.is_empty())
        {
            let keys = terms.iter().map(|term| groups.key(&term.topology_key));
            let mut keys: Vec<usize> = keys.collect();
            keys.sort_unstable();
            keys.dedup();
            rules.near.push(AffinityTerm {
                group: groups.of_terms(&terms),
                keys,
            });
        }
        let required = anti_affinity.iter().map(|term| (term, true));
        for (term, is_hard) in required.chain(away.iter().map(|term| (*term, false))) {
            rules.away.push(AntiAffinityTerm {
                group: groups.of_terms(&[term]),
                key: groups.key(&term.topology_key),
                is_hard,
            });
        }
        for own in spread {
            let selector = own.selector.as_ref();
            let some = selector.filter(|own| !own.expressions().is_empty());
            rules.even.push(SpreadConstraint {
                group: groups.of_selector(some, namespace),
                is_vacant: selector.is_some() && some.is_none(),
                key: groups.key(&own.topology_key),
                skew: own.max_skew,
                least: own.min_domains,
                affinity: own.honors_affinity,
                taints: own.honors_taints,
            });
        }
        rules
    }

    /// The groups that it speaks of.
    pub(crate) fn groups(&self) -> impl Iterator<Item = usize> {
        let near = self.near.iter().map(|own| own.group);
        let away = self.away.iter().map(|own| own.group);
        near.chain(away)
            .chain(self.even.iter().map(|own| own.group))
    }

    /// Whether it asks for nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.near.is_empty() && self.away.is_empty() && self.even.is_empty()
    }
}

/// Which pods are meant: all that every one of these matches, wherever they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodMatcher(Vec<PodTerm>);

impl PodMatcher {
    fn of<'t>(terms: impl IntoIterator<Item = &'t PodTerm>) -> Self {
        let anywhere = |term: &PodTerm| PodTerm {
            topology_key: String::new(),
            ..term.clone()
        };
        let mut terms: Vec<PodTerm> = terms.into_iter().map(anywhere).collect();
        terms.sort_unstable();
        terms.dedup();
        Self(terms)
    }

    /// A label that all pods of the audience have, with the values it may be one of.
    fn anchor(&self) -> Option<(&str, &BTreeSet<String>)> {
        let selector = self.0.first()?.selector.as_ref()?;
        let mut expressions = selector.expressions().iter();
        expressions.find_map(|(key, own)| {
            let values = own.values().filter(|_| !own.allows_absence())?;
            Some((&key[..], values))
        })
    }
}

/// The groups that rules speak of, and the keys of places.
#[derive(Debug)]
pub(crate) struct PodGroups {
    known: BTreeMap<PodMatcher, usize>,
    all: Vec<PodMatcher>,
    /// The groups whose pods all have a certain label, by its key and each value.
    by_label: BTreeMap<String, BTreeMap<String, Vec<usize>>>,
    /// All other groups.
    unlabelled: Vec<usize>,
    /// Topology keys; the first is the host's name.
    pub(crate) keys: Vec<String>,
}

/// The ordinal of the key whose places are hosts.
pub(crate) const HOST: usize = 0;

impl Default for PodGroups {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            all: Vec::new(),
            by_label: BTreeMap::new(),
            unlabelled: Vec::new(),
            keys: vec![HOSTNAME.to_owned()],
        }
    }
}

impl PodGroups {
    /// The ordinal of a topology key.
    pub(crate) fn key(&mut self, key: &str) -> usize {
        let known = self.keys.iter().position(|own| own == key);
        known.unwrap_or_else(|| {
            self.keys.push(key.to_owned());
            self.keys.len() - 1
        })
    }

    /// The group of pods that all these terms match.
    pub(crate) fn of_terms(&mut self, terms: &[&PodTerm]) -> usize {
        self.intern(PodMatcher::of(terms.iter().copied()))
    }

    /// The group of pods of a namespace that a selector matches.
    fn of_selector(&mut self, selector: Option<&Selector>, namespace: &str) -> usize {
        self.intern(PodMatcher::of([&PodTerm {
            selector: selector.cloned(),
            namespaces: BTreeSet::from([namespace.to_owned()]),
            ..PodTerm::default()
        }]))
    }

    fn intern(&mut self, audience: PodMatcher) -> usize {
        if let Some(known) = self.known.get(&audience) {
            return *known;
        }
        self.known.insert(audience.clone(), self.all.len());
        let group = self.all.len();
        match audience.anchor() {
            Some((key, values)) => {
                let of_key = self.by_label.entry(key.to_owned()).or_default();
                for value in values {
                    of_key.entry(value.clone()).or_default().push(group);
                }
            }
            None => self.unlabelled.push(group),
        }
        self.all.push(audience);
        self.all.len() - 1
    }

    /// The group of a resident's term, if any pending pod's term or it itself made one.
    fn find(&self, term: &PodTerm) -> Option<usize> {
        self.known.get(&PodMatcher::of([term])).copied()
    }

    /// The group and key of a term, if any pod's term or it itself made them.
    pub(crate) fn place_of(&self, term: &PodTerm) -> Option<(usize, usize)> {
        let key = self.keys.iter().position(|key| *key == term.topology_key)?;
        Some((self.find(term)?, key))
    }

    /// Whether pods of these labels in a namespace are of a group, group by group.
    pub(crate) fn of(
        &self,
        namespace: &str,
        labels: &Labels,
        namespaces: &BTreeMap<&str, &Labels>,
    ) -> Vec<bool> {
        let of_namespace = namespaces.get(namespace).copied();
        let matches = |group: &&usize| {
            let mut terms = self.all[**group].0.iter();
            terms.all(|term| term.matches(namespace, of_namespace, labels))
        };
        // There may be thousands of groups, and pods are of a few.
        let labelled = labels
            .iter()
            .filter_map(|(key, value)| self.by_label.get(key)?.get(value));
        let mut of = vec![false; self.all.len()];
        for group in labelled.flatten().chain(&self.unlabelled).filter(matches) {
            of[*group] = true;
        }
        of
    }
}
