//! The table of `kubelet` blocks.
//! It must not know how it is read.

use super::super::{BLOCK, argument};
use crate::config::schema::{ArgumentType, BlockType};

pub(super) static KUBELET: BlockType = BlockType {
    name: "kubelet",
    about: "Settings of the nodes' kubelets. What is missing is the family's default, or \
            Kubernetes'.",
    arguments: &[
        argument(
            "max_pods",
            ArgumentType::Whole(0, 1110),
            "",
            "Pods a node takes at most.",
        ),
        argument(
            "pods_per_core",
            ArgumentType::Whole(0, 1110),
            "",
            "Pods a node takes per core; 0 is no limit. Not on Bottlerocket.",
        ),
        argument(
            "cluster_dns",
            ArgumentType::Texts,
            "[]",
            "Addresses of the cluster's DNS, the cluster's own if missing. More than one only \
             with AL2023 and custom images.",
        ),
        argument(
            "system_reserved",
            ArgumentType::Reserved,
            "{}",
            "Kept for the system: `cpu`, `memory`, `ephemeral-storage`, `pid`.",
        ),
        argument(
            "kube_reserved",
            ArgumentType::Reserved,
            "{}",
            "Kept for Kubernetes: the same.",
        ),
        argument(
            "eviction_hard",
            ArgumentType::Thresholds,
            "{}",
            "Signals that evict at once, such as `\"memory.available\" = \"100Mi\"` or `\"5%\"`.",
        ),
        argument(
            "eviction_soft",
            ArgumentType::Thresholds,
            "{}",
            "Signals that evict after a while.",
        ),
        argument(
            "eviction_soft_grace_period",
            ArgumentType::Periods,
            "{}",
            "How long, for each of these.",
        ),
        argument(
            "eviction_max_pod_grace_period",
            ArgumentType::Whole(0, 86_400),
            "",
            "Seconds a pod has at most that is evicted after a while.",
        ),
        argument(
            "image_gc_high_threshold_percent",
            ArgumentType::Whole(0, 100),
            "",
            "Disk usage at which images are removed.",
        ),
        argument(
            "image_gc_low_threshold_percent",
            ArgumentType::Whole(0, 100),
            "",
            "Disk usage down to which images are removed.",
        ),
        argument(
            "cpu_cfs_quota",
            ArgumentType::Flag,
            "",
            "Whether CPU limits are enforced.",
        ),
        argument(
            "extra",
            ArgumentType::KubeletFields,
            "{}",
            "Everything else of `KubeletConfiguration`, by its own names, such as `{ podPidsLimit \
             = 1024 }`. Only with AL2023 and custom images.",
        ),
    ],
    ..BLOCK
};
