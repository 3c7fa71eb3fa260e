//! Default topology spread of pods without constraints, and the pods that it counts.

use outrigger::model::affinity::TopologySpread;
use outrigger::model::id::ObjectKey;
use outrigger::model::pod::Pod;
use outrigger::model::watched_object::{ObjectKind, WatchedObject, WorkloadSelector};

use super::fixture::{Check, World, ensure};
use super::notation::{With, pod, pods, selecting, soft, spread};
use super::run::{Case, run_cases};
use super::topology::{check_counts, require, settle};

const DEFAULTS: &[Case] = &[
    ("topology:3009", || {
        let mut world = with_default_spread(spread("zone", 1, ""));
        settle(&mut world, 4, &replica("a"), 4)?;
        check_counts(&world, "zone", &[1, 1, 2])
    }),
    ("topology:3015", || {
        let mut world = with_default_spread(spread("host", 1, ""));
        settle(&mut world, 4, &replica("a"), 4)?;
        check_counts(&world, "host", &[1, 1, 1, 1])
    }),
    ("topology:3027", || {
        let mut world = with_default_spread(spread("zone", 1, ""));
        let pod = replica("a").spread(spread("host", 4, "app=a"));
        settle(&mut world, 4, &pod, 4)?;
        check_counts(&world, "host", &[4])
    }),
    ("topology:3051", || {
        let mut least = spread("zone", 1, "");
        least.min_domains = 3;
        let mut world = with_default_spread(least);
        require(&mut world, &["zone in z1 z2"]);
        settle(&mut world, 3, &replica("a"), 2)?;
        check_counts(&world, "zone", &[1, 1])
    }),
    ("topology:3086", || {
        let mut world = with_default_spread(spread("unknown", 1, ""));
        settle(&mut world, 1, &replica("a"), 0)
    }),
    ("topology:3103", || {
        let mut world = with_default_spread(soft(spread("unknown", 1, "")));
        settle(&mut world, 1, &replica("a"), 1)
    }),
    ("topology:3130", || {
        let mut world = World::new();
        settle(&mut world, 4, &replica("a"), 4)?;
        check_counts(&world, "host", &[4])
    }),
    ("topology:3137", || {
        let mut world = with_default_spread(spread("zone", 1, ""));
        settle(&mut world, 4, &pod("a").label("app=a"), 4)?;
        check_counts(&world, "host", &[4])
    }),
    ("topology:3146", || {
        let mut world = with_default_spread(spread("zone", 1, ""));
        for at in 0..2 {
            let node = world.node("single-pod", "z1");
            world.bind(replica(&format!("r{at}")), &node);
        }
        settle(&mut world, 4, &replica("a"), 4)?;
        check_counts(&world, "zone", &[2, 2, 2])
    }),
    ("topology:3188", || {
        let mut world = with_default_spread(spread("zone", 1, ""));
        let other = pod("b").label("app=b").owner("ReplicaSet", "b");
        select(&mut world, ObjectKind::ReplicaSet, "b", "app=b");
        world.add(pods(3, &replica("a"))).add(pods(3, &other)).settle().all_placed()?;
        for app in ["app=a", "app=b"] {
            let counts = world.counts("zone", app);
            ensure(counts == [1, 1, 1], || format!("{app}: {counts:?}"))?;
        }
        Ok(())
    }),
    ("topology:3213", || {
        let of = |hash: &str| {
            let label = format!("pod-template-hash={hash}");
            pod(hash).label("app=a").label(&label).owner("ReplicaSet", hash)
        };
        let mut world = with_default_spread(spread("zone", 1, ""));
        for hash in ["x", "y"] {
            let selector = format!("app=a, pod-template-hash={hash}");
            select(&mut world, ObjectKind::ReplicaSet, hash, &selector);
        }
        world.add(pods(3, &of("x"))).add(pods(3, &of("y"))).settle().all_placed()?;
        for hash in ["pod-template-hash=x", "pod-template-hash=y"] {
            let counts = world.counts("zone", hash);
            ensure(counts == [1, 1, 1], || format!("{hash}: {counts:?}"))?;
        }
        Ok(())
    }),
    ("topology:3244", || {
        let mut world = default_zone_spread();
        select(&mut world, ObjectKind::Service, "s", "app=a");
        let pod = pod("p").label("app=a").owner("Job", "a");
        settle(&mut world, 3, &pod, 3)?;
        check_counts(&world, "zone", &[1, 1, 1])
    }),
];

/// A pod of a ReplicaSet without spread constraints.
fn replica(name: &str) -> Pod {
    pod(name).label("app=a").owner("ReplicaSet", "a")
}

/// A world with this default constraint, and a ReplicaSet `a` that selects `app=a`.
fn with_default_spread(constraint: TopologySpread) -> World {
    let mut world = World::new();
    world.cluster().scheduling.default_spread =
        vec![TopologySpread { selector: None, ..constraint }];
    select(&mut world, ObjectKind::ReplicaSet, "a", "app=a");
    world
}

/// A world with a default spread over zones, and no object that selects pods.
fn default_zone_spread() -> World {
    let mut world = with_default_spread(spread("zone", 1, ""));
    let key = ObjectKey::new("default", "a");
    let objects = &mut world.state.objects;
    objects.delete(ObjectKind::ReplicaSet, &key, world.now);
    world
}

/// Adds an object that selects pods.
fn select(world: &mut World, kind: ObjectKind, name: &str, selector: &str) {
    world.apply(WatchedObject::Selecting(WorkloadSelector {
        kind,
        key: ObjectKey::new("default", name),
        selector: selecting(selector),
    }));
}

#[test]
fn default_spread_applies_to_pods_without_constraints() {
    run_cases(DEFAULTS);
}

/// Pods of one owner with the label `app=a` and one of these labels each.
fn of_one_owner(kind: &str, labels: [&str; 3]) -> Vec<Pod> {
    let one = |(at, label): (usize, &&str)| {
        pod(&format!("p{at}")).label("app=a").label(label).owner(kind, "a")
    };
    labels.iter().enumerate().map(one).collect()
}

/// Checks whether pods are spread over the zones, or share a node, if these objects select pods.
fn check_selected(objects: &[(ObjectKind, &str)], pods: Vec<Pod>, expect: bool) -> Check {
    let mut world = default_zone_spread();
    for (kind, selector) in objects {
        select(&mut world, *kind, "a", selector);
    }
    world.add(pods).settle().all_placed()?;
    if expect {
        check_counts(&world, "zone", &[1, 1, 1])
    } else {
        check_counts(&world, "host", &[3])
    }
}

/// Pods without an owner.
fn unowned_pods() -> Vec<Pod> {
    pods(3, &pod("p").label("app=a"))
}

/// Adds a node in this zone with two pods of this label, and capacity for three more.
fn add_occupied_node(world: &mut World, zone: &str, label: &str) {
    let node = world.node("default", zone);
    for pod in pods(2, &pod(&format!("{zone}-")).label(label)) {
        world.bind(pod, &node);
    }
}

/// Checks the numbers of pods with the label `own=…` in the zones.
fn check_zone_counts(world: &World, label: &str, expect: &[usize]) -> Check {
    let counts = world.counts("zone", label);
    ensure(counts == expect, || format!("{label}: {counts:?}"))
}

const OWNERS: &[Case] = &[
    // The pods of one owner are counted together, regardless of their other labels.
    ("defaults:80", || {
        let pods = of_one_owner("ReplicaSet", ["own=x", "own=y", "own=z"]);
        check_selected(&[(ObjectKind::ReplicaSet, "app=a")], pods, true)
    }),
    ("defaults:98", || {
        let key = "statefulset.kubernetes.io/pod-name";
        let labels = ["a-0", "a-1", "a-2"].map(|name| format!("{key}={name}"));
        let labels = labels.each_ref().map(String::as_str);
        let pods = of_one_owner("StatefulSet", labels);
        check_selected(&[(ObjectKind::StatefulSet, "app=a")], pods, true)
    }),
    ("defaults:119", || {
        let pods = of_one_owner("ReplicaSet", ["tier=x", "tier=y", "tier=x"]);
        check_selected(&[(ObjectKind::ReplicaSet, "tier not z")], pods, true)
    }),
    ("defaults:137", || {
        let pods = of_one_owner("ReplicationController", ["own=x"; 3]);
        check_selected(&[(ObjectKind::ReplicationController, "app=a")], pods, true)
    }),
    ("defaults:159", || {
        let pods = of_one_owner("Job", ["own=x"; 3]);
        check_selected(&[(ObjectKind::ReplicaSet, "app=a")], pods, false)
    }),
    // An owner that is not the controller of a pod is ignored.
    ("defaults:166", || {
        check_selected(&[(ObjectKind::ReplicaSet, "app=a")], unowned_pods(), false)
    }),
    ("defaults:174", || {
        let pods = of_one_owner("ReplicaSet", ["own=x"; 3]);
        check_selected(&[(ObjectKind::StatefulSet, "app=a")], pods, false)
    }),
    ("defaults:250", || {
        // The selector of the ReplicationController overrides that of the Service: it counts pods
        // of another app, of which one zone has too many.
        let mut world = default_zone_spread();
        select(&mut world, ObjectKind::Service, "s", "app=a");
        select(&mut world, ObjectKind::ReplicationController, "a", "app=old");
        add_occupied_node(&mut world, "z1", "app=old");
        world.node("default", "z2");
        let pods = of_one_owner("ReplicationController", ["own=x"; 3]);
        world.add(pods).settle().all_placed()?;
        check_zone_counts(&world, "own=x", &[0, 3])
    }),
    ("defaults:272", || {
        let pods = of_one_owner("ReplicaSet", ["own=x"; 3]);
        let both = [(ObjectKind::Service, "app=a"), (ObjectKind::ReplicaSet, "app=old")];
        check_selected(&both, pods, false)
    }),
    ("defaults:298", || {
        // The Service selects some pods of an owner. They are spread among each other, and the
        // others among all pods of the owner.
        let mut world = with_default_spread(spread("zone", 1, ""));
        select(&mut world, ObjectKind::Service, "s", "tier=x");
        add_occupied_node(&mut world, "z1", "app=a");
        world
            .add(pods(3, &replica("x").label("tier=x").label("own=x")))
            .add(pods(2, &replica("y").label("own=y")));
        world.settle().all_placed()?;
        check_zone_counts(&world, "own=x", &[1, 1, 1])?;
        check_zone_counts(&world, "own=y", &[0, 1, 1])
    }),
    ("defaults:314", || {
        // The identical pod in the other namespace does not count.
        let mut world = with_default_spread(spread("zone", 1, ""));
        let node = world.node("default", "z1");
        world.bind(replica("other").namespace("other"), &node);
        world.add(pods(3, &replica("p"))).settle().all_placed()?;
        check_counts(&world, "zone", &[1, 1, 1])?;
        let others = pods(3, &replica("q").namespace("other"));
        world.add(others).plan().together(&["q00", "q01", "q02"])
    }),
    ("defaults:332", || {
        let with_constraint = |pod: Pod| pod.spread(spread("host", 3, "app=a"));
        let pods = of_one_owner("ReplicaSet", ["own=x"; 3]);
        let pods = pods.into_iter().map(with_constraint).collect();
        check_selected(&[(ObjectKind::ReplicaSet, "app=a")], pods, false)
    }),
    ("defaults:351", || {
        let mut world = with_default_spread(spread("zone", 1, ""));
        world.cluster().scheduling.default_spread.clear();
        world.add(of_one_owner("ReplicaSet", ["own=x"; 3])).settle().all_placed()?;
        check_counts(&world, "host", &[3])
    }),
    ("defaults:377", || {
        // The configured constraint allows a skew of two.
        let mut world = with_default_spread(spread("zone", 2, ""));
        require(&mut world, &["zone in z1 z2"]);
        let node = world.node("single-pod", "z3");
        world.bind(replica("first"), &node);
        settle(&mut world, 8, &replica("p").cpu(2100).select("arch", "amd64"), 6)?;
        check_counts(&world, "zone", &[1, 3, 3])
    }),
    ("defaults:405", || {
        let of = |name: &str| pod(name).label("app=a").owner("ReplicaSet", name);
        let mut world = with_default_spread(spread("zone", 1, ""));
        select(&mut world, ObjectKind::ReplicaSet, "x", "own=x");
        select(&mut world, ObjectKind::ReplicaSet, "y", "own=y");
        world.add(pods(3, &of("x").label("own=x"))).add(pods(3, &of("y").label("own=y")));
        world.settle().all_placed()?;
        check_zone_counts(&world, "own=x", &[1, 1, 1])?;
        check_zone_counts(&world, "own=y", &[1, 1, 1])
    }),
];

#[test]
fn default_constraints_count_the_pods_of_one_owner() {
    run_cases(OWNERS);
}

const SERVICES: &[Case] = &[
    ("defaults:185", || check_selected(&[(ObjectKind::Service, "app=a")], unowned_pods(), true)),
    ("defaults:193", || {
        // Pods that only one of the Services selects are not counted.
        let mut world = default_zone_spread();
        select(&mut world, ObjectKind::Service, "s", "app=a");
        select(&mut world, ObjectKind::Service, "t", "tier=x");
        add_occupied_node(&mut world, "z1", "app=a");
        add_occupied_node(&mut world, "z2", "tier=x");
        let pod = pod("p").label("app=a").label("tier=x").label("own=x");
        settle(&mut world, 3, &pod, 3)?;
        check_zone_counts(&world, "own=x", &[1, 1, 1])
    }),
    // A Service that does not select a pod, or selects nothing, has no effect on it.
    ("defaults:202", || check_selected(&[(ObjectKind::Service, "app=b")], unowned_pods(), false)),
    ("defaults:206", || check_selected(&[(ObjectKind::Service, "")], unowned_pods(), false)),
    ("defaults:211", || check_selected(&[(ObjectKind::Service, "")], unowned_pods(), false)),
    ("defaults:216", || {
        let elsewhere = |pod: Pod| pod.namespace("other");
        let pods = unowned_pods().into_iter().map(elsewhere).collect::<Vec<_>>();
        let mut world = default_zone_spread();
        select(&mut world, ObjectKind::Service, "s", "app=a");
        world.add(pods).plan().together(&["p00", "p01", "p02"])
    }),
    ("defaults:224", || {
        let mut world = with_default_spread(spread("zone", 1, ""));
        select(&mut world, ObjectKind::Service, "s", "tier=x");
        add_occupied_node(&mut world, "z1", "app=a");
        add_occupied_node(&mut world, "z2", "tier=x");
        let pod = replica("p").label("tier=x").label("own=x");
        settle(&mut world, 3, &pod, 3)?;
        check_zone_counts(&world, "own=x", &[1, 1, 1])
    }),
];

#[test]
fn default_constraints_count_the_pods_of_services() {
    run_cases(SERVICES);
}
