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
use crate::model::claim::Phase;
use crate::model::cluster::Binding;
use crate::model::id::{ClaimId, PodKey};
use crate::model::labels::TAINT_UNREGISTERED;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::quantity::Resources;
use crate::model::taint::Taint;
use crate::state::ledger::Claim;

/// A node that is ready is kept closed for pods that are elsewhere for at most this long: their
/// nodes may have to wait for other machines that boot.
const HELD_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Once they are told to leave, for at most this long: a disruption budget may let them go one by
/// one, each when the one before runs again.
const LEAVING_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Nobody waits longer than this for others to come.
const WAITS_MAX: SignedDuration = SignedDuration::from_secs(5);

/// A controller makes a pod anew within this, even one busy with hundreds, or it makes none.
const HEIR_MAX: SignedDuration = SignedDuration::from_secs(10);

/// How often a node that is held is looked at.
const LOOK: SignedDuration = SignedDuration::from_millis(500);

/// A controller keeps the names of its pods: their places are theirs.
const KEEPS_NAMES: &str = "StatefulSet";

/// A place that a pod has left behind.
#[derive(Clone, Debug)]
struct Vacancy {
    claim: ClaimId,
    requests: Resources,
    since: Timestamp,
}

/// Places left behind, by the namespace and the UID of the pods' controller; one for each pod that
/// has left in the last seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Heirs(BTreeMap<(String, String), Vec<Vacancy>>);

impl Heirs {
    /// Whether somebody is still to come for a claim's node.
    pub(super) fn awaits(&self, claim: &ClaimId, now: Timestamp) -> bool {
        let all = self.0.values().flatten();
        let mut own = all.filter(|own| own.claim == *claim);
        own.any(|own| now.duration_since(own.since) < HEIR_MAX)
    }

    /// A place for a pod that has come in place of another and asks for as much.
    fn take(&mut self, pod: &Pod) -> Option<Vacancy> {
        let all = self.0.get_mut(&controller(pod)?)?;
        let at = all.iter().position(|own| own.requests == pod.requests)?;
        Some(all.swap_remove(at))
    }

    /// Forgets places that nobody came for.
    pub(super) fn expire(&mut self, now: Timestamp) {
        self.0.retain(|_, all| {
            all.retain(|own| now.duration_since(own.since) < HEIR_MAX);
            !all.is_empty()
        });
    }
}

fn controller(pod: &Pod) -> Option<(String, String)> {
    let owner = pod.owner.as_ref().filter(|own| own.kind != KEEPS_NAMES)?;
    Some((pod.key.namespace.clone(), owner.uid.clone()))
}

/// Whether a claim was planned for pods that have to leave other nodes.
fn is_for_movers(claim: &Claim) -> bool {
    claim.record.reason == Reason::Underutilized.as_str()
}

impl Engine {
    /// A pod is about to be seen: it may be going, or have come for one that is.
    pub(super) fn succeed(&mut self, pod: &Pod, now: Timestamp) {
        match self.state.objects.pods.get(&pod.key) {
            None if pod.is_waiting() => {
                let Some(vacancy) = self.heirs.take(pod) else {
                    return;
                };
                let claim = self.state.ledger.claims.get_mut(&vacancy.claim);
                if let Some(claim) = claim.filter(|own| own.takes_pods()) {
                    claim.pods.insert(pod.key.clone());
                }
            }
            Some(known) if known.deleting.is_none() && pod.deleting.is_some() => {
                self.bequeath(&pod.key, now);
            }
            _ => {}
        }
    }

    /// A pod goes, and its place is another's.
    pub(super) fn bequeath(&mut self, pod: &PodKey, now: Timestamp) {
        let known = self.state.objects.pods.get(pod);
        let Some((key, known)) = known.and_then(|own| Some((controller(own)?, own))) else {
            return;
        };
        let (from, requests) = (known.node.clone(), known.requests.clone());
        let claims = self.state.ledger.claims.iter_mut();
        let mut made_for = claims.filter(|(_, own)| is_for_movers(own) && own.takes_pods());
        let own = made_for.find(|(_, own)| own.pods.contains(pod) && own.node != from);
        if let Some((id, claim)) = own {
            claim.pods.remove(pod);
            self.heirs.0.entry(key).or_default().push(Vacancy {
                claim: id.clone(),
                requests,
                since: now,
            });
        }
    }

    /// Whether a node is kept closed for pods that still have to leave their own, or have just
    /// left it.
    pub(super) fn is_held(&self, claim: &Claim, now: Timestamp) -> bool {
        let lasts = |since: Timestamp, most| now.duration_since(since) < most;
        let is_told = self.gives_hints() && self.state.cluster.binding != Binding::Early;
        let is_young = claim.phase < Phase::Registered || lasts(claim.since, HELD_MAX);
        if !is_for_movers(claim) || !is_told || !is_young || claim.phase >= Phase::Initialized {
            return false;
        }
        let pods = claim.pods.iter();
        let pods = pods.filter_map(|key| self.state.objects.pods.get(key));
        let mut leaves = false;
        for pod in pods {
            if pod.is_waiting() && pod.created.is_some_and(|at| !lasts(at, WAITS_MAX)) {
                return false;
            }
            if pod.is_waiting() || !self.state.is_mover(pod, now) {
                continue;
            }
            let node = pod.node.as_ref();
            let node = node.and_then(|name| self.state.objects.nodes.get(name));
            let from = node.and_then(|own| self.state.claim_of(own));
            let work = from.and_then(|own| self.works.get(&own.record.id));
            let began = work.and_then(|own| own.drain.began);
            if began.is_some_and(|at| !lasts(at, LEAVING_MAX)) {
                return false;
            }
            leaves = true;
        }
        leaves || self.heirs.awaits(&claim.record.id, now)
    }

    /// Whether a claim's node is open, or would be if it were not held: pods may leave for it.
    pub(super) fn is_prepared(&self, claim: &Claim, now: Timestamp) -> bool {
        if claim.phase == Phase::Initialized {
            return true;
        }
        let node = self.state.node_of(claim);
        node.is_some_and(|node| {
            let mut taints = node.taints.clone();
            taints.retain(|own: &Taint| own.key != TAINT_UNREGISTERED);
            claim.phase == Phase::Registered
                && self.is_held(claim, now)
                && self.has_started(claim, node, &taints)
        })
    }

    /// Looks at a node that is held again before long.
    pub(super) fn look_at_held(&mut self, now: Timestamp) {
        let at = now.checked_add(LOOK).unwrap_or(now);
        self.wake_at(at, "a node is closed for pods that are to come");
    }
}
