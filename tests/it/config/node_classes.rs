//! Karpenter's own test cases for EC2NodeClass fields and for NodePool labels, applied to our
//! reader. Each row of `node-classes.tsv` is one case, with its file and line and the node class.
//!
//! If our result differs from Karpenter's, the row has `ours …`; `docs/decisions/014` gives the
//! reason.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use outrigger::config::diagnostic::{Diagnostic, Severity, render_all};
use outrigger::config::{Config, Inputs, SourceFile, load};
use outrigger::model::labels::{OF_TYPES, PLACEMENT_GROUP_ID, PLACEMENT_GROUP_PARTITION, ZONE_ID};
use outrigger::model::node_class::kubelet::{KubeletSettings, Reserved, Signal, Threshold};
use outrigger::model::template_hash::node_class_hash;
use serde_json::{Map, Value, json};

/// The node class of Karpenter's tests, which a row changes; `null` removes a field.
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

/// Loads a managed cluster with this change of the node class.
fn configured(change: &str) -> Result<Config, Vec<Diagnostic>> {
    let change: Map<String, Value> = serde_json::from_str(change).expect("a map in JSON");
    let mut class = base();
    class.extend(change);
    class.retain(|_, value| !value.is_null());
    load_class(class, &Map::new())
}

/// Loads a managed cluster with this node class and a pool with these arguments.
fn load_class(
    class: Map<String, Value>,
    pool: &Map<String, Value>,
) -> Result<Config, Vec<Diagnostic>> {
    let mut pool = pool.clone();
    pool.insert("node_class".to_owned(), json!("${node_class.one}"));
    let text = json!({
        "outrigger": { "installation": "it" },
        "cluster": { "demo": { "region": "eu-central-1", "mode": "manage", "eks": {} } },
        "node_class": { "one": class },
        "pool": { "one": pool },
    });
    let file = SourceFile::new("main.hcl.json", text.to_string());
    load(&[file], &Inputs::default())
}

/// Returns the problem codes, or `fine`, and the rendered problems.
fn outcome_of(read: Result<Config, Vec<Diagnostic>>) -> (String, String) {
    let problems = match read {
        Ok(config) => config.warnings,
        Err(problems) => problems,
    };
    assert!(problems.iter().all(|it| it.severity == Severity::Error));
    let codes: BTreeSet<&str> = problems.iter().map(|it| it.code.as_str()).collect();
    let all = codes.into_iter().collect::<Vec<_>>().join(" ");
    let outcome = if all.is_empty() { "fine".to_owned() } else { all };
    (outcome, render_all(&problems))
}

#[test]
fn node_class_validation_equals_karpenters() {
    let rows = include_str!("node-classes.tsv").lines().skip(1);
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for row in rows {
        let fields: Vec<&str> = row.split('\t').collect();
        let [place, behaviour, class, expect] = fields[..] else {
            panic!("four fields: {row}");
        };
        assert!(seen.insert((place, behaviour)), "twice: {row}");
        let (got, why) = outcome_of(configured(class));
        if got != expect {
            wrong.push(format!("{place} {behaviour}: {got}, not {expect}\n{why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(seen.len(), 282);
}

/// An explicit family that equals the implied one changes no hash, so it replaces no node.
#[test]
fn explicit_ami_family_equals_the_family_of_the_alias() {
    let hash = |class: &str| {
        let config = configured(class).expect("a configuration");
        node_class_hash(config.clusters[0].node_classes.first())
    };
    let implied = hash(r#"{"ami_family":null}"#);
    assert_eq!(hash(r#"{"ami_family":"al2023"}"#), implied);
    assert_ne!(hash(r#"{"ami_family":"custom"}"#), implied);
}

/// Returns the kubelet settings of a node class with this `kubelet` block.
fn kubelet(block: &str) -> KubeletSettings {
    let config = configured(&format!("{{\"kubelet\":{block}}}")).expect("it is fine");
    config.clusters[0].node_classes[0].kubelet.clone()
}

/// An argument of a `kubelet` block, and the setting that it changes.
type Setting = (&'static str, fn(&mut KubeletSettings));

fn reserved(amount: i64, text: &str) -> Reserved {
    let text = text.to_owned();
    Reserved { amount, text }
}

const SETTINGS: [Setting; 13] = [
    (r#""cluster_dns":["10.0.0.10","fd30::a"]"#, |own| {
        own.cluster_dns =
            ["10.0.0.10", "fd30::a"].map(|text| text.parse().expect("an address")).to_vec();
    }),
    (r#""max_pods":42"#, |own| own.max_pods = Some(42)),
    (r#""pods_per_core":3"#, |own| own.pods_per_core = Some(3)),
    (r#""system_reserved":{"cpu":"1.5"}"#, |own| {
        let kept = ("cpu".to_owned(), reserved(1500, "1.5"));
        own.system_reserved = [kept].into();
    }),
    (r#""kube_reserved":{"memory":"1Gi"}"#, |own| {
        let kept = ("memory".to_owned(), reserved(1 << 30, "1Gi"));
        own.kube_reserved = [kept].into();
    }),
    (r#""eviction_hard":{"nodefs.available":"7.5%"}"#, |own| {
        own.eviction_hard = [(Signal::NodefsAvailable, Threshold::Share(750))].into();
    }),
    (
        r#""eviction_soft":{"memory.available":"1Gi"},
           "eviction_soft_grace_period":{"memory.available":"90s"}"#,
        |own| {
            let soft = Threshold::Amount(1 << 30, "1Gi".to_owned());
            own.eviction_soft = [(Signal::MemoryAvailable, soft)].into();
            let grace = SignedDuration::from_secs(90);
            own.eviction_soft_grace_period = [(Signal::MemoryAvailable, grace)].into();
        },
    ),
    (r#""eviction_max_pod_grace_period":30"#, |own| {
        own.eviction_max_pod_grace_period = Some(30);
    }),
    (r#""image_gc_high_threshold_percent":90"#, |own| {
        own.image_gc_high_threshold_percent = Some(90);
    }),
    (r#""image_gc_low_threshold_percent":60"#, |own| {
        own.image_gc_low_threshold_percent = Some(60);
    }),
    (r#""cpu_cfs_quota":false"#, |own| own.cpu_cfs_quota = Some(false)),
    (r#""extra":{"podPidsLimit":9,"containerLogMaxFiles":4}"#, |own| {
        let all = [("containerLogMaxFiles", 4), ("podPidsLimit", 9)];
        let all = all.map(|(key, value)| (key.to_owned(), json!(value)));
        own.extra = all.into();
    }),
    // A number may be quoted.
    (r#""max_pods":"110""#, |own| own.max_pods = Some(110)),
];

#[test]
fn each_kubelet_argument_sets_only_its_field() {
    assert_eq!(kubelet("{}"), KubeletSettings::default());
    let none = configured("{}").expect("it is fine");
    assert_eq!(none.clusters[0].node_classes[0].kubelet, KubeletSettings::default());
    for (argument, set) in SETTINGS {
        let mut expect = KubeletSettings::default();
        set(&mut expect);
        assert_eq!(kubelet(&format!("{{{argument}}}")), expect, "{argument}");
    }
    let all: Vec<&str> = SETTINGS[..12].iter().map(|own| own.0).collect();
    let mut expect = KubeletSettings::default();
    for (_, set) in &SETTINGS[..12] {
        set(&mut expect);
    }
    let both = kubelet(&format!("{{{}}}", all.join(",")));
    assert_eq!(both, expect);
    // Extra settings are sorted, whatever their order in the file is.
    let passed: Vec<&str> = both.extra.keys().map(String::as_str).collect();
    assert_eq!(passed, ["containerLogMaxFiles", "podPidsLimit"]);
}

/// Pools may require and set labels of the provider. Each required value must be valid: Karpenter
/// silently accepts an invalid value next to a valid one.
#[test]
fn pools_may_require_and_set_the_labels_that_karpenter_allows() {
    let pool = |key: &str, requires: Value| {
        let mut own = Map::new();
        own.insert("require".to_owned(), json!({ key: requires }));
        outcome_of(load_class(base(), &own))
    };
    let of_nodes = [ZONE_ID, PLACEMENT_GROUP_ID, PLACEMENT_GROUP_PARTITION];
    for key in OF_TYPES.into_iter().chain(of_nodes) {
        let (required, why) = pool(key, json!({ "exists": true }));
        assert_eq!(required, "fine", "{why}");
        let mut own = Map::new();
        own.insert("labels".to_owned(), json!({ key: "1" }));
        let (set, why) = outcome_of(load_class(base(), &own));
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
