//! The labels of an EC2 instance type, as requirements.
//! It must not know prices, nor the settings of a node class (spec/aws.md §4.2).

use std::collections::BTreeSet;

use crate::catalog::shape::Shape;
use crate::model::instance::Offering;
use crate::model::labels;
use crate::model::requirement::{Requirement, Requirements};

/// What the labels of an instance type of this region and these offerings may be.
pub fn requirements(shape: &Shape, region: &str, offerings: &[Offering]) -> Requirements {
    let mut all = Requirements::default();
    let mut set = |key: &str, value: &str| all.add(key, Requirement::is_in([value]));
    set(labels::INSTANCE_TYPE, &shape.name);
    set(labels::ARCH, shape.arch.as_str());
    set(labels::OS, "linux");
    set(labels::REGION, region);
    let mut aws = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            set(&format!("{}{name}", labels::AWS_PREFIX), value);
        }
    };
    let number = |amount: Option<u32>| amount.map(|amount| amount.to_string());
    let family = shape.name.split_once('.');
    let lineage = lineage(&shape.name);
    aws("instance-category", lineage.map(|(category, _)| category));
    aws(
        "instance-generation",
        lineage.map(|(_, generation)| generation),
    );
    aws("instance-family", family.map(|(family, _)| family));
    aws("instance-size", family.map(|(_, size)| size));
    let flex = family.is_some_and(|(family, _)| family.contains("-flex"));
    aws("instance-capability-flex", Some(yes_or_no(flex)));
    aws("instance-cpu", Some(&shape.vcpu.to_string()));
    aws("instance-memory", Some(&shape.memory_mib.to_string()));
    let cpu_manufacturer = shape.cpu_manufacturer.as_deref().map(kebab);
    aws("instance-cpu-manufacturer", cpu_manufacturer.as_deref());
    aws("instance-hypervisor", shape.hypervisor.as_deref());
    aws("instance-ebs-bandwidth", number(shape.ebs_mbps).as_deref());
    aws(
        "instance-network-bandwidth",
        number(shape.network_mbps).as_deref(),
    );
    aws("instance-local-nvme", number(shape.nvme_gb).as_deref());
    let encryption = shape.encryption_in_transit.map(yes_or_no);
    aws("instance-encryption-in-transit-supported", encryption);
    if let Some(gpu) = &shape.gpu {
        aws("instance-gpu-name", Some(&kebab(&gpu.name)));
        aws("instance-gpu-manufacturer", Some(&kebab(&gpu.manufacturer)));
        aws("instance-gpu-count", Some(&gpu.count.to_string()));
        aws("instance-gpu-memory", Some(&gpu.memory_mib.to_string()));
    }
    if let Some(neuron) = &shape.neuron {
        aws(
            "instance-accelerator-name",
            neuron.name.as_deref().map(kebab).as_deref(),
        );
        aws("instance-accelerator-manufacturer", Some("aws"));
        aws(
            "instance-accelerator-count",
            Some(&neuron.devices.to_string()),
        );
    }
    all.add(
        "karpenter.k8s.aws/instance-tenancy",
        Requirement::is_in(["default", "dedicated"]),
    );
    complete(&mut all, offerings);
    all
}

/// Adds zones and capacity types of the offerings, and every label still missing as absent.
pub fn complete(all: &mut Requirements, offerings: &[Offering]) {
    let zones: BTreeSet<&str> = offerings.iter().map(|it| it.zone.as_str()).collect();
    let bought: BTreeSet<&str> = offerings
        .iter()
        .map(|it| it.capacity_type.as_str())
        .collect();
    all.add(labels::ZONE, Requirement::is_in(zones));
    all.add(labels::CAPACITY_TYPE, Requirement::is_in(bought));
    if offerings.iter().any(|it| it.reservation.is_some()) {
        // Some of its nodes have these labels, and some do not.
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
fn lineage(name: &str) -> Option<(&str, &str)> {
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

/// Names from EC2 as labels may have them: `RTX PRO 4500` becomes `rtx-pro-4500`.
fn kebab(name: &str) -> String {
    name.to_lowercase().replace(' ', "-")
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "true" } else { "false" }
}
