//! Custom templates: replaces each `{{ name }}` with its value.

use serde_json::{Value, json};

use crate::bootstrap::join_script::host_port;
use crate::bootstrap::kubelet_config::join_pairs;
use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::{BootstrapError, ca_cert_hash, shell_quote};
use crate::text::yaml;

/// Names that a template may use. docs/decisions/015-user-data.md has the table.
const NAMES: [&str; 21] = [
    "api_host",
    "api_port",
    "ca",
    "ca_hash",
    "cluster_dns",
    "cluster_name",
    "endpoint",
    "eviction_hard",
    "image_name",
    "kube_reserved",
    "kubelet_args",
    "kubelet_config",
    "labels",
    "labels_json",
    "max_pods",
    "service_cidr",
    "system_reserved",
    "taints",
    "taints_json",
    "token",
    "version",
];

/// Names whose values may contain any characters. All other values are generated from checked
/// words.
const OUTSIDE: [&str; 9] = [
    "api_host",
    "api_port",
    "ca",
    "cluster_name",
    "endpoint",
    "image_name",
    "service_cidr",
    "token",
    "version",
];

/// Characters without special meaning in every shell, quoted or not.
const PLAIN: &str = "-_.:/=+@,%[]";

/// Maximum number of bytes between braces. No placeholder name with its filter is longer.
const BRACES_MAX: usize = 64;

fn template_error(reason: String) -> BootstrapError {
    BootstrapError::Template { what: "template of user data", reason }
}

/// Renders the template. Braces with anything other than a bare name are kept, because cloud-init
/// also has templates.
pub(super) fn render(template: &str, node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    if !node.class.user_data.trim().is_empty() {
        return Err(BootstrapError::UserData {
            format: "a template",
            reason: "user data is the template: put it there".to_owned(),
        });
    }
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (name, filter, left) = match parse_placeholder(after) {
            Some(name) => name,
            None => {
                out.push_str("{{");
                rest = after;
                continue;
            }
        };
        out.push_str(&filtered_value(name, filter, node)?);
        rest = left;
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the name, the filter, and the rest of the text after the braces. `None` if the braces
/// contain anything else.
fn parse_placeholder(after: &str) -> Option<(&str, Option<&str>, &str)> {
    let end = after.bytes().take(BRACES_MAX).position(|byte| byte == b'}')?;
    let (inner, left) = (&after[..end], after[end..].strip_prefix("}}")?);
    let (name, filter) = match inner.split_once('|') {
        Some((name, filter)) => (name.trim(), Some(filter.trim())),
        None => (inner.trim(), None),
    };
    (!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .then_some((name, filter, left))
}

fn filtered_value(
    name: &str,
    filter: Option<&str>,
    node: &NodeConfig<'_>,
) -> Result<String, BootstrapError> {
    let value = placeholder_value(name, node)?;
    match filter {
        Some("shell") => Ok(shell_quote::quote_shell(&value)),
        Some("powershell") => Ok(shell_quote::quote_powershell(&value)),
        Some("json") => Ok(Value::from(value).to_string()),
        Some("raw") => Ok(value),
        Some(other) => Err(template_error(format!(
            "there is no filter {other:?}: there are `shell`, `powershell`, `json` and `raw`"
        ))),
        None => {
            if OUTSIDE.contains(&name)
                && !value.chars().all(|c| c.is_ascii_alphanumeric() || PLAIN.contains(c))
            {
                return Err(template_error(format!(
                    "what {name} stands for has marks that a shell may take for more than text: \
                     write {{{{ {name} | shell }}}}, or another filter"
                )));
            }
            Ok(value)
        }
    }
}

fn placeholder_value(name: &str, node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    let (home, kubelet) = (node.home, &node.kubelet);
    Ok(match name {
        "api_host" => host_port(&home.endpoint, 443).0.to_owned(),
        "api_port" => host_port(&home.endpoint, 443).1,
        "ca" => home.ca.clone(),
        "ca_hash" => ca_cert_hash::certificate_hashes(&home.ca)?.swap_remove(0),
        "cluster_dns" => {
            let dns = kubelet.cluster_dns.first();
            let missing = "the address of the cluster's DNS is not known";
            dns.ok_or_else(|| template_error(missing.to_owned()))?.to_string()
        }
        "cluster_name" => home.name.clone(),
        "endpoint" => home.endpoint.clone(),
        "eviction_hard" => join_pairs(&kubelet.eviction_hard, "<"),
        "image_name" => node.seed.image_name.unwrap_or_default().to_owned(),
        "kube_reserved" => join_pairs(&kubelet.kube_reserved, "="),
        "kubelet_args" => {
            let flags = kubelet.flags().into_iter();
            let arguments = flags.map(|(name, value)| format!("--{name}={value}"));
            arguments.collect::<Vec<_>>().join(" ")
        }
        "kubelet_config" => Value::Object(kubelet.config_fields()).to_string(),
        "labels" => node.label_text(),
        "labels_json" => json!(node.labels).to_string(),
        "max_pods" => kubelet.max_pods.to_string(),
        "service_cidr" => {
            let cidr = home.service_cidr.clone();
            cidr.ok_or(BootstrapError::ServiceCidrUnknown)?
        }
        "system_reserved" => join_pairs(&kubelet.system_reserved, "="),
        "taints" => node.taint_texts().join(","),
        "taints_json" => Value::Array(node.taint_objects()).to_string(),
        "token" => node.bootstrap_secret()?.to_owned(),
        "version" => home.version.clone(),
        other => {
            let names = NAMES.map(yaml::write_scalar).join(", ");
            return Err(template_error(format!("nothing is named {other:?}: there are {names}")));
        }
    })
}
