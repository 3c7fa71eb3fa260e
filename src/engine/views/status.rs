//! One cluster at a glance, for people who ask how it is doing.
//! It must not know how it is shown.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::coordination::lease_annotations::Pause;
use crate::engine::Engine;
use crate::model::id::PoolName;

/// How a cluster is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// `observe` or `manage`.
    pub mode: String,
    /// Why nothing voluntary is done; none where all is known that has to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// What is left undone for want of a right that the daemon can go on without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<String>,
    /// Node objects, whoever made them.
    pub nodes: usize,
    /// Nodes that have started, are not ready and are not leaving.
    pub unready_nodes: usize,
    /// Pods that wait for capacity; those that run and have to move are none of them.
    pub waiting_pods: usize,
    /// Those of them that cannot have any, as last planned.
    pub unplaced_pods: usize,
    /// What our instances cost, as far as the catalog knows, in US dollars.
    pub cost_per_hour: f64,
    /// The pause of the whole cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// Nodes that another configuration has made due, until somebody accepts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unaccepted: Option<Unaccepted>,
    /// Instances that the brake on ends without a drain holds until a person accepts their ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_ends: Option<Unaccepted>,
    /// The code of why the API server and the instances cannot be of one cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
    /// Its pools by name: those that are configured, and those that still have something.
    pub pools: Vec<PoolStatus>,
}

/// How one pool is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Whether it is in the configuration.
    pub configured: bool,
    /// Nodes that run pods.
    pub ready: usize,
    /// Nodes that have started and are not ready.
    pub unready: usize,
    /// Nodes that are on their way.
    pub starting: usize,
    /// Nodes that are leaving.
    pub leaving: usize,
    /// How many nodes it may have at most, or shall have whatever pods ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// What its instances cost, as far as the catalog knows, in US dollars.
    pub cost_per_hour: f64,
    /// Its own pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
}

/// A pause that holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// When it is over; none means when somebody ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Why, in the words of whoever asked for it.
    pub reason: String,
}

impl From<&Pause> for Paused {
    fn from(pause: &Pause) -> Self {
        Self {
            until: pause.until,
            reason: pause.reason.clone(),
        }
    }
}

/// Nodes or instances that Outrigger holds until a person accepts the ID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unaccepted {
    /// What to accept.
    pub id: String,
    /// How many.
    pub nodes: usize,
    /// Of so many.
    pub total: usize,
}

impl Engine {
    /// How its cluster is doing now.
    pub fn status(&self, now: Timestamp) -> ClusterStatus {
        let state = &self.state;
        let pause_of = |pool: Option<&PoolName>| {
            let pause = state.notes.pauses.get(&pool.cloned());
            pause.filter(|own| own.holds(now)).map(Paused::from)
        };
        let unaccepted = state.unaccepted.as_ref().map(|own| Unaccepted {
            id: own.id.clone(),
            nodes: own.nodes.len(),
            total: own.total,
        });
        let held_ends = self.held_ends().map(|own| Unaccepted {
            id: own.id.clone(),
            nodes: own.claims.len(),
            total: own.total,
        });
        let mut cost_per_hour = 0.0;
        let holdings = state.holdings().into_iter();
        let pools = holdings.map(|(name, held)| {
            let pool = state.cluster.pool(name.as_str());
            let own = PoolStatus {
                name: name.to_string(),
                configured: pool.is_some(),
                ready: held.nodes.ready,
                unready: held.nodes.unready,
                starting: held.nodes.starting,
                leaving: held.nodes.leaving,
                limit: pool.and_then(|own| own.replicas.or(own.limits.nodes)),
                cost_per_hour: held.cost.usd_per_h(),
                paused: pause_of(Some(&name)),
            };
            cost_per_hour += own.cost_per_hour;
            own
        });
        let pools = pools.collect();
        let waiting = state.waiting(now);
        let waiting = waiting.iter().filter(|pod| pod.is_waiting());
        ClusterStatus {
            mode: state.cluster.mode.as_str().to_owned(),
            held_by: self.missing(now),
            undone: self.undone().into_iter().map(str::to_owned).collect(),
            nodes: state.objects.nodes.len(),
            unready_nodes: state.health().unready,
            waiting_pods: waiting.clone().count(),
            unplaced_pods: waiting
                .filter(|pod| self.told.contains_key(&pod.key))
                .count(),
            cost_per_hour,
            paused: pause_of(None),
            unaccepted,
            held_ends,
            mismatch: self.mismatch().map(|own| own.code().to_owned()),
            pools,
        }
    }
}
