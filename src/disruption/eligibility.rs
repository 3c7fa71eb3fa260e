//! What keeps a node whatever it would leave for.
//! It must not know what each reason for leaving asks beside.

use jiff::Timestamp;

use crate::disruption::verdict::Verdict;
use crate::model::id::NodeName;
use crate::model::pool::{Disruption, Pool, Reason};
use crate::state::candidates::{Candidate, DisruptionView};
use crate::state::what_if::WhatIf;

/// What keeps a node of a pool whatever it would leave for, if anything: for every reason that can
/// wait at all. What pods say does not count where the node has all its grace period to leave, and
/// how young it is does not where it leaves for its age.
pub fn kept_anyway(
    candidate: &Candidate<'_>,
    pool: Option<&Pool>,
    reason: Reason,
    now: Timestamp,
) -> Option<Verdict> {
    let Some(pool) = pool else {
        return Some(Verdict::NoPool);
    };
    let too_young = || too_young(candidate, pool, now).filter(|_| reason != Reason::Expired);
    objection(candidate, reason).or_else(too_young)
}

/// The same of a node whatever its pool says, or where its pool is gone.
pub fn objection(candidate: &Candidate<'_>, reason: Reason) -> Option<Verdict> {
    if candidate.node.deleting.is_some() {
        return Some(Verdict::Deleted);
    }
    if candidate.initialized.is_none() {
        return Some(Verdict::NotInitialized);
    }
    if candidate.nominated {
        return Some(Verdict::Nominated);
    }
    candidate.blocker_for(reason).cloned().map(Verdict::Blocked)
}

fn too_young(candidate: &Candidate<'_>, pool: &Pool, now: Timestamp) -> Option<Verdict> {
    let until = candidate.born?.checked_add(pool.disruption.min_age);
    let until = until.unwrap_or(Timestamp::MAX);
    (until > now).then_some(Verdict::TooYoung { until })
}

/// What keeps a node that consolidation would take, if its pool wants it to be without change for
/// longer, or for ever.
pub fn not_calm(candidate: &Candidate<'_>, pool: &Pool, now: Timestamp) -> Option<Verdict> {
    let Some(after) = pool.disruption.consolidate_after else {
        return Some(Verdict::Never);
    };
    let changed = candidate.changed.unwrap_or(Timestamp::MIN);
    let until = changed.checked_add(after).unwrap_or(Timestamp::MAX);
    (until > now).then_some(Verdict::TooEarly { until })
}

/// Nodes that take no pods that run elsewhere: their pool wants them left alone for a while
/// (spec/disruption.md §1.5), or a buffer needs their room, which would be made anew and then be
/// moved into again.
pub fn closed<'a>(
    roster: &'a DisruptionView<'a>,
    field: &WhatIf<'_>,
    now: Timestamp,
) -> Vec<&'a NodeName> {
    // Pods that have to move anyhow may go there: they would be given new nodes instead.
    if field.snapshot.pending.iter().any(|pod| pod.node.is_some()) {
        return Vec::new();
    }
    let waits = left_alone(roster, now).map(|(own, _)| own);
    waits.chain(roster.held.keys()).collect()
}

/// When the next node takes pods that run elsewhere which its pool wants left alone until then: it
/// may be kept itself for quite another reason.
pub fn takes_again(roster: &DisruptionView<'_>, now: Timestamp) -> Option<Timestamp> {
    left_alone(roster, now).map(|(_, until)| until).min()
}

fn left_alone<'a>(
    roster: &'a DisruptionView<'a>,
    now: Timestamp,
) -> impl Iterator<Item = (&'a NodeName, Timestamp)> {
    roster.candidates.iter().filter_map(move |own| {
        let pool = roster.cluster.pool(own.pool.as_str())?;
        match not_calm(own, pool, now)? {
            Verdict::TooEarly { until } => Some((&own.node.name, until)),
            _ => None,
        }
    })
}

/// What keeps a node that is used too much, or has not been used less for long enough: it may have
/// been when a pod last came or went. Source: Cluster Autoscaler,
/// `scale-down-utilization-threshold` and `scale-down-unneeded-time`.
pub fn is_needed(candidate: &Candidate<'_>, pool: &Disruption, now: Timestamp) -> Option<Verdict> {
    if let (Some(used), Some(least)) = (candidate.utilization, pool.utilization_threshold)
        && used >= least
    {
        return Some(Verdict::Utilized { used, least });
    }
    let until = candidate.changed?.checked_add(pool.unneeded_for);
    let until = until.unwrap_or(Timestamp::MAX);
    (until > now).then_some(Verdict::TooEarly { until })
}

/// What keeps a node that was only just made to save something, or whose pool rests since its last
/// moves saved too little.
pub fn rests(
    candidate: &Candidate<'_>,
    roster: &DisruptionView<'_>,
    now: Timestamp,
) -> Option<Verdict> {
    let fresh = roster.fresh.get(&candidate.node.name);
    let fresh = fresh.map(|until| (*until, "it was made for less"));
    let pool = roster.resting.get(&candidate.pool);
    let pool = pool.map(|until| (*until, "moves that saved too little"));
    let all = fresh.into_iter().chain(pool);
    let (until, after) = all.filter(|(until, _)| *until > now).max()?;
    Some(Verdict::Cooling { until, after })
}
