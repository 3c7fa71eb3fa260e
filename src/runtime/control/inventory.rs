//! What is in one cluster, as the daemon tells it over its socket: nodes, pods that wait, and the
//! latest of what was done. It must not know how it is shown.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::engine::views::inventory::{
    Amount, Columns, Inventory, NodeRow, PendingPodOutcome, SeenPod,
};
use crate::host::text::bounded;
use crate::model::claim::ClaimPhase;
use crate::plan::render_rejections;
use crate::runtime::activity_log::ActivityEntry;
use crate::scheduling::rejection::part;
use crate::state::snapshot::NodeRef;

/// Labels and resources that may be asked for at once: a screen has no room for more, and each is
/// told of every node.
const COLUMNS_MAX: usize = 16;

/// Reasons that are told of one pod; `outrigger explain pod` has them all.
const REASONS: usize = 3;

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InventoryRequest {
    pub(crate) cluster: String,
    /// Labels that are to be told of each node.
    #[serde(default)]
    pub(crate) labels: Vec<String>,
    /// Resources that are to be told of each node.
    #[serde(default)]
    pub(crate) resources: Vec<String>,
}

impl InventoryRequest {
    /// What the engine is asked; none where it is more than anybody looks at.
    pub(crate) fn wanted(&self) -> Option<Columns> {
        let many = self.labels.len().max(self.resources.len()) > COLUMNS_MAX;
        (!many).then(|| Columns {
            labels: self.labels.clone(),
            resources: self.resources.clone(),
        })
    }
}

/// What is in one cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToldInventory {
    pub(crate) format_version: String,
    pub(crate) name: String,
    /// How it is driven, in a word.
    pub(crate) standing: String,
    /// Who leads it, where this host does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) led_by: Option<String>,
    /// What its engine says; none where no engine drives it here, or none has answered in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holds: Option<Holds>,
    /// The latest of what was decided, done and seen, the newest first.
    pub(crate) timeline: Vec<ActivityEntry>,
}

/// What a cluster holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Holds {
    pub(crate) nodes: Vec<NodeDto>,
    /// How many more nodes there are.
    pub(crate) more_nodes: usize,
    /// Pods that wait.
    pub(crate) pods: Vec<ToldPod>,
    /// How many more of them there are.
    pub(crate) more_pods: usize,
    /// What all nodes have together, resource by resource as they were asked for.
    pub(crate) amounts: Vec<Amount>,
    /// How many pods are on nodes.
    pub(crate) bound_pods: usize,
    pub(crate) usd_per_h: f64,
}

/// A node, or a claim that has none yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeDto {
    pub(crate) name: String,
    pub(crate) pool: Option<String>,
    pub(crate) instance_type: Option<String>,
    pub(crate) zone: Option<String>,
    pub(crate) capacity_type: Option<String>,
    /// As they were asked for.
    pub(crate) labels: Vec<Option<String>>,
    /// As they were asked for.
    pub(crate) amounts: Vec<Amount>,
    pub(crate) pods: usize,
    pub(crate) born: Option<Timestamp>,
    pub(crate) usd_per_h: Option<f64>,
    /// How it is doing, in a word or two.
    pub(crate) state: String,
    /// Whether it takes pods.
    pub(crate) is_well: bool,
    /// Why it stays, where it was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

/// A pod that waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToldPod {
    pub(crate) name: String,
    pub(crate) since: Option<Timestamp>,
    /// Whether it finds no place.
    pub(crate) is_unplaced: bool,
    /// What becomes of it, in words.
    pub(crate) why: String,
}

impl From<Inventory> for Holds {
    fn from(own: Inventory) -> Self {
        Self {
            nodes: own.nodes.into_iter().map(told_node).collect(),
            more_nodes: own.more_nodes,
            pods: own.pods.into_iter().map(told_pod).collect(),
            more_pods: own.more_pods,
            amounts: own.amounts,
            bound_pods: own.bound_pods,
            usd_per_h: own.price.usd_per_h(),
        }
    }
}

fn told_node(own: NodeRow) -> NodeDto {
    let state = state_of(&own);
    let text = |own: Option<String>| own.map(|own| bounded(&own));
    let labels = own.labels.into_iter();
    NodeDto {
        name: bounded(&own.name),
        pool: text(own.pool),
        instance_type: text(own.instance_type),
        zone: text(own.zone),
        capacity_type: text(own.capacity_type),
        labels: labels.map(text).collect(),
        amounts: own.amounts,
        pods: own.pods,
        born: own.born,
        usd_per_h: own.price.map(|own| own.usd_per_h()),
        is_well: own.ready == Some(true) && state == READY,
        state,
        why: own.kept.map(|(reason, verdict)| {
            let text = format!("stays ({}): {verdict}", reason.as_str());
            bounded(&text)
        }),
    }
}

/// How a node is where nothing is to be said of it.
const READY: &str = "ready";

/// How a node is doing, in a word or two.
fn state_of(own: &NodeRow) -> String {
    let phase = own.phase.map_or("leaving", ClaimPhase::as_str);
    match (own.leaving, own.ready) {
        (Some(reason), _) => {
            let phase = if phase == "initialized" {
                "leaving"
            } else {
                phase
            };
            format!("{phase}: {}", reason.as_str())
        }
        (None, _) if own.leaves => "leaving".to_owned(),
        (None, None) => phase.to_owned(),
        (None, Some(_)) if own.phase.is_some_and(|own| own < ClaimPhase::Initialized) => {
            phase.to_owned()
        }
        (None, Some(false)) => "not ready".to_owned(),
        (None, Some(true)) if own.cordoned => "cordoned".to_owned(),
        (None, Some(true)) => READY.to_owned(),
    }
}

fn told_pod(own: SeenPod) -> ToldPod {
    let why = match &own.hope {
        PendingPodOutcome::None(all) => {
            let mut words: Vec<String> = all
                .iter()
                .take(REASONS)
                .map(render_rejections::line)
                .collect();
            let more = all.len().saturating_sub(REASONS);
            words.extend((more > 0).then(|| format!("and {more} more")));
            words.join("; ")
        }
        PendingPodOutcome::Host(NodeRef::Node(node)) => {
            format!("node {} is to take it", part(node))
        }
        PendingPodOutcome::Host(NodeRef::Claim(id)) => {
            format!("a node is made for it: claim {}", part(id))
        }
        PendingPodOutcome::Turn => "it is planned for next".to_owned(),
        PendingPodOutcome::Others => {
            "another scheduler places it, or one makes room for it".to_owned()
        }
    };
    ToldPod {
        name: bounded(&own.key.to_string()),
        since: own.since,
        is_unplaced: matches!(own.hope, PendingPodOutcome::None(_)),
        why: bounded(&why),
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeRow, state_of};
    use crate::model::claim::ClaimPhase;
    use crate::model::pool::Reason;

    #[test]
    fn a_node_is_told_by_what_matters_most_of_it() {
        let node = |phase, ready| NodeRow {
            phase,
            ready,
            ..NodeRow::default()
        };
        let check = |own: NodeRow, expect: &str| assert_eq!(state_of(&own), expect, "{own:?}");
        check(node(Some(ClaimPhase::Launching), None), "launching");
        check(node(Some(ClaimPhase::Registered), Some(true)), "registered");
        check(node(Some(ClaimPhase::Initialized), Some(true)), "ready");
        check(
            node(Some(ClaimPhase::Initialized), Some(false)),
            "not ready",
        );
        check(node(None, Some(true)), "ready");
        let mut own = node(None, Some(true));
        own.cordoned = true;
        check(own.clone(), "cordoned");
        own.leaves = true;
        check(own.clone(), "leaving");
        own.leaving = Some(Reason::Drifted);
        own.phase = Some(ClaimPhase::Initialized);
        check(own.clone(), "leaving: drifted");
        own.phase = Some(ClaimPhase::Draining);
        check(own, "draining: drifted");
    }
}
