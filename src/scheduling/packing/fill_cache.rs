//! How nodes were filled by earlier packings, so that the same nodes are not filled again.

use std::collections::BTreeMap;

use foldhash::HashMap;

use crate::scheduling::packing::fill_bin::{FillStrategy, ItemCount};

/// A draft that takes more steps than this is not made again in other ways.
pub(super) const AGAIN_MAX: u64 = 250_000;

/// What went into a host, and the steps it took to find out.
#[derive(Default)]
pub(super) struct Fill {
    pub(super) parts: Vec<ItemCount>,
    pub(super) steps: u64,
}

/// How hosts were filled by earlier drafts: the first hosts of all are filled from the same pods.
#[derive(Default)]
pub(super) struct FillCache {
    /// What was left, by lot, and an ordinal for it.
    pub(super) states: BTreeMap<Vec<u64>, usize>,
    /// By that, the row and the shape: what went into a host, the largest first.
    pub(super) by_size: HashMap<(usize, usize, usize), Fill>,
    /// The same by what pods are worth.
    pub(super) by_worth: HashMap<(usize, usize, usize), Fill>,
    /// Whether no draft will follow that asks for them.
    pub(super) is_last: bool,
}

impl FillCache {
    pub(super) fn state(&mut self, left: &[u64]) -> usize {
        if self.is_last {
            return 0;
        }
        let next = self.states.len();
        match self.states.get(left) {
            Some(own) => *own,
            None => *self.states.entry(left.to_vec()).or_insert(next),
        }
    }

    pub(super) fn of(&mut self, way: FillStrategy) -> &mut HashMap<(usize, usize, usize), Fill> {
        match way {
            FillStrategy::Largest => &mut self.by_size,
            FillStrategy::Worth => &mut self.by_worth,
        }
    }

    /// A draft of so many steps is not made again: nothing is kept for others.
    pub(super) fn count(&mut self, steps: u64) {
        if self.is_last || steps > AGAIN_MAX {
            *self = Self {
                is_last: true,
                ..Self::default()
            };
        }
    }
}
