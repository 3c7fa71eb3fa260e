//! Finds the pods of terminating nodes that need capacity on other nodes.

use jiff::Timestamp;

use crate::model::id::PodKey;
use crate::model::labels::MANAGED_BY;
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::state::State;
use crate::state::node_claims::NodeClaim;

impl State {
    /// Returns the pods of terminating nodes that their controllers will recreate. Capacity is
    /// planned before they terminate. Source: spec/scheduling.md §1.3.
    pub(super) fn reschedulable_pods(&self, now: Timestamp) -> Vec<&Pod> {
        let claims = self.ledger.claims.values();
        let leaving =
            claims.filter_map(|claim| Some((self.node_of(claim)?, termination_mode(claim)?)));
        let offline = self
            .claimless_nodes()
            .filter(|node| node.is_leaving())
            .map(|node| (node, TerminationMode::Drained));
        let nodes = leaving.chain(offline);
        nodes
            .flat_map(|(node, mode)| {
                let pods = self.objects.pods_on(node.name.as_str());
                pods.filter(move |pod| self.will_return(pod, mode, now))
            })
            .collect()
    }

    /// Returns whether a pod is reschedulable. An offline plan has no claims being disrupted.
    pub fn is_reschedulable(&self, pod: &Pod, now: Timestamp) -> bool {
        let claim = self.claim_under(pod);
        claim.is_some_and(|claim| self.moves_from(claim, pod, now))
    }

    /// Returns the reschedulable pods of the node of one claim.
    pub fn reschedulable_of<'a>(
        &'a self,
        claim: &'a NodeClaim,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Pod> {
        let pods = self.pods_under(claim);
        pods.filter(move |pod| self.moves_from(claim, pod, now))
    }

    /// Returns a pod on the node of a claim that no controller would recreate.
    pub fn unmanaged_pod_of(&self, claim: &NodeClaim, now: Timestamp) -> Option<&PodKey> {
        let mut pods =
            self.pods_under(claim).filter(|pod| pod.occupies_node() && pod.deleting.is_none());
        let unmanaged_pod = pods.find(|pod| !self.moves_from(claim, pod, now))?;
        Some(&unmanaged_pod.key)
    }

    fn moves_from(&self, claim: &NodeClaim, pod: &Pod, now: Timestamp) -> bool {
        termination_mode(claim).is_some_and(|mode| self.will_return(pod, mode, now))
    }

    fn pods_under(&self, claim: &NodeClaim) -> impl Iterator<Item = &Pod> {
        let node = self.node_of(claim).map_or("", |node| node.name.as_str());
        self.objects.pods_on(node)
    }

    /// Returns whether a pod would need capacity on another node if its node were disrupted
    /// voluntarily.
    pub(super) fn needs_capacity_elsewhere(&self, pod: &Pod, now: Timestamp) -> bool {
        self.will_return(pod, TerminationMode::Drained, now)
    }

    /// Returns the claim of the node of a pod.
    pub fn claim_under(&self, pod: &Pod) -> Option<&NodeClaim> {
        let node = self.objects.nodes.get(pod.node.as_ref()?)?;
        self.claim_of(node)
    }

    /// Returns whether the instance of a node belongs to a claim.
    pub fn is_claimed(&self, node: &Node) -> bool {
        self.claim_of(node).is_some()
    }

    /// Returns whether the labels of a node identify this installation.
    pub fn is_of_this_installation(&self, node: &Node) -> bool {
        let installation = &self.cluster.installation;
        !installation.is_empty() && node.labels.get(MANAGED_BY) == Some(installation)
    }

    /// Returns the claim of a node.
    pub fn claim_of(&self, node: &Node) -> Option<&NodeClaim> {
        let id = self.ledger.by_instance(node.instance_id()?)?;
        let claim = self.ledger.claims.get(id)?;
        (claim.node.as_ref() == Some(&node.name)).then_some(claim)
    }

    /// Returns whether a bound pod will be recreated after its termination.
    fn will_return(&self, pod: &Pod, mode: TerminationMode, now: Timestamp) -> bool {
        // A pod that must not be disrupted, or that a PodDisruptionBudget permanently protects, is
        // kept if the disruption is voluntary (spec/disruption.md §6, 12 and 13).
        pod.is_reschedulable()
            && pod.owner.is_some()
            && (mode == TerminationMode::TakenBack
                || !(pod.is_protected(now) || self.objects.is_permanently_blocked(pod, now)))
            && self.is_placed_by_us(pod)
    }
}

/// How a node is terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TerminationMode {
    /// After its pods are drained.
    Drained,
    /// Even if its pods are not drained.
    TakenBack,
}

/// Returns how the node of a claim is terminated even if it has pods. `None` if the node is then
/// kept, like an empty node that gets pods.
fn termination_mode(claim: &NodeClaim) -> Option<TerminationMode> {
    match claim.leaving {
        None => claim.replaced_since.map(|_| TerminationMode::Drained),
        Some(Reason::Empty) => None,
        Some(Reason::Interrupted | Reason::Unhealthy) => Some(TerminationMode::TakenBack),
        Some(_) => Some(TerminationMode::Drained),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use crate::model::claim::ClaimPhase;
    use crate::model::labels::DO_NOT_DISRUPT;
    use crate::model::pod::{Owner, Pod, PodPhase};
    use crate::model::pool::Reason;
    use crate::state::State;
    use crate::state::fixtures::{NOW, claim, node, pod};

    fn owned(name: &str, kind: &str) -> Pod {
        let mut pod = pod("default", name, "n");
        pod.owner = Some(Owner { kind: kind.into(), name: "owner".into(), uid: "owner".into() });
        pod
    }

    /// A state whose only node is disrupted for this reason.
    fn disrupted_state(reason: Option<Reason>, pods: Vec<Pod>) -> State {
        let mut state = State::default();
        let mut claim = claim("c", Some("n"), ClaimPhase::Draining);
        claim.leaving = reason;
        state.ledger.insert(claim);
        state.objects.apply(node("n"), NOW);
        for pod in pods {
            state.objects.apply(pod.into(), NOW);
        }
        state
    }

    fn names(state: &State) -> String {
        let names: Vec<&str> =
            state.reschedulable_pods(NOW).iter().map(|pod| pod.key.name.as_str()).collect();
        for pod in state.objects.pods.values() {
            let named = names.contains(&pod.key.name.as_str());
            assert_eq!(state.is_reschedulable(pod, NOW), named, "{}", pod.key);
        }
        names.join(" ")
    }

    #[test]
    fn pods_of_controllers_are_reschedulable() {
        let with = |mut pod: Pod, change: &dyn Fn(&mut Pod)| {
            change(&mut pod);
            pod
        };
        let deleting = |pod: &mut Pod| pod.deleting = Some(Timestamp::UNIX_EPOCH);
        let protected = |pod: &mut Pod| {
            pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
        };
        let other_scheduler = |pod: &mut Pod| pod.scheduler = "volcano".into();
        let ended = |pod: &mut Pod| pod.phase = PodPhase::Succeeded;
        let elsewhere = |pod: &mut Pod| pod.node = Some("m".into());
        let pods = vec![
            owned("replica", "ReplicaSet"),
            owned("stateful", "StatefulSet"),
            owned("job", "Job"),
            owned("daemon", "DaemonSet"),
            owned("mirror", "Node"),
            pod("default", "bare", "n"),
            with(owned("replica-ending", "ReplicaSet"), &deleting),
            with(owned("stateful-ending", "StatefulSet"), &deleting),
            with(owned("protected", "ReplicaSet"), &protected),
            with(owned("other-scheduler", "ReplicaSet"), &other_scheduler),
            with(owned("ended", "Job"), &ended),
            with(owned("elsewhere", "ReplicaSet"), &elsewhere),
        ];
        let drained = "job replica stateful stateful-ending";
        let lost = "job protected replica stateful stateful-ending";
        let cases = [
            (None, ""),
            (Some(Reason::Empty), ""),
            (Some(Reason::Expired), drained),
            (Some(Reason::Drifted), drained),
            (Some(Reason::Interrupted), lost),
        ];
        for (reason, expect) in cases {
            let state = disrupted_state(reason, pods.clone());
            assert_eq!(names(&state), expect, "{reason:?}");
        }
    }

    #[test]
    fn node_of_another_instance_has_no_reschedulable_pods() {
        let mut state =
            disrupted_state(Some(Reason::Expired), vec![owned("replica", "ReplicaSet")]);
        assert_eq!(names(&state), "replica");
        let mut other = node("n");
        if let crate::model::watched_object::WatchedObject::Node(node) = &mut other {
            node.provider_id = "aws:///zone/i-other".into();
        }
        state.objects.apply(other, NOW);
        assert_eq!(names(&state), "");
    }
}
