//! A user changes a node that is being disrupted.

use jiff::SignedDuration;
use outrigger::engine::command::{Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::pod::Pod;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, Interruption};

use super::{Stage, bound, pending_pod};

/// A stage with one interrupted node, and the only pod on it.
fn interrupted() -> (Stage, Pod) {
    let mut stage = Stage::new(ManagementMode::Manage);
    let pod = pending_pod("a");
    stage.sync(vec![], vec![pod.clone()]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pod.clone(), "node-0"));
    stage.run(2, &[]);
    let at = stage.now + SignedDuration::from_secs(120);
    stage.event(Event::interrupted("i-0".into(), Interruption::Spot, at));
    (stage, pod)
}

/// A user removes all taints of the node, and a pod is bound to it.
fn untaint_and_bind(stage: &mut Stage, pod: &str) {
    let mut node = stage.only_node().clone();
    assert!(node.has_disrupted_taint(), "{node:?}");
    node.taints.clear();
    node.version.push('m');
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.apply(bound(pending_pod(pod), "node-0"));
}

/// Asserts that the late pod is evicted, and that the node is terminated only after the pod.
fn assert_drained_again(stage: &mut Stage) {
    stage.commands.clear();
    stage.run(10, &["launch"]);
    assert_eq!(stage.commands[..2], ["patch_node", "evict"], "{:?}", stage.commands);
    assert!(stage.only_node().has_disrupted_taint());
    assert_eq!(stage.count("terminate"), 0);
    stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("late").key));
    stage.run(10, &["launch"]);
    let last = stage.commands.iter().rev().take(3).rev();
    assert!(last.eq(["list_pods_on", "terminate", "delete_node"]));
}

#[test]
fn node_that_a_user_untaints_during_a_drain_is_tainted_and_drained_again() {
    let (mut stage, pod) = interrupted();
    stage.run(3, &["launch"]);
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
    stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    untaint_and_bind(&mut stage, "late");
    assert_drained_again(&mut stage);
}

#[test]
fn queued_termination_is_cancelled_when_a_user_untaints_the_node() {
    let (mut stage, pod) = interrupted();
    stage.run(1, &["launch"]);
    stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    let held = stage.run(6, &["launch", "list_pods_on"]);
    let lists = |issued: &&IssuedCommand| matches!(issued.command, Command::ListPodsOn { .. });
    let list = held.iter().find(lists).expect("the engine confirms the drain");
    stage.event(Event::Answered(list.id, CommandResult::Pods(Vec::new())));
    // The next passes decide to terminate the instance, and the command stays queued.
    for _ in 0..3 {
        stage.wake(stage.now + SignedDuration::from_millis(100));
    }
    untaint_and_bind(&mut stage, "late");
    stage.wake(stage.now + SignedDuration::from_millis(100));
    assert_drained_again(&mut stage);
}
