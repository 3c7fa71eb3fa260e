//! Adoption of nodes that Karpenter launched for our pools.

use outrigger::engine::command::Command;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::claim::{ADOPTED, ClaimPhase, TAG_REASON};
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::{ObjectKey, PoolName};
use outrigger::model::labels::{
    CAPACITY_TYPE, CLAIM, COMPUTE_TYPE, FINALIZER, INITIALIZED, INSTANCE_TYPE, MANAGED_BY, POOL,
    REGISTERED, ZONE,
};
use outrigger::model::node::Node;
use outrigger::model::pod::{Pod, PodPhase};
use outrigger::model::pool::Reason;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, FailureKind};

use super::{Stage, bound, pending_pod};

/// A node that Karpenter has launched and initialized.
fn karpenter_node(stage: &Stage, name: &str) -> Node {
    let catalog = stage.engine.state().catalog.clone();
    let it = catalog.get("m7i.2xlarge").expect("a known type");
    let labels = [
        (POOL, "general"),
        (INSTANCE_TYPE, "m7i.2xlarge"),
        (ZONE, "us-east-1a"),
        (CAPACITY_TYPE, "on-demand"),
        (REGISTERED, "true"),
        (INITIALIZED, "true"),
    ];
    let owned = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Node {
        name: name.into(),
        uid: format!("uid-{name}"),
        version: "1".into(),
        provider_id: format!("aws:///us-east-1a/i-{name}"),
        labels: owned.into(),
        finalizers: vec![FINALIZER.to_owned()],
        node_claim: Some(format!("claim-of-{name}")),
        ready: true,
        capacity: it.capacity.clone(),
        allocatable: it.allocatable.clone(),
        created: Some(stage.now),
        ..Node::default()
    }
}

/// A cluster of two Karpenter nodes after `change`, with a pod on the first, and this `adopt`.
fn stage_with(mode: ManagementMode, adopt: bool, change: impl Fn(&mut Vec<Node>)) -> Stage {
    let mut stage = Stage::new(mode);
    stage.change(|cluster| cluster.adopt = adopt);
    let mut nodes: Vec<Node> = ["a", "b"].map(|name| karpenter_node(&stage, name)).into();
    change(&mut nodes);
    let WatchedObject::Pod(pod) = bound(pending_pod("p"), nodes[0].name.as_str()) else {
        panic!("a pod");
    };
    let pods: Vec<Pod> = vec![*pod];
    stage.sync(nodes, pods);
    stage
}

fn claims(stage: &Stage) -> Vec<(String, ClaimPhase)> {
    let claims = stage.engine.state().ledger.claims.iter();
    claims.map(|(id, claim)| (id.to_string(), claim.phase)).collect()
}

/// The names of disrupted nodes, with the reasons.
fn disrupted_nodes(stage: &Stage) -> Vec<(String, Reason)> {
    let disruptions = stage.reports.iter().filter_map(|report| match report {
        Report::Retire { node, reason, .. } => Some((node.clone()?.to_string(), *reason)),
        _ => None,
    });
    disruptions.collect()
}

#[test]
fn observe_mode_counts_karpenter_nodes_as_claims_without_writes() {
    let mut stage = stage_with(ManagementMode::Observe, true, |_| {});
    stage.run(60, &[]);
    assert_eq!(stage.commands, Vec::<String>::new(), "the engine writes nothing");
    let both = ["i-a", "i-b"].map(|id| (id.to_owned(), ClaimPhase::Initialized));
    assert_eq!(claims(&stage), both);
    assert_eq!(disrupted_nodes(&stage), [("b".to_owned(), Reason::Empty)]);
    // The listings of instances never contain these instances.
    stage.run(600, &[]);
    assert!(stage.engine.is_ready());
    assert_eq!(claims(&stage), both);
    stage.event(Event::Deleted(ObjectKind::Node, ObjectKey::new("", "b")));
    stage.run(10, &[]);
    assert_eq!(claims(&stage), [("i-a".to_owned(), ClaimPhase::Initialized)]);
    stage.change(|cluster| cluster.adopt = false);
    stage.run(10, &[]);
    assert_eq!(claims(&stage), [], "the nodes do not count any more");
    assert_eq!(stage.commands, Vec::<String>::new());
}

#[test]
fn manage_mode_adopts_karpenter_nodes_without_disrupting_them() {
    let mut stage = stage_with(ManagementMode::Manage, true, |_| {});
    stage.run(20, &[]);
    let adopted = |report: &Report| matches!(report, Report::Adopted { .. });
    assert_eq!(stage.reports.iter().filter(|report| adopted(report)).count(), 2);
    let both = ["i-a", "i-b"].map(|id| (id.to_owned(), ClaimPhase::Initialized));
    assert_eq!(claims(&stage), both);
    for (id, instance) in &stage.instances {
        assert_eq!(instance.tags[TAG_REASON], ADOPTED);
        assert_eq!(instance.tags["outrigger.dev/claim"], *id);
    }
    for node in stage.engine.state().objects.nodes.values() {
        assert_eq!(node.labels[MANAGED_BY], "tests");
        assert_eq!(node.annotations[CLAIM], format!("i-{}", node.name));
        let rest = (&node.node_claim, &node.finalizers);
        assert_eq!(
            rest,
            (&None, &Vec::new()),
            "the owner and the finalizer of Karpenter are removed"
        );
    }
    let writes = ["adopt", "patch_node"].map(|command| stage.count(command));
    assert_eq!(writes, [2, 6], "{:?}", stage.commands);
    assert_eq!(disrupted_nodes(&stage), []);
    // From now on they are treated like launched nodes: the empty one is disrupted.
    stage.run(60, &[]);
    assert_eq!(disrupted_nodes(&stage), [("b".to_owned(), Reason::Empty)]);
    assert_eq!(stage.count("terminate"), 1);
}

#[test]
fn no_node_is_adopted_unless_adoption_is_enabled() {
    let mut stage = stage_with(ManagementMode::Manage, false, |_| {});
    stage.run(120, &[]);
    assert_eq!((claims(&stage), stage.commands.len()), (vec![], 0));
}

#[test]
fn nodes_of_other_owners_are_not_adopted() {
    for mode in [ManagementMode::Manage, ManagementMode::Observe] {
        let mut stage = stage_with(mode, true, |nodes| {
            let set = |node: &mut Node, key: &str, value: &str| {
                node.labels.insert(key.to_owned(), value.to_owned());
            };
            set(&mut nodes[0], POOL, "another");
            set(&mut nodes[1], COMPUTE_TYPE, "auto");
            let (mut of_another, mut unknown) = (nodes[1].clone(), nodes[1].clone());
            of_another.name = "c".into();
            set(&mut of_another, COMPUTE_TYPE, "");
            set(&mut of_another, MANAGED_BY, "somebody");
            unknown.name = "d".into();
            set(&mut unknown, COMPUTE_TYPE, "");
            unknown.labels.remove(INSTANCE_TYPE);
            let mut starting = unknown.clone();
            starting.name = "e".into();
            set(&mut starting, INSTANCE_TYPE, "m7i.2xlarge");
            starting.labels.remove(INITIALIZED);
            nodes.extend([of_another, unknown, starting]);
        });
        stage.run(120, &[]);
        assert_eq!(stage.count("adopt"), 0);
        let pools = stage.reports.iter().filter_map(|report| match report {
            Report::NotAdopted { pool, nodes } => Some((pool.clone(), *nodes)),
            _ => None,
        });
        let pools: Vec<(PoolName, usize)> = pools.collect();
        assert_eq!(pools, [("another".into(), 1)], "reported once");
    }
}

#[test]
fn adoption_is_retried_after_a_failure_and_until_a_listing_confirms_it() {
    let mut stage = stage_with(ManagementMode::Manage, true, |nodes| nodes.truncate(1));
    let held = stage.run(10, &["adopt"]);
    let [first] = &held[..] else {
        panic!("one call: {held:?}");
    };
    let (kind, text) = (FailureKind::Denied, "x".to_owned());
    stage.event(Event::Answered(first.id, CommandResult::Failed { kind, text }));
    let held = stage.run(10, &["adopt"]);
    assert_eq!(held.len(), 1, "the engine retries");
    assert!(matches!(&held[0].command, Command::Adopt(own) if own.instance.as_str() == "i-a"));
    // The call succeeds, and no listing shows the tags.
    stage.event(Event::Answered(held[0].id, CommandResult::Done));
    assert_eq!(stage.run(50, &["adopt"]).len(), 0);
    assert_eq!(claims(&stage), []);
    assert_eq!(stage.run(20, &[]).len(), 0);
    assert_eq!(claims(&stage), [("i-a".to_owned(), ClaimPhase::Initialized)]);
}

#[test]
fn no_node_is_adopted_while_a_karpenter_pod_runs() {
    let mut stage = stage_with(ManagementMode::Manage, true, |_| {});
    let mut pod = pending_pod("karpenter-0");
    pod.labels = [("app.kubernetes.io/name".into(), "karpenter".into())].into();
    let WatchedObject::Pod(mut pod) = bound(pod, "b") else {
        panic!("a pod");
    };
    pod.phase = PodPhase::Running;
    let key = pod.key.clone();
    stage.apply(WatchedObject::Pod(pod));
    stage.run(120, &[]);
    assert_eq!(stage.count("adopt"), 0);
    stage.event(Event::Deleted(ObjectKind::Pod, key));
    stage.run(20, &[]);
    assert_eq!(stage.count("adopt"), 2);
}

#[test]
fn adoptable_nodes_count_as_static_pool_replicas_before_adoption() {
    for adopt in [true, false] {
        let mut stage = stage_with(ManagementMode::Manage, adopt, |_| {});
        stage.change(|cluster| cluster.pools[0].replicas = Some(2));
        stage.run(10, &["adopt"]);
        assert_eq!(stage.launches.len(), if adopt { 0 } else { 2 });
    }
}
