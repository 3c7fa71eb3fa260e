//! Who might leave one cluster at one moment, and what speaks for and against it.
//! It must not know for which reason anyone would.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashSet;
use jiff::{SignedDuration, Timestamp};

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

/// Who might leave one cluster at one moment, and who does. Made much more often than a snapshot,
/// and much cheaper.
#[derive(Clone, Debug)]
pub struct DisruptionView<'a> {
    /// The configuration in force.
    pub cluster: &'a Cluster,
    /// Nodes that might leave on purpose, by name.
    pub candidates: Vec<Candidate<'a>>,
    /// How many nodes of each pool are leaving already, of those that were initialized.
    pub leaving: BTreeMap<PoolName, usize>,
    /// What is remembered of the cluster: pauses, and who was let go.
    pub notes: &'a LeaseAnnotations,
    /// Nodes that were let go, with those that leave by our own choice and are not noted yet.
    pub let_go: BTreeMap<ClaimId, DisruptionRecord>,
    /// What is known of other clusters; none where nothing is shared with any.
    pub fleet: Option<&'a FleetView>,
    /// What was done in the cluster lately.
    pub recent: RecentActions,
    /// Nodes whose room a buffer needs, with the buffer's name, as last planned.
    pub held: BTreeMap<NodeName, String>,
    /// Pools of which nothing is moved to save something, since that came to nothing, and until
    /// when.
    pub resting: &'a BTreeMap<PoolName, Timestamp>,
    /// Nodes that were only just made to save something, and until when they are left alone.
    pub fresh: &'a BTreeMap<NodeName, Timestamp>,
    /// Claims of static pools without a Node that are not leaving, and how far they have come.
    pub coming: BTreeMap<PoolName, Vec<(ClaimPhase, ClaimId)>>,
    /// What would count for these nodes and cannot be understood; the first hundred things.
    pub misreads: BTreeSet<InvalidInput>,
    /// Nodes that are leaving, with their pool and why.
    pub going: Vec<(&'a PoolName, &'a Node, Reason)>,
    /// The instance types as each pool is to plan with them.
    pub catalogs: BTreeMap<&'a PoolName, &'a Catalog>,
    /// What node classes would make by now.
    pub classes: &'a Classes,
    /// How many of the cluster's nodes are well.
    pub health: NodeHealth,
    /// What another configuration has made due and nobody has accepted yet.
    pub unaccepted: Option<&'a PendingApproval>,
}

/// When each of these was last done in a cluster; none where that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentActions {
    /// An instance was launched.
    pub launched: Option<Timestamp>,
    /// An instance was ended.
    pub ended: Option<Timestamp>,
    /// A node was to leave and could not.
    pub failed: Option<Timestamp>,
}

/// How many nodes of a cluster are not ready. Those that have not started yet do not count, and
/// those that are leaving may be as they like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// That are not ready.
    pub unready: usize,
    /// All of them.
    pub total: usize,
}

/// Nodes that another configuration has made due to leave, and that stay until it is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingApproval {
    /// What to accept.
    pub id: String,
    /// The nodes.
    pub nodes: BTreeSet<NodeName>,
    /// How many nodes there were in all.
    pub total: usize,
}

impl PendingApproval {
    /// The share of the nodes that is held, in per cent, rounded up.
    pub fn percent(&self) -> usize {
        (self.nodes.len() * 100).div_ceil(self.total.max(1))
    }
}

/// A node that might leave on purpose, and what speaks for and against it.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its claim; none in an offline plan.
    pub claim: Option<&'a NodeClaim>,
    /// The node.
    pub node: &'a Node,
    /// Its pool.
    pub pool: PoolName,
    /// Since when it is counted as old: its claim's making, else its own.
    pub born: Option<Timestamp>,
    /// When it was initialized; none while it is not.
    pub initialized: Option<Timestamp>,
    /// When a pod last came or went, or it was initialized.
    pub changed: Option<Timestamp>,
    /// Pods on it that will need another place, and are worth one: neither daemons nor mirrors,
    /// not ended nor on their way out, and not such as cost nothing to move.
    pub pods: usize,
    /// What it costs to move all its pods: one, and what moving each costs, where one that says
    /// nothing of it costs one more. Source: spec/disruption.md §1.4.
    pub cost: f64,
    /// How much of its cpu or memory its pods ask for, whichever is more, in per cent rounded
    /// down, daemons apart; none where it has neither.
    pub utilization: Option<u32>,
    /// Whether pods are expected on it.
    pub nominated: bool,
    /// Whether it has all of a termination grace period to leave, once it does.
    pub graceful: bool,
    /// What it or one of its pods says against it: the first of all that is said, and what is said
    /// of the node itself comes before what its pods say.
    pub blocker: Option<DisruptionBlocker>,
    /// What it costs, if the catalog knows it.
    pub price: Option<Price>,
}

impl Candidate<'_> {
    /// What is said against its leaving for a reason. What pods say does not count where the node
    /// has all its grace period to leave, after which they go anyhow.
    pub fn blocker_for(&self, reason: Reason) -> Option<&DisruptionBlocker> {
        let graceful =
            |own: &&DisruptionBlocker| self.has_grace_for(reason) && own.yields_to_grace();
        self.blocker.as_ref().filter(|own| !graceful(own))
    }

    /// Whether it would leave for this reason within a termination grace period.
    fn has_grace_for(&self, reason: Reason) -> bool {
        reason.is_eventual() && self.graceful
    }
}

/// A claim and the node that fulfils it.
type Owned<'a> = (&'a NodeClaim, Option<&'a Node>);

impl State {
    /// Whether a claim's node has all of its termination grace period to leave. Not where its pool
    /// has it stay again before: whoever stays on it would outlast every attempt.
    pub fn is_graceful(&self, claim: &NodeClaim) -> bool {
        let pool = self.cluster.pool(claim.record.pool.as_str());
        let aborts = |grace: SignedDuration| {
            let disruption = pool.map(|own| &own.disruption);
            disruption
                .is_some_and(|own| own.on_blocked == OnBlocked::Abort && own.drain_timeout < grace)
        };
        let grace = claim.record.termination_grace_period;
        grace.is_some_and(|grace| !aborts(grace))
    }

    /// Who might leave now.
    pub fn roster(&self, now: Timestamp) -> DisruptionView<'_> {
        let mut leaving = BTreeMap::new();
        let mut let_go = self.notes.let_go.clone();
        let mut recent = self.recent;
        // What happened before the start is not known.
        recent.ended = recent.ended.max(self.started);
        recent.failed = recent.failed.max(self.started);
        let mut going = Vec::new();
        let mut coming: BTreeMap<PoolName, Vec<_>> = BTreeMap::new();
        let claims = self.ledger.claims.values();
        let claims: Vec<Owned<'_>> = claims.map(|own| (own, self.node_of(own))).collect();
        for (claim, node) in &claims {
            let pool = || claim.record.pool.clone();
            if claim.leaving.is_some() && node.is_some_and(Node::is_initialized) {
                *leaving.entry(pool()).or_insert(0) += 1;
            }
            if let Some(reason) = claim.leaving.filter(|own| own.is_budgeted()) {
                let id = claim.record.id.clone();
                let pool = pool();
                let one = DisruptionRecord {
                    pool,
                    reason,
                    at: now,
                };
                let_go.entry(id).or_insert(one);
            }
            let launched = claim.instance.as_ref().map(|own| own.launched);
            recent.launched = recent.launched.max(launched);
            let gone = claim.leaving.zip(*node);
            going.extend(gone.map(|(reason, node)| (&claim.record.pool, node, reason)));
            let own = self.cluster.pool(claim.record.pool.as_str());
            let fixed = own.is_some_and(|pool| pool.replicas.is_some());
            if fixed && claim.takes_pods() && node.is_none() {
                let one = (claim.phase, claim.record.id.clone());
                coming.entry(pool()).or_default().push(one);
            }
        }
        for pool in self.lone_nodes(&claims).filter_map(Node::pool) {
            *leaving.entry(pool).or_insert(0) += 1;
        }
        let candidates = self.candidates(&claims, now);
        let misreads = self.misreads(candidates.iter().map(|own| own.node));
        DisruptionView {
            cluster: &self.cluster,
            candidates,
            leaving,
            notes: &self.notes,
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
            health: self.health(),
            unaccepted: self.unaccepted.as_ref(),
        }
    }

    /// Nodes that were made here whose instances were ending already when we started: they are left
    /// for as long as their Node objects are.
    fn lone_nodes(&self, claims: &[Owned<'_>]) -> impl Iterator<Item = &Node> {
        let claimed = claims.iter().filter_map(|(_, node)| Some(&(*node)?.name));
        let claimed: HashSet<&NodeName> = claimed.collect();
        let nodes = self.objects.nodes.values().filter(|_| !self.offline);
        nodes.filter(move |node| {
            !claimed.contains(&node.name) && self.is_made_here(node) && node.is_initialized()
        })
    }

    /// How many nodes are well. Those of nobody's pool count from the first on: nothing says when
    /// they are initialized.
    pub fn health(&self) -> NodeHealth {
        let mut health = NodeHealth::default();
        for node in self.objects.nodes.values() {
            let started = node.is_initialized() || !node.labels.contains_key(POOL);
            health.total += usize::from(started);
            health.unready += usize::from(started && !node.ready && !node.leaves());
        }
        health
    }

    fn candidates<'a>(&'a self, claims: &[Owned<'a>], now: Timestamp) -> Vec<Candidate<'a>> {
        let shields = PdbIndex::new(&self.objects);
        let mut all: Vec<Candidate<'_>> = claims
            .iter()
            .filter(|(claim, _)| claim.leaving.is_none() && claim.phase <= ClaimPhase::Initialized)
            // What waits for another in its place leaves then, and counts for nothing now: else a
            // static pool would end the other.
            .filter(|(claim, _)| claim.replaced_since.is_none())
            .filter_map(|(claim, node)| Some(((*node)?, Some(*claim))))
            .chain(self.claimless_nodes().map(|node| (node, None)))
            .map(|(node, claim)| self.candidate(node, claim, &shields, now))
            .collect();
        all.sort_by(|a, b| a.node.name.cmp(&b.node.name));
        all
    }

    /// What speaks for and against a node's leaving.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the pods of a node are few enough for their costs to be exact"
    )]
    fn candidate<'a>(
        &'a self,
        node: &'a Node,
        claim: Option<&'a NodeClaim>,
        shields: &PdbIndex<'_>,
        now: Timestamp,
    ) -> Candidate<'a> {
        let name = node.name.as_str();
        let stamp = node
            .annotations
            .get(INITIALIZED_AT)
            .and_then(|text| text.parse().ok());
        let seen = claim
            .filter(|claim| claim.phase == ClaimPhase::Initialized)
            .map(|claim| claim.since);
        let offline = claim.is_none().then_some(node.created).flatten();
        let initialized = if node.is_initialized() {
            stamp.or(seen).or(offline)
        } else {
            None
        };
        let started = self.started.filter(|_| claim.is_some());
        let stake = self.objects.stake(name);
        let promised = claim.is_some_and(|claim| self.expects_pods(claim, now));
        let nominated = self.nominated_until(&node.name);
        Candidate {
            claim,
            node,
            pool: node.pool().unwrap_or_default(),
            born: claim.map(|own| own.record.created).or(node.created),
            initialized,
            changed: self
                .objects
                .pods_changed(name)
                .max(initialized)
                .max(started),
            pods: stake.holding(),
            cost: 1.0 + stake.cost() as f64 / COST_OF_ONE as f64,
            utilization: stake.utilization(&node.allocatable),
            nominated: promised || nominated.is_some_and(|until| until > now),
            graceful: claim.is_some_and(|own| self.is_graceful(own)),
            blocker: self.first_blocker(node, claim, shields, now),
            price: self.price_of(node, claim),
        }
    }
}
