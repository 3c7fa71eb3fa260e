//! Schema tables of the hardware of instances: disks, network interfaces, CPU options.
//! They must not depend on the code that reads them.

use super::super::{
    BLOCK, MINUTE, SECOND, argument, duration_type, format_argument, required_argument,
};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

/// A gigabyte, the unit of the limits on volume sizes. Source: spec/aws.md §1.1.
const GIGA: i64 = 1_000_000_000;

pub(super) static BLOCK_DEVICE: BlockType = BlockType {
    name: "block_device",
    label: Some("DEVICE"),
    repeat: Occurrence::PerLabel,
    about: "A disk, by device name. Without a block, the node has the default disks of its family: \
            20 GiB of encrypted `gp3` (Bottlerocket: 4 GiB and 20 GiB; Windows: 50 GiB; `custom`: \
            the disks of the image).",
    arguments: &[
        argument("volume_size", ArgumentType::Size(GIGA, 64_000 * GIGA))
            .about("Size, such as `50Gi`. Required without `snapshot_id`."),
        argument(
            "volume_type",
            ArgumentType::OneOf(&["gp2", "gp3", "io1", "io2", "sc1", "st1", "standard"]),
        )
        .default_value("\"gp3\"")
        .about("Volume type."),
        argument("iops", ArgumentType::Whole(100, 256_000))
            .about("I/O operations per second, for `gp3`, `io1` and `io2`."),
        argument("throughput", ArgumentType::Whole(125, 2000))
            .about("Throughput in MiB per second, for `gp3`."),
        argument("encrypted", ArgumentType::Flag)
            .about("Encrypts the volume. Defaults to the setting of the account."),
        format_argument("kms_key_id", IdFormat::Filled)
            .about("KMS key to encrypt the volume with."),
        format_argument("snapshot_id", IdFormat::SnapshotId)
            .about("Snapshot to create the volume from."),
        argument("volume_initialization_rate", ArgumentType::Whole(100, 300))
            .about("Rate in MiB per second at which the snapshot is loaded."),
        argument("delete_on_termination", ArgumentType::Flag)
            .default_value("true")
            .about("Deletes the volume when the instance is terminated."),
        argument("root_volume", ArgumentType::Flag)
            .default_value("false")
            .about("Stores the data of the kubelet on this volume. Only one disk can set it."),
    ],
    ..BLOCK
};

pub(super) static METADATA_OPTIONS: BlockType = BlockType {
    name: "metadata_options",
    about: "Settings of the instance metadata service.",
    arguments: &[
        argument("http_endpoint", ArgumentType::OneOf(&["enabled", "disabled"]))
            .default_value("\"enabled\"")
            .about("Enables or disables the service."),
        argument("http_protocol_ipv6", ArgumentType::OneOf(&["enabled", "disabled"]))
            .default_value("\"disabled\"")
            .about("Enables or disables the IPv6 address of the service."),
        argument("http_put_response_hop_limit", ArgumentType::Whole(1, 64))
            .default_value("1")
            .about("Maximum number of network hops for responses."),
        argument("http_tokens", ArgumentType::OneOf(&["required", "optional"]))
            .default_value("\"required\"")
            .about("`required` accepts only IMDSv2. `optional` also accepts IMDSv1."),
    ],
    ..BLOCK
};

pub(super) static NETWORK_INTERFACE: BlockType = BlockType {
    name: "network_interface",
    repeat: Occurrence::Many,
    about: "A network interface. If there is any block, the blocks define all network interfaces. \
            One of them must have card 0, device 0 and the type `interface`.",
    arguments: &[
        required_argument("network_card_index", ArgumentType::Whole(0, 150))
            .about("Index of the network card."),
        required_argument("device_index", ArgumentType::Whole(0, 150))
            .about("Index of the device on the network card."),
        argument(
            "interface_type",
            ArgumentType::OneOf(&["interface", "efa-only"]),
        )
        .default_value("\"interface\"")
        .about(
            "`interface` has an IP address. `efa-only` is an elastic fabric adapter without an IP \
             address, at most one per card.",
        ),
    ],
    ..BLOCK
};

pub(super) static CONNECTION_TRACKING: BlockType = BlockType {
    name: "connection_tracking",
    about: "How long security groups track idle connections. Requires Nitro instance types.",
    arguments: &[
        argument("tcp_established_timeout", duration_type(MINUTE, 7200 * MINUTE))
            .about("Timeout of established TCP connections."),
        argument("udp_stream_timeout", duration_type(MINUTE, 3 * MINUTE))
            .about("Timeout of UDP streams."),
        argument("udp_timeout", duration_type(30 * SECOND, MINUTE))
            .about("Timeout of UDP traffic in one direction, or of one request and response."),
    ],
    ..BLOCK
};

pub(super) static CPU_OPTIONS: BlockType = BlockType {
    name: "cpu_options",
    about: "CPU options of the instances.",
    arguments: &[argument(
        "nested_virtualization",
        ArgumentType::OneOf(&["enabled", "disabled"]),
    )
    .about(
        "Nested virtualization. `enabled` launches only instance types that support it. Defaults \
         to the behavior of EC2.",
    )],
    ..BLOCK
};
