//! The supply of pools and the demand of pods, as plain rows of numbers.
//!
//! Only resources count, and the requirements of a pool on types and offerings. Zones, topology
//! spread, affinity and limits are ignored.

use std::collections::{BTreeMap, BTreeSet};

use outrigger::model::id::{PoolName, TypeName};
use outrigger::model::instance::{InstanceType, Offering};
use outrigger::model::labels::{CAPACITY_TYPE, POOL, ZONE};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::taint::{Effect, Taint, first_untolerated};
use outrigger::state::snapshot::Snapshot;

/// An instance type in a pool.
#[derive(Clone, Debug)]
pub struct Supply {
    /// The pool.
    pub pool: PoolName,
    /// The type.
    pub instance_type: TypeName,
    /// Its cheapest offering that the pool allows, in $/h.
    pub usd_per_h: f64,
    /// Capacity left after daemons, of each resource that pods request.
    pub net: Vec<i64>,
}

/// Pods with equal requests.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Requests of one pod, for each resource that any pod requests.
    pub asks: Vec<i64>,
    /// Number of pods.
    pub count: usize,
}

impl Demand {
    /// Returns true if one pod fits on an empty node.
    pub fn fits(&self, supply: &Supply) -> bool {
        self.asks.iter().zip(&supply.net).all(|(asks, net)| asks <= net)
    }
}

/// The demand of pods and the supply of pools.
#[derive(Clone, Debug)]
pub struct Market {
    /// Names of the resources, in the order of all quantities.
    pub resources: Vec<String>,
    /// Types by pool: pools by weight, then name; types by name.
    pub supplies: Vec<Supply>,
    /// Demands, sorted by quantities.
    pub demands: Vec<Demand>,
}

impl Market {
    /// Returns the market of a snapshot for some of its pending pods.
    pub fn new<'a>(snapshot: &Snapshot<'_>, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let pods: Vec<&Pod> = pods.into_iter().collect();
        let named = pods.iter().flat_map(|pod| pod.requests.iter());
        let names: BTreeSet<&str> = named.map(|(name, _)| name).collect();
        let amounts = |resources: &Resources| -> Vec<i64> {
            names.iter().map(|name| resources.get(name)).collect()
        };
        let mut counts: BTreeMap<Vec<i64>, usize> = BTreeMap::new();
        for pod in pods {
            *counts.entry(amounts(&pod.requests)).or_default() += 1;
        }
        let mut pools: Vec<&Pool> = snapshot.cluster.pools.iter().collect();
        pools.sort_by_key(|pool| (std::cmp::Reverse(pool.weight), &pool.name));
        let mut supplies = Vec::new();
        for pool in pools {
            for it in snapshot.catalog.types() {
                let Some(usd_per_h) = price(pool, it) else {
                    continue;
                };
                let mut net = it.allocatable.clone();
                for set in &snapshot.daemon_sets {
                    if carries(pool, it, set) {
                        net.subtract(&set.template.requests);
                    }
                }
                // If a quantity is below zero, nothing fits (spec/scheduling.md §2.13).
                if Resources::default().fit_into(&net) {
                    supplies.push(Supply {
                        pool: pool.name.clone(),
                        instance_type: it.name.clone(),
                        usd_per_h,
                        net: amounts(&net),
                    });
                }
            }
        }
        let demand = |(asks, count)| Demand { asks, count };
        Self {
            resources: names.into_iter().map(str::to_owned).collect(),
            supplies,
            demands: counts.into_iter().map(demand).collect(),
        }
    }
}

/// Possible labels of the nodes of a pool, before a type is chosen.
fn labels(pool: &Pool) -> Requirements {
    let mut labels = pool.requirements.clone();
    labels.add_all(&Requirements::from_labels(&pool.labels));
    labels.add(POOL, Requirement::is_in([pool.name.as_str()]));
    labels
}

/// Lowest price of a type in a pool. `None` if the pool cannot launch it.
fn price(pool: &Pool, it: &InstanceType) -> Option<f64> {
    let labels = labels(pool);
    it.requirements.check_intersection(&labels).ok()?;
    let has = |key: &str, value: &str| labels.get(key).is_none_or(|own| own.allows_value(value));
    let sells = |offering: &&Offering| {
        offering.available
            && has(ZONE, offering.zone.as_str())
            && has(CAPACITY_TYPE, offering.capacity_type.as_str())
    };
    let prices = it.offerings.iter().filter(sells).map(|offering| offering.price);
    prices.min().map(|price| price.usd_per_h())
}

/// Returns true if nodes of this pool and type run the pods of a DaemonSet.
fn carries(pool: &Pool, it: &InstanceType, set: &DaemonSet) -> bool {
    let pod = &set.template;
    let hard = |taint: &&Taint| taint.effect != Effect::PreferNoSchedule;
    if first_untolerated(pool.taints.iter().filter(hard), &pod.tolerations).is_some() {
        return false;
    }
    let mut node = it.requirements.clone();
    node.add_all(&labels(pool));
    let selector = Requirements::from_labels(&pod.node_selector);
    let takes = |term: &Requirements| {
        let mut wanted = selector.clone();
        wanted.add_all(term);
        node.check_compatible(&wanted, true).is_ok()
    };
    if pod.node_affinity.is_empty() {
        return takes(&Requirements::default());
    }
    pod.node_affinity.iter().any(takes)
}
