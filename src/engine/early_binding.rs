//! Pods are bound to a node before its kubelet has come, and let go again if it never does.
//! It must not know why pods were planned onto it, nor how its instance is ended.
//!
//! ```text
//! launched ─► the Node is made ─► its pods are bound ─► its kubelet comes ─► registered
//!                                        └─► it never comes: the instance ends ─► the pods are
//!                                            deleted, and made anew ─► the Node is deleted
//! ```
//!
//! The Node is closed by a taint that evicts nobody, so that no other pod takes the place.

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::command::{Command, CommandResult, FailureKind, NewNode};
use crate::engine::in_flight::{ClaimStep, CommandPurpose, PodAttempt};
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Binding;
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::instance::ExpectedNode;
use crate::model::labels::{
    AWAITING_KUBELET, CAPACITY_TYPE, CLAIM, DO_NOT_SYNC_TAINTS, HOSTNAME, INSTANCE_TYPE, Labels,
    NODE_CLASS_HASH, POOL_HASH, TAINT_UNREGISTERED,
};
use crate::model::node::Node;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::node_class::image::AmiFamily;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::model::taint::{Effect, Taint};
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot_builder::node_labels;

/// The deletion of a pod whose node never came is tried so often. Then the Node goes all the same,
/// and the garbage collector of Kubernetes deletes the pod.
const DELETES_MAX: u32 = 3;

/// What a kubelet of EKS registers with, until the cloud's controller has seen the node: that one
/// looks at no node without it. Source: Kubernetes, cloud controller manager.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

impl Engine {
    /// Whether pods are bound to nodes that are still to come.
    fn is_early(&self) -> bool {
        self.state.cluster.binding == Binding::Early && !self.early_off && self.manages()
    }

    /// Another configuration is in force.
    pub(super) fn early_configured(&mut self, now: Timestamp) {
        self.early_off = false;
        if !self.is_early() {
            let why = "pods are bound by the scheduler again";
            self.withdraw(why, Command::binds_early, now);
        }
    }

    /// Makes the Node of a claim that is launched, or binds pods to it.
    pub(super) fn bind_early(&mut self, id: &ClaimId, now: Timestamp) {
        let whole = || self.is_ready() && self.fault(now).is_none();
        if !self.is_early() || !whole() {
            return;
        }
        let claim = self.state.ledger.claims.get(id);
        let claim = claim.filter(|own| own.phase == ClaimPhase::Launched && own.leaving.is_none());
        let Some(claim) = claim else {
            return;
        };
        match self.node_of(claim) {
            Some(node) if node.is_awaited() => self.bind_pods(id, &node.name.clone(), now),
            Some(_) => {}
            None => self.make_node(id, now),
        }
    }

    fn make_node(&mut self, id: &ClaimId, now: Timestamp) {
        let work = self.works.entry(id.clone()).or_default();
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        // One that is gone was deleted by someone: its kubelet makes it anew.
        if work.early.made || work.step.is_some() || claim.node.is_some() {
            return;
        }
        let to_come = claim.instance.as_ref().and_then(|own| own.node.as_deref());
        let Some(to_come) = to_come.cloned() else {
            if !std::mem::replace(&mut work.early.told, true) && !claim.pods.is_empty() {
                let (claim, why) = (id.clone(), "the name of its node is not known");
                let why = why.to_owned();
                self.report(Report::NotEarly { claim, why });
            }
            return;
        };
        // Names are used again: the Node of an instance that has ended may be there still.
        let taken = self.state.objects.nodes.contains_key(&to_come.name);
        if taken || self.bindable(claim).is_empty() {
            return;
        }
        let Some(node) = self.new_node(claim, to_come) else {
            return;
        };
        let command = Command::CreateNode(Box::new(node));
        self.step(id, ClaimStep::MakeNode, command, now);
    }

    fn bindable<'s>(&'s self, claim: &'s NodeClaim) -> Vec<&'s Pod> {
        let node = claim.instance.as_ref().and_then(|own| own.node.as_deref());
        let labels = node.map(|node| self.labels_to_come(claim, node));
        let has = (&labels.unwrap_or_default(), &self.taints_of(claim)[..]);
        self.state.bindable(claim, has)
    }

    /// The taints that a claim's node has from us once it is open.
    fn taints_of(&self, claim: &NodeClaim) -> Vec<Taint> {
        let mut taints = self.pool_of(claim).taints.clone();
        taints.extend(claim.record.startup_taints.iter().cloned());
        taints
    }

    /// The Node as its kubelet would register it, as far as that matters to pods and to us, and
    /// closed by a taint that evicts nobody. A kubelet that finds its Node keeps the labels and
    /// taints that it has. Source: Kubernetes, kubelet_node_status.go.
    fn new_node(&self, claim: &NodeClaim, to_come: ExpectedNode) -> Option<NewNode> {
        let key = &claim.instance.as_ref()?.offering;
        let catalog = self.state.catalog_of(&claim.record.pool);
        let shape = catalog.get(key.instance_type.as_str())?;
        let labels = self.labels_to_come(claim, &to_come);
        let mut annotations = self.pool_of(claim).annotations.clone();
        for (name, value) in [
            (AWAITING_KUBELET, "true"),
            (CLAIM, claim.record.id.as_str()),
            (POOL_HASH, &claim.record.pool_hash),
            (NODE_CLASS_HASH, &claim.record.node_class_hash),
        ] {
            annotations.insert(name.to_owned(), value.to_owned());
        }
        let mut taints = self.taints_of(claim);
        taints.push(Taint::new(TAINT_UNREGISTERED, Effect::NoSchedule));
        if self.is_seen_to_by_eks(claim) {
            taints.push(Taint {
                value: "true".to_owned(),
                ..Taint::new(UNINITIALIZED, Effect::NoSchedule)
            });
        }
        Some(NewNode {
            name: to_come.name,
            provider_id: to_come.provider_id,
            labels,
            annotations,
            taints,
            capacity: plain(&shape.capacity),
            allocatable: plain(&shape.allocatable),
        })
    }

    /// The labels that a claim's node is made with.
    fn labels_to_come(&self, claim: &NodeClaim, to_come: &ExpectedNode) -> Labels {
        let mut labels = self.labels_of_instance(claim, &Node::default());
        labels.extend(node_labels(claim, &self.pool_of(claim)));
        labels.insert(HOSTNAME.to_owned(), to_come.name.to_string());
        // All taints are there from the first: none comes back that a daemon took away.
        labels.insert(DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
        if let Some(instance) = &claim.instance {
            let key = &instance.offering;
            let bought = key.capacity_type.as_str().to_owned();
            labels.insert(CAPACITY_TYPE.to_owned(), bought);
            labels.insert(INSTANCE_TYPE.to_owned(), key.instance_type.to_string());
        }
        labels
    }

    /// Whether a claim's kubelet would register as those of EKS do.
    fn is_seen_to_by_eks(&self, claim: &NodeClaim) -> bool {
        let mut classes = self.state.cluster.node_classes.iter();
        let class = classes.find(|own| Some(&own.name) == claim.record.node_class.as_ref());
        class.is_some_and(|own| own.bootstrap == Bootstrap::Eks && own.family != AmiFamily::Custom)
    }

    /// The Node of a claim was made, or not. Returns whether it is to be tried again.
    pub(super) fn node_made(
        &mut self,
        id: &ClaimId,
        answer: &CommandResult,
        now: Timestamp,
    ) -> bool {
        let kind = match answer {
            CommandResult::Failed { kind, .. } => Some(*kind),
            _ => None,
        };
        if kind == Some(FailureKind::Denied) {
            self.give_up_early("Nodes may not be made", now);
        }
        let again = matches!(
            kind,
            Some(FailureKind::Throttled | FailureKind::Unknown | FailureKind::Withdrawn)
        );
        if again {
            return true;
        }
        // Where there is one of that name, the watch shows whose it is.
        self.works.entry(id.clone()).or_default().early.made = true;
        let claim = self.state.ledger.claims.get(id);
        let node = claim.and_then(|own| Some(own.instance.as_ref()?.node.as_ref()?.name.clone()));
        if let Some(node) = node.filter(|_| kind.is_none() && self.is_early()) {
            self.bind_pods(id, &node, now);
        }
        false
    }

    fn bind_pods(&mut self, id: &ClaimId, node: &NodeName, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        // A bind cannot be taken back.
        if !self.is_ready() || self.fault(now).is_some() || claim.leaving.is_some() {
            return;
        }
        let pods = self.bindable(claim);
        let pods: Vec<(PodKey, String)> = pods
            .into_iter()
            .map(|pod| (pod.key.clone(), pod.uid.clone()))
            .collect();
        for (pod, uid) in pods {
            let work = self.works.entry(id.clone()).or_default();
            let own = work.early.binds.entry(pod.clone()).or_default();
            if own.begin(&uid, now) {
                let flight = CommandPurpose::Bind(id.clone(), pod.clone());
                let node = node.clone();
                self.issue(Command::Bind { pod, uid, node }, flight, now);
            } else if let Some(at) = own.waits() {
                self.wake_at(at, "a pod is to be bound");
            }
        }
    }

    /// A pod was bound to the node of a claim, or not. One that somebody else has bound is let be.
    pub(super) fn bound(
        &mut self,
        id: &ClaimId,
        pod: &PodKey,
        answer: &CommandResult,
        now: Timestamp,
    ) {
        let denied = matches!(
            answer,
            CommandResult::Failed {
                kind: FailureKind::Denied,
                ..
            }
        );
        let Some(work) = self.works.get_mut(id) else {
            return;
        };
        let early = &mut work.early;
        early.bound += usize::from(*answer == CommandResult::Done);
        self.early_binds |= *answer == CommandResult::Done;
        if let Some(own) = early.binds.get_mut(pod) {
            own.end(answer, &mut self.rng, now);
        }
        if early.binds.values().all(|own| !own.in_flight) {
            let pods = std::mem::take(&mut early.bound);
            self.tell_bound(id, pods, now);
        }
        // Where others were bound, this one alone may not be: its namespace is going, for one.
        if denied && !self.early_binds {
            self.give_up_early("pods may not be bound", now);
        }
    }

    fn tell_bound(&mut self, id: &ClaimId, pods: usize, now: Timestamp) {
        let claim = self.state.ledger.claims.get(id).filter(|_| pods > 0);
        let Some(claim) = claim else { return };
        let node = claim.instance.as_ref().and_then(|own| own.node.as_ref());
        if let Some(node) = node.map(|own| own.name.clone()) {
            let (claim, after) = (id.clone(), now.duration_since(claim.since));
            self.report(Report::BoundEarly {
                claim,
                node,
                pods,
                after,
            });
        }
    }

    /// Nothing is bound early any more before the next configuration.
    fn give_up_early(&mut self, why: &str, now: Timestamp) {
        if !std::mem::replace(&mut self.early_off, true) {
            self.withdraw(why, Command::binds_early, now);
        }
    }

    /// A Node of another name than was said has come for an instance whose Node is awaited: pods
    /// are not bound to names that nobody will have.
    pub(super) fn misnamed(&mut self, id: &ClaimId, now: Timestamp) {
        let (claim, why) = (id.clone(), "its node has another name than was said");
        let why = why.to_owned();
        self.report(Report::NotEarly { claim, why });
        self.give_up_early("nodes have other names than was said", now);
    }

    /// Whether a Node awaits a kubelet that has come under another name.
    pub(super) fn is_misnamed(&self, node: &Node) -> bool {
        let id = node.instance_id().filter(|_| node.is_awaited());
        let id = id.and_then(|own| self.state.ledger.by_instance(own));
        let claim = id.and_then(|id| self.state.ledger.claims.get(id));
        let other = claim.and_then(|claim| self.node_of(claim));
        let has_come = |other: &Node| other.has_kubelet || other.ready;
        other.is_some_and(|other| other.name != node.name && has_come(other))
    }

    /// Has the pods go that are bound to a Node whose kubelet never came and never will: they have
    /// never run, and whoever made them makes them anew. Returns whether there are any left.
    pub(super) fn unbind_pods(&mut self, node: &NodeName, now: Timestamp) -> bool {
        let known = self.state.objects.nodes.get(node);
        if !known.is_some_and(Node::is_awaited) {
            return false;
        }
        let pods = self.state.objects.pods_on(node.as_str());
        let goes = |pod: &&Pod| pod.occupies_node() && pod.owner.is_some() && pod.started.is_none();
        let pods: Vec<(PodKey, String)> = pods
            .filter(goes)
            .map(|pod| (pod.key.clone(), pod.uid.clone()))
            .collect();
        let mut left = false;
        for (pod, uid) in pods {
            let own = self.unbinding.entry(pod.clone()).or_default();
            if own.begin(&uid, now) {
                let flight = CommandPurpose::Unbind(pod.clone());
                let grace_seconds = 0;
                let delete = Command::DeletePod {
                    pod,
                    uid,
                    grace_seconds,
                };
                self.issue(delete, flight, now);
                left = true;
            } else if !own.over {
                left = true;
                if let Some(at) = own.waits() {
                    self.wake_at(at, "a pod is to be deleted");
                }
            }
        }
        left
    }

    /// A pod was deleted whose node never came, or not.
    pub(super) fn unbound(&mut self, pod: &PodKey, answer: &CommandResult, now: Timestamp) {
        if let Some(own) = self.unbinding.get_mut(pod) {
            own.end(answer, &mut self.rng, now);
            own.over |= own.tries >= DELETES_MAX;
        }
    }
}

impl PodAttempt {
    /// Whether it is to be sent off now, for the pod of this UID.
    fn begin(&mut self, uid: &str, now: Timestamp) -> bool {
        if self.uid != uid {
            *self = Self {
                uid: uid.to_owned(),
                ..Self::default()
            };
        }
        let due = !self.in_flight && !self.over && self.retry.is_due(now);
        self.in_flight |= due;
        due
    }

    fn end(&mut self, answer: &CommandResult, rng: &mut fastrand::Rng, now: Timestamp) {
        use FailureKind::{Throttled, Unknown, Withdrawn};
        self.in_flight = false;
        self.tries += 1;
        match answer {
            CommandResult::Failed {
                kind: Throttled | Unknown | Withdrawn,
                ..
            } => self.retry.failed(now, rng),
            _ => self.over = true,
        }
    }

    /// When it may be tried again.
    fn waits(&self) -> Option<Timestamp> {
        self.retry.next().filter(|_| !self.in_flight && !self.over)
    }
}

/// Without what only devices and their plugins bring.
fn plain(resources: &Resources) -> Resources {
    Resources {
        extended: Default::default(),
        ..resources.clone()
    }
}
