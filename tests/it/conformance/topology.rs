//! Topology spread over zones, hosts, capacity types and pool labels.

use std::collections::BTreeSet;

use outrigger::model::affinity::TopologySpread;
use outrigger::model::instance::CapacityType;
use outrigger::model::pod::{Pod, PodPhase};
use outrigger::model::taint::Effect;

use super::fixture::{Check, World, ensure};
use super::notation::{With, pod, pods, read, soft, spread, taint, tolerates};
use super::run::{Case, run_cases};

/// A pod with the label `app=a`, which is counted, spread over the values of a label.
fn spread_pod(name: &str, key: &str) -> Pod {
    pod(name).label("app=a").spread(spread(key, 1, "app=a"))
}

/// A spread pod that is too large to share a node of the usual types with another one.
fn large(name: &str, key: &str) -> Pod {
    spread_pod(name, key).cpu(2100).select("arch", "amd64")
}

/// Checks the numbers of counted pods in each domain with a node, in ascending order.
pub(super) fn check_counts(world: &World, key: &str, expect: &[usize]) -> Check {
    let counts = world.counts(key, "app=a");
    ensure(counts == expect, || format!("{counts:?} by {key}, not {expect:?}"))
}

/// Checks that the numbers of counted pods differ by at most this.
fn check_skew(world: &World, key: &str, most: usize) -> Check {
    let counts = world.counts(key, "app=a");
    let skew = counts.last().zip(counts.first()).map_or(0, |(last, first)| last - first);
    ensure(skew <= most, || format!("{counts:?} by {key}, expected skew {most}"))
}

/// A world whose pool has these requirements, with this number of copies of a pod, which are bound.
fn bound_world(requirements: &[&str], count: usize, like: &Pod) -> World {
    let mut world = World::requiring(requirements);
    drop(world.add(pods(count, like)).settle());
    world
}

/// Replaces the requirements of the pool.
pub(super) fn require(world: &mut World, requirements: &[&str]) {
    let all = requirements.iter().map(|text| read(text)).collect();
    world.pool().requirements = all;
}

/// Adds and binds more pods, and checks how many of them are placed.
pub(super) fn settle(world: &mut World, count: usize, like: &Pod, placed: usize) -> Check {
    world.add(pods(count, like)).settle().places(placed)
}

const KEYS: &[Case] = &[
    ("topology:61", || {
        let mut world = World::new();
        let asking = [spread_pod("p", "unknown"), pod("q")];
        world.add(asking).plan().placed(&["q"], &["p"])
    }),
    ("topology:79", check_no_selector),
    ("topology:95", check_no_selector),
    ("topology:448", || check_empty_selector("zone")),
    ("topology:783", || check_empty_selector("bought")),
];

/// Checks that a constraint without a selector separates no pods. An invalid one is read as such.
fn check_no_selector() -> Check {
    let nothing = TopologySpread { selector: None, ..spread("zone", 1, "") };
    let plan = World::new().add(pods(2, &pod("p").label("app=a").spread(nothing))).plan();
    plan.together(&["p00", "p01"])
}

fn check_empty_selector(key: &str) -> Check {
    let mut world = World::new();
    let pod = pod("p").label("app=a").spread(spread(key, 1, ""));
    world.add([pod]).settle().all_placed()?;
    check_counts(&world, key, &[1])
}

#[test]
fn spread_constraint_counts_only_selected_pods() {
    run_cases(KEYS);
}

const ZONES: &[Case] = &[
    ("topology:111", || {
        check_counts(&bound_world(&[], 4, &spread_pod("p", "zone")), "zone", &[1, 1, 2])
    }),
    // A node with an undecided zone could be launched in the wrong one.
    ("topology:111", || {
        let plan = World::new().add(pods(3, &spread_pod("p", "zone"))).plan();
        let all = ["p00", "p01", "p02"].iter();
        let zones: Vec<String> = all.filter_map(|pod| plan.label(pod, "zone").ok()).collect();
        let unique: BTreeSet<&str> = zones.iter().map(String::as_str).collect();
        ensure(unique == BTreeSet::from(["z1", "z2", "z3"]), || format!("{zones:?}"))
    }),
    ("topology:124", || {
        let pod = pod("p").label("app=a").spread(spread("zone", 1, "app in a b"));
        check_counts(&bound_world(&[], 4, &pod), "zone", &[1, 1, 2])
    }),
    ("topology:145", || {
        let world = bound_world(&["zone in z1 z2 z3"], 4, &spread_pod("p", "zone"));
        check_counts(&world, "zone", &[1, 1, 2])
    }),
    ("topology:160", || {
        let world = bound_world(&["zone in z1 z2"], 4, &spread_pod("p", "zone"));
        check_counts(&world, "zone", &[2, 2])
    }),
    ("topology:176", || check_only_zone(&[])),
    ("topology:191", || check_only_zone(&["zone in z1 z2"])),
    ("topology:207", || {
        let mut world = World::requiring(&["zone in z1"]);
        let (key, requirement) = read("zone in z2");
        world.add_pool("other", 0).requirements.add(key, requirement);
        settle(&mut world, 4, &spread_pod("p", "zone"), 4)?;
        check_counts(&world, "zone", &[2, 2])
    }),
    ("topology:235", || {
        let mut world = bound_world(&["zone in z3"], 1, &large("p", "zone"));
        require(&mut world, &["zone in z1 z2"]);
        settle(&mut world, 6, &large("q", "zone"), 4)?;
        check_counts(&world, "zone", &[1, 2, 2])
    }),
    ("topology:269", || {
        let mut world = bound_world(&["zone in z1"], 1, &large("p", "zone"));
        require(&mut world, &["zone in z2"]);
        settle(&mut world, 1, &large("q", "zone"), 1)?;
        require(&mut world, &["zone in z3"]);
        let wide = large("r", "zone").with(|pod| pod.spread[0].max_skew = 5);
        settle(&mut world, 10, &wide, 6)?;
        check_counts(&world, "zone", &[1, 1, 6])
    }),
    ("topology:311", || {
        let mut world = World::new();
        for at in 0..3 {
            let node = world.node("single-pod", "z1");
            world.bind(pod(&format!("r{at}")).label("app=a"), &node);
        }
        settle(&mut world, 3, &large("p", "zone"), 3)?;
        check_counts(&world, "zone", &[1, 2, 3])
    }),
    ("topology:350", check_closed_zone),
    ("topology:383", check_closed_zone),
    // Nodes that the labels of the pods exclude do not count, nor do the pods on them. Karpenter
    // ignores the values of the selector instead.
    ("topology:415", || {
        let mut world = scattered_pods("zone");
        settle(&mut world, 2, &large("p", "zone").label("run=new"), 2)?;
        let counts = world.counts("zone", "run=new");
        ensure(counts == [1, 1], || format!("{counts:?}"))?;
        Ok(())
    }),
    ("topology:460", || check_uncounted_pods("zone")),
    ("topology:485", || {
        let mut pod = spread_pod("p", "zone");
        pod.spread[0].min_domains = 3;
        let mut world = World::requiring(&["zone in z1 z2"]);
        settle(&mut world, 3, &pod, 2)?;
        check_counts(&world, "zone", &[1, 1])
    }),
    ("topology:505", || check_min_domains(3)),
    ("topology:525", || check_min_domains(2)),
];

/// Checks that all pods are placed in the only zone of the pool.
fn check_only_zone(requirements: &[&str]) -> Check {
    let mut world = World::requiring(requirements);
    let zone = "topology.kubernetes.io/zone".to_owned();
    world.pool().labels.insert(zone, "z1".to_owned());
    settle(&mut world, 4, &spread_pod("p", "zone"), 4)?;
    check_counts(&world, "zone", &[4])
}

/// Checks that zones may have one pod more than a zone in which no more nodes can be launched.
fn check_closed_zone() -> Check {
    let mut world = bound_world(&["zone in z1"], 1, &large("p", "zone"));
    require(&mut world, &["zone in z2 z3"]);
    settle(&mut world, 10, &large("q", "zone"), 4)?;
    check_counts(&world, "zone", &[1, 2, 2])
}

/// A world with two counted pods in one domain, one in another, and many that do not count.
fn scattered_pods(key: &str) -> World {
    let mut world = World::new();
    // The nodes differ both in zone and in capacity type.
    let first = world.node_of("default", "arm", "z1", CapacityType::OnDemand);
    let second = world.node_of("default", "arm", "z2", CapacityType::Spot);
    world.unmanaged_node("nowhere", &[], 1);
    let counted_pod = |name: &str| pod(name).label("app=a");
    world.bind(counted_pod("one"), &first);
    world.bind(counted_pod("two"), &first);
    world.bind(counted_pod("three"), &second);
    world.bind(counted_pod("four"), "nowhere");
    world.bind(pod("unlike").label("app=b"), &first);
    world.bind(counted_pod("elsewhere").namespace("other"), &first);
    let ended = |phase, name: &str| counted_pod(name).with(|pod| pod.phase = phase);
    for (phase, name) in [(PodPhase::Failed, "failed"), (PodPhase::Succeeded, "done")] {
        let mut pod = ended(phase, name);
        pod.node = Some(first.as_str().into());
        world.apply(outrigger::model::watched_object::WatchedObject::Pod(Box::new(pod)));
    }
    let terminating =
        counted_pod("leaving").with(|pod| pod.deleting = Some(jiff::Timestamp::UNIX_EPOCH));
    world.bind(terminating, &first);
    // A pod that the scheduler has not tried yet.
    let idle = outrigger::model::watched_object::WatchedObject::Pod(Box::new(counted_pod("idle")));
    world.apply(idle);
    assert!(!world.counts(key, "app=a").is_empty());
    world
}

/// Checks that pods that their own constraint does not count may share a node.
fn check_uncounted_pods(key: &str) -> Check {
    let like = pod("p").label("app=a").spread(spread(key, 1, "app=b"));
    let plan = World::new().add(pods(5, &like)).plan();
    plan.together(&["p00", "p01", "p02", "p03", "p04"])
}

fn check_min_domains(least: u32) -> Check {
    let mut pod = spread_pod("p", "zone");
    pod.spread[0].min_domains = least;
    check_counts(&bound_world(&[], 11, &pod), "zone", &[3, 4, 4])
}

#[test]
fn pods_are_spread_over_zones() {
    run_cases(ZONES);
}

const HOSTS: &[Case] = &[
    // The scheduler would bind all four pods to one node as long as it is the only one. With a
    // second node, three of them could not be bound.
    ("topology:548", || {
        check_counts(&bound_world(&[], 4, &spread_pod("p", "host")), "host", &[1, 1, 1, 1])
    }),
    ("topology:561", || {
        let pod = pod("p").label("app=a").spread(spread("host", 4, "app=a"));
        check_counts(&bound_world(&[], 4, &pod), "host", &[4])
    }),
    ("topology:574", || {
        let of = |app: &str| {
            let label = format!("app={app}");
            pod(app).label(&label).spread(spread("host", 1, &label))
        };
        let plan = World::new().add(pods(2, &of("a"))).add(pods(2, &of("b"))).plan();
        plan.apart(&["a00", "a01"])?;
        plan.apart(&["b00", "b01"])?;
        plan.makes(2)
    }),
    ("topology:610", || {
        let of = |app: &str, arch| {
            let label = format!("app={app}");
            let pod = pod(app).label(&label).spread(spread("host", 1, &label));
            pod.select("arch", arch)
        };
        let mut world = World::new();
        world.add(pods(2, &of("a", "amd64"))).add(pods(2, &of("b", "arm64")));
        let plan = world.plan();
        plan.apart(&["a00", "a01", "b00", "b01"])?;
        plan.makes(4)
    }),
];

#[test]
fn pods_are_spread_over_hosts() {
    run_cases(HOSTS);
}

const CAPACITY_TYPES: &[Case] = &[
    ("topology:656", || {
        check_counts(&bound_world(&[], 4, &spread_pod("p", "bought")), "bought", &[2, 2])
    }),
    ("topology:669", || {
        let world = bound_world(&["bought in spot on-demand"], 4, &spread_pod("p", "bought"));
        check_counts(&world, "bought", &[2, 2])
    }),
    ("topology:684", || check_one_spot_pod(large("q", "bought"), 2, &[1, 2])),
    ("topology:719", || {
        let soft_pod = large("q", "bought").with(|pod| pod.spread[0].is_hard = false);
        check_one_spot_pod(soft_pod, 5, &[1, 5])
    }),
    ("topology:750", || {
        let mut world = scattered_pods("bought");
        settle(&mut world, 2, &large("p", "bought"), 2)?;
        check_counts(&world, "bought", &[2, 3])
    }),
    ("topology:795", || check_uncounted_pods("bought")),
    // Nodes that the affinity of the pod excludes are not counted as domains.
    ("topology:818", || {
        check_one_spot_pod(large("q", "bought").need(&["bought in on-demand"]), 5, &[1, 5])
    }),
    ("topology:855", || check_one_spot_pod(large("q", "bought"), 2, &[1, 2])),
    ("topology:898", || {
        let mut world = bound_world(&["arch in amd64"], 1, &spread_pod("p", "arch").cpu(1500));
        require(&mut world, &["arch in arm64"]);
        settle(&mut world, 5, &spread_pod("q", "arch").cpu(9000), 2)?;
        check_counts(&world, "arch", &[1, 2])
    }),
];

/// One pod on a spot node, then five pods with on-demand nodes only.
fn check_one_spot_pod(like: Pod, placed: usize, expect: &[usize]) -> Check {
    let mut world = bound_world(&["bought in spot"], 1, &large("p", "bought"));
    require(&mut world, &["bought in on-demand"]);
    settle(&mut world, 5, &like, placed)?;
    check_counts(&world, "bought", expect)
}

#[test]
fn pods_are_spread_over_capacity_types_and_architectures() {
    run_cases(CAPACITY_TYPES);
}

const COMBINED: &[Case] = &[
    ("topology:944", || {
        let replica = |name: &str| spread_pod(name, "zone").spread(spread("host", 3, "app=a"));
        let steps: [(usize, &[usize]); 4] =
            [(2, &[1, 1]), (3, &[1, 2, 2]), (5, &[3, 3, 4]), (11, &[7, 7, 7])];
        let mut world = World::new();
        for (step, (count, zones)) in steps.iter().enumerate() {
            settle(&mut world, *count, &replica(&format!("p{step}-")), *count)?;
            check_counts(&world, "zone", zones)?;
            check_skew(&world, "host", 3)?;
        }
        Ok(())
    }),
    ("topology:984", || {
        let mut world = World::requiring(&["bought in spot", "share in 2 3 4 5"]);
        let other = world.add_pool("other", 0);
        for text in ["bought in on-demand", "share in 1"] {
            let (key, requirement) = read(text);
            other.requirements.add(key, requirement);
        }
        settle(&mut world, 20, &spread_pod("p", "share"), 20)?;
        check_counts(&world, "share", &[4, 4, 4, 4, 4])?;
        check_counts(&world, "bought", &[4, 16])
    }),
    ("topology:1052", check_zones_and_hosts),
    ("topology:1093", || {
        let mut world = World::requiring(&["zone in z1 z2"]);
        let pod = spread_pod("p", "host").spread(soft(spread("zone", 1, "app=a")));
        settle(&mut world, 10, &pod, 10)?;
        check_counts(&world, "zone", &[5, 5])?;
        check_counts(&world, "host", &[1; 10])
    }),
    ("topology:1665", || {
        let replica = |name: &str| spread_pod(name, "bought").spread(spread("zone", 1, "app=a"));
        let steps: [(usize, &[usize], &[usize]); 4] = [
            (2, &[1, 1], &[1, 1]),
            (3, &[2, 3], &[1, 2, 2]),
            (5, &[5, 5], &[3, 3, 4]),
            (11, &[10, 11], &[7, 7, 7]),
        ];
        let mut world = World::new();
        for (step, (count, bought, zones)) in steps.iter().enumerate() {
            settle(&mut world, *count, &replica(&format!("p{step}-")), *count)?;
            check_counts(&world, "bought", bought)?;
            check_counts(&world, "zone", zones)?;
        }
        Ok(())
    }),
    ("topology:1705", || {
        let replica = |name: &str| {
            let pod = spread_pod(name, "bought").spread(spread("zone", 2, "app=a"));
            pod.spread(spread("host", 3, "app=a"))
        };
        let mut world = World::new();
        for count in 1..9 {
            settle(&mut world, count, &replica(&format!("p{count}-")), count)?;
            check_skew(&world, "bought", 1)?;
            check_skew(&world, "zone", 2)?;
            check_skew(&world, "host", 3)?;
        }
        Ok(())
    }),
];

fn check_zones_and_hosts() -> Check {
    let pod = spread_pod("p", "zone").spread(spread("host", 1, "app=a"));
    let world = bound_world(&[], 6, &pod);
    check_counts(&world, "zone", &[2, 2, 2])?;
    check_counts(&world, "host", &[1; 6])
}

#[test]
fn several_spread_constraints_hold_simultaneously() {
    run_cases(COMBINED);
}

const NODE_AFFINITY: &[Case] = &[
    ("topology:1743", || {
        let mut world = World::new();
        world.add(pods(5, &spread_pod("p", "zone").select("zone", "z1")));
        world.add(pods(10, &spread_pod("q", "zone").select("zone", "z2")));
        world.settle().all_placed()?;
        check_counts(&world, "zone", &[5, 10])
    }),
    ("topology:1769", || {
        let pod = spread_pod("p", "zone").need(&["zone in z1 z2"]);
        check_counts(&bound_world(&[], 10, &pod), "zone", &[5, 5])
    }),
    ("topology:1791", || {
        let pod = spread_pod("p", "zone").need(&["zone in z1 z2"]);
        let mut world = bound_world(&[], 6, &pod);
        check_counts(&world, "zone", &[3, 3])?;
        let other = spread_pod("q", "zone").need(&["zone in z2 z3"]);
        settle(&mut world, 1, &other, 1)?;
        check_counts(&world, "zone", &[1, 3, 3])?;
        settle(&mut world, 5, &spread_pod("r", "zone"), 5)?;
        check_counts(&world, "zone", &[4, 4, 4])
    }),
    ("topology:1835", || {
        let pod = spread_pod("p", "zone").prefer(1, &["zone in z1 z2"]);
        check_counts(&bound_world(&[], 6, &pod), "zone", &[2, 2, 2])
    }),
    ("topology:1860", || {
        let mut world = World::new();
        world.add(pods(5, &spread_pod("p", "bought").select("bought", "on-demand")));
        world.add(pods(5, &spread_pod("q", "bought").select("bought", "spot")));
        world.settle().all_placed()?;
        check_counts(&world, "bought", &[5, 5])
    }),
    ("topology:1884", || {
        let spot_pod = large("p", "bought").need(&["bought in spot"]);
        let mut world = bound_world(&[], 3, &spot_pod);
        check_counts(&world, "bought", &[3])?;
        let open = large("q", "bought").need(&["bought in on-demand spot"]);
        settle(&mut world, 1, &open, 1)?;
        check_counts(&world, "bought", &[1, 3])?;
        settle(&mut world, 5, &large("r", "bought"), 5)?;
        check_counts(&world, "bought", &[4, 5])
    }),
];

#[test]
fn domains_excluded_by_node_affinity_are_not_counted() {
    run_cases(NODE_AFFINITY);
}

/// Unmanaged nodes with other racks than those of the pool. They accept no pods, because they are
/// tainted or do not have the labels that the pods select.
fn foreign_instances(tainted: bool) -> World {
    let mut world = World::requiring(&["rack in c"]);
    for rack in ["a", "b"] {
        world.unmanaged_node(&format!("rack-{rack}"), &[("rack", rack)], 100);
        if tainted {
            world.change(&format!("rack-{rack}"), |node| {
                node.taints = vec![taint("team", "x", Effect::NoSchedule)];
            });
        }
    }
    world.pool().labels.insert("own".to_owned(), "yes".to_owned());
    world
}

const POLICIES: &[Case] = &[
    ("topology:1199", || settle(&mut foreign_instances(true), 5, &spread_pod("p", "rack"), 1)),
    ("topology:1270", || {
        let pod = spread_pod("p", "rack").with(|pod| pod.spread[0].honors_taints = true);
        settle(&mut foreign_instances(true), 5, &pod, 5)
    }),
    // Karpenter counts the domains of a pool that the pods cannot use. The scheduler counts nodes,
    // and there are no nodes of this pool.
    ("topology:1339", || settle(&mut usable_and_tainted_pool(), 5, &spread_pod("p", "rack"), 5)),
    ("topology:1395", || {
        let pod = spread_pod("p", "rack").with(|pod| pod.spread[0].honors_taints = true);
        settle(&mut usable_and_tainted_pool(), 5, &pod, 5)
    }),
    ("topology:1451", || {
        let mut world = World::new();
        world.cluster().pools.clear();
        for (name, racks) in [("x", "rack in a b"), ("y", "rack in b c")] {
            let (key, requirement) = read(racks);
            let pool = world.add_pool(name, 0);
            pool.requirements.add(key, requirement);
            pool.taints = vec![taint(name, "", Effect::NoSchedule)];
        }
        for name in ["x", "y"] {
            let label = format!("app={name}");
            let mut pod = pod(name).label(&label).spread(spread("rack", 1, &label));
            pod.spread[0].honors_taints = true;
            settle(&mut world, 4, &pod.tolerate(tolerates(name)), 4)?;
            let counts = world.counts("rack", &label);
            let used: Vec<usize> = counts.into_iter().filter(|count| *count > 0).collect();
            ensure(used == [2, 2], || format!("{used:?}"))?;
        }
        Ok(())
    }),
    ("topology:1532", || {
        let mut pod = spread_pod("p", "rack").select("own", "yes");
        pod.spread[0].honors_affinity = false;
        settle(&mut foreign_instances(false), 5, &pod, 1)
    }),
    ("topology:1599", || {
        let pod = spread_pod("p", "rack").select("own", "yes");
        settle(&mut foreign_instances(false), 5, &pod, 5)
    }),
];

/// A world with a usable pool, and one whose taint the pods do not tolerate.
fn usable_and_tainted_pool() -> World {
    let mut world = World::requiring(&["rack in c"]);
    let other = world.add_pool("other", 0);
    let (key, requirement) = read("rack in a b");
    other.requirements.add(key, requirement);
    other.taints = vec![taint("team", "x", Effect::NoSchedule)];
    world
}

#[test]
fn node_inclusion_policies_decide_which_nodes_count() {
    run_cases(POLICIES);
}

const REVISIONS: &[Case] = &[("topology:1142", || {
    // The labels of `matchLabelKeys` are already part of the selector.
    let of = |hash: &str| {
        let pod = pod(hash).label("app=a").label(&format!("hash={hash}"));
        pod.spread(spread("host", 1, &format!("app=a, hash={hash}")))
    };
    let plan = World::new().add(pods(2, &of("x"))).add(pods(2, &of("y"))).plan();
    plan.apart(&["x00", "x01"])?;
    plan.apart(&["y00", "y01"])?;
    plan.makes(2)
})];

#[test]
fn match_label_keys_spread_each_revision_separately() {
    run_cases(REVISIONS);
}
