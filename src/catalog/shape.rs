//! The facts of an EC2 instance type, as `DescribeInstanceTypes` and the price list give them.
//! It must not know what follows from them: amounts, labels and offerings are worked out elsewhere.

use crate::model::instance::Arch;

/// The graphics processors of an instance type, all of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Name, in EC2's spelling.
    pub name: String,
    /// Manufacturer, in EC2's spelling, which also decides the resource's name.
    pub manufacturer: String,
    /// How many there are; none where the type has a fraction of one.
    pub count: u32,
    /// Memory of each, in MiB.
    pub memory_mib: u32,
}

/// The Neuron devices (Inferentia, Trainium) of an instance type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neuron {
    /// Name, in EC2's spelling; unknown where the data have none.
    pub name: Option<String>,
    /// How many devices there are.
    pub devices: u32,
    /// How many cores they have together.
    pub cores: u32,
}

/// The facts of an EC2 instance type. `None` is what the data do not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name, family and size separated by a dot.
    pub name: String,
    /// Architecture.
    pub arch: Arch,
    /// Virtual processors.
    pub vcpu: u32,
    /// Memory, in MiB, before anything is taken off.
    pub memory_mib: u32,
    /// Manufacturer of the processor.
    pub cpu_manufacturer: Option<String>,
    /// Hypervisor; empty for bare metal.
    pub hypervisor: Option<String>,
    /// Network interfaces of the default network card, the only one pods use.
    pub card_enis: u32,
    /// IPv4 addresses of each of them.
    pub ips_per_eni: u32,
    /// Elastic fabric adapters.
    pub efa_max: u32,
    /// Branch interfaces, for pods with security groups of their own.
    pub branch_enis: u32,
    /// Network bandwidth, in Mbit/s.
    pub network_mbps: Option<u32>,
    /// Bandwidth to EBS volumes, in Mbit/s.
    pub ebs_mbps: Option<u32>,
    /// Local disks together, in GB.
    pub nvme_gb: Option<u32>,
    /// Whether traffic between instances is encrypted.
    pub encryption_in_transit: Option<bool>,
    /// Graphics processors.
    pub gpu: Option<Gpu>,
    /// Neuron devices.
    pub neuron: Option<Neuron>,
}
