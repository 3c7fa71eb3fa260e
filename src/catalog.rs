//! The instance types that can be had: shapes, labels, offerings and prices, as one shared value.
//! It must not know which of them are out of stock right now, nor who asks.

use std::collections::BTreeMap;

use crate::model::id::TypeName;
use crate::model::instance::{InstanceType, Offering, OfferingKey};

/// All instance types of an account and region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    types: BTreeMap<TypeName, InstanceType>,
}

impl Catalog {
    /// A catalog of these types; of two with one name the later stays.
    pub fn new(types: impl IntoIterator<Item = InstanceType>) -> Self {
        Self {
            types: types.into_iter().map(|it| (it.name.clone(), it)).collect(),
        }
    }

    /// All types by name.
    pub fn types(&self) -> impl Iterator<Item = &InstanceType> {
        self.types.values()
    }

    /// The type of this name.
    pub fn get(&self, name: &str) -> Option<&InstanceType> {
        self.types.get(name)
    }

    /// How many types there are.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Whether there is no type at all.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// The offering of this key.
    pub fn offering(&self, key: &OfferingKey) -> Option<&Offering> {
        self.types
            .get(&key.instance_type)?
            .offerings
            .iter()
            .find(|offering| {
                offering.zone == key.zone && offering.capacity_type == key.capacity_type
            })
    }
}
