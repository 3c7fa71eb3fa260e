//! Early binding on a real control plane: how soon pods run, and their handling if a node never
//! registers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, WatchEvent, WatchParams};
use tokio::task::AbortHandle;

use super::Plane;
use super::fixture::{
    Setup, World, client, deploy, end_instance, free_port, instances, is_campaign, now, plane,
    scale, until, until_ready, within,
};
use super::lifecycle::{deploy_both, size};

/// In campaigns, the maximum time from the launch response to the binding of all pods of a claim.
const BOUND_MAX: SignedDuration = SignedDuration::from_secs(1);

/// Times and nodes of pod bindings, and times at which kubelets registered, as seen by a watch.
#[derive(Default)]
struct Seen {
    bound: BTreeMap<String, (String, Timestamp)>,
    came: BTreeMap<String, Timestamp>,
}

impl Seen {
    fn pod(&mut self, pod: &Pod) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let (Some(name), Some(node)) = (pod.metadata.name.clone(), node) {
            self.bound.entry(name).or_insert_with(|| (node, now()));
        }
    }

    fn node(&mut self, node: &Node) {
        if let (Some(name), true) = (node.metadata.name.clone(), has_come(node)) {
            self.came.entry(name).or_insert_with(now);
        }
    }
}

/// A watch of pods and nodes; it ends when it is dropped.
struct Watching {
    seen: Arc<Mutex<Seen>>,
    tasks: [AbortHandle; 2],
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

async fn watch<T>(api: Api<T>, seen: Arc<Mutex<Seen>>, note: fn(&mut Seen, &T))
where
    T: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let stream = api.watch(&WatchParams::default(), "0").await;
    let mut stream = stream.expect("a watch").boxed();
    while let Some(Ok(event)) = stream.next().await {
        if let WatchEvent::Added(it) | WatchEvent::Modified(it) = event {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            note(&mut seen, &it);
        }
    }
}

impl Watching {
    fn start(client: &kube::Client) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let pods = watch(Api::all(client.clone()), Arc::clone(&seen), Seen::pod);
        let nodes = watch(Api::all(client.clone()), Arc::clone(&seen), Seen::node);
        let tasks = [tokio::spawn(pods).abort_handle(), tokio::spawn(nodes).abort_handle()];
        Self { seen, tasks }
    }
}

/// Whether the kubelet of a node has registered.
fn has_come(node: &Node) -> bool {
    let status = node.status.as_ref();
    let info = status.and_then(|own| own.node_info.as_ref());
    info.is_some_and(|own| !own.kubelet_version.is_empty())
}

/// kwok may miss a pod when it starts on a machine with two busy cores. A real kubelet would list
/// its pods.
const KWOK_STARTS_MAX: usize = 3;

/// Waits until this many pods are bound to nodes with registered kubelets, and then until kwok
/// reports them as running.
async fn until_running((plane, api, setup): (&Plane, &kube::Client, &Setup), pods: usize) -> World {
    until(api, setup, 120, "all nodes have registered", |world| {
        let came = world.nodes.iter().all(|node| has_come(node) && !is_awaited(node));
        came && world.bound() == pods && world.pods.len() == pods && world.empty_nodes() == 0
    })
    .await;
    let all_run = |world: &World| {
        running(world) == pods && world.pods.len() == pods && world.tainted_nodes() == 0
    };
    for _ in 1..KWOK_STARTS_MAX {
        plane.restart_kwok().expect("kwok starts");
        if let Some(world) = within(api, 30, all_run).await {
            return world;
        }
    }
    plane.restart_kwok().expect("kwok starts");
    until(api, setup, 90, "all pods run", all_run).await
}

fn is_awaited(node: &Node) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations.is_some_and(|own| own.contains_key("outrigger.dev/awaiting-kubelet"))
}

fn running(world: &World) -> usize {
    let runs = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|own| own.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    world.pods.iter().filter(runs).count()
}

/// Returns the value of a field in a line of the log.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Returns instance, time of the launch response and pods of each claim in the log.
fn claims(setup: &Setup) -> BTreeMap<String, (String, Timestamp, Vec<String>)> {
    let mut all = BTreeMap::new();
    for line in setup.told("launched claim") {
        let at = line.split_whitespace().next().and_then(|at| at.parse().ok());
        let (Some(claim), Some(instance)) = (field(&line, "claim"), field(&line, "instance"))
        else {
            continue;
        };
        let at: Timestamp = at.expect("each line starts with its time");
        all.insert(claim.to_owned(), (instance.to_owned(), at, Vec::new()));
    }
    for line in setup.told("planned pod") {
        let pod = field(&line, "pod").and_then(|pod| pod.strip_prefix("default/"));
        let claim = field(&line, "claim").and_then(|claim| all.get_mut(claim));
        if let (Some(pod), Some((.., pods))) = (pod, claim) {
            pods.push(pod.to_owned());
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn planned_pods_are_bound_within_a_second_of_the_launch() {
    let name = "plane::early_binding::planned_pods_are_bound_within_a_second_of_the_launch";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let setup = Setup::early(&plane.daemons(), port, "");
    let _cloud = setup.cloud_that_boots(port, "6s");
    let _daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    let watching = Watching::start(&api);
    deploy_both(&api).await;
    let pods = 2 * size();
    until_running((&plane, &api, &setup), pods).await;
    let claims = claims(&setup);
    // The watch of this test may lag behind the listing.
    let all_came = || {
        let seen = watching.seen.lock().unwrap_or_else(PoisonError::into_inner);
        claims.values().all(|(own, ..)| seen.came.contains_key(own))
    };
    for _ in 0..100 {
        if all_came() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let seen = watching.seen.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut planned, mut last) = (0, Vec::new());
    for (claim, (instance, launched, pods)) in &claims {
        let came = seen.came[instance];
        let mut latest = SignedDuration::ZERO;
        for pod in pods {
            let (node, at) = &seen.bound[pod];
            assert_eq!(node, instance, "{pod} is on its planned node");
            assert!(*at < came, "{pod} is bound before {node} registers");
            latest = latest.max(at.duration_since(*launched));
        }
        let is_late = is_campaign() && latest > BOUND_MAX;
        assert!(!is_late, "{claim}: {latest:#}\n{}", setup.tail());
        planned += pods.len();
        last.push((latest, came.duration_since(*launched)));
    }
    assert_eq!(planned, pods, "each pod was planned once");
    last.sort_unstable();
    let ms = |own: SignedDuration| own.as_millis();
    let soonest = last.iter().map(|(_, came)| ms(*came)).min();
    println!(
        "{planned} pods on {} nodes: the last of a node bound {} ms after its launch was answered \
         (median), {} ms at most; kubelets came after {} ms at the soonest",
        claims.len(),
        ms(last[last.len() / 2].0),
        last.last().map_or(0, |(own, _)| ms(*own)),
        soonest.unwrap_or_default(),
    );
}

/// Returns the names of unregistered nodes with bound pods.
fn awaited(world: &World) -> BTreeSet<String> {
    let all = world.nodes.iter().filter(|node| is_awaited(node) && !has_come(node));
    let used = all.filter(|node| world.pods_on(node) > 0);
    used.filter_map(|node| node.metadata.name.clone()).collect()
}

fn uids(world: &World) -> BTreeSet<String> {
    let all = world.pods.iter();
    all.filter_map(|pod| pod.metadata.uid.clone()).collect()
}

fn names(world: &World) -> BTreeSet<String> {
    let all = world.nodes.iter();
    all.filter_map(|node| node.metadata.name.clone()).collect()
}

/// Creates pods that each fill a node.
async fn deploy_large(api: &kube::Client, replicas: usize) {
    deploy(api, "fills", replicas, "130", "100Gi").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_nodes_that_never_register_are_recreated() {
    let name = "plane::early_binding::pods_of_nodes_that_never_register_are_recreated";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let setup = Setup::early(&plane.daemons(), port, "  registration_timeout = \"10s\"\n");
    let cloud = setup.cloud_that_boots(port, "1h");
    let _daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    deploy_large(&api, 3).await;
    let first = until(&api, &setup, 30, "all pods bound", |world| world.bound() == 3).await;
    let nodes = awaited(&first);
    assert_eq!(nodes.len(), 3, "each pod is on an unregistered node");
    let undone = until(&api, &setup, 60, "pods and nodes are others", |world| {
        uids(world).is_disjoint(&uids(&first))
            && names(world).is_disjoint(&nodes)
            && world.pods.len() == 3
    })
    .await;
    assert_eq!(undone.pods.len(), 3, "no pod is lost");
    let live = |own: &serde_json::Value| {
        !matches!(own["state"].as_str(), Some("shutting-down" | "terminated"))
    };
    let left = instances(port).await;
    let left = left.iter().filter(|own| live(own));
    let left: BTreeSet<&str> = left.filter_map(|own| own["id"].as_str()).collect();
    assert!(nodes.iter().all(|name| !left.contains(name.as_str())));
    // From now on the machines boot. The state of the old cloud is lost.
    drop(cloud);
    let _cloud = setup.cloud_that_boots(port, "3s");
    let world = until_running((&plane, &api, &setup), 3).await;
    assert_eq!(world.nodes.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn early_bound_pods_survive_failed_instances_and_killed_daemons() {
    let name = "plane::early_binding::early_bound_pods_survive_failed_instances_and_killed_daemons";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let setup = Setup::early(&plane.daemons(), port, "");
    let _cloud = setup.cloud_that_boots(port, "15s");
    let mut daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    deploy_large(&api, 4).await;
    // Killed as soon as one pod is bound, at any state of the others.
    until(&api, &setup, 30, "a pod is bound", |world| world.bound() > 0).await;
    daemon.kill();
    let first = World::read(&api).await;
    let fails = awaited(&first).into_iter().next().expect("a node is awaited");
    end_instance(port, &fails).await;
    let daemon = setup.daemon();
    let world = until_running((&plane, &api, &setup), 4).await;
    assert!(!names(&world).contains(&fails), "the failed node is removed");
    let kept = uids(&first).intersection(&uids(&world)).count();
    assert_eq!(kept, 3, "one pod was recreated, the others are unchanged");
    let all = instances(port).await;
    let claims = all.iter().map(|own| own["tags"]["outrigger.dev/claim"].to_string());
    assert_eq!(claims.collect::<BTreeSet<_>>().len(), all.len(), "one instance per claim");
    assert_eq!(all.len(), 5, "one per pod, and one that failed");
    scale(&api, "fills", 0).await;
    until(&api, &setup, 120, "every node gone", |world| world.nodes.is_empty()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(daemon);
}
