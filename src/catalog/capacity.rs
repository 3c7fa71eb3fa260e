//! How much an EC2 instance has for the kubelet, and how much of that is left for pods.
//! It must not know labels or prices, nor the settings of a node class: these are EC2's defaults
//! on Amazon Linux 2023 (spec/aws.md §4.3 and §4.4).

use crate::catalog::shape::Shape;
use crate::model::instance::Arch;
use crate::model::quantity::Resources;

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
/// EC2's firmware keeps this much of the memory of an Arm instance.
const ARM_FIRMWARE_MIB: i64 = 64;
/// What the hypervisor and the kernel keep before the kubelet sees any memory: Karpenter's
/// `vm-memory-overhead-percent` of 0.075, which in spite of its name is a share, hence 7.5 %.
const VM_OVERHEAD_PER_MILLE: i64 = 75;
/// The root volume of the node class defaults.
const ROOT_VOLUME: i64 = 20 * GIB;
/// What the kubelet keeps of the root volume for itself.
const KUBE_RESERVED_DISK: i64 = GIB;
/// What the kubelet keeps of the memory for itself: so much for each pod, and a base.
const KUBE_RESERVED_MIB_PER_POD: i64 = 11;
const KUBE_RESERVED_MIB: i64 = 255;
/// The kubelet evicts pods when less memory than this is free.
const EVICTION_MEMORY_MIB: i64 = 100;
/// The kubelet evicts pods when less of the root volume than this is free.
const EVICTION_DISK_PERCENT: i64 = 10;

/// Capacity the kubelet reports.
pub fn capacity(shape: &Shape) -> Resources {
    let firmware = match shape.arch {
        Arch::Amd64 => 0,
        Arch::Arm64 => ARM_FIRMWARE_MIB,
    };
    let memory_mib = i64::from(shape.memory_mib) - firmware;
    let overhead_mib = div_ceil(memory_mib * VM_OVERHEAD_PER_MILLE, 1000);
    let mut all = Resources {
        cpu_milli: i64::from(shape.vcpu) * 1000,
        memory: (memory_mib - overhead_mib) * MIB,
        ephemeral_storage: ROOT_VOLUME,
        pods: pods(shape),
        ..Resources::default()
    };
    if let Some(gpu) = &shape.gpu {
        let name = match gpu.manufacturer.as_str() {
            "NVIDIA" => Some("nvidia.com/gpu"),
            "AMD" => Some("amd.com/gpu"),
            "Habana" => Some("habana.ai/gaudi"),
            _ => None,
        };
        if let Some(name) = name {
            extend(&mut all, name, gpu.count);
        }
    }
    if let Some(neuron) = &shape.neuron {
        extend(&mut all, "aws.amazon.com/neuron", neuron.devices);
        extend(&mut all, "aws.amazon.com/neuroncore", neuron.cores);
    }
    extend(&mut all, "vpc.amazonaws.com/efa", shape.efa_max);
    extend(&mut all, "vpc.amazonaws.com/pod-eni", shape.branch_enis);
    all
}

/// What pods may use of the capacity.
pub fn allocatable(shape: &Shape) -> Resources {
    let mut left = capacity(shape);
    let kube_reserved_mib = KUBE_RESERVED_MIB_PER_POD * pods(shape) + KUBE_RESERVED_MIB;
    left.cpu_milli -= kube_reserved_cpu_milli(i64::from(shape.vcpu));
    left.memory -= (kube_reserved_mib + EVICTION_MEMORY_MIB) * MIB;
    left.ephemeral_storage -=
        KUBE_RESERVED_DISK + div_ceil(left.ephemeral_storage * EVICTION_DISK_PERCENT, 100);
    left
}

/// The VPC network plugin gives each pod an address of an interface, whose own address it cannot
/// use; two pods on the host's network need none.
fn pods(shape: &Shape) -> i64 {
    if shape.card_enis == 0 {
        return 0;
    }
    i64::from(shape.card_enis) * (i64::from(shape.ips_per_eni) - 1) + 2
}

/// 6 % of the first core, 1 % of the second, 0.5 % of two more, 0.25 % of the rest.
fn kube_reserved_cpu_milli(vcpu: i64) -> i64 {
    let band = |first: i64, last: i64| vcpu.clamp(first, last) - first;
    60 * band(0, 1) + 10 * band(1, 2) + 5 * band(2, 4) + band(4, i64::MAX) * 5 / 2
}

fn extend(all: &mut Resources, name: &str, amount: u32) {
    if amount > 0 {
        all.extended.insert(name.to_owned(), i64::from(amount));
    }
}

fn div_ceil(amount: i64, by: i64) -> i64 {
    amount / by + i64::from(amount % by > 0)
}
