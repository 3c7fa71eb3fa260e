//! The Kubernetes rules for one pod and one node, or for two pods, implemented from the
//! documentation.
//!
//! The product is only used to evaluate whether a requirement allows a value or its absence.
//! `requirements.rs` checks both against plain expressions.

use std::collections::{BTreeMap, BTreeSet};

use outrigger::model::affinity::{PodTerm, TopologySpread};
use outrigger::model::id::PodKey;
use outrigger::model::labels::{ATTACHABLE, Labels, NODE_NAME};
use outrigger::model::pod::Pod;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use outrigger::model::watched_object::{ObjectKind, WorkloadSelector};
use outrigger::state::snapshot::VolumeRequirements;

use super::fixture::World;

pub(crate) type Check = Result<(), String>;

pub(crate) fn ensure(holds: bool, what: impl Fn() -> String) -> Check {
    if holds { Ok(()) } else { Err(what()) }
}

/// Labels of namespaces by their names.
pub(crate) type Namespaces = BTreeMap<String, Labels>;

/// Whether a label with this value, or an absent label, satisfies a requirement.
pub(crate) fn allows(wanted: &Requirement, value: Option<&String>) -> bool {
    match value {
        Some(value) => wanted.allows_value(value),
        None => wanted.allows_absence(),
    }
}

/// Whether a label selector matches these labels. A missing selector matches nothing, and one
/// without expressions everything.
pub(crate) fn selector_matches(selector: Option<&Selector>, labels: &Labels) -> bool {
    selector.is_some_and(|selector| {
        let mut expressions = selector.expressions().iter();
        expressions.all(|(key, wanted)| allows(wanted, labels.get(key)))
    })
}

/// The spread constraints of a pod: its own, or else the configured ones, with the conjunction of
/// the selectors of its Services and its controller, whether the controller selects the pod or not.
pub(crate) fn spread_of(world: &World, pod: &Pod) -> Vec<TopologySpread> {
    if !pod.spread.is_empty() {
        return pod.spread.clone();
    }
    let owner = pod.owner.as_ref().map(|owner| (owner.kind.as_str(), &owner.name));
    let selects_it = |workload: &&WorkloadSelector| {
        let here = workload.key.namespace == pod.key.namespace;
        here && match workload.kind {
            ObjectKind::Service => selector_matches(Some(&workload.selector), &pod.labels),
            ObjectKind::ReplicaSet => owner == Some(("ReplicaSet", &workload.key.name)),
            other => panic!("random worlds have no {other:?}"),
        }
    };
    let mut selector = Selector::default();
    for workload in world.selecting.iter().filter(selects_it) {
        for (key, wanted) in workload.selector.expressions() {
            selector.add_expression(key, wanted.clone());
        }
    }
    if selector.expressions().is_empty() {
        return Vec::new();
    }
    let configured = world.cluster.scheduling.default_spread.iter();
    let mut all: Vec<TopologySpread> = configured.cloned().collect();
    for constraint in &mut all {
        constraint.selector = Some(selector.clone());
    }
    all
}

/// The same world with the default spread constraints written into every pod.
pub(crate) fn with_explicit_spread(mut world: World) -> World {
    let all: Vec<Vec<TopologySpread>> =
        world.pods.iter().map(|pod| spread_of(&world, pod)).collect();
    for (pod, constraints) in world.pods.iter_mut().zip(all) {
        pod.spread = constraints;
    }
    world.cluster.scheduling.default_spread.clear();
    world
}

/// Whether an affinity term matches a pod with these labels in this namespace.
pub(crate) fn term_matches(
    term: &PodTerm,
    of: &Namespaces,
    namespace: &str,
    labels: &Labels,
) -> bool {
    let none = Labels::new();
    let by_labels = term.namespace_selector.as_ref();
    let there = term.namespaces.contains(namespace)
        || selector_matches(by_labels, of.get(namespace).unwrap_or(&none));
    there && selector_matches(term.selector.as_ref(), labels)
}

/// Whether all of these requirements hold on a node.
pub(crate) fn requirements_hold(wanted: &Requirements, labels: &Labels, node: &String) -> bool {
    wanted.iter().all(|(key, wanted)| {
        let value = if key == NODE_NAME { Some(node) } else { labels.get(key) };
        allows(wanted, value)
    })
}

/// Whether a node satisfies the node selector and the required node affinity of a pod.
pub(crate) fn matches_node(pod: &Pod, labels: &Labels, node: &String) -> bool {
    let mut terms = pod.node_affinity.iter();
    let mut selector = pod.node_selector.iter();
    selector.all(|(key, value)| labels.get(key) == Some(value))
        && (pod.node_affinity.is_empty() || terms.any(|term| requirements_hold(term, labels, node)))
}

fn toleration_matches(toleration: &Toleration, taint: &Taint) -> bool {
    // Kubernetes does not read "05" or "+5" as integers.
    let number =
        |value: &String| value.parse::<i64>().ok().filter(|number| number.to_string() == *value);
    let numbers = (number(&taint.value), number(&toleration.value));
    toleration.effect.is_none_or(|effect| effect == taint.effect)
        && (toleration.key.is_empty() || toleration.key == taint.key)
        && match (toleration.operator, numbers) {
            (TolerationOperator::Exists, _) => true,
            (TolerationOperator::Equal, _) => toleration.value == taint.value,
            (TolerationOperator::Lt, (Some(taint), Some(bound))) => taint < bound,
            (TolerationOperator::Gt, (Some(taint), Some(bound))) => taint > bound,
            _ => false,
        }
}

/// Whether a pod tolerates all hard taints of a node. `PreferNoSchedule` is only a preference.
pub(crate) fn tolerates_all(pod: &Pod, taints: &[Taint]) -> bool {
    let mut hard = taints
        .iter()
        .filter(|taint| matches!(taint.effect, Effect::NoSchedule | Effect::NoExecute));
    hard.all(|taint| pod.tolerations.iter().any(|toleration| toleration_matches(toleration, taint)))
}

/// Host ports by protocol, address and number.
pub(crate) type Ports = BTreeSet<(String, String, u16)>;

/// A host port that two pods on a node would use, if there is one.
pub(crate) fn port_conflict<'p>(
    taken: &Ports,
    pods: impl IntoIterator<Item = &'p Pod>,
) -> Option<u16> {
    let every = |address: &str| address.is_empty() || address == "0.0.0.0";
    let mut bound: Vec<(String, String, u16)> = taken.iter().cloned().collect();
    for pod in pods {
        let clashes = |port: &&(String, String, u16)| {
            let (protocol, address, number) = port;
            bound.iter().any(|other| {
                let near = other.1 == *address || every(&other.1) || every(address);
                other.0 == *protocol && other.2 == *number && near
            })
        };
        if let Some(port) = pod.host_ports.iter().find(clashes) {
            return Some(port.2);
        }
        bound.extend(pod.host_ports.iter().cloned());
    }
    None
}

/// The total requests of pods, including volumes.
pub(crate) fn total_requests<'p>(
    pods: impl IntoIterator<Item = &'p Pod>,
    mounts: &BTreeMap<PodKey, VolumeRequirements>,
) -> Resources {
    let mut sum = Resources::default();
    for pod in pods {
        sum.add(&pod.requests);
        for (name, count) in mounts.get(&pod.key).iter().flat_map(|volumes| &volumes.attached) {
            *sum.extended.entry(name.clone()).or_insert(0) += count;
        }
    }
    sum
}

/// A requested resource that is insufficient, if there is one. Like in the scheduler, resources
/// without requests are ignored, and volumes are limited only if the node has an attach limit.
pub(crate) fn shortage(asked: &Resources, free: &Resources) -> Option<String> {
    let limited = |name: &str| !name.starts_with(ATTACHABLE) || free.extended.contains_key(name);
    let mut short = asked.iter().filter(|(name, amount)| limited(name) && *amount > free.get(name));
    short.next().map(|(name, amount)| {
        let free = free.get(name);
        format!("{name}: {amount} of {free}")
    })
}
