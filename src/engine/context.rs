//! State that all controllers of the engine share, and the outbox of commands and reports.
//!
//! A controller owns the state of one concern. A function takes the context and the controllers
//! that it reads or changes, so that its signature shows what it can affect.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::Backoff;
use crate::engine::batcher::PodBatcher;
use crate::engine::command::{Command, CommandId, CommandLane, IssuedCommand};
use crate::engine::in_flight::{ANSWER_MAX, ClaimProgress, CommandPurpose, InFlightCommand};
use crate::engine::placements::Placements;
use crate::engine::report::Report;
use crate::engine::safeguard_state::Safeguards;
use crate::engine::static_pools::StaticSchedule;
use crate::engine::sweep_result::SweepRun;
use crate::engine::sync_state::{SyncPhase, SyncState};
use crate::engine::wave_queue::Waves;
use crate::model::cluster::ManagementMode;
use crate::model::id::{ClaimId, PodKey};
use crate::model::sweep::SweepKind;
use crate::provider::FailureKind;
use crate::state::State;

/// One pass handles all events within this time, so that a thousand bound or nominated pods do
/// not cause a thousand passes.
const SETTLE: SignedDuration = SignedDuration::from_millis(100);

/// Added to [`SETTLE`] for each pending pod and each pod of a later wave, because a pass examines
/// each of them several times. The sum is at most [`SETTLE_MAX`].
const SETTLE_EACH: SignedDuration = SignedDuration::from_micros(200);
const SETTLE_MAX: SignedDuration = SignedDuration::from_millis(500);

/// State that all controllers share.
#[derive(Debug)]
pub(super) struct Context {
    /// Configuration, objects of the cluster, claims and catalog.
    pub(super) state: State,
    /// Source of claim ids and jitter.
    pub(super) rng: Rng,
    /// Commands and reports that the engine sends.
    pub(super) outbox: Outbox,
    /// Steps, retries and drains of claims.
    pub(super) progress: BTreeMap<ClaimId, ClaimProgress>,
    /// Whether the cluster state is complete, and what is missing.
    pub(super) sync: SyncState,
    /// Planned placements of reschedulable pods.
    pub(super) placements: Placements,
    /// Waves of evictions.
    pub(super) waves: Waves,
    /// Batch window for pending pods.
    pub(super) batcher: PodBatcher,
    /// When static pools and buffers are planned.
    pub(super) static_schedule: StaticSchedule,
    /// Limits on changes and on terminations without a drain.
    pub(super) safeguards: Safeguards,
    /// Results of requested sweeps.
    pub(super) sweep_runs: BTreeMap<SweepKind, SweepRun>,
    /// Retries of the launches for pods, which continue with the next claim of a pod.
    pub(super) launch_retries: BTreeMap<PodKey, Backoff>,
    /// True if anything has happened since the last full pass.
    pub(super) changed: bool,
}

impl Context {
    /// Returns an empty state. `seed` determines claim ids and jitter.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            state: State::default(),
            rng: Rng::with_seed(seed),
            outbox: Outbox::default(),
            progress: BTreeMap::new(),
            sync: SyncState::default(),
            placements: Placements::default(),
            waves: Waves::default(),
            batcher: PodBatcher::default(),
            static_schedule: StaticSchedule::default(),
            safeguards: Safeguards::default(),
            sweep_runs: BTreeMap::new(),
            launch_retries: BTreeMap::new(),
            changed: true,
        }
    }

    /// Returns whether every watch is in sync and two instance listings agree. Only then does the
    /// engine decide anything.
    pub(super) fn is_ready(&self) -> bool {
        self.sync.phase == SyncPhase::Ready
    }

    /// Returns the time of the pass that handles the current event.
    pub(super) fn next_pass_at(&self, now: Timestamp) -> Timestamp {
        let pods = self.state.objects.waiting_pods().len() + self.waves.queued_pods();
        let pods = i32::try_from(pods).unwrap_or(i32::MAX);
        let each = SETTLE_EACH.checked_mul(pods).unwrap_or(SETTLE_MAX);
        let settle = SETTLE.checked_add(each).unwrap_or(SETTLE_MAX);
        now.checked_add(settle.min(SETTLE_MAX)).unwrap_or(now)
    }

    /// Returns whether the engine may change anything: the cluster is not only observed.
    pub(super) fn is_managing(&self) -> bool {
        self.state.cluster.mode == ManagementMode::Manage
    }
}

/// Queued commands and reports, the commands in flight, and the next wake-up.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Commands to send, in order.
    pub(super) commands: VecDeque<IssuedCommand>,
    /// Reports for logs and metrics, in order.
    pub(super) reports: VecDeque<Report>,
    /// The last command ID.
    pub(super) last_command: u64,
    /// When the engine received its last event. Commands are taken right after events.
    pub(super) now: Timestamp,
    /// Commands without a result, queued or sent.
    pub(super) in_flight: BTreeMap<CommandId, InFlightCommand>,
    /// Commands that count as failed without a result. `Engine::handle_failed_commands` handles
    /// them.
    pub(super) failed: Vec<FailedCommand>,
    /// When the next pass runs, and why.
    pub(super) wake: Option<(Timestamp, &'static str)>,
}

/// A command that counts as failed without a result: it was cancelled in the queue, or its result
/// is overdue.
#[derive(Debug)]
pub(super) struct FailedCommand {
    pub(super) id: CommandId,
    pub(super) kind: FailureKind,
    pub(super) text: String,
}

impl Outbox {
    /// Schedules the next wake-up of the engine for `at`, unless it is scheduled earlier. `None`
    /// does nothing.
    pub(super) fn wake_at(&mut self, at: impl Into<Option<Timestamp>>, why: &'static str) {
        if let Some(at) = at.into()
            && self.wake.is_none_or(|(current, _)| at < current)
        {
            self.wake = Some((at, why));
        }
    }

    /// Returns whether a time is in the future. If so, the engine is woken at that time.
    pub(super) fn waits_until(
        &mut self,
        at: impl Into<Option<Timestamp>>,
        why: &'static str,
        now: Timestamp,
    ) -> bool {
        let at = at.into().filter(|at| *at > now);
        self.wake_at(at, why);
        at.is_some()
    }

    /// Adds a report.
    pub(super) fn push_report(&mut self, report: Report) {
        self.reports.push_back(report);
    }

    /// Removes the matching commands that are still in the queue, and returns their purposes. The
    /// caller treats each one as failed.
    pub(super) fn withdraw_queued(
        &mut self,
        which: impl Fn(&Command, &CommandPurpose) -> bool,
    ) -> Vec<(CommandId, CommandPurpose)> {
        let in_flight = &self.in_flight;
        let queued = std::mem::take(&mut self.commands).into_iter();
        let (withdrawn, kept): (VecDeque<_>, VecDeque<_>) = queued.partition(|issued| {
            in_flight.get(&issued.id).is_some_and(|sent| which(&issued.command, &sent.kind))
        });
        self.commands = kept;
        withdrawn
            .into_iter()
            .filter_map(|issued| Some((issued.id, self.in_flight.remove(&issued.id)?.kind)))
            .collect()
    }

    /// Cancels the matching commands that are still in the queue. Each cancelled command counts as
    /// failed.
    pub(super) fn cancel_queued(&mut self, why: &str, which: impl Fn(&Command) -> bool) {
        let (cancelled, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.commands)
            .into_iter()
            .partition(|issued| which(&issued.command));
        self.commands = kept;
        self.failed.extend(cancelled.into_iter().map(|issued| FailedCommand {
            id: issued.id,
            kind: FailureKind::Withdrawn,
            text: why.to_owned(),
        }));
    }

    /// Marks overdue commands as failed. The outcome of a command that was taken is unknown.
    pub(super) fn fail_overdue(&mut self, now: Timestamp) {
        let late = self.in_flight.iter().filter(|(_, in_flight)| in_flight.is_late(now));
        let late: BTreeMap<CommandId, bool> = late.map(|(id, it)| (*id, it.is_taken)).collect();
        // A queued command must not be sent later, when the engine may have decided differently.
        self.commands.retain(|command| !late.contains_key(&command.id));
        self.failed.extend(late.into_iter().map(|(id, is_taken)| FailedCommand {
            id,
            kind: if is_taken { FailureKind::Unknown } else { FailureKind::Withdrawn },
            text: format!("no answer within {ANSWER_MAX:#}"),
        }));
    }

    /// Takes the first queued command of these lanes, with the time that it was queued. Its answer
    /// is due from now on.
    pub(super) fn take_command(
        &mut self,
        lanes: impl Fn(CommandLane) -> bool,
    ) -> Option<(IssuedCommand, SignedDuration)> {
        let index = self.commands.iter().position(|queued| lanes(queued.command.lane()))?;
        let issued = self.commands.remove(index)?;
        let mut queued = SignedDuration::ZERO;
        if let Some(in_flight) = self.in_flight.get_mut(&issued.id) {
            queued = self.now.duration_since(in_flight.since);
            (in_flight.since, in_flight.is_taken) = (self.now, true);
        }
        Some((issued, queued))
    }

    /// Queues a command. If the command changes anything, the caller has checked that the cluster
    /// is managed.
    pub(super) fn queue_command(
        &mut self,
        command: Command,
        kind: CommandPurpose,
        now: Timestamp,
    ) -> CommandId {
        self.last_command += 1;
        let id = CommandId(self.last_command);
        let (name, since) = (command.name(), now);
        self.in_flight.insert(id, InFlightCommand { kind, name, since, is_taken: false });
        // Nominations are sent last: there may be thousands.
        let index = match command {
            Command::Nominate { .. } => self.commands.len(),
            Command::CreateNode(_) | Command::Bind { .. } => {
                self.commands.partition_point(|command| command.command.binds_early())
            }
            _ => self.commands.len() - self.pending_nominations(),
        };
        self.commands.insert(index, IssuedCommand { id, command });
        id
    }

    /// Returns the number of queued nominations. Nominations are at the end of the queue.
    pub(super) fn pending_nominations(&self) -> usize {
        let others = |queued: &IssuedCommand| !matches!(queued.command, Command::Nominate { .. });
        self.commands.len() - self.commands.partition_point(others)
    }
}
