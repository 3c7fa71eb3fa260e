//! Default topology spread of pods without constraints, and the pods that it counts.

use outrigger::model::affinity::TopologySpread;
use outrigger::model::id::ObjectKey;
use outrigger::model::pod::Pod;
use outrigger::model::watched_object::{ObjectKind, WatchedObject, WorkloadSelector};

use super::fixture::{Check, World, ensure};
use super::notation::{With, pod, pods, selecting, soft, spread};
use super::run::{Case, judge};
use super::topology::{counted, require, settle};

const DEFAULTS: &[Case] = &[
    ("topology:3009", || {
        let mut world = by_default(spread("zone", 1, ""));
        settle(&mut world, 4, &of_set("a"), 4)?;
        counted(&world, "zone", &[1, 1, 2])
    }),
    ("topology:3015", || {
        let mut world = by_default(spread("host", 1, ""));
        settle(&mut world, 4, &of_set("a"), 4)?;
        counted(&world, "host", &[1, 1, 1, 1])
    }),
    ("topology:3027", || {
        let mut world = by_default(spread("zone", 1, ""));
        let own = of_set("a").spread(spread("host", 4, "app=a"));
        settle(&mut world, 4, &own, 4)?;
        counted(&world, "host", &[4])
    }),
    ("topology:3051", || {
        let mut least = spread("zone", 1, "");
        least.min_domains = 3;
        let mut world = by_default(least);
        require(&mut world, &["zone in z1 z2"]);
        settle(&mut world, 3, &of_set("a"), 2)?;
        counted(&world, "zone", &[1, 1])
    }),
    ("topology:3086", || {
        let mut world = by_default(spread("unknown", 1, ""));
        settle(&mut world, 1, &of_set("a"), 0)
    }),
    ("topology:3103", || {
        let mut world = by_default(soft(spread("unknown", 1, "")));
        settle(&mut world, 1, &of_set("a"), 1)
    }),
    ("topology:3130", || {
        let mut world = World::new();
        settle(&mut world, 4, &of_set("a"), 4)?;
        counted(&world, "host", &[4])
    }),
    ("topology:3137", || {
        let mut world = by_default(spread("zone", 1, ""));
        settle(&mut world, 4, &pod("a").label("app=a"), 4)?;
        counted(&world, "host", &[4])
    }),
    ("topology:3146", || {
        let mut world = by_default(spread("zone", 1, ""));
        for at in 0..2 {
            let node = world.node("single-pod", "z1");
            world.bind(of_set(&format!("r{at}")), &node);
        }
        settle(&mut world, 4, &of_set("a"), 4)?;
        counted(&world, "zone", &[2, 2, 2])
    }),
    ("topology:3188", || {
        let mut world = by_default(spread("zone", 1, ""));
        let other = pod("b").label("app=b").owner("ReplicaSet", "b");
        select(&mut world, ObjectKind::ReplicaSet, "b", "app=b");
        world.add(pods(3, &of_set("a"))).add(pods(3, &other)).settle().all_placed()?;
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
        let mut world = by_default(spread("zone", 1, ""));
        for hash in ["x", "y"] {
            let own = format!("app=a, pod-template-hash={hash}");
            select(&mut world, ObjectKind::ReplicaSet, hash, &own);
        }
        world.add(pods(3, &of("x"))).add(pods(3, &of("y"))).settle().all_placed()?;
        for hash in ["pod-template-hash=x", "pod-template-hash=y"] {
            let counts = world.counts("zone", hash);
            ensure(counts == [1, 1, 1], || format!("{hash}: {counts:?}"))?;
        }
        Ok(())
    }),
    ("topology:3244", || {
        let mut world = unselected();
        select(&mut world, ObjectKind::Service, "s", "app=a");
        let own = pod("p").label("app=a").owner("Job", "a");
        settle(&mut world, 3, &own, 3)?;
        counted(&world, "zone", &[1, 1, 1])
    }),
];

/// A pod of a ReplicaSet without spread constraints.
fn of_set(name: &str) -> Pod {
    pod(name).label("app=a").owner("ReplicaSet", "a")
}

/// A world with this default constraint, and a ReplicaSet `a` that selects `app=a`.
fn by_default(constraint: TopologySpread) -> World {
    let mut world = World::new();
    world.cluster().scheduling.default_spread =
        vec![TopologySpread { selector: None, ..constraint }];
    select(&mut world, ObjectKind::ReplicaSet, "a", "app=a");
    world
}

/// A world with a default spread over zones, and no object that selects pods.
fn unselected() -> World {
    let mut world = by_default(spread("zone", 1, ""));
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
fn pods_that_say_nothing_are_spread_as_the_scheduler_is_configured() {
    judge(DEFAULTS);
}

/// Pods of one owner with the label `app=a` and one of these labels each.
fn of_one_owner(kind: &str, labels: [&str; 3]) -> Vec<Pod> {
    let one = |(at, label): (usize, &&str)| {
        pod(&format!("p{at}")).label("app=a").label(label).owner(kind, "a")
    };
    labels.iter().enumerate().map(one).collect()
}

/// Checks whether pods are spread over the zones, or share a node, if these objects select pods.
fn selected_by(objects: &[(ObjectKind, &str)], pods: Vec<Pod>, expect: bool) -> Check {
    let mut world = unselected();
    for (kind, selector) in objects {
        select(&mut world, *kind, "a", selector);
    }
    world.add(pods).settle().all_placed()?;
    if expect { counted(&world, "zone", &[1, 1, 1]) } else { counted(&world, "host", &[3]) }
}

/// Pods without an owner.
fn of_nobody() -> Vec<Pod> {
    pods(3, &pod("p").label("app=a"))
}

/// Adds a node in this zone with two pods of this label, and capacity for three more.
fn taken(world: &mut World, zone: &str, label: &str) {
    let node = world.node("default", zone);
    for own in pods(2, &pod(&format!("{zone}-")).label(label)) {
        world.bind(own, &node);
    }
}

/// Checks the numbers of pods with the label `own=…` in the zones.
fn counted_of(world: &World, own: &str, expect: &[usize]) -> Check {
    let counts = world.counts("zone", own);
    ensure(counts == expect, || format!("{own}: {counts:?}"))
}

const OWNERS: &[Case] = &[
    // The pods of one owner are counted together, regardless of their other labels.
    ("defaults:80", || {
        let pods = of_one_owner("ReplicaSet", ["own=x", "own=y", "own=z"]);
        selected_by(&[(ObjectKind::ReplicaSet, "app=a")], pods, true)
    }),
    ("defaults:98", || {
        let key = "statefulset.kubernetes.io/pod-name";
        let labels = ["a-0", "a-1", "a-2"].map(|name| format!("{key}={name}"));
        let labels = labels.each_ref().map(String::as_str);
        let pods = of_one_owner("StatefulSet", labels);
        selected_by(&[(ObjectKind::StatefulSet, "app=a")], pods, true)
    }),
    ("defaults:119", || {
        let pods = of_one_owner("ReplicaSet", ["tier=x", "tier=y", "tier=x"]);
        selected_by(&[(ObjectKind::ReplicaSet, "tier not z")], pods, true)
    }),
    ("defaults:137", || {
        let pods = of_one_owner("ReplicationController", ["own=x"; 3]);
        selected_by(&[(ObjectKind::ReplicationController, "app=a")], pods, true)
    }),
    ("defaults:159", || {
        let pods = of_one_owner("Job", ["own=x"; 3]);
        selected_by(&[(ObjectKind::ReplicaSet, "app=a")], pods, false)
    }),
    // An owner that is not the controller of a pod is ignored.
    ("defaults:166", || selected_by(&[(ObjectKind::ReplicaSet, "app=a")], of_nobody(), false)),
    ("defaults:174", || {
        let pods = of_one_owner("ReplicaSet", ["own=x"; 3]);
        selected_by(&[(ObjectKind::StatefulSet, "app=a")], pods, false)
    }),
    ("defaults:250", || {
        // The selector of the ReplicationController overrides that of the Service: it counts pods
        // of another app, of which one zone has too many.
        let mut world = unselected();
        select(&mut world, ObjectKind::Service, "s", "app=a");
        select(&mut world, ObjectKind::ReplicationController, "a", "app=old");
        taken(&mut world, "z1", "app=old");
        world.node("default", "z2");
        let pods = of_one_owner("ReplicationController", ["own=x"; 3]);
        world.add(pods).settle().all_placed()?;
        counted_of(&world, "own=x", &[0, 3])
    }),
    ("defaults:272", || {
        let pods = of_one_owner("ReplicaSet", ["own=x"; 3]);
        let both = [(ObjectKind::Service, "app=a"), (ObjectKind::ReplicaSet, "app=old")];
        selected_by(&both, pods, false)
    }),
    ("defaults:298", || {
        // The Service selects some pods of an owner. They are spread among each other, and the
        // others among all pods of the owner.
        let mut world = by_default(spread("zone", 1, ""));
        select(&mut world, ObjectKind::Service, "s", "tier=x");
        taken(&mut world, "z1", "app=a");
        world
            .add(pods(3, &of_set("x").label("tier=x").label("own=x")))
            .add(pods(2, &of_set("y").label("own=y")));
        world.settle().all_placed()?;
        counted_of(&world, "own=x", &[1, 1, 1])?;
        counted_of(&world, "own=y", &[0, 1, 1])
    }),
    ("defaults:314", || {
        // The identical pod in the other namespace does not count.
        let mut world = by_default(spread("zone", 1, ""));
        let node = world.node("default", "z1");
        world.bind(of_set("other").namespace("other"), &node);
        world.add(pods(3, &of_set("p"))).settle().all_placed()?;
        counted(&world, "zone", &[1, 1, 1])?;
        let others = pods(3, &of_set("q").namespace("other"));
        world.add(others).plan().together(&["q00", "q01", "q02"])
    }),
    ("defaults:332", || {
        let own = |pod: Pod| pod.spread(spread("host", 3, "app=a"));
        let pods = of_one_owner("ReplicaSet", ["own=x"; 3]);
        let pods = pods.into_iter().map(own).collect();
        selected_by(&[(ObjectKind::ReplicaSet, "app=a")], pods, false)
    }),
    ("defaults:351", || {
        let mut world = by_default(spread("zone", 1, ""));
        world.cluster().scheduling.default_spread.clear();
        world.add(of_one_owner("ReplicaSet", ["own=x"; 3])).settle().all_placed()?;
        counted(&world, "host", &[3])
    }),
    ("defaults:377", || {
        // The configured constraint allows a skew of two.
        let mut world = by_default(spread("zone", 2, ""));
        require(&mut world, &["zone in z1 z2"]);
        let node = world.node("single-pod", "z3");
        world.bind(of_set("first"), &node);
        settle(&mut world, 8, &of_set("p").cpu(2100).select("arch", "amd64"), 6)?;
        counted(&world, "zone", &[1, 3, 3])
    }),
    ("defaults:405", || {
        let of = |name: &str| pod(name).label("app=a").owner("ReplicaSet", name);
        let mut world = by_default(spread("zone", 1, ""));
        select(&mut world, ObjectKind::ReplicaSet, "x", "own=x");
        select(&mut world, ObjectKind::ReplicaSet, "y", "own=y");
        world.add(pods(3, &of("x").label("own=x"))).add(pods(3, &of("y").label("own=y")));
        world.settle().all_placed()?;
        counted_of(&world, "own=x", &[1, 1, 1])?;
        counted_of(&world, "own=y", &[1, 1, 1])
    }),
];

#[test]
fn default_constraints_count_the_pods_of_one_owner() {
    judge(OWNERS);
}

const SERVICES: &[Case] = &[
    ("defaults:185", || selected_by(&[(ObjectKind::Service, "app=a")], of_nobody(), true)),
    ("defaults:193", || {
        // Pods that only one of the Services selects are not counted.
        let mut world = unselected();
        select(&mut world, ObjectKind::Service, "s", "app=a");
        select(&mut world, ObjectKind::Service, "t", "tier=x");
        taken(&mut world, "z1", "app=a");
        taken(&mut world, "z2", "tier=x");
        let own = pod("p").label("app=a").label("tier=x").label("own=x");
        settle(&mut world, 3, &own, 3)?;
        counted_of(&world, "own=x", &[1, 1, 1])
    }),
    // A Service that does not select a pod, or selects nothing, has no effect on it.
    ("defaults:202", || selected_by(&[(ObjectKind::Service, "app=b")], of_nobody(), false)),
    ("defaults:206", || selected_by(&[(ObjectKind::Service, "")], of_nobody(), false)),
    ("defaults:211", || selected_by(&[(ObjectKind::Service, "")], of_nobody(), false)),
    ("defaults:216", || {
        let elsewhere = |pod: Pod| pod.namespace("other");
        let pods = of_nobody().into_iter().map(elsewhere).collect::<Vec<_>>();
        let mut world = unselected();
        select(&mut world, ObjectKind::Service, "s", "app=a");
        world.add(pods).plan().together(&["p00", "p01", "p02"])
    }),
    ("defaults:224", || {
        let mut world = by_default(spread("zone", 1, ""));
        select(&mut world, ObjectKind::Service, "s", "tier=x");
        taken(&mut world, "z1", "app=a");
        taken(&mut world, "z2", "tier=x");
        let own = of_set("p").label("tier=x").label("own=x");
        settle(&mut world, 3, &own, 3)?;
        counted_of(&world, "own=x", &[1, 1, 1])
    }),
];

#[test]
fn default_constraints_count_the_pods_of_services() {
    judge(SERVICES);
}
