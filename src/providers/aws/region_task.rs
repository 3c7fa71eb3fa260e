//! Reads the data of an account and region once for all its clusters, and resolves the node classes
//! of each cluster.
//!
//! One task per account and region. It runs due reads, resolves node classes, and sends the results
//! to each engine (`Event::ClassesChanged`) and provider.

// Clusters of a region and their notices.
mod clusters;

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
use crate::ec2::instance_status::judge;
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
use crate::providers::aws::cleanup_scope::CleanupScope;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::cluster_info::{ClusterInfoCache, ClusterInfoResult};
use crate::providers::aws::dry_run::DryRuns;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::images::Images;
use crate::providers::aws::instance_profiles::Profiles;
use crate::providers::aws::instances::Lister;
use crate::providers::aws::interruption_listener::Engines;
use crate::providers::aws::launch_templates::Templates;
use crate::providers::aws::launchable_class::{LaunchableClass, validated};
use crate::providers::aws::refresh_schedule::{RefreshSchedule, RefreshTask};
use crate::providers::aws::terminate_batcher::TerminateBatcher;
use crate::providers::aws::{
    cluster_info, instance_status, instance_types, pricing, refresh, zonal_shift,
};

/// Time to wait for a busy engine to accept an event.
const TELL: Duration = Duration::from_secs(1);

/// Data for the provider of a cluster.
#[derive(Default)]
pub(crate) struct ClusterView {
    /// Cluster data for user data. `None` before the first read.
    pub(crate) home: Option<ClusterEndpoint>,
    /// Its node classes.
    pub(crate) classes: BTreeMap<NodeClassName, Arc<LaunchableClass>>,
}

/// State shared by the clusters of a role and region.
pub(crate) struct RegionState {
    pub(crate) account: Arc<AwsClients>,
    pub(crate) lister: Arc<Lister>,
    pub(crate) ends: TerminateBatcher,
    /// The engines of clusters of this account and region that this host leads, for all roles,
    /// because one reader serves the queue.
    pub(crate) engines: Engines,
    /// The clusters that are configured on this host, in all regions.
    pub(crate) configured: Arc<Locked<BTreeSet<ClusterName>>>,
    pub(crate) templates: Templates,
    pub(crate) subnets: Locked<Subnets>,
}

/// A registered cluster.
pub(crate) struct RegionCluster {
    /// Distinguishes successive providers of the same cluster.
    pub(crate) session: u64,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) connection: Connection,
    /// Its engine. `None` while another host is the leader.
    pub(crate) events: Option<mpsc::Sender<Event>>,
    pub(crate) view: watch::Sender<Arc<ClusterView>>,
    /// The last data sent to its engine.
    pub(crate) told: Option<(Arc<Catalog>, Arc<ClassSupplies>)>,
    /// Data that its API server did not provide in the last read.
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
    /// The shipped catalog: list prices until the price list was read, and facts that EC2 does not
    /// provide.
    shipped: Region,
    found: RegionResources,
    images: Images,
    profiles: Profiles,
    memory: DiscoveredMemory,
    trials: DryRuns,
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
            region: Region::new(&shared.account.key.region, shipped.source),
            shared,
            shipped,
            found: RegionResources::default(),
            images: Images::default(),
            profiles: Profiles::default(),
            memory: DiscoveredMemory::default(),
            trials: DryRuns::default(),
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
    pub(crate) async fn keep(mut self, mut inbox: mpsc::Receiver<RegionMessage>) {
        loop {
            let ask = tokio::select! {
                ask = inbox.recv() => ask,
                said = self.homes.next() => {
                    self.heard(said).await;
                    continue;
                }
            };
            let Some(ask) = ask else {
                return;
            };
            match ask {
                RegionMessage::Attend(member) => {
                    let name = member.cluster.name.clone();
                    self.homes.forget(&name);
                    if let Some(old) = self.members.insert(name.clone(), *member) {
                        self.unheard(&old, self.members.get(&name));
                    }
                    self.listen();
                    self.schedule.again(RefreshTask::Classes);
                    // Process clusters that start together in one batch.
                    if !inbox.is_empty() {
                        continue;
                    }
                }
                RegionMessage::Leave(name, session) => {
                    let own = self.members.get(&name);
                    if own.is_some_and(|own| own.session == session)
                        && let Some(old) = self.members.remove(&name)
                    {
                        self.unheard(&old, None);
                        self.listen();
                    }
                    continue;
                }
                RegionMessage::Learn(of, image, memory) => {
                    if self.memory.observe(&of, &image, memory) {
                        self.schedule.again(RefreshTask::Classes);
                    }
                    continue;
                }
                // A listener that has panicked is replaced.
                RegionMessage::Tick => self.listen(),
            }
            self.work().await;
        }
    }

    /// Runs due reads, launch data first.
    async fn work(&mut self) {
        if self.members.is_empty() {
            return;
        }
        let mut news = false;
        if self.schedule.begin(RefreshTask::Types) {
            let outcome = self.types().await;
            news |= self.end(RefreshTask::Types, outcome);
        }
        if self.schedule.begin(RefreshTask::Network) {
            let outcome = self.network().await;
            news |= self.end(RefreshTask::Network, outcome);
        }
        if self.schedule.begin(RefreshTask::Shifts) {
            let outcome = self.shifts().await;
            news |= self.end(RefreshTask::Shifts, outcome);
        }
        if self.schedule.begin(RefreshTask::Classes) || news {
            self.classes().await;
        }
        let mut dearer = false;
        if self.schedule.begin(RefreshTask::SpotPrices) {
            let outcome = self.spot_prices().await;
            dearer |= self.end(RefreshTask::SpotPrices, outcome);
        }
        if self.schedule.begin(RefreshTask::ListPrices) {
            let outcome = self.list_prices().await;
            dearer |= self.end(RefreshTask::ListPrices, outcome);
        }
        if dearer {
            self.classes().await;
        }
        let is_heard = self.members.values().any(|member| member.events.is_some());
        if is_heard && self.schedule.begin(RefreshTask::Health) {
            let outcome = self.health().await;
            self.end(RefreshTask::Health, outcome);
        }
        let care = self.care();
        // Only the leader deletes resources.
        let fences: Arc<[Fence]> = self
            .led()
            .map(|own| own.connection.fence.of_this_term())
            .collect();
        if !care.led.is_empty() && self.schedule.begin(RefreshTask::Profiles) {
            let removing = self.unused_profiles(&care);
            let outcome = fence::within(fences.clone(), removing).await;
            self.end(RefreshTask::Profiles, done(outcome));
        }
        if !care.led.is_empty() && self.schedule.begin(RefreshTask::Templates) {
            let outcome = fence::within(fences, self.templates(&care)).await;
            self.end(RefreshTask::Templates, done(outcome));
        }
    }

    fn end(&mut self, chore: RefreshTask, outcome: Result<bool, AwsError>) -> bool {
        self.schedule.end(&self.region.name, chore, outcome)
    }

    async fn types(&mut self) -> Result<bool, AwsError> {
        let account = &self.shared.account;
        let shapes = instance_types::shapes(account).await?;
        let sold = instance_types::sold(account).await?;
        let shapes = self.region.set_shapes(shapes, &self.shipped);
        if self.region.list.is_empty() {
            self.region.list.clone_from(&self.shipped.list);
        }
        Ok(self.region.set_sold(sold) || shapes)
    }

    async fn network(&mut self) -> Result<bool, AwsError> {
        let account = &self.shared.account;
        let classes = || {
            self.members
                .values()
                .flat_map(|member| &member.cluster.node_classes)
        };
        let reserves = classes().any(|class| !class.reservations.is_empty());
        let groups = classes().any(|class| class.placement_group.is_some());
        let (counted, outcome) =
            refresh::refresh(account, &mut self.found, (reserves, groups)).await;
        // An older count would return addresses that launches have reserved since.
        if let Ok(all) = self.found.subnets.as_ref()
            && counted
        {
            let ids = all
                .iter()
                .map(|(own, _)| (own.zone.clone(), own.zone_id.clone()));
            self.region.set_zone_ids(ids);
            let all: Vec<_> = all.iter().map(|(own, _)| own.clone()).collect();
            if let Ok(mut ledger) = self.shared.subnets.lock() {
                ledger.counted(&all);
            }
        }
        outcome.map(|()| true)
    }

    /// Reads zonal shifts, which exist only for EKS clusters.
    async fn shifts(&mut self) -> Result<bool, AwsError> {
        let mut news = false;
        let members = self.members.values().map(|member| member.cluster.clone());
        let wanted: Vec<Arc<Cluster>> = members.filter(|member| member.zonal_shift).collect();
        for own in wanted {
            let Some(eks) = &own.eks else { continue };
            let account = self.shared.account.clone();
            let name = eks.name.clone().unwrap_or(own.name.to_string());
            let arn = match self.arns.get(&name) {
                Some(arn) => arn.clone(),
                None => {
                    let listed = cluster_info::describe(&account, &name).await?;
                    listed.arn().unwrap_or_default().to_owned()
                }
            };
            self.arns.insert(name, arn.clone());
            let zones = zonal_shift::shifted(&account, &arn).await?;
            let before = self.shifted.insert(own.name.clone(), zones.clone());
            if before.unwrap_or_default() != zones {
                tracing::warn!(cluster = %own.name, ?zones, "detected zonal shift");
                news = true;
            }
        }
        Ok(news)
    }

    async fn spot_prices(&mut self) -> Result<bool, AwsError> {
        let prices = pricing::spot(&self.shared.account).await?;
        Ok(self.region.set_spot_prices(&prices, clock::now()))
    }

    async fn list_prices(&mut self) -> Result<bool, AwsError> {
        let (shared, metal) = pricing::list(&self.shared.account).await?;
        let taken = self.region.set_list_prices(&shared, &metal, clock::now());
        let (region, source) = (&self.region.name, self.region.source.to_string());
        tracing::info!(region, taken, source, "read list prices");
        Ok(taken)
    }

    /// Sends failed checks and scheduled maintenance of instances to the engines.
    async fn health(&mut self) -> Result<bool, AwsError> {
        let rows = instance_status::ailing(&self.shared.account).await?;
        for (instance, (what, at)) in judge(&rows, clock::now()) {
            for member in self.members.values() {
                // An engine ignores instances of other clusters.
                let event = Event::Interrupted(instance.clone(), what, at);
                if let Some(events) = &member.events {
                    // The next read sends it again.
                    hears(events, event).await;
                }
            }
        }
        Ok(false)
    }

    /// Managed clusters.
    fn managed(&self) -> impl Iterator<Item = &RegionCluster> {
        let all = self.members.values();
        all.filter(|own| own.cluster.mode == ManagementMode::Manage)
    }

    /// Managed clusters that this host leads.
    fn led(&self) -> impl Iterator<Item = &RegionCluster> {
        self.managed()
            .filter(|own| own.events.is_some() && own.connection.fence.is_open())
    }

    /// The cleanup scope.
    fn care(&self) -> CleanupScope {
        let configured = self.shared.configured.lock();
        let configured = configured.map(|own| own.clone());
        CleanupScope {
            led: self.led().map(|own| own.cluster.clone()).collect(),
            // Without knowledge of other hosts, resources of unknown clusters are not deleted.
            is_whole: configured.is_ok() && self.led().count() == self.managed().count(),
            configured: configured.unwrap_or_default(),
        }
    }

    async fn unused_profiles(&mut self, care: &CleanupScope) -> Result<bool, AwsError> {
        let account = &self.shared.account;
        let removed = self.profiles.collect(account, care).await?;
        if removed > 0 {
            tracing::info!(removed, "removed unused instance profiles");
        }
        Ok(false)
    }

    async fn templates(&mut self, care: &CleanupScope) -> Result<bool, AwsError> {
        let led = care.led.iter();
        let installations: BTreeSet<&str> = led.map(|own| own.installation.as_str()).collect();
        for installation in installations {
            let (account, templates) = (&self.shared.account, &self.shared.templates);
            let removed = templates.collect(account, installation, care).await?;
            if removed > 0 {
                tracing::info!(removed, "removed unused launch templates");
            }
        }
        Ok(false)
    }

    /// Resolves all node classes of all clusters with the current data and distributes the results.
    /// Cluster data is read concurrently.
    async fn classes(&mut self) {
        let mut sure = true;
        self.base = Arc::new(self.region.catalog());
        let names: Vec<ClusterName> = self.members.keys().cloned().collect();
        for name in names {
            let Some(member) = self.members.get(&name) else {
                continue;
            };
            let (own, account) = (member.cluster.clone(), self.shared.account.clone());
            let connection = member.connection.clone();
            self.homes.ask((own, member.session), connection, account);
            let home = member.view.borrow().home.clone();
            if home.is_some() {
                sure &= self.resolve(&name, home).await;
            }
        }
        // Failed reads are retried soon.
        if sure {
            self.end(RefreshTask::Classes, Ok(false));
        }
    }

    /// Processes the cluster data for user data.
    async fn heard(&mut self, (name, session, said): ClusterInfoResult) {
        let member = self.members.get(&name);
        let Some(member) = member.filter(|member| member.session == session) else {
            return;
        };
        let last = member.view.borrow().home.clone();
        let home = match said {
            Ok(known) => {
                self.log_missing_cluster_info(&name, known.missing);
                Some(known.home)
            }
            Err(error) => {
                let why = text::chain(&error);
                tracing::warn!(cluster = %name, why, "cannot refresh cluster data for user data");
                last.clone()
            }
        };
        // Unchanged data needs no new resolution.
        let is_news = home.is_none() || home != last;
        if is_news && !self.resolve(&name, home).await {
            self.schedule.unsure(RefreshTask::Classes);
        }
    }

    /// Resolves the node classes of a cluster and sends the result. Returns whether all reads
    /// succeeded.
    async fn resolve(&mut self, name: &ClusterName, home: Option<ClusterEndpoint>) -> bool {
        let Some(member) = self.members.get(name) else {
            return true;
        };
        let base = self.base.clone();
        let (own, connection) = (member.cluster.clone(), member.connection.clone());
        let acts = own.mode == ManagementMode::Manage && member.events.is_some();
        let (mut sure, mut classes) = (true, BTreeMap::new());
        for class in &own.node_classes {
            let ready = self.ready((&own, acts), class, home.as_ref(), &base);
            // Only the leader creates resources.
            let fence = acts.then(|| connection.fence.of_this_term());
            let ready = match fence {
                Some(fence) => fence::within([fence], ready).await,
                None => Ok(ready.await),
            };
            // The next leader resolves it again.
            let Ok(ready) = ready else {
                return false;
            };
            sure &= ready.is_sure();
            classes.insert(class.name.clone(), Arc::new(ready));
        }
        self.tell(name, &base, ClusterView { home, classes }).await;
        sure
    }

    /// Logs once which cluster data is missing in user data, in managed clusters.
    fn log_missing_cluster_info(&mut self, name: &ClusterName, missing: Vec<String>) {
        let Some(member) = self.members.get_mut(name).filter(|member| {
            member.cluster.mode == ManagementMode::Manage && member.events.is_some()
        }) else {
            return;
        };
        for what in missing.iter().filter(|own| !member.missing.contains(own)) {
            tracing::warn!(cluster = %name, what, "user data lacks cluster data");
        }
        member.missing = missing;
    }

    /// Resolves a node class. Only the leader creates missing resources.
    async fn ready(
        &mut self,
        (own, acts): (&Cluster, bool),
        class: &NodeClass,
        home: Option<&ClusterEndpoint>,
        base: &Arc<Catalog>,
    ) -> LaunchableClass {
        let account = self.shared.account.clone();
        let version = home.map(|home| home.version.as_str());
        let images = self.images.find(&account, &class.images, version).await;
        let profile = self.profiles.of(&account, (own, acts), class).await;
        let mut resolved =
            resolve_node_class::resolve(class, &self.found, images, profile, clock::now());
        let nowhere = BTreeSet::new();
        let shifted = self.shifted.get(&own.name).unwrap_or(&nowhere);
        resolved.conditions.push(validated(class, &resolved, home));
        let observations = RegionObservations {
            memory: &self.memory,
            shifted_zones: shifted,
        };
        let supply = |resolved: &ResolvedNodeClass| {
            NodeClassSupply::new(&self.region, base, class, resolved, observations)
        };
        let mut ready = LaunchableClass {
            class: class.clone(),
            hash: node_class_hash(Some(class)),
            supply: supply(&resolved),
            resolved,
        };
        let home = home.filter(|_| acts && !own.disable_dry_run);
        let with = (&*account, &self.shared.templates);
        let unmet = match home {
            Some(home) => self.trials.of(with, (own, home), &ready).await,
            None => None,
        };
        if let Some(unmet) = unmet {
            let all = &mut ready.resolved.conditions;
            all.retain(|known| known.kind != unmet.kind);
            all.push(unmet);
            ready.supply = supply(&ready.resolved);
        }
        ready.warn(&own.name);
        ready
    }

    /// Sends the result to the provider, and to the engine if it has changed, because the engine
    /// plans again each time.
    async fn tell(&mut self, name: &ClusterName, base: &Arc<Catalog>, view: ClusterView) {
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        let classes = view.classes.iter();
        let supply = classes.map(|(name, ready)| (name.clone(), ready.supply.clone()));
        let supply: Arc<ClassSupplies> = Arc::new(supply.collect());
        member.view.send_replace(Arc::new(view));
        let told = Some((base.clone(), supply.clone()));
        if member.told == told {
            return;
        }
        let Some(events) = &member.events else {
            return;
        };
        member.told = told;
        for event in [
            Event::CatalogChanged(base.clone()),
            Event::ClassesChanged(supply),
        ] {
            if !hears(events, event).await {
                member.told = None;
                self.schedule.unsure(RefreshTask::Classes);
                return;
            }
        }
    }
}

/// Sends an event to an engine without waiting for a busy engine. A stopped engine receives
/// nothing, and its cluster is removed soon.
async fn hears(events: &mpsc::Sender<Event>, event: Event) -> bool {
    timeout(TELL, events.send(event)).await.is_ok()
}

/// Records the result of a cleanup behind fences. A cancelled cleanup is retried soon.
fn done(outcome: Result<Result<bool, AwsError>, NotLeader>) -> Result<bool, AwsError> {
    outcome.unwrap_or_else(|fenced| Err(AwsError::fenced("chore", fenced)))
}
