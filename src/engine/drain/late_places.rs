//! Requires places for pods that may be evicted only after the drain of their node has begun.
//!
//! Evictions begin when each reschedulable pod has a place. A pod that must not be disrupted then,
//! or that a PodDisruptionBudget blocks permanently, is not reschedulable and needs no place. Its
//! protection may end during the drain. A drain that an earlier process began has unknown places.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::engine::context::Context;
use crate::engine::controllers::Nominations;
use crate::engine::drain::PLACES_MAX;
use crate::engine::replacement_pods;
use crate::model::id::{ClaimId, PodKey};
use crate::model::pod::Pod;
use crate::model::pool::Reason;

/// Returns the pods of a drained node that are not evicted yet because they have no place on
/// another node. A pod waits at most [`PLACES_MAX`] after it has become reschedulable.
pub(super) fn pods_without_places(
    cx: &mut Context,
    nominations: &Nominations,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) -> BTreeSet<PodKey> {
    let Some(claim) = cx.claim(id).filter(|_| reason.waits_for_placements()) else {
        return BTreeSet::new();
    };
    let node = claim.node.as_ref().map_or("", |name| name.as_str());
    let pods = cx.state.objects.pods_on(node);
    let pods = pods.filter(|pod| pod.owner.is_some() && pod.is_active() && pod.holds_drain(now));
    let reschedulable = |pod: &Pod| cx.state.is_reschedulable(pod, now);
    let pods: Vec<(PodKey, bool)> = pods.map(|pod| (pod.key.clone(), reschedulable(pod))).collect();
    let unplaced = &mut cx.progress_of(id).drain.unplaced;
    unplaced.retain(|known, _| pods.iter().any(|(pod, _)| pod == known));
    let mut waiting = Vec::new();
    for (pod, is_reschedulable) in pods {
        if !is_reschedulable {
            unplaced.entry(pod).or_default();
        } else if let Some(since) = unplaced.get_mut(&pod) {
            let until = since.get_or_insert(now).checked_add(PLACES_MAX).unwrap_or(now);
            waiting.extend((until > now).then_some((pod, until)));
        }
    }
    waiting.retain(|(pod, _)| {
        !replacement_pods::have_places(cx, nominations, std::slice::from_ref(pod), now)
    });
    let until = waiting.iter().map(|(_, until)| *until).min();
    cx.outbox.wake_at(until, "a pod of a drained node should have a place by now");
    waiting.into_iter().map(|(pod, _)| pod).collect()
}

/// Records that the places of all pods of a node are unknown, because an earlier process began its
/// drain.
pub(super) fn forget_places(cx: &mut Context, id: &ClaimId) {
    let node = cx.claim(id).and_then(|claim| claim.node.as_ref());
    let pods = cx.state.objects.pods_on(node.map_or("", |name| name.as_str()));
    let unplaced = pods.map(|pod| (pod.key.clone(), None)).collect();
    cx.progress_of(id).drain.unplaced = unplaced;
}
