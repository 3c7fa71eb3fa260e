//! Invariants after a user removes the taint of a disrupted node.

use jiff::{SignedDuration, Timestamp};
use outrigger::engine::command::Command;
use outrigger::engine::event::Event;
use outrigger::model::node::Node;
use outrigger::model::pod::Pod;
use outrigger::model::watched_object::WatchedObject;
use outrigger::sim::World;
use outrigger::sim::invariants::{Checker, GroundTruth, Invariant};

use super::setup::working_day;

/// Who had removed the taint when a command was sent at second 10, and what the daemon knew.
#[derive(Clone, Copy, Debug)]
enum TaintRemoval {
    /// No user: the node never had the taint.
    NotTainted,
    /// A user, before the pods were bound; the daemon received it at this second, if at all.
    BeforePods(Option<i64>),
    /// A user, before the pods were bound; the daemon received an older Node at second 5.
    Stale,
    /// A user, after the pods were bound; the daemon did not receive it.
    AfterPods,
}

/// A managed node in use, with its pods.
fn node_in_use(scene: &GroundTruth) -> (Node, Vec<Pod>) {
    let machines = scene.live_instances();
    let nodes = machines.filter_map(|machine| scene.cluster.node_of(machine.truth().id.as_str()));
    let pods = |node: &Node| {
        let pods = scene.cluster.store().pods_on(node.name.as_str());
        let pods = pods.filter(|pod| pod.occupies_node()).cloned();
        (node.clone(), pods.collect::<Vec<_>>())
    };
    let mut used = nodes.map(pods);
    used.find(|(_, pods)| !pods.is_empty()).expect("a node in use")
}

/// The number of violations of the drain invariant when a command arrives.
fn drain_violations(
    scene: &GroundTruth,
    node: &Node,
    removal: TaintRemoval,
    command: &Command,
    now: Timestamp,
) -> usize {
    let mut before = scene.clone();
    for pod in node_in_use(scene).1 {
        let store = before.cluster.store_mut();
        store.remove_pod(&pod.key, &pod.uid, now);
    }
    let second = |count: i64| now + SignedDuration::from_secs(count);
    let send_node = |checker: &mut Checker, node: &Node, at: i64| {
        let event = Event::Applied(WatchedObject::Node(Box::new(node.clone())));
        checker.on_event(&event, second(at));
    };
    let mut checker = Checker::default();
    match removal {
        TaintRemoval::NotTainted => {}
        TaintRemoval::BeforePods(at) => {
            checker.on_untainted(&node.name, &before);
            if let Some(at) = at {
                send_node(&mut checker, node, at);
            }
        }
        TaintRemoval::Stale => {
            checker.on_untainted(&node.name, &before);
            let mut stale = node.clone();
            stale.version = "0".to_owned();
            send_node(&mut checker, &stale, 5);
        }
        TaintRemoval::AfterPods => checker.on_untainted(&node.name, scene),
    }
    checker.check_arriving(command, scene, second(10), second(20));
    let drains = checker.violations().iter();
    drains.filter(|violation| violation.rule == Invariant::Drain).count()
}

#[test]
fn drain_violation_is_excused_only_if_the_daemon_could_not_know() {
    let setup = working_day();
    let mut world = World::new(setup.clone(), 1, false);
    world.run_until(setup.scenario.start + SignedDuration::from_mins(30));
    let (scene, now) = (world.ground_truth(), world.now());
    let (node, pods) = node_in_use(scene);
    let end = Command::Terminate {
        claim: "claim".into(),
        instance: node.instance_id().expect("an instance").into(),
    };
    let evict = Command::Evict { pod: pods[0].key.clone(), uid: pods[0].uid.clone() };
    // The violations of a termination (running pods, missing taint), and those of an eviction.
    for (removal, ends, evictions) in [
        (TaintRemoval::NotTainted, 2, 1),
        (TaintRemoval::BeforePods(None), 0, 0),
        (TaintRemoval::BeforePods(Some(12)), 0, 0),
        (TaintRemoval::BeforePods(Some(9)), 2, 1),
        (TaintRemoval::Stale, 0, 0),
        (TaintRemoval::AfterPods, 1, 0),
    ] {
        let got = |command| drain_violations(scene, &node, removal, command, now);
        assert_eq!((got(&end), got(&evict)), (ends, evictions), "{removal:?}");
    }
}
