//! Decides what to launch and what to disrupt, and reports why every other node is kept. The
//! executor of a plan decides nothing and this module executes nothing.

// Snapshot with planned claims included.
mod projection;
// Alternative plan with at most one pod of each topology spread per node.
mod separate_spread;
// Headroom of buffers.
mod buffers;
// New placements for pods blocked by terminating pods.
mod blocked_by_terminating;
// Similar names, and the instance types of a claim.
mod names;
// Checks of a plan before it is applied.
pub mod audit;
// Rejections as text and JSON.
pub mod render_rejections;
// Plans as text and JSON.
pub mod render;
// `explain pod`.
pub mod explain_pod;
// `explain node`.
pub mod explain_node;
// `explain pool`.
pub mod explain_pool;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::HashSet;
use jiff::Timestamp;

use crate::coordination::lease_annotations::DisruptionRecord;
use crate::disruption::budgets::Budgets;
use crate::disruption::cluster_health::excess_unready;
use crate::disruption::consolidation;
use crate::disruption::drift::select_drifted;
use crate::disruption::eligibility::next_reopening;
use crate::disruption::emptiness::empty_nodes;
use crate::disruption::expiry::select_expired;
use crate::disruption::repair::select_unhealthy;
use crate::disruption::static_scale_down::select_surplus;
pub use crate::disruption::verdict::next_due;
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::buffer_object::BufferRooms;
use crate::model::id::{ClaimId, NodeName, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::pool::Reason;
use crate::plan::blocked_by_terminating::replan_stuck_pods;
use crate::plan::buffers::plan_buffer_capacity;
use crate::plan::projection::{assign_to_claims, with_claims};
use crate::plan::separate_spread::prefer_separated;
use crate::scheduling::static_pools::{Shortfall, plan_replicas};
use crate::scheduling::{NewNodeClaim, UnschedulablePod, solve};
use crate::state::State;
use crate::state::candidates::{Candidate, DisruptionView, NodeHealth};
use crate::state::snapshot::{NodeRef, Snapshot};
use crate::state::what_if::WhatIf;

/// A node to disrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTermination {
    /// Its claim; none in an offline plan.
    pub claim: Option<ClaimId>,
    /// The node.
    pub node: NodeName,
    /// Its pool.
    pub pool: PoolName,
    /// The disruption reason.
    pub reason: Reason,
    /// Its price, if the catalog contains it.
    pub price: Option<Price>,
    /// The cause of drift, with Karpenter's name.
    pub cause: Option<&'static str>,
    /// Number of its pods that must be rescheduled.
    pub pods: usize,
}

impl PlannedTermination {
    fn new(candidate: &Candidate<'_>, reason: Reason) -> Self {
        Self {
            claim: candidate.claim.map(|claim| claim.record.id.clone()),
            node: candidate.node.name.clone(),
            pool: candidate.pool.clone(),
            reason,
            price: candidate.price,
            cause: None,
            pods: candidate.pods,
        }
    }

    /// Returns whether a replacement of the same price is expected.
    pub fn is_replaced(&self) -> bool {
        self.pods > 0 && matches!(self.reason, Reason::Drifted | Reason::Expired)
    }
}

/// The actions for one cluster now, and the reasons why no other action is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a plan does nothing unless it is carried out"]
pub struct Plan {
    /// Nodes to launch. Nodes for buffers have virtual pods. Offerings are in planning order,
    /// cheapest first after price overlays, with list prices.
    pub launches: Vec<NewNodeClaim>,
    /// Pods that fit on existing and in-flight nodes.
    pub placed: Vec<(NodeRef, Vec<PodKey>)>,
    /// Unschedulable pods, with the reasons.
    pub unplaced: Vec<UnschedulablePod>,
    /// Nodes to disrupt.
    pub retire: Vec<PlannedTermination>,
    /// Savings of consolidation, with price overlays and per-node cost.
    pub saves: Price,
    /// Claims of static pools to cancel. None of these claims has a node.
    pub cancel: Vec<ClaimId>,
    /// Kept nodes with their verdicts.
    pub kept: Vec<RetainedNode>,
    /// When the next node accepts moved pods again.
    pub takes_again: Option<Timestamp>,
    /// Nodes of static pools and capacity of buffers that cannot be launched.
    pub short: Vec<Shortfall>,
    /// Nodes whose capacity a buffer uses, with the name of the buffer.
    pub held: BTreeMap<NodeName, String>,
    /// The location of the capacity of each buffer.
    pub room: BufferRooms,
    /// Number of nodes of each pool that its budgets count, and how many of them are disrupted.
    pub budget_counts: BTreeMap<PoolName, (usize, usize)>,
    /// Findings of the audit. The actions concerned are removed from the plan.
    pub findings: Vec<String>,
    /// The number of nodes that are not ready, if it suspends voluntary disruption.
    pub ailing: Option<NodeHealth>,
}

impl Plan {
    /// Returns whether the plan has no actions.
    pub fn is_empty(&self) -> bool {
        self.launches.is_empty() && self.retire.is_empty() && self.cancel.is_empty()
    }

    /// Returns the pods that the plan schedules.
    pub fn scheduled_pods(&self) -> HashSet<&PodKey> {
        let placed = self.placed.iter().flat_map(|(_, pods)| pods);
        placed.chain(self.launches.iter().flat_map(|launch| &launch.pods)).collect()
    }

    /// Returns how many nodes are eligible for a reason, including those kept because of other
    /// nodes or for a limited time.
    pub fn eligible_nodes(&self, reason: Reason) -> usize {
        let leave = self.retire.iter().filter(|it| it.reason == reason);
        let kept = self.kept.iter().filter(|node| node.reason == reason);
        leave.count() + kept.filter(|node| node.verdict.is_eligible()).count()
    }
}

/// Plans capacity for static pools first, then for pending pods, then for buffers.
pub fn provision(snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let (mut launches, mut short) = plan_replicas(snapshot, now);
    let coming = with_claims(snapshot, &launches);
    let solution = prefer_separated(solve(&coming, now), &coming, now);
    let mut placed = assign_to_claims(solution.placed, &mut launches, snapshot);
    launches.extend(solution.claims);
    replan_stuck_pods(snapshot, &mut launches, &mut placed, now);
    let room = plan_buffer_capacity(snapshot, &launches, &placed, now);
    launches.extend(room.claims);
    short.extend(room.short);
    let plan = Plan {
        launches,
        placed,
        unplaced: solution.unplaced,
        short,
        held: room.held,
        room: room.counts,
        ..Plan::default()
    };
    audit::audit(with_list_prices(plan, snapshot), snapshot)
}

/// Replaces overlay prices by list prices: overlays affect planning, not reported cost.
fn with_list_prices(mut plan: Plan, snapshot: &Snapshot<'_>) -> Plan {
    let launches = plan.launches.iter_mut();
    for (offering, price) in launches.flat_map(|launch| &mut launch.offerings) {
        if let Some(listed) = snapshot.catalog.offering(offering) {
            *price = listed.price;
        }
    }
    plan
}

/// Selects unhealthy, empty, surplus, drifted and expired nodes, each for the first applicable
/// reason. Source of the order: spec/disruption.md §1.8. Selects none if too many nodes are not
/// ready.
pub fn select_disruptions(disruption_view: &DisruptionView<'_>, now: Timestamp) -> Plan {
    let mut budgets = Budgets::new(disruption_view, now);
    let budget_counts = budgets.total_and_disrupted_by_pool();
    let (broken, mut kept) = select_unhealthy(disruption_view, &mut budgets, now);
    let (empty, more) = empty_nodes(disruption_view, &mut budgets, now);
    kept.extend(more);
    let (mut surplus, cancel) = select_surplus(disruption_view);
    if let Some(unaccepted) = disruption_view.unaccepted {
        kept.extend(surplus.drain(..).map(|candidate| {
            let verdict = Verdict::approval_pending(unaccepted);
            RetainedNode::new(candidate, Reason::Surplus, verdict)
        }));
    }
    for candidate in &surplus {
        budgets.force_acquire(candidate);
    }
    let (drifted, more) = select_drifted(disruption_view, &mut budgets, now);
    kept.extend(more);
    let (expired, more) = select_expired(disruption_view, &mut budgets, now);
    kept.extend(more);
    let mut retire: Vec<PlannedTermination> = Vec::new();
    for (reason, nodes) in [
        (Reason::Unhealthy, broken),
        (Reason::Empty, empty),
        (Reason::Surplus, surplus),
        (Reason::Expired, expired),
    ] {
        let nodes = nodes.into_iter();
        retire.extend(nodes.map(|node| PlannedTermination::new(node, reason)));
    }
    retire.extend(drifted.into_iter().map(|(node, cause)| PlannedTermination {
        cause: Some(cause.as_str()),
        ..PlannedTermination::new(node, Reason::Drifted)
    }));
    let mut nodes = BTreeSet::new();
    retire.retain(|planned| nodes.insert(planned.node.clone()));
    kept.retain(|node| !nodes.contains(&node.node));
    let ailing = excess_unready(disruption_view);
    if let Some(health) = ailing {
        kept.extend(retire.drain(..).map(|termination| RetainedNode {
            node: termination.node,
            reason: termination.reason,
            verdict: Verdict::Health(health),
        }));
    }
    kept.sort_by(|a, b| (&a.node, a.reason).cmp(&(&b.node, b.reason)));
    Plan { retire, cancel, kept, ailing, budget_counts, ..Plan::default() }
}

/// Selects nodes for consolidation, with their replacements. Selects none if too many nodes are not
/// ready.
pub fn consolidate(
    disruption_view: &DisruptionView<'_>,
    field: &WhatIf<'_>,
    now: Timestamp,
) -> Plan {
    if let Some(health) = excess_unready(disruption_view) {
        let candidates = disruption_view.candidates.iter();
        let kept = candidates.map(|candidate| {
            RetainedNode::new(candidate, Reason::Underutilized, Verdict::Health(health))
        });
        return Plan { kept: kept.collect(), ailing: Some(health), ..Plan::default() };
    }
    let mut budgets = Budgets::new(disruption_view, now);
    let (found, kept) = consolidation::consolidate(disruption_view, field, &mut budgets, now);
    let found = found.unwrap_or_default();
    let leaving = disruption_view
        .candidates
        .iter()
        .filter(|candidate| found.nodes.contains(&candidate.node.name));
    let plan = Plan {
        retire: leaving
            .map(|candidate| PlannedTermination::new(candidate, Reason::Underutilized))
            .collect(),
        launches: found.claims,
        placed: found.placed,
        saves: Price::new(found.saves).unwrap_or_default(),
        kept,
        takes_again: next_reopening(disruption_view, now),
        ..Plan::default()
    };
    with_list_prices(plan, &field.snapshot)
}

/// The full plan including consolidation, for display. Nodes disrupted for other reasons accept no
/// pods, and nodes that accept pods are not consolidated.
pub fn full_plan(state: &State, now: Timestamp) -> Plan {
    let mut disruption_view = state.disruption_view(now);
    let snapshot = state.snapshot(now);
    let mut plan = plan_without_consolidation(&snapshot, &disruption_view, now);
    let leaving = node_names(&plan.retire);
    let taking: BTreeSet<NodeRef> = plan.placed.iter().map(|placed| placed.0.clone()).collect();
    let initialized =
        disruption_view.candidates.iter().filter(|candidate| candidate.initialized.is_some());
    for candidate in initialized.filter(|candidate| leaving.contains(&candidate.node.name)) {
        let pool = candidate.pool.clone();
        *disruption_view.leaving.entry(pool).or_default() += 1;
    }
    for termination in &plan.retire {
        if let Some(claim) = termination.claim.clone() {
            let record = DisruptionRecord {
                pool: termination.pool.clone(),
                reason: termination.reason,
                at: now,
            };
            disruption_view.let_go.insert(claim, record);
        }
    }
    disruption_view.candidates.retain(|candidate| !leaving.contains(&candidate.node.name));
    for candidate in &mut disruption_view.candidates {
        candidate.nominated |= taking.contains(&NodeRef::Node(candidate.node.name.clone()));
    }
    disruption_view.held.clone_from(&plan.held);
    let mut field = state.what_if(now);
    for room in &mut field.snapshot.rooms {
        let is_leaving = matches!(&room.host, NodeRef::Node(node) if leaving.contains(node));
        room.open &= !is_leaving && !taking.contains(&room.host);
    }
    let weighed = consolidate(&disruption_view, &field, now);
    plan.kept.extend(weighed.kept);
    let consolidated = node_names(&weighed.retire);
    plan.kept.retain(|kept| !consolidated.contains(&kept.node));
    let planned = plan.launches.len();
    plan.launches.extend(weighed.launches);
    let combined = audit::audit(plan.clone(), &snapshot);
    if combined.findings.len() > plan.findings.len() {
        // Provisioning and consolidation together exceed limits. Consolidation is evaluated again
        // once the other actions of the plan are done.
        plan.launches.truncate(planned);
        return plan;
    }
    plan.retire.extend(weighed.retire);
    plan.placed.extend(weighed.placed);
    plan.saves = weighed.saves;
    plan
}

fn node_names(retire: &[PlannedTermination]) -> BTreeSet<NodeName> {
    retire.iter().map(|planned| planned.node.clone()).collect()
}

/// The full plan without budgets. It shows the total savings that are reached step by step while
/// budgets limit each pass.
pub fn plan_without_budgets(state: &State, now: Timestamp) -> Plan {
    let mut state = state.clone();
    let cluster = Arc::make_mut(&mut state.cluster);
    cluster.disruption.budgets.clear();
    for pool in &mut cluster.pools {
        pool.disruption.budgets.clear();
    }
    if let Some(view) = &mut state.fleet {
        Arc::make_mut(view).budgets.clear();
    }
    full_plan(&state, now)
}

/// Returns the lowest total price of these claims.
pub fn lowest_total_price(claims: &[NewNodeClaim]) -> Price {
    claims.iter().filter_map(|claim| claim.offerings.first().map(|(_, price)| *price)).sum()
}

/// Provisioning and disruption without consolidation, for display. Nodes that pending pods will use
/// are not disrupted as empty, and surplus nodes accept no pods.
pub fn plan_without_consolidation(
    snapshot: &Snapshot<'_>,
    disruption_view: &DisruptionView<'_>,
    now: Timestamp,
) -> Plan {
    let (surplus, _) = select_surplus(disruption_view);
    let leaving: BTreeSet<NodeRef> =
        surplus.into_iter().map(|candidate| NodeRef::Node(candidate.node.name.clone())).collect();
    let mut snapshot = Cow::Borrowed(snapshot);
    if !leaving.is_empty() {
        let rooms = snapshot.to_mut().rooms.iter_mut();
        let rooms = rooms.filter(|room| leaving.contains(&room.host));
        rooms.for_each(|room| room.open = false);
    }
    let plan = provision(&snapshot, now);
    let disruption_view = DisruptionView { held: plan.held.clone(), ..disruption_view.clone() };
    let Plan { mut retire, cancel, kept, ailing, .. } = select_disruptions(&disruption_view, now);
    retire.retain(|termination| {
        let host = NodeRef::Node(termination.node.clone());
        !plan.placed.iter().any(|(placed, _)| *placed == host)
    });
    Plan { retire, cancel, kept, ailing, ..plan }
}
