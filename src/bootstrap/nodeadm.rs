//! User data of Amazon Linux 2023: a `NodeConfig` for nodeadm.
//!
//! Source: spec/aws.md §3.3; nodeadm, `node.eks.aws/v1alpha1`.

use serde_json::json;

use crate::bootstrap::mime::{MimePart, SHELL};
use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::{BootstrapError, mime};
use crate::text::yaml;

const FORMAT: &str = "Amazon Linux 2023";
const NODE_CONFIG: &str = "application/node.eks.aws";

/// Renders the parts of the user's own user data, then the generated part. nodeadm merges documents
/// in order, so the generated part takes precedence.
pub(super) fn render(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    let mut parts =
        mime::user_parts(&node.class.user_data, FORMAT, |text| match yaml::parse_mapping(text) {
            Some(_) => NODE_CONFIG,
            None => SHELL,
        })?;
    parts.push(MimePart::new(NODE_CONFIG, node_config_document(node)?));
    Ok(mime::write_archive(&parts))
}

fn node_config_document(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    let home = node.home;
    let (endpoint, ca) = node.api_server()?;
    let cidr = home.service_cidr.as_ref().filter(|cidr| !cidr.is_empty());
    let cidr = cidr.ok_or(BootstrapError::ServiceCidrUnknown)?;
    let taints = node.taints.iter().map(|taint| {
        let (key, value, effect) = (&taint.key, &taint.value, taint.effect.as_str());
        match value.as_str() {
            "" => json!({"key": key, "effect": effect}),
            _ => json!({"key": key, "value": value, "effect": effect}),
        }
    });
    let mut kubelet = node.kubelet.config_fields();
    if !node.taints.is_empty() {
        kubelet.insert("registerWithTaints".to_owned(), taints.collect());
    }
    let mut document = json!({
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {
            "cluster": {
                "name": home.name,
                "apiServerEndpoint": endpoint,
                "certificateAuthority": ca,
                "cidr": cidr,
            },
            "kubelet": {
                "config": kubelet,
                "flags": [format!("--node-labels=\"{}\"", node.label_text())],
            },
        },
    });
    if node.class.raid0 {
        document["spec"]["instance"] = json!({"localStorage": {"strategy": "RAID0"}});
    }
    let items = document.as_object().cloned().unwrap_or_default();
    Ok(yaml::block_mapping(&items, 0))
}
