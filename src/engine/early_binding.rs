//! Early binding: pods are bound to a node before its kubelet registers, and deleted if the kubelet
//! never registers.
//!
//! ```text
//! launched ─► Node created ─► its pods bound ─► its kubelet registers ─► registered
//!                                 └─► it never registers: instance terminated ─► pods deleted,
//!                                     and recreated by their controllers ─► Node deleted
//! ```
//!
//! The Node has a NoSchedule taint, so that no other pods use its capacity.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::command::{Command, NewNode};
use crate::engine::context::Context;
use crate::engine::in_flight::{ClaimStep, CommandPurpose, PodAttempt};
use crate::engine::report::Report;
use crate::engine::sync;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Binding;
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::instance::ExpectedNode;
use crate::model::labels::{
    AWAITING_KUBELET, CAPACITY_TYPE, CLAIM, DO_NOT_SYNC_TAINTS, HOSTNAME, INSTANCE_TYPE, Labels,
    NODE_CLASS_HASH, POOL_HASH, TAINT_UNREGISTERED,
};
use crate::model::node::Node;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::node_class::image::AmiFamily;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::model::taint::{Effect, Taint};
use crate::provider::{CommandResult, FailureKind};
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot_builder::node_labels;

/// Pods bound before their node registers.
#[derive(Debug, Default)]
pub(super) struct EarlyBinding {
    /// True if early binding is off until the next configuration change, although it is configured.
    pub(super) off: bool,
    /// True if a pod was ever bound early.
    pub(super) used: bool,
    /// Pods that are being deleted because their node never registered.
    pub(super) unbinding: BTreeMap<PodKey, PodAttempt>,
}

/// Maximum number of attempts to delete a pod whose node never registered. After that the Node is
/// deleted anyway, and the garbage collector of Kubernetes deletes the pod.
const DELETES_MAX: u32 = 3;

/// The taint of a new EKS kubelet until the cloud controller manager has processed the node. The
/// cloud controller manager ignores nodes without this taint. Source: Kubernetes, cloud controller
/// manager.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

impl EarlyBinding {
    /// Returns whether early binding is on.
    fn is_early(&self, cx: &Context) -> bool {
        cx.state.cluster.binding == Binding::Early && !self.off && cx.is_managing()
    }

    /// Applies a changed configuration.
    pub(super) fn on_early_binding_configured(&mut self, cx: &mut Context, now: Timestamp) {
        self.off = false;
        if !self.is_early(cx) {
            // From here on, kube-scheduler binds these pods.
            claim_steps::cancel_claim_commands(cx, Command::binds_early, now);
        }
    }

    /// Creates the Node of a launched claim, or binds pods to it.
    pub(super) fn bind_early(&self, cx: &mut Context, id: &ClaimId, now: Timestamp) {
        if !self.is_early(cx) || !cx.is_ready() || sync::sync_fault(cx, now).is_some() {
            return;
        }
        let claim = cx.claim(id);
        let Some(claim) =
            claim.filter(|claim| claim.phase == ClaimPhase::Launched && claim.leaving.is_none())
        else {
            return;
        };
        match cx.node_of(claim) {
            Some(node) if node.is_awaited() => bind_pods(cx, id, &node.name.clone(), now),
            Some(_) => {}
            None => create_node(cx, id, now),
        }
    }

    /// Handles the result of the Node's creation.
    pub(super) fn on_node_creation_result(
        &mut self,
        cx: &mut Context,
        id: &ClaimId,
        result: &CommandResult,
        now: Timestamp,
    ) {
        let kind = result.failure();
        if kind == Some(FailureKind::Denied) {
            self.give_up_early(cx, now);
        }
        if matches!(
            kind,
            Some(FailureKind::Throttled | FailureKind::Unknown | FailureKind::Withdrawn)
        ) {
            claim_steps::on_step_failed(cx, id, now);
            return;
        }
        // If a Node of this name exists, the watch shows its owner.
        cx.progress_of(id).early.made = true;
        let node = cx.claim(id).and_then(NodeClaim::expected_node);
        let node = node.map(|node| node.name.clone());
        if let Some(node) = node.filter(|_| kind.is_none() && self.is_early(cx)) {
            bind_pods(cx, id, &node, now);
        }
        claim_steps::on_step_succeeded(cx, id);
    }

    /// Handles the result of a binding. A pod that a different client has bound is ignored.
    pub(super) fn on_bind_result(
        &mut self,
        cx: &mut Context,
        id: &ClaimId,
        pod: &PodKey,
        result: &CommandResult,
        now: Timestamp,
    ) {
        if !claim_steps::record_bind_result(cx, id, pod, result, now) {
            return;
        }
        self.used |= *result == CommandResult::Done;
        // If other pods were bound, only this pod may be affected, for example because its
        // namespace is being deleted.
        let denied = result.failure() == Some(FailureKind::Denied);
        if denied && !self.used {
            self.give_up_early(cx, now);
        }
    }

    /// Turns early binding off until the next configuration change.
    fn give_up_early(&mut self, cx: &mut Context, now: Timestamp) {
        if !std::mem::replace(&mut self.off, true) {
            claim_steps::cancel_claim_commands(cx, Command::binds_early, now);
        }
    }

    /// Handles a Node that has registered with an unexpected name for an instance. No more pods are
    /// bound to the expected name.
    pub(super) fn on_unexpected_node_name(
        &mut self,
        cx: &mut Context,
        id: &ClaimId,
        now: Timestamp,
    ) {
        let why = "its Node has an unexpected name".to_owned();
        let claim = id.clone();
        cx.outbox.push_report(Report::NotEarly { claim, why });
        self.give_up_early(cx, now);
    }

    /// Deletes the pods that are bound to a Node whose kubelet never registered. They have never
    /// run, and their controllers recreate them. Returns whether any remain.
    pub(super) fn unbind_pods(
        &mut self,
        cx: &mut Context,
        node: &NodeName,
        now: Timestamp,
    ) -> bool {
        let known = cx.state.objects.nodes.get(node);
        if !known.is_some_and(Node::is_awaited) {
            return false;
        }
        let pods = cx.state.objects.pods_on(node.as_str());
        let pods: Vec<(PodKey, String)> = pods
            .filter(|pod| pod.occupies_node() && pod.owner.is_some() && pod.started.is_none())
            .map(|pod| (pod.key.clone(), pod.uid.clone()))
            .collect();
        let mut remain = false;
        for (pod, uid) in pods {
            let attempt = self.unbinding.entry(pod.clone()).or_default();
            if attempt.try_begin(&uid, now) {
                let purpose = CommandPurpose::Unbind(pod.clone());
                let delete = Command::DeletePod { pod, uid, grace_seconds: 0 };
                cx.outbox.queue_command(delete, purpose, now);
                remain = true;
            } else if !attempt.over {
                remain = true;
                let next = attempt.next_attempt();
                cx.outbox.wake_at(next, "delete a pod");
            }
        }
        remain
    }

    /// Handles the result of deleting a pod whose node never registered.
    pub(super) fn on_unbind_result(
        &mut self,
        cx: &mut Context,
        pod: &PodKey,
        result: &CommandResult,
        now: Timestamp,
    ) {
        if let Some(attempt) = self.unbinding.get_mut(pod) {
            attempt.on_result(result, &mut cx.rng, now);
            attempt.over |= attempt.tries >= DELETES_MAX;
        }
    }
}

impl Context {
    fn bindable_pods<'s>(&'s self, claim: &'s NodeClaim) -> Vec<&'s Pod> {
        let node = claim.expected_node();
        let labels = node.map(|node| expected_labels(self, claim, node));
        let taints = taints_of(self, claim);
        self.state.bindable_pods(claim, &labels.unwrap_or_default(), &taints)
    }
}

fn create_node(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let progress = cx.progress.entry(id.clone()).or_default();
    let Some(claim) = cx.state.ledger.claims.get(id) else {
        return;
    };
    // If the Node was created and is missing, a user deleted it. The kubelet recreates the Node.
    if progress.early.made || progress.step.is_some() || claim.node.is_some() {
        return;
    }
    let Some(expected) = claim.expected_node().cloned() else {
        if !std::mem::replace(&mut progress.early.told, true) && !claim.pods.is_empty() {
            cx.outbox.push_report(Report::NotEarly {
                claim: id.clone(),
                why: "the name of its node is not known".to_owned(),
            });
        }
        return;
    };
    // Names are reused: the Node of a terminated instance may still exist.
    let taken = cx.state.objects.nodes.contains_key(&expected.name);
    if taken || cx.bindable_pods(claim).is_empty() {
        return;
    }
    let Some(node) = new_node(cx, claim, expected) else {
        return;
    };
    let command = Command::CreateNode(Box::new(node));
    claim_steps::send_step(cx, id, ClaimStep::MakeNode, command, now);
}

/// Returns the taints that a claim's node has after its startup.
fn taints_of(cx: &Context, claim: &NodeClaim) -> Vec<Taint> {
    let mut taints = cx.pool_of(claim).taints.clone();
    taints.extend(claim.record.startup_taints.iter().cloned());
    taints
}

/// Returns the Node as its kubelet would register it, limited to the fields that pods and Outrigger
/// use, with a NoSchedule taint. A kubelet that finds its Node keeps the labels and taints of the
/// Node. Source: Kubernetes, kubelet_node_status.go.
fn new_node(cx: &Context, claim: &NodeClaim, expected: ExpectedNode) -> Option<NewNode> {
    let key = &claim.instance.as_ref()?.offering;
    let catalog = cx.state.catalog_of(&claim.record.pool);
    let instance_type = catalog.get(key.instance_type.as_str())?;
    let labels = expected_labels(cx, claim, &expected);
    let mut annotations = cx.pool_of(claim).annotations.clone();
    for (name, value) in [
        (AWAITING_KUBELET, "true"),
        (CLAIM, claim.record.id.as_str()),
        (POOL_HASH, &claim.record.pool_hash),
        (NODE_CLASS_HASH, &claim.record.node_class_hash),
    ] {
        annotations.insert(name.to_owned(), value.to_owned());
    }
    let mut taints = taints_of(cx, claim);
    taints.push(Taint::new(TAINT_UNREGISTERED, Effect::NoSchedule));
    if has_cloud_provider_taint(cx, claim) {
        taints.push(Taint {
            value: "true".to_owned(),
            ..Taint::new(UNINITIALIZED, Effect::NoSchedule)
        });
    }
    Some(NewNode {
        name: expected.name,
        provider_id: expected.provider_id,
        labels,
        annotations,
        taints,
        capacity: without_extended(&instance_type.capacity),
        allocatable: without_extended(&instance_type.allocatable),
    })
}

/// Returns the labels of the new Node.
fn expected_labels(cx: &Context, claim: &NodeClaim, expected: &ExpectedNode) -> Labels {
    let mut labels = claims::labels_of_instance(cx, claim, &Node::default());
    labels.extend(node_labels(claim, &cx.pool_of(claim)));
    labels.insert(HOSTNAME.to_owned(), expected.name.to_string());
    // The Node has all taints from the start, so none that a daemon has removed is added again.
    labels.insert(DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
    if let Some(instance) = &claim.instance {
        let key = &instance.offering;
        let bought = key.capacity_type.as_str().to_owned();
        labels.insert(CAPACITY_TYPE.to_owned(), bought);
        labels.insert(INSTANCE_TYPE.to_owned(), key.instance_type.to_string());
    }
    labels
}

/// Returns whether the kubelet of a claim registers with the cloud provider taint, as on EKS.
fn has_cloud_provider_taint(cx: &Context, claim: &NodeClaim) -> bool {
    let mut classes = cx.state.cluster.node_classes.iter();
    let class = classes.find(|class| Some(&class.name) == claim.record.node_class.as_ref());
    class
        .is_some_and(|class| class.bootstrap == Bootstrap::Eks && class.family != AmiFamily::Custom)
}

fn bind_pods(cx: &mut Context, id: &ClaimId, node: &NodeName, now: Timestamp) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    // A binding cannot be undone.
    if !cx.is_ready() || sync::sync_fault(cx, now).is_some() || claim.leaving.is_some() {
        return;
    }
    let pods = cx.bindable_pods(claim).into_iter();
    let pods: Vec<(PodKey, String)> = pods.map(|pod| (pod.key.clone(), pod.uid.clone())).collect();
    for (pod, uid) in pods {
        let binds = &mut cx.progress_of(id).early.binds;
        let attempt = binds.entry(pod.clone()).or_default();
        if attempt.try_begin(&uid, now) {
            let purpose = CommandPurpose::Bind(id.clone(), pod.clone());
            let node = node.clone();
            cx.outbox.queue_command(Command::Bind { pod, uid, node }, purpose, now);
        } else if let Some(at) = attempt.next_attempt() {
            cx.outbox.wake_at(at, "bind a pod");
        }
    }
}

/// Returns whether the kubelet of a created Node has registered with a different name.
pub(super) fn has_unexpected_name(cx: &Context, node: &Node) -> bool {
    let id = node.instance_id().filter(|_| node.is_awaited());
    let id = id.and_then(|id| cx.state.ledger.by_instance(id));
    let claim = id.and_then(|id| cx.claim(id));
    let other = claim.and_then(|claim| cx.node_of(claim));
    other.is_some_and(|other| other.name != node.name && (other.has_kubelet || other.ready))
}

impl PodAttempt {
    /// Starts an attempt for the pod with this UID, if one is due. Returns whether it did.
    fn try_begin(&mut self, uid: &str, now: Timestamp) -> bool {
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), ..Self::default() };
        }
        let due = !self.in_flight && !self.over && self.retry.is_due(now);
        self.in_flight |= due;
        due
    }

    pub(super) fn on_result(
        &mut self,
        result: &CommandResult,
        rng: &mut fastrand::Rng,
        now: Timestamp,
    ) {
        use FailureKind::{Throttled, Unknown, Withdrawn};
        self.in_flight = false;
        self.tries += 1;
        match result.failure() {
            Some(Throttled | Unknown | Withdrawn) => self.retry.record_failure(now, rng),
            _ => self.over = true,
        }
    }

    /// Returns when the next attempt is allowed.
    fn next_attempt(&self) -> Option<Timestamp> {
        self.retry.next_attempt().filter(|_| !self.in_flight && !self.over)
    }
}

/// Returns the resources without those that devices and their plugins add.
fn without_extended(resources: &Resources) -> Resources {
    Resources { extended: Default::default(), ..resources.clone() }
}
