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

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jiff::Timestamp;

use crate::model::taint::Effect;
use crate::scheduling::domains::distribute::{DomainDemand, distribute};
use crate::scheduling::packing::PackingInput;
use crate::scheduling::packing::best_value::{STEPS_MAX, best_draft};
use crate::scheduling::packing::context::{OpenedNode, PackingContext, PackingState};
use crate::scheduling::packing::existing_nodes::ExistingNodes;
use crate::scheduling::packing::fill_bin::{FillQueues, ItemGroup};
use crate::scheduling::packing::initial_topology::{add_cells, add_claim, count_crew, sure_crew};
use crate::scheduling::packing::launch_options::Ledgers;
use crate::scheduling::packing::offering_cache::OfferingCache;
use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::problem::{PodClass, Problem};
use crate::scheduling::supply::min_values::{MinValues, widen};
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::topology::TopologyCheck;
use crate::scheduling::topology::topology_state::TopologyState;
use crate::state::snapshot::{ExistingNode, Snapshot};

/// Drafts of one round: a draft moves claims to smaller types at its end, which may free some of
/// the limits for pods that it left.
const DRAFTS_MAX: usize = 8;

/// The shelves of a snapshot: pools that pods may call for, by weight, then name.
pub(super) fn shelves<'a>(
    problem: &Problem<'_>,
    snapshot: &Snapshot<'a>,
    now: Timestamp,
) -> Vec<NodeTemplate<'a>> {
    let pools = snapshot.cluster.pools.iter();
    let mut pools: Vec<_> = pools.filter(|pool| pool.replicas.is_none()).collect();
    pools.sort_by(|one, other| (!one.weight, &one.name).cmp(&(!other.weight, &other.name)));
    let shelf = |pool| {
        let mut shelf = NodeTemplate::new(pool, problem, snapshot, now);
        widen(&mut shelf, snapshot.cluster.scheduling.min_values);
        shelf
    };
    pools.into_iter().map(shelf).collect()
}

/// Packs all classes. `board` has the rooms, in their order, and what is on them.
pub(super) fn pack<'g, 'p, 'a>(
    ground: &'g PackingContext<'p, 'a>,
    rooms: &'p [&'p ExistingNode],
    snapshot: &Snapshot<'_>,
    board: TopologyState<'p>,
) -> Scheduler<'g, 'p, 'a> {
    let (mut packer, sites) = begin(ground, rooms, snapshot, board);
    packer.finish(&sites);
    packer
}

/// What fits the rooms is placed; nothing is opened yet. The sites are those of the cells.
pub(super) fn begin<'g, 'p, 'a>(
    ground: &'g PackingContext<'p, 'a>,
    rooms: &'p [&'p ExistingNode],
    snapshot: &Snapshot<'_>,
    board: TopologyState<'p>,
) -> (Scheduler<'g, 'p, 'a>, Vec<usize>) {
    let problem = ground.problem;
    let cutoff = snapshot.cluster.scheduling.priority_cutoff;
    let calls = |class: &PodClass<'_>| cutoff.is_none_or(|least| class.priority >= least);
    let mut packer = Scheduler {
        ground,
        rooms: ExistingNodes::new(problem, rooms),
        market: OfferingCache::new(ground),
        kinds: problem.classes.iter().map(|class| class.kind).collect(),
        board,
        counted: 0,
        known_sites: 0,
        is_whole: true,
        calls: problem.classes.iter().map(calls).collect(),
        varieties: ground
            .shelves
            .iter()
            .map(|shelf| MinValues::of(shelf, ground.scheduling.min_values))
            .collect(),
        packed: PackingState {
            ledgers: Ledgers::new(ground.shelves, snapshot),
            shelves: ground.shelves,
            placed: Vec::new(),
            dealt: Vec::new(),
            rooms: rooms.len(),
            opened: Vec::new(),
            lots: Vec::new(),
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
    (packer, sites)
}

/// Pods of a class that wait for a node, in a cell if their place matters.
type PendingPods = (usize, Option<usize>, u64);

/// Pools of one weight that are tried as the first for all, and pods that are tried with them.
const RIVALS_MAX: usize = 4;
const CONTESTED_MAX: u64 = 2_000;

/// Pools of one weight, heaviest first.
pub(super) fn tiers(shelves: &[NodeTemplate<'_>]) -> Vec<Range<usize>> {
    let alike = shelves.chunk_by(|one, other| one.pool.weight == other.pool.weight);
    let mut from = 0;
    alike
        .map(|own| {
            from += own.len();
            from - own.len()..from
        })
        .collect()
}

/// A packing in the making.
#[derive(Clone)]
pub(super) struct Scheduler<'g, 'p, 'a> {
    pub(super) ground: &'g PackingContext<'p, 'a>,
    /// What comes of it.
    pub(super) packed: PackingState<'p, 'a>,
    pub(super) rooms: ExistingNodes<'p>,
    pub(super) market: OfferingCache<'g, 'p, 'a>,
    /// What every class has come to be, wish by wish.
    pub(super) kinds: Vec<usize>,
    pub(super) board: TopologyState<'p>,
    /// How many claims are on the board.
    pub(super) counted: usize,
    /// How many of these have the sites that follow those of the rooms; [`retry`](Self::retry)
    /// sets it.
    pub(super) known_sites: usize,
    /// Whether pods that must share a host with others of their kind are packed all or none.
    pub(super) is_whole: bool,
    /// Whether pods of a class are worth a node.
    pub(super) calls: Vec<bool>,
    /// The variety that each pool wants.
    pub(super) varieties: Vec<MinValues<'p>>,
}

impl<'p, 'a> Scheduler<'_, 'p, 'a> {
    /// Lets the places exist that pods which are spread can reach: a node may be made there.
    pub(super) fn open_cells(&mut self, sites: &[usize]) {
        let ground = self.ground;
        for (kind, checks) in ground.topology.checks.iter().enumerate() {
            for check in checks {
                let TopologyCheck::Even { tally, .. } = check else {
                    continue;
                };
                for cell in self.market.reach(ground.problem.kinds[kind].wants, true) {
                    self.board.open_for(*tally, sites[cell]);
                }
            }
        }
    }

    /// Opens claims for all that is left.
    pub(super) fn finish(&mut self, sites: &[usize]) {
        self.open_claims(sites);
        self.drop_unvaried();
        self.check();
    }

    /// Opens claims for what is left, wish by wish.
    pub(super) fn open_claims(&mut self, sites: &[usize]) {
        let mut shelves = self.ground.shelves.iter();
        let soft = shelves.any(|shelf| {
            let mut taints = shelf.pool.taints.iter();
            taints.any(|taint| taint.effect == Effect::PreferNoSchedule)
        });
        let classes = &self.ground.problem.classes;
        let all = (0..classes.len()).filter(|class| self.calls[*class]);
        let all: Vec<usize> = all.collect();
        self.rounds(all.clone(), sites, false);
        if soft {
            self.begin_last_wish(&all);
            self.rounds(all, sites, true);
        }
    }

    /// Lets every wish of these classes give way but the last.
    pub(super) fn begin_last_wish(&mut self, classes: &[usize]) {
        let problem = self.ground.problem;
        for class in classes {
            self.kinds[*class] = problem.without_wishes(problem.classes[*class].kind);
        }
    }

    /// Tries these classes with the wishes they have now, and goes on with fewer wishes for those
    /// of which pods are left.
    pub(super) fn rounds(&mut self, mut classes: Vec<usize>, sites: &[usize], relaxed: bool) {
        classes.retain(|class| self.packed.left[*class] > 0);
        while !classes.is_empty() && !self.packed.cut_short {
            self.round(&classes, sites, relaxed);
            classes.retain(|class| self.packed.left[*class] > 0);
            classes.retain(|class| {
                let next = self.ground.problem.kinds[self.kinds[*class]].next;
                self.kinds[*class] = next.unwrap_or(self.kinds[*class]);
                next.is_some()
            });
        }
    }

    /// What [`distribute`] has to know of the pods of a class that wait: their number, and the
    /// cells that have a node for one of them.
    fn asked(&mut self, (class, kind): (usize, usize), pods: u64, relaxed: bool) -> DomainDemand {
        let ground = self.ground;
        let wants = ground.problem.kinds[kind].wants;
        let demand = &ground.problem.classes[class].demand;
        let mut cells = Vec::new();
        for cell in self.market.reach(wants, relaxed) {
            let wanted = (wants, relaxed, Some(cell));
            let price = self.market.price(wanted, demand, &self.packed.ledgers);
            cells.extend(price.map(|price| (cell, price, ground.cells.choice(cell))));
        }
        let counts = self.is_alone(kind);
        let counted = cells.iter().filter(|_| counts);
        let crews = counted
            .map(|own| sure_crew(ground, own.0).to_vec())
            .collect();
        DomainDemand {
            class,
            kind,
            pods,
            cells,
            crews,
        }
    }

    /// Whether each pod of a kind gets a host of its own, and rules about places count daemons.
    fn is_alone(&self, kind: usize) -> bool {
        let ground = self.ground;
        let shares = &ground.hosts.shares[kind];
        ground.topology.counts_daemons() && shares.room(&vec![0; ground.hosts.counters], 2) < 2
    }

    /// One try for these classes with the wishes they have now.
    fn round(&mut self, classes: &[usize], sites: &[usize], relaxed: bool) {
        self.count_claims();
        self.market.heed(&self.packed.ledgers);
        let ground = self.ground;
        let mut waiting: Vec<PendingPods> = Vec::new();
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
            asked.push(self.asked((*class, kind), pods, relaxed));
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
        for tier in tiers(ground.shelves) {
            self.compete(&mut waiting, tier, (most, relaxed));
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

    /// Pools of one weight: pods go to that which is cheapest for them or, where they are few, all
    /// to one pool first if that is cheaper still.
    fn compete(&mut self, waiting: &mut Vec<PendingPods>, tier: Range<usize>, deal: (usize, bool)) {
        let ranked = waiting
            .iter()
            .map(|own| self.ranked(*own, tier.clone(), deal.1));
        let ranked: Vec<Vec<usize>> = ranked.collect();
        let contested = |(own, pools): (&PendingPods, &Vec<usize>)| pools.len() > 1 && own.2 > 0;
        let contested = waiting.iter().zip(&ranked).any(contested);
        let pods: u64 = waiting.iter().map(|own| own.2).sum();
        if !contested || tier.len() > RIVALS_MAX || pods > CONTESTED_MAX {
            self.sell(waiting, &ranked, deal);
            return;
        }
        let before = self.packed.clone();
        let mut best: Option<((u64, f64), PackingState<'p, 'a>, Vec<PendingPods>)> = None;
        let mut tried: Vec<Vec<Vec<usize>>> = Vec::new();
        for first in std::iter::once(None).chain(tier.map(Some)) {
            let mut ranked = ranked.clone();
            for pools in &mut ranked {
                pools.sort_by_key(|pool| Some(*pool) != first);
            }
            if tried.contains(&ranked) {
                continue;
            }
            self.packed.clone_from(&before);
            let mut trial = waiting.clone();
            self.sell(&mut trial, &ranked, deal);
            let node_price = self.ground.scheduling.node_price.usd_per_h();
            let left: u64 = trial.iter().map(|own| own.2).sum();
            let claims = self.packed.opened.iter().filter(|opened| !opened.gone);
            let cost: f64 = claims.map(|opened| opened.claim.price + node_price).sum();
            let better = |best: &(u64, f64)| left < best.0 || left == best.0 && cost < best.1;
            if best.as_ref().is_none_or(|(known, ..)| better(known)) {
                best = Some(((left, cost), self.packed.clone(), trial));
            }
            tried.push(ranked);
        }
        if let Some((_, packed, trial)) = best {
            (self.packed, *waiting) = (packed, trial);
        }
    }

    /// The pools of a tier that have something for pods that wait, the cheapest for each of them
    /// first.
    fn ranked(&mut self, own: PendingPods, tier: Range<usize>, relaxed: bool) -> Vec<usize> {
        let (class, cell, pods) = own;
        let wanted = (
            self.ground.problem.kinds[self.kinds[class]].wants,
            relaxed,
            cell,
        );
        let selling = tier.filter(|shelf| self.market.sells(*shelf, wanted));
        let selling: Vec<usize> = selling.collect();
        if selling.len() < 2 {
            return selling;
        }
        let demand = &self.ground.problem.classes[class].demand;
        let mut priced = Vec::with_capacity(selling.len());
        for shelf in selling {
            let ledger = self.packed.ledgers.of(shelf);
            let each = self.market.least(shelf, wanted, (demand, pods), &ledger);
            priced.push((each.unwrap_or(f64::INFINITY), shelf));
        }
        priced.sort_by(|one, other| one.0.total_cmp(&other.0));
        priced.into_iter().map(|(_, shelf)| shelf).collect()
    }

    /// Opens claims for what waits, from the pools of each in this order.
    fn sell(
        &mut self,
        waiting: &mut [PendingPods],
        ranked: &[Vec<usize>],
        (alternatives, relaxed): (usize, bool),
    ) {
        let ranks = ranked.iter().map(Vec::len).max().unwrap_or(0);
        for rank in 0..ranks {
            let asked = |pools: &Vec<usize>| pools.get(rank).copied();
            let asked: Vec<Option<usize>> = ranked.iter().map(asked).collect();
            let shelves: BTreeSet<usize> = asked.iter().flatten().copied().collect();
            for shelf in shelves {
                for alternative in 0..alternatives {
                    self.open_round((waiting, &asked), shelf, (alternative, relaxed));
                }
            }
        }
    }

    /// One pool and one alternative of every kind, for those who ask that pool. What waits is
    /// lessened by what is packed.
    fn open_round(
        &mut self,
        (waiting, asked): (&mut [PendingPods], &[Option<usize>]),
        shelf: usize,
        (alternative, relaxed): (usize, bool),
    ) {
        let ground = self.ground;
        let first = self.packed.lots.len();
        let mut origin = Vec::new();
        for (at, (class, cell, pods)) in waiting.iter().enumerate() {
            if asked[at] != Some(shelf) {
                continue;
            }
            let kind = self.kinds[*class];
            let wants = ground.problem.kinds[kind].wants;
            if *pods == 0 {
                continue;
            }
            let key = (wants, shelf, alternative, relaxed, *cell);
            let Some(row) = self.market.row_of_kind(kind, key) else {
                continue;
            };
            let own = &ground.problem.classes[*class];
            let shares = &ground.hosts.shares[kind];
            self.packed.lots.push(ItemGroup {
                class: *class,
                kind,
                demand: &own.demand,
                per_unit: &own.per_unit,
                shares,
                row,
                cell: *cell,
                together: if self.is_whole && shares.begins() {
                    *pods
                } else {
                    1
                },
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
        let waiting: Vec<usize> = (0..stock.len()).filter(|lot| stock[*lot] > 0).collect();
        let all = FillQueues::of(waiting.iter().copied());
        for at in 0..self.packed.opened.len() {
            let opened = &self.packed.opened[at];
            if opened.shelf != shelf || opened.gone || steps > STEPS_MAX {
                continue;
            }
            let order = self.order(shelf, stock);
            let shut = |lot: &usize| at < self.known_sites && !self.may_top_up(*lot, at);
            let open = || waiting.iter().copied().filter(|lot| !shut(lot));
            let open = waiting.iter().any(shut).then(|| FillQueues::of(open()));
            let own = open.as_ref().unwrap_or(&all);
            let more = order.top_up(&self.packed.opened[at].claim, (own, stock), &mut steps);
            for (lot, count) in &more {
                stock[*lot] -= count;
            }
            self.packed.opened[at].claim.parts.extend(more);
        }
        for _ in 0..DRAFTS_MAX {
            let order = self.order(shelf, stock);
            let mut draft = best_draft(&order, &self.packed.ledgers.of(shelf));
            order.split(&mut draft);
            if draft.claims.is_empty() {
                break;
            }
            let opened = draft.claims.into_iter();
            let opened = opened.map(|claim| OpenedNode {
                shelf,
                claim,
                gone: false,
            });
            self.packed.opened.extend(opened);
            self.packed.ledgers.put(shelf, draft.ledger);
            *stock = draft.left;
            self.packed.cut_short |= draft.cut_short;
        }
    }

    /// Whether spreads over hosts may let pods of a lot onto a claim of which the site is known.
    /// Where hosts are too few for `minDomains`, one more is needed.
    fn may_top_up(&self, lot: usize, at: usize) -> bool {
        let (topology, site) = (self.ground.topology, self.packed.rooms + at);
        let mut checks = topology.checks[self.packed.lots[lot].kind].iter();
        checks.all(|check| match check {
            TopologyCheck::Even { tally, .. } if topology.tallies[*tally].key() == HOST => {
                self.board.may_hold(check, site)
            }
            _ => true,
        })
    }

    pub(super) fn order<'o>(&'o self, shelf: usize, stock: &'o [u64]) -> PackingInput<'o> {
        PackingInput {
            lots: &self.packed.lots,
            shelf: &self.ground.shelves[shelf],
            variety: &self.varieties[shelf],
            rows: &self.market.rows,
            stock,
            counters: self.ground.hosts.counters,
            node_price: self.ground.scheduling.node_price.usd_per_h(),
            node_cost: self.ground.scheduling.node_price.usd_per_h(),
        }
    }
}

impl<'p> Scheduler<'_, 'p, '_> {
    /// Puts claims on the board that are not on it yet, with their pods.
    fn count_claims(&mut self) {
        if self.ground.topology.tallies.is_empty() {
            return;
        }
        for opened in &self.packed.opened[self.counted..] {
            let known = (&self.packed.lots[..], &self.market.rows[..]);
            let site = add_claim(self.ground, known, opened, &mut self.board);
            self.board.open(site);
            count_crew(self.ground, known, (opened, site), &mut self.board);
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
