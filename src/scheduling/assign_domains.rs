//! Assigns one topology domain to planned nodes if pods are unschedulable because the domain of
//! these nodes is undecided.
//!
//! A node whose own pods need no domain may be launched in any of several domains, instance types
//! and capacity types. Some pods have rules about the DaemonSets of such a node, or are spread over
//! nodes that include it. They are checked against every possible launch of the node. Once the node
//! exists, such a pod may fit, but only in a second pass.

use std::collections::BTreeMap;

use crate::model::requirement::{Requirement, Requirements};
use crate::scheduling::diagnose::topology::TopologyDiagnosis;
use crate::scheduling::index::{
    DomainIndex, IndexVec, ItemGroupIndex, KindIndex, OpenedNodeIndex, PodClassIndex, RowIndex,
    TemplateIndex, TypeIndex,
};
use crate::scheduling::packing::fill_bin::{ItemGroup, row_ids_in};
use crate::scheduling::packing::initial_topology::cell_of;
use crate::scheduling::packing::launch_options::{LaunchQuery, fitting_offerings, total_requests};
use crate::scheduling::problem::resource_vector::add_demand;
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::node_template::TypeOption;
use crate::scheduling::topology::topology_state::{Match, TopologyState};

/// Step limit of the search. One step evaluates a type for one class in one domain.
const STEPS_MAX: u64 = 20_000_000;

/// Number of unschedulable classes by domain.
pub(super) type DemandByDomain = IndexVec<DomainIndex, usize>;

/// How the domain of a node is chosen. The price decides between equally good domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DomainChoice {
    /// The cheapest domain.
    Cheapest,
    /// The domain with the least demand, because the node may be an obstacle to other pods.
    FewHopes,
    /// The domain with the most demand, because pods may need the node nearby.
    ManyHopes,
}

/// A claim with an assigned domain: its offerings and its price.
struct AssignedNode {
    cell: Option<DomainIndex>,
    price: f64,
    rows: BTreeMap<RowIndex, CompatibleOfferings>,
}

impl<'p> Scheduler<'_, 'p, '_> {
    /// Returns the domains in which unschedulable pods might fit if all other locations were known,
    /// or `None` if no pod is unschedulable because of unknown locations. `board` contains all
    /// nodes and bound pods.
    pub(super) fn demand_by_domain(&mut self, board: &TopologyState<'p>) -> Option<DemandByDomain> {
        let context = self.context;
        let classes = self.packed.left.keys();
        let classes: Vec<PodClassIndex> =
            classes.filter(|class| self.packed.left[*class] > 0 && self.calls[*class]).collect();
        let mut places: Option<TopologyDiagnosis<'p>> = None;
        let mut hopes: DemandByDomain = vec![0; context.cells.all.len()].into();
        let (mut any, mut steps) = (false, 0);
        for class in classes {
            let problem = context.problem;
            let kinds = problem.kinds_without_preferences(problem.classes[class].kind);
            for kind in (kinds.start().0..=kinds.end().0).map(KindIndex) {
                if context.topology.checks[kind].is_empty() || steps > STEPS_MAX {
                    continue;
                }
                let places =
                    places.get_or_insert_with(|| TopologyDiagnosis::new(context, board.clone()));
                let mut cells = places.possible_domains(kind);
                cells.retain(|cell| self.could_launch(class, kind, *cell, &mut steps));
                any |= !cells.is_empty() || self.may_join(class, kind, board);
                for cell in cells.into_iter().flatten() {
                    hopes[cell] += 1;
                }
            }
        }
        any.then_some(hopes)
    }

    /// Returns whether a node could be launched for a pod in a domain.
    fn could_launch(
        &mut self,
        class: PodClassIndex,
        kind: KindIndex,
        cell: Option<DomainIndex>,
        steps: &mut u64,
    ) -> bool {
        let context = self.context;
        let query = context.offering_query(kind, true, cell);
        context.templates.keys().any(|template| {
            let ledger = self.packed.ledgers.ledger_for(template);
            (0..context.alternatives_of(kind)).any(|alternative| {
                let Some(row) = self.offerings.row_for(template, alternative, query) else {
                    return false;
                };
                *steps += context.templates[template].shapes.len() as u64;
                let (pool, variety) = (&context.templates[template], &self.varieties[template]);
                let (rows, demand) =
                    ([&self.offerings.rows[row]], &context.problem.classes[class].demand);
                let launch = LaunchQuery::new(pool, variety, &rows, demand);
                launch.cheapest_type(&ledger).is_some()
            })
        })
    }

    /// Returns whether a pod might be scheduled on a planned node with an undecided domain.
    fn may_join(
        &mut self,
        class: PodClassIndex,
        kind: KindIndex,
        board: &TopologyState<'p>,
    ) -> bool {
        let context = self.context;
        if !context.needs_domain(kind) {
            return false;
        }
        let query = context.offering_query(kind, true, None);
        for (at, opened) in self.packed.opened.iter_enumerated() {
            let site = self.packed.location_of(at);
            let mut checks = context.topology.checks[kind].iter();
            if opened.gone
                || cell_of(&self.packed.lots, opened).is_some()
                || !checks.all(|check| board.may_hold(check, site))
            {
                continue;
            }
            let mut whole = total_requests(&self.packed.lots, &opened.claim.parts);
            add_demand(&mut whole, &context.problem.classes[class].demand, 1);
            let row_ids = row_ids_in(&self.packed.lots, &opened.claim.parts);
            for alternative in 0..context.alternatives_of(kind) {
                let Some(row) = self.offerings.row_for(opened.template, alternative, query) else {
                    continue;
                };
                let rows = row_ids.iter().chain([&row]).map(|row| &self.offerings.rows[*row]);
                let rows: Vec<&CompatibleOfferings> = rows.collect();
                let template = &context.templates[opened.template];
                if fitting_offerings(template, opened.claim.shape, &rows, &whole) != 0 {
                    return true;
                }
            }
        }
        false
    }

    /// Assigns one domain to every claim, and limits the claim to offerings that are equivalent for
    /// topology spread. Returns whether anything changed.
    pub(super) fn assign_domains(&mut self, hopes: &DemandByDomain, choice: DomainChoice) -> bool {
        let most = hopes.iter().copied().max().unwrap_or(0);
        let mut known: BTreeMap<(ItemGroupIndex, RowIndex), ItemGroupIndex> = BTreeMap::new();
        let mut changed = false;
        for at in self.packed.opened.keys() {
            let Some(pinned) = self.assigned_node(
                at,
                &|cell| match (choice, cell) {
                    (DomainChoice::FewHopes, Some(cell)) => hopes[cell],
                    (DomainChoice::ManyHopes, Some(cell)) => most - hopes[cell],
                    _ => 0,
                },
                choice,
            ) else {
                continue;
            };
            changed = true;
            let rows = pinned.rows.into_iter();
            let rows: BTreeMap<RowIndex, RowIndex> =
                rows.map(|(row, offerings)| (row, self.offerings.add_row(offerings))).collect();
            let claim = &mut self.packed.opened[at].claim;
            claim.price = pinned.price;
            for (lot, _) in &mut claim.parts {
                let row = rows[&self.packed.lots[*lot].row];
                let lots = &mut self.packed.lots;
                *lot = *known.entry((*lot, row)).or_insert_with_key(|(lot, row)| {
                    let group = ItemGroup { row: *row, cell: pinned.cell, ..lots[*lot] };
                    lots.push_and_get_key(group)
                });
            }
            claim.parts.sort_unstable();
        }
        changed
    }

    /// Returns the claim with an assigned domain, or `None` if it has one domain already or needs
    /// several.
    fn assigned_node(
        &self,
        at: OpenedNodeIndex,
        rank: &dyn Fn(Option<DomainIndex>) -> usize,
        choice: DomainChoice,
    ) -> Option<AssignedNode> {
        let context = self.context;
        let opened = &self.packed.opened[at];
        let cell = cell_of(&self.packed.lots, opened);
        if opened.gone {
            return None;
        }
        let row_ids = row_ids_in(&self.packed.lots, &opened.claim.parts);
        let rows: Vec<&CompatibleOfferings> =
            row_ids.iter().map(|row| &self.offerings.rows[*row]).collect();
        let cells: Vec<Option<DomainIndex>> = match cell {
            None if !context.cells.keys.is_empty() => {
                let cells = context.cells.domains_with_offerings(opened.template, &rows);
                cells.into_iter().map(Some).collect()
            }
            assigned => vec![assigned],
        };
        let mut known: BTreeMap<u32, IndexVec<TypeIndex, u64>> = BTreeMap::new();
        let nodes = cells.into_iter().filter_map(|cell| -> Option<AssignedNode> {
            let rows = row_ids.iter().map(|row| {
                let offerings = &self.offerings.rows[*row];
                Some((*row, self.offerings_in_domain(opened.template, cell, offerings)?))
            });
            let mut rows: BTreeMap<RowIndex, CompatibleOfferings> = rows.collect::<Option<_>>()?;
            let shape = &context.templates[opened.template].shapes[opened.claim.shape];
            let masks = rows.values().map(|row| row.masks[opened.claim.shape]);
            let mask = masks.fold(shape.all_offerings(), |all, row_mask| all & row_mask);
            let price = shape.lowest_price(mask)?;
            let first = mask.trailing_zeros();
            let alike = known.entry(first).or_insert_with(|| {
                self.equivalent_offerings(opened.template, opened.claim.shape, 1 << first)
            });
            for row in rows.values_mut() {
                for (mask, alike) in row.masks.iter_mut().zip(&*alike) {
                    *mask &= alike;
                }
            }
            self.set_open_labels(opened.template, &mut rows, choice);
            let varied = self.is_varied(at, &rows.values().collect::<Vec<&CompatibleOfferings>>());
            varied.then_some(AssignedNode { cell, price, rows })
        });
        let best = nodes.min_by(|one, other| {
            let ranks = rank(one.cell).cmp(&rank(other.cell));
            ranks.then(one.price.total_cmp(&other.price)).then(one.cell.cmp(&other.cell))
        });
        best.filter(|node| {
            let mut rows = node.rows.iter();
            node.cell != cell || rows.any(|(row, narrowed)| self.offerings.rows[*row] != *narrowed)
        })
    }

    /// Returns these offerings in a domain, or `None` if nothing remains.
    fn offerings_in_domain(
        &self,
        template: TemplateIndex,
        cell: Option<DomainIndex>,
        offerings: &CompatibleOfferings,
    ) -> Option<CompatibleOfferings> {
        let Some(cell) = cell else {
            return Some(offerings.clone());
        };
        let open = offerings.open.iter();
        let labels: Requirements = open.map(|(key, it)| (&key[..], it.clone())).collect();
        let cells = self.context.cells;
        cells.restrict_to_domain(template, cell, offerings, &labels)
    }

    /// Sets the labels that the pool leaves open and that decide which topology spreads include a
    /// node.
    fn set_open_labels(
        &self,
        template: TemplateIndex,
        rows: &mut BTreeMap<RowIndex, CompatibleOfferings>,
        choice: DomainChoice,
    ) {
        let context = self.context;
        let template = &context.templates[template];
        let filters = context.topology.filters.iter().zip(&context.passing);
        let wants = filters.filter_map(|(filter, known)| known.get().and(filter.labels));
        let alternatives =
            wants.flat_map(|wants_index| &context.problem.wants[wants_index].alternatives);
        let mut wanted_by_key: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
        for (key, wanted) in alternatives.flat_map(|alternative| alternative.iter()) {
            if template.is_pool_choice(key) && !context.cells.has_key(key) {
                wanted_by_key.entry(key).or_default().push(wanted);
            }
        }
        for (key, wanted_values) in wanted_by_key {
            let open = rows.values().flat_map(|row| &row.open);
            let open = open.filter(|label| label.0 == key).map(|label| &label.1);
            let requirements = template.side.get(key).into_iter().chain(open).cloned();
            let Some(allowed) =
                requirements.reduce(|all, requirement| all.intersection(&requirement))
            else {
                continue;
            };
            let values = allowed.values().into_iter().flatten();
            let Some(value) = values.min_by_key(|value| match choice {
                DomainChoice::FewHopes => {
                    wanted_values.iter().filter(|wanted| wanted.allows_value(value)).count()
                }
                DomainChoice::Cheapest | DomainChoice::ManyHopes => 0,
            }) else {
                continue;
            };
            for row in rows.values_mut() {
                row.open.retain(|label| label.0 != key);
                row.open.push((key.to_owned(), Requirement::is_in([&value[..]])));
                row.open.sort();
            }
        }
    }

    /// Returns the offerings of each type that pass the same spread filters as the given offering.
    fn equivalent_offerings(
        &self,
        template: TemplateIndex,
        shape: TypeIndex,
        offer: u64,
    ) -> IndexVec<TypeIndex, u64> {
        let shapes = self.context.templates[template].shapes.iter();
        let mut alike: IndexVec<TypeIndex, u64> = shapes.map(TypeOption::all_offerings).collect();
        let known = self.context.passing.iter().filter_map(|cell| cell.get());
        for suited in known.flat_map(|matches| matches[template].iter().flatten()) {
            let mut results = [Match::Yes, Match::Maybe, Match::No].into_iter();
            let pass = results.find(|pass| suited[shape].offerings_with(*pass, offer) != 0);
            for (alike, matches) in alike.iter_mut().zip(suited) {
                *alike = matches.offerings_with(pass.unwrap_or(Match::No), *alike);
            }
        }
        alike
    }

    /// Returns whether a claim satisfies `min_values` with these offerings.
    fn is_varied(&self, at: OpenedNodeIndex, rows: &[&CompatibleOfferings]) -> bool {
        let opened = &self.packed.opened[at];
        let (template, variety) =
            (&self.context.templates[opened.template], &self.varieties[opened.template]);
        let planned = &template.shapes[opened.claim.shape];
        if variety.is_empty() || planned.reservation.is_some() {
            return true;
        }
        let whole = total_requests(&self.packed.lots, &opened.claim.parts);
        variety.are_satisfied_by(
            template,
            template.shapes.keys().filter(|at| {
                template.shapes[*at].is_interchangeable(planned)
                    && fitting_offerings(template, *at, rows, &whole) != 0
            }),
        )
    }
}
