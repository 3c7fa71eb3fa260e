//! Determines whether a pod waits for capacity and, if not, which state it has.

use jiff::Timestamp;

use crate::model::id::NodeName;
use crate::model::pod::{HeldBack, Pod};
use crate::state::State;
use crate::state::snapshot::{NodeRef, Snapshot};

/// The state of a pod with respect to provisioning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDisposition {
    /// The pod waits for capacity: it has no node, or is about to lose its node.
    Waits {
        /// The terminating node to which the pod is bound.
        leaves: Option<NodeName>,
    },
    /// The pod is bound to a node.
    Bound(NodeName),
    /// The pod is expected on this node or claim.
    Expected(NodeRef),
    /// The pod has terminated.
    Ended,
    /// The pod is being deleted.
    Deleted,
    /// The pod is a DaemonSet or static pod of one node.
    OfNode,
    /// Scheduling gates keep the scheduler from evaluating the pod.
    Gated,
    /// The pod uses a scheduler for which Outrigger does not provision.
    OtherScheduler(String),
    /// The scheduler preempts other pods on this node for the pod.
    Preempts(NodeName),
    /// The scheduler waits for more pods of this PodGroup.
    Grouped(String),
    /// The scheduler did not evaluate it, or failed, for this reason.
    Failed(String),
    /// The scheduler has not reported it as unschedulable yet.
    Untried,
}

impl State {
    /// Returns the state of a pod. `snapshot` is the snapshot of this state.
    pub fn pod_disposition(
        &self,
        pod: &Pod,
        snapshot: &Snapshot<'_>,
        now: Timestamp,
    ) -> PodDisposition {
        let waits = snapshot.pending.binary_search_by(|other| other.key.cmp(&pod.key));
        if waits.is_ok() {
            let leaves = pod.node.clone();
            return PodDisposition::Waits { leaves };
        }
        let expected = self.expected_by_host(now).into_iter();
        let mut hosts = expected.filter(|(_, pods)| pods.iter().any(|other| other.key == pod.key));
        if let Some((host, _)) = hosts.next() {
            return PodDisposition::Expected(host);
        }
        if pod.is_terminal() {
            return PodDisposition::Ended;
        }
        if let Some(node) = &pod.node {
            return PodDisposition::Bound(node.clone());
        }
        if pod.deleting.is_some() {
            PodDisposition::Deleted
        } else if pod.is_daemon() || pod.is_mirror() {
            PodDisposition::OfNode
        } else if pod.is_gated {
            PodDisposition::Gated
        } else if !self.is_placed_by_us(pod) {
            PodDisposition::OtherScheduler(pod.scheduler.clone())
        } else if let Some(node) = pod.nominated_node.clone().filter(|_| self.is_preempting(pod)) {
            PodDisposition::Preempts(node)
        } else {
            match &pod.held_back {
                Some(HeldBack::Group(group)) => PodDisposition::Grouped(group.clone()),
                Some(HeldBack::Reason(reason)) => PodDisposition::Failed(reason.clone()),
                None => PodDisposition::Untried,
            }
        }
    }
}
