//! Pods that come in place of those that had to leave take over the places planned for them; the
//! nodes made for them stay closed until they are there.
//! It must not know why a node leaves, nor how pods are told of their node.
//!
//! A scheduler binds a pod at once, to any node that is open. Of pods that leave together for
//! nodes of several shapes each would go where another was to be, and the last would find no room.
//! While these nodes are closed they wait, a few seconds, and are told of their own nodes like any
//! others (`hints`), before these open.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Binding;
use crate::model::id::{ClaimId, PodKey, PoolName};
use crate::model::labels::TAINT_UNREGISTERED;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::taint::Taint;
use crate::state::node_claims::NodeClaim;

/// A node that is ready is kept closed for pods that are elsewhere for at most this long: their
/// nodes may have to wait for other machines that boot.
const HELD_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Once they may leave, for at most this long: a disruption budget may let them go one by
/// one, each when the one before runs again.
const LEAVING_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Nobody waits longer than this for others to come.
const WAITS_MAX: SignedDuration = SignedDuration::from_secs(5);

/// A controller makes a pod anew within this, even one busy with hundreds, or it makes none.
const REPLACEMENT_MAX: SignedDuration = SignedDuration::from_secs(10);

/// So long after a pod has left, one that its owner makes is taken for its heir.
const RETURNS: SignedDuration = SignedDuration::from_mins(5);

/// How often a node that is held is looked at.
const LOOK: SignedDuration = SignedDuration::from_millis(500);

/// A pod that has left its node since something is saved by that, or its place.
#[derive(Clone, Debug)]
struct EvictedPod {
    pod: Pod,
    /// The pool of its node.
    pool: PoolName,
    /// When it left.
    at: Timestamp,
    /// The claim that was made for it.
    place: Option<ClaimId>,
}

/// Those who are still to come for a claim's node.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    count: usize,
    /// Until when others wait for them.
    held: Timestamp,
    /// Until when the node is needed: some owners make a pod anew only when the other has ended.
    needed: Timestamp,
}

/// Pods that have left lately, by the UID of their owner, those that have come in their place and
/// have none yet, and whose nodes these are.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplacementPods {
    departed: BTreeMap<String, Vec<EvictedPod>>,
    replacements: BTreeMap<PodKey, EvictedPod>,
    awaited: BTreeMap<ClaimId, Awaited>,
    /// Pods whose place an heir has taken, the pool of the node that this one's had been on, and
    /// when.
    ousted: BTreeMap<PodKey, (PoolName, Timestamp)>,
}

impl ReplacementPods {
    /// Whether somebody is still to come for a claim's node, so that others wait.
    fn is_awaited(&self, claim: &ClaimId, now: Timestamp) -> bool {
        let own = self.awaited.get(claim);
        own.is_some_and(|own| own.count > 0 && now < own.held)
    }

    /// Until when a claim's node is needed by somebody who is still to come.
    pub(super) fn needed_until(&self, claim: &ClaimId, now: Timestamp) -> Option<Timestamp> {
        let own = self.awaited.get(claim).filter(|own| own.count > 0);
        own.map(|own| own.needed).filter(|until| now < *until)
    }

    fn depart(&mut self, own: EvictedPod, owner: String) {
        if let Some(claim) = &own.place {
            let until = |from: Timestamp| from.checked_add(REPLACEMENT_MAX).unwrap_or(from);
            let (held, gone) = (until(own.at), own.pod.ends_by().unwrap_or(own.at));
            let awaited = self.awaited.entry(claim.clone()).or_insert(Awaited {
                count: 0,
                held,
                needed: held,
            });
            awaited.count += 1;
            (awaited.held, awaited.needed) = (held, awaited.needed.max(until(gone)));
        }
        self.departed.entry(owner).or_default().push(own);
    }

    /// A pod is seen for the first time: it may have come in place of another. It has that one's
    /// place if it is like it.
    fn come(&mut self, pod: &Pod, now: Timestamp) {
        let owner = pod.owner.as_ref();
        let Some(all) = owner.and_then(|own| self.departed.get_mut(&own.uid)) else {
            return;
        };
        let same = all.iter().position(|own| own.pod.key == pod.key);
        let like = || all.iter().position(|own| own.pod.is_like(pod));
        let Some(at) = same.or_else(like).or(all.len().checked_sub(1)) else {
            return;
        };
        let own = all.swap_remove(at);
        let gone = own.pod.ends_by().map_or(own.at, |by| by.max(own.at));
        let is_late = now.duration_since(gone) >= REPLACEMENT_MAX;
        let is_like = own.pod.is_like(pod);
        self.replacements.insert(pod.key.clone(), own);
        if is_late || !is_like {
            self.place(&pod.key);
        }
    }

    /// The claim that was made for the pod in whose place this one has come, and that pod: once.
    fn place(&mut self, pod: &PodKey) -> Option<(ClaimId, PodKey)> {
        let replacement = self.replacements.get_mut(pod)?;
        let claim = replacement.place.take()?;
        if let Some(awaited) = self.awaited.get_mut(&claim) {
            awaited.count = awaited.count.saturating_sub(1);
        }
        Some((claim, replacement.pod.key.clone()))
    }

    /// Nothing is to be done for a pod any more. The pool of the node on which that one was in
    /// whose place it had come.
    pub(super) fn settle(&mut self, pod: &PodKey) -> Option<PoolName> {
        self.place(pod);
        self.replacements.remove(pod).map(|own| own.pool)
    }

    /// A node has to be made for a pod. The pool whose moves are to blame: it has come in place of
    /// one that was moved, or such a one has taken its place.
    pub(super) fn blame(&mut self, pod: &PodKey) -> Option<PoolName> {
        let ousted = self.ousted.remove(pod).map(|(pool, _)| pool);
        self.settle(pod).or(ousted)
    }

    /// Forgets what is long ago.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let fresh = |own: &EvictedPod| now.duration_since(own.at) < RETURNS;
        self.departed.retain(|_, all| {
            all.retain(fresh);
            !all.is_empty()
        });
        self.replacements.retain(|_, own| fresh(own));
        self.ousted
            .retain(|_, (_, at)| now.duration_since(*at) < RETURNS);
        self.awaited
            .retain(|_, own| own.count > 0 && now < own.needed);
    }
}

/// Whether a claim was planned for pods that have to leave other nodes.
pub(super) fn is_for_reschedulable(claim: &NodeClaim) -> bool {
    claim.record.reason == Reason::Underutilized.as_str()
}

impl Engine {
    /// A pod is about to be seen: it may be going, or have come for one that is.
    pub(super) fn succeed(&mut self, pod: &Pod, now: Timestamp) {
        let known = self.state.objects.pods.get(&pod.key);
        if pod.deleting.is_some() {
            self.transfer_placement(pod, now);
            return;
        }
        if known.is_none_or(|own| own.uid != pod.uid) {
            self.replacements.come(pod, now);
        }
        if pod.node.is_some()
            && let Some(pool) = self.replacements.settle(&pod.key)
        {
            self.displace(pod, &pool, now);
        }
        let place = pod.is_waiting().then(|| self.replacements.place(&pod.key));
        let Some((claim, was)) = place.flatten() else {
            return;
        };
        let claim = self.state.ledger.claims.get_mut(&claim);
        if let Some(claim) = claim.filter(|own| own.takes_pods()) {
            claim.pods.remove(&was);
            claim.pods.insert(pod.key.clone());
        }
    }

    /// A pod of a node that left to save something is bound anew: where it was not expected, those
    /// that are may find no room.
    fn displace(&mut self, pod: &Pod, pool: &PoolName, now: Timestamp) {
        let claim = self.state.claim_under(pod);
        let Some(claim) = claim.filter(|own| !own.pods.contains(&pod.key)) else {
            return;
        };
        let ousted = claim.pods.iter().cloned();
        let ousted = ousted.map(|key| (key, (pool.clone(), now)));
        self.replacements.ousted.extend(ousted);
    }

    /// A pod is gone.
    pub(super) fn gone(&mut self, pod: &PodKey, now: Timestamp) {
        let known = self.state.objects.pods.get(pod);
        // Most were seen to go before.
        let known = known.filter(|own| own.deleting.is_none());
        if let Some(known) = known.cloned() {
            self.transfer_placement(&known, now);
        }
    }

    /// A pod goes, and its place is another's. What is known of it is what it was until now.
    fn transfer_placement(&mut self, pod: &Pod, now: Timestamp) {
        self.replacements.settle(&pod.key);
        let known = self.state.objects.pods.get(&pod.key);
        let known = known.filter(|own| own.deleting.is_none());
        let Some((owner, known)) = known.and_then(|own| Some((own.owner.as_ref()?, own))) else {
            return;
        };
        let owner = owner.uid.clone();
        let from = self.state.claim_under(known);
        let Some(from) = from.filter(|own| own.leaving.is_some()) else {
            return;
        };
        if from.leaving == Some(Reason::Underutilized) {
            let mut claims = self.state.ledger.claims.iter();
            let place = claims.find(|(_, own)| {
                is_for_reschedulable(own) && own.takes_pods() && own.pods.contains(&known.key)
            });
            let departed = EvictedPod {
                pool: from.record.pool.clone(),
                at: now,
                place: place.map(|(id, _)| id.clone()),
                pod: pod.clone(),
            };
            self.replacements.depart(departed, owner);
        }
        // Who comes for it where its node is open already comes at once, or elsewhere.
        let claims = self.state.ledger.claims.values_mut();
        let open = claims.filter(|own| own.phase == ClaimPhase::Initialized);
        open.for_each(|own| _ = own.pods.remove(&pod.key));
    }

    /// Whether a node is kept closed for pods that still have to leave their own, or have just
    /// left it.
    pub(super) fn is_held(&self, claim: &NodeClaim, now: Timestamp) -> bool {
        let lasts = |since: Timestamp, most| now.duration_since(since) < most;
        if !self.may_be_held(claim, now) {
            return false;
        }
        let since = self.waves.since(&claim.record.id);
        let over = since.is_some_and(|at| !lasts(at, LEAVING_MAX));
        let pods = claim.pods.iter();
        let pods = pods.filter_map(|key| self.state.objects.pods.get(key));
        let mut leaves = false;
        for pod in pods {
            if pod.is_waiting() && pod.created.is_some_and(|at| !lasts(at, WAITS_MAX)) {
                return false;
            }
            leaves |= !pod.is_waiting() && self.state.is_mover(pod, now);
        }
        if leaves {
            !over
        } else {
            self.replacements.is_awaited(&claim.record.id, now)
        }
    }

    /// Whether a node is kept closed for pods that have to leave others, if there are any.
    fn may_be_held(&self, claim: &NodeClaim, now: Timestamp) -> bool {
        let is_young =
            claim.phase < ClaimPhase::Registered || now.duration_since(claim.since) < HELD_MAX;
        is_young && self.opens_late(claim)
    }

    /// Whether a node is one that does not open before those have come that it was made for.
    fn opens_late(&self, claim: &NodeClaim) -> bool {
        let is_told = self.gives_hints() && self.state.cluster.binding != Binding::Early;
        claim.phase < ClaimPhase::Initialized && is_told && is_for_reschedulable(claim)
    }

    /// Whether a claim's node is open, or would be if it were not held, or is about to be since it
    /// is held no more, for however long: pods may leave for it.
    pub(super) fn is_prepared(&self, claim: &NodeClaim) -> bool {
        if claim.phase == ClaimPhase::Initialized {
            return true;
        }
        if claim.phase != ClaimPhase::Registered || !self.opens_late(claim) {
            return false;
        }
        let node = self.state.node_of(claim);
        node.is_some_and(|node| {
            let mut taints = node.taints.clone();
            taints.retain(|own: &Taint| own.key != TAINT_UNREGISTERED);
            self.has_started(claim, node, &taints)
        })
    }

    /// Looks at a node that is held again before long.
    pub(super) fn look_at_held(&mut self, now: Timestamp) {
        let at = now.checked_add(LOOK).unwrap_or(now);
        self.wake_at(at, "a node is closed for pods that are to come");
    }
}
