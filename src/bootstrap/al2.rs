//! User data of Amazon Linux 2: a script that calls `/etc/eks/bootstrap.sh`.
//!
//! Source: spec/aws.md §3.2.

use crate::bootstrap::mime::{MimePart, SHELL};
use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::shell_quote::quote_shell;
use crate::bootstrap::{BootstrapError, mime};

const FORMAT: &str = "Amazon Linux 2";

/// Renders the parts of the user's own user data, then the generated part.
pub(super) fn render(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    node.kubelet.without_extra(FORMAT)?;
    let mut parts = mime::user_parts(&node.class.user_data, FORMAT, |_| SHELL)?;
    parts.push(MimePart::new(SHELL, bootstrap_script(node)));
    Ok(mime::write_archive(&parts))
}

fn bootstrap_script(node: &NodeConfig<'_>) -> String {
    let home = node.home;
    let mut lines = vec![format!("/etc/eks/bootstrap.sh {}", quote_shell(&home.name))];
    // If the endpoint or the CA is missing, the script requests both from EKS.
    if !home.endpoint.is_empty() && !home.ca.is_empty() {
        lines.push(format!("--apiserver-endpoint {}", quote_shell(&home.endpoint)));
        lines.push(format!("--b64-cluster-ca {}", quote_shell(&home.ca)));
    }
    if home.ipv6 {
        lines.push("--ip-family ipv6".to_owned());
    }
    if let Some(dns) = node.kubelet.cluster_dns.first() {
        lines.push(format!("--dns-cluster-ip '{dns}'"));
    }
    lines.push("--use-max-pods false".to_owned());
    lines.push(format!("--kubelet-extra-args {}", quote_shell(&node.kubelet_extra_args())));
    if node.class.raid0 {
        lines.push("--local-disks raid0".to_owned());
    }
    format!(
        "#!/bin/bash -xe\n\
         exec > >(tee /var/log/user-data.log|logger -t user-data -s 2>/dev/console) 2>&1\n{}\n",
        lines.join(" \\\n  ")
    )
}
