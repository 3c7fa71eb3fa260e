//! An image that does not boot: what is bought while nodes do not register, and once the image is
//! right. It must not know when the daemon tries another node.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use super::{Ec2, block, ground, shared};
use crate::binary::outrigger;
use crate::plane::bench::{self, Process, World};
use crate::wire::kubelets::{Kubelets, Sizes};

/// Pods, each of which fills a node.
const COUNT: usize = 10;

/// How long a node has to register. An hour is four times as long as the default.
const TIMEOUT: Duration = Duration::from_secs(15);
const HOUR: Duration = Duration::from_secs(4 * 15);

#[tokio::test(flavor = "multi_thread")]
async fn few_instances_are_bought_of_a_bad_image_and_all_at_once_of_a_right_one() {
    let test = "wire::cases::unregistered::few_instances_are_bought_of_a_bad_image_and_all_at_once_\
                of_a_right_one";
    let Some((plane, api, aws)) = ground(test, &[]).await else {
        return;
    };
    let pool = format!(
        "  registration_timeout = \"{}s\"\n  \
         require \"node.kubernetes.io/instance-type\" {{ in = [\"m5.large\"] }}",
        TIMEOUT.as_secs()
    );
    let right = block(&aws, "tests", &plane.daemons()) + &shared(&aws, &pool);
    let image = aws.image("al2023/x86_64/nvidia").to_owned();
    let named = format!("ami_family = \"al2023\"\n  ami {{ id = \"{image}\" }}");
    let bad = right.replace("ami { alias = \"al2023@latest\" }", &named);
    assert_ne!(bad, right);
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("outrigger.hcl");
    fs::write(&file, bad).expect("the configuration is written");
    let boots = move |own: &Value| own["image"] != *image;
    let machines = Kubelets::start_where(boots, Arc::clone(&aws), api.clone(), Sizes::new());
    let mut command = aws.command(outrigger());
    command.arg("run").arg("--config").arg(dir.path());
    let daemon = Process::spawn(command, &dir.path().join("daemon.log"));
    let ec2 = Ec2 {
        api,
        aws,
        machines,
        dir,
        daemon,
        _plane: plane,
    };
    let bought = || ec2.calls_of("ec2:CreateFleet").len();
    bench::deploy(&ec2.api, "web", COUNT, "1500m", "1Gi").await;
    let all = |_: &World, live: &[Value]| live.len() == COUNT;
    ec2.until(120, "all are launched", all).await;
    sleep(HOUR).await;
    let wasted = bought();
    println!(
        "{wasted} instances of a bad image are bought for {COUNT} pods in four times what a node \
         has to register, {} without a wait",
        4 * COUNT
    );
    assert!((COUNT + 1..COUNT + 5).contains(&wasted), "{wasted}");
    fs::write(file, right).expect("written");
    ec2.daemon.signal("HUP");
    let (world, live) = ec2
        .until(120, "all nodes are there", |world, live| {
            world.bound() == COUNT && live.len() == COUNT
        })
        .await;
    assert_eq!((world.nodes.len(), live.len()), (COUNT, COUNT));
    assert_eq!(bought() - wasted, COUNT, "each is bought once");
}
