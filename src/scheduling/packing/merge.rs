//! Merges claims of a packing if one claim is cheaper.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::index::TypeIndex;
use crate::scheduling::packing::fill_bin::{ItemCount, merge_counts};
use crate::scheduling::packing::launch_options::total_requests;
use crate::scheduling::packing::{PackedNode, Packing, PackingInput};

/// Maximum number of claims to merge into one, cheapest first. Merging fuller nodes saves nothing.
const SMALL_MAX: usize = 8;

/// Maximum number of packings to merge pairwise, cheapest first. The effort grows with the square
/// of this number.
const KINDS_MAX: usize = 64;

/// Maximum number of merges. Only a few claims of a packing can be merged with benefit, regardless
/// of its size.
const MERGES_MAX: usize = 64;

impl PackingInput<'_> {
    /// Merges claims if that is cheaper: first many of the cheapest claims, then pairs.
    pub(crate) fn merge_claims(&self, draft: &mut Packing) {
        let mut gone = BTreeSet::new();
        self.merge_small(draft, &mut gone);
        self.merge_pairs(draft, &mut gone);
        let mut at = 0..;
        let claims = &mut draft.claims;
        claims.retain(|_| at.next().is_some_and(|at| !gone.contains(&at)));
    }

    /// Returns whether a claim has a price that could be saved.
    fn has_price(&self, claim: &PackedNode) -> bool {
        self.template.shapes[claim.shape].reservation.is_none()
    }

    /// Returns claims with a price, cheapest first.
    fn claims_by_price(&self, draft: &Packing, gone: &BTreeSet<usize>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..draft.claims.len())
            .filter(|at| !gone.contains(at) && self.has_price(&draft.claims[*at]))
            .collect();
        order.sort_by(|one, other| draft.claims[*one].price.total_cmp(&draft.claims[*other].price));
        order
    }

    /// Merges the cheapest claims. These are mostly the last nodes of a packing, which contain the
    /// remaining pods and are each sized individually.
    fn merge_small(&self, draft: &mut Packing, gone: &mut BTreeSet<usize>) {
        let mut order = self.claims_by_price(draft, gone);
        for _ in 0..MERGES_MAX.min(draft.claims.len().saturating_sub(1)) {
            let which = &order[..order.len().min(SMALL_MAX)];
            let mut several = (2..=which.len()).rev();
            let Some((count, merged)) =
                several.find_map(|count| Some((count, self.merged_claim(draft, &which[..count])?)))
            else {
                break;
            };
            let (index, price) = (draft.claims.len(), merged.price);
            let costs = self.has_price(&merged);
            self.replace_claims(draft, &order[..count], merged, gone);
            order.drain(..count);
            if costs {
                let place = order.partition_point(|at| draft.claims[*at].price <= price);
                order.insert(place, index);
            }
        }
    }

    /// Merges pairs of claims. Identical claims rarely fit together, because each has pods with
    /// anti-affinity, so all combinations of different claims are tried.
    fn merge_pairs(&self, draft: &mut Packing, gone: &mut BTreeSet<usize>) {
        let mut kinds: Vec<Vec<usize>> = Vec::new();
        let mut known: BTreeMap<(TypeIndex, &[ItemCount]), usize> = BTreeMap::new();
        for at in self.claims_by_price(draft, gone) {
            let claim = &draft.claims[at];
            let kind = *known.entry((claim.shape, &claim.parts)).or_insert(kinds.len());
            if kind == KINDS_MAX {
                break;
            }
            if kind == kinds.len() {
                kinds.push(Vec::new());
            }
            kinds[kind].push(at);
        }
        // If all claims differ, all useful merges were tried.
        if kinds.iter().all(|kind| kind.len() < 2) {
            return;
        }
        let mut pairs: Vec<(f64, usize, usize)> = Vec::new();
        let mut paired = 0;
        for _ in 0..MERGES_MAX {
            for other in paired..kinds.len() {
                let savings = (0..=other).filter_map(|one| {
                    let which = claim_pair(&kinds, one, other)?;
                    let merged = self.merged_claim(draft, &which)?;
                    let saved =
                        which.iter().map(|at| draft.claims[*at].price).sum::<f64>() - merged.price;
                    Some((saved, one, other))
                });
                pairs.extend(savings.collect::<Vec<_>>());
            }
            paired = kinds.len();
            // If several pairs have the same savings, the pair with the smallest claims is chosen.
            pairs.retain(|(_, one, other)| claim_pair(&kinds, *one, *other).is_some());
            let most = pairs
                .iter()
                .copied()
                .reduce(|best, pair| if pair.0 > best.0 { pair } else { best });
            let Some((saved, one, other)) = most else {
                break;
            };
            let first = draft.claims.len();
            while let Some(which) = claim_pair(&kinds, one, other)
                && let Some(merged) = self.merged_claim(draft, &which)
            {
                self.replace_claims(draft, &which, merged, gone);
                kinds[one].pop();
                kinds[other].pop();
            }
            pairs.retain(|pair| *pair != (saved, one, other));
            kinds.push((first..draft.claims.len()).collect());
        }
    }

    /// Returns these claims merged into one, if that is cheaper and valid.
    fn merged_claim(&self, draft: &Packing, which: &[usize]) -> Option<PackedNode> {
        let claims = which.iter().map(|at| &draft.claims[*at]);
        let parts = claims.clone().flat_map(|claim| &claim.parts).copied();
        let parts: Vec<ItemCount> = parts.collect();
        let cost: f64 = claims.clone().map(|it| it.price + self.node_cost).sum();
        // Most merges are not cheaper even with the cheapest type that fits the requests.
        let fitting = self.template.types_by_price_for(&total_requests(self.lots, &parts));
        let first = &self.template.shapes[*fitting.first()?];
        if first.lowest_price(u64::MAX)? + self.node_cost >= cost {
            return None;
        }
        let mut ledger = draft.ledger.clone();
        claims.for_each(|claim| ledger.release(self.limit_usage(claim.shape)));
        let merged = self.priced_claim(merge_counts(parts), &ledger)?;
        (merged.price + self.node_cost < cost && self.fits_one_host(&merged)).then_some(merged)
    }

    /// Replaces several claims by one.
    fn replace_claims(
        &self,
        draft: &mut Packing,
        which: &[usize],
        merged: PackedNode,
        gone: &mut BTreeSet<usize>,
    ) {
        for at in which {
            let limited = self.limit_usage(draft.claims[*at].shape);
            draft.ledger.release(limited);
            gone.insert(*at);
        }
        draft.ledger.reserve(self.limit_usage(merged.shape), 1);
        draft.claims.push(merged);
    }
}

/// Returns one remaining claim of each of two groups of identical claims.
fn claim_pair(kinds: &[Vec<usize>], one: usize, other: usize) -> Option<[usize; 2]> {
    let (last, candidates) = (kinds[other].last()?, kinds[one].iter().rev());
    let first = candidates.copied().find(|at| at != last)?;
    Some([first, *last])
}
