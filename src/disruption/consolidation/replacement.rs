//! What may be launched in the place of nodes that leave for something cheaper: nothing dearer
//! than they are, and of as many types as their pool wants to choose from.
//! It must not know which nodes leave, nor where their pods go.

use std::collections::BTreeSet;

use crate::catalog::Catalog;
use crate::model::id::TypeName;
use crate::model::instance::{CapacityType, OfferingKey, Price};
use crate::model::pool::Pool;
use crate::scheduling::NewNodeClaim;

/// Offerings of a claim, cheapest first.
type Offers = Vec<(OfferingKey, Price)>;

/// The offerings of a claim that cost so much at most, in $/h. None where too few types are left
/// for the pool's `min_values`, which nothing relaxes here, or, where the claim takes the place of
/// one `spot` node, for the pool's `spot_to_spot_types`: of those the cheapest are kept, so that
/// the node is not replaced again as soon as it has become another of them.
/// Source: spec/disruption.md §1.9.
pub fn offers(
    claim: &NewNodeClaim,
    most: f64,
    spot: bool,
    (pool, catalog): (&Pool, &Catalog),
) -> Option<Offers> {
    let mut left = affordable(claim, most);
    let is_spot = |own: &(OfferingKey, Price)| own.0.capacity_type == CapacityType::Spot;
    let least = usize::try_from(pool.disruption.spot_to_spot_types).unwrap_or(usize::MAX);
    if spot && least != 1 && left.first().is_some_and(is_spot) {
        left.retain(is_spot);
        let types = types_of(&left);
        if least == 0 || types.len() < least {
            return None;
        }
        let count = (least..types.len()).find(|count| is_varied(&types[..*count], pool, catalog));
        let kept: BTreeSet<TypeName> = types
            .into_iter()
            .take(count.unwrap_or(usize::MAX))
            .collect();
        left.retain(|(own, _)| kept.contains(&own.instance_type));
    }
    // What is reserved is of one type anyhow.
    let varied = claim.reservation().is_some() || is_varied(&types_of(&left), pool, catalog);
    (varied && !left.is_empty()).then_some(left)
}

/// The offerings of a claim that cost so much at most, in $/h.
pub fn affordable(claim: &NewNodeClaim, most: f64) -> Offers {
    let all = claim.offerings.iter();
    all.filter(|(_, price)| price.usd_per_h() <= most)
        .cloned()
        .collect()
}

/// The types of offerings, each once, in their order.
fn types_of(offers: &Offers) -> Vec<TypeName> {
    let mut seen = BTreeSet::new();
    let types = offers.iter().map(|(own, _)| &own.instance_type);
    types.filter(|own| seen.insert(*own)).cloned().collect()
}

/// Whether types have as many values of each label between them as their pool wants.
fn is_varied(types: &[TypeName], pool: &Pool, catalog: &Catalog) -> bool {
    pool.requirements.iter().all(|(key, wanted)| {
        let Some(least) = wanted.min_values else {
            return true;
        };
        let known = types.iter().filter_map(|own| catalog.get(own.as_str()));
        let values = known.filter_map(|own| own.requirements.get(key)?.values());
        let values: BTreeSet<&String> = values.flatten().collect();
        values.len() >= usize::try_from(least).unwrap_or(usize::MAX)
    })
}
