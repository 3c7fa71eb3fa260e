//! Simulates the kubelets: every running instance registers the Node of its user data. It must not
//! remove a Node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::sleep;

use super::Aws;

/// The interval at which it lists the instances.
const POLL: Duration = Duration::from_millis(200);
/// The share of a type's memory that its kernel sees: more than the 92.5 % in plans.
const SEEN_PERCENT: u64 = 95;
/// The maximum number of pods of a kubelet if the user data does not set it.
const PODS: u64 = 110;
/// Memory kept free by the eviction threshold, in MiB.
const EVICTION: u64 = 100;

/// Allocatable resources of a type: CPU in millicores, memory in MiB, pods.
pub(crate) type Sizes = BTreeMap<&'static str, (u64, u64, u64)>;

/// The simulated machines of one AWS. They stop to boot when it is dropped.
pub(crate) struct Kubelets {
    task: AbortHandle,
    refused: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Kubelets {
    /// Starts to register a Node in the cluster of `client` for every running instance. A type that
    /// is not in `sizes` has the allocatable resources of an EKS image, and the number of pods in
    /// its user data.
    pub(crate) fn start(aws: Arc<Aws>, client: Client, sizes: Sizes) -> Self {
        Self::start_where(|_| true, aws, client, sizes)
    }

    /// Starts the same for instances that `boots` accepts. Other instances never register.
    pub(crate) fn start_where(
        boots: impl Fn(&Value) -> bool + Send + 'static,
        aws: Arc<Aws>,
        client: Client,
        sizes: Sizes,
    ) -> Self {
        let refused = Arc::new(Mutex::new(BTreeMap::new()));
        let said = Arc::clone(&refused);
        let task = tokio::spawn(async move {
            let api: Api<Node> = Api::all(client);
            let mut booted = BTreeMap::new();
            loop {
                let asked = Arc::clone(&aws);
                let listed = spawn_blocking(move || asked.running()).await;
                for instance in listed.unwrap_or_default() {
                    let id = instance["id"].as_str().unwrap_or_default().to_owned();
                    if !boots(&instance) || booted.contains_key(&id) {
                        continue;
                    }
                    let done = match node(&instance, &sizes) {
                        Ok(node) => register(&api, node).await,
                        Err(why) => Some(Err(why)),
                    };
                    // A failed request is tried again later.
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
        Self { task: task.abort_handle(), refused }
    }

    /// Returns the instances that will never register, by id with the reason.
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

/// Registers a Node. Returns `None` if the API request must be repeated.
async fn register(api: &Api<Node>, node: Value) -> Option<Result<(), String>> {
    let node: Node = match serde_json::from_value(node) {
        Ok(node) => node,
        Err(error) => return Some(Err(format!("it is no node: {error}"))),
    };
    match api.create(&PostParams::default(), &node).await {
        Ok(_) => Some(Ok(())),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            // Addresses are reused, and node names contain them: it waits until the Node of the
            // other instance is deleted.
            let there = api.get(&node.name_any()).await.ok()?;
            let id = |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
            if id(&there) != id(&node) {
                return None;
            }
            adopt(api, &node).await.ok().map(Ok)
        }
        Err(kube::Error::Api(status)) => Some(Err(status.message.clone())),
        Err(_) => None,
    }
}

/// Adopts an existing Node as a kubelet does: keeps its labels and taints, and sets its status.
/// Then removes the taint of the cloud controller.
async fn adopt(api: &Api<Node>, node: &Node) -> Result<(), kube::Error> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let params = PatchParams::default();
    let status = json!({"status": {
        "capacity": node.status.as_ref().map(|own| &own.capacity),
        "allocatable": node.status.as_ref().map(|own| &own.allocatable),
        "nodeInfo": {"kubeletVersion": "tests"},
    }});
    api.patch_status(name, &params, &Patch::Merge(status)).await?;
    let kwok = json!({"metadata": {"annotations": node.metadata.annotations}});
    api.patch(name, &params, &Patch::Merge(kwok)).await?;
    let known = api.get(name).await?;
    let mut taints = known.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.retain(|own| own.key != "node.cloudprovider.kubernetes.io/uninitialized");
    let version = known.metadata.resource_version;
    let spec = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
    api.patch(name, &params, &Patch::Merge(spec)).await?;
    Ok(())
}

/// Returns the Node that an instance registers, or the reason why its user data is invalid.
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
    let arch = if text("architecture") == "arm64" { "arm64" } else { "amd64" };
    let mut labels: Map<String, Value> = kubelet["labels"].as_object().cloned().unwrap_or_default();
    for (key, value) in [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/arch", arch),
        ("kubernetes.io/os", "linux"),
        ("node.kubernetes.io/instance-type", &kind),
        ("topology.kubernetes.io/zone", &zone),
        ("topology.kubernetes.io/region", &zone[..zone.len().saturating_sub(1)]),
    ] {
        labels.insert(key.to_owned(), json!(value));
    }
    let (capacity, allocatable) = size(instance, &kind, sizes);
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
        "status": {"capacity": capacity, "allocatable": allocatable},
    }))
}

/// Returns the capacity, and the allocatable resources that the kubelet of an EKS image computes.
fn size(instance: &Value, kind: &str, sizes: &Sizes) -> (Value, Value) {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let pods = instance["kubelet"]["max_pods"].as_u64().unwrap_or(PODS);
    let (cores, mib) = (number(&instance["vcpus"]), number(&instance["memory_mib"]));
    let seen = mib * SEEN_PERCENT / 100;
    // The kubelet reserves 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 %
    // of the rest.
    let tenths = 600 * cores.min(1)
        + 100 * cores.saturating_sub(1).min(1)
        + 50 * cores.saturating_sub(2).min(2)
        + 25 * cores.saturating_sub(4);
    let (cpu, memory, most) = sizes.get(kind).copied().unwrap_or((
        cores * 1000 - tenths / 10,
        seen.saturating_sub(255 + 11 * pods + EVICTION),
        pods,
    ));
    let room = |cpu: u64, memory: u64, pods: u64| {
        json!({
            "cpu": format!("{cpu}m"),
            "memory": format!("{memory}Mi"),
            "pods": pods.to_string(),
        })
    };
    let pods = most.min(pods);
    (room(cores * 1000, seen.max(memory), pods), room(cpu, memory, pods))
}
