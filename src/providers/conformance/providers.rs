//! The providers that the conformance checks run on.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use kube::Client;
use kube::config::Config;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::checks::{Subject, check};
use crate::catalog::{self, Catalog};
use crate::model::cluster::{Cluster, Exec, Kubeconfig};
use crate::model::instance::{CapacityType, OfferingKey};
use crate::providers::exec::ExecProvider;
use crate::providers::interface::Provider;
use crate::providers::simulated::remote::Remote;
use crate::providers::simulated::server::{listen, serve};
use crate::providers::simulated::{CloudHandle, InProcess};
use crate::sim::cloud::CloudSettings;

/// The script in `docs/PROVIDERS.md`.
const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/reference.py");

/// Instance types as JSON.
fn types() -> Value {
    let offerings = ["a", "b", "c"].map(|zone| {
        let requirements =
            [("karpenter.sh/capacity-type", "on-demand"), ("topology.kubernetes.io/zone", zone)]
                .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}));
        json!({"Price": 0.1, "Requirements": requirements})
    });
    json!([{
        "name": "small", "architecture": "amd64", "operatingSystems": ["linux"],
        "resources": {"cpu": "2", "memory": "4Gi"}, "offerings": offerings,
    }])
}

fn key(instance_type: &str, zone: &str) -> OfferingKey {
    OfferingKey {
        instance_type: instance_type.into(),
        zone: zone.into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
    }
}

pub(super) fn subject(open: &(dyn Fn(&str, &str) -> Arc<dyn Provider> + Sync)) -> Subject<'_> {
    Subject {
        open,
        sold: [key("small", "a"), key("small", "b")],
        sold_out: key("small", "c"),
        unknown: key("large", "a"),
        unknown_instance: "i-0123456789abcdef0".into(),
        node_class_hash: "v1:2".to_owned(),
        lag: Duration::from_millis(300),
        guards_terminations: true,
    }
}

fn read_types() -> Catalog {
    catalog::parse("types.json", &types().to_string()).expect("they read")
}

/// A simulated cloud without one of the offerings, and without boot time.
pub(super) fn simulated() -> CloudHandle {
    let settings = CloudSettings {
        boot: SignedDuration::from_hours(1),
        capacity: [(key("small", "c"), 0)].into(),
        ..CloudSettings::default()
    };
    CloudHandle::start_with(Arc::new(read_types()), settings)
}

/// An API endpoint without a server.
pub(super) fn nowhere() -> Client {
    let config = Config::new("http://127.0.0.1:1".parse().expect("an address"));
    Client::try_from(config).expect("a client")
}

#[tokio::test]
async fn the_simulated_provider_conforms() {
    let (cloud, home) = (simulated(), nowhere());
    check(&subject(&|installation: &str, cluster: &str| -> Arc<dyn Provider> {
        Arc::new(InProcess {
            cloud: cloud.clone(),
            installation: installation.to_owned(),
            cluster: cluster.into(),
            home: home.clone(),
        })
    }))
    .await;
}

#[tokio::test]
async fn the_simulated_provider_of_another_process_conforms() {
    let dir = TempDir::new().expect("a directory");
    let home = Kubeconfig { path: dir.path().join("kubeconfig"), context: None };
    let text = "{apiVersion: v1, kind: Config, current-context: a, \
                clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], \
                contexts: [{name: a, context: {cluster: a, user: a}}], \
                users: [{name: a, user: {}}]}";
    fs::write(&home.path, text).expect("written");
    let loopback = "127.0.0.1:0".parse().expect("an address");
    let listener = listen(loopback).await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let serving = tokio::spawn(serve(listener, simulated(), std::future::pending()));
    check(&subject(&|installation: &str, cluster: &str| -> Arc<dyn Provider> {
        let (cluster, home) = (cluster.into(), home.clone());
        Arc::new(Remote::new(&address, installation, &cluster, home))
    }))
    .await;
    serving.abort();
}

/// The reference program with the cloud in this directory and additional arguments.
pub(crate) fn reference(dir: &Path, more: &[&str]) -> Exec {
    let catalog = dir.join("types.json");
    if !catalog.exists() {
        fs::write(&catalog, types().to_string()).expect("written");
    }
    let journal = dir.join("cloud.jsonl");
    let [journal, catalog] = [journal, catalog].map(|path| path.display().to_string());
    let given = ["python3", REFERENCE, "--state", &journal, "--catalog"];
    let mut command: Vec<String> = given.into_iter().map(str::to_owned).collect();
    command.push(catalog);
    command.extend(["--sold-out", "small/c/on-demand"].map(str::to_owned));
    command.extend(more.iter().map(|it| (*it).to_owned()));
    Exec { command, ..Exec::default() }
}

#[tokio::test]
async fn the_reference_program_conforms() {
    let dir = TempDir::new().expect("a directory");
    let exec = reference(dir.path(), &[]);
    check(&subject(&|installation: &str, cluster: &str| -> Arc<dyn Provider> {
        let cluster = Cluster {
            installation: installation.to_owned(),
            name: cluster.into(),
            ..Cluster::default()
        };
        Arc::new(ExecProvider::new(&exec, &cluster))
    }))
    .await;
}
