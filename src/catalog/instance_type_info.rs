//! Specification of an EC2 instance type, from `DescribeInstanceTypes` and the price list.

use crate::model::instance::Arch;

/// GPUs of one kind in an instance type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Name, in EC2's spelling.
    pub name: String,
    /// Manufacturer, in EC2's spelling. It also determines the name of the Kubernetes resource.
    pub manufacturer: String,
    /// Number of GPUs. Zero if the type has only a fraction of a GPU.
    pub count: u32,
    /// Memory of each GPU, in MiB.
    pub memory_mib: u32,
}

/// Neuron devices (Inferentia, Trainium) of one kind in an instance type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neuron {
    /// Name, in EC2's spelling. `None` if unknown.
    pub name: Option<String>,
    /// Number of devices.
    pub devices: u32,
    /// Total number of cores.
    pub cores: u32,
}

/// Inference accelerators of one kind in an instance type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// Name, in EC2's spelling.
    pub name: String,
    /// Manufacturer, in EC2's spelling.
    pub manufacturer: String,
    /// Number of accelerators.
    pub count: u32,
}

/// A network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkCard {
    /// Index of the card. It can differ from the position of the card in a list.
    pub index: u32,
    /// Maximum number of network interfaces.
    pub enis: u32,
}

/// Specification of an EC2 instance type. `None` means unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceTypeSpec {
    /// Name: family and size, separated by a dot.
    pub name: String,
    /// The first architecture of the type that Kubernetes supports.
    pub arch: Arch,
    /// Number of vCPUs.
    pub vcpu: u32,
    /// Memory in MiB, before any reservation.
    pub memory_mib: u32,
    /// Whether on-demand offerings exist.
    pub on_demand: bool,
    /// Whether spot offerings exist.
    pub spot: bool,
    /// Whether it is a bare-metal type.
    pub bare_metal: bool,
    /// Manufacturer of the CPU.
    pub cpu_manufacturer: Option<String>,
    /// Sustained clock speed of the CPU, in MHz.
    pub clock_mhz: Option<u32>,
    /// Whether nested virtualization is supported.
    pub nested_virtualization: Option<bool>,
    /// Hypervisor. Empty for bare metal.
    pub hypervisor: Option<String>,
    /// Whether Nitro Enclaves are supported.
    pub enclaves: Option<bool>,
    /// Network interfaces of the default network card. Pods use only this card.
    pub card_enis: u32,
    /// All network cards. Empty if unknown.
    pub cards: Vec<NetworkCard>,
    /// IPv4 addresses per network interface.
    pub ips_per_eni: u32,
    /// Whether ENA is supported. All types except the oldest support ENA.
    pub ena: Option<bool>,
    /// Maximum number of elastic fabric adapters, with or without an address.
    pub efa_max: u32,
    /// Number of branch interfaces, for pods with their own security groups.
    pub branch_enis: u32,
    /// Network bandwidth, in Mbit/s.
    pub network_mbps: Option<u32>,
    /// Bandwidth to EBS volumes in Mbit/s, if EBS optimization is the default.
    pub ebs_mbps: Option<u32>,
    /// Total size of the local disks, in GB.
    pub disk_gb: Option<u32>,
    /// Whether the local disks are NVMe disks.
    pub nvme: bool,
    /// Whether traffic between instances is encrypted.
    pub encryption_in_transit: Option<bool>,
    /// Supported placement group strategies, by EC2's names.
    pub placement: Option<Vec<String>>,
    /// GPUs, by kind.
    pub gpus: Vec<Gpu>,
    /// Neuron devices, by kind.
    pub neurons: Vec<Neuron>,
    /// Inference accelerators, by kind.
    pub accelerators: Vec<Accelerator>,
}

impl InstanceTypeSpec {
    /// Creates a type of which only these values are known.
    pub fn new(name: &str, arch: Arch, vcpu: u32, memory_mib: u32) -> Self {
        Self {
            name: name.to_owned(),
            arch,
            vcpu,
            memory_mib,
            on_demand: true,
            spot: true,
            bare_metal: false,
            cpu_manufacturer: None,
            clock_mhz: None,
            nested_virtualization: None,
            hypervisor: None,
            enclaves: None,
            card_enis: 0,
            cards: Vec::new(),
            ips_per_eni: 0,
            ena: None,
            efa_max: 0,
            branch_enis: 0,
            network_mbps: None,
            ebs_mbps: None,
            disk_gb: None,
            nvme: true,
            encryption_in_transit: None,
            placement: None,
            gpus: Vec::new(),
            neurons: Vec::new(),
            accelerators: Vec::new(),
        }
    }

    /// Sets the network cards. Pods use the card with index `default`.
    pub fn set_cards(&mut self, default: u32, cards: Vec<NetworkCard>) {
        let default_card = cards.iter().find(|card| card.index == default);
        self.card_enis = default_card.map_or(0, |card| card.enis);
        self.cards = cards;
    }

    /// Returns true if the type has Neuron devices or inference accelerators.
    pub fn has_accelerators(&self) -> bool {
        !self.neurons.is_empty() || !self.accelerators.is_empty()
    }
}
