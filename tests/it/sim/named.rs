//! What everyone fears, each as a scenario with its timeline: a line for each minute in which
//! anything happened.
//! It must not know what the engine should do about it.

use std::collections::BTreeMap;
use std::path::Path;

use outrigger::sim::World;
use outrigger::sim::timeline::{Fact, Line};

use super::setup::day;

/// A timeline that is longer than this is read by nobody.
const LINES_MAX: usize = 150;

/// What happened, minute by minute: how often what, and of what there are few in words.
fn minutes(lines: &[Line]) -> String {
    let mut all: BTreeMap<String, (Vec<String>, BTreeMap<String, usize>)> = BTreeMap::new();
    for line in lines {
        let minute = line.at.strftime("%H:%M").to_string();
        let day = line.at.strftime("%d ").to_string();
        let (words, counts) = all.entry(day + &minute).or_default();
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
    let mut told = minutes(&world.take_lines().into_iter().collect::<Vec<_>>());
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
