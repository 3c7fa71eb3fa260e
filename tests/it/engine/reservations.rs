//! Reserved capacity that clusters share: claims that the fleet denies, and nodes whose reservation
//! ends.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::catalog::Catalog;
use outrigger::engine::command::{Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::fleet::FleetView;
use outrigger::model::instance::CapacityType;
use outrigger::model::labels::{CAPACITY_TYPE, OF_RESERVATIONS, RESERVATION_ID};
use outrigger::model::reservation::Reservation;
use outrigger::model::watched_object::WatchedObject;
use outrigger::provider::CommandResult;

use super::{Stage, bound, pending_pod};

/// An engine in a fleet without limits, with a reservation of three instances and a pending pod.
fn stage() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    let reservation = Reservation::new("cr-1", 3);
    let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
    let catalog = Catalog::shipped().with_reservations(reserved);
    stage.event(Event::CatalogChanged(Arc::new(catalog)));
    stage.event(Event::FleetChanged(Some(Arc::default())));
    stage.sync(vec![], vec![pending_pod("a")]);
    stage
}

/// Denies every grant request for `seconds`; returns the number of denials.
fn deny(stage: &mut Stage, seconds: i64, used_up: bool, view: &FleetView) -> usize {
    let mut denied = 0;
    for _ in 0..seconds {
        for IssuedCommand { id, command } in stage.run(1, &["request_grant"]) {
            let Command::RequestGrant(request) = command else {
                panic!("{command:?}");
            };
            assert!(request.holding.reservation.is_some(), "{request:?}");
            denied += 1;
            let (why, view) = ("it is not to be had".to_owned(), Arc::new(view.clone()));
            let answer = CommandResult::Denied { why, used_up, view };
            stage.event(Event::Answered(id, answer));
        }
    }
    denied
}

#[test]
fn exhausted_reservation_is_not_requested_for_three_minutes() {
    let mut stage = stage();
    let denied = deny(&mut stage, 20, true, &FleetView::default());
    assert_eq!((denied, stage.launches.len()), (1, 1));
    assert!(stage.launches[0].offerings.iter().all(|offering| offering.reservation.is_none()));
    let mut huge = pending_pod("b");
    huge.requests.cpu_milli = 1900;
    stage.apply(WatchedObject::Pod(Box::new(huge.clone())));
    assert_eq!(deny(&mut stage, 140, true, &FleetView::default()), 0);
    assert_eq!(stage.launches.len(), 2);
    // Three minutes after the denial the engine requests the reservation again.
    stage.now += SignedDuration::from_secs(30);
    huge.key.name = "c".to_owned();
    huge.uid = "uid-c".to_owned();
    stage.apply(WatchedObject::Pod(Box::new(huge)));
    assert_eq!(deny(&mut stage, 20, true, &FleetView::default()), 1);
}

#[test]
fn pods_wait_only_seconds_for_a_cluster_that_does_not_report_its_usage() {
    let closed = FleetView {
        closed: Some("cluster west has not said what it has".to_owned()),
        ..FleetView::default()
    };
    let mut stage = stage();
    let denied = deny(&mut stage, 15, false, &closed);
    assert!(denied > 2, "{denied}: the engine waits for a moment");
    assert_eq!(stage.launches.len(), 0);
    deny(&mut stage, 30, false, &closed);
    assert_eq!(stage.launches.len(), 1, "a launch without the reservation");
    // The next pod does not wait at all.
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("late"))));
    let denied = deny(&mut stage, 5, false, &closed);
    let planned = |pod: &str| {
        let claims = stage.engine.state().ledger.claims.values();
        let key = pending_pod(pod).key;
        claims.filter(|claim| claim.pods.contains(&key)).count()
    };
    assert_eq!((denied, planned("late")), (0, 1));
}

/// An instance outlives its reservation as an on-demand instance: its node is labelled on-demand
/// and loses the labels of the reservation.
#[test]
fn used_node_is_relabelled_on_demand_when_its_reservation_ends() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let reservation = Reservation { interruptible: true, ..Reservation::new("cr-1", 3) };
    let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
    let catalog = Catalog::shipped().with_reservations(reserved);
    stage.event(Event::CatalogChanged(Arc::new(catalog)));
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pending_pod("a"), "node-0"));
    stage.run(60, &[]);
    let labels_of_node = |stage: &Stage| {
        let labels = &stage.only_node().labels;
        let capacity_type = labels["karpenter.sh/capacity-type"].clone();
        let has_reservation_labels = OF_RESERVATIONS.map(|key| labels.contains_key(key));
        (capacity_type, has_reservation_labels)
    };
    assert_eq!(labels_of_node(&stage), ("reserved".to_owned(), [true; 3]));
    let patches = stage.count("patch_node");
    let instance = stage.instances.get_mut("i-0").expect("the instance exists");
    instance.offering.capacity_type = CapacityType::OnDemand;
    instance.offering.reservation = None;
    stage.run(300, &[]);
    assert_eq!(labels_of_node(&stage), ("on-demand".to_owned(), [false; 3]));
    assert_eq!(stage.count("patch_node"), patches + 1, "{:?}", stage.commands);
    assert_eq!(stage.count("terminate"), 0);
}

/// An instance outlives its reservation as an on-demand instance: its node is labelled on-demand,
/// whether it registers before or after the end of the reservation.
#[test]
fn ended_reservation_makes_a_node_on_demand_before_or_after_registration() {
    for registered_before in [false, true] {
        let mut stage = stage();
        stage.run(10, &[]);
        let node = stage.node(0);
        if registered_before {
            stage.apply(WatchedObject::Node(Box::new(node.clone())));
            stage.run(5, &[]);
            let labels = &stage.only_node().labels;
            assert_eq!(labels[CAPACITY_TYPE], "reserved");
            assert_eq!(labels[RESERVATION_ID], "cr-1");
        }
        let instance = stage.instances.get_mut("i-0").expect("the instance exists");
        instance.offering.capacity_type = CapacityType::OnDemand;
        instance.offering.reservation = None;
        stage.run(70, &[]);
        if !registered_before {
            stage.apply(WatchedObject::Node(Box::new(node)));
            stage.run(5, &[]);
        }
        let node = stage.only_node();
        assert!(node.is_initialized(), "registered before: {registered_before}");
        assert_eq!(
            node.labels[CAPACITY_TYPE], "on-demand",
            "registered before: {registered_before}"
        );
        for key in OF_RESERVATIONS {
            assert_eq!(node.labels.get(key), None, "registered before: {registered_before} {key}");
        }
        let patches = stage.count("patch_node");
        stage.run(120, &[]);
        assert_eq!(stage.count("patch_node"), patches, "the labels are patched once");
    }
}
