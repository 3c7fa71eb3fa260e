//! Registers the Node of a booted instance, like kwok's fake nodes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::host::text;
use crate::kubernetes::commands;
use crate::model::id::InstanceId;
use crate::model::instance::{Instance, InstanceType};
use crate::model::labels::{CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, ZONE};
use crate::model::taint::Taint;

/// Timeout of one registration attempt.
const CALL: Duration = Duration::from_secs(15);
/// Initial and maximum delay between attempts.
const WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Number of failed attempts after which a warning is logged.
const TOLD: u32 = 3;
/// Maximum number of attempts. They take about an hour, which exceeds every registration timeout. A
/// real kubelet retries forever.
const ATTEMPTS: u32 = 360;

/// The Node of an instance, with the name of the instance. kwok simulates the kubelet of the Node.
pub(crate) fn node_object(
    instance: &Instance,
    shape: Option<&InstanceType>,
    labels: &Labels,
    taints: &[Taint],
) -> Value {
    let offering = &instance.offering;
    let mut node_labels = labels.clone();
    for (key, requirement) in shape.iter().flat_map(|shape| shape.requirements.iter()) {
        if let Some(values) = requirement.values().filter(|values| values.len() == 1) {
            node_labels.extend(values.iter().map(|value| (key.to_owned(), value.clone())));
        }
    }
    for (key, value) in [
        (INSTANCE_TYPE, offering.instance_type.as_str()),
        (ZONE, offering.zone.as_str()),
        (CAPACITY_TYPE, offering.capacity_type.as_str()),
        (HOSTNAME, instance.id.as_str()),
    ] {
        node_labels.insert(key.to_owned(), value.to_owned());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": instance.id.as_str(),
            "labels": node_labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {
            "providerID": format!("aws:///{}/{}", offering.zone, instance.id),
            "taints": taints.iter().map(commands::taint_to_json).collect::<Vec<_>>(),
        },
        "status": {
            "capacity": shape.map(|shape| commands::quantities_to_json(&shape.capacity)),
            "allocatable": shape.map(|shape| commands::quantities_to_json(&shape.allocatable)),
        },
    })
}

/// Registers a Node, with retries.
pub(crate) async fn register_with_retries(client: Client, node: Value, instance: InstanceId) {
    let node = match serde_json::from_value::<Node>(node) {
        Ok(node) => node,
        Err(error) => {
            tracing::error!(%instance, %error, "invalid node of a simulated instance");
            return;
        }
    };
    let api: Api<Node> = Api::all(client);
    let mut wait = WAIT.0;
    for attempt in 0..ATTEMPTS {
        let error = match timeout(CALL, register_node(&api, &node)).await {
            Ok(Ok(())) => {
                tracing::debug!(%instance, "registered node of simulated instance");
                return;
            }
            Ok(Err(error)) => text::error_chain(&error),
            Err(_) => "no response".to_owned(),
        };
        if attempt == TOLD {
            tracing::warn!(%instance, error, "cannot register node of simulated instance");
        } else {
            tracing::debug!(%instance, error, "cannot register node of simulated instance");
        }
        sleep(wait).await;
        wait = (wait * 2).min(WAIT.1);
    }
    tracing::warn!(%instance, "giving up registering node of simulated instance");
}

/// If the Node exists, a kubelet keeps labels and taints and updates the status. Source:
/// Kubernetes, kubelet_node_status.go.
async fn register_node(api: &Api<Node>, node: &Node) -> Result<(), kube::Error> {
    match api.create(&PostParams::default(), node).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        created => return created.map(drop),
    }
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let known = node.status.as_ref();
    let status = json!({"status": {
        "capacity": known.map(|status| &status.capacity),
        "allocatable": known.map(|status| &status.allocatable),
        "nodeInfo": { "kubeletVersion": "simulated" },
    }});
    let params = PatchParams::default();
    api.patch_status(name, &params, &Patch::Merge(status)).await?;
    let kwok = json!({"metadata": { "annotations": node.metadata.annotations }});
    api.patch(name, &params, &Patch::Merge(kwok)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::node_object;
    use crate::catalog::Catalog;
    use crate::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
    use crate::model::labels::{Labels, TAINT_UNREGISTERED};
    use crate::model::taint::{Effect, Taint};

    #[test]
    fn simulated_node_describes_its_instance() {
        let catalog = Catalog::shipped();
        let instance_type = catalog.get("m7i.large").expect("a shipped type");
        let instance = Instance {
            id: "i-1".into(),
            offering: OfferingKey {
                instance_type: "m7i.large".into(),
                zone: "us-east-1a".into(),
                capacity_type: CapacityType::Spot,
                reservation: None,
            },
            state: InstanceState::Running,
            launched: Timestamp::UNIX_EPOCH,
            tags: Default::default(),
            node: None,
            facts: None,
        };
        let taint = Taint::new(TAINT_UNREGISTERED, Effect::NoExecute);
        let node = node_object(&instance, Some(instance_type), &Labels::default(), &[taint]);
        assert_eq!(node["spec"]["providerID"], "aws:///us-east-1a/i-1");
        assert_eq!(node["spec"]["taints"][0]["key"], TAINT_UNREGISTERED);
        let labels = &node["metadata"]["labels"];
        assert_eq!(labels["kubernetes.io/arch"], "amd64");
        assert_eq!(labels["karpenter.sh/capacity-type"], "spot");
        assert_eq!(node["status"]["capacity"]["cpu"], "2000m");
    }
}
