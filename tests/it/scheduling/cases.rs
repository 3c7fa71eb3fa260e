//! Small clusters, and the expected plan for each.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::catalog::Catalog;
use outrigger::model::affinity::Gang;
use outrigger::model::fleet::FleetView;
use outrigger::model::id::{ClaimId, ObjectKey};
use outrigger::model::instance::{CapacityType, OfferingKey};
use outrigger::model::labels::{ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, POOL, ZONE};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::{Limits, Pool};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Operator, Requirement, Requirements};
use outrigger::model::taint::{Effect, Taint};
use outrigger::plan;
use outrigger::plan::audit::audit;
use outrigger::scheduling::{NewNodeClaim, RejectionCode, Solution};
use outrigger::state::snapshot::NodeRef;

use super::checker::check;
use super::fixture::{
    CPU, GIB, MIB, NOW, World, app, kwok_like, label, pod, pods, room, spread, taint, term, world,
};
use super::variants::offering_variant;

fn cost(solution: &Solution) -> f64 {
    let price = |claim: &NewNodeClaim| claim.offerings[0].1.usd_per_h();
    solution.claims.iter().map(price).sum()
}

/// Asserts that the only pod is rejected with this code and a text that contains `words`.
fn check_rejection(world: &World, code: RejectionCode, words: &str) {
    let solution = world.solve();
    let why = &solution.unplaced.first().expect("an unplaced pod").reasons[0];
    assert_eq!(why.code, code, "{why:?}");
    assert!(
        why.rejection_text().contains(words),
        "{:?} is not in {:?}",
        words,
        why.rejection_text()
    );
    check(world, &solution).expect("a valid plan");
}

#[test]
fn plan_costs_little_more_than_its_bound() {
    let mut world = world();
    world.pods = pods("small", 500, 900, 3100 * MIB);
    world.pods.extend(pods("large", 500, 3500, 28 * GIB));
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    assert!(solution.unplaced.is_empty());
    let (cost, nodes) = (cost(&solution), solution.claims.len());
    // No plan costs less than 71.66 $/h, the price of the requested CPU and memory.
    assert!(cost <= 72.5 && nodes <= 11, "{cost} $/h, {nodes} nodes");
}

#[test]
fn every_rejection_code_has_its_message() {
    let mut world = world();
    world.pods = vec![pod("p", 400_000, GIB)];
    check_rejection(
        &world,
        RejectionCode::Resources,
        "the largest of 36 types that fit otherwise, c-256x-amd64, has 255.9 left",
    );
    world.pods[0] = pod("p", 4000, GIB);
    world.pool().limits.capacity = vec![("cpu".to_owned(), 100_000)];
    let used = world.usage.entry("general".into()).or_default();
    used.capacity.cpu_milli = 96_000;
    let limit = "cpu limit 100: 96 in use or planned, 4 left;";
    check_rejection(&world, RejectionCode::Limit, limit);
    world.pool().limits = Limits::default();
    world.pool().limits.nodes = Some(0);
    check_rejection(&world, RejectionCode::Limit, "nodes limit 0 is reached");
    world.pool().limits.nodes = None;
    world.pool().taints =
        vec![Taint { value: "gpu".to_owned(), ..taint("team", Effect::NoSchedule) }];
    check_rejection(&world, RejectionCode::Taint, "does not tolerate team=gpu:NoSchedule");
    world.pool().taints.clear();
    world.pods[0].node_selector = Labels::from([("disk".to_owned(), "fast".to_owned())]);
    check_rejection(
        &world,
        RejectionCode::Requirements,
        "disk: wanted in [fast], but the label is not defined",
    );
    world.pods[0].node_selector = Labels::from([(ARCH.to_owned(), "arm64".to_owned())]);
    check_rejection(
        &world,
        RejectionCode::Requirements,
        "requires kubernetes.io/arch in [arm64], which none of the pool's",
    );
    world.pods[0].node_selector = Labels::from([(ZONE.to_owned(), "e".to_owned())]);
    check_rejection(
        &world,
        RejectionCode::Offering,
        "none has an offering with topology.kubernetes.io/zone in [e]",
    );
    world.pods[0].node_selector = Labels::from([(ZONE.to_owned(), "a".to_owned())]);
    for it in world.catalog.types() {
        let key = OfferingKey {
            instance_type: it.name.clone(),
            zone: "a".into(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
        };
        world.holds.mark_unavailable(key, NOW + SignedDuration::from_mins(3), NOW);
    }
    check_rejection(
        &world,
        RejectionCode::OfferingsUnavailable,
        "matching offerings are unavailable: c-128x-amd64 a on-demand",
    );
    world.cluster.pools.clear();
    check_rejection(&world, RejectionCode::NoPool, "no pool");
}

#[test]
fn invalid_pod_is_not_placed() {
    let mut world = world();
    world.rooms = vec![room("n", pod("", 9000, GIB).requests)];
    world.pods = vec![pod("p", 1, 1)];
    world.pods[0].defects = vec!["cpu \"x\" is not a quantity".to_owned()];
    check_rejection(&world, RejectionCode::InvalidPod, "is not a quantity");
    world.pods[0].defects.clear();
    let name = "kubernetes.io/hostname".to_owned();
    world.pods[0].node_selector = Labels::from([(name, "other".to_owned())]);
    check_rejection(&world, RejectionCode::RestrictedLabel, "kubernetes.io/hostname");
    world.pods[0].node_selector.clear();
    let term = Requirements::from_iter([("karpenter.sh/x", Requirement::exists())]);
    world.pods[0].node_affinity = vec![term];
    check_rejection(&world, RejectionCode::RestrictedLabel, "karpenter.sh");
}

#[test]
fn existing_nodes_are_filled_before_new_ones() {
    let mut world = world();
    let free = Resources { cpu_milli: 2000, memory: 8 * GIB, pods: 10, ..Resources::default() };
    world.rooms = ["a", "b", "c", "d"].map(|name| room(name, free.clone())).to_vec();
    world.rooms[0].taints = vec![taint("x", Effect::NoExecute)];
    world.rooms[1].taints = vec![taint("x", Effect::PreferNoSchedule)];
    world.rooms[2].host_ports.insert(("TCP".to_owned(), String::new(), 80));
    world.rooms[3].initialized = false;
    world.pods = pods("p", 4, 1000, GIB);
    for pod in &mut world.pods {
        pod.host_ports.insert(("TCP".to_owned(), "10.0.0.1".to_owned(), 80));
    }
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    let hosts: Vec<String> = solution.placed.iter().map(|(host, _)| host.to_string()).collect();
    assert_eq!(hosts, ["node b", "node d"]);
    assert_eq!(solution.claims.len(), 2, "a host port is used once per node");
}

#[test]
fn pool_weight_and_prefer_no_schedule_decide_the_pool_order() {
    let mut world = world();
    world.cluster.pools.push(Pool { weight: 10, ..Pool::new("second") });
    world.pods = pods("p", 3, 1000, GIB);
    let pool = |world: &World| world.solve().claims[0].pool.to_string();
    assert_eq!(pool(&world), "second");
    world.cluster.pools[1].taints = vec![taint("x", Effect::PreferNoSchedule)];
    assert_eq!(pool(&world), "general");
    world.cluster.pools.remove(0);
    assert_eq!(pool(&world), "second");
    assert!(world.solve().unplaced.is_empty());
}

#[test]
fn daemon_overhead_counts_only_on_matching_nodes() {
    let mut world = world();
    world.catalog = Catalog::new(kwok_like("amd64", &[1, 2], &["a", "b", "c", "d"]));
    world.daemons = vec![DaemonSet {
        key: ObjectKey::new("kube-system", "agent"),
        template: pod("agent", 500, GIB),
    }];
    world.pods = vec![pod("p", 500, GIB / 2)];
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    assert_eq!(solution.claims[0].offerings[0].0.instance_type.as_str(), "c-2x-amd64");
    assert_eq!(solution.claims[0].requests.cpu_milli, 1000);
    assert_eq!(solution.claims[0].requests.pods, 2);
    world.daemons[0].template.node_selector = Labels::from([(POOL.to_owned(), "x".to_owned())]);
    let solution = world.solve();
    assert_eq!(solution.claims[0].offerings[0].0.instance_type.as_str(), "c-1x-amd64");
}

#[test]
fn second_node_affinity_term_is_used_if_the_first_cannot_match() {
    let mut world = world();
    world.pods = vec![pod("p", 1000, GIB)];
    let term = |zone: &str| Requirements::from_iter([(ZONE, Requirement::is_in([zone]))]);
    world.pods[0].node_affinity = vec![term("nowhere"), term("c")];
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    let all = &solution.claims[0].offerings;
    assert!(all.iter().all(|(key, _)| key.zone.as_str() == "c"));
}

#[test]
fn extreme_amounts_give_every_pod_a_result() {
    let extremes = [i64::MIN, -1, 0, 1, i64::MAX];
    for cpu in extremes {
        for memory in extremes {
            let mut world = world();
            world.pods = pods("p", 3, cpu, memory);
            world.pods[2].requests.pods = memory;
            world.pods[1].requests.extended.insert("x/y".to_owned(), cpu);
            world.rooms = vec![room("n", world.pods[1].requests.clone())];
            world.daemons =
                vec![DaemonSet { key: ObjectKey::new("d", "d"), template: pod("d", memory, cpu) }];
            world.pool().limits.capacity = vec![("cpu".to_owned(), memory)];
            let used = world.usage.entry("general".into()).or_default();
            (used.capacity.cpu_milli, used.nodes) = (cpu, usize::MAX);
            let solution = world.solve();
            let placed = solution.placed.iter().map(|(_, pods)| pods.len());
            let claimed = solution.claims.iter().map(|claim| claim.pods.len());
            assert_eq!(placed.chain(claimed).sum::<usize>() + solution.unplaced.len(), 3);
        }
    }
}

#[test]
fn limit_rejection_names_the_cluster_or_the_fleet() {
    let mut world = world();
    world.pods = vec![pod("p", 4000, GIB)];
    let used = world.usage.entry("general".into()).or_default();
    used.capacity.cpu_milli = 96_000;
    let other = world.usage.entry("other".into()).or_default();
    (other.capacity.cpu_milli, other.nodes) = (50_000, 7);
    world.cluster.limits.capacity = vec![("cpu".to_owned(), 150_000)];
    let limit = "cpu limit 150 of the cluster: 146 in use or planned, 4 left; the smallest fitting \
                 type, c-8x-amd64, needs 8";
    check_rejection(&world, RejectionCode::Limit, limit);
    world.cluster.limits = Limits::default();
    world.cluster.limits.nodes = Some(7);
    let limit = "nodes limit 7 of the cluster is reached";
    check_rejection(&world, RejectionCode::Limit, limit);
    world.cluster.limits = Limits::default();
    let cores =
        |cores: i64| Limits { nodes: None, capacity: vec![("cpu".to_owned(), cores * 1000)] };
    world.fleet = Some(FleetView {
        limits: cores(200),
        share: cores(150),
        closed: None,
        ..FleetView::default()
    });
    let limit = "cpu limit 200 of the fleet: 196 in use or planned, 4 left;";
    check_rejection(&world, RejectionCode::Limit, limit);
    world.fleet = Some(FleetView {
        limits: cores(200),
        share: cores(200),
        closed: Some("cluster west has not said what it has".to_owned()),
        ..FleetView::default()
    });
    check_rejection(&world, RejectionCode::Limit, "cluster west has not said");
}

/// Two pools, the first limited to one node, with a cluster limit of 24 cores.
fn two_pools() -> World {
    let mut world = world();
    world.pods = pods("p", 8, 7000, GIB);
    let mut second = world.pool().clone();
    second.name = "second".into();
    world.cluster.pools.push(second);
    world.pool().limits.nodes = Some(1);
    world.cluster.limits.capacity = vec![("cpu".to_owned(), 24_000)];
    world
}

#[test]
fn pools_share_the_cluster_limits() {
    let mut world = two_pools();
    world.cluster.scheduling.max_launch_options = 1;
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    let pools = solution.claims.iter().map(|claim| claim.pool.as_str());
    let pools: std::collections::BTreeSet<&str> = pools.collect();
    assert_eq!(pools.len(), 2, "{solution:#?}");
    let placed: usize = solution.claims.iter().map(|claim| claim.pods.len()).sum();
    assert_eq!((placed, solution.unplaced.len()), (3, 5));
    for unplaced in &solution.unplaced {
        let second = unplaced.reasons.last().expect("a reason");
        assert!(second.rejection_text().contains("of the cluster"), "{second:?}");
    }
}

#[test]
fn audit_enforces_cluster_and_fleet_limits() {
    let mut world = two_pools();
    let plan = plan::provision(&world.snapshot(), NOW);
    assert!(plan.findings.is_empty() && plan.launches.len() > 1);
    let whole = plan.launches.len();
    world.cluster.limits.capacity[0].1 -= 1;
    let audited = audit(plan.clone(), &world.snapshot());
    assert!(audited.launches.len() < whole);
    let finding = |limit: &str| format!("the cluster's limit of {limit} would be exceeded");
    assert!(audited.findings[0].contains(&finding("cpu")), "{audited:?}");
    world.cluster.limits = Limits { nodes: Some(1), ..Limits::default() };
    let whole_plan = plan.clone();
    let audited = audit(plan, &world.snapshot());
    assert_eq!(audited.launches.len(), 1);
    assert!(audited.findings[0].contains(&finding("nodes")), "{audited:?}");
    let share = std::mem::take(&mut world.cluster.limits);
    world.fleet = Some(FleetView { share, ..FleetView::default() });
    let audited = audit(whole_plan, &world.snapshot());
    assert_eq!(audited.launches.len(), 1);
    let finding = "the fleet's limit of nodes would be exceeded";
    assert!(audited.findings[0].contains(finding), "{audited:?}");
}

/// The world after all claims were launched with their cheapest offering, before any pod is bound.
fn after_launch(world: &World, solution: &Solution) -> World {
    let mut after = world.clone();
    for (at, claim) in solution.claims.iter().enumerate() {
        let key = &claim.offerings[0].0;
        let pool = world.cluster.pool(claim.pool.as_str()).expect("a pool");
        let it = world.catalog.get(key.instance_type.as_str());
        let name = format!("c{at:03}");
        let variant = offering_variant(world, pool, key, &claim.labels, &name).expect("a node");
        let mut room = room("", variant.free);
        room.host = NodeRef::Claim(ClaimId::from(name));
        room.labels = Requirements::from_labels(&variant.labels).into();
        room.taints.clone_from(&pool.taints);
        room.initialized = false;
        after.rooms.push(room);
        let used = after.usage.entry(claim.pool.clone()).or_default();
        used.nodes += 1;
        used.capacity.add(&it.expect("a type").capacity);
    }
    after
}

#[test]
fn pods_with_planned_nodes_need_no_further_nodes() {
    let mut world = world();
    world.pods = pods("small", 500, 900, 3100 * MIB);
    world.pods.extend(pods("large", 500, 3500, 28 * GIB));
    let after = after_launch(&world, &world.solve()).solve();
    assert_eq!(after.claims, vec![]);
    assert!(after.unplaced.is_empty());
}

#[test]
fn gang_counts_its_bound_and_promised_pods() {
    // Bound, promised and pending pods; the minimum size of the gang, or all; the placed pods.
    for (bound, promised, waiting, least, placed) in [
        (0, 0, 2, Some(2), 0),
        (1, 0, 2, Some(2), 1),
        (0, 1, 2, Some(2), 1),
        (1, 0, 2, Some(3), 0),
        (1, 1, 2, Some(3), 1),
        (1, 0, 2, None, 0),
        (1, 0, 1, None, 1),
    ] {
        let mut world = world();
        world.cluster.pools.clear();
        world.rooms = vec![room("n", pod("", 1000, GIB).requests)];
        let member = |name: String| {
            let mut pod = pod(&name, 1000, GIB);
            pod.gang = Some(Gang { name: "g".to_owned(), least });
            pod
        };
        let members = |what: &str, count: usize| -> Vec<Pod> {
            (0..count).map(|at| member(format!("{what}{at}"))).collect()
        };
        world.residents = members("bound", bound);
        for pod in &mut world.residents {
            pod.node = Some("n".into());
        }
        let host = world.rooms[0].host.clone();
        world.promised.insert(host, members("promised", promised));
        world.pods = members("waiting", waiting);
        let solution = world.solve();
        assert_eq!(solution.order.len(), placed, "{bound} {promised} {least:?}");
        check(&world, &solution).expect("a valid plan");
    }
}

/// Types that differ only in a rare resource, or in slightly more of one resource.
#[test]
fn only_suitable_one_of_similar_types_is_found() {
    let mut world = world();
    let mut types = kwok_like("amd64", &[8], &["a"]);
    // The additional amount of a resource, and the requested amount.
    let more = [
        ("hugepages-2Mi", 256 * MIB, 64 * MIB),
        ("nvidia.com/gpu", 1, 1),
        ("memory", 100 * MIB, 32 * GIB + 50 * MIB),
        ("ephemeral-storage", 60 * GIB, 70 * GIB),
    ];
    let set = |resources: &mut Resources, resource: &str, amount: i64| {
        resources.set_quantity(resource, &amount.to_string()).expect("an amount");
    };
    for (resource, amount, _) in more {
        let mut it = types[1].clone();
        let name = resource.replace('/', "-");
        it.name = name.as_str().into();
        let requirements = it.requirements.iter();
        let requirements = requirements.filter(|(key, _)| *key != INSTANCE_TYPE);
        let requirements = requirements.map(|(key, requirement)| (key, requirement.clone()));
        let named = (INSTANCE_TYPE, Requirement::is_in([name]));
        it.requirements = requirements.chain([named]).collect();
        // More expensive per core, because it is slightly smaller than the similar type.
        it.allocatable.cpu_milli -= 100;
        let whole = it.allocatable.get(resource) + amount;
        set(&mut it.allocatable, resource, whole);
        types.push(it);
    }
    world.catalog = Catalog::new(types);
    for (resource, _, amount) in more {
        world.pods = pods("p", 3, 700, GIB);
        set(&mut world.pods[0].requests, resource, amount);
        let solution = world.solve();
        check(&world, &solution).expect("a valid plan");
        assert_eq!(solution.unplaced, vec![], "{resource}");
    }
}

/// A planned node that the pods cannot use is not a domain of their spread, whatever its type will
/// be.
#[test]
fn unreachable_domains_do_not_block_spread_pods() {
    let mut world = world();
    world.pods = pods("p", 4, 2500, 2 * GIB);
    for (at, pod) in world.pods.iter_mut().enumerate() {
        let kind = if at < 2 { "everywhere" } else { "here" };
        pod.labels = Labels::from([label("app", kind)]);
        pod.spread = vec![spread(app(kind), ZONE, 1)];
        if at < 2 {
            continue;
        }
        pod.node_selector = Labels::from([label(ZONE, "a")]);
        let large = Requirement::from_operator(Operator::Gt, &["1".to_owned()]);
        let large = large.expect("an integer");
        pod.node_affinity = vec![Requirements::from_iter([(CPU, large)])];
    }
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    assert_eq!(solution.unplaced, vec![]);
}

/// On a shared node, the pods would leave too few suitable types.
#[test]
fn pods_are_separated_to_satisfy_min_values() {
    let mut world = world();
    let types = [("amd64", &[1, 2, 4, 8, 16][..]), ("arm64", &[2, 4, 8, 32])];
    let types = types.map(|(arch, cpus)| kwok_like(arch, cpus, &["a"]));
    world.catalog = Catalog::new(types.concat());
    let mut many = Requirement::exists();
    many.min_values = Some(6);
    world.pool().requirements.add(INSTANCE_TYPE, many);
    world.pods = pods("a", 2, 7000, 8 * GIB + GIB / 2);
    for pod in &mut world.pods {
        pod.node_selector = Labels::from([label(ARCH, "amd64")]);
    }
    world.pods.extend(pods("b", 3, 1000, 15 * GIB));
    assert_eq!(world.solve().unplaced, []);
}

/// Enough types have the resources that the pod `large` requests. The cheapest of them also has a
/// device, but too few types have it.
#[test]
fn min_values_count_only_types_with_the_requested_resources() {
    let mut types = kwok_like("amd64", &[2, 4], &["a"]);
    let device = "vendor/device".to_owned();
    for it in types.iter_mut().filter(|it| it.name.as_str() == "m-2x-amd64") {
        it.capacity.extended.insert(device.clone(), 1);
        it.allocatable.extended.insert(device.clone(), 1);
    }
    let mut world = World {
        catalog: Catalog::new(types),
        pods: vec![pod("large", 100, 8 * GIB), pod("rare", 100, GIB)],
        ..World::default()
    };
    let mut many = Requirement::exists();
    many.min_values = Some(3);
    let mut pool = Pool::new("general");
    pool.requirements.add(INSTANCE_TYPE, many);
    world.cluster.pools.push(pool);
    world.pods[1].requests.extended.insert(device, 1);
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    let left = solution.unplaced.iter();
    let left: Vec<(&str, RejectionCode)> =
        left.map(|rejected| (&rejected.pod.name[..], rejected.reasons[0].code)).collect();
    assert_eq!(left, [("rare", RejectionCode::MinValues)]);
}

#[test]
fn pods_without_spread_join_a_host_after_spread_pods() {
    // World 117695237325535 of the oracle test: pods that share a host, and others that are spread
    // over hosts and count them.
    let mut world = world();
    world.catalog = Catalog::new(kwok_like("amd64", &[8], &["a", "b"]));
    let labels = Labels::from([label("app", "b")]);
    let mut near = pods("near", 4, 1200, 2 * GIB);
    let mut one = pods("one", 1, 1500, GIB);
    let mut two = pods("two", 2, 950, GIB);
    for pod in &mut near {
        pod.priority = -10;
        pod.affinity = vec![term(app("b"), HOSTNAME)];
    }
    one[0].spread = vec![spread(app("b"), HOSTNAME, 3)];
    for pod in &mut two {
        pod.spread = vec![spread(app("b"), HOSTNAME, 1)];
    }
    world.pods = near.into_iter().chain(one).chain(two).collect();
    for pod in &mut world.pods {
        pod.labels.clone_from(&labels);
    }
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    assert!(solution.unplaced.is_empty(), "{:?}", solution.unplaced);
}

#[test]
fn planned_node_without_all_spread_labels_is_not_a_domain() {
    // World 117695400000797 of the oracle test: the pool is on-demand and defines no racks.
    let mut world = world();
    let mut room = room(
        "there",
        Resources { cpu_milli: 8000, memory: 8 * GIB, pods: 10, ..Resources::default() },
    );
    let labels = Arc::make_mut(&mut room.labels);
    labels.add(CAPACITY_TYPE, Requirement::is_in(["spot"]));
    labels.add("example.com/rack", Requirement::is_in(["r1"]));
    world.rooms.push(room);
    world.pods = pods("p", 2, 1500, GIB);
    for pod in &mut world.pods {
        pod.labels = Labels::from([label("app", "a")]);
        pod.spread =
            vec![spread(app("a"), CAPACITY_TYPE, 1), spread(app("a"), "example.com/rack", 1)];
    }
    // Another pod needs a node of the pool.
    let mut other = pod("other", 1500, GIB);
    other.node_selector = Labels::from([label(ARCH, "amd64")]);
    world.pods.push(other);
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    assert!(solution.unplaced.is_empty(), "{:?}", solution.unplaced);
}

/// It is undecided whether an in-flight node will be in zone `a` or `b`: the scheduler must not
/// count its pods in zone `b`.
#[test]
fn in_flight_node_in_an_undecided_zone_does_not_raise_the_skew() {
    let mut world = world();
    let full = Resources { pods: 10, ..Resources::default() };
    for (name, zones) in [("to-come", &["a", "b"][..]), ("there", &["b"])] {
        let mut room = room(name, full.clone());
        let labels = Arc::make_mut(&mut room.labels);
        labels.add(CAPACITY_TYPE, Requirement::is_in(["spot"]));
        labels.add(ZONE, Requirement::is_in(zones.iter().copied()));
        world.rooms.push(room);
    }
    world.rooms[0].host = NodeRef::Claim(ClaimId("to-come".into()));
    let mut promised = pod("promised", 100, GIB);
    promised.labels = Labels::from([label("app", "a")]);
    let host = world.rooms[0].host.clone();
    world.promised.insert(host, vec![promised.clone()]);
    for at in 0..2 {
        let mut pod = promised.clone();
        pod.key.name = format!("p{at}");
        pod.node_selector = Labels::from([label(ZONE, "b")]);
        pod.spread = vec![spread(app("a"), CAPACITY_TYPE, 1)];
        world.pods.push(pod);
    }
    let solution = world.solve();
    check(&world, &solution).expect("a valid plan");
    assert_eq!(solution.order.len(), 1, "{:?}", solution.unplaced);
}
