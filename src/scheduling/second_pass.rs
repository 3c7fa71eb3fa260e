//! A second pass for pods without a turn, once the location of all other pods is known.

use crate::scheduling::packing::PackedNode;
use crate::scheduling::packing::context::OpenedNode;
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::packing::fill_bin::ItemGroup;
use crate::scheduling::packing::initial_topology::{add_cells, cell_of, claim_passes, daemons_of};
use crate::scheduling::packing::launch_options::{Scratch, offerings, sum};
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::topology::topology_state::{Match, TopologyState};

/// Step limit for remaining pods. One step evaluates a type for one claim, or a node for one class.
const REST_MAX: u64 = 20_000_000;

impl<'p> Scheduler<'_, 'p, '_> {
    /// Adds nodes for pods without a turn, now that the location of all others is known: `board`
    /// contains every host and all bound pods. Spreads may use domains of possible nodes, or only
    /// those of existing nodes. Returns whether any pod was scheduled.
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

    /// Drops claims that violate `min_values` because of limits, once all claims are known.
    pub(super) fn drop_unvaried(&mut self) {
        let ground = self.ground;
        let mut scratch = Scratch::default();
        for (template, node_template) in ground.templates.iter().enumerate() {
            let variety = MinValues::of(node_template, ground.scheduling.min_values);
            if variety.is_empty() {
                continue;
            }
            let mut ledger = self.packed.ledgers.of(template);
            for at in 0..self.packed.opened.len() {
                let opened = &self.packed.opened[at];
                let planned = opened.claim.shape;
                let needs_none = || node_template.shapes[planned].reservation.is_some();
                if opened.template != template || opened.gone || needs_none() {
                    continue;
                }
                let order = self.order(template, &[]);
                let rows = order.rows_of(&opened.claim.parts);
                let whole = sum(&self.packed.lots, &opened.claim.parts);
                let planned = (opened.claim.shape, opened.claim.price);
                let before = ledger.clone();
                let asked = (&whole[..], ground.scheduling);
                let books = (&mut ledger, &mut scratch);
                let (_, types) = offerings((node_template, &variety), planned, &rows, asked, books);
                if variety.has(node_template, types.into_iter()) {
                    continue;
                }
                ledger = before;
                let limited = &node_template.shapes[planned.0].limited;
                ledger.release(limited);
                self.packed.ledgers.release(template, limited);
                let opened = &mut self.packed.opened[at];
                opened.gone = true;
                for (lot, pods) in std::mem::take(&mut opened.claim.parts) {
                    self.packed.left[self.packed.lots[lot].class] += pods;
                }
            }
        }
    }

    /// Schedules remaining pods wherever possible after all turns. `board` contains every host and
    /// all bound pods. Pods without topology rules are retried only if claims were dropped
    /// (`everyone`).
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
                    let template = self.packed.opened[at].template;
                    steps += self.ground.templates[template].shapes.len() as u64;
                    if let Some(turn) = self.join(class, at, board) {
                        turns.push(turn);
                        moved = true;
                    }
                }
            }
        }
    }

    /// Returns whether the topology state remains valid for a claim with one more pod. The pod may
    /// change its type and labels, and thus its DaemonSets and spread filters.
    fn is_same_site(&self, (template, claim): (usize, &PackedNode), joined: &PackedNode) -> bool {
        let ground = self.ground;
        let known = (&self.packed.lots[..], &self.market.rows[..]);
        let opened = |claim: &PackedNode| OpenedNode {
            template,
            claim: claim.clone(),
            gone: false,
        };
        let (before, after) = (opened(claim), opened(joined));
        let cell = |opened: &OpenedNode| cell_of(&self.packed.lots, opened);
        let pass = |filter, opened| claim_passes(ground, filter, known, (opened, cell(opened)));
        let mut filters = 0..ground.topology.filters.len();
        // The topology state allows both results if a location may pass.
        filters.all(|filter| {
            let before = pass(filter, &before);
            before == Match::Maybe || before == pass(filter, &after)
        }) && daemons_of(ground, known, &before) == daemons_of(ground, known, &after)
    }

    /// Adds one pod to a claim if its rules and those of other pods allow it.
    fn join(
        &mut self,
        class: usize,
        at: usize,
        board: &mut TopologyState<'_>,
    ) -> Option<PlacementStep> {
        let ground = self.ground;
        let pod_class = &ground.problem.classes[class];
        let kind = ground.problem.without_wishes(pod_class.kind);
        let site = self.packed.rooms + at;
        // A claim that lost its pods is not launched.
        if self.packed.opened[at].gone {
            return None;
        }
        if !ground.topology.is_free(kind) && !board.allows(kind, site) {
            return None;
        }
        let wants = ground.problem.kinds[kind].wants;
        let (template, cell) = {
            let opened = &self.packed.opened[at];
            (opened.template, cell_of(&self.packed.lots, opened))
        };
        let pinned = ground.topology.is_pinned(kind) && !ground.cells.keys.is_empty();
        if pinned && cell.is_none() {
            return None;
        }
        let own_ports = !ground.problem.wants[wants].ports.is_empty();
        for alternative in 0..ground.problem.wants[wants].alternatives.len() {
            let cell = cell.filter(|_| pinned);
            let key = (wants, template, alternative, true, cell);
            let Some(row) = self.market.row_of_kind(kind, key) else {
                continue;
            };
            self.packed.lots.push(ItemGroup {
                class,
                kind,
                demand: &pod_class.demand,
                per_unit: &pod_class.per_unit,
                shares: &ground.hosts.shares[kind],
                row,
                cell,
                together: 1,
            });
            let lot = self.packed.lots.len() - 1;
            let order = self.order(template, &[]);
            let mut ledger = self.packed.ledgers.of(template);
            let claim = &self.packed.opened[at].claim;
            let joined = order.joined_last(claim, (lot, own_ports), &ledger);
            // Pods that may not launch a node may not launch a more expensive one.
            if let Some(joined) = joined.filter(|joined| {
                let cheap = self.calls[class] || joined.price <= claim.price;
                cheap && self.is_same_site((template, claim), joined)
            }) {
                let shapes = &ground.templates[template].shapes;
                ledger.release(&shapes[claim.shape].limited);
                ledger.reserve(&shapes[joined.shape].limited, 1);
                self.packed.ledgers.put(template, ledger);
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
