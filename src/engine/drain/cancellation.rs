//! Cancels the disruption of a node: the node is untainted and kept for a while.

use jiff::{SignedDuration, Timestamp};

use crate::engine::claim_steps;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::drain;
use crate::engine::in_flight::ClaimStep;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::ClaimId;
use crate::model::pool::Reason;

/// A node whose disruption was cancelled is kept at least this long, and twice as long after each
/// further cancellation.
pub(in crate::engine) const WITHDRAWN_MIN: SignedDuration = SignedDuration::from_mins(1);

pub(in crate::engine) const WITHDRAWN_DOUBLED_MAX: u32 = 6;

/// Maximum time until a sent taint is on its node: the API server answers within 20 s. The watch of
/// nodes shows the taint with its next event.
pub(in crate::engine) const TAINT_LAG: SignedDuration = SignedDuration::from_secs(30);

/// Cancels the disruption of a node that could not be drained, and keeps it longer each time.
pub(in crate::engine) fn cancel_drain(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    why: String,
    now: Timestamp,
) {
    let times = cancellation_count(cx, id);
    let wait = WITHDRAWN_MIN * 2_i32.pow(times.min(WITHDRAWN_DOUBLED_MAX));
    cancel_and_back_off(cx, consolidation, id, why, wait, times.saturating_add(1), now);
}

/// Cancels the disruption of a node for a reason outside the node.
pub(in crate::engine) fn postpone_drain(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    why: String,
    now: Timestamp,
) {
    let times = cancellation_count(cx, id);
    cancel_and_back_off(cx, consolidation, id, why, WITHDRAWN_MIN, times, now);
}

pub(in crate::engine) fn cancellation_count(cx: &Context, id: &ClaimId) -> u32 {
    let withdrawn = cx.claim(id).and_then(|claim| claim.withdrawn);
    withdrawn.map_or(0, |(_, times)| times)
}

pub(in crate::engine) fn cancel_and_back_off(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    why: String,
    wait: SignedDuration,
    times: u32,
    now: Timestamp,
) {
    if let Some(claim) = cx.state.ledger.claims.get_mut(id) {
        claim.withdrawn = Some((now.checked_add(wait).unwrap_or(now), times));
    }
    cancel_disruption(cx, consolidation, id, why, now);
}

/// Cancels the disruption of a node.
pub(in crate::engine) fn cancel_disruption(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    why: String,
    now: Timestamp,
) {
    consolidation.record_kept_node(cx, id, now);
    let unseen = cx.state.cluster.api.silence_max() + TAINT_LAG;
    let Some(claim) = cx.state.ledger.claims.get_mut(id) else {
        return;
    };
    let reason = claim.leaving.take().unwrap_or(Reason::Empty);
    let progress = cx.progress.entry(id.clone()).or_default();
    let tainted = progress.drain.taint.confirmed.is_some();
    // An unanswered taint may still be in flight.
    let in_flight = matches!(progress.step, Some((_, ClaimStep::Taint)));
    let closed = match tainted || in_flight {
        true => Some(now),
        false => progress.drain.taint.sent,
    };
    claim.closing_until = closed.and_then(|at| at.checked_add(unseen).ok());
    let evictions = std::mem::take(&mut progress.drain.evictions);
    // If the Node vanishes later, no deadline and no cancellation of this drain may apply.
    (progress.drain.period, progress.drain.release) = Default::default();
    claim_steps::cancel_claim_commands(
        cx,
        |command| match command {
            Command::Evict { pod, .. } | Command::DeletePod { pod, .. } => {
                evictions.contains_key(pod)
            }
            _ => false,
        },
        now,
    );
    cx.outbox.push_report(Report::Kept { claim: id.clone(), reason, why });
    claim_steps::enter_phase(cx, id, ClaimPhase::Initialized, now);
    send_untaint(cx, id, now);
}

/// Handles the removal of the taint from a node that is kept.
pub(in crate::engine) fn on_untainted(cx: &mut Context, id: &ClaimId) {
    if let Some(claim) = cx.state.ledger.claims.get_mut(id) {
        claim.closing_until = None;
    }
    claim_steps::on_step_succeeded(cx, id);
}

/// Removes the disrupted taint and everything written with it, as far as the Node still has them.
pub(in crate::engine) fn send_untaint(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let Some(node) = cx.node_of(claim) else {
        return;
    };
    if !node.is_marked() {
        return;
    }
    let patch = drain::untaint_patch(node);
    claim_steps::send_step(cx, id, ClaimStep::Untaint, Command::PatchNode(patch), now);
}
