//! Values that only metrics show.

use jiff::SignedDuration;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::claim::ClaimPhase;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::instance::CapacityType;
use outrigger::model::node::Node;
use outrigger::model::pod::Pod;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, FailureKind};

use super::{Stage, bound, owned_pod};

/// The numbers that count for the budgets of the only pool.
fn counted(stage: &Stage) -> Option<(usize, usize)> {
    stage.engine.measures().budget_counts.get("general").copied()
}

/// A cluster whose watches are in sync, and a pod that was just made.
fn waits() -> (Stage, Pod) {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![]);
    stage.run(6, &[]);
    let pod = Pod { created: Some(stage.now), ..owned_pod("a") };
    stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
    stage.wake(stage.now);
    (stage, pod)
}

#[test]
fn pods_are_undecided_until_they_are_planned_and_unschedulable_if_nothing_is_for_them() {
    let (mut stage, pod) = waits();
    let now = stage.now;
    assert_eq!(stage.engine.measures().unplanned, [(&pod.key, now)]);
    stage.run(3, &[]);
    let measures = stage.engine.measures();
    assert_eq!((measures.unplanned.len(), measures.unschedulable), (0, 0));
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 10_000_000;
    stage.apply(WatchedObject::Pod(Box::new(large.clone())));
    stage.run(30, &[]);
    assert_eq!(stage.engine.measures().unschedulable, 1);
    stage.event(Event::Deleted(ObjectKind::Pod, large.key));
    stage.run(30, &[]);
    assert_eq!(stage.engine.measures().unschedulable, 0);
}

#[test]
fn a_pod_is_bound_once_and_a_node_counts_until_it_has_drained() {
    let (mut stage, pod) = waits();
    stage.run(3, &[]);
    let planned = stage.reports.iter().find_map(|own| match own {
        Report::ClaimPlanned { reason, relaxed, .. } => Some((*reason, *relaxed)),
        _ => None,
    });
    assert_eq!(planned, Some(("provisioned", false)));
    let node = stage.node(0);
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(2, &[]);
    for _ in 0..2 {
        stage.apply(bound(pod.clone(), "node-0"));
        stage.run(2, &[]);
    }
    let times = stage.reports.iter().filter_map(|own| match own {
        Report::PodBound(time) => Some(*time),
        _ => None,
    });
    assert_eq!(times.collect::<Vec<_>>(), [SignedDuration::from_secs(5)]);
    assert_eq!(counted(&stage), Some((1, 0)));
    let unready = Node { ready: false, ..stage.only_node().clone() };
    let ready = Node { ready: true, ..unready.clone() };
    stage.apply(WatchedObject::Node(Box::new(unready)));
    stage.run(5, &[]);
    assert_eq!(counted(&stage), Some((1, 1)));
    stage.apply(WatchedObject::Node(Box::new(ready)));
    stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    stage.run(120, &[]);
    assert_eq!(counted(&stage), None, "there is no node anymore");
    let ends = stage.reports.iter().filter_map(|own| match own {
        Report::ClaimPhase { phase: ClaimPhase::Terminating, drained, offering, .. } => {
            Some((*drained, offering.is_some()))
        }
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [(true, true)]);
    let ended = stage.reports.iter().find_map(|own| match own {
        Report::Ended { took, ending, .. } => Some((*took, *ending)),
        _ => None,
    });
    let (took, ending) = ended.expect("it has ended");
    let ending = ending.expect("its instance was to be terminated");
    assert!(ending < took, "{ending:#} of {took:#}");
    let of = stage.reports.iter().find_map(|own| match own {
        Report::Retire { capacity_type, .. } => Some(*capacity_type),
        _ => None,
    });
    assert!(matches!(of, Some(Some(CapacityType::Spot | CapacityType::OnDemand))), "{of:?}");
}

#[test]
fn drain_is_counted_once_although_the_termination_is_retried() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![owned_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(owned_pod("a"), "node-0"));
    stage.run(5, &[]);
    stage.event(Event::Deleted(ObjectKind::Pod, owned_pod("a").key));
    for _ in 0..60 {
        for issued in stage.run(10, &["terminate"]) {
            let (kind, text) = (FailureKind::Throttled, "slow down".to_owned());
            let answer = CommandResult::Failed { kind, text };
            stage.event(Event::Answered(issued.id, answer));
        }
    }
    let ends: Vec<bool> = stage
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::ClaimPhase { phase: ClaimPhase::Terminating, drained, .. } => Some(*drained),
            _ => None,
        })
        .collect();
    assert!(ends.len() > 1, "the node is drained again before each retry");
    assert_eq!(ends.iter().filter(|drained| **drained).count(), 1, "{ends:?}");
}
