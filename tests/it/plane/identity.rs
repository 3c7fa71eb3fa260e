//! A kubeconfig for a different cluster, and Nodes deleted by a user, on real control planes:
//! nothing is terminated or launched, the reason is reported, and the daemon recovers by itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Plane;
use super::fixture::{
    Setup, client, clock, deploy, free_port, instances, is_campaign, patience, plane, until,
    until_ready,
};

/// The time within which the log must name the fault.
const NAMED: Duration = Duration::from_secs(30);

/// The same while the API server restarts for another cluster: watches reconnect with a delay.
const AWAY: Duration = Duration::from_mins(2);

/// Pods of the cluster; four of them fill a node.
const PODS: usize = 60;

/// Returns the registration timeout in seconds: a campaign uses that of the original experiment.
fn registration_seconds() -> u64 {
    if is_campaign() { 60 } else { 30 }
}

/// A daemon of one cluster whose kubeconfig can be replaced.
struct Scene {
    setup: Setup,
    home: PathBuf,
    cloud: u16,
}

impl Scene {
    fn new(plane: &Plane, cloud: u16) -> Self {
        let own = plane.daemons();
        let home = own.with_file_name("home.json");
        fs::copy(&own, &home).expect("the kubeconfig is copied");
        let setup = Setup::new(&[("bench", home.as_path())], Some(cloud));
        let file = setup.path().join("outrigger.hcl");
        let text = fs::read_to_string(&file).expect("it was written");
        let head = "pool \"general\" {\n";
        // Many small nodes.
        let registration = registration_seconds();
        let own = format!(
            "{head}  registration_timeout = \"{registration}s\"\n  \
             require \"node.kubernetes.io/instance-type\" {{ in = [\"c-4x-amd64-linux\"] }}\n"
        );
        fs::write(file, text.replace(head, &own)).expect("the configuration is written");
        Self { setup, home, cloud }
    }

    /// Returns the ids of the live instances.
    async fn live(&self) -> BTreeSet<String> {
        let all = instances(self.cloud).await;
        let state = |own: &Value| own["state"].as_str().unwrap_or_default().to_owned();
        let live =
            all.iter().filter(|own| !matches!(&state(own)[..], "shutting-down" | "terminated"));
        live.map(|own| own["id"].as_str().expect("an id").to_owned()).collect()
    }

    /// Waits until this many lines of the daemon's log contain the text.
    async fn until_told(&self, what: &str, times: usize, limit: Duration) {
        let start = clock();
        while self.setup.told(what).len() < times {
            assert!(
                start.elapsed() < patience(limit.as_secs()),
                "{what:?} not {times} times within {limit:?}\n{}",
                self.setup.tail()
            );
            sleep(Duration::from_millis(200)).await;
        }
        println!("{what:?} after {:.1} s", start.elapsed().as_secs_f64());
    }

    /// Checks for this many seconds that no instance is terminated or launched.
    async fn stays(&self, live: &BTreeSet<String>, seconds: u64) {
        for _ in 0..seconds {
            assert_eq!(self.live().await, *live, "\n{}", self.setup.tail());
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Replaces a kubeconfig atomically.
fn write(home: &Path, text: &str) {
    let new = home.with_extension("new");
    fs::write(&new, text).expect("the kubeconfig is written");
    fs::rename(&new, home).expect("the kubeconfig is replaced");
}

/// Returns a kubeconfig with the contexts of both clusters; `current` is the current context.
fn merged(one: &Path, two: &Path, current: &str) -> String {
    let read = |path: &Path| -> Value {
        let text = fs::read_to_string(path).expect("the kubeconfig reads");
        serde_json::from_str(&text).expect("it is JSON")
    };
    let mut all = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": current,
        "clusters": [], "users": [], "contexts": [],
    });
    for (name, path) in [("one", one), ("two", two)] {
        let own = read(path);
        let cluster = &own["clusters"][0]["cluster"];
        let user = &own["users"][0]["user"];
        let mut add = |list: &str, value: Value| {
            all[list].as_array_mut().expect("a list").push(value);
        };
        add("clusters", json!({"name": name, "cluster": cluster}));
        add("users", json!({"name": name, "user": user}));
        let context = json!({"cluster": name, "user": name});
        add("contexts", json!({"name": name, "context": context}));
    }
    all.to_string()
}

/// Deletes this many Nodes, and returns them in a form that can be created again.
async fn delete_nodes(api: &Client, count: usize) -> Vec<Node> {
    let nodes: Api<Node> = Api::all(api.clone());
    let all = nodes.list(&Default::default()).await.expect("nodes list");
    let mut deleted = Vec::new();
    for mut node in all.items.into_iter().take(count) {
        let name = node.name_any();
        let gone = nodes.delete(&name, &DeleteParams::default()).await;
        gone.expect("the node is deleted");
        node.metadata.resource_version = None;
        node.metadata.uid = None;
        node.metadata.managed_fields = None;
        node.metadata.creation_timestamp = None;
        deleted.push(node);
    }
    deleted
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_cluster_or_deleted_nodes_terminate_no_instance() {
    let name = "plane::identity::wrong_cluster_or_deleted_nodes_terminate_no_instance";
    let Some(own) = plane(name) else { return };
    let Some(other) = plane(name) else { return };
    let port = free_port();
    let scene = Scene::new(&own, port);
    let setup = &scene.setup;
    let _cloud = setup.cloud(port);
    let mut daemon = setup.daemon();
    let api = client(own.kubeconfig()).await;
    until_ready(setup, 1).await;
    deploy(&api, "web", PODS, "900m", "1Gi").await;
    let pods = PODS;
    until(&api, setup, 90, "all pods bound", |world| {
        world.bound() == pods && world.empty_nodes() == 0
    })
    .await;
    sleep(Duration::from_secs(10)).await;
    let live = scene.live().await;
    assert_eq!(live.len(), PODS / 4, "{live:?}");
    let (mismatch, matches) = ("belong to different clusters", "belong to the same cluster");

    // The experiment: the daemon is stopped, its kubeconfig is replaced by that of another cluster
    // with pending pods, and the daemon is started again.
    let elsewhere = client(other.kubeconfig()).await;
    deploy(&elsewhere, "web", PODS, "900m", "1Gi").await;
    daemon.kill();
    let right = fs::read_to_string(&scene.home).expect("the kubeconfig reads");
    let wrong = fs::read_to_string(other.daemons()).expect("the kubeconfig reads");
    write(&scene.home, &wrong);
    let mut daemon = setup.daemon();
    scene.until_told(mismatch, 1, NAMED).await;
    scene.stays(&live, registration_seconds() + 30).await;
    daemon.kill();
    write(&scene.home, &right);
    let _daemon = setup.daemon();
    until_ready(setup, 2).await;
    scene.stays(&live, 10).await;

    // A reload with another current context in the kubeconfig.
    write(&scene.home, &merged(&own.daemons(), &other.daemons(), "two"));
    setup.reload("tests", "tests");
    scene.until_told(mismatch, 2, NAMED).await;
    scene.stays(&live, 15).await;
    write(&scene.home, &right);
    setup.reload("tests", "tests");
    until_ready(setup, 3).await;
    scene.stays(&live, 10).await;

    // An empty etcd behind the same address.
    own.change_data("/empty").expect("an empty cluster answers");
    scene.until_told(mismatch, 3, AWAY).await;
    scene.stays(&live, 15).await;
    own.change_data("/registry").expect("the cluster answers");
    scene.until_told(matches, 1, AWAY).await;
    until(&api, setup, 120, "all pods bound", |world| world.bound() == pods).await;
    scene.stays(&live, 10).await;

    // Half of the Nodes are deleted.
    let deleted = delete_nodes(&api, live.len() / 2).await;
    scene.until_told(mismatch, 4, NAMED).await;
    scene.stays(&live, registration_seconds() + 10).await;
    let nodes: Api<Node> = Api::all(api.clone());
    for node in deleted {
        let made = nodes.create(&PostParams::default(), &node).await;
        made.expect("the kubelet registers its node again");
    }
    scene.until_told(matches, 2, NAMED).await;
    until(&api, setup, 120, "all pods bound", |world| world.bound() == pods).await;
    let still = scene.live().await;
    assert!(still.is_superset(&live), "{live:?} {still:?}");
}
