//! What becomes of the pods of nodes that are thought away, and whether that is worth it.
//! It must not know how the nodes are chosen, nor how places are found.

use std::collections::BTreeMap;

use crate::model::id::{NodeName, PodKey};
use crate::scheduling::Solution;
use crate::scheduling::solution_cost::NodePurchase;

/// Of what nodes cost that leave together, this share must be saved at least: less is not worth
/// the pods' moving, of which some end up elsewhere than planned.
pub const SAVED_MIN: f64 = 0.08;

/// A set of nodes thought away.
#[derive(Clone, Debug)]
pub struct RemovalOutcome {
    /// What is bought for their pods.
    pub bought: Vec<NodePurchase>,
    /// Where it goes, if that was asked for.
    pub solution: Option<Solution>,
    /// What they cost, in $/h.
    pub before: f64,
    /// What comes in their place costs so much, in $/h.
    pub after: f64,
    /// Nodes with a pod for which there is no place then.
    pub stuck: BTreeMap<NodeName, PodKey>,
    /// Whether it is worth what it disrupts.
    pub balanced: bool,
}

impl RemovalOutcome {
    /// What is saved, in $/h.
    pub fn saved(&self) -> f64 {
        self.before - self.after
    }

    /// Whether so much is saved that the pods may move for it.
    pub fn is_worth_it(&self) -> bool {
        let saves = self.saved() > self.before * SAVED_MIN;
        saves && self.stuck.is_empty() && self.balanced
    }

    /// What it saves, and nothing where that is not worth it.
    pub fn worth(&self) -> f64 {
        if self.is_worth_it() {
            self.saved()
        } else {
            0.0
        }
    }
}
