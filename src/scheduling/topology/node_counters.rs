//! What pods ask of the host they share, as counters: host ports, and rules whose places are hosts.
//! It must not know which host it is; a host that is still to be made has nothing on it yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::problem::daemon_constraints::HostPort;
use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::problem::{Problem, meet};
use crate::scheduling::topology::topology_state::TopologyState;
use crate::scheduling::topology::{DomainCounter, Topology, TopologyCheck};

/// What a kind of pods asks of a new host and adds to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeConstraints {
    /// A counter and what it may be at most when a pod is added.
    pub(crate) limits: Vec<(usize, u32)>,
    /// Counters that a pod raises by one.
    pub(crate) adds: Vec<usize>,
    /// Counters of which a pod needs at least one on the host, or has to be the first anywhere.
    pub(crate) needs: Vec<(usize, bool)>,
}

impl NodeConstraints {
    /// Whether pods do not care what else is on the host, nor anyone for them.
    pub(crate) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.adds.is_empty() && self.needs.is_empty()
    }

    /// How many pods more a host of these counts takes, up to `most`.
    pub(crate) fn room(&self, counts: &[u32], most: u64) -> u64 {
        let mut room = most;
        for (counter, max) in &self.limits {
            let count = counts[*counter];
            if count > *max {
                return 0;
            }
            if self.adds.contains(counter) {
                room = room.min(u64::from(max - count) + 1);
            }
        }
        let unmet = |(counter, first): &(usize, bool)| counts[*counter] == 0 && !first;
        if self.needs.iter().any(unmet) {
            0
        } else {
            room
        }
    }

    /// Whether pods need others of their own kind on the host, of whom there are none anywhere.
    pub(crate) fn begins(&self) -> bool {
        !self.needs.is_empty() && self.needs.iter().all(|(_, first)| *first)
    }

    /// Whether whom pods need is on a host of these counts.
    pub(crate) fn is_met(&self, counts: &[u32]) -> bool {
        self.needs.iter().all(|(counter, _)| counts[*counter] > 0)
    }

    /// Counts pods that were added.
    pub(crate) fn add(&self, counts: &mut [u32], pods: u64) {
        for counter in &self.adds {
            let pods = u32::try_from(pods).unwrap_or(u32::MAX);
            counts[*counter] = counts[*counter].saturating_add(pods);
        }
    }
}

/// For each pool and type, how many daemons of its hosts count in which tally.
pub(crate) type DaemonCounts = Vec<Vec<BTreeMap<usize, u32>>>;

/// Types that have room for one pod at least beside their daemons, pool by pool.
type FeasibleTypes = Vec<Vec<bool>>;

/// The shares of all kinds.
#[derive(Debug)]
pub(crate) struct NodeConstraintTable {
    /// What the pods of a kind ask of a new host, by kind.
    pub(crate) shares: Vec<NodeConstraints>,
    /// The same for pods of which every host gets an equal part: there the emptiest has as many.
    pub(crate) level: Vec<NodeConstraints>,
    /// How many counters there are.
    pub(crate) counters: usize,
    /// The types that pods of a kind may be spread over, by kind; none where all will do.
    roomy: Vec<Option<FeasibleTypes>>,
}

/// Daemons of new hosts where the emptiest host has fewer.
struct DaemonSkew<'c> {
    crews: &'c DaemonCounts,
    /// How many there are in the emptiest host, by tally.
    least: BTreeMap<usize, u32>,
}

impl<'c> DaemonSkew<'c> {
    fn new(crews: &'c DaemonCounts, board: &TopologyState<'_>) -> Self {
        let mut board = board.clone();
        let all = || crews.iter().flatten();
        let tallies: BTreeSet<usize> = all().flat_map(BTreeMap::keys).copied().collect();
        let least = |tally: usize| {
            let new = all().map(|own| own.get(&tally).copied().unwrap_or(0));
            let new = new.min().unwrap_or(0);
            match board.extent(tally) {
                (0, _) => (tally, new),
                (_, least) => (tally, new.min(u32::try_from(least).unwrap_or(u32::MAX))),
            }
        };
        let least = tallies.into_iter().map(least).collect();
        Self { crews, least }
    }

    /// By how many a host with these daemons is ahead of the emptiest before it has any pod.
    fn of(&self, crew: &BTreeMap<usize, u32>, tally: usize) -> u32 {
        let least = self.least.get(&tally).copied().unwrap_or(0);
        let own = crew.get(&tally).copied().unwrap_or(0);
        own.saturating_sub(least)
    }

    /// What is left of a lead beside the daemons of any host that has room for a pod.
    fn rest(&self, tally: usize, most: u32) -> u32 {
        let ahead = self.crews.iter().flatten();
        let ahead = ahead.map(|own| self.of(own, tally));
        most - ahead.filter(|own| *own <= most).max().unwrap_or(0)
    }

    /// The types where a host is not too far ahead for any pod.
    fn roomy(&self, checks: &[TopologyCheck]) -> Option<FeasibleTypes> {
        let even = checks.iter().filter_map(|check| match check {
            TopologyCheck::Even {
                tally, skew, own, ..
            } if self.least.contains_key(tally) => Some((*tally, skew.saturating_sub(*own))),
            _ => None,
        });
        let even: Vec<(usize, u32)> = even.collect();
        let fits = |own: &BTreeMap<usize, u32>| {
            even.iter()
                .all(|(tally, most)| self.of(own, *tally) <= *most)
        };
        let of = |own: &Vec<BTreeMap<usize, u32>>| own.iter().map(fits).collect();
        (!even.is_empty()).then(|| self.crews.iter().map(of).collect())
    }
}

impl NodeConstraintTable {
    /// Whether pods of a kind may be spread over hosts of a type.
    pub(crate) fn is_roomy(&self, kind: usize, (shelf, shape): (usize, usize)) -> bool {
        let own = self.roomy[kind].as_ref();
        own.is_none_or(|own| own[shelf][shape])
    }

    /// Whether that has to be asked.
    pub(crate) fn is_choosy(&self, kind: usize) -> bool {
        self.roomy[kind].is_some()
    }

    /// The counters of a problem. What is bound already says where affinity has begun. Daemons
    /// of new hosts count where the emptiest host is taken to have fewer of them.
    pub(crate) fn new(
        problem: &Problem<'_>,
        topology: &Topology,
        board: &TopologyState<'_>,
        crews: &DaemonCounts,
    ) -> Self {
        let ahead = DaemonSkew::new(crews, board);
        let mut counters: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, tally) in topology.tallies.iter().enumerate() {
            if tally.key() == HOST {
                let next = counters.len();
                counters.insert(at, next);
            }
        }
        let skews = skews(topology);
        let shares = |kind: usize| {
            let mut own = NodeConstraints::default();
            // Those whose place matters are bound among those who are spread.
            let early = topology.is_early(kind) || topology.is_pinned(kind);
            for check in &topology.checks[kind] {
                own.take_up(check, &counters, (board, &ahead));
            }
            for tally in &topology.adds[kind] {
                let spread = matches!(topology.tallies[*tally], DomainCounter::Spread { .. });
                if let Some(counter) = counters.get(tally).filter(|_| early || !spread) {
                    own.adds.push(*counter);
                    // Early pods may be bound in any order: none may be in the way of another.
                    if let Some(skew) = skews.get(tally) {
                        let most = ahead.rest(*tally, skew.saturating_sub(1));
                        own.limits.push((*counter, most));
                    }
                }
            }
            own
        };
        let mut shares: Vec<NodeConstraints> = (0..problem.kinds.len()).map(shares).collect();
        let level = |kind: usize| {
            let tally = topology.spread_alone(kind).map(|(tally, ..)| tally);
            NodeConstraints {
                adds: tally.iter().map(|own| counters[own]).collect(),
                ..NodeConstraints::default()
            }
        };
        let level = (0..problem.kinds.len()).map(level).collect();
        let ports = number_ports(problem, counters.len());
        for (kind, own) in shares.iter_mut().enumerate() {
            for port in problem.wants_of(kind).ports {
                own.adds.push(ports[port]);
                let others = ports.iter().filter(|(other, _)| meet(port, other));
                own.limits.extend(others.map(|(_, counter)| (*counter, 0)));
            }
        }
        Self {
            shares,
            level,
            counters: counters.len() + ports.len(),
            roomy: topology.checks.iter().map(|own| ahead.roomy(own)).collect(),
        }
    }
}

impl NodeConstraints {
    fn take_up(
        &mut self,
        check: &TopologyCheck,
        counters: &BTreeMap<usize, usize>,
        (board, ahead): (&TopologyState<'_>, &DaemonSkew<'_>),
    ) {
        match check {
            TopologyCheck::Free { tally } => {
                self.limits.extend(counters.get(tally).map(|own| (*own, 0)));
            }
            TopologyCheck::Even {
                tally, skew, own, ..
            } => {
                // A new host is one without such pods, so the emptiest has none.
                let most = ahead.rest(*tally, skew.saturating_sub(*own));
                self.limits
                    .extend(counters.get(tally).map(|own| (*own, most)));
            }
            // Whom it has to be near is there before any pod.
            TopologyCheck::Near { beside: true, .. } => {}
            TopologyCheck::Near { tallies, own, .. } => {
                let begins = *own && tallies.iter().all(|tally| board.total(*tally) == 0);
                let of_host = tallies.iter().filter_map(|tally| counters.get(tally));
                self.needs.extend(of_host.map(|counter| (*counter, begins)));
            }
        }
    }
}

/// The smallest skew that anyone asks for, by tally.
fn skews(topology: &Topology) -> BTreeMap<usize, u32> {
    let mut skews: BTreeMap<usize, u32> = BTreeMap::new();
    for check in topology.checks.iter().flatten() {
        if let TopologyCheck::Even { tally, skew, .. } = check {
            let own = skews.entry(*tally).or_insert(*skew);
            *own = (*own).min(*skew);
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
