//! What pods ask of the host they share, as counters: host ports, and rules whose places are hosts.
//! It must not know which host it is; a host that is still to be made has nothing on it yet.

use std::collections::BTreeMap;

use crate::solve::agents::Port;
use crate::solve::board::Board;
use crate::solve::problem::{Problem, meet};
use crate::solve::rules::HOST;
use crate::solve::topology::{Check, Tally, Topology};

/// What a kind of pods asks of a new host and adds to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shares {
    /// A counter and what it may be at most when a pod is added.
    pub(super) limits: Vec<(usize, u32)>,
    /// Counters that a pod raises by one.
    pub(super) adds: Vec<usize>,
    /// Counters of which a pod needs at least one on the host, or has to be the first anywhere.
    pub(super) needs: Vec<(usize, bool)>,
}

impl Shares {
    /// Whether pods do not care what else is on the host, nor anyone for them.
    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.adds.is_empty() && self.needs.is_empty()
    }

    /// How many pods more a host of these counts takes, up to `most`.
    pub(super) fn room(&self, counts: &[u32], most: u64) -> u64 {
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
    pub(super) fn begins(&self) -> bool {
        !self.needs.is_empty() && self.needs.iter().all(|(_, first)| *first)
    }

    /// Whether whom pods need is on a host of these counts.
    pub(super) fn is_met(&self, counts: &[u32]) -> bool {
        self.needs.iter().all(|(counter, _)| counts[*counter] > 0)
    }

    /// Counts pods that were added.
    pub(super) fn add(&self, counts: &mut [u32], pods: u64) {
        for counter in &self.adds {
            let pods = u32::try_from(pods).unwrap_or(u32::MAX);
            counts[*counter] = counts[*counter].saturating_add(pods);
        }
    }
}

/// The shares of all kinds.
#[derive(Debug)]
pub(super) struct Hosts {
    /// What the pods of a kind ask of a new host, by kind.
    pub(super) shares: Vec<Shares>,
    /// The same for pods of which every host gets an equal part: there the emptiest has as many.
    pub(super) level: Vec<Shares>,
    /// How many counters there are.
    pub(super) counters: usize,
}

impl Hosts {
    /// The counters of a problem. What is bound already says where affinity has begun. So many
    /// daemons of a new host count in each tally, where the emptiest host has none.
    pub(super) fn new(
        problem: &Problem<'_>,
        topology: &Topology,
        board: &Board<'_>,
        crew: &[u32],
    ) -> Self {
        let mut counters: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, tally) in topology.tallies.iter().enumerate() {
            if tally.key() == HOST {
                let next = counters.len();
                counters.insert(at, next);
            }
        }
        let skews = skews(topology);
        let shares = |kind: usize| {
            let mut own = Shares::default();
            // Those whose place matters are bound among those who are spread.
            let early = topology.is_early(kind) || topology.is_pinned(kind);
            for check in &topology.checks[kind] {
                own.take_up(check, &counters, (board, crew));
            }
            for tally in &topology.adds[kind] {
                let spread = matches!(topology.tallies[*tally], Tally::Spread { .. });
                if let Some(counter) = counters.get(tally).filter(|_| early || !spread) {
                    own.adds.push(*counter);
                    // Early pods may be bound in any order: none may be in the way of another.
                    if let Some(skew) = skews.get(tally) {
                        let most = skew.saturating_sub(1).saturating_sub(crew[*tally]);
                        own.limits.push((*counter, most));
                    }
                }
            }
            own
        };
        let mut shares: Vec<Shares> = (0..problem.kinds.len()).map(shares).collect();
        let level = |kind: usize| {
            let tally = topology.spread_alone(kind).map(|(tally, ..)| tally);
            Shares {
                adds: tally.iter().map(|own| counters[own]).collect(),
                ..Shares::default()
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
        }
    }
}

impl Shares {
    fn take_up(
        &mut self,
        check: &Check,
        counters: &BTreeMap<usize, usize>,
        (board, crew): (&Board<'_>, &[u32]),
    ) {
        match check {
            Check::Free { tally } => {
                self.limits.extend(counters.get(tally).map(|own| (*own, 0)));
            }
            Check::Even {
                tally, skew, own, ..
            } => {
                // A new host is one without such pods, so the emptiest has none.
                let most = skew.saturating_sub(*own).saturating_sub(crew[*tally]);
                self.limits
                    .extend(counters.get(tally).map(|own| (*own, most)));
            }
            // Whom it has to be near is there before any pod.
            Check::Near { beside: true, .. } => {}
            Check::Near { tallies, own, .. } => {
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
        if let Check::Even { tally, skew, .. } = check {
            let own = skews.entry(*tally).or_insert(*skew);
            *own = (*own).min(*skew);
        }
    }
    skews
}

fn number_ports<'p>(problem: &'p Problem<'_>, first: usize) -> BTreeMap<&'p Port, usize> {
    let mut ports = BTreeMap::new();
    for port in problem.wants.iter().flat_map(|wants| wants.ports) {
        let next = first + ports.len();
        ports.entry(port).or_insert(next);
    }
    ports
}
