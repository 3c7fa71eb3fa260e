//! A user changes a node that is being disrupted.

use jiff::SignedDuration;
use outrigger::engine::command::{Command, CommandResult, IssuedCommand};
use outrigger::engine::event::{Event, Interruption};
use outrigger::model::cluster::ManagementMode;
use outrigger::model::pod::Pod;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};

use super::{Stage, bound, waiting_pod};

/// A stage with one node, on which one pod runs, and that pod; the provider takes the node back.
fn interrupted() -> (Stage, Pod) {
    let mut stage = Stage::new(ManagementMode::Manage);
    let pod = waiting_pod("a");
    stage.sync(vec![], vec![pod.clone()]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pod.clone(), "node-0"));
    stage.run(2, &[]);
    let at = stage.now + SignedDuration::from_secs(120);
    stage.event(Event::Interrupted("i-0".into(), Interruption::Spot, at));
    (stage, pod)
}

/// Somebody takes all taints of the node away, and a pod comes to it.
fn meddle(stage: &mut Stage, pod: &str) {
    let mut node = stage.seen_node().clone();
    assert!(node.has_disrupted_taint(), "{node:?}");
    node.taints.clear();
    node.version.push('m');
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.apply(bound(waiting_pod(pod), "node-0"));
}

/// From here on the late pod is told to go, and the node is not ended before it has gone.
fn goes_on(stage: &mut Stage) {
    stage.seen.clear();
    stage.run(10, &["launch"]);
    assert_eq!(stage.seen[..2], ["patch_node", "evict"], "{:?}", stage.seen);
    assert!(stage.seen_node().has_disrupted_taint());
    assert_eq!(stage.count("terminate"), 0);
    stage.event(Event::Deleted(ObjectKind::Pod, waiting_pod("late").key));
    stage.run(10, &["launch"]);
    let last = stage.seen.iter().rev().take(3).rev();
    assert!(last.eq(["list_pods_on", "terminate", "delete_node"]));
}

#[test]
fn a_node_that_is_untainted_while_it_is_drained_is_tainted_and_drained_anew() {
    let (mut stage, pod) = interrupted();
    stage.run(3, &["launch"]);
    assert!(stage.count("evict") > 0, "{:?}", stage.seen);
    stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    meddle(&mut stage, "late");
    goes_on(&mut stage);
}

#[test]
fn an_end_that_nobody_has_taken_is_taken_back_when_its_node_is_untainted() {
    let (mut stage, pod) = interrupted();
    stage.run(1, &["launch"]);
    stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    let held = stage.run(6, &["launch", "list_pods_on"]);
    let lists = |issued: &&IssuedCommand| matches!(issued.command, Command::ListPodsOn { .. });
    let list = held.iter().find(lists).expect("the drain is confirmed");
    stage.event(Event::Answered(list.id, CommandResult::Pods(Vec::new())));
    // The passes that follow decide to end the instance, and every hand is busy.
    for _ in 0..3 {
        stage.wake(stage.now + SignedDuration::from_millis(100));
    }
    meddle(&mut stage, "late");
    stage.wake(stage.now + SignedDuration::from_millis(100));
    goes_on(&mut stage);
}
