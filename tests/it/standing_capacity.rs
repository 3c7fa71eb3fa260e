//! Capacity that is independent of pending pods, in displayed plans: static pools and buffers.

use std::sync::Arc;

use jiff::Timestamp;
use outrigger::catalog::Catalog;
use outrigger::model::buffer::{Buffer, BufferPod};
use outrigger::model::cluster::Cluster;
use outrigger::model::id::{NodeName, ObjectKey};
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, POOL, ZONE};
use outrigger::model::node::Node;
use outrigger::model::pod::Pod;
use outrigger::model::pool::{Pool, Reason};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::render::RenderedPlan;
use outrigger::plan::{Plan, plan_without_consolidation};
use outrigger::state::State;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// A pool with one on-demand instance type.
fn pool(name: &str, replicas: Option<u32>) -> Pool {
    let mut pool = Pool::new(name);
    for (key, value) in [(CAPACITY_TYPE, "on-demand"), (INSTANCE_TYPE, "m6i.large")] {
        pool.requirements.add(key, Requirement::is_in([value]));
    }
    pool.replicas = replicas;
    pool
}

fn pod(name: &str, cpu_milli: i64, node: Option<&str>) -> WatchedObject {
    let mut pod = Pod {
        key: ObjectKey::new("default", name),
        unschedulable: node.is_none(),
        node: node.map(NodeName::from),
        ..Pod::default()
    };
    pod.requests.cpu_milli = cpu_milli;
    pod.requests.pods = 1;
    WatchedObject::Pod(Box::new(pod))
}

/// A running node of a pool.
fn node(name: &str, pool: &str, zone: &str) -> WatchedObject {
    let catalog = Catalog::shipped();
    let shape = catalog.get("m6i.large").expect("it ships");
    let labels = [
        (POOL, pool),
        (INSTANCE_TYPE, "m6i.large"),
        (CAPACITY_TYPE, "on-demand"),
        (ZONE, zone),
        ("karpenter.sh/registered", "true"),
        ("karpenter.sh/initialized", "true"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    WatchedObject::Node(Box::new(Node {
        name: name.into(),
        uid: name.to_owned(),
        labels: labels.into(),
        ready: true,
        capacity: shape.capacity.clone(),
        allocatable: shape.allocatable.clone(),
        created: Some(NOW),
        ..Node::default()
    }))
}

fn state(pools: Vec<Pool>, objects: Vec<WatchedObject>) -> State {
    let cluster = Cluster { pools, ..Cluster::default() };
    State::offline(Arc::new(cluster), Arc::new(Catalog::shipped()), objects, NOW)
}

fn plan(state: &State) -> Plan {
    let plan = plan_without_consolidation(&state.snapshot(NOW), &state.disruption_view(NOW), NOW);
    assert_eq!(plan.findings, Vec::<String>::new());
    plan
}

/// The rendered actions of a plan, without its totals.
fn rendered(plan: &Plan) -> String {
    let shown = RenderedPlan {
        sweeps: Default::default(),
        cluster: "one",
        plan,
        solve_seconds: 0.0,
        missing: None,
        unbudgeted: None,
        before: 0.0,
    };
    let text = shown.text();
    let lines = text.lines().skip(2);
    let lines = lines.take_while(|line| !line.is_empty());
    lines.map(|line| format!("{}\n", line.trim())).collect()
}

#[test]
fn pending_pods_use_planned_nodes_of_static_pools() {
    let pools = vec![pool("fixed", Some(2)), pool("general", None)];
    let pods = ["a", "b", "c"].map(|name| pod(name, 1500, None));
    let plan = plan(&state(pools, pods.into()));
    let launches: Vec<(&str, usize)> =
        plan.launches.iter().map(|launch| (launch.pool.as_str(), launch.pods.len())).collect();
    assert_eq!(launches, [("fixed", 1), ("fixed", 1), ("general", 1)]);
    assert_eq!(plan.placed, []);
    let cpu: Vec<i64> = plan.launches.iter().map(|launch| launch.requests.cpu_milli).collect();
    assert_eq!(cpu, [1500; 3]);
}

#[test]
fn node_uses_the_limit_once_despite_alternative_offerings() {
    let mut fixed = pool("fixed", Some(3));
    let types = Requirement::is_in(["m6i.large", "m6i.xlarge"]);
    fixed.requirements = [(INSTANCE_TYPE, types)].into_iter().collect();
    let mut cluster = Cluster { pools: vec![fixed], ..Cluster::default() };
    // The capacity of three nodes of the smaller type.
    cluster.limits.capacity = vec![("cpu".to_owned(), 6_000)];
    let catalog = Arc::new(Catalog::shipped());
    let state = State::offline(Arc::new(cluster), catalog, Vec::new(), NOW);
    let plan = plan(&state);
    assert_eq!((plan.launches.len(), plan.short), (3, vec![]));
}

#[test]
fn missing_static_nodes_launch_in_the_zones_with_fewest_nodes() {
    let zones = ["us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d"];
    let nodes = [("n1", zones[0]), ("n2", zones[1]), ("n3", zones[3])];
    let nodes = nodes.map(|(name, zone)| node(name, "fixed", zone));
    let mut fixed = pool("fixed", Some(5));
    fixed.requirements.add(ZONE, Requirement::is_in(zones));
    let plan = plan(&state(vec![fixed], nodes.into()));
    let made: Vec<&str> =
        plan.launches.iter().map(|launch| launch.offerings[0].0.zone.as_str()).collect();
    assert_eq!(made, [zones[2], zones[0]]);
    assert_eq!(plan.retire, []);
}

#[test]
fn surplus_static_node_is_disrupted_and_gets_no_pods() {
    let objects = vec![
        node("n1", "fixed", "us-east-1a"),
        node("n2", "fixed", "us-east-1b"),
        pod("there", 100, Some("n2")),
        pod("waits", 1500, None),
    ];
    let plan = plan(&state(vec![pool("fixed", Some(1))], objects));
    let retired: Vec<(&str, Reason)> =
        plan.retire.iter().map(|disrupted| (disrupted.node.as_str(), disrupted.reason)).collect();
    assert_eq!(retired, [("n1", Reason::Surplus)]);
    let placed: Vec<String> = plan.placed.iter().map(|placement| placement.0.to_string()).collect();
    assert_eq!(placed, ["node n2"]);
    assert!(rendered(&plan).contains("- disrupt n1: surplus, $0.0960/h\n"));
}

#[test]
fn missing_static_nodes_are_shown_with_the_reason() {
    let mut limited = pool("limited", Some(3));
    limited.limits.nodes = Some(2);
    let mut unsold = pool("unsold", Some(1));
    unsold.requirements.add(ZONE, Requirement::is_in(["moon"]));
    let mut plain = pool("plain", Some(2));
    let most = ("karpenter.k8s.aws/instance-cpu", Requirement::is_in(["3"]));
    plain.requirements.add(most.0, most.1);
    let mut varied = pool("varied", Some(1));
    let mut types = Requirement::is_in(["m6i.large", "m7i.large"]);
    types.min_values = Some(3);
    varied.requirements = [(INSTANCE_TYPE, types)].into_iter().collect();
    let plan = plan(&state(vec![limited, unsold, plain, varied], Vec::new()));
    let expect = [
        "! nodes of pool limited: 1 missing",
        "pool limited: nodes limit 2 is reached [limit]",
        "! nodes of pool plain: 2 missing",
        "pool plain: no instance type satisfies the pool's own requirements [requirements]",
        "! nodes of pool unsold: 1 missing",
        "pool unsold: 1 types fit (m6i.large, …), but none has an offering with \
         topology.kubernetes.io/zone in [moon], karpenter.sh/capacity-type in [on-demand]; \
         available: us-east-1a spot, us-east-1a on-demand, us-east-1b spot, us-east-1b on-demand, \
         us-east-1c spot, us-east-1c on-demand, us-east-1d spot, us-east-1d on-demand [offering]",
        "! nodes of pool varied: 1 missing",
        "pool varied: the pool requires 3 values of node.kubernetes.io/instance-type, but the \
         types that fit have 2 [min_values]",
    ];
    let shown = rendered(&plan);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[lines.len() - expect.len()..], expect);
    assert_eq!(plan.launches.len(), 2);
}

/// A state with a buffer for this number of pods with 1.5 cores each.
fn with_buffer(pools: Vec<Pool>, replicas: u32, objects: Vec<WatchedObject>) -> State {
    let requests = Resources { cpu_milli: 1500, pods: 1, ..Resources::default() };
    let buffer = Buffer {
        name: "spare".to_owned(),
        replicas: Some(replicas),
        pod: Some(BufferPod { requests, ..BufferPod::default() }),
        ..Buffer::default()
    };
    let cluster = Cluster { pools, buffers: vec![buffer], ..Cluster::default() };
    State::offline(Arc::new(cluster), Arc::new(Catalog::shipped()), objects, NOW)
}

#[test]
fn pending_pods_are_placed_before_buffer_pods() {
    let objects = vec![node("n1", "general", "us-east-1a"), pod("waits", 1500, None)];
    let plan = plan(&with_buffer(vec![pool("general", None)], 2, objects));
    let key = ObjectKey::new("default", "waits");
    let host = outrigger::state::snapshot::NodeRef::Node("n1".into());
    assert_eq!(plan.placed, [(host, vec![key])]);
    assert_eq!(plan.unplaced, []);
    assert_eq!(plan.launches.len(), 2);
    let shown = rendered(&plan);
    let lines = shown.lines();
    let room = lines.filter(|line| *line == "capacity for 1 pod of buffer spare");
    assert_eq!(room.count(), 2);
}

#[test]
fn buffer_capacity_is_reserved_on_nodes_that_stay_anyway() {
    // Of three nodes with two cores: those with a pod, static ones, and retained ones.
    let rows: [(&[&str], &[&str], &[&str]); 4] = [
        (&[], &[], &["n1"]),
        (&["n2"], &[], &["n1"]),
        (&[], &["n2"], &[]),
        (&["n1", "n2"], &[], &["n1"]),
    ];
    for (busy, fixed, kept) in rows {
        let names = ["n1", "n2", "n3"];
        let pool_of = |name| {
            if fixed.contains(&name) { "fixed" } else { "general" }
        };
        let nodes = names.map(|name| node(name, pool_of(name), "us-east-1a"));
        let mut objects: Vec<WatchedObject> = nodes.into();
        for name in busy {
            let cpu = if *name == "n2" { 1000 } else { 100 };
            objects.push(pod(&format!("on-{name}"), cpu, Some(name)));
        }
        let static_nodes = u32::try_from(fixed.len()).ok();
        let mut pools = vec![pool("general", None), pool("fixed", static_nodes)];
        for pool in &mut pools {
            pool.disruption.budgets.clear();
        }
        let plan = plan(&with_buffer(pools, 1, objects));
        assert_eq!(plan.launches.len(), 0, "{busy:?} {fixed:?}");
        let reserved: Vec<&str> = plan
            .kept
            .iter()
            .filter(|retained| retained.verdict.to_string() == "reserved for capacity buffer spare")
            .map(|retained| retained.node.as_str())
            .collect();
        let idle = kept.iter().filter(|name| !busy.contains(name));
        assert_eq!(reserved, idle.copied().collect::<Vec<_>>(), "{busy:?} {fixed:?}");
        let disrupted = plan.retire.len();
        let expect = names.len() - busy.len() - fixed.len() - reserved.len();
        assert_eq!(disrupted, expect, "{busy:?} {fixed:?}");
    }
}
