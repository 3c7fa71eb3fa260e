//! Pods spread over the domains of a topology key.

use outrigger::model::affinity::TopologySpread;
use outrigger::model::labels::{HOSTNAME, Labels, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::selector::Selector;
use outrigger::model::taint::Effect;
use outrigger::scheduling::RejectionCode;
use std::sync::Arc;

use super::super::fixture::{NOW, World, app, label, spread, taint};
use super::{ON_DEMAND, bare, base, bound, hostname, of_app, plan};

fn spread_by(name: &str, spread: TopologySpread) -> Pod {
    let mut pod = of_app(name, "a");
    pod.spread.push(spread);
    pod
}

/// The base world with pods of one app, spread by a topology key.
fn of(count: usize, key: &str, max_skew: u32, edit: impl Fn(&mut TopologySpread)) -> World {
    let mut world = base();
    for at in 0..count {
        let mut own = spread(app("a"), key, max_skew);
        edit(&mut own);
        world.pods.push(spread_by(&format!("p{at}"), own));
    }
    world
}

fn as_it_is(_: &mut TopologySpread) {}

const LEADS: &str = "would raise the skew to 2 in topology.kubernetes.io/zone a";

#[test]
fn no_place_leads_by_more_than_the_skew() {
    let world = of(2, ZONE, 1, as_it_is);
    plan(&world).on("n0", &["p0"]).on("n2", &["p1"]).accepted();
    plan(&world).on("n0", &["p0", "p1"]).refused(LEADS);
    // The other zone has a node, so it is an empty domain.
    plan(&world).on("n0", &["p0"]).on("n1", &["p1"]).refused(LEADS);
    let world = of(2, ZONE, 2, as_it_is);
    plan(&world).on("n0", &["p0", "p1"]).accepted();
    let world = of(3, ZONE, 1, as_it_is);
    let plan_of = |at| plan(&world).on("n0", &["p0"]).on(at, &["p1"]);
    plan_of("n2").on("n1", &["p2"]).accepted();
    plan_of("n1").on("n2", &["p2"]).refused(LEADS);
}

#[test]
fn places_are_those_of_nodes_that_are_there() {
    let mut world = of(2, ZONE, 1, as_it_is);
    world.rooms.pop();
    plan(&world).on("n0", &["p0", "p1"]).accepted();
    // A planned node also counts.
    world.pods.push(of_app("p2", "c"));
    plan(&world).on("n0", &["p0", "p1"]).small("b", "p2").refused(LEADS);
    plan(&world).on("n0", &["p0", "p1", "p2"]).accepted();
    let world = of(2, HOSTNAME, 1, as_it_is);
    plan(&world).on("n0", &["p0"]).on("n1", &["p1"]).accepted();
    plan(&world).on("n0", &["p0", "p1"]).refused("the skew to 2 in kubernetes.io/hostname n0");
}

#[test]
fn closed_rooms_are_places() {
    let mut world = of(2, ZONE, 1, as_it_is);
    world.rooms[2].open = false;
    plan(&world).on("n0", &["p0", "p1"]).refused(LEADS);
    world.residents = vec![bound("r", "a", "n2")];
    plan(&world).on("n0", &["p0", "p1"]).accepted();
}

#[test]
fn pods_that_are_there_count_unless_they_end() {
    let mut world = of(1, ZONE, 1, as_it_is);
    world.residents = vec![bound("r", "a", "n1")];
    plan(&world).on("n0", &["p0"]).refused(LEADS);
    plan(&world).on("n2", &["p0"]).accepted();
    world.residents[0].deleting = Some(NOW);
    plan(&world).on("n0", &["p0"]).accepted();
    world.residents = vec![bound("r", "b", "n1")];
    plan(&world).on("n0", &["p0"]).accepted();
    world.residents = vec![bound("r", "a", "n1")];
    world.residents[0].key.namespace = "other".to_owned();
    plan(&world).on("n0", &["p0"]).accepted();
    world.residents.clear();
    let host = world.rooms[1].host.clone();
    world.promised.insert(host, vec![of_app("w", "a")]);
    plan(&world).on("n0", &["p0"]).refused(LEADS);
}

#[test]
fn who_is_not_selected_does_not_count_itself() {
    let mut world = of(1, ZONE, 1, |own| own.selector = Some(app("b")));
    world.residents = vec![bound("r", "b", "n1")];
    plan(&world).on("n0", &["p0"]).accepted();
    world.residents.push(bound("r", "b", "n1"));
    plan(&world).on("n0", &["p0"]).refused(LEADS);
}

#[test]
fn selectors_that_say_nothing_count_nobody() {
    for selector in [None, Some(Selector::default())] {
        let mut world = of(3, ZONE, 1, |own| own.selector = selector.clone());
        world.residents = vec![bound("r", "a", "n0")];
        plan(&world).on("n0", &["p0", "p1", "p2"]).accepted();
    }
}

#[test]
fn with_few_places_the_emptiest_counts_as_empty() {
    for (least, good) in [(1, true), (2, true), (3, false)] {
        let mut world = of(1, ZONE, 1, |own| own.min_domains = least);
        world.residents = vec![bound("r0", "a", "n0"), bound("r1", "a", "n2")];
        let plan = plan(&world).on("n0", &["p0"]);
        if good {
            plan.accepted();
        } else {
            plan.refused(LEADS);
        }
    }
    let mut world = of(2, ZONE, 1, |own| own.min_domains = 2);
    world.rooms.pop();
    plan(&world).on("n0", &["p0", "p1"]).refused(LEADS);
}

#[test]
fn nodes_that_a_pod_cannot_have_are_no_places_unless_it_says_so() {
    let into_a = |pod: &mut Pod| pod.node_selector = Labels::from([label(ZONE, "a")]);
    for (honors, good) in [(true, true), (false, false)] {
        let mut world = of(2, ZONE, 1, |own| own.honors_affinity = honors);
        world.pods.iter_mut().for_each(into_a);
        let plan = plan(&world).on("n0", &["p0", "p1"]);
        if good {
            plan.accepted();
        } else {
            plan.refused(LEADS);
        }
    }
    for (honors, good) in [(true, true), (false, false)] {
        let mut world = of(2, ZONE, 1, |own| own.honors_taints = honors);
        world.rooms[2].taints = vec![taint("x", Effect::NoExecute)];
        let plan = plan(&world).on("n0", &["p0", "p1"]);
        if good {
            plan.accepted();
        } else {
            plan.refused(LEADS);
        }
    }
    // A `PreferNoSchedule` taint does not exclude a node.
    let mut world = of(2, ZONE, 1, |own| own.honors_taints = true);
    world.rooms[2].taints = vec![taint("x", Effect::PreferNoSchedule)];
    plan(&world).on("n0", &["p0", "p1"]).refused(LEADS);
}

#[test]
fn nodes_without_all_the_labels_are_no_places() {
    let mut world = of(2, ZONE, 1, as_it_is);
    world.rooms[2].labels = hostname("n2").into();
    plan(&world).on("n0", &["p0", "p1"]).accepted();
    plan(&world).on("n0", &["p0"]).on("n2", &["p1"]).refused("which n2 does not have");
    let mut world = of(2, ZONE, 1, as_it_is);
    let rack = outrigger::model::requirement::Requirement::is_in(["r1"]);
    Arc::make_mut(&mut world.rooms[0].labels).add("rack", rack);
    // The other node of zone a with its pod does not count, nor does zone b.
    for pod in &mut world.pods {
        pod.spread.push(spread(app("a"), "rack", 2));
    }
    world.residents = vec![bound("r", "a", "n1")];
    plan(&world).on("n0", &["p0", "p1"]).accepted();
    plan(&world).on("n0", &["p0"]).on("n1", &["p1"]).refused("which n1 does not have");
    // A soft constraint does not require its topology key.
    for pod in &mut world.pods {
        pod.spread[1].is_hard = false;
    }
    plan(&world).on("n0", &["p0", "p1"]).refused("would raise the skew");
}

#[test]
fn a_spread_that_is_a_wish_binds_nobody() {
    let world = of(3, ZONE, 1, |own| own.is_hard = false);
    plan(&world).on("n0", &["p0", "p1", "p2"]).accepted();
    let world = of(1, "nobody-has-it", 1, |own| own.is_hard = false);
    plan(&world).on("n0", &["p0"]).accepted();
    let world = of(1, "nobody-has-it", 1, as_it_is);
    plan(&world).on("n0", &["p0"]).refused("which n0 does not have");
    plan(&world).left("p0", RejectionCode::Requirements).accepted();
}

#[test]
fn claims_are_spread_whatever_they_become() {
    let mut world = of(2, ZONE, 1, as_it_is);
    world.rooms = bare().rooms;
    let small = "c-1x-amd64";
    let both = [(small, "a", ON_DEMAND), (small, "b", ON_DEMAND)];
    plan(&world).small("a", "p0").small("b", "p1").accepted();
    // In the same zone, they would be in the only domain.
    plan(&world).small("a", "p0").small("a", "p1").accepted();
    plan(&world).claim(&both, &["p0"]).claim(&both, &["p1"]).accepted();
    world.rooms = base().rooms;
    plan(&world).small("a", "p0").small("a", "p1").refused(LEADS);
    let words = "the skew to 2";
    plan(&world).claim(&both, &["p0"]).small("b", "p1").refused(words);
    plan(&world).claim(&both, &["p0"]).claim(&both, &["p1"]).refused(words);
    // A new node without counted pods is also a domain.
    let mut world = of(3, HOSTNAME, 1, as_it_is);
    world.rooms.truncate(1);
    let words = "the skew to 2 in kubernetes.io/hostname n0";
    plan(&world).on("n0", &["p0", "p1"]).small("a", "p2").refused(words);
}

#[test]
fn the_order_decides_who_leads() {
    let mut world = of(3, ZONE, 1, as_it_is);
    world.residents = vec![bound("r", "a", "n2")];
    let good = plan(&world).on("n0", &["p0"]).on("n2", &["p1"]);
    good.on("n1", &["p2"]).accepted();
    let early = plan(&world).on("n2", &["p1"]).on("n0", &["p0"]);
    early.on("n1", &["p2"]).refused("the skew to 2 in topology.kubernetes.io/zone b");
}

/// A pod must not be rejected if it fits after the rest of the plan is bound.
#[test]
fn who_waits_for_the_skew_is_let_in_at_last() {
    let world = World { rooms: base().rooms, ..of(2, ZONE, 1, as_it_is) };
    let half = plan(&world).on("n0", &["p0"]).left("p1", RejectionCode::Requirements);
    half.refused("p1 is rejected, but fits");
    let mut full = world.clone();
    full.rooms[2].free.cpu_milli = 0;
    full.cluster.pools.clear();
    let plan = plan(&full).on("n0", &["p0"]);
    let mut half = plan.left("p1", RejectionCode::Requirements);
    Arc::make_mut(&mut half.solution.unplaced[0].reasons)[0].pool = None;
    half.accepted();
}
