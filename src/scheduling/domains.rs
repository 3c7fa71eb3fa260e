//! The places new nodes can be in, by every key that some rule speaks of: a cell is one value of
//! each, such as a zone. Pods whose place matters are dealt out to cells before they are packed.
//! It must not know which pods go where.

/// Distributes pods with topology constraints over the domains.
pub(super) mod distribute;

use std::collections::BTreeMap;

use crate::model::labels::OF_OFFERINGS;
use crate::model::requirement::{Requirement, Requirements};
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption};

/// Cells that are weighed. More come of rules about labels with very many values, such as the type.
const CELLS_MAX: usize = 512;

/// Values of one label that an offer may be given.
const VALUES_MAX: usize = 64;

/// A value for each key, in the order of the keys; none where a node has no such label.
pub(super) type Values = Vec<Option<String>>;

/// All cells, and who sells what in them.
#[derive(Debug, Default)]
pub(super) struct DomainSet {
    /// The keys.
    pub(super) keys: Vec<String>,
    /// The cells, sorted.
    pub(super) all: Vec<Values>,
    /// For each shelf and cell, the offers of each shape that are in it; none where there is none.
    masks: Vec<Vec<Option<Vec<u64>>>>,
    /// How many cells are in the places of each, summed over all keys.
    choices: Vec<usize>,
    /// For each shelf and cell, labels that have to be set for a node to be in it.
    set: Vec<Vec<Vec<(String, Requirement)>>>,
}

impl DomainSet {
    /// The cells of these shelves by these keys.
    pub(super) fn new(keys: Vec<String>, shelves: &[NodeTemplate<'_>]) -> Self {
        let mut cells = Self {
            keys,
            ..Self::default()
        };
        if cells.keys.is_empty() {
            return cells;
        }
        let mut known: BTreeMap<Values, usize> = BTreeMap::new();
        let mut found: Vec<BTreeMap<usize, Vec<u64>>> = Vec::new();
        for shelf in shelves {
            let mut own: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
            for (at, bit) in &shelf.by_price {
                for values in cells.values(shelf, &shelf.shapes[*at], *bit) {
                    let next = known.len();
                    let cell = match known.get(&values) {
                        Some(cell) => *cell,
                        None if next < CELLS_MAX => {
                            known.insert(values, next);
                            next
                        }
                        None => continue,
                    };
                    let masks = own
                        .entry(cell)
                        .or_insert_with(|| vec![0; shelf.shapes.len()]);
                    masks[*at] |= 1 << *bit;
                }
            }
            found.push(own);
        }
        // Ordinals by name, so that they do not depend on prices.
        cells.all = known.keys().cloned().collect();
        let mut shared: Vec<BTreeMap<&Option<String>, usize>> =
            vec![BTreeMap::new(); cells.keys.len()];
        for values in &cells.all {
            for (value, shared) in values.iter().zip(&mut shared) {
                *shared.entry(value).or_insert(0) += 1;
            }
        }
        let choice = |values: &Values| -> usize {
            values
                .iter()
                .zip(&shared)
                .map(|(value, shared)| shared[value])
                .sum()
        };
        cells.choices = cells.all.iter().map(choice).collect();
        for (shelf, mut own) in shelves.iter().zip(found) {
            let masks = known.values().map(|cell| own.remove(cell));
            cells.masks.push(masks.collect());
            let set = known.keys().map(|values| cells.labels(shelf, values));
            cells.set.push(set.collect());
        }
        cells
    }

    /// The values an offer may have, each a cell.
    fn values(&self, shelf: &NodeTemplate<'_>, shape: &TypeOption<'_>, bit: usize) -> Vec<Values> {
        let offer = shape.offers[bit];
        let mut all: Vec<Values> = vec![Vec::new()];
        for key in &self.keys {
            let own: Vec<Option<String>> = match key.as_str() {
                key if OF_OFFERINGS.contains(&key) => vec![offer.label(key).map(str::to_owned)],
                key => of_type(shelf, shape, key),
            };
            let longer = |values: &Values| -> Vec<Values> {
                let with = |value: &Option<String>| {
                    let mut values = values.clone();
                    values.push(value.clone());
                    values
                };
                own.iter().map(with).collect()
            };
            all = all.iter().flat_map(longer).take(CELLS_MAX).collect();
        }
        all
    }

    /// Labels that no offer decides and that make the cell.
    fn labels(&self, shelf: &NodeTemplate<'_>, values: &Values) -> Vec<(String, Requirement)> {
        let several = |(key, value): (&String, &Option<String>)| {
            let value = value.as_ref()?;
            let decided = OF_OFFERINGS.contains(&key.as_str())
                || shelf
                    .side
                    .get(key)
                    .and_then(Requirement::values)
                    .is_some_and(|own| own.len() == 1);
            (!decided).then(|| (key.clone(), Requirement::is_in([value.as_str()])))
        };
        self.keys.iter().zip(values).filter_map(several).collect()
    }

    /// Whether anything is sold by a shelf in a cell.
    pub(super) fn sells(&self, shelf: usize, cell: usize) -> bool {
        self.masks[shelf][cell].is_some()
    }

    /// The offers of each shape of a shelf that are in a cell; none where there is none.
    pub(super) fn masks(&self, shelf: usize, cell: usize) -> Option<&[u64]> {
        self.masks[shelf][cell].as_deref()
    }

    /// How many cells are in the places of one, summed over all keys.
    pub(super) fn choice(&self, cell: usize) -> usize {
        self.choices[cell]
    }

    /// The cells in which a shelf sells anything that pods of all these rows may have.
    pub(super) fn open_to(&self, shelf: usize, rows: &[&CompatibleOfferings]) -> Vec<usize> {
        let sells = |cell: &usize| {
            let masks = self.masks[shelf][*cell].iter().flatten().enumerate();
            let mut left = masks
                .map(|(shape, mask)| rows.iter().fold(*mask, |all, row| all & row.masks[shape]));
            left.any(|mask| mask != 0)
        };
        (0..self.all.len()).filter(sells).collect()
    }

    /// What is left of a row within a cell, given what the labels must be; none where nothing is.
    pub(super) fn narrow(
        &self,
        (shelf, cell): (usize, usize),
        row: &CompatibleOfferings,
        labels: &Requirements,
    ) -> Option<CompatibleOfferings> {
        let masks = self.masks[shelf][cell].as_ref()?;
        let fits = |(key, value): (&String, &Option<String>)| match (labels.get(key), value) {
            (None, _) => true,
            (Some(wanted), Some(value)) => wanted.has(value),
            (Some(wanted), None) => wanted.allows_absence(),
        };
        if !self.keys.iter().zip(&self.all[cell]).all(fits) {
            return None;
        }
        let both = row.masks.iter().zip(masks).map(|(own, cell)| own & cell);
        let masks: Vec<u64> = both.collect();
        if masks.iter().all(|mask| *mask == 0) {
            return None;
        }
        let mut open: Requirements = row
            .open
            .iter()
            .map(|(key, own)| (&key[..], own.clone()))
            .collect();
        for (key, value) in &self.set[shelf][cell] {
            open.add(key, value.clone());
        }
        let open = open.iter().map(|(key, own)| (key.to_owned(), own.clone()));
        Some(CompatibleOfferings {
            masks,
            open: open.collect(),
        })
    }
}

/// The values a label can have on nodes of a type: those that the pool and the type both allow.
fn of_type(shelf: &NodeTemplate<'_>, shape: &TypeOption<'_>, key: &str) -> Vec<Option<String>> {
    let both = match (
        shelf.side.get(key),
        shape.instance_type.requirements.get(key),
    ) {
        (Some(pool), Some(own)) => pool.intersection(own),
        (Some(own), None) | (None, Some(own)) => own.clone(),
        (None, None) => return vec![None],
    };
    match both.values() {
        Some(values) if !values.is_empty() => {
            let values = values.iter().take(VALUES_MAX);
            values.map(|value| Some(value.clone())).collect()
        }
        _ => vec![None],
    }
}
