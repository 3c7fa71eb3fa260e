//! The region data while EC2 responses arrive.

use std::sync::Arc;

use jiff::Timestamp;
use outrigger::catalog::Catalog;
use outrigger::catalog::instance_type_info::{
    Accelerator, Gpu, InstanceTypeSpec, NetworkCard, Neuron,
};
use outrigger::catalog::region::{PriceSource, Region};
use outrigger::model::id::{TypeName, Zone};
use outrigger::model::instance::{Arch, CapacityType, Price};

use super::{SHIPPED, get, label, shape, sold};

fn price(usd: f64) -> Price {
    Price::new(usd).expect("a price")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

fn list(all: &[(&str, f64)]) -> Vec<(TypeName, Price)> {
    all.iter().map(|(name, usd)| ((*name).into(), price(*usd))).collect()
}

/// A region with m5.large in two zones, and with a type that is not shipped.
fn region() -> Region {
    let mut own = Region::with_shipped_prices("eu-west-1", &Region::shipped());
    let mut m5 = shape("m5.large");
    (m5.branch_enis, m5.network_mbps) = (0, None);
    let new = InstanceTypeSpec::new("z9.large", Arch::Arm64, 2, 4096);
    assert!(own.set_shapes([m5, new], &SHIPPED.0));
    let sold = |name: &str, zone: &str| (TypeName::from(name), Zone::from(zone));
    assert!(own.set_zones([
        sold("m5.large", "eu-west-1a"),
        sold("m5.large", "eu-west-1b"),
        sold("z9.large", "eu-west-1a"),
    ]));
    own
}

/// Price of each offering of a type, cheapest first.
fn prices(region: &Region, name: &str) -> String {
    let catalog = region.catalog();
    let offerings = &get(&catalog, name).offerings;
    let all = offerings.iter().map(|own| {
        let zone = own.zone.as_str().trim_start_matches("eu-west-1");
        let bought = match own.capacity_type {
            CapacityType::Spot => "spot",
            _ => "list",
        };
        format!("{zone} {bought} {}", own.price.usd_per_h())
    });
    all.collect::<Vec<_>>().join(", ")
}

#[test]
fn shipped_region_builds_the_shipped_catalog() {
    assert_eq!(*SHIPPED.1, Catalog::shipped());
    let source = SHIPPED.0.source;
    let expected = "the prices that ship, of us-east-1 in July 2026";
    assert_eq!(source.to_string(), expected);
    let text = include_str!("../../../src/catalog/ec2-us-east-1.csv");
    assert!(text.contains("prices of July 2026"));
}

/// A region without a fetched price list has the shipped prices by type name, and its source shows
/// it. Missing EC2 data is taken from the shipped types.
#[test]
fn other_region_starts_with_the_shipped_prices() {
    let own = region();
    assert_eq!(own.source, SHIPPED.0.source);
    assert_eq!(
        prices(&own, "m5.large"),
        "a spot 0.0336, b spot 0.0336, a list 0.096, b list 0.096"
    );
    assert_eq!(prices(&own, "z9.large"), "");
    let catalog = own.catalog();
    let m5 = get(&catalog, "m5.large");
    assert_eq!(m5.capacity.get("vpc.amazonaws.com/pod-eni"), 9);
    assert_eq!(label(m5, "aws/network-bandwidth"), "750");
    assert_eq!(label(m5, "topology.kubernetes.io/region"), "eu-west-1");
}

#[test]
fn empty_or_equal_responses_change_nothing() {
    let mut own = region();
    let before = own.clone();
    assert!(!own.set_shapes([], &SHIPPED.0));
    assert!(!own.set_zones([]));
    assert!(!own.set_zone_ids([]));
    assert!(!own.set_list_prices(&[], &list(&[("m5.metal", 5.0)]), at(1)));
    assert!(!own.set_list_prices(&list(&[("m5.large", 5.0)]), &[], at(1)));
    // EC2 sells no capacity at a price of zero.
    assert!(!own.set_list_prices(&list(&[("m5.large", 0.0)]), &list(&[("m5.metal", 5.0)]), at(1)));
    assert!(!own.set_spot_prices(&[], at(1)));
    let free = ("m5.large".into(), "eu-west-1a".into(), price(0.0));
    assert!(!own.set_spot_prices(&[free], at(1)));
    assert_eq!(own, before);
    // Equal data is no change.
    let same: Vec<InstanceTypeSpec> =
        own.shapes.values().map(|own| InstanceTypeSpec::clone(own)).collect();
    assert!(!own.set_shapes(same, &SHIPPED.0));
    let sold = own.sold.clone();
    let same = sold
        .iter()
        .flat_map(|(name, zones)| zones.iter().map(move |zone| (name.clone(), zone.clone())));
    assert!(!own.set_zones(same));
}

/// A price list counts only if both responses have arrived. Missing types keep their price.
#[test]
fn fetched_list_prices_replace_shipped_prices() {
    let mut own = region();
    let metal = list(&[("m5.metal", 5.0)]);
    let shared = list(&[("z9.large", 0.5), ("m5.large", 0.0)]);
    assert!(own.set_list_prices(&shared, &metal, at(60)));
    assert_eq!(own.source, PriceSource::Fetched { at: at(60) });
    assert_eq!(own.source.to_string(), "the price list of 1970-01-01T00:01:00Z");
    assert_eq!(prices(&own, "z9.large"), "a spot 0.175, a list 0.5");
    assert!(prices(&own, "m5.large").ends_with("b list 0.096"));
}

/// Before the first response, spot costs a share of the list price. After it, offerings without a
/// price are unavailable, and earlier prices are kept (spec §10, 47 and 49).
#[test]
fn fetched_spot_prices_replace_the_estimated_share() {
    let mut own = region();
    let one = |name: &str, zone: &str, usd| (TypeName::from(name), Zone::from(zone), price(usd));
    assert!(own.set_spot_prices(&[one("m5.large", "eu-west-1b", 0.04)], at(1)));
    let both = "b spot 0.04, a list 0.096, b list 0.096";
    assert_eq!(prices(&own, "m5.large"), both);
    assert!(own.set_spot_prices(&[one("z9.large", "eu-west-1a", 0.02)], at(2)));
    assert_eq!(prices(&own, "m5.large"), both);
    assert_eq!(own.spot.as_ref().map(|own| own.at), Some(at(2)));
    // A spot price is sufficient for a spot offering.
    assert_eq!(prices(&own, "z9.large"), "a spot 0.02");
}

/// EC2 decides the offerings: a price or a zone alone makes no offering.
#[test]
fn usage_classes_decide_the_offerings() {
    let mut own = region();
    let mut m5 = shape("m5.large");
    m5.spot = false;
    let mut block = shape("m5.large");
    block.name = "p9.large".into();
    (block.spot, block.on_demand) = (false, false);
    own.set_shapes([m5, block], &SHIPPED.0);
    let catalog = own.catalog();
    let m5 = get(&catalog, "m5.large");
    assert_eq!(sold(m5), "eu-west-1a:on-demand eu-west-1b:on-demand");
    assert_eq!(sold(get(&catalog, "p9.large")), "");
    // A type with zones but without a description is left out.
    assert!(catalog.get("z9.large").is_none());
}

/// Labels of types that the shipped table lacks.
#[test]
fn labels_are_derived_from_ec2_descriptions() {
    let gpu = Gpu {
        name: "RTX PRO 4500".into(),
        manufacturer: "NVIDIA".into(),
        count: 2,
        memory_mib: 512,
    };
    let neuron = Neuron { name: Some("Trainium 2".into()), devices: 2, cores: 4 };
    let accelerator =
        Accelerator { name: "Qualcomm AI100".into(), manufacturer: "Qualcomm".into(), count: 8 };
    let two = InstanceTypeSpec {
        gpus: vec![gpu.clone(), gpu.clone()],
        accelerators: vec![accelerator.clone()],
        enclaves: Some(false),
        disk_gb: Some(100),
        nvme: false,
        ..InstanceTypeSpec::new("a9.large", Arch::Amd64, 2, 4096)
    };
    let one = InstanceTypeSpec {
        gpus: vec![gpu],
        neurons: vec![neuron],
        accelerators: vec![accelerator],
        enclaves: Some(true),
        clock_mhz: Some(3600),
        disk_gb: Some(100),
        ebs_mbps: Some(10),
        ..InstanceTypeSpec::new("b9.large", Arch::Amd64, 2, 4096)
    };
    let mut own = Region::with_shipped_prices("eu-west-1", &Region::shipped());
    own.set_shapes([one, two], &SHIPPED.0);
    let catalog = own.catalog();
    let rows = [
        ("gpu-name", "-", "rtx-pro-4500"),
        ("gpu-count", "-", "2"),
        ("gpu-memory", "-", "512"),
        ("accelerator-name", "qualcomm-ai100", "trainium-2"),
        ("accelerator-manufacturer", "qualcomm", "aws"),
        ("accelerator-count", "8", "2"),
        ("local-nvme", "-", "100"),
        ("cpu-sustained-clock-speed-mhz", "-", "3600"),
        ("ebs-bandwidth", "-", "10"),
        ("network-bandwidth", "-", "-"),
    ];
    for (key, two, one) in rows {
        let of = |name| label(get(&catalog, name), &format!("aws/{key}"));
        assert_eq!((of("a9.large"), of("b9.large")), (two.into(), one.into()), "{key}");
    }
    let sandbox = |name| label(get(&catalog, name), "karpenter.k8s.aws/nitro-sandbox");
    assert_eq!((sandbox("a9.large"), sandbox("b9.large")), ("false".into(), "true".into()));
}

/// The default card is found by its index, not by its position.
#[test]
fn default_network_card_is_found_by_index() {
    let mut own = InstanceTypeSpec::new("x.large", Arch::Amd64, 2, 4096);
    let cards = [(1, 8), (0, 2)].map(|(index, enis)| NetworkCard { index, enis });
    own.set_cards(0, cards.to_vec());
    assert_eq!(own.card_enis, 2);
    own.set_cards(7, cards.to_vec());
    assert_eq!(own.card_enis, 0);
}

/// Zone ids become labels of types once they are known.
#[test]
fn zone_id_label_appears_once_the_id_is_known() {
    let mut own = region();
    let plain = Arc::new(own.catalog());
    assert_eq!(label(get(&plain, "m5.large"), "topology.k8s.aws/zone-id"), "?");
    assert!(own.set_zone_ids([("eu-west-1b".into(), "euw1-az1".into())]));
    let catalog = own.catalog();
    let ids = |name| label(get(&catalog, name), "topology.k8s.aws/zone-id");
    assert_eq!((ids("m5.large"), ids("z9.large")), ("euw1-az1".into(), "?".into()));
}
