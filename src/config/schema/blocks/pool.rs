//! Schema tables of `pool` and `defaults` blocks.
//! They must not depend on the code that reads them.

use super::disruption::{BUDGET, WINDOW};
use super::{CLUSTERS, HOUR, LONGEST, MINUTE, SECOND, duration_or_never, duration_type};
use crate::config::schema::{Argument, ArgumentType};

argument_constants! {
    /// Node class of the nodes. Required on EC2.
    NODE_CLASS_OF_POOL = node_class: ArgumentType::Reference("node_class");
    /// Priority of the pool; higher weights are tried first. Among pools of equal weight, the
    /// lowest cost decides.
    WEIGHT = weight: ArgumentType::Whole(0, 100) => 0;
    /// Age at which a node expires and is disrupted.
    EXPIRE_AFTER = expire_after: duration_or_never(10 * SECOND, LONGEST) => "720h";
    /// Age at which a node is disrupted regardless of budgets and annotations. The drain still
    /// respects PodDisruptionBudgets and `termination_grace_period`.
    EXPIRE_HARD_AFTER = expire_hard_after: duration_or_never(10 * SECOND, LONGEST) => "never";
    /// Replaces unhealthy nodes. The `repair` blocks apply, and these defaults: `Ready` is `False`
    /// or `Unknown` for 30m; `StorageReady`, `NetworkingReady`, `KernelReady` or
    /// `ContainerRuntimeReady` is `False` for 30m; `AcceleratedHardwareReady` is `False` for 10m.
    /// If more than 20% of the pool's nodes are unhealthy, none is replaced.
    AUTO_REPAIR = auto_repair: ArgumentType::Flag => true;
    /// Maximum duration of a drain. The instance is then terminated with the remaining pods.
    /// `never` is no limit.
    TERMINATION_GRACE_PERIOD = termination_grace_period: duration_or_never(0, LONGEST) => "never";
    /// Maximum duration of a launch.
    LAUNCH_TIMEOUT = launch_timeout: duration_type(10 * SECOND, 24 * HOUR) => "5m";
    /// Maximum time from launch to registration of a node.
    REGISTRATION_TIMEOUT = registration_timeout: duration_type(10 * SECOND, 24 * HOUR) => "15m";
    /// Maximum time from registration to initialization of a node.
    INITIALIZATION_TIMEOUT = initialization_timeout: duration_type(10 * SECOND, 24 * HOUR) => "15m";
}

const DISRUPTION_ARGUMENTS: &[Argument] = arguments! {
    /// Nodes that may be consolidated. `balanced` is `empty_or_underutilized`, if the savings
    /// justify the disruption.
    consolidation:
        ArgumentType::OneOf(&["empty", "empty_or_underutilized", "balanced"])
        => "empty_or_underutilized";
    /// How long the pods of a node must be unchanged before it is consolidated.
    consolidate_after: duration_or_never(0, LONGEST) => "0s";
    /// Pods that voluntary disruption may move. `standard`: all pods that do not forbid it.
    /// `conservative`: only pods that Cluster Autoscaler would move. A controller recreates them,
    /// they store nothing on the disks of the node, and in kube-system a PodDisruptionBudget covers
    /// them.
    safety: ArgumentType::OneOf(&["standard", "conservative"]) => "standard";
    /// Minimum age of a node before it is disrupted for any reason except expiration.
    min_age: duration_type(0, LONGEST) => "0s";
    /// A node is underutilized only if its pods request less than this percentage of its CPU and of
    /// its memory. Daemons do not count. If missing, any node can be underutilized.
    utilization_threshold: ArgumentType::Whole(1, 100);
    /// Minimum number of cheaper instance types that EC2 can choose from when a spot node replaces
    /// a single spot node. A higher number lowers the risk of interruption. With 15, as in
    /// Karpenter, the launch uses the 15 cheapest. With 0, spot nodes do not replace single spot
    /// nodes.
    spot_to_spot_min_types: ArgumentType::Whole(0, 60) => 1;
    /// How long the pods of a node must be unchanged before it is disrupted as underutilized.
    unneeded_for: duration_type(0, LONGEST) => "0s";
    /// Action if a drain exceeds `drain_timeout`. `wait` continues the drain until
    /// `termination_grace_period` ends. Without a grace period, it cancels voluntary disruption if
    /// a pod can never be evicted. `abort` cancels voluntary disruption and keeps the node. `force`
    /// deletes the remaining pods regardless of PodDisruptionBudgets, each with its own grace
    /// period of at most 10 minutes.
    on_blocked: ArgumentType::OneOf(&["wait", "abort", "force"]) => "wait";
    /// Time from the start of a drain until `on_blocked` applies.
    drain_timeout: duration_type(10 * SECOND, LONGEST) => "15m";
};

block_types! {
    /// A pool of nodes with the same node class, labels, taints and requirements.
    pub(super) static POOL = "pool" "NAME", PerLabel, arguments! {
        CLUSTERS;
        NODE_CLASS_OF_POOL;
        /// Number of nodes of a static pool, regardless of pods. `weight` and consolidation do not
        /// apply, and of its `limits` only `nodes` does. If missing, pending pods determine the
        /// number of nodes.
        replicas: ArgumentType::Whole(0, 100_000);
        WEIGHT;
        /// Labels of the nodes.
        labels: ArgumentType::Labels => {};
        /// Annotations of the nodes.
        annotations: ArgumentType::Annotations => {};
        /// Limits on all nodes of the pool together, by resource; `nodes` is the number of nodes.
        limits: ArgumentType::Quantities => {};
        EXPIRE_AFTER;
        EXPIRE_HARD_AFTER;
        TERMINATION_GRACE_PERIOD;
        LAUNCH_TIMEOUT;
        REGISTRATION_TIMEOUT;
        INITIALIZATION_TIMEOUT;
        AUTO_REPAIR;
    }, [&REQUIRE, &TAINT, &STARTUP_TAINT, &DISRUPTION, &REPAIR];
}

/// Operators of a requirement for a label, then `min_values`.
const REQUIREMENT: &[Argument; 8] = arguments! {
    /// Allowed values of the label.
    in: ArgumentType::Texts;
    /// Excluded values of the label.
    not_in: ArgumentType::Texts;
    /// `true`: the label must exist. `false`: it must not exist.
    exists: ArgumentType::Flag;
    /// The label must be an integer greater than this.
    gt: ArgumentType::Whole(0, i64::MAX);
    /// The label must be an integer greater than or equal to this.
    gte: ArgumentType::Whole(0, i64::MAX);
    /// The label must be an integer less than this.
    lt: ArgumentType::Whole(0, i64::MAX);
    /// The label must be an integer less than or equal to this.
    lte: ArgumentType::Whole(0, i64::MAX);
    /// Minimum number of values of this label among the instance types of a launch.
    min_values: ArgumentType::Whole(1, 50);
};

/// Operators of a requirement for a label.
pub(super) const OPERATORS: &[Argument] = REQUIREMENT.split_at(7).0;

block_types! {
    /// A requirement for one label of the nodes.
    static REQUIRE = "require" "KEY", PerLabel, REQUIREMENT;
}

const TAINT_ARGUMENTS: &[Argument] = arguments! {
    /// Effect on pods that do not tolerate the taint.
    effect: ArgumentType::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]) => required;
    /// Value of the taint.
    value: ArgumentType::Name => "";
};

block_types! {
    /// A taint of the nodes. Use one block for each key and effect.
    static TAINT = "taint" "KEY", Many, TAINT_ARGUMENTS;

    /// A taint of new nodes that another controller removes.
    static STARTUP_TAINT = "startup_taint" "KEY", Many, TAINT_ARGUMENTS;

    /// When and how nodes are disrupted voluntarily.
    static DISRUPTION = "disruption", Once, DISRUPTION_ARGUMENTS, [&BUDGET, &WINDOW];

    /// How long a node may have a condition before it is replaced.
    static REPAIR = "repair", Many, arguments! {
        /// Type of the condition, such as `Ready`.
        condition: ArgumentType::Text => required;
        /// Status of the condition.
        status: ArgumentType::OneOf(&["True", "False", "Unknown"]) => "False";
        /// Duration of the condition. `never` does not replace the node.
        after: duration_or_never(MINUTE, LONGEST) => required;
    };

    /// `defaults "pool"`: values of arguments that pools do not set.
    pub(super) static DEFAULTS = "defaults" "KIND", PerLabel, arguments! {
        NODE_CLASS_OF_POOL;
        WEIGHT;
        EXPIRE_AFTER;
        EXPIRE_HARD_AFTER;
        TERMINATION_GRACE_PERIOD;
        LAUNCH_TIMEOUT;
        REGISTRATION_TIMEOUT;
        INITIALIZATION_TIMEOUT;
        AUTO_REPAIR;
    }, [&DEFAULT_DISRUPTION];

    /// When and how nodes are disrupted voluntarily.
    static DEFAULT_DISRUPTION = "disruption", Once, DISRUPTION_ARGUMENTS;
}
