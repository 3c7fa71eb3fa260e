//! Instance types for the benchmarks: the 400 fake types of Karpenter's benchmark, and the types of
//! its kwok provider.

use outrigger::catalog::{Catalog, parse, type_labels};
use outrigger::model::instance::{CapacityType, InstanceType, Offering, Price};
use outrigger::model::labels::{ARCH, INSTANCE_TYPE, OS};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use serde_json::{Value, json};

/// A mebibyte, in bytes.
pub const MIB: i64 = 1 << 20;
/// A gibibyte, in bytes.
pub const GIB: i64 = 1 << 30;

/// Zones of the fake types.
pub const FAKE_ZONES: [&str; 3] = ["test-zone-1", "test-zone-2", "test-zone-3"];

/// Capacity type and zone of each offering of a fake type.
const FAKE_OFFERINGS: [(CapacityType, usize); 5] = [
    (CapacityType::Spot, 0),
    (CapacityType::Spot, 1),
    (CapacityType::OnDemand, 0),
    (CapacityType::OnDemand, 1),
    (CapacityType::OnDemand, 2),
];

/// Returns `count` fake types. The first has one core and 2 GiB, and each next type adds the same
/// amount. The five offerings of a type have the same price. Source: spec/scheduling.md §6.4.
pub fn fake(count: i64) -> Catalog {
    Catalog::new((1..=count).map(fake_type))
}

#[expect(clippy::cast_precision_loss, reason = "a price")]
fn fake_type(cpu: i64) -> InstanceType {
    let memory = 2 * cpu * GIB;
    let price = 0.1 * cpu as f64 + 0.1 * memory as f64 / 1e9;
    let offering = |(capacity_type, zone): (CapacityType, usize)| Offering {
        zone: FAKE_ZONES[zone].into(),
        capacity_type,
        price: Price::new(price).expect("a price"),
        available: true,
        reservation: None,
    };
    let offerings = FAKE_OFFERINGS.map(offering).to_vec();
    let name = format!("fake-it-{}", cpu - 1);
    let integer = cpu.to_string();
    let large = cpu > 4 && memory > 8 * GIB;
    let special =
        if large { Requirement::is_in(["optional"]) } else { Requirement::does_not_exist() };
    let size = if large { "large" } else { "small" };
    let mut requirements = Requirements::from_iter([
        (INSTANCE_TYPE, Requirement::is_in([name.as_str()])),
        (ARCH, Requirement::is_in(["amd64"])),
        (OS, Requirement::is_in(["darwin", "linux", "windows"])),
        ("integer", Requirement::is_in([integer])),
        ("size", Requirement::is_in([size])),
        ("special", special),
    ]);
    type_labels::complete_labels(&mut requirements, &offerings);
    let capacity =
        Resources { cpu_milli: 1000 * cpu, memory, pods: 10 * cpu, ..Resources::default() };
    let mut allocatable = capacity.clone();
    allocatable.subtract(&Resources { cpu_milli: 100, memory: 10 * MIB, ..Resources::default() });
    InstanceType { name: name.as_str().into(), requirements, capacity, allocatable, offerings }
}

/// Returns the linear types of Karpenter's measurement as instance types.
pub fn kwok() -> Catalog {
    parse("kwok types", &linear_types().to_string()).expect("a catalog")
}

/// Returns the 72 linear types of Karpenter's measurement on a real control plane, in the format of
/// its kwok provider. They have 2, 4 or 8 GiB per core, amd64 or arm64, and a spot price of 0.7 of
/// the on-demand price.
pub fn linear_types() -> Value {
    const CPUS: [i64; 12] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256];
    let families = [("c", 2), ("s", 4), ("m", 8)];
    let arches = ["amd64", "arm64"];
    let mut types = Vec::new();
    for cpu in CPUS {
        for (family, ratio) in families {
            types.extend(arches.map(|arch| linear_type(cpu, family, ratio, arch)));
        }
    }
    Value::Array(types)
}

/// On-demand price of a linear type with `cpu` cores and `ratio` GiB per core: 0.025 $ per core and
/// 0.001 $ per 10⁹ bytes.
#[expect(clippy::cast_precision_loss, reason = "a price")]
pub fn linear_price(cpu: i64, ratio: i64) -> f64 {
    0.025 * cpu as f64 + 0.001 * (cpu * ratio * GIB) as f64 / 1e9
}

fn linear_type(cpu: i64, family: &str, ratio: i64, arch: &str) -> Value {
    let price = linear_price(cpu, ratio);
    let mut offerings = Vec::new();
    for zone in ["test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"] {
        for (capacity_type, share) in [("spot", 0.7), ("on-demand", 1.0)] {
            let one =
                |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
            offerings.push(json!({
                "Price": price * share,
                "Available": true,
                "Requirements": [
                    one("karpenter.sh/capacity-type", capacity_type),
                    one("topology.kubernetes.io/zone", zone),
                ],
            }));
        }
    }
    json!({
        "name": format!("{family}-{cpu}x-{arch}-linux"),
        "architecture": arch,
        "operatingSystems": ["linux"],
        "resources": {
            "cpu": cpu.to_string(),
            "memory": format!("{}Gi", cpu * ratio),
            "pods": (16 * cpu).min(1024).to_string(),
            "ephemeral-storage": "20Gi",
        },
        "offerings": offerings,
    })
}
