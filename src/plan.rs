//! Decisions as actions: what to launch and what to retire, with a report of all that stays.
//! It must not know how an action is carried out; nothing is left to decide there.

mod projection;
mod separate_spread;
mod buffers;
mod blocked_by_terminating;
pub mod audit;
pub mod render_rejections;
pub mod render;
pub mod explain_pod;
pub mod explain_node;
pub mod explain_pool;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::HashSet;
use jiff::Timestamp;

use crate::coordination::lease_annotations::DisruptionRecord;
use crate::disruption::budgets::Budgets;
use crate::disruption::cluster_health::ailing;
use crate::disruption::consolidation;
use crate::disruption::drift::drifted;
use crate::disruption::eligibility::takes_again;
use crate::disruption::emptiness::empty_nodes;
use crate::disruption::expiry::expired;
use crate::disruption::repair::broken;
use crate::disruption::static_scale_down::surplus;
pub use crate::disruption::verdict::next_due;
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::buffer_object::BufferRooms;
use crate::model::id::{ClaimId, NodeName, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::pool::Reason;
use crate::plan::blocked_by_terminating::place_stuck;
use crate::plan::buffers::keep_free;
use crate::plan::projection::{ahead, give};
use crate::plan::separate_spread::or_apart;
use crate::scheduling::static_pools::{Shortfall, replicas};
use crate::scheduling::{NewNodeClaim, UnschedulablePod, solve};
use crate::state::State;
use crate::state::candidates::{Candidate, DisruptionView, NodeHealth};
use crate::state::snapshot::{NodeRef, Snapshot};
use crate::state::what_if::WhatIf;

/// A node that shall leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTermination {
    /// Its claim; none in an offline plan.
    pub claim: Option<ClaimId>,
    /// The node.
    pub node: NodeName,
    /// Its pool.
    pub pool: PoolName,
    /// Why.
    pub reason: Reason,
    /// What it costs, if the catalog knows it.
    pub price: Option<Price>,
    /// In what it has drifted, in Karpenter's spelling.
    pub cause: Option<&'static str>,
    /// Pods on it that need another place.
    pub pods: usize,
}

impl PlannedTermination {
    fn new(candidate: &Candidate<'_>, reason: Reason) -> Self {
        Self {
            claim: candidate.claim.map(|own| own.record.id.clone()),
            node: candidate.node.name.clone(),
            pool: candidate.pool.clone(),
            reason,
            price: candidate.price,
            cause: None,
            pods: candidate.pods,
        }
    }

    /// Whether what it costs is paid for another in its place.
    pub fn is_replaced(&self) -> bool {
        self.pods > 0 && matches!(self.reason, Reason::Drifted | Reason::Expired)
    }
}

/// What shall be done about one cluster now, and why nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a plan does nothing unless it is carried out"]
pub struct Plan {
    /// Nodes to be made; those for buffers have virtual pods. Their offerings stand in the order of
    /// planning, cheapest first as overlays have it, with the prices that are paid.
    pub launches: Vec<NewNodeClaim>,
    /// Pods that existing hosts will take.
    pub placed: Vec<(NodeRef, Vec<PodKey>)>,
    /// Pods with no answer, and why.
    pub unplaced: Vec<UnschedulablePod>,
    /// Nodes that shall leave.
    pub retire: Vec<PlannedTermination>,
    /// What nodes save that leave since their pods can be had for less, overlays and the price of
    /// a node counted.
    pub saves: Price,
    /// Claims of static pools that need no node any more; none of them has one.
    pub cancel: Vec<ClaimId>,
    /// Nodes that stay, and why.
    pub kept: Vec<RetainedNode>,
    /// When a node next takes pods of others that is left alone until then.
    pub takes_again: Option<Timestamp>,
    /// What shall be there whatever pods ask for, and cannot be had.
    pub short: Vec<Shortfall>,
    /// Nodes whose room a buffer needs, with the buffer's name.
    pub held: BTreeMap<NodeName, String>,
    /// Where each buffer has its room.
    pub room: BufferRooms,
    /// What the audit found wrong with the plan; such actions are left out of it.
    pub findings: Vec<String>,
    /// How many nodes are not ready, where these are too many for any to leave on purpose.
    pub ailing: Option<NodeHealth>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.launches.is_empty() && self.retire.is_empty() && self.cancel.is_empty()
    }

    /// The pods that have a place in it.
    pub fn pods(&self) -> HashSet<&PodKey> {
        let placed = self.placed.iter().flat_map(|(_, pods)| pods);
        placed
            .chain(self.launches.iter().flat_map(|own| &own.pods))
            .collect()
    }

    /// How many nodes may leave for a reason as far as they are concerned, whether they do or are
    /// kept for the sake of others, or for now.
    pub fn eligible(&self, reason: Reason) -> usize {
        let leave = self.retire.iter().filter(|own| own.reason == reason);
        let kept = self.kept.iter().filter(|own| own.reason == reason);
        leave.count() + kept.filter(|own| own.verdict.is_eligible()).count()
    }
}

/// Capacity for the numbers of static pools, then for the pods that wait, then for buffers.
pub fn provision(snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let (mut launches, mut short) = replicas(snapshot, now);
    let coming = ahead(snapshot, &launches);
    let solution = or_apart(solve(&coming, now), &coming, now);
    let mut placed = give(solution.placed, &mut launches, snapshot);
    launches.extend(solution.claims);
    place_stuck(snapshot, &mut launches, &mut placed, now);
    let room = keep_free(snapshot, &launches, &placed, now);
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
    audit::audit(listed(plan, snapshot), snapshot)
}

/// The plan at the prices that are paid: overlays count where nodes are planned, not in what is
/// said of their cost.
fn listed(mut plan: Plan, snapshot: &Snapshot<'_>) -> Plan {
    for (offering, price) in plan.launches.iter_mut().flat_map(|own| &mut own.offerings) {
        if let Some(listed) = snapshot.catalog.offering(offering) {
            *price = listed.price;
        }
    }
    plan
}

/// Nodes that shall leave because they are broken, empty, more than their static pool wants, not
/// what it would make by now, or too old: each for the first of these reasons. Source of the order:
/// spec/disruption.md §1.8. Where the cluster is not well, none does.
pub fn sweep(roster: &DisruptionView<'_>, now: Timestamp) -> Plan {
    let mut budgets = Budgets::new(roster, now);
    let (broken, mut kept) = broken(roster, &mut budgets, now);
    let (empty, more) = empty_nodes(roster, &mut budgets, now);
    kept.extend(more);
    let (mut surplus, cancel) = surplus(roster);
    if let Some(unaccepted) = roster.unaccepted {
        let held = |own| RetainedNode::new(own, Reason::Surplus, Verdict::held(unaccepted));
        kept.extend(surplus.drain(..).map(held));
    }
    surplus.iter().for_each(|own| budgets.let_go(own));
    let (drifted, more) = drifted(roster, &mut budgets, now);
    kept.extend(more);
    let (expired, more) = expired(roster, &mut budgets, now);
    kept.extend(more);
    let mut retire: Vec<PlannedTermination> = Vec::new();
    for (reason, nodes) in [
        (Reason::Unhealthy, broken),
        (Reason::Empty, empty),
        (Reason::Surplus, surplus),
        (Reason::Expired, expired),
    ] {
        retire.extend(
            nodes
                .into_iter()
                .map(|own| PlannedTermination::new(own, reason)),
        );
    }
    retire.extend(drifted.into_iter().map(|(own, cause)| PlannedTermination {
        cause: Some(cause.as_str()),
        ..PlannedTermination::new(own, Reason::Drifted)
    }));
    let mut gone = BTreeSet::new();
    retire.retain(|own| gone.insert(own.node.clone()));
    kept.retain(|own| !gone.contains(&own.node));
    let ailing = ailing(roster);
    if let Some(health) = ailing {
        kept.extend(retire.drain(..).map(|own| RetainedNode {
            node: own.node,
            reason: own.reason,
            verdict: Verdict::Health(health),
        }));
    }
    kept.sort_by(|a, b| (&a.node, a.reason).cmp(&(&b.node, b.reason)));
    Plan {
        retire,
        cancel,
        kept,
        ailing,
        ..Plan::default()
    }
}

/// Nodes that shall leave together since their pods can be had for less, and what comes in their
/// place. Where the cluster is not well, none does.
pub fn consolidate(roster: &DisruptionView<'_>, field: &WhatIf<'_>, now: Timestamp) -> Plan {
    if let Some(health) = ailing(roster) {
        let candidates = roster.candidates.iter();
        let kept = candidates
            .map(|own| RetainedNode::new(own, Reason::Underutilized, Verdict::Health(health)));
        return Plan {
            kept: kept.collect(),
            ailing: Some(health),
            ..Plan::default()
        };
    }
    let mut budgets = Budgets::new(roster, now);
    let (found, kept) = consolidation::consolidate(roster, field, &mut budgets, now);
    let found = found.unwrap_or_default();
    let leaves = |own: &&Candidate<'_>| found.nodes.contains(&own.node.name);
    let leaving = roster.candidates.iter().filter(leaves);
    let retire = |own| PlannedTermination::new(own, Reason::Underutilized);
    let plan = Plan {
        retire: leaving.map(retire).collect(),
        launches: found.claims,
        placed: found.placed,
        saves: Price::new(found.saves).unwrap_or_default(),
        kept,
        takes_again: takes_again(roster, now),
        ..Plan::default()
    };
    listed(plan, &field.snapshot)
}

/// The whole, and then the nodes whose pods can be had for less, for a plan that is shown. Who
/// leaves by the rest of it takes no pods, and who takes pods by it stays.
pub fn foreseen(state: &State, now: Timestamp) -> Plan {
    let mut roster = state.roster(now);
    let snapshot = state.snapshot(now);
    let mut plan = whole(&snapshot, &roster, now);
    let leaving: BTreeSet<NodeName> = plan.retire.iter().map(|own| own.node.clone()).collect();
    let taking: BTreeSet<NodeRef> = plan.placed.iter().map(|own| own.0.clone()).collect();
    let takes = |node: &NodeName| taking.contains(&NodeRef::Node(node.clone()));
    let initialized = |own: &&Candidate<'_>| own.initialized.is_some();
    let gone = roster.candidates.iter().filter(initialized);
    for own in gone.filter(|own| leaving.contains(&own.node.name)) {
        *roster.leaving.entry(own.pool.clone()).or_default() += 1;
    }
    for own in &plan.retire {
        if let Some(claim) = own.claim.clone() {
            let (pool, reason) = (own.pool.clone(), own.reason);
            let let_go = DisruptionRecord {
                pool,
                reason,
                at: now,
            };
            roster.let_go.insert(claim, let_go);
        }
    }
    let stays = |own: &Candidate<'_>| !leaving.contains(&own.node.name);
    roster.candidates.retain(stays);
    for own in &mut roster.candidates {
        own.nominated |= takes(&own.node.name);
    }
    roster.held.clone_from(&plan.held);
    let mut field = state.field(now);
    for room in &mut field.snapshot.rooms {
        let leaves = matches!(&room.host, NodeRef::Node(node) if leaving.contains(node));
        room.open &= !leaves && !taking.contains(&room.host);
    }
    let weighed = consolidate(&roster, &field, now);
    plan.kept.extend(weighed.kept);
    let moves: BTreeSet<NodeName> = weighed.retire.iter().map(|own| own.node.clone()).collect();
    plan.kept.retain(|own| !moves.contains(&own.node));
    let planned = plan.launches.len();
    plan.launches.extend(weighed.launches);
    let both = audit::audit(plan.clone(), &snapshot);
    if both.findings.len() > plan.findings.len() {
        // Both together are beyond what may be had: it is weighed again once the first is there.
        plan.launches.truncate(planned);
        return plan;
    }
    plan.retire.extend(weighed.retire);
    plan.placed.extend(weighed.placed);
    plan.saves = weighed.saves;
    plan
}

/// The same where all that may leave may do so at once: what it comes to while budgets let one node
/// go after another, or more, since what is left is weighed anew each time.
pub fn unbudgeted(state: &State, now: Timestamp) -> Plan {
    let mut state = state.clone();
    let cluster = Arc::make_mut(&mut state.cluster);
    cluster.disruption.budgets.clear();
    for pool in &mut cluster.pools {
        pool.disruption.budgets.clear();
    }
    if let Some(view) = &mut state.fleet {
        Arc::make_mut(view).budgets.clear();
    }
    foreseen(&state, now)
}

/// What these claims cost at least.
pub fn cost(claims: &[NewNodeClaim]) -> Price {
    let first = |own: &NewNodeClaim| own.offerings.first().map(|(_, price)| *price);
    claims.iter().filter_map(first).sum()
}

/// Both at once, for a plan that is shown and not carried out. A node that pending pods will use is
/// not retired for being empty by the same plan, and one that is surplus takes none.
pub fn whole(snapshot: &Snapshot<'_>, roster: &DisruptionView<'_>, now: Timestamp) -> Plan {
    let (surplus, _) = surplus(roster);
    let hosts = surplus.into_iter();
    let hosts = hosts.map(|own| NodeRef::Node(own.node.name.clone()));
    let leaving: BTreeSet<NodeRef> = hosts.collect();
    let mut snapshot = Cow::Borrowed(snapshot);
    if !leaving.is_empty() {
        let rooms = snapshot.to_mut().rooms.iter_mut();
        let rooms = rooms.filter(|room| leaving.contains(&room.host));
        rooms.for_each(|room| room.open = false);
    }
    let plan = provision(&snapshot, now);
    let roster = DisruptionView {
        held: plan.held.clone(),
        ..roster.clone()
    };
    let Plan {
        mut retire,
        cancel,
        kept,
        ailing,
        ..
    } = sweep(&roster, now);
    retire.retain(|own| {
        let host = NodeRef::Node(own.node.clone());
        !plan.placed.iter().any(|(placed, _)| *placed == host)
    });
    Plan {
        retire,
        cancel,
        kept,
        ailing,
        ..plan
    }
}
