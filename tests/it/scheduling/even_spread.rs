//! Many pods spread over hosts, and the number of their nodes.

use std::collections::BTreeMap;

use outrigger::model::id::ClaimId;
use outrigger::model::labels::{HOSTNAME, Labels, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::Effect;
use outrigger::scheduling::Solution;
use outrigger::state::snapshot::NodeRef;

use super::checker::check;
use super::fixture::{
    CPU, GIB, MIB, World, app, label, pod, pods, room, spread, taint, tolerates, world,
};

/// Pods of one Deployment that are spread over hosts.
fn spread_deployment(name: &str, count: usize, cpu_milli: i64, memory: i64) -> Vec<Pod> {
    let mut all = pods(name, count, cpu_milli, memory);
    for pod in &mut all {
        pod.labels = Labels::from([label("app", name)]);
        pod.spread = vec![spread(app(name), HOSTNAME, 1)];
    }
    all
}

fn change_pods(world: &mut World, with: impl Fn(&mut Pod)) {
    world.pods.iter_mut().for_each(with);
}

/// Adds a full node with this number of pods of the Deployment.
fn add_full_node(world: &mut World, name: &str, pods: usize) {
    world.rooms.push(room(name, Resources::default()));
    for at in 0..pods {
        let mut pod = pod(&format!("{name}-{at}"), 0, 0);
        pod.labels = Labels::from([label("app", "a")]);
        pod.node = Some(name.into());
        world.residents.push(pod);
    }
}

/// The number of new nodes, and the minimum and maximum number of pods of the Deployment on one.
fn pod_distribution(solution: &Solution) -> (usize, usize, usize) {
    let of = |pods: &[_]| {
        let is_counted = |key: &&outrigger::model::id::PodKey| key.name.starts_with('a');
        pods.iter().filter(is_counted).count()
    };
    let counts = solution.claims.iter().map(|claim| of(&claim.pods));
    let counts: Vec<usize> = counts.collect();
    let least = counts.iter().min().copied().unwrap_or(0);
    let most = counts.iter().max().copied().unwrap_or(0);
    (counts.len(), least, most)
}

/// A description, a change of the world of 100 pods of one Deployment, and the expected
/// `pod_distribution`.
type Case = (&'static str, fn(&mut World), (usize, usize, usize));

const CASES: &[Case] = &[
    ("no change", |_| {}, (10, 10, 10)),
    ("as many pods as the minimum number of hosts", |world| world.pods.truncate(10), (10, 1, 1)),
    (
        "two pods on each of the minimum number of hosts",
        |world| {
            world.pods.truncate(20);
            change_pods(world, |pod| pod.spread[0].max_skew = 2);
        },
        (10, 2, 2),
    ),
    ("a skew of two", |world| change_pods(world, |pod| pod.spread[0].max_skew = 2), (10, 10, 10)),
    (
        "a larger min_domains",
        |world| change_pods(world, |pod| pod.spread[0].min_domains = 25),
        (25, 4, 4),
    ),
    (
        "a full node without pods",
        |world| {
            world.pods.truncate(30);
            add_full_node(world, "n", 0);
        },
        (30, 1, 1),
    ),
    ("a full node with some pods", |world| add_full_node(world, "n", 3), (25, 4, 4)),
    (
        "enough nodes, all of them full",
        |world| {
            for at in 0..10 {
                add_full_node(world, &format!("n{at}"), 49);
            }
        },
        (5, 20, 20),
    ),
    (
        "a full node that the pods do not select",
        |world| {
            add_full_node(world, "n", 0);
            change_pods(world, |pod| {
                pod.node_selector = Labels::from([label(ZONE, "b")]);
            });
        },
        (10, 10, 10),
    ),
    (
        "a full node that counts although the pods do not select it",
        |world| {
            world.pods.truncate(30);
            add_full_node(world, "n", 0);
            change_pods(world, |pod| {
                pod.node_selector = Labels::from([label(ZONE, "b")]);
                pod.spread[0].honors_affinity = false;
            });
        },
        (30, 1, 1),
    ),
    (
        "a tainted node, which does not count",
        |world| {
            add_full_node(world, "n", 0);
            world.rooms[0].taints = vec![taint("x", Effect::NoSchedule)];
            change_pods(world, |pod| pod.spread[0].honors_taints = true);
        },
        (10, 10, 10),
    ),
    (
        "new nodes of a tainted pool, which count",
        |world| {
            world.pods.truncate(30);
            tainted_pool(world);
        },
        // One more node for the pod of the tainted pool.
        (31, 0, 1),
    ),
    (
        "new nodes of a tainted pool, which do not count",
        |world| {
            change_pods(world, |pod| pod.spread[0].honors_taints = true);
            tainted_pool(world);
        },
        (11, 0, 10),
    ),
    ("nodes of a pool with few types, which get their share", small_pool, (50, 2, 2)),
    ("a limit on nodes", |world| world.pool().limits.nodes = Some(12), (10, 10, 10)),
    (
        "a node limit below the minimum number of nodes",
        |world| world.pool().limits.nodes = Some(4),
        (4, 25, 25),
    ),
    (
        "two pools, the heavier one limited",
        |world| {
            world.pool().limits.nodes = Some(4);
            world.pool().weight = 10;
            let mut other = world.cluster.pools[0].clone();
            (other.name, other.weight) = ("other".into(), 0);
            other.limits.nodes = None;
            world.cluster.pools.push(other);
        },
        (10, 10, 10),
    ),
    (
        "small and large pods of one Deployment",
        |world| {
            change_pods(world, |pod| {
                if pod.key.name.ends_with('0') {
                    pod.requests.cpu_milli = 2900;
                }
            })
        },
        (12, 8, 9),
    ),
    (
        "additional plain pods",
        |world| world.pods.extend(pods("plain", 150, 1000, 2 * GIB)),
        (10, 10, 10),
    ),
    (
        "enough additional plain pods for every node",
        |world| world.pods.extend(pods("plain", 1000, 1000, GIB)),
        (25, 4, 4),
    ),
    (
        "a few pods of another Deployment",
        |world| world.pods.extend(spread_deployment("b", 3, 1000, 2 * GIB)),
        (12, 8, 9),
    ),
    (
        "additional pods that select other nodes",
        |world| {
            let mut others = pods("other", 4, 40_000, 100 * GIB);
            for pod in &mut others {
                pod.node_selector = Labels::from([label(ZONE, "b")]);
            }
            world.pods.extend(others);
        },
        (25, 4, 4),
    ),
];

/// Adds a pool with few types, and two pods that select its nodes.
fn small_pool(world: &mut World) {
    let mut pool = Pool::new("small");
    pool.requirements.add(CPU, Requirement::is_in(["32", "64"]));
    pool.labels = Labels::from([label("only", "x")]);
    world.cluster.pools.push(pool);
    let mut others = pods("x", 2, 30_000, 100 * GIB);
    for pod in &mut others {
        pod.node_selector = Labels::from([label("only", "x")]);
    }
    world.pods.extend(others);
}

/// Adds a tainted pool, and the only pod that tolerates its nodes.
fn tainted_pool(world: &mut World) {
    let mut pool = Pool { taints: vec![taint("x", Effect::NoSchedule)], ..Pool::new("tainted") };
    pool.requirements.add(ZONE, Requirement::is_in(["a"]));
    pool.labels = Labels::from([label("only", "x")]);
    world.cluster.pools.push(pool);
    let mut pod = pod("x", 1000, GIB);
    pod.tolerations.push(tolerates("x"));
    pod.node_selector = Labels::from([label("only", "x")]);
    world.pods.push(pod);
}

#[test]
fn many_spread_pods_are_distributed_evenly_over_hosts() {
    let mut wrong = Vec::new();
    for (name, change, expect) in CASES {
        let mut world = world();
        world.pods = spread_deployment("a", 100, 1590, 2 * GIB);
        change(&mut world);
        let solution = world.solve();
        let checked = check(&world, &solution);
        let got = (pod_distribution(&solution), solution.unplaced.len());
        if checked.is_err() || got != (*expect, 0) {
            wrong.push(format!("{name}: {got:?} not {expect:?}, {checked:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn two_large_spread_deployments_share_few_nodes() {
    let mut world = world();
    world.pods = spread_deployment("a", 500, 900, 3100 * MIB);
    world.pods.extend(spread_deployment("b", 500, 3500, 28 * GIB));
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for claim in &solution.claims {
        *types.entry(claim.offerings[0].0.instance_type.as_str()).or_insert(0) += 1;
    }
    assert_eq!(pod_distribution(&solution), (12, 41, 42));
    // All nodes have capacity for one pod more.
    assert_eq!(types, BTreeMap::from([("m-192x-amd64", 12)]));
}

#[test]
fn pods_of_a_failed_launch_get_an_identical_claim() {
    let mut world = world();
    world.pods = spread_deployment("a", 100, 1590, 2 * GIB);
    let solution = world.solve();
    let (refused, rest) = solution.claims.split_first().expect("nodes");
    // All other nodes are in flight.
    for (at, claim) in rest.iter().enumerate() {
        let mut node = room("", Resources::default());
        node.host = NodeRef::Claim(ClaimId::from(format!("c{at}")));
        node.initialized = false;
        let of = |pod: &&Pod| claim.pods.contains(&pod.key);
        let pods: Vec<Pod> = world.pods.iter().filter(of).cloned().collect();
        world.promised.insert(node.host.clone(), pods);
        world.rooms.push(node);
    }
    world.pods.retain(|pod| refused.pods.contains(&pod.key));
    let again = world.solve();
    check(&world, &again).expect("a valid plan");
    assert_eq!(again.claims[..], std::slice::from_ref(refused)[..]);
}

#[test]
fn unconstrained_pods_are_distributed_once() {
    // Two Deployments that count different hosts, and pods that fit on the nodes of either.
    let zone = Labels::from([label(ZONE, "b")]);
    let mut world = world();
    world.pods = spread_deployment("a", 40, 1590, 2 * GIB);
    let mut others = spread_deployment("b", 200, 1590, 2 * GIB);
    for pod in &mut others {
        pod.spread[0].honors_affinity = false;
    }
    world.pods.extend(others);
    world.pods.extend(pods("plain", 60, 1000, 2 * GIB));
    change_pods(&mut world, |pod| pod.node_selector.clone_from(&zone));
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    assert_eq!(solution.unplaced, []);
}
