//! What Karpenter's own tests state of the fields of an EC2NodeClass, held against our reader:
//! each row of `node-classes.tsv` is one of their cases, by file and line, with the node class that
//! it is about. It must not know how a node class is read.
//!
//! Where ours is another answer than theirs the row says `ours …`; `docs/decisions/014` tells why.

use std::collections::BTreeSet;

use outrigger::config::problem::{Problem, Severity, render_all};
use outrigger::config::{Config, Inputs, SourceFile, load};
use outrigger::model::hash::node_class_hash;
use serde_json::{Map, Value, json};

/// The class of their tests, which a row changes; `null` takes away.
fn base() -> Map<String, Value> {
    let base = json!({
        "role": "role-1",
        "ami_family": "al2023",
        "ami": [{ "alias": "al2023@latest" }],
        "subnet": [{ "tags": { "*": "*" } }],
        "security_group": [{ "tags": { "*": "*" } }],
    });
    base.as_object().cloned().expect("a map")
}

/// A managed cluster with this node class.
fn configured(change: &str) -> Result<Config, Vec<Problem>> {
    let change: Map<String, Value> = serde_json::from_str(change).expect("a map in JSON");
    let mut class = base();
    class.extend(change);
    class.retain(|_, value| !value.is_null());
    let text = json!({
        "outrigger": { "installation": "it" },
        "cluster": { "demo": { "region": "eu-central-1", "mode": "manage", "eks": {} } },
        "node_class": { "one": class },
        "pool": { "one": { "node_class": "${node_class.one}" } },
    });
    let file = SourceFile::new("main.hcl.json", text.to_string());
    load(&[file], &Inputs::default())
}

/// The kinds of fault a managed cluster with this node class has, or `fine`.
fn outcome(change: &str) -> (String, String) {
    let problems = match configured(change) {
        Ok(config) => config.warnings,
        Err(problems) => problems,
    };
    assert!(problems.iter().all(|it| it.severity == Severity::Error));
    let codes: BTreeSet<&str> = problems.iter().map(|it| it.code.as_str()).collect();
    let all = codes.into_iter().collect::<Vec<_>>().join(" ");
    let outcome = if all.is_empty() {
        "fine".to_owned()
    } else {
        all
    };
    (outcome, render_all(&problems))
}

#[test]
fn node_classes_are_refused_where_karpenter_refuses_them() {
    let rows = include_str!("node-classes.tsv").lines().skip(1);
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for row in rows {
        let fields: Vec<&str> = row.split('\t').collect();
        let [place, behaviour, class, expect] = fields[..] else {
            panic!("four fields: {row}");
        };
        assert!(seen.insert((place, behaviour)), "twice: {row}");
        let (got, why) = outcome(class);
        if got != expect {
            faults.push(format!("{place} {behaviour}: {got}, not {expect}\n{why}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(seen.len(), 282);
}

/// A family counts by what it is, not by how it is said: writing it out replaces no node.
#[test]
fn a_family_that_an_alias_implies_is_the_same_written_out() {
    let hash = |class: &str| {
        let config = configured(class).expect("a configuration");
        node_class_hash(config.clusters[0].node_classes.first())
    };
    let implied = hash(r#"{"ami_family":null}"#);
    assert_eq!(hash(r#"{"ami_family":"al2023"}"#), implied);
    assert_ne!(hash(r#"{"ami_family":"custom"}"#), implied);
}
