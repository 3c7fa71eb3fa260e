//! Converts a group to a pool: its node class, limits, labels and taints.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::flags::FlagValues;
use super::launch_source::LaunchSource;
use super::node_groups::{AUTOSCALER, LaunchTemplateVersion, NODE_TEMPLATE, NodeGroup};
use super::{instance_requirements, node_class, scale_down, unsupported_fields};
use crate::config::kubernetes_names::{label_key_fault, label_value_fault};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{take_text, text, text_or_empty};
use crate::migrate::format_units::duration;
use crate::migrate::hcl::{HclBody, HclItem};
use crate::migrate::karpenter::import::{ConvertedBlock, ItemNoun};
use crate::model::labels::{ARCH, INSTANCE_TYPE, OS, POOL, REGION, ZONE, normalized, restriction};
use crate::model::quantity::parse_whole;
use jiff::SignedDuration;

/// The most characters of a pool's name.
const NAME_MAX: usize = 63;
/// The valid characters of a name besides letters and digits.
const PUNCTUATION: [char; 3] = ['-', '_', '.'];

/// Flags that a group can override, by the suffix of the tag.
const OPTIONS: [(&str, &str); 7] = [
    (
        "ignoredaemonsetsutilization",
        "ignore-daemonsets-utilization",
    ),
    ("maxnodeprovisiontime", "max-node-provision-time"),
    ("maxnodestartuptime", "max-node-startup-time"),
    (
        "scaledowngpuutilizationthreshold",
        "scale-down-gpu-utilization-threshold",
    ),
    ("scaledownunneededtime", "scale-down-unneeded-time"),
    ("scaledownunreadytime", "scale-down-unready-time"),
    (
        "scaledownutilizationthreshold",
        "scale-down-utilization-threshold",
    ),
];

/// Options that are dropped like their flags.
const LOST: [&str; 2] = [
    "ignore-daemonsets-utilization",
    "scale-down-gpu-utilization-threshold",
];

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
pub(super) fn called(name: &str) -> String {
    format!("AutoScalingGroup/{name}")
}

/// Returns the name of its pool: the name of the EKS node group, else of the group.
pub(super) fn label(group: &NodeGroup) -> String {
    let given = ["eks:nodegroup-name", "alpha.eksctl.io/nodegroup-name"];
    let mut given = given.iter().filter_map(|key| group.tag(key));
    plain(given.next().unwrap_or(&group.name))
}

/// Removes invalid characters from a name.
pub(super) fn plain(name: &str) -> String {
    let valid: String = name
        .chars()
        .map(
            |c| match c.is_ascii_alphanumeric() || PUNCTUATION.contains(&c) {
                true => c,
                false => '-',
            },
        )
        .collect();
    let name = valid.trim_matches(PUNCTUATION);
    let name: String = name.chars().take(NAME_MAX).collect();
    match name.trim_end_matches(PUNCTUATION) {
        "" => "group".to_owned(),
        name => name.to_owned(),
    }
}

/// Converts a group to a pool, a node class and overlays for its devices.
pub(super) fn build(mut group: NodeGroup, context: &ImportContext<'_>) -> Vec<ConvertedBlock> {
    let (source, name) = (called(&group.name), label(&group));
    let launched = LaunchSource::of(&group, context.templates);
    let mut losses = DroppedFields::of(source.as_str());
    let options = options(&group, &mut losses);
    let flags = context.flags.with(options);
    let fault = launched.fault(&group);
    let ruled = instance_requirements::rules(&mut group, launched.data.as_ref(), &mut losses);
    let class = node_class::build(&mut group, &launched, &source, &name, context.clusters);
    let mut body = HclBody::default();
    body.set_unless_empty("clusters", context.clusters.to_vec());
    body.refer("node_class", "node_class", &name);
    if let Some(weight) = context
        .weights
        .get(&group.name)
        .filter(|weight| **weight > 0)
    {
        body.set("weight", *weight);
    }
    let labels = labels(&group, &mut losses);
    body.set_unless_empty("labels", Value::Object(labels));
    sizes(&mut group, context, &mut body, &mut losses);
    let (why, rules) = match ruled {
        Ok(rules) => (fault, rules),
        Err(error) => (Some(error.to_string()), Vec::new()),
    };
    let mut marks = HclBody::default();
    marks.items.extend(rules.into_iter().map(HclItem::Block));
    taints(&group, context.startup, &mut marks, &mut losses);
    behave(&flags, marks, &mut body, &mut losses);
    let overlay = overlay(&group, &name, context.clusters, &mut losses);
    rest(&group, &mut losses);
    let mut all = vec![class, built("pool", &name, body, losses)];
    let overlay = overlay.map(|body| built("overlay", &name, body, DroppedFields::of(source)));
    all.extend(overlay);
    if let Some(why) = why {
        leave_out(&mut all, &why);
    }
    all
}

/// Builds a pool from flags, with the blocks that describe its nodes.
fn behave(flags: &FlagValues, marks: HclBody, body: &mut HclBody, losses: &mut DroppedFields) {
    scale_down::timeouts(flags, body, losses);
    let mut repair = HclBody::default();
    scale_down::repair(flags, &mut repair, losses);
    let (arguments, blocks): (Vec<HclItem>, Vec<HclItem>) = repair
        .items
        .into_iter()
        .partition(|item| matches!(item, HclItem::Argument(..)));
    body.items.extend(arguments);
    body.items.extend(marks.items);
    body.block("disruption", None, scale_down::disruption(flags, losses));
    body.items.extend(blocks);
}

/// Drops the pool of a group.
fn leave_out(all: &mut [ConvertedBlock], why: &str) {
    for block in all {
        block.leave_out(why);
    }
}

fn built(kind: &'static str, name: &str, body: HclBody, losses: DroppedFields) -> ConvertedBlock {
    ConvertedBlock::new(kind, Some(name.to_owned()), body, losses, ItemNoun::Ours)
}

/// Builds the commented pool of a group that is named but not part of the input.
pub(super) fn unknown(name: &str, context: &ImportContext<'_>) -> ConvertedBlock {
    let mut body = HclBody::default();
    body.set_unless_empty("clusters", context.clusters.to_vec());
    if let Some((_, maximum)) = context.sizes.get(name) {
        body.set("limits", serde_json::json!({ "nodes": maximum }));
    }
    let mut losses = DroppedFields::of(called(name));
    behave(context.flags, HclBody::default(), &mut body, &mut losses);
    let mut pool = built("pool", &plain(name), body, losses);
    pool.leave_out(
        "the input does not describe the group; pass the output of aws autoscaling \
         describe-auto-scaling-groups with --asg",
    );
    pool
}

/// Returns the flags that a group overrides.
fn options(group: &NodeGroup, losses: &mut DroppedFields) -> BTreeMap<&'static str, String> {
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
fn labels(group: &NodeGroup, losses: &mut DroppedFields) -> Map<String, Value> {
    let tags = group.node_tags("label/");
    let tags = tags.map(|(key, tag)| (key, tag.value.clone()));
    let managed = group.managed("labels").and_then(Value::as_object);
    let managed = managed.into_iter().flatten();
    let managed = managed.filter_map(|(key, value)| Some((key.as_str(), text(value)?)));
    let mut all = Map::new();
    for (key, value) in tags.chain(managed) {
        if [ARCH, INSTANCE_TYPE, OS, REGION, ZONE].contains(&normalized(key)) {
            continue;
        }
        let fault = label_key_fault(key).or_else(|| label_value_fault(&value));
        let fault = fault.or_else(|| restriction(key).map(str::to_owned));
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
fn sizes(
    group: &mut NodeGroup,
    context: &ImportContext<'_>,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let [minimum, maximum, age] = ["MinSize", "MaxSize", "MaxInstanceLifetime"]
        .map(|field| group.take(field).as_ref().and_then(Value::as_i64));
    let (minimum, maximum) = match context.sizes.get(&group.name) {
        Some((minimum, maximum)) => (Some(*minimum), Some(*maximum)),
        None => (minimum, maximum),
    };
    let unit = take_text(&mut group.fields, "DesiredCapacityType");
    let limits = match (maximum, unit.as_deref()) {
        (None, _) => Err("the input has no maximum size; set the number of nodes"),
        (Some(_), _) if is_weighed(group) => {
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
        Err(why) => losses.miss("limits", why),
    }
    if let Some(minimum) = minimum.filter(|count| *count > 0) {
        let why = "pools have no minimum size; use a buffer for spare capacity or replicas for a \
                   fixed size";
        losses.add(format!("MinSize={minimum}"), why);
    }
    let age = age.filter(|seconds| *seconds > 0);
    // Without a maximum lifetime, nodes do not expire.
    body.set("expire_after", duration(age.map(SignedDuration::from_secs)));
}

/// Returns whether the size of a group counts weighted capacity.
fn is_weighed(group: &NodeGroup) -> bool {
    let mixed = group.fields.get("MixedInstancesPolicy");
    let overrides =
        mixed.and_then(|policy| policy.get("LaunchTemplate")?.get("Overrides")?.as_array());
    let mut weights = overrides
        .into_iter()
        .flatten()
        .filter_map(|entry| text(entry.get("WeightedCapacity")?));
    weights.any(|weight| weight != "1")
}

/// Converts taints and startup taints.
fn taints(group: &NodeGroup, startup: &[String], body: &mut HclBody, losses: &mut DroppedFields) {
    let mut all: Vec<GroupTaint> = Vec::new();
    for (key, tag) in group.node_tags("taint/") {
        let parts = tag.value.rsplit_once(':');
        match parts.filter(|(_, effect)| EFFECTS.iter().any(|(_, ours)| ours == effect)) {
            Some((value, effect)) => all.push(GroupTaint {
                key: key.to_owned(),
                value: value.to_owned(),
                effect: effect.to_owned(),
            }),
            // The autoscaler ignores it, too.
            None => losses.add(
                format!("Tags.{}={}", tag.key, tag.value),
                "the format is not VALUE:EFFECT",
            ),
        }
    }
    let managed = group.managed("taints").and_then(Value::as_array);
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
        body.block(kind, Some(&taint.key), inner);
    }
}

/// Returns whether a group has a taint with this key.
pub(super) fn has_taint(group: &NodeGroup, key: &str) -> bool {
    let managed = group.managed("taints").and_then(Value::as_array);
    let mut managed = managed.into_iter().flatten();
    group.tag(&format!("{NODE_TEMPLATE}taint/{key}")).is_some()
        || managed.any(|taint| taint.get("key").is_some_and(|name| name == key))
}

/// Converts devices that only a tag describes.
fn overlay(
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
    body.block("require", Some(POOL), inner);
    Some(body)
}

/// Reports the remaining fields of a group.
fn rest(group: &NodeGroup, losses: &mut DroppedFields) {
    const READ: [&str; 4] = ["label/", "taint/", "resources/", "autoscaling-options/"];
    for tag in &group.tags {
        let suffix = tag.key.strip_prefix(NODE_TEMPLATE);
        if suffix.is_some_and(|suffix| !READ.iter().any(|start| suffix.starts_with(start))) {
            losses.add(format!("Tags.{}", tag.key), "unknown autoscaler tag");
        }
    }
    let mut fields = group.fields.clone();
    for name in [
        "LaunchTemplate",
        "LaunchConfigurationName",
        "MixedInstancesPolicy",
    ] {
        fields.shift_remove(name);
    }
    unsupported_fields::report(&fields, unsupported_fields::GROUP, "", losses);
    if let Some(managed) = &group.managed {
        unsupported_fields::report(managed, unsupported_fields::MANAGED, "nodegroup", losses);
    }
}

/// Returns the name of a cluster from the key of a tag.
pub(super) fn cluster_of(key: &str) -> Option<&str> {
    key.strip_prefix(AUTOSCALER)
        .filter(|name| *name != "enabled")
        .or_else(|| key.strip_prefix("kubernetes.io/cluster/"))
        .filter(|name| !name.is_empty() && !name.contains('/'))
}
