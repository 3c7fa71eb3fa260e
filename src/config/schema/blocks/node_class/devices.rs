//! Schema tables of the hardware of instances: disks, network interfaces, CPU options.
//! They must not depend on the code that reads them.

use super::super::{MINUTE, SECOND, duration_type};
use crate::config::id_format::IdFormat;
use crate::config::schema::ArgumentType;

/// A gigabyte, the unit of the limits on volume sizes. Source: spec/aws.md §1.1.
const GIGA: i64 = 1_000_000_000;

block_types! {
    /// A disk, by device name. Without a block, the node has the default disks of its family: 20
    /// GiB of encrypted `gp3` (Bottlerocket: 4 GiB and 20 GiB; Windows: 50 GiB; `custom`: the disks
    /// of the image).
    pub(super) static BLOCK_DEVICE = "block_device" "DEVICE", PerLabel, arguments! {
        /// Size, such as `50Gi`. Required without `snapshot_id`.
        volume_size: ArgumentType::Size(GIGA, 64_000 * GIGA);
        /// Volume type.
        volume_type:
            ArgumentType::OneOf(&["gp2", "gp3", "io1", "io2", "sc1", "st1", "standard"]) => "gp3";
        /// I/O operations per second, for `gp3`, `io1` and `io2`.
        iops: ArgumentType::Whole(100, 256_000);
        /// Throughput in MiB per second, for `gp3`.
        throughput: ArgumentType::Whole(125, 2000);
        /// Encrypts the volume. Defaults to the setting of the account.
        encrypted: ArgumentType::Flag;
        /// KMS key to encrypt the volume with.
        kms_key_id: ArgumentType::Form(IdFormat::Filled);
        /// Snapshot to create the volume from.
        snapshot_id: ArgumentType::Form(IdFormat::SnapshotId);
        /// Rate in MiB per second at which the snapshot is loaded.
        volume_initialization_rate: ArgumentType::Whole(100, 300);
        /// Deletes the volume when the instance is terminated.
        delete_on_termination: ArgumentType::Flag => true;
        /// Stores the data of the kubelet on this volume. Only one disk can set it.
        root_volume: ArgumentType::Flag => false;
    };

    /// Settings of the instance metadata service.
    pub(super) static METADATA_OPTIONS = "metadata_options", Once, arguments! {
        /// Enables or disables the service.
        http_endpoint: ArgumentType::OneOf(&["enabled", "disabled"]) => "enabled";
        /// Enables or disables the IPv6 address of the service.
        http_protocol_ipv6: ArgumentType::OneOf(&["enabled", "disabled"]) => "disabled";
        /// Maximum number of network hops for responses.
        http_put_response_hop_limit: ArgumentType::Whole(1, 64) => 1;
        /// `required` accepts only IMDSv2. `optional` also accepts IMDSv1.
        http_tokens: ArgumentType::OneOf(&["required", "optional"]) => "required";
    };

    /// A network interface. If there is any block, the blocks define all network interfaces. One of
    /// them must have card 0, device 0 and the type `interface`.
    pub(super) static NETWORK_INTERFACE = "network_interface", Many, arguments! {
        /// Index of the network card.
        network_card_index: ArgumentType::Whole(0, 150) => required;
        /// Index of the device on the network card.
        device_index: ArgumentType::Whole(0, 150) => required;
        /// `interface` has an IP address. `efa-only` is an elastic fabric adapter without an IP
        /// address, at most one per card.
        interface_type: ArgumentType::OneOf(&["interface", "efa-only"]) => "interface";
    };

    /// How long security groups track idle connections. Requires Nitro instance types.
    pub(super) static CONNECTION_TRACKING = "connection_tracking", Once, arguments! {
        /// Timeout of established TCP connections.
        tcp_established_timeout: duration_type(MINUTE, 7200 * MINUTE);
        /// Timeout of UDP streams.
        udp_stream_timeout: duration_type(MINUTE, 3 * MINUTE);
        /// Timeout of UDP traffic in one direction, or of one request and response.
        udp_timeout: duration_type(30 * SECOND, MINUTE);
    };

    /// CPU options of the instances.
    pub(super) static CPU_OPTIONS = "cpu_options", Once, arguments! {
        /// Nested virtualization. `enabled` launches only instance types that support it. Defaults
        /// to the behavior of EC2.
        nested_virtualization: ArgumentType::OneOf(&["enabled", "disabled"]);
    };
}
