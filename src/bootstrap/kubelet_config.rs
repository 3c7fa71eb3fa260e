//! Kubelet settings, as flags and as a configuration file.
//!
//! Source: spec/aws.md §1.3 and §3.2; Kubernetes, `KubeletConfiguration` v1beta1.

use core::net::IpAddr;
use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use crate::bootstrap::shell_quote::checked_word;
use crate::bootstrap::{BootstrapError, ClusterEndpoint, LaunchContext};
use crate::model::node_class::NodeClass;
use crate::model::node_class::kubelet::{KubeletSettings, Reserved, Signal, Threshold};

/// Default eviction thresholds of the kubelet on Linux. A flag that sets the thresholds of some
/// signals disables the defaults of all others, and k3s has different defaults. Images without EKS
/// therefore always get all of these thresholds. Source: Kubernetes, node-pressure eviction.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// All kubelet settings of a node. Every string is checked, so that no flag or shell misinterprets
/// it.
pub(super) struct KubeletConfig {
    /// Addresses of the cluster DNS. Empty if not known.
    pub(super) cluster_dns: Vec<IpAddr>,
    /// Maximum number of pods.
    pub(super) max_pods: i64,
    /// Maximum number of pods per core.
    pub(super) pods_per_core: Option<u32>,
    /// Resources reserved for the system.
    pub(super) system_reserved: BTreeMap<String, String>,
    /// Resources reserved for Kubernetes.
    pub(super) kube_reserved: BTreeMap<String, String>,
    /// Hard eviction thresholds.
    pub(super) eviction_hard: BTreeMap<String, String>,
    /// Soft eviction thresholds.
    pub(super) eviction_soft: BTreeMap<String, String>,
    /// Grace periods of the soft eviction thresholds.
    pub(super) eviction_soft_grace_period: BTreeMap<String, String>,
    /// Maximum grace period of pods in a soft eviction, in seconds.
    pub(super) eviction_max_pod_grace_period: Option<u32>,
    /// Disk usage in percent at which image garbage collection starts.
    pub(super) image_gc_high: Option<u8>,
    /// Disk usage in percent at which image garbage collection stops.
    pub(super) image_gc_low: Option<u8>,
    /// Whether CPU limits are enforced.
    pub(super) cpu_cfs_quota: Option<bool>,
    /// All remaining settings, by their names in `KubeletConfiguration`.
    pub(super) extra: BTreeMap<String, Value>,
}

impl KubeletConfig {
    /// Settings for the kubelet of an EKS image. The image sets all other settings itself.
    pub(super) fn of_eks(
        class: &NodeClass,
        home: &ClusterEndpoint,
        seed: &LaunchContext<'_>,
    ) -> Result<Self, BootstrapError> {
        let kubelet = &class.kubelet;
        let cluster_dns = match kubelet.cluster_dns.as_slice() {
            [] => home.dns.into_iter().collect(),
            addresses => addresses.to_vec(),
        };
        let settings = Self {
            cluster_dns,
            max_pods: kubelet.max_pods.map_or(seed.max_pods, i64::from),
            pods_per_core: kubelet.pods_per_core,
            system_reserved: reserved_texts(&kubelet.system_reserved),
            kube_reserved: reserved_texts(&kubelet.kube_reserved),
            eviction_hard: threshold_texts(&kubelet.eviction_hard),
            eviction_soft: threshold_texts(&kubelet.eviction_soft),
            eviction_soft_grace_period: kubelet
                .eviction_soft_grace_period
                .iter()
                .map(|(signal, period)| (signal.as_str().to_owned(), go_duration(*period)))
                .collect(),
            eviction_max_pod_grace_period: kubelet.eviction_max_pod_grace_period,
            image_gc_high: kubelet.image_gc_high_threshold_percent,
            image_gc_low: kubelet.image_gc_low_threshold_percent,
            cpu_cfs_quota: kubelet.cpu_cfs_quota,
            extra: kubelet.extra.clone(),
        };
        settings.check_strings()
    }

    /// Settings for any other kubelet, including the defaults that the scheduler assumes.
    pub(super) fn of_others(
        class: &NodeClass,
        home: &ClusterEndpoint,
        seed: &LaunchContext<'_>,
    ) -> Result<Self, BootstrapError> {
        let mut settings = Self::of_eks(class, home, seed)?;
        for (signal, threshold) in EVICTION_HARD {
            let entry = settings.eviction_hard.entry(signal.to_owned());
            entry.or_insert_with(|| threshold.to_owned());
        }
        settings.check_strings()
    }

    /// Returns the settings if every string is valid in a flag.
    fn check_strings(self) -> Result<Self, BootstrapError> {
        let maps =
            [&self.system_reserved, &self.kube_reserved, &self.eviction_hard, &self.eviction_soft];
        for (key, value) in maps.iter().copied().flatten() {
            checked_word("kubelet setting", key, "-./")?;
            checked_word("kubelet setting", value, "-.+%")?;
        }
        Ok(self)
    }

    /// Returns an error if there are settings that only a configuration file supports.
    pub(super) fn without_extra(&self, format: &'static str) -> Result<(), BootstrapError> {
        match self.extra.keys().next() {
            Some(setting) => Err(BootstrapError::Setting { setting: setting.clone(), format }),
            None => Ok(()),
        }
    }

    /// Flags without dashes, in Karpenter's order. Labels, taints and DNS are not included.
    pub(super) fn flags(&self) -> Vec<(&'static str, String)> {
        let mut flags = vec![
            ("max-pods", self.max_pods.to_string()),
            ("pods-per-core", or_empty(self.pods_per_core)),
            ("system-reserved", join_pairs(&self.system_reserved, "=")),
            ("kube-reserved", join_pairs(&self.kube_reserved, "=")),
            ("eviction-hard", join_pairs(&self.eviction_hard, "<")),
            ("eviction-soft", join_pairs(&self.eviction_soft, "<")),
            ("eviction-soft-grace-period", join_pairs(&self.eviction_soft_grace_period, "=")),
            ("eviction-max-pod-grace-period", or_empty(self.eviction_max_pod_grace_period)),
            ("image-gc-high-threshold", or_empty(self.image_gc_high)),
            ("image-gc-low-threshold", or_empty(self.image_gc_low)),
            ("cpu-cfs-quota", or_empty(self.cpu_cfs_quota)),
        ];
        flags.retain(|(_, value)| !value.is_empty());
        flags
    }

    /// The settings as `KubeletConfiguration`, sorted by name, with DNS and the remaining settings.
    pub(super) fn config_fields(&self) -> Map<String, Value> {
        let dns = (!self.cluster_dns.is_empty()).then(|| json!(self.cluster_dns));
        let values = [
            dns,
            Some(json!(self.max_pods)),
            self.pods_per_core.map(Value::from),
            map_json(&self.system_reserved),
            map_json(&self.kube_reserved),
            map_json(&self.eviction_hard),
            map_json(&self.eviction_soft),
            map_json(&self.eviction_soft_grace_period),
            self.eviction_max_pod_grace_period.map(Value::from),
            self.image_gc_high.map(Value::from),
            self.image_gc_low.map(Value::from),
            self.cpu_cfs_quota.map(Value::from),
        ];
        let managed = KubeletSettings::MANAGED.iter().zip(values);
        let managed = managed.filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        let mut all = self.extra.clone();
        all.extend(managed);
        all.into_iter().collect()
    }
}

fn reserved_texts(all: &BTreeMap<String, Reserved>) -> BTreeMap<String, String> {
    all.iter().map(|(resource, amount)| (resource.clone(), amount.text.clone())).collect()
}

/// The thresholds as texts, by the names of their signals.
fn threshold_texts(all: &BTreeMap<Signal, Threshold>) -> BTreeMap<String, String> {
    all.iter()
        .map(|(signal, threshold)| (signal.as_str().to_owned(), threshold.to_kubelet_string()))
        .collect()
}

/// The map as JSON. `None` if it is empty.
fn map_json(map: &BTreeMap<String, String>) -> Option<Value> {
    (!map.is_empty()).then(|| json!(map))
}

/// The value as text. Empty if it is not set.
fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Joins the pairs of a map as `a=1,b=2`. Thresholds have `<` instead of `=`.
pub(super) fn join_pairs(map: &BTreeMap<String, String>, mark: &str) -> String {
    let pairs = map.iter().map(|(key, value)| format!("{key}{mark}{value}"));
    pairs.collect::<Vec<_>>().join(",")
}

/// A duration in Go's format, such as `1m30s`.
fn go_duration(period: SignedDuration) -> String {
    let seconds = period.as_secs().max(0);
    let millis = period.subsec_millis().max(0);
    let parts = [
        (seconds / 3600, "h"),
        (seconds % 3600 / 60, "m"),
        (seconds % 60, "s"),
        (i64::from(millis), "ms"),
    ];
    let text: String = parts
        .iter()
        .filter(|(amount, _)| *amount > 0)
        .map(|(amount, unit)| format!("{amount}{unit}"))
        .collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}
