//! One way to pack what waits onto new nodes of one pool: type by type, best value first.
//! It must not know the other pools, nor which of several drafts is taken.

use std::collections::BTreeMap;

use crate::solve::choose::{Ledger, cheapest, sum};
use crate::solve::fill::{Bin, Part, Queues, Terms, Way};
use crate::solve::problem::{Problem, take, times};
use crate::solve::supply::{Row, Shelf};

/// What a node costs beyond its price, in $/h: of two plans at one price the one with fewer nodes
/// is better. A tenth of what the smallest instance types cost.
pub(super) const NODE_COST: f64 = 0.005;

/// Rows that are packed at once, those of most worth first. Each multiplies the types to weigh.
const LANES_MAX: usize = 24;

/// Classes that are packed at once. More are dealt out into groups of which each has its share of
/// large and small pods, since the effort grows with the square.
const CLASSES_MAX: usize = 4096;

/// Up to this many classes have a queue each; beyond, classes that are much alike share one.
const QUEUES_MAX: usize = 64;

/// Claims that are looked at for being one, the cheapest of all. A fuller node has nothing to gain.
const MERGE_MAX: usize = 8;

/// Times that claims are made one. A packing leaves a few that gain by it, whatever its size.
const MERGES_MAX: usize = 64;

/// A node to be made, in ordinals.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    /// The type it is planned as; others may do as well.
    pub(super) shape: usize,
    /// The price of that.
    pub(super) price: f64,
    /// Its pods: row, class and how many.
    pub(super) parts: Vec<(usize, Part)>,
}

/// What is packed, the same for every draft.
pub(super) struct Order<'o> {
    /// The pods.
    pub(super) problem: &'o Problem<'o>,
    /// The pool.
    pub(super) shelf: &'o Shelf<'o>,
    /// Rows, some of them of earlier orders.
    pub(super) rows: &'o [Row],
    /// The row of each kind; none where it may have nothing.
    pub(super) row_of: &'o [Option<usize>],
    /// How many pods of each class wait.
    pub(super) stock: &'o [u64],
    /// What a node is taken to cost beyond its price, in $/h: more makes fewer, larger nodes.
    pub(super) node_cost: f64,
}

/// A packing.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// Nodes to be made.
    pub(super) claims: Vec<Claim>,
    /// Pods that are left, by class.
    pub(super) left: Vec<u64>,
    /// What the limits leave.
    pub(super) ledger: Ledger,
    /// Whether it ended because its steps were used up.
    pub(super) cut_short: bool,
    /// How much was looked at.
    pub(super) steps: u64,
}

/// An instance type as seen from a row, and the best that is known to be made of it.
struct Candidate {
    lane: usize,
    shape: usize,
    price: f64,
    /// Worth of its pods by its cost. It may be out of date, and then is too high rather than too
    /// low, because pods only become fewer.
    score: f64,
    /// The commit after which the score was last worked out.
    seen: usize,
    parts: Vec<Part>,
}

impl<'o> Order<'o> {
    /// Rows of two kinds that must not share a node: their host ports clash, or they ask for
    /// different values of a label that is still open.
    fn apart(&self, one: usize, other: usize) -> bool {
        let open = |kind: usize| self.row_of[kind].map(|row| &self.rows[row].open[..]);
        let differs = |(key, wanted): &(String, _)| {
            let theirs = open(other).into_iter().flatten();
            theirs.into_iter().any(|(k, w)| k == key && w != wanted)
        };
        self.problem.ports_clash(one, other) || open(one).into_iter().flatten().any(differs)
    }

    fn is_picky(&self, kind: usize) -> bool {
        !self.problem.kinds[kind].ports.is_empty()
            || self.row_of[kind].is_some_and(|row| !self.rows[row].open.is_empty())
    }

    fn lane(&self, class: usize) -> Option<usize> {
        self.row_of[self.problem.classes[class].kind]
    }

    /// Adds pods to a claim that is planned already. Says what went in.
    pub(super) fn top_up(&self, claim: &Claim, stock: &[u64], steps: &mut u64) -> Vec<Part> {
        let Some(net) = &self.shelf.shapes[claim.shape].net else {
            return Vec::new();
        };
        let mut free = net.clone();
        let mut mask = u64::MAX;
        let mut picky = false;
        for (row, (class, count)) in &claim.parts {
            let own = &self.problem.classes[*class];
            take(&mut free, &own.demand, *count);
            mask &= self.rows[*row].masks[claim.shape];
            picky |= !self.problem.kinds[own.kind].ports.is_empty();
            picky |= !self.rows[*row].open.is_empty();
        }
        if picky {
            return Vec::new();
        }
        let order =
            (0..stock.len()).filter(|class| stock[*class] > 0 && self.lane(*class).is_some());
        let waiting = Queues {
            order: order.collect(),
            queues: Vec::new(),
        };
        let good = self.shelf.shapes[claim.shape].cheapest(mask);
        let bin = Bin {
            free,
            mask,
            good,
            picky: Vec::new(),
        };
        self.fill(
            bin,
            claim.shape,
            Way::Largest,
            (&waiting, stock, &[]),
            steps,
        )
    }

    fn fill(
        &self,
        mut bin: Bin,
        shape: usize,
        way: Way,
        waiting: (&Queues, &[u64], &[f64]),
        steps: &mut u64,
    ) -> Vec<Part> {
        let mask = |kind: usize| self.row_of[kind].map_or(0, |row| self.rows[row].masks[shape]);
        let terms = Terms {
            mask: &mask,
            is_picky: &|kind| self.is_picky(kind),
            apart: &|one, other| self.apart(one, other),
        };
        bin.fill(way, (self.problem, &terms), waiting, steps)
    }

    /// Packs everything, in the better of these ways for each node, within so many steps.
    pub(super) fn draft(&self, ways: &[Way], ledger: &Ledger, steps_max: u64) -> Draft {
        let mut draft = Draft {
            claims: Vec::new(),
            left: self.stock.to_vec(),
            ledger: ledger.clone(),
            cut_short: false,
            steps: 0,
        };
        let waiting: Vec<usize> = (0..self.stock.len())
            .filter(|class| self.stock[*class] > 0 && self.lane(*class).is_some())
            .collect();
        let groups = waiting.len().div_ceil(CLASSES_MAX).max(1);
        for group in 0..groups {
            let dealt: Vec<usize> = waiting
                .iter()
                .skip(group)
                .step_by(groups)
                .copied()
                .collect();
            let mut packing = Packing::new(self, &dealt, &draft.ledger);
            packing.pack_all(ways, &mut draft, steps_max);
        }
        self.merge_small(&mut draft);
        self.refit(&mut draft);
        self.check(&draft);
        draft
    }

    fn rows_of(&self, parts: &[(usize, Part)]) -> Vec<&'o Row> {
        let mut rows: Vec<usize> = parts.iter().map(|(row, _)| *row).collect();
        rows.sort_unstable();
        rows.dedup();
        rows.into_iter().map(|row| &self.rows[row]).collect()
    }

    /// Moves every claim to the cheapest type that its pods fit.
    fn refit(&self, draft: &mut Draft) {
        let mut last: Option<(Claim, Claim)> = None;
        for claim in &mut draft.claims {
            let limited = &self.shelf.shapes[claim.shape].limited;
            draft.ledger.release(limited);
            if let Some((before, after)) = &last
                && before == claim
                && draft.ledger.copies(&self.shelf.shapes[after.shape].limited) > 0
            {
                let limited = &self.shelf.shapes[after.shape].limited;
                draft.ledger.reserve(limited, 1);
                claim.clone_from(after);
                continue;
            }
            let before = claim.clone();
            let whole = sum(self.problem, claim.parts.iter().map(|(_, part)| *part));
            let rows = self.rows_of(&claim.parts);
            if let Some((shape, price)) = cheapest(self.shelf, &rows, &whole, &draft.ledger)
                && price < claim.price
            {
                (claim.shape, claim.price) = (shape, price);
            }
            let limited = &self.shelf.shapes[claim.shape].limited;
            draft.ledger.reserve(limited, 1);
            last = Some((before, claim.clone()));
        }
    }

    /// Makes the cheapest claims one wherever that costs less. The last nodes of a packing carry
    /// what was left over, each sized for the best use of itself alone.
    fn merge_small(&self, draft: &mut Draft) {
        for _ in 0..MERGES_MAX.min(draft.claims.len().saturating_sub(1)) {
            let mut order: Vec<usize> = (0..draft.claims.len()).collect();
            order.sort_by(|a, b| {
                let price = |at: &usize| draft.claims[*at].price;
                price(a).total_cmp(&price(b)).then(a.cmp(b))
            });
            order.truncate(MERGE_MAX);
            let mut several = (2..=order.len()).rev();
            let Some((count, merged)) =
                several.find_map(|count| Some((count, self.merged(draft, &order[..count])?)))
            else {
                return;
            };
            let mut gone = order[..count].to_vec();
            gone.sort_unstable();
            for at in gone.into_iter().rev() {
                let claim = draft.claims.remove(at);
                draft
                    .ledger
                    .release(&self.shelf.shapes[claim.shape].limited);
            }
            draft
                .ledger
                .reserve(&self.shelf.shapes[merged.shape].limited, 1);
            draft.claims.push(merged);
        }
    }

    /// These claims as one, if that costs less and their pods go together.
    fn merged(&self, draft: &Draft, which: &[usize]) -> Option<Claim> {
        let mut parts: Vec<(usize, Part)> = Vec::new();
        let mut ledger = draft.ledger.clone();
        let mut cost = 0.0;
        for at in which {
            let claim = &draft.claims[*at];
            ledger.release(&self.shelf.shapes[claim.shape].limited);
            cost += claim.price + self.node_cost;
            for (row, (class, count)) in &claim.parts {
                match parts.iter_mut().find(|(_, (own, _))| own == class) {
                    Some((_, (_, own))) => *own += count,
                    None => parts.push((*row, (*class, *count))),
                }
            }
        }
        parts.sort_unstable();
        let kind = |part: &(usize, Part)| self.problem.classes[part.1.0].kind;
        if parts.iter().any(|part| self.is_picky(kind(part))) {
            return None;
        }
        let whole = sum(self.problem, parts.iter().map(|(_, part)| *part));
        let (shape, price) = cheapest(self.shelf, &self.rows_of(&parts), &whole, &ledger)?;
        (price + self.node_cost < cost).then_some(Claim {
            shape,
            price,
            parts,
        })
    }

    /// Post-condition: every pod is counted once, and every claim's pods fit its type.
    fn check(&self, draft: &Draft) {
        let mut count = draft.left.clone();
        for claim in &draft.claims {
            let whole = sum(self.problem, claim.parts.iter().map(|(_, part)| *part));
            let net = self.shelf.shapes[claim.shape].net.as_deref();
            let fits = net.is_some_and(|net| times(net, &whole) > 0);
            assert!(fits, "a claim's pods fit its type: {claim:?}");
            for (_, (class, own)) in &claim.parts {
                count[*class] += own;
            }
        }
        assert!(count == self.stock, "every pod is counted once");
    }
}

impl Draft {
    /// What it costs in $/h.
    pub(super) fn cost(&self) -> f64 {
        let all = self.claims.iter();
        all.map(|claim| claim.price + NODE_COST).sum()
    }
}

/// The loop that opens nodes, one type after the other.
struct Packing<'p, 'o> {
    order: &'p Order<'o>,
    /// Classes to be packed, the largest first.
    waiting: Vec<usize>,
    /// For each row, the shapes to weigh.
    fronts: BTreeMap<usize, Vec<usize>>,
    /// What one pod of each class would cost at least, were there only pods like it.
    worth: Vec<f64>,
}

impl<'p, 'o> Packing<'p, 'o> {
    fn new(order: &'p Order<'o>, dealt: &[usize], ledger: &Ledger) -> Self {
        let mut fronts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for lane in dealt.iter().filter_map(|class| order.lane(*class)) {
            fronts
                .entry(lane)
                .or_insert_with(|| front(order, lane, ledger));
        }
        let mut worth = vec![0.0; order.stock.len()];
        for class in dealt {
            worth[*class] = worth_of(order, &fronts, *class);
        }
        let placeable = dealt.iter().copied().filter(|class| worth[*class] > 0.0);
        Self {
            order,
            waiting: placeable.collect(),
            fronts,
            worth,
        }
    }

    /// Packs row after row, those of most worth first and some of them together.
    fn pack_all(&mut self, ways: &[Way], draft: &mut Draft, steps_max: u64) {
        let mut lanes: BTreeMap<usize, f64> = BTreeMap::new();
        for class in &self.waiting {
            if let Some(lane) = self.order.lane(*class) {
                #[expect(clippy::cast_precision_loss, reason = "only for an order")]
                let count = draft.left[*class] as f64;
                *lanes.entry(lane).or_insert(0.0) += count * self.worth[*class];
            }
        }
        let mut lanes: Vec<(usize, f64)> = lanes.into_iter().collect();
        lanes.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        for some in lanes.chunks(LANES_MAX) {
            let candidates = some.iter().flat_map(|(lane, _)| self.candidates(*lane));
            let candidates: Vec<Candidate> = candidates.collect();
            self.pack(candidates, ways, draft, steps_max);
        }
    }

    fn candidates(&self, lane: usize) -> Vec<Candidate> {
        let masks = &self.order.rows[lane].masks;
        let candidate = |shape: &usize| Candidate {
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

    /// Commits the candidate of most worth for its cost, until none is worth anything.
    fn pack(
        &self,
        mut candidates: Vec<Candidate>,
        ways: &[Way],
        draft: &mut Draft,
        steps_max: u64,
    ) {
        let mut commits = 0;
        let mut queues = self.queues(&draft.left);
        loop {
            let mut best: Option<&mut Candidate> = None;
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
                self.commit(best, draft);
                commits += 1;
                queues = self.queues(&draft.left);
            } else if draft.steps > steps_max {
                draft.cut_short = true;
                return;
            } else {
                self.weigh(best, ways, &queues, draft);
                best.seen = commits;
            }
        }
    }

    /// Works out the best that can be made of a candidate.
    fn weigh(&self, candidate: &mut Candidate, ways: &[Way], queues: &Queues, draft: &mut Draft) {
        candidate.score = 0.0;
        let shape = &self.order.shelf.shapes[candidate.shape];
        let Some(net) = &shape.net else {
            return;
        };
        if draft.ledger.copies(&shape.limited) == 0 {
            return;
        }
        let mask = self.order.rows[candidate.lane].masks[candidate.shape];
        for way in ways {
            let bin = Bin {
                free: net.clone(),
                mask,
                good: shape.cheapest(mask),
                picky: Vec::new(),
            };
            let waiting = (queues, &draft.left[..], &self.worth[..]);
            let parts = self
                .order
                .fill(bin, candidate.shape, *way, waiting, &mut draft.steps);
            #[expect(clippy::cast_precision_loss, reason = "only for an order")]
            let worth = |(class, count): &Part| self.worth[*class] * *count as f64;
            let score =
                parts.iter().map(worth).sum::<f64>() / (candidate.price + self.order.node_cost);
            if score > candidate.score {
                (candidate.score, candidate.parts) = (score, parts);
            }
        }
    }

    /// Plans as many nodes like the candidate as there are pods for.
    fn commit(&self, candidate: &Candidate, draft: &mut Draft) {
        let limited = &self.order.shelf.shapes[candidate.shape].limited;
        let whole = |(class, count): &Part| draft.left[*class] / count;
        let copies = candidate.parts.iter().map(whole).min().unwrap_or(0);
        let copies = copies.min(draft.ledger.copies(limited));
        assert!(copies > 0, "what was weighed can be had");
        let part = |(class, count): &Part| Some((self.order.lane(*class)?, (*class, *count)));
        let claim = Claim {
            shape: candidate.shape,
            price: candidate.price,
            parts: candidate.parts.iter().filter_map(part).collect(),
        };
        for (class, count) in &candidate.parts {
            draft.left[*class] -= count * copies;
        }
        draft.ledger.reserve(limited, copies);
        draft.claims.extend((0..copies).map(|_| claim.clone()));
    }

    /// What still waits, in queues.
    fn queues(&self, left: &[u64]) -> Queues {
        let waiting = self.waiting.iter().copied();
        let order: Vec<usize> = waiting.filter(|class| left[*class] > 0).collect();
        if order.len() <= QUEUES_MAX {
            let queues = order.iter().map(|class| vec![*class]).collect();
            return Queues { order, queues };
        }
        let mut alike: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for class in &order {
            let demand = &self.order.problem.classes[*class].demand;
            let others: Vec<bool> = demand[2..].iter().map(|amount| *amount > 0).collect();
            let ratio = demand[1].saturating_div(demand[0].max(1)).max(1).ilog2();
            let key = (self.order.lane(*class), others, ratio);
            alike.entry(key).or_default().push(*class);
        }
        let queues = alike.into_values().collect();
        Queues { order, queues }
    }
}

/// The shapes to weigh for a row: each is cheaper than all that have more, or takes less of the
/// limits.
fn front(order: &Order<'_>, lane: usize, ledger: &Ledger) -> Vec<usize> {
    let shapes = &order.shelf.shapes;
    let mut priced: Vec<(f64, usize)> = Vec::new();
    for (at, mask) in order.rows[lane].masks.iter().enumerate() {
        if let Some(price) = shapes[at].price(*mask)
            && shapes[at].net.is_some()
            && ledger.copies(&shapes[at].limited) > 0
        {
            priced.push((price, at));
        }
    }
    priced.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut kept: Vec<usize> = Vec::new();
    for (_, at) in priced {
        let covers = |least: &[i64], most: &[i64]| least.iter().zip(most).all(|(a, b)| a <= b);
        let beats = |other: &usize| {
            let (own, other) = (&shapes[at], &shapes[*other]);
            let (Some(net), Some(more)) = (&own.net, &other.net) else {
                return false;
            };
            covers(net, more) && covers(&other.limited, &own.limited)
        };
        if !kept.iter().any(beats) {
            kept.push(at);
        }
    }
    kept
}

/// The least that one pod of a class can cost as one of many. Zero where it fits nowhere.
fn worth_of(order: &Order<'_>, fronts: &BTreeMap<usize, Vec<usize>>, class: usize) -> f64 {
    /// Even a pod that asks for nothing has to be placed.
    const LEAST: f64 = 1e-12;
    let demand = &order.problem.classes[class].demand;
    let share = |lane: usize, shape: usize| {
        let own = &order.shelf.shapes[shape];
        let count = times(own.net.as_deref()?, demand);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let share = (own.price(order.rows[lane].masks[shape])? + order.node_cost) / count as f64;
        (count > 0).then_some(share.max(LEAST))
    };
    let lane = order.lane(class);
    let shapes = lane
        .into_iter()
        .flat_map(|lane| fronts[&lane].iter().map(move |at| (lane, *at)));
    let least = shapes
        .filter_map(|(lane, at)| share(lane, at))
        .min_by(f64::total_cmp);
    least.unwrap_or(0.0)
}
