//! A node that consolidation may remove, or the verdict against its removal.

use jiff::Timestamp;

use crate::disruption::eligibility::{
    cool_down_verdict, recent_change_verdict, retaining_verdict, sweep_verdict, utilization_verdict,
};
use crate::disruption::verdict::Verdict;
use crate::model::id::NodeName;
use crate::model::pool::{Consolidation, Reason};
use crate::state::candidates::{Candidate, DisruptionView};
use crate::state::what_if::WhatIf;

/// A removable node and its properties.
pub(super) struct RemovalCandidate<'a> {
    pub(super) candidate: &'a Candidate<'a>,
    pub(super) name: &'a NodeName,
    pub(super) price: f64,
    /// Number of pods to move.
    pub(super) pods: usize,
    /// Its price minus the price of its pods in a fresh plan.
    pub(super) waste: f64,
}

/// Returns the candidate, or a verdict that needs no what-if evaluation.
pub(super) fn candidate_or_verdict<'a>(
    candidate: &'a Candidate<'a>,
    disruption_view: &DisruptionView<'_>,
    field: &WhatIf<'a>,
    now: Timestamp,
) -> Result<RemovalCandidate<'a>, Verdict> {
    let pool = disruption_view.cluster.pool(candidate.pool.as_str());
    let pool = pool.ok_or(Verdict::NoPool)?;
    if pool.replicas.is_some() {
        return Err(Verdict::Static);
    }
    if pool.disruption.consolidation == Consolidation::Empty {
        return Err(Verdict::EmptyOnly);
    }
    if candidate.pods == 0 {
        return Err(Verdict::Empty);
    }
    if let Some(verdict) = cool_down_verdict(candidate, disruption_view, now) {
        return Err(verdict);
    }
    if let Some(buffer) = disruption_view.held.get(&candidate.node.name) {
        return Err(Verdict::Buffer(buffer.clone()));
    }
    if let Some(verdict) = retaining_verdict(candidate, Some(pool), Reason::Underutilized, now)
        .or_else(|| recent_change_verdict(candidate, pool, now))
        .or_else(|| utilization_verdict(candidate, &pool.disruption, now))
        .or_else(|| sweep_verdict(disruption_view, candidate, Reason::Underutilized, now))
    {
        return Err(verdict);
    }
    let name = &candidate.node.name;
    let tenancy = field.tenancies.get(name).ok_or(Verdict::NotInitialized)?;
    if let Some(pod) = &tenancy.unmanaged_pod {
        return Err(Verdict::UnmanagedPod { pod: pod.clone() });
    }
    let price = tenancy.price.ok_or(Verdict::PriceUnknown)?.usd_per_h();
    Ok(RemovalCandidate { candidate, name, price, pods: tenancy.pods.len(), waste: price })
}
