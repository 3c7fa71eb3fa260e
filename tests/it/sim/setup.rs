//! Worlds to test in: the built-in scenario, and small ones made by hand.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::catalog::Catalog;
use outrigger::model::cluster::{Cluster, Mode};
use outrigger::model::pool::{Allowance, Consolidation, Pool};
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::{Effect, Taint};
use outrigger::sim::invariants::Violation;
use outrigger::sim::scenario::{Scenario, WORKING_DAY};
use outrigger::sim::{Setup, World};

fn pool(name: &str, after: SignedDuration, per_cent: u8) -> Pool {
    let mut pool = Pool::new(name);
    pool.expire_after = None;
    pool.disruption.consolidation = Consolidation::Empty;
    pool.disruption.consolidate_after = Some(after);
    pool.disruption.budgets[0].nodes = Allowance::Percent(per_cent);
    pool
}

fn require(pool: &mut Pool, key: &str, values: &[&str]) {
    pool.requirements
        .add(key, Requirement::is_in(values.iter().copied()));
}

/// The configuration of the built-in scenario.
pub(super) fn config() -> Cluster {
    let families = "karpenter.k8s.aws/instance-family";
    let zones = "topology.kubernetes.io/zone";
    let ways = "karpenter.sh/capacity-type";
    let mut general = pool("general", SignedDuration::from_mins(3), 20);
    require(&mut general, ways, &["spot", "on-demand"]);
    require(&mut general, "kubernetes.io/arch", &["amd64", "arm64"]);
    let all = ["c6i", "m6i", "r6i", "c6g", "m6g", "r6g", "c7g", "m7g"];
    require(&mut general, families, &all);
    require(
        &mut general,
        zones,
        &["us-east-1a", "us-east-1b", "us-east-1c"],
    );
    general.limits.nodes = Some(80);
    general.limits.capacity = vec![("cpu".to_owned(), 400_000)];
    general.startup_taints = vec![Taint::new("demo.outrigger.dev/network", Effect::NoSchedule)];
    let mut batch = pool("batch", SignedDuration::from_mins(1), 100);
    batch.labels.insert("team".to_owned(), "media".to_owned());
    require(&mut batch, ways, &["spot"]);
    require(&mut batch, families, &["c6g"]);
    require(&mut batch, zones, &["us-east-1a", "us-east-1b"]);
    let mut dedicated = Taint::new("dedicated", Effect::NoSchedule);
    dedicated.value = "batch".to_owned();
    batch.taints = vec![dedicated];
    batch.limits.capacity = vec![("cpu".to_owned(), 240_000)];
    Cluster {
        installation: "simulation".to_owned(),
        name: "demo".into(),
        mode: Mode::Manage,
        pools: vec![batch, general],
        ..Cluster::default()
    }
}

/// The built-in scenario.
pub(super) fn working_day() -> Setup {
    let scenario = Scenario::parse(WORKING_DAY).expect("a good scenario");
    Setup::new(Arc::new(scenario), Arc::new(config()), &Catalog::shipped())
}

/// Runs a world to its end; what did not hold comes with it.
pub(super) fn finish(setup: &Setup, seed: u64, faults: bool) -> (World, Vec<Violation>) {
    let mut world = World::new(setup.clone(), seed, faults);
    let violations = world.finish().to_vec();
    (world, violations)
}

/// The command that shows a failure, and what it shows.
pub(super) fn reproduce(seed: u64, faults: bool, violations: &[Violation]) -> String {
    let faults = if faults { " --faults" } else { "" };
    let mut text = format!("outrigger simulate --seed {seed}{faults}\n");
    for violation in violations {
        text.push_str(&format!("  {violation}\n"));
    }
    text
}
