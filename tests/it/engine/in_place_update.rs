//! In-place updates of running nodes after a change of their pool or node class, and the updates at
//! the provider.

use std::sync::Arc;

use outrigger::engine::Engine;
use outrigger::engine::command::{Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::instance::InstanceFacts;
use outrigger::model::labels::POOL_HASH;
use outrigger::model::node::Node;
use outrigger::model::node_class::NodeClass;
use outrigger::model::pod::Pod;
use outrigger::model::pool::BudgetNodes;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::template_hash::hashes_in;
use outrigger::model::watched_object::WatchedObject;
use outrigger::provider::{CommandResult, FailureKind};

use super::{Stage, bound, pending_pod};

/// A stage with two nodes of one pool and class, a pod on each.
fn settled() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    let class = NodeClass { name: "c".into(), ..NodeClass::default() };
    stage.change(|cluster| {
        cluster.node_classes = vec![class];
        cluster.pools[0].node_class = Some("c".into());
    });
    stage.sync(vec![], vec![]);
    for (place, cpu_milli) in [1000, 20_000].into_iter().enumerate() {
        let mut pod = Pod { unschedulable: true, ..pending_pod(&format!("p{place}")) };
        pod.requests.cpu_milli = cpu_milli;
        stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
        stage.run(10, &[]);
        stage.apply(WatchedObject::Node(Box::new(stage.node(place))));
        stage.run(2, &[]);
        stage.apply(bound(pod, &format!("node-{place}")));
        stage.run(2, &[]);
    }
    assert_eq!(stage.launches.len(), 2);
    stage.commands.clear();
    stage
}

/// Advances the clock until the engine tags instances.
fn next_tag_command(stage: &mut Stage) -> Option<IssuedCommand> {
    (0..100).find_map(|_| stage.run(1, &["tag"]).into_iter().next())
}

fn fail(stage: &mut Stage, issued: &IssuedCommand, kind: FailureKind) {
    let text = "x".to_owned();
    stage.event(Event::Answered(issued.id, CommandResult::Failed { kind, text }));
}

#[test]
fn changed_taint_value_replaces_the_previous_taint() {
    let mut stage = settled();
    let taint = |value: &str| Taint {
        value: value.to_owned(),
        ..Taint::new("dedicated", Effect::NoSchedule)
    };
    for value in ["a", "b"] {
        stage.change(|cluster| cluster.pools[0].taints = vec![taint(value)]);
        stage.run(60, &[]);
        for node in stage.engine.state().objects.nodes.values() {
            let matching = node.taints.iter().filter(|taint| taint.key == "dedicated");
            assert_eq!(matching.collect::<Vec<_>>(), [&taint(value)], "{}", node.name);
        }
    }
}

#[test]
fn in_place_changes_are_applied_to_nodes_and_instances_with_new_hashes() {
    let mut stage = settled();
    stage.run(60, &[]);
    assert_eq!(stage.commands, Vec::<String>::new(), "the configuration has not changed");
    stage.change(|cluster| {
        cluster.pools[0].labels = [("team".into(), "blue".into())].into();
        cluster.pools[0].annotations = [("outrigger.dev/note".into(), "n".into())].into();
        cluster.pools[0].taints = vec![
            Taint::new("dedicated", Effect::NoSchedule),
            Taint::new("gone", Effect::NoExecute),
        ];
        cluster.pools[0].expire_after = None;
        cluster.node_classes[0].tags = [("cost".into(), "1".into())].into();
    });
    stage.run(10, &[]);
    assert_eq!(stage.commands, ["patch_node", "patch_node", "tag"], "one call");
    let state = stage.engine.state();
    let (of_pool, of_class) = hashes_in(&state.cluster, &state.cluster.pools[0]);
    for node in state.objects.nodes.values() {
        assert_eq!(node.labels["team"], "blue");
        assert_eq!(node.annotations["outrigger.dev/note"], "n");
        assert_eq!(node.annotations[POOL_HASH], of_pool);
        let has = |key: &str| node.taints.iter().any(|taint| taint.key == key);
        // A NoExecute taint would evict the pods of the node.
        assert_eq!([has("dedicated"), has("gone")], [true, false]);
    }
    for claim in state.ledger.claims.values() {
        let record = &claim.record;
        assert_eq!((&record.pool_hash, &record.node_class_hash), (&of_pool, &of_class));
        assert_eq!(record.expire_after, None);
    }
    for (place, instance) in stage.instances.values().enumerate() {
        assert_eq!(instance.tags["cost"], "1");
        assert_eq!(instance.tags["outrigger.dev/expire-after"], "never");
        assert_eq!(instance.tags["outrigger.dev/pool-hash"], of_pool);
        let claim = &stage.launches[place].claim.id;
        assert_eq!(instance.tags["outrigger.dev/claim"], claim.as_str());
    }
    stage.run(120, &[]);
    assert_eq!(stage.commands.len(), 3, "{:?}", stage.commands);
    assert_eq!(stage.launches.len(), 2);
}

#[test]
fn drifted_nodes_are_not_updated_in_place() {
    let mut stage = settled();
    stage.change(|cluster| {
        cluster.pools[0].labels = [("team".into(), "blue".into())].into();
        cluster.node_classes[0].user_data = "another".into();
        cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(0);
    });
    stage.run(60, &[]);
    assert_eq!(stage.commands, Vec::<String>::new());
}

/// Hashes of an earlier version or of Karpenter cannot be compared, so they do not mean drift.
#[test]
fn hashes_of_another_version_are_rewritten_without_drift() {
    const TAGS: [&str; 2] = ["outrigger.dev/pool-hash", "outrigger.dev/node-class-hash"];
    let mut stage = settled();
    let state = stage.engine.state();
    let cluster = Cluster::clone(&state.cluster);
    let pods: Vec<Pod> = state.objects.pods.values().cloned().collect();
    let mut nodes: Vec<Node> = state.objects.nodes.values().cloned().collect();
    for node in &mut nodes {
        node.annotations.insert(POOL_HASH.into(), "v1:0".into());
    }
    for instance in stage.instances.values_mut() {
        for key in TAGS {
            Arc::make_mut(&mut instance.tags).insert(key.into(), "v1:0".into());
        }
    }
    stage.engine = Engine::new(8);
    stage.start(ManagementMode::Manage);
    stage.set(cluster);
    stage.sync(nodes, pods);
    stage.run(120, &[]);
    assert_eq!((stage.launches.len(), stage.count("terminate")), (2, 0));
    let state = stage.engine.state();
    let (of_pool, of_class) = hashes_in(&state.cluster, &state.cluster.pools[0]);
    for instance in stage.instances.values() {
        let hashes = TAGS.map(|key| instance.tags[key].clone());
        assert_eq!(hashes, [of_pool.clone(), of_class.clone()]);
    }
}

#[test]
fn failed_tag_write_is_retried_unless_the_provider_supports_no_tags() {
    let mut stage = settled();
    let recolour = |stage: &mut Stage, colour: &str| {
        let labels = [("team".to_owned(), colour.to_owned())];
        stage.change(|cluster| cluster.pools[0].labels = labels.into());
    };
    recolour(&mut stage, "blue");
    let issued = next_tag_command(&mut stage).expect("tags");
    fail(&mut stage, &issued, FailureKind::Denied);
    let issued = next_tag_command(&mut stage).expect("tags again");
    stage.commands.clear();
    fail(&mut stage, &issued, FailureKind::Invalid);
    stage.run(120, &[]);
    assert_eq!(stage.commands, Vec::<String>::new());
    recolour(&mut stage, "red");
    stage.run(10, &[]);
    assert_eq!(stage.count("tag"), 1);
}

#[test]
fn discovered_memory_is_saved_once_and_again_when_a_node_has_less() {
    let mut stage = settled();
    stage.run(60, &[]);
    assert_eq!(stage.count("save_discovered_memory"), 0, "a provider without images");
    for (place, instance) in stage.instances.values_mut().enumerate() {
        let image = Some(format!("ami-{place}"));
        instance.facts = Some(Box::new(InstanceFacts { image, ..InstanceFacts::default() }));
    }
    let saved = |held: Vec<IssuedCommand>| -> Vec<(String, i64)> {
        let saved = held.into_iter().map(|issued| match issued.command {
            Command::SaveDiscoveredMemory { image, memory, .. } => (image, memory),
            other => panic!("{other:?}"),
        });
        let mut saved: Vec<_> = saved.collect();
        saved.sort_unstable();
        saved
    };
    let held = stage.run(120, &["save_discovered_memory"]);
    let node = |stage: &Stage, place: usize| {
        let name = format!("node-{place}");
        stage.engine.state().objects.nodes[name.as_str()].clone()
    };
    let memory = [0, 1].map(|place| node(&stage, place).capacity.memory);
    let expect = [("ami-0".to_owned(), memory[0]), ("ami-1".to_owned(), memory[1])];
    assert_eq!(saved(held), expect);
    for (change, expect) in [(1, vec![]), (-1, vec![("ami-1".to_owned(), memory[1] - 1)])] {
        let mut changed = node(&stage, 1);
        changed.capacity.memory = memory[1] + change;
        changed.version.push('x');
        stage.apply(WatchedObject::Node(Box::new(changed)));
        assert_eq!(saved(stage.run(30, &["save_discovered_memory"])), expect);
    }
}
