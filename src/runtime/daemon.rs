//! Runs the daemon: signals, telemetry, and the configured clusters.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::config::config_diff::ConfigValues;
use crate::config::settings::{DEFAULT_LISTEN, Telemetry};
use crate::host::text;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetLimits;
#[cfg(feature = "aws")]
use crate::providers::aws::region::Regions;
use crate::runtime::cluster_handle::Clusters;
use crate::runtime::clusters::{
    ALL, ApplyError, ClusterSet, ConfigRefusal, FailedCluster, PrepareError, Prepared, ReloadError,
    STARTING,
};
use crate::runtime::control::Reload;
use crate::runtime::cron::{Cron, CronError};
use crate::runtime::holder_identity::HolderIdentity;
use crate::runtime::http_server::AdminError;
use crate::runtime::systemd::SdNotify;
use crate::runtime::{cluster_jobs, control, http_server, systemd};
use crate::telemetry::report_log::LogFilter;
use crate::telemetry::report_metrics::{self, MetricsError, MetricsRecorder};

/// Schedule on which the daemon drops old metrics samples and triggers refreshes of AWS data.
const REMINDER: &str = "0 * * * * *";

/// First retry interval of failed clusters. The interval grows with each failure. A reload waits
/// while a retry is in progress.
const AGAIN: Duration = Duration::from_secs(15);
const AGAIN_MAX: Duration = Duration::from_mins(2);

/// Maximum number of configuration changes that a reload logs.
const CHANGES_MAX: usize = 100;

/// Why the daemon does not run.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// The configuration is invalid.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Cron(#[from] CronError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Admin(#[from] AdminError),
}

/// The configured clusters and their telemetry settings.
pub(crate) struct DesiredConfig {
    pub(crate) clusters: Vec<Arc<Cluster>>,
    pub(crate) fleet: FleetLimits,
    pub(crate) telemetry: Telemetry,
    /// All values of the configuration, by argument.
    pub(crate) written: ConfigValues,
}

/// A source of configurations.
pub(crate) trait ConfigOrigin {
    /// Reads the configuration, or returns an error.
    async fn read_config(&mut self) -> Result<DesiredConfig, ConfigRefusal>;

    /// Waits for a change that needs no reload request, and reads the configuration.
    async fn wait_for_change(&mut self) -> Result<DesiredConfig, ConfigRefusal>;

    /// Records that the last configuration could not be applied. The previous configuration stays
    /// in effect.
    fn on_rejected(&mut self);
}

/// Runs all clusters until SIGTERM or SIGINT. A cluster that cannot be started is retried, unless
/// all clusters fail at startup. If the engine of a cluster fails, the start of the cluster is also
/// retried. On SIGHUP, and when `origin` reports a change, the configuration is read again. If it
/// is invalid, or a running or new cluster cannot be prepared, nothing changes.
pub(crate) async fn run(
    wanted: DesiredConfig,
    level: LogFilter,
    mut origin: impl ConfigOrigin,
    Signals { mut hangup, mut stop }: Signals,
) -> Result<(), RunError> {
    let mut in_effect =
        SettingsInEffect { telemetry: wanted.telemetry, written: wanted.written, level };
    let directory = systemd::systemd_directory("RUNTIME_DIRECTORY");
    let mut cluster_set = ClusterSet::start_as(read_identity(directory.as_deref()));
    let (prepared, failed) = tokio::select! {
        some = prepare_clusters(&cluster_set, wanted.clusters) => some?,
        () = stop.wait_for_signal() => return Ok(()),
    };
    let metrics = MetricsRecorder::init(&in_effect.telemetry, &in_effect.written)?;
    let (handles, receiver) = watch::channel(Clusters::new());
    serve_metrics(&in_effect.telemetry, receiver, &metrics).await?;
    if let Err(error) = cluster_set.apply(prepared, failed, wanted.fleet).await {
        cluster_set.stop().await;
        return Err(error.into());
    }
    handles.send_replace(cluster_set.cluster_handles());
    let manager = SdNotify::default();
    tokio::spawn(manager.clone().monitor_clusters(handles.subscribe()));
    let mut reloads = serve_control_socket(directory, handles.subscribe(), &manager).await;
    let cron = start_cron(metrics).await?;
    let cluster_jobs = tokio::spawn(cluster_jobs::keep_jobs(cron.clone(), handles.subscribe()));
    #[cfg(feature = "aws")]
    schedule_refreshes(&cron, cluster_set.region_tasks()).await?;
    let mut wait = AGAIN;
    let mut again = Box::pin(sleep(wait));
    loop {
        let (mut caller, mut changed_config) = (None, None);
        tokio::select! {
            () = stop.wait_for_signal() => break,
            name = cluster_set.wait_for_failure() => {
                cluster_set.on_engine_failed(&name).await;
                handles.send_replace(cluster_set.cluster_handles());
                continue;
            }
            _ = hangup.recv() => {}
            () = &mut again, if !cluster_set.is_whole() => {
                tokio::select! {
                    () = retry_failed_clusters(&mut cluster_set, &handles) => {}
                    () = stop.wait_for_signal() => break,
                }
                wait = (wait * 2).min(AGAIN_MAX);
                again = Box::pin(sleep(wait));
                continue;
            }
            Some(reload) = reloads.recv() => caller = Some(reload),
            changed = origin.wait_for_change() => changed_config = Some(changed),
        }
        manager.notify_reloading();
        let result = tokio::select! {
            result = in_effect.read_and_apply(
                &mut cluster_set, &mut origin, changed_config,
            ) => result,
            () = stop.wait_for_signal() => break,
        };
        report_metrics::record_reload(result.is_ok());
        handles.send_replace(cluster_set.cluster_handles());
        manager.notify_reload_result(result.as_ref().err().map(ToString::to_string));
        // The caller may have disconnected.
        drop(caller.map(|reply: Reload| reply.send(result)));
    }
    // The control socket is closed.
    drop(reloads);
    manager.notify_stopping();
    cluster_jobs.abort();
    cron.stop().await;
    cluster_set.stop().await;
    tracing::info!("stopped");
    Ok(())
}

/// Prepares clusters. Returns an error if none can be started.
async fn prepare_clusters(
    cluster_set: &ClusterSet,
    clusters: Vec<Arc<Cluster>>,
) -> Result<(Vec<Prepared>, Vec<FailedCluster>), PrepareError> {
    let (prepared, mut failed) = cluster_set.prepare_each(clusters, STARTING).await;
    if prepared.is_empty() && !failed.is_empty() {
        // Return an error that may resolve itself, if there is one, because systemd then restarts
        // the daemon.
        let passing = failed.iter().position(|it| it.why.is_retryable());
        return Err(failed.swap_remove(passing.unwrap_or(0)).why);
    }
    Ok((prepared, failed))
}

/// Starts failed clusters whose error is resolved.
async fn retry_failed_clusters(cluster_set: &mut ClusterSet, handles: &watch::Sender<Clusters>) {
    if let Err(error) = cluster_set.retry_failed().await {
        let why = text::error_chain(&error);
        tracing::error!(why, "cannot start recovered clusters");
    }
    handles.send_replace(cluster_set.cluster_handles());
}

/// The identity of this process.
fn read_identity(directory: Option<&Path>) -> HolderIdentity {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    HolderIdentity::new(&host, directory)
}

/// Serves the control socket, if there is a runtime directory. Returns a receiver of reload
/// requests. Clusters run even if the socket cannot be served.
async fn serve_control_socket(
    directory: Option<PathBuf>,
    handles: watch::Receiver<Clusters>,
    manager: &SdNotify,
) -> mpsc::Receiver<Reload> {
    match directory {
        None => tracing::info!("no RUNTIME_DIRECTORY, not serving status and reload"),
        Some(directory) => {
            match control::start_server(&directory, handles, manager.clone()).await {
                Ok(requests) => return requests,
                Err(error) => {
                    let why = text::error_chain(&error);
                    tracing::warn!(why, "cannot serve status and reload");
                }
            }
        }
    }
    mpsc::channel(1).1
}

fn listen_for(kind: SignalKind) -> Result<Signal, RunError> {
    signal(kind).map_err(RunError::Signals)
}

/// The signals that the daemon handles.
pub(crate) struct Signals {
    hangup: Signal,
    pub(crate) stop: Stop,
}

impl Signals {
    /// Requires a Tokio runtime.
    pub(crate) fn listen() -> Result<Self, RunError> {
        Ok(Self {
            hangup: listen_for(SignalKind::hangup())?,
            stop: Stop {
                terminate: listen_for(SignalKind::terminate())?,
                interrupt: listen_for(SignalKind::interrupt())?,
            },
        })
    }
}

/// The signals that stop the daemon.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Waits until the process receives one of the signals.
    pub(crate) async fn wait_for_signal(&mut self) {
        let signal = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal, "stopping, waiting for commands in flight");
    }
}

/// Serves metrics and health. If the user has set an address that is not free, this is an error.
/// The default address is used only if it is free.
async fn serve_metrics(
    telemetry: &Telemetry,
    handles: watch::Receiver<Clusters>,
    metrics: &MetricsRecorder,
) -> Result<(), AdminError> {
    if let Some(address) = &telemetry.listen {
        return http_server::start_server(address, handles, metrics.clone()).await;
    }
    if let Err(error) = http_server::start_server(DEFAULT_LISTEN, handles, metrics.clone()).await {
        let why = text::error_chain(&error);
        tracing::warn!(why, "cannot serve /livez, /readyz and /metrics");
    }
    Ok(())
}

/// The settings in effect: those of the process, and those of the last reload.
struct SettingsInEffect {
    /// The telemetry settings at the start.
    telemetry: Telemetry,
    written: ConfigValues,
    level: LogFilter,
}

impl SettingsInEffect {
    /// Applies the given change, or reads `origin` and applies it. Returns why the configuration
    /// is not fully applied.
    async fn read_and_apply(
        &mut self,
        cluster_set: &mut ClusterSet,
        origin: &mut impl ConfigOrigin,
        changed_config: Option<Result<DesiredConfig, ConfigRefusal>>,
    ) -> Result<(), ReloadError> {
        let read = match changed_config {
            Some(read) => read,
            None => origin.read_config().await,
        };
        let wanted = read.map_err(log_refusal)?;
        let result = self.apply(cluster_set, wanted).await;
        if result.is_err() {
            origin.on_rejected();
        }
        result
    }

    async fn apply(
        &mut self,
        cluster_set: &mut ClusterSet,
        wanted: DesiredConfig,
    ) -> Result<(), ReloadError> {
        if let Some(error) = cluster_set.check_abandoned_nodes(&wanted.clusters).await {
            return Err(log_refusal(ConfigRefusal::Prepare(error)));
        }
        let (prepared, mut failed_clusters) = cluster_set.prepare_each(wanted.clusters, ALL).await;
        // Clusters that failed before are not running, so the reload succeeds even if they fail
        // again.
        let new =
            failed_clusters.iter().position(|failed| !cluster_set.is_broken(&failed.cluster.name));
        if let Some(new) = new {
            let error = failed_clusters.swap_remove(new).why;
            return Err(log_refusal(ConfigRefusal::Prepare(error)));
        }
        if let Err(error) = cluster_set.apply(prepared, failed_clusters, wanted.fleet).await {
            let why = text::error_chain(&error);
            tracing::error!(why, "configuration reloaded in part");
            return Err(ReloadError::Partial(error));
        }
        log_config_changes(&self.written, &wanted.written);
        self.written = wanted.written;
        report_metrics::set_config_hash(&self.written);
        let (started, new) = (&self.telemetry, wanted.telemetry);
        self.level.set_level(new.log_level);
        for (argument, changed) in [
            ("listen", new.listen != started.listen),
            ("log.format", new.log_format != started.log_format),
            ("otlp", new.otlp != started.otlp),
            ("metrics.names", new.metric_names != started.metric_names),
            ("metrics.per_node", new.per_node != started.per_node),
        ] {
            if changed {
                tracing::warn!("telemetry.{argument} changed, restart the daemon to apply it");
            }
        }
        tracing::info!(clusters = cluster_set.len(), "reloaded configuration");
        Ok(())
    }
}

/// Logs why the previous configuration stays in effect, and returns the reason as an error.
fn log_refusal(refusal: ConfigRefusal) -> ReloadError {
    let why = refusal.to_string();
    tracing::error!(why, "configuration not reloaded, keeping the previous one");
    ReloadError::Refused(refusal)
}

/// Logs the changes of the configuration.
fn log_config_changes(old: &ConfigValues, new: &ConfigValues) {
    let changes = old.changes_to(new);
    for change in changes.iter().take(CHANGES_MAX) {
        tracing::info!(change = text::bounded_line(change), "configuration changed");
    }
    if let Some(more @ 1..) = changes.len().checked_sub(CHANGES_MAX) {
        tracing::info!(more, "more configuration changes not listed");
    }
}

/// Starts the scheduler with a periodic job that drops old metrics samples.
async fn start_cron(metrics: MetricsRecorder) -> Result<Cron, CronError> {
    let cron = Cron::start().await?;
    cron.schedule_job(REMINDER, move || metrics.drop_old_samples()).await?;
    Ok(cron)
}

/// Starts a periodic job that triggers refreshes of AWS data. Each region task knows which reads
/// are due.
#[cfg(feature = "aws")]
async fn schedule_refreshes(cron: &Cron, regions: Arc<Regions>) -> Result<(), CronError> {
    cron.schedule_job(REMINDER, move || {
        let regions = regions.clone();
        tokio::spawn(async move { regions.trigger_reads().await });
    })
    .await
    .map(drop)
}
