//! Many control planes under one daemon: a failure of one does not affect the others.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::WatchEvent;
use kube::core::params::WatchParams;
use serde_json::json;
use tokio::time::sleep;

use super::Plane;
use super::fixture::{Setup, client, clock, free_port, is_campaign, until_ready};
use super::lifecycle::bytes_mb;
use super::proxy::{Fault, Proxy};
use crate::end_to_end::process::get;

/// Returns the number of control planes without a defect.
fn served() -> usize {
    if is_campaign() { 7 } else { 1 }
}

/// The pods of the large cluster, and the pods per node.
const LARGE: usize = 20_000;
const ON_NODE: usize = 100;

/// The pods that are created in each cluster at once, and the number of waves.
const PODS: usize = 20;

fn waves() -> usize {
    if is_campaign() { 3 } else { 1 }
}

/// The number of rounds. The median counts.
const ROUNDS: usize = 5;

/// The maximum slowdown next to broken clusters.
const LONGER: f64 = 1.2;

/// The memory limit for the maximum number of clusters, in MB.
const MOST_MB: f64 = 300.0;

/// A cluster without a defect.
struct Site {
    name: String,
    kubeconfig: PathBuf,
    api: Client,
}

impl Site {
    async fn of(plane: &Plane, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            kubeconfig: plane.daemons(),
            api: client(plane.kubeconfig()).await,
        }
    }
}

/// Starts planes that share one etcd and have no controllers. Returns `None` if the binaries are
/// missing.
fn planes(test: &str, count: usize) -> Option<Vec<Plane>> {
    let mut all = vec![Plane::start_or_skip_with(test, &["--lean"])?];
    for index in 1..count {
        let (etcd, prefix) = (all[0].etcd().to_owned(), format!("/plane-{index}"));
        all.push(Plane::start_or_skip_with(test, &["--lean", "--etcd", &etcd, &prefix])?);
    }
    Some(all)
}

/// Returns a set-up with one pool and these clusters, all of them watched, with further HCL of
/// each.
pub(super) fn setup(
    clusters: &[(&str, &Path)],
    cloud: u16,
    more: impl Fn(&str) -> String,
) -> Setup {
    let setup = Setup::new(clusters, Some(cloud));
    let file = setup.path().join("outrigger.hcl");
    let mut text = fs::read_to_string(&file).expect("it was written");
    text = text.replace("  api { poll = \"2s\" }\n", "");
    assert!(!text.contains("poll"), "{text}");
    for (name, _) in clusters {
        let head = format!("cluster \"{name}\" {{\n");
        text = text.replace(&head, &format!("{head}{}", more(name)));
    }
    fs::write(&file, text).expect("it is written");
    setup
}

/// Returns the HCL for a separate Lease of one of several clusters on one API server. The shipped
/// permissions do not cover Leases of other names.
pub(super) fn with_own_lease(name: &str) -> String {
    format!("  leader_election {{\n    lease = \"kube-system/{name}\"\n  }}\n")
}

/// Creates pods, and returns the seconds from the creation to the binding of each.
async fn bind(api: &Client, wave: usize) -> Vec<f64> {
    let pods: Api<Pod> = Api::namespaced(api.clone(), "default");
    let listed = pods.list(&ListParams::default()).await.expect("pods list");
    let version = listed.metadata.resource_version.unwrap_or_default();
    let watched = WatchParams::default().timeout(120);
    let watched = pods.watch(&watched, &version).await.expect("a watch");
    let mut watched = watched.boxed();
    let mut made: BTreeMap<String, Instant> = BTreeMap::new();
    for index in 0..PODS {
        let name = format!("pod-{wave}-{index}");
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main",
                    "image": "main",
                    "resources": {"requests": {"cpu": "900m", "memory": "3100Mi"}},
                }],
            },
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        made.insert(name, clock());
        pods.create(&PostParams::default(), &pod).await.expect("created");
    }
    let mut took = Vec::new();
    while let Some(event) = watched.try_next().await.expect("the watch continues") {
        let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else {
            continue;
        };
        let name = pod.metadata.name.unwrap_or_default();
        let is_bound = pod.spec.is_some_and(|own| own.node_name.is_some());
        if let Some(at) = made.get(&name).filter(|_| is_bound) {
            took.push(at.elapsed().as_secs_f64());
            made.remove(&name);
        }
        if made.is_empty() {
            return took;
        }
    }
    panic!("{} pods of wave {wave} are not bound within two minutes", made.len());
}

/// Deletes all pods, and waits until all nodes are gone.
async fn clear(api: &Client, setup: &Setup) {
    let pods: Api<Pod> = Api::namespaced(api.clone(), "default");
    let now = DeleteParams::default().grace_period(0);
    let gone = pods.delete_collection(&now, &ListParams::default()).await;
    gone.expect("the pods are deleted");
    let nodes: Api<Node> = Api::all(api.clone());
    for _ in 0..600 {
        let left = nodes.list_metadata(&ListParams::default()).await;
        if left.expect("nodes list").items.is_empty() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("nodes remain after a minute\n{}", setup.tail());
}

/// Returns the quantile of this percentage.
fn quantile(all: &[f64], percent: usize) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    let index = (all.len() * percent).div_ceil(100).saturating_sub(1);
    all.get(index).copied().expect("something was measured")
}

/// The measurements of a run.
struct Figures {
    /// The time from the creation of a pod to its binding.
    bind_p95: f64,
    /// The time from the event of a pod to its command, in the slowest cluster.
    decide_p99: f64,
    cpu: f64,
    peak: u64,
}

/// Runs a daemon with all clusters, while pods are created and deleted in those without a defect.
async fn run(setup: &Setup, ready: usize, sites: &[Site]) -> Figures {
    drop(fs::remove_file(setup.path().join("daemon.log")));
    let daemon = setup.daemon();
    until_ready(setup, ready).await;
    let address = setup.admin();
    let (mut took, mut decide_p99) = (Vec::new(), 0.0_f64);
    for wave in 0..waves() {
        let waves = join_all(sites.iter().map(|own| bind(&own.api, wave))).await;
        took.extend(waves.into_iter().flatten());
        let text = get(&address, "/metrics").1;
        for site in sites {
            decide_p99 = decide_p99.max(decided(&text, &site.name));
        }
        join_all(sites.iter().map(|own| clear(&own.api, setup))).await;
    }
    let (cpu, peak) = daemon.figures();
    Figures { bind_p95: quantile(&took, 95), decide_p99, cpu, peak }
}

fn decided(scrape: &str, cluster: &str) -> f64 {
    let series = "outrigger_pods_decided_seconds";
    let head = format!("{series}{{cluster=\"{cluster}\",quantile=\"0.99\"}} ");
    let line = scrape.lines().find_map(|line| line.strip_prefix(&head));
    line.and_then(|own| own.parse().ok()).expect("the series is there")
}

/// Creates pods on unmanaged nodes.
async fn fill(api: &Client) {
    let nodes: Api<Node> = Api::all(api.clone());
    let pods: Api<Pod> = Api::namespaced(api.clone(), "default");
    let (nodes, pods) = (&nodes, &pods);
    let made = stream::iter(0..LARGE / ON_NODE).map(|index| async move {
        let name = format!("large-{index}");
        let node = json!({"metadata": {"name": name}});
        let node = serde_json::from_value(node).expect("a node");
        nodes.create(&PostParams::default(), &node).await.expect("created");
        let there = json!({"cpu": "200", "memory": "800Gi", "pods": "200"});
        let status = json!({"status": {"capacity": there, "allocatable": there,
            "conditions": [{"type": "Ready", "status": "True"}]}});
        let patch = Patch::Strategic(status);
        let params = PatchParams::default();
        let told = nodes.patch_status(&name, &params, &patch).await;
        told.expect("it is ready");
        for pod in 0..ON_NODE {
            let pod = json!({
                "metadata": {"name": format!("{name}-{pod}"), "labels": {"app": "large"}},
                "spec": {
                    "nodeName": name,
                    "containers": [{
                        "name": "main",
                        "image": "main",
                        "resources": {"requests": {"cpu": "1", "memory": "4Gi"}},
                    }],
                },
            });
            let pod = serde_json::from_value(pod).expect("a pod");
            pods.create(&PostParams::default(), &pod).await.expect("created");
        }
    });
    made.buffer_unordered(16).collect::<Vec<()>>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clusters_need_little_memory() {
    let name = "plane::many_clusters::idle_clusters_need_little_memory";
    let (planes_of, count) = if is_campaign() { (10, 100) } else { (1, 20) };
    let Some(planes) = planes(name, planes_of) else {
        return;
    };
    let names: Vec<String> = (0..count).map(|index| format!("idle-{index}")).collect();
    let homes = planes.iter().map(Plane::kubeconfig).cycle();
    let clusters: Vec<(&str, &Path)> = names.iter().map(String::as_str).zip(homes).collect();
    let port = free_port();
    let setup = setup(&clusters, port, with_own_lease);
    let _cloud = setup.cloud(port);
    let daemon = setup.daemon();
    until_ready(&setup, count).await;
    let (began, _) = daemon.figures();
    sleep(Duration::from_secs(if is_campaign() { 60 } else { 2 })).await;
    let (cpu, peak) = daemon.figures();
    println!(
        "{count} idle clusters: {:.1} MB at most, {:.2} s of CPU since",
        bytes_mb(peak),
        cpu - began
    );
    if is_campaign() {
        assert!(bytes_mb(peak) < MOST_MB, "too much memory");
    }
    // With huge pages the clusters would need twice as much memory. Not every kernel reports this.
    assert_ne!(daemon.status("THP_enabled"), Some(1), "huge pages");
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_clusters_do_not_slow_down_the_others() {
    let name = "plane::many_clusters::broken_clusters_do_not_slow_down_the_others";
    let count = served();
    let Some(planes) = planes(name, count + 3) else {
        return;
    };
    let (whole, broken) = planes.split_at(count);
    let mut sites = Vec::new();
    for (index, plane) in whole.iter().enumerate() {
        sites.push(Site::of(plane, &format!("whole-{index}")).await);
    }
    let [stopped, slow, large] = broken else {
        panic!("three planes are broken");
    };
    let proxy = Proxy::start(client(&slow.daemons()).await).await;
    proxy.set(Fault::Slow);
    if is_campaign() {
        fill(&client(large.kubeconfig()).await).await;
    }
    let (dead, huge) = (stopped.daemons(), large.daemons());
    stopped.stop_api().expect("the API stops");
    let (one, other) = (free_port(), free_port());
    let own = sites.iter().map(|own| (own.name.as_str(), own.kubeconfig.as_path()));
    let own: Vec<(&str, &Path)> = own.collect();
    let bad = [("dead", dead.as_path()), ("slow", proxy.kubeconfig()), ("huge", &huge)];
    let nothing = |_: &str| String::new();
    let alone = setup(&own, one, nothing);
    let beside = setup(&[&own[..], &bad].concat(), other, nothing);
    let _clouds = [alone.cloud(one), beside.cloud(other)];
    let rounds = if is_campaign() { ROUNDS } else { 1 };
    let mut all: [Vec<Figures>; 2] = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            // The huge cluster becomes ready, too; the slow one may.
            let (setup, ready) = [(&alone, count), (&beside, count + 1)][which];
            let figures = run(setup, ready, &sites).await;
            println!(
                "{}: p95 from pod to binding {:.3} s, p99 from event to command {:.3} s; daemon \
                 {:.2} s of cpu, {:.1} MB peak",
                ["alone", "beside"][which],
                figures.bind_p95,
                figures.decide_p99,
                figures.cpu,
                bytes_mb(figures.peak),
            );
            all[which].push(figures);
        }
    }
    compare(&all);
}

/// Compares the medians of the rounds with and without broken clusters.
fn compare(all: &[Vec<Figures>; 2]) {
    let middle = |which: usize, of: fn(&Figures) -> f64| {
        let own: Vec<f64> = all[which].iter().map(of).collect();
        quantile(&own, 50)
    };
    for (what, of) in [
        ("p95 from pod to binding", (|own| own.bind_p95) as fn(&Figures) -> f64),
        ("p99 from event to command", |own| own.decide_p99),
    ] {
        let (alone, beside) = (middle(0, of), middle(1, of));
        println!("{what}: alone {alone:.3} s, beside {beside:.3} s");
        if is_campaign() {
            assert!(beside <= LONGER * alone, "{what}: slower next to broken clusters");
        }
    }
}
