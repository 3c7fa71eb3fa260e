//! Two hosts for one cluster on EC2: the leader is suspended, killed or terminated while spot
//! interruption messages arrive, and no message is lost.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use super::Aws;
use super::cases::{block, claim_of, ground, shared, spot_warning};
use super::kubelets::{Kubelets, Sizes};
use crate::binary::outrigger;
use crate::plane::Plane;
use crate::plane::fixture::{self, Process, World, chosen, clock, is_campaign};
use crate::plane::lifecycle::scatter;
use crate::plane::standby::{End, TAKEN_OVER, WATCHED, holds};
use crate::plane::term_order::{assert_terms, called, is_change};

/// Each pod fills a node.
const PODS: usize = 6;

const ENDS: [End; 4] = [End::Pause, End::Death, End::Silence, End::Leave];

/// A daemon with an access key of its own.
pub(super) struct Host {
    pub(super) key: &'static str,
    pub(super) dir: TempDir,
    daemon: Process,
}

impl Host {
    /// Starts it; `more` is HCL at the top level.
    pub(super) fn start(aws: &Aws, plane: &Plane, key: &'static str, more: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        let pool = "  require \"karpenter.sh/capacity-type\" { in = [\"spot\"] }\n  \
                    require \"node.kubernetes.io/instance-type\" { in = [\"m5.large\"] }";
        let text = block(aws, "tests", &plane.daemons()) + &shared(aws, pool) + more;
        fs::write(dir.path().join("outrigger.hcl"), text).expect("the configuration is written");
        let daemon = spawn(aws, &dir, key);
        Self { key, dir, daemon }
    }

    fn again(&mut self, aws: &Aws) {
        self.daemon.kill();
        self.daemon = spawn(aws, &self.dir, self.key);
    }

    pub(super) async fn until_it_leads(&self, api: &Client) -> Duration {
        let start = clock();
        while !holds(api, "outrigger", self.dir.path()).await {
            let waited = start.elapsed();
            assert!(waited < TAKEN_OVER, "{} does not lead\n{}", self.key, self.tail());
            sleep(Duration::from_millis(50)).await;
        }
        start.elapsed()
    }

    pub(super) fn tail(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

fn spawn(aws: &Aws, dir: &TempDir, key: &str) -> Process {
    let mut command = aws.command(outrigger());
    command.env("AWS_ACCESS_KEY_ID", key);
    command.env("RUNTIME_DIRECTORY", dir.path());
    command.arg("run").arg("--config").arg(dir.path());
    Process::spawn(command, &dir.path().join("daemon.log"))
}

/// Returns the ids of the instances that are pending or running.
pub(super) fn live(aws: &Aws) -> BTreeSet<String> {
    let lives = |own: &&Value| own["state"] == "pending" || own["state"] == "running";
    let id = |own: &Value| own["id"].as_str().expect("an id").to_owned();
    aws.instances().iter().filter(lives).map(id).collect()
}

/// Waits until each pod runs on its own node and none of the instances `without` is live.
async fn settled(api: &Client, aws: &Aws, without: &[String], hosts: [&Host; 2]) {
    let mut seen = String::new();
    for _ in 0..600 {
        let (world, live) = (World::read(api).await, live(aws));
        let gone = without.iter().all(|own| !live.contains(own));
        let counts = (world.bound(), world.nodes.len(), live.len());
        if gone && world.pods.len() == PODS && counts == (PODS, PODS, PODS) {
            return;
        }
        seen = format!("{counts:?}, gone: {gone}");
        sleep(Duration::from_millis(200)).await;
    }
    let logs = hosts.map(|own| format!("{}\n{}", own.key, own.tail()));
    panic!("not settled within two minutes: {seen}\n{}", logs.join("\n"));
}

/// Returns the changes that a host requested from AWS after the first `since` calls.
pub(super) fn changes(aws: &Aws, key: &str, since: usize) -> Vec<String> {
    let mut calls = aws.calls();
    calls.drain(..since.min(calls.len()));
    calls.retain(|own| own["key"] == key && is_change(own));
    let names = calls.iter().filter_map(|own| own["call"].as_str());
    names.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn spot_warnings_survive_leader_failures() {
    let test = "aws::standby::spot_warnings_survive_leader_failures";
    let Some((plane, api, aws)) = ground(test, &[], &[]).await else {
        return;
    };
    let _machines = Kubelets::start(Arc::clone(&aws), api.clone(), Sizes::new());
    let mut one = Host::start(&aws, &plane, "host-a", "");
    one.until_it_leads(&api).await;
    let mut other = Host::start(&aws, &plane, "host-b", "");
    fixture::deploy(&api, "web", PODS, "1500m", "1Gi").await;
    let rounds = if is_campaign() { 50 } else { 2 };
    let mut launches = PODS;
    for round in chosen("OUTRIGGER_ROUNDS").unwrap_or(0..rounds) {
        settled(&api, &aws, &[], [&one, &other]).await;
        // The follower must have seen the leader.
        sleep(Duration::from_secs(3)).await;
        let end = ENDS[usize::try_from(round).expect("small") % ENDS.len()];
        let ids: Vec<String> = live(&aws).into_iter().collect();
        let at = usize::try_from(scatter(round) % PODS as u64).expect("small");
        let taken = [ids[at].clone(), ids[(at + 1) % PODS].clone()];
        // The first message arrives while the leader is still active, the second after its end.
        aws.send(&spot_warning(&taken[0]));
        sleep(Duration::from_millis(scatter(round + 99) % 3000)).await;
        match end {
            End::Pause => one.daemon.signal("STOP"),
            End::Silence => one.daemon.kill(),
            End::Death => one.again(&aws),
            End::Leave => one.daemon.signal("TERM"),
        }
        aws.send(&spot_warning(&taken[1]));
        if end == End::Death {
            sleep(Duration::from_secs(1)).await;
            std::mem::swap(&mut one, &mut other);
        }
        let took = other.until_it_leads(&api).await;
        match end {
            End::Pause => {
                let since = aws.calls().len();
                one.daemon.signal("CONT");
                sleep(WATCHED).await;
                let changed = changes(&aws, one.key, since);
                assert_eq!(changed, Vec::<String>::new(), "{}", one.tail());
            }
            End::Silence | End::Leave => one.again(&aws),
            End::Death => {}
        }
        settled(&api, &aws, &taken, [&one, &other]).await;
        let live = live(&aws);
        let lost = ids.iter().filter(|own| !live.contains(*own));
        assert!(lost.eq(ids.iter().filter(|own| taken.contains(own))), "{ids:?} {live:?}");
        println!("round {round}, {end:?}: the other leads after {:.1} s", took.as_secs_f64());
        // One launch for each pod and one for each interrupted instance: nothing was launched
        // twice.
        launches += taken.len();
        assert_eq!(aws.instances().len(), launches, "launches by round {round}");
        let all: Vec<String> = aws.instances().iter().map(claim_of).collect();
        let claims: BTreeSet<&String> = all.iter().collect();
        assert_eq!(claims.len(), all.len(), "a claim had two instances: {all:?}");
        std::mem::swap(&mut one, &mut other);
    }
    let is_one = |key: &str| key == one.key || key == other.key;
    assert_terms(&called(aws.calls(), is_one), (1, 2));
    // Messages that the leader had received return to the queue and are delivered again.
    aws.until_the_queue_is_empty(150).await;
}
