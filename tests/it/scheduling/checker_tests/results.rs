//! Every pod has exactly one result, with a reason.

use std::sync::Arc;

use outrigger::model::affinity::Gang;
use outrigger::model::labels::{HOSTNAME, Labels};
use outrigger::model::pod::Pod;
use outrigger::scheduling::RejectionCode;
use outrigger::scheduling::rejection::RejectionDetail;

use super::super::checker::check_counts;
use super::super::fixture::{GIB, World, label, pod, pods};
use super::{Plan, base, key, of_app, plan};

#[test]
fn every_pod_has_one_answer() {
    let mut world = base();
    world.pods = pods("p", 2, 100, GIB);
    plan(&world).on("n0", &["p0", "p1"]).accepted();
    plan(&world).on("n0", &["p0"]).refused("one result");
    let twice = plan(&world).on("n0", &["p0", "p1"]).on("n1", &["p0"]);
    twice.refused("one result");
    let stranger = plan(&world).on("n0", &["p0", "p1", "p2"]);
    stranger.refused("one result");
    let both = plan(&world).on("n0", &["p0", "p1"]);
    both.left("p1", RejectionCode::Resources).refused("one result");
    let mut unsorted = plan(&world).on("n0", &["p0", "p1"]);
    unsorted.solution.placed[0].1.reverse();
    unsorted.refused("not sorted");
    world.pods = pods("p", 2, 9000, GIB);
    let left = |one: &str, other: &str| {
        let plan = plan(&world).left(one, RejectionCode::Resources);
        plan.left(other, RejectionCode::Resources)
    };
    left("p0", "p1").accepted();
    left("p1", "p0").refused("not sorted");
}

#[test]
fn answers_are_counted() {
    let mut world = base();
    world.pods = pods("p", 2, 100, GIB);
    let mut plan = plan(&world).on("n0", &["p0"]).small("a", "p1");
    let counts = |plan: &Plan<'_>, pods| {
        let mut solution = plan.solution.clone();
        solution.order.clone_from(&plan.order);
        check_counts(&solution, pods).is_ok()
    };
    assert!(counts(&plan, 2) && !counts(&plan, 1) && !counts(&plan, 3));
    plan.solution.claims[0].offerings.clear();
    assert!(!counts(&plan, 2));
    plan.solution.claims.clear();
    plan.order.retain(|own| own.name == "p0");
    let mut plan = plan.left("p1", RejectionCode::Resources);
    assert!(counts(&plan, 2));
    plan.solution.unplaced[0].reasons = [].into();
    assert!(!counts(&plan, 2));
}

#[test]
fn the_order_is_that_of_the_placed_pods() {
    let mut world = base();
    world.pods = pods("p", 2, 100, GIB);
    let good = || plan(&world).on("n0", &["p1"]).small("a", "p0");
    good().accepted();
    let mut short = good();
    short.order.pop();
    short.refused("the order");
    let mut twice = good();
    twice.order.push(key("p0"));
    twice.refused("the order");
    let mut other = good();
    other.order[0] = key("p0");
    other.refused("the order");
}

#[test]
fn hosts_are_there_and_get_pods_once() {
    let mut world = base();
    world.pods = pods("p", 2, 100, GIB);
    plan(&world).on("n9", &["p0", "p1"]).refused("no node n9");
    let mut empty = plan(&world).on("n0", &["p0", "p1"]).on("n1", &[]);
    empty.solution.placed.swap(0, 1);
    empty.refused("gets no pods");
    let mut twice = plan(&world).on("n0", &["p0"]).on("n1", &["p1"]);
    twice.solution.placed[1].0 = twice.solution.placed[0].0.clone();
    twice.refused("twice");
}

#[test]
fn who_is_left_out_has_a_reason() {
    let mut world = base();
    world.pods = vec![pod("p", 9000, GIB)];
    let left = || plan(&world).left("p", RejectionCode::Resources);
    left().accepted();
    let mut silent = left();
    silent.solution.unplaced[0].reasons = [].into();
    silent.refused("without a reason");
    let mut silent = left();
    Arc::make_mut(&mut silent.solution.unplaced[0].reasons)[0].miss =
        RejectionDetail::from_message("");
    silent.refused("without a reason");
    let mut elsewhere = left();
    Arc::make_mut(&mut elsewhere.solution.unplaced[0].reasons)[0].pool = Some("other".into());
    elsewhere.refused("pools");
}

#[test]
fn nobody_is_left_out_who_would_fit() {
    let mut world = base();
    world.pods = vec![pod("p", 3000, GIB)];
    let left = |code| plan(&world).left("p", code);
    left(RejectionCode::Resources).refused("p is rejected, but fits n0");
    world.rooms.clear();
    let left = |code| plan(&world).left("p", code);
    left(RejectionCode::Resources).accepted();
    world.pods = vec![pod("p", 1500, GIB)];
    let left = |code| plan(&world).left("p", code);
    left(RejectionCode::Resources).refused("but fits a new");
    left(RejectionCode::Limit).refused("but fits a new");
    world.pool().limits.nodes = Some(0);
    plan(&world).left("p", RejectionCode::Limit).accepted();
    world.cluster.pools.clear();
    let mut none = plan(&world).left("p", RejectionCode::NoPool);
    Arc::make_mut(&mut none.solution.unplaced[0].reasons)[0].pool = None;
    none.accepted();
}

#[test]
fn who_cannot_be_understood_is_left_out() {
    let faults: [fn(&mut Pod); 2] =
        [|pod| pod.defects.push("a fault".to_owned()), |pod| pod.has_resource_claims = true];
    for fault in faults {
        let mut world = base();
        world.pods = vec![pod("p", 100, GIB)];
        fault(&mut world.pods[0]);
        plan(&world).on("n0", &["p"]).refused("but invalid");
        plan(&world).left("p", RejectionCode::InvalidPod).accepted();
    }
    let mut world = base();
    world.pods = vec![pod("p", 100, GIB)];
    world.pods[0].node_selector = Labels::from([label(HOSTNAME, "n0")]);
    plan(&world).left("p", RejectionCode::RestrictedLabel).accepted();
}

#[test]
fn a_gang_is_placed_together_or_not_at_all() {
    for (least, placed, good) in [
        (None, 3, true),
        (None, 2, false),
        (None, 0, true),
        (Some(2), 2, true),
        (Some(2), 1, false),
        (Some(2), 0, true),
    ] {
        let mut world = base();
        let name = "g".to_owned();
        for at in 0..3 {
            let mut pod = of_app(&format!("p{at}"), "a");
            let name = name.clone();
            pod.gang = Some(Gang { name, least });
            world.pods.push(pod);
        }
        let names = ["p0", "p1", "p2"];
        let mut plan = match placed {
            0 => plan(&world),
            count => plan(&world).on("n0", &names[..count]),
        };
        for name in &names[placed..] {
            plan = plan.left(name, RejectionCode::Resources);
        }
        if good {
            plan.accepted();
        } else {
            plan.refused("of the gang g");
        }
    }
}

#[test]
fn bound_and_promised_pods_of_a_gang_count() {
    let mut world = base();
    let gang = |name: &str| {
        let mut pod = of_app(name, "a");
        pod.gang = Some(Gang { name: "g".to_owned(), least: Some(2) });
        pod
    };
    world.pods = vec![gang("p0"), gang("p1")];
    fn one(world: &World) -> Plan<'_> {
        let plan = plan(world).on("n0", &["p0"]);
        plan.left("p1", RejectionCode::Resources)
    }
    one(&world).refused("of the gang g");
    let host = world.rooms[1].host.clone();
    world.promised.insert(host, vec![gang("w")]);
    one(&world).accepted();
    let mut bound = world.promised.pop_first().expect("promised pods").1;
    bound[0].node = Some("n1".into());
    world.residents.append(&mut bound);
    one(&world).accepted();
    for pod in &mut world.pods {
        pod.gang.as_mut().expect("a gang").least = Some(3);
    }
    one(&world).refused("of the gang g");
    // Pods that were promised before are not part of this plan.
    let none = plan(&world).left("p0", RejectionCode::Resources);
    none.left("p1", RejectionCode::Resources).accepted();
}
