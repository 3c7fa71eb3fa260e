//! Planned nodes with several possible domains or types, and pods that depend on the selected one.

use outrigger::catalog::Catalog;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::CapacityType;
use outrigger::model::labels::{ARCH, CAPACITY_TYPE, HOSTNAME, Labels, ZONE};
use outrigger::model::pod::DaemonSet;
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::scheduling::{RejectionCode, Solution};
use outrigger::state::snapshot::VolumeRequirements;

use super::checker::check;
use super::fixture::{DEFAULT, GIB, World, app, kwok_like, label, pod, pods, room, spread, term};

/// One type with 4 CPUs for both architectures in three zones, in a pool without requirements.
fn two_architectures() -> World {
    let types = ["amd64", "arm64"].map(|arch| kwok_like(arch, &[4], &["a", "b", "c"]));
    let mut world = World { catalog: Catalog::new(types.concat()), ..World::default() };
    world.cluster.pools.push(Pool::new("general"));
    world
}

fn checked_solution(world: &World) -> Solution {
    let solution = world.solve();
    check(world, &solution).expect("a valid plan");
    solution
}

/// The possible zones of the claim of a pod.
fn claim_zones<'s>(solution: &'s Solution, pod: &str) -> Vec<&'s str> {
    let has = |pods: &[ObjectKey]| pods.iter().any(|key| key.name == pod);
    let claim = solution.claims.iter().find(|claim| has(&claim.pods));
    let offerings = claim.map(|claim| &claim.offerings[..]).unwrap_or_default();
    let mut zones: Vec<&str> = offerings.iter().map(|offering| offering.0.zone.as_str()).collect();
    zones.sort_unstable();
    zones.dedup();
    zones
}

/// A pod with anti-affinity by zone to the daemon of spot nodes, and pods without constraints.
fn anti_affinity_world() -> World {
    let mut world = two_architectures();
    let mut template = pod("agent", 100, GIB / 8);
    template.labels = Labels::from([label("app", "agent")]);
    template.node_selector = Labels::from([label(CAPACITY_TYPE, "spot")]);
    world.daemons.push(DaemonSet { key: ObjectKey::new(DEFAULT, "agent"), template });
    world.pods = pods("free", 6, 3000, GIB);
    let mut web = pod("web", 500, GIB);
    web.anti_affinity = vec![term(app("agent"), ZONE)];
    world.pods.push(web);
    world
}

#[test]
fn zone_is_decided_if_a_pod_depends_on_it() {
    let mut world = anti_affinity_world();
    let solution = checked_solution(&world);
    assert_eq!(solution.unplaced, [], "{solution:#?}");
    assert_eq!(claim_zones(&solution, "free0").len(), 1);
    // No other pod depends on the zone, so it stays undecided.
    world.pods.truncate(6);
    assert_eq!(claim_zones(&checked_solution(&world), "free0"), ["a", "b", "c"]);
}

/// The pod can use only one zone, which may be the cheapest: the others use other zones.
#[test]
fn nodes_avoid_the_only_zone_of_another_pod() {
    for zone in ["a", "b", "c"] {
        let mut world = anti_affinity_world();
        world.pods[6].node_selector = Labels::from([label(ZONE, zone)]);
        let solution = checked_solution(&world);
        assert_eq!(solution.unplaced, [], "{zone}");
        assert_eq!(claim_zones(&solution, "web"), [zone]);
    }
}

/// A pod that can never be placed does not restrict the zones of other nodes.
#[test]
fn zone_stays_undecided_if_deciding_helps_no_pod() {
    let mut world = anti_affinity_world();
    world.pods[6].node_selector = Labels::from([label(CAPACITY_TYPE, "spot")]);
    let solution = checked_solution(&world);
    assert_eq!(claim_zones(&solution, "free0"), ["a", "b", "c"]);
    let [why] = &solution.unplaced[0].reasons[..] else {
        panic!("{solution:#?}");
    };
    assert_eq!(why.code, RejectionCode::Offering);
}

/// Pods are spread over the zones of nodes with their architecture, and their volumes are in two of
/// three zones. A node of other pods would make the third zone a domain if it were launched with
/// this architecture, and the spread pods could not be placed.
#[test]
fn spread_pods_are_placed_despite_an_undecided_architecture() {
    let mut world = two_architectures();
    world.pods = vec![pod("free", 3500, GIB)];
    let there = Requirements::from_iter([(ZONE, Requirement::is_in(["a", "b"]))]);
    for mut pod in pods("spread", 3, 1000, GIB) {
        pod.labels = Labels::from([label("app", "x")]);
        pod.node_selector = Labels::from([label(ARCH, "arm64")]);
        pod.spread = vec![spread(app("x"), ZONE, 1)];
        let mounts = VolumeRequirements {
            alternatives: vec![there.clone()],
            ..VolumeRequirements::default()
        };
        world.mounts.insert(pod.key.clone(), mounts);
        world.pods.push(pod);
    }
    let solution = checked_solution(&world);
    assert_eq!(solution.unplaced, [], "{solution:#?}");
}

/// Pods are spread over the zones of on-demand nodes, one of which is full and has no pod of the
/// app. Nodes of other pods of the app must not be on-demand, or they would raise the skew.
#[test]
fn capacity_type_is_decided_if_spread_pods_depend_on_it() {
    let mut world = two_architectures();
    let mut full = room("full", Resources::default());
    full.labels = Requirements::from_iter([
        (HOSTNAME, Requirement::is_in(["full"])),
        (ZONE, Requirement::is_in(["c"])),
        (CAPACITY_TYPE, Requirement::is_in(["on-demand"])),
    ])
    .into();
    world.rooms.push(full);
    for zone in ["a", "b"] {
        let mut pod = pod(&format!("free-{zone}"), 3500, GIB);
        pod.node_selector = Labels::from([label(ZONE, zone)]);
        world.pods.push(pod);
    }
    for mut pod in pods("spread", 2, 3500, GIB) {
        pod.node_selector = Labels::from([label(CAPACITY_TYPE, "on-demand")]);
        pod.spread = vec![spread(app("x"), ZONE, 1)];
        world.pods.push(pod);
    }
    for pod in &mut world.pods {
        pod.labels = Labels::from([label("app", "x")]);
    }
    let solution = checked_solution(&world);
    assert_eq!(solution.unplaced, [], "{solution:#?}");
    // No other pod depends on the capacity type, so it stays undecided.
    world.pods.truncate(2);
    let solution = checked_solution(&world);
    let mut offerings = solution.claims[0].offerings.iter();
    assert!(offerings.any(|offering| offering.0.capacity_type == CapacityType::OnDemand));
}

/// Pods are spread over the capacity types of nodes of one rack, and cannot use spot nodes: all may
/// be on demand as long as no spot node is in this rack.
#[test]
fn node_gets_a_label_that_excludes_it_from_a_spread() {
    let mut world = two_architectures();
    world.pool().requirements.add("rack", Requirement::is_in(["r1", "r2"]));
    let mut agent = pod("agent", 100, GIB / 8);
    agent.labels = Labels::from([label("app", "agent")]);
    agent.node_selector = Labels::from([label(CAPACITY_TYPE, "spot")]);
    world.daemons.push(DaemonSet { key: ObjectKey::new(DEFAULT, "agent"), template: agent });
    world.pods = pods("free", 2, 3500, GIB);
    for mut pod in pods("spread", 3, 3500, GIB) {
        pod.labels = Labels::from([label("app", "x")]);
        pod.node_selector = Labels::from([label("rack", "r1")]);
        pod.anti_affinity = vec![term(app("agent"), HOSTNAME)];
        pod.spread = vec![spread(app("x"), CAPACITY_TYPE, 1)];
        world.pods.push(pod);
    }
    let solution = checked_solution(&world);
    assert_eq!(solution.unplaced, [], "{solution:#?}");
}
