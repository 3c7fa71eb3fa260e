//! Computes a second plan in which no two pods with the same topology spread share a node. All
//! placements of such a plan can be nominated together. The second plan is chosen if it costs
//! little more than the first one.
//!
//! When kube-scheduler evaluates a node for a spread pod, it counts pods that are nominated for
//! that node as running there. If nine pods of one Deployment are planned on one node, they can
//! only be nominated one by one. Meanwhile the scheduler binds the other eight freely, possibly on
//! nodes planned for other pods.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::affinity::{PodTerm, TopologySpread};
use crate::model::cluster::PlacementHints;
use crate::model::id::PodKey;
use crate::model::labels::{HOSTNAME, Labels};
use crate::model::pod::Pod;
use crate::scheduling::{NewNodeClaim, Solution, solve};
use crate::state::snapshot::Snapshot;

/// Maximum number of pods for a second plan. The time for the plan grows with the number of pods,
/// and for many pods of a kind there are rarely enough nodes.
const PODS_MAX: usize = 2_000;

/// Highest relative cost of the second plan. If pods are bound freely, the first plan costs about a
/// tenth more than planned (`docs/BENCHMARKS.md`).
const DEARER_MAX: f64 = 1.05;

/// Returns the better of the two plans.
pub(super) fn prefer_separated(
    first: Solution,
    snapshot: &Snapshot<'_>,
    now: Timestamp,
) -> Solution {
    let off = snapshot.cluster.placement_hints != PlacementHints::On;
    if off || snapshot.pending.len() > PODS_MAX || !exceeds_skew(&first, snapshot) {
        return first;
    }
    let pods: Vec<Pod> = snapshot.pending.iter().map(|pod| separated_pod(pod)).collect();
    let mut separated = snapshot.clone();
    separated.pending = pods.iter().collect();
    let second = solve(&separated, now);
    let unplaced = first.unplaced.iter().map(|unplaced| &unplaced.pod);
    if !unplaced.eq(second.unplaced.iter().map(|unplaced| &unplaced.pod))
        || total_price(&second.claims, snapshot) > DEARER_MAX * total_price(&first.claims, snapshot)
    {
        return first;
    }
    // The rejections of the second plan would name rules that the pods do not have.
    Solution { unplaced: first.unplaced, ..second }
}

/// Returns the topology spread constraints whose domain is larger than a node.
fn wide_spread(pod: &Pod) -> impl Iterator<Item = &TopologySpread> {
    let spread = pod.spread.iter();
    spread.filter(|spread| spread.is_hard && spread.topology_key != HOSTNAME)
}

/// Returns whether a planned node gets more pods with the same spread than the skew allows.
fn exceeds_skew(solution: &Solution, snapshot: &Snapshot<'_>) -> bool {
    let pending = snapshot.pending.iter();
    let known: BTreeMap<&PodKey, &Pod> = pending
        .filter(|pod| wide_spread(pod).next().is_some())
        .map(|pod| (&pod.key, *pod))
        .collect();
    if known.is_empty() {
        return false;
    }
    solution.claims.iter().any(|claim| {
        let mut alike: BTreeMap<(&str, &Labels), u32> = BTreeMap::new();
        let mut pods = claim.pods.iter().filter_map(|key| known.get(key));
        pods.any(|pod| {
            let kin = (pod.key.namespace.as_str(), &pod.labels);
            let count = alike.entry(kin).or_insert(0);
            *count += 1;
            wide_spread(pod).any(|spread| *count > spread.max_skew)
        })
    })
}

/// Returns a copy of the pod with anti-affinity to the pods with which it is spread.
fn separated_pod(pod: &Pod) -> Pod {
    let mut separated = pod.clone();
    for spread in wide_spread(pod) {
        if spread.max_skew <= 1 {
            separated.anti_affinity.push(PodTerm {
                selector: spread.selector.clone(),
                namespaces: [pod.key.namespace.clone()].into(),
                namespace_selector: None,
                topology_key: HOSTNAME.to_owned(),
            });
        } else {
            separated.spread.push(TopologySpread {
                topology_key: HOSTNAME.to_owned(),
                min_domains: 1,
                ..spread.clone()
            });
        }
    }
    separated
}

/// Returns the price of new nodes, including the per-node cost.
fn total_price(claims: &[NewNodeClaim], snapshot: &Snapshot<'_>) -> f64 {
    let overhead = snapshot.cluster.scheduling.node_overhead_price.usd_per_h();
    let prices = claims.iter().filter_map(|claim| claim.offerings.first());
    prices.map(|(_, price)| price.usd_per_h() + overhead).sum()
}
