//! A map for objects that are looked up far more often than iterated: lookup by hash, iteration in
//! key order.
//!
//! A pass looks up thousands of pods. Their keys differ only in the last characters, so a tree
//! lookup would compare almost the full key at each step.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::ops::Index;

use foldhash::HashMap;

/// Values by key.
#[derive(Clone, Debug)]
pub struct SortedHashMap<K, V> {
    found: HashMap<K, V>,
    order: BTreeSet<K>,
}

impl<K, V> Default for SortedHashMap<K, V> {
    fn default() -> Self {
        Self { found: HashMap::default(), order: BTreeSet::new() }
    }
}

impl<K: Clone + Hash + Ord, V> SortedHashMap<K, V> {
    /// Inserts a value, and returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.found.insert(key.clone(), value);
        if before.is_none() {
            self.order.insert(key);
        }
        before
    }

    /// Removes a value.
    pub fn remove<Q: Hash + Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let before = self.found.remove(key)?;
        self.order.remove(key);
        Some(before)
    }

    /// Returns the value of a key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.found.get(key)
    }

    /// Returns whether the key exists.
    pub fn contains_key<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.found.contains_key(key)
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.order.iter()
    }

    /// Iterates in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let keys = self.order.iter();
        keys.filter_map(|key| Some((key, self.found.get(key)?)))
    }

    /// Iterates over values in key order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Changes each value in key order.
    pub fn change_each(&mut self, mut change: impl FnMut(&mut V)) {
        for key in &self.order {
            if let Some(value) = self.found.get_mut(key) {
                change(value);
            }
        }
    }
}

impl<K: Borrow<Q> + Clone + Hash + Ord, Q: Hash + Eq + ?Sized, V> Index<&Q>
    for SortedHashMap<K, V>
{
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        &self.found[key]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::SortedHashMap;

    proptest! {
        #[test]
        fn equals_btreemap(steps in collection::vec((any::<bool>(), 0u8..8, any::<u8>()), 0..60)) {
            let (mut keyed, mut map) = (SortedHashMap::default(), BTreeMap::new());
            for (insert, key, value) in steps {
                if insert {
                    prop_assert_eq!(keyed.insert(key, value), map.insert(key, value));
                } else {
                    prop_assert_eq!(keyed.remove(&key), map.remove(&key));
                }
                prop_assert_eq!(keyed.get(&key), map.get(&key));
                prop_assert_eq!(keyed.contains_key(&key), map.contains_key(&key));
                prop_assert_eq!(keyed.len(), map.len());
                prop_assert_eq!(keyed.is_empty(), map.is_empty());
                prop_assert!(keyed.iter().eq(map.iter()));
                prop_assert!(keyed.keys().eq(map.keys()));
                prop_assert!(keyed.values().eq(map.values()));
            }
        }
    }
}
