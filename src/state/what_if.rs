//! The what-if snapshot: evaluates the cost of a cluster without some of its nodes.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use jiff::Timestamp;

use crate::model::id::{NodeName, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::state::State;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot::{BoundPodGroup, BufferPods, ExistingNode, NodeRef, Snapshot};

/// A snapshot, and how it changes if nodes are removed.
#[derive(Clone, Debug)]
pub struct WhatIf<'a> {
    /// The snapshot of this time. Its pending pods are only counted and have no places.
    pub snapshot: Snapshot<'a>,
    /// The effect of removing each node that accepts pods now.
    pub tenancies: BTreeMap<&'a NodeName, NodeRemoval<'a>>,
    /// Pods of these nodes by key, with the index of their node.
    reschedulable: Vec<(&'a Pod, usize)>,
}

/// The effect of removing a node.
#[derive(Clone, Debug)]
pub struct NodeRemoval<'a> {
    /// Its pool.
    pub pool: PoolName,
    /// Pods to reschedule, by key.
    pub pods: Vec<&'a Pod>,
    /// A pod that no controller would recreate, or that uses an unsupported scheduler.
    pub unmanaged_pod: Option<PodKey>,
    /// The capacity of the node that its pool counts towards limits.
    pub capacity: Resources,
    /// Its price for planning with overlays. `None` if the catalog does not contain it.
    pub price: Option<Price>,
}

impl State {
    /// Builds the what-if view of this time.
    pub fn what_if(&self, now: Timestamp) -> WhatIf<'_> {
        let claims = self.ledger.claims.values();
        let taken = claims.filter(|claim| claim.takes_pods());
        let taken = taken.filter_map(|claim| Some((self.node_of(claim)?, Some(claim))));
        let claimless =
            self.claimless_nodes().filter(|node| !node.is_leaving()).map(|node| (node, None));
        let mut removals: Vec<(&NodeName, NodeRemoval<'_>)> = taken
            .chain(claimless)
            .map(|(node, claim)| (&node.name, self.node_removal(node, claim)))
            .collect();
        removals.sort_by_key(|removal| removal.0);
        removals.dedup_by_key(|removal| removal.0);
        let reschedulable = self.collect_pods(&mut removals, now);
        let pods: Vec<&Pod> = reschedulable.iter().map(|(pod, _)| *pod).collect();
        WhatIf {
            snapshot: self.snapshot_without(&pods, now),
            tenancies: removals.into_iter().collect(),
            reschedulable,
        }
    }

    fn node_removal<'a>(&'a self, node: &'a Node, claim: Option<&'a NodeClaim>) -> NodeRemoval<'a> {
        let pool = claim.map(|claim| claim.record.pool.clone());
        let pool = pool.or_else(|| node.pool_name()).unwrap_or_default();
        NodeRemoval {
            unmanaged_pod: None,
            pods: Vec::new(),
            capacity: claim.map_or_else(|| node.capacity.clone(), |claim| self.capacity_of(claim)),
            price: self.price_in(self.catalog_of(&pool), node, claim),
            pool,
        }
    }

    /// Collects the pods of these nodes in one pass over all pods. Looking up each pod by node
    /// takes far longer.
    fn collect_pods<'a>(
        &'a self,
        removals: &mut [(&'a NodeName, NodeRemoval<'a>)],
        now: Timestamp,
    ) -> Vec<(&'a Pod, usize)> {
        let names = removals.iter().enumerate().map(|(index, removal)| (removal.0, index));
        let places: HashMap<&NodeName, usize> = names.collect();
        let mut reschedulable = Vec::new();
        for pod in self.objects.pods.values() {
            let place = pod.node.as_ref().and_then(|node| places.get(node));
            let Some(place) = place.copied() else {
                continue;
            };
            let removal = &mut removals[place].1;
            if self.needs_capacity_elsewhere(pod, now) {
                removal.pods.push(pod);
                reschedulable.push((pod, place));
            } else if pod.occupies_node() && pod.deleting.is_none() {
                removal.unmanaged_pod.get_or_insert_with(|| pod.key.clone());
            }
        }
        reschedulable
    }
}

impl<'a> WhatIf<'a> {
    /// Returns the snapshot without these nodes: their pods, and the pods that already must move,
    /// are to be placed. Unschedulable pods are excluded, because their result does not depend on
    /// the removed nodes. Nodes in `closed` and nodes that are still starting accept no pods.
    pub fn without_nodes(
        &self,
        nodes: &HashSet<&NodeName>,
        closed: &HashSet<&NodeName>,
    ) -> Snapshot<'a> {
        let before = &self.snapshot;
        let mut snapshot = Snapshot {
            rooms: before
                .rooms
                .iter()
                .filter(|room| match &room.host {
                    NodeRef::Node(name) => !nodes.contains(name),
                    NodeRef::Claim(_) => true,
                })
                .map(|room| {
                    let closed = matches!(&room.host, NodeRef::Node(name)
                if !room.initialized || closed.contains(name));
                    ExistingNode { open: room.open && !closed, ..room.clone() }
                })
                .collect(),
            residents: before
                .residents
                .iter()
                .filter_map(|group| {
                    let stay = group.nodes.iter().filter(|(name, _)| !nodes.contains(name));
                    let nodes: Vec<(&NodeName, u32)> = stay.copied().collect();
                    (!nodes.is_empty()).then_some(BoundPodGroup { nodes, ..*group })
                })
                .collect(),
            pending: self.pending_without(nodes),
            reschedulable: Vec::new(),
            promised: before.promised.clone(),
            mounts: before.mounts.clone(),
            namespaces: before.namespaces.clone(),
            daemon_sets: before.daemon_sets.clone(),
            usage: before.usage.clone(),
            gangs: before.gangs.clone(),
            reservations: before.reservations.clone(),
            lacking: BTreeMap::new(),
            spare: BufferPods {
                pods: Vec::new(),
                wanted: BTreeMap::new(),
                idle: before.spare.idle.clone(),
            },
            ..*before
        };
        let leave = self.tenancies.iter();
        for (_, tenancy) in leave.filter(|(name, _)| nodes.contains(*name)) {
            if let Some(usage) = snapshot.usage.get_mut(&tenancy.pool) {
                usage.nodes = usage.nodes.saturating_sub(1);
                usage.capacity.subtract(&tenancy.capacity);
            }
            if snapshot.gangs.is_empty() {
                continue;
            }
            for gang in tenancy.pods.iter().filter_map(|pod| pod.gang_key()) {
                if let Some(count) = snapshot.gangs.get_mut(&gang) {
                    *count = count.saturating_sub(1);
                }
            }
        }
        snapshot
    }

    /// Returns the pods that already must move and those of these nodes, by key.
    pub fn pending_without(&self, nodes: &HashSet<&NodeName>) -> Vec<&'a Pod> {
        let leave = self.tenancies.keys().map(|name| nodes.contains(name));
        let leave: Vec<bool> = leave.collect();
        let reschedulable = self.snapshot.pending.iter().copied();
        let mut pending: Vec<&Pod> = reschedulable.filter(|pod| pod.node.is_some()).collect();
        let sorted = pending.is_empty();
        let reschedulable = self.reschedulable.iter().filter(|(_, at)| leave[*at]);
        pending.extend(reschedulable.map(|(pod, _)| *pod));
        if !sorted {
            // The pods are two sorted lists in sequence, which a stable sort merges quickly.
            pending.sort_by(|one, other| one.key.cmp(&other.key));
        }
        pending
    }
}
