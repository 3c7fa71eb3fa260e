//! DaemonSet pods that interact with topology rules of pending pods, and the resulting constraints
//! on the DaemonSet pods of a node.

use std::collections::BTreeSet;

use crate::model::affinity::PodTerm;
use crate::model::id::ObjectKey;
use crate::model::labels::{HOSTNAME, NODE_NAME, is_well_known};
use crate::model::pod::{DaemonSet, Pod};
use crate::model::pool::Pool;
use crate::model::requirement::{Requirement, Requirements};
use crate::scheduling::index::{
    ConstraintsIndex, DaemonIndex, GroupIndex, IndexVec, KeyIndex, SignatureIndex,
};
use crate::scheduling::problem::pod_constraints::{GroupMembership, PodConstraints, PodGroups};
use crate::state::snapshot::Snapshot;

/// Maximum number of DaemonSets for which pods get alternatives without them.
const EVADED_MAX: usize = 4;

/// Maximum number of alternatives per DaemonSet, one bit each.
const WAYS_MAX: usize = 64;

/// A host port: protocol, address (empty for all) and number.
pub(crate) type HostPort = (String, String, u16);

/// A DaemonSet that interacts with topology rules.
#[derive(Debug)]
struct ConstrainedDaemon<'a> {
    set: &'a DaemonSet,
    /// Group membership of the pods of the DaemonSet.
    membership: GroupMembership,
    /// Groups against which the DaemonSet has anti-affinity, with the topology key.
    away: Vec<(GroupIndex, KeyIndex)>,
    /// Labels that the DaemonSet requires and that pools set, by alternative. Empty if there are
    /// too many alternatives.
    asks: Vec<Vec<(String, Requirement)>>,
    /// Topology keys, except the host name, of the DaemonSet's anti-affinity against existing pods.
    far: BTreeSet<&'a str>,
}

/// The constrained DaemonSets, by key. Empty if no rule selects any.
#[derive(Debug, Default)]
pub(crate) struct ConstrainedDaemons<'a>(IndexVec<DaemonIndex, ConstrainedDaemon<'a>>);

/// Whether a possible DaemonSet pod runs on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Presence {
    No,
    /// The DaemonSet pod runs if the labels that pools leave open have the required values.
    Labelled,
    Yes,
}

impl Presence {
    /// Returns `Yes` if the condition holds, otherwise `No`.
    pub(crate) fn from_bool(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// A constrained DaemonSet on the nodes of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DaemonOnType {
    /// Index of the DaemonSet.
    pub(crate) agent: DaemonIndex,
    /// Whether the DaemonSet runs on nodes of the type.
    pub(crate) sure: Presence,
    /// Alternative node requirements with which the DaemonSet may run there, one bit each.
    pub(crate) ways: u64,
    /// Alternatives with which it runs there if open labels have the required values.
    pub(crate) labelled: u64,
}

/// Requirements of pods on the DaemonSet pods of their node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DaemonRequirements {
    /// DaemonSets that must not run on a node with a label of this key.
    pub(crate) away: Vec<(DaemonIndex, String)>,
    /// For each entry, one of these DaemonSets must run on the node, and the node must have these
    /// labels.
    pub(crate) beside: Vec<(Vec<DaemonIndex>, Vec<String>)>,
}

impl<'a> ConstrainedDaemons<'a> {
    /// Returns the DaemonSets of a snapshot that interact with these groups and rules.
    pub(crate) fn new(
        snapshot: &Snapshot<'a>,
        groups: &PodGroups,
        signatures: &IndexVec<SignatureIndex, GroupMembership>,
        rules: &IndexVec<ConstraintsIndex, PodConstraints>,
        clashes: impl Fn(&BTreeSet<HostPort>) -> bool,
    ) -> Self {
        let selected: BTreeSet<GroupIndex> =
            rules.iter().flat_map(PodConstraints::selected_groups).collect();
        let mut all: Vec<ConstrainedDaemon<'a>> = snapshot
            .daemon_sets
            .iter()
            .filter_map(|set| {
                let pod = &set.template;
                let membership =
                    groups.membership_of(&set.key.namespace, &pod.labels, &snapshot.namespaces);
                let away: Vec<(GroupIndex, KeyIndex)> = pod
                    .anti_affinity
                    .iter()
                    .filter_map(|term| groups.group_and_key(term))
                    .filter(|(group, _)| signatures.iter().any(|signature| signature[*group]))
                    .collect();
                let asks = pool_label_requirements(pod, &snapshot.cluster.pools);
                let matters = selected.iter().any(|group| membership[*group])
                    || !away.is_empty()
                    || asks.iter().any(|labels| !labels.is_empty()) && clashes(&pod.host_ports);
                matters.then(|| ConstrainedDaemon {
                    set,
                    membership,
                    away,
                    asks,
                    far: distant_anti_affinity(pod, snapshot, groups, signatures),
                })
            })
            .collect();
        all.sort_by(|one, other| one.set.key.cmp(&other.set.key));
        Self(all.into())
    }

    /// Returns all indices.
    pub(crate) fn keys(&self) -> impl Iterator<Item = DaemonIndex> + use<'a> {
        self.0.keys()
    }

    /// Returns the index of a DaemonSet.
    pub(crate) fn index_of(&self, set: &ObjectKey) -> Option<DaemonIndex> {
        let found = self.0.binary_search_by(|daemon| daemon.set.key.cmp(set));
        found.ok().map(DaemonIndex)
    }

    /// Returns the name of a DaemonSet.
    pub(crate) fn name(&self, agent: DaemonIndex) -> &ObjectKey {
        &self.0[agent].set.key
    }

    /// Returns whether the pods of a DaemonSet are members of a group.
    pub(crate) fn is_member(&self, agent: DaemonIndex, group: GroupIndex) -> bool {
        self.0[agent].membership[group]
    }

    /// Returns whether a DaemonSet has anti-affinity against a group by a key.
    pub(crate) fn has_anti_affinity(
        &self,
        agent: DaemonIndex,
        rule: (GroupIndex, KeyIndex),
    ) -> bool {
        self.0[agent].away.contains(&rule)
    }

    /// Returns the groups and keys of anti-affinity terms of DaemonSets.
    pub(crate) fn anti_affinity_terms(&self) -> impl Iterator<Item = (GroupIndex, KeyIndex)> {
        self.0.iter().flat_map(|daemon| daemon.away.iter().copied())
    }

    /// Returns whether a DaemonSet certainly runs on a matching new node, regardless of the
    /// location of other pods. Pods that conflict with it are not placed there.
    pub(crate) fn is_certain(&self, agent: DaemonIndex) -> bool {
        self.is_certain_on(agent, |_| true)
    }

    /// Returns whether a DaemonSet certainly runs on a node that may have the labels for which
    /// `may_have` is true. Other pods are relevant only through these labels.
    pub(crate) fn is_certain_on(
        &self,
        agent: DaemonIndex,
        may_have: impl Fn(&str) -> bool,
    ) -> bool {
        let pod = &self.0[agent].set.template;
        let mut spread = pod.spread.iter();
        let mut far = self.0[agent].far.iter();
        pod.affinity.is_empty()
            && !far.any(|key| may_have(key))
            && !spread.any(|spread| spread.is_hard)
    }

    /// Returns whether a DaemonSet pod certainly runs on a node, or `None` if it certainly does
    /// not. `label` returns the known value of a label of the node.
    pub(crate) fn runs_on<'l>(
        &self,
        constrained: &DaemonOnType,
        label: impl Fn(&str) -> Option<Option<&'l str>>,
    ) -> Option<bool> {
        if self.is_excluded_by(constrained, |(key, requirement)| {
            label(key).is_some_and(|value| !requirement.allows_label(value))
        }) {
            return None;
        }
        let mut labelled = self.required_labels(constrained.agent, constrained.labelled);
        Some(
            constrained.sure == Presence::Yes
                || constrained.sure == Presence::Labelled
                    && labelled.any(|labels| {
                        let mut labels = labels.iter();
                        labels.all(|(key, requirement)| {
                            label(key).is_some_and(|value| requirement.allows_label(value))
                        })
                    }),
        )
    }

    /// Returns whether known labels keep a DaemonSet off a node.
    pub(crate) fn is_excluded<'l>(
        &self,
        constrained: &DaemonOnType,
        label: impl Fn(&str) -> Option<&'l Requirement>,
    ) -> bool {
        self.is_excluded_by(constrained, |(key, requirement)| {
            label(key).is_some_and(|known| {
                let absent = known.allows_absence() && requirement.allows_absence();
                !absent && !known.has_intersection(requirement)
            })
        })
    }

    /// Returns whether labels contradict every alternative of a DaemonSet.
    fn is_excluded_by(
        &self,
        constrained: &DaemonOnType,
        off: impl Fn(&(String, Requirement)) -> bool,
    ) -> bool {
        let mut ways = self.required_labels(constrained.agent, constrained.ways);
        !self.0[constrained.agent].asks.is_empty() && ways.all(|labels| labels.iter().any(&off))
    }

    /// Returns the requirements of a DaemonSet on labels of pools, for these alternatives.
    fn required_labels(
        &self,
        agent: DaemonIndex,
        ways: u64,
    ) -> impl Iterator<Item = &[(String, Requirement)]> {
        let all = self.0[agent].asks.iter().enumerate();
        all.filter(move |(index, _)| ways >> index & 1 == 1).map(|(_, labels)| &labels[..])
    }

    /// Returns the alternatives of a DaemonSet that no pool label excludes.
    pub(crate) fn unrestricted_alternatives(&self, agent: DaemonIndex) -> u64 {
        let all = self.0[agent].asks.iter().enumerate();
        let unasked = all.filter(|(_, labels)| labels.is_empty());
        unasked.fold(0, |all, (index, _)| all | 1 << index)
    }

    /// Returns the host ports of a DaemonSet.
    pub(crate) fn host_ports(&self, agent: DaemonIndex) -> &BTreeSet<HostPort> {
        &self.0[agent].set.template.host_ports
    }

    /// Returns sets of node labels that exclude DaemonSets in conflict by anti-affinity or host
    /// ports: first one set that excludes all of them, then one set for each.
    pub(crate) fn evading_requirements(
        &self,
        company: &DaemonRequirements,
        clashes: impl Fn(&BTreeSet<HostPort>) -> bool,
    ) -> Vec<Requirements> {
        let mut evading: Vec<Requirements> = self
            .keys()
            .filter(|agent| {
                company.away.iter().any(|term| term.0 == *agent) || clashes(self.host_ports(*agent))
            })
            .filter_map(|agent| {
                let asks = self.0[agent].asks.iter();
                let others: Requirements = asks
                    .filter_map(|labels| labels.first())
                    .filter_map(|(key, requirement)| Some((&key[..], requirement.negated()?)))
                    .collect();
                (!others.is_empty()).then_some(others)
            })
            .collect();
        evading.truncate(EVADED_MAX);
        if evading.len() > 1 {
            let others = evading.iter().skip(1);
            let all = others.fold(evading[0].clone(), |all, labels| all.merged_with(labels));
            evading.insert(0, all);
        }
        evading
    }

    /// Returns the requirement that no DaemonSet on the node of the pods conflicts with them by
    /// anti-affinity.
    pub(crate) fn conflicting_daemons(
        &self,
        rules: &PodConstraints,
        membership: &GroupMembership,
        groups: &PodGroups,
    ) -> DaemonRequirements {
        let mut away = Vec::new();
        for (index, agent) in self.0.iter_enumerated() {
            let terms = rules.away.iter();
            let terms = terms.filter(|term| agent.membership[term.group]);
            let theirs = agent.away.iter().filter(|(group, _)| membership[*group]);
            let keys = terms.map(|term| term.key).chain(theirs.map(|term| term.1));
            away.extend(keys.map(|key| (index, groups.keys[key].clone())));
        }
        away.sort_unstable();
        away.dedup();
        DaemonRequirements { away, beside: Vec::new() }
    }

    /// Returns the requirements of pods whose affinity DaemonSet pods satisfy, or `None` if no
    /// DaemonSet matches.
    pub(crate) fn required_daemons(
        &self,
        rules: &PodConstraints,
        company: &DaemonRequirements,
        groups: &PodGroups,
    ) -> Option<DaemonRequirements> {
        let mut company = company.clone();
        for near in &rules.near {
            let agents: Vec<DaemonIndex> = self
                .keys()
                .filter(|agent| self.is_member(*agent, near.group) && self.is_certain(*agent))
                .collect();
            let keys = near.keys.iter().map(|key| groups.keys[*key].clone());
            if !agents.is_empty() {
                company.beside.push((agents, keys.collect()));
            }
        }
        (!company.beside.is_empty()).then_some(company)
    }
}

/// Returns the topology keys of the anti-affinity of a DaemonSet against pending, bound or future
/// pods or DaemonSet pods.
fn distant_anti_affinity<'a>(
    pod: &'a Pod,
    snapshot: &Snapshot<'_>,
    groups: &PodGroups,
    signatures: &IndexVec<SignatureIndex, GroupMembership>,
) -> BTreeSet<&'a str> {
    let terms = pod.anti_affinity.iter();
    let mut far: Vec<&PodTerm> = terms.filter(|term| term.topology_key != HOSTNAME).collect();
    if far.is_empty() {
        return BTreeSet::new();
    }
    let promised = snapshot.promised.values().flatten().copied();
    let daemons = snapshot.daemon_sets.iter();
    let others = promised
        .map(|pod| (&pod.key.namespace[..], &pod.labels))
        .chain(daemons.map(|set| (&set.key.namespace[..], &set.template.labels)));
    let bound = snapshot.residents.iter();
    let bound = bound.map(|group| (group.namespace, group.labels));
    let memberships: Vec<GroupMembership> = others
        .chain(bound)
        .map(|(namespace, labels)| groups.membership_of(namespace, labels, &snapshot.namespaces))
        .collect();
    far.retain(|term| {
        let place = groups.group_and_key(term);
        let mut all = memberships.iter().chain(signatures);
        place.is_none_or(|(group, _)| all.any(|members| members[group]))
    });
    far.into_iter().map(|term| &term.topology_key[..]).collect()
}

/// Returns whether pools decide if a label satisfies a requirement of a DaemonSet: the label can
/// have values other than the required ones. A new node never has the name of an existing node.
fn is_set_by_pools(key: &str, requirement: &Requirement) -> bool {
    let is_settled = key == NODE_NAME && requirement.allows_absence();
    !is_settled && !is_well_known(key) && requirement.negated().is_some()
}

/// Returns the labels that a DaemonSet requires and that pools set, by alternative, or nothing if
/// there are too many. Labels of configured pools come first, because pods can require different
/// values.
fn pool_label_requirements(pod: &Pod, pools: &[Pool]) -> Vec<Vec<(String, Requirement)>> {
    let selector = Requirements::from_labels(&pod.node_selector);
    let mut alternatives: Vec<Requirements> =
        pod.node_affinity.iter().map(|node_affinity| selector.merged_with(node_affinity)).collect();
    if alternatives.is_empty() {
        alternatives.push(selector);
    }
    if alternatives.len() > WAYS_MAX {
        return Vec::new();
    }
    alternatives
        .iter()
        .map(|alternative: &Requirements| -> Vec<(String, Requirement)> {
            let mut labels: Vec<(String, Requirement)> = alternative
                .iter()
                .filter(|(key, requirement)| is_set_by_pools(key, requirement))
                .map(|(key, requirement)| (key.to_owned(), requirement.clone()))
                .collect();
            labels.sort_by_key(|(key, _)| {
                !pools.iter().any(|pool| {
                    pool.requirements.get(key).is_some() || pool.labels.contains_key(key)
                })
            });
            labels
        })
        .collect()
}

impl DaemonRequirements {
    /// Returns the DaemonSet that rejects pods on a node where these DaemonSet pods certainly run.
    /// `label` returns whether the node has a label, if known.
    pub(crate) fn blocking_daemon(
        &self,
        overhead: &[DaemonOnType],
        label: impl Fn(&str) -> Option<bool>,
    ) -> Option<DaemonIndex> {
        self.away
            .iter()
            .find(|(agent, key)| {
                overhead.iter().any(|overhead| overhead.agent == *agent)
                    && (key == HOSTNAME || label(key) != Some(false))
            })
            .map(|(agent, _)| *agent)
    }

    /// Returns whether the DaemonSet pods of a node satisfy the requirements.
    pub(crate) fn is_satisfied(
        &self,
        overhead: &[DaemonOnType],
        label: impl Fn(&str) -> Option<bool>,
    ) -> bool {
        self.beside.iter().all(|(agents, keys)| {
            let mut overhead = overhead.iter();
            overhead
                .any(|overhead| overhead.sure == Presence::Yes && agents.contains(&overhead.agent))
                && keys.iter().all(|key| key == HOSTNAME || label(key) == Some(true))
        })
    }
}
