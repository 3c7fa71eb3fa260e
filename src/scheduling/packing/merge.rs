//! Claims of a draft that become one, where that costs less.
//! It must not know how they were packed.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::packing::fill_bin::{ItemCount, united};
use crate::scheduling::packing::launch_options::sum;
use crate::scheduling::packing::{PackedNode, Packing, PackingInput};

/// Claims that are looked at for being one, the cheapest of all. A fuller node has nothing to gain.
const SMALL_MAX: usize = 8;

/// Kinds of packings, the cheapest, that are looked at for being one with others, copy by copy. The
/// effort grows with the square.
const KINDS_MAX: usize = 64;

/// Times that claims are made one. A packing leaves a few that gain by it, whatever its size.
const MERGES_MAX: usize = 64;

impl PackingInput<'_> {
    /// Makes claims one wherever that costs less: the cheapest of all, as many as will, then those
    /// of which there are several alike, two by two.
    pub(crate) fn merge(&self, draft: &mut Packing) {
        let mut gone = BTreeSet::new();
        self.merge_small(draft, &mut gone);
        self.merge_pairs(draft, &mut gone);
        let mut at = 0..;
        let claims = &mut draft.claims;
        claims.retain(|_| at.next().is_some_and(|at| !gone.contains(&at)));
    }

    /// Whether a claim costs anything that could be saved.
    fn costs(&self, claim: &PackedNode) -> bool {
        self.shelf.shapes[claim.shape].reservation.is_none()
    }

    /// What is there of a draft and costs anything that could be saved, the cheapest first.
    fn by_price(&self, draft: &Packing, gone: &BTreeSet<usize>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..draft.claims.len())
            .filter(|at| !gone.contains(at) && self.costs(&draft.claims[*at]))
            .collect();
        order.sort_by(|one, other| {
            draft.claims[*one]
                .price
                .total_cmp(&draft.claims[*other].price)
        });
        order
    }

    /// The last nodes of a packing carry what was left over, each sized for the best use of itself
    /// alone.
    fn merge_small(&self, draft: &mut Packing, gone: &mut BTreeSet<usize>) {
        let mut order = self.by_price(draft, gone);
        for _ in 0..MERGES_MAX.min(draft.claims.len().saturating_sub(1)) {
            let which = &order[..order.len().min(SMALL_MAX)];
            let mut several = (2..=which.len()).rev();
            let Some((count, merged)) =
                several.find_map(|count| Some((count, self.merged(draft, &which[..count])?)))
            else {
                break;
            };
            let (own, price) = (draft.claims.len(), merged.price);
            let costs = self.costs(&merged);
            self.replace(draft, &order[..count], (merged, gone));
            order.drain(..count);
            if costs {
                let place = order.partition_point(|at| draft.claims[*at].price <= price);
                order.insert(place, own);
            }
        }
    }

    /// Copies of a packing seldom go together: pods that keep apart are on each of them. Those of
    /// two packings may, as often as there are both.
    fn merge_pairs(&self, draft: &mut Packing, gone: &mut BTreeSet<usize>) {
        let mut kinds: Vec<Vec<usize>> = Vec::new();
        let mut known: BTreeMap<(usize, &[ItemCount]), usize> = BTreeMap::new();
        for at in self.by_price(draft, gone) {
            let claim = &draft.claims[at];
            let kind = *known
                .entry((claim.shape, &claim.parts))
                .or_insert(kinds.len());
            if kind == KINDS_MAX {
                break;
            }
            if kind == kinds.len() {
                kinds.push(Vec::new());
            }
            kinds[kind].push(at);
        }
        // Where no two are alike, all has been tried that is worth it.
        if kinds.iter().all(|own| own.len() < 2) {
            return;
        }
        let mut pairs: Vec<(f64, usize, usize)> = Vec::new();
        let mut paired = 0;
        for _ in 0..MERGES_MAX {
            for other in paired..kinds.len() {
                let all = (0..=other).filter_map(|one| {
                    let which = pair(&kinds, one, other)?;
                    let merged = self.merged(draft, &which)?;
                    let price = |at: &usize| draft.claims[*at].price;
                    let saved = which.iter().map(price).sum::<f64>() - merged.price;
                    Some((saved, one, other))
                });
                pairs.extend(all.collect::<Vec<_>>());
            }
            paired = kinds.len();
            // Of pairs that save as much, those of the smallest claims.
            pairs.retain(|(_, one, other)| pair(&kinds, *one, *other).is_some());
            let most = pairs
                .iter()
                .copied()
                .reduce(|best, own| if own.0 > best.0 { own } else { best });
            let Some((saved, one, other)) = most else {
                break;
            };
            let first = draft.claims.len();
            while let Some(which) = pair(&kinds, one, other)
                && let Some(merged) = self.merged(draft, &which)
            {
                self.replace(draft, &which, (merged, gone));
                kinds[one].pop();
                kinds[other].pop();
            }
            pairs.retain(|own| *own != (saved, one, other));
            kinds.push((first..draft.claims.len()).collect());
        }
    }

    /// These claims as one, if that costs less and their pods go together.
    fn merged(&self, draft: &Packing, which: &[usize]) -> Option<PackedNode> {
        let claims = || which.iter().map(|at| &draft.claims[*at]);
        let parts: Vec<ItemCount> = claims().flat_map(|own| &own.parts).copied().collect();
        let cost: f64 = claims().map(|own| own.price + self.node_cost).sum();
        // Most would need a type that costs as much, whatever the pods may have.
        let shapes = &self.shelf.shapes;
        let first = self.shelf.by_least_for(&sum(self.lots, &parts)).first()?;
        if shapes[*first].price(u64::MAX)? + self.node_cost >= cost {
            return None;
        }
        let mut ledger = draft.ledger.clone();
        claims().for_each(|own| ledger.release(&shapes[own.shape].limited));
        let merged = self.priced(united(parts), &ledger)?;
        (merged.price + self.node_cost < cost && self.holds(&merged)).then_some(merged)
    }

    /// Puts one claim in the place of several.
    fn replace(
        &self,
        draft: &mut Packing,
        which: &[usize],
        (merged, gone): (PackedNode, &mut BTreeSet<usize>),
    ) {
        for at in which {
            draft
                .ledger
                .release(&self.shelf.shapes[draft.claims[*at].shape].limited);
            gone.insert(*at);
        }
        draft
            .ledger
            .reserve(&self.shelf.shapes[merged.shape].limited, 1);
        draft.claims.push(merged);
    }
}

/// One claim of each of two kinds that is still there.
fn pair(kinds: &[Vec<usize>], one: usize, other: usize) -> Option<[usize; 2]> {
    let (last, own) = (kinds[other].last()?, kinds[one].iter().rev());
    let first = own.copied().find(|at| at != last)?;
    Some([first, *last])
}
