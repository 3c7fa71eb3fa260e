//! Strategies to fill one node with pending pods.

use crate::scheduling::index::{
    DomainIndex, IndexVec, ItemGroupIndex, KindIndex, PodClassIndex, RowIndex,
};
use crate::scheduling::problem::resource_vector::{copies_that_fit, fits, subtract_demand};
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::topology::node_counters::NodeConstraints;

/// Pending pods that are identical for all nodes in question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemGroup<'l> {
    /// The class of the pods.
    pub(crate) class: PodClassIndex,
    /// The kind of the pods, with the remaining preferences.
    pub(crate) kind: KindIndex,
    /// Requests of one pod.
    pub(crate) demand: &'l [i64],
    /// Reciprocal of the demand.
    pub(crate) per_unit: &'l [f64],
    /// The per-node constraints of the pods.
    pub(crate) shares: &'l NodeConstraints,
    /// Index of the compatible offerings of the pods.
    pub(crate) row: RowIndex,
    /// The domain of the pods, or `None` if any domain is suitable.
    pub(crate) cell: Option<DomainIndex>,
    /// Number of pods that must start together on one node without the pods that they require,
    /// because the others could not be scheduled anywhere else.
    pub(crate) together: u64,
}

/// All item groups of a packing.
pub(crate) type ItemGroups<'l> = IndexVec<ItemGroupIndex, ItemGroup<'l>>;

/// An item group and a number of its items.
pub(crate) type ItemCount = (ItemGroupIndex, u64);

/// A way to fill a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillStrategy {
    /// The largest pods first.
    Largest,
    /// Repeatedly the pods that would add the most value if they alone filled the remaining
    /// capacity.
    Worth,
}

/// Item groups with equal compatible offerings and demand: if one does not fit, none does.
pub(crate) type IdenticalGroups = Vec<ItemGroupIndex>;

/// Pending item groups. A strategy tries all groups in order, or compares the heads of the queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct FillQueues {
    /// All groups, the largest first.
    pub(crate) order: Vec<IdenticalGroups>,
    /// Queues of similar groups; indices into `order`.
    pub(crate) queues: Vec<Vec<usize>>,
}

impl FillQueues {
    /// Creates queues with this order.
    pub(crate) fn from_lots(lots: impl Iterator<Item = ItemGroupIndex>) -> Self {
        Self { order: lots.map(|lot| vec![lot]).collect(), queues: Vec::new() }
    }
}

/// Position in a queue.
#[derive(Clone, Copy, Default)]
struct QueueCursor {
    /// Index of the identical groups in the queue, and index of the item group among these.
    twins: usize,
    lot: usize,
    /// Number of items of this group that are taken.
    taken: u64,
}

/// Pending items with which a node is filled.
pub(crate) struct PendingItems<'f> {
    /// The groups of these items.
    pub(crate) waiting: &'f FillQueues,
    /// Number of items by group.
    pub(crate) stock: &'f IndexVec<ItemGroupIndex, u64>,
    /// Value of an item by group.
    pub(crate) values: &'f IndexVec<ItemGroupIndex, f64>,
}

/// The item groups, and the rules for combining them on one node.
pub(crate) struct BinRules<'t> {
    /// The item groups.
    pub(crate) lots: &'t ItemGroups<'t>,
    /// Which offerings of the node's type these compatible offerings contain, one bit each; zero if
    /// none.
    pub(crate) mask: &'t dyn Fn(RowIndex) -> u64,
    /// Whether groups with these compatible offerings must be compared with all others on the node.
    pub(crate) is_picky: &'t dyn Fn(RowIndex) -> bool,
    /// Whether groups with these two sets of compatible offerings cannot be on the same node.
    pub(crate) apart: &'t dyn Fn(RowIndex, RowIndex) -> bool,
}

/// A node while it is filled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bin {
    /// Free resources.
    pub(crate) free: Vec<i64>,
    /// Offerings that suit all pods of the node.
    pub(crate) mask: u64,
    /// Offerings of which at least one must remain.
    pub(crate) good: u64,
    /// Compatible offerings of its groups that must be compared with others.
    pub(crate) picky: Vec<RowIndex>,
    /// Per-node counters of the pods on the node.
    pub(crate) counts: Vec<u32>,
}

/// Capacity is filled in portions, so that a node with thousands of pods takes few steps.
const SHARE: u64 = 8;

impl Bin {
    /// Returns how many items of a group fit.
    pub(crate) fn room_for(&self, rules: &BinRules<'_>, lot: ItemGroupIndex) -> u64 {
        let group = &rules.lots[lot];
        match copies_that_fit(&self.free, group.demand) {
            0 => 0,
            most if self.admits_row(rules, group.row) => self.allowed_items(group, most),
            _ => 0,
        }
    }

    /// Returns how many items per-node constraints allow, up to `most`.
    fn allowed_items(&self, group: &ItemGroup<'_>, most: u64) -> u64 {
        let count = group.shares.remaining_pods(&self.counts, most);
        let begins = count >= group.together || group.shares.is_met(&self.counts);
        if begins { count } else { 0 }
    }

    /// Returns whether the node has any of these compatible offerings, independent of resources.
    fn admits_row(&self, rules: &BinRules<'_>, row: RowIndex) -> bool {
        self.mask & (rules.mask)(row) & self.good != 0
            && !((rules.is_picky)(row) && self.picky.iter().any(|other| (rules.apart)(row, *other)))
    }

    /// Adds pods. The bin must have capacity for them.
    pub(crate) fn add_items(&mut self, rules: &BinRules<'_>, lot: ItemGroupIndex, count: u64) {
        let group = &rules.lots[lot];
        subtract_demand(&mut self.free, group.demand, count);
        self.mask &= (rules.mask)(group.row);
        group.shares.add_pods(&mut self.counts, count);
        if (rules.is_picky)(group.row) && !self.picky.contains(&group.row) {
            self.picky.push(group.row);
        }
    }

    /// Fills the node with pending items. Returns the added items and adds the number of steps to
    /// `steps`.
    pub(crate) fn fill(
        &mut self,
        strategy: FillStrategy,
        rules: &BinRules<'_>,
        pending: &PendingItems<'_>,
        steps: &mut u64,
    ) -> Vec<ItemCount> {
        merge_counts(match strategy {
            FillStrategy::Largest => self.fill_largest(rules, pending, steps),
            FillStrategy::Worth => self.fill_worth(rules, pending, steps),
        })
    }

    fn fill_largest(
        &mut self,
        rules: &BinRules<'_>,
        pending: &PendingItems<'_>,
        steps: &mut u64,
    ) -> Vec<ItemCount> {
        let (lots, order) = (rules.lots, &pending.waiting.order);
        let mut parts = Vec::new();
        *steps += 2 * order.len() as u64;
        // Pods that require other pods on the node are added after those pods.
        let mut needy = false;
        loop {
            let mut wait = false;
            for twins in order {
                let first = &lots[twins[0]];
                let mut copies = copies_that_fit(&self.free, first.demand);
                if copies == 0 || !self.admits_row(rules, first.row) {
                    continue;
                }
                for &lot in twins {
                    let shares = lots[lot].shares;
                    if shares.needs.is_empty() == needy {
                        wait |= !needy;
                        continue;
                    }
                    let count = self.allowed_items(&lots[lot], copies).min(pending.stock[lot]);
                    if count > 0 {
                        self.add_items(rules, lot, count);
                        parts.push((lot, count));
                        copies = copies_that_fit(&self.free, first.demand);
                    }
                }
            }
            if !wait {
                return parts;
            }
            needy = true;
        }
    }

    fn fill_worth(
        &mut self,
        rules: &BinRules<'_>,
        pending: &PendingItems<'_>,
        steps: &mut u64,
    ) -> Vec<ItemCount> {
        let lots = rules.lots;
        let mut parts: Vec<ItemCount> = Vec::new();
        let start = QueueCursor::default();
        let mut heads: Vec<QueueCursor> = vec![start; pending.waiting.queues.len()];
        loop {
            let mut best: Option<(f64, usize, ItemGroupIndex)> = None;
            *steps += 1 + heads.len() as u64;
            for (at, head) in heads.iter_mut().enumerate() {
                let Some(lot) = self.next_fitting(rules, pending, at, head) else {
                    continue;
                };
                let worth = pending.values[lot] * self.estimated_copies(&lots[lot]);
                if best.is_none_or(|(most, ..)| worth > most) {
                    best = Some((worth, at, lot));
                }
            }
            let Some((_, at, lot)) = best else {
                return parts;
            };
            let copies = copies_that_fit(&self.free, lots[lot].demand);
            let room = self.allowed_items(&lots[lot], copies);
            let left = pending.stock[lot] - heads[at].taken;
            let chunk = (copies / SHARE).max(lots[lot].together);
            let count = room.min(left).min(chunk);
            self.add_items(rules, lot, count);
            parts.push((lot, count));
            heads[at].taken += count;
        }
    }

    /// Returns the next group of a queue that fits. Groups that do not fit are skipped permanently,
    /// because free capacity only shrinks. Groups that require other pods wait.
    fn next_fitting(
        &self,
        rules: &BinRules<'_>,
        pending: &PendingItems<'_>,
        queue: usize,
        head: &mut QueueCursor,
    ) -> Option<ItemGroupIndex> {
        let (lots, queue) = (rules.lots, &pending.waiting.queues[queue]);
        while let Some(twins) = queue.get(head.twins) {
            let twins = &pending.waiting.order[*twins];
            let first = &lots[twins[0]];
            if fits(&self.free, first.demand) && self.admits_row(rules, first.row) {
                while let Some(&lot) = twins.get(head.lot) {
                    let shares = lots[lot].shares;
                    let left = pending.stock[lot] > head.taken;
                    let most = match lots[lot].together {
                        0 | 1 => 1,
                        _ => copies_that_fit(&self.free, first.demand),
                    };
                    if left && self.allowed_items(&lots[lot], most) > 0 {
                        return Some(lot);
                    }
                    // If fewer than `together` pods fit, the group is skipped. Otherwise the group
                    // waits.
                    if left && !shares.needs.is_empty() && most >= lots[lot].together {
                        return None;
                    }
                    (head.lot, head.taken) = (head.lot + 1, 0);
                }
            }
            (head.twins, head.lot, head.taken) = (head.twins + 1, 0, 0);
        }
        None
    }

    /// Estimates how many items of a group fill the free capacity.
    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate; what fits is decided with integers"
    )]
    fn estimated_copies(&self, lot: &ItemGroup<'_>) -> f64 {
        // `min` ignores NaN, the result if both the free and the requested amount are zero.
        self.free
            .iter()
            .zip(lot.per_unit)
            .map(|(free, per_unit)| *free as f64 * per_unit)
            .fold(1e18, f64::min)
    }
}

/// Merges entries of the same group.
pub(crate) fn merge_counts(mut parts: Vec<ItemCount>) -> Vec<ItemCount> {
    parts.sort_unstable();
    parts.dedup_by(|later, first| {
        let same = later.0 == first.0;
        first.1 += if same { later.1 } else { 0 };
        same
    });
    parts
}

/// Returns the distinct indices of the compatible offerings of these pods.
pub(crate) fn row_ids_in(lots: &ItemGroups<'_>, parts: &[ItemCount]) -> Vec<RowIndex> {
    let mut rows: Vec<RowIndex> = parts.iter().map(|(lot, _)| lots[*lot].row).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Returns the distinct compatible offerings of these pods.
pub(crate) fn offerings_of<'r>(
    lots: &ItemGroups<'_>,
    rows: &'r IndexVec<RowIndex, CompatibleOfferings>,
    parts: &[ItemCount],
) -> Vec<&'r CompatibleOfferings> {
    let row_ids = row_ids_in(lots, parts).into_iter();
    row_ids.map(|row| &rows[row]).collect()
}
