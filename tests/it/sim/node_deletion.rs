//! Nodes that a user deletes, while pods and volumes do not always react as expected.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::model::cluster::Cluster;
use outrigger::model::id::NodeName;
use outrigger::model::pod::Pod;
use outrigger::sim::World;
use outrigger::sim::cluster::store::Attached;

use super::setup::working_day;

/// The working day at noon, in a cluster with the finalizer, with a node in use and its pods.
fn noon(seed: u64) -> (World, NodeName, Vec<Pod>) {
    let mut setup = working_day();
    let mut config = Cluster::clone(&setup.config);
    config.finalizer = true;
    setup.config = Arc::new(config);
    let start = setup.scenario.start;
    let mut world = World::new(setup, seed, false);
    world.run_until(start + SignedDuration::from_hours(12));
    let (name, pods) = node_in_use(&world);
    (world, name, pods)
}

fn node_in_use(world: &World) -> (NodeName, Vec<Pod>) {
    let scene = world.ground_truth();
    let machines = scene.live_instances();
    let mut nodes =
        machines.filter_map(|machine| scene.cluster.node_of(machine.truth().id.as_str()));
    let pods = |name: &NodeName| {
        let pods = scene.cluster.store().pods_on(name.as_str());
        let used = pods.filter(|pod| pod.occupies_node()).cloned();
        used.collect::<Vec<Pod>>()
    };
    let node = nodes.find(|node| node.has_finalizer() && pods(&node.name).len() > 1);
    let name = node.expect("a node in use").name.clone();
    let pods = pods(&name);
    (name, pods)
}

fn run(world: &mut World, minutes: i64) {
    let until = world.now() + SignedDuration::from_mins(minutes);
    world.run_until(until);
}

fn exists(world: &World, node: &NodeName) -> bool {
    world.ground_truth().cluster.store().nodes().contains_key(node)
}

#[test]
fn deleted_node_is_removed_after_its_instance_terminates() {
    let (mut world, node, _) = noon(7);
    let instance = world.ground_truth().cluster.kubelet_of(node.as_str()).expect("it runs");
    let instance = instance.instance.clone();
    world.change_cluster(|cluster, now| cluster.remove_node(&node, now));
    assert!(exists(&world, &node), "the finalizer keeps the Node");
    run(&mut world, 15);
    assert!(!exists(&world, &node));
    let machine = world.ground_truth().cloud.get(instance.as_str());
    assert!(machine.is_none_or(|machine| !machine.truth().state.is_live()));
    assert_eq!(world.run_and_check(), []);
}

#[test]
fn hanging_pod_and_stuck_volume_delay_node_removal_for_minutes() {
    let (mut world, node, pods) = noon(8);
    let volume = |pod: &Pod, stuck: bool| Attached {
        volume: format!("data-{stuck}"),
        node: node.clone(),
        pod: pod.uid.clone(),
        stuck,
    };
    world.change_cluster(|cluster, now| {
        cluster.hang_pod(&pods[0].uid);
        let store = cluster.store_mut();
        store.attach_volume("stuck", volume(&pods[1], true));
        store.attach_volume("loose", volume(&pods[1], false));
        cluster.remove_node(&node, now);
    });
    run(&mut world, 6);
    assert!(exists(&world, &node), "the grace period, a minute, and six minutes for the volume");
    run(&mut world, 10);
    assert!(!exists(&world, &node));
    let left = world.ground_truth().cluster.store().attached_to(node.as_str());
    let left: Vec<&str> = left.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(left, ["stuck"], "the other volume was detached first");
    assert_eq!(world.run_and_check(), []);
}

#[test]
fn terminated_pod_with_a_finalizer_does_not_delay_node_removal() {
    let (mut world, node, pods) = noon(9);
    world.change_cluster(|cluster, now| {
        let store = cluster.store_mut();
        for pod in &pods {
            store.change_pod(&pod.key, &pod.uid, now, |pod| {
                pod.finalizers = vec!["example.com/wait".to_owned()];
            });
        }
        cluster.remove_node(&node, now);
    });
    run(&mut world, 10);
    assert!(!exists(&world, &node));
}
