//! Reads and writes annotations on the cluster's Lease. Disruptions counted by a rate are recorded
//! there, and the record is confirmed before the node is tainted.
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
use crate::engine::Engine;
use crate::engine::backoff::Backoff;
use crate::engine::command::{Command, CommandResult, FailureKind, LeasePatch};
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::model::id::{ClaimId, PoolName};
use crate::model::pool::{Budget, Reason};

/// The first pass after this time reads the Lease again. Passes are at most half a minute apart.
const READ_APART: SignedDuration = SignedDuration::from_secs(10);

/// If the Lease was not read for this long, voluntary disruption is suspended: a user may have
/// paused the cluster.
const UNREAD_MAX: SignedDuration = SignedDuration::from_mins(2);

/// A disruption is cancelled if its grant and its record take longer than this.
const WRITE_MAX: SignedDuration = SignedDuration::from_mins(2);

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
    /// Pauses as last reported, and invalid annotations.
    paused: BTreeSet<Option<PoolName>>,
    garbled: Option<String>,
    /// Blocked disruptions as last reported.
    shut: BTreeSet<(PoolName, Reason, &'static str)>,
}

impl LeaseSync {
    /// Records these blocked disruptions as reported. Returns the new ones.
    pub(super) fn new_blocked_disruptions(
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
}

impl Engine {
    /// Returns the pools with blocked disruptions, their reasons and what blocks them: the current
    /// `Report::Shut` reports.
    pub fn blocked_disruptions(&self) -> impl Iterator<Item = &(PoolName, Reason, &'static str)> {
        self.noting.shut.iter()
    }
}

/// Error message before the first read of the Lease.
pub(super) const UNREAD: &str = "the cluster's Lease has not been read yet";

impl Engine {
    /// Reads the Lease if it is due.
    pub(super) fn read_lease(&mut self, now: Timestamp) {
        if let Some(read) = self.noting.read
            && now.duration_since(read) > UNREAD_MAX
        {
            let why = format!("the cluster's Lease was last read at {read}");
            self.state.notes.fault.get_or_insert(why);
        }
        self.report_pauses(now);
        let read = self.noting.read;
        let is_due =
            self.noting.stale || read.is_none_or(|at| now.duration_since(at) >= READ_APART);
        if !is_due || self.noting.busy {
            return;
        }
        if self.waits_until(
            self.noting.retry.next_attempt(),
            "the cluster's Lease is to be read",
            now,
        ) {
            return;
        }
        self.noting.busy = true;
        self.queue_command(Command::ReadLease, CommandPurpose::ReadLease, now);
    }

    /// Records the content of the Lease, or why it is unknown.
    pub(super) fn on_lease_read(&mut self, result: CommandResult, now: Timestamp) {
        self.noting.busy = false;
        match result {
            CommandResult::Lease(lease) => {
                self.noting.retry = Backoff::default();
                self.apply_lease(lease.as_ref(), now);
            }
            CommandResult::Failed { text, .. } => {
                self.noting.retry.record_failure(now, &mut self.rng);
                if self.noting.read.is_none() {
                    self.state.notes.fault = Some(format!("{UNREAD}: {text}"));
                }
            }
            _ => self.noting.retry.record_failure(now, &mut self.rng),
        }
    }

    fn apply_lease(&mut self, lease: Option<&AnnotatedLease>, now: Timestamp) {
        (self.noting.read, self.noting.stale) = (Some(now), false);
        self.state.notes = LeaseAnnotations::from_lease(lease, &self.state.notes);
        let garbled = self.state.notes.garbled.clone();
        if self.noting.garbled != garbled {
            self.noting.garbled.clone_from(&garbled);
            if let Some(text) = garbled {
                let (command, kind) = ("read_lease", FailureKind::Invalid);
                self.push_report(Report::Failed { command, kind, text });
            }
        }
        self.report_pauses(now);
        self.check_accepted_change();
    }

    /// Reports new and ended pauses.
    fn report_pauses(&mut self, now: Timestamp) {
        let paused = self.state.notes.paused_pools(now);
        let known = std::mem::replace(&mut self.noting.paused, paused.clone());
        for pool in known.difference(&paused).cloned() {
            self.push_report(Report::Resumed { pool });
        }
        for pool in paused.difference(&known).cloned() {
            let pause = self.state.notes.pauses.get(&pool).cloned();
            if let Some(pause) = pause {
                let (until, why) = (pause.until, pause.reason);
                self.push_report(Report::Paused { pool, until, why });
            }
        }
        let pauses = self.state.notes.pauses.values();
        let active = pauses.filter(|pause| pause.is_active(now));
        self.wake_at(active.filter_map(|pause| pause.until).min(), "a pause has ended");
    }

    /// Returns whether a disrupted node may be tainted. A pause blocks it, and a disruption counted
    /// by a rate must be recorded first. A node at its hard maximum age waits for neither.
    pub(super) fn is_cleared(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) -> bool {
        let cleared = self.drain_of(id).is_some_and(|drain| drain.cleared);
        if cleared || !reason.is_budgeted() {
            return true;
        }
        let Some(claim) = self.claim(id) else {
            return false;
        };
        if claim.must_be_disrupted(now) {
            self.progress_of(id).drain.cleared = true;
            return true;
        }
        let pool = claim.record.pool.clone();
        let paused = self.state.notes.pause_of(&pool, now);
        if let Some((_, pause)) = paused {
            let why = format!("paused: {}", pause.reason);
            self.cancel_disruption(id, why, now);
            return false;
        }
        let until = claim.since.checked_add(WRITE_MAX).unwrap_or(now);
        if until <= now {
            let why = format!("it was not allowed and written down within {WRITE_MAX:#}");
            self.cancel_drain(id, why, now);
            return false;
        }
        self.wake_at(until, "request a grant for a disruption");
        if self.request_disruption(id, reason, now) {
            return false;
        }
        let counted = self.budgets_for(&pool).any(|budget| budget.rate_for(reason).is_some());
        let drain = &mut self.works.entry(id.clone()).or_default().drain;
        (drain.cleared, drain.to_note) = (!counted, counted);
        !counted
    }

    /// Returns all budgets that count nodes of a pool.
    fn budgets_for(&self, pool: &PoolName) -> impl Iterator<Item = &Budget> {
        let cluster = &self.state.cluster;
        let pools = cluster.pool(pool.as_str()).into_iter();
        let pool_budgets = pools.flat_map(|pool| &pool.disruption.budgets);
        let fleet = self.state.fleet.iter().flat_map(|fleet| &fleet.budgets);
        pool_budgets.chain(&cluster.disruption.budgets).chain(fleet)
    }

    /// Returns the start of the longest rate period: older records are not needed. Rates of the
    /// cluster and the fleet also count nodes of removed pools.
    fn remembered_since(&self, now: Timestamp) -> Timestamp {
        let cluster = &self.state.cluster;
        let pools = cluster.pools.iter().map(|pool| &pool.disruption.budgets);
        let fleet = self.state.fleet.iter().map(|fleet| &fleet.budgets);
        let budgets = pools.chain(fleet).chain([&cluster.disruption.budgets]);
        let rates = budgets.flatten().filter_map(|budget| budget.rate);
        let longest = rates.map(|rate| rate.per).max();
        longest.and_then(|period| now.checked_sub(period).ok()).unwrap_or(now)
    }

    /// Records the disruptions that wait for it.
    pub(super) fn record_disruptions(&mut self, now: Timestamp) {
        let ids = self.state.ledger.claims.keys();
        let waiting: Vec<ClaimId> = ids.filter(|id| self.awaits_record(id)).cloned().collect();
        if waiting.is_empty() {
            return;
        }
        let (mut more, mut stay) = (BTreeMap::new(), Vec::new());
        self.split_by_budget(waiting, &mut more, &mut stay, now);
        for (id, why) in stay {
            self.postpone_drain(&id, why, now);
        }
        if more.is_empty() {
            return;
        }
        if self.noting.busy || self.noting.stale {
            // A result without news still matters here.
            self.happened = true;
            return;
        }
        let since = self.remembered_since(now);
        let Some(text) = self.state.notes.let_go_text(&more, since) else {
            let why = format!("the cluster's Lease remembers {DISRUPTED_NODES_MAX} nodes already");
            for id in more.keys() {
                self.postpone_drain(id, why.clone(), now);
            }
            return;
        };
        self.noting.busy = true;
        let patch = LeasePatch {
            version: self.state.notes.version.clone(),
            annotations: vec![
                (DISRUPTED_NODES.to_owned(), Some(text)),
                (DISRUPTED_NODES_FORMER.to_owned(), None),
            ],
        };
        let purpose = CommandPurpose::NoteLetGo(more.into_keys().collect());
        self.queue_command(Command::PatchLease(patch), purpose, now);
    }

    /// Returns whether a disruption waits for its record.
    fn awaits_record(&self, id: &ClaimId) -> bool {
        let leaving = self.claim(id).and_then(|claim| claim.leaving);
        leaving.is_some_and(Reason::is_budgeted)
            && self.drain_of(id).is_some_and(|drain| drain.to_note && !drain.cleared)
    }

    /// Sorts the waiting disruptions into those that the current records permit and those that are
    /// postponed, with the reason.
    fn split_by_budget(
        &self,
        waiting: Vec<ClaimId>,
        more: &mut BTreeMap<ClaimId, DisruptionRecord>,
        stay: &mut Vec<(ClaimId, String)>,
        now: Timestamp,
    ) {
        let mut disruption_view = self.state.disruption_view(now);
        disruption_view.let_go.clone_from(&self.state.notes.let_go);
        let mut budgets = Budgets::new(&disruption_view, now);
        for id in waiting {
            let Some(claim) = self.claim(&id) else {
                continue;
            };
            let (Some(reason), Some(_)) = (claim.leaving, self.node_of(claim)) else {
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
        &mut self,
        claims: &[ClaimId],
        result: CommandResult,
        now: Timestamp,
    ) {
        self.noting.busy = false;
        match result {
            CommandResult::Lease(Some(lease)) => {
                self.noting.retry = Backoff::default();
                self.apply_lease(Some(&lease), now);
                for id in claims {
                    let kept = self.state.notes.let_go.contains_key(id);
                    if let Some(progress) = self.works.get_mut(id).filter(|_| kept) {
                        progress.drain.cleared = progress.drain.to_note;
                    }
                }
            }
            CommandResult::Failed { kind, text } => {
                self.noting.stale = true;
                self.noting.retry.record_failure(now, &mut self.rng);
                if matches!(kind, FailureKind::Denied | FailureKind::Invalid) {
                    for id in claims {
                        let why = format!("it could not be written down: {text}");
                        if self.awaits_record(id) {
                            self.cancel_drain(id, why, now);
                        }
                    }
                }
            }
            _ => self.noting.stale = true,
        }
    }
}
