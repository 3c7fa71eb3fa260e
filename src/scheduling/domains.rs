//! Domain combinations of new nodes: one value of each topology key that some rule uses, such as a
//! zone. Pods with topology rules are assigned to a combination before they are packed.

/// Distributes pods with topology constraints over the domains.
pub(super) mod distribute;

use std::collections::BTreeMap;

use crate::model::labels::OF_OFFERINGS;
use crate::model::requirement::{Requirement, Requirements};
use crate::scheduling::index::{DomainIndex, IndexVec, TemplateIndex, TypeIndex};
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::daemon_overhead::merged_requirement;
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption};

/// Maximum number of domain combinations. More arise from labels with very many values, such as the
/// instance type.
const CELLS_MAX: usize = 512;

/// Maximum number of values of one label per offering.
const VALUES_MAX: usize = 64;

/// A value for each key, in key order. `None` if a node lacks the label.
pub(super) type Values = Vec<Option<String>>;

/// All domain combinations, and their offerings.
#[derive(Debug, Default)]
pub(super) struct DomainSet {
    /// The keys.
    pub(super) keys: Vec<String>,
    /// The combinations, sorted.
    pub(super) all: IndexVec<DomainIndex, Values>,
    /// By template and combination: the offerings of each type in the combination, or `None`.
    masks: IndexVec<TemplateIndex, IndexVec<DomainIndex, Option<IndexVec<TypeIndex, u64>>>>,
    /// For each combination, the number of combinations that have a domain in common with it,
    /// summed over all keys.
    pub(super) shared_domain_counts: IndexVec<DomainIndex, usize>,
    /// By template and combination: labels to set on a node in the combination.
    set: IndexVec<TemplateIndex, IndexVec<DomainIndex, Vec<(String, Requirement)>>>,
}

impl DomainSet {
    /// Returns the combinations of these templates for these keys.
    pub(super) fn new(keys: Vec<String>, templates: &[NodeTemplate<'_>]) -> Self {
        let mut cells = Self { keys, ..Self::default() };
        if cells.keys.is_empty() {
            return cells;
        }
        let mut known: BTreeMap<Values, usize> = BTreeMap::new();
        let mut found: Vec<BTreeMap<usize, IndexVec<TypeIndex, u64>>> = Vec::new();
        for template in templates {
            let mut masks_by_cell: BTreeMap<usize, IndexVec<TypeIndex, u64>> = BTreeMap::new();
            for (at, bit) in &template.by_price {
                for values in cells.offering_values(template, &template.shapes[*at], *bit) {
                    let next = known.len();
                    let cell = match known.get(&values) {
                        Some(cell) => *cell,
                        None if next < CELLS_MAX => {
                            known.insert(values, next);
                            next
                        }
                        None => continue,
                    };
                    let masks = masks_by_cell
                        .entry(cell)
                        .or_insert_with(|| vec![0; template.shapes.len()].into());
                    masks[*at] |= 1 << *bit;
                }
            }
            found.push(masks_by_cell);
        }
        // Ordinals are assigned by name, so that they do not depend on prices.
        cells.all = known.keys().cloned().collect();
        let mut shared: Vec<BTreeMap<&Option<String>, usize>> =
            vec![BTreeMap::new(); cells.keys.len()];
        for values in &cells.all {
            for (value, shared) in values.iter().zip(&mut shared) {
                *shared.entry(value).or_insert(0) += 1;
            }
        }
        let shared_domain_counts = cells.all.iter().map(|values| {
            let counts = values.iter().zip(&shared);
            counts.map(|(value, shared)| shared[value]).sum()
        });
        cells.shared_domain_counts = shared_domain_counts.collect();
        for (template, mut masks_by_cell) in templates.iter().zip(found) {
            let masks = known.values().map(|cell| masks_by_cell.remove(cell));
            cells.masks.push(masks.collect());
            let set = known.keys().map(|values| cells.labels_to_set(template, values));
            let set = set.collect();
            cells.set.push(set);
        }
        cells
    }

    /// The combinations of the values that an offering may have.
    fn offering_values(
        &self,
        template: &NodeTemplate<'_>,
        shape: &TypeOption<'_>,
        bit: usize,
    ) -> Vec<Values> {
        let offer = shape.offers[bit];
        let mut combinations: Vec<Values> = vec![Vec::new()];
        for key in &self.keys {
            let allowed: Vec<Option<String>> = match key.as_str() {
                key if OF_OFFERINGS.contains(&key) => {
                    vec![offer.label_value(key).map(str::to_owned)]
                }
                key => values_of_type(template, shape, key),
            };
            combinations = combinations
                .iter()
                .flat_map(|values| {
                    let allowed = allowed.iter().map(std::slice::from_ref);
                    allowed.map(move |value| [&values[..], value].concat())
                })
                .take(CELLS_MAX)
                .collect();
        }
        combinations
    }

    /// Returns the labels of the combination that no offering determines.
    fn labels_to_set(
        &self,
        template: &NodeTemplate<'_>,
        values: &Values,
    ) -> Vec<(String, Requirement)> {
        self.keys
            .iter()
            .zip(values)
            .filter_map(|(key, value)| {
                let value = value.as_ref()?;
                let allowed = template.side.get(key).and_then(Requirement::values);
                let decided = OF_OFFERINGS.contains(&key.as_str())
                    || allowed.is_some_and(|values| values.len() == 1);
                (!decided).then(|| (key.clone(), Requirement::is_in([value.as_str()])))
            })
            .collect()
    }

    /// Returns the offerings of each type of a template in a combination, or `None`.
    pub(super) fn offering_masks(
        &self,
        template: TemplateIndex,
        cell: DomainIndex,
    ) -> Option<&IndexVec<TypeIndex, u64>> {
        self.masks[template][cell].as_ref()
    }

    /// Returns whether combinations differ in a label.
    pub(super) fn has_key(&self, key: &str) -> bool {
        self.keys.iter().any(|other| other == key)
    }

    /// Returns whether a combination satisfies label requirements.
    pub(super) fn satisfies(&self, cell: DomainIndex, labels: &Requirements) -> bool {
        let mut values = self.keys.iter().zip(&self.all[cell]);
        values.all(|(key, value)| {
            let wanted = labels.get(key);
            wanted.is_none_or(|wanted| wanted.allows_label(value.as_deref()))
        })
    }

    /// Returns the combinations in which a template has offerings for all these pods.
    pub(super) fn domains_with_offerings(
        &self,
        template: TemplateIndex,
        rows: &[&CompatibleOfferings],
    ) -> Vec<DomainIndex> {
        self.all
            .keys()
            .filter(|cell| {
                let masks = self.masks[template][*cell].iter();
                let masks = masks.flat_map(IndexVec::iter_enumerated);
                let mut left = masks.map(|(shape, mask)| {
                    rows.iter().fold(*mask, |all, row| all & row.masks[shape])
                });
                left.any(|mask| mask != 0)
            })
            .collect()
    }

    /// Restricts compatible offerings to a combination with these labels, or returns `None` if
    /// nothing remains.
    pub(super) fn restrict_to_domain(
        &self,
        template: TemplateIndex,
        cell: DomainIndex,
        row: &CompatibleOfferings,
        labels: &Requirements,
    ) -> Option<CompatibleOfferings> {
        let masks = self.masks[template][cell].as_ref()?;
        if !self.satisfies(cell, labels) {
            return None;
        }
        let pairs = row.masks.iter().zip(masks);
        let masks: IndexVec<TypeIndex, u64> = pairs.map(|(row, cell)| row & cell).collect();
        if masks.iter().all(|mask| *mask == 0) {
            return None;
        }
        let open = row.open.iter();
        let mut open: Requirements = open.map(|(key, it)| (&key[..], it.clone())).collect();
        for (key, value) in &self.set[template][cell] {
            open.add(key, value.clone());
        }
        let open = open.iter().map(|(key, it)| (key.to_owned(), it.clone()));
        Some(CompatibleOfferings { masks, open: open.collect() })
    }
}

/// Returns the values of a label that both the pool and the type allow.
fn values_of_type(
    template: &NodeTemplate<'_>,
    shape: &TypeOption<'_>,
    key: &str,
) -> Vec<Option<String>> {
    let allowed = merged_requirement(&template.side, shape.instance_type, key);
    match allowed.as_ref().and_then(Requirement::values) {
        Some(values) if !values.is_empty() => {
            let values = values.iter().take(VALUES_MAX);
            values.map(|value| Some(value.clone())).collect()
        }
        _ => vec![None],
    }
}
