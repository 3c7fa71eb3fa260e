//! Simulation of a cluster, a cloud and a daemon, with a virtual clock and faults from one seed.
//! It reads no real time, so the same inputs give the same run.
//!
//! ```text
//!        ┌────────────── events: delayed, lost, cut ◄── watches ◄─ cluster ◄─┐
//!        ▼                                                                   │ booted, ended
//!     engine ──► commands: delayed, lost ──► checked by invariants ─────► cloud
//! ```

// Seeded random streams.
pub mod rng;
// Time-ordered event queue.
pub mod event_queue;
// Workloads and their changes over time.
pub mod workload;
// Sweeps as plain arithmetic.
pub mod sweep_timetable;
// Scenarios in HCL.
pub mod scenario;
// Timeline of a run, as text and JSON.
pub mod timeline;
// The simulated EC2.
pub mod cloud;
// The simulated Kubernetes cluster.
pub mod cluster;
// The fault schedule of a seed.
pub mod faults;
// Watches with delays, gaps and faults.
pub mod watches;
// Taints removed by other actors.
pub mod external_changes;
// Invariants checked after every step.
pub mod invariants;
// Totals of a run.
pub mod summary;
// Samples by the minute.
pub mod samples;
// Delivery, check and execution of commands.
mod command_delivery;
// Injection of each fault.
mod fault_injection;
// Wake-ups of the engine for its sweeps.
mod sweep_ticks;
// Event routing between engine, cluster and cloud.
mod dispatch;
// Instances and nodes that are not managed.
mod foreign_resources;
// Several clusters that share a fleet.
pub mod multi_cluster;
// Random scenarios from a seed.
pub mod random_scenario;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::engine::command::{CommandId, IssuedCommand};
use crate::engine::event::Event;
use crate::model::cluster::{Binding, Cluster};
use crate::model::id::{InstanceId, NodeName};
use crate::model::instance::OfferingKey;
use crate::model::requirement::Requirement;
use crate::model::sweep::SweepKind;
use crate::model::watched_object::ObjectKind;
use crate::provider::CommandResult;
use crate::sim::cloud::{Cloud, CloudSettings};
use crate::sim::cluster::SimCluster;
use crate::sim::event_queue::{Timers, time_after};
use crate::sim::faults::{CommandTrip, Cut, FaultPlan, ScheduledFault};
use crate::sim::invariants::{Checker, GroundTruth, Invariant, Violation};
use crate::sim::rng::{duration_between, random_stream};
use crate::sim::scenario::{ReclaimCount, Scenario};
use crate::sim::summary::{FixedFleet, SAMPLE, Summary, percentile};
use crate::sim::sweep_timetable::SweepTimetable;
use crate::sim::timeline::{TimelineEntry, TimelineFact};
use crate::sim::watches::{Listing, SimWatches};

/// Inputs of a simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The initial configuration.
    pub config: Arc<Cluster>,
    /// Instance types and prices.
    pub catalog: Arc<Catalog>,
    /// Later configurations, each with its time. They may only use instance types that a pool of
    /// the initial configuration may use.
    pub reloads: Vec<(Timestamp, Arc<Cluster>)>,
    /// The sweeps of all configurations before the end of the scenario, if invariants check them.
    pub sweeps: Vec<SweepTimetable>,
    /// When the daemon stops, and for how long, in a run with faults.
    pub stops: Vec<(Timestamp, SignedDuration)>,
}

impl Setup {
    /// Creates a setup with the fixed type and the types that some pool may use. All other types
    /// would have no effect and slow down every plan.
    pub fn new(scenario: Arc<Scenario>, config: Arc<Cluster>, catalog: &Catalog) -> Self {
        let types = catalog.types().filter(|shape| {
            shape.name == scenario.fixed_type
                || config.pools.iter().any(|pool| {
                    pool.requirements.iter().all(|(key, wanted)| {
                        let values = shape.requirements.get(key).and_then(Requirement::values);
                        values.is_none_or(|values| {
                            values.iter().any(|value| wanted.allows_value(value))
                        }) || wanted.allows_absence()
                    })
                })
        });
        let catalog = Arc::new(Catalog::new(types.cloned()));
        Self {
            scenario,
            config,
            catalog,
            reloads: Vec::new(),
            sweeps: Vec::new(),
            stops: Vec::new(),
        }
    }
}

/// Scheduled events of the simulation itself.
#[derive(Clone, Debug)]
enum ScheduledEvent {
    Arrive(u64, Box<IssuedCommand>, CommandTrip),
    Answer(u64, CommandId, Box<CommandResult>),
    Tell(Box<Event>, Timestamp),
    Untaint(NodeName),
    Register(InstanceId),
    Happen(ScheduledFault),
    WatchBack(ObjectKind, Option<Cut>, Timestamp),
    Start,
    Bookmarks { of_places: bool },
    Shortage(usize, bool),
    Interrupt(ReclaimCount, SignedDuration),
    Interrupted,
    Lose(usize),
    Reload(usize),
    Restock(Vec<OfferingKey>),
    Accept,
    Sample,
    Tick,
}

/// Intervals of bookmarks, as in a real cluster: of pods and nodes, and of all other kinds. The
/// daemon checks for these bookmarks.
const BOOKMARKS: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(12), SignedDuration::from_secs(36));

/// Maximum number of engine wake-ups at the same simulated time. An engine above this limit is in
/// an endless loop.
const SPINS_MAX: u32 = 1000;

/// An event that is not received from its queue is delivered again after this time.
const REDELIVERY: SignedDuration = SignedDuration::from_secs(5);

/// A cluster, a cloud and a daemon at one point in time.
#[derive(Debug)]
pub struct World {
    setup: Setup,
    seed: u64,
    now: Timestamp,
    limit: Timestamp,
    engine: Option<Engine>,
    life: u64,
    scene: GroundTruth,
    watches: SimWatches,
    cuts: BTreeMap<ObjectKind, (Cut, Timestamp)>,
    faults: FaultPlan,
    timers: Timers<ScheduledEvent>,
    /// The sweeps for which wake-ups are scheduled.
    ticks: BTreeMap<SweepKind, Timestamp>,
    checker: Checker,
    fixed: FixedFleet,
    /// The counters of the summary so far.
    tally: Summary,
    /// Number of live instances.
    live: usize,
    lines: VecDeque<TimelineEntry>,
    /// Commands of the engine to the fleet. They are not read if there is only one cluster.
    for_fleet: VecDeque<IssuedCommand>,
    spins: (Timestamp, u32),
    rush: (Timestamp, usize),
    lags: Rng,
    picks: Rng,
}

impl World {
    /// Creates the simulation of a scenario with a seed, with or without faults.
    pub fn new(setup: Setup, seed: u64, faults: bool) -> Self {
        let scenario = Arc::clone(&setup.scenario);
        let (start, end) = (scenario.start, scenario.end);
        let stops = if faults { setup.stops.clone() } else { Vec::new() };
        let faults = if faults {
            FaultPlan::from_seed(seed, start, end)
        } else {
            FaultPlan::without_faults(seed)
        };
        let ms = SignedDuration::from_millis;
        let settings = CloudSettings {
            seed,
            boot: scenario.boot,
            launch_delay: ms(8000),
            terminate_delay: ms(25_000),
            listing_lag: faults.listing_lag,
            capacity: BTreeMap::new(),
            names_nodes: setup.config.binding == Binding::Early,
            batches: scenario.batches,
        };
        let scene = GroundTruth {
            config: Arc::clone(&setup.config),
            catalog: Arc::clone(&setup.catalog),
            cluster: SimCluster::new(&scenario.workloads, seed),
            cloud: Cloud::new(Arc::clone(&setup.catalog), settings),
        };
        let watches = SimWatches::new(scene.config.watched_kinds());
        let fixed = FixedFleet::new(setup.catalog.get(scenario.fixed_type.as_str()));
        let mut world = Self {
            setup,
            seed,
            now: start,
            limit: end,
            engine: None,
            life: 0,
            scene,
            watches,
            cuts: BTreeMap::new(),
            faults,
            timers: Timers::default(),
            ticks: BTreeMap::new(),
            checker: Checker::default(),
            fixed,
            tally: Summary::default(),
            live: 0,
            lines: VecDeque::new(),
            for_fleet: VecDeque::new(),
            spins: (start, 0),
            rush: (start, 0),
            lags: random_stream(seed, "world/lags"),
            picks: random_stream(seed, "world/picks"),
        };
        world.schedule_known_events(&scenario);
        for (at, down) in stops {
            world.timers.add_at(at, ScheduledEvent::Happen(ScheduledFault::Restart { down }));
        }
        world.checker.expect_sweeps(&world.setup);
        world.create_foreign();
        world
    }

    /// Schedules all events that are known in advance.
    fn schedule_known_events(&mut self, scenario: &Scenario) {
        self.timers.add_at(scenario.start, ScheduledEvent::Start);
        self.timers.add_at(scenario.start, ScheduledEvent::Sample);
        for (every, of_places) in [(BOOKMARKS.0, true), (BOOKMARKS.1, false)] {
            let due = ScheduledEvent::Bookmarks { of_places };
            self.timers.add_after(scenario.start, every, due);
        }
        for (index, shortage) in scenario.shortages.iter().enumerate() {
            let begin = ScheduledEvent::Shortage(index, true);
            self.timers.add_at(shortage.from, begin);
            if let Some(until) = shortage.until {
                let end = ScheduledEvent::Shortage(index, false);
                self.timers.add_at(until, end);
            }
        }
        for interruption in &scenario.interruptions {
            let due = ScheduledEvent::Interrupt(interruption.count, interruption.within);
            self.timers.add_at(interruption.at, due);
        }
        for (index, outage) in scenario.outages.iter().enumerate() {
            self.timers.add_at(outage.from, ScheduledEvent::Lose(index));
        }
        for (index, (at, _)) in self.setup.reloads.iter().enumerate() {
            self.timers.add_at(*at, ScheduledEvent::Reload(index));
        }
        for (at, mishap) in &self.faults.scheduled_faults {
            self.timers.add_at(*at, ScheduledEvent::Happen(*mishap));
        }
    }

    /// The simulated time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The actual state of cluster and cloud.
    pub fn ground_truth(&self) -> &GroundTruth {
        &self.scene
    }

    /// The engine. `None` while the daemon is stopped.
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// Invariant violations until now.
    pub fn violations(&self) -> &[Violation] {
        self.checker.violations()
    }

    /// The checker of all commands.
    pub fn checker(&self) -> &Checker {
        &self.checker
    }

    /// Returns the timeline entries since the last call, in order.
    pub fn take_lines(&mut self) -> VecDeque<TimelineEntry> {
        std::mem::take(&mut self.lines)
    }

    /// Applies an external change to the cluster now.
    pub fn change_cluster(&mut self, change: impl FnOnce(&mut SimCluster, Timestamp)) {
        change(&mut self.scene.cluster, self.now);
        self.route_changes();
    }

    /// Executes the next event and returns its time. `None` after the end of the scenario.
    pub fn step(&mut self) -> Option<Timestamp> {
        let next = self.next_at().filter(|at| *at <= self.limit)?;
        self.now = self.now.max(next);
        let now = self.now;
        if self.timers.next_at().is_some_and(|at| at <= now) {
            while let Some((_, due)) = self.timers.pop_due(now) {
                self.handle_event(due);
            }
        } else if self.scene.cloud.next_at().is_some_and(|at| at <= now) {
            for event in self.scene.cloud.run_due(now) {
                self.on_cloud_event(event);
            }
        } else if self.scene.cluster.next_at().is_some_and(|at| at <= now) {
            self.scene.cluster.run_due(now);
        } else if let Some(event) = self.watches.next_event(now) {
            self.deliver_to_engine(event);
        } else {
            self.wake_engine();
        }
        self.route_changes();
        Some(now)
    }

    /// Executes all events up to a time.
    pub fn run_until(&mut self, until: Timestamp) {
        while self.next_at().is_some_and(|at| at <= until) && self.step().is_some() {}
        self.now = self.now.max(until.min(self.limit));
    }

    /// Runs the scenario to its end.
    pub fn run(&mut self) {
        while self.step().is_some() {}
        self.now = self.limit;
    }

    /// Runs the scenario to its end, then until the state must be stable, and checks that the state
    /// is stable. Returns all violations.
    pub fn run_and_check(&mut self) -> &[Violation] {
        self.run();
        self.limit = time_after(self.setup.scenario.end, self.setup.scenario.settle);
        self.run();
        let acts_before = self.checker.command_count();
        self.limit = time_after(self.limit, self.setup.scenario.calm);
        self.run();
        let acts = self.checker.command_count() - acts_before;
        self.checker.check_settled(&self.scene, acts, self.now);
        self.check_foreign();
        self.checker.violations()
    }

    /// Time of the next event. `None` if there are no more events.
    pub fn next_at(&self) -> Option<Timestamp> {
        let timeout = self.engine.as_ref().and_then(Engine::poll_timeout);
        [
            self.timers.next_at(),
            self.scene.cloud.next_at(),
            self.scene.cluster.next_at(),
            self.watches.next_at(),
            timeout.map(|(at, _)| at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn handle_event(&mut self, due: ScheduledEvent) {
        match due {
            ScheduledEvent::Arrive(life, issued, trip) => {
                self.on_command_arrival(life, *issued, trip)
            }
            ScheduledEvent::Answer(life, id, answer) if life == self.life => {
                self.deliver_to_engine(Event::Answered(id, *answer));
            }
            ScheduledEvent::Answer(..) => {}
            // The queue delivers again until the daemon receives the event.
            ScheduledEvent::Tell(event, until) if self.engine.is_none() && self.now < until => {
                self.set_timer(REDELIVERY, ScheduledEvent::Tell(event, until));
            }
            ScheduledEvent::Tell(event, _) => self.deliver_to_engine(*event),
            ScheduledEvent::Untaint(node) => self.remove_taint(&node),
            ScheduledEvent::Register(instance) => self.register_again(&instance),
            ScheduledEvent::Happen(mishap) => self.inject_fault(mishap),
            ScheduledEvent::WatchBack(kind, cut, since) => {
                self.restart_broken_watch(kind, cut, since)
            }
            ScheduledEvent::Start => self.start_daemon(),
            ScheduledEvent::Bookmarks { of_places } => self.send_bookmarks(of_places),
            ScheduledEvent::Shortage(index, begins) => self.apply_shortage(index, begins),
            ScheduledEvent::Interrupt(count, within) => self.schedule_interruptions(count, within),
            ScheduledEvent::Interrupted => self.interrupt_spot(1),
            ScheduledEvent::Lose(outage) => self.fail_zone(outage),
            ScheduledEvent::Reload(index) => self.apply_reload(index),
            ScheduledEvent::Restock(keys) => self.restore_offerings(keys),
            ScheduledEvent::Accept => self.approve_held(),
            ScheduledEvent::Tick => self.deliver_to_engine(Event::Timeout),
            ScheduledEvent::Sample => {
                let remaining = self.setup.scenario.end.duration_since(self.now);
                self.fixed.add_sample(&self.scene, SAMPLE.min(remaining).max(SignedDuration::ZERO));
                self.checker.check_stranded(&self.scene, self.now);
                self.checker.check_progress(&self.scene, self.now);
                self.checker.check_sweeps(self.engine.as_ref(), self.now);
                if self.now < self.setup.scenario.end {
                    self.set_timer(SAMPLE, ScheduledEvent::Sample);
                }
            }
        }
    }

    /// Sends bookmarks to the watches of pods and nodes, or to all other watches.
    fn send_bookmarks(&mut self, of_places: bool) {
        for kind in self.setup.config.watched_kinds() {
            if matches!(kind, ObjectKind::Pod | ObjectKind::Node) == of_places {
                let event = Event::WatchAlive(*kind);
                self.watches.send_change(*kind, event, self.now);
            }
        }
        let every = if of_places { BOOKMARKS.0 } else { BOOKMARKS.1 };
        self.set_timer(every, ScheduledEvent::Bookmarks { of_places });
    }

    /// Starts the daemon without any state. Its watches begin with full listings.
    fn start_daemon(&mut self) {
        if self.engine.is_some() {
            return;
        }
        self.life += 1;
        let engine_seed = self.seed.wrapping_add(self.life.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.engine = Some(Engine::new(engine_seed));
        self.checker.on_engine_start(&self.scene, self.now);
        self.note_fact(TimelineFact::Started);
        self.deliver_to_engine(Event::ConfigChanged(Arc::clone(&self.setup.config)));
        self.deliver_to_engine(Event::CatalogChanged(Arc::clone(&self.setup.catalog)));
        self.deliver_to_engine(Event::BuffersChanged(Vec::new()));
        for kind in self.setup.config.watched_kinds() {
            let wait = self.draw_lag(20, 600);
            self.list_kind(*kind, None, wait);
        }
    }

    /// Stops the daemon. Each command already sent still arrives with a probability of one half.
    pub fn stop_daemon(&mut self) {
        if self.engine.take().is_none() {
            return;
        }
        self.life += 1;
        self.watches.end_all();
        self.cuts.clear();
        self.for_fleet.clear();
        let picks = &mut self.picks;
        self.timers.retain(|due| !matches!(due, ScheduledEvent::Arrive(..)) || picks.bool());
        self.note_fact(TimelineFact::Stopped);
    }

    /// Applies a configuration change.
    fn apply_reload(&mut self, index: usize) {
        let Some((_, config)) = self.setup.reloads.get(index).cloned() else {
            return;
        };
        self.setup.config = Arc::clone(&config);
        self.scene.config = Arc::clone(&config);
        self.note_fact(TimelineFact::Reloaded);
        self.deliver_to_engine(Event::ConfigChanged(config));
    }

    fn list_kind(&mut self, kind: ObjectKind, cut: Option<(Cut, Timestamp)>, wait: SignedDuration) {
        let mut objects = self.scene.cluster.store().list_kind(kind);
        let listing = match cut {
            Some((cut, since)) => {
                fault_injection::cut_off(&mut objects, cut, since, &mut self.picks)
            }
            None => Listing::Whole,
        };
        let event = Event::Reset(kind, objects);
        self.watches.start_listing(event, kind, listing, time_after(self.now, wait));
    }

    /// Sends an event to the engine and executes its commands.
    fn deliver_to_engine(&mut self, event: Event) {
        let now = self.now;
        let Some(engine) = &mut self.engine else {
            return;
        };
        self.checker.on_event(&event, now);
        engine.handle_event(event, now);
        self.collect_outputs();
        self.checker.check_sweeps(self.engine.as_ref(), now);
        self.schedule_ticks();
    }

    fn wake_engine(&mut self) {
        let (at, count) = self.spins;
        self.spins = if at == self.now { (at, count + 1) } else { (self.now, 1) };
        if self.spins.1 == SPINS_MAX {
            let timeout = self.engine.as_ref().and_then(Engine::poll_timeout);
            let text = format!("woken without end: {}", timeout.map_or("", |(_, why)| why));
            self.checker.add_violation(Invariant::Spin, self.now, text);
            self.stop_daemon();
            return;
        }
        self.deliver_to_engine(Event::Timeout);
    }

    /// Collects commands and reports of the engine.
    fn collect_outputs(&mut self) {
        while let Some(issued) = self.engine.as_mut().and_then(Engine::next_command) {
            self.send_command(issued);
        }
        while let Some(report) = self.engine.as_mut().and_then(Engine::next_report) {
            self.checker.on_report(&report, &self.scene, self.now);
            self.record_report(report);
        }
    }

    /// Schedules an event after a delay from now.
    fn set_timer(&mut self, wait: SignedDuration, due: ScheduledEvent) {
        self.timers.add_after(self.now, wait, due);
    }

    fn draw_lag(&mut self, low_ms: i64, high_ms: i64) -> SignedDuration {
        let ms = SignedDuration::from_millis;
        duration_between(&mut self.lags, ms(low_ms), ms(high_ms))
    }

    fn note_fact(&mut self, fact: TimelineFact) {
        self.lines.push_back(TimelineEntry { at: self.now, fact });
    }

    fn note_fault(&mut self, text: String) {
        self.note_fact(TimelineFact::Fault(text));
    }

    /// Returns the summary of the run until now.
    pub fn summary(&self) -> Summary {
        let cost = self
            .scene
            .cloud
            .all_instances()
            .filter(|machine| self.scene.is_ours(machine.truth()))
            .filter_map(|machine| {
                let offering = self.scene.catalog.offering(&machine.truth().offering)?;
                let hours = machine.billed_time(self.now).as_secs_f64() / 3600.0;
                Some(hours * offering.price.usd_per_h())
            })
            // An empty sum would be -0.0.
            .fold(0.0, |sum, cost: f64| sum + cost);
        let waits = &self.scene.cluster.bind_waits;
        let scenario = &self.setup.scenario;
        Summary {
            title: scenario.title.clone(),
            seed: self.seed,
            start: scenario.start,
            end: self.now,
            pods_bound: waits.len(),
            bind_p50: percentile(waits, 50),
            bind_p95: percentile(waits, 95),
            cost,
            fixed_type: scenario.fixed_type.clone(),
            fixed_peak: self.fixed.peak_nodes,
            fixed_cost: self.fixed.total_cost,
            evictions: self.scene.cluster.evictions,
            ..self.tally.clone()
        }
    }
}
