//! Objects of the API server, the load of nodes, and the changes for watches.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::engine::event::Event;
use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::labels::Labels;
use crate::model::node::Node;
use crate::model::pdb::Pdb;
use crate::model::pod::{DaemonSet, Pod};
use crate::model::quantity::Resources;
use crate::model::watched_object::{Attachment, Namespace, ObjectKind, Volume, WatchedObject};

/// Pods of a node and their total requests.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Total requests of its pods that have not ended, including pods whose binding is in progress.
    pub used: Resources,
    /// Pods bound to the node.
    pub pods: BTreeSet<PodKey>,
    /// Last time at which the node had a pod other than a daemon, or its creation time if it never
    /// had such a pod.
    pub busy: Option<Timestamp>,
}

/// A volume attached to a node.
#[derive(Clone, Debug)]
pub struct Attached {
    /// Name of the PersistentVolume. Empty for other volumes.
    pub volume: String,
    /// The node.
    pub node: NodeName,
    /// UID of the pod that uses the volume.
    pub pod: String,
    /// Whether detaching is impossible.
    pub stuck: bool,
}

/// All objects of the API server.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pods: BTreeMap<PodKey, Pod>,
    nodes: BTreeMap<NodeName, Node>,
    daemon_sets: BTreeMap<ObjectKey, DaemonSet>,
    pdbs: BTreeMap<ObjectKey, Pdb>,
    namespaces: BTreeMap<String, Namespace>,
    volumes: BTreeMap<String, Volume>,
    attached: BTreeMap<String, Attached>,
    loads: BTreeMap<NodeName, Load>,
    by_owner: BTreeMap<String, BTreeSet<PodKey>>,
    changes: Vec<Event>,
    versions: u64,
    uids: u64,
}

impl Store {
    /// All pods, by key.
    pub fn pods(&self) -> &BTreeMap<PodKey, Pod> {
        &self.pods
    }

    /// The pod with this key and UID.
    pub fn pod(&self, key: &PodKey, uid: &str) -> Option<&Pod> {
        self.pods.get(key).filter(|pod| pod.uid == uid)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> &BTreeMap<NodeName, Node> {
        &self.nodes
    }

    /// Load of a node.
    pub fn load_of(&self, node: &str) -> Option<&Load> {
        self.loads.get(node)
    }

    /// The pods bound to a node.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        let keys = self.loads.get(node).into_iter().flat_map(|load| &load.pods);
        keys.filter_map(|key| self.pods.get(key))
    }

    /// The pods of an owner.
    pub fn pods_of(&self, owner: &str) -> impl Iterator<Item = &Pod> {
        let keys = self.by_owner.get(owner).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key))
    }

    /// The pods of an owner that neither have ended nor are being deleted.
    pub fn active_pods_of(&self, owner: &str) -> impl Iterator<Item = &Pod> {
        self.pods_of(owner).filter(|pod| pod.is_active())
    }

    /// Returns a new unique UID.
    pub fn new_uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.changes)
    }

    /// Creates or replaces a pod.
    pub fn put_pod(&mut self, pod: Pod, now: Timestamp) {
        self.push_applied(WatchedObject::Pod(Box::new(pod.clone())));
        let old = self.pods.remove(&pod.key);
        if let Some(old) = &old {
            self.subtract_load(old, now);
        }
        if let (None, Some(owner)) = (&old, &pod.owner) {
            self.by_owner.entry(owner.name.clone()).or_default().insert(pod.key.clone());
        }
        if let Some(node) = &pod.node {
            let load = self.loads.entry(node.clone()).or_default();
            load.pods.insert(pod.key.clone());
            if !pod.is_terminal() {
                load.used.add(&pod.requests);
            }
            if pod.occupies_node() {
                load.busy = Some(now);
            }
        }
        self.pods.insert(pod.key.clone(), pod);
    }

    fn push_applied(&mut self, object: WatchedObject) {
        self.changes.push(Event::Applied(object));
    }

    fn subtract_load(&mut self, pod: &Pod, now: Timestamp) {
        let Some(load) = pod.node.as_ref().and_then(|node| self.loads.get_mut(node)) else {
            return;
        };
        load.pods.remove(&pod.key);
        if !pod.is_terminal() {
            load.used.subtract(&pod.requests);
        }
        if pod.occupies_node() {
            load.busy = Some(now);
        }
    }

    /// Changes the pod with this UID. Returns false if it does not exist.
    pub fn change_pod(
        &mut self,
        key: &PodKey,
        uid: &str,
        now: Timestamp,
        change: impl FnOnce(&mut Pod),
    ) -> bool {
        let Some(mut pod) = self.pod(key, uid).cloned() else {
            return false;
        };
        change(&mut pod);
        self.put_pod(pod, now);
        true
    }

    /// Removes the pod with this UID, if it exists.
    pub fn remove_pod(&mut self, key: &PodKey, uid: &str, now: Timestamp) -> Option<Pod> {
        self.pod(key, uid)?;
        let pod = self.pods.remove(key)?;
        self.subtract_load(&pod, now);
        if let Some(owned) = pod.owner.as_ref().and_then(|owner| self.by_owner.get_mut(&owner.name))
        {
            owned.remove(key);
        }
        self.changes.push(Event::Deleted(ObjectKind::Pod, key.clone()));
        Some(pod)
    }

    /// Reserves resources for a pod whose binding is in progress.
    pub fn reserve(&mut self, node: &NodeName, requests: &Resources) {
        self.loads.entry(node.clone()).or_default().used.add(requests);
    }

    /// Releases reserved resources.
    pub fn release(&mut self, node: &NodeName, requests: &Resources) {
        if let Some(load) = self.loads.get_mut(node) {
            load.used.subtract(requests);
        }
    }

    /// Creates or replaces a node, with a new version.
    pub fn put_node(&mut self, mut node: Node, now: Timestamp) {
        self.versions += 1;
        node.version = self.versions.to_string();
        let load = self.loads.entry(node.name.clone()).or_default();
        load.busy.get_or_insert(now);
        self.push_applied(WatchedObject::Node(Box::new(node.clone())));
        self.nodes.insert(node.name.clone(), node);
    }

    /// Changes a node. Returns false if it does not exist.
    pub fn change_node(
        &mut self,
        name: &NodeName,
        now: Timestamp,
        change: impl FnOnce(&mut Node),
    ) -> bool {
        let Some(mut node) = self.nodes.get(name).cloned() else {
            return false;
        };
        change(&mut node);
        self.put_node(node, now);
        true
    }

    /// Removes a node.
    pub fn remove_node(&mut self, name: &NodeName) -> Option<Node> {
        let node = self.nodes.remove(name)?;
        let key = ObjectKey::new("", name.as_str());
        self.changes.push(Event::Deleted(ObjectKind::Node, key));
        Some(node)
    }

    /// Creates or replaces a DaemonSet.
    pub fn put_daemon_set(&mut self, set: DaemonSet) {
        self.push_applied(WatchedObject::DaemonSet(Box::new(set.clone())));
        self.daemon_sets.insert(set.key.clone(), set);
    }

    /// Creates or replaces a disruption budget, if it has changed.
    pub fn put_pdb(&mut self, pdb: Pdb) {
        if self.pdbs.get(&pdb.key) != Some(&pdb) {
            self.push_applied(WatchedObject::Pdb(pdb.clone()));
            self.pdbs.insert(pdb.key.clone(), pdb);
        }
    }

    /// Attaches a volume with this name.
    pub fn attach_volume(&mut self, name: &str, attached: Attached) {
        let volume = Volume { name: attached.volume.clone(), ..Volume::default() };
        if !volume.name.is_empty() {
            self.push_applied(WatchedObject::Volume(volume.clone()));
            self.volumes.insert(volume.name.clone(), volume);
        }
        self.attached.insert(name.to_owned(), attached);
    }

    /// Detaches a volume, unless it is stuck.
    pub fn detach_volume(&mut self, name: &str) {
        if self.attached.get(name).is_some_and(|attached| !attached.stuck) {
            self.attached.remove(name);
        }
    }

    /// Attachments of a node.
    pub fn attached_to(&self, node: &str) -> Vec<Attachment> {
        self.attached
            .iter()
            .filter(|(_, attached)| attached.node.as_str() == node)
            .map(|(name, attached)| Attachment {
                name: name.clone(),
                volume: attached.volume.clone(),
            })
            .collect()
    }

    /// Names of the attachments of a pod.
    pub fn mounted_by(&self, uid: &str) -> Vec<String> {
        self.attached
            .iter()
            .filter(|(_, attached)| attached.pod == uid)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Creates a namespace.
    pub fn put_namespace(&mut self, name: &str) {
        let namespace = Namespace {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            labels: Labels::new(),
        };
        self.push_applied(WatchedObject::Namespace(namespace.clone()));
        self.namespaces.insert(name.to_owned(), namespace);
    }

    /// A full listing of a kind.
    pub fn list_kind(&self, kind: ObjectKind) -> Vec<WatchedObject> {
        match kind {
            ObjectKind::Pod => watched_objects(&self.pods, |pod| WatchedObject::Pod(Box::new(pod))),
            ObjectKind::Node => {
                watched_objects(&self.nodes, |node| WatchedObject::Node(Box::new(node)))
            }
            ObjectKind::DaemonSet => {
                watched_objects(&self.daemon_sets, |set| WatchedObject::DaemonSet(Box::new(set)))
            }
            ObjectKind::Pdb => watched_objects(&self.pdbs, WatchedObject::Pdb),
            ObjectKind::Namespace => watched_objects(&self.namespaces, WatchedObject::Namespace),
            ObjectKind::Volume => watched_objects(&self.volumes, WatchedObject::Volume),
            // The simulation has no such objects.
            _ => Vec::new(),
        }
    }

    /// Returns true if the object exists with this UID, or with any UID if none is given. Kinds
    /// without UIDs in the simulation are compared by key only.
    pub fn has_object(&self, kind: ObjectKind, key: &ObjectKey, uid: &str) -> bool {
        let existing_uid = match kind {
            ObjectKind::Pod => self.pods.get(key).map(|pod| &pod.uid),
            ObjectKind::Node => self.nodes.get(key.name.as_str()).map(|node| &node.uid),
            ObjectKind::DaemonSet => return self.daemon_sets.contains_key(key),
            ObjectKind::Pdb => return self.pdbs.contains_key(key),
            ObjectKind::Namespace => return self.namespaces.contains_key(&key.name),
            ObjectKind::Volume => return self.volumes.contains_key(&key.name),
            _ => None,
        };
        existing_uid.is_some_and(|existing_uid| uid.is_empty() || existing_uid == uid)
    }
}

/// The objects of a map, each as a watched object.
fn watched_objects<K, T: Clone>(
    objects: &BTreeMap<K, T>,
    wrap: impl Fn(T) -> WatchedObject,
) -> Vec<WatchedObject> {
    objects.values().cloned().map(wrap).collect()
}
