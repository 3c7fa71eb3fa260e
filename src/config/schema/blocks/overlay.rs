//! The tables of `overlay` blocks.
//! They must not know how they are read.

use super::pool::OPERATORS;
use super::{BLOCK, CLUSTERS, argument};
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

pub(super) static OVERLAY: BlockType = BlockType {
    name: "overlay",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "What is known better of prices, and of what instance types have, than the provider \
            says it. It counts where nodes are planned; what is paid stays as it is.",
    arguments: &[
        CLUSTERS,
        argument(
            "weight",
            ArgumentType::Whole(0, 10_000),
            "0",
            "Of two that speak of the same thing the heavier is believed; of one weight, the last \
             by name.",
        ),
        argument(
            "price",
            ArgumentType::Number(0, 10_000),
            "",
            "Price of its offerings, in US dollars per hour.",
        ),
        argument(
            "price_adjustment",
            ArgumentType::PriceAdjustment,
            "",
            "What is added to the price, in US dollars per hour or per cent, in place of `price`. \
             It does not fall below nothing.",
        ),
        argument(
            "capacity",
            ArgumentType::Quantities,
            "{}",
            "What its types have, by resource: any but `cpu`, `memory`, `ephemeral-storage` and \
             `pods`.",
        ),
    ],
    blocks: &[&REQUIRE],
    ..BLOCK
};

static REQUIRE: BlockType = BlockType {
    name: "require",
    label: Some("KEY"),
    repeat: Occurrence::PerLabel,
    about: "Which instance types and offerings it is about, by one label of theirs or of a pool; \
            all of them must hold. With `karpenter.sh/nodepool` it is about what a pool is \
            offered. A label that neither the type nor the pool defines is one that nothing has.",
    arguments: OPERATORS,
    ..BLOCK
};
