//! The registry of cases: one row for each of Karpenter's, with our test or the reason for omitting
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use crate::named_tests::{self, path, text};

/// The number of cases (spec/scheduling-cases.md).
const CASES: usize = 629;
/// The maximum percentage of cases that a decision omits.
const DECIDED_MAX: usize = 20;
/// Reasons without a decision page: objects that Outrigger does not have, devices, and Go.
const REASONS: [&str; 3] = ["crd", "dra", "go"];

/// A row of `cases.tsv`.
struct Row {
    suite: String,
    /// File and line of the case in Karpenter's sources.
    place: String,
    behaviour: String,
    status: String,
}

impl Row {
    /// The key of the case in the test sources: `suite:line`.
    fn key(&self) -> String {
        let line = self.place.rsplit(':').next().unwrap_or_default();
        format!("{}:{line}", self.suite)
    }

    /// The kind of the status: `test`, `decision` or `open`.
    fn kind(&self) -> &str {
        match self.status.split_once(':') {
            Some(("test", _)) => "test",
            Some(_) => "decision",
            None => &self.status,
        }
    }
}

fn rows() -> Vec<Row> {
    let columns = ["suite", "place", "behaviour", "status"];
    named_tests::rows("tests/it/conformance/cases.tsv", columns)
        .into_iter()
        .map(|[suite, place, behaviour, status]| Row { suite, place, behaviour, status })
        .collect()
}

/// The error in the test that a row names, if any.
fn test_error(row: &Row, test: &str) -> Option<String> {
    let file = match named_tests::file(test) {
        Ok(file) => file,
        Err(fault) => return Some(fault),
    };
    let key = format!("\"{}\"", row.key());
    let is_missing = file.starts_with("tests/it/conformance") && !text(&file).contains(&key);
    is_missing.then(|| format!("{file} has no case {key}"))
}

#[test]
fn every_karpenter_case_has_a_row_with_a_test_or_a_reason() {
    let rows = rows();
    assert_eq!(rows.len(), CASES);
    let mut faults = Vec::new();
    let (mut places, mut behaviours) = (BTreeSet::new(), BTreeSet::new());
    for row in &rows {
        let mut wrong = |what: String| faults.push(format!("{} {}: {what}", row.suite, row.place));
        if !places.insert(&row.place) {
            wrong("it is listed twice".to_owned());
        }
        if row.behaviour.is_empty() || !behaviours.insert((&row.suite, &row.behaviour)) {
            wrong(format!("{:?} is not unique", row.behaviour));
        }
        match row.status.split_once(':') {
            Some(("test", test)) => {
                if let Some(what) = test_error(row, test) {
                    wrong(format!("{test}: {what}"));
                }
            }
            Some(("decision", reason)) => {
                let page = reason.starts_with("docs/decisions/") && path(reason).is_file();
                if !REASONS.contains(&reason) && !page {
                    wrong(format!("{reason:?} is not a known reason"));
                }
            }
            _ if row.status == "open" => {}
            _ => wrong(format!("{:?} is not a status", row.status)),
        }
    }
    let decided = rows.iter().filter(|row| row.kind() == "decision").count();
    if decided * 100 > DECIDED_MAX * CASES {
        faults.push(format!("decisions omit {decided} cases"));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_case_key_in_the_sources_has_a_row() {
    let rows = rows();
    let suites: BTreeSet<&str> = rows.iter().map(|row| row.suite.as_str()).collect();
    let tested: BTreeMap<String, &str> = rows
        .iter()
        .filter_map(|row| Some((row.key(), row.status.strip_prefix("test:")?)))
        .collect();
    let mut faults = Vec::new();
    for entry in fs::read_dir(path("tests/it/conformance")).expect("the folder can be read") {
        let file = entry.expect("an entry").path();
        let Some(stem) = file.file_stem().filter(|_| file.extension() == Some("rs".as_ref()))
        else {
            continue;
        };
        let stem = stem.to_string_lossy();
        let source = fs::read_to_string(&file).expect("the source can be read");
        for key in source.split('"').filter(|text| is_key(text, &suites)) {
            let prefix = format!("conformance::{stem}::");
            let here = |test: &&str| test.starts_with(&prefix);
            if tested.get(key).is_none_or(|test| !here(test)) {
                faults.push(format!("{stem}.rs has {key}, whose row names no test of it"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn is_key(text: &str, suites: &BTreeSet<&str>) -> bool {
    let pair = text.split_once(':');
    pair.is_some_and(|(suite, line)| suites.contains(suite) && line.parse::<u32>().is_ok())
}

/// The tables of docs/CONFORMANCE.md: the numbers of cases of each suite by status and reason.
fn tables(rows: &[Row]) -> String {
    let kinds = ["test", "decision", "open"];
    let count = |of: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| of(row)).count();
    let head = "| suite | cases | tested | decided against | open |";
    let mut text = format!("{head}\n|---|---|---|---|---|\n");
    let mut suites: Vec<&str> = rows.iter().map(|row| row.suite.as_str()).collect();
    suites.dedup();
    for suite in suites.iter().copied().chain(["all"]) {
        let in_suite = |row: &Row| row.suite == suite || suite == "all";
        let counts = kinds.map(|kind| count(&|row| in_suite(row) && row.kind() == kind));
        let [tested, decided, open] = counts;
        let all = count(&in_suite);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {suite} | {all} | {tested} | {decided} | {open} |");
    }
    text.push_str("\n| decided against | cases |\n|---|---|\n");
    let decisions = rows.iter().filter_map(|row| row.status.strip_prefix("decision:"));
    let reasons: BTreeSet<&str> = decisions.collect();
    for reason in reasons {
        let status = format!("decision:{reason}");
        let _ = writeln!(text, "| {reason} | {} |", count(&|row| row.status == status));
    }
    text
}

#[test]
fn counts_in_the_conformance_page_match_the_registry() {
    let rows = rows();
    let tables = tables(&rows);
    println!("{tables}");
    let open: Vec<String> = rows
        .iter()
        .filter(|row| row.kind() == "open")
        .map(|row| format!("{} {}", row.key(), row.behaviour))
        .collect();
    println!("open:\n{}", open.join("\n"));
    let page = text("docs/CONFORMANCE.md");
    assert!(page.contains(&tables), "docs/CONFORMANCE.md should say:\n{tables}");
}
