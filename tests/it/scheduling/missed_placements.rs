//! Checks whether a rejected pod could still be scheduled after everything else of the plan is
//! bound.

use std::collections::{BTreeMap, BTreeSet};

use outrigger::model::id::{PodKey, PoolName};
use outrigger::model::instance::OfferingKey;
use outrigger::model::labels::{CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, POOL};
use outrigger::model::pod::Pod;
use outrigger::model::pool::{Limits, Pool};
use outrigger::scheduling::{PoolRejection, RejectionCode, Solution, UnschedulablePod};
use outrigger::state::snapshot::ExistingNode;

use super::bind_step::Outcome;
use super::fixture::{CPU, World};
use super::rules::{Check, spread_of, term_matches};
use super::variants::{PossibleNode, pending, possible_nodes};

/// Which possible placements a plan must not miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// It may reject any pod.
    No,
    /// It may not reject a pod that fits on an existing node or on a further new node.
    ExistingAndNewNodes,
    /// In addition, it may not reject a pod that fits on one of its planned nodes.
    Claims,
}

/// A rejected pod, and the nodes that it fits in every outcome so far.
#[derive(Debug)]
struct RejectedPod<'w> {
    pod: &'w Pod,
    /// Whether its priority is below the cutoff: it may be rejected despite capacity on planned
    /// nodes.
    low: bool,
    /// Pools that may reject it because of limits or `min_values`.
    excused: BTreeSet<&'w PoolName>,
    /// `None` before the first outcome.
    places: Option<BTreeSet<String>>,
}

/// The pods that a plan rejects, although they are valid.
#[derive(Debug)]
pub(crate) struct MissedPlacements<'w> {
    world: &'w World,
    pods: Vec<RejectedPod<'w>>,
    possible_nodes: Vec<PossibleNode<'w>>,
    complete: Completeness,
}

impl<'w> MissedPlacements<'w> {
    pub(crate) fn new(world: &'w World, solution: &'w Solution, complete: Completeness) -> Self {
        let pending = pending(world);
        let mut pods: Vec<RejectedPod<'w>> = Vec::new();
        for unplaced in &solution.unplaced {
            let Some(pod) = pending.get(&unplaced.pod).copied() else {
                continue;
            };
            // With tight limits and `min_values`, the scheduler may not try another pool.
            let given_up = |why: &PoolRejection| {
                matches!(why.code, RejectionCode::SearchLimit | RejectionCode::MinValues)
            };
            let given_up = unplaced.reasons.iter().any(given_up);
            let excused = excused_pools(world, unplaced);
            let cutoff = world.cluster.scheduling.priority_cutoff;
            let low = cutoff.is_some_and(|cutoff| pod.priority < cutoff);
            let like = |rejected: &RejectedPod<'_>| {
                rejected.excused == excused && is_identical(world, rejected.pod, pod)
            };
            // Whether pods with constraints on each other can all be placed depends on their order
            // and on undecided nodes. Other tests compare the plans of many such worlds in total.
            let is_constrained = !(spread_of(world, pod).is_empty()
                && pod.affinity.is_empty()
                && pod.anti_affinity.is_empty()
                && !has_daemon_anti_affinity(world, pod));
            let alone = world.pods.iter().all(|other| is_identical(world, other, pod));
            let settled = alone && !world.rooms.iter().any(is_undecided);
            let asked = complete != Completeness::No
                && is_valid(world, pod)
                && !given_up
                && (settled || !is_constrained);
            if asked && !pods.last().is_some_and(like) {
                pods.push(RejectedPod { pod, low, excused, places: None });
            }
        }
        let mut possible_nodes = if pods.is_empty() { Vec::new() } else { possible_nodes(world) };
        possible_nodes
            .retain(|possible_node| has_free_instances(world, solution, &possible_node.offering.0));
        Self { world, pods, possible_nodes, complete }
    }

    /// Searches for suitable nodes in one outcome of the plan.
    pub(crate) fn observe(&mut self, outcome: &Outcome<'_>) {
        for rejected in &mut self.pods {
            let mut places = planned_nodes_for(self.world, rejected, outcome, self.complete);
            places.extend(new_nodes_for(self.world, rejected, &self.possible_nodes, outcome));
            rejected.places = Some(match rejected.places.take() {
                Some(before) => before.intersection(&places).cloned().collect(),
                None => places,
            });
        }
    }

    /// Checks that no rejected pod fits on a node in all outcomes.
    pub(crate) fn check_placements(self) -> Check {
        for rejected in self.pods {
            let place = rejected.places.iter().flatten().next();
            if let Some(place) = place {
                return Err(format!("{} is rejected, but fits {place}", rejected.pod.key));
            }
        }
        Ok(())
    }
}

/// Whether one more node could use an offering in addition to a plan, with regard to reservations.
fn has_free_instances(world: &World, solution: &Solution, key: &OfferingKey) -> bool {
    key.reservation.as_deref().is_none_or(|id| {
        let claims = solution.claims.iter();
        let used = claims.filter(|claim| claim.reservation() == Some(id));
        used.count() < world.catalog.reservations()[id].left as usize
    })
}

/// Whether a pod is valid, so that only capacity and constraints can prevent its placement.
pub(crate) fn is_valid(world: &World, pod: &Pod) -> bool {
    let faulty =
        |key: &PodKey| world.mounts.get(key).is_some_and(|volumes| volumes.fault.is_some());
    let keys = pod.node_affinity.iter().flat_map(|term| term.iter());
    let mut keys = keys.map(|(key, _)| key).chain(pod.node_selector.keys().map(String::as_str));
    let restricted = |key: &str| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let reserved = domain == "karpenter.sh" || domain.ends_with(".karpenter.sh");
        key == HOSTNAME || (reserved && key != POOL && key != CAPACITY_TYPE)
    };
    pod.defects.is_empty()
        && !pod.has_resource_claims
        && pod.gang.is_none()
        && !faulty(&pod.key)
        && !keys.any(restricted)
}

/// Whether a daemon has anti-affinity to a pod by another key than the host name. Before a node is
/// launched, it may be in any zone, and so may its daemons.
fn has_daemon_anti_affinity(world: &World, pod: &Pod) -> bool {
    let templates = world.daemons.iter().map(|daemon_set| &daemon_set.template);
    let mut terms = templates.flat_map(|template| &template.anti_affinity);
    let (of, namespace) = (&world.namespaces, &pod.key.namespace);
    terms
        .any(|term| term.topology_key != HOSTNAME && term_matches(term, of, namespace, &pod.labels))
}

/// Whether two pods differ only in their names.
fn is_identical(world: &World, one: &Pod, other: &Pod) -> bool {
    let mut other_named = other.clone();
    other_named.key.name.clone_from(&one.key.name);
    *one == other_named && world.mounts.get(&one.key) == world.mounts.get(&other.key)
}

fn excused_pools<'w>(world: &'w World, unplaced: &UnschedulablePod) -> BTreeSet<&'w PoolName> {
    let excuses = |pool: &&Pool| {
        let mut reasons = unplaced
            .reasons
            .iter()
            .filter(|why| why.pool.as_ref().is_none_or(|name| *name == pool.name));
        let limited = world.fleet.is_some()
            || pool.limits.stricter_of(&world.cluster.limits) != Limits::default();
        let wants_many =
            pool.requirements.iter().any(|requirement| requirement.1.min_values.is_some());
        reasons.any(|why| limited && why.code == RejectionCode::Limit)
            || wants_many
            || pool.replicas.is_some()
    };
    let pools = world.cluster.pools.iter().filter(excuses);
    pools.map(|pool| &pool.name).collect()
}

/// The nodes of the plan that have capacity for a pod, a claim with every one of its offerings.
fn planned_nodes_for(
    world: &World,
    rejected: &RejectedPod<'_>,
    outcome: &Outcome<'_>,
    complete: Completeness,
) -> BTreeSet<String> {
    let mut places = BTreeSet::new();
    for (at, plan_node) in outcome.plan_nodes.iter().enumerate() {
        let asked = plan_node.host.is_some() || (complete == Completeness::Claims && !rejected.low);
        let mut pods = plan_node.pods.clone();
        pods.push(rejected.pod);
        let mut variants = plan_node.variants.iter();
        let takes =
            asked && variants.all(|variant| plan_node.check_accepts(world, variant, &pods).is_ok());
        if takes && outcome.check_pod(rejected.pod, at).is_ok() {
            places.insert(plan_node.name.clone());
        }
    }
    places
}

/// The new nodes that could be launched for a pod. Types with equal other labels have the same
/// topology domains, so one of them is checked for inter-pod constraints.
fn new_nodes_for(
    world: &World,
    rejected: &RejectedPod<'_>,
    possible_nodes: &[PossibleNode<'_>],
    outcome: &Outcome<'_>,
) -> Vec<String> {
    let mut seen: BTreeMap<(Labels, &[usize]), bool> = BTreeMap::new();
    let mut places = Vec::new();
    for PossibleNode { pool, plan_node, .. } in possible_nodes {
        let variant = &plan_node.variants[0];
        let excused = rejected.low || rejected.excused.contains(&pool.name);
        if excused || plan_node.check_accepts(world, variant, &[rejected.pod]).is_err() {
            continue;
        }
        let mut labels = variant.labels.clone();
        let it = labels.remove(INSTANCE_TYPE).unwrap_or_default();
        labels.remove(CPU);
        let admitted = *seen
            .entry((labels.clone(), &variant.daemons))
            .or_insert_with(|| outcome.check_pod_on_new_node(rejected.pod, plan_node).is_ok());
        if admitted {
            places.push(format!("a new {it} of {labels:?}"));
        }
    }
    places
}

/// Whether a label of a node is undecided.
fn is_undecided(room: &ExistingNode) -> bool {
    let mut requirements = room.labels.iter();
    requirements.any(|(_, requirement)| requirement.values().is_some_and(|values| values.len() > 1))
}
