//! Schema tables of `overlay` blocks.
//! They must not depend on the code that reads them.

use super::pool::OPERATORS;
use super::{BLOCK, CLUSTERS, argument};
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

pub(super) static OVERLAY: BlockType = BlockType {
    name: "overlay",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "Overrides prices and capacity of instance types in plans. Actual costs do not change.",
    arguments: &[
        CLUSTERS,
        argument("weight", ArgumentType::Whole(0, 10_000)).default_value("0").about(
            "If several overlays set the same value, the highest weight wins. With equal \
                 weights, the last by name wins.",
        ),
        argument("price", ArgumentType::Number(0, 10_000))
            .about("Price of the offerings, in US dollars per hour."),
        argument("price_adjustment", ArgumentType::PriceAdjustment).about(
            "Change of the price, in US dollars per hour or in percent, in place of `price`. The \
             result is never below zero.",
        ),
        argument("capacity", ArgumentType::Quantities).default_value("{}").about(
            "Capacity of the instance types, by resource: any except `cpu`, `memory`, \
                 `ephemeral-storage` and `pods`.",
        ),
    ],
    blocks: &[&REQUIRE],
    ..BLOCK
};

static REQUIRE: BlockType = BlockType {
    name: "require",
    label: Some("KEY"),
    repeat: Occurrence::PerLabel,
    about: "Selects instance types and offerings by one of their labels, or by a label of the \
            pool. All blocks must match. `karpenter.sh/nodepool` selects the offerings of a pool. \
            A label that neither the instance type nor the pool defines counts as missing.",
    arguments: OPERATORS,
    ..BLOCK
};
