//! Evicts in waves the pods that move to new nodes: all pods of a new node together, and the pods
//! of few nodes at a time.
//!
//! The replacement of an evicted pod is pending until its new node is untainted. If all pods of a
//! large consolidation were evicted together, all would wait until the last one is recreated. In
//! this time, pods planned for other nodes would be bound to nodes that are already untainted.

use jiff::{SignedDuration, Timestamp};

use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, Nominations};
use crate::engine::in_flight::Release;
use crate::engine::replacement_pods;
use crate::engine::wave_queue::HeldNode;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, PodKey};
use crate::state::node_claims::NodeClaim;

/// Minimum number of pods per wave, if that many pods move, and maximum number of waves.
const PODS_MIN: usize = 150;
const WAVES_MAX: usize = 16;

/// Maximum time that a ready new node waits until all its pods may be evicted. The current nodes of
/// these pods may have other pods whose places are not ready yet.
const FREE_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Maximum time that pods with existing places wait, if the other pods of their node may not be
/// evicted yet.
const FIRST_MAX: SignedDuration = SignedDuration::from_secs(15);

/// A wave is over when all its pods are bound to the new nodes. It also ends [`SETTLES_MAX`] after
/// the nodes are untainted, or [`WAVE_MAX`] after its start if they remain tainted. If the next
/// wave started earlier, its pods could take places of the pending pods.
const SETTLES_MAX: SignedDuration = SignedDuration::from_secs(5);
const WAVE_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Starts the next wave when the previous one is over.
pub(in crate::engine) fn start_next_wave(
    cx: &mut Context,
    consolidation: &Consolidation,
    nominations: &Nominations,
    now: Timestamp,
) {
    let held = held_nodes(cx, consolidation, nominations, now);

    let state = &cx.state;
    let mut is_over = true;
    cx.waves.begun.retain(|id, at| {
        let claim = state.ledger.claims.get(id).filter(|claim| claim.takes_pods());
        let Some(claim) = claim else {
            return false;
        };
        if is_tainted_target(claim) {
            let waits = now.duration_since(*at) < WAVE_MAX;
            is_over &= !waits;
            // The start of the wave is kept, because without it the node would wait for another
            // wave.
            return waits || held.iter().any(|node| node.id == *id);
        }
        let comes =
            now.duration_since(claim.since) < SETTLES_MAX && state.pods_of(claim).next().is_some();
        is_over &= !comes;
        comes
    });
    let next = held.iter().filter(|node| !cx.waves.begun.contains_key(&node.id));
    let next: Vec<&HeldNode> = next.collect();
    let total: usize = next.iter().map(|node| node.reschedulable.len()).sum();
    let wave_size = PODS_MIN.max(total.div_ceil(WAVES_MAX));
    let mut room = if is_over { wave_size } else { 0 };
    cx.waves.later.clear();
    for node in next {
        if node.may_leave && room > 0 {
            room = room.saturating_sub(node.reschedulable.len());
            cx.waves.begun.insert(node.id.clone(), now);
        } else {
            cx.waves.later.extend(node.reschedulable.iter().cloned());
        }
    }
    if cx.waves.has_queued() {
        replacement_pods::recheck_held_nodes(cx, now);
    }
}

/// Returns the new nodes that remain tainted for pods on other nodes, in the order of their
/// registration. If other pods have waited too long for a node, it is about to be untainted, and no
/// pod is evicted for it. Pods whose node is terminated in any case are in no wave.
fn held_nodes(
    cx: &Context,
    consolidation: &Consolidation,
    nominations: &Nominations,
    now: Timestamp,
) -> Vec<HeldNode> {
    let claims = cx.state.ledger.claims.values();
    let closed = claims.filter(|claim| is_tainted_target(claim)).map(|claim| {
        let (held, prepared) = (
            replacement_pods::is_held(cx, consolidation, nominations, claim, now),
            replacement_pods::is_prepared(cx, nominations, claim),
        );
        (claim, held, prepared)
    });
    let mut shut: Vec<(&NodeClaim, bool, bool)> =
        closed.filter(|(_, held, prepared)| *held || *prepared).collect();
    if shut.is_empty() {
        return Vec::new();
    }
    shut.sort_by_key(|(claim, ..)| (claim.since, &claim.record.id));
    // Pods with existing places go first, or other pods would take these places.
    let claims = cx.state.ledger.claims.values();
    let open = claims
        .filter(|claim| claim.phase == ClaimPhase::Initialized && claim.takes_pods())
        .flat_map(|claim| &claim.pods);
    let none_first = !cx.placements.pods_on_existing_nodes().chain(open).any(|key| {
        can_wait(cx, key, now) && (is_evictable_now(cx, key) || !has_waited_long(cx, key, now))
    });
    shut.into_iter()
        .map(|(claim, held, prepared)| {
            let pods = claim.pods.iter().filter(|key| can_wait(cx, key, now));
            let reschedulable: Vec<PodKey> = pods.cloned().collect();
            let late = now.duration_since(claim.since) >= FREE_MAX;
            HeldNode {
                id: claim.record.id.clone(),
                may_leave: held
                    && prepared
                    && (late
                        || none_first && reschedulable.iter().all(|key| is_evictable_now(cx, key))),
                reschedulable,
            }
        })
        .collect()
}

/// Returns whether a pod is to be evicted for a reason that can wait for a wave.
fn can_wait(cx: &Context, pod: &PodKey, now: Timestamp) -> bool {
    cx.state.objects.pods.get(pod).is_some_and(|pod| {
        let reason = cx.state.claim_under(pod).and_then(|claim| claim.leaving);
        let goes_anyway = reason.is_some_and(|reason| !reason.waits_for_placements());
        !goes_anyway && cx.state.is_reschedulable(pod, now)
    })
}

/// Returns whether all pods of a disrupted node belong to later waves. The deadline of the node
/// does not run meanwhile.
pub(in crate::engine) fn waits_for_wave(cx: &Context, id: &ClaimId, now: Timestamp) -> bool {
    let begun = cx.drain_of(id).is_some_and(|drain| matches!(drain.release, Release::Begun { .. }));
    let claim = cx.claim(id).filter(|_| !begun);
    let node = claim.and_then(|claim| claim.node.as_ref());
    let pods = node.map(|node| cx.state.objects.pods_on(node.as_str()));
    let mut pods = pods.into_iter().flatten();
    let mut waits = false;
    pods.all(|pod| {
        let later = cx.waves.is_in_later_wave(&pod.key);
        waits |= later;
        later || !pod.holds_drain(now)
    }) && waits
}

/// Returns whether a pod's node has been in disruption for at least [`FIRST_MAX`].
fn has_waited_long(cx: &Context, pod: &PodKey, now: Timestamp) -> bool {
    let pod = cx.state.objects.pods.get(pod);
    let claim = pod.and_then(|pod| cx.state.claim_under(pod));
    claim.is_none_or(|claim| now.duration_since(claim.since) >= FIRST_MAX)
}

/// Returns whether a pod may be evicted from its node.
fn is_evictable_now(cx: &Context, pod: &PodKey) -> bool {
    let pod = cx.state.objects.pods.get(pod);
    let claim = pod.and_then(|pod| cx.state.claim_under(pod));
    claim.is_some_and(|claim| may_evict(cx, &claim.record.id))
}

/// Returns whether the pods of a claim's node may be evicted.
pub(in crate::engine) fn may_evict(cx: &Context, id: &ClaimId) -> bool {
    cx.drain_of(id).is_some_and(|drain| drain.release.is_released())
}

/// Returns whether a claim accepts pods and its node is not initialized yet.
fn is_tainted_target(claim: &NodeClaim) -> bool {
    claim.phase < ClaimPhase::Initialized && claim.takes_pods()
}
