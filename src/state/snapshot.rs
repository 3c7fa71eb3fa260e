//! The read-only view for decisions: existing nodes, in-flight nodes and pending pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::catalog::overlay::PoolCatalogs;
use crate::model::affinity::PodTerm;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetView;
use crate::model::id::{ClaimId, NodeName, ObjectKey, PodKey, PoolName, ReservationId};
use crate::model::labels::Labels;
use crate::model::pod::{DaemonSet, Pod};
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::reservation::Reservation;
use crate::model::taint::Taint;
use crate::state::selectors::WorkloadSelectors;
use crate::state::unavailable_offerings::UnavailableOfferings;

/// A node, or a claim whose node does not exist yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeRef {
    /// A Node object.
    Node(NodeName),
    /// A claim without a Node yet.
    Claim(ClaimId),
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Claim(id) => write!(f, "claim {id}"),
        }
    }
}

/// An existing or in-flight node with its free capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingNode {
    /// The node or claim.
    pub host: NodeRef,
    /// Its labels as requirements, including the host name and
    /// [`NODE_NAME`](crate::model::labels::NODE_NAME). They are shared, because thousands of nodes
    /// have dozens of labels each, which rarely change between snapshots.
    pub labels: Arc<Requirements>,
    /// Its taints, except startup taints that are removed automatically.
    pub taints: Vec<Taint>,
    /// Allocatable, minus the requests of its pods and of expected DaemonSet pods.
    pub free: Resources,
    /// DaemonSets whose pods are expected, and whether they are certain for all offerings of the
    /// node.
    pub daemons: Vec<(ObjectKey, bool)>,
    /// Host ports in use: protocol, address (empty for all) and port.
    pub host_ports: BTreeSet<(String, String, u16)>,
    /// Whether the node is initialized. Initialized nodes are filled first.
    pub initialized: bool,
    /// Whether the node is filled after other initialized nodes, because it is empty and may be
    /// disrupted.
    pub idle: bool,
    /// Whether the node accepts pods. Otherwise it is being disrupted, cordoned or not managed, but
    /// topology rules include its pods.
    pub open: bool,
}

/// Bound pods with equal properties for topology rules, and their nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPodGroup<'a> {
    /// Their namespace.
    pub namespace: &'a str,
    /// Their labels.
    pub labels: &'a Labels,
    /// Their pod anti-affinity terms.
    pub anti_affinity: &'a [PodTerm],
    /// Whether the pods are being deleted. Topology spread does not count such pods, but affinity
    /// counts them.
    pub deleting: bool,
    /// Number of these pods by node name.
    pub nodes: Vec<(&'a NodeName, u32)>,
}

/// Requirements of the volumes of a pod on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRequirements {
    /// Why the pod cannot be placed anywhere now.
    pub fault: Option<String>,
    /// Alternative node labels with which all its volumes can be used. Empty means any node.
    pub alternatives: Vec<Requirements>,
    /// Number of attached volumes by CSI driver, as the resource
    /// [`ATTACHABLE`](crate::model::labels::ATTACHABLE) plus the driver. The same name in `free` of
    /// a node is the number of volumes that can still be attached; if `free` lacks the name, there
    /// is no limit. It is set only for drivers of pending pods.
    pub attached: BTreeMap<String, i64>,
}

/// The usage of one pool that its limits restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sum of the capacity of its nodes and claims.
    pub capacity: Resources,
    /// Number of nodes and claims.
    pub nodes: usize,
}

/// Capacity that buffers reserve now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BufferPods {
    /// The virtual pods of all buffers.
    pub pods: Vec<Pod>,
    /// Number of pods for which each buffer reserves capacity. `None` if the pod template is
    /// unknown. The total number of virtual pods is limited.
    pub wanted: BTreeMap<String, Option<u32>>,
    /// Nodes that could be disrupted if no buffer needed their capacity.
    pub idle: BTreeSet<NodeName>,
}

/// A view of one cluster at one time.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// The configuration in force.
    pub cluster: &'a Cluster,
    /// Instance types and prices, as the provider reports them.
    pub catalog: &'a Catalog,
    /// The catalogs of pools that node classes or price overlays change.
    pub overlaid: &'a PoolCatalogs,
    /// Unavailable offerings.
    pub holds: &'a UnavailableOfferings,
    /// The fleet view, or `None` if the cluster shares nothing.
    pub fleet: Option<&'a FleetView>,
    /// All nodes: initialized nodes first, then by name.
    pub rooms: Vec<ExistingNode>,
    /// Bound, active pods, without reschedulable pods that are pending or planned.
    pub residents: Vec<BoundPodGroup<'a>>,
    /// Pending pods by the node they are planned for. Their requests are subtracted from its
    /// capacity.
    pub promised: BTreeMap<NodeRef, Vec<&'a Pod>>,
    /// Volume requirements of pending pods.
    pub mounts: BTreeMap<&'a PodKey, VolumeRequirements>,
    /// Labels of namespaces.
    pub namespaces: BTreeMap<&'a str, &'a Labels>,
    /// Selectors for default topology spread.
    pub selectors: &'a WorkloadSelectors,
    /// Pending pods, including those of terminating nodes, sorted by key.
    pub pending: Vec<&'a Pod>,
    /// All reschedulable pods. kube-scheduler counts them on their current nodes.
    pub reschedulable: Vec<&'a Pod>,
    /// DaemonSets.
    pub daemon_sets: Vec<&'a DaemonSet>,
    /// Usage of each pool.
    pub usage: BTreeMap<PoolName, Usage>,
    /// Gangs with pending pods, by namespace and name. The value is the number of bound pods of the
    /// gang, without those that must move.
    pub gangs: BTreeMap<(&'a str, &'a str), usize>,
    /// Reservations with their remaining capacity.
    pub reservations: BTreeMap<ReservationId, Reservation>,
    /// Number of missing nodes of static pools.
    pub lacking: BTreeMap<PoolName, usize>,
    /// Capacity that buffers reserve.
    pub spare: BufferPods,
}

impl<'a> Snapshot<'a> {
    /// Returns the catalog of a pool for planning. List prices are in `catalog`.
    pub fn catalog_of(&self, pool: &PoolName) -> &'a Catalog {
        self.overlaid.get(pool.as_str()).unwrap_or(self.catalog)
    }
}
