//! Caches the compatible offerings of pods, per pool and domain, with their prices.

use std::collections::BTreeMap;

use crate::scheduling::packing::context::PackingContext;
use crate::scheduling::packing::launch_options::{Ledger, Ledgers};
use crate::scheduling::problem::resource_vector::{fits, times};
use crate::scheduling::supply::compatible::CompatibleOfferings;

/// Node requirements, template, alternative, whether `PreferNoSchedule` is relaxed, and domain.
pub(crate) type RowKey = (usize, usize, usize, bool, Option<usize>);

/// Node requirements, whether `PreferNoSchedule` is relaxed, and domain.
pub(crate) type OfferingQuery = (usize, bool, Option<usize>);

/// Compatible offerings of all pools, computed on demand.
#[derive(Clone)]
pub(crate) struct OfferingCache<'g, 'p, 'a> {
    ground: &'g PackingContext<'p, 'a>,
    /// Rows that item groups refer to.
    pub(crate) rows: Vec<CompatibleOfferings>,
    known_rows: BTreeMap<CompatibleOfferings, usize>,
    row_of: BTreeMap<RowKey, Option<usize>>,
    /// Domains with compatible offerings.
    reach: BTreeMap<(usize, bool), Vec<usize>>,
    /// Lowest price for a demand, with unchanged limits.
    prices: BTreeMap<(OfferingQuery, &'p [i64]), Option<f64>>,
    /// The remaining limits for which these prices are valid.
    priced: Option<Ledgers>,
}

impl<'g, 'p, 'a> OfferingCache<'g, 'p, 'a> {
    /// Creates an empty cache.
    pub(crate) fn new(ground: &'g PackingContext<'p, 'a>) -> Self {
        Self {
            ground,
            rows: Vec::new(),
            known_rows: BTreeMap::new(),
            row_of: BTreeMap::new(),
            reach: BTreeMap::new(),
            prices: BTreeMap::new(),
            priced: None,
        }
    }

    /// Returns the domains with compatible offerings of any pool.
    pub(crate) fn reach(&mut self, wants: usize, relaxed: bool) -> Vec<usize> {
        if let Some(known) = self.reach.get(&(wants, relaxed)) {
            return known.clone();
        }
        let mut own = Vec::new();
        for cell in 0..self.ground.cells.all.len() {
            let mut all = 0..self.ground.templates.len();
            if all.any(|template| self.sells(template, (wants, relaxed, Some(cell)))) {
                own.push(cell);
            }
        }
        self.reach.insert((wants, relaxed), own.clone());
        own
    }

    /// Returns whether a pool has compatible offerings for any alternative.
    pub(crate) fn sells(&mut self, template: usize, (wants, relaxed, cell): OfferingQuery) -> bool {
        let mut all = 0..self.ground.problem.wants[wants].alternatives.len();
        all.any(|alternative| {
            self.row((wants, template, alternative, relaxed, cell))
                .is_some()
        })
    }

    /// Returns the row of a key, or `None` without compatible offerings.
    pub(crate) fn row(&mut self, key: RowKey) -> Option<usize> {
        if let Some(known) = self.row_of.get(&key) {
            return *known;
        }
        let row = self.make_row(key).map(|row| self.add(row));
        self.row_of.insert(key, row);
        row
    }

    /// Returns the row without types whose hosts cannot take a pod of this kind.
    pub(crate) fn row_of_kind(&mut self, kind: usize, key: RowKey) -> Option<usize> {
        let row = self.row(key)?;
        let hosts = self.ground.hosts;
        if !hosts.is_choosy(kind) {
            return Some(row);
        }
        let mut own = self.rows[row].clone();
        for (shape, mask) in own.masks.iter_mut().enumerate() {
            if !hosts.is_roomy(kind, key.1, shape) {
                *mask = 0;
            }
        }
        let any = own.masks.iter().any(|mask| *mask != 0);
        any.then(|| self.add(own))
    }

    /// Returns the index of a row, and adds it if necessary.
    pub(crate) fn add(&mut self, row: CompatibleOfferings) -> usize {
        let rows = &mut self.rows;
        *self.known_rows.entry(row).or_insert_with_key(|row| {
            rows.push(row.clone());
            rows.len() - 1
        })
    }

    fn make_row(
        &self,
        (wants, template, alternative, relaxed, cell): RowKey,
    ) -> Option<CompatibleOfferings> {
        let own = &self.ground.problem.wants[wants];
        let wanted = own.alternatives.get(alternative)?;
        let of = &self.ground.templates[template];
        if cell.is_some_and(|cell| !self.ground.cells.sells(template, cell)) {
            return None;
        }
        let labels = of.admit(own, wanted, relaxed).ok()?;
        let row = of.row(own, &self.ground.problem.agents, &labels);
        match cell {
            Some(cell) => self.ground.cells.narrow((template, cell), &row, &labels),
            None => row.masks.iter().any(|mask| *mask != 0).then_some(row),
        }
    }

    /// Sets the remaining limits. Prices depend on them and on no other changing state.
    pub(crate) fn set_limits(&mut self, ledgers: &Ledgers) {
        if self.priced.as_ref() != Some(ledgers) {
            self.prices.clear();
            self.priced = Some(ledgers.clone());
        }
    }

    /// Returns the lowest price of a node for such a pod, or `None`.
    pub(crate) fn price(
        &mut self,
        wanted: OfferingQuery,
        demand: &'p [i64],
        ledgers: &Ledgers,
    ) -> Option<f64> {
        if let Some(known) = self.prices.get(&(wanted, demand)) {
            return *known;
        }
        let templates = 0..self.ground.templates.len();
        let prices = templates.filter_map(|template| {
            self.least(template, wanted, (demand, 1), &ledgers.of(template))
        });
        let price = prices.min_by(f64::total_cmp);
        self.prices.insert((wanted, demand), price);
        price
    }

    /// Returns the lowest cost per pod for a number of such pods in one pool, or `None`.
    pub(crate) fn least(
        &mut self,
        template: usize,
        (wants, relaxed, cell): OfferingQuery,
        (demand, pods): (&[i64], u64),
        ledger: &Ledger,
    ) -> Option<f64> {
        let mut least: [Option<f64>; 2] = [None, None];
        let of = &self.ground.templates[template];
        for alternative in 0..self.ground.problem.wants[wants].alternatives.len() {
            let Some(row) = self.row((wants, template, alternative, relaxed, cell)) else {
                continue;
            };
            if !fits(&of.most, demand) {
                continue;
            }
            let masks = &self.rows[row].masks;
            for at in &of.by_least {
                let shape = &of.shapes[*at];
                // The lowest cost per pod of a type is its cheapest offering divided by the most
                // pods.
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                if least[0].is_some_and(|own| {
                    shape
                        .price(u64::MAX)
                        .map(|price| price / pods.max(1) as f64)
                        >= Some(own)
                }) {
                    break;
                }
                let Some(net) = shape.net.as_deref().filter(|net| fits(net, demand)) else {
                    continue;
                };
                let Some(price) = shape.price(masks[*at]) else {
                    continue;
                };
                let together = times(net, demand).min(pods);
                let copies = ledger.copies(&shape.limited);
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let each = price / together.max(1) as f64;
                // Reservations are almost free for some pods and no measure for others.
                let covers = shape.reservation.is_none() || copies.saturating_mul(together) >= pods;
                let least = &mut least[usize::from(!covers)];
                if least.is_none_or(|least| each < least) && together > 0 && copies > 0 {
                    *least = Some(each);
                }
            }
        }
        let [for_all, for_some] = least;
        for_all.or(for_some)
    }
}
