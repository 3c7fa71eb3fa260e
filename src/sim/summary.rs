//! Summary of a run, and the cost of the same pods on nodes of one fixed type.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::model::id::TypeName;
use crate::model::instance::{CapacityType, InstanceType, Price};
use crate::model::quantity::Resources;
use crate::sim::cluster::SimCluster;
use crate::sim::cluster::scheduler_filters::has_room;
use crate::sim::cluster::workload_controllers::SimWorkload;
use crate::sim::invariants::GroundTruth;
use crate::sim::workload::WorkloadKind;

/// Interval at which the fixed fleet is computed.
pub const SAMPLE: SignedDuration = SignedDuration::from_mins(5);

/// A fleet of one instance type for the same pods. Each node has the capacity type of the node that
/// its pods run on.
///
/// The fleet is cheaper than a real fleet would be. At every interval, all pods on managed nodes
/// are packed again by first-fit decreasing on CPU. Labels and taints are ignored, nodes start
/// immediately, and moving a pod has no cost. A real node group of this type is never that full.
/// Both fleets pay for reservations.
#[derive(Clone, Debug)]
pub struct FixedFleet {
    shape: Option<InstanceType>,
    /// Total cost until now, in US dollars.
    pub total_cost: f64,
    /// Price since the last sample, in US dollars per hour.
    pub usd_per_h: f64,
    /// Maximum number of nodes at the same time.
    pub peak_nodes: usize,
}

impl FixedFleet {
    /// Creates a fleet of this type. Without a type, its cost is zero.
    pub fn new(shape: Option<&InstanceType>) -> Self {
        Self { shape: shape.cloned(), total_cost: 0.0, usd_per_h: 0.0, peak_nodes: 0 }
    }

    /// Adds the cost of the current pods until the next sample. `until_next` is zero at the end.
    pub fn add_sample(&mut self, scene: &GroundTruth, until_next: SignedDuration) {
        let Some(shape) = &self.shape else { return };
        let (mut nodes, mut usd_per_h) = (0, 0.0);
        for (capacity_type, pods) in pods_by_capacity_type(scene) {
            let count = packed_nodes(pods, shape, &daemon_requests(&scene.cluster));
            #[expect(clippy::cast_precision_loss, reason = "a number of nodes is small")]
            let cost = count as f64 * price_of(shape, capacity_type).usd_per_h();
            nodes += count;
            usd_per_h += cost;
        }
        usd_per_h += reserved_usd_per_h(scene);
        self.peak_nodes = self.peak_nodes.max(nodes);
        self.usd_per_h = usd_per_h;
        self.total_cost += usd_per_h * until_next.as_secs_f64() / 3600.0;
    }
}

/// Price of the fixed type with this capacity type, or on demand if it is not offered.
fn price_of(shape: &InstanceType, capacity_type: CapacityType) -> Price {
    let offerings = shape.offerings.iter();
    offerings
        .filter(|offering| {
            [capacity_type, CapacityType::OnDemand].contains(&offering.capacity_type)
        })
        .min_by_key(|offering| (offering.capacity_type != capacity_type, offering.price))
        .map(|offering| offering.price)
        .unwrap_or_default()
}

/// Requests of pods on managed nodes, by capacity type, without reservations and daemons.
fn pods_by_capacity_type(scene: &GroundTruth) -> BTreeMap<CapacityType, Vec<&Resources>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for node in scene.cluster.store().nodes().values() {
        let Some(machine) = scene.our_machine(node) else {
            continue;
        };
        let capacity_type = machine.truth().offering.capacity_type;
        if capacity_type == CapacityType::Reserved {
            continue;
        }
        let pods = scene.cluster.store().pods_on(node.name.as_str());
        let pods = pods.filter(|pod| !pod.is_daemon() && !pod.is_terminal());
        let requests = pods.map(|pod| &pod.requests);
        all.entry(capacity_type).or_default().extend(requests);
    }
    all
}

/// Price of the instances in reservations.
fn reserved_usd_per_h(scene: &GroundTruth) -> f64 {
    scene
        .live_instances()
        .map(|machine| &machine.truth().offering)
        .filter(|offering| offering.capacity_type == CapacityType::Reserved)
        .filter_map(|offering| scene.catalog.offering(offering))
        .map(|offering| offering.price.usd_per_h())
        .sum()
}

/// Total requests of the daemons on a node.
fn daemon_requests(cluster: &SimCluster) -> Resources {
    let mut daemons = Resources::default();
    for SimWorkload { workload, .. } in cluster.workloads() {
        if workload.owns == WorkloadKind::DaemonSet {
            daemons.add(&workload.requests);
            daemons.pods += 1;
        }
    }
    daemons
}

/// Number of nodes of the type for these pods, by first-fit decreasing on CPU.
fn packed_nodes(mut pods: Vec<&Resources>, shape: &InstanceType, daemons: &Resources) -> usize {
    pods.sort_by_key(|pod| Reverse((pod.cpu_milli, pod.memory)));
    let mut nodes: Vec<Resources> = Vec::new();
    for pod in pods {
        let mut open = nodes.iter_mut();
        match open.find(|used| has_room(pod, &shape.allocatable, used)) {
            Some(used) => used.add(pod),
            None => {
                let mut used = daemons.clone();
                used.add(pod);
                nodes.push(used);
            }
        }
    }
    nodes.len()
}

/// Summary of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Title of the scenario.
    pub title: String,
    /// The seed.
    pub seed: u64,
    /// Start time.
    pub start: Timestamp,
    /// End time.
    pub end: Timestamp,
    /// Number of bound pods, without daemons.
    pub pods_bound: usize,
    /// Median time from creation to binding of a pod.
    pub bind_p50: SignedDuration,
    /// 95th percentile of the time from creation to binding of a pod.
    pub bind_p95: SignedDuration,
    /// Number of launched instances.
    pub launched: usize,
    /// Number of ended instances.
    pub retired: usize,
    /// Maximum number of live instances at the same time.
    pub peak: usize,
    /// Cost of the instances, in US dollars.
    pub cost: f64,
    /// Instance type of the fixed fleet.
    pub fixed_type: TypeName,
    /// Maximum number of nodes of the fixed fleet at the same time.
    pub fixed_peak: usize,
    /// Cost of the fixed fleet, in US dollars.
    pub fixed_cost: f64,
    /// Number of granted evictions.
    pub evictions: u32,
    /// Number of launches that failed for lack of capacity.
    pub refusals: u32,
    /// Number of interrupted spot instances.
    pub interruptions: u32,
    /// Number of restarts of the daemon.
    pub restarts: u32,
}

/// Percentile of the values by the nearest-rank method.
pub fn percentile(values: &[SignedDuration], per_cent: usize) -> SignedDuration {
    let mut sorted = values.to_vec();
    sorted.sort();
    let rank = (sorted.len() * per_cent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

impl Summary {
    /// Cost reduction compared with the fixed fleet, in percent.
    pub fn saving_percent(&self) -> f64 {
        if self.fixed_cost > 0.0 { (1.0 - self.cost / self.fixed_cost) * 100.0 } else { 0.0 }
    }

    /// The summary as one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "kind": "summary",
            "title": self.title,
            "seed": self.seed,
            "start": self.start.to_string(),
            "end": self.end.to_string(),
            "pods_bound": self.pods_bound,
            "bind_seconds_p50": self.bind_p50.as_secs_f64(),
            "bind_seconds_p95": self.bind_p95.as_secs_f64(),
            "nodes_launched": self.launched,
            "nodes_retired": self.retired,
            "nodes_peak": self.peak,
            "cost_usd": self.cost,
            "fixed_type": self.fixed_type.0,
            "fixed_nodes_peak": self.fixed_peak,
            "fixed_cost_usd": self.fixed_cost,
            "saving_per_cent": self.saving_percent(),
            "evictions": self.evictions,
            "refusals": self.refusals,
            "interruptions": self.interruptions,
            "restarts": self.restarts,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, seed {}", self.title, self.seed)?;
        writeln!(
            f,
            "  pods    {} bound; from creation to binding p50 {:.1} s, p95 {:.1} s",
            self.pods_bound,
            self.bind_p50.as_secs_f64(),
            self.bind_p95.as_secs_f64()
        )?;
        writeln!(
            f,
            "  nodes   {} launched, {} retired, {} at most at once",
            self.launched, self.retired, self.peak
        )?;
        writeln!(
            f,
            "  events  {} launches refused, {} interruptions, {} evictions, {} restarts",
            self.refusals, self.interruptions, self.evictions, self.restarts
        )?;
        write!(
            f,
            "  cost    {:.2} $; the same pods on {} nodes, bought the same way, packed anew every \
             {} min: {:.2} $",
            self.cost,
            self.fixed_type,
            SAMPLE.as_mins(),
            self.fixed_cost
        )?;
        if self.fixed_cost > 0.0 {
            let (saving, word) = match self.saving_percent() {
                less @ 0.0.. => (less, "less"),
                more => (-more, "more"),
            };
            write!(f, " ({saving:.0} % {word})")?;
        }
        Ok(())
    }
}
