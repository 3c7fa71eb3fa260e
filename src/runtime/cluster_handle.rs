//! How each cluster is doing, as everybody but its engine sees it.
//! It must not know how it is driven.

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
use crate::telemetry;
use crate::telemetry::cluster_collector::{self, MetricSample, Sync};

/// A cluster that has not been ready for this long is degraded: `run` counts as started without it.
pub(crate) const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// Time for an engine to answer a question: it may be in the middle of a pass.
const ANSWER: Duration = Duration::from_secs(30);

/// What an engine is asked, on its own thread: it does nothing else meanwhile.
pub(crate) type EngineQuery = Box<dyn FnOnce(&Engine, Timestamp) + Send>;

/// Where an engine is reached.
#[derive(Clone, Debug)]
pub(crate) struct EngineChannel {
    /// It hears what happens.
    pub(crate) events: mpsc::Sender<Event>,
    /// It is asked what it knows.
    pub(crate) questions: mpsc::Sender<EngineQuery>,
}

/// How a cluster is doing, in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClusterHealth {
    /// Decisions are made.
    Ready,
    /// Another host leads it, and this one may follow.
    Standby,
    /// It has not been ready for so long that nobody should wait for it.
    Degraded,
    #[default]
    Unready,
    /// Its engine has ended.
    Ended,
}

impl ClusterHealth {
    /// All there are, the best first.
    pub(crate) const ALL: [Self; 5] = [
        Self::Ready,
        Self::Standby,
        Self::Degraded,
        Self::Unready,
        Self::Ended,
    ];

    /// Whether there is nothing to wait for.
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

/// The clusters that are looked after, and how each is doing.
pub(crate) type Clusters = Vec<Arc<ClusterHandle>>;

/// What is seen of a cluster, whoever drives it and whether or not this host leads it.
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
    /// What is left undone for want of a right.
    undone: Vec<&'static str>,
    /// Who leads it, or may, where this host does not.
    led_by: Option<String>,
    /// Where its engine is reached, while there is one.
    line: Option<EngineChannel>,
    /// What it last counted.
    samples: Arc<[MetricSample]>,
    /// How its view is.
    sync: Option<Sync>,
}

impl ClusterHandle {
    /// Nothing is known of it yet.
    pub(crate) fn new(name: ClusterName) -> Self {
        telemetry::status(&name, false);
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

    /// An engine drives it from here on, or none does.
    pub(crate) fn drive(&self, line: Option<EngineChannel>) {
        self.seen(|seen| (seen.line, seen.samples, seen.sync) = (line, Arc::default(), None));
        self.beat();
    }

    /// Whoever looks after it goes round.
    pub(crate) fn beat(&self) {
        self.beat.beat();
    }

    /// This is how it is doing.
    pub(crate) fn show(&self, standing: ClusterHealth, undone: Vec<&'static str>) {
        let before = self.seen(|seen| {
            seen.undone = undone;
            std::mem::replace(&mut seen.standing, standing)
        });
        if before != standing {
            telemetry::status(&self.name, standing == ClusterHealth::Ready);
        }
    }

    /// Another host leads it, or may, for this reason; none where this one does.
    pub(crate) fn lead_by(&self, who: Option<String>) {
        self.seen(|seen| seen.led_by = who);
    }

    /// Who leads it where this host does not, in words.
    pub(crate) fn led_by(&self) -> Option<String> {
        self.seen(|seen| seen.led_by.clone())
    }

    /// This was decided, done or seen.
    pub(crate) fn note(&self, report: &Report, managed: bool, now: Timestamp) {
        let timeline = self.timeline.lock();
        let mut timeline = timeline.unwrap_or_else(PoisonError::into_inner);
        timeline.note(report, managed, now);
    }

    /// The latest of it, the newest first.
    pub(crate) fn timeline(&self) -> Vec<Entry> {
        let timeline = self.timeline.lock();
        timeline.unwrap_or_else(PoisonError::into_inner).lines()
    }

    /// This is what it holds now. Whoever drives it no more is not heard.
    pub(crate) fn count(&self, samples: Vec<MetricSample>) {
        let samples: Arc<[MetricSample]> = samples.into();
        self.seen(|seen| {
            if seen.line.is_some() {
                seen.samples = samples;
            }
        });
    }

    /// So its view is. Whoever drives it no more is not heard.
    pub(crate) fn sync(&self, sync: Sync) {
        self.seen(|seen| {
            if seen.line.is_some() {
                seen.sync = Some(sync);
            }
        });
    }

    /// What it last held, and how old its view is now; nothing where no engine drives it.
    pub(crate) fn counted(&self, now: Timestamp) -> [Arc<[MetricSample]>; 2] {
        let (samples, sync) = self.seen(|seen| (seen.samples.clone(), seen.sync));
        let age = sync.map(|own| cluster_collector::age(&self.name, own, now));
        [samples, age.unwrap_or_default().into()]
    }

    /// How it is doing.
    pub(crate) fn standing(&self) -> ClusterHealth {
        self.seen(|seen| seen.standing)
    }

    /// What is left undone for want of a right, with the right.
    pub(crate) fn undone(&self) -> Vec<&'static str> {
        self.seen(|seen| seen.undone.clone())
    }

    /// For how long its engine has not gone round; none where it has no engine.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        let is_driven = self.seen(|seen| seen.line.is_some());
        is_driven.then(|| self.beat.age())
    }

    /// Tells its engine that an alarm may be due. A lost or doubled reminder is harmless.
    pub(crate) fn remind(&self) {
        if let Some(line) = self.seen(|seen| seen.line.clone()) {
            drop(line.events.try_send(Event::Timeout));
        }
    }

    /// What its engine says to a question; none where there is no engine, or none that answers.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Engine, Timestamp) -> T + Send + 'static,
    ) -> Option<T> {
        let line = self.seen(|seen| seen.line.clone())?;
        let (reply, answer) = oneshot::channel();
        let question: EngineQuery = Box::new(move |engine, now| {
            // Nobody answers who does not wait any more.
            if !reply.is_closed() {
                drop(reply.send(what(engine, now)));
            }
        });
        let asked = async {
            line.questions.send(question).await.ok()?;
            answer.await.ok()
        };
        timeout(ANSWER, asked).await.ok().flatten()
    }
}
