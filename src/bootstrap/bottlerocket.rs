//! User data of Bottlerocket: its settings as TOML.
//!
//! Source: spec/aws.md §3.4; Bottlerocket, settings reference.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::bootstrap::BootstrapError;
use crate::bootstrap::node_config::NodeConfig;
use crate::model::node_class::image::ImageTerm;

const FORMAT: &str = "Bottlerocket";
/// From this Bottlerocket version on, `apiclient ephemeral-storage bind` selects the directories
/// itself.
const BINDS_BY_ITSELF: [u32; 3] = [1, 46, 0];
const MOUNT: &str = "000-mount-instance-storage";
const DIRS: [&str; 3] = ["/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"];

/// Merges the generated settings into the user's settings. Generated settings take precedence.
pub(super) fn render(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    node.kubelet.without_extra(FORMAT)?;
    if node.kubelet.pods_per_core.is_some_and(|pods_per_core| pods_per_core > 0) {
        return Err(BootstrapError::Setting { setting: "podsPerCore".to_owned(), format: FORMAT });
    }
    let mut all: Table = node.class.user_data.parse().map_err(|error: toml::de::Error| {
        // Only the parser message is reported, because the source excerpt may contain a secret.
        user_data_error(format!("it is not TOML: {}", error.message()))
    })?;
    let settings = table_entry(&mut all, "settings")?;
    let kubernetes = table_entry(settings, "kubernetes")?;
    set_cluster(kubernetes, node)?;
    let labels = table_entry(kubernetes, "node-labels")?;
    for (key, value) in &node.labels {
        labels.insert(key.clone(), Value::from(value.as_str()));
    }
    set_taints(kubernetes, node)?;
    set_kubelet(kubernetes, node);
    if node.class.raid0 {
        let commands = table_entry(settings, "bootstrap-commands")?;
        commands.insert(MOUNT.to_owned(), mount_command(node));
    }
    Ok(all.to_string())
}

fn user_data_error(reason: String) -> BootstrapError {
    BootstrapError::UserData { format: FORMAT, reason }
}

/// Returns the table with this name, and creates it if it is missing.
fn table_entry<'a>(parent: &'a mut Table, name: &str) -> Result<&'a mut Table, BootstrapError> {
    let entry = parent.entry(name);
    let value = entry.or_insert_with(|| Value::Table(Table::new()));
    let found = value.as_table_mut();
    found.ok_or_else(|| user_data_error(format!("{name} is not a table")))
}

fn set_cluster(kubernetes: &mut Table, node: &NodeConfig<'_>) -> Result<(), BootstrapError> {
    let (endpoint, ca) = node.api_server()?;
    let mut settings: Vec<(&str, Value)> = vec![
        ("api-server", endpoint.into()),
        ("cluster-name", node.home.name.as_str().into()),
        ("cluster-certificate", ca.into()),
        ("max-pods", node.kubelet.max_pods.into()),
    ];
    let dns: Vec<String> = node.kubelet.cluster_dns.iter().map(ToString::to_string).collect();
    match dns.as_slice() {
        [] => {}
        [address] => settings.push(("cluster-dns-ip", address.as_str().into())),
        _ => settings.push(("cluster-dns-ip", dns.into())),
    }
    kubernetes.extend(settings.into_iter().map(|(key, value)| (key.to_owned(), value)));
    Ok(())
}

/// Replaces all taints. The solver does not know any other taints and would plan pods for nodes
/// whose taints they do not tolerate.
fn set_taints(kubernetes: &mut Table, node: &NodeConfig<'_>) -> Result<(), BootstrapError> {
    let mut pool_taints: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for taint in &node.taints {
        let text = format!("{}:{}", taint.value, taint.effect.as_str());
        pool_taints.entry(taint.key.clone()).or_default().push(text);
    }
    for (key, values) in table_entry(kubernetes, "node-taints")?.iter() {
        let known = pool_taints.get(key).map_or(&[][..], Vec::as_slice);
        let values = match values {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        if !values.iter().all(|value| {
            let text = value.as_str();
            text.is_some_and(|text| known.iter().any(|taint| taint == text))
        }) {
            return Err(user_data_error(format!(
                "settings.kubernetes.node-taints has {key:?}, of which its pool knows nothing: \
                 say it there, as `taint` or `startup_taint`"
            )));
        }
    }
    let taints = pool_taints.into_iter().map(|(key, values)| (key, values.into())).collect();
    kubernetes.insert("node-taints".to_owned(), Value::Table(taints));
    Ok(())
}

fn set_kubelet(kubernetes: &mut Table, node: &NodeConfig<'_>) {
    let config = &node.kubelet;
    let maps = [
        ("system-reserved", &config.system_reserved),
        ("kube-reserved", &config.kube_reserved),
        ("eviction-hard", &config.eviction_hard),
        ("eviction-soft", &config.eviction_soft),
        ("eviction-soft-grace-period", &config.eviction_soft_grace_period),
    ];
    for (name, map) in maps.into_iter().filter(|(_, map)| !map.is_empty()) {
        let entries = map.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        kubernetes.insert(name.to_owned(), Value::Table(entries.collect()));
    }
    let grace = config.eviction_max_pod_grace_period.map(i64::from);
    let values = [
        ("eviction-max-pod-grace-period", grace.map(Value::from)),
        (
            "image-gc-high-threshold-percent",
            config.image_gc_high.map(|percent| percent.to_string().into()),
        ),
        (
            "image-gc-low-threshold-percent",
            config.image_gc_low.map(|percent| percent.to_string().into()),
        ),
        ("cpu-cfs-quota-enforced", config.cpu_cfs_quota.map(Value::from)),
    ];
    for (name, value) in values {
        if let Some(value) = value {
            kubernetes.insert(name.to_owned(), value);
        }
    }
}

/// The command that mounts local disks for containers.
fn mount_command(node: &NodeConfig<'_>) -> Value {
    let init = vec!["apiclient", "ephemeral-storage", "init"];
    let mut bind = vec!["apiclient", "ephemeral-storage", "bind"];
    if !binds_by_itself(node) {
        bind.push("--dirs");
        bind.extend(DIRS);
    }
    let mut container = Table::new();
    container.insert("commands".to_owned(), Value::Array(vec![init.into(), bind.into()]));
    container.insert("essential".to_owned(), true.into());
    container.insert("mode".to_owned(), "always".into());
    Value::Table(container)
}

/// Returns true if the image is new enough. The version is read from the image name, else from the
/// alias or name in the selector. An unknown version is treated as old, because old versions need
/// explicit directories.
fn binds_by_itself(node: &NodeConfig<'_>) -> bool {
    let variant = node.seed.image_name.and_then(image_version);
    let terms = node.class.images.iter().find_map(|term| match term {
        ImageTerm::Alias { version, .. } if version == "latest" => Some(BINDS_BY_ITSELF),
        ImageTerm::Alias { version, .. } => parse_version(version.trim_start_matches('v')),
        ImageTerm::Search { name, .. } => name.as_deref().and_then(image_version),
        _ => None,
    });
    variant.or(terms).is_some_and(|version| version >= BINDS_BY_ITSELF)
}

/// Returns the version in a name such as `bottlerocket-aws-k8s-1.33-x86_64-v1.46.0-431fe75a`.
fn image_version(name: &str) -> Option<[u32; 3]> {
    let mut tokens = name.split('-');
    tokens.find_map(|token| parse_version(token.strip_prefix('v')?))
}

/// Parses a version of three numbers.
fn parse_version(text: &str) -> Option<[u32; 3]> {
    let mut numbers = text.split('.').map(|part| part.parse().ok());
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(version)
}
