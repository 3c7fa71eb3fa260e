//! The labels of an EC2 instance type, as requirements.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::model::id::Zone;
use crate::model::instance::{Arch, InstanceType, Offering};
use crate::model::labels;
use crate::model::node_class::image::AmiFamily;
use crate::model::node_class::resolved::{PlacementGroup, PlacementGroupStrategy};
use crate::model::requirement::{Requirement, Requirements};

/// Maximum number of partitions in a placement group. EC2 allows 7.
const PARTITIONS_MAX: u32 = 100;

/// Possible labels of an instance type in this region with these offerings and images of this
/// family.
pub fn label_requirements(
    shape: &InstanceTypeSpec,
    region: &str,
    family: AmiFamily,
    offerings: &[Offering],
) -> Requirements {
    let mut all = Requirements::default();
    add_operating_system(&mut all, shape, family);
    for (key, value) in [
        (labels::INSTANCE_TYPE, shape.name.as_str()),
        (labels::ARCH, shape.arch.as_str()),
        (labels::REGION, region),
    ] {
        all.add(key, Requirement::is_in([value]));
    }
    for (name, value) in shape_labels(shape) {
        if let Some(value) = value {
            let key = format!("{}{name}", labels::AWS_PREFIX);
            all.add(&key, Requirement::is_in([value]));
        }
    }
    all.add("karpenter.k8s.aws/instance-tenancy", Requirement::is_in(["default", "dedicated"]));
    complete_labels(&mut all, offerings);
    all
}

/// Returns the labels that follow from the specification, without their prefix, and their values.
fn shape_labels(shape: &InstanceTypeSpec) -> Vec<(&'static str, Option<String>)> {
    let (family, size) = shape.name.split_once('.').unzip();
    let (category, generation) = category_and_generation(&shape.name).unzip();
    let flex = family.is_some_and(|family| family.contains("-flex"));
    let cpu_manufacturer = shape.cpu_manufacturer.as_deref().map(kebab_case);
    let nvme_gb = shape.disk_gb.filter(|_| shape.nvme);
    let numbers = [shape.clock_mhz, shape.ebs_mbps, shape.network_mbps, nvme_gb];
    let [clock_mhz, ebs_mbps, network_mbps, nvme_gb] =
        numbers.map(|number| number.map(|number| number.to_string()));
    let encryption = shape.encryption_in_transit.map(|yes| yes.to_string());
    let mut all = vec![
        ("instance-category", category.map(str::to_owned)),
        ("instance-generation", generation.map(str::to_owned)),
        ("instance-family", family.map(str::to_owned)),
        ("instance-size", size.map(str::to_owned)),
        ("instance-capability-flex", Some(flex.to_string())),
        ("instance-cpu", Some(shape.vcpu.to_string())),
        ("instance-memory", Some(shape.memory_mib.to_string())),
        ("instance-cpu-manufacturer", cpu_manufacturer),
        ("instance-cpu-sustained-clock-speed-mhz", clock_mhz),
        ("instance-hypervisor", shape.hypervisor.clone()),
        ("instance-ebs-bandwidth", ebs_mbps),
        ("instance-network-bandwidth", network_mbps),
        ("instance-local-nvme", nvme_gb),
        ("instance-encryption-in-transit-supported", encryption),
        ("nitro-sandbox", shape.enclaves.map(|yes| yes.to_string())),
    ];
    // With several kinds of GPU, no GPU label is set (spec §10, 39).
    if let [gpu] = &shape.gpus[..] {
        all.extend([
            ("instance-gpu-name", Some(kebab_case(&gpu.name))),
            ("instance-gpu-manufacturer", Some(kebab_case(&gpu.manufacturer))),
            ("instance-gpu-count", Some(gpu.count.to_string())),
            ("instance-gpu-memory", Some(gpu.memory_mib.to_string())),
        ]);
    }
    let accelerator = match (&shape.neurons[..], &shape.accelerators[..]) {
        ([neuron], _) => Some((neuron.name.as_deref(), "aws", neuron.devices)),
        ([], [accelerator]) => {
            Some((Some(accelerator.name.as_str()), &*accelerator.manufacturer, accelerator.count))
        }
        _ => None,
    };
    if let Some((name, manufacturer, count)) = accelerator {
        let manufacturer = kebab_case(manufacturer);
        all.extend([
            ("instance-accelerator-name", name.map(kebab_case)),
            ("instance-accelerator-manufacturer", Some(manufacturer)),
            ("instance-accelerator-count", Some(count.to_string())),
        ]);
    }
    all
}

/// Adds the operating systems. Windows does not support Arm, so an Arm type with Windows images has
/// no operating system.
pub fn add_operating_system(all: &mut Requirements, shape: &InstanceTypeSpec, family: AmiFamily) {
    let os = match (family.windows_build(), shape.arch) {
        (None, _) => Requirement::is_in(["linux"]),
        (Some(_), Arch::Amd64) => Requirement::is_in(["windows"]),
        (Some(_), Arch::Arm64) => Requirement::impossible(),
    };
    all.add(labels::OS, os);
    let build = family.windows_build().map(|build| Requirement::is_in([build]));
    let build = build.unwrap_or_else(Requirement::does_not_exist);
    all.add(labels::WINDOWS_BUILD, build);
}

/// Adds the known IDs of the zones of a type, and the placement group of its nodes. Every partition
/// is possible: the launch selects one.
pub fn add_placement(
    instance_type: &mut InstanceType,
    zone_ids: &BTreeMap<Zone, String>,
    group: Option<&PlacementGroup>,
) {
    let zones = instance_type.offerings.iter().map(|it| &it.zone);
    let ids: BTreeSet<&str> =
        zones.filter_map(|zone| zone_ids.get(zone).map(String::as_str)).collect();
    if !ids.is_empty() {
        let ids = Requirement::is_in(ids);
        instance_type.requirements.add(labels::ZONE_ID, ids);
    }
    let (id, partition) = match group {
        None => (Requirement::does_not_exist(), Requirement::does_not_exist()),
        Some(group) => {
            let partition = match group.strategy {
                PlacementGroupStrategy::Partition(count) => {
                    let count = count.min(PARTITIONS_MAX);
                    Requirement::is_in((1..=count).map(|number| number.to_string()))
                }
                PlacementGroupStrategy::Cluster | PlacementGroupStrategy::Spread => {
                    Requirement::does_not_exist()
                }
            };
            (Requirement::is_in([group.id.as_str()]), partition)
        }
    };
    let requirements = &mut instance_type.requirements;
    requirements.add(labels::PLACEMENT_GROUP_ID, id);
    requirements.add(labels::PLACEMENT_GROUP_PARTITION, partition);
}

/// Adds zones and capacity types of the offerings, and sets every missing label to absent.
pub fn complete_labels(all: &mut Requirements, offerings: &[Offering]) {
    let zones: BTreeSet<&str> = offerings.iter().map(|it| it.zone.as_str()).collect();
    let bought = offerings.iter().map(|it| it.capacity_type.as_str());
    let bought: BTreeSet<&str> = bought.collect();
    all.add(labels::ZONE, Requirement::is_in(zones));
    all.add(labels::CAPACITY_TYPE, Requirement::is_in(bought));
    if offerings.iter().any(|it| it.reservation.is_some()) {
        // These labels exist only on some of the nodes.
        for key in labels::OF_RESERVATIONS {
            all.add(key, Requirement::not_in([""; 0]));
        }
    }
    for key in labels::OF_TYPES {
        if all.get(key).is_none() {
            all.add(key, Requirement::does_not_exist());
        }
    }
}

/// Category and generation of an instance type: `m` and `7` of `m7i.large`, `u` and `1` of
/// `u-6tb1.metal`. Spec §4.2: `(^[a-z]+)(\-[0-9]+tb)?([0-9]+).*\.`, groups 1 and 3.
fn category_and_generation(name: &str) -> Option<(&str, &str)> {
    let (family, _) = name.rsplit_once('.')?;
    let (category, mut rest) = split_while(family, |c| c.is_ascii_lowercase())?;
    if let Some(after) = rest.strip_prefix('-') {
        let (_, after) = split_while(after, |c| c.is_ascii_digit())?;
        rest = after.strip_prefix("tb")?;
    }
    let (generation, _) = split_while(rest, |c| c.is_ascii_digit())?;
    Some((category, generation))
}

fn split_while(text: &str, keep: fn(char) -> bool) -> Option<(&str, &str)> {
    let end = text.find(|c| !keep(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Converts a name from EC2 to a label value: `RTX PRO 4500` becomes `rtx-pro-4500`.
fn kebab_case(name: &str) -> String {
    name.to_lowercase().replace(' ', "-")
}
