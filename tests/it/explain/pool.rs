//! `explain` of a pool: its nodes, its offerings, its planned launches and its disruption blockers.

use std::fmt::Write;
use std::sync::Arc;

use insta::{assert_snapshot, with_settings};
use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::catalog::node_class::ClassSupplies;
use outrigger::coordination::lease_annotations::Pause;
use outrigger::model::cluster::Cluster;
use outrigger::model::instance::{CapacityType, Offering, OfferingKey, Price};
use outrigger::model::labels::{
    CAPACITY_TYPE, CLAIM, DO_NOT_DISRUPT, INITIALIZED, INSTANCE_TYPE, Labels, POOL, REGISTERED,
    RESERVATION_ID, ZONE,
};
use outrigger::model::node::Node;
use outrigger::model::pod::{DaemonSet, Owner, Pod, PodPhase};
use outrigger::model::pool::{Budget, BudgetNodes, Pool, Reason};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::Requirement;
use outrigger::model::reservation::Reservation;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::explain_pool::{ExplainedPool, explain_pool, similar_pools};
use outrigger::state::State;
use outrigger_bench::workloads::pods::plain;

use crate::scheduling::fixture::{CPU, GIB, kwok_like};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// A pool for on-demand nodes.
fn pool(name: &str) -> Pool {
    let mut pool = Pool::new(name);
    let on_demand = Requirement::is_in(["on-demand"]);
    pool.requirements.add(CAPACITY_TYPE, on_demand);
    pool
}

/// A node with two cores, created ten days ago.
fn node(name: &str, pool: &str) -> Node {
    let labels = [
        (POOL, pool),
        (INSTANCE_TYPE, "s-2x-amd64"),
        (CAPACITY_TYPE, "on-demand"),
        (ZONE, "a"),
        (REGISTERED, "true"),
        (INITIALIZED, "true"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let resources =
        |cpu_milli| Resources { cpu_milli, memory: 8 * GIB, pods: 32, ..Resources::default() };
    Node {
        name: name.into(),
        ready: true,
        created: Some(NOW - SignedDuration::from_hours(240)),
        labels: labels.into(),
        annotations: Labels::from([(CLAIM.to_owned(), name.to_owned())]),
        capacity: resources(2000),
        allocatable: resources(1900),
        ..Node::default()
    }
}

/// A running pod that its controller would recreate.
fn running(name: &str, node: &str, cpu_milli: i64) -> Pod {
    let mut pod = plain(name, cpu_milli, GIB);
    pod.node = Some(node.into());
    (pod.phase, pod.unschedulable) = (PodPhase::Running, false);
    pod.started = Some(NOW - SignedDuration::from_hours(1));
    pod.owner =
        Some(Owner { kind: "ReplicaSet".to_owned(), name: name.to_owned(), uid: name.to_owned() });
    pod
}

/// The state of a cluster with a DaemonSet on every node.
fn state(cluster: Cluster, nodes: Vec<Node>, pods: Vec<Pod>) -> State {
    let catalog = Catalog::new(kwok_like("amd64", &[1, 2, 4, 8], &["a", "b"]));
    let nodes = nodes.into_iter().map(|node| WatchedObject::Node(Box::new(node)));
    let pods = pods.into_iter().map(|pod| WatchedObject::Pod(Box::new(pod)));
    let agent = DaemonSet { key: plain("agent", 0, 0).key, template: plain("agent", 100, GIB / 4) };
    let agent = [WatchedObject::DaemonSet(Box::new(agent))];
    let objects = nodes.chain(pods).chain(agent).collect();
    State::offline(Arc::new(cluster), Arc::new(catalog), objects, NOW)
}

/// A pool below its limits with two nodes, one of them in flight, and pending pods.
fn healthy() -> State {
    let mut general = pool("general");
    general.weight = 10;
    general.limits.capacity = vec![("cpu".to_owned(), 40_000)];
    let mut cluster = Cluster::default();
    cluster.limits.nodes = Some(20);
    let mut gpu = pool("gpu");
    gpu.taints = vec![Taint::new("gpu", Effect::NoSchedule)];
    cluster.pools = vec![general, gpu];
    let mut starting = node("b", "general");
    starting.labels.remove(INITIALIZED);
    starting.ready = false;
    let mut pods = vec![running("web", "a", 1500)];
    pods.extend((0..4).map(|at| plain(&format!("p{at}"), 3000, 12 * GIB)));
    pods.push(plain("huge", 9000, GIB));
    state(cluster, vec![node("a", "general"), starting], pods)
}

/// A pool that requires a label value that no type has.
fn barren() -> State {
    let mut general = pool("general");
    general.requirements.add(CPU, Requirement::is_in(["3"]));
    let cluster = Cluster { pools: vec![general], ..Cluster::default() };
    state(cluster, Vec::new(), vec![plain("p", 1000, GIB)])
}

/// A pool at its node limit, with two unavailable offerings.
fn full() -> State {
    let mut general = pool("general");
    general.limits.nodes = Some(1);
    let cluster = Cluster { pools: vec![general], ..Cluster::default() };
    let mut pods: Vec<Pod> = (0..3).map(|at| plain(&format!("p{at}"), 1500, GIB)).collect();
    pods.push(plain("huge", 9000, GIB));
    pods.push(running("web", "a", 1500));
    let mut state = state(cluster, vec![node("a", "general")], pods);
    for zone in ["a", "b"] {
        let offering = OfferingKey {
            instance_type: "c-1x-amd64".into(),
            zone: zone.into(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
        };
        state.holds.record_refusal(None, &offering, NOW);
    }
    state
}

/// A pool whose budget allows one empty node, with a do-not-disrupt pod and nodes in use.
fn keeping() -> State {
    let mut general = pool("general");
    general.disruption.budgets = vec![Budget {
        nodes: BudgetNodes::Nodes(1),
        rate: None,
        reasons: vec![Reason::Empty],
        during: None,
    }];
    let cluster = Cluster { pools: vec![general], ..Cluster::default() };
    let names = ["empty-a", "empty-b", "empty-c", "held", "used-a", "used-b", "used-c"];
    let nodes = names.map(|name| node(name, "general")).to_vec();
    let mut held = running("held", "held", 1700);
    held.annotations = Labels::from([(DO_NOT_DISRUPT.to_owned(), "true".to_owned())]);
    let pods = ["used-a", "used-b", "used-c"].map(|on| running(on, on, 1700));
    let mut pods = pods.to_vec();
    pods.push(held);
    let mut state = state(cluster, nodes, pods);
    let pause = Pause { until: None, reason: "a word of\u{1b}[31m elsewhere".to_owned() };
    // The pause of another pool has no effect.
    state.notes.pauses.insert(Some("other".into()), pause);
    state
}

/// A static pool with one of four nodes, in a cluster whose limit allows two more.
fn fixed() -> State {
    let mut fixed = pool("fixed");
    fixed.replicas = Some(4);
    let mut cluster = Cluster { pools: vec![fixed, pool("general")], ..Cluster::default() };
    cluster.limits.nodes = Some(3);
    state(cluster, vec![node("a", "fixed")], vec![plain("huge", 9000, GIB)])
}

fn rendered(explained: &ExplainedPool<'_>) -> String {
    let (mut out, well) = (explained.text(), explained.can_launch());
    write!(out, "\nwell: {well}\n\n{:#}\n", explained.json()).expect("written");
    out
}

#[test]
fn explain_shows_offerings_limits_and_blockers_of_a_pool() {
    let cases = [
        ("healthy", healthy(), "general"),
        ("barren", barren(), "general"),
        ("full", full(), "general"),
        ("keeping", keeping(), "general"),
        ("static", fixed(), "fixed"),
    ];
    for (case, state, name) in cases {
        let explained = explain_pool(&state, name, NOW).expect(case);
        with_settings!({
            snapshot_path => ".",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            assert_snapshot!(format!("pool-{case}"), rendered(&explained));
        });
    }
}

#[test]
fn explain_counts_the_types_of_each_conflicting_requirement() {
    let mut general = pool("general");
    general.requirements.add(CPU, Requirement::is_in(["1"]));
    general.labels = [(INSTANCE_TYPE, "s-2x-amd64"), ("team", "a")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let cluster = Cluster { pools: vec![general], ..Cluster::default() };
    let state = state(cluster, Vec::new(), Vec::new());
    let explained = explain_pool(&state, "general", NOW).expect("a pool");
    let asked = explained.range.asked.iter();
    let asked: Vec<_> =
        asked.map(|requirement| (requirement.key.as_str(), requirement.types)).collect();
    // A label that no type defines excludes no types and is not listed.
    let expect = [(CPU, 3), (CAPACITY_TYPE, 12), (INSTANCE_TYPE, 1)];
    assert_eq!(asked, expect);
    assert_eq!(explained.range.suited, 0);
    assert!(!explained.can_launch(), "{}", explained.text());
}

#[test]
fn explain_groups_unschedulable_pods_by_the_pool_rejection() {
    let state = healthy();
    let explained = explain_pool(&state, "gpu", NOW).expect("a pool");
    let stopped = explained.unplaced.iter();
    let stopped: Vec<_> = stopped.map(|group| (group.why.code.as_str(), group.pods)).collect();
    assert_eq!(stopped, [("taint", 1)]);
    assert!(explained.launches.is_empty(), "{}", explained.text());
    assert_eq!(explained.candidates, 0, "{}", explained.text());
}

#[test]
fn explain_reports_a_node_class_that_is_not_ready() {
    let mut general = pool("general");
    general.node_class = Some("standard".into());
    let cluster = Cluster { pools: vec![general], ..Cluster::default() };
    let mut state = state(cluster, Vec::new(), Vec::new());
    let well = |state: &State| explain_pool(state, "general", NOW).expect("a pool").can_launch();
    assert!(well(&state));
    state.apply_class_supplies(Arc::new(ClassSupplies::default()));
    assert!(!well(&state));
    let explained = explain_pool(&state, "general", NOW).expect("a pool");
    let text = explained.text();
    let why = "node class \"standard\" is not ready: nothing is known of it yet [node_class]";
    assert!(text.contains(why), "{text}");
    assert!(text.contains("all requirements: 12 of 12 types"), "{text}");
    assert_eq!(explained.json()["range"]["stopped_by"]["code"], "node_class");
}

#[test]
fn explain_shows_when_unavailable_offerings_are_retried() {
    let mut state = full();
    state.holds.record_refused_capacity_type(CapacityType::OnDemand, NOW);
    let explained = explain_pool(&state, "general", NOW).expect("a pool");
    assert!(!explained.can_launch());
    assert_eq!(explained.range.offering_count(), 0);
    let text = explained.text();
    let held = "unavailable after failed launches: 24 offerings, such as c-1x-amd64 a on-demand; \
                next retry at 2027-01-15T08:03:00Z";
    assert!(text.contains(held), "{text}");
    assert!(text.contains("all requirements: 12 of 12 types"), "{text}");
}

#[test]
fn reserved_offering_is_available_until_its_reservation_is_used() {
    let mut general = pool("general");
    let ways = Requirement::is_in(["on-demand", "reserved"]);
    general.requirements = [(CAPACITY_TYPE, ways)].into_iter().collect();
    let cluster = Cluster { pools: vec![general], ..Cluster::default() };
    let mut types = kwok_like("amd64", &[2], &["a"]);
    types[0].offerings.push(Offering {
        zone: "a".into(),
        capacity_type: CapacityType::Reserved,
        price: Price::new(1e-9).expect("a price"),
        available: true,
        reservation: Some(Box::new(Reservation::new("r", 1))),
    });
    let explain_with = |nodes| {
        let mut state = state(cluster.clone(), nodes, Vec::new());
        state.apply_catalog(Arc::new(Catalog::new(types.clone())));
        let explained = explain_pool(&state, "general", NOW).expect("a pool");
        (explained.range.offering_count(), explained.text())
    };
    let (offerings, text) = explain_with(Vec::new());
    assert_eq!(offerings, 4);
    let line = "nodes limit 1 of reservation r: 0 in use, 1 left";
    assert!(text.contains(line), "{text}");
    let mut one = node("a", "general");
    let label = (RESERVATION_ID.to_owned(), "r".to_owned());
    one.labels.extend([label]);
    let (offerings, text) = explain_with(vec![one]);
    assert_eq!(offerings, 3);
    assert!(!text.contains("reserved (1)"), "{text}");
    let line = "nodes limit 1 of reservation r: 1 in use, 0 left";
    assert!(text.contains(line), "{text}");
}

#[test]
fn control_characters_in_a_pause_reason_are_removed() {
    let mut state = keeping();
    let pause = state.notes.pauses.values().next().cloned().expect("a pause");
    state.notes.pauses.insert(None, pause);
    let explained = explain_pool(&state, "general", NOW).expect("a pool");
    let text = explained.text();
    let line = "! the cluster is paused until resumed: a word of [31m elsewhere";
    assert!(text.contains(line), "{text}");
    assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text:?}");
}

#[test]
fn explain_of_an_unknown_pool_lists_similar_names() {
    let state = fixed();
    let cases: [(&str, &[&str]); 4] =
        [("generl", &["general"]), ("gen", &["general"]), ("nothing-like-it", &[]), ("", &[])];
    for (name, expect) in cases {
        assert!(explain_pool(&state, name, NOW).is_none());
        assert_eq!(similar_pools(&state, name), expect, "{name:?}");
    }
}
