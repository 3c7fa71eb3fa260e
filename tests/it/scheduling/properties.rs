//! Properties of every plan for every cluster.

use std::collections::BTreeMap;

use outrigger::model::affinity::TopologySpread;
use outrigger::model::cluster::PreferencePolicy;
use outrigger::model::labels::{HOSTNAME, Labels, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Limits;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::selector::Selector;
use outrigger::model::taint::Effect;
use outrigger::scheduling::{NewNodeClaim, Solution};
use proptest::prelude::{ProptestConfig, Strategy, any};
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use proptest::{collection, prop_assert, prop_assert_eq, proptest};

use super::checker::{check, check_in_order};
use super::features::{ALL_FEATURES, Feature, POD_DEPENDENT, UNSUPPORTED, without};
use super::fixture::{GIB, World, app, pods, spread, term, world};
use super::missed_placements::Completeness;
use super::naive_plan::naive;
use super::random_clusters::{a_crowded_world, a_world};
use super::rules::{selector_matches, with_explicit_spread};

proptest! {
    #[test]
    fn every_plan_passes_the_checker(world in a_world(UNSUPPORTED)) {
        let solution = world.solve();
        let checked = check(&world, &solution);
        prop_assert!(checked.is_ok(), "{:?}\n{:#?}", checked, solution);
    }

    #[test]
    fn plan_for_crowded_hosts_is_valid_and_independent_of_order(
        world in a_crowded_world(UNSUPPORTED),
        seed in any::<u64>(),
    ) {
        let solution = world.solve();
        let checked = check(&world, &solution);
        prop_assert!(checked.is_ok(), "{:?}\n{:#?}", checked, solution);
        let mut other = world;
        let mut random = fastrand::Rng::with_seed(seed);
        random.shuffle(&mut other.pods);
        random.shuffle(&mut other.rooms);
        random.shuffle(&mut other.cluster.pools);
        prop_assert_eq!(other.solve(), solution);
    }

    /// An ignored preference has no effect.
    #[test]
    fn ignored_preferences_do_not_change_the_plan(mut world in a_world(UNSUPPORTED)) {
        world.cluster.scheduling.preferences = PreferencePolicy::Ignore;
        let wishes = [Feature::SoftSpread, Feature::PreferredNodes, Feature::PreferredPods];
        let solution = world.solve();
        prop_assert_eq!(without(world, &wishes).solve(), solution);
    }

    /// A default constraint has the same effect as a constraint of the pod.
    #[test]
    fn explicit_default_spread_gives_the_same_plan(world in a_world(UNSUPPORTED)) {
        let solution = world.solve();
        prop_assert_eq!(with_explicit_spread(world).solve(), solution);
    }

    #[test]
    fn input_order_does_not_change_the_plan(
        world in a_world(UNSUPPORTED),
        seed in any::<u64>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut other = world.clone();
        random.shuffle(&mut other.pods);
        random.shuffle(&mut other.rooms);
        random.shuffle(&mut other.residents);
        random.shuffle(&mut other.daemons);
        random.shuffle(&mut other.cluster.pools);
        for pods in other.promised.values_mut() {
            random.shuffle(pods);
        }
        prop_assert_eq!(world.solve(), other.solve());
    }

    /// This holds only if no pod depends on the nodes of other pods.
    #[test]
    fn unscheduled_pods_stay_unscheduled_in_a_second_pass(world in a_world(UNSUPPORTED)) {
        let mut world = without(without(world, POD_DEPENDENT), &[Feature::Reservations]);
        for pool in &mut world.cluster.pools {
            pool.limits = Limits::default();
        }
        world.cluster.limits = Limits::default();
        world.fleet = None;
        let solution = world.solve();
        let left = |pod: &Pod| solution.unplaced.iter().any(|unplaced| unplaced.pod == pod.key);
        world.pods.retain(left);
        world.rooms.clear();
        let again = world.solve();
        prop_assert_eq!(again.unplaced, solution.unplaced);
    }
}

/// A constraint on pods of one app on a host.
#[derive(Clone, Copy, Debug)]
enum HostRule {
    Freely,
    Spread(u32),
    Apart,
}

fn a_pod_group() -> impl Strategy<Value = (HostRule, bool, usize)> {
    let shares =
        select(vec![HostRule::Freely, HostRule::Spread(1), HostRule::Spread(2), HostRule::Apart]);
    (shares, any::<bool>(), 1..12_usize)
}

proptest! {
    /// Pods of equal size are interchangeable on equal nodes, even if other pods are between them
    /// in the bind order.
    #[test]
    fn equal_size_pods_with_different_spread_rules_are_planned_once(
        all in collection::vec(a_pod_group(), 2..6),
    ) {
        let mut world = world();
        for (at, (shares, elsewhere, count)) in all.into_iter().enumerate() {
            let name = format!("w{at}");
            let own = app(&name);
            for mut pod in pods(&format!("{name}-"), count, 250, GIB / 8) {
                pod.labels.insert("app".to_owned(), name.clone());
                match shares {
                    HostRule::Freely => {}
                    HostRule::Spread(skew) => pod.spread.push(spread(own.clone(), HOSTNAME, skew)),
                    HostRule::Apart => pod.anti_affinity.push(term(own.clone(), HOSTNAME)),
                }
                if elsewhere {
                    let zones = Requirement::is_in(["a", "b"]);
                    pod.node_affinity = vec![Requirements::from_iter([(ZONE, zones)])];
                }
                world.pods.push(pod);
            }
        }
        let solution = world.solve();
        let checked = check(&world, &solution);
        prop_assert!(checked.is_ok(), "{:?}\n{:#?}", checked, solution);
    }
}

/// The features that the naive plan does not support.
const UNSUPPORTED_BY_NAIVE: &[Feature] = &[Feature::UndecidedNodes, Feature::Reservations];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    /// The checker accepts valid plans for worlds with all other features.
    #[test]
    fn naive_plan_passes_the_checker(world in a_world(UNSUPPORTED_BY_NAIVE)) {
        let (solution, order) = naive(&world);
        let checked = check_in_order(&world, &solution, &order, Completeness::Claims);
        prop_assert!(checked.is_ok(), "{:?}\n{:#?}", checked, solution);
    }
}

/// The cost of a plan in $/h, including the overhead price of its nodes.
fn cost(world: &World, solution: &Solution) -> f64 {
    let each = world.cluster.scheduling.node_overhead_price.usd_per_h();
    let price = |claim: &NewNodeClaim| claim.offerings[0].1.usd_per_h() + each;
    solution.claims.iter().map(price).sum()
}

/// In total over all worlds, the scheduler rejects at most as many pods as the naive plan, and if
/// it rejects as many, its nodes cost at most as much. Weights and preferences, which may raise
/// the cost, are removed, and so are undecided nodes, which the naive plan does not support.
#[test]
fn scheduler_is_no_worse_than_the_naive_plan() {
    const IGNORED: &[Feature] = &[
        Feature::SoftSpread,
        Feature::PreferredNodes,
        Feature::PreferredPods,
        Feature::UndecidedNodes,
        Feature::Reservations,
    ];
    let (mut runner, worlds) = (TestRunner::deterministic(), a_world(UNSUPPORTED));
    let (mut left, mut costs) = ((0, 0), (0.0, 0.0));
    for _ in 0..150 {
        let drawn = worlds.new_tree(&mut runner).expect("a world").current();
        let mut world = without(drawn, IGNORED);
        for pool in &mut world.cluster.pools {
            pool.weight = 0;
            pool.taints.retain(|taint| taint.effect != Effect::PreferNoSchedule);
        }
        let (solution, other) = (world.solve(), naive(&world).0);
        left = (left.0 + solution.unplaced.len(), left.1 + other.unplaced.len());
        if solution.unplaced.len() == other.unplaced.len() {
            costs = (costs.0 + cost(&world, &solution), costs.1 + cost(&world, &other));
        }
    }
    assert!(left.0 <= left.1, "{} pods are rejected, not {}", left.0, left.1);
    assert!(costs.0 <= costs.1, "{} $/h, not {}", costs.0, costs.1);
}

/// Each feature occurs in at least 5 % of the random worlds.
#[test]
fn random_clusters_contain_every_feature() {
    const WORLDS: usize = 200;
    let (mut runner, worlds) = (TestRunner::deterministic(), a_world(&[]));
    let mut draw = || worlds.new_tree(&mut runner).expect("a world").current();
    let worlds: Vec<World> = (0..WORLDS).map(|_| draw()).collect();
    for part in ALL_FEATURES {
        let with = worlds.iter().filter(|world| without((*world).clone(), &[*part]) != **world);
        let count = with.count();
        assert!(count * 20 >= WORLDS, "{part:?} is in {count} of {WORLDS} worlds");
    }
}

/// Whether a planned node gets more pods of a spread over hosts than the skew allows beside an
/// empty node.
fn exceeds_skew(world: &World, claim: &NewNodeClaim) -> bool {
    let mut counts: BTreeMap<&Labels, u32> = BTreeMap::new();
    let claimed = world.pods.iter().filter(|pod| claim.pods.contains(&pod.key));
    claimed.filter(|pod| pod.spread.iter().any(by_host)).any(|pod| {
        let count = counts.entry(&pod.labels).or_insert(0);
        *count += 1;
        let mut spread = pod.spread.iter().filter(|constraint| by_host(constraint));
        spread.any(|constraint| {
            selector_matches(constraint.selector.as_ref(), &pod.labels)
                && *count > constraint.max_skew
        })
    })
}

fn by_host(constraint: &TopologySpread) -> bool {
    constraint.is_hard
        && constraint.topology_key == HOSTNAME
        && constraint.selector != Some(Selector::default())
}

/// In at least 20 % of the random worlds, many pods are distributed evenly over hosts.
#[test]
fn random_crowded_clusters_contain_even_spreads() {
    const WORLDS: usize = 100;
    let (mut runner, worlds) = (TestRunner::deterministic(), a_crowded_world(UNSUPPORTED));
    let level = (0..WORLDS).filter(|_| {
        let world = worlds.new_tree(&mut runner).expect("a world").current();
        let solution = world.solve();
        solution.claims.iter().any(|claim| exceeds_skew(&world, claim))
    });
    let count = level.count();
    assert!(count * 5 >= WORLDS, "{count} of {WORLDS} worlds");
}
