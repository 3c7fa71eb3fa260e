//! The plan of the rival's method, for pods that ask for nothing but resources.
//! It must not know of zones, spread, affinity, limits or nodes that are there.
//!
//! Pods by cpu, then memory, the largest first. Each goes to the open claim with the fewest pods
//! of those on which some type still fits everything, and a claim keeps all types that fit; else a
//! claim is opened, of the first pool that has a fitting type. A claim becomes the cheapest of the
//! types that it kept. Source: spec/scheduling.md §2.3, §2.4.

use std::collections::BTreeSet;

use outrigger::model::pod::Pod;
use outrigger::state::snapshot::Snapshot;

use crate::supply::{Demand, Market};

/// What the greedy buys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Greedy {
    /// What its nodes cost, in $/h.
    pub usd_per_h: f64,
    /// How many nodes they are.
    pub nodes: usize,
    /// Pods that fit no type at all.
    pub unplaced: usize,
}

/// The greedy's plan for these pods, in an empty cluster of the snapshot's pools.
pub fn greedy<'a>(snapshot: &Snapshot<'_>, pods: impl IntoIterator<Item = &'a Pod>) -> Greedy {
    greedy_of(&Market::new(snapshot, pods))
}

/// A claim: what its pods ask for together, and the types on which that fits.
struct Open {
    sum: Vec<i64>,
    types: Vec<usize>,
}

/// The greedy's plan for a market.
pub fn greedy_of(market: &Market) -> Greedy {
    let place = |name: &str| market.resources.iter().position(|own| own == name);
    let (cpu, memory) = (place("cpu"), place("memory"));
    let amount = |demand: &Demand, at: Option<usize>| at.map_or(0, |at| demand.asks[at]);
    let mut demands: Vec<&Demand> = market.demands.iter().collect();
    demands.sort_by_key(|demand| std::cmp::Reverse((amount(demand, cpu), amount(demand, memory))));
    let mut open: Vec<Open> = Vec::new();
    // Claims by how many pods they have, then by age.
    let mut order: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut plan = Greedy::default();
    for demand in demands {
        for _ in 0..demand.count {
            let taker = order
                .iter()
                .find(|(_, at)| open[*at].takes(market, demand))
                .copied();
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
    sum.iter()
        .zip(more)
        .zip(net)
        .all(|((sum, more), net)| sum + more <= *net)
}

impl Open {
    /// A claim for one pod, of the first pool that has a type for it.
    fn new(market: &Market, demand: &Demand) -> Option<Self> {
        let fits = |at: &usize| demand.fits(&market.supplies[*at]);
        let all: Vec<usize> = (0..market.supplies.len()).filter(fits).collect();
        let pool = &market.supplies[*all.first()?].pool;
        let of_pool = |at: &usize| market.supplies[*at].pool == *pool;
        Some(Self {
            sum: demand.asks.clone(),
            types: all.into_iter().filter(of_pool).collect(),
        })
    }

    fn takes(&self, market: &Market, demand: &Demand) -> bool {
        let fits = |at: &usize| fit(&self.sum, &demand.asks, &market.supplies[*at].net);
        // The later ones are the larger ones, more often than not.
        self.types.iter().rev().any(fits)
    }

    fn take(&mut self, market: &Market, demand: &Demand) {
        let sum = &self.sum;
        self.types
            .retain(|at| fit(sum, &demand.asks, &market.supplies[*at].net));
        for (own, more) in self.sum.iter_mut().zip(&demand.asks) {
            *own += more;
        }
    }
}
