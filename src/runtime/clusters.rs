//! Runs all configured clusters: starts a runner for each, and applies changes of the
//! configuration.

// Errors of cluster set-up.
mod error;
// The catalog file of a cluster.
mod catalog_file;
// Reloads that are refused.
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

use crate::catalog::Catalog;
use crate::host::clock::Moment;
use crate::host::text;
#[cfg(feature = "aws")]
use crate::kubernetes::client::connect_issued;
use crate::kubernetes::client::{Connection, connect};
use crate::kubernetes::exec_credential;
use crate::model::cluster::{Cluster, ManagementMode, Simulated};
use crate::model::fleet::FleetLimits;
use crate::model::id::ClusterName;
#[cfg(feature = "aws")]
use crate::providers::aws::eks;
#[cfg(feature = "aws")]
use crate::providers::aws::provider::Ec2;
#[cfg(feature = "aws")]
use crate::providers::aws::region::Regions;
use crate::providers::exec::ExecProvider;
use crate::providers::interface::{NoProvider, Provider};
use crate::providers::simulated::remote::Remote;
use crate::providers::simulated::{CloudHandle, InProcess};
use crate::runtime::cluster_handle::{ClusterHandle, Clusters};
use crate::runtime::cluster_health::ClusterHealth;
use crate::runtime::cluster_runner::ClusterRunner;
use crate::runtime::clusters::catalog_file::read_catalog;
use crate::runtime::engine_loop::EngineDeps;
use crate::runtime::fleet_task::FleetHandle;
use crate::runtime::holder_identity::HolderIdentity;
use crate::runtime::leader_election::{LeaderElector, LeaseBalancer};
use crate::telemetry::report_metrics;

pub(crate) use error::{ApplyError, ConfigRefusal, PrepareError, ReloadError};

/// A running cluster and its parts.
struct Running {
    post: ClusterRunner,
    cluster: Arc<Cluster>,
    catalog: Arc<Catalog>,
    /// Hash of the connection settings.
    print: u64,
}

/// Everything that a runner needs to run a cluster.
pub(crate) struct Prepared {
    parts: EngineDeps,
    /// The simulated cloud of the cluster, if the cloud runs in this process.
    cloud: Option<(Simulated, CloudHandle)>,
}

/// A cluster that cannot be started yet, and the reason.
pub(crate) struct FailedCluster {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) why: PrepareError,
}

/// How long the preparation of clusters may take. A cluster that is not prepared in this time is
/// treated as failed and retried.
#[derive(Clone, Copy)]
pub(crate) struct StartTimeouts {
    most: Duration,
    /// Minimum number of clusters to prepare before the timeout applies.
    least: usize,
}

/// Time for a runner to release its resources after its engine has stopped.
const ENDS: Duration = Duration::from_secs(15);

/// Wait for all clusters, each for its own timeout.
pub(crate) const ALL: StartTimeouts = StartTimeouts { most: Duration::from_hours(1), least: 0 };
/// At startup, do not wait for slow clusters once at least one cluster is prepared.
pub(crate) const STARTING: StartTimeouts = StartTimeouts { most: Duration::from_secs(5), least: 1 };
/// Timeouts of retries. Each plugin has its full timeout, because no other work waits for a retry.
const MENDING: StartTimeouts =
    StartTimeouts { most: Duration::from_secs(exec_credential::LIMIT.as_secs() + 5), least: 0 };

/// All configured clusters.
pub(crate) struct ClusterSet {
    fleet: FleetHandle,
    identity: HolderIdentity,
    company: Arc<LeaseBalancer>,
    #[cfg(feature = "aws")]
    keepers: Arc<Regions>,
    limits: FleetLimits,
    running: BTreeMap<ClusterName, Running>,
    /// Clusters that are not running because of an error.
    broken: BTreeMap<ClusterName, (Arc<Cluster>, Arc<ClusterHandle>)>,
    /// Simulated clouds. A cloud continues to run when the runner of its cluster is replaced.
    clouds: BTreeMap<ClusterName, (Simulated, CloudHandle)>,
}

impl ClusterSet {
    /// Creates an empty set for a one-time command, without leader election.
    pub(crate) fn start() -> Self {
        Self::start_as(HolderIdentity::new("", None))
    }

    /// Creates an empty set. The clusters use this identity for their Leases.
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

    /// Prepares clusters: does everything that may fail, before any cluster is started or changed.
    /// Returns the first error.
    pub(crate) async fn prepare_all(
        &self,
        clusters: Vec<Arc<Cluster>>,
    ) -> Result<Vec<Prepared>, PrepareError> {
        let (prepared, failed) = self.prepare_each(clusters, ALL).await;
        match failed.into_iter().next() {
            Some(FailedCluster { why, .. }) => Err(why),
            None => Ok(prepared),
        }
    }

    /// Prepares each cluster independently and concurrently, because each may wait for a plugin.
    pub(crate) async fn prepare_each(
        &self,
        clusters: Vec<Arc<Cluster>>,
        patience: StartTimeouts,
    ) -> (Vec<Prepared>, Vec<FailedCluster>) {
        let mut catalogs: BTreeMap<Option<PathBuf>, Arc<Catalog>> = BTreeMap::new();
        let (mut with_catalog, mut broken) = (Vec::new(), Vec::new());
        for cluster in clusters {
            let exec = cluster.exec.as_ref().map(|it| it.catalog.clone());
            let simulated = cluster.simulated.as_ref().map(|it| it.catalog.clone());
            let source = exec.or(simulated).flatten();
            let catalog = match catalogs.get(&source) {
                Some(catalog) => Ok(catalog.clone()),
                None => self.shared_catalog(&cluster.name, source.as_deref()),
            };
            match catalog {
                Ok(catalog) => {
                    catalogs.insert(source, catalog.clone());
                    with_catalog.push((cluster, catalog));
                }
                Err(why) => broken.push(FailedCluster { cluster, why }),
            }
        }
        let clusters = with_catalog.iter().map(|(cluster, _)| cluster.clone());
        let mut waited: BTreeMap<usize, Arc<Cluster>> = clusters.enumerate().collect();
        let each = with_catalog.into_iter().enumerate();
        let mut preparations: FuturesUnordered<_> = each
            .map(|(at, (cluster, catalog))| async move {
                (at, self.prepare_cluster(cluster, catalog).await)
            })
            .collect();
        let (mut over, mut is_over) = (pin!(sleep(patience.most)), false);
        let mut done = BTreeMap::new();
        let mut failed = BTreeMap::new();
        while !(preparations.is_empty() || (is_over && done.len() >= patience.least)) {
            tokio::select! {
                Some((at, prepared)) = preparations.next() => {
                    let Some(cluster) = waited.remove(&at) else {
                        continue;
                    };
                    match prepared {
                        Ok(ready) => drop(done.insert(at, ready)),
                        Err(why) => drop(failed.insert(at, FailedCluster { cluster, why })),
                    }
                }
                () = &mut over, if !is_over => is_over = true,
            }
        }
        for (at, cluster) in waited {
            let why = PrepareError::connect_timeout(&cluster);
            failed.insert(at, FailedCluster { cluster, why });
        }
        broken.extend(failed.into_values());
        (done.into_values().collect(), broken)
    }

    /// Returns the instance types of a source. All clusters with the same source use one value in
    /// memory, including running clusters.
    fn shared_catalog(
        &self,
        cluster: &ClusterName,
        source: Option<&Path>,
    ) -> Result<Arc<Catalog>, PrepareError> {
        let catalog = match source {
            None => Catalog::shipped(),
            Some(path) => read_catalog(cluster, path)?,
        };
        let mut running = self.running.values().map(|running| &running.catalog);
        let same = running.find(|used| ***used == catalog).cloned();
        Ok(same.unwrap_or_else(|| Arc::new(catalog)))
    }

    async fn prepare_cluster(
        &self,
        cluster: Arc<Cluster>,
        catalog: Arc<Catalog>,
    ) -> Result<Prepared, PrepareError> {
        let name = &cluster.name;
        let connection = self.connect(&cluster).await?;
        let simulated = cluster.simulated.as_ref();
        let cloud = simulated
            .filter(|it| it.address.is_none() && cluster.exec.is_none())
            .map(|it| (it.clone(), self.simulated_cloud(name, it, &catalog)));
        let own_cloud = cloud.as_ref().map(|(_, it)| it);
        let provider = self.provider_for(&cluster, &connection, own_cloud).await?;
        let parts = EngineDeps { read_clocks: Moment::now, cluster, catalog, connection, provider };
        Ok(Prepared { parts, cloud })
    }

    /// Connects to the API of a cluster, with its kubeconfig or with an EKS token.
    pub(crate) async fn connect(&self, cluster: &Cluster) -> Result<Connection, PrepareError> {
        let mut connection = self.connect_api(cluster).await?;
        connection.lease = cluster.lease.clone();
        Ok(connection)
    }

    async fn connect_api(&self, cluster: &Cluster) -> Result<Connection, PrepareError> {
        let name = &cluster.name;
        if let Some(kubeconfig) = &cluster.kubeconfig {
            let connection = connect(kubeconfig, &cluster.api).await;
            return connection.map_err(|it| PrepareError::Connect(name.clone(), it));
        }
        #[cfg(feature = "aws")]
        if let Some(eks) = &cluster.eks {
            let account = self.keepers.handle_for(cluster).await.shared.account.clone();
            let issued = eks::cluster_access(account, cluster, eks).await;
            let issued =
                issued.map_err(|error| PrepareError::Eks(name.clone(), error.to_string()))?;
            let connection = connect_issued(issued, &cluster.api);
            return connection.map_err(|it| PrepareError::Connect(name.clone(), it));
        }
        Err(PrepareError::NoKubeconfig(name.clone()))
    }

    /// Returns the simulated cloud of the cluster, or creates one.
    fn simulated_cloud(
        &self,
        name: &ClusterName,
        simulated: &Simulated,
        catalog: &Arc<Catalog>,
    ) -> CloudHandle {
        let known = self.clouds.get(name).filter(|(settings, _)| settings == simulated);
        match known {
            Some((_, cloud)) => cloud.clone(),
            None => CloudHandle::start(catalog.clone(), simulated.boot),
        }
    }

    /// Stops clusters that the new configuration removes or connects differently, passes changes to
    /// the other running clusters and starts new clusters. Errors of one cluster do not affect the
    /// others. `retry_failed` retries failed clusters.
    pub(crate) async fn apply(
        &mut self,
        prepared: Vec<Prepared>,
        failed: Vec<FailedCluster>,
        limits: FleetLimits,
    ) -> Result<(), ApplyError> {
        let ending: Vec<ClusterName> = self
            .running
            .iter()
            .filter(|(name, running)| {
                let new = prepared.iter().find(|it| it.parts.cluster.name == **name);
                !new.is_some_and(|new| running.can_apply(&new.parts))
            })
            .map(|(name, _)| name.clone())
            .collect();
        let stopped = ending.iter().filter_map(|name| self.running.remove(name));
        join_all(stopped.map(|running| running.post.stop())).await;
        for name in ending {
            tracing::info!(cluster = %name, "stopped cluster");
            if !prepared.iter().any(|it| it.parts.cluster.name == name) {
                report_metrics::set_ready(&name, false);
                self.clouds.remove(&name);
            }
        }
        self.broken.clear();
        self.limits = limits;
        self.start_clusters(prepared, failed).await
    }

    /// Starts the failed clusters whose error is resolved.
    pub(crate) async fn retry_failed(&mut self) -> Result<(), ApplyError> {
        let clusters = self.broken.values().map(|(cluster, _)| cluster.clone());
        let (prepared, failed) = self.prepare_each(clusters.collect(), MENDING).await;
        if prepared.is_empty() {
            failed.into_iter().for_each(|failed| self.record_failed(failed));
            return Ok(());
        }
        self.start_clusters(prepared, failed).await
    }

    /// Returns whether a cluster has failed and is not running.
    pub(crate) fn is_broken(&self, cluster: &ClusterName) -> bool {
        self.broken.contains_key(cluster)
    }

    /// Returns whether no cluster has failed.
    pub(crate) fn is_whole(&self) -> bool {
        self.broken.is_empty()
    }

    /// Starts these clusters in addition to the running clusters.
    async fn start_clusters(
        &mut self,
        prepared: Vec<Prepared>,
        failed: Vec<FailedCluster>,
    ) -> Result<(), ApplyError> {
        for new in &prepared {
            self.broken.remove(&new.parts.cluster.name);
        }
        let new = prepared.iter().map(|new| new.parts.cluster.clone());
        let mut clusters: BTreeMap<ClusterName, Arc<Cluster>> =
            new.map(|cluster| (cluster.name.clone(), cluster)).collect();
        for (name, running) in &self.running {
            let entry = clusters.entry(name.clone());
            entry.or_insert_with(|| running.cluster.clone());
        }
        #[cfg(feature = "aws")]
        self.keepers.set_configured({
            let unheard = failed.iter().map(|failed| failed.cluster.name.clone());
            clusters.keys().cloned().chain(unheard).collect()
        });
        let managed = clusters.values().filter(|cluster| cluster.mode == ManagementMode::Manage);
        let managed: Vec<ClusterName> = managed.map(|cluster| cluster.name.clone()).collect();
        self.company.configure(self.limits.has_limits(), &managed);
        // The nodes of failed clusters count toward the limits of the fleet.
        let unheard = failed.iter().map(|failed| failed.cluster.clone());
        let clusters = clusters.into_values().chain(unheard).collect();
        self.fleet.configure(self.limits.clone(), clusters).await;
        failed.into_iter().for_each(|failed| self.record_failed(failed));
        let mut fault = None;
        for prepared in prepared {
            if let Err(error) = self.start_or_change(prepared).await {
                fault = fault.or(Some(error));
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// Records a failed cluster and logs the reason.
    fn record_failed(&mut self, FailedCluster { cluster, why }: FailedCluster) {
        let reason = format!("cannot start [{}]: {}", why.code(), text::error_chain(&why));
        let name = cluster.name.clone();
        let handle = match self.broken.get(&name) {
            Some((_, handle)) => handle.clone(),
            None => Arc::new(ClusterHandle::new(name.clone())),
        };
        if handle.follower_reason().as_ref() != Some(&reason) {
            let (code, why) = (why.code(), text::error_chain(&why));
            let help = "Outrigger retries, at most every two minutes; other clusters are not \
                        affected";
            tracing::error!(cluster = %name, code, why, help, "cannot start cluster");
        }
        handle.set_health(ClusterHealth::Degraded, Vec::new());
        handle.set_follower_reason(Some(reason));
        self.broken.insert(name, (cluster, handle));
    }

    /// Starts a cluster, or applies a change to a running cluster.
    async fn start_or_change(&mut self, prepared: Prepared) -> Result<(), ApplyError> {
        let Prepared { parts, cloud } = prepared;
        let name = parts.cluster.name.clone();
        if let Some(running) = self.running.get_mut(&name) {
            if running.apply_change(&parts).await {
                return Ok(());
            }
            // If the engine has failed meanwhile, the new configuration is not the cause.
            if timeout(ENDS, running.post.wait_until_ended()).await.is_err() {
                return Err(ApplyError::Deaf(name));
            }
            self.on_engine_failed(&name).await;
            return Ok(());
        }
        let (cluster, catalog) = (parts.cluster.clone(), parts.catalog.clone());
        let print = parts.connection.print;
        let elector = match cluster.mode {
            ManagementMode::Observe => LeaderElector::without_election(&parts.connection),
            ManagementMode::Manage => LeaderElector::start_election(
                name.clone(),
                parts.connection.clone(),
                &self.identity,
                self.company.clone(),
            ),
        };
        let post = ClusterRunner::start(parts, elector, self.fleet.clone());
        tracing::info!(
            cluster = %name, mode = ?cluster.mode, pools = cluster.pools.len(),
            instance_types = catalog.len(), "started cluster"
        );
        match cloud {
            Some(cloud) => drop(self.clouds.insert(name.clone(), cloud)),
            None => drop(self.clouds.remove(&name)),
        }
        let running = Running { post, cluster, catalog, print };
        self.running.insert(name, running);
        Ok(())
    }

    /// Returns the tasks that refresh the AWS data of each region.
    #[cfg(feature = "aws")]
    pub(crate) fn region_tasks(&self) -> Arc<Regions> {
        self.keepers.clone()
    }

    /// Returns the provider of a cluster.
    async fn provider_for(
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
        let address = cluster.simulated.as_ref().and_then(|it| it.address.as_ref());
        if let (Some(address), Some(home)) = (address, &cluster.kubeconfig) {
            let remote = Remote::new(address, installation, name, home.clone());
            return Ok(Arc::new(remote));
        }
        #[cfg(feature = "aws")]
        if !cluster.region.is_empty() && !cluster.node_classes.is_empty() {
            let region = self.keepers.handle_for(cluster).await;
            let ec2 = Ec2::new(cluster.clone(), connection.clone(), region);
            return Ok(Arc::new(ec2));
        }
        match cluster.mode {
            ManagementMode::Observe => Ok(Arc::new(NoProvider)),
            ManagementMode::Manage => Err(PrepareError::NoProvider(name.clone())),
        }
    }

    /// Handles a failed engine: records the cluster as failed, so that this host retries to start
    /// it. Other clusters continue, and another host may become the leader of the failed cluster.
    pub(crate) async fn on_engine_failed(&mut self, cluster: &ClusterName) {
        let Some(Running { post, cluster, .. }) = self.running.remove(cluster) else {
            return;
        };
        post.stop().await;
        let why = PrepareError::Ended(cluster.name.clone());
        self.record_failed(FailedCluster { cluster, why });
    }

    /// Waits until an engine fails, and returns its cluster.
    pub(crate) async fn wait_for_failure(&self) -> ClusterName {
        let ends = self.running.iter().map(|(name, running)| {
            Box::pin(async move {
                running.post.wait_until_ended().await;
                name.clone()
            })
        });
        let ends: Vec<_> = ends.collect();
        if ends.is_empty() {
            return std::future::pending().await;
        }
        select_all(ends).await.0
    }

    /// Stops all clusters concurrently.
    pub(crate) async fn stop(self) {
        let running = self.running.into_values();
        join_all(running.map(|it| it.post.stop())).await;
    }

    /// Number of running clusters.
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// The handles of all clusters.
    pub(crate) fn cluster_handles(&self) -> Clusters {
        let running = self.running.values().map(|it| &it.post.front);
        let failed = self.broken.values().map(|(_, handle)| handle);
        let mut all: Clusters = running.chain(failed).cloned().collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }
}

impl Running {
    /// Returns whether the running engine can apply the changed configuration.
    fn can_apply(&self, new: &EngineDeps) -> bool {
        let (old, print) = (&self.cluster, new.connection.print);
        let new = &new.cluster;
        let (old_api, new_api) = (&old.api, &new.api);
        old.installation == new.installation
            && (old.mode, &old.lease) == (new.mode, &new.lease)
            && (&old.kubeconfig, &old.eks) == (&new.kubeconfig, &new.eks)
            && self.print == print
            && old.simulated == new.simulated
            && (&old.region, &old.role_arn) == (&new.region, &new.role_arn)
            && old.external_id == new.external_id
            && old.exec == new.exec
            // The node classes are arguments of the exec program.
            && (old.exec.is_none() || old.node_classes == new.node_classes)
            && (old_api.poll, old_api.qps) == (new_api.poll, new_api.qps)
            && (old_api.burst, old_api.watch_list) == (new_api.burst, new_api.watch_list)
            && old_api.proxy == new_api.proxy
            && old.watched_kinds() == new.watched_kinds()
    }

    /// Passes a change to the engine. Returns false if the engine does not accept it.
    async fn apply_change(&mut self, parts: &EngineDeps) -> bool {
        let (cluster, catalog) = (parts.cluster.clone(), parts.catalog.clone());
        let taken = self.post.apply_change(cluster.clone(), catalog.clone()).await;
        // If the engine does not accept a change, the next reload repeats the change.
        if taken {
            (self.cluster, self.catalog) = (cluster, catalog);
        }
        taken
    }
}
