//! Tells the service manager how the daemon is doing: started, alive, reloading, stopping.
//! It must not know what a cluster is driven for. Without `NOTIFY_SOCKET` nobody is told.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::host::clock;
use crate::runtime::cluster_handle::{ClusterHandle, ClusterHealth, Clusters};

/// How often the clusters are looked at.
const TICK: Duration = Duration::from_secs(1);
/// The manager is told this many times within the time it waits for a word.
const WORDS: u32 = 3;
/// An engine goes round at least every ten seconds; one that has not for this long does not work.
const STALLED: Duration = Duration::from_secs(30);
/// The manager shows no more than a line.
const STATUS_CHARS: usize = 200;

/// The directory that the service manager made for the daemon and says by this variable: what lies
/// in `RUNTIME_DIRECTORY` is gone with the host's next start, what lies in `STATE_DIRECTORY` stays.
#[expect(
    clippy::disallowed_methods,
    reason = "the service manager says where by the environment"
)]
pub(crate) fn directory(variable: &str) -> Option<PathBuf> {
    let directories = std::env::var_os(variable)?;
    std::env::split_paths(&directories).find(|own| own.is_absolute())
}

/// The service manager, as the daemon sees it.
#[derive(Clone, Default)]
pub(crate) struct SdNotify(Arc<SystemdState>);

#[derive(Default)]
struct SystemdState {
    started: AtomicBool,
    /// Why the configuration was not reloaded, until it is.
    fault: Mutex<Option<String>>,
}

impl SdNotify {
    /// Watches the clusters until the process ends: says that the daemon has started when each is
    /// ready or known not to become so soon, and that it lives while every engine works.
    pub(crate) async fn watch_over(self, clusters: watch::Receiver<Clusters>) {
        let word = sd_notify::watchdog_enabled().map(|limit| limit / WORDS);
        let tick = word.map_or(TICK, |it| it.clamp(TICK / 100, TICK));
        let (mut said, mut stalls) = (String::new(), false);
        let mut spoke = clock::monotonic();
        loop {
            sleep(tick).await;
            let shown = clusters.borrow().clone();
            let line = self.line(&shown);
            if line != said {
                send(&[NotifyState::Status(&line)]);
                said = line;
            }
            let settled = |own: &Arc<ClusterHandle>| own.standing().is_settled();
            let has_started = !shown.is_empty() && shown.iter().all(settled);
            if has_started && !self.0.started.swap(true, Ordering::Relaxed) {
                send(&[NotifyState::Ready]);
            }
            let stalls_now =
                |own: &&Arc<ClusterHandle>| own.idle_for().is_some_and(|it| it > STALLED);
            let stalled = shown.iter().find(stalls_now);
            if let Some(own) = stalled.filter(|_| !stalls) {
                let cluster = own.name.to_string();
                tracing::error!(
                    cluster,
                    "its engine does not go round: no sign of life is given"
                );
            }
            stalls = stalled.is_some();
            let due = word.is_some_and(|word| spoke.elapsed() + tick > word);
            if due && !stalls {
                send(&[NotifyState::Watchdog]);
                spoke = clock::monotonic();
            }
        }
    }

    /// The configuration is being read again.
    pub(crate) fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(since) => send(&[NotifyState::Reloading, since]),
            Err(error) => tracing::warn!(%error, "the service manager is not told of the reload"),
        }
    }

    /// It was read, or not for this reason.
    pub(crate) fn reloaded(&self, fault: Option<String>) {
        *self.0.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
        if self.0.started.load(Ordering::Relaxed) {
            send(&[NotifyState::Ready]);
        }
    }

    /// Why the configuration was not reloaded when it was last tried.
    pub(crate) fn fault(&self) -> Option<String> {
        let fault = self.0.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.clone()
    }

    /// The daemon ends.
    pub(crate) fn stopping(&self) {
        send(&[NotifyState::Stopping]);
    }

    /// What `systemctl status` shows.
    fn line(&self, shown: &[Arc<ClusterHandle>]) -> String {
        let counts = ClusterHealth::ALL.into_iter().filter_map(|standing| {
            let count = shown
                .iter()
                .filter(|own| own.standing() == standing)
                .count();
            (count > 0).then(|| format!("{count} {}", standing.as_str()))
        });
        let counts: Vec<String> = counts.collect();
        let mut line = format!("clusters: {}", counts.join(", "));
        if let Some(why) = self.fault() {
            line.push_str("; configuration not reloaded: ");
            line.push_str(&why);
        }
        // One of more lines would be read as other words.
        line.chars()
            .take(STATUS_CHARS)
            .map(|own| if own.is_control() { ' ' } else { own })
            .collect()
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "tell the service manager");
    }
}
