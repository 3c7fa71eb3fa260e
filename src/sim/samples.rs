//! Samples of a simulation, one per minute: resources, cost, and utilization.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::id::TypeName;
use crate::model::instance::CapacityType;
use crate::model::quantity::Resources;
use crate::sim::World;
use crate::sim::event_queue::time_after;

/// Interval between two samples.
pub const EVERY: SignedDuration = SignedDuration::from_mins(1);

/// The state at one point in time, after all events up to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorldSample {
    /// Time of the sample.
    pub at: Timestamp,
    /// Live managed instances, by capacity type and instance type.
    pub instances: BTreeMap<(CapacityType, TypeName), usize>,
    /// Nodes in the cluster.
    pub nodes: usize,
    /// Pending pods, without daemons.
    pub pending: usize,
    /// Running pods on nodes, without daemons.
    pub running: usize,
    /// Price of the instances, in US dollars per hour.
    pub usd_per_h: f64,
    /// Price of the fixed fleet of the summary, in US dollars per hour.
    pub fixed_usd_per_h: f64,
    /// Fraction of the allocatable CPU that pods on nodes request, from 0 to 1, including daemons.
    pub cpu_share: f64,
    /// Fraction of the allocatable memory that pods on nodes request, from 0 to 1, including
    /// daemons.
    pub memory_share: f64,
}

impl WorldSample {
    /// Takes a sample of the current state, with time `at`.
    pub fn from_world(world: &World, at: Timestamp) -> Self {
        let scene = world.ground_truth();
        let mut sample = Self {
            at,
            pending: scene.cluster.pending_pods(),
            fixed_usd_per_h: world.fixed.usd_per_h,
            ..Self::default()
        };
        for machine in scene.live_instances() {
            let offering = &machine.truth().offering;
            let key = (offering.capacity_type, offering.instance_type.clone());
            *sample.instances.entry(key).or_default() += 1;
            let catalog_offering = scene.catalog.offering(offering);
            sample.usd_per_h += catalog_offering.map_or(0.0, |offering| offering.price.usd_per_h());
        }
        let store = scene.cluster.store();
        sample.nodes = store.nodes().len();
        let (mut used, mut allocatable) = (Resources::default(), Resources::default());
        for node in store.nodes().values() {
            allocatable.cpu_milli += node.allocatable.cpu_milli;
            allocatable.memory += node.allocatable.memory;
            let pods = store.pods_on(node.name.as_str());
            for pod in pods.filter(|pod| !pod.is_terminal()) {
                used.cpu_milli += pod.requests.cpu_milli;
                used.memory += pod.requests.memory;
                sample.running += usize::from(!pod.is_daemon());
            }
        }
        sample.cpu_share = share_of(used.cpu_milli, allocatable.cpu_milli);
        sample.memory_share = share_of(used.memory, allocatable.memory);
        sample
    }

    /// Number of live instances.
    pub fn live_instances(&self) -> usize {
        self.instances.values().sum()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share_of(used: i64, total: i64) -> f64 {
    match total {
        0 => 0.0,
        total => used as f64 / total as f64,
    }
}

/// Takes a sample at every full minute of a run.
#[derive(Clone, Debug)]
pub struct Sampler {
    due: Timestamp,
    end: Timestamp,
    samples: Vec<WorldSample>,
}

impl Sampler {
    /// Creates a sampler. The first sample is due at the start, the last at the end.
    pub fn new(start: Timestamp, end: Timestamp) -> Self {
        Self { due: start, end, samples: Vec::new() }
    }

    /// Takes all samples that are due before the next step.
    pub fn take_due(&mut self, world: &World) {
        let next = world.next_at().filter(|at| *at <= self.end);
        while self.due <= self.end && next.is_none_or(|next| self.due < next) {
            self.samples.push(WorldSample::from_world(world, self.due));
            self.due = time_after(self.due, EVERY);
        }
    }

    /// All samples, one a minute.
    pub fn samples(&self) -> &[WorldSample] {
        &self.samples
    }
}
