//! The outcome of a what-if removal of nodes, and whether it saves enough.

use std::collections::BTreeMap;

use crate::model::id::{NodeName, PodKey};
use crate::scheduling::Solution;
use crate::scheduling::solution_cost::NodePurchase;

/// Minimum fraction of the cost of the removed nodes that must be saved. Smaller savings do not
/// justify moving pods, because some pods are bound to other nodes than planned. See
/// docs/decisions/027-consolidation.md.
pub const SAVED_MIN: f64 = 0.08;

/// The what-if removal of a set of nodes.
#[derive(Clone, Debug)]
pub struct RemovalOutcome {
    /// Nodes to launch for their pods.
    pub bought: Vec<NodePurchase>,
    /// Placements of the pods, if requested.
    pub solution: Option<Solution>,
    /// Price of the removed nodes in $/h.
    pub before: f64,
    /// Price of the replacements in $/h.
    pub after: f64,
    /// Nodes with a pod that has no place after the removal.
    pub stuck: BTreeMap<NodeName, PodKey>,
    /// Whether the `balanced` policy approves the removal.
    pub balanced: bool,
}

impl RemovalOutcome {
    /// Returns the savings in $/h.
    pub fn saved(&self) -> f64 {
        self.before - self.after
    }

    /// Returns whether the savings justify moving the pods.
    pub fn is_worth_it(&self) -> bool {
        let saves = self.saved() > self.before * SAVED_MIN;
        saves && self.stuck.is_empty() && self.balanced
    }

    /// Returns the savings, or zero if they do not justify the removal.
    pub fn justified_savings(&self) -> f64 {
        if self.is_worth_it() { self.saved() } else { 0.0 }
    }
}
