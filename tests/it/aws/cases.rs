//! The AWS of the tests together with a real control plane.

mod missing_permissions;
mod identity;
mod two_clusters;
mod registration_backoff;
mod notice_during_outage;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Aws;
use super::kubelets::{Kubelets, Sizes};
use super::proxy::{Bench, outcome};
use crate::binary::outrigger;
use crate::plane::Plane;
use crate::plane::fixture::{self, Process, World, patience};
use crate::test_script::{POLL, POLLS};

/// Error codes that correct calls may get: lookups of names that do not exist yet, and dry runs.
const EXPECTED_ERRORS: [&str; 4] = [
    "DryRunOperation",
    "InvalidLaunchTemplateName.NotFoundException",
    "NoSuchEntity",
    "ParameterNotFound",
];

async fn nodes(client: &kube::Client) -> Vec<Node> {
    let api: Api<Node> = Api::all(client.clone());
    api.list(&ListParams::default()).await.expect("nodes list").items
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
async fn simulated_kubelets_register_the_node_of_their_user_data() {
    let name = "aws::cases::simulated_kubelets_register_the_node_of_their_user_data";
    let Some(plane) = Plane::start_or_skip(name) else {
        return;
    };
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    let client = fixture::client(plane.kubeconfig()).await;
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
        panic!("not exactly one node: {found:#?}, {:?}", machines.refused());
    };
    assert!(is_ready(node), "{node:#?}");
    let spec = node.spec.as_ref().expect("a spec");
    let provider = spec.provider_id.as_deref().unwrap_or_default();
    assert_eq!(provider, format!("aws:///us-west-2a/{launched}"));
    let taints = spec.taints.iter().flatten();
    assert!(taints.into_iter().any(|taint| taint.key == "a"), "{node:#?}");
    let labels = node.metadata.labels.as_ref().expect("labels");
    assert_eq!(labels["b"], "c");
    assert_eq!(labels["node.kubernetes.io/instance-type"], "m5.large");
    let room = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let room = room.expect("allocatable resources");
    assert_eq!((&*room["cpu"].0, &*room["pods"].0), ("1930m", "29"));
    assert_eq!(machines.refused(), [].into());

    // The machine is terminated. Its Node remains until it is deleted.
    let ended = bench.ec2.terminate_instances().instance_ids(&launched);
    ended.send().await.expect("it is terminated");
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(nodes(&client).await.len(), 1);
}

/// Starts a plane and its AWS. The images have the version of the plane, and user data contains the
/// address of the plane. The arguments are those of `tests/plane/up` and of `tests/moto/serve`.
pub(super) async fn ground(
    test: &str,
    of_plane: &[&str],
    arguments: &[&str],
) -> Option<(Plane, kube::Client, Arc<Aws>)> {
    let plane = Plane::start_or_skip_with(test, of_plane)?;
    let api = fixture::client(plane.kubeconfig()).await;
    let version = api.apiserver_version().await.expect("the API answers");
    let version = format!("{}.{}", version.major, version.minor);
    let arguments = [&["--version", &*version][..], arguments].concat();
    let aws = Aws::start_or_skip(test, &arguments)?;
    let text = fs::read_to_string(plane.kubeconfig()).expect("a kubeconfig");
    let config: Value = serde_json::from_str(&text).expect("JSON");
    let home = &config["clusters"][0]["cluster"];
    aws.ask(&json!({
        "do": "cluster",
        "endpoint": home["server"],
        "ca": home["certificate-authority-data"],
    }));
    Some((plane, api, Arc::new(aws)))
}

/// One cluster on EC2: the plane, its AWS, the machines that boot there, and a daemon.
pub(super) struct Ec2 {
    pub(super) api: kube::Client,
    pub(super) aws: Arc<Aws>,
    machines: Kubelets,
    pub(super) dir: TempDir,
    // Dropped in this order.
    daemon: Process,
    plane: Plane,
}

impl Ec2 {
    /// Starts the cluster with a node class by tags and one pool; `more` is HCL of the pool.
    async fn start(test: &str, more: &str) -> Option<Ec2> {
        Self::start_after(test, more, |_| ()).await
    }

    /// Starts the same after a change of the AWS that precedes the start of the daemon.
    pub(super) async fn start_after(
        test: &str,
        more: &str,
        before: impl FnOnce(&Aws),
    ) -> Option<Ec2> {
        let ground = ground(test, &[], &[]).await?;
        let (plane, _, aws) = &ground;
        let text = block(aws, "tests", &plane.daemons()) + &shared(aws, more);
        before(aws);
        Some(Self::start_with(ground, &text, |_| true))
    }

    /// Starts the cluster with this configuration. Only instances that `boots` accepts register a
    /// Node.
    fn start_with(
        (plane, api, aws): (Plane, kube::Client, Arc<Aws>),
        text: &str,
        boots: impl Fn(&Value) -> bool + Send + 'static,
    ) -> Ec2 {
        let dir = TempDir::new().expect("a directory");
        fs::write(dir.path().join("outrigger.hcl"), text).expect("the configuration is written");
        let daemon = spawn_daemon(&aws, dir.path());
        Ec2 {
            machines: Kubelets::start_where(boots, Arc::clone(&aws), api.clone(), Sizes::new()),
            api,
            aws,
            dir,
            daemon,
            plane,
        }
    }

    /// Waits until `wanted` accepts the cluster and the live instances.
    async fn until(
        &self,
        seconds: u64,
        what: &str,
        wanted: impl Fn(&World, &[Value]) -> bool,
    ) -> (World, Vec<Value>) {
        for _ in 0..patience(seconds).as_secs() * 5 {
            let world = World::read(&self.api).await;
            let live = self.live();
            if wanted(&world, &live) {
                return (world, live);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let log = fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_default();
        let told = |line: &&str| !line.contains(" DEBUG ");
        let lines: Vec<&str> = log.lines().filter(told).collect();
        let world = World::read(&self.api).await;
        panic!(
            "{what}: not within {:?}; {} pods, {} bound, {} nodes, {} instances; {:?}; \
             {:#?}\n{}",
            patience(seconds),
            world.pods.len(),
            world.bound(),
            world.nodes.len(),
            self.live().len(),
            self.machines.refused(),
            self.aws.counts(),
            lines[lines.len().saturating_sub(80)..].join("\n")
        )
    }

    /// Kills the daemon and starts it again.
    fn restart_daemon(&mut self) {
        self.daemon.kill();
        self.daemon = spawn_daemon(&self.aws, self.dir.path());
    }

    /// Returns the instances that are pending or running.
    fn live(&self) -> Vec<Value> {
        let mut live = self.aws.instances();
        live.retain(|one| one["state"] == "pending" || one["state"] == "running");
        live
    }

    /// Returns the calls of one action in their order, without dry runs.
    pub(super) fn calls_of(&self, action: &str) -> Vec<Value> {
        let mut calls = self.aws.calls();
        calls.retain(|call| call["call"] == action && call["params"]["DryRun"] != true);
        calls
    }
}

/// Starts a daemon with the configuration in a directory, which also gets its log.
fn spawn_daemon(aws: &Aws, dir: &Path) -> Process {
    let mut command = aws.command(outrigger());
    command.arg("run").arg("--config").arg(dir);
    Process::spawn(command, &dir.join("daemon.log"))
}

/// Returns the `cluster` block of a cluster.
pub(super) fn block(aws: &Aws, name: &str, kubeconfig: &Path) -> String {
    format!(
        r#"
cluster "{name}" {{
  mode   = "manage"
  region = "{region}"
  kubeconfig {{
    path    = "{kubeconfig}"
    context = "plane"
  }}
  eks {{ name = "{cluster}" }}
  interruption {{ queue = "{queue}" }}
}}
"#,
        region = aws.fact("/region"),
        kubeconfig = kubeconfig.display(),
        cluster = aws.fact("/cluster"),
        queue = aws.fact("/queue"),
    )
}

/// Returns the shared part of the configuration: a node class by tags and one pool; `more` is HCL
/// of the pool.
pub(super) fn shared(aws: &Aws, more: &str) -> String {
    format!(
        r#"
outrigger {{ installation = "tests" }}
telemetry {{
  listen = "127.0.0.1:0"
  log {{ format = "text" }}
}}
node_class "default" {{
  instance_profile = "{profile}"
  ami {{ alias = "al2023@latest" }}
  subnet {{ tags = {{ "karpenter.sh/discovery" = "{cluster}" }} }}
  security_group {{ tags = {{ "karpenter.sh/discovery" = "{cluster}" }} }}
  block_device "/dev/xvda" {{
    volume_size = "50Gi"
    volume_type = "gp3"
    encrypted   = true
  }}
  tags = {{ team = "blue" }}
}}
pool "general" {{
  node_class = node_class.default
  labels     = {{ team = "blue" }}
  require "kubernetes.io/arch" {{ in = ["amd64"] }}
  disruption {{
    consolidate_after = "5s"
    budget {{ nodes = "100%" }}
  }}
{more}
}}
"#,
        cluster = aws.fact("/cluster"),
        profile = aws.fact("/instance_profile"),
    )
}

/// Checks the launch template data of an instance as EC2 stores it, because moto drops most of it
/// from the instance.
fn assert_template(aws: &Aws, instance: &Value) {
    let data = &instance["template_data"];
    let interface = &data["NetworkInterfaces"][0];
    let mut groups = interface["Groups"].as_array().cloned().unwrap_or_default();
    groups.sort_by_key(Value::to_string);
    let mut known = [aws.fact("/security_groups/0"), aws.fact("/security_groups/1")];
    known.sort_unstable();
    let device = &data["BlockDeviceMappings"][0];
    // The user data was parsed as MIME and YAML.
    let kubelet = &instance["kubelet"];
    let tags = &instance["tags"];
    for (what, is, wanted) in [
        ("image", &instance["image"], aws.image("al2023/x86_64/standard")),
        ("profile", &data["IamInstanceProfile"]["Name"], aws.fact("/instance_profile")),
        ("device", &device["DeviceName"], "/dev/xvda"),
        ("volume", &device["Ebs"]["VolumeType"], "gp3"),
        ("tokens", &data["MetadataOptions"]["HttpTokens"], "required"),
        ("cluster", &kubelet["cluster"], aws.fact("/cluster")),
        ("label", &kubelet["labels"]["team"], "blue"),
        ("pool", &kubelet["labels"]["karpenter.sh/nodepool"], "general"),
        ("tag", &tags["team"], "blue"),
        ("installation", &tags["outrigger.dev/installation"], "tests"),
        ("owner", &tags["outrigger.dev/cluster"], "tests"),
    ] {
        assert_eq!(is, wanted, "{what} of {instance:#}");
    }
    assert_eq!(json!(groups), json!(known), "groups of {instance:#}");
    assert_eq!(device["Ebs"]["VolumeSize"], 50, "volume of {instance:#}");
    assert_eq!(device["Ebs"]["Encrypted"], true, "volume of {instance:#}");
    let taints = kubelet["taints"].to_string();
    assert!(taints.contains("karpenter.sh/unregistered"), "{instance:#}");
    assert_ne!(tags["outrigger.dev/claim"], tags["outrigger.dev/batch"], "{instance:#}");
}

/// The claim of an instance: its tag, or its batch with its id.
pub(super) fn claim_of(instance: &Value) -> String {
    let tags = &instance["tags"];
    let batch = || format!("{}/{}", tags["outrigger.dev/batch"], instance["id"]);
    tags["outrigger.dev/claim"].as_str().map_or_else(batch, str::to_owned)
}

/// The number of instances that a CreateFleet call requests.
pub(super) fn capacity_of(call: &Value) -> usize {
    let count = &call["params"]["TargetCapacitySpecification"]["TotalTargetCapacity"];
    count.to_string().trim_matches('"').parse().expect("a number")
}

/// Checks that each call has its own token, and that each claim has one instance.
fn assert_launches(ec2: &Ec2) {
    let fleets = ec2.calls_of("ec2:CreateFleet");
    let mut tokens: Vec<_> =
        fleets.iter().map(|call| call["params"]["ClientToken"].to_string()).collect();
    let all = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), all, "a token is used twice: {tokens:?}");
    let made = ec2.aws.instances();
    let wanted: usize = fleets.iter().map(capacity_of).sum();
    assert_eq!(made.len(), wanted, "one instance per launch");
    let mut claims: Vec<_> = made.iter().map(claim_of).collect();
    claims.sort_unstable();
    claims.dedup();
    assert_eq!(claims.len(), made.len(), "a claim has two instances");
}

/// Prints the number of calls and checks that no call failed with an unexpected error.
fn assert_calls(ec2: &Ec2) {
    for (call, count) in ec2.aws.counts() {
        println!("{count:5} {call}");
    }
    for call in ec2.aws.calls() {
        let Some(error) = call["error"].as_str() else {
            continue;
        };
        assert!(EXPECTED_ERRORS.contains(&error), "{call:#}");
    }
}

pub(super) fn spot_warning(instance: &str) -> Value {
    json!({
        "version": "0",
        "id": "1",
        "source": "aws.ec2",
        "account": "123456789012",
        "region": "us-west-2",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "resources": [],
        "detail": {"instance-id": instance, "instance-action": "terminate"},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_nodes_on_ec2() {
    let spot = "  require \"karpenter.sh/capacity-type\" { in = [\"spot\"] }";
    let Some(ec2) = Ec2::start("aws::cases::pods_get_nodes_on_ec2", spot).await else {
        return;
    };
    let pods = 40;
    fixture::deploy(&ec2.api, "web", pods, "900m", "3100Mi").await;
    let (world, live) = ec2.until(120, "all pods bound", |world, _| world.bound() == pods).await;
    println!("{pods} pods on {} nodes", world.nodes.len());
    assert_eq!(world.nodes.len(), live.len(), "one node per instance");
    for instance in &live {
        assert_eq!(instance["capacity_type"], "spot");
        assert_template(&ec2.aws, instance);
    }
    assert_launches(&ec2);
    assert_eq!(ec2.machines.refused(), [].into());

    // A spot interruption is announced: the replacement is launched before the instance is
    // terminated.
    let quiet = |world: &World, _: &[Value]| world.empty_nodes() == 0 && world.bound() == pods;
    let (_, live) = ec2.until(60, "no node without pods", quiet).await;
    let taken = live[0]["id"].as_str().expect("an id").to_owned();
    let before = ec2.calls_of("ec2:CreateFleet").len();
    ec2.aws.send(&spot_warning(&taken));
    let gone = |world: &World, live: &[Value]| {
        let stays = live.iter().any(|one| one["id"] == *taken);
        !stays && world.bound() == pods && world.nodes.len() == live.len()
    };
    ec2.until(120, "the instance is replaced", gone).await;
    let fleets = ec2.calls_of("ec2:CreateFleet");
    assert!(fleets.len() > before, "a replacement is launched");
    let ends = ec2.calls_of("ec2:TerminateInstances");
    let named = |call: &&Value| {
        let ids = call["params"]["InstanceIds"].to_string();
        ids.contains(&taken)
    };
    let end = ends.iter().find(named).expect("it is terminated");
    let launched = fleets[before]["at"].as_f64();
    assert!(launched < end["at"].as_f64(), "launched {launched:?}, {end:#}");
    ec2.aws.until_the_queue_is_empty(30).await;
    assert_launches(&ec2);

    fixture::scale(&ec2.api, "web", 0).await;
    let nothing = |world: &World, live: &[Value]| world.nodes.is_empty() && live.is_empty();
    ec2.until(120, "every instance terminated", nothing).await;
    let (made, ends) = (ec2.aws.instances().len(), ec2.calls_of("ec2:TerminateInstances"));
    println!("{made} instances terminated by {} calls", ends.len());
    assert!(ends.len() <= made, "{ends:#?}");
    assert_calls(&ec2);
}

/// The cheapest type is unavailable: the same call buys the next one. The next request leaves out
/// the unavailable type.
#[tokio::test(flavor = "multi_thread")]
async fn unavailable_type_is_requested_once() {
    let two = "  require \"karpenter.sh/capacity-type\" { in = [\"on-demand\"] }\n  \
               require \"node.kubernetes.io/instance-type\" { in = [\"c5.large\", \"m5.large\"] }";
    let Some(ec2) = Ec2::start("aws::cases::unavailable_type_is_requested_once", two).await else {
        return;
    };
    ec2.aws.outage(&json!({"type": "c5.large"}));
    for (round, name) in ["first", "second"].into_iter().enumerate() {
        fixture::deploy(&ec2.api, name, 1, "1500m", "1Gi").await;
        let bound = |world: &World, _: &[Value]| world.bound() == round + 1;
        let (_, live) = ec2.until(90, "the pod is bound", bound).await;
        assert!(live.iter().all(|one| one["type"] == "m5.large"), "{live:#?}");
    }
    let fleets = ec2.calls_of("ec2:CreateFleet");
    let asked = |call: &Value| {
        let configs = call["params"]["LaunchTemplateConfigs"].to_string();
        ["c5.large", "m5.large"].map(|name| configs.contains(name))
    };
    let asked: Vec<[bool; 2]> = fleets.iter().map(asked).collect();
    assert_eq!(asked, [[true, true], [false, true]], "{fleets:#?}");
}
