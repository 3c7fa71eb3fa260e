//! Schema tables of the `scheduler` block.
//! They must not depend on the code that reads them.

use super::{BLOCK, MINUTE, argument, duration_type, required_argument};
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

/// Kubernetes accepts any 32-bit number. A larger skew or number of domains has no effect.
const PLACES_MAX: i64 = 1_000_000;

pub(super) static SCHEDULER: BlockType = BlockType {
    name: "scheduler",
    about: "How pending pods are batched and how nodes are planned for them.",
    arguments: &[
        argument("batch_idle", duration_type(10, 10 * MINUTE))
            .default_value("\"1s\"")
            .about(
                "A batch closes after this time without a new pod. If kube-scheduler has not \
                 tried a pod for this time, the batch closes after `batch_max`. During spot \
                 interruptions, a batch closes after this time in any case.",
            ),
        argument("batch_max", duration_type(10, 10 * MINUTE))
            .default_value("\"10s\"")
            .about("Maximum duration of a batch."),
        argument(
            "preference_policy",
            ArgumentType::OneOf(&["respect", "ignore"]),
        )
        .default_value("\"respect\"")
        .about(
            "Handling of pod preferences. `respect` meets them if possible, even if this takes \
             more nodes. `ignore` ignores them.",
        ),
        argument(
            "min_values_policy",
            ArgumentType::OneOf(&["strict", "best_effort"]),
        )
        .default_value("\"strict\"")
        .about(
            "Handling of `min_values` if too few values are available. `strict` launches no node. \
             `best_effort` launches with the available values.",
        ),
        argument("node_overhead_price", ArgumentType::Number(0, 10))
            .default_value("0.005")
            .about(
                "Overhead of each node in addition to its price, in US dollars per hour. A higher \
                 value results in fewer and larger nodes. It affects every decision and no \
                 reported price.",
            ),
        argument("max_launch_options", ArgumentType::Whole(1, 600))
            .default_value("60")
            .about("Maximum number of offerings for a launch, in case some are unavailable."),
        argument("alternative_price_ratio", ArgumentType::Number(1, 100))
            .default_value("2")
            .about(
                "Maximum price of these offerings, as a multiple of the cheapest, with two \
                 decimals.",
            ),
        argument(
            "priority_cutoff",
            ArgumentType::Whole(i32::MIN as i64, i32::MAX as i64),
        )
        .about("Pods with a lower priority do not cause launches. If missing, all pods do."),
        argument("schedulers", ArgumentType::Texts)
            .default_value("[\"default-scheduler\"]")
            .about(
                "Schedulers whose pods Outrigger launches nodes for. If you set it, include \
                 `default-scheduler` to keep it. A pod without a scheduler name belongs to \
                 `default-scheduler`.",
            ),
    ],
    blocks: &[&DEFAULT_SPREAD],
    ..BLOCK
};

static DEFAULT_SPREAD: BlockType = BlockType {
    name: "default_spread",
    label: Some("TOPOLOGY_KEY"),
    repeat: Occurrence::Many,
    about: "Default spread of pods without `topologySpreadConstraints`. It must equal \
            `defaultConstraints` of `PodTopologySpread` in the configuration of kube-scheduler. \
            Use one block for each key and `when_unsatisfiable`.",
    arguments: &[
        required_argument("max_skew", ArgumentType::Whole(1, PLACES_MAX)).about(
            "Maximum difference in pods between a domain and the domain with the fewest pods.",
        ),
        required_argument(
            "when_unsatisfiable",
            ArgumentType::OneOf(&["DoNotSchedule", "ScheduleAnyway"]),
        )
        .about("`DoNotSchedule` is a requirement. `ScheduleAnyway` is a preference."),
        argument("min_domains", ArgumentType::Whole(1, PLACES_MAX))
            .default_value("1")
            .about(
                "Minimum number of domains. With fewer, the global minimum of pods counts as \
                 zero. Only with `DoNotSchedule`.",
            ),
        argument(
            "node_affinity_policy",
            ArgumentType::OneOf(&["Honor", "Ignore"]),
        )
        .default_value("\"Honor\"")
        .about(
            "`Honor` counts only domains of nodes that match the node selector and affinity of \
             the pod. `Ignore` counts all nodes.",
        ),
        argument(
            "node_taints_policy",
            ArgumentType::OneOf(&["Honor", "Ignore"]),
        )
        .default_value("\"Ignore\"")
        .about(
            "`Honor` counts only domains of nodes whose taints the pod tolerates. `Ignore` counts \
             all nodes.",
        ),
    ],
    ..BLOCK
};
