//! The sweeps of one cluster: which occurrences have run, and which nodes they found.
//!
//! Occurrences follow from the schedule and the time alone. A timer only wakes the engine, so a
//! lost, late or repeated timer changes nothing (docs/decisions/040-scheduled-sweeps.md).

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::coordination::lease_annotations::SweepRecords;
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, PoolName};
use crate::model::sweep::{SweepKind, SweepRecord, SweepRequest, SweepSchedule, SweepScope};
use crate::model::template_hash::{fnv1a, spread_below};

/// An occurrence may run this late, for example after a change of the leader or while the cluster
/// state is out of sync. Later, it is skipped, or runs with `catch_up`.
pub const LATE_MAX: SignedDuration = SignedDuration::from_mins(15);

/// Maximum duration of a sweep of consolidation. Nodes that a budget or a window keeps for longer
/// wait for the next sweep.
pub const CONSOLIDATION_MAX: SignedDuration = SignedDuration::from_hours(4);

/// If the clock was set back by more than this, the schedules continue from the current time.
const SET_BACK_MAX: SignedDuration = SignedDuration::from_hours(24);

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Number of nodes that were disrupted.
    pub disrupted: usize,
    /// Number of nodes that were due but blocked.
    pub blocked: usize,
    /// Number of nodes that were only observed: the cluster is in observe mode, or the node may
    /// still recover.
    pub observed: usize,
}

impl SweepResult {
    /// Returns the number of nodes that the sweep found.
    pub fn found(&self) -> usize {
        self.disrupted + self.blocked + self.observed
    }
}

/// The sweeps of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepProgress {
    schedule: SweepSchedule,
    /// The cluster's part of the jitter.
    offset: SignedDuration,
    /// No occurrence up to this time runs any more.
    done_until: Timestamp,
    next: Option<Timestamp>,
    /// Since when the schedule is in force.
    known_since: Timestamp,
    /// The occurrence of the last sweep. `None` if none is known.
    pub last: Option<Timestamp>,
    /// The result of the last sweep. `None` if a different engine ran it.
    pub result: Option<SweepResult>,
    scope: SweepScope,
    /// When the running sweep of consolidation has started, the occurrence or time of request that
    /// reports show, and its pool if it has only one.
    running_since: Timestamp,
    running_at: Timestamp,
    /// The request that has started it. `None` if its schedule has.
    running_request: Option<u64>,
    running_pool: Option<PoolName>,
}

/// Returns the id of a schedule in records.
fn schedule_id(schedule: &SweepSchedule) -> String {
    let (cron, jitter) = (&schedule.schedule, schedule.jitter.as_secs());
    let text = format!("{} {} {jitter}", cron.expression(), cron.zone());
    format!("{:08x}", fnv1a(&text) >> 32)
}

impl SweepProgress {
    fn new(cluster: &Cluster, kind: SweepKind, schedule: SweepSchedule, now: Timestamp) -> Self {
        let key = format!("{}/{}", cluster.name.as_str(), kind.as_str());
        let jitter = u64::try_from(schedule.jitter.as_secs()).unwrap_or(0);
        let offset = i64::try_from(spread_below(&key, jitter)).unwrap_or(0);
        let mut sweep = Self {
            schedule,
            offset: SignedDuration::from_secs(offset),
            done_until: now,
            next: None,
            known_since: now,
            last: None,
            result: None,
            scope: SweepScope::None,
            running_since: now,
            running_at: now,
            running_request: None,
            running_pool: None,
        };
        sweep.set_done_until(now);
        sweep
    }

    /// Continues from a record on the Lease, if it is of the same schedule and not of a clock that
    /// was ahead.
    fn resume(&mut self, record: &SweepRecord, now: Timestamp) {
        let is_ahead = record.done_until.duration_since(now) > LATE_MAX;
        if record.schedule == schedule_id(&self.schedule) && !is_ahead {
            (self.last, self.known_since) = (record.last, record.known_since);
            self.running_since = record.running_since;
            self.running_at = record.last.unwrap_or(record.done_until);
            self.scope.clone_from(&record.scope);
            self.set_done_until(record.done_until);
        }
    }

    fn set_done_until(&mut self, at: Timestamp) {
        self.done_until = at;
        self.next = self.next_after(at);
    }

    /// Returns the first occurrence after `from`, with the cluster's part of the jitter.
    fn next_after(&self, from: Timestamp) -> Option<Timestamp> {
        let from = from.checked_sub(self.offset).ok()?;
        self.schedule.schedule.next_after(from)?.checked_add(self.offset).ok()
    }

    /// Returns when the next sweep runs: in the past if it is due.
    pub fn next(&self) -> Option<Timestamp> {
        self.next
    }

    /// Returns when the sweep is overdue: two periods after the last one. `None` if it does not
    /// occur twice again.
    pub fn overdue_at(&self) -> Option<Timestamp> {
        let since = self.last.map_or(self.known_since, |at| at.max(self.known_since));
        self.next_after(self.next_after(since)?)
    }

    /// Returns when the last sweep of consolidation has started.
    pub fn running_since(&self) -> Timestamp {
        self.running_since
    }

    /// Returns whether an occurrence is due.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.next.is_some_and(|at| at <= now)
    }

    /// Returns the latest occurrence up to `now` that has not run. It covers earlier ones.
    fn due(&self, now: Timestamp) -> Option<Timestamp> {
        let mut latest = self.next.filter(|at| *at <= now)?;
        // Searches from ever earlier times, so that a year of missed sweeps costs as little as one.
        let mut back = SignedDuration::from_mins(1);
        while let Ok(from) = now.checked_sub(back)
            && from > latest
        {
            if let Some(found) = self.next_after(from).filter(|at| *at <= now) {
                latest = found;
                break;
            }
            back = back.saturating_mul(2);
        }
        while let Some(next) = self.next_after(latest).filter(|at| *at <= now) {
            latest = next;
        }
        Some(latest)
    }
}

/// Returns when the next sweep of each kind runs according to the schedules alone.
pub fn scheduled_sweeps(cluster: &Cluster, now: Timestamp) -> BTreeMap<SweepKind, Timestamp> {
    let sweeps = cluster.sweeps.iter();
    let next = sweeps.map(|(kind, schedule)| {
        let progress = SweepProgress::new(cluster, *kind, schedule.clone(), now);
        Some((*kind, progress.next()?))
    });
    next.flatten().collect()
}

/// The sweeps of one cluster, by kind. A kind without a schedule has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweeps {
    by_kind: BTreeMap<SweepKind, SweepProgress>,
    /// Requested sweeps that have not started. At most one of each kind.
    requests: BTreeMap<SweepKind, SweepRequest>,
    /// Requested sweeps that have started and have no result yet.
    requested: BTreeMap<SweepKind, SweepRequest>,
    /// True once the records on the Lease were taken over.
    resumed: bool,
    /// True if the records on the Lease are not current.
    pub unrecorded: bool,
}

/// Occurrences that a pass starts or skips, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueSweeps {
    /// Those that start.
    pub started: BTreeMap<SweepKind, Timestamp>,
    /// Those that were missed for too long.
    pub skipped: BTreeMap<SweepKind, Timestamp>,
    /// Kinds of requested sweeps that start.
    pub requested: BTreeSet<SweepKind>,
}

impl DueSweeps {
    /// Returns whether no sweep starts.
    pub fn is_empty(&self) -> bool {
        self.started.is_empty() && self.requested.is_empty()
    }

    /// Returns whether a sweep of a kind starts.
    pub fn has_started(&self, kind: SweepKind) -> bool {
        self.started.contains_key(&kind) || self.requested.contains(&kind)
    }
}

impl Sweeps {
    /// Applies the schedules of the configuration. The first call continues from the records on the
    /// Lease. Later, a new or changed schedule starts now.
    pub fn apply_schedules(&mut self, cluster: &Cluster, records: &SweepRecords, now: Timestamp) {
        let resumes = !std::mem::replace(&mut self.resumed, true);
        let known = self.by_kind.len();
        self.by_kind.retain(|kind, _| cluster.sweeps.contains_key(kind));
        self.unrecorded |= self.by_kind.len() < known;
        for (kind, schedule) in &cluster.sweeps {
            let known = self.by_kind.get_mut(kind);
            if let Some(known) = known.filter(|known| known.schedule == *schedule) {
                if known.done_until.duration_since(now) > SET_BACK_MAX {
                    known.set_done_until(now);
                }
                continue;
            }
            let mut new = SweepProgress::new(cluster, *kind, schedule.clone(), now);
            match (self.by_kind.remove(kind), records.get(kind)) {
                (Some(former), _) => {
                    (new.last, new.result, new.scope) = (former.last, former.result, former.scope);
                    (new.running_since, new.running_at) = (former.running_since, former.running_at);
                    new.running_request = former.running_request;
                    new.running_pool = former.running_pool;
                }
                (None, Some(record)) if resumes => new.resume(record, now),
                (None, _) => {}
            }
            self.unrecorded = true;
            self.by_kind.insert(*kind, new);
        }
        if resumes {
            self.unrecorded = self.records() != *records;
        }
    }

    /// Returns whether a sweep is due or requested, and its kind is `ready`.
    pub fn is_any_due(&self, ready: impl Fn(SweepKind) -> bool, now: Timestamp) -> bool {
        let requested = self.requests.values().filter(|request| request.until > now);
        let due = self.by_kind.iter().filter(|(_, sweep)| sweep.is_due(now));
        requested.map(|request| request.kind).chain(due.map(|(kind, _)| *kind)).any(ready)
    }

    /// Drops a requested sweep of consolidation that has started but had no run in time.
    pub fn expire_requests(&mut self, now: Timestamp) {
        let kind = SweepKind::Consolidation;
        let Some(request) = self.requested.get(&kind).filter(|request| request.until <= now) else {
            return;
        };
        let id = request.id;
        self.requested.remove(&kind);
        let sweep = self.by_kind.get_mut(&kind);
        if let Some(sweep) = sweep.filter(|sweep| sweep.running_request == Some(id)) {
            (sweep.scope, sweep.running_pool) = (SweepScope::None, None);
        }
    }

    /// Returns the claims that the last sweep of a kind found and that are still in its scope.
    pub fn found(&self, kind: SweepKind) -> impl Iterator<Item = &ClaimId> {
        let scope = self.by_kind.get(&kind).map(|sweep| &sweep.scope);
        let claims = match scope {
            Some(SweepScope::Claims(claims)) => Some(claims),
            _ => None,
        };
        claims.into_iter().flatten()
    }

    /// Requests a sweep. The request is ignored if it [`conflicts`](Self::conflicts) with another.
    pub fn request(&mut self, request: SweepRequest, now: Timestamp) {
        if !self.conflicts(&request, now) {
            self.requests.insert(request.kind, request);
        }
    }

    /// Returns whether a request would replace an earlier one: of the same kind without a result,
    /// or for consolidation of a different pool that is still running.
    pub fn conflicts(&self, request: &SweepRequest, now: Timestamp) -> bool {
        let requests = [&self.requests, &self.requested].into_iter();
        let mut requests = requests.filter_map(|requests| requests.get(&request.kind));
        let sweep = self.by_kind.get(&request.kind).filter(|it| it.scope == SweepScope::All);
        let running = sweep.and_then(|sweep| sweep.running_pool.as_ref());
        requests.any(|other| other.until > now) || running.is_some_and(|pool| !request.covers(pool))
    }

    /// Returns the requested sweep of a kind that has started and has no result yet.
    pub fn requested(&self, kind: SweepKind) -> Option<&SweepRequest> {
        self.requested.get(&kind)
    }

    /// Records that a requested sweep has its result.
    pub fn end_request(&mut self, kind: SweepKind) {
        self.requested.remove(&kind);
    }

    /// Returns the sweeps as if this request had started, for a dry run.
    pub fn with_request(&self, request: SweepRequest, now: Timestamp) -> Self {
        let mut sweeps = Self { requests: BTreeMap::new(), ..self.clone() };
        sweeps.start_request(request, now);
        sweeps
    }

    fn start_request(&mut self, request: SweepRequest, now: Timestamp) {
        let scheduled = self.by_kind.get_mut(&request.kind);
        if let Some(sweep) = scheduled.filter(|_| request.kind == SweepKind::Consolidation) {
            let runs = sweep.scope == SweepScope::All;
            if !runs || sweep.running_pool.as_ref().is_some_and(|pool| !request.covers(pool)) {
                (sweep.running_since, sweep.running_at) = (now, now);
                sweep.running_request = Some(request.id);
                sweep.running_pool.clone_from(&request.pool);
                sweep.result = Some(SweepResult::default());
            } else if sweep.running_pool.is_some() && request.pool.is_none() {
                // If this request gets no run in time, the sweep that it has widened ends.
                (sweep.running_request, sweep.running_pool) = (Some(request.id), None);
            }
            sweep.scope = SweepScope::All;
        }
        self.requested.insert(request.kind, request);
    }

    /// Starts the due sweeps of the kinds that are `ready`: all due nodes are in their scope until
    /// [`Self::record_check`]. Skips occurrences that were missed for too long.
    pub fn start_due(&mut self, ready: impl Fn(SweepKind) -> bool, now: Timestamp) -> DueSweeps {
        let mut due = DueSweeps::default();
        for kind in self.requests.keys().copied().collect::<Vec<_>>() {
            let starts = ready(kind);
            if let Some(request) = self.requests.remove(&kind).filter(|it| it.until > now) {
                if starts {
                    due.requested.insert(kind);
                    self.start_request(request, now);
                } else {
                    self.requests.insert(kind, request);
                }
            }
        }
        for (kind, sweep) in &mut self.by_kind {
            let Some(at) = sweep.due(now) else {
                continue;
            };
            let is_late = !sweep.schedule.catch_up && now.duration_since(at) > LATE_MAX;
            if !is_late && !ready(*kind) {
                continue;
            }
            sweep.set_done_until(at);
            self.unrecorded = true;
            if is_late {
                due.skipped.insert(*kind, at);
            } else {
                sweep.last = Some(at);
                (sweep.running_since, sweep.running_at) = (now, at);
                (sweep.running_request, sweep.running_pool) = (None, None);
                (sweep.scope, sweep.result) = (SweepScope::All, Some(SweepResult::default()));
                due.started.insert(*kind, at);
            }
        }
        due
    }

    /// Records the result of a check of all nodes. A running sweep has found all `due` claims.
    /// Later, a claim leaves the scope of the sweep once it was `evaluated` and is not due. A claim
    /// that was not evaluated, such as one whose node has not been listed yet, stays.
    pub fn record_check(
        &mut self,
        kind: SweepKind,
        mut due: BTreeSet<ClaimId>,
        evaluated: impl Fn(&ClaimId) -> bool,
        result: SweepResult,
    ) {
        let is_requested = self.requested.remove(&kind).is_some();
        let Some(sweep) = self.by_kind.get_mut(&kind) else {
            return;
        };
        if kind == SweepKind::Repair {
            // Unhealthy nodes wait for no sweep, so their claims are not recorded.
            due.clear();
        }
        match &mut sweep.scope {
            SweepScope::None if is_requested => {
                self.unrecorded = true;
                sweep.scope = SweepScope::Claims(due);
            }
            SweepScope::None => {}
            SweepScope::All => {
                (sweep.scope, sweep.result) = (SweepScope::Claims(due), Some(result));
            }
            SweepScope::Claims(claims) => {
                let known = claims.clone();
                claims.retain(|claim| due.contains(claim) || !evaluated(claim));
                if is_requested {
                    claims.append(&mut due);
                }
                self.unrecorded |= *claims != known;
            }
        }
    }

    /// Adds what one run of consolidation found. The nodes that the last run blocks are blocked.
    pub fn record_consolidation(&mut self, run: SweepResult) {
        let sweep = self.by_kind.get_mut(&SweepKind::Consolidation);
        if let Some(sweep) = sweep.filter(|sweep| sweep.scope == SweepScope::All) {
            let result = sweep.result.get_or_insert_default();
            result.disrupted += run.disrupted;
            result.observed += run.observed;
            result.blocked = run.blocked;
        }
    }

    /// Ends a running sweep of consolidation, if it `is_complete` or has lasted for
    /// [`CONSOLIDATION_MAX`]. Returns its occurrence and its result.
    pub fn end_consolidation(
        &mut self,
        is_complete: bool,
        now: Timestamp,
    ) -> Option<(Timestamp, SweepResult)> {
        let sweep = self.by_kind.get_mut(&SweepKind::Consolidation)?;
        if sweep.scope != SweepScope::All {
            return None;
        }
        let at = sweep.running_at;
        if !is_complete && now.duration_since(sweep.running_since) < CONSOLIDATION_MAX {
            return None;
        }
        (sweep.scope, sweep.running_pool) = (SweepScope::None, None);
        self.unrecorded = true;
        Some((at, sweep.result.unwrap_or_default()))
    }

    /// Returns whether no kind has a schedule.
    pub fn is_empty(&self) -> bool {
        self.by_kind.is_empty()
    }

    /// Returns all sweeps with a schedule, by kind.
    pub fn iter(&self) -> impl Iterator<Item = (SweepKind, &SweepProgress)> {
        self.by_kind.iter().map(|(kind, sweep)| (*kind, sweep))
    }

    /// Returns the sweeps of a kind, if it has a schedule.
    pub fn get(&self, kind: SweepKind) -> Option<&SweepProgress> {
        self.by_kind.get(&kind)
    }

    /// Returns whether a node may be disrupted for the reason of this kind. Before the schedules
    /// were applied, it may not.
    pub fn permits(&self, kind: SweepKind, claim: Option<&ClaimId>, pool: &PoolName) -> bool {
        let Some(sweep) = self.by_kind.get(&kind) else {
            return false;
        };
        let is_requested = kind != SweepKind::Consolidation
            && self.requested.get(&kind).is_some_and(|request| request.covers(pool));
        is_requested
            || match &sweep.scope {
                SweepScope::None => false,
                SweepScope::All => sweep.running_pool.as_ref().is_none_or(|only| only == pool),
                SweepScope::Claims(claims) => claim.is_some_and(|claim| claims.contains(claim)),
            }
    }

    /// Returns the records for the Lease.
    pub fn records(&self) -> SweepRecords {
        let record = |sweep: &SweepProgress| SweepRecord {
            done_until: sweep.done_until,
            schedule: schedule_id(&sweep.schedule),
            last: sweep.last,
            known_since: sweep.known_since,
            running_since: sweep.running_since,
            // A requested sweep ends with the leadership.
            scope: match sweep.running_request {
                Some(_) if sweep.scope == SweepScope::All => SweepScope::None,
                _ => sweep.scope.clone(),
            },
        };
        self.by_kind.iter().map(|(kind, sweep)| (*kind, record(sweep))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::civil::{Date, DateTime, date};
    use jiff::tz::{AmbiguousOffset, TimeZone};
    use jiff::{SignedDuration, Timestamp, ToSpan};

    use super::Sweeps;
    use crate::coordination::lease_annotations::{AnnotatedLease, LeaseAnnotations, SweepRecords};
    use crate::coordination::lease_annotations::{SWEEPS, sweeps_text};
    use crate::model::cluster::Cluster;
    use crate::model::cron_schedule::CronSchedule;
    use crate::model::sweep::{SweepKind, SweepRequest, SweepSchedule};

    /// A cluster whose drift sweeps have this schedule.
    fn cluster(expression: &str, zone: &str, jitter: SignedDuration, catch_up: bool) -> Cluster {
        let schedule = CronSchedule::new(expression, zone).expect("a schedule");
        let schedule = SweepSchedule { schedule, jitter, catch_up };
        let sweeps = [(SweepKind::Drift, schedule)].into();
        Cluster { name: "one".into(), sweeps, ..Cluster::default() }
    }

    fn started(sweeps: &mut Sweeps, now: Timestamp) -> Option<Timestamp> {
        sweeps.start_due(|_| true, now).started.get(&SweepKind::Drift).copied()
    }

    /// The records after they were written to a Lease and read again.
    fn through_lease(records: &SweepRecords) -> SweepRecords {
        let annotations = [(SWEEPS.to_owned(), sweeps_text(records))];
        let lease = AnnotatedLease { version: "1".into(), annotations: annotations.into() };
        LeaseAnnotations::from_lease(Some(&lease), &LeaseAnnotations::default()).sweeps
    }

    /// When a clock in `zone` first shows this time or, if it skips the time, when it has moved.
    fn instant_of(zone: &TimeZone, civil: DateTime) -> Timestamp {
        let ambiguous = zone.to_ambiguous_timestamp(civil);
        match ambiguous.offset() {
            AmbiguousOffset::Gap { .. } => {
                let before = ambiguous.later().expect("in range") - SignedDuration::from_hours(12);
                let change = zone.following(before).next().expect("a change");
                change.timestamp()
            }
            _ => ambiguous.earlier().expect("in range"),
        }
    }

    const ZONES: [&str; 3] = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];

    fn days_of_year() -> impl Iterator<Item = Date> {
        date(2026, 1, 1).series(1.day()).take(365)
    }

    /// Wakes a year of daily sweeps at random times: early, late, repeated, after reloads and
    /// restarts. Each occurrence runs once, or is covered by the next one if no wake-up came
    /// between them.
    #[test]
    fn each_occurrence_of_a_year_runs_exactly_once_across_clock_changes() {
        for (seed, zone_name) in ZONES.into_iter().enumerate() {
            let zone = TimeZone::get(zone_name).expect("a zone");
            let daily = |day: Date| instant_of(&zone, day.at(2, 30, 0, 0));
            let expected: Vec<Timestamp> = days_of_year().map(daily).collect();
            let cluster = cluster("30 2 * * *", zone_name, SignedDuration::ZERO, true);
            let mut rng = fastrand::Rng::with_seed(seed as u64);
            let mut now = expected[0] - SignedDuration::from_hours(1);
            let mut sweeps = Sweeps::default();
            sweeps.apply_schedules(&cluster, &SweepRecords::new(), now);
            let mut ran: Vec<(Timestamp, Timestamp)> = Vec::new();
            while now < expected[364] {
                // Most wake-ups are minutes apart, some are lost for more than a day.
                let most = if rng.u32(..200) == 0 { 200_000 } else { 7_200 };
                let before = now;
                now += SignedDuration::from_secs(rng.i64(0..most));
                if rng.u32(..20) == 0 && !ran.is_empty() {
                    let records = through_lease(&sweeps.records());
                    sweeps = Sweeps::default();
                    sweeps.apply_schedules(&cluster, &records, now);
                }
                sweeps.apply_schedules(&cluster, &SweepRecords::new(), now);
                let occurred = expected.iter().rev().find(|at| **at <= now && **at > before);
                let at = started(&mut sweeps, now);
                assert_eq!(at, occurred.copied(), "{zone_name} {before} to {now}");
                ran.extend(at.map(|at| (at, now)));
                assert_eq!(started(&mut sweeps, now), None, "{zone_name} {now}: twice");
            }
            let distinct: BTreeSet<Timestamp> = ran.iter().map(|(at, _)| *at).collect();
            assert_eq!(distinct.len(), ran.len(), "{zone_name}");
            assert!(ran.len() > 330, "{zone_name}: {}", ran.len());
        }
    }

    #[test]
    fn sweeps_on_the_days_of_clock_changes_follow_the_local_clock() {
        let rows = [
            // The clock in Berlin moves from 02:00 to 03:00 at 01:00 UTC.
            ("Europe/Berlin", "30 2 * * *", "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z"),
            ("Europe/Berlin", "30 3 * * *", "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"),
            // It moves from 03:00 to 02:00 at 01:00 UTC: 02:30 occurs twice, and the first counts.
            ("Europe/Berlin", "30 2 * * *", "2026-10-24T23:00:00Z", "2026-10-25T00:30:00Z"),
            ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
            ("Europe/Berlin", "30 3 * * *", "2026-10-25T00:00:00Z", "2026-10-25T02:30:00Z"),
            ("America/New_York", "30 2 * * *", "2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z"),
            ("America/New_York", "30 1 * * *", "2026-11-01T04:00:00Z", "2026-11-01T05:30:00Z"),
            ("America/New_York", "30 1 * * *", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"),
            // Lord Howe moves by half an hour, at 02:00 local time.
            ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T15:00:00Z", "2026-10-03T15:30:00Z"),
            ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T14:00:00Z", "2026-04-04T14:45:00Z"),
            ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"),
        ];
        for (zone, expression, from, expect) in rows {
            let at = |text: &str| text.parse::<Timestamp>().expect("a time");
            let mut sweeps = Sweeps::default();
            let cluster = cluster(expression, zone, SignedDuration::ZERO, false);
            sweeps.apply_schedules(&cluster, &SweepRecords::new(), at(from));
            let next = sweeps.get(SweepKind::Drift).and_then(|sweep| sweep.next());
            assert_eq!(next, Some(at(expect)), "{zone} {expression} after {from}");
        }
    }

    #[test]
    fn sweep_missed_for_longer_than_a_handover_runs_only_with_catch_up() {
        let noon: Timestamp = "2026-11-20T12:00:00Z".parse().expect("a time");
        let minutes = SignedDuration::from_mins;
        for (catch_up, down, expect) in [
            (false, minutes(14), true),
            (false, minutes(16), false),
            (true, minutes(16), true),
            (true, SignedDuration::from_hours(24 * 400), true),
        ] {
            let cluster = cluster("0 12 * * *", "UTC", SignedDuration::ZERO, catch_up);
            let mut sweeps = Sweeps::default();
            sweeps.apply_schedules(&cluster, &SweepRecords::new(), noon - minutes(24 * 60 + 1));
            let yesterday = noon - minutes(24 * 60);
            assert_eq!(started(&mut sweeps, yesterday), Some(yesterday));
            let records = through_lease(&sweeps.records());
            let now = noon + down;
            let mut sweeps = Sweeps::default();
            sweeps.apply_schedules(&cluster, &records, now);
            assert_eq!(started(&mut sweeps, now).is_some(), expect, "{catch_up} {down:#}");
            assert_eq!(started(&mut sweeps, now), None);
            // The same holds for an engine that could not decide meanwhile.
            let mut sweeps = Sweeps::default();
            sweeps.apply_schedules(&cluster, &SweepRecords::new(), noon - minutes(1));
            assert_eq!(started(&mut sweeps, now).is_some(), expect, "{catch_up} {down:#}");
        }
    }

    /// The next leader shows the last sweep, and reports it as overdue in time.
    #[test]
    fn record_keeps_the_last_sweep_although_later_ones_were_skipped() {
        let noon: Timestamp = "2026-11-20T12:00:00Z".parse().expect("a time");
        let days = |count: i64| SignedDuration::from_hours(24 * count);
        let cluster = cluster("0 12 * * *", "UTC", SignedDuration::ZERO, false);
        let mut sweeps = Sweeps::default();
        sweeps.apply_schedules(&cluster, &SweepRecords::new(), noon - days(1));
        assert_eq!(started(&mut sweeps, noon), Some(noon));
        for day in 1..4 {
            let late = noon + days(day) + SignedDuration::from_hours(1);
            let records = through_lease(&sweeps.records());
            sweeps = Sweeps::default();
            sweeps.apply_schedules(&cluster, &records, late);
            assert_eq!(started(&mut sweeps, late), None);
            let sweep = sweeps.get(SweepKind::Drift).expect("a schedule");
            assert_eq!((sweep.last, sweep.next()), (Some(noon), Some(noon + days(day + 1))));
            assert_eq!(sweep.overdue_at(), Some(noon + days(2)));
        }
    }

    /// The last sweep of the former schedule does not make the new one overdue.
    #[test]
    fn changed_schedule_is_overdue_two_periods_after_the_change_even_after_a_restart() {
        let noon: Timestamp = "2026-11-01T12:00:00Z".parse().expect("a time");
        let days = |count: i64| SignedDuration::from_hours(24 * count);
        let monthly = cluster("0 12 1 * *", "UTC", SignedDuration::ZERO, false);
        let daily = cluster("0 12 * * *", "UTC", SignedDuration::ZERO, false);
        let mut sweeps = Sweeps::default();
        sweeps.apply_schedules(&monthly, &SweepRecords::new(), noon - days(1));
        assert_eq!(started(&mut sweeps, noon), Some(noon));
        let changed = noon + days(19) + SignedDuration::from_hours(1);
        sweeps.apply_schedules(&daily, &SweepRecords::new(), changed);
        // A sweep that is always missed becomes overdue although the daemon is restarted.
        for (day, is_overdue) in [(19, false), (20, false), (21, true), (22, true)] {
            let now = noon + days(day) + SignedDuration::from_hours(2);
            let records = through_lease(&sweeps.records());
            sweeps = Sweeps::default();
            sweeps.apply_schedules(&daily, &records, now);
            assert_eq!(started(&mut sweeps, now), None);
            let sweep = sweeps.get(SweepKind::Drift).expect("a schedule");
            assert_eq!(sweep.overdue_at(), Some(noon + days(21)));
            assert_eq!(sweep.overdue_at() <= Some(now), is_overdue, "day {day}");
        }
    }

    /// A sweep of consolidation that ran late goes on after a restart, for four hours in total.
    #[test]
    fn late_consolidation_sweep_lasts_four_hours_across_a_restart() {
        let noon: Timestamp = "2026-11-20T12:00:00Z".parse().expect("a time");
        let hours = SignedDuration::from_hours;
        let kind = SweepKind::Consolidation;
        let mut cluster = cluster("0 12 * * *", "UTC", SignedDuration::ZERO, true);
        let schedule = cluster.sweeps.remove(&SweepKind::Drift).expect("a schedule");
        cluster.sweeps.insert(kind, schedule);
        let mut sweeps = Sweeps::default();
        sweeps.apply_schedules(&cluster, &SweepRecords::new(), noon - hours(1));
        sweeps.start_due(|_| true, noon + hours(6));
        let records = through_lease(&sweeps.records());
        let mut sweeps = Sweeps::default();
        sweeps.apply_schedules(&cluster, &records, noon + hours(7));
        let pool = "one".into();
        assert_eq!(sweeps.end_consolidation(false, noon + hours(9)), None);
        assert!(sweeps.permits(kind, None, &pool));
        assert!(sweeps.end_consolidation(false, noon + hours(10)).is_some());
        assert!(!sweeps.permits(kind, None, &pool));
    }

    /// A request for all pools widens a requested sweep of one pool. If it gets no run in time, no
    /// pool may be disrupted any more.
    #[test]
    fn request_that_gets_no_run_in_time_ends_the_sweep_that_it_widened() {
        let noon: Timestamp = "2026-11-20T12:00:00Z".parse().expect("a time");
        let kind = SweepKind::Consolidation;
        let mut cluster = cluster("0 20 * * *", "UTC", SignedDuration::ZERO, false);
        let schedule = cluster.sweeps.remove(&SweepKind::Drift).expect("a schedule");
        cluster.sweeps.insert(kind, schedule);
        let mut sweeps = Sweeps::default();
        sweeps.apply_schedules(&cluster, &SweepRecords::new(), noon);
        let minute = SignedDuration::from_mins(1);
        let request = |id: u64, pool: Option<&str>, at: Timestamp| SweepRequest {
            id,
            kind,
            pool: pool.map(Into::into),
            until: at + minute,
        };
        let permits =
            |sweeps: &Sweeps| ["one", "two"].map(|pool| sweeps.permits(kind, None, &pool.into()));
        sweeps.request(request(1, Some("one"), noon), noon);
        sweeps.start_due(|_| true, noon);
        assert_eq!(permits(&sweeps), [true, false]);
        // Its first run has answered the request, and the sweep continues.
        sweeps.end_request(kind);
        let later = noon + minute * 2;
        sweeps.expire_requests(later);
        assert!(sweeps.conflicts(&request(2, Some("two"), later), later));
        sweeps.request(request(2, None, later), later);
        sweeps.start_due(|_| true, later);
        assert_eq!(permits(&sweeps), [true, true]);
        sweeps.expire_requests(later + minute);
        assert_eq!(permits(&sweeps), [false, false]);
    }

    #[test]
    fn jitter_delays_each_cluster_by_its_own_constant_part() {
        let noon: Timestamp = "2026-11-20T12:00:00Z".parse().expect("a time");
        let minute = SignedDuration::from_mins(1);
        let mut offsets = BTreeSet::new();
        for number in 0..50 {
            let mut cluster = cluster("*/10 * * * *", "UTC", minute, false);
            cluster.name = format!("cluster-{number}").as_str().into();
            let mut sweeps = Sweeps::default();
            sweeps.apply_schedules(&cluster, &SweepRecords::new(), noon - minute);
            let first = sweeps.get(SweepKind::Drift).and_then(|sweep| sweep.next());
            let offset = first.expect("an occurrence").duration_since(noon);
            assert!(offset >= SignedDuration::ZERO && offset < minute, "{offset:#}");
            assert_eq!(started(&mut sweeps, noon + offset), Some(noon + offset));
            let second = sweeps.get(SweepKind::Drift).and_then(|sweep| sweep.next());
            assert_eq!(second, Some(noon + offset + minute * 10));
            offsets.insert(offset);
        }
        assert!(offsets.len() > 20, "{}", offsets.len());
    }

    #[test]
    fn changed_schedule_skips_the_past_and_a_clock_set_back_does_not_stop_sweeps() {
        let noon: Timestamp = "2026-11-20T12:00:00Z".parse().expect("a time");
        let hours = SignedDuration::from_hours;
        let daily = cluster("0 12 * * *", "UTC", SignedDuration::ZERO, false);
        let mut sweeps = Sweeps::default();
        sweeps.apply_schedules(&daily, &SweepRecords::new(), noon - hours(1));
        assert_eq!(started(&mut sweeps, noon), Some(noon));
        // The clock shows the same hour again: the sweep does not run twice.
        sweeps.apply_schedules(&daily, &SweepRecords::new(), noon - hours(1));
        assert_eq!(started(&mut sweeps, noon), None);
        // A clock that was years ahead does not suspend sweeps for years.
        let behind = noon - hours(24 * 800);
        sweeps.apply_schedules(&daily, &SweepRecords::new(), behind);
        assert_eq!(started(&mut sweeps, behind + hours(24)), Some(behind + hours(24)));
        // 11:00 has passed when the schedule changes to it.
        let eleven = cluster("0 11 * * *", "UTC", SignedDuration::ZERO, true);
        sweeps.apply_schedules(&eleven, &SweepRecords::new(), behind + hours(24));
        assert_eq!(started(&mut sweeps, behind + hours(24)), None);
        assert_eq!(started(&mut sweeps, behind + hours(47)), Some(behind + hours(47)));
        // Without a schedule there are no sweeps.
        sweeps.apply_schedules(&Cluster::default(), &SweepRecords::new(), noon);
        assert_eq!(sweeps.get(SweepKind::Drift), None);
    }
}
