//! The tables of `pool` and `defaults` blocks.
//! They must not know how they are read.

use super::disruption::{BUDGET, WINDOW};
use super::{
    BLOCK, CLUSTERS, HOUR, LONGEST, MINUTE, SECOND, argument, duration, duration_or_never, required,
};
use crate::config::schema::{Argument, ArgumentType, BlockType, Occurrence};

const NODE_CLASS_OF_POOL: Argument = argument(
    "node_class",
    ArgumentType::Reference("node_class"),
    "",
    "How EC2 makes its nodes. Required where it does.",
);
const WEIGHT: Argument = argument(
    "weight",
    ArgumentType::Whole(0, 100),
    "0",
    "Preference over other pools, higher first. Of one weight, pods go where it costs least.",
);
const EXPIRE_AFTER: Argument = argument(
    "expire_after",
    duration_or_never(10 * SECOND, LONGEST),
    "\"720h\"",
    "Age at which a node is replaced.",
);
const EXPIRE_HARD_AFTER: Argument = argument(
    "expire_hard_after",
    duration_or_never(10 * SECOND, LONGEST),
    "\"never\"",
    "Age at which a node leaves whatever budgets and annotations say. Its pods are still evicted, \
     as their disruption budgets and `termination_grace_period` allow.",
);
const AUTO_REPAIR: Argument = argument(
    "auto_repair",
    ArgumentType::Flag,
    "true",
    "Whether nodes are replaced that are broken, by `repair` blocks and what holds without any: \
     `Ready` that is `False` or `Unknown`, and `StorageReady`, `NetworkingReady`, `KernelReady` or \
     `ContainerRuntimeReady` that is `False`, for 30m; `AcceleratedHardwareReady` for 10m. None is \
     where more than 20% of the pool's nodes are broken.",
);
const TERMINATION_GRACE_PERIOD: Argument = argument(
    "termination_grace_period",
    duration_or_never(0, LONGEST),
    "\"never\"",
    "How long a leaving node's pods may hold it; `never` is for ever.",
);
const LAUNCH_TIMEOUT: Argument = argument(
    "launch_timeout",
    duration(10 * SECOND, 24 * HOUR),
    "\"5m\"",
    "How long a launch may take.",
);
const REGISTRATION_TIMEOUT: Argument = argument(
    "registration_timeout",
    duration(10 * SECOND, 24 * HOUR),
    "\"15m\"",
    "How long a launched instance may take to register.",
);
const INITIALIZATION_TIMEOUT: Argument = argument(
    "initialization_timeout",
    duration(10 * SECOND, 24 * HOUR),
    "\"15m\"",
    "How long a registered node may take to initialize.",
);
const CONSOLIDATION: Argument = argument(
    "consolidation",
    ArgumentType::OneOf(&["empty", "empty_or_underutilized", "balanced"]),
    "\"empty_or_underutilized\"",
    "Which nodes consolidation may touch.",
);
const CONSOLIDATE_AFTER: Argument = argument(
    "consolidate_after",
    duration_or_never(0, LONGEST),
    "\"0s\"",
    "How long a node must have been without change.",
);

const SAFETY: Argument = argument(
    "safety",
    ArgumentType::OneOf(&["standard", "conservative"]),
    "\"standard\"",
    "Which pods may be moved that do not forbid it: all, or those that Cluster Autoscaler would \
     move, which a controller makes anew, which keep nothing on the node's disks, and which in \
     kube-system a disruption budget covers.",
);
const MIN_AGE: Argument = argument(
    "min_age",
    duration(0, LONGEST),
    "\"0s\"",
    "How old a node must be to leave for any reason but its age.",
);
const UTILIZATION_THRESHOLD: Argument = argument(
    "utilization_threshold",
    ArgumentType::Whole(1, 100),
    "",
    "Only nodes of whose cpu and memory pods ask for less than this, in per cent, are \
     underutilized; daemons do not count. If missing, any node may be.",
);
const SPOT_TO_SPOT_TYPES: Argument = argument(
    "spot_to_spot_types",
    ArgumentType::Whole(0, 60),
    "1",
    "Of how many types, at least, the cheaper node may be that takes one spot node's place, where \
     it is spot, too: the more, the less likely it is taken back. With 15, as in Karpenter, the \
     cheapest 15 are left to choose from. With 0 no spot node is replaced by another.",
);
const UNNEEDED_FOR: Argument = argument(
    "unneeded_for",
    duration(0, LONGEST),
    "\"0s\"",
    "How long no pod must have come to a node or left it before it leaves as underutilized.",
);
const ON_BLOCKED: Argument = argument(
    "on_blocked",
    ArgumentType::OneOf(&["wait", "abort", "force"]),
    "\"wait\"",
    "What becomes of a node whose pods have not left it after `drain_timeout`: they are waited \
     for, as long as `termination_grace_period` allows, and without one until it is plain that \
     nobody lets them go; the node stays, if nothing but \
     consolidation, drift, age or its number wanted it to leave; or they are deleted whatever \
     their disruption budgets say, each with its own grace, ten minutes at most.",
);
const DRAIN_TIMEOUT: Argument = argument(
    "drain_timeout",
    duration(10 * SECOND, LONGEST),
    "\"15m\"",
    "How long the pods of a leaving node may take before that, from when they are told to go.",
);

pub(super) static POOL: BlockType = BlockType {
    name: "pool",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "A rule for nodes.",
    arguments: &[
        CLUSTERS,
        NODE_CLASS_OF_POOL,
        argument(
            "replicas",
            ArgumentType::Whole(0, 100_000),
            "",
            "How many nodes there are, whatever pods ask for: a static pool, to which `weight` and \
             consolidation do not apply, and of whose limits only `nodes` does. If missing, pods \
             decide.",
        ),
        WEIGHT,
        argument("labels", ArgumentType::Labels, "{}", "Labels of the nodes."),
        argument(
            "annotations",
            ArgumentType::Annotations,
            "{}",
            "Annotations of the nodes.",
        ),
        argument(
            "limits",
            ArgumentType::Quantities,
            "{}",
            "Limits on all its nodes together, by resource; `nodes` is their number.",
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

const IN: Argument = argument("in", ArgumentType::Texts, "", "One of these.");
const NOT_IN: Argument = argument("not_in", ArgumentType::Texts, "", "None of these.");
const EXISTS: Argument = argument(
    "exists",
    ArgumentType::Flag,
    "",
    "Whether the label is there at all.",
);
const GT: Argument = argument(
    "gt",
    ArgumentType::Whole(0, i64::MAX),
    "",
    "An integer above this.",
);
const GTE: Argument = argument(
    "gte",
    ArgumentType::Whole(0, i64::MAX),
    "",
    "An integer of at least this.",
);
const LT: Argument = argument(
    "lt",
    ArgumentType::Whole(0, i64::MAX),
    "",
    "An integer below this.",
);
const LTE: Argument = argument(
    "lte",
    ArgumentType::Whole(0, i64::MAX),
    "",
    "An integer of at most this.",
);
const MIN_VALUES: Argument = argument(
    "min_values",
    ArgumentType::Whole(1, 50),
    "",
    "How many values the instance types of one launch must offer.",
);

/// What may be said of a label.
pub(super) const OPERATORS: &[Argument] = &[IN, NOT_IN, EXISTS, GT, GTE, LT, LTE];

static REQUIRE: BlockType = BlockType {
    name: "require",
    label: Some("KEY"),
    repeat: Occurrence::PerLabel,
    about: "What one label of the nodes may be.",
    arguments: &[IN, NOT_IN, EXISTS, GT, GTE, LT, LTE, MIN_VALUES],
    ..BLOCK
};

const TAINT_ARGUMENTS: &[Argument] = &[
    required(
        "effect",
        ArgumentType::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        "What it does to pods that do not tolerate it.",
    ),
    argument("value", ArgumentType::Name, "\"\"", "Its value."),
];

static TAINT: BlockType = BlockType {
    name: "taint",
    label: Some("KEY"),
    repeat: Occurrence::Many,
    about: "A taint of the nodes; one block for each key and effect.",
    arguments: TAINT_ARGUMENTS,
    ..BLOCK
};

static STARTUP_TAINT: BlockType = BlockType {
    name: "startup_taint",
    label: Some("KEY"),
    repeat: Occurrence::Many,
    about: "A taint the nodes start with and someone else takes away.",
    arguments: TAINT_ARGUMENTS,
    ..BLOCK
};

static DISRUPTION: BlockType = BlockType {
    name: "disruption",
    about: "When and how nodes are disrupted on purpose.",
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
    about: "For how long a node may have a condition before it is replaced.",
    arguments: &[
        required(
            "condition",
            ArgumentType::Text,
            "Type of the condition, such as `Ready`.",
        ),
        argument(
            "status",
            ArgumentType::OneOf(&["True", "False", "Unknown"]),
            "\"False\"",
            "What it says.",
        ),
        required(
            "after",
            duration_or_never(MINUTE, LONGEST),
            "For how long; `never` is no reason to replace a node.",
        ),
    ],
    ..BLOCK
};

pub(super) static DEFAULTS: BlockType = BlockType {
    name: "defaults",
    label: Some("KIND"),
    repeat: Occurrence::PerLabel,
    about: "`defaults \"pool\"`: what pools have that do not say otherwise.",
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
    about: "When and how nodes are disrupted on purpose.",
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
