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
    ON_DEMAND, base_world, bound, capacity, hostname, of_app, on_spot, plan, requiring,
    with_affinity, with_anti_affinity, world_without_nodes,
};

/// The base world with these pods.
fn of(pods: Vec<Pod>) -> World {
    World { pods, ..base_world() }
}

#[test]
fn affinity_needs_a_matching_pod_in_the_same_domain() {
    let near_a = |name: &str, key: &str| with_affinity(of_app(name, "b"), term(app("a"), key));
    let mut world = of(vec![near_a("p", HOSTNAME)]);
    plan(&world).place_on("n0", &["p"]).assert_rejected("p is not satisfied on n0");
    world.residents = vec![bound("r", "a", "n0")];
    plan(&world).place_on("n0", &["p"]).assert_accepted();
    plan(&world).place_on("n1", &["p"]).assert_rejected("p is not satisfied on n1");
    world.pods = vec![near_a("p", ZONE)];
    plan(&world).place_on("n1", &["p"]).assert_accepted();
    plan(&world).place_on("n2", &["p"]).assert_rejected("p is not satisfied on n2");
    // A terminating pod still satisfies affinity.
    world.residents[0].deleting = Some(NOW);
    plan(&world).place_on("n1", &["p"]).assert_accepted();
    world.residents[0].key.namespace = "other".to_owned();
    plan(&world).place_on("n1", &["p"]).assert_rejected("p is not satisfied on n1");
    world.residents.clear();
    let host = world.rooms[0].host.clone();
    world.promised.insert(host, vec![of_app("w", "a")]);
    plan(&world).place_on("n1", &["p"]).assert_accepted();
    plan(&world).place_on("n2", &["p"]).assert_rejected("p is not satisfied on n2");
    world.pods = vec![near_a("p", CAPACITY_TYPE)];
    plan(&world).place_on("n0", &["p"]).assert_rejected("which n0 does not have");
}

#[test]
fn daemons_of_planned_nodes_count_as_already_bound() {
    let mut world = world_without_nodes();
    world.daemons =
        vec![DaemonSet { key: ObjectKey::new(DEFAULT, "agent"), template: of_app("agent", "a") }];
    world.daemons[0].template.node_affinity = vec![capacity("spot")];
    let beside = |key: &str| with_affinity(of_app("p", "b"), term(app("a"), key));
    for key in [HOSTNAME, ZONE] {
        world.pods = vec![beside(key)];
        plan(&world).claim(&on_spot("a"), &["p"]).assert_accepted();
        plan(&world).small_claim("a", "p").assert_rejected("is not satisfied");
        world.pods = vec![with_anti_affinity(of_app("p", "b"), term(app("a"), key))];
        plan(&world).claim(&on_spot("a"), &["p"]).assert_rejected("anti-affinity to");
        plan(&world).small_claim("a", "p").assert_accepted();
    }
    world.pods = vec![of_app("p", "b")];
    world.daemons[0].template.anti_affinity = vec![term(app("b"), HOSTNAME)];
    plan(&world).claim(&on_spot("a"), &["p"]).assert_rejected("anti-affinity to default/p");
    plan(&world).small_claim("a", "p").assert_accepted();
    // Daemons are expected on in-flight nodes.
    let mut world = of(vec![beside(HOSTNAME)]);
    world.daemons =
        vec![DaemonSet { key: ObjectKey::new(DEFAULT, "agent"), template: of_app("agent", "a") }];
    plan(&world).place_on("n0", &["p"]).assert_rejected("is not satisfied");
    world.rooms[0].daemons = vec![(world.daemons[0].key.clone(), true)];
    plan(&world).place_on("n0", &["p"]).assert_accepted();
}

#[test]
fn matching_pod_must_be_bound_before_the_dependent_pod() {
    let follower = with_affinity(of_app("p1", "b"), term(app("a"), HOSTNAME));
    let world = of(vec![of_app("p0", "a"), follower]);
    plan(&world).place_on("n0", &["p0", "p1"]).assert_accepted();
    plan(&world).place_on("n0", &["p1", "p0"]).assert_rejected("p1 is not satisfied");
    plan(&world)
        .place_on("n0", &["p0"])
        .place_on("n1", &["p1"])
        .assert_rejected("p1 is not satisfied");
}

#[test]
fn first_pod_of_a_group_may_use_any_domain() {
    let grouped = |name: &str, key: &str| with_affinity(of_app(name, "a"), term(app("a"), key));
    let mut world = of(vec![grouped("p0", ZONE), grouped("p1", ZONE)]);
    plan(&world).place_on("n0", &["p0"]).place_on("n1", &["p1"]).assert_accepted();
    plan(&world)
        .place_on("n0", &["p0"])
        .place_on("n2", &["p1"])
        .assert_rejected("p1 is not satisfied");
    // Another pod of the group already exists.
    world.residents = vec![bound("r", "a", "n2")];
    plan(&world).place_on("n0", &["p0", "p1"]).assert_rejected("p0 is not satisfied");
    plan(&world).place_on("n2", &["p0", "p1"]).assert_accepted();
    // A pod on a node without the topology key does not prevent a first pod.
    world.rooms[2].labels = hostname("n2").into();
    plan(&world).place_on("n0", &["p0", "p1"]).assert_accepted();
    plan(&world).place_on("n2", &["p0", "p1"]).assert_rejected("which n2 does not have");
}

#[test]
fn one_pod_must_match_all_affinity_terms() {
    let mut dependent = with_affinity(of_app("p", "c"), term(app("a"), ZONE));
    let tier = Selector::from_labels(&Labels::from([label("tier", "1")]));
    dependent.affinity.push(term(tier, ZONE));
    let mut world = of(vec![dependent]);
    world.residents = vec![bound("r0", "a", "n0"), bound("r1", "b", "n1")];
    world.residents[1].labels.extend([label("tier", "1")]);
    // One pod for each of the terms is not sufficient.
    plan(&world).place_on("n0", &["p"]).assert_rejected("is not satisfied");
    world.residents[0].labels.extend([label("tier", "1")]);
    plan(&world).place_on("n0", &["p"]).assert_accepted();
}

/// The namespaces of a term, and whether it matches a pod in a namespace with the label `env=prod`.
#[test]
fn affinity_term_selects_namespaces_by_name_or_label() {
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
        let affinity_term = PodTerm {
            selector: Some(app("a")),
            namespaces,
            namespace_selector: selector,
            topology_key: ZONE.to_owned(),
        };
        let mut world = of(vec![with_affinity(of_app("p", "b"), affinity_term)]);
        world.residents = vec![bound("r", "a", "n0")];
        world.residents[0].key.namespace = "other".to_owned();
        let labels = Labels::from([label("env", "prod")]);
        world.namespaces.insert("other".to_owned(), labels);
        let plan = plan(&world).place_on("n0", &["p"]);
        if speaks {
            plan.assert_accepted();
        } else {
            plan.assert_rejected("is not satisfied");
        }
    }
}

#[test]
fn anti_affinity_selector_matches_as_in_kubernetes() {
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
        let anti_affinity_term = PodTerm { selector, ..term(app("a"), HOSTNAME) };
        let mut world = of(vec![with_anti_affinity(of_app("p", "c"), anti_affinity_term)]);
        world.residents = vec![bound("r", "a", "n0")];
        let plan = plan(&world).place_on("n0", &["p"]);
        if speaks {
            plan.assert_rejected("p has anti-affinity to a bound pod");
        } else {
            plan.assert_accepted();
        }
    }
}

#[test]
fn anti_affinity_rejects_a_domain_with_a_matching_pod() {
    let mut world = of(vec![with_anti_affinity(of_app("p", "b"), term(app("a"), ZONE))]);
    plan(&world).place_on("n0", &["p"]).assert_accepted();
    world.residents = vec![bound("r", "a", "n0")];
    plan(&world).place_on("n1", &["p"]).assert_rejected("p has anti-affinity to a bound pod");
    plan(&world).place_on("n2", &["p"]).assert_accepted();
    world.residents[0].deleting = Some(NOW);
    plan(&world).place_on("n1", &["p"]).assert_rejected("p has anti-affinity to a bound pod");
    world.residents[0].key.namespace = "other".to_owned();
    plan(&world).place_on("n1", &["p"]).assert_accepted();
    world.residents.clear();
    let host = world.rooms[0].host.clone();
    world.promised.insert(host, vec![of_app("w", "a")]);
    plan(&world).place_on("n1", &["p"]).assert_rejected("p has anti-affinity to a bound pod");
    // Nodes without the topology key are in no domain, not in a common one.
    world.rooms[1].labels = hostname("n1").into();
    plan(&world).place_on("n1", &["p"]).assert_accepted();
    world.rooms[0].labels = hostname("n0").into();
    plan(&world).place_on("n1", &["p"]).assert_accepted();
}

/// A claim without a node has no host name yet, but it will have a unique one.
#[test]
fn in_flight_nodes_are_separate_hostname_domains() {
    let exclusive = |name: &str| with_anti_affinity(of_app(name, "a"), term(app("a"), HOSTNAME));
    let mut world = of(vec![exclusive("p0"), exclusive("p1")]);
    for (at, room) in world.rooms.iter_mut().enumerate() {
        room.host = NodeRef::Claim(ClaimId::from(format!("c{at}")));
        room.labels = requiring(ZONE, Requirement::is_in(["a"])).into();
    }
    let hosts = world.rooms.iter().map(|room| room.host.clone());
    let hosts: Vec<NodeRef> = hosts.collect();
    let mut apart = plan(&world).place_on("0", &["p0"]).place_on("1", &["p1"]);
    let placed = apart.solution.placed.iter_mut().zip(&hosts);
    placed.for_each(|(placement, host)| placement.0 = host.clone());
    apart.assert_accepted();
    let mut both = plan(&world).place_on("0", &["p0", "p1"]);
    both.solution.placed[0].0 = hosts[0].clone();
    both.assert_rejected("p1 by kubernetes.io/hostname");
}

#[test]
fn pods_on_closed_nodes_count_for_anti_affinity() {
    let mut world = of(vec![with_anti_affinity(of_app("p", "b"), term(app("a"), ZONE))]);
    world.residents = vec![bound("r", "a", "n0")];
    world.rooms[0].open = false;
    plan(&world).place_on("n1", &["p"]).assert_rejected("p has anti-affinity to a bound pod");
}

#[test]
fn anti_affinity_of_bound_pods_applies_to_new_pods() {
    let mut world = of(vec![of_app("p", "b")]);
    world.residents = vec![with_anti_affinity(bound("r", "a", "n0"), term(app("b"), ZONE))];
    plan(&world)
        .place_on("n1", &["p"])
        .assert_rejected("a pod on n0 has anti-affinity to default/p");
    plan(&world).place_on("n2", &["p"]).assert_accepted();
    world.residents[0].deleting = Some(NOW);
    plan(&world)
        .place_on("n1", &["p"])
        .assert_rejected("a pod on n0 has anti-affinity to default/p");
    world.pods[0].labels = Labels::from([label("app", "c")]);
    plan(&world).place_on("n1", &["p"]).assert_accepted();
    world.residents.clear();
    let waiting = with_anti_affinity(of_app("w", "a"), term(app("c"), ZONE));
    let host = world.rooms[0].host.clone();
    world.promised.insert(host, vec![waiting]);
    plan(&world)
        .place_on("n1", &["p"])
        .assert_rejected("a pod on n0 has anti-affinity to default/p");
    plan(&world).place_on("n2", &["p"]).assert_accepted();
}

#[test]
fn anti_affinity_of_earlier_pods_applies_to_later_pods() {
    let exclusive = with_anti_affinity(of_app("p0", "a"), term(app("b"), ZONE));
    let world = of(vec![exclusive, of_app("p1", "b")]);
    let words = "a pod on n0 has anti-affinity to default/p1";
    plan(&world).place_on("n0", &["p0"]).place_on("n1", &["p1"]).assert_rejected(words);
    let words = "p0 has anti-affinity to a bound pod";
    plan(&world).place_on("n1", &["p1"]).place_on("n0", &["p0"]).assert_rejected(words);
    plan(&world).place_on("n0", &["p0"]).place_on("n2", &["p1"]).assert_accepted();
}

#[test]
fn anti_affinity_must_hold_for_all_possible_offerings() {
    let exclusive =
        |name: &str, key: &str| with_anti_affinity(of_app(name, "a"), term(app("a"), key));
    let mut world = World {
        pods: vec![exclusive("p0", HOSTNAME), exclusive("p1", HOSTNAME)],
        ..world_without_nodes()
    };
    let small = "c-1x-amd64";
    let both = [(small, "a", ON_DEMAND), (small, "b", ON_DEMAND)];
    // Two nodes never have the same name.
    plan(&world).claim(&both, &["p0"]).claim(&both, &["p1"]).assert_accepted();
    let one = ("c-2x-amd64", "a", ON_DEMAND);
    plan(&world).claim(&[one], &["p0", "p1"]).assert_rejected("anti-affinity");
    world.pods = vec![exclusive("p0", ZONE), exclusive("p1", ZONE)];
    plan(&world).claim(&both, &["p0"]).claim(&both, &["p1"]).assert_rejected("anti-affinity");
    plan(&world).claim(&both, &["p0"]).small_claim("b", "p1").assert_rejected("anti-affinity");
    plan(&world).claim(&both, &["p0"]).small_claim("a", "p1").assert_rejected("anti-affinity");
    plan(&world).small_claim("a", "p0").small_claim("b", "p1").assert_accepted();
    world.pods = vec![exclusive("p0", CAPACITY_TYPE), exclusive("p1", CAPACITY_TYPE)];
    plan(&world).claim(&on_spot("a"), &["p0"]).small_claim("a", "p1").assert_accepted();
    plan(&world).small_claim("a", "p0").small_claim("b", "p1").assert_rejected("anti-affinity");
}

#[test]
fn custom_pool_labels_are_topology_domains() {
    let exclusive = |name: &str| with_anti_affinity(of_app(name, "a"), term(app("a"), "rack"));
    let mut world = World { pods: vec![exclusive("p0"), exclusive("p1")], ..world_without_nodes() };
    let racks = Requirement::is_in(["r1", "r2"]);
    world.pool().requirements = requiring("rack", racks);
    let apart = |one: &str, other: &str| {
        let of = |rack: &str| Labels::from([label("rack", rack)]);
        let plan = plan(&world).small_claim("a", "p0").edit_claim(|claim| claim.labels = of(one));
        plan.small_claim("a", "p1").edit_claim(|claim| claim.labels = of(other))
    };
    apart("r1", "r2").assert_accepted();
    apart("r2", "r2").assert_rejected("anti-affinity");
}
