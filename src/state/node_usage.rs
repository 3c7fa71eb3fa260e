//! Sums the resource requests of the pods of one node, incrementally.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::id::ObjectKey;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::state::bound_pods::change_count;

/// A host port: protocol, address (empty for all) and number.
type UsedPort = (String, String, u16);

/// Total usage of the active pods of a node.
///
/// Sums are wider than single quantities, so that subtracting a pod always reverses adding it. Host
/// ports, DaemonSets and volume claims have a count of pods, because several pods may use the same
/// one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeUsage {
    cpu_milli: i128,
    memory: i128,
    ephemeral_storage: i128,
    pods: i128,
    extended: BTreeMap<String, i128>,
    ports: BTreeMap<UsedPort, u32>,
    daemons: BTreeMap<ObjectKey, u32>,
    claims: BTreeMap<ObjectKey, u32>,
}

impl NodeUsage {
    /// Adds a pod to the totals, or removes it with the same properties with which it was added.
    pub(super) fn count_pod(&mut self, pod: &Pod, comes: bool) {
        if pod.is_terminal() {
            return;
        }
        let sign = if comes { 1 } else { -1 };
        let asked = &pod.requests;
        self.cpu_milli += sign * i128::from(asked.cpu_milli);
        self.memory += sign * i128::from(asked.memory);
        self.ephemeral_storage += sign * i128::from(asked.ephemeral_storage);
        self.pods += sign * i128::from(asked.pods);
        for (name, amount) in &asked.extended {
            let sum = self.extended.entry(name.clone()).or_insert(0);
            *sum += sign * i128::from(*amount);
            if *sum == 0 {
                self.extended.remove(name);
            }
        }
        for port in &pod.host_ports {
            change_count(&mut self.ports, port, comes);
        }
        for name in pod.volume_claims.iter().collect::<BTreeSet<_>>() {
            let claim = ObjectKey::new(pod.key.namespace.as_str(), name.as_str());
            change_count(&mut self.claims, &claim, comes);
        }
        if let Some(owner) = pod.owner.as_ref().filter(|_| pod.is_daemon()) {
            let set = ObjectKey::new(pod.key.namespace.as_str(), owner.name.as_str());
            change_count(&mut self.daemons, &set, comes);
        }
    }

    /// Returns the sum of the requests, limited to the range of quantities.
    pub(super) fn requests(&self) -> Resources {
        let extended = self.extended.iter();
        Resources {
            cpu_milli: clamp_to_i64(self.cpu_milli),
            memory: clamp_to_i64(self.memory),
            ephemeral_storage: clamp_to_i64(self.ephemeral_storage),
            pods: clamp_to_i64(self.pods),
            extended: extended
                .map(|(name, amount)| (name.clone(), clamp_to_i64(*amount)))
                .collect(),
        }
    }

    /// Returns the host ports that the pods use.
    pub(super) fn host_ports(&self) -> BTreeSet<UsedPort> {
        self.ports.keys().cloned().collect()
    }

    /// Returns the volume claims that the pods use, each once.
    pub(super) fn volume_claims(&self) -> impl Iterator<Item = &ObjectKey> {
        self.claims.keys()
    }

    /// Returns whether a pod uses this PersistentVolumeClaim.
    pub(super) fn has_claim(&self, claim: &ObjectKey) -> bool {
        self.claims.contains_key(claim)
    }

    /// Returns whether a pod of this DaemonSet runs on the node.
    pub(super) fn has_daemon(&self, set: &ObjectKey) -> bool {
        self.daemons.contains_key(set)
    }
}

fn clamp_to_i64(sum: i128) -> i64 {
    i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX })
}
