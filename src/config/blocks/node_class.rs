//! The table of `node_class` blocks.
//! It must not know how it is read.

use super::{BLOCK, argument};
use crate::config::schema::{BlockType, Kind, Repeat};

pub(super) static NODE_CLASS: BlockType = BlockType {
    name: "node_class",
    label: Some("NAME"),
    repeat: Repeat::PerLabel,
    about: "How EC2 makes the nodes of a pool.",
    arguments: &[
        argument(
            "for_each",
            Kind::Expression,
            "",
            "Makes one node class for each element, all known by the block's label: a cluster \
             uses the one whose `clusters` name it.",
        ),
        argument(
            "clusters",
            Kind::Texts,
            "[\"*\"]",
            "Clusters it is for: names, or patterns with `*`.",
        ),
        argument("role", Kind::Text, "", "IAM role of the nodes."),
        argument(
            "instance_profile",
            Kind::Text,
            "",
            "Instance profile of the nodes, in place of `role`.",
        ),
        argument(
            "user_data",
            Kind::Text,
            "",
            "User data, passed on as it is.",
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
            "associate_public_ip",
            Kind::Flag,
            "",
            "Public addresses; as the subnet says if missing.",
        ),
        argument(
            "instance_store_policy",
            Kind::OneOf(&["raid0"]),
            "",
            "What becomes of local disks.",
        ),
    ],
    blocks: &[
        &AMI,
        &SUBNET,
        &SECURITY_GROUP,
        &CAPACITY_RESERVATION,
        &BLOCK_DEVICE,
        &METADATA_OPTIONS,
        &KUBELET,
    ],
    ..BLOCK
};

static AMI: BlockType = BlockType {
    name: "ami",
    repeat: Repeat::Many,
    about: "An image, or several. Blocks are alternatives; all arguments of one must fit.",
    arguments: &[
        argument(
            "alias",
            Kind::Text,
            "",
            "Family and version, such as `al2023@latest`.",
        ),
        argument("id", Kind::Text, "", "Image id."),
        argument(
            "ssm_parameter",
            Kind::Text,
            "",
            "SSM parameter that holds an image id.",
        ),
        argument("name", Kind::Text, "", "Name of the image, `*` allowed."),
        argument(
            "owner",
            Kind::Text,
            "",
            "Account id, `self`, or an alias such as `amazon`.",
        ),
        argument("tags", Kind::Tags, "{}", "Tags of the image."),
    ],
    ..BLOCK
};

static SUBNET: BlockType = BlockType {
    name: "subnet",
    repeat: Repeat::Many,
    about: "Subnets to launch into. Blocks are alternatives.",
    arguments: &[
        argument("id", Kind::Text, "", "Subnet id."),
        argument("tags", Kind::Tags, "{}", "Tags of the subnet."),
    ],
    ..BLOCK
};

static SECURITY_GROUP: BlockType = BlockType {
    name: "security_group",
    repeat: Repeat::Many,
    about: "Security groups of the nodes. Blocks are alternatives.",
    arguments: &[
        argument("id", Kind::Text, "", "Group id."),
        argument("name", Kind::Text, "", "Name of the group."),
        argument("tags", Kind::Tags, "{}", "Tags of the group."),
    ],
    ..BLOCK
};

static CAPACITY_RESERVATION: BlockType = BlockType {
    name: "capacity_reservation",
    repeat: Repeat::Many,
    about: "Capacity reservations to use. Blocks are alternatives.",
    arguments: &[
        argument("id", Kind::Text, "", "Reservation id."),
        argument("owner", Kind::Text, "", "Account id of the owner."),
        argument("tags", Kind::Tags, "{}", "Tags of the reservation."),
    ],
    ..BLOCK
};

static BLOCK_DEVICE: BlockType = BlockType {
    name: "block_device",
    label: Some("DEVICE"),
    repeat: Repeat::PerLabel,
    about: "A disk, by its device name.",
    arguments: &[
        argument("volume_size", Kind::Quantity, "", "Size, such as `50Gi`."),
        argument(
            "volume_type",
            Kind::OneOf(&["gp2", "gp3", "io1", "io2", "sc1", "st1", "standard"]),
            "\"gp3\"",
            "Kind of volume.",
        ),
        argument(
            "iops",
            Kind::Whole(100, 256_000),
            "",
            "Operations per second.",
        ),
        argument("throughput", Kind::Whole(125, 2000), "", "MiB per second."),
        argument("encrypted", Kind::Flag, "", "Whether it is encrypted."),
        argument("kms_key_id", Kind::Text, "", "Key it is encrypted with."),
        argument("snapshot_id", Kind::Text, "", "Snapshot it is made from."),
        argument(
            "delete_on_termination",
            Kind::Flag,
            "true",
            "Whether it goes with the instance.",
        ),
        argument(
            "root_volume",
            Kind::Flag,
            "false",
            "Whether the kubelet's data is on it.",
        ),
    ],
    ..BLOCK
};

static METADATA_OPTIONS: BlockType = BlockType {
    name: "metadata_options",
    about: "The instance metadata service.",
    arguments: &[
        argument(
            "http_endpoint",
            Kind::OneOf(&["enabled", "disabled"]),
            "\"enabled\"",
            "Whether there is one.",
        ),
        argument(
            "http_protocol_ipv6",
            Kind::OneOf(&["enabled", "disabled"]),
            "\"disabled\"",
            "Whether it has an IPv6 address.",
        ),
        argument(
            "http_put_response_hop_limit",
            Kind::Whole(1, 64),
            "1",
            "Hops its answers may take.",
        ),
        argument(
            "http_tokens",
            Kind::OneOf(&["required", "optional"]),
            "\"required\"",
            "Whether only IMDSv2 is answered.",
        ),
    ],
    ..BLOCK
};

static KUBELET: BlockType = BlockType {
    name: "kubelet",
    about: "Settings of the nodes' kubelets.",
    arguments: &[
        argument(
            "max_pods",
            Kind::Whole(1, 1110),
            "",
            "Pods a node takes at most.",
        ),
        argument(
            "pods_per_core",
            Kind::Whole(0, 1110),
            "",
            "Pods a node takes per core.",
        ),
        argument(
            "cluster_dns",
            Kind::Texts,
            "[]",
            "Addresses of the cluster's DNS.",
        ),
        argument(
            "system_reserved",
            Kind::Quantities,
            "{}",
            "Kept for the system.",
        ),
        argument(
            "kube_reserved",
            Kind::Quantities,
            "{}",
            "Kept for Kubernetes.",
        ),
        argument(
            "eviction_hard",
            Kind::Tags,
            "{}",
            "Signals that evict at once.",
        ),
        argument(
            "eviction_soft",
            Kind::Tags,
            "{}",
            "Signals that evict after a while.",
        ),
        argument(
            "eviction_soft_grace_period",
            Kind::Tags,
            "{}",
            "How long, for each signal.",
        ),
        argument(
            "eviction_max_pod_grace_period",
            Kind::Whole(0, 86_400),
            "",
            "Seconds a pod has at most.",
        ),
        argument(
            "image_gc_high_threshold_percent",
            Kind::Whole(0, 100),
            "",
            "Disk usage at which images are removed.",
        ),
        argument(
            "image_gc_low_threshold_percent",
            Kind::Whole(0, 100),
            "",
            "Disk usage down to which images are removed.",
        ),
        argument(
            "cpu_cfs_quota",
            Kind::Flag,
            "",
            "Whether CPU limits are enforced.",
        ),
    ],
    ..BLOCK
};
