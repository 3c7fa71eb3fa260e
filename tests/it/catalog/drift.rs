//! Differences between instances and their node class (spec/aws.md §1.2, §12.9).

use jiff::Timestamp;
use outrigger::catalog::node_class::ClassCatalog;
use outrigger::disruption::instance_drift::{InstanceDrift, first_difference};
use outrigger::model::instance::{
    CapacityType, Instance, InstanceFacts, InstanceState, OfferingKey,
};
use outrigger::model::node_class::resolved::{
    Cause, ConditionKind, FoundReservation, NodeClassCondition, PlacementGroup,
    PlacementGroupStrategy, ResolvedNodeClass, SecurityGroup, Subnet,
};
use outrigger::model::reservation::Reservation;

use super::SHIPPED;

/// An m5.large that equals its class: image s, subnet-a, groups sg-1 and sg-2, reservation cr-1,
/// placement group pg-1.
fn instance() -> Instance {
    let ids = |all: &[&str]| all.iter().map(|own| (*own).to_owned()).collect();
    Instance {
        id: "i-1".into(),
        offering: OfferingKey {
            instance_type: "m5.large".into(),
            zone: "us-east-1a".into(),
            capacity_type: CapacityType::Reserved,
            reservation: Some(Box::new("cr-1".into())),
        },
        state: InstanceState::Running,
        launched: Timestamp::UNIX_EPOCH,
        tags: Default::default(),
        node: None,
        facts: Some(Box::new(InstanceFacts {
            image: Some("s".into()),
            subnet: Some("subnet-a".into()),
            security_groups: ids(&["sg-1", "sg-2"]),
            placement_group: Some("pg-1".into()),
            partition: None,
            reservation: Some("cr-1".into()),
            adapters: None,
            state_reason: None,
        })),
    }
}

fn resolved() -> ResolvedNodeClass {
    let group = |id: &str| SecurityGroup { id: id.into(), name: String::new() };
    let subnet = |id: &str| Subnet {
        id: id.into(),
        zone: "us-east-1a".into(),
        zone_id: String::new(),
        free: 1,
    };
    ResolvedNodeClass {
        subnets: vec![subnet("subnet-b"), subnet("subnet-a")],
        security_groups: vec![group("sg-2"), group("sg-1")],
        reservations: vec![FoundReservation {
            instance_type: "m5.large".into(),
            zone: "us-east-1a".into(),
            reservation: Reservation::new("cr-1", 1),
            is_usable: true,
        }],
        placement_group: Some(PlacementGroup {
            id: "pg-1".into(),
            strategy: PlacementGroupStrategy::Cluster,
        }),
        conditions: vec![NodeClassCondition::met(ConditionKind::ImagesReady)],
        ..ResolvedNodeClass::default()
    }
}

fn class() -> ClassCatalog {
    ClassCatalog {
        catalog: SHIPPED.1.clone(),
        images: [("m5.large".into(), "s".to_owned())].into(),
        found: None,
    }
}

type Change = fn(&mut Instance, &mut ResolvedNodeClass, &mut ClassCatalog);

fn facts(own: &mut Instance) -> &mut InstanceFacts {
    own.facts.as_deref_mut().expect("facts")
}

/// Adds an unmet condition of this kind.
fn add_unmet(own: &mut ResolvedNodeClass, kind: ConditionKind) {
    let unmet = NodeClassCondition::unmet(kind, Cause::Unavailable, "later");
    own.conditions.push(unmet);
}

/// A difference, and the drift that is detected.
const ROWS: [(&str, Change, Option<InstanceDrift>); 28] = [
    ("unchanged", |_, _, _| {}, None),
    ("another image", |it, _, _| facts(it).image = Some("old".into()), Some(InstanceDrift::Image)),
    (
        "a newer image",
        |_, _, class| drop(class.images.insert("m5.large".into(), "new".into())),
        Some(InstanceDrift::Image),
    ),
    (
        "no image is for its type any more",
        |_, _, class| class.images = [("c6g.large".into(), "t".to_owned())].into(),
        Some(InstanceDrift::Image),
    ),
    ("no images at all", |_, _, class| class.images.clear(), None),
    ("its image is not known", |it, _, _| facts(it).image = None, None),
    (
        "its type is not sold any more",
        |it, _, _| it.offering.instance_type = "m0.large".into(),
        None,
    ),
    ("another subnet", |_, own, _| drop(own.subnets.pop()), Some(InstanceDrift::Subnet)),
    ("no subnets", |_, own, _| own.subnets.clear(), None),
    ("its subnet is not known", |it, _, _| facts(it).subnet = None, None),
    (
        "subnets could not be listed",
        |_, own, _| {
            own.subnets.pop();
            add_unmet(own, ConditionKind::SubnetsReady);
        },
        None,
    ),
    (
        "it is in more groups",
        |it, _, _| {
            facts(it).security_groups.insert("sg-3".into());
        },
        Some(InstanceDrift::SecurityGroups),
    ),
    (
        "its class has more groups",
        |it, _, _| {
            facts(it).security_groups.remove("sg-2");
        },
        Some(InstanceDrift::SecurityGroups),
    ),
    (
        "other groups",
        |_, own, _| own.security_groups[0].id = "sg-9".into(),
        Some(InstanceDrift::SecurityGroups),
    ),
    ("no groups", |_, own, _| own.security_groups.clear(), None),
    ("its groups are not known", |it, _, _| facts(it).security_groups.clear(), None),
    (
        "groups could not be listed",
        |_, own, _| {
            own.security_groups.pop();
            add_unmet(own, ConditionKind::SecurityGroupsReady);
        },
        None,
    ),
    ("another reservation", |_, own, _| own.reservations.clear(), Some(InstanceDrift::Reservation)),
    ("its reservation is no longer used", |_, own, _| own.reservations[0].is_usable = false, None),
    (
        "it fell back to on-demand",
        |it, own, _| {
            own.reservations.clear();
            it.offering.capacity_type = CapacityType::OnDemand;
        },
        None,
    ),
    (
        "it is in no reservation any more",
        |it, own, _| {
            own.reservations.clear();
            facts(it).reservation = None;
        },
        None,
    ),
    (
        "reservations could not be listed",
        |_, own, _| {
            own.reservations.clear();
            add_unmet(own, ConditionKind::CapacityReservationsReady);
        },
        None,
    ),
    (
        "another placement group",
        |it, _, _| facts(it).placement_group = Some("pg-2".into()),
        Some(InstanceDrift::PlacementGroup),
    ),
    (
        "a group was added",
        |it, _, _| facts(it).placement_group = None,
        Some(InstanceDrift::PlacementGroup),
    ),
    (
        "the group was dropped",
        |_, own, _| own.placement_group = None,
        Some(InstanceDrift::PlacementGroup),
    ),
    (
        "the group could not be found",
        |_, own, _| {
            own.placement_group = None;
            add_unmet(own, ConditionKind::PlacementGroupReady);
        },
        None,
    ),
    (
        "several at once: the first",
        |_, own, class| {
            own.subnets.pop();
            own.security_groups.pop();
            own.placement_group = None;
            class.images.insert("m5.large".into(), "new".into());
        },
        Some(InstanceDrift::Image),
    ),
    (
        "a provider that tells nothing",
        |it, own, _| {
            own.subnets.pop();
            it.facts = None;
        },
        None,
    ),
];

#[test]
fn instance_drifts_if_it_differs_from_its_node_class() {
    for (what, change, expect) in ROWS {
        let (mut it, mut own, mut class) = (instance(), resolved(), class());
        change(&mut it, &mut own, &mut class);
        assert_eq!(first_difference(&it, &own, &class, false), expect, "{what}");
        let first = Some(InstanceDrift::NodeClass);
        assert_eq!(first_difference(&it, &own, &class, true), first, "{what}");
    }
}

#[test]
fn drift_reasons_have_karpenters_names() {
    let all = [
        InstanceDrift::NodeClass,
        InstanceDrift::Image,
        InstanceDrift::SecurityGroups,
        InstanceDrift::Subnet,
        InstanceDrift::Reservation,
        InstanceDrift::PlacementGroup,
    ];
    assert!(all.is_sorted());
    let names = all.map(InstanceDrift::as_str).join(" ");
    assert_eq!(
        names,
        "NodeClassDrift AMIDrift SecurityGroupDrift SubnetDrift CapacityReservationDrift \
         PlacementGroupDrift"
    );
}
