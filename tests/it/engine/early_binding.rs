//! Early binding: pods are bound to a node before it exists, and deleted if it never registers.

use jiff::SignedDuration;
use outrigger::engine::command::Command;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::{Binding, ManagementMode};
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::InstanceState;
use outrigger::model::labels::{
    AWAITING_KUBELET, AWAITING_KUBELET_FORMER, CLAIM, HOSTNAME, INSTANCE_TYPE, MANAGED_BY, POOL,
    TAINT_UNREGISTERED,
};
use outrigger::model::node::Node;
use outrigger::model::pod::Pod;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, FailureKind, Interruption};

use super::{Stage, pending_pod, replicated};

/// A pending pod, so small that several fit on one node.
fn small(name: &str) -> Pod {
    let mut pod = pending_pod(name);
    (pod.requests.cpu_milli, pod.requests.memory) = (100, 64 << 20);
    pod
}

/// A small pod of a ReplicaSet, which recreates it after a deletion.
fn owned(name: &str) -> Pod {
    replicated(small(name))
}

/// A pod of a ReplicaSet that does not fit on a node of the small pods.
fn large(name: &str) -> Pod {
    let mut pod = owned(name);
    pod.requests.cpu_milli = 16_000;
    pod
}

/// A synced stage with early binding.
fn stage_with_early_binding() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.binding = Binding::Early);
    stage.sync(vec![], vec![]);
    stage.run(6, &[]);
    assert!(stage.engine.is_ready());
    stage
}

/// A synced stage with early binding, three seconds after these pods appeared.
fn stage_with(pods: Vec<Pod>, hold: &[&str]) -> Stage {
    let mut stage = stage_with_early_binding();
    for pod in pods {
        stage.apply(WatchedObject::Pod(Box::new(pod)));
    }
    stage.run(3, hold);
    stage
}

fn node_of(stage: &Stage, pod: &str) -> Option<String> {
    let key = ObjectKey::new("default", pod);
    let pod = stage.engine.state().objects.pods.get(&key)?;
    pod.node.as_ref().map(ToString::to_string)
}

/// The kubelet takes over the created Node, and is ready at once.
fn start_kubelet(stage: &mut Stage) {
    let node =
        Node { has_kubelet: true, ready: true, version: "2".into(), ..stage.only_node().clone() };
    stage.apply(WatchedObject::Node(Box::new(node)));
}

fn timeout(stage: &Stage) -> i64 {
    let pools = &stage.engine.state().cluster.pools;
    pools[0].registration_timeout.as_secs()
}

#[test]
fn pods_are_bound_as_soon_as_the_launch_succeeds() {
    let mut stage = stage_with(vec![], &[]);
    for name in ["a", "b"] {
        stage.apply(WatchedObject::Pod(Box::new(owned(name))));
    }
    let held = stage.run(3, &["launch"]);
    let [launch] = &held[..] else { panic!("one launch: {held:?}") };
    // The engine does not run a pass in between.
    let answer = stage.answer(&launch.command);
    stage.event(Event::Answered(launch.id, answer));
    let next = stage.engine.next_command().expect("the engine creates the Node");
    assert_eq!(next.command.name(), "create_node");
    let answer = stage.answer(&next.command);
    stage.event(Event::Answered(next.id, answer));
    for pod in ["a", "b"] {
        let next = stage.engine.next_command().expect("the engine binds a pod");
        let Command::Bind { pod: key, uid, node } = &next.command else { panic!("{next:?}") };
        assert_eq!((&key.name[..], &uid[..]), (pod, &format!("uid-{pod}")[..]));
        assert_eq!(node.as_str(), "node-0");
        let answer = stage.answer(&next.command);
        stage.event(Event::Answered(next.id, answer));
    }
    stage.run(1, &[]);
    let bound_early = stage.reports.iter().find_map(|report| match report {
        Report::BoundEarly { pods, after, .. } => Some((*pods, *after)),
        _ => None,
    });
    assert_eq!(bound_early, Some((2, SignedDuration::ZERO)));
}

#[test]
fn created_node_stays_tainted_until_its_kubelet_starts() {
    let mut stage = stage_with(vec![owned("a"), small("naked")], &[]);
    assert_eq!(stage.commands, ["launch", "create_node", "bind"]);
    assert_eq!(node_of(&stage, "naked"), None, "no controller would recreate the pod");
    let node = stage.only_node().clone();
    assert_eq!(
        node.taints,
        [Taint::new(TAINT_UNREGISTERED, Effect::NoSchedule)],
        "the taint evicts no pod"
    );
    for label in [HOSTNAME, INSTANCE_TYPE, MANAGED_BY, POOL] {
        assert!(node.labels.contains_key(label), "{label}");
    }
    assert!(
        node.annotations.contains_key(AWAITING_KUBELET) && node.annotations.contains_key(CLAIM)
    );
    assert!(node.allocatable.cpu_milli > 0 && !node.is_registered());
    stage.run(60, &[]);
    assert_eq!(stage.commands.len(), 3, "the engine waits for the kubelet");
    start_kubelet(&mut stage);
    stage.run(3, &[]);
    assert_eq!(stage.commands[3..], ["nominate", "patch_node"]);
    let node = stage.only_node();
    assert!(node.is_registered() && node.is_initialized(), "{node:?}");
    assert!(node.taints.is_empty() && !node.annotations.contains_key(AWAITING_KUBELET));
}

/// A daemon of an earlier version created the Node under the former name of the annotation.
#[test]
fn node_of_an_earlier_version_is_awaited_and_loses_the_former_annotation() {
    let mut stage = stage_with(vec![owned("a")], &[]);
    let mut node = stage.only_node().clone();
    let value = node.annotations.remove(AWAITING_KUBELET).expect("the node has the annotation");
    let former = AWAITING_KUBELET_FORMER.to_owned();
    node.annotations.insert(former, value);
    node.version = "1b".into();
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(60, &[]);
    assert!(stage.only_node().is_awaited());
    start_kubelet(&mut stage);
    stage.run(3, &[]);
    let node = stage.only_node();
    assert!(node.is_registered() && !node.has_awaiting_kubelet(), "{node:?}");
}

#[test]
fn pods_of_a_node_that_never_registers_are_deleted_after_its_instance() {
    let mut stage = stage_with(vec![owned("a"), owned("b")], &[]);
    stage.commands.clear();
    let timeout = timeout(&stage);
    stage.run(timeout - 30, &[]);
    assert!(stage.commands.is_empty(), "{:?}", stage.commands);
    let held = stage.run(31, &["terminate"]);
    let [end] = &held[..] else { panic!("the instance is terminated: {held:?}") };
    assert_eq!(stage.count("delete_pod") + stage.count("delete_node"), 0);
    let answer = stage.answer(&end.command);
    stage.event(Event::Answered(end.id, answer));
    stage.run(60, &[]);
    stage.commands.retain(|name| name.starts_with("delete"));
    assert_eq!(stage.commands, ["delete_pod", "delete_pod", "delete_node"]);
    let state = stage.engine.state();
    assert!(state.objects.nodes.is_empty() && state.objects.pods.is_empty());
    // The controller recreates a pod.
    stage.apply(WatchedObject::Pod(Box::new(owned("c"))));
    stage.run(5, &[]);
    assert!(node_of(&stage, "c").is_some());
}

#[test]
fn pods_of_a_failed_launch_are_not_bound() {
    let mut stage = stage_with_early_binding();
    stage.apply(WatchedObject::Pod(Box::new(owned("a"))));
    let held = stage.run(3, &["launch"]);
    let failed = CommandResult::Failed { kind: FailureKind::Invalid, text: "no".into() };
    stage.event(Event::Answered(held[0].id, failed));
    let held = stage.run(5, &["launch"]);
    assert_eq!(stage.count("create_node") + stage.count("bind"), 0);
    let answer = stage.answer(&held[0].command);
    stage.event(Event::Answered(held[0].id, answer));
    stage.run(1, &[]);
    assert_eq!(node_of(&stage, "a").as_deref(), Some("node-0"));
}

#[test]
fn failed_binding_is_retried_unless_the_pod_is_already_bound_or_gone() {
    for (kind, binds) in [
        (FailureKind::Conflict, 1),
        (FailureKind::Gone, 1),
        (FailureKind::Unknown, 2),
        (FailureKind::Throttled, 2),
    ] {
        let mut stage = stage_with_early_binding();
        stage.apply(WatchedObject::Pod(Box::new(owned("a"))));
        let held = stage.run(3, &["bind"]);
        let text = "no".into();
        stage.event(Event::Answered(held[0].id, CommandResult::Failed { kind, text }));
        stage.run(20, &[]);
        assert_eq!(stage.count("bind"), binds, "{kind:?}");
    }
}

#[test]
fn node_whose_creation_ends_in_a_conflict_is_found_by_the_watch() {
    let mut stage = stage_with_early_binding();
    stage.apply(WatchedObject::Pod(Box::new(owned("a"))));
    let held = stage.run(3, &["create_node"]);
    // The Node was created and the result lost: a second creation ends in a conflict.
    drop(stage.answer(&held[0].command));
    let kind = FailureKind::Conflict;
    let text = "it exists".into();
    stage.event(Event::Answered(held[0].id, CommandResult::Failed { kind, text }));
    stage.run(2, &[]);
    assert_eq!(node_of(&stage, "a").as_deref(), Some("node-0"));
    assert_eq!(stage.count("create_node"), 1);
}

#[test]
fn pods_are_nominated_without_permission_to_create_nodes_or_bind_pods() {
    for command in ["create_node", "bind"] {
        let mut stage = stage_with_early_binding();
        stage.apply(WatchedObject::Pod(Box::new(owned("a"))));
        let held = stage.run(3, &[command]);
        let kind = FailureKind::Denied;
        let text = "forbidden".into();
        stage.event(Event::Answered(held[0].id, CommandResult::Failed { kind, text }));
        stage.run(5, &[]);
        let node = stage.node(0);
        let ready = Node { has_kubelet: true, ..node };
        stage.apply(WatchedObject::Node(Box::new(ready)));
        stage.run(3, &[]);
        assert_eq!(stage.count(command), 1);
        assert_eq!(stage.count("nominate"), 1, "the pod is nominated instead");
        let node = stage.only_node();
        assert!(node.is_initialized() && node.taints.is_empty(), "{node:?}");
        stage.apply(WatchedObject::Pod(Box::new(large("b"))));
        stage.run(5, &[]);
        assert_eq!((stage.launches.len(), stage.count(command)), (2, 1));
    }
}

#[test]
fn missing_node_name_is_reported_and_pods_wait_for_their_node() {
    let mut stage = stage_with_early_binding();
    stage.apply(WatchedObject::Pod(Box::new(owned("a"))));
    let held = stage.run(3, &["launch"]);
    let CommandResult::Launched(mut instance) = stage.answer(&held[0].command) else {
        panic!("launched")
    };
    instance.node = None;
    stage.instances.insert("i-0".into(), instance.clone());
    stage.event(Event::Answered(held[0].id, CommandResult::Launched(instance)));
    stage.run(30, &[]);
    let not_early = |report: &&Report| matches!(report, Report::NotEarly { .. });
    assert_eq!(stage.reports.iter().filter(not_early).count(), 1);
    assert_eq!(stage.commands, ["launch"]);
}

#[test]
fn restart_continues_early_binding_from_the_annotations_of_the_node() {
    for ended in [false, true] {
        let old = stage_with(vec![owned("a")], &[]);
        let node = old.only_node().clone();
        let pod = old.engine.state().objects.pods.values().next().cloned();
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.change(|cluster| cluster.binding = Binding::Early);
        (stage.now, stage.instances) = (old.now, old.instances);
        stage.launches = old.launches;
        if ended {
            let instance = stage.instances.get_mut("i-0").expect("the instance was launched");
            instance.state = InstanceState::Terminated;
        }
        stage.sync(vec![node], pod.into_iter().collect());
        stage.run(10, &[]);
        if ended {
            assert_eq!(stage.commands, ["delete_pod", "delete_node"]);
            assert!(stage.engine.state().objects.nodes.is_empty());
            continue;
        }
        assert!(stage.commands.is_empty(), "{:?}", stage.commands);
        start_kubelet(&mut stage);
        stage.run(2, &[]);
        assert_eq!(stage.commands, ["patch_node"]);
        assert!(stage.only_node().is_initialized());
    }
}

#[test]
fn failed_pod_deletion_does_not_keep_the_node() {
    for (kind, deletes) in [(FailureKind::Denied, 1), (FailureKind::Unknown, 3)] {
        let mut stage = stage_with(vec![owned("a")], &[]);
        let wait = timeout(&stage);
        stage.run(wait - 30, &[]);
        for _ in 0..60 {
            for held in stage.run(5, &["delete_pod"]) {
                let text = "no".into();
                stage.event(Event::Answered(held.id, CommandResult::Failed { kind, text }));
            }
        }
        assert_eq!(stage.count("delete_pod"), deletes, "{kind:?}");
        assert_eq!(stage.count("delete_node"), 1, "{kind:?}");
    }
}

#[test]
fn pods_of_a_node_interrupted_before_registration_are_deleted_without_eviction() {
    let mut stage = stage_with(vec![owned("a")], &[]);
    let at = stage.now + SignedDuration::from_mins(2);
    stage.event(Event::interrupted("i-0".into(), Interruption::Spot, at));
    stage.run(180, &[]);
    let order: Vec<&String> = stage.commands.iter().filter(|name| *name != "launch").collect();
    let first = order.iter().position(|name| *name == "terminate");
    let last = order.iter().position(|name| *name == "delete_pod");
    assert!(first.is_some() && first < last, "{order:?}");
    assert_eq!(stage.count("evict"), 0, "no pod has started");
}

#[test]
fn kubelet_with_another_name_takes_the_claim_and_the_awaited_node_is_deleted() {
    let mut stage = stage_with(vec![owned("a")], &[]);
    let other = Node {
        name: "another".into(),
        uid: "uid-another".into(),
        has_kubelet: true,
        ..stage.node(0)
    };
    stage.apply(WatchedObject::Node(Box::new(other)));
    stage.run(5, &[]);
    let nodes = &stage.engine.state().objects.nodes;
    let names: Vec<&str> = nodes.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["another"]);
    assert!(nodes["another"].is_initialized());
    let deletes: Vec<&String> =
        stage.commands.iter().filter(|name| name.starts_with("del")).collect();
    assert_eq!(deletes, ["delete_pod", "delete_node"]);
    assert_eq!(stage.count("terminate"), 0);
    // The engine does not bind early to predicted node names any more.
    stage.apply(WatchedObject::Pod(Box::new(large("b"))));
    stage.run(5, &[]);
    assert_eq!((stage.launches.len(), stage.count("create_node")), (2, 1));
}

#[test]
fn pods_running_on_a_node_that_cannot_be_registered_are_evicted() {
    let mut stage = stage_with(vec![owned("a")], &[]);
    start_kubelet(&mut stage);
    let key = ObjectKey::new("default", "a");
    let mut pod = stage.engine.state().objects.pods[&key].clone();
    pod.started = Some(stage.now);
    stage.apply(WatchedObject::Pod(Box::new(pod)));
    let mut held = stage.run(1, &["patch_node"]);
    // The API server refuses the registration patch until the registration timeout has passed.
    let wait = timeout(&stage);
    for _ in 0..wait / 10 + 12 {
        for issued in held.drain(..) {
            let Command::PatchNode(patch) = &issued.command else {
                continue;
            };
            let kind = FailureKind::Unknown;
            let disrupts = patch.taints.iter().flatten();
            let disrupts = disrupts.into_iter().any(|taint| taint.key.ends_with("disrupted"));
            let answer = match disrupts {
                true => stage.answer(&issued.command),
                false => CommandResult::Failed { kind, text: "no".into() },
            };
            stage.event(Event::Answered(issued.id, answer));
        }
        held = stage.run(10, &["patch_node"]);
    }
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
    assert_eq!(stage.count("terminate") + stage.count("delete_pod"), 0);
    stage.event(Event::Deleted(ObjectKind::Pod, key));
    stage.run(30, &[]);
    assert_eq!(stage.count("terminate"), 1);
}
