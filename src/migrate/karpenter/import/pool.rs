//! Pools of NodePools.
//! It must not know which versions a NodePool comes in.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::field_tables::POOL;
use super::super::{placeholders, requirements};
use super::{ConvertedBlock, Object, Objects};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{self, take, text};
use crate::migrate::hcl::{HclBody, HclItem};

/// Where the reference to the node class is.
const CLASS: &str = "template.spec.nodeClassRef";
/// The group of its API.
const GROUP: &str = "karpenter.k8s.aws";

pub(super) fn build(mut object: Object, clusters: &[String]) -> ConvertedBlock {
    let (mut body, mut losses) = object.start(clusters);
    let mut spec = std::mem::take(&mut object.spec);
    let class = class_of(&spec);
    match &class {
        Some(name) if placeholders::is_name(name) => {
            losses.add(format!("spec.{CLASS}.name: {name}"), placeholders::WHY);
        }
        Some(name) => body.refer("node_class", "node_class", name),
        None => {}
    }
    if let Some(mut own) = take(&mut spec, CLASS)
        && let Some(own) = own.as_object_mut()
    {
        for name in ["group", "apiVersion"] {
            let said = take(own, name);
            let group = said.as_ref().map(|own| own.as_str().unwrap_or_default());
            if group.is_some_and(|own| own.split('/').next() != Some(GROUP)) {
                let why = format!("node classes are those of {GROUP}");
                losses.add(format!("spec.{CLASS}.{name}"), why);
            }
        }
        for name in ["kind", "name"] {
            own.shift_remove(name);
        }
        for name in own.keys() {
            losses.add(format!("spec.{CLASS}.{name}"), "an unknown field");
        }
    }
    if spec.get("replicas").is_some_and(|own| !own.is_null()) {
        settle_static(&mut spec, &mut losses);
    }
    settle_budgets(&mut spec);
    let requirements = take(&mut spec, "template.spec.requirements");
    let mut rules = HclBody::default();
    let earlier = object.of.starts_with("Provisioner/");
    let path = match earlier {
        true => "spec.requirements",
        false => "spec.template.spec.requirements",
    };
    let ruled = requirements.map_or(Ok(()), |own| {
        requirements::import(&own, path, &mut rules, &mut losses)
    });
    field_mapping::import(POOL, &mut spec, "spec", &mut body, &mut losses);
    let blocks = body.items.iter();
    let at = blocks
        .take_while(|item| !matches!(item, HclItem::Block(_)))
        .count();
    body.items.splice(at..at, rules.items);
    let mut built = object.built("pool", body, losses);
    for loss in built.losses.iter_mut().filter(|_| earlier) {
        // There they had no template of their own.
        for within in ["spec.template.spec.", "spec.template.metadata."] {
            if let Some(rest) = loss.path.strip_prefix(within) {
                loss.path = format!("spec.{rest}");
            }
        }
    }
    let classless = class
        .is_none()
        .then(|| "it names no EC2NodeClass".to_owned());
    if let Some(why) = ruled.err().or(classless) {
        built.leave_out(why);
    }
    built
}

/// The name of the node class, if it is one of EC2's.
pub(super) fn class_of(spec: &Map<String, Value>) -> Option<String> {
    let own = spec.get("template")?.get("spec")?.get("nodeClassRef")?;
    let kind = own.get("kind").filter(|kind| !kind.is_null());
    let ec2 = kind.is_none_or(|kind| kind == "EC2NodeClass" || kind == "AWSNodeTemplate");
    let name = own.get("name").and_then(text);
    name.filter(|name| ec2 && !name.is_empty())
}

/// Adds an empty node class for each that a pool names and nobody has given.
pub(super) fn add_missing_classes(objects: &mut Objects) {
    let mut known: Vec<String> = objects.classes.iter().map(|own| own.name.clone()).collect();
    for pool in &mut objects.pools {
        let of = pool.of.clone();
        let mut losses = DroppedFields::of(of.clone());
        match class_of(&pool.spec) {
            None => continue,
            Some(name) if known.contains(&name) || placeholders::is_name(&name) => continue,
            Some(name) => {
                let why = format!("the node class {name:?} is not among what is imported");
                losses.add(format!("spec.{CLASS}"), why);
                objects.classes.push(Object {
                    of: format!("EC2NodeClass/{name}"),
                    name: name.clone(),
                    namespace: String::new(),
                    spec: Map::new(),
                    about: vec!["What it has was not among what was imported.".to_owned()],
                    lost: Vec::new(),
                });
                known.push(name);
            }
        }
        pool.lost.extend(losses.all);
    }
}

/// Static pools are not consolidated, in Karpenter either, but its API fills the fields in.
fn settle_static(spec: &mut Map<String, Value>, losses: &mut DroppedFields) {
    let usual = [
        ("disruption.consolidationPolicy", "WhenEmptyOrUnderutilized"),
        ("disruption.consolidateAfter", "0s"),
    ];
    for (field, default) in usual {
        let own = take(spec, field);
        if own.is_some_and(|own| own != default) {
            let why = "static pools are not consolidated, in Karpenter either";
            losses.add(format!("spec.{field}"), why);
        }
    }
    if take(spec, "weight").is_some() {
        losses.add("spec.weight", "static pools have none, in Karpenter either");
    }
    if let Some(Value::Object(limits)) = spec.get_mut("limits") {
        let others: Vec<String> = limits
            .keys()
            .filter(|own| *own != "nodes")
            .cloned()
            .collect();
        for name in others {
            limits.shift_remove(&name);
            let why = "static pools are limited in their nodes, in Karpenter either";
            losses.add(format!("spec.limits.{name}"), why);
        }
    }
}

/// Budgets as we take them.
fn settle_budgets(spec: &mut Map<String, Value>) {
    let Some(disruption) = spec.get_mut("disruption") else {
        return;
    };
    let Some(budgets) = disruption.get_mut("budgets").and_then(Value::as_array_mut) else {
        return;
    };
    // None at all is no limit, where none written is one of 10%.
    if budgets.is_empty() {
        budgets.push(json!({ "nodes": "100%" }));
    }
    for schedule in budgets.iter_mut().filter_map(|own| own.get_mut("schedule")) {
        // To Karpenter both are any value.
        if let Some(text) = schedule.as_str() {
            *schedule = Value::from(text.replace('?', "*"));
        }
    }
}

/// The taints of each pool, as tolerations say them.
pub(super) fn taints(pools: &[Object]) -> BTreeMap<String, Vec<Value>> {
    let each = pools.iter().map(|pool| {
        let taints = pool.spec.get("template").and_then(|own| own.get("spec"));
        let taints = taints
            .and_then(|own| own.get("taints"))
            .and_then(Value::as_array);
        let taints = taints.into_iter().flatten().map(|taint| {
            let field = |name: &str| taint.get(name).and_then(text).unwrap_or_default();
            json!({
                "key": field("key"),
                "operator": "Equal",
                "value": field("value"),
                "effect": field("effect"),
            })
        });
        (pool.name.clone(), taints.collect())
    });
    each.collect()
}
