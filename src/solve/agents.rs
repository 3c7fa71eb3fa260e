//! Daemons of which rules about places speak, or whose own rules speak of pods that wait, and what
//! such pods therefore ask of the daemons of their node.
//! It must not know on which nodes daemons run.

use std::collections::BTreeSet;

use crate::model::affinity::PodTerm;
use crate::model::id::ObjectKey;
use crate::model::labels::HOSTNAME;
use crate::model::pod::DaemonSet;
use crate::solve::rules::{Groups, Rules};
use crate::state::snapshot::Snapshot;

/// A daemon whose place matters to pods.
#[derive(Debug)]
struct Agent<'a> {
    set: &'a DaemonSet,
    /// Whether its pods are of a group, group by group.
    of: Vec<bool>,
    /// Groups it must be away from, and by which key.
    away: Vec<(usize, usize)>,
}

/// These daemons, by key. None where no rule speaks of any: then nothing here costs anything.
#[derive(Debug, Default)]
pub(super) struct Agents<'a>(Vec<Agent<'a>>);

/// What pods ask of the daemons of their node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Company {
    /// Daemons that must not be on a node with a label of this key.
    pub(super) away: Vec<(usize, String)>,
    /// For each of these one of several daemons has to be there, and labels of these keys.
    pub(super) beside: Vec<(Vec<usize>, Vec<String>)>,
}

impl<'a> Agents<'a> {
    /// The daemons of a snapshot that matter to pods of these groups, which have these rules.
    pub(super) fn new(
        snapshot: &Snapshot<'a>,
        groups: &Groups,
        (signatures, rules): (&[Vec<bool>], &[Rules]),
    ) -> Self {
        let concerns = |group: usize| signatures.iter().any(|own| own[group]);
        let spoken: BTreeSet<usize> = rules.iter().flat_map(Rules::groups).collect();
        let agent = |set: &&'a DaemonSet| {
            let pod = &set.template;
            let of = groups.of(&set.key.namespace, &pod.labels, &snapshot.namespaces);
            let terms = pod.anti_affinity.iter();
            let away = terms.filter_map(|term| groups.place_of(term));
            let away: Vec<(usize, usize)> = away.filter(|own| concerns(own.0)).collect();
            let matters = spoken.iter().any(|group| of[*group]) || !away.is_empty();
            matters.then_some(Agent { set, of, away })
        };
        let mut all: Vec<Agent<'a>> = snapshot.daemon_sets.iter().filter_map(agent).collect();
        all.sort_by(|one, other| one.set.key.cmp(&other.set.key));
        Self(all)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The place of a DaemonSet among them.
    pub(super) fn find(&self, set: &ObjectKey) -> Option<usize> {
        let place = self.0.binary_search_by(|own| own.set.key.cmp(set));
        place.ok()
    }

    /// What a daemon is called.
    pub(super) fn name(&self, agent: usize) -> &ObjectKey {
        &self.0[agent].set.key
    }

    /// Whether a daemon's pods are of a group.
    pub(super) fn is_member(&self, agent: usize, group: usize) -> bool {
        self.0[agent].of[group]
    }

    /// Whether a daemon must be away from a group by a key.
    pub(super) fn is_away(&self, agent: usize, rule: (usize, usize)) -> bool {
        self.0[agent].away.contains(&rule)
    }

    /// The groups and keys of the terms by which daemons keep pods away.
    pub(super) fn terms(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().flat_map(|own| own.away.iter().copied())
    }

    /// Whether a daemon runs on a new node that agrees with it, whoever else is elsewhere. Those it
    /// must not share the node with are kept off it.
    pub(super) fn is_certain(&self, agent: usize) -> bool {
        let pod = &self.0[agent].set.template;
        let mut spread = pod.spread.iter();
        let of_host = |term: &PodTerm| term.topology_key == HOSTNAME;
        pod.affinity.is_empty()
            && pod.anti_affinity.iter().all(of_host)
            && !spread.any(|own| own.is_hard)
    }

    /// What pods with these rules, of these groups, ask of the daemons of their node: that none is
    /// there of which one must be away from the other.
    pub(super) fn company(&self, rules: &Rules, of: &[bool], groups: &Groups) -> Company {
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
        Company {
            away,
            beside: Vec::new(),
        }
    }

    /// The same for pods that are near whom they must be near because daemons of their node are
    /// such pods; none where no daemon is.
    pub(super) fn beside(
        &self,
        rules: &Rules,
        company: &Company,
        groups: &Groups,
    ) -> Option<Company> {
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

impl Company {
    /// The daemon that keeps pods from a node with these daemons, of which each is sure to be there
    /// or not. `label` says whether the node has a label, if that is known.
    pub(super) fn bars(
        &self,
        crew: &[(usize, bool)],
        label: impl Fn(&str) -> Option<bool>,
    ) -> Option<usize> {
        let bars = |(agent, key): &&(usize, String)| {
            crew.iter().any(|own| own.0 == *agent) && (key == HOSTNAME || label(key) != Some(false))
        };
        self.away.iter().find(bars).map(|(agent, _)| *agent)
    }

    /// Whether the daemons of a node are the company that is asked for.
    pub(super) fn is_kept(
        &self,
        crew: &[(usize, bool)],
        label: impl Fn(&str) -> Option<bool>,
    ) -> bool {
        self.beside.iter().all(|(agents, keys)| {
            let mut crew = crew.iter();
            crew.any(|(agent, is_sure)| *is_sure && agents.contains(agent))
                && keys
                    .iter()
                    .all(|key| key == HOSTNAME || label(key) == Some(true))
        })
    }
}
