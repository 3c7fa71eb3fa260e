//! The AWS resources found for a node class, and its conditions.
//!
//! Source: spec/aws.md §1.4.

use jiff::Timestamp;

use crate::model::id::{TypeName, Zone};
use crate::model::instance::Arch;
use crate::model::named_enum::named_enum;
use crate::model::reservation::Reservation;

/// The hardware that an image supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Instances without GPUs or Neuron devices.
    Standard,
    /// Instances with GPUs.
    Nvidia,
    /// Instances with Neuron devices.
    Neuron,
}

/// An image for new nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// ID.
    pub id: String,
    /// Name.
    pub name: String,
    /// Architecture.
    pub arch: Arch,
    /// Supported hardware. Empty means all hardware of its architecture.
    pub variants: Vec<Variant>,
    /// When the image was created. `None` sorts as the oldest.
    pub created: Option<Timestamp>,
    /// Whether its owner has deprecated it.
    pub deprecated: bool,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// ID.
    pub id: String,
    /// Zone.
    pub zone: Zone,
    /// ID of the zone, the same in every account.
    pub zone_id: String,
    /// Number of free addresses when the subnet was last listed.
    pub free: u32,
}

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// ID.
    pub id: String,
    /// Name.
    pub name: String,
}

/// A capacity reservation with its instance type and zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundReservation {
    /// Instance type.
    pub instance_type: TypeName,
    /// Zone.
    pub zone: Zone,
    /// The reservation.
    pub reservation: Reservation,
    /// Whether its platform and tenancy fit nodes of the node class. Otherwise no node is launched
    /// into it, and a node that runs in it stays.
    pub is_usable: bool,
}

/// The strategy of a placement group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementGroupStrategy {
    /// Instances are close together.
    Cluster,
    /// Instances are in this number of partitions that share no hardware.
    Partition(u32),
    /// Each instance is on separate hardware.
    Spread,
}

/// A placement group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementGroup {
    /// ID.
    pub id: String,
    /// Its strategy.
    pub strategy: PlacementGroupStrategy,
}

named_enum! {
    /// The kind of a node class condition. The names appear in logs and `status`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ConditionKind {
        /// Images were found.
        ImagesReady => "ImagesReady",
        /// Subnets were found.
        SubnetsReady => "SubnetsReady",
        /// Security groups were found.
        SecurityGroupsReady => "SecurityGroupsReady",
        /// The instance profile exists.
        InstanceProfileReady => "InstanceProfileReady",
        /// Reservations were queried. Finding none is not an error.
        CapacityReservationsReady => "CapacityReservationsReady",
        /// The placement group exists.
        PlacementGroupReady => "PlacementGroupReady",
        /// AWS would accept a launch from the class.
        ValidationSucceeded => "ValidationSucceeded",
    }
}

/// The status of a node class condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeClassConditionStatus {
    /// The condition is met.
    True,
    /// The condition is not met, and a user must fix the cause.
    False,
    /// The status could not be determined yet.
    Unknown,
}

named_enum! {
    /// Why a condition is not met. Source: spec/aws.md §1.4, with the word image in place of AMI.
    /// The names appear in logs and `status`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Cause {
        /// The alias does not support the cluster's version.
        UnsupportedAlias => "UnsupportedAlias",
        /// No image was found.
        ImageNotFound => "ImageNotFound",
        /// No subnet was found.
        SubnetsNotFound => "SubnetsNotFound",
        /// No security group was found.
        SecurityGroupsNotFound => "SecurityGroupsNotFound",
        /// The placement group does not exist.
        PlacementGroupNotFound => "PlacementGroupNotFound",
        /// The instance profile does not exist.
        InstanceProfileNotFound => "InstanceProfileNotFound",
        /// The role does not exist.
        RoleNotFound => "RoleNotFound",
        /// The addresses of the cluster's Services are unknown.
        ClusterCidrUnknown => "ClusterCidrUnknown",
        /// The family does not support a kubelet setting.
        UnsupportedKubeletSetting => "UnsupportedKubeletSetting",
        /// User data exceeds EC2's limit.
        UserDataTooLarge => "UserDataTooLarge",
        /// User data is invalid for the family.
        UserDataInvalid => "UserDataInvalid",
        /// An IAM permission is missing.
        Denied => "Denied",
        /// EC2 would reject any launch from the class.
        LaunchInvalid => "LaunchInvalid",
        /// AWS did not respond, or throttled the request.
        Unavailable => "Unavailable",
    }
}

/// A node class condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClassCondition {
    /// Its kind.
    pub kind: ConditionKind,
    /// Its status.
    pub status: NodeClassConditionStatus,
    /// Why the condition is not met. `None` if it is met.
    pub cause: Option<Cause>,
    /// A message with the fix. Its length is limited. Empty if the condition is met.
    pub message: String,
}

impl NodeClassCondition {
    /// A condition that is met.
    pub fn met(kind: ConditionKind) -> Self {
        Self { kind, status: NodeClassConditionStatus::True, cause: None, message: String::new() }
    }

    /// A condition that is not met.
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

/// The AWS resources found for a node class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedNodeClass {
    /// Images in the order in which they are tried: the newest first, then by ID.
    pub images: Vec<Image>,
    /// Subnets by free addresses in descending order, then by ID.
    pub subnets: Vec<Subnet>,
    /// Security groups, by ID.
    pub security_groups: Vec<SecurityGroup>,
    /// Reservations, by ID.
    pub reservations: Vec<FoundReservation>,
    /// The placement group.
    pub placement_group: Option<PlacementGroup>,
    /// Name of the instance profile.
    pub profile: Option<String>,
    /// Conditions, by kind.
    pub conditions: Vec<NodeClassCondition>,
}

impl ResolvedNodeClass {
    /// The first unmet condition. No node can be created while a condition is unmet.
    pub fn first_unmet(&self) -> Option<&NodeClassCondition> {
        self.conditions.iter().find(|condition| condition.status != NodeClassConditionStatus::True)
    }
}
