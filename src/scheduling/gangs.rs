//! Finds gangs of which fewer than the required number of pods can be scheduled.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::id::PodKey;
use crate::model::pod::Pod;
use crate::scheduling::Solution;
use crate::scheduling::rejection::RejectionDetail;
use crate::state::snapshot::Snapshot;

/// Returns gangs with too few scheduled pods, with the reason. Bound and planned pods count as
/// scheduled.
pub(super) fn incomplete_gangs<'p>(
    snapshot: &Snapshot<'p>,
    sound: &[&'p Pod],
    solution: &Solution,
) -> BTreeMap<(&'p str, &'p str), RejectionDetail> {
    if sound.iter().all(|pod| pod.gang.is_none()) {
        return BTreeMap::new();
    }
    let placed: BTreeSet<&PodKey> = solution.order.iter().collect();
    let mut bound = snapshot.gangs.clone();
    for pod in snapshot.promised.values().flatten() {
        if let Some(key) = pod.gang_key() {
            *bound.entry(key).or_insert(0) += 1;
        }
    }
    // Number of scheduled, pending and required pods.
    let mut gangs: BTreeMap<(&str, &str), (usize, usize, Option<u32>)> = BTreeMap::new();
    for pod in &snapshot.pending {
        if let Some(key) = pod.gang_key() {
            let least = pod.gang.as_ref().and_then(|gang| gang.least);
            let gang = gangs.entry(key).or_insert((0, 0, None));
            gang.0 += usize::from(placed.contains(&pod.key));
            gang.1 += 1;
            gang.2 = gang.2.max(least);
        }
    }
    let mut short = BTreeMap::new();
    for (key, (placed, waiting, least)) in gangs {
        let bound_pods = bound.get(&key).copied().unwrap_or(0);
        let least = least.map_or(waiting + bound_pods, |least| least as usize);
        if placed > 0 && placed + bound_pods < least {
            let miss = RejectionDetail::Gang {
                name: key.1.to_owned(),
                placed: placed + bound_pods,
                least,
            };
            short.insert(key, miss);
        }
    }
    short
}
