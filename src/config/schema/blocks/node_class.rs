//! Schema tables of `node_class` blocks.
//! They must not depend on the code that reads them.

use super::CLUSTERS;
use crate::config::id_format::IdFormat;
use crate::config::schema::ArgumentType;
use crate::model::node_class::image::AmiFamily;

// Selector terms: images, subnets, groups, reservations.
mod terms;
// Block devices and network interfaces.
mod devices;
// `kubelet` block.
mod kubelet;
// `bootstrap` block.
mod bootstrap;

block_types! {
    /// How EC2 launches the nodes of a pool. The pools of a managed cluster on EC2 need a node
    /// class with `ami`, `subnet` and `security_group` blocks, and `role` or `instance_profile`.
    pub(super) static NODE_CLASS = "node_class" "NAME", PerLabel, arguments! {
        /// Creates one node class for each element, all with the block's label as their name. A
        /// cluster uses the node class whose `clusters` match.
        for_each: ArgumentType::Expression;
        CLUSTERS;
        /// Family of the images, which decides the format of user data and the default disks.
        /// Defaults to the family of the alias. Required if no `ami` block has an alias.
        ami_family: ArgumentType::OneOf(&AmiFamily::NAMES);
        /// IAM role of the nodes. Outrigger creates an instance profile for it.
        role: ArgumentType::Form(IdFormat::RoleName);
        /// Instance profile of the nodes, in place of `role`.
        instance_profile: ArgumentType::Form(IdFormat::ProfileName);
        /// Assigns public IP addresses. Defaults to the setting of the subnet.
        associate_public_ip: ArgumentType::Flag;
        /// Number of IP prefixes on each network interface. A change does not replace existing
        /// nodes.
        ip_prefix_count: ArgumentType::Whole(0, 100);
        /// Your own user data, merged with the generated user data in the format of the family.
        /// With `ami_family = "custom"` and no `bootstrap` block, it is passed on unchanged.
        user_data: ArgumentType::Text;
        /// Tags for everything that a launch creates. `Name` defaults to the names of the cluster
        /// and the pool, such as `prod/general`.
        tags: ArgumentType::Tags => {};
        /// Enables CloudWatch metrics every minute.
        detailed_monitoring: ArgumentType::Flag => false;
        /// Use of local disks. `raid0`: one RAID 0 array for the kubelet and containerd.
        instance_store_policy: ArgumentType::OneOf(&["raid0"]);
        /// Attaches elastic fabric adapters if pods request them. `network_interface` blocks take
        /// precedence. `false` corresponds to an empty `networkInterfaces` list in Karpenter.
        efa: ArgumentType::Flag => true;
        /// `Context` of CreateFleet. It is omitted if `min_values` was relaxed for the launch.
        context: ArgumentType::Form(IdFormat::Filled);
        /// Network interfaces of the default network card that are not available to pods.
        reserved_enis: ArgumentType::Whole(0, 100) => 0;
        /// Percentage of memory that the hypervisor and the kernel use, with at most one decimal.
        /// Karpenter's setting of this name is a fraction: its 0.075 is 7.5 here.
        vm_memory_overhead_percent: ArgumentType::Number(0, 100) => 7.5;
    }, [
        &terms::AMI, &terms::SUBNET, &terms::SECURITY_GROUP,
        &terms::CAPACITY_RESERVATION, &terms::PLACEMENT_GROUP, &bootstrap::BOOTSTRAP,
        &devices::BLOCK_DEVICE, &devices::METADATA_OPTIONS, &devices::NETWORK_INTERFACE,
        &devices::CONNECTION_TRACKING, &devices::CPU_OPTIONS, &kubelet::KUBELET,
    ];
}
