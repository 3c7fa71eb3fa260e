//! Suspends voluntary disruption while too many nodes of a cluster are not ready.
//!
//! If many nodes become not ready together, the cause is likely shared, such as the network. Pods
//! evicted at such a time would not find a node. Source: Cluster Autoscaler.

use crate::model::cluster::UNREADY_MIN;
use crate::state::candidates::{DisruptionView, NodeHealth};

/// Returns the number of nodes that are not ready, if this number is too high.
pub fn excess_unready(disruption_view: &DisruptionView<'_>) -> Option<NodeHealth> {
    let NodeHealth { unready, total } = disruption_view.health;
    let max_unready = disruption_view.cluster.safeguards.max_unready.nodes_of(total);
    (unready >= UNREADY_MIN && unready > max_unready).then_some(disruption_view.health)
}
