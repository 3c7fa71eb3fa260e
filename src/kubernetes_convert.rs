//! Converts Kubernetes objects in JSON to the types of `model`.

// Resource quantities.
pub(crate) mod quantity;
// JSON types with the fields that are read.
pub(crate) mod api_types;
// Effective resource requests of a pod.
mod requests;
// Node and label selectors.
mod selector;
// Scheduling constraints of a pod.
mod place;
// Pods.
mod pod;
// PodDisruptionBudgets.
mod pdb;
// CapacityBuffers and their status.
pub mod buffer;
// State files from `kubectl get -o json`.
pub mod offline_state;

use std::ops::RangeInclusive;

use crate::kubernetes_convert::api_types::{self as json, LabelSelector, Meta};
use crate::kubernetes_convert::quantity::Quantities;
use crate::model::id::{NodeName, ObjectKey};
use crate::model::labels::{REGION, ZONE, normalized_key};
use crate::model::node::{CONDITIONS_MAX, ConditionStatus, Node, NodeCondition};
use crate::model::pod::{DaemonSet, Pod};
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::model::taint::{Effect, Taint};
#[cfg(feature = "daemon")]
use crate::model::watched_object::Attachment;
use crate::model::watched_object::{
    CsiNode, Namespace, ObjectKind, StorageClass, Volume, VolumeClaim, WatchedObject,
    WorkloadSelector,
};
use crate::state::volume_topology::EBS_DRIVER;

/// The oldest supported minor version of Kubernetes 1. FlowSchemas of
/// `flowcontrol.apiserver.k8s.io/v1` are available since this version.
pub const OLDEST: u32 = 29;
/// Minor versions with automated tests: `tests/all` uses the newest, test campaigns use the others.
pub const TESTED: RangeInclusive<u32> = 35..=37;

/// The range [`TESTED`] for messages.
pub fn tested_versions() -> String {
    format!("1.{} to 1.{}", TESTED.start(), TESTED.end())
}

/// Maximum number of node affinity terms of a volume. Further terms are ignored.
const PLACES_MAX: usize = 100;

/// A Kubernetes object that is converted to a type of `model`.
pub(crate) trait Convert {
    /// Kind of the object.
    const NOUN: ObjectKind;

    fn convert(self) -> WatchedObject;
}

fn object_key(meta: Meta) -> ObjectKey {
    ObjectKey { namespace: meta.namespace, name: meta.name }
}

impl Convert for json::Pod {
    const NOUN: ObjectKind = ObjectKind::Pod;

    fn convert(self) -> WatchedObject {
        WatchedObject::Pod(Box::new(pod::convert_pod(self)))
    }
}

/// Converts a pod, for lists that contain only pods.
#[cfg(feature = "daemon")]
pub(crate) fn convert_pod(pod: json::Pod) -> Pod {
    pod::convert_pod(pod)
}

/// Volumes attached to one node.
#[cfg(feature = "daemon")]
pub(crate) fn attachments_of_node(
    all: impl Iterator<Item = json::VolumeAttachment>,
    node: &str,
) -> Vec<Attachment> {
    all.filter(|attachment| attachment.spec.node_name == node)
        .map(|attachment| Attachment {
            name: attachment.metadata.name,
            volume: attachment.spec.source.persistent_volume_name,
        })
        .collect()
}

/// A pod that cannot be parsed: only its name and the reason are known.
pub(crate) fn broken_pod(namespace: &str, name: &str, why: &str) -> WatchedObject {
    WatchedObject::Pod(Box::new(Pod {
        key: ObjectKey::new(namespace, name),
        unschedulable: true,
        defects: vec![pod::clip_text(why)],
        ..Pod::default()
    }))
}

impl Convert for json::Node {
    const NOUN: ObjectKind = ObjectKind::Node;

    fn convert(self) -> WatchedObject {
        WatchedObject::Node(Box::new(Node {
            name: NodeName(self.metadata.name),
            uid: self.metadata.uid,
            version: self.metadata.resource_version,
            provider_id: self.spec.provider_id,
            created: self.metadata.creation_timestamp,
            deleting: self.metadata.deletion_timestamp,
            labels: self.metadata.labels,
            annotations: self.metadata.annotations.0,
            finalizers: self.metadata.finalizers,
            node_claim: node_claim(self.metadata.owner_references),
            taints: self.spec.taints.into_iter().filter_map(convert_taint).collect(),
            unschedulable: self.spec.unschedulable,
            has_kubelet: !self.status.node_info.kubelet_version.is_empty(),
            ready: self
                .status
                .conditions
                .iter()
                .any(|it| it.kind == "Ready" && it.status == "True"),
            conditions: node_conditions(self.status.conditions),
            capacity: node_resources(&self.status.capacity),
            allocatable: node_resources(&self.status.allocatable),
        }))
    }
}

/// UID of the NodeClaim that owns a node.
fn node_claim(owners: Vec<json::OwnerReference>) -> Option<String> {
    let owner = owners.into_iter().find(|owner| owner.kind == "NodeClaim");
    owner.map(|owner| owner.uid)
}

/// Conditions of a node that have a transition time, up to a maximum number.
fn node_conditions(all: Vec<json::Condition>) -> Vec<NodeCondition> {
    all.into_iter()
        .filter_map(|condition| {
            Some(NodeCondition {
                status: ConditionStatus::parse(&condition.status)?,
                since: condition.last_transition_time?,
                kind: condition.kind,
            })
        })
        .take(CONDITIONS_MAX)
        .collect()
}

/// Converts a taint. `None` if kube-scheduler does not know its effect.
fn convert_taint(taint: json::Taint) -> Option<Taint> {
    let effect = Effect::parse(&taint.effect)?;
    Some(Taint { key: taint.key, value: taint.value, effect })
}

/// Resources of a node. An invalid quantity is treated as zero, so that no pod that requests it is
/// scheduled to the node.
fn node_resources(quantities: &Quantities) -> Resources {
    let mut resources = Resources::default();
    for (name, quantity) in quantities.iter() {
        // If the quantity is invalid, the resource remains zero, as intended.
        resources.set_quantity(name, &quantity.0).unwrap_or_default();
    }
    resources
}

impl Convert for json::DaemonSet {
    const NOUN: ObjectKind = ObjectKind::DaemonSet;

    fn convert(self) -> WatchedObject {
        WatchedObject::DaemonSet(Box::new(DaemonSet {
            template: pod::convert_template(&self.metadata, self.spec.template),
            key: object_key(self.metadata),
        }))
    }
}

impl Convert for json::PodDisruptionBudget {
    const NOUN: ObjectKind = ObjectKind::Pdb;

    fn convert(self) -> WatchedObject {
        WatchedObject::Pdb(pdb::convert_pdb(self))
    }
}

impl Convert for json::PersistentVolumeClaim {
    const NOUN: ObjectKind = ObjectKind::VolumeClaim;

    fn convert(self) -> WatchedObject {
        let annotations = &self.metadata.annotations.0;
        let class = annotations.get(json::STORAGE_CLASS).cloned();
        let complete = annotations.contains_key(json::BIND_COMPLETED);
        WatchedObject::VolumeClaim(VolumeClaim {
            is_bound: complete && !self.spec.volume_name.is_empty(),
            volume: self.spec.volume_name,
            storage_class: class.unwrap_or(self.spec.storage_class_name),
            phase: self.status.phase,
            deleting: self.metadata.deletion_timestamp.is_some(),
            once_pod: self.spec.access_modes.iter().any(|mode| mode == "ReadWriteOncePod"),
            key: object_key(self.metadata),
        })
    }
}

impl Convert for json::PersistentVolume {
    const NOUN: ObjectKind = ObjectKind::Volume;

    fn convert(self) -> WatchedObject {
        let source = &self.spec;
        let driver = match &source.csi.driver {
            driver if !driver.is_empty() => driver.clone(),
            // In-tree EBS volumes are handled by the EBS CSI driver.
            _ if source.aws_elastic_block_store.is_some() => EBS_DRIVER.to_owned(),
            _ => String::new(),
        };
        WatchedObject::Volume(Volume {
            node_affinity: volume_locations(&self),
            driver,
            is_local: source.local.is_some() || source.host_path.is_some(),
            deleting: self.metadata.deletion_timestamp.is_some(),
            name: self.metadata.name,
        })
    }
}

/// Node requirements of a volume, from its affinity and its labels. Zone and region labels restrict
/// a volume as affinity does (kube-scheduler's VolumeZone). These labels may contain several
/// values.
fn volume_locations(volume: &json::PersistentVolume) -> Vec<Requirements> {
    let mut places = Vec::new();
    if let Some(required) = &volume.spec.node_affinity.required {
        let terms = required.node_selector_terms.iter().map(selector::convert_term);
        places.extend(terms.flatten().flatten().take(PLACES_MAX));
        if places.is_empty() {
            // This requirement matches no node, because no label has an empty key.
            places.push(Requirements::from_iter([("", Requirement::exists())]));
        }
    }
    let mut labels = Requirements::default();
    for (key, value) in &volume.metadata.labels {
        if matches!(normalized_key(key), ZONE | REGION) {
            labels.add(key, Requirement::is_in(value.split("__")));
        }
    }
    if places.is_empty() && !labels.is_empty() {
        places.push(Requirements::default());
    }
    if labels.is_empty() {
        return places;
    }
    // kube-scheduler also accepts nodes without any zone or region label, because such a cluster
    // may have only one zone.
    let anywhere: Vec<Requirements> = places
        .iter()
        .filter_map(|place| {
            let says_zone = place.get(ZONE).is_some() || place.get(REGION).is_some();
            let mut place = place.clone();
            for key in [ZONE, REGION] {
                place.add(key, Requirement::does_not_exist());
            }
            (!says_zone).then_some(place)
        })
        .collect();
    for place in &mut places {
        place.add_all(&labels);
    }
    places.extend(anywhere);
    places
}

impl Convert for json::StorageClass {
    const NOUN: ObjectKind = ObjectKind::StorageClass;

    fn convert(self) -> WatchedObject {
        WatchedObject::StorageClass(StorageClass {
            name: self.metadata.name,
            provisioner: self.provisioner,
            waits_for_consumer: self.volume_binding_mode == "WaitForFirstConsumer",
            allowed_topologies: self
                .allowed_topologies
                .into_iter()
                .take(PLACES_MAX)
                .map(|term| {
                    let mut requirements = Requirements::default();
                    for it in term.match_label_expressions {
                        requirements.add(&it.key, Requirement::is_in(it.values));
                    }
                    requirements
                })
                .collect(),
        })
    }
}

impl Convert for json::CSINode {
    const NOUN: ObjectKind = ObjectKind::CsiNode;

    fn convert(self) -> WatchedObject {
        WatchedObject::CsiNode(CsiNode {
            name: NodeName(self.metadata.name),
            limits: self
                .spec
                .drivers
                .into_iter()
                .filter_map(|driver| Some((driver.name, driver.allocatable?.count?)))
                .collect(),
        })
    }
}

impl Convert for json::Namespace {
    const NOUN: ObjectKind = ObjectKind::Namespace;

    fn convert(self) -> WatchedObject {
        WatchedObject::Namespace(Namespace {
            name: self.metadata.name,
            uid: self.metadata.uid,
            labels: self.metadata.labels,
        })
    }
}

impl From<json::OfLabels> for LabelSelector {
    fn from(spec: json::OfLabels) -> Self {
        Self { match_labels: spec.selector, ..Self::default() }
    }
}

impl From<json::OfSelector> for LabelSelector {
    fn from(spec: json::OfSelector) -> Self {
        spec.selector
    }
}

/// Kinds of which only the selector is used. kube-scheduler ignores an invalid selector, and so
/// does this conversion.
macro_rules! selecting {
    ($($name:ident),*) => {$(
        impl Convert for json::$name {
            const NOUN: ObjectKind = ObjectKind::$name;

            fn convert(self) -> WatchedObject {
                WatchedObject::Selecting(WorkloadSelector {
                    kind: Self::NOUN,
                    selector: selector::convert_selector(&self.spec.into()).unwrap_or_default(),
                    key: object_key(self.metadata),
                })
            }
        }
    )*};
}

selecting!(Service, ReplicationController, ReplicaSet, StatefulSet);

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::Convert;
    use crate::kubernetes_convert::api_types as json;
    use crate::model::watched_object::{
        ObjectKind, StorageClass, Volume, VolumeClaim, WatchedObject,
    };

    fn read<T: Convert + DeserializeOwned>(json: &str) -> WatchedObject {
        let read: T = serde_json::from_str(json).expect("an object");
        read.convert()
    }

    fn claim(json: &str) -> VolumeClaim {
        match read::<json::PersistentVolumeClaim>(json) {
            WatchedObject::VolumeClaim(claim) => claim,
            other => panic!("a volume claim: {other:?}"),
        }
    }

    fn volume(json: &str) -> Volume {
        match read::<json::PersistentVolume>(json) {
            WatchedObject::Volume(volume) => volume,
            other => panic!("a volume: {other:?}"),
        }
    }

    #[test]
    fn volume_claim_is_bound_with_annotation_and_volume_name() {
        let complete = r#""annotations": {"pv.kubernetes.io/bind-completed": "yes"}"#;
        let cases = [
            (complete, r#""volumeName": "pv""#, true),
            ("", r#""volumeName": "pv""#, false),
            (complete, "", false),
            (r#""annotations": {"a": "b"}"#, r#""volumeName": "pv""#, false),
        ];
        for (meta, spec, expect) in cases {
            let read = claim(&format!(r#"{{"metadata": {{{meta}}}, "spec": {{{spec}}}}}"#));
            assert_eq!(read.is_bound, expect, "{meta} {spec}");
            assert_eq!(read.volume.is_empty(), spec.is_empty());
        }
    }

    #[test]
    fn volume_claim_class_phase_and_access_mode_are_read() {
        let read = claim(
            r#"{"metadata": {"namespace": "a", "name": "b",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"volume.beta.kubernetes.io/storage-class": "old"}},
            "spec": {"storageClassName": "new", "accessModes": ["ReadWriteOncePod"]},
            "status": {"phase": "Lost"}}"#,
        );
        assert_eq!(read.key.to_string(), "a/b");
        assert_eq!((read.storage_class.as_str(), read.phase.as_str()), ("old", "Lost"));
        assert!(read.deleting && read.once_pod);
        let plain = claim(
            r#"{"metadata": {}, "spec": {"storageClassName": "new",
            "accessModes": ["ReadWriteOnce"]}}"#,
        );
        assert!(!plain.deleting && !plain.once_pod && plain.storage_class == "new");
    }

    #[test]
    fn volume_affinity_combines_node_affinity_and_zone_labels() {
        let zone = |key: &str, zone: &str| {
            format!(
                r#"{{"matchExpressions": [{{"key": "{key}", "operator": "In",
                "values": ["{zone}"]}}]}}"#
            )
        };
        let affinity = |terms: &[String]| {
            format!(
                r#""nodeAffinity": {{"required": {{"nodeSelectorTerms": [{}]}}}}"#,
                terms.join(",")
            )
        };
        let stable = "topology.kubernetes.io/zone";
        let broken = r#"{"matchExpressions": [{"key": "k", "operator": "Near"}]}"#.to_owned();
        let node = r#"{"matchFields": [{"key": "metadata.name", "operator": "In",
            "values": ["n"]}]}"#;
        let cases = [
            ("", String::new(), ""),
            (
                "",
                affinity(&[zone("topology.ebs.csi.aws.com/zone", "a"), zone(stable, "b")]),
                "topology.kubernetes.io/zone in [a] | topology.kubernetes.io/zone in [b]",
            ),
            ("", affinity(&[node.to_owned()]), "metadata.name in [n]"),
            (
                "",
                affinity(&[broken.clone(), zone(stable, "b")]),
                "topology.kubernetes.io/zone in [b]",
            ),
            // No node matches, because no label has an empty key.
            ("", affinity(&[broken]), " exists"),
            ("", affinity(&[]), " exists"),
            (
                r#""failure-domain.beta.kubernetes.io/zone": "a__b", "app": "x""#,
                String::new(),
                // kube-scheduler's VolumeZone ignores nodes without such labels.
                "topology.kubernetes.io/zone in [a, b] | topology.kubernetes.io/region does not \
                 exist, topology.kubernetes.io/zone does not exist",
            ),
            (
                r#""topology.kubernetes.io/zone": "a""#,
                affinity(&[zone(stable, "a")]),
                "topology.kubernetes.io/zone in [a]",
            ),
            (
                r#""topology.kubernetes.io/zone": "a""#,
                affinity(&[zone("k", "v")]),
                "k in [v], topology.kubernetes.io/zone in [a] | k in [v], \
                 topology.kubernetes.io/region does not exist, topology.kubernetes.io/zone does \
                 not exist",
            ),
        ];
        for (labels, spec, expect) in cases {
            let json = format!(r#"{{"metadata": {{"labels": {{{labels}}}}}, "spec": {{{spec}}}}}"#);
            let alternatives: Vec<String> =
                volume(&json).node_affinity.iter().map(ToString::to_string).collect();
            assert_eq!(alternatives.join(" | "), expect, "{json}");
        }
    }

    #[test]
    fn volume_driver_and_locality_are_read() {
        let cases = [
            (r#""csi": {"driver": "d"}"#, "d", false),
            (r#""awsElasticBlockStore": {"volumeID": "v"}"#, "ebs.csi.aws.com", false),
            (r#""local": {"path": "/mnt"}"#, "", true),
            (r#""hostPath": {"path": "/mnt"}"#, "", true),
            (r#""nfs": {"path": "/mnt"}"#, "", false),
        ];
        for (spec, driver, is_local) in cases {
            let read = volume(&format!(r#"{{"metadata": {{"name": "v"}}, "spec": {{{spec}}}}}"#));
            assert_eq!((read.driver.as_str(), read.is_local), (driver, is_local), "{spec}");
            assert!(!read.deleting);
        }
        let ending = r#"{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}"#;
        assert!(volume(ending).deleting);
    }

    #[test]
    fn storage_class_topology_and_binding_mode_are_read() {
        let read = read::<json::StorageClass>(
            r#"{"metadata": {"name": "s"}, "provisioner": "ebs.csi.aws.com",
            "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": [
            {"matchLabelExpressions": [{"key": "topology.ebs.csi.aws.com/zone",
            "values": ["a", "b"]}]}]}"#,
        );
        let WatchedObject::StorageClass(StorageClass {
            waits_for_consumer,
            allowed_topologies,
            ..
        }) = read
        else {
            panic!("a storage class: {read:?}")
        };
        let alternatives: Vec<String> =
            allowed_topologies.iter().map(ToString::to_string).collect();
        assert_eq!(alternatives, ["topology.kubernetes.io/zone in [a, b]"]);
        assert!(waits_for_consumer);
    }

    #[test]
    fn selectors_of_services_and_controllers_are_read() {
        let check = |read: WatchedObject, expect: (ObjectKind, &str)| {
            let WatchedObject::Selecting(workload) = read else {
                panic!("something that selects: {read:?}")
            };
            let expressions = workload.selector.expressions().iter();
            let texts: Vec<String> =
                expressions.map(|(label, wanted)| format!("{label} {wanted}")).collect();
            assert_eq!((workload.kind, texts.join(", ").as_str()), expect);
            assert_eq!(workload.key.to_string(), "a/b");
        };
        let object = |selector: &str| {
            let meta = r#""metadata": {"namespace": "a", "name": "b"}"#;
            format!(r#"{{{meta}, "spec": {{"selector": {selector}}}}}"#)
        };
        // Selectors that select nothing or everything have no expressions.
        for (selector, expect) in
            [(r#"{"tier": "x", "app": "w"}"#, "app in [w], tier in [x]"), ("{}", ""), ("null", "")]
        {
            check(read::<json::Service>(&object(selector)), (ObjectKind::Service, expect));
            let kind = ObjectKind::ReplicationController;
            check(read::<json::ReplicationController>(&object(selector)), (kind, expect));
        }
        let not = r#"{"key": "tier", "operator": "NotIn", "values": ["y"]}"#;
        let near = r#"{"key": "tier", "operator": "Near"}"#;
        let both = |expression: &str| {
            format!(r#"{{"matchLabels": {{"app": "w"}}, "matchExpressions": [{expression}]}}"#)
        };
        for (selector, expect) in
            [(both(not), "app in [w], tier not in [y]"), (both(near), ""), ("null".to_owned(), "")]
        {
            check(read::<json::ReplicaSet>(&object(&selector)), (ObjectKind::ReplicaSet, expect));
            check(read::<json::StatefulSet>(&object(&selector)), (ObjectKind::StatefulSet, expect));
        }
    }
}
