//! Two clusters in one region and their fleet: after an offering is unavailable to one cluster,
//! neither requests it before the back-off ends.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::engine::command::{Command, CommandResult, OfferingRefusal, RefusalKind};
use outrigger::engine::event::Event;
use outrigger::fleet::Fleet;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::fleet::FleetLimits;
use outrigger::model::instance::{CapacityType, OfferingKey};
use outrigger::model::watched_object::WatchedObject;
use outrigger::state::unavailable_offerings::HOLD;

use super::{Stage, waiting_pod};

const NAMES: [&str; 2] = ["east", "west"];

/// Whether an offering is held down after the first of a launch was refused.
type IsHeld = fn(&OfferingKey, &OfferingKey) -> bool;

/// A pod that leaves no room for another like it.
fn want(stage: &mut Stage, name: &str) {
    let mut pod = waiting_pod(name);
    pod.requests.cpu_milli = 3000;
    stage.apply(WatchedObject::Pod(Box::new(pod)));
}

/// The cheapest offerings of a launch are refused, and the next makes the instance if there is one:
/// what the engine tells the fleet of it.
fn refuse(stage: &mut Stage, kind: RefusalKind, is_held: IsHeld) -> (OfferingKey, Event) {
    let issued = stage.run(10, &["launch"]).remove(0);
    let Command::Launch(mut launch) = issued.command else {
        panic!("{issued:?}");
    };
    let first = launch.offerings[0].clone();
    let refused = launch.offerings.iter().filter(|offering| is_held(offering, &first));
    let refusal = |offering: &OfferingKey| OfferingRefusal { offering: offering.clone(), kind };
    let refused: Vec<OfferingRefusal> = refused.map(refusal).collect();
    let class = launch.claim.node_class.clone();
    launch.offerings.retain(|offering| !is_held(offering, &first));
    let answer = if launch.offerings.is_empty() {
        CommandResult::LaunchRefused(refused)
    } else {
        stage.event(Event::Refused(class, refused));
        stage.answer(&Command::Launch(launch))
    };
    stage.event(Event::Answered(issued.id, answer));
    let told = stage.run(1, &["mark_unavailable"]);
    let [told] = <[_; 1]>::try_from(told).expect("one command");
    // Through the fleet to the other.
    let cluster = |name: &str| {
        Arc::new(Cluster { name: name.into(), region: "us-east-1".into(), ..Cluster::default() })
    };
    let mut fleet = Fleet::default();
    fleet.configure(FleetLimits::default(), &NAMES.map(cluster), stage.now);
    fleet.handle_command(&NAMES[0].into(), told, stage.now);
    let mut events = std::iter::from_fn(|| fleet.next_event());
    let held = events.find(|event| matches!(event.1, Event::HeldDown(..)));
    let (name, held) = held.expect("the other hears of it");
    assert_eq!(name.as_str(), NAMES[1]);
    (first, held)
}

#[test]
fn what_one_cluster_is_refused_no_other_asks_for_before_the_hold_ends() {
    let cases: [(RefusalKind, IsHeld); 2] = [
        (RefusalKind::InsufficientCapacity, |offering, first| offering == first),
        (RefusalKind::SpotDenied, |offering, _| offering.capacity_type == CapacityType::Spot),
    ];
    for (kind, is_held) in cases {
        let [mut east, mut west] = NAMES.map(|_| {
            let mut stage = Stage::new(ManagementMode::Manage);
            stage.event(Event::FleetChanged(Some(Arc::default())));
            stage.sync(vec![], vec![]);
            stage.run(7, &[]);
            stage
        });
        want(&mut east, "a");
        let (first, held) = refuse(&mut east, kind, is_held);
        let asks_for = |stage: &Stage, launch: usize| {
            let offerings = &stage.launches[launch].offerings;
            offerings.iter().any(|offering| is_held(offering, &first))
        };
        west.run(11, &[]);
        assert_eq!(west.now, east.now);
        let ends = west.now + HOLD - SignedDuration::from_secs(1);
        west.event(held);
        // At once, and shortly before it ends.
        want(&mut west, "a");
        west.run(160, &[]);
        east.run(160, &[]);
        for stage in [&mut west, &mut east] {
            want(stage, "b");
            stage.run(15, &[]);
        }
        assert_eq!((west.launches.len(), east.launches.len()), (2, 2));
        for launch in 0..2 {
            assert!(!asks_for(&west, launch), "{kind:?}: {launch} of west");
            assert!(!asks_for(&east, launch), "{kind:?}: {launch} of east");
        }
        assert!(west.now < ends, "{} {ends}", west.now);
        for stage in [&mut west, &mut east] {
            stage.run(10, &[]);
            want(stage, "c");
            stage.run(10, &[]);
            assert_eq!(stage.launches.len(), 3);
            assert!(asks_for(stage, 2), "{kind:?}: the hold is over");
        }
    }
}
