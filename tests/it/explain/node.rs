//! `explain` of a node, disrupted or not: as a string and as JSON.

use std::fmt::Write;
use std::sync::Arc;

use insta::{assert_snapshot, with_settings};
use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::model::cluster::Cluster;
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::{
    CAPACITY_TYPE, CLAIM, DO_NOT_DISRUPT, INITIALIZED, INSTANCE_TYPE, Labels, POOL, REGISTERED,
    SCALE_DOWN_DISABLED, ZONE,
};
use outrigger::model::node::Node;
use outrigger::model::pdb::Pdb;
use outrigger::model::pod::{Owner, Pod, PodPhase};
use outrigger::model::pool::{Budget, BudgetNodes, Pool, Reason};
use outrigger::model::quantity::Resources;
use outrigger::model::selector::Selector;
use outrigger::model::watched_object::WatchedObject;
use outrigger::model::window::Window;
use outrigger::plan::explain_node::{ExplainedNode, explain_node, similar_nodes};
use outrigger::state::State;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    pairs.map(owned).into()
}

/// A node that was created ten days ago.
fn node(name: &str, annotations: Labels) -> Node {
    Node {
        name: name.into(),
        ready: true,
        created: Some(NOW - SignedDuration::from_hours(240)),
        labels: labels([
            (POOL, "general"),
            (INSTANCE_TYPE, "m6i.large"),
            (CAPACITY_TYPE, "on-demand"),
            (ZONE, "us-east-1a"),
            (REGISTERED, "true"),
            (INITIALIZED, "true"),
        ]),
        annotations,
        allocatable: Resources {
            cpu_milli: 1_900,
            memory: 7 << 30,
            pods: 29,
            ..Resources::default()
        },
        ..Node::default()
    }
}

fn pod(name: &str, kind: &str, node: &str) -> Pod {
    let mut pod = Pod {
        key: ObjectKey::new("default", name),
        node: Some(node.into()),
        phase: PodPhase::Running,
        started: Some(NOW - SignedDuration::from_mins(30)),
        labels: labels([("app", name)]),
        ..Pod::default()
    };
    pod.owner = (!kind.is_empty()).then(|| Owner {
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
    });
    (pod.requests.cpu_milli, pod.requests.pods) = (400, 1);
    pod
}

/// A full node and two empty nodes of a pool with disruption budgets, and an unmanaged node.
fn state() -> State {
    let mut cluster = Cluster::default();
    let mut general = Pool::new("general");
    let one = |nodes, during| Budget {
        nodes: BudgetNodes::Nodes(nodes),
        rate: None,
        reasons: vec![Reason::Empty],
        during,
    };
    let night = Window::new("0 22 * * *", SignedDuration::from_hours(14), "Europe/Berlin");
    general.disruption.budgets = vec![one(1, None), one(0, night.ok())];
    cluster.pools.push(general);
    let mut nodes = vec![
        node("full", labels([(CLAIM, "c1"), (DO_NOT_DISRUPT, "24h")])),
        node("empty-a", labels([(CLAIM, "c2")])),
        node("empty-b", labels([(SCALE_DOWN_DISABLED, "true")])),
        node("foreign", Labels::new()),
    ];
    nodes[3].labels.remove(POOL);
    let mut busy = pod("busy", "Job", "full");
    busy.annotations = labels([(DO_NOT_DISRUPT, "2h")]);
    let mut done = pod("done", "Job", "full");
    done.phase = PodPhase::Succeeded;
    let mut cheap = pod("cheap", "ReplicaSet", "full");
    cheap.priority = -100_000_000;
    let mut going = pod("going", "ReplicaSet", "full");
    going.deleting = Some(NOW);
    let pods = [
        pod("web", "ReplicaSet", "full"),
        pod("bare", "", "full"),
        pod("agent", "DaemonSet", "full"),
        pod("agent-a", "DaemonSet", "empty-a"),
        pod("proxy", "Node", "full"),
        busy,
        done,
        cheap,
        going,
    ];
    let budget = Pdb {
        key: ObjectKey::new("default", "web"),
        selector: Some(Selector::from_labels(&labels([("app", "web")]))),
        current_healthy: 2,
        desired_healthy: 2,
        ..Pdb::default()
    };
    let nodes = nodes.into_iter().map(|node| WatchedObject::Node(Box::new(node)));
    let pods = pods.into_iter().map(|pod| WatchedObject::Pod(Box::new(pod)));
    let objects = nodes.chain(pods).chain([WatchedObject::Pdb(budget)]).collect();
    State::offline(Arc::new(cluster), Arc::new(Catalog::shipped()), objects, NOW)
}

fn rendered(explained: &ExplainedNode<'_>) -> String {
    let mut out = explained.text();
    write!(out, "\n{:#}\n", explained.json()).expect("written");
    out
}

#[test]
fn explain_shows_the_verdict_for_each_disruption_reason() {
    let state = state();
    for name in ["full", "empty-a", "empty-b", "foreign"] {
        let explained = explain_node(&state, name, NOW).expect(name);
        with_settings!({
            snapshot_path => ".",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            assert_snapshot!(format!("node-{name}"), rendered(&explained));
        });
    }
}

#[test]
fn explain_lists_the_first_pods_and_counts_the_rest() {
    let mut state = state();
    for at in 0..200 {
        let pod = pod(&format!("many-{at}"), "ReplicaSet", "full");
        state.objects.apply(WatchedObject::Pod(Box::new(pod)), NOW);
    }
    let explained = explain_node(&state, "full", NOW).expect("a node");
    let text = explained.text();
    assert!(text.contains("and 158 more"), "{text}");
    assert!(text.lines().count() < 80, "{text}");
    assert_eq!(explained.json()["pods"].as_array().map(Vec::len), Some(208));
}

#[test]
fn explain_of_an_unknown_node_lists_similar_names() {
    let state = state();
    let cases: [(&str, &[&str]); 4] = [
        ("ful", &["full"]),
        ("empty", &["empty-a", "empty-b"]),
        ("nothing-like-it", &[]),
        ("", &[]),
    ];
    for (name, expect) in cases {
        assert!(explain_node(&state, name, NOW).is_none());
        assert_eq!(similar_nodes(&state, name), expect, "{name:?}");
    }
}
