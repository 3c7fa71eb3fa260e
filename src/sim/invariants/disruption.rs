//! Invariants for voluntary disruption: the number of nodes, their pods, and the time for which
//! they are tainted.

// Pods of disrupted nodes that fit on no other node.
mod unplaceable_pods;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::command::{Command, NodePatch};
use crate::engine::event::Event;
use crate::model::claim::ClaimRecord;
use crate::model::id::{NodeName, PodKey, PoolName};
use crate::model::labels::{DISRUPTION_REASON, DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::{Pool, Rate, Reason, applies_to_reason};
use crate::model::watched_object::{ObjectKind, WatchedObject};
use crate::sim::event_queue::time_after;
use crate::sim::invariants::disruption::unplaceable_pods::unplaceable_pods;
use crate::sim::invariants::{Arrival, Checker, GroundTruth, Invariant, adds_disrupted_taint};

/// Maximum time for which a node may be empty at the end, in addition to the limit of its pool.
/// Budgets allow only some nodes to be disrupted at the same time.
const EMPTY_SLACK: SignedDuration = SignedDuration::from_mins(20);

/// Disruption reasons to which budgets apply.
const BUDGETED: [Reason; 4] =
    [Reason::Empty, Reason::Underutilized, Reason::Drifted, Reason::Expired];

/// Maximum time for which a command is in flight. The slowest takes 21 s.
const FLIGHT_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Events that the daemon received less than this time before it sent a command may be too late for
/// the decision.
const FRESH: SignedDuration = SignedDuration::from_secs(20);

/// Maximum number of search steps for placements if the heuristics find none.
const STEPS_MAX: usize = 200_000;

/// Maximum time without a command for a tainted node. Its pods may wait 20 min for capacity, or
/// delay the drain for the maximum of one hour. The daemon may be stopped or out of sync for
/// several minutes.
const IDLE_MAX: SignedDuration = SignedDuration::from_mins(75);

/// Maximum time between the record of a disruption and its taint. The response may be lost, and the
/// daemon may be stopped.
const RATE_LAG: SignedDuration = SignedDuration::from_mins(20);

/// Maximum period of a rate.
const RATED_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Minimum time for which a pod whose protection ends during the drain waits for a place, less the
/// time for which the daemon may be out of sync.
const LATE_PLACE: SignedDuration = SignedDuration::from_mins(15);

/// A node as observed by the daemon.
#[derive(Clone, Debug)]
struct ObservedNode {
    pool: Option<PoolName>,
    initialized: bool,
    ready: bool,
    /// Time of the last change of `ready`.
    since: Timestamp,
    /// Time of the first event since it was created or deleted.
    first: Timestamp,
}

/// Disrupted nodes, and the state observed by the daemon.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    told: BTreeMap<NodeName, ObservedNode>,
    /// Observed pods, and pods that are missing in a later listing.
    pods: BTreeSet<PodKey>,
    hidden: BTreeSet<PodKey>,
    /// Taints in flight, with the time at which they were sent.
    sent: BTreeMap<NodeName, Timestamp>,
    /// UIDs of the nodes with evicted pods, with the time of the first eviction.
    released: BTreeMap<String, Timestamp>,
    /// Time of the last command for a node.
    touched: BTreeMap<NodeName, Timestamp>,
    /// UIDs of the tainted nodes without progress.
    forgotten: BTreeSet<String>,
    /// Provider IDs of the disrupted nodes, with time, reason and pool. A Node that is deleted and
    /// registered again is counted only once.
    let_go: BTreeMap<String, (Timestamp, Reason, PoolName)>,
}

impl Leaving {
    /// Records an event that the daemon receives.
    pub fn observe_event(&mut self, event: &Event, now: Timestamp) {
        match event {
            Event::Applied(object) => self.observe_object(object, now),
            Event::Reset(ObjectKind::Node, objects) => {
                let before = std::mem::take(&mut self.told);
                for object in objects {
                    let WatchedObject::Node(node) = object else {
                        continue;
                    };
                    if let Some(observed) = before.get(&node.name) {
                        self.told.insert(node.name.clone(), observed.clone());
                    }
                    self.observe_object(object, now);
                }
            }
            Event::Deleted(ObjectKind::Node, key) => drop(self.told.remove(key.name.as_str())),
            Event::Reset(ObjectKind::Pod, objects) => {
                let keys = objects.iter().filter_map(|object| match object {
                    WatchedObject::Pod(pod) => Some(pod.key.clone()),
                    _ => None,
                });
                let before = std::mem::replace(&mut self.pods, keys.collect());
                self.hidden.extend(before);
                self.hidden.retain(|key| !self.pods.contains(key));
            }
            Event::Deleted(ObjectKind::Pod, key) => {
                self.pods.remove(key);
                self.hidden.remove(key);
            }
            _ => {}
        }
    }

    fn observe_object(&mut self, object: &WatchedObject, now: Timestamp) {
        if let WatchedObject::Pod(pod) = object {
            self.hidden.remove(&pod.key);
            self.pods.insert(pod.key.clone());
        }
        let WatchedObject::Node(node) = object else {
            return;
        };
        let before = self.told.get(&node.name);
        let unchanged = before.filter(|observed| observed.ready == node.ready);
        let observed = ObservedNode {
            pool: node.pool_name(),
            initialized: node.is_initialized(),
            ready: node.ready,
            since: unchanged.map_or(now, |observed| observed.since),
            first: before.map_or(now, |observed| observed.first),
        };
        self.told.insert(node.name.clone(), observed);
    }

    /// Returns true if the daemon had not observed at `sent` that a Node was registered again just
    /// before.
    pub(super) fn is_newly_registered(&self, node: &Node, sent: Timestamp) -> bool {
        let is_observed = self.told.get(&node.name).is_some_and(|observed| observed.first <= sent);
        !is_observed && node.created.is_some_and(|at| sent < time_after(at, FRESH))
    }

    /// Records that the daemon is stopped until a time, longer than other faults stop it. Tainted
    /// nodes make no progress until then.
    pub(super) fn on_long_stop(&mut self, until: Timestamp) {
        self.touched.values_mut().for_each(|at| *at = until);
    }

    /// Records that a node was untainted. If it is tainted again, the drain starts again.
    pub(super) fn on_untainted(&mut self, uid: &str) {
        self.released.remove(uid);
    }

    /// Records that a taint was applied or failed.
    pub(super) fn on_taint_result(&mut self, node: &NodeName) {
        self.sent.remove(node);
    }

    /// Number of initialized nodes of a pool as observed by the daemon, and how many of them are
    /// disrupted or not ready, including this node. Nodes whose instance is gone are not counted.
    fn disrupted_of_pool(
        &self,
        leaving: &NodeName,
        pool: &PoolName,
        scene: &GroundTruth,
        now: Timestamp,
    ) -> (usize, usize) {
        let nodes = scene.cluster.store().nodes();
        let (mut total, mut disrupted) = (0, 0);
        for (name, observed) in &self.told {
            let node = nodes.get(name);
            let machine = node.and_then(|node| scene.our_machine(node));
            let is_gone = machine.is_none_or(|machine| !machine.is_live());
            let counts = observed.initialized && observed.pool.as_ref() == Some(pool);
            if !counts || (is_gone && !observed.ready) {
                continue;
            }
            let on_its_way = self.sent.get(name);
            let leaves = name == leaving
                || node.is_some_and(Node::has_disrupted_taint)
                || on_its_way.is_some_and(|sent| now < time_after(*sent, FLIGHT_MAX));
            let down = !observed.ready && time_after(observed.since, FRESH) < now;
            total += 1;
            disrupted += usize::from(leaves || down);
        }
        (total, disrupted)
    }

    /// The first rate of a pool that was exceeded, with the number of disruptions. A disruption may
    /// be observed some time after its record, so `RATE_LAG` is subtracted from the period.
    fn exceeded_rate(&self, reason: Reason, pool: &Pool, now: Timestamp) -> Option<(usize, Rate)> {
        let budgets = pool.disruption.budgets.iter();
        let mut rates = budgets
            .filter_map(|budget| Some((budget.rate_for(reason)?, budget.reasons.as_slice())));
        rates.find_map(|(rate, reasons)| {
            let count = self
                .let_go
                .values()
                .filter(|(at, of, name)| {
                    let is_recent = now.duration_since(*at) < rate.per - RATE_LAG;
                    is_recent && applies_to_reason(reasons, *of) && *name == pool.name
                })
                .count();
            (count > rate.nodes as usize).then_some((count, rate))
        })
    }
}

/// Returns true if a node has reached its hard expiry. Budgets do not apply to such a node.
pub(super) fn is_overdue(node: &Node, scene: &GroundTruth, now: Timestamp) -> bool {
    let config = &scene.config;
    scene.our_machine(node).is_some_and(|machine| {
        ClaimRecord::of_instance(machine.truth(), &config.installation, &config.name)
            .is_ok_and(|record| record.is_overdue(now))
    })
}

/// Returns true if the pods of a disrupted node wait for places on other nodes.
fn waits_for_places(node: &Node, scene: &GroundTruth, now: Timestamp) -> bool {
    let reason = reason_of(node.annotations.get(DISRUPTION_REASON));
    let machine = scene.our_machine(node);
    let is_reclaimed = machine.is_some_and(|machine| machine.reclaimed.is_some());
    // A node with hard expiry waits for capacity only for a limited time.
    let has_to = reason == Some(Reason::Expired) && is_overdue(node, scene, now);
    reason.is_some_and(Reason::waits_for_placements)
        && node.has_disrupted_taint()
        && !is_reclaimed
        && !has_to
}

/// The disruption reason in an annotation of a node.
fn reason_of(annotation: Option<&String>) -> Option<Reason> {
    let text = annotation?;
    let mut reasons = BUDGETED.into_iter().chain([Reason::Surplus]);
    reasons.find(|reason| reason.as_str() == text)
}

/// Returns true if a pod must not be disrupted now.
pub fn is_protected(pod: &Pod, now: Timestamp) -> bool {
    [DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS].iter().any(|key| {
        let Some(value) = pod.annotations.get(*key) else {
            return false;
        };
        let lasts = value.parse::<SignedDuration>();
        value == "true"
            || lasts.is_ok_and(|lasts| {
                let is_over = pod.started.is_some_and(|at| time_after(at, lasts) <= now);
                lasts.is_positive() && !is_over
            })
    })
}

/// The node of a command.
fn node_of<'a>(command: &Command, scene: &'a GroundTruth) -> Option<&'a Node> {
    let store = scene.cluster.store();
    match command {
        Command::PatchNode(patch) => store.nodes().get(&patch.node),
        Command::ListPodsOn { node } | Command::DeleteNode { node, .. } => store.nodes().get(node),
        Command::Evict { pod, .. } => store.nodes().get(store.pods().get(pod)?.node.as_ref()?),
        Command::Terminate { instance, .. } => scene.cluster.node_of(instance.as_str()),
        _ => None,
    }
}

impl Checker {
    /// Checks a command that may be part of a disruption.
    pub(super) fn check_disruption(
        &mut self,
        command: &Command,
        scene: &GroundTruth,
        now: Timestamp,
    ) {
        let Some(node) = node_of(command, scene) else {
            return;
        };
        self.leaving.touched.insert(node.name.clone(), now);
        match command {
            Command::PatchNode(patch) if adds_disrupted_taint(patch) => {
                self.check_taint(patch, node, scene, now)
            }
            Command::Evict { .. } => self.check_first_eviction(node, scene, now),
            _ => {}
        }
    }

    /// Checks a new disrupted taint: the budgets of its pool must allow it now.
    fn check_taint(&mut self, patch: &NodePatch, node: &Node, scene: &GroundTruth, now: Timestamp) {
        let mut annotations = patch.annotations.iter();
        let reason = annotations.find(|(key, _)| key == DISRUPTION_REASON);
        let reason = reason_of(reason.and_then(|(_, value)| value.as_ref()));
        let is_repeated =
            node.has_disrupted_taint() || self.external_changes.was_just_observed(&node.name, now);
        let reason = reason.filter(|reason| BUDGETED.contains(reason) && !is_repeated);
        let pool = node.pool_name().and_then(|name| scene.config.pool(name.as_str()));
        let has_to = reason == Some(Reason::Expired) && is_overdue(node, scene, now);
        let is_new = !self.leaving.let_go.contains_key(&node.provider_id);
        if let Some(reason) = reason.filter(|_| is_new) {
            self.check_swept_taint(node, reason, scene, now);
        }
        if let Some((reason, pool)) = reason.zip(pool).filter(|_| !has_to) {
            self.record_disruption(&node.provider_id, reason, pool, now);
            let taint = format!("taint {} ({})", node.name, reason.as_str());
            if let Some((count, rate)) = self.leaving.exceeded_rate(reason, pool, now) {
                let text = format!("{taint}: {count} nodes of pool {} left at {rate}", pool.name);
                self.add_violation(Invariant::Budget, now, text);
            }
            let (total, disrupted) =
                self.leaving.disrupted_of_pool(&node.name, &pool.name, scene, now);
            let budgets = pool.disruption.budgets.iter();
            let allowed = budgets.filter_map(|budget| budget.allowed_nodes(reason, total, now));
            let allowed = allowed.min().unwrap_or(total);
            if disrupted > allowed {
                let text = format!(
                    "{taint}: {disrupted} of {total} nodes of pool {}, {allowed} allowed",
                    pool.name
                );
                self.add_violation(Invariant::Budget, now, text);
            }
        }
        self.leaving.sent.insert(node.name.clone(), now);
    }

    /// Records a disruption for rates, with the time of the first one within the period.
    fn record_disruption(
        &mut self,
        provider_id: &str,
        reason: Reason,
        pool: &Pool,
        now: Timestamp,
    ) {
        let disruption = (now, reason, pool.name.clone());
        let known = self.leaving.let_go.entry(provider_id.to_owned());
        let known = known.or_insert_with(|| disruption.clone());
        if now.duration_since(known.0) > RATED_MAX {
            *known = disruption;
        }
    }

    /// Checks the first eviction on a node: every pod must fit on another node.
    fn check_first_eviction(&mut self, node: &Node, scene: &GroundTruth, now: Timestamp) {
        let waits = waits_for_places(node, scene, now);
        let released = &mut self.leaving.released;
        if !waits || released.contains_key(&node.uid) {
            return;
        }
        released.insert(node.uid.clone(), now);
        let is_counted = |pod: &Pod| !is_protected(pod, now);
        let count = unplaceable_pods(node, is_counted, scene, &self.leaving.hidden, now);
        if count > 0 {
            let text = format!("evict from {}: {count} of its pods have no place", node.name);
            self.add_violation(Invariant::Homeless, now, text);
        }
    }

    /// Checks the eviction of a pod whose protection has ended during the drain: it must fit on
    /// another node. The first eviction on its node did not count it. Before a deadline, the pod
    /// waits only for half of the time until its deletion.
    pub(super) fn check_late_place(&mut self, pod: &Pod, node: &Node, at: Arrival<'_>) {
        let Arrival { scene, sent, now } = at;
        let grace = SignedDuration::from_secs(pod.grace_seconds.max(0));
        let left = node.termination_deadline().map(|at| at.duration_since(sent) - grace - FRESH);
        let waits = left.map_or(LATE_PLACE, |left| left.min(LATE_PLACE));
        let since = sent.checked_sub(waits.max(SignedDuration::ZERO)).unwrap_or(sent);
        let tainted = self.tainted.get(&node.name);
        let was_protected = |at: Timestamp| is_protected(pod, at);
        // The drain of a Node that a user has deleted does not wait.
        if node.deleting.is_some()
            || !was_protected(since)
            || !tainted.is_some_and(|at| was_protected(*at))
            || !waits_for_places(node, scene, now)
        {
            return;
        }
        let is_counted = |other: &Pod| other.uid == pod.uid;
        if unplaceable_pods(node, is_counted, scene, &self.leaving.hidden, now) > 0 {
            let text = format!("evict {}, which was protected and has no place", pod.key);
            self.add_violation(Invariant::Homeless, now, text);
        }
    }

    /// Checks the eviction of a pod.
    pub(super) fn check_protection(&mut self, pod: &Pod, node: &Node, at: Arrival<'_>) {
        let Arrival { scene, sent, now } = at;
        let reason = reason_of(node.annotations.get(DISRUPTION_REASON));
        let machine = scene.our_machine(node);
        let forced = machine.is_some_and(|machine| self.grace_is_over(node, machine, now));
        if reason.is_some() && !forced && is_protected(pod, sent) && is_protected(pod, now) {
            let text = format!("evict {}, which must not be disrupted", pod.key);
            self.add_violation(Invariant::Protected, now, text);
        }
    }

    /// Checks for tainted nodes without progress.
    pub fn check_progress(&mut self, scene: &GroundTruth, now: Timestamp) {
        for node in scene.cluster.store().nodes().values() {
            let machine = scene.our_machine(node);
            let is_live = machine.is_some_and(|machine| machine.is_live());
            let since = self.tainted.get(&node.name).max(self.leaving.touched.get(&node.name));
            let idle = since.is_some_and(|at| time_after(*at, IDLE_MAX) < now);
            if node.has_disrupted_taint()
                && is_live
                && idle
                && !is_drain_held(node, scene, now)
                && !self.has_late_pod(node, scene, now)
                && self.leaving.forgotten.insert(node.uid.clone())
            {
                let text = format!("nothing is done about {}, which is tainted", node.name);
                self.add_violation(Invariant::Tainted, now, text);
            }
        }
    }

    /// Returns true if a protected pod was created after the first eviction on its node. This is
    /// possible if an external actor removed the taint. The pod may then delay the drain without
    /// limit.
    fn has_late_pod(&self, node: &Node, scene: &GroundTruth, now: Timestamp) -> bool {
        let Some(first_eviction) = self.leaving.released.get(&node.uid) else {
            return false;
        };
        let mut pods = scene.cluster.store().pods_on(node.name.as_str());
        node.termination_deadline().is_none_or(|at| now < at)
            && self.external_changes.has_removal(&node.name)
            && pods.any(|pod| {
                let is_late = pod.created.is_some_and(|at| *first_eviction < at);
                is_late && pod.holds_drain(now) && is_protected(pod, now)
            })
    }
}

/// Returns true if a node must be removed and a protected pod on it delays the drain without limit.
pub(super) fn is_drain_held(node: &Node, scene: &GroundTruth, now: Timestamp) -> bool {
    let mut pods = scene.cluster.store().pods_on(node.name.as_str());
    let can_stay = reason_of(node.annotations.get(DISRUPTION_REASON)).is_some();
    !can_stay && pods.any(|pod| is_protected(pod, now))
}

/// The rule by which one of several nodes with sufficient resources is selected.
#[derive(Clone, Copy)]
enum NodeChoice {
    First,
    /// The node with the least free CPU.
    Fullest,
    /// The node whose ratio of free memory to free CPU is closest to that of the pod.
    Alike,
}

/// Message about a node that has been empty for longer than its pool allows.
pub(super) fn empty_for_long(node: &Node, scene: &GroundTruth, now: Timestamp) -> Option<String> {
    let pool = scene.config.pool(node.pool_name()?.as_str())?;
    let wait = pool.disruption.consolidate_after?;
    if scene.occupying_pods(node).count() > 0 || pool.replicas.is_some() {
        return None;
    }
    let busy = scene.cluster.store().load_of(node.name.as_str())?.busy?;
    let empty = now.duration_since(busy);
    let late = empty > wait.saturating_add(EMPTY_SLACK);
    late.then(|| format!("node {} has been empty for {empty:#}", node.name))
}
