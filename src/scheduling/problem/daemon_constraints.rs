//! Daemons of which rules about places speak, or whose own rules speak of pods that wait, and what
//! such pods therefore ask of the daemons of their node.
//! It must not know on which nodes daemons run.

use std::collections::BTreeSet;

use crate::model::affinity::PodTerm;
use crate::model::id::ObjectKey;
use crate::model::labels::{HOSTNAME, NODE_NAME, is_well_known};
use crate::model::pod::{DaemonSet, Pod};
use crate::model::pool::Pool;
use crate::model::requirement::{Requirement, Requirements};
use crate::scheduling::problem::pod_constraints::{PodConstraints, PodGroups};
use crate::state::snapshot::Snapshot;

/// Daemons that pods get alternatives for, to be where these are not.
const EVADED_MAX: usize = 4;

/// Alternatives of a daemon that are told apart, one bit each.
const WAYS_MAX: usize = 64;

/// A host port: protocol, address (empty for all) and number.
pub(crate) type HostPort = (String, String, u16);

/// A daemon whose place matters to pods.
#[derive(Debug)]
struct ConstrainedDaemon<'a> {
    set: &'a DaemonSet,
    /// Whether its pods are of a group, group by group.
    of: Vec<bool>,
    /// Groups it must be away from, and by which key.
    away: Vec<(usize, usize)>,
    /// Labels that it wants of its node and that are for pools to say, in each of its alternatives.
    /// None where these are too many.
    asks: Vec<Vec<(String, Requirement)>>,
    /// Keys, the host's aside, by which it must be away from pods that there are.
    far: BTreeSet<&'a str>,
}

/// These daemons, by key. None where no rule speaks of any: then nothing here costs anything.
#[derive(Debug, Default)]
pub(crate) struct ConstrainedDaemons<'a>(Vec<ConstrainedDaemon<'a>>);

/// Whether a daemon that may run on a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Presence {
    No,
    /// If the labels that pools leave open are as it wants them.
    Labelled,
    Yes,
}

/// A daemon of the nodes of a type that matters to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DaemonOnType {
    /// Which daemon.
    pub(crate) agent: usize,
    /// Whether it runs.
    pub(crate) sure: Presence,
    /// By which of its alternatives it may run there, one bit each.
    pub(crate) ways: u64,
    /// By which it does if labels that pools leave open are as it wants them.
    pub(crate) labelled: u64,
}

/// What pods ask of the daemons of their node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DaemonRequirements {
    /// Daemons that must not be on a node with a label of this key.
    pub(crate) away: Vec<(usize, String)>,
    /// For each of these one of several daemons has to be there, and labels of these keys.
    pub(crate) beside: Vec<(Vec<usize>, Vec<String>)>,
}

impl<'a> ConstrainedDaemons<'a> {
    /// The daemons of a snapshot that matter to pods of these groups, which have these rules.
    pub(crate) fn new(
        snapshot: &Snapshot<'a>,
        groups: &PodGroups,
        (signatures, rules): (&[Vec<bool>], &[PodConstraints]),
        clashes: impl Fn(&BTreeSet<HostPort>) -> bool,
    ) -> Self {
        let concerns = |group: usize| signatures.iter().any(|own| own[group]);
        let spoken: BTreeSet<usize> = rules.iter().flat_map(PodConstraints::groups).collect();
        let agent = |set: &&'a DaemonSet| {
            let pod = &set.template;
            let of = groups.of(&set.key.namespace, &pod.labels, &snapshot.namespaces);
            let terms = pod.anti_affinity.iter();
            let away = terms.filter_map(|term| groups.place_of(term));
            let away: Vec<(usize, usize)> = away.filter(|own| concerns(own.0)).collect();
            let asks = asks(pod, &snapshot.cluster.pools);
            let matters = spoken.iter().any(|group| of[*group])
                || !away.is_empty()
                || asks.iter().any(|own| !own.is_empty()) && clashes(&pod.host_ports);
            matters.then(|| ConstrainedDaemon {
                set,
                of,
                away,
                asks,
                far: far(pod, snapshot, (groups, signatures)),
            })
        };
        let mut all: Vec<ConstrainedDaemon<'a>> =
            snapshot.daemon_sets.iter().filter_map(agent).collect();
        all.sort_by(|one, other| one.set.key.cmp(&other.set.key));
        Self(all)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The place of a DaemonSet among them.
    pub(crate) fn find(&self, set: &ObjectKey) -> Option<usize> {
        let place = self.0.binary_search_by(|own| own.set.key.cmp(set));
        place.ok()
    }

    /// What a daemon is called.
    pub(crate) fn name(&self, agent: usize) -> &ObjectKey {
        &self.0[agent].set.key
    }

    /// Whether a daemon's pods are of a group.
    pub(crate) fn is_member(&self, agent: usize, group: usize) -> bool {
        self.0[agent].of[group]
    }

    /// Whether a daemon must be away from a group by a key.
    pub(crate) fn is_away(&self, agent: usize, rule: (usize, usize)) -> bool {
        self.0[agent].away.contains(&rule)
    }

    /// The groups and keys of the terms by which daemons keep pods away.
    pub(crate) fn terms(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().flat_map(|own| own.away.iter().copied())
    }

    /// Whether a daemon runs on a new node that agrees with it, whoever else is elsewhere. Those it
    /// must not share the node with are kept off it.
    pub(crate) fn is_certain(&self, agent: usize) -> bool {
        self.is_certain_on(agent, |_| true)
    }

    /// The same of a node of which it is known which labels it may have: who is elsewhere matters
    /// only by those.
    pub(crate) fn is_certain_on(&self, agent: usize, may_have: impl Fn(&str) -> bool) -> bool {
        let pod = &self.0[agent].set.template;
        let mut spread = pod.spread.iter();
        let mut far = self.0[agent].far.iter();
        pod.affinity.is_empty() && !far.any(|key| may_have(key)) && !spread.any(|own| own.is_hard)
    }

    /// Whether a daemon that may run on a node does, none where it does not: `label` says what the
    /// node has of a label, if that is known.
    pub(crate) fn on<'l>(
        &self,
        mate: &DaemonOnType,
        label: impl Fn(&str) -> Option<Option<&'l str>>,
    ) -> Option<bool> {
        let has = |(key, own): &(String, Requirement)| label(key).map(|value| own.suits(value));
        let off = |own: &(String, Requirement)| has(own) == Some(false);
        if self.is_off(mate, off) {
            return None;
        }
        let mut labelled = self.asks(mate.agent, mate.labelled);
        let met = |own: &[(String, Requirement)]| own.iter().all(|own| has(own) == Some(true));
        Some(mate.sure == Presence::Yes || mate.sure == Presence::Labelled && labelled.any(met))
    }

    /// Whether a daemon is not on nodes of which this is known of the labels that pools say.
    pub(crate) fn is_kept_off<'l>(
        &self,
        mate: &DaemonOnType,
        label: impl Fn(&str) -> Option<&'l Requirement>,
    ) -> bool {
        self.is_off(mate, |(key, own)| {
            label(key).is_some_and(|known| {
                let absent = known.allows_absence() && own.allows_absence();
                !absent && !known.has_intersection(own)
            })
        })
    }

    /// Whether a label is not as it is wanted in any alternative by which a daemon may run.
    fn is_off(&self, mate: &DaemonOnType, off: impl Fn(&(String, Requirement)) -> bool) -> bool {
        let mut ways = self.asks(mate.agent, mate.ways);
        !self.0[mate.agent].asks.is_empty() && ways.all(|own| own.iter().any(&off))
    }

    /// What a daemon asks of labels that pools say, in these of its alternatives.
    fn asks(&self, agent: usize, ways: u64) -> impl Iterator<Item = &[(String, Requirement)]> {
        let all = self.0[agent].asks.iter().enumerate();
        let these = all.filter(move |(at, _)| ways >> at & 1 == 1);
        these.map(|(_, own)| &own[..])
    }

    /// The alternatives of a daemon that no label of a pool rules out.
    pub(crate) fn unasked(&self, agent: usize) -> u64 {
        let all = self.0[agent].asks.iter().enumerate();
        let unasked = all.filter(|(_, own)| own.is_empty());
        unasked.fold(0, |all, (at, _)| all | 1 << at)
    }

    /// The host ports that a daemon binds.
    pub(crate) fn ports(&self, agent: usize) -> &BTreeSet<HostPort> {
        &self.0[agent].set.template.host_ports
    }

    /// Labels of a node that keep daemons off it which pods must not share it with, or which bind
    /// their host ports: all of them, or each.
    pub(crate) fn evading(
        &self,
        company: &DaemonRequirements,
        clashes: impl Fn(&BTreeSet<HostPort>) -> bool,
    ) -> Vec<Requirements> {
        let is_away = |agent: &usize| company.away.iter().any(|own| own.0 == *agent);
        let away = (0..self.len()).filter(|agent| is_away(agent) || clashes(self.ports(*agent)));
        let away: Vec<usize> = away.collect();
        let evaded = |agent: &usize| {
            let first = self.0[*agent].asks.iter().filter_map(|own| own.first());
            let others = first.filter_map(|(key, own)| Some((&key[..], own.negated()?)));
            let others: Requirements = others.collect();
            (!others.is_empty()).then_some(others)
        };
        let mut each: Vec<Requirements> = away.iter().filter_map(evaded).collect();
        each.truncate(EVADED_MAX);
        if each.len() > 1 {
            let all = each.iter().skip(1);
            each.insert(0, all.fold(each[0].clone(), |all, own| all.with(own)));
        }
        each
    }

    /// What pods with these rules, of these groups, ask of the daemons of their node: that none is
    /// there of which one must be away from the other.
    pub(crate) fn company(
        &self,
        rules: &PodConstraints,
        of: &[bool],
        groups: &PodGroups,
    ) -> DaemonRequirements {
        let mut away = Vec::new();
        for (at, agent) in self.0.iter().enumerate() {
            let own = rules.away.iter().filter(|own| agent.of[own.group]);
            let own = own.map(|own| own.key);
            let theirs = agent.away.iter().filter(|(group, _)| of[*group]);
            let keys = own.chain(theirs.map(|(_, key)| *key));
            away.extend(keys.map(|key| (at, groups.keys[key].clone())));
        }
        away.sort_unstable();
        away.dedup();
        DaemonRequirements {
            away,
            beside: Vec::new(),
        }
    }

    /// The same for pods that are near whom they must be near because daemons of their node are
    /// such pods; none where no daemon is.
    pub(crate) fn beside(
        &self,
        rules: &PodConstraints,
        company: &DaemonRequirements,
        groups: &PodGroups,
    ) -> Option<DaemonRequirements> {
        let mut company = company.clone();
        for near in &rules.near {
            let all = 0..self.len();
            let is_one = |at: &usize| self.is_member(*at, near.group) && self.is_certain(*at);
            let agents: Vec<usize> = all.filter(is_one).collect();
            let keys = near.keys.iter().map(|key| groups.keys[*key].clone());
            if !agents.is_empty() {
                company.beside.push((agents, keys.collect()));
            }
        }
        (!company.beside.is_empty()).then_some(company)
    }
}

/// The keys by which a daemon must be away from any pods that wait, are bound or will be, or from
/// daemons.
fn far<'a>(
    pod: &'a Pod,
    snapshot: &Snapshot<'_>,
    (groups, signatures): (&PodGroups, &[Vec<bool>]),
) -> BTreeSet<&'a str> {
    let terms = pod.anti_affinity.iter();
    let mut far: Vec<&PodTerm> = terms.filter(|own| own.topology_key != HOSTNAME).collect();
    if far.is_empty() {
        return BTreeSet::new();
    }
    let of = |namespace: &str, labels| groups.of(namespace, labels, &snapshot.namespaces);
    let promised = snapshot.promised.values().flatten().copied();
    let daemons = snapshot.daemon_sets.iter();
    let others = promised
        .map(|pod| (&pod.key.namespace[..], &pod.labels))
        .chain(daemons.map(|set| (&set.key.namespace[..], &set.template.labels)));
    let bound = snapshot.residents.iter();
    let bound = bound.map(|own| (own.namespace, own.labels));
    let there: Vec<Vec<bool>> = others.chain(bound).map(|own| of(own.0, own.1)).collect();
    let all = || there.iter().chain(signatures);
    far.retain(|term| {
        let place = groups.place_of(term);
        place.is_none_or(|(group, _)| all().any(|own| own[group]))
    });
    far.into_iter().map(|term| &term.topology_key[..]).collect()
}

/// Whether it is for pools to say whether a label is as a daemon wants it: other values than the
/// wanted are known. No pool has to say that a new node has not the name of another node.
fn is_said((key, own): &(&str, &Requirement)) -> bool {
    let is_settled = *key == NODE_NAME && own.allows_absence();
    !is_settled && !is_well_known(key) && own.negated().is_some()
}

/// The labels that a daemon asks for and that pools say, by alternative, in the order of these;
/// nothing where they are too many. Labels of which a pool of the cluster says something come
/// first: pods can ask for another value of them.
fn asks(pod: &Pod, pools: &[Pool]) -> Vec<Vec<(String, Requirement)>> {
    let selector = Requirements::from_labels(&pod.node_selector);
    let affinity = pod.node_affinity.iter().map(|own| selector.with(own));
    let mut alternatives: Vec<Requirements> = affinity.collect();
    if alternatives.is_empty() {
        alternatives.push(selector);
    }
    let of = |own: &Requirements| -> Vec<(String, Requirement)> {
        let own = own.iter().filter(is_said);
        let own = own.map(|(key, own)| (key.to_owned(), own.clone()));
        let mut own: Vec<(String, Requirement)> = own.collect();
        let is_there = |key: &str| {
            let says =
                |it: &Pool| it.requirements.get(key).is_some() || it.labels.contains_key(key);
            pools.iter().any(says)
        };
        own.sort_by_key(|(key, _)| !is_there(key));
        own
    };
    if alternatives.len() > WAYS_MAX {
        return Vec::new();
    }
    alternatives.iter().map(of).collect()
}

impl DaemonRequirements {
    /// The daemon that keeps pods from a node with these daemons, of which each is sure to be there
    /// or not. `label` says whether the node has a label, if that is known.
    pub(crate) fn bars(
        &self,
        crew: &[DaemonOnType],
        label: impl Fn(&str) -> Option<bool>,
    ) -> Option<usize> {
        let bars = |(agent, key): &&(usize, String)| {
            crew.iter().any(|own| own.agent == *agent)
                && (key == HOSTNAME || label(key) != Some(false))
        };
        self.away.iter().find(bars).map(|(agent, _)| *agent)
    }

    /// Whether the daemons of a node are the company that is asked for.
    pub(crate) fn is_kept(
        &self,
        crew: &[DaemonOnType],
        label: impl Fn(&str) -> Option<bool>,
    ) -> bool {
        self.beside.iter().all(|(agents, keys)| {
            let mut crew = crew.iter();
            crew.any(|own| own.sure == Presence::Yes && agents.contains(&own.agent))
                && keys
                    .iter()
                    .all(|key| key == HOSTNAME || label(key) == Some(true))
        })
    }
}
