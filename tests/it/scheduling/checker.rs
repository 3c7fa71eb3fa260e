//! Checks a plan: every pod has one result, every node has capacity for its pods, and
//! kube-scheduler would bind the pods in the given order.

use std::collections::{BTreeMap, BTreeSet};

use outrigger::model::cluster::MinValuesPolicy;
use outrigger::model::id::{PodKey, ReservationId};
use outrigger::model::instance::{OfferingKey, Price};
use outrigger::model::labels::INSTANCE_TYPE;
use outrigger::model::pod::Pod;
use outrigger::model::pool::{Limits, Pool};
use outrigger::model::quantity::Resources;
use outrigger::scheduling::rejection::RejectionDetail;
use outrigger::scheduling::{NewNodeClaim, PoolRejection, Solution};
use outrigger::state::snapshot::{NodeRef, Usage};

use super::bind_step::replay;
use super::features::REQUIRED;
use super::fixture::{CPU, World};
use super::missed_placements::{Completeness, MissedPlacements};
use super::rules::{Check, ensure, spread_of};
use super::variants::{PlanNode, plan_nodes};

/// The number of random combinations if there are too many combinations for an exhaustive check.
const RANDOM_COMBINATIONS: u64 = 8;
/// The maximum number of combinations for an exhaustive check.
const MAX_COMBINATIONS: usize = 24;

/// Checks a plan against all rules.
pub(crate) fn check(world: &World, solution: &Solution) -> Check {
    check_in_order(world, solution, &solution.order, REQUIRED)
}

/// Checks a plan whose pods are bound in this order against all rules.
pub(crate) fn check_in_order(
    world: &World,
    solution: &Solution,
    order: &[PodKey],
    complete: Completeness,
) -> Check {
    check_results(world, solution)?;
    check_order(solution, order)?;
    check_existing_nodes(world, solution)?;
    check_valid_pods(world, solution)?;
    for claim in &solution.claims {
        check_claim(world, claim)?;
    }
    check_limits(world, solution)?;
    check_reservations(world, solution)?;
    check_gangs(world, solution)?;
    check_reasons(world, solution)?;
    let plan_nodes = plan_nodes(world, solution)?;
    for plan_node in &plan_nodes {
        // An undecided node must suit its pods in all of its variants.
        for variant in &plan_node.variants {
            if !plan_node.pods.is_empty() {
                plan_node.check_accepts(world, variant, &plan_node.pods)?;
            }
        }
    }
    let mut left = MissedPlacements::new(world, solution, complete);
    for picks in variant_combinations(world, &plan_nodes) {
        left.observe(&replay(world, &plan_nodes, order, &picks)?);
    }
    left.check_placements()
}

/// Whether the world has any constraints between pods.
fn has_pod_constraints(world: &World) -> bool {
    let settled = world.promised.values().flatten().chain(&world.residents);
    let has_constraints = |pod: &Pod| {
        !pod.affinity.is_empty()
            || !pod.anti_affinity.is_empty()
            || spread_of(world, pod).iter().any(|constraint| constraint.is_hard)
    };
    settled.chain(&world.pods).any(has_constraints)
}

/// Combinations of variants, one for each node. Variants that differ only in their type have the
/// same topology domains, so one of them is sufficient. The result has all combinations, or else
/// the first variant of all nodes, the second of all and so on, and some random combinations.
fn variant_combinations(world: &World, plan_nodes: &[PlanNode<'_>]) -> Vec<Vec<usize>> {
    let kinds: Vec<Vec<usize>> = plan_nodes.iter().map(distinct_variants).collect();
    let of = |at: &dyn Fn(usize) -> usize| -> Vec<usize> {
        let kinds = kinds.iter().enumerate();
        kinds.map(|(plan_node, kinds)| kinds[at(plan_node) % kinds.len()]).collect()
    };
    if !has_pod_constraints(world) {
        return vec![of(&|_| 0)];
    }
    let choices = kinds.iter().try_fold(1_usize, |all, kinds| all.checked_mul(kinds.len()));
    let mut picks = BTreeSet::new();
    if let Some(choices) = choices.filter(|choices| *choices <= MAX_COMBINATIONS) {
        for choice in 0..choices {
            let mut rest = choice;
            let digit = |kinds: &Vec<usize>| {
                let variant = kinds[rest % kinds.len()];
                rest /= kinds.len();
                variant
            };
            picks.insert(kinds.iter().map(digit).collect());
        }
    } else {
        let most = kinds.iter().map(Vec::len).max().unwrap_or(1);
        picks.extend((0..most).map(|at| of(&|_| at)));
        for seed in 0..RANDOM_COMBINATIONS {
            let mut random = fastrand::Rng::with_seed(seed);
            let mixture: Vec<usize> = plan_nodes.iter().map(|_| random.usize(..)).collect();
            picks.insert(of(&|plan_node| mixture[plan_node]));
        }
    }
    picks.into_iter().collect()
}

/// The first variant of a node for each combination of topology domains.
fn distinct_variants(plan_node: &PlanNode<'_>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let mut kinds = Vec::new();
    for (at, variant) in plan_node.variants.iter().enumerate() {
        let mut labels = variant.labels.clone();
        labels.remove(INSTANCE_TYPE);
        labels.remove(CPU);
        if seen.insert((labels, &variant.daemons)) {
            kinds.push(at);
        }
    }
    kinds
}

/// Checks that the number of results equals `pods`, and that the order lists the placed pods.
pub(crate) fn check_counts(solution: &Solution, pods: usize) -> Check {
    let placed = solution.placed.iter().map(|(_, pods)| pods.len());
    let claimed = solution.claims.iter().map(|claim| claim.pods.len());
    let answers = placed.chain(claimed).sum::<usize>() + solution.unplaced.len();
    ensure(answers == pods, || format!("{answers} results for {pods} pods"))?;
    let reasons = solution.unplaced.iter().map(|rejected| rejected.reasons.len()).min();
    ensure(reasons != Some(0), || "a rejection has no reason".to_owned())?;
    let none = solution.claims.iter().any(|claim| claim.offerings.is_empty());
    ensure(!none, || "a claim has no offerings".to_owned())?;
    check_order(solution, &solution.order)
}

fn check_results(world: &World, solution: &Solution) -> Check {
    let placed = solution.placed.iter().flat_map(|(_, pods)| pods);
    let claimed = solution.claims.iter().flat_map(|claim| &claim.pods);
    let unplaced = solution.unplaced.iter().map(|unplaced| &unplaced.pod);
    let mut answers: Vec<&PodKey> = placed.chain(claimed).chain(unplaced).collect();
    let mut asked: Vec<&PodKey> = world.pods.iter().map(|pod| &pod.key).collect();
    answers.sort();
    asked.sort();
    ensure(answers == asked, || format!("not every pod has one result: {answers:?}"))?;
    for (_, pods) in &solution.placed {
        ensure(pods.is_sorted(), || format!("not sorted: {pods:?}"))?;
    }
    let unplaced = &solution.unplaced;
    let sorted = unplaced.is_sorted_by(|one, other| one.pod < other.pod);
    ensure(sorted, || "the rejected pods are not sorted".to_owned())
}

fn check_order(solution: &Solution, order: &[PodKey]) -> Check {
    let placed = solution.placed.iter().flat_map(|(_, pods)| pods);
    let claimed = solution.claims.iter().flat_map(|claim| &claim.pods);
    let mut answered: Vec<&PodKey> = placed.chain(claimed).collect();
    let mut ordered: Vec<&PodKey> = order.iter().collect();
    answered.sort();
    ordered.sort();
    ensure(answered == ordered, || format!("the order does not list the placed pods: {order:?}"))
}

fn check_existing_nodes(world: &World, solution: &Solution) -> Check {
    let mut seen: BTreeSet<&NodeRef> = BTreeSet::new();
    for (host, pods) in &solution.placed {
        let there = world.rooms.iter().any(|room| room.host == *host);
        ensure(there, || format!("there is no {host}"))?;
        ensure(seen.insert(host), || format!("{host} is listed twice"))?;
        ensure(!pods.is_empty(), || format!("{host} gets no pods"))?;
    }
    Ok(())
}

/// Checks that invalid pods and pods with resource claims are not placed.
fn check_valid_pods(world: &World, solution: &Solution) -> Check {
    let unplaced: BTreeSet<&PodKey> =
        solution.unplaced.iter().map(|rejected| &rejected.pod).collect();
    for pod in &world.pods {
        let sound = pod.defects.is_empty() && !pod.has_resource_claims;
        ensure(sound || unplaced.contains(&pod.key), || {
            format!("{} is placed, but invalid", pod.key)
        })?;
    }
    Ok(())
}

fn check_claim(world: &World, claim: &NewNodeClaim) -> Check {
    let scheduling = &world.cluster.scheduling;
    let pool = world.cluster.pool(claim.pool.as_str());
    let pool = pool.ok_or_else(|| format!("there is no pool {}", claim.pool))?;
    ensure(pool.replicas.is_none(), || {
        format!("the static pool {} gets no nodes for pods", pool.name)
    })?;
    ensure(!claim.pods.is_empty() && claim.pods.is_sorted(), || {
        format!("pods of a claim: {:?}", claim.pods)
    })?;
    let wants_many = pool.requirements.iter().any(|requirement| requirement.1.min_values.is_some());
    check_prices(world, claim, wants_many)?;
    // Reserved capacity is available, and needs no other types.
    if scheduling.min_values == MinValuesPolicy::Strict && claim.reservation().is_none() {
        check_min_values(world, pool, claim)?;
    }
    let pods: Vec<&Pod> = world.pods.iter().filter(|pod| claim.pods.contains(&pod.key)).collect();
    let cutoff = scheduling.priority_cutoff.unwrap_or(i32::MIN);
    ensure(pods.iter().any(|pod| pod.priority >= cutoff), || {
        format!("no pod of {:?} justifies a node", claim.pods)
    })?;
    check_requests(world, claim, &pods)
}

fn check_prices(world: &World, claim: &NewNodeClaim, wants_many: bool) -> Check {
    let scheduling = &world.cluster.scheduling;
    let prices: Vec<Price> = claim.offerings.iter().map(|(_, price)| *price).collect();
    let keys: BTreeSet<&OfferingKey> = claim.offerings.iter().map(|(key, _)| key).collect();
    let (first, last) = (prices.first().ok_or("no offering")?, prices.last());
    let most = (scheduling.max_launch_options as usize).max(1);
    let bounded = wants_many || prices.len() <= most;
    ensure(bounded && prices.is_sorted() && keys.len() == prices.len(), || {
        format!("offerings {:?}", claim.offerings)
    })?;
    let dearest = first.usd_per_h() * f64::from(scheduling.alternative_price_percent) / 100.0;
    let near = |last: &Price| last == first || last.usd_per_h() <= dearest * 1.000_001;
    ensure(wants_many || last.is_some_and(near), || format!("prices {prices:?}"))?;
    for (key, price) in &claim.offerings {
        let quoted = world.catalog.offering(key).map(|offering| offering.price);
        ensure(quoted == Some(*price), || {
            format!("{key} has the price {quoted:?}, not {price:?}")
        })?;
    }
    Ok(())
}

/// Checks that no reservation is exceeded, whichever offerings are launched.
fn check_reservations(world: &World, solution: &Solution) -> Check {
    let mut used: BTreeMap<&ReservationId, u32> = BTreeMap::new();
    for claim in &solution.claims {
        let keys = claim.offerings.iter().map(|(key, _)| key.reservation.as_deref());
        let reservations: BTreeSet<Option<&ReservationId>> = keys.collect();
        ensure(reservations.len() == 1, || {
            format!("a claim has different reservations: {reservations:?}")
        })?;
        for id in reservations.into_iter().flatten() {
            *used.entry(id).or_insert(0) += 1;
        }
    }
    for (id, count) in used {
        let left = world.catalog.reservations()[id].left;
        ensure(count <= left, || format!("{count} nodes use {id}, {left} instances are free"))?;
    }
    Ok(())
}

/// Checks that the types of a claim have the minimum number of label values of the pool.
fn check_min_values(world: &World, pool: &Pool, claim: &NewNodeClaim) -> Check {
    for (label, wanted) in pool.requirements.iter() {
        let mut values: BTreeSet<&str> = BTreeSet::new();
        for (key, _) in &claim.offerings {
            let it = world.catalog.get(key.instance_type.as_str());
            let values_of_type = it.and_then(|it| it.requirements.get(label)?.values());
            let values_of_type = values_of_type.into_iter().flatten();
            values.extend(
                values_of_type.filter(|value| wanted.allows_value(value)).map(String::as_str),
            );
        }
        let least = wanted.min_values.unwrap_or(0) as usize;
        ensure(values.len() >= least, || {
            format!("the pool requires {least} values of {label}, the claim has {values:?}")
        })?;
    }
    Ok(())
}

/// Checks that a claim requests at least the sum of its pods, and at most what each type has.
fn check_requests(world: &World, claim: &NewNodeClaim, pods: &[&Pod]) -> Check {
    let mut sum = Resources::default();
    pods.iter().for_each(|pod| sum.add(&pod.requests));
    let short = sum.iter().find(|(name, sum)| claim.requests.get(name) < *sum);
    ensure(short.is_none(), || format!("a claim requests {}, its pods {sum}", claim.requests))?;
    for (key, _) in &claim.offerings {
        let it = world.catalog.get(key.instance_type.as_str());
        let it = it.ok_or_else(|| format!("there is no type {}", key.instance_type))?;
        let has = |name: &str| it.allocatable.get(name);
        let mut all = claim.requests.iter();
        ensure(all.all(|(name, amount)| amount <= has(name)), || {
            format!("a claim requests {}, {key} has {}", claim.requests, it.allocatable)
        })?;
    }
    Ok(())
}

/// Checks that no limit is exceeded, whichever offerings are launched.
pub(crate) fn check_limits(world: &World, solution: &Solution) -> Check {
    let mut all = Usage::default();
    for used in world.usage.values() {
        all.capacity.add(&used.capacity);
        all.nodes = all.nodes.saturating_add(used.nodes);
    }
    let claims: Vec<&NewNodeClaim> = solution.claims.iter().collect();
    check_limit(world, &world.cluster.limits, &claims, &all)
        .map_err(|why| format!("the cluster: {why}"))?;
    if let Some(view) = &world.fleet {
        ensure(view.closed.is_none() || claims.is_empty(), || {
            "the fleet allows no nodes".to_owned()
        })?;
        check_limit(world, &view.share, &claims, &all)
            .map_err(|why| format!("the fleet: {why}"))?;
    }
    for pool in &world.cluster.pools {
        let claims: Vec<&NewNodeClaim> =
            solution.claims.iter().filter(|claim| claim.pool == pool.name).collect();
        let used = world.usage.get(&pool.name).cloned().unwrap_or_default();
        check_limit(world, &pool.limits, &claims, &used)?;
    }
    Ok(())
}

fn check_limit(world: &World, limits: &Limits, claims: &[&NewNodeClaim], used: &Usage) -> Check {
    if claims.is_empty() {
        return Ok(());
    }
    for (name, most) in &limits.capacity {
        let capacity = |(key, _): &(OfferingKey, Price)| {
            let it = world.catalog.get(key.instance_type.as_str());
            it.map_or(0, |it| it.capacity.get(name))
        };
        let largest = |claim: &&NewNodeClaim| claim.offerings.iter().map(capacity).max();
        let sum: i64 = claims.iter().filter_map(largest).sum();
        let holds = sum == 0 || used.capacity.get(name).saturating_add(sum) <= *most;
        ensure(holds, || format!("the {name} limit {most} is exceeded by {sum}"))?;
    }
    let nodes = used.nodes.saturating_add(claims.len());
    let most = limits.nodes.map_or(usize::MAX, |most| most as usize);
    ensure(nodes <= most, || format!("{nodes} nodes exceed the limit {most}"))
}

/// The numbers of pods of a gang that the plan places, that it rejects, and that are already bound
/// or promised to a node, and the minimum number.
#[derive(Default)]
struct GangCounts {
    placed: usize,
    left: usize,
    there: usize,
    least: u32,
}

/// Checks that the pods of a gang are placed together or not at all.
fn check_gangs(world: &World, solution: &Solution) -> Check {
    let unplaced: BTreeSet<&PodKey> =
        solution.unplaced.iter().map(|rejected| &rejected.pod).collect();
    let mut gangs: BTreeMap<(&str, &str), GangCounts> = BTreeMap::new();
    let bound = world.residents.iter().filter(|pod| pod.deleting.is_none());
    let there = bound.chain(world.promised.values().flatten());
    let there = there.map(|pod| (pod, true));
    for (pod, there) in there.chain(world.pods.iter().map(|pod| (pod, false))) {
        let Some(gang) = &pod.gang else {
            continue;
        };
        let counts = gangs.entry((&pod.key.namespace, &gang.name)).or_default();
        counts.least = counts.least.max(gang.least.unwrap_or(u32::MAX));
        *match (there, unplaced.contains(&pod.key)) {
            (true, _) => &mut counts.there,
            (_, true) => &mut counts.left,
            (_, false) => &mut counts.placed,
        } += 1;
    }
    for ((_, name), counts) in gangs {
        let enough = counts.placed + counts.there >= counts.least as usize;
        ensure(counts.placed == 0 || counts.left == 0 || enough, || {
            let GangCounts { placed, left, .. } = counts;
            format!("{placed} pods of the gang {name} are placed, {left} are not")
        })?;
    }
    Ok(())
}

/// Whether a rejection has a text in one line, and consistent numbers.
fn is_consistent(why: &PoolRejection) -> bool {
    let short = match &why.miss {
        RejectionDetail::Resources { short, nearest, .. } => {
            let lacks = short.iter().all(|shortfall| shortfall.asked > shortfall.left);
            !short.is_empty() && (lacks || nearest.is_none())
        }
        RejectionDetail::Limit { left, least, .. } => least > left || *left < 0,
        RejectionDetail::Values { least, count, .. } => count < least,
        RejectionDetail::Places { reachable, open, .. } => open <= reachable,
        _ => true,
    };
    short && !why.rejection_text().is_empty() && !why.rejection_text().contains('\n')
}

fn check_reasons(world: &World, solution: &Solution) -> Check {
    for unplaced in &solution.unplaced {
        let reasons = &unplaced.reasons;
        let consistent = !reasons.is_empty() && reasons.iter().all(is_consistent);
        ensure(consistent, || format!("{} is rejected without a reason", unplaced.pod))?;
        let pools = reasons.iter().filter_map(|why| why.pool.as_ref());
        let named: BTreeSet<&str> = pools.map(|pool| pool.as_str()).collect();
        let all = world.cluster.pools.iter().map(|pool| pool.name.as_str());
        let all: BTreeSet<&str> = all.collect();
        ensure(named.is_subset(&all), || format!("unknown pools in {named:?}"))?;
    }
    Ok(())
}
