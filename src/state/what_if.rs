//! The view in which nodes can be thought away, to see what that would cost.
//! It must not know which of them are worth it.

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

/// A snapshot, and what would change in it if nodes that stay left.
#[derive(Clone, Debug)]
pub struct WhatIf<'a> {
    /// The view of this moment. What waits is there to be counted, not to be placed.
    pub snapshot: Snapshot<'a>,
    /// What each node would leave behind that takes pods now.
    pub tenancies: BTreeMap<&'a NodeName, NodeRemoval<'a>>,
    /// All pods of these, by key, each with the place of its node among them.
    tenants: Vec<(&'a Pod, usize)>,
}

/// What a node would leave behind.
#[derive(Clone, Debug)]
pub struct NodeRemoval<'a> {
    /// Its pool.
    pub pool: PoolName,
    /// Pods that would need another place, by key.
    pub pods: Vec<&'a Pod>,
    /// A pod that nobody would make anew, or plan for.
    pub stray: Option<PodKey>,
    /// What it takes of the limits of its pool.
    pub capacity: Resources,
    /// What it costs as its pool plans, overlays counted; none where the catalog does not know.
    pub price: Option<Price>,
}

impl State {
    /// The field of this moment.
    pub fn field(&self, now: Timestamp) -> WhatIf<'_> {
        let claims = self.ledger.claims.values();
        let taken = claims.filter(|own| own.takes_pods());
        let taken = taken.filter_map(|own| Some((self.node_of(own)?, Some(own))));
        let open = |node: &&Node| !node.leaves();
        let claimless = self.claimless_nodes().filter(open).map(|own| (own, None));
        let mut own: Vec<(&NodeName, NodeRemoval<'_>)> = taken
            .chain(claimless)
            .map(|(node, claim)| (&node.name, self.tenancy(node, claim)))
            .collect();
        own.sort_by_key(|own| own.0);
        own.dedup_by_key(|own| own.0);
        let tenants = self.tenants(&mut own, now);
        let pods: Vec<&Pod> = tenants.iter().map(|(pod, _)| *pod).collect();
        WhatIf {
            snapshot: self.view(&pods, now),
            tenancies: own.into_iter().collect(),
            tenants,
        }
    }

    fn tenancy<'a>(&'a self, node: &'a Node, claim: Option<&'a NodeClaim>) -> NodeRemoval<'a> {
        let pool = claim.map(|own| own.record.pool.clone());
        let pool = pool.or_else(|| node.pool()).unwrap_or_default();
        NodeRemoval {
            stray: None,
            pods: Vec::new(),
            capacity: claim.map_or_else(|| node.capacity.clone(), |own| self.capacity_of(own)),
            price: self.price_in(self.catalog_of(&pool), node, claim),
            pool,
        }
    }

    /// Fills in what pods these nodes would leave behind. All pods are gone through once: to look
    /// each up by its node takes far longer.
    fn tenants<'a>(
        &'a self,
        all: &mut [(&'a NodeName, NodeRemoval<'a>)],
        now: Timestamp,
    ) -> Vec<(&'a Pod, usize)> {
        let names = all.iter().enumerate().map(|(at, own)| (own.0, at));
        let places: HashMap<&NodeName, usize> = names.collect();
        let mut tenants = Vec::new();
        for pod in self.objects.pods.values() {
            let place = pod.node.as_ref().and_then(|node| places.get(node));
            let Some(place) = place.copied() else {
                continue;
            };
            let own = &mut all[place].1;
            if self.is_tenant(pod, now) {
                own.pods.push(pod);
                tenants.push((pod, place));
            } else if pod.occupies_node() && pod.deleting.is_none() {
                own.stray.get_or_insert_with(|| pod.key.clone());
            }
        }
        tenants
    }
}

impl<'a> WhatIf<'a> {
    /// The snapshot as it would be without these nodes: their pods are to be placed, with those
    /// that have to move already. Those that wait without a place are left out: they have their
    /// answer, which does not depend on who leaves. `closed` take no pods, nor does what is
    /// still starting.
    pub fn without(&self, nodes: &HashSet<&NodeName>, closed: &HashSet<&NodeName>) -> Snapshot<'a> {
        let own = &self.snapshot;
        let stays = |room: &&ExistingNode| match &room.host {
            NodeRef::Node(name) => !nodes.contains(name),
            NodeRef::Claim(_) => true,
        };
        let opened = |room: &ExistingNode| {
            let closed = matches!(&room.host, NodeRef::Node(name)
                if !room.initialized || closed.contains(name));
            ExistingNode {
                open: room.open && !closed,
                ..room.clone()
            }
        };
        let left = |own: &BoundPodGroup<'a>| {
            let stay = own.nodes.iter().filter(|(name, _)| !nodes.contains(name));
            let nodes: Vec<(&NodeName, u32)> = stay.copied().collect();
            (!nodes.is_empty()).then_some(BoundPodGroup { nodes, ..*own })
        };
        let mut snapshot = Snapshot {
            rooms: own.rooms.iter().filter(stays).map(opened).collect(),
            residents: own.residents.iter().filter_map(left).collect(),
            pending: self.pending_without(nodes),
            movers: Vec::new(),
            promised: own.promised.clone(),
            mounts: own.mounts.clone(),
            namespaces: own.namespaces.clone(),
            daemon_sets: own.daemon_sets.clone(),
            usage: own.usage.clone(),
            gangs: own.gangs.clone(),
            reservations: own.reservations.clone(),
            lacking: BTreeMap::new(),
            spare: BufferPods {
                pods: Vec::new(),
                wanted: BTreeMap::new(),
                idle: own.spare.idle.clone(),
            },
            ..*own
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

    /// Pods that have to move already, and those of these nodes, by key.
    pub fn pending_without(&self, nodes: &HashSet<&NodeName>) -> Vec<&'a Pod> {
        let leave = self.tenancies.keys().map(|name| nodes.contains(name));
        let leave: Vec<bool> = leave.collect();
        let movers = self.snapshot.pending.iter().copied();
        let mut pending: Vec<&Pod> = movers.filter(|pod| pod.node.is_some()).collect();
        let sorted = pending.is_empty();
        let tenants = self.tenants.iter().filter(|(_, at)| leave[*at]);
        pending.extend(tenants.map(|(pod, _)| *pod));
        if !sorted {
            // Two runs, which a stable sort finds.
            pending.sort_by(|one, other| one.key.cmp(&other.key));
        }
        pending
    }
}
