//! The engine in the built-in scenario of one day, with and without faults: all invariants hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use jiff::SignedDuration;
use outrigger::model::id::ReservationId;
use outrigger::model::labels::ZONE;
use outrigger::sim::World;
use outrigger::sim::scenario::Scenario;

use super::setup::{
    RESERVED, early_day, finish, reproduce, reserved_day, spread_day, static_day, tight_day,
    working_day,
};

/// The default tests run few seeds; `outrigger simulate --faults --seeds 1000` runs more.
const SEEDS: u64 = 10;

#[test]
fn day_without_faults_violates_no_invariant() {
    let setup = working_day();
    let (world, violations) = finish(&setup, 1, false);
    assert!(violations.is_empty(), "{}", reproduce(1, false, &violations));
    let summary = world.summary();
    assert!(summary.pods_bound > 200, "{summary}");
    assert!(summary.cost < summary.fixed_cost, "{summary}");
    assert_eq!(summary.interruptions, 2, "{summary}");
}

#[test]
fn days_with_faults_violate_no_invariant() {
    let (usual, tight, fixed) = (working_day(), tight_day(), static_day());
    let spread = spread_day();
    let next = AtomicU64::new(0);
    let work = || {
        let mut failures = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return failures;
            }
            // At the limits, pending pods are planned again and again, which is slow: few of these.
            let setup = match seed % 10 {
                9 => &tight,
                odd if odd % 4 == 1 => &fixed,
                even if even % 4 == 2 => &spread,
                _ => &usual,
            };
            let (_, violations) = finish(setup, seed, true);
            if !violations.is_empty() {
                failures.push(reproduce(seed, true, &violations));
            }
        }
    };
    let failures: Vec<String> = thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().flat_map(|one| one.join().expect("no panic")).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn spread_pods_stay_within_the_skew_over_zones() {
    let setup = spread_day();
    let mut world = World::new(setup.clone(), 1, false);
    // Half an hour after the scale-up to 24 replicas.
    world.run_until(setup.scenario.start + SignedDuration::from_mins(119));
    let store = world.ground_truth().cluster.store();
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in store.pods_of("web") {
        let node = pod.node.as_ref().and_then(|name| store.nodes().get(name));
        let zone = node.and_then(|node| node.labels.get(ZONE));
        *zones.entry(zone.expect("a zone")).or_insert(0) += 1;
    }
    assert_eq!(zones.values().sum::<usize>(), 24, "{zones:?}");
    let (least, most) = (zones.values().min(), zones.values().max());
    let lead = most.zip(least).map(|(most, least)| most - least);
    assert!(zones.len() > 1 && lead <= Some(1), "{zones:?}");
}

#[test]
fn invalid_max_skew_of_a_workload_is_rejected() {
    for (skew, kind, mistakes) in [(1, "deployment", 0), (0, "deployment", 1), (1, "daemonset", 1)]
    {
        let text = format!("workload \"a\" {{\n  kind = \"{kind}\"\n  max_skew = {skew}\n}}\n");
        let read = Scenario::parse(&format!("scenario {{}}\n{text}"));
        let found = read.err().unwrap_or_default();
        assert_eq!(found.len(), mistakes, "{text}: {found:?}");
        assert!(found.iter().all(|problem| problem.text.contains("`max_skew`")));
    }
}

/// The invariants check that no reservation has more instances than it allows.
#[test]
fn reserved_capacity_is_fully_used_and_not_exceeded() {
    let setup = reserved_day();
    for (seed, faults) in [(1, false), (2, true), (3, true), (4, true)] {
        let (mut world, violations) = finish(&setup, seed, faults);
        let failure = reproduce(seed, faults, &violations);
        assert!(violations.is_empty(), "{failure}");
        // If every result arrives, the daemon counts correctly, and no reservation is exceeded.
        for line in world.take_lines() {
            let line = line.to_json().to_string();
            let refused = line.contains("launch_refused") && line.contains("cr-");
            assert!(faults || !refused, "{line}");
        }
        let ids: BTreeSet<&ReservationId> = world
            .ground_truth()
            .cloud
            .all_instances()
            .filter_map(|machine| machine.truth().offering.reservation.as_deref())
            .collect();
        assert_eq!(ids.len(), RESERVED.len(), "seed {seed}: {ids:?}");
    }
}

/// The invariants check which pods are bound early, and that none stays bound without a node.
#[test]
fn days_with_early_binding_violate_no_invariant() {
    let setup = early_day();
    for seed in 1..=SEEDS / 2 {
        let (_, violations) = finish(&setup, seed, true);
        assert!(violations.is_empty(), "{}", reproduce(seed, true, &violations));
    }
    let mut world = World::new(setup, 1, false);
    let mut early_pods = BTreeSet::new();
    while world.step().is_some() {
        let store = world.ground_truth().cluster.store();
        let awaited = store.nodes().values().filter(|node| node.is_awaited());
        let pods = awaited.flat_map(|node| store.pods_on(node.name.as_str()));
        early_pods.extend(pods.map(|pod| pod.uid.clone()));
    }
    assert!(early_pods.len() > 50, "{} pods were bound early", early_pods.len());
    let violations = world.run_and_check().to_vec();
    assert!(violations.is_empty(), "{}", reproduce(1, false, &violations));
}

/// Seeds that failed before. In the first, the daemon holds back terminations of instances whose
/// Nodes a user has deleted, and the cluster shrinks; in the second, a listing lacks a Node with
/// running pods; in the others, nodes do not register, do not become ready, or are interrupted.
#[test]
fn previously_failing_seeds_violate_no_invariant() {
    let setup = working_day();
    let mut accepted = 0;
    for seed in [117_695_746_539_554, 20_260_239, 20_260_295, 20_260_371] {
        let (mut world, violations) = finish(&setup, seed, true);
        let failure = reproduce(seed, true, &violations);
        assert!(violations.is_empty(), "{failure}");
        let lines = world.take_lines();
        accepted += lines.iter().filter(|line| line.fact.kind() == "accepted").count();
    }
    assert!(accepted > 0, "no seed has a termination that a user must accept");
}

#[test]
fn same_seed_gives_the_same_output() {
    let setup = working_day();
    let bytes = |seed: u64| {
        let mut world = World::new(setup.clone(), seed, true);
        // Until after the batch wave: by then, every kind of event has occurred.
        world.run_until(setup.scenario.start + SignedDuration::from_hours(5));
        let lines: Vec<String> =
            world.take_lines().iter().map(|line| line.to_json().to_string()).collect();
        format!("{}\n{}", lines.join("\n"), world.summary().to_json())
    };
    let first = bytes(7);
    assert_eq!(first, bytes(7));
    assert_ne!(first, bytes(8));
}
