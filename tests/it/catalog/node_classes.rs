//! The catalog of a node class in a region: images, zones, offerings, labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::capacity::default_node_class;
use outrigger::catalog::discovered_memory::DiscoveredMemory;
use outrigger::catalog::image_selection::{image_for, select_images};
use outrigger::catalog::instance_type_info::{InstanceTypeSpec, NetworkCard};
use outrigger::catalog::node_class::{
    ClassCatalog, NodeClassSupply, NotReady, RegionObservations, class_catalog, is_compatible,
};
use outrigger::catalog::region::Region;
use outrigger::model::instance::{Arch, CapacityType};
use outrigger::model::labels;
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::disk::BlockDevice;
use outrigger::model::node_class::image::AmiFamily;
use outrigger::model::node_class::network::{ConnectionTracking, NetworkInterface};
use outrigger::model::node_class::resolved::{
    Cause, ConditionKind, FoundReservation, Image, NodeClassCondition, PlacementGroup,
    PlacementGroupStrategy, ResolvedNodeClass, Subnet, Variant,
};
use outrigger::model::reservation::Reservation;

use super::{MIB, SHIPPED, get, label, shape, sold};

/// An image from `id arch variants day name`, deprecated with a `!` in front, without a date where
/// the day is `-`.
fn image(text: &str) -> Image {
    let words: Vec<&str> = text.trim_start_matches('!').split(' ').collect();
    let variant = |letter| match letter {
        's' => Variant::Standard,
        'g' => Variant::Nvidia,
        'n' => Variant::Neuron,
        other => panic!("{other}"),
    };
    let day = |days: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * days);
    Image {
        id: words[0].to_owned(),
        name: words.get(4).copied().unwrap_or_default().to_owned(),
        arch: if words[1] == "arm" { Arch::Arm64 } else { Arch::Amd64 },
        variants: words[2].trim_matches('*').chars().map(variant).collect(),
        created: words[3].parse().ok().map(day),
        deprecated: text.starts_with('!'),
    }
}

fn images(texts: &[&str]) -> Vec<Image> {
    select_images(texts.iter().map(|text| image(text)).collect())
}

/// Found images, and the selected ones: ids with variants. Spec §2.3 and the cases of §12.4.
#[test]
fn one_image_is_selected_for_each_kind_of_hardware() {
    let rows: [(&[&str], &str); 13] = [
        (&[], ""),
        // One of each kind: the newest first, then by id.
        (&["a amd s 1", "b arm s 1", "c amd g 2"], "c:g a:s b:s"),
        // The newest of a kind. An image without a date is the oldest.
        (&["a amd s 1", "b amd s 2"], "b:s"),
        (&["a amd s 1", "b amd s -"], "a:s"),
        // Non-deprecated images precede newer ones (spec §10, 10). The newer of two deprecated
        // ones.
        (&["a amd s 1", "!b amd s 2"], "a:s"),
        (&["!a amd s 1", "!b amd s 2"], "b:s"),
        (&["!a amd s 1"], "a:s"),
        // Of two with equal dates the later name, then the first one found.
        (&["a amd s 1 x", "b amd s 1 y"], "b:s"),
        (&["b amd s 1 x", "a amd s 1 x"], "b:s"),
        (&["!a amd s 1 x", "!b amd s 1 y"], "b:s"),
        // Several ids of one architecture without a variant collapse to one (spec §10, 9).
        (&["a amd * 1", "b amd * 2", "c arm * 1"], "b: c:"),
        // One image for two kinds, one of which a newer image takes.
        (&["a amd gn 1", "b amd n 2"], "b:n a:g"),
        // Two terms find the same image.
        (&["a amd s 1", "a amd s 1"], "a:s"),
    ];
    for (found, expect) in rows {
        let used = images(found).into_iter().map(|own| {
            let letter = |own: &Variant| match own {
                Variant::Standard => 's',
                Variant::Nvidia => 'g',
                Variant::Neuron => 'n',
            };
            format!("{}:{}", own.id, own.variants.iter().map(letter).collect::<String>())
        });
        assert_eq!(used.collect::<Vec<_>>().join(" "), expect, "{found:?}");
    }
}

/// Images in order, and the image of each type: the first compatible one (spec §10, 8 and 12).
#[test]
fn instance_type_gets_the_first_compatible_image() {
    let types = ["m5.large", "c6g.large", "g5.xlarge", "g5g.xlarge", "trn1.2xlarge"];
    let rows: [(&[&str], [&str; 5]); 6] = [
        // Amazon Linux 2023.
        (
            &["s amd s 1", "g amd g 1", "n amd n 1", "t arm s 1", "h arm g 1"],
            ["s", "t", "g", "h", "n"],
        ),
        // Bottlerocket: Neuron devices with the standard image of x86.
        (&["s amd sn 1", "g amd g 1", "t arm s 1", "h arm g 1"], ["s", "t", "g", "h", "s"]),
        // Amazon Linux 2: one image for GPUs and Neuron devices.
        (&["s amd s 1", "g amd gn 1", "t arm s 1"], ["s", "t", "g", "-", "g"]),
        // Types of a missing variant have no image (spec §10, 11).
        (&["s amd s 1", "t arm s 1"], ["s", "t", "-", "-", "-"]),
        // A custom image fits every type of its architecture.
        (&["x amd * 1"], ["x", "-", "x", "-", "x"]),
        // In the order of their dates, not by the closest fit.
        (&["s amd s 1", "x amd * 2", "g amd g 3"], ["x", "-", "g", "-", "x"]),
    ];
    for (found, expect) in rows {
        let all = images(found);
        let got = types.map(|name| {
            let own = image_for(&all, &shape(name));
            own.map_or("-", |own| &own.id).to_owned()
        });
        assert_eq!(got, expect, "{found:?}");
    }
}

fn subnet(zone: &str, id: &str) -> Subnet {
    Subnet {
        id: format!("subnet-{zone}-{id}"),
        zone: format!("us-east-1{zone}").into(),
        zone_id: id.to_owned(),
        free: 100,
    }
}

/// Subnets in zones a and b, and images for everything except Arm types with GPUs.
fn resolved() -> ResolvedNodeClass {
    ResolvedNodeClass {
        images: images(&["s amd s 1", "g amd g 1", "n amd n 1", "t arm s 1"]),
        subnets: vec![subnet("a", "use1-az6"), subnet("b", "use1-az1"), subnet("b", "use1-az1")],
        ..ResolvedNodeClass::default()
    }
}

fn catalog_of(class: &NodeClass, resolved: Option<&ResolvedNodeClass>) -> ClassCatalog {
    let (region, base) = &*SHIPPED;
    let none = RegionObservations {
        memory: &DiscoveredMemory::default(),
        shifted_zones: &BTreeSet::new(),
    };
    class_catalog(region, base, class, resolved, none)
}

/// Without a resolved class, a plain class leaves the catalog unchanged and shares it.
#[test]
fn plain_node_class_shares_the_region_catalog() {
    let mut class = default_node_class();
    class.family = AmiFamily::Custom;
    let own = catalog_of(&class, None);
    assert!(Arc::ptr_eq(&own.catalog, &SHIPPED.1));
    assert_eq!(own.images, BTreeMap::new());
    // With Amazon Linux 2023, all types are shared except the incompatible ones.
    let own = catalog_of(&default_node_class(), None);
    for it in own.catalog.types() {
        let same = std::ptr::eq(it, get(&SHIPPED.1, it.name.as_str()));
        assert_eq!(same, !it.name.as_str().starts_with("a1."), "{}", it.name);
    }
    class.reserved_enis = 1;
    assert_ne!(catalog_of(&class, None).catalog, SHIPPED.1);
}

/// Zones, zone ids and offerings are those of the class's subnets. Every type remains known.
#[test]
fn node_class_offers_only_the_zones_of_its_subnets() {
    let own = catalog_of(&default_node_class(), Some(&resolved()));
    let it = get(&own.catalog, "m5.large");
    assert_eq!(label(it, labels::ZONE), "us-east-1a us-east-1b");
    assert_eq!(label(it, labels::ZONE_ID), "use1-az1 use1-az6");
    assert_eq!(sold(it), "a:on-demand a:spot b:on-demand b:spot");
    // Available in zones b, c and f.
    let it = get(&own.catalog, "trn1.32xlarge");
    assert_eq!(label(it, labels::ZONE), "us-east-1b");
    assert_eq!(label(it, labels::ZONE_ID), "use1-az1");
    assert_eq!(own.catalog.len(), 1340);
    let ids = own.catalog.zone_ids();
    assert_eq!(ids.get("us-east-1a").map(String::as_str), Some("use1-az6"));
    // No common zone: the type has no offerings, and its zone requirement is impossible.
    let mut nowhere = resolved();
    nowhere.subnets = vec![subnet("z", "use1-az9")];
    let own = catalog_of(&default_node_class(), Some(&nowhere));
    let it = get(&own.catalog, "m5.large");
    assert_eq!((sold(it).as_str(), &*label(it, labels::ZONE)), ("", "impossible"));
}

#[test]
fn types_without_an_image_have_no_offerings() {
    let own = catalog_of(&default_node_class(), Some(&resolved()));
    let image = |name: &str| own.images.get(name).map(String::as_str);
    assert_eq!(image("m5.large"), Some("s"));
    assert_eq!(image("c6g.large"), Some("t"));
    assert_eq!(image("g5.xlarge"), Some("g"));
    assert_eq!(image("g5g.xlarge"), None);
    assert_eq!(sold(get(&own.catalog, "g5g.xlarge")), "");
    assert_ne!(sold(get(&own.catalog, "c6g.large")), "");
}

/// Windows runs only on x86, and its labels show the build.
#[test]
fn windows_nodes_have_windows_labels_and_only_x86_types() {
    let builds = [
        (AmiFamily::Windows2019, "10.0.17763"),
        (AmiFamily::Windows2022, "10.0.20348"),
        (AmiFamily::Windows2025, "10.0.26100"),
    ];
    for (family, build) in builds {
        let mut class = default_node_class();
        class.family = family;
        for found in [None, Some(&resolved())] {
            let own = catalog_of(&class, found);
            let it = get(&own.catalog, "m5.large");
            assert_eq!(label(it, labels::OS), "windows");
            assert_eq!(label(it, labels::WINDOWS_BUILD), build);
            assert_eq!(it.capacity.pods, 110);
            assert_ne!(sold(it), "");
            let arm = get(&own.catalog, "c6g.large");
            assert_eq!(label(arm, labels::OS), "impossible");
            assert_eq!(sold(arm), "");
        }
    }
    let it = get(&SHIPPED.1, "m5.large");
    assert_eq!(
        (label(it, labels::OS), label(it, labels::WINDOWS_BUILD)),
        ("linux".into(), "-".into())
    );
}

/// Zones under a zonal shift have no offerings, and they remain zones of the class.
#[test]
fn zones_under_zonal_shift_have_no_offerings() {
    let (region, base) = &*SHIPPED;
    let shifted = ["use1-az6".to_owned()].into();
    let with = RegionObservations { memory: &DiscoveredMemory::default(), shifted_zones: &shifted };
    let own = class_catalog(region, base, &default_node_class(), Some(&resolved()), with);
    let it = get(&own.catalog, "m5.large");
    assert_eq!(sold(it), "b:on-demand b:spot");
    assert_eq!(label(it, labels::ZONE), "us-east-1a us-east-1b");
}

/// A class has only its own reservations. Those of types that it cannot launch, and in zones under
/// a zonal shift, are unavailable.
#[test]
fn node_class_has_only_its_own_reservations() {
    let found = |name: &str, zone: &str, id: &str| FoundReservation {
        instance_type: name.into(),
        zone: format!("us-east-1{zone}").into(),
        reservation: Reservation::new(id, 3),
        is_usable: true,
    };
    let mut all = resolved();
    all.reservations = vec![
        found("m5.large", "a", "cr-1"),
        found("m5.large", "b", "cr-2"),
        found("m5.large", "c", "cr-3"),
        found("a1.large", "a", "cr-4"),
        found("no.such", "a", "cr-5"),
        FoundReservation { is_usable: false, ..found("m5.large", "a", "cr-6") },
    ];
    let (region, base) = &*SHIPPED;
    let shifted = ["use1-az1".to_owned()].into();
    let with = RegionObservations { memory: &DiscoveredMemory::default(), shifted_zones: &shifted };
    let own = class_catalog(region, base, &default_node_class(), Some(&all), with);
    let it = get(&own.catalog, "m5.large");
    assert_eq!(sold(it), "a:on-demand a:reserved a:spot");
    assert_eq!(label(it, labels::CAPACITY_TYPE), "on-demand reserved spot");
    let first = &it.offerings[0];
    assert_eq!(first.capacity_type, CapacityType::Reserved);
    assert!((first.price.usd_per_h() - 0.096 / 1e7).abs() < 1e-12);
    assert_eq!(sold(get(&own.catalog, "a1.large")), "");
    let ids: Vec<&str> = own.catalog.reservations().keys().map(|id| id.as_str()).collect();
    assert_eq!(ids, ["cr-1", "cr-2", "cr-4"]);
    assert_eq!(label(get(&own.catalog, "m5.xlarge"), labels::RESERVATION_ID), "-");
}

/// Nodes of a class with a placement group have its label, and the label of a partition.
#[test]
fn placement_group_and_partition_are_labels() {
    let rows = [
        (None, "-", "-"),
        (Some(PlacementGroupStrategy::Cluster), "pg-1", "-"),
        (Some(PlacementGroupStrategy::Spread), "pg-1", "-"),
        (Some(PlacementGroupStrategy::Partition(3)), "pg-1", "1 2 3"),
    ];
    for (strategy, id, partition) in rows {
        let mut found = resolved();
        found.placement_group =
            strategy.map(|strategy| PlacementGroup { id: "pg-1".into(), strategy });
        let own = catalog_of(&default_node_class(), Some(&found));
        let it = get(&own.catalog, "m5.large");
        assert_eq!(label(it, labels::PLACEMENT_GROUP_ID), id, "{strategy:?}");
        assert_eq!(label(it, labels::PLACEMENT_GROUP_PARTITION), partition);
    }
    assert_eq!(label(get(&SHIPPED.1, "m5.large"), labels::PLACEMENT_GROUP_ID), "-");
    // The tenancy label has both values.
    let it = get(&SHIPPED.1, "m5.large");
    assert_eq!(label(it, "aws/tenancy"), "dedicated default");
}

/// Memory that registered nodes report applies only to their type and image, and only if it is
/// plausible.
#[test]
fn discovered_memory_is_kept_by_type_and_image() {
    let mut memory = DiscoveredMemory::default();
    let m5 = "m5.large".into();
    assert!(memory.observe(&m5, "s", 7700 * MIB));
    assert!(!memory.observe(&m5, "s", 7800 * MIB));
    assert!(!memory.observe(&m5, "s", 7700 * MIB));
    assert!(memory.observe(&m5, "s", 7690 * MIB));
    assert!(!memory.observe(&m5, "s", 0));
    assert!(memory.observe(&m5, "other", 7000 * MIB));
    assert!(memory.observe(&"c6g.large".into(), "t", 1));
    assert!(memory.observe(&"m5.xlarge".into(), "s", 17 << 30));
    let (region, base) = &*SHIPPED;
    let of = |memory: &DiscoveredMemory, name: &str, found: Option<&ResolvedNodeClass>| {
        let with = RegionObservations { memory, shifted_zones: &BTreeSet::new() };
        let own = class_catalog(region, base, &default_node_class(), found, with);
        get(&own.catalog, name).capacity.memory / MIB
    };
    let found = resolved();
    assert_eq!(of(&memory, "m5.large", Some(&found)), 7690);
    // The image is unknown.
    assert_eq!(of(&memory, "m5.large", None), 7577);
    // Less than half of the nominal memory, or more than it, is a fault of the node.
    assert_eq!(of(&memory, "c6g.large", Some(&found)), 3729);
    assert_eq!(of(&memory, "m5.xlarge", Some(&found)), 15155);
    // Another image: the estimate, or the memory that was reported with that image.
    let mut newer = resolved();
    newer.images = images(&["s2 amd s 2"]);
    assert_eq!(of(&memory, "m5.large", Some(&newer)), 7577);
    newer.images = images(&["other amd s 2"]);
    assert_eq!(of(&memory, "m5.large", Some(&newer)), 7000);
    // Not the first image of the class.
    newer.images = images(&["x arm s 9", "s amd s 2"]);
    assert_eq!(of(&memory, "m5.large", Some(&newer)), 7690);
    memory.retain(|image| image == "other");
    assert_eq!(memory.get(&m5, "s"), None);
    assert_eq!(memory.get(&m5, "other"), Some(7000 * MIB));
}

fn class(change: impl FnOnce(&mut NodeClass)) -> NodeClass {
    let mut own = default_node_class();
    change(&mut own);
    own
}

#[test]
fn a1_types_are_incompatible_with_al2023_and_windows() {
    let rows = [
        (AmiFamily::Al2, true),
        (AmiFamily::Al2023, false),
        (AmiFamily::Bottlerocket, true),
        (AmiFamily::Custom, true),
        (AmiFamily::Windows2019, false),
        (AmiFamily::Windows2022, false),
    ];
    for (family, runs) in rows {
        let class = class(|own| own.family = family);
        assert_eq!(is_compatible(&shape("a1.large"), &class, None), runs, "{family:?}");
        let own = catalog_of(&class, None);
        assert_eq!(sold(get(&own.catalog, "a1.large")).is_empty(), !runs, "{family:?}");
        assert!(is_compatible(&shape("m5.large"), &class, None), "{family:?}");
    }
}

/// Card and device index of a network interface, and whether it is EFA-only.
type Eni = (u32, u32, bool);

/// Interface layouts, and whether a type with cards of 4 and 2 interfaces and 2 EFA adapters
/// supports them.
#[test]
fn interface_layout_needs_matching_network_cards() {
    let rows: [(&[Eni], bool); 9] = [
        (&[], true),
        (&[(0, 0, false)], true),
        (&[(0, 3, false), (1, 1, false)], true),
        (&[(0, 4, false)], false),
        (&[(1, 2, false)], false),
        (&[(2, 0, false)], false),
        (&[(0, 1, true), (1, 1, true)], true),
        (&[(0, 1, true), (0, 2, true), (1, 1, true)], false),
        (&[(5, 0, true)], false),
    ];
    let mut own = InstanceTypeSpec::new("x.large", Arch::Amd64, 2, 4096);
    own.efa_max = 2;
    own.set_cards(0, vec![NetworkCard { index: 1, enis: 2 }, NetworkCard { index: 0, enis: 4 }]);
    let mut old = own.clone();
    old.ena = Some(false);
    for (layout, is_supported) in rows {
        let layout = layout.iter().map(|(card, device, efa_only)| NetworkInterface {
            card: *card,
            device: *device,
            efa_only: *efa_only,
        });
        let class = class(|own| own.network_interfaces = Some(layout.collect()));
        let layout = &class.network_interfaces;
        assert_eq!(is_compatible(&own, &class, None), is_supported, "{layout:?}");
        assert!(!is_compatible(&old, &class, None), "{layout:?}");
    }
    assert!(is_compatible(&old, &default_node_class(), None));
    // No EFA adapters, and types with unknown network cards.
    let one = NetworkInterface { card: 3, device: 1, efa_only: true };
    let class = class(|own| own.network_interfaces = Some(vec![one]));
    assert!(!is_compatible(&shape("m5.large"), &class, None));
    assert!(is_compatible(&shape("p5.48xlarge"), &class, None));
}

#[test]
fn placement_group_needs_a_supported_strategy() {
    let strategies = [
        PlacementGroupStrategy::Cluster,
        PlacementGroupStrategy::Partition(2),
        PlacementGroupStrategy::Spread,
    ];
    let rows: [(Option<&[&str]>, [bool; 3]); 6] = [
        (Some(&["cluster", "partition", "spread"]), [true, true, true]),
        (Some(&["partition", "spread"]), [false, true, true]),
        (Some(&["cluster"]), [true, false, false]),
        (Some(&["spread"]), [false, false, true]),
        (Some(&[]), [false, false, false]),
        (None, [true, true, true]),
    ];
    for (supported, expect) in rows {
        let mut own = InstanceTypeSpec::new("x.large", Arch::Amd64, 2, 4096);
        own.placement = supported.map(|all| all.iter().map(|own| (*own).to_owned()).collect());
        let got = strategies.map(|strategy| {
            let id = "pg-1".to_owned();
            is_compatible(&own, &default_node_class(), Some(&PlacementGroup { id, strategy }))
        });
        assert_eq!(got, expect, "{supported:?}");
        assert!(is_compatible(&own, &default_node_class(), None));
    }
}

#[test]
fn nested_virtualization_and_connection_tracking_need_hardware_support() {
    let mut own = InstanceTypeSpec::new("x.large", Arch::Amd64, 2, 4096);
    let nested = |wanted| class(|own| own.nested_virtualization = wanted);
    let rows = [
        (Some(true), Some(true), true),
        (Some(true), Some(false), false),
        (Some(true), None, true),
        (Some(false), Some(false), true),
        (None, Some(false), true),
    ];
    for (wanted, has, expect) in rows {
        own.nested_virtualization = has;
        assert_eq!(is_compatible(&own, &nested(wanted), None), expect, "{wanted:?} {has:?}");
    }
    let tracked = class(|own| own.connection_tracking = Some(ConnectionTracking::default()));
    let rows = [(Some("nitro"), true), (Some("xen"), false), (Some(""), false), (None, true)];
    for (hypervisor, expect) in rows {
        own.hypervisor = hypervisor.map(str::to_owned);
        assert_eq!(is_compatible(&own, &tracked, None), expect, "{hypervisor:?}");
        assert!(is_compatible(&own, &default_node_class(), None));
    }
}

/// A class is unready if a condition is unmet, and reports the first of them; or if the instance
/// types of its region are unknown.
#[test]
fn node_class_is_ready_when_all_conditions_are_met() {
    let (region, base) = &*SHIPPED;
    let none = RegionObservations {
        memory: &DiscoveredMemory::default(),
        shifted_zones: &BTreeSet::new(),
    };
    let supply = |found: &ResolvedNodeClass| {
        NodeClassSupply::new(region, base, &default_node_class(), found, none).supply
    };
    let mut found = resolved();
    found.conditions = vec![NodeClassCondition::met(ConditionKind::ImagesReady)];
    assert_eq!(supply(&found), Ok(catalog_of(&default_node_class(), Some(&found))));
    let message = "no subnet has the tag a=b ".repeat(100);
    found.conditions.extend([
        NodeClassCondition::unmet(ConditionKind::SubnetsReady, Cause::SubnetsNotFound, message),
        NodeClassCondition::unmet(ConditionKind::InstanceProfileReady, Cause::RoleNotFound, "no"),
    ]);
    let why = supply(&found).expect_err("not ready").to_string();
    assert!(why.starts_with("SubnetsNotFound: no subnet has the tag a=b no"), "{why}");
    assert_eq!(why.chars().count(), 800);
    let empty = Region::with_shipped_prices("eu-west-1", &Region::shipped());
    let base = Arc::new(empty.catalog());
    let own = NodeClassSupply::new(&empty, &base, &default_node_class(), &resolved(), none);
    let why = own.supply.expect_err("not ready");
    assert_eq!(why, NotReady::NoInstanceTypes);
    assert_eq!(
        why.to_string(),
        "Unavailable: the instance types of the region have not been read yet"
    );
}

/// Two classes with the same subnets do not share their compatible types (spec §10, 44).
#[test]
fn compatible_types_are_separate_for_each_node_class() {
    let found = resolved();
    let al2023 = catalog_of(&default_node_class(), Some(&found));
    let bottlerocket = catalog_of(&class(|own| own.family = AmiFamily::Bottlerocket), Some(&found));
    assert_eq!(sold(get(&al2023.catalog, "a1.large")), "");
    assert_ne!(sold(get(&bottlerocket.catalog, "a1.large")), "");
    // The type of the region is unchanged.
    assert_ne!(sold(get(&SHIPPED.1, "a1.large")), "");
}

/// A change of the EC2 data, and whether the types of the class change.
type Change = (fn(&mut Region), bool);

/// Equal inputs give equal catalogs, and different inputs different ones.
#[test]
fn class_catalog_changes_only_with_its_inputs() {
    let found = resolved();
    let one = catalog_of(&default_node_class(), Some(&found));
    assert_eq!(one, catalog_of(&default_node_class(), Some(&found)));
    let changes: [fn(&mut NodeClass); 7] = [
        |own| own.family = AmiFamily::Bottlerocket,
        |own| own.kubelet.max_pods = Some(5),
        |own| own.reserved_enis = 1,
        |own| {
            own.block_devices = vec![BlockDevice {
                size: Some(60 << 30),
                root_volume: true,
                ..BlockDevice::default()
            }];
        },
        |own| own.raid0 = true,
        |own| own.network_interfaces = Some(Vec::new()),
        |own| own.vm_overhead_per_mille = Some(50),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        assert_ne!(one, catalog_of(&class(change), Some(&found)), "{at}");
    }
    let mut other = resolved();
    other.subnets.pop();
    // Drift compares single subnets, and offerings depend only on zones.
    assert_eq!(one.catalog, catalog_of(&default_node_class(), Some(&other)).catalog);
    other.subnets.pop();
    assert_ne!(one, catalog_of(&default_node_class(), Some(&other)));
    // EC2 data about types and their zones.
    let changes: [Change; 3] = [
        (
            |own| {
                let mut it = shape("m5.large");
                it.memory_mib += 1;
                own.shapes.insert("m5.large".into(), Arc::new(it));
            },
            true,
        ),
        (|own| drop(own.sold.remove("m5.large")), true),
        (|_| {}, false),
    ];
    for (change, differs) in changes {
        let mut region = SHIPPED.0.clone();
        change(&mut region);
        let base = Arc::new(region.catalog());
        let none = RegionObservations {
            memory: &DiscoveredMemory::default(),
            shifted_zones: &BTreeSet::new(),
        };
        let own = class_catalog(&region, &base, &default_node_class(), Some(&found), none);
        assert_eq!(own != one, differs);
        let changed = own.catalog.types().filter(|it| **it != *get(&one.catalog, it.name.as_str()));
        assert_eq!(changed.count(), usize::from(differs), "other types do not change");
    }
}

/// Local zones are like other zones: their offerings are available if the class has a subnet there.
#[test]
fn local_zones_are_offered_like_other_zones() {
    let mut region = SHIPPED.0.clone();
    let boston = "us-east-1-bos-1a";
    let zones = region.sold.entry("m5.large".into()).or_default();
    zones.insert(boston.into());
    let base = Arc::new(region.catalog());
    let mut found = resolved();
    found.subnets = vec![Subnet {
        id: "subnet-bos".into(),
        zone: boston.into(),
        zone_id: "use1-bos1-az1".into(),
        free: 9,
    }];
    let none = RegionObservations {
        memory: &DiscoveredMemory::default(),
        shifted_zones: &BTreeSet::new(),
    };
    let own = class_catalog(&region, &base, &default_node_class(), Some(&found), none);
    let it = get(&own.catalog, "m5.large");
    assert_eq!(sold(it), "-bos-1a:on-demand -bos-1a:spot");
    assert_eq!(label(it, labels::ZONE), boston);
    assert_eq!(label(it, labels::ZONE_ID), "use1-bos1-az1");
    assert_eq!(sold(get(&own.catalog, "m5.xlarge")), "");
}
