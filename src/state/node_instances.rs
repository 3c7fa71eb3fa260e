//! Finds Nodes whose `providerID` names the same instance: a machine has registered under two
//! names, or a user has created one of the Nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::id::{InstanceId, NodeName};
use crate::model::node::Node;

/// Nodes by the instance in their `providerID`. Nodes without a kubelet yet are excluded, because
/// the kubelet may register under a different name.
#[derive(Clone, Debug, Default)]
pub struct NodeInstances {
    by_instance: BTreeMap<InstanceId, BTreeSet<NodeName>>,
    /// Instances with more than one Node.
    shared: BTreeSet<InstanceId>,
}

impl NodeInstances {
    /// Updates a changed, new or deleted Node.
    pub(super) fn replace(&mut self, before: Option<&Node>, now: Option<&Node>) {
        let [before, now] = [before, now].map(|node| {
            let node = node.filter(|node| !node.is_awaited())?;
            Some((InstanceId::from(node.instance_id()?), node.name.clone()))
        });
        if before == now {
            return;
        }
        if let Some((id, name)) = before
            && let Some(names) = self.by_instance.get_mut(&id)
        {
            names.remove(&name);
            self.update_shared(&id);
        }
        if let Some((id, name)) = now {
            self.by_instance.entry(id.clone()).or_default().insert(name);
            self.update_shared(&id);
        }
    }

    fn update_shared(&mut self, id: &InstanceId) {
        match self.by_instance.get(id).map_or(0, BTreeSet::len) {
            0 => {
                self.by_instance.remove(id);
                self.shared.remove(id);
            }
            1 => drop(self.shared.remove(id)),
            _ => drop(self.shared.insert(id.clone())),
        }
    }

    /// Returns the instances with more than one Node, and these Nodes.
    pub fn shared_instances(&self) -> impl Iterator<Item = (&InstanceId, &BTreeSet<NodeName>)> {
        let shared = self.shared.iter();
        shared.filter_map(|id| Some((id, self.by_instance.get(id)?)))
    }

    /// Returns whether an instance has more than one Node.
    pub fn is_shared(&self, instance: &str) -> bool {
        self.shared.contains(instance)
    }

    /// Returns a different Node of the same instance.
    pub(super) fn other_node_of(&self, node: &Node) -> Option<&NodeName> {
        let id = node.instance_id().filter(|id| self.is_shared(id))?;
        let mut names = self.by_instance.get(id)?.iter();
        names.find(|name| **name != node.name)
    }
}
