//! Whether what a move saves is worth what it disrupts, for pools that ask for that.
//! It must not know how a move is found.
//!
//! Of each pool the share of its cost that is saved is held against the share of its disruption
//! that it takes. Source: spec/disruption.md §2.

use std::collections::BTreeMap;

use crate::model::id::PoolName;
use crate::model::pool::Consolidation;
use crate::state::candidates::{Candidate, DisruptionView};

/// A move may take so many times the share of disruption that it saves of the cost: then a swap of
/// all nodes for what costs half as much is just worth it.
const DISRUPTION_MAX: f64 = 2.0;

/// Sums of prices are exact but for this share.
const ROUNDING: f64 = 1e-9;

/// What the nodes of each pool cost and disrupt that weighs one against the other.
#[derive(Clone, Debug, Default)]
pub struct Balance<'a> {
    totals: BTreeMap<&'a PoolName, Sums>,
}

/// Price in $/h, and what leaving disrupts.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    price: f64,
    disruption: f64,
}

impl Sums {
    fn add(&mut self, own: &Candidate<'_>) {
        self.price += own.price.map_or(0.0, |price| price.usd_per_h());
        self.disruption += own.cost;
    }
}

impl<'a> Balance<'a> {
    /// What there is to be weighed of these nodes.
    pub fn new(roster: &'a DisruptionView<'a>) -> Self {
        let pools = roster.cluster.pools.iter();
        let pools = pools.filter(|own| own.disruption.consolidation == Consolidation::Balanced);
        let none = |own| (own, Sums::default());
        let mut totals: BTreeMap<&PoolName, Sums> = pools.map(|own| none(&own.name)).collect();
        for own in &roster.candidates {
            if let Some(sums) = totals.get_mut(&own.pool) {
                sums.add(own);
            }
        }
        Self { totals }
    }

    /// Whether a node's pool weighs what it saves against what it disrupts.
    pub fn weighs(&self, own: &Candidate<'_>) -> bool {
        self.totals.contains_key(&own.pool)
    }

    /// Whether it is worth it for each of these pools that nodes leave together to save so much, in
    /// $/h. What is saved is theirs as their nodes cost.
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
        for own in nodes {
            all.add(own);
            if self.weighs(own) {
                parts.entry(&own.pool).or_default().add(own);
            }
        }
        parts.iter().all(|(pool, own)| {
            let total = self.totals.get(pool).copied().unwrap_or_default();
            let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
            let saved = share(saved * share(own.price, all.price), total.price);
            let disruption = share(own.disruption, total.disruption);
            saved > 0.0 && saved * DISRUPTION_MAX >= disruption * (1.0 - ROUNDING)
        })
    }
}
