//! Compares an instance with its node class: image, security groups, subnet, reservation, placement
//! group.
//!
//! Source: spec/aws.md §1.2. If a fact of the instance or the class is unknown, it is not compared:
//! an empty AWS response must not replace all nodes. Karpenter then skips the whole comparison;
//! Outrigger compares each of the other facts.

use std::collections::BTreeSet;

use crate::catalog::node_class::ClassCatalog;
use crate::model::instance::{CapacityType, Instance, InstanceFacts};
use crate::model::named_enum::named_enum;
use crate::model::node_class::resolved::{
    ConditionKind, NodeClassConditionStatus, ResolvedNodeClass,
};

named_enum! {
    /// Differences between an instance and its node class. The names, in logs and `status`, are
    /// those of Karpenter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum InstanceDrift {
        /// The node class changed after the launch.
        NodeClass => "NodeClassDrift",
        /// The node class resolves to a different image for the instance type.
        Image => "AMIDrift",
        /// The security groups of the instance differ from those of the class.
        SecurityGroups => "SecurityGroupDrift",
        /// The class does not select the subnet of the instance.
        Subnet => "SubnetDrift",
        /// The class does not select the reservation of the instance.
        Reservation => "CapacityReservationDrift",
        /// The instance is not in the placement group of the class.
        PlacementGroup => "PlacementGroupDrift",
    }
}

impl InstanceDrift {
    /// Returns whether the cause depends on discovered AWS resources and not on the configuration
    /// alone.
    pub fn depends_on_resources(self) -> bool {
        self != Self::NodeClass
    }
}

/// Returns the first difference of an instance, in the order of [`InstanceDrift`]. `static_drift`
/// is the result of the hash comparison: whether the class changed after the launch.
pub fn first_difference(
    instance: &Instance,
    resolved: &ResolvedNodeClass,
    class: &ClassCatalog,
    static_drift: bool,
) -> Option<InstanceDrift> {
    if static_drift {
        return Some(InstanceDrift::NodeClass);
    }
    let facts = instance.facts.as_deref()?;
    if has_other_image(instance, facts, class) {
        Some(InstanceDrift::Image)
    } else if has_other_groups(facts, resolved) {
        Some(InstanceDrift::SecurityGroups)
    } else if has_foreign_subnet(facts, resolved) {
        Some(InstanceDrift::Subnet)
    } else if has_foreign_reservation(instance, facts, resolved) {
        Some(InstanceDrift::Reservation)
    } else if has_other_place(facts, resolved) {
        Some(InstanceDrift::PlacementGroup)
    } else {
        None
    }
}

/// Returns whether the discovery of this kind of resource is complete.
fn is_discovery_complete(resolved: &ResolvedNodeClass, kind: ConditionKind) -> bool {
    let mut conditions = resolved.conditions.iter();
    !conditions.any(|condition| {
        condition.kind == kind && condition.status != NodeClassConditionStatus::True
    })
}

/// Compares the image. A type that is no longer offered has no reference image and never differs.
/// If no image of the class fits the type, the instance differs.
fn has_other_image(instance: &Instance, facts: &InstanceFacts, class: &ClassCatalog) -> bool {
    let name = instance.offering.instance_type.as_str();
    let known = !class.images.is_empty() && class.catalog.get(name).is_some();
    known && facts.image.is_some() && facts.image.as_ref() != class.images.get(name)
}

/// Compares the security groups. Groups that a user attached manually are compared, too (spec §10,
/// 6).
fn has_other_groups(facts: &InstanceFacts, resolved: &ResolvedNodeClass) -> bool {
    let groups: BTreeSet<&String> =
        resolved.security_groups.iter().map(|security_group| &security_group.id).collect();
    is_discovery_complete(resolved, ConditionKind::SecurityGroupsReady)
        && !groups.is_empty()
        && !facts.security_groups.is_empty()
        && !groups.into_iter().eq(&facts.security_groups)
}

fn has_foreign_subnet(facts: &InstanceFacts, resolved: &ResolvedNodeClass) -> bool {
    let subnet = facts.subnet.as_ref();
    is_discovery_complete(resolved, ConditionKind::SubnetsReady)
        && !resolved.subnets.is_empty()
        && subnet.is_some_and(|id| resolved.subnets.iter().all(|subnet| subnet.id != *id))
}

/// Compares the reservation. An instance that is not launched as reserved may run in any open
/// reservation.
fn has_foreign_reservation(
    instance: &Instance,
    facts: &InstanceFacts,
    resolved: &ResolvedNodeClass,
) -> bool {
    let mut reservations = resolved.reservations.iter();
    let id = facts.reservation.as_ref();
    is_discovery_complete(resolved, ConditionKind::CapacityReservationsReady)
        && instance.offering.capacity_type == CapacityType::Reserved
        && id.is_some_and(|id| reservations.all(|resolved| resolved.reservation.id != *id))
}

fn has_other_place(facts: &InstanceFacts, resolved: &ResolvedNodeClass) -> bool {
    let group = resolved.placement_group.as_ref();
    is_discovery_complete(resolved, ConditionKind::PlacementGroupReady)
        && facts.placement_group.as_ref() != group.map(|group| &group.id)
}
