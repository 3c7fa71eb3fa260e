//! Two clusters in one region and their fleet: after an offering is unavailable to one cluster,
//! neither requests it before the back-off ends.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::engine::command::Command;
use outrigger::engine::event::Event;
use outrigger::fleet::Fleet;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::fleet::FleetLimits;
use outrigger::model::instance::{CapacityType, OfferingKey};
use outrigger::model::watched_object::WatchedObject;
use outrigger::provider::{CommandResult, OfferingRefusal, RefusalKind};
use outrigger::state::unavailable_offerings::HOLD;

use super::{Stage, pending_pod};

const NAMES: [&str; 2] = ["east", "west"];

/// Whether an offering is unavailable after the first offering of a launch was refused.
type IsUnavailable = fn(&OfferingKey, &OfferingKey) -> bool;

/// Adds a pending pod that needs a node of its own.
fn add_pod(stage: &mut Stage, name: &str) {
    let mut pod = pending_pod(name);
    pod.requests.cpu_milli = 3000;
    stage.apply(WatchedObject::Pod(Box::new(pod)));
}

/// Refuses the cheapest offerings of a launch, and launches the next one, if any; returns the first
/// offering and the event that the fleet sends to the other cluster.
fn refuse(
    stage: &mut Stage,
    kind: RefusalKind,
    is_unavailable: IsUnavailable,
) -> (OfferingKey, Event) {
    let issued = stage.run(10, &["launch"]).remove(0);
    let Command::Launch(mut launch) = issued.command else {
        panic!("{issued:?}");
    };
    let first = launch.offerings[0].clone();
    let refused = launch.offerings.iter().filter(|offering| is_unavailable(offering, &first));
    let refusal = |offering: &OfferingKey| OfferingRefusal { offering: offering.clone(), kind };
    let refused: Vec<OfferingRefusal> = refused.map(refusal).collect();
    let class = launch.claim.node_class.clone();
    launch.offerings.retain(|offering| !is_unavailable(offering, &first));
    let answer = if launch.offerings.is_empty() {
        CommandResult::LaunchRefused(refused)
    } else {
        stage.event(Event::Refused(class, refused));
        stage.answer(&Command::Launch(launch))
    };
    stage.event(Event::Answered(issued.id, answer));
    let commands = stage.run(1, &["mark_unavailable"]);
    let [command] = <[_; 1]>::try_from(commands).expect("one command");
    // The fleet forwards the report to the other cluster.
    let cluster = |name: &str| {
        Arc::new(Cluster { name: name.into(), region: "us-east-1".into(), ..Cluster::default() })
    };
    let mut fleet = Fleet::default();
    fleet.configure(FleetLimits::default(), &NAMES.map(cluster), stage.now);
    fleet.handle_command(&NAMES[0].into(), command, stage.now);
    let mut events = std::iter::from_fn(|| fleet.next_event());
    let held = events.find(|event| matches!(event.1, Event::HeldDown(..)));
    let (name, held) = held.expect("the other cluster gets the event");
    assert_eq!(name.as_str(), NAMES[1]);
    (first, held)
}

#[test]
fn offering_refused_to_one_cluster_is_requested_by_none_until_the_back_off_ends() {
    let cases: [(RefusalKind, IsUnavailable); 2] = [
        (RefusalKind::InsufficientCapacity, |offering, first| offering == first),
        (RefusalKind::SpotDenied, |offering, _| offering.capacity_type == CapacityType::Spot),
    ];
    for (kind, is_unavailable) in cases {
        let [mut east, mut west] = NAMES.map(|_| {
            let mut stage = Stage::new(ManagementMode::Manage);
            stage.event(Event::FleetChanged(Some(Arc::default())));
            stage.sync(vec![], vec![]);
            stage.run(7, &[]);
            stage
        });
        add_pod(&mut east, "a");
        let (first, held) = refuse(&mut east, kind, is_unavailable);
        let requests = |stage: &Stage, launch: usize| {
            let offerings = &stage.launches[launch].offerings;
            offerings.iter().any(|offering| is_unavailable(offering, &first))
        };
        west.run(11, &[]);
        assert_eq!(west.now, east.now);
        let ends = west.now + HOLD - SignedDuration::from_secs(1);
        west.event(held);
        // Pods arrive at once, and shortly before the back-off ends.
        add_pod(&mut west, "a");
        west.run(160, &[]);
        east.run(160, &[]);
        for stage in [&mut west, &mut east] {
            add_pod(stage, "b");
            stage.run(15, &[]);
        }
        assert_eq!((west.launches.len(), east.launches.len()), (2, 2));
        for launch in 0..2 {
            assert!(!requests(&west, launch), "{kind:?}: {launch} of west");
            assert!(!requests(&east, launch), "{kind:?}: {launch} of east");
        }
        assert!(west.now < ends, "{} {ends}", west.now);
        for stage in [&mut west, &mut east] {
            stage.run(10, &[]);
            add_pod(stage, "c");
            stage.run(10, &[]);
            assert_eq!(stage.launches.len(), 3);
            assert!(requests(stage, 2), "{kind:?}: the back-off has ended");
        }
    }
}
