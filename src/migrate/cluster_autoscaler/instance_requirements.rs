//! Converts the instances of a group to requirements on types, zones and capacity types.

use serde_json::{Map, Value};
use thiserror::Error;

use super::node_groups::NodeGroup;
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{
    list_texts, scalar_text, take_field, take_text, text_or_empty,
};
use crate::migrate::hcl::{HclBlock, HclBody, HclItem};
use crate::model::labels::{
    ACCELERATOR_COUNT, CAPACITY_TYPE, GPU_COUNT, INSTANCE_SIZE, INSTANCE_TYPE, ZONE,
};

const CATEGORY: &str = "karpenter.k8s.aws/instance-category";
const CPU: &str = "karpenter.k8s.aws/instance-cpu";
const CPU_MAKER: &str = "karpenter.k8s.aws/instance-cpu-manufacturer";
const FAMILY: &str = "karpenter.k8s.aws/instance-family";
const GPU_MAKER: &str = "karpenter.k8s.aws/instance-gpu-manufacturer";
const GPU_NAME: &str = "karpenter.k8s.aws/instance-gpu-name";
const LOCAL: &str = "karpenter.k8s.aws/instance-local-nvme";
const MEMORY: &str = "karpenter.k8s.aws/instance-memory";

/// Bare-metal sizes.
const METAL: [&str; 7] =
    ["metal", "metal-12xl", "metal-16xl", "metal-24xl", "metal-32xl", "metal-48xl", "metal-96xl"];

/// The path of the capacity reservation.
const RESERVATION: &str = "CapacityReservationSpecification";

/// The path of the attributes for instance type selection.
const ATTRIBUTES: &str = "InstanceRequirements";

/// Why the instance types of a group cannot be converted.
#[derive(Debug, Error)]
pub(super) enum InstanceTypesError {
    #[error("launch configurations are not supported; migrate the group to a launch template")]
    LaunchConfiguration,
    #[error(
        "the input has no instance types; pass the output of aws ec2 \
         describe-launch-template-versions with --asg"
    )]
    NoTypes,
    #[error("no requirement expresses {0}; write instance families or types")]
    Patterns(String),
}

/// The requirements collected so far.
#[derive(Debug, Default)]
struct Rules {
    blocks: Vec<HclBlock>,
}

impl Rules {
    fn add(&mut self, key: &str, name: &'static str, value: impl Into<Value>) {
        if let Some(block) = self.block_mut(key) {
            block.body.set(name, value);
            return;
        }
        let mut body = HclBody::default();
        body.set(name, value);
        self.blocks.push(HclBlock { kind: "require", label: Some(key.to_owned()), body });
    }

    /// Returns the requirement on a label.
    fn block_mut(&mut self, key: &str) -> Option<&mut HclBlock> {
        let mut blocks = self.blocks.iter_mut();
        blocks.find(|block| block.label.as_deref() == Some(key))
    }

    /// Adds a value to a requirement.
    fn add_comment(&mut self, key: &str, text: &str) {
        if let Some(block) = self.block_mut(key) {
            let comment = HclItem::Comment(text.to_owned());
            block.body.items.insert(0, comment);
        }
    }
}

/// Returns the capacity types for a reservation, with a comment: a launch into a reservation by id
/// fails if the reservation is full, unless the group allows on-demand.
fn reserved_capacity_types(
    group: &NodeGroup,
    data: Option<&Map<String, Value>>,
    capacity: &[&'static str],
) -> Option<(Vec<&'static str>, &'static str)> {
    let by_group = group.fields.get(RESERVATION);
    let by_template = data?.get(RESERVATION)?;
    by_template.get("CapacityReservationTarget")?.get("CapacityReservationId")?.as_str()?;
    let on_demand_index = capacity.iter().position(|capacity| *capacity == "on-demand")?;
    let goes_on = [by_group, Some(by_template)].into_iter().flatten().any(|reservation| {
        let preference = reservation.get("CapacityReservationPreference");
        preference.is_some_and(|preference| {
            preference == "open" || preference == "capacity-reservations-first"
        })
    });
    let (ours, note): (&[&str], _) = match goes_on {
        true => (
            &["reserved", "on-demand"],
            "If the reservation is full, nodes are launched on demand.",
        ),
        false => {
            (&["reserved"], "If the reservation is full, no nodes are launched, as in the group.")
        }
    };
    let mut capacity = capacity.to_vec();
    capacity.splice(on_demand_index..=on_demand_index, ours.iter().copied());
    Some((capacity, note))
}

/// Returns all requirements of a group, or why the group cannot be converted.
pub(super) fn group_requirements(
    group: &mut NodeGroup,
    data: Option<&Map<String, Value>>,
    losses: &mut DroppedFields,
) -> Result<Vec<HclBlock>, InstanceTypesError> {
    let mut rules = Rules::default();
    let mixed = group.fields.get("MixedInstancesPolicy");
    let mixed = mixed.and_then(Value::as_object).cloned().unwrap_or_default();
    let capacity = capacity_types(group, &mixed, data, losses);
    match reserved_capacity_types(group, data, &capacity) {
        Some((capacity, note)) => {
            rules.add(CAPACITY_TYPE, "in", capacity);
            rules.add_comment(CAPACITY_TYPE, note);
        }
        None => rules.add(CAPACITY_TYPE, "in", capacity),
    }
    let zones = list_texts(group.take_field("AvailabilityZones").as_ref());
    instance_types(group, &mixed, data, &mut rules, losses)?;
    // Without zones, its subnets determine the zones.
    if !zones.is_empty() {
        rules.add(ZONE, "in", zones);
    }
    Ok(rules.blocks)
}

/// Converts the capacity types.
fn capacity_types(
    group: &NodeGroup,
    mixed: &Map<String, Value>,
    data: Option<&Map<String, Value>>,
    losses: &mut DroppedFields,
) -> Vec<&'static str> {
    if let Some(Value::Object(distribution)) = mixed.get("InstancesDistribution") {
        return distribution_capacity_types(distribution, losses);
    }
    match group.managed_field("capacityType").and_then(Value::as_str) {
        Some("SPOT") => return vec!["spot"],
        Some("CAPACITY_BLOCK") => return vec!["reserved"],
        _ => {}
    }
    let market = data.and_then(|data| data.get("InstanceMarketOptions")?.get("MarketType"));
    match market.and_then(Value::as_str) {
        Some("spot") => vec!["spot"],
        Some("capacity-block") => vec!["reserved"],
        _ => vec!["on-demand"],
    }
}

/// Converts the proportions of on-demand and spot instances to capacity types.
fn distribution_capacity_types(
    distribution: &Map<String, Value>,
    losses: &mut DroppedFields,
) -> Vec<&'static str> {
    let [base, share] = [("OnDemandBaseCapacity", 0), ("OnDemandPercentageAboveBaseCapacity", 100)]
        .map(|(name, default)| {
            let number = distribution.get(name).and_then(Value::as_i64);
            number.unwrap_or(default)
        });
    let path = "MixedInstancesPolicy.InstancesDistribution";
    if !text_or_empty(distribution.get("SpotMaxPrice")).is_empty() {
        let why = "no maximum spot price is supported; spot never costs more than on-demand";
        losses.add(format!("{path}.SpotMaxPrice"), why);
    }
    match (base, share) {
        (_, 100..) => vec!["on-demand"],
        (0, ..=0) => vec!["spot"],
        _ => {
            let why = format!(
                "shares are not supported: {base} on demand and {share} % of the others \
                 become the cheaper of both; use two pools with limits and weights instead"
            );
            losses.add(path, why);
            vec!["spot", "on-demand"]
        }
    }
}

/// Converts instance types, or attributes for their selection.
fn instance_types(
    group: &NodeGroup,
    mixed: &Map<String, Value>,
    data: Option<&Map<String, Value>>,
    rules: &mut Rules,
    losses: &mut DroppedFields,
) -> Result<(), InstanceTypesError> {
    let overrides = mixed
        .get("LaunchTemplate")
        .and_then(|template| template.get("Overrides")?.as_array())
        .map_or(&[][..], Vec::as_slice);
    let mut names: Vec<String> = Vec::new();
    for entry in overrides {
        names.extend(entry.get("InstanceType").and_then(scalar_text));
        let path = "MixedInstancesPolicy.LaunchTemplate.Overrides";
        let weight = entry.get("WeightedCapacity").and_then(scalar_text);
        if weight.is_some_and(|weight| weight != "1") {
            losses.add(
                format!("{path}.WeightedCapacity"),
                "weights are not supported; limits count nodes",
            );
        }
        if entry.get("LaunchTemplateSpecification").is_some_and(Value::is_object) {
            let why = "one pool has one configuration; use a separate pool for these types";
            losses.add(format!("{path}.LaunchTemplateSpecification"), why);
        }
    }
    let attributes = match overrides {
        [entry] => entry.get(ATTRIBUTES),
        _ => None,
    };
    let attributes = attributes.or_else(|| data?.get(ATTRIBUTES));
    if let Some(Value::Object(attributes)) = attributes.filter(|_| overrides.len() <= 1) {
        return convert_attributes(attributes.clone(), rules, losses);
    }
    if overrides.is_empty() {
        let managed = group.managed_field("instanceTypes");
        names.extend(list_texts(managed));
        if managed.and_then(Value::as_array).is_none_or(Vec::is_empty) {
            names.extend(data.and_then(|data| scalar_text(data.get("InstanceType")?)));
        }
    }
    let mut named: Vec<String> = Vec::new();
    for name in names {
        if !name.is_empty() && !named.contains(&name) {
            named.push(name);
        }
    }
    if named.is_empty() {
        return Err(match group.fields.contains_key("LaunchConfigurationName") {
            true => InstanceTypesError::LaunchConfiguration,
            false => InstanceTypesError::NoTypes,
        });
    }
    rules.add(INSTANCE_TYPE, "in", named);
    Ok(())
}

/// Attributes with a minimum and maximum, with the labels in the same unit.
const RANGES: [(&str, &str); 3] =
    [("VCpuCount", CPU), ("MemoryMiB", MEMORY), ("AcceleratorCount", GPU_COUNT)];

/// Manufacturers, by their names in AWS and in labels.
const MAKERS: [(&str, &str); 1] = [("amazon-web-services", "aws")];

/// Converts attributes for instance type selection to requirements.
fn convert_attributes(
    mut attributes: Map<String, Value>,
    rules: &mut Rules,
    losses: &mut DroppedFields,
) -> Result<(), InstanceTypesError> {
    let allowed = list_texts(take_field(&mut attributes, "AllowedInstanceTypes").as_ref());
    if !allowed.is_empty() {
        let (key, values) = label_for_patterns(&allowed)
            .ok_or_else(|| InstanceTypesError::Patterns(allowed.join(", ")))?;
        rules.add(key, "in", values);
    }
    let excluded = list_texts(take_field(&mut attributes, "ExcludedInstanceTypes").as_ref());
    match label_for_patterns(&excluded) {
        _ if excluded.is_empty() => {}
        Some((key, values)) if allowed.is_empty() => rules.add(key, "not_in", values),
        _ => {
            let why = "no requirement expresses this pattern";
            losses.add(format!("{ATTRIBUTES}.ExcludedInstanceTypes"), why);
        }
    }
    convert_accelerators(&mut attributes, rules);
    for (name, key) in RANGES {
        let Some(range) = take_field(&mut attributes, name) else {
            continue;
        };
        for (bound, argument) in [("Min", "gte"), ("Max", "lte")] {
            let number = range.get(bound).and_then(Value::as_i64);
            // A minimum of zero has no effect.
            if let Some(number) = number.filter(|number| *number > 0 || argument == "lte") {
                rules.add(key, argument, number);
            }
        }
    }
    for (name, key) in [
        ("CpuManufacturers", CPU_MAKER),
        ("AcceleratorManufacturers", GPU_MAKER),
        ("AcceleratorNames", GPU_NAME),
    ] {
        let mut values = list_texts(take_field(&mut attributes, name).as_ref());
        for value in &mut values {
            if let Some((_, ours)) = MAKERS.iter().find(|(theirs, _)| theirs == value) {
                *value = (*ours).to_owned();
            }
        }
        if !values.is_empty() {
            rules.add(key, "in", values);
        }
    }
    convert_keywords(&mut attributes, rules);
    report_attributes(&attributes, losses);
    Ok(())
}

/// Converts attributes with a keyword. These attributes have a default.
fn convert_keywords(attributes: &mut Map<String, Value>, rules: &mut Rules) {
    for (name, key, values) in
        [("BurstablePerformance", CATEGORY, &["t"][..]), ("BareMetal", INSTANCE_SIZE, &METAL)]
    {
        match take_text(attributes, name).as_deref().unwrap_or("excluded") {
            "excluded" => rules.add(key, "not_in", values.to_vec()),
            "required" => rules.add(key, "in", values.to_vec()),
            _ => {}
        }
    }
    match take_text(attributes, "LocalStorage").as_deref() {
        Some("excluded") => rules.add(LOCAL, "exists", false),
        Some("required") => rules.add(LOCAL, "exists", true),
        _ => {}
    }
}

/// A maximum of zero accelerators means that the label does not exist.
fn convert_accelerators(attributes: &mut Map<String, Value>, rules: &mut Rules) {
    let maximum = attributes.get("AcceleratorCount").and_then(|range| range.get("Max"));
    if maximum.and_then(Value::as_i64) == Some(0) {
        take_field(attributes, "AcceleratorCount");
        rules.add(GPU_COUNT, "exists", false);
        rules.add(ACCELERATOR_COUNT, "exists", false);
    }
    // The label contains the number of GPUs only.
    let kinds = attributes.get("AcceleratorTypes").and_then(Value::as_array);
    if kinds.is_some_and(|all| all.len() == 1 && all[0] == "gpu") {
        take_field(attributes, "AcceleratorTypes");
    }
}

/// Reports attributes without a requirement.
fn report_attributes(attributes: &Map<String, Value>, losses: &mut DroppedFields) {
    for (name, value) in attributes {
        let has_two = value.as_array().is_some_and(|all| all.len() == 2);
        let empty = match value {
            Value::Object(items) => items.is_empty(),
            Value::Array(items) => items.is_empty(),
            other => other.is_null(),
        };
        // `current` and `previous` together are all generations.
        let is_unset_value = empty || (name == "InstanceGenerations" && has_two);
        if !is_unset_value {
            let why = match name.as_str() {
                "BaselineEbsBandwidthMbps" => {
                    "karpenter.k8s.aws/instance-ebs-bandwidth is the burst bandwidth of a type, \
                     not its baseline"
                }
                _ => "no label has this value",
            };
            losses.add(format!("{ATTRIBUTES}.{name}"), why);
        }
    }
}

/// Returns the label that corresponds to patterns of types, with its values.
fn label_for_patterns(all: &[String]) -> Option<(&'static str, Vec<String>)> {
    if all.iter().all(|pattern| !pattern.contains('*')) {
        return Some((INSTANCE_TYPE, all.to_vec()));
    }
    let families = all.iter().map(|pattern| {
        let family = pattern.strip_suffix(".*")?;
        (!family.contains('*')).then(|| family.to_owned())
    });
    Some((FAMILY, families.collect::<Option<Vec<String>>>()?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::METAL;
    use crate::catalog::Catalog;

    #[test]
    fn all_metal_sizes_of_the_catalog_are_known() {
        let catalog = Catalog::shipped();
        let sizes = catalog.types().filter_map(|it| it.name.as_str().split_once('.'));
        let sizes = sizes.map(|(_, size)| size).filter(|size| size.starts_with("metal"));
        let sizes: BTreeSet<&str> = sizes.collect();
        assert_eq!(sizes, BTreeSet::from(METAL));
    }
}
