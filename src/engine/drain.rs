//! How a node leaves: tainted, drained by eviction, confirmed empty, and only then ended.
//! It must not know why it leaves, except that an empty node with pods on it stays.

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, NodePatch};
use crate::engine::report::Report;
use crate::engine::work::{Drain, FlightKind, Step};
use crate::model::claim::Phase;
use crate::model::id::{ClaimId, PodKey};
use crate::model::labels::{DISRUPTION_REASON, EXCLUDE_BALANCERS, TAINT_DISRUPTED};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::taint::{Effect, Taint};
use crate::state::blockers::Blocker;

/// A drain lasts at least this long from the confirmed taint on: the scheduler may still bind a
/// pod it had decided upon before (Karpenter's MinDrainTime, spec/disruption.md §4.3).
const DRAIN_MIN: SignedDuration = SignedDuration::from_secs(5);

/// The API server is asked for the pods of a draining node at most this often.
const LIST_APART: SignedDuration = SignedDuration::from_secs(2);

/// Value of the label that takes a leaving node off load balancers, as Karpenter writes it.
const EXCLUDED_BY: &str = "karpenter";

/// Pods of a node that leaves on purpose may wait this long for places: launches and registrations
/// take a few minutes.
const PLACES_MAX: SignedDuration = SignedDuration::from_mins(20);

/// A node that was to leave and could not stays at least this long, twice as long each time.
const WITHDRAWN_MIN: SignedDuration = SignedDuration::from_mins(1);
const WITHDRAWN_DOUBLED_MAX: u32 = 6;

/// Evictions of one node under way at once.
const EVICTIONS_MAX: usize = 16;

impl Engine {
    /// Lets a node go: from here on it is drained and ended, unless something keeps it.
    pub(super) fn retire(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        if claim.leaving.is_some() || !self.manages() {
            return;
        }
        let open = |node: &Node| self.may_run_pods(id, node, now);
        let registered = self.node_of(claim).is_some_and(open)
            || matches!(claim.phase, Phase::Registered | Phase::Initialized);
        let node = claim.node.clone();
        let price = claim
            .instance
            .as_ref()
            .and_then(|own| self.state.catalog.offering(&own.offering))
            .map(|offering| offering.price);
        self.report(Report::Retire {
            claim: id.clone(),
            node,
            reason,
            price,
        });
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.leaving = Some(reason);
            claim.pods.clear();
        }
        self.works.entry(id.clone()).or_default().drain = Drain::default();
        let next = if registered {
            Phase::Draining
        } else {
            Phase::Terminating
        };
        self.enter(id, next, now);
    }

    /// The next step of a drain.
    pub(super) fn drain(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let reason = claim.leaving.unwrap_or(Reason::Empty);
        if self.node_vanished(id, now) {
            return;
        }
        let Some(node) = self
            .state
            .ledger
            .claims
            .get(id)
            .and_then(|own| self.node_of(own))
        else {
            return;
        };
        let (name, lost) = (node.name.clone(), !node.has_disrupted_taint());
        if lost && !self.is_stale(id, node) {
            // Someone took the taint away: pods may have come since.
            let drain = &mut self.works.entry(id.clone()).or_default().drain;
            (drain.tainted, drain.confirmed) = (None, None);
        }
        let drain = self.works.get(id).map(|work| &work.drain);
        let open = drain.is_none_or(|drain| drain.tainted.is_none());
        if open && !self.is_cleared(id, reason, now) {
            return;
        }
        let Some(node) = self.state.objects.nodes.get(&name) else {
            return;
        };
        let drain = self.works.get(id).map(|work| &work.drain);
        let Some(tainted) = drain.and_then(|drain| drain.tainted) else {
            if !self.is_stale(id, node) {
                let patch = taint_patch(node, reason);
                self.step(id, Step::Taint, Command::PatchNode(patch), now);
            }
            return;
        };
        if !self.is_released(id, reason, now) {
            return;
        }
        let drain = self.works.get(id).map(|work| &work.drain);
        let Some(node) = self.state.objects.nodes.get(&name) else {
            return;
        };
        let fails = reason == Reason::Unhealthy && node.has_disrupted_taint();
        if fails || drain.is_some_and(|drain| drain.confirmed.is_some()) {
            self.enter(id, Phase::Terminating, now);
            return;
        }
        let due = tainted.checked_add(DRAIN_MIN).unwrap_or(now);
        let emptied = !self.evict_pods(id, reason, now);
        if emptied && due <= now {
            self.confirm(id, &name, now);
        } else if due > now {
            self.wake_at(due, "a drain may be confirmed");
        }
    }

    /// Whether the pods of a leaving node may be moved: at once, or when each of them has a place
    /// elsewhere. Until then nothing is lost: the node stays if they find none, or if meanwhile
    /// something has come that must not be disrupted.
    fn is_released(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) -> bool {
        let released = self.works.get(id).is_some_and(|own| own.drain.released);
        if released || !reason.waits_for_places() {
            return true;
        }
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return false;
        };
        let Some(node) = self.node_of(claim) else {
            return false;
        };
        let graceful = claim.record.termination_grace_period.is_some() && reason.is_eventual();
        let stands = |own: &Blocker| !(own.is_passing() || graceful && own.yields_to_grace());
        let has_to = claim.has_to_leave(now);
        let blocker = self.state.blockers(node, Some(claim), now).find(stands);
        if let Some(blocker) = blocker.filter(|_| !has_to) {
            self.state.recent.failed = Some(now);
            self.withdraw_node(id, blocker.to_string(), now);
            return false;
        }
        let until = claim.since.checked_add(PLACES_MAX).unwrap_or(now);
        let placed = self
            .state
            .movers_of(claim, now)
            .all(|pod| self.has_place(&pod.key));
        // A static pool keeps its number.
        let placed = placed && self.state.has_number(&claim.record.pool);
        let placed = placed || (has_to && until <= now);
        if placed {
            self.works.entry(id.clone()).or_default().drain.released = true;
        } else if until <= now {
            let why = format!("its pods have found no place elsewhere within {PLACES_MAX:#}");
            self.state.recent.failed = Some(now);
            self.withdraw_node(id, why, now);
        } else {
            self.wake_at(until, "the pods of a node are to have a place elsewhere");
        }
        placed
    }

    /// Keeps a node that was to leave and could not, for longer each time.
    pub(super) fn withdraw_node(&mut self, id: &ClaimId, why: String, now: Timestamp) {
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            let times = claim.withdrawn.map_or(0, |(_, times)| times);
            let wait = WITHDRAWN_MIN * 2_i32.pow(times.min(WITHDRAWN_DOUBLED_MAX));
            let until = now.checked_add(wait).unwrap_or(now);
            claim.withdrawn = Some((until, times.saturating_add(1)));
        }
        self.keep(id, why, now);
    }

    /// Asks the API server itself for the pods of the node; the watch may lag behind.
    fn confirm(&mut self, id: &ClaimId, node: &crate::model::id::NodeName, now: Timestamp) {
        let work = self.works.entry(id.clone()).or_default();
        if let Some(at) = work.drain.next_list.filter(|at| *at > now) {
            self.wake_at(at, "a drain is to be confirmed");
            return;
        }
        work.drain.next_list = now.checked_add(LIST_APART).ok();
        self.step(
            id,
            Step::ListPods,
            Command::ListPodsOn { node: node.clone() },
            now,
        );
    }

    /// Sends evictions off for the pods that may go now. Returns whether any pod is left.
    fn evict_pods(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) -> bool {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return false;
        };
        let Some(name) = claim.node.clone() else {
            return false;
        };
        let left: Vec<&Pod> = self
            .state
            .objects
            .pods_on(name.as_str())
            .filter(|pod| stays(pod, reason, now))
            .collect();
        if left.is_empty() {
            return false;
        }
        let count = left.iter().filter(|pod| pod.holds_node()).count();
        if reason == Reason::Empty && count > 0 {
            self.keep(id, format!("{count} pods have come to it"), now);
            return true;
        }
        // Critical pods serve the others: they go last (spec/disruption.md §4.4).
        let critical = left.iter().all(|pod| pod.is_critical());
        let tier: Vec<(PodKey, String)> = left
            .iter()
            .filter(|pod| pod.is_critical() == critical && pod.deleting.is_none())
            .filter(|pod| !pod.is_protected(now))
            .map(|pod| (pod.key.clone(), pod.uid.clone()))
            .collect();
        let drain = &mut self.works.entry(id.clone()).or_default().drain;
        let mut in_flight = drain.evictions.values().filter(|own| own.in_flight).count();
        let mut due = Vec::new();
        let mut wake: Option<Timestamp> = None;
        for (key, uid) in tier {
            let eviction = drain.evictions.entry(key.clone()).or_default();
            if eviction.in_flight || in_flight >= EVICTIONS_MAX {
                continue;
            }
            if !eviction.retry.is_due(now) {
                wake = [wake, eviction.retry.next()].into_iter().flatten().min();
                continue;
            }
            eviction.in_flight = true;
            in_flight += 1;
            due.push((key, uid));
        }
        for (pod, uid) in due {
            let flight = FlightKind::Evict(id.clone(), pod.clone());
            self.issue(Command::Evict { pod, uid }, flight, now);
        }
        if let Some(at) = wake {
            self.wake_at(at, "an eviction is to be tried again");
        }
        true
    }

    /// Keeps a node that was to leave.
    pub(super) fn keep(&mut self, id: &ClaimId, why: String, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return;
        };
        claim.leaving = None;
        let tainted = self
            .works
            .get(id)
            .is_some_and(|work| work.drain.tainted.is_some());
        self.report(Report::Kept {
            claim: id.clone(),
            why,
        });
        self.enter(id, Phase::Initialized, now);
        if tainted {
            self.untaint(id, now);
        }
    }

    /// Takes the disrupted taint and all that was written with it away.
    pub(super) fn untaint(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let Some(node) = self.node_of(claim) else {
            return;
        };
        if !node.has_disrupted_taint() {
            return;
        }
        let taints = node
            .taints
            .iter()
            .filter(|own| own.key != TAINT_DISRUPTED)
            .cloned()
            .collect();
        // A user's own label stays.
        let ours = node.labels.get(EXCLUDE_BALANCERS).map(String::as_str) == Some(EXCLUDED_BY);
        let patch = NodePatch {
            node: node.name.clone(),
            version: node.version.clone(),
            labels: Vec::from_iter(ours.then(|| (EXCLUDE_BALANCERS.to_owned(), None))),
            annotations: vec![(DISRUPTION_REASON.to_owned(), None)],
            taints: Some(taints),
        };
        self.step(id, Step::Untaint, Command::PatchNode(patch), now);
    }
}

/// Whether a node cannot go because of this pod. An empty node is one that no pod needs.
pub(super) fn stays(pod: &Pod, reason: Reason, now: Timestamp) -> bool {
    pod.blocks_drain(now) || (reason == Reason::Empty && pod.holds_node())
}

/// Taint and reason go on in one patch, so that neither is ever seen without the other.
fn taint_patch(node: &crate::model::node::Node, reason: Reason) -> NodePatch {
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
    NodePatch {
        node: node.name.clone(),
        version: node.version.clone(),
        labels: Vec::from_iter(free.then(label)),
        annotations: vec![(
            DISRUPTION_REASON.to_owned(),
            Some(reason.as_str().to_owned()),
        )],
        taints: Some(taints),
    }
}
