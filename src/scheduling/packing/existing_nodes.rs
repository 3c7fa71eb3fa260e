//! Places pending pods on existing and in-flight nodes, which cost nothing more.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::requirement::{Requirement, Requirements};
use crate::model::taint::{Taint, first_repelling};
use crate::scheduling::index::{
    IndexVec, ItemGroupIndex, KindIndex, LocationIndex, PodClassIndex, RequirementsIndex, RowIndex,
};
use crate::scheduling::packing::fill_bin::{
    Bin, BinRules, FillQueues, FillStrategy, ItemGroup, ItemGroups, PendingItems,
};
use crate::scheduling::problem::daemon_constraints::HostPort;
use crate::scheduling::problem::resource_vector::{
    copies_that_fit, fits, max_per_resource, subtract_demand,
};
use crate::scheduling::problem::{Problem, have_port_conflict};
use crate::scheduling::topology::node_counters::NodeConstraints;
use crate::scheduling::topology::topology_state::TopologyState;
use crate::state::snapshot::ExistingNode;

/// Step limit. One step evaluates a class for one node. 10,000 classes and 10,000 nodes are within
/// the limit.
const STEPS_MAX: u64 = 200_000_000;

/// Maximum product of classes and nodes up to which other orders are tried if pods remain.
const TRIES_MAX: u64 = 10_000_000;

/// Pods of one class bound at one location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacementStep {
    /// The class.
    pub(crate) class: PodClassIndex,
    /// The location: an existing node, or a new claim. Locations of claims follow those of nodes.
    pub(crate) site: LocationIndex,
    /// Number of these pods.
    pub(crate) pods: u64,
}

/// Pods placed on existing nodes, and the remaining pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExistingPlacement {
    /// Placements in a valid bind order.
    pub(crate) turns: Vec<PlacementStep>,
    /// Remaining pods by class.
    pub(crate) left: IndexVec<PodClassIndex, u64>,
    /// Whether the step limit was reached.
    pub(crate) cut_short: bool,
}

impl ExistingPlacement {
    /// Returns the total value of the remaining pods.
    fn worth_left(&self, worth: &[f64]) -> f64 {
        let left = self.left.iter().zip(worth);
        #[expect(clippy::cast_precision_loss, reason = "only for an order")]
        left.map(|(count, worth)| *count as f64 * worth).sum()
    }
}

/// Properties of nodes, except resources, that are relevant for pods: required labels, taints, host
/// ports.
type Profile<'r> = (Vec<Option<&'r Requirement>>, &'r [Taint], &'r BTreeSet<HostPort>);

/// Free resources of each node. `None` if nothing fits or the node accepts no pods.
pub(crate) type FreeResources = IndexVec<LocationIndex, Option<Vec<i64>>>;

/// Existing nodes with their free resources and profiles.
#[derive(Clone)]
pub(crate) struct ExistingNodes<'r> {
    problem: &'r Problem<'r>,
    rooms: &'r [&'r ExistingNode],
    /// Free resources before placement.
    free: FreeResources,
    /// Maximum of each free resource.
    most: Vec<i64>,
    /// Profile of each node.
    profile: IndexVec<LocationIndex, usize>,
    profiles: usize,
    /// Whether nodes of a profile match requirements, once this is computed.
    may: Vec<Option<bool>>,
    /// The kind of each class without preferences, because kube-scheduler binds a pod to a node
    /// with capacity rather than leave it pending.
    kinds: IndexVec<PodClassIndex, KindIndex>,
}

impl<'r> ExistingNodes<'r> {
    /// Fills existing nodes in order. If pods remain, other strategies are tried. The topology
    /// state is updated with the placements.
    pub(crate) fn place_pods(&mut self, board: &mut TopologyState<'_>) -> ExistingPlacement {
        let mut best = self.place_by_pod(board);
        if self.kinds.iter().all(|kind| {
            let ports = self.problem.wants_of(*kind).ports;
            board.topology.is_unconstrained(*kind) && ports.is_empty()
        }) {
            best = self.improve_placement(best);
        }
        self.check_capacity(&best.turns);
        best
    }

    /// Returns the free resources after these placements.
    pub(crate) fn free_after(&self, turns: &[PlacementStep]) -> FreeResources {
        let mut free = self.free.clone();
        for turn in turns.iter().filter(|turn| turn.site.0 < self.rooms.len()) {
            if let Some(free) = &mut free[turn.site] {
                subtract_demand(free, &self.problem.classes[turn.class].demand, turn.pods);
            }
        }
        free
    }

    /// Places remaining pods one by one after these placements. Other pods rejected them before,
    /// but the location of these other pods may have changed.
    pub(crate) fn place_rest(
        &mut self,
        class: PodClassIndex,
        left: &mut u64,
        turns: &mut Vec<PlacementStep>,
        free: &mut FreeResources,
        board: &mut TopologyState<'_>,
        steps: &mut u64,
    ) -> bool {
        let mut placed = ExistingPlacement {
            turns: std::mem::take(turns),
            left: vec![0; self.problem.classes.len()].into(),
            cut_short: false,
        };
        placed.left[class] = *left;
        let moved = self.place_on_each(class, 1, free, &mut placed, board, steps);
        (*left, *turns) = (placed.left[class], placed.turns);
        moved
    }

    /// The existing nodes of a problem.
    pub(crate) fn new(problem: &'r Problem<'r>, rooms: &'r [&'r ExistingNode]) -> Self {
        let alternatives = problem.wants.iter().flat_map(|wants| &wants.alternatives);
        let label_keys: BTreeSet<&str> =
            alternatives.flat_map(|alternative| alternative.iter().map(|(key, _)| key)).collect();
        let mut known: BTreeMap<Profile<'r>, usize> = BTreeMap::new();
        let profile = rooms
            .iter()
            .map(|room| {
                let labels = label_keys.iter().map(|key| room.labels.get(key)).collect();
                let (key, next) = ((labels, &room.taints[..], &room.host_ports), known.len());
                *known.entry(key).or_insert(next)
            })
            .collect();
        let kinds = problem.classes.iter().map(|class| problem.without_preferences(class.kind));
        let free: FreeResources = rooms
            .iter()
            .map(|room| room.open.then(|| problem.axes.remainder_of(&room.free)))
            .collect();
        Self {
            problem,
            rooms,
            most: max_per_resource(free.iter().flatten()),
            free,
            profile,
            profiles: known.len(),
            may: vec![None; known.len() * problem.wants.len()],
            kinds: kinds.collect(),
        }
    }

    /// Returns whether a node matches pods, except resources and topology. `PreferNoSchedule` does
    /// not reject them, because kube-scheduler binds them there rather than leave them pending.
    fn may_host(&mut self, wants: RequirementsIndex, room: LocationIndex) -> bool {
        let at = wants.0 * self.profiles + self.profile[room];
        if let Some(known) = self.may[at] {
            return known;
        }
        let (wanted, host) = (&self.problem.wants[wants], &self.rooms[room.0]);
        let may = first_repelling(&host.taints, wanted.tolerations).is_none()
            && !have_port_conflict(wanted.ports, &host.host_ports)
            && surely_matches(&host.labels, &wanted.alternatives);
        self.may[at] = Some(may);
        may
    }

    /// Places each class on the first nodes that fit, spread pods first. Pods that require other
    /// pods are retried.
    fn place_by_pod(&mut self, board: &mut TopologyState<'_>) -> ExistingPlacement {
        let mut free = self.free.clone();
        let mut placed = ExistingPlacement {
            left: self.problem.pods_per_class(),
            ..ExistingPlacement::default()
        };
        let mut order: Vec<PodClassIndex> = self.problem.classes.keys().collect();
        order.sort_by_key(|class| !board.topology.has_spread(self.kinds[*class]));
        let mut steps = 0;
        let mut again = true;
        while again && steps <= STEPS_MAX {
            again = false;
            for class in &order {
                let bound = board.topology.checks[self.kinds[*class]].is_empty();
                // Each node gets one pod per round, so that spread pods fill nodes evenly.
                let most = if bound { u64::MAX } else { 1 };
                while placed.left[*class] > 0 {
                    let moved =
                        self.place_on_each(*class, most, &mut free, &mut placed, board, &mut steps);
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

    /// Places at most a number of pods of a class on each node. Returns whether any pod was placed.
    fn place_on_each(
        &mut self,
        class: PodClassIndex,
        most: u64,
        free: &mut FreeResources,
        placed: &mut ExistingPlacement,
        board: &mut TopologyState<'_>,
        steps: &mut u64,
    ) -> bool {
        let demand = &self.problem.classes[class].demand;
        let kind = self.kinds[class];
        let wants = self.problem.kinds[kind].wants;
        let ports = !self.problem.wants[wants].ports.is_empty();
        let free_kind = board.topology.is_unconstrained(kind);
        let mut moved = false;
        if !fits(&self.most, demand) {
            *steps += free.len() as u64;
            return false;
        }
        for (room, free) in free.iter_mut_enumerated() {
            *steps += 1;
            if placed.left[class] == 0 || *steps > STEPS_MAX {
                break;
            }
            let Some(free) = free else {
                continue;
            };
            let known = self.may[wants.0 * self.profiles + self.profile[room]];
            if known == Some(false) || !fits(free, demand) || !self.may_host(wants, room) {
                continue;
            }
            if ports {
                let on_room = placed.turns.iter().filter(|turn| turn.site == room);
                let mut others = on_room.map(|turn| self.kinds[turn.class]);
                if others.any(|other| self.problem.ports_clash(kind, other)) {
                    continue;
                }
            }
            if !free_kind && !board.allows(kind, room) {
                continue;
            }
            let most = if ports { 1 } else { most };
            let count = copies_that_fit(free, demand).min(placed.left[class]).min(most);
            if !free_kind {
                board.bind_pods(kind, room, u32::try_from(count).unwrap_or(u32::MAX));
            }
            subtract_demand(free, demand, count);
            placed.left[class] -= count;
            moved = true;
            let (site, pods) = (room, count);
            placed.turns.push(PlacementStep { class, site, pods });
        }
        moved
    }

    /// Returns the best of several strategies for pods without topology rules.
    fn improve_placement(&mut self, mut best: ExistingPlacement) -> ExistingPlacement {
        let worth = self.pod_values();
        let effort = (self.rooms.len() * self.problem.classes.len()) as u64;
        let tries = [
            (FillStrategy::Worth, true),
            (FillStrategy::Largest, true),
            (FillStrategy::Worth, false),
            (FillStrategy::Largest, false),
        ];
        for (strategy, largest_first) in tries {
            if best.worth_left(&worth) <= 0.0 || effort > TRIES_MAX {
                break;
            }
            let other = self.place_by_node(strategy, largest_first, &worth);
            if other.worth_left(&worth) < best.worth_left(&worth) {
                best = other;
            }
        }
        best
    }

    /// Fills each node with the best combination of pods.
    fn place_by_node(
        &mut self,
        strategy: FillStrategy,
        largest_first: bool,
        worth: &IndexVec<ItemGroupIndex, f64>,
    ) -> ExistingPlacement {
        let problem = self.problem;
        let shares = NodeConstraints::default();
        let classes = self.problem.classes.iter_enumerated().zip(&self.kinds);
        let lots = classes.map(|((class, pod_class), kind)| ItemGroup {
            class,
            kind: *kind,
            demand: &pod_class.demand,
            per_unit: &pod_class.per_unit,
            shares: &shares,
            // The compatible offerings of a kind have the same index as the kind.
            row: RowIndex(kind.0),
            cell: None,
            together: 1,
        });
        let lots: ItemGroups<'_> = lots.collect();
        let mut left: IndexVec<ItemGroupIndex, u64> =
            problem.pods_per_class().into_iter().collect();
        let mut turns = Vec::new();
        let mut order: Vec<LocationIndex> = self.free.keys().collect();
        if largest_first {
            order.sort_by_key(|room| {
                let size = self.free[*room].as_ref().map(|free| (free[0], free[1]));
                (Reverse(size), *room)
            });
        }
        let mut steps = 0;
        for site in order {
            if steps > STEPS_MAX {
                break;
            }
            let Some(free) = self.free[site].clone() else {
                continue;
            };
            let wants = problem.wants.keys();
            let may: IndexVec<RequirementsIndex, bool> =
                wants.map(|wants| self.may_host(wants, site)).collect();
            let rules = BinRules {
                lots: &lots,
                mask: &|row| u64::from(may[problem.kinds[KindIndex(row.0)].wants]),
                is_picky: &|_| false,
                apart: &|_, _| false,
            };
            let waits = left.keys().filter(|group| left[*group] > 0);
            let order: Vec<Vec<ItemGroupIndex>> = waits.map(|group| vec![group]).collect();
            let queues = (0..order.len()).map(|at| vec![at]).collect();
            let mut bin = Bin { free, mask: 1, good: 1, ..Bin::default() };
            let pending = PendingItems {
                waiting: &FillQueues { order, queues },
                stock: &left,
                values: worth,
            };
            for (group, pods) in bin.fill(strategy, &rules, &pending, &mut steps) {
                left[group] -= pods;
                let class = lots[group].class;
                turns.push(PlacementStep { class, site, pods });
            }
        }
        // There is one item group for each class, in the same order.
        let left = left.into_iter().collect();
        ExistingPlacement { turns, left, cut_short: steps > STEPS_MAX }
    }

    /// Value of a pod on existing nodes: for the resource of which it requests the largest
    /// fraction, that fraction of the total free amount.
    fn pod_values(&self) -> IndexVec<ItemGroupIndex, f64> {
        let classes = &self.problem.classes;
        let axes = classes.first().map_or(0, |class| class.demand.len());
        let mut whole = vec![0.0; axes];
        for free in self.free.iter().flatten() {
            for (whole, free) in whole.iter_mut().zip(free) {
                #[expect(clippy::cast_precision_loss, reason = "only for an order")]
                let free = *free as f64;
                *whole += free;
            }
        }
        let worth = classes.iter().map(|class| {
            #[expect(clippy::cast_precision_loss, reason = "only for an order")]
            let shares = class
                .demand
                .iter()
                .zip(&whole)
                .map(|(demand, whole)| *demand as f64 / f64::max(*whole, 1.0));
            shares.fold(1e-12, f64::max)
        });
        worth.collect()
    }

    /// Checks that the pods placed on each node do not exceed its free resources.
    fn check_capacity(&self, turns: &[PlacementStep]) {
        let mut free = self.free.clone();
        for turn in turns {
            let demand = &self.problem.classes[turn.class].demand;
            let host = &self.rooms[turn.site.0].host;
            let free = free[turn.site].as_mut();
            let most = free.as_ref().map(|free| copies_that_fit(free, demand));
            let fits = most.is_some_and(|most| most >= turn.pods);
            assert!(fits, "{host} takes no more than it has");
            if let Some(free) = free {
                subtract_demand(free, demand, turn.pods);
            }
        }
    }
}

/// Maximum number of evaluated label combinations of an in-flight node.
const TURNS_OUT_MAX: usize = 64;

/// Returns whether a node satisfies one of these alternatives for all values that its labels may
/// have.
fn surely_matches(labels: &Requirements, alternatives: &[Requirements]) -> bool {
    let label_keys: BTreeSet<&str> = alternatives
        .iter()
        .flat_map(|alternative| alternative.iter().map(|(key, _)| key))
        .collect();
    let mut outcomes = vec![labels.clone()];
    for key in label_keys {
        let values = labels.get(key).and_then(Requirement::values);
        let Some(values) = values.filter(|values| values.len() > 1) else {
            continue;
        };
        if outcomes.len() * values.len() > TURNS_OUT_MAX {
            return false;
        }
        outcomes = outcomes
            .iter()
            .flat_map(|labels| {
                values.iter().map(move |value| {
                    let mut labels = labels.clone();
                    labels.add(key, Requirement::is_in([value.as_str()]));
                    labels
                })
            })
            .collect();
    }
    outcomes.iter().all(|labels| {
        let mut alternatives = alternatives.iter();
        alternatives.any(|wanted| labels.check_compatible(wanted, false).is_ok())
    })
}
