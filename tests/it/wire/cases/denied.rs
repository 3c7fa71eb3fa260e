//! A daemon that lacks rights: what its log says, and what it does once it has them.
//! It must not know what else can be denied: `shell::aws::denied` tries every right.

use std::fs;
use std::time::Duration;

use outrigger::ec2::rights::statement;

use super::Ec2;
use crate::plane::bench;

/// One of each kind of work that a daemon does by itself.
const LACKS: [&str; 9] = [
    "ec2:DescribeImages",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "pricing:GetProducts",
    "sqs:GetQueueUrl",
];

/// Those of which the log does not say yet that they are missing, and what grants them.
fn untold(ec2: &Ec2) -> Vec<&'static str> {
    let log = fs::read_to_string(ec2.dir.path().join("daemon.log")).unwrap_or_default();
    let told = |action: &&str| {
        let sid = statement(action, "").expect("a statement");
        let words = format!("not allowed: {action}; statement {sid} of the shipped policy");
        log.contains(&words)
    };
    LACKS.into_iter().filter(|action| !told(action)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_without_rights_says_which_and_goes_on_once_it_has_them() {
    let test =
        "wire::cases::denied::a_daemon_without_rights_says_which_and_goes_on_once_it_has_them";
    let Some(ec2) = Ec2::start_after(test, "", |aws| aws.deny(&LACKS)).await else {
        return;
    };
    bench::deploy(&ec2.api, "web", 1, "900m", "1Gi").await;
    for _ in 0..300 {
        if untold(&ec2).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(untold(&ec2), [""; 0], "not told");
    assert_eq!(ec2.aws.instances().len(), 0);
    println!("{} rights denied, each told of", LACKS.len());
    ec2.aws.clear();
    let bound = |world: &bench::World, _: &[_]| world.bound() == 1;
    ec2.until(180, "the pod is bound", bound).await;
}
