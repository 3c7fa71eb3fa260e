//! Counts the nodes that a configuration change alone makes due for disruption.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::drift::DriftReference;
use crate::disruption::expiry::claim_expiry;
use crate::disruption::static_scale_down::select_surplus;
use crate::model::claim::ClaimRecord;
use crate::model::cluster::Cluster;
use crate::model::id::NodeName;
use crate::state::candidates::{Candidate, DisruptionView};

/// Nodes that expire within this time count as expired. Otherwise a reload a few minutes earlier
/// would bypass the approval.
const SOON: SignedDuration = SignedDuration::from_hours(1);

/// Returns the nodes that the configuration makes due: drifted by configuration, of a removed pool,
/// surplus, or expired only because of the new lifetime. Drift of discovered resources is ignored.
pub fn newly_due<'a>(
    disruption_view: &'a DisruptionView<'a>,
    now: Timestamp,
) -> BTreeSet<NodeName> {
    let models = DriftReference::new(disruption_view);
    let candidates = disruption_view.candidates.iter();
    let changed = candidates.filter(|candidate| {
        let cause = models.cause_of(candidate, now);
        cause.is_some_and(|cause| cause.is_configured())
            || expires_by_pool(candidate, disruption_view.cluster, now)
    });
    let (surplus, _) = select_surplus(disruption_view);
    let all = changed.chain(surplus);
    all.map(|candidate| candidate.node.name.clone()).collect()
}

/// Returns whether a node is expired according to the configuration of its pool, but not according
/// to its tags.
fn expires_by_pool(candidate: &Candidate<'_>, cluster: &Cluster, now: Timestamp) -> bool {
    let Some(record) = candidate.claim.map(|claim| &claim.record) else {
        return false;
    };
    let Some(pool) = cluster.pool(record.pool.as_str()) else {
        return false;
    };
    let wanted = ClaimRecord {
        expire_after: pool.expire_after,
        expire_hard_after: pool.expire_hard_after,
        ..record.clone()
    };
    let soon = now.checked_add(SOON).unwrap_or(now);
    is_expired(&wanted, soon) && !is_expired(record, soon)
}

/// Returns whether the node of a claim is expired at this time.
fn is_expired(record: &ClaimRecord, at: Timestamp) -> bool {
    record.is_overdue(at) || claim_expiry(record).is_some_and(|due| due <= at)
}
