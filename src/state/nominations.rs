//! Nominations: which pending pods are expected on which nodes, and until when.

use std::collections::BTreeMap;

use foldhash::HashSet;
use jiff::{SignedDuration, Timestamp};

use crate::model::claim::ClaimPhase;
use crate::model::id::{NodeName, PodKey};
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::state::State;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot::NodeRef;
use crate::state::snapshot_builder::host_of;

/// Pods are expected on a node for this long after its initialization. The scheduler binds the pods
/// in this time. Karpenter nominates for twice its longest batch (spec/scheduling.md §1.5).
const NOMINATED: SignedDuration = SignedDuration::from_secs(20);

/// A pod without a scheduling result for this long is not in the queue of the scheduler. Such a pod
/// waits for something that Outrigger does not know.
const UNTRIED_MAX: SignedDuration = SignedDuration::from_mins(5);

/// The scheduler of pods without a scheduler name.
pub(super) const DEFAULT_SCHEDULER: &str = "default-scheduler";

impl State {
    /// Returns the pods that need capacity and are not expected on any node, by key: unschedulable
    /// pods and pods of terminating nodes.
    pub fn waiting_pods(&self, now: Timestamp) -> Vec<&Pod> {
        self.waiting_pods_except(&self.expected_by_host(now), &self.reschedulable_pods(now))
    }

    /// Returns the waiting pods, and the pods that are still expected on claims, by claim.
    pub fn waiting_and_expected(
        &self,
        now: Timestamp,
    ) -> (Vec<&Pod>, Vec<(&NodeClaim, Vec<&Pod>)>) {
        let by_claim = self.expected_by_claim(now);
        let named = by_claim.iter();
        let by_host = named.map(|(claim, pods)| (host_of(claim), pods.clone())).collect();
        (self.waiting_pods_except(&by_host, &self.reschedulable_pods(now)), by_claim)
    }

    pub(super) fn waiting_pods_except<'a>(
        &'a self,
        expected: &BTreeMap<NodeRef, Vec<&Pod>>,
        reschedulable: &[&'a Pod],
    ) -> Vec<&'a Pod> {
        // This runs in every pass for all pending pods, most of which are expected on claims.
        let held: HashSet<&PodKey> = expected.values().flatten().map(|pod| &pod.key).collect();
        let waiting = self.objects.waiting_pods().iter();
        let free = waiting.filter(|key| !held.contains(key));
        let free = free.filter_map(|key| self.objects.pods.get(key));
        let free = free.filter(|pod| self.is_placed_by_us(pod));
        let reschedulable = reschedulable.iter().filter(|pod| !held.contains(&pod.key));
        let mut pods: Vec<&Pod> = free.chain(reschedulable.copied()).collect();
        pods.retain(|pod| !self.is_preempting(pod));
        pods.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        pods
    }

    /// Returns whether the scheduler lags: one of its pods has waited at least `min_delay` for a
    /// scheduling result, which is still expected. Without lag, the scheduler responds within
    /// milliseconds.
    pub fn is_scheduler_behind(&self, min_delay: SignedDuration, now: Timestamp) -> bool {
        self.objects.untried_pods().any(|(pod, since)| {
            let waits = now.duration_since(since);
            waits >= min_delay && waits < UNTRIED_MAX && self.is_placed_by_us(pod)
        })
    }

    /// Returns whether Outrigger provisions for the scheduler of a pod.
    pub(super) fn is_placed_by_us(&self, pod: &Pod) -> bool {
        let schedulers = &self.cluster.scheduling.schedulers;
        match pod.scheduler.as_str() {
            "" | DEFAULT_SCHEDULER => {
                schedulers.contains("") || schedulers.contains(DEFAULT_SCHEDULER)
            }
            other => schedulers.contains(other),
        }
    }

    /// Returns whether the scheduler preempts other pods for a pod: they terminate on its nominated
    /// node. Any other nomination may be outdated, or a nomination by Outrigger.
    pub(super) fn is_preempting(&self, pod: &Pod) -> bool {
        let node = pod.nominated_node.as_ref().filter(|_| pod.is_waiting());
        let node = node.filter(|name| {
            let node = self.objects.nodes.get(*name);
            let claim = node.and_then(|node| self.claim_of(node));
            claim.is_none_or(|claim| !claim.pods.contains(&pod.key))
        });
        node.is_some_and(|name| self.objects.has_terminating_pods(name.as_str()))
    }

    /// Returns the pending pods that a claim is planned for.
    pub fn pods_of<'a>(&'a self, claim: &'a NodeClaim) -> impl Iterator<Item = &'a Pod> {
        let pods = claim.pods.iter().filter_map(|key| self.objects.pods.get(key));
        pods.filter(|pod| pod.is_waiting())
    }

    /// Returns the pending pods that are still expected on claims, by node.
    pub(super) fn expected_by_host(&self, now: Timestamp) -> BTreeMap<NodeRef, Vec<&Pod>> {
        let expected = self.expected_by_claim(now).into_iter();
        expected.map(|(claim, pods)| (host_of(claim), pods)).collect()
    }

    /// Returns the pending pods that are still expected on claims, by claim.
    ///
    /// kube-scheduler places pods independently. If a different pod uses the planned capacity, the
    /// pod is no longer expected there and becomes pending again without waiting for the node.
    pub fn expected_by_claim(&self, now: Timestamp) -> Vec<(&NodeClaim, Vec<&Pod>)> {
        let mut expected = Vec::new();
        let daemons = self.daemon_requirements();
        let claims = self.ledger.claims.values();
        for claim in claims.filter(|claim| claim.takes_pods()) {
            let keys = claim.pods.iter();
            let known = keys.filter_map(|key| self.objects.pods.get(key));
            let mut pods: Vec<&Pod> =
                known.filter(|pod| self.is_expected_on(pod, claim, now)).collect();
            let node = self.node_of(claim);
            // No pods are expected on a node that has since been tainted or cordoned.
            if pods.is_empty() || node.is_some_and(|node| !self.is_open(node, Some(claim))) {
                continue;
            }
            if let Some(node) = node.filter(|_| claim.phase >= ClaimPhase::Registered) {
                let mut free = self.existing_node(node, Some(claim), &daemons).free;
                pods.retain(|pod| try_reserve(&mut free, pod));
            }
            expected.push((claim, pods));
        }
        expected
    }

    /// Returns the pods that are planned for a kept node with sufficient capacity. The node is
    /// untainted or about to be untainted.
    pub fn pods_with_places<'a>(
        &'a self,
        planned: &'a BTreeMap<NodeName, Vec<PodKey>>,
        is_prepared: impl Fn(&NodeClaim) -> bool,
        now: Timestamp,
    ) -> Vec<&'a PodKey> {
        let expected = self.expected_by_claim(now);
        let mut promised: BTreeMap<&NodeName, Vec<&Pod>> = BTreeMap::new();
        for (claim, pods) in expected {
            let node = self.node_of(claim);
            let node = node.filter(|node| node.ready && is_prepared(claim));
            promised.extend(node.map(|node| (&node.name, pods)));
        }
        let daemons = self.daemon_requirements();
        let mut housed: Vec<&PodKey> = promised.values().flatten().map(|pod| &pod.key).collect();
        for (name, pods) in planned {
            let Some(node) = self.objects.nodes.get(name) else {
                continue;
            };
            let claim = self.claim_of(node);
            let starts = claim.is_some_and(|claim| claim.phase < ClaimPhase::Initialized);
            if !node.ready || starts || !self.is_open(node, claim) {
                continue;
            }
            let mut free = self.existing_node(node, claim, &daemons).free;
            for pod in promised.get(name).into_iter().flatten() {
                free.subtract(&pod.requests);
            }
            for key in pods {
                let pod = self.objects.pods.get(key);
                if pod
                    .filter(|pod| {
                        pod.is_waiting()
                            || (pod.node.as_ref() != Some(name) && self.is_reschedulable(pod, now))
                    })
                    .is_some_and(|pod| try_reserve(&mut free, pod))
                {
                    housed.push(key);
                }
            }
        }
        housed
    }

    /// Observes a pod. If the pod is bound to its planned node, its nomination ends.
    pub fn on_pod_observed(&mut self, pod: &Pod) {
        let claim = self.claim_under(pod);
        let id = claim
            .filter(|claim| claim.phase == ClaimPhase::Initialized && claim.pods.contains(&pod.key))
            .map(|claim| claim.record.id.clone());
        if let Some(claim) = id.and_then(|id| self.ledger.claims.get_mut(&id)) {
            claim.pods.remove(&pod.key);
        }
    }

    fn is_expected_on(&self, pod: &Pod, claim: &NodeClaim, now: Timestamp) -> bool {
        if pod.is_waiting() {
            !is_nomination_over(claim, now)
                && (pod.nominated_node.is_none() || pod.nominated_node == claim.node)
        } else {
            // Most pods are bound already.
            pod.node != claim.node && self.is_reschedulable(pod, now)
        }
    }

    /// Returns whether pods are expected on the node of a claim.
    pub(super) fn expects_pods(&self, claim: &NodeClaim, now: Timestamp) -> bool {
        claim.takes_pods()
            && claim.pods.iter().any(|key| {
                let pod = self.objects.pods.get(key);
                pod.is_some_and(|pod| self.is_expected_on(pod, claim, now))
            })
    }

    /// How long a node is nominated for pending pods. When the pods are no longer expected on it,
    /// they are planned again within a batch window. Otherwise the node could be disrupted as empty
    /// within the window, although the scheduler is only late.
    pub fn node_nomination(&self) -> SignedDuration {
        NOMINATED.saturating_add(self.cluster.batching.max)
    }

    /// Returns when the next nomination period ends. Its pods then become pending again.
    pub fn next_nomination_end(&self, now: Timestamp) -> Option<Timestamp> {
        let claims = self.ledger.claims.values();
        let ready =
            claims.filter(|claim| claim.phase == ClaimPhase::Initialized && !claim.pods.is_empty());
        let ends = ready.filter_map(|claim| claim.since.checked_add(NOMINATED).ok());
        ends.filter(|at| *at > now).min()
    }
}

/// Reserves free capacity for a pod if it fits.
fn try_reserve(free: &mut Resources, pod: &Pod) -> bool {
    let fits = pod.requests.fit_into(free);
    if fits {
        free.subtract(&pod.requests);
    }
    fits
}

/// Returns whether the nomination period of the node of a claim is over.
pub(super) fn is_nomination_over(claim: &NodeClaim, now: Timestamp) -> bool {
    claim.phase == ClaimPhase::Initialized && now.duration_since(claim.since) >= NOMINATED
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::model::claim::ClaimPhase;
    use crate::model::cluster::Cluster;
    use crate::model::id::ObjectKey;
    use crate::model::pod::{Owner, Pod};
    use crate::model::pool::Reason;
    use crate::model::watched_object::WatchedObject;
    use crate::state::State;
    use crate::state::fixtures::{NOW, claim, node, pod, waiting};

    fn state_with(pods: Vec<Pod>) -> State {
        let mut state = State::default();
        for pod in pods {
            state.objects.apply(pod.into(), NOW);
        }
        state
    }

    fn names(pods: &[&Pod]) -> String {
        let names: Vec<&str> = pods.iter().map(|pod| &pod.key.name[..]).collect();
        names.join(" ")
    }

    #[test]
    fn pods_of_other_schedulers_are_not_pending() {
        let of = |name: &str, scheduler: &str| Pod {
            scheduler: scheduler.into(),
            ..waiting("default", name)
        };
        let cases: [(&[&str], &str); 5] = [
            (&["", "default-scheduler"], "named unnamed"),
            (&["default-scheduler"], "named unnamed"),
            (&[""], "named unnamed"),
            (&["volcano"], "volcano"),
            (&[], ""),
        ];
        for (schedulers, expect) in cases {
            let mut state = state_with(vec![
                of("unnamed", ""),
                of("named", "default-scheduler"),
                of("volcano", "volcano"),
            ]);
            let mut cluster = Cluster::default();
            let scheduler_names = schedulers.iter().map(|name| (*name).to_owned());
            cluster.scheduling.schedulers = scheduler_names.collect();
            state.cluster = Arc::new(cluster);
            assert_eq!(names(&state.waiting_pods(NOW)), expect, "{schedulers:?}");
            assert_eq!(names(&state.snapshot(NOW).pending), expect);
        }
    }

    /// A pod on the disrupted node `n`, and a claim for it, if it is already planned.
    fn draining_state(planned: bool) -> State {
        let mut reschedulable = pod("default", "mover", "n");
        reschedulable.owner =
            Some(Owner { kind: "StatefulSet".into(), name: "owner".into(), uid: "owner".into() });
        let mut state = state_with(vec![reschedulable, pod("default", "bare", "n")]);
        let mut old = claim("old", Some("n"), ClaimPhase::Draining);
        old.leaving = Some(Reason::Expired);
        state.ledger.insert(old);
        state.objects.apply(node("n"), NOW);
        if planned {
            let mut new = claim("new", Some("m"), ClaimPhase::Initialized);
            new.pods = [ObjectKey::new("default", "mover")].into();
            state.ledger.insert(new);
            state.objects.apply(node("m"), NOW);
        }
        state
    }

    fn pods_on(state: &State, name: &str) -> u32 {
        let snapshot = state.snapshot(NOW);
        let homes = snapshot.residents.iter().flat_map(|group| &group.nodes);
        let here = homes.filter(|(node, _)| node.as_str() == name);
        here.map(|(_, count)| count).sum()
    }

    #[test]
    fn reschedulable_pod_is_planned_once() {
        for planned in [false, true] {
            let state = draining_state(planned);
            let snapshot = state.snapshot(NOW);
            let pending = if planned { "" } else { "mover" };
            assert_eq!(names(&snapshot.pending), pending);
            assert_eq!(names(&state.waiting_pods(NOW)), pending);
            let promised: usize = snapshot.promised.values().map(Vec::len).sum();
            assert_eq!(promised, usize::from(planned));
            // It counts on its new node, and no longer on its old one.
            assert_eq!(pods_on(&state, "n"), 1);
        }
        let free_cpu = |state: &State| {
            let nodes = state.snapshot(NOW).rooms;
            let found = nodes.into_iter().find(|node| node.host.to_string() == "node m");
            found.map(|node| node.free.cpu_milli)
        };
        assert_eq!(free_cpu(&draining_state(true)), Some(900));
        // Meanwhile, its new node does not count as empty and is not assigned running pods.
        let state = draining_state(true);
        let candidates = state.disruption_view(NOW).candidates;
        assert!(
            candidates
                .iter()
                .any(|candidate| candidate.node.name.as_str() == "m" && candidate.nominated)
        );
        let claim = &state.ledger.claims["new"];
        assert_eq!(state.pods_of(claim).count(), 0);
    }

    #[test]
    fn replacement_of_a_deleted_pod_inherits_its_nomination() {
        let mut state = draining_state(true);
        let key = ObjectKey::new("default", "mover");
        state.objects.delete(crate::model::watched_object::ObjectKind::Pod, &key, NOW);
        assert_eq!(state.snapshot(NOW).promised.len(), 0);
        // A pod of the same name is expected on its planned node. A pod of a different name is
        // pending like any pod.
        for (name, promised, pending) in [("mover", 1, ""), ("other", 0, "other")] {
            let mut state = state.clone();
            state.objects.apply(waiting("default", name).into(), NOW);
            let snapshot = state.snapshot(NOW);
            assert_eq!(snapshot.promised.len(), promised, "{name}");
            assert_eq!(names(&snapshot.pending), pending, "{name}");
        }
    }

    /// More pods than fit may have been planned while a listing lacked some of them.
    #[test]
    fn nominated_pods_do_not_exceed_the_node_capacity() {
        for (phase, expected) in [(ClaimPhase::Registered, 10), (ClaimPhase::Initialized, 10)] {
            let names: Vec<String> = (10..22).map(|number| format!("p{number}")).collect();
            let mut state = state_with(names.iter().map(|name| waiting("default", name)).collect());
            let mut node_claim = claim("c", Some("n"), phase);
            node_claim.since = NOW;
            node_claim.pods = names.iter().map(|name| ObjectKey::new("default", name)).collect();
            state.ledger.insert(node_claim);
            state.objects.apply(node("n"), NOW);
            let found = state.expected_by_claim(NOW).iter().map(|(_, pods)| pods.len()).sum();
            assert_eq!(
                (expected, 12 - expected),
                (found, state.waiting_pods(NOW).len()),
                "{phase:?}"
            );
        }
    }

    #[test]
    fn cordoned_node_loses_its_nominations() {
        for (closed, pending) in [(false, ""), (true, "a")] {
            let mut state = state_with(vec![waiting("default", "a")]);
            let mut expected = claim("c", Some("n"), ClaimPhase::Registered);
            expected.pods = [ObjectKey::new("default", "a")].into();
            state.ledger.insert(expected);
            let WatchedObject::Node(mut node) = node("n") else { panic!("a node") };
            node.unschedulable = closed;
            state.objects.apply(WatchedObject::Node(node), NOW);
            assert_eq!(names(&state.waiting_pods(NOW)), pending, "{closed}");
        }
    }
}
