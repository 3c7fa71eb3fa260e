//! Per-node constraints as counters: host ports, and topology rules whose key is the host name.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::index::{CounterIndex, IndexVec, KindIndex, TemplateIndex, TypeIndex};
use crate::scheduling::problem::daemon_constraints::HostPort;
use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::problem::{Problem, is_port_conflict};
use crate::scheduling::topology::topology_state::TopologyState;
use crate::scheduling::topology::{DomainCounter, Topology, TopologyCheck};

/// Per-node constraints of a kind of pods, and the counters that its pods increment.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeConstraints {
    /// A counter, and its maximum value before a pod is added.
    pub(crate) limits: Vec<(usize, u32)>,
    /// Counters that a pod increments.
    pub(crate) adds: Vec<usize>,
    /// Counters that must not be zero on the node, and whether the pod may be the first matching
    /// pod anywhere.
    pub(crate) needs: Vec<(usize, bool)>,
}

impl NodeConstraints {
    /// Returns whether pods have no per-node constraints or increments.
    pub(crate) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.adds.is_empty() && self.needs.is_empty()
    }

    /// Returns how many more pods a node with these counts accepts, at most `max_pods`.
    pub(crate) fn remaining_pods(&self, counts: &[u32], max_pods: u64) -> u64 {
        let mut room = max_pods;
        for (counter, max) in &self.limits {
            let count = counts[*counter];
            if count > *max {
                return 0;
            }
            if self.adds.contains(counter) {
                room = room.min(u64::from(max - count) + 1);
            }
        }
        if self.needs.iter().any(|(counter, first)| counts[*counter] == 0 && !first) {
            0
        } else {
            room
        }
    }

    /// Returns whether pods require other pods of their own kind, and none of these exist.
    pub(crate) fn is_self_affine(&self) -> bool {
        !self.needs.is_empty() && self.needs.iter().all(|(_, first)| *first)
    }

    /// Returns whether the required pods are on a node with these counts.
    pub(crate) fn is_met(&self, counts: &[u32]) -> bool {
        self.needs.iter().all(|(counter, _)| counts[*counter] > 0)
    }

    /// Adds pods to the counts.
    pub(crate) fn add_pods(&self, counts: &mut [u32], pods: u64) {
        for counter in &self.adds {
            let pods = u32::try_from(pods).unwrap_or(u32::MAX);
            counts[*counter] = counts[*counter].saturating_add(pods);
        }
    }
}

/// DaemonSet pods of a node by pool, type and counter.
pub(crate) type DaemonCounts =
    IndexVec<TemplateIndex, IndexVec<TypeIndex, BTreeMap<CounterIndex, u32>>>;

/// Types with capacity for at least one pod after DaemonSets, by pool.
type FeasibleTypes = IndexVec<TemplateIndex, IndexVec<TypeIndex, bool>>;

/// Per-node constraints of all kinds.
#[derive(Debug)]
pub(crate) struct NodeConstraintTable {
    /// Constraints on a new node by kind.
    pub(crate) shares: IndexVec<KindIndex, NodeConstraints>,
    /// Constraints by kind if every node gets the same number of pods, so the emptiest node has as
    /// many.
    pub(crate) level: IndexVec<KindIndex, NodeConstraints>,
    /// Number of counters.
    pub(crate) counters: usize,
    /// Types that pods of a kind may be spread over. `None` if all.
    roomy: IndexVec<KindIndex, Option<FeasibleTypes>>,
}

/// DaemonSet pods of new nodes if the emptiest node has fewer.
struct DaemonSkew<'c> {
    daemon_overheads: &'c DaemonCounts,
    /// Minimum count over nodes, by counter.
    least: BTreeMap<CounterIndex, u32>,
}

impl<'c> DaemonSkew<'c> {
    fn new(daemon_overheads: &'c DaemonCounts, board: &TopologyState<'_>) -> Self {
        let mut board = board.clone();
        let all = daemon_overheads.iter().flatten();
        let tallies: BTreeSet<CounterIndex> =
            all.clone().flat_map(BTreeMap::keys).copied().collect();
        let least = tallies
            .into_iter()
            .map(|tally| {
                let counts = all.clone().map(|counts| counts.get(&tally).copied());
                let new = counts.map(Option::unwrap_or_default).min().unwrap_or(0);
                match board.count_and_min(tally) {
                    (0, _) => (tally, new),
                    (_, least) => (tally, new.min(u32::try_from(least).unwrap_or(u32::MAX))),
                }
            })
            .collect();
        Self { daemon_overheads, least }
    }

    /// Returns by how many pods a node with these DaemonSet pods exceeds the node with the fewest
    /// before other pods are added.
    fn skew_of(&self, overhead: &BTreeMap<CounterIndex, u32>, tally: CounterIndex) -> u32 {
        let least = self.least.get(&tally).copied().unwrap_or(0);
        let count = overhead.get(&tally).copied().unwrap_or(0);
        count.saturating_sub(least)
    }

    /// Returns the remaining skew after DaemonSet pods on any node with capacity for a pod.
    fn remaining_skew(&self, tally: CounterIndex, max_skew: u32) -> u32 {
        let ahead = self.daemon_overheads.iter().flatten();
        let ahead = ahead.map(|overhead| self.skew_of(overhead, tally));
        max_skew - ahead.filter(|skew| *skew <= max_skew).max().unwrap_or(0)
    }

    /// Returns the types with DaemonSet pods that do not exceed the skew.
    fn feasible_types(&self, checks: &[TopologyCheck]) -> Option<FeasibleTypes> {
        let even = checks.iter().filter_map(|check| match check {
            TopologyCheck::Even { tally, skew, adds, .. } if self.least.contains_key(tally) => {
                Some((*tally, skew.saturating_sub(*adds)))
            }
            _ => None,
        });
        let even: Vec<(CounterIndex, u32)> = even.collect();
        if even.is_empty() {
            return None;
        }
        let templates = self.daemon_overheads.iter().map(|template| {
            let fits = template.iter().map(|overhead| {
                let mut even = even.iter();
                even.all(|(tally, max_skew)| self.skew_of(overhead, *tally) <= *max_skew)
            });
            fits.collect()
        });
        Some(templates.collect())
    }
}

impl NodeConstraintTable {
    /// Returns whether pods of a kind may be spread over nodes of a type.
    pub(crate) fn is_feasible(
        &self,
        kind: KindIndex,
        template: TemplateIndex,
        shape: TypeIndex,
    ) -> bool {
        let roomy = self.roomy[kind].as_ref();
        roomy.is_none_or(|roomy| roomy[template][shape])
    }

    /// Returns whether [`Self::is_feasible`] depends on the type.
    pub(crate) fn depends_on_type(&self, kind: KindIndex) -> bool {
        self.roomy[kind].is_some()
    }

    /// Builds the counters of a problem. Bound pods determine whether the first pod of an affinity
    /// group exists. DaemonSet pods of new nodes are counted if the emptiest node may have fewer.
    pub(crate) fn new(
        problem: &Problem<'_>,
        topology: &Topology,
        board: &TopologyState<'_>,
        daemon_overheads: &DaemonCounts,
    ) -> Self {
        let ahead = DaemonSkew::new(daemon_overheads, board);
        let mut counters: BTreeMap<CounterIndex, usize> = BTreeMap::new();
        for (at, tally) in topology.tallies.iter_enumerated() {
            if tally.topology_key() == HOST {
                let next = counters.len();
                counters.insert(at, next);
            }
        }
        let skews = smallest_skews(topology);
        let kinds = problem.kinds.keys();
        let mut shares: IndexVec<KindIndex, NodeConstraints> = kinds
            .clone()
            .map(|kind| {
                let mut constraints = NodeConstraints::default();
                // Pods with a domain are bound together with spread pods.
                let early = topology.has_spread(kind) || topology.needs_domain_first(kind);
                for check in &topology.checks[kind] {
                    constraints.add_check(check, &counters, board, &ahead);
                }
                for tally in &topology.adds[kind] {
                    let spread = matches!(topology.tallies[*tally], DomainCounter::Spread { .. });
                    if let Some(counter) = counters.get(tally).filter(|_| early || !spread) {
                        constraints.adds.push(*counter);
                        // Early pods may be bound in any order, so none may block a later one.
                        if let Some(skew) = skews.get(tally) {
                            let max_count = ahead.remaining_skew(*tally, skew.saturating_sub(1));
                            constraints.limits.push((*counter, max_count));
                        }
                    }
                }
                constraints
            })
            .collect();
        let level = kinds
            .map(|kind| {
                let tally = topology.only_host_spread(kind).map(|(tally, ..)| tally);
                NodeConstraints {
                    adds: tally.iter().map(|tally| counters[tally]).collect(),
                    ..NodeConstraints::default()
                }
            })
            .collect();
        let ports = number_ports(problem, counters.len());
        for (kind, constraints) in shares.iter_mut_enumerated() {
            for port in problem.wants_of(kind).ports {
                constraints.adds.push(ports[port]);
                let others = ports.iter().filter(|(other, _)| is_port_conflict(port, other));
                constraints.limits.extend(others.map(|(_, counter)| (*counter, 0)));
            }
        }
        Self {
            shares,
            level,
            counters: counters.len() + ports.len(),
            roomy: topology.checks.iter().map(|check| ahead.feasible_types(check)).collect(),
        }
    }
}

impl NodeConstraints {
    fn add_check(
        &mut self,
        check: &TopologyCheck,
        counters: &BTreeMap<CounterIndex, usize>,
        board: &TopologyState<'_>,
        ahead: &DaemonSkew<'_>,
    ) {
        match check {
            TopologyCheck::Free { tally } => {
                self.limits.extend(counters.get(tally).map(|counter| (*counter, 0)));
            }
            TopologyCheck::Even { tally, skew, adds, .. } => {
                // A new node has no such pods, so the minimum is zero.
                let max_count = ahead.remaining_skew(*tally, skew.saturating_sub(*adds));
                self.limits.extend(counters.get(tally).map(|counter| (*counter, max_count)));
            }
            // The DaemonSet pod that satisfies this check runs before any other pod.
            TopologyCheck::Near { beside: true, .. } => {}
            TopologyCheck::Near { tallies, first, .. } => {
                let begins = *first && tallies.iter().all(|tally| board.total_of(*tally) == 0);
                let of_host = tallies.iter().filter_map(|tally| counters.get(tally));
                self.needs.extend(of_host.map(|counter| (*counter, begins)));
            }
        }
    }
}

/// Returns the smallest skew by counter.
fn smallest_skews(topology: &Topology) -> BTreeMap<CounterIndex, u32> {
    let mut skews: BTreeMap<CounterIndex, u32> = BTreeMap::new();
    for check in topology.checks.iter().flatten() {
        if let TopologyCheck::Even { tally, skew, .. } = check {
            let least = skews.entry(*tally).or_insert(*skew);
            *least = (*least).min(*skew);
        }
    }
    skews
}

fn number_ports<'p>(problem: &'p Problem<'_>, first: usize) -> BTreeMap<&'p HostPort, usize> {
    let mut ports = BTreeMap::new();
    for port in problem.wants.iter().flat_map(|wants| wants.ports) {
        let next = first + ports.len();
        ports.entry(port).or_insert(next);
    }
    ports
}
