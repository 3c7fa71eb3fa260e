//! Schema tables of the `scheduler` block.
//! They must not depend on the code that reads them.

use super::{MINUTE, duration_type};
use crate::config::schema::ArgumentType;

/// Kubernetes accepts any 32-bit number. A larger skew or number of domains has no effect.
const PLACES_MAX: i64 = 1_000_000;

block_types! {
    /// How pending pods are batched and how nodes are planned for them.
    pub(super) static SCHEDULER = "scheduler", Once, arguments! {
        /// A batch closes after this time without a new pod. If kube-scheduler has not tried a pod
        /// for this time, the batch closes after `batch_max`. During spot interruptions, a batch
        /// closes after this time in any case.
        batch_idle: duration_type(10, 10 * MINUTE) => "1s";
        /// Maximum duration of a batch.
        batch_max: duration_type(10, 10 * MINUTE) => "10s";
        /// Handling of pod preferences. `respect` meets them if possible, even if this takes more
        /// nodes. `ignore` ignores them.
        preference_policy: ArgumentType::OneOf(&["respect", "ignore"]) => "respect";
        /// Handling of `min_values` if too few values are available. `strict` launches no node.
        /// `best_effort` launches with the available values.
        min_values_policy: ArgumentType::OneOf(&["strict", "best_effort"]) => "strict";
        /// Overhead of each node in addition to its price, in US dollars per hour. A higher value
        /// results in fewer and larger nodes. It affects every decision and no reported price.
        node_overhead_price: ArgumentType::Number(0, 10) => 0.005;
        /// Maximum number of offerings for a launch, in case some are unavailable.
        max_launch_options: ArgumentType::Whole(1, 300) => 60;
        /// Maximum price of these offerings, as a multiple of the cheapest, with two decimals.
        alternative_price_ratio: ArgumentType::Number(1, 100) => 2;
        /// Pods with a lower priority do not cause launches. If missing, all pods do.
        priority_cutoff: ArgumentType::Whole(i32::MIN as i64, i32::MAX as i64);
        /// Schedulers whose pods Outrigger launches nodes for. If you set it, include
        /// `default-scheduler` to keep it. A pod without a scheduler name belongs to
        /// `default-scheduler`.
        schedulers: ArgumentType::Texts => ["default-scheduler"];
    }, [&DEFAULT_SPREAD];

    /// Default spread of pods without `topologySpreadConstraints`. It must equal
    /// `defaultConstraints` of `PodTopologySpread` in the configuration of kube-scheduler. Use one
    /// block for each key and `when_unsatisfiable`.
    static DEFAULT_SPREAD = "default_spread" "TOPOLOGY_KEY", Many, arguments! {
        /// Maximum difference in pods between a domain and the domain with the fewest pods.
        max_skew: ArgumentType::Whole(1, PLACES_MAX) => required;
        /// `DoNotSchedule` is a requirement. `ScheduleAnyway` is a preference.
        when_unsatisfiable: ArgumentType::OneOf(&["DoNotSchedule", "ScheduleAnyway"]) => required;
        /// Minimum number of domains. With fewer, the global minimum of pods counts as zero. Only
        /// with `DoNotSchedule`.
        min_domains: ArgumentType::Whole(1, PLACES_MAX) => 1;
        /// `Honor` counts only domains of nodes that match the node selector and affinity of the
        /// pod. `Ignore` counts all nodes.
        node_affinity_policy: ArgumentType::OneOf(&["Honor", "Ignore"]) => "Honor";
        /// `Honor` counts only domains of nodes whose taints the pod tolerates. `Ignore` counts all
        /// nodes.
        node_taints_policy: ArgumentType::OneOf(&["Honor", "Ignore"]) => "Ignore";
    };
}
