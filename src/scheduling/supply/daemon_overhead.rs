//! Determines which DaemonSet pods run on new nodes of a pool, and their resource overhead.

use std::collections::BTreeSet;

use crate::model::instance::{InstanceType, Offering};
use crate::model::labels::{
    INITIALIZED, NODE_CLASS, OF_OFFERINGS, POOL, REGISTERED, is_well_known,
};
use crate::model::pod::DaemonSet;
use crate::model::pool::Pool;
use crate::model::quantity::Resources;
use crate::model::requirement::{Operator, Requirement, Requirements};
use crate::model::taint::first_repelling;
use crate::scheduling::index::DaemonIndex;
use crate::scheduling::problem::Problem;
use crate::scheduling::problem::daemon_constraints::{DaemonOnType, HostPort, Presence};
use crate::scheduling::problem::preferences::label_alternatives;

/// A DaemonSet as it would run on the nodes of a pool.
struct Daemon<'a> {
    /// The index among constrained DaemonSets, whether the DaemonSet runs unconditionally, and the
    /// alternatives that no pool label excludes.
    agent: Option<(DaemonIndex, bool, u64)>,
    /// Alternative node requirements that the pool does not decide, with their indices.
    alternatives: Vec<(usize, Requirements)>,
    requests: Resources,
    ports: &'a BTreeSet<HostPort>,
    /// Whether these requirements depend on the offering, such as its zone.
    by_offering: bool,
}

/// DaemonSets that may run on nodes of a pool.
pub(crate) struct PoolDaemons<'a> {
    /// Possible labels of the nodes of the pool.
    pub(super) side: &'a Requirements,
    daemons: Vec<Daemon<'a>>,
}

/// Index into [`PoolDaemons`], and whether the DaemonSet certainly runs.
pub(crate) type DaemonSelection = Vec<(usize, bool)>;

/// DaemonSet overhead of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DaemonOverhead {
    /// Requests of the DaemonSet pods.
    pub(crate) requests: Resources,
    /// Host ports of the DaemonSet pods.
    pub(crate) ports: BTreeSet<HostPort>,
    /// Host ports of DaemonSets that are not constrained.
    pub(crate) settled_ports: BTreeSet<HostPort>,
    /// Constrained DaemonSets.
    pub(crate) agents: Vec<DaemonOnType>,
}

impl<'a> PoolDaemons<'a> {
    /// Selects DaemonSets that tolerate the taints of the pool and match its labels. Source:
    /// spec/scheduling.md §2.9.
    pub(crate) fn new(
        pool: &Pool,
        side: &'a Requirements,
        problem: &Problem<'_>,
        sets: &[&'a DaemonSet],
    ) -> Self {
        let mut started = side.clone();
        // A DaemonSet may require a ready node; the node will be ready.
        for key in [REGISTERED, INITIALIZED] {
            started.add(key, Requirement::is_in(["true"]));
        }
        let agents = &problem.agents;
        // Makes the result independent of the input order.
        let mut sets = sets.to_vec();
        sets.sort_by(|one, other| one.key.cmp(&other.key));
        Self {
            side,
            daemons: sets
                .into_iter()
                .filter_map(|set| {
                    let pod = &set.template;
                    let all = label_alternatives(&pod.node_selector, &pod.node_affinity, &[]);
                    let alternatives: Vec<(usize, Requirements)> = all
                        .iter()
                        .enumerate()
                        .filter(|(_, labels)| started.check_compatible(labels, true).is_ok())
                        .map(|(index, labels)| {
                            (index, select_keys(labels, |key| !is_pool_label(key)))
                        })
                        .collect();
                    let fits = first_repelling(&pool.taints, &pod.tolerations).is_none();
                    let by_offering = alternatives.iter().any(|(_, labels)| {
                        let mut keys = labels.iter().map(|(key, _)| key);
                        keys.any(|key| OF_OFFERINGS.contains(&key))
                    });
                    (fits && !alternatives.is_empty()).then(|| Daemon {
                        agent: agents.index_of(&set.key).map(|agent| {
                            let unrestricted = agents.unrestricted_alternatives(agent);
                            (agent, agents.is_certain(agent), unrestricted)
                        }),
                        requests: without_negatives(&pod.requests),
                        ports: &pod.host_ports,
                        alternatives,
                        by_offering,
                    })
                })
                .collect(),
        }
    }

    /// Returns the DaemonSets of a type for any offering; `true` for DaemonSets that do not depend
    /// on the offering.
    pub(crate) fn of_type(&self, node_type: &InstanceType) -> DaemonSelection {
        let all = self.daemons.iter().enumerate();
        all.filter(|(_, daemon)| {
            let mut alternatives = daemon.alternatives.iter();
            alternatives
                .any(|(_, labels)| node_type.requirements.check_intersection(labels).is_ok())
        })
        .map(|(index, daemon)| (index, !daemon.by_offering))
        .collect()
    }

    /// Returns the DaemonSets of one offering.
    pub(crate) fn of_offering(
        &self,
        selection: &DaemonSelection,
        node_type: &InstanceType,
        offering: &Offering,
    ) -> DaemonSelection {
        selection
            .iter()
            .filter(|(index, settled)| {
                let mut all = self.daemons[*index].alternatives.iter();
                *settled || all.any(|(_, labels)| may_match(labels, node_type, offering))
            })
            .copied()
            .collect()
    }

    /// Returns the overhead of these DaemonSets on a type with these offerings.
    pub(crate) fn overhead_on(
        &self,
        selection: &DaemonSelection,
        node_type: &InstanceType,
        offers: &[&Offering],
    ) -> DaemonOverhead {
        let mut overhead = DaemonOverhead::default();
        for (index, _) in selection {
            let daemon = &self.daemons[*index];
            overhead.requests.add(&daemon.requests);
            overhead.ports.extend(daemon.ports.iter().cloned());
            if daemon.agent.is_none() {
                overhead.settled_ports.extend(daemon.ports.iter().cloned());
            }
            overhead.agents.extend(self.constrained_daemon(daemon, node_type, offers));
        }
        overhead
    }

    /// Returns the presence of a constrained DaemonSet on nodes of a type with an offering.
    fn constrained_daemon(
        &self,
        daemon: &Daemon<'_>,
        node_type: &InstanceType,
        offers: &[&Offering],
    ) -> Option<DaemonOnType> {
        let (agent, is_certain, unasked) = daemon.agent?;
        let (mut ways, mut labelled) = (0, 0);
        for (index, labels) in &daemon.alternatives {
            let bit = u32::try_from(*index).ok();
            let bit = bit.and_then(|bit| 1u64.checked_shl(bit)).unwrap_or(0);
            if offers.is_empty() || offers.iter().any(|offer| may_match(labels, node_type, offer)) {
                ways |= bit;
            }
            if is_certain
                && offers
                    .iter()
                    .all(|offer| self.presence_on(labels, node_type, offer) != Presence::No)
            {
                labelled |= bit;
            }
        }
        let sure = offers
            .iter()
            .map(|offer| {
                let all = daemon.alternatives.iter();
                all.map(|(_, labels)| self.presence_on(labels, node_type, offer))
                    .max()
                    .unwrap_or(Presence::No)
            })
            .min()
            .unwrap_or(Presence::Yes);
        Some(DaemonOnType {
            agent,
            sure: if is_certain { sure } else { Presence::No },
            // If one alternative has no label requirements, the others are irrelevant.
            ways: if ways & unasked == 0 { ways } else { u64::MAX },
            labelled: if sure == Presence::Labelled { labelled } else { 0 },
        })
    }

    /// Returns whether every node of a type with this offering has the required labels.
    fn presence_on(
        &self,
        wanted: &Requirements,
        node_type: &InstanceType,
        offer: &Offering,
    ) -> Presence {
        let all = wanted.iter().map(|(key, wanted)| {
            if OF_OFFERINGS.contains(&key) {
                return Presence::from_bool(wanted.allows_label(offer.label_value(key)));
            }
            if matches!(key, REGISTERED | INITIALIZED) {
                return Presence::from_bool(wanted.allows_value("true"));
            }
            let is_of_type = node_type.requirements.get(key).is_some();
            // Only instances have this label, so no pool can set it.
            if !is_of_type && self.side.get(key).is_some() && is_well_known(key) {
                return Presence::No;
            }
            let Some(merged) = merged_requirement(self.side, node_type, key) else {
                return Presence::from_bool(wanted.allows_absence());
            };
            match merged.operator() {
                Operator::DoesNotExist => Presence::from_bool(wanted.allows_absence()),
                _ if merged
                    .values()
                    .is_some_and(|all| all.iter().all(|value| wanted.allows_value(value))) =>
                {
                    Presence::Yes
                }
                // Pools decide the label.
                _ if !is_well_known(key) && !is_of_type && wanted.negated().is_some() => {
                    Presence::Labelled
                }
                _ => Presence::No,
            }
        });
        all.min().unwrap_or(Presence::Yes)
    }
}

/// Returns whether a type with this offering may satisfy the requirements of a DaemonSet.
fn may_match(wanted: &Requirements, node_type: &InstanceType, offering: &Offering) -> bool {
    wanted.iter().all(|(key, requirement)| {
        !OF_OFFERINGS.contains(&key) || requirement.allows_label(offering.label_value(key))
    }) && node_type.requirements.check_intersection(wanted).is_ok()
}

/// Returns whether a pool sets a label independent of the type.
pub(crate) fn is_pool_label(key: &str) -> bool {
    matches!(key, POOL | NODE_CLASS)
}

/// Returns what the pool and the type allow for a label, or `None` if neither defines it.
pub(crate) fn merged_requirement(
    pool: &Requirements,
    instance_type: &InstanceType,
    key: &str,
) -> Option<Requirement> {
    match (pool.get(key), instance_type.requirements.get(key)) {
        (Some(pool), Some(of_type)) => Some(pool.intersection(of_type)),
        (pool, of_type) => pool.or(of_type).cloned(),
    }
}

/// Returns the requirements with selected keys.
pub(crate) fn select_keys(labels: &Requirements, wanted: impl Fn(&str) -> bool) -> Requirements {
    labels
        .iter()
        .filter(|(key, _)| wanted(key))
        .map(|(key, requirement)| (key, requirement.clone()))
        .collect()
}

/// Returns the resources with negative quantities set to zero.
pub(crate) fn without_negatives(resources: &Resources) -> Resources {
    let extended = resources.extended.iter();
    Resources {
        cpu_milli: resources.cpu_milli.max(0),
        memory: resources.memory.max(0),
        ephemeral_storage: resources.ephemeral_storage.max(0),
        pods: resources.pods.max(0),
        extended: extended.map(|(name, amount)| (name.clone(), (*amount).max(0))).collect(),
    }
}
