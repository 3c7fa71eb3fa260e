//! PodDisruptionBudgets of workloads: the number of allowed disruptions, as computed by their
//! controller.

use std::collections::BTreeMap;

use crate::model::pdb::{Bound, Pdb};
use crate::model::selector::Selector;
use crate::sim::cluster::SimCluster;
use crate::sim::cluster::workload_controllers::is_healthy;
use crate::sim::workload::SimPdb;

/// Pod counts of a workload with a budget.
struct PdbCounts {
    /// The budget.
    budget: SimPdb,
    /// Desired number of pods.
    desired: i64,
    /// Healthy pods that are not being deleted.
    healthy: i64,
    /// Minimum number of healthy pods.
    least: i64,
}

impl PdbCounts {
    /// Number of pods that may be disrupted now.
    fn allowed_disruptions(&self) -> i64 {
        (self.healthy - self.least).max(0)
    }
}

impl SimCluster {
    pub(super) fn refresh_budgets(&mut self) {
        for owner in std::mem::take(&mut self.unbalanced) {
            let Some((count, owned)) = self.pdb_counts(owner).zip(self.owned.get(owner)) else {
                continue;
            };
            let labels = [("app".to_owned(), owned.workload.name.clone())].into();
            let (min_available, max_unavailable) = match count.budget {
                SimPdb::MinAvailable(pods) => (Some(Bound::Count(pods.into())), None),
                SimPdb::MaxUnavailable(pods) => (None, Some(Bound::Count(pods.into()))),
                SimPdb::MinAvailableShare(percent) => (Some(Bound::Percent(percent)), None),
                SimPdb::MaxUnavailableShare(percent) => (None, Some(Bound::Percent(percent))),
            };
            self.store.put_pdb(Pdb {
                key: owned.workload.key(),
                selector: Some(Selector::from_labels(&labels)),
                min_available,
                max_unavailable,
                disruptions_allowed: count.allowed_disruptions(),
                expected_pods: count.desired,
                current_healthy: count.healthy,
                desired_healthy: count.least,
                ..Pdb::default()
            });
        }
    }

    /// Returns each owner with a budget and running pods on a node. The values are its name, the
    /// number of pods it would lose with the node, and the number of disruptions allowed.
    pub fn displaced_pods(&self, node: &str) -> Vec<(&str, i64, i64)> {
        let mut lost_pods: BTreeMap<usize, i64> = BTreeMap::new();
        for pod in self.store.pods_on(node).filter(|pod| is_healthy(pod) && pod.deleting.is_none())
        {
            if let Some(owner) = self.owner_index(pod) {
                *lost_pods.entry(owner).or_insert(0) += 1;
            }
        }
        lost_pods
            .into_iter()
            .filter_map(|(owner, lost)| {
                let name = self.owned.get(owner)?.workload.name.as_str();
                Some((name, lost, self.allowed_disruptions(owner)?))
            })
            .collect()
    }

    /// Number of pods of a workload that may be disrupted now. `None` if it has no budget.
    pub(super) fn allowed_disruptions(&self, owner: usize) -> Option<i64> {
        Some(self.pdb_counts(owner)?.allowed_disruptions())
    }

    fn pdb_counts(&self, owner: usize) -> Option<PdbCounts> {
        let owned = self.owned.get(owner)?;
        let budget = owned.workload.budget?;
        let healthy = self
            .store
            .pods_of(&owned.workload.name)
            .filter(|pod| is_healthy(pod) && pod.deleting.is_none())
            .count();
        let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
        let desired = i64::from(owned.desired);
        let min_healthy = match budget {
            SimPdb::MinAvailable(pods) => i64::from(pods),
            SimPdb::MaxUnavailable(pods) => desired - i64::from(pods),
            SimPdb::MinAvailableShare(percent) => percentage_of(desired, percent),
            SimPdb::MaxUnavailableShare(percent) => desired - percentage_of(desired, percent),
        };
        Some(PdbCounts { budget, desired, healthy, least: min_healthy.max(0) })
    }
}

/// This percentage of a number of pods, rounded up.
fn percentage_of(pods: i64, percent: u32) -> i64 {
    (pods * i64::from(percent) + 99) / 100
}
