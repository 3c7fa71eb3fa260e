//! A naive plan that checks every pod against every node, one by one. It is slow, and it only
//! considers the price of the next node.
//!
//! It shows that the checker accepts valid plans for every cluster, and is the baseline that the
//! scheduler must improve on.

use std::collections::BTreeSet;

use outrigger::model::id::PodKey;
use outrigger::model::labels::{INSTANCE_TYPE, Labels};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Pool;
use outrigger::scheduling::rejection::RejectionDetail;
use outrigger::scheduling::{
    NewNodeClaim, PoolRejection, RejectionCode, Solution, UnschedulablePod,
};

use super::bind_step::replay;
use super::checker::check_limits;
use super::fixture::{CPU, World};
use super::missed_placements::is_valid;
use super::variants::{PossibleNode, plan_nodes, possible_nodes};

/// The naive plan and its bind order. Each of its new nodes has one offering, so only existing
/// nodes can be undecided, and their first variant is used.
pub(crate) fn naive(world: &World) -> (Solution, Vec<PodKey>) {
    let mut possible = possible_nodes(world);
    possible.retain(|possible| can_launch_nodes(possible.pool));
    let mut solution = Solution::default();
    let mut order: Vec<PodKey> = Vec::new();
    let mut waiting: Vec<&Pod> = world.pods.iter().collect();
    waiting.retain(|pod| is_valid(world, pod));
    loop {
        let before = waiting.len();
        waiting.retain(|pod| {
            let placed = place(world, &possible, &mut solution, &order, pod);
            order.extend(placed.then(|| pod.key.clone()));
            !placed
        });
        if waiting.len() == before {
            break;
        }
    }
    solution.unplaced = rejected_pods(world, &order);
    (solution, order)
}

/// Places one more pod, and returns whether that was possible.
fn place(
    world: &World,
    possible: &[PossibleNode<'_>],
    solution: &mut Solution,
    order: &[PodKey],
    pod: &Pod,
) -> bool {
    let before = solution.clone();
    let plan_nodes = plan_nodes(world, &before).expect("a valid partial plan");
    let picks = vec![0; plan_nodes.len()];
    let outcome = replay(world, &plan_nodes, order, &picks).expect("a valid partial plan");
    for (at, plan_node) in plan_nodes.iter().enumerate() {
        let mut pods = plan_node.pods.clone();
        pods.push(pod);
        let mut variants = plan_node.variants.iter();
        let takes = variants.all(|variant| plan_node.check_accepts(world, variant, &pods).is_ok());
        if takes && outcome.check_pod(pod, at).is_ok() {
            add_pod(world, solution, at, pod);
            return true;
        }
    }
    let cutoff = world.cluster.scheduling.priority_cutoff;
    if cutoff.is_some_and(|cutoff| pod.priority < cutoff) {
        return false;
    }
    let mut refused: BTreeSet<(Labels, &[usize])> = BTreeSet::new();
    for possible in possible {
        let variant = &possible.plan_node.variants[0];
        let mut labels = variant.labels.clone();
        labels.remove(INSTANCE_TYPE);
        labels.remove(CPU);
        let kind = (labels, &variant.daemons[..]);
        if refused.contains(&kind)
            || possible.plan_node.check_accepts(world, variant, &[pod]).is_err()
        {
            continue;
        }
        if outcome.check_pod_on_new_node(pod, &possible.plan_node).is_err() {
            refused.insert(kind);
            continue;
        }
        solution.claims.push(claim(possible, pod));
        if check_limits(world, solution).is_ok() {
            return true;
        }
        solution.claims.pop();
    }
    false
}

fn claim(possible: &PossibleNode<'_>, pod: &Pod) -> NewNodeClaim {
    NewNodeClaim {
        pool: possible.pool.name.clone(),
        offerings: vec![possible.offering.clone()],
        labels: possible.more.clone(),
        requests: pod.requests.clone(),
        pods: vec![pod.key.clone()],
    }
}

/// Whether the pool may launch nodes for pods, each with one type.
fn can_launch_nodes(pool: &Pool) -> bool {
    let mut wanted = pool.requirements.iter();
    pool.replicas.is_none() && wanted.all(|(_, requirement)| requirement.min_values.is_none())
}

/// Adds a pod to a node of the plan; existing nodes have lower indices than claims.
fn add_pod(world: &World, solution: &mut Solution, at: usize, pod: &Pod) {
    let Some(room) = world.rooms.get(at) else {
        let claim = &mut solution.claims[at - world.rooms.len()];
        claim.pods.push(pod.key.clone());
        claim.pods.sort();
        claim.requests.add(&pod.requests);
        return;
    };
    let mut placed = solution.placed.iter_mut();
    match placed.find(|(host, _)| *host == room.host) {
        Some((_, pods)) => {
            pods.push(pod.key.clone());
            pods.sort();
        }
        None => solution.placed.push((room.host.clone(), vec![pod.key.clone()])),
    }
}

/// All other pods, with the reasons that the checker requires.
fn rejected_pods(world: &World, order: &[PodKey]) -> Vec<UnschedulablePod> {
    let placed: BTreeSet<&PodKey> = order.iter().collect();
    let mut keys: Vec<&PodKey> = world.pods.iter().map(|pod| &pod.key).collect();
    keys.retain(|key| !placed.contains(key));
    keys.sort();
    let why = |pool: &Pool| PoolRejection {
        pool: Some(pool.name.clone()),
        code: RejectionCode::Limit,
        miss: RejectionDetail::from_message("nothing was found"),
    };
    let none = PoolRejection {
        pool: None,
        code: RejectionCode::NoPool,
        miss: RejectionDetail::from_message("there is no pool"),
    };
    let mut reasons: Vec<PoolRejection> = world.cluster.pools.iter().map(why).collect();
    if reasons.is_empty() {
        reasons.push(none);
    }
    let one = |key: &PodKey| UnschedulablePod { pod: key.clone(), reasons: reasons.clone().into() };
    keys.into_iter().map(one).collect()
}
