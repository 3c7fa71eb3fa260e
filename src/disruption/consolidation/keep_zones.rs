//! Assigns identical pods to nodes so that as many as possible stay in their zone.
//!
//! A plan treats identical pods as interchangeable. A scheduler that spreads them over zones does
//! not treat them so while they move: if a pod leaves a zone, its replacement must be scheduled in
//! that zone.

use std::collections::BTreeMap;

use foldhash::HashMap;

use crate::model::id::{NodeName, PodKey};
use crate::model::labels::ZONE;
use crate::model::pod::Pod;
use crate::scheduling::static_pools::sole_value;
use crate::scheduling::{NewNodeClaim, Solution};
use crate::state::snapshot::NodeRef;
use crate::state::what_if::WhatIf;

/// Swaps the placements of identical pods of one owner so that as few pods as possible leave their
/// zone.
pub fn keep_pods_in_zones(solution: &mut Solution, pods: &[&Pod], field: &WhatIf<'_>) {
    let rooms = field.snapshot.rooms.iter();
    let zones = rooms.filter_map(|room| Some((&room.host, sole_value(&room.labels, ZONE)?)));
    let of_nodes = zones.clone().filter_map(|(host, zone)| match host {
        NodeRef::Node(name) => Some((name, zone)),
        NodeRef::Claim(_) => None,
    });
    let of_nodes: HashMap<&NodeName, &str> = of_nodes.collect();
    let zones: HashMap<&NodeRef, &str> = zones.collect();
    let kinds = identical_pods(pods, &of_nodes);
    let claims = solution.claims.iter_mut().map(|claim| {
        let zone = zone_of(claim);
        (zone, &mut claim.pods)
    });
    let hosts = solution.placed.iter_mut();
    let hosts = hosts.map(|(host, pods)| (zones.get(host).map(|zone| (*zone).to_owned()), pods));
    let (zones, mut places): (Vec<Option<String>>, Vec<&mut Vec<PodKey>>) =
        claims.chain(hosts).unzip();
    // For each kind, the pods by source zone and the planned placements.
    let mut from: BTreeMap<(&PodKey, &str), Vec<PodKey>> = BTreeMap::new();
    let mut moved: Vec<(usize, usize, &PodKey)> = Vec::new();
    for (place, pods) in places.iter_mut().enumerate() {
        for (nth, key) in pods.iter_mut().enumerate() {
            if let Some((first, zone)) = kinds.get(key).copied() {
                let pod = std::mem::take(key);
                from.entry((first, zone)).or_default().push(pod);
                moved.push((place, nth, first));
            }
        }
    }
    from.values_mut().for_each(|all| all.reverse());
    let mut left = Vec::new();
    for (place, nth, first) in moved {
        let zone = zones[place].as_deref().unwrap_or("");
        match from.get_mut(&(first, zone)).and_then(Vec::pop) {
            Some(pod) => places[place][nth] = pod,
            None => left.push((place, nth, first)),
        }
    }
    let mut others: BTreeMap<&PodKey, Vec<PodKey>> = BTreeMap::new();
    for ((first, _), all) in from {
        others.entry(first).or_default().extend(all);
    }
    for (place, nth, first) in left {
        if let Some(pod) = others.get_mut(first).and_then(Vec::pop) {
            places[place][nth] = pod;
        }
    }
    for claim in &mut solution.claims {
        claim.pods.sort();
    }
    for (_, pods) in &mut solution.placed {
        pods.sort();
    }
}

/// Maps each bound pod with an owner to the first identical pod of that owner, which represents it,
/// and to the zone of its node.
fn identical_pods<'a>(
    pods: &[&'a Pod],
    zones: &HashMap<&NodeName, &'a str>,
) -> HashMap<&'a PodKey, (&'a PodKey, &'a str)> {
    let mut owned: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        if let (Some(owner), Some(_)) = (&pod.owner, &pod.node) {
            owned.entry(owner.uid.as_str()).or_default().push(pod);
        }
    }
    let mut kinds = HashMap::default();
    for all in owned.values() {
        let mut firsts: Vec<&Pod> = Vec::new();
        for pod in all {
            let first = firsts.iter().copied().find(|first| first.is_like(pod));
            let first = first.unwrap_or_else(|| {
                firsts.push(pod);
                pod
            });
            let zone = pod.node.as_ref().and_then(|name| zones.get(name));
            kinds.insert(&pod.key, (&first.key, zone.copied().unwrap_or_default()));
        }
    }
    kinds
}

/// Returns the zone of a new node if it has only one.
fn zone_of(claim: &NewNodeClaim) -> Option<String> {
    let mut zones = claim.offerings.iter().map(|(key, _)| key.zone.as_str());
    let first = zones.next()?;
    zones.all(|zone| zone == first).then(|| first.to_owned())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::keep_pods_in_zones;
    use crate::model::id::{ObjectKey, PodKey};
    use crate::model::labels::ZONE;
    use crate::model::pod::{Owner, Pod};
    use crate::model::watched_object::WatchedObject;
    use crate::scheduling::Solution;
    use crate::state::State;
    use crate::state::fixtures::{NOW, node, pod};
    use crate::state::snapshot::NodeRef;

    fn owned(name: &str, on: &str, cpu: i64) -> Pod {
        let mut pod = pod("default", name, on);
        pod.owner =
            Some(Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() });
        pod.requests.cpu_milli = cpu;
        pod
    }

    fn key(name: &str) -> PodKey {
        ObjectKey::new("default", name)
    }

    #[test]
    fn identical_pods_keep_their_zones() {
        let mut state = State::default();
        for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
            let WatchedObject::Node(mut node) = node(name) else { panic!("a node") };
            node.labels.insert(ZONE.into(), zone.into());
            state.objects.apply(WatchedObject::Node(node), NOW);
        }
        let pods = [
            owned("p", "a1", 100),
            owned("q", "b1", 100),
            owned("r", "b1", 100),
            owned("large", "a1", 900),
        ];
        for pod in &pods {
            state.objects.apply(pod.clone().into(), Timestamp::UNIX_EPOCH);
        }
        let what_if = state.what_if(NOW);
        let pods: Vec<&Pod> = pods.iter().collect();
        let node_ref = |name: &str| NodeRef::Node(name.into());
        let mut solution = Solution {
            placed: vec![
                (node_ref("a2"), vec![key("q"), key("r")]),
                (node_ref("b2"), vec![key("large"), key("p")]),
            ],
            ..Solution::default()
        };
        keep_pods_in_zones(&mut solution, &pods, &what_if);
        // Two of three pods are planned in zone a, and one already runs there. No pod is identical
        // to the large one.
        let expect = vec![
            (node_ref("a2"), vec![key("p"), key("r")]),
            (node_ref("b2"), vec![key("large"), key("q")]),
        ];
        assert_eq!(solution.placed, expect);
    }
}
