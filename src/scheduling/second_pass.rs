//! A second chance for pods that had no turn, once it is known where all others are.
//! It must not know how the first packing came about.

use crate::scheduling::packing::PackedNode;
use crate::scheduling::packing::context::OpenedNode;
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::packing::fill_bin::ItemGroup;
use crate::scheduling::packing::initial_topology::{add_cells, cell_of, claim_passes, crew_of};
use crate::scheduling::packing::launch_options::{Scratch, offerings, sum};
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::topology::topology_state::{Match, TopologyState};

/// Steps for pods that are left when all others have their turn, each a type looked at for one
/// claim, or a room for one class.
const REST_MAX: u64 = 20_000_000;

impl<'p> Scheduler<'_, 'p, '_> {
    /// Makes nodes for pods that had no turn, now that it is known where all others are: `board`
    /// has every host and all that was bound. They are spread over places where nodes could be, or
    /// else only where there are any. Says whether that gave any a place.
    pub(super) fn retry(&mut self, board: TopologyState<'p>, spreads_further: bool) -> bool {
        let problem = self.ground.problem;
        let hard = |class: &usize| problem.without_wishes(problem.classes[*class].kind);
        let left = (0..problem.classes.len()).filter(|class| self.packed.left[*class] > 0);
        let left: Vec<usize> = left
            .filter(|class| self.calls[*class] && !self.ground.topology.is_free(hard(class)))
            .collect();
        if left.is_empty() || self.packed.cut_short {
            return false;
        }
        self.begin_last_wish(&left);
        self.board = board;
        self.is_whole = false;
        self.counted = self.packed.opened.len();
        self.known_sites = self.counted;
        let sites = add_cells(problem, self.ground.cells, &mut self.board);
        if spreads_further {
            self.open_cells(&sites);
        }
        let before = self.packed.left.clone();
        self.rounds(left, &sites, true);
        self.drop_unvaried();
        self.packed.left != before || self.packed.opened.len() > self.known_sites
    }

    /// Gives up claims for which the limits leave too little variety, now that all are known.
    pub(super) fn drop_unvaried(&mut self) {
        let ground = self.ground;
        let mut scratch = Scratch::default();
        for (shelf, own) in ground.shelves.iter().enumerate() {
            let variety = MinValues::of(own, ground.scheduling.min_values);
            if variety.is_empty() {
                continue;
            }
            let mut ledger = self.packed.ledgers.of(shelf);
            for at in 0..self.packed.opened.len() {
                let opened = &self.packed.opened[at];
                let planned = opened.claim.shape;
                let needs_none = || own.shapes[planned].reservation.is_some();
                if opened.shelf != shelf || opened.gone || needs_none() {
                    continue;
                }
                let order = self.order(shelf, &[]);
                let rows = order.rows_of(&opened.claim.parts);
                let whole = sum(&self.packed.lots, &opened.claim.parts);
                let planned = (opened.claim.shape, opened.claim.price);
                let before = ledger.clone();
                let asked = (&whole[..], ground.scheduling);
                let books = (&mut ledger, &mut scratch);
                let (_, types) = offerings((own, &variety), planned, &rows, asked, books);
                if variety.has(own, types.into_iter()) {
                    continue;
                }
                ledger = before;
                let limited = &own.shapes[planned.0].limited;
                ledger.release(limited);
                self.packed.ledgers.release(shelf, limited);
                let opened = &mut self.packed.opened[at];
                opened.gone = true;
                for (lot, pods) in std::mem::take(&mut opened.claim.parts) {
                    self.packed.left[self.packed.lots[lot].class] += pods;
                }
            }
        }
    }

    /// Gives pods that are left a place wherever there is one after all these turns, `board` having
    /// every host and all that was bound. Those who do not care where others are had their chance
    /// unless some are gone again (`everyone`).
    pub(super) fn place_rest(
        &mut self,
        turns: &mut Vec<PlacementStep>,
        board: &mut TopologyState<'_>,
        everyone: bool,
    ) {
        let mut steps = 0;
        let mut moved = true;
        let mut free = self.rooms.rest(turns);
        while moved && steps < REST_MAX {
            moved = false;
            for class in 0..self.packed.left.len() {
                let kind = self.ground.problem.classes[class].kind;
                let kind = self.ground.problem.without_wishes(kind);
                let cares = everyone || !self.ground.topology.is_free(kind);
                if self.packed.left[class] == 0 || !cares {
                    continue;
                }
                let left = (&mut self.packed.left[class], &mut *turns);
                let there = (&mut *board, &mut free);
                moved |= self.rooms.place_rest(class, left, there, &mut steps);
                for at in 0..self.packed.opened.len() {
                    if self.packed.left[class] == 0 || steps >= REST_MAX {
                        break;
                    }
                    let shelf = self.packed.opened[at].shelf;
                    steps += self.ground.shelves[shelf].shapes.len() as u64;
                    if let Some(turn) = self.join(class, at, board) {
                        turns.push(turn);
                        moved = true;
                    }
                }
            }
        }
    }

    /// Whether the board still counts the site of a claim correctly once the claim has one more
    /// pod, which may change its type and labels: its daemons, and the filters of spreads that it
    /// passes.
    fn is_same_site(&self, (shelf, claim): (usize, &PackedNode), joined: &PackedNode) -> bool {
        let ground = self.ground;
        let known = (&self.packed.lots[..], &self.market.rows[..]);
        let opened = |claim: &PackedNode| OpenedNode {
            shelf,
            claim: claim.clone(),
            gone: false,
        };
        let (before, after) = (opened(claim), opened(joined));
        let cell = |own: &OpenedNode| cell_of(&self.packed.lots, own);
        let pass = |filter, own| claim_passes(ground, filter, known, (own, cell(own)));
        let mut filters = 0..ground.topology.filters.len();
        // The board allows for both answers where a site may pass.
        let holds = |filter| {
            let before = pass(filter, &before);
            before == Match::Maybe || before == pass(filter, &after)
        };
        filters.all(holds) && crew_of(ground, known, &before) == crew_of(ground, known, &after)
    }

    /// Puts one more pod of a class onto a claim, if its rules and those of others allow it.
    fn join(
        &mut self,
        class: usize,
        at: usize,
        board: &mut TopologyState<'_>,
    ) -> Option<PlacementStep> {
        let ground = self.ground;
        let own = &ground.problem.classes[class];
        let kind = ground.problem.without_wishes(own.kind);
        let site = self.packed.rooms + at;
        // One that lost its pods is no node to be made.
        if self.packed.opened[at].gone {
            return None;
        }
        if !ground.topology.is_free(kind) && !board.allows(kind, site) {
            return None;
        }
        let wants = ground.problem.kinds[kind].wants;
        let (shelf, cell) = {
            let opened = &self.packed.opened[at];
            (opened.shelf, cell_of(&self.packed.lots, opened))
        };
        let pinned = ground.topology.is_pinned(kind) && !ground.cells.keys.is_empty();
        if pinned && cell.is_none() {
            return None;
        }
        let own_ports = !ground.problem.wants[wants].ports.is_empty();
        for alternative in 0..ground.problem.wants[wants].alternatives.len() {
            let cell = cell.filter(|_| pinned);
            let key = (wants, shelf, alternative, true, cell);
            let Some(row) = self.market.row_of_kind(kind, key) else {
                continue;
            };
            self.packed.lots.push(ItemGroup {
                class,
                kind,
                demand: &own.demand,
                per_unit: &own.per_unit,
                shares: &ground.hosts.shares[kind],
                row,
                cell,
                together: 1,
            });
            let lot = self.packed.lots.len() - 1;
            let order = self.order(shelf, &[]);
            let mut ledger = self.packed.ledgers.of(shelf);
            let claim = &self.packed.opened[at].claim;
            let joined = order.joined_last(claim, (lot, own_ports), &ledger);
            // Who is not worth a node is not worth a dearer one.
            let worth = |joined: &PackedNode| {
                let cheap = self.calls[class] || joined.price <= claim.price;
                cheap && self.is_same_site((shelf, claim), joined)
            };
            if let Some(joined) = joined.filter(worth) {
                let shapes = &ground.shelves[shelf].shapes;
                ledger.release(&shapes[claim.shape].limited);
                ledger.reserve(&shapes[joined.shape].limited, 1);
                self.packed.ledgers.put(shelf, ledger);
                self.packed.opened[at].claim = joined;
                self.packed.left[class] -= 1;
                board.bind(kind, site, 1);
                return Some(PlacementStep {
                    class,
                    site,
                    pods: 1,
                });
            }
            self.packed.lots.pop();
        }
        None
    }
}
