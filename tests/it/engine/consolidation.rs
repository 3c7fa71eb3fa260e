//! Consolidation step by step: the disruption of nodes, and the conditions that stop it.

use jiff::SignedDuration;
use outrigger::engine::command::{Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::{DO_NOT_DISRUPT, INSTANCE_TYPE, POOL};
use outrigger::model::pdb::{Bound, Pdb};
use outrigger::model::pod::{Owner, Pod};
use outrigger::model::pool::{Budget, BudgetNodes, Consolidation, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::selector::Selector;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::model::window::Window;
use outrigger::provider::CommandResult;

use super::replacement_nodes::{disruptions, expiring};
use super::{Stage, bound, pending_pod};

/// A pod that requires this pool; two such pods fit on one node.
fn small(name: &str, pool: &str) -> Pod {
    let mut pod = pending_pod(name);
    pod.requests.cpu_milli = 900;
    pod.node_selector.insert(POOL.into(), pool.into());
    pod.owner = Some(Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() });
    pod
}

/// A stage with `nodes` nodes of each pool, each of which had two pods and has just kept `left`.
fn underutilized(pools: &[&str], nodes: usize, left: usize) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| {
        let types = Requirement::is_in(["m5.large"]);
        cluster.pools[0].requirements.add(INSTANCE_TYPE, types);
        cluster.pools[0].expire_after = None;
        let named = pools.iter().map(|name| {
            let mut pool = cluster.pools[0].clone();
            pool.name = (*name).into();
            pool
        });
        cluster.pools = named.collect();
    });
    stage.sync(vec![], vec![]);
    for at in 0..pools.len() * nodes {
        let both = ["a", "b"].map(|kind| small(&format!("{kind}{at}"), pools[at / nodes]));
        for pod in &both {
            stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
        }
        stage.run(10, &[]);
        stage.apply(WatchedObject::Node(Box::new(stage.node(at))));
        stage.run(3, &[]);
        for pod in both {
            stage.apply(bound(pod, &format!("node-{at}")));
        }
        stage.run(2, &[]);
    }
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), pools.len() * nodes);
    for at in 0..stage.launches.len() {
        for kind in &["a", "b"][left..] {
            let key = ObjectKey::new("default", format!("{kind}{at}"));
            stage.event(Event::Deleted(ObjectKind::Pod, key));
        }
    }
    stage.commands.clear();
    stage.reports.clear();
    stage
}

/// Advances the clock; every evicted pod disappears at once.
fn run(stage: &mut Stage, seconds: i64) {
    for _ in 0..seconds {
        for issued in stage.run(1, &["evict"]) {
            stage.event(Event::Answered(issued.id, CommandResult::Done));
            if let Command::Evict { pod, .. } = issued.command {
                stage.event(Event::Deleted(ObjectKind::Pod, pod));
            }
        }
    }
}

fn tainted(stage: &Stage) -> usize {
    let nodes = stage.engine.state().objects.nodes.values();
    nodes.filter(|node| node.has_disrupted_taint()).count()
}

#[test]
fn node_whose_pods_fit_elsewhere_is_disrupted_without_a_replacement() {
    let mut stage = underutilized(&["general"], 2, 1);
    stage.run(60, &["evict"]);
    assert_eq!(disruptions(&stage), ["disrupted: underutilized"]);
    assert_eq!(stage.commands, ["patch_node", "list_pods_on", "evict"]);
    let figures = stage.reports.iter().find_map(|report| match report {
        Report::Consolidates { nodes, claims, before, after, .. } => {
            Some((*nodes, *claims, before.usd_per_h(), after.usd_per_h()))
        }
        _ => None,
    });
    let prices = stage.reports.iter().find_map(|report| match report {
        Report::Retire { price, .. } => *price,
        _ => None,
    });
    let price = prices.expect("the price is known").usd_per_h();
    assert!(price > 0.0);
    assert_eq!(figures, Some((1, 0, price, 0.0)), "{:?}", stage.reports);
    let phases = stage.run(60, &["evict"]);
    assert!(phases.iter().all(|issued| issued.command.name() == "evict"));
}

/// The other node is blocked for its own reasons, so its own time does not wake the engine.
#[test]
fn node_is_disrupted_once_consolidate_after_of_the_receiving_node_has_passed() {
    let mut stage = underutilized(&["lean", "kept"], 1, 1);
    let mut anywhere = small("a0", "lean");
    anywhere.node_selector.clear();
    stage.apply(bound(anywhere, "node-0"));
    stage.change(|cluster| {
        cluster.pools[0].disruption.consolidate_after = Some(SignedDuration::ZERO);
        let kept = &mut cluster.pools[1].disruption;
        kept.consolidation = Consolidation::Empty;
        kept.consolidate_after = Some(SignedDuration::from_mins(30));
    });
    stage.run(29 * 60, &["evict"]);
    assert!(disruptions(&stage).is_empty(), "{:?}", disruptions(&stage));
    stage.run(2 * 60, &["evict"]);
    assert_eq!(disruptions(&stage), ["disrupted: underutilized"]);
    let nodes = &stage.engine.state().objects.nodes;
    assert!(nodes["node-0"].has_disrupted_taint());
}

/// A larger pod that fits only there arrives while the API server still lists the pods of the node.
#[test]
fn pods_being_consolidated_keep_the_capacity_reserved_for_them() {
    let mut stage = underutilized(&["general"], 2, 1);
    let held = stage.run(40, &["list_pods_on"]);
    assert_eq!((held.len(), tainted(&stage)), (1, 1));
    let mut larger = pending_pod("larger");
    larger.requests.cpu_milli = 1000;
    stage.apply(WatchedObject::Pod(Box::new(larger)));
    stage.run(11, &["list_pods_on"]);
    assert_eq!(stage.launches.len(), 3, "the larger pod gets a node of its own");
    assert_eq!((disruptions(&stage).len(), tainted(&stage)), (1, 1), "the disruption continues");
}

/// Applies the patch that taints a node, and returns the name of the node.
fn taint(stage: &mut Stage, held: &[IssuedCommand]) -> String {
    let found = held.iter().find_map(|issued| match &issued.command {
        Command::PatchNode(patch) => Some((issued.id, patch.clone())),
        _ => None,
    });
    let (id, patch) = found.expect("the engine taints a node");
    stage.patch(&patch);
    stage.event(Event::Answered(id, CommandResult::Done));
    patch.node.to_string()
}

#[test]
fn consolidation_is_cancelled_if_a_blocking_pod_or_pdb_appears_before_eviction() {
    for by_budget in [false, true] {
        let mut stage = underutilized(&["general"], 2, 1);
        let held = stage.run(40, &["patch_node"]);
        assert_eq!(disruptions(&stage), ["disrupted: underutilized"]);
        let Some(Command::PatchNode(patch)) = held.first().map(|issued| &issued.command) else {
            panic!("{held:?}");
        };
        let mut late = small("late", "general");
        if by_budget {
            stage.apply(WatchedObject::Pdb(Pdb {
                key: ObjectKey::new("default", "all"),
                selector: Some(Selector::default()),
                max_unavailable: Some(Bound::Count(0)),
                ..Pdb::default()
            }));
        } else {
            late.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
        }
        stage.apply(bound(late, patch.node.as_str()));
        taint(&mut stage, &held);
        stage.run(20, &["evict"]);
        let texts = disruptions(&stage);
        assert!(texts[1].starts_with("kept: pod default/"), "{texts:?}");
        let reason = stage.reports.iter().find_map(|report| match report {
            Report::Kept { reason, .. } => Some(*reason),
            _ => None,
        });
        assert_eq!(reason, Some(Reason::Underutilized));
        assert_eq!((stage.count("evict"), tainted(&stage)), (0, 0));
    }
}

#[test]
fn new_pod_is_planned_onto_the_replacement_being_launched() {
    let mut stage = expiring();
    let launch = stage.run(30, &["launch"]);
    assert_eq!(launch.len(), 1, "{launch:?}");
    let mut pod = pending_pod("late");
    pod.requests.cpu_milli = 100;
    pod.requests.memory = 100 << 20;
    stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
    assert_eq!(stage.run(30, &["launch"]).len(), 0);
    let answer = stage.answer(&launch[0].command);
    stage.event(Event::Answered(launch[0].id, answer));
    stage.run(10, &[]);
    let claims = stage.engine.state().ledger.claims.values();
    let planned = claims.filter(|claim| claim.pods.contains(&pod.key));
    assert_eq!((planned.count(), stage.launches.len()), (1, 2));
}

/// Sets this budget as the only one of every pool.
fn budgets(stage: &mut Stage, budget: &Budget) {
    stage.change(|cluster| {
        for pool in &mut cluster.pools {
            pool.disruption.budgets = vec![budget.clone()];
        }
    });
}

fn budget_of(nodes: u32) -> Budget {
    Budget { nodes: BudgetNodes::Nodes(nodes), rate: None, reasons: Vec::new(), during: None }
}

#[test]
fn node_blocked_by_a_budget_is_disrupted_once_other_disruptions_end() {
    let mut stage = underutilized(&["general"], 4, 1);
    budgets(&mut stage, &budget_of(1));
    let mut max_tainted = 0;
    for _ in 0..200 {
        run(&mut stage, 1);
        max_tainted = max_tainted.max(tainted(&stage));
    }
    let nodes = stage.engine.state().objects.nodes.len();
    assert_eq!(max_tainted, 1);
    assert!(nodes <= 2, "{nodes} nodes for pods of one or two");
}

/// A window in which nothing may be disrupted closes: no event reports that to the engine.
#[test]
fn node_blocked_by_a_budget_is_disrupted_when_the_budget_window_closes() {
    for pools in [&["general"][..], &["general", "others"]] {
        for left in [0, 1] {
            let mut stage = underutilized(pools, 2, left);
            let hour = SignedDuration::from_hours(1);
            let nine = Window::new("0 8 * * *", hour, "UTC").expect("a window");
            let closed_window = Budget { during: Some(nine), ..budget_of(0) };
            budgets(&mut stage, &closed_window);
            let until_next_hour = 3600 - stage.now.as_second().rem_euclid(3600);
            run(&mut stage, until_next_hour - 30);
            assert_eq!(disruptions(&stage), [""; 0], "{pools:?} {left}");
            run(&mut stage, 60);
            // Of two used nodes one remains.
            let expect = pools.len() * (2 - left);
            assert_eq!(
                disruptions(&stage).len(),
                expect,
                "{pools:?} {left}: {:?}",
                disruptions(&stage)
            );
        }
    }
}

#[test]
fn empty_node_is_disrupted_before_an_underutilized_one_under_a_budget_of_one() {
    for policy in [Consolidation::EmptyOrUnderutilized, Consolidation::Balanced] {
        let mut stage = underutilized(&["general"], 4, 1);
        stage.change(|cluster| cluster.pools[0].disruption.consolidation = policy);
        budgets(&mut stage, &budget_of(1));
        let key = ObjectKey::new("default", "a3");
        stage.event(Event::Deleted(ObjectKind::Pod, key));
        stage.run(60, &["evict"]);
        assert_eq!(disruptions(&stage)[0], "disrupted: empty");
        let terminated = stage.instances.values();
        let terminated = terminated.filter(|instance| !instance.state.is_live());
        let terminated: Vec<&str> = terminated.map(|instance| instance.id.as_str()).collect();
        assert_eq!(terminated, ["i-3"], "{policy:?}");
    }
}

/// The number of nodes eligible for a reason, as last reported.
fn eligible(stage: &Stage, of: Reason) -> usize {
    let eligible_nodes = stage.reports.iter().rev().find_map(|report| match report {
        Report::Eligible { reason, nodes } if *reason == of => Some(*nodes),
        _ => None,
    });
    eligible_nodes.unwrap_or(0)
}

#[test]
fn eligible_nodes_are_reported_although_budgets_block_them() {
    for (left, counts) in [(0, (2, 0)), (1, (0, 2))] {
        let mut stage = underutilized(&["general"], 2, left);
        budgets(&mut stage, &budget_of(0));
        stage.run(60, &[]);
        assert_eq!(disruptions(&stage), [""; 0]);
        let all = [Reason::Empty, Reason::Underutilized].map(|reason| eligible(&stage, reason));
        assert_eq!((all[0], all[1]), counts, "{left}");
    }
}
