//! Pods spread over the domains of a topology key.

use outrigger::model::affinity::TopologySpread;
use outrigger::model::labels::{HOSTNAME, Labels, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::selector::Selector;
use outrigger::model::taint::Effect;
use outrigger::scheduling::RejectionCode;
use std::sync::Arc;

use super::super::fixture::{NOW, World, app, label, spread, taint};
use super::{ON_DEMAND, base_world, bound, hostname, of_app, plan, world_without_nodes};

fn spread_by(name: &str, spread: TopologySpread) -> Pod {
    let mut pod = of_app(name, "a");
    pod.spread.push(spread);
    pod
}

/// The base world with pods of one app, spread by a topology key.
fn of(count: usize, key: &str, max_skew: u32, edit: impl Fn(&mut TopologySpread)) -> World {
    let mut world = base_world();
    for at in 0..count {
        let mut constraint = spread(app("a"), key, max_skew);
        edit(&mut constraint);
        world.pods.push(spread_by(&format!("p{at}"), constraint));
    }
    world
}

fn unchanged(_: &mut TopologySpread) {}

const LEADS: &str = "would raise the skew to 2 in topology.kubernetes.io/zone a";

#[test]
fn domain_may_not_exceed_the_max_skew() {
    let world = of(2, ZONE, 1, unchanged);
    plan(&world).place_on("n0", &["p0"]).place_on("n2", &["p1"]).assert_accepted();
    plan(&world).place_on("n0", &["p0", "p1"]).assert_rejected(LEADS);
    // The other zone has a node, so it is an empty domain.
    plan(&world).place_on("n0", &["p0"]).place_on("n1", &["p1"]).assert_rejected(LEADS);
    let world = of(2, ZONE, 2, unchanged);
    plan(&world).place_on("n0", &["p0", "p1"]).assert_accepted();
    let world = of(3, ZONE, 1, unchanged);
    let plan_of = |at| plan(&world).place_on("n0", &["p0"]).place_on(at, &["p1"]);
    plan_of("n2").place_on("n1", &["p2"]).assert_accepted();
    plan_of("n1").place_on("n2", &["p2"]).assert_rejected(LEADS);
}

#[test]
fn only_domains_of_existing_and_planned_nodes_count() {
    let mut world = of(2, ZONE, 1, unchanged);
    world.rooms.pop();
    plan(&world).place_on("n0", &["p0", "p1"]).assert_accepted();
    // A planned node also counts.
    world.pods.push(of_app("p2", "c"));
    plan(&world).place_on("n0", &["p0", "p1"]).small_claim("b", "p2").assert_rejected(LEADS);
    plan(&world).place_on("n0", &["p0", "p1", "p2"]).assert_accepted();
    let world = of(2, HOSTNAME, 1, unchanged);
    plan(&world).place_on("n0", &["p0"]).place_on("n1", &["p1"]).assert_accepted();
    plan(&world)
        .place_on("n0", &["p0", "p1"])
        .assert_rejected("the skew to 2 in kubernetes.io/hostname n0");
}

#[test]
fn closed_nodes_count_as_domains() {
    let mut world = of(2, ZONE, 1, unchanged);
    world.rooms[2].open = false;
    plan(&world).place_on("n0", &["p0", "p1"]).assert_rejected(LEADS);
    world.residents = vec![bound("r", "a", "n2")];
    plan(&world).place_on("n0", &["p0", "p1"]).assert_accepted();
}

#[test]
fn bound_pods_count_unless_they_are_terminating() {
    let mut world = of(1, ZONE, 1, unchanged);
    world.residents = vec![bound("r", "a", "n1")];
    plan(&world).place_on("n0", &["p0"]).assert_rejected(LEADS);
    plan(&world).place_on("n2", &["p0"]).assert_accepted();
    world.residents[0].deleting = Some(NOW);
    plan(&world).place_on("n0", &["p0"]).assert_accepted();
    world.residents = vec![bound("r", "b", "n1")];
    plan(&world).place_on("n0", &["p0"]).assert_accepted();
    world.residents = vec![bound("r", "a", "n1")];
    world.residents[0].key.namespace = "other".to_owned();
    plan(&world).place_on("n0", &["p0"]).assert_accepted();
    world.residents.clear();
    let host = world.rooms[1].host.clone();
    world.promised.insert(host, vec![of_app("w", "a")]);
    plan(&world).place_on("n0", &["p0"]).assert_rejected(LEADS);
}

#[test]
fn pod_outside_its_own_selector_does_not_count_itself() {
    let mut world = of(1, ZONE, 1, |constraint| constraint.selector = Some(app("b")));
    world.residents = vec![bound("r", "b", "n1")];
    plan(&world).place_on("n0", &["p0"]).assert_accepted();
    world.residents.push(bound("r", "b", "n1"));
    plan(&world).place_on("n0", &["p0"]).assert_rejected(LEADS);
}

#[test]
fn missing_or_empty_selector_counts_no_pods() {
    for selector in [None, Some(Selector::default())] {
        let mut world = of(3, ZONE, 1, |constraint| constraint.selector = selector.clone());
        world.residents = vec![bound("r", "a", "n0")];
        plan(&world).place_on("n0", &["p0", "p1", "p2"]).assert_accepted();
    }
}

#[test]
fn too_few_domains_make_the_minimum_zero() {
    for (least, good) in [(1, true), (2, true), (3, false)] {
        let mut world = of(1, ZONE, 1, |constraint| constraint.min_domains = least);
        world.residents = vec![bound("r0", "a", "n0"), bound("r1", "a", "n2")];
        let plan = plan(&world).place_on("n0", &["p0"]);
        if good {
            plan.assert_accepted();
        } else {
            plan.assert_rejected(LEADS);
        }
    }
    let mut world = of(2, ZONE, 1, |constraint| constraint.min_domains = 2);
    world.rooms.pop();
    plan(&world).place_on("n0", &["p0", "p1"]).assert_rejected(LEADS);
}

#[test]
fn node_inclusion_policies_exclude_unusable_nodes() {
    let into_a = |pod: &mut Pod| pod.node_selector = Labels::from([label(ZONE, "a")]);
    for (honors, good) in [(true, true), (false, false)] {
        let mut world = of(2, ZONE, 1, |constraint| constraint.honors_affinity = honors);
        world.pods.iter_mut().for_each(into_a);
        let plan = plan(&world).place_on("n0", &["p0", "p1"]);
        if good {
            plan.assert_accepted();
        } else {
            plan.assert_rejected(LEADS);
        }
    }
    for (honors, good) in [(true, true), (false, false)] {
        let mut world = of(2, ZONE, 1, |constraint| constraint.honors_taints = honors);
        world.rooms[2].taints = vec![taint("x", Effect::NoExecute)];
        let plan = plan(&world).place_on("n0", &["p0", "p1"]);
        if good {
            plan.assert_accepted();
        } else {
            plan.assert_rejected(LEADS);
        }
    }
    // A `PreferNoSchedule` taint does not exclude a node.
    let mut world = of(2, ZONE, 1, |constraint| constraint.honors_taints = true);
    world.rooms[2].taints = vec![taint("x", Effect::PreferNoSchedule)];
    plan(&world).place_on("n0", &["p0", "p1"]).assert_rejected(LEADS);
}

#[test]
fn nodes_without_all_topology_keys_are_excluded() {
    let mut world = of(2, ZONE, 1, unchanged);
    world.rooms[2].labels = hostname("n2").into();
    plan(&world).place_on("n0", &["p0", "p1"]).assert_accepted();
    plan(&world)
        .place_on("n0", &["p0"])
        .place_on("n2", &["p1"])
        .assert_rejected("which n2 does not have");
    let mut world = of(2, ZONE, 1, unchanged);
    let rack = outrigger::model::requirement::Requirement::is_in(["r1"]);
    Arc::make_mut(&mut world.rooms[0].labels).add("rack", rack);
    // The other node of zone a with its pod does not count, nor does zone b.
    for pod in &mut world.pods {
        pod.spread.push(spread(app("a"), "rack", 2));
    }
    world.residents = vec![bound("r", "a", "n1")];
    plan(&world).place_on("n0", &["p0", "p1"]).assert_accepted();
    plan(&world)
        .place_on("n0", &["p0"])
        .place_on("n1", &["p1"])
        .assert_rejected("which n1 does not have");
    // A soft constraint does not require its topology key.
    for pod in &mut world.pods {
        pod.spread[1].is_hard = false;
    }
    plan(&world).place_on("n0", &["p0", "p1"]).assert_rejected("would raise the skew");
}

#[test]
fn soft_spread_restricts_no_pod() {
    let world = of(3, ZONE, 1, |constraint| constraint.is_hard = false);
    plan(&world).place_on("n0", &["p0", "p1", "p2"]).assert_accepted();
    let world = of(1, "nobody-has-it", 1, |constraint| constraint.is_hard = false);
    plan(&world).place_on("n0", &["p0"]).assert_accepted();
    let world = of(1, "nobody-has-it", 1, unchanged);
    plan(&world).place_on("n0", &["p0"]).assert_rejected("which n0 does not have");
    plan(&world).reject("p0", RejectionCode::Requirements).assert_accepted();
}

#[test]
fn spread_must_hold_for_all_possible_offerings() {
    let mut world = of(2, ZONE, 1, unchanged);
    world.rooms = world_without_nodes().rooms;
    let small = "c-1x-amd64";
    let both = [(small, "a", ON_DEMAND), (small, "b", ON_DEMAND)];
    plan(&world).small_claim("a", "p0").small_claim("b", "p1").assert_accepted();
    // In the same zone, they would be in the only domain.
    plan(&world).small_claim("a", "p0").small_claim("a", "p1").assert_accepted();
    plan(&world).claim(&both, &["p0"]).claim(&both, &["p1"]).assert_accepted();
    world.rooms = base_world().rooms;
    plan(&world).small_claim("a", "p0").small_claim("a", "p1").assert_rejected(LEADS);
    let words = "the skew to 2";
    plan(&world).claim(&both, &["p0"]).small_claim("b", "p1").assert_rejected(words);
    plan(&world).claim(&both, &["p0"]).claim(&both, &["p1"]).assert_rejected(words);
    // A new node without counted pods is also a domain.
    let mut world = of(3, HOSTNAME, 1, unchanged);
    world.rooms.truncate(1);
    let words = "the skew to 2 in kubernetes.io/hostname n0";
    plan(&world).place_on("n0", &["p0", "p1"]).small_claim("a", "p2").assert_rejected(words);
}

#[test]
fn bind_order_decides_whether_the_skew_holds() {
    let mut world = of(3, ZONE, 1, unchanged);
    world.residents = vec![bound("r", "a", "n2")];
    let good = plan(&world).place_on("n0", &["p0"]).place_on("n2", &["p1"]);
    good.place_on("n1", &["p2"]).assert_accepted();
    let early = plan(&world).place_on("n2", &["p1"]).place_on("n0", &["p0"]);
    early.place_on("n1", &["p2"]).assert_rejected("the skew to 2 in topology.kubernetes.io/zone b");
}

/// A pod must not be rejected if it fits after the rest of the plan is bound.
#[test]
fn pod_that_fits_the_final_skew_must_be_placed() {
    let world = World { rooms: base_world().rooms, ..of(2, ZONE, 1, unchanged) };
    let half = plan(&world).place_on("n0", &["p0"]).reject("p1", RejectionCode::Requirements);
    half.assert_rejected("p1 is rejected, but fits");
    let mut full = world.clone();
    full.rooms[2].free.cpu_milli = 0;
    full.cluster.pools.clear();
    let plan = plan(&full).place_on("n0", &["p0"]);
    let mut half = plan.reject("p1", RejectionCode::Requirements);
    Arc::make_mut(&mut half.solution.unplaced[0].reasons)[0].pool = None;
    half.assert_accepted();
}
