//! What is taken off the Nodes of a cluster that we let go, so that nothing of them waits for us.
//! It must not know what becomes of their instances: they go on.

use crate::engine::command::NodePatch;
use crate::engine::drain::untaint_patch;
use crate::engine::registration::released;
use crate::model::labels::{MANAGED_BY, TAINT_UNREGISTERED};
use crate::model::node::Node;

/// The patch that lets a Node of this installation go: our finalizer and taints, with what was
/// written beside them. None where there is nothing of ours that anyone would wait for.
pub fn release(node: &Node, installation: &str) -> Option<NodePatch> {
    let managed_by = node.labels.get(MANAGED_BY);
    let ours = managed_by.is_some_and(|own| own == installation);
    let closed = node.is_marked() || node.has_unregistered_taint();
    let finalizers = released(node).and_then(|patch| patch.finalizers);
    if !ours || !(closed || finalizers.is_some()) {
        return None;
    }
    let mut patch = NodePatch {
        node: node.name.clone(),
        version: node.version.clone(),
        ..NodePatch::default()
    };
    if closed {
        patch = untaint_patch(node);
        let taints = patch.taints.iter_mut();
        taints.for_each(|all| all.retain(|own| own.key != TAINT_UNREGISTERED));
    }
    patch.finalizers = finalizers;
    Some(patch)
}
