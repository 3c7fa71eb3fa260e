//! Finds drifted nodes: their pool or node class would launch them differently now, or their pool
//! no longer exists.
//!
//! Source: spec/disruption.md §3.1. The order is in §1.8; static pools replace one node at a time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::catalog::node_class::ClassCatalog;
use crate::disruption::budgets::Budgets;
use crate::disruption::eligibility::{pool_independent_verdict, retaining_verdict, sweep_verdict};
use crate::disruption::instance_drift::{InstanceDrift, first_difference};
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::cluster::{Cluster, RemovedPools};
use crate::model::instance::CapacityType;
use crate::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, NODE_CLASS_HASH, POOL_HASH, ZONE};
use crate::model::node_class::resolved::ResolvedNodeClass;
use crate::model::pool::{Pool, Reason};
use crate::model::template_hash::{Change, Hashes, node_class_hashes, pool_hashes};
use crate::state::candidates::{Candidate, DisruptionView};

/// Minimum age of a claim for instance type drift. A type may be missing from a listing for a
/// while, and younger claims were planned with the type a moment ago.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// The cause of drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriftReason {
    /// The pool of the node is no longer configured.
    PoolGone,
    /// The pool changed after the launch.
    Pool,
    /// The labels do not satisfy the requirements of the pool.
    Requirements,
    /// The instance type or capacity type is no longer offered.
    InstanceType,
    /// The instance differs from its node class.
    Class(InstanceDrift),
}

impl DriftReason {
    /// Returns the name used in logs and plans: the name in Karpenter, if Karpenter has this cause.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PoolGone => "NodePoolRemoved",
            Self::Pool => "NodePoolDrifted",
            Self::Requirements => "RequirementsDrifted",
            Self::InstanceType => "InstanceTypeNotFound",
            Self::Class(drift) => drift.as_str(),
        }
    }

    /// Returns whether the cause depends on the configuration alone.
    pub fn is_configured(self) -> bool {
        !matches!(self, Self::InstanceType)
            && !matches!(self, Self::Class(drift) if drift.depends_on_resources())
    }
}

/// The reference for nodes of one pool.
struct Model<'a> {
    pool: &'a Pool,
    hashes: Hashes,
    class_hashes: Option<Hashes>,
    catalog: Option<&'a Catalog>,
    class: Option<(&'a ResolvedNodeClass, &'a ClassCatalog)>,
}

/// The drift reference of a cluster, computed once for all nodes.
pub struct DriftReference<'a> {
    cluster: &'a Cluster,
    by_pool: BTreeMap<&'a str, Model<'a>>,
}

impl<'a> DriftReference<'a> {
    /// Builds the reference of a disruption view.
    pub fn new(disruption_view: &DisruptionView<'a>) -> Self {
        let cluster = disruption_view.cluster;
        Self {
            cluster,
            by_pool: cluster
                .pools
                .iter()
                .map(|pool| {
                    let name = pool.node_class.as_ref();
                    let mut classes = cluster.node_classes.iter();
                    let class = classes.find(|class| Some(&class.name) == name);
                    let model = Model {
                        pool,
                        hashes: pool_hashes(pool),
                        class_hashes: class.map(node_class_hashes),
                        catalog: disruption_view.catalogs.get(&pool.name).copied(),
                        class: name.and_then(|name| disruption_view.classes.resolved_class(name)),
                    };
                    (pool.name.as_str(), model)
                })
                .collect(),
        }
    }

    /// Returns the first cause of drift of a node, if any.
    pub fn cause_of(&self, candidate: &Candidate<'_>, now: Timestamp) -> Option<DriftReason> {
        let record = candidate.claim.map(|claim| &claim.record);
        let pool = record.map_or(&candidate.pool, |record| &record.pool);
        let Some(model) = self.by_pool.get(pool.as_str()) else {
            // A user may have changed the pool label of the Node.
            let known = self.by_pool.contains_key(candidate.pool.as_str());
            let stays = known || self.cluster.safeguards.removed_pools == RemovedPools::Keep;
            return (!stays).then_some(DriftReason::PoolGone);
        };
        let [of_pool, of_class] = match record {
            Some(record) => [&record.pool_hash, &record.node_class_hash].map(|hash| Some(&**hash)),
            None => [POOL_HASH, NODE_CLASS_HASH]
                .map(|key| candidate.node.annotations.get(key).map(String::as_str)),
        };
        if has_drifted(model.hashes, of_pool) {
            return Some(DriftReason::Pool);
        }
        let mut wanted = model.pool.requirements.iter();
        if wanted.any(|(key, requirement)| !requirement.allows_label(node_label(candidate, key))) {
            return Some(DriftReason::Requirements);
        }
        let settled =
            created_at(candidate).is_some_and(|at| now.duration_since(at) > SETTLED_AFTER);
        if settled && model.catalog.is_some_and(|all| is_no_longer_offered(candidate, all)) {
            return Some(DriftReason::InstanceType);
        }
        let class_hashes = model.class_hashes;
        if class_hashes.is_some_and(|hashes| has_drifted(hashes, of_class)) {
            return Some(DriftReason::Class(InstanceDrift::NodeClass));
        }
        let instance = candidate.claim?.instance.as_ref()?;
        let (resolved, class) = model.class?;
        first_difference(instance, resolved, class, false).map(DriftReason::Class)
    }
}

/// Returns whether the current hashes differ from a recorded hash in a way that counts as drift.
fn has_drifted(hashes: Hashes, recorded: Option<&str>) -> bool {
    recorded.is_some_and(|recorded| hashes.change_since(recorded) == Change::Drifted)
}

/// Returns the creation time of the claim or, without a claim, of the Node.
fn created_at(candidate: &Candidate<'_>) -> Option<Timestamp> {
    let claim = candidate.claim.map(|claim| claim.record.created);
    claim.or(candidate.node.created)
}

/// Returns a label of a node. Facts of the instance take precedence over labels of the Node.
fn node_label<'a>(candidate: &Candidate<'a>, key: &str) -> Option<&'a str> {
    let instance = candidate.claim.and_then(|claim| claim.instance.as_ref());
    let offering = instance.map(|instance| &instance.offering);
    let fact = offering.and_then(|offering| match key {
        INSTANCE_TYPE => Some(offering.instance_type.as_str()),
        ZONE => Some(offering.zone.as_str()),
        CAPACITY_TYPE => Some(offering.capacity_type.as_str()),
        _ => None,
    });
    fact.or_else(|| candidate.node.labels.get(key).map(String::as_str))
}

/// Returns whether no matching offering exists, available or not. If the reservation of a node has
/// ended, the node counts as on-demand even before AWS reports it.
fn is_no_longer_offered(candidate: &Candidate<'_>, catalog: &Catalog) -> bool {
    if catalog.is_empty() {
        return false;
    }
    let name = node_label(candidate, INSTANCE_TYPE);
    let Some(instance_type) = name.and_then(|name| catalog.get(name)) else {
        return true;
    };
    let zone = node_label(candidate, ZONE);
    let bought = node_label(candidate, CAPACITY_TYPE);
    let bought = bought.and_then(CapacityType::parse);
    if bought != Some(CapacityType::Spot) && catalog.is_unpriced(instance_type.name.as_str()) {
        return false;
    }
    !instance_type.offerings.iter().any(|offering| {
        let is_sold = match bought {
            Some(CapacityType::Reserved) => offering.capacity_type != CapacityType::Spot,
            Some(bought) => offering.capacity_type == bought,
            None => true,
        };
        is_sold && zone.is_none_or(|zone| offering.zone.as_str() == zone)
    })
}

/// Returns the drifted nodes to disrupt with their causes, and the verdicts for the other drifted
/// nodes.
///
/// Nodes without pods to move come first, then the oldest.
pub fn select_drifted<'a>(
    disruption_view: &'a DisruptionView<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Vec<(&'a Candidate<'a>, DriftReason)>, Vec<RetainedNode>) {
    let models = DriftReference::new(disruption_view);
    let candidates = disruption_view.candidates.iter();
    let mut due: Vec<_> = candidates
        .filter(|candidate| !budgets.has_acquired(candidate))
        .filter_map(|candidate| Some((candidate, models.cause_of(candidate, now)?)))
        .collect();
    due.sort_by_key(|(candidate, _)| {
        (candidate.pods > 0, created_at(candidate), &candidate.node.name)
    });
    let mut rooms = StaticSurge::default();
    let (mut leave, mut kept) = (Vec::new(), Vec::new());
    for (candidate, cause) in due {
        let held = approval_verdict(disruption_view, candidate, cause);
        let pool = disruption_view.cluster.pool(candidate.pool.as_str());
        let against = held.or_else(|| match pool {
            Some(_) => retaining_verdict(candidate, pool, Reason::Drifted, now),
            None => pool_independent_verdict(candidate, Reason::Drifted),
        });
        let against = against
            .or_else(|| sweep_verdict(disruption_view, candidate, Reason::Drifted, now))
            .or_else(|| rooms.verdict_against(disruption_view, candidate));
        match against.map_or_else(|| budgets.try_acquire(candidate, Reason::Drifted), Err) {
            Ok(()) => {
                rooms.use_one(candidate);
                leave.push((candidate, cause));
            }
            Err(verdict) => kept.push(RetainedNode::new(candidate, Reason::Drifted, verdict)),
        }
    }
    (leave, kept)
}

/// Returns a verdict if the drift of a node waits for an approval.
fn approval_verdict(
    disruption_view: &DisruptionView<'_>,
    candidate: &Candidate<'_>,
    cause: DriftReason,
) -> Option<Verdict> {
    let unaccepted = disruption_view.unaccepted.filter(|_| cause.is_configured())?;
    let is_held = unaccepted.nodes.contains(&candidate.node.name);
    is_held.then(|| Verdict::approval_pending(unaccepted))
}

/// Number of additional nodes that static pools may have while drifted nodes wait for replacements.
/// `None` if a pool is not static.
#[derive(Default)]
struct StaticSurge<'a> {
    left: BTreeMap<&'a str, Result<usize, Verdict>>,
}

impl<'a> StaticSurge<'a> {
    fn verdict_against(
        &mut self,
        disruption_view: &DisruptionView<'_>,
        candidate: &'a Candidate<'_>,
    ) -> Option<Verdict> {
        let pool = disruption_view.cluster.pool(candidate.pool.as_str())?;
        let wanted = usize::try_from(pool.replicas?).unwrap_or(usize::MAX);
        let left = self.left.entry(candidate.pool.as_str()).or_insert_with(|| {
            let nodes = disruption_view.candidates.iter();
            let nodes = nodes.filter(|node| node.pool == pool.name).count();
            let nodes = nodes + disruption_view.coming.get(&pool.name).map_or(0, Vec::len);
            if nodes > wanted {
                return Err(Verdict::TooMany);
            }
            let leaving = disruption_view.leaving.get(&pool.name).copied();
            let max_nodes = pool.limits.nodes.map_or(usize::MAX, |max| max as usize);
            Ok(max_nodes.saturating_sub(nodes + leaving.unwrap_or(0)))
        });
        match left {
            Ok(0) => Some(Verdict::Limits),
            Ok(_) => None,
            Err(verdict) => Some(verdict.clone()),
        }
    }

    fn use_one(&mut self, candidate: &Candidate<'_>) {
        if let Some(Ok(left)) = self.left.get_mut(candidate.pool.as_str()) {
            *left = left.saturating_sub(1);
        }
    }
}
