//! The shipped dashboard and alert rules use existing metrics, and alerts link to documentation.

// Names and labels of Karpenter's metrics.
mod karpenter_names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the labels of all series by name, as in the reference, including those of quantiles and
/// buckets.
fn series() -> BTreeMap<String, BTreeSet<String>> {
    let text = read("METRICS.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split(',').map(|own| own.trim().trim_matches('`'));
        let mut labels: BTreeSet<String> = labels.map(str::to_owned).collect();
        labels.extend(match cells[2] {
            "summary" => Some("quantile".to_owned()),
            "histogram" => Some("le".to_owned()),
            _ => None,
        });
        (cells[1].trim_matches('`').to_owned(), labels)
    };
    rows.map(row).collect()
}

/// Returns the errors in a query.
fn query_errors(query: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let own = Regex::new(r"\b((?:outrigger|karpenter|controller_runtime)_[a-z0-9_]+)(\{[^}]*\})?");
    let label = Regex::new(r"([a-z_]+)(?:=~|!~|!=|=)").expect("a pattern");
    let by = Regex::new(r"\bby \(([^)]*)\)").expect("a pattern");
    let (mut found, mut all) = (Vec::new(), BTreeSet::new());
    for part in own.expect("a pattern").captures_iter(query) {
        let name = &part[1];
        let base = ["_bucket", "_sum", "_count"];
        let base = base.iter().find_map(|end| name.strip_suffix(end));
        let Some(labels) = known.get(name).or(base.and_then(|own| known.get(own))) else {
            found.push(format!("there is no series {name}"));
            continue;
        };
        if name.ends_with("_bucket") && !labels.contains("le") {
            found.push(format!("{name}: it is no histogram"));
        }
        all.extend(labels.clone());
        let matchers = part.get(2).map_or("", |own| own.as_str());
        for one in label.captures_iter(matchers) {
            if !labels.contains(&one[1]) {
                found.push(format!("{name} has no label {}", &one[1]));
            }
        }
    }
    if all.is_empty() {
        found.push("it asks for no series".to_owned());
    }
    for own in by.captures_iter(query) {
        let names = own[1].split(',').map(str::trim);
        let missing = names.filter(|name| !all.contains(*name));
        found.extend(missing.map(|name| format!("nothing that it asks for has a label {name}")));
    }
    found
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    expr: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[test]
fn every_alert_uses_existing_metrics_and_links_a_runbook() {
    let rules: Rules = serde_saphyr::from_str(&read("monitoring/alerts.yaml")).expect("YAML");
    let (known, page) = (series(), read("TROUBLESHOOTING.md"));
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    let anchors: BTreeSet<String> =
        headings.map(|own| own.to_lowercase().replace(' ', "-")).collect();
    let mut names = BTreeSet::new();
    for rule in rules.groups.iter().flat_map(|own| &own.rules) {
        let name = &rule.alert;
        assert!(names.insert(name), "{name} is defined twice");
        assert_eq!(query_errors(&rule.expr, &known), [] as [&str; 0], "{name}");
        let severity = rule.labels.get("severity").map_or("", String::as_str);
        assert!(["critical", "warning", "info"].contains(&severity), "{name}");
        let present = ["summary", "description"].map(|own| rule.annotations.contains_key(own));
        assert_eq!(present, [true, true], "{name}");
        let (file, anchor) = rule.annotations["runbook"].split_once('#').expect("a place");
        assert_eq!(file, "docs/TROUBLESHOOTING.md", "{name}");
        assert!(anchors.contains(anchor), "{name}: there is no #{anchor}");
    }
    assert!(names.len() > 5, "{names:?}");
}

#[test]
fn every_dashboard_panel_uses_existing_metrics() {
    let board: Value = serde_json::from_str(&read("monitoring/dashboard.json")).expect("JSON");
    let known = series();
    let panels = board["panels"].as_array().expect("panels");
    let mut queries = 0;
    for panel in panels.iter().filter(|own| own["type"] != "row") {
        let title = &panel["title"];
        for target in panel["targets"].as_array().expect("targets") {
            let query = target["expr"].as_str().expect("a query");
            assert_eq!(query_errors(query, &known), [] as [&str; 0], "{title}");
            queries += 1;
        }
    }
    assert!(queries > 10, "{queries}");
}

#[test]
fn queries_of_unknown_metrics_or_labels_are_detected() {
    let known = series();
    let check =
        |query: &str, expect: &[&str]| assert_eq!(query_errors(query, &known), expect, "{query}");
    check("sum by (cluster) (outrigger_cluster_up)", &[]);
    check("outrigger_claims{phase=\"gone\"}", &[]);
    check(
        "outrigger_nothing_total",
        &["there is no series outrigger_nothing_total", "it asks for no series"],
    );
    check("outrigger_plans_total{zone=~\"a\"}", &["outrigger_plans_total has no label zone"]);
    check("sum by (pod) (outrigger_plans_total)", &["nothing that it asks for has a label pod"]);
    check("up", &["it asks for no series"]);
}
