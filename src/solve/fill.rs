//! Which pods go onto one host: a few ways to fill it from what waits.
//! It must not know what the host is, what it costs, or whether it exists.

use crate::solve::axes::{take, times};
use crate::solve::host::Shares;

/// Pods that wait and are alike to every host in question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lot<'l> {
    /// Their class.
    pub(super) class: usize,
    /// Their kind: the wishes that are still kept.
    pub(super) kind: usize,
    /// What one of them asks for.
    pub(super) demand: &'l [i64],
    /// One divided by the demand.
    pub(super) per_unit: &'l [f64],
    /// What they ask of the others on the host.
    pub(super) shares: &'l Shares,
    /// Where they may go: an ordinal for whoever fills.
    pub(super) row: usize,
    /// The cell they have to be in; none where that does not matter.
    pub(super) cell: Option<usize>,
    /// So many go at once to a host without any of those they must share it with: the others could
    /// go nowhere else.
    pub(super) together: u64,
}

/// So many pods of a lot.
pub(super) type Part = (usize, u64);

/// A way to fill a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The largest pods first.
    Largest,
    /// Time and again the pods that, alone, would make most of what is still free.
    Worth,
}

/// Lots of one row and one demand: where one does not fit, none does.
pub(super) type Twins = Vec<usize>;

/// Lots that wait, in queues: all are tried in order, or the heads of all queues compared.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    /// All, the largest first.
    pub(super) order: Vec<Twins>,
    /// The same, in queues of lots that are much alike; places in `order`.
    pub(super) queues: Vec<Vec<usize>>,
}

/// How far a queue is gone through.
#[derive(Clone, Copy)]
struct Head {
    /// The place among the queue's twins, and the lot among those.
    twins: usize,
    lot: usize,
    /// How many of that lot are taken.
    taken: u64,
}

/// What a host lets in.
pub(super) struct Terms<'t> {
    /// The offers that lots of a row may have of this host, one bit each; none where they cannot
    /// go there.
    pub(super) mask: &'t dyn Fn(usize) -> u64,
    /// Whether lots of a row have to be compared with all others on the host.
    pub(super) is_picky: &'t dyn Fn(usize) -> bool,
    /// Whether lots of two picky rows cannot share a host.
    pub(super) apart: &'t dyn Fn(usize, usize) -> bool,
}

/// A host that is being filled.
#[derive(Clone, Debug, Default)]
pub(super) struct Bin {
    /// What is free.
    pub(super) free: Vec<i64>,
    /// Offers that all its pods may have.
    pub(super) mask: u64,
    /// Offers of which one has to remain.
    pub(super) good: u64,
    /// Picky rows that are in it.
    pub(super) picky: Vec<usize>,
    /// What its pods count, for those who ask of whom they share it with.
    pub(super) counts: Vec<u32>,
}

/// A part of the free room is given away at once, so that a host of thousands takes few steps.
const SHARE: u64 = 8;

impl Bin {
    /// How many pods of a lot could be added.
    pub(super) fn room(&self, lots: &[Lot<'_>], terms: &Terms<'_>, lot: usize) -> u64 {
        let own = &lots[lot];
        let count = times(&self.free, own.demand);
        if count == 0 || self.mask & (terms.mask)(own.row) & self.good == 0 {
            return 0;
        }
        let count = own.shares.room(&self.counts, count);
        if count < own.together && !own.shares.is_met(&self.counts) {
            return 0;
        }
        if count == 0 || !(terms.is_picky)(own.row) {
            return count;
        }
        let mut others = self.picky.iter();
        if others.any(|other| (terms.apart)(own.row, *other)) {
            return 0;
        }
        count
    }

    /// Adds pods. They must have room.
    pub(super) fn add(&mut self, lots: &[Lot<'_>], terms: &Terms<'_>, (lot, count): Part) {
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
    pub(super) fn fill(
        &mut self,
        way: Way,
        (lots, terms): (&[Lot<'_>], &Terms<'_>),
        (waiting, stock, worth): (&Queues, &[u64], &[f64]),
        steps: &mut u64,
    ) -> Vec<Part> {
        united(match way {
            Way::Largest => self.fill_largest((lots, terms), (&waiting.order, stock), steps),
            Way::Worth => self.fill_worth((lots, terms), (waiting, stock, worth), steps),
        })
    }

    fn fill_largest(
        &mut self,
        (lots, terms): (&[Lot<'_>], &Terms<'_>),
        (order, stock): (&[Twins], &[u64]),
        steps: &mut u64,
    ) -> Vec<Part> {
        let mut parts = Vec::new();
        // Those who need others on the host come when the others are there.
        for needy in [false, true] {
            *steps += order.len() as u64;
            for twins in order {
                for &lot in twins {
                    let own = &lots[lot];
                    if times(&self.free, own.demand) == 0 {
                        break;
                    }
                    if own.shares.needs.is_empty() == needy {
                        continue;
                    }
                    let count = self.room(lots, terms, lot).min(stock[lot]);
                    if count > 0 {
                        self.add(lots, terms, (lot, count));
                        parts.push((lot, count));
                    }
                }
            }
        }
        parts
    }

    fn fill_worth(
        &mut self,
        (lots, terms): (&[Lot<'_>], &Terms<'_>),
        (waiting, stock, worth): (&Queues, &[u64], &[f64]),
        steps: &mut u64,
    ) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let start = Head {
            twins: 0,
            lot: 0,
            taken: 0,
        };
        let mut heads: Vec<Head> = vec![start; waiting.queues.len()];
        loop {
            let mut best: Option<(f64, usize, usize, u64)> = None;
            *steps += 1 + heads.len() as u64;
            for (at, head) in heads.iter_mut().enumerate() {
                let queue = (&waiting.queues[at][..], &waiting.order[..]);
                let Some((lot, room)) = self.next_of((lots, terms), queue, head, stock) else {
                    continue;
                };
                let worth = worth[lot] * self.share(&lots[lot]);
                if best.is_none_or(|(most, ..)| worth > most) {
                    best = Some((worth, at, lot, room));
                }
            }
            let Some((_, at, lot, room)) = best else {
                return parts;
            };
            let all = times(&self.free, lots[lot].demand);
            let count = room.min((all / SHARE).max(1));
            self.add(lots, terms, (lot, count));
            parts.push((lot, count));
            heads[at].taken += count;
        }
    }

    /// The next lot of a queue of which pods may be added, and how many. Lots that may not are
    /// passed over for good, since what is free only shrinks; but whoever needs others waits.
    fn next_of(
        &self,
        (lots, terms): (&[Lot<'_>], &Terms<'_>),
        (queue, order): (&[usize], &[Twins]),
        head: &mut Head,
        stock: &[u64],
    ) -> Option<(usize, u64)> {
        while let Some(twins) = queue.get(head.twins) {
            let twins = &order[*twins];
            let fits = twins
                .first()
                .is_some_and(|lot| times(&self.free, lots[*lot].demand) > 0);
            if let Some(&lot) = twins.get(head.lot).filter(|_| fits) {
                let left = stock[lot] - head.taken;
                let room = self.room(lots, terms, lot).min(left);
                if room > 0 {
                    return Some((lot, room));
                }
                if !lots[lot].shares.needs.is_empty() && left > 0 {
                    return None;
                }
                (head.lot, head.taken) = (head.lot + 1, 0);
            } else {
                *head = Head {
                    twins: head.twins + 1,
                    lot: 0,
                    taken: 0,
                };
            }
        }
        None
    }

    /// About how many pods of a lot would fill what is free.
    fn share(&self, lot: &Lot<'_>) -> f64 {
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
pub(super) fn united(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_unstable();
    parts.dedup_by(|later, first| {
        let same = later.0 == first.0;
        first.1 += if same { later.1 } else { 0 };
        same
    });
    parts
}

/// The rows of these pods, each once.
pub(super) fn rows_in(lots: &[Lot<'_>], parts: &[Part]) -> Vec<usize> {
    let mut rows: Vec<usize> = parts.iter().map(|(lot, _)| lots[*lot].row).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}
