//! Samples of instance types and their offerings. A catalog has hundreds of types with several
//! offerings each, so only the types of existing nodes have series.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::id::TypeName;
use crate::model::instance::{InstanceType, Offering};
use crate::model::labels::INSTANCE_TYPE;
use crate::state::State;
use crate::telemetry::cluster_collector::{SampleBuffer, resource_value};

/// The label with the number of vCPUs of an EC2 instance type.
const VCPUS: &str = "karpenter.k8s.aws/instance-cpu";

/// The label with the memory of an EC2 instance type in MiB. Nodes of the type report less memory.
const MEMORY_MIB: &str = "karpenter.k8s.aws/instance-memory";

const MIB: f64 = 1_048_576.0;

/// Adds the types of existing nodes and their offerings.
pub(super) fn collect_offerings(buffer: &mut SampleBuffer, state: &State, now: Timestamp) {
    let nodes = state.objects.nodes.values();
    let names: BTreeSet<&str> =
        nodes.filter_map(|node| node.labels.get(INSTANCE_TYPE)).map(String::as_str).collect();
    for kind in names.into_iter().filter_map(|name| state.catalog.get(name)) {
        let labels = [("instance_type", kind.name.as_str())];
        let cores = number_of(kind, VCPUS);
        let cores = cores.unwrap_or_else(|| resource_value("cpu", kind.capacity.cpu_milli));
        buffer.add_sample("karpenter_cloudprovider_instance_type_cpu_cores", &labels, cores);
        let memory = number_of(kind, MEMORY_MIB).map(|memory| memory * MIB);
        let memory = memory.unwrap_or_else(|| resource_value("memory", kind.capacity.memory));
        buffer.add_sample("karpenter_cloudprovider_instance_type_memory_bytes", &labels, memory);
        collect_type(buffer, state, kind, now);
    }
}

/// Adds the offerings of a type. All reservations of one zone have one series. It shows whether any
/// of these reservations is available, and the lowest price.
fn collect_type(buffer: &mut SampleBuffer, state: &State, kind: &InstanceType, now: Timestamp) {
    let mut offerings = BTreeMap::new();
    for offering in &kind.offerings {
        let key = (offering.capacity_type, &offering.zone);
        let (available, price) = offerings.entry(key).or_insert((false, offering.price));
        *available |= is_available(state, &kind.name, offering, now);
        *price = (*price).min(offering.price);
    }
    for ((capacity_type, zone), (available, price)) in offerings {
        let labels = [
            ("instance_type", kind.name.as_str()),
            ("capacity_type", capacity_type.as_str()),
            ("zone", zone.as_str()),
        ];
        let available = f64::from(u8::from(available));
        let name = "karpenter_cloudprovider_instance_type_offering_available";
        buffer.add_sample(name, &labels, available);
        let name = "karpenter_cloudprovider_instance_type_offering_price_estimate";
        buffer.add_sample(name, &labels, price.usd_per_h());
    }
}

/// Returns whether the provider sells an offering, and at least one pool may launch it now.
fn is_available(state: &State, kind: &TypeName, offering: &Offering, now: Timestamp) -> bool {
    let key = offering.key(kind);
    let mut pools = state.cluster.pools.iter();
    offering.available
        && pools.any(|pool| !state.holds.is_held(pool.node_class.as_ref(), &key, now))
}

/// The number in a label of a type. `None` if it has no such label or several values.
fn number_of(kind: &InstanceType, label: &str) -> Option<f64> {
    let values = kind.requirements.get(label)?.values()?;
    values.first().filter(|_| values.len() == 1)?.parse().ok()
}
