//! Launch templates as values, named by the hash of their content.
//!
//! Source: spec/aws.md §5.4.

use std::fmt;

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::model::id::ReservationId;
use crate::model::instance::CapacityType;
use crate::model::labels::Labels;
use crate::model::node_class::NodeClass;
use crate::model::node_class::disk::BlockDevice;
use crate::model::node_class::image::AmiFamily;
use crate::model::node_class::network::ConnectionTracking;
use crate::model::node_class::resolved::{PlacementGroupStrategy, ResolvedNodeClass};
use crate::model::reservation::{Reservation, ReservationKind};

/// Name prefix of launch templates.
pub const NAME_PREFIX: &str = "outrigger/";

/// Maximum length of a template name in EC2.
pub const NAME_MAX: usize = 128;

/// Number of hexadecimal digits of the content hash in its name.
const DIGITS: usize = 32;

/// Regions without IPv6 for the metadata service. In these regions, a launch fails even if the
/// template explicitly disables IPv6. Source: spec/aws.md §5.4.
const WITHOUT_METADATA_IPV6: [&str; 6] = [
    "us-iso-east-1",
    "us-iso-west-1",
    "us-isob-east-1",
    "us-isob-west-1",
    "us-isof-south-1",
    "us-isof-east-1",
];

const GIB: i64 = 1 << 30;

/// User data of an instance. It may contain a join token, so only its hash is displayed or stored.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RenderedUserData(Vec<u8>);

impl RenderedUserData {
    /// Creates user data from a string, before base64 encoding.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The content, before base64 encoding.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for RenderedUserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserData({} bytes)", self.0.len())
    }
}

impl Serialize for RenderedUserData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&to_hex(&Sha256::digest(&self.0)))
    }
}

/// A kind of network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum InterfaceKind {
    /// An ordinary one.
    Interface,
    /// An Elastic Fabric Adapter with addresses.
    Efa,
    /// An Elastic Fabric Adapter without addresses.
    EfaOnly,
}

impl InterfaceKind {
    /// EC2's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interface => "interface",
            Self::Efa => "efa",
            Self::EfaOnly => "efa-only",
        }
    }
}

/// Timeouts of idle connection tracking, in seconds. `None` uses EC2's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tracking {
    /// TCP connections.
    pub tcp_established: Option<i32>,
    /// UDP streams.
    pub udp_stream: Option<i32>,
    /// Other UDP traffic.
    pub udp: Option<i32>,
}

/// One network interface. In a template, only network interfaces have security groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Network card. `None` without an interface layout.
    pub card: Option<i32>,
    /// Device index on the card.
    pub device: i32,
    /// Kind. `None` without an interface layout.
    pub kind: Option<InterfaceKind>,
    /// Security groups, by id.
    pub groups: Vec<String>,
    /// True if the interface has a public address. `None` uses the setting of the subnet.
    pub public_ip: Option<bool>,
    /// IPv4 prefixes.
    pub ipv4_prefixes: Option<i32>,
    /// IPv6 prefixes.
    pub ipv6_prefixes: Option<i32>,
    /// True if the first IPv6 address of the interface is primary, and the number of its IPv6
    /// addresses.
    pub ipv6: Option<(bool, i32)>,
    /// Idle connection tracking.
    pub tracking: Option<Tracking>,
}

/// One disk. Fields with `None` use EC2's default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Device name.
    pub name: String,
    /// Size in GiB.
    pub gib: Option<i32>,
    /// Volume type.
    pub volume_type: Option<String>,
    /// Operations per second; never zero.
    pub iops: Option<i32>,
    /// MiB per second; never zero.
    pub throughput: Option<i32>,
    /// True if the disk is encrypted.
    pub encrypted: Option<bool>,
    /// Encryption key.
    pub kms_key_id: Option<String>,
    /// Source snapshot.
    pub snapshot_id: Option<String>,
    /// Snapshot initialization rate in MiB per second.
    pub initialization_rate: Option<i32>,
    /// True if EC2 deletes the disk when the instance is terminated.
    pub delete_on_termination: Option<bool>,
}

/// The instance metadata service. Instance tags in metadata stay disabled: Outrigger's tags contain
/// `/`, with which such a launch fails (spec/aws.md §10, 62).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Metadata {
    /// True if the metadata service is enabled.
    pub endpoint: bool,
    /// True if the metadata service has an IPv6 endpoint. `None` if the region does not support the
    /// setting.
    pub ipv6: Option<bool>,
    /// Hop limit.
    pub hop_limit: i32,
    /// True if IMDSv2 is required.
    pub tokens_required: bool,
}

/// Placement: tenancy and placement group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// True if tenancy is dedicated.
    pub dedicated: bool,
    /// Id of the placement group.
    pub group: Option<String>,
    /// Partition of the group. `None` lets EC2 choose.
    pub partition: Option<i32>,
}

/// EC2's market type, if not on demand and not spot. Spot is set in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MarketType {
    /// A Capacity Block.
    CapacityBlock,
    /// A reservation whose owner may take instances back.
    Interruptible,
}

impl MarketType {
    /// EC2's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CapacityBlock => "capacity-block",
            Self::Interruptible => "interruptible-capacity-reservation",
        }
    }
}

/// The content of a launch template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaunchTemplate {
    /// The cluster, as configured.
    pub cluster: String,
    /// Image id.
    pub image: String,
    /// Name of the instance profile.
    pub profile: Option<String>,
    /// User data.
    pub user_data: RenderedUserData,
    /// Network interfaces; never empty.
    pub interfaces: Vec<Interface>,
    /// Disks. Omitted if empty, because EC2 rejects an empty list.
    pub devices: Vec<Device>,
    /// The metadata service.
    pub metadata: Metadata,
    /// Detailed monitoring.
    pub monitoring: bool,
    /// True if nested virtualization is enabled.
    pub nested_virtualization: Option<bool>,
    /// Placement.
    pub placement: Placement,
    /// True if the instance has Nitro enclaves.
    pub enclave: bool,
    /// The targeted capacity reservation. `None` also excludes open reservations, which would be
    /// used unnoticed (spec/aws.md §10, 68).
    pub reservation: Option<String>,
    /// Market type. With `None`, the request contains no market type.
    pub market: Option<MarketType>,
    /// True if the tags are set on spot requests in addition to network interfaces.
    pub spot: bool,
    /// Tags of the template, network interfaces and spot requests. Equal for all claims of a pool.
    pub tags: Labels,
}

impl LaunchTemplate {
    /// The name of the template. It depends only on the content, so it is equal in every process.
    pub fn name(&self) -> String {
        // Serializing plain data cannot fail.
        let text = serde_json::to_vec(self).unwrap_or_default();
        let digest = to_hex(&Sha256::digest(&text));
        let cluster = cluster_in_name(&self.cluster);
        format!("{NAME_PREFIX}{cluster}/{}", &digest[..DIGITS])
    }
}

/// The cluster name in template names. EC2 allows letters, digits and `().-/_`.
pub fn cluster_in_name(cluster: &str) -> String {
    let cluster = cluster.chars().map(|c| match c {
        c if c.is_ascii_alphanumeric() || "-._".contains(c) => c,
        _ => '-',
    });
    let room = NAME_MAX - NAME_PREFIX.len() - DIGITS - 1;
    cluster.take(room).collect()
}

/// The cluster in the name of an Outrigger template, in the spelling of [`cluster_in_name`]. `None`
/// for other templates.
pub fn cluster_in(name: &str) -> Option<&str> {
    let (cluster, _) = name.strip_prefix(NAME_PREFIX)?.rsplit_once('/')?;
    Some(cluster)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The properties of a cluster that affect its templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateTarget<'a> {
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Region.
    pub region: &'a str,
    /// True if the cluster's pods have IPv6 addresses.
    pub ipv6: bool,
}

/// Inputs of a template in addition to the node class.
#[derive(Clone, Debug, Default)]
pub struct Variation<'a> {
    /// Image id.
    pub image: &'a str,
    /// User data for this image.
    pub user_data: RenderedUserData,
    /// Purchase option.
    pub bought: Option<CapacityType>,
    /// Capacity reservation.
    pub reservation: Option<&'a Reservation>,
    /// Number of Elastic Fabric Adapters, if pods request them and the class sets none.
    pub efas: u32,
    /// True if the instance has Nitro enclaves.
    pub enclave: bool,
    /// True if tenancy is dedicated.
    pub dedicated: bool,
    /// Partition of the placement group.
    pub partition: Option<u32>,
    /// Tags of all claims of the pool.
    pub tags: Labels,
}

/// Builds the template of a node class with its resolved AWS resources.
pub fn build_template(
    class: &NodeClass,
    resolved: &ResolvedNodeClass,
    site: TemplateTarget<'_>,
    variation: Variation<'_>,
) -> LaunchTemplate {
    let ipv6 = class.metadata.ipv6;
    let group = resolved.placement_group.as_ref();
    let partitions =
        group.filter(|group| matches!(group.strategy, PlacementGroupStrategy::Partition(_)));
    LaunchTemplate {
        cluster: site.cluster.to_owned(),
        image: variation.image.to_owned(),
        profile: resolved.profile.clone(),
        user_data: variation.user_data,
        interfaces: network_interfaces(class, resolved, site.ipv6, variation.efas),
        devices: block_devices(class),
        metadata: Metadata {
            endpoint: class.metadata.endpoint,
            ipv6: (!WITHOUT_METADATA_IPV6.contains(&site.region)).then_some(ipv6),
            hop_limit: i32::from(class.metadata.hop_limit),
            tokens_required: class.metadata.tokens_required,
        },
        monitoring: class.detailed_monitoring,
        nested_virtualization: class.nested_virtualization,
        placement: Placement {
            dedicated: variation.dedicated,
            group: group.map(|group| group.id.clone()),
            partition: variation.partition.filter(|_| partitions.is_some()).map(to_i32),
        },
        enclave: variation.enclave,
        reservation: variation
            .reservation
            .map(|reservation| ReservationId::as_str(&reservation.id).to_owned()),
        market: variation.reservation.and_then(market_type),
        spot: variation.bought == Some(CapacityType::Spot),
        tags: variation.tags,
    }
}

fn market_type(reservation: &Reservation) -> Option<MarketType> {
    match reservation.kind {
        ReservationKind::CapacityBlock => Some(MarketType::CapacityBlock),
        ReservationKind::Default => reservation.interruptible.then_some(MarketType::Interruptible),
    }
}

/// EC2's integers are signed.
fn to_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn network_interfaces(
    class: &NodeClass,
    resolved: &ResolvedNodeClass,
    ipv6: bool,
    efas: u32,
) -> Vec<Interface> {
    let groups: Vec<String> =
        resolved.security_groups.iter().map(|group| group.id.clone()).collect();
    let prefixes = class.ip_prefix_count.map(to_i32);
    let configured = class.network_interfaces.iter().flatten();
    let mut layout: Vec<(Option<i32>, i32, Option<InterfaceKind>)> = configured
        .map(|interface| {
            let kind = match interface.efa_only {
                true => InterfaceKind::EfaOnly,
                false => InterfaceKind::Interface,
            };
            let [card, device] = [interface.card, interface.device].map(to_i32);
            (Some(card), device, Some(kind))
        })
        .collect();
    if layout.is_empty() {
        // The first card is always the same, so that the interface with the public address is
        // deterministic.
        let cards = (0..efas).map(|card| (Some(to_i32(card)), i32::from(card > 0)));
        layout.extend(cards.map(|(card, device)| (card, device, Some(InterfaceKind::Efa))));
    }
    if layout.is_empty() {
        layout.push((None, 0, None));
    }
    let interfaces = layout.into_iter().map(|(card, device, kind)| {
        // Address settings on an interface without addresses make a launch fail (spec/aws.md §10,
        // 66).
        let addressed = kind != Some(InterfaceKind::EfaOnly);
        Interface {
            card,
            device,
            kind,
            groups: groups.clone(),
            public_ip: class.public_ip.filter(|_| addressed),
            ipv4_prefixes: prefixes.filter(|_| addressed && !ipv6),
            ipv6_prefixes: prefixes.filter(|_| addressed && ipv6),
            ipv6: (addressed && ipv6).then_some((true, 1)),
            tracking: class.connection_tracking.filter(|_| addressed).and_then(tracking_timeouts),
        }
    });
    interfaces.collect()
}

fn tracking_timeouts(timeouts: ConnectionTracking) -> Option<Tracking> {
    let timeouts = [timeouts.tcp_established, timeouts.udp_stream, timeouts.udp];
    let seconds = timeouts
        .map(|timeout| timeout.map(|timeout| i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX)));
    let [tcp_established, udp_stream, udp] = seconds;
    seconds.iter().any(Option::is_some).then_some(Tracking { tcp_established, udp_stream, udp })
}

/// The disks of a class, or the defaults of its AMI family.
fn block_devices(class: &NodeClass) -> Vec<Device> {
    if class.block_devices.is_empty() {
        return default_devices(class.family);
    }
    class.block_devices.iter().map(block_device).collect()
}

fn block_device(device: &BlockDevice) -> Device {
    Device {
        name: device.name.clone(),
        gib: device.size_gib().map(|gib| gib.try_into().unwrap_or(i32::MAX)),
        volume_type: device.volume_type.clone(),
        iops: positive_number(device.iops),
        throughput: positive_number(device.throughput),
        encrypted: device.encrypted,
        kms_key_id: device.kms_key_id.clone(),
        snapshot_id: device.snapshot_id.clone(),
        initialization_rate: positive_number(device.initialization_rate),
        delete_on_termination: device.delete_on_termination,
    }
}

/// Returns the number, or `None` if it is zero.
fn positive_number(number: Option<u32>) -> Option<i32> {
    number.filter(|number| *number > 0).map(to_i32)
}

/// Source: spec/aws.md §3.7.
fn default_devices(family: AmiFamily) -> Vec<Device> {
    let sizes: &[(&str, i64)] = match family {
        AmiFamily::Al2 | AmiFamily::Al2023 => &[("/dev/xvda", 20)],
        AmiFamily::Bottlerocket => &[("/dev/xvda", 4), ("/dev/xvdb", 20)],
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
            &[("/dev/sda1", 50)]
        }
        AmiFamily::Custom => &[],
    };
    sizes
        .iter()
        .map(|(name, gib)| {
            block_device(&BlockDevice {
                name: (*name).to_owned(),
                size: Some(gib * GIB),
                volume_type: Some("gp3".to_owned()),
                encrypted: Some(true),
                ..BlockDevice::default()
            })
        })
        .collect()
}
