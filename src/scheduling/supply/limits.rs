//! Limits that apply to the nodes of a pool: those of the pool itself, and those that all pools
//! have in common.

use crate::model::fleet::FleetView;
use crate::model::pool::{Limits, Pool};
use crate::model::quantity::Resources;
use crate::state::snapshot::Snapshot;

/// The scope of a limit. Pool limits come first; the others are shared by all pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitScope {
    /// The pool's.
    Pool,
    /// The cluster's.
    Cluster,
    /// The fleet's.
    Fleet,
    /// A reservation: each node uses one of its instances.
    Reservation,
}

/// Maximum number of evaluated reservations, lowest IDs first. Each adds a limit and additional
/// types.
pub(crate) const RESERVATIONS_MAX: usize = 256;

/// A limit on one resource, or on the number of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit<'a> {
    /// The scope of the limit.
    pub(crate) scope: LimitScope,
    /// The resource. `None` means the number of nodes.
    pub(crate) resource: Option<&'a str>,
    /// The limit.
    pub(crate) most: i64,
    /// The part of the limit that other clusters leave to this cluster.
    pub(crate) share: i64,
    /// Why nothing may be launched under this limit now.
    pub(crate) closed: Option<&'a str>,
}

impl Limit<'_> {
    /// Returns how much of the limit these nodes use. For reservations, the remainder is already
    /// known, and nodes without the reservation use nothing of it.
    pub(crate) fn usage_of(&self, capacity: &Resources, nodes: usize) -> i64 {
        match (self.scope, self.resource) {
            (LimitScope::Reservation, _) => 0,
            (_, Some(name)) => capacity.get(name),
            (_, None) => i64::try_from(nodes).unwrap_or(i64::MAX),
        }
    }

    /// Returns whether nodes of every type use the same quantity of the limit.
    pub(crate) fn is_independent_of_type(&self) -> bool {
        self.scope == LimitScope::Reservation || self.resource.is_none()
    }
}

/// Returns the limits of a pool, then the shared limits of its cluster.
pub(crate) fn limits_of<'a>(pool: &'a Pool, snapshot: &Snapshot<'a>) -> Vec<Limit<'a>> {
    let pool_limits = scoped_limits(&pool.limits, LimitScope::Pool);
    pool_limits.chain(shared_limits(snapshot)).collect()
}

/// Returns the limits of all pools together, reservations last.
pub(crate) fn shared_limits<'a>(snapshot: &Snapshot<'a>) -> impl Iterator<Item = Limit<'a>> {
    let fleet = snapshot.fleet.into_iter().flat_map(fleet_limits);
    let reservations = snapshot.reservations.values().take(RESERVATIONS_MAX);
    let reservations = reservations.map(|reservation| Limit {
        scope: LimitScope::Reservation,
        resource: None,
        most: i64::from(reservation.total),
        share: i64::from(reservation.left),
        closed: None,
    });
    scoped_limits(&snapshot.cluster.limits, LimitScope::Cluster).chain(fleet).chain(reservations)
}

fn fleet_limits(view: &FleetView) -> impl Iterator<Item = Limit<'_>> {
    let shares = view.share.capacity.iter();
    scoped_limits(&view.limits, LimitScope::Fleet).map(move |limit| Limit {
        share: match (&view.closed, limit.resource) {
            (Some(_), _) => i64::MIN,
            (None, Some(name)) => {
                let share = shares.clone().find(|(resource, _)| resource == name);
                share.map_or(limit.most, |(_, share)| *share)
            }
            (None, None) => view.share.nodes.map_or(limit.most, i64::from),
        },
        closed: view.closed.as_deref(),
        ..limit
    })
}

fn scoped_limits(limits: &Limits, scope: LimitScope) -> impl Iterator<Item = Limit<'_>> {
    let capacity = limits.capacity.iter();
    capacity
        .map(|(name, limit)| (Some(name.as_str()), *limit))
        .chain(limits.nodes.map(|limit| (None, i64::from(limit))))
        .map(move |(resource, limit)| Limit {
            scope,
            resource,
            most: limit,
            share: limit,
            closed: None,
        })
}
