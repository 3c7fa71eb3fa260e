//! What EC2 has left of each offering, and which it gives where several would do.
//! It must not know who asks.

use std::collections::BTreeMap;

use crate::model::instance::{OfferingKey, Price};

/// Depth of an offering that is never short, and the most that depth counts for: beyond this many
/// instances EC2 is as unlikely to take one back as with any more.
const DEEP: u32 = 10;

/// How many more instances of each offering there are.
#[derive(Clone, Debug, Default)]
pub struct CapacityPools {
    left: BTreeMap<OfferingKey, u32>,
    /// How many were launched since the number left was last set.
    lent: BTreeMap<OfferingKey, u32>,
}

impl CapacityPools {
    /// A stock where only these are limited.
    pub fn new(left: BTreeMap<OfferingKey, u32>) -> Self {
        Self {
            left,
            lent: BTreeMap::new(),
        }
    }

    /// How many are left; none means it is never short.
    pub fn left(&self, key: &OfferingKey) -> Option<u32> {
        self.left.get(key).copied()
    }

    /// Sets how many are left.
    pub fn set(&mut self, key: OfferingKey, left: Option<u32>) {
        self.lent.remove(&key);
        match left {
            Some(left) => {
                self.left.insert(key, left);
            }
            None => {
                self.left.remove(&key);
            }
        }
    }

    /// One is launched.
    pub fn take(&mut self, key: &OfferingKey) {
        if let Some(left) = self.left.get_mut(key) {
            *left = left.saturating_sub(1);
            *self.lent.entry(key.clone()).or_insert(0) += 1;
        }
    }

    /// One has ended. Only what was launched since the number was set comes back to it.
    pub fn give_back(&mut self, key: &OfferingKey) {
        let (Some(left), Some(lent)) = (self.left.get_mut(key), self.lent.get_mut(key)) else {
            return;
        };
        if *lent > 0 {
            *lent -= 1;
            *left = left.saturating_add(1);
        }
    }

    /// The best of price and depth: the cheapest of those at least half as deep as the deepest.
    pub fn price_capacity_optimized(&self, sold: &[(OfferingKey, Price)]) -> Option<OfferingKey> {
        let depth = |key: &OfferingKey| self.left(key).unwrap_or(DEEP).min(DEEP);
        let deepest = sold.iter().map(|(key, _)| depth(key)).max()?;
        let deep: Vec<(OfferingKey, Price)> = sold
            .iter()
            .filter(|(key, _)| depth(key) * 2 >= deepest)
            .cloned()
            .collect();
        lowest_price(&deep)
    }
}

/// The cheapest; of several the first by key.
pub fn lowest_price(sold: &[(OfferingKey, Price)]) -> Option<OfferingKey> {
    sold.iter()
        .min_by_key(|(key, price)| (*price, key))
        .map(|(key, _)| key.clone())
}
