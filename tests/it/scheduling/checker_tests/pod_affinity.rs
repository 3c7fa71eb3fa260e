//! Required pod affinity and anti-affinity.

use std::collections::BTreeSet;

use outrigger::model::affinity::PodTerm;
use outrigger::model::id::{ClaimId, ObjectKey};
use outrigger::model::labels::{CAPACITY_TYPE, HOSTNAME, Labels, ZONE};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::requirement::Requirement;
use outrigger::model::selector::Selector;
use outrigger::state::snapshot::NodeRef;

use super::super::fixture::{DEFAULT, NOW, World, app, label, term};
use super::{
    ON_DEMAND, away, bare, base, bound, capacity, hostname, near, of_app, on_spot, plan, wanting,
};

/// The base world with these pods.
fn of(pods: Vec<Pod>) -> World {
    World { pods, ..base() }
}

#[test]
fn company_is_where_the_others_are() {
    let near_a = |name: &str, key: &str| near(of_app(name, "b"), term(app("a"), key));
    let mut world = of(vec![near_a("p", HOSTNAME)]);
    plan(&world).on("n0", &["p"]).refused("p is not satisfied on n0");
    world.residents = vec![bound("r", "a", "n0")];
    plan(&world).on("n0", &["p"]).accepted();
    plan(&world).on("n1", &["p"]).refused("p is not satisfied on n1");
    world.pods = vec![near_a("p", ZONE)];
    plan(&world).on("n1", &["p"]).accepted();
    plan(&world).on("n2", &["p"]).refused("p is not satisfied on n2");
    // A terminating pod still satisfies affinity.
    world.residents[0].deleting = Some(NOW);
    plan(&world).on("n1", &["p"]).accepted();
    world.residents[0].key.namespace = "other".to_owned();
    plan(&world).on("n1", &["p"]).refused("p is not satisfied on n1");
    world.residents.clear();
    let host = world.rooms[0].host.clone();
    world.promised.insert(host, vec![of_app("w", "a")]);
    plan(&world).on("n1", &["p"]).accepted();
    plan(&world).on("n2", &["p"]).refused("p is not satisfied on n2");
    world.pods = vec![near_a("p", CAPACITY_TYPE)];
    plan(&world).on("n0", &["p"]).refused("which n0 does not have");
}

#[test]
fn daemons_of_nodes_to_come_are_there_before_any_pod() {
    let mut world = bare();
    world.daemons =
        vec![DaemonSet { key: ObjectKey::new(DEFAULT, "agent"), template: of_app("agent", "a") }];
    world.daemons[0].template.node_affinity = vec![capacity("spot")];
    let beside = |key: &str| near(of_app("p", "b"), term(app("a"), key));
    for key in [HOSTNAME, ZONE] {
        world.pods = vec![beside(key)];
        plan(&world).claim(&on_spot("a"), &["p"]).accepted();
        plan(&world).small("a", "p").refused("is not satisfied");
        world.pods = vec![away(of_app("p", "b"), term(app("a"), key))];
        plan(&world).claim(&on_spot("a"), &["p"]).refused("anti-affinity to");
        plan(&world).small("a", "p").accepted();
    }
    world.pods = vec![of_app("p", "b")];
    world.daemons[0].template.anti_affinity = vec![term(app("b"), HOSTNAME)];
    plan(&world).claim(&on_spot("a"), &["p"]).refused("anti-affinity to default/p");
    plan(&world).small("a", "p").accepted();
    // Daemons are expected on in-flight nodes.
    let mut world = of(vec![beside(HOSTNAME)]);
    world.daemons =
        vec![DaemonSet { key: ObjectKey::new(DEFAULT, "agent"), template: of_app("agent", "a") }];
    plan(&world).on("n0", &["p"]).refused("is not satisfied");
    world.rooms[0].daemons = vec![(world.daemons[0].key.clone(), true)];
    plan(&world).on("n0", &["p"]).accepted();
}

#[test]
fn company_comes_first() {
    let follower = near(of_app("p1", "b"), term(app("a"), HOSTNAME));
    let world = of(vec![of_app("p0", "a"), follower]);
    plan(&world).on("n0", &["p0", "p1"]).accepted();
    plan(&world).on("n0", &["p1", "p0"]).refused("p1 is not satisfied");
    plan(&world).on("n0", &["p0"]).on("n1", &["p1"]).refused("p1 is not satisfied");
}

#[test]
fn the_first_of_a_group_goes_anywhere() {
    let own = |name: &str, key: &str| near(of_app(name, "a"), term(app("a"), key));
    let mut world = of(vec![own("p0", ZONE), own("p1", ZONE)]);
    plan(&world).on("n0", &["p0"]).on("n1", &["p1"]).accepted();
    plan(&world).on("n0", &["p0"]).on("n2", &["p1"]).refused("p1 is not satisfied");
    // Another pod of the group already exists.
    world.residents = vec![bound("r", "a", "n2")];
    plan(&world).on("n0", &["p0", "p1"]).refused("p0 is not satisfied");
    plan(&world).on("n2", &["p0", "p1"]).accepted();
    // A pod on a node without the topology key does not prevent a first pod.
    world.rooms[2].labels = hostname("n2").into();
    plan(&world).on("n0", &["p0", "p1"]).accepted();
    plan(&world).on("n2", &["p0", "p1"]).refused("which n2 does not have");
}

#[test]
fn company_is_what_all_the_terms_speak_of() {
    let mut asks = near(of_app("p", "c"), term(app("a"), ZONE));
    let tier = Selector::from_labels(&Labels::from([label("tier", "1")]));
    asks.affinity.push(term(tier, ZONE));
    let mut world = of(vec![asks]);
    world.residents = vec![bound("r0", "a", "n0"), bound("r1", "b", "n1")];
    world.residents[1].labels.extend([label("tier", "1")]);
    // One pod for each of the terms is not sufficient.
    plan(&world).on("n0", &["p"]).refused("is not satisfied");
    world.residents[0].labels.extend([label("tier", "1")]);
    plan(&world).on("n0", &["p"]).accepted();
}

/// The namespaces of a term, and whether it matches a pod in a namespace with the label `env=prod`.
#[test]
fn namespaces_are_named_or_selected() {
    let prod = Selector::from_labels(&Labels::from([label("env", "prod")]));
    let named = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    };
    for (namespaces, selector, speaks) in [
        (named(&["default"]), None, false),
        (named(&["other"]), None, true),
        (named(&["default", "other"]), None, true),
        (named(&[]), Some(prod.clone()), true),
        (named(&["default"]), Some(prod), true),
        (named(&[]), Some(Selector::default()), true),
        (named(&[]), Some(app("prod")), false),
    ] {
        let asks = PodTerm {
            selector: Some(app("a")),
            namespaces,
            namespace_selector: selector,
            topology_key: ZONE.to_owned(),
        };
        let mut world = of(vec![near(of_app("p", "b"), asks)]);
        world.residents = vec![bound("r", "a", "n0")];
        world.residents[0].key.namespace = "other".to_owned();
        let labels = Labels::from([label("env", "prod")]);
        world.namespaces.insert("other".to_owned(), labels);
        let plan = plan(&world).on("n0", &["p"]);
        if speaks {
            plan.accepted();
        } else {
            plan.refused("is not satisfied");
        }
    }
}

#[test]
fn selectors_select_what_they_say() {
    let contradiction = Selector::new([
        ("app".to_owned(), Requirement::is_in(["a"])),
        ("app".to_owned(), Requirement::is_in(["b"])),
    ]);
    let absent = Selector::new([("tier".to_owned(), Requirement::does_not_exist())]);
    for (selector, speaks) in [
        (Some(app("a")), true),
        (Some(app("b")), false),
        (Some(Selector::default()), true),
        (Some(absent), true),
        (Some(contradiction), false),
        (None, false),
    ] {
        let asks = PodTerm { selector, ..term(app("a"), HOSTNAME) };
        let mut world = of(vec![away(of_app("p", "c"), asks)]);
        world.residents = vec![bound("r", "a", "n0")];
        let plan = plan(&world).on("n0", &["p"]);
        if speaks {
            plan.refused("p has anti-affinity to a bound pod");
        } else {
            plan.accepted();
        }
    }
}

#[test]
fn those_to_be_away_from_are_elsewhere() {
    let mut world = of(vec![away(of_app("p", "b"), term(app("a"), ZONE))]);
    plan(&world).on("n0", &["p"]).accepted();
    world.residents = vec![bound("r", "a", "n0")];
    plan(&world).on("n1", &["p"]).refused("p has anti-affinity to a bound pod");
    plan(&world).on("n2", &["p"]).accepted();
    world.residents[0].deleting = Some(NOW);
    plan(&world).on("n1", &["p"]).refused("p has anti-affinity to a bound pod");
    world.residents[0].key.namespace = "other".to_owned();
    plan(&world).on("n1", &["p"]).accepted();
    world.residents.clear();
    let host = world.rooms[0].host.clone();
    world.promised.insert(host, vec![of_app("w", "a")]);
    plan(&world).on("n1", &["p"]).refused("p has anti-affinity to a bound pod");
    // Nodes without the topology key are in no domain, not in a common one.
    world.rooms[1].labels = hostname("n1").into();
    plan(&world).on("n1", &["p"]).accepted();
    world.rooms[0].labels = hostname("n0").into();
    plan(&world).on("n1", &["p"]).accepted();
}

/// A claim without a node has no host name yet, but it will have a unique one.
#[test]
fn hosts_to_come_are_places_of_their_own() {
    let own = |name: &str| away(of_app(name, "a"), term(app("a"), HOSTNAME));
    let mut world = of(vec![own("p0"), own("p1")]);
    for (at, room) in world.rooms.iter_mut().enumerate() {
        room.host = NodeRef::Claim(ClaimId::from(format!("c{at}")));
        room.labels = wanting(ZONE, Requirement::is_in(["a"])).into();
    }
    let hosts = world.rooms.iter().map(|room| room.host.clone());
    let hosts: Vec<NodeRef> = hosts.collect();
    let mut apart = plan(&world).on("0", &["p0"]).on("1", &["p1"]);
    let placed = apart.solution.placed.iter_mut().zip(&hosts);
    placed.for_each(|(own, host)| own.0 = host.clone());
    apart.accepted();
    let mut both = plan(&world).on("0", &["p0", "p1"]);
    both.solution.placed[0].0 = hosts[0].clone();
    both.refused("p1 by kubernetes.io/hostname");
}

#[test]
fn pods_of_closed_rooms_count() {
    let mut world = of(vec![away(of_app("p", "b"), term(app("a"), ZONE))]);
    world.residents = vec![bound("r", "a", "n0")];
    world.rooms[0].open = false;
    plan(&world).on("n1", &["p"]).refused("p has anti-affinity to a bound pod");
}

#[test]
fn those_who_are_there_want_others_away() {
    let mut world = of(vec![of_app("p", "b")]);
    world.residents = vec![away(bound("r", "a", "n0"), term(app("b"), ZONE))];
    plan(&world).on("n1", &["p"]).refused("a pod on n0 has anti-affinity to default/p");
    plan(&world).on("n2", &["p"]).accepted();
    world.residents[0].deleting = Some(NOW);
    plan(&world).on("n1", &["p"]).refused("a pod on n0 has anti-affinity to default/p");
    world.pods[0].labels = Labels::from([label("app", "c")]);
    plan(&world).on("n1", &["p"]).accepted();
    world.residents.clear();
    let waiting = away(of_app("w", "a"), term(app("c"), ZONE));
    let host = world.rooms[0].host.clone();
    world.promised.insert(host, vec![waiting]);
    plan(&world).on("n1", &["p"]).refused("a pod on n0 has anti-affinity to default/p");
    plan(&world).on("n2", &["p"]).accepted();
}

#[test]
fn those_who_come_earlier_want_others_away() {
    let shy = away(of_app("p0", "a"), term(app("b"), ZONE));
    let world = of(vec![shy, of_app("p1", "b")]);
    let words = "a pod on n0 has anti-affinity to default/p1";
    plan(&world).on("n0", &["p0"]).on("n1", &["p1"]).refused(words);
    let words = "p0 has anti-affinity to a bound pod";
    plan(&world).on("n1", &["p1"]).on("n0", &["p0"]).refused(words);
    plan(&world).on("n0", &["p0"]).on("n2", &["p1"]).accepted();
}

#[test]
fn claims_are_apart_whatever_they_become() {
    let own = |name: &str, key: &str| away(of_app(name, "a"), term(app("a"), key));
    let mut world = World { pods: vec![own("p0", HOSTNAME), own("p1", HOSTNAME)], ..bare() };
    let small = "c-1x-amd64";
    let both = [(small, "a", ON_DEMAND), (small, "b", ON_DEMAND)];
    // Two nodes never have the same name.
    plan(&world).claim(&both, &["p0"]).claim(&both, &["p1"]).accepted();
    let one = ("c-2x-amd64", "a", ON_DEMAND);
    plan(&world).claim(&[one], &["p0", "p1"]).refused("anti-affinity");
    world.pods = vec![own("p0", ZONE), own("p1", ZONE)];
    plan(&world).claim(&both, &["p0"]).claim(&both, &["p1"]).refused("anti-affinity");
    plan(&world).claim(&both, &["p0"]).small("b", "p1").refused("anti-affinity");
    plan(&world).claim(&both, &["p0"]).small("a", "p1").refused("anti-affinity");
    plan(&world).small("a", "p0").small("b", "p1").accepted();
    world.pods = vec![own("p0", CAPACITY_TYPE), own("p1", CAPACITY_TYPE)];
    plan(&world).claim(&on_spot("a"), &["p0"]).small("a", "p1").accepted();
    plan(&world).small("a", "p0").small("b", "p1").refused("anti-affinity");
}

#[test]
fn racks_are_places_too() {
    let own = |name: &str| away(of_app(name, "a"), term(app("a"), "rack"));
    let mut world = World { pods: vec![own("p0"), own("p1")], ..bare() };
    let racks = Requirement::is_in(["r1", "r2"]);
    world.pool().requirements = wanting("rack", racks);
    let apart = |one: &str, other: &str| {
        let of = |rack: &str| Labels::from([label("rack", rack)]);
        let plan = plan(&world).small("a", "p0").but(|claim| claim.labels = of(one));
        plan.small("a", "p1").but(|claim| claim.labels = of(other))
    };
    apart("r1", "r2").accepted();
    apart("r2", "r2").refused("anti-affinity");
}
