//! Kubelet settings of a node class.
//!
//! Source: spec/aws.md §1.3; Kubernetes, `KubeletConfiguration` v1beta1.

use core::net::IpAddr;
use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::Value;

use crate::model::named_enum::named_enum;

named_enum! {
    /// An eviction signal of the kubelet. The names are those of the kubelet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Signal {
        /// Free memory.
        MemoryAvailable => "memory.available",
        /// Free bytes of the kubelet's file system.
        NodefsAvailable => "nodefs.available",
        /// Free inodes of the kubelet's file system.
        NodefsInodesFree => "nodefs.inodesFree",
        /// Free bytes of the image file system.
        ImagefsAvailable => "imagefs.available",
        /// Free inodes of the image file system.
        ImagefsInodesFree => "imagefs.inodesFree",
        /// Free process ids.
        PidAvailable => "pid.available",
    }
}

/// The threshold of an eviction signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// The signal is below this many hundredths of a per cent of the total.
    Share(u32),
    /// The signal is below this quantity. The string is the quantity as configured, which is passed
    /// to the kubelet.
    Amount(i64, String),
}

impl Threshold {
    /// The threshold in kubelet syntax.
    pub fn to_kubelet_string(&self) -> String {
        match self {
            Self::Share(hundredths) if hundredths % 100 == 0 => format!("{}%", hundredths / 100),
            Self::Share(hundredths) => {
                let fraction = format!("{:02}", hundredths % 100);
                format!("{}.{}%", hundredths / 100, fraction.trim_end_matches('0'))
            }
            Self::Amount(_, text) => text.clone(),
        }
    }
}

/// A resource reservation: the quantity in thousandths of a core for `cpu`, whole units otherwise,
/// and the configured string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The quantity.
    pub amount: i64,
    /// The quantity as configured.
    pub text: String,
}

/// Kubelet settings. Unset fields have the default of the image family or of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletSettings {
    /// Addresses of the cluster's DNS. Empty means that the kubelet uses the DNS Service of the
    /// cluster.
    pub cluster_dns: Vec<IpAddr>,
    /// Maximum number of pods per node.
    pub max_pods: Option<u32>,
    /// Maximum number of pods per core. Zero means unlimited.
    pub pods_per_core: Option<u32>,
    /// Reserved for the system: `cpu`, `memory`, `ephemeral-storage`, `pid`.
    pub system_reserved: BTreeMap<String, Reserved>,
    /// Reserved for Kubernetes: the same resources.
    pub kube_reserved: BTreeMap<String, Reserved>,
    /// Signals that cause evictions immediately.
    pub eviction_hard: BTreeMap<Signal, Threshold>,
    /// Signals that cause evictions after a grace period.
    pub eviction_soft: BTreeMap<Signal, Threshold>,
    /// The grace period of each of these signals.
    pub eviction_soft_grace_period: BTreeMap<Signal, SignedDuration>,
    /// Maximum grace period in seconds of a pod that is evicted because of a soft signal.
    pub eviction_max_pod_grace_period: Option<u32>,
    /// Disk usage in per cent at which images are removed.
    pub image_gc_high_threshold_percent: Option<u8>,
    /// Disk usage in per cent down to which images are removed.
    pub image_gc_low_threshold_percent: Option<u8>,
    /// Whether CPU limits are enforced.
    pub cpu_cfs_quota: Option<bool>,
    /// All other fields of `KubeletConfiguration`, by name. Only some families support them.
    pub extra: BTreeMap<String, Value>,
}

impl KubeletSettings {
    /// The `KubeletConfiguration` name of each field above.
    pub const MANAGED: [&str; 12] = [
        "clusterDNS",
        "maxPods",
        "podsPerCore",
        "systemReserved",
        "kubeReserved",
        "evictionHard",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionMaxPodGracePeriod",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "cpuCFSQuota",
    ];
}
