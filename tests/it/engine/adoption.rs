//! Adoption of nodes that Karpenter launched for our pools.

use outrigger::engine::command::{Command, CommandResult, FailureKind};
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

use super::{Stage, bound, waiting_pod};

/// A node as Karpenter leaves it.
fn karpenters(stage: &Stage, name: &str) -> Node {
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

/// A cluster with these nodes and a pod on the first, where nodes are taken over or not.
fn staged(mode: ManagementMode, adopt: bool, change: impl Fn(&mut Vec<Node>)) -> Stage {
    let mut stage = Stage::new(mode);
    stage.change(|cluster| cluster.adopt = adopt);
    let mut nodes: Vec<Node> = ["a", "b"].map(|name| karpenters(&stage, name)).into();
    change(&mut nodes);
    let WatchedObject::Pod(pod) = bound(waiting_pod("p"), nodes[0].name.as_str()) else {
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

/// Why nodes were to leave, by their names.
fn retired(stage: &Stage) -> Vec<(String, Reason)> {
    let told = stage.reports.iter().filter_map(|report| match report {
        Report::Retire { node, reason, .. } => Some((node.clone()?.to_string(), *reason)),
        _ => None,
    });
    told.collect()
}

#[test]
fn where_a_cluster_is_only_observed_they_count_as_if_they_were_ours() {
    let mut stage = staged(ManagementMode::Observe, true, |_| {});
    stage.run(60, &[]);
    assert_eq!(stage.seen, Vec::<String>::new(), "nothing is written");
    let both = ["i-a", "i-b"].map(|id| (id.to_owned(), ClaimPhase::Initialized));
    assert_eq!(claims(&stage), both);
    assert_eq!(retired(&stage), [("b".to_owned(), Reason::Empty)]);
    // Listings lack their instances for as long as one likes to look.
    stage.run(600, &[]);
    assert!(stage.engine.is_ready());
    assert_eq!(claims(&stage), both);
    stage.event(Event::Deleted(ObjectKind::Node, ObjectKey::new("", "b")));
    stage.run(10, &[]);
    assert_eq!(claims(&stage), [("i-a".to_owned(), ClaimPhase::Initialized)]);
    stage.change(|cluster| cluster.adopt = false);
    stage.run(10, &[]);
    assert_eq!(claims(&stage), [], "nor are they counted any more");
    assert_eq!(stage.seen, Vec::<String>::new());
}

#[test]
fn where_it_is_managed_they_become_ours_and_none_leaves_for_it() {
    let mut stage = staged(ManagementMode::Manage, true, |_| {});
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
        assert_eq!(rest, (&None, &Vec::new()), "it goes with nothing of Karpenter's");
    }
    let writes = ["adopt", "patch_node"].map(|command| stage.count(command));
    assert_eq!(writes, [2, 6], "{:?}", stage.seen);
    assert_eq!(retired(&stage), []);
    // What follows is as if they had been made here: the empty one leaves.
    stage.run(60, &[]);
    assert_eq!(retired(&stage), [("b".to_owned(), Reason::Empty)]);
    assert_eq!(stage.count("terminate"), 1);
}

#[test]
fn who_did_not_ask_for_it_gets_none() {
    let mut stage = staged(ManagementMode::Manage, false, |_| {});
    stage.run(120, &[]);
    assert_eq!((claims(&stage), stage.seen.len()), (vec![], 0));
}

#[test]
fn nodes_of_others_stay_theirs() {
    for mode in [ManagementMode::Manage, ManagementMode::Observe] {
        let mut stage = staged(mode, true, |nodes| {
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
        let told = stage.reports.iter().filter_map(|report| match report {
            Report::NotAdopted { pool, nodes } => Some((pool.clone(), *nodes)),
            _ => None,
        });
        let told: Vec<(PoolName, usize)> = told.collect();
        assert_eq!(told, [("another".into(), 1)], "once");
    }
}

#[test]
fn what_fails_is_tried_again_and_what_no_listing_shows_as_well() {
    let mut stage = staged(ManagementMode::Manage, true, |nodes| nodes.truncate(1));
    let held = stage.run(10, &["adopt"]);
    let [first] = &held[..] else {
        panic!("one call: {held:?}");
    };
    let (kind, text) = (FailureKind::Denied, "x".to_owned());
    stage.event(Event::Answered(first.id, CommandResult::Failed { kind, text }));
    let held = stage.run(10, &["adopt"]);
    assert_eq!(held.len(), 1, "again");
    assert!(matches!(&held[0].command, Command::Adopt(own) if own.instance.as_str() == "i-a"));
    // It is said to be done, and no listing shows it.
    stage.event(Event::Answered(held[0].id, CommandResult::Done));
    assert_eq!(stage.run(50, &["adopt"]).len(), 0);
    assert_eq!(claims(&stage), []);
    assert_eq!(stage.run(20, &[]).len(), 0);
    assert_eq!(claims(&stage), [("i-a".to_owned(), ClaimPhase::Initialized)]);
}

#[test]
fn none_is_taken_from_a_karpenter_whose_pod_runs() {
    let mut stage = staged(ManagementMode::Manage, true, |_| {});
    let mut pod = waiting_pod("karpenter-0");
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
fn what_will_be_ours_counts_before_it_is() {
    for adopt in [true, false] {
        let mut stage = staged(ManagementMode::Manage, adopt, |_| {});
        stage.change(|cluster| cluster.pools[0].replicas = Some(2));
        stage.run(10, &["adopt"]);
        assert_eq!(stage.launches.len(), if adopt { 0 } else { 2 });
    }
}
