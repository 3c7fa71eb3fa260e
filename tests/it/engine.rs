//! The engine step by step: its commands after each event.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::coordination::lease_annotations::AnnotatedLease;
use outrigger::engine::Engine;
use outrigger::engine::command::{Command, IssuedCommand, LeasePatch, NodePatch};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::affinity::{PodTerm, TopologySpread};
use outrigger::model::cluster::{Binding, Cluster, ManagementMode, PlacementHints};
use outrigger::model::fleet::{DisruptionUsage, FleetView};
use outrigger::model::id::{NodeName, ObjectKey};
use outrigger::model::instance::{ExpectedNode, Instance, InstanceState, Offering, UnavailableKey};
use outrigger::model::labels::{ARCH, DO_NOT_DISRUPT, HOSTNAME, Labels};
use outrigger::model::node::Node;
use outrigger::model::pod::{Owner, Pod};
use outrigger::model::pool::{BudgetNodes, Limits, Pool};
use outrigger::model::selector::Selector;
use outrigger::model::watched_object::{Attachment, Namespace, ObjectKind, WatchedObject};
use outrigger::provider::{
    Adoption, CommandResult, FailureKind, Interruption, Launch, OfferingRefusal, RefusalKind,
};

mod adoption;
mod node_classes;
mod clocks;
mod consolidation_feedback;
mod copied_instances;
mod drift;
mod early_binding;
mod termination;
mod event_recorder;
mod identity;
mod inventory;
mod launch_requests;
mod external_changes;
mod empty_nodes;
mod lease_annotations;
mod interruption;
mod static_pools;
mod unavailable_offerings;
mod garbage_collection;
mod timeouts;
mod registration;
mod replacement_nodes;
mod reservations;
mod buffers;
mod late_places;
mod blocked_drains;
mod two_clusters;
mod in_place_update;
mod status;
mod measures;
mod registration_backoff;
mod upgrading;
mod consolidation;
mod sweeps;
mod requested_sweeps;
mod regular_pass;
mod batched_launches;

/// An engine whose clock the test advances, and a provider that accepts every command.
struct Stage {
    engine: Engine,
    now: Timestamp,
    instances: BTreeMap<String, Instance>,
    launches: Vec<Launch>,
    lease: Option<AnnotatedLease>,
    /// Names of the issued commands, without `list_instances` and `read_lease`.
    commands: Vec<String>,
    reports: Vec<Report>,
    /// The volumes that are attached to nodes.
    attachments: Vec<Attachment>,
    /// The last disruption usage that was reported to the fleet.
    disruption_usage: DisruptionUsage,
    /// The kind whose watch shows no activity.
    silent_watch: Option<ObjectKind>,
}

impl Stage {
    fn new(mode: ManagementMode) -> Self {
        let now = Timestamp::from_second(1_800_000_000).expect("in range");
        let mut stage = Self {
            engine: Engine::new(7),
            now,
            instances: BTreeMap::new(),
            launches: Vec::new(),
            lease: None,
            commands: Vec::new(),
            reports: Vec::new(),
            attachments: Vec::new(),
            disruption_usage: DisruptionUsage::default(),
            silent_watch: None,
        };
        stage.start(mode);
        stage
    }

    /// A managed cluster whose static pool has launched its nodes, which have just registered.
    fn with_static_pool(count: usize) -> Self {
        let mut stage = Self::new(ManagementMode::Manage);
        stage.change(|cluster| cluster.pools[0].replicas = u32::try_from(count).ok());
        stage.sync(vec![], vec![]);
        stage.run(10, &[]);
        assert_eq!(stage.launches.len(), count);
        for number in 0..count {
            stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
        }
        stage
    }

    /// The cluster of `with_static_pool` a minute later, with a pod that fills each node.
    fn settled(count: usize) -> Self {
        let mut stage = Self::with_static_pool(count);
        for number in 0..count {
            let pod = owned_pod(&format!("p{number}"));
            stage.apply(bound(pod, &format!("node-{number}")));
        }
        stage.run(60, &[]);
        stage.commands.clear();
        stage.reports.clear();
        stage
    }

    /// Deletes a Node, as a user does.
    fn delete_node(&mut self, number: usize) {
        let key = ObjectKey::new("", format!("node-{number}"));
        self.event(Event::Deleted(ObjectKind::Node, key));
    }

    /// Deletes the Nodes 0 to `count - 1`.
    fn delete_nodes(&mut self, count: usize) {
        (0..count).for_each(|number| self.delete_node(number));
    }

    /// Deletes the pod that [`settled`](Self::settled) has put on a node.
    fn delete_pod(&mut self, number: usize) {
        let key = owned_pod(&format!("p{number}")).key;
        self.event(Event::Deleted(ObjectKind::Pod, key));
    }

    /// The API server lists the Nodes again, as the engine knows them.
    fn list_nodes_again(&mut self) {
        self.list_nodes_without(&[]);
    }

    /// The API server lists the Nodes again, without the Nodes of these names.
    fn list_nodes_without(&mut self, lacking: &[&str]) {
        let nodes = self.engine.state().objects.nodes.values();
        let nodes = nodes.filter(|node| !lacking.contains(&node.name.as_str()));
        let nodes = nodes.map(|node| WatchedObject::Node(Box::new(node.clone())));
        let nodes = nodes.collect();
        self.event(Event::Reset(ObjectKind::Node, nodes));
    }

    fn start(&mut self, mode: ManagementMode) {
        self.configure(mode, PlacementHints::On);
        let catalog = Arc::new(Catalog::shipped());
        self.engine.handle_event(Event::CatalogChanged(catalog), self.now);
    }

    fn configure(&mut self, mode: ManagementMode, placement_hints: PlacementHints) {
        let mut pool = Pool::new("general");
        pool.disruption.consolidate_after = Some(SignedDuration::from_secs(30));
        pool.disruption.budgets[0].nodes = BudgetNodes::Percent(100);
        self.set(Cluster {
            installation: "tests".into(),
            name: "one".into(),
            mode,
            pools: vec![pool],
            placement_hints,
            ..Cluster::default()
        });
    }

    /// Puts a configuration in force.
    fn set(&mut self, cluster: Cluster) {
        self.event(Event::ConfigChanged(Arc::new(cluster)));
    }

    /// Changes the configuration in force.
    fn change(&mut self, change: impl FnOnce(&mut Cluster)) {
        let mut cluster = Cluster::clone(&self.engine.state().cluster);
        change(&mut cluster);
        self.set(cluster);
    }

    /// Lists all objects: these nodes and pods, and no CapacityBuffers.
    fn sync(&mut self, nodes: Vec<Node>, pods: Vec<Pod>) {
        self.list(nodes, pods);
        self.event(Event::BuffersChanged(Vec::new()));
    }

    fn list(&mut self, nodes: Vec<Node>, pods: Vec<Pod>) {
        self.list_at("here", nodes, pods);
    }

    /// All objects of an API server with this UID.
    fn list_at(&mut self, uid: &str, nodes: Vec<Node>, pods: Vec<Pod>) {
        for kind in ObjectKind::ALL {
            let objects = match kind {
                ObjectKind::Node => {
                    nodes.iter().cloned().map(|n| WatchedObject::Node(Box::new(n))).collect()
                }
                ObjectKind::Pod => {
                    pods.iter().cloned().map(|p| WatchedObject::Pod(Box::new(p))).collect()
                }
                ObjectKind::Namespace => vec![kube_system(uid)],
                _ => Vec::new(),
            };
            self.engine.handle_event(Event::Reset(kind, objects), self.now);
        }
    }

    fn event(&mut self, event: Event) {
        self.engine.handle_event(event, self.now);
    }

    fn apply(&mut self, object: WatchedObject) {
        self.event(Event::Applied(object));
    }

    /// Advances the clock and answers every command except those of `hold`; returns the held ones.
    fn run(&mut self, seconds: i64, hold: &[&str]) -> Vec<IssuedCommand> {
        let end = self.now + SignedDuration::from_secs(seconds);
        let mut held = Vec::new();
        loop {
            self.answer_all(hold, &mut held);
            self.reports.extend(std::iter::from_fn(|| self.engine.next_report()));
            let next = self.engine.poll_timeout().map_or(end, |(at, _)| at.max(self.now));
            if next > end {
                break;
            }
            self.wake(next);
        }
        self.now = end;
        held
    }

    fn answer_all(&mut self, hold: &[&str], held: &mut Vec<IssuedCommand>) {
        while let Some(issued) = self.engine.next_command() {
            if !matches!(issued.command, Command::ListInstances | Command::ReadLease) {
                self.commands.push(issued.command.name().to_owned());
            }
            if hold.contains(&issued.command.name()) {
                held.push(issued);
                continue;
            }
            let answer = self.answer(&issued.command);
            self.engine.handle_event(Event::Answered(issued.id, answer), self.now);
        }
    }

    /// Advances the clock to `at` and makes the engine run a pass.
    fn wake(&mut self, at: Timestamp) {
        self.now = at;
        for kind in ObjectKind::ALL.into_iter().filter(|kind| Some(*kind) != self.silent_watch) {
            self.engine.handle_event(Event::WatchAlive(kind), self.now);
        }
        self.engine.handle_event(Event::Timeout, self.now);
    }

    /// The only Node, as the engine knows it.
    fn only_node(&self) -> &Node {
        let nodes = &self.engine.state().objects.nodes;
        nodes.values().next().expect("the node")
    }

    /// The number of nodes without the unregistered taint.
    fn untainted(&self) -> usize {
        let nodes = self.engine.state().objects.nodes.values();
        nodes.filter(|node| !node.has_unregistered_taint()).count()
    }

    fn answer(&mut self, command: &Command) -> CommandResult {
        match command {
            Command::Launch(launch) => {
                let number = self.launches.len();
                let id = format!("i-{number}");
                let offering = launch.offerings[0].clone();
                let node = format!("node-{number}");
                let node = ExpectedNode::of_ec2(&node, &offering.zone, &id.as_str().into());
                let early = self.engine.state().cluster.binding == Binding::Early;
                let instance = Instance {
                    id: id.as_str().into(),
                    offering,
                    state: InstanceState::Running,
                    launched: self.now,
                    tags: launch.tags.clone().into(),
                    node: early.then(|| Box::new(node)),
                    facts: None,
                };
                self.launches.push((**launch).clone());
                self.instances.insert(id, instance.clone());
                CommandResult::Launched(instance)
            }
            Command::Terminate { instance, .. } => {
                let instance = self.instances.get_mut(instance.as_str());
                instance.expect("a known instance").state = InstanceState::Terminated;
                CommandResult::Terminating(InstanceState::ShuttingDown)
            }
            Command::ListInstances => {
                CommandResult::Instances(self.instances.values().cloned().collect())
            }
            Command::ReportDisruptions(disruption_usage) => {
                self.disruption_usage = DisruptionUsage::clone(disruption_usage);
                CommandResult::Done
            }
            Command::PatchNode(patch) => {
                self.patch(patch);
                CommandResult::Done
            }
            Command::DeleteNode { node, .. } => {
                let key = ObjectKey::new("", node.as_str());
                let deleted = Event::Deleted(ObjectKind::Node, key);
                self.engine.handle_event(deleted, self.now);
                CommandResult::Done
            }
            Command::ListPodsOn { node } => self.pods_on(node),
            Command::ListAttachments { .. } => CommandResult::Attachments(self.attachments.clone()),
            Command::Probe { .. } => CommandResult::Probed { alive: 0 },
            Command::ReadLease => CommandResult::Lease(self.lease.clone()),
            Command::PatchLease(patch) => self.patch_lease(patch),
            Command::RequestGrant(_) | Command::RequestDisruption { .. } => CommandResult::Granted,
            Command::Nominate { pod, node, .. } => self.nominate(pod, Some(node.clone())),
            Command::ClearNomination { pod, .. } => self.nominate(pod, None),
            Command::CreateNode(_) | Command::Bind { .. } | Command::DeletePod { .. } => {
                self.execute(command)
            }
            Command::Tag { instances, tags } => {
                for id in instances {
                    let instance = self.instances.get_mut(id.as_str()).expect("known");
                    Arc::make_mut(&mut instance.tags).extend(tags.clone());
                }
                CommandResult::Done
            }
            Command::Adopt(adoption) => self.adopt(adoption),
            Command::PatchBuffer(patch) => CommandResult::Version(format!("{}0", patch.version)),
            Command::Evict { .. }
            | Command::SaveDiscoveredMemory { .. }
            | Command::Rewatch { .. }
            | Command::ReportUsage { .. }
            | Command::MarkUnavailable { .. } => CommandResult::Done,
        }
    }

    fn adopt(&mut self, adoption: &Adoption) -> CommandResult {
        let id = adoption.instance.to_string();
        self.instances.insert(id, adoption.adopted_instance());
        CommandResult::Done
    }

    fn pods_on(&self, node: &NodeName) -> CommandResult {
        let pods = self.engine.state().objects.pods_on(node.as_str());
        CommandResult::Pods(pods.cloned().collect())
    }

    fn patch_lease(&mut self, patch: &LeasePatch) -> CommandResult {
        if self.lease.as_ref().map(|lease| &lease.version) != patch.version.as_ref() {
            return CommandResult::Failed {
                kind: FailureKind::Conflict,
                text: "the object has been modified".to_owned(),
            };
        }
        for (key, value) in &patch.annotations {
            self.annotate(key, value.as_deref());
        }
        CommandResult::Lease(self.lease.clone())
    }

    /// Another client writes an annotation of the Lease.
    fn annotate(&mut self, key: &str, value: Option<&str>) {
        let lease = self.lease.get_or_insert_default();
        lease.version.push('+');
        match value {
            Some(value) => lease.annotations.insert(key.to_owned(), value.to_owned()),
            None => lease.annotations.remove(key),
        };
    }

    fn nominate(&mut self, pod: &ObjectKey, node: Option<NodeName>) -> CommandResult {
        let known = self.engine.state().objects.pods.get(pod);
        let mut pod = known.expect("a known pod").clone();
        pod.nominated_node = node;
        self.apply(WatchedObject::Pod(Box::new(pod)));
        CommandResult::Done
    }

    /// What the API server does when a Node is created, or a pod is bound or deleted.
    fn execute(&mut self, command: &Command) -> CommandResult {
        match command {
            Command::CreateNode(new) => {
                let node = Node {
                    name: new.name.clone(),
                    uid: format!("uid-{}", new.name),
                    version: "1".into(),
                    provider_id: new.provider_id.clone(),
                    labels: new.labels.clone(),
                    annotations: new.annotations.clone(),
                    taints: new.taints.clone(),
                    capacity: new.capacity.clone(),
                    allocatable: new.allocatable.clone(),
                    created: Some(self.now),
                    ..Node::default()
                };
                self.apply(WatchedObject::Node(Box::new(node)));
            }
            Command::Bind { pod, node, .. } => {
                let pod = self.engine.state().objects.pods[pod].clone();
                self.apply(bound(pod, node.as_str()));
            }
            Command::DeletePod { pod, .. } => {
                self.event(Event::Deleted(ObjectKind::Pod, pod.clone()));
            }
            _ => {}
        }
        CommandResult::Done
    }

    fn patch(&mut self, patch: &NodePatch) {
        let node = self.engine.state().objects.nodes.get(&patch.node).expect("a known node");
        let mut node = node.clone();
        node.version = format!("{}+", node.version);
        for (target, changes) in
            [(&mut node.labels, &patch.labels), (&mut node.annotations, &patch.annotations)]
        {
            for (key, value) in changes {
                match value {
                    Some(value) => target.insert(key.clone(), value.clone()),
                    None => target.remove(key),
                };
            }
        }
        if let Some(taints) = &patch.taints {
            node.taints.clone_from(taints);
        }
        if let Some(finalizers) = &patch.finalizers {
            node.finalizers.clone_from(finalizers);
        }
        if node.node_claim == patch.disowned {
            node.node_claim = None;
        }
        self.engine.handle_event(Event::Applied(WatchedObject::Node(Box::new(node))), self.now);
    }

    /// The node that the n-th launch registers.
    fn node(&self, n: usize) -> Node {
        let launch = &self.launches[n];
        let instance = &self.instances[&format!("i-{n}")];
        let catalog = self.engine.state().catalog.clone();
        let it = catalog.get(instance.offering.instance_type.as_str()).expect("a known type");
        Node {
            name: NodeName(format!("node-{n}")),
            uid: format!("uid-{n}"),
            version: "1".into(),
            provider_id: format!("aws:///{}/{}", instance.offering.zone, instance.id),
            labels: launch.labels.clone(),
            taints: launch.taints.clone(),
            ready: true,
            capacity: it.capacity.clone(),
            allocatable: it.allocatable.clone(),
            created: Some(self.now),
            ..Node::default()
        }
    }

    fn count(&self, name: &str) -> usize {
        self.commands.iter().filter(|command| *command == name).count()
    }
}

/// The Namespace that identifies a cluster.
fn kube_system(uid: &str) -> WatchedObject {
    WatchedObject::Namespace(Namespace {
        name: "kube-system".to_owned(),
        uid: uid.to_owned(),
        ..Namespace::default()
    })
}

fn pending_pod(name: &str) -> Pod {
    let mut pod = Pod { key: ObjectKey::new("default", name), ..Pod::default() };
    pod.uid = format!("uid-{name}");
    pod.unschedulable = true;
    pod.requests.cpu_milli = 1000;
    pod.requests.memory = 1 << 30;
    pod.requests.pods = 1;
    pod
}

/// A pending pod of a ReplicaSet, which recreates it after a deletion.
fn owned_pod(name: &str) -> Pod {
    replicated(pending_pod(name))
}

fn replicated(pod: Pod) -> Pod {
    let owner = Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() };
    Pod { owner: Some(owner), ..pod }
}

fn bound(mut pod: Pod, node: &str) -> WatchedObject {
    pod.node = Some(node.into());
    pod.unschedulable = false;
    WatchedObject::Pod(Box::new(pod))
}

#[test]
fn node_is_launched_for_a_pending_pod_and_terminated_when_empty() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![]);
    stage.run(6, &[]);
    assert!(stage.engine.is_ready(), "two listings are equal after five seconds");
    let pod = pending_pod("a");
    stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
    stage.run(3, &[]);
    assert_eq!(stage.launches.len(), 1);
    let node = stage.node(0);
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(2, &[]);
    let node = stage.only_node().clone();
    assert!(node.is_registered() && node.is_initialized() && node.taints.is_empty(), "{node:?}");
    stage.apply(bound(pod.clone(), "node-0"));
    stage.run(120, &[]);
    let steps = ["launch", "nominate", "patch_node"];
    assert_eq!(stage.commands, steps, "a used node is kept");
    stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    stage.run(20, &[]);
    assert_eq!(stage.count("terminate"), 0, "the node is kept until consolidate_after has passed");
    stage.run(60, &[]);
    let steps = ["patch_node", "list_pods_on", "terminate", "delete_node"];
    assert_eq!(stage.commands[3..], steps.map(str::to_owned));
    assert!(stage.engine.state().ledger.claims.is_empty());
}

#[test]
fn node_is_untainted_at_registration_without_placement_hints() {
    // Whether the kubelet is ready, and the commands until the node is initialized.
    for (ready, steps) in [
        (true, &["launch", "patch_node"][..]),
        (false, &["launch", "patch_node", "patch_node"][..]),
    ] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.configure(ManagementMode::Manage, PlacementHints::Off);
        stage.sync(vec![], vec![pending_pod("a")]);
        stage.run(10, &[]);
        let node = stage.node(0);
        stage.apply(WatchedObject::Node(Box::new(Node { ready, ..node })));
        stage.run(1, &[]);
        let node = stage.only_node().clone();
        assert!(node.is_registered() && !node.has_unregistered_taint());
        assert_eq!(node.is_initialized(), ready);
        let ready = Node { ready: true, ..node };
        stage.apply(WatchedObject::Node(Box::new(ready)));
        stage.run(1, &[]);
        assert!(stage.only_node().is_initialized());
        assert_eq!(stage.commands, steps);
    }
}

#[test]
fn queued_nominations_are_dropped_when_placement_hints_are_turned_off() {
    for (hints, first) in [(PlacementHints::On, Some("nominate")), (PlacementHints::Off, None)] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.sync(vec![], vec![pending_pod("a")]);
        stage.run(10, &[]);
        let node = stage.node(0);
        stage.apply(WatchedObject::Node(Box::new(node)));
        let (next, _) = stage.engine.poll_timeout().expect("a pass is due");
        stage.wake(next);
        stage.configure(ManagementMode::Manage, hints);
        let mut commands = std::iter::from_fn(|| stage.engine.next_command());
        let next = commands.find(|issued| !issued.command.is_read_only());
        assert_eq!(next.map(|issued| issued.command.name()), first);
        if hints == PlacementHints::Off {
            stage.run(1, &[]);
            assert_eq!(stage.commands, ["launch", "patch_node"]);
            let node = stage.only_node();
            assert!(node.is_initialized() && node.taints.is_empty(), "{node:?}");
        }
    }
}

/// Pods like `pending_pod`, no two of which can share a node.
fn anti_affine_pods<const N: usize>(names: [&str; N]) -> Vec<Pod> {
    let labels = Labels::from([("app".to_owned(), "loner".to_owned())]);
    let term = PodTerm {
        selector: Some(Selector::from_labels(&labels)),
        namespaces: ["default".to_owned()].into(),
        namespace_selector: None,
        topology_key: HOSTNAME.to_owned(),
    };
    let build = |name| Pod {
        labels: labels.clone(),
        anti_affinity: vec![term.clone()],
        ..pending_pod(name)
    };
    names.map(build).into()
}

#[test]
fn nodes_of_one_plan_that_register_close_together_are_untainted_together() {
    // Seconds between the two registrations, and whether the first node waits for the second.
    for (seconds, waited) in [(0, true), (3, true), (8, false)] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.sync(vec![], anti_affine_pods(["a", "b"]));
        stage.run(10, &[]);
        assert_eq!(stage.launches.len(), 2);
        stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
        stage.run(seconds, &[]);
        assert_eq!(stage.untainted(), usize::from(!waited), "after {seconds} s");
        stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
        stage.run(1, &[]);
        assert_eq!(stage.untainted(), 2, "after {seconds} s");
        assert_eq!(stage.count("nominate"), 2, "each pod is nominated once");
    }
}

#[test]
fn lost_nomination_is_renewed_before_the_nodes_of_the_plan_are_untainted() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], anti_affine_pods(["a", "b"]));
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(1, &[]);
    let pods = &stage.engine.state().objects.pods;
    let nominated = pods.values().find(|pod| pod.nominated_node.is_some());
    let nominated = nominated.cloned().expect("one pod is nominated");
    stage.nominate(&nominated.key, None);
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    // The engine nominates the other pod first, then this one again.
    let held = stage.run(1, &["nominate"]);
    let [issued] = &held[..] else { panic!("one pod is nominated at a time: {held:?}") };
    let Command::Nominate { pod, node, .. } = &issued.command else { panic!("{issued:?}") };
    assert!(*pod != nominated.key && stage.untainted() == 0, "{pod}");
    let answer = stage.nominate(pod, Some(node.clone()));
    stage.event(Event::Answered(issued.id, answer));
    stage.commands.clear();
    // The node does not wait for the result of this nomination any longer.
    let held = stage.run(1, &["nominate"]);
    assert_eq!(held.len(), 1);
    assert_eq!(stage.commands, ["nominate", "patch_node", "patch_node"]);
    assert_eq!(stage.untainted(), 2);
}

/// A scheduler that retries pods all the time clears their nominations at once.
#[test]
fn nodes_are_untainted_within_seconds_though_no_nomination_is_observed() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], anti_affine_pods(["a", "b"]));
    stage.run(10, &[]);
    for node in 0..2 {
        stage.apply(WatchedObject::Node(Box::new(stage.node(node))));
    }
    let held = stage.run(1, &["nominate"]);
    assert_eq!(held.len(), 2);
    for issued in held {
        stage.event(Event::Answered(issued.id, CommandResult::Done));
        stage.wake(stage.now + SignedDuration::from_millis(200));
    }
    assert_eq!(stage.untainted(), 0, "the watch may be behind");
    stage.run(2, &[]);
    assert_eq!(stage.untainted(), 2);
}

/// A node has capacity for a pod, and yet the scheduler does not bind it there: for example it has
/// a topology spread with other pods that were bound elsewhere.
#[test]
fn pod_is_planned_again_after_its_nomination_is_cleared_three_times() {
    for (refusals, cleared) in [(2, 0), (3, 1)] {
        let (mut stage, pod) = stage_with_nomination();
        for _ in 0..refusals {
            stage.nominate(&pod.key, None);
            stage.run(1, &[]);
        }
        stage.run(5, &[]);
        assert_eq!(stage.count("clear_nomination"), cleared, "{refusals} refusals");
        let waiting = stage.engine.state().waiting_pods(stage.now);
        assert_eq!(waiting.len(), cleared);
    }
}

/// The node may lack storage or a feature of the kubelet, neither of which the planner knows.
#[test]
fn one_node_is_kept_for_a_pod_that_the_scheduler_never_binds() {
    let (mut stage, pod) = stage_with_nomination();
    for _ in 0..240 {
        stage.nominate(&pod.key, None);
        stage.run(15, &[]);
    }
    assert_eq!((stage.launches.len(), stage.count("terminate")), (1, 0));
    assert!(stage.count("nominate") <= 10);
}

/// A pod that runs on another node cannot be nominated; its replacement node is untainted anyway.
#[test]
fn running_pods_are_not_nominated_to_their_replacement_node() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(5, &[]);
    let mut running = pending_pod("a");
    running.owner =
        Some(Owner { kind: "StatefulSet".into(), name: "owner".into(), uid: "owner".into() });
    stage.apply(bound(running, "node-0"));
    stage.run(1, &[]);
    let before = stage.count("nominate");
    stage.event(Event::interrupted("i-0".into(), Interruption::Spot, stage.now));
    stage.run(5, &["list_pods_on"]);
    assert_eq!(stage.launches.len(), 2, "a replacement node is launched");
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(5, &["list_pods_on"]);
    assert_eq!(stage.count("nominate"), before);
}

#[test]
fn launches_are_issued_before_nominations() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], anti_affine_pods(["a", "b"]));
    stage.run(10, &[]);
    for node in 0..2 {
        stage.apply(WatchedObject::Node(Box::new(stage.node(node))));
    }
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("c"))));
    for _ in 0..20 {
        stage.wake(stage.now + SignedDuration::from_millis(100));
    }
    let next = std::iter::from_fn(|| stage.engine.next_command());
    let next = next.filter(|issued| !issued.command.is_read_only());
    let names: Vec<&str> = next.map(|issued| issued.command.name()).collect();
    assert_eq!(names, ["launch", "nominate", "nominate"]);
}

/// A stage with one untainted node, to which its only pod is nominated.
fn stage_with_nomination() -> (Stage, Pod) {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    assert!(!stage.only_node().has_unregistered_taint());
    let key = ObjectKey::new("default", "a");
    let pod = stage.engine.state().objects.pods[&key].clone();
    assert_eq!(pod.nominated_node, Some("node-0".into()));
    (stage, pod)
}

#[test]
fn pod_is_nominated_again_unless_another_component_nominated_it() {
    for (nominated, nominations) in [(None, 2), (Some("other"), 1)] {
        let (mut stage, pod) = stage_with_nomination();
        stage.apply(WatchedObject::Pod(Box::new(Pod {
            nominated_node: nominated.map(NodeName::from),
            ..pod.clone()
        })));
        stage.run(3, &[]);
        assert_eq!(stage.count("nominate"), nominations, "{nominated:?}");
        stage.run(60, &[]);
        let known = &stage.engine.state().objects.pods[&pod.key];
        assert_eq!(known.nominated_node, nominated.map(NodeName::from));
        let cleared = usize::from(nominated.is_none());
        assert_eq!(stage.count("clear_nomination"), cleared, "the nomination expires");
    }
}

#[test]
fn nodes_are_untainted_without_permission_to_nominate_pods() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], anti_affine_pods(["a", "b"]));
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    let held = stage.run(1, &["nominate"]);
    let denied = CommandResult::Failed { kind: FailureKind::Denied, text: "forbidden".into() };
    assert_eq!(stage.engine.disabled_features(), [""; 0]);
    stage.event(Event::Answered(held[0].id, denied));
    stage.run(1, &[]);
    assert_eq!(stage.engine.disabled_features().len(), 1);
    assert!(!stage.only_node().has_unregistered_taint());
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(60, &[]);
    assert_eq!(stage.count("nominate"), 1, "the engine does not nominate again");
}

#[test]
fn pods_with_a_topology_spread_are_nominated_one_at_a_time_per_node() {
    let labels = Labels::from([("app".to_owned(), "spread".to_owned())]);
    let spread = TopologySpread {
        selector: Some(Selector::from_labels(&labels)),
        topology_key: ARCH.to_owned(),
        max_skew: 1,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
        is_hard: true,
    };
    let arch = Labels::from([(ARCH.to_owned(), "amd64".to_owned())]);
    let build = |name| {
        let mut pod = pending_pod(name);
        pod.requests.cpu_milli = 100;
        pod.requests.memory = 1 << 27;
        pod.labels.clone_from(&labels);
        pod.spread.push(spread.clone());
        pod.node_selector.clone_from(&arch);
        pod
    };
    let pods = ["a", "b", "c", "d", "e", "f", "g", "h"].map(build);
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], pods.to_vec());
    stage.run(10, &[]);
    for at in 0..stage.launches.len() {
        stage.apply(WatchedObject::Node(Box::new(stage.node(at))));
    }
    stage.run(2, &[]);
    let nodes = stage.launches.len();
    assert!(nodes < pods.len());
    assert_eq!(stage.count("nominate"), nodes);
    let known = stage.engine.state().objects.pods.values();
    let nominated: Vec<Pod> = known.filter(|pod| pod.nominated_node.is_some()).cloned().collect();
    for pod in nominated {
        let node = pod.nominated_node.clone().expect("it is nominated");
        stage.apply(bound(pod, node.as_str()));
    }
    stage.run(1, &[]);
    assert_eq!(stage.count("nominate"), pods.len().min(2 * nodes));
}

#[test]
fn unschedulable_pods_are_reported_until_none_is_left() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let huge = |name: &str| {
        let mut pod = pending_pod(name);
        pod.requests.cpu_milli = 10_000_000;
        pod
    };
    stage.sync(vec![], vec![huge("a"), huge("b")]);
    stage.run(20, &[]);
    let unplaced = |stage: &Stage| {
        let mut rounds = stage.reports.iter().rev();
        let last = rounds.find_map(|report| match report {
            Report::Planned { unplaced, .. } => Some(*unplaced),
            Report::AllAnswered => Some(0),
            _ => None,
        });
        last.expect("a planning round")
    };
    assert_eq!(unplaced(&stage), 2);
    for (name, left) in [("a", 1), ("b", 0)] {
        stage.event(Event::Deleted(ObjectKind::Pod, huge(name).key));
        stage.run(20, &[]);
        assert_eq!(unplaced(&stage), left, "without {name}");
    }
}

#[test]
fn disruption_of_an_empty_node_is_cancelled_when_a_pod_is_bound_to_it() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    let node = stage.node(0);
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("a").key));
    let held = stage.run(60, &["list_pods_on"]);
    let Some(IssuedCommand { id, command: Command::ListPodsOn { .. } }) = held.first() else {
        panic!("the engine lists the pods of the node before it terminates: {:?}", stage.commands);
    };
    let WatchedObject::Pod(late) = bound(pending_pod("late"), "node-0") else { unreachable!() };
    stage.apply(WatchedObject::Pod(late.clone()));
    stage.event(Event::Answered(*id, CommandResult::Pods(vec![*late])));
    stage.run(120, &[]);
    assert_eq!(stage.count("terminate"), 0);
    let node = stage.only_node();
    assert!(!node.has_disrupted_taint(), "the taint is removed again");
}

#[test]
fn disruption_of_an_empty_node_is_cancelled_by_a_do_not_disrupt_annotation() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("a").key));
    stage.run(60, &["list_pods_on"]);
    let mut node = stage.only_node().clone();
    assert!(node.has_disrupted_taint());
    let do_not_disrupt = (DO_NOT_DISRUPT.to_owned(), "true".to_owned());
    node.annotations.extend([do_not_disrupt]);
    node.version.push('!');
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(600, &[]);
    assert_eq!(stage.count("terminate"), 0, "{:?}", stage.commands);
    assert!(!stage.only_node().has_disrupted_taint());
}

#[test]
fn observe_mode_reports_each_planned_claim_once_and_changes_nothing() {
    let mut stage = Stage::new(ManagementMode::Observe);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(120, &[]);
    assert_eq!(stage.commands, Vec::<String>::new());
    let planned = |report: &&Report| matches!(report, Report::ClaimPlanned { .. });
    assert_eq!(stage.reports.iter().filter(planned).count(), 1, "each claim is reported once");
}

#[test]
fn nothing_is_launched_before_every_watch_is_synced() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.event(Event::WatchLost(ObjectKind::Node, "nobody answers".to_owned()));
    stage.run(60, &[]);
    assert_eq!(stage.count("launch"), 0);
    let missing = stage.engine.missing_information(stage.now);
    assert_eq!(missing.as_deref(), Some("nodes are not synced: nobody answers"));
    stage.event(Event::Reset(ObjectKind::Node, vec![]));
    stage.run(10, &[]);
    assert_eq!(stage.count("launch"), 1);
}

#[test]
fn launches_under_a_default_spread_wait_for_the_replica_set_watch() {
    let zones = TopologySpread {
        selector: None,
        topology_key: "topology.kubernetes.io/zone".to_owned(),
        max_skew: 1,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
        is_hard: true,
    };
    for (default_spread, launches) in [(vec![], 1), (vec![zones], 0)] {
        let mut stage = Stage::new(ManagementMode::Manage);
        let mut cluster = (*stage.engine.state().cluster).clone();
        cluster.scheduling.default_spread = default_spread;
        stage.event(Event::ConfigChanged(Arc::new(cluster)));
        stage.sync(vec![], vec![pending_pod("a")]);
        stage.event(Event::WatchLost(ObjectKind::ReplicaSet, String::new()));
        stage.run(60, &[]);
        assert_eq!(stage.count("launch"), launches);
        stage.event(Event::Reset(ObjectKind::ReplicaSet, vec![]));
        stage.run(10, &[]);
        assert_eq!(stage.count("launch"), 1);
    }
}

#[test]
fn launch_with_an_unknown_result_is_retried_under_the_same_claim() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    let held = stage.run(10, &["launch"]);
    let unknown = CommandResult::Failed { kind: FailureKind::Unknown, text: "timed out".into() };
    stage.event(Event::Answered(held[0].id, unknown));
    stage.run(10, &[]);
    let Command::Launch(first) = &held[0].command else { panic!("a launch") };
    assert_eq!(stage.launches.len(), 1);
    assert_eq!(stage.launches[0].claim.id, first.claim.id);
}

#[test]
fn refused_launch_is_planned_again_as_a_new_claim_without_the_refused_offering() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    let held = stage.run(10, &["launch"]);
    let Command::Launch(first) = &held[0].command else { panic!("a launch") };
    let offering = first.offerings[0].clone();
    let kind = RefusalKind::InsufficientCapacity;
    let refusals = vec![OfferingRefusal { offering: offering.clone(), kind }];
    stage.event(Event::Answered(held[0].id, CommandResult::LaunchRefused(refusals)));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 1);
    assert_ne!(stage.launches[0].claim.id, first.claim.id);
    assert!(!stage.launches[0].offerings.contains(&offering));
}

#[test]
fn restart_restores_claims_from_instance_tags_without_another_launch() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 1);
    stage.engine = Engine::new(8);
    stage.start(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), 1, "the claim has capacity for the pod");
    let node = stage.node(0);
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &[]);
    assert_eq!(stage.engine.state().ledger.claims.len(), 1);
}

#[test]
fn claim_whose_node_never_registers_is_terminated_and_planned_again() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    stage.run(15 * 60, &["rewatch"]);
    assert_eq!(
        stage.count("terminate"),
        0,
        "the engine lists the nodes again before it terminates"
    );
    stage.event(Event::Reset(ObjectKind::Node, vec![]));
    stage.run(30, &[]);
    assert_eq!(stage.count("terminate"), 1);
    assert_eq!(stage.launches.len(), 2);
}

#[test]
fn relist_that_lacks_many_nodes_stops_launches_until_a_complete_listing() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let nodes: Vec<Node> = (0..10)
        .map(|n| Node { name: NodeName(format!("n{n}")), ready: true, ..Node::default() })
        .collect();
    stage.sync(nodes.clone(), vec![]);
    stage.run(10, &[]);
    let few = nodes[..3].iter().cloned().map(|n| WatchedObject::Node(Box::new(n))).collect();
    stage.event(Event::Reset(ObjectKind::Node, few));
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("a"))));
    let held = stage.run(60, &["probe", "rewatch"]);
    assert_eq!(stage.count("launch"), 0, "the state is out of sync");
    stage.event(Event::Answered(held[0].id, CommandResult::Probed { alive: 1 }));
    let held = stage.run(60, &["rewatch", "probe"]);
    assert_eq!(stage.count("launch"), 0, "the state is still out of sync");
    assert!(held.iter().any(|issued| matches!(issued.command, Command::Rewatch { .. })));
    let all = nodes.iter().cloned().map(|n| WatchedObject::Node(Box::new(n))).collect();
    stage.event(Event::Reset(ObjectKind::Node, all));
    stage.run(10, &[]);
    assert_eq!(stage.count("launch"), 1, "launches continue without a restart");
}

/// The view of a fleet with a limit of 20 cores, of which `cores` are left to this cluster.
fn fleet_view(cores: i64) -> Arc<FleetView> {
    let cpu = |cores: i64| Limits { nodes: None, capacity: vec![("cpu".to_owned(), cores * 1000)] };
    Arc::new(FleetView { limits: cpu(20), share: cpu(cores), closed: None, ..FleetView::default() })
}

/// An engine in a fleet with a limit of 20 cores, after its first usage report, with a pending pod.
fn stage_in_fleet() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.event(Event::FleetChanged(Some(fleet_view(20))));
    stage.sync(vec![], vec![]);
    stage.run(7, &[]);
    assert_eq!(stage.commands, ["report_usage"], "usage is reported before the first request");
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("a"))));
    stage
}

#[test]
fn fleet_grant_is_requested_before_a_launch_and_usage_reported_after() {
    let mut stage = stage_in_fleet();
    let requests = stage.run(3, &["request_grant"]);
    assert_eq!((requests.len(), stage.launches.len()), (1, 0));
    stage.event(Event::Answered(requests[0].id, CommandResult::Granted));
    let usage = stage.run(1, &["report_usage"]);
    assert_eq!(stage.commands[1..], ["request_grant", "launch", "report_usage"]);
    // The launched type is smaller than the largest type that the grant allows.
    let Command::RequestGrant(request) = &requests[0].command else {
        panic!("{requests:?}");
    };
    let Command::ReportUsage { whole, claims } = &usage[0].command else {
        panic!("{usage:?}");
    };
    let (claim, holding) = &claims[0];
    let now = holding.as_ref().expect("the claim holds capacity").capacity.memory;
    assert!(!whole && *claim == request.claim && claims.len() == 1);
    assert!(now < request.holding.capacity.memory, "{now} of {request:?}");
}

#[test]
fn launch_denied_by_the_fleet_waits_until_its_share_grows() {
    let mut stage = stage_in_fleet();
    let requests = stage.run(3, &["request_grant"]);
    let (why, view) = ("cpu limit 20 of the fleet leaves 0".to_owned(), fleet_view(0));
    stage.event(Event::Answered(
        requests[0].id,
        CommandResult::Denied { why, used_up: false, view },
    ));
    stage.run(120, &[]);
    assert_eq!((stage.count("request_grant"), stage.launches.len()), (1, 0));
    assert!(stage.engine.state().ledger.claims.is_empty());
    let waits = |report: &&Report| match report {
        Report::Unplaced(unplaced) => unplaced.reasons[0]
            .rejection_text()
            .contains("limit 20 of the fleet: 20 in use or planned, 0 left"),
        _ => false,
    };
    assert_eq!(stage.reports.iter().filter(waits).count(), 1);
    stage.event(Event::FleetChanged(Some(fleet_view(4))));
    stage.run(3, &[]);
    assert_eq!((stage.count("request_grant"), stage.launches.len()), (2, 1));
}

#[test]
fn older_fleet_view_does_not_replace_a_newer_one() {
    let view = |number: u64, cores: i64| {
        let view = FleetView::clone(&fleet_view(cores));
        Arc::new(FleetView { number, ..view })
    };
    let mut stage = stage_in_fleet();
    let requests = stage.run(3, &["request_grant"]);
    let answer = CommandResult::Denied {
        why: "cpu limit 20 of the fleet leaves 0".to_owned(),
        used_up: false,
        view: view(5, 0),
    };
    stage.event(Event::Answered(requests[0].id, answer));
    // A view from before the denial arrives after it.
    stage.event(Event::FleetChanged(Some(view(4, 20))));
    stage.run(60, &[]);
    assert_eq!((stage.count("request_grant"), stage.launches.len()), (1, 0));
    stage.event(Event::FleetChanged(Some(view(6, 10))));
    let requests = stage.run(3, &["request_grant"]);
    stage.event(Event::FleetChanged(Some(view(8, 0))));
    // A denial with an older view still denies the claim, and the newer view is kept.
    let answer = CommandResult::Denied {
        why: "cpu limit 20 of the fleet leaves 4".to_owned(),
        used_up: false,
        view: view(7, 20),
    };
    stage.event(Event::Answered(requests[0].id, answer));
    stage.run(60, &[]);
    assert_eq!((stage.count("request_grant"), stage.launches.len()), (2, 0));
}

#[test]
fn no_grant_is_requested_while_the_fleet_is_closed() {
    let mut stage = stage_in_fleet();
    let mut view = FleetView::clone(&fleet_view(20));
    view.closed = Some("cluster two has not said what it has".to_owned());
    stage.event(Event::FleetChanged(Some(Arc::new(view))));
    stage.run(60, &[]);
    assert_eq!(stage.count("request_grant"), 0);
    stage.event(Event::FleetChanged(Some(fleet_view(20))));
    stage.run(3, &[]);
    assert_eq!((stage.count("request_grant"), stage.launches.len()), (1, 1));
}

#[test]
fn launches_wait_and_usage_is_reported_again_until_the_fleet_answers() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.event(Event::FleetChanged(Some(fleet_view(20))));
    stage.sync(vec![], vec![pending_pod("a")]);
    // The usage report is lost for 100 seconds.
    stage.run(100, &["report_usage"]);
    assert_eq!((stage.count("report_usage"), stage.count("request_grant")), (1, 0));
    stage.run(60, &[]);
    assert_eq!((stage.count("request_grant"), stage.launches.len()), (1, 1));
    assert!(stage.count("report_usage") > 1);
}

#[test]
fn refused_launch_returns_its_grant_and_marks_the_offering_unavailable() {
    let mut stage = stage_in_fleet();
    let launch = stage.run(3, &["launch"]);
    let Command::Launch(launched) = &launch[0].command else {
        panic!("{launch:?}");
    };
    let refusals: Vec<OfferingRefusal> =
        [RefusalKind::InsufficientCapacity, RefusalKind::Unsupported]
            .into_iter()
            .zip(&launched.offerings)
            .map(|(kind, offering)| OfferingRefusal { offering: offering.clone(), kind })
            .collect();
    let refused_claim = launched.claim.id.clone();
    let answer = CommandResult::LaunchRefused(refusals.clone());
    stage.event(Event::Answered(launch[0].id, answer));
    let issued_commands = stage.run(1, &["report_usage", "mark_unavailable", "request_grant"]);
    let commands: Vec<&Command> = issued_commands.iter().map(|issued| &issued.command).collect();
    let unavailable = Command::MarkUnavailable {
        what: vec![refusals[0].offering.clone().into()],
        until: stage.now + SignedDuration::from_secs(180 - 1),
    };
    assert_eq!(
        *commands[0], unavailable,
        "only the offering without capacity is marked unavailable"
    );
    let usage = Command::ReportUsage { whole: false, claims: vec![(refused_claim, None)] };
    assert!(commands.contains(&&usage), "{commands:?}");
}

#[test]
fn offerings_unavailable_to_other_clusters_are_not_requested() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![]);
    stage.run(7, &[]);
    let catalog = stage.engine.state().catalog.clone();
    let all = catalog.types().flat_map(|it| {
        let key = |offering: &Offering| UnavailableKey::from(offering.key(&it.name));
        it.offerings.iter().map(key).collect::<Vec<UnavailableKey>>()
    });
    let until = stage.now + SignedDuration::from_secs(60);
    stage.event(Event::HeldDown(all.collect(), until));
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("a"))));
    stage.run(50, &[]);
    assert_eq!(stage.launches.len(), 0);
    stage.run(30, &[]);
    assert_eq!(stage.launches.len(), 1);
}
