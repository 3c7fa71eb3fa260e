//! What each kind of pods is held against where it is bound, and in which tallies it is counted.
//! It must not know where anybody is.

/// Pods for each topology domain, and whether one more may be added.
pub(super) mod topology_state;
/// Constraints within one node: hostname spread, host ports.
pub(super) mod node_counters;

use std::collections::BTreeMap;

use crate::scheduling::problem::Problem;
use crate::scheduling::problem::pod_constraints::{HOST, SpreadConstraint};

/// What a tally counts, place by place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DomainCounter {
    /// Pods of a group.
    Members { group: usize, key: usize },
    /// Pods that must be away from a group.
    Owners { group: usize, key: usize },
    /// Pods of a group that are not being deleted, on sites that pass a filter.
    Spread {
        group: usize,
        key: usize,
        filter: usize,
    },
}

impl DomainCounter {
    pub(super) fn key(&self) -> usize {
        match self {
            Self::Members { key, .. } | Self::Owners { key, .. } | Self::Spread { key, .. } => *key,
        }
    }
}

/// Which sites count for a spread: those where its pods might be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeFilter {
    /// The wants whose labels a site has to satisfy; none where all do.
    pub(super) labels: Option<usize>,
    /// The wants whose tolerations have to cover its taints; none where they need not.
    pub(super) taints: Option<usize>,
    /// The keys a site must have.
    pub(super) keys: Vec<usize>,
}

/// What has to hold where a pod is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TopologyCheck {
    /// The place has none of these.
    Free { tally: usize },
    /// The place does not lead the emptiest by more than the skew, the pod itself counted.
    Even {
        tally: usize,
        skew: u32,
        least: u32,
        own: u32,
    },
    /// Every one of these places has some; or there are none anywhere and the pod is one itself.
    /// `beside` says that there is a daemon on the pod's own node to see to that.
    Near {
        tallies: Vec<usize>,
        own: bool,
        beside: bool,
    },
}

/// What every kind of pods is held against, and what it adds to.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub(super) tallies: Vec<DomainCounter>,
    pub(super) filters: Vec<NodeFilter>,
    /// For each kind, what has to hold.
    pub(super) checks: Vec<Vec<TopologyCheck>>,
    /// For each kind, the tallies that its pods are counted in.
    pub(super) adds: Vec<Vec<usize>>,
    /// For each daemon that matters, the tallies that its pods are counted in.
    pub(super) crews: Vec<Vec<usize>>,
    /// How many keys there are.
    pub(super) keys: usize,
}

impl Topology {
    /// Whether any rule about places counts daemons.
    pub(super) fn counts_daemons(&self) -> bool {
        self.crews.iter().any(|own| !own.is_empty())
    }

    /// The rules of a problem. `standing` are the group and key of terms that bound pods have.
    pub(super) fn new(problem: &Problem<'_>, standing: &[(usize, usize)]) -> Self {
        let mut maker = Maker {
            problem,
            tallies: BTreeMap::new(),
            filters: BTreeMap::new(),
        };
        let checks = (0..problem.kinds.len()).map(|kind| maker.checks(kind));
        let mut checks: Vec<Vec<TopologyCheck>> = checks.collect();
        for (group, key) in standing {
            maker.tally(DomainCounter::Owners {
                group: *group,
                key: *key,
            });
        }
        let Maker {
            tallies, filters, ..
        } = maker;
        let tallies = by_ordinal(tallies);
        // A pod of a group keeps away from those who must be away from it.
        for (kind, own) in checks.iter_mut().enumerate() {
            for (at, tally) in tallies.iter().enumerate() {
                if let DomainCounter::Owners { group, .. } = tally
                    && problem.is_member(kind, *group)
                {
                    own.push(TopologyCheck::Free { tally: at });
                }
            }
        }
        let adds = (0..problem.kinds.len()).map(|kind| {
            let counts = |tally: &DomainCounter| match tally {
                DomainCounter::Members { group, .. } | DomainCounter::Spread { group, .. } => {
                    problem.is_member(kind, *group)
                }
                DomainCounter::Owners { group, key } => {
                    let mut own = problem.rules_of(kind).away.iter();
                    own.any(|away| away.is_hard && away.group == *group && away.key == *key)
                }
            };
            let own = tallies
                .iter()
                .enumerate()
                .filter(|(_, tally)| counts(tally));
            own.map(|(at, _)| at).collect()
        });
        let crews = (0..problem.agents.len()).map(|agent| {
            let counts = |tally: &DomainCounter| match tally {
                DomainCounter::Members { group, .. } | DomainCounter::Spread { group, .. } => {
                    problem.agents.is_member(agent, *group)
                }
                DomainCounter::Owners { group, key } => {
                    problem.agents.is_away(agent, (*group, *key))
                }
            };
            let all = tallies.iter().enumerate();
            let own = all.filter(|(_, tally)| counts(tally));
            own.map(|(at, _)| at).collect()
        });
        Self {
            crews: crews.collect(),
            adds: adds.collect(),
            tallies,
            filters: by_ordinal(filters),
            checks,
            keys: problem.groups.keys.len(),
        }
    }

    /// Whether pods of a kind have to be spread: they are bound before those that need not.
    pub(super) fn is_early(&self, kind: usize) -> bool {
        let mut checks = self.checks[kind].iter();
        checks.any(|check| matches!(check, TopologyCheck::Even { .. }))
    }

    /// The spread over hosts of a kind whose pods ask for nothing else about others' places and are
    /// counted in nothing else: its tally, skew and least number of hosts.
    pub(super) fn spread_alone(&self, kind: usize) -> Option<(usize, u32, u32)> {
        match (&self.checks[kind][..], &self.adds[kind][..]) {
            (
                [
                    TopologyCheck::Even {
                        tally,
                        skew,
                        least,
                        own: 1,
                    },
                ],
                [counted],
            ) if counted == tally && self.tallies[*tally].key() == HOST => {
                Some((*tally, *skew, *least))
            }
            _ => None,
        }
    }

    /// Whether it matters to nobody where pods of a kind are.
    pub(super) fn is_free(&self, kind: usize) -> bool {
        self.checks[kind].is_empty() && self.adds[kind].is_empty()
    }

    /// Whether the place by a key other than the host's has to be known for pods of a kind before
    /// they are packed: their own rules or those of others depend on it.
    pub(super) fn is_pinned(&self, kind: usize) -> bool {
        let elsewhere = |tally: usize| self.tallies[tally].key() != HOST;
        let checked = |check: &TopologyCheck| match check {
            TopologyCheck::Free { tally } | TopologyCheck::Even { tally, .. } => elsewhere(*tally),
            TopologyCheck::Near { tallies, .. } => tallies.iter().any(|tally| elsewhere(*tally)),
        };
        let early = self.is_early(kind);
        let counted = |tally: &usize| {
            let spread = matches!(self.tallies[*tally], DomainCounter::Spread { .. });
            elsewhere(*tally) && (early || !spread)
        };
        self.checks[kind].iter().any(checked) || self.adds[kind].iter().any(counted)
    }

    /// The keys, the host's aside, by which some pinned kind's place has to be known.
    pub(super) fn pinned_keys(&self) -> Vec<usize> {
        let mut keys: Vec<usize> = self.tallies.iter().map(DomainCounter::key).collect();
        keys.retain(|key| *key != HOST);
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

fn by_ordinal<T>(known: BTreeMap<T, usize>) -> Vec<T> {
    let mut all: Vec<(T, usize)> = known.into_iter().collect();
    all.sort_by_key(|(_, at)| *at);
    all.into_iter().map(|(own, _)| own).collect()
}

struct Maker<'m, 'a> {
    problem: &'m Problem<'a>,
    tallies: BTreeMap<DomainCounter, usize>,
    filters: BTreeMap<NodeFilter, usize>,
}

impl Maker<'_, '_> {
    fn tally(&mut self, tally: DomainCounter) -> usize {
        let next = self.tallies.len();
        *self.tallies.entry(tally).or_insert(next)
    }

    fn checks(&mut self, kind: usize) -> Vec<TopologyCheck> {
        let problem = self.problem;
        let rules = problem.rules_of(kind);
        let mut checks = Vec::new();
        for away in &rules.away {
            let (group, key) = (away.group, away.key);
            // Others keep away from those who must be alone, not from those who would like it.
            if away.is_hard {
                self.tally(DomainCounter::Owners { group, key });
            }
            let tally = self.tally(DomainCounter::Members { group, key });
            checks.push(TopologyCheck::Free { tally });
        }
        // Every node has a host name.
        let keys = rules.even.iter().map(|even| even.key);
        let mut keys: Vec<usize> = keys.filter(|key| *key != HOST).collect();
        keys.sort_unstable();
        keys.dedup();
        for even in &rules.even {
            let filter = self.filter(kind, even, &keys);
            let (group, key) = (even.group, even.key);
            checks.push(TopologyCheck::Even {
                tally: self.tally(DomainCounter::Spread { group, key, filter }),
                skew: even.skew,
                least: even.least,
                own: u32::from(even.is_vacant || problem.is_member(kind, group)),
            });
        }
        for near in &rules.near {
            let group = near.group;
            let tallies = near.keys.iter();
            let tallies =
                tallies.map(|key| self.tally(DomainCounter::Members { group, key: *key }));
            checks.push(TopologyCheck::Near {
                tallies: tallies.collect(),
                own: problem.is_member(kind, group),
                beside: problem.is_beside(kind, group),
            });
        }
        checks
    }

    fn filter(&mut self, kind: usize, even: &SpreadConstraint, keys: &[usize]) -> usize {
        let wants = self.problem.kinds[kind].bare;
        let choosy = |own: &crate::model::requirement::Requirements| !own.is_empty();
        let choosy = self.problem.wants[wants].alternatives.iter().all(choosy);
        let filter = NodeFilter {
            labels: (even.affinity && choosy).then_some(wants),
            taints: even.taints.then_some(wants),
            keys: keys.to_vec(),
        };
        let next = self.filters.len();
        *self.filters.entry(filter).or_insert(next)
    }
}
