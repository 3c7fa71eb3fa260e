//! Pods that are bound to EC2 nodes before the instances boot.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Aws;
use super::cases::{block, shared};
use super::kubelets::{Kubelets, Sizes};
use crate::binary::outrigger;
use crate::plane::Plane;
use crate::plane::fixture::{self, Process, World, patience};

/// Waits until `wanted` accepts the cluster.
async fn until(
    api: &kube::Client,
    (seconds, what, dir): (u64, &str, &TempDir),
    wanted: impl Fn(&World) -> bool,
) -> World {
    for _ in 0..patience(seconds).as_secs() * 5 {
        let world = World::read(api).await;
        if wanted(&world) {
            return world;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let log = fs::read_to_string(dir.path().join("daemon.log")).unwrap_or_default();
    let told = |line: &&str| !line.contains(" DEBUG ");
    let lines: Vec<&str> = log.lines().filter(told).collect();
    let last = lines[lines.len().saturating_sub(60)..].join("\n");
    let world = World::read(api).await;
    let (pods, bound, nodes) = (world.pods.len(), world.bound(), world.nodes.len());
    panic!("{what}: not in time; {pods} pods, {bound} bound, {nodes} nodes\n{last}")
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_bound_early_to_the_node_name_from_ec2() {
    let name = "aws::early_binding::pods_are_bound_early_to_the_node_name_from_ec2";
    let Some(plane) = Plane::start_or_skip(name) else {
        return;
    };
    let api = fixture::client(plane.kubeconfig()).await;
    let version = api.apiserver_version().await.expect("the API answers");
    let version = format!("{}.{}", version.major, version.minor);
    let Some(aws) = Aws::start_or_skip(name, &["--version", &version]) else {
        return;
    };
    let aws = Arc::new(aws);
    let text = fs::read_to_string(plane.kubeconfig()).expect("a kubeconfig");
    let config: Value = serde_json::from_str(&text).expect("JSON");
    let home = &config["clusters"][0]["cluster"];
    let (endpoint, ca) = (&home["server"], &home["certificate-authority-data"]);
    aws.ask(&json!({"do": "cluster", "endpoint": endpoint, "ca": ca}));
    let dir = TempDir::new().expect("a directory");
    let mode = "mode   = \"manage\"";
    let text = block(&aws, "tests", &plane.daemons()) + &shared(&aws, "");
    let text = text.replace(mode, &format!("{mode}\n  binding = \"early\""));
    fs::write(dir.path().join("outrigger.hcl"), text).expect("the configuration is written");
    let mut command = aws.command(outrigger());
    command.arg("run").arg("--config").arg(dir.path());
    let _daemon = Process::spawn(command, &dir.path().join("daemon.log"));

    let pods = 20;
    fixture::deploy(&api, "web", pods, "900m", "3100Mi").await;
    let bound = |world: &World| world.bound() == pods;
    let world = until(&api, (120, "all pods bound", &dir), bound).await;
    let instances = aws.instances();
    let mut names: Vec<&str> =
        instances.iter().filter_map(|one| one["private_dns_name"].as_str()).collect();
    names.sort_unstable();
    let nodes = world.nodes.iter();
    let nodes: Vec<&str> = nodes.filter_map(|own| own.metadata.name.as_deref()).collect();
    assert_eq!(nodes, names, "each node has its name from EC2");
    let log = fs::read_to_string(dir.path().join("daemon.log")).unwrap_or_default();
    for line in log.lines().filter(|line| line.contains("bound pods early")) {
        println!("{line}");
    }

    // The machines boot only now.
    let machines = Kubelets::start(Arc::clone(&aws), api.clone(), Sizes::new());
    let well = |world: &World| world.tainted_nodes() == 0 && world.nodes.len() == nodes.len();
    let world = until(&api, (60, "all nodes are registered", &dir), well).await;
    plane.restart_kwok().expect("kwok starts");
    assert_eq!((world.bound(), machines.refused()), (pods, [].into()));
    fixture::scale(&api, "web", 0).await;
    let gone = |world: &World| world.nodes.is_empty();
    until(&api, (120, "every node gone", &dir), gone).await;
}
