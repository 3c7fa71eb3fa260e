//! The clusters that are driven: starts a driver for each, and replaces them as they change.
//! It must not know where the configuration comes from, nor what an engine does.

mod error;
mod reload_guard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{join_all, select_all};
use futures::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use crate::catalog::{self, Catalog};
use crate::host::clock::Moment;
use crate::host::{files, text};
#[cfg(feature = "aws")]
use crate::kubernetes::client::connect_issued;
use crate::kubernetes::client::{Connection, connect};
use crate::kubernetes::exec_credential;
use crate::model::cluster::{ApiSettings, Cluster, ManagementMode, Simulated};
use crate::model::fleet::FleetLimits;
use crate::model::id::ClusterName;
#[cfg(feature = "aws")]
use crate::providers::aws::eks;
#[cfg(feature = "aws")]
use crate::providers::aws::provider::Ec2;
#[cfg(feature = "aws")]
use crate::providers::aws::region::Regions;
use crate::providers::exec::ExecProvider;
use crate::providers::simulated::remote::Remote;
use crate::providers::simulated::{CloudHandle, InProcess};
use crate::providers::{NoProvider, Provider};
use crate::runtime::cluster_handle::{ClusterHandle, ClusterHealth, Clusters};
use crate::runtime::cluster_runner::ClusterRunner;
use crate::runtime::engine_loop::EngineDeps;
use crate::runtime::fleet_task::FleetHandle;
use crate::runtime::holder_identity::HolderIdentity;
use crate::runtime::leader_election::{LeaderElector, LeaseBalancer};
use crate::telemetry;

pub(crate) use error::{ApplyError, PrepareError};

/// A cluster that is being driven, and what with.
struct Running {
    post: ClusterRunner,
    cluster: Arc<Cluster>,
    catalog: Arc<Catalog>,
    /// What the kubeconfig said.
    print: u64,
}

/// Everything a cluster is to be driven with.
pub(crate) struct Prepared {
    parts: EngineDeps,
    /// Its cloud, where that is in this process.
    cloud: Option<(Simulated, CloudHandle)>,
}

/// A cluster that cannot be driven yet, and why.
pub(crate) struct FailedCluster {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) why: PrepareError,
}

/// How long clusters are waited for that are being prepared: those that are not by then are broken
/// for now.
#[derive(Clone, Copy)]
pub(crate) struct StartTimeouts {
    most: Duration,
    /// So many have to be prepared in any case, if they can be.
    least: usize,
}

/// Time for a post whose engine has ended to let go of everything.
const ENDS: Duration = Duration::from_secs(15);

/// All of them are waited for, each as long as what it waits for lets it.
pub(crate) const ALL: StartTimeouts = StartTimeouts {
    most: Duration::from_hours(1),
    least: 0,
};
/// Nobody waits long for who hangs, as long as there is anybody.
pub(crate) const STARTING: StartTimeouts = StartTimeouts {
    most: Duration::from_secs(5),
    least: 1,
};
/// Nothing else is heard meanwhile. A plugin has its whole time.
const MENDING: StartTimeouts = StartTimeouts {
    most: Duration::from_secs(exec_credential::LIMIT.as_secs() + 5),
    least: 0,
};

/// All clusters that are driven, or are to be as soon as that can be.
pub(crate) struct ClusterSet {
    fleet: FleetHandle,
    identity: HolderIdentity,
    company: Arc<LeaseBalancer>,
    #[cfg(feature = "aws")]
    keepers: Arc<Regions>,
    limits: FleetLimits,
    running: BTreeMap<ClusterName, Running>,
    /// Those that are not driven, since something of theirs is broken.
    broken: BTreeMap<ClusterName, (Arc<Cluster>, Arc<ClusterHandle>)>,
    /// Clouds in this process outlive the drivers that are replaced.
    clouds: BTreeMap<ClusterName, (Simulated, CloudHandle)>,
}

impl ClusterSet {
    /// None yet, and none that leads: for whoever does one thing.
    pub(crate) fn start() -> Self {
        Self::start_as(HolderIdentity::new("", None))
    }

    /// None yet. They hold their Leases by this name.
    pub(crate) fn start_as(identity: HolderIdentity) -> Self {
        Self {
            fleet: FleetHandle::start(),
            identity,
            company: Arc::default(),
            #[cfg(feature = "aws")]
            keepers: Arc::default(),
            limits: FleetLimits::default(),
            running: BTreeMap::new(),
            broken: BTreeMap::new(),
            clouds: BTreeMap::new(),
        }
    }

    /// Everything that may fail for a cluster, before anything of it is started or changed. Of
    /// several that fail the first is told.
    pub(crate) async fn prepare(
        &self,
        clusters: Vec<Arc<Cluster>>,
    ) -> Result<Vec<Prepared>, PrepareError> {
        let (prepared, broken) = self.prepare_each(clusters, ALL).await;
        match broken.into_iter().next() {
            Some(FailedCluster { why, .. }) => Err(why),
            None => Ok(prepared),
        }
    }

    /// The same for each by itself. All at once, since each may wait for a plugin.
    pub(crate) async fn prepare_each(
        &self,
        clusters: Vec<Arc<Cluster>>,
        patience: StartTimeouts,
    ) -> (Vec<Prepared>, Vec<FailedCluster>) {
        let mut catalogs: BTreeMap<Option<PathBuf>, Arc<Catalog>> = BTreeMap::new();
        let (mut known, mut broken) = (Vec::new(), Vec::new());
        for cluster in clusters {
            let exec = cluster.exec.as_ref().map(|it| it.catalog.clone());
            let simulated = cluster.simulated.as_ref().map(|it| it.catalog.clone());
            let source = exec.or(simulated).flatten();
            let catalog = match catalogs.get(&source) {
                Some(catalog) => Ok(catalog.clone()),
                None => self.catalog(&cluster.name, source.as_deref()),
            };
            match catalog {
                Ok(catalog) => {
                    catalogs.insert(source, catalog.clone());
                    known.push((cluster, catalog));
                }
                Err(why) => broken.push(FailedCluster { cluster, why }),
            }
        }
        let clusters = known.iter().map(|(cluster, _)| cluster.clone());
        let mut waited: BTreeMap<usize, Arc<Cluster>> = clusters.enumerate().collect();
        let each = known.into_iter().enumerate();
        let mut each: FuturesUnordered<_> =
            each.map(|(at, (cluster, catalog))| async move {
                (at, self.prepared(cluster, catalog).await)
            })
            .collect();
        let (mut over, mut is_over) = (pin!(sleep(patience.most)), false);
        let mut done = BTreeMap::new();
        let mut failed = BTreeMap::new();
        while !(each.is_empty() || (is_over && done.len() >= patience.least)) {
            tokio::select! {
                Some((at, prepared)) = each.next() => {
                    let Some(cluster) = waited.remove(&at) else {
                        continue;
                    };
                    match prepared {
                        Ok(own) => drop(done.insert(at, own)),
                        Err(why) => drop(failed.insert(at, FailedCluster { cluster, why })),
                    }
                }
                () = &mut over, if !is_over => is_over = true,
            }
        }
        for (at, cluster) in waited {
            let why = PrepareError::late(&cluster);
            failed.insert(at, FailedCluster { cluster, why });
        }
        broken.extend(failed.into_values());
        (done.into_values().collect(), broken)
    }

    /// The instance types of one source: the same value for all clusters that have it from there,
    /// also for those that run already.
    fn catalog(
        &self,
        cluster: &ClusterName,
        source: Option<&Path>,
    ) -> Result<Arc<Catalog>, PrepareError> {
        let catalog = match source {
            None => Catalog::shipped(),
            Some(path) => read_catalog(cluster, path)?,
        };
        let mut running = self.running.values().map(|own| &own.catalog);
        let same = running.find(|own| ***own == catalog).cloned();
        Ok(same.unwrap_or_else(|| Arc::new(catalog)))
    }

    async fn prepared(
        &self,
        cluster: Arc<Cluster>,
        catalog: Arc<Catalog>,
    ) -> Result<Prepared, PrepareError> {
        let name = &cluster.name;
        let connection = self.connect(&cluster).await?;
        let simulated = cluster.simulated.as_ref();
        let cloud = simulated
            .filter(|it| it.address.is_none() && cluster.exec.is_none())
            .map(|it| (it.clone(), self.cloud(name, it, &catalog)));
        let own_cloud = cloud.as_ref().map(|(_, it)| it);
        let provider = self.provider(&cluster, &connection, own_cloud).await?;
        let parts = EngineDeps {
            read_clocks: Moment::now,
            cluster,
            catalog,
            connection,
            provider,
        };
        Ok(Prepared { parts, cloud })
    }

    /// A connection to the API of a cluster, however it is reached.
    pub(crate) async fn connect(&self, cluster: &Cluster) -> Result<Connection, PrepareError> {
        let mut connection = self.connected(cluster).await?;
        connection.lease = cluster.lease.clone();
        Ok(connection)
    }

    async fn connected(&self, cluster: &Cluster) -> Result<Connection, PrepareError> {
        let name = || cluster.name.clone();
        if let Some(kubeconfig) = &cluster.kubeconfig {
            let connection = connect(kubeconfig, &cluster.api).await;
            return connection.map_err(|it| PrepareError::Connect(name(), it));
        }
        #[cfg(feature = "aws")]
        if let Some(eks) = &cluster.eks {
            let account = self.keepers.of(cluster).await.shared.account.clone();
            let issued = eks::issued(account, cluster, eks).await;
            let issued = issued.map_err(|why| PrepareError::Eks(name(), why))?;
            let connection = connect_issued(issued, &cluster.api);
            return connection.map_err(|it| PrepareError::Connect(name(), it));
        }
        Err(PrepareError::NoKubeconfig(name()))
    }

    /// The cloud that this cluster has already, else a new one.
    fn cloud(&self, name: &ClusterName, of: &Simulated, catalog: &Arc<Catalog>) -> CloudHandle {
        let known = self.clouds.get(name).filter(|(settings, _)| settings == of);
        match known {
            Some((_, cloud)) => cloud.clone(),
            None => CloudHandle::start(catalog.clone(), of.boot),
        }
    }

    /// Stops what is not configured any more or connected otherwise, tells the others what has
    /// changed, starts the new. What fails for one cluster does not keep the others from it: those
    /// that are broken are tried again by `mend`.
    pub(crate) async fn apply(
        &mut self,
        prepared: Vec<Prepared>,
        broken: Vec<FailedCluster>,
        limits: FleetLimits,
    ) -> Result<(), ApplyError> {
        let goes_on = |name: &ClusterName, running: &Running| {
            let new = prepared.iter().find(|it| it.parts.cluster.name == *name);
            new.is_some_and(|new| running.can_go_on(&new.parts))
        };
        let ending: Vec<ClusterName> = self
            .running
            .iter()
            .filter(|(name, running)| !goes_on(name, running))
            .map(|(name, _)| name.clone())
            .collect();
        let stopped = ending.iter().filter_map(|name| self.running.remove(name));
        join_all(stopped.map(|running| running.post.stop())).await;
        for name in ending {
            tracing::info!(cluster = %name, "cluster stopped");
            if !prepared.iter().any(|it| it.parts.cluster.name == name) {
                telemetry::status(&name, false);
                self.clouds.remove(&name);
            }
        }
        self.broken.clear();
        self.limits = limits;
        self.drive(prepared, broken).await
    }

    /// Drives those too that were broken and are not any more.
    pub(crate) async fn mend(&mut self) -> Result<(), ApplyError> {
        let clusters = self.broken.values().map(|(cluster, _)| cluster.clone());
        let (prepared, broken) = self.prepare_each(clusters.collect(), MENDING).await;
        if prepared.is_empty() {
            broken.into_iter().for_each(|own| self.leave_out(own));
            return Ok(());
        }
        self.drive(prepared, broken).await
    }

    /// Whether a cluster is broken, so that nothing is in force of it.
    pub(crate) fn is_broken(&self, cluster: &ClusterName) -> bool {
        self.broken.contains_key(cluster)
    }

    /// Whether none is.
    pub(crate) fn is_whole(&self) -> bool {
        self.broken.is_empty()
    }

    /// Drives these beside what is driven already.
    async fn drive(
        &mut self,
        prepared: Vec<Prepared>,
        broken: Vec<FailedCluster>,
    ) -> Result<(), ApplyError> {
        for own in &prepared {
            self.broken.remove(&own.parts.cluster.name);
        }
        let new = prepared.iter().map(|own| own.parts.cluster.clone());
        let mut clusters: BTreeMap<ClusterName, Arc<Cluster>> =
            new.map(|own| (own.name.clone(), own)).collect();
        for (name, running) in &self.running {
            let own = clusters.entry(name.clone());
            own.or_insert_with(|| running.cluster.clone());
        }
        #[cfg(feature = "aws")]
        self.keepers.configure({
            let unheard = broken.iter().map(|own| own.cluster.name.clone());
            clusters.keys().cloned().chain(unheard).collect()
        });
        let managed = clusters
            .values()
            .filter(|own| own.mode == ManagementMode::Manage);
        let managed: Vec<ClusterName> = managed.map(|own| own.name.clone()).collect();
        self.company.configure(self.limits.is_some(), &managed);
        // What nobody here can say of its nodes counts all the same.
        let unheard = broken.iter().map(|own| own.cluster.clone());
        let clusters = clusters.into_values().chain(unheard).collect();
        self.fleet.configure(self.limits.clone(), clusters).await;
        broken.into_iter().for_each(|own| self.leave_out(own));
        let mut fault = None;
        for prepared in prepared {
            if let Err(error) = self.put(prepared).await {
                fault = fault.or(Some(error));
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// A cluster is not driven, and people are told why.
    fn leave_out(&mut self, FailedCluster { cluster, why }: FailedCluster) {
        let said = format!("not driven [{}]: {}", why.code(), text::chain(&why));
        let name = cluster.name.clone();
        let front = match self.broken.get(&name) {
            Some((_, front)) => front.clone(),
            None => Arc::new(ClusterHandle::new(name.clone())),
        };
        if front.led_by().as_ref() != Some(&said) {
            let (code, why) = (why.code(), text::chain(&why));
            let help = "it is tried again, every two minutes at last; the others go on without it";
            tracing::error!(cluster = %name, code, why, help, "cluster not driven");
        }
        front.show(ClusterHealth::Degraded, Vec::new());
        front.lead_by(Some(said));
        self.broken.insert(name, (cluster, front));
    }

    /// Drives a cluster, or goes on to do so in another way.
    async fn put(&mut self, prepared: Prepared) -> Result<(), ApplyError> {
        let Prepared { parts, cloud } = prepared;
        let name = parts.cluster.name.clone();
        if let Some(running) = self.running.get_mut(&name) {
            if running.change(&parts).await {
                return Ok(());
            }
            // One that has ended by itself meanwhile is no fault of the configuration.
            if timeout(ENDS, running.post.ended()).await.is_err() {
                return Err(ApplyError::Deaf(name));
            }
            self.lost(&name).await;
            return Ok(());
        }
        let (cluster, catalog) = (parts.cluster.clone(), parts.catalog.clone());
        let print = parts.connection.print;
        let tenure = match cluster.mode {
            ManagementMode::Observe => LeaderElector::observe(&parts.connection),
            ManagementMode::Manage => LeaderElector::seek(
                name.clone(),
                parts.connection.clone(),
                &self.identity,
                self.company.clone(),
            ),
        };
        let post = ClusterRunner::start(parts, tenure, self.fleet.clone());
        tracing::info!(
            cluster = %name, mode = ?cluster.mode, pools = cluster.pools.len(),
            instance_types = catalog.len(), "cluster started"
        );
        match cloud {
            Some(cloud) => drop(self.clouds.insert(name.clone(), cloud)),
            None => drop(self.clouds.remove(&name)),
        }
        let running = Running {
            post,
            cluster,
            catalog,
            print,
        };
        self.running.insert(name, running);
        Ok(())
    }

    /// It is time to see what is to be asked of AWS again.
    #[cfg(feature = "aws")]
    pub(crate) fn keepers(&self) -> Arc<Regions> {
        self.keepers.clone()
    }

    /// Who launches a cluster's instances.
    async fn provider(
        &self,
        cluster: &Arc<Cluster>,
        connection: &Connection,
        cloud: Option<&CloudHandle>,
    ) -> Result<Arc<dyn Provider>, PrepareError> {
        let (name, installation) = (&cluster.name, &cluster.installation);
        if let Some(exec) = &cluster.exec {
            return Ok(Arc::new(ExecProvider::new(exec, cluster)));
        }
        if let Some(cloud) = cloud {
            return Ok(Arc::new(InProcess {
                cloud: cloud.clone(),
                installation: installation.clone(),
                cluster: name.clone(),
                home: connection.client.clone(),
            }));
        }
        let address = cluster
            .simulated
            .as_ref()
            .and_then(|it| it.address.as_ref());
        if let (Some(address), Some(home)) = (address, &cluster.kubeconfig) {
            let remote = Remote::new(address, installation, name, home.clone());
            return Ok(Arc::new(remote));
        }
        #[cfg(feature = "aws")]
        if !cluster.region.is_empty() && !cluster.node_classes.is_empty() {
            let keeper = self.keepers.of(cluster).await;
            let ec2 = Ec2::new(cluster.clone(), connection.clone(), keeper);
            return Ok(Arc::new(ec2));
        }
        match cluster.mode {
            ManagementMode::Observe => Ok(Arc::new(NoProvider)),
            ManagementMode::Manage => Err(PrepareError::NoProvider(name.clone())),
        }
    }

    /// The engine of a cluster has ended by itself: the cluster counts as broken, and is tried
    /// again like whatever is. The others go on, and another host may have it meanwhile.
    pub(crate) async fn lost(&mut self, cluster: &ClusterName) {
        let Some(Running { post, cluster, .. }) = self.running.remove(cluster) else {
            return;
        };
        post.stop().await;
        let why = PrepareError::Ended(cluster.name.clone());
        self.leave_out(FailedCluster { cluster, why });
    }

    /// Waits until an engine ends, which none does unless it is told to, and says whose.
    pub(crate) async fn ended(&self) -> ClusterName {
        let ends = self.running.iter().map(|(name, running)| {
            Box::pin(async move {
                running.post.ended().await;
                name.clone()
            })
        });
        let ends: Vec<_> = ends.collect();
        if ends.is_empty() {
            return std::future::pending().await;
        }
        select_all(ends).await.0
    }

    /// Stops all drivers at once.
    pub(crate) async fn stop(self) {
        let running = self.running.into_values();
        join_all(running.map(|it| it.post.stop())).await;
    }

    /// How many clusters are driven.
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// What is shown of them.
    pub(crate) fn shown(&self) -> Clusters {
        let running = self.running.values().map(|it| &it.post.front);
        let broken = self.broken.values().map(|(_, front)| front);
        let mut all: Clusters = running.chain(broken).cloned().collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }
}

impl Running {
    /// Whether its driver can go on with another configuration of its cluster.
    fn can_go_on(&self, new: &EngineDeps) -> bool {
        let connected = |api: &ApiSettings| {
            let proxy = api.proxy.clone();
            (api.poll, api.qps, api.burst, api.watch_list, proxy)
        };
        let (old, print) = (&self.cluster, new.connection.print);
        let new = &new.cluster;
        old.installation == new.installation
            && (old.mode, &old.lease) == (new.mode, &new.lease)
            && (&old.kubeconfig, &old.eks) == (&new.kubeconfig, &new.eks)
            && self.print == print
            && old.simulated == new.simulated
            && (&old.region, &old.role_arn) == (&new.region, &new.role_arn)
            && old.exec == new.exec
            // What a program is given of them.
            && (old.exec.is_none() || old.node_classes == new.node_classes)
            && connected(&old.api) == connected(&new.api)
            && old.kinds() == new.kinds()
    }

    /// Passes on what has changed; false where that is not taken.
    async fn change(&mut self, parts: &EngineDeps) -> bool {
        let (cluster, catalog) = (parts.cluster.clone(), parts.catalog.clone());
        let taken = self.post.change(cluster.clone(), catalog.clone()).await;
        // What was not taken is passed on by the next reload.
        if taken {
            (self.cluster, self.catalog) = (cluster, catalog);
        }
        taken
    }
}

fn read_catalog(cluster: &ClusterName, path: &Path) -> Result<Catalog, PrepareError> {
    let name = path.display().to_string();
    let text = files::read_limited(path)
        .map_err(|error| PrepareError::CatalogFile(cluster.clone(), error))?;
    catalog::parse(&name, &text).map_err(|error| PrepareError::Catalog(cluster.clone(), error))
}
