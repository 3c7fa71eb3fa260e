//! Distributes pods with topology rules over domains: evenly, together or apart.

use crate::scheduling::index::{
    CounterIndex, DomainIndex, DomainLocations, KindIndex, LocationIndex, PodClassIndex,
};
use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::topology::topology_state::TopologyState;
use crate::scheduling::topology::{DomainCounter, TopologyCheck};

/// A number of pods of a class in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DomainAllocation {
    pub(crate) class: PodClassIndex,
    pub(crate) cell: DomainIndex,
    pub(crate) pods: u64,
}

/// A class of pods that needs a domain.
pub(crate) struct DomainDemand {
    /// The class.
    pub(crate) class: PodClassIndex,
    /// The kind of its pods.
    pub(crate) kind: KindIndex,
    /// Number of its pending pods.
    pub(crate) pods: u64,
    /// Each domain with supply for such a pod, the lowest price there, and the number of
    /// combinations that have a domain in common with it. A smaller number means less choice later.
    pub(crate) cells: Vec<(DomainIndex, f64, usize)>,
    /// DaemonSet pods of one more node in each domain, by counter. Empty unless each pod needs its
    /// own node.
    pub(crate) daemon_overheads: Vec<Vec<(CounterIndex, u32)>>,
}

/// Step limit of the distribution. One step evaluates a domain for one pod.
const STEPS_MAX: u64 = 50_000_000;

/// Distributes pods over domains, one by one in the given order, until no more pods can be placed.
/// Every step of the result is valid in order. `site_of` contains the location of each domain in
/// the topology state, which is modified.
pub(crate) fn distribute(
    demands: &[DomainDemand],
    board: &mut TopologyState<'_>,
    site_of: &DomainLocations,
) -> Vec<DomainAllocation> {
    let mut shares: Vec<DomainAllocation> = Vec::new();
    let mut left: Vec<u64> = demands.iter().map(|demand| demand.pods).collect();
    let mut steps = 0;
    // Pods with required affinity wait until the other pods are placed.
    loop {
        let mut moved = false;
        for (demand, left) in demands.iter().zip(&mut left) {
            let kind = demand.kind;
            while *left > 0 && steps < STEPS_MAX {
                steps += demand.cells.len() as u64;
                let Some(at) = best_domain(demand, board, site_of) else {
                    break;
                };
                // Pods without constraints between them need not be placed one by one.
                let count = if is_steady(board, kind) { *left } else { 1 };
                let pods = u32::try_from(count).unwrap_or(u32::MAX);
                let cell = demand.cells[at].0;
                // A node will be launched in this domain.
                board.open_domains(site_of[cell]);
                board.bind_pods(kind, site_of[cell], pods);
                for (tally, each) in demand.daemon_overheads.get(at).into_iter().flatten() {
                    board.count_pods(*tally, site_of[cell], each.saturating_mul(pods), true);
                }
                *left -= u64::from(pods);
                moved = true;
                shares.push(DomainAllocation { class: demand.class, cell, pods: u64::from(pods) });
            }
        }
        if !moved || left.iter().all(|left| *left == 0) || steps >= STEPS_MAX {
            break;
        }
    }
    shares
}

/// Returns whether placing a pod of this kind has no effect on the domain of the next pod.
fn is_steady(board: &TopologyState<'_>, kind: KindIndex) -> bool {
    let topology = board.topology;
    let (mut checks, mut adds) = (topology.checks[kind].iter(), topology.adds[kind].iter());
    checks.all(|check| matches!(check, TopologyCheck::Near { .. }))
        && !adds.any(|tally| matches!(topology.tallies[*tally], DomainCounter::Spread { .. }))
}

/// Returns the domain for the next pod: the one with the fewest pods of the same topology spread,
/// then the one that the fewest other pods could use, then the cheapest.
fn best_domain(
    demand: &DomainDemand,
    board: &mut TopologyState<'_>,
    site_of: &DomainLocations,
) -> Option<usize> {
    let mut best: Option<((u64, usize, f64), usize)> = None;
    for (at, (cell, price, choice)) in demand.cells.iter().enumerate() {
        let site = site_of[*cell];
        // Rules by host name do not apply to a domain without nodes.
        if !allows_in_domain(board, demand.kind, site) {
            continue;
        }
        let rank = (spread_count(board, demand.kind, site), *choice, *price);
        if best.as_ref().is_none_or(|(least, _)| {
            let order = (rank.0, rank.1).cmp(&(least.0, least.1));
            order.then(rank.2.total_cmp(&least.2)).is_lt()
        }) {
            best = Some((rank, at));
        }
    }
    best.map(|(_, at)| at)
}

/// Returns whether every rule holds whose topology key is not the host name.
fn allows_in_domain(board: &mut TopologyState<'_>, kind: KindIndex, site: LocationIndex) -> bool {
    let topology = board.topology;
    topology.checks[kind].iter().all(|check| match check {
        TopologyCheck::Free { tally } | TopologyCheck::Even { tally, .. }
            if topology.key_of(*tally) == HOST =>
        {
            true
        }
        TopologyCheck::Near { beside: true, .. } => true,
        TopologyCheck::Near { tallies, first, .. } => {
            let tallies = tallies.iter().copied();
            let check = TopologyCheck::Near {
                tallies: tallies.filter(|tally| topology.key_of(*tally) != HOST).collect(),
                first: *first,
                beside: false,
            };
            board.holds(&check, site)
        }
        check => board.holds(check, site),
    })
}

/// Returns the number of pods in the domain that have a topology spread in common with the pod.
fn spread_count(board: &TopologyState<'_>, kind: KindIndex, site: LocationIndex) -> u64 {
    let topology = board.topology;
    let is_spread =
        |tally: &&CounterIndex| matches!(topology.tallies[**tally], DomainCounter::Spread { .. });
    let added = topology.adds[kind].iter().filter(is_spread);
    let counts = topology.spread_tallies(kind).chain(added);
    counts.map(|tally| u64::from(board.max_count_at(*tally, site))).sum()
}
