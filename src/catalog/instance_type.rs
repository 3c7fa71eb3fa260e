//! Builds EC2 instance types: capacity, labels, and offerings with list prices.

use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::catalog::{capacity, type_labels};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{CapacityType, InstanceType, Offering, Price};
use crate::model::node_class::NodeClass;

/// Estimated spot price if no spot prices are available, as a fraction of the list price. The price
/// list has no spot prices, because they change hourly. One fraction for all types and zones favors
/// none of them. The fraction is low, so that spot capacity remains cheaper than every on-demand
/// type that it could replace. On the real market, spot prices are often a third of the list price.
pub const SPOT_SHARE: f64 = 0.35;

/// Prices are precise to a millionth of a dollar, as in the price list.
const PRICE_UNITS: f64 = 1e6;

/// Builds an instance type of a region with a node class, from its specification and its offerings
/// in any order. `observed_memory` is the memory that nodes of this type have reported.
pub fn instance_type(
    shape: &InstanceTypeSpec,
    region: &str,
    class: &NodeClass,
    observed_memory: Option<i64>,
    mut offerings: Vec<Offering>,
) -> InstanceType {
    sort_offerings(&mut offerings);
    InstanceType {
        name: TypeName::from(shape.name.as_str()),
        requirements: type_labels::label_requirements(shape, region, class.family, &offerings),
        capacity: capacity::capacity(shape, class, observed_memory),
        allocatable: capacity::allocatable(shape, class, observed_memory),
        offerings,
    }
}

/// Estimates the spot price from a list price.
pub fn estimate_spot_price(list: Price) -> Price {
    let share = (list.usd_per_h() * SPOT_SHARE * PRICE_UNITS).round() / PRICE_UNITS;
    Price::new(share).unwrap_or_default()
}

/// Builds the offerings of a type in these zones, each with an on-demand price and a spot price.
/// Either price may be missing.
pub fn zone_offerings<'a>(
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

/// Sorts offerings in the order of an instance type.
pub fn sort_offerings(offerings: &mut [Offering]) {
    fn sort_key(it: &Offering) -> impl Ord {
        let reservation = it.reservation.as_ref().map(|it| &it.id);
        (it.price, &it.zone, it.capacity_type, reservation)
    }
    offerings.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
}
