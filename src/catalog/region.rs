//! What EC2 sells in a region: types, where they sell, and for how much, with the age of what is
//! known. It must not know who asks EC2, nor what a node class makes of it.
//!
//! Answers are only ever taken in where they say something: an empty one is a fault of whoever was
//! asked, and wipes nothing. Source: spec/aws.md §4.1 and §4.8.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::catalog::{Catalog, capacity, instance_type, type_labels};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{Offering, Price};

/// Where list prices are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceSource {
    /// From the table that ships.
    Shipped {
        /// The month they are of.
        month: &'static str,
        /// The region they are of, which need not be the one they are used for: then each type is
        /// about as much dearer or cheaper than the others as it is there.
        region: &'static str,
    },
    /// From a table that somebody has written.
    Table,
    /// From the price list, at this time.
    Fetched {
        /// When.
        at: Timestamp,
    },
}

impl fmt::Display for PriceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shipped { month, region } => {
                write!(f, "the prices that ship, of {region} in {month}")
            }
            Self::Table => f.write_str("the prices of a table"),
            Self::Fetched { at } => write!(f, "the price list of {at}"),
        }
    }
}

/// What the price list says of types.
type ListPrices = [(TypeName, Price)];

/// Spot prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpotPrices {
    /// When they were last asked for with success.
    pub at: Timestamp,
    /// By type and zone.
    pub by_type: BTreeMap<TypeName, BTreeMap<Zone, Price>>,
}

/// What EC2 sells in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Name.
    pub name: String,
    /// Types by name.
    pub shapes: BTreeMap<TypeName, Arc<InstanceTypeSpec>>,
    /// In which zones each type sells.
    pub sold: BTreeMap<TypeName, BTreeSet<Zone>>,
    /// Ids of zones, which are the same in every account; those that are known.
    pub zone_ids: BTreeMap<Zone, String>,
    /// List prices by type.
    pub list: BTreeMap<TypeName, Price>,
    /// Where the list prices are from.
    pub source: PriceSource,
    /// Spot prices; none before they were asked for with success.
    ///
    /// Without them every spot offering costs [`SPOT_SHARE`](ec2::SPOT_SHARE) of the list price.
    /// Karpenter takes the list price itself (spec §10, 47). That puts spot level with on-demand
    /// for as long as the first answer takes, and the plan made in that time would be another a
    /// minute later; a low share puts types and capacity types in the order that the market has.
    pub spot: Option<SpotPrices>,
}

impl Region {
    /// A region of which only the source of its list prices is known.
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

    /// Takes in the types of the region. Two facts that EC2 does not tell are filled in from the
    /// shipped region, `known`: branch interfaces and network bandwidth. Returns whether anything
    /// is different now.
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
        replace(&mut self.shapes, named.collect())
    }

    /// Takes in which types sell in which zones. Returns whether anything is different now.
    pub fn set_sold(&mut self, sold: impl IntoIterator<Item = (TypeName, Zone)>) -> bool {
        let mut by_type: BTreeMap<TypeName, BTreeSet<Zone>> = BTreeMap::new();
        for (name, zone) in sold {
            by_type.entry(name).or_default().insert(zone);
        }
        replace(&mut self.sold, by_type)
    }

    /// Takes in the zones' ids. Returns whether anything is different now.
    pub fn set_zone_ids(&mut self, ids: impl IntoIterator<Item = (Zone, String)>) -> bool {
        replace(&mut self.zone_ids, ids.into_iter().collect())
    }

    /// Takes in list prices: those of virtual machines and those of whole machines, which are asked
    /// for apart. Where either answer has none, both are left (spec §10, 48). Prices of types that
    /// the answers lack stay (spec §10, 49). Returns whether they were taken in.
    pub fn set_list_prices(
        &mut self,
        (shared, metal): (&ListPrices, &ListPrices),
        at: Timestamp,
    ) -> bool {
        let paid = |all: &ListPrices| all.iter().any(|(_, price)| is_paid(*price));
        if !paid(shared) || !paid(metal) {
            return false;
        }
        let all = shared.iter().chain(metal);
        let all = all.filter(|(_, price)| is_paid(*price)).cloned();
        self.list.extend(all);
        self.source = PriceSource::Fetched { at };
        true
    }

    /// Takes in spot prices. What the answer lacks keeps its price; what never had one is not
    /// offered any more once anything has (spec §10, 47). Returns whether they were taken in.
    pub fn set_spot_prices(&mut self, prices: &[(TypeName, Zone, Price)], at: Timestamp) -> bool {
        let paid = || prices.iter().filter(|(_, _, price)| is_paid(*price));
        if paid().next().is_none() {
            return false;
        }
        let own = self.spot.get_or_insert_with(|| SpotPrices {
            at,
            by_type: BTreeMap::new(),
        });
        own.at = at;
        for (name, zone, price) in paid() {
            let by_zone = own.by_type.entry(name.clone()).or_default();
            by_zone.insert(zone.clone(), *price);
        }
        true
    }

    /// Where and how a type may be had, in any order: on demand at its list price and as spot, in
    /// each zone that `is_wanted`. What has no price is not offered.
    pub fn offerings(
        &self,
        shape: &InstanceTypeSpec,
        is_wanted: impl Fn(&Zone) -> bool,
    ) -> Vec<Offering> {
        let zones = self.sold.get(shape.name.as_str()).into_iter().flatten();
        let list = self.list.get(shape.name.as_str()).copied();
        let zones = zones.filter(|zone| is_wanted(zone));
        let prices = zones.map(|zone| {
            let spot = match &self.spot {
                None => list.map(instance_type::spot_guess),
                Some(own) => own
                    .by_type
                    .get(shape.name.as_str())
                    .and_then(|own| own.get(zone))
                    .copied(),
            };
            let spot = spot.filter(|_| shape.spot);
            (zone, list.filter(|_| shape.on_demand), spot)
        });
        instance_type::offerings(prices)
    }

    /// Everything that sells in the region, with amounts as a plain node class has them.
    pub fn catalog(&self) -> Catalog {
        let plain = capacity::plain();
        let types = self.shapes.values().map(|shape| {
            let offerings = self.offerings(shape, |_| true);
            let mut own =
                instance_type::instance_type(shape, (&self.name, &plain), None, offerings);
            type_labels::place(&mut own, &self.zone_ids, None);
            own
        });
        Catalog::new(types).with_zone_ids(self.zone_ids.clone())
    }
}

/// Free capacity is none that EC2 sells: such a price is a slip of the list.
fn is_paid(price: Price) -> bool {
    price.usd_per_h() > 0.0
}

fn replace<K: Ord, V: PartialEq>(own: &mut BTreeMap<K, V>, new: BTreeMap<K, V>) -> bool {
    if new.is_empty() || *own == new {
        return false;
    }
    *own = new;
    true
}
