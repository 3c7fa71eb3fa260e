//! Selects the offerings of a launch. A recently refused offering is tried by one launch at a time,
//! and other launches request it once that launch has succeeded.

use jiff::{SignedDuration, Timestamp};

use crate::engine::claims;
use crate::engine::context::Context;
use crate::engine::in_flight::ClaimProgress;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::ClaimId;
use crate::provider::requested_offerings;
use crate::state::unavailable_offerings::Access;

/// Maximum wait of a launch for the launch that tries an offering. EC2 answers within seconds.
const TRIED_MAX: SignedDuration = SignedDuration::from_secs(20);

/// Returns whether a claim may be launched now. Removes the offerings that its launch must not
/// request: unavailable ones and those that a different launch is trying.
///
/// The claim was planned for its first offering, which is the cheapest. If a different launch tries
/// this offering, the claim waits. If the offering is unavailable, the pods of the claim are
/// planned again.
pub(super) fn narrow_offerings(cx: &mut Context, id: &ClaimId, now: Timestamp) -> bool {
    let Some(claim) = cx.claim(id) else {
        return false;
    };
    if cx.state.holds.is_empty() {
        return true;
    }
    let class = claim.record.node_class.clone();
    let access: Vec<Access> = claim
        .offerings
        .iter()
        .map(|offering| {
            cx.state.holds.access_for(class.as_ref(), offering, now, |other| {
                other != id && is_launch_in_flight(cx, other)
            })
        })
        .collect();
    let waits = match access.first() {
        None => return true,
        Some(Access::Held) => {
            let (claim, next) = (id.clone(), None);
            cx.outbox.push_report(Report::ClaimRenewed { claim, next });
            claims::forget_claim(cx, id);
            return false;
        }
        Some(access) => *access == Access::Tried,
    };
    let until = claim.since.checked_add(TRIED_MAX).unwrap_or(now);
    if waits && now < until {
        cx.outbox.wake_at(until, "the trial launch of an offering takes too long");
        return false;
    }
    let pool = cx.state.cluster.pool(claim.record.pool.as_str());
    // EC2 could refuse a launch with fewer types than `min_values` of the pool requires.
    let is_varied = pool.is_some_and(|pool| pool.is_varied());
    let Some(claim) = cx.state.ledger.claims.get_mut(id) else {
        return false;
    };
    let mut access = access.iter();
    claim.offerings.retain(|_| {
        access.next().is_some_and(|access| match access {
            Access::Free => true,
            Access::Tried => waits || is_varied,
            Access::Held => is_varied,
        })
    });
    for offering in requested_offerings(&claim.offerings, is_varied) {
        cx.state.holds.record_request(class.as_ref(), offering, id, now);
    }
    true
}

/// Returns whether a launch of the claim is in flight, or a grant for its usage was requested from
/// the fleet.
fn is_launch_in_flight(cx: &Context, id: &ClaimId) -> bool {
    cx.claim(id).is_some_and(|claim| match claim.phase {
        ClaimPhase::Planned => cx.progress.get(id).is_some_and(ClaimProgress::is_grant_requested),
        phase => phase == ClaimPhase::Launching,
    })
}
