//! How much an EC2 instance has for the kubelet, and how much of that is left for pods, as a node
//! class sets it up. It must not know labels or prices, nor what AWS found for the class.
//!
//! Source: spec/aws.md §4.3 and §4.4; for clusters without EKS, §9.2.

use std::collections::BTreeMap;

use crate::catalog::instance_type_info::{Gpu, InstanceTypeSpec};
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
/// EC2's firmware keeps this much of the memory of an Arm instance.
const ARM_FIRMWARE_MIB: i64 = 64;
/// The root volume where nobody says how large it is.
const ROOT_VOLUME: i64 = 20 * GIB;
/// The same on Windows.
const ROOT_VOLUME_WINDOWS: i64 = 50 * GIB;
/// Pods of a node where their addresses do not come from its network interfaces: the kubelet's own
/// default.
const PODS: i64 = 110;
/// What the kubelet keeps of the root volume for itself.
const KUBE_RESERVED_DISK: i64 = GIB;
/// What the kubelet keeps of the memory for itself: so much for each pod, and a base.
const KUBE_RESERVED_MIB_PER_POD: i64 = 11;
const KUBE_RESERVED_MIB: i64 = 255;
/// The kubelet evicts pods when less memory than this is free.
const EVICTION_MEMORY: i64 = 100 * MIB;
/// The kubelet evicts pods when less of the root volume than this is free, in hundredths of a per
/// cent.
const EVICTION_DISK: u32 = 1_000;
/// All of something, in hundredths of a per cent: a threshold that is switched off.
const ALL: u32 = 10_000;
/// What Talos keeps for itself on a worker where its configuration says nothing of it.
/// Source: Talos, `pkg/machinery/constants`, `KubeletSystemReserved…`.
const TALOS: [(&str, i64); 3] = [
    ("cpu", 50),
    ("memory", 384 * MIB),
    ("ephemeral-storage", 256 * MIB),
];

/// The node class that amounts are worked out for where none is given: Amazon Linux 2023, with
/// everything as it comes.
pub fn plain() -> NodeClass {
    NodeClass {
        family: AmiFamily::Al2023,
        ..NodeClass::default()
    }
}

/// Capacity the kubelet reports. `learned` is what nodes of this type and image have reported of
/// their memory; it stands for the estimate.
pub fn capacity(shape: &InstanceTypeSpec, class: &NodeClass, learned: Option<i64>) -> Resources {
    let mut all = Resources {
        cpu_milli: i64::from(shape.vcpu) * 1000,
        memory: learned.unwrap_or_else(|| memory(shape, class)),
        ephemeral_storage: ephemeral_storage(shape, class),
        pods: pods(shape, class),
        ..Resources::default()
    };
    for (name, manufacturer) in [
        ("nvidia.com/gpu", "NVIDIA"),
        ("amd.com/gpu", "AMD"),
        ("habana.ai/gaudi", "Habana"),
    ] {
        let own = |gpu: &&Gpu| gpu.manufacturer == manufacturer;
        let count = shape
            .gpus
            .iter()
            .filter(own)
            .map(|gpu| i64::from(gpu.count));
        extend(&mut all, name, count.sum());
    }
    let devices = shape.neurons.iter().map(|own| i64::from(own.devices));
    extend(&mut all, "aws.amazon.com/neuron", devices.sum());
    let cores = shape.neurons.first().map_or(0, |own| own.cores.into());
    extend(&mut all, "aws.amazon.com/neuroncore", cores);
    extend(&mut all, "vpc.amazonaws.com/efa", adapters(shape, class));
    let branches = shape.branch_enis.into();
    extend(&mut all, "vpc.amazonaws.com/pod-eni", branches);
    if class.family.windows_build().is_some() {
        let addresses = i64::from(shape.ips_per_eni) - 1;
        extend(&mut all, "vpc.amazonaws.com/PrivateIPv4Address", addresses);
    }
    all
}

/// What pods may use of the capacity: nothing of what the kubelet or the system keeps, nor of what
/// has to stay free lest pods be evicted. Thresholds in per cent are of the estimate of the memory,
/// whatever nodes have reported (spec §4.4). Soft thresholds take nothing (spec §10, 33).
pub fn allocatable(shape: &InstanceTypeSpec, class: &NodeClass, learned: Option<i64>) -> Resources {
    let mut left = capacity(shape, class, learned);
    let disk = left.ephemeral_storage;
    for kept in [kube_reserved(shape, class), system_reserved(class)] {
        let own = |name: &str| kept.get(name).copied().unwrap_or(0);
        left.cpu_milli = left.cpu_milli.saturating_sub(own("cpu"));
        left.memory = left.memory.saturating_sub(own("memory"));
        left.ephemeral_storage = left
            .ephemeral_storage
            .saturating_sub(own("ephemeral-storage"));
    }
    let hard = |signal: Signal| class.kubelet.eviction_hard.get(&signal);
    let memory_kept = hard(Signal::MemoryAvailable)
        .map_or(EVICTION_MEMORY, |own| threshold(own, memory(shape, class)));
    let share = Threshold::Share(EVICTION_DISK);
    let disk_kept = threshold(hard(Signal::NodefsAvailable).unwrap_or(&share), disk);
    left.cpu_milli = left.cpu_milli.max(0);
    left.memory = left.memory.saturating_sub(memory_kept).max(0);
    left.ephemeral_storage = left.ephemeral_storage.saturating_sub(disk_kept).max(0);
    left
}

/// How many pods a node takes. The VPC network plugin gives each an address of an interface;
/// elsewhere addresses come from an overlay network. Prefixes of addresses are not counted: who has
/// them says how many pods there may be. Source: spec §4.3.
pub fn pods(shape: &InstanceTypeSpec, class: &NodeClass) -> i64 {
    let most = match class.kubelet.max_pods {
        Some(own) => own.into(),
        None if is_bare(class) || class.family.windows_build().is_some() => PODS,
        None => eni_pods(shape, class, class.reserved_enis),
    };
    let per_core = class.kubelet.pods_per_core.filter(|own| *own > 0);
    let per_core = per_core.filter(|_| class.family != AmiFamily::Bottlerocket);
    per_core.map_or(most, |own| most.min(i64::from(own) * i64::from(shape.vcpu)))
}

/// What the kubelet keeps for itself: `cpu` in thousandths of a core, bytes else.
///
/// On EKS images it works that out from the cores and from how many pods there may be. On Amazon
/// Linux and on images of the user's own those are the pods that the interfaces allow, whatever
/// else is set; on Bottlerocket and Windows those that there may really be (spec §4.4 and §10, 31).
/// Kubelets of other clusters keep nothing unless they are told to, and they are told exactly this:
/// what the node class says, so that no number has to agree in two places (spec §9.2, 4).
pub fn kube_reserved(shape: &InstanceTypeSpec, class: &NodeClass) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    if !is_bare(class) {
        let pods = match class.family {
            AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Custom => eni_pods(shape, class, 0),
            _ => pods(shape, class),
        };
        let memory = KUBE_RESERVED_MIB_PER_POD.saturating_mul(pods) + KUBE_RESERVED_MIB;
        let cpu = kube_reserved_cpu_milli(shape.vcpu.into());
        all.insert("cpu".to_owned(), cpu);
        all.insert("memory".to_owned(), memory * MIB);
        all.insert("ephemeral-storage".to_owned(), KUBE_RESERVED_DISK);
    }
    all.extend(amounts(&class.kubelet.kube_reserved));
    all
}

/// What is kept for the system, in the same units: what the node class says, or where it says
/// nothing what Talos keeps unasked.
pub fn system_reserved(class: &NodeClass) -> BTreeMap<String, i64> {
    let own = &class.kubelet.system_reserved;
    if own.is_empty() && matches!(class.bootstrap, Bootstrap::Talos { .. }) {
        return TALOS.map(|(name, amount)| (name.to_owned(), amount)).into();
    }
    amounts(own).collect()
}

/// Whether nodes join something else than EKS: their images do not come with EKS' settings, nor
/// pods with addresses of EC2.
fn is_bare(class: &NodeClass) -> bool {
    class.bootstrap != Bootstrap::Eks
}

fn amounts(kept: &BTreeMap<String, Reserved>) -> impl Iterator<Item = (String, i64)> {
    kept.iter()
        .map(|(name, own)| (name.clone(), own.amount.max(0)))
}

/// The memory that is left when firmware, hypervisor and kernel have taken theirs of what is sold.
pub fn memory(shape: &InstanceTypeSpec, class: &NodeClass) -> i64 {
    let firmware = match shape.arch {
        Arch::Amd64 => 0,
        Arch::Arm64 => ARM_FIRMWARE_MIB,
    };
    let mib = (i64::from(shape.memory_mib) - firmware).max(0);
    let overhead = mib * i64::from(class.vm_overhead_per_mille());
    (mib - div_ceil(overhead, 1000)).max(0) * MIB
}

/// An address of an interface for each pod; the interface's own is none of theirs. Two pods on the
/// host's network need none. Adapters without an address take the place of an interface on the card
/// that pods use.
fn eni_pods(shape: &InstanceTypeSpec, class: &NodeClass, reserved: u32) -> i64 {
    let taken = layout(class).filter(|own| own.efa_only && own.card == 0);
    let enis = i64::from(shape.card_enis) - i64::from(reserved);
    match enis - count(taken) {
        ..=0 => 0,
        enis => enis * (i64::from(shape.ips_per_eni) - 1) + 2,
    }
}

/// Elastic fabric adapters: those of the node class' own layout, even if that has none (spec §10,
/// 36).
fn adapters(shape: &InstanceTypeSpec, class: &NodeClass) -> i64 {
    match &class.network_interfaces {
        Some(_) => count(layout(class).filter(|own| own.efa_only)),
        None => shape.efa_max.into(),
    }
}

fn layout(class: &NodeClass) -> impl Iterator<Item = &NetworkInterface> {
    class.network_interfaces.iter().flatten()
}

fn count<T>(all: impl Iterator<Item = T>) -> i64 {
    all.fold(0, |sum, _| sum + 1)
}

/// What the kubelet has for its data: local disks are counted in GB, volumes in GiB (spec §10, 37).
fn ephemeral_storage(shape: &InstanceTypeSpec, class: &NodeClass) -> i64 {
    if let (true, Some(gb)) = (class.raid0, shape.disk_gb) {
        return i64::from(gb) * GB;
    }
    let (root, family) = match class.family {
        AmiFamily::Al2 | AmiFamily::Al2023 => ("/dev/xvda", ROOT_VOLUME),
        // The first has the system alone.
        AmiFamily::Bottlerocket => ("/dev/xvdb", ROOT_VOLUME),
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
            ("/dev/sda1", ROOT_VOLUME_WINDOWS)
        }
        AmiFamily::Custom => ("", ROOT_VOLUME),
    };
    let mut devices = class.block_devices.iter();
    let marked = devices.find(|own| own.root_volume).and_then(|own| own.size);
    let device = || match class.family {
        AmiFamily::Custom => class.block_devices.last(),
        _ => class.block_devices.iter().find(|own| own.name == root),
    };
    let own = marked.or_else(|| device().and_then(|own| own.size));
    own.unwrap_or(family).max(0)
}

fn threshold(own: &Threshold, of: i64) -> i64 {
    match own {
        Threshold::Share(ALL..) => 0,
        Threshold::Share(share) => {
            let kept =
                (i128::from(of) * i128::from(*share) + i128::from(ALL) - 1) / i128::from(ALL);
            i64::try_from(kept).unwrap_or(of)
        }
        Threshold::Amount(amount, _) => (*amount).max(0),
    }
}

/// 6 % of the first core, 1 % of the second, 0.5 % of two more, 0.25 % of the rest, each in whole
/// thousandths (spec §10, 32).
fn kube_reserved_cpu_milli(vcpu: i64) -> i64 {
    let band = |first: i64, last: i64| vcpu.clamp(first, last) - first;
    60 * band(0, 1) + 10 * band(1, 2) + 5 * band(2, 4) + band(4, i64::MAX) * 5 / 2
}

fn extend(all: &mut Resources, name: &str, amount: i64) {
    if amount > 0 {
        all.extended.insert(name.to_owned(), amount);
    }
}

fn div_ceil(amount: i64, by: i64) -> i64 {
    amount / by + i64::from(amount % by > 0)
}
