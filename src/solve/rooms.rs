//! Which waiting pods go to hosts that are there or on their way, since those cost nothing more.
//! It must not know pools or prices.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::requirement::Requirement;
use crate::model::taint::{Effect, Taint, untolerated};
use crate::solve::choose::sum;
use crate::solve::fill::{Bin, Part, Queues, Terms, Way};
use crate::solve::problem::{Port, Problem, clash, take, times};
use crate::state::snapshot::Room;

/// Steps that rooms may take, each a class looked at for one room. 10,000 classes and 10,000 rooms
/// fit in.
const STEPS_MAX: u64 = 200_000_000;

/// Up to so many classes times rooms, other orders are tried where the first leaves pods waiting.
const TRIES_MAX: u64 = 10_000_000;

/// Pods on rooms, and those without.
#[derive(Debug)]
pub(super) struct Placed {
    /// What is placed on each room.
    pub(super) parts: Vec<Vec<Part>>,
    /// Pods that wait on, by class.
    pub(super) left: Vec<u64>,
    /// Whether steps were used up before every room was looked at.
    pub(super) cut_short: bool,
}

/// What tells rooms apart to pods, resources aside: labels that are asked for, taints, host ports.
type Profile<'r> = (
    Vec<Option<&'r Requirement>>,
    &'r [Taint],
    &'r BTreeSet<Port>,
);

/// Rooms in ordinals.
struct Rooms<'r> {
    problem: &'r Problem<'r>,
    rooms: &'r [&'r Room],
    /// What is free; none where nothing fits.
    free: Vec<Option<Vec<i64>>>,
    /// The profile of each room.
    profile: Vec<usize>,
    profiles: usize,
    /// Whether a kind may go to rooms of a profile, kind by kind, once it is known.
    may: Vec<Option<bool>>,
}

/// Fills the rooms there are, in their order. Where that leaves pods waiting, other ways to fill
/// the same rooms may leave less.
pub(super) fn place(problem: &Problem<'_>, rooms: &[&Room]) -> Placed {
    let mut own = Rooms::new(problem, rooms);
    let worth = own.worth();
    let waiting = |placed: &Placed| {
        #[expect(clippy::cast_precision_loss, reason = "only for an order")]
        let cost = |(count, worth): (&u64, &f64)| *count as f64 * worth;
        placed.left.iter().zip(&worth).map(cost).sum::<f64>()
    };
    let effort = (rooms.len() * problem.classes.len()) as u64;
    let mut best = own.by_pod();
    let tries = [
        (Way::Worth, true),
        (Way::Largest, true),
        (Way::Worth, false),
        (Way::Largest, false),
    ];
    for (way, largest_first) in tries {
        if waiting(&best) <= 0.0 || effort > TRIES_MAX {
            break;
        }
        let other = own.by_room(way, largest_first, &worth);
        if waiting(&other) < waiting(&best) {
            best = other;
        }
    }
    own.check(&best.parts);
    best
}

impl<'r> Rooms<'r> {
    fn new(problem: &'r Problem<'r>, rooms: &'r [&'r Room]) -> Self {
        let alternatives = problem.kinds.iter().flat_map(|kind| &kind.alternatives);
        let asked: BTreeSet<&str> = alternatives
            .flat_map(|own| own.iter().map(|(key, _)| key))
            .collect();
        let mut known: BTreeMap<Profile<'r>, usize> = BTreeMap::new();
        let profile = |room: &&'r Room| {
            let labels = asked.iter().map(|key| room.labels.get(key)).collect();
            let next = known.len();
            *known
                .entry((labels, &room.taints, &room.host_ports))
                .or_insert(next)
        };
        let profile: Vec<usize> = rooms.iter().map(profile).collect();
        let supply = |room: &&Room| problem.axes.supply(&room.free);
        Self {
            problem,
            rooms,
            free: rooms.iter().map(supply).collect(),
            profile,
            profiles: known.len(),
            may: vec![None; known.len() * problem.kinds.len()],
        }
    }

    /// Whether pods of a kind may go to a room, resources apart. `PreferNoSchedule` does not keep
    /// them away: the scheduler would bind them there rather than leave them waiting.
    fn may(&mut self, kind: usize, room: usize) -> bool {
        let at = kind * self.profiles + self.profile[room];
        if let Some(known) = self.may[at] {
            return known;
        }
        let (own, host) = (&self.problem.kinds[kind], &self.rooms[room]);
        let mut taints = host
            .taints
            .iter()
            .filter(|taint| taint.effect != Effect::PreferNoSchedule);
        let may = untolerated(&mut taints, own.tolerations).is_none()
            && !clash(own.ports, &host.host_ports)
            && own
                .alternatives
                .iter()
                .any(|alternative| host.labels.compatible(alternative, false).is_ok());
        self.may[at] = Some(may);
        may
    }

    /// Each class in turn to the first rooms that have room for it.
    fn by_pod(&mut self) -> Placed {
        let mut free = self.free.clone();
        let mut left = self.problem.counts();
        let mut placed: Vec<Vec<Part>> = vec![Vec::new(); self.rooms.len()];
        let mut steps = 0;
        for (class, own) in self.problem.classes.iter().enumerate() {
            for room in 0..self.rooms.len() {
                steps += 1;
                if left[class] == 0 || steps > STEPS_MAX {
                    break;
                }
                let Some(free) = &mut free[room] else {
                    continue;
                };
                let mut count = times(free, &own.demand).min(left[class]);
                if count == 0 || !self.may(own.kind, room) {
                    continue;
                }
                if !self.problem.kinds[own.kind].ports.is_empty() {
                    let there = |(other, _): &Part| self.problem.classes[*other].kind;
                    let mut others = placed[room].iter().map(there);
                    if others.any(|other| self.problem.ports_clash(own.kind, other)) {
                        continue;
                    }
                    count = 1;
                }
                take(free, &own.demand, count);
                left[class] -= count;
                placed[room].push((class, count));
            }
        }
        Placed {
            parts: placed,
            left,
            cut_short: steps > STEPS_MAX,
        }
    }

    /// Each room in turn with the pods that go together best.
    fn by_room(&mut self, way: Way, largest_first: bool, worth: &[f64]) -> Placed {
        let mut left = self.problem.counts();
        let mut placed: Vec<Vec<Part>> = vec![Vec::new(); self.rooms.len()];
        let mut order: Vec<usize> = (0..self.rooms.len()).collect();
        if largest_first {
            let size = |room: &usize| self.free[*room].as_ref().map(|free| (free[0], free[1]));
            order.sort_by(|one, other| size(other).cmp(&size(one)).then(one.cmp(other)));
        }
        let mut steps = 0;
        for room in order {
            if steps > STEPS_MAX {
                break;
            }
            let Some(free) = self.free[room].clone() else {
                continue;
            };
            let kinds = self.problem.kinds.len();
            let may: Vec<bool> = (0..kinds).map(|kind| self.may(kind, room)).collect();
            let ports = |kind: usize| !self.problem.kinds[kind].ports.is_empty();
            let terms = Terms {
                mask: &|kind| u64::from(may[kind]),
                is_picky: &ports,
                apart: &|one, other| self.problem.ports_clash(one, other),
            };
            let order: Vec<usize> = (0..left.len()).filter(|class| left[*class] > 0).collect();
            let queues = order.iter().map(|class| vec![*class]).collect();
            let mut bin = Bin {
                free,
                mask: 1,
                good: 1,
                picky: Vec::new(),
            };
            let waiting = (&Queues { order, queues }, &left[..], worth);
            placed[room] = bin.fill(way, (self.problem, &terms), waiting, &mut steps);
            for (class, count) in &placed[room] {
                left[*class] -= count;
            }
        }
        Placed {
            parts: placed,
            left,
            cut_short: steps > STEPS_MAX,
        }
    }

    /// What a pod is worth where nothing is bought: the largest share of all free room it takes.
    fn worth(&self) -> Vec<f64> {
        let axes = self
            .problem
            .classes
            .first()
            .map_or(0, |class| class.demand.len());
        let mut whole = vec![0.0; axes];
        for free in self.free.iter().flatten() {
            for (whole, free) in whole.iter_mut().zip(free) {
                #[expect(clippy::cast_precision_loss, reason = "only for an order")]
                let free = *free as f64;
                *whole += free;
            }
        }
        let worth = |demand: &Vec<i64>| {
            #[expect(clippy::cast_precision_loss, reason = "only for an order")]
            let share = |(demand, whole): (&i64, &f64)| *demand as f64 / f64::max(*whole, 1.0);
            demand.iter().zip(&whole).map(share).fold(1e-12, f64::max)
        };
        let classes = self.problem.classes.iter();
        classes.map(|class| worth(&class.demand)).collect()
    }

    /// Post-condition: no room takes more than it has.
    fn check(&self, placed: &[Vec<Part>]) {
        for ((room, free), parts) in self.rooms.iter().zip(&self.free).zip(placed) {
            let whole = sum(self.problem, parts.iter().copied());
            let fits = free.as_ref().is_some_and(|free| times(free, &whole) > 0);
            assert!(
                parts.is_empty() || fits,
                "{} takes no more than it has",
                room.host
            );
        }
    }
}
