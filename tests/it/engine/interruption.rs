//! Interruption messages for an instance, and the recovery after a failed launch.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::catalog::Catalog;
use outrigger::engine::command::Command;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::{InterruptionQueue as Queue, ManagementMode, Rebalance};
use outrigger::model::fleet::FleetView;
use outrigger::model::id::ClaimId;
use outrigger::model::instance::{CapacityType, InstanceState, OfferingKey};
use outrigger::model::labels::{DISRUPTION_REASON, INSTANCE_TYPE, OF_RESERVATIONS, ZONE};
use outrigger::model::pod::{Owner, Pod};
use outrigger::model::pool::{Pool, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::reservation::{Reservation, ReservationKind};
use outrigger::model::template_hash::pool_hash;
use outrigger::model::watched_object::WatchedObject;
use outrigger::provider::{
    CommandResult, FailureKind, Interruption, NoticeReceipt, OfferingRefusal, RefusalKind,
};

use super::termination::restart;
use super::unavailable_offerings::{OfferingFilter, offerings};
use super::{Stage, bound, owned_pod, pending_pod};

/// A stage with one node and one pod without an owner.
fn settled() -> Stage {
    settled_with(pending_pod("a"))
}

fn settled_with(pod: Pod) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pod.clone()]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pod, "node-0"));
    stage.run(2, &[]);
    stage.commands.clear();
    stage.reports.clear();
    stage
}

fn interruptions(stage: &Stage) -> Vec<(Interruption, bool)> {
    let interruption = |report: &Report| match report {
        Report::Interrupted { what, ignored, .. } => Some((*what, *ignored)),
        _ => None,
    };
    stage.reports.iter().filter_map(interruption).collect()
}

fn disruption_reason(stage: &Stage) -> Option<Reason> {
    stage.reports.iter().find_map(|report| match report {
        Report::Retire { reason, .. } => Some(*reason),
        _ => None,
    })
}

/// The interruption message is deleted from the queue, so it does not arrive again.
#[test]
fn interrupted_node_is_drained_even_after_a_restart() {
    let mut stage = settled();
    stage.event(Event::interrupted("i-0".into(), Interruption::Spot, stage.now));
    stage.run(5, &["launch"]);
    assert!(stage.count("evict") > 0);
    restart(&mut stage);
    stage.run(20, &["launch"]);
    assert!(stage.only_node().has_disrupted_taint());
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
    assert_eq!(disruption_reason(&stage), Some(Reason::Interrupted));
}

/// The message of a notice is deleted when the notice is acknowledged. Until the node is tainted,
/// only the message makes the next leader drain the node.
#[test]
fn notice_is_acknowledged_when_its_node_is_tainted() {
    use Interruption::{Rebalance as Advice, Reservation, Spot, Stopping};
    // Whether the receipt is acknowledged without any result of a command.
    let rows = [
        (Spot, "i-0", false),
        (Reservation, "i-0", false),
        (Stopping, "i-0", false),
        (Advice, "i-0", true),
        (Interruption::Failed, "i-0", true),
        (Stopping, "i-unknown", true),
        (Spot, "i-unknown", false),
    ];
    for (what, instance, immediately) in rows {
        let mut stage = settled_with(owned_pod("a"));
        let receipts: Vec<NoticeReceipt> = (0..3).map(|_| NoticeReceipt::default()).collect();
        for receipt in &receipts {
            let at = stage.now;
            let receipt = Some(receipt.clone());
            stage.event(Event::Interrupted(instance.into(), what, at, receipt));
        }
        let acknowledged = || receipts.iter().all(NoticeReceipt::is_acknowledged);
        // The API server does not respond.
        let held = stage.run(20, &["patch_node", "launch"]);
        assert_eq!(acknowledged(), immediately, "{what:?} {instance}");
        for issued in held {
            let answer = stage.answer(&issued.command);
            stage.event(Event::Answered(issued.id, answer));
        }
        stage.run(20, &["launch"]);
        let is_known = instance == "i-0";
        assert_eq!(acknowledged(), immediately || is_known, "{what:?} {instance}");
    }
}

/// Without a message, listings show that an instance is stopped. Two of them are required.
#[test]
fn stopped_instance_is_replaced_without_a_message() {
    for state in [InstanceState::Stopping, InstanceState::Stopped] {
        let mut stage = settled_with(owned_pod("a"));
        let set = |stage: &mut Stage, state| {
            stage.instances.get_mut("i-0").expect("the instance").state = state;
        };
        set(&mut stage, state);
        stage.run(61, &["launch"]);
        set(&mut stage, InstanceState::Running);
        stage.run(180, &["launch"]);
        assert_eq!(disruption_reason(&stage), None, "one listing: {:?}", stage.commands);
        set(&mut stage, state);
        stage.run(180, &["launch"]);
        assert_eq!(disruption_reason(&stage), Some(Reason::Interrupted));
        assert!(stage.only_node().has_disrupted_taint());
        assert!(stage.count("evict") > 0, "{:?}", stage.commands);
    }
}

/// The node of a notice is already disrupted for another reason, which the next leader would
/// cancel: the notice must arrive again.
#[test]
fn notice_is_not_acknowledged_by_the_taint_of_another_disruption() {
    let mut stage = settled_with(owned_pod("a"));
    stage.change(|cluster| cluster.pools[0].expire_after = Some(SignedDuration::from_secs(1)));
    stage.run(20, &["launch", "evict"]);
    assert!(stage.only_node().has_disrupted_taint(), "{:?}", stage.commands);
    let receipt = NoticeReceipt::default();
    let at = stage.now;
    let notice = Event::Interrupted("i-0".into(), Interruption::Spot, at, Some(receipt.clone()));
    stage.event(notice);
    stage.run(3, &["launch", "evict"]);
    let reason = stage.only_node().annotations[DISRUPTION_REASON].as_str();
    assert_eq!(reason, Reason::Expired.as_str());
    assert!(!receipt.is_acknowledged());
}

/// A quick drain terminates the instance five seconds after the taint; the batch window may take
/// ten seconds.
#[test]
fn replacement_of_an_interrupted_node_does_not_wait_for_a_slow_scheduler() {
    let mut stage = settled_with(owned_pod("a"));
    let untried = Pod { unschedulable: false, ..pending_pod("untried") };
    stage.apply(WatchedObject::Pod(Box::new(untried)));
    stage.run(3, &[]);
    let before = stage.launches.len();
    let notice = Event::interrupted("i-0".into(), Interruption::Stopping, stage.now);
    stage.event(notice);
    stage.run(3, &[]);
    assert_eq!(stage.launches.len(), before + 1, "{:?}", stage.commands);
}

#[test]
fn each_interruption_is_reported_once_and_disrupts_its_node_accordingly() {
    use Interruption::{Failed, Maintenance, Rebalance as Advice, Reservation, Spot, Stopping};
    // The reason if the node is disrupted, and whether it is terminated without a drain.
    let interrupted = Some(Reason::Interrupted);
    let rows = [
        (Spot, Rebalance::Ignore, interrupted, false),
        (Reservation, Rebalance::Ignore, interrupted, false),
        (Maintenance, Rebalance::Ignore, interrupted, false),
        (Stopping, Rebalance::Ignore, interrupted, false),
        (Failed, Rebalance::Ignore, Some(Reason::Unhealthy), true),
        (Advice, Rebalance::Ignore, None, false),
        (Advice, Rebalance::Drain, interrupted, false),
        (Advice, Rebalance::ReplaceFirst, interrupted, false),
    ];
    for (what, rebalance, reason, undrained) in rows {
        let mut stage = settled();
        let queue = "q".to_owned();
        stage.change(|cluster| cluster.interruption = Some(Queue { queue, rebalance }));
        for _ in 0..3 {
            stage.event(Event::interrupted("i-0".into(), what, stage.now));
            stage.event(Event::interrupted("i-other".into(), what, stage.now));
            stage.run(5, &["launch"]);
        }
        let ignored = reason.is_none();
        assert_eq!(interruptions(&stage), [(what, ignored)], "{what:?}");
        assert_eq!(disruption_reason(&stage), reason, "{what:?}");
        assert_eq!(stage.count("patch_node"), usize::from(!ignored), "{what:?}");
        assert_eq!(stage.count("terminate") > 0, undrained, "{what:?} {:?}", stage.commands);
        assert_eq!(stage.count("evict") > 0, !ignored && !undrained, "{what:?}");
    }
}

#[test]
fn more_urgent_interruption_replaces_a_less_urgent_one() {
    let mut stage = settled();
    let notice = |stage: &mut Stage, what| {
        stage.event(Event::interrupted("i-0".into(), what, stage.now));
        stage.run(6, &["launch"]);
    };
    notice(&mut stage, Interruption::Maintenance);
    assert_eq!(stage.count("terminate"), 0);
    notice(&mut stage, Interruption::Failed);
    assert!(stage.count("terminate") > 0, "{:?}", stage.commands);
    notice(&mut stage, Interruption::Maintenance);
    let received: Vec<Interruption> = interruptions(&stage).iter().map(|notice| notice.0).collect();
    assert_eq!(received, [Interruption::Maintenance, Interruption::Failed]);
}

#[test]
fn offering_of_a_reclaimed_instance_is_marked_unavailable_fleet_wide() {
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
        stage.event(Event::interrupted("i-0".into(), what, stage.now));
        let issued = stage.run(2, &["mark_unavailable", "launch"]);
        let unavailable = &stage.engine.state().holds;
        assert_eq!(unavailable.is_held(None, &offering, stage.now), held, "{what:?}");
        let reported = issued.iter().find_map(|issued| match &issued.command {
            Command::MarkUnavailable { what, .. } => Some(what.clone()),
            _ => None,
        });
        assert_eq!(reported, held.then(|| vec![offering.into()]), "{what:?}");
    }
}

#[test]
fn instances_are_disrupted_forty_minutes_before_their_capacity_block_ends() {
    for (kind, disrupted) in
        [(ReservationKind::CapacityBlock, true), (ReservationKind::Default, false)]
    {
        let mut stage = Stage::new(ManagementMode::Manage);
        let ends = stage.now + SignedDuration::from_mins(60);
        let reservation = Reservation { kind, ends: Some(ends), ..Reservation::new("cr-1", 3) };
        let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
        let catalog = Catalog::shipped().with_reservations(reserved);
        stage.event(Event::CatalogChanged(Arc::new(catalog)));
        stage.sync(vec![], vec![pending_pod("a")]);
        stage.run(10, &[]);
        assert!(stage.instances["i-0"].offering.reservation.is_some());
        stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
        stage.run(2, &[]);
        stage.apply(bound(pending_pod("a"), "node-0"));
        stage.run(19 * 60, &["launch"]);
        assert_eq!(disruption_reason(&stage), None, "{kind:?}");
        stage.run(50, &["launch"]);
        assert_eq!(disruption_reason(&stage), disrupted.then_some(Reason::Interrupted), "{kind:?}");
    }
}

/// The claims of the next launches in order, each of which fails as given.
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
fn definitely_failed_launch_is_retried_under_another_claim_id() {
    use FailureKind::{Conflict, Denied, Gone, Invalid, Throttled, Unknown};
    for kind in [Conflict, Denied, Gone, Invalid] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.sync(vec![], vec![pending_pod("a")]);
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
    // As long as an instance may exist, the token stays, whatever the later results are.
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    let ids = launches(&mut stage, &[Unknown, Throttled, Invalid]);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    stage.run(30, &[]);
    assert_eq!(stage.launches[0].claim.id, ids[0]);
}

/// Refuses the offerings of the next launch that `which` selects; returns the launched one.
fn refused(stage: &mut Stage, kind: RefusalKind, which: OfferingFilter) -> OfferingKey {
    let issued = stage.run(10, &["launch"]).remove(0);
    stage.refuse(&issued, which, kind);
    stage.run(20, &[]);
    let instance = stage.instances.values().next().expect("an instance");
    instance.offering.clone()
}

/// The number of pods, the offerings that EC2 refuses, and the offerings launched then. The pool
/// allows two types in two zones as spot and on-demand.
type RefusalCase = (usize, fn(&OfferingKey) -> bool, &'static [&'static str]);

const REFUSAL_CASES: [RefusalCase; 6] = [
    (1, |_| false, &["m5.large us-east-1a spot"]),
    (1, |offering| offering.instance_type.as_str() == "m5.large", &["m5.xlarge us-east-1a spot"]),
    (1, |offering| offering.zone.as_str() == "us-east-1a", &["m5.large us-east-1b spot"]),
    (
        1,
        |offering| offering.capacity_type == CapacityType::Spot,
        &["m5.large us-east-1a on-demand"],
    ),
    // Three pods share one node as long as the larger type is available.
    (
        3,
        |offering| offering.instance_type.as_str() == "m5.xlarge",
        &["m5.large us-east-1a spot"; 3],
    ),
    (1, |_| true, &[]),
];

#[test]
fn refused_offerings_are_replaced_and_requested_again_after_the_back_off() {
    for (number, (count, which, expect)) in REFUSAL_CASES.into_iter().enumerate() {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.change(|cluster| {
            cluster.scheduling.alternative_price_percent = 1_000;
            let all = &mut cluster.pools[0].requirements;
            all.add(INSTANCE_TYPE, Requirement::is_in(["m5.large", "m5.xlarge"]));
            all.add(ZONE, Requirement::is_in(["us-east-1a", "us-east-1b"]));
        });
        let names = ["a", "b", "c"];
        let pods = names[..count].iter().map(|name| pending_pod(name));
        stage.sync(vec![], pods.collect());
        let issued = stage.run(10, &["launch"]).remove(0);
        match offerings(&issued).iter().any(which) {
            true => stage.refuse(&issued, which, RefusalKind::InsufficientCapacity),
            false => stage.succeed(&issued),
        }
        stage.run(20, &[]);
        let launched = |stage: &Stage| -> Vec<String> {
            let all = stage.instances.values();
            all.map(|instance| instance.offering.to_string()).collect()
        };
        assert_eq!(launched(&stage), expect, "case {number}");
        let requested = stage.launches.iter().flat_map(|launch| &launch.offerings);
        assert_eq!(requested.filter(|offering| which(offering)).count(), 0, "case {number}");
        if expect.is_empty() {
            stage.run(180, &[]);
            assert_eq!(launched(&stage), ["m5.large us-east-1a spot"]);
        }
    }
}

#[test]
fn denied_spot_launch_makes_all_spot_offerings_unavailable() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    let is_spot = |offering: &OfferingKey| offering.capacity_type == CapacityType::Spot;
    let next = refused(&mut stage, RefusalKind::SpotDenied, is_spot);
    assert_eq!(next.capacity_type, CapacityType::OnDemand);
    let unavailable = &stage.engine.state().holds;
    let spot = OfferingKey {
        instance_type: "x".into(),
        zone: "y".into(),
        capacity_type: CapacityType::Spot,
        reservation: None,
    };
    assert!(unavailable.is_held(None, &spot, stage.now));
}

#[test]
fn refusals_beside_a_successful_launch_mark_offerings_unavailable() {
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
    let unavailable = &stage.engine.state().holds;
    let is_unavailable =
        |class: Option<&_>, zone| unavailable.is_held(class, &key(zone), stage.now);
    assert_eq!([is_unavailable(class.as_ref(), "a"), is_unavailable(None, "a")], [true, true]);
    // A subnet without addresses affects only its node class.
    assert_eq!([is_unavailable(class.as_ref(), "b"), is_unavailable(None, "b")], [true, false]);
    let later = stage.now + SignedDuration::from_mins(3);
    assert!(!unavailable.is_held(None, &key("a"), later));
}

#[test]
fn node_gets_the_labels_of_its_launched_offering() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let reservation = Reservation::new("cr-1", 3);
    let reserved = [("m6i.large".into(), "us-east-1a".into(), reservation)];
    let catalog = Catalog::shipped().with_reservations(reserved);
    stage.event(Event::CatalogChanged(Arc::new(catalog)));
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    let mut node = stage.node(0);
    // A label that the kubelet has set stays.
    let kubelet_label = ("node.kubernetes.io/instance-type", "its-own");
    node.labels.insert(kubelet_label.0.into(), kubelet_label.1.into());
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(2, &[]);
    let labels = &stage.only_node().labels;
    for (key, value) in [
        kubelet_label,
        ("kubernetes.io/arch", "amd64"),
        ("topology.kubernetes.io/zone", "us-east-1a"),
        ("karpenter.sh/capacity-type", "reserved"),
        ("karpenter.k8s.aws/instance-family", "m6i"),
        ("karpenter.k8s.aws/capacity-reservation-id", "cr-1"),
        ("karpenter.k8s.aws/capacity-reservation-type", "default"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    // Values that are ambiguous or do not exist get no label.
    assert_eq!(labels.get("karpenter.k8s.aws/instance-tenancy"), None);
    assert_eq!(labels.get("karpenter.k8s.aws/instance-gpu-name"), None);
}

/// A reservation of the instance type does not mean that the instance is in it.
#[test]
fn node_has_reservation_labels_only_if_its_instance_is_reserved() {
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
        stage.sync(vec![], vec![pending_pod("a")]);
        stage.run(10, &[]);
        stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
        stage.run(2, &[]);
        let labels = &stage.only_node().labels;
        let bought = if labelled { "reserved" } else { "spot" };
        let capacity_type = labels.get("karpenter.sh/capacity-type");
        assert_eq!(capacity_type.map(String::as_str), Some(bought));
        for key in OF_RESERVATIONS {
            assert_eq!(labels.contains_key(key), labelled, "{key}");
        }
    }
}

#[test]
fn launch_that_ends_in_a_conflict_is_planned_again_if_its_pool_changed() {
    for changes in [false, true] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.sync(vec![], vec![pending_pod("a")]);
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

/// A stage with one node that has a rebalance recommendation, and a pod of a ReplicaSet on it.
fn with_recommendation() -> Stage {
    with_interruption(Interruption::Rebalance, |_| {})
}

/// The same with this interruption, in a pool after `change`.
fn with_interruption(advice: Interruption, change: impl Fn(&mut Pool)) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| change(&mut cluster.pools[0]));
    let queue = "q".to_owned();
    let rebalance = match advice {
        Interruption::Rebalance => Rebalance::ReplaceFirst,
        _ => Rebalance::Ignore,
    };
    stage.change(|cluster| cluster.interruption = Some(Queue { queue, rebalance }));
    let mut pod = pending_pod("a");
    pod.owner = Some(Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() });
    stage.sync(vec![], vec![pod.clone()]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pod, "node-0"));
    stage.run(40, &[]);
    stage.commands.clear();
    stage.reports.clear();
    stage.event(Event::interrupted("i-0".into(), advice, stage.now));
    stage
}

#[test]
fn node_with_a_rebalance_recommendation_waits_for_a_ready_replacement() {
    assert_disrupted_once_replaced(Interruption::Rebalance);
}

/// Maintenance is announced days ahead, so the node waits under any rebalance setting.
#[test]
fn node_with_scheduled_maintenance_waits_for_a_ready_replacement() {
    assert_disrupted_once_replaced(Interruption::Maintenance);
}

fn assert_disrupted_once_replaced(advice: Interruption) {
    let mut stage = with_interruption(advice, |_| {});
    stage.run(120, &[]);
    assert_eq!(stage.commands, ["launch"], "the engine only launches a replacement");
    let mut node = stage.node(1);
    node.ready = false;
    stage.apply(WatchedObject::Node(Box::new(node.clone())));
    stage.run(30, &[]);
    assert_eq!(disruption_reason(&stage), None, "{:?}", stage.commands);
    let known = &stage.engine.state().objects.nodes[&node.name];
    let ready = outrigger::model::node::Node { ready: true, ..known.clone() };
    stage.apply(WatchedObject::Node(Box::new(ready)));
    stage.run(3, &[]);
    assert_eq!(disruption_reason(&stage), Some(Reason::Interrupted));
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
    assert_eq!(stage.launches.len(), 2, "one replacement");
}

/// The static pool has one more node for a while, which is not terminated as surplus.
#[test]
fn static_pool_node_with_a_rebalance_recommendation_is_replaced_once() {
    let mut stage = with_interruption(Interruption::Rebalance, |pool| pool.replicas = Some(1));
    stage.run(200, &[]);
    assert_eq!(stage.count("launch"), 1, "{:?}", stage.commands);
    assert_eq!(stage.count("terminate"), 0, "{:?}", stage.commands);
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(660, &[]);
    let disrupted = stage.reports.iter().filter_map(|report| match report {
        Report::Retire { claim, .. } => Some(claim.clone()),
        _ => None,
    });
    let disrupted: Vec<ClaimId> = disrupted.collect();
    assert_eq!(disrupted, [stage.launches[0].claim.id.clone()]);
    assert_eq!(stage.count("launch"), 1, "{:?}", stage.commands);
}

#[test]
fn node_with_a_rebalance_recommendation_waits_at_most_ten_minutes() {
    let mut stage = with_recommendation();
    stage.run(590, &["launch"]);
    assert_eq!(disruption_reason(&stage), None, "{:?}", stage.commands);
    stage.run(20, &["launch"]);
    assert_eq!(disruption_reason(&stage), Some(Reason::Interrupted));
    // A spot interruption does not wait for the replacement.
    let mut stage = with_recommendation();
    stage.run(10, &["launch"]);
    stage.event(Event::interrupted("i-0".into(), Interruption::Spot, stage.now));
    stage.run(2, &["launch"]);
    assert_eq!(disruption_reason(&stage), Some(Reason::Interrupted));
}
