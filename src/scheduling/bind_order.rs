//! Orders pods so that every rule holds at each binding. All planned nodes are assumed to exist
//! from the start.

use std::collections::BTreeMap;

use crate::scheduling::index::{
    DomainIndex, IndexVec, KeyIndex, KindIndex, LocationIndex, PodClassIndex, RowIndex,
    TemplateIndex,
};
use crate::scheduling::packing::context::{PackingContext, PackingState};
use crate::scheduling::packing::daemon_counts::count_daemons;
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::packing::fill_bin::row_ids_in;
use crate::scheduling::packing::initial_topology::{add_claim, cell_of, claim_passes, places_of};
use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::topology::DomainCounter;
use crate::scheduling::topology::topology_state::{Match, NOWHERE, TopologyState};

/// Step limit of the ordering. One step evaluates some pods of one class.
const STEPS_MAX: u64 = 100_000_000;

/// Orders all packed pods. Pods that never satisfy their rules are left out. `board` contains the
/// nodes and bound pods.
pub(super) fn bind_sequence(
    context: &PackingContext<'_, '_>,
    packed: &PackingState<'_, '_>,
    rows: &IndexVec<RowIndex, CompatibleOfferings>,
    board: &mut TopologyState<'_>,
) -> Vec<PlacementStep> {
    if context.topology.tallies.is_empty() {
        return unordered_steps(packed);
    }
    add_claims(context, packed, rows, board);
    let problem = context.problem;
    let placed = packed.placed.iter();
    let placed = placed.map(|turn| (*turn, context.hard_kind(turn.class)));
    let mut queue: Vec<(PlacementStep, KindIndex)> = placed.collect();
    let mut steps_by_cell: BTreeMap<(PodClassIndex, DomainIndex), Vec<(PlacementStep, KindIndex)>> =
        BTreeMap::new();
    let mut others = Vec::new();
    for (at, opened) in packed.opened.iter_enumerated() {
        for (lot, pods) in &opened.claim.parts {
            let lot = &packed.lots[*lot];
            let (class, site, pods) = (lot.class, packed.location_of(at), *pods);
            let kind = problem.without_preferences(lot.kind);
            let turn = (PlacementStep { class, site, pods }, kind);
            match lot.cell {
                Some(cell) => steps_by_cell.entry((class, cell)).or_default().push(turn),
                None => others.push(turn),
            }
        }
    }
    // Pods that were assigned to domains are bound in the order of assignment, on any node of the
    // domain.
    for allocation in &packed.dealt {
        let Some(turns) = steps_by_cell.get_mut(&(allocation.class, allocation.cell)) else {
            continue;
        };
        let mut left = allocation.pods;
        while let Some((turn, kind)) = turns.last_mut().filter(|_| left > 0) {
            let pods = left.min(turn.pods);
            queue.push((PlacementStep { pods, ..*turn }, *kind));
            left -= pods;
            turn.pods -= pods;
            if turn.pods == 0 {
                turns.pop();
            }
        }
    }
    // Pods that were assigned to a domain later are ordered together with all other pods.
    others.extend(steps_by_cell.into_values().flatten());
    let others = others.into_iter();
    let (early, late): (Vec<_>, Vec<_>) =
        others.partition(|(_, kind)| context.topology.has_spread(*kind));
    queue.extend(early);
    queue.extend(late);
    bind_in_order(queue, board)
}

/// Without topology rules, any order is valid.
fn unordered_steps(packed: &PackingState<'_, '_>) -> Vec<PlacementStep> {
    let mut turns = packed.placed.clone();
    for (at, opened) in packed.opened.iter_enumerated() {
        turns.extend(opened.claim.parts.iter().map(|(lot, pods)| PlacementStep {
            class: packed.lots[*lot].class,
            site: packed.location_of(at),
            pods: *pods,
        }));
    }
    turns
}

fn add_claims(
    context: &PackingContext<'_, '_>,
    packed: &PackingState<'_, '_>,
    rows: &IndexVec<RowIndex, CompatibleOfferings>,
    board: &mut TopologyState<'_>,
) {
    // A claim without a domain may be launched in every domain where it has offerings.
    let mut cells: BTreeMap<DomainIndex, LocationIndex> = BTreeMap::new();
    let mut open_to: BTreeMap<(TemplateIndex, Vec<RowIndex>), Vec<DomainIndex>> = BTreeMap::new();
    let mut open = Vec::new();
    let items = packed.item_offerings(rows);
    for opened in &packed.opened {
        let site = add_claim(context, items, opened, board);
        if opened.gone {
            continue;
        }
        board.open_domains(site);
        if cell_of(&packed.lots, opened).is_none() {
            open.push((opened, site));
        } else {
            count_daemons(context, items, opened, site, board);
        }
    }
    for (opened, site) in open {
        let mut places: BTreeMap<KeyIndex, Vec<u32>> = BTreeMap::new();
        let row_ids = row_ids_in(&packed.lots, &opened.claim.parts);
        let reach =
            open_to.entry((opened.template, row_ids)).or_insert_with_key(|(template, row_ids)| {
                let offerings: Vec<&CompatibleOfferings> =
                    row_ids.iter().map(|row| &rows[*row]).collect();
                context.cells.domains_with_offerings(*template, &offerings)
            });
        for cell in reach.iter().copied() {
            let values = &context.cells.all[cell];
            let of_cell = *cells.entry(cell).or_insert_with(|| {
                let places = places_of(context.problem, context.cells, values, &mut board.sites);
                board.sites.add_location(false, &places, |_| Match::Yes)
            });
            for key in context.problem.groups.keys.keys().filter(|key| *key != HOST) {
                let place = board.sites.domain_of(key, of_cell);
                let known = places.entry(key).or_default();
                if place != NOWHERE && !known.contains(&place) {
                    known.push(place);
                }
            }
            for (at, tally) in context.topology.tallies.iter_enumerated() {
                if let DomainCounter::Spread { key, filter, .. } = tally
                    && *key != HOST
                    && board.sites.may_pass(*filter, site)
                    && claim_passes(context, *filter, items, opened, Some(cell)) != Match::No
                {
                    board.open_for(at, of_cell);
                }
            }
        }
        for (key, places) in places.into_iter().filter(|(_, places)| !places.is_empty()) {
            board.sites.set_undecided(key, site, places);
        }
        board.open_domains(site);
        count_daemons(context, items, opened, site, board);
    }
}

/// Binds pods in this order. A pod whose rules do not hold yet is retried after all other pods,
/// until no further pod can be bound.
fn bind_in_order(
    mut queue: Vec<(PlacementStep, KindIndex)>,
    board: &mut TopologyState<'_>,
) -> Vec<PlacementStep> {
    let topology = board.topology;
    let mut turns: Vec<PlacementStep> = Vec::with_capacity(queue.len());
    let mut steps = 0;
    loop {
        let before = turns.len();
        queue.retain_mut(|(turn, kind)| {
            while turn.pods > 0 && steps < STEPS_MAX {
                steps += 1;
                if !board.allows(*kind, turn.site) {
                    return true;
                }
                let unconstrained = topology.checks[*kind].is_empty();
                let pods = if unconstrained { turn.pods } else { 1 };
                if !topology.adds[*kind].is_empty() {
                    board.bind_pods(*kind, turn.site, u32::try_from(pods).unwrap_or(u32::MAX));
                }
                turns.push(PlacementStep { pods, ..*turn });
                turn.pods -= pods;
            }
            turn.pods > 0
        });
        if turns.len() == before || queue.is_empty() {
            return turns;
        }
    }
}
