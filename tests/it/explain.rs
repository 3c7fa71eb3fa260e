//! `explain` of a pod in every state: as a string and as JSON, and the exit status.

use std::fmt::Write;
use std::sync::Arc;

use insta::{assert_snapshot, with_settings};
use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::model::cluster::Cluster;
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::{CAPACITY_TYPE, Labels, ZONE};
use outrigger::model::node::Node;
use outrigger::model::pod::{DaemonSet, HeldBack, Owner, Pod, PodPhase};
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::explain_pod::{Explained, explain, similar_pods};
use outrigger::state::State;
use outrigger_bench::workloads::pods::{plain, term};

use crate::scheduling::fixture::{GIB, kwok_like};

mod node;
mod pool;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Two pools of small types in two zones, one of them tainted, and a node with one free core.
fn state(pods: Vec<Pod>) -> State {
    let mut cluster = Cluster::default();
    cluster.pools.push(Pool::new("general"));
    let on_demand = Requirement::is_in(["on-demand"]);
    cluster.pools[0].requirements.add(CAPACITY_TYPE, on_demand);
    let mut other = cluster.pools[0].clone();
    other.name = "gpu".into();
    other.taints = vec![outrigger::model::taint::Taint::new(
        "gpu",
        outrigger::model::taint::Effect::NoSchedule,
    )];
    cluster.pools.push(other);
    let catalog = Catalog::new(kwok_like("amd64", &[1, 2, 4, 8], &["a", "b"]));
    let agent = DaemonSet {
        key: ObjectKey::new("kube-system", "agent"),
        template: plain("agent", 100, GIB / 4),
    };
    let node = Node {
        name: "n".into(),
        ready: true,
        allocatable: Resources {
            cpu_milli: 1_100,
            memory: 4 * GIB,
            pods: 10,
            ..Resources::default()
        },
        ..Node::default()
    };
    let pods = pods.into_iter().map(|pod| WatchedObject::Pod(Box::new(pod)));
    let mut objects: Vec<WatchedObject> = pods.collect();
    objects.push(WatchedObject::Node(Box::new(node)));
    objects.push(WatchedObject::DaemonSet(Box::new(agent)));
    State::offline(Arc::new(cluster), Arc::new(catalog), objects, NOW)
}

fn rendered(explained: &Explained<'_>) -> String {
    let mut out = explained.text();
    write!(out, "\nwell: {}\n\n{:#}\n", explained.is_handled(), explained.json()).expect("written");
    out
}

#[test]
fn explain_names_the_node_of_a_pending_pod_or_its_obstacle() {
    let mut near = plain("apart", 2_500, GIB);
    near.labels = Labels::from([("app".to_owned(), "web".to_owned())]);
    near.anti_affinity = vec![term("kubernetes.io/hostname", &near.labels)];
    near.node_selector = Labels::from([(ZONE.to_owned(), "b".to_owned())]);
    let mut old = plain("p", 1_000, GIB);
    old.created = NOW.checked_sub(SignedDuration::from_mins(1)).ok();
    let three = ["p", "q", "r"].map(|name| plain(name, 1_900, 7 * GIB));
    let cases = [
        ("launch-together", three.to_vec(), "q"),
        ("launch", vec![plain("p", 3_000, 12 * GIB), plain("q", 1_000, GIB)], "p"),
        ("launch-apart", vec![near], "apart"),
        ("host", vec![plain("p", 1_000, GIB)], "p"),
        ("host-refused", vec![old], "p"),
        ("unplaced", vec![plain("p", 9_000, GIB)], "p"),
    ];
    for (name, pods, of) in cases {
        let state = state(pods);
        let explained = explain(&state, &ObjectKey::new("default", of), NOW).expect(name);
        with_settings!({
            snapshot_path => "explain",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            assert_snapshot!(name, rendered(&explained));
        });
    }
}

/// A pod that does not wait for capacity: the code of its answer, a part of the text, whether the
/// pod is handled, and the change of a pending pod.
type NotPending = (&'static str, &'static str, bool, fn(&mut Pod));

const NOT_PENDING: [NotPending; 10] = [
    ("bound", "It is bound to node n.", true, |it| {
        it.node = Some("n".into());
    }),
    ("ended", "It has terminated.", true, |it| {
        (it.node, it.phase) = (Some("n".into()), PodPhase::Succeeded);
    }),
    ("deleted", "It is being deleted.", true, |it| {
        it.deleting = Some(NOW);
    }),
    ("of_node", "which belongs to its node", true, |it| {
        it.unschedulable = false;
        it.owner = Some(Owner {
            kind: "DaemonSet".to_owned(),
            name: "agent".to_owned(),
            uid: "agent".to_owned(),
        });
    }),
    ("gated", "It has scheduling gates", false, |it| {
        (it.unschedulable, it.is_gated) = (false, true);
    }),
    ("other_scheduler", "Scheduler volcano", false, |it| {
        it.scheduler = "volcano".to_owned();
    }),
    ("preempts", "preempts pods for it on node n.", true, |it| {
        it.nominated_node = Some("n".into());
    }),
    ("grouped", "It belongs to PodGroup train,", false, |it| {
        it.unschedulable = false;
        it.held_back = Some(HeldBack::Group("train".to_owned()));
    }),
    ("failed", "could not process it: SchedulerError;", false, |it| {
        it.unschedulable = false;
        it.held_back = Some(HeldBack::Reason("SchedulerError".to_owned()));
    }),
    ("untried", "has not reported it as unschedulable", true, |it| {
        it.unschedulable = false;
    }),
];

#[test]
fn explain_states_why_a_pod_needs_no_capacity() {
    let terminating =
        Pod { node: Some("n".into()), deleting: Some(NOW), ..plain("leaving", 10, GIB) };
    for (word, text, well, edit) in NOT_PENDING {
        let mut pod = plain("p", 10, GIB);
        edit(&mut pod);
        let key = pod.key.clone();
        let state = state(vec![pod, terminating.clone()]);
        let explained = explain(&state, &key, NOW).expect("a pod");
        assert_eq!(explained.json()["answer"], word);
        let rendered_text = explained.text();
        assert!(rendered_text.contains(text), "{word}: {rendered_text}");
        assert_eq!(explained.is_handled(), well, "{word}");
    }
}

#[test]
fn explain_of_an_unknown_pod_lists_similar_names() {
    let mut elsewhere = plain("web-0", 10, GIB);
    elsewhere.key.namespace = "prod".to_owned();
    let state = state(vec![plain("web-1", 10, GIB), plain("web-2-abcdefgh", 10, GIB), elsewhere]);
    let cases: [(&str, &[&str]); 4] = [
        ("web-0", &["prod/web-0", "default/web-1"]),
        ("web-2", &["default/web-1", "default/web-2-abcdefgh"]),
        ("nothing-like-it", &[]),
        ("", &[]),
    ];
    for (name, expect) in cases {
        let key = ObjectKey::new("default", name);
        assert!(explain(&state, &key, NOW).is_none());
        assert_eq!(similar_pods(&state, &key), expect, "{name:?}");
    }
}
