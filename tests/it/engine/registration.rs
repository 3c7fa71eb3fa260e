//! From a launched instance to an initialized node: the settings of the node, the conditions for
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

use super::{Stage, bound, pending_pod};

const DO_NOT_SYNC: &str = "karpenter.sh/do-not-sync-taints";

/// A pod that tolerates every taint and requests this many devices.
fn pod(devices: i64) -> Pod {
    let mut pod = pending_pod("a");
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

/// A launched instance whose pool has a label, an annotation, a taint and a startup taint, none of
/// which its kubelet sets. Nodes are untainted as soon as they are registered.
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

fn apply_node(stage: &mut Stage, node: Node) {
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(5, &[]);
}

/// Applies the node as the engine knows it, after `change`.
fn edit(stage: &mut Stage, change: impl FnOnce(&mut Node)) {
    let mut node = stage.only_node().clone();
    node.version.push('e');
    change(&mut node);
    apply_node(stage, node);
}

fn keys(node: &Node) -> Vec<&str> {
    node.taints.iter().map(|taint| taint.key.as_str()).collect()
}

#[test]
fn node_gets_labels_annotations_and_taints_of_its_pool_at_registration() {
    let both = &["dedicated", "starting"][..];
    // The do-not-sync-taints label, whether the node starts tainted, and its taints afterwards.
    for (sync, tainted, taints) in [
        (None, true, both),
        (Some("false"), true, both),
        (Some("true"), true, &[][..]),
        (None, false, both),
    ] {
        let case = format!("{sync:?} {tainted}");
        let (mut stage, mut node) = launched(0);
        let sync = sync.map(|value| (DO_NOT_SYNC.to_owned(), value.to_owned()));
        node.labels.extend(sync);
        if !tainted {
            node.taints.clear();
        }
        apply_node(&mut stage, node);
        let node = stage.only_node();
        assert!(node.is_registered(), "{case}");
        assert_eq!(keys(node), taints, "{case}");
        assert_eq!(node.labels["team"], "blue", "{case}");
        assert_eq!(node.labels["karpenter.sh/nodepool"], "general", "{case}");
        assert_eq!(node.annotations["example.com/note"], "n", "{case}");
        // Without further conditions the same patch also initializes the node.
        assert_eq!(stage.count("patch_node"), 1, "{case}");
    }
}

#[test]
fn node_is_labelled_with_its_node_class() {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| {
        cluster.node_classes = vec![NodeClass { name: "gpu".into(), ..NodeClass::default() }];
        cluster.pools[0].node_class = Some("gpu".into());
    });
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    let mut node = stage.node(0);
    node.labels.clear();
    apply_node(&mut stage, node);
    assert_eq!(stage.only_node().labels[NODE_CLASS], "gpu");
}

#[test]
fn removed_startup_taint_is_not_added_again() {
    let (mut stage, node) = launched(0);
    apply_node(&mut stage, node);
    assert!(!stage.only_node().is_initialized());
    edit(&mut stage, |node| node.taints.retain(|taint| taint.key != "starting"));
    stage.apply(bound(pod(0), "node-0"));
    stage.run(120, &[]);
    let node = stage.only_node();
    assert!(node.is_initialized());
    assert_eq!(keys(node), ["dedicated"]);
}

/// The name of a missing condition, the change that removes it, and the change that restores it.
type MissingCondition = (&'static str, fn(&mut Node), fn(&mut Node));

fn taint(node: &mut Node, key: &str) {
    node.taints.push(Taint::new(key, Effect::NoSchedule));
}

fn clear(node: &mut Node) {
    node.taints.retain(|taint| taint.key == "dedicated");
}

const MISSING_CONDITIONS: [MissingCondition; 6] = [
    (
        "not ready",
        |node| node.ready = false,
        |node| {
            node.ready = true;
            clear(node);
        },
    ),
    ("a startup taint", |_| {}, clear),
    ("the not-ready taint", |node| taint(node, "node.kubernetes.io/not-ready"), clear),
    ("the unreachable taint", |node| taint(node, "node.kubernetes.io/unreachable"), clear),
    ("a readiness gate", |node| taint(node, "readiness.k8s.io/network"), clear),
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
fn node_is_initialized_once_all_conditions_are_met() {
    for (condition, break_node, repair) in MISSING_CONDITIONS {
        let (mut stage, mut node) = launched(i64::from(condition == "a device"));
        break_node(&mut node);
        apply_node(&mut stage, node);
        if condition != "a startup taint" {
            edit(&mut stage, |node| node.taints.retain(|taint| taint.key != "starting"));
        }
        stage.run(60, &[]);
        let node = stage.only_node();
        assert!(node.is_registered() && !node.is_initialized(), "{condition}");
        edit(&mut stage, repair);
        assert!(stage.only_node().is_initialized(), "{condition}");
        assert_eq!(keys(stage.only_node()), ["dedicated"], "{condition}");
    }
}

/// If a DeviceClass serves an extended resource (KEP-5004), no Node ever shows it: the scheduler
/// binds the pods anyway.
#[test]
fn device_served_by_a_device_class_does_not_block_initialization() {
    let (mut stage, mut node) = launched(1);
    clear(&mut node);
    node.allocatable.extended.remove("nvidia.com/gpu");
    apply_node(&mut stage, node);
    edit(&mut stage, |node| node.taints.retain(|taint| taint.key != "starting"));
    stage.run(60, &[]);
    assert!(!stage.only_node().is_initialized(), "the device driver may still start");
    stage.apply(bound(pod(1), "node-0"));
    stage.run(5, &[]);
    assert!(stage.only_node().is_initialized());
    stage.run(3600, &[]);
    assert_eq!((stage.launches.len(), stage.count("terminate")), (1, 0));
}

/// The taint that waits for the cloud controller has a value.
#[test]
fn node_is_initialized_only_after_its_cloud_controller() {
    let (mut stage, mut node) = launched(0);
    let key = "node.cloudprovider.kubernetes.io/uninitialized";
    taint(&mut node, key);
    if let Some(taint) = node.taints.last_mut() {
        taint.value = "true".to_owned();
    }
    apply_node(&mut stage, node);
    edit(&mut stage, |node| node.taints.retain(|taint| taint.key != "starting"));
    assert!(!stage.only_node().is_initialized());
    edit(&mut stage, clear);
    assert!(stage.only_node().is_initialized());
}

#[test]
fn each_claim_phase_is_reported_in_order() {
    let (mut stage, node) = launched(0);
    apply_node(&mut stage, node);
    edit(&mut stage, clear);
    let reported = stage.reports.iter().filter_map(|report| match report {
        Report::ClaimPlanned { .. } => Some("planned".to_owned()),
        Report::ClaimLaunched { .. } => Some("launched".to_owned()),
        Report::ClaimPhase { phase, .. } => Some(format!("{phase:?}").to_lowercase()),
        _ => None,
    });
    let reported: Vec<String> = reported.collect();
    assert_eq!(reported, ["planned", "launched", "registered", "initialized"]);
    let claims = stage.engine.state().ledger.claims.values();
    let phases: Vec<ClaimPhase> = claims.map(|claim| claim.phase).collect();
    assert_eq!(phases, [ClaimPhase::Initialized]);
}

#[test]
fn nodes_of_other_owners_are_not_changed() {
    let (mut stage, node) = launched(0);
    let foreign = [
        ("of-another", "aws:///us-east-1a/i-other"),
        ("of-another-cloud", "kind://i-0/0"),
        ("without-instance", ""),
    ];
    let before = foreign.map(|(name, provider_id)| Node {
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
