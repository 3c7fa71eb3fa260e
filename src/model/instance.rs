//! Instance types with their offerings, and instances as the provider lists them.
//! It must not know how either is fetched.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::id::{InstanceId, NodeName, ReservationId, TypeName, Zone};
use crate::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, Labels, RESERVATION_ID, ZONE};
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::reservation::Reservation;

/// Processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    /// 64-bit x86.
    Amd64,
    /// 64-bit Arm.
    Arm64,
}

impl Arch {
    /// The spelling of the label `kubernetes.io/arch`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

/// How capacity is bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CapacityType {
    /// Paid for already.
    Reserved,
    /// Cheap, and may be taken back.
    Spot,
    /// At list price.
    OnDemand,
}

impl CapacityType {
    /// All of them, as the label `karpenter.sh/capacity-type` spells them.
    pub const NAMES: [&str; 3] = ["reserved", "spot", "on-demand"];

    /// The spelling of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Spot => "spot",
            Self::OnDemand => "on-demand",
        }
    }

    /// The capacity type of this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "reserved" => Some(Self::Reserved),
            "spot" => Some(Self::Spot),
            "on-demand" => Some(Self::OnDemand),
            _ => None,
        }
    }
}

/// US dollars per hour. Finite and not negative; compared with a total order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price(f64);

impl Price {
    /// A price; `None` for what is negative or not finite.
    pub fn new(usd_per_h: f64) -> Option<Self> {
        (usd_per_h.is_finite() && usd_per_h >= 0.0).then_some(Self(usd_per_h))
    }

    /// US dollars per hour.
    pub fn usd_per_h(self) -> f64 {
        self.0
    }
}

impl std::iter::Sum for Price {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        // A sum of nothing would be -0.0.
        Self(all.fold(0.0, |sum, own| sum + own.0))
    }
}

impl Eq for Price {}

impl PartialOrd for Price {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Price {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// By how much the list price is divided for an offering in a reservation. That is paid for whether
/// it is used or not, so that using it costs nothing more; the rest tells dear types from cheap.
/// Source: spec/aws.md §4.4.
pub const RESERVED_SHARE: f64 = 1e7;

/// Where and how an instance type may be had, and at what price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offering {
    /// The zone.
    pub zone: Zone,
    /// How it is bought.
    pub capacity_type: CapacityType,
    /// Price.
    pub price: Price,
    /// Whether the provider sells it at all right now (hold-downs are kept elsewhere).
    pub available: bool,
    /// The reservation it is in; none where it is in none. Few are, so the others stay small.
    pub reservation: Option<Box<Reservation>>,
}

impl Offering {
    /// What a label of a node from it is, if the offering decides that label.
    pub fn label(&self, key: &str) -> Option<&str> {
        match key {
            ZONE => Some(self.zone.as_str()),
            CAPACITY_TYPE => Some(self.capacity_type.as_str()),
            key => self.reservation.as_ref()?.label(key),
        }
    }

    /// Its full name, as one of this type's.
    pub fn key(&self, instance_type: &TypeName) -> OfferingKey {
        OfferingKey {
            instance_type: instance_type.clone(),
            zone: self.zone.clone(),
            capacity_type: self.capacity_type,
            reservation: self
                .reservation
                .as_ref()
                .map(|own| Box::new(own.id.clone())),
        }
    }
}

/// A shape of instance: what it has, what it keeps for itself, how it is labelled, where it sells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceType {
    /// Name.
    pub name: TypeName,
    /// What its labels may be. Every well-known label is defined, absent ones as `DoesNotExist`;
    /// zone and capacity type list those of the offerings.
    pub requirements: Requirements,
    /// Capacity the kubelet reports.
    pub capacity: Resources,
    /// What pods may use of it.
    pub allocatable: Resources,
    /// Offerings, by price, then zone, capacity type and reservation.
    pub offerings: Vec<Offering>,
}

/// An instance type, a zone, a capacity type and maybe a reservation: what one launch may ask for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OfferingKey {
    /// The instance type.
    pub instance_type: TypeName,
    /// The zone.
    pub zone: Zone,
    /// How it is bought.
    pub capacity_type: CapacityType,
    /// The reservation it is in; none where it is in none. Few are, and a plan has very many keys.
    pub reservation: Option<Box<ReservationId>>,
}

impl OfferingKey {
    /// What the labels of a node say that it is; none where one is missing.
    pub fn from_labels(labels: &Labels) -> Option<Self> {
        let label = |key: &str| labels.get(key).map(String::as_str);
        Some(Self {
            instance_type: label(INSTANCE_TYPE)?.into(),
            zone: label(ZONE)?.into(),
            capacity_type: CapacityType::parse(label(CAPACITY_TYPE)?)?,
            reservation: label(RESERVATION_ID).map(|id| Box::new(id.into())),
        })
    }
}

/// What may be held down, so that nobody asks for it for a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnavailableKey {
    /// An offering.
    Offering(OfferingKey),
    /// All that is bought like this.
    Way(CapacityType),
}

impl From<OfferingKey> for UnavailableKey {
    fn from(own: OfferingKey) -> Self {
        Self::Offering(own)
    }
}

impl std::fmt::Display for OfferingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {} {}",
            self.instance_type,
            self.zone,
            self.capacity_type.as_str()
        )?;
        match &self.reservation {
            Some(id) => write!(f, " {id}"),
            None => Ok(()),
        }
    }
}

/// How far an instance's life has come, in EC2's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceState {
    /// Starting.
    Pending,
    /// Running.
    Running,
    /// On its way to `Stopped`.
    Stopping,
    /// Stopped.
    Stopped,
    /// On its way to `Terminated`.
    ShuttingDown,
    /// Gone for good.
    Terminated,
}

impl InstanceState {
    /// Whether it costs money or may come back to doing so.
    pub fn is_live(self) -> bool {
        !matches!(self, Self::ShuttingDown | Self::Terminated)
    }
}

/// What EC2 alone tells of an instance, and what its node class may say otherwise by now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceFacts {
    /// Id of its image.
    pub image: Option<String>,
    /// Id of its subnet.
    pub subnet: Option<String>,
    /// Ids of the security groups of its first network interface.
    pub security_groups: BTreeSet<String>,
    /// Id of the placement group it was launched into.
    pub placement_group: Option<String>,
    /// Partition of that group, from 1 on.
    pub partition: Option<u32>,
    /// The reservation it is in. One that is open to all takes instances that nobody meant for it:
    /// those are no reserved capacity (spec/aws.md §5.11).
    pub reservation: Option<ReservationId>,
    /// How many elastic fabric adapters it has.
    pub adapters: Option<u32>,
}

/// The Node that an instance will register, where that is known beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedNode {
    /// Its name.
    pub name: NodeName,
    /// Its `spec.providerID`, which nobody can change once it is set.
    pub provider_id: String,
}

impl ExpectedNode {
    /// That of an instance of EC2. Source: Kubernetes, cloud-provider-aws.
    pub fn of_ec2(name: &str, zone: &Zone, instance: &InstanceId) -> Self {
        Self {
            name: NodeName::from(name),
            provider_id: format!("aws:///{zone}/{instance}"),
        }
    }
}

/// An instance as the provider lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Id.
    pub id: InstanceId,
    /// What it is, where it is, how it is paid.
    pub offering: OfferingKey,
    /// State.
    pub state: InstanceState,
    /// When it was launched.
    pub launched: Timestamp,
    /// Its tags, as given by the launch call. Shared: each listing tells all of them again.
    pub tags: Arc<Labels>,
    /// The Node it will register; none where that is not known.
    pub node: Option<Box<ExpectedNode>>,
    /// What EC2 alone tells of it; none of other providers. Few are read, so the others stay small.
    pub facts: Option<Box<InstanceFacts>>,
}
