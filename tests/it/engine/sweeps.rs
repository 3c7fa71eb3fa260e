//! Scheduled sweeps: nodes are disrupted only after their sweep has found them.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::node_class::{ClassCatalog, NodeClassSupply};
use outrigger::coordination::lease_annotations::SWEEPS;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::cron_schedule::CronSchedule;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::InstanceFacts;
use outrigger::model::pool::{BudgetNodes, Maintenance};
use outrigger::model::sweep::{SweepKind, SweepSchedule};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::model::window::Window;
use outrigger::provider::{CommandResult, FailureKind};

use super::drift::running_with;
use super::termination::restart;
use super::{Stage, bound, owned_pod};

pub(super) const MINUTE: i64 = 60;

/// Adds a schedule in UTC. The clock of a new stage shows 08:00, with nodes about 08:02.
pub(super) fn schedule(cluster: &mut Cluster, kind: SweepKind, expression: &str, catch_up: bool) {
    let schedule = CronSchedule::new(expression, "UTC").expect("a schedule");
    let jitter = SignedDuration::ZERO;
    cluster.sweeps.insert(kind, SweepSchedule { schedule, jitter, catch_up });
}

/// A cluster of this many nodes, each with one pod, and a drift sweep at 08:30.
pub(super) fn swept_at_half_past(nodes: usize) -> Stage {
    running_with(nodes, |cluster| schedule(cluster, SweepKind::Drift, "30 8 * * *", false))
}

/// Runs until the clock of the stage shows this time.
pub(super) fn run_until(stage: &mut Stage, time: &str) {
    let until: Timestamp = format!("2027-01-{time}:00Z").parse().expect("a time");
    let seconds = until.duration_since(stage.now).as_secs();
    assert!(seconds >= 0, "{} is after {until}", stage.now);
    stage.run(seconds, &[]);
}

/// Changes the node class of the pool, so that all its nodes drift.
pub(super) fn change_class(stage: &mut Stage, class: &str) {
    stage.change(|cluster| cluster.pools[0].node_class = Some(class.into()));
}

pub(super) fn disrupted(stage: &Stage) -> usize {
    let retired = |report: &&Report| matches!(report, Report::Retire { .. });
    stage.reports.iter().filter(retired).count()
}

fn sweeps(stage: &Stage) -> Vec<(SweepKind, String, usize, usize)> {
    let swept = stage.reports.iter().filter_map(|report| match report {
        Report::Swept { sweep, at, result } => {
            Some((*sweep, at.to_string(), result.disrupted, result.blocked))
        }
        _ => None,
    });
    swept.collect()
}

#[test]
fn drifted_nodes_wait_for_their_sweep() {
    let mut stage = swept_at_half_past(2);
    change_class(&mut stage, "other");
    run_until(&mut stage, "15T08:29");
    assert_eq!((disrupted(&stage), sweeps(&stage)), (0, vec![]));
    run_until(&mut stage, "15T08:31");
    assert_eq!(disrupted(&stage), 2);
    let at = "2027-01-15T08:30:00Z".to_owned();
    assert_eq!(sweeps(&stage), [(SweepKind::Drift, at, 2, 0)]);
    let lease = stage.lease.as_ref().expect("a Lease");
    assert!(lease.annotations[SWEEPS].starts_with("v1;drift 1800001800 "), "{lease:?}");
}

#[test]
fn node_that_drifts_after_the_sweep_waits_for_the_next_one() {
    let mut stage = swept_at_half_past(1);
    run_until(&mut stage, "15T08:31");
    change_class(&mut stage, "other");
    run_until(&mut stage, "16T08:29");
    assert_eq!(disrupted(&stage), 0);
    run_until(&mut stage, "16T08:31");
    assert_eq!(disrupted(&stage), 1);
}

/// A cluster whose nodes have drifted, with a drift sweep at 08:30 and a maintenance window from
/// 09:00, which has been swept.
fn swept_before_its_window() -> Stage {
    let mut stage = running_with(2, |cluster| {
        schedule(cluster, SweepKind::Drift, "30 8 * * *", false);
        let during = Window::new("0 9 * * *", SignedDuration::from_hours(1), "UTC");
        let during = during.expect("a window");
        cluster.disruption.windows.push(Maintenance { allows: true, reasons: vec![], during });
    });
    change_class(&mut stage, "other");
    run_until(&mut stage, "15T08:58");
    assert_eq!(disrupted(&stage), 0);
    let at = "2027-01-15T08:30:00Z".to_owned();
    assert_eq!(sweeps(&stage), [(SweepKind::Drift, at, 0, 2)]);
    stage
}

#[test]
fn found_nodes_are_disrupted_when_their_window_opens() {
    let mut stage = swept_before_its_window();
    run_until(&mut stage, "15T09:01");
    assert_eq!(disrupted(&stage), 2);
}

#[test]
fn found_nodes_are_remembered_across_a_restart() {
    let mut stage = swept_before_its_window();
    restart(&mut stage);
    run_until(&mut stage, "15T09:01");
    assert_eq!(disrupted(&stage), 2);
}

/// While the node class is not ready, the drift of the node is unknown.
#[test]
fn found_node_is_remembered_while_its_node_class_is_not_ready() {
    let mut stage = running_with(1, |cluster| {
        schedule(cluster, SweepKind::Drift, "30 8 * * *", false);
        cluster.pools[0].node_class = Some("x".into());
        let during = Window::new("0 9 * * *", SignedDuration::from_hours(1), "UTC");
        let during = during.expect("a window");
        cluster.disruption.windows.push(Maintenance { allows: true, reasons: vec![], during });
    });
    let instance = stage.instances.get_mut("i-0").expect("the instance exists");
    let facts = InstanceFacts { image: Some("ami-0".to_owned()), ..InstanceFacts::default() };
    instance.facts = Some(Box::new(facts));
    let instance_type = instance.offering.instance_type.clone();
    let report = |stage: &mut Stage| {
        let supply = Ok(ClassCatalog {
            catalog: stage.engine.state().catalog.clone(),
            images: [(instance_type.clone(), "ami-1".to_owned())].into(),
            found: Some(Arc::default()),
        });
        let all = [("x".into(), NodeClassSupply { supply })].into();
        stage.event(Event::ClassesChanged(Arc::new(all)));
    };
    report(&mut stage);
    run_until(&mut stage, "15T08:31");
    assert_eq!(sweeps(&stage).iter().map(|sweep| sweep.3).collect::<Vec<_>>(), [1]);
    stage.report_class(Err("SubnetsNotFound: none"));
    run_until(&mut stage, "15T08:50");
    report(&mut stage);
    run_until(&mut stage, "15T09:01");
    assert_eq!(disrupted(&stage), 1);
}

#[test]
fn node_that_stops_drifting_is_no_longer_found() {
    let mut stage = swept_before_its_window();
    let class = stage.engine.state().cluster.pools[0].node_class.clone();
    assert!(class.is_some());
    stage.change(|cluster| cluster.pools[0].node_class = None);
    stage.run(10, &[]);
    change_class(&mut stage, "other");
    run_until(&mut stage, "15T09:30");
    assert_eq!(disrupted(&stage), 0);
}

#[test]
fn sweep_missed_while_no_host_led_runs_at_the_start_only_with_catch_up() {
    for (catch_up, expect) in [(false, 0), (true, 1)] {
        let mut stage = running_with(1, |cluster| {
            schedule(cluster, SweepKind::Drift, "30 8,9 * * *", catch_up);
        });
        run_until(&mut stage, "15T08:31");
        assert_eq!(sweeps(&stage).len(), 1);
        change_class(&mut stage, "other");
        stage.run(MINUTE, &[]);
        stage.now += SignedDuration::from_hours(2);
        restart(&mut stage);
        stage.run(2 * MINUTE, &[]);
        assert_eq!(disrupted(&stage), expect, "catch_up = {catch_up}");
    }
}

#[test]
fn expired_nodes_wait_for_their_sweep_unless_they_are_beyond_their_maximum_age() {
    for (hard, before, after) in [(None, 0, 1), (Some(SignedDuration::from_mins(40)), 1, 1)] {
        let mut stage = running_with(0, |cluster| {
            schedule(cluster, SweepKind::Expiry, "0 10 * * *", false);
        });
        stage.change(|cluster| {
            cluster.pools[0].expire_after = Some(SignedDuration::from_mins(30));
            cluster.pools[0].expire_hard_after = hard;
        });
        let pod = owned_pod("a");
        stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
        stage.run(10, &[]);
        stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
        stage.run(3, &[]);
        stage.apply(bound(pod, "node-0"));
        stage.run(MINUTE, &[]);
        stage.reports.clear();
        run_until(&mut stage, "15T09:59");
        assert_eq!(disrupted(&stage), before, "{hard:?}");
        run_until(&mut stage, "15T10:01");
        assert!(disrupted(&stage) >= after, "{hard:?}");
    }
}

#[test]
fn empty_nodes_never_wait_for_a_sweep() {
    let mut stage = running_with(1, |cluster| {
        for kind in SweepKind::ALL {
            schedule(cluster, kind, "0 20 * * *", false);
        }
    });
    stage.event(Event::Deleted(ObjectKind::Pod, ObjectKey::new("default", "p0")));
    stage.run(2 * MINUTE, &[]);
    assert_eq!(disrupted(&stage), 1);
}

/// Advances the clock like [`Stage::run`]. Returns the number of passes.
fn passes(stage: &mut Stage, seconds: i64, hold: &[&str]) -> usize {
    let end = stage.now + SignedDuration::from_secs(seconds);
    for count in 0.. {
        stage.answer_all(hold, &mut Vec::new());
        stage.reports.extend(std::iter::from_fn(|| stage.engine.next_report()));
        match stage.engine.poll_timeout() {
            Some((at, _)) if at <= end => stage.wake(at.max(stage.now)),
            _ => return count,
        }
    }
    0
}

#[test]
fn no_sweep_runs_while_the_lease_cannot_be_read_and_the_engine_stays_idle() {
    let mut stage = swept_at_half_past(1);
    change_class(&mut stage, "other");
    run_until(&mut stage, "15T08:20");
    let count = passes(&mut stage, 30 * MINUTE, &["read_lease"]);
    assert_eq!((disrupted(&stage), sweeps(&stage)), (0, vec![]));
    assert!(count < 150, "{count} passes in 30 minutes");
}

#[test]
fn record_that_the_lease_refuses_is_repeated_at_growing_intervals() {
    let mut stage = swept_at_half_past(1);
    change_class(&mut stage, "other");
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(0));
    run_until(&mut stage, "15T08:29");
    let mut attempts = 0;
    for _ in 0..10 * MINUTE {
        for issued in stage.run(1, &["patch_lease"]) {
            attempts += 1;
            let (kind, text) = (FailureKind::Denied, "no".to_owned());
            stage.event(Event::Answered(issued.id, CommandResult::Failed { kind, text }));
        }
    }
    assert!((2..=25).contains(&attempts), "{attempts} attempts in ten minutes");
}

/// Two nodes whose pods fit on one of them since one pod became small.
pub(super) fn underutilized(expression: &str) -> Stage {
    let mut stage = running_with(2, |cluster| {
        schedule(cluster, SweepKind::Consolidation, expression, false);
    });
    stage.event(Event::Deleted(ObjectKind::Pod, ObjectKey::new("default", "p1")));
    stage.apply(bound(owned_pod("small"), "node-1"));
    stage
}

#[test]
fn underutilized_nodes_wait_for_their_sweep_and_it_ends() {
    let mut stage = underutilized("30 8 * * *");
    run_until(&mut stage, "15T08:29");
    assert_eq!(disrupted(&stage), 0);
    run_until(&mut stage, "15T08:31");
    assert_eq!(disrupted(&stage), 1);
    run_until(&mut stage, "15T12:31");
    let at = "2027-01-15T08:30:00Z".to_owned();
    assert_eq!(sweeps(&stage), [(SweepKind::Consolidation, at, 1, 0)]);
    assert!(!stage.engine.state().sweeps.permits(
        SweepKind::Consolidation,
        None,
        &"general".into()
    ));
}

#[test]
fn sweep_of_consolidation_ends_although_a_budget_keeps_its_node() {
    let mut stage = underutilized("30 8 * * *");
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(0));
    run_until(&mut stage, "15T12:40");
    assert_eq!((disrupted(&stage), sweeps(&stage).len()), (0, 1));
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(1));
    run_until(&mut stage, "16T08:29");
    assert_eq!(disrupted(&stage), 0, "it waits for the next sweep");
}

#[test]
fn sweeps_of_an_empty_cluster_end_at_once() {
    let mut stage = running_with(0, |cluster| {
        for kind in SweepKind::ALL {
            schedule(cluster, kind, "30 8 * * *", false);
        }
    });
    let lease = stage.lease.as_ref().expect("a Lease");
    assert!(lease.annotations.contains_key(SWEEPS), "the first schedules are recorded");
    run_until(&mut stage, "15T08:31");
    assert_eq!(sweeps(&stage).len(), SweepKind::ALL.len());
    assert!(!stage.engine.state().sweeps.permits(
        SweepKind::Consolidation,
        None,
        &"general".into()
    ));
    assert_eq!(stage.count("patch_lease"), 1, "one record of all sweeps");
}

#[test]
fn sweep_that_could_not_run_in_time_is_skipped() {
    let mut stage = swept_at_half_past(1);
    change_class(&mut stage, "other");
    run_until(&mut stage, "15T08:20");
    stage.run(30 * MINUTE, &["read_lease"]);
    stage.run(10 * MINUTE, &[]);
    assert_eq!((disrupted(&stage), sweeps(&stage)), (0, vec![]));
    let skipped = |report: &&Report| matches!(report, Report::SweepSkipped { .. });
    assert_eq!(stage.reports.iter().filter(skipped).count(), 1);
}

#[test]
fn observed_cluster_reports_its_sweeps_and_writes_nothing() {
    let mut stage = swept_at_half_past(1);
    stage.change(|cluster| cluster.mode = ManagementMode::Observe);
    change_class(&mut stage, "other");
    stage.commands.clear();
    run_until(&mut stage, "15T08:31");
    assert_eq!(sweeps(&stage).len(), 1);
    assert_eq!(disrupted(&stage), 1);
    assert_eq!(stage.commands, Vec::<String>::new());
}
