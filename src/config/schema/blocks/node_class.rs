//! Schema tables of `node_class` blocks.
//! They must not depend on the code that reads them.

use super::{BLOCK, CLUSTERS, argument, format_argument};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType, Occurrence};
use crate::model::node_class::image::AmiFamily;

// Selector terms: images, subnets, groups, reservations.
mod terms;
// Block devices and network interfaces.
mod devices;
// `kubelet` block.
mod kubelet;
// `bootstrap` block.
mod bootstrap;

pub(super) static NODE_CLASS: BlockType = BlockType {
    name: "node_class",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "How EC2 launches the nodes of a pool. The pools of a managed cluster on EC2 need a \
            node class with `ami`, `subnet` and `security_group` blocks, and `role` or \
            `instance_profile`.",
    arguments: &[
        argument("for_each", ArgumentType::Expression).about(
            "Creates one node class for each element, all with the block's label as their name. A \
             cluster uses the node class whose `clusters` match.",
        ),
        CLUSTERS,
        argument("ami_family", ArgumentType::OneOf(&AmiFamily::NAMES)).about(
            "Family of the images, which decides the format of user data and the default disks. \
             Defaults to the family of the alias. Required if no `ami` block has an alias.",
        ),
        format_argument("role", IdFormat::RoleName)
            .about("IAM role of the nodes. Outrigger creates an instance profile for it."),
        format_argument("instance_profile", IdFormat::ProfileName)
            .about("Instance profile of the nodes, in place of `role`."),
        argument("associate_public_ip", ArgumentType::Flag)
            .about("Assigns public IP addresses. Defaults to the setting of the subnet."),
        argument("ip_prefix_count", ArgumentType::Whole(0, 100)).about(
            "Number of IP prefixes on each network interface. A change does not replace existing \
             nodes.",
        ),
        argument("user_data", ArgumentType::Text).about(
            "Your own user data, merged with the generated user data in the format of the family. \
             With `ami_family = \"custom\"` and no `bootstrap` block, it is passed on unchanged.",
        ),
        argument("tags", ArgumentType::Tags)
            .default_value("{}")
            .about("Tags for everything that a launch creates."),
        argument("detailed_monitoring", ArgumentType::Flag)
            .default_value("false")
            .about("Enables CloudWatch metrics every minute."),
        argument("instance_store_policy", ArgumentType::OneOf(&["raid0"]))
            .about("Use of local disks. `raid0`: one RAID 0 array for the kubelet and containerd."),
        argument("efa", ArgumentType::Flag).default_value("true").about(
            "Attaches elastic fabric adapters if pods request them. `network_interface` \
                 blocks take precedence. `false` corresponds to an empty `networkInterfaces` list \
                 in Karpenter.",
        ),
        format_argument("context", IdFormat::Filled).about(
            "`Context` of CreateFleet. It is omitted if `min_values` was relaxed for the launch.",
        ),
        argument("reserved_enis", ArgumentType::Whole(0, 100)).default_value("0").about(
            "Network interfaces of the default network card that are not available to pods.",
        ),
        argument("vm_memory_overhead_percent", ArgumentType::Number(0, 100))
            .default_value("7.5")
            .about(
                "Percentage of memory that the hypervisor and the kernel use, with at most one \
                 decimal. Karpenter's setting of this name is a fraction: its 0.075 is 7.5 here.",
            ),
    ],
    blocks: &[
        &terms::AMI,
        &terms::SUBNET,
        &terms::SECURITY_GROUP,
        &terms::CAPACITY_RESERVATION,
        &terms::PLACEMENT_GROUP,
        &bootstrap::BOOTSTRAP,
        &devices::BLOCK_DEVICE,
        &devices::METADATA_OPTIONS,
        &devices::NETWORK_INTERFACE,
        &devices::CONNECTION_TRACKING,
        &devices::CPU_OPTIONS,
        &kubelet::KUBELET,
    ],
    ..BLOCK
};
