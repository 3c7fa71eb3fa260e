//! Converts a group to a pool: its node class, limits, labels and taints.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::flags::FlagValues;
use super::launch_source::LaunchSource;
use super::node_groups::{AUTOSCALER, LaunchTemplateVersion, NODE_TEMPLATE, NodeGroup};
use super::{instance_requirements, node_class, scale_down, unsupported_fields};
use crate::config::kubernetes_names::{label_key_fault, label_value_fault};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{scalar_text, take_text, text_or_empty};
use crate::migrate::format_units::format_duration;
use crate::migrate::hcl::{HclBody, HclItem};
use crate::migrate::karpenter::import::{ConvertedBlock, ItemNoun};
use crate::model::labels::{
    ARCH, INSTANCE_TYPE, OS, POOL, REGION, ZONE, label_restriction, normalized_key,
};
use crate::model::quantity::parse_whole;
use jiff::SignedDuration;

/// Maximum number of characters of a pool's name.
const NAME_MAX: usize = 63;
/// The valid characters of a name besides letters and digits.
const PUNCTUATION: [char; 3] = ['-', '_', '.'];

/// Flags that a group can override, by the suffix of the tag.
const OPTIONS: [(&str, &str); 7] = [
    ("ignoredaemonsetsutilization", "ignore-daemonsets-utilization"),
    ("maxnodeprovisiontime", "max-node-provision-time"),
    ("maxnodestartuptime", "max-node-startup-time"),
    ("scaledowngpuutilizationthreshold", "scale-down-gpu-utilization-threshold"),
    ("scaledownunneededtime", "scale-down-unneeded-time"),
    ("scaledownunreadytime", "scale-down-unready-time"),
    ("scaledownutilizationthreshold", "scale-down-utilization-threshold"),
];

/// Options that are dropped like their flags.
const LOST: [&str; 2] = ["ignore-daemonsets-utilization", "scale-down-gpu-utilization-threshold"];

/// Prefixes of the keys of startup taints.
const STARTUP: [&str; 2] = [
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
];

/// Effects of taints, as EKS and as Kubernetes spell them.
const EFFECTS: [(&str, &str); 3] = [
    ("NO_SCHEDULE", "NoSchedule"),
    ("NO_EXECUTE", "NoExecute"),
    ("PREFER_NO_SCHEDULE", "PreferNoSchedule"),
];

/// Resources that are determined by the type, the volumes or the image.
const KNOWN: [&str; 8] = [
    "amd.com/gpu",
    "aws.amazon.com/neuron",
    "cpu",
    "ephemeral-storage",
    "memory",
    "nvidia.com/gpu",
    "pods",
    "vpc.amazonaws.com/efa",
];

/// The data shared by all groups of an autoscaler.
pub(super) struct ImportContext<'a> {
    pub(super) flags: &'a FlagValues,
    pub(super) clusters: &'a [String],
    pub(super) templates: &'a [LaunchTemplateVersion],
    /// Keys of startup taints.
    pub(super) startup: &'a [String],
    /// Minimum and maximum sizes of groups from `--nodes`.
    pub(super) sizes: &'a BTreeMap<String, (i64, i64)>,
    /// Weights of groups.
    pub(super) weights: &'a BTreeMap<String, i64>,
}

/// A taint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupTaint {
    key: String,
    value: String,
    effect: String,
}

/// Returns the name of a group in messages.
pub(super) fn group_display_name(name: &str) -> String {
    format!("AutoScalingGroup/{name}")
}

/// Returns the name of a group's pool: the name of the EKS node group, else of the group.
pub(super) fn pool_name(group: &NodeGroup) -> String {
    let given = ["eks:nodegroup-name", "alpha.eksctl.io/nodegroup-name"];
    let mut given = given.iter().filter_map(|key| group.tag_value(key));
    valid_name(given.next().unwrap_or(&group.name))
}

/// Removes invalid characters from a name.
pub(super) fn valid_name(name: &str) -> String {
    let valid: String = name
        .chars()
        .map(|c| match c.is_ascii_alphanumeric() || PUNCTUATION.contains(&c) {
            true => c,
            false => '-',
        })
        .collect();
    let name = valid.trim_matches(PUNCTUATION);
    let name: String = name.chars().take(NAME_MAX).collect();
    match name.trim_end_matches(PUNCTUATION) {
        "" => "group".to_owned(),
        name => name.to_owned(),
    }
}

/// Converts a group to a pool, a node class and overlays for its devices.
pub(super) fn build_pool(mut group: NodeGroup, context: &ImportContext<'_>) -> Vec<ConvertedBlock> {
    let (source, name) = (group_display_name(&group.name), pool_name(&group));
    let launched = LaunchSource::from_group(&group, context.templates);
    let mut losses = DroppedFields::for_object(source.as_str());
    let options = group_options(&group, &mut losses);
    let flags = context.flags.with_overrides(options);
    let fault = launched.conversion_fault(&group);
    let ruled =
        instance_requirements::group_requirements(&mut group, launched.data.as_ref(), &mut losses);
    let class =
        node_class::build_node_class(&mut group, &launched, &source, &name, context.clusters);
    let mut body = HclBody::default();
    body.set_unless_empty("clusters", context.clusters.to_vec());
    body.set_reference("node_class", "node_class", &name);
    if let Some(weight) = context.weights.get(&group.name).filter(|weight| **weight > 0) {
        body.set("weight", *weight);
    }
    let labels = pool_labels(&group, &mut losses);
    body.set_unless_empty("labels", Value::Object(labels));
    convert_sizes(&mut group, context, &mut body, &mut losses);
    let (why, rules) = match ruled {
        Ok(rules) => (fault, rules),
        Err(error) => (Some(error.to_string()), Vec::new()),
    };
    let mut marks = HclBody::default();
    marks.items.extend(rules.into_iter().map(HclItem::Block));
    convert_taints(&group, context.startup, &mut marks, &mut losses);
    set_behavior(&flags, marks, &mut body, &mut losses);
    let overlay = device_overlay(&group, &name, context.clusters, &mut losses);
    report_fields(&group, &mut losses);
    let mut all = vec![class, converted_block("pool", &name, body, losses)];
    let overlay = overlay
        .map(|body| converted_block("overlay", &name, body, DroppedFields::for_object(source)));
    all.extend(overlay);
    if let Some(why) = why {
        leave_out_all(&mut all, &why);
    }
    all
}

/// Builds a pool from flags, with the blocks that describe its nodes.
fn set_behavior(
    flags: &FlagValues,
    marks: HclBody,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    scale_down::set_timeouts(flags, body, losses);
    let mut repair = HclBody::default();
    scale_down::convert_repair(flags, &mut repair, losses);
    let (arguments, blocks): (Vec<HclItem>, Vec<HclItem>) =
        repair.items.into_iter().partition(|item| matches!(item, HclItem::Argument(..)));
    body.items.extend(arguments);
    body.items.extend(marks.items);
    body.add_block("disruption", None, scale_down::disruption_block(flags, losses));
    body.items.extend(blocks);
}

/// Drops the pool of a group.
fn leave_out_all(all: &mut [ConvertedBlock], why: &str) {
    for block in all {
        block.comment_out(why);
    }
}

fn converted_block(
    kind: &'static str,
    name: &str,
    body: HclBody,
    losses: DroppedFields,
) -> ConvertedBlock {
    ConvertedBlock::new(kind, Some(name.to_owned()), body, losses, ItemNoun::Ours)
}

/// Builds the commented pool of a group that is named but not part of the input.
pub(super) fn unknown_pool(name: &str, context: &ImportContext<'_>) -> ConvertedBlock {
    let mut body = HclBody::default();
    body.set_unless_empty("clusters", context.clusters.to_vec());
    if let Some((_, maximum)) = context.sizes.get(name) {
        body.set("limits", serde_json::json!({ "nodes": maximum }));
    }
    let mut losses = DroppedFields::for_object(group_display_name(name));
    set_behavior(context.flags, HclBody::default(), &mut body, &mut losses);
    let mut pool = converted_block("pool", &valid_name(name), body, losses);
    pool.comment_out(
        "the input does not describe the group; pass the output of aws autoscaling \
         describe-auto-scaling-groups with --asg",
    );
    pool
}

/// Returns the flags that a group overrides.
fn group_options(group: &NodeGroup, losses: &mut DroppedFields) -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::new();
    for (option, tag) in group.node_tags("autoscaling-options/") {
        let path = format!("Tags.{}={}", tag.key, tag.value);
        match OPTIONS.iter().find(|(suffix, _)| *suffix == option) {
            Some((_, flag)) if LOST.contains(flag) => {
                losses.add(path, format!("dropped for the same reason as --{flag}"));
            }
            Some((_, flag)) => {
                all.insert(*flag, tag.value.clone());
            }
            None => losses.add(path, "unknown option"),
        }
    }
    all
}

/// Converts the labels of the group's tags and of EKS, except labels that nodes have by default.
fn pool_labels(group: &NodeGroup, losses: &mut DroppedFields) -> Map<String, Value> {
    let tags = group.node_tags("label/");
    let tags = tags.map(|(key, tag)| (key, tag.value.clone()));
    let managed = group.managed_field("labels").and_then(Value::as_object);
    let managed = managed.into_iter().flatten();
    let managed = managed.filter_map(|(key, value)| Some((key.as_str(), scalar_text(value)?)));
    let mut all = Map::new();
    for (key, value) in tags.chain(managed) {
        if [ARCH, INSTANCE_TYPE, OS, REGION, ZONE].contains(&normalized_key(key)) {
            continue;
        }
        let fault = label_key_fault(key).or_else(|| label_value_fault(&value));
        let fault = fault.or_else(|| label_restriction(key).map(str::to_owned));
        let pool_fault = (key == POOL).then(|| "Outrigger sets this label itself".to_owned());
        match fault.or(pool_fault) {
            Some(why) => losses.add(format!("label {key}={value}"), why.trim_end_matches('.')),
            None => {
                all.insert(key.to_owned(), Value::from(value));
            }
        }
    }
    if group.managed.is_some() {
        let why = "EKS sets these labels only in managed node groups; change the pods that select \
                   them";
        losses.add("label eks.amazonaws.com/nodegroup and related labels", why);
    }
    all
}

/// Converts the size and the maximum instance lifetime of a group.
fn convert_sizes(
    group: &mut NodeGroup,
    context: &ImportContext<'_>,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let [minimum, maximum, age] = ["MinSize", "MaxSize", "MaxInstanceLifetime"]
        .map(|field| group.take_field(field).as_ref().and_then(Value::as_i64));
    let (minimum, maximum) = match context.sizes.get(&group.name) {
        Some((minimum, maximum)) => (Some(*minimum), Some(*maximum)),
        None => (minimum, maximum),
    };
    let unit = take_text(&mut group.fields, "DesiredCapacityType");
    let limits = match (maximum, unit.as_deref()) {
        (None, _) => Err("the input has no maximum size; set the number of nodes"),
        (Some(_), _) if has_weighted_capacity(group) => {
            Err("the group counts weighted capacity, not nodes; set the number of nodes")
        }
        (Some(maximum), None | Some("units")) => Ok(serde_json::json!({ "nodes": maximum })),
        (Some(maximum), Some("vcpu")) => Ok(serde_json::json!({ "cpu": maximum })),
        (Some(maximum), Some("memory-mib")) => {
            Ok(serde_json::json!({ "memory": format!("{maximum}Mi") }))
        }
        (Some(_), Some(_)) => Err("unknown unit of the group's size; set the number of nodes"),
    };
    match limits {
        Ok(limits) => body.set("limits", limits),
        Err(why) => losses.add_missing("limits", why),
    }
    if let Some(minimum) = minimum.filter(|count| *count > 0) {
        let why = "pools have no minimum size; use a buffer for spare capacity or replicas for a \
                   fixed size";
        losses.add(format!("MinSize={minimum}"), why);
    }
    let age = age.filter(|seconds| *seconds > 0);
    // Without a maximum lifetime, nodes do not expire.
    body.set("expire_after", format_duration(age.map(SignedDuration::from_secs)));
}

/// Returns whether the size of a group is measured in weighted capacity.
fn has_weighted_capacity(group: &NodeGroup) -> bool {
    let mixed = group.fields.get("MixedInstancesPolicy");
    let overrides =
        mixed.and_then(|policy| policy.get("LaunchTemplate")?.get("Overrides")?.as_array());
    let mut weights = overrides
        .into_iter()
        .flatten()
        .filter_map(|entry| scalar_text(entry.get("WeightedCapacity")?));
    weights.any(|weight| weight != "1")
}

/// Converts taints and startup taints.
fn convert_taints(
    group: &NodeGroup,
    startup: &[String],
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let mut all: Vec<GroupTaint> = Vec::new();
    for (key, tag) in group.node_tags("taint/") {
        let parts = tag.value.rsplit_once(':');
        match parts.filter(|(_, effect)| EFFECTS.iter().any(|(_, ours)| ours == effect)) {
            Some((value, effect)) => all.push(GroupTaint {
                key: key.to_owned(),
                value: value.to_owned(),
                effect: effect.to_owned(),
            }),
            // The autoscaler also ignores such a tag.
            None => losses
                .add(format!("Tags.{}={}", tag.key, tag.value), "the format is not VALUE:EFFECT"),
        }
    }
    let managed = group.managed_field("taints").and_then(Value::as_array);
    for taint in managed.into_iter().flatten() {
        let effect = text_or_empty(taint.get("effect"));
        let known = EFFECTS.iter().find(|(theirs, _)| *theirs == effect);
        all.push(GroupTaint {
            key: text_or_empty(taint.get("key")),
            value: text_or_empty(taint.get("value")),
            effect: known.map_or(effect.as_str(), |(_, ours)| ours).to_owned(),
        });
    }
    let mut seen: Vec<(String, String)> = Vec::new();
    for taint in all {
        let key_and_effect = (taint.key.clone(), taint.effect.clone());
        if seen.contains(&key_and_effect) {
            continue;
        }
        seen.push(key_and_effect);
        let leaves = startup.contains(&taint.key)
            || STARTUP.iter().any(|start| taint.key.starts_with(start));
        let kind = if leaves { "startup_taint" } else { "taint" };
        let mut inner = HclBody::default();
        inner.set("effect", taint.effect);
        inner.set_unless_empty("value", taint.value);
        body.add_block(kind, Some(&taint.key), inner);
    }
}

/// Returns whether a group has a taint with this key.
pub(super) fn has_taint(group: &NodeGroup, key: &str) -> bool {
    let managed = group.managed_field("taints").and_then(Value::as_array);
    let mut managed = managed.into_iter().flatten();
    group.tag_value(&format!("{NODE_TEMPLATE}taint/{key}")).is_some()
        || managed.any(|taint| taint.get("key").is_some_and(|name| name == key))
}

/// Converts devices that only a tag describes.
fn device_overlay(
    group: &NodeGroup,
    name: &str,
    clusters: &[String],
    losses: &mut DroppedFields,
) -> Option<HclBody> {
    let mut capacity = Map::new();
    for (resource, tag) in group.node_tags("resources/") {
        match parse_whole(&tag.value) {
            _ if KNOWN.contains(&resource) => {}
            Ok(_) => {
                capacity.insert(resource.to_owned(), Value::from(tag.value.as_str()));
            }
            Err(error) => losses.add(format!("Tags.{}={}", tag.key, tag.value), error.to_string()),
        }
    }
    if capacity.is_empty() {
        return None;
    }
    let mut body = HclBody::default();
    body.set_unless_empty("clusters", clusters.to_vec());
    body.set("capacity", Value::Object(capacity));
    let mut inner = HclBody::default();
    inner.set("in", vec![name]);
    body.add_block("require", Some(POOL), inner);
    Some(body)
}

/// Reports the remaining fields of a group.
fn report_fields(group: &NodeGroup, losses: &mut DroppedFields) {
    const READ: [&str; 4] = ["label/", "taint/", "resources/", "autoscaling-options/"];
    for tag in &group.tags {
        let suffix = tag.key.strip_prefix(NODE_TEMPLATE);
        if suffix.is_some_and(|suffix| !READ.iter().any(|start| suffix.starts_with(start))) {
            losses.add(format!("Tags.{}", tag.key), "unknown autoscaler tag");
        }
    }
    let mut fields = group.fields.clone();
    for name in ["LaunchTemplate", "LaunchConfigurationName", "MixedInstancesPolicy"] {
        fields.shift_remove(name);
    }
    unsupported_fields::report_unsupported(&fields, unsupported_fields::GROUP, "", losses);
    if let Some(managed) = &group.managed {
        unsupported_fields::report_unsupported(
            managed,
            unsupported_fields::MANAGED,
            "nodegroup",
            losses,
        );
    }
}

/// Returns the name of a cluster from the key of a tag.
pub(super) fn cluster_of(key: &str) -> Option<&str> {
    key.strip_prefix(AUTOSCALER)
        .filter(|name| *name != "enabled")
        .or_else(|| key.strip_prefix("kubernetes.io/cluster/"))
        .filter(|name| !name.is_empty() && !name.contains('/'))
}
