//! Pods: only the fields that scheduling and draining need.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::affinity::{Gang, PodTerm, Preferred, TopologySpread};
use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::labels::{Labels, TAINT_DISRUPTED};
use crate::model::named_enum::named_enum;
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::taint::{Effect, Taint, Toleration};

/// A pod is stuck if it still exists this long after its grace period.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(1);

named_enum! {
    /// The phase of a pod. The names are those of Kubernetes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum PodPhase {
        /// Not running yet.
        #[default]
        Pending => "Pending",
        /// Running.
        Running => "Running",
        /// Terminated successfully.
        Succeeded => "Succeeded",
        /// Terminated with an error.
        Failed => "Failed",
    }
}

/// The owner that controls a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Kind, such as `ReplicaSet`, `DaemonSet`, `StatefulSet`, `Job` or `Node`.
    pub kind: String,
    /// Name within the pod's namespace.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// A pod as the cluster reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// UID. A recreated pod with the same name has a different UID.
    pub uid: String,
    /// Resource version as a number, 0 if it is not a number. The scheduler updates each pod that
    /// it cannot schedule, and retries the pods with the oldest update first.
    pub version: u64,
    /// When the pod was created.
    pub created: Option<Timestamp>,
    /// When the pod started to run on its node.
    pub started: Option<Timestamp>,
    /// When the deletion of the pod was requested.
    pub deleting: Option<Timestamp>,
    /// Deadline of its termination, once its deletion was requested. If it is unknown, the pod's
    /// own grace period applies.
    pub gone_by: Option<Timestamp>,
    /// When Outrigger first saw the deletion request, by its own clock.
    pub deletion_seen: Option<Timestamp>,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Labels.
    pub labels: Labels,
    /// The annotations that Outrigger reads, such as do-not-disrupt.
    pub annotations: Labels,
    /// The owner that controls the pod.
    pub owner: Option<Owner>,
    /// The node to which the pod is bound.
    pub node: Option<NodeName>,
    /// The node nominated for the pod, by the scheduler after preemption or by Outrigger.
    pub nominated_node: Option<NodeName>,
    /// Phase.
    pub phase: PodPhase,
    /// Whether the scheduler has reported the pod as unschedulable (`PodScheduled`,
    /// `Unschedulable`).
    pub unschedulable: bool,
    /// Its `Ready` condition. `None` if unknown or missing.
    pub ready: Option<bool>,
    /// Priority.
    pub priority: i32,
    /// Name of the priority class.
    pub priority_class: String,
    /// Effective requests as the scheduler counts them, including `pods: 1`.
    pub requests: Resources,
    /// Node selector.
    pub node_selector: Labels,
    /// Required node affinity. The terms are alternatives. Empty means none. Requirements on the
    /// node's name have the key [`NODE_NAME`](crate::model::labels::NODE_NAME).
    pub node_affinity: Vec<Requirements>,
    /// Preferred node affinity.
    pub preferred_nodes: Vec<Preferred<Requirements>>,
    /// Required pod affinity.
    pub affinity: Vec<PodTerm>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<PodTerm>,
    /// Preferred pod affinity.
    pub preferred_affinity: Vec<Preferred<PodTerm>>,
    /// Preferred pod anti-affinity.
    pub preferred_anti_affinity: Vec<Preferred<PodTerm>>,
    /// Topology spread constraints, with their selectors.
    pub spread: Vec<TopologySpread>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Host ports: protocol, address (empty for all) and port.
    pub host_ports: BTreeSet<(String, String, u16)>,
    /// Persistent volume claims in the pod's namespace that it mounts, including those of generic
    /// ephemeral volumes.
    pub volume_claims: Vec<String>,
    /// Names of its volumes whose data is lost when the pod moves: `emptyDir` on disk, `hostPath`.
    pub local_volumes: Vec<String>,
    /// Whether the pod has resource claims (dynamic resource allocation).
    pub has_resource_claims: bool,
    /// Whether scheduling gates block its scheduling.
    pub is_gated: bool,
    /// Another reason why the scheduler has not attempted to schedule the pod, or has failed to.
    pub held_back: Option<HeldBack>,
    /// The scheduler that schedules the pod. Empty for the default scheduler.
    pub scheduler: String,
    /// The gang of pods with which the pod must be scheduled.
    pub gang: Option<Gang>,
    /// Termination grace period in seconds.
    pub grace_seconds: i64,
    /// Descriptions of its invalid fields, each a sentence fragment. Such a pod is never scheduled.
    pub defects: Vec<String>,
}

/// Why the scheduler has no result for a pod. Neither reason means that the pod is unschedulable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBack {
    /// The pod belongs to this PodGroup (`spec.schedulingGroup`, Kubernetes 1.37). The scheduler
    /// attempts it when enough pods of the group exist, and writes no condition before that.
    Group(String),
    /// The reason of the condition `PodScheduled`, such as `SchedulerError`.
    Reason(String),
}

impl Pod {
    /// Returns whether the pod has terminated.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Returns whether both pods have equal constraints, apart from pod affinity and spread.
    pub fn is_like(&self, other: &Self) -> bool {
        self.requests == other.requests
            && self.labels == other.labels
            && self.node_selector == other.node_selector
            && self.node_affinity == other.node_affinity
            && self.tolerations == other.tolerations
            && self.volume_claims == other.volume_claims
            && self.host_ports == other.host_ports
    }

    /// Returns whether a DaemonSet controls the pod. Such a pod exists as long as its node.
    pub fn is_daemon(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.kind == "DaemonSet")
    }

    /// Returns whether the pod is the mirror of a static pod, which the kubelet owns.
    pub fn is_mirror(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.kind == "Node")
    }

    /// Namespace and name of its gang.
    pub fn gang_key(&self) -> Option<(&str, &str)> {
        let gang = self.gang.as_ref()?;
        Some((&self.key.namespace, &gang.name))
    }

    /// Returns whether the pod needs capacity that Outrigger may provide. Source:
    /// spec/scheduling.md §1.3.
    pub fn is_provisionable(&self) -> bool {
        self.is_waiting() && self.nominated_node.is_none()
    }

    /// Returns whether the pod is pending: reported as unschedulable, with or without a nominated
    /// node.
    pub fn is_waiting(&self) -> bool {
        self.unschedulable
            && self.node.is_none()
            && self.deleting.is_none()
            && !self.is_terminal()
            && !self.is_daemon()
            && !self.is_mirror()
    }

    /// Returns whether the scheduler has not attempted the pod yet: it has neither a node nor a
    /// result. Pods with volumes or resource claims are excluded: they may wait for these on a node
    /// that the scheduler has selected.
    pub fn is_untried(&self) -> bool {
        !self.unschedulable
            && self.nominated_node.is_none()
            && self.volume_claims.is_empty()
            && !self.has_resource_claims
            && !self.is_gated
            && self.held_back.is_none()
            && self.node.is_none()
            && self.deleting.is_none()
            && !self.is_terminal()
            && !self.is_daemon()
            && !self.is_mirror()
    }

    /// Returns whether the pod occupies its node: it is neither a daemon, nor a mirror pod, nor
    /// terminal.
    pub fn occupies_node(&self) -> bool {
        self.node.is_some() && !self.is_terminal() && !self.is_daemon() && !self.is_mirror()
    }

    /// The time at which the pod will have terminated, if its deletion was requested. The grace
    /// period starts when Outrigger sees the request. The clock of the API server may differ by
    /// more than the remaining time.
    pub fn ends_by(&self) -> Option<Timestamp> {
        let deleted = self.deleting?;
        let grace = SignedDuration::from_secs(self.grace_seconds);
        let grace = self.gone_by.map_or(grace, |by| by.duration_since(deleted));
        let from = self.deletion_seen.unwrap_or(deleted);
        Some(from.checked_add(grace).unwrap_or(from))
    }

    /// Returns whether the pod still exists a minute after its termination deadline.
    pub fn is_stuck(&self, now: Timestamp) -> bool {
        self.ends_by()
            .and_then(|end| end.checked_add(STUCK_AFTER).ok())
            .is_some_and(|until| until < now)
    }

    /// Returns whether the pod runs until its node terminates and is never evicted. Source:
    /// spec/disruption.md §1.3 (IsDrainable).
    pub fn runs_until_termination(&self, now: Timestamp) -> bool {
        self.tolerates_disruption() || self.is_mirror() || self.is_stuck(now)
    }

    /// Returns whether the pod tolerates the disrupted taint.
    pub fn tolerates_disruption(&self) -> bool {
        let disrupted = Taint::new(TAINT_DISRUPTED, Effect::NoSchedule);
        let mut tolerations = self.tolerations.iter();
        tolerations.any(|toleration| toleration.tolerates(&disrupted))
    }

    /// Returns whether a drain waits for the pod. This includes daemons, unless they tolerate the
    /// disrupted taint. Source: spec/disruption.md §1.3 (IsWaitingEviction), §4.4.
    pub fn holds_drain(&self, now: Timestamp) -> bool {
        self.node.is_some() && !self.is_terminal() && !self.runs_until_termination(now)
    }

    /// The drain order of the pod, starting at 0: critical pods are evicted after others, and
    /// daemons after other pods of the same criticality. Source: spec/disruption.md §4.4.
    pub fn drain_order(&self) -> u8 {
        2 * u8::from(self.is_critical()) + u8::from(self.is_daemon())
    }

    /// Returns whether the pod is critical to the cluster. Critical pods are evicted last.
    pub fn is_critical(&self) -> bool {
        matches!(self.priority_class.as_str(), "system-cluster-critical" | "system-node-critical")
    }
}

/// A DaemonSet: overhead on every node that it matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSet {
    /// Namespace and name.
    pub key: ObjectKey,
    /// A pod created from its template, never bound.
    pub template: Pod,
}
