//! `min_values`: the number of distinct values of a label that the instance types of a claim must
//! have.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::model::cluster::MinValuesPolicy;
use crate::model::pool::Pool;
use crate::model::requirement::Requirement;
use crate::scheduling::index::TypeIndex;
use crate::scheduling::problem::Problem;
use crate::scheduling::problem::resource_vector::fits;
use crate::scheduling::rejection::RejectionDetail;
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::{Rejection, RejectionCode};
use crate::state::snapshot::Snapshot;

/// Minimum number of distinct values by label.
#[derive(Clone, Debug)]
pub(crate) struct MinValues<'v> {
    wanted: Vec<(&'v str, usize)>,
}

/// Label values of the types that were added so far.
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
    pub(crate) fn new_seen_values(&self) -> ValuesSeen<'v> {
        ValuesSeen { values: vec![BTreeSet::new(); self.wanted.len()] }
    }

    /// Adds all values of a type, for any offering. Returns whether a required value is new.
    /// Source: spec/scheduling.md §2.6, §5 item 42.
    pub(crate) fn add_values(
        &self,
        template: &'v NodeTemplate<'_>,
        shape: TypeIndex,
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

    /// Returns whether the number of values reaches all minimums.
    pub(crate) fn is_enough(&self, seen: &ValuesSeen<'v>) -> bool {
        let mut all = self.wanted.iter().zip(&seen.values);
        all.all(|((_, least), seen)| seen.len() >= *least)
    }

    /// Returns whether these types satisfy the minimums.
    pub(crate) fn are_satisfied_by(
        &self,
        template: &'v NodeTemplate<'_>,
        types: impl Iterator<Item = TypeIndex>,
    ) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut seen = self.new_seen_values();
        for shape in types {
            if self.add_values(template, shape, &mut seen) && self.is_enough(&seen) {
                return true;
            }
        }
        false
    }

    /// Returns the rejection by the first label with too few values.
    pub(crate) fn shortage(
        &self,
        template: &'v NodeTemplate<'_>,
        types: impl Iterator<Item = TypeIndex>,
    ) -> Option<Rejection> {
        let mut seen = self.new_seen_values();
        for shape in types {
            self.add_values(template, shape, &mut seen);
        }
        let mut all = self.wanted.iter().zip(&seen.values);
        let ((key, least), seen) = all.find(|((_, least), seen)| seen.len() < *least)?;
        let (key, least, count) = ((*key).to_owned(), *least, seen.len());
        Some((RejectionCode::MinValues, RejectionDetail::Values { key, least, count }))
    }
}

/// Returns the template of a pool, with limit usage raised for `min_values`.
pub(crate) fn template_of<'a>(
    pool: &'a Pool,
    problem: &Problem<'_>,
    snapshot: &Snapshot<'a>,
    now: Timestamp,
) -> NodeTemplate<'a> {
    let mut template = NodeTemplate::new(pool, problem, snapshot, now);
    raise_limit_usage(&mut template, snapshot.cluster.scheduling.min_values);
    template
}

/// Raises the limit usage of every type to that of the types required for `min_values`. These are
/// the cheapest types that are at least as large.
fn raise_limit_usage(template: &mut NodeTemplate<'_>, policy: MinValuesPolicy) {
    let current = &*template;
    let variety = MinValues::from_template(current, policy);
    if variety.is_empty() || current.limits.is_empty() {
        return;
    }
    let limited: Vec<Vec<i64>> = current
        .shapes
        .keys()
        .map(|index| {
            let least = current.shapes[index].net.as_deref().unwrap_or_default();
            let mut limited = current.shapes[index].capacity.clone();
            let mut seen = variety.new_seen_values();
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
