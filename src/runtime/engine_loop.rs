//! Drives one engine on a thread of its own: events in, commands out, an alarm clock beside it.
//! It must not know what any event or command means.

#[cfg(test)]
mod terms;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tracing::{Instrument, Span};

use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::engine::command::{Command, CommandId, CommandResult, FailureKind, IssuedCommand};
use crate::engine::event::Event;
use crate::engine::report::Report;
use crate::host::clock::{self, Moment, SteadyClock, Stopwatch};
use crate::kubernetes::client::Connection;
use crate::kubernetes::commands;
use crate::kubernetes::event_recorder::EventRecorder;
use crate::kubernetes::watch as watching;
use crate::kubernetes::watch::ClusterWatches;
use crate::model::clock_skew::{ClockPeer, ClockSkew, SKEW_MAX};
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::id::ClusterName;
use crate::outbound::fence;
use crate::providers::Provider;
use crate::runtime::cluster_handle::{
    ClusterHandle, ClusterHealth, EngineChannel, EngineQuery, PATIENCE,
};
use crate::runtime::fleet_task::{self, FleetClient};
use crate::telemetry::cluster_collector::Sync;
use crate::telemetry::{self, otlp};

/// Events that wait for the engine; the watches wait when there are more.
const INBOX: usize = 1024;
/// Questions that wait for it; whoever asks waits when there are more.
const QUESTIONS: usize = 4;
/// Events taken at once before the engine is asked for commands again.
const BATCH: usize = 512;
/// After a look into the inbox the next one waits this long: while pods are bound by the hundred,
/// each on its own would wake the thread.
const LOOK: Duration = Duration::from_millis(10);
/// How long a stopping driver waits for the answers under way.
const STOP: Duration = Duration::from_secs(30);
/// How much longer its thread may take: one pass of the engine.
const GRACE: Duration = Duration::from_secs(5);
/// The alarm never rings sooner than this, so that no engine can keep its thread busy with it.
const PAUSE: Duration = Duration::from_millis(1);
/// Without an alarm the cluster's status is looked at this often.
const IDLE: Duration = Duration::from_secs(10);
/// What the cluster holds is counted this often, for whoever asks.
const COUNT: Duration = Duration::from_secs(10);
/// When a user or NTP sets the time of day by more than this, the engine begins anew: the times
/// that it remembers and those that it reads would be of different clocks.
const CLOCK_SET: SignedDuration = SKEW_MAX;
/// A command that nobody answered for this long is given up. Every adapter has a shorter limit.
const COMMAND: Duration = Duration::from_secs(90);

/// What a cluster is driven with.
#[derive(Clone)]
pub(crate) struct EngineDeps {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) connection: Connection,
    pub(crate) provider: Arc<dyn Provider>,
    /// Reads the clocks: `Moment::now` everywhere but in tests.
    pub(crate) read_clocks: fn() -> Moment,
}

/// A cluster that is being driven.
pub(crate) struct EngineThread {
    name: ClusterName,
    events: mpsc::Sender<Event>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<()>,
    clock_set: watch::Receiver<bool>,
}

impl EngineThread {
    /// Starts to watch and to decide, for one term of this host: nothing passes in another.
    pub(crate) fn start(
        parts: EngineDeps,
        term: u64,
        seat: FleetClient,
        front: Arc<ClusterHandle>,
    ) -> std::io::Result<Self> {
        let connection = parts.connection.of_term(term);
        let (events, inbox) = mpsc::channel(INBOX);
        let (ask, questions) = mpsc::channel(QUESTIONS);
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = watch::channel(());
        let (tell_clock_set, clock_set) = watch::channel(false);
        let clock = SteadyClock::start(parts.read_clocks);
        let name = parts.cluster.name.clone();
        let watches = watching::start(&parts.cluster, &connection, &events);
        let runtime = Handle::current();
        front.drive(Some(EngineChannel {
            events: events.clone(),
            questions: ask,
        }));
        let course = EngineLoop {
            engine: Engine::new(clock::seed()),
            clock,
            clock_set: tell_clock_set,
            clock_skews: [None; 2],
            hands: Arc::new(CommandExecutor {
                cluster: name.clone(),
                connection,
                provider: parts.provider,
                watches,
            }),
            herald: None,
            front,
            inbox,
            questions,
            seat,
            stopping,
            calls: JoinSet::new(),
            concurrency: parts.cluster.api.concurrency.max(1) as usize,
            managed: false,
            pass: Span::none(),
            took: Duration::ZERO,
            looks_at: clock::monotonic(),
            counts_at: clock::monotonic(),
            unready_since: Some(clock.now()),
            stop_by: None,
        };
        let (cluster, catalog) = (parts.cluster, parts.catalog);
        thread::Builder::new()
            .name(format!("engine {name}"))
            .spawn(move || {
                // Its end is seen by the end of this, also if the engine panics.
                let _end = end;
                runtime.block_on(course.run(cluster, catalog));
            })?;
        Ok(Self {
            name,
            events,
            stop,
            ended,
            clock_set,
        })
    }

    /// Tells the engine something; false when it has ended or does not take it in time.
    pub(crate) async fn tell(&self, event: Event) -> bool {
        matches!(timeout(STOP, self.events.send(event)).await, Ok(Ok(())))
    }

    /// Where the engine hears what happens.
    pub(crate) fn events(&self) -> mpsc::Sender<Event> {
        self.events.clone()
    }

    /// Returns when the engine has ended, whether it was told to or has panicked.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }

    /// Returns when the engine has begun to end because the time of day was set.
    pub(crate) async fn clock_set(&self) {
        let mut clock_set = self.clock_set.clone();
        if clock_set.wait_for(|own| *own).await.is_err() {
            // It has ended for another reason.
            std::future::pending().await
        }
    }

    /// Gives out no more commands, waits for the answers under way, and ends.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        if timeout(STOP + GRACE, self.ended()).await.is_err() {
            tracing::warn!(cluster = %self.name, "the engine does not stop");
        }
    }
}

/// What carries commands out.
struct CommandExecutor {
    cluster: ClusterName,
    connection: Connection,
    provider: Arc<dyn Provider>,
    watches: ClusterWatches,
}

impl CommandExecutor {
    /// Carries a command out; it is answered even if whoever does so panics.
    async fn execute(
        self: Arc<Self>,
        issued: IssuedCommand,
        not_after: Moment,
    ) -> (CommandId, CommandResult) {
        let name = issued.command.name();
        let began = Stopwatch::start();
        let call = self.guarded(issued.command, not_after);
        let call = AssertUnwindSafe(call).catch_unwind();
        let unknown = |text: String| CommandResult::Failed {
            kind: FailureKind::Unknown,
            text,
        };
        let answer = match timeout(COMMAND, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => unknown(format!("{name}: panicked")),
            Err(_) => unknown(format!("{name}: no answer within {COMMAND:?}")),
        };
        let outcome = telemetry::command(&self.cluster, name, &answer, began.elapsed());
        Span::current().record("outcome", outcome);
        (issued.id, answer)
    }

    /// What changes something is done only while this host leads the cluster in the same term, and
    /// is sent only until a moment.
    async fn guarded(&self, command: Command, not_after: Moment) -> CommandResult {
        if !command.changes() {
            return self.dispatch(command).await;
        }
        let fence = self.connection.fence.until(not_after);
        let call = fence::within([fence.clone()], self.dispatch(command));
        let done = fence.guard(call).await.flatten();
        done.unwrap_or_else(|fenced| CommandResult::Failed {
            kind: FailureKind::Unknown,
            text: fenced.to_string(),
        })
    }

    /// How far the clock of this host differs from those of the cluster and of its provider, as far
    /// as answers have told.
    fn clock_skews(&self) -> [Option<ClockSkew>; 2] {
        [
            (ClockPeer::ApiServer, self.connection.skew.ahead()),
            (ClockPeer::Aws, self.provider.clock_ahead()),
        ]
        .map(|(peer, ahead)| {
            // Fractions differ from one answer to the next.
            let ahead = SignedDuration::from_secs(ahead?.as_secs());
            Some(ClockSkew { peer, ahead })
        })
    }

    async fn dispatch(&self, command: Command) -> CommandResult {
        match command {
            Command::Launch(_)
            | Command::Terminate { .. }
            | Command::Tag { .. }
            | Command::Adopt(_)
            | Command::Learn { .. }
            | Command::ListInstances => self.provider.execute(command).await,
            Command::Rewatch { kind } => {
                self.watches.rewatch(kind);
                CommandResult::Done
            }
            Command::CreateNode(_)
            | Command::Bind { .. }
            | Command::DeletePod { .. }
            | Command::PatchNode(_)
            | Command::DeleteNode { .. }
            | Command::Evict { .. }
            | Command::Hint { .. }
            | Command::Unhint { .. }
            | Command::ListPodsOn { .. }
            | Command::ListAttachments { .. }
            | Command::Probe { .. }
            | Command::ReadLease
            | Command::PatchLease(_)
            | Command::PatchBuffer(_)
            | Command::Ask(_)
            | Command::AskLeave { .. }
            | Command::Muster(_)
            | Command::Account { .. }
            | Command::HoldDown { .. } => commands::execute(&self.connection, command).await,
        }
    }
}

/// The largest clock skew that is a fault; none where no skew is one.
fn fault(skews: [Option<ClockSkew>; 2]) -> Option<ClockSkew> {
    let faults = skews.into_iter().flatten().filter(ClockSkew::is_fault);
    faults.max_by_key(|own| own.ahead.abs())
}

/// The life of one engine.
struct EngineLoop {
    engine: Engine,
    /// All that the engine times.
    clock: SteadyClock,
    clock_set: watch::Sender<bool>,
    /// The clock skews at the last check.
    clock_skews: [Option<ClockSkew>; 2],
    hands: Arc<CommandExecutor>,
    /// Writes events into the cluster, where there are to be any.
    herald: Option<EventRecorder>,
    front: Arc<ClusterHandle>,
    inbox: mpsc::Receiver<Event>,
    questions: mpsc::Receiver<EngineQuery>,
    /// Its place among the engines that share with each other.
    seat: FleetClient,
    stopping: watch::Receiver<bool>,
    calls: JoinSet<(CommandId, CommandResult)>,
    concurrency: usize,
    managed: bool,
    /// The last pass, for as long as anything of it is under way.
    pass: Span,
    /// How long it took.
    took: Duration,
    /// When the inbox is looked into next.
    looks_at: Instant,
    /// When what the cluster holds is counted next.
    counts_at: Instant,
    unready_since: Option<Timestamp>,
    stop_by: Option<Timestamp>,
}

impl EngineLoop {
    async fn run(mut self, cluster: Arc<Cluster>, catalog: Arc<Catalog>) {
        self.take(Event::CatalogChanged(catalog));
        self.take(Event::ConfigChanged(cluster));
        let view = self.seat.view.take();
        self.take(Event::FleetChanged(view));
        let hands = self.hands.clone();
        loop {
            self.front.beat();
            self.heed_clocks();
            self.ring();
            self.give_out();
            self.show();
            if self.has_stopped() {
                return;
            }
            let pause = self.looks_at.duration_since(clock::monotonic());
            let wait = match pause {
                Duration::ZERO => self.wait(),
                pause => self.wait().min(pause),
            };
            tokio::select! {
                event = self.inbox.recv(), if pause.is_zero() => match event {
                    Some(event) => self.take_all(event),
                    None => return,
                },
                Some(answered) = self.calls.join_next() => self.answered(answered),
                Some(question) = self.questions.recv() => {
                    // Whoever has told it something asks about what it makes of that.
                    self.take_waiting(INBOX);
                    question(&self.engine, self.clock.now());
                }
                Some(event) = self.seat.news() => self.take(event),
                () = sleep(wait) => {}
                () = hands.watches.broken() => {
                    tracing::error!(cluster = %hands.cluster, "a watch has panicked");
                    return;
                }
                stopping = self.stopping.changed(), if self.stop_by.is_none() => {
                    if stopping.is_err() || *self.stopping.borrow() {
                        self.begin_to_stop();
                    }
                }
            }
        }
    }

    /// From here on nothing is given out, and only the answers under way are waited for.
    fn begin_to_stop(&mut self) {
        let limit = SignedDuration::try_from(STOP).unwrap_or_default();
        self.stop_by = self.clock.now().checked_add(limit).ok();
    }

    /// Ends the engine if the time of day was set, and tells it when another clock begins to differ
    /// or agrees again.
    fn heed_clocks(&mut self) {
        if self.stop_by.is_some() {
            return;
        }
        let set_by = self.clock.set_by();
        if set_by.abs() > CLOCK_SET {
            let seconds = set_by.as_secs();
            tracing::warn!(
                cluster = %self.hands.cluster, seconds,
                "the clock of this host was set: the engine begins anew"
            );
            self.clock_set.send_replace(true);
            self.begin_to_stop();
            return;
        }
        let skews = self.hands.clock_skews();
        let before = fault(std::mem::replace(&mut self.clock_skews, skews));
        let now = fault(skews);
        if before == now {
            return;
        }
        let cluster = &self.hands.cluster;
        match (before, now) {
            (None, Some(skew)) => tracing::error!(
                %cluster, code = "clock-differs", %skew,
                "nothing voluntary is done until the clocks agree"
            ),
            (Some(_), None) => tracing::info!(%cluster, "the clocks agree again"),
            _ => {}
        }
        self.take(Event::ClockSkewed(now));
    }

    /// Rings the alarm where it is due.
    fn ring(&mut self) {
        let now = self.clock.now();
        let due = self.engine.poll_timeout().is_some_and(|(at, _)| at <= now);
        if due && self.stop_by.is_none() {
            self.take(Event::Timeout);
        }
    }

    fn take(&mut self, event: Event) {
        if let Event::ConfigChanged(cluster) = &event {
            self.concurrency = cluster.api.concurrency.max(1) as usize;
            self.managed = cluster.mode == ManagementMode::Manage;
            let heralds = self.managed && cluster.events;
            self.herald = heralds.then(|| {
                let known = self.herald.take();
                known.unwrap_or_else(|| EventRecorder::start(&cluster.name, &self.hands.connection))
            });
        }
        let passes = matches!(event, Event::Timeout);
        let mut decides = Span::none();
        if passes {
            self.pass = otlp::pass(&self.hands.cluster);
            decides = otlp::decide(&self.pass);
        }
        let began = Stopwatch::start();
        decides.in_scope(|| self.engine.handle(event, self.clock.now()));
        if passes {
            self.took = began.elapsed();
            telemetry::pass(&self.hands.cluster, self.took);
        }
    }

    /// Takes an event and those that wait behind it.
    fn take_all(&mut self, event: Event) {
        self.looks_at = clock::monotonic() + LOOK;
        self.take(event);
        self.take_waiting(BATCH - 1);
    }

    /// Takes events that wait, so many at most.
    fn take_waiting(&mut self, most: usize) {
        for _ in 0..most {
            match self.inbox.try_recv() {
                Ok(event) => self.take(event),
                Err(_) => return,
            }
        }
    }

    fn answered(&mut self, answered: Result<(CommandId, CommandResult), JoinError>) {
        // Only a runtime that shuts down cancels a call; the engine is not there for long either.
        if let Ok((id, answer)) = answered {
            self.take(Event::Answered(id, answer));
        }
    }

    /// Hands commands out while there are free hands.
    fn give_out(&mut self) {
        // The driver may have been told to stop while the engine made a long pass.
        let stops = self.stop_by.is_some() || *self.stopping.borrow();
        while !stops && self.calls.len() < self.concurrency {
            let Some(issued) = self.engine.next_command() else {
                return;
            };
            let not_after = self.engine.not_after(&issued.command, self.clock.now());
            let not_after = Moment::now().plus(self.clock.until(not_after));
            if issued.command.is_for_fleet() {
                self.ask_fleet(issued);
            } else {
                let span = otlp::command(&self.pass, issued.command.name());
                let call = self.hands.clone().execute(issued, not_after);
                self.calls.spawn(call.instrument(span));
            }
        }
    }

    /// Asks the fleet, which takes what it is asked in the order of the commands.
    fn ask_fleet(&mut self, issued: IssuedCommand) {
        let (id, name) = (issued.id, issued.command.name());
        let answer = fleet_task::answered(self.seat.ask(issued));
        let cluster = self.hands.cluster.clone();
        let began = Stopwatch::start();
        self.calls.spawn(async move {
            let late = |_| CommandResult::Failed {
                kind: FailureKind::Unknown,
                text: format!("{name}: no answer within {COMMAND:?}"),
            };
            let answer = timeout(COMMAND, answer).await.unwrap_or_else(late);
            telemetry::command(&cluster, name, &answer, began.elapsed());
            (id, answer)
        });
    }

    /// Writes the log, and shows how the cluster is doing.
    fn show(&mut self) {
        let pass = self.pass.clone();
        let _within = pass.enter();
        if self.calls.is_empty() {
            self.pass = Span::none();
        }
        while let Some(report) = self.engine.next_report() {
            telemetry::report(&self.hands.cluster, self.managed, &report);
            if matches!(report, Report::Planned { .. }) {
                telemetry::planned(&self.hands.cluster, self.took);
            }
            self.front.note(&report, self.managed, self.clock.now());
            if let Some(herald) = &self.herald {
                let notices = self.engine.notices(&report);
                notices.into_iter().for_each(|own| herald.tell(own));
            }
        }
        let ready = self.engine.is_ready();
        let now = self.clock.now();
        self.unready_since = if ready {
            None
        } else {
            self.unready_since.or(Some(now))
        };
        let waited = self.unready_since.map(|since| now.duration_since(since));
        let standing = match waited {
            None => ClusterHealth::Ready,
            Some(waited) if waited > PATIENCE => ClusterHealth::Degraded,
            Some(_) => ClusterHealth::Unready,
        };
        self.front.show(standing, self.engine.undone());
        let state = self.engine.state();
        self.front.sync(Sync {
            unready_since: self.unready_since,
            seen_least: state.views.seen_least(state.cluster.kinds()),
            clock_skews: self.clock_skews,
        });
        // Before all is known, and while another host may lead, nothing is better than half.
        let counts = ready && self.stop_by.is_none();
        if counts && self.counts_at <= clock::monotonic() {
            self.counts_at = clock::monotonic() + COUNT;
            let samples = telemetry::samples(&self.hands.cluster, &self.engine, self.managed);
            self.front.count(samples);
        }
    }

    /// Who only observes need not know what becomes of its calls: they change nothing.
    fn has_stopped(&self) -> bool {
        let late = |by: Timestamp| self.clock.now() >= by;
        self.stop_by
            .is_some_and(|by| !self.managed || self.calls.is_empty() || late(by))
    }

    /// How long nothing need be done unless something happens.
    fn wait(&self) -> Duration {
        let alarm = self.engine.poll_timeout().map(|(at, _)| at);
        let stop_by = self.stop_by;
        let next = if stop_by.is_some() { stop_by } else { alarm };
        let next = next.map_or(IDLE, |at| self.clock.until(at));
        let counts = self.counts_at.duration_since(clock::monotonic());
        // A count that is overdue waits for the cluster to be ready.
        let counts = if counts.is_zero() { IDLE } else { counts };
        next.min(counts).clamp(PAUSE, IDLE)
    }
}
