//! Buffers of CapacityBuffers, with the PodTemplates that they name.
//! It must not know what a pod runs.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::amounts;
use super::super::carry::{self, take, text};
use super::super::loss::Losses;
use super::super::tables::BUFFER;
use super::super::tree::{Block, Body, Item};
use super::{Built, Object};
use crate::model::labels::POOL;
use crate::model::quantity::Resources;

/// The one way in which room is kept.
const STRATEGY: &str = "buffer.x-k8s.io/active-capacity";

pub(super) fn build(
    mut object: Object,
    templates: &[Object],
    taints: &BTreeMap<String, Vec<Value>>,
    clusters: &[String],
) -> Built {
    let (mut body, mut losses) = object.start(clusters);
    let mut spec = std::mem::take(&mut object.spec);
    if take(&mut spec, "provisioningStrategy").is_some_and(|own| own != STRATEGY) {
        losses.add("spec.provisioningStrategy", "room is kept in one way");
    }
    let (named, scaled) = (
        take(&mut spec, "podTemplateRef"),
        take(&mut spec, "scalableRef"),
    );
    carry::import(BUFFER, &mut spec, "spec", &mut body, &mut losses);
    let mut left_out = None;
    if let Some(named) = named {
        let name = named.get("name").and_then(text).unwrap_or_default();
        let same = |own: &&Object| own.name == name && own.namespace == object.namespace;
        match templates.iter().find(same) {
            Some(template) => pod(template, taints, &mut body, &mut losses),
            None => {
                left_out = Some(format!(
                    "the PodTemplate {name:?} of {:?} is not among what is imported",
                    object.namespace
                ));
            }
        }
    }
    if let Some(Value::Object(scaled)) = scaled {
        scalable(scaled, &object.namespace, &mut body, &mut losses);
    }
    let mut built = object.built("buffer", body, losses);
    if let Some(why) = left_out {
        built.leave_out(why);
    }
    built
}

fn scalable(mut scaled: Map<String, Value>, namespace: &str, body: &mut Body, losses: &mut Losses) {
    let mut inner = Body::default();
    let group = take(&mut scaled, "apiGroup");
    if group.is_some_and(|own| own != "apps" && own != "") {
        losses.add("spec.scalableRef.apiGroup", "workloads are those of apps");
    }
    if let Some(kind) = take(&mut scaled, "kind") {
        inner.set("kind", kind);
    }
    inner.set("namespace", namespace);
    if let Some(name) = take(&mut scaled, "name") {
        inner.set("name", name);
    }
    for name in scaled.keys() {
        losses.add(format!("spec.scalableRef.{name}"), "an unknown field");
    }
    body.block("scalable", None, inner);
}

/// Fields of a pod that say where it may be, or how much it takes, and that a buffer has not.
const UNHEARD: [&str; 9] = [
    "affinity",
    "initContainers",
    "overhead",
    "priorityClassName",
    "resourceClaims",
    "resources",
    "runtimeClassName",
    "schedulerName",
    "topologySpreadConstraints",
];

/// What the pods are like. A pool that their node selector names is the buffer's.
fn pod(
    template: &Object,
    taints: &BTreeMap<String, Vec<Value>>,
    body: &mut Body,
    losses: &mut Losses,
) {
    let path = format!("{}: template.spec", template.of);
    let mut spec = match template.spec.get("spec") {
        Some(Value::Object(spec)) => spec.clone(),
        _ => Map::new(),
    };
    for field in UNHEARD {
        if take(&mut spec, field).is_some() {
            let why = "a buffer says nothing of it";
            losses.add(format!("{path}.{field}"), why);
        }
    }
    let mut requests = Resources::default();
    let containers = take(&mut spec, "containers");
    for container in containers.iter().filter_map(Value::as_array).flatten() {
        add_requests(container, &path, &mut requests, losses);
    }
    let mut inner = Body::default();
    inner.set("requests", amounts::requests(&requests));
    let mut selector = match take(&mut spec, "nodeSelector") {
        Some(Value::Object(selector)) => selector,
        _ => Map::new(),
    };
    let mut tolerations = match take(&mut spec, "tolerations") {
        Some(Value::Array(tolerations)) => tolerations,
        _ => Vec::new(),
    };
    let pool = selector.get(POOL).and_then(text);
    if let Some((pool, taints)) = pool.and_then(|name| taints.get_key_value(&name)) {
        selector.shift_remove(POOL);
        // Those of its pool are tolerated by themselves.
        if tolerations.ends_with(taints) {
            tolerations.truncate(tolerations.len() - taints.len());
        }
        let mut own = Body::default();
        own.refer("pool", "pool", pool);
        let at = body.items.iter().position(|item| match item {
            Item::Argument(name, _) => *name != "clusters",
            _ => true,
        });
        let at = at.unwrap_or(body.items.len());
        body.items.splice(at..at, own.items);
    }
    if !selector.is_empty() {
        inner.set("node_selector", Value::Object(selector));
    }
    for (index, toleration) in tolerations.iter().enumerate() {
        tolerate(
            toleration,
            &format!("{path}.tolerations[{index}]"),
            &mut inner,
            losses,
        );
    }
    body.block("pod", None, inner);
}

fn add_requests(container: &Value, path: &str, sum: &mut Resources, losses: &mut Losses) {
    let requests = container
        .get("resources")
        .and_then(|own| own.get("requests"));
    let requests = requests.and_then(Value::as_object);
    let mut own = Resources::default();
    for (name, amount) in requests.into_iter().flatten() {
        let amount = text(amount).unwrap_or_default();
        if let Err(error) = own.set(name, &amount) {
            let path = format!("{path}.containers.resources.requests.{name}");
            losses.add(path, error.to_string());
        }
    }
    sum.add(&own);
}

fn tolerate(toleration: &Value, at: &str, body: &mut Body, losses: &mut Losses) {
    let field = |name: &str| toleration.get(name).and_then(text);
    let Some(key) = field("key").filter(|key| !key.is_empty()) else {
        losses.add(at, "it tolerates every taint, and we name them");
        return;
    };
    let operator = field("operator").unwrap_or_else(|| "Equal".to_owned());
    if !matches!(operator.as_str(), "Equal" | "Exists") {
        losses.add(at, format!("there is no operator {operator:?} here"));
        return;
    }
    let mut inner = Body::default();
    if let Some(effect) = field("effect").filter(|own| !own.is_empty()) {
        inner.set("effect", effect);
    }
    if operator == "Equal" {
        inner.set("value", field("value").unwrap_or_default());
    }
    if field("tolerationSeconds").is_some() {
        losses.add(format!("{at}.tolerationSeconds"), "room is not evicted");
    }
    body.items.push(Item::Block(Block {
        kind: "toleration",
        label: Some(key),
        body: inner,
    }));
}
