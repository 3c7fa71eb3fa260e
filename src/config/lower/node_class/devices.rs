//! Converts block devices and network interfaces.

use std::collections::BTreeMap;

use super::{at_most, report_argument};
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::report::error_at;
use crate::config::source::Span;
use crate::model::node_class::disk::BlockDevice;
use crate::model::node_class::network::{ConnectionTracking, NetworkInterface};

/// Maximum number of block devices and network interfaces. Source: spec/aws.md §1.1.
const DISKS_MAX: usize = 50;
const INTERFACES_MAX: usize = 150;

pub(super) fn block_devices(section: &DecodedBlock) -> Vec<BlockDevice> {
    at_most(section, "block_device", DISKS_MAX);
    let mut roots =
        section.blocks("block_device").filter(|disk| disk.flag("root_volume") == Some(true));
    if let (Some(first), Some(second)) = (roots.next(), roots.next()) {
        let detail = "Only one block device can be the root volume.";
        let span = second.value_span("root_volume");
        error_at(ProblemCode::Conflict, span, detail)
            .also(first.value_span("root_volume"), "the first root volume")
            .report(second);
    }
    let disks = section.blocks("block_device");
    disks.map(block_device).collect()
}

fn block_device(section: &DecodedBlock) -> BlockDevice {
    check_disk(section);
    BlockDevice {
        name: section.label().to_owned(),
        size: section.whole_number("volume_size"),
        volume_type: Some(volume_type(section).to_owned()),
        iops: section.count("iops"),
        throughput: section.count("throughput"),
        encrypted: section.flag("encrypted"),
        kms_key_id: section.owned_text("kms_key_id"),
        snapshot_id: section.owned_text("snapshot_id"),
        initialization_rate: section.count("volume_initialization_rate"),
        delete_on_termination: Some(section.flag("delete_on_termination").unwrap_or(true)),
        root_volume: section.flag("root_volume") == Some(true),
    }
}

fn volume_type(section: &DecodedBlock) -> &str {
    section.text("volume_type").unwrap_or("gp3")
}

fn check_disk(section: &DecodedBlock) {
    let snapshot = section.is_set("snapshot_id");
    let kind = volume_type(section);
    let has_valid_type = !section.is_set("volume_type") || section.text("volume_type").is_some();
    // EC2 rejects a launch with any of these problems. Source: EC2, `EbsBlockDevice`.
    let problems = [
        (
            !snapshot && !section.is_set("volume_size"),
            "volume_size",
            ProblemCode::MissingArgument,
            "A block_device block requires volume_size or snapshot_id.",
        ),
        (
            !snapshot && section.is_set("volume_initialization_rate"),
            "volume_initialization_rate",
            ProblemCode::Conflict,
            "volume_initialization_rate requires snapshot_id.",
        ),
        (
            section.is_set("kms_key_id") && section.flag("encrypted") != Some(true),
            "kms_key_id",
            ProblemCode::Conflict,
            "kms_key_id requires an encrypted volume.",
        ),
        (
            has_valid_type && section.is_set("iops") && !matches!(kind, "gp3" | "io1" | "io2"),
            "iops",
            ProblemCode::Conflict,
            "iops is only supported for the volume types gp3, io1 and io2.",
        ),
        (
            has_valid_type && section.is_set("throughput") && kind != "gp3",
            "throughput",
            ProblemCode::Conflict,
            "throughput is only supported for the volume type gp3.",
        ),
        (
            has_valid_type && matches!(kind, "io1" | "io2") && !section.is_set("iops"),
            "volume_type",
            ProblemCode::MissingArgument,
            "The volume types io1 and io2 require iops.",
        ),
    ];
    for (_, argument, code, detail) in problems.into_iter().filter(|problem| problem.0) {
        let help = (argument == "kms_key_id").then_some("write encrypted = true");
        report_argument(section, argument, code, detail, help);
    }
}

/// The network interfaces. The list is empty if `efa = false`.
pub(super) fn network_interfaces(section: &DecodedBlock) -> Option<Vec<NetworkInterface>> {
    const KIND: &str = "network_interface";
    at_most(section, KIND, INTERFACES_MAX);
    let first = section.blocks(KIND).next();
    let Some(first) = first else {
        return (section.flag("efa") == Some(false)).then(Vec::new);
    };
    if section.is_set("efa") {
        let detail = "efa and network_interface blocks exclude each other.";
        error_at(ProblemCode::Conflict, section.value_span("efa"), detail)
            .also(first.header, "a network_interface block")
            .report(section);
    }
    let (mut all, mut complete) = (Vec::new(), true);
    let mut places: BTreeMap<(u32, u32), Span> = BTreeMap::new();
    let mut adapters: BTreeMap<u32, Span> = BTreeMap::new();
    for block in section.blocks(KIND) {
        let (card, device) = (block.count("network_card_index"), block.count("device_index"));
        let (Some(card), Some(device)) = (card, device) else {
            complete = false;
            continue;
        };
        complete &= !block.is_set("interface_type") || block.text("interface_type").is_some();
        let efa_only = block.text("interface_type") == Some("efa-only");
        let same_place = places
            .insert((card, device), block.header)
            .map(|first| (first, "Two network interfaces have the same card and device."));
        let same_adapter = efa_only
            .then(|| adapters.insert(card, block.header))
            .flatten()
            .map(|first| (first, "A network card must have at most one efa-only interface."));
        for (first, detail) in same_place.into_iter().chain(same_adapter) {
            error_at(ProblemCode::Conflict, block.header, detail)
                .also(first, "the first interface")
                .report(block);
        }
        all.push(NetworkInterface { card, device, efa_only });
    }
    let primary = NetworkInterface { card: 0, device: 0, efa_only: false };
    if complete && !all.contains(&primary) {
        let detail = "The primary network interface is missing: card 0, device 0, and not \
                      efa-only.";
        first.error(ProblemCode::MissingBlock, first.header, detail);
    }
    Some(all)
}

pub(super) fn connection_tracking(section: &DecodedBlock) -> Option<ConnectionTracking> {
    const NAMES: [&str; 3] = ["tcp_established_timeout", "udp_stream_timeout", "udp_timeout"];
    let inner = section.block("connection_tracking")?;
    if !inner.is_any_set(&NAMES) {
        let detail = "A connection_tracking block must have at least one argument.";
        let help = format!("expected one of: {}", NAMES.join(", "));
        let code = ProblemCode::MissingArgument;
        report_argument(inner, NAMES[0], code, detail, Some(&help));
    }
    Some(ConnectionTracking {
        tcp_established: inner.duration(NAMES[0]),
        udp_stream: inner.duration(NAMES[1]),
        udp: inner.duration(NAMES[2]),
    })
}
