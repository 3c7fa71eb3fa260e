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

use super::{Stage, bound, owned_pod, pending_pod};

fn disrupted_nodes(stage: &Stage) -> Vec<(String, Reason)> {
    let all = stage.reports.iter().filter_map(|report| match report {
        Report::Retire { node, reason, .. } => {
            Some((node.as_ref().map_or("", |name| name.as_str()).to_owned(), *reason))
        }
        _ => None,
    });
    all.collect()
}

/// A stage with one node of four cores that expires in five seconds, on which these pods run.
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
    let due = claim_expiry(&stage.launches[0].claim).expect("the claim expires");
    let wait = due.duration_since(stage.now).as_secs();
    stage.run(wait - 5, &[]);
    assert_eq!(disrupted_nodes(&stage), []);
    stage
}

/// The replacement node has no pods as long as a PodDisruptionBudget blocks the evictions from the
/// old node.
#[test]
fn replacement_node_is_not_empty_while_pods_are_about_to_move_to_it() {
    let mut stage = expiring(&["a"]);
    stage.run(20, &[]);
    assert_eq!(stage.launches.len(), 2);
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(600, &["evict"]);
    assert!(stage.count("evict") > 0);
    assert_eq!(disrupted_nodes(&stage), [("node-0".to_owned(), Reason::Expired)]);
    assert_eq!(stage.launches.len(), 2);
}

/// The pool does not offer the larger type any more: two nodes replace one.
#[test]
fn pods_are_evicted_once_all_of_them_have_a_replacement_node() {
    let mut stage = expiring(&["a", "b", "c"]);
    stage.change(|cluster| {
        let types = Requirement::is_in(["m5.large"]);
        cluster.pools[0].requirements.add(INSTANCE_TYPE, types);
    });
    stage.run(20, &[]);
    let replacements = stage.launches.len() - 1;
    assert!(replacements > 1, "{replacements}");
    for number in 1..=replacements {
        assert_eq!(stage.count("evict"), 0, "{number} of {replacements}");
        stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
        stage.run(30, &["evict"]);
    }
    assert!(stage.count("evict") > 0);
}

/// A stage with one node that has been empty for almost `consolidateAfter`.
fn stage_with_empty_node() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pending_pod("a"), "node-0"));
    stage.run(60, &[]);
    stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("a").key));
    stage.run(27, &[]);
    stage.commands.clear();
    stage
}

#[test]
fn empty_node_is_kept_for_pending_pods() {
    for (waits, ends) in [(true, 0), (false, 1)] {
        let mut stage = stage_with_empty_node();
        if waits {
            stage.apply(WatchedObject::Pod(Box::new(pending_pod("b"))));
        }
        stage.run(15, &[]);
        assert_eq!(stage.count("terminate"), ends, "{waits}");
        assert_eq!(stage.count("launch"), 0, "{waits}");
    }
}

/// The scheduler binds pods minutes after their nodes are ready, and more pods arrive meanwhile.
#[test]
fn node_of_pods_that_are_bound_late_is_not_empty() {
    for batch_max in [10, 60] {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.change(|cluster| {
            cluster.pools[0].disruption.consolidate_after = Some(SignedDuration::ZERO);
            cluster.batching.max = SignedDuration::from_secs(batch_max);
        });
        stage.sync(vec![], super::anti_affine_pods(["a", "b"]));
        stage.run(batch_max + 5, &[]);
        for number in 0..2 {
            stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
        }
        // A pod each second, for which there is no capacity, keeps the batch window open.
        let huge = |number: i32| {
            let mut pod = pending_pod(&format!("huge-{number}"));
            pod.requests.cpu_milli = 10_000_000;
            pod
        };
        for number in 0..300 {
            stage.apply(WatchedObject::Pod(Box::new(huge(number))));
            stage.run(1, &[]);
            assert_eq!(disrupted_nodes(&stage), [], "{batch_max}: after {number} s");
        }
        assert_eq!(stage.launches.len(), 2);
        // Pods that no longer exist keep no node, although others are pending.
        stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("a").key));
        stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("b").key));
        for number in 300..300 + 2 * i32::try_from(batch_max).unwrap_or(0) + 30 {
            stage.apply(WatchedObject::Pod(Box::new(huge(number))));
            stage.run(1, &[]);
        }
        assert_eq!(disrupted_nodes(&stage).len(), 2, "{batch_max}");
    }
}

#[test]
fn buffer_with_zero_replicas_keeps_no_node() {
    for (replicas, ends) in [(1, 0), (0, 1)] {
        let mut stage = stage_with_empty_node();
        let buffer = Buffer {
            name: "spare".to_owned(),
            replicas: Some(replicas),
            pod: Some(BufferPod { requests: pending_pod("any").requests, ..BufferPod::default() }),
            ..Buffer::default()
        };
        stage.change(|cluster| cluster.buffers.push(buffer));
        stage.run(60, &[]);
        assert_eq!(stage.count("terminate"), ends, "a buffer of {replicas} pods");
    }
}

/// Two empty nodes are tainted, and one of them gets a pod: the other is terminated anyway.
#[test]
fn late_pod_cancels_only_the_disruption_of_its_own_node() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], super::anti_affine_pods(["a", "b"]));
    stage.run(10, &[]);
    for number in 0..2 {
        stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
    }
    stage.run(5, &[]);
    for name in ["a", "b"] {
        stage.event(Event::Deleted(ObjectKind::Pod, pending_pod(name).key));
    }
    let tainted = |stage: &Stage| {
        let nodes = stage.engine.state().objects.nodes.values();
        nodes.filter(|node| node.has_disrupted_taint()).count()
    };
    for _ in 0..120 {
        if tainted(&stage) < 2 {
            stage.run(1, &[]);
        }
    }
    assert_eq!((tainted(&stage), stage.count("terminate")), (2, 0));
    stage.apply(bound(pending_pod("late"), "node-0"));
    stage.run(30, &[]);
    assert_eq!(stage.count("terminate"), 1);
    let node = stage.only_node();
    assert_eq!(node.name.as_str(), "node-0");
    assert!(!node.has_disrupted_taint());
}

/// A daemon was killed while it drained a node: the next one decides again, and removes every mark
/// of the old decision.
#[test]
fn restart_untaints_a_node_that_the_previous_run_disrupted() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    let before = stage.only_node().clone();
    let mut node = before.clone();
    let users_taint = Taint::new("mine", Effect::NoSchedule);
    node.taints = vec![Taint::new(TAINT_DISRUPTED, Effect::NoSchedule), users_taint.clone()];
    node.annotations.insert(DISRUPTION_REASON.into(), "expired".into());
    node.labels.insert(EXCLUDE_BALANCERS.into(), "karpenter".into());
    let WatchedObject::Pod(pod) = bound(pending_pod("a"), "node-0") else { unreachable!() };
    let cluster = Cluster::clone(&stage.engine.state().cluster);
    stage.engine = Engine::new(8);
    stage.start(ManagementMode::Manage);
    stage.set(cluster);
    stage.sync(vec![node], vec![*pod]);
    stage.run(30, &[]);
    let node = stage.only_node();
    assert_eq!(node.taints, [users_taint]);
    assert_eq!((&node.labels, &node.annotations), (&before.labels, &before.annotations));
    assert_eq!(stage.count("evict") + stage.count("terminate"), 0);
}
