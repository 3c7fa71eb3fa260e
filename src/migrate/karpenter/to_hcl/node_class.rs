//! Converts node classes to blocks.

use serde_json::Value;

use super::string_map;
use crate::migrate::format_units::format_duration;
use crate::migrate::hcl::HclBody;
use crate::model::labels::Labels;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::node_class::disk::BlockDevice;
use crate::model::node_class::image::ImageTerm;
use crate::model::node_class::kubelet::KubeletSettings;
use crate::model::node_class::network::{
    ConnectionTracking, NetworkInterface, PlacementGroupTerm, ReservationTerm, SecurityGroupTerm,
    SubnetTerm,
};
use crate::model::node_class::{MetadataOptions, NodeClass, NodeIdentity};

/// Converts a node class, with `tags` instead of its own tags.
pub(in super::super) fn node_class_body(class: &NodeClass, tags: &Labels) -> HclBody {
    let mut body = HclBody::default();
    let alias = class.images.iter().find_map(|image| match image {
        ImageTerm::Alias { family, .. } => Some(*family),
        _ => None,
    });
    // Without image terms, only this argument specifies the family.
    let bare = class.images.is_empty() && class.family == Default::default();
    if alias != Some(class.family) && !bare {
        body.set("ami_family", class.family.as_str());
    }
    match &class.identity {
        Some(NodeIdentity::Role(name)) => body.set("role", name.as_str()),
        Some(NodeIdentity::Profile(name)) => body.set("instance_profile", name.as_str()),
        None => {}
    }
    body.set_some("associate_public_ip", class.public_ip);
    body.set_some("ip_prefix_count", class.ip_prefix_count);
    body.set_unless_empty("tags", string_map(tags));
    body.set_changed("detailed_monitoring", class.detailed_monitoring, false);
    if class.raid0 {
        body.set("instance_store_policy", "raid0");
    }
    if class.network_interfaces.as_ref().is_some_and(Vec::is_empty) {
        body.set("efa", false);
    }
    body.set_some("context", class.context.as_deref());
    body.set_changed("reserved_enis", class.reserved_enis, 0);
    let overhead = class.vm_overhead_per_mille;
    let overhead = overhead.map(|per_mille| f64::from(per_mille) / 10.0);
    body.set_some("vm_memory_overhead_percent", overhead);
    add_terms(class, &mut body);
    for disk in &class.block_devices {
        add_block_device(disk, &mut body);
    }
    add_metadata_options(class.metadata, &mut body);
    for interface in class.network_interfaces.iter().flatten() {
        self::add_network_interface(*interface, &mut body);
    }
    if let Some(tracking) = class.connection_tracking {
        self::add_connection_tracking(tracking, &mut body);
    }
    if let Some(nested) = class.nested_virtualization {
        let mut inner = HclBody::default();
        inner.set("nested_virtualization", enabled_or_disabled(nested));
        body.add_block("cpu_options", None, inner);
    }
    add_kubelet(&class.kubelet, &mut body);
    if class.bootstrap != Bootstrap::Eks {
        // The content of a `bootstrap` block is used only by Outrigger.
        let mut inner = HclBody::default();
        inner.add_comment("the secrets are in the referenced source");
        body.add_block("bootstrap", Some(class.bootstrap.as_str()), inner);
    }
    body.set_unless_empty("user_data", class.user_data.as_str());
    body
}

/// Adds a block with the arguments that have a value.
fn add_block<'a>(
    kind: &'static str,
    arguments: impl IntoIterator<Item = (&'static str, Option<&'a str>)>,
    tags: Option<&Labels>,
    body: &mut HclBody,
) {
    let mut inner = HclBody::default();
    for (name, value) in arguments {
        inner.set_some(name, value);
    }
    inner.set_unless_empty("tags", string_map(tags.into_iter().flatten()));
    body.add_block(kind, None, inner);
}

fn add_terms(class: &NodeClass, body: &mut HclBody) {
    for image in &class.images {
        let alias;
        let (arguments, tags) = match image {
            ImageTerm::Alias { family, version } => {
                alias = format!("{}@{version}", family.as_str());
                (vec![("alias", Some(alias.as_str()))], None)
            }
            ImageTerm::Id(id) => (vec![("id", Some(id.as_str()))], None),
            ImageTerm::SsmParameter(name) => (vec![("ssm_parameter", Some(name.as_str()))], None),
            ImageTerm::Search { name, owner, tags } => {
                (vec![("name", name.as_deref()), ("owner", owner.as_deref())], Some(tags))
            }
        };
        add_block("ami", arguments, tags, body);
    }
    for subnet in &class.subnets {
        match subnet {
            SubnetTerm::Id(id) => add_block("subnet", [("id", Some(id.as_str()))], None, body),
            SubnetTerm::Tags(tags) => add_block("subnet", [], Some(tags), body),
        }
    }
    for group in &class.security_groups {
        let kind = "security_group";
        match group {
            SecurityGroupTerm::Id(id) => add_block(kind, [("id", Some(id.as_str()))], None, body),
            SecurityGroupTerm::Name(name) => {
                add_block(kind, [("name", Some(name.as_str()))], None, body);
            }
            SecurityGroupTerm::Tags(tags) => add_block(kind, [], Some(tags), body),
        }
    }
    for reservation in &class.reservations {
        let kind = "capacity_reservation";
        match reservation {
            ReservationTerm::Id(id) => add_block(kind, [("id", Some(id.as_str()))], None, body),
            ReservationTerm::Search { owner, criteria, tags } => {
                let criteria = criteria.map(|criteria| criteria.as_str());
                let arguments =
                    [("owner", owner.as_deref()), ("instance_match_criteria", criteria)];
                add_block(kind, arguments, Some(tags), body);
            }
        }
    }
    if let Some(group) = &class.placement_group {
        let argument = match group {
            PlacementGroupTerm::Id(id) => ("id", Some(id.as_str())),
            PlacementGroupTerm::Name(name) => ("name", Some(name.as_str())),
        };
        add_block("placement_group", [argument], None, body);
    }
}

fn add_block_device(device: &BlockDevice, body: &mut HclBody) {
    let mut inner = HclBody::default();
    if let Some(bytes) = device.size {
        // The unit is only relevant for Karpenter.
        let text = crate::migrate::format_units::format_volume_size(bytes);
        inner.set("volume_size", text.unwrap_or_else(|| bytes.to_string()));
    }
    inner.set_some("volume_type", device.volume_type.as_deref());
    inner.set_some("iops", device.iops);
    inner.set_some("throughput", device.throughput);
    inner.set_some("encrypted", device.encrypted);
    inner.set_some("kms_key_id", device.kms_key_id.as_deref());
    inner.set_some("snapshot_id", device.snapshot_id.as_deref());
    inner.set_some("volume_initialization_rate", device.initialization_rate);
    inner.set_some("delete_on_termination", device.delete_on_termination);
    inner.set_changed("root_volume", device.root_volume, false);
    body.add_block("block_device", Some(&device.name), inner);
}

/// Returns the keyword of a setting.
fn enabled_or_disabled(yes: bool) -> &'static str {
    if yes { "enabled" } else { "disabled" }
}

fn add_metadata_options(options: MetadataOptions, body: &mut HclBody) {
    let defaults = MetadataOptions::default();
    let mut inner = HclBody::default();
    let [endpoint, default] = [options, defaults].map(|all| enabled_or_disabled(all.endpoint));
    inner.set_changed("http_endpoint", endpoint, default);
    let [ipv6, default] = [options, defaults].map(|all| enabled_or_disabled(all.ipv6));
    inner.set_changed("http_protocol_ipv6", ipv6, default);
    let (hops, default) = (options.hop_limit, defaults.hop_limit);
    inner.set_changed("http_put_response_hop_limit", hops, default);
    let [tokens, default] = [options, defaults].map(|all| match all.tokens_required {
        true => "required",
        false => "optional",
    });
    inner.set_changed("http_tokens", tokens, default);
    body.add_block_unless_empty("metadata_options", inner);
}

fn add_network_interface(interface: NetworkInterface, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set("network_card_index", interface.card);
    inner.set("device_index", interface.device);
    let kind = match interface.efa_only {
        true => "efa-only",
        false => "interface",
    };
    inner.set("interface_type", kind);
    body.add_block("network_interface", None, inner);
}

fn add_connection_tracking(tracking: ConnectionTracking, body: &mut HclBody) {
    let mut inner = HclBody::default();
    for (name, length) in [
        ("tcp_established_timeout", tracking.tcp_established),
        ("udp_stream_timeout", tracking.udp_stream),
        ("udp_timeout", tracking.udp),
    ] {
        if length.is_some() {
            inner.set(name, format_duration(length));
        }
    }
    body.add_block("connection_tracking", None, inner);
}

fn add_kubelet(settings: &KubeletSettings, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set_some("max_pods", settings.max_pods);
    inner.set_some("pods_per_core", settings.pods_per_core);
    let addresses = settings.cluster_dns.iter().map(ToString::to_string);
    inner.set_unless_empty("cluster_dns", addresses.collect::<Vec<String>>());
    add_reservations(settings, &mut inner);
    inner.set_some("eviction_max_pod_grace_period", settings.eviction_max_pod_grace_period);
    inner.set_some("image_gc_high_threshold_percent", settings.image_gc_high_threshold_percent);
    inner.set_some("image_gc_low_threshold_percent", settings.image_gc_low_threshold_percent);
    inner.set_some("cpu_cfs_quota", settings.cpu_cfs_quota);
    let extra = settings.extra.iter();
    let extra = extra.map(|(name, value)| (name.clone(), value.clone()));
    inner.set_unless_empty("extra", Value::Object(extra.collect()));
    body.add_block_unless_empty("kubelet", inner);
}

/// Kubelet reservations and eviction thresholds.
fn add_reservations(settings: &KubeletSettings, body: &mut HclBody) {
    for (argument, reserved) in
        [("system_reserved", &settings.system_reserved), ("kube_reserved", &settings.kube_reserved)]
    {
        let amounts = reserved.iter();
        let amounts = amounts.map(|(name, amount)| (name.clone(), Value::from(&*amount.text)));
        body.set_unless_empty(argument, Value::Object(amounts.collect()));
    }
    for (argument, thresholds) in
        [("eviction_hard", &settings.eviction_hard), ("eviction_soft", &settings.eviction_soft)]
    {
        let texts = thresholds.iter().map(|(signal, threshold)| {
            let text = Value::from(threshold.to_kubelet_string());
            (signal.as_str().to_owned(), text)
        });
        body.set_unless_empty(argument, Value::Object(texts.collect()));
    }
    let periods = settings.eviction_soft_grace_period.iter();
    let periods = periods.map(|(signal, length)| {
        let text = Value::from(format_duration(Some(*length)));
        (signal.as_str().to_owned(), text)
    });
    let periods = Value::Object(periods.collect());
    body.set_unless_empty("eviction_soft_grace_period", periods);
}
