//! A cluster as configured: how it is reached, who makes its nodes, and what may be done to it.
//! It must not know how a connection is made.

use std::collections::BTreeSet;
use std::path::PathBuf;

use jiff::SignedDuration;

use crate::model::affinity::TopologySpread;
use crate::model::buffer::Buffer;
use crate::model::id::{ClusterName, LeaseName, NodeClassName};
use crate::model::instance::Price;
use crate::model::labels::Labels;
use crate::model::node_class::NodeClass;
use crate::model::overlay::Overlay;
use crate::model::pool::{BudgetNodes, ClusterDisruption, Limits, Pool};
use crate::model::proxy::Proxy;
use crate::model::watched_object::ObjectKind;

/// What may be done to a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManagementMode {
    /// Watch and plan, touch nothing.
    #[default]
    Observe,
    /// Carry the plans out.
    Manage,
}

impl ManagementMode {
    /// The spelling in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Manage => "manage",
        }
    }
}

/// Where a kubeconfig is and which of its contexts counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// Path of the file.
    pub path: PathBuf,
    /// Context; none means the file's current one.
    pub context: Option<String>,
}

/// Whether lists come as a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchList {
    /// As a stream.
    On,
    /// Page by page.
    #[default]
    Off,
}

/// How the cluster's API is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSettings {
    /// List this often instead of watching; none means watch.
    pub poll: Option<SignedDuration>,
    /// Requests per second, on average.
    pub qps: u32,
    /// Requests at once, at most.
    pub burst: u32,
    /// Requests in flight at once.
    pub concurrency: u32,
    /// Whether lists come as a stream.
    pub watch_list: WatchList,
    /// A watch without a sign of life for longer is stale.
    pub watch_timeout: SignedDuration,
    /// What it is reached by; none means as the kubeconfig and the environment say.
    pub proxy: Option<Proxy>,
}

impl ApiSettings {
    /// How long a watch may be silent. The shell has each give a sign of life twice a minute or
    /// more often, and lists anew after a minute without; where there is no watch, lists come as
    /// often as is said, and take their time.
    pub fn silence_max(&self) -> SignedDuration {
        let polled = self.poll.map(|poll| poll + SignedDuration::from_secs(30));
        polled.map_or(self.watch_timeout, |least| self.watch_timeout.max(least))
    }
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            poll: None,
            // Karpenter's (spec/scheduling.md, settings).
            qps: 200,
            // Pods of one plan are told of their nodes at once; `concurrency` spares the server.
            burst: 1000,
            concurrency: 32,
            watch_list: WatchList::default(),
            watch_timeout: SignedDuration::from_secs(90),
            proxy: None,
        }
    }
}

/// A simulated EC2 in place of the real one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// File of instance types; none means those that ship.
    pub catalog: Option<PathBuf>,
    /// Time from launch to a registered Node.
    pub boot: SignedDuration,
    /// Address of a `simulated-cloud` process; none means in process.
    pub address: Option<String>,
}

/// An EKS cluster: how its API is reached without a kubeconfig, and what its nodes are told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eks {
    /// Its name in EKS; none means the cluster's own.
    pub name: Option<String>,
    /// URL of its API; none means that EKS is asked.
    pub endpoint: Option<String>,
    /// Its CA, PEM in base64; none means that EKS is asked.
    pub ca_data: Option<String>,
    /// Addresses of its Services; none means that EKS or the cluster is asked.
    pub service_cidr: Option<String>,
}

/// What becomes of a recommendation to rebalance, which comes before a spot instance is taken back,
/// and far more often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rebalance {
    /// It is only reported, as in Karpenter.
    #[default]
    Ignore,
    /// The node leaves.
    Drain,
    /// The node leaves once another has taken its place.
    ReplaceFirst,
}

/// Where AWS tells of interruptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterruptionQueue {
    /// Name or URL of the SQS queue, one for each account and region.
    pub queue: String,
    /// What becomes of a recommendation to rebalance.
    pub rebalance: Rebalance,
}

/// A program of the user's own that launches, ends and lists instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exec {
    /// Program and arguments. No shell reads them.
    pub command: Vec<String>,
    /// File of instance types; none means those that ship.
    pub catalog: Option<PathBuf>,
    /// Variables of the daemon's environment that it gets beside PATH and HOME.
    pub environment: Vec<String>,
}

/// Who binds pods to nodes that are still to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// The cluster's scheduler, once they are there.
    #[default]
    Scheduler,
    /// We, as soon as a node's name is known: its images are pulled the moment its kubelet joins.
    Early,
}

/// How the batch of pending pods is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// A batch closes after this long without another pod.
    pub idle: SignedDuration,
    /// A batch closes at the latest after this long.
    pub max: SignedDuration,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            idle: SignedDuration::from_secs(1),
            max: SignedDuration::from_secs(10),
        }
    }
}

/// Whether waiting pods are told of the node planned for them (`status.nominatedNodeName`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementHints {
    /// They are, as far as the rights allow.
    #[default]
    On,
    /// They are not.
    Off,
}

/// What becomes of what pods would like but need not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferencePolicy {
    /// It is kept where it can be, even if that takes more nodes.
    #[default]
    Respect,
    /// It is passed over.
    Ignore,
}

/// What becomes of a pool's `min_values` where too few values are to be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinValuesPolicy {
    /// No node is made.
    #[default]
    Strict,
    /// As many as there are will do.
    BestEffort,
}

/// How pods are placed and nodes chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// What pods would like.
    pub preferences: PreferencePolicy,
    /// What pools want to be flexible about.
    pub min_values: MinValuesPolicy,
    /// What a node is taken to cost beyond its price. It counts in every choice and in no quote.
    pub node_overhead_price: Price,
    /// Offerings kept for a claim, for refusals.
    pub max_launch_options: u32,
    /// How dear the dearest of them may be, in per cent of the cheapest.
    pub alternative_price_percent: u32,
    /// Pods of lower priority do not cause nodes to be made; none means all do.
    pub priority_cutoff: Option<i32>,
    /// Names of the schedulers whose pods are placed; the empty name is the default one's.
    pub schedulers: BTreeSet<String>,
    /// Spread of pods that declare none, as the scheduler of the cluster is configured. Their
    /// selectors are deduced pod by pod.
    pub default_spread: Vec<TopologySpread>,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            preferences: PreferencePolicy::default(),
            min_values: MinValuesPolicy::default(),
            // A tenth of what the smallest instance types cost.
            node_overhead_price: Price::new(0.005).unwrap_or_default(),
            // As many as Karpenter gives to one CreateFleet (spec/aws.md §0.2).
            max_launch_options: 60,
            alternative_price_percent: 200,
            priority_cutoff: None,
            schedulers: BTreeSet::from([String::new(), "default-scheduler".to_owned()]),
            default_spread: Vec::new(),
        }
    }
}

/// What becomes of nodes whose pool is not configured any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovedPools {
    /// They leave as drifted, a tenth of each pool at a time.
    #[default]
    Drain,
    /// They stay.
    Keep,
}

/// What keeps a mistake, or a fault that is none of ours, from ending many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safeguards {
    /// Of more nodes than this, and at least [`UNREADY_MIN`], being not ready, nothing leaves on
    /// purpose.
    pub max_unready: BudgetNodes,
    /// What becomes of nodes whose pool is gone.
    pub removed_pools: RemovedPools,
    /// How many instances may end without a drain within ten minutes, and one at least.
    pub undrained_max: BudgetNodes,
    /// How many nodes may be due to leave by another configuration before it has to be accepted by
    /// a word of its own; none means all.
    pub max_disrupted_per_reload: Option<BudgetNodes>,
}

/// Fewer nodes than this that are not ready stop nothing. Source: Cluster Autoscaler,
/// `--ok-total-unready-count`.
pub const UNREADY_MIN: usize = 3;

impl Default for Safeguards {
    fn default() -> Self {
        Self {
            // Cluster Autoscaler's `--max-total-unready-percentage`.
            max_unready: BudgetNodes::Percent(45),
            removed_pools: RemovedPools::default(),
            undrained_max: BudgetNodes::Percent(20),
            max_disrupted_per_reload: None,
        }
    }
}

/// A cluster and everything that is decided about it: all an engine needs to know of the
/// configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The installation, the same on all its hosts; only its instances are ever touched.
    pub installation: String,
    /// Name.
    pub name: ClusterName,
    /// What may be done to it.
    pub mode: ManagementMode,
    /// Region of its instances; empty for simulated ones outside AWS.
    pub region: String,
    /// IAM role that is assumed for all calls to AWS; none means the daemon's own identity.
    pub role_arn: Option<String>,
    /// How its API is reached; none is enough for an offline plan.
    pub kubeconfig: Option<Kubeconfig>,
    /// What EKS knows of it, where it is one of EKS'.
    pub eks: Option<Eks>,
    /// Where AWS tells of interruptions; none means that only the health of instances is asked.
    pub interruption: Option<InterruptionQueue>,
    /// Whether zones that AWS shifts traffic away from get no new nodes.
    pub zonal_shift: bool,
    /// Whether node classes are not tried by dry runs before nodes are made of them.
    pub disable_dry_run: bool,
    /// A program of the user's own in place of EC2.
    pub exec: Option<Exec>,
    /// Who binds pods to nodes that are still to come.
    pub binding: Binding,
    /// A simulated EC2 in place of the real one.
    pub simulated: Option<Simulated>,
    /// How its API is used.
    pub api: ApiSettings,
    /// Its Lease: who holds it leads the cluster.
    pub lease: LeaseName,
    /// Tags for everything launched for it.
    pub tags: Labels,
    /// Its pools, by weight (highest first), then name.
    pub pools: Vec<Pool>,
    /// The node classes its pools use.
    pub node_classes: Vec<NodeClass>,
    /// Limits on all its nodes together.
    pub limits: Limits,
    /// When its nodes are disrupted on purpose.
    pub disruption: ClusterDisruption,
    /// What is known better than the catalog knows it, in the order in which it is applied.
    pub overlays: Vec<Overlay>,
    /// Room that is kept free, by name.
    pub buffers: Vec<Buffer>,
    /// How the batch of pending pods is collected.
    pub batching: Batching,
    /// How pods are placed and nodes chosen.
    pub scheduling: Scheduling,
    /// Whether waiting pods are told of the node planned for them.
    pub placement_hints: PlacementHints,
    /// What keeps a mistake from ending many nodes.
    pub safeguards: Safeguards,
    /// Whether a Node that somebody deletes is drained and ended before it goes.
    pub finalizer: bool,
    /// Whether nodes that Karpenter has made for pools of these names become ours or, where the
    /// cluster is only observed, count as if they were.
    pub adopt: bool,
    /// Whether events about pods and nodes are written into the cluster, if it is managed.
    pub events: bool,
}

/// The id of the account that an IAM role is of, by its ARN.
pub fn account_of(role_arn: &str) -> Option<&str> {
    role_arn.split(':').nth(4)
}

impl Cluster {
    /// The user's tags for what is made of a node class: the cluster's, then the class' own.
    pub fn tags_of(&self, class: Option<&NodeClassName>) -> Labels {
        let mut classes = self.node_classes.iter();
        let class = classes.find(|own| Some(&own.name) == class);
        let mut tags = self.tags.clone();
        tags.extend(class.map(|own| own.tags.clone()).unwrap_or_default());
        tags
    }

    /// The pool of this name.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name.as_str() == name)
    }

    /// The kinds of objects that plans for it need: what selects pods only where pods are spread by
    /// default.
    pub fn kinds(&self) -> &'static [ObjectKind] {
        let all: &'static [ObjectKind] = &ObjectKind::ALL;
        if self.scheduling.default_spread.is_empty() {
            &all[..ObjectKind::ALWAYS]
        } else {
            all
        }
    }
}
