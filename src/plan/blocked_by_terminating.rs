//! Plans another node for pods that kube-scheduler does not bind as planned because of pods on
//! terminating nodes.
//!
//! A plan counts the pods of a terminating node on their future node. kube-scheduler counts them on
//! their current node. kube-scheduler may therefore find no node for a pod with topology spread or
//! anti-affinity against the terminating pods, although a node is free. Most of these pods are gone
//! within seconds. But if a PodDisruptionBudget keeps them until the pending pod runs, each of the
//! pods would wait for the other forever.

use std::collections::BTreeMap;

use foldhash::HashSet;
use jiff::{SignedDuration, Timestamp};

use crate::model::id::PodKey;
use crate::model::pod::Pod;
use crate::plan::buffers::subtract_placed;
use crate::plan::projection::{assign_to_claims, placeholder_node, with_claims};
use crate::scheduling::{NewNodeClaim, solve};
use crate::state::snapshot::{BoundPodGroup, NodeRef, Snapshot};

/// Younger pods may still be bound as planned: other pods terminate, and the scheduler retries a
/// pod within ten seconds of a change.
pub(super) const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// Replans the pods that are not bound as planned. All other pods are counted on their current
/// nodes, except pods of nodes whose termination has just begun, which a snapshot counts as gone.
/// Pods without a new node keep their placement.
pub(super) fn replan_stuck_pods(
    snapshot: &Snapshot<'_>,
    launches: &mut Vec<NewNodeClaim>,
    placed: &mut Vec<(NodeRef, Vec<PodKey>)>,
    now: Timestamp,
) {
    let stuck = stuck_pods(snapshot, placed, now);
    if stuck.is_empty() || snapshot.reschedulable.is_empty() {
        return;
    }
    let is_stuck: HashSet<&PodKey> = stuck.iter().map(|pod| &pod.key).collect();
    let others = placed.iter().map(|(host, pods)| {
        let pods = pods.iter().filter(|key| !is_stuck.contains(key));
        (host.clone(), pods.cloned().collect())
    });
    let others: Vec<(NodeRef, Vec<PodKey>)> = others.collect();
    let mut replanned: Snapshot<'_> = with_claims(snapshot, launches).into_owned();
    subtract_placed(&mut replanned.rooms, &others, snapshot);
    replanned.residents.extend(snapshot.reschedulable.iter().filter_map(bound_to_node));
    // Pods placed by this plan or an earlier one are counted on their planned nodes.
    let planned = launches.iter().enumerate();
    let planned = planned.map(|(index, claim)| (placeholder_node(index), claim.pods.clone()));
    let waiting = snapshot.pending.iter().map(|pod| (&pod.key, *pod));
    let waiting: BTreeMap<&PodKey, &Pod> = waiting.collect();
    for (host, pods) in others.into_iter().chain(planned) {
        let pods = pods.iter().filter_map(|key| waiting.get(key).copied());
        replanned.promised.entry(host).or_default().extend(pods);
    }
    for pods in replanned.promised.values_mut() {
        pods.retain(|pod| pod.is_waiting());
    }
    replanned.pending.clone_from(&stuck);
    let solution = solve(&replanned, now);
    let answered = solution.placed.iter().flat_map(|(_, pods)| pods);
    let answered: HashSet<&PodKey> =
        answered.chain(solution.claims.iter().flat_map(|claim| &claim.pods)).collect();
    for (_, pods) in placed.iter_mut() {
        pods.retain(|key| !answered.contains(key));
    }
    let mut all: BTreeMap<NodeRef, Vec<PodKey>> = placed.drain(..).collect();
    for (host, pods) in assign_to_claims(solution.placed, launches, snapshot) {
        all.entry(host).or_default().extend(pods);
    }
    all.retain(|_, pods| !pods.is_empty());
    placed.extend(all);
    launches.extend(solution.claims);
}

/// Returns the pods that are planned on a ready node but reported as unschedulable.
fn stuck_pods<'a>(
    snapshot: &Snapshot<'a>,
    placed: &[(NodeRef, Vec<PodKey>)],
    now: Timestamp,
) -> Vec<&'a Pod> {
    let open = snapshot.rooms.iter().filter(|room| room.initialized);
    let open: HashSet<&NodeRef> = open.map(|room| &room.host).collect();
    let on_nodes = placed.iter().filter(|(host, _)| open.contains(host));
    let on_nodes: HashSet<&PodKey> = on_nodes.flat_map(|(_, pods)| pods).collect();
    let mut stuck = snapshot.pending.clone();
    stuck.retain(|pod| {
        let waits = pod.is_waiting() && pod.unschedulable && is_old(pod, now);
        // Pods of a gang are placed together or not at all.
        waits && pod.gang.is_none() && on_nodes.contains(&pod.key)
    });
    stuck
}

/// Returns whether a pod has existed for [`PATIENCE`].
pub(super) fn is_old(pod: &Pod, now: Timestamp) -> bool {
    pod.created.is_some_and(|at| now.duration_since(at) >= PATIENCE)
}

/// A pod to reschedule, counted on its current node.
fn bound_to_node<'a>(pod: &&'a Pod) -> Option<BoundPodGroup<'a>> {
    Some(BoundPodGroup {
        namespace: &pod.key.namespace,
        labels: &pod.labels,
        anti_affinity: &pod.anti_affinity,
        deleting: pod.deleting.is_some(),
        nodes: vec![(pod.node.as_ref()?, 1)],
    })
}
