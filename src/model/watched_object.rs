//! Watched object types under one enum, with kind and key.

use crate::model::id::{NodeName, ObjectKey};
use crate::model::labels::Labels;
use crate::model::named_enum::named_enum;
use crate::model::node::Node;
use crate::model::pdb::Pdb;
use crate::model::pod::{DaemonSet, Pod};
use crate::model::requirement::Requirements;
use crate::model::selector::Selector;

named_enum! {
    /// The kinds of watched objects. The names are the plurals of Kubernetes API paths.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ObjectKind {
        /// Pods.
        Pod => "pods",
        /// Nodes.
        Node => "nodes",
        /// DaemonSets.
        DaemonSet => "daemonsets",
        /// PodDisruptionBudgets.
        Pdb => "poddisruptionbudgets",
        /// PersistentVolumeClaims.
        VolumeClaim => "persistentvolumeclaims",
        /// PersistentVolumes.
        Volume => "persistentvolumes",
        /// StorageClasses.
        StorageClass => "storageclasses",
        /// CSINodes.
        CsiNode => "csinodes",
        /// Namespaces.
        Namespace => "namespaces",
        /// Services.
        Service => "services",
        /// ReplicationControllers.
        ReplicationController => "replicationcontrollers",
        /// ReplicaSets.
        ReplicaSet => "replicasets",
        /// StatefulSets.
        StatefulSet => "statefulsets",
    }
}

impl ObjectKind {
    /// Number of kinds at the start of the list that are watched in every cluster. The other kinds
    /// only select pods.
    pub const ALWAYS: usize = 9;
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeClaim {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The volume to which the claim is bound. Empty until it is bound.
    pub volume: String,
    /// Its storage class. Empty if there is none.
    pub storage_class: String,
    /// `Pending`, `Bound` or `Lost`.
    pub phase: String,
    /// Whether its binding to the volume is complete (`pv.kubernetes.io/bind-completed`).
    pub is_bound: bool,
    /// Whether its deletion was requested.
    pub deleting: bool,
    /// Whether only one pod may use it at a time (`ReadWriteOncePod`).
    pub once_pod: bool,
}

/// A VolumeAttachment: a volume that is attached to a node, or is being attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// Name.
    pub name: String,
    /// The PersistentVolume. Empty for other sources.
    pub volume: String,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Name.
    pub name: String,
    /// Node affinity: the terms are alternatives, empty means everywhere.
    pub node_affinity: Vec<Requirements>,
    /// CSI driver. Empty for other kinds.
    pub driver: String,
    /// Whether the volume is a directory or disk of one node (`local`, `hostPath`).
    pub is_local: bool,
    /// Whether its deletion was requested.
    pub deleting: bool,
}

/// A StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClass {
    /// Name.
    pub name: String,
    /// Provisioner.
    pub provisioner: String,
    /// Whether volumes are created only when a pod is scheduled.
    pub waits_for_consumer: bool,
    /// Topologies in which volumes can be created: the terms are alternatives, empty means
    /// everywhere.
    pub allowed_topologies: Vec<Requirements>,
}

/// A CSINode: how many volumes each driver can attach to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiNode {
    /// Name, equal to the node's name.
    pub name: NodeName,
    /// Driver and its limit.
    pub limits: Vec<(String, u32)>,
}

/// A Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Labels.
    pub labels: Labels,
}

/// A Service, ReplicationController, ReplicaSet or StatefulSet, reduced to its pod selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadSelector {
    /// Its kind.
    pub kind: ObjectKind,
    /// Namespace and name.
    pub key: ObjectKey,
    /// The pods of its namespace that it selects. An empty selector is ignored.
    pub selector: Selector,
}

/// A watched object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchedObject {
    /// A pod.
    Pod(Box<Pod>),
    /// A node.
    Node(Box<Node>),
    /// A DaemonSet.
    DaemonSet(Box<DaemonSet>),
    /// A PodDisruptionBudget.
    Pdb(Pdb),
    /// A PersistentVolumeClaim.
    VolumeClaim(VolumeClaim),
    /// A PersistentVolume.
    Volume(Volume),
    /// A StorageClass.
    StorageClass(StorageClass),
    /// A CSINode.
    CsiNode(CsiNode),
    /// A Namespace.
    Namespace(Namespace),
    /// An object that selects pods.
    Selecting(WorkloadSelector),
}

impl WatchedObject {
    /// Its kind.
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::Pod(_) => ObjectKind::Pod,
            Self::Node(_) => ObjectKind::Node,
            Self::DaemonSet(_) => ObjectKind::DaemonSet,
            Self::Pdb(_) => ObjectKind::Pdb,
            Self::VolumeClaim(_) => ObjectKind::VolumeClaim,
            Self::Volume(_) => ObjectKind::Volume,
            Self::StorageClass(_) => ObjectKind::StorageClass,
            Self::CsiNode(_) => ObjectKind::CsiNode,
            Self::Namespace(_) => ObjectKind::Namespace,
            Self::Selecting(workload) => workload.kind,
        }
    }

    /// Its key. The namespace is empty for cluster-scoped objects.
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Pod(pod) => pod.key.clone(),
            Self::Node(node) => ObjectKey::new("", node.name.as_str()),
            Self::DaemonSet(set) => set.key.clone(),
            Self::Pdb(pdb) => pdb.key.clone(),
            Self::VolumeClaim(claim) => claim.key.clone(),
            Self::Volume(volume) => ObjectKey::new("", volume.name.as_str()),
            Self::StorageClass(class) => ObjectKey::new("", class.name.as_str()),
            Self::CsiNode(node) => ObjectKey::new("", node.name.as_str()),
            Self::Namespace(namespace) => ObjectKey::new("", namespace.name.as_str()),
            Self::Selecting(workload) => workload.key.clone(),
        }
    }
}
