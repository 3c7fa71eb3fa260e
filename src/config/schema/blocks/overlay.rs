//! Schema tables of `overlay` blocks.
//! They must not depend on the code that reads them.

use super::CLUSTERS;
use super::pool::OPERATORS;
use crate::config::schema::ArgumentType;

block_types! {
    /// Overrides prices and capacity of instance types in plans. Actual costs do not change.
    pub(super) static OVERLAY = "overlay" "NAME", PerLabel, arguments! {
        CLUSTERS;
        /// If several overlays set the same value, the highest weight wins. With equal weights, the
        /// last by name wins.
        weight: ArgumentType::Whole(0, 10_000) => 0;
        /// Price of the offerings, in US dollars per hour.
        price: ArgumentType::Number(0, 10_000);
        /// Change of the price, in US dollars per hour or in percent, in place of `price`. The
        /// result is never below zero.
        price_adjustment: ArgumentType::PriceAdjustment;
        /// Capacity of the instance types, by resource: any except `cpu`, `memory`,
        /// `ephemeral-storage` and `pods`.
        capacity: ArgumentType::Quantities => {};
    }, [&REQUIRE];

    /// Selects instance types and offerings by one of their labels, or by a label of the pool. All
    /// blocks must match. `karpenter.sh/nodepool` selects the offerings of a pool. A label that
    /// neither the instance type nor the pool defines counts as missing.
    static REQUIRE = "require" "KEY", PerLabel, OPERATORS;
}
