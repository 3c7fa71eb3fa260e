//! Cluster settings: API access, providers, safeguards and scheduling.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use jiff::SignedDuration;

use crate::model::affinity::TopologySpread;
use crate::model::buffer::Buffer;
use crate::model::id::{ClusterName, LeaseName, NodeClassName};
use crate::model::instance::Price;
use crate::model::labels::Labels;
use crate::model::named_enum::named_enum;
use crate::model::node_class::NodeClass;
use crate::model::overlay::Overlay;
use crate::model::pool::{BudgetNodes, ClusterDisruption, Limits, Pool};
use crate::model::proxy::Proxy;
use crate::model::sweep::{SweepKind, SweepSchedule};
use crate::model::watched_object::ObjectKind;

named_enum! {
    /// Whether Outrigger changes a cluster. The names are those of configurations.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ManagementMode {
        /// Outrigger watches the cluster and plans, but changes nothing.
        #[default]
        Observe => "observe",
        /// Outrigger executes its plans.
        Manage => "manage",
    }
}

/// Path of a kubeconfig, and the context to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// Path of the file.
    pub path: PathBuf,
    /// Context. `None` means the current context of the file.
    pub context: Option<String>,
}

/// How lists are requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchList {
    /// Lists are requested as a stream (`WatchList`).
    On,
    /// Lists are requested page by page.
    #[default]
    Off,
}

/// Settings for requests to the cluster's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSettings {
    /// Polling interval. `None` means that objects are watched instead.
    pub poll: Option<SignedDuration>,
    /// Average requests per second.
    pub qps: u32,
    /// Maximum burst of requests above `qps`.
    pub burst: u32,
    /// Maximum concurrent requests.
    pub concurrency: u32,
    /// How lists are requested.
    pub watch_list: WatchList,
    /// A watch without events for longer than this is stale.
    pub watch_timeout: SignedDuration,
    /// The proxy. `None` means the settings of the kubeconfig and the environment.
    pub proxy: Option<Proxy>,
}

impl ApiSettings {
    /// How long a watch may be silent. Each watch reports activity at least twice a minute, and
    /// lists again after a minute of silence. With polling, the limit is at least the polling
    /// interval and 30 seconds.
    pub fn silence_max(&self) -> SignedDuration {
        let polled = self.poll.map(|poll| poll + SignedDuration::from_secs(30));
        polled.map_or(self.watch_timeout, |polled| self.watch_timeout.max(polled))
    }
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            poll: None,
            // The default of Karpenter (spec/scheduling.md, settings).
            qps: 200,
            // All pods of a plan are nominated together. `concurrency` limits the load on the
            // server.
            burst: 1000,
            concurrency: 32,
            watch_list: WatchList::default(),
            watch_timeout: SignedDuration::from_secs(90),
            proxy: None,
        }
    }
}

/// A simulated EC2 that replaces the real one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Instance type catalog. `None` means the built-in catalog.
    pub catalog: Option<PathBuf>,
    /// Time from launch to a registered Node.
    pub boot: SignedDuration,
    /// Address of a `simulated-cloud` process. `None` means that the simulated EC2 runs in the same
    /// process.
    pub address: Option<String>,
}

/// An EKS cluster: API access without a kubeconfig, and the settings that its nodes receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eks {
    /// Its name in EKS. `None` means the cluster's own name.
    pub name: Option<String>,
    /// URL of its API. `None` means that EKS is queried.
    pub endpoint: Option<String>,
    /// Its CA, PEM in base64. `None` means that EKS is queried.
    pub ca_data: Option<String>,
    /// Addresses of its Services. `None` means that EKS or the cluster is queried.
    pub service_cidr: Option<String>,
}

/// How a rebalance recommendation is handled. EC2 sends such recommendations before spot
/// interruptions, and far more often than it interrupts instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rebalance {
    /// The recommendation is only reported, as in Karpenter.
    #[default]
    Ignore,
    /// The node is drained.
    Drain,
    /// The node is drained after its replacement is ready.
    ReplaceFirst,
}

/// The source of interruption messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterruptionQueue {
    /// Name or URL of the SQS queue, one for each account and region.
    pub queue: String,
    /// How a rebalance recommendation is handled.
    pub rebalance: Rebalance,
}

/// A user-supplied program that launches, terminates and lists instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exec {
    /// Program and arguments. They are not passed through a shell.
    pub command: Vec<String>,
    /// Instance type catalog. `None` means the built-in catalog.
    pub catalog: Option<PathBuf>,
    /// Environment variables that the program receives in addition to PATH and HOME.
    pub environment: Vec<String>,
}

/// When pods are bound to new nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// The cluster's scheduler binds pods after the node is ready.
    #[default]
    Scheduler,
    /// Outrigger binds pods as soon as the node's name is known, so that images are pulled when the
    /// kubelet joins.
    Early,
}

/// How the batch of pending pods is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// A batch ends when no pod has arrived for this duration.
    pub idle: SignedDuration,
    /// Maximum duration of a batch.
    pub max: SignedDuration,
}

impl Default for Batching {
    fn default() -> Self {
        Self { idle: SignedDuration::from_secs(1), max: SignedDuration::from_secs(10) }
    }
}

/// Whether pending pods are nominated to their planned node (`status.nominatedNodeName`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementHints {
    /// Pending pods are nominated, if RBAC permits it.
    #[default]
    On,
    /// Pending pods are not nominated.
    Off,
}

/// How preferences of pods are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferencePolicy {
    /// Preferences are respected if possible, even if that requires more nodes.
    #[default]
    Respect,
    /// Preferences are ignored.
    Ignore,
}

/// Policy for a pool whose `min_values` cannot be satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinValuesPolicy {
    /// No node is created.
    #[default]
    Strict,
    /// The available number of values is accepted.
    BestEffort,
}

/// Scheduling settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// How preferences of pods are handled.
    pub preferences: PreferencePolicy,
    /// Policy for a pool whose `min_values` cannot be satisfied.
    pub min_values: MinValuesPolicy,
    /// Overhead of a node in addition to its price. It affects every choice between nodes, but no
    /// reported price.
    pub node_overhead_price: Price,
    /// Maximum number of offerings in a launch request.
    pub max_launch_options: u32,
    /// Maximum price of an offering in a launch request, in per cent of the cheapest one.
    pub alternative_price_percent: u32,
    /// Pods with a lower priority do not trigger node creation. `None` means that all pods do.
    pub priority_cutoff: Option<i32>,
    /// Names of the schedulers whose pods are planned. The empty name is the default scheduler.
    pub schedulers: BTreeSet<String>,
    /// Default topology spread of pods that declare none, as configured for the cluster's
    /// scheduler. The selectors are derived for each pod.
    pub default_spread: Vec<TopologySpread>,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            preferences: PreferencePolicy::default(),
            min_values: MinValuesPolicy::default(),
            // A tenth of the price of the smallest instance types.
            node_overhead_price: Price::new(0.005).unwrap_or_default(),
            // The number of offerings that Karpenter passes to one CreateFleet call (spec/aws.md
            // §0.2).
            max_launch_options: 60,
            alternative_price_percent: 200,
            priority_cutoff: None,
            schedulers: BTreeSet::from([String::new(), "default-scheduler".to_owned()]),
            default_spread: Vec::new(),
        }
    }
}

/// How nodes of a removed pool are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovedPools {
    /// The nodes are disrupted as drifted, a tenth of each pool at a time.
    #[default]
    Drain,
    /// The nodes are kept.
    Keep,
}

/// Safeguards that limit how many nodes an error can terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safeguards {
    /// Voluntary disruption is blocked if more nodes than this, and at least [`UNREADY_MIN`] nodes,
    /// are not ready.
    pub max_unready: BudgetNodes,
    /// How nodes of a removed pool are handled.
    pub removed_pools: RemovedPools,
    /// How many instances may terminate without a drain within ten minutes. At least one such
    /// termination is allowed.
    pub undrained_max: BudgetNodes,
    /// How many nodes a configuration change may disrupt before the user must approve it. `None`
    /// means unlimited.
    pub max_disrupted_per_reload: Option<BudgetNodes>,
}

/// Disruption is never blocked if fewer nodes than this are unready. Source: Cluster Autoscaler,
/// `--ok-total-unready-count`.
pub const UNREADY_MIN: usize = 3;

impl Default for Safeguards {
    fn default() -> Self {
        Self {
            // The default of Cluster Autoscaler's `--max-total-unready-percentage`.
            max_unready: BudgetNodes::Percent(45),
            removed_pools: RemovedPools::default(),
            undrained_max: BudgetNodes::Percent(20),
            max_disrupted_per_reload: None,
        }
    }
}

/// A cluster with all its settings: the configuration of one engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The installation, the same on all its hosts. Only instances of the installation are changed.
    pub installation: String,
    /// Name.
    pub name: ClusterName,
    /// Whether Outrigger changes the cluster.
    pub mode: ManagementMode,
    /// Region of its instances. Empty for simulated instances outside AWS.
    pub region: String,
    /// IAM role that is assumed for all AWS calls. `None` means the daemon's own credentials.
    pub role_arn: Option<String>,
    /// External ID with which the role is assumed.
    pub external_id: Option<String>,
    /// URL of the API server for nodes. `None` if it is the endpoint of EKS, or the URL that
    /// Outrigger uses.
    pub node_endpoint: Option<String>,
    /// API access. An offline plan does not need it.
    pub kubeconfig: Option<Kubeconfig>,
    /// EKS settings, if the cluster is an EKS cluster.
    pub eks: Option<Eks>,
    /// The source of interruption messages. `None` means that only the health of instances is
    /// queried.
    pub interruption: Option<InterruptionQueue>,
    /// Whether no nodes are launched in zones with an active zonal shift.
    pub zonal_shift: bool,
    /// Whether dry runs of node classes are skipped.
    pub disable_dry_run: bool,
    /// Whether AWS services without VPC endpoints, which are IAM and the price list, cannot be
    /// reached.
    pub isolated_vpc: bool,
    /// A user-supplied program that replaces EC2.
    pub exec: Option<Exec>,
    /// When pods are bound to new nodes.
    pub binding: Binding,
    /// A simulated EC2 that replaces the real one.
    pub simulated: Option<Simulated>,
    /// Settings for requests to its API.
    pub api: ApiSettings,
    /// Its Lease. The holder of the Lease leads the cluster.
    pub lease: LeaseName,
    /// Tags of all resources that are created for it.
    pub tags: Labels,
    /// Its pools, by weight (highest first), then name.
    pub pools: Vec<Pool>,
    /// The node classes of its pools.
    pub node_classes: Vec<NodeClass>,
    /// Limits on the sum of all its nodes.
    pub limits: Limits,
    /// When and how many of its nodes are voluntarily disrupted.
    pub disruption: ClusterDisruption,
    /// Schedules of sweeps. Without a schedule, nodes are disrupted as soon as they are due.
    pub sweeps: BTreeMap<SweepKind, SweepSchedule>,
    /// Overrides of catalog prices and capacities, in the order in which they are applied.
    pub overlays: Vec<Overlay>,
    /// Buffers, by name.
    pub buffers: Vec<Buffer>,
    /// How the batch of pending pods is collected.
    pub batching: Batching,
    /// Scheduling settings.
    pub scheduling: Scheduling,
    /// Whether pending pods are nominated to their planned node.
    pub placement_hints: PlacementHints,
    /// Safeguards.
    pub safeguards: Safeguards,
    /// Whether a Node that a user deletes is drained and its instance terminated before the Node is
    /// removed.
    pub finalizer: bool,
    /// Whether nodes that Karpenter launched for pools of the same names are adopted. In observe
    /// mode, these nodes are treated as if they were adopted.
    pub adopt: bool,
    /// Whether events about pods and nodes are written to the cluster, if it is managed.
    pub events: bool,
}

/// Returns the account ID in the ARN of an IAM role.
pub fn account_of(role_arn: &str) -> Option<&str> {
    role_arn.split(':').nth(4)
}

impl Cluster {
    /// The user's tags for the resources of a node class: the cluster's tags, overridden by the
    /// tags of the class.
    pub fn tags_of(&self, class: Option<&NodeClassName>) -> Labels {
        let mut tags = self.tags.clone();
        let mut classes = self.node_classes.iter();
        if let Some(class) = classes.find(|candidate| Some(&candidate.name) == class) {
            tags.extend(class.tags.clone());
        }
        tags
    }

    /// The pool of this name.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name.as_str() == name)
    }

    /// The object kinds that plans for the cluster need. Kinds that select pods are only needed for
    /// default spread constraints.
    pub fn watched_kinds(&self) -> &'static [ObjectKind] {
        let kinds: &'static [ObjectKind] = &ObjectKind::ALL;
        if self.scheduling.default_spread.is_empty() { &kinds[..ObjectKind::ALWAYS] } else { kinds }
    }
}
