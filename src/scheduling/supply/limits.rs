//! The limits that count for the nodes of a pool: its own and those it shares with other pools.
//! It must not know what is left of them.

use crate::model::fleet::FleetView;
use crate::model::pool::{Limits, Pool};
use crate::model::quantity::Resources;
use crate::state::snapshot::Snapshot;

/// Whose limit it is. Those of a pool come first: the others are shared by all pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitScope {
    /// The pool's.
    Pool,
    /// The cluster's.
    Cluster,
    /// The fleet's.
    Fleet,
    /// A reservation's: one of its instances for each node in it.
    Reservation,
}

/// Reservations that are weighed, those of the first ids: each is one more limit to watch, and one
/// more type to weigh.
pub(crate) const RESERVATIONS_MAX: usize = 256;

/// A limit on one resource, or on the number of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit<'a> {
    /// Whose it is.
    pub(crate) scope: LimitScope,
    /// The resource; none means the number of nodes.
    pub(crate) resource: Option<&'a str>,
    /// How much there may be in all.
    pub(crate) most: i64,
    /// How much of that pools and the cluster may have: what other clusters leave.
    pub(crate) share: i64,
    /// Why nobody may have anything of it now.
    pub(crate) closed: Option<&'a str>,
}

impl Limit<'_> {
    /// How much of it is taken by so many nodes of this capacity together; of reservations, what
    /// is left is known already, and nothing taken by nodes that are in none.
    pub(crate) fn taken(&self, capacity: &Resources, nodes: usize) -> i64 {
        match (self.scope, self.resource) {
            (LimitScope::Reservation, _) => 0,
            (_, Some(name)) => capacity.get(name),
            (_, None) => i64::try_from(nodes).unwrap_or(i64::MAX),
        }
    }

    /// Whether a node takes as much of it whatever its type.
    pub(crate) fn is_free_of_size(&self) -> bool {
        self.scope == LimitScope::Reservation || self.resource.is_none()
    }
}

/// The limits of a pool, then those that it shares with all pools of its cluster.
pub(crate) fn limits<'a>(pool: &'a Pool, snapshot: &Snapshot<'a>) -> Vec<Limit<'a>> {
    let own = listed(&pool.limits, LimitScope::Pool);
    own.chain(shared(snapshot)).collect()
}

/// Limits on the nodes of all pools together; what reservations leave comes last.
pub(crate) fn shared<'a>(snapshot: &Snapshot<'a>) -> impl Iterator<Item = Limit<'a>> {
    let fleet = snapshot.fleet.into_iter().flat_map(of_fleet);
    let reservations = snapshot.reservations.values().take(RESERVATIONS_MAX);
    let reservations = reservations.map(|own| Limit {
        scope: LimitScope::Reservation,
        resource: None,
        most: i64::from(own.total),
        share: i64::from(own.left),
        closed: None,
    });
    listed(&snapshot.cluster.limits, LimitScope::Cluster)
        .chain(fleet)
        .chain(reservations)
}

fn of_fleet(view: &FleetView) -> impl Iterator<Item = Limit<'_>> {
    let of_resource = |limit: &Limit<'_>| match limit.resource {
        Some(name) => {
            let mut shares = view.share.capacity.iter();
            let share = shares.find(|(own, _)| own == name);
            share.map_or(limit.most, |(_, share)| *share)
        }
        None => view.share.nodes.map_or(limit.most, i64::from),
    };
    listed(&view.limits, LimitScope::Fleet).map(move |limit| Limit {
        share: match view.closed {
            Some(_) => i64::MIN,
            None => of_resource(&limit),
        },
        closed: view.closed.as_deref(),
        ..limit
    })
}

fn listed(limits: &Limits, scope: LimitScope) -> impl Iterator<Item = Limit<'_>> {
    let limit = move |resource, most| Limit {
        scope,
        resource,
        most,
        share: most,
        closed: None,
    };
    let capacity = limits.capacity.iter();
    let capacity = capacity.map(move |(name, most)| limit(Some(name.as_str()), *most));
    capacity.chain(limits.nodes.map(|most| limit(None, i64::from(most))))
}
