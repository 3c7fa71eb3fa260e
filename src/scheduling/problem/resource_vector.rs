//! Resource quantities as vectors: the relevant resources, and how often a demand fits.

use std::collections::BTreeSet;

use crate::model::labels::ATTACHABLE;
use crate::model::quantity::Resources;
use crate::state::snapshot::VolumeRequirements;

/// The supply of an unlimited resource, larger than any demand.
const UNLIMITED: i64 = i64::MAX / 4;

/// Resources that every node has come first; the others are rare.
pub(crate) const COMMON: usize = 4;

/// Names of the relevant resources. Quantities are vectors in this order.
#[derive(Debug)]
pub(crate) struct ResourceIndex(Vec<String>);

impl ResourceIndex {
    /// Collects the common resource names, then the other requested ones.
    pub(crate) fn from_names<'a>(names: impl Iterator<Item = (&'a String, &'a i64)>) -> Self {
        let first: [&str; COMMON] = ["cpu", "memory", "ephemeral-storage", "pods"];
        let mut extended = BTreeSet::new();
        let requested = names.filter(|(_, amount)| **amount > 0);
        extended.extend(requested.map(|(name, _)| name.as_str()));
        let all = first.into_iter().chain(extended);
        Self(all.map(str::to_owned).collect())
    }

    /// Returns the supply, or `None` if a quantity is negative, so that nothing fits. Attachable
    /// volumes without a known limit are unlimited.
    pub(crate) fn supply_of(&self, resources: &Resources) -> Option<Vec<i64>> {
        let is_valid = resources.iter().all(|(_, amount)| amount >= 0);
        is_valid.then(|| self.amounts_of(resources).collect())
    }

    /// Returns the remainder of each resource, including negative ones: kube-scheduler only checks
    /// resources that a pod requests.
    pub(crate) fn remainder_of(&self, resources: &Resources) -> Vec<i64> {
        self.amounts_of(resources).map(|amount| amount.max(0)).collect()
    }

    fn amounts_of(&self, resources: &Resources) -> impl Iterator<Item = i64> {
        self.0.iter().map(|name| {
            let unknown = name.starts_with(ATTACHABLE) && !resources.extended.contains_key(name);
            if unknown { UNLIMITED } else { resources.get(name) }
        })
    }

    /// Returns the demand. Negative quantities are treated as zero.
    pub(crate) fn demand_of(
        &self,
        resources: &Resources,
        mounts: Option<&VolumeRequirements>,
    ) -> Vec<i64> {
        self.0
            .iter()
            .map(|name| {
                let volumes = mounts.and_then(|mounts| mounts.attached.get(name));
                let amount = resources.get(name).max(0);
                amount.saturating_add(volumes.copied().unwrap_or(0).max(0))
            })
            .collect()
    }

    /// Returns the name of a resource.
    pub(crate) fn resource_name(&self, axis: usize) -> &str {
        &self.0[axis]
    }
}

/// Returns whether a demand fits. A comparison is much cheaper than a division.
pub(crate) fn fits(free: &[i64], demand: &[i64]) -> bool {
    free.iter().zip(demand).all(|(free, demand)| demand <= free)
}

/// Returns the maximum of each resource. A demand above it fits nowhere.
pub(crate) fn max_per_resource<'a>(mut all: impl Iterator<Item = &'a Vec<i64>>) -> Vec<i64> {
    let mut maximum = all.next().cloned().unwrap_or_default();
    for amounts in all {
        for (maximum, amount) in maximum.iter_mut().zip(amounts) {
            *maximum = (*maximum).max(*amount);
        }
    }
    maximum
}

/// Returns the running maximum of each resource.
pub(crate) fn running_max_per_resource<'a>(
    all: impl Iterator<Item = Option<&'a Vec<i64>>>,
) -> Vec<Vec<i64>> {
    let mut last = Vec::new();
    all.map(|amounts| {
        let both = [&last].into_iter().chain(amounts);
        last = max_per_resource(both.filter(|amounts| !amounts.is_empty()));
        last.clone()
    })
    .collect()
}

/// Returns how many times a demand fits.
pub(crate) fn copies_that_fit(free: &[i64], demand: &[i64]) -> u64 {
    if !fits(free, demand) {
        return 0;
    }
    free.iter()
        .zip(demand)
        .map(|(free, demand)| match *demand {
            0 => u64::MAX,
            demand => u64::try_from(free / demand).unwrap_or(0),
        })
        .min()
        .unwrap_or(u64::MAX)
}

/// Adds `count` demands.
pub(crate) fn add_demand(sum: &mut [i64], demand: &[i64], count: u64) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    for (sum, amount) in sum.iter_mut().zip(demand) {
        *sum = sum.saturating_add(amount.saturating_mul(count));
    }
}

/// Subtracts `count` demands, which must fit.
pub(crate) fn subtract_demand(free: &mut [i64], demand: &[i64], count: u64) {
    for (free, demand) in free.iter_mut().zip(demand) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        *free = free.saturating_sub(demand.saturating_mul(count));
    }
}

#[cfg(test)]
mod tests {
    use super::{copies_that_fit, fits, max_per_resource, running_max_per_resource};

    #[test]
    fn maximum_is_taken_per_resource() {
        let all = [vec![1, 9, 3], vec![4, 2, 3]];
        assert_eq!(max_per_resource(all.iter()), [4, 9, 3]);
        let none: [Vec<i64>; 0] = [];
        assert!(max_per_resource(none.iter()).is_empty());
        let some = [None, Some(&all[0]), None, Some(&all[1])];
        let so_far = running_max_per_resource(some.into_iter());
        assert_eq!(so_far, [vec![], vec![1, 9, 3], vec![1, 9, 3], vec![4, 9, 3]]);
    }

    #[test]
    fn number_of_copies_is_limited_by_the_scarcest_resource() {
        let cases = [
            ([10, 9, 3], [2, 3, 1], 3),
            ([10, 9, 0], [2, 3, 1], 0),
            ([10, 9, 0], [2, 3, 0], 3),
            ([0, 0, 0], [0, 0, 0], u64::MAX),
            ([i64::MAX, 1, 1], [1, 1, 1], 1),
        ];
        for (free, demand, expect) in cases {
            assert_eq!(copies_that_fit(&free, &demand), expect, "{demand:?} in {free:?}");
            assert_eq!(fits(&free, &demand), expect > 0, "{demand:?} in {free:?}");
        }
    }
}
