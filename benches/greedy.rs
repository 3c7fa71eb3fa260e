//! Karpenter's greedy algorithm, for pods that request only resources.
//!
//! Pods are sorted by CPU, then memory, largest first. Each pod is added to the open claim with the
//! fewest pods on which at least one type still fits. A claim keeps all types that fit. If no open
//! claim fits, a claim is opened in the first pool that has a fitting type. Each claim becomes its
//! cheapest remaining type. Source: spec/scheduling.md §2.3, §2.4.

use std::collections::BTreeSet;

use outrigger::model::pod::Pod;
use outrigger::state::snapshot::Snapshot;

use crate::supply::{Demand, Market};

/// Result of the greedy algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Greedy {
    /// Total price of its nodes, in $/h.
    pub usd_per_h: f64,
    /// Number of its nodes.
    pub nodes: usize,
    /// Number of pods that fit no type.
    pub unplaced: usize,
}

/// Runs the greedy algorithm for these pods in an empty cluster with the pools of the snapshot.
pub fn greedy<'a>(snapshot: &Snapshot<'_>, pods: impl IntoIterator<Item = &'a Pod>) -> Greedy {
    greedy_of(&Market::new(snapshot, pods))
}

/// An open claim: the total requests of its pods, and the types that fit them.
struct Open {
    sum: Vec<i64>,
    types: Vec<usize>,
}

/// Runs the greedy algorithm for a market.
pub fn greedy_of(market: &Market) -> Greedy {
    let place = |name: &str| market.resources.iter().position(|own| own == name);
    let (cpu, memory) = (place("cpu"), place("memory"));
    let amount = |demand: &Demand, at: Option<usize>| at.map_or(0, |at| demand.asks[at]);
    let mut demands: Vec<&Demand> = market.demands.iter().collect();
    demands.sort_by_key(|demand| std::cmp::Reverse((amount(demand, cpu), amount(demand, memory))));
    let mut open: Vec<Open> = Vec::new();
    // Claims by number of pods, then by age.
    let mut order: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut plan = Greedy::default();
    for demand in demands {
        for _ in 0..demand.count {
            let taker = order.iter().find(|(_, at)| open[*at].takes(market, demand)).copied();
            if let Some((pods, at)) = taker {
                open[at].take(market, demand);
                order.remove(&(pods, at));
                order.insert((pods + 1, at));
            } else if let Some(claim) = Open::new(market, demand) {
                order.insert((1, open.len()));
                open.push(claim);
            } else {
                plan.unplaced += 1;
            }
        }
    }
    for claim in &open {
        let prices = claim.types.iter().map(|at| market.supplies[*at].usd_per_h);
        plan.usd_per_h += prices.fold(f64::INFINITY, f64::min);
    }
    plan.nodes = open.len();
    plan
}

fn fit(sum: &[i64], more: &[i64], net: &[i64]) -> bool {
    sum.iter().zip(more).zip(net).all(|((sum, more), net)| sum + more <= *net)
}

impl Open {
    /// Opens a claim for one pod in the first pool that has a type for it.
    fn new(market: &Market, demand: &Demand) -> Option<Self> {
        let fits = |at: &usize| demand.fits(&market.supplies[*at]);
        let all: Vec<usize> = (0..market.supplies.len()).filter(fits).collect();
        let pool = &market.supplies[*all.first()?].pool;
        let of_pool = |at: &usize| market.supplies[*at].pool == *pool;
        Some(Self { sum: demand.asks.clone(), types: all.into_iter().filter(of_pool).collect() })
    }

    fn takes(&self, market: &Market, demand: &Demand) -> bool {
        let fits = |at: &usize| fit(&self.sum, &demand.asks, &market.supplies[*at].net);
        // Later types are usually larger.
        self.types.iter().rev().any(fits)
    }

    fn take(&mut self, market: &Market, demand: &Demand) {
        let sum = &self.sum;
        self.types.retain(|at| fit(sum, &demand.asks, &market.supplies[*at].net));
        for (own, more) in self.sum.iter_mut().zip(&demand.asks) {
            *own += more;
        }
    }
}
