//! Removes Outrigger's taints and finalizer, which block the Nodes of a released cluster. The
//! instances of these Nodes continue to run.

use crate::engine::claims::finalizer_removal_patch;
use crate::engine::command::NodePatch;
use crate::engine::drain::untaint_patch;
use crate::model::labels::{MANAGED_BY, TAINT_UNREGISTERED};
use crate::model::node::Node;

/// Returns the patch that removes this installation's finalizer, taints, labels and annotations
/// from a Node. `None` if this installation does not manage the Node or nothing blocks it.
pub fn release(node: &Node, installation: &str) -> Option<NodePatch> {
    let managed_by = node.labels.get(MANAGED_BY);
    let ours = managed_by.is_some_and(|manager| manager == installation);
    let closed = node.is_marked() || node.has_unregistered_taint();
    let finalizers = finalizer_removal_patch(node).and_then(|patch| patch.finalizers);
    if !ours || !(closed || finalizers.is_some()) {
        return None;
    }
    let mut patch = NodePatch { ..NodePatch::for_node(node) };
    if closed {
        patch = untaint_patch(node);
        let taints = patch.taints.iter_mut();
        taints.for_each(|taints| taints.retain(|taint| taint.key != TAINT_UNREGISTERED));
    }
    patch.finalizers = finalizers;
    Some(patch)
}
