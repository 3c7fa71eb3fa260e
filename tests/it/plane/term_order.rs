//! Checks the changes that servers recorded: each has its term, and no change of a term follows the
//! first change of a later term.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Plane, audit};

/// A change that a server recorded: the `User-Agent` of the client, and the change.
pub(crate) struct Recorded {
    pub(crate) agent: String,
    pub(crate) what: String,
}

/// Asserts that the terms of these changes never decrease.
///
/// # Panics
///
/// If a change names no term, or an earlier term than a change before it. If the changes name
/// more or fewer than `clusters` clusters, or fewer than `least` terms of any of them.
pub(crate) fn assert_terms(all: &[Recorded], (clusters, least): (usize, usize)) {
    let terms = in_order(all);
    println!("{} changes in order, in these terms: {terms:?}", all.len());
    assert_eq!(terms.len(), clusters);
    assert!(terms.values().all(|own| *own >= least), "too few terms");
}

/// Returns the number of terms of each cluster that the changes name.
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

/// Returns the cluster and the term in a word of a `User-Agent`.
fn mark(word: &str) -> Option<(&str, (u64, u64))> {
    let (rest, number) = word.strip_prefix("term/")?.rsplit_once('.')?;
    let (cluster, transitions) = rest.rsplit_once('.')?;
    Some((cluster, (transitions.parse().ok()?, number.parse().ok()?)))
}

/// Returns the changes by these users in the audit log of a plane that was started with `--audit`,
/// in the order of the requests. Access reviews change nothing. Created Nodes are left out: the
/// process of a daemon also simulates the machines of the cloud, which register whether or not it
/// leads.
pub(super) fn audited(plane: &Plane, users: &[&str]) -> Vec<Recorded> {
    let mut events = audit::changes(plane, users);
    events.retain(|event| {
        let object = &event["objectRef"];
        let is_machine = event["verb"] == "create" && object["resource"] == "nodes";
        object["apiGroup"] != "authorization.k8s.io" && !is_machine
    });
    events.sort_by_key(|event| text(&event["requestReceivedTimestamp"]));
    let recorded = |event: &Value| Recorded {
        agent: text(&event["userAgent"]),
        what: format!("{} {}", event["verb"], event["requestURI"]),
    };
    events.iter().map(recorded).collect()
}

/// Returns the changes that callers with these access keys requested from AWS, in the order of the
/// calls. Returning a message to its queue has no term.
pub(crate) fn called(mut calls: Vec<Value>, is_one: impl Fn(&str) -> bool) -> Vec<Recorded> {
    calls.retain(|own| {
        let is_given_back = own["call"] == "sqs:ChangeMessageVisibility";
        is_one(&text(&own["key"])) && is_change(own) && !is_given_back
    });
    // The proxy records a call when it processes it, which may be later than its arrival.
    calls.sort_by(|one, other| {
        let at = |own: &Value| own["at"].as_f64().unwrap_or_default();
        at(one).total_cmp(&at(other))
    });
    let recorded = |own: &Value| Recorded { agent: text(&own["agent"]), what: text(&own["call"]) };
    calls.iter().map(recorded).collect()
}

/// Whether a call changes something in AWS: it is neither a read nor a dry run.
pub(crate) fn is_change(call: &Value) -> bool {
    let reads = ["Describe", "Get", "List", "Receive", "Simulate", "Assume"];
    let name = text(&call["call"]);
    let action = name.split_once(':').map_or(&*name, |(_, action)| action);
    let is_read = reads.iter().any(|read| action.starts_with(read));
    call["params"]["DryRun"] != true && !is_read
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[test]
fn changes_of_an_earlier_term_are_detected() {
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
    assert_eq!(counts(&both), None, "a later term precedes it");
    assert_eq!(counts(&["term/a.10.1", "term/a.9.2"]), None);
    assert_eq!(counts(&["term/a.1.10", "term/a.1.9"]), None);
    assert_eq!(counts(&["outrigger/1.0"]), None, "it names no term");
    assert_eq!(counts(&["term/a.1", "term/a.1.x"]), None);
}
