//! What a reload may not do, whatever the configuration says.
//! It must not know where the configuration comes from.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;

use crate::model::cluster::{Cluster, Mode};
use crate::model::id::ClusterName;
use crate::shell::drivers::{Drivers, PrepareError};

impl Drivers {
    /// Why nothing of a new configuration is taken in: managed clusters are not in it any more, and
    /// with them more nodes than `max_retired` of the configuration in force lets a change concern.
    /// Nobody would look after them, and no one engine sees it. Whoever means it says `mode =
    /// "observe"` for the cluster first, which ends nothing.
    pub(crate) async fn too_much(&self, wanted: &[Arc<Cluster>]) -> Option<PrepareError> {
        let stay: BTreeSet<&ClusterName> = wanted.iter().map(|own| &own.name).collect();
        let running = self.running.iter();
        let managed = running.filter(|(_, own)| own.cluster.mode == Mode::Manage);
        let counted = join_all(managed.map(|(name, own)| async move {
            let claims = own
                .post
                .front
                .ask(|engine, _| engine.state().ledger.claims.len());
            // Where another host leads, that one counts.
            let nodes = claims.await.unwrap_or(0);
            (name, nodes, own.cluster.brakes.max_retired)
        }));
        let counted = counted.await;
        let most = counted.iter().find_map(|own| own.2)?;
        let total = counted.iter().map(|own| own.1).sum();
        let gone = counted.iter().filter(|own| !stay.contains(own.0));
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
