//! Nodes of static pools: those that a pool lacks of its number, whatever pods ask for.
//! It must not know which nodes are too many, nor what will run on them.
//!
//! Source: spec/scheduling.md §3.3. Karpenter leaves the choice of type and zone to the launch;
//! here it is planned like any other: what is cheapest, and of one price where the pool has least.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::id::{PoolName, Zone};
use crate::model::instance::OfferingKey;
use crate::model::labels::{POOL, ZONE};
use crate::model::pool::Pool;
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::scheduling::diagnose::Rejection;
use crate::scheduling::diagnose::no_offering::{unlimited, unsold};
use crate::scheduling::packing::launch_options::{self, Ledger, Ledgers, Scratch};
use crate::scheduling::problem::Problem;
use crate::scheduling::rejection::RejectionDetail;
use crate::scheduling::supply::min_values::{MinValues, widen};
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::{NewNodeClaim, PoolRejection, RejectionCode, daemons};
use crate::state::snapshot::Snapshot;
use crate::state::unavailable_offerings::UnavailableOfferings;

/// Nodes that are planned for one pool at once; those still missing have their turn after them.
const AT_ONCE: usize = 500;

/// What shall be there whatever pods ask for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StaticDemand {
    /// The nodes of a static pool.
    Nodes(PoolName),
    /// The room that a buffer keeps free.
    Room(String),
}

impl fmt::Display for StaticDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(pool) => write!(f, "nodes of pool {pool}"),
            Self::Room(buffer) => write!(f, "room of buffer {buffer}"),
        }
    }
}

/// Something that shall be there and cannot be had now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// What it is.
    pub need: StaticDemand,
    /// How much of it: nodes, or pods that there is no room for.
    pub missing: usize,
    /// Why, never empty.
    pub reasons: Arc<[PoolRejection]>,
}

/// The nodes to be made for the sake of pools' numbers, and what of them cannot be had.
pub fn replicas(snapshot: &Snapshot<'_>, now: Timestamp) -> (Vec<NewNodeClaim>, Vec<Shortfall>) {
    let (mut claims, mut short) = (Vec::new(), Vec::new());
    if snapshot.lacking.is_empty() {
        return (claims, short);
    }
    let problem = Problem::new(&[], snapshot);
    let scheduling = &snapshot.cluster.scheduling;
    let pools = snapshot.lacking.keys();
    let pools = pools.filter_map(|name| snapshot.cluster.pool(name.as_str()));
    let shelves: Vec<NodeTemplate<'_>> = pools
        .map(|pool| {
            let mut shelf = NodeTemplate::new(pool, &problem, snapshot, now);
            widen(&mut shelf, scheduling.min_values);
            shelf
        })
        .collect();
    let nothing = problem.axes.demand(&Resources::default(), None);
    let mut ledgers = Ledgers::new(&shelves, snapshot);
    // All are planned before any has alternatives, which take of the limits, too.
    let mut planned = Vec::with_capacity(shelves.len());
    for (at, shelf) in shelves.iter().enumerate() {
        let wanted = snapshot.lacking[&shelf.pool.name].min(AT_ONCE);
        let mut ledger = ledgers.of(at);
        let variety = MinValues::of(shelf, scheduling.min_values);
        let mut shapes = Vec::new();
        while shapes.len() < wanted {
            let best = launch_options::cheapest((shelf, &variety), &[], &nothing, &ledger);
            let Some((shape, price)) = best else { break };
            ledger.reserve(&shelf.shapes[shape].limited, 1);
            shapes.push((shape, price));
        }
        let more = shapes.len() < wanted;
        let why = more.then(|| barren(snapshot.holds, shelf, &variety, &ledger));
        ledgers.put(at, ledger);
        planned.push((shapes, why));
    }
    for (at, (shapes, why)) in planned.into_iter().enumerate() {
        let shelf = &shelves[at];
        let missing = snapshot.lacking[&shelf.pool.name];
        let mut ledger = ledgers.of(at);
        let (made, poor) = nodes(shelf, &shapes, (&nothing, snapshot), &mut ledger);
        ledgers.put(at, ledger);
        if let Some((code, miss)) = why.or(poor) {
            let pool = Some(shelf.pool.name.clone());
            short.push(Shortfall {
                need: StaticDemand::Nodes(shelf.pool.name.clone()),
                missing: missing - made.len(),
                reasons: [PoolRejection { pool, code, miss }].into(),
            });
        }
        claims.extend(made);
    }
    (claims, short)
}

/// Nodes of one pool, planned as these types; and why some of them cannot be had after all.
fn nodes(
    shelf: &NodeTemplate<'_>,
    planned: &[(usize, f64)],
    (nothing, snapshot): (&[i64], &Snapshot<'_>),
    ledger: &mut Ledger,
) -> (Vec<NewNodeClaim>, Option<Rejection>) {
    let pool = shelf.pool;
    let scheduling = &snapshot.cluster.scheduling;
    let variety = MinValues::of(shelf, scheduling.min_values);
    let mut scratch = Scratch::default();
    let mut zones = zones(pool, snapshot);
    let mut claims = Vec::with_capacity(planned.len());
    let mut why = None;
    for (shape, price) in planned {
        let before = ledger.clone();
        let (mut offerings, types) = launch_options::offerings(
            (shelf, &variety),
            (*shape, *price),
            &[],
            (nothing, scheduling),
            (ledger, &mut scratch),
        );
        let reservation = shelf.shapes[*shape].reservation;
        // Others may have taken what the limits left when this one was planned.
        let short = variety.shortage(shelf, types.iter().copied());
        if let Some((key, least, count)) = short.filter(|_| reservation.is_none()) {
            *ledger = before;
            ledger.release(&shelf.shapes[*shape].limited);
            let key = key.to_owned();
            why = Some((
                RejectionCode::MinValues,
                RejectionDetail::Values { key, least, count },
            ));
            continue;
        }
        let there = |own: &OfferingKey| zones.get(&own.zone).copied().unwrap_or(0);
        offerings.sort_by_key(|(own, price)| (*price, there(own)));
        if let Some((first, _)) = offerings.first() {
            *zones.entry(first.zone.clone()).or_insert(0) += 1;
        }
        let mut labels = shelf.labels(&[]);
        let reservation = reservation.map(|own| shelf.reservations[own].labels());
        labels.extend(reservation.into_iter().flatten());
        claims.push(NewNodeClaim {
            pool: pool.name.clone(),
            offerings,
            labels,
            requests: daemons(shelf, &types),
            pods: Vec::new(),
        });
    }
    (claims, why)
}

/// Why a pool can make no node at all, whatever is to run on it.
pub(super) fn barren(
    holds: &UnavailableOfferings,
    shelf: &NodeTemplate<'_>,
    variety: &MinValues<'_>,
    ledger: &Ledger,
) -> Rejection {
    let shapes = &shelf.shapes;
    if let Some(fault) = shelf.fault {
        return (RejectionCode::NodeClass, RejectionDetail::told(fault));
    }
    if shapes.is_empty() {
        let text = "no instance type satisfies the pool's own requirements";
        return (RejectionCode::Requirements, RejectionDetail::told(text));
    }
    let fits = (0..shapes.len()).filter(|at| shapes[*at].net.is_some());
    let fits: Vec<(usize, bool)> = fits.map(|at| (at, !shapes[at].offers.is_empty())).collect();
    if fits.is_empty() {
        let text = "daemons ask for more than any of its types has";
        return (RejectionCode::Resources, RejectionDetail::told(text));
    }
    let sold = fits.iter().filter(|(_, sold)| *sold);
    let sold: Vec<usize> = sold.map(|(at, _)| *at).collect();
    if sold.is_empty() {
        return unsold(holds, shelf, &fits, &Requirements::default());
    }
    let allowed = |at: &usize| ledger.copies(&shapes[*at].limited) > 0;
    let would_do = sold.iter().copied().filter(allowed);
    match variety.shortage(shelf, would_do.clone()) {
        Some((key, least, count)) if would_do.count() > 0 => {
            let key = key.to_owned();
            (
                RejectionCode::MinValues,
                RejectionDetail::Values { key, least, count },
            )
        }
        _ => unlimited(shelf, &sold, ledger),
    }
}

/// How many nodes a pool has in each zone, where that is settled.
fn zones(pool: &Pool, snapshot: &Snapshot<'_>) -> BTreeMap<Zone, usize> {
    let mut zones = BTreeMap::new();
    let only = |labels: &Requirements, key: &str| {
        let values = labels.get(key).and_then(Requirement::values)?;
        let mut values = values.iter();
        values.next().filter(|_| values.next().is_none()).cloned()
    };
    for room in &snapshot.rooms {
        if only(&room.labels, POOL).as_deref() != Some(pool.name.as_str()) || !room.open {
            continue;
        }
        if let Some(zone) = only(&room.labels, ZONE) {
            *zones.entry(Zone(zone)).or_insert(0) += 1;
        }
    }
    zones
}
