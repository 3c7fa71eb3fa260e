//! Import and export of Karpenter's published examples. Its CRDs on a real API server accept the
//! export.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use kube::Client;
use outrigger::config::{Inputs, SourceFile, load};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::Plane;
use super::fixture::{client, is_campaign};
use super::import::until_served;
use crate::karpenter::random_config::configuration;
use crate::karpenter::round_trip::clusters;
use crate::karpenter::{exported, imported, loaded, name_of, read};

/// The placeholder of the namespace in a path.
const NAMESPACE: &str = "NAMESPACE";

#[expect(
    clippy::disallowed_methods,
    reason = "whoever starts the tests says where the control plane is"
)]
fn assets() -> PathBuf {
    env::var_os("KUBEBUILDER_ASSETS").unwrap_or_default().into()
}

/// Returns the directory with the CRDs and examples from the Go module of Karpenter's AWS provider.
/// It is next to the binaries of the control plane.
fn published(test: &str) -> Option<PathBuf> {
    let own = assets().join("karpenter");
    if !own.is_dir() {
        println!("SKIP {test}: CRDs and examples: {} is not there", own.display());
        return None;
    }
    Some(own)
}

/// Returns the files of a directory with their texts, sorted by name.
fn texts(dir: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(dir).expect("a directory");
    let paths = entries.map(|own| own.expect("an entry").path());
    let mut all: Vec<_> = paths.map(|own| (name_of(&own), read(&own))).collect();
    all.sort();
    all
}

fn documents(yaml: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
    all.into_iter().filter(|own| !own.is_null()).collect()
}

/// Collects every value of an object with its path.
fn leaves(of: &Value, path: &str, into: &mut BTreeMap<String, String>) {
    match of {
        Value::Object(map) => {
            for (key, own) in map {
                leaves(own, &format!("{path}.{key}"), into);
            }
        }
        Value::Array(list) => {
            for own in list {
                leaves(own, &format!("{path}[]"), into);
            }
        }
        own => drop(into.insert(format!("{path} = {own}"), path.to_owned())),
    }
}

/// Values of examples that differ in the export and have the same meaning for Karpenter.
const OTHERWISE: [&str; 10] = [
    // The alias implies it.
    r#"spec.amiFamily = "Windows2022""#,
    // The same as one minute.
    r#"spec.disruption.consolidateAfter = "60s""#,
    // The default.
    r#"spec.metadataOptions.httpProtocolIPv6 = "disabled""#,
    r#"spec.metadataOptions.httpTokens = "required""#,
    // Karpenter does not accept this version as a group either.
    r#"spec.template.spec.nodeClassRef.group = "karpenter.k8s.aws/v1""#,
    // The same as at least one more.
    r#"spec.template.spec.requirements[].operator = "Gt""#,
    r#"spec.template.spec.requirements[].values[] = "2""#,
    r#"spec.template.spec.requirements[].values[] = "3""#,
    r#"spec.template.spec.requirements[].values[] = "300""#,
    r#"spec.template.spec.requirements[].values[] = "8191""#,
];

#[test]
fn every_example_is_imported_with_dropped_fields_reported() {
    let test = "plane::karpenter_examples::every_example_is_imported_with_dropped_fields_reported";
    let Some(dir) = published(test) else { return };
    let examples = texts(&dir.join("v1"));
    assert!(examples.len() > 20, "{} examples", examples.len());
    let mut otherwise = BTreeSet::new();
    for (file, text) in examples {
        let own = imported(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        let back = documents(&exported(&loaded(&own.text())).text);
        let (mut said, mut kept) = (BTreeMap::new(), BTreeMap::new());
        for (objects, leaves) in [(documents(&text), &mut said), (back, &mut kept)] {
            for object in objects {
                self::leaves(&object["spec"], "spec", leaves);
            }
        }
        let told = |path: &str| {
            let lost = own.losses.iter().map(|loss| loss.path.replace("[0]", "[]"));
            let mut lost = lost.map(|own| own.split(": ").next().unwrap_or_default().to_owned());
            lost.any(|lost| path.starts_with(&lost))
        };
        said.retain(|leaf, path| !kept.contains_key(leaf) && !told(path));
        otherwise.extend(said.into_keys());
    }
    assert_eq!(otherwise, OTHERWISE.map(str::to_owned).into());
}

/// Creates the CRDs. Returns the path for objects by version and kind.
async fn defined(api: &Client, dir: &Path) -> BTreeMap<(String, String), String> {
    // Buffers refer to a built-in kind.
    let template = ("v1".to_owned(), "PodTemplate".to_owned());
    let at = "/api/v1/namespaces/NAMESPACE/podtemplates".to_owned();
    let mut paths = BTreeMap::from([(template, at)]);
    for (file, text) in texts(dir) {
        let crd = documents(&text).remove(0);
        let at = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let answer = post(api, at, &crd).await;
        answer.unwrap_or_else(|error| panic!("{file}: {error}"));
        let spec = &crd["spec"];
        let text = |own: &Value| own.as_str().expect("a text").to_owned();
        let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
        for version in spec["versions"].as_array().expect("versions") {
            let version = format!("{group}/{}", text(&version["name"]));
            let namespace = match spec["scope"] == "Namespaced" {
                true => "/namespaces/NAMESPACE",
                false => "",
            };
            let at = format!("/apis/{version}{namespace}/{plural}");
            until_served(api, &at.replace(NAMESPACE, "default")).await;
            paths.insert((version, text(&spec["names"]["kind"])), at);
        }
    }
    paths
}

async fn post(api: &Client, at: &str, object: &Value) -> Result<Value, kube::Error> {
    let request = http::Request::post(at).body(object.to_string().into_bytes());
    api.request(request.expect("a request")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn karpenters_crds_accept_exported_objects() {
    let test = "plane::karpenter_examples::karpenters_crds_accept_exported_objects";
    let Some(dir) = published(test) else { return };
    let Some(plane) = Plane::start_or_skip_with(test, &["--lean"]) else {
        return;
    };
    let api = client(plane.kubeconfig()).await;
    let kinds = defined(&api, &dir.join("crds")).await;

    let all = read(Path::new("tests/it/karpenter/export/all.hcl"));
    let alone = |hcl: &str| {
        let files = [SourceFile::new("all.hcl", hcl)];
        exported(&load(&files, &Inputs::default()).expect("a configuration")).text
    };
    let mut exports = vec![alone(&all)];
    for (_, text) in texts(&dir.join("v1")) {
        let own = imported(&text).expect("an example");
        exports.push(exported(&loaded(&own.text())).text);
    }
    // Without a node class the export has a placeholder, and the import keeps the pool.
    let classless = alone("cluster \"a\" {\n  simulated {}\n}\npool \"a\" {}\n");
    let back = imported(&classless).expect("what was exported");
    assert!(back.text().contains("pool \"a\" {"), "{classless}\n{}", back.text());
    exports.push(classless);
    let mut runner = TestRunner::deterministic();
    for _ in 0..if is_campaign() { 500 } else { 60 } {
        let drawn = configuration().new_tree(&mut runner).expect("a tree");
        let config = clusters(&drawn.current());
        exports.extend(config.map(|own| exported(&own).text));
    }
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut refused = Vec::new();
    let mut namespaces = BTreeSet::from(["default".to_owned()]);
    for object in exports.iter().flat_map(|own| documents(own)) {
        let text = |own: &Value| own.as_str().expect("a text").to_owned();
        let kind = (text(&object["apiVersion"]), text(&object["kind"]));
        let at = kinds.get(&kind).unwrap_or_else(|| panic!("{kind:?}"));
        let namespace = object["metadata"]["namespace"].as_str();
        if let Some(own) = namespace
            && namespaces.insert(own.to_owned())
        {
            let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": own}});
            post(&api, "/api/v1/namespaces", &own).await.expect("it is new");
        }
        let at = at.replace(NAMESPACE, namespace.unwrap_or_default());
        // Unknown and repeated fields are rejected too.
        let at = format!("{at}?dryRun=All&fieldValidation=Strict");
        if let Err(error) = post(&api, &at, &object).await {
            refused.push(format!("{error}\n{object:#}"));
        }
        *counts.entry(kind.1).or_default() += 1;
    }
    println!("{} exports: {counts:?}", exports.len());
    assert!(refused.is_empty(), "{}: {}", refused.len(), refused[0]);
    let mut all: Vec<&str> = counts.keys().map(String::as_str).collect();
    all.sort_unstable();
    let every = ["CapacityBuffer", "EC2NodeClass", "NodeOverlay", "NodePool", "PodTemplate"];
    assert_eq!(all, every);
    // The API server does reject invalid objects.
    let wrong = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": {"name": "a"}, "spec": {}});
    let at = &kinds[&("karpenter.sh/v1".to_owned(), "NodePool".to_owned())];
    post(&api, at, &wrong).await.expect_err("no template");
}
