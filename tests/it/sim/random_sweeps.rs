//! Random fleets with scheduled sweeps, whose wake-ups are lost, repeated or late: all invariants
//! hold. Each invariant of sweeps is also violated on purpose.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::engine::report::Report;
use outrigger::model::claim::{TAG_POOL, claim_id};
use outrigger::model::pool::Reason;
use outrigger::model::sweep::SweepKind;
use outrigger::sim::invariants::{Checker, Invariant};
use outrigger::sim::random_scenario::sweeps::draw_scenario_with_sweeps;
use outrigger::sim::random_scenario::{draw_scenario, types_of};
use outrigger::sim::sweep_timetable::SweepTimetable;
use outrigger::sim::{Setup, World};
use outrigger::state::sweeps::SweepResult;

use super::setup::working_day;

/// Number of seeds, so that the default tests are fast; `outrigger simulate --fleets --sweeps
/// --faults --seeds 3000` runs more.
const SEEDS: u64 = 5;

const HOUR: i64 = 3600;

#[test]
fn random_fleets_with_sweeps_violate_no_invariant() {
    let types = types_of(&Catalog::shipped());
    let mut runs = 0;
    for seed in 1..=SEEDS {
        let mut world = World::new(draw_scenario_with_sweeps(seed, &types), seed, true);
        let violations = world.run_and_check().to_vec();
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
        runs += world.checker().sweep_count();
    }
    assert!(runs > 20, "{runs} sweeps");
}

/// The wake-ups and their faults draw nothing from the streams of other faults.
#[test]
fn scenario_with_sweeps_is_otherwise_the_same() {
    let types = types_of(&Catalog::shipped());
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let (known, setup) = (draw_scenario(seed, &types), draw_scenario_with_sweeps(seed, &types));
        assert!(known.config.sweeps.is_empty() && known.sweeps.is_empty(), "seed {seed}");
        assert_eq!(known.scenario.workloads, setup.scenario.workloads, "seed {seed}");
        let kinds: Vec<SweepKind> = setup.sweeps.iter().map(|of| of.kind).collect();
        let configured: Vec<SweepKind> = setup.config.sweeps.keys().copied().collect();
        assert_eq!(kinds, configured, "seed {seed}");
        // At the end, no sweep keeps a node any more.
        let last = setup.reloads.last().expect("a reload");
        assert_eq!(last.0, setup.scenario.end, "seed {seed}");
        assert!(last.1.sweeps.is_empty(), "seed {seed}");
        assert!(setup.reloads.is_sorted_by_key(|(at, _)| *at), "seed {seed}");
        for of in &setup.sweeps {
            // The arithmetic agrees with the schedule of the configuration.
            let schedule = &setup.config.sweeps[&of.kind].schedule;
            let mut at = setup.scenario.start;
            for _ in 0..20 {
                let next = schedule.next_after(at).expect("an occurrence");
                assert_eq!(next, of.last_occurrence(at) + of.period(), "seed {seed} {of:?}");
                at = next;
            }
            seen.insert(format!("{} every {}", of.kind.as_str(), of.period));
            seen.insert(format!("jitter {}", of.jitter));
            seen.insert(format!("catch_up {}", of.catch_up));
        }
        seen.insert(format!("{} stops", setup.stops.len()));
    }
    assert_eq!(seen.len(), SweepKind::ALL.len() * 6 + 4 + 2 + 3, "{seen:?}");
}

/// The working day with hourly sweeps at half past, and a checker for them.
fn hourly(kind: SweepKind, catch_up: bool) -> (Setup, Checker) {
    let mut setup = working_day();
    let (period, offset, jitter) = (HOUR, HOUR / 2, 300);
    setup.sweeps = vec![SweepTimetable { kind, period, offset, jitter, catch_up }];
    let mut checker = Checker::default();
    checker.expect_sweeps(&setup);
    (setup, checker)
}

/// Checks which invariants reports at some seconds after the start violate, for sweeps at half
/// past. A report is the second of its occurrence, or `None` for a node of the pool `general` that
/// drifts at 100 minutes.
fn check(catch_up: bool, reports: &[(i64, Option<i64>, bool)], expect: &[Invariant]) {
    let (mut setup, _) = hourly(SweepKind::Drift, catch_up);
    let mut changed = (*setup.config).clone();
    let pool = changed.pools.iter_mut().find(|pool| pool.name.as_str() == "general");
    pool.expect("a pool").weight += 1;
    let start = setup.scenario.start;
    let at = |seconds: i64| start + SignedDuration::from_secs(seconds);
    let mut world = World::new(setup.clone(), 1, false);
    world.run_until(at(90 * 60));
    setup.reloads = vec![(at(100 * 60), Arc::new(changed))];
    let scene = world.ground_truth();
    let mut checker = Checker::default();
    checker.expect_sweeps(&setup);
    checker.on_engine_start(scene, start);
    for (now, occurrence, is_skipped) in reports {
        let sweep = SweepKind::Drift;
        let report = match occurrence.map(at) {
            Some(at) if *is_skipped => Report::SweepSkipped { sweep, at },
            Some(at) => Report::Swept { sweep, at, result: SweepResult::default() },
            None => {
                let nodes = scene.cluster.store().nodes().values();
                let mut machines = nodes.filter_map(|node| scene.our_machine(node));
                let machine = machines.find(|it| it.truth().tags[TAG_POOL] == "general");
                let machine = machine.expect("a node").truth();
                Report::Retire {
                    claim: claim_id(&machine.tags, &machine.id).expect("a claim"),
                    pool: "general".into(),
                    node: None,
                    capacity_type: None,
                    reason: Reason::Drifted,
                    price: None,
                    pods: 0,
                }
            }
        };
        checker.on_report(&report, scene, at(*now));
        checker.check_sweeps(None, at(*now));
    }
    let violations = checker.violations();
    let rules: Vec<Invariant> = violations.iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, expect, "{catch_up} {reports:?}: {violations:?}");
}

#[test]
fn checker_reports_sweeps_at_wrong_times() {
    let half_past = HOUR / 2;
    let ran = |now: i64, at: i64| (now, Some(at), false);
    let skipped = |now: i64, at: i64| (now, Some(at), true);
    let late = half_past + 16 * 60;
    let time = [Invariant::SweepTime];
    check(false, &[ran(half_past, half_past), ran(half_past + HOUR, half_past + HOUR)], &[]);
    check(false, &[ran(half_past + 299, half_past + 299)], &[]);
    check(false, &[ran(half_past + 300, half_past + 300)], &time);
    check(false, &[ran(half_past - 1, half_past - 1)], &time);
    check(false, &[ran(half_past - 1, half_past)], &time);
    check(false, &[ran(half_past, half_past), ran(half_past + HOUR, half_past + HOUR + 1)], &time);
    check(true, &[ran(half_past + HOUR, half_past)], &time);
    check(false, &[ran(half_past + 14 * 60, half_past)], &[]);
    check(false, &[ran(late, half_past)], &time);
    check(true, &[ran(late, half_past)], &[]);
    check(false, &[skipped(late, half_past)], &[]);
    check(true, &[skipped(late, half_past)], &time);
    check(false, &[skipped(half_past + 60, half_past)], &time);
    let twice = [Invariant::SweepTwice];
    check(false, &[ran(half_past, half_past), ran(half_past + 60, half_past)], &twice);
}

#[test]
fn checker_reports_disruptions_without_a_sweep() {
    let half_past = HOUR / 2;
    let ran = |at: i64| (at, Some(at), false);
    let disrupted = |now: i64| (now, None, false);
    let permit = [Invariant::SweepPermit];
    // The pool changes after the second sweep.
    check(false, &[disrupted(2 * HOUR)], &permit);
    check(false, &[ran(half_past), ran(half_past + HOUR), disrupted(2 * HOUR)], &permit);
    check(false, &[ran(half_past + 2 * HOUR), disrupted(half_past + 2 * HOUR)], &[]);
    check(false, &[ran(half_past + 2 * HOUR), disrupted(half_past + 3 * HOUR)], &[]);
}

#[test]
fn checker_reports_missed_sweeps() {
    let (setup, _) = hourly(SweepKind::Drift, false);
    let start = setup.scenario.start;
    let mut world = World::new(Setup { sweeps: Vec::new(), ..setup.clone() }, 1, false);
    world.run_until(start + SignedDuration::from_mins(20));
    let at = |minutes: i64| -> Timestamp { start + SignedDuration::from_mins(minutes) };
    let scene = world.ground_truth();
    for (is_in_sync, is_handled, missed) in
        [(true, false, 1), (true, true, 0), (false, false, 0), (false, true, 0)]
    {
        let mut checker = Checker::default();
        checker.expect_sweeps(&setup);
        checker.on_engine_start(scene, start);
        let engine = world.engine().filter(|_| is_in_sync);
        for minute in 20..60 {
            let (sweep, at, result) = (SweepKind::Drift, at(minute), SweepResult::default());
            if minute == 32 && is_handled {
                checker.on_report(&Report::Swept { sweep, at, result }, scene, at);
            }
            checker.check_sweeps(engine, at);
        }
        let violations = checker.violations();
        assert_eq!(violations.len(), missed, "{is_in_sync} {is_handled}: {violations:?}");
        assert!(violations.iter().all(|it| it.rule == Invariant::SweepMissed), "{violations:?}");
    }
}
