//! What nodes have reported of their memory, by instance type and image.
//! It must not know how much they should have had.
//!
//! Source: spec/aws.md §4.6. Karpenter forgets all of it when any image of a node class changes;
//! here each type depends on its own image alone.

use std::collections::BTreeMap;

use crate::model::id::TypeName;

/// Pairs of a type and an image that are remembered. A region has some 1,400 types.
const KNOWN_MAX: usize = 20_000;

/// The smallest memory that nodes have reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredMemory {
    by_type: BTreeMap<TypeName, BTreeMap<String, i64>>,
    count: usize,
}

impl DiscoveredMemory {
    /// Takes in what a registered node of this type and image reports as its capacity, in bytes.
    /// Returns whether that is less than was known, or the first of it.
    pub fn observe(&mut self, of: &TypeName, image: &str, bytes: i64) -> bool {
        if bytes <= 0 {
            return false;
        }
        let known = self.by_type.get_mut(of).and_then(|own| own.get_mut(image));
        match known {
            Some(known) if *known <= bytes => return false,
            Some(known) => *known = bytes,
            None if self.count >= KNOWN_MAX => return false,
            None => {
                self.count += 1;
                let own = self.by_type.entry(of.clone()).or_default();
                own.insert(image.to_owned(), bytes);
            }
        }
        true
    }

    /// The smallest memory that nodes of this type and image have reported, in bytes.
    pub fn get(&self, of: &TypeName, image: &str) -> Option<i64> {
        self.by_type.get(of)?.get(image).copied()
    }

    /// Forgets what was reported with images that are not used any more.
    pub fn retain(&mut self, is_used: impl Fn(&str) -> bool) {
        for own in self.by_type.values_mut() {
            own.retain(|image, _| is_used(image));
        }
        self.by_type.retain(|_, own| !own.is_empty());
        self.count = self.by_type.values().map(BTreeMap::len).sum();
    }
}
