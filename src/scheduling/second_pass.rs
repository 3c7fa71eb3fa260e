//! A second pass for pods that have no place in the bind order, once the location of all other pods
//! is known.

use crate::scheduling::index::{IndexVec, OpenedNodeIndex, PodClassIndex, TemplateIndex};
use crate::scheduling::packing::PackedNode;
use crate::scheduling::packing::context::OpenedNode;
use crate::scheduling::packing::daemon_counts::daemons_of;
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::packing::fill_bin::{ItemGroup, offerings_of};
use crate::scheduling::packing::initial_topology::{add_cells, cell_of, claim_passes};
use crate::scheduling::packing::launch_options::{LaunchQuery, Scratch, total_requests};
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::topology::topology_state::{Match, TopologyState};

/// Step limit for the remaining pods. One step evaluates a type for one claim, or a node for one
/// class.
const REST_MAX: u64 = 20_000_000;

impl<'p> Scheduler<'_, 'p, '_> {
    /// Adds nodes for pods that have no place in the bind order. The location of all other pods is
    /// known: `board` contains every node and all bound pods. If `spreads_further`, topology
    /// spreads may use domains without nodes. Returns whether any pod was scheduled.
    pub(super) fn retry_unscheduled(
        &mut self,
        board: TopologyState<'p>,
        spreads_further: bool,
    ) -> bool {
        let context = self.context;
        let left = self.packed.left.keys().filter(|class| {
            self.packed.left[*class] > 0
                && self.calls[*class]
                && !context.topology.is_unconstrained(context.hard_kind(*class))
        });
        let left: Vec<PodClassIndex> = left.collect();
        if left.is_empty() || self.packed.cut_short {
            return false;
        }
        self.relax_preferences(&left);
        self.board = board;
        self.is_whole = false;
        self.counted = self.packed.opened.len();
        self.known_sites = self.counted;
        let sites = add_cells(context.problem, context.cells, &mut self.board);
        if spreads_further {
            self.open_cells(&sites);
        }
        let before = self.packed.left.clone();
        self.run_rounds(left, &sites, true);
        self.drop_unvaried();
        self.packed.left != before || self.packed.opened.len() > self.known_sites
    }

    /// Drops claims that violate `min_values` because of limits, once all claims are known.
    pub(super) fn drop_unvaried(&mut self) {
        let context = self.context;
        let mut scratch = Scratch::default();
        for (template, node_template) in context.templates.iter_enumerated() {
            let variety = &self.varieties[template];
            if variety.is_empty() {
                continue;
            }
            let mut ledger = self.packed.ledgers.ledger_for(template);
            for at in self.packed.opened.keys() {
                let opened = &self.packed.opened[at];
                let planned = opened.claim.shape;
                if opened.template != template
                    || opened.gone
                    || node_template.shapes[planned].reservation.is_some()
                {
                    continue;
                }
                let parts = &opened.claim.parts;
                let rows = offerings_of(&self.packed.lots, &self.offerings.rows, parts);
                let sum = total_requests(&self.packed.lots, parts);
                let query = LaunchQuery::new(node_template, variety, &rows, &sum);
                let (price, options) = (opened.claim.price, context.scheduling);
                let before = ledger.clone();
                let (_, types) =
                    query.launch_options(planned, price, options, &mut ledger, &mut scratch);
                if variety.are_satisfied_by(node_template, types.into_iter()) {
                    continue;
                }
                ledger = before;
                let limited = &node_template.shapes[planned].limited;
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

    /// Schedules remaining pods wherever possible, after all pods in the order. `board` contains
    /// every node and all bound pods. Pods without topology rules are retried only if claims were
    /// dropped (`everyone`).
    pub(super) fn place_rest(
        &mut self,
        turns: &mut Vec<PlacementStep>,
        board: &mut TopologyState<'_>,
        everyone: bool,
    ) {
        let mut steps = 0;
        let mut moved = true;
        let mut free = self.rooms.free_after(turns);
        while moved && steps < REST_MAX {
            moved = false;
            for class in self.packed.left.keys() {
                let kind = self.context.hard_kind(class);
                let cares = everyone || !self.context.topology.is_unconstrained(kind);
                let left = &mut self.packed.left[class];
                if *left == 0 || !cares {
                    continue;
                }
                let rooms = &mut self.rooms;
                moved |= rooms.place_rest(class, left, turns, &mut free, board, &mut steps);
                for at in self.packed.opened.keys() {
                    if self.packed.left[class] == 0 || steps >= REST_MAX {
                        break;
                    }
                    let template = self.packed.opened[at].template;
                    steps += self.context.templates[template].shapes.len() as u64;
                    if let Some(turn) = self.join_claim(class, at, board) {
                        turns.push(turn);
                        moved = true;
                    }
                }
            }
        }
    }

    /// Returns whether the topology state remains valid for a claim with one more pod. The pod may
    /// change its type and labels, and thus its DaemonSets and spread filters.
    fn is_same_site(
        &self,
        template: TemplateIndex,
        claim: &PackedNode,
        joined: &PackedNode,
    ) -> bool {
        let context = self.context;
        let items = self.packed.item_offerings(&self.offerings.rows);
        let [before, after] = [claim, joined].map(|claim| OpenedNode::new(template, claim.clone()));
        let cells = [&before, &after].map(|opened| cell_of(items.lots, opened));
        let mut filters = context.topology.filters.keys();
        // If a location may pass a filter, the topology state allows both results.
        filters.all(|filter| {
            let pass = claim_passes(context, filter, items, &before, cells[0]);
            pass == Match::Maybe || pass == claim_passes(context, filter, items, &after, cells[1])
        }) && daemons_of(context, items, &before) == daemons_of(context, items, &after)
    }

    /// Adds one pod to a claim if the rules of the pod and those of other pods allow it.
    fn join_claim(
        &mut self,
        class: PodClassIndex,
        at: OpenedNodeIndex,
        board: &mut TopologyState<'_>,
    ) -> Option<PlacementStep> {
        let context = self.context;
        let kind = context.hard_kind(class);
        let site = self.packed.location_of(at);
        // A claim without remaining pods is not launched.
        if self.packed.opened[at].gone {
            return None;
        }
        if !context.topology.is_unconstrained(kind) && !board.allows(kind, site) {
            return None;
        }
        let (template, cell) = {
            let opened = &self.packed.opened[at];
            (opened.template, cell_of(&self.packed.lots, opened))
        };
        let pinned = context.needs_domain(kind);
        if pinned && cell.is_none() {
            return None;
        }
        let binds_ports = !context.problem.wants_of(kind).ports.is_empty();
        for alternative in 0..context.alternatives_of(kind) {
            let cell = cell.filter(|_| pinned);
            let query = context.offering_query(kind, true, cell);
            let Some(row) = self.offerings.row_of_kind(kind, template, alternative, query) else {
                continue;
            };
            let group = context.item_group(class, kind, row);
            let lot = self.packed.lots.push_and_get_key(ItemGroup { cell, ..group });
            let stock = IndexVec::default();
            let input = self.packing_input(template, &stock);
            let mut ledger = self.packed.ledgers.ledger_for(template);
            let claim = &self.packed.opened[at].claim;
            // The pod is bound last. The topology state already allows this pod, but does not
            // contain host ports.
            let joined = match binds_ports {
                true => input.with_one_more(claim, lot, &ledger),
                false => input.with_one_more_unchecked(claim, lot, &ledger),
            };
            // Pods for which no node may be launched may not make a claim more expensive.
            if let Some(joined) = joined.filter(|joined| {
                let cheap = self.calls[class] || joined.price <= claim.price;
                cheap && self.is_same_site(template, claim, joined)
            }) {
                let shapes = &context.templates[template].shapes;
                ledger.release(&shapes[claim.shape].limited);
                ledger.reserve(&shapes[joined.shape].limited, 1);
                self.packed.ledgers.set_ledger(template, ledger);
                self.packed.opened[at].claim = joined;
                self.packed.left[class] -= 1;
                board.bind_pods(kind, site, 1);
                let pods = 1;
                return Some(PlacementStep { class, site, pods });
            }
            self.packed.lots.pop();
        }
        None
    }
}
