//! The status of one cluster.

use jiff::SignedDuration;
use outrigger::coordination::lease_annotations::{Pause, pause_key};
use outrigger::engine::views::status::Paused;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::watched_object::WatchedObject;

use super::{Stage, bound, owned_pod};

#[test]
fn status_counts_nodes_by_phase_and_pods_by_placement() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let status = |stage: &Stage| stage.engine.status(stage.now);
    assert!(status(&stage).held_by.is_some(), "the engine is not in sync yet");
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 10_000_000;
    stage.sync(vec![], vec![owned_pod("a"), large]);
    stage.run(10, &[]);
    let view = status(&stage);
    let pool = &view.pools[0];
    assert_eq!((view.mode.as_str(), view.held_by.as_deref()), ("manage", None));
    assert_eq!((pool.ready, pool.starting, pool.leaving), (0, 1, 0));
    // One pod is planned onto a node being launched, the other fits nowhere.
    assert_eq!((view.waiting_pods, view.unplaced_pods), (1, 1));
    assert!(view.cost_per_hour > 0.0 && pool.cost_per_hour == view.cost_per_hour);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(owned_pod("a"), "node-0"));
    stage.run(2, &[]);
    let view = status(&stage);
    let pool = &view.pools[0];
    assert_eq!((pool.name.as_str(), pool.configured), ("general", true));
    assert_eq!((pool.ready, pool.starting, pool.leaving), (1, 0, 0));
    assert_eq!((view.nodes, view.unready_nodes), (1, 0));
}

#[test]
fn status_shows_active_pauses_and_removed_pools() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![owned_pod("a")]);
    stage.run(10, &[]);
    let until = stage.now.checked_add(SignedDuration::from_mins(10)).ok();
    let reason = "a release".to_owned();
    let pause = Pause { until, reason };
    stage.annotate(&pause_key(Some(&"general".into())), Some(&pause.to_string()));
    stage.run(60, &[]);
    let status = stage.engine.status(stage.now);
    assert_eq!(status.paused, None);
    assert_eq!(status.pools[0].paused, Some(Paused::from(&pause)));
    stage.change(|cluster| cluster.pools.clear());
    stage.run(5, &[]);
    let status = stage.engine.status(stage.now);
    assert!(!status.pools[0].configured);
    stage.run(600, &[]);
    assert_eq!(
        stage.engine.status(stage.now).pools.first().and_then(|pool| pool.paused.clone()),
        None
    );
}
