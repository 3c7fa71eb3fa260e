//! Simulations of several clusters that share a fleet, with one clock and one seed.

use std::sync::Arc;

use fastrand::Rng;
use jiff::Timestamp;

use crate::engine::event::Event;
use crate::fleet::Fleet;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetLimits;
use crate::model::id::ClusterName;
use crate::model::quantity::Resources;
use crate::sim::event_queue::time_after;
use crate::sim::invariants::{Invariant, Violation};
use crate::sim::rng::random_stream;
use crate::sim::scenario::blocks::{DEFAULT_CALM, DEFAULT_SETTLE};
use crate::sim::{Setup, World};

/// On average, one in this number of fleet events is lost.
const LOST: u32 = 50;

/// Several simulations at one point in time.
#[derive(Debug)]
pub struct Together {
    worlds: Vec<World>,
    fleet: Fleet,
    limits: FleetLimits,
    /// The last engine instance of each cluster that has joined the fleet.
    lives: Vec<u64>,
    /// Number of launches of each cluster at the last check.
    launched: Vec<usize>,
    now: Timestamp,
    /// Whether events can be lost.
    faults: bool,
    losses: Rng,
}

impl Together {
    /// Creates one simulation for each setup, each with different faults. Cluster names must be
    /// unique.
    pub fn new(setups: Vec<Setup>, limits: FleetLimits, seed: u64, faults: bool) -> Self {
        let mut worlds: Vec<World> = Vec::new();
        for setup in setups {
            let world_seed = seed.wrapping_mul(1000).wrapping_add(worlds.len() as u64);
            worlds.push(World::new(setup, world_seed, faults));
        }
        let now = worlds.iter().map(World::now).min().unwrap_or_default();
        let count = worlds.len();
        let mut together = Self {
            worlds,
            fleet: Fleet::default(),
            limits,
            lives: vec![0; count],
            launched: vec![0; count],
            now,
            faults,
            losses: random_stream(seed, "together/losses"),
        };
        together.start_fleet();
        together
    }

    /// The simulations.
    pub fn worlds(&self) -> &[World] {
        &self.worlds
    }

    /// The fleet.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Starts a fleet without state.
    fn start_fleet(&mut self) {
        let worlds = self.worlds.iter();
        let configs: Vec<Arc<Cluster>> = worlds.map(|world| world.setup.config.clone()).collect();
        self.fleet = Fleet::default();
        self.fleet.configure(self.limits.clone(), &configs, self.now);
    }

    /// Stops the daemon of all clusters and starts it again later.
    pub fn restart_daemons(&mut self) {
        for world in &mut self.worlds {
            world.now = world.now.max(self.now);
            world.stop_daemon();
            let down = world.draw_lag(1000, 60_000);
            world.timers.add_after(world.now, down, super::ScheduledEvent::Start);
        }
        self.start_fleet();
    }

    /// Executes all events up to a time.
    pub fn run_until(&mut self, until: Timestamp) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    fn step(&mut self, until: Timestamp) -> bool {
        let worlds = self.worlds.iter().enumerate();
        let first = worlds
            .filter_map(|(index, world)| {
                let next = world.next_at()?;
                (next <= world.limit.min(until)).then_some((next, index))
            })
            .min();
        let timeout = self.fleet.poll_timeout(self.now).filter(|at| *at <= until);
        match (first, timeout) {
            (None, None) => return false,
            (Some((at, world)), timeout) if timeout.is_none_or(|timeout| at <= timeout) => {
                self.now = self.now.max(at);
                self.worlds[world].step();
                self.check_world(world);
            }
            (_, ring) => {
                self.now = self.now.max(ring.unwrap_or(self.now));
                self.fleet.notify_due(self.now);
            }
        }
        self.exchange_messages();
        true
    }

    /// Handles the changes after a step of a simulation.
    fn check_world(&mut self, index: usize) {
        let world = &self.worlds[index];
        if world.engine.is_some() && self.lives[index] != world.life {
            self.lives[index] = world.life;
            self.fleet.on_engine_start(&world.setup.config.name, self.now);
        }
        if self.launched[index] != world.tally.launched {
            self.launched[index] = world.tally.launched;
            let (mut nodes, mut capacity) = (0, Resources::default());
            for world in &self.worlds {
                let (usage, count) = actual_usage(world);
                capacity.add(&usage);
                nodes += count;
            }
            let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
            let (limits, now) = (self.limits.limits.clone(), self.now);
            let checker = &mut self.worlds[index].checker;
            checker.check_limits("the fleet", &limits, nodes, &capacity, now);
        }
    }

    /// Delivers commands to the fleet and events from the fleet until none are left.
    fn exchange_messages(&mut self) {
        loop {
            for world in &mut self.worlds {
                let name = world.setup.config.name.clone();
                for issued in std::mem::take(&mut world.for_fleet) {
                    self.fleet.handle_command(&name, issued, self.now);
                }
            }
            let events: Vec<(ClusterName, Event)> =
                std::iter::from_fn(|| self.fleet.next_event()).collect();
            if events.is_empty() {
                return;
            }
            for (name, event) in events {
                self.deliver_event(&name, event);
            }
        }
    }

    fn deliver_event(&mut self, name: &ClusterName, event: Event) {
        let mut worlds = self.worlds.iter_mut();
        let Some(world) = worlds.find(|world| world.setup.config.name == *name) else {
            return;
        };
        if self.faults && self.losses.u32(0..LOST) == 0 {
            if matches!(event, Event::FleetChanged(_)) {
                self.fleet.on_event_missed(name, self.now);
            }
            return;
        }
        world.now = world.now.max(self.now);
        world.deliver_to_engine(event);
    }

    /// Runs to the end, then until the state must be stable. Checks that it is stable, and that the
    /// usage in the fleet is correct. Returns all violations.
    pub fn run_and_check(&mut self) -> Vec<Violation> {
        let ends = self.worlds.iter().map(|world| world.setup.scenario.end);
        let end = ends.max().unwrap_or(self.now);
        let settled = time_after(end, DEFAULT_SETTLE);
        let quiet = time_after(settled, DEFAULT_CALM);
        let mut acts: Vec<u64> = Vec::new();
        for until in [end, settled, quiet] {
            let worlds = self.worlds.iter();
            acts = worlds.map(|world| world.checker.command_count()).collect();
            self.worlds.iter_mut().for_each(|world| world.limit = until);
            self.run_until(until);
        }
        let mut violations = Vec::new();
        for (world, acts) in self.worlds.iter_mut().zip(acts) {
            world.now = quiet;
            let acts = world.checker.command_count() - acts;
            world.checker.check_settled(&world.scene, acts, quiet);
            world.check_foreign();
            let (held, real) =
                (self.fleet.total_usage(&world.setup.config.name), actual_usage(world));
            if held != real {
                let text = format!("the fleet counts {held:?}, there is {real:?}");
                world.checker.add_violation(Invariant::Limits, quiet, text);
            }
            violations.extend(world.checker.violations().iter().cloned());
        }
        violations
    }
}

/// Capacity and number of the live managed instances of a simulation.
fn actual_usage(world: &World) -> (Resources, usize) {
    let (mut capacity, mut nodes) = (Resources::default(), 0);
    for machine in world.scene.live_instances() {
        let offering = &machine.truth().offering;
        if let Some(shape) = world.scene.catalog.get(offering.instance_type.as_str()) {
            capacity.add(&shape.capacity);
        }
        nodes += 1;
    }
    (capacity, nodes)
}
