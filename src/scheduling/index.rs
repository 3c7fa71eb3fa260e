//! Index types of the scheduler's tables, so that no index is used for another table.

use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};

/// Declares index types that convert from and to `usize`. Their debug output is the number.
macro_rules! index_types {
    ($($name:ident: $doc:literal,)+) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) usize);

        impl From<usize> for $name {
            fn from(position: usize) -> Self {
                Self(position)
            }
        }

        impl From<$name> for usize {
            fn from(index: $name) -> Self {
                index.0
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
    PodClassIndex: "A class of identical pods.",
    KindIndex: "A kind of pods: those with equal constraints.",
    RequirementsIndex: "Node requirements of pods.",
    ConstraintsIndex: "Topology rules of pods.",
    SignatureIndex: "The group memberships of pods.",
    GroupIndex: "A group of pods that topology rules select.",
    KeyIndex: "A topology key.",
    DaemonIndex: "A constrained DaemonSet.",
    CounterIndex: "A counter of pods by topology domain.",
    FilterIndex: "The nodes that count for a topology spread.",
    TemplateIndex: "A pool, as a node template.",
    TypeIndex: "A type option of a node template.",
    RowIndex: "Compatible offerings of pods in a pool.",
    ItemGroupIndex: "An item group of a packing.",
    OpenedNodeIndex: "A new node.",
    DomainIndex: "A combination of topology domains.",
    LocationIndex: "A location of the topology state. The existing nodes come first.",
}

/// The location of each combination of topology domains.
pub(crate) type DomainLocations = IndexVec<DomainIndex, LocationIndex>;

/// A vector with its own index type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexVec<I, T>(Vec<T>, PhantomData<I>);

impl<I: From<usize>, T> IndexVec<I, T> {
    /// Returns all indices, in order.
    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = I> + Clone + use<I, T> {
        (0..self.len()).map(I::from)
    }

    /// Returns all entries with their indices, in order.
    pub(crate) fn iter_enumerated(&self) -> impl Iterator<Item = (I, &T)> + Clone {
        self.iter().enumerate().map(|(position, entry)| (I::from(position), entry))
    }

    /// Returns all entries with their indices, in order.
    pub(crate) fn iter_mut_enumerated(&mut self) -> impl Iterator<Item = (I, &mut T)> {
        self.iter_mut().enumerate().map(|(position, entry)| (I::from(position), entry))
    }

    /// Returns the index of the first entry that satisfies a condition.
    pub(crate) fn position(&self, condition: impl FnMut(&T) -> bool) -> Option<I> {
        self.iter().position(condition).map(I::from)
    }

    /// Adds an entry and returns its index.
    pub(crate) fn push_and_get_key(&mut self, entry: T) -> I {
        self.push(entry);
        I::from(self.len() - 1)
    }
}

impl<I: Into<usize>, T> Index<I> for IndexVec<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, index: I) -> &T {
        &self.0[index.into()]
    }
}

impl<I: Into<usize>, T> IndexMut<I> for IndexVec<I, T> {
    #[inline]
    fn index_mut(&mut self, index: I) -> &mut T {
        &mut self.0[index.into()]
    }
}

impl<I, T> Deref for IndexVec<I, T> {
    type Target = Vec<T>;

    #[inline]
    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<I, T> DerefMut for IndexVec<I, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<I, T> Default for IndexVec<I, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<I, T> From<Vec<T>> for IndexVec<I, T> {
    fn from(entries: Vec<T>) -> Self {
        Self(entries, PhantomData)
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
        self.0.into_iter()
    }
}

impl<'v, I, T> IntoIterator for &'v IndexVec<I, T> {
    type Item = &'v T;
    type IntoIter = std::slice::Iter<'v, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'v, I, T> IntoIterator for &'v mut IndexVec<I, T> {
    type Item = &'v mut T;
    type IntoIter = std::slice::IterMut<'v, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut()
    }
}
