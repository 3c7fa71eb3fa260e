//! Pods that may be evicted only after the drain of their node has begun.

use jiff::SignedDuration;
use outrigger::engine::event::Event;
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::DO_NOT_DISRUPT;
use outrigger::model::pdb::{Bound, Pdb};
use outrigger::model::pod::Pod;
use outrigger::model::selector::Selector;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};

use super::drift::running_with;
use super::termination::restart;
use super::{Stage, bound, owned_pod};

/// Minutes for which the protected pod of [`draining`] must not be disrupted.
const PROTECTED: i64 = 20;

fn minutes(count: i64) -> i64 {
    count * 60
}

fn allowing(disruptions: i64) -> WatchedObject {
    WatchedObject::Pdb(Pdb {
        key: ObjectKey::new("default", "all"),
        selector: Some(Selector::default()),
        max_unavailable: Some(Bound::Count(disruptions)),
        disruptions_allowed: disruptions,
        ..Pdb::default()
    })
}

/// A drifted node under drain whose only pod is not reschedulable at the start of the drain.
fn draining(protect: impl FnOnce(&mut Stage, &mut Pod)) -> Stage {
    let mut stage = running_with(1, |cluster| {
        cluster.pools[0].termination_grace_period = Some(SignedDuration::from_hours(3));
    });
    let mut pod = owned_pod("p0");
    pod.requests.cpu_milli = 2500;
    protect(&mut stage, &mut pod);
    stage.apply(bound(pod, "node-0"));
    stage.drift();
    stage.run(minutes(PROTECTED - 2), &[]);
    assert_eq!((stage.launches.len(), stage.disrupted()), (1, 1));
    stage
}

fn protect_for_a_time(stage: &mut Stage, pod: &mut Pod) {
    pod.started = Some(stage.now);
    pod.annotations.insert(DO_NOT_DISRUPT.into(), format!("{PROTECTED}m"));
}

/// Checks that the pod, which may now be evicted, is evicted only after its replacement node is
/// ready.
fn assert_waits_for_a_place(stage: &mut Stage, case: &str) {
    stage.run(minutes(3), &[]);
    assert_eq!((stage.launches.len(), stage.count("evict")), (2, 0), "{case}: a place is planned");
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(10, &[]);
    assert!(stage.count("evict") > 0, "{case}: {:?}", stage.commands);
}

#[test]
fn pod_whose_protection_ends_during_the_drain_needs_a_place() {
    for restarts in [false, true] {
        let mut stage = draining(protect_for_a_time);
        if restarts {
            restart(&mut stage);
        }
        stage.run(minutes(1), &[]);
        assert_eq!((stage.launches.len(), stage.count("evict")), (1, 0));
        assert_waits_for_a_place(&mut stage, &format!("with a restart: {restarts}"));
    }
}

/// After the first eviction, the drain can no longer be postponed.
#[test]
fn pod_whose_protection_ends_after_other_pods_were_evicted_needs_a_place() {
    let sized = |name: &str, cpu: i64| {
        let mut pod = owned_pod(name);
        pod.requests.cpu_milli = cpu;
        pod
    };
    let mut stage = running_with(1, |cluster| {
        cluster.pools[0].termination_grace_period = Some(SignedDuration::from_hours(3));
    });
    let (mut protected, other) = (sized("p0", 2900), sized("p1", 700));
    protect_for_a_time(&mut stage, &mut protected);
    stage.apply(bound(protected, "node-0"));
    stage.apply(bound(other.clone(), "node-0"));
    stage.drift();
    stage.run(minutes(1), &[]);
    assert_eq!((stage.launches.len(), stage.disrupted()), (2, 1), "a node for the other pod");
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(10, &["evict"]);
    assert_eq!(stage.count("evict"), 1);
    stage.event(Event::Deleted(ObjectKind::Pod, other.key));
    stage.apply(bound(sized("p2", 2900), "node-1"));
    stage.commands.clear();
    stage.run(minutes(PROTECTED - 3), &[]);
    assert_eq!((stage.launches.len(), stage.count("evict")), (2, 0));
    stage.run(minutes(4), &[]);
    assert_eq!((stage.launches.len(), stage.count("evict")), (3, 0), "{:?}", stage.report_texts());
    stage.apply(WatchedObject::Node(Box::new(stage.node(2))));
    stage.run(10, &[]);
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
}

/// The scheduler had assigned the pod to the node before the taint.
#[test]
fn pod_that_the_watch_shows_after_the_first_eviction_needs_a_place() {
    let mut stage = running_with(1, |cluster| {
        cluster.pools[0].termination_grace_period = Some(SignedDuration::from_hours(3));
    });
    stage.drift();
    stage.run(minutes(1), &[]);
    assert_eq!((stage.launches.len(), stage.disrupted()), (2, 1));
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(10, &["evict"]);
    assert_eq!(stage.count("evict"), 1);
    let mut late = owned_pod("late");
    late.requests.cpu_milli = 3000;
    stage.apply(bound(late, "node-0"));
    stage.event(Event::Deleted(ObjectKind::Pod, ObjectKey::new("default", "p0")));
    stage.apply(bound(owned_pod("p0"), "node-1"));
    stage.run(minutes(3), &["evict"]);
    assert_eq!((stage.launches.len(), stage.count("evict")), (3, 1), "{:?}", stage.commands);
    stage.apply(WatchedObject::Node(Box::new(stage.node(2))));
    stage.run(10, &["evict"]);
    assert_eq!(stage.count("evict"), 2, "{:?}", stage.commands);
}

#[test]
fn pod_whose_protection_ends_while_the_daemon_is_down_needs_a_place() {
    let mut stage = draining(protect_for_a_time);
    stage.now += SignedDuration::from_mins(4);
    restart(&mut stage);
    assert_waits_for_a_place(&mut stage, "after the restart");
}

/// The API server refuses evictions while the budget allows none.
#[test]
fn pod_whose_disruption_budget_changes_during_the_drain_needs_a_place() {
    let mut stage = draining(|stage, _| stage.apply(allowing(0)));
    stage.run(minutes(10), &["evict"]);
    assert_eq!(stage.launches.len(), 1);
    stage.commands.clear();
    stage.apply(allowing(1));
    assert_waits_for_a_place(&mut stage, "after the change of the budget");
}

/// A drain that an earlier process began can no longer be cancelled, so the wait for a place has a
/// limit.
#[test]
fn wait_of_a_pod_for_a_place_is_limited() {
    let mut stage = draining(protect_for_a_time);
    restart(&mut stage);
    stage.run(minutes(2 + 19), &["launch"]);
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.commands);
    stage.run(minutes(2), &["launch"]);
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
}

/// A pod that is protected again and then unprotected waits for a place again.
#[test]
fn wait_of_a_pod_for_a_place_starts_again_after_a_new_protection() {
    let mut stage = draining(protect_for_a_time);
    restart(&mut stage);
    stage.run(minutes(2 + 10), &["launch"]);
    let mut pod = owned_pod("p0");
    pod.requests.cpu_milli = 2500;
    let mut again = pod.clone();
    again.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
    stage.apply(bound(again, "node-0"));
    stage.run(minutes(20), &["launch"]);
    stage.apply(bound(pod, "node-0"));
    stage.run(minutes(10), &["launch"]);
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.commands);
}
