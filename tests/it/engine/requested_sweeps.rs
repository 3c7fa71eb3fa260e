//! Sweeps that a user requests, dry runs, and sweeps of unhealthy nodes and of Nodes without an
//! instance.

use jiff::SignedDuration;
use outrigger::engine::event::Event;
use outrigger::engine::sweep_result::{SweepOutcome, SweptNode, count_outcomes};
use outrigger::model::cluster::ManagementMode;
use outrigger::model::pool::BudgetNodes;
use outrigger::model::sweep::{SweepKind, SweepRequest};

use super::Stage;
use super::drift::running_with;
use super::garbage_collection::lost_node;
use super::sweeps::{MINUTE, change_class, disrupted, run_until, schedule, underutilized};

fn request(stage: &Stage, kind: SweepKind, pool: Option<&str>) -> SweepRequest {
    let until = stage.now + SignedDuration::from_mins(1);
    SweepRequest { id: 7, kind, pool: pool.map(Into::into), until }
}

/// Requests a sweep, and returns what it found within ten seconds.
fn sweep_now(stage: &mut Stage, kind: SweepKind, pool: Option<&str>) -> Option<Vec<SweptNode>> {
    let request = request(stage, kind, pool);
    stage.event(Event::SweepRequested(request.clone()));
    stage.run(10, &[]);
    stage.engine.sweep_run(kind, request.id).map(|run| run.nodes.clone())
}

/// Numbers of disrupted, blocked and observed nodes.
fn counts(nodes: &[SweptNode]) -> (usize, usize, usize) {
    let result = count_outcomes(nodes);
    (result.disrupted, result.blocked, result.observed)
}

/// A cluster of drifted nodes that wait for the sweep of the evening.
fn drifted(nodes: usize) -> Stage {
    let mut stage =
        running_with(nodes, |cluster| schedule(cluster, SweepKind::Drift, "0 20 * * *", false));
    change_class(&mut stage, "other");
    stage.run(MINUTE, &[]);
    assert_eq!(disrupted(&stage), 0);
    stage.commands.clear();
    stage
}

#[test]
fn requested_sweep_disrupts_the_due_nodes_of_its_pool() {
    let mut stage = drifted(2);
    let found = sweep_now(&mut stage, SweepKind::Drift, Some("other")).expect("a result");
    assert_eq!((counts(&found), disrupted(&stage)), ((0, 0, 0), 0));
    run_until(&mut stage, "15T08:30");
    assert_eq!(disrupted(&stage), 0, "nodes of other pools wait for the schedule");
    let found = sweep_now(&mut stage, SweepKind::Drift, Some("general")).expect("a result");
    assert_eq!((counts(&found), disrupted(&stage)), ((2, 0, 0), 2));
}

#[test]
fn dry_run_shows_the_due_nodes_and_changes_nothing() {
    let stage = drifted(2);
    let request = request(&stage, SweepKind::Drift, None);
    let found = stage.engine.preview_sweep(&request, stage.now);
    assert_eq!(counts(&found), (0, 0, 2));
    let mut stage = stage;
    run_until(&mut stage, "15T19:59");
    assert_eq!((disrupted(&stage), stage.count("patch_lease")), (0, 0), "{:?}", stage.commands);
    run_until(&mut stage, "15T20:01");
    assert_eq!(disrupted(&stage), 2);
}

#[test]
fn node_that_a_requested_sweep_found_and_a_budget_keeps_is_disrupted_later() {
    let mut stage = drifted(2);
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(1));
    let found = sweep_now(&mut stage, SweepKind::Drift, None).expect("a result");
    assert_eq!((counts(&found), disrupted(&stage)), ((1, 1, 0), 1));
    let blocked = found.iter().find_map(|found| match &found.outcome {
        SweepOutcome::Blocked(verdict) => Some(verdict.code()),
        _ => None,
    });
    assert_eq!(blocked, Some("budget"));
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(2));
    stage.run(MINUTE, &[]);
    assert_eq!(disrupted(&stage), 2);
}

#[test]
fn requested_sweep_without_a_schedule_shows_nodes_that_are_being_disrupted() {
    let mut stage = running_with(2, |_| {});
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(1));
    change_class(&mut stage, "other");
    stage.run(10, &["evict"]);
    assert_eq!(disrupted(&stage), 1);
    let request = request(&stage, SweepKind::Drift, None);
    stage.event(Event::SweepRequested(request));
    stage.run(10, &["evict"]);
    let found = &stage.engine.sweep_run(SweepKind::Drift, 7).expect("a result").nodes;
    assert_eq!((counts(found), disrupted(&stage)), ((1, 1, 0), 1));
}

#[test]
fn requested_sweep_of_consolidation_ends_with_its_result() {
    let mut stage = underutilized("0 20 * * *");
    stage.run(20 * MINUTE, &[]);
    assert_eq!(disrupted(&stage), 0);
    let none = sweep_now(&mut stage, SweepKind::Consolidation, Some("other")).expect("a result");
    assert_eq!((counts(&none), disrupted(&stage)), ((0, 0, 0), 0));
    let request = request(&stage, SweepKind::Consolidation, None);
    let found = stage.engine.preview_sweep(&request, stage.now);
    assert_eq!(counts(&found), (0, 0, 1));
    let found = sweep_now(&mut stage, SweepKind::Consolidation, None).expect("a result");
    assert_eq!((counts(&found), disrupted(&stage)), ((1, 0, 0), 1));
    stage.run(5 * 60 * MINUTE, &[]);
    let sweeps = &stage.engine.state().sweeps;
    assert!(!sweeps.permits(SweepKind::Consolidation, None, &"general".into()));
}

#[test]
fn requested_sweep_that_cannot_start_in_time_is_dropped() {
    let mut stage = drifted(1);
    stage.event(Event::WatchLost(outrigger::model::watched_object::ObjectKind::Pdb, "x".into()));
    assert_eq!(sweep_now(&mut stage, SweepKind::Drift, None), None);
    stage.run(2 * MINUTE, &[]);
    let pdbs = outrigger::model::watched_object::ObjectKind::Pdb;
    stage.event(Event::Reset(pdbs, Vec::new()));
    stage.run(10 * MINUTE, &[]);
    assert_eq!(disrupted(&stage), 0);
}

/// The caller of the first request still waits for its result.
#[test]
fn second_request_does_not_replace_one_that_has_no_result() {
    let kind = SweepKind::Drift;
    let mut stage = drifted(1);
    let first = request(&stage, kind, None);
    let second = SweepRequest { id: 8, pool: Some("other".into()), ..first.clone() };
    assert!(!stage.engine.state().sweeps.conflicts(&second, stage.now));
    let pdbs = outrigger::model::watched_object::ObjectKind::Pdb;
    stage.event(Event::WatchLost(pdbs, "x".into()));
    stage.event(Event::SweepRequested(first.clone()));
    stage.run(10, &[]);
    assert!(stage.engine.state().sweeps.conflicts(&second, stage.now));
    stage.event(Event::SweepRequested(second.clone()));
    stage.event(Event::Reset(pdbs, Vec::new()));
    stage.run(10, &[]);
    let run = stage.engine.sweep_run(kind, first.id).expect("a result");
    assert_eq!((counts(&run.nodes), disrupted(&stage)), ((1, 0, 0), 1));
    assert!(!stage.engine.state().sweeps.conflicts(&second, stage.now));
}

#[test]
fn blocked_node_of_another_pool_is_not_found_by_a_requested_sweep() {
    let mut stage = running_with(1, |cluster| {
        schedule(cluster, SweepKind::Drift, "0 20 * * *", false);
        cluster.pools[0].disruption.min_age = SignedDuration::from_mins(30);
    });
    change_class(&mut stage, "other");
    stage.run(MINUTE, &[]);
    let found = sweep_now(&mut stage, SweepKind::Drift, Some("other")).expect("a result");
    assert_eq!(counts(&found), (0, 0, 0));
    run_until(&mut stage, "15T19:00");
    assert_eq!(disrupted(&stage), 0, "it waits for the schedule");
    run_until(&mut stage, "15T20:01");
    assert_eq!(disrupted(&stage), 1);
}

#[test]
fn consolidation_sweep_of_a_pool_does_not_wait_for_nodes_of_other_pools() {
    let mut stage = underutilized("0 20 * * *");
    stage.run(20 * MINUTE, &[]);
    sweep_now(&mut stage, SweepKind::Consolidation, Some("other")).expect("a result");
    stage.run(5 * MINUTE, &[]);
    let sweeps = &stage.engine.state().sweeps;
    assert!(!sweeps.permits(SweepKind::Consolidation, None, &"other".into()));
}

#[test]
fn observed_cluster_disrupts_nothing_in_a_requested_sweep() {
    let mut stage = drifted(1);
    stage.change(|cluster| cluster.mode = ManagementMode::Observe);
    stage.commands.clear();
    let found = sweep_now(&mut stage, SweepKind::Drift, None).expect("a result");
    assert_eq!(counts(&found), (0, 0, 1));
    assert_eq!(stage.commands, Vec::<String>::new());
}

#[test]
fn sweep_of_unhealthy_nodes_reports_them_and_delays_no_repair() {
    let mut stage =
        running_with(1, |cluster| schedule(cluster, SweepKind::Repair, "0 20 * * *", false));
    stage.set_ready(0, false);
    stage.run(10 * MINUTE, &[]);
    let found = sweep_now(&mut stage, SweepKind::Repair, None).expect("a result");
    assert_eq!((counts(&found), disrupted(&stage)), ((0, 0, 1), 0));
    stage.run(21 * MINUTE, &["terminate"]);
    assert_eq!(disrupted(&stage), 1, "repair does not wait for the sweep");
    let found = sweep_now(&mut stage, SweepKind::Repair, None).expect("a result");
    assert!(counts(&found).0 <= 1, "{found:?}");
}

#[test]
fn silent_node_without_an_instance_waits_for_the_sweep_of_orphans() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| schedule(cluster, SweepKind::Orphans, "30 8 * * *", false));
    let node = lost_node(&stage);
    stage.sync(vec![node], vec![]);
    run_until(&mut stage, "15T08:29");
    assert_eq!((stage.count("patch_node"), stage.count("delete_node")), (0, 0));
    let request = request(&stage, SweepKind::Orphans, None);
    assert_eq!(counts(&stage.engine.preview_sweep(&request, stage.now)), (0, 0, 1));
    assert_eq!((stage.count("patch_node"), stage.count("delete_node")), (0, 0));
    run_until(&mut stage, "15T08:32");
    assert!(stage.count("delete_node") > 0, "{:?}", stage.commands);
}
