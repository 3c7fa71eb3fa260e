//! Converts the instances of a group to requirements on types, zones and capacity types.

use serde_json::{Map, Value};

use super::node_groups::NodeGroup;
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{take, text};
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
const METAL: [&str; 7] = [
    "metal",
    "metal-12xl",
    "metal-16xl",
    "metal-24xl",
    "metal-32xl",
    "metal-48xl",
    "metal-96xl",
];

/// The path of the capacity reservation.
const RESERVATION: &str = "CapacityReservationSpecification";

/// The path of the attributes for instance type selection.
const ATTRIBUTES: &str = "InstanceRequirements";

/// The requirements collected so far.
#[derive(Debug, Default)]
struct Rules {
    blocks: Vec<HclBlock>,
}

impl Rules {
    fn add(&mut self, key: &str, name: &'static str, value: impl Into<Value>) {
        let found = self
            .blocks
            .iter_mut()
            .find(|block| block.label.as_deref() == Some(key));
        if let Some(block) = found {
            block.body.set(name, value);
            return;
        }
        let mut body = HclBody::default();
        body.set(name, value);
        self.blocks.push(HclBlock {
            kind: "require",
            label: Some(key.to_owned()),
            body,
        });
    }

    /// Adds a value to a requirement.
    fn note(&mut self, key: &str, text: &str) {
        let mut blocks = self.blocks.iter_mut();
        if let Some(block) = blocks.find(|block| block.label.as_deref() == Some(key)) {
            block
                .body
                .items
                .insert(0, HclItem::Comment(text.to_owned()));
        }
    }
}

/// Returns the capacity types for a reservation, with a comment: an instance that is
/// launched into a reservation by id fails if it is full, unless the group allows on-demand.
fn reserved(
    group: &NodeGroup,
    data: Option<&Map<String, Value>>,
    capacity: &[&'static str],
) -> Option<(Vec<&'static str>, &'static str)> {
    let of = |fields: &Map<String, Value>| fields.get(RESERVATION)?.as_object().cloned();
    let (by_template, by_group) = (data.and_then(of)?, of(&group.fields));
    by_template
        .get("CapacityReservationTarget")?
        .get("CapacityReservationId")?
        .as_str()?;
    let on_demand_index = capacity
        .iter()
        .position(|capacity| *capacity == "on-demand")?;
    let goes_on = [by_group, Some(by_template)]
        .into_iter()
        .flatten()
        .any(|reservation| {
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
        false => (
            &["reserved"],
            "If the reservation is full, no nodes are launched, as in the group.",
        ),
    };
    let mut capacity = capacity.to_vec();
    capacity.splice(on_demand_index..=on_demand_index, ours.iter().copied());
    Some((capacity, note))
}

/// Returns all requirements of a group, or why the group cannot be converted.
pub(super) fn rules(
    group: &mut NodeGroup,
    data: Option<&Map<String, Value>>,
    losses: &mut DroppedFields,
) -> Result<Vec<HclBlock>, String> {
    let mut rules = Rules::default();
    let mixed = match group.fields.get("MixedInstancesPolicy") {
        Some(Value::Object(mixed)) => mixed.clone(),
        _ => Map::new(),
    };
    let capacity = capacity(group, &mixed, data, losses);
    match reserved(group, data, &capacity) {
        Some((capacity, note)) => {
            rules.add(CAPACITY_TYPE, "in", capacity);
            rules.note(CAPACITY_TYPE, note);
        }
        None => rules.add(CAPACITY_TYPE, "in", capacity),
    }
    let zones = match group.take("AvailabilityZones") {
        Some(Value::Array(zones)) => zones.iter().filter_map(text).collect(),
        _ => Vec::new(),
    };
    types(group, &mixed, data, &mut rules, losses)?;
    // Without zones, its subnets determine the zones.
    if !zones.is_empty() {
        rules.add(ZONE, "in", zones);
    }
    Ok(rules.blocks)
}

/// Converts the capacity types.
fn capacity(
    group: &NodeGroup,
    mixed: &Map<String, Value>,
    data: Option<&Map<String, Value>>,
    losses: &mut DroppedFields,
) -> Vec<&'static str> {
    let (spot, on_demand) = ("spot", "on-demand");
    if let Some(Value::Object(distribution)) = mixed.get("InstancesDistribution") {
        let whole = |name: &str, default: i64| {
            distribution
                .get(name)
                .and_then(Value::as_i64)
                .unwrap_or(default)
        };
        let base = whole("OnDemandBaseCapacity", 0);
        let share = whole("OnDemandPercentageAboveBaseCapacity", 100);
        let path = "MixedInstancesPolicy.InstancesDistribution";
        if distribution
            .get("SpotMaxPrice")
            .and_then(text)
            .is_some_and(|price| !price.is_empty())
        {
            let why = "no maximum spot price is supported; spot never costs more than on-demand";
            losses.add(format!("{path}.SpotMaxPrice"), why);
        }
        return match (base, share) {
            (_, 100..) => vec![on_demand],
            (0, ..=0) => vec![spot],
            _ => {
                let why = format!(
                    "shares are not supported: {base} on demand and {share} % of the others \
                     become the cheaper of both; use two pools with limits and weights instead"
                );
                losses.add(path, why);
                vec![spot, on_demand]
            }
        };
    }
    match group.managed("capacityType").and_then(Value::as_str) {
        Some("SPOT") => return vec![spot],
        Some("CAPACITY_BLOCK") => return vec!["reserved"],
        _ => {}
    }
    let market = data.and_then(|data| data.get("InstanceMarketOptions"));
    let market = market
        .and_then(|options| options.get("MarketType"))
        .and_then(Value::as_str);
    match market {
        Some("spot") => vec![spot],
        Some("capacity-block") => vec!["reserved"],
        _ => vec![on_demand],
    }
}

/// Converts instance types, or attributes for their selection.
fn types(
    group: &NodeGroup,
    mixed: &Map<String, Value>,
    data: Option<&Map<String, Value>>,
    rules: &mut Rules,
    losses: &mut DroppedFields,
) -> Result<(), String> {
    let template = mixed.get("LaunchTemplate");
    let overrides = template
        .and_then(|template| template.get("Overrides"))
        .and_then(Value::as_array);
    let overrides: Vec<&Value> = overrides.into_iter().flatten().collect();
    let mut named: Vec<String> = Vec::new();
    let mut add = |name: Option<String>| {
        if let Some(name) = name.filter(|name| !name.is_empty() && !named.contains(name)) {
            named.push(name);
        }
    };
    for entry in &overrides {
        add(entry.get("InstanceType").and_then(text));
        let path = "MixedInstancesPolicy.LaunchTemplate.Overrides";
        let weight = entry.get("WeightedCapacity").and_then(text);
        if weight.is_some_and(|weight| weight != "1") {
            losses.add(
                format!("{path}.WeightedCapacity"),
                "weights are not supported; limits count nodes",
            );
        }
        if entry
            .get("LaunchTemplateSpecification")
            .is_some_and(Value::is_object)
        {
            let why = "one pool has one configuration; use a separate pool for these types";
            losses.add(format!("{path}.LaunchTemplateSpecification"), why);
        }
    }
    let attributes = match overrides.as_slice() {
        [one] => one.get(ATTRIBUTES),
        _ => None,
    };
    let attributes = attributes.or_else(|| data.and_then(|data| data.get(ATTRIBUTES)));
    if let Some(Value::Object(attributes)) = attributes.filter(|_| overrides.len() <= 1) {
        return by_attributes(attributes.clone(), rules, losses);
    }
    let managed = group.managed("instanceTypes").and_then(Value::as_array);
    for name in managed
        .into_iter()
        .flatten()
        .filter(|_| overrides.is_empty())
    {
        add(text(name));
    }
    let lone = data
        .and_then(|data| data.get("InstanceType"))
        .and_then(text);
    if overrides.is_empty() && managed.is_none_or(Vec::is_empty) {
        add(lone);
    }
    if named.is_empty() {
        return Err(match group.fields.contains_key("LaunchConfigurationName") {
            true => {
                "launch configurations are not supported; migrate the group to a launch template"
                    .to_owned()
            }
            false => "the input has no instance types; pass the output of aws ec2 \
                      describe-launch-template-versions with --asg"
                .to_owned(),
        });
    }
    rules.add(INSTANCE_TYPE, "in", named);
    Ok(())
}

/// Attributes with a minimum and maximum, with the labels in the same unit.
const RANGES: [(&str, &str); 3] = [
    ("VCpuCount", CPU),
    ("MemoryMiB", MEMORY),
    ("AcceleratorCount", GPU_COUNT),
];

/// Manufacturers, by their names in AWS and in labels.
const MAKERS: [(&str, &str); 1] = [("amazon-web-services", "aws")];

/// Converts attributes for instance type selection to requirements.
fn by_attributes(
    mut attributes: Map<String, Value>,
    rules: &mut Rules,
    losses: &mut DroppedFields,
) -> Result<(), String> {
    let texts = |attributes: &mut Map<String, Value>, name: &str| -> Vec<String> {
        let items = take(attributes, name);
        let items = items
            .as_ref()
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        items.filter_map(text).collect()
    };
    let allowed = texts(&mut attributes, "AllowedInstanceTypes");
    if !allowed.is_empty() {
        let (key, values) = patterns(&allowed).ok_or_else(|| {
            let names = allowed.join(", ");
            format!("no requirement expresses {names}; write instance families or types")
        })?;
        rules.add(key, "in", values);
    }
    let excluded = texts(&mut attributes, "ExcludedInstanceTypes");
    match patterns(&excluded) {
        _ if excluded.is_empty() => {}
        Some((key, values)) if allowed.is_empty() => rules.add(key, "not_in", values),
        _ => {
            let why = "no requirement expresses this pattern";
            losses.add(format!("{ATTRIBUTES}.ExcludedInstanceTypes"), why);
        }
    }
    accelerators(&mut attributes, rules);
    for (name, key) in RANGES {
        let Some(range) = take(&mut attributes, name) else {
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
        let values = texts(&mut attributes, name);
        if !values.is_empty() {
            rules.add(
                key,
                "in",
                values
                    .into_iter()
                    .map(
                        |value| match MAKERS.iter().find(|(theirs, _)| *theirs == value) {
                            Some((_, ours)) => (*ours).to_owned(),
                            None => value,
                        },
                    )
                    .collect::<Vec<_>>(),
            );
        }
    }
    words(&mut attributes, rules);
    rest(&attributes, losses);
    Ok(())
}

/// Converts attributes with a keyword. They have a default.
fn words(attributes: &mut Map<String, Value>, rules: &mut Rules) {
    let mut word = |name: &str, default: &str| {
        let value = take(attributes, name).as_ref().and_then(text);
        value.unwrap_or_else(|| default.to_owned())
    };
    let (burst, metal) = (
        word("BurstablePerformance", "excluded"),
        word("BareMetal", "excluded"),
    );
    let local = word("LocalStorage", "included");
    match burst.as_str() {
        "excluded" => rules.add(CATEGORY, "not_in", vec!["t"]),
        "required" => rules.add(CATEGORY, "in", vec!["t"]),
        _ => {}
    }
    match metal.as_str() {
        "excluded" => rules.add(INSTANCE_SIZE, "not_in", METAL.to_vec()),
        "required" => rules.add(INSTANCE_SIZE, "in", METAL.to_vec()),
        _ => {}
    }
    match local.as_str() {
        "excluded" => rules.add(LOCAL, "exists", false),
        "required" => rules.add(LOCAL, "exists", true),
        _ => {}
    }
}

/// A maximum of zero accelerators means that the label does not exist.
fn accelerators(attributes: &mut Map<String, Value>, rules: &mut Rules) {
    let maximum = attributes
        .get("AcceleratorCount")
        .and_then(|range| range.get("Max"));
    if maximum.and_then(Value::as_i64) == Some(0) {
        take(attributes, "AcceleratorCount");
        rules.add(GPU_COUNT, "exists", false);
        rules.add(ACCELERATOR_COUNT, "exists", false);
    }
    // The label counts only GPUs.
    let kinds = attributes.get("AcceleratorTypes").and_then(Value::as_array);
    if kinds.is_some_and(|all| all.len() == 1 && all[0] == "gpu") {
        take(attributes, "AcceleratorTypes");
    }
}

/// Reports attributes without a requirement.
fn rest(attributes: &Map<String, Value>, losses: &mut DroppedFields) {
    for (name, value) in attributes {
        let both = value.as_array().is_some_and(|all| all.len() == 2);
        let empty = match value {
            Value::Object(items) => items.is_empty(),
            Value::Array(items) => items.is_empty(),
            other => other.is_null(),
        };
        // `current` and `previous` together are all generations.
        let is_unset_value = empty || (name == "InstanceGenerations" && both);
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
fn patterns(all: &[String]) -> Option<(&'static str, Vec<String>)> {
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
    fn all_sizes_without_a_hypervisor_are_known() {
        let catalog = Catalog::shipped();
        let sizes = catalog
            .types()
            .filter_map(|own| own.name.as_str().split_once('.'));
        let sizes = sizes
            .map(|(_, size)| size)
            .filter(|own| own.starts_with("metal"));
        let sizes: BTreeSet<&str> = sizes.collect();
        assert_eq!(sizes, BTreeSet::from(METAL));
    }
}
