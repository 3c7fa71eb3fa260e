//! What a reload may not do, whatever the configuration says.
//! It must not know where the configuration comes from.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;

use crate::model::capacity_scope::CapacityScope;
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::id::ClusterName;
use crate::runtime::clusters::{ClusterSet, PrepareError};

impl ClusterSet {
    /// Why nothing of a new configuration is taken in: managed clusters are not in it any more, or
    /// would look for their instances elsewhere, and with them more nodes than `max_retired` of the
    /// configuration in force lets a change concern. Nobody would look after them, and no one
    /// engine sees it. Whoever means it says `mode = "observe"` for the cluster first, which ends
    /// nothing.
    pub(crate) async fn too_much(&self, wanted: &[Arc<Cluster>]) -> Option<PrepareError> {
        let wanted: BTreeMap<&ClusterName, &Cluster> =
            wanted.iter().map(|own| (&own.name, &**own)).collect();
        let stays = |old: &Cluster| {
            let new = wanted.get(&old.name);
            new.is_some_and(|new| new.mode != ManagementMode::Manage || is_of_the_same(old, new))
        };
        let running = self.running.iter();
        let managed = running.filter(|(_, own)| own.cluster.mode == ManagementMode::Manage);
        let counted = join_all(managed.map(|(name, own)| async move {
            let claims = own
                .post
                .front
                .ask(|engine, _| engine.state().ledger.claims.len());
            // Where another host leads, that one counts.
            let nodes = claims.await.unwrap_or(0);
            (name, nodes, &*own.cluster)
        }));
        let counted = counted.await;
        let most = counted.iter().find_map(|own| own.2.brakes.max_retired)?;
        let total = counted.iter().map(|own| own.1).sum();
        let gone = counted.iter().filter(|own| !stays(own.2));
        let nodes: usize = gone.clone().map(|own| own.1).sum();
        if nodes <= most.of(total) {
            return None;
        }
        let names: Vec<&str> = gone.map(|own| own.0.as_str()).collect();
        Some(PrepareError::TooMuch {
            clusters: names.join(", "),
            nodes,
            total,
        })
    }
}

/// Whether the instances of one are those of the other: by the installation in their tags, and
/// where they are.
fn is_of_the_same(one: &Cluster, other: &Cluster) -> bool {
    let place = |own: &Cluster| {
        let installation = own.installation.clone();
        (installation, CapacityScope::of(own), own.exec.is_some())
    };
    place(one) == place(other)
}
