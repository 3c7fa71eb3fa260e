//! One of several daemons on one control plane and one AWS: its pods, nodes, instances and faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::Aws;
use crate::binary::outrigger;
use crate::plane::fixture::{self, Process};
use crate::test_script::POLLS;

/// The interval between two checks of the cluster.
const LOOK: Duration = Duration::from_millis(500);
/// The interval between two checks for held calls, and their number: 150 s for an expected 10 s.
const HELD: Duration = Duration::from_millis(50);
const HELD_LOOKS: usize = 3000;
/// After this many checks without a new call, no more calls are expected.
const STILL: usize = 60;
/// The type has two cores, so a pod fills a node.
const CPU: &str = "1500m";
pub(super) const TYPE: &str = "m5.large";

/// Held calls by number, each with its subject. After a timeout of the SDK, a repeated call has
/// another number.
pub(super) type Held = BTreeMap<u64, String>;

/// Returns the number of distinct subjects.
pub(super) fn distinct(held: &Held) -> usize {
    held.values().collect::<BTreeSet<_>>().len()
}

/// The resources that all lanes share.
pub(super) struct Site {
    pub(super) aws: Arc<Aws>,
    pub(super) api: kube::Client,
    pub(super) kubeconfig: PathBuf,
}

/// One daemon with its own installation, cluster name, label and access key.
pub(super) struct Lane {
    site: Arc<Site>,
    pub(super) name: String,
    dir: TempDir,
    daemon: Option<Process>,
    /// The number of groups of pods so far.
    made: usize,
    /// The current groups with their sizes.
    groups: Vec<(String, usize)>,
    /// Numbers of held calls that the test has already processed.
    seen: BTreeSet<u64>,
}

impl Lane {
    pub(super) fn new(site: Arc<Site>, number: usize) -> Self {
        let name = format!("lane-{number}");
        let dir = TempDir::new().expect("a directory");
        let text = configuration(&site, &name);
        fs::write(dir.path().join("outrigger.hcl"), text).expect("the configuration is written");
        Self { site, name, dir, daemon: None, made: 0, groups: Vec::new(), seen: BTreeSet::new() }
    }

    pub(super) fn start(&mut self) {
        let mut command = self.site.aws.command(outrigger());
        command.env("AWS_ACCESS_KEY_ID", &self.name);
        // As in the systemd unit: the next daemon detects that this one has ended.
        command.env("RUNTIME_DIRECTORY", self.dir.path());
        command.arg("run").arg("--config").arg(self.dir.path());
        self.daemon = Some(Process::spawn(command, &self.dir.path().join("daemon.log")));
    }

    pub(super) fn kill(&mut self) {
        self.daemon = None;
    }

    /// Creates pods, each of which fills a node. They need a new launch template, because a label
    /// is in its user data.
    pub(super) async fn deploy(&mut self, pods: usize) {
        self.made += 1;
        let name = format!("{}-{}", self.name, self.made);
        let label = format!("tests.dev/{}", self.name);
        let rules = json!({"nodeSelector": {label: self.made.to_string()}});
        fixture::create(&self.site.api, &name, pods, (CPU, "1Gi"), rules).await;
        self.groups.push((name, pods));
    }

    /// Returns the number of pods that should run.
    pub(super) fn pods(&self) -> usize {
        self.groups.iter().map(|(_, pods)| pods).sum()
    }

    /// Removes all pods, so that all nodes are removed.
    pub(super) async fn empty(&mut self) {
        for (name, _) in std::mem::take(&mut self.groups) {
            fixture::scale(&self.site.api, &name, 0).await;
        }
    }

    /// Injects a fault into the next calls of this daemon, as [`Aws::fault`] does.
    pub(super) fn fault(&self, action: &str, kind: &str, how: &Value) {
        let mut how = how.clone();
        how["key"] = json!(self.name);
        self.site.aws.fault(action, kind, &how);
    }

    /// Removes the faults of this daemon. Held calls remain held.
    pub(super) fn well(&self) {
        let clear = json!({"do": "clear", "key": self.name});
        self.site.aws.ask(&clear);
    }

    /// Waits for this many held calls of an action, or until no more arrive.
    pub(super) async fn held(&mut self, action: &str, wanted: usize) -> Held {
        let (mut held, mut still) = (Held::new(), 0);
        for _ in 0..HELD_LOOKS {
            let now = self.holding(Some(action));
            still = if now.len() == held.len() { still + 1 } else { 0 };
            held = now;
            if distinct(&held) >= wanted || (!held.is_empty() && still > STILL) {
                self.seen.extend(held.keys());
                return held;
            }
            sleep(HELD).await;
        }
        panic!("{action}: no call is made\n{}", self.tail())
    }

    fn holding(&self, action: Option<&str>) -> Held {
        let answer = self.site.aws.ask(&json!({"do": "held", "key": self.name}));
        let calls = answer["calls"].as_array().into_iter().flatten();
        let own = calls.filter(|call| action.is_none_or(|action| call["call"] == action));
        let rows = own.filter_map(|call| Some((call["number"].as_u64()?, call["of"].to_string())));
        rows.filter(|(number, _)| !self.seen.contains(number)).collect()
    }

    /// Releases held calls, and waits until their responses are delivered.
    pub(super) async fn deliver(&self, held: &Held) {
        release(&self.site.aws, held, false);
        for _ in 0..POLLS {
            let answer = self.site.aws.ask(&json!({"do": "held"}));
            let leaving = answer["leaving"].as_array().into_iter().flatten();
            let mut leaving = leaving.filter_map(Value::as_u64);
            if !leaving.any(|it| held.contains_key(&it)) {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
        panic!("the responses are not delivered");
    }

    /// Drops held calls.
    pub(super) fn lose(&self, held: &Held) {
        release(&self.site.aws, held, true);
    }

    /// Drops the calls that were held later.
    pub(super) fn lose_rest(&mut self) {
        let rest = self.holding(None);
        self.lose(&rest);
        self.seen.extend(rest.keys());
    }

    /// Waits until every pod runs on its own node, and nothing else exists.
    pub(super) async fn settled(&self, seconds: u64) {
        let mut why = String::new();
        for _ in 0..seconds * 2 {
            match self.unsettled().await {
                None => return,
                Some(other) => why = other,
            }
            sleep(LOOK).await;
        }
        panic!("{}: not settled within {seconds} s: {why}\n{}", self.name, self.tail())
    }

    /// Returns a difference from the expected state, if any.
    async fn unsettled(&self) -> Option<String> {
        let wanted = self.pods();
        let names: Vec<&str> = self.groups.iter().map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            let own = ListParams::default().labels(&format!("app in ({})", names.join(",")));
            let api: Api<Pod> = Api::namespaced(self.site.api.clone(), "default");
            let pods = api.list(&own).await.expect("pods list").items;
            let is_bound = |pod: &&Pod| pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
            let bound = pods.iter().filter(is_bound).count();
            if (pods.len(), bound) != (wanted, wanted) {
                return Some(format!("{bound} of {wanted} pods are bound"));
            }
        }
        let own = ListParams::default().labels(&format!("tests.dev/{}", self.name));
        let api: Api<Node> = Api::all(self.site.api.clone());
        let nodes = api.list(&own).await.expect("nodes list").items;
        let specs = nodes.iter().filter_map(|node| node.spec.as_ref());
        let on: BTreeSet<&str> = specs
            .clone()
            .filter_map(|spec| spec.provider_id.as_deref()?.rsplit('/').next())
            .collect();
        let live = self.live();
        let live: BTreeSet<&str> = live.iter().map(String::as_str).collect();
        if on != live || nodes.len() != live.len() {
            return Some(format!("nodes are {on:?}, instances {live:?}"));
        }
        if live.len() != wanted {
            return Some(format!("{} instances for {wanted} pods", live.len()));
        }
        let mut taints = specs.flat_map(|spec| spec.taints.iter().flatten());
        let taint = taints.find(|taint| taint.key.starts_with("karpenter.sh/"));
        taint.map(|taint| format!("a node is tainted: {}", taint.key))
    }

    /// Returns its instances that are pending or running.
    fn live(&self) -> Vec<String> {
        let mut all = self.site.aws.roll(Some(&self.name));
        all.retain(|one| one["state"] == "pending" || one["state"] == "running");
        let ids = all.iter().filter_map(|one| one["id"].as_str());
        ids.map(str::to_owned).collect()
    }

    /// Returns the log of all its daemons.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_default()
    }

    fn tail(&self) -> String {
        let log = self.log();
        // Messages about pods of other lanes are left out.
        let told =
            |line: &&str| !line.contains(" DEBUG ") && !line.contains(" cannot schedule pod ");
        let lines: Vec<&str> = log.lines().filter(told).collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

/// Releases or drops held calls.
pub(super) fn release(aws: &Aws, held: &Held, lost: bool) {
    let numbers: Vec<u64> = held.keys().copied().collect();
    aws.ask(&json!({"do": "release", "numbers": numbers, "lost": lost}));
}

/// Returns the configuration of a lane. Dry runs are disabled, so that each held call is a real
/// one. All lanes are in one API server, each with its own Lease.
fn configuration(site: &Site, name: &str) -> String {
    format!(
        r#"
outrigger {{ installation = "{name}" }}
telemetry {{
  listen = "127.0.0.1:0"
  log {{ format = "text" }}
}}
cluster "{name}" {{
  mode   = "manage"
  region = "{region}"
  kubeconfig {{ path = "{kubeconfig}" }}
  eks {{ name = "{cluster}" }}
  leader_election {{ lease = "kube-system/{name}" }}
  disable_dry_run = true
}}
node_class "default" {{
  instance_profile = "{profile}"
  ami {{ alias = "al2023@latest" }}
  subnet {{ tags = {{ "karpenter.sh/discovery" = "{cluster}" }} }}
  security_group {{ tags = {{ "karpenter.sh/discovery" = "{cluster}" }} }}
}}
pool "general" {{
  node_class = node_class.default
  require "node.kubernetes.io/instance-type" {{ in = ["{TYPE}"] }}
  require "tests.dev/{name}" {{ exists = true }}
  disruption {{
    consolidate_after = "0s"
    budget {{ nodes = "100%" }}
  }}
}}
"#,
        region = site.aws.fact("/region"),
        kubeconfig = site.kubeconfig.display(),
        cluster = site.aws.fact("/cluster"),
        profile = site.aws.fact("/instance_profile"),
    )
}
