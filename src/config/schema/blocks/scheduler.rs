//! The tables of the `scheduler` block.
//! They must not know how they are read.

use super::{BLOCK, MINUTE, argument, duration, required};
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

/// Kubernetes takes any 32-bit number; a skew or a number of places that large means nothing.
const PLACES_MAX: i64 = 1_000_000;

pub(super) static SCHEDULER: BlockType = BlockType {
    name: "scheduler",
    about: "How pending pods are collected, and how nodes are planned for them.",
    arguments: &[
        argument(
            "batch_idle",
            duration(10, 10 * MINUTE),
            "\"1s\"",
            "A batch closes after this long without another pod, unless kube-scheduler has left a \
             pod without an answer for as long. While instances are being taken back, a batch \
             closes after this long.",
        ),
        argument(
            "batch_max",
            duration(10, 10 * MINUTE),
            "\"10s\"",
            "A batch closes at the latest after this long.",
        ),
        argument(
            "preference_policy",
            ArgumentType::OneOf(&["respect", "ignore"]),
            "\"respect\"",
            "What becomes of what pods would like but need not have: kept where it can be, even \
             if that takes more nodes, or passed over.",
        ),
        argument(
            "min_values_policy",
            ArgumentType::OneOf(&["strict", "best_effort"]),
            "\"strict\"",
            "What becomes of `min_values` where too few values are to be had: no node is made, or \
             as many as there are will do.",
        ),
        argument(
            "node_price",
            ArgumentType::Number(0, 10),
            "0.005",
            "What a node is taken to cost beyond its price, in US dollars per hour: the higher, \
             the fewer and larger the nodes. It counts in every choice and in no quote.",
        ),
        argument(
            "alternatives",
            ArgumentType::Whole(1, 600),
            "60",
            "Offerings kept for a launch, in case some are refused.",
        ),
        argument(
            "alternative_price_ratio",
            ArgumentType::Number(1, 100),
            "2",
            "How dear the dearest of them may be, as a multiple of the cheapest; two decimals \
             count.",
        ),
        argument(
            "priority_cutoff",
            ArgumentType::Whole(i32::MIN as i64, i32::MAX as i64),
            "",
            "Pods of lower priority do not cause nodes to be made; all do if missing.",
        ),
        argument(
            "schedulers",
            ArgumentType::Texts,
            "[\"default-scheduler\"]",
            "Names of the schedulers whose pods are placed, `default-scheduler` only if it is \
             among them. A pod that names none is its.",
        ),
    ],
    blocks: &[&DEFAULT_SPREAD],
    ..BLOCK
};

static DEFAULT_SPREAD: BlockType = BlockType {
    name: "default_spread",
    label: Some("TOPOLOGY_KEY"),
    repeat: Occurrence::Many,
    about: "How pods are spread that do not say so themselves: what `defaultConstraints` of \
            `PodTopologySpread` say in the configuration of the clusters' schedulers. One block \
            for each key and `when_unsatisfiable`.",
    arguments: &[
        required(
            "max_skew",
            ArgumentType::Whole(1, PLACES_MAX),
            "By how many pods a place may lead the emptiest.",
        ),
        required(
            "when_unsatisfiable",
            ArgumentType::OneOf(&["DoNotSchedule", "ScheduleAnyway"]),
            "Whether it must hold or is a wish.",
        ),
        argument(
            "min_domains",
            ArgumentType::Whole(1, PLACES_MAX),
            "1",
            "With fewer places than this the emptiest counts as having none. Only with \
             `DoNotSchedule`.",
        ),
        argument(
            "node_affinity_policy",
            ArgumentType::OneOf(&["Honor", "Ignore"]),
            "\"Honor\"",
            "Whether only nodes that a pod's selector and affinity allow are places.",
        ),
        argument(
            "node_taints_policy",
            ArgumentType::OneOf(&["Honor", "Ignore"]),
            "\"Ignore\"",
            "Whether only nodes whose taints a pod tolerates are places.",
        ),
    ],
    ..BLOCK
};
