//! Requires places for pods that may be evicted only after the drain of their node has begun.
//!
//! Evictions begin when each reschedulable pod has a place. A pod that must not be disrupted then,
//! or that a PodDisruptionBudget blocks permanently, is not reschedulable and needs no place. Its
//! protection may end during the drain. A drain that an earlier process began has unknown places.

use jiff::Timestamp;

use crate::engine::context::Context;
use crate::engine::controllers::Nominations;
use crate::engine::drain::{PLACES_MAX, eviction};
use crate::engine::in_flight::DrainState;
use crate::engine::replacement_pods;
use crate::model::id::{ClaimId, PodKey};
use crate::model::pool::Reason;

/// Decides which pods of a drained node are not evicted yet because they have no place on another
/// node. A pod waits at most [`PLACES_MAX`] after it has become reschedulable, and at most half the
/// time until its deletion for the deadline of the node: its PodDisruptionBudgets apply only to
/// evictions.
pub(super) fn hold_pods_without_places(
    cx: &mut Context,
    nominations: &Nominations,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) {
    let Some(claim) = cx.claim(id).filter(|_| reason.waits_for_placements()) else {
        cx.progress_of(id).drain.held.clear();
        return;
    };
    let deadline = cx.drain_of(id).and_then(DrainState::deadline);
    let node = claim.node.as_ref().map_or("", |name| name.as_str());
    let pods = cx.state.objects.pods_on(node);
    let pods = pods.filter(|pod| pod.owner.is_some() && pod.is_active() && pod.holds_drain(now));
    let pods: Vec<(PodKey, bool, Option<Timestamp>)> = pods
        .map(|pod| {
            let due = deadline.map(|deadline| eviction::deletion_due_from(pod, deadline));
            (pod.key.clone(), cx.state.is_reschedulable(pod, now), due)
        })
        .collect();
    let unplaced = &mut cx.progress_of(id).drain.unplaced;
    let known = std::mem::take(unplaced);
    let mut waiting = Vec::new();
    for (pod, is_reschedulable, due) in pods {
        if !is_reschedulable {
            unplaced.insert(pod, None);
        } else if let Some(since) = known.get(&pod) {
            let since = since.unwrap_or(now);
            unplaced.insert(pod.clone(), Some(since));
            let half = due.map_or(PLACES_MAX, |due| due.duration_since(since) / 2);
            let until = since.checked_add(half.min(PLACES_MAX)).unwrap_or(now);
            waiting.extend((until > now).then_some((pod, until)));
        }
    }
    waiting.retain(|(pod, _)| {
        !replacement_pods::have_places(cx, nominations, std::slice::from_ref(pod), now)
    });
    let until = waiting.iter().map(|(_, until)| *until).min();
    cx.outbox.wake_at(until, "a pod of a drained node should have a place by now");
    cx.progress_of(id).drain.held = waiting.into_iter().map(|(pod, _)| pod).collect();
}

/// Records that the places of pods on a node are unknown: an earlier process began its drain, or
/// another client has removed the taint, so that pods may have been bound.
pub(super) fn forget_places(cx: &mut Context, id: &ClaimId) {
    let node = cx.claim(id).and_then(|claim| claim.node.as_ref());
    let pods = cx.state.objects.pods_on(node.map_or("", |name| name.as_str()));
    let pods: Vec<PodKey> = pods.map(|pod| pod.key.clone()).collect();
    let unplaced = &mut cx.progress_of(id).drain.unplaced;
    for pod in pods {
        unplaced.entry(pod).or_default();
    }
}
