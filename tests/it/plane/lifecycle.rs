//! The daemon on a real control plane: the full lifecycle, kills, and incomplete cluster state.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::fixture::{
    Process, Setup, World, client, clock, declare_room, deploy, free_port, instances, is_campaign,
    plane, remove_pod, scale, seed, strand, until, until_ready, until_room_is, want_no_room,
};
use super::proxy::{Fault, Proxy};

/// Returns the number of pods of each of the two Deployments: 500 in a campaign.
pub(super) fn size() -> usize {
    if is_campaign() { 500 } else { 40 }
}

pub(super) async fn deploy_both(client: &kube::Client) {
    deploy(client, "small", size(), "900m", "3100Mi").await;
    deploy(client, "large", size(), "3500m", "28Gi").await;
}

/// Returns the number of live instances by claim.
async fn live_by_claim(cloud: u16) -> BTreeMap<String, usize> {
    let mut claims = BTreeMap::new();
    for instance in instances(cloud).await {
        let state = instance["state"].as_str().unwrap_or_default();
        if matches!(state, "shutting-down" | "terminated") {
            continue;
        }
        let claim = instance["tags"]["outrigger.dev/claim"].as_str().unwrap_or_default();
        *claims.entry(claim.to_owned()).or_insert(0) += 1;
    }
    claims
}

pub(crate) fn provider_id(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}

/// Returns the live instances without a Node.
async fn nodeless(cloud: u16, world: &World) -> Vec<Value> {
    let mut all = instances(cloud).await;
    all.retain(|instance| {
        let state = instance["state"].as_str().unwrap_or_default();
        let id = instance["id"].as_str().unwrap_or_default();
        !matches!(state, "shutting-down" | "terminated")
            && !world.nodes.iter().any(|node| provider_id(node).ends_with(id))
    });
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_nodes_and_empty_nodes_are_removed() {
    let name = "plane::lifecycle::pods_get_nodes_and_empty_nodes_are_removed";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let setup = Setup::new(&[("bench", plane.daemons().as_path())], Some(port));
    let cloud = setup.cloud(port);
    let daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    let start = clock();
    deploy_both(&api).await;
    let pods = 2 * size();
    let world = until(&api, &setup, 90, "all pods bound", |world| world.bound() == pods).await;
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
    println!("{}", setup.rounds());
    if is_campaign() {
        // Karpenter 1.14 on two cores: 16.4 s, 79.8 $/h, 3.2 s of CPU, 129 MB.
        assert!(bound.as_secs_f64() <= 16.4, "slower than Karpenter");
        assert!(cpu <= 1.6, "more than half of Karpenter's CPU time");
        assert!(bytes_mb(peak) <= 64.5, "more than half of Karpenter's memory");
    }
    let quiet = |world: &World| world.empty_nodes() == 0 && world.bound() == pods;
    until(&api, &setup, 60, "no node without pods", quiet).await;
    scale(&api, "small", 0).await;
    scale(&api, "large", 0).await;
    let start = clock();
    until(&api, &setup, 180, "every node gone", |world| world.nodes.is_empty()).await;
    let (cpu, peak) = daemon.figures();
    println!(
        "every node gone after {:.1} s; daemon {cpu:.2} s of cpu, {:.1} MB peak in all",
        start.elapsed().as_secs_f64(),
        bytes_mb(peak)
    );
    assert_eq!(live_by_claim(port).await, BTreeMap::new(), "no instance remains");
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(super) fn bytes_mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_are_served_by_one_daemon() {
    let name = "plane::lifecycle::two_clusters_are_served_by_one_daemon";
    let Some(one) = plane(name) else { return };
    let Some(two) = plane(name) else { return };
    let port = free_port();
    let (own, other) = (one.daemons(), two.daemons());
    let clusters = [("one", own.as_path()), ("two", other.as_path())];
    let setup = Setup::new(&clusters, Some(port));
    let _cloud = setup.cloud(port);
    let (first, second) = (client(one.kubeconfig()).await, client(two.kubeconfig()).await);
    declare_room(&second, "room", json!({})).await;
    let _daemon = setup.daemon();
    until_ready(&setup, 2).await;
    until(&second, &setup, 30, "room is kept", |world| world.empty_nodes() == 1).await;
    let status = until_room_is(&second, "room", "FitsExistingCapacity").await;
    assert_eq!(status["replicas"], 1);
    assert_eq!(status["podTemplateRef"]["name"], "room");
    want_no_room(&second, "room").await;
    strand(&first, "stranded").await;
    until(&first, &setup, 30, "a pod is nominated for a node", |world| {
        world.told("stranded").is_some()
    })
    .await;
    deploy(&first, "web", 10, "900m", "1Gi").await;
    deploy(&second, "web", 30, "900m", "1Gi").await;
    until(&first, &setup, 60, "pods of one bound", |world| world.bound() == 10).await;
    until(&second, &setup, 60, "pods of two bound", |world| world.bound() == 30).await;
    // Only Outrigger removes the nomination, because the scheduler does not run.
    until(&first, &setup, 60, "the nomination is removed", |world| {
        world.told("stranded").is_none()
    })
    .await;
    remove_pod(&first, "stranded").await;
    scale(&first, "web", 0).await;
    until(&first, &setup, 120, "nodes of one gone", |world| world.nodes.is_empty()).await;
    let rest = World::read(&second).await;
    assert_eq!(rest.bound(), 30, "the other cluster is not affected");
    scale(&second, "web", 0).await;
    until(&second, &setup, 120, "the room is removed", |world| world.nodes.is_empty()).await;
}

/// Returns a pseudo-random number that depends only on `n` and `OUTRIGGER_SEED`.
pub(crate) fn scatter(n: u64) -> u64 {
    let drawn = n.wrapping_add(1).wrapping_add(seed().rotate_left(32));
    drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_daemon_resumes_its_work() {
    let name = "plane::lifecycle::killed_daemon_resumes_its_work";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let setup = Setup::new(&[("bench", plane.daemons().as_path())], Some(port));
    let _cloud = setup.cloud(port);
    let mut daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    let pods = 2 * size();
    let quiet = |world: &World| world.bound() == pods && world.empty_nodes() == 0;
    let gone = |world: &World| world.nodes.is_empty();
    // One run without a kill, for comparison.
    deploy_both(&api).await;
    let calm = until(&api, &setup, 180, "all pods bound", quiet).await.cost();
    scale(&api, "small", 0).await;
    scale(&api, "large", 0).await;
    until(&api, &setup, 180, "every node gone", gone).await;
    let before = instances(port).await.len();

    let kills: u64 = if is_campaign() { 20 } else { 4 };
    scale(&api, "small", size()).await;
    scale(&api, "large", size()).await;
    for kill in 0..kills * 3 / 4 {
        daemon = kill_later(daemon, &setup, kill).await;
        assert_single(port).await;
    }
    let world = until(&api, &setup, 180, "all pods bound, no node empty", quiet).await;
    let launched = instances(port).await.len() - before;
    println!(
        "{kills} kills: {launched} instances launched for {} nodes of {:.2} $/h; {calm:.2} $/h \
         without a kill",
        world.nodes.len(),
        world.cost()
    );
    let beyond = launched - world.nodes.len();
    let allowed = usize::try_from(kills).expect("few");
    assert!(beyond <= allowed, "{beyond} unnecessary launches");
    assert!(world.cost() <= 1.05 * calm || !is_campaign(), "more expensive by more than 5 %");
    let left = nodeless(port, &world).await;
    assert!(left.is_empty(), "instances without a Node: {left:?}");
    scale(&api, "small", 0).await;
    scale(&api, "large", 0).await;
    for kill in kills * 3 / 4..kills {
        daemon = kill_later(daemon, &setup, kill).await;
    }
    until(&api, &setup, 180, "every node gone", gone).await;
    assert_single(port).await;
    assert_eq!(live_by_claim(port).await, BTreeMap::new());
    drop(daemon);
}

/// Kills the daemon after a pseudo-random time, and restarts it. Its first decision comes five
/// seconds after a start, and the times are before and after that.
async fn kill_later(mut daemon: Process, setup: &Setup, kill: u64) -> Process {
    let wait = 500 + scatter(kill) % 8_000;
    tokio::time::sleep(Duration::from_millis(wait)).await;
    daemon.kill();
    setup.daemon()
}

/// Checks that no claim ever had two instances, live or terminated.
async fn assert_single(cloud: u16) {
    let mut claims: BTreeMap<String, usize> = BTreeMap::new();
    for instance in instances(cloud).await {
        let claim = instance["tags"]["outrigger.dev/claim"].to_string();
        *claims.entry(claim).or_insert(0) += 1;
    }
    claims.retain(|_, count| *count > 1);
    assert_eq!(claims, BTreeMap::new(), "claims with two instances");
}

/// Starts a daemon behind a proxy, and its cloud.
async fn behind_proxy(kubeconfig: &Path, port: u16) -> (Proxy, Setup, Process, Process) {
    let proxy = Proxy::start(client(kubeconfig).await).await;
    let setup = Setup::new(&[("bench", proxy.kubeconfig())], Some(port));
    let (cloud, daemon) = (setup.cloud(port), setup.daemon());
    (proxy, setup, cloud, daemon)
}

fn is_initialized(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|own| own.contains_key("karpenter.sh/initialized"))
}

fn untouched(before: &World, now: &World) -> bool {
    let versions = |world: &World| -> BTreeMap<String, (Value, Value)> {
        let of = |node: &Node| {
            let labels = serde_json::to_value(&node.metadata.labels).unwrap_or_default();
            let taints = node.spec.as_ref().map(|spec| &spec.taints);
            let taints = serde_json::to_value(taints).unwrap_or_default();
            (node.metadata.name.clone().unwrap_or_default(), (labels, taints))
        };
        world.nodes.iter().map(of).collect()
    };
    versions(before) == versions(now)
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_cluster_state_blocks_all_changes() {
    let name = "plane::lifecycle::incomplete_cluster_state_blocks_all_changes";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let (proxy, setup, _cloud, _daemon) = behind_proxy(&plane.daemons(), port).await;
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    // Each pod fills a node, so the two Deployments never share a node.
    deploy(&api, "stays", 3, "130", "100Gi").await;
    deploy(&api, "goes", 3, "130", "100Gi").await;
    let full = |world: &World| {
        let came = world.nodes.iter().all(is_initialized);
        came && world.bound() == 6 && world.empty_nodes() == 0 && world.tainted_nodes() == 0
    };
    let mut before = until(&api, &setup, 90, "all pods bound", full).await;
    let seconds = if is_campaign() { 60 } else { 15 };

    for fault in [Fault::CutWatches, Fault::TruncateLists, Fault::Refuse] {
        proxy.set(fault);
        // Nodes become empty. With complete state the daemon would terminate them soon.
        scale(&api, "goes", 0).await;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let now = World::read(&api).await;
        let tail = setup.tail();
        assert!(untouched(&before, &now), "{fault:?}: a node was changed\n{tail}");
        let live = live_by_claim(port).await.len();
        assert_eq!(live, before.nodes.len(), "{fault:?}");
        proxy.set(Fault::None);
        until(&api, &setup, 90, "empty nodes are removed afterwards", |world| {
            world.nodes.len() == 3 && world.bound() == 3
        })
        .await;
        scale(&api, "goes", 3).await;
        before = until(&api, &setup, 90, "all pods bound again", full).await;
    }
    assert!(proxy.truncated() > 0, "no list was truncated");
    plane.stop_api().expect("the API stops");
    let minute = if is_campaign() { 60 } else { 12 };
    tokio::time::sleep(Duration::from_secs(minute)).await;
    assert_eq!(live_by_claim(port).await.len(), before.nodes.len(), "while the API was down");
    plane.start_api().expect("the API starts");

    scale(&api, "goes", 24).await;
    until(&api, &setup, 180, "launches resume", |world| world.bound() == 27).await;
    scale(&api, "stays", 0).await;
    scale(&api, "goes", 0).await;
    until(&api, &setup, 180, "removals resume", |world| world.nodes.is_empty()).await;
}
