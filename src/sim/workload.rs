//! Workloads of the simulated cluster over time.

use jiff::{SignedDuration, Timestamp};

use crate::model::affinity::TopologySpread;
use crate::model::id::ObjectKey;
use crate::model::labels::{DO_NOT_DISRUPT, Labels, ZONE};
use crate::model::pod::{Owner, Pod};
use crate::model::quantity::Resources;
use crate::model::requirement::{Operator, Requirement, Requirements};
use crate::model::selector::Selector;
use crate::model::taint::Toleration;

/// Kind of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// Keeps a number of replicas running.
    Deployment,
    /// Keeps a number of replicas running, each with a stable name.
    StatefulSet,
    /// Runs each replica once, until it completes.
    Job {
        /// Time until a replica completes.
        run_for: SignedDuration,
    },
    /// Runs one replica on every matching node.
    DaemonSet,
}

/// Node affinity term of a workload, in a separate type for the simulated scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Label key.
    pub key: String,
    /// Comparison operator.
    pub operator: Operator,
    /// Values to compare with.
    pub values: Vec<String>,
}

/// Disruption budget of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimPdb {
    /// At least this number of pods must be healthy.
    MinAvailable(u32),
    /// At most this number of pods may be disrupted.
    MaxUnavailable(u32),
    /// At least this percentage of the desired pods must be healthy, rounded up.
    MinAvailableShare(u32),
    /// At most this percentage of the desired pods may be disrupted, rounded up.
    MaxUnavailableShare(u32),
}

impl SimPdb {
    /// Returns true if the budget never allows a disruption, for any number of pods.
    pub fn blocks_permanently(self) -> bool {
        match self {
            Self::MinAvailable(_) => false,
            Self::MinAvailableShare(share) => share >= 100,
            Self::MaxUnavailable(limit) | Self::MaxUnavailableShare(limit) => limit == 0,
        }
    }
}

/// A change of the number of replicas. For a job, the number of additional runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleStep {
    /// Time of the change.
    pub at: Timestamp,
    /// Number of replicas from then on.
    pub replicas: u32,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name, unique in a scenario.
    pub name: String,
    /// Kind of the workload.
    pub owns: WorkloadKind,
    /// Requests of one pod, without `pods: 1`.
    pub requests: Resources,
    /// Replicas over time, in order. Empty for a DaemonSet.
    pub steps: Vec<ScaleStep>,
    /// Its disruption budget.
    pub budget: Option<SimPdb>,
    /// Required labels of the node.
    pub node_selector: Labels,
    /// Further requirements on the labels of the node, all of which must match.
    pub wants: Vec<Want>,
    /// Maximum skew between zones. `None` means no topology spread.
    pub max_skew: Option<u32>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Priority.
    pub priority: i32,
    /// Time that its pods need to terminate.
    pub grace: SignedDuration,
    /// Times at which the template of a Deployment changes and its pods are replaced.
    pub rollouts: Vec<Timestamp>,
    /// Value of the do-not-disrupt annotation of its pods: `true`, or a duration.
    pub do_not_disrupt: Option<String>,
}

impl Workload {
    /// Creates a workload without requests and replicas.
    pub fn new(name: &str, owns: WorkloadKind) -> Self {
        Self {
            name: name.to_owned(),
            owns,
            requests: Resources::default(),
            steps: Vec::new(),
            budget: None,
            node_selector: Labels::new(),
            wants: Vec::new(),
            max_skew: None,
            tolerations: Vec::new(),
            priority: 0,
            grace: SignedDuration::from_secs(30),
            rollouts: Vec::new(),
            do_not_disrupt: None,
        }
    }

    /// The namespace of its pods.
    pub fn namespace(&self) -> &'static str {
        if self.owns == WorkloadKind::DaemonSet { "kube-system" } else { "default" }
    }

    /// Namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name.as_str())
    }

    /// Its node affinity in the type of `model`: no term, or one.
    pub fn node_affinity(&self) -> Vec<Requirements> {
        let mut term = Requirements::default();
        for want in &self.wants {
            let requirement = Requirement::from_operator(want.operator, &want.values)
                .unwrap_or_else(|_| Requirement::does_not_exist());
            term.add(&want.key, requirement);
        }
        if term.is_empty() { Vec::new() } else { vec![term] }
    }

    /// Returns a pod from its template, without name and UID.
    pub fn pod_template(&self) -> Pod {
        let kind = match self.owns {
            WorkloadKind::Deployment => "ReplicaSet",
            WorkloadKind::StatefulSet => "StatefulSet",
            WorkloadKind::Job { .. } => "Job",
            WorkloadKind::DaemonSet => "DaemonSet",
        };
        let mut requests = self.requests.clone();
        requests.pods = 1;
        let labels = Labels::from([("app".to_owned(), self.name.clone())]);
        let spread = self.max_skew.map(|max_skew| TopologySpread {
            selector: Some(Selector::from_labels(&labels)),
            topology_key: ZONE.to_owned(),
            max_skew,
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
            is_hard: true,
        });
        let do_not_disrupt = self.do_not_disrupt.clone();
        Pod {
            key: self.key(),
            labels,
            annotations: do_not_disrupt
                .map(|value| (DO_NOT_DISRUPT.to_owned(), value))
                .into_iter()
                .collect(),
            owner: Some(Owner {
                kind: kind.to_owned(),
                name: self.name.clone(),
                uid: format!("owner-{}", self.name),
            }),
            requests,
            node_selector: self.node_selector.clone(),
            node_affinity: self.node_affinity(),
            spread: spread.into_iter().collect(),
            tolerations: self.tolerations.clone(),
            priority: self.priority,
            grace_seconds: self.grace.as_secs(),
            ..Pod::default()
        }
    }
}
