//! Inventory of a cluster: its nodes and its pending pods, as values without formatting.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::disruption::verdict::Verdict;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::provisioning::Provisioning;
use crate::model::claim::ClaimPhase;
use crate::model::id::PodKey;
use crate::model::instance::Price;
use crate::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, POOL, ZONE};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::quantity::Resources;
use crate::scheduling::PoolRejection;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot::NodeRef;
use crate::state::snapshot_builder::host_of;

/// Maximum number of listed nodes; further nodes are only counted. A screen shows a hundred, and a
/// response of this size is parsed within a few milliseconds.
pub const NODES_MAX: usize = 2_000;

/// Maximum number of listed pods; further pods are only counted.
pub const PODS_MAX: usize = 2_000;

/// Additional columns of each node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Keys of the labels.
    pub labels: Vec<String>,
    /// Kubernetes names of the resources.
    pub resources: Vec<String>,
}

/// Usage of one resource: cpu in thousandths of a core, memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Requests of the pods.
    pub taken: i64,
    /// Allocatable quantity.
    pub there: i64,
}

/// The nodes and pending pods of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// Nodes: first those without a Node object, then the others by name.
    pub nodes: Vec<NodeRow>,
    /// Number of nodes not listed.
    pub more_nodes: usize,
    /// Pending pods, by name.
    pub pods: Vec<SeenPod>,
    /// Number of pending pods not listed.
    pub more_pods: usize,
    /// Totals of all Node objects, in the order of the requested resources.
    pub amounts: Vec<Amount>,
    /// Number of pods bound to these nodes.
    pub bound_pods: usize,
    /// Price of all nodes, if the catalog knows it.
    pub price: Price,
}

/// A node, or a claim without a Node object.
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
    /// Its capacity type.
    pub capacity_type: Option<String>,
    /// Values of the requested labels.
    pub labels: Vec<Option<String>>,
    /// Use of the requested resources.
    pub amounts: Vec<Amount>,
    /// Number of pods on it. For a claim without a Node: pods planned for it.
    pub pods: usize,
    /// The time from which its age is counted.
    pub born: Option<Timestamp>,
    /// Its price, if the catalog knows it.
    pub price: Option<Price>,
    /// True if the node is ready. `None` if there is no Node object.
    pub ready: Option<bool>,
    /// True if the node is cordoned.
    pub cordoned: bool,
    /// Its claim phase. `None` if Outrigger does not manage the node.
    pub phase: Option<ClaimPhase>,
    /// True if the node is being disrupted or terminated.
    pub leaves: bool,
    /// Its disruption reason, if Outrigger disrupts it.
    pub leaving: Option<Reason>,
    /// Why the node is kept: the reason for which the last checks came closest to disrupting it,
    /// and the verdict.
    pub kept: Option<(Reason, Verdict)>,
}

/// A pending pod.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenPod {
    /// Its namespace and name.
    pub key: PodKey,
    /// Its creation time.
    pub since: Option<Timestamp>,
    /// The expected outcome.
    pub hope: PendingPodOutcome,
}

/// The expected outcome of a pending pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PendingPodOutcome {
    /// The pod was unschedulable in the last plan, for these reasons.
    None(Arc<[PoolRejection]>),
    /// The pod is planned for this node or claim.
    Host(NodeRef),
    /// The pod is part of the next plan.
    Turn,
    /// A different scheduler handles the pod, or the scheduler preempts other pods for it.
    Others,
}

impl Engine {
    /// Returns the current inventory.
    pub fn inventory(&self, wanted: &Columns, now: Timestamp) -> Inventory {
        let state = &self.cx.state;
        let mut inventory = Inventory {
            amounts: vec![Amount::default(); wanted.resources.len()],
            ..Inventory::default()
        };
        let claims = state.ledger.claims.values();
        let coming = claims.filter(|claim| claim.phase < ClaimPhase::Draining);
        let mut rows: Vec<NodeRow> = coming
            .filter(|claim| state.node_of(claim).is_none())
            .map(|claim| claim_row(&self.cx, claim, wanted))
            .collect();
        let stays = self.provisioning.retained_nodes.by_node(now);
        for node in state.objects.nodes.values() {
            let claim = state.claim_of(node);
            let taken = state.total_requests_on(node);
            let pods = usize::try_from(taken.pods).unwrap_or(0);
            inventory.bound_pods += pods;
            let amounts = requested_amounts(&taken, &node.allocatable, wanted);
            for (sum, amount) in inventory.amounts.iter_mut().zip(&amounts) {
                sum.taken = sum.taken.saturating_add(amount.taken);
                sum.there = sum.there.saturating_add(amount.there);
            }
            let price = state.price_of(node, claim);
            inventory.price = [inventory.price].into_iter().chain(price).sum();
            if rows.len() < NODES_MAX {
                let kept = stays.get(&node.name);
                rows.push(NodeRow {
                    amounts,
                    pods,
                    price,
                    kept: kept.map(|kept| (kept.reason, kept.verdict.clone())),
                    ..node_row(node, claim, wanted)
                });
            } else {
                inventory.more_nodes += 1;
            }
        }
        inventory.more_nodes += rows.len().saturating_sub(NODES_MAX);
        rows.truncate(NODES_MAX);
        inventory.nodes = rows;
        add_pods(&self.cx, &self.provisioning, &mut inventory, now);
        inventory
    }
}

/// Returns the [`NodeRow`] of a claim without a Node.
fn claim_row(cx: &Context, claim: &NodeClaim, wanted: &Columns) -> NodeRow {
    let launched = claim.instance.as_ref().map(|instance| &instance.offering);
    let offering = launched.or_else(|| claim.offerings.first());
    NodeRow {
        name: claim.record.id.to_string(),
        pool: Some(claim.record.pool.to_string()),
        instance_type: offering.map(|offering| offering.instance_type.to_string()),
        zone: offering.map(|offering| offering.zone.to_string()),
        capacity_type: offering.map(|offering| offering.capacity_type.as_str().to_owned()),
        labels: vec![None; wanted.labels.len()],
        amounts: vec![Amount::default(); wanted.resources.len()],
        pods: claim.pods.len(),
        born: Some(claim.record.created),
        price: cx.state.price_of_instance(claim),
        phase: Some(claim.phase),
        leaves: claim.leaving.is_some(),
        leaving: claim.leaving,
        ..NodeRow::default()
    }
}

/// Adds the pending pods.
fn add_pods(cx: &Context, provisioning: &Provisioning, inventory: &mut Inventory, now: Timestamp) {
    let state = &cx.state;
    let (waiting, expected) = state.waiting_and_expected(now);
    let hosts: BTreeMap<&PodKey, &NodeClaim> = expected
        .iter()
        .flat_map(|(claim, pods)| pods.iter().map(|pod| (&pod.key, *claim)))
        .collect();
    let keys = state.objects.waiting_pods();
    let pods = keys.iter().filter_map(|key| state.objects.pods.get(key));
    let pods = pods.take(PODS_MAX).map(|pod| SeenPod {
        key: pod.key.clone(),
        since: pod.created,
        hope: match hosts.get(&pod.key) {
            Some(claim) => PendingPodOutcome::Host(host_of(claim)),
            None => outcome_of(provisioning, &pod.key, &waiting),
        },
    });
    inventory.pods = pods.collect();
    inventory.more_pods = keys.len().saturating_sub(inventory.pods.len());
}

/// Returns the expected outcome of a pod that no claim is planned for.
fn outcome_of(provisioning: &Provisioning, key: &PodKey, waiting: &[&Pod]) -> PendingPodOutcome {
    match provisioning.rejections.get(key) {
        Some(reasons) => PendingPodOutcome::None(reasons.clone()),
        None if waiting.binary_search_by(|pod| pod.key.cmp(key)).is_ok() => PendingPodOutcome::Turn,
        None => PendingPodOutcome::Others,
    }
}

/// Returns the [`NodeRow`] of a Node and its claim.
fn node_row(node: &Node, claim: Option<&NodeClaim>, wanted: &Columns) -> NodeRow {
    let leaving = claim.and_then(|claim| claim.leaving);
    NodeRow {
        name: node.name.to_string(),
        pool: label_of(node, POOL),
        instance_type: label_of(node, INSTANCE_TYPE),
        zone: label_of(node, ZONE),
        capacity_type: label_of(node, CAPACITY_TYPE),
        labels: wanted.labels.iter().map(|key| label_of(node, key)).collect(),
        born: claim.map(|claim| claim.record.created).or(node.created),
        ready: Some(node.ready),
        cordoned: node.unschedulable,
        phase: claim.map(|claim| claim.phase),
        leaves: leaving.is_some() || node.is_leaving(),
        leaving,
        ..NodeRow::default()
    }
}

fn label_of(node: &Node, key: &str) -> Option<String> {
    node.labels.get(key).cloned()
}

fn requested_amounts(taken: &Resources, allocatable: &Resources, wanted: &Columns) -> Vec<Amount> {
    let names = wanted.resources.iter();
    names.map(|name| Amount { taken: taken.get(name), there: allocatable.get(name) }).collect()
}
