//! Each claim's next step, from Planned to Gone, and the deadlines on the way.
//! It must not know why a claim was planned or is to leave.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, Launch, NodePatch};
use crate::engine::report::Report;
use crate::engine::work::{FlightKind, Step};
use crate::model::claim::Phase;
use crate::model::id::{ClaimId, NodeName};
use crate::model::instance::InstanceState;
use crate::model::labels::{
    CAPACITY_TYPE, CLAIM, DO_NOT_SYNC_TAINTS, INITIALIZED, INITIALIZED_AT, MANAGED_BY, NODE_CLASS,
    NODE_CLASS_HASH, POOL_HASH, REGISTERED, TAINT_UNREGISTERED,
};
use crate::model::node::Node;
use crate::model::object::Kind;
use crate::model::pool::{Pool, Reason};
use crate::model::taint::{Effect, Taint};
use crate::state::ledger::Claim;
use crate::state::survey::pool_labels;

/// A Node that vanished while its instance runs was deleted by someone: the instance follows after
/// this long, in case the Node comes back.
const NODE_MISSED_MAX: SignedDuration = SignedDuration::from_secs(60);

/// Nodes are listed once more before an instance ends for want of one, and again after this long
/// if that listing does not come.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// A Node of ours whose instance is unknown is removed after this long, once it is not ready.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_secs(60);

impl Engine {
    /// Links nodes to claims by instance id.
    pub(super) fn join_nodes(&mut self) {
        for node in self.state.objects.nodes.values() {
            let Some(instance) = node.instance_id() else {
                continue;
            };
            let Some(id) = self.state.ledger.by_instance(instance).cloned() else {
                continue;
            };
            let Some(claim) = self.state.ledger.claims.get_mut(&id) else {
                continue;
            };
            if claim.node.is_none() {
                claim.node = Some(node.name.clone());
            }
        }
    }

    /// Takes every claim as far as it can go now.
    pub(super) fn advance_claims(&mut self, now: Timestamp) {
        let ids: Vec<ClaimId> = self.state.ledger.claims.keys().cloned().collect();
        for id in ids {
            let work = self.works.entry(id.clone()).or_default();
            if work.step.is_some() {
                continue;
            }
            if let Some(at) = work.retry.next().filter(|_| !work.retry.is_due(now)) {
                self.wake_at(at, "a step is to be tried again");
                continue;
            }
            let Some(claim) = self.state.ledger.claims.get(&id) else {
                continue;
            };
            if self.instance_ended(claim) && claim.phase != Phase::Terminating {
                self.end(&id, claim.leaving.unwrap_or(Reason::Orphaned), now);
            }
            self.advance(&id, now);
        }
        self.works
            .retain(|id, _| self.state.ledger.claims.contains_key(id));
    }

    /// Gone for sure: the provider says so, or it is missing and the kubelet is silent as well.
    fn instance_ended(&self, claim: &Claim) -> bool {
        let silent = claim
            .node
            .as_ref()
            .and_then(|name| self.state.objects.nodes.get(name))
            .is_none_or(|node| !node.ready);
        let ended = claim
            .instance
            .as_ref()
            .is_some_and(|instance| instance.state == InstanceState::Terminated);
        ended || (claim.instance_is_gone() && silent)
    }

    fn advance(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        match claim.phase {
            Phase::Planned | Phase::Launching => self.launch(id, now),
            Phase::Launched => self.register(id, now),
            Phase::Registered => self.initialize(id, now),
            Phase::Initialized => self.guard(id, now),
            Phase::Draining => self.drain(id, now),
            Phase::Terminating => self.terminate(id, now),
            Phase::Gone => self.forget_claim(id),
        }
    }

    /// Sends the one step of a claim off.
    pub(super) fn step(&mut self, id: &ClaimId, step: Step, command: Command, now: Timestamp) {
        if !self.manages() {
            return;
        }
        let flight = FlightKind::Step(id.clone());
        let patched = match &command {
            Command::PatchNode(patch) => Some(patch.version.clone()),
            _ => None,
        };
        let command = self.issue(command, flight, now);
        let work = self.works.entry(id.clone()).or_default();
        work.step = Some((command, step));
        work.patched = patched.or(work.patched.take());
    }

    /// Moves a claim on.
    pub(super) fn enter(&mut self, id: &ClaimId, phase: Phase, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return;
        };
        (claim.phase, claim.since) = (phase, now);
        let node = claim.node.clone();
        let work = self.works.entry(id.clone()).or_default();
        work.overdue = None;
        self.report(Report::ClaimPhase {
            claim: id.clone(),
            node,
            phase,
        });
        self.wake_at(now, "a claim moved on");
    }

    /// Forgets a claim that came to nothing or to its end.
    pub(super) fn forget_claim(&mut self, id: &ClaimId) {
        self.state.ledger.remove(id);
        self.works.remove(id);
    }

    /// When a phase that began at `since` and may last `timeout` is overdue. Time that went by
    /// while nothing was done does not count.
    fn deadline(&self, since: Timestamp, timeout: SignedDuration) -> Timestamp {
        let from = self
            .looking
            .thawed
            .map_or(since, |thawed| thawed.max(since));
        from.checked_add(timeout).unwrap_or(Timestamp::MAX)
    }

    fn timeouts(&self, claim: &Claim) -> Pool {
        let pool = self.state.cluster.pool(claim.record.pool.as_str());
        pool.cloned()
            .unwrap_or_else(|| Pool::new(claim.record.pool.as_str()))
    }

    fn launch(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        if claim.instance.is_some() {
            self.enter(id, Phase::Launched, now);
            return;
        }
        let pool = self.timeouts(claim);
        let deadline = self.deadline(claim.record.created, pool.launch_timeout);
        if deadline <= now {
            self.report(Report::Kept {
                claim: id.clone(),
                why: format!("it was not launched within {:#}", pool.launch_timeout),
            });
            self.forget_claim(id);
            return;
        }
        self.wake_at(deadline, "a launch is overdue");
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return;
        };
        claim.phase = Phase::Launching;
        let claim = claim.clone();
        let mut labels = pool_labels(&pool);
        labels.extend(claim.labels);
        labels.insert(MANAGED_BY.to_owned(), claim.record.installation.clone());
        if let Some(class) = &claim.record.node_class {
            labels.insert(NODE_CLASS.to_owned(), class.to_string());
        }
        let mut taints = pool.taints.clone();
        taints.extend(pool.startup_taints.iter().cloned());
        taints.push(Taint::new(TAINT_UNREGISTERED, Effect::NoExecute));
        let class = self.state.cluster.node_classes.iter();
        let class = class
            .clone()
            .find(|own| Some(&own.name) == claim.record.node_class.as_ref());
        let mut tags = self.state.cluster.tags.clone();
        tags.extend(class.map(|class| class.tags.clone()).unwrap_or_default());
        tags.extend(claim.record.tags());
        let launch = Launch {
            user_data: class
                .map(|class| class.user_data.clone())
                .unwrap_or_default(),
            claim: claim.record,
            offerings: claim.offerings,
            labels,
            taints,
            tags,
        };
        self.step(id, Step::Launch, Command::Launch(Box::new(launch)), now);
    }

    fn register(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        if let Some(node) = self.node_of(claim) {
            if node.is_registered() {
                self.enter(id, Phase::Registered, now);
                return;
            }
            if !self.is_stale(id, node) {
                let patch = self.registration(claim, node, now);
                self.step(id, Step::Register, Command::PatchNode(patch), now);
                return;
            }
        }
        let pool = self.timeouts(claim);
        let deadline = self.deadline(claim.since, pool.registration_timeout);
        if deadline > now {
            self.wake_at(deadline, "a registration is overdue");
            return;
        }
        // Its Node may exist and the watch not show it: look once more before ending it.
        let resets = self.looking.resets.get(&Kind::Node).copied().unwrap_or(0);
        let work = self.works.entry(id.clone()).or_default();
        if work.overdue.is_some_and(|(_, before)| resets > before) {
            self.end(id, Reason::TimedOut, now);
            return;
        }
        // The listing that was asked for may be lost: ask again.
        let asked = work.overdue.map(|(asked, _)| asked);
        let next = asked.and_then(|at| at.checked_add(LOOK_AGAIN).ok());
        if let Some(at) = next.filter(|at| *at > now) {
            self.wake_at(at, "a registration is overdue");
            return;
        }
        work.overdue = Some((now, resets));
        if self.manages() {
            let rewatch = Command::Rewatch { kind: Kind::Node };
            self.issue(rewatch, FlightKind::Rewatch, now);
        }
    }

    /// One patch makes a node ours: labels, annotations and taints; the unregistered taint goes.
    fn registration(&self, claim: &Claim, node: &Node, now: Timestamp) -> NodePatch {
        let pool = self.timeouts(claim);
        let mut labels = pool_labels(&pool);
        labels.extend(claim.labels.clone());
        labels.insert(MANAGED_BY.to_owned(), claim.record.installation.clone());
        labels.insert(REGISTERED.to_owned(), "true".to_owned());
        if let Some(instance) = &claim.instance {
            let bought = instance.offering.capacity_type.as_str();
            labels.insert(CAPACITY_TYPE.to_owned(), bought.to_owned());
        }
        let mut annotations = pool.annotations.clone();
        for (key, value) in [
            (CLAIM, id_text(claim)),
            (POOL_HASH, claim.record.pool_hash.clone()),
            (NODE_CLASS_HASH, claim.record.node_class_hash.clone()),
        ] {
            annotations.insert(key.to_owned(), value);
        }
        let mut taints: Vec<Taint> = node
            .taints
            .iter()
            .filter(|own| own.key != TAINT_UNREGISTERED)
            .cloned()
            .collect();
        if node
            .labels
            .get(DO_NOT_SYNC_TAINTS)
            .is_none_or(|value| value != "true")
        {
            for wanted in pool.taints.iter().chain(&claim.record.startup_taints) {
                if !taints.iter().any(|own| own.matches(wanted)) {
                    taints.push(wanted.clone());
                }
            }
        }
        let starts = |taint: &Taint| claim.record.startup_taints.iter().any(|s| s.matches(taint));
        let clear = !taints
            .iter()
            .any(|taint| taint.is_ephemeral() || starts(taint));
        if node.ready && clear {
            labels.insert(INITIALIZED.to_owned(), "true".to_owned());
            annotations.insert(INITIALIZED_AT.to_owned(), now.to_string());
        }
        let set = |all: BTreeMap<String, String>| {
            all.into_iter()
                .map(|(key, value)| (key, Some(value)))
                .collect()
        };
        NodePatch {
            node: node.name.clone(),
            version: node.version.clone(),
            labels: set(labels),
            annotations: set(annotations),
            taints: Some(taints),
        }
    }

    fn initialize(&mut self, id: &ClaimId, now: Timestamp) {
        if self.node_vanished(id, now) {
            return;
        }
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let Some(node) = self.node_of(claim) else {
            return;
        };
        if node.is_initialized() {
            self.enter(id, Phase::Initialized, now);
            return;
        }
        let starts = |taint: &Taint| claim.record.startup_taints.iter().any(|s| s.matches(taint));
        let clear = !node
            .taints
            .iter()
            .any(|taint| taint.is_ephemeral() || starts(taint));
        if node.ready && clear {
            if !self.is_stale(id, node) {
                let patch = NodePatch {
                    node: node.name.clone(),
                    version: node.version.clone(),
                    labels: vec![(INITIALIZED.to_owned(), Some("true".to_owned()))],
                    annotations: vec![(INITIALIZED_AT.to_owned(), Some(now.to_string()))],
                    taints: None,
                };
                self.step(id, Step::Initialize, Command::PatchNode(patch), now);
            }
            return;
        }
        let deadline = self.deadline(claim.since, self.timeouts(claim).initialization_timeout);
        if deadline <= now {
            self.retire(id, Reason::TimedOut, now);
        } else {
            self.wake_at(deadline, "an initialization is overdue");
        }
    }

    /// Whether the Node as the watch shows it is older than our last change of it.
    pub(super) fn is_stale(&self, id: &ClaimId, node: &Node) -> bool {
        let work = self.works.get(id);
        work.and_then(|work| work.patched.as_ref())
            .is_some_and(|version| *version == node.version)
    }

    /// The Node of a claim, as the watch shows it.
    pub(super) fn node_of(&self, claim: &Claim) -> Option<&Node> {
        self.state.objects.nodes.get(claim.node.as_ref()?)
    }

    fn guard(&mut self, id: &ClaimId, now: Timestamp) {
        if self.node_vanished(id, now) {
            return;
        }
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let Some(node) = self.node_of(claim) else {
            return;
        };
        // The taint is of an earlier life; whether the node leaves is decided anew.
        if node.has_disrupted_taint() && node.deleting.is_none() && !self.is_stale(id, node) {
            self.untaint(id, now);
        }
    }

    /// Whether a registered claim's Node is gone; after a while its instance follows.
    fn node_vanished(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return true;
        };
        let present = self.node_of(claim).is_some();
        let work = self.works.entry(id.clone()).or_default();
        if present {
            work.node_missed = None;
            return false;
        }
        let since = *work.node_missed.get_or_insert(now);
        let due = self.deadline(since, NODE_MISSED_MAX);
        if due <= now {
            self.end(id, Reason::Orphaned, now);
        } else {
            self.wake_at(due, "a node has vanished");
        }
        true
    }

    /// Ends a claim's instance without a drain: nothing runs on it, or nothing can be moved.
    pub(super) fn end(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return;
        };
        if claim.leaving.is_none() {
            claim.leaving = Some(reason);
            let node = claim.node.clone();
            self.report(Report::Retire {
                claim: id.clone(),
                node,
                reason,
                price: None,
            });
        }
        self.enter(id, Phase::Terminating, now);
    }

    fn terminate(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let Some(instance) = claim.instance.clone() else {
            self.forget_claim(id);
            return;
        };
        if instance.state.is_live() && !claim.instance_is_gone() {
            let command = Command::Terminate {
                claim: id.clone(),
                instance: instance.id,
            };
            self.step(id, Step::Terminate, command, now);
            return;
        }
        // The Node goes only when the provider has confirmed that the instance is gone.
        if !claim.instance_is_gone() {
            return;
        }
        let node = self
            .node_of(claim)
            .map(|node| (node.name.clone(), node.uid.clone()));
        match node {
            Some((node, uid)) if !self.is_deleted(id, &uid) => {
                self.looking.gone_nodes.insert(node.clone());
                if let Some(work) = self.works.get_mut(id) {
                    work.patched = Some(uid.clone());
                }
                self.step(id, Step::DeleteNode, Command::DeleteNode { node, uid }, now);
            }
            Some(_) => {}
            None => {
                self.enter(id, Phase::Gone, now);
                self.forget_claim(id);
            }
        }
    }

    fn is_deleted(&self, id: &ClaimId, uid: &str) -> bool {
        self.works
            .get(id)
            .is_some_and(|work| work.patched.as_deref() == Some(uid))
    }

    /// Removes Nodes of ours that no claim knows and whose kubelet is silent.
    pub(super) fn collect_orphans(&mut self, now: Timestamp) {
        let claimed = |node: &Node| {
            node.instance_id()
                .is_some_and(|own| self.state.ledger.by_instance(own).is_some())
        };
        let installation = self.state.cluster.installation.as_str();
        let ours = |node: &Node| {
            node.labels
                .get(MANAGED_BY)
                .is_some_and(|own| own == installation)
                && node.annotations.contains_key(CLAIM)
        };
        let ended = |node: &Node| {
            node.instance_id()
                .is_some_and(|own| self.state.ledger.has_ended(own))
        };
        let orphans: BTreeMap<NodeName, (String, bool)> = self
            .state
            .objects
            .nodes
            .values()
            .filter(|node| ours(node) && !claimed(node) && (!node.ready || ended(node)))
            .map(|node| (node.name.clone(), (node.uid.clone(), ended(node))))
            .collect();
        self.orphans.retain(|name, _| orphans.contains_key(name));
        for (node, (uid, ended)) in orphans {
            let since = *self.orphans.entry(node.clone()).or_insert(now);
            let age = if ended {
                SignedDuration::ZERO
            } else {
                ORPHAN_AGE
            };
            let due = self.deadline(since, age);
            if due > now {
                self.wake_at(due, "a node has no instance");
            } else if self.manages() && !self.is_removing(&node) {
                let flight = FlightKind::Orphan(node.clone());
                self.issue(Command::DeleteNode { node, uid }, flight, now);
            }
        }
    }

    fn is_removing(&self, node: &NodeName) -> bool {
        self.flights
            .values()
            .any(|flight| flight.kind == FlightKind::Orphan(node.clone()))
    }
}

fn id_text(claim: &Claim) -> String {
    claim.record.id.to_string()
}
