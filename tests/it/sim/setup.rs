//! Test clusters: the built-in scenario, and small manually defined ones.

use std::sync::Arc;

use outrigger::catalog::Catalog;
use outrigger::config::diagnostic::render_all;
use outrigger::config::{Inputs, SourceFile, load};
use outrigger::model::buffer::{Buffer, BufferPod};
use outrigger::model::cluster::{Binding, Cluster};
use outrigger::model::fleet::FleetLimits;
use outrigger::model::labels::CAPACITY_TYPE;
use outrigger::model::pool::{Limits, Pool};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::Requirement;
use outrigger::model::reservation::Reservation;
use outrigger::sim::invariants::Violation;
use outrigger::sim::multi_cluster::Together;
use outrigger::sim::scenario::{Scenario, WORKING_DAY};
use outrigger::sim::{Setup, World};

/// The built-in scenario.
pub(super) fn working_day() -> Setup {
    day(WORKING_DAY)
}

pub(super) fn day(text: &str) -> Setup {
    let scenario = Scenario::parse(text).expect("a valid scenario");
    let cluster = |text: &str| {
        let source = SourceFile::new("scenario.hcl", text);
        let config = load(&[source], &Inputs::default());
        let config = config.unwrap_or_else(|problems| panic!("{}", render_all(&problems)));
        Arc::new(config.clusters.into_iter().next().expect("a cluster"))
    };
    let reloads = scenario.reloads.iter();
    let reloads = reloads.map(|(at, text)| (*at, cluster(text))).collect();
    let config = cluster(&scenario.config);
    let setup = Setup::new(Arc::new(scenario), config, &Catalog::shipped());
    Setup { reloads, ..setup }
}

/// The working day with low limits, which the pools and the cluster reach.
pub(super) fn tight_day() -> Setup {
    let mut setup = working_day();
    let mut config = Cluster::clone(&setup.config);
    for pool in &mut config.pools {
        let cpu = if pool.name.as_str() == "batch" { 40_000 } else { 100_000 };
        pool.limits.capacity = vec![("cpu".to_owned(), cpu)];
    }
    // Less than the sum of the limits of the pools.
    config.limits.capacity = vec![("cpu".to_owned(), 120_000)];
    setup.config = Arc::new(config);
    setup
}

/// The working day with reserved capacity, which every pool may use.
pub(super) fn reserved_day() -> Setup {
    let mut setup = working_day();
    let mut config = Cluster::clone(&setup.config);
    for pool in &mut config.pools {
        let kept = pool.requirements.iter();
        let kept = kept.filter(|(key, _)| *key != CAPACITY_TYPE);
        pool.requirements = kept.map(|(key, retained)| (key, retained.clone())).collect();
    }
    setup.config = Arc::new(config);
    let reserved = RESERVED.iter().map(|(of, zone, id, total)| {
        let reservation = Reservation::new(id, *total);
        ((*of).into(), (*zone).into(), reservation)
    });
    setup.catalog = Arc::new(setup.catalog.with_reservations(reserved));
    setup
}

/// The working day with early binding of pods.
pub(super) fn early_day() -> Setup {
    let mut setup = working_day();
    let mut config = Cluster::clone(&setup.config);
    config.binding = Binding::Early;
    setup.config = Arc::new(config);
    setup
}

/// The reservations of `reserved_day`: type, zone, ID and number of instances.
pub(super) const RESERVED: [(&str, &str, &str, u32); 3] = [
    ("m6i.xlarge", "us-east-1a", "cr-a", 3),
    ("c6g.2xlarge", "us-east-1b", "cr-b", 1),
    ("c6g.xlarge", "us-east-1a", "cr-c", 2),
];

/// The working day with workloads that are spread over zones, one of them on arm64 only.
pub(super) fn spread_day() -> Setup {
    let mut text = WORKING_DAY.to_owned();
    for (name, skew) in [("web", 1), ("cache", 1), ("search", 1), ("checkout", 2)] {
        let head = format!("workload \"{name}\" {{\n");
        text = text.replace(&head, &format!("{head}  max_skew = {skew}\n"));
    }
    day(&text)
}

/// Two clusters with the working day each, and fleet limits below their total demand.
pub(super) fn two_days(cpu: i64, seed: u64, faults: bool) -> Together {
    let setup = |name: &str| {
        let mut setup = working_day();
        let mut config = Cluster::clone(&setup.config);
        config.name = name.into();
        setup.config = Arc::new(config);
        setup
    };
    let limits = FleetLimits {
        limits: Limits { nodes: None, capacity: vec![("cpu".to_owned(), cpu)] },
        ..FleetLimits::default()
    };
    Together::new(vec![setup("east"), setup("west")], limits, seed, faults)
}

/// The working day with a buffer and two static pools, one of which has a limit below its replicas.
pub(super) fn static_day() -> Setup {
    let mut setup = working_day();
    let mut config = Cluster::clone(&setup.config);
    for (name, limit) in [("fixed", None), ("short", Some(2))] {
        let mut pool = Pool::new(name);
        pool.replicas = Some(4);
        pool.limits.nodes = limit;
        let family = Requirement::is_in(["m6i"]);
        pool.requirements.add("karpenter.k8s.aws/instance-family", family);
        config.pools.push(pool);
    }
    let requests = Resources { cpu_milli: 3000, pods: 1, ..Resources::default() };
    config.buffers.push(Buffer {
        name: "room".to_owned(),
        replicas: Some(8),
        pod: Some(BufferPod { requests, ..BufferPod::default() }),
        ..Buffer::default()
    });
    setup.config = Arc::new(config);
    setup
}

/// Runs a world to its end, and returns it with the violations.
pub(super) fn finish(setup: &Setup, seed: u64, faults: bool) -> (World, Vec<Violation>) {
    let mut world = World::new(setup.clone(), seed, faults);
    let violations = world.run_and_check().to_vec();
    (world, violations)
}

/// The command that reproduces a failure, and the violations.
pub(super) fn reproduce(seed: u64, faults: bool, violations: &[Violation]) -> String {
    let faults = if faults { " --faults" } else { "" };
    let mut text = format!("outrigger simulate --seed {seed}{faults}\n");
    for violation in violations {
        text.push_str(&format!("  {violation}\n"));
    }
    text
}
