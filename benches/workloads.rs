//! The workloads of the published benchmark results.

use std::collections::BTreeMap;

use outrigger::catalog::Catalog;
use outrigger::catalog::overlay::PoolCatalogs;
use outrigger::model::cluster::{Cluster, PreferencePolicy};
use outrigger::model::id::{NodeName, PoolName};
use outrigger::model::labels::{ARCH, CAPACITY_TYPE};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::Pool;
use outrigger::model::requirement::{Operator, Requirement};
use outrigger::state::selectors::WorkloadSelectors;
use outrigger::state::snapshot::{BoundPodGroup, BufferPods, ExistingNode, Snapshot, Usage};
use outrigger::state::unavailable_offerings::UnavailableOfferings;

use crate::catalogs::{self, GIB};

pub mod pods;
pub mod diverse;
pub mod deployments;
pub mod standing;
pub mod hopeless;

/// Seed of all random values.
pub const SEED: u64 = 42;

/// Identical running pods and their nodes.
#[derive(Clone, Debug)]
pub struct Running {
    /// Template of the pods.
    pub template: Pod,
    /// Number of pods on each node.
    pub nodes: Vec<(NodeName, u32)>,
}

impl Running {
    fn resident(&self) -> BoundPodGroup<'_> {
        BoundPodGroup {
            namespace: &self.template.key.namespace,
            labels: &self.template.labels,
            anti_affinity: &self.template.anti_affinity,
            deleting: false,
            nodes: self.nodes.iter().map(|(node, count)| (node, *count)).collect(),
        }
    }
}

/// All data that a snapshot borrows.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Configuration of the cluster.
    pub cluster: Cluster,
    /// The instance types.
    pub catalog: Catalog,
    /// Instance types with overlays applied.
    pub overlaid: PoolCatalogs,
    /// Unavailable offerings.
    pub holds: UnavailableOfferings,
    /// Existing nodes.
    pub rooms: Vec<ExistingNode>,
    /// Running pods.
    pub running: Vec<Running>,
    /// Pending pods.
    pub pods: Vec<Pod>,
    /// Workloads that select pods.
    pub selectors: WorkloadSelectors,
    /// DaemonSets.
    pub daemon_sets: Vec<DaemonSet>,
    /// Usage of each pool.
    pub usage: BTreeMap<PoolName, Usage>,
}

impl Workload {
    /// Pending pods in an empty cluster with one pool.
    pub fn new(catalog: Catalog, pool: Pool, pods: Vec<Pod>) -> Self {
        let mut workload = Self { catalog, pods, ..Self::default() };
        workload.cluster.pools.push(pool);
        workload
    }

    /// Returns the snapshot for the solver.
    pub fn snapshot(&self) -> Snapshot<'_> {
        let mut pending: Vec<&Pod> = self.pods.iter().collect();
        pending.sort_by(|one, other| one.key.cmp(&other.key));
        Snapshot {
            cluster: &self.cluster,
            catalog: &self.catalog,
            overlaid: &self.overlaid,
            holds: &self.holds,
            fleet: None,
            rooms: self.rooms.clone(),
            residents: self.running.iter().map(Running::resident).collect(),
            promised: BTreeMap::new(),
            mounts: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            selectors: &self.selectors,
            pending,
            reschedulable: Vec::new(),
            daemon_sets: self.daemon_sets.iter().collect(),
            usage: self.usage.clone(),
            gangs: BTreeMap::new(),
            reservations: self.catalog.reservations().clone(),
            lacking: BTreeMap::new(),
            spare: BufferPods::default(),
        }
    }

    /// Returns true if the pods request only resources, so that the greedy algorithm supports them.
    pub fn is_plain(&self) -> bool {
        let plain = |pod: &Pod| {
            let bare = Pod {
                key: pod.key.clone(),
                uid: pod.uid.clone(),
                labels: pod.labels.clone(),
                owner: pod.owner.clone(),
                unschedulable: pod.unschedulable,
                requests: pod.requests.clone(),
                ..Pod::default()
            };
            *pod == bare
        };
        self.rooms.is_empty() && self.pods.iter().all(plain)
    }
}

/// A workload and Karpenter's result for it.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Name: the instance types, then the pods.
    pub name: &'static str,
    /// Pods per second that Karpenter 1.14 schedules in its own benchmark on two cores, if it has
    /// one.
    pub rival: Option<f64>,
    /// Creates the workload.
    pub build: fn() -> Workload,
}

const fn recipe(name: &'static str, rival: Option<f64>, build: fn() -> Workload) -> Recipe {
    Recipe { name, rival, build }
}

/// All workloads of the published benchmark results.
pub const RECIPES: &[Recipe] = &[
    recipe("fake/diverse-1000", Some(588.0), || diverse(1_000)),
    recipe("fake/diverse-5000", Some(557.0), || diverse(5_000)),
    recipe("fake/diverse-10000", Some(456.0), || diverse(10_000)),
    recipe("fake/diverse-20000", Some(350.0), || diverse(20_000)),
    recipe("fake/preferences-respected-4000", Some(87.0), || {
        preferences(PreferencePolicy::Respect)
    }),
    recipe("fake/preferences-ignored-4000", Some(4_295.0), || {
        preferences(PreferencePolicy::Ignore)
    }),
    recipe("fake/plain-5000", None, || fake(diverse::plain(5_000))),
    recipe("fake/plain-100000", None, || fake(diverse::plain(100_000))),
    recipe("fake/standing-5000-nodes", None, standing::standing),
    recipe("ec2/hopeless-5000", None, hopeless::hopeless),
    recipe("ec2/diverse-5000", None, || ec2("everything", [], diverse::diverse(5_000))),
    recipe("ec2/plain-5000", None, || ec2("everything", [], diverse::plain(5_000))),
    recipe("ec2-cmr/plain-5000", None, || ec2_cmr(diverse::plain(5_000))),
    recipe("ec2-cmr/deployments", None, || ec2_cmr(deployments::thirty())),
    recipe("ec2-amd64-not-t/plain-5000", None, || ec2_amd64_not_t(diverse::plain(5_000))),
    recipe("ec2-amd64/plain-5000", None, || ec2("amd64", on_demand_amd64(), diverse::plain(5_000))),
    recipe("kwok/deployments", None, || kwok(deployments::thirty())),
    recipe("kwok/two-deployments", None, || kwok(deployments::two())),
];

const CATEGORY: &str = "karpenter.k8s.aws/instance-category";
const GENERATION: &str = "karpenter.k8s.aws/instance-generation";
/// Bare-metal types have no hypervisor.
const HYPERVISOR: &str = "karpenter.k8s.aws/instance-hypervisor";

/// These pods on Karpenter's fake types. Source: spec/scheduling.md §6.4.
pub fn fake(pods: Vec<Pod>) -> Workload {
    let mut pool = Pool::new("default");
    pool.labels = pods::label("testing/cluster", "unspecified");
    pool.limits.capacity =
        vec![("cpu".to_owned(), 10_000_000 * 1000), ("memory".to_owned(), 10_000_000 * GIB)];
    Workload::new(catalogs::fake(400), pool, pods)
}

fn diverse(count: usize) -> Workload {
    fake(diverse::diverse(count))
}

fn preferences(policy: PreferencePolicy) -> Workload {
    let mut workload = fake(diverse::preferences(4_000));
    workload.cluster.scheduling.preferences = policy;
    workload
}

/// These pods on the types of EC2 that meet the requirements of a pool.
pub fn ec2(
    pool: &str,
    requirements: impl IntoIterator<Item = (&'static str, Requirement)>,
    pods: Vec<Pod>,
) -> Workload {
    let mut pool = Pool::new(pool);
    for (key, requirement) in requirements {
        pool.requirements.add(key, requirement);
    }
    Workload::new(Catalog::shipped(), pool, pods)
}

/// These pods on EC2, on demand: amd64, categories c, m and r, generation above 2, no bare metal.
pub fn ec2_cmr(pods: Vec<Pod>) -> Workload {
    let above_2 = Requirement::from_operator(Operator::Gt, &["2".to_owned()]);
    let more = [
        (CATEGORY, Requirement::is_in(["c", "m", "r"])),
        (GENERATION, above_2.expect("an integer")),
        (HYPERVISOR, Requirement::exists()),
    ];
    ec2("cmr", on_demand_amd64().into_iter().chain(more), pods)
}

/// These pods on EC2, on demand: amd64, all categories except the burstable t.
pub fn ec2_amd64_not_t(pods: Vec<Pod>) -> Workload {
    let not_t = (CATEGORY, Requirement::not_in(["t"]));
    ec2("amd64", on_demand_amd64().into_iter().chain([not_t]), pods)
}

fn on_demand_amd64() -> [(&'static str, Requirement); 2] {
    [(CAPACITY_TYPE, Requirement::is_in(["on-demand"])), (ARCH, Requirement::is_in(["amd64"]))]
}

/// These pods on the linear types of the kwok provider, on demand and amd64.
pub fn kwok(pods: Vec<Pod>) -> Workload {
    let mut pool = Pool::new("general");
    for (key, requirement) in on_demand_amd64() {
        pool.requirements.add(key, requirement);
    }
    Workload::new(catalogs::kwok(), pool, pods)
}
