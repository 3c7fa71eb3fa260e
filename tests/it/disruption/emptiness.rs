//! Empty nodes: spec/disruption.md §8.13, row by row.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::disruption::verdict::Verdict;
use outrigger::model::cluster::{Cluster, RemovedPools};
use outrigger::model::labels::{DELETION_COST, DO_NOT_DISRUPT};
use outrigger::model::pod::Pod;
use outrigger::model::pool::{BudgetNodes, Reason};
use outrigger::plan::plan_without_consolidation;

use super::fixture::{NOW, Scene, annotated, pod, pool};

/// Nodes of two pools, each with this budget.
fn pools(count: usize, nodes: BudgetNodes) -> Scene {
    let mut all = vec![pool("a"), pool("b")];
    for pool in &mut all {
        pool.disruption.budgets[0].nodes = nodes;
    }
    let mut scene = Scene::new(all);
    for at in 0..count {
        scene.node(&format!("a-{at}"), "a");
        scene.node(&format!("b-{at}"), "b");
    }
    scene
}

#[test]
fn budget_of_each_pool_limits_its_empty_nodes() {
    let cases = [
        (BudgetNodes::Percent(100), 10),
        (BudgetNodes::Percent(0), 0),
        (BudgetNodes::Percent(30), 3),
        (BudgetNodes::Percent(1), 1),
        (BudgetNodes::Nodes(0), 0),
        (BudgetNodes::Nodes(3), 3),
        (BudgetNodes::Nodes(20), 10),
    ];
    for (nodes, expect) in cases {
        let scene = pools(10, nodes);
        let disrupted = scene.disruptions();
        for pool_name in ["a", "b"] {
            let count = disrupted.iter().filter(|(name, _)| name.starts_with(pool_name));
            assert_eq!(count.count(), expect, "pool {pool_name}, {nodes:?}");
        }
        assert!(disrupted.iter().all(|(_, reason)| *reason == Reason::Empty));
        let kept = scene.plan().kept;
        let budget = |retained: &&outrigger::disruption::verdict::RetainedNode| {
            retained.reason == Reason::Empty && matches!(retained.verdict, Verdict::Budget { .. })
        };
        assert_eq!(kept.iter().filter(budget).count(), 20 - 2 * expect);
    }
}

fn terminating(mut pod: Pod) -> Pod {
    pod.deleting = Some(NOW);
    pod
}

#[test]
fn node_is_empty_if_no_pod_must_be_rescheduled() {
    let without_cost = |name: &str| {
        let pod = pod(name, "n", "ReplicaSet");
        annotated(pod, DELETION_COST, "-2147483647")
    };
    let mut low_priority = pod("humble", "n", "ReplicaSet");
    low_priority.priority = -(1 << 25);
    let cases = [
        ("no pods", vec![], true),
        ("a pod", vec![pod("p", "n", "ReplicaSet")], false),
        ("a pod without an owner", vec![pod("p", "n", "")], false),
        ("a daemon", vec![pod("p", "n", "DaemonSet")], true),
        ("a mirror pod", vec![pod("p", "n", "Node")], true),
        ("a terminating pod of a Deployment", vec![terminating(pod("p", "n", "ReplicaSet"))], true),
        (
            "a terminating pod of a StatefulSet",
            vec![terminating(pod("p", "n", "StatefulSet"))],
            false,
        ),
        (
            "pods without a disruption cost",
            vec![without_cost("p"), without_cost("q"), low_priority],
            true,
        ),
        (
            "one of the pods has a disruption cost",
            vec![without_cost("p"), pod("q", "n", "Job")],
            false,
        ),
    ];
    for (what, pods, expect) in cases {
        let scene = Scene::with(pods);
        assert_eq!(scene.disruptions().len(), usize::from(expect), "{what}");
    }
}

fn verdict_code(scene: &Scene) -> &'static str {
    let plan = scene.plan();
    let mut kept = plan.kept.iter().filter(|retained| retained.reason == Reason::Empty);
    kept.next().map_or("-", |retained| retained.verdict.code())
}

#[test]
fn empty_node_is_retained_by_settings_and_annotations() {
    let node = || Scene::with([]);
    assert_eq!(verdict_code(&node()), "-");
    for (value, expect) in [("true", "blocked"), ("false", "-"), ("True", "-")] {
        let mut scene = node();
        scene.edit("n", |node| {
            node.annotations.insert(DO_NOT_DISRUPT.into(), value.into());
        });
        assert_eq!(verdict_code(&scene), expect, "{value}");
    }
    // The last change was an hour ago.
    let after = |minutes: Option<i64>| minutes.map(SignedDuration::from_mins);
    for (minutes, expect) in
        [(None, "never"), (Some(61), "recently_changed"), (Some(60), "-"), (Some(0), "-")]
    {
        let mut scene = node();
        scene.configure(|pool| pool.disruption.consolidate_after = after(minutes));
        assert_eq!(verdict_code(&scene), expect, "{minutes:?}");
    }
    let mut scene = node();
    scene.configure(|pool| pool.replicas = Some(1));
    assert_eq!(verdict_code(&scene), "static");
    scene.configure(|pool| pool.name = "other".into());
    assert_eq!(verdict_code(&scene), "-", "the node is disrupted because its pool is removed");
    let mut cluster = Cluster::clone(&scene.state.cluster);
    cluster.safeguards.removed_pools = RemovedPools::Keep;
    scene.state.apply_configuration(Arc::new(cluster));
    assert_eq!(verdict_code(&scene), "no_pool");
    let mut scene = node();
    scene.state.held.insert("n".into(), "spare".to_owned());
    assert_eq!(verdict_code(&scene), "buffer");
    scene.pod(pod("p", "n", "ReplicaSet"));
    assert_eq!(verdict_code(&scene), "in_use");
}

#[test]
fn empty_node_that_a_pending_pod_will_use_is_retained() {
    let mut scene = Scene::with([]);
    let mut waiting = pod("p", "n", "ReplicaSet");
    (waiting.node, waiting.unschedulable) = (None, true);
    scene.pod(waiting);
    let disruption_view = scene.state.disruption_view(NOW);
    let plan = plan_without_consolidation(&scene.state.snapshot(NOW), &disruption_view, NOW);
    assert_eq!((plan.retire.len(), plan.placed.len()), (0, 1));
}
