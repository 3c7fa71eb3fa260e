//! The objects of one cluster as its watches report them, with the pods of each node.
//! It must not know which of them are ours.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::node::Node;
use crate::model::object::{CsiNode, Kind, Namespace, Object, StorageClass, Volume, VolumeClaim};
use crate::model::pod::{DaemonSet, Pdb, Pod};

/// All watched objects, by key.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Pods.
    pub pods: BTreeMap<PodKey, Pod>,
    /// Nodes.
    pub nodes: BTreeMap<NodeName, Node>,
    /// DaemonSets.
    pub daemon_sets: BTreeMap<ObjectKey, DaemonSet>,
    /// PodDisruptionBudgets.
    pub pdbs: BTreeMap<ObjectKey, Pdb>,
    /// PersistentVolumeClaims.
    pub volume_claims: BTreeMap<ObjectKey, VolumeClaim>,
    /// PersistentVolumes.
    pub volumes: BTreeMap<String, Volume>,
    /// StorageClasses.
    pub storage_classes: BTreeMap<String, StorageClass>,
    /// CSINodes.
    pub csi_nodes: BTreeMap<NodeName, CsiNode>,
    /// Namespaces.
    pub namespaces: BTreeMap<String, Namespace>,
    pods_by_node: BTreeMap<NodeName, BTreeSet<PodKey>>,
    waiting: BTreeSet<PodKey>,
    pods_changed: BTreeMap<NodeName, Timestamp>,
}

impl Objects {
    /// Takes an object in, in place of an earlier one of its key.
    pub fn apply(&mut self, object: Object, now: Timestamp) {
        match object {
            Object::Pod(pod) => self.apply_pod(*pod, now),
            Object::Node(node) => {
                self.nodes.insert(node.name.clone(), *node);
            }
            Object::DaemonSet(set) => {
                self.daemon_sets.insert(set.key.clone(), *set);
            }
            Object::Pdb(pdb) => {
                self.pdbs.insert(pdb.key.clone(), pdb);
            }
            Object::VolumeClaim(claim) => {
                self.volume_claims.insert(claim.key.clone(), claim);
            }
            Object::Volume(volume) => {
                self.volumes.insert(volume.name.clone(), volume);
            }
            Object::StorageClass(class) => {
                self.storage_classes.insert(class.name.clone(), class);
            }
            Object::CsiNode(node) => {
                self.csi_nodes.insert(node.name.clone(), node);
            }
            Object::Namespace(namespace) => {
                self.namespaces.insert(namespace.name.clone(), namespace);
            }
        }
    }

    /// Forgets an object.
    pub fn delete(&mut self, kind: Kind, key: &ObjectKey, now: Timestamp) {
        let name = key.name.as_str();
        match kind {
            Kind::Pod => {
                if let Some(pod) = self.pods.remove(key) {
                    self.unindex(&pod, now);
                }
            }
            Kind::Node => {
                self.nodes.remove(name);
            }
            Kind::DaemonSet => {
                self.daemon_sets.remove(key);
            }
            Kind::Pdb => {
                self.pdbs.remove(key);
            }
            Kind::VolumeClaim => {
                self.volume_claims.remove(key);
            }
            Kind::Volume => {
                self.volumes.remove(name);
            }
            Kind::StorageClass => {
                self.storage_classes.remove(name);
            }
            Kind::CsiNode => {
                self.csi_nodes.remove(name);
            }
            Kind::Namespace => {
                self.namespaces.remove(name);
            }
        }
    }

    /// Replaces all objects of a kind by a full listing; returns what vanished, with UIDs for pods
    /// and nodes.
    pub fn reset(
        &mut self,
        kind: Kind,
        objects: Vec<Object>,
        now: Timestamp,
    ) -> Vec<(ObjectKey, String)> {
        let listed: BTreeSet<ObjectKey> = objects.iter().map(Object::key).collect();
        let vanished: Vec<(ObjectKey, String)> = self
            .keys(kind)
            .into_iter()
            .filter(|(key, _)| !listed.contains(key))
            .collect();
        for (key, _) in &vanished {
            self.delete(kind, key, now);
        }
        for object in objects.into_iter().filter(|object| object.kind() == kind) {
            self.apply(object, now);
        }
        vanished
    }

    /// How many objects of a kind there are.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Pod => self.pods.len(),
            Kind::Node => self.nodes.len(),
            _ => self.keys(kind).len(),
        }
    }

    /// Whether a pod or node of this key is known.
    pub fn has(&self, kind: Kind, key: &ObjectKey) -> bool {
        match kind {
            Kind::Pod => self.pods.contains_key(key),
            Kind::Node => self.nodes.contains_key(key.name.as_str()),
            _ => self.keys(kind).iter().any(|(own, _)| own == key),
        }
    }

    fn keys(&self, kind: Kind) -> Vec<(ObjectKey, String)> {
        let bare = |key: &ObjectKey| (key.clone(), String::new());
        let named = |name: &str| (ObjectKey::new("", name), String::new());
        match kind {
            Kind::Pod => self
                .pods
                .iter()
                .map(|(k, pod)| (k.clone(), pod.uid.clone()))
                .collect(),
            Kind::Node => self
                .nodes
                .values()
                .map(|node| (ObjectKey::new("", node.name.as_str()), node.uid.clone()))
                .collect(),
            Kind::DaemonSet => self.daemon_sets.keys().map(bare).collect(),
            Kind::Pdb => self.pdbs.keys().map(bare).collect(),
            Kind::VolumeClaim => self.volume_claims.keys().map(bare).collect(),
            Kind::Volume => self.volumes.keys().map(|name| named(name)).collect(),
            Kind::StorageClass => self
                .storage_classes
                .keys()
                .map(|name| named(name))
                .collect(),
            Kind::CsiNode => self
                .csi_nodes
                .keys()
                .map(|name| named(name.as_str()))
                .collect(),
            Kind::Namespace => self.namespaces.keys().map(|name| named(name)).collect(),
        }
    }

    /// The pods bound to a node.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        self.pods_by_node
            .get(node)
            .into_iter()
            .flatten()
            .filter_map(|key| self.pods.get(key))
    }

    /// Pods that wait for a place, by key, those with a nominated node among them.
    pub fn waiting(&self) -> impl Iterator<Item = &Pod> {
        self.waiting.iter().filter_map(|key| self.pods.get(key))
    }

    /// When a pod that is no daemon last came to a node or left it, as far as we saw.
    pub fn pods_changed(&self, node: &str) -> Option<Timestamp> {
        self.pods_changed.get(node).copied()
    }

    /// Nodes that pods are bound to although no such Node is known: a sign of a partial view.
    pub fn unknown_nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.pods_by_node
            .keys()
            .filter(|name| !self.nodes.contains_key(*name))
    }

    /// Forgets what is remembered of nodes that are gone.
    pub fn forget_gone_nodes(&mut self) {
        self.pods_changed
            .retain(|name, _| self.nodes.contains_key(name));
    }

    /// Forgets when pods came and went, where the objects were given at once.
    pub fn forget_changes(&mut self) {
        self.pods_changed.clear();
    }

    fn apply_pod(&mut self, pod: Pod, now: Timestamp) {
        let old = self.pods.remove(&pod.key);
        let same_place = old.as_ref().is_some_and(|old| {
            old.node == pod.node
                && old.is_terminal() == pod.is_terminal()
                && old.deleting.is_some() == pod.deleting.is_some()
        });
        if let Some(old) = old.filter(|_| !same_place) {
            self.unindex(&old, now);
        }
        if let Some(node) = pod.node.clone().filter(|_| !same_place) {
            if pod.occupies_node() {
                self.pods_changed.insert(node.clone(), now);
            }
            self.pods_by_node
                .entry(node)
                .or_default()
                .insert(pod.key.clone());
        }
        if pod.is_waiting() {
            self.waiting.insert(pod.key.clone());
        } else {
            self.waiting.remove(&pod.key);
        }
        self.pods.insert(pod.key.clone(), pod);
    }

    fn unindex(&mut self, pod: &Pod, now: Timestamp) {
        self.waiting.remove(&pod.key);
        let Some(node) = &pod.node else { return };
        if pod.occupies_node() {
            self.pods_changed.insert(node.clone(), now);
        }
        if let Some(keys) = self.pods_by_node.get_mut(node) {
            keys.remove(&pod.key);
            if keys.is_empty() {
                self.pods_by_node.remove(node);
            }
        }
    }
}
