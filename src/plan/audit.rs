//! Checks a plan against invariants before the plan is executed. The audit computes all totals
//! again, independently of the planner.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::id::{PodKey, PoolName, ReservationId};
use crate::model::pool::Limits;
use crate::model::quantity::Resources;
use crate::plan::Plan;
use crate::scheduling::NewNodeClaim;
use crate::state::snapshot::{Snapshot, Usage};

/// Removes actions that violate an invariant, and records findings.
pub fn audit(mut plan: Plan, snapshot: &Snapshot<'_>) -> Plan {
    let mut usage = snapshot.usage.clone();
    let mut seen: BTreeSet<PodKey> = BTreeSet::new();
    let mut reserved: BTreeMap<&ReservationId, u32> = BTreeMap::new();
    let mut findings = Vec::new();
    plan.launches.retain(|claim| {
        let fault = reservation_fault(claim, snapshot, &mut reserved)
            .or_else(|| claim_fault(claim, snapshot, &mut usage, &mut seen));
        if let Some(fault) = &fault {
            findings.push(format!("dropped a claim of pool {}: {fault}", claim.pool));
        }
        fault.is_none()
    });
    plan.findings = findings;
    plan
}

/// Checks that a claim uses one reservation with remaining capacity. A rejected claim still counts
/// as use of the reservation: launching too few nodes is safer than too many.
fn reservation_fault<'s>(
    claim: &NewNodeClaim,
    snapshot: &'s Snapshot<'_>,
    taken: &mut BTreeMap<&'s ReservationId, u32>,
) -> Option<String> {
    let reservation = claim.reservation();
    let mut others = claim.offerings.iter();
    if others.any(|(offering, _)| offering.reservation.as_deref() != reservation) {
        return Some("its offerings are of different reservations".into());
    }
    let reservation = reservation?;
    let Some((id, reservation)) = snapshot.reservations.get_key_value(reservation) else {
        return Some(format!("reservation {reservation} does not exist"));
    };
    let count = taken.entry(id).or_insert(0);
    *count += 1;
    let exceeds = *count > reservation.left;
    exceeds.then(|| format!("reservation {id} has {} left", reservation.left))
}

fn claim_fault(
    claim: &NewNodeClaim,
    snapshot: &Snapshot<'_>,
    usage: &mut BTreeMap<PoolName, Usage>,
    seen: &mut BTreeSet<PodKey>,
) -> Option<String> {
    let Some(pool) = snapshot.cluster.pool(claim.pool.as_str()) else {
        return Some("the pool is not configured".into());
    };
    let catalog = snapshot.catalog_of(&pool.name);
    let mut largest = Resources::default();
    for (offering, _) in &claim.offerings {
        let Some(instance_type) = catalog.get(offering.instance_type.as_str()) else {
            return Some(format!("{offering} is not in the catalog"));
        };
        if let Some(shortage) = claim.requests.first_shortage(&instance_type.allocatable) {
            return Some(format!("{offering} has too little {shortage}"));
        }
        largest.raise_to(&instance_type.capacity);
    }
    if claim.offerings.is_empty() {
        return Some("it has no offerings".into());
    }
    if let Some(pod) = claim.pods.iter().find(|pod| seen.contains(*pod)) {
        return Some(format!("pod {pod} is planned twice"));
    }
    let mut cluster = Usage::default();
    for usage in usage.values() {
        add_usage(&mut cluster, &usage.capacity, usage.nodes);
    }
    add_usage(&mut cluster, &largest, 1);
    let used = usage.entry(claim.pool.clone()).or_default();
    let mut after = used.clone();
    add_usage(&mut after, &largest, 1);
    if let Some(name) = exceeded_limit(&pool.limits, &after) {
        return Some(format!("the limit of {name} would be exceeded"));
    }
    if let Some(name) = exceeded_limit(&snapshot.cluster.limits, &cluster) {
        return Some(format!("the cluster's limit of {name} would be exceeded"));
    }
    let share = snapshot.fleet.map(|view| &view.share);
    if let Some(name) = share.and_then(|share| exceeded_limit(share, &cluster)) {
        return Some(format!("the fleet's limit of {name} would be exceeded"));
    }
    *used = after;
    seen.extend(claim.pods.iter().cloned());
    None
}

fn add_usage(usage: &mut Usage, capacity: &Resources, nodes: usize) {
    usage.capacity.add(capacity);
    usage.nodes = usage.nodes.saturating_add(nodes);
}

/// Returns the first resource that exceeds these limits.
fn exceeded_limit<'l>(limits: &'l Limits, used: &Usage) -> Option<&'l str> {
    let mut capacity = limits.capacity.iter();
    let capacity_limit = capacity.find(|(name, max)| used.capacity.get(name) > *max);
    let nodes = limits.nodes.filter(|max| used.nodes > *max as usize);
    capacity_limit.map(|(name, _)| name.as_str()).or(nodes.map(|_| "nodes"))
}
