//! Values that metrics show in addition to the cluster state and the reports.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::Engine;
use crate::model::id::{PodKey, PoolName};
use crate::model::pool::Reason;
use crate::model::sweep::SweepKind;
use crate::state::sweeps::SweepProgress;

/// Measured values of an engine.
#[derive(Clone, Debug, Default)]
pub struct Measures<'e> {
    /// Number of nodes of each pool that its budgets count, and how many of them are disrupted or
    /// not ready, at the last check for due disruptions.
    pub budget_counts: BTreeMap<PoolName, (usize, usize)>,
    /// Number of pods that were unschedulable in the last plan.
    pub unschedulable: usize,
    /// Pending pods that have not been planned yet, with the times at which the engine first saw
    /// them. Pods that are bound and will be rescheduled are not included.
    pub unplanned: Vec<(&'e PodKey, Timestamp)>,
    /// Pools with blocked disruptions, their reasons and their blockers.
    pub blocked: Vec<&'e (PoolName, Reason, &'static str)>,
    /// The scheduled sweeps, by kind.
    pub sweeps: Vec<(SweepKind, &'e SweepProgress)>,
}

impl Engine {
    /// Returns the measured values.
    pub fn measures(&self) -> Measures<'_> {
        // Without claims no sweep takes place, so the last numbers are outdated.
        let counts = Some(&self.provisioning.budget_counts);
        let counts = counts.filter(|_| !self.cx.state.ledger.claims.is_empty());
        let pods = &self.cx.state.objects.pods;
        let unplanned = self.cx.batcher.unplanned_pods();
        let unplanned =
            unplanned.filter(|(key, _)| pods.get(*key).is_some_and(|pod| pod.node.is_none()));
        Measures {
            budget_counts: counts.cloned().unwrap_or_default(),
            unschedulable: self.provisioning.rejections.len(),
            unplanned: unplanned.collect(),
            blocked: self.lease.blocked_disruptions().iter().collect(),
            sweeps: self.cx.state.sweeps.iter().collect(),
        }
    }
}
