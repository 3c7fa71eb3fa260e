//! PodDisruptionBudgets of workloads: the number of allowed disruptions, as computed by their
//! controller.

use std::collections::BTreeMap;

use crate::model::pdb::{Bound, Pdb};
use crate::model::selector::Selector;
use crate::sim::cluster::SimCluster;
use crate::sim::cluster::workload_controllers::is_healthy;
use crate::sim::workload::SimPdb;

impl SimCluster {
    pub(super) fn refresh_budgets(&mut self) {
        for owner in std::mem::take(&mut self.unbalanced) {
            if let Some(pdb) = self.pdb_of(owner) {
                self.store.put_pdb(pdb);
            }
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
        Some(self.pdb_of(owner)?.disruptions_allowed)
    }

    /// The PodDisruptionBudget of a workload with its current counts.
    fn pdb_of(&self, owner: usize) -> Option<Pdb> {
        let owned = self.owned.get(owner)?;
        let budget = owned.workload.budget?;
        let healthy = self
            .store
            .pods_of(&owned.workload.name)
            .filter(|pod| is_healthy(pod) && pod.deleting.is_none())
            .count();
        let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
        let desired = i64::from(owned.desired);
        let (min_available, max_unavailable, min_healthy) = match budget {
            SimPdb::MinAvailable(pods) => (Some(Bound::Count(pods.into())), None, pods.into()),
            SimPdb::MaxUnavailable(pods) => {
                (None, Some(Bound::Count(pods.into())), desired - i64::from(pods))
            }
            SimPdb::MinAvailableShare(percent) => {
                let min_healthy = percentage_of(desired, percent);
                (Some(Bound::Percent(percent)), None, min_healthy)
            }
            SimPdb::MaxUnavailableShare(percent) => {
                let min_healthy = desired - percentage_of(desired, percent);
                (None, Some(Bound::Percent(percent)), min_healthy)
            }
        };
        let min_healthy = min_healthy.max(0);
        let labels = [("app".to_owned(), owned.workload.name.clone())].into();
        Some(Pdb {
            key: owned.workload.key(),
            selector: Some(Selector::from_labels(&labels)),
            min_available,
            max_unavailable,
            disruptions_allowed: (healthy - min_healthy).max(0),
            expected_pods: desired,
            current_healthy: healthy,
            desired_healthy: min_healthy,
            ..Pdb::default()
        })
    }
}

/// This percentage of a number of pods, rounded up.
fn percentage_of(pods: i64, percent: u32) -> i64 {
    (pods * i64::from(percent) + 99) / 100
}
