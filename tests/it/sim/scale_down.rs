//! A large consolidation: thirty Deployments are scaled down simultaneously, and hundreds of pods
//! of all sizes must be bound close to the plan.

use std::fmt::Write;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::model::labels::INSTANCE_TYPE;
use outrigger::sim::World;
use outrigger::sim::timeline::TimelineFact;
use outrigger_bench::catalogs::kwok;
use outrigger_bench::fleet::Fleet;
use outrigger_bench::workloads;
use outrigger_bench::workloads::deployments::{of_all_sizes, thirty};

use super::setup::day;

const CONFIG: &str = r#"
scenario {
  start    = "2026-03-03T00:00:00Z"
  duration = "30m"
  boot     = "2s"
}

outrigger {
  installation = "simulation"
}

cluster "demo" {
  mode = "manage"
  simulated {}
}

pool "general" {
  require "karpenter.sh/capacity-type" { in = ["on-demand"] }
  require "kubernetes.io/arch" { in = ["amd64"] }
  disruption {
    consolidation     = "empty_or_underutilized"
    consolidate_after = "0s"
    budget { nodes = "100%" }
  }
}
"#;

/// The time of the scale-down after the start.
const SCALE_DOWN: SignedDuration = SignedDuration::from_mins(20);

/// The number of replicas of a Deployment after the scale-down.
fn remaining_replicas(replicas: usize) -> usize {
    if replicas == 35 { 25 } else { 20 }
}

fn scenario() -> String {
    let mut text = CONFIG.to_owned();
    for deployment in of_all_sizes() {
        let (name, replicas, left) =
            (deployment.name, deployment.replicas, remaining_replicas(deployment.replicas));
        let (cpu, memory) = (deployment.cpu_milli, deployment.memory >> 20);
        let written = writeln!(
            text,
            "workload \"{name}\" {{\n  \
             requests = {{ cpu = \"{cpu}m\", memory = \"{memory}Mi\" }}\n  \
             grace = \"1s\"\n  max_skew = 1\n  replicas = {replicas}\n  \
             at \"00:20\" {{ replicas = {left} }}\n}}"
        );
        written.expect("a string takes all");
    }
    text
}

/// The cost of a new plan for the remaining pods, in $/h.
fn new_plan_cost() -> f64 {
    let mut fleet = Fleet::planned(workloads::kwok(thirty()), Timestamp::UNIX_EPOCH);
    let deployments = of_all_sizes();
    fleet.scale(|owner| {
        let deployment = deployments.iter().find(|deployment| deployment.name == owner);
        remaining_replicas(deployment.expect("a deployment").replicas)
    });
    fleet.afresh()
}

/// The cost of all nodes, in $/h.
fn cost(world: &World) -> f64 {
    let scene = world.ground_truth();
    let price = |name: &String| {
        let offerings = &scene.catalog.get(name).expect("a type").offerings;
        let dearest = offerings.iter().map(|offering| offering.price.usd_per_h());
        dearest.fold(0.0, f64::max)
    };
    let nodes = scene.cluster.store().nodes().values();
    let types = nodes.filter_map(|node| node.labels.get(INSTANCE_TYPE));
    types.map(price).sum()
}

#[test]
fn large_scale_down_saves_cost_and_then_becomes_idle() {
    let new_plan = new_plan_cost();
    for seed in [1, 2, 4, 8] {
        let mut setup = day(&scenario());
        setup.catalog = Arc::new(kwok());
        let shrinks = setup.scenario.start + SCALE_DOWN;
        let mut world = World::new(setup, seed, false);
        world.run_until(shrinks);
        world.take_lines();
        world.run_until(shrinks + SignedDuration::from_mins(3));
        let (lines, cost_then) = (world.take_lines(), cost(&world));
        world.run_until(shrinks + SignedDuration::from_mins(8));
        let later = world.take_lines();
        let moves = |fact: &TimelineFact| {
            matches!(fact, TimelineFact::Leaving { .. } | TimelineFact::Launched { .. })
        };
        let later: Vec<_> = later.iter().filter(|line| moves(&line.fact)).collect();
        let summary =
            format!("seed {seed}: {cost_then:.2} $/h, new plan {new_plan:.2}: {later:#?}");
        assert!(cost_then <= 1.08 * new_plan, "{summary}");
        assert!(later.is_empty(), "{summary}");
        let bound = lines.iter().filter_map(|line| match line.fact {
            TimelineFact::Bound { pods, .. } => Some(pods),
            _ => None,
        });
        let bound: usize = bound.sum();
        assert!((100..1000).contains(&bound), "{bound} pods were bound: {summary}");
        assert!(world.violations().is_empty(), "{:?}", world.violations());
    }
}
