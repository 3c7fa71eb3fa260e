//! Interruption messages for an instance, and the recovery after a failed launch.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::catalog::Catalog;
use outrigger::engine::command::{
    Command, CommandResult, FailureKind, OfferingRefusal, RefusalKind,
};
use outrigger::engine::event::{Event, Interruption};
use outrigger::engine::report::Report;
use outrigger::model::cluster::{InterruptionQueue as Queue, ManagementMode, Rebalance};
use outrigger::model::fleet::FleetView;
use outrigger::model::id::ClaimId;
use outrigger::model::instance::{CapacityType, OfferingKey};
use outrigger::model::labels::{INSTANCE_TYPE, OF_RESERVATIONS, ZONE};
use outrigger::model::pod::{Owner, Pod};
use outrigger::model::pool::{Pool, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::reservation::{Reservation, ReservationKind};
use outrigger::model::template_hash::pool_hash;
use outrigger::model::watched_object::WatchedObject;

use super::termination::restart;
use super::unavailable_offerings::{Which, offerings};
use super::{Stage, bound, owned_pod, waiting_pod};

/// A stage with one node, on which one pod runs that nobody may evict.
fn settled() -> Stage {
    settled_with(waiting_pod("a"))
}

fn settled_with(pod: Pod) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pod.clone()]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pod, "node-0"));
    stage.run(2, &[]);
    stage.seen.clear();
    stage.reports.clear();
    stage
}

fn said(stage: &Stage) -> Vec<(Interruption, bool)> {
    let told = |report: &Report| match report {
        Report::Interrupted { what, ignored, .. } => Some((*what, *ignored)),
        _ => None,
    };
    stage.reports.iter().filter_map(told).collect()
}

fn retired(stage: &Stage) -> Option<Reason> {
    stage.reports.iter().find_map(|report| match report {
        Report::Retire { reason, .. } => Some(*reason),
        _ => None,
    })
}

/// Its message is deleted: nobody says it once more.
#[test]
fn a_node_that_is_taken_back_leaves_also_after_a_restart() {
    let mut stage = settled();
    stage.event(Event::Interrupted("i-0".into(), Interruption::Spot, stage.now));
    stage.run(5, &["launch"]);
    assert!(stage.count("evict") > 0);
    restart(&mut stage);
    stage.run(20, &["launch"]);
    assert!(stage.seen_node().has_disrupted_taint());
    assert!(stage.count("evict") > 0, "{:?}", stage.seen);
    assert_eq!(retired(&stage), Some(Reason::Interrupted));
}

/// A drain that is quick ends the instance five seconds after its taint; the batch window may take
/// ten.
#[test]
fn what_replaces_a_node_that_is_taken_back_does_not_wait_for_a_slow_scheduler() {
    let mut stage = settled_with(owned_pod("a"));
    let untried = Pod { unschedulable: false, ..waiting_pod("untried") };
    stage.apply(WatchedObject::Pod(Box::new(untried)));
    stage.run(3, &[]);
    let before = stage.launches.len();
    let notice = Event::Interrupted("i-0".into(), Interruption::Stopping, stage.now);
    stage.event(notice);
    stage.run(3, &[]);
    assert_eq!(stage.launches.len(), before + 1, "{:?}", stage.seen);
}

#[test]
fn each_notice_is_said_once_and_has_its_node_leave_as_it_must() {
    use Interruption::{Failed, Maintenance, Rebalance as Advice, Reservation, Spot, Stopping};
    // Whether the node leaves, why, and whether it is ended with the pod on it.
    let gone = Some(Reason::Interrupted);
    let rows = [
        (Spot, Rebalance::Ignore, gone, false),
        (Reservation, Rebalance::Ignore, gone, false),
        (Maintenance, Rebalance::Ignore, gone, false),
        (Stopping, Rebalance::Ignore, gone, false),
        (Failed, Rebalance::Ignore, Some(Reason::Unhealthy), true),
        (Advice, Rebalance::Ignore, None, false),
        (Advice, Rebalance::Drain, gone, false),
        (Advice, Rebalance::ReplaceFirst, gone, false),
    ];
    for (what, rebalance, reason, ended) in rows {
        let mut stage = settled();
        let queue = "q".to_owned();
        stage.change(|cluster| cluster.interruption = Some(Queue { queue, rebalance }));
        for _ in 0..3 {
            stage.event(Event::Interrupted("i-0".into(), what, stage.now));
            stage.event(Event::Interrupted("i-other".into(), what, stage.now));
            stage.run(5, &["launch"]);
        }
        let ignored = reason.is_none();
        assert_eq!(said(&stage), [(what, ignored)], "{what:?}");
        assert_eq!(retired(&stage), reason, "{what:?}");
        assert_eq!(stage.count("patch_node"), usize::from(!ignored), "{what:?}");
        assert_eq!(stage.count("terminate") > 0, ended, "{what:?} {:?}", stage.seen);
        assert_eq!(stage.count("evict") > 0, !ignored && !ended, "{what:?}");
    }
}

#[test]
fn what_leaves_less_time_counts() {
    let mut stage = settled();
    let notice = |stage: &mut Stage, what| {
        stage.event(Event::Interrupted("i-0".into(), what, stage.now));
        stage.run(6, &["launch"]);
    };
    notice(&mut stage, Interruption::Maintenance);
    assert_eq!(stage.count("terminate"), 0);
    notice(&mut stage, Interruption::Failed);
    assert!(stage.count("terminate") > 0, "{:?}", stage.seen);
    notice(&mut stage, Interruption::Maintenance);
    let told: Vec<Interruption> = said(&stage).iter().map(|notice| notice.0).collect();
    assert_eq!(told, [Interruption::Maintenance, Interruption::Failed]);
}

#[test]
fn what_is_taken_back_is_held_down_here_and_elsewhere() {
    for (what, held) in [
        (Interruption::Spot, true),
        (Interruption::Reservation, true),
        (Interruption::Maintenance, false),
        (Interruption::Failed, false),
    ] {
        let mut stage = settled();
        stage.event(Event::FleetChanged(Some(Arc::new(FleetView::default()))));
        stage.run(3, &[]);
        let offering = stage.instances["i-0"].offering.clone();
        stage.event(Event::Interrupted("i-0".into(), what, stage.now));
        let issued = stage.run(2, &["mark_unavailable", "launch"]);
        let holds = &stage.engine.state().holds;
        assert_eq!(holds.is_held(None, &offering, stage.now), held, "{what:?}");
        let told = issued.iter().find_map(|issued| match &issued.command {
            Command::MarkUnavailable { what, .. } => Some(what.clone()),
            _ => None,
        });
        assert_eq!(told, held.then(|| vec![offering.into()]), "{what:?}");
    }
}

#[test]
fn instances_leave_a_capacity_block_forty_minutes_before_its_end() {
    for (kind, leaves) in
        [(ReservationKind::CapacityBlock, true), (ReservationKind::Default, false)]
    {
        let mut stage = Stage::new(ManagementMode::Manage);
        let ends = stage.now + SignedDuration::from_mins(60);
        let reservation = Reservation { kind, ends: Some(ends), ..Reservation::new("cr-1", 3) };
        let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
        let catalog = Catalog::shipped().with_reservations(reserved);
        stage.event(Event::CatalogChanged(Arc::new(catalog)));
        stage.sync(vec![], vec![waiting_pod("a")]);
        stage.run(10, &[]);
        assert!(stage.instances["i-0"].offering.reservation.is_some());
        stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
        stage.run(2, &[]);
        stage.apply(bound(waiting_pod("a"), "node-0"));
        stage.run(19 * 60, &["launch"]);
        assert_eq!(retired(&stage), None, "{kind:?}");
        stage.run(50, &["launch"]);
        assert_eq!(retired(&stage), leaves.then_some(Reason::Interrupted), "{kind:?}");
    }
}

/// The claims whose launches were asked for, in order, each answered as given.
fn launches(stage: &mut Stage, answers: &[FailureKind]) -> Vec<ClaimId> {
    let mut ids = Vec::new();
    for kind in answers {
        let issued = (0..200).find_map(|_| stage.run(1, &["launch"]).into_iter().next());
        let issued = issued.expect("a launch");
        let Command::Launch(launch) = &issued.command else {
            panic!("{issued:?}");
        };
        ids.push(launch.claim.id.clone());
        let text = "x".to_owned();
        let answer = CommandResult::Failed { kind: *kind, text };
        stage.event(Event::Answered(issued.id, answer));
    }
    ids
}

#[test]
fn a_launch_that_failed_for_sure_goes_on_under_another_token() {
    use FailureKind::{Conflict, Denied, Gone, Invalid, Throttled, Unknown};
    for kind in [Conflict, Denied, Gone, Invalid, Throttled] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.sync(vec![], vec![waiting_pod("a")]);
        let ids = launches(&mut stage, &[kind, kind]);
        assert_ne!(ids[0], ids[1], "{kind:?}");
        stage.run(10, &[]);
        assert_eq!(stage.launches.len(), 1, "{kind:?}");
        let id = &stage.launches[0].claim.id;
        assert!(!ids.contains(id));
        assert_eq!(stage.launches[0].tags["outrigger.dev/claim"], id.as_str());
        let renewed = |report: &&Report| matches!(report, Report::ClaimRenewed { .. });
        assert_eq!(stage.reports.iter().filter(renewed).count(), 2);
        assert_eq!(stage.engine.state().ledger.claims.len(), 1);
    }
    // As long as an instance may have been made, the token stays, whatever comes later.
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![waiting_pod("a")]);
    let ids = launches(&mut stage, &[Unknown, Throttled, Invalid]);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    stage.run(30, &[]);
    assert_eq!(stage.launches[0].claim.id, ids[0]);
}

/// Refuses the offerings of the next launch that `which` takes, and says what is launched instead.
fn refused(stage: &mut Stage, kind: RefusalKind, which: Which) -> OfferingKey {
    let issued = stage.run(10, &["launch"]).remove(0);
    stage.refuse(&issued, which, kind);
    stage.run(20, &[]);
    let instance = stage.instances.values().next().expect("an instance");
    instance.offering.clone()
}

/// So many pods, what EC2 refuses of what is offered, and what is launched then. Two types in two
/// zones are to be had both ways.
type Refused = (usize, fn(&OfferingKey) -> bool, &'static [&'static str]);

const REFUSED: [Refused; 6] = [
    (1, |_| false, &["m5.large us-east-1a spot"]),
    (1, |offering| offering.instance_type.as_str() == "m5.large", &["m5.xlarge us-east-1a spot"]),
    (1, |offering| offering.zone.as_str() == "us-east-1a", &["m5.large us-east-1b spot"]),
    (
        1,
        |offering| offering.capacity_type == CapacityType::Spot,
        &["m5.large us-east-1a on-demand"],
    ),
    // Three pods are on one node, as long as there is one.
    (
        3,
        |offering| offering.instance_type.as_str() == "m5.xlarge",
        &["m5.large us-east-1a spot"; 3],
    ),
    (1, |_| true, &[]),
];

#[test]
fn what_is_refused_is_had_otherwise_and_again_when_its_time_is_over() {
    for (number, (count, which, expect)) in REFUSED.into_iter().enumerate() {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.change(|cluster| {
            cluster.scheduling.alternative_price_percent = 1_000;
            let all = &mut cluster.pools[0].requirements;
            all.add(INSTANCE_TYPE, Requirement::is_in(["m5.large", "m5.xlarge"]));
            all.add(ZONE, Requirement::is_in(["us-east-1a", "us-east-1b"]));
        });
        let names = ["a", "b", "c"];
        let pods = names[..count].iter().map(|name| waiting_pod(name));
        stage.sync(vec![], pods.collect());
        let issued = stage.run(10, &["launch"]).remove(0);
        match offerings(&issued).iter().any(which) {
            true => stage.refuse(&issued, which, RefusalKind::InsufficientCapacity),
            false => stage.succeed(&issued),
        }
        stage.run(20, &[]);
        let made = |stage: &Stage| -> Vec<String> {
            let all = stage.instances.values();
            all.map(|instance| instance.offering.to_string()).collect()
        };
        assert_eq!(made(&stage), expect, "case {number}");
        let asked = stage.launches.iter().flat_map(|launch| &launch.offerings);
        assert_eq!(asked.filter(|offering| which(offering)).count(), 0, "case {number}");
        if expect.is_empty() {
            stage.run(180, &[]);
            assert_eq!(made(&stage), ["m5.large us-east-1a spot"]);
        }
    }
}

#[test]
fn where_spot_is_denied_nothing_is_asked_for_as_spot() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![waiting_pod("a")]);
    let one = |offering: &OfferingKey| offering.capacity_type == CapacityType::Spot;
    let next = refused(&mut stage, RefusalKind::SpotDenied, one);
    assert_eq!(next.capacity_type, CapacityType::OnDemand);
    let holds = &stage.engine.state().holds;
    let spot = OfferingKey {
        instance_type: "x".into(),
        zone: "y".into(),
        capacity_type: CapacityType::Spot,
        reservation: None,
    };
    assert!(holds.is_held(None, &spot, stage.now));
}

#[test]
fn what_is_refused_beside_a_launch_is_held_down() {
    let mut stage = settled();
    let class = Some("c".into());
    let key = |zone: &str| OfferingKey {
        instance_type: "m5.large".into(),
        zone: zone.into(),
        capacity_type: CapacityType::Spot,
        reservation: None,
    };
    let kinds = [RefusalKind::InsufficientCapacity, RefusalKind::NoAddress];
    let refusals = kinds
        .into_iter()
        .zip(["a", "b"])
        .map(|(kind, zone)| OfferingRefusal { offering: key(zone), kind });
    stage.event(Event::Refused(class.clone(), refusals.collect()));
    let holds = &stage.engine.state().holds;
    let held = |class: Option<&_>, zone| holds.is_held(class, &key(zone), stage.now);
    assert_eq!([held(class.as_ref(), "a"), held(None, "a")], [true, true]);
    // What is a matter of subnets concerns one class.
    assert_eq!([held(class.as_ref(), "b"), held(None, "b")], [true, false]);
    let later = stage.now + SignedDuration::from_mins(3);
    assert!(!holds.is_held(None, &key("a"), later));
}

#[test]
fn labels_of_what_was_launched_are_put_on_its_node() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let reservation = Reservation::new("cr-1", 3);
    let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
    let catalog = Catalog::shipped().with_reservations(reserved);
    stage.event(Event::CatalogChanged(Arc::new(catalog)));
    stage.sync(vec![], vec![waiting_pod("a")]);
    stage.run(10, &[]);
    let mut node = stage.node(0);
    // What the kubelet said before stays.
    let says = ("node.kubernetes.io/instance-type", "its-own");
    node.labels.insert(says.0.into(), says.1.into());
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(2, &[]);
    let labels = &stage.seen_node().labels;
    for (key, value) in [
        says,
        ("kubernetes.io/arch", "amd64"),
        ("topology.kubernetes.io/zone", "us-east-1a"),
        ("karpenter.sh/capacity-type", "reserved"),
        ("karpenter.k8s.aws/instance-family", "m6i"),
        ("karpenter.k8s.aws/capacity-reservation-id", "cr-1"),
        ("karpenter.k8s.aws/capacity-reservation-type", "default"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    // What may be one or the other, or is not there, is not said.
    assert_eq!(labels.get("karpenter.k8s.aws/instance-tenancy"), None);
    assert_eq!(labels.get("karpenter.k8s.aws/instance-gpu-name"), None);
}

/// That a type may be had in a reservation says nothing of an instance that is in none.
#[test]
fn labels_of_reservations_are_those_of_the_instance() {
    for (left, labelled) in [(1, true), (0, false)] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.change(|cluster| {
            let only = Requirement::is_in(["m6i.large"]);
            cluster.pools[0].requirements.add(INSTANCE_TYPE, only);
        });
        let reservation = Reservation { interruptible: true, left, ..Reservation::new("cr-1", 3) };
        let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
        let catalog = Catalog::shipped().with_reservations(reserved);
        stage.event(Event::CatalogChanged(Arc::new(catalog)));
        stage.sync(vec![], vec![waiting_pod("a")]);
        stage.run(10, &[]);
        stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
        stage.run(2, &[]);
        let labels = &stage.seen_node().labels;
        let bought = if labelled { "reserved" } else { "spot" };
        let told = labels.get("karpenter.sh/capacity-type");
        assert_eq!(told.map(String::as_str), Some(bought));
        for key in OF_RESERVATIONS {
            assert_eq!(labels.contains_key(key), labelled, "{key}");
        }
    }
}

#[test]
fn a_launch_of_a_class_that_is_another_by_now_is_planned_anew() {
    for changes in [false, true] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.sync(vec![], vec![waiting_pod("a")]);
        let issued = (0..20).find_map(|_| stage.run(1, &["launch"]).into_iter().next());
        let issued = issued.expect("a launch");
        if changes {
            stage.change(|cluster| {
                cluster.pools[0].labels = [("team".into(), "blue".into())].into()
            });
        }
        let (kind, text) = (FailureKind::Conflict, "another one by now".to_owned());
        stage.event(Event::Answered(issued.id, CommandResult::Failed { kind, text }));
        stage.run(20, &[]);
        let renewed = stage.reports.iter().find_map(|report| match report {
            Report::ClaimRenewed { next, .. } => Some(next.is_some()),
            _ => None,
        });
        assert_eq!(renewed, Some(!changes));
        let [launch] = stage.launches.as_slice() else {
            panic!("{:?}", stage.launches);
        };
        let pool = &stage.engine.state().cluster.pools[0];
        assert_eq!(launch.claim.pool_hash, pool_hash(pool), "{changes}");
        assert_eq!(launch.labels.contains_key("team"), changes);
    }
}

/// A stage whose one node may be taken back, with a pod that will be made anew elsewhere.
fn advised() -> Stage {
    advised_in(Interruption::Rebalance, |_| {})
}

/// The same of another notice, and in a pool that was changed so.
fn advised_in(advice: Interruption, change: impl Fn(&mut Pool)) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| change(&mut cluster.pools[0]));
    let queue = "q".to_owned();
    let rebalance = match advice {
        Interruption::Rebalance => Rebalance::ReplaceFirst,
        _ => Rebalance::Ignore,
    };
    stage.change(|cluster| cluster.interruption = Some(Queue { queue, rebalance }));
    let mut pod = waiting_pod("a");
    pod.owner = Some(Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() });
    stage.sync(vec![], vec![pod.clone()]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pod, "node-0"));
    stage.run(40, &[]);
    stage.seen.clear();
    stage.reports.clear();
    stage.event(Event::Interrupted("i-0".into(), advice, stage.now));
    stage
}

#[test]
fn a_node_that_may_be_taken_back_leaves_once_another_is_there() {
    leaves_once_replaced(Interruption::Rebalance);
}

/// A maintenance is announced days ahead, whatever is done upon advice.
#[test]
fn a_node_whose_host_is_maintained_leaves_once_another_is_there() {
    leaves_once_replaced(Interruption::Maintenance);
}

fn leaves_once_replaced(advice: Interruption) {
    let mut stage = advised_in(advice, |_| {});
    stage.run(120, &[]);
    assert_eq!(stage.seen, ["launch"], "its pods are planned for, and no more");
    let mut node = stage.node(1);
    node.ready = false;
    stage.apply(WatchedObject::Node(Box::new(node.clone())));
    stage.run(30, &[]);
    assert_eq!(retired(&stage), None, "{:?}", stage.seen);
    let known = &stage.engine.state().objects.nodes[&node.name];
    let ready = outrigger::model::node::Node { ready: true, ..known.clone() };
    stage.apply(WatchedObject::Node(Box::new(ready)));
    stage.run(3, &[]);
    assert_eq!(retired(&stage), Some(Reason::Interrupted));
    assert!(stage.count("evict") > 0, "{:?}", stage.seen);
    assert_eq!(stage.launches.len(), 2, "one in its place");
}

/// A static pool has one more for a while, and does not end it for that.
#[test]
fn a_node_of_a_static_pool_is_replaced_once() {
    let mut stage = advised_in(Interruption::Rebalance, |pool| pool.replicas = Some(1));
    stage.run(200, &[]);
    assert_eq!(stage.count("launch"), 1, "{:?}", stage.seen);
    assert_eq!(stage.count("terminate"), 0, "{:?}", stage.seen);
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(660, &[]);
    let left = stage.reports.iter().filter_map(|report| match report {
        Report::Retire { claim, .. } => Some(claim.clone()),
        _ => None,
    });
    let left: Vec<ClaimId> = left.collect();
    assert_eq!(left, [stage.launches[0].claim.id.clone()]);
    assert_eq!(stage.count("launch"), 1, "{:?}", stage.seen);
}

#[test]
fn a_node_that_may_be_taken_back_does_not_wait_for_ever() {
    let mut stage = advised();
    stage.run(590, &["launch"]);
    assert_eq!(retired(&stage), None, "{:?}", stage.seen);
    stage.run(20, &["launch"]);
    assert_eq!(retired(&stage), Some(Reason::Interrupted));
    // What is taken back for sure does not wait.
    let mut stage = advised();
    stage.run(10, &["launch"]);
    stage.event(Event::Interrupted("i-0".into(), Interruption::Spot, stage.now));
    stage.run(2, &["launch"]);
    assert_eq!(retired(&stage), Some(Reason::Interrupted));
}
