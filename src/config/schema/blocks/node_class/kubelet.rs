//! Schema table of `kubelet` blocks.
//! It must not depend on the code that reads it.

use crate::config::schema::ArgumentType;

block_types! {
    /// Kubelet settings of the nodes. Missing arguments have the default of the family or of
    /// Kubernetes.
    pub(super) static KUBELET = "kubelet", Once, arguments! {
        /// Maximum number of pods on a node.
        max_pods: ArgumentType::Whole(0, 1110);
        /// Maximum number of pods per core; 0 is no limit. Not supported on Bottlerocket.
        pods_per_core: ArgumentType::Whole(0, 1110);
        /// Addresses of the cluster DNS. Defaults to the address of the cluster. Only AL2023 and
        /// custom images support more than one.
        cluster_dns: ArgumentType::Texts => [];
        /// Resources reserved for the system: `cpu`, `memory`, `ephemeral-storage`, `pid`.
        system_reserved: ArgumentType::Reserved => {};
        /// Resources reserved for Kubernetes, with the same keys.
        kube_reserved: ArgumentType::Reserved => {};
        /// Thresholds for immediate eviction, such as `"memory.available" = "100Mi"` or `"5%"`.
        eviction_hard: ArgumentType::Thresholds => {};
        /// Thresholds for eviction after a grace period.
        eviction_soft: ArgumentType::Thresholds => {};
        /// Grace period for each signal of `eviction_soft`.
        eviction_soft_grace_period: ArgumentType::Periods => {};
        /// Maximum grace period of a pod in a soft eviction, in seconds.
        eviction_max_pod_grace_period: ArgumentType::Whole(0, 86_400);
        /// Disk usage in percent at which the removal of images starts.
        image_gc_high_threshold_percent: ArgumentType::Whole(0, 100);
        /// Disk usage in percent at which the removal of images stops.
        image_gc_low_threshold_percent: ArgumentType::Whole(0, 100);
        /// Enforces CPU limits.
        cpu_cfs_quota: ArgumentType::Flag;
        /// Other fields of `KubeletConfiguration`, by their own names, such as `{ podPidsLimit =
        /// 1024 }`. Only AL2023 and custom images support it.
        extra: ArgumentType::KubeletFields => {};
    };
}
