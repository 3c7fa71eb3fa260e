//! Converts objects of earlier versions to `v1`, like Karpenter's own conversion, with the defaults
//! of their API.

use serde_json::{Map, Value, json};

use super::super::field_tables::FAMILIES;
use super::{Object, Objects};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{put_field, scalar_text, take_field};

/// Maximum number of terms in one list. Source: spec/aws.md §1.1.
const TERMS_MAX: usize = 30;

/// Why a launch template is dropped.
pub(super) const TEMPLATES: &str =
    "Outrigger creates its own launch templates; set the values in the node class";

/// Why the cluster of a node class is dropped.
pub(super) const OWN_BLOCK: &str = "clusters have their own block";

/// A NodePool of `v1beta1`.
pub(super) fn convert_pool(mut object: Object, objects: &mut Objects) {
    if let Some(age) = take_field(&mut object.spec, "disruption.expireAfter") {
        put_field(&mut object.spec, "template.spec.expireAfter", age);
    }
    rename_policy(&mut object.spec, "disruption.consolidationPolicy");
    if let Some(settings) = take_field(&mut object.spec, "template.spec.kubelet") {
        objects.kubelets.insert(object.name.clone(), settings);
    }
    objects.pools.push(object);
}

/// Renames the consolidation policy to its name in `v1`.
pub(super) fn rename_policy(spec: &mut Map<String, Value>, field: &str) {
    if let Some(text) = take_field(spec, field) {
        let renamed = match text.as_str() {
            Some("WhenUnderutilized") => Value::from("WhenEmptyOrUnderutilized"),
            _ => text,
        };
        put_field(spec, field, renamed);
    }
}

/// An EC2NodeClass of `v1beta1`.
pub(super) fn convert_node_class(mut object: Object) -> Object {
    set_default_metadata(&mut object.spec, true);
    let mut losses = DroppedFields::for_object(object.of.clone());
    set_default_images(&mut object.spec, true, &mut losses);
    object.lost.extend(losses.all);
    object
}

/// An AWSNodeTemplate of `v1alpha1`.
pub(super) fn convert_node_template(mut object: Object) -> Object {
    let mut losses = DroppedFields::for_object(object.of.clone());
    convert_aws_fields(&mut object.spec, "spec", &mut losses);
    object.lost.extend(losses.all);
    object
}

/// Reports that the Kubernetes version of nodes cannot be chosen.
pub(super) fn drop_kubernetes_version(
    spec: &mut Map<String, Value>,
    path: &str,
    losses: &mut DroppedFields,
) {
    if take_field(spec, "kubernetesVersion").is_some() {
        let why = "nodes use the version of the cluster";
        losses.add(format!("{path}.kubernetesVersion"), why);
    }
}

/// The default tag by which the subnets and security groups of a cluster were selected.
pub(super) fn cluster_tag(name: &str) -> Map<String, Value> {
    let key = format!("kubernetes.io/cluster/{name}");
    Map::from_iter([(key, Value::from("*"))])
}

/// Creates the spec of an EC2NodeClass from the fields of earlier versions.
pub(super) fn convert_aws_fields(
    spec: &mut Map<String, Value>,
    path: &str,
    losses: &mut DroppedFields,
) {
    for (name, prefix) in [("apiVersion", "extensions.karpenter.sh/"), ("kind", "AWS")] {
        let value = spec.get(name).and_then(Value::as_str);
        if value.is_some_and(|value| value.starts_with(prefix)) {
            spec.shift_remove(name);
        }
    }
    drop_kubernetes_version(spec, path, losses);
    if take_field(spec, "launchTemplate").is_some() {
        losses.add(format!("{path}.launchTemplate"), TEMPLATES);
    }
    if let Some(cluster) = take_field(spec, "cluster") {
        losses.add(format!("{path}.cluster"), OWN_BLOCK);
        if let Some(name) = cluster.get("name").and_then(scalar_text) {
            for field in ["subnetSelector", "securityGroupSelector"] {
                if spec.get(field).is_none_or(Value::is_null) {
                    spec.insert(field.to_owned(), Value::Object(cluster_tag(&name)));
                }
            }
        }
    }
    let mut newest = true;
    for (from, to) in [
        ("subnetSelector", "subnetSelectorTerms"),
        ("securityGroupSelector", "securityGroupSelectorTerms"),
        ("amiSelector", "amiSelectorTerms"),
    ] {
        if let Some(selector) = take_field(spec, from) {
            let selector_path = format!("{path}.{from}");
            let terms = selector_terms(&selector, &selector_path, losses);
            newest &= from != "amiSelector" || !terms.is_empty();
            spec.insert(to.to_owned(), Value::Array(terms));
        }
    }
    if spec.get("amiFamily").is_none_or(Value::is_null) {
        spec.insert("amiFamily".to_owned(), Value::from("AL2"));
    }
    set_default_images(spec, newest, losses);
    set_default_metadata(spec, false);
}

/// Default images: the `newest` of the family, unless the image selector was dropped.
fn set_default_images(spec: &mut Map<String, Value>, newest: bool, losses: &mut DroppedFields) {
    let family = spec.get("amiFamily").and_then(scalar_text).unwrap_or_default();
    if family == "Ubuntu" {
        // Ubuntu images bootstrap like AL2, but no alias selects them.
        spec.insert("amiFamily".to_owned(), Value::from("AL2"));
        let why = "imported as AL2, which has the same user data; select the images with ami \
                   blocks";
        losses.add("spec.amiFamily: Ubuntu", why);
        return;
    }
    let none = match spec.get("amiSelectorTerms") {
        Some(Value::Array(terms)) => terms.is_empty(),
        other => other.is_none_or(Value::is_null),
    };
    let none = none && newest;
    let known = FAMILIES.iter().find(|(theirs, _)| *theirs == family);
    if let Some((_, ours)) = known.filter(|(theirs, _)| none && *theirs != "Custom") {
        let terms = json!([{ "alias": format!("{ours}@latest") }]);
        spec.insert("amiSelectorTerms".to_owned(), terms);
    }
}

/// The default metadata options of earlier versions.
fn set_default_metadata(spec: &mut Map<String, Value>, is_complete: bool) {
    let given = spec.get("metadataOptions").is_some_and(Value::is_object);
    let options = spec.entry("metadataOptions").or_insert_with(|| json!({}));
    if options.is_null() {
        *options = json!({});
    }
    let Some(options) = options.as_object_mut() else {
        return;
    };
    // Earlier defaults were set by the API, or otherwise by EC2, which does not require tokens.
    if is_complete || !given {
        options.entry("httpPutResponseHopLimit").or_insert(json!(2));
    } else {
        options.entry("httpTokens").or_insert(json!("optional"));
    }
}

/// Converts a selector to terms: comma-separated values are alternatives. A value that is not a
/// string drops the term, because the remaining term would select more resources.
fn selector_terms(selector: &Value, path: &str, losses: &mut DroppedFields) -> Vec<Value> {
    let Some(selector) = selector.as_object() else {
        losses.add(path, "the value is not a map");
        return Vec::new();
    };
    let mut all = vec![Map::new()];
    for (key, value) in selector {
        let field = match key.as_str() {
            "aws-ids" | "aws::ids" => "id",
            "aws::name" => "name",
            "aws::owners" => "owner",
            _ => "",
        };
        let values = match value {
            Value::Null => String::new(),
            value => match scalar_text(value) {
                Some(values) => values,
                None => {
                    losses.add(format!("{path}.{key}"), "the value is not a string");
                    return Vec::new();
                }
            },
        };
        let mut next = Vec::new();
        for value in values.split(',').map(str::trim) {
            for term in &all {
                let mut term: Map<String, Value> = term.clone();
                // An empty value matches any value.
                let value = Value::from(if value.is_empty() { "*" } else { value });
                match field {
                    "" => {
                        let tags = term.entry("tags").or_insert_with(|| json!({}));
                        tags[key] = value;
                    }
                    _ => drop(term.insert(field.to_owned(), value)),
                }
                next.push(term);
                if next.len() > TERMS_MAX {
                    losses.add(path, format!("more than {TERMS_MAX} terms"));
                    return Vec::new();
                }
            }
        }
        all = next;
    }
    for term in &mut all {
        if term.contains_key("id") && term.len() > 1 {
            term.retain(|name, _| name == "id");
            losses.add(format!("{path}: all but ids"), "ignored if an id is given");
        }
    }
    all.into_iter().map(Value::Object).collect()
}
