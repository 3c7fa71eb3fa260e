//! Drifted, unhealthy and expired nodes, and the safeguards for them, step by step.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::coordination::lease_annotations::{ACCEPTED, PAUSE};
use outrigger::engine::Engine;
use outrigger::engine::command::{Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::claim::ClaimPhase;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::fleet::FleetView;
use outrigger::model::id::{ObjectKey, PodKey};
use outrigger::model::labels::{DO_NOT_DISRUPT, TERMINATION_AT};
use outrigger::model::node::ConditionStatus;
use outrigger::model::pdb::{Bound, Pdb};
use outrigger::model::pod::{Owner, Pod};
use outrigger::model::pool::{Budget, BudgetNodes, OnBlocked, Rate, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::selector::Selector;
use outrigger::model::template_hash::change_id;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, FailureKind, Interruption};

use super::termination::restart;
use super::{Stage, bound, pending_pod};

fn web(name: &str) -> Pod {
    let mut pod = pending_pod(name);
    pod.owner = Some(Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() });
    pod
}

/// A settled stage with this many nodes, each with one pod that needs a node of its own.
fn running(nodes: usize) -> Stage {
    running_with(nodes, |_| {})
}

/// [`running`] with a changed configuration.
pub(super) fn running_with(nodes: usize, change: impl FnOnce(&mut Cluster)) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(change);
    stage.change(|cluster| {
        let types = Requirement::is_in(["m6i.xlarge"]);
        let key = "node.kubernetes.io/instance-type";
        cluster.pools[0].requirements.add(key, types);
        cluster.pools[0].expire_after = None;
    });
    stage.sync(vec![], vec![]);
    for at in 0..nodes {
        let mut pod = web(&format!("p{at}"));
        pod.requests.cpu_milli = 2500;
        stage.apply(WatchedObject::Pod(Box::new(pod.clone())));
        stage.run(10, &[]);
        stage.register_node(at);
        stage.apply(bound(pod, &format!("node-{at}")));
        stage.run(2, &[]);
    }
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), nodes);
    stage.commands.clear();
    stage.reports.clear();
    stage
}

impl Stage {
    fn register_node(&mut self, launch: usize) {
        let node = self.node(launch);
        self.apply(WatchedObject::Node(Box::new(node)));
        self.run(3, &[]);
    }

    /// Changes the node class of the pool, so that all nodes drift.
    pub(super) fn drift(&mut self) {
        // No provider has reported node classes, so the class counts as ready.
        self.change(|cluster| cluster.pools[0].node_class = Some("other".into()));
    }

    pub(super) fn set_ready(&mut self, node: usize, ready: bool) {
        let name = format!("node-{node}");
        let now = self.now;
        let mut node = self.engine.state().objects.nodes[name.as_str()].clone();
        node.ready = ready;
        node.version = format!("{}!", node.version);
        let status = if ready { ConditionStatus::True } else { ConditionStatus::Unknown };
        node.set_condition("Ready", status, now);
        self.apply(WatchedObject::Node(Box::new(node)));
    }

    /// The number of nodes with the disrupted taint.
    pub(super) fn disrupted(&self) -> usize {
        let nodes = self.engine.state().objects.nodes.values();
        nodes.filter(|node| node.has_disrupted_taint()).count()
    }

    pub(super) fn report_texts(&self) -> Vec<String> {
        let texts = self.reports.iter().filter_map(|report| match report {
            Report::Drifted { node, why } => Some(format!("{node} has drifted: {why}")),
            Report::Retire { node, reason, .. } => {
                let node = node.as_ref()?;
                Some(format!("{node} is disrupted: {}", reason.as_str()))
            }
            Report::Kept { why, .. } => Some(format!("kept: {why}")),
            Report::Ailing(health) => {
                Some(format!("{} of {} are not ready", health.unready, health.total))
            }
            Report::Well(health) => {
                Some(format!("healthy: {} of {}", health.unready, health.total))
            }
            Report::Held(pending) => {
                Some(format!("{} of {} are held", pending.nodes.len(), pending.total))
            }
            Report::Unheld { nodes, .. } => Some(format!("{nodes} are held no more")),
            _ => None,
        });
        texts.collect()
    }

    fn pending_approval(&self) -> Option<String> {
        let pending_approval = self.engine.state().unaccepted.as_ref();
        pending_approval.map(|pending| pending.id.clone())
    }
}

#[test]
fn drifted_node_is_drained_once_its_replacement_has_registered() {
    let mut stage = running(1);
    stage.drift();
    stage.run(10, &[]);
    let texts = ["node-0 has drifted: NodePoolDrifted", "node-0 is disrupted: drifted"];
    assert_eq!(stage.report_texts(), texts);
    assert_eq!((stage.launches.len(), stage.count("evict")), (2, 0));
    stage.register_node(1);
    stage.run(10, &[]);
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
}

/// The pods of the held evictions.
fn evicted(held: &[IssuedCommand]) -> BTreeSet<PodKey> {
    let all = held.iter().filter_map(|issued| match &issued.command {
        Command::Evict { pod, .. } => Some(pod.clone()),
        _ => None,
    });
    all.collect()
}

#[test]
fn node_whose_replacement_registers_first_is_drained_first() {
    let mut stage = running(2);
    stage.drift();
    stage.run(10, &[]);
    assert_eq!((stage.launches.len(), stage.disrupted()), (4, 2));
    for launch in [3, 2] {
        let claims = &stage.engine.state().ledger.claims;
        let pods = claims[&stage.launches[launch].claim.id].pods.clone();
        stage.register_node(launch);
        let evicted_pods = evicted(&stage.run(10, &["evict"]));
        assert_eq!((evicted_pods, pods.len()), (pods, 1));
    }
}

#[test]
fn drifted_nodes_are_replaced_one_by_one_under_a_budget_of_one() {
    let mut stage = running(2);
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(1));
    stage.drift();
    for launch in [2, 3] {
        stage.run(60, &[]);
        assert_eq!((stage.launches.len(), stage.disrupted()), (launch + 1, 1));
        stage.register_node(launch);
        for pod in evicted(&stage.run(10, &["evict"])) {
            let pod = stage.engine.state().objects.pods[&pod].clone();
            stage.apply(bound(pod, &format!("node-{launch}")));
        }
        stage.run(60, &[]);
    }
    let remaining = stage.engine.state().objects.nodes.keys();
    let remaining: Vec<&str> = remaining.map(|name| name.as_str()).collect();
    assert_eq!(remaining, ["node-2", "node-3"]);
}

/// The patch that taints the node may still arrive.
#[test]
fn cancelled_disruption_counts_in_the_budget_while_the_taint_result_is_unknown() {
    let mut stage = running(2);
    let allow = |stage: &mut Stage, nodes| {
        stage.change(|cluster| {
            cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(nodes)
        });
    };
    allow(&mut stage, 1);
    stage.drift();
    let held = stage.run(18, &["launch", "patch_node"]);
    allow(&mut stage, 0);
    for IssuedCommand { id, command } in held {
        if matches!(command, Command::PatchNode(_)) {
            let (kind, text) = (FailureKind::Unknown, String::new());
            stage.event(Event::Answered(id, CommandResult::Failed { kind, text }));
        }
    }
    stage.run(2, &["launch"]);
    assert!(stage.report_texts()[2].starts_with("kept: "), "{:?}", stage.report_texts());
    allow(&mut stage, 1);
    stage.commands.clear();
    // The engine treats the watch of nodes as current for at most this long.
    stage.run(90, &["launch"]);
    assert_eq!(stage.count("patch_node"), 0, "{:?}", stage.report_texts());
    stage.run(90, &["launch"]);
    assert_eq!(stage.count("patch_node"), 1, "{:?}", stage.report_texts());
}

#[test]
fn number_of_drifted_nodes_is_reported_although_the_budget_is_zero() {
    let mut stage = running(2);
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(0));
    stage.drift();
    stage.run(10, &[]);
    let eligible = Report::Eligible { reason: Reason::Drifted, nodes: 2 };
    assert!(stage.reports.contains(&eligible), "{:?}", stage.reports);
    assert_eq!(stage.disrupted(), 0);
}

/// The pods cannot move before the deadline of the node, so a replacement would stay empty.
#[test]
fn no_replacement_is_launched_for_protected_pods_of_a_drifted_node() {
    for by_budget in [false, true] {
        let grace = SignedDuration::from_mins(10);
        let mut stage = running_with(1, |cluster| {
            cluster.pools[0].termination_grace_period = Some(grace);
        });
        if by_budget {
            stage.apply(WatchedObject::Pdb(Pdb {
                key: ObjectKey::new("default", "all"),
                selector: Some(Selector::default()),
                max_unavailable: Some(Bound::Count(0)),
                ..Pdb::default()
            }));
        } else {
            let mut pod = web("p0");
            pod.requests.cpu_milli = 2500;
            pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
            stage.apply(bound(pod, "node-0"));
        }
        stage.drift();
        stage.run(60, &[]);
        assert_eq!(stage.report_texts()[1..], ["node-0 is disrupted: drifted"]);
        assert_eq!((stage.launches.len(), stage.disrupted()), (1, 1));
    }
}

#[test]
fn termination_deadline_of_an_unhealthy_node_only_moves_earlier() {
    for minutes in [-30, 60] {
        let mut stage = running(1);
        let at = stage.now + SignedDuration::from_mins(minutes);
        let mut node = stage.only_node().clone();
        let annotation = (TERMINATION_AT.to_owned(), at.to_string());
        node.annotations.extend([annotation]);
        stage.apply(WatchedObject::Node(Box::new(node)));
        stage.set_ready(0, false);
        stage.run(30 * 60 + 10, &["terminate"]);
        assert_eq!(stage.report_texts(), ["node-0 is disrupted: unhealthy"]);
        let written = stage.only_node().termination_deadline().expect("a time");
        assert_eq!(written == at, minutes < 0, "{written} {at}");
        assert!(written <= stage.now);
    }
}

#[test]
fn no_replacement_is_launched_if_the_pods_of_a_drifted_node_fit_elsewhere() {
    let mut stage = running(1);
    // A node of a second pool that has capacity and no drift.
    stage.change(|cluster| {
        let mut second = cluster.pools[0].clone();
        second.name = "second".into();
        second.replicas = Some(1);
        cluster.pools.push(second);
    });
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 2);
    stage.register_node(1);
    stage.change(|cluster| cluster.pools[0].node_class = Some("other".into()));
    stage.run(30, &[]);
    assert_eq!(stage.launches.len(), 2, "{:?}", stage.report_texts());
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
}

#[test]
fn empty_drifted_node_is_terminated_although_consolidation_is_disabled() {
    let mut stage = running(1);
    stage.change(|cluster| cluster.pools[0].disruption.consolidate_after = None);
    let key = web("p0").key;
    stage.event(Event::Deleted(ObjectKind::Pod, key));
    stage.drift();
    stage.run(30, &[]);
    assert_eq!(stage.launches.len(), 1);
    assert_eq!(stage.count("terminate"), 1, "{:?}", stage.commands);
}

#[test]
fn drifted_node_is_untainted_without_a_replacement_and_the_next_is_tried() {
    let mut stage = running(2);
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(1));
    stage.drift();
    stage.run(60, &["launch"]);
    assert_eq!(stage.disrupted(), 1);
    assert_eq!(stage.report_texts()[1], "node-0 is disrupted: drifted");
    stage.run(60 * 20, &["launch"]);
    let report_texts = stage.report_texts();
    assert!(report_texts[2].starts_with("kept: its pods have found no place"), "{report_texts:?}");
    assert_eq!(report_texts[4], "node-1 is disrupted: drifted", "{report_texts:?}");
    assert_eq!((stage.disrupted(), stage.count("evict")), (1, 0));
}

#[test]
fn static_pool_replaces_drifted_nodes_one_by_one_before_terminating_them() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| {
        cluster.pools[0].replicas = Some(3);
        cluster.pools[0].limits.nodes = Some(4);
        cluster.pools[0].disruption.consolidate_after = None;
    });
    stage.sync(vec![], vec![]);
    stage.run(10, &[]);
    (0..3).for_each(|at| stage.register_node(at));
    stage.run(30, &[]);
    stage.drift();
    for round in 0..3 {
        stage.run(60, &[]);
        assert_eq!(stage.launches.len(), 4 + round, "{:?}", stage.report_texts());
        assert_eq!(stage.disrupted(), 1, "round {round}");
        assert_eq!(stage.count("terminate"), round, "the number of nodes stays");
        stage.register_node(3 + round);
        stage.run(20, &[]);
        assert_eq!(stage.count("terminate"), round + 1, "{:?}", stage.commands);
    }
    stage.run(600, &[]);
    assert_eq!((stage.launches.len(), stage.count("terminate")), (6, 3));
}

#[test]
fn hard_expired_node_is_drained_although_its_pods_have_no_replacement() {
    let mut stage = running(1);
    let hours = |count| Some(SignedDuration::from_hours(count));
    stage.change(|cluster| cluster.pools[0].expire_hard_after = hours(1));
    stage.run(60, &[]);
    let claims = &stage.engine.state().ledger.claims;
    let record = &claims.values().next().expect("a claim").record;
    assert_eq!(record.expire_hard_after, hours(1), "the record is updated in place");
    assert_eq!(stage.instances["i-0"].tags["outrigger.dev/expire-hard-after"], "3600");
    stage.commands.clear();
    stage.run(3700, &["launch"]);
    assert_eq!(stage.report_texts(), ["node-0 is disrupted: expired"]);
    assert_eq!(
        (stage.disrupted(), stage.count("evict")),
        (1, 0),
        "the node waits for a replacement"
    );
    stage.run(60 * 20, &["launch"]);
    assert!(stage.count("evict") > 0, "the wait has ended: {:?}", stage.commands);
    assert_eq!(stage.report_texts(), ["node-0 is disrupted: expired"]);
}

#[test]
fn hard_expired_node_ignores_pause_budgets_rates_and_on_blocked() {
    let mut stage = running(2);
    stage.change(|cluster| {
        let pool = &mut cluster.pools[0];
        pool.expire_hard_after = Some(SignedDuration::from_hours(1));
        pool.disruption.on_blocked = OnBlocked::Abort;
        pool.disruption.budgets[0].nodes = BudgetNodes::Nodes(0);
        pool.disruption.budgets[0].rate = Rate::parse("1/d");
    });
    stage.annotate(PAUSE, Some("always stop"));
    stage.run(3700, &["launch"]);
    let disrupted = ["node-0 is disrupted: expired", "node-1 is disrupted: expired"];
    assert_eq!(stage.report_texts(), disrupted);
    assert_eq!((stage.disrupted(), stage.count("patch_lease")), (2, 0));
    // The pods that are evicted after twenty minutes never disappear.
    stage.run(60 * 60, &["launch"]);
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
    assert_eq!(
        (stage.report_texts(), stage.disrupted()),
        (disrupted.map(str::to_owned).to_vec(), 2)
    );
}

#[test]
fn hard_expired_node_counts_in_fleet_budgets_even_after_a_restart() {
    let mut stage = running(1);
    let fleet = |stage: &mut Stage, number| {
        let budgets = vec![Budget {
            nodes: BudgetNodes::Nodes(0),
            rate: None,
            reasons: Vec::new(),
            during: None,
        }];
        let view = FleetView { number, budgets, ..FleetView::default() };
        stage.event(Event::FleetChanged(Some(Arc::new(view))));
    };
    fleet(&mut stage, 1);
    stage
        .change(|cluster| cluster.pools[0].expire_hard_after = Some(SignedDuration::from_hours(1)));
    stage.run(3500, &["launch"]);
    assert_eq!(stage.disruption_usage.leaving.len(), 0, "{:?}", stage.report_texts());
    stage.run(200, &["launch"]);
    assert_eq!((stage.disrupted(), stage.disruption_usage.leaving.len()), (1, 1));
    stage.run(60 * 20, &["launch"]);
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
    restart(&mut stage);
    fleet(&mut stage, 1);
    stage.run(20, &["launch"]);
    assert_eq!((stage.disrupted(), stage.disruption_usage.leaving.len()), (1, 1));
}

#[test]
fn do_not_disrupt_pod_is_not_evicted_even_from_a_hard_expired_node() {
    let mut stage = running(1);
    let mut pod = web("p0");
    pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
    stage.apply(bound(pod, "node-0"));
    stage
        .change(|cluster| cluster.pools[0].expire_hard_after = Some(SignedDuration::from_hours(1)));
    stage.run(3700, &[]);
    assert_eq!(stage.report_texts(), ["node-0 is disrupted: expired"]);
    stage.run(60 * 60, &[]);
    assert_eq!((stage.disrupted(), stage.count("evict"), stage.count("terminate")), (1, 0, 0));
}

#[test]
fn unhealthy_node_is_terminated_without_a_drain_once_the_state_is_in_sync() {
    let mut stage = running(1);
    stage.set_ready(0, false);
    stage.run(29 * 60, &[]);
    assert_eq!(stage.report_texts(), [""; 0]);
    stage.event(Event::WatchLost(ObjectKind::Pdb, String::new()));
    stage.run(10 * 60, &[]);
    assert_eq!(stage.report_texts(), [""; 0], "{:?}", stage.commands);
    stage.event(Event::Reset(ObjectKind::Pdb, Vec::new()));
    stage.run(30, &[]);
    assert_eq!(stage.report_texts(), ["node-0 is disrupted: unhealthy"]);
    assert_eq!((stage.count("terminate"), stage.count("evict")), (1, 0));
    assert_eq!(stage.launches.len(), 2, "its pods get a replacement node");
}

/// EC2 reports failed status checks of these nodes each minute, for this many minutes.
fn fail_checks(stage: &mut Stage, nodes: &[usize], minutes: usize) {
    for _ in 0..minutes {
        for at in nodes {
            let instance = format!("i-{at}").into();
            let failed = Interruption::Failed;
            stage.event(Event::interrupted(instance, failed, stage.now));
        }
        stage.run(60, &["launch"]);
    }
}

#[test]
fn failed_checks_on_many_nodes_at_once_terminate_none_of_them() {
    let mut stage = running(10);
    fail_checks(&mut stage, &[2, 4, 6], 10);
    let why = "kept: 3 of 10 nodes in its pool are unhealthy, too many to replace them";
    assert_eq!(stage.report_texts(), [why; 3]);
    assert_eq!(stage.count("patch_node"), 0, "{:?}", stage.commands);
    // Two nodes recover: EC2 does not report failed checks of them any more.
    stage.reports.clear();
    fail_checks(&mut stage, &[4], 3);
    assert_eq!(stage.report_texts(), ["node-4 is disrupted: unhealthy"]);
    assert_eq!((stage.count("terminate"), stage.count("evict")), (1, 0));
}

#[test]
fn checks_that_failed_while_out_of_sync_terminate_only_nodes_that_still_fail() {
    for still in [false, true] {
        let mut stage = running(10);
        stage.event(Event::WatchLost(ObjectKind::Pdb, String::new()));
        fail_checks(&mut stage, &[4], 5);
        let (last, outcome): (&[usize], _) = if still { (&[4], "fails") } else { (&[], "is well") };
        fail_checks(&mut stage, last, 4);
        assert_eq!(stage.count("terminate"), 0, "{outcome}");
        stage.event(Event::Reset(ObjectKind::Pdb, Vec::new()));
        stage.run(30, &["launch"]);
        assert_eq!(stage.count("terminate"), usize::from(still), "{outcome}");
    }
}

#[test]
fn voluntary_disruption_stops_while_too_many_nodes_are_not_ready() {
    let mut stage = running(4);
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(2));
    stage.drift();
    stage.run(10, &["launch"]);
    assert_eq!(stage.disrupted(), 2, "two nodes wait for replacements");
    stage.reports.clear();
    // Both other nodes become unready: two are too few for the safeguard.
    (2..4).for_each(|at| stage.set_ready(at, false));
    stage.run(10, &["launch"]);
    assert_eq!(stage.report_texts(), [""; 0]);
    stage.change(|cluster| cluster.safeguards.max_unready = BudgetNodes::Nodes(0));
    (0..2).for_each(|at| stage.set_ready(at, false));
    stage.run(60 * 21, &["launch"]);
    stage.reports.clear();
    stage.run(60, &["launch"]);
    let report_texts = stage.report_texts();
    assert_eq!(stage.disrupted(), 0, "{report_texts:?}");
    assert_eq!(report_texts, [""; 0], "reported once, and no node is disrupted");
    (0..4).for_each(|at| stage.set_ready(at, true));
    stage.run(60 * 5, &["launch"]);
    let report_texts = stage.report_texts();
    assert_eq!(report_texts[0], "healthy: 0 of 4", "{report_texts:?}");
    assert_eq!(stage.disrupted(), 2, "{report_texts:?}");
}

#[test]
fn waiting_disruption_is_cancelled_when_the_cluster_becomes_unhealthy() {
    let mut stage = running(5);
    stage.change(|cluster| cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(1));
    stage.drift();
    stage.run(10, &["launch"]);
    assert_eq!(stage.disrupted(), 1);
    stage.reports.clear();
    (1..5).for_each(|at| stage.set_ready(at, false));
    stage.run(10, &["launch"]);
    let why = "kept: 4 of 5 nodes in the cluster are not ready";
    assert_eq!(stage.report_texts(), ["4 of 5 are not ready", why]);
    assert_eq!((stage.disrupted(), stage.count("evict")), (0, 0));
}

#[test]
fn reload_that_disrupts_too_many_nodes_waits_for_acceptance() {
    let mut stage = running(3);
    stage.change(|cluster| {
        cluster.safeguards.max_disrupted_per_reload = Some(BudgetNodes::Percent(20))
    });
    stage.run(5, &[]);
    assert_eq!(stage.report_texts(), [""; 0], "this change disrupts no node");
    stage.drift();
    stage.run(60, &[]);
    assert_eq!(stage.report_texts(), ["3 of 3 are held"], "reported once");
    assert_eq!(stage.disrupted(), 0);
    let id = stage.pending_approval().expect("held");
    stage.annotate(ACCEPTED, Some("another"));
    stage.run(60, &[]);
    assert_eq!(stage.pending_approval().as_ref(), Some(&id));
    stage.annotate(ACCEPTED, Some(&id));
    stage.run(60, &["launch"]);
    assert_eq!(stage.report_texts()[1], "3 are held no more");
    assert_eq!(stage.disrupted(), 3, "{:?}", stage.report_texts());
}

#[test]
fn reload_that_disrupts_few_nodes_applies_and_a_reverted_one_holds_none() {
    let mut stage = running(3);
    let limit_to_two = |cluster: &mut Cluster| {
        cluster.safeguards.max_disrupted_per_reload = Some(BudgetNodes::Nodes(2));
    };
    stage.change(limit_to_two);
    stage.run(5, &[]);
    let before = Cluster::clone(&stage.engine.state().cluster);
    stage.drift();
    stage.run(5, &[]);
    assert!(stage.pending_approval().is_some());
    stage.set(before.clone());
    stage.run(60, &[]);
    assert_eq!(stage.report_texts(), ["3 of 3 are held", "3 are held no more"]);
    assert_eq!((stage.pending_approval(), stage.disrupted()), (None, 0));
    // Another reload that does not affect the held nodes does not release them.
    stage.drift();
    stage.run(5, &[]);
    stage.change(|cluster| cluster.pools[0].weight = 3);
    stage.run(5, &[]);
    assert!(stage.pending_approval().is_some());
    stage.change(|cluster| {
        cluster.safeguards.max_disrupted_per_reload = Some(BudgetNodes::Nodes(3))
    });
    stage.run(5, &["launch"]);
    assert_eq!(stage.disrupted(), 3, "{:?}", stage.report_texts());
    // A reload that adds no disruption does not hold nodes that were released before.
    stage.change(limit_to_two);
    stage.run(5, &["launch"]);
    assert_eq!(stage.pending_approval(), None);
}

#[test]
fn startup_holds_a_configuration_that_disrupts_too_many_nodes_unless_accepted() {
    for accepted in [false, true] {
        let mut stage = running(3);
        let mut cluster = Cluster::clone(&stage.engine.state().cluster);
        cluster.safeguards.max_disrupted_per_reload = Some(BudgetNodes::Percent(20));
        cluster.pools[0].node_class = Some("other".into());
        let id = change_id(&cluster);
        let state = stage.engine.state();
        let nodes = state.objects.nodes.values().cloned().collect();
        let pods = state.objects.pods.values().cloned().collect();
        stage.engine = Engine::new(8);
        stage.start(ManagementMode::Manage);
        stage.set(cluster);
        if accepted {
            stage.annotate(ACCEPTED, Some(&id));
        }
        stage.sync(nodes, pods);
        stage.run(30, &["launch"]);
        assert_eq!(stage.pending_approval().is_none(), accepted);
        assert_eq!(stage.disrupted(), if accepted { 3 } else { 0 }, "{:?}", stage.report_texts());
    }
}

#[test]
fn nodes_of_a_removed_pool_are_disrupted_one_by_one() {
    let mut stage = running(3);
    stage.change(|cluster| {
        let mut other = cluster.pools[0].clone();
        other.name = "other".into();
        cluster.pools = vec![other];
    });
    for round in 0..3 {
        stage.run(20, &[]);
        assert_eq!(
            stage.disrupted(),
            1,
            "a budget of 10% allows one of three nodes: {:?}",
            stage.report_texts()
        );
        assert_eq!(stage.launches.len(), 4 + round);
        stage.register_node(3 + round);
        let pod = web(&format!("p{round}"));
        // The eviction succeeds; the controller creates another pod, bound to the new node.
        stage.run(5, &[]);
        stage.event(Event::Deleted(ObjectKind::Pod, pod.key.clone()));
        let mut again = web(&format!("q{round}"));
        again.requests.cpu_milli = 2500;
        stage.apply(bound(again, &format!("node-{}", 3 + round)));
        stage.run(30, &[]);
        let claims = stage.engine.state().ledger.claims.values();
        let remaining = claims.filter(|claim| claim.record.pool.as_str() == "general");
        let remaining = remaining.filter(|claim| claim.phase < ClaimPhase::Draining).count();
        assert!(remaining <= 2 - round, "{:?}", stage.report_texts());
    }
    stage.run(120, &[]);
    assert_eq!(stage.count("terminate"), 3, "{:?}", stage.commands);
}

/// A shorter expiration disrupts nodes although their template does not change.
#[test]
fn reload_that_expires_too_many_nodes_waits_for_acceptance() {
    for hard in [false, true] {
        let mut stage = running(3);
        let limit = |cluster: &mut Cluster| {
            cluster.safeguards.max_disrupted_per_reload = Some(BudgetNodes::Percent(20))
        };
        stage.change(limit);
        stage.run(3 * 3600, &["launch"]);
        stage.change(|cluster| {
            let pool = &mut cluster.pools[0];
            let age = Some(SignedDuration::from_hours(3));
            if hard {
                pool.expire_hard_after = age;
            } else {
                (pool.expire_after, pool.disruption.budgets[0].nodes) =
                    (age, BudgetNodes::Percent(100));
            }
        });
        stage.run(600, &["launch"]);
        assert_eq!(stage.report_texts(), ["3 of 3 are held"], "{hard}");
        // After a restart the engine knows the earlier expiration only from the tags.
        restart(&mut stage);
        stage.run(600, &["launch"]);
        assert_eq!(stage.disrupted(), 0, "{hard} {:?}", stage.report_texts());
        let id = stage.pending_approval().expect("still held");
        stage.annotate(ACCEPTED, Some(&id));
        stage.run(600, &["launch"]);
        assert_eq!(stage.disrupted(), 3, "{hard} {:?}", stage.report_texts());
    }
}

#[test]
fn drifted_node_with_a_do_not_disrupt_pod_is_reported_once() {
    let mut stage = running(1);
    let mut pod = web("p0");
    pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
    stage.apply(bound(pod, "node-0"));
    stage.drift();
    stage.run(3600, &[]);
    let blocked = stage.reports.iter().filter_map(|report| match report {
        Report::Shut { reason, why, .. } => Some(format!("{}: {why}", reason.as_str())),
        _ => None,
    });
    let why = "drifted: node node-0: pod default/p0 is annotated karpenter.sh/do-not-disrupt=true";
    assert_eq!(blocked.collect::<Vec<_>>(), [why]);
}

#[test]
fn nodes_still_tainted_on_a_switch_to_observe_mode_are_reported_once() {
    let mut stage = running(1);
    stage.drift();
    stage.run(30, &["launch"]);
    assert_eq!(stage.disrupted(), 1);
    let still_tainted = |stage: &Stage| {
        let still_tainted = stage.reports.iter().filter_map(|report| match report {
            Report::LeftClosed { nodes } => Some(*nodes),
            _ => None,
        });
        still_tainted.collect::<Vec<_>>()
    };
    stage.change(|cluster| cluster.mode = ManagementMode::Observe);
    stage.run(60, &[]);
    assert_eq!(still_tainted(&stage), [1]);
    stage.change(|cluster| cluster.pools[0].weight = 3);
    assert_eq!(still_tainted(&stage), [1], "reported once");
}
