//! Packing of pods onto new nodes, and the selected instance types.

use outrigger::model::instance::{CapacityType, InstanceType, Offering, Price};
use outrigger::model::requirement::Requirement;
use outrigger::scheduling::RejectionCode;

use super::fixture::{Check, GIB, MIB, Plan, Shape, USUAL, World, ensure};
use super::notation::{With, key_of, pod, pods, read};
use super::run::{Case, run_cases, run_each_case};

/// The total price of the cheapest offerings of a plan.
fn cost(plan: &Plan) -> f64 {
    let claims = plan.solution.claims.iter();
    claims.map(|claim| claim.offerings[0].1.usd_per_h()).sum()
}

/// Checks that a plan costs at most this, with a tolerance for rounding and node overhead prices.
fn costs_at_most(plan: &Plan, most: f64) -> Check {
    plan.all_placed()?;
    let cost = cost(plan);
    ensure(cost <= most * 1.001, || format!("{cost} $/h, not {most}"))
}

fn first_is(plan: &Plan, pod: &str, expect: &str) -> Check {
    let first = plan.first_type(pod)?;
    ensure(first == expect, || format!("{first}, not {expect}"))
}

const PACKED: &[Case] = &[
    ("scheduling:1522", || first_is(&World::new().add([pod("p").cpu(100)]).plan(), "p", "small")),
    ("scheduling:1534", || {
        let plan = World::new().add([pod("p").with(|pod| pod.requests.memory = 2000 * MIB)]).plan();
        first_is(&plan, "p", "small")
    }),
    ("scheduling:1574", || {
        let plan = World::new().add(pods(5, &pod("p").cpu(10))).plan();
        plan.makes(1)?;
        first_is(&plan, "p00", "small")
    }),
    // The usual type has the same price per pod as the small one, but needs half as many nodes.
    ("scheduling:1593", || {
        let like = pod("p").select("arch", "amd64");
        let like = like.with(|pod| pod.requests.memory = 1_800_000_000);
        let plan = World::new().add(pods(40, &like)).plan();
        costs_at_most(&plan, 20.0 * USUAL.price())?;
        plan.makes(20)
    }),
    ("scheduling:1613", || {
        let of = |name: &str, memory| {
            let like = pod(name).select("arch", "amd64");
            like.with(|pod| pod.requests.memory = memory)
        };
        let mut world = World::new();
        world.add(pods(40, &of("large", 1_800_000_000)));
        world.add(pods(20, &of("small", 400_000_000)));
        let plan = world.plan();
        costs_at_most(&plan, 20.0 * USUAL.price())?;
        plan.makes(20)
    }),
    ("scheduling:1645", || {
        let mut world = World::of_types(linear(5).iter().map(Shape::sold));
        let plan = world.add([pod("large").cpu(4500), pod("small").cpu(1000)]).plan();
        first_is(&plan, "large", "t5")?;
        first_is(&plan, "small", "t2")?;
        plan.makes(2)
    }),
    ("scheduling:1671", || {
        World::new().add([pod("p").asks("fake.com/none", 0)]).plan().all_placed()
    }),
    ("scheduling:1248", || {
        let plan = World::new().add([pod("p").cpu(512_000)]).plan();
        plan.refused("p", RejectionCode::Resources, "needs cpu 512")
    }),
    ("scheduling:1683", || {
        let plan = World::new().add([pod("p").gib(2048)]).plan();
        plan.refused("p", RejectionCode::Resources, "needs memory 2048")
    }),
    ("scheduling:1694", || {
        let plan = World::new().add(pods(25, &pod("p").cpu(1))).plan();
        plan.makes(5)?;
        let full = |claim: &outrigger::scheduling::NewNodeClaim| claim.pods.len() == 5;
        ensure(plan.solution.claims.iter().all(full), || {
            "every node must have five pods".to_owned()
        })
    }),
    ("scheduling:1417", || {
        let asking = [pod("a").asks("fake.com/a", 1), pod("b").asks("fake.com/b", 1)];
        let plan = World::new().add(asking).plan();
        plan.all_placed()?;
        plan.apart(&["a", "b"])
    }),
    ("scheduling:1446", || {
        let both = pod("p").asks("fake.com/a", 1).asks("fake.com/b", 1);
        World::new().add([both]).plan().refused("p", RejectionCode::Resources, "fake.com/")
    }),
];

/// Types that grow by one core and two gibibytes, with capacity for many pods.
fn linear(count: i64) -> Vec<Shape> {
    const NAMES: [&str; 5] = ["t1", "t2", "t3", "t4", "t5"];
    let one = |at: i64| Shape {
        name: NAMES[usize::try_from(at - 1).expect("a small number")],
        cpu: at,
        gib: 2 * at,
        pods: 10 * at,
        ..USUAL
    };
    (1..=count).map(one).collect()
}

#[test]
fn nodes_are_packed_tightly_and_cheaply() {
    run_cases(PACKED);
}

/// A type with an on-demand and a spot offering in one zone at these prices.
fn priced(name: &'static str, on_demand: f64, spot: f64) -> InstanceType {
    let shape = Shape { name, ..USUAL };
    let at = |capacity_type, price| Offering {
        price: Price::new(price).expect("a price"),
        ..shape.offering("z1", capacity_type)
    };
    shape.sold_as(vec![at(CapacityType::Spot, spot), at(CapacityType::OnDemand, on_demand)])
}

const PRICED: &[Case] = &[
    ("scheduling:1763", || {
        // Every suitable type is kept if the price range of alternatives is large enough.
        let types = [priced("a", 3.0, 3.0), priced("b", 1.0, 1.0), priced("c", 2.0, 2.0)];
        let mut world = World::of_types(types);
        world.cluster().scheduling.alternative_price_percent = 1_000;
        let plan = world.add([pod("p")]).plan();
        first_is(&plan, "p", "b")?;
        let types = plan.types("p")?;
        ensure(types == ["a", "b", "c"], || format!("{types:?}"))
    }),
    ("selection:563", || {
        let mut world = World::of_types([priced("a", 1.0, 0.2), priced("b", 1.3, 0.1)]);
        let plan = world.add([pod("p").select("bought", "on-demand")]).plan();
        first_is(&plan, "p", "a")
    }),
];

#[test]
fn price_decides_among_suitable_types() {
    run_cases(PRICED);
}

const CPUS: [i64; 7] = [1, 2, 4, 8, 16, 32, 64];
const MEMORIES: [i64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const ZONES: [&str; 3] = ["z1", "z2", "z3"];

/// Every combination of size, zone, capacity type, operating system and architecture as a separate
/// type with one offering.
fn assorted() -> Vec<InstanceType> {
    let mut types = Vec::new();
    for (cpu, gib) in CPUS.iter().flat_map(|cpu| MEMORIES.map(|gib| (*cpu, gib))) {
        for (zone, os, arch) in combinations() {
            for capacity_type in [CapacityType::Spot, CapacityType::OnDemand] {
                let shape = Shape { cpu, gib, os, arch, ..USUAL };
                let mut it = shape.sold_as(vec![shape.offering(zone, capacity_type)]);
                let bought = capacity_type.as_str();
                let name = format!("{cpu}-{gib}-{arch}-{os}-{zone}-{bought}");
                let mut requirements = outrigger::model::requirement::Requirements::default();
                for (key, requirement) in
                    it.requirements.iter().filter(|(key, _)| *key != key_of("type"))
                {
                    requirements.add(key, requirement.clone());
                }
                requirements.add(key_of("type"), Requirement::is_in([name.as_str()]));
                (it.name, it.requirements) = (name.into(), requirements);
                types.push(it);
            }
        }
    }
    types
}

fn combinations() -> Vec<(&'static str, &'static str, &'static str)> {
    let systems = ["linux", "windows"];
    let of_zone = |zone| systems.map(|os| ["amd64", "arm64"].map(|arch| (zone, os, arch)));
    ZONES.into_iter().flat_map(of_zone).flatten().collect()
}

/// The key of a case, the requirements of the pool, and those of the pod.
type Selected = (&'static str, &'static [&'static str], &'static [&'static str]);

const SELECTED: &[Selected] = &[
    ("selection:82", &[], &[]),
    ("selection:89", &[], &["arch in amd64"]),
    ("selection:103", &[], &["arch in arm64"]),
    ("selection:116", &["arch in amd64"], &[]),
    ("selection:131", &["arch in arm64"], &[]),
    ("selection:146", &["os in windows"], &[]),
    ("selection:161", &[], &["os in windows"]),
    ("selection:174", &["os in windows"], &[]),
    ("selection:189", &[], &["os in linux"]),
    ("selection:202", &[], &["os in linux"]),
    ("selection:215", &["zone in z2"], &[]),
    ("selection:230", &[], &["zone in z2"]),
    ("selection:243", &["bought in spot"], &[]),
    ("selection:258", &[], &["bought in spot"]),
    ("selection:271", &["bought in on-demand", "zone in z1"], &[]),
    ("selection:291", &[], &["bought in spot", "zone in z1"]),
    ("selection:310", &["bought in spot"], &["zone in z2"]),
    (
        "selection:330",
        &["bought in on-demand", "zone in z1", "arch in arm64", "os in windows"],
        &[],
    ),
    ("selection:362", &["bought in spot", "zone in z2"], &["arch in amd64", "os in linux"]),
    ("selection:396", &[], &["bought in spot", "zone in z2", "arch in amd64", "os in linux"]),
];

/// The price of the cheapest offering that meets these requirements, found by linear search.
fn cheapest(types: &[InstanceType], wanted: &[&str], cpu: i64, memory: i64) -> Option<f64> {
    let meets = |it: &&InstanceType| {
        let has = |text: &&str| {
            let (key, wanted) = read(text);
            let values = it.requirements.get(key).and_then(Requirement::values);
            values.is_some_and(|values| values.iter().any(|value| wanted.allows_value(value)))
        };
        let fits = it.allocatable.cpu_milli >= cpu && it.allocatable.memory >= memory;
        fits && wanted.iter().all(has)
    };
    let all = types.iter().filter(meets);
    let prices = all.map(|it| it.offerings[0].price.usd_per_h());
    prices.min_by(f64::total_cmp)
}

fn check_selected(types: &[InstanceType], pool: &[&str], asked: &[&str]) -> Check {
    let mut world = World::of_types(types.iter().cloned());
    for text in pool {
        let (key, requirement) = read(text);
        world.pool().requirements.add(key, requirement);
    }
    let mut pod = pod("p");
    if !asked.is_empty() {
        pod = pod.need(asked);
    }
    let plan = world.add([pod]).plan();
    let both: Vec<&str> = pool.iter().chain(asked).copied().collect();
    for text in &both {
        let (key, wanted) = read(text);
        let label = plan.label("p", key)?;
        let all = label.split('|').all(|value| wanted.allows_value(value));
        ensure(all, || format!("{key} may be {label:?}"))?;
    }
    let least = cheapest(types, &both, 0, 0).ok_or("no type meets it")?;
    costs_at_most(&plan, least)
}

#[test]
fn cheapest_type_that_meets_all_requirements_is_selected() {
    let types = assorted();
    let case = |(key, pool, asked): &'static Selected| {
        let types = &types;
        (*key, move || check_selected(types, pool, asked))
    };
    run_each_case(SELECTED.iter().map(case));
}

/// Requirements for which no single type has an offering.
const UNSOLD: &[Selected] = &[
    ("selection:428", &[], &["arch in arm64"]),
    ("selection:448", &[], &["arch in arm64", "zone in z2"]),
    ("selection:477", &["arch in arm64"], &["zone in z2"]),
];

#[test]
fn combinations_without_an_offering_are_not_launched() {
    let unsold = |it: &InstanceType| {
        let name = it.name.as_str();
        !name.contains("arm64") || (name.contains("z1") && name.contains("windows"))
    };
    let types: Vec<InstanceType> = assorted().into_iter().filter(unsold).collect();
    let no_arm = || types.iter().filter(|it| !it.name.as_str().contains("arm64"));
    let case = |(key, pool, asked): &'static Selected| {
        let of = if pool.is_empty() && asked.len() == 1 {
            no_arm().cloned().collect()
        } else {
            types.clone()
        };
        (*key, move || {
            let mut world = World::of_types(of.clone());
            for text in *pool {
                let (key, requirement) = read(text);
                world.pool().requirements.add(key, requirement);
            }
            let plan = world.add([pod("p").need(asked)]).plan();
            plan.placed(&[], &["p"])
        })
    };
    run_each_case(UNSOLD.iter().map(case));
}

#[test]
fn selected_types_have_the_requested_resources() {
    let is_equivalent = |it: &InstanceType| it.name.as_str().ends_with("-amd64-linux-z1-on-demand");
    let types: Vec<InstanceType> = assorted().into_iter().filter(is_equivalent).collect();
    let enough = || {
        for cpu in [100, 1000, 2000, 2500, 4000, 8000, 16_000] {
            for memory in [GIB / 10, GIB, 2 * GIB, 4 * GIB, 8 * GIB, 16 * GIB, 32 * GIB] {
                let mut world = World::of_types(types.iter().cloned());
                let like = pod("p").cpu(cpu).with(|pod| pod.requests.memory = memory);
                let plan = world.add(pods(3, &like)).plan();
                // One node for all three pods is a valid plan; there may be cheaper ones.
                let one = cheapest(&types, &[], 3 * cpu, 3 * memory);
                costs_at_most(&plan, one.unwrap_or(f64::INFINITY))?;
                for claim in &plan.solution.claims {
                    for (key, _) in &claim.offerings {
                        let it = world.state.catalog.get(key.instance_type.as_str());
                        let fits = it.is_some_and(|it| claim.requests.fit_into(&it.allocatable));
                        ensure(fits, || format!("{} on {key}", claim.requests))?;
                    }
                }
            }
        }
        Ok(())
    };
    run_each_case([("selection:509", enough)]);
}
