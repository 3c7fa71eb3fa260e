//! Why a pool has no offering for pods that fit its types: offerings that are unavailable or not
//! sold, limits, reservations.

use crate::model::labels::OF_OFFERINGS;
use crate::model::requirement::Requirements;
use crate::scheduling::RejectionCode;
use crate::scheduling::diagnose::Rejection;
use crate::scheduling::packing::launch_options::Ledger;
use crate::scheduling::rejection::{RejectionDetail, part};
use crate::scheduling::supply::limits::{Limit, LimitScope};
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption, sells};
use crate::state::unavailable_offerings::UnavailableOfferings;

/// How many zones and capacity types a rejection lists for types that are not sold as required, and
/// how many of the types it takes them from.
const SOLD_TOLD: usize = 8;
const SOLD_TYPES: usize = 16;

/// How many reservations a rejection lists.
const RESERVATIONS_TOLD: usize = 3;

/// Returns the offerings of these types that match the labels and are unavailable, if any.
pub(crate) fn held_down<'s>(
    (holds, shelf): (&UnavailableOfferings, &NodeTemplate<'_>),
    shapes: impl Iterator<Item = &'s TypeOption<'s>>,
    labels: &Requirements,
) -> Option<RejectionDetail> {
    let held = shapes.flat_map(|shape| {
        let held = shape.held.iter().filter(|offer| sells(labels, offer));
        held.map(|offer| shape.key(offer))
    });
    let mut held: Vec<_> = held.collect();
    held.sort_unstable();
    let of = (&shelf.pool.name, shelf.pool.node_class.as_ref());
    Some(RejectionDetail::Held {
        offerings: held.len(),
        first: held.first()?.clone(),
        until: held.iter().filter_map(|own| holds.ends(of, own)).min(),
        unregistered: held.iter().any(|own| holds.is_untried(of.0, &own.zone)),
    })
}

/// Types fit, and none is sold as wanted: whether they are held down.
pub(crate) fn unsold(
    holds: &UnavailableOfferings,
    shelf: &NodeTemplate<'_>,
    fitting: &[(usize, bool)],
    labels: &Requirements,
) -> Rejection {
    let shapes = || fitting.iter().map(|(shape, _)| &shelf.shapes[*shape]);
    if let Some(miss) = held_down((holds, shelf), shapes(), labels) {
        return (RejectionCode::HeldDown, miss);
    }
    let wanted = OF_OFFERINGS.into_iter().filter_map(|key| {
        let wanted = labels.get(key).or_else(|| shelf.side.get(key))?;
        Some(part(format_args!("{key} {wanted}")))
    });
    let some = shapes().take(SOLD_TYPES);
    let offerings = some.flat_map(|shape| &shape.instance_type.offerings);
    let offerings = offerings.filter(|own| own.available);
    let mut sold: Vec<_> = offerings
        .map(|own| (&own.zone, own.capacity_type))
        .collect();
    sold.sort_unstable();
    sold.dedup();
    let sold = sold.into_iter().take(SOLD_TOLD);
    let miss = RejectionDetail::Offering {
        types: fitting.len(),
        first: shelf.shapes[fitting[0].0].instance_type.name.clone(),
        wanted: wanted.collect(),
        sold: sold
            .map(|(zone, capacity_type)| format!("{zone} {}", capacity_type.as_str()))
            .collect(),
    };
    (RejectionCode::Offering, miss)
}

/// Which limit is in the way of the type that takes least of it, or else which reservations have
/// nothing left.
pub(crate) fn unlimited(shelf: &NodeTemplate<'_>, sold: &[usize], ledger: &Ledger) -> Rejection {
    let short = |shape: &usize| {
        let (at, left) = ledger.shortage(&shelf.shapes[*shape].limited)?;
        Some((at, shelf.shapes[*shape].limited[at], left, *shape))
    };
    let Some((at, least, left, shape)) = sold.iter().filter_map(short).min() else {
        return (
            RejectionCode::Limit,
            RejectionDetail::told("its limits leave no room"),
        );
    };
    let Limit {
        scope,
        resource,
        most: limit,
        closed,
        ..
    } = shelf.limits[at];
    if let Some(closed) = closed {
        return (RejectionCode::Limit, RejectionDetail::told(closed));
    }
    let whose = match scope {
        LimitScope::Pool => "",
        LimitScope::Cluster => " of the cluster",
        LimitScope::Fleet => " of the fleet",
        LimitScope::Reservation => {
            return (
                RejectionCode::Reservation,
                RejectionDetail::told(&used_up(shelf, sold)),
            );
        }
    };
    let Some(name) = resource.map(str::to_owned) else {
        return (
            RejectionCode::Limit,
            RejectionDetail::Nodes { limit, whose },
        );
    };
    let miss = RejectionDetail::Limit {
        name,
        whose,
        limit,
        left,
        least,
        smallest: shelf.shapes[shape].instance_type.name.clone(),
    };
    (RejectionCode::Limit, miss)
}

/// The reservations of these types, which have nothing left.
fn used_up(shelf: &NodeTemplate<'_>, sold: &[usize]) -> String {
    let places = sold.iter().filter_map(|at| shelf.shapes[*at].reservation);
    let mut places: Vec<usize> = places.collect();
    places.sort_unstable();
    places.dedup();
    let told = places.iter().take(RESERVATIONS_TOLD).map(|place| {
        let own = &shelf.reservations[*place];
        format!(
            "reservation {} has 0 of {} instances left",
            own.id, own.total
        )
    });
    let mut told: Vec<String> = told.collect();
    if places.len() > told.len() {
        told.push(format!("so have {} others", places.len() - told.len()));
    }
    told.join(", ")
}
