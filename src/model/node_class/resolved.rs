//! What AWS has found for the terms of a node class, and whether nodes can be made of it.
//! It must not know how AWS is asked.
//!
//! Source: spec/aws.md §1.4.

use jiff::Timestamp;

use crate::model::id::{TypeName, Zone};
use crate::model::instance::Arch;
use crate::model::reservation::Reservation;

/// What kinds of hardware an image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Instances without graphics processors or Neuron devices.
    Standard,
    /// Instances with graphics processors.
    Nvidia,
    /// Instances with Neuron devices.
    Neuron,
}

/// An image that nodes may be made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Architecture.
    pub arch: Arch,
    /// What it is for; empty means everything of its architecture.
    pub variants: Vec<Variant>,
    /// When it was made; none sorts as the oldest.
    pub created: Option<Timestamp>,
    /// Whether its owner has deprecated it.
    pub deprecated: bool,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Id.
    pub id: String,
    /// Zone.
    pub zone: Zone,
    /// Id of the zone, the same in every account.
    pub zone_id: String,
    /// Free addresses when it was listed.
    pub free: u32,
}

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
}

/// A reservation, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundReservation {
    /// Instance type.
    pub instance_type: TypeName,
    /// Zone.
    pub zone: Zone,
    /// The reservation.
    pub reservation: Reservation,
}

/// How a placement group places instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementGroupStrategy {
    /// Close together.
    Cluster,
    /// In so many partitions that share no hardware.
    Partition(u32),
    /// Each on hardware of its own.
    Spread,
}

/// A placement group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementGroup {
    /// Id.
    pub id: String,
    /// How it places instances.
    pub strategy: PlacementGroupStrategy,
}

/// What of a node class is well or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// Images were found.
    ImagesReady,
    /// Subnets were found.
    SubnetsReady,
    /// Security groups were found.
    SecurityGroupsReady,
    /// The instance profile is there.
    InstanceProfileReady,
    /// Reservations were looked for; finding none is no fault.
    CapacityReservationsReady,
    /// The placement group is there.
    PlacementGroupReady,
    /// AWS would launch from it.
    ValidationSucceeded,
}

impl ConditionKind {
    /// The spelling in logs and `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ImagesReady => "ImagesReady",
            Self::SubnetsReady => "SubnetsReady",
            Self::SecurityGroupsReady => "SecurityGroupsReady",
            Self::InstanceProfileReady => "InstanceProfileReady",
            Self::CapacityReservationsReady => "CapacityReservationsReady",
            Self::PlacementGroupReady => "PlacementGroupReady",
            Self::ValidationSucceeded => "ValidationSucceeded",
        }
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeClassConditionStatus {
    /// It does.
    True,
    /// It does not, and somebody has to do something about it.
    False,
    /// Nobody could find out yet.
    Unknown,
}

/// Why a condition does not hold. Source: spec/aws.md §1.4, with images for AMIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// An alias that does not go with the cluster's version.
    UnsupportedAlias,
    /// No image was found.
    ImageNotFound,
    /// No subnet was found.
    SubnetsNotFound,
    /// No security group was found.
    SecurityGroupsNotFound,
    /// The placement group is not there.
    PlacementGroupNotFound,
    /// The instance profile is not there.
    InstanceProfileNotFound,
    /// The role is not there.
    RoleNotFound,
    /// The addresses of the cluster's Services are not known.
    ClusterCidrUnknown,
    /// A family that does not take some setting of the kubelet.
    UnsupportedKubeletSetting,
    /// User data beyond what EC2 takes.
    UserDataTooLarge,
    /// User data that is not what the family takes.
    UserDataInvalid,
    /// A right is missing.
    Denied,
    /// EC2 would refuse any launch from the class.
    LaunchInvalid,
    /// AWS did not answer, or said to come later.
    Unavailable,
}

impl Cause {
    /// The spelling in logs and `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnsupportedAlias => "UnsupportedAlias",
            Self::ImageNotFound => "ImageNotFound",
            Self::SubnetsNotFound => "SubnetsNotFound",
            Self::SecurityGroupsNotFound => "SecurityGroupsNotFound",
            Self::PlacementGroupNotFound => "PlacementGroupNotFound",
            Self::InstanceProfileNotFound => "InstanceProfileNotFound",
            Self::RoleNotFound => "RoleNotFound",
            Self::ClusterCidrUnknown => "ClusterCidrUnknown",
            Self::UnsupportedKubeletSetting => "UnsupportedKubeletSetting",
            Self::UserDataTooLarge => "UserDataTooLarge",
            Self::UserDataInvalid => "UserDataInvalid",
            Self::Denied => "Denied",
            Self::LaunchInvalid => "LaunchInvalid",
            Self::Unavailable => "Unavailable",
        }
    }
}

/// Whether something of a node class is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClassCondition {
    /// What.
    pub kind: ConditionKind,
    /// Whether it is.
    pub status: NodeClassConditionStatus,
    /// Why it is not; none where it is.
    pub cause: Option<Cause>,
    /// In words, with what to do; bounded; empty where it is well.
    pub message: String,
}

impl NodeClassCondition {
    /// It is well.
    pub fn met(kind: ConditionKind) -> Self {
        Self {
            kind,
            status: NodeClassConditionStatus::True,
            cause: None,
            message: String::new(),
        }
    }

    /// It is not.
    pub fn unmet(kind: ConditionKind, cause: Cause, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: match cause {
                Cause::Unavailable => NodeClassConditionStatus::Unknown,
                _ => NodeClassConditionStatus::False,
            },
            cause: Some(cause),
            message: message.into(),
        }
    }
}

/// What AWS has found for a node class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedNodeClass {
    /// Images, in the order in which they are tried: the newest first, then by id.
    pub images: Vec<Image>,
    /// Subnets, those with most free addresses first, then by id.
    pub subnets: Vec<Subnet>,
    /// Security groups, by id.
    pub security_groups: Vec<SecurityGroup>,
    /// Reservations, by id.
    pub reservations: Vec<FoundReservation>,
    /// The placement group.
    pub placement_group: Option<PlacementGroup>,
    /// Name of the instance profile.
    pub profile: Option<String>,
    /// Whether all is well, by kind.
    pub conditions: Vec<NodeClassCondition>,
}

impl ResolvedNodeClass {
    /// The first condition that is not met: no node can be made while there is one.
    pub fn unmet(&self) -> Option<&NodeClassCondition> {
        self.conditions
            .iter()
            .find(|own| own.status != NodeClassConditionStatus::True)
    }
}
