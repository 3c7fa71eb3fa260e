//! The effect of node classes on plans, through the state and its snapshots.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use outrigger::catalog::Catalog;
use outrigger::catalog::capacity::default_node_class;
use outrigger::catalog::discovered_memory::DiscoveredMemory;
use outrigger::catalog::instance_type_info::Gpu;
use outrigger::catalog::node_class::{
    ClassCatalog, NodeClassSupply, NotReady, RegionObservations, class_catalog,
};
use outrigger::model::affinity::TopologySpread;
use outrigger::model::cluster::Cluster;
use outrigger::model::id::{NodeClassName, ObjectKey};
use outrigger::model::instance::{Arch, CapacityType, InstanceType, OfferingKey};
use outrigger::model::labels::{
    INSTANCE_TYPE, OF_TYPES, PLACEMENT_GROUP_ID, PLACEMENT_GROUP_PARTITION, TENANCY, ZONE_ID,
};
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::disk::BlockDevice;
use outrigger::model::node_class::image::AmiFamily;
use outrigger::model::node_class::resolved::{
    FoundReservation, Image, PlacementGroup, PlacementGroupStrategy, ResolvedNodeClass, Subnet,
};
use outrigger::model::overlay::{Overlay, PriceAdjustment};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::Pool;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::reservation::{Reservation, ReservationKind};
use outrigger::model::selector::Selector;
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::{Plan, provision};
use outrigger::scheduling::RejectionCode;
use outrigger::state::State;

use super::{SHIPPED, shape};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// The shipped catalog, built separately, so that it shares no part with `SHIPPED`.
static SEPARATE: LazyLock<Arc<Catalog>> = LazyLock::new(|| Arc::new(Catalog::shipped()));

fn pool(name: &str) -> Pool {
    Pool { node_class: Some(NodeClassName::from(name)), ..Pool::new(name) }
}

fn pods(count: i64) -> Vec<WatchedObject> {
    let pod = |at: i64| {
        let mut pod = Pod {
            key: ObjectKey::new("default", format!("p{at:03}")),
            unschedulable: true,
            ..Pod::default()
        };
        pod.requests.cpu_milli = 100 + 300 * (at % 5);
        pod.requests.memory = (at % 7 + 1) << 28;
        pod.requests.pods = 1;
        WatchedObject::Pod(Box::new(pod))
    };
    (0..count).map(pod).collect()
}

fn state(pools: Vec<Pool>, overlays: Vec<Overlay>, pods: Vec<WatchedObject>) -> State {
    let cluster = Cluster { pools, overlays, ..Cluster::default() };
    State::offline(Arc::new(cluster), SHIPPED.1.clone(), pods, NOW)
}

/// Applies class catalogs or reasons by class name.
fn apply_catalogs(state: &mut State, all: &[(&str, Result<Arc<Catalog>, &str>)]) {
    let one = |(name, supply): &(&str, Result<Arc<Catalog>, &str>)| {
        let supply = match supply {
            Ok(catalog) => {
                Ok(ClassCatalog { catalog: Arc::clone(catalog), images: [].into(), found: None })
            }
            Err(why) => Err(NotReady::Condition((*why).to_owned())),
        };
        (NodeClassName::from(*name), NodeClassSupply { supply })
    };
    state.apply_class_supplies(Arc::new(all.iter().map(one).collect()));
}

fn plan_of(state: &State) -> Plan {
    let plan = provision(&state.snapshot(NOW), NOW);
    assert_eq!(plan.findings, Vec::<String>::new());
    plan
}

fn offerings(plan: &Plan) -> Vec<&OfferingKey> {
    let all = plan.launches.iter().flat_map(|own| &own.offerings);
    all.map(|(own, _)| own).collect()
}

fn zones(plan: &Plan) -> String {
    let all: BTreeSet<&str> = offerings(plan).iter().map(|own| own.zone.as_str()).collect();
    let short = all.into_iter().map(|own| own.trim_start_matches("us-east-1"));
    short.collect()
}

/// Returns code and text of the first reason of the first unschedulable pod.
fn reason(plan: &Plan) -> (RejectionCode, String) {
    let own = &plan.unplaced.first().expect("an unschedulable pod").reasons[0];
    (own.code, own.rejection_text())
}

fn image(arch: Arch) -> Image {
    Image {
        id: arch.as_str().into(),
        name: String::new(),
        arch,
        variants: Vec::new(),
        created: None,
        deprecated: false,
    }
}

/// Subnets in zones a and b, and images for all types.
fn resolved() -> ResolvedNodeClass {
    let subnet = |zone: &str, id: &str| Subnet {
        id: format!("subnet-{zone}"),
        zone: format!("us-east-1{zone}").into(),
        zone_id: id.into(),
        free: 100,
    };
    ResolvedNodeClass {
        images: vec![image(Arch::Amd64), image(Arch::Arm64)],
        subnets: vec![subnet("a", "use1-az6"), subnet("b", "use1-az1")],
        ..ResolvedNodeClass::default()
    }
}

fn catalog_of(class: &NodeClass, resolved: Option<&ResolvedNodeClass>) -> Arc<Catalog> {
    let (region, base) = &*SHIPPED;
    let none = RegionObservations {
        memory: &DiscoveredMemory::default(),
        shifted_zones: &BTreeSet::new(),
    };
    class_catalog(region, base, class, resolved, none).catalog
}

/// A class catalog that equals the region catalog gives the same plan, byte by byte.
#[test]
fn class_catalog_equal_to_the_region_catalog_changes_no_plan() {
    let cheaper = Overlay {
        name: "x".into(),
        requirements: Requirements::from_iter([(
            "karpenter.k8s.aws/instance-family",
            Requirement::is_in(["m7i"]),
        )]),
        price: PriceAdjustment::parse("-30%").ok(),
        ..Overlay::default()
    };
    for overlays in [vec![], vec![cheaper]] {
        for count in [1, 10, 150] {
            let pools = vec![pool("a"), pool("b"), Pool::new("c")];
            let mut state = state(pools, overlays.clone(), pods(count));
            let before = plan_of(&state);
            assert!(!before.launches.is_empty());
            assert!(!Arc::ptr_eq(&SHIPPED.1, &SEPARATE));
            apply_catalogs(
                &mut state,
                &[("a", Ok(SHIPPED.1.clone())), ("b", Ok(SEPARATE.clone()))],
            );
            assert_eq!(format!("{before:?}"), format!("{:?}", plan_of(&state)));
        }
    }
}

/// Nodes have the pod limits, zones and prices of the class. Other pools are not affected.
#[test]
fn pools_use_the_catalog_of_their_node_class() {
    let mut few = default_node_class();
    few.kubelet.max_pods = Some(1);
    let mut state = state(vec![pool("a")], vec![], pods(10));
    assert_ne!(plan_of(&state).launches.len(), 10);
    apply_catalogs(&mut state, &[("a", Ok(catalog_of(&few, Some(&resolved()))))]);
    let plan = plan_of(&state);
    assert_eq!(plan.launches.len(), 10);
    assert_eq!(zones(&plan), "ab");
    for (key, price) in plan.launches.iter().flat_map(|own| &own.offerings) {
        let listed = SHIPPED.1.offering(key).map(|own| own.price);
        assert_eq!(listed, Some(*price), "{key}");
    }
    // A new configuration keeps the class catalog.
    let mut cluster = Cluster::clone(&state.cluster);
    cluster.pools.push(Pool::new("other"));
    cluster.pools[1].weight = 100;
    state.apply_configuration(Arc::new(cluster));
    assert_ne!(plan_of(&state).launches.len(), 10);
    assert_eq!(state.catalog_of(&"other".into()), &*SHIPPED.1);
    assert_ne!(state.catalog_of(&"a".into()), &*SHIPPED.1);
    // New prices keep it too.
    state.apply_catalog(SEPARATE.clone());
    assert_ne!(state.catalog_of(&"a".into()), &*SHIPPED.1);
}

#[test]
fn pool_of_an_unready_node_class_launches_nothing_and_has_a_reason() {
    let why = "SubnetsNotFound: no subnet has the tag discovery=one";
    let mut fixed = pool("a");
    fixed.name = "fixed".into();
    fixed.replicas = Some(2);
    let mut state = state(vec![pool("a"), fixed], vec![], pods(3));
    apply_catalogs(&mut state, &[("a", Err(why)), ("b", Ok(SHIPPED.1.clone()))]);
    let plan = plan_of(&state);
    assert_eq!((plan.launches.len(), plan.unplaced.len()), (0, 3));
    let expected = format!("node class \"a\" is not ready: {why}");
    assert_eq!(reason(&plan), (RejectionCode::NodeClass, expected.clone()));
    let short = &plan.short[0];
    assert_eq!((short.missing, short.reasons[0].rejection_text()), (2, expected));
    // A class that the provider does not know yet, because it reads the configuration later.
    apply_catalogs(&mut state, &[]);
    let expected = "node class \"a\" is not ready: nothing is known of it yet".to_owned();
    assert_eq!(reason(&plan_of(&state)), (RejectionCode::NodeClass, expected));
    // Text of the provider is truncated.
    let long = "x".repeat(100_000);
    apply_catalogs(&mut state, &[("a", Err(&long))]);
    assert!(reason(&plan_of(&state)).1.len() < 4_000);
    // Another pool takes the pods.
    let mut cluster = Cluster::clone(&state.cluster);
    cluster.pools.push(pool("b"));
    state.apply_configuration(Arc::new(cluster));
    apply_catalogs(&mut state, &[("a", Err(why)), ("b", Ok(SHIPPED.1.clone()))]);
    let plan = plan_of(&state);
    let pools: Vec<&str> = plan.launches.iter().map(|own| own.pool.as_str()).collect();
    assert_eq!((pools, plan.unplaced.len()), (vec!["b"], 0));
    apply_catalogs(&mut state, &[("a", Ok(SHIPPED.1.clone())), ("b", Err(why))]);
    assert_eq!(plan_of(&state).unplaced, []);
    assert_eq!(plan_of(&state).short, []);
}

/// Claims of an unready class still use the last catalog of the class.
#[test]
fn unready_node_class_keeps_its_last_catalog() {
    let mut few = default_node_class();
    few.kubelet.max_pods = Some(2);
    let own = catalog_of(&few, None);
    let mut state = state(vec![pool("a")], vec![], pods(1));
    apply_catalogs(&mut state, &[("a", Ok(own.clone()))]);
    apply_catalogs(&mut state, &[("a", Err("gone"))]);
    assert_eq!(state.catalog_of(&"a".into()), &*own);
    apply_catalogs(&mut state, &[]);
    assert_eq!(state.catalog_of(&"a".into()), &*SHIPPED.1);
}

/// A requirement of a zone id selects that zone.
#[test]
fn zone_id_requirement_selects_its_zone() {
    let id = |own: Requirement| Requirements::from_iter([(ZONE_ID, own)]);
    let rows = [
        (None, "ab"),
        (Some(Requirement::is_in(["use1-az1"])), "b"),
        (Some(Requirement::is_in(["use1-az1", "use1-az6"])), "ab"),
        (Some(Requirement::not_in(["use1-az1"])), "a"),
        (Some(Requirement::exists()), "ab"),
        (Some(Requirement::is_in(["use1-az9"])), ""),
    ];
    let own = catalog_of(&default_node_class(), Some(&resolved()));
    for (wanted, expect) in rows {
        let mut pod = pods(1);
        if let WatchedObject::Pod(pod) = &mut pod[0] {
            pod.node_affinity.extend(wanted.clone().map(id));
        }
        let mut by_pod = state(vec![pool("a")], vec![], pod);
        apply_catalogs(&mut by_pod, &[("a", Ok(own.clone()))]);
        assert_eq!(zones(&plan_of(&by_pod)), expect, "{wanted:?}");
        let mut constrained = pool("a");
        constrained.requirements.add_all(&wanted.clone().map(id).unwrap_or_default());
        let mut by_pool = state(vec![constrained], vec![], pods(1));
        apply_catalogs(&mut by_pool, &[("a", Ok(own.clone()))]);
        assert_eq!(zones(&plan_of(&by_pool)), expect, "{wanted:?}");
    }
}

/// Only pools of their class use reservations. The state knows them for counting and pricing.
#[test]
fn reservations_are_used_only_by_pools_of_their_node_class() {
    let mut found = resolved();
    found.reservations = vec![FoundReservation {
        instance_type: "m7i.2xlarge".into(),
        zone: "us-east-1a".into(),
        reservation: Reservation::new("cr-1", 2),
        is_usable: true,
    }];
    let own = catalog_of(&default_node_class(), Some(&found));
    let other = catalog_of(&default_node_class(), Some(&resolved()));
    for (name, reserved) in [("a", true), ("b", false), ("none", false)] {
        let only = match name {
            "none" => Pool::new(name),
            name => pool(name),
        };
        let mut state = state(vec![only], vec![], pods(3));
        apply_catalogs(&mut state, &[("a", Ok(own.clone())), ("b", Ok(other.clone()))]);
        let plan = plan_of(&state);
        let key = offerings(&plan)[0].clone();
        let is_reserved = key.capacity_type == CapacityType::Reserved;
        assert_eq!(is_reserved, reserved, "{name}");
        assert!(state.catalog.offering(&key).is_some(), "{name}");
        assert_eq!(state.snapshot(NOW).reservations.len(), 1, "{name}");
        // They disappear with the class that had them.
        apply_catalogs(&mut state, &[("a", Ok(other.clone())), ("b", Ok(other.clone()))]);
        assert_eq!(state.catalog, SHIPPED.1);
        assert_eq!(state.snapshot(NOW).reservations.len(), 0);
    }
}

/// Plans one pod with this node selector and resource request.
fn plan_for(labels: &[(&str, &str)], resource: Option<(&str, i64)>, class: &Arc<Catalog>) -> Plan {
    let mut pod = pods(1);
    if let WatchedObject::Pod(pod) = &mut pod[0] {
        let pairs = labels.iter();
        pod.node_selector =
            pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        if let Some((name, amount)) = resource {
            pod.requests.extended.insert(name.to_owned(), amount);
        }
    }
    let mut state = state(vec![pool("a")], vec![], pod);
    apply_catalogs(&mut state, &[("a", Ok(class.clone()))]);
    plan_of(&state)
}

/// A pod can select every label that types have, alone and together with the type. Labels that no
/// type has are unschedulable.
#[test]
fn pods_can_select_every_label_of_instance_types() {
    let class = catalog_of(&default_node_class(), Some(&resolved()));
    let mut lacking = Vec::new();
    for key in OF_TYPES.into_iter().chain([ZONE_ID]) {
        let has = |it: &&InstanceType| {
            let own = it.requirements.get(key).and_then(|own| own.any_value());
            own.is_some() && it.offerings.iter().any(|own| own.available)
        };
        let Some(it) = class.types().find(has) else {
            let plan = plan_for(&[(key, "true")], None, &class);
            assert_eq!(plan.launches.len(), 0, "{key}");
            lacking.push(key);
            continue;
        };
        let value = it.requirements.get(key).and_then(|own| own.any_value());
        let value = value.expect("the type has a value");
        let selected = [(key, value.as_str()), (INSTANCE_TYPE, it.name.as_str())];
        for selected in [&selected[..1], &selected[..]] {
            let plan = plan_for(selected, None, &class);
            assert_eq!(plan.launches.len(), 1, "{selected:?}");
            for own in offerings(&plan) {
                let it = class.get(own.instance_type.as_str()).expect("a type");
                let own = own.zone.as_str();
                let of_type = it.requirements.get(key).expect("defined");
                assert!(of_type.allows_value(&value), "{own} {selected:?}");
            }
        }
    }
    // Labels that no type has, or that the shipped table lacks.
    assert_eq!(
        lacking,
        [
            "node.kubernetes.io/windows-build",
            "eks.amazonaws.com/nitro-sandbox",
            "karpenter.k8s.aws/capacity-reservation-id",
            "karpenter.k8s.aws/capacity-reservation-interruptible",
            "karpenter.k8s.aws/capacity-reservation-type",
            "karpenter.k8s.aws/nitro-sandbox",
        ]
    );
}

/// A resource, the requested amount, and whether a type of the class has it.
#[test]
fn device_requests_select_types_with_the_resource() {
    let linux = catalog_of(&default_node_class(), Some(&resolved()));
    let mut windows = default_node_class();
    windows.family = AmiFamily::Windows2022;
    let windows = catalog_of(&windows, Some(&resolved()));
    // The shipped catalog has none.
    let mut region = SHIPPED.0.clone();
    let gpu = Gpu { name: "Radeon".into(), manufacturer: "AMD".into(), count: 1, memory_mib: 8192 };
    let mut own = shape("g5.xlarge");
    (own.name, own.gpus) = ("g4ad.xlarge".into(), vec![gpu]);
    region.shapes.insert("g4ad.xlarge".into(), Arc::new(own));
    let zone = "us-east-1a".into();
    region.sold.insert("g4ad.xlarge".into(), [zone].into());
    region.list.insert("g4ad.xlarge".into(), region.list["g5.xlarge"]);
    let base = Arc::new(region.catalog());
    let none = RegionObservations {
        memory: &DiscoveredMemory::default(),
        shifted_zones: &BTreeSet::new(),
    };
    let amd = class_catalog(&region, &base, &default_node_class(), Some(&resolved()), none).catalog;
    let rows = [
        ("nvidia.com/gpu", 1, &linux, true),
        ("amd.com/gpu", 1, &amd, true),
        ("aws.amazon.com/neuron", 1, &linux, true),
        ("aws.amazon.com/neuroncore", 2, &linux, true),
        ("vpc.amazonaws.com/efa", 1, &linux, true),
        ("vpc.amazonaws.com/pod-eni", 1, &linux, true),
        ("vpc.amazonaws.com/PrivateIPv4Address", 1, &windows, true),
        ("vpc.amazonaws.com/PrivateIPv4Address", 1, &linux, false),
        // The shipped catalog has none.
        ("habana.ai/gaudi", 1, &linux, false),
        ("nvidia.com/gpu", 1_000, &linux, false),
    ];
    for (name, amount, class, launches) in rows {
        let plan = plan_for(&[], Some((name, amount)), class);
        assert_eq!(plan.launches.len(), usize::from(launches), "{name}");
        for own in offerings(&plan) {
            let it = class.get(own.instance_type.as_str()).expect("a type");
            assert!(it.allocatable.get(name) >= amount, "{own}");
        }
    }
    // A small burstable type has no trunk for pod interfaces.
    let t3 = (INSTANCE_TYPE, "t3.large");
    let plan = plan_for(&[t3], Some(("vpc.amazonaws.com/pod-eni", 1)), &linux);
    assert_eq!(plan.launches.len(), 0);
    // Pods can require or exclude flex types.
    for flex in ["true", "false"] {
        let key = "karpenter.k8s.aws/instance-capability-flex";
        let plan = plan_for(&[(key, flex)], None, &linux);
        let own = offerings(&plan);
        let is_flex = |own: &&OfferingKey| own.instance_type.as_str().contains("-flex.");
        assert!(!own.is_empty() && own.iter().all(|own| is_flex(own) == (flex == "true")));
    }
}

/// A type without a price is unavailable, and the price of an overlay does not change that.
#[test]
fn overlay_price_does_not_make_an_unpriced_type_available() {
    let mut unpriced = SHIPPED.0.clone();
    unpriced.list.remove("m5.large");
    let cheap = Overlay {
        name: "x".into(),
        requirements: Requirements::from_iter([(INSTANCE_TYPE, Requirement::is_in(["m5.large"]))]),
        price: PriceAdjustment::parse("-30%").ok(),
        ..Overlay::default()
    };
    for (region, overlays, launches) in
        [(&SHIPPED.0, vec![cheap.clone()], 1), (&unpriced, vec![], 0), (&unpriced, vec![cheap], 0)]
    {
        let mut pod = pods(1);
        if let WatchedObject::Pod(pod) = &mut pod[0] {
            pod.node_selector = [(INSTANCE_TYPE.to_owned(), "m5.large".to_owned())].into();
        }
        let mut state = state(vec![Pool::new("a")], overlays, pod);
        let catalog = Arc::new(region.catalog());
        assert_eq!(catalog.is_unpriced("m5.large"), launches == 0);
        assert!(!catalog.is_unpriced("m7i.large"));
        state.apply_catalog(catalog);
        assert_eq!(plan_of(&state).launches.len(), launches);
    }
}

/// The node class decides the disk of a node: local disks count only with RAID0.
#[test]
fn local_disks_count_only_with_raid0() {
    let mut striped = default_node_class();
    striped.raid0 = true;
    for (class, launches) in [(default_node_class(), 0), (striped, 1)] {
        let mut pod = pods(1);
        if let WatchedObject::Pod(pod) = &mut pod[0] {
            pod.requests.ephemeral_storage = 1_000_000_000_000;
        }
        let mut state = state(vec![pool("a")], vec![], pod);
        apply_catalogs(&mut state, &[("a", Ok(catalog_of(&class, None)))]);
        assert_eq!(plan_of(&state).launches.len(), launches);
    }
}

/// A bare metal type is launched if it is selected, or if no other type fits.
#[test]
fn bare_metal_types_are_launched_on_request() {
    let class = catalog_of(&default_node_class(), Some(&resolved()));
    let is_metal = |own: &OfferingKey| own.instance_type.as_str().ends_with(".metal");
    let plan = plan_for(&[(INSTANCE_TYPE, "m5.metal")], None, &class);
    assert!(!offerings(&plan).is_empty() && offerings(&plan).into_iter().all(is_metal));
    let metal = ("karpenter.k8s.aws/instance-size", "metal");
    for least in [None, Some(2)] {
        let mut constrained = pool("a");
        let mut size = Requirement::is_in([metal.1]);
        constrained.requirements.add(metal.0, size.clone());
        size = Requirement::exists();
        size.min_values = least;
        constrained.requirements.add(INSTANCE_TYPE, size);
        let mut state = state(vec![constrained], vec![], pods(1));
        apply_catalogs(&mut state, &[("a", Ok(class.clone()))]);
        let plan = plan_of(&state);
        assert_eq!(plan.launches.len(), 1, "{least:?}");
        let types: BTreeSet<&str> =
            offerings(&plan).iter().map(|own| own.instance_type.as_str()).collect();
        let least = usize::try_from(least.unwrap_or(1)).unwrap_or(1);
        assert!(types.len() >= least, "{types:?}");
        assert!(offerings(&plan).into_iter().all(is_metal), "{types:?}");
    }
}

/// Returns a node class with a volume of this size.
fn disk(family: AmiFamily, name: &str, gib: i64, root_volume: bool) -> NodeClass {
    let own = BlockDevice {
        name: name.into(),
        size: Some(gib << 30),
        root_volume,
        ..BlockDevice::default()
    };
    NodeClass { family, block_devices: vec![own], ..default_node_class() }
}

/// A node class, the disk requests of pods in GiB, the disk request of a daemon, the number of
/// nodes, and the number of unschedulable pods. Of 20 GiB, kube-reserved takes 1 and a tenth stays
/// free: 17 are left, of 100 GiB 89.
type Packed = (fn() -> NodeClass, &'static [i64], i64, usize, usize);

const PACKED: [Packed; 14] = [
    (default_node_class, &[1], 0, 1, 0),
    (default_node_class, &[17], 0, 1, 0),
    (default_node_class, &[18], 0, 0, 1),
    (default_node_class, &[8, 8], 0, 1, 0),
    (default_node_class, &[9, 9], 0, 2, 0),
    (default_node_class, &[10, 10, 10, 7], 0, 3, 0),
    (default_node_class, &[4, 30], 0, 1, 1),
    (default_node_class, &[4, 4], 10, 2, 0),
    (default_node_class, &[8], 10, 0, 1),
    (|| disk(AmiFamily::Al2023, "/dev/xvda", 100, false), &[45, 44], 0, 1, 0),
    (|| disk(AmiFamily::Custom, "/dev/sdb", 100, false), &[45, 44], 0, 1, 0),
    (|| disk(AmiFamily::Custom, "/dev/sdb", 100, false), &[90], 0, 0, 1),
    (|| disk(AmiFamily::Al2023, "/dev/xvdc", 100, false), &[45], 0, 0, 1),
    (|| disk(AmiFamily::Al2023, "/dev/xvdc", 100, true), &[45], 0, 1, 0),
];

#[test]
fn pods_are_packed_by_the_disk_size_of_their_node_class() {
    let asking = |name: String, gib: i64| {
        let mut pod =
            Pod { key: ObjectKey::new("default", name), unschedulable: true, ..Pod::default() };
        pod.requests.ephemeral_storage = gib << 30;
        pod.requests.pods = 1;
        pod
    };
    for (number, (class, wanted, daemon, nodes, left)) in PACKED.into_iter().enumerate() {
        let pods = wanted.iter().enumerate();
        let pods = pods.map(|(at, gib)| asking(format!("p{at}"), *gib));
        let mut all: Vec<WatchedObject> =
            pods.map(|own| WatchedObject::Pod(Box::new(own))).collect();
        let set =
            DaemonSet { key: ObjectKey::new("default", "d"), template: asking("d".into(), daemon) };
        all.push(WatchedObject::DaemonSet(Box::new(set)));
        let mut state = state(vec![pool("a")], vec![], all);
        let catalog = catalog_of(&class(), Some(&resolved()));
        apply_catalogs(&mut state, &[("a", Ok(catalog.clone()))]);
        let plan = plan_of(&state);
        let packed = (plan.launches.len(), plan.unplaced.len());
        assert_eq!(packed, (nodes, left), "case {number}");
        for own in offerings(&plan) {
            let it = catalog.get(own.instance_type.as_str()).expect("a type");
            let least = wanted.iter().min().copied().unwrap_or(0) + daemon;
            assert!(it.allocatable.ephemeral_storage >= least << 30, "{own}");
        }
    }
}

/// Returns the values of a label of all launches of a plan, sorted; `-` if it is absent.
fn launch_labels(plan: &Plan, key: &str) -> String {
    let value = |own: &outrigger::scheduling::NewNodeClaim| own.labels.get(key).cloned();
    let all = plan.launches.iter().map(value);
    let mut all: Vec<String> = all.map(|own| own.unwrap_or_else(|| "-".into())).collect();
    all.sort();
    all.join(" ")
}

/// A label, the pool's requirement of it, the pod's node selector, and the label of the launch; an
/// empty string means no launch.
#[test]
fn launch_labels_contain_tenancy_and_partition() {
    let is_in = |all: &[&str]| Some(Requirement::is_in(all.iter().copied()));
    let rows = [
        (TENANCY, None, None, "-"),
        (TENANCY, None, Some("dedicated"), "dedicated"),
        (TENANCY, None, Some("default"), "default"),
        (TENANCY, is_in(&["dedicated"]), None, "dedicated"),
        (TENANCY, is_in(&["default"]), None, "default"),
        (TENANCY, is_in(&["dedicated", "default"]), None, "default"),
        (TENANCY, is_in(&["default"]), Some("dedicated"), ""),
        (TENANCY, is_in(&["dedicated"]), Some("default"), ""),
        (TENANCY, is_in(&["host"]), None, ""),
        (PLACEMENT_GROUP_PARTITION, None, None, "-"),
        (PLACEMENT_GROUP_PARTITION, None, Some("2"), "2"),
        (PLACEMENT_GROUP_PARTITION, None, Some("4"), ""),
        (PLACEMENT_GROUP_PARTITION, is_in(&["2"]), None, "2"),
        (PLACEMENT_GROUP_PARTITION, is_in(&["1", "2"]), Some("1"), "1"),
        (PLACEMENT_GROUP_PARTITION, is_in(&["1", "2"]), Some("3"), ""),
        (PLACEMENT_GROUP_PARTITION, Some(Requirement::not_in(["3"])), None, "2"),
    ];
    let class = catalog_of(
        &default_node_class(),
        Some(&with_placement_group(PlacementGroupStrategy::Partition(3))),
    );
    for (key, required, selected, expect) in rows {
        let what = format!("{key} {required:?} {selected:?}");
        let mut own = pool("a");
        let required = required.map(|own| Requirements::from_iter([(key, own)]));
        own.requirements.add_all(&required.unwrap_or_default());
        let mut pod = pods(1);
        if let WatchedObject::Pod(pod) = &mut pod[0] {
            let selected = selected.map(|value| (key.to_owned(), value.to_owned()));
            pod.node_selector.extend(selected);
        }
        let mut state = state(vec![own], vec![], pod);
        apply_catalogs(&mut state, &[("a", Ok(class.clone()))]);
        assert_eq!(launch_labels(&plan_of(&state), key), expect, "{what}");
    }
}

fn with_placement_group(strategy: PlacementGroupStrategy) -> ResolvedNodeClass {
    ResolvedNodeClass {
        placement_group: Some(PlacementGroup { id: "pg-1".into(), strategy }),
        ..resolved()
    }
}

/// Returns the number of planned pods in each of three partitions.
fn by_partition(plan: &Plan) -> [usize; 3] {
    ["1", "2", "3"].map(|partition| {
        let there = |own: &&outrigger::scheduling::NewNodeClaim| {
            let label = own.labels.get(PLACEMENT_GROUP_PARTITION);
            label.map(String::as_str) == Some(partition)
        };
        let there = plan.launches.iter().filter(there);
        there.map(|own| own.pods.len()).sum()
    })
}

/// Pods are spread over the partitions that the pool allows. Pods that select different partitions
/// share no node. Pods can select a group by its id.
#[test]
fn pods_are_spread_over_placement_group_partitions() {
    let class = catalog_of(
        &default_node_class(),
        Some(&with_placement_group(PlacementGroupStrategy::Partition(3))),
    );
    let all = |allowed: &[&str], change: fn(usize, &mut Pod)| {
        let mut own = pool("a");
        let allowed = Requirement::is_in(allowed.iter().copied());
        own.requirements.add(PLACEMENT_GROUP_PARTITION, allowed);
        let mut pods = pods(6);
        for (at, pod) in pods.iter_mut().enumerate() {
            if let WatchedObject::Pod(pod) = pod {
                change(at, pod);
            }
        }
        let mut state = state(vec![own], vec![], pods);
        apply_catalogs(&mut state, &[("a", Ok(class.clone()))]);
        plan_of(&state)
    };
    let spread = |_, pod: &mut Pod| {
        pod.labels.insert("app".to_owned(), "a".to_owned());
        pod.spread = vec![TopologySpread {
            selector: Some(Selector::from_labels(&pod.labels)),
            topology_key: PLACEMENT_GROUP_PARTITION.to_owned(),
            max_skew: 1,
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
            is_hard: true,
        }];
    };
    assert_eq!(by_partition(&all(&["1", "2", "3"], spread)), [2, 2, 2]);
    assert_eq!(by_partition(&all(&["1", "2"], spread)), [3, 3, 0]);
    let apart = |at: usize, pod: &mut Pod| {
        let own = if at < 2 { "1" } else { "3" };
        pod.node_selector.insert(PLACEMENT_GROUP_PARTITION.to_owned(), own.to_owned());
    };
    assert_eq!(by_partition(&all(&["1", "2", "3"], apart)), [2, 0, 4]);
    for strategy in [
        PlacementGroupStrategy::Cluster,
        PlacementGroupStrategy::Spread,
        PlacementGroupStrategy::Partition(2),
    ] {
        let class = catalog_of(&default_node_class(), Some(&with_placement_group(strategy)));
        for (id, launches) in [("pg-1", 1), ("pg-2", 0)] {
            let plan = plan_for(&[(PLACEMENT_GROUP_ID, id)], None, &class);
            assert_eq!(plan.launches.len(), launches, "{strategy:?} {id}");
        }
    }
}

/// Of reservations of one type and zone, the one without an end is used first, whatever their ids
/// are.
#[test]
fn lasting_reservation_is_used_before_one_that_ends() {
    const LASTS: (ReservationKind, bool) = (ReservationKind::Default, false);
    const ENDS: (ReservationKind, bool) = (ReservationKind::CapacityBlock, false);
    const TAKEN_BACK: (ReservationKind, bool) = (ReservationKind::Default, true);
    for (first, second) in [(LASTS, ENDS), (LASTS, TAKEN_BACK), (ENDS, TAKEN_BACK)] {
        for ids in [["cr-1", "cr-2"], ["cr-2", "cr-1"]] {
            let of =
                |(id, (kind, interruptible)): (&str, (ReservationKind, bool))| FoundReservation {
                    instance_type: "m7i.2xlarge".into(),
                    zone: "us-east-1a".into(),
                    reservation: Reservation { kind, interruptible, ..Reservation::new(id, 1) },
                    is_usable: true,
                };
            let mut found = resolved();
            let both = ids.into_iter().zip([first, second]);
            found.reservations = both.map(of).collect();
            found.reservations.sort_by(|a, b| a.reservation.id.cmp(&b.reservation.id));
            let mut state = state(vec![pool("a")], vec![], pods(1));
            let own = catalog_of(&default_node_class(), Some(&found));
            apply_catalogs(&mut state, &[("a", Ok(own))]);
            let plan = plan_of(&state);
            let used = offerings(&plan)[0].reservation.clone();
            let used = used.map(|own| own.to_string());
            assert_eq!(used.as_deref(), Some(ids[0]), "{first:?} {second:?}");
        }
    }
}
