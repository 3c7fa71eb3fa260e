//! The instance types that can be had: shapes, labels, offerings and prices, as one shared value.
//! It must not know which of them are out of stock right now, nor who asks.

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
// Types, offerings and prices of one region, with their age.
pub mod region;
// Capacity reservations as offerings.
pub mod reservations;
// CSV reader for instance types.
pub mod csv;
// Reader for Karpenter's kwok `instance_types.json`.
pub mod kwok;
// Which image is used for which instance types.
pub mod image_selection;
// Memory reported by nodes, by type and image.
pub mod discovered_memory;
// Instance types as one node class can launch them.
pub mod node_class;
// The catalog of one pool, with overlays applied.
pub mod overlay;
#[cfg(test)]
mod tests;

/// The instance types of EC2 in [`SHIPPED_REGION`].
const SHIPPED: &str = include_str!("catalog/ec2-us-east-1.csv");
/// Where EC2 is cheapest and has the most types; also the region of a table that names none.
pub const SHIPPED_REGION: &str = "us-east-1";
/// The month of its prices.
const SHIPPED_MONTH: &str = "July 2026";

/// Why a text is no catalog.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// A fault in a file.
    #[error("read the catalog {name}")]
    File {
        /// The file.
        name: String,
        /// The fault.
        source: Box<CatalogError>,
    },
    /// No type at all.
    #[error("there are no instance types in it; give a table with a header, or a JSON list")]
    Empty,
    /// A column is missing.
    #[error("line {line}: there is no column {column}; add it to the header and to every line")]
    MissingColumn {
        /// The line of the header.
        line: usize,
        /// The column.
        column: &'static str,
    },
    /// A column is not known.
    #[error("line {line}: column {column:?} is not known; correct its name or remove it")]
    UnknownColumn {
        /// The line of the header.
        line: usize,
        /// The column.
        column: String,
    },
    /// A column is there twice.
    #[error("line {line}: column {column} is there twice; remove one")]
    RepeatedColumn {
        /// The line of the header.
        line: usize,
        /// The column.
        column: String,
    },
    /// A line is longer or shorter than the header.
    #[error(
        "line {line}: {found} fields where the header has {expected}; \
         fields are separated by commas and cannot be quoted"
    )]
    Width {
        /// The line.
        line: usize,
        /// Fields of the header.
        expected: usize,
        /// Fields of the line.
        found: usize,
    },
    /// A field is not what its column holds.
    #[error("line {line}, column {column}: {text:?} where {expected} is expected")]
    Value {
        /// The line.
        line: usize,
        /// The column.
        column: &'static str,
        /// The field.
        text: String,
        /// What the column holds.
        expected: &'static str,
    },
    /// A type stands on two lines.
    #[error("line {line}: type {name} is on line {first} already; remove one")]
    RepeatedLine {
        /// The later line.
        line: usize,
        /// The type.
        name: String,
        /// The earlier line.
        first: usize,
    },
    /// The text is not JSON, or not of the expected shape.
    #[error("it is not a JSON list of instance types as Karpenter's kwok provider has it")]
    Json(#[source] serde_json::Error),
    /// A type of a JSON list is there twice.
    #[error("type {name} is there twice; remove one")]
    RepeatedType {
        /// The type.
        name: String,
    },
    /// A type of a JSON list has a fault.
    #[error("type {name:?}, {place}: {text}")]
    Type {
        /// The type.
        name: String,
        /// Where in the type.
        place: String,
        /// What is wrong, and what to do.
        text: String,
    },
}

/// Reads the catalog in a file of this name: a JSON list in the shape of Karpenter's kwok
/// provider, or else a table of EC2 types, of the region its remark `# region: NAME` gives.
pub fn parse(name: &str, text: &str) -> Result<Catalog, CatalogError> {
    // Some editors put a byte order mark in front.
    let text = text.trim_start_matches('\u{feff}');
    let read = if text.trim_start().starts_with('[') {
        kwok::parse_kwok_json(text)
    } else {
        csv::parse_csv(text, csv::region(text).unwrap_or(SHIPPED_REGION))
    };
    read.map_err(|fault| CatalogError::File {
        name: name.to_owned(),
        source: Box::new(fault),
    })
}

/// All instance types of an account and region. A copy shares the types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    types: BTreeMap<TypeName, Arc<InstanceType>>,
    /// Every reservation that some offering is in.
    reservations: Arc<BTreeMap<ReservationId, Reservation>>,
    /// Ids of zones, those that are known.
    zone_ids: Arc<BTreeMap<Zone, String>>,
}

impl Catalog {
    /// A catalog of these types; of two with one name the later stays.
    pub fn new(types: impl IntoIterator<Item = InstanceType>) -> Self {
        Self::default().with(types)
    }

    /// The same with these types beside the others, or in place of those of the same name.
    #[must_use]
    pub fn with(&self, types: impl IntoIterator<Item = InstanceType>) -> Self {
        self.with_shared(types.into_iter().map(Arc::new))
    }

    /// Every reservation that something is offered in. Where offerings differ about how much is
    /// left of it, the least is believed.
    pub fn reservations(&self) -> &BTreeMap<ReservationId, Reservation> {
        &self.reservations
    }

    /// The catalog that ships: EC2 in us-east-1. Read anew at every call, so keep it.
    pub fn shipped() -> Self {
        Region::shipped().catalog()
    }

    /// The same with these ids of zones.
    #[must_use]
    pub fn with_zone_ids(mut self, ids: BTreeMap<Zone, String>) -> Self {
        self.zone_ids = Arc::new(ids);
        self
    }

    /// Ids of zones, which are the same in every account; those that are known.
    pub fn zone_ids(&self) -> &BTreeMap<Zone, String> {
        &self.zone_ids
    }

    /// The same with these types, shared with whoever has them, beside the others or in place of
    /// those of the same name.
    #[must_use]
    fn with_shared(&self, types: impl IntoIterator<Item = Arc<InstanceType>>) -> Self {
        let mut all = self.clone();
        let named = |it: Arc<InstanceType>| (it.name.clone(), it);
        all.types.extend(types.into_iter().map(named));
        all.reservations = Arc::new(reservations::all(&all));
        all
    }

    /// All types by name.
    pub fn types(&self) -> impl Iterator<Item = &InstanceType> {
        self.types.values().map(Arc::as_ref)
    }

    /// The type of this name.
    pub fn get(&self, name: &str) -> Option<&InstanceType> {
        self.types.get(name).map(Arc::as_ref)
    }

    /// How many types there are.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Whether there is no type at all.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// The zones in which anything sells, sorted.
    pub fn zones(&self) -> BTreeSet<&Zone> {
        self.types()
            .flat_map(|it| &it.offerings)
            .map(|offering| &offering.zone)
            .collect()
    }

    /// Whether what may be launched has fewer values of a label than is wanted of it
    /// (`min_values`). Of each type all its values count, wherever it is launched.
    pub fn falls_short(&self, wanted: &Requirements, offerings: &[OfferingKey]) -> bool {
        wanted.iter().any(|(key, own)| {
            let types = offerings.iter();
            let types = types.filter_map(|own| self.get(own.instance_type.as_str()));
            let values = types.filter_map(|it| it.requirements.get(key)?.values());
            let values: BTreeSet<&String> = values.flatten().collect();
            let least = own.min_values.unwrap_or(0);
            u32::try_from(values.len()).is_ok_and(|found| found < least)
        })
    }

    /// The offering of this key.
    pub fn offering(&self, key: &OfferingKey) -> Option<&Offering> {
        self.types
            .get(&key.instance_type)?
            .offerings
            .iter()
            .find(|offering| {
                offering.zone == key.zone
                    && offering.capacity_type == key.capacity_type
                    && offering.reservation.as_ref().map(|own| &own.id)
                        == key.reservation.as_deref()
            })
    }
}
