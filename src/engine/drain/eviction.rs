//! Evicts the pods of a node: their order, retries, and deletions before a deadline.

use jiff::{SignedDuration, Timestamp};

use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::in_flight::{Cancellation, CommandPurpose, Deadline, Release};
use crate::engine::report::Report;
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::pod::Pod;
use crate::state::drain_blockers::DrainBlocker;

/// Maximum number of evictions and deletions in flight per node.
const EVICTIONS_MAX: usize = 16;

/// Retry interval of a refused eviction while the PodDisruptionBudgets in the watch cache permit
/// none. The cache shows changes of the budgets.
const KEPT_APART: SignedDuration = SignedDuration::from_mins(1);

/// Blockers of a drain are reported after this time, which equals the eviction timeout of Cluster
/// Autoscaler (design/users.md §1, 24).
const HELD_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// Number of reported blockers.
const HELD_SHOWN: usize = 5;

/// A pod to evict or delete.
struct EvictionTarget {
    pod: PodKey,
    uid: String,
    /// Grace period in seconds for a deletion. `None` for an eviction.
    grace: Option<u32>,
}

/// Evicts the pods next in the drain order, except those held without a place, and deletes those
/// whose deletion is due. Returns whether any pod blocks the drain.
pub(in crate::engine) fn evict_pods(
    cx: &mut Context,
    id: &ClaimId,
    node: &NodeName,
    now: Timestamp,
) -> bool {
    let drain = &mut cx.progress.entry(id.clone()).or_default().drain;
    let pods = cx.state.objects.pods_on(node.as_str());
    let remaining: Vec<&Pod> = pods.filter(|pod| pod.holds_drain(now)).collect();
    drain
        .evictions
        .retain(|key, eviction| eviction.in_flight || remaining.iter().any(|pod| pod.key == *key));
    let deadline = drain.period.and_then(|period| period.deadline);
    let until = deadline.map(|deadline| deadline.at);
    let (late, others): (Vec<&Pod>, Vec<&Pod>) = remaining
        .iter()
        .copied()
        .partition(|pod| deadline.is_some_and(|deadline| is_deletion_due(pod, deadline, now)));
    // The next pods are evicted when the previous ones no longer exist, not when their
    // evictions are accepted.
    let turn = others.iter().map(|pod| pod.drain_order()).min();
    let due = others.iter().filter(|pod| {
        let is_due = Some(pod.drain_order()) == turn && !cx.waves.is_in_later_wave(&pod.key);
        is_due && pod.deleting.is_none() && !drain.held.contains(&pod.key)
    });
    let (spared, evicted): (Vec<&Pod>, Vec<&Pod>) =
        due.copied().partition(|pod| pod.is_protected(now));
    let late = late.iter().map(|pod| (*pod, Some(grace_of(pod, until.unwrap_or(now), now))));
    let cancels = drain.period.is_some_and(|at| at.cancellation == Cancellation::Pending);
    let mut in_flight = drain.evictions.values().filter(|eviction| eviction.in_flight).count();
    let mut due = Vec::new();
    let mut wake: Option<Timestamp> = None;
    for (pod, grace) in late.chain(evicted.iter().map(|pod| (*pod, None))) {
        let eviction = drain.evictions.entry(pod.key.clone()).or_default();
        if eviction.uid != pod.uid {
            *eviction = Default::default();
            eviction.uid.clone_from(&pod.uid);
        }
        if grace.is_some() && !std::mem::replace(&mut eviction.deletes, true) {
            // The refusal of the eviction does not apply to the deletion.
            (eviction.retry, eviction.refused) = Default::default();
        }
        if eviction.in_flight || in_flight >= EVICTIONS_MAX || cancels {
            continue;
        }
        let refused = eviction.refused.filter(|_| grace.is_none());
        let kept = refused.filter(|_| cx.state.objects.blocks_eviction(pod));
        let kept = kept.and_then(|at| at.checked_add(KEPT_APART).ok());
        if let Some(at) = kept.max(eviction.retry.next_attempt()).filter(|at| *at > now) {
            wake = Some(wake.map_or(at, |earliest| earliest.min(at)));
            continue;
        }
        eviction.in_flight = true;
        in_flight += 1;
        if grace.is_some() {
            drain.set_cancellation(Cancellation::Impossible);
        }
        due.push(EvictionTarget { pod: pod.key.clone(), uid: pod.uid.clone(), grace });
    }
    if !due.is_empty() {
        drain.release = Release::Begun { released: drain.release.is_released() };
    }
    let next = next_deletion_due(&others, until, now);
    let spared = spared.iter().filter_map(|pod| pod.protected_until(now));
    let wake = wake.into_iter().chain(next).chain(spared).min();
    let holds = !remaining.is_empty();
    due.into_iter().for_each(|target| issue_eviction(cx, id, target, now));
    cx.outbox.wake_at(wake, "evict a pod");
    holds
}

fn issue_eviction(cx: &mut Context, id: &ClaimId, going: EvictionTarget, now: Timestamp) {
    let EvictionTarget { pod, uid, grace } = going;
    let purpose = CommandPurpose::Evict(id.clone(), pod.clone());
    let command = match grace {
        None => Command::Evict { pod, uid },
        Some(grace_seconds) => Command::DeletePod { pod, uid, grace_seconds },
    };
    cx.outbox.queue_command(command, purpose, now);
}

/// Returns what blocks a drain now: pods or, after them, volumes.
pub(in crate::engine) fn drain_blockers(
    cx: &Context,
    id: &ClaimId,
    now: Timestamp,
) -> Vec<DrainBlocker> {
    let node = cx.claim(id).and_then(|claim| claim.node.as_ref());
    let pods = node.map(|node| cx.state.drain_blockers(node.as_str(), now));
    let volumes = cx.drain_of(id).into_iter().flat_map(|drain| &drain.detach.left);
    let held = cx.drain_of(id).map(|drain| &drain.held);
    let mut blockers = pods.unwrap_or_default();
    for blocker in &mut blockers {
        let DrainBlocker::Pod(pod) = blocker else { continue };
        if held.is_some_and(|held| held.contains(pod)) {
            *blocker = DrainBlocker::Unplaced(pod.clone());
        }
    }
    blockers.extend(volumes.cloned().map(DrainBlocker::Volume));
    blockers
}

/// Reports the blockers of a drain after a while.
pub(in crate::engine) fn report_blocked_drain(
    cx: &mut Context,
    id: &ClaimId,
    node: &NodeName,
    now: Timestamp,
) {
    let progress = cx.progress.get_mut(id);
    let Some(period) = progress.and_then(|progress| progress.drain.period.as_mut()) else {
        return;
    };
    let next = period.told.next_report_at(period.began, HELD_AFTER);
    if next > now {
        cx.outbox.wake_at(next, "report what blocks a drain");
        return;
    }
    period.told.record_report(now, HELD_AFTER);
    let (began, deadline) = (period.began, period.deadline.map(|deadline| deadline.at));
    let (held_by, more) = first_blockers(drain_blockers(cx, id, now));
    cx.outbox.push_report(Report::DrainHeld {
        claim: id.clone(),
        node: node.clone(),
        since: now.duration_since(began),
        held_by,
        more,
        deadline,
    });
}

/// Reports the blockers that remain on a node that is terminated despite them.
pub(in crate::engine) fn report_forced_drain(
    cx: &mut Context,
    id: &ClaimId,
    node: &NodeName,
    now: Timestamp,
) {
    let (held_by, more) = first_blockers(drain_blockers(cx, id, now));
    if !held_by.is_empty() {
        cx.outbox.push_report(Report::DrainForced {
            claim: id.clone(),
            node: node.clone(),
            held_by,
            more,
        });
    }
}

fn first_blockers(mut blockers: Vec<DrainBlocker>) -> (Vec<DrainBlocker>, usize) {
    let more = blockers.len().saturating_sub(HELD_SHOWN);
    blockers.truncate(HELD_SHOWN);
    (blockers, more)
}

/// Returns whether a pod with its own grace period would outlast the node's deadline. Such a pod is
/// deleted regardless of PodDisruptionBudgets and eviction order. A pod that is terminating already
/// gets a shorter grace period. Source: spec/disruption.md §4.4 (needsForceDelete).
fn is_deletion_due(pod: &Pod, deadline: Deadline, now: Timestamp) -> bool {
    let until = deadline.at;
    match pod.ends_by() {
        Some(ends) => ends > until && grace_of(pod, until, now) < whole_seconds_until(ends, now),
        None => deadline.forces || deletion_due_from(pod, until) < now,
    }
}

/// Returns when a pod's own grace period begins to exceed the remaining time.
pub(in crate::engine) fn deletion_due_from(pod: &Pod, until: Timestamp) -> Timestamp {
    let grace = SignedDuration::from_secs(pod.grace_seconds.max(0));
    until.checked_sub(grace).unwrap_or(Timestamp::MIN)
}

/// Returns when the deletion of the next pod becomes due. Terminating pods are ignored.
fn next_deletion_due(pods: &[&Pod], until: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let until = until?;
    let idle = pods.iter().filter(|pod| pod.deleting.is_none());
    let from = idle.map(|pod| deletion_due_from(pod, until));
    let from = from.filter_map(|at| at.checked_add(SignedDuration::from_millis(1)).ok());
    from.filter(|at| *at > now).min()
}

/// Returns the grace period of a pod: its own, or the time until the deadline, but at least one
/// second, because two pods of one name could run otherwise. Source: spec/disruption.md §6, 64.
fn grace_of(pod: &Pod, until: Timestamp, now: Timestamp) -> u32 {
    let grace = u32::try_from(pod.grace_seconds).unwrap_or(0);
    whole_seconds_until(until, now).min(grace).max(1)
}

/// Returns the whole seconds until `until`.
fn whole_seconds_until(until: Timestamp, now: Timestamp) -> u32 {
    u32::try_from(until.duration_since(now).as_secs()).unwrap_or(0)
}
