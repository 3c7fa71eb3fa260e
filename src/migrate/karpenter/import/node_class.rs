//! Imports EC2NodeClasses as node classes.

use serde_json::{Map, Value};

use super::super::field_tables::{KUBELET, NODE_CLASS};
use super::super::placeholders;
use super::{ConvertedBlock, Object};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{self, take_field};
use crate::migrate::hcl::HclBody;

pub(super) fn build_node_class(mut object: Object, clusters: &[String]) -> ConvertedBlock {
    let (mut spec, mut body, mut losses) = object.start_block(clusters);
    for field in ["role", "instanceProfile"] {
        strip_iam_path(&mut spec, field, &mut losses);
    }
    for field in ["amiSelectorTerms", "subnetSelectorTerms", "securityGroupSelectorTerms"] {
        for index in placeholders::take_terms(&mut spec, field) {
            losses.add(format!("spec.{field}[{index}]"), placeholders::WHY);
        }
    }
    drop_fields_beside_ids(&mut spec, &mut losses);
    let is_empty =
        matches!(spec.get("networkInterfaces"), Some(Value::Array(all)) if all.is_empty());
    let kubelet = take_field(&mut spec, "kubelet");
    field_mapping::import_fields(NODE_CLASS, &mut spec, "spec", &mut body, &mut losses);
    // An empty list only disables EFA.
    if is_empty {
        let mut arguments = HclBody::default();
        arguments.set("efa", false);
        body.insert_before_blocks(arguments);
    }
    match kubelet {
        Some(Value::Object(kubelet)) => import_kubelet(kubelet, &mut body, &mut losses),
        Some(_) => losses.add("spec.kubelet", "the value is not an object"),
        None => {}
    }
    object.into_block("node_class", body, losses)
}

/// IAM names are unique without their paths.
fn strip_iam_path(spec: &mut Map<String, Value>, field: &str, losses: &mut DroppedFields) {
    let Some(Value::String(text)) = spec.get_mut(field) else {
        return;
    };
    if placeholders::has_placeholder(text) {
        losses.add(format!("spec.{field}: {text}"), placeholders::WHY);
        spec.shift_remove(field);
        return;
    }
    if let Some((path, name)) = text.rsplit_once('/') {
        let why = "IAM names are unique without the path";
        losses.add(format!("spec.{field}: {path:?}/"), why);
        *text = name.to_owned();
    }
}

/// If an image has an id, Karpenter ignores its other fields.
fn drop_fields_beside_ids(spec: &mut Map<String, Value>, losses: &mut DroppedFields) {
    let terms = spec.get_mut("amiSelectorTerms").and_then(Value::as_array_mut);
    for (index, term) in terms.into_iter().flatten().enumerate() {
        let Some(term) =
            term.as_object_mut().filter(|term| term.get("id").is_some_and(|id| !id.is_null()))
        else {
            continue;
        };
        for field in ["ssmParameter", "name", "owner", "tags", "alias"] {
            if take_field(term, field).is_some() {
                let path = format!("spec.amiSelectorTerms[{index}].{field}");
                losses.add(path, "ignored if an id is given");
            }
        }
    }
}

/// Converts kubelet settings. Fields without an argument are passed to the kubelet unchanged.
fn import_kubelet(mut kubelet: Map<String, Value>, body: &mut HclBody, losses: &mut DroppedFields) {
    let mut known = Map::new();
    for row in KUBELET {
        if let Some(value) = take_field(&mut kubelet, row.field) {
            known.insert(row.field.to_owned(), value);
        }
    }
    let mut inner = HclBody::default();
    field_mapping::import_fields(KUBELET, &mut known, "spec.kubelet", &mut inner, losses);
    kubelet.retain(|_, value| !value.is_null());
    inner.set_unless_empty("extra", Value::Object(kubelet));
    body.add_block_unless_empty("kubelet", inner);
}
