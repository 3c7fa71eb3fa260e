//! Invariants for early binding and nominations.

use jiff::{SignedDuration, Timestamp};

use crate::engine::command::NewNode;
use crate::model::id::{NodeName, PodKey};
use crate::model::node::Node;
use crate::sim::event_queue::time_after;
use crate::sim::invariants::{Arrival, Checker, GroundTruth, Invariant};

/// Maximum time for which pods may be bound to a node whose instance is gone and whose kubelet
/// never registered. The daemon may be stopped for 90 seconds, and out of sync for five minutes.
const STRANDED_MAX: SignedDuration = SignedDuration::from_mins(15);

/// Maximum delay of an event to the daemon.
const NEWS_MAX: SignedDuration = SignedDuration::from_secs(5);

impl GroundTruth {
    /// Returns true if no pod on a node had run by `sent`, as far as the daemon could observe: the
    /// kubelet had not registered.
    pub(super) fn was_awaiting_kubelet(&self, node: &Node, sent: Timestamp) -> bool {
        node.has_awaiting_kubelet()
            && !self
                .occupying_pods(node)
                .any(|pod| pod.started.is_some_and(|at| time_after(at, NEWS_MAX) < sent))
    }
}

impl Checker {
    /// Checks that a nomination names a managed node.
    pub(super) fn check_nomination(&mut self, name: &NodeName, at: Arrival<'_>) {
        let Arrival { scene, now, .. } = at;
        let node = scene.cluster.store().nodes().get(name);
        if node.is_some_and(|node| scene.our_machine(node).is_none()) {
            let text = format!("hint at {name}, which is not ours");
            self.add_violation(Invariant::Foreign, now, text);
        }
    }

    /// At the end, no pod is bound to a node that is gone.
    pub(super) fn check_lost_pods(&mut self, scene: &GroundTruth, now: Timestamp) {
        let store = scene.cluster.store();
        for pod in store.pods().values().filter(|pod| !pod.is_terminal()) {
            let node = pod.node.as_ref();
            if let Some(node) = node.filter(|name| !store.nodes().contains_key(*name)) {
                let text = format!("pod {} is bound to {node}, which is gone", pod.key);
                self.add_violation(Invariant::Unbound, now, text);
            }
        }
    }

    pub(super) fn check_create_node(&mut self, new_node: &NewNode, at: Arrival<'_>) {
        let Arrival { scene, now, .. } = at;
        let node = Node { provider_id: new_node.provider_id.clone(), ..Node::default() };
        if scene.our_machine(&node).is_none() {
            let text = format!("make {} for an instance that is not ours", new_node.name);
            self.add_violation(Invariant::Foreign, now, text);
        }
    }

    pub(super) fn check_bind(&mut self, key: &PodKey, uid: &str, name: &NodeName, at: Arrival<'_>) {
        let Arrival { scene, now, .. } = at;
        let store = scene.cluster.store();
        let pod = store.pod(key, uid);
        let node = store.nodes().get(name);
        let (Some(pod), Some(node)) = (pod.filter(|pod| pod.node.is_none()), node) else {
            return;
        };
        if scene.our_machine(node).is_none() {
            let text = format!("bind {key} to {name}, which is not ours");
            self.add_violation(Invariant::Foreign, now, text);
        }
        let mut free = node.allocatable.clone();
        if let Some(load) = store.load_of(name.as_str()) {
            free.subtract(&load.used);
        }
        if !pod.requests.fit_into(&free) {
            let text = format!("bind {key} to {name}, which has no room for it");
            self.add_violation(Invariant::Early, now, text);
        }
    }

    pub(super) fn check_delete_pod(&mut self, key: &PodKey, uid: &str, at: Arrival<'_>) {
        let Arrival { scene, now, .. } = at;
        let store = scene.cluster.store();
        let pod = store.pod(key, uid);
        let node = pod.and_then(|pod| store.nodes().get(pod.node.as_ref()?));
        let Some((pod, node)) = pod.zip(node) else {
            return;
        };
        let machine = scene.our_machine(node);
        // If a disrupted node has a deadline, its pods are deleted at the deadline.
        if node.has_disrupted_taint() && node.termination_deadline().is_some() && machine.is_some()
        {
            return;
        }
        let is_live = machine.is_none_or(|machine| machine.is_live());
        if is_live || pod.started.is_some() || !node.is_awaited() {
            let text = format!("delete {key}, which may run on {}", node.name);
            self.add_violation(Invariant::Early, now, text);
        }
    }

    /// Checks for pods that have been bound for long to nodes whose instances are gone.
    pub fn check_stranded(&mut self, scene: &GroundTruth, now: Timestamp) {
        let nodes = scene.cluster.store().nodes().values();
        for node in nodes.filter(|node| node.is_awaited()) {
            let ended = scene.our_machine(node).and_then(|machine| machine.ended);
            let long = ended.is_some_and(|at| now.duration_since(at) > STRANDED_MAX);
            let pods = scene.occupying_pods(node).count();
            if long && pods > 0 {
                let text = format!("{pods} pods are bound to {}, which never came", node.name);
                self.add_violation(Invariant::Early, now, text);
            }
        }
    }
}
