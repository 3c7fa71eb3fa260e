//! User data of Talos: the user's machine configuration with the generated kubelet settings.
//!
//! Only the lines of `machine.kubelet` are replaced. All other lines are kept as written, because
//! YAML parsers and writers do not always agree (`0644`, `1.10`, comments, further documents).
//!
//! Source: spec/aws.md §9.4; Talos, `v1alpha1` configuration.

use serde_json::{Map, Value, json};

use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::{BootstrapError, is_content};
use crate::text::yaml;

const WHAT: &str = "machine configuration";
/// Resources that Talos reserves by default. The scheduler does not know these defaults.
const RESERVED_BY_TALOS: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

fn template_error(reason: impl Into<String>) -> BootstrapError {
    BootstrapError::Template { what: WHAT, reason: reason.into() }
}

/// Renders the machine configuration of this node.
pub(super) fn render(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    if !node.class.user_data.trim().is_empty() {
        return Err(BootstrapError::UserData {
            format: "Talos",
            reason: "user data is the machine configuration: put it there".to_owned(),
        });
    }
    let text = node.bootstrap_secret()?.replace("\r\n", "\n");
    let mut documents = split_documents(&text);
    let mut found = None;
    for (place, document) in documents.iter().enumerate() {
        let items = yaml::parse_mapping(document);
        if let Some(items) = items.filter(|items| items.contains_key("machine")) {
            if found.is_some() {
                return Err(template_error("two of its documents have `machine`"));
            }
            found = Some((place, items));
        }
    }
    let (place, mut items) =
        found.ok_or_else(|| template_error("no document of it has `machine`"))?;
    let kubelet = merge_kubelet(&items, node)?;
    let patched = splice_kubelet(&documents[place], &kubelet).ok_or_else(|| {
        template_error("`machine` is not in block style, as `talosctl gen config` writes it")
    })?;
    // Parses the result and compares it with the intended configuration.
    items["machine"]["kubelet"] = Value::Object(kubelet);
    if yaml::parse_mapping(&patched) != Some(items) {
        return Err(template_error(
            "the lines of `machine.kubelet` cannot be distinguished from the others",
        ));
    }
    documents[place] = patched;
    Ok(documents.concat())
}

/// Splits the text into documents, each with its separator line. Three dashes at the start of a
/// line are always a separator. Source: YAML 1.2 §9.1.2.
fn split_documents(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines() {
        let starts = line == "---" || line.starts_with("--- ");
        let last = all.last_mut();
        match last.filter(|document| !starts || document.is_empty()) {
            Some(last) => last.push_str(&format!("{line}\n")),
            None => all.push(format!("{line}\n")),
        }
    }
    all
}

/// Returns the merged `machine.kubelet`.
fn merge_kubelet(
    items: &Map<String, Value>,
    node: &NodeConfig<'_>,
) -> Result<Map<String, Value>, BootstrapError> {
    let machine = items["machine"].as_object();
    let machine = machine.ok_or_else(|| template_error("`machine` is not a mapping"))?;
    // The configuration of a control plane contains the keys of the whole cluster.
    if machine.get("type").and_then(Value::as_str) != Some("worker") {
        return Err(template_error("`machine.type` is not `worker`"));
    }
    let mut kubelet = nested_mapping(machine, "kubelet")?;
    let mut arguments = nested_mapping(&kubelet, "extraArgs")?;
    let labels = match arguments.get("node-labels") {
        None => node.label_text(),
        Some(Value::String(labels)) if labels.is_empty() => node.label_text(),
        Some(Value::String(labels)) => format!("{labels},{}", node.label_text()),
        Some(_) => return Err(template_error("`node-labels` of the kubelet is not a text")),
    };
    arguments.insert("node-labels".to_owned(), Value::String(labels));
    let mut config = nested_mapping(&kubelet, "extraConfig")?;
    let taints = node.taint_objects();
    let written = config.get("registerWithTaints").and_then(Value::as_array);
    let unknown = written.into_iter().flatten().find(|taint| {
        !taints.iter().any(|pool_taint| {
            taint["key"] == pool_taint["key"] && taint["effect"] == pool_taint["effect"]
        })
    });
    if let Some(taint) = unknown {
        return Err(template_error(format!(
            "`registerWithTaints` has {}, of which its pool knows nothing: say it there, as \
             `taint` or `startup_taint`",
            taint["key"]
        )));
    }
    let mut node_config = node.kubelet.config_fields();
    // Talos has a separate field for the cluster DNS.
    node_config.remove("clusterDNS");
    let mut reserved = nested_mapping(&node_config, "systemReserved")?;
    for resource in RESERVED_BY_TALOS {
        reserved.entry(resource).or_insert_with(|| "0".into());
    }
    node_config.insert("systemReserved".to_owned(), Value::Object(reserved));
    config.extend(node_config);
    config.insert("registerWithTaints".to_owned(), Value::Array(taints));
    let dns = &node.class.kubelet.cluster_dns;
    if !dns.is_empty() {
        kubelet.insert("clusterDNS".to_owned(), json!(dns));
    }
    kubelet.insert("extraArgs".to_owned(), Value::Object(arguments));
    kubelet.insert("extraConfig".to_owned(), Value::Object(config));
    Ok(kubelet)
}

/// Returns a nested mapping. Empty if it is missing.
fn nested_mapping(
    parent: &Map<String, Value>,
    name: &str,
) -> Result<Map<String, Value>, BootstrapError> {
    match parent.get(name) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(items)) => Ok(items.clone()),
        Some(_) => Err(template_error(format!("`{name}` of the kubelet is not a mapping"))),
    }
}

/// The number of spaces at the start of the line.
fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Replaces the lines of `machine.kubelet` in the text. `None` if these lines cannot be identified.
fn splice_kubelet(text: &str, kubelet: &Map<String, Value>) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let machine = lines.iter().position(|line| {
        let rest = line.trim_start().strip_prefix("machine:");
        indent(line) == 0 && rest.is_some_and(|rest| !is_content(rest))
    })?;
    let inside =
        lines[machine + 1..].iter().take_while(|line| !is_content(line) || indent(line) > 0);
    let end = machine + 1 + inside.count();
    let first = lines[machine + 1..end].iter().find(|line| is_content(line))?;
    let depth = indent(first);
    let kubelet_line = (machine + 1..end).find(|index| {
        let line = lines[*index];
        is_content(line) && indent(line) == depth && line.trim_start().starts_with("kubelet:")
    });
    let (start, after) = match kubelet_line {
        Some(key) => {
            let section = lines[key + 1..end]
                .iter()
                .take_while(|line| !is_content(line) || indent(line) > depth);
            // Comments before the next key belong to that key.
            let last = (key + 1..=key + section.count()).rfind(|index| is_content(lines[*index]));
            (key, last.unwrap_or(key) + 1)
        }
        None => (machine + 1, machine + 1),
    };
    let mut out: Vec<String> = lines[..start].iter().map(|line| (*line).to_owned()).collect();
    out.push(format!("{}kubelet:", " ".repeat(depth)));
    let block = yaml::block_mapping(kubelet, depth + 2);
    out.extend(block.lines().map(str::to_owned));
    out.extend(lines[after..].iter().map(|line| (*line).to_owned()));
    Some(out.join("\n") + "\n")
}
