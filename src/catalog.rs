//! The catalog: instance types with capacity, labels, offerings and prices, as one shared value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;

use crate::catalog::region::Region;
use crate::model::id::{ReservationId, TypeName, Zone};
use crate::model::instance::{InstanceType, Offering, OfferingKey};
use crate::model::requirement::Requirements;
use crate::model::reservation::Reservation;

// Raw facts of an EC2 instance type.
pub mod instance_type_info;
// Capacity and allocatable resources of an instance type.
pub mod capacity;
// Labels of an instance type, as requirements.
pub mod type_labels;
// Instance types with capacity, labels and offerings.
pub mod instance_type;
// Types, offerings and prices of one region, and how old these data are.
pub mod region;
// Shipped prices of partitions with their own prices.
pub mod regional_prices;
// Capacity reservations as offerings.
pub mod reservations;
// CSV reader for instance types.
pub mod csv;
// Reader for Karpenter's kwok `instance_types.json`.
pub mod kwok;
// Selects the image for each instance type.
pub mod image_selection;
// Memory that nodes have reported, by instance type and image.
pub mod discovered_memory;
// Applies one node class to the instance types.
pub mod node_class;
// The catalog of one pool, with overlays applied.
pub mod overlay;
#[cfg(test)]
mod tests;

/// The instance types of EC2 in [`SHIPPED_REGION`].
const SHIPPED: &str = include_str!("catalog/ec2-us-east-1.csv");
/// The default region of a table. It has the lowest prices and the most types.
pub const SHIPPED_REGION: &str = "us-east-1";
/// Month of its prices.
const SHIPPED_MONTH: &str = "July 2026";

/// Reason why a file is not a valid catalog.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// A file has an error.
    #[error("read the catalog {name}")]
    File {
        /// Name of the file.
        name: String,
        /// The error.
        source: Box<CatalogError>,
    },
    /// There are no types.
    #[error("there are no instance types in it; give a table with a header, or a JSON list")]
    Empty,
    /// The header or another line of a table has an error.
    #[error("line {line}: {text}")]
    Line {
        /// The line.
        line: usize,
        /// The error and its fix.
        text: String,
    },
    /// A field has an invalid value for its column.
    #[error("line {line}, column {column}: {text:?} where {expected} is expected")]
    Value {
        /// The line.
        line: usize,
        /// The column.
        column: &'static str,
        /// The field.
        text: String,
        /// Expected kind of value.
        expected: &'static str,
    },
    /// The file is not JSON, or has an unexpected structure.
    #[error("it is not a JSON list of instance types as Karpenter's kwok provider has it")]
    Json(#[source] serde_json::Error),
    /// A type of a JSON list is duplicate.
    #[error("type {name} is there twice; remove one")]
    RepeatedType {
        /// The type.
        name: String,
    },
    /// A type of a JSON list has an error.
    #[error("type {name:?}, {place}: {text}")]
    Type {
        /// The type.
        name: String,
        /// Path within the type.
        place: String,
        /// The error and its fix.
        text: String,
    },
}

/// Parses the catalog in a file with this name: a JSON list in the format of Karpenter's kwok
/// provider, or a table of EC2 types. The comment `# region: NAME` sets the region of a table.
pub fn parse(name: &str, text: &str) -> Result<Catalog, CatalogError> {
    // Some editors add a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let read = if text.trim_start().starts_with('[') {
        kwok::parse_kwok_json(text)
    } else {
        csv::parse_csv(text, csv::region_comment(text).unwrap_or(SHIPPED_REGION))
    };
    read.map_err(|fault| CatalogError::File { name: name.to_owned(), source: Box::new(fault) })
}

/// All instance types of an account and region. Clones share the types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    types: BTreeMap<TypeName, Arc<InstanceType>>,
    /// All reservations of the offerings.
    reservations: Arc<BTreeMap<ReservationId, Reservation>>,
    /// IDs of zones, as far as known.
    zone_ids: Arc<BTreeMap<Zone, String>>,
    /// Types without a known on-demand price.
    unpriced: Arc<BTreeSet<TypeName>>,
}

impl Catalog {
    /// Creates a catalog of these types. If two have the same name, the last one is used.
    pub fn new(types: impl IntoIterator<Item = InstanceType>) -> Self {
        Self::default().with(types)
    }

    /// Returns the catalog with these types added, or replaced if the name exists.
    #[must_use]
    pub fn with(&self, types: impl IntoIterator<Item = InstanceType>) -> Self {
        let mut all = self.clone();
        let types = types.into_iter();
        let named = types.map(|it| (it.name.clone(), Arc::new(it)));
        all.types.extend(named);
        all.reservations = Arc::new(reservations::reservations_of(&all));
        all
    }

    /// All reservations of the offerings. If offerings differ about the remaining capacity of a
    /// reservation, the lowest is used.
    pub fn reservations(&self) -> &BTreeMap<ReservationId, Reservation> {
        &self.reservations
    }

    /// Returns the shipped catalog: EC2 in us-east-1. Every call parses it again, so keep the
    /// result.
    pub fn shipped() -> Self {
        Region::shipped().catalog()
    }

    /// Returns the catalog with these zone IDs.
    #[must_use]
    pub fn with_zone_ids(mut self, ids: BTreeMap<Zone, String>) -> Self {
        self.zone_ids = Arc::new(ids);
        self
    }

    /// Returns the catalog with these types without a known on-demand price.
    #[must_use]
    pub fn with_unpriced(mut self, names: BTreeSet<TypeName>) -> Self {
        self.unpriced = Arc::new(names);
        self
    }

    /// Returns whether EC2 sells the type on demand, but its price is not known. Then it has no
    /// on-demand offerings, although EC2 still offers it.
    pub fn is_unpriced(&self, name: &str) -> bool {
        self.unpriced.contains(name)
    }

    /// IDs of zones, as far as known. They are the same in every account.
    pub fn zone_ids(&self) -> &BTreeMap<Zone, String> {
        &self.zone_ids
    }

    /// All types by name.
    pub fn types(&self) -> impl Iterator<Item = &InstanceType> {
        self.types.values().map(Arc::as_ref)
    }

    /// The type of this name.
    pub fn get(&self, name: &str) -> Option<&InstanceType> {
        self.types.get(name).map(Arc::as_ref)
    }

    /// Number of types.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Returns true if there are no types.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// Zones with at least one offering, sorted.
    pub fn zones(&self) -> BTreeSet<&Zone> {
        self.types().flat_map(|it| &it.offerings).map(|offering| &offering.zone).collect()
    }

    /// Returns true if the offerings have fewer values of a label than its `min_values`. All values
    /// of each type count, in whichever zone it is launched.
    pub fn falls_short<'o>(
        &self,
        wanted: &Requirements,
        offerings: impl Iterator<Item = &'o OfferingKey> + Clone,
    ) -> bool {
        let mut limited = wanted.iter().filter(|(_, requirement)| requirement.min_values.is_some());
        limited.any(|(key, requirement)| {
            let types = offerings.clone();
            let types = types.filter_map(|offering| self.get(offering.instance_type.as_str()));
            let values = types.filter_map(|it| it.requirements.get(key)?.values());
            let values: BTreeSet<&String> = values.flatten().collect();
            let min_values = requirement.min_values.unwrap_or(0);
            u32::try_from(values.len()).is_ok_and(|found| found < min_values)
        })
    }

    /// Returns the offering with this key.
    pub fn offering(&self, key: &OfferingKey) -> Option<&Offering> {
        self.types.get(&key.instance_type)?.offerings.iter().find(|offering| {
            offering.zone == key.zone
                && offering.capacity_type == key.capacity_type
                && offering.reservation.as_ref().map(|reservation| &reservation.id)
                    == key.reservation.as_deref()
        })
    }
}
