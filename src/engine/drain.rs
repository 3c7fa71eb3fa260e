//! How a node leaves: tainted, drained by eviction, confirmed empty, and only then ended.
//! It must not know why it leaves, except that an empty node with pods on it stays.

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
use crate::state::disruption_blockers::DisruptionBlocker;

/// A drain lasts at least this long from the confirmed taint on: the scheduler may still bind a
/// pod it had decided upon before (Karpenter's MinDrainTime, spec/disruption.md §4.3).
const DRAIN_MIN: SignedDuration = SignedDuration::from_secs(5);

/// The API server is asked for the pods of a draining node at most this often.
const LIST_APART: SignedDuration = SignedDuration::from_secs(2);

/// What somebody takes off a leaving node again and again is written again so often.
const MARK_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// Pods of a node that leaves on purpose may wait this long for places: launches and registrations
/// take a few minutes.
const PLACES_MAX: SignedDuration = SignedDuration::from_mins(20);

/// A node that was to leave and could not stays at least this long, twice as long each time.
const WITHDRAWN_MIN: SignedDuration = SignedDuration::from_mins(1);
const WITHDRAWN_DOUBLED_MAX: u32 = 6;

/// A taint that was sent is on its node after this long at most, if it is to come at all: an answer
/// takes up to 20 s. It is seen there as soon as the watch of nodes tells anything.
const TAINT_LAG: SignedDuration = SignedDuration::from_secs(30);

/// What the API server said of the pods of a node is as good as new for so long.
const CHECKED_MAX: SignedDuration = SignedDuration::from_secs(10);

/// After the watch has been found not to show all pods, it has this long to be read anew.
const REWATCHED: SignedDuration = SignedDuration::from_secs(30);

/// A pod that is older than this and that the watch does not show is one it does not know.
const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);

impl Engine {
    /// Lets a node go: from here on it is drained and ended, unless something keeps it.
    pub(super) fn retire(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        if claim.leaving.is_some() || !self.manages() || self.is_ambiguous(claim, reason) {
            return;
        }
        let open = |node: &Node| self.may_run_pods(id, node, now);
        let registered = self.node_of(claim).is_some_and(open)
            || matches!(
                claim.phase,
                ClaimPhase::Registered | ClaimPhase::Initialized
            );
        // A node that nothing answers on ends with all that is on it, once it is closed.
        let silent = self.node_of(claim).is_none_or(|node| !node.ready);
        let undrained = !registered || (reason.ends_at_once() && silent);
        if undrained && !self.may_end_undrained(id, now) {
            return;
        }
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let node = claim.node.clone();
        let pods = node
            .as_ref()
            .map(|own| self.state.objects.pods_on(own.as_str()));
        let pods = pods.into_iter().flatten();
        let pods = pods.filter(|pod| pod.is_reschedulable()).count();
        let price = self.state.price_of_instance(claim);
        self.report(Report::Retire {
            claim: id.clone(),
            pool: self.state.ledger.pool_of(id),
            node,
            reason,
            price,
            pods,
        });
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.leaving = Some(reason);
            claim.pods.clear();
        }
        let work = self.works.entry(id.clone()).or_default();
        (work.drain, work.told_to_end, work.lingers) = Default::default();
        work.asked = Some(now);
        let next = if registered {
            ClaimPhase::Draining
        } else {
            ClaimPhase::Terminating
        };
        self.enter(id, next, now);
    }

    /// Lets a node go that an earlier life had told pods to leave for good.
    pub(super) fn resume(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) {
        self.retire(id, reason, now);
        let drain = &mut self.works.entry(id.clone()).or_default().drain;
        (drain.released, drain.cleared, drain.moved) = (true, true, true);
    }

    /// The next step of a drain.
    pub(super) fn drain(&mut self, id: &ClaimId, now: Timestamp) {
        if self.node_vanished(id, now) {
            return;
        }
        let claim = self.state.ledger.claims.get(id);
        let known = claim.and_then(|own| Some((own.leaving, self.node_of(own)?.clone())));
        let Some((reason, node)) = known else {
            return;
        };
        let mut reason = reason.unwrap_or(Reason::Empty);
        if node.deleting.is_some() && node.has_finalizer() && reason.is_voluntary() {
            // It cannot stay any more.
            reason = Reason::Deleted;
            if let Some(claim) = self.state.ledger.claims.get_mut(id) {
                claim.leaving = Some(reason);
            }
        }
        let name = node.name.clone();
        let (stale, lost) = (self.is_stale(id, &node), self.has_lost_taint(id, &node));
        let drain = &mut self.works.entry(id.clone()).or_default().drain;
        drain.follow(&node.uid);
        if lost {
            // Someone took the taint away: pods may have come since.
            (drain.tainted, drain.confirmed) = (None, None);
        }
        let (tainted, released) = (drain.tainted, drain.released);
        if tainted.is_none() && !released && !self.is_cleared(id, reason, now) {
            return;
        }
        if (released && !self.waits_for_wave(id, now)) || !reason.waits_for_places() {
            self.start_time(id, reason, now);
        }
        let Some(tainted) = tainted else {
            if reason == Reason::Empty && !released && self.keeps_comers(id, &name, now) {
                return;
            }
            if !stale {
                let deadline = self.works.get(id).and_then(|own| own.drain.deadline);
                let patch = taint_patch(&node, reason, deadline);
                self.works.entry(id.clone()).or_default().drain.sent = Some(now);
                self.step(id, ClaimStep::Taint, Command::PatchNode(patch), now);
            }
            return;
        };
        if !stale && self.marks_again(id, &node, reason, now) {
            return;
        }
        if !self.is_released(id, reason, now) {
            return;
        }
        if !self.waits_for_wave(id, now) {
            self.start_time(id, reason, now);
            if self.writes_deadline(id, now) {
                return;
            }
        }
        let confirmed = self.works.get(id).and_then(|own| own.drain.confirmed);
        if self.is_over(id, now) {
            if reason.ends_at_once() && !self.may_end_undrained(id, now) {
                return;
            }
            self.tell_forced(id, &name, now);
            self.enter(id, ClaimPhase::Terminating, now);
            return;
        }
        if confirmed.is_some() {
            self.enter(id, ClaimPhase::Terminating, now);
            return;
        }
        self.empty(id, (&name, reason), tainted, now);
    }

    /// Whether a node bears no taint of ours, whatever was written.
    pub(super) fn has_lost_taint(&self, id: &ClaimId, node: &Node) -> bool {
        !node.has_disrupted_taint() && !self.is_stale(id, node)
    }

    /// Writes again what stands beside the taint and somebody has taken away: without the label,
    /// load balancers send new connections to a node that leaves. Not at once each time: whoever
    /// takes it away may do so for ever.
    fn marks_again(&mut self, id: &ClaimId, node: &Node, reason: Reason, now: Timestamp) -> bool {
        let labelled = node.labels.contains_key(EXCLUDE_BALANCERS);
        if labelled && node.annotations.contains_key(DISRUPTION_REASON) {
            return false;
        }
        let marked = self.works.get(id).and_then(|own| own.drain.marked);
        if let Some(at) = marked.map(|at| at + MARK_AGAIN).filter(|at| *at > now) {
            self.wake_at(at, "what stands beside a taint is to be written again");
            return false;
        }
        let patch = NodePatch {
            taints: None,
            ..taint_patch(node, reason, None)
        };
        self.step(id, ClaimStep::Mark, Command::PatchNode(patch), now);
        true
    }

    /// That was written. Who takes it away while it is leaves the Node as it was, so that no other
    /// version is to come.
    pub(super) fn marked(&mut self, id: &ClaimId, now: Timestamp) {
        if let Some(work) = self.works.get_mut(id) {
            work.drain.marked = Some(now);
            work.patched = None;
        }
        self.succeeded(id);
    }

    /// Moves what is on a node and, when nothing is left, has that confirmed.
    fn empty(
        &mut self,
        id: &ClaimId,
        (name, reason): (&NodeName, Reason),
        tainted: Timestamp,
        now: Timestamp,
    ) {
        let deadline = self.works.get(id).and_then(|own| own.drain.deadline);
        if let Some(at) = deadline.filter(|at| *at > now) {
            self.wake_at(at, "the time of a leaving node is up");
        }
        if reason == Reason::Empty && self.keeps_comers(id, name, now) {
            return;
        }
        if self.move_pods(id, name, now) {
            let drain = &mut self.works.entry(id.clone()).or_default().drain;
            drain.detach = Default::default();
            if !self.heed_block(id, reason, now) {
                self.tell_held(id, name, now);
            }
            return;
        }
        let due = tainted.checked_add(DRAIN_MIN).unwrap_or(now);
        if due > now {
            self.wake_at(due, "a drain may be confirmed");
        } else if self.is_detached(id, name, now) {
            self.confirm(id, name, now);
        }
    }

    /// Keeps a node that was empty where pods have come to it.
    fn keeps_comers(&mut self, id: &ClaimId, name: &NodeName, now: Timestamp) -> bool {
        let pods = self.state.objects.pods_on(name.as_str());
        let count = pods.filter(|pod| pod.holds_node()).count();
        if count > 0 {
            self.keep(id, format!("{count} pods have come to it"), now);
        }
        count > 0
    }

    /// Whether the pods of a leaving node may be moved: at once, or when each of them has a place
    /// elsewhere. Until the first of them is told to go, nothing is lost: the node stays if they
    /// find none, or if meanwhile something has come that must not be disrupted.
    fn is_released(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) -> bool {
        let drain = self.works.get(id).map(|own| &own.drain);
        let (moved, released) = drain.map_or((false, false), |own| (own.moved, own.released));
        if moved || !(reason.waits_for_places() || reason == Reason::Empty) {
            return true;
        }
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return false;
        };
        let Some(node) = self.node_of(claim) else {
            return false;
        };
        let graceful = self.state.is_graceful(claim) && reason.is_eventual();
        let stands =
            |own: &DisruptionBlocker| !(own.is_passing() || graceful && own.yields_to_grace());
        let has_to = claim.has_to_leave(now);
        let blocker = self.state.blockers(node, Some(claim), now).find(stands);
        if let Some(blocker) = blocker.filter(|_| !has_to) {
            self.state.recent.failed = Some(now);
            self.withdraw_node(id, blocker.to_string(), now);
            return false;
        }
        if reason == Reason::Empty {
            return true;
        }
        // Before its taint was there, any pod may have come.
        let chosen = Some(claim).filter(|_| reason == Reason::Underutilized);
        if let Some(unmanaged_pod) = chosen.and_then(|own| self.state.unmanaged_pod_of(own, now)) {
            let why = format!("nobody would make pod {unmanaged_pod} anew, which has come to it");
            self.withdraw_node(id, why, now);
            return false;
        }
        let until = claim.since.checked_add(PLACES_MAX).unwrap_or(now);
        let reschedulable = self.state.reschedulable_of(claim, now);
        let reschedulable: Vec<PodKey> = reschedulable.map(|pod| pod.key.clone()).collect();
        // A static pool keeps its number.
        let placed =
            self.state.has_number(&claim.record.pool) && self.have_places(&reschedulable, now);
        let is_late = until <= now;
        let seen = placed && self.sees_places(now);
        if (seen && self.is_checked(id, now)) || (has_to && is_late) {
            self.works.entry(id.clone()).or_default().drain.released = true;
            return true;
        }
        if released && !placed {
            let why = "its pods have no place elsewhere any more".to_owned();
            self.postpone_node(id, why, now);
        } else if is_late {
            let why = match placed {
                true => "the watch does not show all of its pods".to_owned(),
                false => format!("its pods have found no place elsewhere within {PLACES_MAX:#}"),
            };
            self.state.recent.failed = Some(now);
            self.withdraw_node(id, why, now);
        } else {
            self.wake_at(until, "the pods of a node are to have a place elsewhere");
        }
        false
    }

    /// Whether all pods of a node are known, of which each has a place: the API server itself is
    /// asked once, since a listing of the watch may have lacked some.
    fn is_checked(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let node = self.state.ledger.claims.get(id);
        let node = node.and_then(|own| own.node.clone());
        let drain = self.works.get(id).map(|own| &own.drain);
        let until = drain.and_then(|own| own.checked?.checked_add(CHECKED_MAX).ok());
        let fresh = until.is_some_and(|at| at > now);
        let checked = fresh || drain.is_some_and(|own| own.released);
        if let Some(name) = node.filter(|_| !checked) {
            self.confirm(id, &name, now);
        }
        checked
    }

    /// Keeps a node that was to leave and could not, for longer each time.
    pub(super) fn withdraw_node(&mut self, id: &ClaimId, why: String, now: Timestamp) {
        let times = self.times_withdrawn(id);
        let wait = WITHDRAWN_MIN * 2_i32.pow(times.min(WITHDRAWN_DOUBLED_MAX));
        self.keep_for(id, why, (wait, times.saturating_add(1)), now);
    }

    /// Keeps a node that was to leave and may not yet, through no fault of its own.
    pub(super) fn postpone_node(&mut self, id: &ClaimId, why: String, now: Timestamp) {
        let times = self.times_withdrawn(id);
        self.keep_for(id, why, (WITHDRAWN_MIN, times), now);
    }

    fn times_withdrawn(&self, id: &ClaimId) -> u32 {
        let claim = self.state.ledger.claims.get(id);
        let withdrawn = claim.and_then(|own| own.withdrawn);
        withdrawn.map_or(0, |(_, times)| times)
    }

    fn keep_for(
        &mut self,
        id: &ClaimId,
        why: String,
        (wait, times): (SignedDuration, u32),
        now: Timestamp,
    ) {
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.withdrawn = Some((now.checked_add(wait).unwrap_or(now), times));
        }
        self.keep(id, why, now);
    }

    /// Asks the API server itself for the pods of the node; the watch may lag behind.
    fn confirm(&mut self, id: &ClaimId, node: &NodeName, now: Timestamp) {
        let work = self.works.entry(id.clone()).or_default();
        if let Some(at) = work.drain.next_list.filter(|at| *at > now) {
            self.wake_at(at, "a drain is to be confirmed");
            return;
        }
        work.drain.next_list = now.checked_add(LIST_APART).ok();
        self.step(
            id,
            ClaimStep::ListPods,
            Command::ListPodsOn { node: node.clone() },
            now,
        );
    }

    /// The pods of a node were listed, straight from the API server.
    pub(super) fn pods_listed(&mut self, id: &ClaimId, mut pods: Vec<Pod>, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let reason = claim.leaving.unwrap_or(Reason::Empty);
        let empty = reason == Reason::Empty;
        let objects = &self.state.objects;
        pods.iter_mut()
            .for_each(|pod| objects.note_deletion(pod, now));
        let come = pods.iter().filter(|pod| pod.holds_node()).count();
        let held = pods.iter().any(|pod| pod.holds_drain(now));
        let old = |pod: &&Pod| {
            let known = pod.created.and_then(|at| at.checked_add(WATCH_LAG).ok());
            known.is_some_and(|at| at < now)
        };
        let is_unseen = |pod: &&Pod| !self.state.objects.has(ObjectKind::Pod, &pod.key);
        let unseen: Vec<&Pod> = pods.iter().filter(is_unseen).collect();
        let is_blind = unseen.iter().any(old);
        let Some(work) = self.works.get_mut(id) else {
            return;
        };
        work.retry = Default::default();
        work.drain.checked = unseen.is_empty().then_some(now);
        if is_blind {
            work.drain.next_list = now.checked_add(REWATCHED).ok();
        }
        if reason.waits_for_places() && !work.drain.released {
            // Nothing has left it yet.
        } else if empty && come > 0 {
            self.keep(id, format!("{come} pods have come to it"), now);
        } else if !held {
            work.drain.confirmed = Some(now);
        }
        if is_blind {
            self.state.views.doubt(ObjectKind::Pod);
        }
    }

    /// Keeps a node that was to leave.
    pub(super) fn keep(&mut self, id: &ClaimId, why: String, now: Timestamp) {
        self.heed_stay(id, now);
        let unseen = self.state.cluster.api.silence_max() + TAINT_LAG;
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return;
        };
        let reason = claim.leaving.take().unwrap_or(Reason::Empty);
        let work = self.works.entry(id.clone()).or_default();
        let tainted = work.drain.tainted.is_some();
        // One that nobody has answered may still be on its way.
        let in_flight = matches!(work.step, Some((_, ClaimStep::Taint)));
        let closed = match tainted || in_flight {
            true => Some(now),
            false => work.drain.sent,
        };
        claim.closing_until = closed.and_then(|at| at.checked_add(unseen).ok());
        let evictions = std::mem::take(&mut work.drain.evictions);
        let is_told = |own: &Command| match own {
            Command::Evict { pod, .. } | Command::DeletePod { pod, .. } => {
                evictions.contains_key(pod)
            }
            _ => false,
        };
        self.withdraw("its node stays", is_told, now);
        self.report(Report::Kept {
            claim: id.clone(),
            reason,
            why,
        });
        self.enter(id, ClaimPhase::Initialized, now);
        self.untaint(id, now);
    }

    /// The taint of a node that stays was there, and is gone.
    pub(super) fn untainted(&mut self, id: &ClaimId) {
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.closing_until = None;
        }
        self.succeeded(id);
    }

    /// Takes the disrupted taint and all that was written with it away, or what somebody who took
    /// the taint has left of it.
    pub(super) fn untaint(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let Some(node) = self.node_of(claim) else {
            return;
        };
        if !node.is_marked() {
            return;
        }
        let patch = untaint_patch(node);
        self.step(id, ClaimStep::Untaint, Command::PatchNode(patch), now);
    }
}

/// The disrupted taint goes, with all that was written beside it.
pub(super) fn untaint_patch(node: &Node) -> NodePatch {
    let taints = node.taints.iter();
    let taints = taints.filter(|own| own.key != TAINT_DISRUPTED).cloned();
    // A user's own label stays.
    let ours = node.labels.get(EXCLUDE_BALANCERS).map(String::as_str) == Some(EXCLUDED_BY);
    let timed = node.annotations.contains_key(TERMINATION_AT);
    let mut annotations = vec![(DISRUPTION_REASON.to_owned(), None)];
    annotations.extend(timed.then(|| (TERMINATION_AT.to_owned(), None)));
    NodePatch {
        node: node.name.clone(),
        version: node.version.clone(),
        labels: Vec::from_iter(ours.then(|| (EXCLUDE_BALANCERS.to_owned(), None))),
        annotations,
        taints: Some(taints.collect()),
        ..NodePatch::default()
    }
}

/// Taint, reason and deadline go on in one patch, so that none is ever seen without the others.
fn taint_patch(node: &Node, reason: Reason, deadline: Option<Timestamp>) -> NodePatch {
    let mut taints: Vec<Taint> = node
        .taints
        .iter()
        .filter(|own| own.key != TAINT_DISRUPTED)
        .cloned()
        .collect();
    taints.push(Taint::new(TAINT_DISRUPTED, Effect::NoSchedule));
    // A user's own label stays as it is.
    let label = || (EXCLUDE_BALANCERS.to_owned(), Some(EXCLUDED_BY.to_owned()));
    let free = !node.labels.contains_key(EXCLUDE_BALANCERS);
    let why = (
        DISRUPTION_REASON.to_owned(),
        Some(reason.as_str().to_owned()),
    );
    NodePatch {
        node: node.name.clone(),
        version: node.version.clone(),
        labels: Vec::from_iter(free.then(label)),
        annotations: [why]
            .into_iter()
            .chain(deadline.map(deadline_annotation))
            .collect(),
        taints: Some(taints),
        ..NodePatch::default()
    }
}
