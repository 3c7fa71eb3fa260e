//! EC2 instance types put together: amounts, labels, and offerings from list prices.
//! It must not know in which form the facts were written down.

use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::catalog::{capacity, type_labels};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{CapacityType, InstanceType, Offering, Price};
use crate::model::node_class::NodeClass;

/// What spot capacity costs offline, as a share of the list price. No price list has it: it moves
/// by the hour. Everywhere the same, so that no type or zone looks better than another by a number
/// that was made up; and low, so that spot stays ahead of every on-demand type it could replace,
/// as it does on the real market, where a third of the list price is an ordinary price.
pub const SPOT_SHARE: f64 = 0.35;

/// Prices are kept to a millionth of a dollar, the precision of the price list.
const PRICE_UNITS: f64 = 1e6;

/// An instance type of a region as a node class sets it up, from its facts and offerings, which may
/// come in any order; `learned` is what its nodes have reported of their memory.
pub fn instance_type(
    shape: &InstanceTypeSpec,
    (region, class): (&str, &NodeClass),
    learned: Option<i64>,
    mut offerings: Vec<Offering>,
) -> InstanceType {
    sort(&mut offerings);
    InstanceType {
        name: TypeName::from(shape.name.as_str()),
        requirements: type_labels::requirements(shape, (region, class.family), &offerings),
        capacity: capacity::capacity(shape, class, learned),
        allocatable: capacity::allocatable(shape, class, learned),
        offerings,
    }
}

/// What spot capacity probably costs that is listed at this price.
pub fn spot_guess(list: Price) -> Price {
    let share = (list.usd_per_h() * SPOT_SHARE * PRICE_UNITS).round() / PRICE_UNITS;
    Price::new(share).unwrap_or_default()
}

/// The offerings of a type that sells in these zones, in each at a price on demand and as spot, or
/// not at all.
pub fn offerings<'a>(
    zones: impl Iterator<Item = (&'a Zone, Option<Price>, Option<Price>)>,
) -> Vec<Offering> {
    let mut all = Vec::new();
    for (zone, list, spot) in zones {
        for (capacity_type, price) in [(CapacityType::OnDemand, list), (CapacityType::Spot, spot)] {
            all.extend(price.map(|price| Offering {
                zone: zone.clone(),
                capacity_type,
                price,
                available: true,
                reservation: None,
            }));
        }
    }
    all
}

/// Sorts offerings as an instance type keeps them.
pub fn sort(offerings: &mut [Offering]) {
    fn order(own: &Offering) -> impl Ord {
        let reservation = own.reservation.as_ref().map(|own| &own.id);
        (own.price, &own.zone, own.capacity_type, reservation)
    }
    offerings.sort_by(|a, b| order(a).cmp(&order(b)));
}
