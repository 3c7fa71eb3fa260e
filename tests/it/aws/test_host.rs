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

/// How often it is looked whether all is as it should be.
const LOOK: Duration = Duration::from_millis(500);
/// How often it is looked which calls are held, and for how long: 150 s, for what takes 10 s.
const HELD: Duration = Duration::from_millis(50);
const HELD_LOOKS: usize = 3000;
/// A number of calls that has not grown for so many looks is all there will be.
const STILL: usize = 60;
/// Of a type that has two: a pod fills a node.
const CPU: &str = "1500m";
pub(super) const TYPE: &str = "m5.large";

/// Calls that are held: their numbers, each with what it is about. One that took an SDK too long
/// is there again with another number.
pub(super) type Held = BTreeMap<u64, String>;

/// How many things these calls are about.
pub(super) fn distinct(held: &Held) -> usize {
    held.values().collect::<BTreeSet<_>>().len()
}

/// What all of them share.
pub(super) struct Site {
    pub(super) aws: Arc<Aws>,
    pub(super) api: kube::Client,
    pub(super) kubeconfig: PathBuf,
}

/// One daemon with an installation, a cluster's name, a label and an access key of its own.
pub(super) struct Lane {
    site: Arc<Site>,
    pub(super) name: String,
    dir: TempDir,
    daemon: Option<Process>,
    /// How many groups of pods it was ever given.
    made: usize,
    /// Those that shall run, with their sizes.
    groups: Vec<(String, usize)>,
    /// Numbers of calls that were held, and have been dealt with or will be.
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
        // As systemd has one for the unit: the next daemon knows that this one is gone.
        command.env("RUNTIME_DIRECTORY", self.dir.path());
        command.arg("run").arg("--config").arg(self.dir.path());
        self.daemon = Some(Process::spawn(command, &self.dir.path().join("daemon.log")));
    }

    pub(super) fn kill(&mut self) {
        self.daemon = None;
    }

    /// So many pods, each of which needs a node, and all of them a launch template that is new: a
    /// label is in its user data.
    pub(super) async fn deploy(&mut self, pods: usize) {
        self.made += 1;
        let name = format!("{}-{}", self.name, self.made);
        let label = format!("tests.dev/{}", self.name);
        let rules = json!({"nodeSelector": {label: self.made.to_string()}});
        fixture::create(&self.site.api, &name, pods, (CPU, "1Gi"), rules).await;
        self.groups.push((name, pods));
    }

    /// How many pods shall run.
    pub(super) fn pods(&self) -> usize {
        self.groups.iter().map(|(_, pods)| pods).sum()
    }

    /// No pods, so no nodes.
    pub(super) async fn empty(&mut self) {
        for (name, _) in std::mem::take(&mut self.groups) {
            fixture::scale(&self.site.api, &name, 0).await;
        }
    }

    /// Makes the next calls of its daemon go wrong, as [`Aws::fault`] does.
    pub(super) fn fault(&self, action: &str, kind: &str, how: &Value) {
        let mut how = how.clone();
        how["key"] = json!(self.name);
        self.site.aws.fault(action, kind, &how);
    }

    /// Nothing goes wrong any more; what is held stays so.
    pub(super) fn well(&self) {
        let clear = json!({"do": "clear", "key": self.name});
        self.site.aws.ask(&clear);
    }

    /// Waits for so many calls of an action that are held, or for all there will be.
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

    /// Lets calls go on, and waits until their answers are with whoever asked.
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
        panic!("answers are not written");
    }

    /// Calls get lost on their way.
    pub(super) fn lose(&self, held: &Held) {
        release(&self.site.aws, held, true);
    }

    /// So do all that came later than those that were counted.
    pub(super) fn lose_rest(&mut self) {
        let rest = self.holding(None);
        self.lose(&rest);
        self.seen.extend(rest.keys());
    }

    /// Waits until every pod runs on a node of its own, and there is nothing else.
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

    /// What is not as it should be.
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

    /// Its instances that neither end nor have ended.
    fn live(&self) -> Vec<String> {
        let mut all = self.site.aws.roll(Some(&self.name));
        all.retain(|one| one["state"] == "pending" || one["state"] == "running");
        let ids = all.iter().filter_map(|one| one["id"].as_str());
        ids.map(str::to_owned).collect()
    }

    /// All that its daemons said.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_default()
    }

    fn tail(&self) -> String {
        let log = self.log();
        // Pods of the others are nothing to it.
        let told =
            |line: &&str| !line.contains(" DEBUG ") && !line.contains(" cannot schedule pod ");
        let lines: Vec<&str> = log.lines().filter(told).collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

/// Lets calls go on, or get lost on their way.
pub(super) fn release(aws: &Aws, held: &Held, lost: bool) {
    let numbers: Vec<u64> = held.keys().copied().collect();
    aws.ask(&json!({"do": "release", "numbers": numbers, "lost": lost}));
}

/// Node classes are not tried: each call that is met is one that changes something. All lanes are
/// in one API server, each with a Lease of its own.
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
