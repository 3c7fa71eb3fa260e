//! Launches and registrations that time out, and terminations that fail at first.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use outrigger::coordination::lease_annotations::ACCEPTED;
use outrigger::engine::command::{Command, CommandLane, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::instance::InstanceState;
use outrigger::model::node::Node;
use outrigger::model::pool::{Pool, Reason};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, FailureKind};

use super::{Stage, pending_pod};

/// A stage with a pending pod, and a pool after `change`.
fn stage(change: impl FnOnce(&mut Pool)) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| change(&mut cluster.pools[0]));
    stage.sync(vec![], vec![pending_pod("a")]);
    stage
}

fn answer(stage: &mut Stage, issued: &IssuedCommand, kind: FailureKind) {
    let text = "AuthFailure: not today".to_owned();
    stage.event(Event::Answered(issued.id, CommandResult::Failed { kind, text }));
}

fn timed_out(stage: &Stage) -> usize {
    let is_timeout = |report: &&Report| match report {
        Report::Retire { reason, .. } => *reason == Reason::TimedOut,
        _ => false,
    };
    stage.reports.iter().filter(is_timeout).count()
}

/// Advances the clock while every launch fails definitely.
fn fail_launches(stage: &mut Stage, seconds: i64) {
    for _ in 0..seconds {
        for issued in stage.run(1, &["launch"]) {
            answer(stage, &issued, FailureKind::Denied);
        }
    }
}

/// A rate limit is no failed launch: the claim keeps its ID, and its timeout does not end.
#[test]
fn launch_that_waits_for_a_rate_limit_keeps_its_claim() {
    for kind in [FailureKind::Throttled, FailureKind::Busy] {
        let mut stage = stage(|_| {});
        let mut ids = BTreeSet::new();
        for _ in 0..1200 {
            for issued in stage.run(1, &["launch"]) {
                let Command::Launch(launch) = &issued.command else {
                    panic!("{issued:?}");
                };
                ids.insert(launch.claim.id.clone());
                answer(&mut stage, &issued, kind);
            }
        }
        assert_eq!((ids.len(), timed_out(&stage)), (1, 0), "{kind:?}");
        let attempts = stage.count("launch");
        assert!((200..350).contains(&attempts), "{kind:?}: {attempts} attempts");
        // A local limit is no failure, so nothing is reported.
        let failed = |report: &&Report| matches!(report, Report::Failed { .. });
        stage.reports.extend(std::iter::from_fn(|| stage.engine.next_report()));
        let reported = stage.reports.iter().filter(failed).count();
        assert_eq!(reported, if kind == FailureKind::Busy { 0 } else { attempts });
        // The next attempt is for the pool as it is by then.
        stage.change(|cluster| cluster.pools[0].labels = [("new".into(), "label".into())].into());
        stage.run(60, &[]);
        let [launch] = &stage.launches[..] else {
            panic!("{:?}", stage.launches);
        };
        assert!(ids.contains(&launch.claim.id) && launch.labels.contains_key("new"));
    }
}

/// The runtime takes launches as fast as EC2 permits. The time in the queue does not count.
#[test]
fn time_in_the_queue_does_not_count_towards_the_launch_timeout() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].replicas = Some(3));
    stage.sync(vec![], vec![]);
    let no_launches = |lane| lane != CommandLane::Launch;
    for _ in 0..1800 {
        stage.now += SignedDuration::from_secs(1);
        let now = stage.now;
        stage.wake(now);
        while let Some(issued) = stage.engine.next_command_in(no_launches) {
            let answer = stage.answer(&issued.command);
            stage.event(Event::Answered(issued.id, answer));
        }
        stage.reports.extend(std::iter::from_fn(|| stage.engine.next_report()));
    }
    assert_eq!(timed_out(&stage), 0);
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 3, "{:?}", stage.launches);
    // A command that was never taken had no effect.
    let unknown = |report: &&Report| match report {
        Report::Failed { kind, .. } => *kind == FailureKind::Unknown,
        _ => false,
    };
    assert_eq!(stage.reports.iter().filter(unknown).count(), 0);
}

#[test]
fn launch_that_times_out_is_planned_again() {
    // The launch timeout, unless the default, and its seconds.
    for (timeout, seconds) in [(None, 300), (Some(60), 60)] {
        let mut stage = stage(|pool| {
            let timeout = timeout.map(SignedDuration::from_secs);
            pool.launch_timeout = timeout.unwrap_or(pool.launch_timeout);
        });
        // The first launch is issued within ten seconds of the start.
        let first = (0..10).find_map(|_| stage.run(1, &["launch"]).pop());
        answer(&mut stage, &first.expect("a launch"), FailureKind::Denied);
        fail_launches(&mut stage, seconds - 3);
        assert_eq!(timed_out(&stage), 0, "{timeout:?}");
        assert!(stage.count("launch") > 1, "{timeout:?}");
        // Between two attempts there may be more than a minute.
        let timed_out_in_time = (0..80).any(|_| {
            fail_launches(&mut stage, 1);
            timed_out(&stage) == 1
        });
        assert!(timed_out_in_time, "{timeout:?}");
        let is_cause = |report: &&Report| match report {
            Report::Failed { command, text, .. } => {
                *command == "launch" && text == "AuthFailure: not today"
            }
            _ => false,
        };
        assert!(
            stage.reports.iter().any(|report| is_cause(&report)),
            "the failure is reported with its cause"
        );
        stage.run(90, &[]);
        assert_eq!(stage.launches.len(), 1, "the pod is planned for again");
        assert_eq!(stage.count("terminate"), 0, "no instance was launched");
    }
}

#[test]
fn registration_timeout_counts_from_the_launch() {
    for (timeout, seconds) in [(None, 900), (Some(120), 120)] {
        let mut stage = stage(|pool| {
            let timeout = timeout.map(SignedDuration::from_secs);
            pool.registration_timeout = timeout.unwrap_or(pool.registration_timeout);
        });
        let held = (0..10).find_map(|_| stage.run(1, &["launch"]).pop());
        let held = held.expect("a launch");
        // The result of the launch arrives a minute later.
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
fn registered_node_does_not_time_out() {
    let mut stage = stage(|_| {});
    stage.run(10, &[]);
    stage.run(14 * 60, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(super::bound(pending_pod("a"), "node-0"));
    stage.run(3600, &[]);
    assert_eq!((timed_out(&stage), stage.count("terminate")), (0, 0));
    assert!(stage.only_node().is_initialized());
}

/// A kubelet has created its Node, which cannot be registered: after the termination of the
/// instance no other component would delete the Node.
#[test]
fn node_that_cannot_be_registered_is_deleted_after_its_instance() {
    let mut stage = stage(|_| {});
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    for _ in 0..100 {
        for issued in stage.run(10, &["patch_node"]) {
            answer(&mut stage, &issued, FailureKind::Denied);
        }
    }
    assert_eq!(timed_out(&stage), 1);
    let deletions =
        stage.commands.iter().filter(|name| name.contains("te_node") || *name == "terminate");
    assert!(deletions.eq(["terminate", "delete_node"]), "{:?}", stage.commands);
}

/// A stage with one empty node, and the command that terminates its instance.
fn terminating() -> (Stage, IssuedCommand) {
    let mut stage = stage(|_| {});
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    let pod = pending_pod("a").key;
    stage.event(Event::Deleted(ObjectKind::Pod, pod));
    let mut held = stage.run(120, &["terminate"]);
    let is_termination =
        |issued: &IssuedCommand| matches!(issued.command, Command::Terminate { .. });
    held.retain(is_termination);
    let issued = held.pop().expect("the empty node is terminated");
    (stage, issued)
}

#[test]
fn failed_termination_is_retried() {
    for kind in [FailureKind::Throttled, FailureKind::Unknown, FailureKind::Denied] {
        let (mut stage, issued) = terminating();
        let before = stage.count("terminate");
        answer(&mut stage, &issued, kind);
        stage.run(120, &[]);
        assert!(stage.count("terminate") > before, "{kind:?}");
        assert_eq!(stage.count("delete_node"), 1, "{kind:?}");
        assert!(stage.engine.state().ledger.claims.is_empty(), "{kind:?}");
    }
}

#[test]
fn node_is_deleted_only_after_its_instance_is_terminated() {
    let (mut stage, issued) = terminating();
    let state = |stage: &mut Stage, state| {
        let instance = stage.instances.get_mut("i-0").expect("the instance exists");
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

/// A listing that suddenly lacks many instances counts only after a second equal listing.
#[test]
fn instances_that_disappear_together_are_all_replaced_once_accepted() {
    const COUNT: usize = 6;
    let mut stage = Stage::with_static_pool(COUNT);
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
    // No listing shows a termination by the provider: they count as terminations without a drain.
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

/// EC2 may answer that an instance does not exist for some seconds after its launch.
#[test]
fn young_instance_that_the_provider_does_not_know_is_terminated_again() {
    for (age, is_believed) in [(5, false), (59, false), (61, true)] {
        let (mut stage, issued) = terminating();
        let id = stage.engine.state().ledger.claims.keys().next().expect("a claim").clone();
        let mut held = Vec::new();
        while held.is_empty() {
            held = stage.run(1, &["terminate", "list_instances"]);
            held.retain(|issued| issued.command.name() == "list_instances");
        }
        // The listing shows when the instance was launched.
        let launched = stage.now - SignedDuration::from_secs(age);
        stage.instances.get_mut("i-0").expect("the instance").launched = launched;
        let listed = stage.answer(&held[0].command);
        stage.event(Event::Answered(held[0].id, listed));
        if is_believed {
            stage.instances.remove("i-0");
        }
        answer(&mut stage, &issued, FailureKind::Gone);
        let claims = &stage.engine.state().ledger.claims;
        let ends = claims.get(&id).is_none_or(|claim| claim.instance_is_gone());
        assert_eq!(ends, is_believed, "{age} s");
        let before = stage.count("terminate");
        stage.run(120, &[]);
        assert_eq!(stage.count("terminate") > before, !is_believed, "{age} s");
        assert!(stage.engine.state().ledger.claims.is_empty(), "{age} s");
    }
}
