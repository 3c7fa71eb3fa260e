//! What packing goes by, and what comes of it.
//! It must not know how packing goes about it.

use std::cell::OnceCell;

use crate::model::cluster::Scheduling;
use crate::solve::cells::Cells;
use crate::solve::choose::Ledgers;
use crate::solve::distribute::Share;
use crate::solve::draft::Claim;
use crate::solve::fill::Lot;
use crate::solve::host::Hosts;
use crate::solve::problem::Problem;
use crate::solve::rooms::Turn;
use crate::solve::supply::{Passes, Shelf};
use crate::solve::topology::Topology;

/// A claim with the pool it is of.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    /// The pool, by its place among the shelves.
    pub(super) shelf: usize,
    /// The claim.
    pub(super) claim: Claim,
    /// Whether it is not to be made after all: none of its pods had a turn.
    pub(super) gone: bool,
}

/// Where everything goes.
#[derive(Clone)]
pub(super) struct Packed<'p, 'a> {
    /// Pools by weight, then name.
    pub(super) shelves: &'p [Shelf<'a>],
    /// What the limits leave to each.
    pub(super) ledgers: Ledgers,
    /// What is placed on the rooms of the snapshot, in the order in which it may be bound.
    pub(super) placed: Vec<Turn>,
    /// What is dealt out to cells, in the order in which it may be bound.
    pub(super) dealt: Vec<Share>,
    /// How many rooms there are.
    pub(super) rooms: usize,
    /// Nodes to be made.
    pub(super) opened: Vec<Opened>,
    /// Lots that claims refer to.
    pub(super) lots: Vec<Lot<'p>>,
    /// Pods with no answer, by class.
    pub(super) left: Vec<u64>,
    /// Whether steps were used up before everything was tried.
    pub(super) cut_short: bool,
}

/// What packing goes by; nothing of it changes.
pub(super) struct Ground<'p, 'a> {
    pub(super) problem: &'p Problem<'a>,
    pub(super) topology: &'p Topology,
    pub(super) hosts: &'p Hosts,
    pub(super) cells: &'p Cells,
    pub(super) shelves: &'p [Shelf<'a>],
    /// How pods are placed and nodes chosen.
    pub(super) scheduling: &'p Scheduling,
    /// For each filter, which types pass it, once that is asked.
    pub(super) passing: Vec<OnceCell<Passing>>,
    /// For each cell, what the daemons of one more node there are sure to count in which tally,
    /// once that is asked.
    pub(super) crews: Vec<OnceCell<Vec<(usize, u32)>>>,
}

/// For each pool and each alternative of what is wanted, which of its types have such labels; none
/// where the pool has other ones.
pub(super) type Passing = Vec<Vec<Option<Vec<Passes>>>>;
