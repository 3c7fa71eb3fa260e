//! What is known of an account and region, asked for once for all clusters that are in it, and what
//! each cluster's node classes make of it. It must not know what is launched, nor why.
//!
//! One task an account and region: whatever is due is asked for, node classes are resolved, and
//! each engine hears what it can have (`Event::ClassesChanged`), each provider how to get it.

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
use crate::catalog::node_class::{ClassSupplies, NodeClassSupply};
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

/// How long an engine is waited for that has too much to do to hear anything.
const TELL: Duration = Duration::from_secs(1);

/// All that a cluster's provider needs to know.
#[derive(Default)]
pub(crate) struct ClusterView {
    /// What nodes are told of their cluster; none before it was asked.
    pub(crate) home: Option<ClusterEndpoint>,
    /// Its node classes.
    pub(crate) classes: BTreeMap<NodeClassName, Arc<LaunchableClass>>,
}

/// What the clusters of a role and region share.
pub(crate) struct RegionState {
    pub(crate) account: Arc<AwsClients>,
    pub(crate) lister: Arc<Lister>,
    pub(crate) ends: TerminateBatcher,
    /// The engines of clusters of this account and region that are driven here, by whatever role:
    /// a message is taken in by whoever reads it.
    pub(crate) engines: Engines,
    /// The clusters that are configured on this host, wherever they are.
    pub(crate) configured: Arc<Locked<BTreeSet<ClusterName>>>,
    pub(crate) templates: Templates,
    pub(crate) subnets: Locked<Subnets>,
}

/// A cluster that is kept up to date.
pub(crate) struct RegionCluster {
    /// Tells it from the same cluster when it was driven by another.
    pub(crate) seat: u64,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) connection: Connection,
    /// Its engine; none while another host leads it.
    pub(crate) events: Option<mpsc::Sender<Event>>,
    pub(crate) view: watch::Sender<Arc<ClusterView>>,
    /// What its engine was told last.
    pub(crate) told: Option<(Arc<Catalog>, Arc<ClassSupplies>)>,
    /// What its API did not tell when it was last asked.
    pub(crate) missing: Vec<String>,
}

/// What a keeper is told.
pub(crate) enum RegionMessage {
    /// A cluster is there, or is another than it was.
    Attend(Box<RegionCluster>),
    /// A cluster is driven no more, from this seat.
    Leave(ClusterName, u64),
    /// A node of this type and image has reported so much memory, in bytes.
    Learn(TypeName, String, i64),
    /// It is time to see what is due.
    Tick,
}

/// Where all that a keeper knows lies.
pub(crate) struct RegionTask {
    shared: Arc<RegionState>,
    region: Region,
    /// What ships: list prices until the price list was read, facts that EC2 does not tell.
    shipped: Region,
    found: RegionResources,
    images: Images,
    profiles: Profiles,
    memory: DiscoveredMemory,
    trials: DryRuns,
    /// ARNs of clusters, by their names in EKS.
    arns: BTreeMap<String, String>,
    /// Ids of zones that the traffic of a cluster is shifted away from.
    shifted: BTreeMap<ClusterName, BTreeSet<String>>,
    members: BTreeMap<ClusterName, RegionCluster>,
    homes: ClusterInfoCache,
    /// The catalog that all of them are told of, once for all.
    base: Arc<Catalog>,
    /// Who reads which queue, by installation and queue.
    queues: BTreeMap<(String, String), AbortHandle>,
    diary: RefreshSchedule,
}

impl RegionTask {
    /// An empty one.
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
            diary: RefreshSchedule::default(),
        }
    }

    /// Works for ever.
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
                    self.diary.again(RefreshTask::Classes);
                    // Those that start together are served together.
                    if !inbox.is_empty() {
                        continue;
                    }
                }
                RegionMessage::Leave(name, seat) => {
                    let own = self.members.get(&name);
                    if own.is_some_and(|own| own.seat == seat)
                        && let Some(old) = self.members.remove(&name)
                    {
                        self.unheard(&old, None);
                        self.listen();
                    }
                    continue;
                }
                RegionMessage::Learn(of, image, memory) => {
                    if self.memory.observe(&of, &image, memory) {
                        self.diary.again(RefreshTask::Classes);
                    }
                    continue;
                }
                // Whoever has panicked reads no queue any more.
                RegionMessage::Tick => self.listen(),
            }
            self.work().await;
        }
    }

    /// Does what is due, what nodes are launched from first.
    async fn work(&mut self) {
        if self.members.is_empty() {
            return;
        }
        let mut news = false;
        if self.diary.begin(RefreshTask::Types) {
            let outcome = self.types().await;
            news |= self.end(RefreshTask::Types, outcome);
        }
        if self.diary.begin(RefreshTask::Network) {
            let outcome = self.network().await;
            news |= self.end(RefreshTask::Network, outcome);
        }
        if self.diary.begin(RefreshTask::Shifts) {
            let outcome = self.shifts().await;
            news |= self.end(RefreshTask::Shifts, outcome);
        }
        if self.diary.begin(RefreshTask::Classes) || news {
            self.classes().await;
        }
        let mut dearer = false;
        if self.diary.begin(RefreshTask::SpotPrices) {
            let outcome = self.spot_prices().await;
            dearer |= self.end(RefreshTask::SpotPrices, outcome);
        }
        if self.diary.begin(RefreshTask::ListPrices) {
            let outcome = self.list_prices().await;
            dearer |= self.end(RefreshTask::ListPrices, outcome);
        }
        if dearer {
            self.classes().await;
        }
        let is_heard = self.members.values().any(|own| own.events.is_some());
        if is_heard && self.diary.begin(RefreshTask::Health) {
            let outcome = self.health().await;
            self.end(RefreshTask::Health, outcome);
        }
        let care = self.care();
        // What is removed is removed by who leads, or not at all.
        let fence = |own: &RegionCluster| own.connection.fence.of_this_term();
        let fences: Arc<[Fence]> = self.led().map(fence).collect();
        if !care.led.is_empty() && self.diary.begin(RefreshTask::Profiles) {
            let removing = self.unused_profiles(&care);
            let outcome = fence::within(fences.clone(), removing).await;
            self.end(RefreshTask::Profiles, done(outcome));
        }
        if !care.led.is_empty() && self.diary.begin(RefreshTask::Templates) {
            let outcome = fence::within(fences, self.templates(&care)).await;
            self.end(RefreshTask::Templates, done(outcome));
        }
    }

    fn end(&mut self, chore: RefreshTask, outcome: Result<bool, AwsError>) -> bool {
        self.diary.end(&self.region.name, chore, outcome)
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
                .flat_map(|own| &own.cluster.node_classes)
        };
        let reserves = classes().any(|own| !own.reservations.is_empty());
        let groups = classes().any(|own| own.placement_group.is_some());
        let (counted, outcome) =
            refresh::refresh(account, &mut self.found, (reserves, groups)).await;
        // A count of before would give back what launches have taken since.
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

    /// Where traffic goes. Only clusters of EKS are known to whoever shifts it.
    async fn shifts(&mut self) -> Result<bool, AwsError> {
        let mut news = false;
        let members = self.members.values().map(|own| own.cluster.clone());
        let wanted: Vec<Arc<Cluster>> = members.filter(|own| own.zonal_shift).collect();
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
                tracing::warn!(cluster = %own.name, ?zones, "traffic is shifted away from zones");
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
        let taken = self.region.set_list_prices((&shared, &metal), clock::now());
        let (region, source) = (&self.region.name, self.region.source.to_string());
        tracing::info!(region, taken, source, "list prices");
        Ok(taken)
    }

    /// Tells engines of instances that fail or are to be maintained.
    async fn health(&mut self) -> Result<bool, AwsError> {
        let rows = instance_status::ailing(&self.shared.account).await?;
        for (instance, (what, at)) in judge(&rows, clock::now()) {
            for member in self.members.values() {
                // An engine knows its own instances; another's say nothing to it.
                let event = Event::Interrupted(instance.clone(), what, at);
                if let Some(events) = &member.events {
                    // It is told again with the next look.
                    hears(events, event).await;
                }
            }
        }
        Ok(false)
    }

    /// The clusters that are managed.
    fn managed(&self) -> impl Iterator<Item = &RegionCluster> {
        let all = self.members.values();
        all.filter(|own| own.cluster.mode == ManagementMode::Manage)
    }

    /// Those of them that this host leads.
    fn led(&self) -> impl Iterator<Item = &RegionCluster> {
        let leads = |own: &&RegionCluster| own.events.is_some() && own.connection.fence.is_open();
        self.managed().filter(leads)
    }

    /// Whose templates and profiles are looked after here.
    fn care(&self) -> CleanupScope {
        let configured = self.shared.configured.lock();
        let configured = configured.map(|own| own.clone());
        CleanupScope {
            led: self.led().map(|own| own.cluster.clone()).collect(),
            // Where nobody can say who else is there, nobody's are anybody's.
            is_whole: configured.is_ok() && self.led().count() == self.managed().count(),
            configured: configured.unwrap_or_default(),
        }
    }

    async fn unused_profiles(&mut self, care: &CleanupScope) -> Result<bool, AwsError> {
        let account = &self.shared.account;
        let removed = self.profiles.collect(account, care).await?;
        if removed > 0 {
            tracing::info!(removed, "instance profiles removed that nobody uses");
        }
        Ok(false)
    }

    async fn templates(&mut self, care: &CleanupScope) -> Result<bool, AwsError> {
        let led = care.led.iter();
        let installations: BTreeSet<&str> = led.map(|own| own.installation.as_str()).collect();
        for own in installations {
            let (account, templates) = (&self.shared.account, &self.shared.templates);
            let removed = templates.collect(account, own, care).await?;
            if removed > 0 {
                tracing::info!(removed, "launch templates removed that nobody uses");
            }
        }
        Ok(false)
    }

    /// Resolves all node classes of all clusters and tells whom it concerns, by what is known of
    /// the clusters; they are asked meanwhile.
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
            self.homes.ask((own, member.seat), connection, account);
            let home = member.view.borrow().home.clone();
            if home.is_some() {
                sure &= self.resolve(&name, home).await;
            }
        }
        // What could not be asked is asked again soon.
        if sure {
            self.end(RefreshTask::Classes, Ok(false));
        }
    }

    /// A cluster says what its nodes are to be told.
    async fn heard(&mut self, (name, seat, said): ClusterInfoResult) {
        let member = self.members.get(&name);
        let Some(member) = member.filter(|own| own.seat == seat) else {
            return;
        };
        let last = member.view.borrow().home.clone();
        let home = match said {
            Ok(known) => {
                self.tell_missing(&name, known.missing);
                Some(known.home)
            }
            Err(error) => {
                let why = text::chain(&error);
                tracing::warn!(cluster = %name, why, "what nodes are told gets older");
                last.clone()
            }
        };
        // By what is the same as before everything is resolved already.
        let is_news = home.is_none() || home != last;
        if is_news && !self.resolve(&name, home).await {
            self.diary.unsure(RefreshTask::Classes);
        }
    }

    /// Resolves the node classes of a cluster and tells it. Returns whether all that was asked was
    /// answered.
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
            // What is made for it is made by who leads it, or not at all.
            let fence = acts.then(|| connection.fence.of_this_term());
            let ready = match fence {
                Some(fence) => fence::within([fence], ready).await,
                None => Ok(ready.await),
            };
            // Who leads next has it resolved anew.
            let Ok(ready) = ready else {
                return false;
            };
            sure &= ready.is_sure();
            classes.insert(class.name.clone(), Arc::new(ready));
        }
        self.tell(name, &base, ClusterView { home, classes }).await;
        sure
    }

    /// Says once what nodes are not told of their cluster, where any are made.
    fn tell_missing(&mut self, name: &ClusterName, missing: Vec<String>) {
        let is_led = |own: &&mut RegionCluster| {
            own.cluster.mode == ManagementMode::Manage && own.events.is_some()
        };
        let Some(member) = self.members.get_mut(name).filter(is_led) else {
            return;
        };
        for what in missing.iter().filter(|own| !member.missing.contains(own)) {
            tracing::warn!(cluster = %name, what, "nodes are not told all that they may need");
        }
        member.missing = missing;
    }

    /// What a node class comes to. Only who acts for the cluster makes what is missing for it.
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
        let known = (&self.memory, shifted);
        let supply =
            |of: &ResolvedNodeClass| NodeClassSupply::new((&self.region, base), class, of, known);
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

    /// Tells a cluster's provider, and its engine unless that knows it all: it plans anew each time
    /// that it is told.
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
                self.diary.unsure(RefreshTask::Classes);
                return;
            }
        }
    }
}

/// Tells an engine, unless it has too much to do: nobody waits for it. One that has ended hears
/// nothing, and its cluster leaves soon.
async fn hears(events: &mpsc::Sender<Event>, event: Event) -> bool {
    timeout(TELL, events.send(event)).await.is_ok()
}

/// What came of a chore that stands behind fences: one that was given up is tried again soon.
fn done(outcome: Result<Result<bool, AwsError>, NotLeader>) -> Result<bool, AwsError> {
    outcome.unwrap_or_else(|fenced| Err(AwsError::fenced("chore", fenced)))
}
