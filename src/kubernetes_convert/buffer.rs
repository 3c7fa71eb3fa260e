//! Converts CapacityBuffers and their PodTemplates to buffers, and a status to JSON.
//!
//! Source: spec/scheduling.md §3.5. v1alpha1 and v1beta1 do not differ in the fields that are read.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{object_key, pod};
use crate::kubernetes_convert::api_types::{Meta, PodTemplate};
use crate::kubernetes_convert::quantity::Quantities;
use crate::model::buffer::{Buffer, BufferPod, PODS_MAX, Scalable, ScalableKind};
use crate::model::buffer_object::{BufferObject, BufferStatus, Condition, Unresolved};
use crate::model::id::ObjectKey;
use crate::model::quantity::Resources;

/// The only supported strategy: capacity on running nodes.
const ACTIVE: &str = "buffer.x-k8s.io/active-capacity";

/// Maximum percentage of a workload, as in the configuration.
const PERCENTAGE_MAX: u32 = 10_000;

/// Reason why a buffer or its PodTemplate is invalid.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct BufferError(String);

/// A CapacityBuffer as the API server returns it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CapacityBuffer {
    metadata: Meta,
    spec: BufferSpecJson,
    status: Value,
}

/// The fields of a status that are read. Other programs may have written it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BufferStatusJson {
    pod_template_ref: Option<Named>,
    pod_template_generation: Option<i64>,
    replicas: Option<i64>,
    provisioning_strategy: Option<String>,
    conditions: Vec<StatusCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
    observed_generation: Option<i64>,
    last_transition_time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BufferSpecJson {
    provisioning_strategy: Option<String>,
    pod_template_ref: Option<Named>,
    scalable_ref: Option<Named>,
    replicas: Option<i64>,
    percentage: Option<i64>,
    limits: Option<Quantities>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Named {
    api_group: Option<String>,
    kind: Option<String>,
    name: String,
}

/// A PodTemplate of the core API.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StoredPodTemplate {
    metadata: Meta,
    template: PodTemplate,
}

/// A CapacityBuffer, and the PodTemplate of its pods, if it names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The object without its pod template. Its buffer is named by the namespace and name of the
    /// object.
    pub object: BufferObject,
    /// Name of the PodTemplate.
    pub template: Option<ObjectKey>,
}

/// Converts a CapacityBuffer of this API version. `None` if it has a different strategy or is being
/// deleted.
pub fn convert_buffer(api: &'static str, object: CapacityBuffer) -> Option<Declared> {
    let CapacityBuffer { metadata, spec, status } = object;
    let strategy = spec.provisioning_strategy.clone();
    let ours = strategy.as_deref().unwrap_or_default();
    let ours = ours.is_empty() || ours == ACTIVE;
    if !ours || metadata.deletion_timestamp.is_some() {
        return None;
    }
    let (version, generation) = (metadata.resource_version.clone(), metadata.generation);
    let key = object_key(metadata);
    let (buffer, template) = match buffer_from_spec(&key, spec) {
        Ok((buffer, template)) => (Ok(buffer), template),
        Err(why) => (Err(Unresolved::resolution_failed(why.to_string())), None),
    };
    let object = BufferObject {
        key,
        api,
        version,
        generation,
        strategy,
        template: None,
        buffer,
        status: read_status(status),
    };
    Some(Declared { object, template })
}

/// Parses a status. `None` if it is invalid.
fn read_status(status: Value) -> Option<BufferStatus> {
    let status: Option<BufferStatusJson> = serde_json::from_value(status).ok()?;
    let status = status.unwrap_or_default();
    let conditions = status.conditions.into_iter().map(|condition| Condition {
        kind: condition.kind,
        status: condition.status,
        reason: condition.reason,
        message: condition.message,
        observed_generation: condition.observed_generation,
        since: condition.last_transition_time,
    });
    Some(BufferStatus {
        template: status.pod_template_ref.map(|pod_template| pod_template.name),
        template_generation: status.pod_template_generation,
        replicas: status.replicas,
        strategy: status.provisioning_strategy,
        conditions: conditions.collect(),
    })
}

/// The status as JSON. Missing values are null, so that a merge patch removes them.
pub fn status_json(status: &BufferStatus) -> Value {
    let conditions = status.conditions.iter().map(|source| {
        let mut condition = Map::new();
        for (field, text) in [
            ("type", &source.kind),
            ("status", &source.status),
            ("reason", &source.reason),
            ("message", &source.message),
        ] {
            condition.insert(field.to_owned(), json!(text));
        }
        if let Some(generation) = source.observed_generation {
            condition.insert("observedGeneration".to_owned(), json!(generation));
        }
        if let Some(since) = source.since {
            // The API stores whole seconds.
            let seconds = format!("{since:.0}");
            condition.insert("lastTransitionTime".to_owned(), json!(seconds));
        }
        Value::Object(condition)
    });
    json!({
        "podTemplateRef": status.template.as_ref().map(|name| json!({ "name": name })),
        "podTemplateGeneration": status.template_generation,
        "replicas": status.replicas,
        "provisioningStrategy": status.strategy,
        "conditions": conditions.collect::<Vec<_>>(),
    })
}

/// Returns the buffer of a spec and the PodTemplate that it names, or an error.
fn buffer_from_spec(
    key: &ObjectKey,
    spec: BufferSpecJson,
) -> Result<(Buffer, Option<ObjectKey>), BufferError> {
    let ObjectKey { namespace, name } = key.clone();
    let mut limits = Vec::new();
    for (name, quantity) in spec.limits.iter().flat_map(|limit| limit.iter()) {
        let mut amounts = Resources::default();
        let read = amounts.set_quantity(name, &quantity.0);
        read.map_err(|_| BufferError(format!("its limit of {name} is no quantity")))?;
        limits.push((name.clone(), amounts.get(name)));
    }
    let mut buffer = Buffer {
        name: format!("{namespace}/{name}"),
        replicas: spec.replicas.map(|replicas| bounded_count(replicas, PODS_MAX)),
        percentage: spec.percentage.map(|percentage| bounded_count(percentage, PERCENTAGE_MAX)),
        limits,
        ..Buffer::default()
    };
    let template = match (spec.pod_template_ref, spec.scalable_ref) {
        (Some(template), None) if is_name(&template.name) => {
            Some(ObjectKey::new(namespace.as_str(), template.name))
        }
        (Some(_), None) => return Err(BufferError("its podTemplateRef has no name".to_owned())),
        (None, Some(reference)) => {
            buffer.scalable = Some(convert_scalable(reference, namespace)?);
            None
        }
        _ => {
            let why = "it wants one of podTemplateRef and scalableRef";
            return Err(BufferError(why.to_owned()));
        }
    };
    Ok((buffer, template))
}

/// Returns the count, limited to the range from 0 to the maximum.
fn bounded_count(count: i64, maximum: u32) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(maximum).min(maximum)
}

fn convert_scalable(reference: Named, namespace: String) -> Result<Scalable, BufferError> {
    let kind = reference.kind.unwrap_or_default();
    let group = reference.api_group.unwrap_or_default();
    match ScalableKind::parse(&kind).filter(|_| group.is_empty() || group == "apps") {
        Some(kind) => Ok(Scalable { kind, namespace, name: reference.name }),
        None => Err(BufferError(format!("its scalableRef is a {kind}, whose pods are not known"))),
    }
}

/// Returns true if the name may be part of a URL path.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.')
        && name.starts_with(|name: char| name != '.')
}

/// Converts a PodTemplate to the pods of a buffer, with its generation, or returns an error.
pub fn buffer_pod(stored: StoredPodTemplate) -> Result<(BufferPod, i64), BufferError> {
    let generation = stored.metadata.generation;
    let pod = pod::convert_template(&stored.metadata, stored.template);
    if let Some(defect) = pod.defects.first() {
        return Err(BufferError(format!("its PodTemplate cannot be read: {defect}")));
    }
    let pod = BufferPod {
        requests: pod.requests,
        node_selector: pod.node_selector,
        node_affinity: pod.node_affinity,
        tolerations: pod.tolerations,
    };
    Ok((pod, generation))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{buffer_pod, convert_buffer, status_json};
    use crate::model::buffer::Buffer;
    use crate::model::buffer_object::{BufferObject, BufferStatus};
    use crate::model::id::ObjectKey;

    fn object(spec: Value, status: Value) -> Option<(BufferObject, Option<ObjectKey>)> {
        let metadata = json!({
            "name": "room", "namespace": "shop", "resourceVersion": "12", "generation": 4,
        });
        let object = json!({"metadata": metadata, "spec": spec, "status": status});
        let object = serde_json::from_value(object).expect("the fields have valid types");
        convert_buffer("v1beta1", object).map(|buffer| (buffer.object, buffer.template))
    }

    fn read(spec: Value) -> Result<(Buffer, Option<ObjectKey>), String> {
        let (object, template) = object(spec, Value::Null).expect("a buffer of ours");
        let buffer = object.buffer.map_err(|unresolved| unresolved.message)?;
        Ok((buffer, template))
    }

    #[test]
    fn buffer_spec_is_read() {
        let spec = json!({
            "podTemplateRef": {"name": "web"}, "replicas": 3, "limits": {"cpu": "1500m"},
            "provisioningStrategy": "buffer.x-k8s.io/active-capacity", "scalableRef": null,
        });
        let (buffer, template) = read(spec).expect("the spec is valid");
        assert_eq!(buffer.name, "shop/room");
        assert_eq!(buffer.replicas, Some(3));
        assert_eq!(buffer.limits, [("cpu".to_owned(), 1500)]);
        let template = template.map(|key| key.to_string());
        assert_eq!(template.as_deref(), Some("shop/web"));
        let spec = json!({
            "scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "web"},
            "percentage": 20, "replicas": -1,
        });
        let (buffer, template) = read(spec).expect("the spec is valid");
        assert_eq!(template, None);
        assert_eq!((buffer.percentage, buffer.replicas), (Some(20), Some(0)));
        let scalable = buffer.scalable.expect("it names one");
        assert_eq!((scalable.namespace.as_str(), scalable.name.as_str()), ("shop", "web"));
    }

    #[test]
    fn foreign_buffers_are_skipped_and_invalid_ones_rejected() {
        let web = json!({"name": "web"});
        for (strategy, ours) in [
            ("x/other", false),
            ("active-capacity", false),
            ("buffer.x-k8s.io/active-capacity", true),
            ("", true),
        ] {
            let spec = json!({"podTemplateRef": web, "provisioningStrategy": strategy});
            assert_eq!(object(spec, Value::Null).is_some(), ours, "{strategy}");
        }
        for (spec, expect) in [
            (json!({}), "it wants one of"),
            (json!({"podTemplateRef": web, "scalableRef": web}), "it wants one of"),
            (json!({"podTemplateRef": {"name": "../secrets"}}), "its podTemplateRef has no name"),
            (json!({"scalableRef": {"kind": "Job", "name": "j"}}), "its scalableRef is a Job"),
            (
                json!({"podTemplateRef": web, "limits": {"cpu": "many"}}),
                "its limit of cpu is no quantity",
            ),
        ] {
            let why = read(spec.clone()).expect_err("the spec is invalid");
            assert!(why.starts_with(expect), "{spec}: {why}");
        }
    }

    #[test]
    fn buffer_status_round_trips() {
        let condition = json!({
            "type": "LimitedByQuotas", "status": "True", "reason": "ResourceQuotasAllocated",
            "message": "", "observedGeneration": 3, "lastTransitionTime": "2026-11-28T10:00:00Z",
        });
        let strategy = "buffer.x-k8s.io/active-capacity";
        let written = json!({
            "podTemplateRef": {"name": "web"}, "podTemplateGeneration": 2, "replicas": 3,
            "provisioningStrategy": strategy, "conditions": [condition],
        });
        let spec = json!({"podTemplateRef": {"name": "web"}, "provisioningStrategy": strategy});
        let (buffer, _) = object(spec.clone(), written.clone()).expect("a buffer of ours");
        assert_eq!((buffer.version.as_str(), buffer.generation), ("12", 4));
        assert_eq!(buffer.strategy.as_deref(), Some(strategy));
        let read = buffer.status.expect("it can be read");
        assert_eq!(status_json(&read), written);
        // Missing values are removed. Invalid values are ignored.
        let nothing = status_json(&BufferStatus::default());
        assert_eq!(nothing["replicas"], Value::Null);
        assert_eq!(nothing["conditions"], json!([]));
        let nothing = Some(BufferStatus::default());
        for (odd, expect) in [
            (Value::Null, nothing.clone()),
            (json!({}), nothing),
            (json!({"conditions": 3}), None),
            (json!({"conditions": [{"type": 3}]}), None),
            (json!("x"), None),
        ] {
            let (buffer, _) = object(spec.clone(), odd).expect("a buffer of ours");
            assert_eq!(buffer.status, expect);
        }
    }

    #[test]
    fn buffer_pods_follow_the_pod_template() {
        let requests = json!({"cpu": "250m", "memory": "1Gi"});
        let spec = json!({
            "containers": [{"name": "c", "resources": {"requests": requests}}],
            "nodeSelector": {"team": "shop"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        });
        let stored = |spec: Value| {
            let metadata = json!({"name": "web", "generation": 2});
            let object = json!({"metadata": metadata, "template": {"spec": spec}});
            serde_json::from_value(object).expect("the fields have valid types")
        };
        let (pod, generation) = buffer_pod(stored(spec)).expect("the spec is valid");
        assert_eq!(generation, 2);
        assert_eq!((pod.requests.cpu_milli, pod.requests.memory), (250, 1 << 30));
        assert_eq!(pod.requests.pods, 1);
        assert_eq!(pod.node_selector["team"], "shop");
        assert_eq!(pod.tolerations.len(), 1);
        let odd = json!({"containers": [{"resources": {"requests": {"cpu": "many"}}}]});
        assert!(buffer_pod(stored(odd)).is_err());
    }
}
