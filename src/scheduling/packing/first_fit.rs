//! First-fit-decreasing packing as in Karpenter. It is an upper bound for the cost of every other
//! packing.
//!
//! Pods are sorted by cpu, then memory, largest first. Each pod joins the claim with the fewest
//! pods on which some type still fits everything; otherwise a new claim is added. A claim becomes
//! the cheapest of its remaining types. Source: spec/scheduling.md §2.3, §2.4.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::scheduling::index::{ItemGroupIndex, RowIndex, TypeIndex};
use crate::scheduling::packing::fill_bin::{ItemCount, merge_counts};
use crate::scheduling::packing::launch_options::Ledger;
use crate::scheduling::packing::{Packing, PackingInput};
use crate::scheduling::problem::resource_vector::{add_demand, copies_that_fit};

/// Step limit of one packing, some nanoseconds each. One step evaluates a type for one claim.
/// With more pods, the function returns no packing: other packings are much cheaper then.
const STEPS_MAX: u64 = 100_000;

/// A claim with several possible types.
struct OpenNode {
    sum: Vec<i64>,
    counts: Vec<u32>,
    rows: Vec<RowIndex>,
    /// Remaining types with their offerings.
    shapes: Vec<(TypeIndex, u64)>,
    parts: Vec<ItemCount>,
}

impl PackingInput<'_> {
    /// Returns the first-fit packing, or `None` if it takes too many steps.
    pub(crate) fn first_fit_packing(&self, ledger: &Ledger) -> Option<Packing> {
        let mut lots: Vec<ItemGroupIndex> =
            self.stock.keys().filter(|lot| self.stock[*lot] > 0).collect();
        // First fit would start a group with `together` on every claim where one pod fits.
        if lots.iter().any(|lot| self.lots[*lot].together > 1) {
            return None;
        }
        lots.sort_by_key(|lot| {
            let group = &self.lots[*lot];
            // Pods that require other pods on the node are packed after those pods.
            let needy = !group.shares.needs.is_empty();
            (needy, Reverse((group.demand[0], group.demand[1])), *lot)
        });
        let mut open: Vec<OpenNode> = Vec::new();
        // Claims by number of pods, then by age.
        let mut order: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut left = self.stock.clone();
        let mut steps = 0;
        for lot in lots {
            if steps >= STEPS_MAX {
                return None;
            }
            // A claim that cannot take one such pod cannot take the next one either.
            let mut willing = order.clone();
            while left[lot] > 0 && steps < STEPS_MAX {
                let Some((pods, at)) = willing.pop_first() else {
                    let Some(claim) = self.open_claim(lot, ledger) else {
                        break;
                    };
                    steps += self.template.shapes.len() as u64;
                    order.insert((1, open.len()));
                    willing.insert((1, open.len()));
                    open.push(claim);
                    left[lot] -= 1;
                    continue;
                };
                steps += open[at].shapes.len() as u64;
                // If no other claim is left, this claim gets all pods that fit.
                let most = if willing.is_empty() { left[lot] } else { 1 };
                let taken = self.take_items(&mut open[at], lot, most);
                if taken > 0 {
                    order.remove(&(pods, at));
                    order.insert((pods + taken, at));
                    willing.insert((pods + taken, at));
                    left[lot] -= taken;
                }
            }
        }
        if steps >= STEPS_MAX {
            return None;
        }
        let mut draft =
            Packing { claims: Vec::new(), left, ledger: ledger.clone(), cut_short: false, steps };
        self.close_claims(&mut draft, open);
        self.check_packing(&draft);
        Some(draft)
    }

    /// Adds each claim to the packing, with the cheapest type that fits its pods.
    fn close_claims(&self, draft: &mut Packing, open: Vec<OpenNode>) {
        for claim in open {
            let parts = merge_counts(claim.parts);
            match self.priced_claim(parts.clone(), &draft.ledger) {
                Some(claim) => {
                    draft.ledger.reserve(self.limit_usage(claim.shape), 1);
                    draft.claims.push(claim);
                }
                None => parts.iter().for_each(|(lot, pods)| draft.left[*lot] += pods),
            }
        }
    }

    /// Adds a claim for one item if any type fits.
    fn open_claim(&self, lot: ItemGroupIndex, ledger: &Ledger) -> Option<OpenNode> {
        let offers = self.rows[self.lots[lot].row].masks.iter_enumerated();
        let mut claim = OpenNode {
            sum: vec![0; self.lots[lot].demand.len()],
            counts: vec![0; self.counters],
            rows: Vec::new(),
            shapes: offers
                .map(|(shape, mask)| (shape, *mask))
                .filter(|(shape, _)| ledger.allowed_copies(self.limit_usage(*shape)) > 0)
                .collect(),
            parts: Vec::new(),
        };
        (self.take_items(&mut claim, lot, 1) == 1).then_some(claim)
    }

    /// Adds at most a given number of items to a claim, as many as fit on some type. Returns how
    /// many it added.
    fn take_items(&self, claim: &mut OpenNode, lot: ItemGroupIndex, most: u64) -> u64 {
        let group = &self.lots[lot];
        let most = group.shares.remaining_pods(&claim.counts, most);
        if most == 0 || claim.rows.iter().any(|row| self.rows_conflict(group.row, *row)) {
            return 0;
        }
        let masks = &self.rows[group.row].masks;
        let fits = |(shape, mask): &(TypeIndex, u64), pods: i64| {
            let net = self.net_resources(*shape);
            let mut axes = net.iter().zip(&claim.sum).zip(group.demand);
            mask & masks[*shape] != 0
                && !net.is_empty()
                && axes.all(|((net, sum), amount)| {
                    sum.saturating_add(amount.saturating_mul(pods)) <= *net
                })
        };
        // The last types are usually the largest.
        if !claim.shapes.iter().rev().any(|shape| fits(shape, 1)) {
            return 0;
        }
        let mut taken = 1;
        if most > 1 {
            let fitting = claim.shapes.iter().filter(|shape| fits(shape, 1));
            taken = fitting
                .map(|shape| {
                    let free = self.net_resources(shape.0).iter().zip(&claim.sum);
                    let free: Vec<i64> = free.map(|(net, sum)| net - sum).collect();
                    copies_that_fit(&free, group.demand)
                })
                .max()
                .unwrap_or(1)
                .min(most);
        }
        let pods = i64::try_from(taken).unwrap_or(i64::MAX);
        let kept: Vec<bool> = claim.shapes.iter().map(|shape| fits(shape, pods)).collect();
        let mut kept = kept.into_iter();
        claim.shapes.retain_mut(|shape| {
            shape.1 &= masks[shape.0];
            kept.next().unwrap_or(false)
        });
        add_demand(&mut claim.sum, group.demand, taken);
        group.shares.add_pods(&mut claim.counts, taken);
        if !claim.rows.contains(&group.row) {
            claim.rows.push(group.row);
        }
        claim.parts.push((lot, taken));
        taken
    }
}
