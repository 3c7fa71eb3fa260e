//! Refuses reloads that would leave too many nodes unmanaged.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;

use crate::model::capacity_scope::CapacityScope;
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::id::ClusterName;
use crate::runtime::clusters::{ClusterSet, PrepareError};

impl ClusterSet {
    /// Returns why a new configuration is refused: managed clusters are removed, or would search
    /// their instances elsewhere, and their nodes exceed `max_disrupted_per_reload` of the current
    /// configuration. No engine would manage these nodes. To remove a cluster on purpose, set `mode
    /// = "observe"` for it first, which terminates nothing.
    pub(crate) async fn too_much(&self, wanted: &[Arc<Cluster>]) -> Option<PrepareError> {
        let wanted: BTreeMap<&ClusterName, &Cluster> = wanted
            .iter()
            .map(|cluster| (&cluster.name, &**cluster))
            .collect();
        let stays = |old: &Cluster| {
            let new = wanted.get(&old.name);
            new.is_some_and(|new| new.mode != ManagementMode::Manage || is_of_the_same(old, new))
        };
        let running = self.running.iter();
        let managed = running.filter(|(_, running)| running.cluster.mode == ManagementMode::Manage);
        let counted = join_all(managed.map(|(name, running)| async move {
            let claims = running
                .post
                .front
                .ask(|engine, _| engine.state().ledger.claims.len());
            // If another host is the leader, its count applies.
            let nodes = claims.await.unwrap_or(0);
            (name, nodes, &*running.cluster)
        }));
        let counted = counted.await;
        let most = counted
            .iter()
            .find_map(|cluster| cluster.2.safeguards.max_disrupted_per_reload)?;
        let total = counted.iter().map(|cluster| cluster.1).sum();
        let gone = counted.iter().filter(|cluster| !stays(cluster.2));
        let nodes: usize = gone.clone().map(|cluster| cluster.1).sum();
        if nodes <= most.of(total) {
            return None;
        }
        let names: Vec<&str> = gone.map(|cluster| cluster.0.as_str()).collect();
        Some(PrepareError::TooMuch {
            clusters: names.join(", "),
            nodes,
            total,
        })
    }
}

/// Returns whether two configurations of a cluster select the same instances, by the installation
/// tag and their location.
fn is_of_the_same(one: &Cluster, other: &Cluster) -> bool {
    let place = |cluster: &Cluster| {
        let installation = cluster.installation.clone();
        (
            installation,
            CapacityScope::of(cluster),
            cluster.exec.is_some(),
        )
    };
    place(one) == place(other)
}
