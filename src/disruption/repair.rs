//! Finds unhealthy nodes: they have had a condition for longer than their pool tolerates.
//!
//! Source: spec/disruption.md §3.4. Budgets and annotations do not apply, because pods do not run
//! well on such a node.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::disruption::budgets::Budgets;
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::id::PoolName;
use crate::model::node::Node;
use crate::model::pool::{BudgetNodes, Reason, RepairPolicy};
use crate::state::candidates::{Candidate, DisruptionView};
use crate::state::disruption_blockers::DisruptionBlocker;

/// If more nodes of a pool are unhealthy, the nodes may not be the cause.
const BROKEN_MAX: BudgetNodes = BudgetNodes::Percent(20);

/// Highest number of unhealthy nodes of a cluster that are replaced at a time.
const AT_ONCE: usize = 10;

/// Returns a verdict if too many nodes of the pool are unhealthy (at least `least`), or too many of
/// the cluster are being repaired.
pub(crate) fn safeguard(
    (broken, total): (usize, usize),
    least: usize,
    leaving: usize,
) -> Option<Verdict> {
    if broken > BROKEN_MAX.of(total).max(least) {
        return Some(Verdict::Broken { broken, total });
    }
    (leaving >= AT_ONCE).then_some(Verdict::Repairing { most: AT_ONCE })
}

/// Returns when the first due condition of a node requires its replacement, or `None` if it has no
/// such condition.
pub fn due_at(node: &Node, policies: &[RepairPolicy]) -> Option<Timestamp> {
    let due = node.conditions.iter().flat_map(|condition| {
        let policies = policies.iter();
        let of =
            policies.filter(|it| it.condition == condition.kind && it.status == condition.status);
        of.filter_map(|it| condition.since.checked_add(it.after?).ok())
    });
    due.min()
}

/// Keeps a broken node if another Node has the same providerID.
fn shared(candidate: &Candidate<'_>) -> Option<Verdict> {
    let blocker = candidate.blocker.as_ref()?;
    matches!(blocker, DisruptionBlocker::SameInstance(_)).then(|| Verdict::Blocked(blocker.clone()))
}

/// Returns the unhealthy nodes to replace, longest due first, and the verdicts for the others.
pub fn broken<'a>(
    disruption_view: &'a DisruptionView<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Vec<&'a Candidate<'a>>, Vec<RetainedNode>) {
    let defaults = RepairPolicy::defaults();
    let due_of = |pool: &PoolName, node: &Node| {
        let pool = disruption_view.cluster.pool(pool.as_str());
        due_at(node, pool.map_or(&defaults[..], |pool| &pool.repair))
    };
    // All unhealthy nodes count, including nodes that became unhealthy just now or are being
    // disrupted.
    let mut pools: BTreeMap<&PoolName, (usize, usize)> = BTreeMap::new();
    let mut count = |pool: &'a PoolName, broken: bool| {
        let counts = pools.entry(pool).or_default();
        *counts = (counts.0 + usize::from(broken), counts.1 + 1);
    };
    let mut leaving = 0;
    for &(pool, node, reason) in &disruption_view.going {
        leaving += usize::from(reason == Reason::Unhealthy);
        count(pool, due_of(pool, node).is_some());
    }
    let mut found = Vec::new();
    for candidate in disruption_view
        .candidates
        .iter()
        .filter(|candidate| candidate.initialized.is_some())
    {
        let due = due_of(&candidate.pool, candidate.node);
        count(&candidate.pool, due.is_some());
        found.extend(due.map(|at| (at, candidate)));
    }
    found.sort_by_key(|(at, candidate)| (*at, &candidate.node.name));
    let (mut leave, mut kept) = (Vec::new(), Vec::new());
    for (until, candidate) in found {
        let stays = match until > now {
            true => Some(Verdict::Recovering { until }),
            false => shared(candidate).or_else(|| safeguard(pools[&candidate.pool], 0, leaving)),
        };
        let Some(verdict) = stays else {
            leaving += 1;
            budgets.let_go(candidate);
            leave.push(candidate);
            continue;
        };
        kept.push(RetainedNode::new(candidate, Reason::Unhealthy, verdict));
    }
    (leave, kept)
}
