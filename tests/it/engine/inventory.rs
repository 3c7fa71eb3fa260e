//! The inventory of one cluster, node by node and pod by pod.

use outrigger::engine::views::inventory::{
    Amount, Columns, Inventory, NODES_MAX, PODS_MAX, PendingPodOutcome, SeenPod,
};
use outrigger::model::claim::ClaimPhase;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::labels::ZONE;
use outrigger::model::node::Node;
use outrigger::model::pool::Reason;
use outrigger::model::watched_object::WatchedObject;
use outrigger::state::snapshot::NodeRef;

use super::{Stage, bound, owned_pod};

fn inventory_of(stage: &Stage) -> Inventory {
    let wanted = Columns {
        labels: vec![ZONE.to_owned()],
        resources: vec!["cpu".to_owned(), "memory".to_owned()],
    };
    stage.engine.inventory(&wanted, stage.now)
}

#[test]
fn inventory_lists_nodes_from_plan_to_termination_and_pending_pod_outcomes() {
    let mut stage = Stage::new(ManagementMode::Manage);
    assert_eq!(inventory_of(&stage).nodes.len(), 0, "the engine knows no node yet");
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 10_000_000;
    stage.sync(vec![], vec![owned_pod("a"), large]);
    stage.run(10, &[]);
    let inventory = inventory_of(&stage);
    let [node] = &inventory.nodes[..] else { panic!("{:?}", inventory.nodes) };
    assert_eq!((node.ready, node.phase), (None, Some(ClaimPhase::Launched)));
    assert!(node.instance_type.is_some() && node.price.is_some() && !node.leaves);
    let outcomes: Vec<&PendingPodOutcome> =
        inventory.pods.iter().map(|pod: &SeenPod| &pod.hope).collect();
    assert!(
        matches!(
            outcomes[..],
            [PendingPodOutcome::Host(NodeRef::Claim(_)), PendingPodOutcome::None(_)]
        ),
        "{outcomes:?}"
    );

    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(owned_pod("a"), "node-0"));
    stage.run(60, &[]);
    let inventory = inventory_of(&stage);
    let [node] = &inventory.nodes[..] else { panic!("{:?}", inventory.nodes) };
    assert_eq!((node.name.as_str(), node.ready), ("node-0", Some(true)));
    assert_eq!((node.phase, node.pods), (Some(ClaimPhase::Initialized), 1));
    assert_eq!(node.amounts, inventory.amounts, "the node is the only one");
    let Amount { taken, there } = node.amounts[0];
    assert!(0 < taken && taken <= there, "{:?}", node.amounts);
    assert_eq!(node.labels, vec![node.zone.clone()]);
    assert_eq!((inventory.price, inventory.bound_pods), (node.price.expect("known"), 1));
    // Each reason has an explanation; the inventory shows the most important one.
    let blocked = node.kept.as_ref().map(|(reason, _)| *reason);
    assert_eq!(blocked, Some(Reason::Underutilized));

    stage.event(outrigger::engine::event::Event::Deleted(
        outrigger::model::watched_object::ObjectKind::Pod,
        owned_pod("a").key,
    ));
    stage.run(120, &["terminate"]);
    let inventory = inventory_of(&stage);
    let reason = inventory.nodes.first().map(|node| (node.leaves, node.leaving));
    assert_eq!(reason, Some((true, Some(Reason::Empty))));
}

#[test]
fn inventory_of_a_large_cluster_counts_the_omitted_nodes_and_pods() {
    let mut stage = Stage::new(ManagementMode::Observe);
    let node = |number: usize| Node {
        name: format!("n{number:05}").into(),
        ready: true,
        ..Node::default()
    };
    let nodes = (0..NODES_MAX + 5).map(node).collect();
    let pods = (0..PODS_MAX + 7).map(|number| owned_pod(&format!("p{number}")));
    stage.sync(nodes, pods.collect());
    let inventory = inventory_of(&stage);
    assert_eq!((inventory.nodes.len(), inventory.more_nodes), (NODES_MAX, 5));
    assert_eq!((inventory.pods.len(), inventory.more_pods), (PODS_MAX, 7));
}
