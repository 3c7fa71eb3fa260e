//! Finds empty nodes: only DaemonSet pods have run on them for the duration that their pool
//! requires.

use jiff::Timestamp;

use crate::disruption::budgets::Budgets;
use crate::disruption::eligibility::{recent_change_verdict, retaining_verdict};
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::pool::{Pool, Reason};
use crate::state::candidates::{Candidate, DisruptionView};

/// Returns the empty nodes to disrupt, longest empty first, and the verdicts for all others.
pub fn empty_nodes<'a>(
    disruption_view: &'a DisruptionView<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Vec<&'a Candidate<'a>>, Vec<RetainedNode>) {
    let (mut due, mut kept) = (Vec::new(), Vec::new());
    let candidates = disruption_view.candidates.iter();
    for candidate in candidates.filter(|candidate| !budgets.has_acquired(candidate)) {
        let pool = disruption_view.cluster.pool(candidate.pool.as_str());
        let held = disruption_view.held.get(&candidate.node.name);
        match empty_node_verdict(candidate, pool, held, now) {
            None => due.push(candidate),
            Some(verdict) => kept.push(RetainedNode::new(candidate, Reason::Empty, verdict)),
        }
    }
    due.sort_by_key(|candidate| (candidate.changed, &candidate.node.name));
    due.retain(|candidate| match budgets.try_acquire(candidate, Reason::Empty) {
        Ok(()) => true,
        Err(verdict) => {
            kept.push(RetainedNode::new(candidate, Reason::Empty, verdict));
            false
        }
    });
    (due, kept)
}

fn empty_node_verdict(
    candidate: &Candidate<'_>,
    pool: Option<&Pool>,
    held: Option<&String>,
    now: Timestamp,
) -> Option<Verdict> {
    let Some(pool) = pool else {
        return Some(Verdict::NoPool);
    };
    if pool.replicas.is_some() {
        return Some(Verdict::Static);
    }
    if candidate.initialized.is_none() || candidate.changed.is_none() {
        return Some(Verdict::NotInitialized);
    }
    if candidate.pods > 0 {
        return Some(Verdict::InUse { pods: candidate.pods });
    }
    if let Some(buffer) = held {
        return Some(Verdict::Buffer(buffer.clone()));
    }
    let kept = retaining_verdict(candidate, Some(pool), Reason::Empty, now);
    if kept.is_some() {
        return kept;
    }
    recent_change_verdict(candidate, pool, now)
}
