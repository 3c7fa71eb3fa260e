//! Schema tables of `pool` and `defaults` blocks.
//! They must not depend on the code that reads them.

use super::disruption::{BUDGET, WINDOW};
use super::{
    BLOCK, CLUSTERS, HOUR, LONGEST, MINUTE, SECOND, argument, duration_or_never, duration_type,
    required_argument,
};
use crate::config::schema::{Argument, ArgumentType, BlockType, Occurrence};

const NODE_CLASS_OF_POOL: Argument = argument("node_class", ArgumentType::Reference("node_class"))
    .about("Node class of the nodes. Required on EC2.");
const WEIGHT: Argument = argument("weight", ArgumentType::Whole(0, 100)).default_value("0").about(
    "Priority of the pool; higher weights are tried first. Among pools of equal weight, the \
         lowest cost decides.",
);
const EXPIRE_AFTER: Argument = argument("expire_after", duration_or_never(10 * SECOND, LONGEST))
    .default_value("\"720h\"")
    .about("Age at which a node expires and is disrupted.");
const EXPIRE_HARD_AFTER: Argument = argument(
    "expire_hard_after",
    duration_or_never(10 * SECOND, LONGEST),
)
.default_value("\"never\"")
.about(
    "Age at which a node is disrupted regardless of budgets and annotations. The drain still \
     respects PodDisruptionBudgets and `termination_grace_period`.",
);
const AUTO_REPAIR: Argument =
    argument("auto_repair", ArgumentType::Flag).default_value("true").about(
        "Replaces unhealthy nodes. The `repair` blocks apply, and these defaults: `Ready` is \
         `False` or `Unknown` for 30m; `StorageReady`, `NetworkingReady`, `KernelReady` or \
         `ContainerRuntimeReady` is `False` for 30m; `AcceleratedHardwareReady` is `False` for \
         10m. If more than 20% of the pool's nodes are unhealthy, none is replaced.",
    );
const TERMINATION_GRACE_PERIOD: Argument =
    argument("termination_grace_period", duration_or_never(0, LONGEST))
        .default_value("\"never\"")
        .about(
            "Maximum duration of a drain. The instance is then terminated with the remaining \
             pods. `never` is no limit.",
        );
const LAUNCH_TIMEOUT: Argument = argument("launch_timeout", duration_type(10 * SECOND, 24 * HOUR))
    .default_value("\"5m\"")
    .about("Maximum duration of a launch.");
const REGISTRATION_TIMEOUT: Argument =
    argument("registration_timeout", duration_type(10 * SECOND, 24 * HOUR))
        .default_value("\"15m\"")
        .about("Maximum time from launch to registration of a node.");
const INITIALIZATION_TIMEOUT: Argument =
    argument("initialization_timeout", duration_type(10 * SECOND, 24 * HOUR))
        .default_value("\"15m\"")
        .about("Maximum time from registration to initialization of a node.");
const CONSOLIDATION: Argument = argument(
    "consolidation",
    ArgumentType::OneOf(&["empty", "empty_or_underutilized", "balanced"]),
)
.default_value("\"empty_or_underutilized\"")
.about(
    "Nodes that may be consolidated. `balanced` is `empty_or_underutilized`, if the savings \
     justify the disruption.",
);
const CONSOLIDATE_AFTER: Argument = argument("consolidate_after", duration_or_never(0, LONGEST))
    .default_value("\"0s\"")
    .about("How long the pods of a node must be unchanged before it is consolidated.");

const SAFETY: Argument = argument("safety", ArgumentType::OneOf(&["standard", "conservative"]))
    .default_value("\"standard\"")
    .about(
        "Pods that voluntary disruption may move. `standard`: all pods that do not forbid it. \
         `conservative`: only pods that Cluster Autoscaler would move. A controller recreates \
         them, they store nothing on the disks of the node, and in kube-system a \
         PodDisruptionBudget covers them.",
    );
const MIN_AGE: Argument = argument("min_age", duration_type(0, LONGEST))
    .default_value("\"0s\"")
    .about("Minimum age of a node before it is disrupted for any reason except expiration.");
const UTILIZATION_THRESHOLD: Argument =
    argument("utilization_threshold", ArgumentType::Whole(1, 100)).about(
        "A node is underutilized only if its pods request less than this percentage of its CPU \
         and of its memory. Daemons do not count. If missing, any node can be underutilized.",
    );
const SPOT_TO_SPOT_TYPES: Argument =
    argument("spot_to_spot_min_types", ArgumentType::Whole(0, 60)).default_value("1").about(
        "Minimum number of cheaper instance types that EC2 can choose from when a spot node \
         replaces a single spot node. A higher number lowers the risk of interruption. With 15, \
         as in Karpenter, the launch uses the 15 cheapest. With 0, spot nodes do not replace \
         single spot nodes.",
    );
const UNNEEDED_FOR: Argument =
    argument("unneeded_for", duration_type(0, LONGEST)).default_value("\"0s\"").about(
        "How long the pods of a node must be unchanged before it is disrupted as underutilized.",
    );
const ON_BLOCKED: Argument =
    argument("on_blocked", ArgumentType::OneOf(&["wait", "abort", "force"]))
        .default_value("\"wait\"")
        .about(
            "Action if a drain exceeds `drain_timeout`. `wait` continues the drain until \
     `termination_grace_period` ends. Without a grace period, it cancels voluntary disruption if \
     a pod can never be evicted. `abort` cancels voluntary disruption and keeps the node. `force` \
     deletes the remaining pods regardless of PodDisruptionBudgets, each with its own grace \
     period of at most 10 minutes.",
        );
const DRAIN_TIMEOUT: Argument = argument("drain_timeout", duration_type(10 * SECOND, LONGEST))
    .default_value("\"15m\"")
    .about("Time from the start of a drain until `on_blocked` applies.");

pub(super) static POOL: BlockType = BlockType {
    name: "pool",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "A pool of nodes with the same node class, labels, taints and requirements.",
    arguments: &[
        CLUSTERS,
        NODE_CLASS_OF_POOL,
        argument("replicas", ArgumentType::Whole(0, 100_000)).about(
            "Number of nodes of a static pool, regardless of pods. `weight` and consolidation do \
             not apply, and of its `limits` only `nodes` does. If missing, pending pods determine \
             the number of nodes.",
        ),
        WEIGHT,
        argument("labels", ArgumentType::Labels).default_value("{}").about("Labels of the nodes."),
        argument("annotations", ArgumentType::Annotations)
            .default_value("{}")
            .about("Annotations of the nodes."),
        argument("limits", ArgumentType::Quantities).default_value("{}").about(
            "Limits on all nodes of the pool together, by resource; `nodes` is the number of \
                 nodes.",
        ),
        EXPIRE_AFTER,
        EXPIRE_HARD_AFTER,
        TERMINATION_GRACE_PERIOD,
        LAUNCH_TIMEOUT,
        REGISTRATION_TIMEOUT,
        INITIALIZATION_TIMEOUT,
        AUTO_REPAIR,
    ],
    blocks: &[&REQUIRE, &TAINT, &STARTUP_TAINT, &DISRUPTION, &REPAIR],
    ..BLOCK
};

const IN: Argument = argument("in", ArgumentType::Texts).about("Allowed values of the label.");
const NOT_IN: Argument =
    argument("not_in", ArgumentType::Texts).about("Excluded values of the label.");
const EXISTS: Argument = argument("exists", ArgumentType::Flag)
    .about("`true`: the label must exist. `false`: it must not exist.");
const GT: Argument = argument("gt", ArgumentType::Whole(0, i64::MAX))
    .about("The label must be an integer greater than this.");
const GTE: Argument = argument("gte", ArgumentType::Whole(0, i64::MAX))
    .about("The label must be an integer greater than or equal to this.");
const LT: Argument = argument("lt", ArgumentType::Whole(0, i64::MAX))
    .about("The label must be an integer less than this.");
const LTE: Argument = argument("lte", ArgumentType::Whole(0, i64::MAX))
    .about("The label must be an integer less than or equal to this.");
const MIN_VALUES: Argument = argument("min_values", ArgumentType::Whole(1, 50))
    .about("Minimum number of values of this label among the instance types of a launch.");

/// Operators of a requirement for a label.
pub(super) const OPERATORS: &[Argument] = &[IN, NOT_IN, EXISTS, GT, GTE, LT, LTE];

static REQUIRE: BlockType = BlockType {
    name: "require",
    label: Some("KEY"),
    repeat: Occurrence::PerLabel,
    about: "A requirement for one label of the nodes.",
    arguments: &[IN, NOT_IN, EXISTS, GT, GTE, LT, LTE, MIN_VALUES],
    ..BLOCK
};

const TAINT_ARGUMENTS: &[Argument] = &[
    required_argument(
        "effect",
        ArgumentType::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    )
    .about("Effect on pods that do not tolerate the taint."),
    argument("value", ArgumentType::Name).default_value("\"\"").about("Value of the taint."),
];

static TAINT: BlockType = BlockType {
    name: "taint",
    label: Some("KEY"),
    repeat: Occurrence::Many,
    about: "A taint of the nodes. Use one block for each key and effect.",
    arguments: TAINT_ARGUMENTS,
    ..BLOCK
};

static STARTUP_TAINT: BlockType = BlockType {
    name: "startup_taint",
    label: Some("KEY"),
    repeat: Occurrence::Many,
    about: "A taint of new nodes that another controller removes.",
    arguments: TAINT_ARGUMENTS,
    ..BLOCK
};

static DISRUPTION: BlockType = BlockType {
    name: "disruption",
    about: "When and how nodes are disrupted voluntarily.",
    arguments: &[
        CONSOLIDATION,
        CONSOLIDATE_AFTER,
        SAFETY,
        MIN_AGE,
        UTILIZATION_THRESHOLD,
        SPOT_TO_SPOT_TYPES,
        UNNEEDED_FOR,
        ON_BLOCKED,
        DRAIN_TIMEOUT,
    ],
    blocks: &[&BUDGET, &WINDOW],
    ..BLOCK
};

static REPAIR: BlockType = BlockType {
    name: "repair",
    repeat: Occurrence::Many,
    about: "How long a node may have a condition before it is replaced.",
    arguments: &[
        required_argument("condition", ArgumentType::Text)
            .about("Type of the condition, such as `Ready`."),
        argument("status", ArgumentType::OneOf(&["True", "False", "Unknown"]))
            .default_value("\"False\"")
            .about("Status of the condition."),
        required_argument("after", duration_or_never(MINUTE, LONGEST))
            .about("Duration of the condition. `never` does not replace the node."),
    ],
    ..BLOCK
};

pub(super) static DEFAULTS: BlockType = BlockType {
    name: "defaults",
    label: Some("KIND"),
    repeat: Occurrence::PerLabel,
    about: "`defaults \"pool\"`: values of arguments that pools do not set.",
    arguments: &[
        NODE_CLASS_OF_POOL,
        WEIGHT,
        EXPIRE_AFTER,
        EXPIRE_HARD_AFTER,
        TERMINATION_GRACE_PERIOD,
        LAUNCH_TIMEOUT,
        REGISTRATION_TIMEOUT,
        INITIALIZATION_TIMEOUT,
        AUTO_REPAIR,
    ],
    blocks: &[&DEFAULT_DISRUPTION],
    ..BLOCK
};

static DEFAULT_DISRUPTION: BlockType = BlockType {
    name: "disruption",
    about: "When and how nodes are disrupted voluntarily.",
    arguments: &[
        CONSOLIDATION,
        CONSOLIDATE_AFTER,
        SAFETY,
        MIN_AGE,
        UTILIZATION_THRESHOLD,
        SPOT_TO_SPOT_TYPES,
        UNNEEDED_FOR,
        ON_BLOCKED,
        DRAIN_TIMEOUT,
    ],
    ..BLOCK
};
