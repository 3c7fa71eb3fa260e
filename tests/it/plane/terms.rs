//! What servers recorded of changes: each names its term, and none of a term comes after the first
//! of a later one. It must not know why a term ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use super::Plane;

/// A change that a server recorded: how its client called itself, and what it was.
pub(crate) struct Recorded {
    pub(crate) agent: String,
    pub(crate) what: String,
}

/// Goes through changes in the order in which they came.
///
/// # Panics
///
/// If a change names no term, or one that is earlier than that of a change before it; if they name
/// other than so many clusters, or of one of them fewer terms.
pub(crate) fn assert_terms(all: &[Recorded], (clusters, least): (usize, usize)) {
    let terms = in_order(all);
    println!(
        "{} changes in order, in so many terms: {terms:?}",
        all.len()
    );
    assert_eq!(terms.len(), clusters);
    assert!(terms.values().all(|own| *own >= least), "too few terms");
}

/// How many terms of each cluster changes name.
fn in_order(all: &[Recorded]) -> BTreeMap<String, usize> {
    let mut terms: BTreeMap<String, BTreeSet<(u64, u64)>> = BTreeMap::new();
    for Recorded { agent, what } in all {
        let marks: Vec<_> = agent.split_whitespace().filter_map(mark).collect();
        assert!(!marks.is_empty(), "{what} names no term: {agent:?}");
        for (cluster, term) in marks {
            let known = terms.entry(cluster.to_owned()).or_default();
            let last = known.last().copied().unwrap_or_default();
            assert!(last <= term, "{what} of {term:?} came after {last:?}");
            known.insert(term);
        }
    }
    let counts = terms.into_iter().map(|(name, own)| (name, own.len()));
    counts.collect()
}

/// The cluster and the term that a word of a `User-Agent` names.
fn mark(word: &str) -> Option<(&str, (u64, u64))> {
    let (rest, number) = word.strip_prefix("term/")?.rsplit_once('.')?;
    let (cluster, transitions) = rest.rsplit_once('.')?;
    Some((cluster, (transitions.parse().ok()?, number.parse().ok()?)))
}

/// What users have changed by the audit log of a plane that was started with `--audit`. Without
/// Leases and reviews: it is by them that a host comes to lead, and knows its rights. Without Nodes
/// that come: the machines of the simulated cloud, which the process of a daemon plays, register
/// whether or not it leads.
pub(super) fn audited(plane: &Plane, users: &[&str]) -> Vec<Recorded> {
    let log = fs::read_to_string(plane.logs_dir().join("audit.log")).expect("the audit log");
    // The last line may be half written.
    let events = log.lines().filter_map(|own| serde_json::from_str(own).ok());
    let counts = |event: &Value| {
        let user = event["user"]["username"].as_str().unwrap_or_default();
        let group = event["objectRef"]["apiGroup"].as_str().unwrap_or_default();
        let is_read = ["get", "list", "watch"]
            .map(Value::from)
            .contains(&event["verb"]);
        let is_free = ["coordination.k8s.io", "authorization.k8s.io"].contains(&group);
        let is_machine = event["verb"] == "create" && event["objectRef"]["resource"] == "nodes";
        users.contains(&user) && !is_read && !is_free && !is_machine
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rows: Vec<(String, Recorded)> = events
        .filter(counts)
        .map(|event: Value| {
            let agent = text(&event["userAgent"]);
            let what = format!("{} {}", text(&event["verb"]), text(&event["requestURI"]));
            (
                text(&event["requestReceivedTimestamp"]),
                Recorded { agent, what },
            )
        })
        .collect();
    rows.sort_by(|one, other| one.0.cmp(&other.0));
    rows.into_iter().map(|(_, own)| own).collect()
}

/// What callers with these access keys have asked AWS to change, trials apart.
pub(crate) fn called(calls: Vec<Value>, is_one: impl Fn(&str) -> bool) -> Vec<Recorded> {
    let reads = [
        "Describe",
        "Get",
        "List",
        "Receive",
        "Simulate",
        "Assume",
        "ChangeMessage",
    ];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let counts = |own: &Value| {
        let (name, key) = (text(&own["call"]), text(&own["key"]));
        let action = name.split_once(':').map_or("", |(_, action)| action);
        is_one(&key)
            && own["params"]["DryRun"] != true
            && !reads.iter().any(|read| action.starts_with(read))
    };
    let recorded = |own: Value| Recorded {
        agent: text(&own["agent"]),
        what: text(&own["call"]),
    };
    let mut calls: Vec<Value> = calls.into_iter().filter(counts).collect();
    // It is written down when the proxy turns to it, which may be later than it came.
    calls.sort_by(|one, other| {
        let at = |own: &Value| own["at"].as_f64().unwrap_or_default();
        at(one).total_cmp(&at(other))
    });
    calls.into_iter().map(recorded).collect()
}

#[test]
fn a_change_of_an_earlier_term_is_found() {
    let recorded = |agents: &[&str]| -> Vec<Recorded> {
        let of = |agent: &&str| Recorded {
            agent: (*agent).to_owned(),
            what: "ec2:CreateFleet".to_owned(),
        };
        agents.iter().map(of).collect()
    };
    let counts = |agents: &[&str]| {
        let all = recorded(agents);
        std::panic::catch_unwind(|| in_order(&all)).ok()
    };
    let both = ["term/a.9.1", "x term/a.9.2 term/b.c.2.1", "term/b.c.1.7"];
    let expected = [("a".to_owned(), 2), ("b.c".to_owned(), 1)];
    assert_eq!(counts(&both[..2]), Some(expected.into()));
    assert_eq!(counts(&both), None, "it came after a later one");
    assert_eq!(counts(&["term/a.10.1", "term/a.9.2"]), None);
    assert_eq!(counts(&["term/a.1.10", "term/a.1.9"]), None);
    assert_eq!(counts(&["outrigger/1.0"]), None, "it names none");
    assert_eq!(counts(&["term/a.1", "term/a.1.x"]), None);
}
