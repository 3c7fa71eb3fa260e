//! What packing goes by, and what comes of it.
//! It must not know how packing goes about it.

use std::cell::OnceCell;

use crate::model::cluster::Scheduling;
use crate::scheduling::domains::DomainSet;
use crate::scheduling::domains::distribute::DomainAllocation;
use crate::scheduling::packing::PackedNode;
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::packing::fill_bin::ItemGroup;
use crate::scheduling::packing::launch_options::Ledgers;
use crate::scheduling::problem::Problem;
use crate::scheduling::supply::compatible::LabelMatch;
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::topology::Topology;
use crate::scheduling::topology::node_counters::NodeConstraintTable;

/// A claim with the pool it is of.
#[derive(Clone, Debug)]
pub(crate) struct OpenedNode {
    /// The pool, by its place among the shelves.
    pub(crate) shelf: usize,
    /// The claim.
    pub(crate) claim: PackedNode,
    /// Whether it is not to be made after all: none of its pods had a turn.
    pub(crate) gone: bool,
}

/// Where everything goes.
#[derive(Clone)]
pub(crate) struct PackingState<'p, 'a> {
    /// Pools by weight, then name.
    pub(crate) shelves: &'p [NodeTemplate<'a>],
    /// What the limits leave to each.
    pub(crate) ledgers: Ledgers,
    /// What is placed on the rooms of the snapshot, in the order in which it may be bound.
    pub(crate) placed: Vec<PlacementStep>,
    /// What is dealt out to cells, in the order in which it may be bound.
    pub(crate) dealt: Vec<DomainAllocation>,
    /// How many rooms there are.
    pub(crate) rooms: usize,
    /// Nodes to be made.
    pub(crate) opened: Vec<OpenedNode>,
    /// Lots that claims refer to.
    pub(crate) lots: Vec<ItemGroup<'p>>,
    /// Pods with no answer, by class.
    pub(crate) left: Vec<u64>,
    /// Whether steps were used up before everything was tried.
    pub(crate) cut_short: bool,
}

/// What packing goes by; nothing of it changes.
pub(crate) struct PackingContext<'p, 'a> {
    pub(crate) problem: &'p Problem<'a>,
    pub(crate) topology: &'p Topology,
    pub(crate) hosts: &'p NodeConstraintTable,
    pub(crate) cells: &'p DomainSet,
    pub(crate) shelves: &'p [NodeTemplate<'a>],
    /// How pods are placed and nodes chosen.
    pub(crate) scheduling: &'p Scheduling,
    /// For each filter, which types pass it, once that is asked.
    pub(crate) passing: Vec<OnceCell<FilterMatches>>,
    /// For each cell, what the daemons of one more node there are sure to count in which tally,
    /// once that is asked.
    pub(crate) crews: Vec<OnceCell<Vec<(usize, u32)>>>,
}

/// For each pool and each alternative of what is wanted, which of its types have such labels; none
/// where the pool has other ones.
pub(crate) type FilterMatches = Vec<Vec<Option<Vec<LabelMatch>>>>;
