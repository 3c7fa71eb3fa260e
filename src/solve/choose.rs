//! What may be launched for a claim: which types fit, by price, within what the limits leave.
//! It must not know how its pods were brought together.

use crate::model::instance::{OfferingKey, Price};
use crate::solve::fill::Part;
use crate::solve::problem::{Problem, take, times};
use crate::solve::supply::{Row, Shelf};
use crate::state::snapshot::Usage;

/// Offerings kept for a claim, as many as Karpenter gives to one CreateFleet (spec/aws.md §0.2).
const OFFERINGS_MAX: usize = 60;

/// How much dearer than the cheapest an offering may be that stands in for it.
const PRICE_RATIO_MAX: f64 = 2.0;

/// What a pool's limits leave; only limited names count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    left: Vec<i64>,
    nodes: u64,
}

impl Ledger {
    /// What is left to a pool that uses this much.
    pub(super) fn new(shelf: &Shelf<'_>, used: &Usage) -> Self {
        let remaining = shelf.pool.remaining(&used.capacity, used.nodes);
        Self {
            left: remaining.capacity.iter().map(|(_, left)| *left).collect(),
            nodes: remaining.nodes.map_or(u64::MAX, u64::from),
        }
    }

    /// How many nodes of this capacity are allowed. None where a limit is exceeded already.
    pub(super) fn copies(&self, limited: &[i64]) -> u64 {
        if self.left.iter().any(|left| *left < 0) {
            return 0;
        }
        self.nodes.min(times(&self.left, limited))
    }

    /// The first limit, by its place, that leaves no room for this capacity.
    pub(super) fn shortage(&self, limited: &[i64]) -> Option<(usize, i64)> {
        let pairs = self.left.iter().zip(limited).enumerate();
        let mut short = pairs.filter(|(_, (left, wanted))| *wanted > *left || **left < 0);
        short.next().map(|(at, (left, _))| (at, *left))
    }

    /// Takes so many nodes out of what is left. They must be allowed.
    pub(super) fn reserve(&mut self, limited: &[i64], count: u64) {
        assert!(count <= self.copies(limited), "limits are never exceeded");
        take(&mut self.left, limited, count);
        self.nodes -= count;
    }

    /// Gives one node back.
    pub(super) fn release(&mut self, limited: &[i64]) {
        for (left, amount) in self.left.iter_mut().zip(limited) {
            *left = left.saturating_add(*amount);
        }
        self.nodes = self.nodes.saturating_add(1);
    }
}

/// What the pods of a claim ask for together.
pub(super) fn sum(problem: &Problem<'_>, parts: impl Iterator<Item = Part>) -> Vec<i64> {
    let mut sum = Vec::new();
    for (class, count) in parts {
        let demand = &problem.classes[class].demand;
        sum.resize(demand.len(), 0i64);
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        for (sum, amount) in sum.iter_mut().zip(demand) {
            *sum = sum.saturating_add(amount.saturating_mul(count));
        }
    }
    sum
}

/// The offers of a shape that pods of all these rows may have, if it has room for their sum.
pub(super) fn fitting(shelf: &Shelf<'_>, shape: usize, rows: &[&Row], sum: &[i64]) -> u64 {
    let mask = rows
        .iter()
        .fold(u64::MAX, |all, row| all & row.masks[shape]);
    let net = shelf.shapes[shape].net.as_deref();
    if mask != 0 && net.is_some_and(|net| times(net, sum) > 0) {
        mask
    } else {
        0
    }
}

/// The cheapest shape for pods of all these rows, with its price; ties go to the first name.
pub(super) fn cheapest(
    shelf: &Shelf<'_>,
    rows: &[&Row],
    sum: &[i64],
    ledger: &Ledger,
) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64)> = None;
    for (at, shape) in shelf.shapes.iter().enumerate() {
        let mask = rows.iter().fold(u64::MAX, |all, row| all & row.masks[at]);
        let Some(price) = shape.price(mask) else {
            continue;
        };
        let better = best.is_none_or(|(_, least)| price < least);
        if better && fitting(shelf, at, rows, sum) != 0 && ledger.copies(&shape.limited) > 0 {
            best = Some((at, price));
        }
    }
    best
}

/// Everything that may be launched for a claim that is planned as `planned`, cheapest first, and
/// the types that are in it. What the planned type does not take of the limits is taken from the
/// ledger, so that no choice among the offerings exceeds them.
pub(super) fn offerings(
    shelf: &Shelf<'_>,
    planned: usize,
    rows: &[&Row],
    sum: &[i64],
    ledger: &mut Ledger,
) -> (Vec<(OfferingKey, Price)>, Vec<usize>) {
    let mut reserved = shelf.shapes[planned].limited.clone();
    let mut kept = Vec::new();
    let mut types = Vec::new();
    let mut price_max = f64::INFINITY;
    // What fits depends on the type alone; offers of one type are far apart in the list.
    let mut masks: Vec<Option<u64>> = vec![None; shelf.shapes.len()];
    for &(at, bit) in &shelf.by_price {
        let shape = &shelf.shapes[at];
        let offer = shape.offers[bit];
        if kept.len() == OFFERINGS_MAX || offer.price.usd_per_h() > price_max {
            break;
        }
        let mask = *masks[at].get_or_insert_with(|| fitting(shelf, at, rows, sum));
        if mask >> bit & 1 == 0 || !grow(&mut reserved, &shape.limited, ledger) {
            continue;
        }
        if kept.is_empty() && offer.price.usd_per_h() > 0.0 {
            price_max = PRICE_RATIO_MAX * offer.price.usd_per_h();
        }
        kept.push((shape.key(offer), offer.price));
        if !types.contains(&at) {
            types.push(at);
        }
    }
    (kept, types)
}

/// Raises what is reserved to at least this capacity, if the ledger has as much.
fn grow(reserved: &mut [i64], limited: &[i64], ledger: &mut Ledger) -> bool {
    let more = |(own, wanted): (&i64, &i64)| wanted.saturating_sub(*own).max(0);
    let growth: Vec<i64> = reserved.iter().zip(limited).map(more).collect();
    let pairs = || growth.iter().zip(&ledger.left);
    if pairs().any(|(growth, left)| growth > left && *growth > 0) {
        return false;
    }
    take(&mut ledger.left, &growth, 1);
    for (own, growth) in reserved.iter_mut().zip(&growth) {
        *own = own.saturating_add(*growth);
    }
    true
}
