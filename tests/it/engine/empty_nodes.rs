//! Nodes that are empty only briefly, before pods arrive or after pods were evicted, and nodes that
//! a previous run tainted.

use jiff::SignedDuration;
use outrigger::disruption::expiry::claim_expiry;
use outrigger::engine::Engine;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::buffer::{Buffer, BufferPod};
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::labels::{
    DISRUPTION_REASON, EXCLUDE_BALANCERS, INSTANCE_TYPE, TAINT_DISRUPTED,
};
use outrigger::model::pool::Reason;
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};

use super::{Stage, bound, owned_pod, waiting_pod};

fn retired(stage: &Stage) -> Vec<(String, Reason)> {
    let all = stage.reports.iter().filter_map(|report| match report {
        Report::Retire { node, reason, .. } => {
            Some((node.as_ref().map_or("", |name| name.as_str()).to_owned(), *reason))
        }
        _ => None,
    });
    all.collect()
}

/// A stage with one node of four cores that is too old in a moment, on which these pods run.
fn expiring(pods: &[&str]) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| {
        let pool = &mut cluster.pools[0];
        pool.expire_after = Some(SignedDuration::from_hours(1));
        let types = Requirement::is_in(["m5.large", "m5.xlarge"]);
        pool.requirements.add(INSTANCE_TYPE, types);
    });
    stage.sync(vec![], pods.iter().map(|name| owned_pod(name)).collect());
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    for name in pods {
        stage.apply(bound(owned_pod(name), "node-0"));
    }
    let due = claim_expiry(&stage.launches[0].claim).expect("it expires");
    let wait = due.duration_since(stage.now).as_secs();
    stage.run(wait - 5, &[]);
    assert_eq!(retired(&stage), []);
    stage
}

/// The node that takes the place of another is empty as long as the other's pods cannot be moved,
/// for the sake of their disruption budget.
#[test]
fn a_node_that_pods_are_about_to_move_to_is_not_empty() {
    let mut stage = expiring(&["a"]);
    stage.run(20, &[]);
    assert_eq!(stage.launches.len(), 2);
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(600, &["evict"]);
    assert!(stage.count("evict") > 0);
    assert_eq!(retired(&stage), [("node-0".to_owned(), Reason::Expired)]);
    assert_eq!(stage.launches.len(), 2);
}

/// The larger type is not to be had any more: two nodes come in the place of one.
#[test]
fn pods_move_once_every_one_of_them_has_a_place() {
    let mut stage = expiring(&["a", "b", "c"]);
    stage.change(|cluster| {
        let types = Requirement::is_in(["m5.large"]);
        cluster.pools[0].requirements.add(INSTANCE_TYPE, types);
    });
    stage.run(20, &[]);
    let coming = stage.launches.len() - 1;
    assert!(coming > 1, "{coming}");
    for number in 1..=coming {
        assert_eq!(stage.count("evict"), 0, "{number} of {coming}");
        stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
        stage.run(30, &["evict"]);
    }
    assert!(stage.count("evict") > 0);
}

/// A stage with one node that nobody has used for almost as long as its pool asks.
fn idle() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![waiting_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(waiting_pod("a"), "node-0"));
    stage.run(60, &[]);
    stage.event(Event::Deleted(ObjectKind::Pod, waiting_pod("a").key));
    stage.run(27, &[]);
    stage.seen.clear();
    stage
}

#[test]
fn an_empty_node_stays_for_pods_that_wait() {
    for (waits, ends) in [(true, 0), (false, 1)] {
        let mut stage = idle();
        if waits {
            stage.apply(WatchedObject::Pod(Box::new(waiting_pod("b"))));
        }
        stage.run(15, &[]);
        assert_eq!(stage.count("terminate"), ends, "{waits}");
        assert_eq!(stage.count("launch"), 0, "{waits}");
    }
}

#[test]
fn a_buffer_of_none_keeps_no_node() {
    for (replicas, ends) in [(1, 0), (0, 1)] {
        let mut stage = idle();
        let buffer = Buffer {
            name: "spare".to_owned(),
            replicas: Some(replicas),
            pod: Some(BufferPod { requests: waiting_pod("any").requests, ..BufferPod::default() }),
            ..Buffer::default()
        };
        stage.change(|cluster| cluster.buffers.push(buffer));
        stage.run(60, &[]);
        assert_eq!(stage.count("terminate"), ends, "room for {replicas}");
    }
}

/// Of two nodes that are empty one gets a pod while both are closed: the other goes all the same.
#[test]
fn a_pod_that_comes_late_keeps_its_own_node_alone() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], super::loners(["a", "b"]));
    stage.run(10, &[]);
    for number in 0..2 {
        stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
    }
    stage.run(5, &[]);
    for name in ["a", "b"] {
        stage.event(Event::Deleted(ObjectKind::Pod, waiting_pod(name).key));
    }
    let closed = |stage: &Stage| {
        let nodes = stage.engine.state().objects.nodes.values();
        nodes.filter(|node| node.has_disrupted_taint()).count()
    };
    for _ in 0..120 {
        if closed(&stage) < 2 {
            stage.run(1, &[]);
        }
    }
    assert_eq!((closed(&stage), stage.count("terminate")), (2, 0));
    stage.apply(bound(waiting_pod("late"), "node-0"));
    stage.run(30, &[]);
    assert_eq!(stage.count("terminate"), 1);
    let node = stage.seen_node();
    assert_eq!(node.name.as_str(), "node-0");
    assert!(!node.has_disrupted_taint());
}

/// A daemon was killed while it drained a node: the next one decides anew, and leaves nothing of
/// the old decision behind.
#[test]
fn what_an_earlier_life_has_closed_is_opened_again() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![waiting_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    let before = stage.seen_node().clone();
    let mut node = before.clone();
    let users_taint = Taint::new("mine", Effect::NoSchedule);
    node.taints = vec![Taint::new(TAINT_DISRUPTED, Effect::NoSchedule), users_taint.clone()];
    node.annotations.insert(DISRUPTION_REASON.into(), "expired".into());
    node.labels.insert(EXCLUDE_BALANCERS.into(), "karpenter".into());
    let WatchedObject::Pod(pod) = bound(waiting_pod("a"), "node-0") else { unreachable!() };
    let cluster = Cluster::clone(&stage.engine.state().cluster);
    stage.engine = Engine::new(8);
    stage.start(ManagementMode::Manage);
    stage.set(cluster);
    stage.sync(vec![node], vec![*pod]);
    stage.run(30, &[]);
    let node = stage.seen_node();
    assert_eq!(node.taints, [users_taint]);
    assert_eq!((&node.labels, &node.annotations), (&before.labels, &before.annotations));
    assert_eq!(stage.count("evict") + stage.count("terminate"), 0);
}
