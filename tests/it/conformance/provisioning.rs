//! Provisioning of nodes for pods: node selection, pool limits and daemon overhead.

use outrigger::model::id::ObjectKey;
use outrigger::model::labels::NODE_NAME;
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::taint::Effect;
use outrigger::model::watched_object::WatchedObject;
use outrigger::scheduling::RejectionCode;

use super::fixture::{Check, World, ensure};
use super::notation::{With, pod, pods, taint, tolerates};
use super::run::{Case, run_cases};

/// Labels of the usual pool and types that a pod can select, and labels that no node has.
const SELECTED: [(&str, &str); 5] =
    [("pool", "default"), ("zone", "z1"), ("type", "default"), ("arch", "arm64"), ("os", "linux")];
const UNKNOWN: [(&str, &str); 7] = [
    ("pool", "unknown"),
    ("zone", "unknown"),
    ("type", "unknown"),
    ("arch", "unknown"),
    ("os", "unknown"),
    ("bought", "unknown"),
    ("team", "x"),
];

fn check_selections(ask: fn(Pod, &str, &str) -> Pod) -> Check {
    for (key, value) in SELECTED {
        let mut world = World::new();
        let plan = world.add([ask(pod("p"), key, value)]).plan();
        plan.has("p", key, value)?;
    }
    for (key, value) in UNKNOWN {
        let mut world = World::new();
        let plan = world.add([ask(pod("p"), key, value)]).plan();
        plan.placed(&[], &["p"])?;
    }
    Ok(())
}

const NODES: &[Case] = &[
    ("provisioning:225", || {
        let plan = World::new().add([pod("p")]).plan();
        plan.makes(1)?;
        plan.has("p", "pool", "default")
    }),
    ("provisioning:236", || {
        let plan = World::new().add(pods(3, &pod("p"))).plan();
        plan.all_placed()?;
        plan.places(3)
    }),
    ("provisioning:294", || {
        let mut world = World::new();
        world.cluster().pools.clear();
        let plan = world.add([pod("p")]).plan();
        plan.refused("p", RejectionCode::NoPool, "no pool")
    }),
    ("provisioning:336", || check_selections(Pod::select)),
    ("provisioning:376", || {
        check_selections(|pod, key, value| pod.need(&[&format!("{key} in {value}")]))
    }),
    ("provisioning:416", || {
        let asking = [pod("a").asks("fake.com/a", 1), pod("b").asks("fake.com/b", 1)];
        let plan = World::new().add(asking).plan();
        plan.apart(&["a", "b"])?;
        plan.has("a", "type", "gpu-a")?;
        plan.has("b", "type", "gpu-b")
    }),
    ("provisioning:431", || {
        let like = pod("p").select("type", "single-pod");
        let plan = World::new().add(pods(3, &like)).plan();
        plan.apart(&["p00", "p01", "p02"])?;
        plan.makes(3)
    }),
    // Dynamic resource allocation is not supported, so pods with resource claims are not placed.
    ("scheduling:5329", || {
        let mut world = World::new();
        let claiming = pod("p").with(|pod| pod.has_resource_claims = true);
        world.add([claiming, pod("q")]).plan().placed(&["q"], &["p"])
    }),
    ("provisioning:1135", || {
        let mut world = World::new();
        add_daemon(&mut world, "agent", pod("agent"));
        let plan = world.add([pod("p")]).plan();
        plan.makes(1)?;
        ensure(plan.claim_of("p")?.requests.pods == 2, || "the daemon counts as a pod".to_owned())
    }),
];

#[test]
fn pods_get_nodes_that_match_their_node_selector() {
    run_cases(NODES);
}

/// A world with a limit on the capacity of its pool.
fn limited(name: &str, most: i64) -> World {
    let mut world = World::new();
    world.pool().limits.capacity = vec![(name.to_owned(), most)];
    world
}

const LIMITS: &[Case] = &[
    ("provisioning:742", || {
        let mut world = limited("cpu", 10_000);
        let node = world.node("arm", "z1");
        world.bind(pod("filler").cpu(15_500), &node);
        let plan = world.add([pod("p").cpu(1000)]).plan();
        plan.refused("p", RejectionCode::Limit, "cpu limit 10")
    }),
    ("provisioning:765", || {
        let plan = limited("cpu", 2000).add([pod("p").cpu(1750)]).plan();
        plan.has("p", "type", "small")
    }),
    ("provisioning:782", || {
        let mut world = limited("cpu", 3000);
        let plan = world.add(pods(2, &pod("p").cpu(1750))).plan();
        plan.places(1)
    }),
    ("provisioning:832", || {
        let plan = limited("cpu", 2000).add([pod("p").cpu(2100)]).plan();
        plan.refused("p", RejectionCode::Limit, "cpu limit 2")
    }),
    ("provisioning:847", || {
        let mut world = limited("fake.com/a", 1);
        let plan = world.add([pod("p").asks("fake.com/a", 1)]).plan();
        plan.refused("p", RejectionCode::Limit, "fake.com/a limit 1")
    }),
    ("provisioning:863", || {
        let mut world = limited("cpu", 2000);
        world.add([pod("p").cpu(1750)]).settle().all_placed()?;
        let plan = world.add([pod("q").cpu(1750)]).plan();
        plan.refused("q", RejectionCode::Limit, "cpu limit 2")
    }),
    ("provisioning:891", || {
        let alone = |name| pod(name).select("type", "single-pod");
        let mut world = World::new();
        world.pool().limits.nodes = Some(2);
        world.add([alone("p")]).settle().all_placed()?;
        world.add([alone("q")]).settle().all_placed()?;
        let plan = world.add([alone("r")]).plan();
        plan.refused("r", RejectionCode::Limit, "nodes limit 2")?;
        // The limit also holds within one batch. Karpenter counts nodes only before a batch.
        let mut world = World::new();
        world.pool().limits.nodes = Some(2);
        let plan = world.add(pods(3, &alone("p"))).plan();
        plan.makes(2)?;
        plan.places(2)
    }),
];

#[test]
fn new_nodes_stay_within_the_pool_limits() {
    run_cases(LIMITS);
}

fn add_daemon(world: &mut World, name: &str, template: Pod) {
    let set = DaemonSet { key: ObjectKey::new("default", name), template };
    world.apply(WatchedObject::DaemonSet(Box::new(set)));
}

/// A running pod of a daemon.
fn running(name: &str) -> Pod {
    pod(&format!("{name}-x")).owner("DaemonSet", name)
}

/// Checks whether a daemon with 1.5 cores counts on the node of a pod with one core: if it does,
/// the small type is not sufficient.
fn check_daemon_counts(world: &mut World, template: Pod, expect: bool) -> Check {
    add_daemon(world, "agent", template.cpu(1500));
    let pod = pod("p").cpu(1000).tolerate(tolerates("team"));
    let plan = world.add([pod]).plan();
    let got = plan.first_type("p")?;
    let requests = plan.claim_of("p")?.requests.cpu_milli;
    let wanted = if expect { ("default", 2500) } else { ("small", 1000) };
    ensure((got, requests) == wanted, || format!("{got} with {requests}m, not {wanted:?}"))
}

const DAEMONS: &[Case] = &[
    ("provisioning:935", || check_daemon_counts(&mut World::new(), pod(""), true)),
    ("provisioning:956", || {
        let mut world = World::new();
        add_daemon(&mut world, "agent", pod("").port(8080));
        let plan = world.add([pod("p").port(8080), pod("q").port(8081)]).plan();
        plan.refused("p", RejectionCode::Resources, "host ports")?;
        plan.placed(&["q"], &[])
    }),
    ("provisioning:974", || {
        let mut world = World::new();
        world.pool().startup_taints = vec![taint("start", "", Effect::NoSchedule)];
        check_daemon_counts(&mut world, pod(""), true)
    }),
    ("provisioning:1004", || {
        let mut world = World::new();
        add_daemon(&mut world, "agent", pod("").cpu(10_000_000).gib(10_000));
        let plan = world.add([pod("p")]).plan();
        plan.placed(&[], &["p"])
    }),
    ("provisioning:1014", || {
        let mut world = World::new();
        add_daemon(&mut world, "agent", pod("").cpu(100));
        let node = world.node("default", "z1");
        world.bind(running("agent").cpu(1500), &node);
        world.bind(pod("filler").cpu(2000), &node);
        let plan = world.add([pod("p").cpu(1000)]).plan();
        ensure(plan.first_type("p")? == "default", || {
            "the requests of the newest daemon pod count".to_owned()
        })
    }),
    ("provisioning:1143", || {
        let mut world = World::new();
        world.pool().taints = vec![taint("team", "x", Effect::NoSchedule)];
        check_daemon_counts(&mut world, pod(""), false)
    }),
    ("provisioning:1175", || {
        check_daemon_counts(&mut World::new(), pod("").select("node", "invalid"), false)
    }),
    ("provisioning:1197", || {
        check_daemon_counts(&mut World::new(), pod("").need(&["zone in unknown"]), false)
    }),
    ("provisioning:1219", || {
        let mut world = World::new();
        world.pool().labels.insert("team".to_owned(), "x".to_owned());
        check_daemon_counts(&mut world, pod("").select("team", "x"), true)
    }),
    ("provisioning:1246", || {
        let template = pod("").need(&["type in default"]);
        check_daemon_counts(&mut World::new(), template.clone(), false)?;
        let mut world = World::new();
        add_daemon(&mut world, "agent", template.cpu(1500));
        let plan = world.add([pod("p").select("type", "default")]).plan();
        ensure(plan.claim_of("p")?.requests.cpu_milli == 1500, || {
            "the daemon counts on types that it selects".to_owned()
        })
    }),
    ("provisioning:1276", || {
        check_daemon_counts(&mut World::new(), pod("").need(&["team not x"]), true)
    }),
    ("provisioning:1299", || {
        let mut world = World::new();
        let node = world.node("single-pod", "z1");
        let by_name = Requirements::from_iter([(NODE_NAME, Requirement::is_in([node.as_str()]))]);
        let pinned = running("agent").cpu(1500).with(|pod| pod.node_affinity = vec![by_name]);
        world.bind(pinned, &node);
        check_daemon_counts(&mut world, pod(""), true)
    }),
    ("provisioning:1371", || {
        let template = pod("").need(&["zone in unknown"]).need(&["arch in amd64"]);
        check_daemon_counts(&mut World::new(), template, true)
    }),
    ("provisioning:1431", || {
        check_daemon_counts(&mut World::new(), pod("").prefer(1, &["zone in unknown"]), true)
    }),
    ("provisioning:1459", || {
        let mut world = World::new();
        world.pool().taints = vec![taint("other", "x", Effect::PreferNoSchedule)];
        check_daemon_counts(&mut world, pod(""), true)
    }),
    ("provisioning:1496", || {
        let mut world = World::new();
        let template = pod("").port(8080).select("zone", "unknown");
        add_daemon(&mut world, "agent", template);
        world.add([pod("p").port(8080)]).plan().all_placed()
    }),
];

#[test]
fn daemon_overhead_counts_only_where_the_daemon_will_run() {
    run_cases(DAEMONS);
}

/// A world in which claims keep every offering, at any price.
fn keeping_all_offerings() -> World {
    let mut world = World::new();
    world.cluster().scheduling.alternative_price_percent = 1_000_000;
    world
}

fn types_are(plan: &super::fixture::Plan, expect: &[&str]) -> Check {
    let types = plan.types("p")?;
    ensure(types == expect, || format!("{types:?}, not {expect:?}"))
}

const CLAIMS: &[Case] = &[
    ("provisioning:1695", || {
        let plan = keeping_all_offerings().add([pod("p")]).plan();
        let all = ["arm", "default", "gpu-a", "gpu-b", "single-pod", "small", "windows"];
        types_are(&plan, &all)?;
        plan.has("p", "pool", "default")
    }),
    ("provisioning:1716", || {
        let mut world = World::requiring(&["team in x", "rank > 4", "odd exists", "none absent"]);
        let plan = world.add([pod("p")]).plan();
        plan.has("p", "team", "x")?;
        plan.has("p", "rank", "5")?;
        plan.has("p", "none", "")?;
        let odd = plan.label("p", "odd")?;
        ensure(!odd.is_empty(), || "a label that must exist needs a value".to_owned())
    }),
    ("provisioning:1766", || {
        let mut world = keeping_all_offerings();
        let (key, requirement) = super::notation::read("arch in arm64");
        world.pool().requirements.add(key, requirement);
        types_are(&world.add([pod("p")]).plan(), &["arm"])
    }),
    ("provisioning:1803", || {
        let mut world = keeping_all_offerings();
        let (key, requirement) = super::notation::read("os in windows");
        world.pool().requirements.add(key, requirement);
        types_are(&world.add([pod("p")]).plan(), &["windows"])
    }),
    ("provisioning:1840", || {
        let large = pod("p").cpu(3000).asks("fake.com/a", 1);
        types_are(&keeping_all_offerings().add([large]).plan(), &["gpu-a"])?;
        types_are(&keeping_all_offerings().add([pod("p").cpu(5000)]).plan(), &["arm"])
    }),
    ("provisioning:1913", || {
        let plan = World::new().add([pod("p").cpu(1000).gib(1)]).plan();
        let requests = plan.claim_of("p")?.requests.to_string();
        ensure(requests == "cpu 1, memory 1.0Gi, pods 1", || requests.clone())
    }),
    ("provisioning:1939", || {
        let mut world = World::new();
        add_daemon(&mut world, "agent", pod("").cpu(1000).gib(1));
        let plan = world.add([pod("p").cpu(1000).gib(1)]).plan();
        let requests = plan.claim_of("p")?.requests.to_string();
        ensure(requests == "cpu 2, memory 2.0Gi, pods 2", || requests.clone())
    }),
    ("provisioning:1959", || {
        let mut world = World::new();
        add_daemon(&mut world, "agent", pod("").cpu(1000).gib(1));
        let plan = world.add(pods(2, &pod("p").cpu(500).gib(1))).plan();
        plan.together(&["p00", "p01"])?;
        let requests = plan.claim_of("p00")?.requests.to_string();
        ensure(requests == "cpu 2, memory 3.0Gi, pods 3", || requests.clone())
    }),
    // A requirement on a label that the provider sets does not become a label of the claim.
    ("provisioning:1623", || {
        let mut world = World::requiring(&["zone in z1 z2", "type in default", "arch in amd64"]);
        let plan = world.add([pod("p")]).plan();
        let labels = &plan.claim_of("p")?.labels;
        ensure(labels.is_empty(), || format!("{labels:?}"))
    }),
];

#[test]
fn claims_list_launchable_types_labels_and_requests() {
    run_cases(CLAIMS);
}

/// Pods, and whether they may run on a node with the taint `team=x:NoSchedule`.
const TOLERATED: &[Case] = &[("provisioning:1645", || {
    let tainted = || {
        let mut world = World::new();
        world.pool().taints = vec![taint("team", "x", Effect::NoSchedule)];
        world
    };
    let with = |operator, value: &str, effect| {
        pod("p").tolerate(outrigger::model::taint::Toleration {
            operator,
            value: value.to_owned(),
            effect,
            ..tolerates("team")
        })
    };
    use outrigger::model::taint::TolerationOperator::{Equal, Exists};
    let table = [
        (with(Exists, "", None), true),
        (with(Exists, "", Some(Effect::NoSchedule)), true),
        (with(Equal, "x", Some(Effect::NoSchedule)), true),
        (with(Equal, "x", None), true),
        (pod("p").tolerate(tolerates("")), true),
        (with(Equal, "y", None), false),
        (with(Exists, "", Some(Effect::NoExecute)), false),
        (pod("p").tolerate(tolerates("other")), false),
        (pod("p"), false),
    ];
    for (pod, expect) in table {
        let plan = tainted().add([pod.clone()]).plan();
        let placed = plan.solution.unplaced.is_empty();
        ensure(placed == expect, || format!("{:?}: {placed}", pod.tolerations))?;
    }
    Ok(())
})];

#[test]
fn pods_use_only_pools_whose_taints_they_tolerate() {
    run_cases(TOLERATED);
}
