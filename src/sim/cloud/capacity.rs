//! Remaining capacity of each offering, and the selection among several offerings.

use std::collections::BTreeMap;

use crate::model::instance::{OfferingKey, Price};

/// Depth of an offering without a limit, which is also the maximum depth that is compared. A larger
/// depth does not make an interruption less likely.
const DEEP: u32 = 10;

/// Remaining instances of each offering.
#[derive(Clone, Debug, Default)]
pub struct CapacityPools {
    left: BTreeMap<OfferingKey, u32>,
    /// Number of launches since the remaining capacity was last set.
    lent: BTreeMap<OfferingKey, u32>,
}

impl CapacityPools {
    /// Creates pools with these limits. All other offerings have no limit.
    pub fn new(left: BTreeMap<OfferingKey, u32>) -> Self {
        Self { left, lent: BTreeMap::new() }
    }

    /// Remaining instances. `None` means no limit.
    pub fn left_of(&self, key: &OfferingKey) -> Option<u32> {
        self.left.get(key).copied()
    }

    /// Sets the remaining instances.
    pub fn set_left(&mut self, key: OfferingKey, left: Option<u32>) {
        self.lent.remove(&key);
        match left {
            Some(left) => self.left.insert(key, left),
            None => self.left.remove(&key),
        };
    }

    /// An instance was launched.
    pub fn record_launch(&mut self, key: &OfferingKey) {
        if let Some(left) = self.left.get_mut(key) {
            *left = left.saturating_sub(1);
            *self.lent.entry(key.clone()).or_insert(0) += 1;
        }
    }

    /// An instance has ended. Only instances launched since the last change of the limit are added
    /// to the remaining capacity again.
    pub fn record_end(&mut self, key: &OfferingKey) {
        let (Some(left), Some(lent)) = (self.left.get_mut(key), self.lent.get_mut(key)) else {
            return;
        };
        if *lent > 0 {
            *lent -= 1;
            *left = left.saturating_add(1);
        }
    }

    /// Returns the cheapest of the offerings that are at least half as deep as the deepest.
    pub fn price_capacity_optimized(&self, offers: &[(OfferingKey, Price)]) -> Option<OfferingKey> {
        let deepest = offers.iter().map(|(key, _)| self.depth_of(key)).max()?;
        let mut deep = offers.to_vec();
        deep.retain(|(key, _)| self.depth_of(key) * 2 >= deepest);
        lowest_price(&deep)
    }

    /// Remaining instances, up to the maximum depth that is compared.
    fn depth_of(&self, key: &OfferingKey) -> u32 {
        self.left_of(key).unwrap_or(DEEP).min(DEEP)
    }
}

/// Returns the cheapest offering. For equal prices, the first by key.
pub fn lowest_price(offers: &[(OfferingKey, Price)]) -> Option<OfferingKey> {
    offers.iter().min_by_key(|(key, price)| (*price, key)).map(|(key, _)| key.clone())
}
