//! Requires places for pods that may be evicted only after the drain of their node has begun.
//!
//! Evictions begin when each reschedulable pod has a place. Other pods may become evictable later:
//! a pod whose protection ends, a pod that a PodDisruptionBudget no longer blocks permanently, and
//! a pod that was bound just before the taint. After a restart, or if another client has removed
//! the taint, the places of all pods are unknown.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::context::Context;
use crate::engine::controllers::Nominations;
use crate::engine::drain::{PLACES_MAX, eviction};
use crate::engine::in_flight::{DrainState, Release};
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
    let pods = cx.state.reschedulable_of(claim, now);
    let pods = pods.filter(|pod| pod.owner.is_some() && pod.is_active() && pod.holds_drain(now));
    let due_from = |pod| deadline.map(|deadline| eviction::deletion_due_from(pod, deadline));
    let pods: BTreeMap<PodKey, Option<Timestamp>> =
        pods.map(|pod| (pod.key.clone(), due_from(pod))).collect();
    let drain = &mut cx.progress_of(id).drain;
    let has_begun = matches!(drain.release, Release::Begun { .. });
    let known = std::mem::take(&mut drain.reschedulable_since);
    let mut waiting = Vec::new();
    drain.placed.retain(|pod| pods.contains_key(pod));
    for (pod, due) in pods {
        if !has_begun {
            // Evictions may begin now, because each of these pods has a place.
            drain.placed.insert(pod);
        } else if !drain.placed.contains(&pod) {
            let since = known.get(&pod).copied().unwrap_or(now);
            drain.reschedulable_since.insert(pod.clone(), since);
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
