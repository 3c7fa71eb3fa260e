//! Adds nodes of one pool in a loop. Each step chooses the instance type and the pods with the best
//! value for its price.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::index::{IndexVec, ItemGroupIndex, RowIndex, TypeIndex};
use crate::scheduling::packing::fill_bin::{
    FillQueues, FillStrategy, IdenticalGroups, ItemCount, PendingItems,
};
use crate::scheduling::packing::fill_cache::{AGAIN_MAX, Fill, FillCache};
use crate::scheduling::packing::launch_options::Ledger;
use crate::scheduling::packing::pod_cost::{scarcest_counter, types_to_evaluate, worth_of};
use crate::scheduling::packing::{PackedNode, Packing, PackingInput};

/// Step limit of one packing, some nanoseconds each. One step evaluates an item group for one node.
/// Beyond this limit, the remaining pods are rejected with `Effort`. 100,000 different pods with
/// 1,340 types take half of this limit.
pub(crate) const STEPS_MAX: u64 = 200_000_000;

/// Costs that differ by at most a quarter per cent are treated as equal. Prices are not more stable
/// than that, and each node that is saved need not be started, patched and drained.
pub(crate) const ABOUT: f64 = 1.0025;

/// Cost factor of a node in the packing that prefers few nodes.
const FEW_NODES: f64 = 10.0;

/// Maximum number of sets of compatible offerings that are packed together, highest value first.
/// Each set increases the number of types to evaluate.
const ROWS_MAX: usize = 24;

/// Maximum number of demands that are packed together. More demands are split into batches that
/// each have large and small pods, because the effort grows with the square of their number.
const DEMANDS_MAX: usize = 4096;

/// Maximum number of demands with one queue each. With more demands, similar demands use the same
/// queue.
const QUEUES_MAX: usize = 64;

/// Minimum value of a node that repeats a packing, relative to the original node.
const LIKENESS: f64 = 0.97;

/// Extra value of pods that must be spread over many nodes.
const PREMIUM: f64 = 1.05;

/// An instance type for a set of compatible offerings, with its best known packing.
struct TypeCandidate {
    row: RowIndex,
    shape: TypeIndex,
    price: f64,
    /// Value of its pods divided by its cost. An outdated score is too high, never too low, because
    /// the number of pending pods only decreases.
    score: f64,
    /// The commit after which the score was last computed.
    seen: usize,
    parts: Vec<ItemCount>,
}

impl PackingInput<'_> {
    /// Packs all pods within a number of steps. Each node uses the better strategy.
    fn draft_packing(
        &self,
        strategies: &[FillStrategy],
        ledger: &Ledger,
        fills: &mut FillCache,
    ) -> Packing {
        let mut draft = Packing {
            claims: Vec::new(),
            left: self.stock.clone(),
            ledger: ledger.clone(),
            cut_short: false,
            steps: 0,
        };
        let waiting: Vec<ItemGroupIndex> =
            self.stock.keys().filter(|lot| self.stock[*lot] > 0).collect();
        let kinds: BTreeSet<(RowIndex, &[i64])> =
            waiting.iter().map(|lot| (self.lots[*lot].row, self.lots[*lot].demand)).collect();
        let batches = kinds.len().div_ceil(DEMANDS_MAX).max(1);
        for batch in 0..batches {
            let group_ids = waiting.iter().skip(batch).step_by(batches).copied();
            let group_ids: Vec<ItemGroupIndex> = group_ids.collect();
            let mut packing = PackingRun::new(self, &group_ids, &draft.ledger);
            match batches {
                1 => packing.pack_all(strategies, &mut draft, fills),
                _ => packing.pack_all(strategies, &mut draft, &mut FillCache::default()),
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
    input: &'p PackingInput<'o>,
    /// Item groups to pack, the largest first.
    waiting: Vec<ItemGroupIndex>,
    /// Instance types to evaluate, by compatible offerings.
    types_by_row: BTreeMap<RowIndex, Vec<TypeIndex>>,
    /// Lowest cost per pod of each group, as if all pods were identical to those of the group.
    values: IndexVec<ItemGroupIndex, f64>,
}

/// Upper bound of the value that pending pods add to a node.
struct ValueBound {
    /// Total value of all pending pods.
    all: f64,
    /// Prices of cpu and memory at which no pod is worth more than its requests. At each of these
    /// prices, the value of a node is limited by its cpu and memory.
    prices: Vec<[f64; 2]>,
    /// Highest value on one node of all pods with a limit per node.
    few: f64,
}

/// Number of price ratios between cpu and memory.
const PRICES: u8 = 16;

impl<'p, 'o> PackingRun<'p, 'o> {
    fn new(input: &'p PackingInput<'o>, group_ids: &[ItemGroupIndex], ledger: &Ledger) -> Self {
        let types_by_row = types_to_evaluate(input, group_ids, ledger);
        let mut values: IndexVec<ItemGroupIndex, f64> = vec![0.0; input.stock.len()].into();
        let scarce = scarcest_counter(input, group_ids);
        let mut known: BTreeMap<(RowIndex, &[i64], u64), f64> = BTreeMap::new();
        for lot in group_ids {
            let item = &input.lots[*lot];
            let together = scarce.filter(|(counter, _)| item.shares.adds.contains(counter));
            let max_together = together.map_or(u64::MAX, |(_, together)| together);
            let alone = known.entry((item.row, item.demand, max_together));
            let alone = alone.or_insert_with(|| {
                worth_of(input, &types_by_row, item.row, item.demand, max_together)
            });
            let is_constrained = !item.shares.is_empty();
            values[*lot] = *alone * if is_constrained { PREMIUM } else { 1.0 };
        }
        let placeable = group_ids.iter().copied().filter(|lot| values[*lot] > 0.0);
        Self { input, waiting: placeable.collect(), types_by_row, values }
    }

    /// Packs pods by compatible offerings, in order of value; some sets of offerings are packed
    /// together.
    fn pack_all(
        &mut self,
        strategies: &[FillStrategy],
        draft: &mut Packing,
        fills: &mut FillCache,
    ) {
        let mut rows: BTreeMap<RowIndex, f64> = BTreeMap::new();
        for lot in &self.waiting {
            #[expect(clippy::cast_precision_loss, reason = "only for an order")]
            let count = draft.left[*lot] as f64;
            *rows.entry(self.input.lots[*lot].row).or_insert(0.0) += count * self.values[*lot];
        }
        let mut rows: Vec<(RowIndex, f64)> = rows.into_iter().collect();
        rows.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        for chunk in rows.chunks(ROWS_MAX) {
            let candidates = chunk.iter().flat_map(|(row, _)| self.candidates_of(*row));
            self.pack_candidates(candidates.collect(), strategies, draft, fills);
        }
    }

    fn candidates_of(&self, row: RowIndex) -> Vec<TypeCandidate> {
        let masks = &self.input.rows[row].masks;
        self.types_by_row[&row]
            .iter()
            .map(|shape| TypeCandidate {
                row,
                shape: *shape,
                price: self.input.template.shapes[*shape]
                    .lowest_price(masks[*shape])
                    .unwrap_or(0.0),
                score: f64::INFINITY,
                seen: usize::MAX,
                parts: Vec::new(),
            })
            .collect()
    }

    /// Returns an upper bound of the score of a candidate.
    fn score_bound(&self, candidate: &TypeCandidate, bound: &ValueBound) -> f64 {
        let Some(net) = &self.input.template.shapes[candidate.shape].net else {
            return 0.0;
        };
        #[expect(clippy::cast_precision_loss, reason = "a bound, made a little higher than it is")]
        let worth = bound
            .prices
            .iter()
            .map(|price| net[0] as f64 * price[0] + net[1] as f64 * price[1])
            .fold(f64::INFINITY, f64::min)
            + bound.few;
        // Avoids division by zero for free nodes.
        let cost = (candidate.price + self.input.node_cost).max(1e-12);
        worth.min(bound.all) * 1.000_001 / cost
    }

    /// Computes the value bound of pending pods.
    fn value_bound(
        &self,
        left: &IndexVec<ItemGroupIndex, u64>,
        waiting: &FillQueues,
    ) -> ValueBound {
        let lots = self.input.lots;
        let mut worth_by_counter = vec![0.0; self.input.counters];
        let mut total = 0.0;
        let mut sums = [0.0; 2];
        // Cpu, memory and value of pods without a limit per node.
        let mut free_groups: Vec<[f64; 3]> = Vec::new();
        for identical in &waiting.order {
            let mut unconstrained_value: f64 = 0.0;
            for lot in identical {
                let shares = lots[*lot].shares;
                #[expect(clippy::cast_precision_loss, reason = "only for an order")]
                let pods = left[*lot] as f64;
                total += self.values[*lot] * pods;
                let mut limits = shares.limits.iter();
                match limits.find(|(counter, _)| shares.adds.contains(counter)) {
                    Some((counter, together)) => {
                        let worth = self.values[*lot] * (f64::from(*together) + 1.0);
                        worth_by_counter[*counter] = f64::max(worth_by_counter[*counter], worth);
                    }
                    None => unconstrained_value = unconstrained_value.max(self.values[*lot]),
                }
            }
            if unconstrained_value > 0.0 {
                let demand = lots[identical[0]].demand;
                #[expect(clippy::cast_precision_loss, reason = "only for a bound")]
                let (cpu, memory) = (demand[0] as f64, demand[1] as f64);
                free_groups.push([cpu, memory, unconstrained_value]);
                sums = [sums[0] + cpu, sums[1] + memory];
            }
        }
        let prices = (0..=PRICES).map(|at| {
            let fraction = f64::from(at) / f64::from(PRICES);
            let base = [fraction / sums[0].max(1.0), (1.0 - fraction) / sums[1].max(1.0)];
            let needed = free_groups
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
        strategies: &[FillStrategy],
        draft: &mut Packing,
        fills: &mut FillCache,
    ) {
        let mut commits = 0;
        fills.set_state(&draft.left);
        let identical = self.group_identical(draft.left.len());
        let mut queues = self.fill_queues(identical.lots.clone(), &draft.left, &identical);
        let mut bound = self.value_bound(&draft.left, &queues);
        loop {
            let all = candidates.iter_mut();
            let best =
                all.reduce(|best, other| if other.score > best.score { other } else { best });
            let Some(best) = best.filter(|best| best.score > 0.0) else {
                return;
            };
            if best.seen == commits {
                self.commit_candidate(best, &identical, draft);
                commits += 1;
                fills.set_state(&draft.left);
                queues = self.fill_queues(queues.order, &draft.left, &identical);
                bound = self.value_bound(&draft.left, &queues);
            } else if let Some(score) =
                Some(self.score_bound(best, &bound)).filter(|it| *it < best.score)
            {
                best.score = score;
            } else if draft.steps > STEPS_MAX {
                draft.cut_short = true;
                return;
            } else {
                self.evaluate_candidate(best, strategies, &queues, draft, fills);
                best.seen = commits;
            }
        }
    }

    /// Computes the best packing of a candidate.
    fn evaluate_candidate(
        &self,
        candidate: &mut TypeCandidate,
        strategies: &[FillStrategy],
        waiting: &FillQueues,
        draft: &mut Packing,
        fills: &mut FillCache,
    ) {
        candidate.score = 0.0;
        let shape = &self.input.template.shapes[candidate.shape];
        if draft.ledger.allowed_copies(&shape.limited) == 0 {
            return;
        }
        let mask = self.input.rows[candidate.row].masks[candidate.shape];
        for strategy in strategies {
            let fill = fills.get_or_fill(*strategy, candidate.row, candidate.shape, || {
                let cheapest_mask = shape.cheapest_offerings(mask);
                let Some(mut bin) = self.input.empty_bin(candidate.shape, mask, cheapest_mask)
                else {
                    return Fill::default();
                };
                let pending = PendingItems { waiting, stock: &draft.left, values: &self.values };
                let mut steps = 0;
                let parts = self.input.with_rules(candidate.shape, |rules| {
                    bin.fill(*strategy, rules, &pending, &mut steps)
                });
                Fill { parts, steps }
            });
            draft.steps += fill.steps;
            let score = self.worth_of(&fill.parts) / (candidate.price + self.input.node_cost);
            if score > candidate.score {
                candidate.score = score;
                candidate.parts.clone_from(&fill.parts);
            }
        }
        fills.stop_if_large(draft.steps);
    }

    fn worth_of(&self, parts: &[ItemCount]) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "only for an order")]
        parts.iter().map(|(lot, count)| self.values[*lot] * *count as f64).sum()
    }

    /// Adds as many identical nodes as there are pods for. Groups that differ only in per-node
    /// constraints can replace each other.
    fn commit_candidate(&self, candidate: &TypeCandidate, identical: &Sorted, draft: &mut Packing) {
        let limited = self.input.limit_usage(candidate.shape);
        let mut max_copies = draft.ledger.allowed_copies(limited);
        assert!(max_copies > 0, "what was weighed can be had");
        let first = self.worth_of(&candidate.parts);
        let mut parts = candidate.parts.clone();
        loop {
            let available = parts.iter().map(|(lot, count)| draft.left[*lot] / count);
            let copies = available.min().unwrap_or(0).min(max_copies);
            assert!(copies > 0, "what was weighed can be had");
            for (lot, count) in &parts {
                draft.left[*lot] -= count * copies;
            }
            draft.ledger.reserve(limited, copies);
            max_copies -= copies;
            let claim = PackedNode { shape: candidate.shape, price: candidate.price, parts };
            draft.claims.extend((0..copies).map(|_| claim.clone()));
            parts = self.repeat_with_others(candidate, identical, draft);
            if max_copies == 0 || parts.is_empty() || self.worth_of(&parts) < first * LIKENESS {
                return;
            }
        }
    }

    /// Returns the packing of a candidate with the remaining pods of identical groups.
    fn repeat_with_others(
        &self,
        candidate: &TypeCandidate,
        identical: &Sorted,
        draft: &mut Packing,
    ) -> Vec<ItemCount> {
        let input = self.input;
        let mask = input.rows[candidate.row].masks[candidate.shape];
        let cheapest_mask = input.template.shapes[candidate.shape].cheapest_offerings(mask);
        let Some(mut bin) = input.empty_bin(candidate.shape, mask, cheapest_mask) else {
            return Vec::new();
        };
        let mut parts = Vec::with_capacity(candidate.parts.len());
        let mut steps = 0;
        input.with_rules(candidate.shape, |rules| {
            let mut wanted: Vec<(usize, u64)> = Vec::new();
            for (lot, count) in &candidate.parts {
                // Identical groups may not be adjacent.
                match wanted
                    .iter_mut()
                    .find(|(identical_group, _)| *identical_group == identical.of[*lot])
                {
                    Some((_, sum)) => *sum += count,
                    None => wanted.push((identical.of[*lot], *count)),
                }
            }
            for (identical_group, mut count) in wanted {
                for lot in &identical.lots[identical_group] {
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

    /// Groups item groups by compatible offerings and demand.
    fn group_identical(&self, lots: usize) -> Sorted {
        let mut known: BTreeMap<(RowIndex, &[i64]), usize> = BTreeMap::new();
        let mut identical =
            Sorted { of: vec![usize::MAX; lots].into(), lots: Vec::new(), ratios: Vec::new() };
        for lot in &self.waiting {
            let item = &self.input.lots[*lot];
            let next = known.len();
            let identical_group = *known.entry((item.row, item.demand)).or_insert(next);
            if identical_group == next {
                identical.lots.push(Vec::new());
            }
            identical.of[*lot] = identical_group;
            identical.lots[identical_group].push(*lot);
        }
        let ratios: Vec<(RowIndex, Vec<bool>, u32)> = identical
            .lots
            .iter()
            .map(|lots| {
                let item = &self.input.lots[lots[0]];
                let others: Vec<bool> = item.demand[2..].iter().map(|amount| *amount > 0).collect();
                let ratio = item.demand[1].saturating_div(item.demand[0].max(1));
                (item.row, others, ratio.max(1).ilog2())
            })
            .collect();
        let ordinals: BTreeSet<_> = ratios.iter().collect();
        let ordinals: Vec<_> = ordinals.into_iter().collect();
        identical.ratios =
            ratios.iter().map(|ratio| ordinals.partition_point(|other| *other < ratio)).collect();
        // Pods with per-node constraints come first. Pods that require other pods come last.
        for lot in &mut identical.lots {
            lot.sort_by_key(|lot| {
                let shares = self.input.lots[*lot].shares;
                (!shares.needs.is_empty(), shares.is_empty(), *lot)
            });
        }
        identical
    }

    /// Returns queues of pending items.
    fn fill_queues(
        &self,
        mut order: Vec<IdenticalGroups>,
        left: &IndexVec<ItemGroupIndex, u64>,
        identical: &Sorted,
    ) -> FillQueues {
        order.retain_mut(|lots| {
            lots.retain(|lot| left[*lot] > 0);
            !lots.is_empty()
        });
        let each_alone = order.len() <= QUEUES_MAX;
        let mut sorted: Vec<(usize, usize)> = order
            .iter()
            .enumerate()
            .map(|(at, lots)| (identical.ratios[identical.of[lots[0]]], at))
            .collect();
        sorted.sort_unstable();
        let queues = sorted.chunk_by(|one, other| !each_alone && one.0 == other.0);
        let queues = queues.map(|queue| queue.iter().map(|(_, at)| *at).collect());
        FillQueues { queues: queues.collect(), order }
    }
}

/// Item groups that can replace each other.
struct Sorted {
    /// Index into `lots` of each item group.
    of: IndexVec<ItemGroupIndex, usize>,
    /// Item groups that are identical to each other.
    lots: Vec<IdenticalGroups>,
    /// Ordinal of similar demands.
    ratios: Vec<usize>,
}

/// Returns the packing with the fewest unscheduled pods and, among about equal costs, the fewest
/// nodes. It never costs more than the first-fit packing.
pub(crate) fn best_packing(input: &PackingInput<'_>, ledger: &Ledger) -> Packing {
    let price = input.node_overhead_price;
    let both = [FillStrategy::Worth, FillStrategy::Largest];
    let tries = [
        (&both[..], price),
        (&both[..1], price),
        (&both[1..], price),
        (&both[..], FEW_NODES * price),
    ];
    let mut drafts: Vec<Packing> = Vec::new();
    let mut fills = FillCache::default();
    for (strategies, node_cost) in tries {
        if node_cost != price {
            fills.by_worth.clear();
        }
        let input = PackingInput { node_cost, ..*input };
        let draft = input.draft_packing(strategies, ledger, &mut fills);
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
    let greedy = (drafts.len() == tries.len()).then(|| input.first_fit_packing(ledger));
    if let Some(first_fit) = greedy.flatten().filter(|it| it.unscheduled_items() <= least) {
        (least, cost_max) = (first_fit.unscheduled_items(), first_fit.cost(price));
        let mut merged = first_fit.clone();
        input.merge_claims(&mut merged);
        // Sums in a different order may differ in the last digit of the result.
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
