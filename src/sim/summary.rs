//! The day in numbers, and what the same day would have cost on nodes of one fixed type.
//! It must not know how the day went in detail.

use std::cmp::Reverse;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::model::id::TypeName;
use crate::model::instance::{CapacityType, InstanceType, Price};
use crate::model::quantity::Resources;
use crate::sim::cluster::SimCluster;
use crate::sim::cluster::filter::has_room;
use crate::sim::workload::Owns;

/// The fixed fleet is looked at this often.
pub const SAMPLE: SignedDuration = SignedDuration::from_mins(5);

/// The same day on nodes of one type, on demand.
///
/// It is kinder to that fleet than life: at every look all pods of that moment are packed anew,
/// first fit by falling cpu, labels and taints do not count, nodes come at once and moving a pod
/// costs nothing. A real node group of that type is never that full.
#[derive(Clone, Debug)]
pub struct FixedFleet {
    shape: Option<InstanceType>,
    price: Price,
    node_seconds: f64,
    peak: usize,
}

impl FixedFleet {
    /// A fleet of this type; of none, costing nothing, where the catalog has no such type.
    pub fn new(shape: Option<&InstanceType>) -> Self {
        let on_demand = |shape: &InstanceType| {
            let mut offerings = shape.offerings.iter();
            let found = offerings.find(|offering| offering.capacity_type == CapacityType::OnDemand);
            found.map(|offering| offering.price)
        };
        Self {
            price: shape.and_then(on_demand).unwrap_or_default(),
            shape: shape.cloned(),
            node_seconds: 0.0,
            peak: 0,
        }
    }

    /// Prices the pods of this moment for the time until the next look.
    pub fn sample(&mut self, cluster: &SimCluster) {
        let Some(shape) = &self.shape else { return };
        let mut daemons = Resources::default();
        for owned in cluster
            .workloads()
            .filter(|owned| owned.workload.owns == Owns::DaemonSet)
        {
            daemons.add(&owned.workload.requests);
            daemons.pods += 1;
        }
        let mut pods: Vec<&Resources> = cluster
            .store()
            .pods()
            .values()
            .filter(|pod| !pod.is_daemon() && !pod.is_terminal())
            .map(|pod| &pod.requests)
            .collect();
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
        self.peak = self.peak.max(nodes.len());
        #[expect(clippy::cast_precision_loss, reason = "a number of nodes is small")]
        let count = nodes.len() as f64;
        self.node_seconds += count * SAMPLE.as_secs_f64();
    }

    /// What it has cost so far.
    pub fn cost(&self) -> f64 {
        self.node_seconds / 3600.0 * self.price.usd_per_h()
    }

    /// Most nodes at once.
    pub fn peak(&self) -> usize {
        self.peak
    }
}

/// A day in numbers.
#[derive(Clone, Debug, PartialEq)]
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
    /// What the same day would have cost on it.
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
            "  cost    {:.2} $; the same day on {} on demand, packed anew every {} min: {:.2} $",
            self.cost,
            self.fixed_type,
            SAMPLE.as_mins(),
            self.fixed_cost
        )?;
        if self.fixed_cost > 0.0 {
            write!(f, " ({:.0} % less)", self.saving())?;
        }
        Ok(())
    }
}
