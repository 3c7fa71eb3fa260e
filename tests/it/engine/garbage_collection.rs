//! Orphaned instances are terminated, and instances of other owners are not.

use outrigger::engine::command::Command;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::claim::{ClaimOrigin, ClaimRecord};
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use outrigger::model::labels::{CLAIM, FINALIZER, MANAGED_BY, POOL};
use outrigger::model::node::Node;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::CommandResult;

use super::{Stage, bound, pending_pod};

/// Adds an instance that this engine has not launched, with the tags of this owner.
fn add_instance(stage: &mut Stage, id: &str, (installation, cluster): (&str, &str)) {
    let record = ClaimRecord {
        id: format!("claim-of-{id}").as_str().into(),
        installation: installation.into(),
        cluster: cluster.into(),
        origin: ClaimOrigin { cluster_uid: Some("ns:here".into()), lease: None },
        pool: "general".into(),
        node_class: None,
        created: stage.now,
        expire_after: None,
        expire_hard_after: None,
        termination_grace_period: None,
        pool_hash: String::new(),
        node_class_hash: String::new(),
        startup_taints: Vec::new(),
        reason: String::new(),
        command_id: String::new(),
    };
    let mut tags = record.to_tags();
    if installation.is_empty() {
        tags.clear();
    }
    let instance = Instance {
        id: id.into(),
        offering: OfferingKey {
            instance_type: "m6i.large".into(),
            zone: "us-east-1a".into(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
        },
        state: InstanceState::Running,
        launched: stage.now,
        tags: tags.into(),
        facts: None,
        node: None,
    };
    stage.instances.insert(id.to_owned(), instance);
}

/// The Nodes are listed once more before an instance without a Node is terminated.
fn list_nodes_and_wait(stage: &mut Stage) {
    stage.run(90, &["rewatch"]);
    stage.event(Event::Reset(ObjectKind::Node, vec![]));
    stage.run(60, &[]);
}

#[test]
fn orphaned_instances_are_terminated_and_those_of_other_owners_are_not() {
    // Of twenty instances without Nodes a fifth is terminated: a mistake elsewhere is more likely.
    for (count, ends) in [(1, 1), (20, 4)] {
        let mut stage = Stage::new(ManagementMode::Manage);
        for number in 0..count {
            add_instance(&mut stage, &format!("i-{number}"), ("tests", "one"));
        }
        let others = [("others", "one"), ("tests", "two"), ("", "")];
        let ids = others.map(|(installation, cluster)| format!("i-{installation}-{cluster}"));
        for (id, owner) in ids.iter().zip(others) {
            add_instance(&mut stage, id, owner);
        }
        stage.sync(vec![], vec![]);
        stage.run(14 * 60, &[]);
        assert_eq!(stage.count("terminate"), 0, "their kubelets may still register");
        list_nodes_and_wait(&mut stage);
        assert_eq!(stage.count("terminate"), ends);
        let lives = |id: &String| stage.instances[id].state == InstanceState::Running;
        assert!(ids.iter().all(lives), "instances of other owners keep running");
        assert_eq!(stage.instances.keys().filter(|id| lives(id)).count(), 3 + count - ends);
        stage.run(600, &[]);
        assert_eq!(stage.count("terminate"), ends, "each instance once");
    }
}

#[test]
fn instance_is_terminated_after_a_user_deletes_its_node() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    let node = stage.node(0);
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &[]);
    stage.apply(bound(pending_pod("a"), "node-0"));
    stage.run(60, &[]);
    assert_eq!(stage.count("terminate"), 0, "the instance has a node");
    stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("a").key));
    stage.event(Event::Deleted(ObjectKind::Node, ObjectKey::new("", "node-0")));
    stage.run(50, &[]);
    assert_eq!(stage.count("terminate"), 0, "the node may return");
    list_nodes_and_wait(&mut stage);
    assert_eq!(stage.count("terminate"), 1);
}

/// A settled cluster of `count` Nodes, the first `deleted` of which a user has just deleted.
fn deleted(count: usize, deleted: usize) -> Stage {
    let mut stage = Stage::settled(count);
    stage.delete_nodes(deleted);
    stage
}

/// Advances the clock; the Nodes are listed every five seconds as the engine knows them.
fn run_and_list(stage: &mut Stage, seconds: i64) {
    for _ in 0..seconds / 5 {
        stage.run(5, &[]);
        stage.list_nodes_again();
    }
}

#[test]
fn pods_of_a_deleted_node_are_evicted_before_its_instance_is_terminated() {
    let mut stage = deleted(10, 1);
    stage.run(8, &[]);
    assert_eq!(stage.count("evict"), 0, "the Node may return");
    run_and_list(&mut stage, 180);
    // The pod stays, as if a PodDisruptionBudget blocked the eviction.
    assert!(stage.count("evict") > 1);
    assert_eq!(stage.count("terminate"), 0);
    assert_eq!(stage.count("delete_pod"), 0);
    stage.delete_pod(0);
    run_and_list(&mut stage, 30);
    assert_eq!(stage.count("terminate"), 1);
}

#[test]
fn instance_of_a_deleted_node_waits_at_most_ten_minutes_for_its_pods() {
    let mut stage = deleted(10, 1);
    run_and_list(&mut stage, 9 * 60);
    assert_eq!(stage.count("terminate"), 0);
    run_and_list(&mut stage, 3 * 60);
    assert_eq!(stage.count("terminate"), 1);
}

#[test]
fn no_pod_is_evicted_if_the_node_returns_or_many_nodes_are_deleted_at_once() {
    let mut stage = deleted(10, 1);
    stage.run(8, &[]);
    let node = stage.node(0);
    stage.apply(WatchedObject::Node(Box::new(node)));
    run_and_list(&mut stage, 120);
    assert_eq!((stage.count("evict"), stage.count("terminate")), (0, 0));
    let mut stage = deleted(10, 5);
    run_and_list(&mut stage, 15 * 60);
    assert_eq!((stage.count("evict"), stage.count("terminate")), (0, 0));
}

/// Listings of Nodes lack an existing one. The engine evicts none of its pods, whether another such
/// listing arrives first or the result of the probe for this Node.
#[test]
fn no_pod_is_evicted_from_a_node_that_only_listings_lack() {
    for probed_after in [1, 4, 10] {
        let mut stage = Stage::settled(10);
        let mut probes = Vec::new();
        for step in 0..60 {
            stage.list_nodes_without(&["node-0"]);
            probes.extend(stage.run(5, &["probe"]));
            if step % probed_after == 0 {
                for probe in probes.drain(..) {
                    let answer = CommandResult::Probed { alive: 1 };
                    stage.event(Event::Answered(probe.id, answer));
                }
            }
        }
        let did = (stage.count("evict"), stage.count("terminate"));
        assert_eq!(did, (0, 0), "the result arrives after {probed_after} listings");
    }
}

/// The API server answers that one Node does not exist. A listing before that answer lacks another
/// Node, too, which the engine had not probed.
#[test]
fn probe_result_of_one_node_does_not_apply_to_another() {
    let mut stage = Stage::settled(10);
    stage.list_nodes_without(&["node-0"]);
    let probes = stage.run(10, &["probe"]);
    assert_eq!(probes.len(), 1);
    stage.list_nodes_without(&["node-0", "node-1"]);
    let answer = CommandResult::Probed { alive: 0 };
    stage.event(Event::Answered(probes[0].id, answer));
    let mut probed = Vec::new();
    for _ in 0..12 {
        for probe in stage.run(5, &["probe"]) {
            // Only `node-0` was deleted.
            let Command::Probe { objects, .. } = &probe.command else {
                continue;
            };
            let alive = objects.iter().filter(|object| object.0.name == "node-1").count();
            probed.push(alive);
            let answer = CommandResult::Probed { alive };
            stage.event(Event::Answered(probe.id, answer));
        }
        stage.list_nodes_without(&["node-0", "node-1"]);
    }
    assert!(probed.contains(&1), "the engine has to probe the other Node");
    assert_eq!(stage.count("terminate"), 0);
    let evicted = stage.count("evict");
    assert_eq!(evicted, 0, "the engine evicts pods of an existing Node");
}

/// A managed Node that is not ready, and whose instance no listing contains.
pub(super) fn lost_node(stage: &Stage) -> Node {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    Node {
        name: "lost".into(),
        uid: "lost".to_owned(),
        version: "1".to_owned(),
        provider_id: "aws:///us-east-1a/i-lost".to_owned(),
        labels: [pair(MANAGED_BY, "tests"), pair(POOL, "general")].into(),
        annotations: [pair(CLAIM, "gone")].into(),
        finalizers: vec![FINALIZER.to_owned(), "somebody/else".to_owned()],
        created: Some(stage.now),
        ..Node::default()
    }
}

/// This also happens under a wrong region or role, while the instances keep running.
#[test]
fn silent_node_is_kept_while_a_ready_node_has_no_listed_instance() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let silent = lost_node(&stage);
    let runs = Node {
        name: "runs".into(),
        uid: "runs".to_owned(),
        provider_id: "aws:///us-east-1a/i-runs".to_owned(),
        ready: true,
        ..lost_node(&stage)
    };
    stage.sync(vec![silent, runs], vec![]);
    stage.run(600, &[]);
    assert_eq!(stage.count("delete_node"), 0, "{:?}", stage.commands);
    assert_eq!(stage.count("patch_node"), 0, "{:?}", stage.commands);
    stage.event(Event::Deleted(ObjectKind::Node, ObjectKey::new("", "runs")));
    stage.run(120, &["delete_node"]);
    assert_eq!(stage.count("delete_node"), 1, "{:?}", stage.commands);
}

#[test]
fn node_without_an_instance_loses_our_finalizer_and_is_deleted() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let node = lost_node(&stage);
    stage.sync(vec![node], vec![]);
    stage.run(50, &[]);
    assert_eq!((stage.count("patch_node"), stage.count("delete_node")), (0, 0));
    stage.run(60, &["delete_node"]);
    assert_eq!(stage.only_node().finalizers, ["somebody/else"]);
    assert_eq!(stage.count("delete_node"), 1, "{:?}", stage.commands);
    let orphans =
        |report: &&Report| matches!(report, Report::Orphan { node } if node.as_str() == "lost");
    assert_eq!(stage.reports.iter().filter(orphans).count(), 1, "reported once");
}

/// An instance that registers under two names has two Nodes.
#[test]
fn all_nodes_of_an_instance_are_deleted_after_its_termination() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    let node = stage.node(0);
    let other = Node { name: "node-0-again".into(), uid: "again".to_owned(), ..node.clone() };
    for node in [node, other] {
        stage.apply(WatchedObject::Node(Box::new(node)));
        stage.run(5, &[]);
    }
    stage.apply(bound(pending_pod("a"), "node-0"));
    stage.run(60, &[]);
    let remaining = |stage: &Stage| stage.engine.state().objects.nodes.len();
    assert_eq!((remaining(&stage), stage.count("terminate")), (2, 0));
    stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("a").key));
    let instance = stage.instances.get_mut("i-0").expect("the instance runs");
    instance.state = InstanceState::Terminated;
    stage.run(180, &[]);
    assert_eq!((remaining(&stage), stage.count("delete_node")), (0, 2));
}
