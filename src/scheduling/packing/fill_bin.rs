//! Which pods go onto one host: a few ways to fill it from what waits.
//! It must not know what the host is, what it costs, or whether it exists.

use crate::scheduling::problem::resource_vector::{fits, take, times};
use crate::scheduling::topology::node_counters::NodeConstraints;

/// Pods that wait and are alike to every host in question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemGroup<'l> {
    /// Their class.
    pub(crate) class: usize,
    /// Their kind: the wishes that are still kept.
    pub(crate) kind: usize,
    /// What one of them asks for.
    pub(crate) demand: &'l [i64],
    /// One divided by the demand.
    pub(crate) per_unit: &'l [f64],
    /// What they ask of the others on the host.
    pub(crate) shares: &'l NodeConstraints,
    /// Where they may go: an ordinal for whoever fills.
    pub(crate) row: usize,
    /// The cell they have to be in; none where that does not matter.
    pub(crate) cell: Option<usize>,
    /// So many go at once to a host without any of those they must share it with: the others could
    /// go nowhere else.
    pub(crate) together: u64,
}

/// So many pods of a lot.
pub(crate) type ItemCount = (usize, u64);

/// A way to fill a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillStrategy {
    /// The largest pods first.
    Largest,
    /// Time and again the pods that, alone, would make most of what is still free.
    Worth,
}

/// Lots of one row and one demand: where one does not fit, none does.
pub(crate) type IdenticalGroups = Vec<usize>;

/// Lots that wait, in queues: all are tried in order, or the heads of all queues compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct FillQueues {
    /// All, the largest first.
    pub(crate) order: Vec<IdenticalGroups>,
    /// The same, in queues of lots that are much alike; places in `order`.
    pub(crate) queues: Vec<Vec<usize>>,
}

impl FillQueues {
    /// These lots, tried in this order.
    pub(crate) fn of(lots: impl Iterator<Item = usize>) -> Self {
        Self {
            order: lots.map(|lot| vec![lot]).collect(),
            queues: Vec::new(),
        }
    }
}

/// How far a queue is gone through.
#[derive(Clone, Copy)]
struct QueueCursor {
    /// The place among the queue's twins, and the lot among those.
    twins: usize,
    lot: usize,
    /// How many of that lot are taken.
    taken: u64,
}

/// What a host lets in.
pub(crate) struct BinRules<'t> {
    /// The offers that lots of a row may have of this host, one bit each; none where they cannot
    /// go there.
    pub(crate) mask: &'t dyn Fn(usize) -> u64,
    /// Whether lots of a row have to be compared with all others on the host.
    pub(crate) is_picky: &'t dyn Fn(usize) -> bool,
    /// Whether lots of two picky rows cannot share a host.
    pub(crate) apart: &'t dyn Fn(usize, usize) -> bool,
}

/// A host that is being filled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bin {
    /// What is free.
    pub(crate) free: Vec<i64>,
    /// Offers that all its pods may have.
    pub(crate) mask: u64,
    /// Offers of which one has to remain.
    pub(crate) good: u64,
    /// Picky rows that are in it.
    pub(crate) picky: Vec<usize>,
    /// What its pods count, for those who ask of whom they share it with.
    pub(crate) counts: Vec<u32>,
}

/// A part of the free room is given away at once, so that a host of thousands takes few steps.
const SHARE: u64 = 8;

impl Bin {
    /// How many pods of a lot could be added.
    pub(crate) fn room(&self, lots: &[ItemGroup<'_>], terms: &BinRules<'_>, lot: usize) -> u64 {
        let own = &lots[lot];
        match times(&self.free, own.demand) {
            0 => 0,
            most if self.admits(terms, own.row) => self.takes(own, most),
            _ => 0,
        }
    }

    /// How many pods of a lot may be added for all that is there, if there is room for so many.
    fn takes(&self, own: &ItemGroup<'_>, most: u64) -> u64 {
        let count = own.shares.room(&self.counts, most);
        let begins = count >= own.together || own.shares.is_met(&self.counts);
        if begins { count } else { 0 }
    }

    /// Whether lots of a row may go there, whatever they ask for.
    fn admits(&self, terms: &BinRules<'_>, row: usize) -> bool {
        let apart = || self.picky.iter().any(|other| (terms.apart)(row, *other));
        self.mask & (terms.mask)(row) & self.good != 0 && !((terms.is_picky)(row) && apart())
    }

    /// Adds pods. They must have room.
    pub(crate) fn add(
        &mut self,
        lots: &[ItemGroup<'_>],
        terms: &BinRules<'_>,
        (lot, count): ItemCount,
    ) {
        let own = &lots[lot];
        take(&mut self.free, own.demand, count);
        self.mask &= (terms.mask)(own.row);
        own.shares.add(&mut self.counts, count);
        if (terms.is_picky)(own.row) && !self.picky.contains(&own.row) {
            self.picky.push(own.row);
        }
    }

    /// Fills the host from `stock`, so many pods of every lot; `worth` values one pod of each.
    /// Says what went in, by lot, and adds its effort to `steps`.
    pub(crate) fn fill(
        &mut self,
        way: FillStrategy,
        (lots, terms): (&[ItemGroup<'_>], &BinRules<'_>),
        (waiting, stock, worth): (&FillQueues, &[u64], &[f64]),
        steps: &mut u64,
    ) -> Vec<ItemCount> {
        united(match way {
            FillStrategy::Largest => {
                self.fill_largest((lots, terms), (&waiting.order, stock), steps)
            }
            FillStrategy::Worth => self.fill_worth((lots, terms), (waiting, stock, worth), steps),
        })
    }

    fn fill_largest(
        &mut self,
        (lots, terms): (&[ItemGroup<'_>], &BinRules<'_>),
        (order, stock): (&[IdenticalGroups], &[u64]),
        steps: &mut u64,
    ) -> Vec<ItemCount> {
        let mut parts = Vec::new();
        *steps += 2 * order.len() as u64;
        // Those who need others on the host come when the others are there.
        let mut needy = false;
        loop {
            let mut wait = false;
            for twins in order {
                let own = &lots[twins[0]];
                let mut all = times(&self.free, own.demand);
                if all == 0 || !self.admits(terms, own.row) {
                    continue;
                }
                for &lot in twins {
                    let shares = lots[lot].shares;
                    if shares.needs.is_empty() == needy {
                        wait |= !needy;
                        continue;
                    }
                    let count = self.takes(&lots[lot], all).min(stock[lot]);
                    if count > 0 {
                        self.add(lots, terms, (lot, count));
                        parts.push((lot, count));
                        all = times(&self.free, own.demand);
                    }
                }
            }
            if !wait {
                return parts;
            }
            needy = true;
        }
    }

    fn fill_worth(
        &mut self,
        (lots, terms): (&[ItemGroup<'_>], &BinRules<'_>),
        (waiting, stock, worth): (&FillQueues, &[u64], &[f64]),
        steps: &mut u64,
    ) -> Vec<ItemCount> {
        let mut parts: Vec<ItemCount> = Vec::new();
        let start = QueueCursor {
            twins: 0,
            lot: 0,
            taken: 0,
        };
        let mut heads: Vec<QueueCursor> = vec![start; waiting.queues.len()];
        loop {
            let mut best: Option<(f64, usize, usize)> = None;
            *steps += 1 + heads.len() as u64;
            for (at, head) in heads.iter_mut().enumerate() {
                let queue = (&waiting.queues[at][..], &waiting.order[..]);
                let Some(lot) = self.next_of((lots, terms), queue, head, stock) else {
                    continue;
                };
                let worth = worth[lot] * self.share(&lots[lot]);
                if best.is_none_or(|(most, ..)| worth > most) {
                    best = Some((worth, at, lot));
                }
            }
            let Some((_, at, lot)) = best else {
                return parts;
            };
            let all = times(&self.free, lots[lot].demand);
            let room = self.takes(&lots[lot], all);
            let left = stock[lot] - heads[at].taken;
            let chunk = (all / SHARE).max(lots[lot].together);
            let count = room.min(left).min(chunk);
            self.add(lots, terms, (lot, count));
            parts.push((lot, count));
            heads[at].taken += count;
        }
    }

    /// The next lot of a queue of which pods may be added. Lots that may not are passed over for
    /// good, since what is free only shrinks; but whoever needs others waits.
    fn next_of(
        &self,
        (lots, terms): (&[ItemGroup<'_>], &BinRules<'_>),
        (queue, order): (&[usize], &[IdenticalGroups]),
        head: &mut QueueCursor,
        stock: &[u64],
    ) -> Option<usize> {
        while let Some(twins) = queue.get(head.twins) {
            let twins = &order[*twins];
            let own = &lots[twins[0]];
            if fits(&self.free, own.demand) && self.admits(terms, own.row) {
                while let Some(&lot) = twins.get(head.lot) {
                    let shares = lots[lot].shares;
                    let left = stock[lot] > head.taken;
                    let most = match lots[lot].together {
                        0 | 1 => 1,
                        _ => times(&self.free, own.demand),
                    };
                    if left && self.takes(&lots[lot], most) > 0 {
                        return Some(lot);
                    }
                    // Too many to begin here are passed over, too.
                    if left && !shares.needs.is_empty() && most >= lots[lot].together {
                        return None;
                    }
                    (head.lot, head.taken) = (head.lot + 1, 0);
                }
            }
            *head = QueueCursor {
                twins: head.twins + 1,
                lot: 0,
                taken: 0,
            };
        }
        None
    }

    /// About how many pods of a lot would fill what is free.
    fn share(&self, lot: &ItemGroup<'_>) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "an estimate; what fits is decided with integers"
        )]
        let times = |(free, per_unit): (&i64, &f64)| *free as f64 * per_unit;
        // `min` passes over what is not a number: nothing free of what nothing is asked of.
        let ratios = self.free.iter().zip(lot.per_unit);
        ratios.map(times).fold(1e18, f64::min)
    }
}

/// The same parts, those of one lot in one.
pub(crate) fn united(mut parts: Vec<ItemCount>) -> Vec<ItemCount> {
    parts.sort_unstable();
    parts.dedup_by(|later, first| {
        let same = later.0 == first.0;
        first.1 += if same { later.1 } else { 0 };
        same
    });
    parts
}

/// The rows of these pods, each once.
pub(crate) fn rows_in(lots: &[ItemGroup<'_>], parts: &[ItemCount]) -> Vec<usize> {
    let mut rows: Vec<usize> = parts.iter().map(|(lot, _)| lots[*lot].row).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}
