//! How many values of a label the types must have between them that a claim may be launched as
//! (`min_values`). It must not know which types fit.

use std::collections::BTreeSet;

use crate::model::cluster::MinValuesPolicy;
use crate::model::requirement::Requirement;
use crate::scheduling::problem::resource_vector::fits;
use crate::scheduling::supply::node_template::NodeTemplate;

/// Values that types must have between them, label by label.
#[derive(Clone, Debug)]
pub(crate) struct MinValues<'v> {
    wanted: Vec<(&'v str, usize)>,
}

/// Values seen so far.
#[derive(Clone, Debug)]
pub(crate) struct ValuesSeen<'v> {
    values: Vec<BTreeSet<&'v str>>,
}

impl<'v> MinValues<'v> {
    /// What a pool wants; nothing where less will do as well.
    pub(crate) fn of(shelf: &'v NodeTemplate<'_>, policy: MinValuesPolicy) -> Self {
        let least = |(key, own): (&'v str, &'v Requirement)| {
            let least = usize::try_from(own.min_values?).unwrap_or(usize::MAX);
            (least > 1).then_some((key, least))
        };
        let strict = policy == MinValuesPolicy::Strict;
        let wanted = shelf.side.iter().filter(|_| strict).filter_map(least);
        Self {
            wanted: wanted.collect(),
        }
    }

    /// Whether anything is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Nothing seen.
    pub(crate) fn start(&self) -> ValuesSeen<'v> {
        ValuesSeen {
            values: vec![BTreeSet::new(); self.wanted.len()],
        }
    }

    /// Takes the values of a type in, all it has, wherever it is launched. Says whether any of
    /// them was wanted and new. Source: spec/scheduling.md §2.6, §5 item 42.
    pub(crate) fn see(
        &self,
        shelf: &'v NodeTemplate<'_>,
        shape: usize,
        seen: &mut ValuesSeen<'v>,
    ) -> bool {
        let own = &shelf.shapes[shape].instance_type.requirements;
        let mut new = false;
        for ((key, least), seen) in self.wanted.iter().zip(&mut seen.values) {
            let values = own.get(key).and_then(Requirement::values);
            for value in values.into_iter().flatten() {
                if seen.len() < *least {
                    new |= seen.insert(value);
                }
            }
        }
        new
    }

    /// Whether enough was seen of everything.
    pub(crate) fn is_enough(&self, seen: &ValuesSeen<'v>) -> bool {
        let all = self.wanted.iter().zip(&seen.values);
        all.clone().all(|((_, least), seen)| seen.len() >= *least)
    }

    /// Whether these types have enough values between them.
    pub(crate) fn has(
        &self,
        shelf: &'v NodeTemplate<'_>,
        types: impl Iterator<Item = usize>,
    ) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut seen = self.start();
        for shape in types {
            if self.see(shelf, shape, &mut seen) && self.is_enough(&seen) {
                return true;
            }
        }
        false
    }

    /// The first label of which these types have too few values: how many are wanted, how many
    /// there are.
    pub(crate) fn shortage(
        &self,
        shelf: &'v NodeTemplate<'_>,
        types: impl Iterator<Item = usize>,
    ) -> Option<(&'v str, usize, usize)> {
        let mut seen = self.start();
        for shape in types {
            self.see(shelf, shape, &mut seen);
        }
        let mut all = self.wanted.iter().zip(&seen.values);
        let short = all.find(|((_, least), seen)| seen.len() < *least);
        short.map(|((key, least), seen)| (*key, *least, seen.len()))
    }
}

/// Lets every type take as much of the limits as those that have to be launched in its place for
/// the sake of variety: the cheapest that are as large in everything.
pub(crate) fn widen(shelf: &mut NodeTemplate<'_>, policy: MinValuesPolicy) {
    let own = &*shelf;
    let variety = MinValues::of(own, policy);
    if variety.is_empty() || own.limits.is_empty() {
        return;
    }
    let wide = |at: usize| {
        let least = own.shapes[at].net.as_deref().unwrap_or_default();
        let mut limited = own.shapes[at].capacity.clone();
        let mut seen = variety.start();
        for other in &own.by_least {
            let shape = &own.shapes[*other];
            let net = shape.net.as_deref().unwrap_or_default();
            let as_large = net.len() == least.len() && fits(net, least);
            if variety.is_enough(&seen) {
                break;
            }
            if as_large && shape.reservation.is_none() && variety.see(own, *other, &mut seen) {
                for (own, more) in limited.iter_mut().zip(&shape.capacity) {
                    *own = (*own).max(*more);
                }
            }
        }
        limited
    };
    let limited: Vec<Vec<i64>> = (0..own.shapes.len()).map(wide).collect();
    for (shape, limited) in shelf.shapes.iter_mut().zip(limited) {
        // What is reserved is there: no other type has to be launched in its place.
        if shape.reservation.is_none() {
            shape.limited = limited;
        }
    }
}
