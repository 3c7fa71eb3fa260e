//! `tests/aws-sandbox`, the script for a real account, against the AWS of the tests.

use std::collections::BTreeSet;
use std::process::Output;

use serde_json::{Value, json};

use super::{Aws, variable};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sandbox/main.py");
/// A public parameter that this AWS has.
const IMAGE: &str =
    "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/recommended/image_id";

fn run(aws: &Aws, arguments: &[&str]) -> Output {
    let python = variable("OUTRIGGER_PYTHON").expect("the Python of the AWS of the tests");
    let mut command = aws.command(&python);
    command.args(["-B", SCRIPT, "--region", aws.fact("/region")]).args(arguments);
    command.output().expect("it runs")
}

/// Operations in the list of a dry run.
fn listed(output: &Output) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().skip_while(|line| *line != "calls:").skip(1);
    let calls = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    calls.map(str::to_owned).collect()
}

/// Operations that this AWS was asked for.
fn counted(aws: &Aws) -> BTreeSet<String> {
    let counts = aws.ask(&json!({"do": "counts"}));
    counts["counts"].as_object().expect("counts").keys().cloned().collect()
}

#[test]
fn sandbox_script_makes_the_calls_of_its_dry_run_and_removes_what_it_made() {
    let test =
        "aws::sandbox::sandbox_script_makes_the_calls_of_its_dry_run_and_removes_what_it_made";
    let Some(aws) = Aws::start_or_skip(test, &[]) else {
        return;
    };
    aws.ask(&json!({"do": "settings", "hide": 0}));
    let before = counted(&aws);
    let planned = listed(&run(&aws, &["--dry-run"]));
    assert_eq!(counted(&aws), before, "a dry run makes no call");
    let refused = run(&aws, &[]);
    assert!(!refused.status.success(), "the user has not agreed");
    assert!(aws.instances().is_empty());
    let output = run(&aws, &["--yes", "--pace", "0.02", "--image-parameter", IMAGE]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let made: BTreeSet<String> = counted(&aws).difference(&before).cloned().collect();
    assert_eq!(made, planned);
    // It has launched instances, and none is left.
    assert!(!aws.instances().is_empty());
    assert!(aws.running().is_empty(), "{:?}", aws.running());
    let report = text.split_once("\n{").expect("a report").1;
    let report: Value = serde_json::from_str(&format!("{{{report}")).expect("JSON");
    assert_eq!(report["left in the account"], json!([]), "{report:#}");
    assert_eq!(report["1 rate of CreateFleet"]["codes"], json!(["RequestLimitExceeded"]));
    let launched = &report["2 a used token"];
    assert_eq!(launched["first"], launched["at once"]);
    assert_eq!(launched["with another count"]["code"], "IdempotentParameterMismatch");
    let gone = "InvalidLaunchTemplateName.NotFoundException";
    assert_eq!(report["6 a missing template"]["call"], gone);
    let error = &report["7 fields of the errors of overrides"]["items"][0];
    assert_eq!(error["code"], "InvalidParameterValue", "the architecture");
    let fields = json!(["AvailabilityZone", "InstanceType", "Priority", "SubnetId"]);
    assert_eq!(error["fields"], fields);
}

/// Every call of the script with a cluster is granted by the policy that ships with it: the script
/// ends otherwise.
#[test]
fn dry_run_with_a_cluster_lists_its_commands() {
    let name = "aws::sandbox::dry_run_with_a_cluster_lists_its_commands";
    let Some(aws) = Aws::start_or_skip(name, &[]) else {
        return;
    };
    let before = counted(&aws);
    let of_cluster = ["--cluster", "c", "--instance-profile", "p", "--queue", "q"];
    let output = run(&aws, &[&["--dry-run"], &of_cluster[..]].concat());
    let planned = listed(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for action in ["eks:DescribeCluster", "sqs:GetQueueUrl", "sqs:SendMessage"] {
        assert!(planned.contains(action), "{planned:?}");
    }
    for command in
        ["doctor --config", "run --config", "kubectl --context c apply", "delete namespace"]
    {
        assert!(text.contains(command), "{text}");
    }
    assert_eq!(counted(&aws), before);
    // A run that could cost too much does not start.
    let families = ["--families", "al2023,al2023,al2023,al2023,al2023"];
    let output = run(&aws, &[&["--dry-run"], &of_cluster[..], &families].concat());
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("are allowed"));
}
