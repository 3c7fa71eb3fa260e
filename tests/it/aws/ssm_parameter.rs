//! A configuration whose clusters are in a parameter of AWS Systems Manager.

use std::fs;
use std::process::Output;

use serde_json::json;
use tempfile::TempDir;

use super::Aws;
use crate::binary::outrigger;

const CONFIG: &str = r#"
data "terraform_output" "platform" {
  ssm_parameter = "/outrigger/prod/outputs"
  region        = "us-west-2"
  mock          = { pools = ["mock"] }
}

cluster "demo" {
  simulated {}
}

pool "general" {
  labels = { pools = join(".", data.terraform_output.platform.pools) }
}
"#;

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn terraform_outputs_come_from_ssm_and_validate_uses_the_mock() {
    let Some(aws) = Aws::start_or_skip("aws::ssm_parameter", &[]) else {
        return;
    };
    let folder = TempDir::new().expect("a directory");
    let file = folder.path().join("main.hcl");
    fs::write(&file, CONFIG).expect("written");
    let ask = |verb: &[&str]| {
        let mut command = aws.command(outrigger());
        command.args(verb).arg(&file);
        command.output().expect("it runs")
    };
    let check = |status: i32, text: &str| {
        let output = ask(&["export", "--config"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(text), "{text:?} in {said}");
    };
    check(1, "ParameterNotFound");
    assert_eq!(ask(&["validate"]).status.code(), Some(0));
    let put = |value: &str, kind: &str| {
        let name = "/outrigger/prod/outputs";
        aws.ask(&json!({"do": "parameter", "name": name, "value": value, "type": kind}))
    };
    put(r#"{"pools": ["general", "gpu"]}"#, "String");
    // Karpenter requires a node class in a pool. The exit code reports this loss.
    check(2, "pools: general.gpu");
    put("{\"pools\":", "String");
    check(1, "does not contain Terraform outputs");
    put(r#"{"pools": ["hidden"]}"#, "SecureString");
    check(1, "it is encrypted");
    put(r#"{"pools": ["general"]}"#, "String");
    aws.deny(&["ssm:GetParameter"]);
    check(1, "ssm:GetParameter");
}
