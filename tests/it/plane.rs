//! Runs a real control plane for a test: its processes, addresses and kubeconfig.

pub(crate) mod fixture;
mod proxy;
pub(crate) mod lifecycle;
mod exec_provider;
mod early_binding;
mod events;
mod oracle;
mod scale_out;
pub(crate) mod audit;
pub(crate) mod term_order;
mod scale_down;
mod sweeps;
mod adoption;
mod dashboards;
pub(crate) mod standby;
mod doctor;
pub(crate) mod rbac;
mod plan;
mod identity;
mod import;
mod karpenter_examples;
mod many_clusters;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::test_script::Driven;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plane/up");

/// The first words of the script's error if the binaries are missing.
const MISSING: &str = "control plane binaries: ";

/// A running control plane; dropping it ends every process and removes its directory.
///
/// The script stops when its stdin closes, so nothing outlives a test process that was killed.
#[derive(Debug)]
pub(crate) struct Plane {
    kubeconfig: PathBuf,
    token: String,
    port: u16,
    dir: PathBuf,
    logs: PathBuf,
    etcd: String,
    script: Mutex<Driven>,
}

impl Plane {
    /// Starts etcd, the API server, its controllers and kwok from the directory
    /// `KUBEBUILDER_ASSETS`, and returns when the API server and the controller manager work.
    /// Further arguments are those of `tests/plane/up --driven`.
    pub(crate) fn start_with(arguments: &[&str]) -> Result<Plane, String> {
        let mut command = Command::new("python3");
        command.args([SCRIPT, "--driven"]).args(arguments);
        let mut script = Driven::start(command, "tests/plane/up")?;
        let facts = script.answer("the start of tests/plane/up")?;
        let text = |name: &str| match facts[name].as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(format!("tests/plane/up did not name its {name}: {facts}")),
        };
        let port = facts["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        Ok(Plane {
            kubeconfig: text("kubeconfig")?.into(),
            token: text("token")?,
            port: port.ok_or_else(|| format!("tests/plane/up named no port: {facts}"))?,
            dir: text("dir")?.into(),
            logs: text("logs")?.into(),
            etcd: text("etcd")?,
            script: Mutex::new(script),
        })
    }

    /// Starts it for a test. Skips the test if the binaries are missing; `tests/all` counts the
    /// skipped tests. A plane that fails to start fails the test.
    pub(crate) fn start_or_skip(test: &str) -> Option<Plane> {
        Plane::start_or_skip_with(test, &[])
    }

    /// Does the same with further arguments.
    pub(crate) fn start_or_skip_with(test: &str, arguments: &[&str]) -> Option<Plane> {
        match Plane::start_with(arguments) {
            Ok(plane) => Some(plane),
            Err(missing) if missing.starts_with(MISSING) => {
                println!("SKIP {test}: {missing}");
                None
            }
            Err(failed) => panic!("{failed}"),
        }
    }

    /// Returns the kubeconfig of an administrator, with the CA of the API server.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the kubeconfig of a daemon. It has exactly the shipped permissions.
    pub(crate) fn daemons(&self) -> PathBuf {
        self.kubeconfig_of("outrigger").expect("a kubeconfig")
    }

    /// Returns a kubeconfig for `127.0.0.1:port`, where a proxy passes TLS through to the API
    /// server.
    pub(crate) fn kubeconfig_for(&self, port: u16) -> Result<PathBuf, String> {
        self.kubeconfig_of(&port.to_string())
    }

    /// Returns the kubeconfig of a user with its own name in the audit log: `outrigger`, `host-a`
    /// and `host-b` are daemons, and `observer` has only read permissions.
    pub(crate) fn kubeconfig_of(&self, user: &str) -> Result<PathBuf, String> {
        let answer = self.ask(&format!("kubeconfig {user}"))?;
        match answer["kubeconfig"].as_str() {
            Some(path) => Ok(path.into()),
            None => Err(format!("tests/plane/up named no kubeconfig: {answer}")),
        }
    }

    /// Returns the API server's port on 127.0.0.1. `stop_api` and `start_api` do not change it.
    pub(crate) fn api_port(&self) -> u16 {
        self.port
    }

    /// Returns the administrator's bearer token.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Returns the address of its etcd, which other planes may use under their own prefixes.
    pub(crate) fn etcd(&self) -> &str {
        &self.etcd
    }

    /// Returns the directory in which each process writes `NAME.log`. It is deleted when the plane
    /// is dropped, unless `OUTRIGGER_PLANE_KEEP` is set.
    pub(crate) fn logs_dir(&self) -> &Path {
        &self.logs
    }

    /// Kills the API server without warning. etcd, the controllers and kwok keep running.
    pub(crate) fn stop_api(&self) -> Result<(), String> {
        self.ask("stop-api").map(drop)
    }

    /// Starts the API server with the same port, certificate and data, and waits until it is ready.
    /// Restarts the controllers and kwok.
    pub(crate) fn start_api(&self) -> Result<(), String> {
        self.ask("start-api").map(drop)
    }

    /// Restarts the API server with another etcd prefix: another cluster responds at the same
    /// address. It is empty the first time.
    pub(crate) fn change_data(&self, prefix: &str) -> Result<(), String> {
        self.ask(&format!("data {prefix}")).map(drop)
    }

    /// Restarts kwok, so that it simulates the kubelets of Nodes that were created before.
    pub(crate) fn restart_kwok(&self) -> Result<(), String> {
        self.ask("restart-kwok").map(drop)
    }

    fn ask(&self, command: &str) -> Result<Value, String> {
        // A test that panicked while it held the lock left no half-written command behind.
        self.script.lock().unwrap_or_else(PoisonError::into_inner).ask(command)
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        let script = self.script.get_mut();
        if !script.unwrap_or_else(PoisonError::into_inner).stop() {
            drop(fs::remove_dir_all(&self.dir));
        }
    }
}

mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::{io, thread};

    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
    use kube::config::{KubeConfigOptions, Kubeconfig};
    use kube::{Client, Config};
    use serde_json::json;

    use super::{Path, Plane};
    use crate::test_script::{POLL, POLLS};

    async fn client(kubeconfig: &Path) -> Client {
        let read = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig reads");
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(read, &options).await;
        Client::try_from(config.expect("the kubeconfig loads")).expect("a client")
    }

    async fn running_pods_become(client: &Client, expect: usize) {
        let api: Api<Pod> = Api::namespaced(client.clone(), "default");
        let mut pods = Vec::new();
        for _ in 0..POLLS {
            let list = api.list(&ListParams::default()).await;
            pods = list.expect("pods list").items;
            let running = pods.iter().filter(|pod| {
                let status = pod.status.as_ref();
                status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
            });
            if running.count() == expect && pods.len() == expect {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("not {expect} running pods: {pods:#?}");
    }

    async fn scale(client: &Client, replicas: u32) {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let patched = deployments.patch("web", &PatchParams::default(), &patch).await;
        patched.expect("the deployment scales");
    }

    async fn create_node_and_deployment(client: &Client) {
        let node = serde_json::from_value(json!({
            "metadata": {"name": "fake", "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "status": {
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            },
        }));
        let nodes: Api<Node> = Api::all(client.clone());
        let created = nodes.create(&PostParams::default(), &node.expect("a node")).await;
        created.expect("the node is created");
        let deployment = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": "web"}]},
                },
            },
        }));
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
        let deployment = deployment.expect("a deployment");
        let created = deployments.create(&PostParams::default(), &deployment).await;
        created.expect("the deployment is created");
    }

    /// Listens on a free port and forwards each connection to the API server.
    fn pass_through(api_port: u16) -> io::Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || -> io::Result<()> {
            for inward in listener.incoming() {
                let (inward, outward) = (inward?, TcpStream::connect(("127.0.0.1", api_port))?);
                let (mut from, mut to) = (inward.try_clone()?, outward.try_clone()?);
                thread::spawn(move || io::copy(&mut from, &mut to));
                let (mut from, mut to) = (outward, inward);
                thread::spawn(move || io::copy(&mut from, &mut to));
            }
            Ok(())
        });
        Ok(port)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn pods_run_on_a_fake_node_and_survive_an_api_restart() {
        let name = "plane::tests::pods_run_on_a_fake_node_and_survive_an_api_restart";
        let Some(plane) = Plane::start_or_skip(name) else {
            return;
        };
        let direct = client(plane.kubeconfig()).await;
        create_node_and_deployment(&direct).await;
        running_pods_become(&direct, 3).await;

        plane.stop_api().expect("the API stops");
        direct.apiserver_version().await.expect_err("a killed API server does not respond");
        plane.start_api().expect("the API starts again");
        running_pods_become(&direct, 3).await;

        let port = pass_through(plane.api_port()).expect("a port to listen on");
        let proxied = plane.kubeconfig_for(port).expect("a kubeconfig for the proxy");
        let proxied = client(&proxied).await;
        scale(&proxied, 1).await;
        running_pods_become(&proxied, 1).await;
        scale(&proxied, 0).await;
        running_pods_become(&proxied, 0).await;

        assert!(plane.logs_dir().join("kube-scheduler.log").exists());
        assert!(!plane.token().is_empty());
        let dir = plane.dir.clone();
        drop(plane);
        assert!(!dir.exists(), "the directory of the plane is not deleted");
    }
}
