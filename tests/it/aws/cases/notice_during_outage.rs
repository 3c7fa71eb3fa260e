//! A spot interruption notice that arrives while the API server is down, followed by a restart of
//! the daemon.

use std::time::Duration;

use kube::Api;
use outrigger::model::labels::TAINT_DISRUPTED;
use serde_json::Value;
use tokio::time::sleep;

use super::{Ec2, Node, spot_warning};
use crate::plane::fixture::{self, World, clock, is_campaign};
use crate::plane::lifecycle::provider_id;

/// EC2 announces a spot interruption two minutes before it ends the instance.
const NOTICE: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread")]
async fn node_of_a_notice_during_an_outage_and_a_restart_is_drained_in_time() {
    let test = "aws::cases::notice_during_outage::\
                node_of_a_notice_during_an_outage_and_a_restart_is_drained_in_time";
    let spot = "  require \"karpenter.sh/capacity-type\" { in = [\"spot\"] }";
    let Some(mut ec2) = Ec2::start(test, spot).await else {
        return;
    };
    fixture::deploy(&ec2.api, "web", 3, "900m", "3100Mi").await;
    let (world, _) = ec2.until(90, "all pods bound", |world, _| world.bound() == 3).await;
    let node = world.nodes.iter().find(|node| world.pods_on(node) > 0).expect("a node with a pod");
    let (name, id) = (node.metadata.name.clone().expect("a name"), provider_id(node));
    let instance = id.rsplit('/').next().expect("an instance").to_owned();

    let down = Duration::from_secs(if is_campaign() { 40 } else { 12 });
    ec2.plane.stop_api().expect("the API stops");
    let sent = clock();
    ec2.aws.send(&spot_warning(&instance));
    sleep(down / 2).await;
    ec2.restart_daemon();
    sleep(down / 2).await;
    ec2.plane.start_api().expect("the API starts");

    let nodes: Api<Node> = Api::all(ec2.api.clone());
    let mut tainted = None;
    while tainted.is_none() && sent.elapsed() < NOTICE {
        let spec = nodes.get_opt(&name).await.ok().map(|node| node.and_then(|node| node.spec));
        let taints = spec.map(|spec| spec.and_then(|spec| spec.taints).unwrap_or_default());
        if taints.is_some_and(|all| all.iter().any(|taint| taint.key == TAINT_DISRUPTED)) {
            tainted = Some(sent.elapsed());
        }
        sleep(Duration::from_millis(200)).await;
    }
    let on_old = |world: &World| {
        let old = world.nodes.iter().find(|node| node.metadata.name.as_ref() == Some(&name));
        old.map_or(0, |node| world.pods_on(node))
    };
    let drained = |world: &World, _: &[Value]| on_old(world) == 0 && world.bound() == 3;
    ec2.until(120, "the node is drained", drained).await;
    println!("tainted after {tainted:?}, drained after {:?}", sent.elapsed());
    assert!(tainted.is_some(), "the node has no taint");
    assert!(sent.elapsed() < NOTICE, "the instance has ended before its node was drained");
}
