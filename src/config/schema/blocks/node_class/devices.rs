//! The tables of what instances are equipped with.
//! They must not know how they are read.

use super::super::{BLOCK, MINUTE, SECOND, argument, duration, form, required};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

/// A gigabyte, as the sizes of volumes are bounded. Source: spec/aws.md §1.1.
const GIGA: i64 = 1_000_000_000;

pub(super) static BLOCK_DEVICE: BlockType = BlockType {
    name: "block_device",
    label: Some("DEVICE"),
    repeat: Occurrence::PerLabel,
    about: "A disk, by its device name. Without one, disks are the family's: 20 GiB of `gp3`, \
            encrypted (Bottlerocket: 4 and 20; Windows: 50; `custom`: as the image says).",
    arguments: &[
        argument(
            "volume_size",
            ArgumentType::Size(GIGA, 64_000 * GIGA),
            "",
            "Size, such as `50Gi`. Required unless a snapshot says it.",
        ),
        argument(
            "volume_type",
            ArgumentType::OneOf(&["gp2", "gp3", "io1", "io2", "sc1", "st1", "standard"]),
            "\"gp3\"",
            "Kind of volume.",
        ),
        argument(
            "iops",
            ArgumentType::Whole(100, 256_000),
            "",
            "Operations per second, of `gp3`, `io1` and `io2`.",
        ),
        argument(
            "throughput",
            ArgumentType::Whole(125, 2000),
            "",
            "MiB per second, of `gp3`.",
        ),
        argument(
            "encrypted",
            ArgumentType::Flag,
            "",
            "Whether it is encrypted; as the account says if missing.",
        ),
        form("kms_key_id", IdFormat::Filled, "Key it is encrypted with."),
        form(
            "snapshot_id",
            IdFormat::SnapshotId,
            "Snapshot it is made from.",
        ),
        argument(
            "volume_initialization_rate",
            ArgumentType::Whole(100, 300),
            "",
            "MiB per second at which the snapshot is loaded.",
        ),
        argument(
            "delete_on_termination",
            ArgumentType::Flag,
            "true",
            "Whether it goes with the instance.",
        ),
        argument(
            "root_volume",
            ArgumentType::Flag,
            "false",
            "Whether the kubelet's data is on it; of one disk at most.",
        ),
    ],
    ..BLOCK
};

pub(super) static METADATA_OPTIONS: BlockType = BlockType {
    name: "metadata_options",
    about: "The instance metadata service.",
    arguments: &[
        argument(
            "http_endpoint",
            ArgumentType::OneOf(&["enabled", "disabled"]),
            "\"enabled\"",
            "Whether there is one.",
        ),
        argument(
            "http_protocol_ipv6",
            ArgumentType::OneOf(&["enabled", "disabled"]),
            "\"disabled\"",
            "Whether it has an IPv6 address.",
        ),
        argument(
            "http_put_response_hop_limit",
            ArgumentType::Whole(1, 64),
            "1",
            "Hops its answers may take.",
        ),
        argument(
            "http_tokens",
            ArgumentType::OneOf(&["required", "optional"]),
            "\"required\"",
            "Whether only IMDSv2 is answered.",
        ),
    ],
    ..BLOCK
};

pub(super) static NETWORK_INTERFACE: BlockType = BlockType {
    name: "network_interface",
    repeat: Occurrence::Many,
    about: "A network interface. Where there are any, they are all there are: one is of card 0 and \
            device 0 and no `efa-only`.",
    arguments: &[
        required(
            "network_card_index",
            ArgumentType::Whole(0, 150),
            "Network card it is on.",
        ),
        required(
            "device_index",
            ArgumentType::Whole(0, 150),
            "Its index on the card.",
        ),
        argument(
            "interface_type",
            ArgumentType::OneOf(&["interface", "efa-only"]),
            "\"interface\"",
            "What it is: with an address, or an elastic fabric adapter without one, at most one a \
             card.",
        ),
    ],
    ..BLOCK
};

pub(super) static CONNECTION_TRACKING: BlockType = BlockType {
    name: "connection_tracking",
    about: "How long security groups remember idle connections. Only instance types of Nitro can \
            do that.",
    arguments: &[
        argument(
            "tcp_established_timeout",
            duration(MINUTE, 7200 * MINUTE),
            "",
            "TCP connections.",
        ),
        argument(
            "udp_stream_timeout",
            duration(MINUTE, 3 * MINUTE),
            "",
            "Streams of UDP.",
        ),
        argument(
            "udp_timeout",
            duration(30 * SECOND, MINUTE),
            "",
            "UDP in one direction, or one exchange of it.",
        ),
    ],
    ..BLOCK
};

pub(super) static CPU_OPTIONS: BlockType = BlockType {
    name: "cpu_options",
    about: "The processors.",
    arguments: &[argument(
        "nested_virtualization",
        ArgumentType::OneOf(&["enabled", "disabled"]),
        "",
        "Whether nodes can run virtual machines: only instance types that can are used. EC2's \
         way if missing.",
    )],
    ..BLOCK
};
