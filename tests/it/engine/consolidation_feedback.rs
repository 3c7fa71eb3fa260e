//! Consolidation: the new nodes of the pods, and the back-off if the pods are bound elsewhere.

use jiff::SignedDuration;
use outrigger::engine::command::{Command, CommandResult, OfferingRefusal, RefusalKind};
use outrigger::engine::event::{Event, Interruption};
use outrigger::engine::report::Report;
use outrigger::model::cluster::{ManagementMode, PlacementHints};
use outrigger::model::id::PodKey;
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE};
use outrigger::model::pod::Pod;
use outrigger::model::pool::{BudgetNodes, Consolidation, Pool, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};

use super::{Stage, bound, owned_pod, waiting_pod};

fn sell(pool: &mut Pool, types: &[&str]) {
    let types = Requirement::is_in(types.iter().copied());
    pool.requirements.add(INSTANCE_TYPE, types);
}

/// A stage with a node of 32 cores on which these pods run, and others have run a moment ago.
fn too_large(names: &[&str]) -> Stage {
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
    stage.change(|cluster| sell(&mut cluster.pools[0], &["m5.8xlarge", "m5.xlarge"]));
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

/// The same with a smaller node on its way for them, which has registered.
fn shrinking(names: &[&str]) -> Stage {
    let mut stage = too_large(names);
    stage.run(20, &[]);
    assert_eq!(stage.launches.len(), 2, "a smaller one comes");
    stage.seen.clear();
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(2, &["evict"]);
    stage
}

#[test]
fn who_only_observes_says_who_would_leave_and_what_would_come() {
    let mut stage = too_large(&["a", "b"]);
    stage.change(|cluster| cluster.mode = ManagementMode::Observe);
    let launches = stage.launches.len();
    stage.reports.clear();
    stage.run(60, &[]);
    let told: Vec<String> = stage
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
    assert_eq!(told, ["node-0 underutilized", "m5.xlarge for 2"]);
    assert_eq!(stage.launches.len(), launches);
}

fn is_closed(stage: &Stage) -> bool {
    let nodes = &stage.engine.state().objects.nodes;
    nodes["node-1"].has_unregistered_taint()
}

fn key(name: &str) -> PodKey {
    waiting_pod(name).key
}

/// A pod is made, and the scheduler finds no place for it.
fn comes(stage: &mut Stage, mut pod: Pod) {
    pod.created = Some(stage.now);
    pod.unschedulable = false;
    stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
    pod.unschedulable = true;
    stage.apply(WatchedObject::Pod(Box::new(pod)));
}

/// Has the API end a pod, and its controller make another, as a moment ago.
fn replace(stage: &mut Stage, old: &str, new: &str) {
    let mut pod = stage.engine.state().objects.pods[&key(old)].clone();
    pod.deleting = Some(stage.now);
    stage.apply(WatchedObject::Pod(Box::new(pod)));
    comes(stage, owned_pod(new));
    stage.event(Event::Deleted(ObjectKind::Pod, key(old)));
}

fn told(stage: &Stage, pod: &str) -> Option<String> {
    let pod = &stage.engine.state().objects.pods[&key(pod)];
    pod.nominated_node.as_ref().map(ToString::to_string)
}

#[test]
fn a_node_made_for_pods_elsewhere_opens_when_their_heirs_have_been_told_of_it() {
    let mut stage = shrinking(&["a", "b"]);
    assert_eq!((stage.count("evict"), is_closed(&stage)), (2, true));
    replace(&mut stage, "a", "c");
    stage.run(1, &["evict"]);
    // Another is still to come.
    assert_eq!((told(&stage, "c"), is_closed(&stage)), (None, true));
    replace(&mut stage, "b", "d");
    stage.run(1, &["evict"]);
    for replacement in ["c", "d"] {
        assert_eq!(told(&stage, replacement).as_deref(), Some("node-1"), "{replacement}");
    }
    assert!(!is_closed(&stage));
    assert_eq!(stage.launches.len(), 2, "nobody else is planned for");
}

/// One of two pods is not let go by its disruption budget.
#[test]
fn nobody_waits_long_for_those_that_are_to_come() {
    let mut stage = shrinking(&["a", "b"]);
    replace(&mut stage, "a", "c");
    stage.run(4, &["evict"]);
    assert!(is_closed(&stage));
    stage.run(3, &["evict"]);
    assert_eq!(told(&stage, "c").as_deref(), Some("node-1"));
    assert!(!is_closed(&stage));
}

/// The pods that are evicted never come again, or their budget never lets them go.
#[test]
fn a_node_that_nobody_comes_to_opens_all_the_same() {
    let mut stage = shrinking(&["a", "b"]);
    stage.run(7, &["evict"]);
    assert!(is_closed(&stage));
    stage.run(5, &["evict"]);
    assert!(!is_closed(&stage));
}

#[test]
fn without_hints_nodes_made_for_pods_elsewhere_open_before_these_leave() {
    let mut stage = shrinking(&["a"]);
    assert!(is_closed(&stage));
    stage.change(|cluster| cluster.placement_hints = PlacementHints::Off);
    stage.run(2, &["evict"]);
    assert!(!is_closed(&stage));
}

fn consolidations(stage: &Stage) -> usize {
    let all = stage.reports.iter();
    all.filter(|report| matches!(report, Report::Consolidates { .. })).count()
}

fn resting(stage: &Stage) -> usize {
    let resting = stage.engine.state().resting.values();
    resting.filter(|until| **until > stage.now).count()
}

/// In place of a pod that moves comes one that fits no node but a large one: nothing is saved.
#[test]
fn a_pool_rests_whose_moves_save_nothing() {
    let mut stage = shrinking(&["a"]);
    assert_eq!(consolidations(&stage), 1);
    assert_eq!(resting(&stage), 0);
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 20_000;
    stage.event(Event::Deleted(ObjectKind::Pod, key("a")));
    comes(&mut stage, large.clone());
    stage.run(3, &[]);
    assert_eq!(stage.launches.len(), 3);
    assert_eq!(resting(&stage), 1);
    let shut = |report: &Report| matches!(report, Report::Shut { .. });
    assert!(stage.reports.iter().any(shut), "it is said");
    large.requests.cpu_milli = 100;
    stage.apply(WatchedObject::Node(Box::new(stage.node(2))));
    stage.run(2, &[]);
    stage.apply(bound(large, "node-2"));
    stage.run(480, &[]);
    assert_eq!((resting(&stage), consolidations(&stage)), (1, 1));
    stage.run(480, &[]);
    assert_eq!((resting(&stage), consolidations(&stage)), (0, 2));
}

/// The pod in whose place another was moved fits a node that is kept for somebody else, and the
/// scheduler sees no difference.
#[test]
fn a_pool_rests_whose_pods_take_the_places_of_others() {
    let mut stage = shrinking(&["a"]);
    let mut large = owned_pod("large");
    large.owner = None;
    large.requests.cpu_milli = 31_000;
    comes(&mut stage, large);
    stage.run(3, &["evict"]);
    assert_eq!(stage.launches.len(), 3, "a node for the large one");
    stage.apply(WatchedObject::Node(Box::new(stage.node(2))));
    stage.run(2, &["evict"]);
    stage.event(Event::Deleted(ObjectKind::Pod, key("a")));
    let mut replacement = owned_pod("heir");
    replacement.requests.cpu_milli = 2_000;
    stage.apply(bound(replacement, "node-2"));
    stage.run(120, &["evict"]);
    assert_eq!(stage.launches.len(), 4, "it needs another");
    assert_eq!(resting(&stage), 1);
}

/// The smaller node is not to be had, so that the large one stays after all.
#[test]
fn pods_that_wait_are_planned_as_soon_as_a_node_stays_for_others() {
    let mut stage = too_large(&["a"]);
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
    let stays = |report: &Report| matches!(report, Report::Kept { .. });
    assert!(stage.reports.iter().any(stays));
    assert_eq!(stage.launches.len(), 2, "the large pod gets a node at once");
    assert_eq!(resting(&stage), 0, "nobody has moved");
}

/// Whoever tolerates everything has come to the smaller node first, and leaves no room there.
#[test]
fn a_node_leaves_although_a_place_is_lost_if_another_costs_little() {
    let mut stage = too_large(&["a"]);
    stage.run(20, &[]);
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 3500;
    stage.apply(bound(large, "node-1"));
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(15, &["evict"]);
    assert_eq!(stage.launches.len(), 3, "one for the pod that is left over");
    let stays = |report: &Report| matches!(report, Report::Kept { .. });
    assert!(!stage.reports.iter().any(stays), "{:?}", stage.reports);
    stage.apply(WatchedObject::Node(Box::new(stage.node(2))));
    stage.run(15, &["evict"]);
    assert_eq!(stage.count("evict"), 1, "and goes there");
}

/// A controller that is busy makes the other pod seconds later.
#[test]
fn a_node_that_pods_are_about_to_be_made_anew_for_is_not_empty() {
    let mut stage = shrinking(&["a"]);
    stage.event(Event::Deleted(ObjectKind::Pod, key("a")));
    stage.run(8, &[]);
    comes(&mut stage, owned_pod("c"));
    stage.run(2, &[]);
    assert_eq!(told(&stage, "c").as_deref(), Some("node-1"));
    assert_eq!(stage.launches.len(), 2);
    let leaves = |report: &Report| {
        matches!(report, Report::Retire { node: Some(node), .. }
        if node.as_str() == "node-1")
    };
    assert!(!stage.reports.iter().any(leaves));
}

/// Between the weighing and the taint the scheduler may still bind whatever it likes.
#[test]
fn a_node_stays_that_a_pod_has_come_to_which_nobody_would_make_anew() {
    let mut stage = too_large(&["a"]);
    stage.run(20, &[]);
    stage.seen.clear();
    stage.apply(bound(waiting_pod("bare"), "node-0"));
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(4, &["evict"]);
    assert_eq!(stage.count("evict"), 0);
    let stays = |report: &Report| matches!(report, Report::Kept { why, .. } if why.contains("default/bare"));
    assert!(stage.reports.iter().any(stays));
}

/// The node that was made for them is not ready yet, and theirs is taken back meanwhile.
#[test]
fn pods_whose_node_goes_anyway_wait_for_no_wave() {
    let mut stage = too_large(&["a"]);
    stage.run(20, &[]);
    let mut node = stage.node(1);
    node.ready = false;
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &["evict"]);
    assert_eq!(stage.count("evict"), 0, "there is no place yet");
    let spot = Interruption::Spot;
    stage.event(Event::Interrupted("i-0".into(), spot, stage.now));
    stage.run(5, &["evict"]);
    assert_eq!(stage.count("evict"), 1, "{:?}", stage.seen);
}

#[test]
fn that_budgets_let_no_node_go_for_less_is_told_once() {
    let mut stage = too_large(&["a"]);
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(0));
    stage.reports.clear();
    stage.run(3 * 3600, &[]);
    assert_eq!(stage.launches.len(), 1, "nothing moves");
    let shut = stage.reports.iter().filter_map(|report| match report {
        Report::Shut { reason, why, .. } => Some((*reason, why.as_str())),
        _ => None,
    });
    let why = "the disruption budget of its pool allows 0 node(s) at a time";
    assert_eq!(shut.collect::<Vec<_>>(), [(Reason::Underutilized, why)]);
}
