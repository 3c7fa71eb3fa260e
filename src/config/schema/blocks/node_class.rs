//! The table of `node_class` blocks.
//! It must not know how it is read.

use super::{BLOCK, CLUSTERS, argument, form};
use crate::config::id_format::Form;
use crate::config::schema::{BlockType, Kind, Repeat};
use crate::model::node_class::image::Family;

mod terms;
mod devices;
mod kubelet;
mod bootstrap;

pub(super) static NODE_CLASS: BlockType = BlockType {
    name: "node_class",
    label: Some("NAME"),
    repeat: Repeat::PerLabel,
    about: "How EC2 makes the nodes of a pool. The pools of a managed cluster on EC2 need one with \
            `ami`, `subnet` and `security_group` blocks and a role or instance profile.",
    arguments: &[
        argument(
            "for_each",
            Kind::Expression,
            "",
            "Makes one node class for each element, all known by the block's label: a cluster \
             uses the one whose `clusters` name it.",
        ),
        CLUSTERS,
        argument(
            "ami_family",
            Kind::OneOf(&Family::NAMES),
            "",
            "What the images are: decides how user data is written and which disks there are. \
             Required where `ami` blocks have no alias; the alias' family if missing.",
        ),
        form(
            "role",
            Form::RoleName,
            "IAM role of the nodes: an instance profile is made for it.",
        ),
        form(
            "instance_profile",
            Form::ProfileName,
            "Instance profile of the nodes, in place of `role`.",
        ),
        argument(
            "associate_public_ip",
            Kind::Flag,
            "",
            "Public addresses; as the subnet says if missing.",
        ),
        argument(
            "ip_prefix_count",
            Kind::Whole(0, 100),
            "",
            "Prefixes of addresses on each network interface. Nodes that are there stay as they \
             are when it changes.",
        ),
        argument(
            "user_data",
            Kind::Text,
            "",
            "User data of your own, merged with ours as the family demands; with `ami_family = \
             \"custom\"` and without a `bootstrap` block it is passed on as it is.",
        ),
        argument(
            "tags",
            Kind::Tags,
            "{}",
            "Tags for everything a launch makes.",
        ),
        argument(
            "detailed_monitoring",
            Kind::Flag,
            "false",
            "CloudWatch metrics each minute.",
        ),
        argument(
            "instance_store_policy",
            Kind::OneOf(&["raid0"]),
            "",
            "What becomes of local disks: one RAID 0 for the kubelet and containerd.",
        ),
        argument(
            "efa",
            Kind::Flag,
            "true",
            "Whether nodes have elastic fabric adapters where pods ask for them. With \
             `network_interface` blocks these say it. `false` is what an empty list of \
             `networkInterfaces` is to Karpenter.",
        ),
        form(
            "context",
            Form::Filled,
            "`Context` of CreateFleet. It is left out of launches for which fewer values than \
             `min_values` asks for have to do.",
        ),
        argument(
            "reserved_enis",
            Kind::Whole(0, 100),
            "0",
            "Network interfaces of the default card that are kept from pods.",
        ),
        argument(
            "vm_memory_overhead_percent",
            Kind::Number(0, 100),
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
