//! From a launched instance to a usable node: the settings of the node, the conditions for
//! initialization, and the nodes that are ignored.

use outrigger::engine::report::Report;
use outrigger::model::claim::ClaimPhase;
use outrigger::model::cluster::{ManagementMode, PlacementHints};
use outrigger::model::labels::{Labels, NODE_CLASS};
use outrigger::model::node::Node;
use outrigger::model::node_class::NodeClass;
use outrigger::model::pod::Pod;
use outrigger::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use outrigger::model::watched_object::WatchedObject;

use super::{Stage, bound, waiting_pod};

const DO_NOT_SYNC: &str = "karpenter.sh/do-not-sync-taints";

/// A pod that tolerates everything and wants this much of a device.
fn pod(devices: i64) -> Pod {
    let mut pod = waiting_pod("a");
    pod.tolerations.push(Toleration {
        key: String::new(),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    });
    if devices > 0 {
        let device = ("nvidia.com/gpu".to_owned(), devices);
        pod.requests.extended.extend([device]);
    }
    pod
}

fn labels(all: &[(&str, &str)]) -> Labels {
    let pairs = all.iter();
    pairs.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// A launched instance whose pool has a label, an annotation, a taint and a startup taint, and
/// whose kubelet says nothing of any of them. Nodes open as soon as they are registered.
fn launched(devices: i64) -> (Stage, Node) {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.configure(ManagementMode::Manage, PlacementHints::Off);
    stage.change(|cluster| {
        let pool = &mut cluster.pools[0];
        pool.labels = labels(&[("team", "blue")]);
        pool.annotations = labels(&[("example.com/note", "n")]);
        pool.taints = vec![Taint::new("dedicated", Effect::NoSchedule)];
        pool.startup_taints = vec![Taint::new("starting", Effect::NoSchedule)];
    });
    stage.sync(vec![], vec![pod(devices)]);
    stage.run(10, &[]);
    let mut node = stage.node(0);
    node.labels.clear();
    node.taints.retain(|taint| taint.key == "karpenter.sh/unregistered");
    assert_eq!(node.taints.len(), 1);
    (stage, node)
}

fn show(stage: &mut Stage, node: Node) {
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &[]);
}

/// The node is as the engine has left it, but for this.
fn edit(stage: &mut Stage, change: impl FnOnce(&mut Node)) {
    let mut node = stage.seen_node().clone();
    node.version.push('e');
    change(&mut node);
    show(stage, node);
}

fn keys(node: &Node) -> Vec<&str> {
    node.taints.iter().map(|taint| taint.key.as_str()).collect()
}

#[test]
fn a_node_is_given_what_its_pool_says_when_it_registers() {
    let both = &["dedicated", "starting"][..];
    // What the node says of its taints, whether it comes closed, and those that it has then.
    for (sync, closed, taints) in [
        (None, true, both),
        (Some("false"), true, both),
        (Some("true"), true, &[][..]),
        (None, false, both),
    ] {
        let what = format!("{sync:?} {closed}");
        let (mut stage, mut node) = launched(0);
        let sync = sync.map(|value| (DO_NOT_SYNC.to_owned(), value.to_owned()));
        node.labels.extend(sync);
        if !closed {
            node.taints.clear();
        }
        show(&mut stage, node);
        let node = stage.seen_node();
        assert!(node.is_registered(), "{what}");
        assert_eq!(keys(node), taints, "{what}");
        assert_eq!(node.labels["team"], "blue", "{what}");
        assert_eq!(node.labels["karpenter.sh/nodepool"], "general", "{what}");
        assert_eq!(node.annotations["example.com/note"], "n", "{what}");
        // Where nothing keeps it back, it is initialized in the same breath.
        assert_eq!(stage.count("patch_node"), 1, "{what}");
    }
}

#[test]
fn a_node_says_which_class_made_it() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| {
        cluster.node_classes = vec![NodeClass { name: "gpu".into(), ..NodeClass::default() }];
        cluster.pools[0].node_class = Some("gpu".into());
    });
    stage.sync(vec![], vec![waiting_pod("a")]);
    stage.run(10, &[]);
    let mut node = stage.node(0);
    node.labels.clear();
    show(&mut stage, node);
    assert_eq!(stage.seen_node().labels[NODE_CLASS], "gpu");
}

#[test]
fn a_startup_taint_that_was_taken_away_does_not_come_back() {
    let (mut stage, node) = launched(0);
    show(&mut stage, node);
    assert!(!stage.seen_node().is_initialized());
    edit(&mut stage, |node| node.taints.retain(|taint| taint.key != "starting"));
    stage.apply(bound(pod(0), "node-0"));
    stage.run(120, &[]);
    let node = stage.seen_node();
    assert!(node.is_initialized());
    assert_eq!(keys(node), ["dedicated"]);
}

/// What is not as it should be, and how it is put right.
type Lack = (&'static str, fn(&mut Node), fn(&mut Node));

fn taint(node: &mut Node, key: &str) {
    node.taints.push(Taint::new(key, Effect::NoSchedule));
}

fn clear(node: &mut Node) {
    node.taints.retain(|taint| taint.key == "dedicated");
}

const LACKS: [Lack; 6] = [
    (
        "not ready",
        |node| node.ready = false,
        |node| {
            node.ready = true;
            clear(node);
        },
    ),
    ("a startup taint", |_| {}, clear),
    ("what the kubelet starts with", |node| taint(node, "node.kubernetes.io/not-ready"), clear),
    ("nobody can reach it", |node| taint(node, "node.kubernetes.io/unreachable"), clear),
    ("a gate of its readiness", |node| taint(node, "readiness.k8s.io/network"), clear),
    (
        "a device",
        |node| {
            node.allocatable.extended.remove("nvidia.com/gpu");
        },
        |node| {
            clear(node);
            let devices = &mut node.allocatable.extended;
            devices.insert("nvidia.com/gpu".to_owned(), 1);
        },
    ),
];

#[test]
fn a_node_is_initialized_once_nothing_is_lacking() {
    for (what, lack, mend) in LACKS {
        let (mut stage, mut node) = launched(i64::from(what == "a device"));
        lack(&mut node);
        show(&mut stage, node);
        if what != "a startup taint" {
            edit(&mut stage, |node| node.taints.retain(|taint| taint.key != "starting"));
        }
        stage.run(60, &[]);
        let node = stage.seen_node();
        assert!(node.is_registered() && !node.is_initialized(), "{what}");
        edit(&mut stage, mend);
        assert!(stage.seen_node().is_initialized(), "{what}");
        assert_eq!(keys(stage.seen_node()), ["dedicated"], "{what}");
    }
}

/// Where a DeviceClass serves an extended resource (KEP-5004), no Node ever shows it: the scheduler
/// binds the pods all the same.
#[test]
fn a_device_that_a_device_class_serves_does_not_hold_its_node_back() {
    let (mut stage, mut node) = launched(1);
    clear(&mut node);
    node.allocatable.extended.remove("nvidia.com/gpu");
    show(&mut stage, node);
    edit(&mut stage, |node| node.taints.retain(|taint| taint.key != "starting"));
    stage.run(60, &[]);
    assert!(!stage.seen_node().is_initialized(), "its driver may start");
    stage.apply(bound(pod(1), "node-0"));
    stage.run(5, &[]);
    assert!(stage.seen_node().is_initialized());
    stage.run(3600, &[]);
    assert_eq!((stage.launches.len(), stage.count("terminate")), (1, 0));
}

/// The taint of a node whose cloud controller has yet to come has a value.
#[test]
fn a_node_waits_for_its_cloud_controller() {
    let (mut stage, mut node) = launched(0);
    let key = "node.cloudprovider.kubernetes.io/uninitialized";
    taint(&mut node, key);
    if let Some(taint) = node.taints.last_mut() {
        taint.value = "true".to_owned();
    }
    show(&mut stage, node);
    edit(&mut stage, |node| node.taints.retain(|taint| taint.key != "starting"));
    assert!(!stage.seen_node().is_initialized());
    edit(&mut stage, clear);
    assert!(stage.seen_node().is_initialized());
}

#[test]
fn each_phase_is_told_in_its_turn() {
    let (mut stage, node) = launched(0);
    show(&mut stage, node);
    edit(&mut stage, clear);
    let told = stage.reports.iter().filter_map(|report| match report {
        Report::ClaimPlanned { .. } => Some("planned".to_owned()),
        Report::ClaimLaunched { .. } => Some("launched".to_owned()),
        Report::ClaimPhase { phase, .. } => Some(format!("{phase:?}").to_lowercase()),
        _ => None,
    });
    let told: Vec<String> = told.collect();
    assert_eq!(told, ["planned", "launched", "registered", "initialized"]);
    let claims = stage.engine.state().ledger.claims.values();
    let phases: Vec<ClaimPhase> = claims.map(|claim| claim.phase).collect();
    assert_eq!(phases, [ClaimPhase::Initialized]);
}

#[test]
fn nodes_of_others_are_let_be() {
    let (mut stage, node) = launched(0);
    let others = [
        ("of-another", "aws:///us-east-1a/i-other"),
        ("of-another-cloud", "kind://i-0/0"),
        ("without-instance", ""),
    ];
    let before = others.map(|(name, provider_id)| Node {
        name: name.into(),
        uid: name.to_owned(),
        provider_id: provider_id.to_owned(),
        ..node.clone()
    });
    for node in &before {
        stage.apply(WatchedObject::Node(Box::new(node.clone())));
    }
    stage.run(20 * 60, &["rewatch"]);
    let nodes = &stage.engine.state().objects.nodes;
    assert!(nodes.values().eq(before.iter()), "{nodes:?}");
    assert_eq!((stage.count("patch_node"), stage.count("delete_node")), (0, 0));
}
