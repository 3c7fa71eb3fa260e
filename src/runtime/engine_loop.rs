//! Runs one engine on its own thread: events in, commands out, and a timer.

// Limits of concurrent commands.
mod lane_limits;
// Engines of earlier leader terms.
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
use crate::engine::command::{Command, CommandId, CommandLane, IssuedCommand};
use crate::engine::event::Event;
use crate::engine::report::Report;
use crate::engine::views::kube_events::events_for;
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
use crate::provider::CommandResult;
use crate::providers::interface::Provider;
use crate::runtime::cluster_handle::{ClusterHandle, EngineChannel, EngineQuery, PATIENCE};
use crate::runtime::cluster_health::ClusterHealth;
use crate::runtime::engine_loop::lane_limits::LaneLimits;
use crate::runtime::fleet_task::{self, FleetClient, unknown_outcome};
use crate::telemetry::cluster_collector::Sync;
use crate::telemetry::{otlp, record, report_metrics};

/// Capacity of the event channel. Watches wait when the channel is full.
const INBOX: usize = 1024;
/// Capacity of the query channel. Callers wait when the channel is full.
const QUESTIONS: usize = 4;
/// Maximum number of events that the engine processes before it returns commands.
const BATCH: usize = 512;
/// Minimum interval between reads of the event channel. Otherwise each of hundreds of pod events
/// would wake the thread.
const LOOK: Duration = Duration::from_millis(10);
/// How long a stopping engine waits for commands in flight.
const STOP: Duration = Duration::from_secs(30);
/// Additional time for the thread of a stopping engine, which may have to complete one pass.
const GRACE: Duration = Duration::from_secs(5);
/// Minimum timer interval, so that an engine cannot keep its thread busy.
const PAUSE: Duration = Duration::from_millis(1);
/// Interval of status updates while no timer of the engine is due earlier.
const IDLE: Duration = Duration::from_secs(10);
/// Interval at which the metrics samples of the cluster are updated.
const COUNT: Duration = Duration::from_secs(10);
/// If a user or NTP sets the clock by more than this, the engine restarts. Otherwise, the engine
/// would compare times from before and after the change, which come from different clocks.
const CLOCK_SET: SignedDuration = SKEW_MAX;
/// A command that has no result after this time fails. Each provider and the Kubernetes client have
/// shorter timeouts.
const COMMAND: Duration = Duration::from_secs(90);

/// The parts that run a cluster.
#[derive(Clone)]
pub(crate) struct EngineDeps {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) connection: Connection,
    pub(crate) provider: Arc<dyn Provider>,
    /// Reads the clocks: `Moment::now` except in tests.
    pub(crate) read_clocks: fn() -> Moment,
}

/// A running engine.
pub(crate) struct EngineThread {
    name: ClusterName,
    events: mpsc::Sender<Event>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<()>,
    clock_set: watch::Receiver<bool>,
}

impl EngineThread {
    /// Starts watches and the engine for one leadership term of this host. Commands of other terms
    /// are not sent.
    pub(crate) fn start(
        parts: EngineDeps,
        term: u64,
        fleet_client: FleetClient,
        handle: Arc<ClusterHandle>,
    ) -> std::io::Result<Self> {
        let connection = parts.connection.limited_to_term(term);
        let (events, inbox) = mpsc::channel(INBOX);
        let (ask, questions) = mpsc::channel(QUESTIONS);
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = watch::channel(());
        let (tell_clock_set, clock_set) = watch::channel(false);
        let clock = SteadyClock::start(parts.read_clocks);
        let name = parts.cluster.name.clone();
        let watches = watching::start_watches(&parts.cluster, &connection, &events);
        let runtime = Handle::current();
        handle.set_engine(Some(EngineChannel { events: events.clone(), questions: ask }));
        let mut engine = Engine::new(clock::random_seed());
        if handle.is_mismatched() {
            engine.report_first_match();
        }
        let lanes = LaneLimits::new(parts.provider.launches_per_call(), &parts.cluster);
        let engine_loop = EngineLoop {
            engine,
            clock,
            clock_set: tell_clock_set,
            clock_skews: [None; 2],
            executor: Arc::new(CommandExecutor {
                cluster: name.clone(),
                connection,
                provider: parts.provider,
                provider_name: provider_name(&parts.cluster),
                watches,
            }),
            event_recorder: None,
            front: handle,
            inbox,
            questions,
            fleet_client,
            stopping,
            calls: JoinSet::new(),
            lanes,
            managed: false,
            pass: Span::none(),
            took: Duration::ZERO,
            looks_at: clock::monotonic_now(),
            counts_at: clock::monotonic_now(),
            unready_since: Some(clock.now()),
            stop_by: None,
        };
        let (cluster, catalog) = (parts.cluster, parts.catalog);
        thread::Builder::new().name(format!("engine {name}")).spawn(move || {
            // This sender is dropped when the engine stops, even if it stops because of a panic.
            let _end = end;
            runtime.block_on(engine_loop.run(cluster, catalog));
        })?;
        Ok(Self { name, events, stop, ended, clock_set })
    }

    /// Sends an event to the engine. Returns false if the engine has stopped or does not accept it
    /// in time.
    pub(crate) async fn send_event(&self, event: Event) -> bool {
        matches!(timeout(STOP, self.events.send(event)).await, Ok(Ok(())))
    }

    /// The event channel of the engine.
    pub(crate) fn event_channel(&self) -> mpsc::Sender<Event> {
        self.events.clone()
    }

    /// Waits until the engine has stopped, either on request or because of a panic.
    pub(crate) async fn wait_until_ended(&self) {
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }

    /// Waits until the engine stops because the clock was set.
    pub(crate) async fn clock_set(&self) {
        let mut clock_set = self.clock_set.clone();
        if clock_set.wait_for(|is_set| *is_set).await.is_err() {
            // The engine has stopped for a different reason.
            std::future::pending().await
        }
    }

    /// Starts no more commands, waits for commands in flight, and stops.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        if timeout(STOP + GRACE, self.wait_until_ended()).await.is_err() {
            tracing::warn!(cluster = %self.name, "engine does not stop");
        }
    }
}

/// Executes commands.
struct CommandExecutor {
    cluster: ClusterName,
    connection: Connection,
    provider: Arc<dyn Provider>,
    /// The name of the provider in metrics.
    provider_name: &'static str,
    watches: ClusterWatches,
}

impl CommandExecutor {
    /// Executes a command. Returns a result even if the execution panics.
    async fn execute(
        self: Arc<Self>,
        issued: IssuedCommand,
        not_after: Moment,
    ) -> (CommandId, CommandResult) {
        let name = issued.command.name();
        let began = Stopwatch::start();
        let call = self.execute_fenced(issued.command, not_after);
        let call = AssertUnwindSafe(call).catch_unwind();
        let answer = match timeout(COMMAND, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => unknown_outcome(format!("{name}: panicked")),
            Err(_) => unknown_outcome(format!("{name}: no response within {COMMAND:?}")),
        };
        let took = began.elapsed();
        let outcome = record::record_command(&self.cluster, name, &answer, took);
        Span::current().record("outcome", outcome);
        (issued.id, answer)
    }

    /// Commands that change something are sent only until their deadline and only while this host
    /// is the leader in the same term.
    async fn execute_fenced(&self, command: Command, not_after: Moment) -> CommandResult {
        if !command.is_change() {
            return self.dispatch(command).await;
        }
        let fence = self.connection.fence.with_deadline(not_after);
        let call = fence::run_fenced([fence.clone()], self.dispatch(command));
        let done = fence.run_guarded(call).await.flatten();
        done.unwrap_or_else(|fenced| unknown_outcome(fenced.to_string()))
    }

    /// Clock skews between this host, the API server and the provider, measured from responses.
    fn clock_skews(&self) -> [Option<ClockSkew>; 2] {
        [
            (ClockPeer::ApiServer, self.connection.skew.clock_ahead()),
            (ClockPeer::Aws, self.provider.clock_ahead()),
        ]
        .map(|(peer, ahead)| {
            // The skew has whole seconds, because fractions of a second vary between responses.
            let ahead = SignedDuration::from_secs(ahead?.as_secs());
            Some(ClockSkew { peer, ahead })
        })
    }

    /// Calls the provider and records the call. A call that the fence refuses is not made.
    async fn call_provider(&self, command: Command) -> CommandResult {
        let (name, began) = (command.name(), Stopwatch::start());
        let answer = self.provider.execute(command).await;
        let took = began.elapsed();
        record::record_provider_call(&self.cluster, self.provider_name, name, &answer, took);
        answer
    }

    async fn dispatch(&self, command: Command) -> CommandResult {
        match command {
            Command::Launch(_)
            | Command::Terminate { .. }
            | Command::Tag { .. }
            | Command::Adopt(_)
            | Command::SaveDiscoveredMemory { .. }
            | Command::ListInstances => self.call_provider(command).await,
            Command::Rewatch { kind } => {
                self.watches.restart_watch(kind);
                CommandResult::Done
            }
            Command::CreateNode(_)
            | Command::Bind { .. }
            | Command::DeletePod { .. }
            | Command::PatchNode(_)
            | Command::DeleteNode { .. }
            | Command::Evict { .. }
            | Command::Nominate { .. }
            | Command::ClearNomination { .. }
            | Command::ListPodsOn { .. }
            | Command::ListAttachments { .. }
            | Command::Probe { .. }
            | Command::ReadLease
            | Command::PatchLease(_)
            | Command::PatchBuffer(_)
            | Command::RequestGrant(_)
            | Command::RequestDisruption { .. }
            | Command::ReportDisruptions(_)
            | Command::ReportUsage { .. }
            | Command::MarkUnavailable { .. } => commands::execute(&self.connection, command).await,
        }
    }
}

/// Returns the name in metrics of a cluster's provider, which for EC2 is Karpenter's name. Empty if
/// the provider has no name.
fn provider_name(cluster: &Cluster) -> &'static str {
    if cluster.exec.is_some() {
        "exec"
    } else if cluster.simulated.is_some() {
        "simulated"
    } else if cluster.region.is_empty() || cluster.node_classes.is_empty() {
        ""
    } else {
        "aws"
    }
}

/// The largest clock skew that is an error. `None` if no clock skew is an error.
fn largest_fault(skews: [Option<ClockSkew>; 2]) -> Option<ClockSkew> {
    let faults = skews.into_iter().flatten().filter(ClockSkew::is_fault);
    faults.max_by_key(|fault| fault.ahead.abs())
}

/// The state of a running engine.
struct EngineLoop {
    engine: Engine,
    /// The clocks of the engine.
    clock: SteadyClock,
    clock_set: watch::Sender<bool>,
    /// The clock skews at the last check.
    clock_skews: [Option<ClockSkew>; 2],
    executor: Arc<CommandExecutor>,
    /// Writes Kubernetes Events, if enabled.
    event_recorder: Option<EventRecorder>,
    front: Arc<ClusterHandle>,
    inbox: mpsc::Receiver<Event>,
    questions: mpsc::Receiver<EngineQuery>,
    /// The client with which the engine sends requests to the fleet.
    fleet_client: FleetClient,
    stopping: watch::Receiver<bool>,
    calls: JoinSet<(CommandLane, (CommandId, CommandResult))>,
    lanes: LaneLimits,
    managed: bool,
    /// The span of the last pass, while any of its commands is in flight.
    pass: Span,
    /// The duration of the last pass.
    took: Duration,
    /// When the event channel is read next.
    looks_at: Instant,
    /// When the metrics samples are updated next.
    counts_at: Instant,
    unready_since: Option<Timestamp>,
    stop_by: Option<Timestamp>,
}

impl EngineLoop {
    async fn run(mut self, cluster: Arc<Cluster>, catalog: Arc<Catalog>) {
        self.handle_event(Event::CatalogChanged(catalog));
        self.handle_event(Event::ConfigChanged(cluster));
        let view = self.fleet_client.view.take();
        self.handle_event(Event::FleetChanged(view));
        let executor = self.executor.clone();
        loop {
            self.front.record_activity();
            self.check_clocks();
            self.call_if_due();
            self.start_commands();
            self.update_status();
            if self.has_stopped() {
                return;
            }
            let pause = self.looks_at.duration_since(clock::monotonic_now());
            let wait = match pause {
                Duration::ZERO => self.time_to_next_timer(),
                pause => self.time_to_next_timer().min(pause),
            };
            tokio::select! {
                event = self.inbox.recv(), if pause.is_zero() => match event {
                    Some(event) => self.take_all(event),
                    None => return,
                },
                Some(answered) = self.calls.join_next() => self.on_command_result(answered),
                Some(question) = self.questions.recv() => {
                    // Process pending events first, so that a query sees their effect.
                    self.take_waiting(INBOX);
                    question(&self.engine, self.clock.now());
                }
                Some(event) = self.fleet_client.next_event() => self.handle_event(event),
                () = sleep(wait) => {}
                () = executor.watches.wait_for_panic() => {
                    tracing::error!(cluster = %executor.cluster, "watch panicked");
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

    /// Starts no more commands and waits only for commands in flight.
    fn begin_to_stop(&mut self) {
        let limit = SignedDuration::try_from(STOP).unwrap_or_default();
        self.stop_by = self.clock.now().checked_add(limit).ok();
    }

    /// Stops the engine if the clock was set. Reports to the engine when a clock skew begins or
    /// ends.
    fn check_clocks(&mut self) {
        if self.stop_by.is_some() {
            return;
        }
        let set_by = self.clock.wall_clock_shift();
        if set_by.abs() > CLOCK_SET {
            let seconds = set_by.as_secs();
            tracing::warn!(
                cluster = %self.executor.cluster, seconds,
                "clock of this host was set, restarting the engine"
            );
            self.clock_set.send_replace(true);
            self.begin_to_stop();
            return;
        }
        let skews = self.executor.clock_skews();
        let before = largest_fault(std::mem::replace(&mut self.clock_skews, skews));
        let now = largest_fault(skews);
        if before == now {
            return;
        }
        let cluster = &self.executor.cluster;
        match (before, now) {
            (None, Some(skew)) => tracing::error!(
                %cluster, code = "clock-differs", %skew,
                "clocks differ, suspending decisions"
            ),
            (Some(_), None) => tracing::info!(%cluster, "clocks agree, resuming decisions"),
            _ => {}
        }
        self.handle_event(Event::ClockSkewed(now));
    }

    /// Calls the engine if its timer is due.
    fn call_if_due(&mut self) {
        let now = self.clock.now();
        let due = self.engine.poll_timeout().is_some_and(|(at, _)| at <= now);
        if due && self.stop_by.is_none() {
            self.handle_event(Event::Timeout);
        }
    }

    fn handle_event(&mut self, event: Event) {
        if let Event::ConfigChanged(cluster) = &event {
            self.lanes.configure(cluster);
            self.managed = cluster.mode == ManagementMode::Manage;
            let heralds = self.managed && cluster.events;
            self.event_recorder = heralds.then(|| {
                let recorder = self.event_recorder.take();
                recorder.unwrap_or_else(|| {
                    EventRecorder::start(&cluster.name, &self.executor.connection)
                })
            });
        }
        let passes = matches!(event, Event::Timeout | Event::RegularPass);
        let mut decides = Span::none();
        if passes {
            self.pass = otlp::pass_span(&self.executor.cluster);
            decides = otlp::decision_span(&self.pass);
        }
        let began = Stopwatch::start();
        decides.in_scope(|| self.engine.handle_event(event, self.clock.now()));
        if passes {
            self.took = began.elapsed();
            report_metrics::record_pass(&self.executor.cluster, self.took);
        }
    }

    /// Processes an event and further pending events.
    fn take_all(&mut self, event: Event) {
        self.looks_at = clock::monotonic_now() + LOOK;
        self.handle_event(event);
        self.take_waiting(BATCH - 1);
    }

    /// Processes pending events, up to a maximum.
    fn take_waiting(&mut self, limit: usize) {
        for _ in 0..limit {
            match self.inbox.try_recv() {
                Ok(event) => self.handle_event(event),
                Err(_) => return,
            }
        }
    }

    fn on_command_result(
        &mut self,
        answered: Result<(CommandLane, (CommandId, CommandResult)), JoinError>,
    ) {
        // A call is cancelled only when the runtime shuts down, which also stops the engine.
        if let Ok((lane, (id, answer))) = answered {
            self.lanes.end_call(lane);
            self.handle_event(Event::Answered(id, answer));
        }
    }

    /// Starts queued commands, up to the maximum number of concurrent calls of each lane.
    fn start_commands(&mut self) {
        while let Some(issued) = self.next_command() {
            let lane = issued.command.lane();
            self.lanes.begin_call(lane);
            let not_after = self.engine.latest_send_time(&issued.command, self.clock.now());
            let not_after = Moment::now().plus(self.clock.time_until(not_after));
            if issued.command.is_for_fleet() {
                self.send_to_fleet(issued);
            } else {
                let span = otlp::command_span(&self.pass, issued.command.name());
                let call = self.executor.clone().execute(issued, not_after);
                self.calls.spawn(call.map(move |answer| (lane, answer)).instrument(span));
            }
        }
    }

    /// Returns the next command of a lane with room for another call, unless the engine stops.
    fn next_command(&mut self) -> Option<IssuedCommand> {
        // A stop may have been requested during a long pass.
        if self.stop_by.is_some() || *self.stopping.borrow() {
            return None;
        }
        self.engine.next_command_in(|lane| self.lanes.has_room(lane))
    }

    /// Sends a command to the fleet, which processes commands in order.
    fn send_to_fleet(&mut self, issued: IssuedCommand) {
        let (id, name, lane) = (issued.id, issued.command.name(), issued.command.lane());
        let answer = fleet_task::wait_for_result(self.fleet_client.send_command(issued));
        let cluster = self.executor.cluster.clone();
        let began = Stopwatch::start();
        self.calls.spawn(async move {
            let answer = timeout(COMMAND, answer).await.unwrap_or_else(|_| {
                unknown_outcome(format!("{name}: no response within {COMMAND:?}"))
            });
            record::record_command(&cluster, name, &answer, began.elapsed());
            (lane, (id, answer))
        });
    }

    /// Writes reports to the log and updates the status of the cluster.
    fn update_status(&mut self) {
        let pass = self.pass.clone();
        let _within = pass.enter();
        if self.calls.is_empty() {
            self.pass = Span::none();
        }
        while let Some(report) = self.engine.next_report() {
            let described = report.describe(self.managed);
            record::record_report(&self.executor.cluster, &report, &described);
            match &report {
                Report::Planned { .. } => {
                    report_metrics::record_planned_pass(&self.executor.cluster, self.took);
                }
                Report::Mismatch(_) => self.front.set_mismatched(true),
                Report::Matches => self.front.set_mismatched(false),
                _ => {}
            }
            self.front.log_report(&described, self.clock.now());
            if let Some(event_recorder) = &self.event_recorder {
                let notices = events_for(self.engine.state(), &described);
                notices.into_iter().for_each(|notice| event_recorder.queue_event(notice));
            }
        }
        let ready = self.engine.is_ready();
        let now = self.clock.now();
        self.unready_since = if ready { None } else { self.unready_since.or(Some(now)) };
        let waited = self.unready_since.map(|since| now.duration_since(since));
        let standing = match waited {
            None => ClusterHealth::Ready,
            Some(waited) if waited > PATIENCE => ClusterHealth::Degraded,
            Some(_) => ClusterHealth::Unready,
        };
        self.front.set_health(standing, self.engine.disabled_features());
        self.front.set_next_sweeps(self.engine.next_sweeps());
        let state = self.engine.state();
        self.front.set_sync(Sync {
            unready_since: self.unready_since,
            oldest_activity: state.views.oldest_activity(state.cluster.watched_kinds()),
            clock_skews: self.clock_skews,
        });
        // Before the state is in sync, and while another host may be the leader, an incomplete
        // status is not useful.
        let counts = ready && self.stop_by.is_none();
        if counts && self.counts_at <= clock::monotonic_now() {
            self.counts_at = clock::monotonic_now() + COUNT;
            let samples =
                record::cluster_samples(&self.executor.cluster, &self.engine, self.managed, now);
            self.front.set_samples(samples);
        }
    }

    /// Returns whether the engine has stopped. Observe mode does not wait for calls in flight.
    fn has_stopped(&self) -> bool {
        self.stop_by
            .is_some_and(|by| !self.managed || self.calls.is_empty() || self.clock.now() >= by)
    }

    /// Time until the next timer, without new events.
    fn time_to_next_timer(&self) -> Duration {
        let alarm = self.engine.poll_timeout().map(|(at, _)| at);
        let stop_by = self.stop_by;
        let next = if stop_by.is_some() { stop_by } else { alarm };
        let next = next.map_or(IDLE, |at| self.clock.time_until(at));
        let counts = self.counts_at.duration_since(clock::monotonic_now());
        // An overdue update waits until the cluster is ready.
        let counts = if counts.is_zero() { IDLE } else { counts };
        next.min(counts).clamp(PAUSE, IDLE)
    }
}
