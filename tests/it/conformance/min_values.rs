//! `min_values` of pools, and the result if there are too few values.

use std::collections::BTreeSet;

use outrigger::model::cluster::MinValuesPolicy;
use outrigger::model::instance::{InstanceType, OfferingKey};

use super::fixture::{Check, Plan, Shape, USUAL, World, ensure};
use super::notation::{With, at_least, key_of, pod, pods};
use super::run::{Case, run_cases};

/// Three types of two, four and six cores.
const SHAPES: [(&str, i64); 3] = [("a", 2), ("b", 4), ("c", 6)];

fn types() -> Vec<InstanceType> {
    let of = |(name, cpu)| Shape { name, cpu, pods: 100, ..USUAL };
    SHAPES.map(of).iter().map(Shape::sold).collect()
}

fn world(policy: MinValuesPolicy, requirements: &[(u32, &str)]) -> World {
    let mut world = World::of_types(types());
    world.cluster().scheduling.min_values = policy;
    require(&mut world, "default", requirements);
    world
}

fn strict(requirements: &[(u32, &str)]) -> World {
    world(MinValuesPolicy::Strict, requirements)
}

fn require(world: &mut World, pool: &str, requirements: &[(u32, &str)]) {
    let mut pools = world.cluster().pools.iter_mut();
    let pool = pools.find(|found| found.name.as_str() == pool).expect("a pool");
    for (least, text) in requirements {
        let (key, requirement) = match least {
            0 => super::notation::read(text),
            least => at_least(*least, text),
        };
        pool.requirements.add(key, requirement);
    }
}

/// Checks that the offerings of every claim have at least this number of values of a label.
fn check_values(plan: &Plan, key: &str, least: usize) -> Check {
    plan.all_placed()?;
    for claim in &plan.solution.claims {
        let value = |key_of_offering: &OfferingKey| match key {
            "zone" => key_of_offering.zone.to_string(),
            _ => key_of_offering.instance_type.to_string(),
        };
        let offerings = claim.offerings.iter();
        let values: BTreeSet<String> = offerings.map(|(key, _)| value(key)).collect();
        ensure(values.len() >= least, || format!("{values:?}, expected {least}"))?;
    }
    Ok(())
}

/// Checks the types that may be launched for the pod `p`.
fn check_types(plan: &Plan, expect: &[&str]) -> Check {
    let types = plan.types("p")?;
    ensure(types == expect, || format!("{types:?}, not {expect:?}"))
}

/// Two pods that fit together on the larger types. They get separate nodes, because a shared node
/// could not be of the smallest type.
fn two_of_a_size() -> Vec<outrigger::model::pod::Pod> {
    pods(2, &pod("p").cpu(1800))
}

const STRICT: &[Case] = &[
    ("selection:621", || {
        let mut world = strict(&[(0, "type in a b"), (2, "type exists")]);
        let plan = world.add(two_of_a_size()).plan();
        check_values(&plan, "type", 2)?;
        plan.makes(2)
    }),
    ("selection:693", || {
        let plan = strict(&[(2, "integer > 2")]).add([pod("p")]).plan();
        check_types(&plan, &["b", "c"])
    }),
    ("selection:784", || {
        let plan = strict(&[(2, "integer > 4")]).add([pod("p")]).plan();
        plan.placed(&[], &["p"])
    }),
    ("selection:870", || {
        let plan = strict(&[(2, "integer < 6")]).add([pod("p")]).plan();
        check_types(&plan, &["a", "b"])
    }),
    ("selection:961", || {
        let plan = strict(&[(2, "integer < 4")]).add([pod("p")]).plan();
        plan.placed(&[], &["p"])
    }),
    ("selection:1029", || {
        let both = [(1, "type in a b c"), (2, "type not c")];
        let plan = strict(&both).add([pod("p")]).plan();
        check_types(&plan, &["a", "b"])?;
        let both = [(3, "type in a b c"), (2, "type not c")];
        let plan = strict(&both).add([pod("p")]).plan();
        plan.placed(&[], &["p"])
    }),
    ("selection:1121", || {
        let both = [(1, "integer > 2"), (2, "integer < 8")];
        let plan = strict(&both).add([pod("p")]).plan();
        check_types(&plan, &["b", "c"])
    }),
    ("selection:1234", || {
        let plan = strict(&[(4, "type exists")]).add([pod("p")]).plan();
        plan.placed(&[], &["p"])
    }),
    // One offering cannot have two types: there must be no claim with too few types.
    ("selection:1261", || {
        let mut world = strict(&[(2, "type exists")]);
        world.cluster().scheduling.max_launch_options = 1;
        let plan = world.add([pod("p")]).plan();
        if plan.solution.claims.is_empty() {
            return Ok(());
        }
        check_values(&plan, "type", 2)
    }),
    ("selection:1331", || {
        let both = [(1, "type in a b c"), (3, "type exists")];
        let plan = strict(&both).add(two_of_a_size()).plan();
        check_values(&plan, "type", 3)
    }),
    ("selection:1410", || {
        let both = [(2, "type exists"), (3, "zone exists"), (2, "integer exists")];
        let plan = strict(&both).add(two_of_a_size()).plan();
        check_values(&plan, "type", 2)?;
        check_values(&plan, "zone", 3)
    }),
    ("provisioning:2911", || {
        let mut world = strict(&[(3, "type in a b")]);
        world.add([pod("p")]).plan().placed(&[], &["p"])
    }),
    ("provisioning:3216", || {
        let mut world = strict(&[(4, "zone exists")]);
        world.add([pod("p")]).plan().placed(&[], &["p"])
    }),
];

#[test]
fn strict_policy_enforces_min_values() {
    run_cases(STRICT);
}

fn best_effort(requirements: &[(u32, &str)]) -> World {
    world(MinValuesPolicy::BestEffort, requirements)
}

const BEST_EFFORT: &[Case] = &[
    ("provisioning:2962", || {
        let plan = best_effort(&[(3, "type in a b")]).add([pod("p")]).plan();
        check_types(&plan, &["a", "b"])
    }),
    ("provisioning:3259", || {
        let plan = best_effort(&[(4, "zone exists")]).add([pod("p")]).plan();
        check_values(&plan, "zone", 3)
    }),
    ("provisioning:3353", || {
        let both = [(3, "type in a b"), (4, "zone exists")];
        let plan = best_effort(&both).add([pod("p")]).plan();
        check_types(&plan, &["a", "b"])?;
        check_values(&plan, "zone", 3)
    }),
    ("provisioning:3024", heaviest_pool),
    ("provisioning:3100", heaviest_pool),
];

/// Checks that a heavier pool with too few values is used before a lighter one with enough.
fn heaviest_pool() -> Check {
    let mut world = best_effort(&[(2, "type in a b")]);
    world.add_pool("heavy", 100);
    require(&mut world, "heavy", &[(3, "type in a b")]);
    let plan = world.add([pod("p")]).plan();
    plan.has("p", key_of("pool"), "heavy")?;
    check_types(&plan, &["a", "b"])
}

#[test]
fn best_effort_policy_accepts_fewer_values_than_min_values() {
    run_cases(BEST_EFFORT);
}
