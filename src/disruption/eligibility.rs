//! Verdicts that apply to a node for every disruption reason.

use jiff::Timestamp;

use crate::disruption::verdict::Verdict;
use crate::model::id::NodeName;
use crate::model::pool::{Disruption, Pool, Reason};
use crate::model::sweep::SweepKind;
use crate::state::candidates::{Candidate, DisruptionView};
use crate::state::what_if::WhatIf;

/// Returns the verdict that keeps a node from disruption for every reason that is not forceful.
/// Blockers of pods are ignored if the node has its full termination grace period. The minimum age
/// does not apply to expiry.
pub fn retaining_verdict(
    candidate: &Candidate<'_>,
    pool: Option<&Pool>,
    reason: Reason,
    now: Timestamp,
) -> Option<Verdict> {
    let Some(pool) = pool else {
        return Some(Verdict::NoPool);
    };
    pool_independent_verdict(candidate, reason)
        .or_else(|| min_age_verdict(candidate, pool, now).filter(|_| reason != Reason::Expired))
}

/// Returns the verdict that keeps a node until the next sweep for this reason.
pub fn sweep_verdict(
    disruption_view: &DisruptionView<'_>,
    candidate: &Candidate<'_>,
    reason: Reason,
    now: Timestamp,
) -> Option<Verdict> {
    let sweep = SweepKind::that_delays(reason)?;
    let sweeps = disruption_view.sweeps?;
    let claim = candidate.claim.map(|claim| &claim.record.id);
    if !disruption_view.cluster.sweeps.contains_key(&sweep)
        || sweeps.permits(sweep, claim, &candidate.pool)
    {
        return None;
    }
    let next = sweeps.get(sweep).and_then(|progress| progress.next());
    Some(Verdict::AwaitsSweep { sweep, at: next.filter(|at| *at > now) })
}

/// Returns the verdict that keeps a node regardless of the settings of its pool, which may no
/// longer exist.
pub fn pool_independent_verdict(candidate: &Candidate<'_>, reason: Reason) -> Option<Verdict> {
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

fn min_age_verdict(candidate: &Candidate<'_>, pool: &Pool, now: Timestamp) -> Option<Verdict> {
    let until = candidate.born?.checked_add(pool.disruption.min_age);
    let until = until.unwrap_or(Timestamp::MAX);
    (until > now).then_some(Verdict::TooYoung { until })
}

/// Returns the verdict that keeps a node from consolidation because of `consolidate_after`.
pub fn recent_change_verdict(
    candidate: &Candidate<'_>,
    pool: &Pool,
    now: Timestamp,
) -> Option<Verdict> {
    let Some(after) = pool.disruption.consolidate_after else {
        return Some(Verdict::Never);
    };
    let changed = candidate.changed.unwrap_or(Timestamp::MIN);
    let until = changed.checked_add(after).unwrap_or(Timestamp::MAX);
    (until > now).then_some(Verdict::RecentlyChanged { until })
}

/// Returns nodes that accept no pods from consolidated nodes. These nodes are still within their
/// `consolidate_after` (spec/disruption.md §1.5), or a buffer needs their capacity, which would be
/// launched again and then consolidated again.
pub fn closed_nodes<'a>(
    disruption_view: &'a DisruptionView<'a>,
    field: &WhatIf<'_>,
    now: Timestamp,
) -> Vec<&'a NodeName> {
    // Pods of nodes that are disrupted in any case may be placed on these nodes. Otherwise new
    // nodes would be launched for them.
    if field.snapshot.pending.iter().any(|pod| pod.node.is_some()) {
        return Vec::new();
    }
    let waits = recently_changed_nodes(disruption_view, now).map(|(name, _)| name);
    waits.chain(disruption_view.held.keys()).collect()
}

/// Returns when the next node accepts moved pods again. This node may itself be kept for a
/// different reason.
pub fn next_reopening(disruption_view: &DisruptionView<'_>, now: Timestamp) -> Option<Timestamp> {
    recently_changed_nodes(disruption_view, now).map(|(_, until)| until).min()
}

fn recently_changed_nodes<'a>(
    disruption_view: &'a DisruptionView<'a>,
    now: Timestamp,
) -> impl Iterator<Item = (&'a NodeName, Timestamp)> {
    disruption_view.candidates.iter().filter_map(move |candidate| {
        let pool = disruption_view.cluster.pool(candidate.pool.as_str())?;
        match recent_change_verdict(candidate, pool, now)? {
            Verdict::RecentlyChanged { until } => Some((&candidate.node.name, until)),
            _ => None,
        }
    })
}

/// Returns the verdict that keeps a node because of its utilization, or because it has not been
/// below the threshold long enough. The utilization may have changed when a pod was last added or
/// removed. Source: Cluster Autoscaler, `scale-down-utilization-threshold` and
/// `scale-down-unneeded-time`.
pub fn utilization_verdict(
    candidate: &Candidate<'_>,
    pool: &Disruption,
    now: Timestamp,
) -> Option<Verdict> {
    if let (Some(used), Some(least)) = (candidate.utilization, pool.utilization_threshold)
        && used >= least
    {
        return Some(Verdict::AboveUtilizationThreshold { used, least });
    }
    let until = candidate.changed?.checked_add(pool.unneeded_for);
    let until = until.unwrap_or(Timestamp::MAX);
    (until > now).then_some(Verdict::RecentlyChanged { until })
}

/// Returns the verdict that keeps a node that was just launched to save cost, or whose pool is in
/// consolidation back-off.
pub fn cool_down_verdict(
    candidate: &Candidate<'_>,
    disruption_view: &DisruptionView<'_>,
    now: Timestamp,
) -> Option<Verdict> {
    let fresh = disruption_view.fresh.get(&candidate.node.name);
    let fresh = fresh.map(|until| (*until, "it was launched to save cost"));
    let pool = disruption_view.resting.get(&candidate.pool);
    let pool = pool.map(|until| (*until, "consolidations that saved too little"));
    let all = fresh.into_iter().chain(pool);
    let (until, after) = all.filter(|(until, _)| *until > now).max()?;
    Some(Verdict::CoolDown { until, after })
}
