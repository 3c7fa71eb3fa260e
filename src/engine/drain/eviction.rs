//! How pods leave a node: whose turn it is, who is told again when, and who has no time left.
//! It must not know why the node leaves, nor what follows when they are gone.

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, CommandResult};
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::state::drain_blockers::DrainBlocker;

/// Evictions and deletions of one node under way at once.
const EVICTIONS_MAX: usize = 16;

/// A pod whose disruption budgets are seen to let nobody go, and that was refused, is asked to go
/// only so often: what the budgets say changes before our eyes.
const KEPT_APART: SignedDuration = SignedDuration::from_mins(1);

/// What holds a node is said when it has for this long, as long as Cluster Autoscaler tries to
/// evict (design/users.md §1, 24).
const HELD_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// So much of it is said.
const HELD_SHOWN: usize = 5;

/// A pod that is told to go.
struct EvictionTarget {
    pod: PodKey,
    uid: String,
    /// Seconds it is given, where its disruption budgets are not asked; else it is evicted.
    grace: Option<u32>,
}

impl Engine {
    /// Tells the pods to go whose turn it is, and those whose time is running out. Returns whether
    /// any pod holds the node.
    pub(crate) fn move_pods(&mut self, id: &ClaimId, node: &NodeName, now: Timestamp) -> bool {
        let drain = &mut self.works.entry(id.clone()).or_default().drain;
        let pods = self.state.objects.pods_on(node.as_str());
        let left: Vec<&Pod> = pods.filter(|pod| pod.holds_drain(now)).collect();
        let is_left = |key: &PodKey| left.iter().any(|pod| pod.key == *key);
        drain
            .evictions
            .retain(|key, own| own.in_flight || is_left(key));
        let (until, forces) = (drain.deadline, drain.forces);
        let (late, rest): (Vec<&Pod>, Vec<&Pod>) = left
            .iter()
            .copied()
            .partition(|pod| until.is_some_and(|at| is_late(pod, at, forces, now)));
        // The next have their turn when those before them are gone, not when they are told to go.
        let turn = rest.iter().map(|pod| pod.turn()).min();
        let due = rest.iter().filter(|pod| {
            let is_due = Some(pod.turn()) == turn && !self.waves.is_later(&pod.key);
            is_due && pod.deleting.is_none()
        });
        let (spared, evicted): (Vec<&Pod>, Vec<&Pod>) =
            due.copied().partition(|pod| pod.is_protected(now));
        let spared = spared.iter().filter_map(|pod| pod.protected_until(now));
        let spared = spared.min();
        let given = |pod: &&Pod| Some(grace_of(pod, until.unwrap_or(now), now));
        let late = late.iter().map(|pod| (*pod, given(pod)));
        let mut in_flight = drain.evictions.values().filter(|own| own.in_flight).count();
        let mut due = Vec::new();
        let mut wake: Option<Timestamp> = None;
        for (pod, grace) in late.chain(evicted.iter().map(|pod| (*pod, None))) {
            let own = drain.evictions.entry(pod.key.clone()).or_default();
            if own.uid != pod.uid {
                *own = Default::default();
                own.uid.clone_from(&pod.uid);
            }
            if grace.is_some() && !std::mem::replace(&mut own.deletes, true) {
                // It was evicted in vain; that it was refused says nothing of this.
                (own.retry, own.refused) = Default::default();
            }
            if own.in_flight || in_flight >= EVICTIONS_MAX || drain.aborts {
                continue;
            }
            let refused = own.refused.filter(|_| grace.is_none());
            let kept = refused.filter(|_| self.state.objects.keep_now(pod));
            let kept = kept.and_then(|at| at.checked_add(KEPT_APART).ok());
            if let Some(at) = kept.max(own.retry.next()).filter(|at| *at > now) {
                wake = Some(wake.map_or(at, |own| own.min(at)));
                continue;
            }
            own.in_flight = true;
            in_flight += 1;
            drain.forced |= grace.is_some();
            due.push(EvictionTarget {
                pod: pod.key.clone(),
                uid: pod.uid.clone(),
                grace,
            });
        }
        drain.moved |= !due.is_empty();
        let next = next_late(&rest, until, now);
        let holds = !left.is_empty();
        due.into_iter()
            .for_each(|own| self.tell_to_go(id, own, now));
        if let Some(at) = wake.into_iter().chain(next).chain(spared).min() {
            self.wake_at(at, "a pod is to be told to go");
        }
        holds
    }

    fn tell_to_go(&mut self, id: &ClaimId, going: EvictionTarget, now: Timestamp) {
        let EvictionTarget { pod, uid, grace } = going;
        let flight = CommandPurpose::Evict(id.clone(), pod.clone());
        let command = match grace {
            None => Command::Evict { pod, uid },
            Some(grace_seconds) => Command::DeletePod {
                pod,
                uid,
                grace_seconds,
            },
        };
        self.issue(command, flight, now);
    }

    /// A pod was told to go, or it was refused. While it is there it is told again, more and more
    /// rarely: what the API server has taken, the watch will show.
    pub(crate) fn evicted(
        &mut self,
        id: &ClaimId,
        pod: &PodKey,
        answer: CommandResult,
        now: Timestamp,
    ) {
        let reason = self.state.ledger.claims.get(id).and_then(|own| own.leaving);
        let work = self.works.get_mut(id);
        let Some(own) = work.and_then(|work| work.drain.evictions.get_mut(pod)) else {
            return;
        };
        own.in_flight = false;
        own.retry.evicted(now, &mut self.rng);
        own.refused = matches!(answer, CommandResult::EvictRefused(_)).then_some(now);
        if answer == CommandResult::Done && !std::mem::replace(&mut own.taken, true) {
            let (pod, reason) = (pod.clone(), reason.unwrap_or(Reason::Orphaned));
            self.report(Report::Evicted { pod, reason });
            return;
        }
        if let CommandResult::EvictRefused(text) = answer
            && !std::mem::replace(&mut own.told, true)
        {
            let pod = pod.clone();
            self.report(Report::EvictRefused { pod, text });
        }
    }

    /// What holds a leaving node now: its pods or, once they are gone, volumes.
    pub(crate) fn obstacles(&self, id: &ClaimId, now: Timestamp) -> Vec<DrainBlocker> {
        let claim = self.state.ledger.claims.get(id);
        let node = claim.and_then(|own| own.node.as_ref());
        let pods = node.map(|node| self.state.obstacles(node.as_str(), now));
        let volumes = self.works.get(id).into_iter();
        let volumes = volumes.flat_map(|own| own.drain.detach.left.iter().cloned());
        let mut all = pods.unwrap_or_default();
        all.extend(volumes.map(DrainBlocker::Volume));
        all
    }

    /// Says what holds a node, once it has for a while.
    pub(crate) fn tell_held(&mut self, id: &ClaimId, node: &NodeName, now: Timestamp) {
        let Some(drain) = self.works.get_mut(id).map(|own| &mut own.drain) else {
            return;
        };
        let Some(began) = drain.began else {
            return;
        };
        let next = drain.told.next(began, HELD_AFTER);
        if next > now {
            self.wake_at(next, "it is to be said what holds a node");
            return;
        }
        drain.told.told(now, HELD_AFTER);
        let deadline = drain.deadline;
        let (held_by, more) = shown(self.obstacles(id, now));
        self.report(Report::DrainHeld {
            claim: id.clone(),
            node: node.clone(),
            since: now.duration_since(began),
            held_by,
            more,
            deadline,
        });
    }

    /// Says what is still there of a node that ends all the same.
    pub(crate) fn tell_forced(&mut self, id: &ClaimId, node: &NodeName, now: Timestamp) {
        let (held_by, more) = shown(self.obstacles(id, now));
        if !held_by.is_empty() {
            self.report(Report::DrainForced {
                claim: id.clone(),
                node: node.clone(),
                held_by,
                more,
            });
        }
    }
}

fn shown(mut all: Vec<DrainBlocker>) -> (Vec<DrainBlocker>, usize) {
    let more = all.len().saturating_sub(HELD_SHOWN);
    all.truncate(HELD_SHOWN);
    (all, more)
}

/// Whether a pod that went by itself, in its own time, would not be gone by the node's end: its
/// budgets are not asked then, nor is it waited for those whose turn is earlier. One that is on its
/// way out is given less time. Source: spec/disruption.md §4.4 (needsForceDelete).
fn is_late(pod: &Pod, until: Timestamp, forces: bool, now: Timestamp) -> bool {
    match pod.ends_by() {
        Some(ends) => ends > until && grace_of(pod, until, now) < seconds(ends, now),
        None => forces || late_from(pod, until) < now,
    }
}

/// From when on a pod's own grace is longer than the time that is left.
fn late_from(pod: &Pod, until: Timestamp) -> Timestamp {
    let grace = SignedDuration::from_secs(pod.grace_seconds.max(0));
    until.checked_sub(grace).unwrap_or(Timestamp::MIN)
}

/// When the first pod that has not been told to go will be late.
fn next_late(pods: &[&Pod], until: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let until = until?;
    let idle = pods.iter().filter(|pod| pod.deleting.is_none());
    let from = idle.map(|pod| late_from(pod, until));
    let from = from.filter_map(|at| at.checked_add(SignedDuration::from_millis(1)).ok());
    from.filter(|at| *at > now).min()
}

/// What a pod is given to end: its own grace, or what is left until the node's end, and never
/// nothing, since then two of one name might run. Source: spec/disruption.md §6, 64.
fn grace_of(pod: &Pod, until: Timestamp, now: Timestamp) -> u32 {
    let own = u32::try_from(pod.grace_seconds).unwrap_or(0);
    seconds(until, now).min(own).max(1)
}

/// Whole seconds until then.
fn seconds(until: Timestamp, now: Timestamp) -> u32 {
    u32::try_from(until.duration_since(now).as_secs()).unwrap_or(0)
}
