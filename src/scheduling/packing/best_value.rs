//! The loop that opens nodes of one pool, one type after the other, each for the pods that make
//! most of its price.
//! It must not know what becomes of the claims once they are packed.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::packing::fill_bin::{FillQueues, FillStrategy, IdenticalGroups, ItemCount};
use crate::scheduling::packing::fill_cache::{AGAIN_MAX, Fill, FillCache};
use crate::scheduling::packing::launch_options::Ledger;
use crate::scheduling::packing::pod_cost::{fronts, scarce, worth_of};
use crate::scheduling::packing::{PackedNode, Packing, PackingInput};

/// Steps one draft may take, each a lot looked at for one host: some nanoseconds. Beyond, pods
/// are left with `Effort`. 100,000 pods that all differ take half of it with 1,340 types.
pub(crate) const STEPS_MAX: u64 = 200_000_000;

/// Costs that differ by less than a quarter per cent are about the same: prices are not surer than
/// that to last, and a node saved is one less to start, to patch and to drain.
pub(crate) const ABOUT: f64 = 1.0025;

/// How many times its cost a node is taken to cost by the draft that makes few.
const FEW_NODES: f64 = 10.0;

/// Rows that are packed at once, those of most worth first. Each multiplies the types to weigh.
const LANES_MAX: usize = 24;

/// Demands that are packed at once. More are dealt out into groups of which each has its share of
/// large and small pods, since the effort grows with the square.
const TWINS_MAX: usize = 4096;

/// Up to this many demands have a queue each; beyond, those that are much alike share one.
const QUEUES_MAX: usize = 64;

/// How much of its worth a copy of a packing must have to be one.
const LIKENESS: f64 = 0.97;

/// How much more than others pods are worth that share hosts with few: they have to be on many.
const PREMIUM: f64 = 1.05;

/// An instance type as seen from a row, and the best that is known to be made of it.
struct TypeCandidate {
    lane: usize,
    shape: usize,
    price: f64,
    /// Worth of its pods by its cost. It may be out of date, and then is too high rather than too
    /// low, because pods only become fewer.
    score: f64,
    /// The commit after which the score was last worked out.
    seen: usize,
    parts: Vec<ItemCount>,
}

impl PackingInput<'_> {
    /// Packs everything, in the better of these ways for each node, within so many steps.
    fn draft(
        &self,
        ways: &[FillStrategy],
        ledger: &Ledger,
        steps_max: u64,
        fills: &mut FillCache,
    ) -> Packing {
        let mut draft = Packing {
            claims: Vec::new(),
            left: self.stock.to_vec(),
            ledger: ledger.clone(),
            cut_short: false,
            steps: 0,
        };
        let waiting: Vec<usize> = (0..self.stock.len())
            .filter(|lot| self.stock[*lot] > 0)
            .collect();
        let kinds = waiting
            .iter()
            .map(|lot| (self.lots[*lot].row, self.lots[*lot].demand));
        let kinds = kinds.collect::<BTreeSet<_>>().len();
        let groups = kinds.div_ceil(TWINS_MAX).max(1);
        for group in 0..groups {
            let dealt: Vec<usize> = waiting
                .iter()
                .skip(group)
                .step_by(groups)
                .copied()
                .collect();
            let mut packing = PackingRun::new(self, &dealt, &draft.ledger);
            let mut own = FillCache::default();
            let fills = if groups == 1 { &mut *fills } else { &mut own };
            packing.pack_all(ways, &mut draft, steps_max, fills);
        }
        self.merge(&mut draft);
        self.refit(&mut draft);
        self.grow(&mut draft);
        self.check(&draft);
        draft
    }
}

/// What is being packed.
struct PackingRun<'p, 'o> {
    order: &'p PackingInput<'o>,
    /// Lots to be packed, the largest first.
    waiting: Vec<usize>,
    /// For each row, the shapes to weigh.
    fronts: BTreeMap<usize, Vec<usize>>,
    /// What one pod of each lot would cost at least, were there only pods like it.
    worth: Vec<f64>,
}

/// What pods that still wait can be worth to a host, at most.
struct ValueBound {
    /// All of them.
    all: f64,
    /// Prices of cpu and memory at which no pod that shares a host with any is worth more than what
    /// it asks for: by each of these a host has no more worth than its own cpu and memory.
    prices: Vec<[f64; 2]>,
    /// The most worth of all others that one host may have.
    few: f64,
}

/// How finely prices of cpu are weighed against those of memory.
const PRICES: u8 = 16;

impl<'p, 'o> PackingRun<'p, 'o> {
    fn new(order: &'p PackingInput<'o>, dealt: &[usize], ledger: &Ledger) -> Self {
        let fronts = fronts(order, dealt, ledger);
        let mut worth = vec![0.0; order.stock.len()];
        let scarce = scarce(order, dealt);
        let mut known: BTreeMap<(usize, &[i64], u64), f64> = BTreeMap::new();
        for lot in dealt {
            let own = &order.lots[*lot];
            let together = scarce.filter(|(counter, _)| own.shares.adds.contains(counter));
            let most = together.map_or(u64::MAX, |(_, together)| together);
            let alone = known.entry((own.row, own.demand, most));
            let alone = alone.or_insert_with_key(|own| worth_of(order, &fronts, *own));
            let few = !own.shares.is_empty();
            worth[*lot] = *alone * if few { PREMIUM } else { 1.0 };
        }
        let placeable = dealt.iter().copied().filter(|lot| worth[*lot] > 0.0);
        Self {
            order,
            waiting: placeable.collect(),
            fronts,
            worth,
        }
    }

    /// Packs row after row, those of most worth first and some of them together.
    fn pack_all(
        &mut self,
        ways: &[FillStrategy],
        draft: &mut Packing,
        steps_max: u64,
        fills: &mut FillCache,
    ) {
        let mut lanes: BTreeMap<usize, f64> = BTreeMap::new();
        for lot in &self.waiting {
            #[expect(clippy::cast_precision_loss, reason = "only for an order")]
            let count = draft.left[*lot] as f64;
            *lanes.entry(self.order.lots[*lot].row).or_insert(0.0) += count * self.worth[*lot];
        }
        let mut lanes: Vec<(usize, f64)> = lanes.into_iter().collect();
        lanes.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        for some in lanes.chunks(LANES_MAX) {
            let candidates = some.iter().flat_map(|(lane, _)| self.candidates(*lane));
            let candidates: Vec<TypeCandidate> = candidates.collect();
            self.pack(candidates, ways, draft, (steps_max, fills));
        }
    }

    fn candidates(&self, lane: usize) -> Vec<TypeCandidate> {
        let masks = &self.order.rows[lane].masks;
        let candidate = |shape: &usize| TypeCandidate {
            lane,
            shape: *shape,
            price: self.order.shelf.shapes[*shape]
                .price(masks[*shape])
                .unwrap_or(0.0),
            score: f64::INFINITY,
            seen: usize::MAX,
            parts: Vec::new(),
        };
        self.fronts[&lane].iter().map(candidate).collect()
    }

    /// No less than what any pods that wait are worth to a candidate, by its cost.
    fn bound(&self, candidate: &TypeCandidate, most: &ValueBound) -> f64 {
        let Some(net) = &self.order.shelf.shapes[candidate.shape].net else {
            return 0.0;
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "a bound, made a little higher than it is"
        )]
        let worth = |price: &[f64; 2]| net[0] as f64 * price[0] + net[1] as f64 * price[1];
        let worth = most.prices.iter().map(worth).fold(f64::INFINITY, f64::min) + most.few;
        // What costs nothing is worth whatever there is.
        let cost = (candidate.price + self.order.node_cost).max(1e-12);
        worth.min(most.all) * 1.000_001 / cost
    }

    /// What waits, at most.
    fn most(&self, left: &[u64], waiting: &FillQueues) -> ValueBound {
        let lots = self.order.lots;
        let mut few = vec![0.0; self.order.counters];
        let mut all = 0.0;
        let mut sums = [0.0; 2];
        // Cpu, memory and worth of pods that share hosts with any.
        let mut single: Vec<[f64; 3]> = Vec::new();
        for twins in &waiting.order {
            let mut plain: f64 = 0.0;
            for lot in twins {
                let own = lots[*lot].shares;
                #[expect(clippy::cast_precision_loss, reason = "only for an order")]
                let pods = left[*lot] as f64;
                all += self.worth[*lot] * pods;
                let mut limits = own.limits.iter();
                match limits.find(|(counter, _)| own.adds.contains(counter)) {
                    Some((counter, together)) => {
                        let worth = self.worth[*lot] * (f64::from(*together) + 1.0);
                        few[*counter] = f64::max(few[*counter], worth);
                    }
                    None => plain = plain.max(self.worth[*lot]),
                }
            }
            if plain > 0.0 {
                let demand = lots[twins[0]].demand;
                #[expect(clippy::cast_precision_loss, reason = "only for a bound")]
                let (cpu, memory) = (demand[0] as f64, demand[1] as f64);
                single.push([cpu, memory, plain]);
                sums = [sums[0] + cpu, sums[1] + memory];
            }
        }
        let price = |at: u8| {
            let part = f64::from(at) / f64::from(PRICES);
            let base = [part / sums[0].max(1.0), (1.0 - part) / sums[1].max(1.0)];
            let needed = single
                .iter()
                .map(|[cpu, memory, worth]| worth / (cpu * base[0] + memory * base[1]));
            let scale = needed.fold(0.0, f64::max);
            [base[0] * scale, base[1] * scale]
        };
        let prices = (0..=PRICES).map(price);
        ValueBound {
            all,
            // One that is infinite times nothing is no number.
            prices: prices
                .filter(|own| own[0].is_finite() && own[1].is_finite())
                .collect(),
            few: few.into_iter().sum(),
        }
    }

    /// Commits the candidate of most worth for its cost, until none is worth anything.
    fn pack(
        &self,
        mut candidates: Vec<TypeCandidate>,
        ways: &[FillStrategy],
        draft: &mut Packing,
        (steps_max, fills): (u64, &mut FillCache),
    ) {
        let mut commits = 0;
        let mut state = fills.state(&draft.left);
        let twins = self.twins(draft.left.len());
        let mut queues = self.queues(twins.lots.clone(), (&draft.left, &twins));
        let mut most = self.most(&draft.left, &queues);
        loop {
            let mut best: Option<&mut TypeCandidate> = None;
            for candidate in &mut candidates {
                if best
                    .as_ref()
                    .is_none_or(|best| candidate.score > best.score)
                {
                    best = Some(candidate);
                }
            }
            let Some(best) = best.filter(|best| best.score > 0.0) else {
                return;
            };
            if best.seen == commits {
                self.commit(best, &twins, draft);
                commits += 1;
                state = fills.state(&draft.left);
                queues = self.queues(queues.order, (&draft.left, &twins));
                most = self.most(&draft.left, &queues);
            } else if let Some(bound) = Some(self.bound(best, &most)).filter(|it| *it < best.score)
            {
                best.score = bound;
            } else if draft.steps > steps_max {
                draft.cut_short = true;
                return;
            } else {
                self.weigh(best, ways, (&queues, state), draft, fills);
                best.seen = commits;
            }
        }
    }

    /// Works out the best that can be made of a candidate.
    fn weigh(
        &self,
        candidate: &mut TypeCandidate,
        ways: &[FillStrategy],
        (queues, state): (&FillQueues, usize),
        draft: &mut Packing,
        fills: &mut FillCache,
    ) {
        candidate.score = 0.0;
        let shape = &self.order.shelf.shapes[candidate.shape];
        if draft.ledger.copies(&shape.limited) == 0 {
            return;
        }
        let mask = self.order.rows[candidate.lane].masks[candidate.shape];
        for way in ways {
            let key = (state, candidate.lane, candidate.shape);
            let fill = fills.of(*way).entry(key).or_insert_with(|| {
                let good = shape.cheapest(mask);
                let Some(mut bin) = self.order.bin(candidate.shape, mask, good) else {
                    return Fill::default();
                };
                let waiting = (queues, &draft.left[..], &self.worth[..]);
                let mut steps = 0;
                let parts = self.order.with_terms(candidate.shape, |terms| {
                    bin.fill(*way, (self.order.lots, terms), waiting, &mut steps)
                });
                Fill { parts, steps }
            });
            draft.steps += fill.steps;
            let score = self.worth_of(&fill.parts) / (candidate.price + self.order.node_cost);
            if score > candidate.score {
                candidate.score = score;
                candidate.parts.clone_from(&fill.parts);
            }
        }
        fills.count(draft.steps);
    }

    fn worth_of(&self, parts: &[ItemCount]) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "only for an order")]
        let worth = |(lot, count): &ItemCount| self.worth[*lot] * *count as f64;
        parts.iter().map(worth).sum()
    }

    /// Plans as many nodes like the candidate as there are pods for. Lots that differ only in whom
    /// they share a host with stand in for each other.
    fn commit(&self, candidate: &TypeCandidate, twins: &Sorted, draft: &mut Packing) {
        let limited = &self.order.shelf.shapes[candidate.shape].limited;
        let mut most = draft.ledger.copies(limited);
        assert!(most > 0, "what was weighed can be had");
        let first = self.worth_of(&candidate.parts);
        let mut parts = candidate.parts.clone();
        loop {
            let whole = |(lot, count): &ItemCount| draft.left[*lot] / count;
            let copies = parts.iter().map(whole).min().unwrap_or(0).min(most);
            assert!(copies > 0, "what was weighed can be had");
            for (lot, count) in &parts {
                draft.left[*lot] -= count * copies;
            }
            draft.ledger.reserve(limited, copies);
            most -= copies;
            let claim = PackedNode {
                shape: candidate.shape,
                price: candidate.price,
                parts,
            };
            draft.claims.extend((0..copies).map(|_| claim.clone()));
            parts = self.like(candidate, twins, draft);
            if most == 0 || parts.is_empty() || self.worth_of(&parts) < first * LIKENESS {
                return;
            }
        }
    }

    /// The same packing with other pods.
    fn like(
        &self,
        candidate: &TypeCandidate,
        twins: &Sorted,
        draft: &mut Packing,
    ) -> Vec<ItemCount> {
        let order = self.order;
        let mask = order.rows[candidate.lane].masks[candidate.shape];
        let good = order.shelf.shapes[candidate.shape].cheapest(mask);
        let Some(mut bin) = order.bin(candidate.shape, mask, good) else {
            return Vec::new();
        };
        let mut parts = Vec::with_capacity(candidate.parts.len());
        let mut steps = 0;
        order.with_terms(candidate.shape, |terms| {
            let mut wanted: Vec<(usize, u64)> = Vec::new();
            for (lot, count) in &candidate.parts {
                // Other lots may stand between twins.
                match wanted.iter_mut().find(|(own, _)| *own == twins.of[*lot]) {
                    Some((_, own)) => *own += count,
                    None => wanted.push((twins.of[*lot], *count)),
                }
            }
            for (twin, mut count) in wanted {
                for lot in &twins.lots[twin] {
                    if count == 0 {
                        break;
                    }
                    if draft.left[*lot] == 0 {
                        continue;
                    }
                    steps += 1;
                    let some = bin
                        .room(order.lots, terms, *lot)
                        .min(draft.left[*lot])
                        .min(count);
                    if some > 0 {
                        bin.add(order.lots, terms, (*lot, some));
                        parts.push((*lot, some));
                        count -= some;
                    }
                }
            }
        });
        draft.steps += steps;
        parts.sort_unstable();
        parts
    }

    /// Lots of one row and one demand.
    fn twins(&self, lots: usize) -> Sorted {
        let mut known: BTreeMap<(usize, &[i64]), usize> = BTreeMap::new();
        let mut twins = Sorted {
            of: vec![usize::MAX; lots],
            lots: Vec::new(),
            ratios: Vec::new(),
        };
        for lot in &self.waiting {
            let own = &self.order.lots[*lot];
            let next = known.len();
            let twin = *known.entry((own.row, own.demand)).or_insert(next);
            if twin == next {
                twins.lots.push(Vec::new());
            }
            twins.of[*lot] = twin;
            twins.lots[twin].push(*lot);
        }
        let ratio = |lots: &IdenticalGroups| {
            let own = &self.order.lots[lots[0]];
            let others: Vec<bool> = own.demand[2..].iter().map(|amount| *amount > 0).collect();
            let ratio = own.demand[1].saturating_div(own.demand[0].max(1));
            (own.row, others, ratio.max(1).ilog2())
        };
        let ratios: Vec<(usize, Vec<bool>, u32)> = twins.lots.iter().map(ratio).collect();
        let ordinals: BTreeSet<_> = ratios.iter().collect();
        let ordinals: Vec<_> = ordinals.into_iter().collect();
        let ordinal = |own: &_| ordinals.partition_point(|other| *other < own);
        twins.ratios = ratios.iter().map(ordinal).collect();
        // Those that share hosts with few come first, those that need others last.
        for own in &mut twins.lots {
            own.sort_by_key(|lot| {
                let shares = self.order.lots[*lot].shares;
                (!shares.needs.is_empty(), shares.is_empty(), *lot)
            });
        }
        twins
    }

    /// What still waits of these, in queues.
    fn queues(
        &self,
        mut order: Vec<IdenticalGroups>,
        (left, twins): (&[u64], &Sorted),
    ) -> FillQueues {
        order.retain_mut(|lots| {
            lots.retain(|lot| left[*lot] > 0);
            !lots.is_empty()
        });
        let few = order.len() <= QUEUES_MAX;
        let ratio = |(at, lots): (usize, &IdenticalGroups)| (twins.ratios[twins.of[lots[0]]], at);
        let mut sorted: Vec<(usize, usize)> = order.iter().enumerate().map(ratio).collect();
        sorted.sort_unstable();
        let queues = sorted.chunk_by(|one, other| !few && one.0 == other.0);
        let queues = queues.map(|own| own.iter().map(|(_, at)| *at).collect());
        FillQueues {
            queues: queues.collect(),
            order,
        }
    }
}

/// Lots that ask for the same of the same, and so can stand in for each other.
struct Sorted {
    /// The twins a lot is of.
    of: Vec<usize>,
    /// Their lots.
    lots: Vec<IdenticalGroups>,
    /// For each twins an ordinal of those that are much alike.
    ratios: Vec<usize>,
}

/// The draft that leaves the fewest pods and, of those that cost about the least, makes the fewest
/// nodes; never one that costs more than the greedy packing.
pub(crate) fn best_draft(order: &PackingInput<'_>, ledger: &Ledger) -> Packing {
    let few = FEW_NODES * order.node_price;
    let tries: [(&[FillStrategy], f64); 4] = [
        (
            &[FillStrategy::Worth, FillStrategy::Largest],
            order.node_price,
        ),
        (&[FillStrategy::Worth], order.node_price),
        (&[FillStrategy::Largest], order.node_price),
        (&[FillStrategy::Worth, FillStrategy::Largest], few),
    ];
    let mut drafts: Vec<Packing> = Vec::new();
    let mut fills = FillCache::default();
    for (ways, node_cost) in tries {
        if node_cost != order.node_price {
            fills.by_worth.clear();
        }
        let order = PackingInput {
            node_cost,
            ..*order
        };
        let draft = order.draft(ways, ledger, STEPS_MAX, &mut fills);
        let last = draft.steps > AGAIN_MAX || draft.claims.is_empty();
        if drafts.is_empty() || !draft.cut_short {
            drafts.push(draft);
        }
        if last {
            break;
        }
    }
    let own = |draft: &Packing| draft.cost(order.node_price);
    let waiting = |draft: &Packing| draft.left.iter().sum::<u64>();
    let mut least = drafts.iter().map(waiting).min().unwrap_or(0);
    let mut cost_max = f64::INFINITY;
    let greedy = (drafts.len() == tries.len()).then(|| order.greedy(ledger));
    if let Some(mut greedy) = greedy.flatten().filter(|own| waiting(own) <= least) {
        (least, cost_max) = (waiting(&greedy), own(&greedy));
        let grown = greedy.clone();
        order.merge(&mut greedy);
        // Sums in another order may differ in their last digit.
        drafts.push(if own(&greedy) <= cost_max {
            greedy
        } else {
            grown
        });
    }
    drafts.retain(|draft| waiting(draft) == least);
    let cost = drafts.iter().map(own).min_by(f64::total_cmp);
    cost_max = cost_max.min(cost.unwrap_or(0.0) * ABOUT);
    drafts.retain(|draft| own(draft) <= cost_max);
    let by = |draft: &Packing| draft.claims.len();
    drafts.sort_by(|one, other| {
        by(one)
            .cmp(&by(other))
            .then(own(one).total_cmp(&own(other)))
    });
    drafts.swap_remove(0)
}
