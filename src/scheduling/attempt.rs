//! One complete scheduling attempt: places all pods, orders them so that they can be bound, and
//! retries pods that have no place in this order.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::assign_domains::DomainChoice;
use crate::scheduling::bind_order::bind_sequence;
use crate::scheduling::index::{LocationIndex, OpenedNodeIndex, PodClassIndex};
use crate::scheduling::packing::context::PackingState;
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::topology::topology_state::TopologyState;

/// Whether topology spreads may use domains without nodes, for each retry of the pods that no
/// domain accepted.
const RETRIES: [bool; 4] = [true, true, false, false];

/// Strategies to assign domains to planned nodes, tried while pods are unschedulable.
const CHOICES: [DomainChoice; 3] =
    [DomainChoice::Cheapest, DomainChoice::FewHopes, DomainChoice::ManyHopes];

/// A complete placement with its bind order.
pub(super) struct PlacementAttempt<'g, 'p, 'a> {
    /// The placement.
    pub(super) packer: Scheduler<'g, 'p, 'a>,
    /// The order.
    pub(super) turns: Vec<PlacementStep>,
    /// Every node, and the pods that are bound at the end of the order.
    pub(super) bound: TopologyState<'p>,
    /// Whether any packed pod was left out of the order.
    gone: bool,
}

impl PlacementAttempt<'_, '_, '_> {
    /// Returns the number of unschedulable pods.
    pub(super) fn unscheduled_pods(&self) -> u64 {
        self.packer.packed.unscheduled_pods()
    }

    /// Adds more pods to existing nodes and claims.
    fn place_rest(&mut self) {
        self.bound.takes_unsettled = true;
        let (turns, bound) = (&mut self.turns, &mut self.bound);
        self.packer.place_rest(turns, bound, self.gone);
    }
}

/// Orders packed pods and retries pods that have no place in the order. If pods remain
/// unschedulable because domains of planned nodes are undecided, domains are assigned.
pub(super) fn best_attempt<'g, 'p, 'a>(
    packer: Scheduler<'g, 'p, 'a>,
    board: &TopologyState<'p>,
) -> PlacementAttempt<'g, 'p, 'a> {
    let mut best = order_and_retry(packer, board);
    if best.unscheduled_pods() == 0 {
        return best;
    }
    let before = best.packer.clone();
    best.place_rest();
    let Some(hopes) = best.packer.demand_by_domain(&best.bound) else {
        return best;
    };
    let mut is_pinned = false;
    for choice in CHOICES {
        if best.unscheduled_pods() == 0 {
            break;
        }
        let mut packer = before.clone();
        if !packer.assign_domains(&hopes, choice) {
            break;
        }
        let mut other = order_and_retry(packer, board);
        other.place_rest();
        // An equal result is preferred, because the rejections are final once domains are assigned.
        if other.unscheduled_pods() < best.unscheduled_pods()
            || other.unscheduled_pods() == best.unscheduled_pods() && !is_pinned
        {
            (best, is_pinned) = (other, true);
        }
    }
    best
}

/// Orders packed pods, and adds nodes for pods that have no place in the order.
fn order_and_retry<'g, 'p, 'a>(
    mut packer: Scheduler<'g, 'p, 'a>,
    board: &TopologyState<'p>,
) -> PlacementAttempt<'g, 'p, 'a> {
    let (mut turns, mut bound, mut gone) = order_pods(&mut packer, board);
    for spreads_further in RETRIES {
        if !packer.retry_unscheduled(bound.clone(), spreads_further) {
            continue;
        }
        let gone_now;
        (turns, bound, gone_now) = order_pods(&mut packer, board);
        gone |= gone_now;
    }
    PlacementAttempt { packer, turns, bound, gone }
}

/// Orders packed pods and removes those that have no place in the order. Returns whether any pod
/// was removed. If a claim is dropped, the order is recomputed, because other pods may depend on
/// the pods of the claim. If DaemonSet pods count for topology rules, DaemonSet pods of nodes
/// without ordered pods may block each other. Then every second of these nodes is dropped and the
/// order is recomputed.
fn order_pods<'p>(
    packer: &mut Scheduler<'_, 'p, '_>,
    board: &TopologyState<'p>,
) -> (Vec<PlacementStep>, TopologyState<'p>, bool) {
    let rows = &packer.offerings.rows;
    let mut gone = false;
    loop {
        let before = packer.packed.kept_nodes().count();
        let mut bound = board.clone();
        let turns = bind_sequence(packer.context, &packer.packed, rows, &mut bound);
        let idle = idle_claims(&packer.packed, &turns);
        if packer.context.topology.counts_daemons() && idle.len() > 1 {
            gone = true;
            for at in idle.into_iter().skip(1).step_by(2) {
                drop_claim(&mut packer.packed, at);
            }
            continue;
        }
        gone |= drop_unordered(&mut packer.packed, &turns);
        let is_final = packer.packed.kept_nodes().count() == before;
        if is_final || packer.context.topology.tallies.is_empty() {
            return (turns, bound, gone);
        }
    }
}

/// Returns claims without any pod in the order.
fn idle_claims(packed: &PackingState<'_, '_>, turns: &[PlacementStep]) -> Vec<OpenedNodeIndex> {
    let taken: BTreeSet<LocationIndex> = turns.iter().map(|turn| turn.site).collect();
    let opened = packed.opened.iter_enumerated();
    let idle = opened.filter(|(at, node)| !node.gone && !taken.contains(&packed.location_of(*at)));
    idle.map(|(at, _)| at).collect()
}

/// Drops a claim. Its pods become unscheduled.
fn drop_claim(packed: &mut PackingState<'_, '_>, at: OpenedNodeIndex) {
    let opened = &mut packed.opened[at];
    for (lot, pods) in &mut opened.claim.parts {
        packed.left[packed.lots[*lot].class] += std::mem::take(pods);
    }
    let limited = &packed.templates[opened.template].shapes[opened.claim.shape].limited;
    packed.ledgers.release(opened.template, limited);
    opened.gone = true;
}

/// Removes pods that have no place in the order. Returns whether any pod was removed.
fn drop_unordered(packed: &mut PackingState<'_, '_>, turns: &[PlacementStep]) -> bool {
    let mut turns_left: BTreeMap<(LocationIndex, PodClassIndex), u64> = BTreeMap::new();
    for turn in turns {
        *turns_left.entry((turn.site, turn.class)).or_insert(0) += turn.pods;
    }
    let mut gone = false;
    let PackingState { rooms, placed, opened, lots, left, .. } = packed;
    let mut keep = |site: LocationIndex, class: PodClassIndex, pods: u64| {
        let placeable = turns_left.entry((site, class)).or_insert(0);
        let kept = pods.min(*placeable);
        *placeable -= kept;
        left[class] += pods - kept;
        gone |= kept < pods;
        kept
    };
    placed.retain_mut(|turn| {
        turn.pods = keep(turn.site, turn.class, turn.pods);
        turn.pods > 0
    });
    let mut empty = Vec::new();
    for (at, opened) in opened.iter_mut_enumerated() {
        // Item groups without remaining pods are kept, because they also determined the location of
        // the node.
        for (lot, pods) in &mut opened.claim.parts {
            *pods = keep(LocationIndex(*rooms + at.0), lots[*lot].class, *pods);
        }
        if !opened.gone && opened.claim.parts.iter().all(|(_, pods)| *pods == 0) {
            empty.push(at);
        }
    }
    for at in empty {
        drop_claim(packed, at);
    }
    gone
}
