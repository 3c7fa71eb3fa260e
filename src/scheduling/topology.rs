//! The topology checks for each kind of pods at binding, and the counters that each kind
//! increments.

/// Number of pods in each topology domain, and whether one more pod may be added.
pub(super) mod topology_state;
/// Constraints within one node: hostname spread, host ports.
pub(super) mod node_counters;

use std::collections::BTreeMap;

use crate::scheduling::index::{
    CounterIndex, DaemonIndex, FilterIndex, GroupIndex, IndexVec, KeyIndex, KindIndex,
    RequirementsIndex,
};
use crate::scheduling::problem::pod_constraints::{HOST, SpreadConstraint};
use crate::scheduling::problem::{Problem, by_ordinal};

/// The counter of a domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DomainCounter {
    /// Pods of a group.
    Members { group: GroupIndex, key: KeyIndex },
    /// Pods with anti-affinity against a group.
    Owners { group: GroupIndex, key: KeyIndex },
    /// Pods of a group that are not being deleted, at locations that pass a filter.
    Spread { group: GroupIndex, key: KeyIndex, filter: FilterIndex },
}

impl DomainCounter {
    pub(super) fn topology_key(&self) -> KeyIndex {
        match self {
            Self::Members { key, .. } | Self::Owners { key, .. } | Self::Spread { key, .. } => *key,
        }
    }
}

/// The nodes that a topology spread includes: those that its pods could use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeFilter {
    /// The requirements that the labels of a location must satisfy, or `None`.
    pub(super) labels: Option<RequirementsIndex>,
    /// The requirements whose tolerations must cover the taints, or `None`.
    pub(super) taints: Option<RequirementsIndex>,
    /// The topology keys that a location must have.
    pub(super) keys: Vec<KeyIndex>,
}

/// A check at the binding of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TopologyCheck {
    /// The domain contains none of these pods.
    Free { tally: CounterIndex },
    /// The number of pods in the domain, including the pod itself, exceeds that of the domain with
    /// the fewest pods by at most the skew.
    Even {
        tally: CounterIndex,
        skew: u32,
        least: u32,
        /// One if the pod itself is counted, otherwise zero.
        adds: u32,
    },
    /// Each of these domains contains matching pods, or no domain does and the pod matches itself.
    /// If the last field is true, a DaemonSet pod on the same node also satisfies the check.
    Near {
        tallies: Vec<CounterIndex>,
        /// Whether the pod matches its own affinity, so that it may be the first matching pod.
        first: bool,
        beside: bool,
    },
}

/// The checks and counters of every kind of pods.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub(super) tallies: IndexVec<CounterIndex, DomainCounter>,
    pub(super) filters: IndexVec<FilterIndex, NodeFilter>,
    /// Checks by kind.
    pub(super) checks: IndexVec<KindIndex, Vec<TopologyCheck>>,
    /// Counters that the pods of each kind increment.
    pub(super) adds: IndexVec<KindIndex, Vec<CounterIndex>>,
    /// Counters that the pods of each constrained DaemonSet increment.
    pub(super) daemon_overheads: IndexVec<DaemonIndex, Vec<CounterIndex>>,
    /// Number of keys.
    pub(super) keys: usize,
}

impl Topology {
    /// Returns whether any topology rule counts DaemonSet pods.
    pub(super) fn counts_daemons(&self) -> bool {
        self.daemon_overheads.iter().any(|daemon_overhead| !daemon_overhead.is_empty())
    }

    /// Builds the topology checks and counters of a problem. `standing` contains the groups and
    /// keys of the anti-affinity terms of bound pods.
    pub(super) fn new(problem: &Problem<'_>, standing: &[(GroupIndex, KeyIndex)]) -> Self {
        let mut maker = Maker { problem, tallies: BTreeMap::new(), filters: BTreeMap::new() };
        let mut checks: IndexVec<KindIndex, Vec<TopologyCheck>> =
            problem.kinds.keys().map(|kind| maker.checks_of(kind)).collect();
        for (group, key) in standing {
            maker.counter_ordinal(DomainCounter::Owners { group: *group, key: *key });
        }
        let Maker { tallies, filters, .. } = maker;
        let tallies = by_ordinal(tallies);
        // A pod of a group is rejected by pods with anti-affinity against it.
        for (kind, checks) in checks.iter_mut_enumerated() {
            for (index, tally) in tallies.iter_enumerated() {
                if let DomainCounter::Owners { group, .. } = tally
                    && problem.is_member(kind, *group)
                {
                    checks.push(TopologyCheck::Free { tally: index });
                }
            }
        }
        let adds = problem.kinds.keys().map(|kind| {
            incremented_counters(
                &tallies,
                |group| problem.is_member(kind, group),
                |group, key| {
                    let mut terms = problem.rules_of(kind).away.iter();
                    terms.any(|away| away.is_hard && away.group == group && away.key == key)
                },
            )
        });
        let daemon_overheads = problem.agents.keys().map(|agent| {
            incremented_counters(
                &tallies,
                |group| problem.agents.is_member(agent, group),
                |group, key| problem.agents.has_anti_affinity(agent, (group, key)),
            )
        });
        Self {
            daemon_overheads: daemon_overheads.collect(),
            adds: adds.collect(),
            tallies,
            filters: by_ordinal(filters),
            checks,
            keys: problem.groups.keys.len(),
        }
    }

    /// Returns the topology key of a counter.
    pub(super) fn key_of(&self, tally: CounterIndex) -> KeyIndex {
        self.tallies[tally].topology_key()
    }

    /// Returns whether a kind has topology spread. Pods with topology spread are bound before other
    /// pods.
    pub(super) fn has_spread(&self, kind: KindIndex) -> bool {
        self.spread_tallies(kind).next().is_some()
    }

    /// Returns the counters of the topology spread of a kind.
    pub(super) fn spread_tallies(&self, kind: KindIndex) -> impl Iterator<Item = &CounterIndex> {
        self.checks[kind].iter().filter_map(|check| match check {
            TopologyCheck::Even { tally, .. } => Some(tally),
            _ => None,
        })
    }

    /// Returns the hostname spread of a kind without any other topology rules or counters: its
    /// counter, skew and minimum number of nodes.
    pub(super) fn only_host_spread(&self, kind: KindIndex) -> Option<(CounterIndex, u32, u32)> {
        match (&self.checks[kind][..], &self.adds[kind][..]) {
            ([TopologyCheck::Even { tally, skew, least, adds: 1 }], [counted])
                if counted == tally && self.key_of(*tally) == HOST =>
            {
                Some((*tally, *skew, *least))
            }
            _ => None,
        }
    }

    /// Returns whether no topology rule concerns a kind.
    pub(super) fn is_unconstrained(&self, kind: KindIndex) -> bool {
        self.checks[kind].is_empty() && self.adds[kind].is_empty()
    }

    /// Returns whether a kind needs a domain before packing, because its rules, or rules of other
    /// pods, depend on a topology key other than the host name.
    pub(super) fn needs_domain_first(&self, kind: KindIndex) -> bool {
        let early = self.has_spread(kind);
        let mut checked = self.checks[kind].iter().flat_map(|check| match check {
            TopologyCheck::Free { tally } | TopologyCheck::Even { tally, .. } => {
                std::slice::from_ref(tally)
            }
            TopologyCheck::Near { tallies, .. } => tallies,
        });
        let mut added = self.adds[kind].iter().filter(|tally| {
            early || !matches!(self.tallies[**tally], DomainCounter::Spread { .. })
        });
        checked.any(|tally| self.key_of(*tally) != HOST)
            || added.any(|tally| self.key_of(*tally) != HOST)
    }

    /// The topology keys of all counters, except the host name.
    pub(super) fn domain_keys(&self) -> Vec<KeyIndex> {
        let mut keys: Vec<KeyIndex> =
            self.tallies.iter().map(DomainCounter::topology_key).collect();
        keys.retain(|key| *key != HOST);
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// Returns the counters that pods increment.
fn incremented_counters(
    tallies: &IndexVec<CounterIndex, DomainCounter>,
    is_member: impl Fn(GroupIndex) -> bool,
    has_anti_affinity: impl Fn(GroupIndex, KeyIndex) -> bool,
) -> Vec<CounterIndex> {
    let counted = tallies.iter_enumerated().filter(|(_, tally)| match tally {
        DomainCounter::Members { group, .. } | DomainCounter::Spread { group, .. } => {
            is_member(*group)
        }
        DomainCounter::Owners { group, key } => has_anti_affinity(*group, *key),
    });
    counted.map(|(tally, _)| tally).collect()
}

struct Maker<'m, 'a> {
    problem: &'m Problem<'a>,
    tallies: BTreeMap<DomainCounter, CounterIndex>,
    filters: BTreeMap<NodeFilter, FilterIndex>,
}

impl Maker<'_, '_> {
    fn counter_ordinal(&mut self, tally: DomainCounter) -> CounterIndex {
        let next = CounterIndex(self.tallies.len());
        *self.tallies.entry(tally).or_insert(next)
    }

    fn checks_of(&mut self, kind: KindIndex) -> Vec<TopologyCheck> {
        let problem = self.problem;
        let rules = problem.rules_of(kind);
        let mut checks = Vec::new();
        for away in &rules.away {
            let (group, key) = (away.group, away.key);
            // Only required anti-affinity rejects other pods.
            if away.is_hard {
                self.counter_ordinal(DomainCounter::Owners { group, key });
            }
            let tally = self.counter_ordinal(DomainCounter::Members { group, key });
            checks.push(TopologyCheck::Free { tally });
        }
        // Every node has a host name.
        let keys = rules.even.iter().map(|even| even.key);
        let mut keys: Vec<KeyIndex> = keys.filter(|key| *key != HOST).collect();
        keys.sort_unstable();
        keys.dedup();
        for even in &rules.even {
            let filter = self.filter_ordinal(kind, even, &keys);
            let (group, key) = (even.group, even.key);
            checks.push(TopologyCheck::Even {
                tally: self.counter_ordinal(DomainCounter::Spread { group, key, filter }),
                skew: even.skew,
                least: even.least,
                adds: u32::from(even.is_vacant || problem.is_member(kind, group)),
            });
        }
        for near in &rules.near {
            let group = near.group;
            let keys = near.keys.iter();
            let tallies =
                keys.map(|key| self.counter_ordinal(DomainCounter::Members { group, key: *key }));
            checks.push(TopologyCheck::Near {
                tallies: tallies.collect(),
                first: problem.is_member(kind, group),
                beside: problem.relies_on_daemons(kind, group),
            });
        }
        checks
    }

    fn filter_ordinal(
        &mut self,
        kind: KindIndex,
        even: &SpreadConstraint,
        keys: &[KeyIndex],
    ) -> FilterIndex {
        let wants = self.problem.kinds[kind].bare;
        let choosy = self.problem.wants[wants]
            .alternatives
            .iter()
            .all(|alternative| !alternative.is_empty());
        let filter = NodeFilter {
            labels: (even.affinity && choosy).then_some(wants),
            taints: even.taints.then_some(wants),
            keys: keys.to_vec(),
        };
        let next = FilterIndex(self.filters.len());
        *self.filters.entry(filter).or_insert(next)
    }
}
