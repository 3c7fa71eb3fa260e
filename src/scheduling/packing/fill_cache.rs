//! Caches node fills of earlier packings.

use std::collections::BTreeMap;

use foldhash::HashMap;

use crate::scheduling::index::{RowIndex, TypeIndex};
use crate::scheduling::packing::fill_bin::{FillStrategy, ItemCount};

/// Maximum number of steps of a packing that is repeated with other strategies.
pub(super) const AGAIN_MAX: u64 = 250_000;

/// The items of a node, and the number of steps that computed them.
#[derive(Default)]
pub(super) struct Fill {
    pub(super) parts: Vec<ItemCount>,
    pub(super) steps: u64,
}

/// Fills of earlier packings. The first nodes of all packings are filled from the same pods.
#[derive(Default)]
pub(super) struct FillCache {
    /// The index of each state. A state is the number of remaining items of each group.
    pub(super) states: BTreeMap<Vec<u64>, usize>,
    /// Fills by state, compatible offerings and type, largest items first.
    pub(super) by_size: HashMap<(usize, RowIndex, TypeIndex), Fill>,
    /// Fills by state, compatible offerings and type, highest value first.
    pub(super) by_worth: HashMap<(usize, RowIndex, TypeIndex), Fill>,
    /// Whether no later packing will use the cache.
    pub(super) is_last: bool,
    /// The current state.
    state: usize,
}

impl FillCache {
    /// Sets the current state to these remaining items.
    pub(super) fn set_state(&mut self, left: &[u64]) {
        if self.is_last {
            return;
        }
        let next = self.states.len();
        self.state = match self.states.get(left) {
            Some(state) => *state,
            None => *self.states.entry(left.to_vec()).or_insert(next),
        };
    }

    /// Returns the fill of a type with compatible offerings in the current state.
    pub(super) fn get_or_fill(
        &mut self,
        strategy: FillStrategy,
        row: RowIndex,
        shape: TypeIndex,
        make: impl FnOnce() -> Fill,
    ) -> &Fill {
        let fills = match strategy {
            FillStrategy::Largest => &mut self.by_size,
            FillStrategy::Worth => &mut self.by_worth,
        };
        fills.entry((self.state, row, shape)).or_insert_with(make)
    }

    /// Stops caching after a packing with many steps, because such a packing is not repeated.
    pub(super) fn stop_if_large(&mut self, steps: u64) {
        if self.is_last || steps > AGAIN_MAX {
            *self = Self { is_last: true, ..Self::default() };
        }
    }
}
