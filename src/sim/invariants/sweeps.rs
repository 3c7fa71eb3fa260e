//! Invariants for scheduled sweeps: when they run, and which nodes are disrupted for their reasons.
//! Occurrences are calculated from [`SweepTimetable`], and runs are taken from reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::claim::{TAG_POOL, claim_id};
use crate::model::cluster::Cluster;
use crate::model::node::Node;
use crate::model::pool::Reason;
use crate::model::sweep::SweepKind;
use crate::sim::Setup;
use crate::sim::cloud::instance::SimInstance;
use crate::sim::event_queue::time_after;
use crate::sim::invariants::disruption::is_overdue;
use crate::sim::invariants::{Checker, GroundTruth, Invariant};
use crate::sim::sweep_timetable::SweepTimetable;

/// A sweep that runs later than this needs `catch_up`.
const LATE_MAX: SignedDuration = SignedDuration::from_mins(15);

/// Maximum time from the start of a sweep of consolidation to the last decision that it permits.
/// With `catch_up`, it may start long after its occurrence.
const CONSOLIDATION_MAX: SignedDuration = SignedDuration::from_hours(4);

/// Maximum time between a pass that ends a sweep of consolidation and the one before.
const PASS_MAX: SignedDuration = SignedDuration::from_mins(1);

/// Maximum time from a decision to its taint. The record on the Lease may fail several times.
const TAINT_MAX: SignedDuration = SignedDuration::from_mins(35);

/// Time within which an engine that has been in sync starts or skips a due sweep.
const START_MAX: SignedDuration = SignedDuration::from_mins(1);

/// Maximum time from the plan of a claim to the launch of its instance.
const LAUNCH_MAX: SignedDuration = SignedDuration::from_mins(15);

/// Maximum time for which the daemon is stopped by faults that every scenario may have.
const STOP_MAX: SignedDuration = SignedDuration::from_secs(90);

/// The highest percentage of its lifetime by which a node expires early.
const EXPIRES_EARLY: i32 = 10;

/// The annotation of the Lease with the last sweeps.
const RECORDS: &str = "outrigger.dev/sweeps";

/// One run of a sweep.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Its occurrence, with the jitter of the cluster.
    at: Timestamp,
    started: Timestamp,
    /// When a sweep of consolidation was reported as complete.
    ended: Option<Timestamp>,
    /// The engine that ran it.
    life: u64,
}

/// What is known about the sweeps of one kind.
#[derive(Clone, Debug)]
struct Observed {
    timetable: SweepTimetable,
    runs: Vec<Run>,
    /// The jitter of the cluster, from the first run.
    jitter: Option<i64>,
    /// The last occurrence that was started or skipped.
    handled: Option<Timestamp>,
    /// No occurrence up to this time may run: the Lease recorded it before the engine started, or
    /// the engine was the first that knew the schedule.
    floor: Timestamp,
    /// All occurrences after this time must be handled. `None` until an engine was in sync.
    since: Option<Timestamp>,
    /// The last sweep of consolidation that the engine of this life has shown.
    shown: Option<Timestamp>,
}

/// A disruption that only a sweep permits. It is checked after all reports of its pass.
#[derive(Clone, Debug)]
struct SweptDisruption {
    kind: SweepKind,
    /// Launch of the instance.
    launched: Timestamp,
    pool: String,
    /// Time since the decision, at most.
    delay: SignedDuration,
    text: String,
}

/// The sweeps of a run of the simulation.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedSweeps {
    kinds: BTreeMap<SweepKind, Observed>,
    /// All configurations, with the times from which they apply.
    configs: Vec<(Timestamp, Arc<Cluster>)>,
    /// From this time on, no sweep is configured.
    until: Timestamp,
    life: u64,
    in_sync_since: Option<Timestamp>,
    pending: Vec<SweptDisruption>,
}

/// Returns the kind of sweep without which no node is disrupted for a reason.
fn kind_of(reason: Reason) -> Option<SweepKind> {
    match reason {
        Reason::Drifted => Some(SweepKind::Drift),
        Reason::Expired => Some(SweepKind::Expiry),
        Reason::Underutilized => Some(SweepKind::Consolidation),
        _ => None,
    }
}

/// Returns the second up to which sweeps of a kind are recorded, and whether the last one runs.
fn recorded(records: &str, kind: SweepKind) -> Option<(Timestamp, bool)> {
    let mut parts = records.split(';').map(|part| part.split(' ').collect::<Vec<_>>());
    let words = parts.find(|words| words.first() == Some(&kind.as_str()))?;
    let second = words.get(1)?.parse().ok()?;
    Some((Timestamp::from_second(second).ok()?, words.contains(&"*")))
}

impl Observed {
    /// Returns whether a run permits a disruption of consolidation that was decided at most `delay`
    /// ago.
    fn lasts(&self, delay: SignedDuration, now: Timestamp) -> bool {
        self.runs.iter().any(|run| {
            let ended = run.ended.is_some_and(|at| time_after(at, delay) < now);
            let latest = time_after(run.started, CONSOLIDATION_MAX + PASS_MAX + delay);
            run.started <= now && !ended && now <= latest
        })
    }

    /// Returns the latest occurrence up to a time, with the largest possible jitter.
    fn last_due(&self, at: Timestamp) -> Timestamp {
        let jitter = self.jitter.unwrap_or((self.timetable.jitter - 1).max(0));
        let jitter = SignedDuration::from_secs(jitter);
        let from = at.checked_sub(jitter).unwrap_or(at);
        time_after(self.timetable.last_occurrence(from), jitter)
    }
}

impl ObservedSweeps {
    /// Returns the earliest time at which a node may have drifted or expired.
    fn due_from(&self, disruption: &SweptDisruption, now: Timestamp) -> Timestamp {
        let configs = self.configs.iter().filter(|(at, _)| *at <= now);
        let pools = configs.map(|(at, config)| (*at, config.pool(&disruption.pool)));
        let pools: Vec<_> = pools.collect();
        let planned = disruption.launched.checked_sub(LAUNCH_MAX).unwrap_or(disruption.launched);
        let due = if disruption.kind == SweepKind::Drift {
            let changes = pools.windows(2).filter(|pair| pair[0].1 != pair[1].1);
            let mut times = changes.map(|pair| pair[1].0);
            times.find(|at| *at >= planned)
        } else {
            let lifetimes = pools.iter().filter_map(|(_, pool)| pool.as_ref()?.expire_after);
            let earliest = lifetimes.min().map(|after| after - after / 100 * EXPIRES_EARLY);
            earliest.map(|after| time_after(planned, after))
        };
        due.map_or(disruption.launched, |at| at.max(disruption.launched))
    }

    /// Returns whether some run of a sweep permits a disruption.
    fn is_permitted(&self, disruption: &SweptDisruption, now: Timestamp) -> bool {
        let Some(observed) = self.kinds.get(&disruption.kind) else {
            return true;
        };
        if disruption.kind == SweepKind::Consolidation {
            return observed.lasts(disruption.delay, now);
        }
        let due = self.due_from(disruption, now);
        observed.runs.iter().any(|run| due <= run.started && run.started <= now)
    }
}

impl Checker {
    /// Prepares the checks of sweeps. Without sweeps in the setup, nothing is checked.
    pub fn expect_sweeps(&mut self, setup: &Setup) {
        let start = setup.scenario.start;
        let observed = |timetable: &SweepTimetable| Observed {
            timetable: *timetable,
            runs: Vec::new(),
            jitter: None,
            handled: None,
            floor: start,
            since: None,
            shown: None,
        };
        let first = [(start, Arc::clone(&setup.config))];
        self.sweeps = ObservedSweeps {
            kinds: setup.sweeps.iter().map(|of| (of.kind, observed(of))).collect(),
            configs: first.into_iter().chain(setup.reloads.iter().cloned()).collect(),
            until: setup.scenario.end,
            ..ObservedSweeps::default()
        };
    }

    /// Returns the number of sweeps that have run.
    pub fn sweep_count(&self) -> usize {
        self.sweeps.kinds.values().map(|observed| observed.runs.len()).sum()
    }

    /// Records that an engine without state starts. It reads the Lease later.
    pub fn on_engine_start(&mut self, scene: &GroundTruth, now: Timestamp) {
        self.sweeps.life += 1;
        self.sweeps.in_sync_since = None;
        let lease = scene.cluster.lease();
        let records = lease.and_then(|lease| lease.annotations.get(RECORDS));
        let records = records.map_or("", String::as_str);
        for (kind, observed) in &mut self.sweeps.kinds {
            observed.shown = None;
            match recorded(records, *kind) {
                None => (observed.floor, observed.since) = (now, None),
                Some((at, runs)) => {
                    observed.floor = at;
                    observed.since.get_or_insert(at);
                    // The engine continues a run although an earlier engine has completed it.
                    let mut known = observed.runs.iter_mut();
                    if let Some(run) = known.rfind(|run| run.at == at).filter(|_| runs) {
                        run.ended = None;
                    }
                }
            }
        }
    }

    /// Records that the daemon is stopped.
    pub fn on_stop(&mut self, now: Timestamp, down: SignedDuration) {
        if down > STOP_MAX {
            self.leaving.on_long_stop(time_after(now, down));
        }
    }

    /// Records a report of the engine.
    pub fn on_report(&mut self, report: &Report, scene: &GroundTruth, now: Timestamp) {
        if self.sweeps.kinds.is_empty() || now >= self.sweeps.until {
            return;
        }
        match report {
            Report::Swept { sweep: SweepKind::Consolidation, at, .. } => {
                self.on_consolidated(*at, now);
            }
            Report::Swept { sweep, at, .. } => self.on_swept(*sweep, *at, now),
            Report::SweepSkipped { sweep, at } => self.on_skipped(*sweep, *at, now),
            Report::Retire { claim, reason, .. } => {
                let mut machines = scene.live_instances();
                let id = |it: &SimInstance| claim_id(&it.truth().tags, &it.truth().id);
                let machine = machines.find(|it| id(it).as_ref() == Some(claim));
                let node = machine.and_then(|it| scene.cluster.node_of(it.truth().id.as_str()));
                if let (Some(machine), Some(node)) = (machine, node) {
                    let text = format!("disrupt {} ({})", node.name, reason.as_str());
                    let delay = SignedDuration::ZERO;
                    self.add_swept_disruption(*reason, (machine, node), (delay, text), scene, now);
                }
            }
            _ => {}
        }
    }

    /// Checks the first taint of a node, which may follow its decision later.
    pub(super) fn check_swept_taint(
        &mut self,
        node: &Node,
        reason: Reason,
        scene: &GroundTruth,
        now: Timestamp,
    ) {
        if let Some(machine) = scene.our_machine(node).filter(|_| now < self.sweeps.until) {
            let text = format!("taint {} ({})", node.name, reason.as_str());
            self.add_swept_disruption(reason, (machine, node), (TAINT_MAX, text), scene, now);
        }
    }

    fn add_swept_disruption(
        &mut self,
        reason: Reason,
        (machine, node): (&SimInstance, &Node),
        (delay, text): (SignedDuration, String),
        scene: &GroundTruth,
        now: Timestamp,
    ) {
        let has_to = reason == Reason::Expired && is_overdue(node, scene, now);
        let kind = kind_of(reason).filter(|kind| self.sweeps.kinds.contains_key(kind));
        if let Some(kind) = kind.filter(|_| !has_to) {
            let instance = machine.truth();
            let pool = instance.tags.get(TAG_POOL).cloned().unwrap_or_default();
            let launched = instance.launched;
            self.sweeps.pending.push(SweptDisruption { kind, launched, pool, delay, text });
        }
    }

    /// Checks the disruptions of this pass, and whether all due sweeps have started.
    pub fn check_sweeps(&mut self, engine: Option<&Engine>, now: Timestamp) {
        if self.sweeps.kinds.is_empty() || now >= self.sweeps.until {
            return;
        }
        let known = engine.and_then(|engine| engine.state().sweeps.get(SweepKind::Consolidation));
        if let Some(at) = known.and_then(|sweep| sweep.last) {
            self.on_consolidation_shown(at, now);
        }
        for disruption in std::mem::take(&mut self.sweeps.pending) {
            if !self.sweeps.is_permitted(&disruption, now) {
                let text = format!("{} without a sweep", disruption.text);
                self.add_violation(Invariant::SweepPermit, now, text);
            }
        }
        let is_in_sync = engine.is_some_and(|engine| {
            let is_readable = engine.state().notes.fault.is_none();
            engine.is_ready() && engine.mismatch().is_none() && is_readable
        });
        self.sweeps.in_sync_since = is_in_sync.then(|| self.sweeps.in_sync_since.unwrap_or(now));
        self.check_missed_sweeps(now);
    }

    /// Checks that an engine in sync has handled all sweeps that were due some time ago.
    fn check_missed_sweeps(&mut self, now: Timestamp) {
        let since = self.sweeps.in_sync_since;
        let Some(since) = since.filter(|since| time_after(*since, START_MAX) <= now) else {
            return;
        };
        let mut missed = Vec::new();
        for (kind, observed) in &mut self.sweeps.kinds {
            // The engine applies its schedules in the first pass in which it is in sync.
            let first = *observed.since.get_or_insert(time_after(since, START_MAX));
            let due = observed.last_due(now.checked_sub(START_MAX).unwrap_or(now));
            let is_handled = observed.handled.is_some_and(|at| due <= at);
            // Until the jitter is known, the occurrence may have been before that pass.
            let is_first =
                observed.jitter.is_none() && observed.timetable.last_occurrence(due) <= first;
            if first < due && !is_handled && !is_first {
                observed.handled = Some(due);
                missed.push(format!("no {} sweep for {due}", kind.as_str()));
            }
        }
        for text in missed {
            self.add_violation(Invariant::SweepMissed, now, text);
        }
    }

    /// Records that a sweep of drift or expiry has run now.
    fn on_swept(&mut self, kind: SweepKind, at: Timestamp, now: Timestamp) {
        self.check_occurrence(kind, at, now);
        let life = self.sweeps.life;
        let Some(observed) = self.sweeps.kinds.get_mut(&kind) else {
            return;
        };
        let is_repeated = observed.runs.iter().any(|run| run.at == at && run.life == life);
        let is_done = at <= observed.floor;
        let is_late = now.duration_since(at) > LATE_MAX && !observed.timetable.catch_up;
        observed.runs.push(Run { at, started: now, ended: None, life });
        let name = kind.as_str();
        if is_repeated || is_done {
            let text = format!("the {name} sweep of {at} runs again");
            self.add_violation(Invariant::SweepTwice, now, text);
        }
        if is_late {
            let text = format!("the {name} sweep of {at} runs late");
            self.add_violation(Invariant::SweepTime, now, text);
        }
    }

    fn on_skipped(&mut self, kind: SweepKind, at: Timestamp, now: Timestamp) {
        self.check_occurrence(kind, at, now);
        let Some(observed) = self.sweeps.kinds.get(&kind) else {
            return;
        };
        if now.duration_since(at) <= LATE_MAX || observed.timetable.catch_up {
            let text = format!("the {} sweep of {at} is skipped", kind.as_str());
            self.add_violation(Invariant::SweepTime, now, text);
        }
    }

    /// Records the last sweep of consolidation that the engine shows. It has started now, unless an
    /// earlier engine has recorded it.
    fn on_consolidation_shown(&mut self, at: Timestamp, now: Timestamp) {
        let Some(observed) = self.sweeps.kinds.get_mut(&SweepKind::Consolidation) else {
            return;
        };
        let is_known = observed.shown.replace(at) == Some(at);
        let is_resumed = at <= observed.floor && observed.runs.iter().any(|run| run.at == at);
        if !is_known && !is_resumed {
            self.on_swept(SweepKind::Consolidation, at, now);
        }
    }

    /// Records that a sweep of consolidation has completed.
    fn on_consolidated(&mut self, at: Timestamp, now: Timestamp) {
        let Some(observed) = self.sweeps.kinds.get_mut(&SweepKind::Consolidation) else {
            return;
        };
        let run = observed.runs.iter_mut().rfind(|run| run.at == at);
        match run {
            Some(run) if run.ended.is_none() => run.ended = Some(now),
            // A sweep that starts and completes in one pass has not been shown before.
            None => {
                self.on_consolidation_shown(at, now);
                let observed = self.sweeps.kinds.get_mut(&SweepKind::Consolidation);
                let runs = observed.into_iter().flat_map(|observed| &mut observed.runs);
                runs.filter(|run| run.at == at).for_each(|run| run.ended = Some(now));
            }
            Some(_) => {
                let text = format!("the consolidation sweep of {at} completes again");
                self.add_violation(Invariant::SweepTwice, now, text);
            }
        }
    }

    /// Checks that a time is the latest occurrence, with the jitter of the cluster.
    fn check_occurrence(&mut self, kind: SweepKind, at: Timestamp, now: Timestamp) {
        let Some(observed) = self.sweeps.kinds.get_mut(&kind) else {
            return;
        };
        let timetable = observed.timetable;
        let jitter = timetable.seconds_after_occurrence(at);
        let is_possible = jitter < timetable.jitter.max(1);
        let is_constant = *observed.jitter.get_or_insert(jitter) == jitter;
        let is_latest = at <= now && now < time_after(at, timetable.period());
        observed.handled = observed.handled.max(Some(at));
        if !is_possible || !is_constant || !is_latest {
            let text = format!("a {} sweep of {at}, which is {timetable:?}", kind.as_str());
            self.add_violation(Invariant::SweepTime, now, text);
        }
    }
}
