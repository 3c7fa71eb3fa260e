//! Content and name of the launch template of a node class.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use outrigger::ec2::launch_template::{
    InterfaceKind, LaunchTemplate, MarketType, NAME_MAX, RenderedUserData,
};
use outrigger::model::node_class::disk::BlockDevice;
use outrigger::model::node_class::image::AmiFamily;
use outrigger::model::node_class::network::{ConnectionTracking, NetworkInterface};
use outrigger::model::node_class::resolved::{PlacementGroup, PlacementGroupStrategy};
use outrigger::model::reservation::{Reservation, ReservationKind};

use super::fixture::{Scene, offering, record};

type Change = (&'static str, fn(&mut Scene));

fn template_after(change: fn(&mut Scene)) -> LaunchTemplate {
    let mut scene = Scene::new();
    change(&mut scene);
    scene.template()
}

fn set_placement_group(scene: &mut Scene, strategy: PlacementGroupStrategy) {
    let id = "pg-1".to_owned();
    scene.resolved.placement_group = Some(PlacementGroup { id, strategy });
}

fn use_reservation(scene: &mut Scene, own: Reservation) {
    let mut next = scene.clone().with_reservation(own);
    next.launch.offerings = vec![offering("m5.large a reserved cr-1")];
    *scene = next;
}

fn set_cards(scene: &mut Scene, efa_only: bool) {
    let card = |card| NetworkInterface {
        card,
        device: u32::from(card > 0),
        efa_only: efa_only && card > 0,
    };
    scene.class.network_interfaces = Some(vec![card(0), card(1)]);
}

const DEDICATED: &str = "karpenter.k8s.aws/instance-tenancy";
const PARTITION: &str = "karpenter.k8s.aws/placement-group-partition";
const EFA: &str = "vpc.amazonaws.com/efa";

/// Changes that give another template.
const DIFFERENT: &[Change] = &[
    ("cluster", |it| it.cluster = "staging".into()),
    ("node class", |it| {
        it.launch.claim.node_class = Some("other".into());
        it.launch.tags.extend(it.launch.claim.to_tags());
    }),
    ("image", |it| {
        it.images.insert("m5.large".into(), "ami-arm".into());
    }),
    ("profile", |it| it.resolved.profile = Some("other".into())),
    ("no profile", |it| it.resolved.profile = None),
    ("join token", |it| it.token = "other".into()),
    ("security groups", |it| drop(it.resolved.security_groups.pop())),
    ("tag", |it| drop(it.launch.tags.insert("team".into(), "db".into()))),
    ("ipv6", |it| it.ipv6 = true),
    ("public ip", |it| it.class.public_ip = Some(false)),
    ("prefixes", |it| it.class.ip_prefix_count = Some(1)),
    ("tracking", |it| {
        it.class.connection_tracking = Some(ConnectionTracking {
            udp: Some(SignedDuration::from_secs(30)),
            ..ConnectionTracking::default()
        });
    }),
    ("interfaces", |it| set_cards(it, false)),
    ("adapters", |it| set_cards(it, true)),
    ("family", |it| it.class.family = AmiFamily::Bottlerocket),
    ("devices", |it| {
        it.class.block_devices = vec![BlockDevice::default()];
    }),
    ("endpoint", |it| it.class.metadata.endpoint = false),
    ("metadata ipv6", |it| it.class.metadata.ipv6 = true),
    ("region", |it| it.region = "us-iso-east-1".into()),
    ("hop limit", |it| it.class.metadata.hop_limit = 2),
    ("tokens", |it| it.class.metadata.tokens_required = false),
    ("monitoring", |it| it.class.detailed_monitoring = true),
    ("nested", |it| it.class.nested_virtualization = Some(true)),
    ("not nested", |it| it.class.nested_virtualization = Some(false)),
    ("enclave", |it| {
        it.launch.devices.insert("eks.amazonaws.com/nitro-sandbox".into());
    }),
    ("tenancy", |it| {
        it.launch.labels.insert(DEDICATED.into(), "dedicated".into());
    }),
    ("group", |it| set_placement_group(it, PlacementGroupStrategy::Cluster)),
    ("partition", |it| {
        set_placement_group(it, PlacementGroupStrategy::Partition(3));
        it.launch.labels.insert(PARTITION.into(), "2".into());
    }),
    ("spot", |it| {
        it.launch.offerings = vec![offering("m5.large a spot")];
    }),
    ("reservation", |it| use_reservation(it, Reservation::new("cr-1", 1))),
    ("block", |it| {
        let kind = ReservationKind::CapacityBlock;
        use_reservation(it, Reservation { kind, ..Reservation::new("cr-1", 1) });
    }),
    ("interruptible", |it| {
        let interruptible = true;
        use_reservation(it, Reservation { interruptible, ..Reservation::new("cr-1", 1) });
    }),
];

/// Changes that give the same template.
const SAME: &[Change] = &[
    ("nothing", |_| {}),
    ("claim", |it| {
        it.launch.claim = record("other");
        it.launch.claim.created += SignedDuration::from_secs(1);
        it.launch.claim.reason = "drifted".into();
        it.launch.tags = it.launch.claim.to_tags();
        it.launch.tags.insert("team".into(), "web".into());
    }),
    ("zone", |it| it.launch.offerings = vec![offering("m5.large b on-demand")]),
    ("context", |it| it.class.context = Some("x".into())),
    ("an adapter that the type has not", |it| {
        it.launch.devices.insert(EFA.into());
    }),
    ("default tenancy", |it| {
        it.launch.labels.insert(DEDICATED.into(), "default".into());
    }),
    ("a partition of no group", |it| {
        it.launch.labels.insert(PARTITION.into(), "2".into());
    }),
    ("no layout", |it| it.class.network_interfaces = Some(Vec::new())),
];

#[test]
fn template_name_is_a_hash_of_its_content() {
    let plain = Scene::new().template();
    let name = plain.name();
    assert_eq!(name, "outrigger/prod/1cc88550fda32ae22674b928f747494f");
    for (what, change) in SAME {
        assert_eq!(template_after(*change).name(), name, "{what}");
        assert_eq!(template_after(*change), plain, "{what}");
    }
    let mut names = BTreeSet::from([name]);
    for (what, change) in DIFFERENT {
        assert!(names.insert(template_after(*change).name()), "{what}");
    }
}

#[test]
fn template_names_are_valid_for_ec2() {
    for cluster in ["prod", "a b/c:ü", "", &"x".repeat(300)] {
        let mut scene = Scene::new();
        scene.cluster = cluster.into();
        let name = scene.template().name();
        let allowed = |own: char| own.is_ascii_alphanumeric() || "().-/_".contains(own);
        assert!(name.chars().all(allowed), "{name}");
        assert!((3..=NAME_MAX).contains(&name.len()), "{name}");
        assert!(name.starts_with("outrigger/"));
    }
}

#[test]
fn template_output_hides_secrets() {
    let mut scene = Scene::new();
    scene.token = "abcdef.0123456789abcdef".into();
    let template = scene.template();
    let json = serde_json::to_string(&template).expect("json");
    let shown = format!("{template:?} {json} {}", template.name());
    assert!(!shown.contains("0123456789abcdef"), "{shown}");
    assert!(template.user_data.bytes().starts_with(b"abcdef."));
    let data = RenderedUserData::new(b"secret".to_vec());
    assert_eq!(format!("{data:?}"), "UserData(6 bytes)");
}

/// Returns the interfaces as `card.device kind public prefixes4 prefixes6 ipv6 tracking`; `-` for
/// unset.
fn interfaces(template: &LaunchTemplate) -> Vec<String> {
    fn text<T: ToString>(own: Option<T>) -> String {
        own.map_or("-".to_owned(), |own| own.to_string())
    }
    let one = |own: &outrigger::ec2::launch_template::Interface| {
        assert_eq!(own.groups, ["sg-1", "sg-2"]);
        let parts = [
            format!("{}.{}", text(own.card), own.device),
            text(own.kind.map(InterfaceKind::as_str)),
            text(own.public_ip),
            text(own.ipv4_prefixes),
            text(own.ipv6_prefixes),
            text(own.ipv6.map(|(primary, count)| format!("{primary}{count}"))),
            text(own.tracking.and_then(|own| own.tcp_established)),
        ];
        parts.join(" ")
    };
    template.interfaces.iter().map(one).collect()
}

fn use_efa(scene: &mut Scene) {
    scene.launch.offerings = vec![offering("p5.48xlarge a on-demand")];
    scene.launch.devices.insert(EFA.into());
}

fn set_addressing(scene: &mut Scene) {
    scene.class.public_ip = Some(true);
    scene.class.ip_prefix_count = Some(10);
    scene.class.connection_tracking = Some(ConnectionTracking {
        tcp_established: Some(SignedDuration::from_secs(600)),
        ..ConnectionTracking::default()
    });
}

/// A change, and the resulting interfaces.
type Layout = (fn(&mut Scene), &'static [&'static str]);

const LAYOUTS: &[Layout] = &[
    (|_| {}, &["-.0 - - - - - -"]),
    (set_addressing, &["-.0 - true 10 - - 600"]),
    (|it| it.class.public_ip = Some(false), &["-.0 - false - - - -"]),
    (|it| it.class.ip_prefix_count = Some(0), &["-.0 - - 0 - - -"]),
    (|it| it.class.ip_prefix_count = Some(1), &["-.0 - - 1 - - -"]),
    (|it| it.class.ip_prefix_count = Some(100), &["-.0 - - 100 - - -"]),
    (|it| it.ipv6 = true, &["-.0 - - - - true1 -"]),
    (
        |it| {
            it.ipv6 = true;
            it.class.ip_prefix_count = Some(10);
        },
        &["-.0 - - - 10 true1 -"],
    ),
    (|it| it.class.connection_tracking = Some(ConnectionTracking::default()), &["-.0 - - - - - -"]),
    (
        |it| {
            set_addressing(it);
            set_cards(it, true);
        },
        &["0.0 interface true 10 - - 600", "1.1 efa-only - - - - -"],
    ),
    (
        |it| {
            set_addressing(it);
            it.ipv6 = true;
            set_cards(it, true);
        },
        &["0.0 interface true - 10 true1 600", "1.1 efa-only - - - - -"],
    ),
    (
        |it| {
            use_efa(it);
            set_cards(it, false);
        },
        &["0.0 interface - - - - -", "1.1 interface - - - - -"],
    ),
];

#[test]
fn network_interfaces_follow_the_class_layout_or_the_devices() {
    for (number, (change, expect)) in LAYOUTS.iter().enumerate() {
        assert_eq!(interfaces(&template_after(*change)), *expect, "case {number}");
    }
    let with = interfaces(&template_after(|it| {
        use_efa(it);
        set_addressing(it);
    }));
    assert_eq!(with.len(), 32);
    assert_eq!(with[0], "0.0 efa true 10 - - 600");
    assert_eq!(with[1], "1.1 efa true 10 - - 600");
    assert_eq!(with[31], "31.1 efa true 10 - - 600");
    let without = template_after(|it| {
        use_efa(it);
        it.launch.devices.clear();
    });
    assert_eq!(interfaces(&without).len(), 1);
}

#[test]
fn default_block_devices_follow_the_image_family() {
    let cases: &[(AmiFamily, &str)] = &[
        (AmiFamily::Al2, "/dev/xvda 20"),
        (AmiFamily::Al2023, "/dev/xvda 20"),
        (AmiFamily::Bottlerocket, "/dev/xvda 4 /dev/xvdb 20"),
        (AmiFamily::Windows2019, "/dev/sda1 50"),
        (AmiFamily::Windows2022, "/dev/sda1 50"),
        (AmiFamily::Windows2025, "/dev/sda1 50"),
        (AmiFamily::Custom, ""),
    ];
    for (family, expect) in cases {
        let mut scene = Scene::new();
        scene.class.family = *family;
        let devices = scene.template().devices;
        let texts = devices.iter().map(|own| {
            assert_eq!(own.volume_type.as_deref(), Some("gp3"));
            assert_eq!(own.encrypted, Some(true));
            assert_eq!((own.iops, own.delete_on_termination), (None, None));
            format!("{} {}", own.name, own.gib.expect("a size"))
        });
        assert_eq!(texts.collect::<Vec<_>>().join(" "), *expect, "{family:?}");
    }
}

#[test]
fn class_block_devices_are_copied_without_zero_values() {
    for (bytes, gib) in
        [(20_i64 << 30, 20), ((20 << 30) + 1, 21), (187_000_000_000, 175), (59_000 << 30, 59_000)]
    {
        let mut scene = Scene::new();
        scene.class.family = AmiFamily::Custom;
        scene.class.block_devices = vec![BlockDevice {
            name: "/dev/sdb".into(),
            size: Some(bytes),
            iops: Some(0),
            throughput: Some(200),
            snapshot_id: Some("snap-1".into()),
            initialization_rate: Some(100),
            kms_key_id: Some("key".into()),
            delete_on_termination: Some(false),
            ..BlockDevice::default()
        }];
        let own = scene.template().devices.remove(0);
        assert_eq!((own.gib, own.iops, own.throughput), (Some(gib), None, Some(200)));
        assert_eq!((own.encrypted, own.volume_type), (None, None));
        assert_eq!(own.initialization_rate, Some(100));
        assert_eq!(own.kms_key_id.as_deref(), Some("key"));
        assert_eq!(own.snapshot_id.as_deref(), Some("snap-1"));
        assert_eq!(own.delete_on_termination, Some(false));
    }
}

#[test]
fn metadata_ipv6_is_unset_in_isolated_regions() {
    let plain = Scene::new().template().metadata;
    assert_eq!((plain.endpoint, plain.tokens_required, plain.hop_limit), (true, true, 1));
    for (region, ipv6) in [
        ("us-east-1", Some(false)),
        ("us-gov-west-1", Some(false)),
        ("us-iso-east-1", None),
        ("us-iso-west-1", None),
        ("us-isob-east-1", None),
        ("us-isob-west-1", None),
        ("us-isof-south-1", None),
        ("us-isof-east-1", None),
    ] {
        let mut scene = Scene::new();
        scene.region = region.into();
        assert_eq!(scene.template().metadata.ipv6, ipv6, "{region}");
    }
}

#[test]
fn template_names_a_reservation_only_for_reserved_offerings() {
    let of = |own: Reservation| {
        let mut scene = Scene::new();
        use_reservation(&mut scene, own);
        let template = scene.template();
        (template.reservation, template.market)
    };
    let plain = Scene::new().template();
    assert_eq!((plain.reservation, plain.market), (None, None));
    let id = Some("cr-1".to_owned());
    let default = Reservation::new("cr-1", 1);
    let block = Reservation { kind: ReservationKind::CapacityBlock, ..default.clone() };
    let interruptible = Reservation { interruptible: true, ..default.clone() };
    assert_eq!(of(default), (id.clone(), None));
    assert_eq!(of(block), (id.clone(), Some(MarketType::CapacityBlock)));
    assert_eq!(of(interruptible), (id, Some(MarketType::Interruptible)));
}

#[test]
fn placement_follows_the_group_and_the_partition_label() {
    let of = |strategy, label: &str| {
        let mut scene = Scene::new();
        set_placement_group(&mut scene, strategy);
        scene.launch.labels.insert(PARTITION.into(), label.into());
        let own = scene.template().placement;
        (own.group, own.partition, own.dedicated)
    };
    let id = Some("pg-1".to_owned());
    let cases = [
        (PlacementGroupStrategy::Cluster, "1", None),
        (PlacementGroupStrategy::Spread, "1", None),
        (PlacementGroupStrategy::Partition(7), "10", Some(10)),
        (PlacementGroupStrategy::Partition(7), "x", None),
        (PlacementGroupStrategy::Partition(7), "", None),
    ];
    for (strategy, label, partition) in cases {
        assert_eq!(of(strategy, label), (id.clone(), partition, false));
    }
}

#[test]
fn template_tags_are_equal_for_all_claims_of_a_pool() {
    let template = Scene::new().template();
    let keys: Vec<&str> = template.tags.keys().map(String::as_str).collect();
    let expect = [
        "karpenter.k8s.aws/ec2nodeclass",
        "karpenter.sh/nodepool",
        "kubernetes.io/cluster/prod",
        "outrigger.dev/cluster",
        "outrigger.dev/installation",
        "outrigger.dev/schema-version",
        "team",
    ];
    assert_eq!(keys, expect);
    assert!(!template.spot);
    let spot = template_after(|it| it.launch.offerings = vec![offering("m5.large a spot")]);
    assert!(spot.spot);
}

/// Interfaces with addresses have all address settings of the class, also if EFA is enabled.
#[test]
fn every_interface_has_the_address_settings_of_the_class() {
    fn text<T: ToString>(own: Option<T>) -> String {
        own.map_or("-".to_owned(), |own| own.to_string())
    }
    let publics = [None, Some(true), Some(false)];
    let prefixes = [None, Some(0), Some(1), Some(10), Some(100)];
    for (public, prefix) in
        publics.iter().flat_map(|public| prefixes.map(|prefix| (*public, prefix)))
    {
        for (efa, ipv6) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut scene = Scene::new();
            set_addressing(&mut scene);
            (scene.class.public_ip, scene.class.ip_prefix_count) = (public, prefix);
            scene.ipv6 = ipv6;
            if efa {
                use_efa(&mut scene);
            }
            let address = text(public);
            let count = text(prefix);
            let addresses = match ipv6 {
                false => format!("{address} {count} - - 600"),
                true => format!("{address} - {count} true1 600"),
            };
            let expect: Vec<String> = match efa {
                false => vec![format!("-.0 - {addresses}")],
                true => (0..32_u32)
                    .map(|card| format!("{card}.{} efa {addresses}", card.min(1)))
                    .collect(),
            };
            let own = interfaces(&scene.template());
            assert_eq!(own, expect, "{public:?} {prefix:?} {efa} {ipv6}");
        }
    }
}

const SANDBOX: &str = "eks.amazonaws.com/nitro-sandbox";

/// A change, and the resulting options of the template: monitoring, enclave, dedicated host, nested
/// virtualization.
type OptionsCase = (fn(&mut Scene), (bool, bool, bool, Option<bool>));

#[test]
fn template_sets_only_requested_options() {
    let cases: [OptionsCase; 10] = [
        (|_| {}, (false, false, false, None)),
        (|it| it.class.detailed_monitoring = true, (true, false, false, None)),
        (
            |it| {
                it.launch.devices.insert(SANDBOX.into());
            },
            (false, true, false, None),
        ),
        (
            |it| {
                it.launch.devices.insert("nvidia.com/gpu".into());
            },
            (false, false, false, None),
        ),
        (use_efa, (false, false, false, None)),
        (
            |it| {
                let own = "default".to_owned();
                it.launch.labels.insert(DEDICATED.into(), own);
            },
            (false, false, false, None),
        ),
        (
            |it| {
                let own = "dedicated".to_owned();
                it.launch.labels.insert(DEDICATED.into(), own);
            },
            (false, false, true, None),
        ),
        (|it| it.class.nested_virtualization = Some(true), (false, false, false, Some(true))),
        (|it| it.class.nested_virtualization = Some(false), (false, false, false, Some(false))),
        (|it| it.class.metadata.endpoint = false, (false, false, false, None)),
    ];
    for (number, (change, expect)) in cases.into_iter().enumerate() {
        let own = template_after(change);
        let dedicated = own.placement.dedicated;
        let options = (own.monitoring, own.enclave, dedicated, own.nested_virtualization);
        assert_eq!(options, expect, "case {number}");
        assert_eq!(own.profile.as_deref(), Some("prod_profile"));
        assert_eq!(own.image, "ami-x86");
    }
}
