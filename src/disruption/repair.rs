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

/// If a higher percentage of a pool is unhealthy, the cause may be outside the nodes.
const BROKEN_MAX: BudgetNodes = BudgetNodes::Percent(20);

/// Highest number of unhealthy nodes of a cluster that are replaced at a time.
const AT_ONCE: usize = 10;

/// Returns a verdict if too many nodes of the pool are unhealthy (more than `least`), or if too
/// many nodes of the cluster are being replaced.
pub(crate) fn repair_safeguard(
    broken: usize,
    total: usize,
    least: usize,
    leaving: usize,
) -> Option<Verdict> {
    if broken > BROKEN_MAX.nodes_of(total).max(least) {
        return Some(Verdict::Broken { broken, total });
    }
    (leaving >= AT_ONCE).then_some(Verdict::Repairing { most: AT_ONCE })
}

/// Returns when the first due condition of a node requires its replacement, or `None` if it has no
/// such condition.
pub fn due_at(node: &Node, policies: &[RepairPolicy]) -> Option<Timestamp> {
    let due = node.conditions.iter().flat_map(|condition| {
        policies
            .iter()
            .filter(|policy| {
                policy.condition == condition.kind && policy.status == condition.status
            })
            .filter_map(|policy| condition.since.checked_add(policy.after?).ok())
    });
    due.min()
}

/// Returns the verdict that keeps a broken node, if another Node has the same providerID.
fn shared_instance_verdict(candidate: &Candidate<'_>) -> Option<Verdict> {
    let blocker = candidate.blocker.as_ref()?;
    matches!(blocker, DisruptionBlocker::SameInstance(_)).then(|| Verdict::Blocked(blocker.clone()))
}

/// Returns the unhealthy nodes to replace, longest due first, and the verdicts for the other
/// unhealthy nodes.
pub fn select_unhealthy<'a>(
    disruption_view: &'a DisruptionView<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Vec<&'a Candidate<'a>>, Vec<RetainedNode>) {
    let defaults = RepairPolicy::default_policies();
    // All unhealthy nodes are counted, including nodes that became unhealthy just now or are being
    // disrupted.
    let mut pools: BTreeMap<&PoolName, (usize, usize)> = BTreeMap::new();
    let going = disruption_view.going.iter();
    let going_nodes = going.clone().map(|&(pool, node, _)| (pool, node, None));
    let candidates = disruption_view.candidates.iter();
    let candidates = candidates.filter(|candidate| candidate.initialized.is_some());
    let candidates = candidates.map(|candidate| (&candidate.pool, candidate.node, Some(candidate)));
    let mut found = Vec::new();
    for (name, node, candidate) in going_nodes.chain(candidates) {
        let pool = disruption_view.cluster.pool(name.as_str());
        let due = due_at(node, pool.map_or(&defaults[..], |pool| &pool.repair));
        let (broken, total) = pools.entry(name).or_default();
        *broken += usize::from(due.is_some());
        *total += 1;
        found.extend(due.zip(candidate));
    }
    let leaving = going.filter(|(_, _, reason)| *reason == Reason::Unhealthy).count();
    found.sort_by_key(|(at, candidate)| (*at, &candidate.node.name));
    let (mut leave, mut kept) = (Vec::new(), Vec::new());
    for (until, candidate) in found {
        let verdict = match until > now {
            true => Some(Verdict::Recovering { until }),
            false => shared_instance_verdict(candidate).or_else(|| {
                let (broken, total) = pools[&candidate.pool];
                repair_safeguard(broken, total, 0, leaving + leave.len())
            }),
        };
        let Some(verdict) = verdict else {
            budgets.force_acquire(candidate);
            leave.push(candidate);
            continue;
        };
        kept.push(RetainedNode::new(candidate, Reason::Unhealthy, verdict));
    }
    (leave, kept)
}
