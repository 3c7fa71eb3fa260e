//! `min_values`: the number of distinct values of a label that the instance types of a claim must
//! have.

use std::collections::BTreeSet;

use crate::model::cluster::MinValuesPolicy;
use crate::model::requirement::Requirement;
use crate::scheduling::problem::resource_vector::fits;
use crate::scheduling::supply::node_template::NodeTemplate;

/// Minimum number of distinct values by label.
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
    /// Returns the `min_values` of a pool; empty if the policy ignores them.
    pub(crate) fn from_template(template: &'v NodeTemplate<'_>, policy: MinValuesPolicy) -> Self {
        let strict = policy == MinValuesPolicy::Strict;
        let wanted = template
            .side
            .iter()
            .filter(|_| strict)
            .filter_map(|(key, requirement)| {
                let least = usize::try_from(requirement.min_values?).unwrap_or(usize::MAX);
                (least > 1).then_some((key, least))
            })
            .collect();
        Self { wanted }
    }

    /// Returns whether there are no `min_values`.
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Creates an empty set.
    pub(crate) fn no_values(&self) -> ValuesSeen<'v> {
        ValuesSeen { values: vec![BTreeSet::new(); self.wanted.len()] }
    }

    /// Adds all values of a type, for any offering. Returns whether a required value is new.
    /// Source: spec/scheduling.md §2.6, §5 item 42.
    pub(crate) fn add_values(
        &self,
        template: &'v NodeTemplate<'_>,
        shape: usize,
        seen: &mut ValuesSeen<'v>,
    ) -> bool {
        let requirements = &template.shapes[shape].instance_type.requirements;
        let mut new = false;
        for ((key, least), seen) in self.wanted.iter().zip(&mut seen.values) {
            let values = requirements.get(key).and_then(Requirement::values);
            for value in values.into_iter().flatten() {
                if seen.len() < *least {
                    new |= seen.insert(value);
                }
            }
        }
        new
    }

    /// Returns whether all minimums are reached.
    pub(crate) fn is_enough(&self, seen: &ValuesSeen<'v>) -> bool {
        let mut all = self.wanted.iter().zip(&seen.values);
        all.all(|((_, least), seen)| seen.len() >= *least)
    }

    /// Returns whether these types satisfy the minimums.
    pub(crate) fn are_satisfied_by(
        &self,
        template: &'v NodeTemplate<'_>,
        types: impl Iterator<Item = usize>,
    ) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut seen = self.no_values();
        for shape in types {
            if self.add_values(template, shape, &mut seen) && self.is_enough(&seen) {
                return true;
            }
        }
        false
    }

    /// Returns the first label with too few values, the minimum and the actual number.
    pub(crate) fn shortage(
        &self,
        template: &'v NodeTemplate<'_>,
        types: impl Iterator<Item = usize>,
    ) -> Option<(&'v str, usize, usize)> {
        let mut seen = self.no_values();
        for shape in types {
            self.add_values(template, shape, &mut seen);
        }
        let mut all = self.wanted.iter().zip(&seen.values);
        let short = all.find(|((_, least), seen)| seen.len() < *least);
        short.map(|((key, least), seen)| (*key, *least, seen.len()))
    }
}

/// Raises the limit usage of every type to that of the types required for `min_values`: the
/// cheapest that are at least as large.
pub(crate) fn raise_limit_usage(template: &mut NodeTemplate<'_>, policy: MinValuesPolicy) {
    let current = &*template;
    let variety = MinValues::from_template(current, policy);
    if variety.is_empty() || current.limits.is_empty() {
        return;
    }
    let limited: Vec<Vec<i64>> = (0..current.shapes.len())
        .map(|index| {
            let least = current.shapes[index].net.as_deref().unwrap_or_default();
            let mut limited = current.shapes[index].capacity.clone();
            let mut seen = variety.no_values();
            for other in &current.by_least {
                let shape = &current.shapes[*other];
                let net = shape.net.as_deref().unwrap_or_default();
                let as_large = net.len() == least.len() && fits(net, least);
                if variety.is_enough(&seen) {
                    break;
                }
                if as_large
                    && shape.reservation.is_none()
                    && variety.add_values(current, *other, &mut seen)
                {
                    for (amount, more) in limited.iter_mut().zip(&shape.capacity) {
                        *amount = (*amount).max(*more);
                    }
                }
            }
            limited
        })
        .collect();
    for (shape, limited) in template.shapes.iter_mut().zip(limited) {
        // A reservation is fixed: no other type is launched instead.
        if shape.reservation.is_none() {
            shape.limited = limited;
        }
    }
}
