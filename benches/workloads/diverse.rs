//! The pods of Karpenter's own benchmark, drawn in the same way. Source: spec/scheduling.md §6.4.

use fastrand::Rng;
use outrigger::model::affinity::Preferred;
use outrigger::model::labels::{HOSTNAME, Labels, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::requirement::{Requirement, Requirements};

use crate::catalogs::{FAKE_ZONES, MIB};
use crate::workloads::SEED;
use crate::workloads::pods::{self, label};

const CPU_MILLI: [i64; 5] = [100, 250, 500, 1000, 1500];
const MEMORY_MIB: [i64; 6] = [100, 256, 512, 1024, 2048, 4096];
const VALUES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

/// Draws a value of a label.
fn draw_label(random: &mut Rng, key: &str) -> Labels {
    label(key, VALUES[random.usize(..VALUES.len())])
}

/// Draws the requests of a pod: millicores, then bytes.
pub fn draw_requests(random: &mut Rng) -> (i64, i64) {
    let cpu_milli = CPU_MILLI[random.usize(..CPU_MILLI.len())];
    (cpu_milli, MEMORY_MIB[random.usize(..MEMORY_MIB.len())] * MIB)
}

/// Draws a pod of the benchmark. Its requests are drawn last.
fn pod(random: &mut Rng, at: usize, mut labels: Labels) -> Pod {
    let (cpu_milli, memory) = draw_requests(random);
    labels.extend(label("testing/cluster", "unspecified"));
    Pod { labels, ..pods::plain(&format!("p{at:06}"), cpu_milli, memory) }
}

fn generic(random: &mut Rng, at: usize) -> Pod {
    let labels = draw_label(random, "my-label");
    pod(random, at, labels)
}

fn spread(random: &mut Rng, at: usize, topology_key: &str) -> Pod {
    let labels = draw_label(random, "my-label");
    let selected = draw_label(random, "my-label");
    Pod { spread: vec![pods::spread(topology_key, &selected)], ..pod(random, at, labels) }
}

fn near(random: &mut Rng, at: usize) -> Pod {
    let labels = draw_label(random, "my-affininity");
    Pod { affinity: vec![pods::term(ZONE, &labels)], ..pod(random, at, labels) }
}

fn apart(random: &mut Rng, at: usize) -> Pod {
    let labels = label("app", "nginx");
    Pod { anti_affinity: vec![pods::term(HOSTNAME, &labels)], ..pod(random, at, labels) }
}

/// Returns pods of five kinds in equal shares: no constraints, spread over zones, spread over
/// hosts, zonal affinity to pods with the same label, and anti-affinity by host.
pub fn diverse(count: usize) -> Vec<Pod> {
    let mut random = Rng::with_seed(SEED);
    let fifth = count / 5;
    let one = |at: usize| match at.checked_div(fifth).unwrap_or(5) {
        1 => spread(&mut random, at, ZONE),
        2 => spread(&mut random, at, HOSTNAME),
        3 => near(&mut random, at),
        4 => apart(&mut random, at),
        _ => generic(&mut random, at),
    };
    (0..count).map(one).collect()
}

/// Returns only pods without constraints.
pub fn plain(count: usize) -> Vec<Pod> {
    let mut random = Rng::with_seed(SEED);
    (0..count).map(|at| generic(&mut random, at)).collect()
}

/// Returns identical pods with preferences: the first zone, a separate zone (possible only for the
/// first pod), and a separate host.
pub fn preferences(count: usize) -> Vec<Pod> {
    let mut random = Rng::with_seed(SEED);
    let labels = label("app", "nginx");
    let apart = |topology_key: &str, weight: i32| Preferred {
        weight,
        term: pods::term(topology_key, &labels),
    };
    let first = pod(&mut random, 0, labels.clone());
    let first = Pod {
        preferred_nodes: vec![Preferred {
            weight: 1,
            term: Requirements::from_iter([(ZONE, Requirement::is_in([FAKE_ZONES[0]]))]),
        }],
        preferred_anti_affinity: vec![apart(ZONE, 10), apart(HOSTNAME, 1)],
        ..first
    };
    let named = |at: usize| {
        let name = format!("p{at:06}");
        Pod { key: pods::plain(&name, 0, 0).key, uid: name, ..first.clone() }
    };
    (0..count).map(named).collect()
}
