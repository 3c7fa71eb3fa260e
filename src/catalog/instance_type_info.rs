//! The facts of an EC2 instance type, as `DescribeInstanceTypes` and the price list give them.
//! It must not know what follows from them: amounts, labels and offerings are worked out elsewhere.

use crate::model::instance::Arch;

/// The graphics processors of an instance type that are of one kind.
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

/// The Neuron devices (Inferentia, Trainium) of an instance type that are of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neuron {
    /// Name, in EC2's spelling; unknown where the data have none.
    pub name: Option<String>,
    /// How many devices there are.
    pub devices: u32,
    /// How many cores they have together.
    pub cores: u32,
}

/// The inference accelerators of an instance type that are of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// Name, in EC2's spelling.
    pub name: String,
    /// Manufacturer, in EC2's spelling.
    pub manufacturer: String,
    /// How many there are.
    pub count: u32,
}

/// A network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkCard {
    /// Its index, which is not its place in a list.
    pub index: u32,
    /// How many network interfaces it takes.
    pub enis: u32,
}

/// The facts of an EC2 instance type. `None` is what the data do not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceTypeSpec {
    /// Name, family and size separated by a dot.
    pub name: String,
    /// Architecture: the first that Kubernetes knows.
    pub arch: Arch,
    /// Virtual processors.
    pub vcpu: u32,
    /// Memory, in MiB, before anything is taken off.
    pub memory_mib: u32,
    /// Whether it is sold on demand.
    pub on_demand: bool,
    /// Whether it is sold as spot capacity.
    pub spot: bool,
    /// Whether it is a whole machine.
    pub bare_metal: bool,
    /// Manufacturer of the processor.
    pub cpu_manufacturer: Option<String>,
    /// Clock speed of the processor that it keeps, in MHz.
    pub clock_mhz: Option<u32>,
    /// Whether virtual machines can run in it.
    pub nested_virtualization: Option<bool>,
    /// Hypervisor; empty for bare metal.
    pub hypervisor: Option<String>,
    /// Whether Nitro Enclaves can run beside it.
    pub enclaves: Option<bool>,
    /// Network interfaces of the default network card, the only one pods use.
    pub card_enis: u32,
    /// All network cards; empty where the data do not say.
    pub cards: Vec<NetworkCard>,
    /// IPv4 addresses of each network interface.
    pub ips_per_eni: u32,
    /// Whether its interfaces are of the kind that all but the oldest types have.
    pub ena: Option<bool>,
    /// Elastic fabric adapters, with an address or without.
    pub efa_max: u32,
    /// Branch interfaces, for pods with security groups of their own.
    pub branch_enis: u32,
    /// Network bandwidth, in Mbit/s.
    pub network_mbps: Option<u32>,
    /// Bandwidth to EBS volumes, in Mbit/s, where it need not be asked for.
    pub ebs_mbps: Option<u32>,
    /// Local disks together, in GB.
    pub disk_gb: Option<u32>,
    /// Whether they are NVMe disks.
    pub nvme: bool,
    /// Whether traffic between instances is encrypted.
    pub encryption_in_transit: Option<bool>,
    /// Placement groups it can be in, by EC2's names of their strategies.
    pub placement: Option<Vec<String>>,
    /// Graphics processors, by kind.
    pub gpus: Vec<Gpu>,
    /// Neuron devices, by kind.
    pub neurons: Vec<Neuron>,
    /// Inference accelerators, by kind.
    pub accelerators: Vec<Accelerator>,
}

impl InstanceTypeSpec {
    /// A type of which nothing is known but this.
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

    /// Takes in the network cards, of which pods use the one of the index `default`.
    pub fn set_cards(&mut self, default: u32, cards: Vec<NetworkCard>) {
        let own = cards.iter().find(|card| card.index == default);
        self.card_enis = own.map_or(0, |card| card.enis);
        self.cards = cards;
    }

    /// Whether it has Neuron devices or inference accelerators.
    pub fn has_accelerators(&self) -> bool {
        !self.neurons.is_empty() || !self.accelerators.is_empty()
    }
}
