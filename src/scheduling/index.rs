//! Index types of the scheduler's tables, one per table, so that none is used for another table.

use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};

/// An index of a table.
pub(crate) trait TableIndex: Copy {
    /// Returns the index of this position.
    fn from_position(position: usize) -> Self;

    /// Returns the position in the table.
    fn position(self) -> usize;
}

/// Declares index types; their debug output is that of the number.
macro_rules! index_types {
    ($($(#[$doc:meta])+ $name:ident;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) usize);

        impl TableIndex for $name {
            fn from_position(position: usize) -> Self {
                Self(position)
            }

            fn position(self) -> usize {
                self.0
            }
        }

        impl Debug for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                Debug::fmt(&self.0, f)
            }
        }
    )+};
}

index_types! {
    /// A class of identical pods.
    PodClassIndex;
    /// A kind of pods: those with equal constraints.
    KindIndex;
    /// Node requirements of pods.
    RequirementsIndex;
    /// Topology rules of pods.
    ConstraintsIndex;
    /// The group memberships of pods.
    SignatureIndex;
    /// A group of pods that topology rules select.
    PodGroupIndex;
    /// A topology key.
    TopologyKeyIndex;
    /// A constrained DaemonSet.
    DaemonIndex;
    /// A counter of pods by topology domain.
    DomainCounterIndex;
    /// The nodes that count for a topology spread.
    FilterIndex;
    /// A location of the topology state: the existing nodes come first.
    LocationIndex;
}

/// A vector indexed by one index type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexVec<I, T> {
    entries: Vec<T>,
    index: PhantomData<fn(I)>,
}

impl<I: TableIndex, T> IndexVec<I, T> {
    /// Returns a table of this length with equal entries.
    pub(crate) fn filled(entry: T, len: usize) -> Self
    where
        T: Clone,
    {
        vec![entry; len].into()
    }

    /// Returns all indices in order.
    pub(crate) fn indices(&self) -> impl DoubleEndedIterator<Item = I> + use<I, T> {
        (0..self.entries.len()).map(I::from_position)
    }

    /// Returns all entries with their indices, in order.
    pub(crate) fn iter_enumerated(&self) -> impl Iterator<Item = (I, &T)> {
        self.indices().zip(&self.entries)
    }

    /// Appends an entry and returns its index.
    pub(crate) fn push(&mut self, entry: T) -> I {
        self.entries.push(entry);
        I::from_position(self.entries.len() - 1)
    }
}

impl<I: TableIndex, T> Index<I> for IndexVec<I, T> {
    type Output = T;

    fn index(&self, index: I) -> &T {
        &self.entries[index.position()]
    }
}

impl<I: TableIndex, T> IndexMut<I> for IndexVec<I, T> {
    fn index_mut(&mut self, index: I) -> &mut T {
        &mut self.entries[index.position()]
    }
}

impl<I, T> Deref for IndexVec<I, T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.entries
    }
}

impl<I, T> DerefMut for IndexVec<I, T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.entries
    }
}

impl<I, T> Default for IndexVec<I, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<I, T> From<Vec<T>> for IndexVec<I, T> {
    fn from(entries: Vec<T>) -> Self {
        Self { entries, index: PhantomData }
    }
}

impl<I, T> FromIterator<T> for IndexVec<I, T> {
    fn from_iter<S: IntoIterator<Item = T>>(entries: S) -> Self {
        Vec::from_iter(entries).into()
    }
}

impl<I, T> IntoIterator for IndexVec<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<'v, I, T> IntoIterator for &'v IndexVec<I, T> {
    type Item = &'v T;
    type IntoIter = std::slice::Iter<'v, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter()
    }
}

impl<'v, I, T> IntoIterator for &'v mut IndexVec<I, T> {
    type Item = &'v mut T;
    type IntoIter = std::slice::IterMut<'v, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter_mut()
    }
}
