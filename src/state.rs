//! Ground truth of one cluster, built from events: plain structs, no locks.
//! It must not know what is decided from it.

pub mod unavailable_offerings;
pub mod selectors;
pub mod snapshot;
mod bound_pods;
mod node_usage;
mod disruption_cost;
pub mod sorted_map;
pub mod node_instances;
pub mod object_cache;
mod pdbs;
pub mod volume_topology;
pub mod watch_health;
pub mod node_claims;
pub mod cluster_identity;
mod reschedulable_pods;
pub mod node_capacity;
pub mod snapshot_builder;
pub mod nominations;
pub mod what_if;
pub mod early_binding;
pub mod disruption_blockers;
pub mod candidates;
pub mod drain_blockers;
pub mod stats;
pub mod pod_status;
#[cfg(test)]
pub(crate) mod fixtures;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::catalog::node_class::{ClassSupplies, Classes};
use crate::catalog::overlay::PoolCatalogs;
use crate::coordination::lease_annotations::LeaseAnnotations;
use crate::model::buffer::Buffer;
use crate::model::buffer_object::BufferObject;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetView;
use crate::model::id::{ClaimId, NodeName, PodKey, PoolName};
use crate::model::watched_object::WatchedObject;
use crate::state::candidates::{PendingApproval, RecentActions};
use crate::state::node_claims::NodeClaims;
use crate::state::nominations::is_over;
use crate::state::object_cache::ObjectCache;
use crate::state::unavailable_offerings::UnavailableOfferings;
use crate::state::watch_health::WatchHealth;

/// Everything known of one cluster; mutable only by its engine.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The configuration in force; overlays count once [`configure`](Self::configure) sets it.
    pub cluster: Arc<Cluster>,
    /// Instance types and prices, as the provider has them, with all that is reserved for any node
    /// class; set by [`stock`](Self::stock).
    pub catalog: Arc<Catalog>,
    /// Offerings not to ask for.
    pub holds: UnavailableOfferings,
    /// What the watches report.
    pub objects: ObjectCache,
    /// How far the watches can be believed.
    pub views: WatchHealth,
    /// Claims, instances and nodes.
    pub ledger: NodeClaims,
    /// What is known of the fleet; none where the cluster shares nothing with others.
    pub fleet: Option<Arc<FleetView>>,
    /// What is remembered of the cluster on its Lease.
    pub notes: LeaseAnnotations,
    /// What was done in the cluster lately, beside launches that instances tell of.
    pub recent: RecentActions,
    /// When this process first saw the cluster whole; what happened before is not known.
    pub started: Option<Timestamp>,
    /// CapacityBuffers of the cluster, by name; none before they were read.
    pub declared: Option<Vec<BufferObject>>,
    /// Nodes whose room a buffer needs, with the buffer's name, as last planned.
    pub held: BTreeMap<NodeName, String>,
    /// Pools of which nothing is moved to save something, since that came to nothing, and until
    /// when.
    pub resting: BTreeMap<PoolName, Timestamp>,
    /// Nodes that were only just made to save something, and until when they are left alone.
    pub fresh: BTreeMap<NodeName, Timestamp>,
    /// What another configuration has made due to leave and nobody has accepted yet.
    pub unaccepted: Option<PendingApproval>,
    /// The catalog without what is reserved for node classes; none where nothing is.
    plain: Option<Arc<Catalog>>,
    classes: Classes,
    /// What node classes and overlays make of the catalog: kept, since views are made far more
    /// often than any of them changes.
    overlaid: PoolCatalogs,
    nominated: BTreeMap<NodeName, Timestamp>,
    /// Whether nodes count as claims by their labels, since no instances can be listed.
    offline: bool,
}

impl State {
    /// The state of a cluster that is not watched but given at once, for offline plans.
    pub fn offline(
        cluster: Arc<Cluster>,
        catalog: Arc<Catalog>,
        objects: Vec<WatchedObject>,
        now: Timestamp,
    ) -> Self {
        let mut state = Self {
            overlaid: PoolCatalogs::new(&catalog, &cluster),
            cluster,
            catalog,
            offline: true,
            ..Self::default()
        };
        for object in objects {
            state.objects.apply(object, now);
        }
        state.objects.forget_changes();
        state
    }

    /// Takes all that was there when it was first watched to have been there for long, as a plan
    /// that is shown does.
    pub fn settle(&mut self) {
        self.objects.forget_changes();
        self.started = None;
    }

    /// Counts nodes as claims by their labels from here on, where instances cannot be listed.
    pub fn count_by_labels(&mut self) {
        self.offline = true;
    }

    /// Puts another configuration in force.
    pub fn configure(&mut self, cluster: Arc<Cluster>) {
        self.cluster = cluster;
        self.held.clear();
        self.see();
    }

    /// All buffers: those of the configuration, then those that objects declare.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let declared = self.declared.iter().flatten();
        let declared = declared.filter_map(BufferObject::wanted);
        self.cluster.buffers.iter().chain(declared)
    }

    /// Takes in other instance types and prices.
    pub fn stock(&mut self, catalog: Arc<Catalog>) {
        self.plain = None;
        self.catalog = catalog;
        self.reserve();
    }

    /// Takes in what the provider says of all node classes: pools of a class plan with what that
    /// has, and those of one that is not ready, or that the provider does not know, plan nothing.
    pub fn supply(&mut self, classes: Arc<ClassSupplies>) {
        self.classes.tell(classes);
        self.reserve();
    }

    /// Whether the provider has yet to be asked what node classes have.
    pub fn awaits_classes(&self) -> bool {
        self.classes.awaits()
    }

    /// What is paid is known of what is reserved for any class, too.
    fn reserve(&mut self) {
        let plain = self.plain.take().unwrap_or_else(|| self.catalog.clone());
        let mut reserved = self.classes.reservations();
        if reserved.is_empty() {
            self.catalog = plain;
        } else {
            reserved.extend(plain.reserved());
            self.catalog = Arc::new(plain.with_reservations(reserved));
            self.plain = Some(plain);
        }
        self.see();
    }

    fn see(&mut self) {
        let plain = self.plain.as_ref().unwrap_or(&self.catalog);
        let both = (plain, &self.catalog);
        self.overlaid = PoolCatalogs::of_classes(both, &self.cluster, &self.classes);
    }

    /// The instance types as a pool is to plan with them. What is paid stands in `catalog`.
    pub fn catalog_of(&self, pool: &PoolName) -> &Catalog {
        self.overlaid.get(pool.as_str()).unwrap_or(&self.catalog)
    }

    /// Whether overlays make another catalog for a pool.
    pub fn is_overlaid(&self, pool: &PoolName) -> bool {
        self.overlaid.get(pool.as_str()).is_some()
    }

    /// Expects pods on a node until a time.
    pub fn nominate(&mut self, node: NodeName, until: Timestamp) {
        let own = self.nominated.entry(node).or_insert(until);
        *own = (*own).max(until);
    }

    /// Until when pods are expected on a node.
    pub fn nominated_until(&self, node: &NodeName) -> Option<Timestamp> {
        self.nominated.get(node).copied()
    }

    /// When something is next held down no longer, or a node is free of pods that were expected.
    pub fn next_back(&self, now: Timestamp) -> Option<Timestamp> {
        let nominated = self.nominated.values().copied();
        let expected = nominated.filter(|until| *until > now).min();
        let back = [self.holds.next_end(now), expected, self.next_release(now)];
        back.into_iter().flatten().min()
    }

    /// Forgets what is over or belongs to nodes that are gone.
    pub fn expire(&mut self, now: Timestamp) {
        self.holds.expire(now);
        self.nominated.retain(|_, until| *until > now);
        self.objects.forget_gone_nodes();
        // Those that have to move come once all of their node have a place.
        let claims = self.ledger.claims.values();
        let over = claims.filter(|own| !own.pods.is_empty() && is_over(own, now));
        let over: Vec<(ClaimId, BTreeSet<PodKey>)> = over
            .map(|own| {
                let pods = own.pods.iter();
                let pods = pods.filter(|key| {
                    let pod = self.objects.pods.get(*key);
                    pod.is_some_and(|pod| !pod.is_waiting() && self.is_mover(pod, now))
                });
                (own.record.id.clone(), pods.cloned().collect())
            })
            .collect();
        for (id, pods) in over {
            if let Some(claim) = self.ledger.claims.get_mut(&id) {
                claim.pods = pods;
            }
        }
    }
}
