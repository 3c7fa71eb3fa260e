//! The board of a snapshot: its hosts, the cells that new nodes may be in, and who is there.
//! It must not know what is placed next.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::id::NodeName;
use crate::model::requirement::{Requirement, Requirements};
use crate::model::taint::{Taint, repelling};
use crate::solve::board::{Board, Pass, Sites};
use crate::solve::cells::Cells;
use crate::solve::fill::Lot;
use crate::solve::ground::{Ground, Opened};
use crate::solve::problem::Problem;
use crate::solve::rules::HOST;
use crate::solve::supply::of_types;
use crate::solve::topology::{Filter, Tally, Topology};
use crate::state::snapshot::{Host, Room, Snapshot};

/// Places that a node to come is thought to be in, of those that it may be in.
const PLACES_MAX: usize = 64;

/// The groups and keys of the terms by which bound and promised pods keep others away.
pub(super) fn standing(problem: &Problem<'_>, snapshot: &Snapshot<'_>) -> Vec<(usize, usize)> {
    let residents = snapshot.residents.iter().map(|it| it.anti_affinity);
    let promised = snapshot.promised.values().flatten();
    let terms = residents
        .chain(promised.map(|pod| &pod.anti_affinity[..]))
        .flatten();
    let found = terms.filter_map(|term| problem.groups.place_of(term));
    let found = found.chain(problem.agents.terms());
    let concerns = |(group, _): &(usize, usize)| problem.members.iter().any(|own| own[*group]);
    let mut all: Vec<(usize, usize)> = found.filter(concerns).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A board of these rooms, in their order, and all that is on them.
pub(super) fn board<'t>(
    problem: &Problem<'_>,
    topology: &'t Topology,
    rooms: &[&Room],
    snapshot: &Snapshot<'_>,
) -> Board<'t> {
    let mut board = Board::new(topology);
    if topology.tallies.is_empty() {
        return board;
    }
    let mut passed: BTreeMap<(usize, &Requirements, &[Taint]), bool> = BTreeMap::new();
    for room in rooms {
        let places = places(problem, &mut board.sites, &room.labels);
        let unsettled = unsettled(problem, &room.labels);
        let passes: Vec<bool> = topology
            .filters
            .iter()
            .enumerate()
            .map(|(at, filter)| {
                if filter.labels.is_none() && filter.taints.is_none() {
                    return true;
                }
                let key = (at, &*room.labels, &room.taints[..]);
                *passed
                    .entry(key)
                    .or_insert_with(|| passes(problem, filter, room))
            })
            .collect();
        let site = board
            .sites
            .add(true, &places, |at| Pass::surely(passes[at]));
        for (key, values) in unsettled {
            let mut places = Vec::with_capacity(values.len());
            for value in values {
                let place = board.sites.place(key, &value);
                let mut there = (**room).clone();
                let own = Requirement::is_in([value]);
                Arc::make_mut(&mut there.labels).add(&problem.groups.keys[key], own);
                board.open_maybe(key, place, |at| {
                    passes[at] && self::passes(problem, &topology.filters[at], &there)
                });
                places.push(place);
            }
            board.sites.unsettle(key, site, places);
        }
        board.open(site);
    }
    count_residents(problem, rooms, snapshot, &mut board);
    board
}

fn places(problem: &Problem<'_>, sites: &mut Sites, labels: &Requirements) -> Vec<(usize, u32)> {
    let keys = problem.groups.keys.iter().enumerate();
    let keys = keys.filter(|(key, _)| *key != HOST);
    let mut places = Vec::new();
    for (key, name) in keys {
        let values = labels.get(name).and_then(Requirement::values);
        if let Some(value) = values
            .filter(|own| own.len() == 1)
            .and_then(|own| own.first())
        {
            places.push((key, sites.place(key, value)));
        }
    }
    places
}

/// The values that a node still to come may get, by keys of which it may get one of several.
fn unsettled(problem: &Problem<'_>, labels: &Requirements) -> Vec<(usize, Vec<String>)> {
    let keys = problem.groups.keys.iter().enumerate();
    let keys = keys.filter(|(key, _)| *key != HOST);
    let mut all = Vec::new();
    for (key, name) in keys {
        let values = labels.get(name).and_then(Requirement::values);
        if let Some(values) = values.filter(|own| own.len() > 1) {
            all.push((key, values.iter().take(PLACES_MAX).cloned().collect()));
        }
    }
    all
}

fn passes(problem: &Problem<'_>, filter: &Filter, room: &Room) -> bool {
    let fits = |own: &Requirements| room.labels.compatible(own, false).is_ok();
    let labels = filter.labels.is_none_or(|wants| {
        let mut alternatives = problem.wants[wants].alternatives.iter();
        alternatives.any(fits)
    });
    labels
        && filter
            .taints
            .is_none_or(|wants| repelling(&room.taints, problem.wants[wants].tolerations).is_none())
}

fn count_residents(
    problem: &Problem<'_>,
    rooms: &[&Room],
    snapshot: &Snapshot<'_>,
    board: &mut Board<'_>,
) {
    let mut site_of: BTreeMap<&NodeName, usize> = BTreeMap::new();
    for (site, room) in rooms.iter().enumerate() {
        if let Host::Node(name) = &room.host {
            site_of.insert(name, site);
        }
    }
    for resident in &snapshot.residents {
        let groups = &problem.groups;
        let of = groups.of(resident.namespace, resident.labels, &snapshot.namespaces);
        let owners = resident
            .anti_affinity
            .iter()
            .filter_map(|term| groups.place_of(term));
        let owners: Vec<(usize, usize)> = owners.collect();
        let tallies = counted(board.topology, &of, &owners, resident.deleting);
        if tallies.is_empty() {
            continue;
        }
        for (node, pods) in &resident.nodes {
            if let Some(site) = site_of.get(node) {
                for tally in &tallies {
                    board.count(*tally, *site, *pods);
                }
            }
        }
    }
    for (site, room) in rooms.iter().enumerate() {
        for (set, is_sure) in &room.daemons {
            let Some(agent) = problem.agents.find(set) else {
                continue;
            };
            let is_sure = *is_sure && problem.agents.is_certain(agent);
            for tally in &board.topology.crews[agent] {
                board.count_daemon(*tally, site, is_sure);
            }
        }
        let promised = snapshot.promised.get(&room.host);
        for pod in promised.into_iter().flatten() {
            let groups = &problem.groups;
            let of = groups.of(&pod.key.namespace, &pod.labels, &snapshot.namespaces);
            let owners = pod
                .anti_affinity
                .iter()
                .filter_map(|term| groups.place_of(term));
            let owners: Vec<(usize, usize)> = owners.collect();
            for tally in counted(board.topology, &of, &owners, pod.deleting.is_some()) {
                board.count(tally, site, 1);
            }
        }
    }
}

/// The tallies that pods of these groups, with these terms of their own, are counted in.
fn counted(
    topology: &Topology,
    of: &[bool],
    owners: &[(usize, usize)],
    deleting: bool,
) -> Vec<usize> {
    let counts = |tally: &Tally| match tally {
        Tally::Members { group, .. } => of[*group],
        Tally::Spread { group, .. } => of[*group] && !deleting,
        Tally::Owners { group, key } => owners.contains(&(*group, *key)),
    };
    let all = topology.tallies.iter().enumerate();
    all.filter(|(_, tally)| counts(tally))
        .map(|(at, _)| at)
        .collect()
}

/// Adds a site for every cell, in their order. No place exists for that: nothing is there yet.
pub(super) fn add_cells(problem: &Problem<'_>, cells: &Cells, board: &mut Board<'_>) -> Vec<usize> {
    let mut added = Vec::with_capacity(cells.all.len());
    for values in &cells.all {
        let places = places_of(problem, cells, values, &mut board.sites);
        added.push(board.sites.add(false, &places, |_| Pass::Yes));
    }
    added
}

/// The places of a cell.
pub(super) fn places_of(
    problem: &Problem<'_>,
    cells: &Cells,
    values: &[Option<String>],
    sites: &mut Sites,
) -> Vec<(usize, u32)> {
    let mut places = Vec::new();
    for (name, value) in cells.keys.iter().zip(values) {
        let key = problem.groups.keys.iter().position(|key| key == name);
        if let (Some(key), Some(value)) = (key, value) {
            places.push((key, sites.place(key, value)));
        }
    }
    places
}

/// Adds the site of a claim. Where its pods leave its place open, it is nowhere yet.
pub(super) fn add_claim(
    ground: &Ground<'_, '_>,
    lots: &[Lot<'_>],
    opened: &Opened,
    board: &mut Board<'_>,
) -> usize {
    let problem = ground.problem;
    let cell = cell_of(lots, opened);
    let values = cell.map(|cell| &ground.cells.all[cell][..]);
    let places = values.map_or_else(Vec::new, |values| {
        places_of(problem, ground.cells, values, &mut board.sites)
    });
    let filters = &board.topology.filters;
    let passes: Vec<Pass> = filters
        .iter()
        .map(
            |filter| match claim_passes(ground, filter, opened, values) {
                // What is planned may be launched as something else, though not elsewhere.
                _ if filter
                    .labels
                    .is_some_and(|wants| !is_decided(ground, lots, opened, wants))
                    && may_pass(ground, filter, opened, (values, |_| true)) =>
                {
                    Pass::Maybe
                }
                passes => Pass::surely(passes),
            },
        )
        .collect();
    board.sites.add(true, &places, |filter| passes[filter])
}

/// Counts the daemons of a claim's node, where it is or may be.
pub(super) fn count_crew(
    ground: &Ground<'_, '_>,
    opened: &Opened,
    site: usize,
    board: &mut Board<'_>,
) {
    let shape = &ground.shelves[opened.shelf].shapes[opened.claim.shape];
    for (agent, is_sure) in &shape.crew.agents {
        for tally in &ground.topology.crews[*agent] {
            board.count_daemon(*tally, site, *is_sure);
        }
    }
}

/// Whether it is certain for a claim, whatever it is launched as, that its labels are as wanted or
/// not: its own pods want the same, or no label depends on the type.
fn is_decided(ground: &Ground<'_, '_>, lots: &[Lot<'_>], opened: &Opened, wants: usize) -> bool {
    let problem = ground.problem;
    let mut parts = opened.claim.parts.iter();
    if parts.any(|(lot, _)| problem.kinds[lots[*lot].kind].bare == wants) {
        return true;
    }
    let side = &ground.shelves[opened.shelf].side;
    let single = |key: &str| {
        let values = side.get(key).and_then(Requirement::values);
        values.is_some_and(|values| values.len() == 1)
    };
    let known = |key: &str| single(key) || ground.cells.keys.iter().any(|own| own == key);
    let alternatives = problem.wants[wants].alternatives.iter();
    let mut keys = alternatives.flat_map(|own| own.iter().map(|(key, _)| key));
    keys.all(known)
}

/// The cell that the pods of a claim have to be in, if it matters to any of them.
pub(super) fn cell_of(lots: &[Lot<'_>], opened: &Opened) -> Option<usize> {
    let mut parts = opened.claim.parts.iter();
    parts.find_map(|(lot, _)| lots[*lot].cell)
}

/// Whether a claim passes a filter, being in a cell of these values if any are given.
pub(super) fn claim_passes(
    ground: &Ground<'_, '_>,
    filter: &Filter,
    opened: &Opened,
    values: Option<&[Option<String>]>,
) -> bool {
    let shape = &ground.shelves[opened.shelf].shapes[opened.claim.shape];
    let suits = |own: &Requirements| shape.suits(&of_types(own)).is_ok();
    may_pass(ground, filter, opened, (values, suits))
}

/// The same for any type of which this holds.
fn may_pass(
    ground: &Ground<'_, '_>,
    filter: &Filter,
    opened: &Opened,
    (values, suits): (Option<&[Option<String>]>, impl Fn(&Requirements) -> bool),
) -> bool {
    let shelf = &ground.shelves[opened.shelf];
    let there = |own: &Requirements| {
        let keys = ground.cells.keys.iter();
        keys.zip(values.unwrap_or_default()).all(|(key, value)| {
            let wanted = own.get(key);
            wanted.is_none_or(|wanted| match value {
                Some(value) => wanted.has(value),
                None => wanted.allows_absence(),
            })
        })
    };
    let fits =
        |own: &Requirements| shelf.side.compatible(own, true).is_ok() && suits(own) && there(own);
    let labels = filter.labels.is_none_or(|wants| {
        let mut alternatives = ground.problem.wants[wants].alternatives.iter();
        alternatives.any(fits)
    });
    labels
        && filter.taints.is_none_or(|wants| {
            repelling(&shelf.pool.taints, ground.problem.wants[wants].tolerations).is_none()
        })
}
