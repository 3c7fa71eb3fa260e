//! Which daemons run on the nodes that a pool could have made, and what they take of them.
//! It must not know what pods are packed beside them.

use std::collections::BTreeSet;

use crate::model::instance::{InstanceType, Offering};
use crate::model::labels::{
    INITIALIZED, NODE_CLASS, OF_OFFERINGS, POOL, REGISTERED, is_well_known,
};
use crate::model::pod::DaemonSet;
use crate::model::pool::Pool;
use crate::model::quantity::Resources;
use crate::model::requirement::{Operator, Requirement, Requirements};
use crate::model::taint::repelling;
use crate::scheduling::problem::daemon_constraints::{DaemonOnType, HostPort, Presence};
use crate::scheduling::problem::{Problem, alternatives};

/// A daemon as a pool's nodes would carry it.
struct Daemon<'a> {
    /// Its place among those that matter to pods, whether it runs whoever else is there, and its
    /// alternatives that no label of a pool rules out.
    agent: Option<(usize, bool, u64)>,
    /// What it asks of a node, less what the pool decides: any one of these, each with its place
    /// among all the daemon's.
    alternatives: Vec<(usize, Requirements)>,
    requests: Resources,
    ports: &'a BTreeSet<HostPort>,
    /// Whether that depends on the offering, its zone for one.
    by_offering: bool,
}

/// The daemons that a pool's nodes may carry.
pub(crate) struct PoolDaemons<'a> {
    /// What the labels of its nodes may be.
    side: &'a Requirements,
    daemons: Vec<Daemon<'a>>,
}

/// Daemons of a node, by their places in the crews of its pool, and whether each is sure to run.
pub(crate) type DaemonSelection = Vec<(usize, bool)>;

/// The daemons of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DaemonOverhead {
    /// What they ask for.
    pub(crate) requests: Resources,
    /// Host ports that they bind.
    pub(crate) ports: BTreeSet<HostPort>,
    /// Those of daemons that are none of `agents`.
    pub(crate) settled_ports: BTreeSet<HostPort>,
    /// Those that matter to pods.
    pub(crate) agents: Vec<DaemonOnType>,
}

impl<'a> PoolDaemons<'a> {
    /// Those that tolerate the pool's taints and agree with its labels.
    /// Source: spec/scheduling.md §2.9.
    pub(crate) fn new(
        pool: &Pool,
        side: &'a Requirements,
        problem: &Problem<'_>,
        sets: &[&'a DaemonSet],
    ) -> Self {
        let mut started = side.clone();
        // A daemon may wait for a node to be ready for it; it will be.
        for key in [REGISTERED, INITIALIZED] {
            started.add(key, Requirement::is_in(["true"]));
        }
        let agent = |set: &DaemonSet| {
            let agents = &problem.agents;
            let own = agents.find(&set.key)?;
            Some((own, agents.is_certain(own), agents.unasked(own)))
        };
        let daemon = |set: &'a DaemonSet| {
            let pod = &set.template;
            let all = alternatives(&pod.node_selector, &pod.node_affinity, &[]);
            let agrees = |own: &(usize, &Requirements)| started.compatible(own.1, true).is_ok();
            let agreeing = all.iter().enumerate().filter(agrees);
            let alternatives: Vec<(usize, Requirements)> = agreeing
                .map(|(at, own)| (at, pick(own, |key| !of_pool(key))))
                .collect();
            let fits = repelling(&pool.taints, &pod.tolerations).is_none();
            let by_offering = alternatives.iter().any(|(_, own)| {
                let mut keys = own.iter().map(|(key, _)| key);
                keys.any(|key| OF_OFFERINGS.contains(&key))
            });
            (fits && !alternatives.is_empty()).then(|| Daemon {
                agent: agent(set),
                requests: floored(&pod.requests),
                ports: &pod.host_ports,
                alternatives,
                by_offering,
            })
        };
        // Whatever the order in which they are told.
        let mut sets = sets.to_vec();
        sets.sort_by(|one, other| one.key.cmp(&other.key));
        Self {
            side,
            daemons: sets.into_iter().filter_map(daemon).collect(),
        }
    }

    /// The daemons of a type's nodes, wherever and however it is bought; with `true` for those that
    /// do not depend on that.
    pub(crate) fn of_type(&self, it: &InstanceType) -> DaemonSelection {
        let runs = |(at, daemon): (usize, &Daemon<'_>)| {
            let mut all = daemon.alternatives.iter();
            all.any(|(_, own)| it.requirements.intersects(own).is_ok())
                .then_some((at, !daemon.by_offering))
        };
        let all = self.daemons.iter().enumerate();
        all.filter_map(runs).collect()
    }

    /// Those of them that run on the nodes of one offering.
    pub(crate) fn of_offering(
        &self,
        aboard: &DaemonSelection,
        (it, offering): (&InstanceType, &Offering),
    ) -> DaemonSelection {
        let runs = |(at, settled): &&(usize, bool)| {
            let mut all = self.daemons[*at].alternatives.iter();
            *settled || all.any(|(_, own)| suits(own, it, offering))
        };
        aboard.iter().filter(runs).copied().collect()
    }

    /// What these daemons are to a node of a type, bought in one of these ways.
    pub(crate) fn crew(
        &self,
        aboard: &DaemonSelection,
        (it, offers): (&InstanceType, &[&Offering]),
    ) -> DaemonOverhead {
        let mut crew = DaemonOverhead::default();
        for (at, _) in aboard {
            let daemon = &self.daemons[*at];
            crew.requests.add(&daemon.requests);
            crew.ports.extend(daemon.ports.iter().cloned());
            if daemon.agent.is_none() {
                crew.settled_ports.extend(daemon.ports.iter().cloned());
            }
            crew.agents.extend(self.mate(daemon, (it, offers)));
        }
        crew
    }

    /// What a daemon that matters to pods is to such a node.
    fn mate(
        &self,
        daemon: &Daemon<'_>,
        (it, offers): (&InstanceType, &[&Offering]),
    ) -> Option<DaemonOnType> {
        let (agent, is_certain, unasked) = daemon.agent?;
        let bit = |at: usize| u32::try_from(at).ok().and_then(|at| 1u64.checked_shl(at));
        let (mut ways, mut labelled) = (0, 0);
        for (at, own) in &daemon.alternatives {
            let may = |offer: &&Offering| suits(own, it, offer);
            let is_said = |offer: &&Offering| self.is_surely(own, it, offer) != Presence::No;
            if offers.is_empty() || offers.iter().any(may) {
                ways |= bit(*at).unwrap_or(0);
            }
            if is_certain && offers.iter().all(is_said) {
                labelled |= bit(*at).unwrap_or(0);
            }
        }
        let sure = |offer: &&Offering| {
            let all = daemon.alternatives.iter();
            let all = all.map(|(_, own)| self.is_surely(own, it, offer));
            all.max().unwrap_or(Presence::No)
        };
        let sure = offers.iter().map(sure).min().unwrap_or(Presence::Yes);
        Some(DaemonOnType {
            agent,
            sure: if is_certain { sure } else { Presence::No },
            // Where it may run whatever the labels, it does not matter how else it may.
            ways: if ways & unasked == 0 { ways } else { u64::MAX },
            labelled: if sure == Presence::Labelled {
                labelled
            } else {
                0
            },
        })
    }

    /// Whether every node of a type that is bought so has labels as a daemon wants them.
    fn is_surely(&self, wanted: &Requirements, it: &InstanceType, offer: &Offering) -> Presence {
        let sure = |holds: bool| if holds { Presence::Yes } else { Presence::No };
        let all = wanted.iter().map(|(key, wanted)| {
            if OF_OFFERINGS.contains(&key) {
                return sure(wanted.suits(offer.label(key)));
            }
            if matches!(key, REGISTERED | INITIALIZED) {
                return sure(wanted.has("true"));
            }
            let both = match (self.side.get(key), it.requirements.get(key)) {
                (Some(side), Some(own)) => side.intersection(own),
                // Nobody sets what only instances could say.
                (Some(_), None) if is_well_known(key) => return Presence::No,
                (Some(own), None) | (None, Some(own)) => own.clone(),
                (None, None) => return sure(wanted.allows_absence()),
            };
            let all = |all: &BTreeSet<String>| all.iter().all(|own| wanted.has(own));
            match both.operator() {
                Operator::DoesNotExist => sure(wanted.allows_absence()),
                _ if both.values().is_some_and(all) => Presence::Yes,
                _ if is_said(key, it) && wanted.negated().is_some() => Presence::Labelled,
                _ => Presence::No,
            }
        });
        all.min().unwrap_or(Presence::Yes)
    }
}

/// Whether a type that is bought so may be as a daemon wants it, by one of its alternatives.
fn suits(wanted: &Requirements, it: &InstanceType, offering: &Offering) -> bool {
    let sold = |(key, own): (&str, &Requirement)| {
        !OF_OFFERINGS.contains(&key) || own.suits(offering.label(key))
    };
    wanted.iter().all(sold) && it.requirements.intersects(wanted).is_ok()
}

/// Whether it is for the pool to say what a label will be.
fn is_said(key: &str, it: &InstanceType) -> bool {
    !is_well_known(key) && it.requirements.get(key).is_none()
}

/// Labels that a pool gives to its nodes, whatever their type.
pub(crate) fn of_pool(key: &str) -> bool {
    matches!(key, POOL | NODE_CLASS)
}

/// Those of these requirements whose labels are wanted.
pub(crate) fn pick(labels: &Requirements, wanted: impl Fn(&str) -> bool) -> Requirements {
    let own = labels.iter().filter(|(key, _)| wanted(key));
    own.map(|(key, requirement)| (key, requirement.clone()))
        .collect()
}

/// The same with every amount below zero at zero.
pub(crate) fn floored(resources: &Resources) -> Resources {
    let extended = resources.extended.iter();
    Resources {
        cpu_milli: resources.cpu_milli.max(0),
        memory: resources.memory.max(0),
        ephemeral_storage: resources.ephemeral_storage.max(0),
        pods: resources.pods.max(0),
        extended: extended
            .map(|(name, amount)| (name.clone(), (*amount).max(0)))
            .collect(),
    }
}
