//! Existing and in-flight nodes are used before new ones, if pods fit.

use outrigger::model::claim::ClaimPhase;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::CapacityType;
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::Reason;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::watched_object::WatchedObject;

use super::fixture::{Check, Shape, USUAL, World, ensure};
use super::notation::{With, pod, pods, spread, taint, term};
use super::run::{Case, run_cases};

/// The phases in which a node accepts further pods.
const PHASES: [ClaimPhase; 4] =
    [ClaimPhase::Planned, ClaimPhase::Launched, ClaimPhase::Registered, ClaimPhase::Initialized];

fn check_second_fits(first: Pod, second: Pod, expect: bool) -> Check {
    for phase in PHASES {
        // A planned node could still become a node for a single pod.
        let mut world = World::requiring(&["type not single-pod"]);
        world.add([first.clone()]).settle_as(phase).all_placed()?;
        let plan = world.add([second.clone()]).plan();
        plan.all_placed()?;
        let why = |text: String| format!("{phase:?}: {text}");
        plan.makes(usize::from(!expect)).map_err(why)?;
    }
    Ok(())
}

const IN_FLIGHT: &[Case] = &[
    ("scheduling:1830", || check_second_fits(pod("p").cpu(10), pod("q").cpu(10), true)),
    ("scheduling:1847", || {
        let of = |name| pod(name).cpu(10).select("zone", "z2");
        check_second_fits(of("p"), of("q").need(&["zone in z1 z2"]), true)
    }),
    ("scheduling:1896", || {
        let of = |name| pod(name).cpu(1001);
        check_second_fits(of("p"), of("q"), false)
    }),
    ("scheduling:1915", || {
        check_second_fits(pod("p").cpu(10), pod("q").cpu(10).select("arch", "arm64"), false)
    }),
    ("scheduling:1932", || {
        let mut world = World::new();
        world.add([pod("p").cpu(10)]).settle_as(ClaimPhase::Registered);
        let claim = world.claim("n0");
        (claim.phase, claim.leaving) = (ClaimPhase::Draining, Some(Reason::Expired));
        let plan = world.add([pod("q").cpu(10)]).plan();
        let made = |pod: &str| plan.claim_of(pod).map(|_| ());
        made("q")
    }),
    // Pods that already have a planned node do not get another one.
    ("scheduling:2531", || {
        for phase in [ClaimPhase::Planned, ClaimPhase::Launching, ClaimPhase::Launched] {
            let mut world = World::new();
            world.add(pods(4, &pod("p").cpu(400))).settle_as(phase);
            let plan = world.plan();
            plan.makes(0)?;
            plan.all_placed()?;
        }
        Ok(())
    }),
    ("scheduling:2788", || {
        let mut world = World::new();
        world.add([pod("p")]).plan().makes(1)?;
        ensure(world.node_with("p").is_none(), || "a plan must not bind pods".to_owned())?;
        world.settle_as(ClaimPhase::Launched).makes(1)?;
        world.plan().makes(0)
    }),
    ("scheduling:2593", || {
        let like = pod("p").cpu(10).port(80);
        let mut world = World::new();
        let plan = world.add(pods(2, &like)).settle();
        plan.apart(&["p00", "p01"])?;
        world.add([pod("q").cpu(10).port(80)]).plan().makes(1)
    }),
];

#[test]
fn in_flight_node_gets_the_pods_that_fit() {
    run_cases(IN_FLIGHT);
}

/// Checks whether a second pod uses the node of the first, with these taints in this phase.
fn check_tainted(phase: ClaimPhase, taints: &[Taint], startup: &[Taint], expect: bool) -> Check {
    let mut world = World::new();
    world.pool().startup_taints = startup.to_vec();
    world.add([pod("p").cpu(10)]).settle_as(phase).all_placed()?;
    world.change("n0", |node| node.taints = taints.to_vec());
    let plan = world.add([pod("q").cpu(10)]).plan();
    if expect { plan.on("q", "n0") } else { plan.makes(1) }
}

const TAINTED: &[Case] = &[
    ("scheduling:2018", || check_tainted(ClaimPhase::Registered, &[], &[], true)),
    ("scheduling:2040", || {
        let not_ready = Taint::new("node.kubernetes.io/not-ready", Effect::NoExecute);
        check_tainted(ClaimPhase::Registered, &[not_ready], &[], true)
    }),
    ("scheduling:2078", || {
        let team = taint("team", "x", Effect::NoSchedule);
        check_tainted(ClaimPhase::Registered, &[team], &[], false)
    }),
    ("scheduling:2110", || {
        let start = taint("start", "x", Effect::NoSchedule);
        let start = std::slice::from_ref(&start);
        check_tainted(ClaimPhase::Registered, start, start, true)
    }),
    ("scheduling:2143", || {
        let start = taint("start", "x", Effect::NoSchedule);
        let start = std::slice::from_ref(&start);
        check_tainted(ClaimPhase::Initialized, start, start, false)
    }),
    // An initialized node that is not ready any more may be broken. The scheduler binds no pods to
    // it, so the pod needs another node. Karpenter waits for the node.
    ("scheduling:2174", || {
        let not_ready = Taint::new("node.kubernetes.io/not-ready", Effect::NoSchedule);
        check_tainted(ClaimPhase::Initialized, &[not_ready], &[], false)
    }),
];

#[test]
fn startup_taints_of_a_starting_node_are_ignored() {
    run_cases(TAINTED);
}

fn add_daemon(world: &mut World, name: &str, template: Pod) {
    let set = DaemonSet { key: ObjectKey::new("default", name), template };
    world.apply(WatchedObject::DaemonSet(Box::new(set)));
}

/// Checks whether a pod with these millicores fits on the only node.
fn check_fits(world: &World, cpu: i64, expect: bool) -> Check {
    let plan = world.clone().add([pod("q").cpu(cpu)]).plan();
    let placed = plan.solution.claims.is_empty();
    ensure(placed == expect, || format!("{cpu}m on the node: {placed}"))
}

const DAEMONS: &[Case] = &[
    // The node has 3900 millicores, and the daemon requests 1000, which count once.
    ("scheduling:2203", || {
        let mut world = World::new();
        add_daemon(&mut world, "agent", pod("").cpu(1000));
        let node = world.node("default", "z1");
        check_fits(&world, 2900, true)?;
        check_fits(&world, 2901, false)?;
        world.bind(pod("agent-x").cpu(1000).owner("DaemonSet", "agent"), &node);
        check_fits(&world, 2900, true)?;
        check_fits(&world, 2901, false)?;
        world.remove("agent-x");
        check_fits(&world, 2901, false)
    }),
    // A stray daemon pod uses its own requests, and does not replace the expected daemon.
    ("scheduling:2275", || {
        let mut world = World::new();
        add_daemon(&mut world, "agent", pod("").cpu(1000));
        add_daemon(&mut world, "stray", pod("").cpu(500).select("team", "x"));
        let node = world.node("default", "z1");
        world.bind(pod("stray-x").cpu(500).owner("DaemonSet", "stray"), &node);
        check_fits(&world, 2400, true)?;
        check_fits(&world, 2401, false)
    }),
    // A daemon that selects the label of initialized nodes is expected on a node without it.
    ("scheduling:2364", || {
        let label = "karpenter.sh/initialized";
        for phase in [ClaimPhase::Launched, ClaimPhase::Registered, ClaimPhase::Initialized] {
            let mut world = World::new();
            add_daemon(&mut world, "agent", pod("").cpu(1000).select(label, "true"));
            let first = pod("p").cpu(1000).select("type", "default");
            world.add([first]).settle_as(phase).all_placed()?;
            let why = |text: String| format!("{phase:?}: {text}");
            check_fits(&world, 1900, true).map_err(why)?;
            check_fits(&world, 1901, false).map_err(why)?;
        }
        Ok(())
    }),
    ("scheduling:2729", || {
        let mut world = World::new();
        world.unmanaged_node("other", &[], 4);
        add_daemon(&mut world, "agent", pod("").cpu(1000).select("zone", "z1"));
        check_fits(&world, 4000, true)
    }),
];

#[test]
fn daemons_are_counted_once_on_existing_nodes() {
    run_cases(DAEMONS);
}

const RUNNING: &[Case] = &[
    ("scheduling:2607", || {
        let mut world = World::new();
        world.unmanaged_node("other", &[], 10);
        world.add([pod("p").cpu(10)]).plan().on("p", "other")
    }),
    ("scheduling:2633", || {
        let mut world = World::new();
        world.unmanaged_node("other", &[], 100);
        let plan = world.add(pods(100, &pod("p").cpu(10))).plan();
        plan.makes(0)?;
        plan.places(100)
    }),
    ("scheduling:2662", initialized_first),
    ("scheduling:2553", initialized_first),
    ("scheduling:2695", || {
        let mut world = World::new();
        world.unmanaged_node("other", &[("zone", "z1"), ("arch", "amd64")], 10);
        let plan = world.add([pod("p").cpu(10).select("arch", "arm64")]).plan();
        plan.has("p", "type", "arm")
    }),
    // The kubelet sets resources to zero until the device plugin reports them.
    ("scheduling:2818", || {
        let mut world = World::new();
        let like = pod("p").asks("fake.com/a", 1);
        world.add([like]).settle_as(ClaimPhase::Registered).all_placed()?;
        world.change("n0", |node| {
            node.allocatable.extended.insert("fake.com/a".to_owned(), 0);
            node.capacity.extended.insert("fake.com/a".to_owned(), 0);
        });
        world.add([pod("q").asks("fake.com/a", 1)]).plan().on("q", "n0")
    }),
    ("scheduling:2492", || {
        let sizes = [900, 300, 700, 100, 500, 200, 800, 400, 600, 1000];
        let shape = Shape { pods: 110, ..USUAL };
        let mut world = World::of_types([shape.sold()]);
        for (batch, size) in sizes.iter().enumerate() {
            let like = pod(&format!("p{batch}-")).cpu(*size);
            world.add(pods(10, &like)).settle_as(ClaimPhase::Registered).all_placed()?;
        }
        let snapshot = world.state.snapshot(world.now);
        let wide = snapshot.rooms.iter().filter(|room| room.free.cpu_milli >= 1000);
        let count = wide.count();
        ensure(count <= 1, || format!("{count} nodes with a free core"))
    }),
];

/// Checks that the initialized node is used, although many starting nodes are also suitable.
fn initialized_first() -> Check {
    let mut world = World::new();
    let like = pod("p").select("type", "single-pod");
    world.add(pods(50, &like)).settle_as(ClaimPhase::Registered).makes(50)?;
    for at in 0..50 {
        world.remove(&format!("p{at:02}"));
    }
    let node = world.node_of("default", "single-pod", "z1", CapacityType::OnDemand);
    world.add([pod("q")]).plan().on("q", &node)
}

#[test]
fn running_nodes_are_used_before_in_flight_and_new_ones() {
    run_cases(RUNNING);
}

const PLACES: &[Case] = &[
    ("scheduling:1959", || {
        let like = |name| pod(name).label("app=a").cpu(10).spread(spread("zone", 1, "app=a"));
        let mut world = World::new();
        world.add(pods(4, &like("p"))).settle_as(ClaimPhase::Registered).all_placed()?;
        let first = world.counts("zone", "app=a");
        ensure(first == [1, 1, 2], || format!("{first:?}"))?;
        world.add(pods(5, &like("q"))).settle_as(ClaimPhase::Registered).all_placed()?;
        let second = world.counts("zone", "app=a");
        ensure(second == [3, 3, 3], || format!("{second:?}"))
    }),
    // Karpenter treats a new node as an empty domain and launches more nodes. The scheduler binds
    // one more pod to each existing node.
    ("scheduling:1990", || {
        let like = |name| pod(name).label("app=a").cpu(10).spread(spread("host", 1, "app=a"));
        let mut world = World::new();
        world.add(pods(4, &like("p"))).settle_as(ClaimPhase::Registered).all_placed()?;
        let first = world.counts("host", "app=a");
        ensure(first == [1, 1, 1, 1], || format!("{first:?}"))?;
        world.add(pods(5, &like("q"))).settle_as(ClaimPhase::Registered).all_placed()?;
        let second = world.counts("host", "app=a");
        let even = second.last().zip(second.first()).is_some_and(|(most, least)| most - least <= 1);
        ensure(even && second.iter().sum::<usize>() == 9, || format!("{second:?}"))
    }),
    ("scheduling:2860", || {
        let like = |name| pod(name).label("app=a").cpu(10).near(term("zone", "app=a"));
        let mut world = World::new();
        world.add([like("p")]).settle_as(ClaimPhase::Launched).all_placed()?;
        let plan = world.add([like("q").cpu(1900)]).plan();
        let there = world.state.ledger.claims.values().next();
        let zone = there.and_then(|claim| claim.instance.as_ref());
        let zone = zone.map(|instance| instance.offering.zone.to_string()).unwrap_or_default();
        plan.has("q", "zone", &zone)
    }),
];

#[test]
fn pods_on_in_flight_nodes_count_in_topology_constraints() {
    run_cases(PLACES);
}

/// A host port as protocol, address and number.
type Port = (&'static str, &'static str, u16);

/// Checks whether a pod with the second port fits on the node of a pod with the first port.
fn check_shared_node(bound: Port, wanted: Port, expect: bool) -> Check {
    let binds = |name: &str, (protocol, address, port): Port| {
        let port = (protocol.to_owned(), address.to_owned(), port);
        pod(name).cpu(10).with(|pod| {
            pod.host_ports.insert(port);
        })
    };
    let mut world = World::new();
    let node = world.node("default", "z1");
    world.bind(binds("p", bound), &node);
    let plan = world.add([binds("q", wanted)]).plan();
    let shared = plan.solution.claims.is_empty();
    ensure(shared == expect, || format!("{bound:?} and {wanted:?} on one node: {shared}"))
}

const PORT: Port = ("TCP", "10.0.0.1", 4443);

const PORTS: &[Case] = &[
    ("ports:41", || check_shared_node(PORT, PORT, false)),
    ("ports:54", || {
        for everywhere in ["", "0.0.0.0", "::"] {
            check_shared_node(PORT, ("TCP", everywhere, 4443), false)?;
            check_shared_node(("TCP", everywhere, 4443), PORT, false)?;
        }
        check_shared_node(PORT, ("TCP", "10.0.0.2", 4443), true)
    }),
    ("ports:74", || check_shared_node(PORT, ("UDP", "10.0.0.1", 4443), true)),
    ("ports:88", || check_shared_node(PORT, ("TCP", "10.0.0.1", 443), true)),
];

#[test]
fn host_port_is_used_once_per_protocol_and_address() {
    run_cases(PORTS);
}
