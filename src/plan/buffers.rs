//! Capacity buffers: existing capacity that they use, and new nodes for the rest.
//!
//! Virtual pods are scheduled after all real pods, in the remaining capacity, so they never take
//! the capacity of a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::buffer::buffer_of;
use crate::model::buffer_object::{BufferRooms, RoomCount};
use crate::model::id::{NodeName, PodKey};
use crate::model::quantity::Resources;
use crate::plan::projection::with_claims;
use crate::scheduling::static_pools::{Shortfall, StaticDemand};
use crate::scheduling::{NewNodeClaim, PoolRejection, Solution, solve};
use crate::state::snapshot::{ExistingNode, NodeRef, Snapshot};

/// The plan for capacity buffers.
#[derive(Debug, Default)]
pub(super) struct BufferPlan {
    /// Nodes to launch, with their virtual pods.
    pub(super) claims: Vec<NewNodeClaim>,
    /// Nodes whose capacity a buffer uses, with the name of a buffer.
    pub(super) held: BTreeMap<NodeName, String>,
    /// Capacity that cannot be launched.
    pub(super) short: Vec<Shortfall>,
    /// The location of the capacity of each buffer.
    pub(super) counts: BufferRooms,
}

/// Plans buffer capacity after these claims and placed pods.
pub(super) fn plan_buffer_capacity(
    snapshot: &Snapshot<'_>,
    claims: &[NewNodeClaim],
    placed: &[(NodeRef, Vec<PodKey>)],
    now: Timestamp,
) -> BufferPlan {
    let mut kept = BufferPlan { counts: all_missing(snapshot), ..BufferPlan::default() };
    if snapshot.spare.pods.is_empty() {
        return kept;
    }
    let mut planned: Snapshot<'_> = with_claims(snapshot, claims).into_owned();
    subtract_placed(&mut planned.rooms, placed, snapshot);
    for room in &mut planned.rooms {
        // Nodes that are kept even without buffers are filled first.
        room.idle = matches!(&room.host, NodeRef::Node(name) if snapshot.spare.idle.contains(name));
    }
    planned.pending = snapshot.spare.pods.iter().collect();
    planned.pending.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    planned.mounts.clear();
    planned.lacking.clear();
    // Virtual pods have no labels, so no topology rule of a pod concerns them.
    planned.residents.clear();
    planned.promised.clear();
    let solution = solve(&planned, now);
    count_capacity(&mut kept.counts, &solution, snapshot);
    for (host, pods) in solution.placed {
        let NodeRef::Node(node) = host else { continue };
        if let Some(buffer) = pods.first().and_then(buffer_of) {
            kept.held.insert(node, buffer.to_owned());
        }
    }
    let mut short: BTreeMap<String, (usize, Arc<[PoolRejection]>)> = BTreeMap::new();
    for pod in solution.unplaced {
        let buffer = buffer_of(&pod.pod).unwrap_or_default().to_owned();
        short.entry(buffer).or_insert((0, pod.reasons)).0 += 1;
    }
    kept.short = short
        .into_iter()
        .map(|(buffer, (missing, reasons))| Shortfall {
            need: StaticDemand::Room(buffer),
            missing,
            reasons,
        })
        .collect();
    kept.claims = solution.claims;
    kept
}

/// Initializes the counts: all virtual pods of each buffer are missing.
fn all_missing(snapshot: &Snapshot<'_>) -> BufferRooms {
    let wanted = snapshot.spare.wanted.iter();
    wanted
        .map(|(name, count)| {
            let count = count.map(|missing| RoomCount { missing, ..RoomCount::default() });
            (name.clone(), count)
        })
        .collect()
}

/// Counts the capacity that was found. Capacity on nodes that are not ready counts as in-flight.
/// Virtual pods that were not placed or planned remain missing.
fn count_capacity(counts: &mut BufferRooms, solution: &Solution, snapshot: &Snapshot<'_>) {
    let rooms = snapshot.rooms.iter().filter(|room| room.initialized);
    let ready: BTreeSet<&NodeRef> = rooms.map(|room| &room.host).collect();
    let placed = solution.placed.iter().flat_map(|(host, pods)| {
        let is_there = ready.contains(host);
        pods.iter().map(move |pod| (pod, is_there))
    });
    let planned = solution.claims.iter().flat_map(|claim| &claim.pods);
    for (pod, is_there) in placed.chain(planned.map(|pod| (pod, false))) {
        let count = buffer_of(pod).and_then(|buffer| counts.get_mut(buffer)?.as_mut());
        if let Some(count) = count {
            count.there += u32::from(is_there);
            count.coming += u32::from(!is_there);
            count.missing = count.missing.saturating_sub(1);
        }
    }
}

/// Subtracts placed pods from nodes.
pub(super) fn subtract_placed(
    rooms: &mut [ExistingNode],
    placed: &[(NodeRef, Vec<PodKey>)],
    snapshot: &Snapshot<'_>,
) {
    let placed: BTreeMap<&NodeRef, &Vec<PodKey>> =
        placed.iter().map(|(host, pods)| (host, pods)).collect();
    let waiting = snapshot.pending.iter().map(|pod| (&pod.key, *pod));
    let waiting: BTreeMap<_, _> = waiting.collect();
    for room in rooms {
        let pods = placed.get(&room.host).into_iter().copied().flatten();
        for pod in pods.filter_map(|key| waiting.get(key)) {
            let mut requests: Resources = pod.requests.clone();
            requests.raise_to(&Resources::default());
            room.free.subtract(&requests);
            room.host_ports.extend(pod.host_ports.iter().cloned());
            let mounts = snapshot.mounts.get(&pod.key);
            for (driver, count) in mounts.into_iter().flat_map(|mount| &mount.attached) {
                // A driver without an entry has no limit.
                if let Some(left) = room.free.extended.get_mut(driver) {
                    *left -= count;
                }
            }
        }
    }
}
