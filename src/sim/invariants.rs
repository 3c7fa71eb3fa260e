//! Invariants: some are checked after every step, some at the end, after faults have stopped.

// Early binding and nominations.
mod early_binding;
// Disruption of nodes.
pub mod disruption;
// Scheduled sweeps.
pub mod sweeps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

use crate::catalog::Catalog;
use crate::engine::command::{Command, NodePatch};
use crate::engine::event::Event;
use crate::model::claim::{TAG_CLAIM, TAG_CLUSTER, TAG_GRACE, TAG_INSTALLATION, TAG_POOL};
use crate::model::cluster::Cluster;
use crate::model::id::{InstanceId, NodeName, PodKey};
use crate::model::instance::Instance;
use crate::model::labels::{DISRUPTION_REASON, TAINT_DISRUPTED};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::{Limits, Reason};
use crate::model::quantity::Resources;
use crate::model::watched_object::ObjectKind;
use crate::sim::cloud::Cloud;
use crate::sim::cloud::instance::SimInstance;
use crate::sim::cluster::SimCluster;
use crate::sim::event_queue::time_after;
use crate::sim::external_changes::ExternalTaintRemovals;
use crate::sim::invariants::disruption::Leaving;
use crate::sim::invariants::sweeps::ObservedSweeps;

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// The live instances of each pool and of the cluster are within their limits.
    Limits,
    /// The number of instances in each reservation is within its capacity.
    Reservations,
    /// A claim has at most one live instance.
    OneInstance,
    /// Resources that are not managed are not changed.
    Foreign,
    /// No pod is lost in violation of a PodDisruptionBudget.
    Pdb,
    /// The number of disrupted or unready nodes of a pool is within its disruption budgets. Only
    /// initialized nodes are included, as observed by the daemon when it sent the taint.
    Budget,
    /// No pod that must not be disrupted is evicted for a disruption.
    Protected,
    /// No pod is evicted for a disruption before all replacement pods fit on existing nodes.
    Homeless,
    /// Every tainted node makes progress, and no node is tainted at the end.
    Tainted,
    /// No registered instance is terminated before its drain is complete.
    Drain,
    /// There is no voluntary disruption while the cluster state is out of sync.
    StaleView,
    /// The engine does not run in a loop without the time advancing.
    Spin,
    /// Early binding: pods are bound only to managed nodes with sufficient resources. They are
    /// deleted only if they have never run. They do not remain bound for long to a node whose
    /// instance is gone.
    Early,
    /// With scheduled sweeps, a node is disrupted for a reason only if a sweep ran when the node
    /// was due, or while a sweep of consolidation lasts.
    SweepPermit,
    /// A sweep runs at an occurrence of its schedule, the latest one, with a constant jitter. Only
    /// with `catch_up`, it runs more than 15 minutes late.
    SweepTime,
    /// Each occurrence of a sweep runs at most once.
    SweepTwice,
    /// An engine with a complete state and a readable Lease runs or skips every sweep in time.
    SweepMissed,
    /// At the end, every schedulable pod is bound.
    Unbound,
    /// At the end, no node has been empty for longer than its pool allows.
    EmptyNode,
    /// At the end, every instance has a Node, and every Node has an instance.
    Orphan,
    /// At the end, every static pool has its number of nodes.
    Number,
    /// At the end, the engine sends no more commands.
    Restless,
}

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{at} {rule:?}: {text}")]
pub struct Violation {
    /// The invariant.
    pub rule: Invariant,
    /// Time of the violation.
    pub at: Timestamp,
    /// A description of the affected objects.
    pub text: String,
}

/// The actual state that commands are checked against: everything except the daemon.
#[derive(Clone, Debug)]
pub struct GroundTruth {
    /// The current configuration.
    pub config: Arc<Cluster>,
    /// Instance types and prices.
    pub catalog: Arc<Catalog>,
    /// The cluster.
    pub cluster: SimCluster,
    /// The cloud.
    pub cloud: Cloud,
}

impl GroundTruth {
    /// Returns true if an instance belongs to this installation and cluster.
    pub fn is_ours(&self, instance: &Instance) -> bool {
        // Only these two tags determine the owner. An instance is managed even if its claim cannot
        // be parsed. This check does not share code with the engine, so that neither hides an error
        // of the other.
        let (installation, cluster) = (&self.config.installation, self.config.name.as_str());
        [(TAG_INSTALLATION, installation.as_str()), (TAG_CLUSTER, cluster)]
            .iter()
            .all(|(tag, value)| instance.tags.get(*tag).is_some_and(|tagged| tagged == value))
    }

    /// The machine of a node, if it is managed.
    pub fn our_machine(&self, node: &Node) -> Option<&SimInstance> {
        let machine = self.cloud.get(node.instance_id()?)?;
        self.is_ours(machine.truth()).then_some(machine)
    }

    /// All live managed instances.
    pub fn live_instances(&self) -> impl Iterator<Item = &SimInstance> {
        self.cloud.all_instances().filter(|machine| {
            let instance = machine.truth();
            instance.state.is_live() && self.is_ours(instance)
        })
    }

    /// The time at which the instance of a managed node is interrupted, if it is.
    fn reclaimed_at(&self, node: &NodeName) -> Option<Timestamp> {
        let node = self.cluster.store().nodes().get(node)?;
        self.our_machine(node)?.reclaimed
    }

    fn occupying_pods(&self, node: &Node) -> impl Iterator<Item = &Pod> {
        let pods = self.cluster.store().pods_on(node.name.as_str());
        pods.filter(|pod| pod.occupies_node())
    }
}

/// Maximum time for which a claim may be without an instance or a Node at the end. Registration may
/// take 15 minutes, and the termination of an unregistered instance a few minutes more.
const ORPHAN_MAX: SignedDuration = SignedDuration::from_mins(25);

/// Remaining time before the interruption of an instance below which its pods are lost in any case.
const LAST_MOMENTS: SignedDuration = SignedDuration::from_secs(15);

/// A command that arrives.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    scene: &'a GroundTruth,
    /// When the command was sent.
    sent: Timestamp,
    now: Timestamp,
}

/// Checks commands and their results.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    violations: Vec<Violation>,
    tainted: BTreeMap<NodeName, Timestamp>,
    external_changes: ExternalTaintRemovals,
    leaving: Leaving,
    sweeps: ObservedSweeps,
    commands: u64,
}

impl Checker {
    /// All violations until now.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Number of commands, without those that only read instances and the Lease.
    pub fn command_count(&self) -> u64 {
        self.commands
    }

    /// Records that an external actor removed the taint of a disrupted node.
    pub fn on_untainted(&mut self, node: &NodeName, scene: &GroundTruth) {
        let store = scene.cluster.store();
        if let Some(node) = store.nodes().get(node) {
            let pods = store.pods_on(node.name.as_str());
            self.external_changes.record_removal(node, pods);
        }
    }

    /// Records an event that the daemon receives.
    pub fn on_event(&mut self, event: &Event, now: Timestamp) {
        self.external_changes.observe_event(event, now);
        self.leaving.observe_event(event, now);
    }

    /// Records a violation.
    pub fn add_violation(&mut self, rule: Invariant, at: Timestamp, text: String) {
        self.violations.push(Violation { rule, at, text });
    }

    /// Checks a command that the engine sends. `doubt` is the reason why the cluster state of the
    /// engine is out of sync, if any.
    pub fn check_issued(
        &mut self,
        command: &Command,
        doubt: Option<(ObjectKind, &'static str)>,
        scene: &GroundTruth,
        now: Timestamp,
    ) {
        let only_reads = matches!(command, Command::ListInstances | Command::ReadLease);
        self.commands += u64::from(!only_reads);
        self.check_disruption(command, scene, now);
        let (Some((kind, why)), Some(action)) = (doubt, voluntary_action(command, scene)) else {
            return;
        };
        let text = format!("{action} while the watch of {} {why}", kind.as_str());
        self.add_violation(Invariant::StaleView, now, text);
    }

    /// Checks a command when it is executed.
    pub fn check_arriving(
        &mut self,
        command: &Command,
        scene: &GroundTruth,
        sent: Timestamp,
        now: Timestamp,
    ) {
        let at = Arrival { scene, sent, now };
        match command {
            Command::Terminate { instance, .. } => self.check_terminate(instance, at),
            Command::CreateNode(node) => self.check_create_node(node, at),
            Command::Bind { pod, uid, node } => self.check_bind(pod, uid, node, at),
            Command::DeletePod { pod, uid, .. } => self.check_delete_pod(pod, uid, at),
            Command::PatchNode(patch) => self.check_patch(patch, scene, now),
            Command::DeleteNode { node, uid } => self.check_delete_node(node, uid, at),
            Command::Evict { pod, uid } => self.check_evict(pod, uid, at),
            Command::Nominate { node, .. } | Command::ClearNomination { node, .. } => {
                self.check_nomination(node, at);
            }
            Command::Launch(_)
            | Command::Tag { .. }
            | Command::Adopt(_)
            | Command::SaveDiscoveredMemory { .. }
            | Command::ListInstances
            | Command::ListPodsOn { .. }
            | Command::ReadLease
            | Command::PatchLease(_)
            | Command::PatchBuffer(_)
            | Command::ListAttachments { .. }
            | Command::Probe { .. }
            | Command::Rewatch { .. }
            | Command::RequestGrant(_)
            | Command::RequestDisruption { .. }
            | Command::ReportDisruptions(_)
            | Command::ReportUsage { .. }
            | Command::MarkUnavailable { .. } => {}
        }
    }

    fn check_terminate(&mut self, instance: &InstanceId, at: Arrival<'_>) {
        let Arrival { scene, sent, now } = at;
        let Some(machine) = scene.cloud.get(instance.as_str()) else {
            return;
        };
        if !scene.is_ours(machine.truth()) {
            let text = format!("terminate {instance}, which is not ours");
            self.add_violation(Invariant::Foreign, now, text);
            return;
        }
        // In these last moments, a drain cannot complete.
        let ends_soon = machine.reclaimed.is_some_and(|at| at <= time_after(now, LAST_MOMENTS));
        if !machine.is_live() || ends_soon {
            return;
        }
        let Some(node) = scene.cluster.node_of(instance.as_str()) else {
            return;
        };
        if self.grace_is_over(node, machine, now) || scene.was_awaiting_kubelet(node, sent) {
            return;
        }
        self.check_displacement(node, &format!("terminate {instance}"), at);
        let untainted = node.is_registered() && !node.has_disrupted_taint();
        if untainted && !self.external_changes.is_unobserved(&node.name, sent) {
            let text = format!("terminate {instance} though {} is not tainted", node.name);
            self.add_violation(Invariant::Drain, now, text);
        }
    }

    /// Returns true if a disrupted node has drained for the grace period of its pool.
    fn grace_is_over(&self, node: &Node, machine: &SimInstance, now: Timestamp) -> bool {
        // A deadline on the Node applies if its pool forces the drain or the node has failed.
        if node.termination_deadline().is_some_and(|at| at <= now) {
            return true;
        }
        let grace = machine.truth().tags.get(TAG_GRACE);
        let grace = grace.and_then(|seconds| seconds.parse().ok());
        let tainted = self.tainted.get(&node.name);
        tainted.zip(grace).is_some_and(|(tainted, seconds)| {
            time_after(*tainted, SignedDuration::from_secs(seconds)) <= now
        })
    }

    /// Checks a command that removes every pod of a node.
    fn check_displacement(&mut self, node: &Node, act: &str, at: Arrival<'_>) {
        let Arrival { scene, sent, now } = at;
        // Pods are not counted if an external change let them onto the node while the command was
        // in flight. Stuck pods are not counted either, because drains do not wait for them.
        let count = scene
            .occupying_pods(node)
            .filter(|pod| !pod.is_stuck(now))
            .filter(|pod| !self.external_changes.has_admitted(&node.name, pod, sent))
            .count();
        if count == 0 {
            return;
        }
        let text = format!("{act} with {count} pods on {}", node.name);
        self.add_violation(Invariant::Drain, now, text);
        for (owner, lost, allowed) in scene.cluster.displaced_pods(node.name.as_str()) {
            if lost > allowed {
                let text = format!("{act}: {owner} loses {lost} pods, {allowed} may be away");
                self.add_violation(Invariant::Pdb, now, text);
            }
        }
    }

    fn check_patch(&mut self, patch: &NodePatch, scene: &GroundTruth, now: Timestamp) {
        let Some(node) = scene.cluster.store().nodes().get(&patch.node) else {
            return;
        };
        if scene.our_machine(node).is_none() {
            let text = format!("patch {}, which is not ours", node.name);
            self.add_violation(Invariant::Foreign, now, text);
        }
        self.leaving.on_taint_result(&node.name);
        if node.version == patch.version && adds_disrupted_taint(patch) {
            self.tainted.entry(node.name.clone()).or_insert(now);
        }
        let untaints = patch.taints.is_some() && !adds_disrupted_taint(patch);
        if node.version == patch.version && untaints {
            self.tainted.remove(&node.name);
            self.leaving.on_untainted(&node.uid);
        }
    }

    fn check_delete_node(&mut self, name: &NodeName, uid: &str, at: Arrival<'_>) {
        let Arrival { scene, now, .. } = at;
        let node = scene.cluster.store().nodes().get(name);
        let Some(node) = node.filter(|node| node.uid == uid) else {
            return;
        };
        let Some(machine) = scene.our_machine(node) else {
            let text = format!("delete {name}, which is not ours");
            self.add_violation(Invariant::Foreign, now, text);
            return;
        };
        if machine.is_live() && machine.reclaimed.is_none() {
            let text = format!("delete {name} while {} lives", machine.truth().id);
            self.add_violation(Invariant::Drain, now, text);
            let at = Arrival { sent: now, ..at };
            self.check_displacement(node, &format!("delete {name}"), at);
        }
    }

    fn check_evict(&mut self, key: &PodKey, uid: &str, at: Arrival<'_>) {
        let Arrival { scene, sent, now } = at;
        let store = scene.cluster.store();
        let pod = store.pod(key, uid);
        let node = pod.and_then(|pod| store.nodes().get(pod.node.as_ref()?));
        let Some((pod, node)) = pod.zip(node) else {
            return;
        };
        self.check_protection(pod, node, at);
        self.check_late_place(pod, node, at);
        if scene.our_machine(node).is_none() {
            let text = format!("evict {key} from {}, which is not ours", node.name);
            self.add_violation(Invariant::Foreign, now, text);
        } else if !node.has_disrupted_taint()
            && !self.external_changes.is_unobserved(&node.name, sent)
            // The Node was deleted, and its kubelet has registered it again in the meantime.
            && node.created.is_none_or(|at| at <= sent)
            && !self.leaving.is_newly_registered(node, sent)
        {
            let text = format!("evict {key} from {}, which is not leaving", node.name);
            self.add_violation(Invariant::Drain, now, text);
        }
    }

    /// Checks the limits after the launch of an instance.
    pub fn check_launched(&mut self, scene: &GroundTruth, now: Timestamp) {
        self.check_reservations(scene, now);
        let mut claims: BTreeMap<&str, u32> = BTreeMap::new();
        let mut pools: BTreeMap<&str, (u32, Resources)> = BTreeMap::new();
        let (mut nodes, mut total) = (0, Resources::default());
        for machine in scene.live_instances() {
            let instance = machine.truth();
            let [claim, pool] = [TAG_CLAIM, TAG_POOL].map(|tag| instance.tags.get(tag));
            let pool = pool.map_or("", String::as_str);
            if let Some(claim) = claim {
                *claims.entry(claim).or_insert(0) += 1;
            }
            let (count, capacity) = pools.entry(pool).or_default();
            *count += 1;
            if let Some(shape) = scene.catalog.get(instance.offering.instance_type.as_str()) {
                capacity.add(&shape.capacity);
                total.add(&shape.capacity);
            }
            nodes += 1;
        }
        for (claim, count) in claims.into_iter().filter(|(_, count)| *count > 1) {
            let text = format!("claim {claim} has {count} instances");
            self.add_violation(Invariant::OneInstance, now, text);
        }
        for (name, (count, capacity)) in pools {
            if let Some(pool) = scene.config.pool(name) {
                let owner = format!("pool {name}");
                self.check_limits(&owner, &pool.limits, count, &capacity, now);
            }
        }
        self.check_limits("the cluster", &scene.config.limits, nodes, &total, now);
    }

    /// Checks that a count and capacity are within limits.
    pub(super) fn check_limits(
        &mut self,
        owner: &str,
        limits: &Limits,
        count: u32,
        capacity: &Resources,
        now: Timestamp,
    ) {
        if limits.nodes.is_some_and(|limit| count > limit) {
            self.add_violation(Invariant::Limits, now, format!("{owner} has {count} nodes"));
        }
        for (resource, limit) in &limits.capacity {
            let used = capacity.get(resource);
            if used > *limit {
                let text = format!("{owner} has {resource} {used}, {limit} at most");
                self.add_violation(Invariant::Limits, now, text);
            }
        }
    }

    /// Checks the number of instances in each reservation.
    fn check_reservations(&mut self, scene: &GroundTruth, now: Timestamp) {
        for (id, reservation) in scene.catalog.reservations() {
            let count = scene.cloud.instances_in_reservation(id);
            if u64::from(reservation.left) < count as u64 {
                let text = format!("{count} instances in {id}, which is for {}", reservation.left);
                self.add_violation(Invariant::Reservations, now, text);
            }
        }
    }

    /// Checks the final state, some time after the last fault and workload change. `acts` is the
    /// number of commands in the final quiet period.
    pub fn check_settled(&mut self, scene: &GroundTruth, acts: u64, now: Timestamp) {
        for pod in scene.cluster.store().pods().values() {
            let is_done = pod.is_terminal() || pod.node.is_some() || pod.is_daemon();
            if !is_done {
                let text = format!("pod {} is not bound", pod.key);
                self.add_violation(Invariant::Unbound, now, text);
            }
        }
        self.check_lost_pods(scene, now);
        let mut nodes = BTreeSet::new();
        let mut empty = Vec::new();
        for node in scene.cluster.store().nodes().values() {
            nodes.extend(node.instance_id());
            let Some(machine) = scene.our_machine(node) else {
                continue;
            };
            let ended = machine.ended.is_some_and(|at| now.duration_since(at) > ORPHAN_MAX);
            if ended {
                let text = format!("node {} is left of {}", node.name, machine.truth().id);
                self.add_violation(Invariant::Orphan, now, text);
            }
            empty.extend(disruption::empty_for_long(node, scene, now));
            if node.is_marked() && !disruption::is_drain_held(node, scene, now) {
                let text = format!("node {} is left tainted, or marked", node.name);
                self.add_violation(Invariant::Tainted, now, text);
            }
        }
        for machine in scene.live_instances() {
            let instance = machine.truth();
            let is_old = now.duration_since(instance.launched) > ORPHAN_MAX;
            if is_old && !nodes.contains(instance.id.as_str()) {
                let text = format!("instance {} has no node", instance.id);
                self.add_violation(Invariant::Orphan, now, text);
            }
        }
        self.check_replicas(scene, now);
        // Each pod of a buffer may keep a node that is otherwise empty.
        let pods = scene.cluster.store().pods();
        let buffers = scene.config.buffers.iter();
        let buffer_pods =
            buffers.filter_map(|buffer| buffer.virtual_pods(pods.values(), now)).flatten().count();
        for text in empty.into_iter().skip(buffer_pods) {
            self.add_violation(Invariant::EmptyNode, now, text);
        }
        if acts > 0 {
            let text = format!("{acts} commands though nothing changes");
            self.add_violation(Invariant::Restless, now, text);
        }
    }

    fn check_replicas(&mut self, scene: &GroundTruth, now: Timestamp) {
        for pool in &scene.config.pools {
            let Some(wanted) = pool.replicas.min(pool.limits.nodes.or(pool.replicas)) else {
                continue;
            };
            let nodes = scene.cluster.store().nodes().values();
            let count = nodes
                .filter(|node| {
                    let machine = scene.our_machine(node);
                    machine.is_some_and(SimInstance::is_live)
                        && node.is_initialized()
                        && node.pool_name().as_ref() == Some(&pool.name)
                })
                .count();
            if u32::try_from(count) != Ok(wanted) {
                let text = format!("pool {} has {count} nodes of {wanted}", pool.name);
                self.add_violation(Invariant::Number, now, text);
            }
        }
    }
}

/// Returns true if a patch adds the disrupted taint.
pub fn adds_disrupted_taint(patch: &NodePatch) -> bool {
    let mut taints = patch.taints.iter().flatten();
    taints.any(|taint| taint.key == TAINT_DISRUPTED)
}

/// Description of a voluntary command. `None` if it only reads, or is not voluntary.
fn voluntary_action(command: &Command, scene: &GroundTruth) -> Option<String> {
    match command {
        Command::PatchNode(patch) if adds_disrupted_taint(patch) => {
            let interrupted =
                (DISRUPTION_REASON.to_owned(), Some(Reason::Interrupted.as_str().to_owned()));
            let helpless = patch.annotations.contains(&interrupted);
            (!helpless && scene.reclaimed_at(&patch.node).is_none())
                .then(|| format!("taint {}", patch.node))
        }
        Command::Evict { pod, uid } => {
            // The eviction of a deleted pod has no effect.
            let node = scene.cluster.store().pod(pod, uid)?.node.as_ref()?;
            scene.reclaimed_at(node).is_none().then(|| format!("evict {pod}"))
        }
        Command::Terminate { instance, .. } => {
            let machine = scene.cloud.get(instance.as_str())?;
            let registered = scene.cluster.node_of(instance.as_str())?.is_registered();
            let is_live = machine.is_live() && machine.reclaimed.is_none();
            (registered && is_live).then(|| format!("terminate {instance}"))
        }
        Command::DeleteNode { node, .. } => {
            let found = scene.cluster.store().nodes().get(node)?;
            let is_live = scene.our_machine(found)?.truth().state.is_live();
            (is_live && scene.reclaimed_at(node).is_none()).then(|| format!("delete {node}"))
        }
        Command::Launch(launch) => Some(format!("launch for claim {}", launch.claim.id)),
        Command::CreateNode(node) => Some(format!("make {}", node.name)),
        Command::Bind { pod, .. } => Some(format!("bind {pod}")),
        _ => None,
    }
}
