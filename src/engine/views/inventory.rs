//! What is in a cluster, node by node and pod by pod, for people who watch it.
//! It must not know how it is shown: values are told, and nothing is put into words here.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::engine::Engine;
use crate::model::claim::ClaimPhase;
use crate::model::id::{NodeName, PodKey};
use crate::model::instance::Price;
use crate::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, POOL, ZONE};
use crate::model::node::Node;
use crate::model::pool::Reason;
use crate::model::quantity::Resources;
use crate::plan::Plan;
use crate::scheduling::PoolRejection;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot::NodeRef;

/// Nodes that are told one by one; the rest is counted. A screen shows a hundred of them, and an
/// answer of so many is read within a few milliseconds.
pub const NODES_MAX: usize = 2_000;

/// The same of pods that wait.
pub const PODS_MAX: usize = 2_000;

/// What is to be told of each node beside what is always told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Labels.
    pub labels: Vec<String>,
    /// Resources, by their Kubernetes names.
    pub resources: Vec<String>,
}

/// How much of something is taken; cpu in thousandths of a core, memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// What pods ask for.
    pub taken: i64,
    /// What they may have.
    pub there: i64,
}

/// What is in a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// Nodes: first those that are on their way and not there yet, then the others by name.
    pub nodes: Vec<NodeRow>,
    /// How many more there are.
    pub more_nodes: usize,
    /// Pods that wait for a place, by name.
    pub pods: Vec<SeenPod>,
    /// How many more there are.
    pub more_pods: usize,
    /// What all Node objects have together, resource by resource as they were asked for.
    pub amounts: Vec<Amount>,
    /// How many pods are on them.
    pub bound_pods: usize,
    /// What all nodes cost, as far as the catalog knows.
    pub price: Price,
}

/// A node, or a claim that has none yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRow {
    /// The node's name, or the claim's id.
    pub name: String,
    /// Its pool.
    pub pool: Option<String>,
    /// Its instance type.
    pub instance_type: Option<String>,
    /// Its zone.
    pub zone: Option<String>,
    /// How it is bought.
    pub capacity_type: Option<String>,
    /// The labels that were asked for.
    pub labels: Vec<Option<String>>,
    /// The resources that were asked for.
    pub amounts: Vec<Amount>,
    /// Pods on it; of a claim those that it is made for.
    pub pods: usize,
    /// Since when it is counted as old.
    pub born: Option<Timestamp>,
    /// What it costs, if the catalog knows it.
    pub price: Option<Price>,
    /// Whether it is ready; none where there is no Node object.
    pub ready: Option<bool>,
    /// Whether somebody has cordoned it.
    pub cordoned: bool,
    /// How far it has come; none where it is none of ours.
    pub phase: Option<ClaimPhase>,
    /// Whether it is on its way out.
    pub leaves: bool,
    /// Why, where that was decided here.
    pub leaving: Option<Reason>,
    /// Why it stays, for the reason for which it was closest to leaving when it was last looked at.
    pub kept: Option<(Reason, Verdict)>,
}

/// A pod that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenPod {
    /// Its namespace and name.
    pub key: PodKey,
    /// When it was made.
    pub since: Option<Timestamp>,
    /// What becomes of it.
    pub hope: PendingPodOutcome,
}

/// What becomes of a pod that waits.
#[derive(Clone, Debug, PartialEq)]
pub enum PendingPodOutcome {
    /// Nothing, as last planned, for these reasons.
    None(Arc<[PoolRejection]>),
    /// This host is to take it.
    Host(NodeRef),
    /// It has its turn in the next plan.
    Turn,
    /// Another scheduler places it, or one makes room for it.
    Others,
}

/// Nodes that were looked at and stay, as they were last looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetainedNodes {
    swept: Vec<RetainedNode>,
    weighed: Vec<RetainedNode>,
}

impl RetainedNodes {
    /// A sweep is over.
    pub(crate) fn swept(&mut self, plan: &mut Plan) {
        self.swept = std::mem::take(&mut plan.kept);
    }

    /// The whole cluster was weighed.
    pub(crate) fn weighed(&mut self, plan: &mut Plan) {
        self.weighed = std::mem::take(&mut plan.kept);
    }

    /// By node, the one that tells most. Those whose time is over tell nothing any more.
    fn by_node(&self, now: Timestamp) -> BTreeMap<&NodeName, &RetainedNode> {
        let mut all: BTreeMap<&NodeName, &RetainedNode> = BTreeMap::new();
        let told = self.swept.iter().chain(&self.weighed);
        for own in told.filter(|own| own.verdict.until().is_none_or(|at| at > now)) {
            let known = all.entry(&own.node).or_insert(own);
            if closeness(own) < closeness(known) {
                *known = own;
            }
        }
        all
    }
}

/// The less, the closer a node was to leaving: one that is due comes before one that might be had
/// for less, and that before one of which only the obvious is said.
fn closeness(own: &RetainedNode) -> u8 {
    match (own.reason, &own.verdict) {
        (_, Verdict::InUse { .. } | Verdict::Empty) => 3,
        (Reason::Underutilized, _) => 2,
        (Reason::Empty, _) => 1,
        _ => 0,
    }
}

impl Engine {
    /// What is in its cluster now.
    pub fn inventory(&self, wanted: &Columns, now: Timestamp) -> Inventory {
        let state = &self.state;
        let mut told = Inventory {
            amounts: vec![Amount::default(); wanted.resources.len()],
            ..Inventory::default()
        };
        let claims = state.ledger.claims.values();
        let coming = claims.filter(|own| own.phase < ClaimPhase::Draining);
        let mut rows: Vec<NodeRow> = coming
            .filter(|own| state.node_of(own).is_none())
            .map(|own| self.coming_node(own, wanted))
            .collect();
        let stays = self.stays.by_node(now);
        for node in state.objects.nodes.values() {
            let claim = state.claim_of(node);
            let taken = state.taken_on(node);
            let pods = usize::try_from(taken.pods).unwrap_or(0);
            told.bound_pods += pods;
            let amounts = amounts(&taken, &node.allocatable, wanted);
            for (sum, own) in told.amounts.iter_mut().zip(&amounts) {
                sum.taken = sum.taken.saturating_add(own.taken);
                sum.there = sum.there.saturating_add(own.there);
            }
            let price = state.price_of(node, claim);
            told.price = [told.price].into_iter().chain(price).sum();
            if rows.len() < NODES_MAX {
                let kept = stays.get(&node.name);
                rows.push(NodeRow {
                    amounts,
                    pods,
                    price,
                    kept: kept.map(|own| (own.reason, own.verdict.clone())),
                    ..seen_node(node, claim, wanted)
                });
            } else {
                told.more_nodes += 1;
            }
        }
        told.more_nodes += rows.len().saturating_sub(NODES_MAX);
        rows.truncate(NODES_MAX);
        told.nodes = rows;
        self.add_pods(&mut told, now);
        told
    }

    /// A claim of which there is no Node.
    fn coming_node(&self, claim: &NodeClaim, wanted: &Columns) -> NodeRow {
        let launched = claim.instance.as_ref().map(|own| &own.offering);
        let offering = launched.or_else(|| claim.offerings.first());
        NodeRow {
            name: claim.record.id.to_string(),
            pool: Some(claim.record.pool.to_string()),
            instance_type: offering.map(|own| own.instance_type.to_string()),
            zone: offering.map(|own| own.zone.to_string()),
            capacity_type: offering.map(|own| own.capacity_type.as_str().to_owned()),
            labels: vec![None; wanted.labels.len()],
            amounts: vec![Amount::default(); wanted.resources.len()],
            pods: claim.pods.len(),
            born: Some(claim.record.created),
            price: self.state.price_of_instance(claim),
            phase: Some(claim.phase),
            leaves: claim.leaving.is_some(),
            leaving: claim.leaving,
            ..NodeRow::default()
        }
    }

    /// Adds the pods that wait.
    fn add_pods(&self, told: &mut Inventory, now: Timestamp) {
        let state = &self.state;
        let (waiting, expected) = state.waiting_and_expected(now);
        let hosts: BTreeMap<&PodKey, &NodeClaim> = expected
            .iter()
            .flat_map(|(claim, pods)| pods.iter().map(|pod| (&pod.key, *claim)))
            .collect();
        let hope = |key: &PodKey| {
            let has_turn = || waiting.binary_search_by(|own| own.key.cmp(key)).is_ok();
            match (self.told.get(key), hosts.get(key)) {
                (_, Some(claim)) => PendingPodOutcome::Host(match &claim.node {
                    Some(node) => NodeRef::Node(node.clone()),
                    None => NodeRef::Claim(claim.record.id.clone()),
                }),
                (Some(reasons), None) => PendingPodOutcome::None(reasons.clone()),
                (None, None) if has_turn() => PendingPodOutcome::Turn,
                (None, None) => PendingPodOutcome::Others,
            }
        };
        let keys = state.objects.waiting().iter();
        let pods = keys.filter_map(|key| state.objects.pods.get(key));
        let pods = pods.take(PODS_MAX).map(|pod| SeenPod {
            key: pod.key.clone(),
            since: pod.created,
            hope: hope(&pod.key),
        });
        told.pods = pods.collect();
        let all = state.objects.waiting().len();
        told.more_pods = all.saturating_sub(told.pods.len());
    }
}

/// What a Node and its claim say themselves.
fn seen_node(node: &Node, claim: Option<&NodeClaim>, wanted: &Columns) -> NodeRow {
    let label = |key: &str| node.labels.get(key).cloned();
    let leaving = claim.and_then(|own| own.leaving);
    NodeRow {
        name: node.name.to_string(),
        pool: label(POOL),
        instance_type: label(INSTANCE_TYPE),
        zone: label(ZONE),
        capacity_type: label(CAPACITY_TYPE),
        labels: wanted.labels.iter().map(|own| label(own)).collect(),
        born: claim.map(|own| own.record.created).or(node.created),
        ready: Some(node.ready),
        cordoned: node.unschedulable,
        phase: claim.map(|own| own.phase),
        leaves: leaving.is_some() || node.leaves(),
        leaving,
        ..NodeRow::default()
    }
}

fn amounts(taken: &Resources, there: &Resources, wanted: &Columns) -> Vec<Amount> {
    let names = wanted.resources.iter();
    let amount = |name: &String| Amount {
        taken: taken.get(name),
        there: there.get(name),
    };
    names.map(amount).collect()
}
