//! Turns Kubernetes objects into the nouns that decisions are made of.
//! It must not know where the objects come from nor what is decided about them.

mod requests;

mod selector;

mod pod;

use crate::model::id::{NodeName, ObjectKey};
use crate::model::node::Node;
use crate::model::object::{CsiNode, Kind, Namespace, Object, StorageClass, Volume, VolumeClaim};
use crate::model::pod::{DaemonSet, Pdb, Pod};
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::model::taint::{Effect, Taint};
use crate::shell::kube::object::{self as json, Lean, Meta};
use crate::shell::kube::quantity::Quantities;

/// A watched kind that has its noun.
pub(crate) trait Convert: Lean {
    const NOUN: Kind;

    fn convert(self) -> Object;

    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.meta().namespace.as_str(), self.meta().name.as_str())
    }
}

fn key(meta: Meta) -> ObjectKey {
    ObjectKey {
        namespace: meta.namespace,
        name: meta.name,
    }
}

impl Convert for json::Pod {
    const NOUN: Kind = Kind::Pod;

    fn convert(self) -> Object {
        Object::Pod(Box::new(pod::pod(self)))
    }
}

/// A pod as itself, for lists that hold nothing else.
pub(crate) fn pod(pod: json::Pod) -> Pod {
    pod::pod(pod)
}

/// A pod of which no more can be read than its name, and why.
pub(crate) fn broken_pod(namespace: &str, name: &str, why: &str) -> Object {
    Object::Pod(Box::new(Pod {
        key: ObjectKey::new(namespace, name),
        unschedulable: true,
        defects: vec![pod::clip(why)],
        ..Pod::default()
    }))
}

impl Convert for json::Node {
    const NOUN: Kind = Kind::Node;

    fn convert(self) -> Object {
        let ready = |it: &json::Condition| it.kind == "Ready" && it.status == "True";
        Object::Node(Box::new(Node {
            name: NodeName(self.metadata.name),
            uid: self.metadata.uid,
            version: self.metadata.resource_version,
            provider_id: self.spec.provider_id,
            created: self.metadata.creation_timestamp,
            deleting: self.metadata.deletion_timestamp,
            labels: self.metadata.labels,
            annotations: self.metadata.annotations.0,
            taints: self.spec.taints.into_iter().filter_map(taint).collect(),
            unschedulable: self.spec.unschedulable,
            ready: self.status.conditions.iter().any(ready),
            capacity: amounts(&self.status.capacity),
            allocatable: amounts(&self.status.allocatable),
        }))
    }
}

/// A taint; none for an effect that no scheduler knows either.
fn taint(taint: json::Taint) -> Option<Taint> {
    let effect = Effect::parse(&taint.effect)?;
    Some(Taint {
        key: taint.key,
        value: taint.value,
        effect,
    })
}

/// What a node has. An amount that cannot be read counts as none, so that nothing is placed on it.
fn amounts(quantities: &Quantities) -> Resources {
    let mut resources = Resources::default();
    for (name, quantity) in quantities.iter() {
        // An error leaves the amount at nothing, which is what is meant.
        resources.set(name, &quantity.0).unwrap_or_default();
    }
    resources
}

impl Convert for json::DaemonSet {
    const NOUN: Kind = Kind::DaemonSet;

    fn convert(self) -> Object {
        Object::DaemonSet(Box::new(DaemonSet {
            template: pod::template(&self.metadata, self.spec.template),
            key: key(self.metadata),
        }))
    }
}

impl Convert for json::PodDisruptionBudget {
    const NOUN: Kind = Kind::Pdb;

    fn convert(self) -> Object {
        let seen = self.status.observed_generation >= self.metadata.generation;
        Object::Pdb(Pdb {
            selector: self.spec.selector.map_or_else(nothing, selector::labels),
            disruptions_allowed: if seen {
                self.status.disruptions_allowed
            } else {
                0
            },
            key: key(self.metadata),
        })
    }
}

/// Matches no object: no label has an empty key.
fn nothing() -> Requirements {
    let mut requirements = Requirements::default();
    requirements.add("", Requirement::exists());
    requirements
}

impl Convert for json::PersistentVolumeClaim {
    const NOUN: Kind = Kind::VolumeClaim;

    fn convert(self) -> Object {
        Object::VolumeClaim(VolumeClaim {
            volume: self.spec.volume_name,
            storage_class: self.spec.storage_class_name,
            phase: self.status.phase,
            key: key(self.metadata),
        })
    }
}

impl Convert for json::PersistentVolume {
    const NOUN: Kind = Kind::Volume;

    fn convert(self) -> Object {
        let terms = self
            .spec
            .node_affinity
            .required
            .map(|it| it.node_selector_terms);
        Object::Volume(Volume {
            name: self.metadata.name,
            node_affinity: terms
                .unwrap_or_default()
                .iter()
                .map(
                    |term| match selector::expressions(&term.match_expressions) {
                        Ok(requirements) => requirements,
                        Err(_) => nothing(),
                    },
                )
                .collect(),
            driver: self.spec.csi.driver,
        })
    }
}

impl Convert for json::StorageClass {
    const NOUN: Kind = Kind::StorageClass;

    fn convert(self) -> Object {
        let topology = |term: json::TopologyTerm| {
            let mut requirements = Requirements::default();
            for it in term.match_label_expressions {
                requirements.add(&it.key, Requirement::is_in(it.values));
            }
            requirements
        };
        Object::StorageClass(StorageClass {
            name: self.metadata.name,
            provisioner: self.provisioner,
            waits_for_consumer: self.volume_binding_mode == "WaitForFirstConsumer",
            allowed_topologies: self.allowed_topologies.into_iter().map(topology).collect(),
        })
    }
}

impl Convert for json::CSINode {
    const NOUN: Kind = Kind::CsiNode;

    fn convert(self) -> Object {
        let limit = |driver: json::CsiDriver| Some((driver.name, driver.allocatable?.count?));
        Object::CsiNode(CsiNode {
            name: NodeName(self.metadata.name),
            limits: self.spec.drivers.into_iter().filter_map(limit).collect(),
        })
    }
}

impl Convert for json::Namespace {
    const NOUN: Kind = Kind::Namespace;

    fn convert(self) -> Object {
        Object::Namespace(Namespace {
            name: self.metadata.name,
            labels: self.metadata.labels,
        })
    }
}
