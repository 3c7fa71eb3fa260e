//! The engine of one cluster: it holds the state, timers and in-flight commands, takes events and
//! returns commands. It reads no clock and does no I/O: the time is an argument of each method.
//!
//! Events are recorded and handled together by the next pass, so a thousand events cost one pass:
//!
//! ```text
//! handle_event ─► state ─► wake-up time ─ ─ Timeout ─► pass
//! pass: sync ─► interruptions ─► claims ─► due disruptions ─► provisioning ─► consolidation
//! ```
//!
//! [`Engine::run_full_pass`] and [`Engine::decide_changes`] have the order of a pass. The order is
//! essential: each step sees the changes of the earlier steps. A function takes the [`Context`] and
//! the controllers whose state it reads or changes.

// Exponential back-off with seeded jitter.
pub mod backoff;
// Batch window for pending pods.
pub mod batcher;
// Planning passes for static pools and buffers.
mod static_pools;
// Commands, one API call each.
pub mod command;
// Events that an engine receives.
pub mod event;
// Reports of decisions, for logs and metrics.
pub mod report;
// In-flight commands and claim progress.
mod in_flight;
// State of the synchronization: phase, listings, missing objects.
mod sync_state;
// Queue of nodes whose pods are evicted in waves.
mod wave_queue;
// Planned placements of reschedulable pods.
mod placements;
// State of the safeguards.
mod safeguard_state;
// Nodes that a sweep found.
pub mod sweep_result;
// State, outbox and claim progress that all controllers share.
mod context;
// State of the controllers.
mod controllers;
// Look-ups and deadlines of claims.
mod claims;
// Memory reported by nodes.
mod discovered_capacity;
// Limit on terminations without a drain.
mod undrained_terminations;
// Launch back-off when nodes do not register.
mod registration_backoff;
// Mismatch of API server, instances and configuration.
mod cluster_identity;
// Suspends decisions while the cluster state is incomplete, and resumes them.
mod sync;
// Phase changes of claims, and steps that are sent, fail or are cancelled.
mod claim_steps;
// In-place updates of labels, taints and tags.
mod in_place_update;
// Adoption of nodes launched by Karpenter.
mod adoption;
// Status of CapacityBuffers.
mod buffer_status;
// Replacement pods matched with planned placements.
mod replacement_pods;
// Requests to the fleet, and reports of usage.
mod fleet_sync;
// Instances that end before their nodes have registered.
mod early_ends;
// Drains: taint, evict, verify, terminate.
mod drain;
// Safeguards: cluster health, approval of large changes.
mod safeguards;
// Reads and writes of Lease annotations.
mod lease_annotations;
// Scheduled sweeps: start, results, record on the Lease.
mod sweeps;
// Pods bound before the kubelet registers.
mod early_binding;
// Handling of command results.
mod command_results;
// Planning, and execution of plans as claims and drains.
mod provisioning;
// Savings that are lost because of unplanned new nodes.
mod consolidation_feedback;
// Times of consolidation, and the start of its disruptions.
mod consolidation;
// Nodes without a claim.
mod garbage_collection;
// Interruption notices from the provider.
mod interruption;
// Writes of status.nominatedNodeName, and startup taints.
mod nomination;
// Registration and initialization of nodes.
mod registration;
// One trial launch per unavailable offering.
mod offering_probe;
// Next step of each claim by its phase: launch, register, drain, terminate.
mod lifecycle;
// Removal of finalizers and taints from released nodes.
pub mod release;
// Status, inventory and Kubernetes Events.
pub mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::Denied;
use crate::engine::buffer_status::BufferStatuses;
use crate::engine::command::{Command, CommandId, CommandLane, IssuedCommand};
use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, Interruptions, Nominations, Unclaimed};
use crate::engine::discovered_capacity::DiscoveredMemory;
use crate::engine::drain::waves;
use crate::engine::early_binding::EarlyBinding;
use crate::engine::event::Event;
use crate::engine::fleet_sync::FleetSync;
use crate::engine::lease_annotations::{LeaseSync, UNREAD};
use crate::engine::provisioning::Provisioning;
use crate::engine::report::Report;
use crate::engine::sync_state::SyncPhase;
use crate::model::buffer::buffer_of;
use crate::model::cluster::Cluster;
use crate::model::id::{NodeName, ObjectKey};
use crate::model::sweep::SweepKind;
use crate::model::watched_object::{ObjectKind, WatchedObject};
use crate::provider::CommandResult;
use crate::state::State;
use crate::state::candidates::PendingApproval;
use crate::state::cluster_identity::Mismatch;
use crate::state::sweeps::DueSweeps;

/// Maximum time between two checks of the cluster state.
const IDLE: SignedDuration = SignedDuration::from_secs(30);

/// Maximum time between two full passes. It applies even if nothing has changed and nothing is due,
/// so that a lost timer cannot stop the engine.
const WHOLE: SignedDuration = SignedDuration::from_mins(10);

/// Minimum time since the last full pass for `Event::RegularPass` to run one.
const REGULAR_APART: SignedDuration = SignedDuration::from_mins(9);

/// The engine of one cluster. Its inputs are events and their times. Its outputs are commands,
/// reports and the time of its next wake-up.
#[derive(Debug)]
pub struct Engine {
    cx: Context,
    provisioning: Provisioning,
    consolidation: Consolidation,
    nominations: Nominations,
    early_binding: EarlyBinding,
    fleet: FleetSync,
    lease: LeaseSync,
    interruptions: Interruptions,
    buffer_statuses: BufferStatuses,
    unclaimed: Unclaimed,
    memory: DiscoveredMemory,
}

impl Engine {
    /// Returns an engine with an empty state. `seed` determines claim ids and jitter.
    pub fn new(seed: u64) -> Self {
        let mut engine = Self {
            cx: Context::new(seed),
            provisioning: Provisioning::default(),
            consolidation: Consolidation::default(),
            nominations: Nominations::default(),
            early_binding: EarlyBinding::default(),
            fleet: FleetSync::default(),
            lease: LeaseSync::default(),
            interruptions: Interruptions::default(),
            buffer_statuses: BufferStatuses::default(),
            unclaimed: Unclaimed::default(),
            memory: DiscoveredMemory::default(),
        };
        engine.cx.state.notes.fault = Some(UNREAD.to_owned());
        engine
    }

    /// Records an event. The work is done by the next pass, which `Event::Timeout` starts at the
    /// time that [`Self::poll_timeout`] returns.
    pub fn handle_event(&mut self, event: Event, now: Timestamp) {
        self.cx.outbox.now = now;
        self.consolidation.note_changes(&self.cx, &event, now);
        match event {
            Event::Timeout => return self.run_pass(now),
            Event::RegularPass => return self.run_regular_pass(now),
            Event::ConfigChanged(cluster) => self.apply_configuration(cluster, now),
            Event::CatalogChanged(catalog) => self.cx.state.apply_catalog(catalog),
            Event::ClassesChanged(classes) => {
                self.cx.state.apply_class_supplies(classes);
                self.cx.static_schedule.forget_results();
                self.cx.batcher.plan_again_at(now);
            }
            Event::BuffersChanged(objects) => buffer_status::apply_buffers(
                &mut self.cx,
                &mut self.consolidation,
                &mut self.buffer_statuses,
                objects,
                now,
            ),
            Event::Reset(kind, objects) => sync::apply_listing(&mut self.cx, kind, objects, now),
            Event::Applied(object) => {
                if !apply_object(&mut self.cx, &mut self.consolidation, object, now) {
                    return;
                }
            }
            Event::Deleted(kind, key) => {
                delete_object(&mut self.cx, &mut self.consolidation, kind, key, now)
            }
            Event::WatchAlive(kind) => {
                self.cx.state.views.record_activity(kind, now);
                // If no decision waits for activity of a watch, the event changes nothing.
                if !std::mem::take(&mut self.cx.sync.awaits_sign) {
                    return;
                }
            }
            Event::WatchLost(kind, why) => self.cx.state.views.record_failure(kind, why),
            Event::Answered(id, result) => {
                if !self.apply_result(id, result, now) {
                    return;
                }
            }
            Event::Interrupted(instance, notice, at, receipt) => {
                self.interruptions.on_notice(instance, notice, at, receipt, now)
            }
            Event::Refused(class, refusals) => {
                fleet_sync::on_offerings_refused(&mut self.cx, class.as_ref(), &refusals, now)
            }
            Event::FleetChanged(view) => self.fleet.on_fleet_changed(&mut self.cx, view, now),
            Event::HeldDown(offerings, until) => {
                fleet_sync::mark_unavailable_offerings(&mut self.cx, offerings, until, now)
            }
            Event::SweepRequested(request) => self.cx.state.sweeps.request(request, now),
            Event::ClockSkewed(skew) => {
                self.cx.sync.clock_skew = skew;
                if skew.is_some() {
                    let outbox = &mut self.cx.outbox;
                    outbox.cancel_queued("the clocks differ", |command| !command.is_read_only());
                }
            }
        }
        self.cx.changed = true;
        cluster_identity::cancel_during_mismatch(&mut self.cx);
        self.handle_failed_commands(now);
        self.cx.outbox.wake_at(self.cx.next_pass_at(now), "the cluster changed");
    }

    /// Handles the result of a command. Returns whether it changes anything the engine uses.
    fn apply_result(&mut self, id: CommandId, result: CommandResult, now: Timestamp) -> bool {
        let listing = matches!(result, CommandResult::Instances(_));
        let notes = matches!(result, CommandResult::Lease(_)).then(|| self.cx.state.notes.clone());
        self.on_command_result(id, result, now);
        if let Some(known) = notes {
            let is_known = self.cx.is_ready() && known.has_same_content(&self.cx.state.notes);
            if !is_known {
                self.consolidation.schedule.mark_changed(now);
            } else if !self.cx.state.sweeps.unrecorded || !self.cx.is_managing() {
                return false;
            }
        }
        // Most listings change nothing.
        if listing && !self.cx.sync.listing_news && self.cx.is_ready() {
            sync::list_instances(&mut self.cx, &self.unclaimed, now);
            return false;
        }
        true
    }

    /// Applies a new or changed configuration.
    fn apply_configuration(&mut self, cluster: Arc<Cluster>, now: Timestamp) {
        let managed = self.cx.is_managing();
        safeguards::before_configuration_change(&mut self.cx);
        self.cx.state.apply_configuration(cluster);
        self.cx.static_schedule.forget_results();
        self.nominations.denied = Denied::default();
        self.buffer_statuses.denied = Denied::default();
        self.consolidation.savings.reset_results();
        self.cx.state.resting.clear();
        if !self.cx.is_managing() {
            let why = "the cluster is in observe mode now";
            self.cx.outbox.cancel_queued(why, |command| !command.is_read_only());
            self.handle_failed_commands(now);
            let leaving = self.cx.state.ledger.claims.values();
            let nodes = leaving.filter_map(|claim| self.cx.state.node_of(claim));
            let nodes = nodes.filter(|node| node.has_disrupted_taint()).count();
            if nodes > 0 && managed {
                self.cx.outbox.push_report(Report::LeftClosed { nodes });
            }
        } else if !self.nominations.is_nominating(&self.cx) {
            let why = "nominations are off now";
            self.cx
                .outbox
                .cancel_queued(why, |command| matches!(command, Command::Nominate { .. }));
            self.handle_failed_commands(now);
        }
        self.early_binding.on_early_binding_configured(&mut self.cx, now);
    }

    /// Returns the next command. Each command is answered by one `Event::Answered`.
    pub fn next_command(&mut self) -> Option<IssuedCommand> {
        self.next_command_in(|_| true)
    }

    /// Returns the next command of the lanes that have room.
    pub fn next_command_in(
        &mut self,
        lanes: impl Fn(CommandLane) -> bool,
    ) -> Option<IssuedCommand> {
        let (issued, queued) = self.cx.outbox.take_command(lanes)?;
        if let Command::Launch(launch) = &issued.command {
            claims::exclude_queue_time(&mut self.cx, &launch.claim.id, queued);
        }
        Some(issued)
    }

    /// Returns the next report for logs and metrics.
    pub fn next_report(&mut self) -> Option<Report> {
        self.cx.outbox.reports.pop_front()
    }

    /// Returns when to send the next `Event::Timeout`, and the reason.
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.cx.outbox.wake
    }

    /// Returns when the next sweep of each kind with a schedule runs: in the past if it is due.
    pub fn next_sweeps(&self) -> BTreeMap<SweepKind, Timestamp> {
        let sweeps = self.cx.state.sweeps.iter();
        sweeps.filter_map(|(kind, sweep)| Some((kind, sweep.next()?))).collect()
    }

    /// Returns when the last full pass ran.
    pub fn last_full_pass(&self) -> Option<Timestamp> {
        self.provisioning.last_full_pass
    }

    /// Returns whether every watch is in sync and two instance listings agree. Only then does the
    /// engine decide anything.
    pub fn is_ready(&self) -> bool {
        self.cx.is_ready()
    }

    /// Returns the mismatch that suspends decisions, if there is one.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.cx.sync.mismatch.as_ref()
    }

    /// Returns the information that the engine still lacks before it decides anything.
    pub fn missing_information(&self, now: Timestamp) -> Option<String> {
        self.cx.missing_information(now)
    }

    /// Returns the pending approval of the configuration, if any. The outer `None` means that the
    /// configuration was not checked yet.
    pub fn pending_approval(&self) -> Option<Option<&PendingApproval>> {
        self.cx.pending_approval()
    }

    /// Returns the state of the cluster, for status and tests.
    pub fn state(&self) -> &State {
        &self.cx.state
    }

    /// Returns the optional features that are off because the API server denied a permission. Each
    /// entry names the permission to grant.
    pub fn disabled_features(&self) -> Vec<&'static str> {
        let nominations = "pods are not nominated for their nodes: grant patch of pods/status";
        let statuses = "the status of CapacityBuffers is not written: grant patch of \
                        capacitybuffers/status in autoscaling.x-k8s.io";
        let nominations = self.nominations.denied.is_denied().then_some(nominations);
        let statuses = self.buffer_statuses.denied.is_denied().then_some(statuses);
        nominations.into_iter().chain(statuses).collect()
    }

    /// Runs the regular full pass, or only what is due if the last full pass was recent.
    fn run_regular_pass(&mut self, now: Timestamp) {
        let last = self.provisioning.last_full_pass;
        if last.is_some_and(|last| now.duration_since(last) < REGULAR_APART) {
            return self.run_pass(now);
        }
        self.cx.outbox.wake = None;
        self.run_full_pass(now);
    }

    fn run_pass(&mut self, now: Timestamp) {
        self.cx.outbox.wake = None;
        let still = !self.cx.changed
            && !command_results::awaits_command_results(&self.cx, now)
            && self.cx.is_ready()
            && !sweeps::is_any_due(&self.cx, now);
        if still
            && run_check_only(
                &mut self.cx,
                &mut self.provisioning,
                &mut self.consolidation,
                &mut self.lease,
                &self.interruptions,
                now,
            )
        {
            sync::check_sync(&mut self.cx, &self.unclaimed, now);
            self.handle_failed_commands(now);
            self.lease.read_lease(&mut self.cx, now);
            if self.cx.is_ready() {
                let due = self.provisioning.full_pass_due.unwrap_or(now);
                self.cx.outbox.wake_at(due, "something is due");
                // A due check of nodes does not require a full pass.
                self.cx.outbox.wake_at(self.provisioning.check_due, "a check of nodes is due");
                wake_for_sync_check(&mut self.cx, None, now);
                return;
            }
        }
        self.run_full_pass(now);
    }

    fn run_full_pass(&mut self, now: Timestamp) {
        self.cx.changed = false;
        self.provisioning.last_full_pass = Some(now);
        self.provisioning.check_due = None;
        self.cx.placements.discard_computed();
        self.cx.state.expire(now);
        forget_deleted_objects(
            &mut self.cx,
            &mut self.provisioning,
            &mut self.consolidation,
            &mut self.early_binding,
            now,
        );
        self.nominations.denied.expire(now);
        self.buffer_statuses.denied.expire(now);
        self.cx.outbox.fail_overdue(now);
        self.handle_failed_commands(now);
        let before = self.cx.outbox.wake.take();
        sync::check_sync(&mut self.cx, &self.unclaimed, now);
        self.handle_failed_commands(now);
        self.lease.read_lease(&mut self.cx, now);
        let looked = std::mem::replace(&mut self.cx.outbox.wake, before);
        if self.cx.sync.mismatch.is_some() {
            // The fleet needs the usage of this cluster even during a mismatch.
            self.fleet.report_disruptions(&mut self.cx, now);
            self.fleet.report_usage(&mut self.cx, now);
            wake_for_sync_check(&mut self.cx, looked, now);
            return;
        }
        let Self { cx, consolidation, nominations, early_binding, fleet, interruptions, .. } = self;
        lifecycle::join_nodes(cx, early_binding, now);
        adoption::count_adoptable(cx, now);
        if cx.sync.phase != SyncPhase::Starting {
            interruptions.handle_interruptions(cx, now);
            interruptions.disrupt_ending_blocks(cx, now);
            if cx.is_ready() {
                nomination::send_nominations(cx, consolidation, nominations, now);
            }
            waves::start_next_wave(cx, consolidation, nominations, now);
            safeguards::recheck_disruptions(cx, consolidation, now);
            lifecycle::advance_claims(
                cx,
                consolidation,
                nominations,
                early_binding,
                fleet,
                interruptions,
                now,
            );
        }
        if cx.is_ready() {
            self.decide_changes(now);
        }
        let Self { cx, provisioning, fleet, .. } = self;
        fleet.report_usage(cx, now);
        cx.outbox.wake_at(now.checked_add(WHOLE).unwrap_or(now), "regular full pass");
        provisioning.full_pass_due = cx.outbox.wake.map(|(at, _)| at);
        // A due check of nodes does not require a full pass.
        cx.outbox.wake_at(provisioning.check_due, "a check of nodes is due");
        wake_for_sync_check(cx, looked, now);
    }

    /// Decides what to disrupt, launch and update. The caller has checked that the cluster state is
    /// in sync.
    fn decide_changes(&mut self, now: Timestamp) {
        let Self {
            cx,
            provisioning,
            consolidation,
            nominations,
            early_binding,
            fleet,
            lease,
            interruptions,
            buffer_statuses,
            unclaimed,
            memory,
        } = self;
        sweeps::apply_schedules(cx, now);
        let due_sweeps = match provisioning.check_is_too_early(cx, now) {
            true => DueSweeps::default(),
            false => sweeps::start_due_sweeps(cx, consolidation, now),
        };
        garbage_collection::collect_orphans(cx, early_binding, unclaimed, &due_sweeps, now);
        unclaimed.adopt_instances(cx, now);
        registration_backoff::exclude_failing_zones(cx, now);
        provisioning::disrupt_due_nodes(
            cx,
            provisioning,
            consolidation,
            lease,
            interruptions,
            &due_sweeps,
            now,
        );
        provisioning::provision_pods(
            cx,
            provisioning,
            consolidation,
            fleet,
            interruptions,
            buffer_statuses,
            now,
        );
        consolidation::consolidate(cx, provisioning, consolidation, lease, interruptions, now);
        interruption::disrupt_replaced_nodes(cx, nominations, interruptions, now);
        in_place_update::update_in_place(cx, now);
        buffer_statuses.write_buffer_statuses(cx, now);
        memory.report_memory(cx, now);
        lease_annotations::record_disruptions(cx, consolidation, lease, now);
        sweeps::record_sweeps(cx, lease, now);
        fleet.report_disruptions(cx, now);
        undrained_terminations::report_held_terminations(cx, now);
        unclaimed.report_same_instances(cx);
    }
}

/// Records a new or changed object. Returns whether it changes anything the engine uses.
fn apply_object(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    object: WatchedObject,
    now: Timestamp,
) -> bool {
    cx.state.views.record_activity(object.kind(), now);
    // ReplicaSets change with each of their pods, but their selectors rarely do.
    if let WatchedObject::Selecting(selector) = &object
        && cx.state.objects.selectors.contains_selector(selector)
    {
        return false;
    }
    if let WatchedObject::Pod(pod) = &object {
        provisioning::before_pod_change(cx, consolidation, pod, now);
    }
    let before = cx.state.cluster_uid();
    cx.state.objects.apply(object, now);
    cluster_identity::check_cluster_uid(cx, before);
    true
}

/// Removes a deleted object.
fn delete_object(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    kind: ObjectKind,
    key: ObjectKey,
    now: Timestamp,
) {
    cx.state.views.record_activity(kind, now);
    if kind == ObjectKind::Pod {
        consolidation.on_pod_deleted(cx, &key, now);
    }
    cx.state.objects.delete(kind, &key, now);
    if kind == ObjectKind::Node {
        cx.sync.gone_nodes.insert(key.name.into());
    }
}

/// Runs the check of all nodes alone if nothing else can be due. Returns false if the check or its
/// results require a full pass.
fn run_check_only(
    cx: &mut Context,
    provisioning: &mut Provisioning,
    consolidation: &mut Consolidation,
    lease: &mut LeaseSync,
    interruptions: &Interruptions,
    now: Timestamp,
) -> bool {
    let Some(due) = provisioning.full_pass_due.filter(|due| now < *due) else {
        return false;
    };
    let reported = cx.outbox.reports.len();
    if provisioning.check_due.is_some_and(|at| at <= now) {
        provisioning::disrupt_due_nodes(
            cx,
            provisioning,
            consolidation,
            lease,
            interruptions,
            &DueSweeps::default(),
            now,
        );
    }
    let woken = cx.outbox.wake.take().map_or(due, |(at, _)| at.min(due));
    provisioning.full_pass_due = Some(woken);
    cx.outbox.reports.len() == reported && cx.outbox.commands.is_empty() && now < woken
}

/// Wakes the engine for the next check of the cluster state: when one is due, or after
/// [`IDLE`].
fn wake_for_sync_check(cx: &mut Context, due: Option<(Timestamp, &'static str)>, now: Timestamp) {
    if let Some((at, why)) = due {
        cx.outbox.wake_at(at, why);
    }
    cx.outbox.wake_at(now.checked_add(IDLE).unwrap_or(now), "regular check of the cluster state");
}

/// Removes entries about objects that no longer exist.
fn forget_deleted_objects(
    cx: &mut Context,
    provisioning: &mut Provisioning,
    consolidation: &mut Consolidation,
    early_binding: &mut EarlyBinding,
    now: Timestamp,
) {
    let (pods, claims) = (&cx.state.objects.pods, &cx.state.ledger.claims);
    provisioning.observed_pods.retain(|key| pods.contains_key(key) || buffer_of(key).is_some());
    provisioning.observed_leaving.retain(|id| claims.contains_key(id));
    early_binding.unbinding.retain(|key, _| pods.contains_key(key));
    consolidation.replacement_pods.expire(now);
    consolidation.savings.retain_claims(|id| claims.contains_key(id));

    let unknown: BTreeSet<&NodeName> = cx.state.objects.unknown_nodes().collect();
    let gone_nodes = &mut cx.sync.gone_nodes;
    gone_nodes.retain(|name| unknown.contains(name));
}
