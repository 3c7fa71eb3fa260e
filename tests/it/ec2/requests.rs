//! Purchase option, offerings and order of a launch request.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use outrigger::ec2::create_fleet::{
    AllocationStrategy, FleetRequest, OVERRIDES_MAX, TEMPLATES_MAX, TargetCapacityType,
};
use outrigger::model::instance::Price;
use outrigger::model::node_class::resolved::{Cause, ConditionKind, NodeClassCondition, Subnet};
use outrigger::model::reservation::{Reservation, ReservationKind};
use outrigger::provider::{CommandResult, FailureKind, OfferingRefusal, RefusalKind};

use super::fixture::{NOW, Scene, offering};

/// Returns the overrides as `type zone subnet image priority`, by template.
fn overrides(request: &FleetRequest) -> Vec<Vec<String>> {
    let one = |own: &outrigger::ec2::create_fleet::Override| {
        let (key, at) = (&own.offering, own.offering.zone.as_str());
        let zone = at.trim_start_matches("us-east-1");
        let subnet = own.subnet.trim_start_matches("subnet-");
        let image = own.image.trim_start_matches("ami-");
        format!("{} {zone} {subnet} {image} {}", key.instance_type, own.priority)
    };
    let config = |own: &outrigger::ec2::create_fleet::LaunchTemplateConfig| {
        own.overrides.iter().map(one).collect()
    };
    request.configs.iter().map(config).collect()
}

/// Offerings, the kind of reservation, whether an overlay changed prices; the target capacity type
/// and the allocation strategy.
type TargetCase = (
    &'static [&'static str],
    Option<fn() -> Reservation>,
    bool,
    TargetCapacityType,
    Option<AllocationStrategy>,
);

const OD: &str = "m5.large a on-demand";
const SPOT: &str = "m5.large a spot";
const CR: &str = "m5.large a reserved cr-1";
const PRIORITIZED: Option<AllocationStrategy> = Some(AllocationStrategy::Prioritized);
const PRICE_CAPACITY: Option<AllocationStrategy> = Some(AllocationStrategy::PriceCapacityOptimized);
const CAPACITY: Option<AllocationStrategy> = Some(AllocationStrategy::CapacityOptimizedPrioritized);

fn default() -> Reservation {
    Reservation::new("cr-1", 1)
}

fn block() -> Reservation {
    Reservation { kind: ReservationKind::CapacityBlock, ..default() }
}

fn interruptible() -> Reservation {
    Reservation { interruptible: true, ..default() }
}

const TARGET_CASES: &[TargetCase] = &[
    (&[OD], None, false, TargetCapacityType::OnDemand, PRIORITIZED),
    (&[OD], None, true, TargetCapacityType::OnDemand, PRIORITIZED),
    (&[SPOT], None, false, TargetCapacityType::Spot, PRICE_CAPACITY),
    (&[SPOT], None, true, TargetCapacityType::Spot, CAPACITY),
    // The capacity type of the cheapest offering.
    (&[SPOT, OD], None, false, TargetCapacityType::Spot, PRICE_CAPACITY),
    (&[OD, SPOT], None, false, TargetCapacityType::OnDemand, PRIORITIZED),
    (&[CR], Some(default), false, TargetCapacityType::OnDemand, PRIORITIZED),
    (&[CR, SPOT, OD], Some(default), false, TargetCapacityType::OnDemand, PRIORITIZED),
    (&[CR], Some(block), false, TargetCapacityType::CapacityBlock, None),
    (&[CR], Some(interruptible), false, TargetCapacityType::Interruptible, None),
];

#[test]
fn request_has_one_capacity_type_and_its_allocation_strategy() {
    for (offerings, reservation, overlaid, target, strategy) in TARGET_CASES {
        let mut scene = Scene::new().with_offerings(offerings);
        scene.launch.overlaid = *overlaid;
        if let Some(own) = reservation {
            scene = scene.with_reservation(own());
        }
        let request = scene.request();
        let what = format!("{offerings:?} {target:?}");
        assert_eq!((request.target, request.strategy), (*target, *strategy), "{what}");
        assert_eq!(request.overrides().count(), 1, "{what}");
        let own = request.overrides().next().expect("one");
        let is_reserved = own.offering.reservation.is_some();
        assert_eq!(is_reserved, reservation.is_some(), "{what}");
    }
}

#[test]
fn bare_metal_and_accelerated_types_do_not_replace_ordinary_types() {
    let cases: [(&[&str], &[&str]); 3] = [
        (&["m5.large", "p5.48xlarge", "m5.xlarge"], &["m5.large", "m5.xlarge"]),
        // The cheapest type is accelerated, or no ordinary type is available: no image fits the
        // first.
        (&["p5.48xlarge", "m5.large"], &["p5.48xlarge", "m5.large"]),
        (&["m6a.large", "p5.48xlarge"], &["p5.48xlarge"]),
    ];
    for (offered, expect) in cases {
        let offered: Vec<String> = offered.iter().map(|own| format!("{own} a spot")).collect();
        let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
        let request = Scene::new().with_offerings(&offered).request();
        let mut types: Vec<&str> =
            request.overrides().map(|own| own.offering.instance_type.as_str()).collect();
        types.dedup();
        assert_eq!(types, expect, "{offered:?}");
    }
}

#[test]
fn target_capacity_types_have_ec2s_names() {
    let names = [
        TargetCapacityType::Spot.as_str(),
        TargetCapacityType::OnDemand.as_str(),
        TargetCapacityType::CapacityBlock.as_str(),
        TargetCapacityType::Interruptible.as_str(),
    ];
    assert_eq!(names, ["spot", "on-demand", "capacity-block", "reserved-capacity"]);
}

#[test]
fn overrides_keep_the_order_and_have_each_type_and_zone_once() {
    let request = Scene::new()
        .with_offerings(&[
            "m5.large b on-demand",
            "m5.large a on-demand",
            "m5.large a on-demand",
            "m5.xlarge a on-demand",
            "m5.large a spot",
            "c7g.large b on-demand",
        ])
        .try_request();
    // The spot offering is more expensive than the on-demand one.
    let on_demand = vec![
        vec!["m5.large b b x86 0", "m5.large a a1 x86 0"],
        vec!["m5.xlarge a a1 x86 1"],
        vec!["c7g.large b b arm 2"],
    ];
    assert_eq!(overrides(&request.expect("a request")), on_demand);
    let mut scene = Scene::new().with_offerings(&[
        "m5.large b spot",
        "m5.large a spot",
        "m5.large b on-demand",
        "m5.xlarge a spot",
    ]);
    let cheaper = vec!["m5.large b b x86 0", "m5.large a a1 x86 0"];
    assert_eq!(overrides(&scene.request()), std::slice::from_ref(&cheaper));
    // The pool requires minValues, whatever the price.
    scene.launch.varied = true;
    let dearer = vec!["m5.xlarge a a1 x86 1"];
    assert_eq!(overrides(&scene.request()), [cheaper, dearer]);
    let mut scene = Scene::new().with_offerings(&[
        "m5.large b on-demand",
        "m5.large a on-demand",
        "m5.large a on-demand",
        "m5.xlarge a on-demand",
        "c7g.large b on-demand",
    ]);
    let expect = vec![
        vec!["m5.large b b x86 0", "m5.large a a1 x86 0"],
        vec!["m5.xlarge a a1 x86 1"],
        vec!["c7g.large b b arm 2"],
    ];
    let request = scene.request();
    assert_eq!(overrides(&request), expect);
    assert_eq!(request.token, "abc");
    assert_eq!(request.tags, scene.launch.tags);
    assert_eq!(request.context, None);
    let data: Vec<&[u8]> =
        request.configs.iter().map(|own| own.template.user_data.bytes()).collect();
    let texts: [&[u8]; 3] = [b"token ami-x86 29", b"token ami-x86 58", b"token ami-arm 29"];
    assert_eq!(data, texts);
    assert_eq!(request.override_for("m5.xlarge", "us-east-1a").map(|own| own.priority), Some(1.0));
    assert_eq!(request.override_for("m5.xlarge", "us-east-1b"), None);
}

#[test]
fn only_zones_of_equal_price_have_equal_priority() {
    let mut scene = Scene::new().with_offerings(&["m5.large a on-demand", "m5.large b on-demand"]);
    let mut own = scene.catalog.get("m5.large").expect("there is one").clone();
    for offering in &mut own.offerings {
        if offering.zone.as_str() == "us-east-1b" {
            offering.price = Price::new(9.0).expect("a price");
        }
    }
    let expect = [["m5.large a a1 x86 0", "m5.large b b x86 0"]];
    assert_eq!(overrides(&scene.request()), expect);
    scene.catalog = scene.catalog.with([own]);
    let expect = [["m5.large a a1 x86 0", "m5.large b b x86 1"]];
    assert_eq!(overrides(&scene.request()), expect);
}

#[test]
fn equal_launch_templates_are_merged() {
    let all = ["m5.large a on-demand", "m5.xlarge a on-demand"];
    let mut scene = Scene::new().with_offerings(&all);
    assert_eq!(scene.request().configs.len(), 2);
    // A family whose user data does not contain the maximum number of pods.
    scene.counts_pods = false;
    let request = scene.request();
    assert_eq!(request.configs.len(), 1);
    assert_eq!(request.overrides().count(), 2);
    // EFA interfaces depend on the type.
    let all = ["p5.48xlarge a on-demand", "m5.large a on-demand"];
    let mut scene = Scene::new().with_offerings(&all);
    scene.counts_pods = false;
    assert_eq!(scene.request().configs.len(), 1);
    scene.launch.devices.insert("vpc.amazonaws.com/efa".into());
    assert_eq!(scene.request().configs.len(), 2);
}

#[test]
fn request_keeps_the_template_limit_of_ec2() {
    let mut scene = Scene::new();
    let mut types = Vec::new();
    for number in 0..60_i64 {
        let mut own = scene.catalog.get("m5.large").expect("there is one").clone();
        own.name = format!("x{number}.large").as_str().into();
        own.capacity.pods = 10 + number;
        scene.images.insert(own.name.clone(), "ami-x86".into());
        let key = offering(&format!("{} a on-demand", own.name));
        scene.launch.offerings.push(key);
        types.push(own);
    }
    scene.catalog = scene.catalog.with(types);
    let request = scene.request();
    assert_eq!(request.configs.len(), TEMPLATES_MAX);
    // The cheapest offerings are kept.
    assert!(request.override_for("m5.large", "us-east-1a").is_some());
    assert!(request.override_for("x49.large", "us-east-1a").is_some());
    assert!(request.override_for("x50.large", "us-east-1a").is_none());
}

/// 150 types in three zones, of which further zones of the cheapest types are kept.
#[test]
fn request_keeps_the_cheapest_alternatives_and_every_type() {
    let mut scene = Scene::new();
    let types: Vec<String> = scene.catalog.types().map(|it| it.name.to_string()).collect();
    let types: Vec<&String> = types.iter().filter(|name| !name.contains("metal")).collect();
    let offerings = types
        .iter()
        .take(150)
        .flat_map(|name| ["a", "b", "c"].map(|zone| format!("{name} {zone} on-demand")));
    let offerings: Vec<String> = offerings.collect();
    let texts: Vec<&str> = offerings.iter().map(String::as_str).collect();
    scene = scene.with_offerings(&texts);
    scene.launch.varied = true;
    scene.images = types.iter().map(|name| (name.as_str().into(), "ami-x86".to_owned())).collect();
    let subnet = scene.resolved.subnets[0].clone();
    scene.resolved.subnets.push(Subnet {
        id: "subnet-c".to_owned(),
        zone: "us-east-1c".into(),
        ..subnet
    });
    let count = |request: &FleetRequest| {
        let mut types: BTreeMap<&str, usize> = BTreeMap::new();
        for it in request.overrides() {
            *types.entry(it.offering.instance_type.as_str()).or_default() += 1;
        }
        (request.overrides().count(), types.len(), types.values().filter(|it| **it == 3).count())
    };
    // A user-data template per number of pods may exceed the other limit of EC2.
    scene.counts_pods = false;
    let request = scene.request();
    assert_eq!(count(&request), (OVERRIDES_MAX, 150, 75));
    let half = request.with_fewer_overrides(160).expect("fewer");
    assert_eq!(count(&half), (160, 150, 5));
    let few = request.with_fewer_overrides(5).expect("fewer");
    let cheapest: BTreeSet<&str> =
        few.overrides().map(|it| it.offering.instance_type.as_str()).collect();
    let first: BTreeSet<&str> = types.iter().take(5).map(|name| name.as_str()).collect();
    assert_eq!((count(&few).0, cheapest), (5, first));
    assert_eq!(few.with_fewer_overrides(5), None);
    let one = few.with_fewer_overrides(0).expect("one remains");
    assert_eq!((count(&one).0, one.with_fewer_overrides(0)), (1, None));
}

#[test]
fn impossible_offerings_are_refused_without_a_call() {
    let cases = [
        ("none.such a on-demand", RefusalKind::Unsupported),
        ("g5.12xlarge a on-demand", RefusalKind::NoImage),
        ("m5.large c on-demand", RefusalKind::NoAddress),
    ];
    for (wanted, kind) in cases {
        let refusal = OfferingRefusal { offering: offering(wanted), kind };
        let alone = Scene::new().with_offerings(&[wanted]).try_request();
        let answer = CommandResult::LaunchRefused(vec![refusal.clone()]);
        assert_eq!(alone, Err(Box::new(answer)));
        let mut beside = Scene::new().with_offerings(&[wanted, "m5.large a on-demand"]);
        let request = beside.request();
        assert_eq!(request.refused, [refusal]);
        assert_eq!(request.overrides().count(), 1);
    }
    // A reservation that no longer exists.
    let missing = Scene::new().with_offerings(&["m5.large a reserved cr-9"]).try_request();
    let refusal = OfferingRefusal {
        offering: offering("m5.large a reserved cr-9"),
        kind: RefusalKind::ReservationExceeded,
    };
    assert_eq!(missing, Err(Box::new(CommandResult::LaunchRefused(vec![refusal]))));
    // An image that the class no longer has.
    let mut scene = Scene::new();
    scene.resolved.images.clear();
    let refused = match scene.try_request().map_err(|own| *own) {
        Err(CommandResult::LaunchRefused(all)) => all,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused[0].kind, RefusalKind::NoImage);
}

#[test]
fn invalid_launches_fail_before_the_call() {
    type Edit = fn(&mut Scene);
    let cases: [(Edit, &str); 4] = [
        (|it| it.launch.offerings.clear(), "contains no offering"),
        (|it| it.token.clear(), "there is no token"),
        (|it| it.launch.claim.id = "x".repeat(65).into(), "64"),
        (
            |it| {
                let unmet = NodeClassCondition::unmet(
                    ConditionKind::SubnetsReady,
                    Cause::SubnetsNotFound,
                    "none",
                );
                it.resolved.conditions = vec![unmet];
            },
            "node class standard is not ready: SubnetsReady: none",
        ),
    ];
    for (edit, expect) in cases {
        let mut scene = Scene::new();
        edit(&mut scene);
        let Err(CommandResult::Failed { kind, text }) = scene.try_request().map_err(|own| *own)
        else {
            panic!("{expect}");
        };
        assert_eq!(kind, FailureKind::Invalid);
        assert!(text.contains(expect), "{text}");
    }
}

#[test]
fn request_context_is_that_of_the_node_class() {
    let mut scene = Scene::new();
    scene.class.context = Some("reserved-for-us".into());
    assert_eq!(scene.request().context.as_deref(), Some("reserved-for-us"));
    // The launch was relaxed to fewer types than the pool requires.
    scene.launch.relaxed = true;
    assert_eq!(scene.request().context, None);
}

#[test]
fn request_reserves_the_addresses_of_its_smallest_type() {
    // m5.large takes at most 29 addresses, m5.xlarge 58.
    let mut scene = Scene::new().with_offerings(&[
        "m5.xlarge a on-demand",
        "m5.large a on-demand",
        "m5.xlarge b on-demand",
    ]);
    let subnets = |request: &FleetRequest| {
        let all = request.overrides().map(|own| own.subnet.clone());
        all.collect::<std::collections::BTreeSet<_>>()
    };
    let mut first = Vec::new();
    // 200 free addresses and 100: the first subnet gets four requests.
    for _ in 0..4 {
        let request = scene.request();
        assert!(subnets(&request).contains("subnet-a1"));
        first.push(request.taken.clone());
    }
    let fifth = scene.request();
    assert!(subnets(&fifth).contains("subnet-a2"), "{fifth:?}");
    for taken in first {
        scene.subnets.release_addresses(&taken, None);
    }
    assert!(subnets(&scene.request()).contains("subnet-a1"));
    scene.subnets.mark_exhausted("subnet-a1", NOW);
    assert!(subnets(&scene.request()).contains("subnet-a2"));
    scene.subnets.mark_exhausted("subnet-a2", NOW + SignedDuration::from_secs(1));
    let request = scene.request();
    assert_eq!(overrides(&request), [["m5.xlarge b b x86 0"]]);
    let kinds: Vec<RefusalKind> = request.refused.iter().map(|own| own.kind).collect();
    assert_eq!(kinds, [RefusalKind::NoAddress; 2]);
}

/// Returns a launch from reservations of m5.large: id, zone, kind, and whether they are
/// interruptible.
fn with_reservations(all: &[(&str, &str, ReservationKind, bool)]) -> Scene {
    let mut scene = Scene::new();
    let one = |(id, zone, kind, interruptible): &(&str, &str, ReservationKind, bool)| {
        let own =
            Reservation { kind: *kind, interruptible: *interruptible, ..Reservation::new(id, 1) };
        let zone = format!("us-east-1{zone}");
        ("m5.large".into(), zone.as_str().into(), own)
    };
    scene.catalog = scene.catalog.with_reservations(all.iter().map(one));
    let offerings = all.iter();
    let offerings =
        offerings.map(|(id, zone, ..)| offering(&format!("m5.large {zone} reserved {id}")));
    scene.launch.offerings = offerings.collect();
    scene
}

/// Each reservation has its own launch template, because the template contains its id.
#[test]
fn each_reservation_has_its_own_launch_template() {
    const DEFAULT: ReservationKind = ReservationKind::Default;
    let request =
        with_reservations(&[("cr-1", "a", DEFAULT, false), ("cr-2", "b", DEFAULT, false)])
            .request();
    let ids = request.configs.iter();
    let ids: Vec<Option<&str>> = ids.map(|own| own.template.reservation.as_deref()).collect();
    assert_eq!(ids, [Some("cr-1"), Some("cr-2")]);
    let expect = [["m5.large a a1 x86 0"], ["m5.large b b x86 0"]];
    assert_eq!(overrides(&request), expect);
}

/// A request uses only the kind of the first and cheapest reservation.
#[test]
fn request_uses_only_one_kind_of_reservation() {
    const DEFAULT: (ReservationKind, bool) = (ReservationKind::Default, false);
    const TAKEN_BACK: (ReservationKind, bool) = (ReservationKind::Default, true);
    const BLOCK: (ReservationKind, bool) = (ReservationKind::CapacityBlock, false);
    let kinds = [
        (DEFAULT, TargetCapacityType::OnDemand),
        (TAKEN_BACK, TargetCapacityType::Interruptible),
        (BLOCK, TargetCapacityType::CapacityBlock),
    ];
    for (first, target) in kinds {
        for (second, other) in kinds {
            let all = [("cr-1", "a", first), ("cr-2", "b", second)];
            let mut scene =
                with_reservations(&all.map(|(id, zone, (kind, own))| (id, zone, kind, own)));
            let request = scene.request();
            assert_eq!(request.target, target, "{first:?} {second:?}");
            let count = 1 + usize::from(target == other);
            assert_eq!(request.overrides().count(), count, "{first:?} {second:?}");
        }
    }
}

#[test]
fn exotic_types_are_left_out_if_ordinary_types_are_offered() {
    for exotic in ["m5.metal", "p5.48xlarge", "g5.xlarge", "trn1.2xlarge", "inf1.xlarge"] {
        let all = ["m5.large", exotic, "m5.xlarge"].map(|own| format!("{own} a on-demand"));
        let mut scene = Scene::new().with_offerings(&all.each_ref().map(String::as_str));
        scene.images.insert(exotic.into(), "ami-x86".to_owned());
        let expect = [["m5.large a a1 x86 0"], ["m5.xlarge a a1 x86 1"]];
        assert_eq!(overrides(&scene.request()), expect, "{exotic}");
        assert_eq!(scene.request().refused, [], "{exotic}");
        // With minValues the exotic type counts.
        scene.launch.varied = true;
        assert_eq!(scene.request().overrides().count(), 3, "{exotic}");
    }
}
