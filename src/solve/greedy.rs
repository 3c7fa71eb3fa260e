//! The packing that grows claims pod by pod, as Karpenter does: what no draft may cost more than.
//! It must not know of other ways to pack, nor which draft is taken.
//!
//! Pods by cpu, then memory, the largest first. Each goes to the claim with the fewest pods of
//! those on which some type still has room for everything; else a claim is opened. A claim becomes
//! the cheapest of the types that are left to it. Source: spec/scheduling.md §2.3, §2.4.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::solve::choose::Ledger;
use crate::solve::draft::{Draft, Order};
use crate::solve::fill::{Part, united};

/// Steps of one packing, each a type looked at for one claim: some nanoseconds. Beyond, there is
/// none; the more pods there are, the further below it others are.
const STEPS_MAX: u64 = 400_000;

/// A claim that may still become any of several types.
struct Open {
    sum: Vec<i64>,
    counts: Vec<u32>,
    rows: Vec<usize>,
    /// The types that are left, with their offers.
    shapes: Vec<(usize, u64)>,
    parts: Vec<Part>,
}

impl Order<'_> {
    /// What waits as this packing has it; none where it takes too many steps.
    pub(super) fn greedy(&self, ledger: &Ledger) -> Option<Draft> {
        let mut lots: Vec<usize> = (0..self.stock.len())
            .filter(|lot| self.stock[*lot] > 0)
            .collect();
        lots.sort_by_key(|lot| {
            let own = &self.lots[*lot];
            // Those who need others on the host come when the others are there.
            let needy = !own.shares.needs.is_empty();
            (needy, Reverse((own.demand[0], own.demand[1])), *lot)
        });
        let mut open: Vec<Open> = Vec::new();
        // Claims by how many pods they have, then by age.
        let mut order: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut left = self.stock.to_vec();
        let mut steps = 0;
        for lot in lots {
            // A claim that has no room for one such pod has none for the next.
            let mut willing = order.clone();
            while left[lot] > 0 && steps < STEPS_MAX {
                let Some((pods, at)) = willing.pop_first() else {
                    let Some(claim) = self.opened(lot, ledger) else {
                        break;
                    };
                    steps += self.shelf.shapes.len() as u64;
                    order.insert((1, open.len()));
                    willing.insert((1, open.len()));
                    open.push(claim);
                    left[lot] -= 1;
                    continue;
                };
                steps += open[at].shapes.len() as u64;
                if self.takes(&mut open[at], lot) {
                    order.remove(&(pods, at));
                    order.insert((pods + 1, at));
                    willing.insert((pods + 1, at));
                    left[lot] -= 1;
                }
            }
        }
        let mut draft = Draft {
            claims: Vec::new(),
            left,
            ledger: ledger.clone(),
            cut_short: false,
            steps,
        };
        for claim in open {
            let parts = united(claim.parts);
            match self.priced(parts.clone(), &draft.ledger) {
                Some(claim) => {
                    let limited = &self.shelf.shapes[claim.shape].limited;
                    draft.ledger.reserve(limited, 1);
                    draft.claims.push(claim);
                }
                None => parts
                    .iter()
                    .for_each(|(lot, pods)| draft.left[*lot] += pods),
            }
        }
        self.check(&draft);
        (steps < STEPS_MAX).then_some(draft)
    }

    /// A claim for one pod of a lot, if any type has room for it.
    fn opened(&self, lot: usize, ledger: &Ledger) -> Option<Open> {
        let offers = self.rows[self.lots[lot].row].masks.iter().copied();
        let had = |own: &(usize, u64)| ledger.copies(&self.shelf.shapes[own.0].limited) > 0;
        let mut claim = Open {
            sum: vec![0; self.lots[lot].demand.len()],
            counts: vec![0; self.counters],
            rows: Vec::new(),
            shapes: offers.enumerate().filter(had).collect(),
            parts: Vec::new(),
        };
        self.takes(&mut claim, lot).then_some(claim)
    }

    /// Puts one pod of a lot onto a claim, if some type has room for it with all others.
    fn takes(&self, claim: &mut Open, lot: usize) -> bool {
        let own = &self.lots[lot];
        let apart = |row: &usize| self.apart(own.row, *row);
        if own.shares.room(&claim.counts, 1) == 0 || claim.rows.iter().any(apart) {
            return false;
        }
        let masks = &self.rows[own.row].masks;
        let whole = claim.sum.iter().zip(own.demand);
        let whole: Vec<i64> = whole.map(|(sum, own)| sum.saturating_add(*own)).collect();
        let room = |(shape, mask): &(usize, u64)| {
            let net = self.shelf.shapes[*shape].net.as_deref();
            mask & masks[*shape] != 0
                && net.is_some_and(|net| whole.iter().zip(net).all(|(sum, net)| sum <= net))
        };
        // The last are the largest, more often than not.
        if !claim.shapes.iter().rev().any(room) {
            return false;
        }
        claim.shapes.retain_mut(|own| {
            let stays = room(own);
            own.1 &= masks[own.0];
            stays
        });
        claim.sum = whole;
        own.shares.add(&mut claim.counts, 1);
        if !claim.rows.contains(&own.row) {
            claim.rows.push(own.row);
        }
        claim.parts.push((lot, 1));
        true
    }
}
