//! Adds nodes of one pool in a loop. Each step chooses the instance type and the pods with the best
//! value for its price.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::packing::fill_bin::{
    FillQueues, FillStrategy, IdenticalGroups, ItemCount, PendingItems,
};
use crate::scheduling::packing::fill_cache::{AGAIN_MAX, Fill, FillCache};
use crate::scheduling::packing::launch_options::Ledger;
use crate::scheduling::packing::pod_cost::{scarcest_counter, types_to_evaluate, worth_of};
use crate::scheduling::packing::{PackedNode, Packing, PackingInput};

/// Step limit of one packing, some nanoseconds each. One step evaluates an item group for one host.
/// Beyond it, pods are left with `Effort`. 100,000 different pods take half of it with 1,340 types.
pub(crate) const STEPS_MAX: u64 = 200_000_000;

/// Costs within a quarter per cent count as equal. Prices are not more stable than that, and each
/// node saved is one less to start, patch and drain.
pub(crate) const ABOUT: f64 = 1.0025;

/// Cost factor of a node in the packing that prefers few nodes.
const FEW_NODES: f64 = 10.0;

/// Maximum number of rows packed together, highest value first. Each multiplies the types to
/// evaluate.
const LANES_MAX: usize = 24;

/// Maximum number of demands packed together. More are split into batches with equal shares of
/// large and small pods, because the effort grows with the square.
const TWINS_MAX: usize = 4096;

/// Up to this number each demand has its own queue. Beyond it, similar demands share one.
const QUEUES_MAX: usize = 64;

/// Minimum value of a repeated packing, relative to the original.
const LIKENESS: f64 = 0.97;

/// Extra value of pods that must be spread over many hosts.
const PREMIUM: f64 = 1.05;

/// An instance type for a row, with its best known packing.
struct TypeCandidate {
    lane: usize,
    shape: usize,
    price: f64,
    /// Value of its pods divided by its cost. An outdated score is too high, never too low, because
    /// pending pods only decrease.
    score: f64,
    /// The commit after which the score was last worked out.
    seen: usize,
    parts: Vec<ItemCount>,
}

impl PackingInput<'_> {
    /// Packs everything within a number of steps, choosing the better strategy for each node.
    fn draft_packing(
        &self,
        ways: &[FillStrategy],
        ledger: &Ledger,
        fills: &mut FillCache,
    ) -> Packing {
        let mut draft = Packing {
            claims: Vec::new(),
            left: self.stock.to_vec(),
            ledger: ledger.clone(),
            cut_short: false,
            steps: 0,
        };
        let waiting: Vec<usize> =
            (0..self.stock.len()).filter(|lot| self.stock[*lot] > 0).collect();
        let kinds: BTreeSet<(usize, &[i64])> =
            waiting.iter().map(|lot| (self.lots[*lot].row, self.lots[*lot].demand)).collect();
        let batches = kinds.len().div_ceil(TWINS_MAX).max(1);
        for batch in 0..batches {
            let dealt = waiting.iter().skip(batch).step_by(batches).copied();
            let dealt: Vec<usize> = dealt.collect();
            let mut packing = PackingRun::new(self, &dealt, &draft.ledger);
            match batches {
                1 => packing.pack_all(ways, &mut draft, fills),
                _ => packing.pack_all(ways, &mut draft, &mut FillCache::default()),
            }
        }
        self.merge_claims(&mut draft);
        self.refit_types(&mut draft);
        self.grow_claims(&mut draft);
        self.check_packing(&draft);
        draft
    }
}

/// State of one packing run.
struct PackingRun<'p, 'o> {
    order: &'p PackingInput<'o>,
    /// Lots to be packed, the largest first.
    waiting: Vec<usize>,
    /// For each row, the shapes to weigh.
    fronts: BTreeMap<usize, Vec<usize>>,
    /// Lowest cost per pod of each group, as if all pods were like it.
    worth: Vec<f64>,
}

/// Upper bound of the value that pending pods add to a host.
struct ValueBound {
    /// Total value of all pending pods.
    all: f64,
    /// Prices of cpu and memory at which no pod is worth more than its requests. At each of these,
    /// the value of a host is limited by its cpu and memory.
    prices: Vec<[f64; 2]>,
    /// Highest value of pods with few per host.
    few: f64,
}

/// Number of price ratios between cpu and memory.
const PRICES: u8 = 16;

impl<'p, 'o> PackingRun<'p, 'o> {
    fn new(order: &'p PackingInput<'o>, dealt: &[usize], ledger: &Ledger) -> Self {
        let fronts = types_to_evaluate(order, dealt, ledger);
        let mut worth = vec![0.0; order.stock.len()];
        let scarce = scarcest_counter(order, dealt);
        let mut known: BTreeMap<(usize, &[i64], u64), f64> = BTreeMap::new();
        for lot in dealt {
            let item = &order.lots[*lot];
            let together = scarce.filter(|(counter, _)| item.shares.adds.contains(counter));
            let most = together.map_or(u64::MAX, |(_, together)| together);
            let alone = known.entry((item.row, item.demand, most));
            let alone =
                alone.or_insert_with(|| worth_of(order, &fronts, item.row, item.demand, most));
            let is_constrained = !item.shares.is_empty();
            worth[*lot] = *alone * if is_constrained { PREMIUM } else { 1.0 };
        }
        let placeable = dealt.iter().copied().filter(|lot| worth[*lot] > 0.0);
        Self { order, waiting: placeable.collect(), fronts, worth }
    }

    /// Packs rows in order of value, some of them together.
    fn pack_all(&mut self, ways: &[FillStrategy], draft: &mut Packing, fills: &mut FillCache) {
        let mut lanes: BTreeMap<usize, f64> = BTreeMap::new();
        for lot in &self.waiting {
            #[expect(clippy::cast_precision_loss, reason = "only for an order")]
            let count = draft.left[*lot] as f64;
            *lanes.entry(self.order.lots[*lot].row).or_insert(0.0) += count * self.worth[*lot];
        }
        let mut lanes: Vec<(usize, f64)> = lanes.into_iter().collect();
        lanes.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        for chunk in lanes.chunks(LANES_MAX) {
            let candidates = chunk.iter().flat_map(|(lane, _)| self.candidates_of(*lane));
            self.pack_candidates(candidates.collect(), ways, draft, fills);
        }
    }

    fn candidates_of(&self, lane: usize) -> Vec<TypeCandidate> {
        let masks = &self.order.rows[lane].masks;
        self.fronts[&lane]
            .iter()
            .map(|shape| TypeCandidate {
                lane,
                shape: *shape,
                price: self.order.template.shapes[*shape]
                    .lowest_price(masks[*shape])
                    .unwrap_or(0.0),
                score: f64::INFINITY,
                seen: usize::MAX,
                parts: Vec::new(),
            })
            .collect()
    }

    /// Returns an upper bound of the score of a candidate.
    fn score_bound(&self, candidate: &TypeCandidate, most: &ValueBound) -> f64 {
        let Some(net) = &self.order.template.shapes[candidate.shape].net else {
            return 0.0;
        };
        #[expect(clippy::cast_precision_loss, reason = "a bound, made a little higher than it is")]
        let worth = most
            .prices
            .iter()
            .map(|price| net[0] as f64 * price[0] + net[1] as f64 * price[1])
            .fold(f64::INFINITY, f64::min)
            + most.few;
        // Avoids division by zero for free nodes.
        let cost = (candidate.price + self.order.node_cost).max(1e-12);
        worth.min(most.all) * 1.000_001 / cost
    }

    /// Computes the value bound of pending pods.
    fn value_bound(&self, left: &[u64], waiting: &FillQueues) -> ValueBound {
        let lots = self.order.lots;
        let mut worth_by_counter = vec![0.0; self.order.counters];
        let mut total = 0.0;
        let mut sums = [0.0; 2];
        // Cpu, memory and value of pods that share hosts with any pods.
        let mut single: Vec<[f64; 3]> = Vec::new();
        for twins in &waiting.order {
            let mut plain: f64 = 0.0;
            for lot in twins {
                let shares = lots[*lot].shares;
                #[expect(clippy::cast_precision_loss, reason = "only for an order")]
                let pods = left[*lot] as f64;
                total += self.worth[*lot] * pods;
                let mut limits = shares.limits.iter();
                match limits.find(|(counter, _)| shares.adds.contains(counter)) {
                    Some((counter, together)) => {
                        let worth = self.worth[*lot] * (f64::from(*together) + 1.0);
                        worth_by_counter[*counter] = f64::max(worth_by_counter[*counter], worth);
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
        let prices = (0..=PRICES).map(|at| {
            let part = f64::from(at) / f64::from(PRICES);
            let base = [part / sums[0].max(1.0), (1.0 - part) / sums[1].max(1.0)];
            let needed = single
                .iter()
                .map(|[cpu, memory, worth]| worth / (cpu * base[0] + memory * base[1]));
            let scale = needed.fold(0.0, f64::max);
            [base[0] * scale, base[1] * scale]
        });
        ValueBound {
            all: total,
            // Infinity times zero is NaN.
            prices: prices.filter(|price| price[0].is_finite() && price[1].is_finite()).collect(),
            few: worth_by_counter.into_iter().sum(),
        }
    }

    /// Commits the candidate with the highest score until none has value.
    fn pack_candidates(
        &self,
        mut candidates: Vec<TypeCandidate>,
        ways: &[FillStrategy],
        draft: &mut Packing,
        fills: &mut FillCache,
    ) {
        let mut commits = 0;
        fills.set_state(&draft.left);
        let twins = self.group_identical(draft.left.len());
        let mut queues = self.fill_queues(twins.lots.clone(), &draft.left, &twins);
        let mut most = self.value_bound(&draft.left, &queues);
        loop {
            let all = candidates.iter_mut();
            let best =
                all.reduce(|best, other| if other.score > best.score { other } else { best });
            let Some(best) = best.filter(|best| best.score > 0.0) else {
                return;
            };
            if best.seen == commits {
                self.commit_candidate(best, &twins, draft);
                commits += 1;
                fills.set_state(&draft.left);
                queues = self.fill_queues(queues.order, &draft.left, &twins);
                most = self.value_bound(&draft.left, &queues);
            } else if let Some(bound) =
                Some(self.score_bound(best, &most)).filter(|it| *it < best.score)
            {
                best.score = bound;
            } else if draft.steps > STEPS_MAX {
                draft.cut_short = true;
                return;
            } else {
                self.evaluate_candidate(best, ways, &queues, draft, fills);
                best.seen = commits;
            }
        }
    }

    /// Computes the best packing of a candidate.
    fn evaluate_candidate(
        &self,
        candidate: &mut TypeCandidate,
        ways: &[FillStrategy],
        waiting: &FillQueues,
        draft: &mut Packing,
        fills: &mut FillCache,
    ) {
        candidate.score = 0.0;
        let shape = &self.order.template.shapes[candidate.shape];
        if draft.ledger.allowed_copies(&shape.limited) == 0 {
            return;
        }
        let mask = self.order.rows[candidate.lane].masks[candidate.shape];
        for way in ways {
            let fill = fills.get_or_fill(*way, candidate.lane, candidate.shape, || {
                let good = shape.cheapest_offerings(mask);
                let Some(mut bin) = self.order.empty_bin(candidate.shape, mask, good) else {
                    return Fill::default();
                };
                let pending = PendingItems { waiting, stock: &draft.left, worth: &self.worth };
                let mut steps = 0;
                let parts = self.order.with_rules(candidate.shape, |rules| {
                    bin.fill(*way, rules, &pending, &mut steps)
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
        fills.stop_if_large(draft.steps);
    }

    fn worth_of(&self, parts: &[ItemCount]) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "only for an order")]
        parts.iter().map(|(lot, count)| self.worth[*lot] * *count as f64).sum()
    }

    /// Adds as many identical nodes as there are pods for. Groups that differ only in per-host
    /// constraints replace each other.
    fn commit_candidate(&self, candidate: &TypeCandidate, twins: &Sorted, draft: &mut Packing) {
        let limited = self.order.limit_usage(candidate.shape);
        let mut most = draft.ledger.allowed_copies(limited);
        assert!(most > 0, "what was weighed can be had");
        let first = self.worth_of(&candidate.parts);
        let mut parts = candidate.parts.clone();
        loop {
            let available = parts.iter().map(|(lot, count)| draft.left[*lot] / count);
            let copies = available.min().unwrap_or(0).min(most);
            assert!(copies > 0, "what was weighed can be had");
            for (lot, count) in &parts {
                draft.left[*lot] -= count * copies;
            }
            draft.ledger.reserve(limited, copies);
            most -= copies;
            let claim = PackedNode { shape: candidate.shape, price: candidate.price, parts };
            draft.claims.extend((0..copies).map(|_| claim.clone()));
            parts = self.repeat_with_others(candidate, twins, draft);
            if most == 0 || parts.is_empty() || self.worth_of(&parts) < first * LIKENESS {
                return;
            }
        }
    }

    /// Repeats a packing with other pods.
    fn repeat_with_others(
        &self,
        candidate: &TypeCandidate,
        twins: &Sorted,
        draft: &mut Packing,
    ) -> Vec<ItemCount> {
        let order = self.order;
        let mask = order.rows[candidate.lane].masks[candidate.shape];
        let good = order.template.shapes[candidate.shape].cheapest_offerings(mask);
        let Some(mut bin) = order.empty_bin(candidate.shape, mask, good) else {
            return Vec::new();
        };
        let mut parts = Vec::with_capacity(candidate.parts.len());
        let mut steps = 0;
        order.with_rules(candidate.shape, |rules| {
            let mut wanted: Vec<(usize, u64)> = Vec::new();
            for (lot, count) in &candidate.parts {
                // Identical groups may not be adjacent.
                match wanted.iter_mut().find(|(twin, _)| *twin == twins.of[*lot]) {
                    Some((_, sum)) => *sum += count,
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
                    let taken = bin.room_for(rules, *lot).min(draft.left[*lot]).min(count);
                    if taken > 0 {
                        bin.add_items(rules, *lot, taken);
                        parts.push((*lot, taken));
                        count -= taken;
                    }
                }
            }
        });
        draft.steps += steps;
        parts.sort_unstable();
        parts
    }

    /// Groups item groups by row and demand.
    fn group_identical(&self, lots: usize) -> Sorted {
        let mut known: BTreeMap<(usize, &[i64]), usize> = BTreeMap::new();
        let mut twins = Sorted { of: vec![usize::MAX; lots], lots: Vec::new(), ratios: Vec::new() };
        for lot in &self.waiting {
            let item = &self.order.lots[*lot];
            let next = known.len();
            let twin = *known.entry((item.row, item.demand)).or_insert(next);
            if twin == next {
                twins.lots.push(Vec::new());
            }
            twins.of[*lot] = twin;
            twins.lots[twin].push(*lot);
        }
        let ratios: Vec<(usize, Vec<bool>, u32)> = twins
            .lots
            .iter()
            .map(|lots| {
                let item = &self.order.lots[lots[0]];
                let others: Vec<bool> = item.demand[2..].iter().map(|amount| *amount > 0).collect();
                let ratio = item.demand[1].saturating_div(item.demand[0].max(1));
                (item.row, others, ratio.max(1).ilog2())
            })
            .collect();
        let ordinals: BTreeSet<_> = ratios.iter().collect();
        let ordinals: Vec<_> = ordinals.into_iter().collect();
        twins.ratios =
            ratios.iter().map(|ratio| ordinals.partition_point(|other| *other < ratio)).collect();
        // Pods with few per host come first, pods that require others last.
        for lot in &mut twins.lots {
            lot.sort_by_key(|lot| {
                let shares = self.order.lots[*lot].shares;
                (!shares.needs.is_empty(), shares.is_empty(), *lot)
            });
        }
        twins
    }

    /// Returns queues of pending items.
    fn fill_queues(
        &self,
        mut order: Vec<IdenticalGroups>,
        left: &[u64],
        twins: &Sorted,
    ) -> FillQueues {
        order.retain_mut(|lots| {
            lots.retain(|lot| left[*lot] > 0);
            !lots.is_empty()
        });
        let each_alone = order.len() <= QUEUES_MAX;
        let mut sorted: Vec<(usize, usize)> = order
            .iter()
            .enumerate()
            .map(|(at, lots)| (twins.ratios[twins.of[lots[0]]], at))
            .collect();
        sorted.sort_unstable();
        let queues = sorted.chunk_by(|one, other| !each_alone && one.0 == other.0);
        let queues = queues.map(|queue| queue.iter().map(|(_, at)| *at).collect());
        FillQueues { queues: queues.collect(), order }
    }
}

/// Item groups that can replace each other.
struct Sorted {
    /// The identical groups of each item group.
    of: Vec<usize>,
    /// Their lots.
    lots: Vec<IdenticalGroups>,
    /// Ordinal of similar demands.
    ratios: Vec<usize>,
}

/// Returns the packing with the fewest unscheduled pods and, among about equal costs, the fewest
/// nodes. It never costs more than the first-fit packing.
pub(crate) fn best_packing(order: &PackingInput<'_>, ledger: &Ledger) -> Packing {
    let price = order.node_overhead_price;
    let both = [FillStrategy::Worth, FillStrategy::Largest];
    let tries = [
        (&both[..], price),
        (&both[..1], price),
        (&both[1..], price),
        (&both[..], FEW_NODES * price),
    ];
    let mut drafts: Vec<Packing> = Vec::new();
    let mut fills = FillCache::default();
    for (ways, node_cost) in tries {
        if node_cost != price {
            fills.by_worth.clear();
        }
        let order = PackingInput { node_cost, ..*order };
        let draft = order.draft_packing(ways, ledger, &mut fills);
        let last = draft.steps > AGAIN_MAX || draft.claims.is_empty();
        if drafts.is_empty() || !draft.cut_short {
            drafts.push(draft);
        }
        if last {
            break;
        }
    }
    let unscheduled = drafts.iter().map(Packing::unscheduled_items);
    let mut least = unscheduled.min().unwrap_or(0);
    let mut cost_max = f64::INFINITY;
    let greedy = (drafts.len() == tries.len()).then(|| order.first_fit_packing(ledger));
    if let Some(first_fit) = greedy.flatten().filter(|it| it.unscheduled_items() <= least) {
        (least, cost_max) = (first_fit.unscheduled_items(), first_fit.cost(price));
        let mut merged = first_fit.clone();
        order.merge_claims(&mut merged);
        // Sums in a different order may differ in the last digit.
        drafts.push(match merged.cost(price) <= cost_max {
            true => merged,
            false => first_fit,
        });
    }
    drafts.retain(|draft| draft.unscheduled_items() == least);
    let costs = drafts.iter().map(|draft| draft.cost(price));
    let cost = costs.min_by(f64::total_cmp);
    cost_max = cost_max.min(cost.unwrap_or(0.0) * ABOUT);
    drafts.retain(|draft| draft.cost(price) <= cost_max);
    drafts.sort_by(|one, other| {
        let by_nodes = one.claims.len().cmp(&other.claims.len());
        by_nodes.then(one.cost(price).total_cmp(&other.cost(price)))
    });
    drafts.swap_remove(0)
}
