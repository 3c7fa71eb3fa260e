//! Shared handle to a cluster: status, recent activity, metrics samples, and a channel to its
//! engine.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::engine::Engine;
use crate::engine::event::Event;
use crate::engine::report::Report;
use crate::host::clock::Heartbeat;
use crate::model::id::ClusterName;
use crate::runtime::activity_log::{ActivityEntry as Entry, ActivityLog};
use crate::telemetry::cluster_collector::{self, MetricSample, Sync};
use crate::telemetry::report_metrics;

/// A cluster that has not been ready for this long is degraded: `run` counts as started without it.
pub(crate) const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// Time for an engine to answer a query. It may be in the middle of a pass.
const ANSWER: Duration = Duration::from_secs(30);

/// A query that runs on the thread of the engine. It blocks the engine.
pub(crate) type EngineQuery = Box<dyn FnOnce(&Engine, Timestamp) + Send>;

/// The channels to an engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineChannel {
    /// Events for the engine.
    pub(crate) events: mpsc::Sender<Event>,
    /// Queries to the engine.
    pub(crate) questions: mpsc::Sender<EngineQuery>,
}

/// The health of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClusterHealth {
    /// The engine makes decisions.
    Ready,
    /// Another host is the leader, and this host is on standby.
    Standby,
    /// It has not been ready for a long time. Startup does not wait for it.
    Degraded,
    #[default]
    Unready,
    /// Its engine has stopped.
    Ended,
}

impl ClusterHealth {
    /// All values, best first.
    pub(crate) const ALL: [Self; 5] = [
        Self::Ready,
        Self::Standby,
        Self::Degraded,
        Self::Unready,
        Self::Ended,
    ];

    /// Returns whether startup need not wait for it.
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Self::Ready | Self::Standby | Self::Degraded)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Standby => "on standby",
            Self::Degraded => "degraded",
            Self::Unready => "not ready",
            Self::Ended => "ended",
        }
    }
}

/// All clusters of this daemon with their status.
pub(crate) type Clusters = Vec<Arc<ClusterHandle>>;

/// Status of a cluster, independent of which host is the leader.
#[derive(Debug)]
pub(crate) struct ClusterHandle {
    pub(crate) name: ClusterName,
    beat: Heartbeat,
    seen: Mutex<HandleState>,
    timeline: Mutex<ActivityLog>,
}

#[derive(Debug, Default)]
struct HandleState {
    standing: ClusterHealth,
    /// Actions that missing permissions prevent.
    undone: Vec<&'static str>,
    /// The reason why this host is not the leader.
    led_by: Option<String>,
    /// The channels to its engine, while one runs.
    line: Option<EngineChannel>,
    /// The last metrics samples.
    samples: Arc<[MetricSample]>,
    /// Age and state of the watches.
    sync: Option<Sync>,
    /// Whether the last engine reported that the API server and the instances do not match.
    mismatched: bool,
}

impl ClusterHandle {
    /// Creates a handle without status.
    pub(crate) fn new(name: ClusterName) -> Self {
        report_metrics::status(&name, false);
        Self {
            name,
            beat: Heartbeat::start(),
            seen: Mutex::default(),
            timeline: Mutex::default(),
        }
    }

    fn seen<T>(&self, with: impl FnOnce(&mut HandleState) -> T) -> T {
        with(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets or removes the engine. Clears the metrics of the previous engine, because a stopped
    /// engine resets none.
    pub(crate) fn drive(&self, engine: Option<EngineChannel>) {
        report_metrics::engine_changed(&self.name);
        self.seen(|state| (state.line, state.samples, state.sync) = (engine, Arc::default(), None));
        self.beat();
    }

    /// Records that the engine loop is alive.
    pub(crate) fn beat(&self) {
        self.beat.beat();
    }

    /// Sets the health.
    pub(crate) fn show(&self, standing: ClusterHealth, undone: Vec<&'static str>) {
        let before = self.seen(|state| {
            state.undone = undone;
            std::mem::replace(&mut state.standing, standing)
        });
        if before != standing {
            report_metrics::status(&self.name, standing == ClusterHealth::Ready);
        }
    }

    /// Sets the reason why this host is not the leader. `None` if it is.
    pub(crate) fn lead_by(&self, reason: Option<String>) {
        self.seen(|state| state.led_by = reason);
    }

    /// The reason why this host is not the leader.
    pub(crate) fn led_by(&self) -> Option<String> {
        self.seen(|state| state.led_by.clone())
    }

    /// Adds a report to the activity log.
    pub(crate) fn note(&self, report: &Report, managed: bool, now: Timestamp) {
        let timeline = self.timeline.lock();
        let mut timeline = timeline.unwrap_or_else(PoisonError::into_inner);
        timeline.note(report, managed, now);
    }

    /// The activity log, newest first.
    pub(crate) fn timeline(&self) -> Vec<Entry> {
        let timeline = self.timeline.lock();
        timeline.unwrap_or_else(PoisonError::into_inner).lines()
    }

    /// Sets the metrics samples. Ignored if this engine no longer runs the cluster.
    pub(crate) fn count(&self, samples: Vec<MetricSample>) {
        let samples: Arc<[MetricSample]> = samples.into();
        self.seen(|state| {
            if state.line.is_some() {
                state.samples = samples;
            }
        });
    }

    /// Sets age and state of the watches. Ignored if this engine no longer runs the cluster.
    pub(crate) fn sync(&self, sync: Sync) {
        self.seen(|state| {
            if state.line.is_some() {
                state.sync = Some(sync);
            }
        });
    }

    /// The last metrics samples and the current age of the watches. `None` if no engine runs.
    pub(crate) fn counted(&self, now: Timestamp) -> [Arc<[MetricSample]>; 2] {
        let (samples, sync) = self.seen(|state| (state.samples.clone(), state.sync));
        let age = sync.map(|sync| cluster_collector::age(&self.name, sync, now));
        [samples, age.unwrap_or_default().into()]
    }

    /// Records a reported mismatch of API server and instances, or its end, for the engine of the
    /// next leadership term.
    pub(crate) fn set_mismatched(&self, mismatched: bool) {
        self.seen(|state| state.mismatched = mismatched);
    }

    /// Whether the last report about it was a mismatch.
    pub(crate) fn is_mismatched(&self) -> bool {
        self.seen(|state| state.mismatched)
    }

    /// The health.
    pub(crate) fn standing(&self) -> ClusterHealth {
        self.seen(|state| state.standing)
    }

    /// Actions that missing permissions prevent, with the permission.
    pub(crate) fn undone(&self) -> Vec<&'static str> {
        self.seen(|state| state.undone.clone())
    }

    /// Time since the engine loop was last alive. `None` if no engine runs.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        let is_driven = self.seen(|state| state.line.is_some());
        is_driven.then(|| self.beat.age())
    }

    /// Wakes its engine, in case its timer is due. A lost or repeated call is harmless.
    pub(crate) fn remind(&self) {
        if let Some(engine) = self.seen(|state| state.line.clone()) {
            drop(engine.events.try_send(Event::Timeout));
        }
    }

    /// Runs a query on the engine. `None` if no engine runs or it does not answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Engine, Timestamp) -> T + Send + 'static,
    ) -> Option<T> {
        let engine = self.seen(|state| state.line.clone())?;
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
