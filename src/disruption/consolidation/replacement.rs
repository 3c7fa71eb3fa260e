//! Restricts the replacement of consolidated nodes to cheaper offerings, of as many instance types
//! as the pool requires.

use std::collections::BTreeSet;

use crate::catalog::Catalog;
use crate::model::id::TypeName;
use crate::model::instance::{CapacityType, OfferingKey, Price};
use crate::model::pool::Pool;
use crate::scheduling::NewNodeClaim;

/// Offerings of a claim, cheapest first.
type Offers = Vec<(OfferingKey, Price)>;

/// Returns the offerings of a claim up to a price in $/h. `None` if too few types remain for the
/// `min_values` of the pool, which is never relaxed here. The replacement of one `spot` node also
/// requires `spot_to_spot_min_types` types. If more types remain, only the cheapest of them are
/// kept, so that the new node is not replaced again immediately. Source: spec/disruption.md §1.9.
pub fn cheaper_offerings(
    claim: &NewNodeClaim,
    max_price: f64,
    spot: bool,
    pool: &Pool,
    catalog: &Catalog,
) -> Option<Offers> {
    let mut left = offerings_up_to(claim, max_price);
    let least = usize::try_from(pool.disruption.spot_to_spot_min_types).unwrap_or(usize::MAX);
    if spot && least != 1 && left.first().is_some_and(is_spot) {
        left.retain(is_spot);
        let types = types_of(&left);
        if least == 0 || types.len() < least {
            return None;
        }
        let count = (least..types.len())
            .find(|count| satisfies_min_values(&types[..*count], pool, catalog));
        let kept: BTreeSet<TypeName> =
            types.into_iter().take(count.unwrap_or(usize::MAX)).collect();
        left.retain(|(offering, _)| kept.contains(&offering.instance_type));
    }
    // Reserved capacity has only one type anyway.
    let varied =
        claim.reservation().is_some() || satisfies_min_values(&types_of(&left), pool, catalog);
    (varied && !left.is_empty()).then_some(left)
}

fn is_spot(offer: &(OfferingKey, Price)) -> bool {
    offer.0.capacity_type == CapacityType::Spot
}

/// Returns the offerings of a claim up to a price in $/h.
pub fn offerings_up_to(claim: &NewNodeClaim, max_price: f64) -> Offers {
    let all = claim.offerings.iter();
    all.filter(|(_, price)| price.usd_per_h() <= max_price).cloned().collect()
}

/// Returns the distinct types of offerings in order.
fn types_of(offers: &Offers) -> Vec<TypeName> {
    let mut seen = BTreeSet::new();
    let types = offers.iter().map(|(offering, _)| &offering.instance_type);
    types.filter(|name| seen.insert(*name)).cloned().collect()
}

/// Returns whether the types satisfy the `min_values` of the pool.
fn satisfies_min_values(types: &[TypeName], pool: &Pool, catalog: &Catalog) -> bool {
    pool.requirements.iter().all(|(key, wanted)| {
        let Some(least) = wanted.min_values else {
            return true;
        };
        let known = types.iter().filter_map(|name| catalog.get(name.as_str()));
        let values = known.filter_map(|known| known.requirements.get(key)?.values());
        let values: BTreeSet<&String> = values.flatten().collect();
        values.len() >= usize::try_from(least).unwrap_or(usize::MAX)
    })
}
