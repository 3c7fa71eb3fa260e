//! A node class: how EC2 makes the nodes of a pool.
//! It must not know which pools use it, nor what AWS has found for its terms.
//!
//! Source of every field: spec/aws.md §1.1.

// Image families and image terms.
pub mod image;
// Subnets, security groups, interfaces.
pub mod network;
// Block devices.
pub mod disk;
// Kubelet settings.
pub mod kubelet;
// Bootstrap settings.
pub mod bootstrap;
// AWS resources found for a node class.
pub mod resolved;

use crate::model::id::NodeClassName;
use crate::model::labels::Labels;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::node_class::disk::BlockDevice;
use crate::model::node_class::image::{AmiFamily, ImageTerm};
use crate::model::node_class::kubelet::KubeletSettings;
use crate::model::node_class::network::{
    ConnectionTracking, NetworkInterface, PlacementGroupTerm, ReservationTerm, SecurityGroupTerm,
    SubnetTerm,
};

/// Who the nodes are to AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeIdentity {
    /// An IAM role: an instance profile is made for it.
    Role(String),
    /// An instance profile that is there already.
    Profile(String),
}

/// The instance metadata service of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataOptions {
    /// Whether there is one.
    pub endpoint: bool,
    /// Whether it has an IPv6 address.
    pub ipv6: bool,
    /// Hops its answers may take, 1 to 64.
    pub hop_limit: u8,
    /// Whether only IMDSv2 is answered.
    pub tokens_required: bool,
}

impl Default for MetadataOptions {
    fn default() -> Self {
        Self {
            endpoint: true,
            ipv6: false,
            hop_limit: 1,
            tokens_required: true,
        }
    }
}

/// What the hypervisor and the kernel keep of the memory before the kubelet sees any, in
/// thousandths: Karpenter's `vm-memory-overhead-percent` of 0.075, which in spite of its name is a
/// share, hence 7.5 %.
pub const VM_OVERHEAD_PER_MILLE: u32 = 75;

/// How EC2 makes a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeClass {
    /// Name.
    pub name: NodeClassName,
    /// What the images are, which decides how user data is written and which disks there are.
    pub family: AmiFamily,
    /// Images: alternatives.
    pub images: Vec<ImageTerm>,
    /// Subnets: alternatives.
    pub subnets: Vec<SubnetTerm>,
    /// Security groups: alternatives.
    pub security_groups: Vec<SecurityGroupTerm>,
    /// Capacity reservations: alternatives; none means none is used on purpose.
    pub reservations: Vec<ReservationTerm>,
    /// The placement group of all its nodes.
    pub placement_group: Option<PlacementGroupTerm>,
    /// Role or instance profile; none where an offline plan needs none.
    pub identity: Option<NodeIdentity>,
    /// Whether nodes have public addresses; none means as the subnet says.
    pub public_ip: Option<bool>,
    /// Prefixes of addresses on each network interface.
    pub ip_prefix_count: Option<u32>,
    /// The user's own user data, merged with ours as the family demands; empty where none is given.
    pub user_data: String,
    /// How a node finds its cluster.
    pub bootstrap: Bootstrap,
    /// Tags for everything a launch makes.
    pub tags: Labels,
    /// Settings of the kubelets.
    pub kubelet: KubeletSettings,
    /// Disks, in the order in which they are written; none means the family's.
    pub block_devices: Vec<BlockDevice>,
    /// Whether local disks become one RAID 0 for the kubelet and containerd.
    pub raid0: bool,
    /// An explicit layout of network interfaces; an empty one is not the same as none: it rules EFA
    /// out (spec §10, 36).
    pub network_interfaces: Option<Vec<NetworkInterface>>,
    /// CloudWatch metrics each minute.
    pub detailed_monitoring: bool,
    /// The instance metadata service.
    pub metadata: MetadataOptions,
    /// How long idle connections are remembered; none means EC2's way.
    pub connection_tracking: Option<ConnectionTracking>,
    /// `Context` of CreateFleet.
    pub context: Option<String>,
    /// Whether nodes can run virtual machines; none leaves it to EC2.
    pub nested_virtualization: Option<bool>,
    /// Network interfaces of the default card that are kept from pods.
    pub reserved_enis: u32,
    /// What pods never see of the memory, in thousandths; none means [`VM_OVERHEAD_PER_MILLE`].
    pub vm_overhead_per_mille: Option<u32>,
}

impl NodeClass {
    /// What pods never see of the memory, in thousandths.
    pub fn vm_overhead_per_mille(&self) -> u32 {
        self.vm_overhead_per_mille.unwrap_or(VM_OVERHEAD_PER_MILLE)
    }
}
