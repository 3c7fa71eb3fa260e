//! Every pod has exactly one result, with a reason.

use std::sync::Arc;

use outrigger::model::affinity::Gang;
use outrigger::model::labels::{HOSTNAME, Labels};
use outrigger::model::pod::Pod;
use outrigger::scheduling::RejectionCode;
use outrigger::scheduling::rejection::RejectionDetail;

use super::super::checker::check_counts;
use super::super::fixture::{GIB, World, label, pod, pods};
use super::{Plan, base_world, key, of_app, plan};

#[test]
fn every_pod_has_exactly_one_result() {
    let mut world = base_world();
    world.pods = pods("p", 2, 100, GIB);
    plan(&world).place_on("n0", &["p0", "p1"]).assert_accepted();
    plan(&world).place_on("n0", &["p0"]).assert_rejected("one result");
    let twice = plan(&world).place_on("n0", &["p0", "p1"]).place_on("n1", &["p0"]);
    twice.assert_rejected("one result");
    let unknown = plan(&world).place_on("n0", &["p0", "p1", "p2"]);
    unknown.assert_rejected("one result");
    let both = plan(&world).place_on("n0", &["p0", "p1"]);
    both.reject("p1", RejectionCode::Resources).assert_rejected("one result");
    let mut unsorted = plan(&world).place_on("n0", &["p0", "p1"]);
    unsorted.solution.placed[0].1.reverse();
    unsorted.assert_rejected("not sorted");
    world.pods = pods("p", 2, 9000, GIB);
    let left = |one: &str, other: &str| {
        let plan = plan(&world).reject(one, RejectionCode::Resources);
        plan.reject(other, RejectionCode::Resources)
    };
    left("p0", "p1").assert_accepted();
    left("p1", "p0").assert_rejected("not sorted");
}

#[test]
fn count_check_detects_missing_results_and_empty_claims() {
    let mut world = base_world();
    world.pods = pods("p", 2, 100, GIB);
    let mut plan = plan(&world).place_on("n0", &["p0"]).small_claim("a", "p1");
    let counts = |plan: &Plan<'_>, pods| {
        let mut solution = plan.solution.clone();
        solution.order.clone_from(&plan.order);
        check_counts(&solution, pods).is_ok()
    };
    assert!(counts(&plan, 2) && !counts(&plan, 1) && !counts(&plan, 3));
    plan.solution.claims[0].offerings.clear();
    assert!(!counts(&plan, 2));
    plan.solution.claims.clear();
    plan.order.retain(|key| key.name == "p0");
    let mut plan = plan.reject("p1", RejectionCode::Resources);
    assert!(counts(&plan, 2));
    plan.solution.unplaced[0].reasons = [].into();
    assert!(!counts(&plan, 2));
}

#[test]
fn bind_order_must_list_each_placed_pod_once() {
    let mut world = base_world();
    world.pods = pods("p", 2, 100, GIB);
    let good = || plan(&world).place_on("n0", &["p1"]).small_claim("a", "p0");
    good().assert_accepted();
    let mut short = good();
    short.order.pop();
    short.assert_rejected("the order");
    let mut twice = good();
    twice.order.push(key("p0"));
    twice.assert_rejected("the order");
    let mut other = good();
    other.order[0] = key("p0");
    other.assert_rejected("the order");
}

#[test]
fn existing_node_must_be_known_and_listed_once() {
    let mut world = base_world();
    world.pods = pods("p", 2, 100, GIB);
    plan(&world).place_on("n9", &["p0", "p1"]).assert_rejected("no node n9");
    let mut empty = plan(&world).place_on("n0", &["p0", "p1"]).place_on("n1", &[]);
    empty.solution.placed.swap(0, 1);
    empty.assert_rejected("gets no pods");
    let mut twice = plan(&world).place_on("n0", &["p0"]).place_on("n1", &["p1"]);
    twice.solution.placed[1].0 = twice.solution.placed[0].0.clone();
    twice.assert_rejected("twice");
}

#[test]
fn unscheduled_pod_needs_a_reason_from_a_known_pool() {
    let mut world = base_world();
    world.pods = vec![pod("p", 9000, GIB)];
    let left = || plan(&world).reject("p", RejectionCode::Resources);
    left().assert_accepted();
    let mut without_reason = left();
    without_reason.solution.unplaced[0].reasons = [].into();
    without_reason.assert_rejected("without a reason");
    let mut without_reason = left();
    Arc::make_mut(&mut without_reason.solution.unplaced[0].reasons)[0].miss =
        RejectionDetail::from_message("");
    without_reason.assert_rejected("without a reason");
    let mut elsewhere = left();
    Arc::make_mut(&mut elsewhere.solution.unplaced[0].reasons)[0].pool = Some("other".into());
    elsewhere.assert_rejected("pools");
}

#[test]
fn checker_rejects_an_unscheduled_pod_that_would_fit() {
    let mut world = base_world();
    world.pods = vec![pod("p", 3000, GIB)];
    let left = |code| plan(&world).reject("p", code);
    left(RejectionCode::Resources).assert_rejected("p is rejected, but fits n0");
    world.rooms.clear();
    let left = |code| plan(&world).reject("p", code);
    left(RejectionCode::Resources).assert_accepted();
    world.pods = vec![pod("p", 1500, GIB)];
    let left = |code| plan(&world).reject("p", code);
    left(RejectionCode::Resources).assert_rejected("but fits a new");
    left(RejectionCode::Limit).assert_rejected("but fits a new");
    world.pool().limits.nodes = Some(0);
    plan(&world).reject("p", RejectionCode::Limit).assert_accepted();
    world.cluster.pools.clear();
    let mut none = plan(&world).reject("p", RejectionCode::NoPool);
    Arc::make_mut(&mut none.solution.unplaced[0].reasons)[0].pool = None;
    none.assert_accepted();
}

#[test]
fn invalid_pod_must_be_unscheduled() {
    let faults: [fn(&mut Pod); 2] =
        [|pod| pod.defects.push("a fault".to_owned()), |pod| pod.has_resource_claims = true];
    for fault in faults {
        let mut world = base_world();
        world.pods = vec![pod("p", 100, GIB)];
        fault(&mut world.pods[0]);
        plan(&world).place_on("n0", &["p"]).assert_rejected("but invalid");
        plan(&world).reject("p", RejectionCode::InvalidPod).assert_accepted();
    }
    let mut world = base_world();
    world.pods = vec![pod("p", 100, GIB)];
    world.pods[0].node_selector = Labels::from([label(HOSTNAME, "n0")]);
    plan(&world).reject("p", RejectionCode::RestrictedLabel).assert_accepted();
}

#[test]
fn gang_is_placed_completely_or_not_at_all() {
    for (least, placed, good) in [
        (None, 3, true),
        (None, 2, false),
        (None, 0, true),
        (Some(2), 2, true),
        (Some(2), 1, false),
        (Some(2), 0, true),
    ] {
        let mut world = base_world();
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
            count => plan(&world).place_on("n0", &names[..count]),
        };
        for name in &names[placed..] {
            plan = plan.reject(name, RejectionCode::Resources);
        }
        if good {
            plan.assert_accepted();
        } else {
            plan.assert_rejected("of the gang g");
        }
    }
}

#[test]
fn bound_and_promised_pods_count_for_their_gang() {
    let mut world = base_world();
    let gang = |name: &str| {
        let mut pod = of_app(name, "a");
        pod.gang = Some(Gang { name: "g".to_owned(), least: Some(2) });
        pod
    };
    world.pods = vec![gang("p0"), gang("p1")];
    fn one(world: &World) -> Plan<'_> {
        let plan = plan(world).place_on("n0", &["p0"]);
        plan.reject("p1", RejectionCode::Resources)
    }
    one(&world).assert_rejected("of the gang g");
    let host = world.rooms[1].host.clone();
    world.promised.insert(host, vec![gang("w")]);
    one(&world).assert_accepted();
    let mut bound = world.promised.pop_first().expect("promised pods").1;
    bound[0].node = Some("n1".into());
    world.residents.append(&mut bound);
    one(&world).assert_accepted();
    for pod in &mut world.pods {
        pod.gang.as_mut().expect("a gang").least = Some(3);
    }
    one(&world).assert_rejected("of the gang g");
    // Pods that were promised before are not part of this plan.
    let none = plan(&world).reject("p0", RejectionCode::Resources);
    none.reject("p1", RejectionCode::Resources).assert_accepted();
}
