//! Who might leave one cluster at one moment, and what speaks for and against it.
//! It must not know for which reason anyone would.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::catalog::class::Classes;
use crate::model::claim::Phase;
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, NodeName, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::labels::{DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, INITIALIZED_AT, POOL};
use crate::model::node::Node;
use crate::model::pool::Reason;
use crate::state::State;
use crate::state::ledger::Claim;

/// Who might leave one cluster at one moment, and who does. Made much more often than a snapshot,
/// and much cheaper.
#[derive(Clone, Debug)]
pub struct Roster<'a> {
    /// The configuration in force.
    pub cluster: &'a Cluster,
    /// Nodes that might leave on purpose, by name.
    pub candidates: Vec<Candidate<'a>>,
    /// How many nodes of each pool are leaving on purpose already.
    pub leaving: BTreeMap<PoolName, usize>,
    /// Nodes whose room a buffer needs, with the buffer's name, as last planned.
    pub held: BTreeMap<NodeName, String>,
    /// Claims of static pools without a Node that are not leaving, and how far they have come.
    pub coming: BTreeMap<PoolName, Vec<(Phase, ClaimId)>>,
    /// Nodes that are leaving, with their pool and why.
    pub going: Vec<(&'a PoolName, &'a Node, Reason)>,
    /// The instance types as each pool is to plan with them.
    pub catalogs: BTreeMap<&'a PoolName, &'a Catalog>,
    /// What node classes would make by now.
    pub classes: &'a Classes,
    /// How many of the cluster's nodes are well.
    pub health: Health,
    /// What another configuration has made due and nobody has accepted yet.
    pub hold: Option<&'a Hold>,
}

/// How many nodes of a cluster are not ready. Those that have not started yet do not count, and
/// those that are leaving may be as they like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// That are not ready.
    pub unready: usize,
    /// All of them.
    pub total: usize,
}

/// Nodes that another configuration has made due to leave, and that stay until it is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// What to accept.
    pub id: String,
    /// The nodes.
    pub nodes: BTreeSet<NodeName>,
    /// How many nodes there were in all.
    pub total: usize,
}

impl Hold {
    /// The share of the nodes that is held, in per cent, rounded up.
    pub fn percent(&self) -> usize {
        (self.nodes.len() * 100).div_ceil(self.total.max(1))
    }
}

/// A node that might leave on purpose, and what speaks for and against it.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its claim; none in an offline plan.
    pub claim: Option<&'a Claim>,
    /// The node.
    pub node: &'a Node,
    /// Its pool.
    pub pool: PoolName,
    /// When it was initialized; none while it is not.
    pub initialized: Option<Timestamp>,
    /// When a pod last came or went, or it was initialized.
    pub changed: Option<Timestamp>,
    /// Pods on it that are neither daemons nor mirrors nor ended.
    pub pods: usize,
    /// Whether pods are expected on it.
    pub nominated: bool,
    /// What it or one of its pods says against it.
    pub blocker: Option<Blocker>,
    /// What it costs, if the catalog knows it.
    pub price: Option<Price>,
}

/// What a node or a pod on it says against the node's leaving on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// The node is annotated with this key.
    Annotated(&'static str),
    /// A pod on it is.
    Pod(PodKey, &'static str),
    /// It was to leave and could not: it is not tried again before this time.
    Withdrawn(Timestamp),
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotated(key) => write!(f, "the node is annotated {key}=true"),
            Self::Pod(pod, key) => write!(f, "pod {pod} is annotated {key}=true"),
            Self::Withdrawn(until) => write!(f, "it was to leave and could not; again at {until}"),
        }
    }
}

impl State {
    /// Who might leave now.
    pub fn roster(&self, now: Timestamp) -> Roster<'_> {
        let mut leaving = BTreeMap::new();
        let mut going = Vec::new();
        let mut coming: BTreeMap<PoolName, Vec<_>> = BTreeMap::new();
        for claim in self.ledger.claims.values() {
            let pool = || claim.record.pool.clone();
            if claim.leaving.is_some() && claim.node.is_some() {
                *leaving.entry(pool()).or_insert(0) += 1;
            }
            let gone = claim.leaving.zip(self.node_of(claim));
            going.extend(gone.map(|(reason, node)| (&claim.record.pool, node, reason)));
            let own = self.cluster.pool(claim.record.pool.as_str());
            let fixed = own.is_some_and(|pool| pool.replicas.is_some());
            if fixed && claim.takes_pods() && self.node_of(claim).is_none() {
                let one = (claim.phase, claim.record.id.clone());
                coming.entry(pool()).or_default().push(one);
            }
        }
        Roster {
            cluster: &self.cluster,
            candidates: self.candidates(now),
            leaving,
            held: self.held.clone(),
            coming,
            going,
            catalogs: self
                .cluster
                .pools
                .iter()
                .map(|pool| (&pool.name, self.catalog_of(&pool.name)))
                .collect(),
            classes: &self.classes,
            health: self.health(),
            hold: self.hold.as_ref(),
        }
    }

    /// Nodes of nobody's pool count from the first on: nothing says when they are initialized.
    fn health(&self) -> Health {
        let mut health = Health::default();
        for node in self.objects.nodes.values() {
            let started = node.is_initialized() || !node.labels.contains_key(POOL);
            let leaves = node.deleting.is_some() || node.has_disrupted_taint();
            health.total += usize::from(started);
            health.unready += usize::from(started && !node.ready && !leaves);
        }
        health
    }

    fn candidates(&self, now: Timestamp) -> Vec<Candidate<'_>> {
        let mut all: Vec<Candidate<'_>> = self
            .ledger
            .claims
            .values()
            .filter(|claim| claim.leaving.is_none() && claim.phase <= Phase::Initialized)
            // What waits for another in its place leaves then, and counts for nothing now: else a
            // static pool would end the other.
            .filter(|claim| claim.replaced_since.is_none())
            .filter_map(|claim| Some(self.candidate(self.node_of(claim)?, Some(claim), now)))
            .collect();
        all.extend(
            self.claimless_nodes()
                .map(|node| self.candidate(node, None, now)),
        );
        all.sort_by(|a, b| a.node.name.cmp(&b.node.name));
        all
    }

    /// What speaks for and against a node's leaving.
    pub fn candidate<'a>(
        &'a self,
        node: &'a Node,
        claim: Option<&'a Claim>,
        now: Timestamp,
    ) -> Candidate<'a> {
        let name = node.name.as_str();
        let stamp = node
            .annotations
            .get(INITIALIZED_AT)
            .and_then(|text| text.parse().ok());
        let seen = claim
            .filter(|claim| claim.phase == Phase::Initialized)
            .map(|claim| claim.since);
        let offline = claim.is_none().then_some(node.created).flatten();
        let initialized = if node.is_initialized() {
            stamp.or(seen).or(offline)
        } else {
            None
        };
        let started = self.started.filter(|_| claim.is_some());
        let pods = self.objects.pods_on(name);
        let promised = claim.is_some_and(|claim| {
            let pods = claim.pods.iter();
            let mut pods = pods.filter_map(|key| self.objects.pods.get(key));
            self.expects_pods(claim, now) && pods.any(|pod| self.comes(pod))
        });
        let nominated = self.nominated_until(&node.name);
        let withdrawn = || {
            let (until, _) = claim?.withdrawn?;
            (until > now).then_some(Blocker::Withdrawn(until))
        };
        Candidate {
            claim,
            node,
            pool: node.pool().unwrap_or_default(),
            initialized,
            changed: self
                .objects
                .pods_changed(name)
                .max(initialized)
                .max(started),
            pods: pods.filter(|pod| pod.occupies_node()).count(),
            nominated: promised || nominated.is_some_and(|until| until > now),
            blocker: self.blocker(node).or_else(withdrawn),
            price: self.price_of(node, claim),
        }
    }

    /// What the node or one of its pods says against its leaving on purpose, if anything.
    fn blocker(&self, node: &Node) -> Option<Blocker> {
        const KEYS: [&str; 2] = [DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS];
        let says = |key: &&str| node.annotations.get(*key).is_some_and(|own| own == "true");
        if let Some(key) = KEYS.into_iter().find(says) {
            return Some(Blocker::Annotated(key));
        }
        let mut pods = self.objects.pods_on(node.name.as_str());
        let pod = pods.find(|pod| pod.is_protected() && !pod.is_terminal())?;
        Some(Blocker::Pod(pod.key.clone(), DO_NOT_DISRUPT))
    }
}
