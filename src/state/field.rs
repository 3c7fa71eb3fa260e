//! The view in which nodes can be thought away, to see what that would cost.
//! It must not know which of them are worth it.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;

use crate::model::id::{NodeName, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::state::State;
use crate::state::ledger::Claim;
use crate::state::snapshot::{Host, Resident, Snapshot};

/// A snapshot, and what would change in it if nodes that stay left.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    /// The view of this moment. What waits is there to be counted, not to be placed.
    pub snapshot: Snapshot<'a>,
    /// What each node would leave behind that takes pods now.
    pub tenancies: BTreeMap<&'a NodeName, Tenancy<'a>>,
}

/// What a node would leave behind.
#[derive(Clone, Debug)]
pub struct Tenancy<'a> {
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
    pub fn field(&self, now: Timestamp) -> Field<'_> {
        let claims = self.ledger.claims.values();
        let taken = claims.filter(|own| own.takes_pods());
        let taken = taken.filter_map(|own| Some((self.node_of(own)?, Some(own))));
        let open = |node: &&Node| node.deleting.is_none() && !node.has_disrupted_taint();
        let claimless = self.claimless_nodes().filter(open).map(|own| (own, None));
        let tenancies = taken.chain(claimless);
        let tenancies: BTreeMap<&NodeName, Tenancy<'_>> = tenancies
            .map(|(node, claim)| (&node.name, self.tenancy(node, claim)))
            .collect();
        let tenants: Vec<&Pod> = tenancies
            .values()
            .flat_map(|own| own.pods.iter().copied())
            .collect();
        Field {
            snapshot: self.view(&tenants, now),
            tenancies,
        }
    }

    fn tenancy<'a>(&'a self, node: &'a Node, claim: Option<&'a Claim>) -> Tenancy<'a> {
        let pool = claim.map(|own| own.record.pool.clone());
        let pool = pool.or_else(|| node.pool()).unwrap_or_default();
        let mut pods: Vec<&Pod> = self.tenants_of(node).collect();
        pods.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let all = self.objects.pods_on(node.name.as_str());
        let mut stays = all.filter(|pod| pod.occupies_node() && pod.deleting.is_none());
        let stray = stays.find(|pod| {
            let by_key = pods.binary_search_by(|own| own.key.cmp(&pod.key));
            by_key.is_err()
        });
        Tenancy {
            stray: stray.map(|pod| pod.key.clone()),
            pods,
            capacity: claim.map_or_else(|| node.capacity.clone(), |own| self.capacity_of(own)),
            price: self.price_in(self.catalog_of(&pool), node, claim),
            pool,
        }
    }
}

impl<'a> Field<'a> {
    /// The snapshot as it would be without these nodes: their pods are to be placed, with those
    /// that have to move already. Those that wait without a place are left out: they have their
    /// answer, which does not depend on who leaves. `closed` take no pods, nor does what is
    /// still starting.
    pub fn without(&self, nodes: &HashSet<&NodeName>, closed: &HashSet<&NodeName>) -> Snapshot<'a> {
        let mut snapshot = self.snapshot.clone();
        snapshot.rooms.retain_mut(|room| {
            let Host::Node(name) = &room.host else {
                return true;
            };
            room.open &= room.initialized && !closed.contains(name);
            !nodes.contains(name)
        });
        for resident in &mut snapshot.residents {
            resident.nodes.retain(|(name, _)| !nodes.contains(name));
        }
        let lives = |own: &Resident<'_>| !own.nodes.is_empty();
        snapshot.residents.retain(lives);
        snapshot.pending.retain(|pod| pod.node.is_some());
        for (_, tenancy) in self
            .tenancies
            .iter()
            .filter(|(name, _)| nodes.contains(*name))
        {
            snapshot.pending.extend(&tenancy.pods);
            if let Some(usage) = snapshot.usage.get_mut(&tenancy.pool) {
                usage.nodes = usage.nodes.saturating_sub(1);
                usage.capacity.subtract(&tenancy.capacity);
            }
            for gang in tenancy.pods.iter().filter_map(|pod| pod.gang_key()) {
                if let Some(count) = snapshot.gangs.get_mut(&gang) {
                    *count = count.saturating_sub(1);
                }
            }
        }
        let order = |one: &&Pod, other: &&Pod| one.key.cmp(&other.key);
        snapshot.pending.sort_unstable_by(order);
        snapshot.lacking.clear();
        snapshot.spare.pods.clear();
        snapshot
    }
}
