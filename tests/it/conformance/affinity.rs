//! Required and preferred pod affinity and anti-affinity.

use std::collections::BTreeSet;

use outrigger::model::affinity::PodTerm;
use outrigger::model::pod::Pod;
use outrigger::model::watched_object::{Namespace, WatchedObject};

use super::fixture::{Check, Plan, World, ensure};
use super::notation::{With, pod, pods, selecting, term};
use super::run::{Case, run_cases};

/// A pod with the label that the terms of other pods select.
fn target(name: &str) -> Pod {
    pod(name).label("app=a")
}

fn zones(plan: &Plan, pods: &[&str]) -> Result<Vec<String>, String> {
    pods.iter().map(|pod| plan.label(pod, "zone")).collect()
}

/// Checks that all these pods are certainly in one zone.
fn check_one_zone(plan: &Plan, pods: &[&str]) -> Check {
    let zones = zones(plan, pods)?;
    let same = zones.iter().all(|zone| *zone == zones[0] && !zone.contains('|'));
    ensure(same, || format!("{zones:?}"))
}

/// Checks that no two of these pods can be in one zone.
fn check_separate_zones(plan: &Plan, pods: &[&str]) -> Check {
    let zones = zones(plan, pods)?;
    let all: Vec<&str> = zones.iter().flat_map(|zone| zone.split('|')).collect();
    let unique: BTreeSet<&str> = all.iter().copied().collect();
    ensure(unique.len() == all.len(), || format!("{zones:?}"))
}

const NEAR: &[Case] = &[
    ("topology:1929", || {
        let pod = pod("p").with(|pod| (pod.affinity, pod.anti_affinity) = (vec![], vec![]));
        World::new().add([pod]).plan().all_placed()
    }),
    ("topology:1939", || {
        let mut world = World::new();
        world.add(pods(10, &pod("filler").cpu(500)));
        world.add([target("t"), pod("p").near(term("host", "app=a"))]);
        let plan = world.plan();
        plan.all_placed()?;
        plan.together(&["t", "p"])
    }),
    ("topology:1973", || {
        let pod = pod("p").cpu(3000).near(term("arch", "app=a"));
        let plan = World::new().add([target("t").select("arch", "arm64"), pod]).plan();
        plan.has("p", "arch", "arm64")
    }),
    ("topology:2016", || {
        let like = target("p").near(term("host", "app=a"));
        let plan = World::new().add(pods(3, &like)).plan();
        plan.together(&["p00", "p01", "p02"])
    }),
    ("topology:2040", || {
        // A node has capacity for five pods, and the group may not use a second one.
        let like = |name| target(name).near(term("host", "app=a"));
        let mut world = World::new();
        world.add(pods(10, &like("p"))).settle().places(5)?;
        let plan = world.add(pods(2, &like("q"))).plan();
        plan.places(0)
    }),
    ("topology:2082", || {
        let like = |name| target(name).near(term("host", "app=a")).cpu(1500);
        let mut world = World::new();
        world.add([like("p").select("zone", "z1")]).settle().all_placed()?;
        let plan = world.add([like("q").need(&["zone in z2 z3"])]).plan();
        plan.placed(&[], &["q"])
    }),
    ("topology:2126", || {
        let like = target("p").near(term("zone", "app=a")).cpu(3000);
        let plan = World::new().add(pods(3, &like)).plan();
        check_one_zone(&plan, &["p00", "p01", "p02"])
    }),
    ("topology:2150", || {
        let like = target("p").near(term("zone", "app=a")).select("zone", "z3");
        let plan = World::new().add(pods(3, &like)).plan();
        plan.all_placed()?;
        plan.has("p02", "zone", "z3")
    }),
    // Karpenter starts a second group if a pod cannot join the first. The scheduler accepts a pod
    // as the first of a group only if no other pod of the group exists.
    ("topology:2181", || {
        let like = |name, zone| {
            let pod = target(name).near(term("host", "app=a"));
            pod.select("zone", zone)
        };
        let plan = World::new().add([like("p", "z1"), like("q", "z2")]).plan();
        plan.places(1)
    }),
    ("topology:2713", || {
        let pod = pod("p").near(term("zone", "app=a"));
        World::new().add([pod]).plan().placed(&[], &["p"])
    }),
    // Karpenter knows the zone of the first pod only when its node exists.
    ("topology:2730", || {
        let pod = pod("p").near(term("zone", "app=a")).cpu(1500);
        let plan = World::new().add([target("t").cpu(3000)]).add(pods(10, &pod)).plan();
        plan.all_placed()?;
        check_one_zone(&plan, &["t", "p00", "p05", "p09"])
    }),
    ("topology:2763", || {
        let pod = pod("p").near(term("zone", "app=a")).cpu(1500);
        let first = target("t").cpu(3000).select("zone", "z1");
        let plan = World::new().add([first]).add(pods(10, &pod)).plan();
        plan.all_placed()?;
        plan.has("p00", "zone", "z1")?;
        plan.has("p09", "zone", "z1")
    }),
    ("topology:2763", || {
        let mut world = World::new();
        let node = world.node("default", "z2");
        world.bind(target("t"), &node);
        let pod = pod("p").cpu(8000).near(term("zone", "app=a"));
        world.add([pod]).plan().has("p", "zone", "z2")
    }),
    ("topology:2792", || {
        let of = |name: &str| pod(name).label(&format!("tier={name}"));
        let chain = [
            of("db"),
            of("web").near(term("host", "tier=db")),
            of("cache").near(term("host", "tier=web")),
            of("page").near(term("host", "tier=cache")),
        ];
        let plan = World::new().add(chain).plan();
        plan.together(&["db", "web", "cache", "page"])
    }),
    ("topology:2827", || {
        let of = |name: &str| pod(name).label(&format!("tier={name}"));
        let chain =
            [of("web").near(term("host", "tier=db")), of("cache").near(term("host", "tier=web"))];
        World::new().add(chain).plan().placed(&[], &["web", "cache"])
    }),
];

#[test]
fn required_pod_affinity_places_pods_together() {
    run_cases(NEAR);
}

const APART: &[Case] = &[
    ("topology:2300", || {
        let like = target("p").apart(term("host", "app=a"));
        World::new().add(pods(2, &like)).plan().apart(&["p00", "p01"])
    }),
    ("topology:2322", || {
        let mut world = World::new();
        for zone in ["z1", "z2", "z3"] {
            world.add([target(zone).cpu(2000).select("zone", zone)]);
        }
        let plan = world.add([pod("p").apart(term("zone", "app=a"))]).plan();
        plan.placed(&["z1", "z2", "z3"], &["p"])
    }),
    // If the zone of a new node is undecided, Karpenter delays the second pod to the next pass.
    // Outrigger decides the zone.
    ("topology:2361", check_one_pass),
    ("topology:2502", check_one_pass),
    ("topology:2383", || {
        let first = target("t").cpu(2000).select("arch", "arm64");
        let plan = World::new().add([first, pod("p").apart(term("arch", "app=a"))]).plan();
        plan.has("p", "arch", "amd64")
    }),
    ("topology:2466", || {
        let mut world = World::new();
        for zone in ["z1", "z2", "z3"] {
            let pod = pod(zone).cpu(2000).select("zone", zone);
            world.add([pod.apart(term("zone", "app=a"))]);
        }
        world.add([target("t")]).plan().placed(&["z1", "z2", "z3"], &["t"])
    }),
    ("topology:2533", || {
        let mut world = World::new();
        for zone in ["z1", "z2", "z3"] {
            let pod = pod(zone).cpu(2000).select("zone", zone);
            world.add([pod.apart(term("zone", "app=a"))]);
        }
        world.settle().all_placed()?;
        world.add([target("t")]).plan().placed(&[], &["t"])
    }),
    // Karpenter places one pod per pass, for the same reason as above.
    ("topology:2668", || {
        let like = target("p").apart(term("zone", "app=a"));
        let mut world = World::new();
        let plan = world.add(pods(4, &like)).settle();
        plan.places(3)?;
        let placed: Vec<&str> = ["p00", "p01", "p02", "p03"]
            .into_iter()
            .filter(|pod| plan.why(pod).is_none())
            .collect();
        check_separate_zones(&plan, &placed)?;
        let counts = world.counts("zone", "app=a");
        ensure(counts == [1, 1, 1], || format!("{counts:?}"))
    }),
];

/// Checks that a pod is placed in another zone than a target pod, without selected zones.
fn check_one_pass() -> Check {
    for (first, second) in [(2000, 100), (100, 2000)] {
        let pod = pod("p").cpu(second).apart(term("zone", "app=a"));
        let plan = World::new().add([target("t").cpu(first), pod]).plan();
        plan.all_placed()?;
        check_separate_zones(&plan, &["t", "p"])?;
    }
    Ok(())
}

#[test]
fn required_anti_affinity_separates_pods() {
    run_cases(APART);
}

const PREFERRED: &[Case] = &[
    ("topology:2234", || {
        let pod = pod("p").prefer_near(50, term("host", "app=none"));
        World::new().add([pod, target("t")]).plan().all_placed()
    }),
    ("topology:2267", || {
        let like = target("p").prefer_apart(50, term("zone", "app=a")).cpu(100);
        World::new().add(pods(10, &like)).plan().all_placed()
    }),
    ("topology:2426", || {
        let mut world = World::new();
        for zone in ["z1", "z2", "z3"] {
            let pod = pod(zone).cpu(2000).select("zone", zone);
            world.add([pod.prefer_apart(10, term("zone", "app=a"))]);
        }
        world.add([target("t")]).plan().all_placed()
    }),
    ("topology:2583", || {
        let mut world = World::new();
        for zone in ["z1", "z2", "z3"] {
            let pod = pod(zone).cpu(2000).select("zone", zone);
            world.add([pod.prefer_apart(10, term("zone", "app=a"))]);
        }
        world.settle().all_placed()?;
        world.add([target("t")]).plan().all_placed()
    }),
    ("topology:2633", || {
        // The same host is preferred, but required anti-affinity excludes it.
        let pod = pod("p").prefer_near(50, term("host", "app=a"));
        let pod = pod.apart(term("host", "app=a"));
        let plan = World::new().add([target("t"), pod]).plan();
        plan.apart(&["t", "p"])
    }),
];

#[test]
fn preferred_pod_affinity_and_anti_affinity_are_relaxed() {
    run_cases(PREFERRED);
}

/// Plans a pod with this affinity term, and a target pod in another namespace.
fn plan_across_namespaces(term: PodTerm) -> Plan {
    let mut world = World::new();
    for name in ["default", "other"] {
        world.apply(WatchedObject::Namespace(Namespace {
            name: name.to_owned(),
            ..Namespace::default()
        }));
    }
    let pod = pod("p").near(term);
    world.add([target("t").namespace("other").cpu(100), pod]).plan()
}

const NAMESPACES: &[Case] = &[
    ("topology:2843", || plan_across_namespaces(term("host", "app=a")).placed(&["t"], &["p"])),
    ("topology:2881", || {
        let named =
            PodTerm { namespaces: BTreeSet::from(["other".to_owned()]), ..term("host", "app=a") };
        plan_across_namespaces(named).together(&["t", "p"])
    }),
    ("topology:2920", || {
        let all = PodTerm {
            namespaces: BTreeSet::new(),
            namespace_selector: Some(selecting("")),
            ..term("host", "app=a")
        };
        plan_across_namespaces(all).together(&["t", "p"])
    }),
];

#[test]
fn affinity_term_matches_only_its_own_namespaces() {
    run_cases(NAMESPACES);
}
