//! Exports CapacityBuffers with their PodTemplates.

use serde_json::{Map, Value, json};

use super::super::field_tables::BUFFER;
use super::super::to_hcl;
use super::{ExportedDocument, karpenter_object};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{self, put_field, report_rest, take_field};
use crate::model::buffer::Buffer;
use crate::model::labels::POOL as POOL_LABEL;
use crate::model::taint::{Toleration, TolerationOperator};

/// Exports a buffer, after its PodTemplate.
pub(super) fn export_buffer(buffer: &Buffer) -> Vec<ExportedDocument> {
    let path = format!("buffer.{}", buffer.name);
    let mut losses = DroppedFields::default();
    let mut body = to_hcl::buffer_body(buffer);
    let scalable = buffer.scalable.as_ref();
    let namespace = scalable.map_or("default", |scalable| scalable.namespace.as_str());
    let mut template = None;
    let pool = body.take_argument("pool");
    body.take_blocks("pod");
    match (&buffer.pod, scalable) {
        (Some(_), Some(_)) => {
            let why = "a Karpenter buffer has a scalable or a pod template, not both";
            losses.add(format!("{path}.pod"), why);
        }
        (Some(_), None) => template = Some(pod_template(buffer, namespace)),
        _ => {}
    }
    if pool.is_some() && template.is_none() {
        let why = "the pods of a workload use the workload's node selector";
        losses.add(format!("{path}.pool"), why);
    }
    let mut spec = Map::new();
    if template.is_some() {
        spec.insert("podTemplateRef".to_owned(), json!({ "name": buffer.name }));
    }
    if let Some(mut block) = body.take_blocks("scalable").pop() {
        let [kind, name] =
            ["kind", "name"].map(|name| block.body.take_value(name).unwrap_or_default());
        let scaled = json!({ "apiGroup": "apps", "kind": kind, "name": name });
        spec.insert("scalableRef".to_owned(), scaled);
    }
    field_mapping::export_fields(BUFFER, &mut body, &path, &mut spec, &mut losses);
    report_rest(&body, &path, &mut losses);
    let mut object =
        karpenter_object("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer", &buffer.name, spec);
    put_field(&mut object, "metadata.namespace", json!(namespace));
    let buffer = ExportedDocument { object, losses: losses.all };
    let template = template.map(|object| ExportedDocument { object, losses: Vec::new() });
    template.into_iter().chain([buffer]).collect()
}

/// Builds the PodTemplate of a buffer. Its container is never run.
fn pod_template(buffer: &Buffer, namespace: &str) -> Map<String, Value> {
    let mut pod = buffer.pod.as_ref().map(to_hcl::buffer_pod_body).unwrap_or_default();
    let requests = pod.take_value("requests").unwrap_or_default();
    let mut selector = match pod.take_value("node_selector") {
        Some(Value::Object(selector)) => selector,
        _ => Map::new(),
    };
    if let Some(pool) = &buffer.pool {
        selector.insert(POOL_LABEL.to_owned(), json!(pool.as_str()));
    }
    let mut resources = json!({ "requests": requests });
    if let Some(limits) = exclusive_limits(&requests) {
        resources["limits"] = limits;
    }
    let container = json!({ "name": "room", "image": "pause", "resources": resources });
    let mut spec = Map::new();
    spec.insert("containers".to_owned(), json!([container]));
    if !selector.is_empty() {
        spec.insert("nodeSelector".to_owned(), Value::Object(selector));
    }
    let tolerations = buffer.pod.iter().flat_map(|pod| &pod.tolerations);
    let tolerations: Vec<Value> = tolerations.map(toleration_object).collect();
    if !tolerations.is_empty() {
        spec.insert("tolerations".to_owned(), Value::Array(tolerations));
    }
    let mut object = karpenter_object("v1", "PodTemplate", &buffer.name, Map::new());
    put_field(&mut object, "metadata.namespace", json!(namespace));
    take_field(&mut object, "spec");
    object.insert("template".to_owned(), json!({ "spec": spec }));
    object
}

/// Limits of resources that cannot be overcommitted. Kubernetes requires them with the requests.
/// Source: `ValidateResourceRequirements` of Kubernetes' core validation.
fn exclusive_limits(requests: &Value) -> Option<Value> {
    let limits: Map<String, Value> = requests
        .as_object()?
        .iter()
        .filter(|(name, _)| {
            let native = !name.contains('/') || name.contains("kubernetes.io/");
            !native || name.starts_with("hugepages-")
        })
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    (!limits.is_empty()).then_some(Value::Object(limits))
}

fn toleration_object(toleration: &Toleration) -> Value {
    let mut object = Map::new();
    object.insert("key".to_owned(), json!(toleration.key));
    match toleration.operator {
        TolerationOperator::Equal => {
            object.insert("operator".to_owned(), json!("Equal"));
            object.insert("value".to_owned(), json!(toleration.value));
        }
        _ => drop(object.insert("operator".to_owned(), json!("Exists"))),
    }
    if let Some(effect) = toleration.effect {
        object.insert("effect".to_owned(), json!(effect.as_str()));
    }
    Value::Object(object)
}
