//! Node classes that become ready or unready while pods are pending, and the settings that nodes
//! receive from their class.

use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger::catalog::capacity::default_node_class;
use outrigger::catalog::discovered_memory::DiscoveredMemory;
use outrigger::catalog::node_class::{
    ClassCatalog, NodeClassSupply, NotReady, RegionObservations, class_catalog,
};
use outrigger::catalog::region::Region;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::instance::{Arch, InstanceFacts};
use outrigger::model::labels::{
    NODE_CLASS_HASH, PLACEMENT_GROUP_ID, PLACEMENT_GROUP_PARTITION, POOL_HASH, ZONE_ID,
};
use outrigger::model::node::Node;
use outrigger::model::node_class::resolved::{
    Image, PlacementGroup, PlacementGroupStrategy, ResolvedNodeClass, Subnet,
};
use outrigger::model::watched_object::WatchedObject;
use outrigger::scheduling::RejectionCode;

use super::{Stage, waiting_pod};

impl Stage {
    /// The provider says whether the class is ready.
    pub(super) fn class(&mut self, supply: Result<(), &str>) {
        let supply = match supply {
            Ok(()) => Ok(ClassCatalog {
                catalog: self.engine.state().catalog.clone(),
                images: [].into(),
                found: None,
            }),
            Err(why) => Err(NotReady::Condition(why.to_owned())),
        };
        let all = [("x".into(), NodeClassSupply { supply })].into();
        self.event(Event::ClassesChanged(Arc::new(all)));
    }
}

#[test]
fn pods_wait_for_their_class_and_are_planned_once_it_is_ready() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].node_class = Some("x".into()));
    stage.class(Err("ImageNotFound: no image is called my-*"));
    stage.sync(vec![], vec![]);
    stage.apply(WatchedObject::Pod(Box::new(waiting_pod("a"))));
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), 0);
    let told: Vec<(RejectionCode, String)> = stage
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::Unplaced(unplaced) => {
                Some((unplaced.reasons[0].code, unplaced.reasons[0].rejection_text()))
            }
            _ => None,
        })
        .collect();
    let why = "node class \"x\" is not ready: ImageNotFound: no image is called my-*";
    assert_eq!(told, [(RejectionCode::NodeClass, why.to_owned())]);
    stage.class(Ok(()));
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 1);
    // What is on its way is no concern of a class that fails later.
    stage.class(Err("SubnetsNotFound: none"));
    stage.run(5, &[]);
    assert_eq!((stage.launches.len(), stage.count("terminate")), (1, 0));
}

/// A class with images for amd64, a subnet and a placement group.
fn placed(strategy: Option<PlacementGroupStrategy>) -> ClassCatalog {
    let image = Image {
        id: "ami-1".into(),
        name: String::new(),
        arch: Arch::Amd64,
        variants: Vec::new(),
        created: None,
        deprecated: false,
    };
    let subnet = Subnet {
        id: "subnet-1".into(),
        zone: "us-east-1a".into(),
        zone_id: "use1-az6".into(),
        free: 100,
    };
    let resolved = ResolvedNodeClass {
        images: vec![image],
        subnets: vec![subnet],
        placement_group: strategy.map(|strategy| PlacementGroup { id: "pg-1".into(), strategy }),
        ..ResolvedNodeClass::default()
    };
    let region = Region::shipped();
    let base = Arc::new(region.catalog());
    let none = RegionObservations {
        memory: &DiscoveredMemory::default(),
        shifted_zones: &BTreeSet::new(),
    };
    class_catalog(&region, &base, &default_node_class(), Some(&resolved), none)
}

/// How the group places, which partition the pod asks for, and which one EC2 tells of; the label
/// of the node, and whether it is registered before EC2 has told.
type Placed =
    (Option<PlacementGroupStrategy>, Option<&'static str>, Option<u32>, Option<&'static str>, bool);

#[test]
fn nodes_say_where_their_class_has_put_them() {
    use PlacementGroupStrategy::{Cluster, Partition, Spread};
    let parts = Some(Partition(3));
    let rows: [Placed; 8] = [
        (None, None, None, None, true),
        (Some(Cluster), None, None, None, true),
        (Some(Spread), None, None, None, true),
        (Some(Partition(1)), None, None, Some("1"), true),
        (parts, Some("3"), Some(3), Some("3"), true),
        (parts, None, Some(2), Some("2"), false),
        (parts, None, Some(3), Some("3"), false),
        // EC2 has none to tell: that is no reason to wait for ever.
        (parts, None, None, None, false),
    ];
    for (strategy, asked, partition, label, at_once) in rows {
        let what = format!("{strategy:?} {asked:?} {partition:?}");
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.change(|cluster| cluster.pools[0].node_class = Some("x".into()));
        let supply = Ok(placed(strategy));
        let all = [("x".into(), NodeClassSupply { supply })].into();
        stage.event(Event::ClassesChanged(Arc::new(all)));
        let mut pod = waiting_pod("a");
        let asked =
            asked.map(|partition| (PLACEMENT_GROUP_PARTITION.to_owned(), partition.to_owned()));
        pod.node_selector.extend(asked.clone());
        stage.sync(vec![], vec![pod]);
        stage.run(10, &[]);
        let launched = &stage.launches[0].labels;
        let told = launched.get(PLACEMENT_GROUP_PARTITION).map(String::as_str);
        assert_eq!(told, asked.as_ref().map(|label| label.1.as_str()), "{what}");
        let node = stage.node(0);
        // Whose Node it is only its provider id says.
        let stranger = Node { provider_id: String::new(), ..node.clone() };
        stage.apply(WatchedObject::Node(Box::new(stranger)));
        stage.run(2, &[]);
        assert!(!stage.seen_node().is_registered(), "{what}");
        stage.apply(WatchedObject::Node(Box::new(node)));
        stage.run(2, &[]);
        assert_eq!(stage.seen_node().is_registered(), at_once, "{what}");
        let instance = stage.instances.get_mut("i-0").expect("the instance");
        instance.facts = Some(Box::new(InstanceFacts { partition, ..InstanceFacts::default() }));
        stage.run(10, &[]);
        let node = stage.seen_node();
        assert!(node.is_registered(), "{what}");
        let has = |key: &str| node.labels.get(key).map(String::as_str);
        assert_eq!(has(PLACEMENT_GROUP_PARTITION), label, "{what}");
        assert_eq!(has(PLACEMENT_GROUP_ID), strategy.map(|_| "pg-1"), "{what}");
        assert_eq!(has(ZONE_ID), Some("use1-az6"), "{what}");
        let keys: Vec<&str> = node.annotations.keys().map(String::as_str).collect();
        let names = ["claim", "cluster", "initialized-at", "node-class-hash", "pool-hash"];
        assert_eq!(keys, names.map(|name| format!("outrigger.dev/{name}")), "{what}");
        let claim = &stage.launches[0].claim;
        assert_eq!(node.annotations[NODE_CLASS_HASH], claim.node_class_hash);
        assert_eq!(node.annotations[POOL_HASH], claim.pool_hash);
    }
}

/// The instance of a node that is still to be registered has ended: nothing is registered.
#[test]
fn a_node_whose_instance_is_gone_is_not_registered() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![waiting_pod("a")]);
    stage.run(10, &[]);
    let node = stage.node(0);
    let instance = stage.instances.get_mut("i-0").expect("the instance");
    instance.state = outrigger::model::instance::InstanceState::Terminated;
    stage.run(70, &[]);
    let patched = stage.count("patch_node");
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &[]);
    assert_eq!(stage.count("patch_node"), patched);
    assert_eq!(stage.launches.len(), 2, "the pod is planned for again");
}
