//! Common parts of tests on a real control plane: instance types, daemons, workloads, measurements.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use outrigger_bench::catalogs::{linear_price, linear_types};
use outrigger_bench::workloads::deployments::Deployment as Sizes;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Plane;
use crate::binary::{outrigger, run};

/// The log filter of the daemon: the defaults, and the claim of each planned pod.
const LOG: &str =
    "warn,kube_client=off,kube_runtime=off,outrigger=info,outrigger::telemetry::report_log=debug";

/// The program that keeps its cloud in a file, and the file.
const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/reference.py");
const JOURNAL: &str = "cloud.jsonl";

/// The name of a scheduler that does not run. Its pods still get nodes.
const NOBODY: &str = "nobody";

/// Returns the on-demand price of a linear type by its name.
pub(crate) fn price_of(name: &str) -> f64 {
    let (letter, rest) = name.split_once('-').expect("a linear type");
    let cpu = rest.split_once('x').and_then(|(cpu, _)| cpu.parse().ok()).expect("a linear type");
    linear_price(
        cpu,
        match letter {
            "c" => 2,
            "s" => 4,
            _ => 8,
        },
    )
}

/// A directory with a configuration and the linear instance types.
pub(crate) struct Setup {
    dir: TempDir,
}

impl Setup {
    /// Returns a set-up with one pool of on-demand amd64 nodes for these clusters: name,
    /// kubeconfig, and the address of a simulated cloud.
    pub(crate) fn new(clusters: &[(&str, &Path)], cloud: Option<u16>) -> Self {
        Self::with_hints(clusters, cloud, true)
    }

    /// Returns the same, with or without nominated nodes in pods.
    pub(crate) fn with_hints(
        clusters: &[(&str, &Path)],
        cloud: Option<u16>,
        placement_hints: bool,
    ) -> Self {
        let address =
            cloud.map_or(String::new(), |port| format!("    address = \"127.0.0.1:{port}\"\n"));
        Self::made_by(clusters, placement_hints, |types, _| {
            let types = types.display();
            format!("simulated {{\n    catalog = \"{types}\"\n    boot = \"0s\"\n{address}  }}\n")
        })
    }

    /// Returns the same for one cluster with early binding; `pool` is HCL of its pool.
    pub(crate) fn early(kubeconfig: &Path, cloud: u16, pool: &str) -> Self {
        let own = Self::made_by(&[("bench", kubeconfig)], true, |types, _| {
            let types = types.display();
            format!(
                "binding = \"early\"\n  simulated {{\n    catalog = \"{types}\"\n    \
                 address = \"127.0.0.1:{cloud}\"\n  }}\n"
            )
        });
        let file = own.path().join("outrigger.hcl");
        let text = fs::read_to_string(&file).expect("it was written");
        let head = "pool \"general\" {\n";
        let text = text.replace(head, &format!("{head}{pool}"));
        fs::write(file, text).expect("the configuration is written");
        own
    }

    /// Returns the same for one cluster with immediate consolidation, within a budget of nodes.
    pub(crate) fn scaling_down(kubeconfig: &Path, cloud: u16, budget: &str) -> Self {
        let own = Self::new(&[("bench", kubeconfig)], Some(cloud));
        let file = own.path().join("outrigger.hcl");
        let text = fs::read_to_string(&file).expect("it was written");
        let text = text
            .replace("\"empty\"", "\"empty_or_underutilized\"")
            .replace("consolidate_after = \"5s\"", "consolidate_after = \"0s\"")
            .replace("nodes = \"100%\"", &format!("nodes = {budget}"));
        fs::write(file, text).expect("the configuration is written");
        own
    }

    /// Returns the same for one cluster whose instances are launched by the reference program.
    pub(crate) fn with_program(kubeconfig: &Path, more: &[&str]) -> Self {
        Self::made_by(&[("bench", kubeconfig)], true, |types, dir| {
            let journal = dir.join(JOURNAL);
            let text = |path: &Path| path.to_str().expect("a readable path").to_owned();
            let (journal, types, home) = (text(&journal), text(types), text(kubeconfig));
            let command = ["python3", REFERENCE, "--state", &journal, "--catalog", &types];
            let command = json!([&command[..], &["--kubeconfig", &home], more].concat());
            format!("exec {{\n    command = {command}\n    catalog = \"{types}\"\n  }}\n")
        })
    }

    /// Returns clusters with this provider block; it gets the file of types and the directory of
    /// the set-up.
    fn made_by(
        clusters: &[(&str, &Path)],
        placement_hints: bool,
        maker: impl Fn(&Path, &Path) -> String,
    ) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let types = dir.path().join("types.json");
        fs::write(&types, linear_types().to_string()).expect("the types are written");
        let mut text = String::from(concat!(
            "outrigger { installation = \"tests\" }\n",
            "telemetry {\n  listen = \"127.0.0.1:0\"\n  log { format = \"text\" }\n}\n",
        ));
        text += &format!("scheduler {{ schedulers = [\"default-scheduler\", \"{NOBODY}\"] }}\n");
        for (place, (name, kubeconfig)) in clusters.iter().enumerate() {
            // Only the first cluster is watched; the others are polled.
            let api = if place == 0 { "" } else { "  api { poll = \"2s\" }\n" };
            text += &format!(
                concat!(
                    "cluster \"{}\" {{\n  mode = \"manage\"\n  placement_hints = {}\n",
                    "  kubeconfig {{ path = \"{}\" }}\n",
                    "  {}{}}}\n",
                ),
                name,
                placement_hints,
                kubeconfig.display(),
                maker(&types, dir.path()),
                api
            );
        }
        text += concat!(
            "pool \"general\" {\n",
            "  require \"karpenter.sh/capacity-type\" { in = [\"on-demand\"] }\n",
            "  require \"kubernetes.io/arch\" { in = [\"amd64\"] }\n",
            // The test counts launches, so running nodes must not be replaced by cheaper ones.
            "  disruption {\n    consolidation = \"empty\"\n    consolidate_after = \"5s\"\n",
            "    budget { nodes = \"100%\" }\n  }\n",
            "}\n",
        );
        fs::write(dir.path().join("outrigger.hcl"), text).expect("the configuration is written");
        Self { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces a text in the configuration, and reloads the daemon. Returns the output of the
    /// reload.
    pub(crate) fn reload(&self, from: &str, to: &str) -> String {
        let file = self.path().join("outrigger.hcl");
        let text = fs::read_to_string(&file).expect("it was written");
        assert!(text.contains(from), "{from:?} in {text}");
        fs::write(file, text.replace(from, to)).expect("the configuration is written");
        command(self.path(), &["reload", "--wait"]).unwrap_or_else(|why| panic!("{why}"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }

    /// Starts a daemon. It appends to the log of earlier ones.
    pub(crate) fn daemon(&self) -> Process {
        let config = self.path().to_str().expect("a readable path");
        let mut command = Command::new(outrigger());
        command.args(["run", "--config", config]);
        // As in the systemd unit: the next daemon detects that this one has ended.
        command.env("RUNTIME_DIRECTORY", self.path());
        Process::spawn(command, &self.log("daemon"))
    }

    /// Starts a simulated cloud on this port.
    pub(crate) fn cloud(&self, port: u16) -> Process {
        self.cloud_that_boots(port, "0s")
    }

    /// Starts the same with this delay between launch and registration.
    pub(crate) fn cloud_that_boots(&self, port: u16, boot: &str) -> Process {
        let listen = format!("127.0.0.1:{port}");
        let types = self.path().join("types.json");
        let types = types.to_str().expect("a readable path");
        let arguments =
            ["simulated-cloud", "--listen", &listen, "--catalog", types, "--boot", boot];
        Process::start(&arguments, &self.log("cloud"))
    }

    /// Returns the latest state of each instance of the reference program.
    pub(crate) fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path().join(JOURNAL)).unwrap_or_default();
        let lines = text.lines().map(|line| {
            let own: Value = serde_json::from_str(line).expect("the journal is JSON");
            (own["id"].to_string(), own)
        });
        lines.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Returns the log lines of computed plans.
    pub(crate) fn rounds(&self) -> String {
        self.told("INFO computed plan cluster=").join("\n")
    }

    /// Returns the lines of the daemon's log with this text.
    pub(crate) fn told(&self, what: &str) -> Vec<String> {
        let text = fs::read_to_string(self.log("daemon")).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains(what));
        lines.map(str::to_owned).collect()
    }

    /// Returns the address of the last daemon's admin server.
    pub(crate) fn admin(&self) -> String {
        let address = || {
            let line = self.told("/metrics address=\"").pop()?;
            let (_, rest) = line.split_once("address=\"")?;
            Some(rest.split('"').next()?.to_owned())
        };
        address().expect("the daemon logs its address")
    }

    /// Returns the end of the daemons' log.
    pub(crate) fn tail(&self) -> String {
        let text = fs::read_to_string(self.log("daemon")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

/// Returns a free port.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A process of the test, killed and reaped when dropped.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    fn start(arguments: &[&str], log: &Path) -> Self {
        let mut command = Command::new(outrigger());
        command.args(arguments);
        Self::spawn(command, log)
    }

    /// Starts a command; its output is appended to the log.
    pub(crate) fn spawn(mut command: Command, log: &Path) -> Self {
        let log = fs::OpenOptions::new().create(true).append(true).open(log).expect("a log");
        let errors = log.try_clone().expect("a second handle");
        let child = command
            .env("RUST_LOG", LOG)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .expect("the daemon starts");
        Self { child }
    }

    /// Kills it without warning.
    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.id())]).status();
        assert!(sent.expect("a shell").success());
    }

    /// Returns its processor time in seconds, and its peak memory in bytes.
    pub(crate) fn figures(&self) -> (f64, u64) {
        let stat = self.read("stat");
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        // Fields 14 and 15 of the whole line, in ticks of 10 ms.
        let ticks: f64 = fields
            .get(11..13)
            .map_or(0.0, |ticks| ticks.iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum());
        let peak = self.status("VmHWM").unwrap_or(0);
        (ticks / 100.0, peak * 1024)
    }

    /// Returns a number from `/proc/PID/status`, in the kernel's unit.
    pub(crate) fn status(&self, field: &str) -> Option<u64> {
        let status = self.read("status");
        let value = status.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == field).then_some(value)
        });
        value?.split_whitespace().next()?.parse().ok()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.id())).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a client of the plane.
pub(crate) async fn client(kubeconfig: &Path) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig reads");
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("the kubeconfig loads")).expect("a client")
}

/// Creates a Deployment of pods with these requests.
pub(crate) async fn deploy(client: &Client, name: &str, replicas: usize, cpu: &str, memory: &str) {
    create(client, name, replicas, (cpu, memory), json!({})).await;
}

/// Creates a Deployment of these sizes and spread constraints, with this many pods.
pub(crate) async fn deploy_like(client: &Client, sizes: &Sizes, replicas: usize) {
    let selector = json!({"matchLabels": {"app": sizes.name}});
    let spread = |key: &&str| {
        json!({
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": selector,
        })
    };
    let apart = |key: &&str| json!({"topologyKey": key, "labelSelector": selector});
    let required: Vec<Value> = sizes.apart.iter().map(apart).collect();
    let rules = json!({
        "topologySpreadConstraints": sizes.spread.iter().map(spread).collect::<Vec<_>>(),
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
        },
    });
    let (cpu, memory) = (format!("{}m", sizes.cpu_milli), sizes.memory.to_string());
    create(client, &sizes.name, replicas, (&cpu, &memory), rules).await;
}

/// Creates a Deployment of pods with these requests and further fields of the pod's spec.
pub(crate) async fn create(
    client: &Client,
    name: &str,
    replicas: usize,
    (cpu, memory): (&str, &str),
    rules: Value,
) {
    let mut deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": rules,
            },
        },
    });
    let spec = &mut deployment["spec"]["template"]["spec"];
    spec["terminationGracePeriodSeconds"] = json!(1);
    spec["containers"] = json!([{
        "name": "main",
        "image": "main",
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
    }]);
    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let deployment = serde_json::from_value(deployment).expect("a deployment");
    api.create(&PostParams::default(), &deployment).await.expect("the deployment is created");
}

/// Creates a pending pod whose scheduler never binds it.
pub(crate) async fn strand(client: &Client, name: &str) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "schedulerName": NOBODY,
            "containers": [{
                "name": "main",
                "image": "main",
                "resources": {"requests": {"cpu": "900m", "memory": "1Gi"}},
            }],
        },
    });
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = serde_json::from_value(pod).expect("a pod");
    let made = api.create(&PostParams::default(), &pod).await;
    made.expect("the pod is created");
    let why = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    let patch = Patch::Strategic(json!({"status": {"conditions": [why]}}));
    let told = api.patch_status(name, &PatchParams::default(), &patch).await;
    told.expect("the pod is pending");
}

/// Removes a pod.
pub(crate) async fn remove_pod(client: &Client, name: &str) {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let gone = api.delete(name, &DeleteParams::default()).await;
    gone.expect("the pod is deleted");
}

const AUTOSCALING: &str = "autoscaling.x-k8s.io";

/// Returns the schema of a CapacityBuffer's status, as in v1beta1.
fn status_schema() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer", "format": "int64"});
    let condition = json!({
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "message": {"type": "string", "maxLength": 32768},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "reason": {"type": "string", "maxLength": 1024, "minLength": 1,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "type": {"type": "string", "maxLength": 316},
        },
    });
    json!({
        "type": "object",
        "properties": {
            "conditions": {"type": "array", "items": condition,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            "podTemplateGeneration": number,
            "podTemplateRef": {"type": "object", "required": ["name"],
                "properties": {"name": {"type": "string", "minLength": 1}}},
            "provisioningStrategy": text,
            "replicas": {"type": "integer", "format": "int32"},
        },
    })
}

/// Defines CapacityBuffers, and creates one for one pod.
pub(crate) async fn declare_room(client: &Client, name: &str, node_selector: Value) {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "required": ["spec"],
        "properties": {"spec": anything, "status": status_schema()}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("capacitybuffers.{AUTOSCALING}")},
        "spec": {
            "group": AUTOSCALING,
            "scope": "Namespaced",
            "names": {"kind": "CapacityBuffer", "plural": "capacitybuffers"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true,
                "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    call(client, "POST", path, &definition).await.expect("created");
    let requests = json!({"cpu": "900m", "memory": "1Gi"});
    let container = json!({"name": "main", "image": "main", "resources": {"requests": requests}});
    let template = json!({
        "metadata": {"name": name},
        "template": {"spec": {"containers": [container], "nodeSelector": node_selector}},
    });
    let path = "/api/v1/namespaces/default/podtemplates";
    call(client, "POST", path, &template).await.expect("created");
    let buffer = json!({
        "apiVersion": format!("{AUTOSCALING}/v1beta1"),
        "kind": "CapacityBuffer",
        "metadata": {"name": name},
        "spec": {"podTemplateRef": {"name": name}, "replicas": 1},
    });
    // The API serves them after a short delay.
    for _ in 0..10 * patience(10).as_secs() {
        if call(client, "POST", &buffers(), &buffer).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the API does not know CapacityBuffers");
}

/// Waits until the buffer's condition has this reason. Returns the whole status.
pub(crate) async fn until_room_is(client: &Client, name: &str, expect: &str) -> Value {
    let path = format!("{}/{name}", buffers());
    let mut status = Value::Null;
    for _ in 0..10 * patience(60).as_secs() {
        let object = call(client, "GET", &path, &Value::Null).await;
        status = object.expect("the buffer")["status"].take();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let mut conditions = conditions.iter();
        let is_room = |own: &&Value| own["type"] == "Provisioning";
        if conditions.find(is_room).is_some_and(|own| own["reason"] == expect) {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the reason is not {expect}: {status:#}");
}

/// Deletes the buffer.
pub(crate) async fn want_no_room(client: &Client, name: &str) {
    let path = format!("{}/{name}", buffers());
    let gone = call(client, "DELETE", &path, &json!({})).await;
    gone.expect("the buffer is deleted");
}

fn buffers() -> String {
    format!("/apis/{AUTOSCALING}/v1beta1/namespaces/default/capacitybuffers")
}

async fn call(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, kube::Error> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", "application/json")
        .body(body.to_string().into_bytes())
        .expect("a request");
    client.request(request).await
}

/// Sets the number of replicas.
pub(crate) async fn scale(client: &Client, name: &str, replicas: usize) {
    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    api.patch(name, &PatchParams::default(), &patch).await.expect("the deployment scales");
}

/// All pods and nodes in the API.
pub(crate) struct World {
    pub(crate) pods: Vec<Pod>,
    pub(crate) nodes: Vec<Node>,
}

impl World {
    pub(crate) async fn read(client: &Client) -> Self {
        let pods: Api<Pod> = Api::all(client.clone());
        let nodes: Api<Node> = Api::all(client.clone());
        let all = ListParams::default().match_any();
        let pods = pods.list(&all).await.expect("pods list").items;
        Self { pods, nodes: nodes.list(&all).await.expect("nodes list").items }
    }

    pub(crate) fn bound(&self) -> usize {
        let bound = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        self.pods.iter().filter(bound).count()
    }

    pub(crate) fn pods_on(&self, node: &Node) -> usize {
        let name = node.metadata.name.as_ref();
        let on = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == name;
        self.pods.iter().filter(on).count()
    }

    pub(crate) fn empty_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| self.pods_on(node) == 0).count()
    }

    pub(crate) fn tainted_nodes(&self) -> usize {
        let tainted = |node: &&Node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints.is_some_and(|taints| taints.iter().any(|t| t.key.starts_with("karpenter.sh/")))
        };
        self.nodes.iter().filter(tainted).count()
    }

    /// Returns the nominated node of a pod, if any.
    pub(crate) fn told(&self, name: &str) -> Option<&str> {
        let named = |pod: &&Pod| pod.metadata.name.as_deref() == Some(name);
        let pod = self.pods.iter().find(named).expect("the pod exists");
        pod.status.as_ref()?.nominated_node_name.as_deref()
    }

    /// Returns the cost of all nodes in US dollars per hour.
    pub(crate) fn cost(&self) -> f64 {
        let label = "node.kubernetes.io/instance-type";
        let of = |node: &Node| node.metadata.labels.as_ref()?.get(label).map(|n| price_of(n));
        self.nodes.iter().filter_map(of).sum()
    }
}

/// Waits until the daemon's log reports `count` clusters as ready, counting all starts of the
/// daemon. A cluster is ready after two listings of its instances, five seconds apart, agree.
pub(crate) async fn until_ready(setup: &Setup, count: usize) {
    for _ in 0..10 * patience(60).as_secs() {
        if setup.told("cluster ready, starting decisions").len() >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not ready within {:?}\n{}", patience(60), setup.tail());
}

/// Returns the time limit for an action that takes up to `seconds` on a quiet machine. A busy one
/// may take several times as long; a campaign has a quiet one, and asserts times.
pub(crate) fn patience(seconds: u64) -> Duration {
    Duration::from_secs(if is_campaign() { seconds } else { 4 * seconds })
}

/// Waits until `wanted` accepts the world, at most for the [`patience`] of these seconds.
pub(crate) async fn until(
    client: &Client,
    setup: &Setup,
    seconds: u64,
    what: &str,
    wanted: impl Fn(&World) -> bool,
) -> World {
    if let Some(world) = within(client, patience(seconds).as_secs(), wanted).await {
        return world;
    }
    let world = World::read(client).await;
    panic!(
        "{what}: not within {:?}; {} pods, {} bound, {} nodes, {} empty, {} tainted\n{}",
        patience(seconds),
        world.pods.len(),
        world.bound(),
        world.nodes.len(),
        world.empty_nodes(),
        world.tainted_nodes(),
        setup.tail()
    )
}

/// Waits until `wanted` accepts the world. Returns `None` after these seconds.
pub(crate) async fn within(
    client: &Client,
    seconds: u64,
    wanted: impl Fn(&World) -> bool,
) -> Option<World> {
    let begun = clock();
    loop {
        let world = World::read(client).await;
        if wanted(&world) {
            return Some(world);
        }
        if begun.elapsed().as_secs() >= seconds {
            return None;
        }
        tokio::time::sleep(pause()).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "a test times what it watches")]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

/// Runs a command on the daemon whose socket is in this directory. Returns its output. Fails with
/// its output and its error message.
pub(crate) fn command(directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let socket = directory.join("admin.sock");
    let socket = socket.to_str().expect("a readable path");
    let done = run(&[arguments, &["--socket", socket]].concat(), "");
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(printed) } else { Err(printed + &errors) }
}

/// The result of `outrigger sweep`: the number of nodes that are disrupted, blocked and observed,
/// and the pool and outcome of each node, sorted.
pub(crate) struct Swept {
    pub(crate) counts: [u64; 3],
    pub(crate) nodes: Vec<(String, String)>,
}

/// Runs `outrigger sweep`, and checks that its counts are those of its nodes. Fails with the error
/// message.
pub(crate) fn sweep(directory: &Path, arguments: &[&str]) -> Result<Swept, String> {
    let result = command(directory, &[&["sweep", "--json"], arguments].concat())?;
    let result: Value = serde_json::from_str(&result).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let nodes = result["nodes"].as_array().expect("a list").iter();
    let mut nodes: Vec<(String, String)> =
        nodes.map(|node| (text(&node["pool"]), text(&node["outcome"]))).collect();
    nodes.sort_unstable();
    let counts = ["disrupted", "blocked", "observed"].map(|outcome| {
        let count = nodes.iter().filter(|node| node.1 == outcome).count() as u64;
        assert_eq!(result[outcome], count, "{result}");
        count
    });
    assert_eq!((&result["found"], counts.iter().sum()), (&json!(nodes.len()), nodes.len() as u64));
    Ok(Swept { counts, nodes })
}

/// Returns the time of day, which a real API server writes to its objects and audit log.
#[expect(clippy::disallowed_methods, reason = "a real API server has the time of day")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// The pause between two polls of the API. Tests that run side by side poll less often, since polls
/// are most of the load on their API servers. A campaign measures times, and polls more often.
fn pause() -> Duration {
    Duration::from_millis(if is_campaign() { 100 } else { 300 })
}

/// Waits until this many pods are bound. It reads only their metadata, so that the test puts little
/// load on the two cores that it measures.
pub(crate) async fn until_bound(client: &Client, setup: &Setup, seconds: u64, pods: usize) {
    let api: Api<Pod> = Api::all(client.clone());
    let bound = ListParams::default().match_any().fields("spec.nodeName!=");
    let begun = clock();
    while begun.elapsed() < patience(seconds) {
        let there = api.list_metadata(&bound).await.expect("pods list");
        if there.items.len() >= pods {
            return;
        }
        tokio::time::sleep(pause()).await;
    }
    // Fails with the actual state.
    until(client, setup, 0, "all pods bound", |world| world.bound() == pods).await;
}

/// Whether this run is a campaign: the full sizes, with figures on stdout.
#[expect(clippy::disallowed_methods, reason = "a test reads how it is asked to run")]
pub(crate) fn is_campaign() -> bool {
    std::env::var("OUTRIGGER_CAMPAIGN").is_ok_and(|value| !value.is_empty())
}

/// Returns the seed for the random times of campaigns: `OUTRIGGER_SEED`, or 0.
#[expect(clippy::disallowed_methods, reason = "a test reads how it is asked to run")]
pub(crate) fn seed() -> u64 {
    let text = std::env::var("OUTRIGGER_SEED").unwrap_or_default();
    text.parse().unwrap_or(0)
}

/// Returns the numbers of the runs selected by a variable: `17` or `100..200`.
#[expect(clippy::disallowed_methods, reason = "a test reads how it is asked to run")]
pub(crate) fn chosen(variable: &str) -> Option<Range<u64>> {
    let text = std::env::var(variable).ok()?;
    let number = |text: &str| text.parse::<u64>().expect("a number");
    Some(match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&text)..number(&text) + 1,
    })
}

/// Starts a plane. Prints a skip line if that is not possible.
pub(crate) fn plane(test: &str) -> Option<Plane> {
    Plane::start_or_skip(test)
}

/// Returns the instances that the simulated cloud lists for audits.
pub(crate) async fn instances(port: u16) -> Vec<Value> {
    let body = tokio::task::spawn_blocking(move || get(port, "/v1/instances"));
    let body = body.await.expect("the request was made").expect("the cloud answers");
    let value: Value = serde_json::from_str(&body).expect("the cloud answers in JSON");
    let list = value.get("instances").unwrap_or(&value);
    list.as_array().expect("a list of instances").clone()
}

/// Terminates an instance without the daemon.
pub(crate) async fn end_instance(port: u16, id: &str) {
    let body = json!({"instance": id, "installation": "tests", "cluster": "bench"});
    let call = move || request(port, "POST", "/v1/terminate", &body.to_string());
    let answer = tokio::task::spawn_blocking(call).await;
    let answer = answer.expect("the request was made");
    let answer = answer.expect("the cloud answers");
    assert!(answer.contains("terminat") || answer.contains("shutting"), "{answer}");
}

fn get(port: u16, path: &str) -> std::io::Result<String> {
    request(port, "GET", path, "")
}

fn request(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}
