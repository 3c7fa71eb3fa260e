//! Whose taint somebody else took away, and whether the daemon could know of it.
//! It must not know what the daemon makes of it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::event::Event;
use crate::model::id::NodeName;
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::watched_object::{ObjectKind, WatchedObject};

/// A taint that was taken away is put back within this, once that is known.
const PUT_BACK_MAX: SignedDuration = SignedDuration::from_secs(10);

/// One node's taint was taken away.
#[derive(Clone, Debug)]
struct Untainted {
    /// Version of the node since.
    version: u64,
    /// UIDs of the pods it had then.
    had: BTreeSet<String>,
    /// When the daemon was told of this version, or of a later one.
    told: Option<Timestamp>,
}

/// The nodes whose taint was taken away, each the last time.
#[derive(Clone, Debug, Default)]
pub struct ExternalTaintRemovals {
    nodes: BTreeMap<NodeName, Untainted>,
}

impl ExternalTaintRemovals {
    /// Somebody has just taken the taint of a node away, which has these pods.
    pub fn untainted<'a>(&mut self, node: &Node, pods: impl Iterator<Item = &'a Pod>) {
        let own = Untainted {
            version: version(node),
            had: pods.map(|pod| pod.uid.clone()).collect(),
            told: None,
        };
        self.nodes.insert(node.name.clone(), own);
    }

    /// The daemon is told something.
    pub fn told(&mut self, event: &Event, now: Timestamp) {
        match event {
            Event::Applied(object) => self.shown(object, now),
            Event::Reset(ObjectKind::Node, objects) => {
                objects.iter().for_each(|object| self.shown(object, now));
            }
            _ => {}
        }
    }

    fn shown(&mut self, object: &WatchedObject, now: Timestamp) {
        let WatchedObject::Node(node) = object else {
            return;
        };
        if let Some(own) = self.nodes.get_mut(&node.name)
            && own.version <= version(node)
        {
            own.told.get_or_insert(now);
        }
    }

    /// Whether a node was without its taint and whoever sent a command off at `sent` had not been
    /// told. What is on its way then cannot be taken back.
    pub fn is_untold(&self, node: &NodeName, sent: Timestamp) -> bool {
        let own = self.nodes.get(node);
        own.is_some_and(|own| own.told.is_none_or(|told| sent <= told))
    }

    /// Whether somebody took the taint of a node away.
    pub fn have_untainted(&self, node: &NodeName) -> bool {
        self.nodes.contains_key(node)
    }

    /// Whether the daemon has just been told: it puts the taint back, and nothing more leaves.
    pub fn is_just_told(&self, node: &NodeName, now: Timestamp) -> bool {
        let told = self.nodes.get(node).and_then(|own| own.told);
        told.is_some_and(|at| now.duration_since(at) < PUT_BACK_MAX)
    }

    /// Whether a pod can be on this node for no other reason than that.
    pub fn has_let_in(&self, node: &NodeName, pod: &Pod, sent: Timestamp) -> bool {
        let own = self.nodes.get(node).filter(|_| self.is_untold(node, sent));
        own.is_some_and(|own| !own.had.contains(&pod.uid))
    }
}

/// Versions count up in this world.
fn version(node: &Node) -> u64 {
    node.version.parse().unwrap_or(0)
}
