//! Launches and registrations that time out, and terminations that fail at first.

use jiff::SignedDuration;
use outrigger::coordination::lease_annotations::ACCEPTED;
use outrigger::engine::command::{Command, CommandResult, FailureKind, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::instance::InstanceState;
use outrigger::model::node::Node;
use outrigger::model::pool::{Pool, Reason};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};

use super::{Stage, waiting_pod};

/// A stage with a pod that waits, whose pool gives launches and nodes this much time.
fn stage(change: impl FnOnce(&mut Pool)) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| change(&mut cluster.pools[0]));
    stage.sync(vec![], vec![waiting_pod("a")]);
    stage
}

fn answer(stage: &mut Stage, issued: &IssuedCommand, kind: FailureKind) {
    let text = "AuthFailure: not today".to_owned();
    stage.event(Event::Answered(issued.id, CommandResult::Failed { kind, text }));
}

fn timed_out(stage: &Stage) -> usize {
    let late = |report: &&Report| match report {
        Report::Retire { reason, .. } => *reason == Reason::TimedOut,
        _ => false,
    };
    stage.reports.iter().filter(late).count()
}

/// Lets time pass in which every launch fails for sure.
fn fail_launches(stage: &mut Stage, seconds: i64) {
    for _ in 0..seconds {
        for issued in stage.run(1, &["launch"]) {
            answer(stage, &issued, FailureKind::Denied);
        }
    }
}

#[test]
fn a_launch_that_does_not_succeed_in_its_time_is_planned_anew() {
    // Which time it has, if not the usual, and how long it goes on.
    for (timeout, seconds) in [(None, 300), (Some(60), 60)] {
        let mut stage = stage(|pool| {
            let timeout = timeout.map(SignedDuration::from_secs);
            pool.launch_timeout = timeout.unwrap_or(pool.launch_timeout);
        });
        // The first launch is asked for within ten seconds of the start.
        let first = (0..10).find_map(|_| stage.run(1, &["launch"]).pop());
        answer(&mut stage, &first.expect("a launch"), FailureKind::Denied);
        fail_launches(&mut stage, seconds - 3);
        assert_eq!(timed_out(&stage), 0, "{timeout:?}");
        assert!(stage.count("launch") > 1, "{timeout:?}");
        // Between two attempts there may be more than a minute.
        let over = (0..80).any(|_| {
            fail_launches(&mut stage, 1);
            timed_out(&stage) == 1
        });
        assert!(over, "{timeout:?}");
        let told = |report: &&Report| match report {
            Report::Failed { command, text, .. } => {
                *command == "launch" && text == "AuthFailure: not today"
            }
            _ => false,
        };
        assert!(stage.reports.iter().any(|report| told(&report)), "with its cause");
        stage.run(90, &[]);
        assert_eq!(stage.launches.len(), 1, "the pod is planned for again");
        assert_eq!(stage.count("terminate"), 0, "there was no instance");
    }
}

#[test]
fn a_node_has_its_time_to_register_from_its_launch_on() {
    for (timeout, seconds) in [(None, 900), (Some(120), 120)] {
        let mut stage = stage(|pool| {
            let timeout = timeout.map(SignedDuration::from_secs);
            pool.registration_timeout = timeout.unwrap_or(pool.registration_timeout);
        });
        let held = (0..10).find_map(|_| stage.run(1, &["launch"]).pop());
        let held = held.expect("a launch");
        // The answer takes its time.
        stage.run(60, &["launch"]);
        let launched = stage.answer(&held.command);
        stage.event(Event::Answered(held.id, launched));
        stage.run(seconds - 3, &["rewatch"]);
        assert_eq!(timed_out(&stage), 0, "{timeout:?}");
        assert_eq!(stage.count("rewatch"), 0, "{timeout:?}");
        stage.run(10, &["rewatch"]);
        stage.event(Event::Reset(ObjectKind::Node, vec![]));
        stage.run(10, &[]);
        assert_eq!(timed_out(&stage), 1, "{timeout:?}");
        assert_eq!(stage.count("terminate"), 1, "{timeout:?}");
    }
}

#[test]
fn a_node_that_has_registered_is_not_overdue() {
    let mut stage = stage(|_| {});
    stage.run(10, &[]);
    stage.run(14 * 60, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(super::bound(waiting_pod("a"), "node-0"));
    stage.run(3600, &[]);
    assert_eq!((timed_out(&stage), stage.count("terminate")), (0, 0));
    assert!(stage.seen_node().is_initialized());
}

/// A kubelet has come, and its Node cannot be registered: once the instance is gone nobody else
/// would remove the Node.
#[test]
fn a_node_that_cannot_be_registered_goes_after_its_instance() {
    let mut stage = stage(|_| {});
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    for _ in 0..100 {
        for issued in stage.run(10, &["patch_node"]) {
            answer(&mut stage, &issued, FailureKind::Denied);
        }
    }
    assert_eq!(timed_out(&stage), 1);
    let ends = stage.seen.iter().filter(|name| name.contains("te_node") || *name == "terminate");
    assert!(ends.eq(["terminate", "delete_node"]), "{:?}", stage.seen);
}

/// A stage whose one instance is to end, for want of a Node, and the call that ends it.
fn ending() -> (Stage, IssuedCommand) {
    let mut stage = stage(|_| {});
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    let pod = waiting_pod("a").key;
    stage.event(Event::Deleted(ObjectKind::Pod, pod));
    let mut held = stage.run(120, &["terminate"]);
    let ends = |issued: &IssuedCommand| matches!(issued.command, Command::Terminate { .. });
    held.retain(ends);
    let issued = held.pop().expect("the empty node is ended");
    (stage, issued)
}

#[test]
fn an_end_that_fails_is_asked_for_again() {
    for kind in [FailureKind::Throttled, FailureKind::Unknown, FailureKind::Denied] {
        let (mut stage, issued) = ending();
        let before = stage.count("terminate");
        answer(&mut stage, &issued, kind);
        stage.run(120, &[]);
        assert!(stage.count("terminate") > before, "{kind:?}");
        assert_eq!(stage.count("delete_node"), 1, "{kind:?}");
        assert!(stage.engine.state().ledger.claims.is_empty(), "{kind:?}");
    }
}

#[test]
fn a_node_stays_until_its_instance_is_gone() {
    let (mut stage, issued) = ending();
    let state = |stage: &mut Stage, state| {
        let instance = stage.instances.get_mut("i-0").expect("the instance");
        instance.state = state;
    };
    state(&mut stage, InstanceState::ShuttingDown);
    let answer = CommandResult::Terminating(InstanceState::ShuttingDown);
    stage.event(Event::Answered(issued.id, answer));
    stage.run(600, &[]);
    assert_eq!(stage.count("delete_node"), 0);
    assert_eq!(stage.engine.state().ledger.claims.len(), 1);
    state(&mut stage, InstanceState::Terminated);
    stage.run(30, &[]);
    assert_eq!(stage.count("delete_node"), 1);
    assert!(stage.engine.state().ledger.claims.is_empty());
}

/// A listing that lacks many at once counts for nothing before another says the same.
#[test]
fn instances_that_are_gone_at_once_are_all_made_anew() {
    const COUNT: usize = 6;
    let mut stage = Stage::of_static(COUNT);
    stage.run(60, &[]);
    stage.instances.clear();
    let nodes: Vec<Node> = stage.engine.state().objects.nodes.values().cloned().collect();
    for node in nodes {
        let silent = Node { ready: false, ..node };
        stage.apply(WatchedObject::Node(Box::new(silent)));
    }
    for _ in 0..90 {
        for issued in stage.run(2, &["terminate"]) {
            answer(&mut stage, &issued, FailureKind::Gone);
        }
    }
    // That they are gone is not said by the provider: they count as ends without a drain.
    assert_eq!((stage.count("delete_node"), stage.launches.len()), (1, 1 + COUNT));
    let held = stage.engine.status(stage.now).held_ends;
    stage.annotate(ACCEPTED, held.map(|terminations| terminations.id).as_deref());
    for _ in 0..60 {
        for issued in stage.run(2, &["terminate"]) {
            answer(&mut stage, &issued, FailureKind::Gone);
        }
    }
    assert_eq!((stage.count("delete_node"), stage.launches.len()), (COUNT, 2 * COUNT));
}
