//! Whether an instance is still what its node class would make: image, security groups, subnet,
//! reservation, placement group. It must not know what is done about one that is not.
//!
//! Source: spec/aws.md §1.2. Where something is not known, be it of the instance or of the class,
//! nothing is said of it: an empty answer must not replace all nodes. Karpenter then says nothing
//! of the rest either; here each is judged for itself.

use std::collections::BTreeSet;

use crate::catalog::node_class::ClassCatalog;
use crate::model::id::ReservationId;
use crate::model::instance::{CapacityType, Instance, InstanceFacts};
use crate::model::node_class::resolved::{
    ConditionKind, NodeClassConditionStatus, ResolvedNodeClass,
};

/// In what an instance is not what its node class would make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceDrift {
    /// Its node class says something else than when it was made.
    NodeClass,
    /// Its type gets another image now.
    Image,
    /// It is not in exactly the security groups of the class.
    SecurityGroups,
    /// Its subnet is none of the class.
    Subnet,
    /// Its reservation is none of the class.
    Reservation,
    /// It is not in the placement group of the class.
    PlacementGroup,
}

impl InstanceDrift {
    /// Whether it comes of what AWS has, and not of what the configuration says alone.
    pub fn is_found(self) -> bool {
        self != Self::NodeClass
    }

    /// The spelling in logs and `status`: Karpenter's.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeClass => "NodeClassDrift",
            Self::Image => "AMIDrift",
            Self::SecurityGroups => "SecurityGroupDrift",
            Self::Subnet => "SubnetDrift",
            Self::Reservation => "CapacityReservationDrift",
            Self::PlacementGroup => "PlacementGroupDrift",
        }
    }
}

/// The first in which an instance is not what its node class would make, in the order of
/// [`InstanceDrift`].
/// `static_drift` says whether the class says something else than when it was made, which hashes
/// tell.
pub fn drift(
    instance: &Instance,
    (resolved, class): (&ResolvedNodeClass, &ClassCatalog),
    static_drift: bool,
) -> Option<InstanceDrift> {
    if static_drift {
        return Some(InstanceDrift::NodeClass);
    }
    let facts = instance.facts.as_deref()?;
    let checks: [(InstanceDrift, bool); 5] = [
        (
            InstanceDrift::Image,
            has_other_image(instance, facts, class),
        ),
        (
            InstanceDrift::SecurityGroups,
            has_other_groups(facts, resolved),
        ),
        (InstanceDrift::Subnet, has_foreign_subnet(facts, resolved)),
        (
            InstanceDrift::Reservation,
            has_foreign_reservation(instance, facts, resolved),
        ),
        (
            InstanceDrift::PlacementGroup,
            has_other_place(facts, resolved),
        ),
    ];
    let found = checks.into_iter().find(|(_, drifted)| *drifted);
    found.map(|(drift, _)| drift)
}

/// Whether what was found of this kind is all there is to find.
fn is_settled(resolved: &ResolvedNodeClass, kind: ConditionKind) -> bool {
    let mut conditions = resolved.conditions.iter();
    !conditions.any(|own| own.kind == kind && own.status != NodeClassConditionStatus::True)
}

/// A type that is not sold any more has no image to be compared with; one that no image of the
/// class is for any more has another than its own: none.
fn has_other_image(instance: &Instance, facts: &InstanceFacts, class: &ClassCatalog) -> bool {
    let of = instance.offering.instance_type.as_str();
    let known = !class.images.is_empty() && class.catalog.get(of).is_some();
    known && facts.image.is_some() && facts.image.as_ref() != class.images.get(of)
}

/// Groups that somebody has put it in by hand count, too (spec §10, 6).
fn has_other_groups(facts: &InstanceFacts, resolved: &ResolvedNodeClass) -> bool {
    let own = resolved.security_groups.iter().map(|own| &own.id);
    let own: BTreeSet<&String> = own.collect();
    is_settled(resolved, ConditionKind::SecurityGroupsReady)
        && !own.is_empty()
        && !facts.security_groups.is_empty()
        && !own.into_iter().eq(&facts.security_groups)
}

fn has_foreign_subnet(facts: &InstanceFacts, resolved: &ResolvedNodeClass) -> bool {
    let is_own = |id: &String| resolved.subnets.iter().any(|own| own.id == *id);
    is_settled(resolved, ConditionKind::SubnetsReady)
        && !resolved.subnets.is_empty()
        && facts.subnet.as_ref().is_some_and(|id| !is_own(id))
}

/// What is not bought as reserved may be in any reservation that is open to all.
fn has_foreign_reservation(
    instance: &Instance,
    facts: &InstanceFacts,
    resolved: &ResolvedNodeClass,
) -> bool {
    let is_own = |id: &ReservationId| {
        let mut own = resolved.reservations.iter();
        own.any(|own| own.reservation.id == *id)
    };
    is_settled(resolved, ConditionKind::CapacityReservationsReady)
        && instance.offering.capacity_type == CapacityType::Reserved
        && facts.reservation.as_ref().is_some_and(|id| !is_own(id))
}

fn has_other_place(facts: &InstanceFacts, resolved: &ResolvedNodeClass) -> bool {
    let own = resolved.placement_group.as_ref().map(|own| &own.id);
    is_settled(resolved, ConditionKind::PlacementGroupReady)
        && facts.placement_group.as_ref() != own
}
