//! State of one cluster, built from watch events and instance listings: plain structs, no locks.
//! This module makes no decisions.

// Offerings unavailable after a refusal (ICE).
pub mod unavailable_offerings;
// Selectors of Services and controllers.
pub mod selectors;
// The read-only input of decisions.
pub mod snapshot;
// Bound pods, grouped by the properties that topology rules use.
mod bound_pods;
// Requests of the pods of a node.
mod node_usage;
// Disruption cost of the pods of a node.
mod disruption_cost;
// Hash map with sorted iteration.
pub mod sorted_map;
// Nodes that share a providerID.
pub mod node_instances;
// Objects from watches, with the pods of each node.
pub mod object_cache;
// Index of PodDisruptionBudgets by pod.
mod pdbs;
// Volume constraints and attach limits.
pub mod volume_topology;
// Sync state of watches: listed, stale, incomplete.
pub mod watch_health;
// Claims joined with instances and Nodes.
pub mod node_claims;
// Identity of API server and instances.
pub mod cluster_identity;
// Pods of nodes that are being disrupted.
mod reschedulable_pods;
// Free capacity of existing and in-flight nodes.
pub mod node_capacity;
// Builds snapshots from the state.
pub mod snapshot_builder;
// Which pods are expected on which nodes.
pub mod nominations;
// Snapshot without some nodes.
pub mod what_if;
// Pods eligible for early binding.
pub mod early_binding;
// Occurrences of sweeps, and the nodes that they found.
pub mod sweeps;
// Blockers of the disruption of a node: PDBs, annotations, pods.
pub mod disruption_blockers;
// Candidates for disruption.
pub mod candidates;
// Blockers of a drain.
pub mod drain_blockers;
// Totals for status and metrics.
pub mod stats;
// Why a pod is pending, or why it is not.
pub mod pod_status;
// Fixtures for tests of the state.
#[cfg(test)]
pub(crate) mod fixtures;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
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
use crate::model::id::{ClaimId, NodeClassName, NodeName, PodKey, PoolName};
use crate::model::watched_object::WatchedObject;
use crate::state::candidates::{PendingApproval, RecentActions};
use crate::state::node_claims::{NodeClaim, NodeClaims};
use crate::state::nominations::is_nomination_over;
use crate::state::object_cache::ObjectCache;
use crate::state::sweeps::Sweeps;
use crate::state::unavailable_offerings::UnavailableOfferings;
use crate::state::watch_health::WatchHealth;

/// State of one cluster. Only the engine of the cluster modifies this state.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The configuration in force. Its price overlays apply once [`Self::apply_configuration`] has
    /// set it.
    pub cluster: Arc<Cluster>,
    /// Instance types and prices of the provider, including reserved capacity of all node classes;
    /// set by [`Self::apply_catalog`].
    pub catalog: Arc<Catalog>,
    /// Unavailable offerings.
    pub holds: UnavailableOfferings,
    /// Objects reported by watches.
    pub objects: ObjectCache,
    /// Health of the watches.
    pub views: WatchHealth,
    /// Claims, instances and nodes.
    pub ledger: NodeClaims,
    /// The fleet view, or `None` if the cluster shares nothing.
    pub fleet: Option<Arc<FleetView>>,
    /// Annotations of the Lease.
    pub notes: LeaseAnnotations,
    /// The sweeps: which have run, and which nodes they found.
    pub sweeps: Sweeps,
    /// Recent actions in the cluster, except launches, which instances record.
    pub recent: RecentActions,
    /// When the view was first complete. Earlier events are unknown.
    pub started: Option<Timestamp>,
    /// CapacityBuffer objects, by name. `None` before the first listing.
    pub declared: Option<Vec<BufferObject>>,
    /// Nodes whose capacity a buffer uses, with the name of the buffer, as last planned.
    pub held: BTreeMap<NodeName, String>,
    /// Pools in consolidation back-off, with the end of the back-off.
    pub resting: BTreeMap<PoolName, Timestamp>,
    /// Nodes recently launched to save cost, with the end of their protection.
    pub fresh: BTreeMap<NodeName, Timestamp>,
    /// Disruptions by a changed configuration that wait for approval.
    pub unaccepted: Option<PendingApproval>,
    /// The catalog without reserved capacity of node classes. `None` if no node class has reserved
    /// capacity.
    catalog_without_reservations: Option<Arc<Catalog>>,
    classes: Classes,
    /// Catalogs of pools with node classes and price overlays. They are cached, because snapshots
    /// are built far more often than these change.
    overlaid: PoolCatalogs,
    nominated: BTreeMap<NodeName, Timestamp>,
    /// Whether nodes count as claims by their labels, because instances cannot be listed.
    offline: bool,
}

impl State {
    /// Creates the state of a cluster for offline plans, with all objects loaded together.
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

    /// Treats all initial objects as old, as a displayed plan does.
    pub fn forget_observed_changes(&mut self) {
        self.objects.forget_changes();
        self.started = None;
    }

    /// From now on, counts nodes as claims by their labels, because instances cannot be listed.
    pub fn count_by_labels(&mut self) {
        self.offline = true;
    }

    /// Applies a changed configuration.
    pub fn apply_configuration(&mut self, cluster: Arc<Cluster>) {
        // The change may be the repair of what EC2 refused.
        let known = mem::replace(&mut self.cluster, cluster);
        let class_of = |cluster: &Cluster, name: &NodeClassName| {
            cluster.node_classes.iter().find(|class| class.name == *name).cloned()
        };
        let cluster = &self.cluster;
        self.holds.retain_classes(|name| class_of(&known, name) == class_of(cluster, name));
        self.held.clear();
        self.update_pool_catalogs();
    }

    /// Returns all buffers: of the configuration, then of CapacityBuffer objects.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let declared = self.declared.iter().flatten();
        let declared = declared.filter_map(BufferObject::declared_buffer);
        self.cluster.buffers.iter().chain(declared)
    }

    /// Updates instance types and prices.
    pub fn apply_catalog(&mut self, catalog: Arc<Catalog>) {
        self.catalog_without_reservations = None;
        self.catalog = catalog;
        self.add_reserved_capacity();
    }

    /// Updates the supply of node classes. Nodes of a pool are planned with the supply of its
    /// class. No node is planned for a class that is not ready or unknown to the provider.
    pub fn apply_class_supplies(&mut self, classes: Arc<ClassSupplies>) {
        self.classes.set_supplies(classes);
        self.add_reserved_capacity();
    }

    /// Returns whether the provider has not resolved the node classes yet.
    pub fn awaits_classes(&self) -> bool {
        self.classes.has_unresolved()
    }

    /// Returns whether the node class of a pool is not ready. The drift of its nodes is unknown.
    pub fn has_unready_class(&self, pool: &PoolName) -> bool {
        self.overlaid.launch_fault(pool.as_str()).is_some()
    }

    /// Adds reserved capacity of all node classes to the catalog, so that its prices are known.
    fn add_reserved_capacity(&mut self) {
        let catalog = self.catalog_without_reservations.take();
        let catalog = catalog.unwrap_or_else(|| self.catalog.clone());
        let mut reserved = self.classes.all_reservations();
        if reserved.is_empty() {
            self.catalog = catalog;
        } else {
            reserved.extend(catalog.reserved_offerings());
            self.catalog = Arc::new(catalog.with_reservations(reserved));
            self.catalog_without_reservations = Some(catalog);
        }
        self.update_pool_catalogs();
    }

    fn update_pool_catalogs(&mut self) {
        let catalog = self.catalog_without_reservations.as_ref().unwrap_or(&self.catalog);
        self.overlaid =
            PoolCatalogs::from_classes(catalog, &self.catalog, &self.cluster, &self.classes);
    }

    /// Returns the catalog of a pool for planning. List prices are in `catalog`.
    pub fn catalog_of(&self, pool: &PoolName) -> &Catalog {
        self.overlaid.get(pool.as_str()).unwrap_or(&self.catalog)
    }

    /// Returns whether a pool has its own catalog.
    pub fn is_overlaid(&self, pool: &PoolName) -> bool {
        self.overlaid.get(pool.as_str()).is_some()
    }

    /// Records that pods are expected on a node until a time.
    pub fn nominate(&mut self, node: NodeName, until: Timestamp) {
        let known = self.nominated.entry(node).or_insert(until);
        *known = (*known).max(until);
    }

    /// Returns until when pods are expected on a node.
    pub fn nominated_until(&self, node: &NodeName) -> Option<Timestamp> {
        self.nominated.get(node).copied()
    }

    /// Returns when the next offering becomes available again, or the next nomination period ends.
    pub fn next_available_at(&self, now: Timestamp) -> Option<Timestamp> {
        let nominated = self.nominated.values().copied();
        let expected = nominated.filter(|until| *until > now).min();
        let ends = [self.holds.next_end(now), expected, self.next_nomination_end(now)];
        ends.into_iter().flatten().min()
    }

    /// Removes expired entries and data of deleted nodes.
    pub fn expire(&mut self, now: Timestamp) {
        self.holds.expire(now);
        self.nominated.retain(|_, until| *until > now);
        self.objects.forget_gone_nodes();
        // Reschedulable pods are bound once all pods of their node are scheduled.
        let claims = self.ledger.claims.values();
        let expired =
            claims.filter(|claim| !claim.pods.is_empty() && is_nomination_over(claim, now));
        let expired: Vec<&NodeClaim> = expired.collect();
        // Until the pods are planned again, their node is kept.
        let kept = expired.iter().filter(|claim| self.pods_of(claim).next().is_some());
        let kept = kept.filter_map(|claim| {
            let until = claim.since.checked_add(self.node_nomination()).ok()?;
            Some((claim.node.clone()?, until))
        });
        let kept: Vec<(NodeName, Timestamp)> = kept.filter(|(_, until)| *until > now).collect();
        let expired: Vec<(ClaimId, BTreeSet<PodKey>)> = expired
            .into_iter()
            .map(|claim| {
                let pods = claim.pods.iter().filter(|key| {
                    let pod = self.objects.pods.get(*key);
                    pod.is_some_and(|pod| !pod.is_waiting() && self.is_reschedulable(pod, now))
                });
                (claim.record.id.clone(), pods.cloned().collect())
            })
            .collect();
        for (node, until) in kept {
            self.nominate(node, until);
        }
        for (id, pods) in expired {
            if let Some(claim) = self.ledger.claims.get_mut(&id) {
                claim.pods = pods;
            }
        }
    }
}
