//! Turns CapacityBuffers, and the PodTemplates they name, into buffers.
//! It must not know where either comes from.
//!
//! Source: spec/scheduling.md §3.5. v1alpha1 and v1beta1 are alike in what is read here.

use serde::Deserialize;

use super::{key, pod};
use crate::kubernetes_convert::api_types::{Meta, PodTemplate};
use crate::kubernetes_convert::quantity::Quantities;
use crate::model::buffer::{Buffer, BufferPod, PODS_MAX, Scalable, ScalableKind};
use crate::model::id::ObjectKey;
use crate::model::quantity::Resources;

/// The strategy of buffers that are room on nodes: the others are not ours.
const ACTIVE: &str = "buffer.x-k8s.io/active-capacity";

/// Per cent of a workload at most, as in the configuration.
const PERCENTAGE_MAX: u32 = 10_000;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CapacityBuffer {
    metadata: Meta,
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
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
pub(crate) struct Stored {
    metadata: Meta,
    template: PodTemplate,
}

/// A buffer that an object declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    /// The buffer, under the namespace and name of the object.
    pub(crate) buffer: Buffer,
    /// The PodTemplate that says what its pods are like, where there is one.
    pub(crate) template: Option<ObjectKey>,
}

/// What an object declares; none where it is not for us or about to go, or what is wrong with it.
pub(crate) fn declared(object: CapacityBuffer) -> Result<Option<Declared>, String> {
    let CapacityBuffer { metadata, spec } = object;
    let strategy = spec.provisioning_strategy.unwrap_or_default();
    let ours = strategy.is_empty() || strategy == ACTIVE;
    if !ours || metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let ObjectKey { namespace, name } = key(metadata);
    let count = |count: i64, most: u32| u32::try_from(count.max(0)).unwrap_or(most).min(most);
    let mut limits = Vec::new();
    for (name, quantity) in spec.limits.iter().flat_map(|own| own.iter()) {
        let mut amounts = Resources::default();
        let read = amounts.set(name, &quantity.0);
        read.map_err(|_| format!("its limit of {name} is no quantity"))?;
        limits.push((name.clone(), amounts.get(name)));
    }
    let mut buffer = Buffer {
        name: format!("{namespace}/{name}"),
        replicas: spec.replicas.map(|own| count(own, PODS_MAX)),
        percentage: spec.percentage.map(|own| count(own, PERCENTAGE_MAX)),
        limits,
        ..Buffer::default()
    };
    let template = match (spec.pod_template_ref, spec.scalable_ref) {
        (Some(template), None) if is_name(&template.name) => {
            Some(ObjectKey::new(namespace.as_str(), template.name))
        }
        (Some(_), None) => return Err("its podTemplateRef has no name".to_owned()),
        (None, Some(own)) => {
            buffer.scalable = Some(scalable(own, namespace)?);
            None
        }
        _ => return Err("it wants one of podTemplateRef and scalableRef".to_owned()),
    };
    Ok(Some(Declared { buffer, template }))
}

fn scalable(own: Named, namespace: String) -> Result<Scalable, String> {
    let kind = own.kind.unwrap_or_default();
    let group = own.api_group.unwrap_or_default();
    let known = ScalableKind::parse(&kind).filter(|_| group.is_empty() || group == "apps");
    let Some(known) = known else {
        return Err(format!(
            "its scalableRef is a {kind}, whose pods are not known"
        ));
    };
    Ok(Scalable {
        kind: known,
        namespace,
        name: own.name,
    })
}

/// Whether this may stand in a path.
fn is_name(name: &str) -> bool {
    let fits = |own: char| own.is_ascii_alphanumeric() || own == '-' || own == '.';
    !name.is_empty() && name.chars().all(fits) && name.starts_with(|own: char| own != '.')
}

/// What the pods of a PodTemplate are like, or what is wrong with it.
pub(crate) fn shape(stored: Stored) -> Result<BufferPod, String> {
    let pod = pod::template(&stored.metadata, stored.template);
    if let Some(defect) = pod.defects.first() {
        return Err(format!("its PodTemplate cannot be read: {defect}"));
    }
    Ok(BufferPod {
        requests: pod.requests,
        node_selector: pod.node_selector,
        node_affinity: pod.node_affinity,
        tolerations: pod.tolerations,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Declared, declared, shape};

    fn read(spec: Value) -> Result<Option<Declared>, String> {
        let metadata = json!({"name": "room", "namespace": "shop"});
        let object = json!({"metadata": metadata, "spec": spec});
        declared(serde_json::from_value(object).expect("the fields are of their kinds"))
    }

    #[test]
    fn what_an_object_declares_is_read() {
        let spec = json!({
            "podTemplateRef": {"name": "web"}, "replicas": 3, "limits": {"cpu": "1500m"},
            "provisioningStrategy": "buffer.x-k8s.io/active-capacity", "scalableRef": null,
        });
        let own = read(spec).expect("it is sound").expect("it is ours");
        assert_eq!(own.buffer.name, "shop/room");
        assert_eq!(own.buffer.replicas, Some(3));
        assert_eq!(own.buffer.limits, [("cpu".to_owned(), 1500)]);
        assert_eq!(
            own.template.map(|it| it.to_string()).as_deref(),
            Some("shop/web")
        );
        let spec = json!({
            "scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "web"},
            "percentage": 20, "replicas": -1,
        });
        let own = read(spec).expect("it is sound").expect("it is ours");
        assert_eq!(own.template, None);
        assert_eq!(
            (own.buffer.percentage, own.buffer.replicas),
            (Some(20), Some(0))
        );
        let scalable = own.buffer.scalable.expect("it names one");
        assert_eq!(
            (scalable.namespace.as_str(), scalable.name.as_str()),
            ("shop", "web")
        );
    }

    #[test]
    fn what_is_not_ours_or_makes_no_sense_is_left_out() {
        let other = json!({"podTemplateRef": {"name": "web"}, "provisioningStrategy": "x/other"});
        assert_eq!(read(other), Ok(None));
        let web = json!({"name": "web"});
        for (spec, expect) in [
            (json!({}), "it wants one of"),
            (
                json!({"podTemplateRef": web, "scalableRef": web}),
                "it wants one of",
            ),
            (
                json!({"podTemplateRef": {"name": "../secrets"}}),
                "its podTemplateRef has no name",
            ),
            (
                json!({"scalableRef": {"kind": "Job", "name": "j"}}),
                "its scalableRef is a Job",
            ),
            (
                json!({"podTemplateRef": web, "limits": {"cpu": "many"}}),
                "its limit of cpu is no quantity",
            ),
        ] {
            let why = read(spec.clone()).expect_err("it makes no sense");
            assert!(why.starts_with(expect), "{spec}: {why}");
        }
    }

    #[test]
    fn the_pods_are_like_the_template() {
        let requests = json!({"cpu": "250m", "memory": "1Gi"});
        let spec = json!({
            "containers": [{"name": "c", "resources": {"requests": requests}}],
            "nodeSelector": {"team": "shop"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        });
        let stored = |spec: Value| {
            let object = json!({"metadata": {"name": "web"}, "template": {"spec": spec}});
            serde_json::from_value(object).expect("the fields are of their kinds")
        };
        let own = shape(stored(spec)).expect("it is sound");
        assert_eq!(
            (own.requests.cpu_milli, own.requests.memory),
            (250, 1 << 30)
        );
        assert_eq!(own.requests.pods, 1);
        assert_eq!(own.node_selector["team"], "shop");
        assert_eq!(own.tolerations.len(), 1);
        let odd = json!({"containers": [{"resources": {"requests": {"cpu": "many"}}}]});
        assert!(shape(stored(odd)).is_err());
    }
}
