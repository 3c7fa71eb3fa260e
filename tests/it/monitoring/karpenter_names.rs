//! Karpenter's metrics: those of Karpenter 1.14.1, of its AWS provider after 1.14.0, and of the
//! libraries that these use. Each is served with the same type and labels, or the reference says
//! why it is not.

use std::collections::{BTreeMap, BTreeSet};

use outrigger::telemetry::metric_definitions::{ALL, Metric, MetricKind};
use regex::Regex;

use crate::named_tests::{rows, text};

/// Served under a name with Karpenter's prefix that the table does not have.
const NOT_KARPENTERS: [&str; 1] = ["karpenter_pods_disruption_initiated_total"];

/// A row: name, type, labels, whether it is served, which of the labels it lacks, which other
/// labels it has besides the cluster, and why.
type Row = [String; 7];

fn table() -> Vec<Row> {
    let columns = ["name", "type", "labels", "state", "without", "also", "why"];
    rows("tests/it/monitoring/karpenter.tsv", columns)
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split_whitespace().collect()
}

fn kind(metric: &Metric) -> &'static str {
    match metric.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Summary => "summary",
        MetricKind::Histogram => "histogram",
    }
}

#[test]
fn every_metric_of_karpenter_is_served_with_its_labels_or_known_to_be_absent() {
    let served: BTreeMap<&str, &Metric> = ALL.iter().map(|own| (own.name, own)).collect();
    let table = table();
    assert!(table.is_sorted_by(|one, next| one[0] < next[0]), "by name, each once");
    for [name, of_kind, labels, state, without, also, why] in &table {
        let own = served.get(name.as_str());
        let (labels, without, also) = (words(labels), words(without), words(also));
        let differs = !without.is_empty() || !also.is_empty();
        match (state.as_str(), own) {
            ("served", Some(own)) => {
                assert_eq!(kind(own), of_kind, "{name}");
                assert!(without.is_subset(&labels) && also.is_disjoint(&labels), "{name}");
                let mut expect: BTreeSet<&str> = labels.difference(&without).copied().collect();
                expect.extend(also);
                let found = own.labels.iter().copied().filter(|label| *label != "cluster");
                assert_eq!(found.collect::<BTreeSet<_>>(), expect, "{name}");
                assert_eq!(differs, !why.is_empty(), "{name}: a reason for each difference");
            }
            ("absent", None) => assert!(!differs && !why.is_empty(), "{name}: why?"),
            (state, _) => panic!("{name}: {state}, which it is not"),
        }
    }
    let known: BTreeSet<&str> = table.iter().map(|row| row[0].as_str()).collect();
    let own = served.keys().filter(|name| !name.starts_with("outrigger_"));
    let unknown: Vec<&&str> = own.filter(|name| !known.contains(*name)).collect();
    assert_eq!(unknown, NOT_KARPENTERS.iter().collect::<Vec<_>>());
}

/// The rows of the table below a heading of the reference, without their header.
fn section(heading: &str) -> Vec<Vec<String>> {
    let page = text("docs/METRICS.md");
    let (_, after) = page.split_once(&format!("## {heading}\n")).expect("the heading is there");
    let lines = after.lines().skip_while(|own| !own.starts_with('|'));
    let lines = lines.take_while(|own| own.starts_with('|')).skip(2);
    let cells = |own: &str| -> Vec<String> {
        own.trim_matches('|').split('|').map(|own| own.trim().to_owned()).collect()
    };
    lines.map(cells).collect()
}

/// The names in backticks of a cell. An asterisk stands for any part of a name.
fn patterns(cell: &str) -> Vec<Regex> {
    let names = cell.split(", ").map(|name| name.trim_matches('`').replace('*', ".*"));
    names.map(|name| Regex::new(&format!("^{name}$")).expect("a pattern")).collect()
}

#[test]
fn the_reference_gives_the_reason_for_every_absent_metric() {
    let listed: Vec<(String, Regex)> = section("Karpenter metrics that Outrigger does not have")
        .iter()
        .flat_map(|row| patterns(&row[1]).into_iter().map(|own| (row[0].clone(), own)))
        .collect();
    let table = table();
    let (absent, served): (Vec<&Row>, Vec<&Row>) = table.iter().partition(|row| row[3] == "absent");
    for [name, .., why] in absent {
        let found = listed.iter().filter(|(_, pattern)| pattern.is_match(name));
        let found: Vec<&str> = found.map(|(reason, _)| reason.as_str()).collect();
        assert_eq!(found, [why.as_str()], "{name}");
    }
    for (_, pattern) in &listed {
        assert!(table.iter().any(|row| pattern.is_match(&row[0])), "{pattern}: of none");
        let served = served.iter().find(|row| pattern.is_match(&row[0]));
        assert_eq!(served, None, "{pattern}");
    }
}

#[test]
fn the_reference_gives_the_reason_for_every_other_label() {
    let section = section("Labels that differ from Karpenter");
    let differs = |row: &Row| !row[4].is_empty() || !row[5].is_empty();
    let expect: BTreeSet<(String, String)> = table()
        .iter()
        .filter(|row| differs(row))
        .map(|row| (format!("`{}`", row[0]), row[6].clone()))
        .collect();
    let listed = section.iter().flat_map(|row| {
        row[1].split(", ").map(|name| (name.to_owned(), row[2].clone())).collect::<Vec<_>>()
    });
    assert_eq!(listed.collect::<BTreeSet<_>>(), expect);
}
