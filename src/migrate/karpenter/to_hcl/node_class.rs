//! Converts node classes to blocks.

use serde_json::{Map, Value};

use super::map;
use crate::migrate::format_units::duration;
use crate::migrate::hcl::HclBody;
use crate::model::labels::Labels;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::node_class::disk::BlockDevice;
use crate::model::node_class::image::ImageTerm;
use crate::model::node_class::kubelet::{KubeletSettings, Reserved, Signal};
use crate::model::node_class::network::{
    ConnectionTracking, NetworkInterface, PlacementGroupTerm, ReservationTerm, SecurityGroupTerm,
    SubnetTerm,
};
use crate::model::node_class::{MetadataOptions, NodeClass, NodeIdentity};

/// Converts a node class, with `tags` instead of its own tags.
pub(in super::super) fn node_class(own: &NodeClass, tags: &Labels) -> HclBody {
    let mut body = HclBody::default();
    let alias = own.images.iter().find_map(|image| match image {
        ImageTerm::Alias { family, .. } => Some(*family),
        _ => None,
    });
    // Without images, only this argument has the family.
    let bare = own.images.is_empty() && own.family == Default::default();
    if alias != Some(own.family) && !bare {
        body.set("ami_family", own.family.as_str());
    }
    match &own.identity {
        Some(NodeIdentity::Role(name)) => body.set("role", name.as_str()),
        Some(NodeIdentity::Profile(name)) => body.set("instance_profile", name.as_str()),
        None => {}
    }
    if let Some(public) = own.public_ip {
        body.set("associate_public_ip", public);
    }
    if let Some(count) = own.ip_prefix_count {
        body.set("ip_prefix_count", count);
    }
    if !tags.is_empty() {
        body.set("tags", map(tags));
    }
    if own.detailed_monitoring {
        body.set("detailed_monitoring", true);
    }
    if own.raid0 {
        body.set("instance_store_policy", "raid0");
    }
    if own.network_interfaces.as_ref().is_some_and(Vec::is_empty) {
        body.set("efa", false);
    }
    if let Some(context) = &own.context {
        body.set("context", context.as_str());
    }
    if own.reserved_enis > 0 {
        body.set("reserved_enis", own.reserved_enis);
    }
    if let Some(per_mille) = own.vm_overhead_per_mille {
        body.set("vm_memory_overhead_percent", f64::from(per_mille) / 10.0);
    }
    terms(own, &mut body);
    own.block_devices
        .iter()
        .for_each(|disk| self::disk(disk, &mut body));
    metadata(own.metadata, &mut body);
    for interface in own.network_interfaces.iter().flatten() {
        self::interface(*interface, &mut body);
    }
    if let Some(tracking) = own.connection_tracking {
        self::tracking(tracking, &mut body);
    }
    if let Some(nested) = own.nested_virtualization {
        let mut inner = HclBody::default();
        let word = if nested { "enabled" } else { "disabled" };
        inner.set("nested_virtualization", word);
        body.block("cpu_options", None, inner);
    }
    kubelet(&own.kubelet, &mut body);
    if own.bootstrap != Bootstrap::Eks {
        // Its content is used only by Outrigger.
        let mut inner = HclBody::default();
        inner.comment("the secrets are in the referenced source");
        body.block("bootstrap", Some(own.bootstrap.as_str()), inner);
    }
    if !own.user_data.is_empty() {
        body.set("user_data", own.user_data.as_str());
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

fn terms(own: &NodeClass, body: &mut HclBody) {
    for image in &own.images {
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
    for subnet in &own.subnets {
        match subnet {
            SubnetTerm::Id(id) => block("subnet", [("id", Some(id.as_str()))], None, body),
            SubnetTerm::Tags(tags) => block("subnet", [], Some(tags), body),
        }
    }
    for group in &own.security_groups {
        let kind = "security_group";
        match group {
            SecurityGroupTerm::Id(id) => block(kind, [("id", Some(id.as_str()))], None, body),
            SecurityGroupTerm::Name(name) => {
                block(kind, [("name", Some(name.as_str()))], None, body);
            }
            SecurityGroupTerm::Tags(tags) => block(kind, [], Some(tags), body),
        }
    }
    for reservation in &own.reservations {
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
    match &own.placement_group {
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

fn disk(own: &BlockDevice, body: &mut HclBody) {
    let mut inner = HclBody::default();
    if let Some(bytes) = own.size {
        // Only Karpenter depends on the unit.
        let text = crate::migrate::format_units::disk(bytes);
        inner.set("volume_size", text.unwrap_or_else(|| bytes.to_string()));
    }
    if let Some(kind) = &own.volume_type {
        inner.set("volume_type", kind.as_str());
    }
    for (name, amount) in [("iops", own.iops), ("throughput", own.throughput)] {
        if let Some(amount) = amount {
            inner.set(name, amount);
        }
    }
    if let Some(encrypted) = own.encrypted {
        inner.set("encrypted", encrypted);
    }
    for (name, text) in [
        ("kms_key_id", &own.kms_key_id),
        ("snapshot_id", &own.snapshot_id),
    ] {
        if let Some(text) = text {
            inner.set(name, text.as_str());
        }
    }
    if let Some(rate) = own.initialization_rate {
        inner.set("volume_initialization_rate", rate);
    }
    if let Some(gone) = own.delete_on_termination {
        inner.set("delete_on_termination", gone);
    }
    if own.root_volume {
        inner.set("root_volume", true);
    }
    body.block("block_device", Some(&own.name), inner);
}

fn metadata(own: MetadataOptions, body: &mut HclBody) {
    let usual = MetadataOptions::default();
    let mut inner = HclBody::default();
    let able = |yes: bool| if yes { "enabled" } else { "disabled" };
    if own.endpoint != usual.endpoint {
        inner.set("http_endpoint", able(own.endpoint));
    }
    if own.ipv6 != usual.ipv6 {
        inner.set("http_protocol_ipv6", able(own.ipv6));
    }
    if own.hop_limit != usual.hop_limit {
        inner.set("http_put_response_hop_limit", own.hop_limit);
    }
    if own.tokens_required != usual.tokens_required {
        let word = if own.tokens_required {
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

fn interface(own: NetworkInterface, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set("network_card_index", own.card);
    inner.set("device_index", own.device);
    let kind = if own.efa_only {
        "efa-only"
    } else {
        "interface"
    };
    inner.set("interface_type", kind);
    body.block("network_interface", None, inner);
}

fn tracking(own: ConnectionTracking, body: &mut HclBody) {
    let mut inner = HclBody::default();
    for (name, length) in [
        ("tcp_established_timeout", own.tcp_established),
        ("udp_stream_timeout", own.udp_stream),
        ("udp_timeout", own.udp),
    ] {
        if length.is_some() {
            inner.set(name, duration(length));
        }
    }
    body.block("connection_tracking", None, inner);
}

fn kubelet(own: &KubeletSettings, body: &mut HclBody) {
    let mut inner = HclBody::default();
    for (name, number) in [
        ("max_pods", own.max_pods),
        ("pods_per_core", own.pods_per_core),
    ] {
        if let Some(number) = number {
            inner.set(name, number);
        }
    }
    if !own.cluster_dns.is_empty() {
        let all = own.cluster_dns.iter().map(ToString::to_string);
        inner.set("cluster_dns", all.collect::<Vec<String>>());
    }
    kept(own, &mut inner);
    if let Some(seconds) = own.eviction_max_pod_grace_period {
        inner.set("eviction_max_pod_grace_period", seconds);
    }
    for (name, percent) in [
        (
            "image_gc_high_threshold_percent",
            own.image_gc_high_threshold_percent,
        ),
        (
            "image_gc_low_threshold_percent",
            own.image_gc_low_threshold_percent,
        ),
    ] {
        if let Some(percent) = percent {
            inner.set(name, percent);
        }
    }
    if let Some(quota) = own.cpu_cfs_quota {
        inner.set("cpu_cfs_quota", quota);
    }
    if !own.extra.is_empty() {
        let each = own.extra.iter();
        let each = each.map(|(name, value)| (name.clone(), value.clone()));
        inner.set("extra", Value::Object(each.collect()));
    }
    if !inner.is_empty() {
        body.block("kubelet", None, inner);
    }
}

/// Kubelet reservations and eviction thresholds.
fn kept(own: &KubeletSettings, body: &mut HclBody) {
    let reserved = |(name, own): (&String, &Reserved)| (name.clone(), Value::from(&*own.text));
    let signal = |own: &Signal| own.as_str().to_owned();
    let hard = own.eviction_hard.iter();
    let soft = own.eviction_soft.iter();
    let periods = own.eviction_soft_grace_period.iter();
    let maps: [(&'static str, Map<String, Value>); 5] = [
        (
            "system_reserved",
            own.system_reserved.iter().map(reserved).collect(),
        ),
        (
            "kube_reserved",
            own.kube_reserved.iter().map(reserved).collect(),
        ),
        (
            "eviction_hard",
            hard.map(|(own, most)| (signal(own), Value::from(most.text())))
                .collect(),
        ),
        (
            "eviction_soft",
            soft.map(|(own, most)| (signal(own), Value::from(most.text())))
                .collect(),
        ),
        (
            "eviction_soft_grace_period",
            periods
                .map(|(own, length)| (signal(own), Value::from(duration(Some(*length)))))
                .collect(),
        ),
    ];
    for (name, map) in maps.into_iter().filter(|(_, map)| !map.is_empty()) {
        body.set(name, Value::Object(map));
    }
}
