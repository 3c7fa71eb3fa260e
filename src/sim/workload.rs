//! What runs in the simulated cluster: workloads over time, in words of their own.
//! It must not know how they are placed.

use jiff::{SignedDuration, Timestamp};

use crate::model::affinity::TopologySpread;
use crate::model::id::ObjectKey;
use crate::model::labels::{DO_NOT_DISRUPT, Labels, ZONE};
use crate::model::pod::{Owner, Pod};
use crate::model::quantity::Resources;
use crate::model::requirement::{Operator, Requirement, Requirements};
use crate::model::selector::Selector;
use crate::model::taint::Toleration;

/// What kind of owner a workload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// Keeps a number of replicas running.
    Deployment,
    /// Keeps a number of replicas running, each of a name of its own, which its successor bears.
    StatefulSet,
    /// Runs every replica once, to its end.
    Job {
        /// How long one takes.
        run_for: SignedDuration,
    },
    /// Runs one replica on every node that it fits.
    DaemonSet,
}

/// What a label must be: the simulated scheduler's own words for a node affinity term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The label.
    pub key: String,
    /// How it is compared.
    pub operator: Operator,
    /// With what.
    pub values: Vec<String>,
}

/// How many pods of a workload may be away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimPdb {
    /// At least this many stay healthy.
    MinAvailable(u32),
    /// At most this many are away.
    MaxUnavailable(u32),
    /// At least this share of those asked for stays healthy: per cent, rounded up.
    MinAvailableShare(u32),
    /// At most this share of those asked for is away: per cent, rounded up.
    MaxUnavailableShare(u32),
}

impl SimPdb {
    /// Whether no pod may ever be away, however many there are.
    pub fn never_lets_go(self) -> bool {
        match self {
            Self::MinAvailable(_) => false,
            Self::MinAvailableShare(share) => share >= 100,
            Self::MaxUnavailable(most) | Self::MaxUnavailableShare(most) => most == 0,
        }
    }
}

/// A change of the number of replicas. For a job: that many more to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleStep {
    /// When.
    pub at: Timestamp,
    /// How many from then on.
    pub replicas: u32,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name, unique in a scenario.
    pub name: String,
    /// What kind of owner it is.
    pub owns: WorkloadKind,
    /// Requests of one pod, without `pods: 1`.
    pub requests: Resources,
    /// Replicas over time, in order; a DaemonSet has none.
    pub steps: Vec<ScaleStep>,
    /// Its disruption budget.
    pub budget: Option<SimPdb>,
    /// Labels its node must have.
    pub node_selector: Labels,
    /// What else the labels of its node must be, all of it.
    pub wants: Vec<Want>,
    /// By how many of its pods a zone may lead the emptiest; none where zones do not matter.
    pub max_skew: Option<u32>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Priority.
    pub priority: i32,
    /// How long its pods take to end.
    pub grace: SignedDuration,
    /// When its template changes, so that its pods are replaced by others; of a Deployment alone.
    pub rollouts: Vec<Timestamp>,
    /// What its pods are annotated with: `true`, or for how long they must not be disrupted.
    pub do_not_disrupt: Option<String>,
}

impl Workload {
    /// A workload of this name and kind that asks for nothing and has no replicas.
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
        if self.owns == WorkloadKind::DaemonSet {
            "kube-system"
        } else {
            "default"
        }
    }

    /// Namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name.as_str())
    }

    /// Its node affinity as the vocabulary has it: no term, or one.
    pub fn affinity(&self) -> Vec<Requirements> {
        let mut term = Requirements::default();
        for want in &self.wants {
            let requirement = Requirement::from_operator(want.operator, &want.values)
                .unwrap_or_else(|_| Requirement::does_not_exist());
            term.add(&want.key, requirement);
        }
        if term.is_empty() {
            Vec::new()
        } else {
            vec![term]
        }
    }

    /// A pod as its template has it, without name and UID.
    pub fn template(&self) -> Pod {
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
            selector: Some(Selector::of_labels(&labels)),
            topology_key: ZONE.to_owned(),
            max_skew,
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
            is_hard: true,
        });
        let annotation = self.do_not_disrupt.clone();
        let annotation = annotation.map(|value| (DO_NOT_DISRUPT.to_owned(), value));
        Pod {
            key: self.key(),
            labels,
            annotations: annotation.into_iter().collect(),
            owner: Some(Owner {
                kind: kind.to_owned(),
                name: self.name.clone(),
                uid: format!("owner-{}", self.name),
            }),
            requests,
            node_selector: self.node_selector.clone(),
            node_affinity: self.affinity(),
            spread: spread.into_iter().collect(),
            tolerations: self.tolerations.clone(),
            priority: self.priority,
            grace_seconds: self.grace.as_secs(),
            ..Pod::default()
        }
    }
}
