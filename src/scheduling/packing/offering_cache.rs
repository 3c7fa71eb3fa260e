//! What can be had for what pods want, pool by pool and cell by cell, and at what price.
//! It must not know what was packed, beyond what that leaves of the limits.

use std::collections::BTreeMap;

use crate::scheduling::packing::context::PackingContext;
use crate::scheduling::packing::launch_options::{Ledger, Ledgers};
use crate::scheduling::problem::resource_vector::{fits, times};
use crate::scheduling::supply::compatible::CompatibleOfferings;

/// What of a row there is: of whom, from whom, which alternative, with which taints, where.
pub(crate) type RowKey = (usize, usize, usize, bool, Option<usize>);

/// What is wanted, with which taints, where.
pub(crate) type OfferingQuery = (usize, bool, Option<usize>);

/// What is known of all pools so far.
#[derive(Clone)]
pub(crate) struct OfferingCache<'g, 'p, 'a> {
    ground: &'g PackingContext<'p, 'a>,
    /// Rows that lots refer to.
    pub(crate) rows: Vec<CompatibleOfferings>,
    known_rows: BTreeMap<CompatibleOfferings, usize>,
    row_of: BTreeMap<RowKey, Option<usize>>,
    /// Cells where what is wanted can be had.
    reach: BTreeMap<(usize, bool), Vec<usize>>,
    /// What a node costs at least for a demand, while limits stay the same.
    prices: BTreeMap<(OfferingQuery, &'p [i64]), Option<f64>>,
    /// What the limits left when these prices were worked out.
    priced: Option<Ledgers>,
}

impl<'g, 'p, 'a> OfferingCache<'g, 'p, 'a> {
    /// Nothing known.
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

    /// The cells where some pool sells what is wanted.
    pub(crate) fn reach(&mut self, wants: usize, relaxed: bool) -> Vec<usize> {
        if let Some(known) = self.reach.get(&(wants, relaxed)) {
            return known.clone();
        }
        let mut own = Vec::new();
        for cell in 0..self.ground.cells.all.len() {
            let mut all = 0..self.ground.shelves.len();
            if all.any(|shelf| self.sells(shelf, (wants, relaxed, Some(cell)))) {
                own.push(cell);
            }
        }
        self.reach.insert((wants, relaxed), own.clone());
        own
    }

    /// Whether a pool sells what is wanted, in any alternative.
    pub(crate) fn sells(&mut self, shelf: usize, (wants, relaxed, cell): OfferingQuery) -> bool {
        let mut all = 0..self.ground.problem.wants[wants].alternatives.len();
        all.any(|alternative| {
            self.row((wants, shelf, alternative, relaxed, cell))
                .is_some()
        })
    }

    /// The row of a key; none where there is nothing to be had.
    pub(crate) fn row(&mut self, key: RowKey) -> Option<usize> {
        if let Some(known) = self.row_of.get(&key) {
            return *known;
        }
        let row = self.make_row(key).map(|row| self.add(row));
        self.row_of.insert(key, row);
        row
    }

    /// The same less the types whose hosts have no room for a pod of this kind.
    pub(crate) fn row_of_kind(&mut self, kind: usize, key: RowKey) -> Option<usize> {
        let row = self.row(key)?;
        let hosts = self.ground.hosts;
        if !hosts.is_choosy(kind) {
            return Some(row);
        }
        let mut own = self.rows[row].clone();
        for (shape, mask) in own.masks.iter_mut().enumerate() {
            if !hosts.is_roomy(kind, (key.1, shape)) {
                *mask = 0;
            }
        }
        let any = own.masks.iter().any(|mask| *mask != 0);
        any.then(|| self.add(own))
    }

    /// The place of a row, a new one if nobody had it yet.
    pub(crate) fn add(&mut self, row: CompatibleOfferings) -> usize {
        let rows = &mut self.rows;
        *self.known_rows.entry(row).or_insert_with_key(|row| {
            rows.push(row.clone());
            rows.len() - 1
        })
    }

    fn make_row(
        &self,
        (wants, shelf, alternative, relaxed, cell): RowKey,
    ) -> Option<CompatibleOfferings> {
        let own = &self.ground.problem.wants[wants];
        let wanted = own.alternatives.get(alternative)?;
        let of = &self.ground.shelves[shelf];
        if cell.is_some_and(|cell| !self.ground.cells.sells(shelf, cell)) {
            return None;
        }
        let labels = of.admit(own, wanted, relaxed).ok()?;
        let row = of.row((own, &self.ground.problem.agents), &labels);
        match cell {
            Some(cell) => self.ground.cells.narrow((shelf, cell), &row, &labels),
            None => row.masks.iter().any(|mask| *mask != 0).then_some(row),
        }
    }

    /// What the limits leave now. A price depends on that, and on nothing else that changes.
    pub(crate) fn heed(&mut self, ledgers: &Ledgers) {
        if self.priced.as_ref() != Some(ledgers) {
            self.prices.clear();
            self.priced = Some(ledgers.clone());
        }
    }

    /// The least that a node costs for such a pod; none where there is none.
    pub(crate) fn price(
        &mut self,
        wanted: OfferingQuery,
        demand: &'p [i64],
        ledgers: &Ledgers,
    ) -> Option<f64> {
        if let Some(known) = self.prices.get(&(wanted, demand)) {
            return *known;
        }
        let shelves = 0..self.ground.shelves.len();
        let prices =
            shelves.filter_map(|shelf| self.least(shelf, wanted, (demand, 1), &ledgers.of(shelf)));
        let price = prices.min_by(f64::total_cmp);
        self.prices.insert((wanted, demand), price);
        price
    }

    /// The least that each of so many such pods costs in one pool, were there no others; none
    /// where there is nothing for them.
    pub(crate) fn least(
        &mut self,
        shelf: usize,
        (wants, relaxed, cell): OfferingQuery,
        (demand, pods): (&[i64], u64),
        ledger: &Ledger,
    ) -> Option<f64> {
        let mut least: [Option<f64>; 2] = [None, None];
        let of = &self.ground.shelves[shelf];
        for alternative in 0..self.ground.problem.wants[wants].alternatives.len() {
            let Some(row) = self.row((wants, shelf, alternative, relaxed, cell)) else {
                continue;
            };
            if !fits(&of.most, demand) {
                continue;
            }
            let masks = &self.rows[row].masks;
            for at in &of.by_least {
                let shape = &of.shapes[*at];
                // Nothing of a type costs less than its cheapest offer for the most pods.
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let no_less = |price: f64| price / pods.max(1) as f64;
                let settled = |own: f64| shape.price(u64::MAX).map(no_less) >= Some(own);
                if least[0].is_some_and(settled) {
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
                // What is reserved is next to free for some, and says nothing about the others.
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
