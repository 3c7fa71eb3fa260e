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

use super::{Stage, pending_pod};

impl Stage {
    /// The provider reports whether the class `x` is ready.
    pub(super) fn report_class(&mut self, supply: Result<(), &str>) {
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
fn pods_are_planned_once_their_node_class_is_ready() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].node_class = Some("x".into()));
    stage.report_class(Err("ImageNotFound: no image is called my-*"));
    stage.sync(vec![], vec![]);
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("a"))));
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), 0);
    let texts: Vec<(RejectionCode, String)> = stage
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
    assert_eq!(texts, [(RejectionCode::NodeClass, why.to_owned())]);
    stage.report_class(Ok(()));
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 1);
    // A class that fails later does not affect the launched instance.
    stage.report_class(Err("SubnetsNotFound: none"));
    stage.run(5, &[]);
    assert_eq!((stage.launches.len(), stage.count("terminate")), (1, 0));
}

/// A class with images for amd64, a subnet and a placement group.
fn catalog_with_placement_group(strategy: Option<PlacementGroupStrategy>) -> ClassCatalog {
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

/// The strategy of the placement group, the partition that the pod requires, the partition that EC2
/// reports, the expected label of the node, and whether it is registered before EC2 reports.
type PlacementRow =
    (Option<PlacementGroupStrategy>, Option<&'static str>, Option<u32>, Option<&'static str>, bool);

#[test]
fn node_is_labelled_with_its_placement_group_and_partition() {
    use PlacementGroupStrategy::{Cluster, Partition, Spread};
    let parts = Some(Partition(3));
    let rows: [PlacementRow; 8] = [
        (None, None, None, None, true),
        (Some(Cluster), None, None, None, true),
        (Some(Spread), None, None, None, true),
        (Some(Partition(1)), None, None, Some("1"), true),
        (parts, Some("3"), Some(3), Some("3"), true),
        (parts, None, Some(2), Some("2"), false),
        (parts, None, Some(3), Some("3"), false),
        // EC2 reports no partition: the registration must not wait without end.
        (parts, None, None, None, false),
    ];
    for (strategy, required, partition, label, at_once) in rows {
        let case = format!("{strategy:?} {required:?} {partition:?}");
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.change(|cluster| cluster.pools[0].node_class = Some("x".into()));
        let supply = Ok(catalog_with_placement_group(strategy));
        let all = [("x".into(), NodeClassSupply { supply })].into();
        stage.event(Event::ClassesChanged(Arc::new(all)));
        let mut pod = pending_pod("a");
        let required =
            required.map(|partition| (PLACEMENT_GROUP_PARTITION.to_owned(), partition.to_owned()));
        pod.node_selector.extend(required.clone());
        stage.sync(vec![], vec![pod]);
        stage.run(10, &[]);
        let launched = &stage.launches[0].labels;
        let label_of_launch = launched.get(PLACEMENT_GROUP_PARTITION).map(String::as_str);
        assert_eq!(label_of_launch, required.as_ref().map(|label| label.1.as_str()), "{case}");
        let node = stage.node(0);
        // Only the provider ID identifies the Node.
        let without_provider_id = Node { provider_id: String::new(), ..node.clone() };
        stage.apply(WatchedObject::Node(Box::new(without_provider_id)));
        stage.run(2, &[]);
        assert!(!stage.only_node().is_registered(), "{case}");
        stage.apply(WatchedObject::Node(Box::new(node)));
        stage.run(2, &[]);
        assert_eq!(stage.only_node().is_registered(), at_once, "{case}");
        let instance = stage.instances.get_mut("i-0").expect("the instance exists");
        instance.facts = Some(Box::new(InstanceFacts { partition, ..InstanceFacts::default() }));
        stage.run(10, &[]);
        let node = stage.only_node();
        assert!(node.is_registered(), "{case}");
        let has = |key: &str| node.labels.get(key).map(String::as_str);
        assert_eq!(has(PLACEMENT_GROUP_PARTITION), label, "{case}");
        assert_eq!(has(PLACEMENT_GROUP_ID), strategy.map(|_| "pg-1"), "{case}");
        assert_eq!(has(ZONE_ID), Some("use1-az6"), "{case}");
        let keys: Vec<&str> = node.annotations.keys().map(String::as_str).collect();
        let names = ["claim", "cluster", "initialized-at", "node-class-hash", "pool-hash"];
        assert_eq!(keys, names.map(|name| format!("outrigger.dev/{name}")), "{case}");
        let claim = &stage.launches[0].claim;
        assert_eq!(node.annotations[NODE_CLASS_HASH], claim.node_class_hash);
        assert_eq!(node.annotations[POOL_HASH], claim.pool_hash);
    }
}

/// The instance was terminated before its Node registers.
#[test]
fn node_of_a_terminated_instance_is_not_registered() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    let node = stage.node(0);
    let instance = stage.instances.get_mut("i-0").expect("the instance exists");
    instance.state = outrigger::model::instance::InstanceState::Terminated;
    stage.run(70, &[]);
    let patched = stage.count("patch_node");
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &[]);
    assert_eq!(stage.count("patch_node"), patched);
    assert_eq!(stage.launches.len(), 2, "the pod is planned for again");
}
