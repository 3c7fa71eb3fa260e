//! Capacity and allocatable resources of an EC2 instance with a node class.
//!
//! Source: spec/aws.md §4.3 and §4.4; for clusters without EKS, §9.2.

use std::collections::BTreeMap;

use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::model::instance::Arch;
use crate::model::node_class::NodeClass;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::node_class::image::AmiFamily;
use crate::model::node_class::kubelet::{Reserved, Signal, Threshold};
use crate::model::node_class::network::NetworkInterface;
use crate::model::quantity::Resources;

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
const GB: i64 = 1_000_000_000;
/// Memory that EC2's firmware reserves on Arm instances.
const ARM_FIRMWARE_MIB: i64 = 64;
/// Default size of the root volume.
const ROOT_VOLUME: i64 = 20 * GIB;
/// Default size of the root volume on Windows.
const ROOT_VOLUME_WINDOWS: i64 = 50 * GIB;
/// Maximum number of pods on a node if pod addresses do not come from the network interfaces. It is
/// the default of the kubelet.
const PODS: i64 = 110;
/// Part of the root volume that the kubelet reserves.
const KUBE_RESERVED_DISK: i64 = GIB;
/// Memory that the kubelet reserves: a quantity per pod, and a base.
const KUBE_RESERVED_MIB_PER_POD: i64 = 11;
const KUBE_RESERVED_MIB: i64 = 255;
/// Eviction threshold of the kubelet for free memory.
const EVICTION_MEMORY: i64 = 100 * MIB;
/// Eviction threshold of the kubelet for the root volume, in hundredths of a percent.
const EVICTION_DISK: u32 = 1_000;
/// 100% in hundredths of a percent. This value disables a threshold.
const ALL: u32 = 10_000;
/// Default reservations of Talos on a worker. Source: Talos, `pkg/machinery/constants`,
/// `KubeletSystemReserved…`.
const TALOS: [(&str, i64); 3] =
    [("cpu", 50), ("memory", 384 * MIB), ("ephemeral-storage", 256 * MIB)];

/// The node class with which resources are computed by default: Amazon Linux 2023 with default
/// settings.
pub fn default_node_class() -> NodeClass {
    NodeClass { family: AmiFamily::Al2023, ..NodeClass::default() }
}

/// Capacity that the kubelet reports. `observed_memory` is the memory that nodes of this type and
/// image have reported. This value replaces the estimate.
pub fn capacity(
    shape: &InstanceTypeSpec,
    class: &NodeClass,
    observed_memory: Option<i64>,
) -> Resources {
    let mut all = Resources {
        cpu_milli: i64::from(shape.vcpu) * 1000,
        memory: observed_memory.unwrap_or_else(|| usable_memory(shape, class)),
        ephemeral_storage: ephemeral_storage(shape, class),
        pods: max_pods_per_node(shape, class),
        ..Resources::default()
    };
    let gpus_of = |manufacturer: &str| -> i64 {
        let gpus = shape.gpus.iter();
        let gpus = gpus.filter(|gpu| gpu.manufacturer == manufacturer);
        gpus.map(|gpu| i64::from(gpu.count)).sum()
    };
    let devices = shape.neurons.iter().map(|neuron| i64::from(neuron.devices));
    let cores = shape.neurons.first().map_or(0, |neuron| neuron.cores);
    let is_windows = class.family.windows_build().is_some();
    let addresses = i64::from(is_windows) * (i64::from(shape.ips_per_eni) - 1);
    let extended = [
        ("nvidia.com/gpu", gpus_of("NVIDIA")),
        ("amd.com/gpu", gpus_of("AMD")),
        ("habana.ai/gaudi", gpus_of("Habana")),
        ("aws.amazon.com/neuron", devices.sum()),
        ("aws.amazon.com/neuroncore", cores.into()),
        ("vpc.amazonaws.com/efa", efa_adapters(shape, class)),
        ("vpc.amazonaws.com/pod-eni", shape.branch_enis.into()),
        ("vpc.amazonaws.com/PrivateIPv4Address", addresses),
    ];
    let extended = extended.into_iter().filter(|(_, amount)| *amount > 0);
    let extended = extended.map(|(name, amount)| (name.to_owned(), amount));
    all.extended.extend(extended);
    all
}

/// Allocatable resources: the capacity without reservations and eviction thresholds. Thresholds in
/// percent refer to the estimated memory, even if nodes have reported another value (spec §4.4).
/// Soft thresholds are not subtracted (spec §10, 33).
pub fn allocatable(
    shape: &InstanceTypeSpec,
    class: &NodeClass,
    observed_memory: Option<i64>,
) -> Resources {
    let mut allocatable = capacity(shape, class, observed_memory);
    let disk = allocatable.ephemeral_storage;
    for reserved in [kube_reserved(shape, class), system_reserved(class)] {
        for (name, amount) in [
            ("cpu", &mut allocatable.cpu_milli),
            ("memory", &mut allocatable.memory),
            ("ephemeral-storage", &mut allocatable.ephemeral_storage),
        ] {
            *amount = amount.saturating_sub(reserved.get(name).copied().unwrap_or(0));
        }
    }
    let hard = &class.kubelet.eviction_hard;
    let memory_kept = match hard.get(&Signal::MemoryAvailable) {
        Some(limit) => threshold_amount(limit, usable_memory(shape, class)),
        None => EVICTION_MEMORY,
    };
    let share = Threshold::Share(EVICTION_DISK);
    let disk_kept = threshold_amount(hard.get(&Signal::NodefsAvailable).unwrap_or(&share), disk);
    for (amount, kept) in [
        (&mut allocatable.cpu_milli, 0),
        (&mut allocatable.memory, memory_kept),
        (&mut allocatable.ephemeral_storage, disk_kept),
    ] {
        *amount = amount.saturating_sub(kept).max(0);
    }
    allocatable
}

/// Maximum number of pods on a node. The VPC network plugin gives each pod an address of a network
/// interface. Without this plugin, pod addresses come from an overlay network. Address prefixes are
/// ignored: users who enable them set the number of pods themselves. Source: spec §4.3.
pub fn max_pods_per_node(shape: &InstanceTypeSpec, class: &NodeClass) -> i64 {
    let maximum = match class.kubelet.max_pods {
        Some(max_pods) => max_pods.into(),
        None if joins_other_cluster(class) || class.family.windows_build().is_some() => PODS,
        None => eni_pods(shape, class, class.reserved_enis),
    };
    match class.kubelet.pods_per_core {
        Some(per_core) if per_core > 0 && class.family != AmiFamily::Bottlerocket => {
            maximum.min(i64::from(per_core) * i64::from(shape.vcpu))
        }
        _ => maximum,
    }
}

/// Reservations of the kubelet: `cpu` in thousandths of a core, the rest in bytes.
///
/// EKS images derive these reservations from the number of cores and the number of pods. Amazon
/// Linux and custom images use the number of pods that the network interfaces allow, regardless of
/// other settings. Bottlerocket and Windows use the actual maximum (spec §4.4 and §10, 31).
/// Kubelets of other clusters reserve only the values of the node class. User data sets these
/// values, so the kubelet and the node class always agree (spec §9.2, 4).
pub fn kube_reserved(shape: &InstanceTypeSpec, class: &NodeClass) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    if !joins_other_cluster(class) {
        let pods = match class.family {
            AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Custom => eni_pods(shape, class, 0),
            _ => max_pods_per_node(shape, class),
        };
        let memory = KUBE_RESERVED_MIB_PER_POD.saturating_mul(pods) + KUBE_RESERVED_MIB;
        let cpu = kube_reserved_cpu_milli(shape.vcpu.into());
        all.insert("cpu".to_owned(), cpu);
        all.insert("memory".to_owned(), memory * MIB);
        all.insert("ephemeral-storage".to_owned(), KUBE_RESERVED_DISK);
    }
    all.extend(reserved_amounts(&class.kubelet.kube_reserved));
    all
}

/// Reservations for the system: the values of the node class, or the defaults of Talos. `cpu` is in
/// thousandths of a core, the rest in bytes.
pub fn system_reserved(class: &NodeClass) -> BTreeMap<String, i64> {
    let reserved = &class.kubelet.system_reserved;
    if reserved.is_empty() && matches!(class.bootstrap, Bootstrap::Talos { .. }) {
        return TALOS.map(|(name, amount)| (name.to_owned(), amount)).into();
    }
    reserved_amounts(reserved).collect()
}

/// Returns true if nodes join a cluster other than EKS. Images of such nodes have no EKS settings,
/// and their pods have no EC2 addresses.
fn joins_other_cluster(class: &NodeClass) -> bool {
    class.bootstrap != Bootstrap::Eks
}

fn reserved_amounts(reserved: &BTreeMap<String, Reserved>) -> impl Iterator<Item = (String, i64)> {
    reserved.iter().map(|(name, reserved)| (name.clone(), reserved.amount.max(0)))
}

/// Memory left after firmware, hypervisor and kernel.
pub fn usable_memory(shape: &InstanceTypeSpec, class: &NodeClass) -> i64 {
    let firmware = match shape.arch {
        Arch::Amd64 => 0,
        Arch::Arm64 => ARM_FIRMWARE_MIB,
    };
    let mib = (i64::from(shape.memory_mib) - firmware).max(0);
    let overhead = mib * i64::from(class.vm_overhead_per_mille());
    (mib - div_ceil(overhead, 1000)).max(0) * MIB
}

/// Number of pods if each pod uses one address of a network interface. The primary address of each
/// interface is not available to pods. Two pods use the host network and need no address. Each
/// adapter without an address replaces an interface on the card that pods use.
fn eni_pods(shape: &InstanceTypeSpec, class: &NodeClass, reserved: u32) -> i64 {
    let efa_interfaces =
        configured_interfaces(class).filter(|interface| interface.efa_only && interface.card == 0);
    let enis = i64::from(shape.card_enis) - i64::from(reserved);
    match enis - count_items(efa_interfaces) {
        ..=0 => 0,
        enis => enis * (i64::from(shape.ips_per_eni) - 1) + 2,
    }
}

/// Number of elastic fabric adapters. An interface layout in the node class takes precedence, even
/// if it has no adapters (spec §10, 36).
fn efa_adapters(shape: &InstanceTypeSpec, class: &NodeClass) -> i64 {
    match &class.network_interfaces {
        Some(_) => count_items(configured_interfaces(class).filter(|interface| interface.efa_only)),
        None => shape.efa_max.into(),
    }
}

fn configured_interfaces(class: &NodeClass) -> impl Iterator<Item = &NetworkInterface> {
    class.network_interfaces.iter().flatten()
}

fn count_items<T>(all: impl Iterator<Item = T>) -> i64 {
    all.fold(0, |sum, _| sum + 1)
}

/// Ephemeral storage of the kubelet. The size of local disks is in GB, that of volumes in GiB (spec
/// §10, 37).
fn ephemeral_storage(shape: &InstanceTypeSpec, class: &NodeClass) -> i64 {
    if let (true, Some(gb)) = (class.raid0, shape.disk_gb) {
        return i64::from(gb) * GB;
    }
    let (root, default) = match class.family {
        AmiFamily::Al2 | AmiFamily::Al2023 => ("/dev/xvda", ROOT_VOLUME),
        // The first volume contains only the operating system.
        AmiFamily::Bottlerocket => ("/dev/xvdb", ROOT_VOLUME),
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
            ("/dev/sda1", ROOT_VOLUME_WINDOWS)
        }
        AmiFamily::Custom => ("", ROOT_VOLUME),
    };
    let devices = &class.block_devices;
    let marked = devices.iter().find(|device| device.root_volume);
    let named = match class.family {
        AmiFamily::Custom => devices.last(),
        _ => devices.iter().find(|device| device.name == root),
    };
    marked
        .and_then(|device| device.size)
        .or_else(|| named.and_then(|device| device.size))
        .unwrap_or(default)
        .max(0)
}

fn threshold_amount(threshold: &Threshold, total: i64) -> i64 {
    match threshold {
        Threshold::Share(ALL..) => 0,
        Threshold::Share(share) => {
            let reserved =
                (i128::from(total) * i128::from(*share) + i128::from(ALL) - 1) / i128::from(ALL);
            i64::try_from(reserved).unwrap_or(total)
        }
        Threshold::Amount(amount, _) => (*amount).max(0),
    }
}

/// Reserved cpu: 6% of the first core, 1% of the second, 0.5% of the next two, 0.25% of the rest,
/// each in whole thousandths (spec §10, 32).
fn kube_reserved_cpu_milli(vcpu: i64) -> i64 {
    let band = |first: i64, last: i64| vcpu.clamp(first, last) - first;
    60 * band(0, 1) + 10 * band(1, 2) + 5 * band(2, 4) + band(4, i64::MAX) * 5 / 2
}

fn div_ceil(amount: i64, by: i64) -> i64 {
    amount / by + i64::from(amount % by > 0)
}
