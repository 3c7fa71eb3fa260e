//! Compares solutions by their nodes and scheduled pods, before pods are assigned to nodes.

use foldhash::HashMap;

use crate::model::id::PodKey;
use crate::model::pod::Pod;
use crate::scheduling::packing::context::PackingState;
use crate::scheduling::problem::Problem;
use crate::scheduling::{Solution, bind_queue};

/// Requested cpu in thousandths of a core and memory in bytes.
pub type Size = (i64, i64);

/// The cost of a solution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SolutionCost {
    /// The new nodes.
    pub bought: Vec<NodePurchase>,
    /// Unschedulable pods.
    pub left: Vec<PodKey>,
}

/// A new node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePurchase {
    /// The lowest price of the node in $/h.
    pub price: f64,
    /// The number of its pods with each combination of requests.
    pub pods: Vec<(Size, u64)>,
}

impl SolutionCost {
    pub(super) fn new(problem: &Problem<'_>, packed: &PackingState<'_, '_>) -> Self {
        let opened = packed.opened.iter().filter(|node| !node.gone);
        let bought = opened.map(|node| NodePurchase {
            price: node.claim.price,
            pods: node
                .claim
                .parts
                .iter()
                .map(|(lot, pods)| {
                    let demand = packed.lots[*lot].demand;
                    ((demand[0], demand[1]), *pods)
                })
                .collect(),
        });
        let classes = problem.classes.iter().zip(&packed.left);
        let left = classes.filter(|(_, left)| **left > 0).flat_map(|(class, left)| {
            let pods = bind_queue(class);
            let left = usize::try_from(*left).unwrap_or(usize::MAX);
            pods[pods.len().saturating_sub(left)..].to_vec()
        });
        Self { left: left.map(|pod| pod.key.clone()).collect(), bought: bought.collect() }
    }

    /// Computes the cost of a solution for these pods.
    pub(super) fn from_solution(solution: &Solution, pods: &[&Pod]) -> Self {
        let pods: HashMap<&PodKey, &Pod> = pods.iter().map(|pod| (&pod.key, *pod)).collect();
        let bought = solution.claims.iter().map(|claim| NodePurchase {
            price: claim.offerings.first().map_or(0.0, |(_, price)| price.usd_per_h()),
            pods: claim
                .pods
                .iter()
                .filter_map(|key| {
                    let requests = &pods.get(key)?.requests;
                    Some(((requests.cpu_milli.max(0), requests.memory.max(0)), 1))
                })
                .collect(),
        });
        let left = solution.unplaced.iter().map(|pod| pod.pod.clone());
        Self { bought: bought.collect(), left: left.collect() }
    }
}
