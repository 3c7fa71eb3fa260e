//! The offerings of EC2 in a region: types, zones and prices, and how old these data are.
//!
//! Only responses with data are stored. An empty response is an error of the API and removes
//! nothing. Source: spec/aws.md §4.1 and §4.8.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use thiserror::Error;

use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::catalog::{Catalog, capacity, instance_type, type_labels};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{Offering, Price};

/// Source of list prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PriceSource {
    /// The shipped table.
    #[error("the prices that ship, of {region} in {month}")]
    Shipped {
        /// Month of the prices.
        month: &'static str,
        /// Region of the prices. It may differ from the region in use, because the relative prices
        /// of types are about the same in all regions.
        region: &'static str,
    },
    /// A table from the user.
    #[error("the prices of a table")]
    Table,
    /// The price list of AWS.
    #[error("the price list of {at}")]
    Fetched {
        /// Time of the request.
        at: Timestamp,
    },
}

/// Prices by type in the price list.
type ListPrices = [(TypeName, Price)];

/// Spot prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpotPrices {
    /// Time of the last successful request.
    pub at: Timestamp,
    /// Prices by type and zone.
    pub by_type: BTreeMap<TypeName, BTreeMap<Zone, Price>>,
}

/// Offerings of EC2 in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Name of the region.
    pub name: String,
    /// Types by name.
    pub shapes: BTreeMap<TypeName, Arc<InstanceTypeSpec>>,
    /// Zones in which each type is available.
    pub sold: BTreeMap<TypeName, BTreeSet<Zone>>,
    /// IDs of zones, as far as known. The ID of a zone is the same in every account.
    pub zone_ids: BTreeMap<Zone, String>,
    /// List prices by type.
    pub list: BTreeMap<TypeName, Price>,
    /// Source of the list prices.
    pub source: PriceSource,
    /// Spot prices. `None` before the first successful request.
    ///
    /// Without spot prices, every spot offering costs [`SPOT_SHARE`](ec2::SPOT_SHARE) of the list
    /// price. Karpenter uses the list price itself (spec §10, 47). Spot would then cost the same as
    /// on-demand until the first response, and plans would change a minute later. A low share ranks
    /// types and capacity types as the market does.
    pub spot: Option<SpotPrices>,
}

impl Region {
    /// Creates a region with only the source of its list prices known.
    pub fn new(name: &str, source: PriceSource) -> Self {
        Self {
            name: name.to_owned(),
            shapes: BTreeMap::new(),
            sold: BTreeMap::new(),
            zone_ids: BTreeMap::new(),
            list: BTreeMap::new(),
            source,
            spot: None,
        }
    }

    /// Sets the types of the region. EC2 does not return branch interfaces and network bandwidth:
    /// both are filled in from the shipped region `known`. Returns true if anything changed.
    pub fn set_shapes(
        &mut self,
        shapes: impl IntoIterator<Item = InstanceTypeSpec>,
        known: &Self,
    ) -> bool {
        let named = shapes.into_iter().map(|mut shape| {
            let name = TypeName::from(shape.name.as_str());
            if let Some(known) = known.shapes.get(&name) {
                shape.branch_enis = shape.branch_enis.max(known.branch_enis);
                shape.network_mbps = shape.network_mbps.or(known.network_mbps);
            }
            (name, Arc::new(shape))
        });
        replace_if_changed(&mut self.shapes, named.collect())
    }

    /// Sets the zones in which types are available. Returns true if anything changed.
    pub fn set_zones(&mut self, sold: impl IntoIterator<Item = (TypeName, Zone)>) -> bool {
        let mut by_type: BTreeMap<TypeName, BTreeSet<Zone>> = BTreeMap::new();
        for (name, zone) in sold {
            by_type.entry(name).or_default().insert(zone);
        }
        replace_if_changed(&mut self.sold, by_type)
    }

    /// Sets the zone IDs. Returns true if anything changed.
    pub fn set_zone_ids(&mut self, ids: impl IntoIterator<Item = (Zone, String)>) -> bool {
        replace_if_changed(&mut self.zone_ids, ids.into_iter().collect())
    }

    /// Sets the list prices of virtual machines and of bare-metal types, which are separate
    /// requests. If either response is empty, both are ignored (spec §10, 48). Types that are
    /// missing in the responses keep their prices (spec §10, 49). Returns true if the prices were
    /// stored.
    pub fn set_list_prices(
        &mut self,
        shared: &ListPrices,
        metal: &ListPrices,
        at: Timestamp,
    ) -> bool {
        for prices in [shared, metal] {
            if !prices.iter().any(|(_, price)| has_price(*price)) {
                return false;
            }
        }
        let prices = shared.iter().chain(metal);
        let paid = prices.filter(|(_, price)| has_price(*price));
        self.list.extend(paid.cloned());
        self.source = PriceSource::Fetched { at };
        true
    }

    /// Sets spot prices. Prices missing in the response are kept. After the first response, spot
    /// offerings without a price are not available (spec §10, 47). Prices in a currency other than
    /// that of the list prices are ignored. Returns true if the prices were stored.
    pub fn set_spot_prices(&mut self, prices: &[(TypeName, Zone, Price)], at: Timestamp) -> bool {
        let paid = prices.iter().filter(|(_, _, price)| has_price(*price));
        let mut paid = paid.peekable();
        if paid.peek().is_none() || !self.is_spot_comparable() {
            return false;
        }
        let spot = self.spot.get_or_insert_with(|| SpotPrices { at, by_type: BTreeMap::new() });
        spot.at = at;
        for (name, zone, price) in paid {
            let by_zone = spot.by_type.entry(name.clone()).or_default();
            by_zone.insert(zone.clone(), *price);
        }
        true
    }

    /// Returns whether spot prices of this region can be compared with its list prices.
    fn is_spot_comparable(&self) -> bool {
        match self.source {
            PriceSource::Shipped { region, .. } => currency(region) == currency(&self.name),
            PriceSource::Table | PriceSource::Fetched { .. } => true,
        }
    }

    /// Offerings of a type in any order: on demand at the list price and as spot, in each zone for
    /// which `is_wanted` is true. Offerings without a price are omitted.
    pub fn offerings_of(
        &self,
        shape: &InstanceTypeSpec,
        is_wanted: impl Fn(&Zone) -> bool,
    ) -> Vec<Offering> {
        let zones = self.sold.get(shape.name.as_str()).into_iter().flatten();
        let list = self.list.get(shape.name.as_str()).copied();
        let zones = zones.filter(|zone| is_wanted(zone));
        let prices = zones.map(|zone| {
            let spot = match &self.spot {
                None => list.map(instance_type::estimate_spot_price),
                Some(spot) => spot
                    .by_type
                    .get(shape.name.as_str())
                    .and_then(|by_zone| by_zone.get(zone))
                    .copied(),
            };
            let spot = spot.filter(|_| shape.spot);
            (zone, list.filter(|_| shape.on_demand), spot)
        });
        instance_type::zone_offerings(prices)
    }

    /// Catalog of all types in the region, with the capacity of a plain node class.
    pub fn catalog(&self) -> Catalog {
        let plain = capacity::default_node_class();
        let types = self.shapes.values().map(|shape| {
            let offerings = self.offerings_of(shape, |_| true);
            let mut instance_type =
                instance_type::instance_type(shape, &self.name, &plain, None, offerings);
            type_labels::add_placement(&mut instance_type, &self.zone_ids, None);
            instance_type
        });
        let sold = self.shapes.values().filter(|shape| {
            let zones = self.sold.get(shape.name.as_str());
            shape.on_demand && zones.is_some_and(|zones| !zones.is_empty())
        });
        let unpriced = sold.filter(|shape| !self.list.contains_key(shape.name.as_str()));
        Catalog::new(types)
            .with_zone_ids(self.zone_ids.clone())
            .with_unpriced(unpriced.map(|shape| shape.name.as_str().into()).collect())
    }
}

/// Returns the currency of the prices of a region, as AWS spells it. Prices of one region are
/// compared with each other only.
pub fn currency(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("cn") => "CNY",
        Some("eusc") => "EUR",
        _ => "USD",
    }
}

/// A price of zero is an error in the price list.
fn has_price(price: Price) -> bool {
    price.usd_per_h() > 0.0
}

fn replace_if_changed<K: Ord, V: PartialEq>(
    current: &mut BTreeMap<K, V>,
    new: BTreeMap<K, V>,
) -> bool {
    if new.is_empty() || *current == new {
        return false;
    }
    *current = new;
    true
}
