//! Which waiting pods which hosts are expected to take, and for how long.
//! It must not know why a pod was planned onto a host.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::model::claim::Phase;
use crate::model::id::PodKey;
use crate::model::pod::Pod;
use crate::state::State;
use crate::state::ledger::Claim;
use crate::state::snapshot::Host;
use crate::state::survey::host_of;

/// Pods are expected on an initialized node for this long after it became so: the scheduler's
/// turn. Karpenter nominates for twice its longest batch (spec/scheduling.md §1.5).
pub const NOMINATED: SignedDuration = SignedDuration::from_secs(20);

impl State {
    /// Pods that wait for capacity and that no claim is expected to take, by key.
    pub fn waiting(&self, now: Timestamp) -> Vec<&Pod> {
        self.waiting_but(&self.expected(now))
    }

    pub(super) fn waiting_but(&self, expected: &BTreeMap<Host, Vec<&Pod>>) -> Vec<&Pod> {
        let held: BTreeSet<&PodKey> = expected.values().flatten().map(|pod| &pod.key).collect();
        let waiting = self.objects.waiting();
        waiting
            .filter(|pod| !self.preempts(pod) && !held.contains(&pod.key))
            .collect()
    }

    /// Whether the scheduler is making room for a pod: others leave the node nominated for it.
    /// Any other nomination is but a word, and may be out of date.
    fn preempts(&self, pod: &Pod) -> bool {
        let node = pod.nominated_node.as_ref();
        let mut there = node
            .into_iter()
            .flat_map(|name| self.objects.pods_on(name.as_str()));
        there.any(|pod| pod.deleting.is_some() && !pod.is_terminal())
    }

    /// The pods a claim was planned for that still wait.
    pub fn pods_of<'a>(&'a self, claim: &'a Claim) -> impl Iterator<Item = &'a Pod> {
        let pods = claim
            .pods
            .iter()
            .filter_map(|key| self.objects.pods.get(key));
        pods.filter(|pod| pod.is_waiting())
    }

    /// Pending pods that claims were planned for and may still get, by host.
    ///
    /// Schedulers spread pods as they like. A pod whose place another one took is expected no
    /// more: it waits again, and need not wait until its node's turn is over.
    pub(super) fn expected(&self, now: Timestamp) -> BTreeMap<Host, Vec<&Pod>> {
        let mut expected: BTreeMap<Host, Vec<&Pod>> = BTreeMap::new();
        let claims = self.ledger.claims.values();
        for claim in claims.filter(|claim| self.expects_pods(claim, now)) {
            let here =
                |pod: &&Pod| pod.nominated_node.is_none() || pod.nominated_node == claim.node;
            let mut pods: Vec<&Pod> = self.pods_of(claim).filter(here).collect();
            if pods.is_empty() {
                continue;
            }
            if let Some(node) = self.node_of(claim)
                && claim.phase == Phase::Initialized
            {
                let mut free = self.room_of_node(node, Some(claim)).free;
                pods.retain(|pod| {
                    let fits = pod.requests.fit(&free);
                    if fits {
                        free.subtract(&pod.requests);
                    }
                    fits
                });
            }
            expected.insert(host_of(claim), pods);
        }
        expected
    }

    /// Whether pods are expected on a claim's node.
    pub(super) fn expects_pods(&self, claim: &Claim, now: Timestamp) -> bool {
        claim.takes_pods()
            && (claim.phase != Phase::Initialized || now.duration_since(claim.since) < NOMINATED)
    }

    /// When the next node's turn is over: pods that were expected on it wait again.
    pub fn next_release(&self, now: Timestamp) -> Option<Timestamp> {
        let claims = self.ledger.claims.values();
        let ready =
            claims.filter(|claim| claim.phase == Phase::Initialized && !claim.pods.is_empty());
        let over = ready.filter_map(|claim| claim.since.checked_add(NOMINATED).ok());
        over.filter(|at| *at > now).min()
    }
}
