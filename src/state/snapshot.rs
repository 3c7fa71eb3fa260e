//! The read-only view that decisions receive: what runs, what is coming, what waits.
//! It must not know how the view is kept up to date.

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

/// What can carry a pod: a node, or a claim whose node is still to come.
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

/// Room for pods on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingNode {
    /// Whose room it is.
    pub host: NodeRef,
    /// Its labels as requirements. Those of a node say its host name and
    /// [`NODE_NAME`](crate::model::labels::NODE_NAME). Shared, since thousands of nodes have dozens
    /// each and few change from one view to the next.
    pub labels: Arc<Requirements>,
    /// The taints that count: those of a starting node that go by themselves are left out.
    pub taints: Vec<Taint>,
    /// Allocatable, less the requests of its pods, less what daemons still to come will ask for.
    pub free: Resources,
    /// DaemonSets whose pods are still to come, and whether they are sure to, whatever the node
    /// turns out to be.
    pub daemons: Vec<(ObjectKey, bool)>,
    /// Host ports taken: protocol, address (empty for all) and port.
    pub host_ports: BTreeSet<(String, String, u16)>,
    /// Whether it runs pods already; hosts that do are filled first.
    pub initialized: bool,
    /// Whether it is filled after other initialized hosts: nothing runs there, and it may be ended.
    pub idle: bool,
    /// Whether it takes pods. One that does not is leaving, cordoned or not ours to fill, but its
    /// pods count where pods are spread or kept apart.
    pub open: bool,
}

/// Pods that are alike to every rule about the places of pods, and the nodes they are bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPodGroup<'a> {
    /// Their namespace.
    pub namespace: &'a str,
    /// Their labels.
    pub labels: &'a Labels,
    /// Pods they must be away from.
    pub anti_affinity: &'a [PodTerm],
    /// Whether they are being deleted: spread does not count them, affinity does.
    pub deleting: bool,
    /// How many of them are on which nodes, by name.
    pub nodes: Vec<(&'a NodeName, u32)>,
}

/// What the volumes of a pod ask of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRequirements {
    /// Why the pod cannot be placed anywhere now.
    pub fault: Option<String>,
    /// Labels of nodes where all its volumes can be used: any one of these. None means anywhere.
    pub alternatives: Vec<Requirements>,
    /// How many volumes of a CSI driver it attaches, by the resource
    /// [`ATTACHABLE`](crate::model::labels::ATTACHABLE) and the driver. On a room the same name
    /// stands in `free` for how many more can be attached; one without the name has no limit. It
    /// stands there only where a pending pod attaches volumes of the driver.
    pub attached: BTreeMap<String, i64>,
}

/// What one pool has in use: everything that counts towards its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sum of the capacity of its nodes and claims.
    pub capacity: Resources,
    /// Number of nodes and claims.
    pub nodes: usize,
}

/// The room that buffers keep free now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BufferPods {
    /// The virtual pods that keep it, of all buffers.
    pub pods: Vec<Pod>,
    /// For how many pods each buffer is to keep room; none where it is not known what these are
    /// like. Of all together no more virtual pods are made than a plan may have.
    pub wanted: BTreeMap<String, Option<u32>>,
    /// Nodes that could leave if no buffer needed their room.
    pub idle: BTreeSet<NodeName>,
}

/// A view of one cluster at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// The configuration in force.
    pub cluster: &'a Cluster,
    /// Instance types and prices, as the provider has them.
    pub catalog: &'a Catalog,
    /// The same as pools are to plan with it, for those that node classes or overlays concern.
    pub overlaid: &'a PoolCatalogs,
    /// Offerings not to ask for.
    pub holds: &'a UnavailableOfferings,
    /// What is known of the fleet; none where the cluster shares nothing with others.
    pub fleet: Option<&'a FleetView>,
    /// All hosts: initialized ones first, then by host.
    pub rooms: Vec<ExistingNode>,
    /// Pods that are bound and have not ended, without those that have to move and are pending or
    /// promised.
    pub residents: Vec<BoundPodGroup<'a>>,
    /// Pods that wait for a host they are planned onto, by host. Their requests are taken out of
    /// its room already.
    pub promised: BTreeMap<NodeRef, Vec<&'a Pod>>,
    /// What volumes ask for, of the pending pods that have any.
    pub mounts: BTreeMap<&'a PodKey, VolumeRequirements>,
    /// Labels of namespaces.
    pub namespaces: BTreeMap<&'a str, &'a Labels>,
    /// What selects pods, where pods are spread by default.
    pub selectors: &'a WorkloadSelectors,
    /// Pods that wait for capacity, those of leaving nodes included, sorted by key.
    pub pending: Vec<&'a Pod>,
    /// Pods that have to move, planned for or not: where they are they count for a scheduler.
    pub movers: Vec<&'a Pod>,
    /// DaemonSets.
    pub daemon_sets: Vec<&'a DaemonSet>,
    /// What each pool has in use.
    pub usage: BTreeMap<PoolName, Usage>,
    /// Namespace and name of the gangs that pending pods are of, and how many of their pods are
    /// bound and stay.
    pub gangs: BTreeMap<(&'a str, &'a str), usize>,
    /// Reservations, with what is left of each when all that was given out is taken off.
    pub reservations: BTreeMap<ReservationId, Reservation>,
    /// How many nodes static pools lack, those that do.
    pub lacking: BTreeMap<PoolName, usize>,
    /// The room that buffers keep free.
    pub spare: BufferPods,
}

impl<'a> Snapshot<'a> {
    /// The instance types as a pool is to plan with them. What is paid stands in `catalog`.
    pub fn catalog_of(&self, pool: &PoolName) -> &'a Catalog {
        self.overlaid.get(pool.as_str()).unwrap_or(self.catalog)
    }
}
