//! The tables of `buffer` blocks.
//! They must not know how they are read.

use super::{BLOCK, CLUSTERS, argument, required};
use crate::config::schema::{BlockType, Kind, Repeat};
use crate::model::buffer::{PODS_MAX, ScalableKind};

pub(super) static BUFFER: BlockType = BlockType {
    name: "buffer",
    label: Some("NAME"),
    repeat: Repeat::PerLabel,
    about: "Room that is kept free for pods still to come. Pods that come take it, and new room is \
            made. At least one of `replicas`, `percentage` and `limits` says for how many; of \
            `replicas` and `percentage` the greater counts.",
    arguments: &[
        CLUSTERS,
        argument(
            "pool",
            Kind::Reference("pool"),
            "",
            "The pool whose nodes have the room, in the clusters that have the pool; any if \
             missing. Its taints are tolerated.",
        ),
        argument(
            "replicas",
            Kind::Whole(0, PODS_MAX as i64),
            "",
            "For so many pods.",
        ),
        argument(
            "percentage",
            Kind::Whole(0, 10_000),
            "",
            "For so many pods in a hundred that the workload has, rounded up.",
        ),
        argument(
            "limits",
            Kind::Quantities,
            "{}",
            "What all the pods together ask for at most, by resource. Alone: as many pods as that \
             allows.",
        ),
        argument(
            "during",
            Kind::Reference("schedule"),
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
            Kind::Quantities,
            "What each of them asks for, by resource.",
        ),
        argument(
            "node_selector",
            Kind::Labels,
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
    repeat: Repeat::Many,
    about: "Taints they tolerate, by their key.",
    arguments: &[
        argument(
            "effect",
            Kind::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
            "",
            "Effect of the taint; any if missing.",
        ),
        argument("value", Kind::Text, "", "Its value; any if missing."),
    ],
    ..BLOCK
};

static SCALABLE: BlockType = BlockType {
    name: "scalable",
    about: "The workload that `percentage` is a share of. Its pods that are there are counted, \
            waiting ones among them.",
    arguments: &[
        required("kind", Kind::OneOf(&ScalableKind::NAMES), "Its kind."),
        required("namespace", Kind::Name, "Its namespace."),
        required("name", Kind::Text, "Its name."),
    ],
    ..BLOCK
};
