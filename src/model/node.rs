//! A node as the cluster reports it.
//! It must not know which instance or claim is behind it.

use jiff::Timestamp;

use crate::model::id::{NodeName, PoolName};
use crate::model::labels::{
    AWAITING_KUBELET, AWAITING_KUBELET_FORMER, DISRUPTION_REASON, EXCLUDE_BALANCERS, EXCLUDED_BY,
    FINALIZER, INITIALIZED, Labels, POOL, REGISTERED, TAINT_DISRUPTED, TAINT_UNREGISTERED,
    TERMINATION_AT,
};
use crate::model::quantity::Resources;
use crate::model::taint::Taint;

/// Conditions of a node that are kept: a kubelet has five, agents add a few.
pub const CONDITIONS_MAX: usize = 32;

/// What a condition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell.
    Unknown,
}

impl ConditionStatus {
    /// The spelling of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// The status of this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let all = [Self::True, Self::False, Self::Unknown];
        all.into_iter().find(|own| own.as_str() == text)
    }
}

/// What a node's kubelet, or an agent on it, says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Its type, such as `Ready`.
    pub kind: String,
    /// What it says.
    pub status: ConditionStatus,
    /// Since when it says so.
    pub since: Timestamp,
}

/// A Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: NodeName,
    /// UID: a recreated node of the same name is another node.
    pub uid: String,
    /// Version of the object, for writes that must not overwrite another's.
    pub version: String,
    /// `spec.providerID`, empty until set; the only link to an instance.
    pub provider_id: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When its deletion was asked for.
    pub deleting: Option<Timestamp>,
    /// Labels.
    pub labels: Labels,
    /// The annotations that are read.
    pub annotations: Labels,
    /// What keeps it from going once its deletion was asked for.
    pub finalizers: Vec<String>,
    /// UID of the NodeClaim object of Karpenter's that owns it, and with which it would be deleted.
    pub node_claim: Option<String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// Whether a kubelet has said that it is here (`status.nodeInfo.kubeletVersion`).
    pub has_kubelet: bool,
    /// Whether its `Ready` condition is true.
    pub ready: bool,
    /// Its conditions, as far as they say since when they are so.
    pub conditions: Vec<NodeCondition>,
    /// Capacity.
    pub capacity: Resources,
    /// What pods may use of it.
    pub allocatable: Resources,
}

impl Node {
    /// The pool it belongs to, if any.
    pub fn pool(&self) -> Option<PoolName> {
        self.labels
            .get(POOL)
            .map(|name| PoolName::from(name.as_str()))
    }

    /// Puts a condition in place of the one of its type, which keeps its time if it says the same.
    pub fn set_condition(&mut self, kind: &str, status: ConditionStatus, now: Timestamp) {
        let mut own = self.conditions.iter_mut();
        match own.find(|own| own.kind == kind) {
            Some(own) if own.status == status => {}
            Some(own) => (own.status, own.since) = (status, now),
            None => self.conditions.push(NodeCondition {
                kind: kind.to_owned(),
                status,
                since: now,
            }),
        }
    }

    /// The instance id its provider id ends in: `aws:///us-east-1a/i-0123` gives `i-0123`.
    pub fn instance_id(&self) -> Option<&str> {
        let mut windows = self.provider_id.as_bytes().windows(3);
        let (_, id) = self.provider_id.rsplit_once('/')?;
        (!id.is_empty() && windows.any(|own| own == b"://")).then_some(id)
    }

    /// Whether it bears the label `karpenter.sh/registered=true`.
    pub fn is_registered(&self) -> bool {
        self.labels
            .get(REGISTERED)
            .is_some_and(|value| value == "true")
    }

    /// Whether it bears the label `karpenter.sh/initialized=true`.
    pub fn is_initialized(&self) -> bool {
        self.labels
            .get(INITIALIZED)
            .is_some_and(|value| value == "true")
    }

    /// Whether it has the annotation that Outrigger created it before its kubelet registered.
    pub fn has_awaiting_kubelet(&self) -> bool {
        let names = [AWAITING_KUBELET, AWAITING_KUBELET_FORMER];
        names.iter().any(|own| self.annotations.contains_key(*own))
    }

    /// Whether Outrigger created it and its kubelet has not registered: nothing has ever run on it.
    pub fn is_awaited(&self) -> bool {
        self.has_awaiting_kubelet() && !self.has_kubelet && !self.ready
    }

    /// Whether pods that its kubelet should not end may run on it: it is registered, or pods were
    /// bound to it before its kubelet came, which has come since.
    pub fn may_run_pods(&self) -> bool {
        let was_awaited = self.has_awaiting_kubelet() && !self.is_awaited();
        self.is_registered() || was_awaited
    }

    /// Whether it bears the unregistered taint.
    pub fn has_unregistered_taint(&self) -> bool {
        self.taints
            .iter()
            .any(|taint| taint.key == TAINT_UNREGISTERED)
    }

    /// Whether its deletion waits for it to be drained and ended.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|own| own == FINALIZER)
    }

    /// When it ends whatever is left on it, if it says so in words that can be read.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.annotations.get(TERMINATION_AT)?.parse().ok()
    }

    /// Whether it bears the disrupted taint.
    pub fn has_disrupted_taint(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == TAINT_DISRUPTED)
    }

    /// Whether it is on its way out, whoever has decided that.
    pub fn leaves(&self) -> bool {
        self.deleting.is_some() || self.has_disrupted_taint()
    }

    /// Whether it bears anything of what is written on a node that leaves: the disrupted taint, or
    /// what stands beside it and somebody who took the taint has left.
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
    fn an_instance_is_what_a_provider_id_ends_in() {
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
            let node = Node {
                provider_id: provider_id.to_owned(),
                ..Node::default()
            };
            assert_eq!(node.instance_id(), expect, "{provider_id:?}");
        }
    }
}
