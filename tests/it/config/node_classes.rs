//! What Karpenter's own tests state of the fields of an EC2NodeClass, held against our reader:
//! each row of `node-classes.tsv` is one of their cases, by file and line, with the node class that
//! it is about; and what they state of labels in a NodePool. It must not know how either is read.
//!
//! Where ours is another answer than theirs the row says `ours …`; `docs/decisions/014` tells why.

use std::collections::BTreeSet;

use outrigger::config::problem::{Severity, render_all};
use outrigger::config::{Inputs, SourceFile, load};
use outrigger::model::labels::{OF_TYPES, PLACEMENT_GROUP_ID, PLACEMENT_GROUP_PARTITION, ZONE_ID};
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

/// The kinds of fault a managed cluster with this node class has, or `fine`.
fn outcome(change: &str) -> (String, String) {
    let change: Map<String, Value> = serde_json::from_str(change).expect("a map in JSON");
    let mut class = base();
    class.extend(change);
    class.retain(|_, value| !value.is_null());
    problems(class, &Map::new())
}

/// The kinds of fault of a managed cluster with this node class and a pool of it that says this.
fn problems(class: Map<String, Value>, pool: &Map<String, Value>) -> (String, String) {
    let mut pool = pool.clone();
    pool.insert("node_class".to_owned(), json!("${node_class.one}"));
    let text = json!({
        "outrigger": { "installation": "it" },
        "cluster": { "demo": { "region": "eu-central-1", "mode": "manage", "eks": {} } },
        "node_class": { "one": class },
        "pool": { "one": pool },
    });
    let file = SourceFile::new("main.hcl.json", text.to_string());
    let problems = match load(&[file], &Inputs::default()) {
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

/// Labels of the provider may be required and set. Of several values that are required each has to
/// be one: Karpenter lets a wrong one pass beside a right one, and nobody hears of it.
#[test]
fn pools_require_and_label_what_karpenter_lets_them() {
    let pool = |key: &str, requires: Value| {
        let mut own = Map::new();
        own.insert("require".to_owned(), json!({ key: requires }));
        problems(base(), &own)
    };
    let of_nodes = [ZONE_ID, PLACEMENT_GROUP_ID, PLACEMENT_GROUP_PARTITION];
    for key in OF_TYPES.into_iter().chain(of_nodes) {
        let (required, why) = pool(key, json!({ "exists": true }));
        assert_eq!(required, "fine", "{why}");
        let mut own = Map::new();
        own.insert("labels".to_owned(), json!({ key: "1" }));
        let (set, why) = problems(base(), &own);
        assert_eq!(set, "fine", "{why}");
    }
    let bought = "karpenter.sh/capacity-type";
    let tenancy = "karpenter.k8s.aws/instance-tenancy";
    for (key, values, expect) in [
        (bought, json!(["spot", "on-demand", "reserved"]), "fine"),
        (bought, json!(["fake", "other"]), "invalid-value"),
        (bought, json!(["spot", "fake"]), "invalid-value"),
        (tenancy, json!(["default", "dedicated"]), "fine"),
        (tenancy, json!(["host"]), "invalid-value"),
        (tenancy, json!(["dedicated", "host"]), "invalid-value"),
    ] {
        let (got, why) = pool(key, json!({ "in": values }));
        assert_eq!(got, expect, "{key} {values}: {why}");
    }
}
