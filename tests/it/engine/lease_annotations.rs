//! Lease annotations pause disruptions, and disruptions under a rate are first recorded there.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::coordination::lease_annotations::{DISRUPTED_NODES, PAUSE, PAUSE_POOL};
use outrigger::engine::Engine;
use outrigger::engine::command::{Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::fleet::Fleet;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::fleet::FleetLimits;
use outrigger::model::pool::{Budget, BudgetNodes, Rate};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, FailureKind};

use super::{Stage, anti_affine_pods, bound};

const MINUTE: i64 = 60;

fn rate(text: &str) -> Budget {
    Budget {
        nodes: BudgetNodes::Percent(100),
        rate: Rate::parse(text),
        reasons: Vec::new(),
        during: None,
    }
}

/// Four empty nodes, seconds before `consolidateAfter` has passed.
pub(super) fn four_empty_nodes(configure: impl FnOnce(&mut Cluster)) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(configure);
    let pods = anti_affine_pods(["a", "b", "c", "d"]);
    stage.sync(vec![], pods.to_vec());
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 4);
    for at in 0..4 {
        stage.apply(WatchedObject::Node(Box::new(stage.node(at))));
    }
    stage.run(2, &[]);
    for (at, pod) in pods.iter().enumerate() {
        stage.apply(bound(pod.clone(), &format!("node-{at}")));
    }
    stage.run(5, &[]);
    for pod in pods {
        stage.event(Event::Deleted(ObjectKind::Pod, pod.key));
    }
    stage.run(20, &[]);
    stage.commands.clear();
    stage.reports.clear();
    stage
}

fn with_rate(text: &str) -> impl FnOnce(&mut Cluster) {
    let budget = rate(text);
    |cluster| cluster.pools[0].disruption.budgets = vec![budget]
}

/// The number of existing nodes without the disrupted taint.
fn untainted(stage: &Stage) -> usize {
    let nodes = stage.engine.state().objects.nodes.values();
    nodes.filter(|node| !node.has_disrupted_taint()).count()
}

/// Another host takes over with an empty state.
fn restart(stage: &mut Stage) {
    let state = stage.engine.state();
    let cluster = Cluster::clone(&state.cluster);
    let catalog = state.catalog.clone();
    let nodes = state.objects.nodes.values().cloned().collect();
    stage.engine = Engine::new(8);
    stage.set(cluster);
    stage.event(Event::CatalogChanged(catalog));
    stage.sync(nodes, vec![]);
}

fn refuse(stage: &mut Stage, issued: Vec<IssuedCommand>, kind: FailureKind) {
    for issued in issued {
        let text = "so it is".to_owned();
        let answer = CommandResult::Failed { kind, text };
        stage.event(Event::Answered(issued.id, answer));
    }
}

fn report_texts(stage: &Stage) -> Vec<String> {
    let texts = stage.reports.iter().filter_map(|report| match report {
        Report::Paused { pool, why, .. } => Some(format!("paused {pool:?}: {why}")),
        Report::Resumed { pool } => Some(format!("resumed {pool:?}")),
        Report::Shut { why, .. } => Some(format!("shut: {why}")),
        Report::Kept { why, .. } => Some(format!("kept: {why}")),
        Report::Failed { command, text, .. } => Some(format!("{command}: {text}")),
        _ => None,
    });
    texts.collect()
}

fn recorded(stage: &Stage) -> usize {
    let lease = stage.lease.as_ref().expect("a Lease");
    lease.annotations[DISRUPTED_NODES].matches(';').count()
}

#[test]
fn rate_limits_the_nodes_disrupted_within_an_hour() {
    let mut stage = four_empty_nodes(with_rate("2/h"));
    stage.run(30 * MINUTE, &[]);
    assert_eq!((stage.count("terminate"), untainted(&stage)), (2, 2));
    assert_eq!(stage.commands[..3], ["patch_lease", "patch_node", "patch_node"]);
    assert_eq!(recorded(&stage), 2);
    stage.run(29 * MINUTE, &[]);
    assert_eq!(stage.count("terminate"), 2);
    stage.run(5 * MINUTE, &[]);
    assert_eq!((stage.count("terminate"), untainted(&stage)), (4, 0));
    assert_eq!((stage.count("patch_lease"), recorded(&stage)), (2, 2));
}

#[test]
fn lease_is_not_written_without_a_rate() {
    let mut stage = four_empty_nodes(|_| {});
    stage.run(10 * MINUTE, &[]);
    assert_eq!((stage.count("terminate"), &stage.lease), (4, &None));
    assert_eq!(stage.count("patch_lease"), 0);
}

#[test]
fn node_is_tainted_only_after_its_disruption_is_recorded_on_the_lease() {
    let mut stage = four_empty_nodes(with_rate("4/h"));
    let held = stage.run(MINUTE, &["patch_lease"]);
    assert_eq!(stage.commands, ["patch_lease"]);
    assert_eq!(untainted(&stage), 4);
    refuse(&mut stage, held, FailureKind::Denied);
    stage.run(5, &[]);
    let why = "kept: the disruption could not be recorded: so it is".to_owned();
    let mut expect = vec![why; 5];
    expect[0] = "patch_lease: so it is".to_owned();
    assert_eq!(report_texts(&stage), expect);
    assert_eq!((untainted(&stage), stage.count("patch_node")), (4, 0));
    // The engine retries.
    stage.run(2 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 0);
}

#[test]
fn crash_at_any_step_does_not_exceed_the_disruption_rate() {
    for step in ["patch_lease", "patch_node", "list_pods_on", "terminate", "delete_node"] {
        for done in [false, true] {
            let mut stage = four_empty_nodes(with_rate("2/h"));
            let held = stage.run(15, &[step]);
            if done {
                for issued in held {
                    stage.answer(&issued.command);
                }
            }
            restart(&mut stage);
            stage.run(40 * MINUTE, &[]);
            let terminated = stage.instances.values().filter(|instance| !instance.state.is_live());
            assert_eq!(terminated.count(), 2, "{step} {done}");
            assert_eq!(untainted(&stage), 2, "{step} {done}");
        }
    }
}

#[test]
fn disruptions_recorded_concurrently_by_another_writer_count_in_the_rate() {
    let mut stage = four_empty_nodes(with_rate("2/h"));
    let held = stage.run(5, &["patch_lease"]);
    let second = stage.now.as_second();
    let theirs = format!("v1;x {second} empty general;y {second} empty general");
    stage.annotate(DISRUPTED_NODES, Some(&theirs));
    for issued in held {
        let answer = stage.answer(&issued.command);
        stage.event(Event::Answered(issued.id, answer));
    }
    stage.run(50 * MINUTE, &[]);
    assert_eq!((untainted(&stage), stage.count("patch_node")), (4, 0));
    assert_eq!(stage.lease.as_ref().expect("theirs").annotations[DISRUPTED_NODES], theirs);
    stage.run(20 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 2);
}

#[test]
fn lease_annotations_of_other_writers_are_kept() {
    let mut stage = four_empty_nodes(with_rate("2/h"));
    stage.annotate("example.com/note", Some("mine"));
    stage.run(MINUTE, &[]);
    let lease = stage.lease.as_ref().expect("a Lease");
    assert_eq!(lease.annotations["example.com/note"], "mine");
    assert_eq!(recorded(&stage), 2);
}

#[test]
fn deleted_lease_is_recreated_with_all_recorded_disruptions() {
    let mut stage = four_empty_nodes(with_rate("3/h"));
    stage.change(with_rate("2/h"));
    stage.run(10 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 2);
    stage.lease = None;
    stage.run(10 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 2, "the engine remembers the disrupted nodes");
    stage.change(with_rate("3/h"));
    stage.run(10 * MINUTE, &[]);
    assert_eq!((untainted(&stage), recorded(&stage)), (1, 3));
}

#[test]
fn invalid_disruption_record_exhausts_the_rate_and_is_reported_once() {
    let mut stage = four_empty_nodes(with_rate("2/h"));
    stage.annotate(DISRUPTED_NODES, Some("nonsense"));
    stage.run(30 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 4);
    let why = format!("the Lease annotation {DISRUPTED_NODES} is invalid at \"nonsense\"");
    let texts = report_texts(&stage);
    let failed = texts.iter().filter(|text| **text == format!("read_lease: {why}"));
    let blocked = texts.iter().filter(|text| **text == format!("shut: {why}"));
    assert_eq!((failed.count(), blocked.count()), (1, 1), "{texts:?}");
    stage.annotate(DISRUPTED_NODES, None);
    stage.run(2 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 2);
}

#[test]
fn nothing_is_disrupted_while_the_cluster_is_paused_even_after_a_restart() {
    let mut stage = four_empty_nodes(|_| {});
    let until = stage.now + SignedDuration::from_mins(30);
    stage.annotate(PAUSE, Some(&format!("{until} new CNI")));
    restart(&mut stage);
    stage.run(20 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 4);
    let blocked = format!("shut: the cluster is paused until {until}: new CNI");
    assert_eq!(report_texts(&stage), ["paused None: new CNI".to_owned(), blocked]);
    restart(&mut stage);
    stage.reports.clear();
    stage.run(9 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 4);
    stage.run(2 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 0);
    assert_eq!(report_texts(&stage).last().map(String::as_str), Some("resumed None"));
}

#[test]
fn pool_pause_applies_to_that_pool_and_an_invalid_one_has_no_end() {
    let key = |pool: &str| format!("{PAUSE_POOL}{pool}");
    let mut stage = four_empty_nodes(|_| {});
    stage.annotate(&key("other"), Some("always for good"));
    stage.annotate(&key("general"), Some("until tomorrow"));
    stage.run(120 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 4);
    stage.annotate(&key("general"), None);
    stage.run(MINUTE + 30, &[]);
    assert_eq!(untainted(&stage), 0, "the pause ends within half a minute");
}

#[test]
fn running_drain_continues_during_a_pause() {
    let mut stage = four_empty_nodes(|_| {});
    let held = stage.run(20, &["list_pods_on"]);
    assert_eq!(untainted(&stage), 0);
    stage.annotate(PAUSE, Some("always stop"));
    stage.run(40, &["list_pods_on"]);
    for issued in held {
        let answer = stage.answer(&issued.command);
        stage.event(Event::Answered(issued.id, answer));
    }
    stage.run(2 * MINUTE, &[]);
    assert_eq!(stage.count("terminate"), 4);
    assert_eq!(report_texts(&stage), ["paused None: stop"]);
}

#[test]
fn nothing_is_disrupted_before_the_lease_is_read_or_after_it_is_stale() {
    let mut stage = four_empty_nodes(|_| {});
    restart(&mut stage);
    let held = stage.run(5 * MINUTE, &["read_lease"]);
    assert_eq!(untainted(&stage), 4);
    refuse(&mut stage, held, FailureKind::Denied);
    stage.run(5 * MINUTE, &["read_lease"]);
    assert_eq!(untainted(&stage), 4);
    let texts = report_texts(&stage);
    assert!(texts.iter().any(|text| text == "read_lease: so it is"), "{texts:?}");
    assert!(texts.iter().any(|text| text.starts_with("shut: the cluster's Lease has not")));
    stage.run(5 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 0);

    // Two minutes after the last read the annotations may have changed.
    let mut stage =
        four_empty_nodes(|cluster| cluster.pools[0].disruption.consolidate_after = None);
    stage.run(3 * MINUTE, &["read_lease"]);
    stage.change(|cluster| {
        cluster.pools[0].disruption.consolidate_after = Some(SignedDuration::ZERO)
    });
    stage.run(MINUTE, &["read_lease"]);
    assert_eq!(untainted(&stage), 4);
    stage.run(4 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 0);
}

#[test]
fn budget_of_zero_is_reported_once() {
    let mut stage = four_empty_nodes(|cluster| {
        cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(0)
    });
    stage.run(120 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 4);
    let why = "shut: the disruption budget of its pool allows 0 node(s) at a time";
    assert_eq!(report_texts(&stage), [why]);
}

#[test]
fn cool_down_delays_consolidation_after_a_launch_or_termination() {
    let wait = SignedDuration::from_mins(10);
    let mut stage = four_empty_nodes(|cluster| cluster.disruption.cool_down.after_launch = wait);
    stage.run(9 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 4);
    stage.run(MINUTE, &[]);
    assert_eq!(untainted(&stage), 0);

    let mut stage = four_empty_nodes(|cluster| {
        cluster.disruption.cool_down.after_end = wait;
        cluster.pools[0].disruption.budgets[0].nodes = BudgetNodes::Nodes(1);
    });
    // The engine does not know of terminations before its start.
    stage.run(9 * MINUTE, &[]);
    assert_eq!(untainted(&stage), 4);
    let mut terminations = Vec::new();
    for minute in 0..45 {
        let before = stage.count("terminate");
        stage.run(MINUTE, &[]);
        terminations.extend((stage.count("terminate") > before).then_some(minute));
    }
    let apart: BTreeSet<i64> = terminations.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(apart.iter().all(|minutes| *minutes >= 10), "{terminations:?}");
    assert_eq!(terminations.len(), 4, "{terminations:?}");
}

/// Two stages and their fleet, whose commands and events the test delivers.
struct TwoClusters {
    fleet: Fleet,
    stages: [Stage; 2],
}

const NAMES: [&str; 2] = ["east", "west"];

const FOR_FLEET: [&str; 4] =
    ["request_grant", "request_disruption", "report_disruptions", "report_usage"];

impl TwoClusters {
    fn new(budget: Budget) -> Self {
        let mut fleet = Fleet::default();
        let limits = FleetLimits { budgets: vec![budget], ..FleetLimits::default() };
        let clusters = NAMES.map(|name| {
            Arc::new(Cluster {
                name: name.into(),
                mode: ManagementMode::Manage,
                ..Cluster::default()
            })
        });
        let stages = NAMES.map(|_| four_empty_nodes(|_| {}));
        fleet.configure(limits, &clusters, stages[0].now);
        Self { fleet, stages }
    }

    /// Advances the clocks second by second, in each second first in `east` and then in `west`.
    fn run(&mut self, seconds: i64) {
        for _ in 0..seconds {
            for (at, name) in NAMES.iter().enumerate() {
                let held = self.stages[at].run(1, &FOR_FLEET);
                let now = self.stages[at].now;
                for issued in held {
                    self.fleet.handle_command(&(*name).into(), issued, now);
                }
                self.fleet.notify_due(now);
                while let Some((name, event)) = self.fleet.next_event() {
                    let index = NAMES.iter().position(|other| *other == name.as_str());
                    self.stages[index.expect("known")].event(event);
                }
            }
            let leaving: usize = self.stages.iter().map(tainted).sum();
            assert!(leaving <= 1, "{leaving} are leaving at once");
        }
    }
}

/// The number of existing nodes with the disrupted taint.
fn tainted(stage: &Stage) -> usize {
    stage.engine.state().objects.nodes.len() - untainted(stage)
}

#[test]
fn fleet_budget_of_one_disrupts_nodes_of_two_clusters_one_at_a_time() {
    let one =
        Budget { nodes: BudgetNodes::Nodes(1), rate: None, reasons: Vec::new(), during: None };
    let mut clusters = TwoClusters::new(one);
    clusters.run(30 * MINUTE);
    let untainted_nodes = clusters.stages.each_ref().map(untainted);
    assert_eq!(untainted_nodes, [0, 0]);
    assert!(clusters.stages.iter().all(|stage| stage.lease.is_none()), "no rate is configured");
}

#[test]
fn fleet_rate_is_restored_from_the_leases_of_its_clusters() {
    let mut clusters = TwoClusters::new(Budget { nodes: BudgetNodes::Nodes(1), ..rate("3/h") });
    clusters.run(40 * MINUTE);
    let untainted_nodes: usize = clusters.stages.iter().map(untainted).sum();
    assert_eq!(untainted_nodes, 5);
    let leases = clusters.stages.iter().filter(|stage| stage.lease.is_some());
    assert_eq!(leases.map(recorded).sum::<usize>(), 3);
    // All hosts restart.
    let limits = FleetLimits { budgets: vec![rate("3/h")], ..FleetLimits::default() };
    let configured = clusters.stages.each_ref().map(|stage| {
        let cluster = &stage.engine.state().cluster;
        (cluster.clone(), stage.now)
    });
    let named = NAMES.iter().zip(&configured).map(|(name, (cluster, _))| {
        Arc::new(Cluster { name: (*name).into(), ..Cluster::clone(cluster) })
    });
    clusters.fleet = Fleet::default();
    clusters.fleet.configure(limits, &named.collect::<Vec<_>>(), configured[0].1);
    clusters.stages.iter_mut().for_each(restart);
    clusters.run(15 * MINUTE);
    assert_eq!(clusters.stages.iter().map(untainted).sum::<usize>(), 5);
}

#[test]
fn only_the_lease_command_that_reads_is_read_only() {
    assert!(Command::ReadLease.is_read_only());
    assert!(!Command::PatchLease(Default::default()).is_read_only());
}

/// Nodes of a removed pool are disrupted one by one, and the rate of the cluster counts them.
#[test]
fn cluster_rate_applies_although_no_pool_is_left() {
    let mut stage = four_empty_nodes(|cluster| cluster.disruption.budgets = vec![rate("2/h")]);
    stage.change(|cluster| cluster.pools.clear());
    stage.run(55 * MINUTE, &[]);
    assert_eq!((stage.count("terminate"), untainted(&stage)), (2, 2));
    assert_eq!(recorded(&stage), 2);
    stage.run(55 * MINUTE, &[]);
    assert_eq!((stage.count("terminate"), untainted(&stage)), (4, 0));
}
