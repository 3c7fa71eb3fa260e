//! `outrigger doctor` on an AWS with one defect each: the reported finding, and the fix.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Aws;
use super::cases::{block, ground, shared};
use crate::binary::outrigger;
use crate::end_to_end::doctor::{holds, keep, told};

/// A configuration and an AWS without defects.
struct Bench<'a> {
    aws: &'a Aws,
    dir: TempDir,
    text: String,
}

impl Bench<'_> {
    /// Returns the exit code and the report after a replacement of `from` by `to` in the
    /// configuration.
    fn examine(&self, from: &str, to: &str, more: &[&str]) -> (Option<i32>, Value) {
        assert!(self.text.contains(from), "{from}");
        let config = self.dir.path().join("config");
        let text = self.text.replace(from, to);
        fs::write(config.join("main.hcl"), text).expect("written");
        self.run(&config, more, &[])
    }

    fn run(&self, config: &Path, more: &[&str], without: &[&str]) -> (Option<i32>, Value) {
        let mut command = self.aws.command(outrigger());
        for own in without {
            command.env_remove(own);
        }
        command.args(["doctor", "--json", "--config"]).arg(config).args(more);
        let output = command.output().expect("it runs");
        let report = serde_json::from_slice(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        (output.status.code(), report.unwrap_or_else(|_| panic!("{errors}")))
    }

    fn check(&self, name: &str, (from, to): (&str, &str), (code, expect): (i32, &[[&str; 4]])) {
        let (found, report) = self.examine(from, to, &[]);
        holds(name, &told(&report), expect);
        assert_eq!(found, Some(code), "{name}: {report:#}");
    }
}

/// The instance types of the region.
const TYPES: &str = "m5.large,c5.large,m5.xlarge";

/// The finding for a node class with missing resources.
const UNTRIED: [&str; 4] = [
    "cluster tests/aws/node_class default/launch",
    "skipped",
    "some resources of the node class are missing",
    "",
];
/// The fix for a missing permission.
const POLICY: &str = "see the output `policy` of terraform/modules/render";

/// Returns permissions that the test denies one at a time, each with the expected findings.
fn rights() -> Vec<(&'static str, Vec<[&'static str; 4]>)> {
    vec![
        (
            "ec2:RunInstances",
            vec![[
                "cluster tests/aws/node_class default/launch/ec2:RunInstances",
                "failed",
                "not allowed: ec2:RunInstances",
                POLICY,
            ]],
        ),
        (
            "ec2:CreateLaunchTemplate",
            vec![[
                "cluster tests/aws/node_class default/launch/ec2:CreateLaunchTemplate",
                "failed",
                "not allowed: ec2:CreateLaunchTemplate",
                POLICY,
            ]],
        ),
        (
            "ec2:DescribeSubnets",
            vec![
                ["cluster tests/aws/network", "failed", "not allowed: ec2:DescribeSubnets", POLICY],
                [
                    "cluster tests/aws/node_class default/subnets",
                    "failed",
                    "not allowed: ec2:DescribeSubnets",
                    POLICY,
                ],
                UNTRIED,
            ],
        ),
        (
            "ec2:DescribeLaunchTemplates",
            vec![[
                "cluster tests/aws/reads/DescribeLaunchTemplates",
                "failed",
                "not allowed: ec2:DescribeLaunchTemplates",
                POLICY,
            ]],
        ),
        (
            "sqs:GetQueueUrl",
            vec![["cluster tests/aws/queue", "failed", "not allowed: sqs:GetQueueUrl", POLICY]],
        ),
        (
            "ssm:GetParameter",
            vec![
                [
                    "cluster tests/aws/node_class default/images",
                    "failed",
                    "not allowed: ssm:GetParameter",
                    POLICY,
                ],
                UNTRIED,
            ],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_aws_defects_and_creates_nothing() {
    let name = "aws::doctor::doctor_names_aws_defects_and_creates_nothing";
    let Some((plane, _, aws)) = ground(name, &[], &["--types", TYPES]).await else {
        return;
    };
    // Each of many runs of `doctor` makes dry runs.
    aws.ask(&json!({"do": "limits", "limits": null}));
    let dir = TempDir::new().expect("a directory");
    fs::create_dir(dir.path().join("config")).expect("created");
    let kubeconfig = dir.path().join("kubeconfig");
    keep(&kubeconfig, &fs::read_to_string(plane.kubeconfig()).expect("a kubeconfig"));
    let text = block(&aws, "tests", &kubeconfig) + &shared(&aws, "");
    let bench = Bench { aws: &aws, dir, text };
    warm(&bench);
    bench.check("nothing is wrong", ("", ""), (0, &[]));
    for (right, expect) in rights() {
        aws.deny(&[right]);
        bench.check(right, ("", ""), (4, &expect));
        aws.clear();
    }
    missing(&bench);
    addresses(&bench);
    nobody(&bench);
    assert_untouched(&aws);
}

/// Moto builds its table of types at the first request, which takes longer than the timeout of a
/// check.
fn warm(bench: &Bench<'_>) {
    for _ in 0..10 {
        if bench.examine("", "", &[]).0 == Some(0) {
            return;
        }
    }
}

/// Tests names in the configuration that do not exist in AWS.
fn missing(bench: &Bench<'_>) {
    let queue = format!("queue = \"{}\"", bench.aws.fact("/queue"));
    let row = ["cluster tests/aws/queue", "failed", "queue gone does not exist", "list-queues"];
    bench.check("no queue", (&queue, "queue = \"gone\""), (4, &[row]));
    let alias = "ami { alias = \"al2023@latest\" }";
    // An image id requires the AMI family.
    let id = "ami { id = \"ami-00000000000000000\" }\n  ami_family = \"al2023\"";
    let row = [
        "cluster tests/aws/node_class default/images",
        "failed",
        "no image matches",
        "aws ec2 describe-images",
    ];
    bench.check("no image", (alias, id), (4, &[row, UNTRIED]));
    let subnet = format!(
        "subnet {{ tags = {{ \"karpenter.sh/discovery\" = \"{}\" }} }}",
        bench.aws.fact("/cluster")
    );
    let row = [
        "cluster tests/aws/node_class default/subnets",
        "failed",
        "no subnet matches",
        "aws ec2 create-tags",
    ];
    let other = "subnet { tags = { gone = \"gone\" } }";
    bench.check("no subnet", (&subnet, other), (4, &[row, UNTRIED]));
}

/// Tests a subnet with few free addresses.
fn addresses(bench: &Bench<'_>) {
    let subnets = bench.aws.fact("/subnets/us-west-2a");
    let free = |count: u32| {
        bench.aws.ask(&json!({"do": "addresses", "subnet": subnets, "free": count}));
    };
    free(3);
    let path = "cluster tests/aws/node_class default/subnets";
    let row = [path, "warning", "us-west-2a 3", "add a larger subnet"];
    bench.check("few addresses", ("", ""), (2, &[row]));
    free(250);
}

/// Tests missing credentials.
fn nobody(bench: &Bench<'_>) {
    let config = bench.dir.path().join("config");
    fs::write(config.join("main.hcl"), &bench.text).expect("written");
    let (code, report) = bench.run(&config, &[], &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]);
    let row = ["cluster tests/aws/identity", "failed", "GetCallerIdentity", "an instance role"];
    holds("no credentials", &told(&report), &[row]);
    assert_eq!(code, Some(4));
    let (code, report) = bench.run(&config, &["--skip", "aws"], &[]);
    let row = ["cluster tests/aws", "skipped", "skipped on request", ""];
    holds("skipped on request", &told(&report), &[row]);
    assert_eq!(code, Some(0));
}

/// Checks that the doctor created nothing and made only dry runs.
fn assert_untouched(aws: &Aws) {
    assert_eq!(aws.templates(), [] as [Value; 0]);
    assert_eq!(aws.instances(), [] as [Value; 0]);
    let reads = ["Describe", "Get", "List", "AssumeRole"];
    let mut tried = 0;
    for call in aws.calls() {
        let name = call["call"].as_str().expect("a name");
        let (_, action) = name.split_once(':').expect("service and action");
        if !reads.iter().any(|own| action.starts_with(own)) {
            assert_eq!(call["params"]["DryRun"], true, "{call}");
            tried += 1;
        }
    }
    assert!(tried > 0, "no dry run was made");
}
