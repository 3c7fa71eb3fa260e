//! Which pods go to which cell, where their place matters: evenly, together or apart.
//! It must not know what a cell sells, only who can be there at all, and at what price.

use crate::scheduling::topology::topology_state::TopologyState;
use crate::scheduling::topology::{DomainCounter, TopologyCheck};

/// So many pods of a class in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DomainAllocation {
    pub(crate) class: usize,
    pub(crate) cell: usize,
    pub(crate) pods: u64,
}

/// A class whose place matters.
pub(crate) struct DomainDemand {
    /// The class.
    pub(crate) class: usize,
    /// Its kind.
    pub(crate) kind: usize,
    /// How many of its pods wait.
    pub(crate) pods: u64,
    /// The cells that have a node for such a pod, with the price of the cheapest and with how many
    /// cells are in the same places: the fewer, the less there is to choose from later.
    pub(crate) cells: Vec<(usize, f64, usize)>,
    /// For each of these cells, what the daemons of one more node there count in which tally; empty
    /// where not each pod gets a node of its own.
    pub(crate) crews: Vec<Vec<(usize, u32)>>,
}

/// Steps of one distribution, each a cell looked at for one pod.
const STEPS_MAX: u64 = 50_000_000;

/// Deals pods out to cells, pod by pod in the order given, until no further pod has a place: in
/// the order of what is returned every step is allowed. `site_of` are the sites of the cells on the
/// board, which is changed.
pub(crate) fn distribute(
    asked: &[DomainDemand],
    board: &mut TopologyState<'_>,
    site_of: &[usize],
) -> Vec<DomainAllocation> {
    let mut shares: Vec<DomainAllocation> = Vec::new();
    let mut left: Vec<u64> = asked.iter().map(|own| own.pods).collect();
    let mut steps = 0;
    // Those who must be near others wait until the others have a place.
    loop {
        let mut moved = false;
        for (own, left) in asked.iter().zip(&mut left) {
            while *left > 0 && steps < STEPS_MAX {
                steps += own.cells.len() as u64;
                let Some(at) = best(own, board, site_of) else {
                    break;
                };
                // Pods that nothing holds apart need not be looked at one by one.
                let many = if is_steady(board, own.kind) { *left } else { 1 };
                let pods = u32::try_from(many).unwrap_or(u32::MAX);
                let cell = own.cells[at].0;
                // There will be a node.
                board.open(site_of[cell]);
                board.bind(own.kind, site_of[cell], pods);
                for (tally, each) in own.crews.get(at).into_iter().flatten() {
                    board.count(*tally, site_of[cell], each.saturating_mul(pods));
                }
                *left -= u64::from(pods);
                moved = true;
                shares.push(DomainAllocation {
                    class: own.class,
                    cell,
                    pods: u64::from(pods),
                });
            }
        }
        if !moved || left.iter().all(|left| *left == 0) || steps >= STEPS_MAX {
            break;
        }
    }
    shares
}

/// Whether a pod of this kind leaves the choice for the next as it was.
fn is_steady(board: &TopologyState<'_>, kind: usize) -> bool {
    let checks = &board.topology.checks[kind];
    let near = |check: &TopologyCheck| matches!(check, TopologyCheck::Near { .. });
    let spread =
        |tally: &usize| matches!(board.topology.tallies[*tally], DomainCounter::Spread { .. });
    checks.iter().all(near) && !board.topology.adds[kind].iter().any(spread)
}

/// The cell for the next pod: where the fewest are with whom it is spread, then where there is the
/// least choice, then the cheapest.
fn best(own: &DomainDemand, board: &mut TopologyState<'_>, site_of: &[usize]) -> Option<usize> {
    let mut best: Option<((u64, usize, f64), usize)> = None;
    for (at, (cell, price, choice)) in own.cells.iter().enumerate() {
        let site = site_of[*cell];
        // Rules whose places are hosts say nothing of a cell, which has none.
        if !allows(board, own.kind, site) {
            continue;
        }
        let rank = (crowd(board, own.kind, site), *choice, *price);
        let less = |(least, _): &((u64, usize, f64), usize)| {
            let by_price = rank.2.total_cmp(&least.2);
            (rank.0, rank.1)
                .cmp(&(least.0, least.1))
                .then(by_price)
                .is_lt()
        };
        if best.as_ref().is_none_or(less) {
            best = Some((rank, at));
        }
    }
    best.map(|(_, at)| at)
}

/// Whether every rule holds whose places are not hosts.
fn allows(board: &mut TopologyState<'_>, kind: usize, site: usize) -> bool {
    let topology = board.topology;
    let of_host = |tally: &usize| {
        topology.tallies[*tally].key() == crate::scheduling::problem::pod_constraints::HOST
    };
    topology.checks[kind].iter().all(|check| match check {
        TopologyCheck::Free { tally } | TopologyCheck::Even { tally, .. } if of_host(tally) => true,
        TopologyCheck::Near { beside: true, .. } => true,
        TopologyCheck::Near { tallies, own, .. } => {
            let rest: Vec<usize> = tallies.iter().copied().filter(|it| !of_host(it)).collect();
            let check = TopologyCheck::Near {
                tallies: rest,
                own: *own,
                beside: false,
            };
            board.holds(&check, site)
        }
        check => board.holds(check, site),
    })
}

/// How many there are in the place with whom the pod is spread, or who are spread with it.
fn crowd(board: &TopologyState<'_>, kind: usize, site: usize) -> u64 {
    let topology = board.topology;
    let mut crowd = 0;
    for check in &topology.checks[kind] {
        if let TopologyCheck::Even { tally, .. } = check {
            crowd += u64::from(board.there(*tally, site));
        }
    }
    for tally in &topology.adds[kind] {
        if let DomainCounter::Spread { .. } = topology.tallies[*tally] {
            crowd += u64::from(board.there(*tally, site));
        }
    }
    crowd
}
