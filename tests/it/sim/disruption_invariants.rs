//! Invariants of disruption: each is violated on purpose.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::engine::command::{Command, NodePatch};
use outrigger::engine::event::Event;
use outrigger::model::id::NodeName;
use outrigger::model::labels::{DISRUPTION_REASON, DO_NOT_DISRUPT, TAINT_DISRUPTED};
use outrigger::model::node::Node;
use outrigger::model::pod::Pod;
use outrigger::model::pool::{Budget, BudgetNodes, Rate, Reason};
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::model::window::Window;
use outrigger::sim::World;
use outrigger::sim::invariants::{Checker, GroundTruth, Invariant};

use super::setup::working_day;

/// The working day in the morning, when several nodes run.
fn morning() -> (GroundTruth, Timestamp) {
    let setup = working_day();
    let mut world = World::new(setup.clone(), 1, false);
    world.run_until(setup.scenario.start + SignedDuration::from_mins(120));
    (world.ground_truth().clone(), world.now())
}

/// The nodes in use of the pool `general`, with their pods.
fn nodes_in_use(scene: &GroundTruth) -> Vec<(Node, Vec<Pod>)> {
    let store = scene.cluster.store();
    let pods = |node: &Node| {
        let pods = store.pods_on(node.name.as_str());
        pods.filter(|pod| pod.occupies_node()).cloned().collect()
    };
    let nodes = store.nodes().values();
    let nodes =
        nodes.filter(|node| node.pool_name().is_some_and(|pool| pool.as_str() == "general"));
    let nodes = nodes.map(|node| (node.clone(), pods(node)));
    nodes.filter(|(_, pods): &(_, Vec<Pod>)| !pods.is_empty()).collect()
}

fn disruption_patch(node: &Node, reason: Reason) -> Command {
    let mut taints = node.taints.clone();
    taints.push(Taint::new(TAINT_DISRUPTED, Effect::NoSchedule));
    Command::PatchNode(NodePatch {
        node: node.name.clone(),
        version: node.version.clone(),
        annotations: vec![(DISRUPTION_REASON.to_owned(), Some(reason.as_str().to_owned()))],
        taints: Some(taints),
        ..NodePatch::default()
    })
}

fn eviction(pod: &Pod) -> Command {
    Command::Evict { pod: pod.key.clone(), uid: pod.uid.clone() }
}

fn disrupt(scene: &mut GroundTruth, node: &NodeName, reason: Reason, now: Timestamp) {
    let node = scene.cluster.store().nodes()[node].clone();
    scene.cluster.execute_command(&disruption_patch(&node, reason), now);
}

fn violation_count(checker: &Checker, rule: Invariant) -> usize {
    checker.violations().iter().filter(|violation| violation.rule == rule).count()
}

#[test]
fn checker_reports_disruptions_beyond_a_budget() {
    let (mut scene, now) = morning();
    let nodes = nodes_in_use(&scene);
    assert!(nodes.len() > 3, "{} nodes", nodes.len());
    let always = |nodes| Budget { nodes, reasons: Vec::new(), during: None, rate: None };
    let of = |reason| Budget { reasons: vec![reason], ..always(BudgetNodes::Nodes(0)) };
    let at = |expression: &str| {
        let window = Window::new(expression, SignedDuration::from_hours(1), "UTC");
        Budget { during: Some(window.expect("a window")), ..always(BudgetNodes::Nodes(0)) }
    };
    // The time is 08:00.
    for (budgets, reason, faults) in [
        (vec![always(BudgetNodes::Nodes(1))], Reason::Expired, 1),
        (vec![always(BudgetNodes::Nodes(0))], Reason::Expired, 2),
        (vec![always(BudgetNodes::Nodes(2))], Reason::Expired, 0),
        (vec![always(BudgetNodes::Percent(1))], Reason::Drifted, 1),
        (vec![always(BudgetNodes::Percent(100))], Reason::Drifted, 0),
        (vec![of(Reason::Empty)], Reason::Empty, 2),
        (vec![of(Reason::Empty)], Reason::Drifted, 0),
        (vec![at("30 7 * * *")], Reason::Underutilized, 2),
        (vec![at("30 8 * * *")], Reason::Underutilized, 0),
        (vec![always(BudgetNodes::Nodes(0))], Reason::Interrupted, 0),
        (vec![always(BudgetNodes::Nodes(0))], Reason::Surplus, 0),
    ] {
        let mut config = (*scene.config).clone();
        let pool = config.pools.iter_mut().find(|pool| pool.name.as_str() == "general");
        pool.expect("a pool").disruption.budgets.clone_from(&budgets);
        scene.config = Arc::new(config);
        // The second command is sent before the first one arrives, or after it.
        for arrives in [false, true] {
            let mut scene = scene.clone();
            let mut checker = Checker::default();
            let all = scene.cluster.store().list_kind(ObjectKind::Node);
            checker
                .on_event(&Event::Reset(ObjectKind::Node, all), now - SignedDuration::from_mins(1));
            for (node, _) in &nodes[..2] {
                let patch = disruption_patch(node, reason);
                checker.check_issued(&patch, None, &scene, now);
                if arrives {
                    checker.check_arriving(&patch, &scene, now, now);
                    scene.cluster.execute_command(&patch, now);
                }
            }
            let violations = checker.violations();
            assert_eq!(
                violation_count(&checker, Invariant::Budget),
                faults,
                "{budgets:?} {violations:?}"
            );
        }
    }
}

#[test]
fn checker_reports_disruptions_beyond_a_rate() {
    let (mut scene, now) = morning();
    let nodes = nodes_in_use(&scene);
    let minutes = |count| now + SignedDuration::from_mins(count);
    for (rate, apart, faults) in [("1/h", 30, 1), ("2/h", 30, 0), ("1/h", 70, 0), ("1/d", 70, 1)] {
        let mut config = (*scene.config).clone();
        let mut pools = config.pools.iter_mut();
        let pool = pools.find(|pool| pool.name.as_str() == "general");
        pool.expect("a pool").disruption.budgets = vec![Budget {
            nodes: BudgetNodes::Percent(100),
            rate: Rate::parse(rate),
            reasons: Vec::new(),
            during: None,
        }];
        scene.config = Arc::new(config);
        let mut checker = Checker::default();
        for (node, at) in [(0, 0), (0, 1), (1, apart)] {
            let patch = disruption_patch(&nodes[node].0, Reason::Drifted);
            checker.check_issued(&patch, None, &scene, minutes(at));
        }
        assert_eq!(violation_count(&checker, Invariant::Budget), faults, "{rate} {apart}");
    }
}

#[test]
fn checker_counts_not_ready_nodes_against_budgets() {
    let (mut scene, now) = morning();
    let mut config = (*scene.config).clone();
    let mut pools = config.pools.iter_mut();
    let pool = pools.find(|pool| pool.name.as_str() == "general");
    pool.expect("a pool").disruption.budgets[0].nodes = BudgetNodes::Nodes(1);
    scene.config = Arc::new(config);
    let nodes = nodes_in_use(&scene);
    for (not_ready_for, faults) in [(None, 0), (Some(60), 1), (Some(1), 0)] {
        let mut checker = Checker::default();
        let all = scene.cluster.store().list_kind(ObjectKind::Node);
        checker.on_event(&Event::Reset(ObjectKind::Node, all), now - SignedDuration::from_mins(2));
        if let Some(seconds) = not_ready_for {
            let mut down = nodes[1].0.clone();
            down.ready = false;
            let at = now - SignedDuration::from_secs(seconds);
            checker.on_event(&Event::Applied(WatchedObject::Node(Box::new(down))), at);
        }
        checker.check_issued(&disruption_patch(&nodes[0].0, Reason::Expired), None, &scene, now);
        assert_eq!(violation_count(&checker, Invariant::Budget), faults, "{not_ready_for:?}");
    }
}

#[test]
fn checker_reports_eviction_of_a_do_not_disrupt_pod() {
    let (scene, now) = morning();
    let (node, pods) = nodes_in_use(&scene).swap_remove(0);
    let expired = Some(Reason::Expired);
    for (value, reason, faults) in [
        (Some("true"), expired, 1),
        (Some("true"), Some(Reason::Surplus), 1),
        (Some("true"), Some(Reason::Interrupted), 0),
        (Some("48h"), expired, 1),
        (Some("1s"), expired, 0),
        (Some("soon"), expired, 0),
        (Some("false"), expired, 0),
        (None, expired, 0),
    ] {
        let mut scene = scene.clone();
        let store = scene.cluster.store_mut();
        store.change_pod(&pods[0].key, &pods[0].uid, now, |pod| {
            let value = value.map(|value| (DO_NOT_DISRUPT.to_owned(), value.to_owned()));
            pod.annotations.extend(value);
        });
        if let Some(reason) = reason {
            disrupt(&mut scene, &node.name, reason, now);
        }
        let mut checker = Checker::default();
        checker.check_arriving(&eviction(&pods[0]), &scene, now, now);
        assert_eq!(violation_count(&checker, Invariant::Protected), faults, "{value:?} {reason:?}");
    }
}

#[test]
fn checker_reports_voluntary_eviction_without_capacity() {
    let (scene, now) = morning();
    let later = now + SignedDuration::from_mins(1);
    let (node, pods) = nodes_in_use(&scene).swap_remove(0);
    // The reason, whether all other nodes are tainted as well, and the number of violations.
    for (reason, full, faults) in [
        (Reason::Expired, true, 1),
        (Reason::Drifted, true, 1),
        (Reason::Underutilized, true, 1),
        (Reason::Interrupted, true, 0),
        (Reason::Expired, false, 0),
    ] {
        let mut scene = scene.clone();
        let others: Vec<NodeName> = scene.cluster.store().nodes().keys().cloned().collect();
        for other in others.iter().filter(|other| full || **other == node.name) {
            disrupt(&mut scene, other, reason, now);
        }
        if !full {
            let mut spare = node.clone();
            (spare.name, spare.provider_id) = ("spare".into(), String::new());
            scene.cluster.store_mut().put_node(spare, now);
        }
        let mut checker = Checker::default();
        for pod in &pods {
            checker.check_issued(&eviction(pod), None, &scene, later);
        }
        let violations = checker.violations();
        assert_eq!(
            violation_count(&checker, Invariant::Homeless),
            faults,
            "{reason:?} {full} {violations:?}"
        );
    }
}

#[test]
fn checker_reports_a_tainted_node_without_progress() {
    let (mut scene, now) = morning();
    let (node, _) = nodes_in_use(&scene).swap_remove(0);
    let minutes = |count| now + SignedDuration::from_mins(count);
    let patch = disruption_patch(&node, Reason::Expired);
    let mut checker = Checker::default();
    checker.check_issued(&patch, None, &scene, now);
    checker.check_arriving(&patch, &scene, now, now);
    scene.cluster.execute_command(&patch, now);
    checker.check_progress(&scene, minutes(74));
    assert_eq!(violation_count(&checker, Invariant::Tainted), 0);
    let mut busy = checker.clone();
    let list = Command::ListPodsOn { node: node.name };
    busy.check_issued(&list, None, &scene, minutes(30));
    for (checker, faults) in [(&mut checker, 1), (&mut busy, 0)] {
        checker.check_progress(&scene, minutes(76));
        checker.check_progress(&scene, minutes(77));
        assert_eq!(violation_count(checker, Invariant::Tainted), faults);
        checker.check_settled(&scene, 0, minutes(78));
        assert_eq!(violation_count(checker, Invariant::Tainted), faults + 1);
    }
}

#[test]
fn checker_reports_commands_after_the_cluster_has_settled() {
    let (scene, now) = morning();
    for (acts, faults) in [(0, 0), (1, 1)] {
        let mut checker = Checker::default();
        checker.check_settled(&scene, acts, now);
        assert_eq!(violation_count(&checker, Invariant::Restless), faults);
    }
}
