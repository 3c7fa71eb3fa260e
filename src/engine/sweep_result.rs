//! The nodes that a sweep found, with the outcome of each.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::id::{NodeName, PoolName};
use crate::model::labels::POOL;
use crate::model::sweep::{SweepKind, SweepRequest};
use crate::plan::Plan;
use crate::state::State;
use crate::state::sweeps::SweepResult;

/// What a sweep does with a node that it found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepOutcome {
    /// The node is disrupted.
    Disrupted,
    /// The node is due, but this verdict keeps it.
    Blocked(Verdict),
    /// The node is not disrupted: in observe mode or in a dry run, or because of this verdict.
    Observed(Option<Verdict>),
}

/// A node that a sweep found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptNode {
    /// Its name.
    pub node: NodeName,
    /// Its pool.
    pub pool: PoolName,
    /// The outcome.
    pub outcome: SweepOutcome,
}

/// The result of a requested sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepRun {
    /// The request.
    pub id: u64,
    /// When it ran.
    pub at: Timestamp,
    /// The nodes that it found, by name.
    pub nodes: Vec<SweptNode>,
}

/// Returns the pool of a node. Empty if the Node is missing or has no pool.
pub(super) fn pool_of(state: &State, node: &NodeName) -> PoolName {
    let known = state.objects.nodes.get(node);
    known.and_then(|node| node.labels.get(POOL)).map_or("", String::as_str).into()
}

/// Returns the nodes that a plan finds for a kind of sweep, by name, together with nodes whose
/// disruption is in progress. If `acts` is false, the plan is not carried out.
pub(super) fn found_nodes(
    state: &State,
    kind: SweepKind,
    plan: &Plan,
    acts: bool,
) -> Vec<SweptNode> {
    let is_of_kind = |reason| SweepKind::of_reason(reason) == Some(kind);
    let leaving = state.ledger.claims.values();
    let leaving = leaving.filter(|claim| claim.leaving.is_some_and(is_of_kind));
    let leaving = leaving.filter_map(|claim| claim.node.clone());
    let mut found: Vec<SweptNode> = leaving
        .map(|node| SweptNode {
            pool: pool_of(state, &node),
            node,
            outcome: SweepOutcome::Disrupted,
        })
        .collect();
    let retired = plan.retire.iter().filter(|node| is_of_kind(node.reason));
    found.extend(retired.map(|planned| SweptNode {
        node: planned.node.clone(),
        pool: planned.pool.clone(),
        outcome: match acts {
            true => SweepOutcome::Disrupted,
            false => SweepOutcome::Observed(None),
        },
    }));
    let kept = plan.kept.iter().filter(|node| is_of_kind(node.reason));
    found.extend(kept.filter_map(|kept| {
        let outcome = retained_outcome(kind, kept)?;
        let node = kept.node.clone();
        Some(SweptNode { pool: pool_of(state, &node), node, outcome })
    }));
    found.sort_by(|a, b| a.node.cmp(&b.node));
    found.dedup_by(|a, b| a.node == b.node);
    found
}

/// Returns the outcome of a node that is kept, or `None` if the sweep did not find it.
fn retained_outcome(kind: SweepKind, kept: &RetainedNode) -> Option<SweepOutcome> {
    match &kept.verdict {
        Verdict::AwaitsSweep { .. } => None,
        verdict @ Verdict::Recovering { .. } => Some(SweepOutcome::Observed(Some(verdict.clone()))),
        // Consolidation evaluates all nodes, and most cannot be removed.
        verdict if kind == SweepKind::Consolidation && !verdict.is_safeguard() => None,
        verdict => Some(SweepOutcome::Blocked(verdict.clone())),
    }
}

/// Keeps the nodes of the pool of a request.
pub(super) fn nodes_of_request(nodes: &[SweptNode], request: &SweepRequest) -> Vec<SweptNode> {
    nodes.iter().filter(|found| request.covers(&found.pool)).cloned().collect()
}

/// Counts nodes by outcome.
pub fn count_outcomes(nodes: &[SweptNode]) -> SweepResult {
    let mut result = SweepResult::default();
    for node in nodes {
        match node.outcome {
            SweepOutcome::Disrupted => result.disrupted += 1,
            SweepOutcome::Blocked(_) => result.blocked += 1,
            SweepOutcome::Observed(_) => result.observed += 1,
        }
    }
    result
}

/// Returns the names of all nodes of a result.
pub(super) fn names(nodes: &[SweptNode]) -> BTreeSet<&NodeName> {
    nodes.iter().map(|found| &found.node).collect()
}
