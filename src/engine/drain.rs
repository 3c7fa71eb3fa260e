//! Drains a disrupted node: taint, evict, confirm that it is empty, terminate.

// Waves of evictions to new nodes.
pub(super) mod waves;
// Order, retries and deadlines of evictions.
pub(super) mod eviction;
// Waits for volume detachment.
pub(super) mod volumes;
// Termination time of a node, and blocked drains.
pub(super) mod deadline;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, NodePatch};
use crate::engine::drain::deadline::deadline_annotation;
use crate::engine::in_flight::ClaimStep;
use crate::engine::report::Report;
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

/// A node whose disruption was cancelled is kept at least this long, and twice as long after each
/// further cancellation.
const WITHDRAWN_MIN: SignedDuration = SignedDuration::from_mins(1);
const WITHDRAWN_DOUBLED_MAX: u32 = 6;

/// Maximum time until a sent taint is on its node: an answer takes up to 20 s. The watch of nodes
/// shows the taint with its next event.
const TAINT_LAG: SignedDuration = SignedDuration::from_secs(30);

/// A pod listing from the API server is current for this long.
const CHECKED_MAX: SignedDuration = SignedDuration::from_secs(10);

/// If the watch does not show all pods, it is restarted and has this long to catch up.
const REWATCHED: SignedDuration = SignedDuration::from_secs(30);

/// If the watch does not show a pod that is older than this, it has missed the pod.
const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);

impl Engine {
    /// Disrupts a node. It is drained and terminated, unless the drain is cancelled.
    pub(super) fn disrupt_node(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) {
        let Some(claim) = self.claim(id) else {
            return;
        };
        if claim.leaving.is_some() || !self.is_managing() || self.is_ambiguous(claim, reason) {
            return;
        }
        let node = self.node_of(claim);
        let registered =
            node.is_some_and(|node| self.may_run_pods(id, node, now)) || claim.has_joined();
        // A node that does not respond is terminated with all its pods after its taint.
        let silent = node.is_none_or(|node| !node.ready);
        let undrained = !registered || (reason.terminates_undrained() && silent);
        if undrained && !self.may_end_undrained(id, now) {
            return;
        }
        let Some(claim) = self.claim(id) else {
            return;
        };
        let name = claim.node.as_ref().map_or("", |name| name.as_str());
        let pods = self.state.objects.pods_on(name);
        self.push_report(Report::Retire {
            claim: id.clone(),
            pool: claim.record.pool.clone(),
            node: claim.node.clone(),
            reason,
            price: self.state.price_of_instance(claim),
            pods: pods.filter(|pod| pod.is_reschedulable()).count(),
        });
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.leaving = Some(reason);
            claim.pods.clear();
        }
        let progress = self.works.entry(id.clone()).or_default();
        (progress.drain, progress.told_to_end, progress.lingers) = Default::default();
        progress.asked = Some(now);
        let next = match registered {
            true => ClaimPhase::Draining,
            false => ClaimPhase::Terminating,
        };
        self.enter_phase(id, next, now);
    }

    /// Resumes the disruption of a node from which an earlier process evicted pods.
    pub(super) fn resume_disruption(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) {
        self.disrupt_node(id, reason, now);
        let drain = &mut self.works.entry(id.clone()).or_default().drain;
        (drain.released, drain.cleared, drain.moved) = (true, true, true);
    }

    /// Performs the next step of a drain.
    pub(super) fn drain(&mut self, id: &ClaimId, now: Timestamp) {
        if self.node_vanished(id, now) {
            return;
        }
        let claim = self.claim(id);
        let known = claim.and_then(|claim| Some((claim.leaving, self.node_of(claim)?.clone())));
        let Some((reason, node)) = known else {
            return;
        };
        let mut reason = reason.unwrap_or(Reason::Empty);
        if node.deleting.is_some() && node.has_finalizer() && reason.is_voluntary() {
            // The drain can no longer be cancelled.
            reason = Reason::Deleted;
            if let Some(claim) = self.state.ledger.claims.get_mut(id) {
                claim.leaving = Some(reason);
            }
        }
        let name = node.name.clone();
        let (stale, lost) = (self.is_stale(id, &node), self.has_lost_taint(id, &node));
        let drain = &mut self.works.entry(id.clone()).or_default().drain;
        drain.reset_if_recreated(&node.uid);
        if lost {
            // Another client removed the taint, so new pods may have been bound.
            (drain.tainted, drain.confirmed) = (None, None);
        }
        let (tainted, released) = (drain.tainted, drain.released);
        if tainted.is_none() && !released && !self.is_cleared(id, reason, now) {
            return;
        }
        if (released && !self.waits_for_wave(id, now)) || !reason.waits_for_placements() {
            self.start_deadline(id, reason, now);
        }
        let Some(tainted) = tainted else {
            if reason == Reason::Empty && !released && self.keeps_new_pods(id, &name, now) {
                return;
            }
            if !stale {
                let deadline = self.drain_of(id).and_then(|drain| drain.deadline);
                let patch = taint_patch(&node, reason, deadline);
                self.progress_of(id).drain.sent = Some(now);
                self.send_step(id, ClaimStep::Taint, Command::PatchNode(patch), now);
            }
            return;
        };
        if !stale && self.restores_marks(id, &node, reason, now) {
            return;
        }
        if !self.is_released(id, reason, now) {
            return;
        }
        if !self.waits_for_wave(id, now) {
            self.start_deadline(id, reason, now);
            if self.writes_deadline(id, now) {
                return;
            }
        }
        let confirmed = self.drain_of(id).and_then(|drain| drain.confirmed);
        if self.is_deadline_over(id, now) {
            if reason.terminates_undrained() && !self.may_end_undrained(id, now) {
                return;
            }
            self.report_forced_drain(id, &name, now);
            self.enter_phase(id, ClaimPhase::Terminating, now);
            return;
        }
        if confirmed.is_some() {
            self.enter_phase(id, ClaimPhase::Terminating, now);
            return;
        }
        self.evict_and_confirm(id, &name, reason, tainted, now);
    }

    /// Returns whether a Node lacks the disrupted taint although the engine has set it.
    pub(super) fn has_lost_taint(&self, id: &ClaimId, node: &Node) -> bool {
        !node.has_disrupted_taint() && !self.is_stale(id, node)
    }

    /// Restores the disruption label and annotation if a different client removed them. Without the
    /// label, load balancers send new connections to a disrupted node. [`MARK_AGAIN`] limits the
    /// rate, because the other client may remove them forever.
    fn restores_marks(
        &mut self,
        id: &ClaimId,
        node: &Node,
        reason: Reason,
        now: Timestamp,
    ) -> bool {
        let labelled = node.labels.contains_key(EXCLUDE_BALANCERS);
        if labelled && node.annotations.contains_key(DISRUPTION_REASON) {
            return false;
        }
        let marked = self.drain_of(id).and_then(|drain| drain.marked);
        let again = marked.map(|at| at + MARK_AGAIN);
        if self.waits_until(again, "what stands beside a taint is to be written again", now) {
            return false;
        }
        let patch = NodePatch { taints: None, ..taint_patch(node, reason, None) };
        self.send_step(id, ClaimStep::Mark, Command::PatchNode(patch), now);
        true
    }

    /// Records that they were restored. If they were removed again during the write, the Node is
    /// unchanged and no new version follows, so the engine must not wait for one.
    pub(super) fn on_marks_restored(&mut self, id: &ClaimId, now: Timestamp) {
        if let Some(progress) = self.works.get_mut(id) {
            progress.drain.marked = Some(now);
            progress.patched = None;
        }
        self.on_step_succeeded(id);
    }

    /// Evicts the pods of a node and, when none remain, requests the confirmation.
    fn evict_and_confirm(
        &mut self,
        id: &ClaimId,
        name: &NodeName,
        reason: Reason,
        tainted: Timestamp,
        now: Timestamp,
    ) {
        let deadline = self.drain_of(id).and_then(|drain| drain.deadline);
        let deadline = deadline.filter(|at| *at > now);
        self.wake_at(deadline, "the deadline of a drain has passed");
        if reason == Reason::Empty && self.keeps_new_pods(id, name, now) {
            return;
        }
        if self.evict_pods(id, name, now) {
            let drain = &mut self.works.entry(id.clone()).or_default().drain;
            drain.detach = Default::default();
            if !self.on_drain_timeout(id, reason, now) {
                self.report_blocked_drain(id, name, now);
            }
            return;
        }
        let due = tainted.checked_add(DRAIN_MIN).unwrap_or(now);
        if due > now {
            self.wake_at(due, "a drain can be confirmed");
        } else if self.is_detached(id, name, now) {
            self.request_confirmation(id, name, now);
        }
    }

    /// Cancels the disruption of an empty node if pods were bound to it.
    fn keeps_new_pods(&mut self, id: &ClaimId, name: &NodeName, now: Timestamp) -> bool {
        let pods = self.state.objects.pods_on(name.as_str());
        let count = pods.filter(|pod| pod.holds_node()).count();
        if count > 0 {
            self.cancel_disruption(id, format!("{count} pods have come to it"), now);
        }
        count > 0
    }

    /// Returns whether the pods of a disrupted node may be evicted: immediately, or when each of
    /// them has a place elsewhere. The disruption can be cancelled until the first eviction. It is
    /// cancelled if the pods find no places or if the node gets a pod that blocks disruption.
    fn is_released(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) -> bool {
        let drain = self.drain_of(id);
        let (moved, released) = drain.map_or((false, false), |drain| (drain.moved, drain.released));
        if moved || !(reason.waits_for_placements() || reason == Reason::Empty) {
            return true;
        }
        let Some(claim) = self.claim(id) else {
            return false;
        };
        let Some(node) = self.node_of(claim) else {
            return false;
        };
        let graceful = self.state.is_graceful(claim) && reason.is_eventual();
        let has_to = claim.must_be_disrupted(now);
        let blocker = self
            .state
            .disruption_blockers(node, Some(claim), now)
            .find(|blocker| !(blocker.is_temporary() || graceful && blocker.yields_to_grace()));
        if let Some(blocker) = blocker.filter(|_| !has_to) {
            self.state.recent.failed = Some(now);
            self.cancel_drain(id, blocker.to_string(), now);
            return false;
        }
        if reason == Reason::Empty {
            return true;
        }
        // Any pod may have been bound before the taint.
        let chosen = Some(claim).filter(|_| reason == Reason::Underutilized);
        if let Some(unmanaged_pod) =
            chosen.and_then(|claim| self.state.unmanaged_pod_of(claim, now))
        {
            let why = format!(
                "pod {unmanaged_pod} runs on it and has no controller that would recreate it"
            );
            self.cancel_drain(id, why, now);
            return false;
        }
        let until = claim.since.checked_add(PLACES_MAX).unwrap_or(now);
        let reschedulable = self.state.reschedulable_of(claim, now);
        let reschedulable: Vec<PodKey> = reschedulable.map(|pod| pod.key.clone()).collect();
        // A static pool keeps its node count.
        let placed = self.state.has_all_static_nodes(&claim.record.pool)
            && self.have_places(&reschedulable, now);
        let is_late = until <= now;
        let seen = placed && self.are_watches_recent(now);
        if (seen && self.are_all_pods_known(id, now)) || (has_to && is_late) {
            self.progress_of(id).drain.released = true;
            return true;
        }
        if released && !placed {
            let why = "its pods can no longer be scheduled elsewhere".to_owned();
            self.postpone_drain(id, why, now);
        } else if is_late {
            let why = match placed {
                true => "the watch does not show all of its pods".to_owned(),
                false => format!("its pods have found no place elsewhere within {PLACES_MAX:#}"),
            };
            self.state.recent.failed = Some(now);
            self.cancel_drain(id, why, now);
        } else {
            self.wake_at(until, "the pods of a node should have a replacement node by now");
        }
        false
    }

    /// Returns whether all pods of a node are known, so that each of them has a place. The API
    /// server is queried once, because a listing of the watch may have lacked some.
    fn are_all_pods_known(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let node = self.claim(id).and_then(|node| node.node.clone());
        let drain = self.drain_of(id);
        let until = drain.and_then(|drain| drain.checked?.checked_add(CHECKED_MAX).ok());
        let fresh = until.is_some_and(|at| at > now);
        let checked = fresh || drain.is_some_and(|drain| drain.released);
        if let Some(name) = node.filter(|_| !checked) {
            self.request_confirmation(id, &name, now);
        }
        checked
    }

    /// Cancels the disruption of a node that could not be drained, and keeps it longer each time.
    pub(super) fn cancel_drain(&mut self, id: &ClaimId, why: String, now: Timestamp) {
        let times = self.cancellation_count(id);
        let wait = WITHDRAWN_MIN * 2_i32.pow(times.min(WITHDRAWN_DOUBLED_MAX));
        self.cancel_and_back_off(id, why, wait, times.saturating_add(1), now);
    }

    /// Cancels the disruption of a node for a reason outside the node.
    pub(super) fn postpone_drain(&mut self, id: &ClaimId, why: String, now: Timestamp) {
        let times = self.cancellation_count(id);
        self.cancel_and_back_off(id, why, WITHDRAWN_MIN, times, now);
    }

    fn cancellation_count(&self, id: &ClaimId) -> u32 {
        let withdrawn = self.claim(id).and_then(|claim| claim.withdrawn);
        withdrawn.map_or(0, |(_, times)| times)
    }

    fn cancel_and_back_off(
        &mut self,
        id: &ClaimId,
        why: String,
        wait: SignedDuration,
        times: u32,
        now: Timestamp,
    ) {
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.withdrawn = Some((now.checked_add(wait).unwrap_or(now), times));
        }
        self.cancel_disruption(id, why, now);
    }

    /// Lists the pods of the node from the API server, because the watch may lag behind.
    fn request_confirmation(&mut self, id: &ClaimId, node: &NodeName, now: Timestamp) {
        let next = self.drain_of(id).and_then(|drain| drain.next_list);
        if self.waits_until(next, "confirm a drain", now) {
            return;
        }
        self.progress_of(id).drain.next_list = now.checked_add(LIST_APART).ok();
        let list = Command::ListPodsOn { node: node.clone() };
        self.send_step(id, ClaimStep::ListPods, list, now);
    }

    /// Handles a listing of a node's pods from the API server.
    pub(super) fn on_pods_listed(&mut self, id: &ClaimId, mut pods: Vec<Pod>, now: Timestamp) {
        let Some(claim) = self.claim(id) else {
            return;
        };
        let reason = claim.leaving.unwrap_or(Reason::Empty);
        let empty = reason == Reason::Empty;
        let objects = &self.state.objects;
        pods.iter_mut().for_each(|pod| objects.note_deletion(pod, now));
        let bound = pods.iter().filter(|pod| pod.holds_node()).count();
        let held = pods.iter().any(|pod| pod.holds_drain(now));
        let unseen: Vec<&Pod> = pods
            .iter()
            .filter(|pod| !self.state.objects.contains_object(ObjectKind::Pod, &pod.key))
            .collect();
        let is_blind = unseen.iter().any(|pod| {
            let known = pod.created.and_then(|at| at.checked_add(WATCH_LAG).ok());
            known.is_some_and(|at| at < now)
        });
        let Some(progress) = self.works.get_mut(id) else {
            return;
        };
        progress.retry = Default::default();
        progress.drain.checked = unseen.is_empty().then_some(now);
        if is_blind {
            progress.drain.next_list = now.checked_add(REWATCHED).ok();
        }
        if reason.waits_for_placements() && !progress.drain.released {
            // No eviction has completed yet.
        } else if empty && bound > 0 {
            self.cancel_disruption(id, format!("{bound} pods have come to it"), now);
        } else if !held {
            progress.drain.confirmed = Some(now);
        }
        if is_blind {
            self.state.views.mark_incomplete(ObjectKind::Pod);
        }
    }

    /// Cancels the disruption of a node.
    pub(super) fn cancel_disruption(&mut self, id: &ClaimId, why: String, now: Timestamp) {
        self.record_kept_node(id, now);
        let unseen = self.state.cluster.api.silence_max() + TAINT_LAG;
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return;
        };
        let reason = claim.leaving.take().unwrap_or(Reason::Empty);
        let progress = self.works.entry(id.clone()).or_default();
        let tainted = progress.drain.tainted.is_some();
        // An unanswered taint may still be in flight.
        let in_flight = matches!(progress.step, Some((_, ClaimStep::Taint)));
        let closed = match tainted || in_flight {
            true => Some(now),
            false => progress.drain.sent,
        };
        claim.closing_until = closed.and_then(|at| at.checked_add(unseen).ok());
        let evictions = std::mem::take(&mut progress.drain.evictions);
        self.cancel_claim_commands(
            |command| match command {
                Command::Evict { pod, .. } | Command::DeletePod { pod, .. } => {
                    evictions.contains_key(pod)
                }
                _ => false,
            },
            now,
        );
        self.push_report(Report::Kept { claim: id.clone(), reason, why });
        self.enter_phase(id, ClaimPhase::Initialized, now);
        self.send_untaint(id, now);
    }

    /// Handles the removal of the taint from a node that is kept.
    pub(super) fn on_untainted(&mut self, id: &ClaimId) {
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.closing_until = None;
        }
        self.on_step_succeeded(id);
    }

    /// Removes the disrupted taint and everything written with it, or what remains of it.
    pub(super) fn send_untaint(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.claim(id) else {
            return;
        };
        let Some(node) = self.node_of(claim) else {
            return;
        };
        if !node.is_marked() {
            return;
        }
        let patch = untaint_patch(node);
        self.send_step(id, ClaimStep::Untaint, Command::PatchNode(patch), now);
    }
}

/// Returns the taints of a node without the disrupted taint.
fn without_taint(node: &Node) -> Vec<Taint> {
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
        taints: Some(without_taint(node)),
        ..NodePatch::for_node(node)
    }
}

/// Returns the patch that sets taint, reason and deadline together, so that no client sees one
/// without the others.
fn taint_patch(node: &Node, reason: Reason, deadline: Option<Timestamp>) -> NodePatch {
    let mut taints = without_taint(node);
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
