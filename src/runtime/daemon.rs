//! Runs the daemon: signals, telemetry, and the clusters of the configuration in force.
//! It must not know where the configuration comes from, nor how a cluster is driven.

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
    ALL, ApplyError, ClusterSet, FailedCluster, PrepareError, Prepared, STARTING,
};
use crate::runtime::control::Reload;
use crate::runtime::cron::{Cron, CronError};
use crate::runtime::holder_identity::HolderIdentity;
use crate::runtime::http_server::AdminError;
use crate::runtime::systemd::SdNotify;
use crate::runtime::{control, http_server, systemd};
use crate::telemetry::report_log::LogFilter;
use crate::telemetry::report_metrics::{self, MetricsError, MetricsRecorder};

/// Every engine is reminded this often, should an alarm have been lost.
const REMINDER: &str = "0 * * * * *";

/// Clusters that cannot be driven are tried again after so long, and ever more rarely: meanwhile
/// nothing else of the configuration is heard of.
const AGAIN: Duration = Duration::from_secs(15);
const AGAIN_MAX: Duration = Duration::from_mins(2);

/// Changes of the configuration that a reload tells one by one.
const CHANGES_MAX: usize = 100;

/// Why nothing runs.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// The configuration is to blame.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("listen to signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Cron(#[from] CronError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Admin(#[from] AdminError),
}

/// What is driven, and what is said about it.
pub(crate) struct DesiredConfig {
    pub(crate) clusters: Vec<Arc<Cluster>>,
    pub(crate) fleet: FleetLimits,
    pub(crate) telemetry: Telemetry,
    /// The same, argument by argument.
    pub(crate) written: ConfigValues,
}

/// Where all that comes from.
pub(crate) trait ConfigOrigin {
    /// Gives everything anew, or says why it cannot.
    async fn read(&mut self) -> Result<DesiredConfig, String>;

    /// Waits until something has changed that nobody has to tell of, and gives everything anew.
    async fn changed(&mut self) -> Result<DesiredConfig, String>;

    /// What was given last could not be put into force: what was given before is.
    fn refused(&mut self);
}

/// Drives all clusters until SIGTERM or SIGINT. One that cannot be driven is left out and tried
/// again, unless that is all of them; so is one whose engine ends by itself, which none should. At
/// SIGHUP, and where something has changed, `origin` gives everything anew, or says why it cannot;
/// then, or when a cluster that was driven or is new cannot be, everything stays as it is.
pub(crate) async fn run(
    wanted: DesiredConfig,
    level: LogFilter,
    mut origin: impl ConfigOrigin,
    Signals {
        mut hangup,
        mut stop,
    }: Signals,
) -> Result<(), RunError> {
    let telemetry = wanted.telemetry;
    let mut written = wanted.written;
    let directory = systemd::directory("RUNTIME_DIRECTORY");
    let mut drivers = ClusterSet::start_as(identity(directory.as_deref()));
    let (prepared, broken) = tokio::select! {
        some = prepare_some(&drivers, wanted.clusters) => some?,
        () = stop.called() => return Ok(()),
    };
    let counted = MetricsRecorder::init(&telemetry, &written)?;
    let (show, shown) = watch::channel(Clusters::new());
    serve(&telemetry, shown, &counted).await?;
    if let Err(error) = drivers.apply(prepared, broken, wanted.fleet).await {
        drivers.stop().await;
        return Err(error.into());
    }
    show.send_replace(drivers.shown());
    let manager = SdNotify::default();
    tokio::spawn(manager.clone().watch_over(show.subscribe()));
    let mut asked = answer(directory, show.subscribe(), &manager).await;
    let cron = remind(&show, counted).await?;
    #[cfg(feature = "aws")]
    refresh(&cron, drivers.keepers()).await?;
    let mut wait = AGAIN;
    let mut again = Box::pin(sleep(wait));
    loop {
        let (mut caller, mut news) = (None, None);
        tokio::select! {
            () = stop.called() => break,
            name = drivers.ended() => {
                drivers.lost(&name).await;
                show.send_replace(drivers.shown());
                continue;
            }
            _ = hangup.recv() => {}
            () = &mut again, if !drivers.is_whole() => {
                tokio::select! {
                    () = mend(&mut drivers, &show) => {}
                    () = stop.called() => break,
                }
                wait = (wait * 2).min(AGAIN_MAX);
                again = Box::pin(sleep(wait));
                continue;
            }
            Some(reload) = asked.recv() => caller = Some(reload),
            changed = origin.changed() => news = Some(changed),
        }
        manager.reloading();
        let in_force = (&telemetry, &mut written);
        let read = tokio::select! {
            read = renewed(&mut drivers, (&mut origin, news), in_force, &level) => read,
            () = stop.called() => break,
        };
        report_metrics::reloaded(read.is_ok());
        show.send_replace(drivers.shown());
        manager.reloaded(read.clone().err());
        // Who asked may be gone.
        drop(caller.map(|own: Reload| own.send(read)));
    }
    // Nobody is answered any more.
    drop(asked);
    manager.stopping();
    cron.stop().await;
    drivers.stop().await;
    tracing::info!("stopped");
    Ok(())
}

/// All that some clusters are to be driven with; where that is none at all, why.
async fn prepare_some(
    drivers: &ClusterSet,
    clusters: Vec<Arc<Cluster>>,
) -> Result<(Vec<Prepared>, Vec<FailedCluster>), PrepareError> {
    let (prepared, mut broken) = drivers.prepare_each(clusters, STARTING).await;
    if prepared.is_empty() && !broken.is_empty() {
        // Where one of them may be over by itself, another start may help.
        let passing = broken.iter().position(|own| own.why.may_pass());
        return Err(broken.swap_remove(passing.unwrap_or(0)).why);
    }
    Ok((prepared, broken))
}

/// Drives those clusters too that were broken and are not any more.
async fn mend(drivers: &mut ClusterSet, show: &watch::Sender<Clusters>) {
    if let Err(error) = drivers.mend().await {
        let why = text::chain(&error);
        tracing::error!(why, "clusters that can be driven again are not");
    }
    show.send_replace(drivers.shown());
}

/// Who this process is.
fn identity(directory: Option<&Path>) -> HolderIdentity {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    HolderIdentity::new(&host, directory)
}

/// Answers the people of this host, where there is a place for the socket; returns who asks for
/// reloads. Clusters are driven whether or not anybody can be answered.
async fn answer(
    directory: Option<PathBuf>,
    shown: watch::Receiver<Clusters>,
    manager: &SdNotify,
) -> mpsc::Receiver<Reload> {
    let nobody = || mpsc::channel(1).1;
    let Some(directory) = directory else {
        tracing::info!("no RUNTIME_DIRECTORY: status and reload are not answered");
        return nobody();
    };
    let started = control::start(&directory, shown, manager.clone()).await;
    started.unwrap_or_else(|error| {
        let why = text::chain(&error);
        tracing::warn!(why, "going on without answering status and reload");
        nobody()
    })
}

fn listen(kind: SignalKind) -> Result<Signal, RunError> {
    signal(kind).map_err(RunError::Signals)
}

/// The signals that the daemon heeds from here on.
pub(crate) struct Signals {
    hangup: Signal,
    pub(crate) stop: Stop,
}

impl Signals {
    /// Within a runtime.
    pub(crate) fn listen() -> Result<Self, RunError> {
        Ok(Self {
            hangup: listen(SignalKind::hangup())?,
            stop: Stop {
                terminate: listen(SignalKind::terminate())?,
                interrupt: listen(SignalKind::interrupt())?,
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
    /// Returns when one of them has come.
    pub(crate) async fn called(&mut self) {
        let signal = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        tracing::info!(
            signal,
            "stopping: no new work, waiting for answers under way"
        );
    }
}

/// Serves what the daemon tells about itself. An address that was asked for must be free; without
/// one the usual address is taken where nobody else has it.
async fn serve(
    telemetry: &Telemetry,
    shown: watch::Receiver<Clusters>,
    counted: &MetricsRecorder,
) -> Result<(), AdminError> {
    if let Some(address) = &telemetry.listen {
        return http_server::start(address, shown, counted.clone()).await;
    }
    if let Err(error) = http_server::start(DEFAULT_LISTEN, shown, counted.clone()).await {
        let why = text::chain(&error);
        tracing::warn!(why, "going on without /livez, /readyz and /metrics");
    }
    Ok(())
}

/// Puts into force what has changed, or else what `origin` reads anew.
async fn renewed(
    drivers: &mut ClusterSet,
    (origin, news): (
        &mut impl ConfigOrigin,
        Option<Result<DesiredConfig, String>>,
    ),
    in_force: (&Telemetry, &mut ConfigValues),
    level: &LogFilter,
) -> Result<(), String> {
    let wanted = match news {
        Some(wanted) => wanted,
        None => origin.read().await,
    };
    let given = wanted.is_ok();
    let read = reloaded(drivers, wanted, in_force, level).await;
    if given && read.is_err() {
        origin.refused();
    }
    read
}

/// Puts what was read into force, or says why not all of it is.
async fn reloaded(
    drivers: &mut ClusterSet,
    read: Result<DesiredConfig, String>,
    (started, written): (&Telemetry, &mut ConfigValues),
    level: &LogFilter,
) -> Result<(), String> {
    let kept = |why: String| {
        tracing::error!(why, "configuration not reloaded: the one in force stays");
        Err(format!("the one in force stays: {why}"))
    };
    let wanted = match read {
        Ok(wanted) => wanted,
        Err(why) => return kept(why),
    };
    let refused = |why: &PrepareError| format!("{} [{}]", text::chain(why), why.code());
    if let Some(why) = drivers.too_much(&wanted.clusters).await {
        return kept(refused(&why));
    }
    let (prepared, broken) = drivers.prepare_each(wanted.clusters, ALL).await;
    // What was broken before may stay so: nothing of it is in force that could be kept.
    let new = broken
        .iter()
        .find(|own| !drivers.is_broken(&own.cluster.name));
    if let Some(FailedCluster { why, .. }) = new {
        return kept(refused(why));
    }
    if let Err(error) = drivers.apply(prepared, broken, wanted.fleet).await {
        let why = text::chain(&error);
        tracing::error!(why, "configuration reloaded only in part");
        return Err(format!("only a part of it is in force: {why}"));
    }
    tell_changes(written, &wanted.written);
    *written = wanted.written;
    report_metrics::in_force(written);
    let new = wanted.telemetry;
    level.set(new.log_level);
    for (argument, changed) in [
        ("listen", new.listen != started.listen),
        ("log.format", new.log_format != started.log_format),
        ("otlp", new.otlp != started.otlp),
        ("metrics.names", new.metric_names != started.metric_names),
        ("metrics.per_node", new.per_node != started.per_node),
    ] {
        if changed {
            tracing::warn!("telemetry.{argument} has changed: restart the daemon to apply it");
        }
    }
    tracing::info!(clusters = drivers.len(), "configuration reloaded");
    Ok(())
}

/// Says what is different in the configuration from now on.
fn tell_changes(old: &ConfigValues, new: &ConfigValues) {
    let changes = old.changes(new);
    for change in changes.iter().take(CHANGES_MAX) {
        tracing::info!(change = text::bounded(change), "configuration changed");
    }
    if let Some(more @ 1..) = changes.len().checked_sub(CHANGES_MAX) {
        tracing::info!(more, "configuration changed: these are not listed");
    }
}

/// Reminds every engine of the time, and keeps the metrics small.
async fn remind(
    show: &watch::Sender<Clusters>,
    counted: MetricsRecorder,
) -> Result<Cron, CronError> {
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

/// What is known of AWS is looked at again; each keeper knows what is due.
#[cfg(feature = "aws")]
async fn refresh(cron: &Cron, keepers: Arc<Regions>) -> Result<(), CronError> {
    cron.every(REMINDER, move || {
        let keepers = keepers.clone();
        tokio::spawn(async move { keepers.tick().await });
    })
    .await
}
