//! Settings of a node class' kubelets.
//! It must not know in which words an image's family takes them.
//!
//! Source: spec/aws.md §1.3; Kubernetes, `KubeletConfiguration` v1beta1.

use core::net::IpAddr;
use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::Value;

/// What makes the kubelet evict pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Free memory.
    MemoryAvailable,
    /// Free bytes of the kubelet's file system.
    NodefsAvailable,
    /// Free inodes of it.
    NodefsInodesFree,
    /// Free bytes of the file system of images.
    ImagefsAvailable,
    /// Free inodes of it.
    ImagefsInodesFree,
    /// Free process ids.
    PidAvailable,
}

impl Signal {
    /// All of them, as the kubelet spells them.
    pub const ALL: [(Self, &str); 6] = [
        (Self::MemoryAvailable, "memory.available"),
        (Self::NodefsAvailable, "nodefs.available"),
        (Self::NodefsInodesFree, "nodefs.inodesFree"),
        (Self::ImagefsAvailable, "imagefs.available"),
        (Self::ImagefsInodesFree, "imagefs.inodesFree"),
        (Self::PidAvailable, "pid.available"),
    ];

    /// The kubelet's spelling.
    pub fn as_str(self) -> &'static str {
        let found = Self::ALL.iter().find(|(own, _)| *own == self);
        found.map_or("", |(_, name)| name)
    }

    /// The signal of this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(own, _)| *own)
    }
}

/// From when on a signal counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// Less than so many hundredths of a per cent of all there is.
    Share(u32),
    /// Less than so much; and the quantity as it was written, which is what the kubelet is told.
    Amount(i64, String),
}

impl Threshold {
    /// As the kubelet takes it.
    pub fn text(&self) -> String {
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

/// An amount kept from pods: in thousandths of a core for `cpu`, whole units else; and as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The amount.
    pub amount: i64,
    /// The quantity as it was written.
    pub text: String,
}

/// Settings of the kubelets; what is not set is the family's default, or Kubernetes'.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletSettings {
    /// Addresses of the cluster's DNS; none means what the cluster has.
    pub cluster_dns: Vec<IpAddr>,
    /// Pods a node takes at most.
    pub max_pods: Option<u32>,
    /// Pods a node takes per core; zero means no limit.
    pub pods_per_core: Option<u32>,
    /// Kept for the system: `cpu`, `memory`, `ephemeral-storage`, `pid`.
    pub system_reserved: BTreeMap<String, Reserved>,
    /// Kept for Kubernetes: the same resources.
    pub kube_reserved: BTreeMap<String, Reserved>,
    /// Signals that evict at once.
    pub eviction_hard: BTreeMap<Signal, Threshold>,
    /// Signals that evict after a while.
    pub eviction_soft: BTreeMap<Signal, Threshold>,
    /// How long, for each of these.
    pub eviction_soft_grace_period: BTreeMap<Signal, SignedDuration>,
    /// Seconds a pod has at most that is evicted after a while.
    pub eviction_max_pod_grace_period: Option<u32>,
    /// Disk usage in per cent at which images are removed.
    pub image_gc_high_threshold_percent: Option<u8>,
    /// Disk usage in per cent down to which images are removed.
    pub image_gc_low_threshold_percent: Option<u8>,
    /// Whether CPU limits are enforced.
    pub cpu_cfs_quota: Option<bool>,
    /// Everything else of `KubeletConfiguration`, by its own names. Only some families take it.
    pub extra: BTreeMap<String, Value>,
}

impl KubeletSettings {
    /// The name of each field above in `KubeletConfiguration`.
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
