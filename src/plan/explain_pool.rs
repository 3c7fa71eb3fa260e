//! Explains one pool: its nodes and available offerings, the nodes it would launch, and why its
//! nodes are kept.

// `explain pool` as text and JSON.
mod render;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::coordination::lease_annotations::Pause;
use crate::disruption::verdict::{RetainedNode, RuleScope};
use crate::model::buffer::buffer_of;
use crate::model::id::PodKey;
use crate::model::instance::{OfferingKey, Price};
use crate::model::node::Node;
use crate::model::pool::{Pool, Reason};
use crate::plan::explain_node::{REASONS, similar_names};
use crate::plan::{Plan, full_plan};
use crate::scheduling::pool_availability::{PoolAvailability, availability_of};
use crate::scheduling::static_pools::{Shortfall, StaticDemand};
use crate::scheduling::{PoolRejection, UnschedulablePod};
use crate::state::State;
use crate::state::stats::PoolStats;

/// The explanation of one pool.
#[derive(Clone, Debug)]
pub struct ExplainedPool<'s> {
    /// The pool.
    pub pool: &'s Pool,
    /// The nodes of the pool and their cost.
    pub holding: PoolStats,
    /// The active pause and its scope.
    pub pause: Option<(RuleScope, &'s Pause)>,
    /// The offerings that the pool can launch.
    pub range: PoolAvailability,
    /// Nodes that the pool would launch now, grouped by first offering, largest group first.
    pub launches: Vec<Launches>,
    /// Missing nodes of a static pool that cannot be launched.
    pub short: Option<Shortfall>,
    /// Unschedulable pods by rejection in this pool, largest group first.
    pub unplaced: Vec<RejectionGroup>,
    /// Number of disruption candidates.
    pub candidates: usize,
    /// Number of candidates that would be disrupted now.
    pub leaving: usize,
    /// The outcome for each reason.
    pub outlooks: Vec<(Reason, Outlook)>,
}

/// New nodes with the same first offering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launches {
    /// The offering that is requested first.
    pub first: OfferingKey,
    /// Its price.
    pub price: Price,
    /// Number of these nodes.
    pub nodes: usize,
    /// Number of pods on all of them.
    pub pods: usize,
    /// Number of virtual pods of buffers on all of them.
    pub virtual_pods: usize,
}

/// Unschedulable pods with the same rejection code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectionGroup {
    /// Number of these pods.
    pub pods: usize,
    /// The first pod.
    pub first: PodKey,
    /// The rejection of the first pod.
    pub why: PoolRejection,
}

/// The outcome for the candidates of a pool for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Number of nodes that would be disrupted now.
    pub leave: usize,
    /// Kept nodes by verdict, largest group first.
    pub stay: Vec<Stay>,
}

/// Nodes kept by the same verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Number of these nodes.
    pub nodes: usize,
    /// The first node and its verdict.
    pub first: RetainedNode,
}

/// Explains a pool, or returns `None` if the cluster has no such pool.
pub fn explain_pool<'s>(state: &'s State, name: &str, now: Timestamp) -> Option<ExplainedPool<'s>> {
    let pool = state.cluster.pool(name)?;
    let range = availability_of(&state.snapshot(now), &pool.name, now)?;
    let pause = state.notes.pause_of(&pool.name, now);
    let mut plan = full_plan(state, now);
    plan.launches.retain(|launch| launch.pool == pool.name);
    plan.retire.retain(|termination| termination.pool == pool.name);
    plan.kept.retain(|kept| {
        let node = state.objects.nodes.get(kept.node.as_str());
        node.and_then(Node::pool_name).as_ref() == Some(&pool.name)
    });
    let need = StaticDemand::Nodes(pool.name.clone());
    let short = plan.short.iter().find(|short| short.need == need);
    let disruption_view = state.disruption_view(now);
    let candidates = disruption_view.candidates.iter();
    let reasons = REASONS.into_iter();
    let reasons = reasons.filter(|reason| pool.replicas.is_some() || *reason != Reason::Surplus);
    Some(ExplainedPool {
        pool,
        holding: state.stats_by_pool().remove(&pool.name).unwrap_or_default(),
        pause: pause.map(|(of_cluster, pause)| match of_cluster {
            true => (RuleScope::Cluster, pause),
            false => (RuleScope::Pool, pause),
        }),
        range,
        launches: group_launches(&plan),
        short: short.cloned(),
        unplaced: group_rejections(&plan.unplaced, pool),
        candidates: candidates.filter(|candidate| candidate.pool == pool.name).count(),
        leaving: plan.retire.len(),
        outlooks: reasons.map(|reason| (reason, reason_outlook(&plan, reason))).collect(),
    })
}

/// Returns pools with similar names, closest first.
pub fn similar_pools(state: &State, name: &str) -> Vec<String> {
    let pools = state.cluster.pools.iter();
    similar_names(pools.map(|pool| pool.name.as_str()), name)
}

fn group_launches(plan: &Plan) -> Vec<Launches> {
    let mut alike: BTreeMap<&OfferingKey, Launches> = BTreeMap::new();
    for claim in &plan.launches {
        let Some((first, price)) = claim.offerings.first() else {
            continue;
        };
        let launches = alike.entry(first).or_insert_with(|| Launches {
            first: first.clone(),
            price: *price,
            nodes: 0,
            pods: 0,
            virtual_pods: 0,
        });
        let virtual_pods = claim.pods.iter().filter_map(buffer_of).count();
        launches.nodes += 1;
        launches.pods += claim.pods.len() - virtual_pods;
        launches.virtual_pods += virtual_pods;
    }
    let mut all: Vec<Launches> = alike.into_values().collect();
    all.sort_by_key(|launches| Reverse(launches.nodes));
    all
}

/// Groups unschedulable pods by their rejection in a pool. Rejections that apply to all pools are
/// included, except in static pools, which launch no nodes for pods.
fn group_rejections(unplaced: &[UnschedulablePod], pool: &Pool) -> Vec<RejectionGroup> {
    let mut alike: BTreeMap<&str, RejectionGroup> = BTreeMap::new();
    for pod in unplaced {
        let mut reasons = pod.reasons.iter();
        let in_pool = reasons.find(|reason| reason.pool.as_ref() == Some(&pool.name));
        let mut reasons = pod.reasons.iter().filter(|_| pool.replicas.is_none());
        let Some(why) = in_pool.or_else(|| reasons.find(|reason| reason.pool.is_none())) else {
            continue;
        };
        let stopped = alike.entry(why.code.as_str()).or_insert_with(|| RejectionGroup {
            pods: 0,
            first: pod.pod.clone(),
            why: why.clone(),
        });
        stopped.pods += 1;
    }
    let mut all: Vec<RejectionGroup> = alike.into_values().collect();
    all.sort_by_key(|group| Reverse(group.pods));
    all
}

fn reason_outlook(plan: &Plan, reason: Reason) -> Outlook {
    let leave = plan.retire.iter().filter(|it| it.reason == reason);
    let mut alike: BTreeMap<&str, Stay> = BTreeMap::new();
    for node in plan.kept.iter().filter(|node| node.reason == reason) {
        let stay = alike
            .entry(node.verdict.code())
            .or_insert_with(|| Stay { nodes: 0, first: node.clone() });
        stay.nodes += 1;
    }
    let mut stay: Vec<Stay> = alike.into_values().collect();
    stay.sort_by_key(|stay| Reverse(stay.nodes));
    Outlook { leave: leave.count(), stay }
}

impl Outlook {
    /// Returns the number of kept nodes.
    pub fn kept_nodes(&self) -> usize {
        self.stay.iter().map(|stay| stay.nodes).sum()
    }
}

impl ExplainedPool<'_> {
    /// Returns whether the pool can launch nodes, now or once its limits allow it.
    pub fn can_launch(&self) -> bool {
        self.range.is_open()
    }
}
