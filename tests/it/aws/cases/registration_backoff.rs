//! An invalid image: the number of launched instances while no node registers, and after the image
//! is fixed.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::{Ec2, block, ground, shared};
use crate::plane::fixture::{self, World};

/// Pods, each of which fills a node.
const COUNT: usize = 10;

/// The time within which a node must register.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Replaces an hour: the default of `registration_timeout` is a quarter of an hour.
const HOUR: Duration = TIMEOUT.saturating_mul(4);

#[tokio::test(flavor = "multi_thread")]
async fn bad_image_slows_launches_until_the_image_is_fixed() {
    let test = "aws::cases::registration_backoff::\
                bad_image_slows_launches_until_the_image_is_fixed";
    let Some(ground) = ground(test, &[], &[]).await else {
        return;
    };
    let (plane, _, aws) = &ground;
    let pool = format!(
        "  registration_timeout = \"{}s\"\n  \
         require \"node.kubernetes.io/instance-type\" {{ in = [\"m5.large\"] }}",
        TIMEOUT.as_secs()
    );
    let right = block(aws, "tests", &plane.daemons()) + &shared(aws, &pool);
    let image = aws.image("al2023/x86_64/nvidia").to_owned();
    let named = format!("ami_family = \"al2023\"\n  ami {{ id = \"{image}\" }}");
    let bad = right.replace("ami { alias = \"al2023@latest\" }", &named);
    assert_ne!(bad, right);
    let ec2 = Ec2::start_with(ground, &bad, move |own| own["image"] != *image);
    let bought = || ec2.aws.instances().len();
    fixture::deploy(&ec2.api, "web", COUNT, "1500m", "1Gi").await;
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
    fs::write(ec2.dir.path().join("outrigger.hcl"), right).expect("written");
    ec2.daemon.signal("HUP");
    let (world, live) = ec2
        .until(120, "all nodes exist", |world, live| world.bound() == COUNT && live.len() == COUNT)
        .await;
    assert_eq!((world.nodes.len(), live.len()), (COUNT, COUNT));
    assert_eq!(bought() - wasted, COUNT, "one launch per pod");
}
