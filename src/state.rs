//! Ground truth of one cluster, built from events: plain structs, no locks.
//! It must not know what is decided from it.

pub mod holds;

pub mod snapshot;

pub mod objects;

pub mod view;

pub mod ledger;

pub mod survey;

pub mod expect;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::model::claim::Phase;
use crate::model::cluster::Cluster;
use crate::model::id::NodeName;
use crate::model::object::Object;
use crate::state::expect::NOMINATED;
use crate::state::holds::Holds;
use crate::state::ledger::Ledger;
use crate::state::objects::Objects;
use crate::state::view::Views;

/// Everything known of one cluster; mutable only by its engine.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The configuration in force.
    pub cluster: Arc<Cluster>,
    /// Instance types and prices.
    pub catalog: Arc<Catalog>,
    /// Offerings not to ask for.
    pub holds: Holds,
    /// What the watches report.
    pub objects: Objects,
    /// How far the watches can be believed.
    pub views: Views,
    /// Claims, instances and nodes.
    pub ledger: Ledger,
    /// When this process first saw the cluster whole; what happened before is not known.
    pub started: Option<Timestamp>,
    nominated: BTreeMap<NodeName, Timestamp>,
    /// Whether nodes count as claims by their labels, since no instances can be listed.
    offline: bool,
}

impl State {
    /// The state of a cluster that is not watched but given at once, for offline plans.
    pub fn offline(
        cluster: Arc<Cluster>,
        catalog: Arc<Catalog>,
        objects: Vec<Object>,
        now: Timestamp,
    ) -> Self {
        let mut state = Self {
            cluster,
            catalog,
            offline: true,
            ..Self::default()
        };
        for object in objects {
            state.objects.apply(object, now);
        }
        state.objects.forget_changes();
        state
    }

    /// Expects pods on a node until a time.
    pub fn nominate(&mut self, node: NodeName, until: Timestamp) {
        let own = self.nominated.entry(node).or_insert(until);
        *own = (*own).max(until);
    }

    /// Until when pods are expected on a node.
    pub fn nominated_until(&self, node: &NodeName) -> Option<Timestamp> {
        self.nominated.get(node).copied()
    }

    /// Forgets what is over or belongs to nodes that are gone.
    pub fn expire(&mut self, now: Timestamp) {
        self.holds.expire(now);
        self.nominated.retain(|_, until| *until > now);
        self.objects.forget_gone_nodes();
        for claim in self.ledger.claims.values_mut() {
            let over = claim.since.checked_add(NOMINATED).is_ok_and(|at| at <= now);
            if claim.phase == Phase::Initialized && over {
                claim.pods.clear();
            }
        }
    }
}
