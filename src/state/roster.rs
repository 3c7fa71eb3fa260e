//! Who might leave one cluster at one moment, and what speaks for and against it.
//! It must not know for which reason anyone would.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use crate::model::claim::Phase;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetView;
use crate::model::id::{ClaimId, NodeName, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::labels::{DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, INITIALIZED_AT};
use crate::model::node::Node;
use crate::model::notes::{LetGo, Notes};
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
    /// How many nodes of each pool are leaving already, of those that were initialized.
    pub leaving: BTreeMap<PoolName, usize>,
    /// What is remembered of the cluster: pauses, and who was let go.
    pub notes: &'a Notes,
    /// Nodes that were let go, with those that leave by our own choice and are not noted yet.
    pub let_go: BTreeMap<ClaimId, LetGo>,
    /// What is known of other clusters; none where nothing is shared with any.
    pub fleet: Option<&'a FleetView>,
    /// What was done in the cluster lately.
    pub recent: Recent,
    /// Nodes whose room a buffer needs, with the buffer's name, as last planned.
    pub held: BTreeMap<NodeName, String>,
    /// Claims of static pools without a Node that are not leaving, and how far they have come.
    pub coming: BTreeMap<PoolName, Vec<(Phase, ClaimId)>>,
}

/// When each of these was last done in a cluster; none where that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// An instance was launched.
    pub launched: Option<Timestamp>,
    /// An instance was ended.
    pub ended: Option<Timestamp>,
    /// A node was to leave and could not.
    pub failed: Option<Timestamp>,
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
        let mut let_go = self.notes.let_go.clone();
        let mut recent = self.recent;
        // What happened before the start is not known.
        recent.ended = recent.ended.max(self.started);
        recent.failed = recent.failed.max(self.started);
        let mut coming: BTreeMap<PoolName, Vec<_>> = BTreeMap::new();
        for claim in self.ledger.claims.values() {
            let pool = || claim.record.pool.clone();
            let begun = |node: &Node| node.is_initialized();
            if claim.leaving.is_some() && self.node_of(claim).is_some_and(begun) {
                *leaving.entry(pool()).or_insert(0) += 1;
            }
            if let Some(reason) = claim.leaving.filter(|own| own.is_voluntary()) {
                let id = claim.record.id.clone();
                let pool = pool();
                let one = LetGo {
                    pool,
                    reason,
                    at: now,
                };
                let_go.entry(id).or_insert(one);
            }
            let launched = claim.instance.as_ref().map(|own| own.launched);
            recent.launched = recent.launched.max(launched);
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
            notes: &self.notes,
            let_go,
            fleet: self.fleet.as_deref(),
            recent,
            held: self.held.clone(),
            coming,
        }
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
