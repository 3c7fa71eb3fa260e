//! Many launches at once, against the request limits that EC2 has by default.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::cases::{block, ground, shared};
use super::kubelets::{Kubelets, Sizes};
use super::{Aws, variable};
use crate::binary::outrigger;
use crate::plane::Plane;
use crate::plane::fixture::{self, Process, World, clock, is_campaign, patience};

/// The label that differs between requests: it is in the user data, so each value needs a launch
/// template of its own.
const GROUP: &str = "tests.dev/group";

/// The pool: each pod fills a node.
const POOL: &str = "  require \"karpenter.sh/capacity-type\" { in = [\"on-demand\"] }\n  \
                    require \"node.kubernetes.io/instance-type\" { in = [\"m5.large\"] }\n  \
                    require \"tests.dev/group\" { exists = true }";

/// Launches at the same time: claims and different requests.
#[derive(Clone, Copy, Debug)]
struct Burst {
    claims: usize,
    requests: usize,
}

/// What a burst took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    seconds: u64,
    fleets: usize,
    throttled: usize,
    timed_out: usize,
    instances: usize,
}

fn start(aws: &Aws, plane: &Plane, dir: &TempDir) -> Process {
    let text = block(aws, "tests", &plane.daemons()) + &shared(aws, POOL);
    fs::write(dir.path().join("outrigger.hcl"), text).expect("the configuration is written");
    let mut command = aws.command(outrigger());
    command.env("RUNTIME_DIRECTORY", dir.path());
    command.arg("run").arg("--config").arg(dir.path());
    Process::spawn(command, &dir.path().join("daemon.log"))
}

/// Returns the bursts of a campaign: those of `OUTRIGGER_BURSTS`, such as `100x1 500x60`, or all.
fn asked() -> Vec<Burst> {
    let named = variable("OUTRIGGER_BURSTS");
    let bursts = named.iter().flat_map(|text| text.split_whitespace()).map(|text| {
        let numbers =
            text.split_once('x').map(|(claims, requests)| (claims.parse(), requests.parse()));
        let Some((Ok(claims), Ok(requests))) = numbers else {
            panic!("no burst: {text}");
        };
        Burst { claims, requests }
    });
    let bursts: Vec<Burst> = bursts.collect();
    let sizes = [100, 500, 1000].into_iter();
    let all = sizes.flat_map(|claims| [1, 60, claims].map(|requests| Burst { claims, requests }));
    if bursts.is_empty() { all.collect() } else { bursts }
}

/// Creates all pods, and waits until they run, at most for the limit.
async fn run(
    burst: Burst,
    (api, aws, dir): (&kube::Client, &Aws, &TempDir),
    limit: Duration,
) -> Outcome {
    let began = clock();
    for group in 0..burst.requests {
        let share =
            burst.claims / burst.requests + usize::from(group < burst.claims % burst.requests);
        let rules = json!({"nodeSelector": {GROUP: group.to_string()}});
        fixture::create(api, &format!("group-{group}"), share, ("1500m", "1Gi"), rules).await;
    }
    while World::read(api).await.bound() < burst.claims && began.elapsed() < limit {
        sleep(Duration::from_secs(1)).await;
    }
    let calls = aws.calls();
    let fleets =
        |call: &&Value| call["call"] == "ec2:CreateFleet" && call["params"]["DryRun"] != true;
    let throttled = |call: &&Value| call["error"] == "RequestLimitExceeded";
    let log = fs::read_to_string(dir.path().join("daemon.log")).unwrap_or_default();
    Outcome {
        seconds: began.elapsed().as_secs(),
        fleets: calls.iter().filter(fleets).count(),
        throttled: calls.iter().filter(throttled).count(),
        timed_out: log.lines().filter(|line| line.contains("timed_out")).count(),
        instances: aws.instances().len(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_burst_launch_within_the_request_limits_of_ec2() {
    let test = "aws::bursts::claims_of_a_burst_launch_within_the_request_limits_of_ec2";
    let (bursts, limit) = if is_campaign() {
        (asked(), Duration::from_mins(20))
    } else {
        (vec![Burst { claims: 12, requests: 3 }], patience(60))
    };
    for burst in bursts {
        let Some((plane, api, aws)) = ground(test, &[], &[]).await else {
            return;
        };
        aws.ask(&json!({"do": "settings", "fleet": [2.0, 8.0]}));
        let _machines = Kubelets::start(Arc::clone(&aws), api.clone(), Sizes::new());
        let dir = TempDir::new().expect("a directory");
        let _daemon = start(&aws, &plane, &dir);
        let outcome = run(burst, (&api, &aws, &dir), limit).await;
        println!("{burst:?}: {outcome:?}");
        if !is_campaign() {
            let bound = World::read(&api).await.bound();
            assert_eq!(
                (bound, outcome.instances, outcome.timed_out),
                (burst.claims, burst.claims, 0)
            );
        }
    }
}
