//! `outrigger plan` and `explain` of reachable and unreachable clusters.

use std::path::Path;

use serde_json::Value;

use super::kube_api::{Api, Manner};
use super::{Config, cluster, managed, pod};
use crate::binary::run;

/// Returns the exit code, stdout and stderr.
fn asked(config: &Config, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = run(&[arguments, &["--config", config.path()]].concat(), "");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn unreachable_cluster_does_not_affect_plans_of_others() {
    let api = Api::start(Manner::Well, vec![pod("p", "1500m")]);
    let gone = Path::new("/no/such/kubeconfig");
    let both = Config::new(&(cluster("a", api.kubeconfig()) + &cluster("b", gone)));
    let (code, text, errors) = asked(&both, &["plan", "--json"]);
    assert_eq!(code, Some(1), "{errors}");
    assert_eq!(json(&text)["unseen"][0]["cluster"], "b");
    let clusters = json(&text)["clusters"].take();
    let clusters = clusters.as_array().expect("a list");
    assert_eq!(clusters.len(), 1, "{text}");
    assert_eq!(clusters[0]["cluster"], "a");
    assert_eq!(clusters[0]["launches"].as_array().map(Vec::len), Some(1), "{text}");
    assert!(errors.contains("cluster \"b\": cannot read its state"), "{errors}");
    assert!(errors.contains("outrigger doctor --cluster b"), "{errors}");

    let one = ["plan", "--json", "--cluster", "a", "--detailed-exitcode"];
    let (code, text, errors) = asked(&both, &one);
    assert_eq!((code, errors.as_str()), (Some(2), ""), "{text}");
    assert_eq!(json(&text)["cluster"], "a");
    let (code, text, _) = asked(&both, &["plan", "--json", "--cluster", "b"]);
    assert_eq!(code, Some(1));
    assert_eq!(json(&text)["unseen"][0]["cluster"], "b");
    let (code, text, errors) = asked(&both, &["explain", "pod", "a/p", "--cluster", "a"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.contains("New node in pool a for it"), "{text}");
    let (code, ..) = asked(&both, &["plan", "--no-such-option"]);
    assert_eq!(code, Some(1), "2 would mean that there are changes");
}

#[test]
fn plan_of_a_managed_cluster_changes_nothing() {
    let api = Api::start(Manner::Well, vec![pod("p", "1500m")]);
    let config = Config::new(&managed(api.kubeconfig()));
    let (code, text, errors) = asked(&config, &["plan"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{text}");
    assert!(text.contains("+ launch "), "{text}");
    assert_eq!((api.nodes(), api.lease()), (Vec::new(), None));
    assert_eq!(api.patches(), Vec::new());
}

#[test]
fn plan_timeout_ends_the_wait_for_a_hanging_api() {
    let api = Api::start(Manner::Hang, Vec::new());
    let config = Config::new(&cluster("a", api.kubeconfig()));
    let (code, text, errors) = asked(&config, &["plan", "--timeout", "2"]);
    assert_eq!((code, text.as_str()), (Some(1), ""), "{errors}");
    assert!(errors.contains("cannot read its state"), "{errors}");
}
