//! Schema table of `kubelet` blocks.
//! It must not depend on the code that reads it.

use super::super::{BLOCK, argument};
use crate::config::schema::{ArgumentType, BlockType};

pub(super) static KUBELET: BlockType = BlockType {
    name: "kubelet",
    about: "Kubelet settings of the nodes. Missing arguments have the default of the family or of \
            Kubernetes.",
    arguments: &[
        argument("max_pods", ArgumentType::Whole(0, 1110))
            .about("Maximum number of pods on a node."),
        argument("pods_per_core", ArgumentType::Whole(0, 1110)).about(
            "Maximum number of pods per core; 0 is no limit. Not supported on Bottlerocket.",
        ),
        argument("cluster_dns", ArgumentType::Texts).default_value("[]").about(
            "Addresses of the cluster DNS. Defaults to the address of the cluster. Only \
                 AL2023 and custom images support more than one.",
        ),
        argument("system_reserved", ArgumentType::Reserved).default_value("{}").about(
            "Resources reserved for the system: `cpu`, `memory`, `ephemeral-storage`, `pid`.",
        ),
        argument("kube_reserved", ArgumentType::Reserved)
            .default_value("{}")
            .about("Resources reserved for Kubernetes, with the same keys."),
        argument("eviction_hard", ArgumentType::Thresholds).default_value("{}").about(
            "Thresholds for immediate eviction, such as `\"memory.available\" = \"100Mi\"` or \
                 `\"5%\"`.",
        ),
        argument("eviction_soft", ArgumentType::Thresholds)
            .default_value("{}")
            .about("Thresholds for eviction after a grace period."),
        argument("eviction_soft_grace_period", ArgumentType::Periods)
            .default_value("{}")
            .about("Grace period for each signal of `eviction_soft`."),
        argument("eviction_max_pod_grace_period", ArgumentType::Whole(0, 86_400))
            .about("Maximum grace period of a pod in a soft eviction, in seconds."),
        argument("image_gc_high_threshold_percent", ArgumentType::Whole(0, 100))
            .about("Disk usage in percent at which the removal of images starts."),
        argument("image_gc_low_threshold_percent", ArgumentType::Whole(0, 100))
            .about("Disk usage in percent at which the removal of images stops."),
        argument("cpu_cfs_quota", ArgumentType::Flag).about("Enforces CPU limits."),
        argument("extra", ArgumentType::KubeletFields).default_value("{}").about(
            "Other fields of `KubeletConfiguration`, by their own names, such as `{ \
                 podPidsLimit = 1024 }`. Only AL2023 and custom images support it.",
        ),
    ],
    ..BLOCK
};
