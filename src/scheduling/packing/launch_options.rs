//! What may be launched for a claim: which types fit, by price, within what the limits leave.
//! It must not know how its pods were brought together.

use crate::model::cluster::Scheduling;
use crate::model::instance::{OfferingKey, Price};
use crate::scheduling::packing::fill_bin::{ItemCount, ItemGroup};
use crate::scheduling::problem::resource_vector::{fits, take, times};
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::limits::{Limit, LimitScope, shared};
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::state::snapshot::{Snapshot, Usage};

/// What the limits on a pool's nodes leave, in the order of its shelf's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    left: Vec<i64>,
}

impl Ledger {
    fn new<'l>(limits: impl Iterator<Item = Limit<'l>>, used: &Usage) -> Self {
        let left = |own: Limit<'_>| {
            let taken = own.taken(&used.capacity, used.nodes);
            own.share.saturating_sub(taken)
        };
        Self {
            left: limits.map(left).collect(),
        }
    }

    /// The same without limits.
    pub(crate) fn unlimited(&self) -> Self {
        Self {
            left: vec![i64::MAX; self.left.len()],
        }
    }

    /// What the limit at this place leaves; below zero where it is exceeded.
    pub(crate) fn left(&self, limit: usize) -> i64 {
        self.left[limit]
    }

    /// How many nodes of this capacity are allowed. None where a limit is exceeded already.
    pub(crate) fn copies(&self, limited: &[i64]) -> u64 {
        if self.left.iter().any(|left| *left < 0) {
            return 0;
        }
        times(&self.left, limited)
    }

    /// The first limit, by its place, that leaves no room for this capacity.
    pub(crate) fn shortage(&self, limited: &[i64]) -> Option<(usize, i64)> {
        let pairs = self.left.iter().zip(limited).enumerate();
        let mut short = pairs.filter(|(_, (left, wanted))| *wanted > *left || **left < 0);
        short.next().map(|(at, (left, _))| (at, *left))
    }

    /// Takes so many nodes out of what is left. They must be allowed.
    pub(crate) fn reserve(&mut self, limited: &[i64], count: u64) {
        assert!(count <= self.copies(limited), "limits are never exceeded");
        take(&mut self.left, limited, count);
    }

    /// Gives one node back.
    pub(crate) fn release(&mut self, limited: &[i64]) {
        for (left, amount) in self.left.iter_mut().zip(limited) {
            *left = left.saturating_add(*amount);
        }
    }
}

/// What all limits leave: those of each shelf's pool, and those that all of them share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledgers {
    own: Vec<Ledger>,
    shared: Ledger,
}

impl Ledgers {
    /// What is left of what the cluster uses now.
    pub(crate) fn new(shelves: &[NodeTemplate<'_>], snapshot: &Snapshot<'_>) -> Self {
        let mut all = Usage::default();
        for used in snapshot.usage.values() {
            all.capacity.add(&used.capacity);
            all.nodes = all.nodes.saturating_add(used.nodes);
        }
        let own = |shelf: &NodeTemplate<'_>| {
            let limits = shelf.limits.iter().copied();
            let own = limits.filter(|limit| limit.scope == LimitScope::Pool);
            let used = snapshot.usage.get(&shelf.pool.name);
            Ledger::new(own, used.unwrap_or(&Usage::default()))
        };
        Self {
            own: shelves.iter().map(own).collect(),
            shared: Ledger::new(shared(snapshot), &all),
        }
    }

    /// What is left to one shelf.
    pub(crate) fn of(&self, shelf: usize) -> Ledger {
        let own = self.own[shelf].left.iter();
        Ledger {
            left: own.chain(&self.shared.left).copied().collect(),
        }
    }

    /// What is left to one shelf has become this; no other was changed in between.
    pub(crate) fn put(&mut self, shelf: usize, mut ledger: Ledger) {
        self.shared.left = ledger.left.split_off(self.own[shelf].left.len());
        self.own[shelf] = ledger;
    }

    /// Gives one node of a shelf back.
    pub(crate) fn release(&mut self, shelf: usize, limited: &[i64]) {
        let mut ledger = self.of(shelf);
        ledger.release(limited);
        self.put(shelf, ledger);
    }
}

/// What the pods of a claim ask for together.
pub(crate) fn sum(lots: &[ItemGroup<'_>], parts: &[ItemCount]) -> Vec<i64> {
    let mut sum = Vec::new();
    for (lot, count) in parts {
        let demand = lots[*lot].demand;
        sum.resize(demand.len(), 0i64);
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        for (sum, amount) in sum.iter_mut().zip(demand) {
            *sum = sum.saturating_add(amount.saturating_mul(count));
        }
    }
    sum
}

/// The offers of a shape that pods of all these rows may have, if it has room for their sum.
pub(crate) fn fitting(
    shelf: &NodeTemplate<'_>,
    shape: usize,
    rows: &[&CompatibleOfferings],
    sum: &[i64],
) -> u64 {
    let mask = rows
        .iter()
        .fold(u64::MAX, |all, row| all & row.masks[shape]);
    let own = &shelf.shapes[shape];
    // Nobody asks anything where there are no rows; then all that is offered will do.
    let sold = own.price(mask).is_some();
    if sold && own.net.as_deref().is_some_and(|net| fits(net, sum)) {
        mask
    } else {
        0
    }
}

/// The cheapest shape for pods of all these rows, with its price; ties go to the first name. None
/// where the types that would do lack variety; what is reserved needs none.
pub(crate) fn cheapest(
    (shelf, variety): (&NodeTemplate<'_>, &MinValues<'_>),
    rows: &[&CompatibleOfferings],
    sum: &[i64],
    ledger: &Ledger,
) -> Option<(usize, f64)> {
    let mut best: [Option<(usize, f64)>; 2] = [None, None];
    for at in shelf.by_least_for(sum) {
        let shape = &shelf.shapes[*at];
        let least = shape.price(u64::MAX);
        // All that follow cost as much as this or more.
        let settled = |own: &Option<(usize, f64)>| own.is_some_and(|own| Some(own.1) < least);
        if settled(&best[0]) && (shelf.reservations.is_empty() || settled(&best[1])) {
            break;
        }
        // Many are too small.
        if !shape.net.as_deref().is_some_and(|net| fits(net, sum)) {
            continue;
        }
        let mask = rows.iter().fold(u64::MAX, |all, row| all & row.masks[*at]);
        let Some(price) = shape.price(mask) else {
            continue;
        };
        let best = &mut best[usize::from(shape.reservation.is_some())];
        let better = best.is_none_or(|(known, least)| (price, *at) < (least, known));
        if better && ledger.copies(&shape.limited) > 0 {
            *best = Some((*at, price));
        }
    }
    let would_do = |at: &usize| {
        let shape = &shelf.shapes[*at];
        shape.reservation.is_none()
            && fitting(shelf, *at, rows, sum) != 0
            && ledger.copies(&shape.limited) > 0
    };
    let [bought, reserved] = best;
    let agents = |at: usize| &shelf.shapes[at].crew.agents;
    // It may be launched only as what carries the same daemons.
    let varied = |planned: usize| {
        let all = (0..shelf.shapes.len()).filter(|at| agents(*at) == agents(planned));
        variety.is_empty() || variety.has(shelf, all.filter(would_do))
    };
    let otherwise = |first: usize| {
        let others = shelf.by_least.iter().copied();
        let others =
            others.filter(|at| agents(*at) != agents(first) && would_do(at) && varied(*at));
        let priced = others.filter_map(|at| {
            let mask = fitting(shelf, at, rows, sum);
            Some((at, shelf.shapes[at].price(mask)?))
        });
        priced.min_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(&other.0)))
    };
    let cheaper = |own: &(usize, f64)| reserved.is_none_or(|(_, price)| own.1 < price);
    let bought = match bought {
        Some((first, _)) if !varied(first) => otherwise(first),
        bought => bought,
    };
    bought.filter(cheaper).or(reserved)
}

/// What is known of the types of a shelf for one claim, kept from claim to claim for its room.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    claim: u64,
    /// The offers of each type that would do, and the claim that was asked for.
    masks: Vec<(u64, u64)>,
}

impl Scratch {
    fn mask(&mut self, at: usize, make: impl FnOnce() -> u64) -> u64 {
        let own = &mut self.masks[at];
        if own.0 != self.claim {
            *own = (self.claim, make());
        }
        own.1
    }
}

/// Everything that may be launched for a claim that is planned as `planned`, cheapest first, and
/// the types that are in it. What the planned type does not take of the limits is taken from the
/// ledger, so that no choice among the offerings exceeds them.
///
/// A claim that is planned into a reservation may be launched there and nowhere else, and any other
/// claim in no reservation at all: each holds one of exactly what it was counted against. One that
/// is refused is planned again with its pods, and then falls to what is next in price.
pub(crate) fn offerings(
    (shelf, variety): (&NodeTemplate<'_>, &MinValues<'_>),
    (planned, price): (usize, f64),
    rows: &[&CompatibleOfferings],
    (sum, scheduling): (&[i64], &Scheduling),
    (ledger, scratch): (&mut Ledger, &mut Scratch),
) -> (Vec<(OfferingKey, Price)>, Vec<usize>) {
    let most = usize::try_from(scheduling.alternatives)
        .unwrap_or(usize::MAX)
        .max(1);
    let ratio = f64::from(scheduling.alternative_price_percent) / 100.0;
    if shelf.shapes[planned].reservation.is_some() {
        return (all_of(shelf, planned, rows, sum), vec![planned]);
    }
    let mut reserved = shelf.shapes[planned].limited.clone();
    scratch.claim += 1;
    scratch
        .masks
        .resize(scratch.masks.len().max(shelf.shapes.len()), (0, 0));
    // Nothing cheaper than what is planned would do, but what limits forbade then.
    let price_of = |(at, bit): &(usize, usize)| shelf.shapes[*at].offers[*bit].price.usd_per_h();
    let unlimited = shelf.limits.iter().all(|own| own.is_free_of_size());
    let first = shelf
        .by_price
        .partition_point(|own| unlimited && price_of(own) < price);
    let offers = &shelf.by_price[first..];
    // Whom the daemons of the planned type keep away or draw is where it is for their sake.
    let agents = &shelf.shapes[planned].crew.agents;
    let is_other = |at: usize| {
        let shape = &shelf.shapes[at];
        shape.reservation.is_some() || shape.crew.agents != *agents
    };
    // Those that make for variety come first, whatever they cost.
    let mut kept: Vec<usize> = Vec::new();
    let mut seen = variety.start();
    for (place, (at, bit)) in offers.iter().enumerate() {
        if variety.is_enough(&seen) {
            break;
        }
        let mask = scratch.mask(*at, || fitting(shelf, *at, rows, sum));
        let limited = &shelf.shapes[*at].capacity;
        if mask >> bit & 1 == 1
            && !is_other(*at)
            && variety.see(shelf, *at, &mut seen)
            && grow(&mut reserved, limited, ledger)
        {
            kept.push(place);
        }
    }
    let varied = kept.len();
    let mut price_max = f64::INFINITY;
    for (place, (at, bit)) in offers.iter().enumerate() {
        let price = price_of(&(*at, *bit));
        if kept.len() >= most || price > price_max {
            break;
        }
        let mask = scratch.mask(*at, || fitting(shelf, *at, rows, sum));
        let limited = &shelf.shapes[*at].capacity;
        if mask >> bit & 1 == 0
            || is_other(*at)
            || kept[..varied].contains(&place)
            || !grow(&mut reserved, limited, ledger)
        {
            continue;
        }
        if price > 0.0 && price_max.is_infinite() {
            price_max = ratio.max(1.0) * price;
        }
        kept.push(place);
    }
    kept.sort_unstable();
    let mut types: Vec<usize> = kept.iter().map(|place| offers[*place].0).collect();
    types.sort_unstable();
    types.dedup();
    let key = |place: usize| {
        let (at, bit) = offers[place];
        let offer = shelf.shapes[at].offers[bit];
        (shelf.shapes[at].key(offer), offer.price)
    };
    (kept.into_iter().map(key).collect(), types)
}

/// All offers of a type that would do.
fn all_of(
    shelf: &NodeTemplate<'_>,
    shape: usize,
    rows: &[&CompatibleOfferings],
    sum: &[i64],
) -> Vec<(OfferingKey, Price)> {
    let mask = fitting(shelf, shape, rows, sum);
    let own = &shelf.shapes[shape];
    let offers = own.offers.iter().enumerate();
    let offers = offers.filter(|(bit, _)| mask >> bit & 1 == 1);
    let named = offers.map(|(_, offer)| (own.key(offer), offer.price));
    named.collect()
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
