//! Amounts of resources as vectors: which resources matter, and how often a demand fits.
//! It must not know who asks.

use std::collections::BTreeSet;

use crate::model::labels::ATTACHABLE;
use crate::model::quantity::Resources;
use crate::state::snapshot::VolumeRequirements;

/// More than anyone asks for: what there is of a resource that has no limit.
const UNLIMITED: i64 = i64::MAX / 4;

/// Resources that every node has come first; the others are rare.
pub(crate) const COMMON: usize = 4;

/// The names of the resources that matter, each an ordinal; amounts are vectors over them.
#[derive(Debug)]
pub(crate) struct ResourceIndex(Vec<String>);

impl ResourceIndex {
    /// Those of these names that anyone asks for, after the common ones.
    pub(crate) fn of<'a>(names: impl Iterator<Item = (&'a String, &'a i64)>) -> Self {
        let first: [&str; COMMON] = ["cpu", "memory", "ephemeral-storage", "pods"];
        let mut extended = BTreeSet::new();
        for (name, amount) in names {
            if *amount > 0 && !extended.contains(name.as_str()) {
                extended.insert(name.as_str());
            }
        }
        Self(
            first
                .into_iter()
                .chain(extended)
                .map(str::to_owned)
                .collect(),
        )
    }

    /// What there is, or none at all where some amount is below zero: nothing fits there. Of
    /// volumes to attach there is no limit where none is known.
    pub(crate) fn supply(&self, resources: &Resources) -> Option<Vec<i64>> {
        let whole = resources.iter().all(|(_, amount)| amount >= 0);
        whole.then(|| self.amounts(resources).collect())
    }

    /// What is left of each resource; the scheduler asks only for those that a pod asks for.
    pub(crate) fn rest(&self, resources: &Resources) -> Vec<i64> {
        self.amounts(resources)
            .map(|amount| amount.max(0))
            .collect()
    }

    fn amounts(&self, resources: &Resources) -> impl Iterator<Item = i64> {
        self.0.iter().map(|name| {
            let unknown = name.starts_with(ATTACHABLE) && !resources.extended.contains_key(name);
            if unknown {
                UNLIMITED
            } else {
                resources.get(name)
            }
        })
    }

    /// What is asked for; an amount below zero asks for nothing.
    pub(crate) fn demand(
        &self,
        resources: &Resources,
        mounts: Option<&VolumeRequirements>,
    ) -> Vec<i64> {
        let volumes = |name: &str| mounts.and_then(|mounts| mounts.attached.get(name));
        let amount = |name: &String| {
            let own = resources.get(name).max(0);
            own.saturating_add(volumes(name).copied().unwrap_or(0).max(0))
        };
        self.0.iter().map(amount).collect()
    }

    /// The name of an axis.
    pub(crate) fn name(&self, axis: usize) -> &str {
        &self.0[axis]
    }
}

/// Whether a demand fits into what is free. A comparison is much cheaper than a division.
pub(crate) fn fits(free: &[i64], demand: &[i64]) -> bool {
    free.iter().zip(demand).all(|(free, demand)| demand <= free)
}

/// The most of each resource that there is in any of these: where a demand does not fit into that,
/// it fits into none of them.
pub(crate) fn most<'a>(mut all: impl Iterator<Item = &'a Vec<i64>>) -> Vec<i64> {
    let mut most = all.next().cloned().unwrap_or_default();
    for own in all {
        for (most, own) in most.iter_mut().zip(own) {
            *most = (*most).max(*own);
        }
    }
    most
}

/// The same of each of these and all before it; where there is nothing, nothing is added.
pub(crate) fn most_so_far<'a>(all: impl Iterator<Item = Option<&'a Vec<i64>>>) -> Vec<Vec<i64>> {
    let mut last = Vec::new();
    let so_far = all.map(|own| {
        last = most([&last].into_iter().chain(own).filter(|own| !own.is_empty()));
        last.clone()
    });
    so_far.collect()
}

/// How many times a demand fits into what is free.
pub(crate) fn times(free: &[i64], demand: &[i64]) -> u64 {
    if !fits(free, demand) {
        return 0;
    }
    let ratio = |(free, demand): (&i64, &i64)| match *demand {
        0 => u64::MAX,
        demand => u64::try_from(free / demand).unwrap_or(0),
    };
    free.iter().zip(demand).map(ratio).min().unwrap_or(u64::MAX)
}

/// Takes `count` demands out of what is free. They must fit.
pub(crate) fn take(free: &mut [i64], demand: &[i64], count: u64) {
    for (free, demand) in free.iter_mut().zip(demand) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        *free = free.saturating_sub(demand.saturating_mul(count));
    }
}

#[cfg(test)]
mod tests {
    use super::{fits, most, most_so_far, times};

    #[test]
    fn the_most_is_of_each_resource_by_itself() {
        let all = [vec![1, 9, 3], vec![4, 2, 3]];
        assert_eq!(most(all.iter()), [4, 9, 3]);
        let none: [Vec<i64>; 0] = [];
        assert!(most(none.iter()).is_empty());
        let some = [None, Some(&all[0]), None, Some(&all[1])];
        let so_far = most_so_far(some.into_iter());
        assert_eq!(
            so_far,
            [vec![], vec![1, 9, 3], vec![1, 9, 3], vec![4, 9, 3]]
        );
    }

    #[test]
    fn a_demand_fits_as_often_as_its_scarcest_resource_allows() {
        let cases = [
            ([10, 9, 3], [2, 3, 1], 3),
            ([10, 9, 0], [2, 3, 1], 0),
            ([10, 9, 0], [2, 3, 0], 3),
            ([0, 0, 0], [0, 0, 0], u64::MAX),
            ([i64::MAX, 1, 1], [1, 1, 1], 1),
        ];
        for (free, demand, expect) in cases {
            assert_eq!(times(&free, &demand), expect, "{demand:?} in {free:?}");
            assert_eq!(fits(&free, &demand), expect > 0, "{demand:?} in {free:?}");
        }
    }
}
