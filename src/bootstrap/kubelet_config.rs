//! The settings of a kubelet, as flags and as a configuration.
//! It must not know in which file of which image they are written.
//!
//! Source: spec/aws.md §1.3 and §3.2; Kubernetes, `KubeletConfiguration` v1beta1.

use core::net::IpAddr;
use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use crate::bootstrap::shell_quote::word;
use crate::bootstrap::{BootstrapError, ClusterEndpoint, LaunchContext};
use crate::model::node_class::NodeClass;
use crate::model::node_class::kubelet::{KubeletSettings, Reserved, Signal, Threshold};

/// When the kubelet evicts pods on Linux where nobody says it. A flag that names some signals
/// switches the others off, and k3s has defaults of its own: so others than images of EKS are
/// always told all of them. Source: Kubernetes, node-pressure eviction.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// All that a kubelet is told. Texts are such that no flag and no shell takes them for more.
pub(super) struct KubeletConfig {
    /// Addresses of the cluster's DNS; empty where it is not known.
    pub(super) cluster_dns: Vec<IpAddr>,
    /// Pods a node takes at most.
    pub(super) max_pods: i64,
    /// Pods a node takes per core.
    pub(super) pods_per_core: Option<u32>,
    /// Kept for the system.
    pub(super) system_reserved: BTreeMap<String, String>,
    /// Kept for Kubernetes.
    pub(super) kube_reserved: BTreeMap<String, String>,
    /// Signals that evict at once.
    pub(super) eviction_hard: BTreeMap<String, String>,
    /// Signals that evict after a while.
    pub(super) eviction_soft: BTreeMap<String, String>,
    /// How long, for each of these.
    pub(super) eviction_soft_grace_period: BTreeMap<String, String>,
    /// Seconds a pod has at most that is evicted after a while.
    pub(super) eviction_max_pod_grace_period: Option<u32>,
    /// Disk usage in per cent at which images are removed.
    pub(super) image_gc_high: Option<u8>,
    /// Disk usage in per cent down to which images are removed.
    pub(super) image_gc_low: Option<u8>,
    /// Whether CPU limits are enforced.
    pub(super) cpu_cfs_quota: Option<bool>,
    /// Everything else, by the names of `KubeletConfiguration`.
    pub(super) extra: BTreeMap<String, Value>,
}

impl KubeletConfig {
    /// What the kubelet of an image of EKS is told: it sees to the rest by itself.
    pub(super) fn of_eks(
        class: &NodeClass,
        home: &ClusterEndpoint,
        seed: &LaunchContext<'_>,
    ) -> Result<Self, BootstrapError> {
        let own = &class.kubelet;
        let given = |(signal, own): (&Signal, &Threshold)| (signal.as_str().to_owned(), own.text());
        let cluster_dns = match own.cluster_dns.as_slice() {
            [] => home.dns.into_iter().collect(),
            some => some.to_vec(),
        };
        let period = |(signal, own): (&Signal, &SignedDuration)| {
            (signal.as_str().to_owned(), duration(*own))
        };
        let settings = Self {
            cluster_dns,
            max_pods: own.max_pods.map_or(seed.max_pods, i64::from),
            pods_per_core: own.pods_per_core,
            system_reserved: reserved(&own.system_reserved),
            kube_reserved: reserved(&own.kube_reserved),
            eviction_hard: own.eviction_hard.iter().map(given).collect(),
            eviction_soft: own.eviction_soft.iter().map(given).collect(),
            eviction_soft_grace_period: own.eviction_soft_grace_period.iter().map(period).collect(),
            eviction_max_pod_grace_period: own.eviction_max_pod_grace_period,
            image_gc_high: own.image_gc_high_threshold_percent,
            image_gc_low: own.image_gc_low_threshold_percent,
            cpu_cfs_quota: own.cpu_cfs_quota,
            extra: own.extra.clone(),
        };
        settings.checked()
    }

    /// What any other kubelet is told: also what the scheduler assumes.
    pub(super) fn of_others(
        class: &NodeClass,
        home: &ClusterEndpoint,
        seed: &LaunchContext<'_>,
    ) -> Result<Self, BootstrapError> {
        let mut own = Self::of_eks(class, home, seed)?;
        for (signal, threshold) in EVICTION_HARD {
            let entry = own.eviction_hard.entry(signal.to_owned());
            entry.or_insert_with(|| threshold.to_owned());
        }
        own.checked()
    }

    /// The settings, if no text of theirs is more than a text to a flag.
    fn checked(self) -> Result<Self, BootstrapError> {
        let maps = [
            &self.system_reserved,
            &self.kube_reserved,
            &self.eviction_hard,
            &self.eviction_soft,
        ];
        for (key, value) in maps.iter().copied().flatten() {
            word("kubelet setting", key, "-./")?;
            word("kubelet setting", value, "-.+%")?;
        }
        Ok(self)
    }

    /// A fault where there are settings that only a configuration can say.
    pub(super) fn without_extra(&self, format: &'static str) -> Result<(), BootstrapError> {
        match self.extra.keys().next() {
            Some(setting) => Err(BootstrapError::Setting {
                setting: setting.clone(),
                format,
            }),
            None => Ok(()),
        }
    }

    /// Flags without their dashes, in Karpenter's order. Labels, taints and DNS are not among them.
    pub(super) fn flags(&self) -> Vec<(&'static str, String)> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let some = |map: &BTreeMap<String, String>, mark: &str| {
            (!map.is_empty()).then(|| joined(map, mark))
        };
        let percent = |percent: Option<u8>| percent.map(|percent| percent.to_string());
        let all = [
            ("max-pods", Some(self.max_pods.to_string())),
            ("pods-per-core", number(self.pods_per_core)),
            ("system-reserved", some(&self.system_reserved, "=")),
            ("kube-reserved", some(&self.kube_reserved, "=")),
            ("eviction-hard", some(&self.eviction_hard, "<")),
            ("eviction-soft", some(&self.eviction_soft, "<")),
            (
                "eviction-soft-grace-period",
                some(&self.eviction_soft_grace_period, "="),
            ),
            (
                "eviction-max-pod-grace-period",
                number(self.eviction_max_pod_grace_period),
            ),
            ("image-gc-high-threshold", percent(self.image_gc_high)),
            ("image-gc-low-threshold", percent(self.image_gc_low)),
            (
                "cpu-cfs-quota",
                self.cpu_cfs_quota.map(|own| own.to_string()),
            ),
        ];
        let said = all.into_iter();
        said.filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }

    /// The same as `KubeletConfiguration`, by its names, sorted; DNS and everything else with it.
    pub(super) fn config(&self) -> Map<String, Value> {
        let map = |map: &BTreeMap<String, String>| (!map.is_empty()).then(|| json!(map));
        let dns = (!self.cluster_dns.is_empty()).then(|| json!(self.cluster_dns));
        let values = [
            dns,
            Some(json!(self.max_pods)),
            self.pods_per_core.map(Value::from),
            map(&self.system_reserved),
            map(&self.kube_reserved),
            map(&self.eviction_hard),
            map(&self.eviction_soft),
            map(&self.eviction_soft_grace_period),
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

fn reserved(all: &BTreeMap<String, Reserved>) -> BTreeMap<String, String> {
    let named = all.iter();
    named
        .map(|(resource, own)| (resource.clone(), own.text.clone()))
        .collect()
}

/// `a=1,b=2`, with `<` in place of `=` for thresholds.
pub(super) fn joined(map: &BTreeMap<String, String>, mark: &str) -> String {
    let each = map.iter().map(|(key, value)| format!("{key}{mark}{value}"));
    each.collect::<Vec<_>>().join(",")
}

/// A duration as Go reads it, such as `1m30s`.
fn duration(own: SignedDuration) -> String {
    let seconds = own.as_secs().max(0);
    let millis = own.subsec_millis().max(0);
    let parts = [
        (seconds / 3600, "h"),
        (seconds % 3600 / 60, "m"),
        (seconds % 60, "s"),
        (i64::from(millis), "ms"),
    ];
    let some = parts.iter().filter(|(amount, _)| *amount > 0);
    let text: String = some
        .map(|(amount, unit)| format!("{amount}{unit}"))
        .collect();
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}
