//! The daemon against a real control plane: the whole loop, kills, and views that are not whole.
//! It must not know how the daemon works inside.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use super::bench::{
    Process, Setup, World, client, deploy, free_port, instances, is_campaign, plane, scale, until,
};
use super::proxy::{Fault, Proxy};

/// Pods of each of the two Deployments: 500 in a campaign.
fn size() -> usize {
    if is_campaign() { 500 } else { 40 }
}

#[expect(clippy::disallowed_methods, reason = "a test times what it watches")]
fn clock() -> Instant {
    Instant::now()
}

async fn ready(client: &kube::Client) {
    // The daemon makes no decision before two listings five seconds apart agree.
    tokio::time::sleep(Duration::from_secs(8)).await;
    client.apiserver_version().await.expect("the API answers");
}

async fn deploy_both(client: &kube::Client) {
    deploy(client, "small", size(), "900m", "3100Mi").await;
    deploy(client, "large", size(), "3500m", "28Gi").await;
}

/// Instances that are live, by claim.
async fn live_by_claim(cloud: u16) -> BTreeMap<String, usize> {
    let mut claims = BTreeMap::new();
    for instance in instances(cloud).await {
        let state = instance["state"].as_str().unwrap_or_default();
        if matches!(state, "shutting-down" | "terminated") {
            continue;
        }
        let claim = instance["tags"]["outrigger.dev/claim"]
            .as_str()
            .unwrap_or_default();
        *claims.entry(claim.to_owned()).or_insert(0) += 1;
    }
    claims
}

fn provider_id(node: &Node) -> &str {
    node.spec
        .as_ref()
        .and_then(|spec| spec.provider_id.as_deref())
        .unwrap_or_default()
}

/// Live instances without a Node.
async fn nodeless(cloud: u16, world: &World) -> Vec<Value> {
    let mut all = instances(cloud).await;
    all.retain(|instance| {
        let state = instance["state"].as_str().unwrap_or_default();
        let id = instance["id"].as_str().unwrap_or_default();
        !matches!(state, "shutting-down" | "terminated")
            && !world
                .nodes
                .iter()
                .any(|node| provider_id(node).ends_with(id))
    });
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_nodes_and_empty_nodes_go() {
    let name = "plane::cases::pods_get_nodes_and_empty_nodes_go";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let setup = Setup::new(&[("bench", plane.kubeconfig())], Some(port));
    let cloud = setup.cloud(port);
    let daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    ready(&api).await;
    let start = clock();
    deploy_both(&api).await;
    let pods = 2 * size();
    let world = until(&api, &setup, 90, "all pods bound", |world| {
        world.bound() == pods
    })
    .await;
    let bound = start.elapsed();
    let (cpu, peak) = daemon.figures();
    let (cloud_cpu, _) = cloud.figures();
    println!(
        "{pods} pods bound after {:.1} s on {} nodes for {:.2} $/h; daemon {cpu:.2} s of cpu, \
         {:.1} MB peak; cloud {cloud_cpu:.2} s of cpu",
        bound.as_secs_f64(),
        world.nodes.len(),
        world.cost(),
        bytes_mb(peak),
    );
    println!("{}", setup.tail());
    let quiet = |world: &World| world.empty_nodes() == 0 && world.bound() == pods;
    until(&api, &setup, 60, "no node without pods", quiet).await;
    scale(&api, "small", 0).await;
    scale(&api, "large", 0).await;
    let start = clock();
    until(&api, &setup, 180, "every node gone", |world| {
        world.nodes.is_empty()
    })
    .await;
    let (cpu, peak) = daemon.figures();
    println!(
        "every node gone after {:.1} s; daemon {cpu:.2} s of cpu, {:.1} MB peak in all",
        start.elapsed().as_secs_f64(),
        bytes_mb(peak)
    );
    assert_eq!(
        live_by_claim(port).await,
        BTreeMap::new(),
        "no instance is left"
    );
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn bytes_mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_are_served_by_one_daemon() {
    let name = "plane::cases::two_clusters_are_served_by_one_daemon";
    let Some(one) = plane(name) else { return };
    let Some(two) = plane(name) else { return };
    let port = free_port();
    let clusters = [("one", one.kubeconfig()), ("two", two.kubeconfig())];
    let setup = Setup::new(&clusters, Some(port));
    let _cloud = setup.cloud(port);
    let _daemon = setup.daemon();
    let (first, second) = (
        client(one.kubeconfig()).await,
        client(two.kubeconfig()).await,
    );
    ready(&first).await;
    deploy(&first, "web", 10, "900m", "1Gi").await;
    deploy(&second, "web", 30, "900m", "1Gi").await;
    until(&first, &setup, 60, "pods of one bound", |world| {
        world.bound() == 10
    })
    .await;
    until(&second, &setup, 60, "pods of two bound", |world| {
        world.bound() == 30
    })
    .await;
    scale(&first, "web", 0).await;
    until(&first, &setup, 120, "nodes of one gone", |world| {
        world.nodes.is_empty()
    })
    .await;
    let rest = World::read(&second).await;
    assert_eq!(rest.bound(), 30, "the other cluster is left alone");
}

/// A number from a sequence that looks random and is the same each time.
fn scatter(n: u64) -> u64 {
    n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_killed_goes_on_where_it_was() {
    let name = "plane::cases::a_daemon_that_is_killed_goes_on_where_it_was";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let setup = Setup::new(&[("bench", plane.kubeconfig())], Some(port));
    let _cloud = setup.cloud(port);
    let mut daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    ready(&api).await;
    deploy_both(&api).await;
    let kills = if is_campaign() { 20 } else { 3 };
    for kill in 0..kills {
        // The first decision comes five seconds after a start: moments before and after it.
        let wait = 500 + scatter(kill) % 8_000;
        tokio::time::sleep(Duration::from_millis(wait)).await;
        daemon.kill();
        daemon = setup.daemon();
        let claims = live_by_claim(port).await;
        assert!(
            claims.values().all(|count| *count == 1),
            "two live instances: {claims:?}"
        );
    }
    let pods = 2 * size();
    let quiet = |world: &World| world.bound() == pods && world.empty_nodes() == 0;
    let world = until(&api, &setup, 180, "all pods bound, no node empty", quiet).await;
    let launched = instances(port).await.len();
    println!(
        "{kills} kills: {launched} instances launched for {} nodes of {:.2} $/h",
        world.nodes.len(),
        world.cost()
    );
    let beyond = launched - world.nodes.len();
    assert!(
        beyond <= usize::try_from(kills).expect("few"),
        "{beyond} launched beyond need"
    );
    let left = nodeless(port, &world).await;
    assert!(left.is_empty(), "instances without a Node: {left:?}");
    scale(&api, "small", 0).await;
    scale(&api, "large", 0).await;
    until(&api, &setup, 180, "every node gone", |world| {
        world.nodes.is_empty()
    })
    .await;
    assert_eq!(live_by_claim(port).await, BTreeMap::new());
    drop(daemon);
}

/// A daemon behind a proxy, with a few pods running on nodes it made.
async fn behind_proxy(kubeconfig: &Path, port: u16) -> (Proxy, Setup, Process, Process) {
    let proxy = Proxy::start(client(kubeconfig).await).await;
    let setup = Setup::new(&[("bench", proxy.kubeconfig())], Some(port));
    let (cloud, daemon) = (setup.cloud(port), setup.daemon());
    (proxy, setup, cloud, daemon)
}

fn untouched(before: &World, now: &World) -> bool {
    let versions = |world: &World| -> BTreeMap<String, (Value, Value)> {
        let of = |node: &Node| {
            let labels = serde_json::to_value(&node.metadata.labels).unwrap_or_default();
            let taints = node.spec.as_ref().map(|spec| &spec.taints);
            let taints = serde_json::to_value(taints).unwrap_or_default();
            (
                node.metadata.name.clone().unwrap_or_default(),
                (labels, taints),
            )
        };
        world.nodes.iter().map(of).collect()
    };
    versions(before) == versions(now)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_touched_while_the_view_is_not_whole() {
    let name = "plane::cases::nothing_is_touched_while_the_view_is_not_whole";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let (proxy, setup, _cloud, _daemon) = behind_proxy(plane.kubeconfig(), port).await;
    let api = client(plane.kubeconfig()).await;
    ready(&api).await;
    deploy(&api, "stays", 12, "60", "100Gi").await;
    deploy(&api, "goes", 12, "60", "100Gi").await;
    until(&api, &setup, 90, "all pods bound", |world| {
        world.bound() == 24
    })
    .await;
    let quiet = |world: &World| world.empty_nodes() == 0 && world.tainted_nodes() == 0;
    let before = until(&api, &setup, 60, "all nodes settled", quiet).await;
    let seconds = if is_campaign() { 60 } else { 15 };

    for fault in [Fault::CutWatches, Fault::TruncateLists, Fault::Refuse] {
        proxy.set(fault);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let now = World::read(&api).await;
        assert!(
            untouched(&before, &now),
            "{fault:?}: a node was touched\n{}",
            setup.tail()
        );
        assert_eq!(
            live_by_claim(port).await.len(),
            before.nodes.len(),
            "{fault:?}"
        );
        proxy.set(Fault::None);
        tokio::time::sleep(Duration::from_secs(15)).await;
        let now = World::read(&api).await;
        assert!(
            untouched(&before, &now),
            "after {fault:?}: a node was touched\n{}",
            setup.tail()
        );
    }
    plane.stop_api().expect("the API stops");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(
        live_by_claim(port).await.len(),
        before.nodes.len(),
        "while the API was down"
    );
    plane.start_api().expect("the API starts");

    scale(&api, "goes", 24).await;
    until(&api, &setup, 180, "launches go on by themselves", |world| {
        world.bound() == 36
    })
    .await;
    scale(&api, "stays", 0).await;
    scale(&api, "goes", 0).await;
    until(&api, &setup, 180, "removals go on by themselves", |world| {
        world.nodes.is_empty()
    })
    .await;
}
