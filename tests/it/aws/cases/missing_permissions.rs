//! A daemon with missing IAM permissions: its log, and its recovery once they are granted.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use outrigger::ec2::iam_policy::granting_statement;
use tempfile::TempDir;

use super::{Ec2, block, ground, shared};
use crate::binary::outrigger;
use crate::plane::fixture::{self, Process, patience};
use crate::plane::rbac::{Right, denied, user};

/// One action for each kind of work of a daemon.
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

/// Returns the actions for which the log has no message that names the granting statement yet.
fn untold(ec2: &Ec2) -> Vec<&'static str> {
    let log = fs::read_to_string(ec2.dir.path().join("daemon.log")).unwrap_or_default();
    let told = |action: &&str| {
        let sid = granting_statement(action, "").expect("a statement");
        let words =
            format!("not allowed: {action}; granted by statement {sid} of the shipped policy");
        log.contains(&words)
    };
    LACKS.into_iter().filter(|action| !told(action)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_iam_permissions_are_logged_and_the_daemon_recovers() {
    let test = "aws::cases::missing_permissions::\
                missing_iam_permissions_are_logged_and_the_daemon_recovers";
    let Some(ec2) = Ec2::start_after(test, "", |aws| aws.deny(&LACKS)).await else {
        return;
    };
    fixture::deploy(&ec2.api, "web", 1, "900m", "1Gi").await;
    for _ in 0..5 * patience(60).as_secs() {
        if untold(&ec2).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(untold(&ec2), [""; 0], "not logged");
    assert_eq!(ec2.aws.instances().len(), 0);
    println!("{} permissions denied, each one logged", LACKS.len());
    ec2.aws.clear();
    let bound = |world: &fixture::World, _: &[_]| world.bound() == 1;
    ec2.until(180, "the pod is bound", bound).await;
}

/// Kubernetes permissions that the bootstrap data of nodes needs.
const UNTOLD: [Right; 3] = [
    ["create", "", "secrets", ""],
    ["get", "", "services", "kube-dns"],
    ["get", "networking.k8s.io", "servicecidrs", "kubernetes"],
];

#[tokio::test(flavor = "multi_thread")]
async fn missing_rbac_for_kubeadm_bootstrap_is_logged() {
    let test = "aws::cases::missing_permissions::missing_rbac_for_kubeadm_bootstrap_is_logged";
    let Some((plane, api, aws)) = ground(test, &[], &[]).await else {
        return;
    };
    let dir = TempDir::new().expect("a directory");
    let kubeconfig = dir.path().join("kubeconfig");
    let config = user(&plane, &api, "outrigger", &UNTOLD).await;
    fs::write(&kubeconfig, config).expect("written");
    let image = aws.image("al2023/x86_64/standard");
    let joins = format!(
        "ami_family = \"custom\"\n  ami {{ id = \"{image}\" }}\n  bootstrap \"kubeadm\" {{}}"
    );
    let eks = format!("eks {{ name = \"{}\" }}", aws.fact("/cluster"));
    let text = block(&aws, "tests", &kubeconfig) + &shared(&aws, "");
    // With EKS the daemon would call the EKS API instead.
    let text = text.replace(&eks, "");
    let text = text.replace("ami { alias = \"al2023@latest\" }", &joins);
    fs::create_dir(dir.path().join("config")).expect("created");
    fs::write(dir.path().join("config/outrigger.hcl"), text).expect("written");
    let mut command = aws.command(outrigger());
    command.arg("run").arg("--config").arg(dir.path().join("config"));
    let log = dir.path().join("daemon.log");
    let _daemon = Process::spawn(command, &log);
    fixture::deploy(&api, "web", 1, "900m", "1Gi").await;
    let wanted =
        UNTOLD.map(|[verb, group, resource, _]| [verb, group, resource].map(str::to_owned));
    let (wanted, mut told) = (BTreeSet::from(wanted), BTreeSet::new());
    let text = || fs::read_to_string(&log).unwrap_or_default();
    for _ in 0..900 {
        told = denied(&text()).remove("outrigger").unwrap_or_default();
        if told.is_superset(&wanted) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(told, wanted, "{}", text());
}
