//! The catalog: resources of EC2 instance types, offerings of regions, and node classes.

mod builtin_types;
mod capacity;
mod regions;
mod node_classes;
mod drift;
mod planned_nodes;

use std::sync::{Arc, LazyLock};

use outrigger::catalog::Catalog;
use outrigger::catalog::instance_type_info::InstanceTypeSpec;
use outrigger::catalog::region::Region;
use outrigger::model::instance::InstanceType;
use outrigger::model::labels;
use outrigger::model::requirement::Operator;

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;

/// The shipped region with its catalog.
static SHIPPED: LazyLock<(Region, Arc<Catalog>)> = LazyLock::new(|| {
    let region = Region::shipped();
    let catalog = Arc::new(region.catalog());
    (region, catalog)
});

fn shape(name: &str) -> InstanceTypeSpec {
    InstanceTypeSpec::clone(&SHIPPED.0.shapes[name])
}

/// Returns the values of a label of a type: `-` if it is absent, `?` if it is undefined. `aws/`
/// stands for AWS' own hardware labels.
fn label(it: &InstanceType, key: &str) -> String {
    let own = key.strip_prefix("aws/");
    let key = own.map_or(key.to_owned(), |own| format!("karpenter.k8s.aws/instance-{own}"));
    let Some(requirement) = it.requirements.get(&key) else {
        return "?".into();
    };
    let values = requirement.values();
    match (requirement.operator(), values) {
        (Operator::DoesNotExist, _) if requirement.is_impossible() => "impossible".into(),
        (Operator::DoesNotExist, _) => "-".into(),
        (_, Some(values)) => values.iter().cloned().collect::<Vec<_>>().join(" "),
        (_, None) => "any".into(),
    }
}

/// Returns zones and capacity types of the available offerings, sorted, without the region.
fn sold(it: &InstanceType) -> String {
    let available = it.offerings.iter().filter(|own| own.available);
    let mut all: Vec<String> = available
        .map(|own| {
            let zone = own.zone.as_str();
            let zone = zone.strip_prefix("us-east-1").unwrap_or(zone);
            format!("{zone}:{}", own.capacity_type.as_str())
        })
        .collect();
    all.sort();
    all.join(" ")
}

fn get<'a>(catalog: &'a Catalog, name: &str) -> &'a InstanceType {
    catalog.get(name).expect("a type of the catalog")
}

#[test]
fn label_helper_shows_values_absence_and_unknown_keys() {
    let it = get(&SHIPPED.1, "m5.large");
    assert_eq!(label(it, labels::ARCH), "amd64");
    assert_eq!(label(it, "aws/gpu-count"), "-");
    assert_eq!(label(it, "no-such"), "?");
}
