//! Which waiting pods go to hosts that are there or on their way, since those cost nothing more.
//! It must not know pools or prices.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::requirement::{Requirement, Requirements};
use crate::model::taint::{Taint, repelling};
use crate::scheduling::packing::fill_bin::{Bin, BinRules, FillQueues, FillStrategy, ItemGroup};
use crate::scheduling::problem::daemon_constraints::HostPort;
use crate::scheduling::problem::resource_vector::{fits, most, take, times};
use crate::scheduling::problem::{Problem, clash};
use crate::scheduling::topology::node_counters::NodeConstraints;
use crate::scheduling::topology::topology_state::TopologyState;
use crate::state::snapshot::ExistingNode;

/// Steps that rooms may take, each a class looked at for one room. 10,000 classes and 10,000 rooms
/// fit in.
const STEPS_MAX: u64 = 200_000_000;

/// Up to so many classes times rooms, other orders are tried where the first leaves pods waiting.
const TRIES_MAX: u64 = 10_000_000;

/// Pods of one class that are bound to one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacementStep {
    /// The class.
    pub(crate) class: usize,
    /// Rooms in their order, then claims in theirs.
    pub(crate) site: usize,
    /// How many.
    pub(crate) pods: u64,
}

/// Pods on rooms, and those without.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExistingPlacement {
    /// What is placed, in the order in which it may be bound.
    pub(crate) turns: Vec<PlacementStep>,
    /// Pods that wait on, by class.
    pub(crate) left: Vec<u64>,
    /// Whether steps were used up before every room was looked at.
    pub(crate) cut_short: bool,
}

/// What tells rooms apart to pods, resources aside: labels that are asked for, taints, host ports.
type Profile<'r> = (
    Vec<Option<&'r Requirement>>,
    &'r [Taint],
    &'r BTreeSet<HostPort>,
);

/// What is free in each room; none where nothing fits or nothing is taken.
pub(crate) type FreeResources = Vec<Option<Vec<i64>>>;

/// Rooms in ordinals.
#[derive(Clone)]
pub(crate) struct ExistingNodes<'r> {
    problem: &'r Problem<'r>,
    rooms: &'r [&'r ExistingNode],
    /// What is free before any pod is placed.
    free: FreeResources,
    /// The most that is free of each resource in any room.
    most: Vec<i64>,
    /// The profile of each room.
    profile: Vec<usize>,
    profiles: usize,
    /// Whether what is wanted is had by rooms of a profile, once it is known.
    may: Vec<Option<bool>>,
    /// The kind of each class: with every wish given up, since the scheduler would bind a pod to a
    /// host that has room rather than leave it waiting.
    kinds: Vec<usize>,
}

impl<'r> ExistingNodes<'r> {
    /// Fills the rooms there are, in their order. Where that leaves pods waiting, other ways to
    /// fill the same rooms may leave less. What is placed is counted on the board.
    pub(crate) fn place(&mut self, board: &mut TopologyState<'_>) -> ExistingPlacement {
        let mut best = self.by_pod(board);
        let plain = |kind: &usize| {
            let ports = self.problem.wants_of(*kind).ports;
            board.topology.is_free(*kind) && ports.is_empty()
        };
        if self.kinds.iter().all(plain) {
            best = self.improved(best);
        }
        self.check(&best.turns);
        best
    }

    /// What is free after these turns.
    pub(crate) fn rest(&self, turns: &[PlacementStep]) -> FreeResources {
        let mut free = self.free.clone();
        for turn in turns.iter().filter(|turn| turn.site < self.rooms.len()) {
            if let Some(free) = &mut free[turn.site] {
                take(free, &self.problem.classes[turn.class].demand, turn.pods);
            }
        }
        free
    }

    /// Fills rooms further, one pod at a time, after these turns. Whoever is left was kept away by
    /// others, who may have come to be elsewhere.
    pub(crate) fn place_rest(
        &mut self,
        class: usize,
        (left, turns): (&mut u64, &mut Vec<PlacementStep>),
        (board, free): (&mut TopologyState<'_>, &mut FreeResources),
        steps: &mut u64,
    ) -> bool {
        let mut placed = ExistingPlacement {
            turns: std::mem::take(turns),
            left: vec![0; self.problem.classes.len()],
            cut_short: false,
        };
        placed.left[class] = *left;
        let moved = self.one_turn(class, 1, (free, &mut placed), board, steps);
        (*left, *turns) = (placed.left[class], placed.turns);
        moved
    }

    /// The rooms for a problem.
    pub(crate) fn new(problem: &'r Problem<'r>, rooms: &'r [&'r ExistingNode]) -> Self {
        let alternatives = problem.wants.iter().flat_map(|wants| &wants.alternatives);
        let asked: BTreeSet<&str> = alternatives
            .flat_map(|own| own.iter().map(|(key, _)| key))
            .collect();
        let mut known: BTreeMap<Profile<'r>, usize> = BTreeMap::new();
        let profile = |room: &&'r ExistingNode| {
            let labels = asked.iter().map(|key| room.labels.get(key)).collect();
            let next = known.len();
            *known
                .entry((labels, &room.taints, &room.host_ports))
                .or_insert(next)
        };
        let profile: Vec<usize> = rooms.iter().map(profile).collect();
        let supply = |room: &&ExistingNode| room.open.then(|| problem.axes.rest(&room.free));
        let kinds = problem
            .classes
            .iter()
            .map(|class| problem.without_wishes(class.kind));
        let free: FreeResources = rooms.iter().map(supply).collect();
        Self {
            problem,
            rooms,
            most: most(free.iter().flatten()),
            free,
            profile,
            profiles: known.len(),
            may: vec![None; known.len() * problem.wants.len()],
            kinds: kinds.collect(),
        }
    }

    /// Whether pods may go to a room, resources and others apart. `PreferNoSchedule` does not keep
    /// them away: the scheduler would bind them there rather than leave them waiting.
    fn may(&mut self, wants: usize, room: usize) -> bool {
        let at = wants * self.profiles + self.profile[room];
        if let Some(known) = self.may[at] {
            return known;
        }
        let (own, host) = (&self.problem.wants[wants], &self.rooms[room]);
        let may = repelling(&host.taints, own.tolerations).is_none()
            && !clash(own.ports, &host.host_ports)
            && is_surely(&host.labels, &own.alternatives);
        self.may[at] = Some(may);
        may
    }

    /// Each class in turn to the first rooms that have room for it, those first that have to be
    /// spread. Whoever waits for another comes again.
    fn by_pod(&mut self, board: &mut TopologyState<'_>) -> ExistingPlacement {
        let mut free = self.free.clone();
        let mut placed = ExistingPlacement {
            turns: Vec::new(),
            left: self.problem.counts(),
            cut_short: false,
        };
        let mut order: Vec<usize> = (0..self.problem.classes.len()).collect();
        order.sort_by_key(|class| !board.topology.is_early(self.kinds[*class]));
        let mut steps = 0;
        let mut again = true;
        while again && steps <= STEPS_MAX {
            again = false;
            for class in &order {
                let bound = board.topology.checks[self.kinds[*class]].is_empty();
                // One pod a room and turn, so that those who are spread fill rooms evenly.
                let most = if bound { u64::MAX } else { 1 };
                while placed.left[*class] > 0 {
                    let all = (&mut free, &mut placed);
                    let moved = self.one_turn(*class, most, all, board, &mut steps);
                    again |= moved && !bound;
                    if !moved || bound || steps > STEPS_MAX {
                        break;
                    }
                }
            }
        }
        placed.cut_short = steps > STEPS_MAX;
        placed
    }

    /// Gives every room in turn at most so many pods of a class. Says whether any took one.
    fn one_turn(
        &mut self,
        class: usize,
        most: u64,
        (free, placed): (&mut FreeResources, &mut ExistingPlacement),
        board: &mut TopologyState<'_>,
        steps: &mut u64,
    ) -> bool {
        let own = &self.problem.classes[class];
        let kind = self.kinds[class];
        let wants = self.problem.kinds[kind].wants;
        let ports = !self.problem.wants[wants].ports.is_empty();
        let free_kind = board.topology.is_free(kind);
        let mut moved = false;
        if !fits(&self.most, &own.demand) {
            *steps += free.len() as u64;
            return false;
        }
        for (room, free) in free.iter_mut().enumerate() {
            *steps += 1;
            if placed.left[class] == 0 || *steps > STEPS_MAX {
                break;
            }
            let Some(free) = free else {
                continue;
            };
            let known = self.may[wants * self.profiles + self.profile[room]];
            if known == Some(false) || !fits(free, &own.demand) || !self.may(wants, room) {
                continue;
            }
            if ports {
                let here = placed.turns.iter().filter(|turn| turn.site == room);
                let mut others = here.map(|turn| self.kinds[turn.class]);
                if others.any(|other| self.problem.ports_clash(kind, other)) {
                    continue;
                }
            }
            if !free_kind && !board.allows(kind, room) {
                continue;
            }
            let most = if ports { 1 } else { most };
            let count = times(free, &own.demand).min(placed.left[class]).min(most);
            if !free_kind {
                board.bind(kind, room, u32::try_from(count).unwrap_or(u32::MAX));
            }
            take(free, &own.demand, count);
            placed.left[class] -= count;
            moved = true;
            placed.turns.push(PlacementStep {
                class,
                site: room,
                pods: count,
            });
        }
        moved
    }

    /// The best of a few other ways, where pods do not care about each other.
    fn improved(&mut self, mut best: ExistingPlacement) -> ExistingPlacement {
        let worth = self.worth();
        let waiting = |placed: &ExistingPlacement| {
            #[expect(clippy::cast_precision_loss, reason = "only for an order")]
            let cost = |(count, worth): (&u64, &f64)| *count as f64 * worth;
            placed.left.iter().zip(&worth).map(cost).sum::<f64>()
        };
        let effort = (self.rooms.len() * self.problem.classes.len()) as u64;
        let tries = [
            (FillStrategy::Worth, true),
            (FillStrategy::Largest, true),
            (FillStrategy::Worth, false),
            (FillStrategy::Largest, false),
        ];
        for (way, largest_first) in tries {
            if waiting(&best) <= 0.0 || effort > TRIES_MAX {
                break;
            }
            let other = self.by_room(way, largest_first, &worth);
            if waiting(&other) < waiting(&best) {
                best = other;
            }
        }
        best
    }

    /// Each room in turn with the pods that go together best.
    fn by_room(
        &mut self,
        way: FillStrategy,
        largest_first: bool,
        worth: &[f64],
    ) -> ExistingPlacement {
        let problem = self.problem;
        let shares = NodeConstraints::default();
        let lot = |(class, own): (usize, &'r crate::scheduling::problem::PodClass<'r>)| ItemGroup {
            class,
            kind: self.kinds[class],
            demand: &own.demand,
            per_unit: &own.per_unit,
            shares: &shares,
            row: self.kinds[class],
            cell: None,
            together: 1,
        };
        let lots: Vec<ItemGroup<'_>> = problem.classes.iter().enumerate().map(lot).collect();
        let mut left = problem.counts();
        let mut turns = Vec::new();
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
            let wants = 0..problem.wants.len();
            let may: Vec<bool> = wants.map(|wants| self.may(wants, room)).collect();
            let terms = BinRules {
                mask: &|kind| u64::from(may[problem.kinds[kind].wants]),
                is_picky: &|_| false,
                apart: &|_, _| false,
            };
            let waits = (0..left.len()).filter(|class| left[*class] > 0);
            let order: Vec<Vec<usize>> = waits.map(|class| vec![class]).collect();
            let queues = (0..order.len()).map(|at| vec![at]).collect();
            let mut bin = Bin {
                free,
                mask: 1,
                good: 1,
                ..Bin::default()
            };
            let waiting = (&FillQueues { order, queues }, &left[..], worth);
            for (class, pods) in bin.fill(way, (&lots, &terms), waiting, &mut steps) {
                left[class] -= pods;
                turns.push(PlacementStep {
                    class,
                    site: room,
                    pods,
                });
            }
        }
        ExistingPlacement {
            turns,
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
    fn check(&self, turns: &[PlacementStep]) {
        let mut free = self.free.clone();
        for turn in turns {
            let demand = &self.problem.classes[turn.class].demand;
            let host = &self.rooms[turn.site].host;
            let free = free[turn.site].as_mut();
            let fits = free
                .as_ref()
                .is_some_and(|free| times(free, demand) >= turn.pods);
            assert!(fits, "{host} takes no more than it has");
            if let Some(free) = free {
                take(free, demand, turn.pods);
            }
        }
    }
}

/// Ways in which a host may turn out that are looked at one by one.
const TURNS_OUT_MAX: usize = 64;

/// Whether a host is as one of these alternatives wants it, whichever it will be of the values that
/// its labels may have.
fn is_surely(labels: &Requirements, alternatives: &[Requirements]) -> bool {
    let asked: BTreeSet<&str> = alternatives
        .iter()
        .flat_map(|own| own.iter().map(|(key, _)| key))
        .collect();
    let mut all = vec![labels.clone()];
    for key in asked {
        let values = labels.get(key).and_then(Requirement::values);
        let Some(values) = values.filter(|values| values.len() > 1) else {
            continue;
        };
        if all.len() * values.len() > TURNS_OUT_MAX {
            return false;
        }
        let settled = |own: &Requirements| -> Vec<Requirements> {
            let with = |value: &String| {
                let mut own = own.clone();
                own.add(key, Requirement::is_in([value.as_str()]));
                own
            };
            values.iter().map(with).collect()
        };
        all = all.iter().flat_map(settled).collect();
    }
    all.iter().all(|own| {
        let mut alternatives = alternatives.iter();
        alternatives.any(|wanted| own.compatible(wanted, false).is_ok())
    })
}
