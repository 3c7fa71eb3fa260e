//! Schema tables of `buffer` blocks.
//! They must not depend on the code that reads them.

use super::{BLOCK, CLUSTERS, argument, required_argument};
use crate::config::schema::{ArgumentType, BlockType, Occurrence};
use crate::model::buffer::{PODS_MAX, ScalableKind};

pub(super) static BUFFER: BlockType = BlockType {
    name: "buffer",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "Spare capacity for pods that do not exist yet. New pods use it, and Outrigger then \
            provides it again. Set at least one of `replicas`, `percentage` and `limits`. The \
            greater of `replicas` and `percentage` applies.",
    arguments: &[
        CLUSTERS,
        argument("pool", ArgumentType::Reference("pool")).about(
            "Pool whose nodes provide the capacity, in the clusters that have the pool; any pool \
             if missing. Its taints are tolerated.",
        ),
        argument("replicas", ArgumentType::Whole(0, PODS_MAX as i64))
            .about("Number of pods to keep capacity for."),
        argument("percentage", ArgumentType::Whole(0, 10_000))
            .about("Number of pods, as a percentage of the workload's pods, rounded up."),
        argument("limits", ArgumentType::Quantities).default_value("{}").about(
            "Maximum requests of all the pods together, by resource. If only `limits` is set, \
                 the buffer keeps capacity for as many pods as `limits` allows.",
        ),
        argument("during", ArgumentType::Reference("schedule"))
            .about("When to keep the capacity; always if missing."),
    ],
    blocks: &[&POD, &SCALABLE],
    ..BLOCK
};

static POD: BlockType = BlockType {
    name: "pod",
    about: "Template of the pods to keep capacity for. Required without `scalable`. Defaults to \
            the newest pod of the workload.",
    arguments: &[
        required_argument("requests", ArgumentType::Quantities)
            .about("Requests of each pod, by resource."),
        argument("node_selector", ArgumentType::Labels)
            .default_value("{}")
            .about("Labels that the nodes must have."),
    ],
    blocks: &[&TOLERATION],
    ..BLOCK
};

static TOLERATION: BlockType = BlockType {
    name: "toleration",
    label: Some("KEY"),
    repeat: Occurrence::Many,
    about: "A taint that the pods tolerate, by key.",
    arguments: &[
        argument("effect", ArgumentType::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]))
            .about("Effect of the taint; any effect if missing."),
        argument("value", ArgumentType::Text).about("Value of the taint; any value if missing."),
    ],
    ..BLOCK
};

static SCALABLE: BlockType = BlockType {
    name: "scalable",
    about: "Workload that `percentage` refers to. All its existing pods count, including pending \
            pods.",
    arguments: &[
        required_argument("kind", ArgumentType::OneOf(&ScalableKind::NAMES))
            .about("Kind of the workload."),
        required_argument("namespace", ArgumentType::Name).about("Namespace of the workload."),
        required_argument("name", ArgumentType::Text).about("Name of the workload."),
    ],
    ..BLOCK
};
