//! Finds expired nodes. Each node expires slightly early, by its own fraction of the lifetime, so
//! that nodes launched in the same hour do not all expire together. Nodes beyond their maximum age
//! are disrupted despite any blocker.

use jiff::{SignedDuration, Timestamp};

use crate::disruption::budgets::Budgets;
use crate::disruption::eligibility::{retaining_verdict, sweep_verdict};
use crate::disruption::verdict::RetainedNode;
use crate::model::claim::ClaimRecord;
use crate::model::labels::CLAIM;
use crate::model::pool::{Pool, Reason};
use crate::model::template_hash::spread_below;
use crate::state::candidates::{Candidate, DisruptionView};

/// Highest percentage of the lifetime by which a node expires early.
const SOONER_PER_CENT: u64 = 10;

/// Returns when the node of a claim expires, or `None` if it never does.
pub fn claim_expiry(record: &ClaimRecord) -> Option<Timestamp> {
    expiry_of(record.id.as_str(), record.created, record.expire_after?)
}

/// Returns when a candidate expires, according to its claim or, if only its Node is known, to its
/// pool.
pub fn candidate_expiry(candidate: &Candidate<'_>, pool: &Pool) -> Option<Timestamp> {
    if let Some(claim) = candidate.claim {
        return claim_expiry(&claim.record);
    }
    let id = candidate.node.annotations.get(CLAIM);
    expiry_of(id?, candidate.born?, pool.expire_after?)
}

/// Returns whether a node without a claim is beyond the maximum age of its pool.
fn is_overdue(candidate: &Candidate<'_>, pool: &Pool, now: Timestamp) -> bool {
    let hard = candidate.born.zip(pool.expire_hard_after);
    hard.and_then(|(born, after)| born.checked_add(after).ok()).is_some_and(|at| at <= now)
}

fn expiry_of(id: &str, born: Timestamp, after: SignedDuration) -> Option<Timestamp> {
    let lifetime = u64::try_from(after.as_secs()).unwrap_or(0);
    let sooner = spread_below(id, lifetime * SOONER_PER_CENT / 100);
    let after = after.as_secs().saturating_sub_unsigned(sooner);
    born.checked_add(SignedDuration::from_secs(after)).ok()
}

/// Returns the expired nodes to disrupt, and the verdicts for the other expired nodes. Nodes beyond
/// their maximum age come first, each group oldest first.
pub fn select_expired<'a>(
    disruption_view: &'a DisruptionView<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Vec<&'a Candidate<'a>>, Vec<RetainedNode>) {
    let candidates = disruption_view.candidates.iter();
    let candidates = candidates.filter(|candidate| !budgets.has_acquired(candidate));
    let due = candidates.filter_map(|candidate| {
        let pool = disruption_view.cluster.pool(candidate.pool.as_str());
        let (hard, at) = match candidate.claim.map(|claim| &claim.record) {
            Some(record) => (record.is_overdue(now), claim_expiry(record)),
            None => (is_overdue(candidate, pool?, now), candidate_expiry(candidate, pool?)),
        };
        let is_due = hard || at.is_some_and(|at| at <= now);
        is_due.then_some((!hard, candidate.born, candidate))
    });
    let mut due: Vec<_> = due.collect();
    due.sort_by_key(|(soft, at, candidate)| (*soft, *at, &candidate.node.name));
    let mut kept = Vec::new();
    let mut leave = Vec::new();
    for (soft, _, candidate) in due {
        if !soft {
            budgets.force_acquire(candidate);
            leave.push(candidate);
            continue;
        }
        let pool = disruption_view.cluster.pool(candidate.pool.as_str());
        match retaining_verdict(candidate, pool, Reason::Expired, now)
            .or_else(|| sweep_verdict(disruption_view, candidate, Reason::Expired, now))
            .map_or_else(|| budgets.try_acquire(candidate, Reason::Expired), Err)
        {
            Ok(()) => leave.push(candidate),
            Err(verdict) => kept.push(RetainedNode::new(candidate, Reason::Expired, verdict)),
        }
    }
    (leave, kept)
}
