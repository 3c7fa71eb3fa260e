//! Deadlines of drains, and what happens to a drain that is blocked for too long.

use jiff::{SignedDuration, Timestamp};

use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::command::{Command, NodePatch};
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::drain::cancellation;
use crate::engine::drain::eviction;
use crate::engine::in_flight::{Cancellation, ClaimStep, Deadline, DrainState, EvictionPeriod};
use crate::model::id::ClaimId;
use crate::model::labels::{DISRUPTION_REASON, TERMINATION_AT};
use crate::model::node::Node;
use crate::model::pool::{OnBlocked, Reason};
use crate::state::drain_blockers::{DrainBlocker, format_blockers};
use crate::state::node_claims::NodeClaim;

/// Maximum time for pods that are deleted regardless of their PodDisruptionBudgets. Each pod keeps
/// its own grace period within this time, and then the node is terminated.
const FORCED_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Number of blockers listed in the report about a kept node.
const TOLD_MAX: usize = 3;

/// Records that the pods of a node are evicted from now on. Sets the deadline of the node, if it
/// has one. Source: spec/disruption.md §3.3.
pub(in crate::engine) fn start_deadline(
    cx: &mut Context,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) {
    let Some((claim, node)) = cx.claim_and_node(id) else {
        return;
    };
    let grace = claim.record.termination_grace_period;
    let written = node.termination_deadline();
    // The deadline of an unhealthy node, or of one that never started, is now: its pods do not
    // run.
    let fails = reason == Reason::Unhealthy || reason == Reason::TimedOut && !node.ready;
    let drain = &mut cx.progress_of(id).drain;
    let configured = grace.filter(|_| drain.period.is_none());
    let configured = configured.and_then(|grace| now.checked_add(grace).ok());
    let deadlines = [drain.deadline(), written, configured, fails.then_some(now)];
    let first = EvictionPeriod { began: now, ..Default::default() };
    let period = drain.period.get_or_insert(first);
    if let Some(at) = deadlines.into_iter().flatten().min() {
        period.deadline.get_or_insert(Deadline { at, forces: false }).at = at;
    }
}

/// Returns whether the Node still lacks its deadline annotation, and sends the patch. No pod is
/// deleted regardless of its budgets before the annotation is set.
pub(in crate::engine) fn write_deadline(cx: &mut Context, id: &ClaimId, now: Timestamp) -> bool {
    let node = cx.claim(id).and_then(|claim| cx.node_of(claim));
    let Some((node, at)) = node.zip(cx.drain_of(id).and_then(DrainState::deadline)) else {
        return false;
    };
    let is_written = node.termination_deadline().is_some_and(|deadline| deadline <= at);
    if !is_written && !claims::is_stale(cx, id, node) {
        let patch =
            NodePatch { annotations: vec![deadline_annotation(at)], ..NodePatch::for_node(node) };
        claim_steps::send_step(cx, id, ClaimStep::Deadline, Command::PatchNode(patch), now);
    }
    !is_written
}

/// Returns whether the deadline of a disrupted node and its annotated deadline have passed. A
/// node disrupted as empty is never terminated with pods on it.
pub(in crate::engine) fn is_deadline_over(cx: &Context, id: &ClaimId, now: Timestamp) -> bool {
    let Some((claim, node)) = cx.claim_and_node(id) else {
        return false;
    };
    let leaves = claim.leaving.is_some_and(|reason| reason != Reason::Empty);
    let known = cx.drain_of(id).and_then(DrainState::deadline);
    let deadlines = [known, node.termination_deadline()];
    leaves
        && node.has_disrupted_taint()
        && deadlines.iter().all(|at| at.is_some_and(|at| at <= now))
}

/// Applies `on_blocked` of the pool to a drain that is blocked for too long. Returns whether this
/// changed the drain or cancelled it.
pub(in crate::engine) fn on_drain_timeout(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) -> bool {
    let period = cx.drain_of(id).and_then(|drain| drain.period);
    let (Some(claim), Some(period)) = (cx.claim(id), period) else {
        return false;
    };
    let (policy, timeout) = {
        let pool = cx.pool_of(claim);
        (pool.disruption.on_blocked, pool.disruption.drain_timeout)
    };
    let stays = reason.is_voluntary()
        && period.cancellation != Cancellation::Impossible
        && !claim.must_be_disrupted(now);
    let may = match policy {
        // Without a deadline, this drain would wait forever and so block the disruption of other
        // nodes.
        OnBlocked::Wait => stays && period.deadline.is_none() && is_drain_stuck(cx, claim, now),
        OnBlocked::Abort => stays,
        OnBlocked::Force => !period.deadline.is_some_and(|deadline| deadline.forces),
    };
    let until = claims::condition_deadline(cx, period.began, timeout);
    let cancels = may && until <= now && policy != OnBlocked::Force;
    if period.cancellation == Cancellation::Pending && !cancels {
        // An interruption, a reload or the maximum age has ruled the cancellation out, or the
        // timeout is later now. The evictions that waited for the cancellation continue.
        cx.progress_of(id).drain.set_cancellation(Cancellation::Possible);
        cx.outbox.wake_at(now, "a drain is not cancelled, so its evictions continue");
    }
    if !may || cx.outbox.waits_until(until, "a node has stayed tainted for too long", now) {
        return false;
    }
    match policy {
        OnBlocked::Force => {
            force_drain(cx, id, now);
            true
        }
        _ => abort_drain(cx, consolidation, id, timeout, now),
    }
}

/// Returns whether a pod blocks the drain of a node until a user changes something.
fn is_drain_stuck(cx: &Context, claim: &NodeClaim, now: Timestamp) -> bool {
    let name = claim.node.as_ref().map_or("", |node| node.as_str());
    let mut pods = cx.state.objects.pods_on(name);
    pods.any(|pod| cx.state.objects.is_stuck(pod, now))
}

/// From now on, deletes the pods of a node regardless of their PodDisruptionBudgets.
fn force_drain(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let name = cx.claim(id).and_then(|claim| claim.node.as_ref());
    let name = name.map_or("", |name| name.as_str());
    let pods = cx.state.objects.pods_on(name);
    let graces = pods.filter(|pod| pod.holds_drain(now));
    let longest = graces.map(|pod| pod.grace_seconds.max(1)).max().unwrap_or(1);
    let longest = SignedDuration::from_secs(longest).min(FORCED_MAX);
    let at = now.checked_add(longest).unwrap_or(now);
    if let Some(period) = &mut cx.progress_of(id).drain.period {
        let at = period.deadline.map_or(at, |deadline| deadline.at.min(at));
        period.deadline = Some(Deadline { at, forces: true });
    }
    cx.outbox.wake_at(now, "delete pods in spite of their PodDisruptionBudgets");
}

/// Cancels a voluntary disruption, unless all remaining pods are terminating already.
fn abort_drain(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    timeout: SignedDuration,
    now: Timestamp,
) -> bool {
    let mut held = eviction::drain_blockers(cx, id, now);
    held.retain(|blocker| {
        !matches!(blocker, DrainBlocker::Ending { .. } | DrainBlocker::Volume(_))
    });
    let drain = &mut cx.progress_of(id).drain;
    if held.is_empty() {
        drain.set_cancellation(Cancellation::Possible);
        return false;
    }
    drain.set_cancellation(Cancellation::Pending);
    if drain.evictions.values().any(|eviction| eviction.in_flight) {
        return true;
    }
    let (first, more) = held.split_at(held.len().min(TOLD_MAX));
    let blockers = format_blockers(first, more.len());
    let why = format!("it was not drained within {timeout:#}: {blockers}");
    cx.state.recent.failed = Some(now);
    cancellation::cancel_drain(cx, consolidation, id, why, now);
    true
}

/// Returns the annotation with the deadline of a Node. It has whole seconds, as clients of RFC 3339
/// timestamps expect.
pub(crate) fn deadline_annotation(at: Timestamp) -> (String, Option<String>) {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(at);
    (TERMINATION_AT.to_owned(), Some(whole.to_string()))
}

/// Returns the disruption reason of a node if its disruption must be resumed after a restart. The
/// provider does not repeat an interruption notice.
pub(crate) fn unfinished_disruption(node: &Node) -> Option<Reason> {
    let reason = Reason::parse(node.annotations.get(DISRUPTION_REASON)?)?;
    let irrevocable = match reason {
        Reason::Empty => false,
        Reason::Interrupted => true,
        _ => node.termination_deadline().is_some(),
    };
    (irrevocable && node.has_disrupted_taint()).then_some(reason)
}
