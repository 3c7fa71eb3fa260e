//! `outrigger import --from-cluster` against a real API server: objects are imported as from files,
//! across all pages.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Plane;
use super::fixture::{client, patience};
use crate::binary::run;

/// More than one page of a listing.
const POOLS: usize = 501;

fn imported(kubeconfig: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let path = kubeconfig.to_str().expect("a readable path");
    let own = ["import", "--from-cluster", "--kubeconfig", path];
    let Output { status, stdout, stderr } = run(&[&own, more].concat(), "");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

async fn create(api: &Client, path: &str, object: &Value) {
    let body = object.to_string().into_bytes();
    let request = http::Request::post(path).body(body).expect("a request");
    let created = api.request::<Value>(request).await;
    created.unwrap_or_else(|error| panic!("{path}: {error}: {object}"));
}

/// Waits until the API server serves a new kind.
pub(super) async fn until_served(api: &Client, path: &str) {
    for _ in 0..10 * patience(10).as_secs() {
        let request = http::Request::get(path).body(Vec::new());
        let listed = api.request::<Value>(request.expect("a request")).await;
        if listed.is_ok() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("{path} is not served");
}

/// Defines a kind of Karpenter in these versions, the first of which is stored. The schema accepts
/// everything.
async fn define(api: &Client, group: &str, kind: &str, plural: &str, versions: &[&str]) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let versions: Vec<Value> = (0..)
        .zip(versions)
        .map(|(index, name)| {
            json!({"name": name, "served": true, "storage": index == 0,
                "schema": {"openAPIV3Schema": schema}})
        })
        .collect();
    let names = json!({"kind": kind, "plural": plural, "singular": kind.to_lowercase()});
    let object = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "names": names, "scope": "Cluster", "versions": versions},
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    create(api, path, &object).await;
    for spec in object["spec"]["versions"].as_array().expect("versions") {
        let version = spec["name"].as_str().expect("a name");
        let path = format!("/apis/{group}/{version}/{plural}");
        until_served(api, &path).await;
    }
}

fn pool(name: &str) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {
            "weight": 7,
            "limits": {"cpu": "100"},
            "template": {"spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass",
                    "name": "default"},
                "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In",
                    "values": ["spot"]}],
            }},
        },
    })
}

fn class() -> Value {
    json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
        "metadata": {"name": "default"},
        "spec": {
            "role": "nodes",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": [{"tags": {"a": "b"}}],
            "securityGroupSelectorTerms": [{"tags": {"a": "b"}}],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn import_from_a_cluster_equals_import_from_files() {
    let name = "plane::import::import_from_a_cluster_equals_import_from_files";
    let Some(plane) = Plane::start_or_skip(name) else {
        return;
    };
    let api = client(plane.kubeconfig()).await;
    let refused = |(code, hcl, errors): (Option<i32>, String, String), expect: &str| {
        assert_eq!(code, Some(1), "{errors}");
        assert_eq!(hcl, "");
        assert!(errors.contains(expect), "no {expect} in {errors}");
    };
    refused(
        imported(plane.kubeconfig(), &[]),
        "does not serve nodepools.karpenter.sh (v1 or v1beta1)",
    );
    refused(imported(plane.kubeconfig(), &["--context", "other"]), "other");

    // If both versions are served, the import lists the newer one.
    define(&api, "karpenter.sh", "NodePool", "nodepools", &["v1beta1", "v1"]).await;
    define(&api, "karpenter.k8s.aws", "EC2NodeClass", "ec2nodeclasses", &["v1"]).await;
    refused(imported(plane.kubeconfig(), &[]), "there are no objects");

    create(&api, "/apis/karpenter.k8s.aws/v1/ec2nodeclasses", &class()).await;
    let names: Vec<String> = (0..POOLS).map(|index| format!("pool-{index:03}")).collect();
    for some in names.chunks(50) {
        let each = some.iter().map(|name| {
            let api = api.clone();
            async move { create(&api, "/apis/karpenter.sh/v1/nodepools", &pool(name)).await }
        });
        join_all(each).await;
    }
    let (code, hcl, errors) = imported(plane.kubeconfig(), &[]);
    assert_eq!(code, Some(0), "{errors}");
    let items: Vec<Value> =
        std::iter::once(class()).chain(names.iter().map(|name| pool(name))).collect();
    let files = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let output = run(&["import"], &files);
    assert_eq!(String::from_utf8(output.stdout).expect("UTF-8"), hcl);
    assert_eq!(hcl.matches("\npool \"").count(), POOLS);

    // A user with read access to pods and nodes may not list them, and the error names the missing
    // permission.
    let observer = plane.kubeconfig_of("observer").expect("a kubeconfig");
    refused(
        imported(&observer, &[]),
        "--verb=list --resource=nodepools.karpenter.sh,ec2nodeclasses.karpenter.k8s.aws",
    );
    plane.stop_api().expect("the API stops");
    refused(imported(plane.kubeconfig(), &[]), "reach the API at https://127.0.0.1:");
}
