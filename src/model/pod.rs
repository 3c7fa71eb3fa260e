//! A pod: only what placing and draining it need.
//! It must not know the shape of the Kubernetes API.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::affinity::{Gang, PodTerm, Preferred, TopologySpread};
use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::labels::{Labels, TAINT_DISRUPTED};
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::taint::{Effect, Taint, Toleration};

/// A pod is stuck this long after the end of its grace.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// How far a pod's life has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodPhase {
    /// Not running yet.
    #[default]
    Pending,
    /// Running.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
}

impl PodPhase {
    /// The spelling of Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
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
    /// UID: a recreated pod of the same name is another pod.
    pub uid: String,
    /// Its version as a number, 0 where it is none. The scheduler writes on each pod for which it
    /// finds no place, and will look at those first that it wrote on first.
    pub version: u64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When it started to run on its node.
    pub started: Option<Timestamp>,
    /// When its deletion was asked for.
    pub deleting: Option<Timestamp>,
    /// By when it has to have ended, once its deletion was asked for; where that is not known, its
    /// own grace counts.
    pub gone_by: Option<Timestamp>,
    /// When we first saw that its deletion had been asked for, by our own clock.
    pub deletion_seen: Option<Timestamp>,
    /// What keeps it from going once it has ended.
    pub finalizers: Vec<String>,
    /// Labels.
    pub labels: Labels,
    /// The annotations that are read: do-not-disrupt and its kin.
    pub annotations: Labels,
    /// The owner that controls it.
    pub owner: Option<Owner>,
    /// The node it is bound to.
    pub node: Option<NodeName>,
    /// The node nominated for it: by the scheduler after preempting others, or by us.
    pub nominated_node: Option<NodeName>,
    /// Phase.
    pub phase: PodPhase,
    /// Whether the scheduler has said that it fits nowhere (`PodScheduled`, `Unschedulable`).
    pub unschedulable: bool,
    /// What its `Ready` condition says; none where it is unknown or missing.
    pub ready: Option<bool>,
    /// Priority.
    pub priority: i32,
    /// Name of the priority class.
    pub priority_class: String,
    /// Effective requests as the scheduler counts them, `pods: 1` included.
    pub requests: Resources,
    /// Node selector.
    pub node_selector: Labels,
    /// Required node affinity: the terms are alternatives. Empty means none. What a term asks of
    /// the node's name stands under [`NODE_NAME`](crate::model::labels::NODE_NAME).
    pub node_affinity: Vec<Requirements>,
    /// Node affinity it would like.
    pub preferred_nodes: Vec<Preferred<Requirements>>,
    /// Pods it must be near.
    pub affinity: Vec<PodTerm>,
    /// Pods it must be away from.
    pub anti_affinity: Vec<PodTerm>,
    /// Pods it would like to be near.
    pub preferred_affinity: Vec<Preferred<PodTerm>>,
    /// Pods it would like to be away from.
    pub preferred_anti_affinity: Vec<Preferred<PodTerm>>,
    /// How it is spread, with the pods that its constraints select.
    pub spread: Vec<TopologySpread>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Host ports it binds: protocol, address (empty for all) and port.
    pub host_ports: BTreeSet<(String, String, u16)>,
    /// Persistent volume claims it mounts, in its own namespace, those of generic ephemeral volumes
    /// among them.
    pub volume_claims: Vec<String>,
    /// Names of its volumes whose content is lost with its place: `emptyDir` on disk, `hostPath`.
    pub local_volumes: Vec<String>,
    /// Whether it has resource claims (dynamic resource allocation).
    pub has_resource_claims: bool,
    /// Whether scheduling gates keep the scheduler from looking at it.
    pub is_gated: bool,
    /// Why else the scheduler has not looked for a place for it, or has come to nothing.
    pub held_back: Option<HeldBack>,
    /// The scheduler that places it; empty for the default one.
    pub scheduler: String,
    /// The pods with which alone it is of use.
    pub gang: Option<Gang>,
    /// Seconds it is given to end.
    pub grace_seconds: i64,
    /// What cannot be understood about it, each a sentence fragment. Such a pod is never placed.
    pub defects: Vec<String>,
}

/// Why a scheduler has no answer for a pod. Neither says that it fits nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBack {
    /// It is of this PodGroup (`spec.schedulingGroup`, Kubernetes 1.37): the scheduler looks at it
    /// once enough pods of the group are there, and writes no condition before.
    Group(String),
    /// The reason that the condition `PodScheduled` gives, such as `SchedulerError`.
    Reason(String),
}

impl Pod {
    /// Whether it has ended for good.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Whether it can be where the other can be, as far as that is for the two of them to say.
    pub fn is_like(&self, other: &Self) -> bool {
        self.requests == other.requests
            && self.labels == other.labels
            && self.node_selector == other.node_selector
            && self.node_affinity == other.node_affinity
            && self.tolerations == other.tolerations
            && self.volume_claims == other.volume_claims
            && self.host_ports == other.host_ports
    }

    /// Whether a DaemonSet controls it: it comes and goes with its node.
    pub fn is_daemon(&self) -> bool {
        self.owner
            .as_ref()
            .is_some_and(|owner| owner.kind == "DaemonSet")
    }

    /// Whether it is the mirror of a static pod: the kubelet owns it.
    pub fn is_mirror(&self) -> bool {
        self.owner
            .as_ref()
            .is_some_and(|owner| owner.kind == "Node")
    }

    /// Namespace and name of its gang.
    pub fn gang_key(&self) -> Option<(&str, &str)> {
        let gang = self.gang.as_ref()?;
        Some((&self.key.namespace, &gang.name))
    }

    /// Whether it needs capacity that we may provide. Source: spec/scheduling.md §1.3.
    pub fn is_provisionable(&self) -> bool {
        self.is_waiting() && self.nominated_node.is_none()
    }

    /// Whether the scheduler looks for a place for it: one that it makes by preemption, one that we
    /// have named, or none yet.
    pub fn is_waiting(&self) -> bool {
        self.unschedulable
            && self.node.is_none()
            && self.deleting.is_none()
            && !self.is_terminal()
            && !self.is_daemon()
            && !self.is_mirror()
    }

    /// Whether the scheduler has yet to look at it: it has neither a node nor an answer. One with
    /// volumes or devices may be waiting for them, on a node that the scheduler has chosen.
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

    /// Whether its node is of use to it: neither a daemon, nor a mirror, nor ended.
    pub fn occupies_node(&self) -> bool {
        self.node.is_some() && !self.is_terminal() && !self.is_daemon() && !self.is_mirror()
    }

    /// By when it will have ended, if its deletion was asked for: its grace, counted from when we
    /// saw that. The API server's clock may differ from ours by more than a pod has left.
    pub fn ends_by(&self) -> Option<Timestamp> {
        let asked = self.deleting?;
        let own = SignedDuration::from_secs(self.grace_seconds);
        let grace = self.gone_by.map_or(own, |by| by.duration_since(asked));
        let from = self.deletion_seen.unwrap_or(asked);
        Some(from.checked_add(grace).unwrap_or(from))
    }

    /// Whether it should have ended a minute ago and has not.
    pub fn is_stuck(&self, now: Timestamp) -> bool {
        let until = self
            .ends_by()
            .and_then(|at| at.checked_add(STUCK_AFTER).ok());
        until.is_some_and(|at| at < now)
    }

    /// Whether it goes down with its node: nobody moves it. Source: spec/disruption.md §1.3
    /// (IsDrainable).
    pub fn stays_to_the_end(&self, now: Timestamp) -> bool {
        let leaving = Taint::new(TAINT_DISRUPTED, Effect::NoSchedule);
        let tolerates = self.tolerations.iter().any(|own| own.tolerates(&leaving));
        tolerates || self.is_mirror() || self.is_stuck(now)
    }

    /// Whether a drain waits for it: for daemons too, unless they tolerate the taint of leaving
    /// nodes. Source: spec/disruption.md §1.3 (IsWaitingEviction), §4.4.
    pub fn holds_drain(&self, now: Timestamp) -> bool {
        self.node.is_some() && !self.is_terminal() && !self.stays_to_the_end(now)
    }

    /// Whose turn it is when a node is drained, the first being 0: critical pods serve the others,
    /// and daemons those that are none. Source: spec/disruption.md §4.4.
    pub fn turn(&self) -> u8 {
        2 * u8::from(self.is_critical()) + u8::from(self.is_daemon())
    }

    /// Whether this pod is critical to the cluster and leaves a node last.
    pub fn is_critical(&self) -> bool {
        matches!(
            self.priority_class.as_str(),
            "system-cluster-critical" | "system-node-critical"
        )
    }
}

/// A DaemonSet: what every node it fits will have to carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSet {
    /// Namespace and name.
    pub key: ObjectKey,
    /// A pod as its template describes it; never bound.
    pub template: Pod,
}
