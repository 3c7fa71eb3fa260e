//! What everyone fears, each as a scenario with its timeline: a line for each minute in which
//! anything happened, or for ten where these are too many.
//! It must not know what the engine should do about it.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use outrigger::sim::World;
use outrigger::sim::timeline::{Fact, Line};

use super::setup::day;

/// A timeline that is longer than this is read by nobody.
const LINES_MAX: usize = 60;

/// What happened, so many minutes a line: how often what, and of what there are few in words.
fn timeline(lines: &[Line], minutes: i64) -> String {
    let mut all: BTreeMap<String, (Vec<String>, BTreeMap<String, usize>)> = BTreeMap::new();
    for line in lines {
        let second = line.at.as_second().div_euclid(minutes * 60) * (minutes * 60);
        let at = Timestamp::from_second(second).expect("a time");
        let (words, counts) = all.entry(at.strftime("%d %H:%M").to_string()).or_default();
        let (what, count) = match &line.fact {
            Fact::Planned { .. } => ("planned".to_owned(), 1),
            Fact::Launched { .. } => ("launched".to_owned(), 1),
            Fact::Refused { .. } => ("refused".to_owned(), 1),
            Fact::Registered { .. } => continue,
            Fact::Ready { .. } => ("ready".to_owned(), 1),
            Fact::Bound { pods, .. } => ("pods bound".to_owned(), *pods),
            Fact::Leaving { reason, .. } => (format!("leave ({reason})"), 1),
            Fact::Retired { .. } => ("ended".to_owned(), 1),
            Fact::Interrupted { .. } => ("taken back".to_owned(), 1),
            Fact::Lost { .. } => ("lost".to_owned(), 1),
            Fact::Unplaced { .. } => ("pods without a place".to_owned(), 1),
            Fact::Waiting { pods, .. } => ("pods wait".to_owned(), *pods),
            other => {
                words.push(other.to_string());
                continue;
            }
        };
        *counts.entry(what).or_default() += count;
    }
    let mut text = String::new();
    for (minute, (words, counts)) in all {
        let counts = counts
            .into_iter()
            .map(|(what, count)| format!("{count} {what}"));
        let row: Vec<String> = words.into_iter().chain(counts).collect();
        text.push_str(&format!("{minute}  {}\n", row.join("; ")));
    }
    text
}

fn play(path: &Path) {
    let text = std::fs::read_to_string(path).expect("a file");
    let setup = day(&text);
    let mut world = World::new(setup, 1, false);
    world.run();
    let summary = world.summary();
    let lines: Vec<Line> = world.take_lines().into();
    let mut told = timeline(&lines, 1);
    if told.lines().count() > LINES_MAX {
        told = timeline(&lines, 10);
    }
    let rows = told.lines().count();
    assert!(rows <= LINES_MAX, "{rows} lines: {told}");
    told.push_str(&format!("\n{summary}\n"));
    let violations = world.finish().to_vec();
    insta::assert_snapshot!("timeline", told);
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn named_scenarios_go_as_told() {
    insta::glob!("../../../config/scenarios", "*.hcl", |path| {
        if !path.ends_with("working-day.hcl") {
            play(path);
        }
    });
}
