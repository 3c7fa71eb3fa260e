//! Plays the machines: every instance that runs registers the Node that its user data asks for.
//! It must not remove a Node, and must not know who launched what.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::sleep;

use super::Aws;

/// How often it looks which instances there are.
const POLL: Duration = Duration::from_millis(200);
/// Of a type that a test's table lacks: what kernel, system and eviction leave of its memory.
const USABLE: f64 = 0.9;
/// What a kubelet takes when its user data says nothing.
const PODS: u64 = 110;

/// What a Node of a type has: CPU in millicores, memory in MiB, pods.
pub(crate) type Sizes = BTreeMap<&'static str, (u64, u64, u64)>;

/// The machines of one AWS; they stop booting when it is dropped.
pub(crate) struct Kubelets {
    task: AbortHandle,
    refused: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Kubelets {
    /// Starts to register a Node in the cluster that `client` knows for every running instance.
    /// What is not in `sizes` has the CPU of its type, most of its memory, and as many pods as its
    /// user data says.
    pub(crate) fn start(aws: Arc<Aws>, client: Client, sizes: Sizes) -> Self {
        let refused = Arc::new(Mutex::new(BTreeMap::new()));
        let said = Arc::clone(&refused);
        let task = tokio::spawn(async move {
            let api: Api<Node> = Api::all(client);
            let mut booted = BTreeMap::new();
            loop {
                let asked = Arc::clone(&aws);
                let listed = spawn_blocking(move || asked.instances()).await;
                for instance in listed.unwrap_or_default() {
                    let id = instance["id"].as_str().unwrap_or_default().to_owned();
                    if instance["state"] != "running" || booted.contains_key(&id) {
                        continue;
                    }
                    let done = match node(&instance, &sizes) {
                        Ok(node) => register(&api, node).await,
                        Err(why) => Some(Err(why)),
                    };
                    // What is to be tried again is not done.
                    let Some(done) = done else { continue };
                    if let Err(why) = done {
                        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                        said.insert(id.clone(), why);
                    }
                    booted.insert(id, ());
                }
                sleep(POLL).await;
            }
        });
        Self {
            task: task.abort_handle(),
            refused,
        }
    }

    /// Instances that will never have a Node, and why: by id.
    pub(crate) fn refused(&self) -> BTreeMap<String, String> {
        let refused = self.refused.lock();
        refused.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `None` when the API could not be asked.
async fn register(api: &Api<Node>, node: Value) -> Option<Result<(), String>> {
    let node = match serde_json::from_value(node) {
        Ok(node) => node,
        Err(error) => return Some(Err(format!("it is no node: {error}"))),
    };
    match api.create(&PostParams::default(), &node).await {
        Ok(_) => Some(Ok(())),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Some(Ok(())),
        Err(kube::Error::Api(status)) => Some(Err(status.message.clone())),
        Err(_) => None,
    }
}

/// The Node that an instance registers, or why its user data makes none.
pub(super) fn node(instance: &Value, sizes: &Sizes) -> Result<Value, String> {
    let text = |name: &str| instance[name].as_str().unwrap_or_default().to_owned();
    let kubelet = &instance["kubelet"];
    if kubelet.is_null() {
        return Err("it has no user data".to_owned());
    }
    if let Some(error) = kubelet["error"].as_str() {
        return Err(format!("its user data: {error}"));
    }
    let (zone, kind, name) = (text("zone"), text("type"), text("private_dns_name"));
    let arch = if text("architecture") == "arm64" {
        "arm64"
    } else {
        "amd64"
    };
    let mut labels: Map<String, Value> = kubelet["labels"].as_object().cloned().unwrap_or_default();
    for (key, value) in [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/arch", arch),
        ("kubernetes.io/os", "linux"),
        ("node.kubernetes.io/instance-type", &kind),
        ("topology.kubernetes.io/zone", &zone),
        (
            "topology.kubernetes.io/region",
            &zone[..zone.len().saturating_sub(1)],
        ),
    ] {
        labels.insert(key.to_owned(), json!(value));
    }
    let (cpu, memory, pods) = size(instance, &kind, sizes);
    let room = json!({
        "cpu": format!("{cpu}m"),
        "memory": format!("{memory}Mi"),
        "pods": pods.to_string(),
    });
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {
            "providerID": format!("aws:///{zone}/{}", text("id")),
            "taints": kubelet["taints"],
        },
        "status": {"capacity": room, "allocatable": room},
    }))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "MiB of one machine"
)]
fn size(instance: &Value, kind: &str, sizes: &Sizes) -> (u64, u64, u64) {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let usable = (number(&instance["memory_mib"]) as f64 * USABLE) as u64;
    let pods = instance["kubelet"]["max_pods"].as_u64().unwrap_or(PODS);
    let (cpu, memory, most) =
        sizes
            .get(kind)
            .copied()
            .unwrap_or((number(&instance["vcpus"]) * 1000, usable, pods));
    (cpu, memory, most.min(pods))
}
