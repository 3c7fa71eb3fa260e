//! Whether a pod waits for capacity, and if not, what else is to be said of it.
//! It must not know whether there is capacity.

use jiff::Timestamp;

use crate::model::id::NodeName;
use crate::model::pod::{HeldBack, Pod};
use crate::state::State;
use crate::state::snapshot::{NodeRef, Snapshot};

/// Where a pod stands with us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDisposition {
    /// It waits for capacity: it has no place, or is about to lose its own.
    Waits {
        /// The node it has to leave.
        leaves: Option<NodeName>,
    },
    /// It is bound to a node.
    Bound(NodeName),
    /// A host is expected to take it.
    Expected(NodeRef),
    /// It has ended.
    Ended,
    /// Its deletion was asked for.
    Deleted,
    /// It belongs to one node: a DaemonSet or the kubelet itself makes one for each.
    OfNode,
    /// Scheduling gates keep the scheduler from looking at it.
    Gated,
    /// A scheduler places it that we do not provide for.
    OtherScheduler(String),
    /// The scheduler makes room for it on a node by preemption.
    Preempts(NodeName),
    /// The scheduler looks at it once enough pods of this PodGroup are there.
    Grouped(String),
    /// The scheduler has not looked for a place, or has come to nothing, for this reason.
    Failed(String),
    /// The scheduler has not said yet that it fits nowhere.
    Untried,
}

impl State {
    /// Where a pod stands; `snapshot` is this state's.
    pub fn standing(&self, pod: &Pod, snapshot: &Snapshot<'_>, now: Timestamp) -> PodDisposition {
        let waits = snapshot
            .pending
            .binary_search_by(|own| own.key.cmp(&pod.key));
        if waits.is_ok() {
            let leaves = pod.node.clone();
            return PodDisposition::Waits { leaves };
        }
        let expected = self.expected(now).into_iter();
        let mut hosts = expected.filter(|(_, pods)| pods.iter().any(|own| own.key == pod.key));
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
        } else if let Some(node) = pod.nominated_node.clone().filter(|_| self.preempts(pod)) {
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
