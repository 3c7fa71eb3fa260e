//! Selects the surplus nodes of a static pool.
//!
//! Source: spec/scheduling.md §3.3. Budgets do not apply, because the user lowered the number of
//! nodes.

use crate::model::claim::ClaimPhase;
use crate::model::id::ClaimId;
use crate::model::pool::Pool;
use crate::state::candidates::{Candidate, DisruptionView};

/// Returns the surplus nodes to disrupt, and the claims to cancel.
///
/// Claims without an instance or Node come first, then nodes without blockers, then nodes with
/// blockers. Each group is ordered by disruption cost. Among equals, nodes that are not initialized
/// come first, then the oldest.
pub fn select_surplus<'a>(
    disruption_view: &'a DisruptionView<'a>,
) -> (Vec<&'a Candidate<'a>>, Vec<ClaimId>) {
    let (mut retire, mut cancel) = (Vec::new(), Vec::new());
    for pool in &disruption_view.cluster.pools {
        if let Some(wanted) = pool.replicas {
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            select_beyond(disruption_view, pool, wanted, &mut retire, &mut cancel);
        }
    }
    (retire, cancel)
}

fn select_beyond<'a>(
    disruption_view: &'a DisruptionView<'a>,
    pool: &Pool,
    wanted: usize,
    retire: &mut Vec<&'a Candidate<'a>>,
    cancel: &mut Vec<ClaimId>,
) {
    let mut nodes: Vec<&Candidate<'_>> =
        disruption_view.candidates.iter().filter(|candidate| candidate.pool == pool.name).collect();
    let mut coming = disruption_view.coming.get(&pool.name).cloned().unwrap_or_default();
    let mut excess = (nodes.len() + coming.len()).saturating_sub(wanted);
    // A missing Node that registered before may have pods.
    coming.retain(|(phase, _)| *phase < ClaimPhase::Registered);
    coming.sort_unstable();
    for (phase, claim) in coming.into_iter().take(excess) {
        excess -= 1;
        // The result of the launch is unknown: there may be an instance. The claim is considered
        // later.
        if phase != ClaimPhase::Launching {
            cancel.push(claim);
        }
    }
    nodes.sort_by(|a, b| {
        let blocked = a.blocker.is_some().cmp(&b.blocker.is_some());
        blocked
            .then_with(|| disruption_cost(a).total_cmp(&disruption_cost(b)))
            .then_with(|| (a.initialized, &a.node.name).cmp(&(b.initialized, &b.node.name)))
    });
    retire.extend(nodes.into_iter().take(excess));
}

/// Returns the disruption cost of a node. Expected pods have the same cost as running pods.
fn disruption_cost(candidate: &Candidate<'_>) -> f64 {
    candidate.cost.max(if candidate.nominated { 2.0 } else { 1.0 })
}
