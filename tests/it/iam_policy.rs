//! Compares the shipped policy in `terraform/` with the permissions that the daemon reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use hcl::{Body, Expression, ObjectKey};
use outrigger::ec2::iam_policy::{STATEMENTS, granting_statement};

/// The actions of each statement, by its name.
type Granted = BTreeMap<String, BTreeSet<String>>;

fn module() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/terraform/modules/render"))
}

/// Collects every object with a `Sid`, at any depth.
fn statements(expression: &Expression, found: &mut Granted) {
    match expression {
        Expression::Array(items) => items.iter().for_each(|item| statements(item, found)),
        Expression::Object(items) => {
            let get = |name: &str| {
                let is = |key: &ObjectKey| key.to_string() == name;
                items.iter().find(|(key, _)| is(key)).map(|(_, value)| value)
            };
            let (Some(Expression::String(sid)), Some(Expression::Array(actions))) =
                (get("Sid"), get("Action"))
            else {
                return;
            };
            let actions = actions.iter().map(|action| match action {
                Expression::String(action) => action.clone(),
                other => panic!("{sid}: {other:?} is not an action"),
            });
            found.entry(sid.clone()).or_default().extend(actions);
        }
        _ => {}
    }
}

fn shipped() -> Granted {
    let text = fs::read_to_string(module().join("policy.tf")).expect("the policy is there");
    let body: Body = hcl::parse(&text).expect("HCL");
    let mut found = Granted::new();
    for block in body.blocks() {
        for attribute in block.body.attributes() {
            statements(&attribute.expr, &mut found);
        }
    }
    found
}

#[test]
fn shipped_policy_equals_the_statements_in_the_code() {
    let mut known = Granted::new();
    for own in STATEMENTS {
        let actions = own.actions.iter().map(|action| (*action).to_owned());
        known.entry(own.sid.to_owned()).or_default().extend(actions);
    }
    assert_eq!(shipped(), known);
}

#[test]
fn denial_of_every_action_names_a_statement_that_grants_it() {
    for (sid, actions) in shipped() {
        for action in actions {
            let granting = granting_statement(&action, "").expect("a statement");
            let grants = shipped();
            assert!(grants[granting].contains(&action), "{action}: {granting}, not {sid}");
        }
    }
}

/// The module has no provider, so terraform checks it without a network.
#[test]
fn terraform_accepts_the_policy() {
    let terraform = |arguments: &[&str], dir: &Path| {
        let mut command = Command::new("terraform");
        command.args(arguments).current_dir(dir).env("CHECKPOINT_DISABLE", "1");
        command.env_remove("TF_CLI_CONFIG_FILE").output()
    };
    let dir = tempfile::tempdir().expect("a directory");
    if terraform(&["version"], dir.path()).is_err() {
        println!("SKIP iam_policy::terraform_accepts_the_policy: terraform is not installed");
        return;
    }
    let copy = Command::new("cp").arg("-r").arg(module()).arg(dir.path()).status();
    assert!(copy.expect("cp runs").success());
    let own = dir.path().join("render");
    for arguments in [
        &["fmt", "-check", "-recursive", "-no-color"][..],
        &["init", "-backend=false", "-input=false", "-no-color"],
        &["validate", "-no-color"],
        &["test", "-no-color"],
    ] {
        let done = terraform(arguments, &own).expect("terraform runs");
        let output = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "terraform {arguments:?}: {output}");
    }
}

/// The check of `tests/all` for the permissions that a full run used.
#[test]
fn rights_script_finds_unused_and_ungranted_actions() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moto/rights.py");
    let check = |used: &[&str]| {
        let dir = tempfile::tempdir().expect("a directory");
        for (number, half) in used.chunks(20).enumerate() {
            let path = dir.path().join(number.to_string());
            fs::write(path, half.join("\n") + "\n").expect("it is written");
        }
        let mut command = Command::new("python3");
        command.args(["-B", script]).arg(dir.path());
        let done = command.arg(module().join("policy.tf")).output();
        let done = done.expect("python3 runs");
        let output = String::from_utf8(done.stdout).expect("text");
        let findings: Vec<String> = output
            .lines()
            .map(|line| line.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect();
        (done.status.success(), findings)
    };
    let all: BTreeSet<String> = shipped().into_values().flatten().collect();
    let mut used: Vec<&str> = all.iter().map(String::as_str).collect();
    // The run also uses a permission that needs no policy.
    used.push("sts:AssumeRole");
    assert_eq!(check(&used), (true, Vec::new()));
    used.retain(|own| *own != "iam:PassRole");
    used.push("ec2:StopInstances");
    let findings = ["ec2:StopInstances is taken", "iam:PassRole is granted"].map(str::to_owned);
    assert_eq!(check(&used), (false, findings.to_vec()));
}
