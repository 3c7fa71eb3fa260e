//! Disruption of nodes whose pods or PodDisruptionBudgets block it.

use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::DO_NOT_DISRUPT;
use outrigger::model::node::Node;
use outrigger::model::pdb::{Bound, Pdb};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Reason;
use outrigger::model::quantity::Resources;
use outrigger::model::selector::Selector;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};

use super::replacement_nodes::{disruptions, expiring};
use super::{Stage, bound, owned_pod};

/// A PodDisruptionBudget of all pods with this many evictions allowed now and this maxUnavailable.
fn budget(disruptions_allowed: i64, max_unavailable: i64) -> WatchedObject {
    WatchedObject::Pdb(Pdb {
        key: ObjectKey::new("default", "all"),
        selector: Some(Selector::default()),
        max_unavailable: Some(Bound::Count(max_unavailable)),
        disruptions_allowed,
        ..Pdb::default()
    })
}

#[test]
fn disruption_is_not_cancelled_by_a_pdb_that_allows_nothing_at_the_moment() {
    let mut stage = expiring();
    stage.run(30, &[]);
    stage.apply(budget(0, 1));
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(30, &[]);
    assert_eq!(disruptions(&stage), ["disrupted: expired"]);
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
}

#[test]
fn disruption_is_cancelled_by_a_pdb_that_never_allows_an_eviction() {
    let mut stage = expiring();
    stage.run(30, &[]);
    stage.apply(budget(0, 0));
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(30, &[]);
    let why = "kept: pod default/a is covered by PodDisruptionBudget all, which never allows any \
               disruption";
    assert_eq!(disruptions(&stage)[..2], ["disrupted: expired", why]);
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.commands);
}

/// A stage with one node and this pod on it.
fn stage_with_pod(pod: &Pod) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![owned_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(pod.clone(), "node-0"));
    stage.run(2, &[]);
    stage.commands.clear();
    stage
}

#[test]
fn node_with_only_a_terminating_pod_counts_as_empty_and_ends_after_the_pod() {
    let mut stage = stage_with_pod(&owned_pod("a"));
    let mut pod = owned_pod("a");
    pod.deleting = Some(stage.now);
    stage.apply(bound(pod.clone(), "node-0"));
    stage.run(50, &[]);
    assert_eq!(stage.commands, ["patch_node"], "the node is tainted, and waits for the pod");
    stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    stage.run(20, &[]);
    let steps = ["patch_node", "list_pods_on", "terminate", "delete_node"];
    assert_eq!(stage.commands, steps);
}

#[test]
fn node_with_only_lowest_priority_pods_counts_as_empty_and_is_drained() {
    let mut pod = owned_pod("a");
    pod.priority = -(1 << 26);
    let mut stage = stage_with_pod(&pod);
    stage.run(60, &["evict"]);
    assert_eq!(stage.commands, ["patch_node", "evict"]);
    stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    stage.run(20, &["launch"]);
    assert_eq!(stage.count("terminate"), 1, "{:?}", stage.commands);
}

#[test]
fn invalid_do_not_disrupt_value_is_reported_once_until_it_changes() {
    let mut stage = stage_with_pod(&owned_pod("a"));
    let times = |stage: &Stage| {
        let misread = |report: &&Report| matches!(report, Report::Misread(_));
        stage.reports.iter().filter(misread).count()
    };
    for (value, expect) in [("true", 0), ("soon", 1), ("1h", 1), ("soon", 2)] {
        let mut pod = owned_pod("a");
        let annotation = (DO_NOT_DISRUPT.to_owned(), value.to_owned());
        pod.annotations = [annotation].into();
        stage.apply(bound(pod, "node-0"));
        stage.run(60, &[]);
        assert_eq!(times(&stage), expect, "{value}");
    }
}

/// A stage with a used node that differs by `change` from the node that the launch expects.
fn registered_with(change: impl FnOnce(&mut Node)) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![owned_pod("a")]);
    stage.run(10, &[]);
    let mut node = stage.node(0);
    change(&mut node);
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &[]);
    stage.apply(bound(owned_pod("a"), "node-0"));
    stage.run(60, &[]);
    stage
}

#[test]
fn node_with_less_capacity_than_its_instance_type_is_reported_once() {
    type Change = fn(&mut Resources);
    let rows: [(&str, Change, &[&str]); 4] = [
        ("as promised", |_| {}, &[]),
        ("hardly less", |capacity| capacity.memory = capacity.memory / 100 * 91, &[]),
        ("less memory", |capacity| capacity.memory = capacity.memory / 100 * 89, &["memory"]),
        (
            "fewer cores and pods",
            |capacity| {
                capacity.cpu_milli /= 2;
                capacity.pods /= 2;
            },
            &["cpu", "pods"],
        ),
    ];
    for (what, change, expect) in rows {
        let mut stage = registered_with(|node| change(&mut node.capacity));
        // Neither an unchanged node nor a node of another owner is reported.
        let node = stage.only_node().clone();
        stage.apply(WatchedObject::Node(Box::new(Node {
            name: "other".into(),
            uid: "other".to_owned(),
            provider_id: "aws:///us-east-1a/i-other".to_owned(),
            ..node
        })));
        stage.run(60, &[]);
        let reported = stage.reports.iter().filter_map(|report| match report {
            Report::Lacking { node, resource, .. } => Some((node.as_str(), *resource)),
            _ => None,
        });
        let expect = expect.iter().map(|resource| ("node-0", *resource));
        assert!(reported.clone().eq(expect), "{what}: {:?}", reported.collect::<Vec<_>>());
    }
}

#[test]
fn node_without_the_unregistered_taint_is_reported_and_still_registers() {
    for (guarded, expect) in [(true, 0), (false, 1)] {
        let stage = registered_with(|node| node.taints.retain(|_| guarded));
        let unguarded = |report: &&Report| matches!(report, Report::Unguarded { .. });
        assert_eq!(stage.reports.iter().filter(unguarded).count(), expect);
        assert!(stage.only_node().is_initialized());
    }
}

#[test]
fn eviction_is_reported_once_and_termination_with_its_duration_and_age() {
    let mut stage = expiring();
    stage.apply(budget(1, 1));
    let began = stage.now;
    stage.run(30, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(30, &[]);
    let evicted = stage.reports.iter().filter_map(|report| match report {
        Report::Evicted { pod, reason } => Some((pod.name.clone(), *reason)),
        _ => None,
    });
    let evicted: Vec<(String, Reason)> = evicted.collect();
    assert_eq!(evicted, [("a".to_owned(), Reason::Expired)]);
    let pods = stage.reports.iter().find_map(|report| match report {
        Report::Retire { pods, .. } => Some(*pods),
        _ => None,
    });
    assert_eq!(pods, Some(1));
    let created = stage.launches[0].claim.created;
    stage.event(Event::Deleted(ObjectKind::Pod, owned_pod("a").key));
    stage.run(120, &[]);
    let ended = stage.reports.iter().find_map(|report| match report {
        Report::Ended { node, took, age, .. } => Some((node.to_string(), *took, *age)),
        _ => None,
    });
    let (node, took, age) = ended.expect("the node is terminated");
    assert_eq!(node, "node-0");
    let longest = stage.now.duration_since(began);
    assert!(took.as_secs() > 30 && took <= longest, "{took:#}");
    assert!(age > took && age <= stage.now.duration_since(created), "{age:#}");
}
