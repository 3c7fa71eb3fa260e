//! Imports NodePools as pools.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::field_tables::POOL;
use super::super::{placeholders, requirements};
use super::{ConvertedBlock, Object, Objects};
use crate::migrate::dropped::{DroppedField, DroppedFields};
use crate::migrate::field_mapping::{self, scalar_text, take_field, text_or_empty};
use crate::migrate::hcl::HclBody;

/// The path of the reference to the node class.
const CLASS: &str = "template.spec.nodeClassRef";
/// The API group of the referenced node class.
const GROUP: &str = "karpenter.k8s.aws";

pub(super) fn build_pool(mut object: Object, clusters: &[String]) -> ConvertedBlock {
    let (mut spec, mut body, mut losses) = object.start_block(clusters);
    let class = class_of(&spec);
    match &class {
        Some(name) if placeholders::has_placeholder(name) => {
            losses.add(format!("spec.{CLASS}.name: {name}"), placeholders::WHY);
        }
        Some(name) => body.set_reference("node_class", "node_class", name),
        None => {}
    }
    if let Some(mut reference) = take_field(&mut spec, CLASS)
        && let Some(reference) = reference.as_object_mut()
    {
        for name in ["group", "apiVersion"] {
            let value = take_field(reference, name);
            let group = value.as_ref().map(|value| value.as_str().unwrap_or_default());
            if group.is_some_and(|group| group.split('/').next() != Some(GROUP)) {
                let why = format!("only node classes of {GROUP} are supported");
                losses.add(format!("spec.{CLASS}.{name}"), why);
            }
        }
        for name in ["kind", "name"] {
            reference.shift_remove(name);
        }
        for name in reference.keys() {
            losses.add(format!("spec.{CLASS}.{name}"), "unknown field");
        }
    }
    if spec.get("replicas").is_some_and(|spec| !spec.is_null()) {
        drop_static_settings(&mut spec, &mut losses);
    }
    convert_budgets(&mut spec);
    let requirements = take_field(&mut spec, "template.spec.requirements");
    let mut rules = HclBody::default();
    let is_provisioner = object.of.starts_with("Provisioner/");
    let path = match is_provisioner {
        true => "spec.requirements",
        false => "spec.template.spec.requirements",
    };
    let imported = requirements::import_requirements(requirements, path, &mut rules, &mut losses);
    field_mapping::import_fields(POOL, &mut spec, "spec", &mut body, &mut losses);
    body.insert_before_blocks(rules);
    let mut built = object.into_block("pool", body, losses);
    for loss in built.losses.iter_mut().filter(|_| is_provisioner) {
        // A Provisioner has no template.
        for within in ["spec.template.spec.", "spec.template.metadata."] {
            if let Some(rest) = loss.path.strip_prefix(within) {
                loss.path = format!("spec.{rest}");
            }
        }
    }
    let classless =
        class.is_none().then(|| "nodeClassRef does not reference an EC2NodeClass".to_owned());
    let fault = imported.err().map(|error| error.to_string());
    if let Some(why) = fault.or(classless) {
        built.comment_out(why);
    }
    built
}

/// Returns the name of the node class if it is an EC2NodeClass.
pub(super) fn class_of(spec: &Map<String, Value>) -> Option<String> {
    let reference = spec.get("template")?.get("spec")?.get("nodeClassRef")?;
    let kind = reference.get("kind").filter(|kind| !kind.is_null());
    let ec2 = kind.is_none_or(|kind| kind == "EC2NodeClass" || kind == "AWSNodeTemplate");
    let name = reference.get("name").and_then(scalar_text);
    name.filter(|name| ec2 && !name.is_empty())
}

/// Adds an empty node class for each referenced class that is not part of the import.
pub(super) fn add_missing_classes(objects: &mut Objects) {
    let mut known: Vec<String> = objects.classes.iter().map(|class| class.name.clone()).collect();
    for pool in &mut objects.pools {
        let Some(name) = class_of(&pool.spec)
            .filter(|name| !known.contains(name) && !placeholders::has_placeholder(name))
        else {
            continue;
        };
        let why = format!("the EC2NodeClass {name:?} is not part of the import");
        let path = format!("spec.{CLASS}");
        pool.lost.push(DroppedField::new(pool.of.as_str(), path, why));
        objects.classes.push(Object {
            of: format!("EC2NodeClass/{name}"),
            name: name.clone(),
            about: vec!["The EC2NodeClass was not part of the import.".to_owned()],
            ..Object::default()
        });
        known.push(name);
    }
}

/// Static pools are not consolidated in Karpenter, but its API sets the fields.
fn drop_static_settings(spec: &mut Map<String, Value>, losses: &mut DroppedFields) {
    let defaults = [
        ("disruption.consolidationPolicy", "WhenEmptyOrUnderutilized"),
        ("disruption.consolidateAfter", "0s"),
    ];
    for (field, default) in defaults {
        let value = take_field(spec, field);
        if value.is_some_and(|value| value != default) {
            let why = "static pools are not consolidated; Karpenter ignores it too";
            losses.add(format!("spec.{field}"), why);
        }
    }
    if take_field(spec, "weight").is_some() {
        losses.add("spec.weight", "static pools have no weight; Karpenter ignores it too");
    }
    if let Some(Value::Object(limits)) = spec.get_mut("limits") {
        let others: Vec<String> =
            limits.keys().filter(|limit| *limit != "nodes").cloned().collect();
        for name in others {
            limits.shift_remove(&name);
            let why = "static pools are limited by nodes only; Karpenter ignores it too";
            losses.add(format!("spec.limits.{name}"), why);
        }
    }
}

/// Converts budgets.
fn convert_budgets(spec: &mut Map<String, Value>) {
    let Some(disruption) = spec.get_mut("disruption") else {
        return;
    };
    let Some(budgets) = disruption.get_mut("budgets").and_then(Value::as_array_mut) else {
        return;
    };
    // An empty list means no limit, while a missing list means 10%.
    if budgets.is_empty() {
        budgets.push(json!({ "nodes": "100%" }));
    }
    for schedule in budgets.iter_mut().filter_map(|budget| budget.get_mut("schedule")) {
        // Karpenter treats `?` like `*`, which matches any value.
        if let Some(text) = schedule.as_str() {
            *schedule = Value::from(text.replace('?', "*"));
        }
    }
}

/// Returns the taints of each pool, as tolerations.
pub(super) fn pool_tolerations(pools: &[Object]) -> BTreeMap<String, Vec<Value>> {
    let tolerations = pools.iter().map(|pool| {
        let template = pool.spec.get("template");
        let taints = template.and_then(|template| template.get("spec")?.get("taints")?.as_array());
        let taints = taints.into_iter().flatten().map(|taint| {
            json!({
                "key": text_or_empty(taint.get("key")),
                "operator": "Equal",
                "value": text_or_empty(taint.get("value")),
                "effect": text_or_empty(taint.get("effect")),
            })
        });
        (pool.name.clone(), taints.collect())
    });
    tolerations.collect()
}
