//! Two clusters of one account and region in one daemon: an offering that is unavailable to one is
//! not requested by the other. `engine::two_clusters` checks in virtual time that both request it
//! again after the back-off.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{block, ground, shared};
use crate::aws::Aws;
use crate::aws::kubelets::{Kubelets, Sizes};
use crate::binary::outrigger;
use crate::plane::Plane;
use crate::plane::fixture::{self, Process, World, patience};

const NAMES: [&str; 2] = ["east", "west"];

/// Returns the CreateFleet calls of a cluster without dry runs. For each: whether the request has
/// the unavailable type, and whether it has the other type.
fn asked(aws: &Aws, cluster: &str) -> Vec<[bool; 2]> {
    let tag = json!({"Key": "outrigger.dev/cluster", "Value": cluster}).to_string();
    let mut calls = aws.calls();
    calls.retain(|call| {
        let tags = call["params"]["TagSpecifications"].to_string();
        let tried = call["params"]["DryRun"] == true;
        call["call"] == "ec2:CreateFleet" && !tried && tags.contains(&tag)
    });
    let named = |call: &Value| {
        let configs = call["params"]["LaunchTemplateConfigs"].to_string();
        ["c5.large", "m5.large"].map(|name| configs.contains(name))
    };
    calls.iter().map(named).collect()
}

async fn until_bound(client: &Client, aws: &Aws, dir: &Path, pods: usize) {
    for _ in 0..5 * patience(90).as_secs() {
        if World::read(client).await.bound() == pods {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let log = fs::read_to_string(dir.join("daemon.log")).unwrap_or_default();
    let told: Vec<&str> = log.lines().filter(|it| !it.contains(" DEBUG ")).collect();
    let last = told[told.len().saturating_sub(60)..].join("\n");
    panic!("{pods} pods are not bound: {:?}\n{last}", aws.counts());
}

#[tokio::test(flavor = "multi_thread")]
async fn offering_unavailable_to_one_cluster_is_skipped_by_others() {
    let test = "aws::cases::two_clusters::offering_unavailable_to_one_cluster_is_skipped_by_others";
    let Some((plane, client, aws)) = ground(test, &[], &[]).await else {
        return;
    };
    let other = Plane::start_or_skip(test).expect("a second plane starts");
    let clients = [client, fixture::client(other.kubeconfig()).await];
    let planes = [plane, other];
    let two = "  require \"karpenter.sh/capacity-type\" { in = [\"on-demand\"] }\n  \
               require \"node.kubernetes.io/instance-type\" { in = [\"c5.large\", \"m5.large\"] }";
    let blocks = NAMES.iter().zip(&planes);
    let blocks = blocks.map(|(name, plane)| block(&aws, name, plane.kubeconfig()));
    let text = format!("{}{}", blocks.collect::<String>(), shared(&aws, two));
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("outrigger.hcl"), text).expect("the configuration is written");
    aws.outage(&json!({"type": "c5.large"}));
    let machines = NAMES.iter().zip(&clients).map(|(name, client)| {
        let is_own = move |own: &Value| own["tags"]["outrigger.dev/cluster"] == **name;
        Kubelets::start_where(is_own, Arc::clone(&aws), client.clone(), Sizes::new())
    });
    let _machines: Vec<Kubelets> = machines.collect();
    let mut command = aws.command(outrigger());
    command.arg("run").arg("--config").arg(dir.path());
    let _daemon = Process::spawn(command, &dir.path().join("daemon.log"));

    // The first request contains the unavailable type and gets the other type.
    for (round, (name, client)) in NAMES.iter().zip(&clients).enumerate() {
        fixture::deploy(client, "web", 1, "1500m", "1Gi").await;
        until_bound(client, &aws, dir.path(), 1).await;
        assert_eq!(asked(&aws, name), [[round == 0, true]], "{name}");
    }
    // Later requests of both clusters leave out the unavailable type.
    for (name, client) in NAMES.iter().zip(&clients) {
        fixture::deploy(client, "more", 1, "1500m", "1Gi").await;
        until_bound(client, &aws, dir.path(), 2).await;
        assert_eq!(asked(&aws, name)[1..], [[false, true]], "{name}");
    }
    assert!(aws.instances().iter().all(|own| own["type"] == "m5.large"));
}
