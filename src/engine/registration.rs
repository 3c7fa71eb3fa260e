//! Registers and initializes the nodes of launched instances, and checks them afterwards.

use jiff::Timestamp;

use crate::engine::adoption;
use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::command::{Command, NodePatch};
use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, Interruptions, Nominations};
use crate::engine::drain;
use crate::engine::drain::cancellation;
use crate::engine::drain::deadline::unfinished_disruption;
use crate::engine::drain::vanished_node;
use crate::engine::early_binding::EarlyBinding;
use crate::engine::in_flight::ClaimStep;
use crate::engine::nomination;
use crate::engine::registration_backoff;
use crate::engine::replacement_pods;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::ClaimId;
use crate::model::instance::CapacityType;
use crate::model::labels::{
    AWAITING_KUBELET, AWAITING_KUBELET_FORMER, CAPACITY_TYPE, CLAIM, CLUSTER, DO_NOT_SYNC_TAINTS,
    FINALIZER, INITIALIZED, INITIALIZED_AT, NODE_CLASS_HASH, OF_RESERVATIONS, POOL_HASH,
    REGISTERED, TAINT_UNREGISTERED,
};
use crate::model::node::Node;
use crate::model::pool::Reason;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot_builder::node_labels;

pub(super) fn check_registration(
    cx: &mut Context,
    consolidation: &Consolidation,
    nominations: &Nominations,
    early_binding: &EarlyBinding,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let node = cx.node_of(claim);
    if node.is_some_and(Node::is_registered) {
        claim_steps::enter_phase(cx, id, ClaimPhase::Registered, now);
        return;
    }
    let deadline = claims::phase_deadline(cx, claim, cx.pool_of(claim).registration_timeout);
    if deadline > now {
        if node.is_none_or(Node::is_awaited) {
            cx.outbox.wake_at(deadline, "a registration is overdue");
            early_binding.bind_early(cx, id, now);
            return;
        }
        let fresh = node.filter(|node| !claims::is_stale(cx, id, node));
        let ready = fresh.is_some_and(|node| node.ready);
        let unplaced = claims::awaits_partition(cx, claim);
        // A node that is ready is registered and untainted in one step.
        let held = replacement_pods::is_held(cx, consolidation, nominations, claim, now);
        let stays_tainted = held || nominations.waits_for_nominations(cx, claim);
        let closed = stays_tainted
            && (!ready || !nomination::may_untaint(cx, consolidation, nominations, id, now));
        let waits = unplaced || (ready && closed && !held);
        cx.outbox.wake_at(deadline, "a registration is overdue");
        if !waits {
            send_registration(cx, id, closed, now);
        }
        return;
    }
    let runs = node.is_some_and(Node::may_run_pods);
    let is_there = node.is_some();
    registration_backoff::on_not_registered(cx, id, now);
    if runs {
        drain::disrupt_node(cx, interruptions, id, Reason::TimedOut, now);
        return;
    }
    // Nothing runs on an existing Node that did not register: its taint is NoExecute, or its
    // kubelet never registered.
    if is_there || vanished_node::is_confirmed_missing(cx, id, now) {
        claim_steps::terminate_undrained(cx, interruptions, id, Reason::TimedOut, now);
    }
}

fn send_registration(cx: &mut Context, id: &ClaimId, closed: bool, now: Timestamp) {
    let known = cx.claim_and_node(id);
    let Some((claim, node)) = known.filter(|(_, node)| !claims::is_stale(cx, id, node)) else {
        return;
    };
    let patch = registration_patch(cx, claim, node, closed, now);
    let unguarded = !node.is_registered() && !node.has_unregistered_taint();
    let node = node.name.clone();
    let reported = &mut cx.progress.entry(id.clone()).or_default().told_unguarded;
    if unguarded && !std::mem::replace(reported, true) {
        cx.outbox.push_report(Report::Unguarded { node });
    }
    claim_steps::send_step(cx, id, ClaimStep::Register, Command::PatchNode(patch), now);
}

/// Returns the one patch that registers a node: labels, annotations and taints. It removes the
/// unregistered taint, unless the node remains tainted for now.
fn registration_patch(
    cx: &Context,
    claim: &NodeClaim,
    node: &Node,
    closed: bool,
    now: Timestamp,
) -> NodePatch {
    let pool = cx.pool_of(claim);
    let mut labels = claims::labels_of_instance(cx, claim, node);
    labels.extend(node_labels(claim, &pool));
    labels.insert(REGISTERED.to_owned(), "true".to_owned());
    if let Some(instance) = &claim.instance {
        let bought = instance.offering.capacity_type.as_str();
        labels.insert(CAPACITY_TYPE.to_owned(), bought.to_owned());
    }
    let mut annotations = pool.annotations.clone();
    for (key, value) in [
        (CLAIM, claim.record.id.to_string()),
        (CLUSTER, claim.record.cluster.to_string()),
        (POOL_HASH, claim.record.pool_hash.clone()),
        (NODE_CLASS_HASH, claim.record.node_class_hash.clone()),
    ] {
        annotations.insert(key.to_owned(), value);
    }
    let mut taints = node.taints.clone();
    taints.retain(|taint| taint.key != TAINT_UNREGISTERED || closed);
    let synced = node.labels.get(DO_NOT_SYNC_TAINTS);
    if synced.is_none_or(|value| value != "true") {
        for wanted in pool.taints.iter().chain(&claim.record.startup_taints) {
            if !taints.iter().any(|taint| taint.matches(wanted)) {
                taints.push(wanted.clone());
            }
        }
    }
    if claims::is_started(cx, claim, node, &taints) {
        labels.insert(INITIALIZED.to_owned(), "true".to_owned());
        annotations.insert(INITIALIZED_AT.to_owned(), now.to_string());
    }
    let mut annotations = NodePatch::set_values(annotations);
    let awaiting = [AWAITING_KUBELET, AWAITING_KUBELET_FORMER];
    let present = awaiting.into_iter().filter(|key| node.annotations.contains_key(*key));
    annotations.extend(present.map(|key| (key.to_owned(), None)));
    NodePatch {
        node: node.name.clone(),
        version: node.version.clone(),
        labels: NodePatch::set_values(labels),
        annotations,
        taints: Some(taints),
        finalizers: finalizers_of(cx, node),
        disowned: None,
    }
}

/// Returns the finalizers that a node needs, if its current finalizers differ. Outrigger's
/// finalizer is among them only if it is configured. A Node that is being deleted keeps its
/// finalizers.
fn finalizers_of(cx: &Context, node: &Node) -> Option<Vec<String>> {
    let wanted = cx.state.cluster.finalizer;
    if wanted == node.has_finalizer() || node.deleting.is_some() {
        return None;
    }
    let finalizer = wanted.then(|| FINALIZER.to_owned());
    Some(claims::other_finalizers(node).chain(finalizer).collect())
}

pub(super) fn check_initialization(
    cx: &mut Context,
    consolidation: &Consolidation,
    nominations: &Nominations,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) {
    if !check_node_unchanged(cx, interruptions, id, now) {
        return;
    }
    let Some((claim, node)) = cx.claim_and_node(id) else {
        return;
    };
    if node.is_initialized() {
        claim_steps::enter_phase(cx, id, ClaimPhase::Initialized, now);
        return;
    }
    let deadline = claims::phase_deadline(cx, claim, cx.pool_of(claim).initialization_timeout);
    if deadline <= now {
        drain::disrupt_node(cx, interruptions, id, Reason::TimedOut, now);
        return;
    }
    if node.has_unregistered_taint() {
        cx.outbox.wake_at(deadline, "an initialization is overdue");
        if nomination::may_untaint(cx, consolidation, nominations, id, now)
            && let Some(patch) = untaint_patch_of(cx, id, now)
        {
            claim_steps::send_step(cx, id, ClaimStep::Open, Command::PatchNode(patch), now);
        }
        return;
    }
    let patch = NodePatch {
        labels: vec![(INITIALIZED.to_owned(), Some("true".to_owned()))],
        annotations: vec![(INITIALIZED_AT.to_owned(), Some(now.to_string()))],
        ..NodePatch::for_node(node)
    };
    let started =
        claims::is_started(cx, claim, node, &node.taints) && !claims::is_stale(cx, id, node);
    cx.outbox.wake_at(deadline, "an initialization is overdue");
    if started {
        claim_steps::send_step(cx, id, ClaimStep::Initialize, Command::PatchNode(patch), now);
    }
}

/// Returns the patch that untaints a node. It also marks the node as initialized if nothing
/// else is missing.
fn untaint_patch_of(cx: &Context, id: &ClaimId, now: Timestamp) -> Option<NodePatch> {
    let claim = cx.claim(id)?;
    let node = cx.node_of(claim).filter(|node| !claims::is_stale(cx, id, node))?;
    let mut taints = node.taints.clone();
    taints.retain(|taint| taint.key != TAINT_UNREGISTERED);
    let started = claims::is_started(cx, claim, node, &taints);
    let label = (INITIALIZED.to_owned(), Some("true".to_owned()));
    let annotation = (INITIALIZED_AT.to_owned(), Some(now.to_string()));
    Some(NodePatch {
        labels: Vec::from_iter(started.then_some(label)),
        annotations: Vec::from_iter(started.then_some(annotation)),
        taints: Some(taints),
        ..NodePatch::for_node(node)
    })
}

pub(super) fn check_initialized_node(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) {
    if !check_node_unchanged(cx, interruptions, id, now) {
        return;
    }
    let known = cx.claim_and_node(id);
    let Some((claim, node)) =
        known.filter(|(_, node)| node.deleting.is_none() && !claims::is_stale(cx, id, node))
    else {
        return;
    };
    let finalizers = finalizers_of(cx, node);
    // A disruption that this process cancelled is not resumed.
    let unfinished = unfinished_disruption(node).filter(|_| claim.withdrawn.is_none());
    if let Some(reason) = unfinished {
        // An earlier process has evicted pods, or may have done so.
        drain::resume_disruption(cx, interruptions, id, reason, now);
    } else if node.is_marked() {
        // The taint is from an earlier process. The engine decides again whether to disrupt the
        // node.
        cancellation::send_untaint(cx, id, now);
    } else if let Some(patch) = adoption::takeover_patch(cx, claim, node) {
        claim_steps::send_step(cx, id, ClaimStep::TakeOver, Command::PatchNode(patch), now);
    } else if let Some(patch) = demotion_patch(claim, node) {
        claim_steps::send_step(cx, id, ClaimStep::Demote, Command::PatchNode(patch), now);
    } else if finalizers.is_some() {
        let patch = NodePatch { finalizers, ..NodePatch::for_node(node) };
        claim_steps::send_step(cx, id, ClaimStep::Finalizer, Command::PatchNode(patch), now);
    }
}

/// Returns whether a registered claim's Node still exists unchanged. If its kubelet has
/// registered again, the claim returns to an earlier phase.
fn check_node_unchanged(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) -> bool {
    if vanished_node::handle_vanished_node(cx, interruptions, id, now) {
        return false;
    }
    let claim = cx.claim(id);
    let node = claim.and_then(|claim| cx.node_of(claim));
    if let Some(node) = node.filter(|node| node.deleting.is_some() && node.has_finalizer()) {
        let shared = claim.is_some_and(|claim| claims::is_ambiguous(cx, claim, Reason::Deleted));
        // If a second Node has the same providerID, only this object is deleted.
        match claims::finalizer_removal_patch(node).filter(|_| shared) {
            Some(patch) if !claims::is_stale(cx, id, node) => {
                claim_steps::send_step(
                    cx,
                    id,
                    ClaimStep::Finalizer,
                    Command::PatchNode(patch),
                    now,
                );
            }
            Some(_) => {}
            None => drain::disrupt_node(cx, interruptions, id, Reason::Deleted, now),
        }
        return false;
    }
    let has_reset =
        node.is_some_and(|node| !node.is_registered() && !claims::is_stale(cx, id, node));
    if has_reset {
        claim_steps::enter_phase(cx, id, ClaimPhase::Launched, now);
    }
    !has_reset
}

/// Returns the patch for a node whose capacity reservation has ended. Its instance continues as an
/// on-demand instance. Source: spec/aws.md §5.11 and §10, 88.
fn demotion_patch(claim: &NodeClaim, node: &Node) -> Option<NodePatch> {
    let bought = claim.instance.as_ref()?.offering.capacity_type;
    if bought != CapacityType::OnDemand {
        return None;
    }
    let label = node.labels.get(CAPACITY_TYPE).map(String::as_str);
    let mut keys = OF_RESERVATIONS.iter();
    let is_reserved = label == Some(CapacityType::Reserved.as_str())
        || keys.any(|key| node.labels.contains_key(*key));
    is_reserved.then(|| {
        let capacity_type = (CAPACITY_TYPE.to_owned(), Some(bought.as_str().to_owned()));
        let removed = OF_RESERVATIONS.map(|key| (key.to_owned(), None));
        NodePatch {
            labels: [capacity_type].into_iter().chain(removed).collect(),
            ..NodePatch::for_node(node)
        }
    })
}
