//! Shared handle to a cluster: status, recent activity, metrics samples, and a channel to its
//! engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::engine::Engine;
use crate::engine::event::Event;
use crate::engine::report::description::Description;
use crate::host::clock::Heartbeat;
use crate::model::id::ClusterName;
use crate::model::sweep::SweepKind;
use crate::runtime::activity_log::{ActivityEntry as Entry, ActivityLog};
use crate::runtime::cluster_health::ClusterHealth;
use crate::telemetry::cluster_collector::{self, MetricSample, Sync};
use crate::telemetry::report_metrics;

/// A cluster that is not ready for this long is degraded. `run` then reports that it has started,
/// without waiting for this cluster.
pub(crate) const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// Time for an engine to answer a query. The engine may be in the middle of a pass.
const ANSWER: Duration = Duration::from_secs(30);

/// A query that runs on the thread of the engine and blocks the engine.
pub(crate) type EngineQuery = Box<dyn FnOnce(&Engine, Timestamp) + Send>;

/// The channels to an engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineChannel {
    /// Events for the engine.
    pub(crate) events: mpsc::Sender<Event>,
    /// Queries to the engine.
    pub(crate) questions: mpsc::Sender<EngineQuery>,
}

/// When the next sweeps of an engine run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweepTimes {
    /// Counts the starts and ends of engines of this cluster.
    pub(crate) engine: u64,
    /// The next occurrence of each kind. Empty if no engine runs.
    pub(crate) next: BTreeMap<SweepKind, Timestamp>,
}

/// All clusters of this daemon with their status.
pub(crate) type Clusters = Vec<Arc<ClusterHandle>>;

/// Status of a cluster on this host, whether or not this host is the leader.
#[derive(Debug)]
pub(crate) struct ClusterHandle {
    pub(crate) name: ClusterName,
    beat: Heartbeat,
    seen: Mutex<HandleState>,
    timeline: Mutex<ActivityLog>,
    sweep_times: watch::Sender<SweepTimes>,
}

#[derive(Debug, Default)]
struct HandleState {
    standing: ClusterHealth,
    /// Actions that are not possible because a permission is missing.
    undone: Vec<&'static str>,
    /// The reason why this host is not the leader.
    led_by: Option<String>,
    /// The channels to the engine of the cluster, while the engine runs.
    line: Option<EngineChannel>,
    /// The last metrics samples of the cluster.
    samples: Arc<[MetricSample]>,
    /// Age and state of the watches.
    sync: Option<Sync>,
    /// Whether the last engine reported that the API server and the instances do not match.
    mismatched: bool,
}

impl ClusterHandle {
    /// Creates a handle without status.
    pub(crate) fn new(name: ClusterName) -> Self {
        report_metrics::set_ready(&name, false);
        Self {
            name,
            beat: Heartbeat::start(),
            seen: Mutex::default(),
            timeline: Mutex::default(),
            sweep_times: watch::Sender::default(),
        }
    }

    fn with_state<T>(&self, with: impl FnOnce(&mut HandleState) -> T) -> T {
        with(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets or removes the engine. Clears the metrics of the previous engine, because a stopped
    /// engine resets none.
    pub(crate) fn set_engine(&self, engine: Option<EngineChannel>) {
        report_metrics::reset_engine_metrics(&self.name);
        self.with_state(|state| {
            (state.line, state.samples, state.sync) = (engine, Arc::default(), None)
        });
        self.sweep_times.send_modify(|times| {
            times.engine += 1;
            times.next.clear();
        });
        self.record_activity();
    }

    /// Sets when the next sweeps run, unless no engine runs the cluster any more.
    pub(crate) fn set_next_sweeps(&self, next: BTreeMap<SweepKind, Timestamp>) {
        if self.with_state(|state| state.line.is_some()) {
            self.sweep_times.send_if_modified(|times| {
                let is_changed = times.next != next;
                times.next = next;
                is_changed
            });
        }
    }

    /// Returns a receiver of the times of the next sweeps.
    pub(crate) fn sweep_times(&self) -> watch::Receiver<SweepTimes> {
        self.sweep_times.subscribe()
    }

    /// Records that the engine loop is alive.
    pub(crate) fn record_activity(&self) {
        self.beat.record_activity();
    }

    /// Sets the health.
    pub(crate) fn set_health(&self, standing: ClusterHealth, undone: Vec<&'static str>) {
        let before = self.with_state(|state| {
            state.undone = undone;
            std::mem::replace(&mut state.standing, standing)
        });
        if before != standing {
            report_metrics::set_ready(&self.name, standing == ClusterHealth::Ready);
        }
    }

    /// Sets the reason why this host is not the leader. `None` if this host is the leader.
    pub(crate) fn set_follower_reason(&self, reason: Option<String>) {
        self.with_state(|state| state.led_by = reason);
    }

    /// The reason why this host is not the leader.
    pub(crate) fn follower_reason(&self) -> Option<String> {
        self.with_state(|state| state.led_by.clone())
    }

    /// Adds a report to the activity log.
    pub(crate) fn log_report(&self, described: &Description<'_>, now: Timestamp) {
        let timeline = self.timeline.lock();
        let mut timeline = timeline.unwrap_or_else(PoisonError::into_inner);
        timeline.add_report(described, now);
    }

    /// The activity log, newest first.
    pub(crate) fn recent_activity(&self) -> Vec<Entry> {
        let timeline = self.timeline.lock();
        timeline.unwrap_or_else(PoisonError::into_inner).newest_first()
    }

    /// Sets the metrics samples, unless no engine runs the cluster any more.
    pub(crate) fn set_samples(&self, samples: Vec<MetricSample>) {
        let samples: Arc<[MetricSample]> = samples.into();
        self.with_state(|state| {
            if state.line.is_some() {
                state.samples = samples;
            }
        });
    }

    /// Sets age and state of the watches, unless no engine runs the cluster any more.
    pub(crate) fn set_sync(&self, sync: Sync) {
        self.with_state(|state| {
            if state.line.is_some() {
                state.sync = Some(sync);
            }
        });
    }

    /// The last metrics samples and the current age of the watches. `None` if no engine runs.
    pub(crate) fn current_samples(&self, now: Timestamp) -> [Arc<[MetricSample]>; 2] {
        let (samples, sync) = self.with_state(|state| (state.samples.clone(), state.sync));
        let age = sync.map(|sync| cluster_collector::sync_samples(&self.name, sync, now));
        [samples, age.unwrap_or_default().into()]
    }

    /// Records for the engine of the next leadership term whether the last engine has reported a
    /// mismatch between the API server and the instances.
    pub(crate) fn set_mismatched(&self, mismatched: bool) {
        self.with_state(|state| state.mismatched = mismatched);
    }

    /// Returns whether the last engine has reported a mismatch between the API server and the
    /// instances.
    pub(crate) fn is_mismatched(&self) -> bool {
        self.with_state(|state| state.mismatched)
    }

    /// The health.
    pub(crate) fn health(&self) -> ClusterHealth {
        self.with_state(|state| state.standing)
    }

    /// Actions that are not possible because a permission is missing, each with that permission.
    pub(crate) fn prevented_actions(&self) -> Vec<&'static str> {
        self.with_state(|state| state.undone.clone())
    }

    /// Time since the engine loop was last alive. `None` if no engine runs.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        let is_driven = self.with_state(|state| state.line.is_some());
        is_driven.then(|| self.beat.age())
    }

    /// Sends an event to the engine of the cluster, unless its channel is full. The caller must not
    /// depend on the event.
    pub(crate) fn try_send_event(&self, event: Event) {
        if let Some(engine) = self.with_state(|state| state.line.clone()) {
            drop(engine.events.try_send(event));
        }
    }

    /// Sends an event to the engine. Returns false if no engine runs.
    pub(crate) async fn send_event(&self, event: Event) -> bool {
        let engine = self.with_state(|state| state.line.clone());
        match engine {
            Some(engine) => {
                timeout(ANSWER, engine.events.send(event)).await.is_ok_and(|it| it.is_ok())
            }
            None => false,
        }
    }

    /// Runs a query on the engine. `None` if no engine runs or the engine does not answer.
    pub(crate) async fn query_engine<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Engine, Timestamp) -> T + Send + 'static,
    ) -> Option<T> {
        let engine = self.with_state(|state| state.line.clone())?;
        let (reply, answer) = oneshot::channel();
        let question: EngineQuery = Box::new(move |engine, now| {
            // The caller may have stopped waiting.
            if !reply.is_closed() {
                drop(reply.send(query(engine, now)));
            }
        });
        let answered = async {
            engine.questions.send(question).await.ok()?;
            answer.await.ok()
        };
        timeout(ANSWER, answered).await.ok().flatten()
    }
}
