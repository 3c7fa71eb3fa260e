//! Drains a disrupted node: taint, evict, confirm that it is empty, terminate.

// Cancelled disruptions.
pub(super) mod cancellation;
// Grant and record of a disruption, before the taint.
pub(super) mod clearance;
// Evictions in waves, for pods that move to new nodes.
pub(super) mod waves;
// Order, retries and deadlines of evictions.
pub(super) mod eviction;
// Pods that become evictable during the drain.
pub(super) mod late_places;
// Nodes deleted while their instances run.
pub(super) mod vanished_node;
// Waits for volume detachment.
pub(super) mod volumes;
// Termination time of a node, and blocked drains.
pub(super) mod deadline;

use jiff::{SignedDuration, Timestamp};

use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::command::{Command, NodePatch};
use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, Interruptions, Nominations};
use crate::engine::drain::deadline::deadline_annotation;
use crate::engine::fleet_sync::FleetSync;
use crate::engine::in_flight::{ClaimStep, Clearance, DrainState, Release};
use crate::engine::replacement_pods;
use crate::engine::report::Report;
use crate::engine::sync;
use crate::engine::undrained_terminations;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::labels::{
    DISRUPTION_REASON, EXCLUDE_BALANCERS, EXCLUDED_BY, TAINT_DISRUPTED, TERMINATION_AT,
};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::taint::{Effect, Taint};
use crate::model::watched_object::ObjectKind;

/// Minimum duration of a drain after the confirmed taint. The scheduler may still bind a pod that
/// it had already assigned (Karpenter's MinDrainTime, spec/disruption.md §4.3).
const DRAIN_MIN: SignedDuration = SignedDuration::from_secs(5);

/// Minimum interval between pod listings of a draining node from the API server.
const LIST_APART: SignedDuration = SignedDuration::from_secs(2);

/// Minimum interval between restorations of a label or annotation that a different client removes
/// repeatedly.
const MARK_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// Maximum wait for places for the pods of a voluntarily disrupted node. Launches and registrations
/// take a few minutes.
const PLACES_MAX: SignedDuration = SignedDuration::from_mins(20);

/// A pod listing from the API server is current for this long.
const CHECKED_MAX: SignedDuration = SignedDuration::from_secs(10);

/// If the watch does not show all pods, it is restarted and has this long to catch up.
const REWATCHED: SignedDuration = SignedDuration::from_secs(30);

/// If the watch does not show a pod that is older than this, it has missed the pod.
const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);

/// Disrupts a node. The node is drained and terminated, unless the drain is cancelled.
pub(super) fn disrupt_node(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    if claim.leaving.is_some() || !cx.is_managing() || claims::is_ambiguous(cx, claim, reason) {
        return;
    }
    let node = cx.node_of(claim);
    let registered =
        node.is_some_and(|node| claim_steps::may_run_pods(cx, id, node, now)) || claim.has_joined();
    // A node that does not respond is terminated with all its pods after its taint.
    let silent = node.is_none_or(|node| !node.ready);
    let undrained = !registered || (reason.terminates_undrained() && silent);
    if undrained && !undrained_terminations::may_terminate_undrained(cx, interruptions, id, now) {
        return;
    }
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let name = claim.node.as_ref().map_or("", |name| name.as_str());
    let pods = cx.state.objects.pods_on(name);
    cx.outbox.push_report(Report::Retire {
        claim: id.clone(),
        pool: claim.record.pool.clone(),
        node: claim.node.clone(),
        capacity_type: claim.capacity_type(),
        reason,
        price: cx.state.price_of_instance(claim),
        pods: pods.filter(|pod| pod.is_reschedulable()).count(),
    });
    if let Some(claim) = cx.state.ledger.claims.get_mut(id) {
        claim.leaving = Some(reason);
        claim.pods.clear();
    }
    let progress = cx.progress.entry(id.clone()).or_default();
    (progress.drain, progress.told_to_end, progress.lingers) = Default::default();
    progress.told_drained = false;
    progress.asked = Some(now);
    let next = match registered {
        true => ClaimPhase::Draining,
        false => ClaimPhase::Terminating,
    };
    claim_steps::enter_phase(cx, id, next, now);
}

/// Resumes the disruption of a node from which an earlier process evicted pods.
pub(super) fn resume_disruption(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) {
    disrupt_node(cx, interruptions, id, reason, now);
    let drain = &mut cx.progress_of(id).drain;
    (drain.clearance, drain.release) = (Clearance::Cleared, Release::Begun { released: true });
}

/// Performs the next step of a drain, in the order of the diagram of [`DrainState`].
pub(super) fn drain(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    nominations: &Nominations,
    fleet: &FleetSync,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) {
    if vanished_node::handle_vanished_node(cx, interruptions, id, now) {
        return;
    }
    let Some((reason, node)) = drained_node(cx, id) else {
        return;
    };
    let (stale, lost) = (claims::is_stale(cx, id, &node), has_lost_taint(cx, id, &node));
    let drain = &mut cx.progress_of(id).drain;
    drain.reset_if_recreated(&node.uid);
    if lost {
        // Another client removed the taint, so new pods may have been bound.
        (drain.taint.confirmed, drain.listing.confirmed) = (None, None);
    }
    let (tainted, released) = (drain.taint.confirmed, drain.release.is_released());
    if tainted.is_none() {
        // Pods may have been bound meanwhile, or taken the places.
        drain.placed.clear();
    }
    if tainted.is_none()
        && !released
        && !clearance::try_clear(cx, consolidation, fleet, id, reason, now)
    {
        return;
    }
    if (released && !waves::waits_for_wave(cx, id, now)) || !reason.waits_for_placements() {
        deadline::start_deadline(cx, id, reason, now);
    }
    let Some(tainted) = tainted else {
        let is_kept = reason == Reason::Empty
            && !released
            && cancel_if_not_empty(cx, consolidation, id, &node.name, now);
        if !is_kept && !stale {
            send_taint(cx, id, &node, reason, now);
        }
        return;
    };
    if (!stale && restore_marks(cx, id, &node, reason, now))
        || !try_release(cx, consolidation, nominations, id, reason, now)
    {
        return;
    }
    if !waves::waits_for_wave(cx, id, now) {
        deadline::start_deadline(cx, id, reason, now);
        if deadline::write_deadline(cx, id, now) {
            return;
        }
    }
    if deadline::is_deadline_over(cx, id, now) {
        terminate_by_deadline(cx, interruptions, id, &node.name, reason, now);
    } else if cx.drain_of(id).is_some_and(|drain| drain.listing.confirmed.is_some()) {
        claim_steps::enter_phase(cx, id, ClaimPhase::Terminating, now);
    } else {
        late_places::hold_pods_without_places(cx, nominations, id, reason, now);
        evict_and_confirm(cx, consolidation, id, &node.name, reason, tainted, now);
    }
}

/// Returns the reason of a drain and its Node. If a user deletes the Node, a voluntary drain can no
/// longer be cancelled, and its reason becomes this deletion.
fn drained_node(cx: &mut Context, id: &ClaimId) -> Option<(Reason, Node)> {
    let claim = cx.claim(id)?;
    let (reason, node) = (claim.leaving.unwrap_or(Reason::Empty), cx.node_of(claim)?.clone());
    if node.deleting.is_none() || !node.has_finalizer() || !reason.is_voluntary() {
        return Some((reason, node));
    }
    cx.state.ledger.claims.get_mut(id)?.leaving = Some(Reason::Deleted);
    Some((Reason::Deleted, node))
}

/// Terminates a node at its deadline even if pods remain, as far as the safeguard allows it.
fn terminate_by_deadline(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    name: &NodeName,
    reason: Reason,
    now: Timestamp,
) {
    if reason.terminates_undrained()
        && !undrained_terminations::may_terminate_undrained(cx, interruptions, id, now)
    {
        return;
    }
    eviction::report_forced_drain(cx, id, name, now);
    claim_steps::enter_phase(cx, id, ClaimPhase::Terminating, now);
}

/// Sends the disrupted taint of a node.
fn send_taint(cx: &mut Context, id: &ClaimId, node: &Node, reason: Reason, now: Timestamp) {
    let deadline = cx.drain_of(id).and_then(DrainState::deadline);
    let patch = taint_patch(node, reason, deadline);
    cx.progress_of(id).drain.taint.sent = Some(now);
    claim_steps::send_step(cx, id, ClaimStep::Taint, Command::PatchNode(patch), now);
}

/// Returns whether a Node lacks the disrupted taint although the engine has set it.
pub(super) fn has_lost_taint(cx: &Context, id: &ClaimId, node: &Node) -> bool {
    !node.has_disrupted_taint() && !claims::is_stale(cx, id, node)
}

/// Restores the disruption label and annotation if a different client removed them. Without the
/// label, load balancers send new connections to a disrupted node. [`MARK_AGAIN`] limits the rate,
/// because the other client may remove them again and again.
fn restore_marks(
    cx: &mut Context,
    id: &ClaimId,
    node: &Node,
    reason: Reason,
    now: Timestamp,
) -> bool {
    let labelled = node.labels.contains_key(EXCLUDE_BALANCERS);
    if labelled && node.annotations.contains_key(DISRUPTION_REASON) {
        return false;
    }
    let restored = cx.drain_of(id).and_then(|drain| drain.taint.marks_restored);
    let again = restored.map(|at| at + MARK_AGAIN);
    if cx.outbox.waits_until(again, "restore the disruption label and annotation", now) {
        return false;
    }
    let patch = NodePatch { taints: None, ..taint_patch(node, reason, None) };
    claim_steps::send_step(cx, id, ClaimStep::Mark, Command::PatchNode(patch), now);
    true
}

/// Records that the label and annotation were restored. If they were removed again during the
/// write, the Node is unchanged and no new version follows, so the engine must not wait for one.
pub(super) fn on_marks_restored(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    if let Some(progress) = cx.progress.get_mut(id) {
        progress.drain.taint.marks_restored = Some(now);
        progress.patched = None;
    }
    claim_steps::on_step_succeeded(cx, id);
}

/// Evicts the pods of a node and, when none remain, requests the confirmation that the node is
/// empty.
fn evict_and_confirm(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    name: &NodeName,
    reason: Reason,
    tainted: Timestamp,
    now: Timestamp,
) {
    let deadline = cx.drain_of(id).and_then(DrainState::deadline);
    let deadline = deadline.filter(|at| *at > now);
    cx.outbox.wake_at(deadline, "the deadline of a drain has passed");
    if reason == Reason::Empty && cancel_if_not_empty(cx, consolidation, id, name, now) {
        return;
    }
    if eviction::evict_pods(cx, id, name, now) {
        cx.progress_of(id).drain.detach = Default::default();
        if !deadline::on_drain_timeout(cx, consolidation, id, reason, now) {
            eviction::report_blocked_drain(cx, id, name, now);
        }
        return;
    }
    let due = tainted.checked_add(DRAIN_MIN).unwrap_or(now);
    if due > now {
        cx.outbox.wake_at(due, "a drain can be confirmed");
    } else if volumes::wait_for_detach(cx, id, name, now) {
        request_confirmation(cx, id, name, now);
    }
}

/// Cancels the disruption of an empty node if pods were bound to it.
fn cancel_if_not_empty(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    name: &NodeName,
    now: Timestamp,
) -> bool {
    let pods = cx.state.objects.pods_on(name.as_str());
    let count = pods.filter(|pod| pod.holds_node()).count();
    if count > 0 {
        let why = format!("{count} pods were bound to it meanwhile");
        cancellation::cancel_disruption(cx, consolidation, id, why, now);
    }
    count > 0
}

/// Returns whether the pods of a disrupted node may be evicted: immediately, or when each pod has a
/// place on another node. The disruption can be cancelled until the first eviction. This happens if
/// the pods find no places or if the node gets a pod that blocks disruption.
fn try_release(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    nominations: &Nominations,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) -> bool {
    let release = cx.drain_of(id).map(|drain| drain.release).unwrap_or_default();
    let begun = matches!(release, Release::Begun { .. });
    if begun || !(reason.waits_for_placements() || reason == Reason::Empty) {
        return true;
    }
    let Some((claim, node)) = cx.claim_and_node(id) else {
        return false;
    };
    let graceful = cx.state.is_graceful(claim) && reason.is_eventual();
    let has_to = claim.must_be_disrupted(now);
    let blocker = cx
        .state
        .disruption_blockers(node, Some(claim), now)
        .find(|blocker| !(blocker.is_temporary() || graceful && blocker.yields_to_grace()));
    if let Some(blocker) = blocker.filter(|_| !has_to) {
        cx.state.recent.failed = Some(now);
        cancellation::cancel_drain(cx, consolidation, id, blocker.to_string(), now);
        return false;
    }
    if reason == Reason::Empty {
        return true;
    }
    // A pod without a controller may have been bound before the taint.
    let chosen = Some(claim).filter(|_| reason == Reason::Underutilized);
    if let Some(unmanaged_pod) = chosen.and_then(|claim| cx.state.unmanaged_pod_of(claim, now)) {
        let why =
            format!("pod {unmanaged_pod} runs on it and has no controller that would recreate it");
        cancellation::cancel_drain(cx, consolidation, id, why, now);
        return false;
    }
    let until = claim.since.checked_add(PLACES_MAX).unwrap_or(now);
    let reschedulable = cx.state.reschedulable_of(claim, now);
    let reschedulable: Vec<PodKey> = reschedulable.map(|pod| pod.key.clone()).collect();
    // The node count of a static pool must not decrease.
    let placed = cx.state.has_all_static_nodes(&claim.record.pool)
        && replacement_pods::have_places(cx, nominations, &reschedulable, now);
    let is_late = until <= now;
    let seen = placed && sync::are_watches_recent(cx, now);
    if (seen && check_pods_known(cx, id, now)) || (has_to && is_late) {
        cx.progress_of(id).drain.release = Release::Released;
        return true;
    }
    if release == Release::Released && !placed {
        let why = "its pods can no longer be scheduled elsewhere".to_owned();
        cancellation::postpone_drain(cx, consolidation, id, why, now);
    } else if is_late {
        let why = match placed {
            true => "the watch does not show all of its pods".to_owned(),
            false => format!("its pods have found no place elsewhere within {PLACES_MAX:#}"),
        };
        cx.state.recent.failed = Some(now);
        cancellation::cancel_drain(cx, consolidation, id, why, now);
    } else {
        cx.outbox.wake_at(until, "the pods of a node should have a replacement node by now");
    }
    false
}

/// Returns whether the engine knows all pods of a node, as the check of their places requires. The
/// API server is queried once, because a listing of the watch may have lacked some pods.
fn check_pods_known(cx: &mut Context, id: &ClaimId, now: Timestamp) -> bool {
    let node = cx.claim(id).and_then(|node| node.node.clone());
    let drain = cx.drain_of(id);
    let until = drain.and_then(|drain| drain.listing.matched?.checked_add(CHECKED_MAX).ok());
    let fresh = until.is_some_and(|at| at > now);
    let checked = fresh || drain.is_some_and(|drain| drain.release.is_released());
    if let Some(name) = node.filter(|_| !checked) {
        request_confirmation(cx, id, &name, now);
    }
    checked
}

/// Lists the pods of the node from the API server, because the watch may lag behind.
fn request_confirmation(cx: &mut Context, id: &ClaimId, node: &NodeName, now: Timestamp) {
    let next = cx.drain_of(id).and_then(|drain| drain.listing.next);
    if cx.outbox.waits_until(next, "confirm a drain", now) {
        return;
    }
    cx.progress_of(id).drain.listing.next = now.checked_add(LIST_APART).ok();
    let list = Command::ListPodsOn { node: node.clone() };
    claim_steps::send_step(cx, id, ClaimStep::ListPods, list, now);
}

/// Handles a listing of a node's pods from the API server.
pub(super) fn on_pods_listed(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    mut pods: Vec<Pod>,
    now: Timestamp,
) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let reason = claim.leaving.unwrap_or(Reason::Empty);
    let objects = &cx.state.objects;
    pods.iter_mut().for_each(|pod| objects.note_deletion(pod, now));
    let bound = pods.iter().filter(|pod| pod.holds_node()).count();
    let held = pods.iter().any(|pod| pod.holds_drain(now));
    let unseen: Vec<&Pod> = pods
        .iter()
        .filter(|pod| !cx.state.objects.contains_object(ObjectKind::Pod, &pod.key))
        .collect();
    let is_blind = unseen.iter().any(|pod| {
        let known = pod.created.and_then(|at| at.checked_add(WATCH_LAG).ok());
        known.is_some_and(|at| at < now)
    });
    let Some(progress) = cx.progress.get_mut(id) else {
        return;
    };
    progress.retry = Default::default();
    progress.drain.listing.matched = unseen.is_empty().then_some(now);
    if is_blind {
        progress.drain.listing.next = now.checked_add(REWATCHED).ok();
    }
    if reason.waits_for_placements() && !progress.drain.release.is_released() {
        // No eviction has completed yet.
    } else if reason == Reason::Empty && bound > 0 {
        let why = format!("{bound} pods were bound to it meanwhile");
        cancellation::cancel_disruption(cx, consolidation, id, why, now);
    } else if !held {
        progress.drain.listing.confirmed = Some(now);
    }
    if is_blind {
        cx.state.views.mark_incomplete(ObjectKind::Pod);
    }
}

/// Returns the taints of a node without the disrupted taint.
fn without_disrupted_taint(node: &Node) -> Vec<Taint> {
    let taints = node.taints.iter();
    taints.filter(|taint| taint.key != TAINT_DISRUPTED).cloned().collect()
}

/// Returns the patch that removes the disrupted taint and everything written with it.
pub(super) fn untaint_patch(node: &Node) -> NodePatch {
    // A user's own label is kept.
    let ours = node.labels.get(EXCLUDE_BALANCERS).map(String::as_str) == Some(EXCLUDED_BY);
    let timed = node.annotations.contains_key(TERMINATION_AT);
    let mut annotations = vec![(DISRUPTION_REASON.to_owned(), None)];
    annotations.extend(timed.then(|| (TERMINATION_AT.to_owned(), None)));
    NodePatch {
        labels: Vec::from_iter(ours.then(|| (EXCLUDE_BALANCERS.to_owned(), None))),
        annotations,
        taints: Some(without_disrupted_taint(node)),
        ..NodePatch::for_node(node)
    }
}

/// Returns the patch that sets taint, reason and deadline together, so that no client sees one
/// without the others.
fn taint_patch(node: &Node, reason: Reason, deadline: Option<Timestamp>) -> NodePatch {
    let mut taints = without_disrupted_taint(node);
    taints.push(Taint::new(TAINT_DISRUPTED, Effect::NoSchedule));
    let free = !node.labels.contains_key(EXCLUDE_BALANCERS);
    let why = Some(reason.as_str().to_owned());
    // A user's own label is kept unchanged.
    NodePatch {
        labels: Vec::from_iter(
            free.then(|| (EXCLUDE_BALANCERS.to_owned(), Some(EXCLUDED_BY.to_owned()))),
        ),
        annotations: [(DISRUPTION_REASON.to_owned(), why)]
            .into_iter()
            .chain(deadline.map(deadline_annotation))
            .collect(),
        taints: Some(taints),
        ..NodePatch::for_node(node)
    }
}
