//! User data for `kubeadm join`: runtime, kubelet and kubeadm are in the image.
//!
//! Source: spec/aws.md §9.4; kubeadm, `JoinConfiguration`.

use serde_json::{Value, json};

use crate::bootstrap::join_script::{NODE_NAME, PROVIDER_ID};
use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::{BootstrapError, ca_cert_hash, join_script};
use crate::text::yaml;

const FORMAT: &str = "kubeadm";
/// The first minor version of Kubernetes whose kubeadm supports `v1beta4`, which has kubelet
/// arguments as a list.
const LISTS_SINCE: u32 = 31;
/// A file in memory, so that the join token is never on disk.
const PATH: &str = "/run/outrigger-join.yaml";

/// Renders the parts of the user's own user data, then the script.
pub(super) fn render(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    node.kubelet.without_extra(FORMAT)?;
    let script = format!(
        "{}{}kubeadm join --config {PATH}\nrm -f {PATH}\n",
        join_script::preamble(node)?,
        join_script::write_file(PATH, &join_configuration(node)?)
    );
    join_script::with_user_parts(node, script)
}

fn join_configuration(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    let (endpoint, ca) = node.api_server()?;
    let (host, port) = join_script::host_port(endpoint, 443);
    let mut arguments = vec![("node-labels", node.label_text())];
    arguments.push(("provider-id", PROVIDER_ID.to_owned()));
    let dns: Vec<String> = node.class.kubelet.cluster_dns.iter().map(ToString::to_string).collect();
    if !dns.is_empty() {
        arguments.push(("cluster-dns", dns.join(",")));
    }
    arguments.extend(node.kubelet.flags());
    let (version, arguments) = if minor_version(&node.home.version) >= LISTS_SINCE {
        let each = arguments.iter().map(|(name, value)| json!({"name": name, "value": value}));
        ("v1beta4", each.collect::<Value>())
    } else {
        let each = arguments.into_iter().map(|(name, value)| (name.to_owned(), json!(value)));
        ("v1beta3", Value::Object(each.collect()))
    };
    let document = json!({
        "apiVersion": format!("kubeadm.k8s.io/{version}"),
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": format!("{host}:{port}"),
                "token": node.bootstrap_secret()?,
                "caCertHashes": ca_cert_hash::certificate_hashes(ca)?,
            },
        },
        "nodeRegistration": {
            "name": NODE_NAME,
            "taints": node.taint_objects(),
            "kubeletExtraArgs": arguments,
        },
    });
    let items = document.as_object().cloned().unwrap_or_default();
    Ok(yaml::block_mapping(&items, 0))
}

/// Returns the minor version. A version that cannot be parsed is treated as the newest version.
fn minor_version(version: &str) -> u32 {
    let minor = version.split('.').nth(1);
    minor.and_then(|minor| minor.parse().ok()).unwrap_or(u32::MAX)
}
