//! Schema tables of `buffer` blocks.
//! They must not depend on the code that reads them.

use super::CLUSTERS;
use crate::config::schema::ArgumentType;
use crate::model::buffer::{PODS_MAX, ScalableKind};

block_types! {
    /// Spare capacity for pods that do not exist yet. New pods use it, and Outrigger then provides
    /// it again. Set at least one of `replicas`, `percentage` and `limits`. The greater of
    /// `replicas` and `percentage` applies.
    pub(super) static BUFFER = "buffer" "NAME", PerLabel, arguments! {
        CLUSTERS;
        /// Pool whose nodes provide the capacity, in the clusters that have the pool; any pool if
        /// missing. Its taints are tolerated.
        pool: ArgumentType::Reference("pool");
        /// Number of pods to keep capacity for.
        replicas: ArgumentType::Whole(0, PODS_MAX as i64);
        /// Number of pods, as a percentage of the workload's pods, rounded up.
        percentage: ArgumentType::Whole(0, 10_000);
        /// Maximum requests of all the pods together, by resource. If only `limits` is set, the
        /// buffer keeps capacity for as many pods as `limits` allows.
        limits: ArgumentType::Quantities => {};
        /// When to keep the capacity; always if missing.
        during: ArgumentType::Reference("schedule");
    }, [&POD, &SCALABLE];

    /// Template of the pods to keep capacity for. Required without `scalable`. Defaults to the
    /// newest pod of the workload.
    static POD = "pod", Once, arguments! {
        /// Requests of each pod, by resource.
        requests: ArgumentType::Quantities => required;
        /// Labels that the nodes must have.
        node_selector: ArgumentType::Labels => {};
    }, [&TOLERATION];

    /// A taint that the pods tolerate, by key.
    static TOLERATION = "toleration" "KEY", Many, arguments! {
        /// Effect of the taint; any effect if missing.
        effect: ArgumentType::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        /// Value of the taint; any value if missing.
        value: ArgumentType::Text;
    };

    /// Workload that `percentage` refers to. All its existing pods count, including pending pods.
    static SCALABLE = "scalable", Once, arguments! {
        /// Kind of the workload.
        kind: ArgumentType::OneOf(&ScalableKind::NAMES) => required;
        /// Namespace of the workload.
        namespace: ArgumentType::Name => required;
        /// Name of the workload.
        name: ArgumentType::Text => required;
    };
}
