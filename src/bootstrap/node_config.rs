//! Settings of a node in any format: labels and taints that a kubelet may set, and kubelet
//! settings.
//!
//! Source: spec/aws.md §3.1 and §9.2.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::bootstrap::kubelet_config::{KubeletConfig, join_pairs};
use crate::bootstrap::shell_quote::checked_word;
use crate::bootstrap::{BootstrapError, ClusterEndpoint, LaunchContext};
use crate::model::labels::{DO_NOT_SYNC_TAINTS, Labels};
use crate::model::node_class::NodeClass;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::taint::Taint;

/// A kubelet may not set labels of these domains on its own node. The daemon sets them after
/// registration. Source: Kubernetes, NodeRestriction.
const FORBIDDEN_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// The settings of a node.
pub(super) struct NodeConfig<'a> {
    /// Its node class.
    pub(super) class: &'a NodeClass,
    /// Its cluster.
    pub(super) home: &'a ClusterEndpoint,
    /// Values of its launch.
    pub(super) seed: &'a LaunchContext<'a>,
    /// Labels that the kubelet sets.
    pub(super) labels: Labels,
    /// Taints that the node registers with, by key and effect, without duplicates.
    pub(super) taints: Vec<Taint>,
    /// Settings of its kubelet.
    pub(super) kubelet: KubeletConfig,
}

impl<'a> NodeConfig<'a> {
    /// Returns the settings for this launch.
    pub(super) fn for_launch(
        class: &'a NodeClass,
        home: &'a ClusterEndpoint,
        seed: &'a LaunchContext<'a>,
    ) -> Result<Self, BootstrapError> {
        let mut labels: Labels = seed.labels.clone();
        labels.retain(|key, _| !is_forbidden(key));
        // The node registers with all taints, so that a taint removed by an agent is not added
        // again. A custom template may omit the taints. The taints are then synced after
        // registration.
        if !matches!(class.bootstrap, Bootstrap::Custom { .. }) {
            labels.insert(DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
        }
        for (key, value) in &labels {
            checked_word("label", key, "-_./")?;
            checked_word("value of a label", value, "-_.")?;
        }
        let mut taints = BTreeMap::new();
        for taint in seed.taints {
            checked_word("taint", &taint.key, "-_./")?;
            checked_word("value of a taint", &taint.value, "-_.")?;
            let key = (taint.key.as_str(), taint.effect);
            taints.entry(key).or_insert(taint);
        }
        let kubelet = match class.bootstrap {
            Bootstrap::Eks => KubeletConfig::of_eks(class, home, seed)?,
            _ => KubeletConfig::of_others(class, home, seed)?,
        };
        Ok(Self {
            class,
            home,
            seed,
            labels,
            taints: taints.into_values().cloned().collect(),
            kubelet,
        })
    }

    /// The labels as a kubelet flag. Empty if there are none.
    pub(super) fn label_text(&self) -> String {
        join_pairs(&self.labels, "=")
    }

    /// The taints as a kubelet flag.
    pub(super) fn taint_texts(&self) -> Vec<String> {
        self.taints.iter().map(taint_flag).collect()
    }

    /// The taints as in `KubeletConfiguration`.
    pub(super) fn taint_objects(&self) -> Vec<Value> {
        self.taints
            .iter()
            .map(|taint| {
                json!({"key": taint.key, "value": taint.value, "effect": taint.effect.as_str()})
            })
            .collect()
    }

    /// The value of `--kubelet-extra-args` on AL2 and Windows, in Karpenter's order.
    pub(super) fn kubelet_extra_args(&self) -> String {
        let (labels, taints) = (self.label_text(), self.taint_texts().join(","));
        let registration = [("node-labels", labels), ("register-with-taints", taints)];
        let mut arguments = Vec::from(registration);
        arguments.retain(|(_, value)| !value.is_empty());
        arguments.extend(self.kubelet.flags());
        let arguments = arguments.into_iter().map(|(name, value)| {
            // Numbers and booleans are not quoted. Values with other characters are quoted for
            // systemd.
            match value.chars().all(|c| c.is_ascii_alphanumeric()) {
                true => format!("--{name}={value}"),
                false => format!("--{name}=\"{value}\""),
            }
        });
        arguments.collect::<Vec<_>>().join(" ")
    }

    /// The endpoint and CA of the API server, for images that cannot request them.
    pub(super) fn api_server(&self) -> Result<(&'a str, &'a str), BootstrapError> {
        match (self.home.endpoint.as_str(), self.home.ca.as_str()) {
            ("", _) => Err(BootstrapError::Unknown("endpoint")),
            (_, "") => Err(BootstrapError::Unknown("certificate authority")),
            both => Ok(both),
        }
    }

    /// The secret that this bootstrap needs.
    pub(super) fn bootstrap_secret(&self) -> Result<&'a str, BootstrapError> {
        let secret = self.seed.secret.map(str::trim);
        let bootstrap = self.class.bootstrap.as_str();
        secret.filter(|secret| !secret.is_empty()).ok_or(BootstrapError::SecretMissing(bootstrap))
    }
}

fn is_forbidden(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return false;
    };
    FORBIDDEN_DOMAINS.iter().any(|forbidden| {
        let below = domain.strip_suffix(forbidden);
        below.is_some_and(|below| below.is_empty() || below.ends_with('.'))
    })
}

/// Formats a taint as `key=value:Effect`. Older kubelets require the equals sign even without a
/// value.
fn taint_flag(taint: &Taint) -> String {
    format!("{}={}:{}", taint.key, taint.value, taint.effect.as_str())
}
