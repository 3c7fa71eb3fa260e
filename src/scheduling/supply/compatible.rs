//! Determines which offerings of a pool a class of pods may use, or why it may use none.

use crate::model::requirement::{Incompatible, Requirement};
use crate::model::taint::Taint;
use crate::scheduling::index::{IndexVec, TypeIndex};
use crate::scheduling::topology::topology_state::Match;

/// The offerings of a template that pods of one kind may use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CompatibleOfferings {
    /// Compatible offerings of each type, one bit each.
    pub(crate) masks: IndexVec<TypeIndex, u64>,
    /// Requirements on labels that neither pool nor type decides. Pods with different values are
    /// not packed together.
    pub(crate) open: Vec<(String, Requirement)>,
}

/// Whether nodes of a type match label requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabelMatch {
    /// Result for the labels that the type and the pool decide.
    pub(super) pass: Match,
    /// Result by offering, one bit each.
    pub(super) offers: u64,
}

impl LabelMatch {
    /// Returns the offerings with this result.
    pub(crate) fn offerings_with(self, pass: Match, mask: u64) -> u64 {
        match (pass == self.pass, pass) {
            (true, Match::No) => mask,
            (true, _) => mask & self.offers,
            (false, Match::No) => mask & !self.offers,
            (false, _) => 0,
        }
    }
}

/// Why a pool rejects a kind of pods, independent of resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Incompatibility {
    /// A taint is not tolerated.
    Taint(Taint),
    /// A label cannot have a required value.
    Label(Incompatible),
}
