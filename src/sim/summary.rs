//! The day in numbers, and what the same pods would have cost on nodes of one fixed type.
//! It must not know how the day went in detail.

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
use crate::sim::invariants::GroundTruth;
use crate::sim::workload::WorkloadKind;

/// The fixed fleet is looked at this often.
pub const SAMPLE: SignedDuration = SignedDuration::from_mins(5);

/// The same pods on nodes of one type, each bought as the node is bought that the pod is on.
///
/// It is kinder to that fleet than life: at every look all pods that are on a node of ours at that
/// moment are packed anew, first fit by falling cpu, labels and taints do not count, nodes come at
/// once and moving a pod costs nothing. A real node group of that type is never that full. What is
/// reserved is paid for in both.
#[derive(Clone, Debug)]
pub struct FixedFleet {
    shape: Option<InstanceType>,
    dollars: f64,
    usd_per_h: f64,
    peak: usize,
}

impl FixedFleet {
    /// A fleet of this type; of none, costing nothing, where the catalog has no such type.
    pub fn new(shape: Option<&InstanceType>) -> Self {
        Self {
            shape: shape.cloned(),
            dollars: 0.0,
            usd_per_h: 0.0,
            peak: 0,
        }
    }

    /// Prices the pods of this moment for the time until the next look, which is none at the end.
    pub fn sample(&mut self, scene: &GroundTruth, until_next: SignedDuration) {
        let Some(shape) = &self.shape else { return };
        let (mut nodes, mut usd_per_h) = (0, 0.0);
        for (capacity_type, pods) in pods_by_capacity_type(scene) {
            let count = packed(pods, shape, &daemons(&scene.cluster));
            #[expect(clippy::cast_precision_loss, reason = "a number of nodes is small")]
            let own = count as f64 * price(shape, capacity_type).usd_per_h();
            nodes += count;
            usd_per_h += own;
        }
        usd_per_h += reserved_usd_per_h(scene);
        self.peak = self.peak.max(nodes);
        self.usd_per_h = usd_per_h;
        self.dollars += usd_per_h * until_next.as_secs_f64() / 3600.0;
    }

    /// What it has cost so far, in US dollars.
    pub fn cost(&self) -> f64 {
        self.dollars
    }

    /// What it costs since the last look, in US dollars an hour.
    pub fn usd_per_h(&self) -> f64 {
        self.usd_per_h
    }

    /// Most nodes at once.
    pub fn peak(&self) -> usize {
        self.peak
    }
}

/// What the fixed type costs where it is bought this way; on demand where it is not sold so.
fn price(shape: &InstanceType, capacity_type: CapacityType) -> Price {
    let cheapest = |wanted| {
        let offerings = shape.offerings.iter();
        let offerings = offerings.filter(|own| own.capacity_type == wanted);
        offerings.map(|own| own.price).min()
    };
    cheapest(capacity_type)
        .or_else(|| cheapest(CapacityType::OnDemand))
        .unwrap_or_default()
}

/// What pods ask for that are on nodes of ours, by how the node is bought; those in reservations
/// are left out, and daemons are.
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

/// What instances in reservations cost.
fn reserved_usd_per_h(scene: &GroundTruth) -> f64 {
    let offerings = scene.live().map(|own| &own.truth().offering);
    let reserved = offerings.filter(|own| own.capacity_type == CapacityType::Reserved);
    let prices = reserved.filter_map(|own| scene.catalog.offering(own));
    prices.map(|own| own.price.usd_per_h()).sum()
}

/// What all daemons of a node ask for.
fn daemons(cluster: &SimCluster) -> Resources {
    let mut daemons = Resources::default();
    let own = cluster.workloads().map(|owned| &owned.workload);
    for workload in own.filter(|own| own.owns == WorkloadKind::DaemonSet) {
        daemons.add(&workload.requests);
        daemons.pods += 1;
    }
    daemons
}

/// How many nodes of the type these pods take: first fit by falling cpu.
fn packed(mut pods: Vec<&Resources>, shape: &InstanceType, daemons: &Resources) -> usize {
    pods.sort_by_key(|pod| Reverse((pod.cpu_milli, pod.memory)));
    let mut nodes: Vec<Resources> = Vec::new();
    for pod in pods {
        let place = nodes
            .iter_mut()
            .find(|used| has_room(pod, &shape.allocatable, used));
        match place {
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

/// A day in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// What the scenario shows.
    pub title: String,
    /// The seed.
    pub seed: u64,
    /// When the day began.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
    /// Pods that were bound; daemons left out.
    pub pods_bound: usize,
    /// Median of the time from a pod's creation to its binding.
    pub bind_p50: SignedDuration,
    /// 95th percentile of that.
    pub bind_p95: SignedDuration,
    /// Instances launched.
    pub launched: usize,
    /// Instances that have ended.
    pub retired: usize,
    /// Most live instances at once.
    pub peak: usize,
    /// What they cost, in US dollars.
    pub cost: f64,
    /// The type of the fixed fleet.
    pub fixed_type: TypeName,
    /// Its most nodes at once.
    pub fixed_peak: usize,
    /// What the same pods would have cost on it, in US dollars.
    pub fixed_cost: f64,
    /// Evictions granted.
    pub evictions: u32,
    /// Launches refused.
    pub refusals: u32,
    /// Spot instances taken back.
    pub interruptions: u32,
    /// How often the daemon was started anew.
    pub restarts: u32,
}

/// The value below which this share of the values lies: nearest rank.
pub fn percentile(values: &[SignedDuration], per_cent: usize) -> SignedDuration {
    let mut sorted = values.to_vec();
    sorted.sort();
    let rank = (sorted.len() * per_cent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

impl Summary {
    /// By how many per cent the day was cheaper than on the fixed fleet.
    pub fn saving(&self) -> f64 {
        if self.fixed_cost > 0.0 {
            (1.0 - self.cost / self.fixed_cost) * 100.0
        } else {
            0.0
        }
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
            "saving_per_cent": self.saving(),
            "evictions": self.evictions,
            "refusals": self.refusals,
            "interruptions": self.interruptions,
            "restarts": self.restarts,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |duration: SignedDuration| duration.as_secs_f64();
        writeln!(f, "{}, seed {}", self.title, self.seed)?;
        writeln!(
            f,
            "  pods    {} bound; from creation to binding p50 {:.1} s, p95 {:.1} s",
            self.pods_bound,
            seconds(self.bind_p50),
            seconds(self.bind_p95)
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
            let (saving, word) = match self.saving() {
                less @ 0.0.. => (less, "less"),
                more => (-more, "more"),
            };
            write!(f, " ({saving:.0} % {word})")?;
        }
        Ok(())
    }
}
