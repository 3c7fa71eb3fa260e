//! Adds scheduled sweeps to a random scenario, with nodes that drift and expire, and long stops of
//! the daemon. It draws from its own streams, so that the scenario is otherwise unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::model::cluster::Cluster;
use crate::model::cron_schedule::CronSchedule;
use crate::model::pool::Pool;
use crate::model::sweep::{SweepKind, SweepSchedule};
use crate::sim::Setup;
use crate::sim::random_scenario::{
    CPUS, LASTS, START, draw_one, draw_scenario, draw_time, require_label,
};
use crate::sim::rng::{draw_chance, random_stream};
use crate::sim::sweep_timetable::SweepTimetable;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Time between two occurrences. Half of the sweeps are daily, because frequent sweeps hide errors.
const PERIODS: [i64; 10] =
    [DAY, DAY, DAY, DAY, DAY, 12 * HOUR, 6 * HOUR, 2 * HOUR, 30 * MINUTE, 10 * MINUTE];

/// Maximum jitter, in seconds.
const JITTERS: [i64; 4] = [0, 90, 300, 600];

/// Additional time until the state must be stable. Nodes that waited for a sweep until the end are
/// then disrupted.
const SETTLE_MORE: SignedDuration = SignedDuration::from_hours(4);

/// Draws the scenario of a seed, with sweeps until its end.
pub fn draw_scenario_with_sweeps(seed: u64, types: &Arc<Catalog>) -> Setup {
    let mut setup = draw_scenario(seed, types);
    let sweeps = draw_timetables(&mut random_stream(seed, "drawn/sweeps"));
    let schedules: BTreeMap<SweepKind, SweepSchedule> =
        sweeps.iter().filter_map(|of| Some((of.kind, schedule_of(of)?))).collect();
    let end = setup.scenario.end;
    let mut rng = random_stream(seed, "drawn/sweeps/pools");
    for _ in 0..rng.u32(1..=3) {
        add_drift(&mut rng, &mut setup);
    }
    let lifetimes: Vec<Option<SignedDuration>> = (0..setup.config.pools.len())
        .map(|_| draw_chance(&mut rng, 600).then(|| SignedDuration::from_hours(rng.i64(2..=10))))
        .collect();
    let before_end = setup.reloads.iter_mut().filter(|(at, _)| *at < end);
    let configs = before_end.map(|(_, config)| config).chain([&mut setup.config]);
    for config in configs {
        let config = Arc::make_mut(config);
        config.sweeps.clone_from(&schedules);
        for (pool, lifetime) in config.pools.iter_mut().zip(&lifetimes) {
            pool.expire_after = lifetime.or(pool.expire_after);
        }
    }
    setup.stops = draw_stops(&mut random_stream(seed, "drawn/sweeps/stops"));
    setup.sweeps = sweeps;
    let scenario = Arc::make_mut(&mut setup.scenario);
    scenario.title.push_str(" with sweeps");
    scenario.settle += SETTLE_MORE;
    setup
}

/// Draws the sweeps of some or all kinds.
fn draw_timetables(rng: &mut Rng) -> Vec<SweepTimetable> {
    let last = SweepKind::ALL[rng.usize(0..SweepKind::ALL.len())];
    let mut timetables = Vec::new();
    for kind in SweepKind::ALL {
        if kind != last && draw_chance(rng, 300) {
            continue;
        }
        let period = draw_one(rng, &PERIODS);
        timetables.push(SweepTimetable {
            kind,
            period,
            offset: rng.i64(0..period / MINUTE) * MINUTE,
            jitter: draw_one(rng, &JITTERS),
            catch_up: rng.bool(),
        });
    }
    timetables
}

/// Returns the schedule of a timetable, in the form of the configuration.
fn schedule_of(timetable: &SweepTimetable) -> Option<SweepSchedule> {
    let (hour, minute) = (timetable.offset / HOUR, timetable.offset % HOUR / MINUTE);
    let expression = match timetable.period {
        DAY => format!("{minute} {hour} * * *"),
        period if period >= HOUR => format!("{minute} {hour}-23/{} * * *", period / HOUR),
        period => format!("{minute}-59/{} * * * *", period / MINUTE),
    };
    Some(SweepSchedule {
        schedule: CronSchedule::new(&expression, "UTC").ok()?,
        jitter: SignedDuration::from_secs(timetable.jitter),
        catch_up: timetable.catch_up,
    })
}

/// Adds a configuration change after which nodes of a pool may be drifted.
fn add_drift(rng: &mut Rng, setup: &mut Setup) {
    let at = draw_time(rng);
    let index = rng.usize(0..setup.config.pools.len());
    let cpus = draw_one(rng, &[["2", "4"], ["4", "8"]]);
    let owner = draw_chance(rng, 300).then(|| format!("team-{}", rng.u32(0..100)));
    let change = |config: &mut Cluster| {
        let Some(pool) = config.pools.get_mut(index) else {
            return;
        };
        match &owner {
            Some(owner) => drop(pool.labels.insert("owner".to_owned(), owner.clone())),
            None => replace_cpus(pool, &cpus),
        }
    };
    let position = setup.reloads.partition_point(|(known, _)| *known <= at);
    let before = position.checked_sub(1).and_then(|index| setup.reloads.get(index));
    let before = before.map_or(&setup.config, |(_, config)| config);
    let added = Arc::clone(before);
    setup.reloads.insert(position, (at, added));
    for (_, config) in setup.reloads.iter_mut().skip(position) {
        change(Arc::make_mut(config));
    }
}

/// Replaces the permitted numbers of CPUs. Nodes of other types are then drifted.
fn replace_cpus(pool: &mut Pool, cpus: &[&str]) {
    let others = pool.requirements.iter().filter(|(key, _)| *key != CPUS);
    pool.requirements = others.map(|(key, wanted)| (key, wanted.clone())).collect();
    require_label(pool, CPUS, cpus);
}

/// Draws long stops of the daemon, most of them longer than a sweep may be late.
fn draw_stops(rng: &mut Rng) -> Vec<(Timestamp, SignedDuration)> {
    let count = rng.u32(0..3);
    let minutes = [10, 14, 20, 45, 120, 300];
    let end = START + LASTS;
    let stops = (0..count).map(|_| {
        let at = draw_time(rng);
        let down = SignedDuration::from_mins(draw_one(rng, &minutes));
        (at, down.min(end.duration_since(at)))
    });
    stops.collect()
}
