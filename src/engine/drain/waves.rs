//! Evicts pods that move to new nodes in waves: all pods of a new node together, and the pods of
//! few nodes at a time.
//!
//! A pod is pending from its end until its new node is untainted. If all pods of a large
//! consolidation were evicted together, all would wait until the last one is recreated. Nodes
//! untainted meanwhile would take pods planned for other nodes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, PodKey};
use crate::state::node_claims::NodeClaim;

/// Minimum number of pods per wave, if that many pods move, and maximum number of waves.
const PODS_MIN: usize = 150;
const WAVES_MAX: usize = 16;

/// Maximum time that a ready new node waits until all its pods may be evicted. Some of their old
/// nodes have other pods whose places are not ready yet.
const FREE_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Maximum time that pods with existing places wait, if the other pods of their node may not be
/// evicted yet.
const FIRST_MAX: SignedDuration = SignedDuration::from_secs(15);

/// A wave is over when all its pods are bound to the new nodes. It also ends [`SETTLES_MAX`] after
/// the nodes are untainted, or [`WAVE_MAX`] after its start if they remain tainted. If the next
/// wave started earlier, its pods could take places of the pending pods.
const SETTLES_MAX: SignedDuration = SignedDuration::from_secs(5);
const WAVE_MAX: SignedDuration = SignedDuration::from_secs(30);

/// A new node that remains tainted for pods that are still to be evicted.
struct HeldNode {
    id: ClaimId,
    /// Its pods that can wait for a wave.
    reschedulable: Vec<PodKey>,
    /// True if its pods may be evicted now.
    may_leave: bool,
}

/// New nodes whose pods may be evicted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waves {
    /// Start of the wave of each node whose wave is not over.
    begun: BTreeMap<ClaimId, Timestamp>,
    /// Pods of later waves.
    later: BTreeSet<PodKey>,
}

impl Waves {
    /// Returns since when the pods of a new node may be evicted.
    pub(crate) fn wave_start(&self, claim: &ClaimId) -> Option<Timestamp> {
        self.begun.get(claim).copied()
    }

    /// Returns whether a pod belongs to a later wave.
    pub(crate) fn is_in_later_wave(&self, pod: &PodKey) -> bool {
        self.later.contains(pod)
    }

    /// Returns whether any wave is queued, or still has pods to be bound to their new nodes.
    pub(crate) fn are_under_way(&self) -> bool {
        self.are_left() || !self.begun.is_empty()
    }

    /// Returns whether any wave is queued.
    fn are_left(&self) -> bool {
        self.count_later() > 0
    }

    /// Returns the number of pods of later waves.
    pub(crate) fn count_later(&self) -> usize {
        self.later.len()
    }
}

impl Engine {
    /// Starts the next wave when the previous one is over.
    pub(crate) fn start_next_wave(&mut self, now: Timestamp) {
        let held = self.held_nodes(now);

        let state = &self.state;
        let mut is_over = true;
        self.waves.begun.retain(|id, at| {
            let claim = state.ledger.claims.get(id).filter(|claim| claim.takes_pods());
            let Some(claim) = claim else {
                return false;
            };
            if is_tainted_target(claim) {
                let waits = now.duration_since(*at) < WAVE_MAX;
                is_over &= !waits;
                // The start is kept, or the node would be held again.
                return waits || held.iter().any(|node| node.id == *id);
            }
            let comes = now.duration_since(claim.since) < SETTLES_MAX
                && state.pods_of(claim).next().is_some();
            is_over &= !comes;
            comes
        });
        let next = held.iter().filter(|node| !self.waves.begun.contains_key(&node.id));
        let next: Vec<&HeldNode> = next.collect();
        let total: usize = next.iter().map(|node| node.reschedulable.len()).sum();
        let wave_size = PODS_MIN.max(total.div_ceil(WAVES_MAX));
        let mut room = if is_over { wave_size } else { 0 };
        self.waves.later.clear();
        for node in next {
            if node.may_leave && room > 0 {
                room = room.saturating_sub(node.reschedulable.len());
                self.waves.begun.insert(node.id.clone(), now);
            } else {
                self.waves.later.extend(node.reschedulable.iter().cloned());
            }
        }
        if self.waves.are_left() {
            self.recheck_held_nodes(now);
        }
    }

    /// Returns the new nodes that remain tainted for pods on other nodes, in the order of their
    /// registration. No pod is evicted for a node that is about to be untainted because other pods
    /// have waited too long. Pods whose node is terminated in any case are in no wave.
    fn held_nodes(&self, now: Timestamp) -> Vec<HeldNode> {
        let claims = self.state.ledger.claims.values();
        let closed = claims.filter(|claim| is_tainted_target(claim)).map(|claim| {
            let (held, prepared) = (self.is_held(claim, now), self.is_prepared(claim));
            (claim, held, prepared)
        });
        let mut shut: Vec<(&NodeClaim, bool, bool)> =
            closed.filter(|(_, held, prepared)| *held || *prepared).collect();
        if shut.is_empty() {
            return Vec::new();
        }
        shut.sort_by_key(|(claim, ..)| (claim.since, &claim.record.id));
        // Pods with existing places go first, or other pods would take these places.
        let claims = self.state.ledger.claims.values();
        let open = claims
            .filter(|claim| claim.phase == ClaimPhase::Initialized && claim.takes_pods())
            .flat_map(|claim| &claim.pods);
        let none_first = !self.places.on_nodes().chain(open).any(|key| {
            self.can_wait(key, now)
                && (self.is_evictable_now(key) || !self.has_waited_long(key, now))
        });
        shut.into_iter()
            .map(|(claim, held, prepared)| {
                let pods = claim.pods.iter().filter(|key| self.can_wait(key, now));
                let reschedulable: Vec<PodKey> = pods.cloned().collect();
                let late = now.duration_since(claim.since) >= FREE_MAX;
                HeldNode {
                    id: claim.record.id.clone(),
                    may_leave: held
                        && prepared
                        && (late
                            || none_first
                                && reschedulable.iter().all(|key| self.is_evictable_now(key))),
                    reschedulable,
                }
            })
            .collect()
    }

    /// Returns whether a pod is to be evicted for a reason that can wait for a wave.
    fn can_wait(&self, pod: &PodKey, now: Timestamp) -> bool {
        self.state.objects.pods.get(pod).is_some_and(|pod| {
            let reason = self.state.claim_under(pod).and_then(|claim| claim.leaving);
            let goes_anyway = reason.is_some_and(|reason| !reason.waits_for_placements());
            !goes_anyway && self.state.is_reschedulable(pod, now)
        })
    }

    /// Returns whether all pods of a disrupted node belong to later waves. The deadline of the node
    /// does not run meanwhile.
    pub(crate) fn waits_for_wave(&self, id: &ClaimId, now: Timestamp) -> bool {
        let moved = self.drain_of(id).is_some_and(|drain| drain.moved);
        let claim = self.claim(id).filter(|_| !moved);
        let node = claim.and_then(|claim| claim.node.as_ref());
        let pods = node.map(|node| self.state.objects.pods_on(node.as_str()));
        let mut pods = pods.into_iter().flatten();
        let mut waits = false;
        pods.all(|pod| {
            let later = self.waves.is_in_later_wave(&pod.key);
            waits |= later;
            later || !pod.holds_drain(now)
        }) && waits
    }

    /// Returns whether a pod's node has been in disruption for longer than other pods wait for it.
    fn has_waited_long(&self, pod: &PodKey, now: Timestamp) -> bool {
        let pod = self.state.objects.pods.get(pod);
        let claim = pod.and_then(|pod| self.state.claim_under(pod));
        claim.is_none_or(|claim| now.duration_since(claim.since) >= FIRST_MAX)
    }

    /// Returns whether a pod may be evicted from its node.
    fn is_evictable_now(&self, pod: &PodKey) -> bool {
        let pod = self.state.objects.pods.get(pod);
        let claim = pod.and_then(|pod| self.state.claim_under(pod));
        claim.is_some_and(|claim| self.may_evict(&claim.record.id))
    }

    /// Returns whether the pods of a claim's node may be evicted.
    pub(crate) fn may_evict(&self, id: &ClaimId) -> bool {
        self.drain_of(id).is_some_and(|drain| drain.released)
    }
}

/// Returns whether a claim accepts pods and its node is not initialized yet.
fn is_tainted_target(claim: &NodeClaim) -> bool {
    claim.phase < ClaimPhase::Initialized && claim.takes_pods()
}
