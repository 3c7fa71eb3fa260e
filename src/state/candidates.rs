//! Disruption candidates of one cluster at one time, with their blockers and costs.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashSet;
use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::catalog::node_class::Classes;
use crate::coordination::lease_annotations::{DisruptionRecord, LeaseAnnotations};
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Cluster;
use crate::model::eviction::COST_OF_ONE;
use crate::model::fleet::FleetView;
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::instance::Price;
use crate::model::labels::{INITIALIZED_AT, POOL};
use crate::model::node::Node;
use crate::model::pool::{OnBlocked, Reason};
use crate::state::State;
use crate::state::disruption_blockers::{DisruptionBlocker, InvalidInput};
use crate::state::node_claims::NodeClaim;
use crate::state::pdbs::PdbIndex;
use crate::state::sweeps::Sweeps;

/// The disruption candidates and ongoing disruptions of one cluster. It is built much more often
/// than a snapshot, and at a much lower cost.
#[derive(Clone, Debug)]
pub struct DisruptionView<'a> {
    /// The configuration in force.
    pub cluster: &'a Cluster,
    /// Nodes that may be disrupted voluntarily, by name.
    pub candidates: Vec<Candidate<'a>>,
    /// Number of initialized nodes of each pool that are already being disrupted.
    pub leaving: BTreeMap<PoolName, usize>,
    /// Lease annotations: pauses and recorded disruptions.
    pub notes: &'a LeaseAnnotations,
    /// The sweeps. `None` in an offline plan, in which no node waits for one.
    pub sweeps: Option<&'a Sweeps>,
    /// Recorded disruptions, including voluntary ones that are not written to the Lease yet.
    pub let_go: BTreeMap<ClaimId, DisruptionRecord>,
    /// The fleet view, or `None` if the cluster shares nothing.
    pub fleet: Option<&'a FleetView>,
    /// Recent actions in the cluster.
    pub recent: RecentActions,
    /// Nodes whose capacity a buffer uses, with the name of the buffer, as last planned.
    pub held: BTreeMap<NodeName, String>,
    /// Pools in consolidation back-off, with the end of the back-off.
    pub resting: &'a BTreeMap<PoolName, Timestamp>,
    /// Nodes recently launched to save cost, with the end of their protection.
    pub fresh: &'a BTreeMap<NodeName, Timestamp>,
    /// Claims of static pools without a Node that are not being disrupted, with their phase.
    pub coming: BTreeMap<PoolName, Vec<(ClaimPhase, ClaimId)>>,
    /// The first hundred invalid values that would affect these nodes.
    pub misreads: BTreeSet<InvalidInput>,
    /// Nodes being disrupted, with their pool and reason.
    pub going: Vec<(&'a PoolName, &'a Node, Reason)>,
    /// The catalog with which the nodes of each pool are planned.
    pub catalogs: BTreeMap<&'a PoolName, &'a Catalog>,
    /// The resolved node classes.
    pub classes: &'a Classes,
    /// Number of ready and unready nodes.
    pub health: NodeHealth,
    /// Disruptions by a changed configuration that wait for approval.
    pub unaccepted: Option<&'a PendingApproval>,
}

/// Times of the last actions in a cluster. `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentActions {
    /// When an instance was last launched.
    pub launched: Option<Timestamp>,
    /// When an instance was last terminated.
    pub ended: Option<Timestamp>,
    /// When a disruption last failed.
    pub failed: Option<Timestamp>,
}

/// Number of nodes that are not ready. Nodes that have not started yet and nodes being disrupted
/// are not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Nodes that are not ready.
    pub unready: usize,
    /// All nodes.
    pub total: usize,
}

/// Nodes that a changed configuration makes due, and that are kept until a user approves the
/// change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingApproval {
    /// The ID to approve.
    pub id: String,
    /// The nodes.
    pub nodes: BTreeSet<NodeName>,
    /// Number of all nodes at the time of the check.
    pub total: usize,
}

impl PendingApproval {
    /// Returns the percentage of held nodes, rounded up.
    pub fn percent(&self) -> usize {
        (self.nodes.len() * 100).div_ceil(self.total.max(1))
    }
}

/// A disruption candidate with its blockers and cost.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its claim; none in an offline plan.
    pub claim: Option<&'a NodeClaim>,
    /// The node.
    pub node: &'a Node,
    /// Its pool.
    pub pool: PoolName,
    /// When its claim was created or, without a claim, when the Node was created. The age of the
    /// node is counted from this time.
    pub born: Option<Timestamp>,
    /// When it was initialized, or `None`.
    pub initialized: Option<Timestamp>,
    /// When a pod was last added or removed, or the node was initialized.
    pub changed: Option<Timestamp>,
    /// Number of pods to reschedule that keep the node in use: no DaemonSet or static pods, not
    /// terminated or terminating, and with a positive disruption cost.
    pub pods: usize,
    /// The disruption cost: one, plus the cost of each pod, whose default is one. Source:
    /// spec/disruption.md §1.4.
    pub cost: f64,
    /// Utilization of cpu or memory without DaemonSet pods, whichever is higher, in per cent
    /// rounded down. `None` if it has neither.
    pub utilization: Option<u32>,
    /// Whether pods are nominated for it.
    pub nominated: bool,
    /// Whether the node has its full termination grace period when it is disrupted.
    pub graceful: bool,
    /// The first disruption blocker. Blockers of the node come before blockers of its pods.
    pub blocker: Option<DisruptionBlocker>,
    /// Its price, if the catalog contains it.
    pub price: Option<Price>,
}

impl Candidate<'_> {
    /// Returns the blocker for a reason. Blockers of pods are ignored if the node has its full
    /// grace period, because the pods are evicted at the end of that period anyway.
    pub fn blocker_for(&self, reason: Reason) -> Option<&DisruptionBlocker> {
        let graceful = reason.is_eventual() && self.graceful;
        let blocker = self.blocker.as_ref();
        blocker.filter(|blocker| !(graceful && blocker.yields_to_grace()))
    }
}

/// A claim and its node.
type Owned<'a> = (&'a NodeClaim, Option<&'a Node>);

impl State {
    /// Returns whether the node of a claim has its full termination grace period. The node does not
    /// have it if its pool aborts drains earlier, because a blocked pod would outlast every
    /// attempt.
    pub fn is_graceful(&self, claim: &NodeClaim) -> bool {
        let pool = self.cluster.pool(claim.record.pool.as_str());
        claim.record.termination_grace_period.is_some_and(|grace| {
            !pool.is_some_and(|pool| {
                let disruption = &pool.disruption;
                disruption.on_blocked == OnBlocked::Abort && disruption.drain_timeout < grace
            })
        })
    }

    /// Returns the disruption view of this time.
    pub fn disruption_view(&self, now: Timestamp) -> DisruptionView<'_> {
        let mut leaving = BTreeMap::new();
        let mut let_go = self.notes.let_go.clone();
        let mut recent = self.recent;
        // Events before startup are unknown.
        recent.ended = recent.ended.max(self.started);
        recent.failed = recent.failed.max(self.started);
        let mut going = Vec::new();
        let mut coming: BTreeMap<PoolName, Vec<_>> = BTreeMap::new();
        let claims = self.ledger.claims.values();
        let claims: Vec<Owned<'_>> = claims.map(|claim| (claim, self.node_of(claim))).collect();
        for (claim, node) in &claims {
            let (id, pool) = (&claim.record.id, &claim.record.pool);
            if claim.leaving.is_some() && node.is_some_and(Node::is_initialized) {
                *leaving.entry(pool.clone()).or_insert(0) += 1;
            }
            if let Some(reason) = claim.leaving.filter(|reason| reason.is_budgeted()) {
                let record = DisruptionRecord { pool: pool.clone(), reason, at: now };
                let_go.entry(id.clone()).or_insert(record);
            }
            let launched = claim.instance.as_ref().map(|instance| instance.launched);
            recent.launched = recent.launched.max(launched);
            let gone = claim.leaving.zip(*node);
            going.extend(gone.map(|(reason, node)| (pool, node, reason)));
            let configured = self.cluster.pool(pool.as_str());
            let is_static = configured.is_some_and(|pool| pool.replicas.is_some());
            if is_static && claim.takes_pods() && node.is_none() {
                let claims = coming.entry(pool.clone()).or_default();
                claims.push((claim.phase, id.clone()));
            }
        }
        for pool in self.nodes_without_claims(&claims).filter_map(Node::pool_name) {
            *leaving.entry(pool).or_insert(0) += 1;
        }
        let candidates = self.disruption_candidates(&claims, now);
        let misreads = self.invalid_inputs(candidates.iter().map(|candidate| candidate.node));
        DisruptionView {
            cluster: &self.cluster,
            candidates,
            leaving,
            notes: &self.notes,
            sweeps: (!self.offline).then_some(&self.sweeps),
            let_go,
            fleet: self.fleet.as_deref(),
            recent,
            held: self.held.clone(),
            resting: &self.resting,
            fresh: &self.fresh,
            coming,
            misreads,
            going,
            catalogs: self
                .cluster
                .pools
                .iter()
                .map(|pool| (&pool.name, self.catalog_of(&pool.name)))
                .collect(),
            classes: &self.classes,
            health: self.node_health(),
            unaccepted: self.unaccepted.as_ref(),
        }
    }

    /// Nodes of this installation whose instances were already terminating at startup. They count
    /// as being disrupted while their Node objects exist.
    fn nodes_without_claims(&self, claims: &[Owned<'_>]) -> impl Iterator<Item = &Node> {
        let claimed = claims.iter().filter_map(|(_, node)| Some(&(*node)?.name));
        let claimed: HashSet<&NodeName> = claimed.collect();
        let nodes = self.objects.nodes.values().filter(|_| !self.offline);
        nodes.filter(move |node| {
            !claimed.contains(&node.name)
                && self.is_of_this_installation(node)
                && node.is_initialized()
        })
    }

    /// Returns the node health. Nodes without a pool are included immediately, because their
    /// initialization is unknown.
    pub fn node_health(&self) -> NodeHealth {
        let mut health = NodeHealth::default();
        for node in self.objects.nodes.values() {
            let started = node.is_initialized() || !node.labels.contains_key(POOL);
            health.total += usize::from(started);
            health.unready += usize::from(started && !node.ready && !node.is_leaving());
        }
        health
    }

    fn disruption_candidates<'a>(
        &'a self,
        claims: &[Owned<'a>],
        now: Timestamp,
    ) -> Vec<Candidate<'a>> {
        let pdb_index = PdbIndex::new(&self.objects);
        let mut candidates: Vec<Candidate<'_>> = claims
            .iter()
            .filter(|(claim, _)| claim.leaving.is_none() && claim.phase <= ClaimPhase::Initialized)
            // A node that waits for its replacement is disrupted later and is not counted now.
            // Otherwise a static pool would terminate the replacement.
            .filter(|(claim, _)| claim.replaced_since.is_none())
            .filter_map(|(claim, node)| Some(((*node)?, Some(*claim))))
            .chain(self.claimless_nodes().map(|node| (node, None)))
            .map(|(node, claim)| self.candidate_of(node, claim, &pdb_index, now))
            .collect();
        candidates.sort_by(|one, other| one.node.name.cmp(&other.node.name));
        candidates
    }

    /// Builds the candidate of a node.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the pods of a node are few enough for their costs to be exact"
    )]
    fn candidate_of<'a>(
        &'a self,
        node: &'a Node,
        claim: Option<&'a NodeClaim>,
        pdb_index: &PdbIndex<'_>,
        now: Timestamp,
    ) -> Candidate<'a> {
        let name = node.name.as_str();
        let stamp = node.annotations.get(INITIALIZED_AT);
        let stamp = stamp.and_then(|text| text.parse().ok());
        let seen = claim.filter(|claim| claim.phase == ClaimPhase::Initialized);
        let offline = claim.is_none().then_some(node.created).flatten();
        let initialized =
            stamp.or(seen.map(|claim| claim.since)).or(offline).filter(|_| node.is_initialized());
        let started = self.started.filter(|_| claim.is_some());
        let totals = self.objects.disruption_cost_of(name);
        let promised = claim.is_some_and(|claim| self.expects_pods(claim, now));
        let nominated = self.nominated_until(&node.name);
        Candidate {
            claim,
            node,
            pool: node.pool_name().unwrap_or_default(),
            born: claim.map(|claim| claim.record.created).or(node.created),
            initialized,
            changed: self.objects.pods_changed_at(name).max(initialized).max(started),
            pods: totals.holding_pods,
            cost: 1.0 + totals.cost as f64 / COST_OF_ONE as f64,
            utilization: totals.utilization(&node.allocatable),
            nominated: promised || nominated.is_some_and(|until| until > now),
            graceful: claim.is_some_and(|claim| self.is_graceful(claim)),
            blocker: self.first_blocker(node, claim, pdb_index, now),
            price: self.price_of(node, claim),
        }
    }
}
