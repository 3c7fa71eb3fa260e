//! Converts node classes to blocks.

use serde_json::{Map, Value};

use super::map;
use crate::migrate::format_units::duration;
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
pub(in super::super) fn node_class(class: &NodeClass, tags: &Labels) -> HclBody {
    let mut body = HclBody::default();
    let alias = class.images.iter().find_map(|image| match image {
        ImageTerm::Alias { family, .. } => Some(*family),
        _ => None,
    });
    // Without images, only this argument has the family.
    let bare = class.images.is_empty() && class.family == Default::default();
    if alias != Some(class.family) && !bare {
        body.set("ami_family", class.family.as_str());
    }
    match &class.identity {
        Some(NodeIdentity::Role(name)) => body.set("role", name.as_str()),
        Some(NodeIdentity::Profile(name)) => body.set("instance_profile", name.as_str()),
        None => {}
    }
    if let Some(public) = class.public_ip {
        body.set("associate_public_ip", public);
    }
    if let Some(count) = class.ip_prefix_count {
        body.set("ip_prefix_count", count);
    }
    if !tags.is_empty() {
        body.set("tags", map(tags));
    }
    if class.detailed_monitoring {
        body.set("detailed_monitoring", true);
    }
    if class.raid0 {
        body.set("instance_store_policy", "raid0");
    }
    if class.network_interfaces.as_ref().is_some_and(Vec::is_empty) {
        body.set("efa", false);
    }
    if let Some(context) = &class.context {
        body.set("context", context.as_str());
    }
    if class.reserved_enis > 0 {
        body.set("reserved_enis", class.reserved_enis);
    }
    if let Some(per_mille) = class.vm_overhead_per_mille {
        body.set("vm_memory_overhead_percent", f64::from(per_mille) / 10.0);
    }
    terms(class, &mut body);
    class
        .block_devices
        .iter()
        .for_each(|disk| self::disk(disk, &mut body));
    metadata(class.metadata, &mut body);
    for interface in class.network_interfaces.iter().flatten() {
        self::interface(*interface, &mut body);
    }
    if let Some(tracking) = class.connection_tracking {
        self::tracking(tracking, &mut body);
    }
    if let Some(nested) = class.nested_virtualization {
        let mut inner = HclBody::default();
        inner.set("nested_virtualization", enabled_or_disabled(nested));
        body.block("cpu_options", None, inner);
    }
    kubelet(&class.kubelet, &mut body);
    if class.bootstrap != Bootstrap::Eks {
        // Its content is used only by Outrigger.
        let mut inner = HclBody::default();
        inner.comment("the secrets are in the referenced source");
        body.block("bootstrap", Some(class.bootstrap.as_str()), inner);
    }
    if !class.user_data.is_empty() {
        body.set("user_data", class.user_data.as_str());
    }
    body
}

/// Adds a block with the arguments that have a value.
fn block<'a>(
    kind: &'static str,
    arguments: impl IntoIterator<Item = (&'static str, Option<&'a str>)>,
    tags: Option<&Labels>,
    body: &mut HclBody,
) {
    let mut inner = HclBody::default();
    for (name, value) in arguments {
        if let Some(value) = value {
            inner.set(name, value);
        }
    }
    if let Some(tags) = tags.filter(|tags| !tags.is_empty()) {
        inner.set("tags", map(tags));
    }
    body.block(kind, None, inner);
}

fn terms(class: &NodeClass, body: &mut HclBody) {
    for image in &class.images {
        let alias;
        let (arguments, tags) = match image {
            ImageTerm::Alias { family, version } => {
                alias = format!("{}@{version}", family.as_str());
                (vec![("alias", Some(alias.as_str()))], None)
            }
            ImageTerm::Id(id) => (vec![("id", Some(id.as_str()))], None),
            ImageTerm::SsmParameter(name) => (vec![("ssm_parameter", Some(name.as_str()))], None),
            ImageTerm::Search { name, owner, tags } => (
                vec![("name", name.as_deref()), ("owner", owner.as_deref())],
                Some(tags),
            ),
        };
        block("ami", arguments, tags, body);
    }
    for subnet in &class.subnets {
        match subnet {
            SubnetTerm::Id(id) => block("subnet", [("id", Some(id.as_str()))], None, body),
            SubnetTerm::Tags(tags) => block("subnet", [], Some(tags), body),
        }
    }
    for group in &class.security_groups {
        let kind = "security_group";
        match group {
            SecurityGroupTerm::Id(id) => block(kind, [("id", Some(id.as_str()))], None, body),
            SecurityGroupTerm::Name(name) => {
                block(kind, [("name", Some(name.as_str()))], None, body);
            }
            SecurityGroupTerm::Tags(tags) => block(kind, [], Some(tags), body),
        }
    }
    for reservation in &class.reservations {
        let kind = "capacity_reservation";
        match reservation {
            ReservationTerm::Id(id) => block(kind, [("id", Some(id.as_str()))], None, body),
            ReservationTerm::Search {
                owner,
                criteria,
                tags,
            } => {
                let criteria = criteria.map(|criteria| criteria.as_str());
                let arguments = [
                    ("owner", owner.as_deref()),
                    ("instance_match_criteria", criteria),
                ];
                block(kind, arguments, Some(tags), body);
            }
        }
    }
    match &class.placement_group {
        Some(PlacementGroupTerm::Id(id)) => {
            block("placement_group", [("id", Some(id.as_str()))], None, body);
        }
        Some(PlacementGroupTerm::Name(name)) => {
            block(
                "placement_group",
                [("name", Some(name.as_str()))],
                None,
                body,
            );
        }
        None => {}
    }
}

fn disk(device: &BlockDevice, body: &mut HclBody) {
    let mut inner = HclBody::default();
    if let Some(bytes) = device.size {
        // Only Karpenter depends on the unit.
        let text = crate::migrate::format_units::disk(bytes);
        inner.set("volume_size", text.unwrap_or_else(|| bytes.to_string()));
    }
    if let Some(kind) = &device.volume_type {
        inner.set("volume_type", kind.as_str());
    }
    for (name, amount) in [("iops", device.iops), ("throughput", device.throughput)] {
        if let Some(amount) = amount {
            inner.set(name, amount);
        }
    }
    if let Some(encrypted) = device.encrypted {
        inner.set("encrypted", encrypted);
    }
    for (name, text) in [
        ("kms_key_id", &device.kms_key_id),
        ("snapshot_id", &device.snapshot_id),
    ] {
        if let Some(text) = text {
            inner.set(name, text.as_str());
        }
    }
    if let Some(rate) = device.initialization_rate {
        inner.set("volume_initialization_rate", rate);
    }
    if let Some(gone) = device.delete_on_termination {
        inner.set("delete_on_termination", gone);
    }
    if device.root_volume {
        inner.set("root_volume", true);
    }
    body.block("block_device", Some(&device.name), inner);
}

/// Returns the keyword of a setting.
fn enabled_or_disabled(yes: bool) -> &'static str {
    if yes { "enabled" } else { "disabled" }
}

fn metadata(options: MetadataOptions, body: &mut HclBody) {
    let defaults = MetadataOptions::default();
    let mut inner = HclBody::default();

    if options.endpoint != defaults.endpoint {
        inner.set("http_endpoint", enabled_or_disabled(options.endpoint));
    }
    if options.ipv6 != defaults.ipv6 {
        inner.set("http_protocol_ipv6", enabled_or_disabled(options.ipv6));
    }
    if options.hop_limit != defaults.hop_limit {
        inner.set("http_put_response_hop_limit", options.hop_limit);
    }
    if options.tokens_required != defaults.tokens_required {
        let word = if options.tokens_required {
            "required"
        } else {
            "optional"
        };
        inner.set("http_tokens", word);
    }
    if !inner.is_empty() {
        body.block("metadata_options", None, inner);
    }
}

fn interface(interface: NetworkInterface, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set("network_card_index", interface.card);
    inner.set("device_index", interface.device);
    let kind = if interface.efa_only {
        "efa-only"
    } else {
        "interface"
    };
    inner.set("interface_type", kind);
    body.block("network_interface", None, inner);
}

fn tracking(tracking: ConnectionTracking, body: &mut HclBody) {
    let mut inner = HclBody::default();
    for (name, length) in [
        ("tcp_established_timeout", tracking.tcp_established),
        ("udp_stream_timeout", tracking.udp_stream),
        ("udp_timeout", tracking.udp),
    ] {
        if length.is_some() {
            inner.set(name, duration(length));
        }
    }
    body.block("connection_tracking", None, inner);
}

fn kubelet(settings: &KubeletSettings, body: &mut HclBody) {
    let mut inner = HclBody::default();
    for (name, number) in [
        ("max_pods", settings.max_pods),
        ("pods_per_core", settings.pods_per_core),
    ] {
        if let Some(number) = number {
            inner.set(name, number);
        }
    }
    if !settings.cluster_dns.is_empty() {
        let all = settings.cluster_dns.iter().map(ToString::to_string);
        inner.set("cluster_dns", all.collect::<Vec<String>>());
    }
    kept(settings, &mut inner);
    if let Some(seconds) = settings.eviction_max_pod_grace_period {
        inner.set("eviction_max_pod_grace_period", seconds);
    }
    for (name, percent) in [
        (
            "image_gc_high_threshold_percent",
            settings.image_gc_high_threshold_percent,
        ),
        (
            "image_gc_low_threshold_percent",
            settings.image_gc_low_threshold_percent,
        ),
    ] {
        if let Some(percent) = percent {
            inner.set(name, percent);
        }
    }
    if let Some(quota) = settings.cpu_cfs_quota {
        inner.set("cpu_cfs_quota", quota);
    }
    if !settings.extra.is_empty() {
        let fields = settings.extra.iter();
        let fields = fields.map(|(name, value)| (name.clone(), value.clone()));
        inner.set("extra", Value::Object(fields.collect()));
    }
    if !inner.is_empty() {
        body.block("kubelet", None, inner);
    }
}

/// Kubelet reservations and eviction thresholds.
fn kept(settings: &KubeletSettings, body: &mut HclBody) {
    let mut maps: Vec<(&'static str, Map<String, Value>)> = Vec::new();
    for (argument, reserved) in [
        ("system_reserved", &settings.system_reserved),
        ("kube_reserved", &settings.kube_reserved),
    ] {
        let amounts = reserved.iter();
        let amounts = amounts.map(|(name, amount)| (name.clone(), Value::from(&*amount.text)));
        maps.push((argument, amounts.collect()));
    }
    for (argument, thresholds) in [
        ("eviction_hard", &settings.eviction_hard),
        ("eviction_soft", &settings.eviction_soft),
    ] {
        let texts = thresholds.iter().map(|(signal, threshold)| {
            let text = Value::from(threshold.text());
            (signal.as_str().to_owned(), text)
        });
        maps.push((argument, texts.collect()));
    }
    let periods = settings.eviction_soft_grace_period.iter();
    let periods = periods.map(|(signal, length)| {
        let text = Value::from(duration(Some(*length)));
        (signal.as_str().to_owned(), text)
    });
    maps.push(("eviction_soft_grace_period", periods.collect()));
    for (argument, map) in maps.into_iter().filter(|(_, map)| !map.is_empty()) {
        body.set(argument, Value::Object(map));
    }
}
