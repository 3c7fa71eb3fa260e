//! What a configuration by itself makes due to leave, whatever becomes of it then.
//! It must not know which configuration was in force before.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::drift::DriftReference;
use crate::disruption::expiry::due_at;
use crate::disruption::static_scale_down::surplus;
use crate::model::claim::ClaimRecord;
use crate::model::cluster::Cluster;
use crate::model::id::NodeName;
use crate::state::candidates::{Candidate, DisruptionView};

/// Nodes that are to become too old within this time are as good as too old: otherwise whoever
/// reloads a few minutes earlier is not held.
const SOON: SignedDuration = SignedDuration::from_hours(1);

/// Nodes that drift by what the configuration says, whose pool it does not name, that are more
/// than it wants, or that are too old by it and were not by what they have been told. What the
/// provider finds for it does not count.
pub fn due<'a>(roster: &'a DisruptionView<'a>, now: Timestamp) -> BTreeSet<NodeName> {
    let models = DriftReference::new(roster);
    let candidates = roster.candidates.iter();
    let changed = candidates.filter(|own| {
        let cause = models.cause(own, now);
        cause.is_some_and(|own| own.is_configured()) || ages(own, roster.cluster, now)
    });
    let (surplus, _) = surplus(roster);
    let all = changed.chain(surplus);
    all.map(|own| own.node.name.clone()).collect()
}

/// Whether a node is too old by what its pool says, and not by what stands in its tags.
fn ages(candidate: &Candidate<'_>, cluster: &Cluster, now: Timestamp) -> bool {
    let Some(told) = candidate.claim.map(|own| &own.record) else {
        return false;
    };
    let Some(pool) = cluster.pool(told.pool.as_str()) else {
        return false;
    };
    let wanted = ClaimRecord {
        expire_after: pool.expire_after,
        expire_hard_after: pool.expire_hard_after,
        ..told.clone()
    };
    let soon = now.checked_add(SOON).unwrap_or(now);
    let is_old =
        |own: &ClaimRecord| own.is_overdue(soon) || due_at(own).is_some_and(|at| at <= soon);
    is_old(&wanted) && !is_old(told)
}
