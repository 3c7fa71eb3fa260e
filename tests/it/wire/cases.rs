//! The AWS of the tests together with a real control plane.
//! It must not know how either is put together.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;

use super::kubelets::{Kubelets, Sizes};
use super::proxy::{Bench, outcome};
use crate::driven::{POLL, POLLS};
use crate::plane::Plane;
use crate::plane::bench;

async fn nodes(client: &kube::Client) -> Vec<Node> {
    let api: Api<Node> = Api::all(client.clone());
    api.list(&ListParams::default())
        .await
        .expect("nodes list")
        .items
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_register_what_their_user_data_says() {
    let name = "wire::cases::machines_register_what_their_user_data_says";
    let Some(plane) = Plane::start_or_skip(name) else {
        return;
    };
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    let client = bench::client(plane.kubeconfig()).await;
    let machines = Kubelets::start(Arc::clone(&bench.aws), client.clone(), Sizes::new());
    let call = bench.fleet("one", &[("m5.large", 0.1)]);
    let launched = outcome(&call.send().await.expect("a fleet")).0.remove(0).0;
    let mut found = Vec::new();
    for _ in 0..POLLS {
        found = nodes(&client).await;
        if found.iter().any(is_ready) {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    let [node] = found.as_slice() else {
        panic!("no one node: {found:#?}, {:?}", machines.refused());
    };
    assert!(is_ready(node), "{node:#?}");
    let spec = node.spec.as_ref().expect("a spec");
    let provider = spec.provider_id.as_deref().unwrap_or_default();
    assert_eq!(provider, format!("aws:///us-west-2a/{launched}"));
    let taints = spec.taints.iter().flatten();
    assert!(
        taints.into_iter().any(|taint| taint.key == "a"),
        "{node:#?}"
    );
    let labels = node.metadata.labels.as_ref().expect("labels");
    assert_eq!(labels["b"], "c");
    assert_eq!(labels["node.kubernetes.io/instance-type"], "m5.large");
    let room = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let room = room.expect("room");
    assert_eq!((&*room["cpu"].0, &*room["pods"].0), ("1930m", "29"));
    assert_eq!(machines.refused(), [].into());

    // The machine is gone: its Node stays until somebody removes it.
    let ended = bench.ec2.terminate_instances().instance_ids(&launched);
    ended.send().await.expect("it ends");
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(nodes(&client).await.len(), 1);
}
