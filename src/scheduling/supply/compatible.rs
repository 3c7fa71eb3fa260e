//! Which offerings of a pool a class of pods may use, and why it may use none.

use crate::model::requirement::{Incompatible, Requirement};
use crate::model::taint::Taint;
use crate::scheduling::topology::topology_state::Match;

/// What pods of one kind may have of a shelf.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CompatibleOfferings {
    /// For each shape, the offers they may have, one bit each.
    pub(crate) masks: Vec<u64>,
    /// What they ask of labels that neither the pool nor the type decides. Pods that ask for
    /// different values of one such label are not put together.
    pub(crate) open: Vec<(String, Requirement)>,
}

/// Whether nodes of a type have labels as wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabelMatch {
    /// By the type and the pool.
    pub(super) pass: Match,
    /// By how and where they are bought: the offers, one bit each.
    pub(super) offers: u64,
}

impl LabelMatch {
    /// Those of these offers whose nodes pass so.
    pub(crate) fn those(self, pass: Match, mask: u64) -> u64 {
        match (pass == self.pass, pass) {
            (true, Match::No) => mask,
            (true, _) => mask & self.offers,
            (false, Match::No) => mask & !self.offers,
            (false, _) => 0,
        }
    }
}

/// Why a pool has nothing for a kind of pods, whatever they ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Incompatibility {
    /// A taint is not tolerated.
    Taint(Taint),
    /// A label cannot be as wanted.
    Label(Incompatible),
}
