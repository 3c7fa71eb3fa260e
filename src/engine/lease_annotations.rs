//! Reads and writes annotations on the cluster's Lease. Disruptions that a rate counts are recorded
//! in an annotation, and the record is confirmed before the node is tainted.
//!
//! The Lease is polled and not watched: a pause may take effect half a minute late, and no cluster
//! state depends on it. Each write names the version that was read, so that two concurrent writers
//! cannot both use the last disruption of a budget (docs/decisions/023-state-on-the-lease.md).

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::coordination::lease_annotations::{
    AnnotatedLease, DISRUPTED_NODES, DISRUPTED_NODES_FORMER, DISRUPTED_NODES_MAX, DisruptionRecord,
    LeaseAnnotations,
};
use crate::disruption::budgets::Budgets;
use crate::engine::backoff::Backoff;
use crate::engine::command::{Command, LeasePatch};
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::drain::cancellation;
use crate::engine::in_flight::{Clearance, CommandPurpose};
use crate::engine::report::Report;
use crate::engine::safeguards;
use crate::model::id::{ClaimId, PoolName};
use crate::model::pool::Reason;
use crate::provider::{CommandResult, FailureKind};

/// The first pass after this time reads the Lease again. Passes are at most half a minute apart.
const READ_APART: SignedDuration = SignedDuration::from_secs(10);

/// If the Lease was not read for this long, voluntary disruption is suspended: a user may have
/// paused the cluster.
const UNREAD_MAX: SignedDuration = SignedDuration::from_mins(2);

/// The progress of reads and writes.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseSync {
    /// When it was last read.
    read: Option<Timestamp>,
    /// True if a read or write is in flight.
    busy: bool,
    /// True if the Lease must be read before the next write, because it may have changed.
    stale: bool,
    retry: Backoff,
    /// The next attempt to record the sweeps.
    sweeps_retry: Backoff,
    /// Pauses as last reported, and invalid annotations.
    paused: BTreeSet<Option<PoolName>>,
    garbled: Option<String>,
    /// Blocked disruptions as last reported.
    shut: BTreeSet<(PoolName, Reason, &'static str)>,
}

impl LeaseSync {
    /// Records these blocked disruptions as reported. Returns the disruptions that are newly
    /// blocked.
    pub(super) fn record_blocked_disruptions(
        &mut self,
        blocked: BTreeMap<(PoolName, Reason, &'static str), String>,
        is_weighed: bool,
    ) -> Vec<(PoolName, Reason, String)> {
        let known = self.shut.clone();
        self.shut.retain(|key| (key.1 == Reason::Underutilized) != is_weighed);
        self.shut.extend(blocked.keys().cloned());
        let new = blocked.into_iter().filter(|(key, _)| !known.contains(key));
        new.map(|((pool, reason, _), why)| (pool, reason, why)).collect()
    }

    /// Returns the pools with blocked disruptions, their reasons and their blockers: the current
    /// `Report::Shut` reports.
    pub(super) fn blocked_disruptions(&self) -> &BTreeSet<(PoolName, Reason, &'static str)> {
        &self.shut
    }
}

/// Error message before the first read of the Lease.
pub(super) const UNREAD: &str = "the cluster's Lease has not been read yet";

impl LeaseSync {
    /// Reads the Lease if a read is due.
    pub(super) fn read_lease(&mut self, cx: &mut Context, now: Timestamp) {
        if let Some(read) = self.read
            && now.duration_since(read) > UNREAD_MAX
        {
            let why = format!("the cluster's Lease was last read at {read}");
            cx.state.notes.fault.get_or_insert(why);
        }
        self.report_pauses(cx, now);
        let read = self.read;
        let is_due = self.stale || read.is_none_or(|at| now.duration_since(at) >= READ_APART);
        if !is_due || self.busy {
            return;
        }
        if cx.outbox.waits_until(self.retry.next_attempt(), "read the cluster's Lease", now) {
            return;
        }
        self.busy = true;
        cx.outbox.queue_command(Command::ReadLease, CommandPurpose::ReadLease, now);
    }

    /// Returns whether a write may be queued: none is in flight, and the last read is current.
    pub(super) fn may_write(&self) -> bool {
        !self.busy && !self.stale
    }

    /// Returns whether the record of sweeps may be written now. Otherwise the engine is woken.
    pub(super) fn may_record_sweeps(&mut self, cx: &mut Context, now: Timestamp) -> bool {
        let next = self.sweeps_retry.next_attempt();
        !cx.outbox.waits_until(next, "record the sweeps on the Lease", now) && self.may_write()
    }

    /// Records whether the record of sweeps was written. It is repeated at growing intervals.
    pub(super) fn on_sweeps_recorded(&mut self, cx: &mut Context, written: bool, now: Timestamp) {
        if written {
            self.sweeps_retry = Backoff::default();
        } else {
            self.sweeps_retry.record_failure(now, &mut cx.rng);
        }
    }

    /// Records that a write is queued.
    pub(super) fn begin_write(&mut self) {
        self.busy = true;
    }

    /// Handles the result of a write. Returns whether it was written. After a failure the Lease is
    /// read first, because it may have changed.
    pub(super) fn on_written(
        &mut self,
        cx: &mut Context,
        result: CommandResult,
        now: Timestamp,
    ) -> bool {
        self.busy = false;
        match result {
            CommandResult::Lease(Some(lease)) => {
                self.retry = Backoff::default();
                self.apply_lease(cx, Some(&lease), now);
                return true;
            }
            CommandResult::Failed { .. } => {
                self.stale = true;
                self.retry.record_failure(now, &mut cx.rng);
            }
            _ => self.stale = true,
        }
        false
    }

    /// Records the content of the Lease, or why it is unknown.
    pub(super) fn on_lease_read(
        &mut self,
        cx: &mut Context,
        result: CommandResult,
        now: Timestamp,
    ) {
        self.busy = false;
        match result {
            CommandResult::Lease(lease) => {
                self.retry = Backoff::default();
                self.apply_lease(cx, lease.as_ref(), now);
            }
            CommandResult::Failed { text, .. } => {
                self.retry.record_failure(now, &mut cx.rng);
                if self.read.is_none() {
                    cx.state.notes.fault = Some(format!("{UNREAD}: {text}"));
                }
            }
            _ => self.retry.record_failure(now, &mut cx.rng),
        }
    }

    fn apply_lease(&mut self, cx: &mut Context, lease: Option<&AnnotatedLease>, now: Timestamp) {
        (self.read, self.stale) = (Some(now), false);
        cx.state.notes = LeaseAnnotations::from_lease(lease, &cx.state.notes);
        let garbled = cx.state.notes.garbled.clone();
        if self.garbled != garbled {
            self.garbled.clone_from(&garbled);
            if let Some(text) = garbled {
                let (command, kind) = ("read_lease", FailureKind::Invalid);
                cx.outbox.push_report(Report::Failed { command, kind, text });
            }
        }
        self.report_pauses(cx, now);
        safeguards::check_accepted_change(cx);
    }

    /// Reports new and ended pauses.
    fn report_pauses(&mut self, cx: &mut Context, now: Timestamp) {
        let paused = cx.state.notes.paused_pools(now);
        let known = std::mem::replace(&mut self.paused, paused.clone());
        for pool in known.difference(&paused).cloned() {
            cx.outbox.push_report(Report::Resumed { pool });
        }
        for pool in paused.difference(&known).cloned() {
            let pause = cx.state.notes.pauses.get(&pool).cloned();
            if let Some(pause) = pause {
                let (until, why) = (pause.until, pause.reason);
                cx.outbox.push_report(Report::Paused { pool, until, why });
            }
        }
        let pauses = cx.state.notes.pauses.values();
        let active = pauses.filter(|pause| pause.is_active(now));
        cx.outbox.wake_at(active.filter_map(|pause| pause.until).min(), "a pause has ended");
    }
}

/// Returns the start of the longest rate period: older records are not needed. Rates of the
/// cluster and the fleet also count nodes of removed pools.
fn records_kept_since(cx: &Context, now: Timestamp) -> Timestamp {
    let cluster = &cx.state.cluster;
    let pools = cluster.pools.iter().map(|pool| &pool.disruption.budgets);
    let fleet = cx.state.fleet.iter().map(|fleet| &fleet.budgets);
    let budgets = pools.chain(fleet).chain([&cluster.disruption.budgets]);
    let rates = budgets.flatten().filter_map(|budget| budget.rate);
    let longest = rates.map(|rate| rate.per).max();
    longest.and_then(|period| now.checked_sub(period).ok()).unwrap_or(now)
}

/// Records the waiting disruptions on the Lease. Postpones disruptions that exceed a budget.
pub(super) fn record_disruptions(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    lease: &mut LeaseSync,
    now: Timestamp,
) {
    let ids = cx.state.ledger.claims.keys();
    let waiting: Vec<ClaimId> = ids.filter(|id| awaits_record(cx, id)).cloned().collect();
    if waiting.is_empty() {
        return;
    }
    let (mut more, mut stay) = (BTreeMap::new(), Vec::new());
    split_by_budget(cx, waiting, &mut more, &mut stay, now);
    for (id, why) in stay {
        cancellation::postpone_drain(cx, consolidation, &id, why, now);
    }
    if more.is_empty() {
        return;
    }
    if !lease.may_write() {
        // The next pass must be a full one even if the result changes nothing.
        cx.changed = true;
        return;
    }
    let since = records_kept_since(cx, now);
    let Some(text) = cx.state.notes.let_go_text(&more, since) else {
        let why =
            format!("the cluster's Lease already records {DISRUPTED_NODES_MAX} disrupted nodes");
        for id in more.keys() {
            cancellation::postpone_drain(cx, consolidation, id, why.clone(), now);
        }
        return;
    };
    lease.begin_write();
    let patch = LeasePatch {
        version: cx.state.notes.version.clone(),
        annotations: vec![
            (DISRUPTED_NODES.to_owned(), Some(text)),
            (DISRUPTED_NODES_FORMER.to_owned(), None),
        ],
    };
    let purpose = CommandPurpose::NoteLetGo(more.into_keys().collect());
    cx.outbox.queue_command(Command::PatchLease(patch), purpose, now);
}

/// Returns whether a disruption waits for its record.
fn awaits_record(cx: &Context, id: &ClaimId) -> bool {
    let leaving = cx.claim(id).and_then(|claim| claim.leaving);
    leaving.is_some_and(Reason::is_budgeted)
        && cx
            .drain_of(id)
            .is_some_and(|drain| matches!(drain.clearance, Clearance::Recording { .. }))
}

/// Sorts the waiting disruptions into those that the current records permit and those that are
/// postponed, with the reason.
fn split_by_budget(
    cx: &Context,
    waiting: Vec<ClaimId>,
    more: &mut BTreeMap<ClaimId, DisruptionRecord>,
    stay: &mut Vec<(ClaimId, String)>,
    now: Timestamp,
) {
    let mut disruption_view = cx.state.disruption_view(now);
    disruption_view.let_go.clone_from(&cx.state.notes.let_go);
    let mut budgets = Budgets::new(&disruption_view, now);
    for id in waiting {
        let Some(claim) = cx.claim(&id) else {
            continue;
        };
        let (Some(reason), Some(_)) = (claim.leaving, cx.node_of(claim)) else {
            continue;
        };
        let pool = claim.record.pool.clone();
        match budgets.try_acquire_leaving(&id, &pool, reason) {
            Err(verdict) => stay.push((id, verdict.to_string())),
            Ok(()) => {
                let at = now;
                more.insert(id, DisruptionRecord { pool, reason, at });
            }
        }
    }
}

/// Handles the result of the record. After a failure the Lease is read first, because it may
/// have changed, and the engine decides again.
pub(super) fn on_disruptions_recorded(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    lease_sync: &mut LeaseSync,
    claims: &[ClaimId],
    result: CommandResult,
    now: Timestamp,
) {
    let refused = match &result {
        CommandResult::Failed { kind: FailureKind::Denied | FailureKind::Invalid, text } => {
            Some(text.clone())
        }
        _ => None,
    };
    if lease_sync.on_written(cx, result, now) {
        for id in claims {
            let kept = cx.state.notes.let_go.contains_key(id);
            if let Some(progress) = cx.progress.get_mut(id).filter(|_| kept)
                && matches!(progress.drain.clearance, Clearance::Recording { .. })
            {
                progress.drain.clearance = Clearance::Cleared;
            }
        }
    }
    for id in claims {
        if let Some(text) = &refused
            && awaits_record(cx, id)
        {
            let why = format!("the disruption could not be recorded: {text}");
            cancellation::cancel_drain(cx, consolidation, id, why, now);
        }
    }
}
