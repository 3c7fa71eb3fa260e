//! Nodes that have had a condition for longer than their pool bears with.
//! It must not know the other reasons for leaving.
//!
//! Source: spec/disruption.md §3.4. Budgets and annotations do not count: nothing runs well there.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::disruption::budgets::Budgets;
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::id::PoolName;
use crate::model::node::Node;
use crate::model::pool::{BudgetNodes, Reason, RepairPolicy};
use crate::state::candidates::{Candidate, DisruptionView};
use crate::state::disruption_blockers::DisruptionBlocker;

/// Where more nodes of a pool than this are broken, it may be something else than they.
const BROKEN_MAX: BudgetNodes = BudgetNodes::Percent(20);

/// Broken nodes of a cluster that are replaced at once.
const AT_ONCE: usize = 10;

/// Why a broken node stays: so many of its pool's are broken, beyond `least` of them, or so many of
/// the cluster's leave already.
pub(crate) fn brake(
    (broken, total): (usize, usize),
    least: usize,
    leaving: usize,
) -> Option<Verdict> {
    if broken > BROKEN_MAX.of(total).max(least) {
        return Some(Verdict::Broken { broken, total });
    }
    (leaving >= AT_ONCE).then_some(Verdict::Repairing { most: AT_ONCE })
}

/// When a node is to be replaced for the first of its conditions to be due; none where it has none
/// of these.
pub fn due_at(node: &Node, policies: &[RepairPolicy]) -> Option<Timestamp> {
    let due = node.conditions.iter().flat_map(|own| {
        let policies = policies.iter();
        let of = policies.filter(|it| it.condition == own.kind && it.status == own.status);
        of.filter_map(|it| own.since.checked_add(it.after?).ok())
    });
    due.min()
}

/// Keeps a broken node if another Node has the same providerID.
fn shared(candidate: &Candidate<'_>) -> Option<Verdict> {
    let own = candidate.blocker.as_ref()?;
    matches!(own, DisruptionBlocker::SameInstance(_)).then(|| Verdict::Blocked(own.clone()))
}

/// Broken nodes that may be replaced, the longest due first, and why the others stay.
pub fn broken<'a>(
    roster: &'a DisruptionView<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Vec<&'a Candidate<'a>>, Vec<RetainedNode>) {
    let defaults = RepairPolicy::defaults();
    let due_of = |pool: &PoolName, node: &Node| {
        let own = roster.cluster.pool(pool.as_str());
        due_at(node, own.map_or(&defaults[..], |own| &own.repair))
    };
    // All that are broken count, be it for a moment, as do those that are leaving.
    let mut pools: BTreeMap<&PoolName, (usize, usize)> = BTreeMap::new();
    let mut count = |pool: &'a PoolName, broken: bool| {
        let own = pools.entry(pool).or_default();
        *own = (own.0 + usize::from(broken), own.1 + 1);
    };
    let mut leaving = 0;
    for &(pool, node, reason) in &roster.going {
        leaving += usize::from(reason == Reason::Unhealthy);
        count(pool, due_of(pool, node).is_some());
    }
    let mut found = Vec::new();
    for candidate in roster
        .candidates
        .iter()
        .filter(|own| own.initialized.is_some())
    {
        let due = due_of(&candidate.pool, candidate.node);
        count(&candidate.pool, due.is_some());
        found.extend(due.map(|at| (at, candidate)));
    }
    found.sort_by_key(|(at, own)| (*at, &own.node.name));
    let (mut leave, mut kept) = (Vec::new(), Vec::new());
    for (until, candidate) in found {
        let stays = match until > now {
            true => Some(Verdict::Recovering { until }),
            false => shared(candidate).or_else(|| brake(pools[&candidate.pool], 0, leaving)),
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
