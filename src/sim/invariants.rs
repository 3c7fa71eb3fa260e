//! What must hold after every step, and what must hold once faults have stopped.
//! It must not know how the engine decides: it looks at commands and at the truth behind them.

// Early binding and nominations.
mod early_binding;
// Disruption of nodes.
pub mod disruption;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

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
use crate::model::pool::{Limits, Pool, Reason};
use crate::model::quantity::Resources;
use crate::model::watched_object::ObjectKind;
use crate::sim::cloud::Cloud;
use crate::sim::cloud::instance::SimInstance;
use crate::sim::cluster::SimCluster;
use crate::sim::event_queue::later;
use crate::sim::external_changes::ExternalTaintRemovals;
use crate::sim::invariants::disruption::Leaving;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// The live instances of a pool and of the cluster keep within their limits.
    Limits,
    /// No reservation has more instances than it is for.
    Reservations,
    /// A claim has at most one live instance.
    OneInstance,
    /// What is not ours is not touched.
    Foreign,
    /// No pod loses its place against a disruption budget of pods.
    Pdb,
    /// No node is closed beyond what the budgets of its pool allow: of the nodes that are
    /// initialized, those that are closed or not ready, it among them. As far as the daemon was
    /// told when it sent the taint off.
    Budget,
    /// No pod that must not be disrupted is evicted so that its node may leave.
    Protected,
    /// No pod is evicted so that its node may leave before all that will be made anew have room on
    /// nodes that are there.
    Homeless,
    /// No node is closed without anyone letting it leave, and none in the end.
    Tainted,
    /// No registered instance is ended before its drain is confirmed.
    Drain,
    /// Nothing voluntary is done while the view is stale or partial.
    StaleView,
    /// The engine comes to rest within one moment.
    Spin,
    /// Pods are bound early to our nodes alone, as many as fit, and let go only where nothing has
    /// run; none stays for long on a node whose instance is gone.
    Early,
    /// In the end every pod that can be placed is bound.
    Unbound,
    /// In the end no node is empty for longer than its pool allows.
    EmptyNode,
    /// In the end every instance has its Node and every Node its instance.
    Orphan,
    /// In the end every static pool has its number of nodes.
    Number,
    /// In the end nothing is left to do.
    Restless,
}

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What should.
    pub rule: Invariant,
    /// When.
    pub at: Timestamp,
    /// The objects in question.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.at, self.rule, self.text)
    }
}

/// The truth that a command is held against: all there is beside the daemon.
#[derive(Clone, Debug)]
pub struct GroundTruth {
    /// The configuration in force.
    pub config: Arc<Cluster>,
    /// Shapes and prices.
    pub catalog: Arc<Catalog>,
    /// The cluster.
    pub cluster: SimCluster,
    /// The cloud.
    pub cloud: Cloud,
}

impl GroundTruth {
    /// Whether an instance is of this installation and cluster.
    pub fn is_ours(&self, instance: &Instance) -> bool {
        // By the plain tags: what cannot be read as a claim is ours all the same.
        let is = |tag: &str, value: &str| instance.tags.get(tag).is_some_and(|own| own == value);
        is(TAG_INSTALLATION, &self.config.installation)
            && is(TAG_CLUSTER, self.config.name.as_str())
    }

    /// The machine behind a node, if it is one of ours.
    pub fn our_machine(&self, node: &Node) -> Option<&SimInstance> {
        let machine = self.cloud.get(node.instance_id()?)?;
        self.is_ours(machine.truth()).then_some(machine)
    }

    /// All live instances of ours.
    pub fn live(&self) -> impl Iterator<Item = &SimInstance> {
        let live = self
            .cloud
            .all()
            .filter(|machine| machine.truth().state.is_live());
        live.filter(|machine| self.is_ours(machine.truth()))
    }

    fn occupying(&self, node: &Node) -> impl Iterator<Item = &Pod> {
        let pods = self.cluster.store().pods_on(node.name.as_str());
        pods.filter(|pod| pod.occupies_node())
    }
}

/// Longest time a claim of ours may be without its counterpart in the end: registration may take
/// a quarter of an hour, and ending what did not register some minutes more.
const ORPHAN_MAX: SignedDuration = SignedDuration::from_mins(25);

/// What runs on a reclaimed instance is lost anyway when so little of its notice is left.
const LAST_MOMENTS: SignedDuration = SignedDuration::from_secs(15);

/// Watches commands and their outcome.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    violations: Vec<Violation>,
    tainted: BTreeMap<NodeName, Timestamp>,
    external_changes: ExternalTaintRemovals,
    leaving: Leaving,
    commands: u64,
}

impl Checker {
    /// All that did not hold so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How many commands there were that do more than look at instances and the Lease.
    pub fn acts(&self) -> u64 {
        self.commands
    }

    /// Someone else took the taint of a leaving node away.
    pub fn untainted(&mut self, node: &NodeName, scene: &GroundTruth) {
        let store = scene.cluster.store();
        if let Some(node) = store.nodes().get(node) {
            let pods = store.pods_on(node.name.as_str());
            self.external_changes.untainted(node, pods);
        }
    }

    /// The daemon is told something.
    pub fn told(&mut self, event: &Event, now: Timestamp) {
        self.external_changes.told(event, now);
        self.leaving.told(event, now);
    }

    /// Notes something that does not hold.
    pub fn fault(&mut self, rule: Invariant, at: Timestamp, text: String) {
        self.violations.push(Violation { rule, at, text });
    }

    /// A command leaves the engine, whose view is in doubt for a reason, or is not.
    pub fn issued(
        &mut self,
        command: &Command,
        doubt: Option<(ObjectKind, &'static str)>,
        scene: &GroundTruth,
        now: Timestamp,
    ) {
        let looks = matches!(command, Command::ListInstances | Command::ReadLease);
        self.commands += u64::from(!looks);
        self.leaving(command, scene, now);
        let (Some((kind, why)), Some(what)) = (doubt, voluntary(command, scene)) else {
            return;
        };
        let text = format!("{what} while the watch of {} {why}", kind.plural());
        self.fault(Invariant::StaleView, now, text);
    }

    /// A command that was sent off arrives where it is carried out.
    pub fn arriving(
        &mut self,
        command: &Command,
        scene: &GroundTruth,
        (sent, now): (Timestamp, Timestamp),
    ) {
        match command {
            Command::Terminate { instance, .. } => self.terminating(instance, scene, (sent, now)),
            Command::CreateNode(node) => self.creating(&node.name, &node.provider_id, scene, now),
            Command::Bind { pod, uid, node } => self.binding((pod, uid), node, scene, now),
            Command::DeletePod { pod, uid, .. } => self.letting_go((pod, uid), scene, now),
            Command::PatchNode(patch) => self.patching(patch, scene, now),
            Command::DeleteNode { node, uid } => self.deleting(node, uid, scene, now),
            Command::Evict { pod, uid } => self.evicting(pod, uid, scene, (sent, now)),
            Command::Nominate { node, .. } | Command::ClearNomination { node, .. } => {
                self.hinting(node, scene, now);
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

    fn terminating(
        &mut self,
        instance: &InstanceId,
        scene: &GroundTruth,
        (sent, now): (Timestamp, Timestamp),
    ) {
        let Some(machine) = scene.cloud.get(instance.as_str()) else {
            return;
        };
        if !scene.is_ours(machine.truth()) {
            let text = format!("terminate {instance}, which is not ours");
            self.fault(Invariant::Foreign, now, text);
            return;
        }
        // In its last moments there is nothing left to wait for.
        let ends = machine
            .reclaimed
            .is_some_and(|at| at <= later(now, LAST_MOMENTS));
        if !machine.truth().state.is_live() || ends {
            return;
        }
        let Some(node) = scene.cluster.node_of(instance.as_str()) else {
            return;
        };
        if self.grace_is_over(node, machine, now) {
            return;
        }
        if scene.has_yet_to_come(node, sent) {
            return;
        }
        self.displacing(node, &format!("terminate {instance}"), scene, (sent, now));
        let untainted = node.is_registered() && !node.has_disrupted_taint();
        if untainted && !self.external_changes.is_untold(&node.name, sent) {
            let text = format!("terminate {instance} though {} is not tainted", node.name);
            self.fault(Invariant::Drain, now, text);
        }
    }

    /// Whether a leaving node has held its pods for as long as its pool lets it.
    fn grace_is_over(&self, node: &Node, machine: &SimInstance, now: Timestamp) -> bool {
        let tags = &machine.truth().tags;
        let seconds = tags.get(TAG_GRACE).and_then(|text| text.parse().ok());
        let grace = seconds.map(SignedDuration::from_secs);
        let tainted = self.tainted.get(&node.name);
        // A pool may force pods off its nodes, and what fails has no time: the Node says so then.
        let said = node.deadline().is_some_and(|at| at <= now);
        let own = grace.zip(tainted);
        said || own.is_some_and(|(grace, tainted)| later(*tainted, grace) <= now)
    }

    /// An act takes the place of every pod on a node away.
    fn displacing(
        &mut self,
        node: &Node,
        act: &str,
        scene: &GroundTruth,
        (sent, now): (Timestamp, Timestamp),
    ) {
        // Those that a meddler let in while the act was on its way are nobody's fault, and nobody
        // waits for those that should have ended long ago.
        let pods = scene.occupying(node).filter(|pod| !pod.is_stuck(now));
        let count = pods.filter(|pod| !self.external_changes.has_let_in(&node.name, pod, sent));
        let count = count.count();
        if count == 0 {
            return;
        }
        let text = format!("{act} with {count} pods on {}", node.name);
        self.fault(Invariant::Drain, now, text);
        for (owner, lost, allowed) in scene.cluster.displaced(node.name.as_str()) {
            if lost > allowed {
                let text = format!("{act}: {owner} loses {lost} pods, {allowed} may be away");
                self.fault(Invariant::Pdb, now, text);
            }
        }
    }

    fn patching(&mut self, patch: &NodePatch, scene: &GroundTruth, now: Timestamp) {
        let Some(node) = scene.cluster.store().nodes().get(&patch.node) else {
            return;
        };
        if scene.our_machine(node).is_none() {
            self.fault(
                Invariant::Foreign,
                now,
                format!("patch {}, which is not ours", node.name),
            );
        }
        self.leaving.landed(&node.name);
        if node.version == patch.version && taints(patch) {
            self.tainted.entry(node.name.clone()).or_insert(now);
        }
        let untaints = patch.taints.is_some() && !taints(patch);
        if node.version == patch.version && untaints {
            self.tainted.remove(&node.name);
            self.leaving.stays(&node.uid);
        }
    }

    fn deleting(&mut self, name: &NodeName, uid: &str, scene: &GroundTruth, now: Timestamp) {
        let node = scene
            .cluster
            .store()
            .nodes()
            .get(name)
            .filter(|node| node.uid == uid);
        let Some(node) = node else { return };
        let Some(machine) = scene.our_machine(node) else {
            self.fault(
                Invariant::Foreign,
                now,
                format!("delete {name}, which is not ours"),
            );
            return;
        };
        if machine.truth().state.is_live() && machine.reclaimed.is_none() {
            let text = format!("delete {name} while {} lives", machine.truth().id);
            self.fault(Invariant::Drain, now, text);
            self.displacing(node, &format!("delete {name}"), scene, (now, now));
        }
    }

    fn evicting(
        &mut self,
        key: &PodKey,
        uid: &str,
        scene: &GroundTruth,
        (sent, now): (Timestamp, Timestamp),
    ) {
        let pod = scene
            .cluster
            .store()
            .pods()
            .get(key)
            .filter(|pod| pod.uid == uid);
        let node = pod.and_then(|pod| scene.cluster.store().nodes().get(pod.node.as_ref()?));
        let Some((pod, node)) = pod.zip(node) else {
            return;
        };
        self.disturbing((key, pod), node, scene, (sent, now));
        if scene.our_machine(node).is_none() {
            let text = format!("evict {key} from {}, which is not ours", node.name);
            self.fault(Invariant::Foreign, now, text);
        } else if !node.has_disrupted_taint()
            && !self.external_changes.is_untold(&node.name, sent)
            // Somebody had deleted it, and its kubelet has made it anew meanwhile.
            && node.created.is_none_or(|at| at <= sent)
        {
            let text = format!("evict {key} from {}, which is not leaving", node.name);
            self.fault(Invariant::Drain, now, text);
        }
    }

    /// An instance was launched.
    pub fn launched(&mut self, scene: &GroundTruth, now: Timestamp) {
        self.reserved(scene, now);
        let mut claims: BTreeMap<&str, u32> = BTreeMap::new();
        let mut pools: BTreeMap<&str, (u32, Resources)> = BTreeMap::new();
        let mut all = (0, Resources::default());
        for machine in scene.live() {
            let instance = machine.truth();
            let tag = |name: &str| instance.tags.get(name).map_or("", String::as_str);
            *claims.entry(tag(TAG_CLAIM)).or_insert(0) += 1;
            let (count, capacity) = pools.entry(tag(TAG_POOL)).or_default();
            *count += 1;
            if let Some(shape) = scene.catalog.get(instance.offering.instance_type.as_str()) {
                capacity.add(&shape.capacity);
                all.1.add(&shape.capacity);
            }
            all.0 += 1;
        }
        for (claim, count) in claims.into_iter().filter(|(_, count)| *count > 1) {
            self.fault(
                Invariant::OneInstance,
                now,
                format!("claim {claim} has {count} instances"),
            );
        }
        for (name, (count, capacity)) in pools {
            let Some(pool) = scene.config.pool(name) else {
                continue;
            };
            self.limited(
                &format!("pool {name}"),
                &pool.limits,
                (count, &capacity),
                now,
            );
        }
        self.limited("the cluster", &scene.config.limits, (all.0, &all.1), now);
    }

    /// Whoever has so much keeps within these limits.
    pub(super) fn limited(
        &mut self,
        whose: &str,
        limits: &Limits,
        (count, capacity): (u32, &Resources),
        now: Timestamp,
    ) {
        if limits.nodes.is_some_and(|most| count > most) {
            self.fault(Invariant::Limits, now, format!("{whose} has {count} nodes"));
        }
        for (resource, most) in &limits.capacity {
            let used = capacity.get(resource);
            if used > *most {
                let text = format!("{whose} has {resource} {used}, {most} at most");
                self.fault(Invariant::Limits, now, text);
            }
        }
    }

    /// An instance was launched in a reservation, or should have been.
    fn reserved(&mut self, scene: &GroundTruth, now: Timestamp) {
        for (id, own) in scene.catalog.reservations() {
            let count = scene.cloud.in_reservation(id);
            if u64::from(own.left) < count as u64 {
                let text = format!("{count} instances in {id}, which is for {}", own.left);
                self.fault(Invariant::Reservations, now, text);
            }
        }
    }

    /// What must hold at the end, a while after faults and workloads have come to rest; `acts` are
    /// the commands of a last quiet while.
    pub fn settled(&mut self, scene: &GroundTruth, acts: u64, now: Timestamp) {
        for pod in scene.cluster.store().pods().values() {
            let done = pod.is_terminal() || pod.node.is_some() || pod.is_daemon();
            if !done {
                self.fault(
                    Invariant::Unbound,
                    now,
                    format!("pod {} is not bound", pod.key),
                );
            }
        }
        self.lost(scene, now);
        let mut nodes = BTreeSet::new();
        let mut empty = Vec::new();
        for node in scene.cluster.store().nodes().values() {
            nodes.extend(node.instance_id());
            let Some(machine) = scene.our_machine(node) else {
                continue;
            };
            let ended = machine
                .ended
                .is_some_and(|at| now.duration_since(at) > ORPHAN_MAX);
            if ended {
                let text = format!("node {} is left of {}", node.name, machine.truth().id);
                self.fault(Invariant::Orphan, now, text);
            }
            empty.extend(disruption::empty_for_long(node, scene, now));
            if node.is_marked() && !disruption::is_held(node, scene, now) {
                let text = format!("node {} is left tainted, or marked", node.name);
                self.fault(Invariant::Tainted, now, text);
            }
        }
        for machine in scene.live() {
            let instance = machine.truth();
            let old = now.duration_since(instance.launched) > ORPHAN_MAX;
            if old && !nodes.contains(instance.id.as_str()) {
                self.fault(
                    Invariant::Orphan,
                    now,
                    format!("instance {} has no node", instance.id),
                );
            }
        }
        self.miscounted(scene, now);
        // Each pod that a buffer keeps room for may hold a node.
        let pods = scene.cluster.store().pods();
        let buffers = scene.config.buffers.iter();
        let kept = buffers
            .filter_map(|own| own.pods(pods.values(), now))
            .flatten()
            .count();
        for text in empty.into_iter().skip(kept) {
            self.fault(Invariant::EmptyNode, now, text);
        }
        if acts > 0 {
            self.fault(
                Invariant::Restless,
                now,
                format!("{acts} commands though nothing changes"),
            );
        }
    }

    fn miscounted(&mut self, scene: &GroundTruth, now: Timestamp) {
        let wanted = |pool: &Pool| pool.replicas.min(pool.limits.nodes.or(pool.replicas));
        for pool in &scene.config.pools {
            let Some(wanted) = wanted(pool) else { continue };
            let nodes = scene.cluster.store().nodes().values();
            let own = nodes.filter(|node| {
                let live = scene
                    .our_machine(node)
                    .is_some_and(|it| it.truth().state.is_live());
                live && node.is_initialized() && node.pool().as_ref() == Some(&pool.name)
            });
            let count = own.count();
            if u32::try_from(count) != Ok(wanted) {
                let text = format!("pool {} has {count} nodes of {wanted}", pool.name);
                self.fault(Invariant::Number, now, text);
            }
        }
    }
}

/// Whether a patch puts the disrupted taint on.
pub fn taints(patch: &NodePatch) -> bool {
    let taints = patch.taints.iter().flatten();
    taints.into_iter().any(|taint| taint.key == TAINT_DISRUPTED)
}

/// What a command does of its own will, in words; none where it only looks, or cannot be helped.
fn voluntary(command: &Command, scene: &GroundTruth) -> Option<String> {
    let reclaimed = |node: &NodeName| {
        let node = scene.cluster.store().nodes().get(node)?;
        scene.our_machine(node)?.reclaimed
    };
    match command {
        Command::PatchNode(patch) if taints(patch) => {
            let interrupted = (
                DISRUPTION_REASON.to_owned(),
                Some(Reason::Interrupted.as_str().to_owned()),
            );
            let helpless = patch.annotations.contains(&interrupted);
            (!helpless && reclaimed(&patch.node).is_none()).then(|| format!("taint {}", patch.node))
        }
        Command::Evict { pod, uid } => {
            // Of one that is gone, nothing comes.
            let pods = scene.cluster.store().pods();
            let node = pods.get(pod).filter(|own| own.uid == *uid)?.node.as_ref()?;
            reclaimed(node).is_none().then(|| format!("evict {pod}"))
        }
        Command::Terminate { instance, .. } => {
            let machine = scene.cloud.get(instance.as_str())?;
            let registered = scene.cluster.node_of(instance.as_str())?.is_registered();
            let live = machine.truth().state.is_live() && machine.reclaimed.is_none();
            (registered && live).then(|| format!("terminate {instance}"))
        }
        Command::DeleteNode { node, .. } => {
            let found = scene.cluster.store().nodes().get(node)?;
            let live = scene.our_machine(found)?.truth().state.is_live();
            (live && reclaimed(node).is_none()).then(|| format!("delete {node}"))
        }
        Command::Launch(launch) => Some(format!("launch for claim {}", launch.claim.id)),
        Command::CreateNode(node) => Some(format!("make {}", node.name)),
        Command::Bind { pod, .. } => Some(format!("bind {pod}")),
        _ => None,
    }
}
