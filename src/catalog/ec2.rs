//! EC2 instance types put together: amounts, labels, and offerings from list prices.
//! It must not know in which form the facts were written down.

use crate::catalog::shape::Shape;
use crate::catalog::{capacity, hardware};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{CapacityType, InstanceType, Offering, Price};

/// What spot capacity costs offline, as a share of the list price. No price list has it: it moves
/// by the hour. Everywhere the same, so that no type or zone looks better than another by a number
/// that was made up; and low, so that spot stays ahead of every on-demand type it could replace,
/// as it does on the real market, where a third of the list price is an ordinary price.
pub const SPOT_SHARE: f64 = 0.35;

/// Prices are kept to a millionth of a dollar, the precision of the price list.
const PRICE_UNITS: f64 = 1e6;

/// An instance type of a region from its facts and offerings, which may come in any order.
pub fn instance_type(shape: &Shape, region: &str, mut offerings: Vec<Offering>) -> InstanceType {
    sort(&mut offerings);
    InstanceType {
        name: TypeName::from(shape.name.as_str()),
        requirements: hardware::requirements(shape, region, &offerings),
        capacity: capacity::capacity(shape),
        allocatable: capacity::allocatable(shape),
        offerings,
    }
}

/// The offerings of a type that sells in these zones: on demand at its list price and, where it
/// sells as spot, at [`SPOT_SHARE`] of that. Without a list price there are none.
pub fn offerings(list: Option<Price>, spot: bool, zones: &[Zone]) -> Vec<Offering> {
    let Some(list) = list else {
        return Vec::new();
    };
    let share = (list.usd_per_h() * SPOT_SHARE * PRICE_UNITS).round() / PRICE_UNITS;
    let spot = Price::new(share).filter(|_| spot);
    let prices = [
        (CapacityType::OnDemand, Some(list)),
        (CapacityType::Spot, spot),
    ];
    let mut all = Vec::new();
    for zone in zones {
        for (capacity_type, price) in prices {
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
