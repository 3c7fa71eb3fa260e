//! Disruption blockers of a node and of the pods on it.
//!
//! Source: spec/disruption.md §1.2, rows 7 and 10 to 12. Annotations of Cluster Autoscaler are
//! supported in addition to those of Karpenter, as are its eviction rules for pools that enable
//! them.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use thiserror::Error;

use crate::model::eviction::{AutoscalerRisk, misreads_of_node};
use crate::model::id::{NodeName, PodKey};
use crate::model::labels::{
    DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, SAFE_TO_EVICT, SCALE_DOWN_DISABLED,
};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Safety;
use crate::state::State;
use crate::state::node_claims::NodeClaim;
use crate::state::pdbs::{PdbIndex, PdbMatch};

/// Maximum number of reported invalid values. Further values are reported after these are fixed.
const MISREADS_MAX: usize = 100;

/// A blocker of voluntary disruption on a node or its pods.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DisruptionBlocker {
    /// The node has an annotation with this key and the value `true`.
    #[error("the node is annotated {0}=true")]
    Annotated(&'static str),
    /// This other Node has the same providerID.
    #[error("node {0} has the same providerID; only one of them can be the instance")]
    SameInstance(NodeName),
    /// The disruption of the node was cancelled, and is not attempted again before this time.
    #[error("its disruption was canceled; next attempt at {0}")]
    Withdrawn(Timestamp),
    /// A pod on the node blocks disruption.
    #[error("pod {0} {1}")]
    Pod(PodKey, PodBlocker),
}

/// Why a pod blocks the disruption of its node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PodBlocker {
    /// The pod has an annotation with this key and the value `true`.
    #[error("is annotated {0}=true")]
    Annotated(&'static str),
    /// The pod has an annotation with this key and a duration, which ends at this time. `None` if
    /// the pod has not started.
    #[error(fmt = write_protection)]
    Until(&'static str, Option<Timestamp>),
    /// The pod has an annotation that it is not safe to evict.
    #[error("is annotated {SAFE_TO_EVICT}=false")]
    NotSafe,
    /// The PodDisruptionBudget of the pod allows no disruption now.
    #[error(
        "is covered by PodDisruptionBudget {pdb}, which allows no disruption now ({} pods are \
         healthy, {} must be)",
        .healthy.0, .healthy.1
    )]
    Budget {
        /// The name of the PodDisruptionBudget.
        pdb: String,
        /// Number of healthy pods, and of required healthy pods.
        healthy: (i64, i64),
    },
    /// The PodDisruptionBudget of the pod never allows a disruption.
    #[error("is covered by PodDisruptionBudget {0}, which never allows any disruption")]
    BudgetForEver(String),
    /// Several PodDisruptionBudgets cover the pod, so the API server rejects its eviction.
    #[error(
        "is covered by PodDisruptionBudgets {0} and {1}: Kubernetes does not evict a pod that is \
         covered by more than one"
    )]
    Budgets(String, String),
    /// No controller would recreate the pod.
    #[error("has no controller that would recreate it")]
    NotReplicated,
    /// The pod is in kube-system, and no PodDisruptionBudget covers it.
    #[error("is in kube-system and no PodDisruptionBudget covers it")]
    System,
    /// The data in this volume would be lost.
    #[error("would lose the data in its volume {0}")]
    LocalVolume(String),
}

fn write_protection(
    key: &str,
    until: &Option<Timestamp>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match until {
        Some(until) => write!(f, "is protected by {key} until {until}"),
        None => write!(f, "has not started and is protected by {key}"),
    }
}

impl PodBlocker {
    fn from_pdb_match(pdbs: PdbMatch<'_>, pod: &Pod) -> Option<Self> {
        pdbs.blocks_eviction(pod).then(|| match pdbs {
            PdbMatch::Many(one, other) => {
                Self::Budgets(one.key.name.clone(), other.key.name.clone())
            }
            PdbMatch::One(pdb) if pdb.blocks_permanently() => {
                Self::BudgetForEver(pdb.key.name.clone())
            }
            PdbMatch::One(pdb) => Self::Budget {
                pdb: pdb.key.name.clone(),
                healthy: (pdb.current_healthy, pdb.desired_healthy),
            },
        })
    }

    /// The spelling in JSON, logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Annotated(_) => "pod_do_not_disrupt",
            Self::Until(..) => "pod_do_not_disrupt_until",
            Self::NotSafe => "pod_not_safe_to_evict",
            Self::Budget { .. } => "pod_disruption_budget",
            Self::BudgetForEver(_) => "pod_disruption_budget_for_ever",
            Self::Budgets(..) => "pod_disruption_budgets",
            Self::NotReplicated => "pod_not_replicated",
            Self::System => "pod_of_system",
            Self::LocalVolume(_) => "pod_local_volume",
        }
    }
}

impl DisruptionBlocker {
    /// The spelling in JSON, logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Annotated(SCALE_DOWN_DISABLED) => "scale_down_disabled",
            Self::Annotated(_) => "do_not_disrupt",
            Self::SameInstance(_) => "same_instance",
            Self::Withdrawn(_) => "withdrawn",
            Self::Pod(_, blocker) => blocker.code(),
        }
    }

    /// Returns whether a termination grace period overrides the blocker. Blockers of pods are
    /// overridden; blockers of the node are not. Source: spec/disruption.md §1.2.
    pub fn yields_to_grace(&self) -> bool {
        matches!(self, Self::Pod(..))
    }

    /// Returns whether the blocker likely ends soon by itself. Such a blocker prevents the choice
    /// of a node, but not an ongoing disruption, because a rejected eviction is retried.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Pod(_, PodBlocker::Budget { .. }))
    }

    /// Returns when the blocker ends by itself, if known.
    pub fn ends_at(&self) -> Option<Timestamp> {
        match self {
            Self::Withdrawn(until) | Self::Pod(_, PodBlocker::Until(_, Some(until))) => {
                Some(*until)
            }
            _ => None,
        }
    }

    /// Returns the blocking pod.
    pub fn blocking_pod(&self) -> Option<&PodKey> {
        match self {
            Self::Pod(pod, _) => Some(pod),
            Self::Annotated(_) | Self::SameInstance(_) | Self::Withdrawn(_) => None,
        }
    }
}

/// An invalid value set by a user. It is ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvalidInput {
    /// The object, such as `pod default/web-0`.
    pub of: String,
    /// The problem.
    pub why: String,
}

impl InvalidInput {
    fn new(of: String, why: String) -> Self {
        Self { of, why }
    }
}

impl State {
    /// Returns all blockers of a node and its pods: first the node, then one per pod, by key.
    pub fn disruption_blockers<'a>(
        &'a self,
        node: &'a Node,
        claim: Option<&NodeClaim>,
        now: Timestamp,
    ) -> impl Iterator<Item = DisruptionBlocker> + use<'a> {
        let safety = self.safety_of(node);
        let pods = self.objects.pods_on(node.name.as_str());
        let pods = pods.filter_map(move |pod| {
            let blocker = self.pod_blocker(pod, safety, self.objects.pdb_match(pod), now)?;
            Some(DisruptionBlocker::Pod(pod.key.clone(), blocker))
        });
        self.blocker_of_node(node, claim, now).into_iter().chain(pods)
    }

    /// Returns the first blocker, using the index of all PodDisruptionBudgets.
    pub(super) fn first_blocker(
        &self,
        node: &Node,
        claim: Option<&NodeClaim>,
        pdb_index: &PdbIndex<'_>,
        now: Timestamp,
    ) -> Option<DisruptionBlocker> {
        if let Some(blocker) = self.blocker_of_node(node, claim, now) {
            return Some(blocker);
        }
        let totals = self.objects.disruption_cost_of(node.name.as_str());
        let safety = self.safety_of(node);
        let feared = safety == Safety::Conservative && totals.risky > 0;
        // Most nodes have no such pod, so their pods need no check.
        if totals.guarded == 0 && !feared && !pdb_index.may_block_eviction_on(&node.name) {
            return None;
        }
        self.objects.pods_on(node.name.as_str()).find_map(|pod| {
            let blocker = self.pod_blocker(pod, safety, pdb_index.pdb_match(pod), now)?;
            Some(DisruptionBlocker::Pod(pod.key.clone(), blocker))
        })
    }

    /// Returns the blocker of the node itself.
    fn blocker_of_node(
        &self,
        node: &Node,
        claim: Option<&NodeClaim>,
        now: Timestamp,
    ) -> Option<DisruptionBlocker> {
        const KEYS: [&str; 3] = [DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, SCALE_DOWN_DISABLED];
        if let Some(other) = self.objects.node_instances.other_node_of(node) {
            return Some(DisruptionBlocker::SameInstance(other.clone()));
        }
        if let Some(key) = KEYS
            .into_iter()
            .find(|key| node.annotations.get(*key).is_some_and(|annotation| annotation == "true"))
        {
            return Some(DisruptionBlocker::Annotated(key));
        }
        let (until, _) = claim?.withdrawn?;
        (until > now).then_some(DisruptionBlocker::Withdrawn(until))
    }

    fn safety_of(&self, node: &Node) -> Safety {
        let pool = node.pool_name();
        let pool = pool.and_then(|name| self.cluster.pool(name.as_str()));
        pool.map_or(Safety::default(), |pool| pool.disruption.safety)
    }

    /// Returns the blocker of a pod. `pdbs` is its PodDisruptionBudget match.
    fn pod_blocker(
        &self,
        pod: &Pod,
        safety: Safety,
        pdbs: Option<PdbMatch<'_>>,
        now: Timestamp,
    ) -> Option<PodBlocker> {
        if let Some(protection) = pod.active_protection(now) {
            return Some(match protection.lasts {
                None => PodBlocker::Annotated(protection.key),
                Some(lasts) => {
                    let until = pod.started.and_then(|at| at.checked_add(lasts).ok());
                    PodBlocker::Until(protection.key, until)
                }
            });
        }
        if pod.is_unsafe_to_evict() {
            return Some(PodBlocker::NotSafe);
        }
        let evictable = pod.is_evictable(now);
        if let Some(pdbs) = pdbs.filter(|_| evictable) {
            let blocker = PodBlocker::from_pdb_match(pdbs, pod);
            if blocker.is_some() {
                return blocker;
            }
        }
        if safety == Safety::Standard {
            return None;
        }
        match pod.autoscaler_risk()? {
            AutoscalerRisk::NotReplicated => Some(PodBlocker::NotReplicated),
            AutoscalerRisk::Volume(volume) => Some(PodBlocker::LocalVolume(volume.to_owned())),
            AutoscalerRisk::System => {
                self.objects.pdb_match(pod).is_none().then_some(PodBlocker::System)
            }
        }
    }

    /// Returns invalid values of nodes, their pods and PodDisruptionBudgets that would affect
    /// disruption.
    pub(super) fn invalid_inputs<'a>(
        &'a self,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> BTreeSet<InvalidInput> {
        let pdbs = self.objects.pdbs.values().flat_map(|pdb| {
            pdb.defects.iter().map(|why| {
                InvalidInput::new(format!("PodDisruptionBudget {}", pdb.key), why.clone())
            })
        });
        let mut all = pdbs.chain(nodes.flat_map(|node| self.invalid_inputs_of_node(node)));
        let mut reported: BTreeSet<InvalidInput> = all.by_ref().take(MISREADS_MAX).collect();
        if all.next().is_some() {
            let why = format!("has more than {MISREADS_MAX} invalid values");
            reported.insert(InvalidInput::new("the cluster".to_owned(), why));
        }
        reported
    }

    /// Returns invalid values of one node and its pods.
    pub fn invalid_inputs_of_node<'a>(
        &'a self,
        node: &'a Node,
    ) -> impl Iterator<Item = InvalidInput> + 'a {
        let of_node = misreads_of_node(&node.annotations)
            .map(|why| InvalidInput::new(format!("node {}", node.name), why));
        let odd = self.objects.disruption_cost_of(node.name.as_str()).invalid > 0;
        let pods = odd.then(|| self.objects.pods_on(node.name.as_str()));
        of_node.chain(pods.into_iter().flatten().flat_map(|pod| {
            let values = pod.annotation_misreads();
            values.map(|why| InvalidInput::new(format!("pod {}", pod.key), why))
        }))
    }
}
