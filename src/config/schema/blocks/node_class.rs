//! The table of `node_class` blocks.
//! It must not know how it is read.

use super::{BLOCK, CLUSTERS, argument, form};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType, Occurrence};
use crate::model::node_class::image::AmiFamily;

mod terms;
mod devices;
mod kubelet;
mod bootstrap;

pub(super) static NODE_CLASS: BlockType = BlockType {
    name: "node_class",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "How EC2 makes the nodes of a pool. The pools of a managed cluster on EC2 need one with \
            `ami`, `subnet` and `security_group` blocks and a role or instance profile.",
    arguments: &[
        argument(
            "for_each",
            ArgumentType::Expression,
            "",
            "Makes one node class for each element, all known by the block's label: a cluster \
             uses the one whose `clusters` name it.",
        ),
        CLUSTERS,
        argument(
            "ami_family",
            ArgumentType::OneOf(&AmiFamily::NAMES),
            "",
            "What the images are: decides how user data is written and which disks there are. \
             Required where `ami` blocks have no alias; the alias' family if missing.",
        ),
        form(
            "role",
            IdFormat::RoleName,
            "IAM role of the nodes: an instance profile is made for it.",
        ),
        form(
            "instance_profile",
            IdFormat::ProfileName,
            "Instance profile of the nodes, in place of `role`.",
        ),
        argument(
            "associate_public_ip",
            ArgumentType::Flag,
            "",
            "Public addresses; as the subnet says if missing.",
        ),
        argument(
            "ip_prefix_count",
            ArgumentType::Whole(0, 100),
            "",
            "Prefixes of addresses on each network interface. Nodes that are there stay as they \
             are when it changes.",
        ),
        argument(
            "user_data",
            ArgumentType::Text,
            "",
            "User data of your own, merged with ours as the family demands; with `ami_family = \
             \"custom\"` and without a `bootstrap` block it is passed on as it is.",
        ),
        argument(
            "tags",
            ArgumentType::Tags,
            "{}",
            "Tags for everything a launch makes.",
        ),
        argument(
            "detailed_monitoring",
            ArgumentType::Flag,
            "false",
            "CloudWatch metrics each minute.",
        ),
        argument(
            "instance_store_policy",
            ArgumentType::OneOf(&["raid0"]),
            "",
            "What becomes of local disks: one RAID 0 for the kubelet and containerd.",
        ),
        argument(
            "efa",
            ArgumentType::Flag,
            "true",
            "Whether nodes have elastic fabric adapters where pods ask for them. With \
             `network_interface` blocks these say it. `false` is what an empty list of \
             `networkInterfaces` is to Karpenter.",
        ),
        form(
            "context",
            IdFormat::Filled,
            "`Context` of CreateFleet. It is left out of launches for which fewer values than \
             `min_values` asks for have to do.",
        ),
        argument(
            "reserved_enis",
            ArgumentType::Whole(0, 100),
            "0",
            "Network interfaces of the default card that are kept from pods.",
        ),
        argument(
            "vm_memory_overhead_percent",
            ArgumentType::Number(0, 100),
            "7.5",
            "What the hypervisor and the kernel keep of the memory, with at most one decimal. \
             Karpenter's setting of this name is a share: its 0.075 is 7.5 here.",
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
