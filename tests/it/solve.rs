//! Asks the solver for whole plans and holds them against a naive reading of the rules.
//! It must not know how the solver comes to its answers.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::model::cluster::Cluster;
use outrigger::model::id::{ClaimId, ObjectKey};
use outrigger::model::instance::{CapacityType, InstanceType, Offering, OfferingKey, Price};
use outrigger::model::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, Labels, OS, POOL, ZONE};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::{Limits, Pool};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use outrigger::solve::{Code, NewClaim, Solution, solve};
use outrigger::state::holds::Holds;
use outrigger::state::snapshot::{Host, Room, Snapshot, Usage};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::{collection, option, prop_assert, prop_assert_eq, proptest};

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Everything a snapshot borrows.
#[derive(Clone, Debug, Default)]
struct World {
    cluster: Cluster,
    catalog: Catalog,
    holds: Holds,
    rooms: Vec<Room>,
    pods: Vec<Pod>,
    daemons: Vec<DaemonSet>,
    usage: BTreeMap<outrigger::model::id::PoolName, Usage>,
}

impl World {
    fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            cluster: &self.cluster,
            catalog: &self.catalog,
            holds: &self.holds,
            rooms: self.rooms.clone(),
            pending: self.pods.iter().collect(),
            daemon_sets: self.daemons.iter().collect(),
            usage: self.usage.clone(),
        }
    }

    fn solve(&self) -> Solution {
        solve(&self.snapshot(), NOW)
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.cluster.pools[0]
    }
}

/// The shapes of Karpenter's kwok provider: families c, s and m with 2, 4 and 8 GiB a cpu.
fn kwok_like(arch: &str, cpus: &[i64]) -> Vec<InstanceType> {
    let families = [("c", 2), ("s", 4), ("m", 8)];
    let shapes = cpus
        .iter()
        .flat_map(|cpu| families.map(|(name, gib)| (*cpu, name, gib)));
    let of = |(cpu, family, gib): (i64, &str, i64)| {
        let name = format!("{family}-{cpu}x-{arch}");
        let memory = cpu * gib * GIB;
        let capacity = Resources {
            cpu_milli: cpu * 1000,
            memory,
            ephemeral_storage: 20 * GIB,
            pods: (16 * cpu).min(1024),
            ..Resources::default()
        };
        let mut allocatable = capacity.clone();
        allocatable.cpu_milli -= 100;
        allocatable.memory -= 10 * MIB;
        let price = 0.025 * cpu as f64 + 0.001 * memory as f64 / 1e9;
        let zones = ["a", "b", "c", "d"];
        let sold = [(CapacityType::Spot, 0.7), (CapacityType::OnDemand, 1.0)];
        let offering = |(capacity_type, share): (CapacityType, f64), zone: &str| Offering {
            zone: zone.into(),
            capacity_type,
            price: Price::new(price * share).expect("a price"),
            available: true,
        };
        let offerings = sold
            .iter()
            .flat_map(|sold| zones.map(|zone| offering(*sold, zone)));
        let requirements = [
            (INSTANCE_TYPE, Requirement::is_in([name.as_str()])),
            (ARCH, Requirement::is_in([arch])),
            (OS, Requirement::is_in(["linux"])),
            (ZONE, Requirement::is_in(zones)),
            (CAPACITY_TYPE, Requirement::is_in(["spot", "on-demand"])),
        ];
        InstanceType {
            name: name.as_str().into(),
            requirements: requirements.into_iter().collect(),
            capacity,
            allocatable,
            offerings: offerings.collect(),
        }
    };
    shapes.map(of).collect()
}

const CPUS: [i64; 12] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256];

/// One pool, on demand, and all shapes.
fn world() -> World {
    let mut pool = Pool::new("general");
    pool.requirements
        .add(CAPACITY_TYPE, Requirement::is_in(["on-demand"]));
    let mut world = World {
        catalog: Catalog::new(kwok_like("amd64", &CPUS)),
        ..World::default()
    };
    world.cluster.pools.push(pool);
    world
}

fn pod(name: &str, cpu_milli: i64, memory: i64) -> Pod {
    Pod {
        key: ObjectKey::new("default", name),
        requests: Resources {
            cpu_milli,
            memory,
            pods: 1,
            ..Resources::default()
        },
        ..Pod::default()
    }
}

fn pods(prefix: &str, count: usize, cpu_milli: i64, memory: i64) -> Vec<Pod> {
    let name = |at| format!("{prefix}{at}");
    (0..count)
        .map(|at| pod(&name(at), cpu_milli, memory))
        .collect()
}

fn taint(key: &str, effect: Effect) -> Taint {
    Taint::new(key, effect)
}

fn tolerates(key: &str) -> Toleration {
    Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    }
}

fn room(name: &str, free: Resources) -> Room {
    Room {
        host: Host::Node(name.into()),
        labels: Requirements::default(),
        taints: Vec::new(),
        free,
        host_ports: BTreeSet::new(),
        initialized: true,
    }
}

fn cost(solution: &Solution) -> f64 {
    let price = |claim: &NewClaim| claim.offerings[0].1.usd_per_h();
    solution.claims.iter().map(price).sum()
}

/// Asserts that the only pod is unplaced for this reason, in the pool's words.
fn check_no(world: &World, code: Code, words: &str) {
    let solution = world.solve();
    let why = &solution.unplaced.first().expect("an unplaced pod").reasons[0];
    assert_eq!(why.code, code, "{why:?}");
    assert!(
        why.text.contains(words),
        "{:?} is not in {:?}",
        words,
        why.text
    );
    check(world, &solution).expect("a sound plan");
}

#[test]
fn a_plan_costs_little_more_than_its_bound() {
    let mut world = world();
    world.pods = pods("small", 500, 900, 3100 * MIB);
    world.pods.extend(pods("large", 500, 3500, 28 * GIB));
    let solution = world.solve();
    check(&world, &solution).expect("a sound plan");
    assert!(solution.unplaced.is_empty());
    let (cost, nodes) = (cost(&solution), solution.claims.len());
    // No plan costs less than 71.66 $/h: so much do the requests cost at the price of a unit.
    assert!(cost <= 72.5 && nodes <= 11, "{cost} $/h, {nodes} nodes");
}

#[test]
fn a_pool_says_why_not() {
    let mut world = world();
    world.pods = vec![pod("p", 400_000, GIB)];
    check_no(
        &world,
        Code::Resources,
        "needs cpu 400; the largest type that fits the rest, ",
    );
    check_no(&world, Code::Resources, "has 255.9");
    world.pods[0] = pod("p", 4000, GIB);
    world.pool().limits.capacity = vec![("cpu".to_owned(), 100_000)];
    let used = world.usage.entry("general".into()).or_default();
    used.capacity.cpu_milli = 96_000;
    let limit = "cpu limit 100 leaves 4, the smallest fitting type has 8";
    check_no(&world, Code::Limit, limit);
    world.pool().limits = Limits::default();
    world.pool().limits.nodes = Some(0);
    check_no(&world, Code::Limit, "nodes limit 0 is reached");
    world.pool().limits.nodes = None;
    world.pool().taints = vec![Taint {
        value: "gpu".to_owned(),
        ..taint("team", Effect::NoSchedule)
    }];
    check_no(&world, Code::Taint, "does not tolerate team=gpu:NoSchedule");
    world.pool().taints.clear();
    world.pods[0].node_selector = Labels::from([("disk".to_owned(), "fast".to_owned())]);
    check_no(
        &world,
        Code::Requirements,
        "disk: wanted in [fast], but the label is not defined",
    );
    world.pods[0].node_selector = Labels::from([(ARCH.to_owned(), "arm64".to_owned())]);
    check_no(
        &world,
        Code::Requirements,
        "kubernetes.io/arch: wanted in [arm64], which no",
    );
    world.pods[0].node_selector = Labels::from([(ZONE.to_owned(), "e".to_owned())]);
    check_no(
        &world,
        Code::Offering,
        "none is offered with topology.kubernetes.io/zone in [e]",
    );
    world.pods[0].node_selector = Labels::from([(ZONE.to_owned(), "a".to_owned())]);
    for it in world.catalog.types() {
        let key = OfferingKey {
            instance_type: it.name.clone(),
            zone: "a".into(),
            capacity_type: CapacityType::OnDemand,
        };
        world.holds.hold(key, NOW + SignedDuration::from_mins(3));
    }
    check_no(
        &world,
        Code::HeldDown,
        "held down: c-128x-amd64 a on-demand",
    );
    world.cluster.pools.clear();
    check_no(&world, Code::NoPool, "no pool");
}

#[test]
fn a_pod_that_is_not_understood_is_not_placed() {
    let mut world = world();
    world.rooms = vec![room("n", pod("", 9000, GIB).requests)];
    world.pods = vec![pod("p", 1, 1)];
    world.pods[0].defects = vec!["cpu \"x\" is not a quantity".to_owned()];
    check_no(&world, Code::Malformed, "is not a quantity");
    world.pods[0].defects.clear();
    world.pods[0].unweighed = vec!["topologySpreadConstraints"];
    check_no(&world, Code::Unweighed, "topologySpreadConstraints");
    world.pods[0].unweighed.clear();
    let name = "kubernetes.io/hostname".to_owned();
    world.pods[0].node_selector = Labels::from([(name, "n".to_owned())]);
    check_no(&world, Code::Restricted, "kubernetes.io/hostname");
    world.pods[0].node_selector.clear();
    let term = Requirements::from_iter([("karpenter.sh/x", Requirement::exists())]);
    world.pods[0].node_affinity = vec![term];
    check_no(&world, Code::Restricted, "karpenter.sh");
}

#[test]
fn rooms_are_filled_before_nodes_are_made() {
    let mut world = world();
    let free = Resources {
        cpu_milli: 2000,
        memory: 8 * GIB,
        pods: 10,
        ..Resources::default()
    };
    world.rooms = ["a", "b", "c", "d"]
        .map(|name| room(name, free.clone()))
        .to_vec();
    world.rooms[0].taints = vec![taint("x", Effect::NoExecute)];
    world.rooms[1].taints = vec![taint("x", Effect::PreferNoSchedule)];
    world.rooms[2]
        .host_ports
        .insert(("TCP".to_owned(), String::new(), 80));
    world.rooms[3].initialized = false;
    world.pods = pods("p", 4, 1000, GIB);
    for pod in &mut world.pods {
        pod.host_ports
            .insert(("TCP".to_owned(), "10.0.0.1".to_owned(), 80));
    }
    let solution = world.solve();
    check(&world, &solution).expect("a sound plan");
    let hosts: Vec<String> = solution
        .placed
        .iter()
        .map(|(host, _)| host.to_string())
        .collect();
    assert_eq!(hosts, ["node b", "node d"]);
    assert_eq!(solution.claims.len(), 2, "host ports are bound once a node");
}

#[test]
fn a_pool_of_higher_weight_comes_first_and_prefer_no_schedule_is_a_wish() {
    let mut world = world();
    world.cluster.pools.push(Pool {
        weight: 10,
        ..Pool::new("second")
    });
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
fn daemons_are_counted_where_they_will_run() {
    let mut world = world();
    world.catalog = Catalog::new(kwok_like("amd64", &[1, 2]));
    world.daemons = vec![DaemonSet {
        key: ObjectKey::new("kube-system", "agent"),
        template: pod("agent", 500, GIB),
    }];
    world.pods = vec![pod("p", 500, GIB / 2)];
    let solution = world.solve();
    check(&world, &solution).expect("a sound plan");
    assert_eq!(
        solution.claims[0].offerings[0].0.instance_type.as_str(),
        "c-2x-amd64"
    );
    assert_eq!(solution.claims[0].requests.cpu_milli, 1000);
    assert_eq!(solution.claims[0].requests.pods, 2);
    world.daemons[0].template.node_selector = Labels::from([(POOL.to_owned(), "x".to_owned())]);
    let solution = world.solve();
    assert_eq!(
        solution.claims[0].offerings[0].0.instance_type.as_str(),
        "c-1x-amd64"
    );
}

#[test]
fn an_alternative_is_taken_where_the_first_cannot_be() {
    let mut world = world();
    world.pods = vec![pod("p", 1000, GIB)];
    let term = |zone: &str| Requirements::from_iter([(ZONE, Requirement::is_in([zone]))]);
    world.pods[0].node_affinity = vec![term("nowhere"), term("c")];
    let solution = world.solve();
    check(&world, &solution).expect("a sound plan");
    let all = &solution.claims[0].offerings;
    assert!(all.iter().all(|(key, _)| key.zone.as_str() == "c"));
}

#[test]
fn nothing_breaks_on_extreme_amounts() {
    let extremes = [i64::MIN, -1, 0, 1, i64::MAX];
    for cpu in extremes {
        for memory in extremes {
            let mut world = world();
            world.pods = pods("p", 3, cpu, memory);
            world.pods[2].requests.pods = memory;
            world.pods[1]
                .requests
                .extended
                .insert("x/y".to_owned(), cpu);
            world.rooms = vec![room("n", world.pods[1].requests.clone())];
            world.daemons = vec![DaemonSet {
                key: ObjectKey::new("d", "d"),
                template: pod("d", memory, cpu),
            }];
            world.pool().limits.capacity = vec![("cpu".to_owned(), memory)];
            let used = world.usage.entry("general".into()).or_default();
            (used.capacity.cpu_milli, used.nodes) = (cpu, usize::MAX);
            let solution = world.solve();
            let placed = solution.placed.iter().map(|(_, pods)| pods.len());
            let claimed = solution.claims.iter().map(|claim| claim.pods.len());
            assert_eq!(
                placed.chain(claimed).sum::<usize>() + solution.unplaced.len(),
                3
            );
        }
    }
}

// The naive reading.

type Check = Result<(), String>;

fn ensure(holds: bool, what: impl Fn() -> String) -> Check {
    if holds { Ok(()) } else { Err(what()) }
}

/// Whether a node of these labels is what a pod asks for.
fn wanted(pod: &Pod, labels: &Labels) -> bool {
    let holds = |(key, wanted): (&str, &Requirement)| match labels.get(key) {
        Some(value) => wanted.has(value),
        None => wanted.allows_absence(),
    };
    let mut terms = pod.node_affinity.iter();
    let selected = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    pod.node_selector.iter().all(selected)
        && (pod.node_affinity.is_empty() || terms.any(|term| term.iter().all(holds)))
}

fn tolerated(pod: &Pod, taints: &[Taint], effects: &[Effect]) -> bool {
    let covered = |taint: &Taint| pod.tolerations.iter().any(|own| own.tolerates(taint));
    let mut hard = taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect));
    hard.all(covered)
}

const HARD: [Effect; 2] = [Effect::NoSchedule, Effect::NoExecute];

/// The labels of a node made from an offering; `team` is what is left open by a pool.
fn labels(world: &World, pool: &str, key: &OfferingKey, team: Option<&str>) -> Labels {
    let mut labels = world.cluster.pool(pool).expect("a pool").labels.clone();
    let it = world
        .catalog
        .get(key.instance_type.as_str())
        .expect("a type");
    for (name, requirement) in it.requirements.iter() {
        if let Some(values) = requirement.values().filter(|values| values.len() == 1) {
            labels.insert(name.to_owned(), values.first().cloned().unwrap_or_default());
        }
    }
    labels.insert(ZONE.to_owned(), key.zone.to_string());
    labels.insert(
        CAPACITY_TYPE.to_owned(),
        key.capacity_type.as_str().to_owned(),
    );
    labels.insert(POOL.to_owned(), pool.to_owned());
    labels.extend(team.map(|team| ("team".to_owned(), team.to_owned())));
    labels
}

fn teams(pool: &Pool) -> Vec<Option<&str>> {
    match pool.requirements.get("team").and_then(Requirement::values) {
        Some(values) => values.iter().map(|value| Some(value.as_str())).collect(),
        None => vec![None],
    }
}

fn ports_clash(pods: &[&Pod], taken: &BTreeSet<(String, String, u16)>) -> bool {
    let mut seen: BTreeSet<(String, u16)> = taken.iter().map(|p| (p.0.clone(), p.2)).collect();
    let mut ports = pods.iter().flat_map(|pod| &pod.host_ports);
    ports.any(|port| !seen.insert((port.0.clone(), port.2)))
}

/// Whether a node made from this offering can take these pods, for some value of what is open.
fn takes(world: &World, pool: &Pool, key: &OfferingKey, pods: &[&Pod]) -> Check {
    let it = world
        .catalog
        .get(key.instance_type.as_str())
        .expect("a type");
    let offering = world.catalog.offering(key).ok_or("no such offering")?;
    let held = world.holds.is_held(key, NOW);
    ensure(offering.available && !held, || {
        format!("{key} cannot be had")
    })?;
    let fits = |team: Option<&str>| {
        let labels = labels(world, pool.name.as_str(), key, team);
        let mut pool_wants = pool.requirements.iter();
        let own = |(key, wanted): (&str, &Requirement)| {
            labels
                .get(key)
                .map_or(wanted.allows_absence(), |value| wanted.has(value))
        };
        pool_wants.all(own) && pods.iter().all(|pod| wanted(pod, &labels))
    };
    ensure(teams(pool).into_iter().any(fits), || {
        format!("{key} has other labels")
    })?;
    let mut sum = Resources::default();
    for pod in pods {
        ensure(tolerated(pod, &pool.taints, &HARD), || "a taint".to_owned())?;
        sum.add(&pod.requests);
    }
    let mut all = pods.to_vec();
    for set in &world.daemons {
        let runs = tolerated(&set.template, &pool.taints, &HARD)
            && wanted(&set.template, &labels(world, pool.name.as_str(), key, None));
        if runs {
            sum.add(&set.template.requests);
            all.push(&set.template);
        }
    }
    ensure(sum.fit(&it.allocatable), || format!("{sum} on {key}"))?;
    ensure(!ports_clash(&all, &BTreeSet::new()), || {
        "host ports".to_owned()
    })
}

/// Holds a plan against the rules.
fn check(world: &World, solution: &Solution) -> Check {
    let of = |keys: &[ObjectKey]| -> Vec<&Pod> {
        let pod = |key: &ObjectKey| {
            world
                .pods
                .iter()
                .find(|pod| pod.key == *key)
                .expect("a pod")
        };
        keys.iter().map(pod).collect()
    };
    let placed = solution.placed.iter().flat_map(|(_, pods)| pods);
    let claimed = solution.claims.iter().flat_map(|claim| &claim.pods);
    let unplaced = solution.unplaced.iter().map(|unplaced| &unplaced.pod);
    let mut answers: Vec<&ObjectKey> = placed.chain(claimed).chain(unplaced).collect();
    let mut asked: Vec<&ObjectKey> = world.pods.iter().map(|pod| &pod.key).collect();
    answers.sort();
    asked.sort();
    ensure(answers == asked, || "every pod has one answer".to_owned())?;
    for (host, keys) in &solution.placed {
        let room = world
            .rooms
            .iter()
            .find(|room| room.host == *host)
            .expect("a room");
        let pods = of(keys);
        let mut sum = Resources::default();
        let value = |values: &BTreeSet<String>| values.first().cloned();
        let label = |(key, own): (&str, &Requirement)| {
            own.values()
                .and_then(value)
                .map(|value| (key.to_owned(), value))
        };
        let labels: Labels = room.labels.iter().filter_map(label).collect();
        for pod in &pods {
            sum.add(&pod.requests);
            ensure(wanted(pod, &labels), || {
                format!("{} on {host}: labels", pod.key)
            })?;
            ensure(tolerated(pod, &room.taints, &HARD), || {
                format!("{host}: taint")
            })?;
        }
        ensure(sum.fit(&room.free), || {
            format!("{host} takes {sum} of {}", room.free)
        })?;
        ensure(!ports_clash(&pods, &room.host_ports), || {
            format!("{host}: ports")
        })?;
    }
    for claim in &solution.claims {
        let pool = world
            .cluster
            .pool(claim.pool.as_str())
            .ok_or("no such pool")?;
        let prices: Vec<Price> = claim.offerings.iter().map(|(_, price)| *price).collect();
        let (first, last) = (prices.first().ok_or("no offering")?, prices.last());
        let flat = prices.len() <= 60 && prices.is_sorted();
        let near = last.is_some_and(|last| last.usd_per_h() <= 2.0 * first.usd_per_h());
        ensure(flat && near, || format!("offerings {prices:?}"))?;
        for (key, _) in &claim.offerings {
            takes(world, pool, key, &of(&claim.pods))?;
        }
    }
    check_limits(world, solution)?;
    check_reasons(world, solution)
}

/// No limit is exceeded, whichever offerings are launched.
fn check_limits(world: &World, solution: &Solution) -> Check {
    for pool in &world.cluster.pools {
        let claims = || {
            solution
                .claims
                .iter()
                .filter(|claim| claim.pool == pool.name)
        };
        let used = world.usage.get(&pool.name).cloned().unwrap_or_default();
        for (name, most) in &pool.limits.capacity {
            let capacity = |(key, _): &(OfferingKey, Price)| {
                let it = world
                    .catalog
                    .get(key.instance_type.as_str())
                    .expect("a type");
                it.capacity.get(name)
            };
            let largest = |claim: &NewClaim| claim.offerings.iter().map(capacity).max();
            let sum: i64 = claims().filter_map(largest).sum();
            let holds = sum == 0 || used.capacity.get(name) + sum <= *most;
            ensure(holds, || {
                format!("{name} limit {most} is exceeded by {sum}")
            })?;
        }
        let nodes = used.nodes + claims().count();
        let most = pool.limits.nodes.map_or(usize::MAX, |most| most as usize);
        ensure(claims().count() == 0 || nodes <= most, || {
            format!("{nodes} nodes")
        })?;
    }
    Ok(())
}

/// There is a reason from every pool, and only limits keep a pod from a node that would take it.
fn check_reasons(world: &World, solution: &Solution) -> Check {
    for unplaced in &solution.unplaced {
        let first = unplaced.reasons.first().ok_or("no reason")?;
        if first.pool.is_none() {
            continue;
        }
        let pod = world.pods.iter().find(|pod| pod.key == unplaced.pod);
        let pod = pod.expect("a pod");
        let count = world.cluster.pools.len();
        ensure(unplaced.reasons.len() == count, || {
            "a reason a pool".to_owned()
        })?;
        for why in unplaced
            .reasons
            .iter()
            .filter(|why| why.code != Code::Limit)
        {
            let name = why.pool.as_ref().ok_or("no pool")?;
            let pool = world.cluster.pool(name.as_str()).ok_or("no such pool")?;
            for it in world.catalog.types() {
                for offering in &it.offerings {
                    let key = OfferingKey {
                        instance_type: it.name.clone(),
                        zone: offering.zone.clone(),
                        capacity_type: offering.capacity_type,
                    };
                    let no = takes(world, pool, &key, &[pod]).is_err();
                    ensure(no, || format!("{} would fit {key}: {why:?}", pod.key))?;
                }
            }
        }
    }
    Ok(())
}

// Worlds at random.

fn a_pod() -> impl Strategy<Value = Pod> {
    let amounts = (select(&[100, 900, 1000, 3500, 7000][..]), 1i64..40);
    let selector = option::weighted(0.3, select(&["a", "b", "z"][..]));
    let team = option::weighted(0.2, select(&["x", "y"][..]));
    let arch = option::weighted(0.2, select(&["amd64", "arm64"][..]));
    let extras = (
        any::<bool>(),
        option::weighted(0.1, 80u16..82),
        any::<bool>(),
    );
    (amounts, selector, team, arch, extras).prop_map(|((cpu, memory), zone, team, arch, extras)| {
        let mut pod = pod("", cpu, memory * GIB / 2);
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        pod.node_selector
            .extend(team.map(|team| label("team", team)));
        pod.node_selector.extend(arch.map(|arch| label(ARCH, arch)));
        if let Some(zone) = zone {
            let term = |zone: &str| Requirements::from_iter([(ZONE, Requirement::is_in([zone]))]);
            pod.node_affinity.push(term(zone));
            pod.node_affinity.extend(extras.2.then(|| term("c")));
        }
        pod.tolerations.extend(extras.0.then(|| tolerates("x")));
        let port = |port| ("TCP".to_owned(), String::new(), port);
        pod.host_ports.extend(extras.1.map(port));
        pod
    })
}

fn a_pool(name: &'static str) -> impl Strategy<Value = Pool> {
    let taint_of = |effect| option::weighted(0.3, Just(taint("x", effect)));
    let taints = (
        taint_of(Effect::NoSchedule),
        taint_of(Effect::PreferNoSchedule),
    );
    let team = prop_oneof![Just(vec![]), Just(vec!["x"]), Just(vec!["x", "y"])];
    let spot = any::<bool>();
    let limits = (
        option::weighted(0.3, 1i64..80),
        option::weighted(0.2, 0u32..4),
    );
    (taints, team, spot, limits, 0u32..2).prop_map(move |(taints, team, spot, limits, weight)| {
        let mut pool = Pool {
            weight,
            ..Pool::new(name)
        };
        pool.taints = [taints.0, taints.1].into_iter().flatten().collect();
        if !team.is_empty() {
            pool.requirements.add("team", Requirement::is_in(team));
        }
        if !spot {
            pool.requirements
                .add(CAPACITY_TYPE, Requirement::is_in(["on-demand"]));
        }
        pool.limits.capacity = limits
            .0
            .map(|cpu| ("cpu".to_owned(), cpu * 1000))
            .into_iter()
            .collect();
        pool.limits.nodes = limits.1;
        pool
    })
}

fn a_room() -> impl Strategy<Value = Room> {
    let taint_of = |effect| option::weighted(0.2, Just(taint("x", effect)));
    let taints = (
        taint_of(Effect::NoExecute),
        taint_of(Effect::PreferNoSchedule),
    );
    (-1i64..9, any::<bool>(), select(&["a", "b"][..]), taints).prop_map(
        |(cpu, ready, zone, taints)| {
            let free = pod("", cpu * 1000, 16 * GIB).requests;
            let mut room = room("", Resources { pods: 5, ..free });
            room.labels = Requirements::from_iter([
                (ZONE, Requirement::is_in([zone])),
                (ARCH, Requirement::is_in(["amd64"])),
            ]);
            room.taints = [taints.0, taints.1].into_iter().flatten().collect();
            room.initialized = ready;
            room
        },
    )
}

fn a_world() -> impl Strategy<Value = World> {
    let pods = collection::vec((a_pod(), 1usize..6), 0..12);
    let pools = (a_pool("one"), a_pool("two"), 0usize..3);
    let rooms = collection::vec(a_room(), 0..4);
    let holds = collection::vec((0usize..30, select(&["a", "b"][..])), 0..20);
    let daemons = collection::vec(a_pod(), 0..3);
    (pods, pools, rooms, holds, daemons).prop_map(|(pods, pools, rooms, holds, daemons)| {
        let mut types = kwok_like("amd64", &[1, 2, 4, 8, 16]);
        types.extend(kwok_like("arm64", &[2, 4, 8, 32]));
        let mut world = World::default();
        for (at, zone) in holds {
            let key = OfferingKey {
                instance_type: types[at % types.len()].name.clone(),
                zone: zone.into(),
                capacity_type: CapacityType::OnDemand,
            };
            world.holds.hold(key, NOW + SignedDuration::from_secs(1));
        }
        world.catalog = Catalog::new(types);
        world.cluster.pools = [pools.0, pools.1].into_iter().take(pools.2).collect();
        let each = pods
            .iter()
            .flat_map(|(pod, count)| vec![pod.clone(); *count]);
        world.pods = each.collect();
        for (at, pod) in world.pods.iter_mut().enumerate() {
            pod.key = ObjectKey::new("default", format!("p{at:03}"));
        }
        world.rooms = rooms;
        for (at, room) in world.rooms.iter_mut().enumerate() {
            room.host = Host::Node(format!("n{at}").into());
        }
        let set = |(at, mut template): (usize, Pod)| {
            template.requests.cpu_milli = 100;
            template.requests.memory = 100 * MIB;
            template.node_selector.remove("team");
            template.node_affinity.clear();
            let key = ObjectKey::new("kube-system", format!("d{at}"));
            template.host_ports.clear();
            DaemonSet { key, template }
        };
        world.daemons = daemons.into_iter().enumerate().map(set).collect();
        world
    })
}

/// The world after all its claims were launched as what is cheapest, before a pod is bound.
fn launched(world: &World, solution: &Solution) -> World {
    let mut after = world.clone();
    for (at, claim) in solution.claims.iter().enumerate() {
        let key = &claim.offerings[0].0;
        let it = world
            .catalog
            .get(key.instance_type.as_str())
            .expect("a type");
        let pool = world.cluster.pool(claim.pool.as_str()).expect("a pool");
        let labels = labels(world, claim.pool.as_str(), key, teams(pool)[0]);
        let mut room = room("", it.allocatable.clone());
        room.host = Host::Claim(ClaimId::from(format!("c{at:03}")));
        room.labels = Requirements::from_labels(&labels);
        room.taints.clone_from(&pool.taints);
        room.initialized = false;
        after.rooms.push(room);
        let used = after.usage.entry(claim.pool.clone()).or_default();
        used.nodes += 1;
        used.capacity.add(&it.capacity);
    }
    after
}

#[test]
fn pods_that_wait_for_their_nodes_need_no_others() {
    let mut world = world();
    world.pods = pods("small", 500, 900, 3100 * MIB);
    world.pods.extend(pods("large", 500, 3500, 28 * GIB));
    let after = launched(&world, &world.solve()).solve();
    assert_eq!(after.claims, vec![]);
    assert!(after.unplaced.is_empty());
}

proptest! {
    #[test]
    fn every_plan_keeps_the_rules(world in a_world()) {
        let solution = world.solve();
        let checked = check(&world, &solution);
        prop_assert!(checked.is_ok(), "{:?}\n{:#?}", checked, solution);
    }

    #[test]
    fn the_same_input_in_any_order_gives_the_same_plan(world in a_world(), seed in any::<u64>()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut other = world.clone();
        random.shuffle(&mut other.pods);
        random.shuffle(&mut other.rooms);
        random.shuffle(&mut other.daemons);
        random.shuffle(&mut other.cluster.pools);
        prop_assert_eq!(world.solve(), other.solve());
    }

    #[test]
    fn what_a_plan_leaves_it_leaves_for_good(mut world in a_world()) {
        for pool in &mut world.cluster.pools {
            pool.limits = Limits::default();
        }
        let solution = world.solve();
        let left = |pod: &Pod| solution.unplaced.iter().any(|unplaced| unplaced.pod == pod.key);
        world.pods.retain(left);
        world.rooms.clear();
        let again = world.solve();
        prop_assert_eq!(again.unplaced, solution.unplaced);
    }
}
