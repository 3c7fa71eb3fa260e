//! A node as the cluster reports it.

use jiff::Timestamp;

use crate::model::id::{NodeName, PoolName};
use crate::model::labels::{
    AWAITING_KUBELET, AWAITING_KUBELET_FORMER, DISRUPTION_REASON, EXCLUDE_BALANCERS, EXCLUDED_BY,
    FINALIZER, INITIALIZED, Labels, POOL, REGISTERED, TAINT_DISRUPTED, TAINT_UNREGISTERED,
    TERMINATION_AT,
};
use crate::model::named_enum::named_enum;
use crate::model::quantity::Resources;
use crate::model::taint::Taint;

/// Maximum number of node conditions that are kept: a kubelet has five, agents add a few.
pub const CONDITIONS_MAX: usize = 32;

named_enum! {
    /// The status of a condition. The names are those of the API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ConditionStatus {
        /// The condition holds.
        True => "True",
        /// The condition does not hold.
        False => "False",
        /// The status is unknown.
        Unknown => "Unknown",
    }
}

/// A node condition, reported by the kubelet or an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Its type, such as `Ready`.
    pub kind: String,
    /// Its status.
    pub status: ConditionStatus,
    /// When the status last changed.
    pub since: Timestamp,
}

/// A Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: NodeName,
    /// UID. A recreated node with the same name has a different UID.
    pub uid: String,
    /// Resource version of the object, for conditional writes.
    pub version: String,
    /// `spec.providerID`, empty until set. It is the only link to an instance.
    pub provider_id: String,
    /// When the Node was created.
    pub created: Option<Timestamp>,
    /// When its deletion was requested.
    pub deleting: Option<Timestamp>,
    /// Labels.
    pub labels: Labels,
    /// The annotations that Outrigger reads.
    pub annotations: Labels,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// UID of the Karpenter NodeClaim that owns the node. Deleting the NodeClaim also deletes the
    /// node.
    pub node_claim: Option<String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Whether the node is cordoned.
    pub unschedulable: bool,
    /// Whether a kubelet has registered (`status.nodeInfo.kubeletVersion`).
    pub has_kubelet: bool,
    /// Whether its `Ready` condition is true.
    pub ready: bool,
    /// Its conditions that have a transition time.
    pub conditions: Vec<NodeCondition>,
    /// Capacity.
    pub capacity: Resources,
    /// Capacity that pods can request.
    pub allocatable: Resources,
}

impl Node {
    /// The pool to which the node belongs, if any.
    pub fn pool_name(&self) -> Option<PoolName> {
        self.labels.get(POOL).map(|name| name.as_str().into())
    }

    /// Replaces the condition of this type. The transition time is kept if the status does not
    /// change.
    pub fn set_condition(&mut self, kind: &str, status: ConditionStatus, now: Timestamp) {
        let mut conditions = self.conditions.iter_mut();
        match conditions.find(|condition| condition.kind == kind) {
            Some(condition) if condition.status == status => {}
            Some(condition) => (condition.status, condition.since) = (status, now),
            None => {
                self.conditions.push(NodeCondition { kind: kind.to_owned(), status, since: now })
            }
        }
    }

    /// The instance ID at the end of the provider ID: `aws:///us-east-1a/i-0123` gives `i-0123`.
    pub fn instance_id(&self) -> Option<&str> {
        let mut windows = self.provider_id.as_bytes().windows(3);
        let (_, id) = self.provider_id.rsplit_once('/')?;
        (!id.is_empty() && windows.any(|window| window == b"://")).then_some(id)
    }

    /// Returns whether the node has the label `karpenter.sh/registered=true`.
    pub fn is_registered(&self) -> bool {
        self.labels.get(REGISTERED).map(String::as_str) == Some("true")
    }

    /// Returns whether the node has the label `karpenter.sh/initialized=true`.
    pub fn is_initialized(&self) -> bool {
        self.labels.get(INITIALIZED).map(String::as_str) == Some("true")
    }

    /// Returns whether the annotation of the node states that Outrigger created it before its
    /// kubelet registered.
    pub fn has_awaiting_kubelet(&self) -> bool {
        self.annotations.contains_key(AWAITING_KUBELET)
            || self.annotations.contains_key(AWAITING_KUBELET_FORMER)
    }

    /// Returns whether Outrigger created the Node and its kubelet has not registered. No pod has
    /// run on the node.
    pub fn is_awaited(&self) -> bool {
        self.has_awaiting_kubelet() && !self.has_kubelet && !self.ready
    }

    /// Returns whether the node may run pods that its kubelet must not terminate: it is registered,
    /// or pods were bound to it before its kubelet joined, and the kubelet has joined.
    pub fn may_run_pods(&self) -> bool {
        let was_awaited = self.has_awaiting_kubelet() && !self.is_awaited();
        self.is_registered() || was_awaited
    }

    /// Returns whether the node has the unregistered taint.
    pub fn has_unregistered_taint(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == TAINT_UNREGISTERED)
    }

    /// Returns whether the node has the finalizer that drains and terminates it on deletion.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == FINALIZER)
    }

    /// The time at which the node is terminated even if pods remain. `None` if the annotation is
    /// missing or invalid.
    pub fn termination_deadline(&self) -> Option<Timestamp> {
        self.annotations.get(TERMINATION_AT)?.parse().ok()
    }

    /// Returns whether the node has the disrupted taint.
    pub fn has_disrupted_taint(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == TAINT_DISRUPTED)
    }

    /// Returns whether the node is being deleted or has the disrupted taint.
    pub fn is_leaving(&self) -> bool {
        self.deleting.is_some() || self.has_disrupted_taint()
    }

    /// Returns whether the node has any mark of disruption: the disrupted taint, the reason
    /// annotation or the load balancer label. A user may have removed the taint only.
    pub fn is_marked(&self) -> bool {
        self.has_disrupted_taint()
            || self.annotations.contains_key(DISRUPTION_REASON)
            || self.labels.get(EXCLUDE_BALANCERS).map(String::as_str) == Some(EXCLUDED_BY)
    }
}

#[cfg(test)]
mod tests {
    use super::Node;

    #[test]
    fn instance_id_is_the_last_part_of_the_provider_id() {
        let cases = [
            ("aws:///us-east-1a/i-0123", Some("i-0123")),
            ("aws:////i-0123", Some("i-0123")),
            ("kwok://node-1", Some("node-1")),
            ("aws:///us-east-1a/", None),
            ("us-east-1a/i-0123", None),
            ("i-0123", None),
            ("", None),
        ];
        for (provider_id, expect) in cases {
            let node = Node { provider_id: provider_id.to_owned(), ..Node::default() };
            assert_eq!(node.instance_id(), expect, "{provider_id:?}");
        }
    }
}
