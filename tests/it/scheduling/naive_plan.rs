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
use super::missed_placements::is_placeable;
use super::variants::{Fresh, fresh, sites};

/// The naive plan and its bind order. Each of its new nodes has one offering, so only existing
/// nodes can be undecided, and their first variant is used.
pub(crate) fn naive(world: &World) -> (Solution, Vec<PodKey>) {
    let mut fresh = fresh(world);
    fresh.retain(|fresh| makes_nodes(fresh.pool));
    let mut solution = Solution::default();
    let mut order: Vec<PodKey> = Vec::new();
    let mut waiting: Vec<&Pod> = world.pods.iter().collect();
    waiting.retain(|pod| is_placeable(world, pod));
    loop {
        let before = waiting.len();
        waiting.retain(|pod| {
            let placed = place(world, &fresh, &mut solution, &order, pod);
            order.extend(placed.then(|| pod.key.clone()));
            !placed
        });
        if waiting.len() == before {
            break;
        }
    }
    solution.unplaced = left(world, &order);
    (solution, order)
}

/// Places one more pod, and returns whether that was possible.
fn place(
    world: &World,
    fresh: &[Fresh<'_>],
    solution: &mut Solution,
    order: &[PodKey],
    pod: &Pod,
) -> bool {
    let before = solution.clone();
    let sites = sites(world, &before).expect("a valid partial plan");
    let picks = vec![0; sites.len()];
    let outcome = replay(world, &sites, order, &picks).expect("a valid partial plan");
    for (at, site) in sites.iter().enumerate() {
        let mut pods = site.pods.clone();
        pods.push(pod);
        let mut variants = site.variants.iter();
        let takes = variants.all(|variant| site.takes(world, variant, &pods).is_ok());
        if takes && outcome.admits(pod, at).is_ok() {
            add(world, solution, at, pod);
            return true;
        }
    }
    let cutoff = world.cluster.scheduling.priority_cutoff;
    if cutoff.is_some_and(|cutoff| pod.priority < cutoff) {
        return false;
    }
    let mut refused: BTreeSet<(Labels, &[usize])> = BTreeSet::new();
    for fresh in fresh {
        let variant = &fresh.site.variants[0];
        let mut labels = variant.labels.clone();
        labels.remove(INSTANCE_TYPE);
        labels.remove(CPU);
        let kind = (labels, &variant.daemons[..]);
        if refused.contains(&kind) || fresh.site.takes(world, variant, &[pod]).is_err() {
            continue;
        }
        if outcome.admits_on(pod, &fresh.site).is_err() {
            refused.insert(kind);
            continue;
        }
        solution.claims.push(claim(fresh, pod));
        if check_limits(world, solution).is_ok() {
            return true;
        }
        solution.claims.pop();
    }
    false
}

fn claim(fresh: &Fresh<'_>, pod: &Pod) -> NewNodeClaim {
    NewNodeClaim {
        pool: fresh.pool.name.clone(),
        offerings: vec![fresh.offering.clone()],
        labels: fresh.more.clone(),
        requests: pod.requests.clone(),
        pods: vec![pod.key.clone()],
    }
}

/// Whether the pool may launch nodes for pods, each with one type.
fn makes_nodes(pool: &Pool) -> bool {
    let mut wanted = pool.requirements.iter();
    pool.replicas.is_none() && wanted.all(|(_, own)| own.min_values.is_none())
}

/// Adds a pod to a node of the plan; existing nodes have lower indices than claims.
fn add(world: &World, solution: &mut Solution, at: usize, pod: &Pod) {
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
fn left(world: &World, order: &[PodKey]) -> Vec<UnschedulablePod> {
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
