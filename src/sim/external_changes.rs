//! Tracks nodes whose taint an external actor removed, and whether the daemon has observed it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::event::Event;
use crate::model::id::NodeName;
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::watched_object::{ObjectKind, WatchedObject};

/// Maximum time until the daemon adds a removed taint again, after it has observed the removal.
const PUT_BACK_MAX: SignedDuration = SignedDuration::from_secs(10);

/// A removed taint.
#[derive(Clone, Debug)]
struct Untainted {
    /// Version of the node after the removal.
    version: u64,
    /// UIDs of its pods at that time.
    pods: BTreeSet<String>,
    /// Time at which the daemon received this or a later version.
    observed: Option<Timestamp>,
}

/// Nodes whose taint was removed, with the last removal of each.
#[derive(Clone, Debug, Default)]
pub struct ExternalTaintRemovals {
    nodes: BTreeMap<NodeName, Untainted>,
}

impl ExternalTaintRemovals {
    /// Records that an external actor removed the taint of a node with these pods.
    pub fn record_removal<'a>(&mut self, node: &Node, pods: impl Iterator<Item = &'a Pod>) {
        let removal = Untainted {
            version: version_number(node),
            pods: pods.map(|pod| pod.uid.clone()).collect(),
            observed: None,
        };
        self.nodes.insert(node.name.clone(), removal);
    }

    /// Records an event that the daemon receives.
    pub fn observe_event(&mut self, event: &Event, now: Timestamp) {
        match event {
            Event::Applied(object) => self.observe_object(object, now),
            Event::Reset(ObjectKind::Node, objects) => {
                objects.iter().for_each(|object| self.observe_object(object, now));
            }
            _ => {}
        }
    }

    fn observe_object(&mut self, object: &WatchedObject, now: Timestamp) {
        let WatchedObject::Node(node) = object else {
            return;
        };
        if let Some(removal) = self.nodes.get_mut(&node.name)
            && removal.version <= version_number(node)
        {
            removal.observed.get_or_insert(now);
        }
    }

    /// Returns true if the taint of a node was removed and the daemon had not observed it at
    /// `sent`. Commands sent by then are still in flight.
    pub fn is_unobserved(&self, node: &NodeName, sent: Timestamp) -> bool {
        let removal = self.nodes.get(node);
        removal.is_some_and(|removal| removal.observed.is_none_or(|at| sent <= at))
    }

    /// Returns true if the taint of a node was ever removed.
    pub fn has_removal(&self, node: &NodeName) -> bool {
        self.nodes.contains_key(node)
    }

    /// Returns true if the daemon has just observed a removal. It adds the taint again, which is
    /// not a new disruption.
    pub fn was_just_observed(&self, node: &NodeName, now: Timestamp) -> bool {
        let observed = self.nodes.get(node).and_then(|removal| removal.observed);
        observed.is_some_and(|at| now.duration_since(at) < PUT_BACK_MAX)
    }

    /// Returns true if a pod can only be on this node because the taint was removed.
    pub fn has_admitted(&self, node: &NodeName, pod: &Pod, sent: Timestamp) -> bool {
        let removal = self.nodes.get(node).filter(|_| self.is_unobserved(node, sent));
        removal.is_some_and(|removal| !removal.pods.contains(&pod.uid))
    }
}

/// In the simulation, versions are increasing numbers.
fn version_number(node: &Node) -> u64 {
    node.version.parse().unwrap_or(0)
}
