//! Planned nodes: launchable, within limits, and suitable for their pods with every offering.

use jiff::SignedDuration;
use outrigger::model::cluster::MinValuesPolicy;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::{CapacityType, OfferingKey};
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, Labels, NODE_CLASS, POOL, ZONE};
use outrigger::model::pod::DaemonSet;
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::Effect;

use super::super::fixture::{GIB, NOW, World, label, pod, pods, port, taint, tolerates};
use super::{ON_DEMAND, Plan, capacity, key, more_expensive, on_spot, plan, world_without_nodes};

const SMALL: (&str, &str, CapacityType) = ("c-1x-amd64", "a", ON_DEMAND);
const OTHER_ZONE: (&str, &str, CapacityType) = ("c-1x-amd64", "b", ON_DEMAND);
const LARGE: (&str, &str, CapacityType) = ("c-2x-amd64", "a", ON_DEMAND);

/// A world with one pod.
fn one(cpu_milli: i64) -> World {
    let mut world = world_without_nodes();
    world.pods = vec![pod("p", cpu_milli, GIB / 2)];
    world
}

#[test]
fn every_offering_of_a_claim_needs_the_requested_resources() {
    let world = one(800);
    plan(&world).claim(&[SMALL, LARGE], &["p"]).assert_accepted();
    let world = one(1000);
    plan(&world).claim(&[LARGE], &["p"]).assert_accepted();
    plan(&world).claim(&[SMALL, LARGE], &["p"]).assert_rejected("c-1x");
    let mut world = world_without_nodes();
    world.pods = pods("p", 2, 500, GIB / 2);
    let names = ["p0", "p1"];
    plan(&world).claim(&[LARGE], &names).assert_accepted();
    let low_requests = plan(&world).claim(&[SMALL], &names);
    let low_requests = low_requests.edit_claim(|claim| claim.requests.cpu_milli = 900);
    low_requests.assert_rejected(", its pods cpu");
    plan(&world).claim(&[SMALL], &names).assert_rejected("has cpu 900m");
}

#[test]
fn checker_counts_daemons_only_on_matching_offerings() {
    let mut world = one(800);
    let daemon = pod("agent", 200, 1);
    world.daemons =
        vec![DaemonSet { key: ObjectKey::new("kube-system", "agent"), template: daemon }];
    plan(&world).claim(&[SMALL], &["p"]).assert_rejected("too little cpu");
    plan(&world).claim(&[LARGE], &["p"]).assert_accepted();
    world.daemons[0].template.requests.cpu_milli = 100;
    plan(&world).claim(&[SMALL], &["p"]).assert_accepted();
    let both = port(80);
    world.pods[0].host_ports.insert(both.clone());
    world.daemons[0].template.host_ports.insert(both);
    plan(&world).claim(&[SMALL], &["p"]).assert_rejected("port 80 twice");
    world.daemons[0].template.node_affinity = vec![capacity("spot")];
    plan(&world).claim(&[SMALL], &["p"]).assert_accepted();
    plan(&world).claim(&on_spot("a"), &["p"]).assert_rejected("port 80");
}

#[test]
fn every_offering_of_a_claim_needs_the_required_labels() {
    let mut world = one(100);
    world.pods[0].node_selector = Labels::from([label(ZONE, "a")]);
    plan(&world).small_claim("a", "p").assert_accepted();
    plan(&world).claim(&[SMALL, OTHER_ZONE], &["p"]).assert_rejected("requires other labels");
    world.pods[0].node_selector = Labels::from([label("rack", "r1")]);
    fn of_rack<'w>(world: &'w World, rack: &str) -> Plan<'w> {
        let labels = Labels::from([label("rack", rack)]);
        let plan = plan(world).small_claim("a", "p");
        plan.edit_claim(|claim| claim.labels = labels)
    }
    plan(&world).small_claim("a", "p").assert_rejected("requires other labels");
    // A claim may only have labels that its pool defines.
    of_rack(&world, "r1").assert_rejected("the pool does not define rack");
    let racks = Requirement::is_in(["r1", "r2"]);
    world.pool().requirements.add("rack", racks);
    of_rack(&world, "r1").assert_accepted();
    of_rack(&world, "r2").assert_rejected("requires other labels");
    of_rack(&world, "r3").assert_rejected("the pool requires");
    world.pods[0].node_selector.clear();
    plan(&world).small_claim("a", "p").assert_rejected("the pool requires");
    world.pool().labels = Labels::from([label("rack", "r1")]);
    plan(&world).small_claim("a", "p").assert_accepted();
    of_rack(&world, "r2").assert_rejected("which must be");
    world.pods[0].node_selector = Labels::from([label(POOL, "general")]);
    plan(&world).small_claim("a", "p").assert_accepted();
    world.pool().node_class = Some("default".into());
    world.pods[0].node_selector = Labels::from([label(NODE_CLASS, "default")]);
    plan(&world).small_claim("a", "p").assert_accepted();
    let zone = plan(&world).claim(&[SMALL, OTHER_ZONE], &["p"]);
    let zone = zone.edit_claim(|claim| claim.labels = Labels::from([label(ZONE, "a")]));
    zone.assert_rejected("which must be");
}

#[test]
fn claim_must_satisfy_the_requirements_and_taints_of_its_pool() {
    let mut world = one(100);
    let on_demand = Requirement::is_in(["on-demand"]);
    world.pool().requirements.add(CAPACITY_TYPE, on_demand);
    plan(&world).small_claim("a", "p").assert_accepted();
    plan(&world).claim(&on_spot("a"), &["p"]).assert_rejected("the pool requires");
    world.pool().taints = vec![taint("x", Effect::NoSchedule)];
    plan(&world).small_claim("a", "p").assert_rejected("does not tolerate");
    world.pods[0].tolerations = vec![tolerates("x")];
    plan(&world).small_claim("a", "p").assert_accepted();
    world.pods[0].tolerations.clear();
    world.pool().startup_taints = std::mem::take(&mut world.pool().taints);
    plan(&world).small_claim("a", "p").assert_accepted();
    let other = plan(&world).small_claim("a", "p");
    let other = other.edit_claim(|claim| claim.pool = "other".into());
    other.assert_rejected("there is no pool other");
    world.pool().replicas = Some(1);
    plan(&world).small_claim("a", "p").assert_rejected("static pool");
}

#[test]
fn claim_has_available_offerings_sorted_by_their_price() {
    let mut world = one(100);
    fn both(world: &World) -> Plan<'_> {
        plan(world).claim(&[SMALL, LARGE], &["p"])
    }
    both(&world).assert_accepted();
    both(&world).edit_claim(|claim| claim.offerings.reverse()).assert_rejected("offerings");
    let twice = |claim: &mut outrigger::scheduling::NewNodeClaim| {
        let first = claim.offerings[0].clone();
        claim.offerings.insert(0, first);
    };
    both(&world).edit_claim(twice).assert_rejected("offerings");
    both(&world).edit_claim(|claim| claim.offerings.clear()).assert_rejected("no offering");
    let quoted = both(&world)
        .edit_claim(|claim| claim.offerings[1].1 = more_expensive(claim.offerings[1].1));
    quoted.assert_rejected("prices");
    let quoted = plan(&world).claim(&[SMALL], &["p"]);
    let quoted =
        quoted.edit_claim(|claim| claim.offerings[0].1 = more_expensive(claim.offerings[0].1));
    quoted.assert_rejected("has the price");
    plan(&world).claim(&[("x-1x", "a", ON_DEMAND)], &["p"]).assert_rejected("has the price None");
    plan(&world)
        .claim(&[("c-1x-amd64", "z", ON_DEMAND)], &["p"])
        .assert_rejected("has the price None");
    let unavailable = OfferingKey {
        instance_type: SMALL.0.into(),
        zone: SMALL.1.into(),
        capacity_type: SMALL.2,
        reservation: None,
    };
    world.holds.mark_unavailable(unavailable, NOW + SignedDuration::from_secs(1), NOW);
    both(&world).assert_rejected("is unavailable");
    plan(&world).claim(&[OTHER_ZONE], &["p"]).assert_accepted();
}

#[test]
fn claim_stays_within_the_offering_count_and_price_range() {
    let mut world = one(100);
    let expensive = ("m-2x-amd64", "a", ON_DEMAND);
    let three = [SMALL, OTHER_ZONE, LARGE];
    plan(&world).claim(&three, &["p"]).assert_accepted();
    plan(&world).claim(&[SMALL, expensive], &["p"]).assert_rejected("prices");
    world.cluster.scheduling.alternative_price_percent = 300;
    plan(&world).claim(&[SMALL, expensive], &["p"]).assert_accepted();
    world.cluster.scheduling.alternative_price_percent = 100;
    plan(&world).claim(&[SMALL, OTHER_ZONE], &["p"]).assert_accepted();
    plan(&world).claim(&three, &["p"]).assert_rejected("prices");
    world.cluster.scheduling.alternative_price_percent = 200;
    world.cluster.scheduling.max_launch_options = 2;
    plan(&world).claim(&three, &["p"]).assert_rejected("offerings");
}

#[test]
fn claim_must_satisfy_min_values_under_the_strict_policy() {
    let mut world = one(100);
    let mut many = Requirement::exists();
    many.min_values = Some(2);
    world.pool().requirements.add(INSTANCE_TYPE, many);
    plan(&world).claim(&[SMALL, LARGE], &["p"]).assert_accepted();
    let few = || plan(&world).claim(&[SMALL, OTHER_ZONE], &["p"]);
    few().assert_rejected("the pool requires 2 values of node.kubernetes.io/instance-type");
    world.cluster.scheduling.min_values = MinValuesPolicy::BestEffort;
    plan(&world).claim(&[SMALL, OTHER_ZONE], &["p"]).assert_accepted();
}

#[test]
fn limits_count_the_largest_offering_of_each_claim() {
    let mut world = world_without_nodes();
    world.pods = pods("p", 2, 100, GIB / 2);
    fn two(world: &World) -> Plan<'_> {
        let plan = plan(world).claim(&[SMALL, LARGE], &["p0"]);
        plan.small_claim("b", "p1")
    }
    world.pool().limits.capacity = vec![("cpu".to_owned(), 3000)];
    two(&world).assert_accepted();
    world.pool().limits.capacity = vec![("cpu".to_owned(), 2999)];
    two(&world).assert_rejected("the cpu limit 2999 is exceeded by 3000");
    world.pool().limits.capacity = vec![("cpu".to_owned(), 5000)];
    let used = world.usage.entry("general".into()).or_default();
    (used.capacity.cpu_milli, used.nodes) = (2000, 3);
    two(&world).assert_accepted();
    world.pool().limits.nodes = Some(5);
    two(&world).assert_accepted();
    world.pool().limits.nodes = Some(4);
    two(&world).assert_rejected("5 nodes exceed the limit 4");
    world.pool().limits.nodes = None;
    world.pool().limits.capacity = vec![("cpu".to_owned(), 4999)];
    two(&world).assert_rejected("the cpu limit 4999");
}

#[test]
fn claim_needs_a_pod_above_the_priority_cutoff() {
    let mut world = world_without_nodes();
    world.pods = pods("p", 2, 100, GIB / 2);
    world.pods[0].priority = 10;
    world.cluster.scheduling.priority_cutoff = Some(5);
    plan(&world).claim(&[SMALL], &["p0", "p1"]).assert_accepted();
    let apart = plan(&world).small_claim("a", "p0").small_claim("a", "p1");
    apart.assert_rejected("justifies a node");
    let left = plan(&world).small_claim("a", "p0");
    left.reject("p1", outrigger::scheduling::RejectionCode::Requirements).assert_accepted();
    let mut apart = plan(&world).claim(&[SMALL], &["p0", "p1"]);
    apart.solution.claims[0].pods.reverse();
    apart.assert_rejected("pods of a claim");
    let mut empty = plan(&world).claim(&[SMALL], &["p0", "p1"]);
    empty = empty.claim(&[SMALL], &[]);
    empty.assert_rejected("pods of a claim");
    world.pods.truncate(1);
    plan(&world)
        .small_claim("a", "p0")
        .edit_claim(|claim| claim.pods.push(key("p0")))
        .assert_rejected("one result");
}
