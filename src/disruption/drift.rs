//! Nodes that are not what their pool and node class would make by now, or whose pool is gone.
//! It must not know the other reasons for leaving, nor what is changed in place instead.
//!
//! Source: spec/disruption.md §3.1. Who goes when: §1.8; of static pools one for one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::catalog::node_class::ClassCatalog;
use crate::disruption::budgets::Budgets;
use crate::disruption::eligibility::{kept_anyway, objection};
use crate::disruption::instance_drift::{InstanceDrift, drift};
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::cluster::{Cluster, RemovedPools};
use crate::model::instance::CapacityType;
use crate::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, NODE_CLASS_HASH, POOL_HASH, ZONE};
use crate::model::node_class::resolved::ResolvedNodeClass;
use crate::model::pool::{Pool, Reason};
use crate::model::template_hash::{Change, Hashes, node_class_hashes, pool_hashes};
use crate::state::candidates::{Candidate, DisruptionView};

/// A type may be missing from a listing for a while; a younger claim was planned with it just now.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// In what a node has drifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriftReason {
    /// Its pool is not configured any more.
    PoolGone,
    /// Its pool says something else than when it was made.
    Pool,
    /// Its labels are not what its pool requires.
    Requirements,
    /// Its instance type, or what it is bought as, is not to be had any more.
    InstanceType,
    /// Its instance is not what its node class would make.
    Class(InstanceDrift),
}

impl DriftReason {
    /// The spelling in logs and plans: Karpenter's, where it has one.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PoolGone => "NodePoolRemoved",
            Self::Pool => "NodePoolDrifted",
            Self::Requirements => "RequirementsDrifted",
            Self::InstanceType => "InstanceTypeNotFound",
            Self::Class(own) => own.as_str(),
        }
    }

    /// Whether the configuration alone decides it.
    pub fn is_configured(self) -> bool {
        !matches!(self, Self::InstanceType) && !matches!(self, Self::Class(own) if own.is_found())
    }
}

/// What nodes of one pool are held against.
struct Model<'a> {
    pool: &'a Pool,
    hashes: Hashes,
    class_hashes: Option<Hashes>,
    catalog: Option<&'a Catalog>,
    class: Option<(&'a ResolvedNodeClass, &'a ClassCatalog)>,
}

/// What the nodes of a cluster are held against, made once for all of them.
pub struct DriftReference<'a> {
    cluster: &'a Cluster,
    by_pool: BTreeMap<&'a str, Model<'a>>,
}

impl<'a> DriftReference<'a> {
    /// Those of a roster.
    pub fn new(roster: &DisruptionView<'a>) -> Self {
        let cluster = roster.cluster;
        let model = |pool: &'a Pool| {
            let name = pool.node_class.as_ref();
            let mut classes = cluster.node_classes.iter();
            let class = classes.find(|own| Some(&own.name) == name);
            let model = Model {
                pool,
                hashes: pool_hashes(pool),
                class_hashes: class.map(node_class_hashes),
                catalog: roster.catalogs.get(&pool.name).copied(),
                class: name.and_then(|own| roster.classes.found(own)),
            };
            (pool.name.as_str(), model)
        };
        Self {
            cluster,
            by_pool: cluster.pools.iter().map(model).collect(),
        }
    }

    /// In what a node has drifted first, if at all.
    pub fn cause(&self, candidate: &Candidate<'_>, now: Timestamp) -> Option<DriftReason> {
        let record = candidate.claim.map(|own| &own.record);
        let pool = record.map_or(&candidate.pool, |own| &own.pool);
        let Some(model) = self.by_pool.get(pool.as_str()) else {
            // Somebody may have taken the Node into another pool by hand.
            let known = self.by_pool.contains_key(candidate.pool.as_str());
            let stays = known || self.cluster.brakes.removed_pools == RemovedPools::Keep;
            return (!stays).then_some(DriftReason::PoolGone);
        };
        let noted = |key: &str| candidate.node.annotations.get(key).map(String::as_str);
        let (of_pool, of_class) = match record {
            Some(own) => (Some(&*own.pool_hash), Some(&*own.node_class_hash)),
            None => (noted(POOL_HASH), noted(NODE_CLASS_HASH)),
        };
        let differs = |own: Hashes, old: Option<&str>| {
            old.is_some_and(|old| own.since(old) == Change::Drifted)
        };
        if differs(model.hashes, of_pool) {
            return Some(DriftReason::Pool);
        }
        let mut wanted = model.pool.requirements.iter();
        if wanted.any(|(key, own)| !own.suits(label(candidate, key))) {
            return Some(DriftReason::Requirements);
        }
        let created = record.map(|own| own.created).or(candidate.node.created);
        let settled = created.is_some_and(|at| now.duration_since(at) > SETTLED_AFTER);
        if settled && model.catalog.is_some_and(|all| is_gone(candidate, all)) {
            return Some(DriftReason::InstanceType);
        }
        let changed = model.class_hashes.is_some_and(|own| differs(own, of_class));
        if changed {
            return Some(DriftReason::Class(InstanceDrift::NodeClass));
        }
        let instance = candidate.claim?.instance.as_ref()?;
        drift(instance, model.class?, false).map(DriftReason::Class)
    }
}

/// A label of a node. What its instance is, nobody's label says better.
fn label<'a>(candidate: &Candidate<'a>, key: &str) -> Option<&'a str> {
    let instance = candidate.claim.and_then(|own| own.instance.as_ref());
    let offering = instance.map(|own| &own.offering);
    let own = offering.and_then(|own| match key {
        INSTANCE_TYPE => Some(own.instance_type.as_str()),
        ZONE => Some(own.zone.as_str()),
        CAPACITY_TYPE => Some(own.capacity_type.as_str()),
        _ => None,
    });
    let noted = || candidate.node.labels.get(key).map(String::as_str);
    own.or_else(noted)
}

/// Whether nothing like this node is offered, available or not. One whose reservation has ended is
/// on demand before anyone has written so.
fn is_gone(candidate: &Candidate<'_>, catalog: &Catalog) -> bool {
    if catalog.is_empty() {
        return false;
    }
    let name = label(candidate, INSTANCE_TYPE);
    let Some(own) = name.and_then(|name| catalog.get(name)) else {
        return true;
    };
    let zone = label(candidate, ZONE);
    let bought = label(candidate, CAPACITY_TYPE);
    let bought = bought.and_then(CapacityType::parse);
    let is_sold = |kind: CapacityType| match bought {
        Some(CapacityType::Reserved) => kind != CapacityType::Spot,
        Some(own) => own == kind,
        None => true,
    };
    let mut offerings = own.offerings.iter();
    !offerings
        .any(|own| is_sold(own.capacity_type) && zone.is_none_or(|zone| own.zone.as_str() == zone))
}

/// Nodes that may leave because they have drifted, and in what; and why the others that have stay.
///
/// First those that nobody has to move off, then the oldest.
pub fn drifted<'a>(
    roster: &'a DisruptionView<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Vec<(&'a Candidate<'a>, DriftReason)>, Vec<RetainedNode>) {
    let models = DriftReference::new(roster);
    let candidates = roster.candidates.iter();
    let candidates = candidates.filter(|own| !budgets.has_let_go(own));
    let due = candidates.filter_map(|own| Some((own, models.cause(own, now)?)));
    let mut due: Vec<_> = due.collect();
    let created = |own: &Candidate<'_>| {
        let claim = own.claim.map(|own| own.record.created);
        claim.or(own.node.created)
    };
    due.sort_by_key(|(own, _)| (own.pods > 0, created(own), &own.node.name));
    let mut rooms = StaticSurge::default();
    let (mut leave, mut kept) = (Vec::new(), Vec::new());
    for (candidate, cause) in due {
        let held = held(roster, candidate, cause);
        let pool = roster.cluster.pool(candidate.pool.as_str());
        let against = held.or_else(|| match pool {
            Some(_) => kept_anyway(candidate, pool, Reason::Drifted, now),
            None => objection(candidate, Reason::Drifted),
        });
        let against = against.or_else(|| rooms.against(roster, candidate));
        let taken = || budgets.take(candidate, Reason::Drifted);
        match against.map_or_else(taken, Err) {
            Ok(()) => {
                rooms.take(candidate);
                leave.push((candidate, cause));
            }
            Err(verdict) => kept.push(RetainedNode::new(candidate, Reason::Drifted, verdict)),
        }
    }
    (leave, kept)
}

/// Whether a node is due by a configuration that nobody has accepted.
fn held(
    roster: &DisruptionView<'_>,
    candidate: &Candidate<'_>,
    cause: DriftReason,
) -> Option<Verdict> {
    let unaccepted = roster.unaccepted.filter(|_| cause.is_configured())?;
    let is_held = unaccepted.nodes.contains(&candidate.node.name);
    is_held.then(|| Verdict::held(unaccepted))
}

/// How many more nodes static pools may have, beside those that leave until others stand in their
/// place. None where a pool is not static.
#[derive(Default)]
struct StaticSurge<'a> {
    left: BTreeMap<&'a str, Result<usize, Verdict>>,
}

impl<'a> StaticSurge<'a> {
    fn against(
        &mut self,
        roster: &DisruptionView<'_>,
        candidate: &'a Candidate<'_>,
    ) -> Option<Verdict> {
        let pool = roster.cluster.pool(candidate.pool.as_str())?;
        let wanted = usize::try_from(pool.replicas?).unwrap_or(usize::MAX);
        let left = self.left.entry(candidate.pool.as_str()).or_insert_with(|| {
            let nodes = roster.candidates.iter();
            let nodes = nodes.filter(|own| own.pool == pool.name).count();
            let nodes = nodes + roster.coming.get(&pool.name).map_or(0, Vec::len);
            if nodes > wanted {
                return Err(Verdict::TooMany);
            }
            let all = nodes + roster.leaving.get(&pool.name).copied().unwrap_or(0);
            let most = pool.limits.nodes.map_or(usize::MAX, |own| own as usize);
            Ok(most.saturating_sub(all))
        });
        match left {
            Ok(0) => Some(Verdict::Limits),
            Ok(_) => None,
            Err(verdict) => Some(verdict.clone()),
        }
    }

    fn take(&mut self, candidate: &Candidate<'_>) {
        if let Some(Ok(left)) = self.left.get_mut(candidate.pool.as_str()) {
            *left = left.saturating_sub(1);
        }
    }
}
