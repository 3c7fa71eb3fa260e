//! Status of one cluster.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::coordination::lease_annotations::Pause;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::model::id::PoolName;
use crate::model::sweep::SweepKind;
use crate::state::sweeps::{SweepProgress, SweepResult};

/// The status of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// `observe` or `manage`.
    pub mode: String,
    /// Why voluntary disruption is suspended, if the cluster state is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Optional features that are off because a permission is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<String>,
    /// Number of Node objects, managed or not.
    pub nodes: usize,
    /// Number of initialized nodes that are not ready and not being disrupted.
    pub unready_nodes: usize,
    /// Number of pending pods. Running pods that are being rescheduled are not counted.
    pub waiting_pods: usize,
    /// Number of pending pods that were unschedulable in the last plan.
    pub unplaced_pods: usize,
    /// Price per hour of the instances of this cluster in US dollars, if the catalog knows it.
    pub cost_per_hour: f64,
    /// The pause of the whole cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// Nodes that a configuration change would disrupt and that wait for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unaccepted: Option<Unaccepted>,
    /// Instances whose termination without a drain waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_ends: Option<Unaccepted>,
    /// Code of the mismatch between the API server and the instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
    /// Its scheduled sweeps, by kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweeps: Vec<SweepStatus>,
    /// Its pools by name: all configured pools, and removed pools that still have nodes.
    pub pools: Vec<PoolStatus>,
}

/// The status of one pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// True if it is in the configuration.
    pub configured: bool,
    /// Number of nodes that run pods.
    pub ready: usize,
    /// Number of initialized nodes that are not ready.
    pub unready: usize,
    /// Number of nodes being launched.
    pub starting: usize,
    /// Number of nodes being disrupted.
    pub leaving: usize,
    /// Maximum number of nodes, or the node count of a static pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Price per hour of its instances in US dollars, if the catalog knows it.
    pub cost_per_hour: f64,
    /// The pause of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
}

/// The scheduled sweeps of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepStatus {
    /// The kind.
    pub kind: String,
    /// The occurrence of the last sweep, possibly on a different host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// When the next sweep runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// True if no sweep has run for two periods.
    #[serde(default)]
    pub overdue: bool,
    /// What the last sweep found. `None` if a different engine ran it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<SweepFindings>,
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepFindings {
    /// Number of nodes that it disrupted.
    pub disrupted: usize,
    /// Number of nodes that were due but blocked.
    pub blocked: usize,
    /// Number of nodes that were only observed.
    #[serde(default)]
    pub observed: usize,
}

impl SweepStatus {
    fn new(kind: SweepKind, sweep: &SweepProgress, now: Timestamp) -> Self {
        let found = sweep.result.map(|result| {
            let SweepResult { disrupted, blocked, observed } = result;
            SweepFindings { disrupted, blocked, observed }
        });
        Self {
            kind: kind.as_str().to_owned(),
            last: sweep.last,
            next: sweep.next(),
            overdue: sweep.overdue_at().is_some_and(|at| at <= now),
            found,
        }
    }
}

/// An active pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// End of the pause. `None` means until resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The reason, as given by the user.
    pub reason: String,
}

impl From<&Pause> for Paused {
    fn from(pause: &Pause) -> Self {
        Self { until: pause.until, reason: pause.reason.clone() }
    }
}

/// Nodes or instances that wait for approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unaccepted {
    /// The ID to approve.
    pub id: String,
    /// Number of nodes or instances.
    pub nodes: usize,
    /// Number of all nodes or running instances, for comparison.
    pub total: usize,
}

impl Engine {
    /// Returns the current status.
    pub fn status(&self, now: Timestamp) -> ClusterStatus {
        let state = &self.cx.state;

        let unaccepted = state.unaccepted.as_ref().map(|approval| Unaccepted {
            id: approval.id.clone(),
            nodes: approval.nodes.len(),
            total: approval.total,
        });
        let held_ends = self.held_terminations().map(|held| Unaccepted {
            id: held.id.clone(),
            nodes: held.claims.len(),
            total: held.total,
        });
        let mut cost_per_hour = 0.0;
        let pools = state.stats_by_pool().into_iter().map(|(name, held)| {
            let pool = state.cluster.pool(name.as_str());
            let status = PoolStatus {
                name: name.to_string(),
                configured: pool.is_some(),
                ready: held.nodes.ready,
                unready: held.nodes.unready,
                starting: held.nodes.starting,
                leaving: held.nodes.leaving,
                limit: pool.and_then(|pool| pool.replicas.or(pool.limits.nodes)),
                cost_per_hour: held.cost.usd_per_h(),
                paused: active_pause(&self.cx, Some(&name), now),
            };
            cost_per_hour += status.cost_per_hour;
            status
        });
        let pools = pools.collect();
        let waiting = state.waiting_pods(now);
        let waiting = waiting.iter().filter(|pod| pod.is_waiting());
        ClusterStatus {
            mode: state.cluster.mode.as_str().to_owned(),
            held_by: self.cx.missing_information(now),
            undone: self.disabled_features().into_iter().map(str::to_owned).collect(),
            nodes: state.objects.nodes.len(),
            unready_nodes: state.node_health().unready,
            waiting_pods: waiting.clone().count(),
            unplaced_pods: waiting
                .filter(|pod| self.provisioning.rejections.contains_key(&pod.key))
                .count(),
            cost_per_hour,
            paused: active_pause(&self.cx, None, now),
            unaccepted,
            held_ends,
            mismatch: self.mismatch().map(|mismatch| mismatch.code().to_owned()),
            sweeps: state
                .sweeps
                .iter()
                .map(|(kind, sweep)| SweepStatus::new(kind, sweep, now))
                .collect(),
            pools,
        }
    }
}

/// Returns the active pause of a pool, or of the whole cluster.
fn active_pause(cx: &Context, pool: Option<&PoolName>, now: Timestamp) -> Option<Paused> {
    let pause = cx.state.notes.pauses.get(&pool.cloned());
    pause.filter(|pause| pause.is_active(now)).map(Paused::from)
}
