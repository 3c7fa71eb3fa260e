//! Where every pod goes, in phases: first what there is, then new nodes pool by pool.
//! It must not know what a claim is called, nor how reasons are worded.
//!
//! ```text
//! pods ─► rooms ─► for every wish that gives way, and last PreferNoSchedule:
//!           │        those whose place matters ─► cells
//!           │        pools by weight, each alternative of the pods ─► claims
//!           ▼                                                           │
//!         placed                                                        ▼
//!           └────────────────► the order in which all may be bound ◄────┘      left ─► reasons
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::taint::Effect;
use crate::solve::axes::times;
use crate::solve::board::Board;
use crate::solve::choose::Ledger;
use crate::solve::distribute::{Asked, distribute};
use crate::solve::draft::Order;
use crate::solve::fill::{Lot, Queues};
use crate::solve::ground::{Ground, Opened, Packed};
use crate::solve::packing::{STEPS_MAX, best_draft};
use crate::solve::problem::{Class, Problem};
use crate::solve::rooms::Rooms;
use crate::solve::sites::{add_cells, add_claim};
use crate::solve::supply::{Row, Shelf};
use crate::solve::topology::Check;
use crate::solve::variety::{Variety, widen};
use crate::state::snapshot::{Room, Snapshot};

/// Drafts of one round: a draft moves claims to smaller types at its end, which may free some of
/// the limits for pods that it left.
const DRAFTS_MAX: usize = 8;

/// The shelves of a snapshot: pools that pods may call for, by weight, then name.
pub(super) fn shelves<'a>(
    problem: &Problem<'_>,
    snapshot: &Snapshot<'a>,
    now: Timestamp,
) -> Vec<Shelf<'a>> {
    let pools = snapshot.cluster.pools.iter();
    let mut pools: Vec<_> = pools.filter(|pool| pool.replicas.is_none()).collect();
    pools.sort_by(|one, other| (!one.weight, &one.name).cmp(&(!other.weight, &other.name)));
    let shelf = |pool| {
        let mut shelf = Shelf::new(pool, problem, snapshot, now);
        widen(&mut shelf, snapshot.cluster.scheduling.min_values);
        shelf
    };
    pools.into_iter().map(shelf).collect()
}

/// Packs all classes. `board` has the rooms, in their order, and what is on them.
pub(super) fn pack<'g, 'p, 'a>(
    ground: &'g Ground<'p, 'a>,
    rooms: &'p [&'p Room],
    snapshot: &Snapshot<'_>,
    board: Board<'p>,
) -> Packer<'g, 'p, 'a> {
    let problem = ground.problem;
    let ledger = |shelf: &Shelf<'a>| {
        let used = snapshot.usage.get(&shelf.pool.name);
        Ledger::new(shelf, &used.cloned().unwrap_or_default())
    };
    let cutoff = snapshot.cluster.scheduling.priority_cutoff;
    let calls = |class: &Class<'_>| cutoff.is_none_or(|least| class.priority >= least);
    let mut packer = Packer {
        ground,
        rooms: Rooms::new(problem, rooms),
        reach: BTreeMap::new(),
        prices: BTreeMap::new(),
        known_rows: BTreeMap::new(),
        row_of: BTreeMap::new(),
        kinds: problem.classes.iter().map(|class| class.kind).collect(),
        board,
        counted: 0,
        calls: problem.classes.iter().map(calls).collect(),
        varieties: ground
            .shelves
            .iter()
            .map(|shelf| Variety::of(shelf, ground.scheduling.min_values))
            .collect(),
        packed: Packed {
            ledgers: ground.shelves.iter().map(ledger).collect(),
            shelves: ground.shelves,
            placed: Vec::new(),
            dealt: Vec::new(),
            rooms: rooms.len(),
            opened: Vec::new(),
            lots: Vec::new(),
            rows: Vec::new(),
            left: Vec::new(),
            cut_short: false,
        },
    };
    let sites = add_cells(problem, ground.cells, &mut packer.board);
    packer.open_cells(&sites);
    let placed = packer.rooms.place(&mut packer.board);
    packer.packed.placed = placed.turns;
    packer.packed.left = placed.left;
    packer.packed.cut_short = placed.cut_short;
    packer.open_claims(&sites);
    packer.drop_unvaried();
    packer.check();
    packer
}

/// What of a row there is: of whom, from whom, which alternative, with which taints, where.
type RowKey = (usize, usize, usize, bool, Option<usize>);

/// Whose price it is: of what is wanted, with which taints, where, for which demand.
type PriceKey<'p> = (usize, bool, usize, &'p [i64]);

/// A packing in the making.
pub(super) struct Packer<'g, 'p, 'a> {
    pub(super) ground: &'g Ground<'p, 'a>,
    /// What comes of it.
    pub(super) packed: Packed<'p, 'a>,
    pub(super) rooms: Rooms<'p>,
    /// Cells where what is wanted can be had, with the row.
    reach: BTreeMap<(usize, bool), Vec<usize>>,
    known_rows: BTreeMap<Row, usize>,
    row_of: BTreeMap<RowKey, Option<usize>>,
    /// What a node costs for what is wanted, in a cell, for a demand; while limits stay the same.
    prices: BTreeMap<PriceKey<'p>, Option<f64>>,
    /// What every class has come to be, wish by wish.
    pub(super) kinds: Vec<usize>,
    pub(super) board: Board<'p>,
    /// How many claims are on the board.
    pub(super) counted: usize,
    /// Whether pods of a class are worth a node.
    pub(super) calls: Vec<bool>,
    /// The variety that each pool wants.
    varieties: Vec<Variety<'p>>,
}

impl<'p> Packer<'_, 'p, '_> {
    /// Lets the places exist that pods which are spread can reach: a node may be made there.
    pub(super) fn open_cells(&mut self, sites: &[usize]) {
        let ground = self.ground;
        for (kind, checks) in ground.topology.checks.iter().enumerate() {
            for check in checks {
                let Check::Even { tally, .. } = check else {
                    continue;
                };
                for cell in self.reach(ground.problem.kinds[kind].wants, true) {
                    self.board.open_for(*tally, sites[cell]);
                }
            }
        }
    }

    /// The cells where some pool sells what is wanted.
    fn reach(&mut self, wants: usize, relaxed: bool) -> Vec<usize> {
        if let Some(known) = self.reach.get(&(wants, relaxed)) {
            return known.clone();
        }
        let count = self.ground.problem.wants[wants].alternatives.len();
        let mut own = Vec::new();
        for cell in 0..self.ground.cells.all.len() {
            let mut all = (0..self.ground.shelves.len())
                .flat_map(|shelf| (0..count).map(move |alternative| (shelf, alternative)));
            if all.any(|(shelf, alternative)| {
                let key = (wants, shelf, alternative, relaxed, Some(cell));
                self.row(key).is_some()
            }) {
                own.push(cell);
            }
        }
        self.reach.insert((wants, relaxed), own.clone());
        own
    }

    /// The row of a key; none where there is nothing to be had.
    pub(super) fn row(&mut self, key: RowKey) -> Option<usize> {
        if let Some(known) = self.row_of.get(&key) {
            return *known;
        }
        let row = self.make_row(key).map(|row| {
            let rows = &mut self.packed.rows;
            *self.known_rows.entry(row).or_insert_with_key(|row| {
                rows.push(row.clone());
                rows.len() - 1
            })
        });
        self.row_of.insert(key, row);
        row
    }

    fn make_row(&self, (wants, shelf, alternative, relaxed, cell): RowKey) -> Option<Row> {
        let own = &self.ground.problem.wants[wants];
        let wanted = own.alternatives.get(alternative)?;
        let of = &self.ground.shelves[shelf];
        if cell.is_some_and(|cell| !self.ground.cells.sells(shelf, cell)) {
            return None;
        }
        let labels = of.admit(own, wanted, relaxed).ok()?;
        let row = of.row(own, &labels);
        match cell {
            Some(cell) => self.ground.cells.narrow((shelf, cell), &row, &labels),
            None => row.masks.iter().any(|mask| *mask != 0).then_some(row),
        }
    }

    /// Opens claims for what is left, wish by wish.
    fn open_claims(&mut self, sites: &[usize]) {
        let mut shelves = self.ground.shelves.iter();
        let soft = shelves.any(|shelf| {
            let mut taints = shelf.pool.taints.iter();
            taints.any(|taint| taint.effect == Effect::PreferNoSchedule)
        });
        let classes = &self.ground.problem.classes;
        let all = (0..classes.len()).filter(|class| self.calls[*class]);
        let all: Vec<usize> = all.collect();
        let mut waiting = all.clone();
        while !waiting.is_empty() && !self.packed.cut_short {
            self.round(&waiting, sites, false);
            waiting.retain(|class| self.packed.left[*class] > 0);
            waiting.retain(|class| {
                let next = self.ground.problem.kinds[self.kinds[*class]].next;
                self.kinds[*class] = next.unwrap_or(self.kinds[*class]);
                next.is_some()
            });
        }
        let mut waiting = all;
        waiting.retain(|class| self.packed.left[*class] > 0);
        if soft && !waiting.is_empty() && !self.packed.cut_short {
            self.round(&waiting, sites, true);
        }
    }

    /// One try for these classes with the wishes they have now.
    pub(super) fn round(&mut self, classes: &[usize], sites: &[usize], relaxed: bool) {
        self.count_claims();
        self.prices.clear();
        let ground = self.ground;
        let mut waiting: Vec<(usize, Option<usize>, u64)> = Vec::new();
        let mut asked = Vec::new();
        for class in classes {
            let kind = self.kinds[*class];
            let pods = self.packed.left[*class];
            if pods == 0 {
                continue;
            }
            if !ground.topology.is_pinned(kind) || ground.cells.keys.is_empty() {
                waiting.push((*class, None, pods));
                continue;
            }
            let cells = self.reach(ground.problem.kinds[kind].wants, relaxed);
            let priced = cells.into_iter().filter_map(|cell| {
                let price = self.price(*class, cell, relaxed)?;
                Some((cell, price, ground.cells.choice(cell)))
            });
            asked.push(Asked {
                class: *class,
                kind,
                pods,
                cells: priced.collect(),
            });
        }
        // Those who are spread go first, then those who must be near others.
        asked.sort_by_key(|own| {
            let near = !ground.problem.rules_of(own.kind).near.is_empty();
            (near, !ground.topology.is_early(own.kind))
        });
        let mut board = self.board.clone();
        let shares = distribute(&asked, &mut board, sites);
        let mut dealt: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for own in &shares {
            *dealt.entry((own.class, own.cell)).or_insert(0) += own.pods;
        }
        let mut found: BTreeMap<usize, u64> = BTreeMap::new();
        for ((class, cell), pods) in dealt {
            waiting.push((class, Some(cell), pods));
            *found.entry(class).or_insert(0) += pods;
        }
        self.packed.dealt.extend(shares);
        waiting.sort_unstable();
        let alternatives = |class: &usize| {
            let wants = ground.problem.kinds[self.kinds[*class]].wants;
            ground.problem.wants[wants].alternatives.len()
        };
        let most = classes.iter().map(alternatives).max().unwrap_or(0);
        for shelf in 0..ground.shelves.len() {
            for alternative in 0..most {
                self.open_round(&mut waiting, shelf, (alternative, relaxed));
            }
        }
        let mut left: BTreeMap<usize, u64> = BTreeMap::new();
        for (class, _, pods) in waiting {
            *left.entry(class).or_insert(0) += pods;
        }
        // What found no cell still waits.
        for own in &asked {
            let found = found.get(&own.class).copied().unwrap_or(0);
            *left.entry(own.class).or_insert(0) += own.pods - found;
        }
        for class in classes {
            self.packed.left[*class] = left.get(class).copied().unwrap_or(0);
        }
    }

    /// The least that a node for a pod of a class costs in a cell; none where there is none.
    fn price(&mut self, class: usize, cell: usize, relaxed: bool) -> Option<f64> {
        let wants = self.ground.problem.kinds[self.kinds[class]].wants;
        let key = (
            wants,
            relaxed,
            cell,
            &self.ground.problem.classes[class].demand[..],
        );
        if let Some(known) = self.prices.get(&key) {
            return *known;
        }
        let price = self.work_out_price(class, cell, relaxed);
        self.prices.insert(key, price);
        price
    }

    fn work_out_price(&mut self, class: usize, cell: usize, relaxed: bool) -> Option<f64> {
        let ground = self.ground;
        let own = &ground.problem.classes[class];
        let wants = ground.problem.kinds[self.kinds[class]].wants;
        let count = ground.problem.wants[wants].alternatives.len();
        let mut least: Option<f64> = None;
        for shelf in 0..ground.shelves.len() {
            for alternative in 0..count {
                let Some(row) = self.row((wants, shelf, alternative, relaxed, Some(cell))) else {
                    continue;
                };
                let row = &self.packed.rows[row];
                let ledger = &self.packed.ledgers[shelf];
                for (shape, mask) in ground.shelves[shelf].shapes.iter().zip(&row.masks) {
                    let Some(price) = shape.price(*mask) else {
                        continue;
                    };
                    let fits = shape
                        .net
                        .as_ref()
                        .is_some_and(|net| times(net, &own.demand) > 0);
                    let cheaper = least.is_none_or(|least| price < least);
                    if cheaper && fits && ledger.copies(&shape.limited) > 0 {
                        least = Some(price);
                    }
                }
            }
        }
        least
    }

    /// One pool and one alternative of every kind. What waits is lessened by what is packed.
    fn open_round(
        &mut self,
        waiting: &mut [(usize, Option<usize>, u64)],
        shelf: usize,
        (alternative, relaxed): (usize, bool),
    ) {
        let ground = self.ground;
        let first = self.packed.lots.len();
        let mut origin = Vec::new();
        for (at, (class, cell, pods)) in waiting.iter().enumerate() {
            let kind = self.kinds[*class];
            let wants = ground.problem.kinds[kind].wants;
            if *pods == 0 {
                continue;
            }
            let Some(row) = self.row((wants, shelf, alternative, relaxed, *cell)) else {
                continue;
            };
            let own = &ground.problem.classes[*class];
            self.packed.lots.push(Lot {
                class: *class,
                kind,
                demand: &own.demand,
                per_unit: &own.per_unit,
                shares: &ground.hosts.shares[kind],
                row,
                cell: *cell,
            });
            origin.push(at);
        }
        if origin.is_empty() {
            return;
        }
        let mut stock = vec![0; first];
        stock.extend(origin.iter().map(|at| waiting[*at].2));
        self.pack_lots(&mut stock, shelf);
        for (at, left) in origin.iter().zip(&stock[first..]) {
            waiting[*at].2 = *left;
        }
    }

    /// Packs lots onto claims of a shelf, those first that are planned already.
    fn pack_lots(&mut self, stock: &mut Vec<u64>, shelf: usize) {
        let mut steps = 0;
        let lots = (0..stock.len()).filter(|lot| stock[*lot] > 0);
        let waiting = Queues {
            order: lots.map(|lot| vec![lot]).collect(),
            queues: Vec::new(),
        };
        for at in 0..self.packed.opened.len() {
            let opened = &self.packed.opened[at];
            if opened.shelf != shelf || opened.gone || steps > STEPS_MAX {
                continue;
            }
            let order = self.order(shelf, stock);
            let more = order.top_up(&self.packed.opened[at].claim, (&waiting, stock), &mut steps);
            for (lot, count) in &more {
                stock[*lot] -= count;
            }
            self.packed.opened[at].claim.parts.extend(more);
        }
        for _ in 0..DRAFTS_MAX {
            let order = self.order(shelf, stock);
            let draft = best_draft(&order, &self.packed.ledgers[shelf]);
            if draft.claims.is_empty() {
                break;
            }
            let opened = draft.claims.into_iter();
            let opened = opened.map(|claim| Opened {
                shelf,
                claim,
                gone: false,
            });
            self.packed.opened.extend(opened);
            self.packed.ledgers[shelf] = draft.ledger;
            *stock = draft.left;
            self.packed.cut_short |= draft.cut_short;
        }
    }

    pub(super) fn order<'o>(&'o self, shelf: usize, stock: &'o [u64]) -> Order<'o> {
        Order {
            lots: &self.packed.lots,
            shelf: &self.ground.shelves[shelf],
            variety: &self.varieties[shelf],
            rows: &self.packed.rows,
            stock,
            counters: self.ground.hosts.counters,
            node_price: self.ground.scheduling.node_price.usd_per_h(),
            node_cost: self.ground.scheduling.node_price.usd_per_h(),
        }
    }
}

impl<'p> Packer<'_, 'p, '_> {
    /// Puts claims on the board that are not on it yet, with their pods.
    fn count_claims(&mut self) {
        if self.ground.topology.tallies.is_empty() {
            return;
        }
        for opened in &self.packed.opened[self.counted..] {
            let site = add_claim(self.ground, &self.packed.lots, opened, &mut self.board);
            self.board.open(site);
            // Pods whose place does not matter are bound last.
            let lots = &self.packed.lots;
            let parts = opened.claim.parts.iter();
            for (lot, pods) in parts.filter(|part| lots[part.0].cell.is_some()) {
                let pods = u32::try_from(*pods).unwrap_or(u32::MAX);
                self.board.bind(lots[*lot].kind, site, pods);
            }
        }
        self.counted = self.packed.opened.len();
    }

    /// Post-condition: every pod is counted once.
    fn check(&self) {
        let mut count = self.packed.left.clone();
        for turn in &self.packed.placed {
            count[turn.class] += turn.pods;
        }
        for (lot, own) in self
            .packed
            .opened
            .iter()
            .flat_map(|opened| &opened.claim.parts)
        {
            count[self.packed.lots[*lot].class] += own;
        }
        assert!(
            count == self.ground.problem.counts(),
            "every pod is counted once"
        );
    }
}
