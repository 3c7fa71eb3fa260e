//! Builds the initial topology state of a snapshot: its nodes, the domains of new nodes, and the
//! bound pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::affinity::PodTerm;
use crate::model::id::NodeName;
use crate::model::labels::Labels;
use crate::model::requirement::{Requirement, Requirements};
use crate::model::taint::{Taint, first_repelling};
use crate::scheduling::domains::DomainSet;
use crate::scheduling::index::{
    CounterIndex, DomainIndex, DomainLocations, FilterIndex, GroupIndex, IndexVec, KeyIndex,
    LocationIndex, RequirementsIndex, TypeIndex,
};
use crate::scheduling::packing::context::{
    FilterMatches, ItemOfferings, OpenedNode, PackingContext,
};
use crate::scheduling::packing::fill_bin::{ItemGroups, row_ids_in};
use crate::scheduling::problem::Problem;
use crate::scheduling::problem::pod_constraints::{GroupMembership, HOST};
use crate::scheduling::supply::compatible::LabelMatch;
use crate::scheduling::supply::daemon_overhead::select_keys;
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::topology::topology_state::{Locations, Match, TopologyState};
use crate::scheduling::topology::{DomainCounter, NodeFilter, Topology};
use crate::state::snapshot::{ExistingNode, NodeRef, Snapshot};

/// Maximum number of possible domains per in-flight node.
const PLACES_MAX: usize = 64;

/// Returns the groups and keys of anti-affinity terms of bound and planned pods.
pub(crate) fn standing_terms(
    problem: &Problem<'_>,
    snapshot: &Snapshot<'_>,
) -> Vec<(GroupIndex, KeyIndex)> {
    let residents = snapshot.residents.iter().map(|it| it.anti_affinity);
    let promised = snapshot.promised.values().flatten();
    let terms = residents.chain(promised.map(|pod| &pod.anti_affinity[..])).flatten();
    let found = terms.filter_map(|term| problem.groups.group_and_key(term));
    let found = found.chain(problem.agents.anti_affinity_terms());
    let mut terms_in_use: Vec<_> =
        found.filter(|(group, _)| problem.members.iter().any(|member| member[*group])).collect();
    terms_in_use.sort_unstable();
    terms_in_use.dedup();
    terms_in_use
}

/// Builds the topology state of these nodes, in order, with their pods.
pub(crate) fn initial_state<'t>(
    problem: &Problem<'_>,
    topology: &'t Topology,
    rooms: &[&ExistingNode],
    snapshot: &Snapshot<'_>,
) -> TopologyState<'t> {
    let mut board = TopologyState::new(topology);
    if topology.tallies.is_empty() {
        return board;
    }
    let mut passed: BTreeMap<(FilterIndex, &Requirements, &[Taint]), Match> = BTreeMap::new();
    for room in rooms {
        let decided = domain_values(problem, &room.labels).filter(|(_, all)| all.len() == 1);
        let places = decided.flat_map(|(key, all)| all.iter().map(move |value| (key, value)));
        let places: Vec<(KeyIndex, u32)> =
            places.map(|(key, value)| (key, board.sites.intern_domain(key, value))).collect();
        let matches: IndexVec<FilterIndex, Match> = topology
            .filters
            .iter_enumerated()
            .map(|(at, filter)| {
                if filter.labels.is_none() && filter.taints.is_none() {
                    return Match::Yes;
                }
                let key = (at, &*room.labels, &room.taints[..]);
                *passed.entry(key).or_insert_with(|| node_passes(problem, filter, room))
            })
            .collect();
        let site = board.sites.add_location(true, &places, |at| matches[at]);
        for (key, values) in undecided_labels(problem, &room.labels) {
            let mut places = Vec::with_capacity(values.len().min(PLACES_MAX));
            for value in values.iter().take(PLACES_MAX) {
                let place = board.sites.intern_domain(key, value);
                let mut decided = (**room).clone();
                let requirement = Requirement::is_in([value]);
                Arc::make_mut(&mut decided.labels).add(&problem.groups.keys[key], requirement);
                board.open_possible_domain(key, place, |at| {
                    matches[at] != Match::No
                        && node_passes(problem, &topology.filters[at], &decided) != Match::No
                });
                places.push(place);
            }
            board.sites.set_undecided(key, site, places);
        }
        board.open_domains(site);
    }
    count_residents(problem, rooms, snapshot, &mut board);
    board
}

/// Returns the possible values of the topology keys of a node, except the host name.
fn domain_values<'l>(
    problem: &'l Problem<'_>,
    labels: &'l Requirements,
) -> impl Iterator<Item = (KeyIndex, &'l BTreeSet<String>)> {
    let keys = problem.groups.keys.iter_enumerated();
    let keys = keys.filter(|(key, _)| *key != HOST);
    keys.filter_map(|(key, name)| Some((key, labels.get(name)?.values()?)))
}

/// Returns the possible values of the undecided labels of an in-flight node.
fn undecided_labels<'l>(
    problem: &'l Problem<'_>,
    labels: &'l Requirements,
) -> impl Iterator<Item = (KeyIndex, &'l BTreeSet<String>)> {
    domain_values(problem, labels).filter(|(_, values)| values.len() > 1)
}

/// Returns the nodes whose domain is undecided.
pub(crate) fn undecided_nodes<'r>(
    problem: &Problem<'_>,
    rooms: &[&'r ExistingNode],
) -> Vec<&'r NodeRef> {
    let rooms =
        rooms.iter().filter(|room| undecided_labels(problem, &room.labels).next().is_some());
    rooms.map(|room| &room.host).collect()
}

/// Returns whether a node passes a filter. The result is `Maybe` for an in-flight node if only some
/// of its possible label values match.
fn node_passes(problem: &Problem<'_>, filter: &NodeFilter, room: &ExistingNode) -> Match {
    if filter.taints.is_some_and(|wants| {
        let tolerations = problem.wants[wants].tolerations;
        first_repelling(&room.taints, tolerations).is_some()
    }) {
        return Match::No;
    }
    let Some(wants) = filter.labels else {
        return Match::Yes;
    };
    let alternatives = problem.wants[wants].alternatives.iter();
    let alternatives =
        alternatives.filter(|alternative| room.labels.check_compatible(alternative, false).is_ok());
    let pass = alternatives.map(|alternative| {
        let has_all = alternative.iter().all(|(key, wanted)| {
            let values = room.labels.get(key).and_then(Requirement::values);
            let several = values.filter(|values| values.len() > 1);
            several.is_none_or(|values| values.iter().all(|value| wanted.allows_value(value)))
        });
        if has_all { Match::Yes } else { Match::Maybe }
    });
    pass.max().unwrap_or(Match::No)
}

fn count_residents(
    problem: &Problem<'_>,
    rooms: &[&ExistingNode],
    snapshot: &Snapshot<'_>,
    board: &mut TopologyState<'_>,
) {
    let mut site_of: BTreeMap<&NodeName, LocationIndex> = BTreeMap::new();
    for (site, room) in (0..).map(LocationIndex).zip(rooms) {
        if let NodeRef::Node(name) = &room.host {
            site_of.insert(name, site);
        }
    }
    let topology = board.topology;
    let counters_of = |namespace: &str, labels: &Labels, terms: &[PodTerm], deleting: bool| {
        let groups = &problem.groups;
        let member_of = groups.membership_of(namespace, labels, &snapshot.namespaces);
        counters_of(problem, topology, &member_of, terms, deleting)
    };
    for resident in &snapshot.residents {
        let (labels, terms) = (resident.labels, resident.anti_affinity);
        let tallies = counters_of(resident.namespace, labels, terms, resident.deleting);
        if tallies.is_empty() {
            continue;
        }
        for (node, pods) in &resident.nodes {
            if let Some(site) = site_of.get(node) {
                for tally in &tallies {
                    board.count_pods(*tally, *site, *pods, true);
                }
            }
        }
    }
    for (site, room) in (0..).map(LocationIndex).zip(rooms) {
        for (set, is_sure) in &room.daemons {
            let Some(agent) = problem.agents.index_of(set) else {
                continue;
            };
            let is_sure = *is_sure
                && problem.agents.is_certain_on(agent, |key| room.labels.get(key).is_some());
            for tally in &board.topology.daemon_overheads[agent] {
                board.count_pods(*tally, site, 1, is_sure);
            }
        }
        let promised = snapshot.promised.get(&room.host);
        for pod in promised.into_iter().flatten() {
            let (namespace, terms) = (&pod.key.namespace, &pod.anti_affinity);
            for tally in counters_of(namespace, &pod.labels, terms, pod.deleting.is_some()) {
                board.count_pods(tally, site, 1, true);
            }
        }
    }
}

/// Returns the counters for pods of these groups with these terms.
fn counters_of(
    problem: &Problem<'_>,
    topology: &Topology,
    member_of: &GroupMembership,
    terms: &[PodTerm],
    deleting: bool,
) -> Vec<CounterIndex> {
    let owners = terms.iter().filter_map(|term| problem.groups.group_and_key(term));
    let owners: Vec<_> = owners.collect();
    let counters = topology.tallies.iter_enumerated();
    let counted = counters.filter(|(_, tally)| match tally {
        DomainCounter::Members { group, .. } => member_of[*group],
        DomainCounter::Spread { group, .. } => member_of[*group] && !deleting,
        DomainCounter::Owners { group, key } => owners.contains(&(*group, *key)),
    });
    counted.map(|(at, _)| at).collect()
}

/// Adds a location for every domain combination, in order. Topology spreads do not include these
/// domains yet, because they have no nodes.
pub(crate) fn add_cells(
    problem: &Problem<'_>,
    cells: &DomainSet,
    board: &mut TopologyState<'_>,
) -> DomainLocations {
    let added = cells.all.iter().map(|values| {
        let places = places_of(problem, cells, values, &mut board.sites);
        board.sites.add_location(false, &places, |_| Match::Yes)
    });
    added.collect()
}

/// Returns the domains of a combination.
pub(crate) fn places_of(
    problem: &Problem<'_>,
    cells: &DomainSet,
    values: &[Option<String>],
    sites: &mut Locations,
) -> Vec<(KeyIndex, u32)> {
    let named = cells.keys.iter().zip(values);
    let places = named.filter_map(|(name, value)| {
        let key = problem.groups.known_key(name)?;
        Some((key, sites.intern_domain(key, value.as_ref()?)))
    });
    places.collect()
}

/// Adds the location of a claim. If the pods of the claim leave the domain open, the location has
/// no domain yet.
pub(crate) fn add_claim(
    context: &PackingContext<'_, '_>,
    items: ItemOfferings<'_>,
    opened: &OpenedNode,
    board: &mut TopologyState<'_>,
) -> LocationIndex {
    let problem = context.problem;
    let cell = cell_of(items.lots, opened);
    let places = cell.map_or_else(Vec::new, |cell| {
        let values = &context.cells.all[cell];
        places_of(problem, context.cells, values, &mut board.sites)
    });
    let filters = board.topology.filters.keys();
    let passes = filters.map(|filter| claim_passes(context, filter, items, opened, cell));
    let passes: IndexVec<FilterIndex, Match> = passes.collect();
    board.sites.add_location(true, &places, |filter| passes[filter])
}

/// Returns the domain combination that the pods of a claim require, if any.
pub(crate) fn cell_of(lots: &ItemGroups<'_>, opened: &OpenedNode) -> Option<DomainIndex> {
    let mut parts = opened.claim.parts.iter();
    parts.find_map(|(lot, _)| lots[*lot].cell)
}

/// Returns whether a claim passes a filter for every possible launch in a domain, or anywhere if
/// `None`.
pub(crate) fn claim_passes(
    context: &PackingContext<'_, '_>,
    at: FilterIndex,
    items: ItemOfferings<'_>,
    opened: &OpenedNode,
    cell: Option<DomainIndex>,
) -> Match {
    let problem = context.problem;
    let filter = &context.topology.filters[at];
    let template = &context.templates[opened.template];
    if filter.taints.is_some_and(|wants| {
        let tolerations = problem.wants[wants].tolerations;
        first_repelling(&template.pool.taints, tolerations).is_some()
    }) {
        return Match::No;
    }
    let Some(wants) = filter.labels else {
        return Match::Yes;
    };
    // A pod of the claim has the same requirements.
    let mut parts = opened.claim.parts.iter();
    if parts.any(|(lot, _)| problem.kinds[items.lots[*lot].kind].bare == wants) {
        return Match::Yes;
    }
    let alternatives = &problem.wants[wants].alternatives;
    let suited = context.passing[at].get_or_init(|| types_passing(context, wants));
    let determined = determined_labels(context, items, opened);
    let candidates: Vec<(&Requirements, &IndexVec<TypeIndex, LabelMatch>, Match)> = alternatives
        .iter()
        .zip(&suited[opened.template])
        .filter(|(wanted, _)| cell.is_none_or(|cell| context.cells.satisfies(cell, wanted)))
        .filter_map(|(wanted, suited)| {
            let suited = suited.as_ref()?;
            let pass = pool_labels_match(context, template, &determined, wanted);
            Some((wanted, suited, pass))
        })
        .filter(|(.., pass)| *pass != Match::No)
        .collect();
    let (mut all, mut any) = (true, false);
    for (shape, mask) in possible_launches(context, items, opened, cell) {
        let (mut sure, mut may) = (0, 0);
        for (_, suited, chosen) in &candidates {
            let yes = suited[shape].offerings_with(Match::Yes, mask);
            may |= yes | suited[shape].offerings_with(Match::Maybe, mask);
            sure |= if *chosen == Match::Yes { yes } else { 0 };
        }
        any |= may != 0;
        all &= sure == mask;
    }
    // The location is undecided, so the filter may match.
    let mut keys = context.cells.keys.iter();
    let settled = cell.is_some()
        || !keys.any(|key| {
            let mut candidates = candidates.iter();
            candidates.any(|(wanted, ..)| wanted.get(key).is_some())
        });
    match (any, all && settled) {
        (false, _) => Match::No,
        (true, true) => Match::Yes,
        (true, false) => Match::Maybe,
    }
}

/// Returns labels that the pods of a claim determine.
fn determined_labels<'r>(
    context: &PackingContext<'_, '_>,
    items: ItemOfferings<'r>,
    opened: &OpenedNode,
) -> BTreeMap<&'r str, &'r str> {
    let template = &context.templates[opened.template];
    let row_ids = row_ids_in(items.lots, &opened.claim.parts).into_iter();
    let open = row_ids.flat_map(|row| &items.rows[row].open);
    let only = open.filter_map(|(key, requirement)| {
        let values = requirement.values().filter(|values| values.len() == 1)?;
        let value = values.first().filter(|_| !requirement.allows_absence())?;
        template.is_pool_choice(key).then_some((&key[..], &value[..]))
    });
    only.collect()
}

/// Returns whether labels that the pool chooses match requirements. Some labels may already be
/// determined.
fn pool_labels_match(
    context: &PackingContext<'_, '_>,
    template: &NodeTemplate<'_>,
    determined: &BTreeMap<&str, &str>,
    wanted: &Requirements,
) -> Match {
    let keys = wanted
        .iter()
        .filter(|(key, _)| template.is_pool_choice(key) && !context.cells.has_key(key));
    let pass = keys.map(|(key, wanted)| {
        let values = template.side.get(key).and_then(Requirement::values);
        let mut values = values.into_iter().flatten();
        match determined.get(key) {
            Some(value) => Match::from_bool(wanted.allows_value(value)),
            None if values.clone().all(|value| wanted.allows_value(value)) => Match::Yes,
            None if values.any(|value| wanted.allows_value(value)) => Match::Maybe,
            None => Match::No,
        }
    });
    pass.min().unwrap_or(Match::Yes)
}

/// Returns the possible types and offerings of a claim in a domain, or anywhere.
pub(crate) fn possible_launches<'g>(
    context: &'g PackingContext<'_, '_>,
    items: ItemOfferings<'g>,
    opened: &'g OpenedNode,
    cell: Option<DomainIndex>,
) -> impl Iterator<Item = (TypeIndex, u64)> + 'g {
    let row_ids = row_ids_in(items.lots, &opened.claim.parts);
    let shapes = &context.templates[opened.template].shapes;
    let planned = &shapes[opened.claim.shape];
    let in_cell = cell.and_then(|cell| context.cells.offering_masks(opened.template, cell));
    shapes.keys().filter_map(move |at| {
        let shape = &shapes[at];
        let all = in_cell.map_or(shape.all_offerings(), |masks| masks[at]);
        let rows = row_ids.iter().map(|row| &items.rows[*row]);
        let mask = rows.fold(all, |all, row| all & row.masks[at]);
        let may = mask != 0 && (shape.is_interchangeable(planned) || at == opened.claim.shape);
        may.then_some((at, mask))
    })
}

/// Returns the types of each pool that match each alternative. `None` if the pool does not match.
/// Domain labels and labels that the pool chooses are ignored.
fn types_passing(context: &PackingContext<'_, '_>, wants: RequirementsIndex) -> FilterMatches {
    context
        .templates
        .iter()
        .map(|template| {
            let alternatives = context.problem.wants[wants].alternatives.iter();
            alternatives
                .map(|alternative| {
                    template.side.check_compatible(alternative, true).ok()?;
                    let wanted = select_keys(alternative, |key| {
                        !context.cells.has_key(key) && !template.is_pool_choice(key)
                    });
                    let shapes = template.shapes.iter();
                    let matches = shapes.map(|shape| template.label_match(shape, &wanted));
                    Some(matches.collect())
                })
                .collect()
        })
        .collect()
}
