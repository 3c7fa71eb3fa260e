//! Many launches at once, against the request limits that EC2 has by default.

use std::fs;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use outrigger::model::labels::TAINT_DISRUPTED;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::cases::{Ec2, spot_warning};
use super::{Aws, variable};
use crate::plane::fixture::{self, World, clock, is_campaign, patience};
use crate::plane::lifecycle::provider_id;

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
    /// Milliseconds from a spot warning in the middle of the burst to the taint of its node. `None`
    /// without a warning.
    taint_ms: Option<u128>,
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

/// Sends the spot warning of a node that has a pod. Returns the time until the node has its taint,
/// at most a minute.
async fn interrupt(ec2: &Ec2, world: &World) -> Duration {
    let node = world.nodes.iter().find(|node| world.pods_on(node) > 0).expect("a node with a pod");
    let (name, id) = (node.metadata.name.as_deref().expect("a name"), provider_id(node));
    let nodes: Api<Node> = Api::all(ec2.api.clone());
    let sent = clock();
    ec2.aws.send(&spot_warning(id.rsplit('/').next().expect("an instance")));
    loop {
        let spec = nodes.get(name).await.expect("the node").spec;
        let taints = spec.and_then(|spec| spec.taints).unwrap_or_default();
        let is_tainted = taints.iter().any(|taint| taint.key == TAINT_DISRUPTED);
        if is_tainted || sent.elapsed() > Duration::from_mins(1) {
            return sent.elapsed();
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Creates all pods, and waits until they run, at most for the limit. In a campaign, one node is
/// interrupted in the middle.
async fn run(burst: Burst, ec2: &Ec2, limit: Duration) -> Outcome {
    let began = clock();
    for group in 0..burst.requests {
        let share =
            burst.claims / burst.requests + usize::from(group < burst.claims % burst.requests);
        let rules = json!({"nodeSelector": {GROUP: group.to_string()}});
        fixture::create(&ec2.api, &format!("group-{group}"), share, ("1500m", "1Gi"), rules).await;
    }
    let mut taint_ms = None;
    loop {
        let world = World::read(&ec2.api).await;
        let bound = world.bound();
        if bound >= burst.claims || began.elapsed() >= limit {
            break;
        }
        if is_campaign() && taint_ms.is_none() && bound >= burst.claims / 2 {
            taint_ms = Some(interrupt(ec2, &world).await.as_millis());
        }
        sleep(Duration::from_secs(1)).await;
    }
    let throttled = |call: &&Value| call["error"] == "RequestLimitExceeded";
    let log = fs::read_to_string(ec2.dir.path().join("daemon.log")).unwrap_or_default();
    Outcome {
        seconds: began.elapsed().as_secs(),
        fleets: ec2.calls_of("ec2:CreateFleet").len(),
        throttled: ec2.aws.calls().iter().filter(throttled).count(),
        timed_out: log.lines().filter(|line| line.contains("timed_out")).count(),
        instances: ec2.aws.instances().len(),
        taint_ms,
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
        let slow = |aws: &Aws| {
            aws.ask(&json!({"do": "settings", "fleet": [2.0, 8.0]}));
        };
        let Some(ec2) = Ec2::start_after(test, POOL, slow).await else {
            return;
        };
        let outcome = run(burst, &ec2, limit).await;
        println!("{burst:?}: {outcome:?}");
        if !is_campaign() {
            let bound = World::read(&ec2.api).await.bound();
            assert_eq!(
                (bound, outcome.instances, outcome.timed_out),
                (burst.claims, burst.claims, 0)
            );
        }
    }
}
