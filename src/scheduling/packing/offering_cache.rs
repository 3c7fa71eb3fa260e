//! Caches the compatible offerings of pods, per pool and domain, with their prices.

use std::collections::BTreeMap;

use crate::scheduling::index::{
    DomainIndex, IndexVec, KindIndex, RequirementsIndex, RowIndex, TemplateIndex,
};
use crate::scheduling::packing::context::{OfferingQuery, PackingContext};
use crate::scheduling::packing::launch_options::{Ledger, Ledgers};
use crate::scheduling::problem::resource_vector::{copies_that_fit, fits};
use crate::scheduling::supply::compatible::CompatibleOfferings;

/// Compatible offerings of all pools, computed on demand.
#[derive(Clone)]
pub(crate) struct OfferingCache<'g, 'p, 'a> {
    context: &'g PackingContext<'p, 'a>,
    /// Compatible offerings to which item groups refer.
    pub(crate) rows: IndexVec<RowIndex, CompatibleOfferings>,
    known_rows: BTreeMap<CompatibleOfferings, RowIndex>,
    /// Indices of compatible offerings, by query, template and alternative.
    row_of: BTreeMap<(OfferingQuery, TemplateIndex, usize), Option<RowIndex>>,
    /// Domains with compatible offerings.
    reach: BTreeMap<(RequirementsIndex, bool), Vec<DomainIndex>>,
    /// Lowest price for a demand, valid while the limits are unchanged.
    prices: BTreeMap<(OfferingQuery, &'p [i64]), Option<f64>>,
    /// The remaining limits for which these prices are valid.
    priced: Option<Ledgers>,
}

impl<'g, 'p, 'a> OfferingCache<'g, 'p, 'a> {
    /// Creates an empty cache.
    pub(crate) fn new(context: &'g PackingContext<'p, 'a>) -> Self {
        Self {
            context,
            rows: IndexVec::default(),
            known_rows: BTreeMap::new(),
            row_of: BTreeMap::new(),
            reach: BTreeMap::new(),
            prices: BTreeMap::new(),
            priced: None,
        }
    }

    /// Returns the domains with compatible offerings of any pool.
    pub(crate) fn domains_with_offerings(
        &mut self,
        wants: RequirementsIndex,
        relaxed: bool,
    ) -> Vec<DomainIndex> {
        if let Some(known) = self.reach.get(&(wants, relaxed)) {
            return known.clone();
        }
        let mut cells = Vec::new();
        for cell in self.context.cells.all.keys() {
            let query = OfferingQuery { wants, relaxed, cell: Some(cell) };
            if self.context.templates.keys().any(|template| self.has_offering(template, query)) {
                cells.push(cell);
            }
        }
        self.reach.insert((wants, relaxed), cells.clone());
        cells
    }

    /// Returns whether a pool has compatible offerings for any alternative.
    pub(crate) fn has_offering(&mut self, template: TemplateIndex, query: OfferingQuery) -> bool {
        let mut alternatives = 0..self.context.problem.wants[query.wants].alternatives.len();
        alternatives.any(|alternative| self.row_for(template, alternative, query).is_some())
    }

    /// Returns the compatible offerings of an alternative in a pool, or `None` if there are none.
    pub(crate) fn row_for(
        &mut self,
        template: TemplateIndex,
        alternative: usize,
        query: OfferingQuery,
    ) -> Option<RowIndex> {
        let key = (query, template, alternative);
        if let Some(known) = self.row_of.get(&key) {
            return *known;
        }
        let row = self.make_row(template, alternative, query);
        let row = row.map(|row| self.add_row(row));
        self.row_of.insert(key, row);
        row
    }

    /// Returns these compatible offerings without the types on which no pod of this kind can run.
    pub(crate) fn row_of_kind(
        &mut self,
        kind: KindIndex,
        template: TemplateIndex,
        alternative: usize,
        query: OfferingQuery,
    ) -> Option<RowIndex> {
        let row = self.row_for(template, alternative, query)?;
        let hosts = self.context.hosts;
        if !hosts.depends_on_type(kind) {
            return Some(row);
        }
        let mut offerings = self.rows[row].clone();
        for (shape, mask) in offerings.masks.iter_mut_enumerated() {
            if !hosts.is_feasible(kind, template, shape) {
                *mask = 0;
            }
        }
        let any = offerings.masks.iter().any(|mask| *mask != 0);
        any.then(|| self.add_row(offerings))
    }

    /// Returns the index of compatible offerings, and adds them if necessary.
    pub(crate) fn add_row(&mut self, row: CompatibleOfferings) -> RowIndex {
        let rows = &mut self.rows;
        *self.known_rows.entry(row).or_insert_with_key(|row| rows.push_and_get_key(row.clone()))
    }

    fn make_row(
        &self,
        template: TemplateIndex,
        alternative: usize,
        query: OfferingQuery,
    ) -> Option<CompatibleOfferings> {
        let (problem, cells) = (self.context.problem, self.context.cells);
        let requirements = &problem.wants[query.wants];
        let wanted = requirements.alternatives.get(alternative)?;
        let node_template = &self.context.templates[template];
        if let Some(cell) = query.cell {
            cells.offering_masks(template, cell)?;
        }
        let labels = node_template.admitted_labels(requirements, wanted, query.relaxed).ok()?;
        let row = node_template.compatible_offerings(requirements, &problem.agents, &labels);
        match query.cell {
            Some(cell) => cells.restrict_to_domain(template, cell, &row, &labels),
            None => row.masks.iter().any(|mask| *mask != 0).then_some(row),
        }
    }

    /// Sets the remaining limits. Prices depend on these limits and on no other changing state.
    pub(crate) fn set_limits(&mut self, ledgers: &Ledgers) {
        if self.priced.as_ref() != Some(ledgers) {
            self.prices.clear();
            self.priced = Some(ledgers.clone());
        }
    }

    /// Returns the lowest price of a node for such a pod, or `None`.
    pub(crate) fn lowest_price(
        &mut self,
        query: OfferingQuery,
        demand: &'p [i64],
        ledgers: &Ledgers,
    ) -> Option<f64> {
        if let Some(known) = self.prices.get(&(query, demand)) {
            return *known;
        }
        let price = self
            .context
            .templates
            .keys()
            .filter_map(|template| {
                self.lowest_cost_per_pod(template, query, demand, 1, &ledgers.ledger_for(template))
            })
            .min_by(f64::total_cmp);
        self.prices.insert((query, demand), price);
        price
    }

    /// Returns the lowest cost per pod for a number of such pods in one pool, or `None`.
    pub(crate) fn lowest_cost_per_pod(
        &mut self,
        template: TemplateIndex,
        query: OfferingQuery,
        demand: &[i64],
        pods: u64,
        ledger: &Ledger,
    ) -> Option<f64> {
        let mut least: [Option<f64>; 2] = [None, None];
        let node_template = &self.context.templates[template];
        for alternative in 0..self.context.problem.wants[query.wants].alternatives.len() {
            let Some(row) = self.row_for(template, alternative, query) else {
                continue;
            };
            if !fits(&node_template.most, demand) {
                continue;
            }
            let masks = &self.rows[row].masks;
            for at in &node_template.by_least {
                let shape = &node_template.shapes[*at];
                // The lowest cost per pod of a type is the price of its cheapest offering, divided
                // by the highest number of pods.
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                if least[0].is_some_and(|price| {
                    shape.lowest_price(u64::MAX).map(|price| price / pods.max(1) as f64)
                        >= Some(price)
                }) {
                    break;
                }
                let Some(net) = shape.net.as_deref().filter(|net| fits(net, demand)) else {
                    continue;
                };
                let Some(price) = shape.lowest_price(masks[*at]) else {
                    continue;
                };
                let together = copies_that_fit(net, demand).min(pods);
                let copies = ledger.allowed_copies(&shape.limited);
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let each = price / together.max(1) as f64;
                // A reservation that does not cover all pods is used only if nothing else fits.
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
