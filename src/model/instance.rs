//! Instance types with their offerings, and instances as the provider lists them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::id::{InstanceId, NodeName, ReservationId, TypeName, Zone};
use crate::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, Labels, RESERVATION_ID, ZONE};
use crate::model::named_enum::named_enum;
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::reservation::Reservation;

named_enum! {
    /// Processor architecture.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Arch {
        /// 64-bit x86.
        Amd64 => "amd64",
        /// 64-bit Arm.
        Arm64 => "arm64",
    }
}

named_enum! {
    /// Purchase option of capacity. The names are values of the label
    /// `karpenter.sh/capacity-type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum CapacityType {
        /// Capacity in a reservation that is already paid for.
        Reserved => "reserved",
        /// Cheap capacity that the provider can interrupt.
        Spot => "spot",
        /// Capacity at list price.
        OnDemand => "on-demand",
    }
}

/// US dollars per hour. Finite and not negative; compared with a total order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price(f64);

impl Price {
    /// Creates a price. `None` if it is negative or not finite.
    pub fn new(usd_per_h: f64) -> Option<Self> {
        (usd_per_h.is_finite() && usd_per_h >= 0.0).then_some(Self(usd_per_h))
    }

    /// US dollars per hour.
    pub fn usd_per_h(self) -> f64 {
        self.0
    }
}

impl std::iter::Sum for Price {
    fn sum<I: Iterator<Item = Self>>(prices: I) -> Self {
        // The sum of an empty iterator would be -0.0.
        Self(prices.fold(0.0, |sum, price| sum + price.0))
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

/// Divisor of the list price for an offering in a reservation. A reservation is paid for whether it
/// is used or not, so its use costs almost nothing; the remaining price ranks expensive types above
/// cheap ones. Source: spec/aws.md §4.4.
pub const RESERVED_SHARE: f64 = 1e7;

/// An offering of an instance type: zone, capacity type and price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offering {
    /// The zone.
    pub zone: Zone,
    /// Its capacity type.
    pub capacity_type: CapacityType,
    /// Price.
    pub price: Price,
    /// Whether the provider currently sells it. Unavailable offerings (ICE) are recorded elsewhere.
    pub available: bool,
    /// Its reservation, if any. Boxed because few offerings have one.
    pub reservation: Option<Box<Reservation>>,
}

impl Offering {
    /// The value of a node label, if the offering determines that label.
    pub fn label_value(&self, key: &str) -> Option<&str> {
        match key {
            ZONE => Some(self.zone.as_str()),
            CAPACITY_TYPE => Some(self.capacity_type.as_str()),
            key => self.reservation.as_ref()?.label_value(key),
        }
    }

    /// Its key, given the instance type.
    pub fn key(&self, instance_type: &TypeName) -> OfferingKey {
        OfferingKey {
            instance_type: instance_type.clone(),
            zone: self.zone.clone(),
            capacity_type: self.capacity_type,
            reservation: self
                .reservation
                .as_ref()
                .map(|reservation| Box::new(reservation.id.clone())),
        }
    }
}

/// An instance type: capacity, overhead, labels and offerings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceType {
    /// Name.
    pub name: TypeName,
    /// Possible values of its labels. Every well-known label is defined; absent labels are
    /// `DoesNotExist`. Zone and capacity type have the values of the offerings.
    pub requirements: Requirements,
    /// Capacity that the kubelet reports.
    pub capacity: Resources,
    /// Capacity that pods can request.
    pub allocatable: Resources,
    /// Offerings, by price, then zone, capacity type and reservation.
    pub offerings: Vec<Offering>,
}

/// Instance type, zone, capacity type and optional reservation: one option of a launch request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OfferingKey {
    /// The instance type.
    pub instance_type: TypeName,
    /// The zone.
    pub zone: Zone,
    /// Its capacity type.
    pub capacity_type: CapacityType,
    /// Its reservation, if any. Boxed because few keys have one, and a plan has very many keys.
    pub reservation: Option<Box<ReservationId>>,
}

impl OfferingKey {
    /// Reads the key from node labels. `None` if a label is missing.
    pub fn from_labels(labels: &Labels) -> Option<Self> {
        Some(Self {
            instance_type: labels.get(INSTANCE_TYPE)?.as_str().into(),
            zone: labels.get(ZONE)?.as_str().into(),
            capacity_type: CapacityType::parse(labels.get(CAPACITY_TYPE)?)?,
            reservation: labels.get(RESERVATION_ID).map(|id| Box::new(id.as_str().into())),
        })
    }
}

/// A set of unavailable offerings, which no launch requests for a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnavailableKey {
    /// One offering.
    Offering(OfferingKey),
    /// All offerings of a capacity type.
    Way(CapacityType),
}

impl From<OfferingKey> for UnavailableKey {
    fn from(key: OfferingKey) -> Self {
        Self::Offering(key)
    }
}

impl std::fmt::Display for OfferingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.instance_type, self.zone, self.capacity_type.as_str())?;
        match &self.reservation {
            Some(id) => write!(f, " {id}"),
            None => Ok(()),
        }
    }
}

/// The state of an instance, as EC2 names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceState {
    /// Starting.
    Pending,
    /// Running.
    Running,
    /// Being stopped.
    Stopping,
    /// Stopped.
    Stopped,
    /// Being terminated.
    ShuttingDown,
    /// Terminated.
    Terminated,
}

impl InstanceState {
    /// Returns whether the instance incurs cost or may incur cost again.
    pub fn is_live(self) -> bool {
        !matches!(self, Self::ShuttingDown | Self::Terminated)
    }

    /// Returns whether the instance is stopping or stopped: it runs no pods, but may run again.
    pub fn is_stopped(self) -> bool {
        matches!(self, Self::Stopping | Self::Stopped)
    }
}

/// Facts that only EC2 knows about an instance. Its node class may have changed since the launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceFacts {
    /// ID of its image.
    pub image: Option<String>,
    /// ID of its subnet.
    pub subnet: Option<String>,
    /// IDs of the security groups of its first network interface.
    pub security_groups: BTreeSet<String>,
    /// ID of the placement group it was launched into.
    pub placement_group: Option<String>,
    /// Partition of that group, starting at 1.
    pub partition: Option<u32>,
    /// Its reservation. An open reservation also takes instances that were not launched for it;
    /// these are not treated as reserved capacity (spec/aws.md §5.11).
    pub reservation: Option<ReservationId>,
    /// Number of its elastic fabric adapters.
    pub adapters: Option<u32>,
    /// Why it has stopped or ended. `None` while it runs.
    pub state_reason: Option<StateReason>,
}

/// Why EC2 has stopped or ended an instance: EC2's `StateReason`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateReason {
    /// Code, such as `Server.InsufficientInstanceCapacity`.
    pub code: String,
    /// Message, bounded.
    pub message: String,
}

impl StateReason {
    /// Returns whether the cause is on the side of EC2, such as missing capacity. A different
    /// offering may then succeed. Source: EC2 API reference, StateReason.
    pub fn is_of_provider(&self) -> bool {
        self.code.starts_with("Server.")
    }

    /// Returns whether a TerminateInstances or StopInstances call was the cause.
    pub fn is_of_user(&self) -> bool {
        self.code == "Client.UserInitiatedShutdown"
    }
}

impl fmt::Display for StateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, message } = self;
        // EC2 begins most messages with the code.
        match message.strip_prefix(code.as_str()) {
            None if !message.is_empty() => write!(f, "{code}: {message}"),
            _ if message.is_empty() => f.write_str(code),
            _ => f.write_str(message),
        }
    }
}

/// The Node that an instance will register, if it is known beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedNode {
    /// Its name.
    pub name: NodeName,
    /// Its `spec.providerID`, which is immutable once set.
    pub provider_id: String,
}

impl ExpectedNode {
    /// The expected Node of an EC2 instance. Source: Kubernetes, cloud-provider-aws.
    pub fn of_ec2(name: &str, zone: &Zone, instance: &InstanceId) -> Self {
        Self { name: NodeName::from(name), provider_id: format!("aws:///{zone}/{instance}") }
    }
}

/// An instance as the provider lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// ID.
    pub id: InstanceId,
    /// Its instance type, zone, capacity type and reservation.
    pub offering: OfferingKey,
    /// State.
    pub state: InstanceState,
    /// When the instance was launched.
    pub launched: Timestamp,
    /// Its tags, as set by the launch call. Shared because every listing returns the same tags.
    pub tags: Arc<Labels>,
    /// The Node that the instance will register. `None` if unknown.
    pub node: Option<Box<ExpectedNode>>,
    /// Facts that only EC2 knows about the instance. `None` for other providers. Boxed because few
    /// instances have them.
    pub facts: Option<Box<InstanceFacts>>,
}
