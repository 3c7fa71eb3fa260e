//! One way to pack what waits onto new nodes of one pool: type by type, best value first.
//! It must not know the other pools, nor which of several drafts is taken.

/// Fills one node with groups of identical pods.
pub(super) mod fill_bin;
mod fill_cache;
/// The types and offerings that a planned node may be launched as, by price and within limits.
pub(super) mod launch_options;
/// Places pods on nodes that exist or are being launched.
pub(super) mod existing_nodes;
/// Merges planned nodes if one larger node costs less.
pub(super) mod merge;
/// Least cost per pod, and the types that are worth trying.
pub(super) mod pod_cost;
/// First-fit decreasing as Karpenter does it: an upper bound on cost.
pub(super) mod first_fit;
/// The packing loop: opens the type with the best value per dollar.
pub(super) mod best_value;
/// Inputs and working state of a packing run.
pub(super) mod context;
/// Cache of compatible offerings and their lowest prices.
pub(super) mod offering_cache;
/// Builds the topology state from a snapshot.
pub(super) mod initial_topology;

use crate::scheduling::packing::fill_bin::{
    Bin, BinRules, FillQueues, FillStrategy, ItemCount, ItemGroup, rows_in, united,
};
use crate::scheduling::packing::launch_options::{Ledger, cheapest, sum};
use crate::scheduling::problem::resource_vector::fits;
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::supply::node_template::NodeTemplate;

/// Types that are looked at for pods that are left, each for one claim that they may join.
const GROWTH_MAX: u64 = 20_000_000;

/// A node to be made, in ordinals.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PackedNode {
    /// The type it is planned as; others may do as well.
    pub(super) shape: usize,
    /// The price of that.
    pub(super) price: f64,
    /// Its pods, by lot.
    pub(super) parts: Vec<ItemCount>,
}

/// What is packed, the same for every draft.
#[derive(Clone, Copy)]
pub(super) struct PackingInput<'o> {
    /// Pods, some of them of earlier orders or of other pools.
    pub(super) lots: &'o [ItemGroup<'o>],
    /// The pool.
    pub(super) shelf: &'o NodeTemplate<'o>,
    /// The variety it wants.
    pub(super) variety: &'o MinValues<'o>,
    /// What lots may have, some of them of other pools.
    pub(super) rows: &'o [CompatibleOfferings],
    /// How many pods of each lot wait; none of those that are of other orders.
    pub(super) stock: &'o [u64],
    /// How many counters a host has for those who ask of whom they share it with.
    pub(super) counters: usize,
    /// What a node is taken to cost beyond its price, in $/h.
    pub(super) node_price: f64,
    /// The same for choosing what to open: more makes fewer, larger nodes.
    pub(super) node_cost: f64,
}

/// A packing.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    /// Nodes to be made.
    pub(super) claims: Vec<PackedNode>,
    /// Pods that are left, by lot.
    pub(super) left: Vec<u64>,
    /// What the limits leave.
    pub(super) ledger: Ledger,
    /// Whether it ended because its steps were used up.
    pub(super) cut_short: bool,
    /// How much was looked at.
    pub(super) steps: u64,
}

impl<'o> PackingInput<'o> {
    /// Whether lots of two rows ask for different values of a label that is still open.
    pub(super) fn apart(&self, one: usize, other: usize) -> bool {
        let differs = |(key, wanted): &(String, _)| {
            let mut theirs = self.rows[other].open.iter();
            theirs.any(|(k, w)| k == key && w != wanted)
        };
        self.rows[one].open.iter().any(differs)
    }

    /// Does something with the terms of a type.
    pub(super) fn with_terms<T>(&self, shape: usize, act: impl FnOnce(&BinRules<'_>) -> T) -> T {
        let terms = BinRules {
            mask: &|row| self.rows[row].masks.get(shape).copied().unwrap_or(0),
            is_picky: &|row| !self.rows[row].open.is_empty(),
            apart: &|one, other| self.apart(one, other),
        };
        act(&terms)
    }

    /// An empty host of a type, of whose offers those of `good` must not all be lost.
    pub(super) fn bin(&self, shape: usize, mask: u64, good: u64) -> Option<Bin> {
        Some(Bin {
            free: self.shelf.shapes[shape].net.clone()?,
            mask,
            good,
            picky: Vec::new(),
            counts: vec![0; self.counters],
        })
    }

    /// These pods on one host of a type, if they go together there.
    fn together(&self, shape: usize, parts: &[ItemCount], terms: &BinRules<'_>) -> Option<Bin> {
        let mut bin = self.bin(shape, u64::MAX, u64::MAX)?;
        let followers = |part: &&ItemCount| !self.lots[part.0].shares.needs.is_empty();
        let leaders = parts.iter().filter(|part| !followers(part));
        for part in leaders.chain(parts.iter().filter(followers)) {
            if bin.room(self.lots, terms, part.0) < part.1 {
                return None;
            }
            bin.add(self.lots, terms, *part);
        }
        Some(bin)
    }

    /// Adds pods to a claim that is planned already, without making it dearer. Says what went in.
    pub(super) fn top_up(
        &self,
        claim: &PackedNode,
        (waiting, stock): (&FillQueues, &[u64]),
        steps: &mut u64,
    ) -> Vec<ItemCount> {
        self.with_terms(claim.shape, |terms| {
            let Some(mut bin) = self.together(claim.shape, &claim.parts, terms) else {
                return Vec::new();
            };
            bin.good = self.shelf.shapes[claim.shape].cheapest(bin.mask);
            let waiting = (waiting, stock, &[][..]);
            bin.fill(FillStrategy::Largest, (self.lots, terms), waiting, steps)
        })
    }

    /// The rows of these pods.
    pub(super) fn rows_of(&self, parts: &[ItemCount]) -> Vec<&'o CompatibleOfferings> {
        let rows = rows_in(self.lots, parts).into_iter();
        rows.map(|row| &self.rows[row]).collect()
    }

    /// Moves every claim to the cheapest type that its pods fit.
    pub(super) fn refit(&self, draft: &mut Packing) {
        let mut last: Option<(PackedNode, PackedNode)> = None;
        for claim in &mut draft.claims {
            let limited = &self.shelf.shapes[claim.shape].limited;
            draft.ledger.release(limited);
            if let Some((before, after)) = &last
                && before == claim
                && draft.ledger.copies(&self.shelf.shapes[after.shape].limited) > 0
            {
                let limited = &self.shelf.shapes[after.shape].limited;
                draft.ledger.reserve(limited, 1);
                claim.clone_from(after);
                continue;
            }
            let before = claim.clone();
            let whole = sum(self.lots, &claim.parts);
            let rows = self.rows_of(&claim.parts);
            if let Some((shape, price)) =
                cheapest((self.shelf, self.variety), &rows, &whole, &draft.ledger)
                && price < claim.price
            {
                (claim.shape, claim.price) = (shape, price);
            }
            let limited = &self.shelf.shapes[claim.shape].limited;
            draft.ledger.reserve(limited, 1);
            last = Some((before, claim.clone()));
        }
    }

    /// Takes claims apart that have too little variety, though each of their pods has enough: what
    /// suits them all is less than what suits each.
    pub(super) fn split(&self, draft: &mut Packing) {
        if self.variety.is_empty() {
            return;
        }
        let all = draft.ledger.unlimited();
        for claim in std::mem::take(&mut draft.claims) {
            let shape = &self.shelf.shapes[claim.shape];
            let whole = self.priced(claim.parts.clone(), &all);
            let alike =
                |own: &PackedNode| self.shelf.shapes[own.shape].crew.agents == shape.crew.agents;
            if shape.reservation.is_some() || whole.as_ref().is_some_and(alike) {
                draft.claims.push(claim);
                continue;
            }
            draft.ledger.release(&shape.limited);
            let mut waiting: Vec<Vec<ItemCount>> = vec![claim.parts];
            while let Some(parts) = waiting.pop() {
                let own = self.priced(parts.clone(), &draft.ledger);
                if let Some(own) = own.filter(|own| self.holds(own)) {
                    let limited = &self.shelf.shapes[own.shape].limited;
                    draft.ledger.reserve(limited, 1);
                    draft.claims.push(own);
                    continue;
                }
                match halves(self.lots, &parts) {
                    Some(halves) => waiting.extend(halves),
                    None => parts
                        .iter()
                        .for_each(|(lot, pods)| draft.left[*lot] += pods),
                }
            }
        }
    }

    /// Puts pods that are left onto claims that get larger for it, one by one, where that costs
    /// least: pods that must be near others, and those for which there may be no other node.
    pub(super) fn grow(&self, draft: &mut Packing) {
        // Others that are left fit nowhere, or the limits leave no room for them.
        let limited = self.shelf.limits.iter().any(|own| own.resource.is_none());
        let mut moved = true;
        while moved {
            moved = false;
            for lot in 0..draft.left.len() {
                if !limited && self.lots[lot].shares.needs.is_empty() {
                    continue;
                }
                while draft.left[lot] > 0 && draft.steps < GROWTH_MAX {
                    let Some((at, claim)) = self.grown(draft, lot) else {
                        break;
                    };
                    let before = &self.shelf.shapes[draft.claims[at].shape].limited;
                    draft.ledger.release(before);
                    draft
                        .ledger
                        .reserve(&self.shelf.shapes[claim.shape].limited, 1);
                    draft.claims[at] = claim;
                    draft.left[lot] -= 1;
                    // Others may have waited for this one.
                    moved = true;
                }
            }
        }
    }

    /// Whether whom a lot needs on its host is among the pods of a claim.
    fn has_company(&self, claim: &PackedNode, lot: usize) -> bool {
        let there = |counter: &usize| {
            let mut parts = claim.parts.iter();
            parts.any(|(other, _)| self.lots[*other].shares.adds.contains(counter))
        };
        let needs = &self.lots[lot].shares.needs;
        needs.iter().all(|(counter, _)| there(counter))
    }

    fn grown(&self, draft: &mut Packing, lot: usize) -> Option<(usize, PackedNode)> {
        let mut best: Option<(f64, usize, PackedNode)> = None;
        for (at, claim) in draft.claims.iter().enumerate() {
            draft.steps += 1;
            let masks = &self.rows[self.lots[lot].row].masks;
            if masks[claim.shape] == 0 || !self.has_company(claim, lot) {
                continue;
            }
            draft.steps += self.shelf.shapes.len() as u64;
            let Some(joined) = self.joined(claim, lot, &draft.ledger) else {
                continue;
            };
            let more = joined.price - claim.price;
            if best.as_ref().is_none_or(|(least, _, _)| more < *least) {
                best = Some((more, at, joined));
            }
        }
        best.map(|(_, at, claim)| (at, claim))
    }

    /// A claim with one more pod of a lot, as what is then cheapest; none where that cannot be.
    pub(super) fn joined(
        &self,
        claim: &PackedNode,
        lot: usize,
        ledger: &Ledger,
    ) -> Option<PackedNode> {
        let joined = self.grown_by(claim, lot, ledger)?;
        self.holds(&joined).then_some(joined)
    }

    /// The same for a pod that comes after all others, where the board has said that it may be the
    /// next on that host: rules that count pods in whatever order they come say nothing more. Of
    /// ports, which the pod binds or not, the board knows nothing.
    pub(super) fn joined_last(
        &self,
        claim: &PackedNode,
        (lot, binds_ports): (usize, bool),
        ledger: &Ledger,
    ) -> Option<PackedNode> {
        match binds_ports {
            true => self.joined(claim, lot, ledger),
            false => self.grown_by(claim, lot, ledger),
        }
    }

    /// A claim with one more pod of a lot, whoever may share the host: labels that pools leave open
    /// have to agree.
    fn grown_by(&self, claim: &PackedNode, lot: usize, ledger: &Ledger) -> Option<PackedNode> {
        let row = self.lots[lot].row;
        let mut others = claim.parts.iter();
        if others.any(|(other, _)| self.apart(row, self.lots[*other].row)) {
            return None;
        }
        let mut parts = claim.parts.clone();
        parts.push((lot, 1));
        let mut ledger = ledger.clone();
        ledger.release(&self.shelf.shapes[claim.shape].limited);
        self.priced(united(parts), &ledger)
    }

    /// A claim of these pods as the cheapest type that has what they ask for.
    pub(super) fn priced(&self, parts: Vec<ItemCount>, ledger: &Ledger) -> Option<PackedNode> {
        let whole = sum(self.lots, &parts);
        let pool = (self.shelf, self.variety);
        let (shape, price) = cheapest(pool, &self.rows_of(&parts), &whole, ledger)?;
        Some(PackedNode {
            shape,
            price,
            parts,
        })
    }

    /// Whether the pods of a claim go together on one host.
    pub(super) fn holds(&self, claim: &PackedNode) -> bool {
        let together = |terms: &BinRules<'_>| self.together(claim.shape, &claim.parts, terms);
        self.with_terms(claim.shape, together).is_some()
    }

    /// Post-condition: every pod is counted once, and every claim's pods fit its type.
    pub(super) fn check(&self, draft: &Packing) {
        let mut count = draft.left.clone();
        for claim in &draft.claims {
            let whole = sum(self.lots, &claim.parts);
            let net = self.shelf.shapes[claim.shape].net.as_deref();
            let fits = net.is_some_and(|net| fits(net, &whole));
            assert!(fits, "a claim's pods fit its type: {claim:?}");
            for (lot, own) in &claim.parts {
                count[*lot] += own;
            }
        }
        assert!(count == self.stock, "every pod is counted once");
    }
}

/// Pods in two parts, those of one row on their own first; none where there is only one pod.
fn halves(lots: &[ItemGroup<'_>], parts: &[ItemCount]) -> Option<[Vec<ItemCount>; 2]> {
    let row = lots[parts.first()?.0].row;
    let (first, rest): (Vec<ItemCount>, Vec<ItemCount>) =
        parts.iter().partition(|(lot, _)| lots[*lot].row == row);
    if !rest.is_empty() {
        return Some([first, rest]);
    }
    if let [(lot, pods)] = parts {
        let half = pods / 2;
        return (half > 0).then(|| [vec![(*lot, half)], vec![(*lot, pods - half)]]);
    }
    let (first, rest) = parts.split_at(parts.len() / 2);
    Some([first.to_vec(), rest.to_vec()])
}

impl Packing {
    /// What it costs in $/h, where a node costs so much beyond its price.
    pub(super) fn cost(&self, node_price: f64) -> f64 {
        let all = self.claims.iter();
        all.map(|claim| claim.price + node_price).sum()
    }
}
