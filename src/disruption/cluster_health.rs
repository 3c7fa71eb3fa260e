//! Whether a cluster is well enough for any of its nodes to leave on purpose.
//! It must not know who would leave, nor why.
//!
//! Nodes that turn not ready by the dozen are hardly broken each for itself: the way to them may
//! be, and what is moved off them by then would find no place. Source: Cluster Autoscaler.

use crate::model::cluster::UNREADY_MIN;
use crate::state::candidates::{DisruptionView, NodeHealth};

/// How many nodes are not ready, if these are too many.
pub fn ailing(roster: &DisruptionView<'_>) -> Option<NodeHealth> {
    let NodeHealth { unready, total } = roster.health;
    let most = roster.cluster.brakes.unready_max.of(total);
    (unready >= UNREADY_MIN && unready > most).then_some(roster.health)
}
