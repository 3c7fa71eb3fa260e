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

use super::checker::{check, check_in};
use super::features::{ALL, OFF, Part, TOGETHER, without};
use super::fixture::{GIB, World, app, pods, spread, term, world};
use super::missed_placements::Complete;
use super::naive_plan::naive;
use super::random_clusters::{a_crowded_world, a_world};
use super::rules::{selects, written_out};

proptest! {
    #[test]
    fn every_plan_keeps_the_rules(world in a_world(OFF)) {
        let solution = world.solve();
        let checked = check(&world, &solution);
        prop_assert!(checked.is_ok(), "{:?}\n{:#?}", checked, solution);
    }

    #[test]
    fn a_plan_for_a_crowd_keeps_the_rules_in_any_order(
        world in a_crowded_world(OFF),
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

    /// A wish that is to be passed over is as good as none.
    #[test]
    fn ignored_wishes_change_nothing(mut world in a_world(OFF)) {
        world.cluster.scheduling.preferences = PreferencePolicy::Ignore;
        let wishes = [Part::SoftSpread, Part::PreferredNodes, Part::PreferredPods];
        let solution = world.solve();
        prop_assert_eq!(without(world, &wishes).solve(), solution);
    }

    /// A default is as good as a constraint of the pod's own.
    #[test]
    fn pods_that_say_how_they_are_spread_by_default_change_nothing(world in a_world(OFF)) {
        let solution = world.solve();
        prop_assert_eq!(written_out(world).solve(), solution);
    }

    #[test]
    fn the_same_input_in_any_order_gives_the_same_plan(
        world in a_world(OFF),
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

    /// Only as long as no pod's place depends on another's.
    #[test]
    fn what_a_plan_leaves_it_leaves_for_good(world in a_world(OFF)) {
        let mut world = without(without(world, TOGETHER), &[Part::Reservations]);
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

/// A rule about pods of one app on a host.
#[derive(Clone, Copy, Debug)]
enum Shares {
    Freely,
    Spread(u32),
    Apart,
}

fn a_few_alike() -> impl Strategy<Value = (Shares, bool, usize)> {
    let shares = select(vec![Shares::Freely, Shares::Spread(1), Shares::Spread(2), Shares::Apart]);
    (shares, any::<bool>(), 1..12_usize)
}

proptest! {
    /// Pods of one size stand in for each other on nodes that are alike, whoever else is between
    /// them in the order of all.
    #[test]
    fn pods_of_one_size_that_share_hosts_otherwise_are_each_planned_once(
        all in collection::vec(a_few_alike(), 2..6),
    ) {
        let mut world = world();
        for (at, (shares, elsewhere, count)) in all.into_iter().enumerate() {
            let name = format!("w{at}");
            let own = app(&name);
            for mut pod in pods(&format!("{name}-"), count, 250, GIB / 8) {
                pod.labels.insert("app".to_owned(), name.clone());
                match shares {
                    Shares::Freely => {}
                    Shares::Spread(skew) => pod.spread.push(spread(own.clone(), HOSTNAME, skew)),
                    Shares::Apart => pod.anti_affinity.push(term(own.clone(), HOSTNAME)),
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

/// What a naive plan knows nothing of.
const NOT_NAIVE: &[Part] = &[Part::UnsettledRooms, Part::Reservations];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    /// The checker accepts plans that are right, whatever the worlds are made of.
    #[test]
    fn a_naive_plan_keeps_the_rules(world in a_world(NOT_NAIVE)) {
        let (solution, order) = naive(&world);
        let checked = check_in(&world, &solution, &order, Complete::Claims);
        prop_assert!(checked.is_ok(), "{:?}\n{:#?}", checked, solution);
    }
}

/// What a plan costs per hour, the price of nodes included.
fn cost(world: &World, solution: &Solution) -> f64 {
    let each = world.cluster.scheduling.node_overhead_price.usd_per_h();
    let price = |claim: &NewNodeClaim| claim.offerings[0].1.usd_per_h() + each;
    solution.claims.iter().map(price).sum()
}

/// Of all worlds together: it leaves no more pods out, and where it leaves as many, its nodes cost
/// no more. Weights and wishes, for which it may pay, are left aside, and so are rooms of which
/// the naive plan cannot know what they become.
#[test]
fn the_solver_does_no_worse_than_a_naive_plan() {
    const ASIDE: &[Part] = &[
        Part::SoftSpread,
        Part::PreferredNodes,
        Part::PreferredPods,
        Part::UnsettledRooms,
        Part::Reservations,
    ];
    let (mut runner, worlds) = (TestRunner::deterministic(), a_world(OFF));
    let (mut left, mut costs) = ((0, 0), (0.0, 0.0));
    for _ in 0..150 {
        let drawn = worlds.new_tree(&mut runner).expect("a world").current();
        let mut world = without(drawn, ASIDE);
        for pool in &mut world.cluster.pools {
            pool.weight = 0;
            pool.taints.retain(|taint| taint.effect != Effect::PreferNoSchedule);
        }
        let (own, other) = (world.solve(), naive(&world).0);
        left = (left.0 + own.unplaced.len(), left.1 + other.unplaced.len());
        if own.unplaced.len() == other.unplaced.len() {
            costs = (costs.0 + cost(&world, &own), costs.1 + cost(&world, &other));
        }
    }
    assert!(left.0 <= left.1, "{} pods are left out, not {}", left.0, left.1);
    assert!(costs.0 <= costs.1, "{} $/h, not {}", costs.0, costs.1);
}

/// Worlds at random have everything in them often enough.
#[test]
fn every_part_is_drawn() {
    const WORLDS: usize = 200;
    let (mut runner, worlds) = (TestRunner::deterministic(), a_world(&[]));
    let mut draw = || worlds.new_tree(&mut runner).expect("a world").current();
    let worlds: Vec<World> = (0..WORLDS).map(|_| draw()).collect();
    for part in ALL {
        let with = worlds.iter().filter(|world| without((*world).clone(), &[*part]) != **world);
        let count = with.count();
        assert!(count * 20 >= WORLDS, "{part:?} is in {count} of {WORLDS} worlds");
    }
}

/// Of pods that are spread over hosts, whether a node that is to be made gets more than may be
/// ahead of an empty one.
fn is_level(world: &World, claim: &NewNodeClaim) -> bool {
    let mut alike: BTreeMap<&Labels, u32> = BTreeMap::new();
    let own = world.pods.iter().filter(|pod| claim.pods.contains(&pod.key));
    own.filter(|pod| pod.spread.iter().any(by_host)).any(|pod| {
        let count = alike.entry(&pod.labels).or_insert(0);
        *count += 1;
        let mut spread = pod.spread.iter().filter(|own| by_host(own));
        spread.any(|own| selects(own.selector.as_ref(), &pod.labels) && *count > own.max_skew)
    })
}

fn by_host(own: &TopologySpread) -> bool {
    own.is_hard && own.topology_key == HOSTNAME && own.selector != Some(Selector::default())
}

/// Among worlds at random are enough in which hosts get equal parts of many pods.
#[test]
fn equal_parts_are_drawn() {
    const WORLDS: usize = 100;
    let (mut runner, worlds) = (TestRunner::deterministic(), a_crowded_world(OFF));
    let level = (0..WORLDS).filter(|_| {
        let world = worlds.new_tree(&mut runner).expect("a world").current();
        let solution = world.solve();
        solution.claims.iter().any(|claim| is_level(&world, claim))
    });
    let count = level.count();
    assert!(count * 5 >= WORLDS, "{count} of {WORLDS} worlds");
}
