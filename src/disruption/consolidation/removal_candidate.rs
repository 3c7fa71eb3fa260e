//! A node that consolidation may remove, or the verdict why it may not.

use jiff::Timestamp;

use crate::disruption::eligibility::{is_needed, kept_anyway, not_calm, rests};
use crate::disruption::verdict::Verdict;
use crate::model::id::NodeName;
use crate::model::pool::{Consolidation, Reason};
use crate::state::candidates::{Candidate, DisruptionView};
use crate::state::what_if::WhatIf;

/// A node that may leave, and what is known of it.
pub(super) struct RemovalCandidate<'a> {
    pub(super) candidate: &'a Candidate<'a>,
    pub(super) name: &'a NodeName,
    pub(super) price: f64,
    /// How many pods it would leave behind.
    pub(super) pods: usize,
    /// What it costs beyond what its pods would cost in a plan afresh.
    pub(super) waste: f64,
}

/// What speaks against a node's leaving before anything is worked out.
pub(super) fn leaver<'a>(
    candidate: &'a Candidate<'a>,
    roster: &DisruptionView<'_>,
    field: &WhatIf<'a>,
    now: Timestamp,
) -> Result<RemovalCandidate<'a>, Verdict> {
    let pool = roster.cluster.pool(candidate.pool.as_str());
    let pool = pool.ok_or(Verdict::NoPool)?;
    if pool.replicas.is_some() {
        return Err(Verdict::Static);
    }
    if pool.disruption.consolidation == Consolidation::Empty {
        return Err(Verdict::EmptyOnly);
    }
    if candidate.pods == 0 {
        return Err(Verdict::Unused);
    }
    if let Some(verdict) = rests(candidate, roster, now) {
        return Err(verdict);
    }
    if let Some(buffer) = roster.held.get(&candidate.node.name) {
        return Err(Verdict::Buffer(buffer.clone()));
    }
    if let Some(verdict) = kept_anyway(candidate, Some(pool), Reason::Underutilized, now) {
        return Err(verdict);
    }
    if let Some(verdict) = not_calm(candidate, pool, now) {
        return Err(verdict);
    }
    if let Some(verdict) = is_needed(candidate, &pool.disruption, now) {
        return Err(verdict);
    }
    let name = &candidate.node.name;
    let tenancy = field.tenancies.get(name).ok_or(Verdict::NotInitialized)?;
    if let Some(pod) = &tenancy.stray {
        return Err(Verdict::Stray { pod: pod.clone() });
    }
    let price = tenancy.price.ok_or(Verdict::Unpriced)?.usd_per_h();
    Ok(RemovalCandidate {
        candidate,
        name,
        price,
        pods: tenancy.pods.len(),
        waste: price,
    })
}
