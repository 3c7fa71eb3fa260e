//! Deleted Nodes whose instances still run: evicts their pods and terminates the instances.

use jiff::{SignedDuration, Timestamp};

use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::controllers::Interruptions;
use crate::engine::drain::eviction;
use crate::engine::in_flight::Cancellation;
use crate::engine::sync;
use crate::engine::undrained_terminations;
use crate::model::id::{ClaimId, NodeName};
use crate::model::pool::Reason;
use crate::model::watched_object::ObjectKind;

/// Returns whether a registered claim's Node is gone. Its instance is terminated after a while,
/// but not while the cluster state is out of sync.
pub(in crate::engine) fn handle_vanished_node(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) -> bool {
    let Some(claim) = cx.claim(id) else {
        return true;
    };
    if cx.node_of(claim).is_some() {
        let leaves = claim.leaving.is_some();
        if let Some(progress) = cx.progress.get_mut(id) {
            let was_missed = progress.node_missed.take().is_some();
            progress.overdue = None;
            if was_missed && !leaves {
                let evictions = std::mem::take(&mut progress.drain.evictions);
                // The Node exists again, so the queued evictions of its pods are cancelled.
                claim_steps::cancel_claim_commands(
                    cx,
                    |command| match command {
                        Command::Evict { pod, .. } => evictions.contains_key(pod),
                        _ => false,
                    },
                    now,
                );
            }
        }
        return false;
    }
    let bound = claim.node.clone().filter(|name| claims::has_pods(cx, name));
    let progress = cx.progress.entry(id.clone()).or_default();
    let since = *progress.node_missed.get_or_insert(now);
    let due = claims::condition_deadline(cx, since, NODE_MISSED_MAX);
    let evicts =
        bound.as_ref().is_some_and(|name| evict_pods_of_vanished_node(cx, id, name, since, now));
    if due > now {
        cx.outbox.wake_at(due, "a node has vanished");
    } else if evicts {
        let next_check = claims::condition_deadline(cx, now, PODS_LEFT_AGAIN);
        cx.outbox.wake_at(next_check, "the pods of a node that was deleted are evicted");
    } else if bound.is_some_and(|name| !cx.sync.gone_nodes.contains(&name)) {
        // The Node may exist although the listing lacks it, because pods are bound to it. A
        // probe checks it.
        let next_check = claims::condition_deadline(cx, now, PODS_LEFT_AGAIN);
        cx.outbox.wake_at(next_check, "pods are bound to a node that has vanished");
    } else if cx.is_ready() && is_confirmed_missing(cx, id, now) {
        claim_steps::terminate_undrained(cx, interruptions, id, Reason::Orphaned, now);
    }
    true
}

/// Evicts the pods of a Node that a user has deleted, until the API server has none left.
/// Returns whether pods remain.
///
/// While the Node is only missing from listings, no pod is evicted: the watch has to show the
/// deletion, or a probe has to confirm it. No pod is evicted either while the safeguard on
/// terminations without a drain holds, because many Nodes that disappear simultaneously are a
/// mistake.
pub(in crate::engine) fn evict_pods_of_vanished_node(
    cx: &mut Context,
    id: &ClaimId,
    node: &NodeName,
    since: Timestamp,
    now: Timestamp,
) -> bool {
    let (from, until) = (
        claims::condition_deadline(cx, since, EVICTS_AFTER),
        claims::condition_deadline(cx, since, EVICTS_MAX),
    );
    if cx.outbox.waits_until(from, "the pods of a node that has vanished may be evicted", now) {
        return false;
    }
    let accepted = cx
        .claim(id)
        .is_some_and(|claim| undrained_terminations::is_termination_approved(cx, claim));
    let is_deleted = cx.sync.gone_nodes.contains(node);
    let may = is_deleted && cx.is_managing() && cx.is_ready() && until > now;
    let evicts = may
        && (accepted || undrained_terminations::is_within_safeguard(cx, id, now))
        && is_confirmed_missing(cx, id, now);
    if evicts {
        // A Node that does not exist cannot be kept, so no cancellation holds the evictions up.
        let drain = &mut cx.progress_of(id).drain;
        drain.set_cancellation(Cancellation::Possible);
        drain.held.clear();
    }
    evicts && eviction::evict_pods(cx, id, node, now)
}

/// Returns whether nodes were listed again since a claim's Node was first missing. The Node may
/// exist although the watch does not show it.
pub(in crate::engine) fn is_confirmed_missing(
    cx: &mut Context,
    id: &ClaimId,
    now: Timestamp,
) -> bool {
    let resets = cx.sync.listing_count(ObjectKind::Node);
    let overdue = cx.progress_of(id).overdue;
    if overdue.is_some_and(|(_, before)| resets > before) {
        return true;
    }
    // The requested listing may be lost, so request it again.
    let next = overdue.and_then(|(asked, _)| asked.checked_add(LOOK_AGAIN).ok());
    if cx.outbox.waits_until(next, "list the nodes again", now) {
        return false;
    }
    cx.progress_of(id).overdue = Some((now, resets));
    sync::restart_watch(cx, ObjectKind::Node, now);
    let next = now.checked_add(LOOK_AGAIN).unwrap_or(now);
    cx.outbox.wake_at(next, "list the nodes again");
    false
}

/// A Node that vanished while its instance runs was deleted by a user. The instance is terminated
/// after this time, unless the Node comes back.
pub(in crate::engine) const NODE_MISSED_MAX: SignedDuration = SignedDuration::from_secs(60);

/// Interval between checks while pods are bound to a Node that has vanished.
pub(in crate::engine) const PODS_LEFT_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// Delay before the pods of a vanished Node are evicted, and maximum wait for these pods.
pub(in crate::engine) const EVICTS_AFTER: SignedDuration = SignedDuration::from_secs(20);

pub(in crate::engine) const EVICTS_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Before the engine terminates an instance because its Node is missing, it lists the nodes again.
/// The engine repeats the request for this listing after this time.
pub(in crate::engine) const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(60);
