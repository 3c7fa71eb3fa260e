//! Adoption of Karpenter's nodes, while Karpenter runs and after its removal, on a real control
//! plane.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use outrigger::model::labels::{FINALIZER, MANAGED_BY};
use serde_json::{Value, json};

use super::Plane;
use super::audit::changes_of;
use super::fixture::{
    Setup, World, client, clock, deploy, free_port, instances, now, patience, scale, until,
};
use crate::binary::run;

/// The number of Karpenter's nodes with pods. One more node is empty.
const NODES: usize = 3;

/// Returns a node of Karpenter's kwok provider, except that kwok simulates its kubelet because of
/// an annotation.
fn karpenters(place: usize) -> Node {
    let name = format!("of-karpenter-{place}");
    let amounts = json!({"cpu": "4", "memory": "16Gi", "pods": "110"});
    let node = json!({
        "metadata": {
            "name": name,
            "labels": {
                "karpenter.sh/nodepool": "general",
                "karpenter.sh/capacity-type": "on-demand",
                "karpenter.sh/registered": "true",
                "karpenter.sh/initialized": "true",
                "node.kubernetes.io/instance-type": "s-4x-amd64-linux",
                "topology.kubernetes.io/zone": "test-zone-a",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": name,
            },
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "finalizers": [FINALIZER],
            "ownerReferences": [{
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name,
                "uid": format!("0000-{place}"), "blockOwnerDeletion": true,
            }],
        },
        "spec": {"providerID": format!("kwok://{name}")},
        "status": {"capacity": amounts, "allocatable": amounts},
    });
    serde_json::from_value(node).expect("a node")
}

/// Renews Karpenter's Lease with this holder. An empty name releases it.
async fn hold(api: &Client, holder: &str) {
    let leases: Api<Lease> = Api::namespaced(api.clone(), "kube-system");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "karpenter-leader-election"},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        },
    });
    let params = PatchParams::apply("karpenter").force();
    let lease = Patch::Apply(lease);
    let held = leases.patch("karpenter-leader-election", &params, &lease);
    held.await.expect("the Lease is written");
}

/// Returns the set-up of a daemon whose cluster has this mode.
fn setup(plane: &Plane, user: &str, cloud: u16, says: &str) -> Setup {
    let kubeconfig = plane.kubeconfig_of(user).expect("a kubeconfig");
    let own = Setup::new(&[("bench", kubeconfig.as_path())], Some(cloud));
    let file = own.path().join("outrigger.hcl");
    let text = fs::read_to_string(&file).expect("it was written");
    let text = text.replace("mode = \"manage\"\n", says);
    fs::write(file, text).expect("the configuration is written");
    own
}

/// Returns the UIDs of nodes and the nodes of pods, by name.
fn places(world: &World) -> BTreeMap<String, String> {
    let of_node = |own: &Node| own.metadata.clone();
    let nodes = world.nodes.iter().map(of_node);
    let nodes = nodes.map(|own| (own.name.unwrap_or_default(), own.uid.unwrap_or_default()));
    let pods = world.pods.iter().map(|own| {
        let node = own.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let name = own.metadata.name.clone().unwrap_or_default();
        (name, node.unwrap_or_default())
    });
    nodes.chain(pods).collect()
}

/// Whether only Outrigger manages a node.
fn is_ours(node: &Node) -> bool {
    let meta = &node.metadata;
    let label = meta.labels.as_ref().and_then(|own| own.get(MANAGED_BY));
    label.is_some_and(|own| own == "tests")
        && meta.owner_references.as_ref().is_none_or(Vec::is_empty)
        && meta.finalizers.as_ref().is_none_or(Vec::is_empty)
}

async fn make(api: &Client, place: usize) {
    let nodes: Api<Node> = Api::all(api.clone());
    let (params, node) = (PostParams::default(), karpenters(place));
    let made = nodes.create(&params, &node).await;
    made.expect("a node");
}

/// Returns the nodes that `outrigger plan` would disrupt, and the reasons.
fn leavers(setup: &Setup) -> Vec<String> {
    let config = setup.path().to_str().expect("a readable path");
    let output = run(&["plan", "--json", "--config", config], "");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let clusters: Value = serde_json::from_str(&text).expect("JSON");
    let own = clusters["clusters"][0]["retire"].as_array().cloned();
    let word = |own: &Value| own.as_str().unwrap_or_default().to_owned();
    let told = |own: &Value| format!("{}: {}", word(&own["node"]), word(&own["reason"]));
    own.expect("a list").iter().map(told).collect()
}

/// Waits until the plan would disrupt exactly this node.
async fn until_leaver(setup: &Setup, leaver: &str) {
    let asked = clock();
    let mut found = leavers(setup);
    while found != [leaver] && asked.elapsed() < patience(20) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        found = leavers(setup);
    }
    assert_eq!(found, [leaver]);
}

#[tokio::test(flavor = "multi_thread")]
async fn karpenter_nodes_are_adopted_after_its_removal_without_replacement() {
    let name = "plane::adoption::karpenter_nodes_are_adopted_after_its_removal_without_replacement";
    let Some(plane) = Plane::start_or_skip_with(name, &["--audit"]) else {
        return;
    };
    let api = client(plane.kubeconfig()).await;
    for place in 0..NODES {
        make(&api, place).await;
    }
    let port = free_port();
    let watching = setup(&plane, "observer", port, "mode = \"observe\"\n");
    let taking = setup(&plane, "host-a", port, "mode = \"manage\"\n  adopt = true\n");
    let _cloud = taking.cloud(port);
    deploy(&api, "app", 2 * NODES, "1500m", "3Gi").await;
    hold(&api, "karpenter-0").await;
    until(&api, &taking, 90, "all pods bound", |world| {
        world.bound() == 2 * NODES && world.empty_nodes() == 0
    })
    .await;
    make(&api, NODES).await;
    let mut before = places(&World::read(&api).await);
    let began = now();

    // While Karpenter is active, neither daemon writes anything.
    let observer = watching.daemon();
    let daemon = taking.daemon();
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        hold(&api, "karpenter-0").await;
    }
    let told = taking.told("Karpenter is active, taking no action");
    assert_eq!(told.len(), 1, "{}", taking.tail());
    assert!(told[0].contains("its Lease kube-system/karpenter-leader-election is held"));
    for user in ["observer", "host-a"] {
        assert_eq!(changes_of(&plane, user, began), [] as [&str; 0], "{user}");
    }
    // Plans still count Karpenter's nodes.
    let empty = format!("of-karpenter-{NODES}");
    until_leaver(&watching, &format!("{empty}: empty")).await;
    drop(observer);

    // Karpenter releases its Lease. It must be inactive for a minute.
    hold(&api, "").await;
    until(&api, &taking, 150, "all nodes adopted, and the empty one removed", |world| {
        world.nodes.len() == NODES && world.nodes.iter().all(is_ours)
    })
    .await;
    before.remove(&empty);
    assert_eq!(places(&World::read(&api).await), before, "{}", taking.tail());
    let adopted = taking.told("adopted Karpenter node").len();
    assert_eq!(adopted, NODES + 1, "{}", taking.tail());
    assert_eq!(instances(port).await.len(), NODES + 1, "nothing is launched");

    // From now on the nodes are managed like launched ones.
    scale(&api, "app", 0).await;
    until(&api, &taking, 120, "no node remains", |world| world.nodes.is_empty()).await;
    let all = instances(port).await;
    let ended = |own: &&Value| own["state"] == "terminated" || own["state"] == "shutting-down";
    assert_eq!(all.iter().filter(ended).count(), NODES + 1, "{all:#?}");
    drop(daemon);
}
