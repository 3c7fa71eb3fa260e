//! Node classes: the EC2 settings of a pool's nodes.
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

/// The IAM identity of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeIdentity {
    /// An IAM role. Outrigger creates an instance profile for it.
    Role(String),
    /// An existing instance profile.
    Profile(String),
}

/// The instance metadata service of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataOptions {
    /// Whether the metadata service is enabled.
    pub endpoint: bool,
    /// Whether the metadata service has an IPv6 endpoint.
    pub ipv6: bool,
    /// Hop limit of its responses, 1 to 64.
    pub hop_limit: u8,
    /// Whether IMDSv2 is required.
    pub tokens_required: bool,
}

impl Default for MetadataOptions {
    fn default() -> Self {
        Self { endpoint: true, ipv6: false, hop_limit: 1, tokens_required: true }
    }
}

/// Memory that the hypervisor and the kernel reserve, in thousandths of the instance's memory:
/// Karpenter's `vm-memory-overhead-percent` of 0.075, which is a fraction despite its name and
/// therefore 7.5 %.
pub const VM_OVERHEAD_PER_MILLE: u32 = 75;

/// A node class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeClass {
    /// Name.
    pub name: NodeClassName,
    /// Image family, which determines the format of user data and the default disks.
    pub family: AmiFamily,
    /// Image terms, which are alternatives.
    pub images: Vec<ImageTerm>,
    /// Subnet terms, which are alternatives.
    pub subnets: Vec<SubnetTerm>,
    /// Security group terms, which are alternatives.
    pub security_groups: Vec<SecurityGroupTerm>,
    /// Capacity reservation terms, which are alternatives. Empty means that no reservation is
    /// targeted.
    pub reservations: Vec<ReservationTerm>,
    /// The placement group of all its nodes.
    pub placement_group: Option<PlacementGroupTerm>,
    /// Role or instance profile. An offline plan does not need it.
    pub identity: Option<NodeIdentity>,
    /// Whether nodes have public addresses. `None` means the setting of the subnet.
    pub public_ip: Option<bool>,
    /// Number of address prefixes on each network interface.
    pub ip_prefix_count: Option<u32>,
    /// User data of the user, merged with Outrigger's as the family requires. Empty if not set.
    pub user_data: String,
    /// How a node joins its cluster.
    pub bootstrap: Bootstrap,
    /// Tags of all resources of a launch.
    pub tags: Labels,
    /// Kubelet settings.
    pub kubelet: KubeletSettings,
    /// Disks in configuration order. Empty means the default disks of the family.
    pub block_devices: Vec<BlockDevice>,
    /// Whether local disks form one RAID 0 for the kubelet and containerd.
    pub raid0: bool,
    /// Explicit network interfaces. An empty list differs from `None`: it disables EFA (spec §10,
    /// 36).
    pub network_interfaces: Option<Vec<NetworkInterface>>,
    /// Whether CloudWatch collects metrics every minute.
    pub detailed_monitoring: bool,
    /// The instance metadata service.
    pub metadata: MetadataOptions,
    /// Timeouts of idle connections. `None` means EC2's defaults.
    pub connection_tracking: Option<ConnectionTracking>,
    /// `Context` of CreateFleet.
    pub context: Option<String>,
    /// Whether nodes can run virtual machines. `None` means EC2's default.
    pub nested_virtualization: Option<bool>,
    /// Number of network interfaces of the default card that pods cannot use.
    pub reserved_enis: u32,
    /// Memory that pods cannot use, in thousandths of the instance's memory. `None` means
    /// [`VM_OVERHEAD_PER_MILLE`].
    pub vm_overhead_per_mille: Option<u32>,
}

impl NodeClass {
    /// Memory that pods cannot use, in thousandths of the instance's memory.
    pub fn vm_overhead_per_mille(&self) -> u32 {
        self.vm_overhead_per_mille.unwrap_or(VM_OVERHEAD_PER_MILLE)
    }
}
