//! Packs pending pods onto new nodes of one pool: type by type, best value first.

/// Fills one node with groups of identical pods.
pub(super) mod fill_bin;
// Cache of filled nodes.
mod fill_cache;
/// The types and offerings as which a planned node may be launched, by price and within limits.
pub(super) mod launch_options;
/// Places pods on nodes that exist or are being launched.
pub(super) mod existing_nodes;
/// Merges planned nodes if one larger node costs less.
pub(super) mod merge;
/// Lowest cost per pod, and the types that are evaluated.
pub(super) mod pod_cost;
/// First-fit-decreasing packing as in Karpenter: an upper bound of the cost.
pub(super) mod first_fit;
/// The packing loop: chooses the instance type of each new node by its value per dollar.
pub(super) mod best_value;
/// Inputs and working state of a packing run.
pub(super) mod context;
/// Cache of compatible offerings and of the lowest prices for pods.
pub(super) mod offering_cache;
// DaemonSet pods of new nodes by topology counter.
pub(super) mod daemon_counts;
/// Builds the topology state from a snapshot.
pub(super) mod initial_topology;

use crate::scheduling::index::{IndexVec, ItemGroupIndex, RowIndex, TypeIndex};
use crate::scheduling::packing::fill_bin::{
    Bin, BinRules, FillQueues, FillStrategy, ItemCount, ItemGroups, PendingItems, merge_counts,
    offerings_of,
};
use crate::scheduling::packing::launch_options::{LaunchQuery, Ledger, total_requests};
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::supply::node_template::NodeTemplate;

/// Step limit for adding unscheduled pods to claims. One step evaluates a type for a claim.
const GROWTH_MAX: u64 = 20_000_000;

/// A new node, as indices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PackedNode {
    /// The planned type of the node. Other types may fit, too.
    pub(super) shape: TypeIndex,
    /// The price of the planned type.
    pub(super) price: f64,
    /// The pods on the node, by item group.
    pub(super) parts: Vec<ItemCount>,
}

/// The input of packing, shared by all packings.
#[derive(Clone, Copy)]
pub(super) struct PackingInput<'o> {
    /// Item groups, including those that other packings use.
    pub(super) lots: &'o ItemGroups<'o>,
    /// The pool.
    pub(super) template: &'o NodeTemplate<'o>,
    /// The `min_values` of the pool.
    pub(super) variety: &'o MinValues<'o>,
    /// Compatible offerings of item groups, including those of other pools.
    pub(super) rows: &'o IndexVec<RowIndex, CompatibleOfferings>,
    /// Number of pending items of each group; zero for groups that only other packings use.
    pub(super) stock: &'o IndexVec<ItemGroupIndex, u64>,
    /// Number of per-node counters.
    pub(super) counters: usize,
    /// Cost of a node in addition to its price, in $/h.
    pub(super) node_overhead_price: f64,
    /// Node cost with which new nodes are chosen. A higher value creates fewer, larger nodes.
    pub(super) node_cost: f64,
}

/// A packing.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    /// New nodes.
    pub(super) claims: Vec<PackedNode>,
    /// Unscheduled items by group.
    pub(super) left: IndexVec<ItemGroupIndex, u64>,
    /// The remaining limits.
    pub(super) ledger: Ledger,
    /// Whether the step limit was reached.
    pub(super) cut_short: bool,
    /// Number of steps taken.
    pub(super) steps: u64,
}

impl<'o> PackingInput<'o> {
    /// Returns the limit usage of a node of a type.
    pub(super) fn limit_usage(&self, shape: TypeIndex) -> &'o [i64] {
        &self.template.shapes[shape].limited
    }

    /// Returns the resources of a type for pods; empty if DaemonSets exceed the type.
    pub(super) fn net_resources(&self, shape: TypeIndex) -> &'o [i64] {
        let net = self.template.shapes[shape].net.as_deref();
        net.unwrap_or_default()
    }

    /// Returns whether two sets of compatible offerings require different values of an open label.
    pub(super) fn rows_conflict(&self, one: RowIndex, other: RowIndex) -> bool {
        self.rows[one].open.iter().any(|(key, wanted)| {
            let mut theirs = self.rows[other].open.iter();
            theirs.any(|(k, w)| k == key && w != wanted)
        })
    }

    /// Calls `act` with the bin rules of a type.
    pub(super) fn with_rules<T>(
        &self,
        shape: TypeIndex,
        act: impl FnOnce(&BinRules<'_>) -> T,
    ) -> T {
        let rules = BinRules {
            lots: self.lots,
            mask: &|row| self.rows[row].masks.get(shape.0).copied().unwrap_or(0),
            is_picky: &|row| !self.rows[row].open.is_empty(),
            apart: &|one, other| self.rows_conflict(one, other),
        };
        act(&rules)
    }

    /// Returns an empty bin of a type that must keep at least one of the `good` offerings.
    pub(super) fn empty_bin(&self, shape: TypeIndex, mask: u64, good: u64) -> Option<Bin> {
        Some(Bin {
            free: self.template.shapes[shape].net.clone()?,
            mask,
            good,
            picky: Vec::new(),
            counts: vec![0; self.counters],
        })
    }

    /// Returns these pods in one bin of a type if they fit together.
    fn bin_with(&self, shape: TypeIndex, parts: &[ItemCount], rules: &BinRules<'_>) -> Option<Bin> {
        let mut bin = self.empty_bin(shape, u64::MAX, u64::MAX)?;
        // Pods that require other pods on the node are added after those pods.
        for needy in [false, true] {
            for (lot, count) in parts {
                if self.lots[*lot].shares.needs.is_empty() == needy {
                    continue;
                }
                if bin.room_for(rules, *lot) < *count {
                    return None;
                }
                bin.add_items(rules, *lot, *count);
            }
        }
        Some(bin)
    }

    /// Adds pods to a planned claim without raising its price. Returns the added pods.
    pub(super) fn top_up(
        &self,
        claim: &PackedNode,
        waiting: &FillQueues,
        steps: &mut u64,
    ) -> Vec<ItemCount> {
        self.with_rules(claim.shape, |rules| {
            let Some(mut bin) = self.bin_with(claim.shape, &claim.parts, rules) else {
                return Vec::new();
            };
            bin.good = self.template.shapes[claim.shape].cheapest_offerings(bin.mask);
            let pending = PendingItems { waiting, stock: self.stock, values: &IndexVec::default() };
            bin.fill(FillStrategy::Largest, rules, &pending, steps)
        })
    }

    /// Changes every claim to the cheapest type that fits.
    pub(super) fn refit_types(&self, draft: &mut Packing) {
        let mut last: Option<(PackedNode, PackedNode)> = None;
        for claim in &mut draft.claims {
            draft.ledger.release(self.limit_usage(claim.shape));
            if let Some((before, after)) = &last
                && before == claim
                && draft.ledger.allowed_copies(self.limit_usage(after.shape)) > 0
            {
                draft.ledger.reserve(self.limit_usage(after.shape), 1);
                claim.clone_from(after);
                continue;
            }
            let before = claim.clone();
            if let Some((shape, price)) = self.cheapest_type(&claim.parts, &draft.ledger)
                && price < claim.price
            {
                (claim.shape, claim.price) = (shape, price);
            }
            draft.ledger.reserve(self.limit_usage(claim.shape), 1);
            last = Some((before, claim.clone()));
        }
    }

    /// Splits claims that violate `min_values`: fewer types suit all pods of a claim together than
    /// each pod alone.
    pub(super) fn split_unvaried(&self, draft: &mut Packing) {
        if self.variety.is_empty() {
            return;
        }
        let unlimited = draft.ledger.without_limits();
        for claim in std::mem::take(&mut draft.claims) {
            let shape = &self.template.shapes[claim.shape];
            let whole = self.priced_claim(claim.parts.clone(), &unlimited);
            if shape.reservation.is_some()
                || whole.as_ref().is_some_and(|claim| {
                    self.template.shapes[claim.shape].overhead.agents == shape.overhead.agents
                })
            {
                draft.claims.push(claim);
                continue;
            }
            draft.ledger.release(&shape.limited);
            let mut waiting: Vec<Vec<ItemCount>> = vec![claim.parts];
            while let Some(parts) = waiting.pop() {
                let priced = self.priced_claim(parts.clone(), &draft.ledger);
                if let Some(part) = priced.filter(|part| self.fits_one_host(part)) {
                    draft.ledger.reserve(self.limit_usage(part.shape), 1);
                    draft.claims.push(part);
                    continue;
                }
                match split_parts(self.lots, &parts) {
                    Some(halves) => waiting.extend(halves),
                    None => parts.iter().for_each(|(lot, pods)| draft.left[*lot] += pods),
                }
            }
        }
    }

    /// Adds unscheduled pods to claims that must grow, at the lowest cost: pods with required
    /// affinity, and pods for which no other node may exist.
    pub(super) fn grow_claims(&self, draft: &mut Packing) {
        // The other remaining pods fit nowhere, or limits reject them.
        let mut limits = self.template.limits.iter();
        let limited = limits.any(|limit| limit.resource.is_none());
        let mut moved = true;
        while moved {
            moved = false;
            for lot in draft.left.keys() {
                if !limited && self.lots[lot].shares.needs.is_empty() {
                    continue;
                }
                while draft.left[lot] > 0 && draft.steps < GROWTH_MAX {
                    let Some((at, claim)) = self.cheapest_growth(draft, lot) else {
                        break;
                    };
                    draft.ledger.release(self.limit_usage(draft.claims[at].shape));
                    draft.ledger.reserve(self.limit_usage(claim.shape), 1);
                    draft.claims[at] = claim;
                    draft.left[lot] -= 1;
                    // Other pods may have waited for this one.
                    moved = true;
                }
            }
        }
    }

    /// Returns whether a claim contains the pods that a group requires on its node.
    fn has_required_pods(&self, claim: &PackedNode, lot: ItemGroupIndex) -> bool {
        let mut needs = self.lots[lot].shares.needs.iter();
        needs.all(|(counter, _)| {
            let mut parts = claim.parts.iter();
            parts.any(|(other, _)| self.lots[*other].shares.adds.contains(counter))
        })
    }

    fn cheapest_growth(
        &self,
        draft: &mut Packing,
        lot: ItemGroupIndex,
    ) -> Option<(usize, PackedNode)> {
        let mut best: Option<(f64, usize, PackedNode)> = None;
        for (at, claim) in draft.claims.iter().enumerate() {
            draft.steps += 1;
            let masks = &self.rows[self.lots[lot].row].masks;
            if masks[claim.shape] == 0 || !self.has_required_pods(claim, lot) {
                continue;
            }
            draft.steps += self.template.shapes.len() as u64;
            let Some(joined) = self.with_one_more(claim, lot, &draft.ledger) else {
                continue;
            };
            let increase = joined.price - claim.price;
            if best.as_ref().is_none_or(|(least, _, _)| increase < *least) {
                best = Some((increase, at, joined));
            }
        }
        best.map(|(_, at, claim)| (at, claim))
    }

    /// Returns a claim with one more item at its new cheapest type, or `None`.
    pub(super) fn with_one_more(
        &self,
        claim: &PackedNode,
        lot: ItemGroupIndex,
        ledger: &Ledger,
    ) -> Option<PackedNode> {
        let joined = self.with_one_more_unchecked(claim, lot, ledger)?;
        self.fits_one_host(&joined).then_some(joined)
    }

    /// Returns a claim with one more item, without checking per-node counters. Open labels must
    /// agree.
    pub(super) fn with_one_more_unchecked(
        &self,
        claim: &PackedNode,
        lot: ItemGroupIndex,
        ledger: &Ledger,
    ) -> Option<PackedNode> {
        let row = self.lots[lot].row;
        let mut others = claim.parts.iter();
        if others.any(|(other, _)| self.rows_conflict(row, self.lots[*other].row)) {
            return None;
        }
        let mut parts = claim.parts.clone();
        parts.push((lot, 1));
        let mut ledger = ledger.clone();
        ledger.release(self.limit_usage(claim.shape));
        self.priced_claim(merge_counts(parts), &ledger)
    }

    /// Returns a claim with these pods at the cheapest type that fits.
    pub(super) fn priced_claim(
        &self,
        parts: Vec<ItemCount>,
        ledger: &Ledger,
    ) -> Option<PackedNode> {
        let (shape, price) = self.cheapest_type(&parts, ledger)?;
        Some(PackedNode { shape, price, parts })
    }

    /// Returns the cheapest type that fits these pods, with its price.
    fn cheapest_type(&self, parts: &[ItemCount], ledger: &Ledger) -> Option<(TypeIndex, f64)> {
        let rows = offerings_of(self.lots, self.rows, parts);
        let sum = total_requests(self.lots, parts);
        LaunchQuery::new(self.template, self.variety, &rows, &sum).cheapest_type(ledger)
    }

    /// Returns whether the pods of a claim fit together on one node.
    pub(super) fn fits_one_host(&self, claim: &PackedNode) -> bool {
        self.with_rules(claim.shape, |rules| {
            self.bin_with(claim.shape, &claim.parts, rules).is_some()
        })
    }

    /// Checks that every pod is counted exactly once, and that the pods of every claim fit its
    /// type.
    pub(super) fn check_packing(&self, draft: &Packing) {
        let mut count = draft.left.clone();
        for claim in &draft.claims {
            let whole = total_requests(self.lots, &claim.parts);
            let fits = self.template.shapes[claim.shape].can_hold(&whole);
            assert!(fits, "a claim's pods fit its type: {claim:?}");
            for (lot, pods) in &claim.parts {
                count[*lot] += pods;
            }
        }
        assert!(count == *self.stock, "every pod is counted once");
    }
}

/// Splits pods into two parts, by compatible offerings if these differ. Returns `None` for a single
/// pod.
fn split_parts(lots: &ItemGroups<'_>, parts: &[ItemCount]) -> Option<[Vec<ItemCount>; 2]> {
    let row = lots[parts.first()?.0].row;
    let (first, others): (Vec<ItemCount>, Vec<ItemCount>) =
        parts.iter().partition(|(lot, _)| lots[*lot].row == row);
    if !others.is_empty() {
        return Some([first, others]);
    }
    if let [(lot, pods)] = parts {
        let half = pods / 2;
        return (half > 0).then(|| [vec![(*lot, half)], vec![(*lot, pods - half)]]);
    }
    let (first, second) = parts.split_at(parts.len() / 2);
    Some([first.to_vec(), second.to_vec()])
}

impl Packing {
    /// Returns the cost in $/h, including the given cost per node.
    pub(super) fn cost(&self, node_overhead_price: f64) -> f64 {
        let claims = self.claims.iter();
        claims.map(|claim| claim.price + node_overhead_price).sum()
    }

    /// Returns the number of unscheduled items.
    pub(super) fn unscheduled_items(&self) -> u64 {
        self.left.iter().sum()
    }
}
