//! Notifies systemd of the state of the daemon: started, alive, reloading, stopping. Without the
//! variable `NOTIFY_SOCKET` this client does nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::host::clock;
use crate::runtime::cluster_handle::{ClusterHandle, Clusters};
use crate::runtime::cluster_health::ClusterHealth;

/// Interval at which the clusters are checked.
const TICK: Duration = Duration::from_secs(1);
/// Number of watchdog notifications per watchdog interval.
const WORDS: u32 = 3;
/// The engine loop runs at least every ten seconds. An engine without activity for this long has
/// failed.
const STALLED: Duration = Duration::from_secs(30);
/// Maximum length of the status, because systemd shows only one line.
const STATUS_CHARS: usize = 200;

/// The directory that systemd created for the daemon, from this environment variable.
/// `RUNTIME_DIRECTORY` does not survive a reboot, `STATE_DIRECTORY` does.
#[expect(clippy::disallowed_methods, reason = "systemd passes the socket in the environment")]
pub(crate) fn systemd_directory(variable: &str) -> Option<PathBuf> {
    let directories = std::env::var_os(variable)?;
    std::env::split_paths(&directories).find(|path| path.is_absolute())
}

/// Client of systemd notifications.
#[derive(Clone, Default)]
pub(crate) struct SdNotify(Arc<SystemdState>);

#[derive(Default)]
struct SystemdState {
    started: AtomicBool,
    /// Error of the last reload, until a reload succeeds.
    fault: Mutex<Option<String>>,
}

impl SdNotify {
    /// Monitors the clusters until the process ends. Reports the daemon as started when each
    /// cluster is ready, on standby or degraded, and as alive while every engine is active.
    pub(crate) async fn monitor_clusters(self, clusters: watch::Receiver<Clusters>) {
        let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / WORDS);
        let tick = watchdog.map_or(TICK, |it| it.clamp(TICK / 100, TICK));
        let (mut last_line, mut stalls) = (String::new(), false);
        let mut spoke = clock::monotonic_now();
        loop {
            sleep(tick).await;
            let handles = clusters.borrow().clone();
            let line = self.status_line(&handles);
            if line != last_line {
                send_states(&[NotifyState::Status(&line)]);
                last_line = line;
            }
            let has_started =
                !handles.is_empty() && handles.iter().all(|it| it.health().is_settled());
            if has_started && !self.0.started.swap(true, Ordering::Relaxed) {
                send_states(&[NotifyState::Ready]);
            }
            let stalled =
                handles.iter().find(|cluster| cluster.idle_for().is_some_and(|it| it > STALLED));
            if let Some(cluster) = stalled.filter(|_| !stalls) {
                let cluster = cluster.name.to_string();
                tracing::error!(cluster, "engine does not respond, not notifying the watchdog");
            }
            stalls = stalled.is_some();
            let due = watchdog.is_some_and(|watchdog| spoke.elapsed() + tick > watchdog);
            if due && !stalls {
                send_states(&[NotifyState::Watchdog]);
                spoke = clock::monotonic_now();
            }
        }
    }

    /// Reports that a reload has started.
    pub(crate) fn notify_reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(since) => send_states(&[NotifyState::Reloading, since]),
            Err(error) => tracing::warn!(%error, "cannot notify systemd of the reload"),
        }
    }

    /// Reports the result of a reload.
    pub(crate) fn notify_reload_result(&self, fault: Option<String>) {
        *self.0.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
        if self.0.started.load(Ordering::Relaxed) {
            send_states(&[NotifyState::Ready]);
        }
    }

    /// Error of the last reload, if it failed.
    pub(crate) fn reload_fault(&self) -> Option<String> {
        let fault = self.0.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.clone()
    }

    /// Reports that the daemon is stopping.
    pub(crate) fn notify_stopping(&self) {
        send_states(&[NotifyState::Stopping]);
    }

    /// The status line of `systemctl status`.
    fn status_line(&self, handles: &[Arc<ClusterHandle>]) -> String {
        let counts = ClusterHealth::ALL.into_iter().filter_map(|standing| {
            let count = handles.iter().filter(|cluster| cluster.health() == standing).count();
            (count > 0).then(|| format!("{count} {}", standing.as_str()))
        });
        let counts: Vec<String> = counts.collect();
        let mut line = format!("clusters: {}", counts.join(", "));
        if let Some(why) = self.reload_fault() {
            line.push_str("; configuration not reloaded: ");
            line.push_str(&why);
        }
        // systemd would parse further lines as other notifications.
        line.chars()
            .take(STATUS_CHARS)
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .collect()
    }
}

fn send_states(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
