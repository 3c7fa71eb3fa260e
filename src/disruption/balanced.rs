//! The `balanced` consolidation policy: compares the savings of a consolidation with the disruption
//! it causes.
//!
//! For each pool, the saved fraction of its cost is compared with the fraction of its disruption
//! cost that the consolidation causes. Source: spec/disruption.md §2.

use std::collections::BTreeMap;

use crate::model::id::PoolName;
use crate::model::pool::Consolidation;
use crate::state::candidates::{Candidate, DisruptionView};

/// Highest ratio of the disruption fraction to the cost fraction. With this value, a replacement of
/// all nodes that halves their cost is just approved.
const DISRUPTION_MAX: f64 = 2.0;

/// Relative rounding error of price sums.
const ROUNDING: f64 = 1e-9;

/// Cost and disruption cost of the nodes of each pool with the `balanced` policy.
#[derive(Clone, Debug, Default)]
pub struct Balance<'a> {
    totals: BTreeMap<&'a PoolName, Sums>,
}

/// Price in $/h, and disruption cost.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    price: f64,
    disruption: f64,
}

impl Sums {
    fn add_candidate(&mut self, candidate: &Candidate<'_>) {
        self.price += candidate.price.map_or(0.0, |price| price.usd_per_h());
        self.disruption += candidate.cost;
    }
}

impl<'a> Balance<'a> {
    /// Sums the candidates of pools with the `balanced` policy.
    pub fn new(disruption_view: &'a DisruptionView<'a>) -> Self {
        let pools = disruption_view.cluster.pools.iter();
        let mut totals: BTreeMap<&PoolName, Sums> = pools
            .filter(|pool| pool.disruption.consolidation == Consolidation::Balanced)
            .map(|pool| (&pool.name, Sums::default()))
            .collect();
        for candidate in &disruption_view.candidates {
            if let Some(sums) = totals.get_mut(&candidate.pool) {
                sums.add_candidate(candidate);
            }
        }
        Self { totals }
    }

    /// Returns whether the pool of a node uses the `balanced` policy.
    pub fn is_balanced(&self, candidate: &Candidate<'_>) -> bool {
        self.totals.contains_key(&candidate.pool)
    }

    /// Returns whether the savings of removing these nodes together justify the disruption in each
    /// of their pools. The savings, in $/h, are attributed to pools in proportion to the cost of
    /// their nodes.
    pub fn approves<'b>(
        &self,
        nodes: impl IntoIterator<Item = &'b Candidate<'b>>,
        saved: f64,
    ) -> bool {
        if self.totals.is_empty() {
            return true;
        }
        let mut all = Sums::default();
        let mut parts: BTreeMap<&PoolName, Sums> = BTreeMap::new();
        for node in nodes {
            all.add_candidate(node);
            if self.is_balanced(node) {
                parts.entry(&node.pool).or_default().add_candidate(node);
            }
        }
        parts.iter().all(|(pool, sums)| {
            let total = self.totals.get(pool).copied().unwrap_or_default();
            let saved = share(saved * share(sums.price, all.price), total.price);
            let disruption = share(sums.disruption, total.disruption);
            saved > 0.0 && saved * DISRUPTION_MAX >= disruption * (1.0 - ROUNDING)
        })
    }
}

/// Returns the ratio of a part to the whole, or zero if the whole is not positive.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
