//! Filters for the terms of a node class in a region.

use outrigger::ec2::resolve_node_class::{ListedReservation, RegionResources, resolve_node_class};
use outrigger::model::labels::Labels;
use outrigger::model::node_class::network::{MatchCriteria, ReservationTerm};
use outrigger::model::node_class::resolved::{ConditionKind, FoundReservation, NodeClassCondition};
use outrigger::model::reservation::Reservation;

use super::fixture::{NOW, Scene};

/// A missing or deleted reservation is left out and does not fail the condition.
#[test]
fn missing_reservation_does_not_fail_the_condition() {
    let listed = |id: &str| ListedReservation {
        found: FoundReservation {
            instance_type: "m5.large".into(),
            zone: "us-east-1a".into(),
            reservation: Reservation::new(id, 1),
            is_usable: true,
        },
        owner: "123456789012".to_owned(),
        criteria: Some(MatchCriteria::Targeted),
        platform: String::new(),
        is_dedicated: false,
        tags: Labels::new(),
    };
    let cases: [(&[&str], &[&str], &[&str]); 4] = [
        (&["cr-1"], &["cr-1", "cr-2"], &["cr-1"]),
        (&["cr-9"], &["cr-1", "cr-2"], &[]),
        (&["cr-9", "cr-2"], &["cr-1", "cr-2"], &["cr-2"]),
        (&["cr-9"], &[], &[]),
    ];
    for (terms, there, expect) in cases {
        let mut class = Scene::new().class;
        let terms = terms.iter().map(|id| ReservationTerm::Id((*id).to_owned()));
        class.reservations = terms.collect();
        let found = RegionResources {
            reservations: Ok(there.iter().map(|id| listed(id)).collect()),
            ..RegionResources::default()
        };
        let own = resolve_node_class(&class, &found, Ok(Vec::new()), Ok(String::new()), NOW);
        let ids = own.reservations.iter().map(|own| own.reservation.id.as_str());
        assert_eq!(ids.collect::<Vec<_>>(), expect);
        let met = NodeClassCondition::met(ConditionKind::CapacityReservationsReady);
        assert!(own.conditions.contains(&met), "{:?}", own.conditions);
    }
}
