//! A large cluster, and a thousand pending pods.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use outrigger::catalog::Catalog;
use outrigger::model::id::{NodeName, TypeName};
use outrigger::model::instance::{CapacityType, InstanceType};
use outrigger::model::labels::{
    CAPACITY_TYPE, HOSTNAME, INITIALIZED, INSTANCE_TYPE, OS, POOL, REGISTERED, ZONE,
};
use outrigger::model::pod::Pod;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::state::snapshot::{ExistingNode, NodeRef};

use crate::catalogs::FAKE_ZONES;
use crate::workloads::deployments::Deployment;
use crate::workloads::diverse::draw_requests;
use crate::workloads::{Running, SEED, Workload, fake};

const NODES: usize = 5_000;
const DEPLOYMENTS: usize = 200;
/// Number of nodes between two pods of a deployment: twenty pods per node.
const STRIDE: usize = 10;
/// Running pods of each deployment: 100,000 in total.
const RUNNING: usize = NODES / STRIDE;
/// Number of deployments with pending pods, and pending pods of each: 1,000 in total.
const GROWING: usize = 50;
const WAITING: usize = 20;

/// 1,000 pending pods of 50 deployments, 5,000 nodes, and the 100,000 pods on them. Of twenty
/// deployments, twelve have no constraints, four are spread over zones, two are spread over hosts,
/// and two have anti-affinity by host.
pub fn standing() -> Workload {
    let mut random = Rng::with_seed(SEED);
    let deployments: Vec<Deployment> =
        (0..DEPLOYMENTS).map(|at| deployment(&mut random, at)).collect();
    let waiting = deployments.iter().take(GROWING);
    let pods = waiting.flat_map(|it| (RUNNING..RUNNING + WAITING).map(|at| it.pod(at)));
    let mut workload = fake(pods.collect());
    let mut used = vec![Resources::default(); NODES];
    for (at, deployment) in deployments.iter().enumerate() {
        let template = deployment.pod(0);
        let places: Vec<usize> = (0..RUNNING).map(|k| (at + k * STRIDE) % NODES).collect();
        for place in &places {
            used[*place].add(&template.requests);
        }
        workload.running.push(Running {
            template,
            nodes: places.into_iter().map(|place| (name(place), 1)).collect(),
        });
    }
    let types: BTreeMap<i64, &InstanceType> =
        workload.catalog.types().map(|it| (it.capacity.cpu_milli, it)).collect();
    let mut rooms = Vec::with_capacity(NODES);
    let of_pool = workload.usage.entry("default".into()).or_default();
    for (place, used) in used.iter().enumerate() {
        let mut fitting = types.values().filter(|it| used.fit_into(&it.allocatable));
        // The smallest fitting type has up to one core free. This one has more.
        let it = fitting.nth(random.usize(..3)).expect("a type that is large enough");
        of_pool.capacity.add(&it.capacity);
        of_pool.nodes += 1;
        rooms.push(room(place, it, used));
    }
    workload.rooms = rooms;
    workload
}

/// The same nodes and running pods, for this number of nodes: the type and the pods of each node.
pub fn scattered(nodes: usize) -> (Catalog, Vec<(TypeName, Vec<Pod>)>) {
    let mut random = Rng::with_seed(SEED);
    let deployments: Vec<Deployment> =
        (0..DEPLOYMENTS).map(|at| deployment(&mut random, at)).collect();
    let mut homes: Vec<Vec<Pod>> = vec![Vec::new(); nodes];
    for (at, deployment) in deployments.iter().enumerate() {
        for k in 0..nodes / STRIDE {
            homes[(at + k * STRIDE) % nodes].push(deployment.pod(k));
        }
    }
    let catalog = fake(Vec::new()).catalog;
    let types: BTreeMap<i64, &InstanceType> =
        catalog.types().map(|it| (it.capacity.cpu_milli, it)).collect();
    let mut all = Vec::with_capacity(nodes);
    for pods in homes {
        let mut used = Resources::default();
        pods.iter().for_each(|pod| used.add(&pod.requests));
        let mut fitting = types.values().filter(|it| used.fit_into(&it.allocatable));
        let it = fitting.nth(random.usize(..3));
        all.push((it.expect("a type that is large enough").name.clone(), pods));
    }
    (catalog, all)
}

fn deployment(random: &mut Rng, at: usize) -> Deployment {
    let (cpu_milli, memory) = draw_requests(random);
    let (spread, apart) = match at % 20 {
        0..12 => (vec![], vec![]),
        12..16 => (vec![ZONE], vec![]),
        16..18 => (vec![HOSTNAME], vec![]),
        _ => (vec![], vec![HOSTNAME]),
    };
    Deployment { name: format!("d{at:03}"), replicas: RUNNING, cpu_milli, memory, spread, apart }
}

fn name(place: usize) -> NodeName {
    NodeName::from(format!("node-{place:04}"))
}

fn room(place: usize, it: &InstanceType, used: &Resources) -> ExistingNode {
    let node = name(place);
    let zone = FAKE_ZONES[place % FAKE_ZONES.len()];
    let own = [
        (HOSTNAME, node.as_str()),
        (INSTANCE_TYPE, it.name.as_str()),
        (ZONE, zone),
        (CAPACITY_TYPE, CapacityType::OnDemand.as_str()),
        (OS, "linux"),
        (POOL, "default"),
        (REGISTERED, "true"),
        (INITIALIZED, "true"),
        ("testing/cluster", "unspecified"),
    ];
    let label = |(key, value)| (key, Requirement::is_in([value]));
    let mut free = it.allocatable.clone();
    free.subtract(used);
    ExistingNode {
        labels: Requirements::from_iter(own.map(label)).into(),
        host: NodeRef::Node(node),
        taints: Vec::new(),
        free,
        daemons: Vec::new(),
        host_ports: BTreeSet::new(),
        initialized: true,
        idle: false,
        open: true,
    }
}
