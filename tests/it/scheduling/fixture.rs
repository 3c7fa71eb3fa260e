//! Small clusters for planning: all data that a snapshot borrows, and functions to build it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use outrigger::catalog::Catalog;
use outrigger::catalog::overlay::PoolCatalogs;
use outrigger::model::affinity::{PodTerm, TopologySpread};
use outrigger::model::cluster::Cluster;
use outrigger::model::fleet::FleetView;
use outrigger::model::id::{NodeName, ObjectKey, PodKey, PoolName};
use outrigger::model::instance::{CapacityType, InstanceType, Offering, Price};
use outrigger::model::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, NODE_NAME, OS, ZONE,
};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use outrigger::model::watched_object::WorkloadSelector;
use outrigger::scheduling::{Solution, solve};
use outrigger::state::selectors::WorkloadSelectors;
use outrigger::state::snapshot::{
    BoundPodGroup, BufferPods, ExistingNode, NodeRef, Snapshot, Usage, VolumeRequirements,
};
use outrigger::state::unavailable_offerings::UnavailableOfferings;

pub(crate) const MIB: i64 = 1 << 20;
pub(crate) const GIB: i64 = 1 << 30;
pub(crate) const NOW: Timestamp = Timestamp::UNIX_EPOCH;
/// A label of types that is a number.
pub(crate) const CPU: &str = "karpenter.k8s.aws/instance-cpu";
/// The default namespace.
pub(crate) const DEFAULT: &str = "default";

/// Everything a snapshot borrows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) catalog: Catalog,
    pub(crate) overlaid: PoolCatalogs,
    pub(crate) holds: UnavailableOfferings,
    pub(crate) fleet: Option<FleetView>,
    pub(crate) rooms: Vec<ExistingNode>,
    /// Bound pods, each with the name of its node. Their requests do not affect free capacity.
    pub(crate) residents: Vec<Pod>,
    /// Pods that wait for an in-flight node. Their requests are not part of its free capacity.
    pub(crate) promised: BTreeMap<NodeRef, Vec<Pod>>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) mounts: BTreeMap<PodKey, VolumeRequirements>,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    /// The objects that select pods, and their form in a snapshot.
    pub(crate) selecting: Vec<WorkloadSelector>,
    pub(crate) selectors: WorkloadSelectors,
    pub(crate) daemons: Vec<DaemonSet>,
    pub(crate) usage: BTreeMap<PoolName, Usage>,
}

/// The properties of bound pods that constraints of other pods depend on.
type BoundPodKey<'w> = (&'w str, &'w Labels, &'w [PodTerm], bool);

impl World {
    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        let mut namespaces = BTreeMap::new();
        for (name, labels) in &self.namespaces {
            namespaces.insert(name.as_str(), labels);
        }
        let promised = self.promised.iter();
        Snapshot {
            cluster: &self.cluster,
            catalog: &self.catalog,
            overlaid: &self.overlaid,
            holds: &self.holds,
            fleet: self.fleet.as_ref(),
            rooms: self.rooms.iter().map(with_node_name).collect(),
            residents: self.residents(),
            promised: promised.map(|(host, pods)| (host.clone(), pods.iter().collect())).collect(),
            mounts: self.mounts.iter().map(|(k, m)| (k, m.clone())).collect(),
            namespaces,
            selectors: &self.selectors,
            pending: self.pods.iter().collect(),
            reschedulable: Vec::new(),
            daemon_sets: self.daemons.iter().collect(),
            usage: self.usage.clone(),
            gangs: self.gangs(),
            reservations: self.catalog.reservations().clone(),
            lacking: BTreeMap::new(),
            spare: BufferPods::default(),
        }
    }

    fn gangs(&self) -> BTreeMap<(&str, &str), usize> {
        let gangs = self.pods.iter().filter_map(|pod| Some((pod.gang_key()?, 0)));
        let mut gangs: BTreeMap<(&str, &str), usize> = gangs.collect();
        let stays = |pod: &&Pod| pod.deleting.is_none();
        let bound = self.residents.iter().filter(stays).filter_map(Pod::gang_key);
        for key in bound {
            gangs.entry(key).and_modify(|count| *count += 1);
        }
        gangs
    }

    /// The bound pods of the snapshot: pods with equal properties are one entry.
    fn residents(&self) -> Vec<BoundPodGroup<'_>> {
        let mut groups: BTreeMap<BoundPodKey<'_>, BTreeMap<&NodeName, u32>> = BTreeMap::new();
        for pod in &self.residents {
            let group = (
                pod.key.namespace.as_str(),
                &pod.labels,
                pod.anti_affinity.as_slice(),
                pod.deleting.is_some(),
            );
            let node = pod.node.as_ref().expect("a bound pod names its node");
            *groups.entry(group).or_default().entry(node).or_insert(0) += 1;
        }
        let mut all = Vec::new();
        for ((namespace, labels, anti_affinity, deleting), nodes) in groups {
            all.push(BoundPodGroup {
                namespace,
                labels,
                anti_affinity,
                deleting,
                nodes: nodes.into_iter().collect(),
            });
        }
        all
    }

    /// Adds an object that selects pods.
    pub(crate) fn select(&mut self, workload: WorkloadSelector) {
        self.selectors.apply(workload.clone());
        self.selecting.push(workload);
    }

    pub(crate) fn solve(&self) -> Solution {
        solve(&self.snapshot(), NOW)
    }

    pub(crate) fn pool(&mut self) -> &mut Pool {
        &mut self.cluster.pools[0]
    }
}

/// The types of Karpenter's kwok provider: families c, s and m with 2, 4 and 8 GiB per CPU.
pub(crate) fn kwok_like(arch: &str, cpus: &[i64], zones: &[&str]) -> Vec<InstanceType> {
    let families = [("c", 2), ("s", 4), ("m", 8)];
    let shapes = cpus.iter().flat_map(|cpu| families.map(|(name, gib)| (*cpu, name, gib)));
    let of = |(cpu, family, gib): (i64, &str, i64)| {
        let name = format!("{family}-{cpu}x-{arch}");
        let memory = cpu * gib * GIB;
        let capacity = Resources {
            cpu_milli: cpu * 1000,
            memory,
            ephemeral_storage: 20 * GIB,
            pods: (16 * cpu).min(1024),
            ..Resources::default()
        };
        let mut allocatable = capacity.clone();
        allocatable.cpu_milli -= 100;
        allocatable.memory -= 10 * MIB;
        let price = 0.025 * cpu as f64 + 0.001 * memory as f64 / 1e9;
        let capacity_types = [(CapacityType::Spot, 0.7), (CapacityType::OnDemand, 1.0)];
        let offering = |(capacity_type, share): (CapacityType, f64), zone: &str| Offering {
            zone: zone.into(),
            capacity_type,
            price: Price::new(price * share).expect("a price"),
            available: true,
            reservation: None,
        };
        let offerings = capacity_types
            .iter()
            .flat_map(|capacity_type| zones.iter().map(|zone| offering(*capacity_type, zone)));
        let requirements = [
            (INSTANCE_TYPE, Requirement::is_in([name.as_str()])),
            (ARCH, Requirement::is_in([arch])),
            (OS, Requirement::is_in(["linux"])),
            (CPU, Requirement::is_in([cpu.to_string()])),
            (ZONE, Requirement::is_in(zones.iter().copied())),
            (CAPACITY_TYPE, Requirement::is_in(["spot", "on-demand"])),
        ];
        InstanceType {
            name: name.as_str().into(),
            requirements: requirements.into_iter().collect(),
            capacity,
            allocatable,
            offerings: offerings.collect(),
        }
    };
    shapes.map(of).collect()
}

const CPUS: [i64; 12] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256];

/// One on-demand pool, and all types.
pub(crate) fn world() -> World {
    let mut pool = Pool::new("general");
    pool.requirements.add(CAPACITY_TYPE, Requirement::is_in(["on-demand"]));
    let mut world = World {
        catalog: Catalog::new(kwok_like("amd64", &CPUS, &["a", "b", "c", "d"])),
        ..World::default()
    };
    world.cluster.pools.push(pool);
    world
}

pub(crate) fn pod(name: &str, cpu_milli: i64, memory: i64) -> Pod {
    Pod {
        key: ObjectKey::new(DEFAULT, name),
        requests: Resources { cpu_milli, memory, pods: 1, ..Resources::default() },
        ..Pod::default()
    }
}

pub(crate) fn pods(prefix: &str, count: usize, cpu_milli: i64, memory: i64) -> Vec<Pod> {
    let name = |at| format!("{prefix}{at}");
    (0..count).map(|at| pod(&name(at), cpu_milli, memory)).collect()
}

pub(crate) fn label(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

pub(crate) fn taint(key: &str, effect: Effect) -> Taint {
    Taint::new(key, effect)
}

pub(crate) fn tolerates(key: &str) -> Toleration {
    Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    }
}

pub(crate) fn port(number: u16) -> (String, String, u16) {
    ("TCP".to_owned(), String::new(), number)
}

/// An initialized node with this free capacity, and no label except its host name.
pub(crate) fn room(name: &str, free: Resources) -> ExistingNode {
    ExistingNode {
        host: NodeRef::Node(name.into()),
        labels: Requirements::from_iter([(HOSTNAME, Requirement::is_in([name]))]).into(),
        taints: Vec::new(),
        free,
        daemons: Vec::new(),
        host_ports: BTreeSet::new(),
        initialized: true,
        idle: false,
        open: true,
    }
}

/// A selector of the label `app`.
pub(crate) fn app(value: &str) -> Selector {
    Selector::from_labels(&Labels::from([label("app", value)]))
}

/// A term about pods of one namespace.
pub(crate) fn term(selector: Selector, topology_key: &str) -> PodTerm {
    PodTerm {
        selector: Some(selector),
        namespaces: BTreeSet::from([DEFAULT.to_owned()]),
        namespace_selector: None,
        topology_key: topology_key.to_owned(),
    }
}

/// A hard spread constraint with the defaults of Kubernetes.
pub(crate) fn spread(selector: Selector, topology_key: &str, max_skew: u32) -> TopologySpread {
    TopologySpread {
        selector: Some(selector),
        topology_key: topology_key.to_owned(),
        max_skew,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
        is_hard: true,
    }
}

/// The node with the pseudo-label of its name, like in a snapshot.
fn with_node_name(room: &ExistingNode) -> ExistingNode {
    let mut room = room.clone();
    if let NodeRef::Node(name) = &room.host {
        let requirement = Requirement::is_in([name.as_str()]);
        Arc::make_mut(&mut room.labels).add(NODE_NAME, requirement);
    }
    room
}
