//! Which pods go onto one host: a few ways to fill it from what waits.
//! It must not know what the host is, what it costs, or whether it exists.

use crate::solve::problem::{Problem, take, times};

/// So many pods of a class.
pub(super) type Part = (usize, u64);

/// A way to fill a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The largest pods first.
    Largest,
    /// Time and again the pods that, alone, would make most of what is still free.
    Worth,
}

/// Classes that wait, in queues: all are tried in order, or the heads of all queues compared.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    /// Classes, the largest first.
    pub(super) order: Vec<usize>,
    /// The same, in queues of classes that are much alike.
    pub(super) queues: Vec<Vec<usize>>,
}

/// What a host lets in.
pub(super) struct Terms<'t> {
    /// The offers that pods of a kind may have of this host, one bit each; none where they cannot
    /// go there.
    pub(super) mask: &'t dyn Fn(usize) -> u64,
    /// Whether pods of a kind have to be compared with all others on the host.
    pub(super) is_picky: &'t dyn Fn(usize) -> bool,
    /// Whether pods of two picky kinds cannot share a host.
    pub(super) apart: &'t dyn Fn(usize, usize) -> bool,
}

/// A host that is being filled.
#[derive(Clone, Debug)]
pub(super) struct Bin {
    /// What is free.
    pub(super) free: Vec<i64>,
    /// Offers that all its pods may have.
    pub(super) mask: u64,
    /// Offers of which one has to remain.
    pub(super) good: u64,
    /// Picky kinds that are in it.
    pub(super) picky: Vec<usize>,
}

/// A part of the free room is given away at once, so that a host of thousands takes few steps.
const SHARE: u64 = 8;

impl Bin {
    /// How many pods of a class could be added; with host ports, one.
    fn room(&self, problem: &Problem<'_>, terms: &Terms<'_>, class: usize) -> u64 {
        let own = &problem.classes[class];
        let count = times(&self.free, &own.demand);
        let mask = self.mask & (terms.mask)(own.kind);
        if count == 0 || mask & self.good == 0 {
            return 0;
        }
        if !(terms.is_picky)(own.kind) {
            return count;
        }
        let mut others = self.picky.iter();
        if others.any(|other| (terms.apart)(own.kind, *other)) {
            return 0;
        }
        if (terms.apart)(own.kind, own.kind) {
            1
        } else {
            count
        }
    }

    fn add(&mut self, problem: &Problem<'_>, terms: &Terms<'_>, (class, count): Part) {
        let own = &problem.classes[class];
        take(&mut self.free, &own.demand, count);
        self.mask &= (terms.mask)(own.kind);
        if (terms.is_picky)(own.kind) && !self.picky.contains(&own.kind) {
            self.picky.push(own.kind);
        }
    }

    /// Fills the host from `stock`, so many pods of every class; `worth` values one pod of each.
    /// Says what went in, by class, and adds its effort to `steps`.
    pub(super) fn fill(
        &mut self,
        way: Way,
        (problem, terms): (&Problem<'_>, &Terms<'_>),
        (waiting, stock, worth): (&Queues, &[u64], &[f64]),
        steps: &mut u64,
    ) -> Vec<Part> {
        let mut parts = match way {
            Way::Largest => self.fill_largest(problem, terms, (&waiting.order, stock), steps),
            Way::Worth => self.fill_worth(problem, terms, (&waiting.queues, stock, worth), steps),
        };
        parts.sort_unstable();
        parts.dedup_by(|later, first| {
            let same = later.0 == first.0;
            first.1 += if same { later.1 } else { 0 };
            same
        });
        parts
    }

    fn fill_largest(
        &mut self,
        problem: &Problem<'_>,
        terms: &Terms<'_>,
        (order, stock): (&[usize], &[u64]),
        steps: &mut u64,
    ) -> Vec<Part> {
        *steps += order.len() as u64;
        let mut parts = Vec::new();
        for &class in order {
            let count = self.room(problem, terms, class).min(stock[class]);
            if count > 0 {
                self.add(problem, terms, (class, count));
                parts.push((class, count));
            }
        }
        parts
    }

    fn fill_worth(
        &mut self,
        problem: &Problem<'_>,
        terms: &Terms<'_>,
        (queues, stock, worth): (&[Vec<usize>], &[u64], &[f64]),
        steps: &mut u64,
    ) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        // The place in the queue, and how many of the class there are taken.
        let mut heads: Vec<(&[usize], u64)> = queues.iter().map(|queue| (&queue[..], 0)).collect();
        loop {
            let mut best: Option<(f64, usize, u64)> = None;
            *steps += 1;
            for (at, (queue, taken)) in heads.iter_mut().enumerate() {
                while let Some(&class) = queue.first() {
                    *steps += 1;
                    let room = self.room(problem, terms, class).min(stock[class] - *taken);
                    if room > 0 {
                        let worth = worth[class] * self.share(problem, class);
                        if best.is_none_or(|(most, _, _)| worth > most) {
                            best = Some((worth, at, room));
                        }
                        break;
                    }
                    (*queue, *taken) = (&queue[1..], 0);
                }
            }
            let Some((_, at, room)) = best else {
                return parts;
            };
            let (queue, taken) = &mut heads[at];
            let class = queue[0];
            let all = times(&self.free, &problem.classes[class].demand);
            let count = room.min((all / SHARE).max(1));
            self.add(problem, terms, (class, count));
            parts.push((class, count));
            *taken += count;
        }
    }

    /// About how many pods of a class would fill what is free.
    fn share(&self, problem: &Problem<'_>, class: usize) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "an estimate; what fits is decided with integers"
        )]
        let times = |(free, per_unit): (&i64, &f64)| *free as f64 * per_unit;
        // `min` passes over what is not a number: nothing free of what nothing is asked of.
        let ratios = self.free.iter().zip(&problem.classes[class].per_unit);
        ratios.map(times).fold(1e18, f64::min)
    }
}
