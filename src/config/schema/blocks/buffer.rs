//! The tables of `buffer` blocks.
//! They must not know how they are read.

use super::{BLOCK, CLUSTERS, argument, required};
use crate::config::schema::{ArgumentType, BlockType, Occurrence};
use crate::model::buffer::{PODS_MAX, ScalableKind};

pub(super) static BUFFER: BlockType = BlockType {
    name: "buffer",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "Room that is kept free for pods still to come. Pods that come take it, and new room is \
            made. At least one of `replicas`, `percentage` and `limits` says for how many; of \
            `replicas` and `percentage` the greater counts.",
    arguments: &[
        CLUSTERS,
        argument(
            "pool",
            ArgumentType::Reference("pool"),
            "",
            "The pool whose nodes have the room, in the clusters that have the pool; any if \
             missing. Its taints are tolerated.",
        ),
        argument(
            "replicas",
            ArgumentType::Whole(0, PODS_MAX as i64),
            "",
            "For so many pods.",
        ),
        argument(
            "percentage",
            ArgumentType::Whole(0, 10_000),
            "",
            "For so many pods in a hundred that the workload has, rounded up.",
        ),
        argument(
            "limits",
            ArgumentType::Quantities,
            "{}",
            "What all the pods together ask for at most, by resource. Alone: as many pods as that \
             allows.",
        ),
        argument(
            "during",
            ArgumentType::Reference("schedule"),
            "",
            "When the room is kept; always if missing.",
        ),
    ],
    blocks: &[&POD, &SCALABLE],
    ..BLOCK
};

static POD: BlockType = BlockType {
    name: "pod",
    about: "What the pods are like that the room is for. Required without `scalable`; if missing, \
            they are like the newest pod of the workload.",
    arguments: &[
        required(
            "requests",
            ArgumentType::Quantities,
            "What each of them asks for, by resource.",
        ),
        argument(
            "node_selector",
            ArgumentType::Labels,
            "{}",
            "Labels their nodes must have.",
        ),
    ],
    blocks: &[&TOLERATION],
    ..BLOCK
};

static TOLERATION: BlockType = BlockType {
    name: "toleration",
    label: Some("KEY"),
    repeat: Occurrence::Many,
    about: "Taints they tolerate, by their key.",
    arguments: &[
        argument(
            "effect",
            ArgumentType::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
            "",
            "Effect of the taint; any if missing.",
        ),
        argument(
            "value",
            ArgumentType::Text,
            "",
            "Its value; any if missing.",
        ),
    ],
    ..BLOCK
};

static SCALABLE: BlockType = BlockType {
    name: "scalable",
    about: "The workload that `percentage` is a share of. Its pods that are there are counted, \
            waiting ones among them.",
    arguments: &[
        required(
            "kind",
            ArgumentType::OneOf(&ScalableKind::NAMES),
            "Its kind.",
        ),
        required("namespace", ArgumentType::Name, "Its namespace."),
        required("name", ArgumentType::Text, "Its name."),
    ],
    ..BLOCK
};
