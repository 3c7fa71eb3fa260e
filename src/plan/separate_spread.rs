//! A second plan, in which a scheduler can be told of all places: no two pods that are spread alike
//! share a node. It is taken where it costs little more than the first.
//! It must not know how pods are told.
//!
//! A scheduler counts the pods that were told of a node as being there where it looks at that node
//! for one that is spread with them. Nine of one Deployment, planned on one node, can so be told of
//! it one by one only, and meanwhile the others go where they like, and take others' places.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::affinity::{PodTerm, TopologySpread};
use crate::model::cluster::PlacementHints;
use crate::model::id::PodKey;
use crate::model::labels::{HOSTNAME, Labels};
use crate::model::pod::Pod;
use crate::scheduling::{NewNodeClaim, Solution, solve};
use crate::state::snapshot::Snapshot;

/// A second plan is made for so many pods at most: what it takes grows with them, and the more
/// there are of a kind, the less likely there are nodes enough.
const PODS_MAX: usize = 2_000;

/// How much more the second plan may cost. What the first gets as pods go where they like is about
/// a tenth dearer than planned (`docs/BENCHMARKS.md`).
const DEARER_MAX: f64 = 1.05;

/// Whichever of the two plans is better.
pub(super) fn or_apart(first: Solution, snapshot: &Snapshot<'_>, now: Timestamp) -> Solution {
    let off = snapshot.cluster.placement_hints != PlacementHints::On;
    if off || snapshot.pending.len() > PODS_MAX || !is_crowded(&first, snapshot) {
        return first;
    }
    let pods: Vec<Pod> = snapshot.pending.iter().map(|pod| apart(pod)).collect();
    let mut own = snapshot.clone();
    own.pending = pods.iter().collect();
    let second = solve(&own, now);
    let cost = |solution: &Solution| cost(&solution.claims, snapshot);
    let pods = |solution: &Solution| -> Vec<PodKey> {
        let unplaced = solution.unplaced.iter();
        unplaced.map(|own| own.pod.clone()).collect()
    };
    if pods(&second) != pods(&first) || cost(&second) > DEARER_MAX * cost(&first) {
        return first;
    }
    // Its reasons would speak of rules that the pods do not have.
    Solution {
        unplaced: first.unplaced,
        ..second
    }
}

/// Spread that counts for more than one node.
fn wide(pod: &Pod) -> impl Iterator<Item = &TopologySpread> {
    let spread = pod.spread.iter();
    spread.filter(|own| own.is_hard && own.topology_key != HOSTNAME)
}

/// Whether a planned node gets more pods that are spread alike than may be ahead anywhere.
fn is_crowded(solution: &Solution, snapshot: &Snapshot<'_>) -> bool {
    let pending = snapshot.pending.iter();
    let known: BTreeMap<&PodKey, &Pod> = pending
        .filter(|pod| wide(pod).next().is_some())
        .map(|pod| (&pod.key, *pod))
        .collect();
    if known.is_empty() {
        return false;
    }
    let crowded = |claim: &NewNodeClaim| {
        let mut alike: BTreeMap<(&str, &Labels), u32> = BTreeMap::new();
        let mut pods = claim.pods.iter().filter_map(|key| known.get(key));
        pods.any(|pod| {
            let kin = (pod.key.namespace.as_str(), &pod.labels);
            let count = alike.entry(kin).or_insert(0);
            *count += 1;
            wide(pod).any(|own| *count > own.max_skew)
        })
    };
    solution.claims.iter().any(crowded)
}

/// The pod, as if it were kept apart from those that it is spread with.
fn apart(pod: &Pod) -> Pod {
    let mut own = pod.clone();
    for spread in wide(pod) {
        if spread.max_skew <= 1 {
            own.anti_affinity.push(PodTerm {
                selector: spread.selector.clone(),
                namespaces: [pod.key.namespace.clone()].into(),
                namespace_selector: None,
                topology_key: HOSTNAME.to_owned(),
            });
        } else {
            own.spread.push(TopologySpread {
                topology_key: HOSTNAME.to_owned(),
                min_domains: 1,
                ..spread.clone()
            });
        }
    }
    own
}

/// What the nodes to be made cost, each with the price per node.
fn cost(claims: &[NewNodeClaim], snapshot: &Snapshot<'_>) -> f64 {
    let each = snapshot.cluster.scheduling.node_price.usd_per_h();
    let prices = claims.iter().filter_map(|own| own.offerings.first());
    prices.map(|(_, price)| price.usd_per_h() + each).sum()
}
