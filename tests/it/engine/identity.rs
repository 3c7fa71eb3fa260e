//! A kubeconfig of a different cluster, a different region, or Nodes deleted by a user: the engine
//! terminates and launches nothing, and reports the reason.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use outrigger::coordination::lease_annotations::ACCEPTED;
use outrigger::engine::Engine;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::claim::{TAG_CLUSTER_UID, TAG_LEASE};
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::{CapacityType, InstanceState};
use outrigger::model::node::{ConditionStatus, Node};
use outrigger::model::pod::Pod;
use outrigger::model::pool::BudgetNodes;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::Interruption;

use super::{Stage, bound, kube_system, owned_pod, pending_pod};

/// Nodes of a settled cluster.
const COUNT: usize = 10;

/// A settled cluster with this many nodes.
fn settled() -> Stage {
    Stage::settled(COUNT)
}

impl Stage {
    /// Restarts the daemon, which finds these objects at an API server with this UID.
    pub(super) fn start_at(&mut self, uid: &str, nodes: Vec<Node>, pods: Vec<Pod>) {
        let cluster = self.engine.state().cluster.clone();
        self.engine = Engine::new(8);
        self.start(ManagementMode::Manage);
        self.event(Event::ConfigChanged(cluster));
        self.list_at(uid, nodes, pods);
        self.event(Event::BuffersChanged(Vec::new()));
        self.commands.clear();
    }

    /// Restarts the daemon after `span`. It finds the same Nodes, pods and instances.
    pub(super) fn restart_after(&mut self, span: SignedDuration) {
        let (nodes, pods) = (self.nodes(), self.pods());
        self.now += span;
        self.start_at("here", nodes, pods);
    }

    pub(super) fn nodes(&self) -> Vec<Node> {
        let nodes = self.engine.state().objects.nodes.values();
        nodes.cloned().collect()
    }

    pub(super) fn pods(&self) -> Vec<Pod> {
        let pods = self.engine.state().objects.pods.values();
        pods.cloned().collect()
    }

    /// Advances the clock; this API server lists these Nodes every ten seconds.
    fn run_at(&mut self, uid: &str, nodes: &[Node], seconds: i64) {
        for tens in 0..seconds / 10 {
            self.run(10, &["rewatch"]);
            if tens >= 4 {
                self.collect_pods(nodes);
            }
            let nodes = nodes.iter().cloned().map(|node| WatchedObject::Node(Box::new(node)));
            self.event(Event::Reset(ObjectKind::Node, nodes.collect()));
            let namespaces = vec![kube_system(uid)];
            self.event(Event::Reset(ObjectKind::Namespace, namespaces));
        }
    }

    /// The API server deletes pods of Nodes that are gone. Source: kube-controller-manager,
    /// podgc (after 40 seconds).
    fn collect_pods(&mut self, nodes: &[Node]) {
        let is_gone = |pod: &&Pod| {
            let mut nodes = nodes.iter();
            let node = pod.node.as_ref();
            node.is_some_and(|node| !nodes.any(|other| other.name == *node))
        };
        let pods = self.pods();
        for pod in pods.iter().filter(is_gone) {
            self.event(Event::Deleted(ObjectKind::Pod, pod.key.clone()));
        }
    }

    /// The number of issued commands by name, except the read-only ones and usage reports.
    pub(super) fn changes(&self) -> BTreeMap<&str, usize> {
        let ignored = [
            "rewatch",
            "probe",
            "report_usage",
            "report_disruptions",
            "list_pods_on",
            "save_discovered_memory",
        ];
        let mut all = BTreeMap::new();
        let commands = self.commands.iter().map(String::as_str);
        let commands = commands.filter(|name| !ignored.contains(name));
        commands.for_each(|name| *all.entry(name).or_insert(0) += 1);
        all
    }

    /// The last reported code of a mismatch, unless the mismatch has ended.
    fn code(&self) -> Option<&'static str> {
        let mut codes = self.reports.iter().filter_map(|report| match report {
            Report::Mismatch(mismatch) => Some(Some(mismatch.code())),
            Report::Matches => Some(None),
            _ => None,
        });
        codes.next_back().flatten()
    }

    /// The id that a user has to accept, as the status shows it.
    fn id(&self) -> String {
        let status = self.engine.status(self.now);
        let text = status.held_by.unwrap_or_default();
        let id = text.split("--accept ").nth(1).unwrap_or_default();
        let id = id.split('`').next().unwrap_or_default();
        let held = status.held_ends.map(|terminations| terminations.id);
        held.unwrap_or(id.to_owned())
    }
}

/// The daemon is stopped, gets a kubeconfig of another cluster, and starts again.
#[test]
fn nothing_is_changed_if_the_kubeconfig_is_for_another_cluster() {
    let mut stage = settled();
    let (nodes, pods) = (stage.nodes(), stage.pods());
    stage.start_at("elsewhere", vec![], vec![pending_pod("of-the-other")]);
    stage.run_at("elsewhere", &[], 30);
    assert_eq!(stage.code(), Some("other_cluster"), "reported within half a minute");
    stage.run_at("elsewhere", &[], 7_200);
    assert_eq!(stage.changes(), BTreeMap::new());
    let status = stage.engine.status(stage.now);
    assert_eq!(status.mismatch.as_deref(), Some("other_cluster"));
    assert!(stage.id().starts_with("one/identity/"), "{status:?}");
    // With the right kubeconfig the engine continues as before.
    stage.start_at("here", nodes, pods);
    stage.run(600, &[]);
    assert_eq!((stage.count("launch"), stage.count("terminate")), (0, 0));
    assert!(stage.engine.is_ready());
    stage.change(|cluster| cluster.pools[0].replicas = u32::try_from(COUNT + 1).ok());
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), COUNT + 1, "decisions continue");
}

/// The API server starts to serve an empty etcd while the daemon runs.
#[test]
fn api_server_of_another_cluster_is_detected_while_the_daemon_runs() {
    let mut stage = settled();
    let (nodes, pods) = (stage.nodes(), stage.pods());
    for answers_for_another in [false, true] {
        stage.change(|cluster| cluster.pools[0].replicas = u32::try_from(COUNT + 1).ok());
        // A launch is decided, and the command is still queued.
        for _ in 0..3 {
            stage.wake(stage.now + SignedDuration::from_secs(1));
        }
        if answers_for_another {
            for kind in ObjectKind::ALL {
                let objects = match kind {
                    ObjectKind::Namespace => vec![kube_system("elsewhere")],
                    _ => Vec::new(),
                };
                stage.event(Event::Reset(kind, objects));
            }
        }
        let mut next = std::iter::from_fn(|| stage.engine.next_command());
        let launches = next.any(|issued| issued.command.name() == "launch");
        assert_eq!(launches, !answers_for_another);
        if !answers_for_another {
            stage = settled();
        }
    }
    stage.run_at("elsewhere", &[], 3_600);
    assert_eq!(stage.changes(), BTreeMap::new());
    assert_eq!(stage.code(), Some("other_cluster"));
    stage.list_at("here", nodes, pods);
    stage.run(60, &[]);
    assert_eq!((stage.code(), stage.engine.is_ready()), (None, true));
    assert_eq!((stage.count("launch"), stage.count("terminate")), (1, 0));
}

/// The API server was away for longer than a Lease lasts, so a mismatch began in one leadership
/// term and ends in the next.
#[test]
fn end_of_a_mismatch_is_reported_by_the_engine_of_the_next_leadership_term() {
    for was_mismatched in [true, false] {
        let mut stage = settled();
        let (nodes, pods) = (stage.nodes(), stage.pods());
        let cluster = stage.engine.state().cluster.clone();
        stage.engine = Engine::new(8);
        if was_mismatched {
            stage.engine.report_first_match();
        }
        stage.start(ManagementMode::Manage);
        stage.event(Event::ConfigChanged(cluster));
        stage.reports.clear();
        stage.list_at("here", nodes, pods);
        stage.event(Event::BuffersChanged(Vec::new()));
        stage.run(60, &[]);
        let matches = |report: &&Report| matches!(report, Report::Matches);
        let reported = stage.reports.iter().filter(matches).count();
        assert_eq!(reported, usize::from(was_mismatched));
        assert!(stage.engine.is_ready());
    }
}

#[test]
fn rebuilt_cluster_is_managed_once_a_user_accepts_it() {
    for hours in [0, 2] {
        let mut stage = settled();
        stage.now += SignedDuration::from_hours(hours);
        stage.start_at("anew", vec![], vec![pending_pod("a")]);
        stage.run_at("anew", &[], 60);
        let id = stage.id();
        assert!(id.starts_with("one/identity/"), "{id}");
        stage.annotate(ACCEPTED, Some(&id));
        stage.run_at("anew", &[], 60);
        assert_eq!((stage.code(), stage.count("terminate")), (None, 0), "{hours}");
        stage.run_at("anew", &[], 1_200);
        assert_eq!(stage.count("terminate"), COUNT, "their Nodes never register");
    }
}

/// A rebuilt cluster is accepted for the instances of the previous cluster only.
#[test]
fn accepted_cluster_is_not_accepted_for_instances_of_a_third_cluster() {
    let mut stage = settled();
    stage.start_at("anew", vec![], vec![]);
    stage.run_at("anew", &[], 60);
    let id = stage.id();
    stage.annotate(ACCEPTED, Some(&id));
    for instance in stage.instances.values_mut() {
        let tags = std::sync::Arc::make_mut(&mut instance.tags);
        tags.insert(TAG_CLUSTER_UID.to_owned(), "ns:third".to_owned());
    }
    stage.start_at("anew", vec![], vec![]);
    stage.run_at("anew", &[], 3_600);
    assert_eq!(stage.code(), Some("other_cluster"));
    assert_eq!(stage.changes(), BTreeMap::new());
}

#[test]
fn instances_of_another_lease_stop_all_changes_until_accepted() {
    let mut stage = settled();
    stage.change(|cluster| cluster.lease.name = "another".to_owned());
    stage.restart_after(SignedDuration::ZERO);
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("new"))));
    stage.run(600, &[]);
    assert_eq!(stage.changes(), BTreeMap::new());
    assert_eq!(stage.code(), Some("other_lease"));
    let id = stage.id();
    stage.annotate(ACCEPTED, Some(&id));
    stage.run(60, &[]);
    assert!(stage.engine.is_ready());
}

/// Under another region, account or role the listing contains no running instance.
#[test]
fn nothing_is_launched_while_ready_nodes_have_no_listed_instance() {
    let mut stage = settled();
    let instances = std::mem::take(&mut stage.instances);
    stage.restart_after(SignedDuration::ZERO);
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("new"))));
    stage.run(30, &[]);
    assert_eq!(stage.code(), Some("other_instances"));
    stage.run(3_600, &[]);
    assert_eq!(stage.changes(), BTreeMap::new());
    stage.instances = instances;
    stage.run(60, &[]);
    assert_eq!((stage.code(), stage.engine.is_ready()), (None, true));
}

/// The cause may be a user, a cloud controller with wrong credentials, or an older etcd snapshot.
#[test]
fn no_instance_is_terminated_after_many_nodes_are_deleted() {
    for restarts in [false, true] {
        for count in [COUNT, COUNT / 2] {
            let mut stage = settled();
            let nodes = stage.nodes();
            stage.delete_nodes(count);
            let rest = stage.nodes();
            if restarts {
                let later = SignedDuration::from_hours(2);
                stage.now += later;
                stage.start_at("here", rest.clone(), vec![]);
            }
            stage.run_at("here", &rest, 30);
            let case = format!("{count} nodes, restart {restarts}");
            assert_eq!(stage.code(), Some("no_nodes"), "{case}");
            stage.apply(WatchedObject::Pod(Box::new(pending_pod("new"))));
            stage.run_at("here", &rest, 3_600);
            assert_eq!(stage.changes(), BTreeMap::new(), "{case}");
            // The kubelets register again.
            stage.run_at("here", &nodes, 60);
            assert_eq!((stage.code(), stage.engine.is_ready()), (None, true), "{case}");
            assert_eq!(stage.count("terminate"), 0, "{case}");
        }
    }
}

#[test]
fn only_accepted_instances_without_nodes_are_terminated() {
    let mut stage = settled();
    stage.delete_nodes(COUNT / 2);
    let rest = stage.nodes();
    stage.run_at("here", &rest, 60);
    let id = stage.id();
    assert!(id.starts_with("one/ends/"), "{id}");
    stage.annotate(ACCEPTED, Some(&id));
    stage.run_at("here", &rest, 300);
    assert_eq!((stage.code(), stage.count("terminate")), (None, COUNT / 2));
    stage.delete_nodes(COUNT);
    stage.run_at("here", &[], 600);
    let ended = stage.count("terminate");
    assert_eq!(ended, COUNT / 2, "only the accepted terminations");
}

/// An acceptance covers the set that its id names: neither Nodes lost before the acceptance is
/// read, nor the same instances at a later time.
#[test]
fn acceptance_covers_only_the_named_instances_and_only_once() {
    let mut stage = settled();
    let nodes = stage.nodes();
    stage.delete_nodes(COUNT / 2);
    let rest = stage.nodes();
    stage.run_at("here", &rest, 60);
    let id = stage.id();
    // The kubelets register again at the same time as the user accepts.
    stage.annotate(ACCEPTED, Some(&id));
    stage.run_at("here", &nodes, 60);
    assert_eq!((stage.code(), stage.count("terminate")), (None, 0));
    stage.delete_nodes(COUNT / 2);
    stage.run_at("here", &rest, 600);
    let held = (stage.code(), stage.count("terminate"));
    assert_eq!(held, (Some("no_nodes"), 0));
    assert_ne!(stage.id(), id);
    // The other Nodes are deleted before the acceptance is read.
    let id = stage.id();
    stage.annotate(ACCEPTED, Some(&id));
    stage.delete_nodes(COUNT);
    stage.run_at("here", &[], 600);
    let held = (stage.code(), stage.count("terminate"));
    assert_eq!(held, (Some("no_nodes"), 0), "no user has seen all of them");
    assert_ne!(stage.id(), id);
}

/// The limit for ten minutes also applies to terminations that are due at the same moment.
#[test]
fn two_of_ten_instances_without_nodes_are_terminated_at_once() {
    let mut stage = settled();
    stage.delete_nodes(2);
    let rest = stage.nodes();
    stage.run_at("here", &rest, 140);
    assert_eq!((stage.count("terminate"), stage.code()), (2, None));
    assert_eq!(stage.engine.status(stage.now).held_ends, None);
}

/// The engine holds two terminations, which is at most a fifth. It does not stop when the cluster
/// shrinks afterwards; it stops when a user deletes one more Node.
#[test]
fn shrinking_cluster_is_not_stopped_by_held_terminations() {
    let mut stage = Stage::settled(15);
    let delete = |stage: &mut Stage, numbers: std::ops::Range<usize>, spot: bool| {
        for number in numbers {
            if spot {
                let instance = stage.instances.get_mut(&format!("i-{number}"));
                instance.expect("known").state = InstanceState::Terminated;
            }
            stage.delete_node(number);
        }
        let rest = stage.nodes();
        for _ in 0..30 {
            stage.run(10, &["launch", "rewatch"]);
            stage.collect_pods(&rest);
            stage.list_nodes_again();
        }
    };
    delete(&mut stage, 0..3, false);
    delete(&mut stage, 3..5, false);
    let held = |stage: &Stage| {
        let held = stage.engine.status(stage.now).held_ends;
        held.map(|terminations| terminations.nodes)
    };
    assert_eq!((stage.count("terminate"), held(&stage)), (3, Some(2)));
    delete(&mut stage, 5..8, true);
    assert_eq!((stage.code(), held(&stage)), (None, Some(2)));
    assert!(stage.engine.is_ready());
    delete(&mut stage, 8..9, false);
    assert_eq!(stage.code(), Some("no_nodes"));
    assert_eq!(stage.count("terminate"), 3);
}

/// Of five nodes one may be terminated without a drain within ten minutes. The safeguard counts
/// neither a node that never was ready nor one that EC2 interrupts.
#[test]
fn safeguard_does_not_count_never_ready_or_interrupted_nodes() {
    for interrupted in [false, true] {
        let mut stage = Stage::settled(5);
        stage.change(|cluster| cluster.pools[0].replicas = Some(6));
        stage.run(10, &[]);
        assert_eq!(stage.launches.len(), 6);
        if interrupted {
            // The restarted daemon does not know that no Node ever registered.
            stage.restart_after(SignedDuration::ZERO);
            stage.run(60, &[]);
            let at = stage.now + SignedDuration::from_mins(2);
            let taken = Event::interrupted("i-5".into(), Interruption::Spot, at);
            stage.event(taken);
            stage.run(20, &["launch"]);
        } else {
            let mut node = stage.node(5);
            node.ready = false;
            stage.apply(WatchedObject::Node(Box::new(node)));
            stage.run(60, &[]);
            let mut daemon = owned_pod("daemon");
            daemon.owner.as_mut().expect("owned").kind = "DaemonSet".into();
            stage.apply(bound(daemon, "node-5"));
            stage.run(14 * 60, &["launch"]);
            assert_eq!(stage.count("terminate"), 0);
        }
        stage.delete_nodes(1);
        stage.delete_pod(0);
        for _ in 0..24 {
            stage.run(10, &["launch"]);
            stage.list_nodes_again();
        }
        let held = stage.engine.status(stage.now).held_ends;
        let found = (stage.count("terminate"), held);
        assert_eq!(found, (2, None), "interrupted: {interrupted}");
    }
}

/// Pods of users tolerate the taints of nodes that never were ready: the safeguard counts each of
/// these nodes.
#[test]
fn safeguard_counts_uninitialized_nodes_with_pods() {
    let mut stage = settled();
    stage.change(|cluster| cluster.pools[0].replicas = Some(15));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 15);
    for number in COUNT..15 {
        let mut node = stage.node(number);
        node.ready = false;
        stage.apply(WatchedObject::Node(Box::new(node)));
        let pod = owned_pod(&format!("tolerant{number}"));
        stage.apply(bound(pod, &format!("node-{number}")));
    }
    stage.run(3_600, &["launch"]);
    assert_eq!(stage.count("terminate"), 3);
    let held = stage.engine.status(stage.now).held_ends;
    assert_eq!(held.map(|terminations| terminations.nodes), Some(2));
}

/// Kubelets of nodes that were ready before register again, without pods and not ready: the
/// safeguard counts each termination.
#[test]
fn safeguard_counts_previously_ready_instances_that_register_again() {
    let mut stage = settled();
    for number in 0..4 {
        stage.delete_node(number);
        stage.delete_pod(number);
        let mut node = stage.node(number);
        (node.ready, node.uid) = (false, format!("again-{number}"));
        node.version = format!("again-{number}");
        stage.apply(WatchedObject::Node(Box::new(node)));
    }
    stage.run(3_600, &["launch"]);
    assert_eq!(stage.count("terminate"), 2, "{:?}", stage.changes());
}

/// The safeguard counts terminations despite a spot notice about an on-demand instance or a notice
/// whose time has passed.
#[test]
fn safeguard_counts_terminations_despite_an_invalid_spot_notice() {
    for (capacity_type, late) in [(CapacityType::OnDemand, 0), (CapacityType::Spot, 20)] {
        let mut stage = settled();
        for number in 0..3 {
            let id = format!("i-{number}");
            let instance = stage.instances.get_mut(&id).expect("known");
            instance.offering.capacity_type = capacity_type;
        }
        stage.run(120, &[]);
        for number in 0..3 {
            let at = stage.now - SignedDuration::from_mins(late);
            let id = format!("i-{number}").as_str().into();
            stage.event(Event::interrupted(id, Interruption::Spot, at));
        }
        stage.delete_nodes(3);
        (0..3).for_each(|number| stage.delete_pod(number));
        stage.run(120, &["launch"]);
        assert!(stage.count("terminate") <= 2, "{capacity_type:?}");
    }
}

/// An unreachable node whose termination the safeguard holds is not tainted: it may recover before
/// a user decides.
#[test]
fn unhealthy_node_beyond_the_safeguard_limit_is_not_tainted() {
    let mut stage = settled();
    stage.change(|cluster| cluster.safeguards.undrained_max = BudgetNodes::Nodes(1));
    for number in 0..2 {
        let name = format!("node-{number}");
        let mut broken = stage.engine.state().objects.nodes[&*name].clone();
        broken.ready = false;
        broken.set_condition("Ready", ConditionStatus::Unknown, stage.now);
        stage.apply(WatchedObject::Node(Box::new(broken)));
    }
    stage.run(3_600, &[]);
    assert_eq!(stage.count("terminate"), 1, "{:?}", stage.changes());
    let tainted = stage.nodes();
    let tainted = tainted.iter().filter(|node| node.has_disrupted_taint());
    assert_eq!(tainted.count(), 0);
    assert!(stage.engine.status(stage.now).held_ends.is_some());
    // The node recovers.
    for mut node in stage.nodes() {
        if !node.ready {
            node.ready = true;
            node.set_condition("Ready", ConditionStatus::True, stage.now);
            stage.apply(WatchedObject::Node(Box::new(node)));
        }
    }
    stage.run(1_200, &[]);
    assert_eq!(stage.count("terminate"), 1);
    assert_eq!(stage.engine.status(stage.now).held_ends, None);
}

/// All kubelets are silent, and no listing contains an instance: that does not prove a termination.
#[test]
fn silent_nodes_without_listed_instances_are_kept_until_accepted() {
    let mut stage = settled();
    let (mut nodes, pods) = (stage.nodes(), stage.pods());
    nodes.iter_mut().for_each(|node| node.ready = false);
    stage.instances.clear();
    stage.start_at("here", nodes, pods);
    stage.run(3_600, &[]);
    let held = (stage.changes(), stage.code());
    assert_eq!(held, (BTreeMap::new(), Some("other_instances")));
    let id = stage.id();
    stage.annotate(ACCEPTED, Some(&id));
    stage.run(300, &[]);
    assert_eq!(stage.count("delete_node"), COUNT);
    assert_eq!(stage.code(), None);
}

/// Two of ten instances may be terminated within ten minutes; the instance of a third Node waits.
#[test]
fn deleting_nodes_one_by_one_terminates_two_of_ten_instances_until_accepted() {
    let mut stage = settled();
    let mut terminated = Vec::new();
    for number in 0..4 {
        let key = ObjectKey::new("", format!("node-{number}"));
        stage.event(Event::Deleted(ObjectKind::Node, key));
        let rest = stage.nodes();
        stage.run_at("here", &rest, 140);
        terminated.push(stage.count("terminate"));
    }
    assert_eq!(terminated, [1, 2, 2, 2], "{:?}", stage.commands);
    let status = stage.engine.status(stage.now);
    let held = status.held_ends.expect("the status shows it");
    assert!(held.id.starts_with("one/ends/"));
    let rest = stage.nodes();
    stage.run_at("here", &rest, 200);
    assert_eq!(stage.count("terminate"), 2, "a user has to accept it");
    stage.annotate(ACCEPTED, Some(&held.id));
    stage.run_at("here", &rest, 120);
    assert_eq!(stage.count("terminate"), 4);
    assert_eq!(stage.engine.status(stage.now).held_ends, None);
}

/// The provider terminates many instances; their Nodes are deleted before or after a listing that
/// shows it.
#[test]
fn launches_continue_after_the_provider_terminated_many_instances() {
    for nodes_first in [false, true] {
        let mut stage = settled();
        let lost = COUNT * 2 / 5;
        let end = |stage: &mut Stage| {
            for number in 0..lost {
                let instance = stage.instances.get_mut(&format!("i-{number}"));
                instance.expect("known").state = InstanceState::Terminated;
            }
        };
        if nodes_first {
            stage.delete_nodes(lost);
            stage.run(2, &["rewatch"]);
            end(&mut stage);
        } else {
            end(&mut stage);
            stage.run(61, &["rewatch"]);
            stage.delete_nodes(lost);
        }
        stage.run(120, &[]);
        let is_mismatch = |report: &Report| matches!(report, Report::Mismatch(_));
        assert!(!stage.reports.iter().any(is_mismatch), "nodes first: {nodes_first}");
        assert_eq!(stage.launches.len(), COUNT + lost, "nodes first: {nodes_first}");
    }
}

/// An instance registers under a second name, or a user creates a Node with the providerID of
/// another: its pods are not those of the Node that the claim knows.
#[test]
fn instance_with_two_nodes_is_not_disrupted_voluntarily() {
    for (restarts, name) in
        [false, true].into_iter().flat_map(|restarts| [(restarts, "a"), (restarts, "z")])
    {
        let mut stage = settled();
        stage.change(|cluster| cluster.pools[0].replicas = None);
        let again = Node {
            name: name.into(),
            uid: name.to_owned(),
            ..stage.engine.state().objects.nodes["node-0"].clone()
        };
        stage.apply(WatchedObject::Node(Box::new(again)));
        // The kubelet of the first Node is silent, and no pod is bound to that Node any more.
        let pod = owned_pod("p0");
        stage.event(Event::Deleted(ObjectKind::Pod, pod.key.clone()));
        let silent = Node { ready: false, ..stage.engine.state().objects.nodes["node-0"].clone() };
        stage.apply(WatchedObject::Node(Box::new(silent)));
        stage.apply(bound(pod, name));
        if restarts {
            stage.restart_after(SignedDuration::ZERO);
        }
        stage.run(3_600, &[]);
        let case = format!("{name}, restart {restarts}");
        assert_eq!((stage.count("terminate"), stage.count("evict")), (0, 0), "{case}");
        let same_instance = |report: &&Report| matches!(report, Report::SameInstance { .. });
        assert_eq!(stage.reports.iter().filter(same_instance).count(), 1, "{case}");
        // The silent Node is deleted: the claim gets the other, which is disrupted once empty.
        stage.event(Event::Deleted(ObjectKind::Node, ObjectKey::new("", "node-0")));
        stage.event(Event::Deleted(ObjectKind::Pod, owned_pod("p0").key));
        stage.run(300, &[]);
        assert_eq!(stage.count("terminate"), 1, "{case}");
    }
}

/// A kubelet registers under two names and never gets ready: pods may be bound to either Node.
#[test]
fn instance_with_two_nodes_is_not_terminated_by_the_registration_timeout() {
    for names in [vec!["a"], vec!["a", "z"]] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.sync(vec![], vec![pending_pod("p")]);
        stage.run(10, &[]);
        for name in &names {
            let silent = Node {
                name: (*name).into(),
                uid: (*name).to_owned(),
                ready: false,
                ..stage.node(0)
            };
            stage.apply(WatchedObject::Node(Box::new(silent)));
        }
        stage.run(3_600, &["patch_node"]);
        let ended = stage.instances["i-0"].state == InstanceState::Terminated;
        assert_eq!(ended, names.len() == 1, "{names:?}");
    }
}

/// A claim of version 0.1 has no cluster UID. It belongs to this cluster while one of these claims
/// has a ready Node.
#[test]
fn claims_without_a_cluster_uid_end_only_if_one_of_them_has_a_ready_node() {
    for ready in [true, false] {
        let mut stage = settled();
        for instance in stage.instances.values_mut() {
            let tags = std::sync::Arc::make_mut(&mut instance.tags);
            tags.remove(TAG_CLUSTER_UID);
            tags.remove(TAG_LEASE);
        }
        let mut nodes = stage.nodes();
        nodes.remove(0);
        nodes.iter_mut().for_each(|node| node.ready &= ready);
        stage.start_at("here", nodes.clone(), vec![pending_pod("new")]);
        stage.change(|cluster| cluster.pools[0].replicas = u32::try_from(COUNT + 1).ok());
        stage.run_at("here", &nodes, 1_200);
        let ended = stage.instances["i-0"].state == InstanceState::Terminated;
        assert_eq!(ended, ready, "the instance without a Node");
        assert_eq!(stage.code(), None);
        assert!(stage.count("launch") > 0, "launches continue");
    }
}
