//! What a node or a pod on it says against the node's leaving on purpose: every reason has a type.
//! It must not know for which reason the node would leave, but for whether that can wait.
//!
//! Source: spec/disruption.md §1.2, rows 7 and 10 to 12; Cluster Autoscaler's words beside those of
//! Karpenter, and its rules for pools that ask for them.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;

use crate::model::eviction::{AutoscalerRisk, misreads_of_node};
use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::labels::{
    DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, SAFE_TO_EVICT, SCALE_DOWN_DISABLED,
};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Safety;
use crate::state::State;
use crate::state::node_claims::NodeClaim;
use crate::state::pdbs::{PdbIndex, PdbMatch};

/// So many things that cannot be understood are told at once; the rest has its turn when these are
/// mended.
const MISREADS_MAX: usize = 100;

/// What a node or a pod on it says against the node's leaving on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisruptionBlocker {
    /// The node is annotated with this key, `true`.
    Annotated(&'static str),
    /// Another Node, this one, says that it is the same instance.
    SameInstance(NodeName),
    /// It was to leave and could not: it is not tried again before this time.
    Withdrawn(Timestamp),
    /// A pod on it must stay where it is.
    Pod(PodKey, PodBlocker),
}

/// Why a pod must stay where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodBlocker {
    /// It is annotated with this key, `true`.
    Annotated(&'static str),
    /// It is annotated with this key and a duration, which is over at this time; none while it has
    /// not started.
    Until(&'static str, Option<Timestamp>),
    /// It is annotated as not safe to evict.
    NotSafe,
    /// The disruption budget that covers it allows no disruption now.
    Budget {
        /// The budget's name.
        pdb: String,
        /// How many pods of it are healthy, and how many have to be.
        healthy: (i64, i64),
    },
    /// The disruption budget that covers it never allows any.
    BudgetForEver(String),
    /// Two disruption budgets or more cover it: the API evicts no such pod.
    Budgets(String, String),
    /// Nobody would make it anew.
    NotReplicated,
    /// It belongs to the system, and no disruption budget covers it.
    System,
    /// What is in this volume would be lost.
    LocalVolume(String),
}

impl PodBlocker {
    fn of_cover(cover: PdbMatch<'_>, pod: &Pod) -> Option<Self> {
        let name = |key: &ObjectKey| key.name.clone();
        cover.keeps(pod).then(|| match cover {
            PdbMatch::Many(one, other) => Self::Budgets(name(&one.key), name(&other.key)),
            PdbMatch::One(pdb) if pdb.blocks_for_ever() => Self::BudgetForEver(name(&pdb.key)),
            PdbMatch::One(pdb) => Self::Budget {
                pdb: name(&pdb.key),
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

impl fmt::Display for PodBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotated(key) => write!(f, "is annotated {key}=true"),
            Self::Until(key, Some(until)) => write!(f, "is protected until {until} by {key}"),
            Self::Until(key, None) => write!(f, "has not started and is protected by {key}"),
            Self::NotSafe => write!(f, "is annotated {SAFE_TO_EVICT}=false"),
            Self::Budget { pdb, healthy } => {
                let (healthy, wanted) = healthy;
                write!(
                    f,
                    "is covered by disruption budget {pdb}, which allows no disruption now \
                     ({healthy} pods are healthy, {wanted} have to be)"
                )
            }
            Self::BudgetForEver(pdb) => write!(
                f,
                "is covered by disruption budget {pdb}, which never allows any disruption"
            ),
            Self::Budgets(one, other) => write!(
                f,
                "is covered by disruption budgets {one} and {other}: the API evicts no pod of two"
            ),
            Self::NotReplicated => f.write_str("has no controller that would make it anew"),
            Self::System => f.write_str("is in kube-system and no disruption budget covers it"),
            Self::LocalVolume(volume) => write!(f, "would lose what is in its volume {volume}"),
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
            Self::Pod(_, hold) => hold.code(),
        }
    }

    /// Whether it stands back where a node may take its time to leave and has a termination grace
    /// period, after which its pods go whatever they say: what pods say does, what is said of the
    /// node itself does not. Source: spec/disruption.md §1.2.
    pub fn yields_to_grace(&self) -> bool {
        matches!(self, Self::Pod(..))
    }

    /// Whether it is likely to be over soon by itself: an eviction that is refused for it is tried
    /// again. It keeps a node from being chosen, not one that is leaving already.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Pod(_, PodBlocker::Budget { .. }))
    }

    /// When it is over by itself, where that is known.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Withdrawn(until) | Self::Pod(_, PodBlocker::Until(_, Some(until))) => {
                Some(*until)
            }
            _ => None,
        }
    }

    /// The pod that says it.
    pub fn pod(&self) -> Option<&PodKey> {
        match self {
            Self::Pod(pod, _) => Some(pod),
            Self::Annotated(_) | Self::SameInstance(_) | Self::Withdrawn(_) => None,
        }
    }
}

impl fmt::Display for DisruptionBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotated(key) => write!(f, "the node is annotated {key}=true"),
            Self::SameInstance(other) => write!(
                f,
                "node {other} has the same providerID: which of them is the instance is not known"
            ),
            Self::Withdrawn(until) => write!(f, "it was to leave and could not; again at {until}"),
            Self::Pod(pod, hold) => write!(f, "pod {pod} {hold}"),
        }
    }
}

/// Something that somebody wrote and nobody can read: it counts for nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvalidInput {
    /// What it is about, such as `pod default/web-0`.
    pub of: String,
    /// What is wrong with it.
    pub why: String,
}

impl InvalidInput {
    fn new(of: String, why: String) -> Self {
        Self { of, why }
    }
}

impl State {
    /// Everything that a node and its pods say against its leaving on purpose: first the node, then
    /// the pods by key, each with one thing.
    pub fn blockers<'a>(
        &'a self,
        node: &'a Node,
        claim: Option<&NodeClaim>,
        now: Timestamp,
    ) -> impl Iterator<Item = DisruptionBlocker> + use<'a> {
        let safety = self.safety_of(node);
        let pods = self.objects.pods_on(node.name.as_str());
        let pods = pods.filter_map(move |pod| {
            let hold = self.hold(pod, safety, self.objects.cover(pod), now)?;
            Some(DisruptionBlocker::Pod(pod.key.clone(), hold))
        });
        let own = self.blocker_of_node(node, claim, now);
        own.into_iter().chain(pods)
    }

    /// The first of them, found with what is known of all budgets at once.
    pub(super) fn first_blocker(
        &self,
        node: &Node,
        claim: Option<&NodeClaim>,
        shields: &PdbIndex<'_>,
        now: Timestamp,
    ) -> Option<DisruptionBlocker> {
        if let Some(own) = self.blocker_of_node(node, claim, now) {
            return Some(own);
        }
        let stake = self.objects.stake(node.name.as_str());
        let safety = self.safety_of(node);
        let feared = safety == Safety::Conservative && stake.is_risky();
        // Most nodes have no such pod, and none of their pods is looked at.
        if !stake.is_guarded() && !feared && !shields.are_over(&node.name) {
            return None;
        }
        let mut pods = self.objects.pods_on(node.name.as_str());
        pods.find_map(|pod| {
            let hold = self.hold(pod, safety, shields.cover(pod), now)?;
            Some(DisruptionBlocker::Pod(pod.key.clone(), hold))
        })
    }

    /// What is said of the node itself.
    fn blocker_of_node(
        &self,
        node: &Node,
        claim: Option<&NodeClaim>,
        now: Timestamp,
    ) -> Option<DisruptionBlocker> {
        const KEYS: [&str; 3] = [DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, SCALE_DOWN_DISABLED];
        if let Some(other) = self.objects.node_instances.other_of(node) {
            return Some(DisruptionBlocker::SameInstance(other.clone()));
        }
        let says = |key: &&str| node.annotations.get(*key).is_some_and(|own| own == "true");
        if let Some(key) = KEYS.into_iter().find(says) {
            return Some(DisruptionBlocker::Annotated(key));
        }
        let (until, _) = claim?.withdrawn?;
        (until > now).then_some(DisruptionBlocker::Withdrawn(until))
    }

    fn safety_of(&self, node: &Node) -> Safety {
        let pool = node.pool();
        let pool = pool.and_then(|name| self.cluster.pool(name.as_str()));
        pool.map_or(Safety::default(), |own| own.disruption.safety)
    }

    /// Why a pod must stay where it is, if it must. `cover` has the budgets that may keep it.
    fn hold(
        &self,
        pod: &Pod,
        safety: Safety,
        cover: Option<PdbMatch<'_>>,
        now: Timestamp,
    ) -> Option<PodBlocker> {
        if let Some(own) = pod.protection(now) {
            let until = |lasts| pod.started.and_then(|at| at.checked_add(lasts).ok());
            return Some(match own.lasts {
                None => PodBlocker::Annotated(own.key),
                Some(lasts) => PodBlocker::Until(own.key, until(lasts)),
            });
        }
        if pod.is_unsafe_to_evict() {
            return Some(PodBlocker::NotSafe);
        }
        let evictable = pod.is_evictable(now);
        if let Some(own) = cover.filter(|_| evictable) {
            let hold = PodBlocker::of_cover(own, pod);
            if hold.is_some() {
                return hold;
            }
        }
        if safety == Safety::Standard {
            return None;
        }
        match pod.risk()? {
            AutoscalerRisk::NotReplicated => Some(PodBlocker::NotReplicated),
            AutoscalerRisk::Volume(volume) => Some(PodBlocker::LocalVolume(volume.to_owned())),
            AutoscalerRisk::System => self
                .objects
                .cover(pod)
                .is_none()
                .then_some(PodBlocker::System),
        }
    }

    /// What nodes, their pods and disruption budgets say that cannot be understood, as far as it
    /// would count where a node leaves.
    pub(super) fn misreads<'a>(
        &'a self,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> BTreeSet<InvalidInput> {
        let pdbs = self.objects.pdbs.values();
        let pdbs = pdbs.flat_map(|pdb| {
            let told = pdb.defects.iter();
            told.map(|why| InvalidInput::new(format!("disruption budget {}", pdb.key), why.clone()))
        });
        let nodes = nodes.flat_map(|node| self.misreads_on(node));
        let mut all = pdbs.chain(nodes);
        let mut told: BTreeSet<InvalidInput> = all.by_ref().take(MISREADS_MAX).collect();
        if all.next().is_some() {
            let why = format!("says more than {MISREADS_MAX} things like these");
            told.insert(InvalidInput::new("the cluster".to_owned(), why));
        }
        told
    }

    /// What one node and its pods say that cannot be understood.
    pub fn misreads_on<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = InvalidInput> + 'a {
        let own = misreads_of_node(&node.annotations);
        let own = own.map(|why| InvalidInput::new(format!("node {}", node.name), why));
        let odd = self.objects.stake(node.name.as_str()).is_odd();
        let pods = odd.then(|| self.objects.pods_on(node.name.as_str()));
        own.chain(pods.into_iter().flatten().flat_map(|pod| {
            let all = pod.misreads();
            all.map(|why| InvalidInput::new(format!("pod {}", pod.key), why))
        }))
    }
}
