//! Deployments with many identical pods each, as in real clusters.

use outrigger::model::labels::{HOSTNAME, ZONE};
use outrigger::model::pod::{Owner, Pod};

use crate::catalogs::{GIB, MIB};
use crate::workloads::pods::{self, label};

/// CPU of the thirty deployments in millicores, in order.
const CPU_MILLI: [i64; 30] = [
    240, 450, 650, 900, 1400, 1900, 2400, 2800, 3300, 3700, 2300, 900, 1300, 2800, 1800, 1850,
    3300, 3800, 225, 450, 700, 900, 1300, 1800, 2400, 2800, 3400, 3800, 3300, 2800,
];
/// Memory of the thirty deployments, in order. Values up to 64 are in GiB, larger values in MiB.
const MEMORY: [i64; 30] = [
    300, 400, 700, 1, 2, 4, 8, 4, 16, 10, 64, 30, 32, 32, 30, 20, 30, 300, 500, 750, 1, 2, 4, 8,
    16, 32, 28, 64, 13, 24,
];
/// The first deployments have 35 replicas, the rest 30.
const LARGER: usize = 20;

/// A deployment.
#[derive(Clone, Debug, Default)]
pub struct Deployment {
    /// Name, and the value of the label `app` of its pods.
    pub name: String,
    /// Number of pods.
    pub replicas: usize,
    /// CPU request of a pod, in millicores.
    pub cpu_milli: i64,
    /// Memory request of a pod, in bytes.
    pub memory: i64,
    /// Topology keys over which its pods must be spread, with a maximum skew of one.
    pub spread: Vec<&'static str>,
    /// Topology keys whose domains may hold only one of its pods.
    pub apart: Vec<&'static str>,
}

impl Deployment {
    /// Returns one pod.
    pub fn pod(&self, at: usize) -> Pod {
        let labels = label("app", &self.name);
        let name = format!("{}-{at:04}", self.name);
        let spread = self.spread.iter().map(|key| pods::spread(key, &labels));
        let apart = self.apart.iter().map(|key| pods::term(key, &labels));
        Pod {
            spread: spread.collect(),
            anti_affinity: apart.collect(),
            owner: Some(Owner {
                kind: "ReplicaSet".to_owned(),
                name: self.name.clone(),
                uid: self.name.clone(),
            }),
            labels,
            ..pods::plain(&name, self.cpu_milli, self.memory)
        }
    }

    /// Returns all pods.
    pub fn pods(&self) -> impl Iterator<Item = Pod> {
        (0..self.replicas).map(|at| self.pod(at))
    }
}

/// Thirty deployments of all sizes, each spread over zones. The first three have pod anti-affinity
/// by host. The next three are spread over hosts.
pub fn of_all_sizes() -> Vec<Deployment> {
    let deployment = |at: usize| Deployment {
        name: format!("d{:02}", at + 1),
        replicas: if at < LARGER { 35 } else { 30 },
        cpu_milli: CPU_MILLI[at],
        memory: MEMORY[at] * if MEMORY[at] <= 64 { GIB } else { MIB },
        spread: if (3..6).contains(&at) { vec![ZONE, HOSTNAME] } else { vec![ZONE] },
        apart: if at < 3 { vec![HOSTNAME] } else { Vec::new() },
    };
    (0..CPU_MILLI.len()).map(deployment).collect()
}

/// The pods of the thirty deployments.
pub fn thirty() -> Vec<Pod> {
    of_all_sizes().iter().flat_map(Deployment::pods).collect()
}

/// Two deployments, small and large, both spread over hosts.
pub fn small_and_large() -> [Deployment; 2] {
    let deployment = |name: &str, cpu_milli, memory| Deployment {
        name: name.to_owned(),
        replicas: 500,
        cpu_milli,
        memory,
        spread: vec![HOSTNAME],
        ..Deployment::default()
    };
    [deployment("small", 900, 3100 * MIB), deployment("large", 3500, 28 * GIB)]
}

/// The pods of the two deployments.
pub fn two() -> Vec<Pod> {
    small_and_large().iter().flat_map(Deployment::pods).collect()
}
