//! Reserved capacity that clusters share: claims that the fleet denies, and nodes whose reservation
//! ends.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::catalog::Catalog;
use outrigger::engine::command::{Command, CommandResult, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::fleet::FleetView;
use outrigger::model::instance::CapacityType;
use outrigger::model::labels::{CAPACITY_TYPE, OF_RESERVATIONS, RESERVATION_ID};
use outrigger::model::reservation::Reservation;
use outrigger::model::watched_object::WatchedObject;

use super::{Stage, bound, waiting_pod};

/// An engine that buys where others do, without limits, with three instances reserved, and a pod.
fn stage() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    let reservation = Reservation::new("cr-1", 3);
    let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
    let catalog = Catalog::shipped().with_reservations(reserved);
    stage.event(Event::CatalogChanged(Arc::new(catalog)));
    stage.event(Event::FleetChanged(Some(Arc::default())));
    stage.sync(vec![], vec![waiting_pod("a")]);
    stage
}

/// Answers all that is asked for in this while with a denial; returns how often that was.
fn deny(stage: &mut Stage, seconds: i64, used_up: bool, view: &FleetView) -> usize {
    let mut denied = 0;
    for _ in 0..seconds {
        for IssuedCommand { id, command } in stage.run(1, &["request_grant"]) {
            let Command::RequestGrant(ask) = command else {
                panic!("{command:?}");
            };
            assert!(ask.holding.reservation.is_some(), "{ask:?}");
            denied += 1;
            let (why, view) = ("it is not to be had".to_owned(), Arc::new(view.clone()));
            let answer = CommandResult::Denied { why, used_up, view };
            stage.event(Event::Answered(id, answer));
        }
    }
    denied
}

#[test]
fn what_is_used_up_is_left_alone_for_a_while() {
    let mut stage = stage();
    let denied = deny(&mut stage, 20, true, &FleetView::default());
    assert_eq!((denied, stage.launches.len()), (1, 1));
    assert!(stage.launches[0].offerings.iter().all(|offering| offering.reservation.is_none()));
    let mut huge = waiting_pod("b");
    huge.requests.cpu_milli = 1900;
    stage.apply(WatchedObject::Pod(Box::new(huge.clone())));
    assert_eq!(deny(&mut stage, 140, true, &FleetView::default()), 0);
    assert_eq!(stage.launches.len(), 2);
    // Three minutes after the denial it is asked for again.
    stage.now += SignedDuration::from_secs(30);
    huge.key.name = "c".to_owned();
    huge.uid = "uid-c".to_owned();
    stage.apply(WatchedObject::Pod(Box::new(huge)));
    assert_eq!(deny(&mut stage, 20, true, &FleetView::default()), 1);
}

#[test]
fn pods_do_not_wait_long_for_a_cluster_that_says_nothing() {
    let closed = FleetView {
        closed: Some("cluster west has not said what it has".to_owned()),
        ..FleetView::default()
    };
    let mut stage = stage();
    let denied = deny(&mut stage, 15, false, &closed);
    assert!(denied > 2, "{denied}: for a moment it is waited for");
    assert_eq!(stage.launches.len(), 0);
    deny(&mut stage, 30, false, &closed);
    assert_eq!(stage.launches.len(), 1, "on what is not reserved");
    // The next does not wait at all.
    stage.apply(WatchedObject::Pod(Box::new(waiting_pod("late"))));
    let denied = deny(&mut stage, 5, false, &closed);
    let planned = |pod: &str| {
        let claims = stage.engine.state().ledger.claims.values();
        let key = waiting_pod(pod).key;
        claims.filter(|claim| claim.pods.contains(&key)).count()
    };
    assert_eq!((denied, planned("late")), (0, 1));
}

/// An instance outlives its reservation, on demand: its node says so, and names none any more.
#[test]
fn nodes_of_a_reservation_that_has_ended_are_on_demand() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let reservation = Reservation { interruptible: true, ..Reservation::new("cr-1", 3) };
    let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
    let catalog = Catalog::shipped().with_reservations(reserved);
    stage.event(Event::CatalogChanged(Arc::new(catalog)));
    stage.sync(vec![], vec![waiting_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(waiting_pod("a"), "node-0"));
    stage.run(60, &[]);
    let said = |stage: &Stage| {
        let labels = &stage.seen_node().labels;
        let bought = labels["karpenter.sh/capacity-type"].clone();
        let named = OF_RESERVATIONS.map(|key| labels.contains_key(key));
        (bought, named)
    };
    assert_eq!(said(&stage), ("reserved".to_owned(), [true; 3]));
    let patches = stage.count("patch_node");
    let instance = stage.instances.get_mut("i-0").expect("the instance");
    instance.offering.capacity_type = CapacityType::OnDemand;
    instance.offering.reservation = None;
    stage.run(300, &[]);
    assert_eq!(said(&stage), ("on-demand".to_owned(), [false; 3]));
    assert_eq!(stage.count("patch_node"), patches + 1, "{:?}", stage.seen);
    assert_eq!(stage.count("terminate"), 0);
}

/// An instance outlives its reservation, on demand, and its node says so, be it registered before
/// or after; nothing leaves.
#[test]
fn a_node_whose_reservation_has_ended_is_on_demand() {
    for late in [false, true] {
        let mut stage = stage();
        stage.run(10, &[]);
        let node = stage.node(0);
        if late {
            stage.apply(WatchedObject::Node(Box::new(node.clone())));
            stage.run(5, &[]);
            let labels = &stage.seen_node().labels;
            assert_eq!(labels[CAPACITY_TYPE], "reserved");
            assert_eq!(labels[RESERVATION_ID], "cr-1");
        }
        let instance = stage.instances.get_mut("i-0").expect("the instance");
        instance.offering.capacity_type = CapacityType::OnDemand;
        instance.offering.reservation = None;
        stage.run(70, &[]);
        if !late {
            stage.apply(WatchedObject::Node(Box::new(node)));
            stage.run(5, &[]);
        }
        let node = stage.seen_node();
        assert!(node.is_initialized(), "late: {late}");
        assert_eq!(node.labels[CAPACITY_TYPE], "on-demand", "late: {late}");
        for key in OF_RESERVATIONS {
            assert_eq!(node.labels.get(key), None, "late: {late} {key}");
        }
        let patches = stage.count("patch_node");
        stage.run(120, &[]);
        assert_eq!(stage.count("patch_node"), patches, "said once");
    }
}
