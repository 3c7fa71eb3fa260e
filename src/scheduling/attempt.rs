//! One way to place everything, put into an order in which it can be bound, with another chance for
//! those who have no turn in it.
//! It must not know how the first packing came about, nor what is said of those that are left.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::assign_domains::DomainChoice;
use crate::scheduling::bind_order::sequence;
use crate::scheduling::packing::context::PackingState;
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::topology::topology_state::TopologyState;

/// Nodes are made so many times for pods that had no turn among the others, and whether they are
/// spread over places where there is no node yet.
const RETRIES: [bool; 4] = [true, true, false, false];

/// How planned nodes get a place each, one way after the other while pods are left for want of it.
const CHOICES: [DomainChoice; 3] = [
    DomainChoice::Cheapest,
    DomainChoice::FewHopes,
    DomainChoice::ManyHopes,
];

/// One way to place everything, with the order in which it can be bound.
pub(super) struct PlacementAttempt<'g, 'p, 'a> {
    /// Where everything goes.
    pub(super) packer: Scheduler<'g, 'p, 'a>,
    /// The order.
    pub(super) turns: Vec<PlacementStep>,
    /// Every host, and all that is bound in the end.
    pub(super) bound: TopologyState<'p>,
    /// Whether anything that was packed has no turn.
    gone: bool,
}

impl PlacementAttempt<'_, '_, '_> {
    /// How many pods it leaves out.
    pub(super) fn left(&self) -> u64 {
        self.packer.packed.left.iter().sum()
    }

    /// Fills what is there further.
    fn place_rest(&mut self) {
        self.bound.takes_unsettled = true;
        let (turns, bound) = (&mut self.turns, &mut self.bound);
        self.packer.place_rest(turns, bound, self.gone);
    }
}

/// Puts what is packed into order, and gives those who have no turn another chance. Where they are
/// left out because it is open where planned nodes will be, these get a place each.
pub(super) fn settled<'g, 'p, 'a>(
    packer: Scheduler<'g, 'p, 'a>,
    board: &TopologyState<'p>,
) -> PlacementAttempt<'g, 'p, 'a> {
    let mut best = tried(packer, board);
    if best.left() == 0 {
        return best;
    }
    let before = best.packer.clone();
    best.place_rest();
    let Some(hopes) = best.packer.hopes(&best.bound) else {
        return best;
    };
    let mut is_pinned = false;
    for choice in CHOICES {
        if best.left() == 0 {
            break;
        }
        let mut packer = before.clone();
        if !packer.pin(&hopes, choice) {
            break;
        }
        let mut other = tried(packer, board);
        other.place_rest();
        // As good as before it is better: what is refused is refused for good.
        if other.left() < best.left() || other.left() == best.left() && !is_pinned {
            (best, is_pinned) = (other, true);
        }
    }
    best
}

/// Puts what is packed into order, and makes nodes for those who have no turn.
fn tried<'g, 'p, 'a>(
    mut packer: Scheduler<'g, 'p, 'a>,
    board: &TopologyState<'p>,
) -> PlacementAttempt<'g, 'p, 'a> {
    let (mut turns, mut bound, mut gone) = ordered(&mut packer, board);
    for spreads_further in RETRIES {
        if !packer.retry(bound.clone(), spreads_further) {
            continue;
        }
        let more;
        (turns, bound, more) = ordered(&mut packer, board);
        gone |= more;
    }
    PlacementAttempt {
        packer,
        turns,
        bound,
        gone,
    }
}

/// Puts what is packed into order and takes out what has no turn. Says whether that was anything. A
/// node that is not to be made after all was in that order, and its pods may have given other pods
/// their turn: then the order is made anew. If daemons count for rules about places, the daemons of
/// nodes without any turn may keep the pods of each other away: then every second of these nodes is
/// given up, and the order is made anew.
fn ordered<'p>(
    packer: &mut Scheduler<'_, 'p, '_>,
    board: &TopologyState<'p>,
) -> (Vec<PlacementStep>, TopologyState<'p>, bool) {
    let rows = &packer.market.rows;
    let nodes =
        |packed: &PackingState<'_, '_>| packed.opened.iter().filter(|own| !own.gone).count();
    let mut gone = false;
    loop {
        let before = nodes(&packer.packed);
        let mut bound = board.clone();
        let turns = sequence(packer.ground, (&packer.packed, rows), &mut bound);
        let idle = idle(&packer.packed, &turns);
        if packer.ground.topology.counts_daemons() && idle.len() > 1 {
            gone = true;
            for at in idle.into_iter().skip(1).step_by(2) {
                give_up(&mut packer.packed, at);
            }
            continue;
        }
        gone |= settle(&mut packer.packed, &turns);
        if nodes(&packer.packed) == before || packer.ground.topology.tallies.is_empty() {
            return (turns, bound, gone);
        }
    }
}

/// Claims of which no pod has a turn.
fn idle(packed: &PackingState<'_, '_>, turns: &[PlacementStep]) -> Vec<usize> {
    let taken: BTreeSet<usize> = turns.iter().map(|turn| turn.site).collect();
    let opened = packed.opened.iter().enumerate();
    let idle = opened.filter(|(at, own)| !own.gone && !taken.contains(&(packed.rooms + at)));
    idle.map(|(at, _)| at).collect()
}

/// Gives up a claim: no node is made of it, and its pods are left.
fn give_up(packed: &mut PackingState<'_, '_>, at: usize) {
    let opened = &mut packed.opened[at];
    for (lot, pods) in &mut opened.claim.parts {
        packed.left[packed.lots[*lot].class] += std::mem::take(pods);
    }
    let limited = &packed.shelves[opened.shelf].shapes[opened.claim.shape].limited;
    packed.ledgers.release(opened.shelf, limited);
    opened.gone = true;
}

/// Takes out what has no turn. Says whether that was anything.
fn settle(packed: &mut PackingState<'_, '_>, turns: &[PlacementStep]) -> bool {
    let mut had: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for turn in turns {
        *had.entry((turn.site, turn.class)).or_insert(0) += turn.pods;
    }
    let mut gone = false;
    let PackingState {
        rooms,
        placed,
        opened,
        lots,
        left,
        ..
    } = packed;
    let mut keep = |site: usize, class: usize, pods: u64| {
        let own = had.entry((site, class)).or_insert(0);
        let kept = pods.min(*own);
        *own -= kept;
        left[class] += pods - kept;
        gone |= kept < pods;
        kept
    };
    placed.retain_mut(|turn| {
        turn.pods = keep(turn.site, turn.class, turn.pods);
        turn.pods > 0
    });
    let mut empty = Vec::new();
    for (at, opened) in opened.iter_mut().enumerate() {
        // Parts of none stay: where the node is was settled by them, too.
        for (lot, pods) in &mut opened.claim.parts {
            *pods = keep(*rooms + at, lots[*lot].class, *pods);
        }
        if !opened.gone && opened.claim.parts.iter().all(|(_, pods)| *pods == 0) {
            empty.push(at);
        }
    }
    for at in empty {
        give_up(packed, at);
    }
    gone
}
