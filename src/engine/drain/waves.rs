//! Pods that leave for nodes made for them go in waves: all that go to one new node at once, and
//! to few nodes at a time.
//! It must not know why nodes leave, nor how a pod is told to go.
//!
//! Between its end and the opening of its new node a pod waits. If all pods of a large move went
//! at once, all would wait until the last of them is made anew, and nodes that open meanwhile
//! would take those that belong elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, PodKey};
use crate::state::node_claims::NodeClaim;

/// So many pods go together, if more go in all; and at most so many waves are made of all.
const PODS_MIN: usize = 150;
const WAVES_MAX: usize = 16;

/// A new node that is ready waits this long for all of its pods to be free to leave: those on some
/// nodes have other places that are not ready yet.
const FREE_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Those for whom there is room already are waited for so long, if the others of their node are not
/// free to leave it yet.
const FIRST_MAX: SignedDuration = SignedDuration::from_secs(15);

/// A wave is over when all have come to its new nodes, or so long after these have opened, or after
/// it began if they do not: one that begins before takes places of the others, which wait as well.
const SETTLES_MAX: SignedDuration = SignedDuration::from_secs(5);
const WAVE_MAX: SignedDuration = SignedDuration::from_secs(30);

/// A new node that is closed to all but those who are to come for pods that have yet to leave.
struct HeldNode {
    id: ClaimId,
    /// These pods, as far as they can wait.
    reschedulable: Vec<PodKey>,
    /// Whether they may leave now.
    may_leave: bool,
}

/// New nodes whose pods may leave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waves {
    /// Since when, of each whose wave is not over.
    begun: BTreeMap<ClaimId, Timestamp>,
    /// Pods whose wave is still to come.
    later: BTreeSet<PodKey>,
}

impl Waves {
    /// Since when the pods of a new node may leave.
    pub(crate) fn since(&self, claim: &ClaimId) -> Option<Timestamp> {
        self.begun.get(claim).copied()
    }

    /// Whether a pod stays for now since its wave is still to come.
    pub(crate) fn is_later(&self, pod: &PodKey) -> bool {
        self.later.contains(pod)
    }

    /// Whether some are to come, or have to come where they were let go for.
    pub(crate) fn are_under_way(&self) -> bool {
        self.are_left() || !self.begun.is_empty()
    }

    /// Whether more are to come.
    fn are_left(&self) -> bool {
        self.count_later() > 0
    }

    /// How many pods stay for now since their wave is still to come.
    pub(crate) fn count_later(&self) -> usize {
        self.later.len()
    }
}

impl Engine {
    /// Lets the next wave go once that before is over.
    pub(crate) fn start_next_wave(&mut self, now: Timestamp) {
        let shut = self.shut_ones(now);
        let is_shut = |id: &ClaimId| shut.iter().any(|own| own.id == *id);
        let lasts = |since: Timestamp, most| now.duration_since(since) < most;
        let state = &self.state;
        let mut is_over = true;
        self.waves.begun.retain(|id, at| {
            let claim = state.ledger.claims.get(id).filter(|own| own.takes_pods());
            let Some(claim) = claim else {
                return false;
            };
            if is_closed_yet(claim) {
                let waits = lasts(*at, WAVE_MAX);
                is_over &= !waits;
                // Since when it is must not be forgotten: it would be held from now on.
                return waits || is_shut(id);
            }
            let comes = lasts(claim.since, SETTLES_MAX) && state.pods_of(claim).next().is_some();
            is_over &= !comes;
            comes
        });
        let next = shut.iter();
        let next = next.filter(|own| !self.waves.begun.contains_key(&own.id));
        let next: Vec<&HeldNode> = next.collect();
        let all: usize = next.iter().map(|own| own.reschedulable.len()).sum();
        let most = PODS_MIN.max(all.div_ceil(WAVES_MAX));
        let mut room = if is_over { most } else { 0 };
        self.waves.later.clear();
        for own in next {
            if own.may_leave && room > 0 {
                room = room.saturating_sub(own.reschedulable.len());
                self.waves.begun.insert(own.id.clone(), now);
            } else {
                self.waves.later.extend(own.reschedulable.iter().cloned());
            }
        }
        if self.waves.are_left() {
            self.look_at_held(now);
        }
    }

    /// New nodes that are kept closed for pods which are elsewhere still, those that registered
    /// first before the others. From one that is about to open since others have waited for too
    /// long nobody is told to go before it has. Pods whose node goes whether they have left it or
    /// not wait for no wave.
    fn shut_ones(&self, now: Timestamp) -> Vec<HeldNode> {
        let claims = self.state.ledger.claims.values();
        let closed = claims.filter(|own| is_closed_yet(own)).map(|own| {
            let (held, prepared) = (self.is_held(own, now), self.is_prepared(own));
            (own, held, prepared)
        });
        let mut shut: Vec<(&NodeClaim, bool, bool)> = closed.filter(|own| own.1 || own.2).collect();
        if shut.is_empty() {
            return Vec::new();
        }
        shut.sort_by_key(|(own, ..)| (own.since, &own.record.id));
        // Those for whom there is room already go first: others would take it.
        let moves = |key: &&PodKey| self.can_wait(key, now);
        let open = self.state.ledger.claims.values();
        let open = open.filter(|own| own.phase == ClaimPhase::Initialized && own.takes_pods());
        let open = open.flat_map(|own| &own.pods);
        let goes_first =
            |key: &PodKey| moves(&key) && (self.is_free(key) || !self.is_tied(key, now));
        let none_first = !self.places.on_nodes().chain(open).any(goes_first);
        let of = |(own, held, prepared): (&NodeClaim, bool, bool)| {
            let reschedulable: Vec<PodKey> = own.pods.iter().filter(moves).cloned().collect();
            let late = now.duration_since(own.since) >= FREE_MAX;
            let free = || none_first && reschedulable.iter().all(|key| self.is_free(key));
            let may_leave = held && prepared && (late || free());
            HeldNode {
                id: own.record.id.clone(),
                reschedulable,
                may_leave,
            }
        };
        shut.into_iter().map(of).collect()
    }

    /// Whether a pod is about to leave its node for a reason that can wait until its wave comes.
    fn can_wait(&self, pod: &PodKey, now: Timestamp) -> bool {
        let pod = self.state.objects.pods.get(pod);
        pod.is_some_and(|pod| {
            let claim = self.state.claim_under(pod);
            let reason = claim.and_then(|own| own.leaving);
            let goes_anyway = reason.is_some_and(|own| !own.waits_for_places());
            !goes_anyway && self.state.is_mover(pod, now)
        })
    }

    /// Whether none of a leaving node's pods may be told to go yet, since their waves are still to
    /// come: the node's own time does not run meanwhile.
    pub(crate) fn waits_for_wave(&self, id: &ClaimId, now: Timestamp) -> bool {
        let moved = self.works.get(id).is_some_and(|own| own.drain.moved);
        let claim = self.state.ledger.claims.get(id).filter(|_| !moved);
        let node = claim.and_then(|own| own.node.as_ref());
        let pods = node.map(|own| self.state.objects.pods_on(own.as_str()));
        let mut pods = pods.into_iter().flatten();
        let mut waits = false;
        pods.all(|pod| {
            let later = self.waves.is_later(&pod.key);
            waits |= later;
            later || !pod.holds_drain(now)
        }) && waits
    }

    /// Whether a pod's node has been leaving for so long that nobody waits for it to begin.
    fn is_tied(&self, pod: &PodKey, now: Timestamp) -> bool {
        let pod = self.state.objects.pods.get(pod);
        let claim = pod.and_then(|own| self.state.claim_under(own));
        claim.is_none_or(|own| now.duration_since(own.since) >= FIRST_MAX)
    }

    /// Whether all is ready for a pod to leave its node.
    fn is_free(&self, pod: &PodKey) -> bool {
        let pod = self.state.objects.pods.get(pod);
        let claim = pod.and_then(|own| self.state.claim_under(own));
        let work = claim.and_then(|own| self.works.get(&own.record.id));
        work.is_some_and(|own| own.drain.released)
    }
}

/// Whether pods may be planned onto a node that is not open yet.
fn is_closed_yet(claim: &NodeClaim) -> bool {
    claim.phase < ClaimPhase::Initialized && claim.takes_pods()
}
