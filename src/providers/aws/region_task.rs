//! Reads the data of an account and region once for all its clusters, and resolves the node classes
//! of each cluster.
//!
//! One task per account and region. It runs due reads, resolves node classes, and sends the results
//! to each engine (`Event::ClassesChanged`) and provider.

// Clusters of a region and their notices.
mod clusters;
// Reads of the data of a region.
mod reads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as Locked};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::bootstrap::ClusterEndpoint;
use crate::catalog::Catalog;
use crate::catalog::discovered_memory::DiscoveredMemory;
use crate::catalog::node_class::{ClassSupplies, NodeClassSupply, RegionObservations};
use crate::catalog::region::Region;
use crate::ec2::cleanup_scope::CleanupScope;
use crate::ec2::resolve_node_class::{self, RegionResources};
use crate::ec2::subnet_capacity::Subnets;
use crate::engine::event::Event;
use crate::host::{clock, text};
use crate::kubernetes::client::Connection;
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::id::{ClusterName, NodeClassName, TypeName};
use crate::model::node_class::NodeClass;
use crate::model::node_class::resolved::ResolvedNodeClass;
use crate::model::template_hash::node_class_hash;
use crate::outbound::fence::{self, Fence, NotLeader};
use crate::providers::aws::clients::{AwsClients, pricing_region};
use crate::providers::aws::cluster_info::{ClusterInfoCache, ClusterInfoResult};
use crate::providers::aws::dry_run::DryRuns;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::images::Images;
use crate::providers::aws::instance_profiles::Profiles;
use crate::providers::aws::instances::Lister;
use crate::providers::aws::interruption_listener::Engines;
use crate::providers::aws::launch_templates::Templates;
use crate::providers::aws::launchable_class::{LaunchableClass, validate_user_data};
use crate::providers::aws::refresh_schedule::{RefreshSchedule, RefreshTask};
use crate::providers::aws::terminate_batcher::TerminateBatcher;

/// Time to wait for a busy engine to accept an event.
const TELL: Duration = Duration::from_secs(1);

/// Data for the provider of a cluster.
#[derive(Default)]
pub(crate) struct ClusterView {
    /// Cluster data for user data. `None` before the first read.
    pub(crate) home: Option<ClusterEndpoint>,
    /// The node classes of the cluster.
    pub(crate) classes: BTreeMap<NodeClassName, Arc<LaunchableClass>>,
}

/// State shared by the clusters of a role and region.
pub(crate) struct RegionState {
    pub(crate) account: Arc<AwsClients>,
    pub(crate) lister: Arc<Lister>,
    pub(crate) terminate_batcher: TerminateBatcher,
    /// The engines of clusters of this account and region that this host leads, for all roles,
    /// because one reader serves the queue.
    pub(crate) engines: Engines,
    /// The clusters that are configured on this host, in all regions.
    pub(crate) configured: Arc<Locked<BTreeSet<ClusterName>>>,
    pub(crate) templates: Templates,
    pub(crate) subnets: Locked<Subnets>,
}

impl RegionState {
    /// Returns the state of a role and region, without any listing.
    pub(crate) fn new(
        account: Arc<AwsClients>,
        engines: Engines,
        configured: Arc<Locked<BTreeSet<ClusterName>>>,
    ) -> Self {
        Self {
            account,
            lister: Arc::default(),
            terminate_batcher: TerminateBatcher::default(),
            engines,
            configured,
            templates: Templates::default(),
            subnets: Locked::default(),
        }
    }
}

/// A registered cluster.
pub(crate) struct RegionCluster {
    /// Distinguishes successive providers of the same cluster.
    pub(crate) session: u64,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) connection: Connection,
    /// The engine of the cluster. `None` while another host is the leader.
    pub(crate) events: Option<mpsc::Sender<Event>>,
    pub(crate) view: watch::Sender<Arc<ClusterView>>,
    /// The last data sent to the engine of the cluster.
    pub(crate) last_sent: Option<(Arc<Catalog>, Arc<ClassSupplies>)>,
    /// Data that the API server of the cluster did not provide in the last read.
    pub(crate) missing: Vec<String>,
}

/// Requests to a region task.
pub(crate) enum RegionMessage {
    /// Adds or changes a cluster.
    Attend(Box<RegionCluster>),
    /// Removes a cluster of this provider.
    Leave(ClusterName, u64),
    /// Reported memory of a node of this type and image, in bytes.
    Learn(TypeName, String, i64),
    /// Triggers reads that are due.
    Tick,
}

/// The state of a region task.
pub(crate) struct RegionTask {
    shared: Arc<RegionState>,
    region: Region,
    /// The shipped catalog: facts that EC2 does not provide.
    shipped: Region,
    found: RegionResources,
    images: Images,
    profiles: Profiles,
    memory: DiscoveredMemory,
    dry_runs: DryRuns,
    /// ARNs of clusters, by their names in EKS.
    arns: BTreeMap<String, String>,
    /// Zone ids with a zonal shift, by cluster.
    shifted: BTreeMap<ClusterName, BTreeSet<String>>,
    members: BTreeMap<ClusterName, RegionCluster>,
    homes: ClusterInfoCache,
    /// The shared catalog of all clusters.
    base: Arc<Catalog>,
    /// Queue listeners, by installation and queue.
    queues: BTreeMap<(String, String), AbortHandle>,
    schedule: RefreshSchedule,
}

impl RegionTask {
    /// Creates an empty task.
    pub(crate) fn new(shared: Arc<RegionState>) -> Self {
        let shipped = Region::shipped();
        Self {
            region: Region::with_shipped_prices(&shared.account.key.region, &shipped),
            shared,
            shipped,
            found: RegionResources::default(),
            images: Images::default(),
            profiles: Profiles::default(),
            memory: DiscoveredMemory::default(),
            dry_runs: DryRuns::default(),
            arns: BTreeMap::new(),
            shifted: BTreeMap::new(),
            members: BTreeMap::new(),
            homes: ClusterInfoCache::default(),
            base: Arc::default(),
            queues: BTreeMap::new(),
            schedule: RefreshSchedule::default(),
        }
    }

    /// Runs forever.
    pub(crate) async fn run(mut self, mut inbox: mpsc::Receiver<RegionMessage>) {
        loop {
            let message = tokio::select! {
                message = inbox.recv() => message,
                result = self.homes.next_result() => {
                    self.on_cluster_info(result).await;
                    continue;
                }
            };
            let Some(message) = message else {
                return;
            };
            match message {
                RegionMessage::Attend(member) => {
                    let name = member.cluster.name.clone();
                    self.homes.cancel_read(&name);
                    if let Some(old) = self.members.insert(name.clone(), *member) {
                        self.unregister_engine(&old, self.members.get(&name));
                    }
                    self.start_listeners();
                    self.schedule.make_due(RefreshTask::Classes);
                    // Process clusters that start together in one batch.
                    if !inbox.is_empty() {
                        continue;
                    }
                }
                RegionMessage::Leave(name, session) => {
                    let member = self.members.get(&name);
                    if member.is_some_and(|member| member.session == session)
                        && let Some(old) = self.members.remove(&name)
                    {
                        self.homes.forget(&name);
                        self.unregister_engine(&old, None);
                        self.start_listeners();
                    }
                    continue;
                }
                RegionMessage::Learn(instance_type, image, memory) => {
                    if self.memory.observe(&instance_type, &image, memory) {
                        self.schedule.make_due(RefreshTask::Classes);
                    }
                    continue;
                }
                // A listener that has panicked is replaced.
                RegionMessage::Tick => self.start_listeners(),
            }
            self.run_due_reads().await;
        }
    }

    /// Runs due reads, launch data first.
    async fn run_due_reads(&mut self) {
        if self.members.is_empty() {
            return;
        }
        let mut is_changed = self.refresh(RefreshTask::Types, Self::read_types).await;
        if self.schedule.begin_if_due(RefreshTask::Network) {
            // This read includes the reservations, even if it fails.
            self.schedule.begin_if_due(RefreshTask::Reservations);
            let outcome = self.read_network().await;
            is_changed |= self.record_result(RefreshTask::Network, outcome);
        }
        let reserved = self.refresh(RefreshTask::Reservations, Self::read_reservations).await;
        is_changed |= self.refresh(RefreshTask::Shifts, Self::read_shifts).await;
        if self.schedule.begin_if_due(RefreshTask::Classes) || is_changed {
            self.resolve_all_classes().await;
        } else if reserved && !self.resolve_known_clusters().await {
            self.schedule.mark_incomplete(RefreshTask::Classes);
        }
        let spot = self.refresh(RefreshTask::SpotPrices, Self::read_spot_prices).await;
        let list = self.has_price_list()
            && self.refresh(RefreshTask::ListPrices, Self::read_list_prices).await;
        if spot || list {
            self.resolve_all_classes().await;
        }
        if self.members.values().any(|member| member.events.is_some()) {
            self.refresh(RefreshTask::Health, Self::send_health_events).await;
        }
        let scope = self.current_cleanup_scope();
        // Only the leader deletes resources.
        let fences: Arc<[Fence]> =
            self.led_clusters().map(|member| member.connection.fence.of_this_term()).collect();
        let uses_iam = !scope.led.is_empty() && !self.is_isolated();
        if uses_iam && self.schedule.begin_if_due(RefreshTask::Profiles) {
            let removing = self.delete_unused_profiles(&scope);
            let outcome = fence::run_fenced(fences.clone(), removing).await;
            self.record_result(RefreshTask::Profiles, cleanup_result(outcome));
        }
        if !scope.led.is_empty() && self.schedule.begin_if_due(RefreshTask::Templates) {
            let outcome = fence::run_fenced(fences, self.delete_unused_templates(&scope)).await;
            self.record_result(RefreshTask::Templates, cleanup_result(outcome));
        }
    }

    /// Runs a read if it is due. Returns whether it has new data.
    async fn refresh(
        &mut self,
        task: RefreshTask,
        read: impl AsyncFnOnce(&mut Self) -> Result<bool, AwsError>,
    ) -> bool {
        if !self.schedule.begin_if_due(task) {
            return false;
        }
        let outcome = read(self).await;
        self.record_result(task, outcome)
    }

    fn record_result(&mut self, task: RefreshTask, outcome: Result<bool, AwsError>) -> bool {
        self.schedule.record_result(&self.region.name, task, outcome)
    }

    /// Returns whether this host does not reach AWS services without VPC endpoints. This is the
    /// same for all clusters.
    fn is_isolated(&self) -> bool {
        self.members.values().any(|member| member.cluster.isolated_vpc)
    }

    /// Returns whether the price list of the region can be read. Otherwise the prices that ship
    /// apply.
    fn has_price_list(&self) -> bool {
        pricing_region(&self.region.name).is_some() && !self.is_isolated()
    }

    /// Managed clusters.
    fn managed_clusters(&self) -> impl Iterator<Item = &RegionCluster> {
        let members = self.members.values();
        members.filter(|member| member.cluster.mode == ManagementMode::Manage)
    }

    /// Managed clusters that this host leads.
    fn led_clusters(&self) -> impl Iterator<Item = &RegionCluster> {
        self.managed_clusters()
            .filter(|member| member.events.is_some() && member.connection.fence.is_open())
    }

    /// The cleanup scope.
    fn current_cleanup_scope(&self) -> CleanupScope {
        let configured = self.shared.configured.lock();
        let configured = configured.map(|names| names.clone());
        CleanupScope {
            led: self.led_clusters().map(|member| member.cluster.clone()).collect(),
            // If this host does not lead all its managed clusters, it does not delete resources of
            // unknown clusters.
            is_whole: configured.is_ok()
                && self.led_clusters().count() == self.managed_clusters().count(),
            configured: configured.unwrap_or_default(),
        }
    }

    async fn delete_unused_profiles(&mut self, scope: &CleanupScope) -> Result<bool, AwsError> {
        let account = &self.shared.account;
        let removed = self.profiles.delete_unused(account, scope).await?;
        if removed > 0 {
            tracing::info!(removed, "removed unused instance profiles");
        }
        Ok(false)
    }

    async fn delete_unused_templates(&mut self, scope: &CleanupScope) -> Result<bool, AwsError> {
        let led = scope.led.iter();
        let installations: BTreeSet<&str> =
            led.map(|cluster| cluster.installation.as_str()).collect();
        for installation in installations {
            let (account, templates) = (&self.shared.account, &self.shared.templates);
            let removed = templates.delete_unused(account, installation, scope).await?;
            if removed > 0 {
                tracing::info!(removed, "removed unused launch templates");
            }
        }
        Ok(false)
    }

    /// Resolves all node classes of all clusters with the current data and distributes the results.
    /// Cluster data is read concurrently.
    async fn resolve_all_classes(&mut self) {
        for member in self.members.values() {
            let (cluster, account) = (member.cluster.clone(), self.shared.account.clone());
            let connection = member.connection.clone();
            self.homes.start_read(cluster, member.session, connection, account);
        }
        if self.resolve_known_clusters().await {
            self.record_result(RefreshTask::Classes, Ok(false));
        } else {
            // Failed reads are retried soon.
            self.schedule.mark_incomplete(RefreshTask::Classes);
        }
    }

    /// Resolves all node classes of the clusters whose data is known. Returns whether all reads
    /// succeeded.
    async fn resolve_known_clusters(&mut self) -> bool {
        let mut all_read = true;
        self.base = Arc::new(self.region.catalog());
        let names: Vec<ClusterName> = self.members.keys().cloned().collect();
        for name in names {
            let member = self.members.get(&name);
            let home = member.and_then(|member| member.view.borrow().home.clone());
            if home.is_some() {
                all_read &= self.resolve_cluster(&name, home).await;
            }
        }
        all_read
    }

    /// Processes the cluster data for user data.
    async fn on_cluster_info(&mut self, result: ClusterInfoResult) {
        let name = result.cluster;
        let member = self.members.get(&name);
        let Some(member) = member.filter(|member| member.session == result.session) else {
            return;
        };
        let last = member.view.borrow().home.clone();
        let home = match result.info {
            Ok(known) => {
                self.log_missing_cluster_info(&name, known.missing);
                Some(known.home)
            }
            Err(error) => {
                let why = text::error_chain(&error);
                tracing::warn!(cluster = %name, why, "cannot refresh cluster data for user data");
                last.clone()
            }
        };
        // Unchanged data needs no new resolution.
        let is_changed = home.is_none() || home != last;
        if is_changed && !self.resolve_cluster(&name, home).await {
            self.schedule.mark_incomplete(RefreshTask::Classes);
        }
    }

    /// Resolves the node classes of a cluster and sends the result. Returns whether all reads
    /// succeeded.
    async fn resolve_cluster(&mut self, name: &ClusterName, home: Option<ClusterEndpoint>) -> bool {
        let Some(member) = self.members.get(name) else {
            return true;
        };
        let (cluster, connection) = (member.cluster.clone(), member.connection.clone());
        let can_create = cluster.mode == ManagementMode::Manage && member.events.is_some();
        let (mut all_read, mut classes) = (true, BTreeMap::new());
        for class in &cluster.node_classes {
            let ready = self.resolve_class(&cluster, can_create, class, home.as_ref());
            // Only the leader creates resources.
            let fence = can_create.then(|| connection.fence.of_this_term());
            let ready = match fence {
                Some(fence) => fence::run_fenced([fence], ready).await,
                None => Ok(ready.await),
            };
            // The next leader resolves the node class again.
            let Ok(ready) = ready else {
                return false;
            };
            all_read &= ready.is_fully_read();
            classes.insert(class.name.clone(), Arc::new(ready));
        }
        self.publish_view(name, ClusterView { home, classes }).await;
        all_read
    }

    /// Logs once which cluster data is missing in user data, in managed clusters.
    fn log_missing_cluster_info(&mut self, name: &ClusterName, missing: Vec<String>) {
        let Some(member) = self.members.get_mut(name).filter(|member| {
            member.cluster.mode == ManagementMode::Manage && member.events.is_some()
        }) else {
            return;
        };
        for what in missing.iter().filter(|known| !member.missing.contains(known)) {
            tracing::warn!(cluster = %name, what, "user data lacks cluster data");
        }
        member.missing = missing;
    }

    /// Resolves a node class. Only the leader creates missing resources.
    async fn resolve_class(
        &mut self,
        cluster: &Cluster,
        can_create: bool,
        class: &NodeClass,
        home: Option<&ClusterEndpoint>,
    ) -> LaunchableClass {
        let account = self.shared.account.clone();
        let version = home.map(|home| home.version.as_str());
        let images = self.images.find(&account, &class.images, version).await;
        let profile = self.profiles.profile_for(&account, cluster, can_create, class).await;
        let mut resolved = resolve_node_class::resolve_node_class(
            class,
            &self.found,
            images,
            profile,
            clock::now(),
        );
        resolved.conditions.push(validate_user_data(class, &resolved, home));
        let mut ready = LaunchableClass {
            class: class.clone(),
            hash: node_class_hash(Some(class)),
            supply: self.class_supply(&cluster.name, class, &resolved),
            resolved,
        };
        if let Some(home) = home.filter(|_| can_create && !cluster.disable_dry_run) {
            let templates = &self.shared.templates;
            let tested = self.dry_runs.unmet_condition(&account, templates, cluster, home, &ready);
            if let Some(unmet) = tested.await {
                let conditions = &mut ready.resolved.conditions;
                conditions.retain(|known| known.kind != unmet.kind);
                conditions.push(unmet);
                ready.supply = self.class_supply(&cluster.name, class, &ready.resolved);
            }
        }
        ready.log_unmet(&cluster.name);
        ready
    }

    /// Returns the catalog of a node class, as far as the node class is resolved.
    fn class_supply(
        &self,
        cluster: &ClusterName,
        class: &NodeClass,
        resolved: &ResolvedNodeClass,
    ) -> NodeClassSupply {
        let none = BTreeSet::new();
        let observations = RegionObservations {
            memory: &self.memory,
            shifted_zones: self.shifted.get(cluster).unwrap_or(&none),
        };
        NodeClassSupply::new(&self.region, &self.base, class, resolved, observations)
    }

    /// Sends the result to the provider. Sends it to the engine only if it has changed, because the
    /// engine plans again each time.
    async fn publish_view(&mut self, name: &ClusterName, view: ClusterView) {
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        let classes = view.classes.iter();
        let supply = classes.map(|(name, ready)| (name.clone(), ready.supply.clone()));
        let supply: Arc<ClassSupplies> = Arc::new(supply.collect());
        member.view.send_replace(Arc::new(view));
        let sent = Some((self.base.clone(), supply.clone()));
        if member.last_sent == sent {
            return;
        }
        let Some(events) = &member.events else {
            return;
        };
        member.last_sent = sent;
        for event in [Event::CatalogChanged(self.base.clone()), Event::ClassesChanged(supply)] {
            if !send_within_limit(events, event).await {
                member.last_sent = None;
                self.schedule.mark_incomplete(RefreshTask::Classes);
                return;
            }
        }
    }
}

/// Sends an event to an engine without waiting for a busy engine. A stopped engine receives
/// nothing, and its cluster is removed soon.
async fn send_within_limit(events: &mpsc::Sender<Event>, event: Event) -> bool {
    timeout(TELL, events.send(event)).await.is_ok()
}

/// Returns the result of a cleanup that ran only while this host held the Leases. If this host lost
/// a Lease, the result is an error, and the cleanup is retried soon.
fn cleanup_result(outcome: Result<Result<bool, AwsError>, NotLeader>) -> Result<bool, AwsError> {
    outcome.unwrap_or_else(|fenced| Err(AwsError::not_sent("chore", fenced)))
}
