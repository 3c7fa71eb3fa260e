//! Rolling updates of Deployments: a quarter of the pods is replaced at a time.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::model::pod::Pod;
use crate::sim::cluster::SimCluster;
use crate::sim::cluster::workload_controllers::{is_healthy, pod_ids};

impl SimCluster {
    /// Marks all pods of a workload as outdated.
    pub(super) fn start_rollout(&mut self, owner: usize, now: Timestamp) {
        let Some(owned) = self.owned.get_mut(owner) else {
            return;
        };
        let pods = self.store.pods_of(&owned.workload.name);
        owned.outdated = pods.map(|pod| pod.uid.clone()).collect();
        self.schedule_reconcile(owner, now);
    }

    /// During a rollout, up to a quarter more pods than wanted may exist, and up to a quarter may
    /// be unready. These are the defaults of `maxSurge` (rounded up) and `maxUnavailable` (rounded
    /// down).
    pub(super) fn continue_rollout(&mut self, owner: usize, wanted: usize, now: Timestamp) {
        let owned = &self.owned[owner];
        let active = self.store.active_pods_of(&owned.workload.name);
        let (mut outdated, current): (Vec<&Pod>, Vec<&Pod>) =
            active.partition(|pod| owned.outdated.contains(&pod.uid));
        let all = outdated.iter().chain(&current);
        let ready = all.filter(|pod| is_healthy(pod)).count();
        let surge = (wanted + wanted.div_ceil(4)).saturating_sub(outdated.len() + current.len());
        let new_pods = wanted.saturating_sub(current.len()).min(surge);
        let mut spare = ready.saturating_sub(wanted - wanted / 4);
        outdated.sort_by_key(|pod| (is_healthy(pod), &pod.key));
        // Unready pods may be removed at any time. Ready pods may be removed up to
        // `maxUnavailable`.
        outdated.retain(|pod| {
            let is_removed = !is_healthy(pod) || spare > 0;
            spare = spare.saturating_sub(usize::from(is_healthy(pod)));
            is_removed
        });
        let leaving = outdated.iter().chain(current.iter().skip(wanted)).copied();
        self.delete_pods(pod_ids(leaving), now);
        for _ in 0..new_pods {
            self.make_pod(owner, None, None, now);
        }
        let Some(owned) = self.owned.get_mut(owner) else {
            return;
        };
        let pods = self.store.active_pods_of(&owned.workload.name);
        let uids: BTreeSet<&str> = pods.map(|pod| pod.uid.as_str()).collect();
        owned.outdated.retain(|uid| uids.contains(uid.as_str()));
        if owned.outdated.is_empty() {
            self.schedule_reconcile(owner, now);
        }
    }
}
