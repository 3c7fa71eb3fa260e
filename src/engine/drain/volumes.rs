//! Waits for the volumes of a drained node to be detached before the instance is terminated.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::drain::eviction;
use crate::engine::in_flight::ClaimStep;
use crate::model::id::{ClaimId, NodeName, ObjectKey};
use crate::model::watched_object::Attachment;

/// Maximum wait for volumes without a deadline. After this time Kubernetes detaches the volumes of
/// an unresponsive node (maxWaitForUnmountDuration of the attach/detach controller). The reason for
/// a limit is in docs/decisions/022-termination-of-a-node.md.
const DETACH_MAX: SignedDuration = SignedDuration::from_mins(6);

/// Minimum interval between listings of a node's attachments from the API server.
const LIST_APART: SignedDuration = SignedDuration::from_secs(5);

/// Returns whether the wait for the volumes of a drained node is over: none is attached, or the
/// time is up. If the pods had no volumes, the API server is not called.
pub(in crate::engine) fn wait_for_detach(
    cx: &mut Context,
    id: &ClaimId,
    node: &NodeName,
    now: Timestamp,
) -> bool {
    let is_over = cx.drain_of(id).is_some_and(|drain| drain.detach.over);
    if cx.state.objects.volumes.is_empty() || is_over {
        return true;
    }
    let drain = &mut cx.progress_of(id).drain;
    let (since, deadline) = (*drain.detach.since.get_or_insert(now), drain.deadline());
    let until = deadline.unwrap_or_else(|| claims::condition_deadline(cx, since, DETACH_MAX));
    if until <= now {
        eviction::report_forced_drain(cx, id, node, now);
        cx.progress_of(id).drain.detach.over = true;
        return true;
    }
    eviction::report_blocked_drain(cx, id, node, now);
    let detach = &mut cx.progress_of(id).drain.detach;
    let next = detach.next_list.filter(|at| *at > now);
    if next.is_none() {
        detach.next_list = now.checked_add(LIST_APART).ok();
        let list = Command::ListAttachments { node: node.clone() };
        claim_steps::send_step(cx, id, ClaimStep::ListAttachments, list, now);
    }
    let wake = next.map_or(until, |at| at.min(until));
    cx.outbox.wake_at(wake, "volumes should be detached by now");
    false
}

/// Handles a listing of a node's attachments.
pub(in crate::engine) fn on_attachments_listed(
    cx: &mut Context,
    id: &ClaimId,
    attachments: Vec<Attachment>,
    now: Timestamp,
) {
    let node = cx.claim(id).and_then(|claim| claim.node.as_ref());
    let kept = node.map_or_else(BTreeSet::new, |node| retained_volumes(cx, node, now));
    let remaining: Vec<Attachment> = attachments
        .into_iter()
        .filter(|attachment| !attachment.volume.is_empty() && !kept.contains(&attachment.volume))
        .collect();
    if let Some(progress) = cx.progress.get_mut(id) {
        progress.retry = Default::default();
        progress.drain.detach.over = remaining.is_empty();
        progress.drain.detach.left = remaining;
    }
}

/// Returns the volumes of pods that run until the node is terminated: nothing detaches them
/// before.
fn retained_volumes(cx: &Context, node: &NodeName, now: Timestamp) -> BTreeSet<String> {
    let pods = cx.state.objects.pods_on(node.as_str());
    let pods = pods.filter(|pod| pod.runs_until_termination(now) && !pod.is_terminal());
    let claims = pods.flat_map(|pod| {
        let namespace = pod.key.namespace.as_str();
        let names = pod.volume_claims.iter();
        names.map(move |name| ObjectKey::new(namespace, name.as_str()))
    });
    let claims = claims.filter_map(|key| cx.state.objects.volume_claims.get(&key));
    claims.map(|claim| claim.volume.clone()).collect()
}
