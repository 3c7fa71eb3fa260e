//! Starts a driver for every cluster of a configuration, and replaces them as it changes.
//! It must not know where the configuration comes from, nor what an engine does.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join_all;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::catalog::{self, Catalog, CatalogError};
use crate::config::settings::Telemetry;
use crate::engine::event::Event;
use crate::model::cluster::{Api, Cluster, Mode, Simulated};
use crate::model::id::ClusterName;
use crate::shell::admin::{self, AdminError, Clusters};
use crate::shell::cron::{Cron, CronError};
use crate::shell::driver::{Driver, Parts};
use crate::shell::files::{self, FilesError};
use crate::shell::kube::client::{ConnectError, Connection, connect};
use crate::shell::provider::{Nobody, Provider};
use crate::shell::simulated::remote::Remote;
use crate::shell::simulated::{CloudHandle, InProcess};
use crate::shell::telemetry::metrics::{self, Counted, MetricsError};
use crate::shell::text;

/// Every engine is reminded this often, should an alarm have been lost.
const REMINDER: &str = "0 * * * * *";

/// Why a cluster cannot be driven.
#[derive(Debug, Error)]
pub(crate) enum PrepareError {
    #[error("cluster \"{0}\": it has no kubeconfig")]
    NoKubeconfig(ClusterName),
    #[error("cluster \"{0}\": nothing here can launch instances for it yet")]
    NoProvider(ClusterName),
    #[error("cluster \"{0}\": connect")]
    Connect(ClusterName, #[source] ConnectError),
    #[error("cluster \"{0}\": read its instance types")]
    CatalogFile(ClusterName, #[source] FilesError),
    #[error("cluster \"{0}\": read its instance types")]
    Catalog(ClusterName, #[source] CatalogError),
}

impl PrepareError {
    /// What would put it right.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::NoKubeconfig(_) => "write kubeconfig { path = \"/etc/outrigger/kubeconfig\" }",
            Self::NoProvider(_) => "add simulated {}, or write mode = \"observe\"",
            Self::Connect(..) => {
                "name a file that `kubectl --kubeconfig FILE get nodes` can use, and one of its \
                 contexts"
            }
            Self::CatalogFile(..) | Self::Catalog(..) => {
                "name a table in the shipped format, or JSON as Karpenter's kwok provider has it"
            }
        }
    }
}

/// Why nothing runs.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// The configuration is to blame.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("start a thread for cluster \"{0}\"")]
    Thread(ClusterName, #[source] io::Error),
    #[error("listen to signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Cron(#[from] CronError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Admin(#[from] AdminError),
}

/// A cluster that is being driven, and what with.
struct Running {
    driver: Driver,
    cluster: Arc<Cluster>,
    catalog: Arc<Catalog>,
}

#[derive(Default)]
struct Supervisor {
    running: BTreeMap<ClusterName, Running>,
    /// Clouds in this process outlive the drivers that are replaced.
    clouds: BTreeMap<ClusterName, (Simulated, CloudHandle)>,
}

/// Drives all clusters until SIGTERM or SIGINT. At SIGHUP `reload` gives the clusters anew, or says
/// why it cannot; then, or when any of them cannot be driven, everything stays as it is.
pub(crate) async fn run(
    clusters: Vec<Arc<Cluster>>,
    telemetry: &Telemetry,
    mut reload: impl FnMut() -> Result<Vec<Arc<Cluster>>, String>,
) -> Result<(), RunError> {
    let signal = |kind| signal(kind).map_err(RunError::Signals);
    let mut hangup: Signal = signal(SignalKind::hangup())?;
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let mut supervisor = Supervisor::default();
    let prepared = supervisor.prepare(clusters).await?;
    let counted = Counted::init(&telemetry.metric_names)?;
    let (show, shown) = watch::channel(Clusters::new());
    if let Some(address) = &telemetry.listen {
        admin::start(address, shown, counted.clone()).await?;
    }
    supervisor.apply(prepared).await?;
    supervisor.show(&show);
    let cron = remind(&show, counted).await?;
    loop {
        let name = tokio::select! {
            _ = hangup.recv() => {
                let well = supervisor.reload(reload()).await;
                metrics::reloaded(well);
                supervisor.show(&show);
                continue;
            }
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(
            signal = name,
            "stopping: no new work, waiting for answers under way"
        );
        break;
    }
    cron.stop().await;
    join_all(
        supervisor
            .running
            .into_values()
            .map(|running| running.driver.stop()),
    )
    .await;
    tracing::info!("stopped");
    Ok(())
}

/// Reminds every engine of the time, and keeps the metrics small.
async fn remind(show: &watch::Sender<Clusters>, counted: Counted) -> Result<Cron, CronError> {
    let cron = Cron::start().await?;
    let clusters = show.subscribe();
    cron.every(REMINDER, move || {
        for shown in clusters.borrow().iter() {
            shown.remind();
        }
        counted.keep_small();
    })
    .await?;
    Ok(cron)
}

impl Supervisor {
    /// Everything that may fail for a cluster, before anything of it is started.
    async fn prepare(&mut self, clusters: Vec<Arc<Cluster>>) -> Result<Vec<Parts>, PrepareError> {
        let mut prepared = Vec::new();
        for cluster in clusters {
            prepared.push(self.parts(cluster).await?);
        }
        Ok(prepared)
    }

    async fn parts(&mut self, cluster: Arc<Cluster>) -> Result<Parts, PrepareError> {
        let name = &cluster.name;
        let kubeconfig = cluster
            .kubeconfig
            .as_ref()
            .ok_or(PrepareError::NoKubeconfig(name.clone()))?;
        let connection = connect(kubeconfig, &cluster.api).await;
        let connection = connection.map_err(|it| PrepareError::Connect(name.clone(), it))?;
        let simulated = cluster.simulated.as_ref();
        let catalog = match simulated.and_then(|it| it.catalog.clone()) {
            None => Catalog::shipped(),
            Some(path) => read_catalog(name, path)?,
        };
        let catalog = Arc::new(catalog);
        let provider = self.provider(&cluster, &connection, &catalog)?;
        Ok(Parts {
            cluster,
            catalog,
            connection,
            provider,
        })
    }

    fn provider(
        &mut self,
        cluster: &Cluster,
        connection: &Connection,
        catalog: &Arc<Catalog>,
    ) -> Result<Arc<dyn Provider>, PrepareError> {
        let (name, installation) = (&cluster.name, &cluster.installation);
        let Some(simulated) = &cluster.simulated else {
            return match cluster.mode {
                Mode::Observe => Ok(Arc::new(Nobody)),
                Mode::Manage => Err(PrepareError::NoProvider(name.clone())),
            };
        };
        if let (Some(address), Some(home)) = (&simulated.address, &cluster.kubeconfig) {
            return Ok(Arc::new(Remote::new(
                address,
                installation,
                name,
                home.clone(),
            )));
        }
        let known = self
            .clouds
            .get(name)
            .filter(|(settings, _)| settings == simulated);
        let cloud = match known {
            Some((_, cloud)) => cloud.clone(),
            None => CloudHandle::start(catalog.clone(), simulated.boot),
        };
        self.clouds
            .insert(name.clone(), (simulated.clone(), cloud.clone()));
        Ok(Arc::new(InProcess {
            cloud,
            installation: installation.clone(),
            cluster: name.clone(),
            home: connection.client.clone(),
        }))
    }

    /// Stops what is not configured any more, tells the others what has changed, starts the new.
    async fn apply(&mut self, prepared: Vec<Parts>) -> Result<(), RunError> {
        let wanted: Vec<ClusterName> = prepared.iter().map(|it| it.cluster.name.clone()).collect();
        let gone: Vec<ClusterName> = self
            .running
            .keys()
            .filter(|name| !wanted.contains(name))
            .cloned()
            .collect();
        for name in gone {
            self.stop(&name).await;
            self.clouds.remove(&name);
        }
        for parts in prepared {
            let name = parts.cluster.name.clone();
            if let Some(running) = self.running.get_mut(&name) {
                if same_connection(&running.cluster, &parts.cluster) {
                    running.change(&parts).await;
                    continue;
                }
                self.stop(&name).await;
            }
            let (cluster, catalog) = (parts.cluster.clone(), parts.catalog.clone());
            tracing::info!(
                cluster = %name, mode = ?cluster.mode, pools = cluster.pools.len(),
                instance_types = catalog.len(), "cluster started"
            );
            let driver =
                Driver::start(parts).map_err(|error| RunError::Thread(name.clone(), error))?;
            self.running.insert(
                name,
                Running {
                    driver,
                    cluster,
                    catalog,
                },
            );
        }
        Ok(())
    }

    async fn stop(&mut self, name: &ClusterName) {
        if let Some(running) = self.running.remove(name) {
            running.driver.stop().await;
            tracing::info!(cluster = %name, "cluster stopped");
        }
    }

    async fn reload(&mut self, read: Result<Vec<Arc<Cluster>>, String>) -> bool {
        let clusters = match read {
            Ok(clusters) => clusters,
            Err(why) => {
                tracing::error!(why, "configuration not reloaded: the one in force stays");
                return false;
            }
        };
        let applied = match self.prepare(clusters).await {
            Ok(prepared) => self.apply(prepared).await,
            Err(error) => Err(RunError::Prepare(error)),
        };
        match applied {
            Ok(()) => tracing::info!(clusters = self.running.len(), "configuration reloaded"),
            Err(error) => {
                let why = text::chain(&error);
                tracing::error!(why, "configuration not reloaded: the one in force stays");
                return false;
            }
        }
        true
    }

    fn show(&self, show: &watch::Sender<Clusters>) {
        show.send_replace(self.running.values().map(|it| it.driver.shown()).collect());
    }
}

impl Running {
    /// Passes on what has changed.
    async fn change(&mut self, parts: &Parts) {
        if self.catalog != parts.catalog {
            self.driver
                .tell(Event::CatalogChanged(parts.catalog.clone()))
                .await;
            self.catalog = parts.catalog.clone();
        }
        if self.cluster != parts.cluster {
            self.driver
                .tell(Event::ConfigChanged(parts.cluster.clone()))
                .await;
            self.cluster = parts.cluster.clone();
        }
    }
}

/// Whether one driver can go on with another configuration of its cluster.
fn same_connection(old: &Cluster, new: &Cluster) -> bool {
    let connected = |api: &Api| (api.poll, api.qps, api.burst, api.watch_list);
    old.installation == new.installation
        && old.kubeconfig == new.kubeconfig
        && old.simulated == new.simulated
        && connected(&old.api) == connected(&new.api)
}

fn read_catalog(cluster: &ClusterName, path: PathBuf) -> Result<Catalog, PrepareError> {
    let name = path.display().to_string();
    let text = files::read_text(&path)
        .map_err(|error| PrepareError::CatalogFile(cluster.clone(), error))?;
    catalog::parse(&name, &text).map_err(|error| PrepareError::Catalog(cluster.clone(), error))
}
