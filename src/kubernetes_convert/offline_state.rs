//! Parses the output of `kubectl get … -A -o json` as the objects that a watch would return.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use thiserror::Error;

use crate::kubernetes_convert::api_types::{self as json};
use crate::kubernetes_convert::{Convert, broken_pod};
use crate::model::pod::Pod;
use crate::model::watched_object::WatchedObject;
use crate::text::sanitize;

/// Reason why a document is not valid cluster state.
#[derive(Debug, Error)]
pub enum StateError {
    /// Invalid JSON.
    #[error("it is not JSON as `kubectl get pods,nodes -A -o json` prints it")]
    Json(#[source] serde_json::Error),
    /// The document has no kind.
    #[error("there is neither a List nor an object of a kind in it; print it with `-o json`")]
    NoKind,
    /// An error of the API server, as printed by `kubectl get --raw`.
    #[error("it is no state of a cluster, but what an API server says that fails: {0}")]
    Status(String),
    /// The document contains only kinds that are not read.
    #[error("no object in it is of a kind that is read; print pods and nodes at least")]
    Unread,
    /// An item of a List, by index, has an invalid type.
    #[error("item {0} of the List is no object, but {1}; print it with `-o json`")]
    Item(usize, &'static str),
    /// An object is invalid.
    #[error("the {kind} {name:?} is not as the API has it")]
    Object {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// The error.
        #[source]
        source: serde_json::Error,
    },
}

/// Returns every object of a watched kind in one or more JSON documents. Each document is a List or
/// a single object.
pub fn parse(text: &str) -> Result<Vec<WatchedObject>, StateError> {
    let mut objects = Vec::new();
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(StateError::NoKind);
    }
    let mut is_empty = true;
    let documents = serde_json::Deserializer::from_str(text.trim_start_matches('\u{feff}'));
    for document in documents.into_iter::<StateDocument>() {
        let document = document.map_err(StateError::Json)?;
        let Some(kind) = document.kind else {
            return Err(StateError::NoKind);
        };
        if let Some(items) = document.items {
            let item_kind = kind.strip_suffix("List").unwrap_or_default();
            is_empty &= items.0.is_empty();
            for (index, item) in items.0.into_iter().enumerate() {
                objects.extend(convert_item(item, item_kind, index)?);
            }
        } else if !kind.ends_with("List") {
            is_empty = false;
            let value = Value::Object(document.rest);
            if kind == "Status" {
                let why = value["message"].as_str().unwrap_or("it says no more");
                return Err(StateError::Status(sanitize::bounded_line(why)));
            }
            objects.extend(convert_object(&kind, value, 0)?);
        }
    }
    // An empty cluster is valid if the document is an empty list.
    match objects.is_empty() && !is_empty {
        true => Err(StateError::Unread),
        false => Ok(objects),
    }
}

/// A document: the `items` of a list, or an object.
#[derive(Deserialize)]
struct StateDocument {
    kind: Option<String>,
    items: Option<Items>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// Items of a list: objects of kinds that are read, and items without a kind.
struct Items(Vec<Item>);

enum Item {
    Read(Result<Option<WatchedObject>, StateError>),
    Unnamed(Value),
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Items;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of objects")
            }

            /// Parses one item at a time, so that a large file is not in memory twice.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Items, A::Error> {
                let mut items = Vec::new();
                while let Some(value) = seq.next_element::<Value>()? {
                    let index = items.len();
                    items.push(match value["kind"].as_str().map(str::to_owned) {
                        Some(kind) => Item::Read(convert_object(&kind, value, index)),
                        None => Item::Unnamed(value),
                    });
                }
                Ok(Items(items))
            }
        }

        deserializer.deserialize_seq(Read)
    }
}

fn convert_item(
    item: Item,
    item_kind: &str,
    index: usize,
) -> Result<Option<WatchedObject>, StateError> {
    let value = match item {
        Item::Read(object) => return object,
        Item::Unnamed(value) => value,
    };
    let what = match value {
        Value::Object(_) => return convert_object(item_kind, value, index),
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
    };
    Err(StateError::Item(index, what))
}

/// Converts an object. `None` if its kind is not read.
fn convert_object(
    kind: &str,
    value: Value,
    index: usize,
) -> Result<Option<WatchedObject>, StateError> {
    let read = match kind {
        "Pod" => return Ok(Some(convert_pod(value, index))),
        "Node" => convert_value::<json::Node>(kind, value),
        "DaemonSet" => convert_value::<json::DaemonSet>(kind, value),
        "PodDisruptionBudget" => convert_value::<json::PodDisruptionBudget>(kind, value),
        "PersistentVolumeClaim" => convert_value::<json::PersistentVolumeClaim>(kind, value),
        "PersistentVolume" => convert_value::<json::PersistentVolume>(kind, value),
        "StorageClass" => convert_value::<json::StorageClass>(kind, value),
        "CSINode" => convert_value::<json::CSINode>(kind, value),
        "Namespace" => convert_value::<json::Namespace>(kind, value),
        "Service" => convert_value::<json::Service>(kind, value),
        "ReplicationController" => convert_value::<json::ReplicationController>(kind, value),
        "ReplicaSet" => convert_value::<json::ReplicaSet>(kind, value),
        "StatefulSet" => convert_value::<json::StatefulSet>(kind, value),
        _ => return Ok(None),
    };
    read.map(Some)
}

fn convert_value<T: Convert + DeserializeOwned>(
    kind: &str,
    value: Value,
) -> Result<WatchedObject, StateError> {
    let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let read: T = serde_json::from_value(value).map_err(|source| StateError::Object {
        kind: kind.to_owned(),
        name,
        source,
    })?;
    Ok(read.convert())
}

/// Converts a pod, even an invalid one. It is identified by its name, or by its index if it has
/// none.
fn convert_pod(value: Value, index: usize) -> WatchedObject {
    let [namespace, name] = ["namespace", "name"].map(|field| {
        let text = value["metadata"][field].as_str();
        text.unwrap_or_default().to_owned()
    });
    if name.is_empty() {
        let place = format!("(item {index})");
        return broken_pod(&namespace, &place, "it has no metadata.name");
    }
    let conditions = value["status"]["conditions"].as_array();
    let tried = conditions.is_some_and(|all| all.iter().any(|it| it["type"] == "PodScheduled"));
    let gates = value["spec"]["schedulingGates"].as_array();
    let is_gated = gates.is_some_and(|gates| !gates.is_empty());
    match serde_json::from_value::<json::Pod>(value).map(Convert::convert) {
        Ok(WatchedObject::Pod(pod)) if !tried && !is_gated && pod.node.is_none() => {
            // No scheduler has processed this pod. In a plan, it is pending like a pod that a
            // scheduler has rejected.
            WatchedObject::Pod(Box::new(Pod { unschedulable: true, held_back: None, ..*pod }))
        }
        Ok(object) => object,
        Err(error) => broken_pod(&namespace, &name, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;
    use crate::model::watched_object::{ObjectKind, WatchedObject};

    fn kinds(text: &str) -> Vec<ObjectKind> {
        parse(text).expect("a valid state").iter().map(WatchedObject::kind).collect()
    }

    #[test]
    fn lists_and_objects_are_read_and_unknown_kinds_skipped() {
        let list = r#"{"apiVersion": "v1", "items": [{"kind": "Node", "metadata": {"name": "n"}},
            {"kind": "Secret"}, {"kind": "Pod"}], "kind": "List"}"#;
        assert_eq!(kinds(list), [ObjectKind::Node, ObjectKind::Pod]);
        let typed = r#"{"kind": "PodList", "items": [{"metadata": {"name": "p"}}]}"#;
        assert_eq!(kinds(typed), [ObjectKind::Pod]);
        let two = format!(r#"{{"kind": "Namespace", "metadata": {{"name": "a"}}}} {list}"#);
        assert_eq!(kinds(&two), [ObjectKind::Namespace, ObjectKind::Node, ObjectKind::Pod]);
    }

    #[test]
    fn invalid_pod_is_kept_with_its_defect() {
        let text = r#"{"kind": "List", "items": [
            {"kind": "Pod", "metadata": {"namespace": "a", "name": "b"}, "spec": {"priority": "x"}},
            {"kind": "Pod", "metadata": {"namespace": "a", "name": "c"}}]}"#;
        let objects = parse(text).expect("a valid state");
        let [WatchedObject::Pod(broken), WatchedObject::Pod(sound)] = objects.as_slice() else {
            panic!("two pods: {objects:?}")
        };
        assert_eq!((broken.key.name.as_str(), broken.defects.len()), ("b", 1));
        assert!(sound.defects.is_empty() && sound.is_provisionable());
    }

    #[test]
    fn gated_and_bound_pods_are_not_waiting() {
        let cases = [
            (r#""schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]"#, false),
            (r#""schedulingGates": []"#, true),
            (r#""nodeName": "n""#, false),
        ];
        for (spec, expect) in cases {
            let text =
                format!(r#"{{"kind": "Pod", "metadata": {{"name": "p"}}, "spec": {{{spec}}}}}"#);
            let objects = parse(&text).expect("a valid state");
            let [WatchedObject::Pod(pod)] = objects.as_slice() else {
                panic!("a pod: {objects:?}")
            };
            assert_eq!(pod.is_waiting(), expect, "{spec}");
        }
    }

    #[test]
    fn dump_is_read_as_completely_as_a_watch() {
        let text = r#"{"kind": "List", "items": [
            {"kind": "Pod", "metadata": {"namespace": "a", "name": "p", "annotations":
            {"scheduling.k8s.io/group-name": "g"}}, "spec": {"schedulerName": "volcano",
            "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}],
            "volumes": [{"name": "v", "ephemeral": {}}]}},
            {"kind": "PersistentVolumeClaim", "metadata": {"namespace": "a", "name": "p-v",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "pv"}}]}"#;
        let objects = parse(text).expect("a valid state");
        let [WatchedObject::Pod(pod), WatchedObject::VolumeClaim(claim)] = objects.as_slice()
        else {
            panic!("a pod and its claim: {objects:?}")
        };
        assert!(pod.gang.is_some() && pod.spread.len() == 1 && pod.scheduler == "volcano");
        assert_eq!(pod.volume_claims, [claim.key.name.as_str()]);
        assert!(claim.is_bound);
    }

    #[test]
    fn api_failure_status_is_an_error_not_an_empty_cluster() {
        let text = r#"{"kind": "Status", "status": "Failure", "message": "pods is forbidden"}"#;
        let error = parse(text).expect_err("not a cluster state").to_string();
        assert!(error.ends_with("fails: pods is forbidden"), "{error}");
    }

    #[test]
    fn unnamed_pod_is_identified_by_its_position() {
        let text = r#"{"kind": "List", "items": [{"kind": "Node"}, {"kind": "Pod"}]}"#;
        let objects = parse(text).expect("a valid state");
        let Some(WatchedObject::Pod(pod)) = objects.get(1) else { panic!("a pod: {objects:?}") };
        assert_eq!(pod.key.name, "(item 1)");
        assert!(pod.defects[0].contains("metadata.name"));
    }

    #[test]
    fn non_object_item_is_reported_by_its_position() {
        let text = r#"{"kind": "List", "items": [{"kind": "Node"}, 7]}"#;
        let error = parse(text).expect_err("a number is no object").to_string();
        assert!(error.contains("item 1") && error.contains("a number"), "{error}");
    }

    #[test]
    fn input_that_is_no_cluster_state_is_rejected() {
        for text in [
            "",
            " ",
            "[]",
            "{}",
            "nothing",
            r#"{"kind": "List", "items": {}}"#,
            r#"{"kind": "Secret"}"#,
            r#"{"kind": "List", "items": []} {"kind": "List", "items": [{"kind": "Secret"}]}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(kinds(r#"{"kind": "List", "items": []}"#), []);
        assert_eq!(kinds(r#"{"kind": "PodList", "items": null}"#), []);
    }
}
