//! Imports CapacityBuffers, with the PodTemplates that they reference.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::super::field_tables::BUFFER;
use super::{ConvertedBlock, Object, object_fields};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{scalar_text, take_field, take_text};
use crate::migrate::hcl::{HclBody, HclItem, HclValue};
use crate::migrate::{field_mapping, format_units};
use crate::model::labels::POOL;
use crate::model::quantity::Resources;

/// The supported provisioning strategy.
const STRATEGY: &str = "buffer.x-k8s.io/active-capacity";

pub(super) fn build_buffer(
    mut object: Object,
    templates: &[Object],
    taints: &BTreeMap<String, Vec<Value>>,
    clusters: &[String],
) -> ConvertedBlock {
    let (mut spec, mut body, mut losses) = object.start_block(clusters);
    if take_field(&mut spec, "provisioningStrategy").is_some_and(|strategy| strategy != STRATEGY) {
        losses.add("spec.provisioningStrategy", "only one provisioning strategy is supported");
    }
    let (named, scaled) =
        (take_field(&mut spec, "podTemplateRef"), take_field(&mut spec, "scalableRef"));
    field_mapping::import_fields(BUFFER, &mut spec, "spec", &mut body, &mut losses);
    let mut left_out = None;
    if let Some(named) = named {
        let mut named = object_fields(Some(named), "spec.podTemplateRef", &mut losses);
        let name = take_text(&mut named, "name").unwrap_or_default();
        for (field, _) in named.iter().filter(|(_, value)| !value.is_null()) {
            losses.add(format!("spec.podTemplateRef.{field}"), "unknown field");
        }
        match templates
            .iter()
            .find(|template| template.name == name && template.namespace == object.namespace)
        {
            Some(template) => import_pod(template, taints, &mut body, &mut losses),
            None => {
                left_out = Some(format!(
                    "the PodTemplate {name:?} of namespace {:?} is not part of the import",
                    object.namespace
                ));
            }
        }
    }
    match scaled {
        Some(Value::Object(scaled)) => {
            import_scalable(scaled, &object.namespace, &mut body, &mut losses);
        }
        Some(_) => losses.add("spec.scalableRef", "the value is not an object"),
        None => {}
    }
    let mut built = object.into_block("buffer", body, losses);
    if let Some(why) = left_out {
        built.comment_out(why);
    }
    built
}

fn import_scalable(
    mut scaled: Map<String, Value>,
    namespace: &str,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let mut inner = HclBody::default();
    let group = take_field(&mut scaled, "apiGroup");
    if group.is_some_and(|group| group != "apps" && group != "") {
        let why = "only workloads of the API group apps are supported";
        losses.add("spec.scalableRef.apiGroup", why);
    }
    inner.set_some("kind", take_field(&mut scaled, "kind"));
    inner.set("namespace", namespace);
    inner.set_some("name", take_field(&mut scaled, "name"));
    for name in scaled.keys() {
        losses.add(format!("spec.scalableRef.{name}"), "unknown field");
    }
    body.add_block("scalable", None, inner);
}

/// Fields of a pod that affect its scheduling and that a buffer does not have.
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

/// Imports the pod of a buffer. If the node selector names a pool, it becomes the buffer's pool.
fn import_pod(
    template: &Object,
    taints: &BTreeMap<String, Vec<Value>>,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let path = format!("{}: template.spec", template.of);
    let mut spec = object_fields(template.spec.get("spec").cloned(), &path, losses);
    for field in UNHEARD {
        if take_field(&mut spec, field).is_some() {
            let why = "buffers have no such setting";
            losses.add(format!("{path}.{field}"), why);
        }
    }
    let mut requests = Resources::default();
    let containers_path = format!("{path}.containers");
    let containers = take_field(&mut spec, "containers");
    let containers = list_items(containers, &containers_path, losses);
    for (index, container) in containers.into_iter().enumerate() {
        let container_path = format!("{containers_path}[{index}]");
        requests.add(&requests_of(container, &container_path, losses));
    }
    let mut inner = HclBody::default();
    inner.set("requests", format_units::format_requests(&requests));
    let selector_path = format!("{path}.nodeSelector");
    let selector = take_field(&mut spec, "nodeSelector");
    let mut selector = object_fields(selector, &selector_path, losses);
    let tolerations_path = format!("{path}.tolerations");
    let tolerations = take_field(&mut spec, "tolerations");
    let mut tolerations = list_items(tolerations, &tolerations_path, losses);
    let pool = selector.get(POOL).and_then(scalar_text);
    if let Some((pool, taints)) = pool.and_then(|name| taints.get_key_value(&name)) {
        selector.shift_remove(POOL);
        // Taints of the pool are tolerated by default.
        if tolerations.ends_with(taints) {
            tolerations.truncate(tolerations.len() - taints.len());
        }
        let place = body.items.iter().position(|item| match item {
            HclItem::Argument(name, _) => *name != "clusters",
            _ => true,
        });
        let reference = HclValue::Reference("pool", pool.clone());
        let place = place.unwrap_or(body.items.len());
        body.items.insert(place, HclItem::Argument("pool", reference));
    }
    inner.set_unless_empty("node_selector", Value::Object(selector));
    for (index, toleration) in tolerations.iter().enumerate() {
        import_toleration(toleration, &format!("{path}.tolerations[{index}]"), &mut inner, losses);
    }
    body.add_block("pod", None, inner);
}

/// Returns the elements of a list. Drops a value that is not a list.
fn list_items(value: Option<Value>, path: &str, losses: &mut DroppedFields) -> Vec<Value> {
    match value {
        Some(Value::Array(list)) => return list,
        None | Some(Value::Null) => {}
        Some(_) => losses.add(path, "the value is not a list"),
    }
    Vec::new()
}

/// Returns the requests of a container. Limits replace missing requests, as in the defaulting of
/// the API.
fn requests_of(container: Value, path: &str, losses: &mut DroppedFields) -> Resources {
    let path = format!("{path}.resources");
    let mut container = object_fields(Some(container), &path, losses);
    let mut resources = object_fields(take_field(&mut container, "resources"), &path, losses);
    let (mut sum, mut seen) = (Resources::default(), BTreeSet::new());
    for field in ["requests", "limits"] {
        let field_path = format!("{path}.{field}");
        for (name, amount) in object_fields(take_field(&mut resources, field), &field_path, losses)
        {
            if !seen.insert(name.clone()) || amount.is_null() {
                continue;
            }
            let amount = scalar_text(&amount).unwrap_or_default();
            let amount_path = format!("{field_path}.{name}");
            match sum.set_quantity(&name, &amount) {
                Err(error) => losses.add(amount_path, error.to_string()),
                Ok(()) if sum.get(&name) < 0 => {
                    sum.set_amount(&name, 0);
                    losses.add(amount_path, "the value is negative");
                }
                Ok(()) => {}
            }
        }
    }
    for (name, _) in resources.iter().filter(|(_, value)| !value.is_null()) {
        losses.add(format!("{path}.{name}"), "buffers have no such setting");
    }
    sum
}

/// Fields of a toleration.
const TOLERATION: [&str; 5] = ["effect", "key", "operator", "tolerationSeconds", "value"];

fn import_toleration(
    toleration: &Value,
    path: &str,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    // Without the unknown field, the toleration would match more taints.
    let fields = toleration.as_object().into_iter().flatten();
    let unknown = fields
        .filter(|(_, value)| !value.is_null())
        .find(|(name, value)| !TOLERATION.contains(&name.as_str()) || scalar_text(value).is_none());
    if let Some((name, _)) = unknown {
        losses.add(path, format!("unknown {name}"));
        return;
    }
    let [key, operator, effect, value, seconds] =
        ["key", "operator", "effect", "value", "tolerationSeconds"]
            .map(|name| toleration.get(name).and_then(scalar_text));
    let Some(key) = key.filter(|key| !key.is_empty()) else {
        losses.add(path, "it tolerates all taints; a buffer needs the taints by name");
        return;
    };
    let operator = operator.unwrap_or_else(|| "Equal".to_owned());
    if !matches!(operator.as_str(), "Equal" | "Exists") {
        losses.add(path, format!("Outrigger has no operator {operator:?}"));
        return;
    }
    let mut inner = HclBody::default();
    inner.set_unless_empty("effect", effect.unwrap_or_default());
    if operator == "Equal" {
        inner.set("value", value.unwrap_or_default());
    }
    if seconds.is_some() {
        losses.add(format!("{path}.tolerationSeconds"), "virtual pods are not evicted");
    }
    body.add_block("toleration", Some(&key), inner);
}
