//! Memory that nodes have reported, by instance type and image.
//!
//! Source: spec/aws.md §4.6. Karpenter drops all values if any image of a node class changes. Here,
//! each type depends only on its own image.

use std::collections::BTreeMap;

use crate::model::id::TypeName;

/// Maximum number of stored pairs of type and image. A region has about 1,400 types.
const KNOWN_MAX: usize = 20_000;

/// The smallest memory that nodes have reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredMemory {
    by_type: BTreeMap<TypeName, BTreeMap<String, i64>>,
    count: usize,
}

impl DiscoveredMemory {
    /// Stores the capacity in bytes that a registered node of this type and image reports. Returns
    /// true if the value is lower than the stored value, or if none was stored.
    pub fn observe(&mut self, type_name: &TypeName, image: &str, bytes: i64) -> bool {
        if bytes <= 0 {
            return false;
        }
        let known = self.by_type.get_mut(type_name).and_then(|by_image| by_image.get_mut(image));
        match known {
            Some(known) if *known <= bytes => return false,
            Some(known) => *known = bytes,
            None if self.count >= KNOWN_MAX => return false,
            None => {
                self.count += 1;
                let by_image = self.by_type.entry(type_name.clone()).or_default();
                by_image.insert(image.to_owned(), bytes);
            }
        }
        true
    }

    /// The smallest memory that nodes of this type and image have reported, in bytes.
    pub fn get(&self, type_name: &TypeName, image: &str) -> Option<i64> {
        self.by_type.get(type_name)?.get(image).copied()
    }

    /// Removes values of images that are no longer used.
    pub fn retain(&mut self, is_used: impl Fn(&str) -> bool) {
        for by_image in self.by_type.values_mut() {
            by_image.retain(|image, _| is_used(image));
        }
        self.by_type.retain(|_, by_image| !by_image.is_empty());
        self.count = self.by_type.values().map(BTreeMap::len).sum();
    }
}
