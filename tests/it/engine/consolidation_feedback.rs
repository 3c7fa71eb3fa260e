//! Consolidation: the new nodes of the pods, and the back-off if the pods are bound elsewhere.

use jiff::SignedDuration;
use outrigger::engine::command::Command;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::{ManagementMode, PlacementHints};
use outrigger::model::id::PodKey;
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE};
use outrigger::model::pod::Pod;
use outrigger::model::pool::{BudgetNodes, Consolidation, Pool, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, Interruption, OfferingRefusal, RefusalKind};

use super::{Stage, bound, owned_pod, pending_pod};

fn set_instance_types(pool: &mut Pool, types: &[&str]) {
    let types = Requirement::is_in(types.iter().copied());
    pool.requirements.add(INSTANCE_TYPE, types);
}

/// A stage with a node of 32 cores on which these pods run; other pods were deleted just now.
fn oversized_node(names: &[&str]) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| {
        let pool = &mut cluster.pools[0];
        pool.disruption.consolidation = Consolidation::EmptyOrUnderutilized;
        pool.disruption.consolidate_after = Some(SignedDuration::ZERO);
        let bought = Requirement::is_in(["on-demand"]);
        pool.requirements.add(CAPACITY_TYPE, bought);
    });
    let pods = names.iter().map(|name| owned_pod(name));
    let others = (0..28).map(|at| owned_pod(&format!("other-{at}")));
    let all: Vec<Pod> = pods.chain(others).collect();
    stage.change(|cluster| set_instance_types(&mut cluster.pools[0], &["m5.8xlarge", "m5.xlarge"]));
    stage.sync(vec![], all.clone());
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 1, "all on one node");
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    for pod in all.clone() {
        stage.apply(bound(pod, "node-0"));
    }
    stage.run(60, &[]);
    for pod in &all[names.len()..] {
        stage.event(Event::Deleted(ObjectKind::Pod, pod.key.clone()));
    }
    stage
}

/// The stage of `oversized_node` after the smaller replacement node has registered.
fn with_replacement(names: &[&str]) -> Stage {
    let mut stage = oversized_node(names);
    stage.run(20, &[]);
    assert_eq!(stage.launches.len(), 2, "a smaller replacement is launched");
    stage.commands.clear();
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(2, &["evict"]);
    stage
}

#[test]
fn observe_mode_reports_the_disrupted_node_and_its_replacement() {
    let mut stage = oversized_node(&["a", "b"]);
    stage.change(|cluster| cluster.mode = ManagementMode::Observe);
    let launches = stage.launches.len();
    stage.reports.clear();
    stage.run(60, &[]);
    let actions: Vec<String> = stage
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::Retire { node, reason, .. } => {
                let node = node.as_ref().map(ToString::to_string);
                Some(format!("{} {}", node.unwrap_or_default(), reason.as_str()))
            }
            Report::ClaimPlanned { offering, pods, .. } => {
                Some(format!("{} for {}", offering.instance_type, pods.len()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(actions, ["node-0 underutilized", "m5.xlarge for 2"]);
    assert_eq!(stage.launches.len(), launches);
}

fn is_tainted(stage: &Stage) -> bool {
    let nodes = &stage.engine.state().objects.nodes;
    nodes["node-1"].has_unregistered_taint()
}

fn key(name: &str) -> PodKey {
    pending_pod(name).key
}

/// A pod is created, and the scheduler marks it unschedulable.
fn create_pod(stage: &mut Stage, mut pod: Pod) {
    pod.created = Some(stage.now);
    pod.unschedulable = false;
    stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
    pod.unschedulable = true;
    stage.apply(WatchedObject::Pod(Box::new(pod)));
}

/// The API server terminates a pod, and its controller creates another one.
fn replace(stage: &mut Stage, old: &str, new: &str) {
    let mut pod = stage.engine.state().objects.pods[&key(old)].clone();
    pod.deleting = Some(stage.now);
    stage.apply(WatchedObject::Pod(Box::new(pod)));
    create_pod(stage, owned_pod(new));
    stage.event(Event::Deleted(ObjectKind::Pod, key(old)));
}

fn nominated_node(stage: &Stage, pod: &str) -> Option<String> {
    let pod = &stage.engine.state().objects.pods[&key(pod)];
    pod.nominated_node.as_ref().map(ToString::to_string)
}

#[test]
fn replacement_node_is_untainted_once_the_replacement_pods_are_nominated() {
    let mut stage = with_replacement(&["a", "b"]);
    assert_eq!((stage.count("evict"), is_tainted(&stage)), (2, true));
    replace(&mut stage, "a", "c");
    stage.run(1, &["evict"]);
    // The second replacement pod is still missing.
    assert_eq!((nominated_node(&stage, "c"), is_tainted(&stage)), (None, true));
    replace(&mut stage, "b", "d");
    stage.run(1, &["evict"]);
    for replacement in ["c", "d"] {
        assert_eq!(nominated_node(&stage, replacement).as_deref(), Some("node-1"), "{replacement}");
    }
    assert!(!is_tainted(&stage));
    assert_eq!(stage.launches.len(), 2, "no other node is planned");
}

/// The PodDisruptionBudget of one of the two pods blocks its eviction.
#[test]
fn replacement_node_is_untainted_after_seconds_if_one_eviction_is_blocked() {
    let mut stage = with_replacement(&["a", "b"]);
    replace(&mut stage, "a", "c");
    stage.run(4, &["evict"]);
    assert!(is_tainted(&stage));
    stage.run(3, &["evict"]);
    assert_eq!(nominated_node(&stage, "c").as_deref(), Some("node-1"));
    assert!(!is_tainted(&stage));
}

/// No replacement pod appears for the evicted pods, or a PodDisruptionBudget blocks the evictions.
#[test]
fn replacement_node_is_untainted_after_seconds_if_no_replacement_pod_appears() {
    let mut stage = with_replacement(&["a", "b"]);
    stage.run(7, &["evict"]);
    assert!(is_tainted(&stage));
    stage.run(5, &["evict"]);
    assert!(!is_tainted(&stage));
}

#[test]
fn replacement_node_is_untainted_before_the_pods_move_without_placement_hints() {
    let mut stage = with_replacement(&["a"]);
    assert!(is_tainted(&stage));
    stage.change(|cluster| cluster.placement_hints = PlacementHints::Off);
    stage.run(2, &["evict"]);
    assert!(!is_tainted(&stage));
}

fn consolidations(stage: &Stage) -> usize {
    let all = stage.reports.iter();
    all.filter(|report| matches!(report, Report::Consolidates { .. })).count()
}

fn backing_off(stage: &Stage) -> usize {
    let pools = stage.engine.state().resting.values();
    pools.filter(|until| **until > stage.now).count()
}

/// The replacement pod of a moved pod fits only a large node: the consolidation saves nothing.
#[test]
fn consolidation_of_a_pool_backs_off_after_an_unprofitable_move() {
    let mut stage = with_replacement(&["a"]);
    assert_eq!(consolidations(&stage), 1);
    assert_eq!(backing_off(&stage), 0);
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 20_000;
    stage.event(Event::Deleted(ObjectKind::Pod, key("a")));
    create_pod(&mut stage, large.clone());
    stage.run(3, &[]);
    assert_eq!(stage.launches.len(), 3);
    assert_eq!(backing_off(&stage), 1);
    let is_shut = |report: &Report| matches!(report, Report::Shut { .. });
    assert!(stage.reports.iter().any(is_shut), "the blocked disruption is reported");
    large.requests.cpu_milli = 100;
    stage.apply(WatchedObject::Node(Box::new(stage.node(2))));
    stage.run(2, &[]);
    stage.apply(bound(large, "node-2"));
    stage.run(480, &[]);
    assert_eq!((backing_off(&stage), consolidations(&stage)), (1, 1));
    stage.run(480, &[]);
    assert_eq!((backing_off(&stage), consolidations(&stage)), (0, 2));
}

/// The replacement pod fits a node that was launched for another pod, and the scheduler may bind it
/// there.
#[test]
fn consolidation_backs_off_when_moved_pods_take_the_capacity_of_other_pods() {
    let mut stage = with_replacement(&["a"]);
    let mut large = owned_pod("large");
    large.owner = None;
    large.requests.cpu_milli = 31_000;
    create_pod(&mut stage, large);
    stage.run(3, &["evict"]);
    assert_eq!(stage.launches.len(), 3, "a node for the large one");
    stage.apply(WatchedObject::Node(Box::new(stage.node(2))));
    stage.run(2, &["evict"]);
    stage.event(Event::Deleted(ObjectKind::Pod, key("a")));
    let mut replacement = owned_pod("heir");
    replacement.requests.cpu_milli = 2_000;
    stage.apply(bound(replacement, "node-2"));
    stage.run(120, &["evict"]);
    assert_eq!(stage.launches.len(), 4, "the large pod needs another node");
    assert_eq!(backing_off(&stage), 1);
}

/// The launch of the smaller node is refused, so the large node is kept.
#[test]
fn pending_pod_is_planned_at_once_after_a_consolidation_is_cancelled() {
    let mut stage = oversized_node(&["a"]);
    let held = stage.run(20, &["launch"]);
    let Command::Launch(launch) = &held[0].command else { panic!("a launch") };
    let refused = launch.offerings.iter().map(|offering| OfferingRefusal {
        offering: offering.clone(),
        kind: RefusalKind::InsufficientCapacity,
    });
    let answer = CommandResult::LaunchRefused(refused.collect());
    stage.event(Event::Answered(held[0].id, answer));
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 31_000;
    stage.apply(WatchedObject::Pod(Box::new(large)));
    stage.run(3, &[]);
    let is_cancelled = |report: &Report| matches!(report, Report::Kept { .. });
    assert!(stage.reports.iter().any(is_cancelled));
    assert_eq!(stage.launches.len(), 2, "the large pod gets a node at once");
    assert_eq!(backing_off(&stage), 0, "no pod has moved");
}

/// A pod that tolerates every taint is bound to the smaller node first and fills it.
#[test]
fn consolidation_continues_if_a_cheap_node_replaces_the_lost_capacity() {
    let mut stage = oversized_node(&["a"]);
    stage.run(20, &[]);
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 3500;
    stage.apply(bound(large, "node-1"));
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(15, &["evict"]);
    assert_eq!(stage.launches.len(), 3, "one for the remaining pod");
    let is_cancelled = |report: &Report| matches!(report, Report::Kept { .. });
    assert!(!stage.reports.iter().any(is_cancelled), "{:?}", stage.reports);
    stage.apply(WatchedObject::Node(Box::new(stage.node(2))));
    stage.run(15, &["evict"]);
    assert_eq!(stage.count("evict"), 1, "the pod moves there");
}

/// A busy controller creates the replacement pod seconds later.
#[test]
fn replacement_node_is_not_empty_while_replacement_pods_are_expected() {
    let mut stage = with_replacement(&["a"]);
    stage.event(Event::Deleted(ObjectKind::Pod, key("a")));
    stage.run(8, &[]);
    create_pod(&mut stage, owned_pod("c"));
    stage.run(2, &[]);
    assert_eq!(nominated_node(&stage, "c").as_deref(), Some("node-1"));
    assert_eq!(stage.launches.len(), 2);
    let is_disrupted = |report: &Report| {
        matches!(report, Report::Retire { node: Some(node), .. }
        if node.as_str() == "node-1")
    };
    assert!(!stage.reports.iter().any(is_disrupted));
}

/// Between the decision and the taint the scheduler may still bind any pod to the node.
#[test]
fn consolidation_is_cancelled_by_an_unmanaged_pod_bound_before_the_taint() {
    let mut stage = oversized_node(&["a"]);
    stage.run(20, &[]);
    stage.commands.clear();
    stage.apply(bound(pending_pod("bare"), "node-0"));
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(4, &["evict"]);
    assert_eq!(stage.count("evict"), 0);
    let is_cancelled = |report: &Report| match report {
        Report::Kept { why, .. } => why.contains("default/bare"),
        _ => false,
    };
    assert!(stage.reports.iter().any(is_cancelled));
}

/// The replacement node is not ready yet, and the old node is interrupted meanwhile.
#[test]
fn pods_of_an_interrupted_node_are_evicted_before_the_replacement_is_ready() {
    let mut stage = oversized_node(&["a"]);
    stage.run(20, &[]);
    let mut node = stage.node(1);
    node.ready = false;
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &["evict"]);
    assert_eq!(stage.count("evict"), 0, "the replacement is not ready");
    let spot = Interruption::Spot;
    stage.event(Event::interrupted("i-0".into(), spot, stage.now));
    stage.run(5, &["evict"]);
    assert_eq!(stage.count("evict"), 1, "{:?}", stage.commands);
}

#[test]
fn budget_of_zero_that_blocks_consolidation_is_reported_once() {
    let mut stage = oversized_node(&["a"]);
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(0));
    stage.reports.clear();
    stage.run(3 * 3600, &[]);
    assert_eq!(stage.launches.len(), 1, "nothing moves");
    let blocked = stage.reports.iter().filter_map(|report| match report {
        Report::Shut { reason, why, .. } => Some((*reason, why.as_str())),
        _ => None,
    });
    let why = "the disruption budget of its pool allows 0 node(s) at a time";
    assert_eq!(blocked.collect::<Vec<_>>(), [(Reason::Underutilized, why)]);
}
