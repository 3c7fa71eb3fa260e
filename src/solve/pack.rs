//! Where every pod goes, in phases: first what there is, then new nodes pool by pool.
//! It must not know what a claim is called, nor how reasons are worded.
//!
//! ```text
//! pods ─► rooms ─► pools by weight: each alternative of the pods, first with every taint meant
//!           │        │                seriously, then with PreferNoSchedule as a wish
//!           ▼        ▼
//!         placed   claims ─► offerings                                       left ─► reasons
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::taint::{Effect, untolerated};
use crate::solve::choose::{Ledger, sum};
use crate::solve::draft::{Claim, Draft, NODE_COST, Order};
use crate::solve::fill::{Bin, Part, Queues, Terms, Way};
use crate::solve::problem::{Kind, Problem, clash, take, times};
use crate::solve::supply::{Row, Shelf};
use crate::state::snapshot::{Room, Snapshot};

/// Steps one draft may take, each a class looked at for one host: some nanoseconds. Beyond, pods
/// are left with `Effort`. 10,000 pods that all differ take a tenth of it.
const STEPS_MAX: u64 = 200_000_000;

/// Steps that rooms may take, each a class looked at for one room. 10,000 classes and 10,000 rooms
/// fit in.
const ROOM_STEPS_MAX: u64 = 200_000_000;

/// Below so many pods times rooms, other orders are tried where the first leaves pods waiting.
const ROOM_TRIES_MAX: u64 = 20_000_000;

/// Drafts of one round: a draft moves claims to smaller types at its end, which may free some of
/// the limits for pods that it left.
const DRAFTS_MAX: usize = 8;

/// Costs that differ by less than a quarter per cent are about the same: prices are not surer than
/// that to last, and a node saved is one less to start, to patch and to drain.
const ABOUT: f64 = 1.0025;

/// How many times its cost a node is taken to cost by the draft that makes few.
const FEW_NODES: f64 = 10.0;

/// A claim with the pool it is of.
#[derive(Debug)]
pub(super) struct Opened {
    /// The pool, by its place among the shelves.
    pub(super) shelf: usize,
    /// The claim.
    pub(super) claim: Claim,
}

/// Where everything goes.
#[derive(Debug)]
pub(super) struct Packed<'a> {
    /// Pools by weight, then name.
    pub(super) shelves: Vec<Shelf<'a>>,
    /// What the limits leave to each.
    pub(super) ledgers: Vec<Ledger>,
    /// What is placed on each room of the snapshot.
    pub(super) placed: Vec<Vec<Part>>,
    /// Nodes to be made.
    pub(super) opened: Vec<Opened>,
    /// Rows that claims refer to.
    pub(super) rows: Vec<Row>,
    /// Pods with no answer, by class.
    pub(super) left: Vec<u64>,
    /// Whether steps were used up before everything was tried.
    pub(super) cut_short: bool,
}

/// Packs all classes.
pub(super) fn pack<'a>(
    problem: &Problem<'a>,
    rooms: &[&Room],
    snapshot: &Snapshot<'a>,
    now: Timestamp,
) -> Packed<'a> {
    let mut pools: Vec<_> = snapshot.cluster.pools.iter().collect();
    pools.sort_by(|one, other| (!one.weight, &one.name).cmp(&(!other.weight, &other.name)));
    let shelf = |pool| Shelf::new(pool, problem, snapshot, now);
    let shelves: Vec<Shelf<'a>> = pools.into_iter().map(shelf).collect();
    let ledger = |shelf: &Shelf<'a>| {
        let used = snapshot.usage.get(&shelf.pool.name);
        Ledger::new(shelf, &used.cloned().unwrap_or_default())
    };
    let mut packed = Packed {
        ledgers: shelves.iter().map(ledger).collect(),
        shelves,
        placed: vec![Vec::new(); rooms.len()],
        opened: Vec::new(),
        rows: Vec::new(),
        left: problem.counts(),
        cut_short: false,
    };
    place_in_rooms(problem, rooms, &mut packed);
    open_claims(problem, &mut packed);
    let placed = packed.placed.iter().flatten().copied();
    let claims = packed.opened.iter().flat_map(|opened| &opened.claim.parts);
    let mut count = packed.left.clone();
    for (class, own) in placed.chain(claims.map(|(_, part)| *part)) {
        count[class] += own;
    }
    assert!(count == problem.counts(), "every pod is counted once");
    packed
}

// Phase 1: rooms.

/// Rooms in ordinals.
struct Rooms<'r> {
    problem: &'r Problem<'r>,
    rooms: &'r [&'r Room],
    /// What is free; none where nothing fits.
    free: Vec<Option<Vec<i64>>>,
    /// Whether a kind may go to a room, kind by kind, once it is known.
    may: Vec<Option<bool>>,
}

/// Fills the rooms there are, in the snapshot's order. Where that leaves pods waiting, other ways
/// to fill the same rooms may leave fewer.
fn place_in_rooms(problem: &Problem<'_>, rooms: &[&Room], packed: &mut Packed<'_>) {
    let mut own = Rooms {
        problem,
        rooms,
        free: rooms
            .iter()
            .map(|room| problem.axes.supply(&room.free))
            .collect(),
        may: vec![None; rooms.len() * problem.kinds.len()],
    };
    let effort = (rooms.len() * problem.classes.len()) as u64;
    let mut best = own.by_pod();
    packed.cut_short = effort > ROOM_STEPS_MAX;
    let tries = [
        (Way::Worth, true),
        (Way::Largest, true),
        (Way::Worth, false),
        (Way::Largest, false),
    ];
    for (way, largest_first) in tries {
        let waiting: u64 = best.1.iter().sum();
        if waiting == 0 || effort > ROOM_TRIES_MAX {
            break;
        }
        let other = own.by_room(way, largest_first);
        if other.1.iter().sum::<u64>() < waiting {
            best = other;
        }
    }
    own.check(&best.0);
    (packed.placed, packed.left) = best;
}

impl Rooms<'_> {
    /// Whether pods of a kind may go to a room, resources apart. `PreferNoSchedule` does not keep
    /// them away: the scheduler would bind them there rather than leave them waiting.
    fn may(&mut self, kind: usize, room: usize) -> bool {
        let at = kind * self.rooms.len() + room;
        if let Some(known) = self.may[at] {
            return known;
        }
        let (own, host) = (&self.problem.kinds[kind], &self.rooms[room]);
        let mut taints = host
            .taints
            .iter()
            .filter(|taint| taint.effect != Effect::PreferNoSchedule);
        let may = untolerated(&mut taints, own.tolerations).is_none()
            && !clash(own.ports, &host.host_ports)
            && own
                .alternatives
                .iter()
                .any(|alternative| host.labels.compatible(alternative, false).is_ok());
        self.may[at] = Some(may);
        may
    }

    /// Each class in turn to the first rooms that have room for it.
    fn by_pod(&mut self) -> (Vec<Vec<Part>>, Vec<u64>) {
        let mut free = self.free.clone();
        let mut left = self.problem.counts();
        let mut placed: Vec<Vec<Part>> = vec![Vec::new(); self.rooms.len()];
        let mut steps = 0;
        for (class, own) in self.problem.classes.iter().enumerate() {
            for room in 0..self.rooms.len() {
                steps += 1;
                if left[class] == 0 || steps > ROOM_STEPS_MAX {
                    break;
                }
                let Some(free) = &mut free[room] else {
                    continue;
                };
                let mut count = times(free, &own.demand).min(left[class]);
                if count == 0 || !self.may(own.kind, room) {
                    continue;
                }
                if !self.problem.kinds[own.kind].ports.is_empty() {
                    let there = |(other, _): &Part| self.problem.classes[*other].kind;
                    let mut others = placed[room].iter().map(there);
                    if others.any(|other| self.problem.ports_clash(own.kind, other)) {
                        continue;
                    }
                    count = 1;
                }
                take(free, &own.demand, count);
                left[class] -= count;
                placed[room].push((class, count));
            }
        }
        (placed, left)
    }

    /// Each room in turn with the pods that go together best.
    fn by_room(&mut self, way: Way, largest_first: bool) -> (Vec<Vec<Part>>, Vec<u64>) {
        let mut left = self.problem.counts();
        let mut placed: Vec<Vec<Part>> = vec![Vec::new(); self.rooms.len()];
        let mut order: Vec<usize> = (0..self.rooms.len()).collect();
        if largest_first {
            let size = |room: &usize| self.free[*room].as_ref().map(|free| (free[0], free[1]));
            order.sort_by(|one, other| size(other).cmp(&size(one)).then(one.cmp(other)));
        }
        let worth = self.worth();
        let mut steps = 0;
        for room in order {
            let Some(free) = self.free[room].clone() else {
                continue;
            };
            let kinds = self.problem.kinds.len();
            let may: Vec<bool> = (0..kinds).map(|kind| self.may(kind, room)).collect();
            let ports = |kind: usize| !self.problem.kinds[kind].ports.is_empty();
            let terms = Terms {
                mask: &|kind| u64::from(may[kind]),
                is_picky: &ports,
                apart: &|one, other| self.problem.ports_clash(one, other),
            };
            let order: Vec<usize> = (0..left.len()).filter(|class| left[*class] > 0).collect();
            let queues = order.iter().map(|class| vec![*class]).collect();
            let mut bin = Bin {
                free,
                mask: 1,
                good: 1,
                picky: Vec::new(),
            };
            let waiting = (&Queues { order, queues }, &left[..], &worth[..]);
            placed[room] = bin.fill(way, (self.problem, &terms), waiting, &mut steps);
            for (class, count) in &placed[room] {
                left[*class] -= count;
            }
        }
        (placed, left)
    }

    /// What a pod is worth where nothing is bought: the largest share of all free room it takes.
    fn worth(&self) -> Vec<f64> {
        let axes = self
            .problem
            .classes
            .first()
            .map_or(0, |class| class.demand.len());
        let mut whole = vec![0.0; axes];
        for free in self.free.iter().flatten() {
            for (whole, free) in whole.iter_mut().zip(free) {
                #[expect(clippy::cast_precision_loss, reason = "only for an order")]
                let free = *free as f64;
                *whole += free;
            }
        }
        let worth = |demand: &Vec<i64>| {
            #[expect(clippy::cast_precision_loss, reason = "only for an order")]
            let share = |(demand, whole): (&i64, &f64)| *demand as f64 / f64::max(*whole, 1.0);
            demand.iter().zip(&whole).map(share).fold(1e-12, f64::max)
        };
        let classes = self.problem.classes.iter();
        classes.map(|class| worth(&class.demand)).collect()
    }

    /// Post-condition: no room takes more than it has.
    fn check(&self, placed: &[Vec<Part>]) {
        for ((room, free), parts) in self.rooms.iter().zip(&self.free).zip(placed) {
            let whole = sum(self.problem, parts.iter().copied());
            let fits = free.as_ref().is_some_and(|free| times(free, &whole) > 0);
            assert!(
                parts.is_empty() || fits,
                "{} takes no more than it has",
                room.host
            );
        }
    }
}

// Phase 2: new claims.

/// Opens claims for what is left, pool by pool.
fn open_claims(problem: &Problem<'_>, packed: &mut Packed<'_>) {
    if packed.cut_short {
        return;
    }
    let shelves = packed.shelves.iter();
    let wishes = |shelf: &Shelf<'_>| {
        let mut taints = shelf.pool.taints.iter();
        taints.any(|taint| taint.effect == Effect::PreferNoSchedule)
    };
    let passes: &[bool] = if shelves.clone().any(wishes) {
        &[false, true]
    } else {
        &[false]
    };
    let alternatives = |kind: &Kind<'_>| kind.alternatives.len();
    let most = problem.kinds.iter().map(alternatives).max().unwrap_or(0);
    for relaxed in passes {
        for shelf in 0..packed.shelves.len() {
            for alternative in 0..most {
                open_round(problem, packed, shelf, alternative, *relaxed);
            }
        }
    }
}

/// One pool and one alternative of every kind.
fn open_round(
    problem: &Problem<'_>,
    packed: &mut Packed<'_>,
    shelf: usize,
    alternative: usize,
    relaxed: bool,
) {
    let Some(row_of) = rows(problem, packed, shelf, alternative, relaxed) else {
        return;
    };
    let order = Order {
        problem,
        shelf: &packed.shelves[shelf],
        rows: &packed.rows,
        row_of: &row_of,
        stock: &packed.left,
        node_cost: NODE_COST,
    };
    let mut left = packed.left.clone();
    let mut steps = 0;
    for opened in packed
        .opened
        .iter_mut()
        .filter(|opened| opened.shelf == shelf)
    {
        if steps > STEPS_MAX {
            break;
        }
        for (class, count) in order.top_up(&opened.claim, &left, &mut steps) {
            left[class] -= count;
            let row = row_of[problem.classes[class].kind];
            opened
                .claim
                .parts
                .extend(row.map(|row| (row, (class, count))));
        }
    }
    packed.left = left;
    for _ in 0..DRAFTS_MAX {
        let order = Order {
            problem,
            shelf: &packed.shelves[shelf],
            rows: &packed.rows,
            row_of: &row_of,
            stock: &packed.left,
            node_cost: NODE_COST,
        };
        let draft = best_draft(&order, &packed.ledgers[shelf]);
        if draft.claims.is_empty() {
            break;
        }
        let opened = draft
            .claims
            .into_iter()
            .map(|claim| Opened { shelf, claim });
        packed.opened.extend(opened);
        packed.ledgers[shelf] = draft.ledger;
        packed.left = draft.left;
        packed.cut_short |= draft.cut_short;
    }
}

/// The row of every kind that waits; none where there is nothing to be had by anyone.
fn rows(
    problem: &Problem<'_>,
    packed: &mut Packed<'_>,
    shelf: usize,
    alternative: usize,
    relaxed: bool,
) -> Option<Vec<Option<usize>>> {
    let own = &packed.shelves[shelf];
    let mut row_of = vec![None; problem.kinds.len()];
    let mut known: BTreeMap<Row, usize> = BTreeMap::new();
    let mut waits = vec![false; problem.kinds.len()];
    for (class, left) in problem.classes.iter().zip(&packed.left) {
        waits[class.kind] |= *left > 0;
    }
    for (at, kind) in problem
        .kinds
        .iter()
        .enumerate()
        .filter(|(at, _)| waits[*at])
    {
        let Some(wanted) = kind.alternatives.get(alternative) else {
            continue;
        };
        let Ok(labels) = own.admit(kind, wanted, relaxed) else {
            continue;
        };
        let row = own.row(kind, &labels);
        if row.masks.iter().all(|mask| *mask == 0) {
            continue;
        }
        row_of[at] = Some(*known.entry(row).or_insert_with_key(|row| {
            packed.rows.push(row.clone());
            packed.rows.len() - 1
        }));
    }
    row_of.iter().any(Option::is_some).then_some(row_of)
}

/// The draft that leaves the fewest pods and, of those that cost about the least, makes the fewest
/// nodes.
fn best_draft(order: &Order<'_>, ledger: &Ledger) -> Draft {
    let tries: [(&[Way], f64); 4] = [
        (&[Way::Worth, Way::Largest], NODE_COST),
        (&[Way::Worth], NODE_COST),
        (&[Way::Largest], NODE_COST),
        (&[Way::Worth, Way::Largest], FEW_NODES * NODE_COST),
    ];
    let mut drafts: Vec<Draft> = Vec::new();
    for (ways, node_cost) in tries {
        let order = Order {
            node_cost,
            ..*order
        };
        let draft = order.draft(ways, ledger, STEPS_MAX);
        let last = draft.cut_short || draft.claims.is_empty();
        if drafts.is_empty() || !draft.cut_short {
            drafts.push(draft);
        }
        if last {
            break;
        }
    }
    let waiting = |draft: &Draft| draft.left.iter().sum::<u64>();
    let least = drafts.iter().map(waiting).min().unwrap_or(0);
    drafts.retain(|draft| waiting(draft) == least);
    let cost = drafts.iter().map(Draft::cost).min_by(f64::total_cmp);
    let cost_max = cost.unwrap_or(0.0) * ABOUT;
    drafts.retain(|draft| draft.cost() <= cost_max);
    let by = |draft: &Draft| draft.claims.len();
    drafts.sort_by(|one, other| {
        by(one)
            .cmp(&by(other))
            .then(one.cost().total_cmp(&other.cost()))
    });
    drafts.swap_remove(0)
}
