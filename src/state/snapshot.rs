//! The read-only view that decisions receive: what runs, what is coming, what waits.
//! It must not know how the view is kept up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::instance::Price;
use crate::model::pod::{DaemonSet, Pod};
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::taint::Taint;
use crate::state::holds::Holds;

/// What can carry a pod: a node, or a claim whose node is still to come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A Node object.
    Node(NodeName),
    /// A claim without a Node yet.
    Claim(ClaimId),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Claim(id) => write!(f, "claim {id}"),
        }
    }
}

/// Room for pods on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Whose room it is.
    pub host: Host,
    /// Its labels as requirements, host name included.
    pub labels: Requirements,
    /// The taints that count: those of a starting node that go by themselves are left out.
    pub taints: Vec<Taint>,
    /// Allocatable, less the requests of its pods, less what daemons still to come will ask for.
    pub free: Resources,
    /// Host ports taken: protocol, address (empty for all) and port.
    pub host_ports: BTreeSet<(String, String, u16)>,
    /// Whether it runs pods already; hosts that do are filled first.
    pub initialized: bool,
}

/// What one pool has in use: everything that counts towards its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sum of the capacity of its nodes and claims.
    pub capacity: Resources,
    /// Number of nodes and claims.
    pub nodes: usize,
}

/// A view of one cluster at one moment. Hosts that are leaving are not in it.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// The configuration in force.
    pub cluster: &'a Cluster,
    /// Instance types and prices.
    pub catalog: &'a Catalog,
    /// Offerings not to ask for.
    pub holds: &'a Holds,
    /// Hosts with room: initialized ones first, then by host.
    pub rooms: Vec<Room>,
    /// Pods that wait for capacity, those of leaving nodes included, sorted by key.
    pub pending: Vec<&'a Pod>,
    /// DaemonSets.
    pub daemon_sets: Vec<&'a DaemonSet>,
    /// What each pool has in use.
    pub usage: BTreeMap<PoolName, Usage>,
}

/// Who might leave one cluster at one moment, and who does. Made much more often than a snapshot,
/// and much cheaper.
#[derive(Clone, Debug)]
pub struct Roster<'a> {
    /// The configuration in force.
    pub cluster: &'a Cluster,
    /// Nodes that might leave on purpose, by name.
    pub candidates: Vec<Candidate>,
    /// How many nodes of each pool are leaving on purpose already.
    pub leaving: BTreeMap<PoolName, usize>,
}

/// A node that might leave on purpose, and what speaks for and against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its claim; none in an offline plan.
    pub claim: Option<ClaimId>,
    /// The node.
    pub node: NodeName,
    /// Its pool.
    pub pool: PoolName,
    /// When it was initialized; none while it is not.
    pub initialized: Option<Timestamp>,
    /// Whether its kubelet is well.
    pub ready: bool,
    /// When a pod last came or went, or it was initialized.
    pub changed: Option<Timestamp>,
    /// Pods on it that are neither daemons nor mirrors nor ended.
    pub pods: usize,
    /// Whether pods are expected on it.
    pub nominated: bool,
    /// Why it must not be disrupted, if its annotations say so.
    pub protected: Option<String>,
    /// What it costs, if the catalog knows it.
    pub price: Option<Price>,
}
