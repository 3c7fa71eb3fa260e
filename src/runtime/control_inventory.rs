//! Inventory of a cluster on the control socket: nodes, pending pods and recent activity.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::engine::views::inventory::{
    Amount, Columns, Inventory, NodeRow, PendingPodOutcome, SeenPod,
};
use crate::host::text::bounded_line;
use crate::model::claim::ClaimPhase;
use crate::plan::render_rejections;
use crate::runtime::activity_log::ActivityEntry;
use crate::scheduling::rejection::bounded_text;
use crate::state::snapshot::NodeRef;

/// Maximum number of requested labels and resources. More columns do not fit on a screen.
const COLUMNS_MAX: usize = 16;

/// Maximum number of reasons per pod. `outrigger explain pod` shows all.
const REASONS: usize = 3;

/// The request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InventoryRequest {
    /// The name of the cluster.
    pub cluster: String,
    /// Requested labels of each node.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Requested resources of each node.
    #[serde(default)]
    pub resources: Vec<String>,
}

impl InventoryRequest {
    /// The query to the engine. `None` if the request exceeds the limits.
    pub fn query_columns(&self) -> Option<Columns> {
        let many = self.labels.len().max(self.resources.len()) > COLUMNS_MAX;
        (!many).then(|| Columns { labels: self.labels.clone(), resources: self.resources.clone() })
    }
}

/// Inventory of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToldInventory {
    /// The format version of the response.
    pub format_version: String,
    /// The name of the cluster.
    pub name: String,
    /// The health of the cluster.
    pub standing: String,
    /// The reason why this host is not the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub led_by: Option<String>,
    /// Data of the engine of the cluster. `None` if no engine runs here or the engine does not
    /// answer in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<Holds>,
    /// Recent activity, newest first.
    pub timeline: Vec<ActivityEntry>,
}

/// Nodes and pods of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holds {
    /// Nodes and claims without a node, up to the limit of the engine.
    pub nodes: Vec<NodeDto>,
    /// Number of nodes that are not listed.
    pub more_nodes: usize,
    /// Pending pods.
    pub pods: Vec<ToldPod>,
    /// Number of pending pods that are not listed.
    pub more_pods: usize,
    /// Totals of all nodes, by requested resource.
    pub amounts: Vec<Amount>,
    /// Number of bound pods.
    pub bound_pods: usize,
    /// Price of all nodes in USD per hour.
    pub usd_per_h: f64,
}

/// A node, or a claim without a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeDto {
    /// Name of the node, or of the claim.
    pub name: String,
    /// The pool of the node.
    pub pool: Option<String>,
    /// The instance type of the node.
    pub instance_type: Option<String>,
    /// The zone of the node.
    pub zone: Option<String>,
    /// The capacity type of the node.
    pub capacity_type: Option<String>,
    /// Values of the requested labels, in the order of the request.
    pub labels: Vec<Option<String>>,
    /// Usage of the requested resources, in the order of the request.
    pub amounts: Vec<Amount>,
    /// Number of pods on the node.
    pub pods: usize,
    /// When the node was created.
    pub born: Option<Timestamp>,
    /// The price of the node in USD per hour, if known.
    pub usd_per_h: Option<f64>,
    /// The state of the node.
    pub state: String,
    /// True if the node is ready and accepts pods.
    pub is_well: bool,
    /// Why the engine does not disrupt the node, if the engine has evaluated this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A pending pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToldPod {
    /// Namespace and name.
    pub name: String,
    /// Since when the pod is pending.
    pub since: Option<Timestamp>,
    /// True if the pod is unschedulable.
    pub is_unplaced: bool,
    /// What the engine has planned for the pod, or why the pod is unschedulable.
    pub why: String,
}

impl From<Inventory> for Holds {
    fn from(inventory: Inventory) -> Self {
        Self {
            nodes: inventory.nodes.into_iter().map(node_dto).collect(),
            more_nodes: inventory.more_nodes,
            pods: inventory.pods.into_iter().map(pod_dto).collect(),
            more_pods: inventory.more_pods,
            amounts: inventory.amounts,
            bound_pods: inventory.bound_pods,
            usd_per_h: inventory.price.usd_per_h(),
        }
    }
}

fn node_dto(node: NodeRow) -> NodeDto {
    let state = state_of(&node);
    let labels = node.labels.into_iter();
    NodeDto {
        name: bounded_line(&node.name),
        pool: bounded_option(node.pool),
        instance_type: bounded_option(node.instance_type),
        zone: bounded_option(node.zone),
        capacity_type: bounded_option(node.capacity_type),
        labels: labels.map(bounded_option).collect(),
        amounts: node.amounts,
        pods: node.pods,
        born: node.born,
        usd_per_h: node.price.map(|price| price.usd_per_h()),
        is_well: node.ready == Some(true) && state == READY,
        state,
        why: node.kept.map(|(reason, verdict)| {
            let text = format!("blocked ({}): {verdict}", reason.as_str());
            bounded_line(&text)
        }),
    }
}

fn bounded_option(text: Option<String>) -> Option<String> {
    text.map(|text| bounded_line(&text))
}

/// State of a node that is ready.
const READY: &str = "ready";

/// State of a node.
fn state_of(node: &NodeRow) -> String {
    let phase = node.phase.map_or("leaving", ClaimPhase::as_str);
    match (node.leaving, node.ready) {
        (Some(reason), _) => {
            let phase = if phase == "initialized" { "leaving" } else { phase };
            format!("{phase}: {}", reason.as_str())
        }
        (None, _) if node.leaves => "leaving".to_owned(),
        (None, None) => phase.to_owned(),
        (None, Some(_)) if node.phase.is_some_and(|phase| phase < ClaimPhase::Initialized) => {
            phase.to_owned()
        }
        (None, Some(false)) => "not ready".to_owned(),
        (None, Some(true)) if node.cordoned => "cordoned".to_owned(),
        (None, Some(true)) => READY.to_owned(),
    }
}

fn pod_dto(pod: SeenPod) -> ToldPod {
    let why = match &pod.hope {
        PendingPodOutcome::None(all) => {
            let mut words: Vec<String> =
                all.iter().take(REASONS).map(render_rejections::rejection_line).collect();
            let more = all.len().saturating_sub(REASONS);
            words.extend((more > 0).then(|| format!("and {more} more")));
            words.join("; ")
        }
        PendingPodOutcome::Host(NodeRef::Node(node)) => {
            format!("fits node {}", bounded_text(node))
        }
        PendingPodOutcome::Host(NodeRef::Claim(id)) => {
            format!("waiting for new node, claim {}", bounded_text(id))
        }
        PendingPodOutcome::Turn => "waiting to be planned".to_owned(),
        PendingPodOutcome::Others => {
            "scheduled by another scheduler, or waiting for preemption".to_owned()
        }
    };
    ToldPod {
        name: bounded_line(&pod.key.to_string()),
        since: pod.since,
        is_unplaced: matches!(pod.hope, PendingPodOutcome::None(_)),
        why: bounded_line(&why),
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeRow, state_of};
    use crate::model::claim::ClaimPhase;
    use crate::model::pool::Reason;

    #[test]
    fn node_state_shows_the_most_important_condition() {
        let node = |phase, ready| NodeRow { phase, ready, ..NodeRow::default() };
        let check = |node: NodeRow, expect: &str| assert_eq!(state_of(&node), expect, "{node:?}");
        check(node(Some(ClaimPhase::Launching), None), "launching");
        check(node(Some(ClaimPhase::Registered), Some(true)), "registered");
        check(node(Some(ClaimPhase::Initialized), Some(true)), "ready");
        check(node(Some(ClaimPhase::Initialized), Some(false)), "not ready");
        check(node(None, Some(true)), "ready");
        let mut row = node(None, Some(true));
        row.cordoned = true;
        check(row.clone(), "cordoned");
        row.leaves = true;
        check(row.clone(), "leaving");
        row.leaving = Some(Reason::Drifted);
        row.phase = Some(ClaimPhase::Initialized);
        check(row.clone(), "leaving: drifted");
        row.phase = Some(ClaimPhase::Draining);
        check(row, "draining: drifted");
    }
}
