//! The engine of one cluster: it holds the state, timers and in-flight commands, takes events and
//! returns commands. It reads no clock and does no I/O: the time is an argument of each method.
//!
//! Events are recorded and handled together by the next pass, so a thousand events cost one pass:
//!
//! ```text
//! handle(event) ─► state ─► wake ─ ─ Timeout ─► pass
//! pass: look ─► join ─► lifecycle ─► sweep ─► provision ─► consolidate
//! ```

// Exponential back-off with seeded jitter.
pub mod backoff;
// Batch window for pending pods.
pub mod batcher;
// Planning passes for static pools and buffers.
mod static_pools;
// Commands and their results.
pub mod command;
// Events that an engine receives.
pub mod event;
// Reports of decisions, for logs and metrics.
pub mod report;
// In-flight commands and claim progress.
mod in_flight;
// Replacement pods matched with planned placements.
mod replacement_pods;
// Planned placements of reschedulable pods.
mod placements;
// Savings lost to unplanned replacement nodes.
mod consolidation_feedback;
// Synchronization of the cluster state.
mod sync;
// Reads and writes of Lease annotations.
mod lease_annotations;
// Drains: taint, evict, verify, terminate.
mod drain;
// Handling of command results.
mod command_results;
// Writes of status.nominatedNodeName, and startup taints.
mod nomination;
// Pods bound before the kubelet registers.
mod early_binding;
// Registration and initialization of nodes.
mod registration;
// Requests to the fleet, and reports of usage.
mod fleet_sync;
// Interruption notices from the provider.
mod interruption;
// Memory reported by nodes.
mod discovered_capacity;
// In-place updates of labels, taints and tags.
mod in_place_update;
// Adoption of nodes launched by Karpenter.
mod adoption;
// Safeguards: cluster health, approval of large changes.
mod safeguards;
// Mismatch of API server, instances and configuration.
mod cluster_identity;
// Limit on terminations without a drain.
mod undrained_terminations;
// Launch back-off when nodes do not register.
mod registration_backoff;
// Status of CapacityBuffers.
mod buffer_status;
// One trial launch per unavailable offering.
mod offering_probe;
// Claim phases, timeouts and next steps.
mod lifecycle;
// Nodes without a claim.
mod garbage_collection;
// Removal of finalizers and taints from released nodes.
pub mod release;
// Passes: plans to claims and drains.
mod provisioning;
// When consolidation runs, and how moves start.
mod consolidation;
// Status, inventory and Kubernetes Events.
pub mod views;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::engine::adoption::AdoptionController;
use crate::engine::backoff::Denied;
use crate::engine::batcher::PodBatcher;
use crate::engine::buffer_status::BufferStatuses;
use crate::engine::cluster_identity::SameInstances;
use crate::engine::command::{Command, CommandId, CommandResult, FailureKind, IssuedCommand};
use crate::engine::consolidation::ConsolidationSchedule;
use crate::engine::consolidation_feedback::SavingsTracker;
use crate::engine::drain::waves::Waves;
use crate::engine::event::Event;
use crate::engine::fleet_sync::FleetSync;
use crate::engine::in_flight::{
    ClaimProgress, CommandPurpose, GroupKey, InFlightCommand, Looking, Nomination, OpeningGroup,
    PodAttempt,
};
use crate::engine::interruption::{PendingInterruption, UnhealthyInstance};
use crate::engine::lease_annotations::{LeaseSync, UNREAD};
use crate::engine::placements::Placements;
use crate::engine::registration_backoff::Unregistered;
use crate::engine::replacement_pods::ReplacementPods;
use crate::engine::report::Report;
use crate::engine::safeguards::SafeguardState;
use crate::engine::static_pools::StaticSchedule;
use crate::engine::undrained_terminations::Undrained;
use crate::engine::views::inventory::RetainedNodes;
use crate::model::buffer::buffer_of;
use crate::model::cluster::{Cluster, ManagementMode, PlacementHints};
use crate::model::id::{ClaimId, InstanceId, NodeName, PodKey, TypeName};
use crate::model::pool::Reason;
use crate::model::watched_object::{ObjectKind, WatchedObject};
use crate::scheduling::PoolRejection;
use crate::state::State;
use crate::state::disruption_blockers::InvalidInput;

/// Events within this time are handled by one pass: a thousand bound or nominated pods are not
/// worth a thousand passes.
const SETTLE: SignedDuration = SignedDuration::from_millis(100);

/// Added to [`SETTLE`] for each pending pod and each pod of a later wave, because a pass examines
/// each of them several times. The sum is at most [`SETTLE_MAX`].
const SETTLE_EACH: SignedDuration = SignedDuration::from_micros(200);
const SETTLE_MAX: SignedDuration = SignedDuration::from_millis(500);

/// Maximum time between two checks of the cluster state.
const IDLE: SignedDuration = SignedDuration::from_secs(30);

/// Maximum time between two full passes. It applies even if nothing has changed and nothing is due,
/// so that a lost timer cannot stop the engine.
const WHOLE: SignedDuration = SignedDuration::from_mins(10);

/// The engine of one cluster. Its input are events and their times. Its output are commands,
/// reports and the time of its next wake-up.
#[derive(Debug)]
pub struct Engine {
    state: State,
    rng: Rng,
    commands: VecDeque<IssuedCommand>,
    reports: VecDeque<Report>,
    last_command: u64,
    flights: BTreeMap<CommandId, InFlightCommand>,
    /// Commands that were cancelled in the queue and not yet handled as failed, with the reasons.
    cancelled: Vec<(CommandId, &'static str)>,
    works: BTreeMap<ClaimId, ClaimProgress>,
    looking: Looking,
    batch: PodBatcher,
    places: Placements,
    moves: SavingsTracker,
    replacements: ReplacementPods,
    waves: Waves,
    numbers: StaticSchedule,
    wake: Option<(Timestamp, &'static str)>,
    /// True if anything has happened since the last full pass.
    happened: bool,
    /// When the next full pass is due if no event arrives before.
    whole_due: Option<Timestamp>,
    /// When the next sweep of nodes is allowed, and when it is due if something has changed since
    /// the last one.
    next_sweep: Option<Timestamp>,
    sweep_due: Option<Timestamp>,
    told: BTreeMap<PodKey, Arc<[PoolRejection]>>,
    misreads: BTreeSet<InvalidInput>,
    observed_pods: BTreeSet<PodKey>,
    observed_leaving: BTreeSet<ClaimId>,
    /// Nodes that the last passes kept, with the reasons. Shown in the inventory.
    stays: RetainedNodes,
    /// Number of nodes eligible for disruption by reason, before budgets, pauses and windows.
    eligible: BTreeMap<Reason, usize>,
    orphans: BTreeMap<NodeName, garbage_collection::Orphan>,
    interrupted: BTreeMap<InstanceId, PendingInterruption>,
    failing: BTreeMap<InstanceId, UnhealthyInstance>,
    /// Nominations of pods that are still pending.
    hints: BTreeMap<PodKey, Nomination>,
    /// The smallest memory reported to the provider, by instance type and image.
    learned: BTreeMap<(TypeName, String), i64>,
    /// Groups of tainted nodes that are untainted together.
    groups: BTreeMap<GroupKey, OpeningGroup>,
    /// True if the API server denies the patch that nominates nodes.
    hints_denied: Denied,
    buffer_statuses: BufferStatuses,
    /// True if early binding is off until the next configuration change, although it is configured.
    early_off: bool,
    /// True if a pod was ever bound early.
    early_binds: bool,
    /// Pods that are being deleted because their node never registered.
    unbinding: BTreeMap<PodKey, PodAttempt>,
    sharing: FleetSync,
    noting: LeaseSync,
    weighing: ConsolidationSchedule,
    safeguard: SafeguardState,
    undrained: Undrained,
    /// Instances with more than one Node, as last reported.
    same_instances: SameInstances,
    adopting: AdoptionController,
    unregistered: Unregistered,
}

impl Engine {
    /// Returns an engine with an empty state. `seed` determines claim ids and jitter.
    pub fn new(seed: u64) -> Self {
        let mut engine = Self {
            state: State::default(),
            rng: Rng::with_seed(seed),
            commands: VecDeque::new(),
            reports: VecDeque::new(),
            last_command: 0,
            flights: BTreeMap::new(),
            cancelled: Vec::new(),
            works: BTreeMap::new(),
            looking: Looking::default(),
            batch: PodBatcher::default(),
            places: Placements::default(),
            moves: SavingsTracker::default(),
            replacements: ReplacementPods::default(),
            waves: Waves::default(),
            numbers: StaticSchedule::default(),
            wake: None,
            happened: true,
            whole_due: None,
            next_sweep: None,
            sweep_due: None,
            told: BTreeMap::new(),
            misreads: BTreeSet::new(),
            observed_pods: BTreeSet::new(),
            observed_leaving: BTreeSet::new(),
            stays: RetainedNodes::default(),
            eligible: BTreeMap::new(),
            orphans: BTreeMap::new(),
            interrupted: BTreeMap::new(),
            failing: BTreeMap::new(),
            hints: BTreeMap::new(),
            learned: BTreeMap::new(),
            groups: BTreeMap::new(),
            hints_denied: Denied::default(),
            buffer_statuses: BufferStatuses::default(),
            early_off: false,
            early_binds: false,
            unbinding: BTreeMap::new(),
            sharing: FleetSync::default(),
            noting: LeaseSync::default(),
            weighing: ConsolidationSchedule::default(),
            safeguard: SafeguardState::default(),
            undrained: Undrained::default(),
            same_instances: SameInstances::new(),
            adopting: AdoptionController::default(),
            unregistered: Unregistered::default(),
        };
        engine.state.notes.fault = Some(UNREAD.to_owned());
        engine
    }

    /// Records an event. The work is done by the next pass, which `Event::Timeout` starts at the
    /// time that [`Self::poll_timeout`] returns.
    pub fn handle_event(&mut self, event: Event, now: Timestamp) {
        self.note_changes(&event, now);
        match event {
            Event::Timeout => {
                self.run_pass(now);
                return;
            }
            Event::ConfigChanged(cluster) => self.apply_configuration(cluster, now),
            Event::CatalogChanged(catalog) => self.state.apply_catalog(catalog),
            Event::ClassesChanged(classes) => {
                self.state.apply_class_supplies(classes);
                self.numbers.forget_results();
                self.batch.plan_again_at(now);
            }
            Event::BuffersChanged(objects) => self.apply_buffers(objects, now),
            Event::Reset(kind, objects) => self.apply_listing(kind, objects, now),
            Event::Applied(object) => {
                if !self.apply_object(object, now) {
                    return;
                }
            }
            Event::Deleted(kind, key) => {
                self.state.views.record_activity(kind, now);
                if kind == ObjectKind::Pod {
                    self.on_pod_deleted(&key, now);
                }
                self.state.objects.delete(kind, &key, now);
                if kind == ObjectKind::Node {
                    self.looking.gone_nodes.insert(key.name.into());
                }
            }
            Event::WatchAlive(kind) => {
                self.state.views.record_activity(kind, now);
                // Without this flag the event changes nothing that a pass could act on.
                if !std::mem::take(&mut self.looking.awaits_sign) {
                    return;
                }
            }
            Event::WatchLost(kind, why) => self.state.views.record_failure(kind, why),
            Event::Answered(id, result) => {
                if !self.apply_result(id, result, now) {
                    return;
                }
            }
            Event::Interrupted(instance, notice, at) => {
                self.record_notice(instance, notice, at, now)
            }
            Event::Refused(class, refusals) => {
                self.on_offerings_refused(class.as_ref(), &refusals, now)
            }
            Event::FleetChanged(view) => self.fleet_changed(view, now),
            Event::HeldDown(offerings, until) => {
                self.mark_unavailable_offerings(offerings, until, now)
            }
            Event::ClockSkewed(skew) => {
                self.looking.clock_skew = skew;
                if skew.is_some() {
                    self.cancel_queued("the clocks differ", |command| !command.is_read_only());
                }
            }
        }
        self.happened = true;
        self.cancel_during_mismatch();
        self.fail_cancelled(now);
        self.wake_at(self.next_pass_at(now), "the cluster changed");
    }

    /// Handles the result of a command. Returns whether it changes anything the engine uses.
    fn apply_result(&mut self, id: CommandId, result: CommandResult, now: Timestamp) -> bool {
        let listing = matches!(result, CommandResult::Instances(_));
        let notes = matches!(result, CommandResult::Lease(_)).then(|| self.state.notes.clone());
        self.on_command_result(id, result, now);
        if let Some(known) = notes {
            if self.is_ready() && known.has_same_content(&self.state.notes) {
                return false;
            }
            self.weighing.mark_changed(now);
        }
        // Most listings change nothing.
        if listing && !self.looking.listing_news && self.is_ready() {
            self.list_instances(now);
            return false;
        }
        true
    }

    /// Records a new or changed object. Returns whether it changes anything the engine uses.
    fn apply_object(&mut self, object: WatchedObject, now: Timestamp) -> bool {
        self.state.views.record_activity(object.kind(), now);
        // ReplicaSets change with each of their pods, but their selectors rarely do.
        if let WatchedObject::Selecting(selector) = &object
            && self.state.objects.selectors.contains_selector(selector)
        {
            return false;
        }
        if let WatchedObject::Pod(pod) = &object {
            self.before_pod_change(pod, now);
        }
        let before = self.state.cluster_uid();
        self.state.objects.apply(object, now);
        self.check_cluster_uid(before);
        true
    }

    /// Applies a new or changed configuration.
    fn apply_configuration(&mut self, cluster: Arc<Cluster>, now: Timestamp) {
        let managed = self.is_managing();
        self.replace_configuration();
        self.state.apply_configuration(cluster);
        self.numbers.forget_results();
        self.hints_denied = Denied::default();
        self.buffer_statuses.denied = Denied::default();
        self.moves.reset_results();
        self.state.resting.clear();
        if !self.is_managing() {
            let why = "the cluster is only observed now";
            self.cancel_queued(why, |command| !command.is_read_only());
            self.fail_cancelled(now);
            let leaving = self.state.ledger.claims.values();
            let nodes = leaving.filter_map(|claim| self.state.node_of(claim));
            let nodes = nodes.filter(|node| node.has_disrupted_taint()).count();
            if nodes > 0 && managed {
                self.push_report(Report::LeftClosed { nodes });
            }
        } else if !self.is_nominating() {
            let why = "pods are not told of their nodes any more";
            self.cancel_queued(why, |command| matches!(command, Command::Nominate { .. }));
            self.fail_cancelled(now);
        }
        self.early_configured(now);
    }

    /// Returns the time of the pass that handles the current event.
    fn next_pass_at(&self, now: Timestamp) -> Timestamp {
        let pods = self.state.objects.waiting_pods().len() + self.waves.count_later();
        let pods = i32::try_from(pods).unwrap_or(i32::MAX);
        let each = SETTLE_EACH.checked_mul(pods).unwrap_or(SETTLE_MAX);
        let settle = SETTLE.checked_add(each).unwrap_or(SETTLE_MAX);
        now.checked_add(settle.min(SETTLE_MAX)).unwrap_or(now)
    }

    /// Returns the next command. Each command is answered by one `Event::Answered`.
    pub fn next_command(&mut self) -> Option<IssuedCommand> {
        self.commands.pop_front()
    }

    /// Returns the next report for logs and metrics.
    pub fn next_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    /// Returns when to send the next `Event::Timeout`, and the reason.
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.wake
    }

    /// Returns whether every watch is in sync and two instance listings agree. Only then does the
    /// engine decide anything.
    pub fn is_ready(&self) -> bool {
        self.looking.ready && self.looking.frozen.is_none()
    }

    /// Returns the state of the cluster, for status and tests.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the optional features that are off because the API server denied a permission. Each
    /// entry names the permission to grant.
    pub fn disabled_features(&self) -> Vec<&'static str> {
        let nominations = "pods are not nominated for their nodes: grant patch of pods/status";
        let statuses = "the status of CapacityBuffers is not written: grant patch of \
                        capacitybuffers/status in autoscaling.x-k8s.io";
        let nominations = self.hints_denied.is_denied().then_some(nominations);
        let statuses = self.buffer_statuses.denied.is_denied().then_some(statuses);
        nominations.into_iter().chain(statuses).collect()
    }

    /// Returns whether any command is queued or unanswered.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty()
    }

    fn run_pass(&mut self, now: Timestamp) {
        self.wake = None;
        let still = !self.happened && !self.awaits_command_results(now) && self.is_ready();
        if still && self.run_sweep_only(now) {
            self.check_sync(now);
            self.fail_cancelled(now);
            self.read_lease(now);
            if self.is_ready() {
                let due = self.whole_due.unwrap_or(now);
                self.wake_at(due, "something is due");
                // A due sweep does not require a full pass.
                self.wake_at(self.sweep_due, "a sweep is due");
                self.wake_at(
                    now.checked_add(IDLE).unwrap_or(now),
                    "regular check of the cluster state",
                );
                return;
            }
        }
        self.run_full_pass(now);
    }

    /// Runs the sweep alone if nothing else can be due. Returns false if the sweep or its results
    /// require a full pass.
    fn run_sweep_only(&mut self, now: Timestamp) -> bool {
        let Some(due) = self.whole_due.filter(|due| now < *due) else {
            return false;
        };
        let reported = self.reports.len();
        if self.sweep_due.is_some_and(|at| at <= now) {
            self.disrupt_due_nodes(now);
        }
        let woken = self.wake.take().map_or(due, |(at, _)| at.min(due));
        self.whole_due = Some(woken);
        self.reports.len() == reported && self.commands.is_empty() && now < woken
    }

    fn run_full_pass(&mut self, now: Timestamp) {
        self.happened = false;
        self.sweep_due = None;
        self.places.discard_computed();
        self.state.expire(now);
        self.forget_deleted_objects(now);
        self.hints_denied.expire(now);
        self.buffer_statuses.denied.expire(now);
        self.fail_overdue_commands(now);
        let before = self.wake.take();
        self.check_sync(now);
        self.fail_cancelled(now);
        self.read_lease(now);
        let looked = std::mem::replace(&mut self.wake, before);
        if self.looking.mismatch.is_some() {
            // The fleet needs the usage of this cluster even during a mismatch.
            self.report_disruptions(now);
            self.report_usage(now);
            self.wake_for_sync_check(looked, now);
            return;
        }
        self.join_nodes(now);
        self.count_adoptable(now);
        if self.looking.ready {
            self.handle_interruptions(now);
            self.disrupt_ending_blocks(now);
            if self.is_ready() {
                self.send_nominations(now);
            }
            self.start_next_wave(now);
            self.recheck_disruptions(now);
            self.advance_claims(now);
        }
        if self.is_ready() {
            self.collect_orphans(now);
            self.adopt_instances(now);
            self.exclude_failing_zones(now);
            self.disrupt_due_nodes(now);
            self.provision_pods(now);
            self.consolidate(now);
            self.disrupt_replaced_nodes(now);
            self.update_in_place(now);
            self.write_buffer_statuses(now);
            self.report_memory(now);
            self.record_disruptions(now);
            self.report_disruptions(now);
            self.report_held_ends(now);
            self.report_same_instances();
        }
        self.report_usage(now);
        self.wake_at(now.checked_add(WHOLE).unwrap_or(now), "regular full pass");
        self.whole_due = self.wake.map(|(at, _)| at);
        // A due sweep does not require a full pass.
        self.wake_at(self.sweep_due, "a sweep is due");
        self.wake_for_sync_check(looked, now);
    }

    /// Wakes the engine for the next check of the cluster state: when one is due, or after
    /// [`IDLE`].
    fn wake_for_sync_check(&mut self, due: Option<(Timestamp, &'static str)>, now: Timestamp) {
        if let Some((at, why)) = due {
            self.wake_at(at, why);
        }
        self.wake_at(now.checked_add(IDLE).unwrap_or(now), "regular check of the cluster state");
    }

    /// Removes entries about objects that no longer exist.
    fn forget_deleted_objects(&mut self, now: Timestamp) {
        let (pods, claims) = (&self.state.objects.pods, &self.state.ledger.claims);
        self.observed_pods.retain(|key| pods.contains_key(key) || buffer_of(key).is_some());
        self.observed_leaving.retain(|id| claims.contains_key(id));
        self.unbinding.retain(|key, _| pods.contains_key(key));
        self.replacements.expire(now);
        self.moves.retain_claims(|id| claims.contains_key(id));

        let unknown: BTreeSet<&NodeName> = self.state.objects.unknown_nodes().collect();
        let gone_nodes = &mut self.looking.gone_nodes;
        gone_nodes.retain(|name| unknown.contains(name));
    }

    /// Wakes the engine at a time, if there is one, unless it is woken earlier.
    fn wake_at(&mut self, at: impl Into<Option<Timestamp>>, why: &'static str) {
        if let Some(at) = at.into()
            && self.wake.is_none_or(|(current, _)| at < current)
        {
            self.wake = Some((at, why));
        }
    }

    /// Returns whether a time is in the future. The engine is woken then.
    fn waits_until(
        &mut self,
        at: impl Into<Option<Timestamp>>,
        why: &'static str,
        now: Timestamp,
    ) -> bool {
        let at = at.into().filter(|at| *at > now);
        self.wake_at(at, why);
        at.is_some()
    }

    fn is_managing(&self) -> bool {
        self.state.cluster.mode == ManagementMode::Manage
    }

    /// Returns whether the engine nominates nodes for pending pods.
    fn is_nominating(&self) -> bool {
        self.state.cluster.placement_hints == PlacementHints::On
            && !self.hints_denied.is_denied()
            && self.is_managing()
    }

    fn push_report(&mut self, report: Report) {
        self.reports.push_back(report);
    }

    /// Removes the matching commands that are still in the queue, and returns their purposes. The
    /// caller treats each one as failed.
    fn withdraw_queued(
        &mut self,
        which: impl Fn(&Command, &CommandPurpose) -> bool,
    ) -> Vec<(CommandId, CommandPurpose)> {
        let flights = &self.flights;
        let queued = std::mem::take(&mut self.commands).into_iter();
        let (withdrawn, kept): (VecDeque<_>, VecDeque<_>) = queued.partition(|issued| {
            flights.get(&issued.id).is_some_and(|in_flight| which(&issued.command, &in_flight.kind))
        });
        self.commands = kept;
        withdrawn
            .into_iter()
            .filter_map(|issued| Some((issued.id, self.flights.remove(&issued.id)?.kind)))
            .collect()
    }

    /// Cancels the matching commands that are still in the queue. [`Self::fail_cancelled`] handles
    /// each of them as failed.
    fn cancel_queued(&mut self, why: &'static str, which: impl Fn(&Command) -> bool) {
        let (cancelled, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.commands)
            .into_iter()
            .partition(|issued| which(&issued.command));
        self.commands = kept;
        self.cancelled.extend(cancelled.into_iter().map(|issued| (issued.id, why)));
    }

    /// Handles the cancelled commands as failed: the engine decides again.
    fn fail_cancelled(&mut self, now: Timestamp) {
        for (id, why) in std::mem::take(&mut self.cancelled) {
            let (kind, text) = (FailureKind::Withdrawn, why.to_owned());
            self.on_command_result(id, CommandResult::Failed { kind, text }, now);
        }
    }

    /// Queues a command. The caller has checked that the cluster is managed if the command changes
    /// anything.
    fn queue_command(
        &mut self,
        command: Command,
        kind: CommandPurpose,
        now: Timestamp,
    ) -> CommandId {
        self.last_command += 1;
        let id = CommandId(self.last_command);
        let (name, since) = (command.name(), now);
        self.flights.insert(id, InFlightCommand { kind, name, since });
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

    /// Returns the number of queued nominations. They are at the end of the queue.
    fn pending_nominations(&self) -> usize {
        let others = |queued: &IssuedCommand| !matches!(queued.command, Command::Nominate { .. });
        self.commands.len() - self.commands.partition_point(others)
    }
}
