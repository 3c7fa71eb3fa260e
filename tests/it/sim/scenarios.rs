//! Common failures, each as a scenario with its timeline: a line for each minute with events, or
//! for ten minutes if there are too many.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use outrigger::sim::World;
use outrigger::sim::timeline::{TimelineEntry, TimelineFact};

use super::setup::day;

/// The folder of the shipped scenarios.
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/scenarios");

/// The maximum number of lines of a readable timeline.
const LINES_MAX: usize = 60;

/// Renders the events with this number of minutes per line: counts of the frequent ones, and the
/// texts of the others.
fn timeline(lines: &[TimelineEntry], minutes: i64) -> String {
    let mut all: BTreeMap<String, (Vec<String>, BTreeMap<String, usize>)> = BTreeMap::new();
    for line in lines {
        let second = line.at.as_second().div_euclid(minutes * 60) * (minutes * 60);
        let at = Timestamp::from_second(second).expect("a time");
        let (words, counts) = all.entry(at.strftime("%d %H:%M").to_string()).or_default();
        let (what, count) = match &line.fact {
            TimelineFact::Planned { .. } => ("planned".to_owned(), 1),
            TimelineFact::Launched { .. } => ("launched".to_owned(), 1),
            TimelineFact::Refused { .. } => ("refused".to_owned(), 1),
            TimelineFact::Registered { .. } => continue,
            TimelineFact::Ready { .. } => ("ready".to_owned(), 1),
            TimelineFact::Bound { pods, .. } => ("pods bound".to_owned(), *pods),
            TimelineFact::Leaving { reason, .. } => (format!("leave ({reason})"), 1),
            TimelineFact::Retired { .. } => ("ended".to_owned(), 1),
            TimelineFact::Interrupted { .. } => ("taken back".to_owned(), 1),
            TimelineFact::Lost { .. } => ("lost".to_owned(), 1),
            TimelineFact::Unplaced { .. } => ("pods without a place".to_owned(), 1),
            TimelineFact::Waiting { pods, .. } => ("pods wait".to_owned(), *pods),
            other => {
                words.push(other.to_string());
                continue;
            }
        };
        *counts.entry(what).or_default() += count;
    }
    let mut text = String::new();
    for (minute, (words, counts)) in all {
        let counts = counts.into_iter().map(|(what, count)| format!("{count} {what}"));
        let row: Vec<String> = words.into_iter().chain(counts).collect();
        text.push_str(&format!("{minute}  {}\n", row.join("; ")));
    }
    text
}

/// Runs a shipped scenario.
fn run_scenario(name: &str) {
    let path = Path::new(SCENARIOS).join(format!("{name}.hcl"));
    let text = std::fs::read_to_string(path).expect("a file");
    let setup = day(&text);
    let mut world = World::new(setup, 1, false);
    world.run();
    let summary = world.summary();
    let lines: Vec<TimelineEntry> = world.take_lines().into();
    let mut rendered = timeline(&lines, 1);
    if rendered.lines().count() > LINES_MAX {
        rendered = timeline(&lines, 10);
    }
    let rows = rendered.lines().count();
    assert!(rows <= LINES_MAX, "{rows} lines: {rendered}");
    rendered.push_str(&format!("\n{summary}\n"));
    let violations = world.run_and_check().to_vec();
    insta::assert_snapshot!(name, rendered);
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn new_launch_template_is_rolled_out_by_drift() {
    run_scenario("drift-rollout");
}

#[test]
fn window_keeps_its_local_time_across_a_dst_change() {
    run_scenario("dst-window");
}

#[test]
fn nodes_that_expire_simultaneously_stay_within_the_budget() {
    run_scenario("expiry-herd");
}

#[test]
fn drifted_nodes_are_replaced_after_their_nightly_sweep() {
    run_scenario("nightly-sweep");
}

#[test]
fn blocking_pdb_keeps_only_its_own_node() {
    run_scenario("pdb-deadlock");
}

#[test]
fn fleet_survives_many_simultaneous_spot_interruptions() {
    run_scenario("spot-storm");
}

#[test]
fn cluster_recovers_from_the_loss_of_a_zone() {
    run_scenario("zone-loss");
}

/// The scenario `working-day` has separate tests.
#[test]
fn every_shipped_scenario_has_a_test() {
    let source = include_str!("scenarios.rs");
    for entry in std::fs::read_dir(SCENARIOS).expect("scenarios") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        let has_test = source.contains(&format!("run_scenario(\"{name}\");"));
        assert!(has_test || name == "working-day", "{name}");
    }
}
