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

use crate::model::taint::Effect;
use crate::solve::choose::Ledger;
use crate::solve::draft::{Claim, Draft, NODE_COST, Order};
use crate::solve::fill::{Part, Way};
use crate::solve::problem::{Kind, Problem};
use crate::solve::rooms::place;
use crate::solve::supply::{Row, Shelf};
use crate::state::snapshot::{Room, Snapshot};

/// Steps one draft may take, each a class looked at for one host: some nanoseconds. Beyond, pods
/// are left with `Effort`. 100,000 pods that all differ take half of it with 1,340 types.
const STEPS_MAX: u64 = 200_000_000;

/// A draft that takes more steps than this is not made again in other ways.
const AGAIN_MAX: u64 = 2_000_000;

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
    let placed = place(problem, rooms);
    let mut packed = Packed {
        ledgers: shelves.iter().map(ledger).collect(),
        shelves,
        placed: placed.parts,
        opened: Vec::new(),
        rows: Vec::new(),
        left: placed.left,
        cut_short: placed.cut_short,
    };
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
        let last = draft.steps > AGAIN_MAX || draft.claims.is_empty();
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
