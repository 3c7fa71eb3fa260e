//! Refuses reloads that would leave too many nodes unmanaged.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;

use crate::model::capacity_scope::CapacityScope;
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::id::ClusterName;
use crate::runtime::clusters::{ClusterSet, PrepareError};

impl ClusterSet {
    /// Returns why a new configuration is refused: it removes managed clusters or makes them search
    /// for instances in a different place, and these clusters have more nodes than
    /// `max_disrupted_per_reload` of the current configuration allows. No engine would manage these
    /// nodes. To remove a cluster on purpose, set `mode = "observe"` for it first, which terminates
    /// nothing.
    pub(crate) async fn check_abandoned_nodes(
        &self,
        wanted: &[Arc<Cluster>],
    ) -> Option<PrepareError> {
        let wanted: BTreeMap<&ClusterName, &Cluster> =
            wanted.iter().map(|cluster| (&cluster.name, &**cluster)).collect();
        let running = self.running.iter();
        let managed = running.filter(|(_, running)| running.cluster.mode == ManagementMode::Manage);
        let counts = join_all(managed.map(|(name, running)| async move {
            let claims =
                running.post.front.query_engine(|engine, _| engine.state().ledger.claims.len());
            // If another host is the leader, that host counts the nodes in its own reload.
            let nodes = claims.await.unwrap_or(0);
            (name, nodes, &*running.cluster)
        }));
        let counts = counts.await;
        let limit =
            counts.iter().find_map(|(_, _, old)| old.safeguards.max_disrupted_per_reload)?;
        let total = counts.iter().map(|(_, nodes, _)| nodes).sum();
        let abandoned = counts.iter().filter(|(_, _, old)| {
            let new = wanted.get(&old.name);
            !new.is_some_and(|new| {
                new.mode != ManagementMode::Manage || selects_same_instances(old, new)
            })
        });
        let nodes: usize = abandoned.clone().map(|(_, nodes, _)| nodes).sum();
        if nodes <= limit.nodes_of(total) {
            return None;
        }
        let names: Vec<&str> = abandoned.map(|(name, ..)| name.as_str()).collect();
        Some(PrepareError::TooMuch { clusters: names.join(", "), nodes, total })
    }
}

/// Returns whether two configurations of a cluster select the same instances, by the installation
/// tag and their location.
fn selects_same_instances(one: &Cluster, other: &Cluster) -> bool {
    one.installation == other.installation
        && CapacityScope::from_cluster(one) == CapacityScope::from_cluster(other)
        && one.exec.is_some() == other.exec.is_some()
}
