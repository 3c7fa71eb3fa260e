//! Daemons of planned nodes, and pods with affinity or anti-affinity to them.

use outrigger::catalog::Catalog;
use outrigger::model::id::{ClaimId, ObjectKey, PodKey};
use outrigger::model::labels::{CAPACITY_TYPE, HOSTNAME, Labels, NODE_NAME, POOL, ZONE};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::Pool;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::taint::Effect;
use outrigger::scheduling::{RejectionCode, Solution};
use outrigger::state::snapshot::NodeRef;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::checker::check;
use super::fixture::{
    CPU, DEFAULT, GIB, World, app, kwok_like, label, pod, pods, port, room, spread, taint, term,
    tolerates, world,
};

/// A daemon whose pods have the label `app`.
fn daemon(name: &str, of: &str) -> DaemonSet {
    let mut template = pod(name, 100, GIB / 8);
    template.labels = Labels::from([label("app", of)]);
    DaemonSet { key: ObjectKey::new(DEFAULT, name), template }
}

/// One type with 4 CPUs, spot and on-demand in three zones, an agent, and a pod.
fn with_agent() -> World {
    let mut world = World {
        catalog: Catalog::new(kwok_like("amd64", &[4], &["a", "b", "c"])),
        daemons: vec![daemon("agent", "agent")],
        pods: vec![pod("p", 500, GIB)],
        ..World::default()
    };
    world.pods[0].labels = Labels::from([label("app", "web")]);
    world.cluster.pools.push(Pool::new("general"));
    world
}

fn select_agent_nodes(world: &mut World, key: &str, value: &str) {
    let labels = Labels::from([label(key, value)]);
    world.daemons[0].template.node_selector = labels;
}

/// The agent runs on nodes of one of the two teams of the pool.
fn agent_of_a_team(world: &mut World) {
    select_agent_nodes(world, "team", "x");
    let teams = Requirement::is_in(["x", "y"]);
    world.pool().requirements.add("team", teams);
}

/// The agent runs on all nodes except those of one of the two teams.
fn agent_of_no_team(world: &mut World) {
    agent_of_a_team(world);
    let template = &mut world.daemons[0].template;
    template.node_selector.clear();
    let others = Requirements::from_iter([("team", Requirement::not_in(["x"]))]);
    template.node_affinity = vec![others];
}

/// The agent runs on nodes of one team, and on all nodes that are larger than the only type.
fn agent_of_a_team_and_large(world: &mut World) {
    agent_of_a_team(world);
    let template = &mut world.daemons[0].template;
    let team = Requirements::from_labels(&std::mem::take(&mut template.node_selector));
    let large = Requirement::between(Some(8), None);
    template.node_affinity = vec![team, Requirements::from_iter([(CPU, large)])];
}

fn add_anti_affinity(pod: &mut Pod, from: &str, key: &str) {
    pod.anti_affinity.push(term(app(from), key));
}

fn add_affinity(pod: &mut Pod, to: &str, key: &str) {
    pod.affinity.push(term(app(to), key));
}

fn checked_solution(world: &World) -> Solution {
    let solution = world.solve();
    check(world, &solution).expect("a valid plan");
    solution
}

/// The solution if all pods are placed, or the code and text of the first rejection.
fn outcome(world: &World) -> Result<Solution, (RejectionCode, String)> {
    let solution = checked_solution(world);
    match solution.unplaced.first() {
        Some(rejected) => Err((rejected.reasons[0].code, rejected.reasons[0].rejection_text())),
        None => Ok(solution),
    }
}

type Case = (&'static str, fn(&mut World));

fn check_one_node_each(cases: &[Case]) {
    for (name, change) in cases {
        let mut world = with_agent();
        change(&mut world);
        let solution = outcome(&world).expect(name);
        assert_eq!(solution.claims.len(), 1, "{name}");
    }
}

#[test]
fn pod_with_anti_affinity_to_a_daemon_is_rejected() {
    let refused: [Case; 5] = [
        ("hostname", |it| add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME)),
        ("zone", |it| add_anti_affinity(&mut it.pods[0], "agent", ZONE)),
        ("anti-affinity of the daemon by hostname", |it| {
            add_anti_affinity(&mut it.daemons[0].template, "web", HOSTNAME);
        }),
        ("anti-affinity of the daemon by zone", |it| {
            add_anti_affinity(&mut it.daemons[0].template, "web", ZONE);
        }),
        ("a daemon of spot nodes, and a spot-only pool", |it| {
            select_agent_nodes(it, CAPACITY_TYPE, "spot");
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
            let spot = Requirement::is_in(["spot"]);
            it.pool().requirements.add(CAPACITY_TYPE, spot);
        }),
    ];
    for (name, change) in refused {
        let mut world = with_agent();
        change(&mut world);
        let (code, text) = outcome(&world).expect_err(name);
        assert_eq!(code, RejectionCode::Topology, "{name}: {text}");
        assert!(text.contains("default/agent"), "{name}: {text}");
    }
}

#[test]
fn irrelevant_anti_affinity_does_not_prevent_a_new_node() {
    let placed: [Case; 6] = [
        ("anti-affinity to other pods", |it| add_anti_affinity(&mut it.pods[0], "other", HOSTNAME)),
        ("anti-affinity by a label that no node has", |it| {
            add_anti_affinity(&mut it.pods[0], "agent", "rack");
        }),
        ("the daemon does not tolerate the pool", |it| {
            it.pool().taints = vec![taint("x", Effect::NoSchedule)];
            it.pods[0].tolerations = vec![tolerates("x")];
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
        ("the daemon runs on another pool", |it| {
            select_agent_nodes(it, POOL, "other");
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
        ("the daemon runs on large nodes or on spot", |it| {
            it.daemons[0].template.node_affinity = [(CPU, "8"), (CAPACITY_TYPE, "spot")]
                .map(|(key, value)| [(key, Requirement::is_in([value]))].into_iter().collect())
                .to_vec();
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
        ("the daemon runs on spot only", |it| {
            select_agent_nodes(it, CAPACITY_TYPE, "spot");
            add_anti_affinity(&mut it.pods[0], "agent", ZONE);
        }),
    ];
    check_one_node_each(&placed);
}

/// A label with several allowed values in the pool gets another value on the node.
#[test]
fn pod_gets_a_node_label_that_avoids_the_daemon() {
    let placed: [Case; 6] = [
        ("the daemon also runs on large nodes", |it| {
            agent_of_a_team_and_large(it);
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
        ("the daemon runs on nodes of all teams except one", |it| {
            agent_of_no_team(it);
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
        ("the daemon runs on nodes of one team or in a rack", |it| {
            agent_of_a_team(it);
            let team = std::mem::take(&mut it.daemons[0].template.node_selector);
            it.daemons[0].template.node_affinity = vec![
                Requirements::from_iter([("rack", Requirement::is_in(["r1"]))]),
                Requirements::from_labels(&team),
            ];
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
        ("the daemon runs on nodes of one team or without a team", |it| {
            agent_of_a_team(it);
            let team = std::mem::take(&mut it.daemons[0].template.node_selector);
            it.daemons[0].template.node_affinity = vec![
                Requirements::from_iter([("team", Requirement::does_not_exist())]),
                Requirements::from_labels(&team),
            ];
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
        ("the pool has nodes of other teams", |it| {
            agent_of_a_team(it);
            add_anti_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
        ("the daemon uses a host port on nodes of one team", |it| {
            agent_of_a_team(it);
            it.daemons[0].template.host_ports = BTreeSet::from([port(80)]);
            it.pods[0].host_ports = BTreeSet::from([port(80)]);
        }),
    ];
    check_one_node_each(&placed);
}

#[test]
fn pod_with_affinity_to_a_daemon_gets_a_node_with_it() {
    let placed: [Case; 4] = [
        ("hostname", |it| add_affinity(&mut it.pods[0], "agent", HOSTNAME)),
        ("zone", |it| add_affinity(&mut it.pods[0], "agent", ZONE)),
        ("hostname and zone", |it| {
            add_affinity(&mut it.pods[0], "agent", HOSTNAME);
            add_affinity(&mut it.pods[0], "agent", ZONE);
        }),
        ("the daemon runs on on-demand nodes only", |it| {
            select_agent_nodes(it, CAPACITY_TYPE, "on-demand");
            add_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
    ];
    check_one_node_each(&placed);
    let refused: [Case; 3] = [
        ("affinity to other pods", |it| add_affinity(&mut it.pods[0], "other", HOSTNAME)),
        ("affinity by a label that no node has", |it| {
            add_affinity(&mut it.pods[0], "agent", "rack");
        }),
        ("the daemon runs on no node of the pool", |it| {
            select_agent_nodes(it, "team", "x");
            add_affinity(&mut it.pods[0], "agent", HOSTNAME);
        }),
    ];
    for (name, change) in refused {
        let mut world = with_agent();
        change(&mut world);
        let (code, text) = outcome(&world).expect_err(name);
        assert_eq!(code, RejectionCode::Topology, "{name}: {text}");
    }
}

/// A pod with affinity to the agent, and one with anti-affinity: one of their nodes has no agent.
#[test]
fn pods_with_and_without_the_daemon_get_separate_nodes() {
    let mut world = with_agent();
    select_agent_nodes(&mut world, CAPACITY_TYPE, "spot");
    add_affinity(&mut world.pods[0], "agent", HOSTNAME);
    let mut other = pod("q", 500, GIB);
    add_anti_affinity(&mut other, "agent", ZONE);
    world.pods.push(other);
    world.pods[0].node_selector = Labels::from([label(ZONE, "a")]);
    for zone in ["a", "b"] {
        let there = Requirements::from_iter([(ZONE, Requirement::is_in([zone]))]);
        world.pods[1].node_affinity.push(there);
    }
    let solution = outcome(&world).expect("all pods are placed");
    let zone = |at: usize| solution.claims[at].offerings[0].0.zone.as_str();
    let mut zones = [zone(0), zone(1)];
    zones.sort_unstable();
    assert_eq!(zones, ["a", "b"]);
}

#[test]
fn expected_daemons_count_on_in_flight_nodes_if_certain() {
    for (is_certain, with_affinity, with_anti_affinity) in
        [(true, true, false), (false, false, false)]
    {
        for (anti_affinity, expect) in [(false, with_affinity), (true, with_anti_affinity)] {
            let mut world = with_agent();
            let mut node = room("n", pod("", 3000, 8 * GIB).requests);
            node.host = NodeRef::Claim(ClaimId::from("c"));
            node.free.pods = 9;
            node.daemons = vec![(world.daemons[0].key.clone(), is_certain)];
            node.initialized = false;
            Arc::make_mut(&mut node.labels).add(ZONE, Requirement::is_in(["a"]));
            world.rooms = vec![node];
            world.cluster.pools.clear();
            match anti_affinity {
                true => add_anti_affinity(&mut world.pods[0], "agent", HOSTNAME),
                false => add_affinity(&mut world.pods[0], "agent", HOSTNAME),
            }
            let placed = world.solve().unplaced.is_empty();
            assert_eq!(placed, expect, "certain {is_certain}, anti-affinity {anti_affinity}");
        }
    }
}

/// The daemon overhead depends on the capacity type of the node.
#[test]
fn spot_daemon_overhead_does_not_count_on_demand() {
    let mut world = with_agent();
    select_agent_nodes(&mut world, CAPACITY_TYPE, "spot");
    world.pods[0].requests.cpu_milli = 3900;
    let solution = outcome(&world).expect("capacity on demand");
    let mut all = solution.claims[0].offerings.iter();
    assert!(all.all(|(key, _)| key.capacity_type.as_str() == "on-demand"));
    world.pods[0].requests.cpu_milli = 3800;
    let solution = outcome(&world).expect("capacity on spot");
    assert_eq!(solution.claims[0].offerings[0].0.capacity_type.as_str(), "spot");
}

#[test]
fn daemons_count_in_zone_spread() {
    let mut world = with_agent();
    select_agent_nodes(&mut world, CAPACITY_TYPE, "spot");
    world.pods = pods("p", 4, 500, GIB);
    for pod in &mut world.pods {
        pod.labels = Labels::from([label("app", "agent")]);
        pod.spread = vec![spread(app("agent"), ZONE, 1)];
    }
    let solution = outcome(&world).expect("all pods are placed");
    assert!(solution.claims.len() > 2);
}

/// Pods are spread over hosts together with the pods of a daemon. Whether the daemon runs on a host
/// depends on a label of the pool, or on pods that do not exist.
#[test]
fn daemons_count_in_hostname_spread() {
    let cases: [Case; 5] = [
        ("the daemon runs on one team", agent_of_a_team),
        ("the daemon runs on one team and on large nodes", agent_of_a_team_and_large),
        ("the daemon runs on the other team", agent_of_no_team),
        ("the daemon has anti-affinity to pods that do not exist", |it| {
            add_anti_affinity(&mut it.daemons[0].template, "nobody", ZONE);
        }),
        ("the daemon has anti-affinity by a label that the host does not have", |it| {
            let mut node = room("n", pod("", 3000, 8 * GIB).requests);
            node.free.pods = 9;
            node.daemons = vec![(it.daemons[0].key.clone(), true)];
            node.initialized = false;
            it.rooms = vec![node];
            it.cluster.pools.clear();
            add_anti_affinity(&mut it.daemons[0].template, "agent", ZONE);
        }),
    ];
    for (name, change) in cases {
        let mut world = with_agent();
        world.pods = pods("p", 4, 500, GIB);
        for pod in &mut world.pods {
            pod.labels = Labels::from([label("app", "agent")]);
            pod.spread = vec![spread(app("agent"), HOSTNAME, 1)];
        }
        change(&mut world);
        let solution = outcome(&world).expect(name);
        assert_eq!(solution.order.len(), 4, "{name}");
    }
}

/// A closed node without pods stays the minimum: other hosts may have `max_skew` pods, daemon pods
/// included.
#[test]
fn daemon_pods_use_part_of_the_hostname_skew() {
    let cases: [Case; 2] = [
        ("a skew of two", |it| {
            it.pods[0].spread = vec![spread(app("agent"), HOSTNAME, 2)];
        }),
        ("a skew of one, on nodes without the daemon", |it| {
            it.pods[0].spread = vec![spread(app("agent"), HOSTNAME, 1)];
            select_agent_nodes(it, CAPACITY_TYPE, "spot");
        }),
    ];
    for (name, change) in cases {
        let mut world = with_agent();
        let mut full = room("full", pod("", 0, 0).requests);
        full.open = false;
        world.rooms = vec![full];
        world.pods[0].labels = Labels::from([label("app", "agent")]);
        change(&mut world);
        for at in 1..5 {
            let mut pod = world.pods[0].clone();
            pod.key.name = format!("p{at}");
            world.pods.push(pod);
        }
        let solution = outcome(&world).expect(name);
        assert_eq!(solution.claims.len(), 5, "{name}");
    }
}

/// Pods that must share a host get one node, although capacity for a single one of them would be
/// cheaper elsewhere: the others could not follow.
#[test]
fn hostname_affinity_group_stays_on_one_node() {
    let mut world = world();
    world.catalog = Catalog::new(kwok_like("amd64", &[2, 4], &["a", "b"]));
    world.pods = pods("near", 2, 700, GIB / 8);
    for pod in &mut world.pods {
        pod.labels = Labels::from([label("app", "near")]);
        pod.affinity = vec![term(app("near"), HOSTNAME)];
    }
    for mut pod in pods("spread", 2, 2500, 3 * GIB) {
        pod.labels = Labels::from([label("app", "spread")]);
        pod.spread = vec![spread(app("spread"), ZONE, 1)];
        world.pods.push(pod);
    }
    let solution = outcome(&world).expect("all pods are placed");
    let near = |pods: &[PodKey]| pods.iter().any(|key| key.name.starts_with("near"));
    let with = solution.claims.iter().filter(|claim| near(&claim.pods));
    assert_eq!(with.count(), 1);
}

/// A node that is planned for spread pods may be discarded. Its agent, which counts for the spread,
/// must then not allow further pods.
#[test]
fn daemons_of_discarded_nodes_do_not_count_in_spread() {
    for zones in [&["b"][..], &["c"], &["b", "c"]] {
        let mut world = with_agent();
        world.pods[0] = pod("p", 900, GIB / 2);
        let there = Requirement::is_in(zones.iter().copied());
        world.pods[0].node_affinity = vec![Requirements::from_iter([(ZONE, there)])];
        for mut pod in pods("spread", 4, 3500, GIB / 2) {
            pod.labels = Labels::from([label("app", "agent")]);
            pod.spread = vec![spread(app("agent"), ZONE, 1)];
            world.pods.push(pod);
        }
        let solution = checked_solution(&world);
        assert!(solution.order.len() >= 4, "{zones:?}: {solution:#?}");
    }
}

#[test]
fn self_matching_affinity_needs_no_daemon() {
    // The pod has affinity to the daemon, which runs on no node of the pool. A pool with a
    // `PreferNoSchedule` taint is tried last. World 117700000000101 of the oracle test.
    for effect in [None, Some(Effect::PreferNoSchedule)] {
        let mut world = with_agent();
        select_agent_nodes(&mut world, "team", "x");
        add_affinity(&mut world.pods[0], "agent", ZONE);
        world.pods[0].labels = world.daemons[0].template.labels.clone();
        world.pool().taints = effect.map(|effect| taint("dedicated", effect)).into_iter().collect();
        let solution = checked_solution(&world);
        assert!(solution.unplaced.is_empty(), "{effect:?}: {:?}", solution.unplaced);
    }
}

/// A daemon with anti-affinity to the pods requires several labels, of which pools define at most
/// one.
#[test]
fn pod_avoids_a_daemon_by_the_only_label_that_pools_define() {
    let absent = ("team", Requirement::does_not_exist());
    let cases = [
        [("rack", Requirement::not_in(["r"])), absent.clone()],
        [(NODE_NAME, Requirement::not_in(["n"])), absent],
        [(NODE_NAME, Requirement::not_in(["n"])), ("rack", Requirement::is_in(["r"]))],
        [(NODE_NAME, Requirement::not_in(["n"])), (CPU, Requirement::between(Some(4), None))],
    ];
    for others in cases {
        let mut world = with_agent();
        world.catalog = Catalog::new(kwok_like("amd64", &[2, 4], &["a"]));
        agent_of_a_team(&mut world);
        let template = &mut world.daemons[0].template;
        template.node_selector.clear();
        let team = Requirements::from_iter([("team", Requirement::is_in(["x"]))]);
        template.node_affinity = vec![Requirements::from_iter(others), team];
        add_anti_affinity(template, "web", HOSTNAME);
        let solution = outcome(&world).expect("all pods are placed");
        assert_eq!(solution.claims[0].labels["team"], "y");
    }
}

/// The same if pools set the label.
#[test]
fn pod_avoids_a_daemon_by_using_another_pool() {
    let mut world = with_agent();
    for (at, team) in ["x", "y"].into_iter().enumerate() {
        if at > 0 {
            world.cluster.pools.push(Pool::new("other"));
        }
        world.cluster.pools[at].labels = Labels::from([label("team", team)]);
    }
    let template = &mut world.daemons[0].template;
    template.node_affinity = vec![Requirements::from_iter([
        ("rack", Requirement::not_in(["r"])),
        ("team", Requirement::is_in(["x"])),
    ])];
    add_anti_affinity(template, "web", HOSTNAME);
    let solution = outcome(&world).expect("all pods are placed");
    assert_eq!(solution.claims[0].pool.as_str(), "other");
}

/// The pods are spread against the pods of a daemon, which do not include them.
#[test]
fn pods_spread_against_daemon_pods_get_nodes() {
    // World 117695400000471 of the oracle test. The existing node may lack its daemon.
    for is_open in [false, true] {
        let mut world = with_agent();
        let mut there = room("there", pod("", 3000, 8 * GIB).requests);
        let labels = Arc::make_mut(&mut there.labels);
        labels.add(CAPACITY_TYPE, Requirement::is_in(["spot"]));
        labels.add(ZONE, Requirement::is_in(["c"]));
        if is_open {
            there.daemons = vec![(world.daemons[0].key.clone(), false)];
        }
        world.rooms.push(there);
        let mut agent = world.daemons[0].template.clone();
        agent.node = Some("there".into());
        world.residents.push(agent);
        world.pods.clear();
        for at in 0..9 {
            let mut pod = pod(&format!("p{at}"), 500, GIB);
            pod.labels = Labels::from([label("app", "web")]);
            pod.node_selector = Labels::from([label(ZONE, "a")]);
            pod.host_ports = BTreeSet::from([port(80)]);
            let mut by_type = spread(app("agent"), CAPACITY_TYPE, 1);
            by_type.honors_affinity = false;
            pod.spread = vec![by_type, spread(app("web"), HOSTNAME, 1)];
            world.pods.push(pod);
            let left = checked_solution(&world).unplaced.len();
            assert_eq!(left, 0, "{at}, {is_open}");
        }
    }
}

/// With fewer hosts than `minDomains`, a host with its daemon already has the maximum skew.
#[test]
fn min_domains_add_hosts_for_a_pod_spread_with_daemons() {
    // World 117696000000108 of the oracle test.
    for least in 1..=4 {
        let mut world = with_agent();
        world.pods[0].labels = Labels::from([label("app", "agent")]);
        world.pods[0].spread = vec![spread(app("agent"), HOSTNAME, 1)];
        world.pods[0].spread[0].min_domains = least;
        for mut pod in pods("apart", 2, 500, GIB) {
            pod.host_ports = BTreeSet::from([port(80)]);
            world.pods.push(pod);
        }
        let solution = checked_solution(&world);
        let made = (solution.claims.len(), solution.unplaced.len());
        let expected = [(2, 0), (2, 0), (3, 0), (2, 1)][least as usize - 1];
        assert_eq!(made, expected, "at least {least} hosts");
    }
}
