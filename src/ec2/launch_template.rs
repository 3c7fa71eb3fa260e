//! Launch templates as values, named by what they say: two that say the same are one.
//! It must not know which instance types and subnets are launched from one.
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

/// What precedes the name of each of our templates.
pub const NAME_PREFIX: &str = "outrigger/";

/// EC2 allows 128 characters in the name of a template.
pub const NAME_MAX: usize = 128;

/// Hexadecimal digits of what a template says, in its name.
const DIGITS: usize = 32;

/// Regions whose EC2 does not know IPv6 for the metadata service; even to say that it is off makes
/// a launch fail there. Source: spec/aws.md §5.4.
const WITHOUT_METADATA_IPV6: [&str; 6] = [
    "us-iso-east-1",
    "us-iso-west-1",
    "us-isob-east-1",
    "us-isob-west-1",
    "us-isof-south-1",
    "us-isof-east-1",
];

const GIB: i64 = 1 << 30;

/// What an instance reads when it starts. There may be a join token in it, so that it is shown and
/// written nowhere: only its fingerprint is.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RenderedUserData(Vec<u8>);

impl RenderedUserData {
    /// This text, before base64.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// What EC2 is to get, before base64.
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
        serializer.serialize_str(&hex(&Sha256::digest(&self.0)))
    }
}

/// A kind of network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum InterfaceKind {
    /// An ordinary one.
    Interface,
    /// An elastic fabric adapter with addresses.
    Efa,
    /// An elastic fabric adapter without addresses.
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

/// Seconds for which idle connections are remembered; none leaves it to EC2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tracking {
    /// Of TCP connections.
    pub tcp_established: Option<i32>,
    /// Of UDP streams.
    pub udp_stream: Option<i32>,
    /// Of other UDP.
    pub udp: Option<i32>,
}

/// One network interface. Security groups stand nowhere else in a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Network card; none where there is no layout.
    pub card: Option<i32>,
    /// Device index on the card.
    pub device: i32,
    /// Kind; none where there is no layout.
    pub kind: Option<InterfaceKind>,
    /// Security groups, by id.
    pub groups: Vec<String>,
    /// Whether it has a public address; none means as the subnet says.
    pub public_ip: Option<bool>,
    /// IPv4 prefixes.
    pub ipv4_prefixes: Option<i32>,
    /// IPv6 prefixes.
    pub ipv6_prefixes: Option<i32>,
    /// Whether its first IPv6 address is its primary one, and how many it has.
    pub ipv6: Option<(bool, i32)>,
    /// How long idle connections are remembered.
    pub tracking: Option<Tracking>,
}

/// One disk. What is none is left to EC2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Device name.
    pub name: String,
    /// GiB.
    pub gib: Option<i32>,
    /// Volume type.
    pub volume_type: Option<String>,
    /// Operations per second; never zero.
    pub iops: Option<i32>,
    /// MiB per second; never zero.
    pub throughput: Option<i32>,
    /// Whether it is encrypted.
    pub encrypted: Option<bool>,
    /// Key it is encrypted with.
    pub kms_key_id: Option<String>,
    /// Snapshot it is made from.
    pub snapshot_id: Option<String>,
    /// MiB per second at which a snapshot is loaded.
    pub initialization_rate: Option<i32>,
    /// Whether it goes with the instance.
    pub delete_on_termination: Option<bool>,
}

/// The instance metadata service. Tags are never to be read there: ours have `/` in their keys, and
/// with such a launch fails (spec/aws.md §10, 62).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Metadata {
    /// Whether there is one.
    pub endpoint: bool,
    /// Whether it has an IPv6 address; none where nothing may be said about it.
    pub ipv6: Option<bool>,
    /// Hops its answers may take.
    pub hop_limit: i32,
    /// Whether only IMDSv2 is answered.
    pub tokens_required: bool,
}

/// Whose hardware an instance runs on, and near what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Whether nobody else's instances are on its host.
    pub dedicated: bool,
    /// Id of the placement group.
    pub group: Option<String>,
    /// Partition of it; none leaves it to EC2.
    pub partition: Option<i32>,
}

/// Which kind of purchase EC2 calls a market, where it is not on demand and not spot: spot is said
/// in the request.
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

/// All that a launch template says.
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
    /// Disks; EC2 takes no empty list: none means that nothing is said.
    pub devices: Vec<Device>,
    /// The metadata service.
    pub metadata: Metadata,
    /// Metrics each minute.
    pub monitoring: bool,
    /// Whether it can run virtual machines.
    pub nested_virtualization: Option<bool>,
    /// Where it is put.
    pub placement: Placement,
    /// Whether it has Nitro enclaves.
    pub enclave: bool,
    /// The reservation it goes into, and into no other; none keeps it out of open ones too, which
    /// would be used up unseen (spec/aws.md §10, 68).
    pub reservation: Option<String>,
    /// Market; none means that none is said.
    pub market: Option<MarketType>,
    /// Whether spot requests get the tags as well as network interfaces do.
    pub spot: bool,
    /// Tags of the template itself, of network interfaces and spot requests: the same for all
    /// claims of a pool.
    pub tags: Labels,
}

impl LaunchTemplate {
    /// Its name: whatever changes what it says changes the name, in every process the same.
    pub fn name(&self) -> String {
        // Writing plain data to memory cannot fail.
        let text = serde_json::to_vec(self).unwrap_or_default();
        let digest = hex(&Sha256::digest(&text));
        let cluster = spelt(&self.cluster);
        format!("{NAME_PREFIX}{cluster}/{}", &digest[..DIGITS])
    }
}

/// How a cluster is spelt in the names of its templates. EC2 takes letters, digits and
/// `().-/_` there.
pub fn spelt(cluster: &str) -> String {
    let cluster = cluster.chars().map(|own| match own {
        own if own.is_ascii_alphanumeric() || "-._".contains(own) => own,
        _ => '-',
    });
    let room = NAME_MAX - NAME_PREFIX.len() - DIGITS - 1;
    cluster.take(room).collect()
}

/// The cluster of a template of ours by its name, as it is [`spelt`] there; none of others'.
pub fn cluster_in(name: &str) -> Option<&str> {
    let (cluster, _) = name.strip_prefix(NAME_PREFIX)?.rsplit_once('/')?;
    Some(cluster)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where nodes are made, as far as templates depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateTarget<'a> {
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Region.
    pub region: &'a str,
    /// Whether the cluster's pods have IPv6 addresses.
    pub ipv6: bool,
}

/// What instances of one template have in common beyond their node class.
#[derive(Clone, Debug, Default)]
pub struct Variation<'a> {
    /// Image id.
    pub image: &'a str,
    /// User data for it.
    pub user_data: RenderedUserData,
    /// How it is bought.
    pub bought: Option<CapacityType>,
    /// The reservation it goes into.
    pub reservation: Option<&'a Reservation>,
    /// How many elastic fabric adapters it has, where pods ask for any and the class says nothing.
    pub efas: u32,
    /// Whether it has Nitro enclaves.
    pub enclave: bool,
    /// Whether its host is nobody else's.
    pub dedicated: bool,
    /// Partition of its placement group.
    pub partition: Option<u32>,
    /// Tags that every claim of its pool has.
    pub tags: Labels,
}

/// The template that a node class makes of what AWS has found for it.
pub fn template(
    class: &NodeClass,
    resolved: &ResolvedNodeClass,
    site: TemplateTarget<'_>,
    own: Variation<'_>,
) -> LaunchTemplate {
    let ipv6 = class.metadata.ipv6;
    let group = resolved.placement_group.as_ref();
    let partitions =
        group.filter(|own| matches!(own.strategy, PlacementGroupStrategy::Partition(_)));
    LaunchTemplate {
        cluster: site.cluster.to_owned(),
        image: own.image.to_owned(),
        profile: resolved.profile.clone(),
        user_data: own.user_data,
        interfaces: interfaces(class, resolved, (site.ipv6, own.efas)),
        devices: devices(class),
        metadata: Metadata {
            endpoint: class.metadata.endpoint,
            ipv6: (!WITHOUT_METADATA_IPV6.contains(&site.region)).then_some(ipv6),
            hop_limit: i32::from(class.metadata.hop_limit),
            tokens_required: class.metadata.tokens_required,
        },
        monitoring: class.detailed_monitoring,
        nested_virtualization: class.nested_virtualization,
        placement: Placement {
            dedicated: own.dedicated,
            group: group.map(|own| own.id.clone()),
            partition: own.partition.filter(|_| partitions.is_some()).map(int),
        },
        enclave: own.enclave,
        reservation: own
            .reservation
            .map(|own| ReservationId::as_str(&own.id).to_owned()),
        market: own.reservation.and_then(market),
        spot: own.bought == Some(CapacityType::Spot),
        tags: own.tags,
    }
}

fn market(own: &Reservation) -> Option<MarketType> {
    match own.kind {
        ReservationKind::CapacityBlock => Some(MarketType::CapacityBlock),
        ReservationKind::Default => own.interruptible.then_some(MarketType::Interruptible),
    }
}

/// EC2's integers are signed.
fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn interfaces(
    class: &NodeClass,
    resolved: &ResolvedNodeClass,
    (ipv6, efas): (bool, u32),
) -> Vec<Interface> {
    let groups: Vec<String> = resolved
        .security_groups
        .iter()
        .map(|own| own.id.clone())
        .collect();
    let prefixes = class.ip_prefix_count.map(int);
    // Addresses of any kind on one that has none make a launch fail (spec/aws.md §10, 66).
    let make = |card: Option<i32>, device: i32, kind: Option<InterfaceKind>| {
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
            tracking: class
                .connection_tracking
                .filter(|_| addressed)
                .and_then(tracking),
        }
    };
    let layout = class.network_interfaces.iter().flatten();
    let layout = layout.map(|own| {
        let kind = match own.efa_only {
            true => InterfaceKind::EfaOnly,
            false => InterfaceKind::Interface,
        };
        make(Some(int(own.card)), int(own.device), Some(kind))
    });
    let mut all: Vec<Interface> = layout.collect();
    if all.is_empty() {
        // One card comes before all others: where a public address goes is no matter of chance.
        let efa = |card: u32| {
            make(
                Some(int(card)),
                i32::from(card > 0),
                Some(InterfaceKind::Efa),
            )
        };
        all = (0..efas).map(efa).collect();
    }
    if all.is_empty() {
        all.push(make(None, 0, None));
    }
    all
}

fn tracking(own: ConnectionTracking) -> Option<Tracking> {
    let seconds = |own: Option<jiff::SignedDuration>| {
        own.map(|own| i32::try_from(own.as_secs()).unwrap_or(i32::MAX))
    };
    let own = Tracking {
        tcp_established: seconds(own.tcp_established),
        udp_stream: seconds(own.udp_stream),
        udp: seconds(own.udp),
    };
    let says = own.tcp_established.is_some() || own.udp_stream.is_some() || own.udp.is_some();
    says.then_some(own)
}

/// The disks of a class; without any, those of its family.
fn devices(class: &NodeClass) -> Vec<Device> {
    if class.block_devices.is_empty() {
        return defaults(class.family);
    }
    class.block_devices.iter().map(device).collect()
}

fn device(own: &BlockDevice) -> Device {
    let some = |number: Option<u32>| number.filter(|own| *own > 0).map(int);
    Device {
        name: own.name.clone(),
        gib: own.gib().map(|gib| i32::try_from(gib).unwrap_or(i32::MAX)),
        volume_type: own.volume_type.clone(),
        iops: some(own.iops),
        throughput: some(own.throughput),
        encrypted: own.encrypted,
        kms_key_id: own.kms_key_id.clone(),
        snapshot_id: own.snapshot_id.clone(),
        initialization_rate: some(own.initialization_rate),
        delete_on_termination: own.delete_on_termination,
    }
}

/// Source: spec/aws.md §3.7.
fn defaults(family: AmiFamily) -> Vec<Device> {
    let sizes: &[(&str, i64)] = match family {
        AmiFamily::Al2 | AmiFamily::Al2023 => &[("/dev/xvda", 20)],
        AmiFamily::Bottlerocket => &[("/dev/xvda", 4), ("/dev/xvdb", 20)],
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
            &[("/dev/sda1", 50)]
        }
        AmiFamily::Custom => &[],
    };
    let device = |(name, gib): &(&str, i64)| {
        device(&BlockDevice {
            name: (*name).to_owned(),
            size: Some(gib * GIB),
            volume_type: Some("gp3".to_owned()),
            encrypted: Some(true),
            ..BlockDevice::default()
        })
    };
    sizes.iter().map(device).collect()
}
