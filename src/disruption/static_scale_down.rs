//! Nodes that a static pool has beyond its number, and which of them leave.
//! It must not know the other reasons for leaving.
//!
//! Source: spec/scheduling.md §3.3. Budgets do not count: the number was changed on purpose.

use crate::model::claim::ClaimPhase;
use crate::model::id::ClaimId;
use crate::model::pool::Pool;
use crate::state::candidates::{Candidate, DisruptionView};

/// Nodes that leave because their pool has too many, and claims that need no node any more.
///
/// First go claims that are not launched or have no Node yet, then nodes on which nothing must not
/// be disrupted before others, each with what costs least to move first, then those that have not
/// started, then the oldest.
pub fn surplus<'a>(roster: &'a DisruptionView<'a>) -> (Vec<&'a Candidate<'a>>, Vec<ClaimId>) {
    let (mut retire, mut cancel) = (Vec::new(), Vec::new());
    for pool in &roster.cluster.pools {
        if let Some(wanted) = pool.replicas {
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            beyond(roster, (pool, wanted), &mut retire, &mut cancel);
        }
    }
    (retire, cancel)
}

fn beyond<'a>(
    roster: &'a DisruptionView<'a>,
    (pool, wanted): (&Pool, usize),
    retire: &mut Vec<&'a Candidate<'a>>,
    cancel: &mut Vec<ClaimId>,
) {
    let nodes = roster.candidates.iter().filter(|own| own.pool == pool.name);
    let mut nodes: Vec<&Candidate<'_>> = nodes.collect();
    let mut coming = roster.coming.get(&pool.name).cloned().unwrap_or_default();
    let mut excess = (nodes.len() + coming.len()).saturating_sub(wanted);
    // A Node that has been there and is missed may have pods on it.
    coming.retain(|(phase, _)| *phase < ClaimPhase::Registered);
    coming.sort_unstable();
    for (phase, claim) in coming.into_iter().take(excess) {
        excess -= 1;
        // Until the launch is answered there may be an instance or not: its turn comes.
        if phase != ClaimPhase::Launching {
            cancel.push(claim);
        }
    }
    nodes.sort_by(|a, b| {
        let blocked = a.blocker.is_some().cmp(&b.blocker.is_some());
        let dearer = || cost(a).total_cmp(&cost(b));
        let older = || (a.initialized, &a.node.name).cmp(&(b.initialized, &b.node.name));
        blocked.then_with(dearer).then_with(older)
    });
    retire.extend(nodes.into_iter().take(excess));
}

/// What it costs to end a node, where a pod that is expected counts like one that is there.
fn cost(candidate: &Candidate<'_>) -> f64 {
    candidate
        .cost
        .max(if candidate.nominated { 2.0 } else { 1.0 })
}
