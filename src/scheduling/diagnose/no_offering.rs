//! Explains why a pool has no offering for pods that fit its types: unavailable or missing
//! offerings, limits, reservations.

use crate::model::labels::OF_OFFERINGS;
use crate::model::requirement::Requirements;
use crate::model::reservation::Reservation;
use crate::scheduling::index::TypeIndex;
use crate::scheduling::packing::launch_options::Ledger;
use crate::scheduling::rejection::{RejectionDetail, UnavailableSummary, bounded_text};
use crate::scheduling::supply::limits::{Limit, LimitScope};
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption, offering_matches};
use crate::scheduling::{Rejection, RejectionCode};
use crate::state::unavailable_offerings::UnavailableOfferings;

/// If types are not sold as required, the maximum number of zones and capacity types that a
/// rejection lists, and the maximum number of types from which they are collected.
const SOLD_TOLD: usize = 8;
const SOLD_TYPES: usize = 16;

/// Maximum number of reservations that a rejection lists.
const RESERVATIONS_TOLD: usize = 3;

/// Returns the offerings of these types that match the labels and are unavailable, if any.
pub(crate) fn unavailable_detail<'s>(
    holds: &UnavailableOfferings,
    template: &NodeTemplate<'_>,
    shapes: impl Iterator<Item = &'s TypeOption<'s>>,
    labels: &Requirements,
) -> Option<UnavailableSummary> {
    let held = shapes.flat_map(|shape| {
        let held = shape.held.iter().filter(|offer| offering_matches(labels, offer));
        held.map(|offer| shape.offering_key(offer))
    });
    let mut held: Vec<_> = held.collect();
    held.sort_unstable();
    let (pool, class) = (&template.pool.name, template.pool.node_class.as_ref());
    let requests = held.iter().filter_map(|key| holds.next_request_at(pool, class, key));
    Some(UnavailableSummary {
        offerings: held.len(),
        first: held.first()?.clone(),
        until: requests.min(),
        unregistered: held.iter().any(|key| holds.is_zone_excluded(pool, &key.zone)),
    })
}

/// Returns the rejection if types fit but have no matching offering, or only unavailable ones.
pub(crate) fn offering_rejection(
    holds: &UnavailableOfferings,
    template: &NodeTemplate<'_>,
    fitting: &[(TypeIndex, bool)],
    labels: &Requirements,
) -> Rejection {
    let shapes = fitting.iter().map(|(shape, _)| &template.shapes[*shape]);
    if let Some(held) = unavailable_detail(holds, template, shapes.clone(), labels) {
        let miss = RejectionDetail::Held(held);
        return (RejectionCode::OfferingsUnavailable, miss);
    }
    let wanted = OF_OFFERINGS.into_iter().filter_map(|key| {
        let wanted = labels.get(key).or_else(|| template.side.get(key))?;
        Some(bounded_text(format_args!("{key} {wanted}")))
    });
    let mut sold: Vec<_> = shapes
        .take(SOLD_TYPES)
        .flat_map(|shape| &shape.instance_type.offerings)
        .filter(|offering| offering.available)
        .map(|offering| (&offering.zone, offering.capacity_type))
        .collect();
    sold.sort_unstable();
    sold.dedup();
    let miss = RejectionDetail::Offering {
        types: fitting.len(),
        first: template.shapes[fitting[0].0].instance_type.name.clone(),
        wanted: wanted.collect(),
        sold: sold
            .into_iter()
            .take(SOLD_TOLD)
            .map(|(zone, capacity_type)| format!("{zone} {}", capacity_type.as_str()))
            .collect(),
    };
    (RejectionCode::Offering, miss)
}

/// Returns the limit that rejects the type with the smallest demand, or the reservations that are
/// used up.
pub(crate) fn limit_rejection(
    template: &NodeTemplate<'_>,
    sold: &[TypeIndex],
    ledger: &Ledger,
) -> Rejection {
    let Some((index, least, left, shape)) = sold
        .iter()
        .filter_map(|shape| {
            let limited = &template.shapes[*shape].limited;
            let (index, left) = ledger.first_shortage(limited)?;
            Some((index, limited[index], left, *shape))
        })
        .min()
    else {
        return RejectionCode::Limit.with_message("the limits of the pool leave no capacity");
    };
    let Limit { scope, resource, most: limit, closed, .. } = template.limits[index];
    if let Some(closed) = closed {
        return RejectionCode::Limit.with_message(closed);
    }
    let whose = match scope {
        LimitScope::Pool => "",
        LimitScope::Cluster => " of the cluster",
        LimitScope::Fleet => " of the fleet",
        LimitScope::Reservation => {
            let text = exhausted_reservations(template, sold);
            return RejectionCode::Reservation.with_message(&text);
        }
    };
    let miss = match resource {
        None => RejectionDetail::Nodes { limit, whose },
        Some(name) => RejectionDetail::Limit {
            name: name.to_owned(),
            whose,
            limit,
            left,
            least,
            smallest: template.shapes[shape].instance_type.name.clone(),
        },
    };
    (RejectionCode::Limit, miss)
}

/// Describes the reservations of these types, which are used up.
fn exhausted_reservations(template: &NodeTemplate<'_>, sold: &[TypeIndex]) -> String {
    let mut places: Vec<usize> =
        sold.iter().filter_map(|shape| template.shapes[*shape].reservation).collect();
    places.sort_unstable();
    places.dedup();
    let listed = places.iter().take(RESERVATIONS_TOLD).map(|place| {
        let Reservation { id, total, .. } = &template.reservations[*place];
        format!("reservation {id} has 0 of {total} instances left")
    });
    let mut listed: Vec<String> = listed.collect();
    let others = places.len() - listed.len();
    if others > 0 {
        listed.push(format!("and {others} other reservations have none left"));
    }
    listed.join(", ")
}
