//! The grant and the record that a disruption needs before its node is tainted.

use jiff::{SignedDuration, Timestamp};

use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::drain::cancellation;
use crate::engine::fleet_sync::FleetSync;
use crate::engine::in_flight::Clearance;
use crate::model::id::ClaimId;
use crate::model::pool::Reason;

/// A disruption is cancelled if its grant and its record take longer than this.
pub(in crate::engine) const WRITE_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Returns whether a disrupted node may be tainted. A pause blocks the taint, and a disruption that
/// a rate counts must be recorded before it. A node at its hard maximum age waits neither for the
/// end of a pause nor for the record.
pub(in crate::engine) fn try_clear(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    fleet: &FleetSync,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) -> bool {
    let cleared = cx.drain_of(id).is_some_and(|drain| drain.clearance == Clearance::Cleared);
    if cleared || !reason.is_budgeted() {
        return true;
    }
    let Some(claim) = cx.claim(id) else {
        return false;
    };
    if claim.must_be_disrupted(now) {
        cx.progress_of(id).drain.clearance = Clearance::Cleared;
        return true;
    }
    let pool = claim.record.pool.clone();
    let paused = cx.state.notes.pause_of(&pool, now);
    if let Some((_, pause)) = paused {
        let why = format!("paused: {}", pause.reason);
        cancellation::cancel_disruption(cx, consolidation, id, why, now);
        return false;
    }
    let until = claim.since.checked_add(WRITE_MAX).unwrap_or(now);
    if until <= now {
        let why = format!("the disruption was not granted and recorded within {WRITE_MAX:#}");
        cancellation::cancel_drain(cx, consolidation, id, why, now);
        return false;
    }
    cx.outbox.wake_at(until, "request a grant for a disruption");
    if fleet.request_disruption(cx, id, reason, now) {
        return false;
    }
    let counted = cx.budgets_for(&pool).any(|budget| budget.rate_for(reason).is_some());
    let clearance = &mut cx.progress_of(id).drain.clearance;
    *clearance = match counted {
        true => Clearance::Recording { granted: clearance.is_granted() },
        false => Clearance::Cleared,
    };
    !counted
}
