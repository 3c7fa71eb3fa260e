//! Tests of the catalog: golden rows of the specification, and checks of the shipped table.

use super::{Catalog, CatalogError, SHIPPED, csv, kwok, parse};
use crate::model::instance::{CapacityType, InstanceType, Offering};
use crate::model::labels;
use crate::model::requirement::Operator;
use crate::model::reservation::Reservation;

const MIB: i64 = 1 << 20;

/// Rows in the wide format of the table.
const WIDE: &str = "\
type,arch,vcpu,memory_mib,cpu_manufacturer,hypervisor,bare_metal,current_generation,spot,enis,\
ips_per_eni,network_cards,efa_max,trunking,branch_enis,network_mbps,ebs_mbps,nvme_gb,\
encryption_in_transit,gpu_name,gpu_manufacturer,gpu_count,gpu_memory_mib,accelerator_name,\
accelerator_manufacturer,accelerator_count,neuron_devices,neuron_cores,on_demand_usd_per_h,zones,\
clock_mhz
a1.medium,arm64,1,2048,AWS,nitro,0,0,1,2,4,1,0,1,10,500,3500,,0,,,,,,,,,,0.025500,abc,2300
g5.12xlarge,x86_64,48,196608,AMD,nitro,0,0,1,15,50,1,1,1,107,40000,16000,3800,1,A10G,NVIDIA,4,\
22888,,,,,,5.672000,abcdf,3300
m5.large,x86_64,2,8192,Intel,nitro,0,0,1,3,10,1,0,1,9,750,4750,,0,,,,,,,,,,0.096000,abcdf,3100
p5.48xlarge,x86_64,192,2097152,AMD,nitro,0,1,1,64,50,32,32,1,120,3200000,80000,30400,1,H100,NVIDIA\
,8,81920,,,,,,55.040000,abcdef,3600
";

fn get<'a>(catalog: &'a Catalog, name: &str) -> &'a InstanceType {
    catalog.get(name).expect("a type of the catalog")
}

/// A label of a type: its value, `-` if it is absent, `?` if it is not defined.
fn label(it: &InstanceType, key: &str) -> String {
    let name = key.strip_prefix("aws/");
    let key = name.map_or(key.to_owned(), |name| format!("karpenter.k8s.aws/instance-{name}"));
    let Some(requirement) = it.requirements.get(&key) else {
        return "?".into();
    };
    let values = requirement.values().expect("a set of values");
    match requirement.operator() {
        Operator::DoesNotExist => "-".into(),
        _ => values.iter().cloned().collect::<Vec<_>>().join(" "),
    }
}

/// Zone, capacity type and price of each offering.
fn prices(offerings: &[Offering]) -> String {
    offerings
        .iter()
        .map(|it| {
            let price = it.price.usd_per_h();
            format!("{} {} {price}", it.zone, it.capacity_type.as_str())
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// An error with all its sources.
fn chain(fault: &CatalogError) -> String {
    let mut text = fault.to_string();
    let mut source = std::error::Error::source(fault);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The golden rows of spec/aws.md §4.4.
#[test]
fn allocatable_matches_eks_nodes() {
    let catalog = Catalog::shipped();
    type Row = (&'static str, i64, i64, i64, &'static [(&'static str, i64)]);
    let rows: [Row; 7] = [
        ("a1.medium", 940, 1392, 8, &[]),
        ("m5.large", 1930, 6903, 29, &[]),
        ("c6g.large", 1930, 3055, 29, &[]),
        ("m5.24xlarge", 95690, 355_262, 737, &[]),
        ("g5.12xlarge", 47810, 173_400, 737, &[("nvidia.com/gpu", 4)]),
        ("p5.48xlarge", 191_450, 1_938_410, 100, &[("vpc.amazonaws.com/efa", 32)]),
        (
            "trn1.32xlarge",
            127_610,
            481_894,
            247,
            &[("aws.amazon.com/neuron", 16), ("aws.amazon.com/neuroncore", 32)],
        ),
    ];
    for (name, cpu_milli, memory_mib, pods, extended) in rows {
        let left = &get(&catalog, name).allocatable;
        assert_eq!(left.cpu_milli, cpu_milli, "{name}");
        assert_eq!((left.memory / MIB, left.memory % MIB), (memory_mib, 0), "{name}");
        assert_eq!(left.pods, pods, "{name}");
        assert_eq!(left.ephemeral_storage, 17 << 30, "{name}");
        for (resource, amount) in extended {
            assert_eq!(left.get(resource), *amount, "{name} {resource}");
        }
    }
    // Two cards, with all interfaces on the first.
    assert_eq!(get(&catalog, "i7ie.48xlarge").capacity.pods, 737);
    // Without trunk interface, there are no branch interfaces.
    assert_eq!(get(&catalog, "t3.nano").capacity.get("vpc.amazonaws.com/pod-eni"), 0);
    assert_eq!(get(&catalog, "m5.large").capacity.get("vpc.amazonaws.com/pod-eni"), 9);
}

#[test]
fn shipped_types_have_plausible_values() {
    let catalog = Catalog::shipped();
    assert_eq!(catalog.len(), 1340);
    for it in catalog.types() {
        let (all, left, name) = (&it.capacity, &it.allocatable, &it.name);
        assert!(0 < left.cpu_milli && left.cpu_milli < all.cpu_milli, "{name}: {left}");
        assert!(0 < left.memory && left.memory < all.memory, "{name}: {left}");
        assert!(left.ephemeral_storage < all.ephemeral_storage, "{name}: {left}");
        assert!(0 < left.pods && left.pods == all.pods, "{name}: {left}");
        assert_eq!(left.extended, all.extended, "{name}");
        assert!(all.extended.values().all(|amount| *amount > 0), "{name}: {all}");
        for key in labels::OF_TYPES {
            assert!(it.requirements.get(key).is_some(), "{name}: {key}");
        }
        for (key, _) in it.requirements.iter() {
            assert!(labels::is_well_known(key), "{name}: {key}");
        }
        let generation = label(it, "aws/generation");
        assert!(generation.parse::<u32>().is_ok(), "{name}: {generation:?}");
        assert!(!it.offerings.is_empty(), "{name}");
        assert!(
            it.offerings.is_sorted_by_key(|it| (it.price, it.zone.clone(), it.capacity_type)),
            "{name}: {}",
            prices(&it.offerings)
        );
    }
    assert_eq!(
        catalog.types().filter(|it| label(it, labels::CAPACITY_TYPE) == "on-demand spot").count(),
        1327
    );
    let zones: Vec<&str> = catalog.zones().iter().map(|it| it.as_str()).collect();
    let letters: Vec<&str> = zones.iter().map(|it| &it["us-east-1".len()..]).collect();
    assert_eq!(letters.concat(), "abcdef");
    assert_eq!(csv::region_comment(SHIPPED), Some("us-east-1"));
}

#[test]
fn labels_are_derived_from_the_table_columns() {
    let catalog = Catalog::shipped();
    let cases = [
        ("m5.large", labels::ARCH, "amd64"),
        ("m5.large", labels::OS, "linux"),
        ("m5.large", labels::REGION, "us-east-1"),
        ("m5.large", labels::WINDOWS_BUILD, "-"),
        ("m5.large", "topology.k8s.aws/zone-id", "?"),
        ("trn1.32xlarge", labels::ZONE, "us-east-1b us-east-1c us-east-1f"),
        ("u-3tb1.56xlarge", labels::CAPACITY_TYPE, "on-demand"),
        ("u-3tb1.56xlarge", "aws/category", "u"),
        ("u-3tb1.56xlarge", "aws/generation", "1"),
        ("u7in-16tb.224xlarge", "aws/generation", "7"),
        ("p6-b300.48xlarge", "aws/family", "p6-b300"),
        ("c7i-flex.large", "aws/capability-flex", "true"),
        ("m5.large", "aws/capability-flex", "false"),
        ("m5.large", "aws/cpu-manufacturer", "intel"),
        ("m5.large", "aws/hypervisor", "nitro"),
        ("m5.metal", "aws/hypervisor", ""),
        ("m5.metal", "aws/size", "metal"),
        ("m5.large", "aws/memory", "8192"),
        ("m5.large", "aws/gpu-count", "-"),
        ("m5.large", "aws/local-nvme", "-"),
        ("m5.large", "aws/tenancy", "dedicated default"),
        ("t2.nano", "aws/ebs-bandwidth", "-"),
        ("m5.large", "aws/cpu-sustained-clock-speed-mhz", "3100"),
        ("m5.large", labels::PLACEMENT_GROUP_ID, "-"),
        // Local disks of old types are not NVMe disks, and EBS optimization is not the default.
        ("c3.large", "aws/local-nvme", "-"),
        ("m1.large", "aws/ebs-bandwidth", "-"),
        ("g5.12xlarge", "aws/gpu-name", "a10g"),
        ("g5.12xlarge", "aws/gpu-memory", "22888"),
        ("g6f.large", "aws/gpu-count", "0"),
        ("inf1.6xlarge", "aws/accelerator-name", "inferentia"),
        ("trn1.32xlarge", "aws/accelerator-name", "trainium"),
        ("trn1.32xlarge", "aws/accelerator-count", "16"),
    ];
    for (name, key, expect) in cases {
        assert_eq!(label(get(&catalog, name), key), expect, "{name} {key}");
    }
}

#[test]
fn wide_table_parses_to_the_shipped_types() {
    let shipped = Catalog::shipped();
    let wide = parse("wide.csv", WIDE).expect("a catalog");
    assert_eq!(wide.len(), 4);
    for it in wide.types() {
        assert_eq!(Some(it), shipped.get(it.name.as_str()));
    }
    let elsewhere = format!("# region: eu-west-1\r\n{}", WIDE.replace('\n', "\r\n"));
    let elsewhere = parse("wide.csv", &elsewhere).expect("a catalog");
    assert_eq!(label(get(&elsewhere, "a1.medium"), labels::REGION), "eu-west-1");
    assert_eq!(
        prices(&get(&elsewhere, "a1.medium").offerings[2..4]),
        "eu-west-1c spot 0.008925, eu-west-1a on-demand 0.0255"
    );
}

#[test]
fn type_without_a_price_has_no_offerings() {
    let text = WIDE.replace(",0.025500,", ",,");
    let catalog = parse("wide.csv", &text).expect("a catalog");
    let it = get(&catalog, "a1.medium");
    assert_eq!(it.offerings, []);
    assert_eq!(label(it, labels::ZONE), "-");
    assert_eq!(label(it, labels::CAPACITY_TYPE), "-");
}

/// The row of an m5.large up to its memory.
const M5: &str = "m5.large,x86_64,2,8192,";

/// Replaced part of the wide table, its replacement, and the start of the error.
const TABLE_FAULTS: [(&str, &str, &str); 15] = [
    ("zones,", "zone,", "line 1: column \"zone\" is not known"),
    ("current_generation", "trunking", "line 1: column trunking is there twice"),
    (M5, "m5.large,x86_64,two,8192,", "line 4, column vcpu: \"two\" where a whole number"),
    (M5, "m5.large,x86_64,0,8192,", "line 4, column vcpu: \"0\" where a whole number of 1"),
    (M5, "m5.large,x86_64,2,-1,", "line 4, column memory_mib: \"-1\""),
    (M5, "m5.large,x86_64,2,,", "line 4, column memory_mib: \"\""),
    (M5, "m5.large,riscv,2,8192,", "line 4, column arch: \"riscv\""),
    (M5, "a1.medium,x86_64,2,8192,", "line 4: type a1.medium is on line 2 already"),
    (M5, ",x86_64,2,8192,", "line 4, column type: \"\" where a name"),
    (M5, "m5.large,\"x86_64\",2,1,8192,", "line 4: 32 fields where the header has 31"),
    ("0.096000", "NaN", "line 4, column on_demand_usd_per_h: \"NaN\""),
    ("0.096000", "-1", "line 4, column on_demand_usd_per_h: \"-1\""),
    ("0.096000,abcdf", "0.096000,abca", "line 4, column zones: \"abca\""),
    ("0.096000,abcdf", "0.096000,us-east-1a", "line 4, column zones: \"us-east-1a\""),
    ("H100", "", "line 5, column gpu_name: \"\""),
];

#[test]
fn table_errors_name_line_and_column() {
    for (from, to, expect) in TABLE_FAULTS {
        let text = WIDE.replacen(from, to, 1);
        assert_ne!(text, WIDE, "{from:?}");
        let fault = chain(&parse("t.csv", &text).expect_err(expect));
        let expect = format!("read the catalog t.csv: {expect}");
        assert!(fault.starts_with(&expect), "{fault}");
    }
}

#[test]
fn tables_without_types_or_columns_are_refused() {
    let header = WIDE.lines().next().expect("a header");
    for text in ["", "\n# only a remark\n", header] {
        let fault = chain(&csv::parse_csv(text, "r").expect_err("no types"));
        assert!(fault.starts_with("there are no instance types"), "{fault}");
    }
    let fault = chain(&csv::parse_csv("type,arch\n", "r").expect_err("no columns"));
    assert!(fault.starts_with("line 1: there is no column vcpu"), "{fault}");
}

#[test]
fn reservations_add_reserved_offerings() {
    let plain = csv::parse_csv(WIDE, "eu-").expect("a catalog");
    let reservation = |left| Reservation { left, ..Reservation::new("cr-1", 4) };
    let all = [("m5.large", 3), ("a1.medium", 2), ("unknown", 1)];
    let all = all.map(|(name, count)| (name.into(), "eu-a".into(), reservation(count)));
    let reserved = plain.with_reservations(all);
    let counted: Vec<u32> = reserved.reservations().values().map(|it| it.left).collect();
    assert_eq!(counted, [2], "the smallest count is used");
    let it = get(&reserved, "m5.large");
    assert_eq!(label(it, labels::CAPACITY_TYPE), "on-demand reserved spot");
    let first = it.offerings.first().expect("an offering");
    assert_eq!(first.capacity_type, CapacityType::Reserved);
    assert!((first.price.usd_per_h() * 1e7 - 0.096).abs() < 1e-9);
    assert_eq!(reserved.offering(&first.key(&it.name)), Some(first));
    let id = it.requirements.get(labels::RESERVATION_ID);
    let id = id.expect("defined");
    assert!(id.allows_label(None) && id.allows_label(Some("cr-1")));
    let unreserved = reserved.with_reservations([]);
    assert_eq!((&unreserved, unreserved.reservations().len()), (&plain, 0));
}

#[test]
fn kwok_reservations_are_read() {
    let id = r#"{"key": "karpenter.k8s.aws/capacity-reservation-id", "operator": "In",
        "values": ["cr-1"]}, {"key": "karpenter.sh/capacity-type""#;
    let text = KWOK.replacen("\"spot\"", "\"reserved\"", 1);
    let (start, end) = text.split_once("0.04,").expect("the second offering");
    let end = end.replacen("{\"key\": \"karpenter.sh/capacity-type\"", id, 1);
    let text = format!("{start}0.0, \"ReservationCapacity\": 3,{end}");
    let catalog = parse("types.json", &text).expect("a catalog");
    let reservations: Vec<_> = catalog.reservations().values().collect();
    assert_eq!(reservations, [&Reservation::new("cr-1", 3)]);
}

const KWOK: &str = r#"[
  {"name": "c-2x-amd64-linux", "architecture": "amd64", "operatingSystems": ["linux"],
   "resources": {"cpu": "2", "memory": "4Gi", "pods": "32", "ephemeral-storage": "20Gi"},
   "offerings": [
     {"Price": 0.06, "Available": true, "Requirements": [
       {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
       {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["test-zone-a"]}]},
     {"Price": 0.04, "Available": false, "Requirements": [
       {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
       {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["test-zone-b"]}]}]},
  {"name": "m5.large", "architecture": "arm64", "operatingSystems": ["linux"],
   "resources": {"cpu": 2, "memory": "8Gi", "nvidia.com/gpu": "1"}, "offerings": []}
]"#;

#[test]
fn kwok_types_are_read_with_their_labels_and_overhead() {
    let catalog = parse("types.json", KWOK).expect("a catalog");
    let it = get(&catalog, "c-2x-amd64-linux");
    assert_eq!(it.allocatable.cpu_milli, 1900);
    assert_eq!(it.allocatable.memory, (4096 - 10) * MIB);
    assert_eq!((it.allocatable.pods, it.allocatable.ephemeral_storage), (32, 20 << 30));
    assert_eq!(prices(&it.offerings), "test-zone-b spot 0.04, test-zone-a on-demand 0.06");
    assert_eq!(it.offerings.iter().filter(|it| it.available).count(), 1);
    let cases = [
        (labels::INSTANCE_TYPE, "c-2x-amd64-linux"),
        (labels::ARCH, "amd64"),
        (labels::OS, "linux"),
        (labels::ZONE, "test-zone-a test-zone-b"),
        (labels::CAPACITY_TYPE, "on-demand spot"),
        (labels::REGION, "-"),
        ("aws/gpu-count", "-"),
        ("karpenter.kwok.sh/instance-cpu", "2"),
        ("karpenter.kwok.sh/instance-memory", "4Gi"),
        ("karpenter.kwok.sh/instance-family", "c"),
        ("karpenter.kwok.sh/instance-size", "2"),
    ];
    for (key, expect) in cases {
        assert_eq!(label(it, key), expect, "{key}");
    }
    let it = get(&catalog, "m5.large");
    assert_eq!(label(it, "karpenter.kwok.sh/instance-size"), "large");
    assert_eq!(label(it, "karpenter.kwok.sh/instance-family"), "m5");
    assert_eq!((it.capacity.cpu_milli, it.capacity.pods), (2000, 110));
    assert_eq!(it.capacity.get("nvidia.com/gpu"), 1);
}

#[test]
fn kwok_list_errors_name_type_and_field() {
    let type_ = "type \"c-2x-amd64-linux\"";
    let cases = [
        ("\"4Gi\"", "\"4GiB\"", format!("{type_}, resources.memory: \"4GiB\" is not a quantity")),
        ("\"4Gi\"", "true", format!("{type_}, resources.memory: is no quantity")),
        ("\"4Gi\"", "\"-4Gi\"", format!("{type_}, resources.memory: is negative")),
        ("\"cpu\": \"2\", ", "", format!("{type_}, resources.cpu: is missing")),
        ("\"spot\"", "\"sport\"", format!("{type_}, offerings[1]: has capacity type \"sport\"")),
        ("0.06", "-0.06", format!("{type_}, offerings[0]: has the price -0.06")),
        ("\"In\"", "\"NotIn\"", format!("{type_}, offerings[0]: wants one requirement on")),
        ("m5.large", "c-2x-amd64-linux", "type c-2x-amd64-linux is there twice".into()),
        ("\"Price\": 0.06, ", "", "it is not a JSON list of instance types".into()),
    ];
    for (from, to, expect) in cases {
        let text = KWOK.replacen(from, to, 1);
        assert_ne!(text, KWOK, "{from:?}");
        let fault = chain(&parse("t.json", &text).expect_err(&expect));
        let expect = format!("read the catalog t.json: {expect}");
        assert!(fault.starts_with(&expect), "{fault}");
    }
    let unnamed = KWOK.replacen("\"spot\"", "\"reserved\"", 1);
    let fault = chain(&parse("t.json", &unnamed).expect_err("a reservation without its id"));
    assert!(fault.contains(labels::RESERVATION_ID), "{fault}");
    let twice = KWOK.replace("\"spot\"", "\"on-demand\"").replace("test-zone-b", "test-zone-a");
    let fault = chain(&kwok::parse_kwok_json(&twice).expect_err("one key twice"));
    assert!(fault.contains("name one zone, capacity type and reservation twice"), "{fault}");
    assert!(matches!(kwok::parse_kwok_json("[]"), Err(CatalogError::Empty)));
}

#[test]
fn spot_is_cheaper_than_on_demand_for_every_type() {
    for it in Catalog::shipped().types() {
        let cheapest = |wanted: CapacityType| {
            let mut offerings = it.offerings.iter().filter(|it| it.capacity_type == wanted);
            offerings.next().map(|it| it.price)
        };
        let (spot, on_demand) = (cheapest(CapacityType::Spot), cheapest(CapacityType::OnDemand));
        assert!(spot < on_demand, "{}: {spot:?} {on_demand:?}", it.name);
    }
}
