//! Selects the offerings of a claim: types that fit, ordered by price, within the limits.

use crate::model::cluster::Scheduling;
use crate::model::instance::{OfferingKey, Price};
use crate::scheduling::index::{IndexVec, TemplateIndex, TypeIndex};
use crate::scheduling::packing::fill_bin::{ItemCount, ItemGroups};
use crate::scheduling::problem::resource_vector::{add_demand, copies_that_fit, subtract_demand};
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::limits::{Limit, LimitScope, shared_limits};
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::state::snapshot::{Snapshot, Usage};

/// Remaining limits of the nodes of a pool, in the order of the limits in its template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    left: Vec<i64>,
}

impl Ledger {
    fn new<'l>(limits: impl Iterator<Item = Limit<'l>>, used: &Usage) -> Self {
        Self {
            left: limits
                .map(|limit| {
                    let taken = limit.usage_of(&used.capacity, used.nodes);
                    limit.share.saturating_sub(taken)
                })
                .collect(),
        }
    }

    /// Returns the same ledger, but without limits.
    pub(crate) fn without_limits(&self) -> Self {
        Self { left: vec![i64::MAX; self.left.len()] }
    }

    /// Returns the remainder of a limit; negative if exceeded.
    pub(crate) fn remaining_of(&self, limit: usize) -> i64 {
        self.left[limit]
    }

    /// Returns how many nodes of this capacity are allowed; zero if a limit is exceeded.
    pub(crate) fn allowed_copies(&self, limited: &[i64]) -> u64 {
        if self.left.iter().any(|left| *left < 0) {
            return 0;
        }
        copies_that_fit(&self.left, limited)
    }

    /// Returns the first limit that rejects this capacity, and what remains of this limit.
    pub(crate) fn first_shortage(&self, limited: &[i64]) -> Option<(usize, i64)> {
        let pairs = self.left.iter().zip(limited).enumerate();
        let mut short = pairs.filter(|(_, (left, wanted))| *wanted > *left || **left < 0);
        short.next().map(|(at, (left, _))| (at, *left))
    }

    /// Subtracts nodes, which must be allowed.
    pub(crate) fn reserve(&mut self, limited: &[i64], count: u64) {
        assert!(count <= self.allowed_copies(limited), "limits are never exceeded");
        subtract_demand(&mut self.left, limited, count);
    }

    /// Releases the usage of one node.
    pub(crate) fn release(&mut self, limited: &[i64]) {
        add_demand(&mut self.left, limited, 1);
    }
}

/// Remaining limits: of each pool, and shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledgers {
    by_pool: IndexVec<TemplateIndex, Ledger>,
    shared: Ledger,
}

impl Ledgers {
    /// Computes the limits minus current usage.
    pub(crate) fn new(templates: &[NodeTemplate<'_>], snapshot: &Snapshot<'_>) -> Self {
        let mut total = Usage::default();
        for used in snapshot.usage.values() {
            total.capacity.add(&used.capacity);
            total.nodes = total.nodes.saturating_add(used.nodes);
        }
        Self {
            by_pool: templates
                .iter()
                .map(|template| {
                    let limits = template.limits.iter().copied();
                    let of_pool = limits.filter(|limit| limit.scope == LimitScope::Pool);
                    let used = snapshot.usage.get(&template.pool.name);
                    Ledger::new(of_pool, used.unwrap_or(&Usage::default()))
                })
                .collect(),
            shared: Ledger::new(shared_limits(snapshot), &total),
        }
    }

    /// Returns the remaining limits of one template.
    pub(crate) fn ledger_for(&self, template: TemplateIndex) -> Ledger {
        let of_pool = self.by_pool[template].left.iter();
        Ledger { left: of_pool.chain(&self.shared.left).copied().collect() }
    }

    /// Updates the remaining limits after changes by one template.
    pub(crate) fn set_ledger(&mut self, template: TemplateIndex, mut ledger: Ledger) {
        self.shared.left = ledger.left.split_off(self.by_pool[template].left.len());
        self.by_pool[template] = ledger;
    }

    /// Releases one node of a template.
    pub(crate) fn release(&mut self, template: TemplateIndex, limited: &[i64]) {
        let mut ledger = self.ledger_for(template);
        ledger.release(limited);
        self.set_ledger(template, ledger);
    }
}

/// Returns the total requests of a claim.
pub(crate) fn total_requests(lots: &ItemGroups<'_>, parts: &[ItemCount]) -> Vec<i64> {
    let mut sum = Vec::new();
    for (lot, count) in parts {
        let demand = lots[*lot].demand;
        sum.resize(demand.len(), 0i64);
        add_demand(&mut sum, demand, *count);
    }
    sum
}

/// Returns the offerings of a type that all these sets of compatible offerings contain.
fn mask_of(rows: &[&CompatibleOfferings], shape: TypeIndex) -> u64 {
    rows.iter().fold(u64::MAX, |all, row| all & row.masks[shape])
}

/// Returns the offerings of a type that all these sets contain, if the type fits the total
/// requests.
pub(crate) fn fitting_offerings(
    template: &NodeTemplate<'_>,
    shape: TypeIndex,
    rows: &[&CompatibleOfferings],
    sum: &[i64],
) -> u64 {
    let mask = mask_of(rows, shape);
    let option = &template.shapes[shape];
    // Without pods there are no requirements, and all offerings match.
    let is_sold = option.lowest_price(mask).is_some();
    if is_sold && option.can_hold(sum) { mask } else { 0 }
}

/// Reusable buffer for the types of a template.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    claim: u64,
    /// Matching offerings of each type, and the claim for which they were computed.
    masks: IndexVec<TypeIndex, (u64, u64)>,
}

impl Scratch {
    /// Starts the next claim of a template with a number of types.
    fn next_claim(&mut self, types: usize) {
        self.claim += 1;
        let len = self.masks.len().max(types);
        self.masks.resize(len, (0, 0));
    }

    fn mask_for(&mut self, at: TypeIndex, make: impl FnOnce() -> u64) -> u64 {
        let known = &mut self.masks[at];
        if known.0 != self.claim {
            *known = (self.claim, make());
        }
        known.1
    }
}

/// A pool, and the pods for which a node is to be launched in the pool.
#[derive(Clone, Copy)]
pub(crate) struct LaunchQuery<'q> {
    template: &'q NodeTemplate<'q>,
    variety: &'q MinValues<'q>,
    rows: &'q [&'q CompatibleOfferings],
    sum: &'q [i64],
}

impl<'q> LaunchQuery<'q> {
    /// Creates a query for pods with these offerings and total requests.
    pub(crate) fn new(
        template: &'q NodeTemplate<'q>,
        variety: &'q MinValues<'q>,
        rows: &'q [&'q CompatibleOfferings],
        sum: &'q [i64],
    ) -> Self {
        Self { template, variety, rows, sum }
    }

    /// Returns the cheapest type for all pods with its price; types with the same price are ordered
    /// by name. `None` if `min_values` cannot be satisfied; reservations need not satisfy them.
    pub(crate) fn cheapest_type(&self, ledger: &Ledger) -> Option<(TypeIndex, f64)> {
        let mut best: [Option<(TypeIndex, f64)>; 2] = [None, None];
        let kinds = 1 + usize::from(!self.template.reservations.is_empty());
        for at in self.template.types_by_price_for(self.sum) {
            let shape = &self.template.shapes[*at];
            let least = shape.lowest_price(u64::MAX);
            // All following types cost at least as much.
            let mut known = best[..kinds].iter();
            if known.all(|best| best.is_some_and(|(_, price)| Some(price) < least)) {
                break;
            }
            // Many types are too small.
            if !shape.can_hold(self.sum) {
                continue;
            }
            let Some(price) = shape.lowest_price(mask_of(self.rows, *at)) else {
                continue;
            };
            let best = &mut best[usize::from(shape.reservation.is_some())];
            let better = best.is_none_or(|(known, least)| (price, *at) < (least, known));
            if better && ledger.allowed_copies(&shape.limited) > 0 {
                *best = Some((*at, price));
            }
        }
        let [bought, reserved] = best;
        let bought = match bought {
            Some((first, _)) if !self.is_varied(first, ledger) => {
                self.cheapest_with_other_daemons(first, ledger)
            }
            bought => bought,
        };
        bought
            .filter(|(_, price)| reserved.is_none_or(|(_, reserved)| *price < reserved))
            .or(reserved)
    }

    /// Returns the cheapest type that satisfies `min_values` and has other DaemonSets than this
    /// type.
    fn cheapest_with_other_daemons(
        &self,
        first: TypeIndex,
        ledger: &Ledger,
    ) -> Option<(TypeIndex, f64)> {
        let shapes = &self.template.shapes;
        let others = self.template.by_least.iter().copied().filter(|at| {
            shapes[*at].overhead.agents != shapes[first].overhead.agents
                && self.is_launchable(*at, ledger)
                && self.is_varied(*at, ledger)
        });
        let priced = others
            .filter_map(|at| Some((at, shapes[at].lowest_price(self.fitting_offerings(at))?)));
        priced.min_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(&other.0)))
    }

    /// Returns whether the types that have the same DaemonSets as this type satisfy `min_values`. A
    /// claim may only be launched with the DaemonSets of its planned type.
    fn is_varied(&self, planned: TypeIndex, ledger: &Ledger) -> bool {
        let shapes = &self.template.shapes;
        let alike = shapes.keys().filter(|at| {
            shapes[*at].overhead.agents == shapes[planned].overhead.agents
                && self.is_launchable(*at, ledger)
        });
        self.variety.are_satisfied_by(self.template, alike)
    }

    /// Returns whether an unreserved type fits the pods and the limits.
    fn is_launchable(&self, at: TypeIndex, ledger: &Ledger) -> bool {
        let shape = &self.template.shapes[at];
        shape.reservation.is_none()
            && self.fitting_offerings(at) != 0
            && ledger.allowed_copies(&shape.limited) > 0
    }

    /// Returns the offerings to consider, by price. Offerings cheaper than the planned type do not
    /// match, except those that limits excluded during planning.
    fn offers_from(&self, price: f64) -> &'q [(TypeIndex, usize)] {
        let template = self.template;
        let unlimited = template.limits.iter().all(|limit| limit.is_independent_of_type());
        let first = template
            .by_price
            .partition_point(|(at, bit)| unlimited && price_of(template, *at, *bit) < price);
        &template.by_price[first..]
    }

    /// Returns all matching offerings of a type.
    fn matching_offerings_of(&self, shape: TypeIndex) -> Vec<(OfferingKey, Price)> {
        let mask = self.fitting_offerings(shape);
        (0..self.template.shapes[shape].offers.len())
            .filter(|offer| mask >> offer & 1 == 1)
            .map(|offer| priced_key(self.template, shape, offer))
            .collect()
    }

    fn fitting_offerings(&self, at: TypeIndex) -> u64 {
        fitting_offerings(self.template, at, self.rows, self.sum)
    }

    /// Returns all offerings of a claim planned as `planned`, cheapest first, and their types. The
    /// ledger reserves the additional limit usage of larger types, so that no choice exceeds the
    /// limits.
    ///
    /// A claim planned in a reservation may only be launched there. Other claims are never launched
    /// in a reservation. Each claim uses exactly the reservation for which it was planned. If the
    /// launch fails, its pods are planned again with the next cheapest option.
    pub(crate) fn launch_options(
        &self,
        planned: TypeIndex,
        price: f64,
        scheduling: &Scheduling,
        ledger: &mut Ledger,
        scratch: &mut Scratch,
    ) -> (Vec<(OfferingKey, Price)>, Vec<TypeIndex>) {
        let (template, variety) = (self.template, self.variety);
        let shape = &template.shapes[planned];
        let most =
            usize::try_from(scheduling.max_launch_options).map_or(usize::MAX, |it| it.max(1));
        let ratio = f64::from(scheduling.alternative_price_percent) / 100.0;
        if shape.reservation.is_some() {
            return (self.matching_offerings_of(planned), vec![planned]);
        }
        let mut reserved = shape.limited.clone();
        scratch.next_claim(template.shapes.len());
        let offers = self.offers_from(price);
        // Types required for `min_values` come first, at any price.
        let mut kept: Vec<usize> = Vec::new();
        let mut seen = variety.new_seen_values();
        for (place, (at, bit)) in offers.iter().enumerate() {
            if variety.is_enough(&seen) {
                break;
            }
            let mask = scratch.mask_for(*at, || self.fitting_offerings(*at));
            let limited = &template.shapes[*at].capacity;
            if mask >> bit & 1 == 1
                && template.shapes[*at].is_interchangeable(shape)
                && variety.add_values(template, *at, &mut seen)
                && reserve_growth(&mut reserved, limited, ledger)
            {
                kept.push(place);
            }
        }
        let varied = kept.len();
        let mut price_max = f64::INFINITY;
        for (place, (at, bit)) in offers.iter().enumerate() {
            let price = price_of(template, *at, *bit);
            if kept.len() >= most || price > price_max {
                break;
            }
            let mask = scratch.mask_for(*at, || self.fitting_offerings(*at));
            let limited = &template.shapes[*at].capacity;
            if mask >> bit & 1 == 0
                || !template.shapes[*at].is_interchangeable(shape)
                || kept[..varied].contains(&place)
                || !reserve_growth(&mut reserved, limited, ledger)
            {
                continue;
            }
            if price > 0.0 && price_max.is_infinite() {
                price_max = ratio.max(1.0) * price;
            }
            kept.push(place);
        }
        kept.sort_unstable();
        let mut types: Vec<TypeIndex> = kept.iter().map(|place| offers[*place].0).collect();
        types.sort_unstable();
        types.dedup();
        let options = kept.into_iter().map(|place| {
            let (shape, offer) = offers[place];
            priced_key(template, shape, offer)
        });
        (options.collect(), types)
    }
}

/// Returns the price of one offering of a type.
fn price_of(template: &NodeTemplate<'_>, shape: TypeIndex, offer: usize) -> f64 {
    template.shapes[shape].offers[offer].price.usd_per_h()
}

/// Returns the key and the price of one offering of a type.
fn priced_key(template: &NodeTemplate<'_>, shape: TypeIndex, offer: usize) -> (OfferingKey, Price) {
    let shape = &template.shapes[shape];
    let offer = shape.offers[offer];
    (shape.offering_key(offer), offer.price)
}

/// Raises the reserved usage to this capacity if the ledger allows it.
fn reserve_growth(reserved: &mut [i64], limited: &[i64], ledger: &mut Ledger) -> bool {
    let growth: Vec<i64> = reserved
        .iter()
        .zip(limited)
        .map(|(reserved, wanted)| wanted.saturating_sub(*reserved).max(0))
        .collect();
    let mut pairs = growth.iter().zip(&ledger.left);
    if pairs.any(|(growth, left)| growth > left && *growth > 0) {
        return false;
    }
    subtract_demand(&mut ledger.left, &growth, 1);
    add_demand(reserved, &growth, 1);
    true
}
