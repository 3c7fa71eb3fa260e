//! Matches pods recreated by their controllers with the placements planned for the evicted pods.
//! New nodes remain tainted until these pods exist.
//!
//! The scheduler binds a pod immediately to any untainted node. When pods of several nodes move to
//! new nodes of different sizes, they would take places planned for other pods. The last pods would
//! then find no capacity. While these nodes are tainted, the pods are pending for a few seconds.
//! Each pod is nominated for its own node (`nomination`) before the nodes are untainted.

use jiff::{SignedDuration, Timestamp};

use crate::engine::claims;
use crate::engine::context::Context;
use crate::engine::controllers::{
    Awaited, Consolidation, EvictedPod, Nominations, ReplacementPods,
};
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Binding;
use crate::model::id::{ClaimId, PodKey, PoolName};
use crate::model::labels::TAINT_UNREGISTERED;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::taint::Taint;
use crate::state::node_claims::NodeClaim;

/// A ready node stays tainted for at most this long while it waits for the pods that move to it.
/// The nodes of these pods may have to wait for further machines to boot.
const HELD_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Once the pods may be evicted, the node stays tainted for at most this long. A
/// PodDisruptionBudget may permit the evictions only one by one, each after the previous pod runs
/// again.
const LEAVING_MAX: SignedDuration = SignedDuration::from_secs(10);

/// No pending pod waits for other pods longer than this.
const WAITS_MAX: SignedDuration = SignedDuration::from_secs(5);

/// Controllers recreate even hundreds of pods within this time. After it, no replacement pod is
/// expected.
const REPLACEMENT_MAX: SignedDuration = SignedDuration::from_secs(10);

/// A pod that its owner creates within this time after an eviction counts as the replacement of the
/// evicted pod.
const RETURNS: SignedDuration = SignedDuration::from_mins(5);

/// Interval between checks of a node that stays tainted for pods.
const LOOK: SignedDuration = SignedDuration::from_millis(500);

impl EvictedPod {
    /// Returns whether a new pod may still be the replacement of this evicted pod.
    fn is_recent(&self, now: Timestamp) -> bool {
        now.duration_since(self.at) < RETURNS
    }
}

impl ReplacementPods {
    /// Returns whether a claim's node waits for replacement pods. If so, other pods wait, too.
    fn is_awaited(&self, claim: &ClaimId, now: Timestamp) -> bool {
        self.awaited.get(claim).is_some_and(|awaited| awaited.count > 0 && now < awaited.held)
    }

    /// Returns until when a claim's node is needed for expected replacement pods.
    pub(super) fn needed_until(&self, claim: &ClaimId, now: Timestamp) -> Option<Timestamp> {
        let awaited = self.awaited.get(claim).filter(|awaited| awaited.count > 0);
        awaited.map(|awaited| awaited.needed).filter(|until| now < *until)
    }

    fn record_eviction(&mut self, evicted: EvictedPod, owner: String) {
        if let Some(claim) = &evicted.place {
            let gone = evicted.pod.ends_by().unwrap_or(evicted.at);
            let [held, needed] =
                [evicted.at, gone].map(|from| from.checked_add(REPLACEMENT_MAX).unwrap_or(from));
            let awaited = self.awaited.entry(claim.clone()).or_insert(Awaited {
                count: 0,
                held,
                needed: held,
            });
            awaited.count += 1;
            (awaited.held, awaited.needed) = (held, awaited.needed.max(needed));
        }
        self.departed.entry(owner).or_default().push(evicted);
    }

    /// Renames the claim of places. The new one may have places, too.
    pub(super) fn rename_place(&mut self, claim: &ClaimId, name: &ClaimId) {
        let evicted = self.departed.values_mut().flatten();
        for evicted in evicted.chain(self.replacements.values_mut()) {
            if evicted.place.as_ref() == Some(claim) {
                evicted.place = Some(name.clone());
            }
        }
        if let Some(before) = self.awaited.remove(claim) {
            let awaited =
                self.awaited.entry(name.clone()).or_insert(Awaited { count: 0, ..before });
            awaited.count += before.count;
            awaited.held = awaited.held.max(before.held);
            awaited.needed = awaited.needed.max(before.needed);
        }
    }

    /// Handles a new pod, which may replace an evicted pod. It inherits that pod's place if the two
    /// are alike.
    fn match_replacement(&mut self, pod: &Pod, now: Timestamp) {
        let owner = pod.owner.as_ref();
        let Some(departed) = owner.and_then(|owner| self.departed.get_mut(&owner.uid)) else {
            return;
        };
        let same = departed.iter().position(|evicted| evicted.pod.key == pod.key);
        let Some(index) = same
            .or_else(|| departed.iter().position(|evicted| evicted.pod.is_like(pod)))
            .or(departed.len().checked_sub(1))
        else {
            return;
        };
        let evicted = departed.swap_remove(index);
        let gone = evicted.pod.ends_by().map_or(evicted.at, |by| by.max(evicted.at));
        let is_late = now.duration_since(gone) >= REPLACEMENT_MAX;
        let is_like = evicted.pod.is_like(pod);
        self.replacements.insert(pod.key.clone(), evicted);
        if is_late || !is_like {
            self.take_place(&pod.key);
        }
    }

    /// Returns the claim planned for the evicted pod that this pod replaces, and the evicted pod.
    /// Later calls return `None`.
    fn take_place(&mut self, pod: &PodKey) -> Option<(ClaimId, PodKey)> {
        let replacement = self.replacements.get_mut(pod)?;
        let claim = replacement.place.take()?;
        if let Some(awaited) = self.awaited.get_mut(&claim) {
            awaited.count = awaited.count.saturating_sub(1);
        }
        Some((claim, replacement.pod.key.clone()))
    }

    /// Forgets a replacement pod that needs no further handling. Returns the pool of the evicted
    /// pod's node.
    pub(super) fn forget_replacement(&mut self, pod: &PodKey) -> Option<PoolName> {
        self.take_place(pod);
        self.replacements.remove(pod).map(|replacement| replacement.pool)
    }

    /// Returns the pool whose consolidation requires a new node for this pod: the pod replaces a
    /// moved pod, or such a replacement has taken its place.
    pub(super) fn attribute_cost(&mut self, pod: &PodKey) -> Option<PoolName> {
        let displaced = self.ousted.remove(pod).map(|(pool, _)| pool);
        self.forget_replacement(pod).or(displaced)
    }

    /// Forgets old entries.
    pub(super) fn expire(&mut self, now: Timestamp) {
        self.departed.retain(|_, evicted| {
            evicted.retain(|evicted| evicted.is_recent(now));
            !evicted.is_empty()
        });
        self.replacements.retain(|_, evicted| evicted.is_recent(now));
        self.ousted.retain(|_, (_, at)| now.duration_since(*at) < RETURNS);
        self.awaited.retain(|_, awaited| awaited.count > 0 && now < awaited.needed);
    }
}

/// Returns whether a claim was planned for reschedulable pods of other nodes.
pub(super) fn is_for_reschedulable(claim: &NodeClaim) -> bool {
    claim.record.reason == Reason::Underutilized.as_str()
}

impl Consolidation {
    /// Handles a pod before its change is recorded: it may be terminating, or replace a terminating
    /// pod.
    pub(super) fn observe_pod(&mut self, cx: &mut Context, pod: &Pod, now: Timestamp) {
        let known = cx.state.objects.pods.get(&pod.key);
        if pod.deleting.is_some() {
            self.transfer_placement(cx, pod, now);
            return;
        }
        if known.is_none_or(|known| known.uid != pod.uid) {
            self.replacement_pods.match_replacement(pod, now);
        }
        if pod.node.is_some()
            && let Some(pool) = self.replacement_pods.forget_replacement(&pod.key)
        {
            self.record_displaced_pods(cx, pod, &pool, now);
        }
        let place = pod.is_waiting().then(|| self.replacement_pods.take_place(&pod.key));
        let Some((claim, evicted)) = place.flatten() else {
            return;
        };
        let claim = cx.state.ledger.claims.get_mut(&claim);
        if let Some(claim) = claim.filter(|claim| claim.takes_pods()) {
            claim.pods.remove(&evicted);
            claim.pods.insert(pod.key.clone());
        }
    }

    /// Handles the binding of a replacement pod. If the pod was not planned for this node, the pods
    /// that were planned for the node may find no capacity.
    fn record_displaced_pods(&mut self, cx: &Context, pod: &Pod, pool: &PoolName, now: Timestamp) {
        let claim = cx.state.claim_under(pod);
        let Some(claim) = claim.filter(|claim| !claim.pods.contains(&pod.key)) else {
            return;
        };
        let displaced = claim.pods.iter().cloned();
        let displaced = displaced.map(|key| (key, (pool.clone(), now)));
        self.replacement_pods.ousted.extend(displaced);
    }

    /// Handles the deletion of a pod.
    pub(super) fn on_pod_deleted(&mut self, cx: &mut Context, pod: &PodKey, now: Timestamp) {
        let known = cx.state.objects.pods.get(pod);
        // The watch has shown most pods as terminating before their deletion.
        let known = known.filter(|known| known.deleting.is_none());
        if let Some(known) = known.cloned() {
            self.transfer_placement(cx, &known, now);
        }
    }

    /// Records an evicted pod, whose replacement inherits its place. The state still contains the
    /// pod as it was before the change.
    fn transfer_placement(&mut self, cx: &mut Context, pod: &Pod, now: Timestamp) {
        self.replacement_pods.forget_replacement(&pod.key);
        let known = cx.state.objects.pods.get(&pod.key);
        let known = known.filter(|known| known.deleting.is_none());
        let Some((owner, known)) = known.and_then(|known| Some((known.owner.as_ref()?, known)))
        else {
            return;
        };
        let owner = owner.uid.clone();
        let from = cx.state.claim_under(known);
        let Some(from) = from.filter(|claim| claim.leaving.is_some()) else {
            return;
        };
        if from.leaving == Some(Reason::Underutilized) {
            let place = cx.state.ledger.claims.iter().find(|(_, claim)| {
                is_for_reschedulable(claim) && claim.takes_pods() && claim.pods.contains(&known.key)
            });
            let departed = EvictedPod {
                pool: from.record.pool.clone(),
                at: now,
                place: place.map(|(id, _)| id.clone()),
                pod: pod.clone(),
            };
            self.replacement_pods.record_eviction(departed, owner);
        }
        // If the node is untainted already, the replacement pod is bound immediately, to this or
        // another node.
        let claims = cx.state.ledger.claims.values_mut();
        let open = claims.filter(|claim| claim.phase == ClaimPhase::Initialized);
        open.for_each(|claim| _ = claim.pods.remove(&pod.key));
    }
}

/// Returns whether a node remains tainted for pods that still have to be evicted from their
/// nodes or were just evicted.
pub(super) fn is_held(
    cx: &Context,
    consolidation: &Consolidation,
    nominations: &Nominations,
    claim: &NodeClaim,
    now: Timestamp,
) -> bool {
    if !may_be_held(cx, nominations, claim, now) {
        return false;
    }
    let since = cx.waves.wave_start(&claim.record.id);
    let has_timed_out = since.is_some_and(|at| now.duration_since(at) >= LEAVING_MAX);
    let pods = &cx.state.objects.pods;
    let mut leaves = false;
    for pod in claim.pods.iter().filter_map(|key| pods.get(key)) {
        let created = pod.created.filter(|_| pod.is_waiting());
        if created.is_some_and(|at| now.duration_since(at) >= WAITS_MAX) {
            return false;
        }
        leaves |= !pod.is_waiting() && cx.state.is_reschedulable(pod, now);
    }
    if leaves {
        !has_timed_out
    } else {
        consolidation.replacement_pods.is_awaited(&claim.record.id, now)
    }
}

/// Returns whether a node remains tainted for reschedulable pods, if there are any.
fn may_be_held(cx: &Context, nominations: &Nominations, claim: &NodeClaim, now: Timestamp) -> bool {
    let is_young =
        claim.phase < ClaimPhase::Registered || now.duration_since(claim.since) < HELD_MAX;
    is_young && is_untainted_late(cx, nominations, claim)
}

/// Returns whether a node is untainted only after the pods that it was planned for exist.
fn is_untainted_late(cx: &Context, nominations: &Nominations, claim: &NodeClaim) -> bool {
    let is_told = nominations.is_nominating(cx) && cx.state.cluster.binding != Binding::Early;
    claim.phase < ClaimPhase::Initialized && is_told && is_for_reschedulable(claim)
}

/// Returns whether pods that move to a claim's node may be evicted: the node is untainted, or it is
/// ready and remains tainted only for these pods.
pub(super) fn is_prepared(cx: &Context, nominations: &Nominations, claim: &NodeClaim) -> bool {
    if claim.phase == ClaimPhase::Initialized {
        return true;
    }
    if claim.phase != ClaimPhase::Registered || !is_untainted_late(cx, nominations, claim) {
        return false;
    }
    cx.state.node_of(claim).is_some_and(|node| {
        let mut taints = node.taints.clone();
        taints.retain(|taint: &Taint| taint.key != TAINT_UNREGISTERED);
        claims::is_started(cx, claim, node, &taints)
    })
}

/// Schedules the next check of nodes that stay tainted for pods.
pub(super) fn recheck_held_nodes(cx: &mut Context, now: Timestamp) {
    let at = now.checked_add(LOOK).unwrap_or(now);
    cx.outbox.wake_at(at, "a node is tainted for expected pods");
}

/// Returns whether each of these reschedulable pods has a place. The node of the place must be
/// ready or stay tainted for such pods, and must not be disrupted. A pod bound to the disrupted
/// node after the last plan has no place. A pod loses its place if its claim fails or if a
/// different pod takes the place.
pub(super) fn have_places(
    cx: &mut Context,
    nominations: &Nominations,
    pods: &[PodKey],
    now: Timestamp,
) -> bool {
    if pods.is_empty() {
        return true;
    }
    if cx.placements.housed.is_none() {
        let housed = cx.state.pods_with_places(
            &cx.placements.planned,
            |state| is_prepared(cx, nominations, state),
            now,
        );
        cx.placements.housed = Some(housed.into_iter().cloned().collect());
    }
    let housed = cx.placements.housed.as_ref();
    housed.is_some_and(|housed| pods.iter().all(|pod| housed.contains(pod)))
}
