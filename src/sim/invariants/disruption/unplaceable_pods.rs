//! Pods of disrupted nodes that fit on no other node.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{FRESH, NodeChoice, STEPS_MAX};
use crate::model::id::PodKey;
use crate::model::labels::{REGISTERED, TAINT_UNREGISTERED};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::sim::cluster::scheduler_filters::{fits, fits_when_empty};
use crate::sim::event_queue::time_after;
use crate::sim::invariants::GroundTruth;
use crate::sim::workload::{SimPdb, Workload};

/// A node that may accept pods, with its used resources.
struct Host<'a> {
    node: &'a Node,
    used: Resources,
}

impl Host<'_> {
    /// Returns true if a pod of a workload fits.
    fn has_room_for(&self, workload: &Workload) -> bool {
        fits(workload, self.node, &self.used)
    }
}

/// Number of replacements of the counted pods that fit on no other node, for the best of a few
/// heuristics or an exhaustive search. Pods whose budget never allows an eviction are not counted.
/// Hidden pods and pods started recently on the other nodes are ignored, because the daemon may not
/// know them.
pub(super) fn unplaceable_pods(
    leaving: &Node,
    counts: impl Fn(&Pod) -> bool,
    scene: &GroundTruth,
    hidden: &BTreeSet<PodKey>,
    now: Timestamp,
) -> usize {
    let store = scene.cluster.store();
    let mut reschedulable: Vec<&Workload> = store
        .pods_on(leaving.name.as_str())
        .filter(|pod| {
            let owner = pod.owner.as_ref().map_or("", |owner| owner.kind.as_str());
            let returns = matches!(owner, "ReplicaSet" | "StatefulSet" | "Job");
            pod.holds_drain(now) && pod.deleting.is_none() && returns && counts(pod)
        })
        .filter_map(|pod| Some(&scene.cluster.owner_of(pod)?.workload))
        .filter(|workload| !workload.budget.is_some_and(SimPdb::blocks_permanently))
        .collect();
    let nodes: Vec<Node> = store
        .nodes()
        .values()
        .filter(|node| node.name != leaving.name && node.ready)
        .cloned()
        .map(|mut node| {
            // A registered node is untainted once the pods it was planned for have been evicted
            // from their nodes.
            if node.labels.contains_key(REGISTERED) {
                node.taints.retain(|taint| taint.key != TAINT_UNREGISTERED);
            }
            node
        })
        .collect();
    let mut hosts: Vec<Host<'_>> = Vec::new();
    for node in &nodes {
        let mut used = Resources::default();
        for pod in store.pods_on(node.name.as_str()) {
            let is_known = !hidden.contains(&pod.key)
                && pod.started.is_some_and(|at| time_after(at, FRESH) <= now);
            if is_known && !pod.is_terminal() {
                used.add(&pod.requests);
            }
        }
        hosts.push(Host { node, used });
    }
    let used: Vec<Resources> = hosts.iter().map(|host| host.used.clone()).collect();
    let mut min_unplaced = reschedulable.len();
    for order in 0..3 {
        reschedulable.sort_by_cached_key(|workload| {
            let size = match order {
                0 => workload.requests.cpu_milli,
                _ => workload.requests.memory,
            };
            let nodes =
                hosts.iter().filter(|host| order < 2 && fits_when_empty(workload, host.node));
            (nodes.count(), -size)
        });
        for choice in [NodeChoice::First, NodeChoice::Fullest, NodeChoice::Alike] {
            min_unplaced = min_unplaced.min(unplaced_count(&reschedulable, &hosts, &used, choice));
        }
    }
    if min_unplaced == 0 || can_place_all(reschedulable, hosts) {
        return 0;
    }
    min_unplaced
}

/// Returns true if all pods fit at the same time, within a limited number of steps. Pods that fit
/// on the fewest nodes are placed first. Nodes on which no pod fits are ignored.
fn can_place_all(mut reschedulable: Vec<&Workload>, mut hosts: Vec<Host<'_>>) -> bool {
    hosts.retain(|host| reschedulable.iter().any(|workload| host.has_room_for(workload)));
    reschedulable.sort_by_cached_key(|workload| {
        (
            hosts.iter().filter(|host| host.has_room_for(workload)).count(),
            -workload.requests.cpu_milli,
            workload.name.clone(),
        )
    });
    let mut used: Vec<Resources> = hosts.iter().map(|host| host.used.clone()).collect();
    all_fit(&reschedulable, &hosts, &mut used, 0, &mut { STEPS_MAX })
}

/// Returns true if all pods fit at the same time, within a limited number of steps. Identical pods
/// are consecutive, and each is placed on the node of the previous pod or on a later node.
fn all_fit(
    reschedulable: &[&Workload],
    hosts: &[Host<'_>],
    used: &mut [Resources],
    from: usize,
    steps: &mut usize,
) -> bool {
    let Some((workload, others)) = reschedulable.split_first() else {
        return true;
    };
    if others.iter().all(|other| other.name == workload.name) {
        return unplaced_count(reschedulable, hosts, used, NodeChoice::First) == 0;
    }
    let next = others.first();
    let next_is_alike = next.is_some_and(|next| next.name == workload.name);
    for index in from..hosts.len() {
        if *steps == 0 {
            return false;
        }
        *steps -= 1;
        if !fits(workload, hosts[index].node, &used[index]) {
            continue;
        }
        let before = used[index].clone();
        used[index].add(&workload.requests);
        used[index].pods += 1;
        let next_index = if next_is_alike { index } else { 0 };
        if all_fit(others, hosts, used, next_index, steps) {
            return true;
        }
        used[index] = before;
    }
    false
}

/// Number of pods that do not fit if each is placed on the selected node.
fn unplaced_count(
    reschedulable: &[&Workload],
    hosts: &[Host<'_>],
    used: &[Resources],
    choice: NodeChoice,
) -> usize {
    let mut used = used.to_vec();
    let mut unplaced = 0;
    for workload in reschedulable {
        let mut places =
            (0..hosts.len()).filter(|index| fits(workload, hosts[*index].node, &used[*index]));
        let wanted = memory_per_cpu(workload.requests.cpu_milli, workload.requests.memory);
        let index = match choice {
            NodeChoice::First => places.next(),
            NodeChoice::Fullest => places.min_by_key(|index| {
                hosts[*index].node.allocatable.cpu_milli - used[*index].cpu_milli
            }),
            NodeChoice::Alike => places.min_by_key(|index| {
                let (has, used) = (&hosts[*index].node.allocatable, &used[*index]);
                memory_per_cpu(has.cpu_milli - used.cpu_milli, has.memory - used.memory)
                    .abs_diff(wanted)
            }),
        };
        match index {
            Some(index) => {
                used[index].add(&workload.requests);
                used[index].pods += 1;
            }
            None => unplaced += 1,
        }
    }
    unplaced
}

/// Binary logarithm of the ratio of memory to CPU.
fn memory_per_cpu(cpu_milli: i64, memory: i64) -> u32 {
    (memory / cpu_milli.max(1)).max(1).ilog2()
}
