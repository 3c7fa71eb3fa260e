//! Preferences of pods, and the selected pool if several are suitable.

use outrigger::model::cluster::PreferencePolicy;
use outrigger::model::pod::Pod;
use outrigger::model::taint::Effect;

use super::fixture::{Check, World, ensure};
use super::notation::{With, pod, pods, soft, spread, taint, term};
use super::run::{Case, run_cases};

const IMPOSSIBLE: &[Case] = &[
    ("provisioning:2434", all_impossible),
    ("scheduling:1168", all_impossible),
    ("provisioning:2516", || {
        for wish in ["zone in unknown", "host in unknown"] {
            let plan = World::new().add([pod("p").prefer(1, &[wish])]).plan();
            plan.all_placed()?;
        }
        Ok(())
    }),
    ("scheduling:1214", || {
        let pod = pod("p").need(&["zone in z3"]).prefer(1, &["zone not z3"]);
        World::new().add([pod]).plan().has("p", "zone", "z3")
    }),
    ("scheduling:1235", || {
        let pod = pod("p").prefer(1, &["zone in z3"]).prefer(1, &["zone not z3"]);
        World::new().add([pod]).plan().all_placed()
    }),
    // A `PreferNoSchedule` taint is relaxed like any other preference.
    ("provisioning:2487", || {
        let mut world = World::new();
        world.pool().taints = vec![taint("team", "x", Effect::PreferNoSchedule)];
        let pod = pod("p").prefer(1, &["zone in unknown"]);
        world.add([pod]).plan().all_placed()
    }),
];

fn all_impossible() -> Check {
    let pod = pod("p").prefer(1, &["zone in unknown"]).prefer(1, &["type in unknown"]);
    World::new().add([pod]).plan().all_placed()
}

#[test]
fn impossible_preferences_do_not_block_pods() {
    run_cases(IMPOSSIBLE);
}

const LIGHTER: &[Case] = &[("provisioning:2453", lighter), ("scheduling:1187", lighter)];

fn lighter() -> Check {
    let mut world = World::requiring(&["zone in z1 z2"]);
    let pod = pod("p").prefer(100, &["zone in z3"]);
    let pod = pod.prefer(50, &["zone in z2"]).prefer(1, &["zone in z1"]);
    world.add([pod]).plan().has("p", "zone", "z2")
}

#[test]
fn heaviest_possible_preference_is_satisfied() {
    run_cases(LIGHTER);
}

/// Checks that pods with different preferences share one node if preferences are ignored.
fn check_ignored(asking: impl IntoIterator<Item = Pod>) -> Check {
    let mut world = World::new();
    world.cluster().scheduling.preferences = PreferencePolicy::Ignore;
    let plan = world.add(asking).plan();
    plan.all_placed()?;
    plan.makes(1)
}

const IGNORED: &[Case] = &[
    ("provisioning:2566", || {
        check_ignored([
            pod("a").prefer(1, &["zone in z1"]),
            pod("b").prefer(1, &["zone in z2"]),
            pod("c").prefer(1, &["type in arm"]),
        ])
    }),
    ("provisioning:2630", || {
        for key in ["zone", "host"] {
            let like = pod("p").label("app=a").spread(soft(spread(key, 1, "app=a")));
            check_ignored(pods(3, &like))?;
        }
        Ok(())
    }),
    ("provisioning:2663", || {
        for key in ["zone", "host"] {
            let like = pod("p").label("app=a").prefer_apart(10, term(key, "app=a"));
            check_ignored(pods(3, &like))?;
        }
        Ok(())
    }),
    ("provisioning:2697", || {
        for key in ["zone", "host"] {
            let target = pod("t").label("app=a").select("type", "small");
            let other = pod("p").prefer_near(10, term(key, "app=a")).select("type", "arm");
            let mut world = World::new();
            world.cluster().scheduling.preferences = PreferencePolicy::Ignore;
            world.add([target, other]).plan().all_placed()?;
        }
        Ok(())
    }),
];

#[test]
fn ignore_policy_ignores_preferences() {
    run_cases(IGNORED);
}

const POOLS: &[Case] = &[
    ("provisioning:2773", || {
        let mut world = World::new();
        world.add_pool("other", 0);
        let plan = world.add([pod("p").select("pool", "other")]).plan();
        plan.has("p", "pool", "other")
    }),
    ("provisioning:2781", || {
        let mut world = World::new();
        let labels = &mut world.add_pool("other", 0).labels;
        labels.insert("team".to_owned(), "x".to_owned());
        let plan = world.add([pod("p").select("team", "x")]).plan();
        plan.has("p", "pool", "other")
    }),
    ("provisioning:2797", || {
        let mut world = World::new();
        let soft = taint("team", "x", Effect::PreferNoSchedule);
        world.add_pool("other", 10).taints = vec![soft];
        world.add([pod("p")]).plan().has("p", "pool", "default")
    }),
    ("provisioning:2815", || {
        let mut world = World::new();
        world.add_pool("light", 20);
        world.add_pool("heavy", 100);
        let plan = world.add(pods(3, &pod("p"))).plan();
        let heavy = |name: &&str| plan.has(name, "pool", "heavy");
        ["p00", "p01", "p02"].iter().try_for_each(heavy)
    }),
    ("provisioning:2831", || {
        let mut world = World::new();
        world.add_pool("heavy", 100);
        let plan = world.add([pod("p").select("pool", "default")]).plan();
        plan.has("p", "pool", "default")
    }),
    ("provisioning:2848", || {
        let mut world = World::new();
        world.pool().replicas = Some(3);
        let plan = world.add([pod("p")]).plan();
        plan.makes(0)?;
        plan.placed(&[], &["p"])
    }),
    ("provisioning:2859", || {
        let mut world = World::new();
        world.add_pool("static", 100).replicas = Some(3);
        let plan = world.add([pod("p")]).plan();
        plan.makes(1)?;
        plan.has("p", "pool", "default")
    }),
];

#[test]
fn pods_use_the_heaviest_suitable_pool() {
    run_cases(POOLS);
}

#[test]
fn impossible_preference_does_not_exclude_the_heaviest_pool() {
    let mut world = World::new();
    world.add_pool("heavy", 100);
    let plan = world.add([pod("p").prefer(1, &["zone in unknown"])]).plan();
    assert_eq!(plan.has("p", "pool", "heavy"), Ok(()));
    let claims = plan.solution.claims.len();
    assert_eq!(ensure(claims == 1, || "there must be one node".to_owned()), Ok(()));
}
