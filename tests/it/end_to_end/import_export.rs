//! Import and export of Karpenter objects and import of Cluster Autoscaler through the binary:
//! files, pipes, clusters, exit codes.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Config;
use super::kube_api::{Api, Manner, kubeconfig_for, list};
use crate::binary::{command, run};

const OBJECTS: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: web }
spec:
  template:
    spec:
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
      requirements: [{ key: karpenter.sh/capacity-type, operator: In, values: [spot] }]
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: web }
spec:
  role: web
  amiSelectorTerms: [{ alias: al2023@latest }]
  subnetSelectorTerms: [{ tags: { a: b } }]
  securityGroupSelectorTerms: [{ tags: { a: b } }]
";

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn imported_configuration_is_valid_and_survives_a_round_trip() {
    let imported = run(&["import"], OBJECTS);
    let (hcl, errors) = texts(&imported);
    assert_eq!(imported.status.code(), Some(0), "{errors}");
    assert_eq!(errors, "");
    let config = Config::new(&format!(
        "{hcl}\ncluster \"a\" {{\n  region = \"us-east-1\"\n  eks {{}}\n}}\n"
    ));
    let valid = run(&["validate", config.path()], "");
    assert_eq!(valid.status.code(), Some(0), "{}", texts(&valid).1);
    let exported = run(&["export", "--format", "karpenter", "--config", config.path()], "");
    let (yaml, errors) = texts(&exported);
    assert_eq!(exported.status.code(), Some(0), "{errors}");
    let again = run(&["import", "-f", "-"], &yaml);
    assert_eq!(texts(&again).0, hcl);

    let file = config.0.path().join("out.yaml");
    let path = file.to_str().expect("a readable path");
    let exported = run(&["export", "--config", config.path(), "-o", path], "");
    assert_eq!(exported.status.code(), Some(0));
    assert_eq!(fs::read_to_string(&file).expect("written"), yaml);
}

#[test]
fn dropped_fields_are_reported_with_exit_code_2() {
    let odd = OBJECTS.replace("role: web", "role: web\n  hibernation: true");
    let imported = run(&["import", "--cluster", "prod-*"], &odd);
    let (hcl, errors) = texts(&imported);
    assert_eq!(imported.status.code(), Some(2), "{errors}");
    assert_eq!(errors, "EC2NodeClass/web: dropped spec.hibernation (unknown field)\n");
    assert!(hcl.contains("# import: dropped spec.hibernation (unknown field)"), "{hcl}");
    assert_eq!(hcl.matches("clusters = [\"prod-*\"]").count(), 1, "{hcl}");

    let config =
        Config::new("cluster \"a\" {\n  simulated {}\n}\npool \"a\" { launch_timeout = \"7m\" }\n");
    let exported = run(&["export", "--config", config.path()], "");
    let (yaml, errors) = texts(&exported);
    assert_eq!(exported.status.code(), Some(2), "{errors}");
    for line in errors.lines() {
        assert!(yaml.contains(&format!("# export: {line}\n")), "{line}\n{yaml}");
    }
    assert!(errors.contains("dropped pool.a.launch_timeout ("), "{errors}");

    for text in ["", "a: [", "apiVersion: v1\nkind: Secret\nmetadata: { name: a }\n"] {
        let refused = run(&["import"], text);
        assert_eq!(refused.status.code(), Some(1), "{text}");
        assert!(texts(&refused).1.starts_with("Error: "), "{text}");
    }
    let elsewhere = run(&["export", "--config", config.path(), "--cluster", "b"], "");
    assert_eq!(elsewhere.status.code(), Some(1));
}

#[test]
fn import_reads_and_writes_directories_and_never_overwrites_files() {
    let (from, to) = (TempDir::new().expect("created"), TempDir::new().expect("created"));
    fs::write(from.path().join("a.yaml"), OBJECTS).expect("written");
    fs::write(from.path().join("b.txt"), "a: [").expect("written");
    let path = |dir: &TempDir| dir.path().to_str().expect("a readable path").to_owned();
    let (from, into) = (path(&from), path(&to));
    let arguments = ["import", "-f", &from, "-o", &into];
    let imported = run(&arguments, "");
    assert_eq!(imported.status.code(), Some(0), "{}", texts(&imported).1);
    assert_eq!(texts(&imported).0, "");
    let entries = fs::read_dir(to.path()).expect("read");
    let names = entries.map(|own| own.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|own| own.to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, ["clusters.hcl", "node_classes.hcl", "pools.hcl"]);
    let formatted = run(&["fmt", "-check", &into], "");
    assert_eq!(formatted.status.code(), Some(0), "{}", texts(&formatted).0);
    let again = run(&arguments, "");
    assert_eq!(again.status.code(), Some(1));
    assert!(texts(&again).1.contains("node_classes.hcl"), "{}", texts(&again).1);
}

fn case(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/autoscaler");
    path.join(name).to_str().expect("a readable path").to_owned()
}

#[test]
fn cluster_autoscaler_is_imported_with_its_groups() {
    let to = TempDir::new().expect("created");
    let into = to.path().to_str().expect("a readable path");
    let (autoscaler, groups) = (case("managed/autoscaler.yaml"), case("managed/groups.json"));
    let templates = case("managed/templates.json");
    let workers = case("managed/nodegroup-workers.json");
    let inputs = ["--asg", &groups, "--asg", &templates, "--asg", &workers];
    let whole =
        [&["import", "--cluster-autoscaler", &autoscaler, "-o", into][..], &inputs].concat();
    let imported = run(&whole, "");
    let errors = texts(&imported).1;
    assert_eq!(imported.status.code(), Some(2), "{errors}");
    assert!(errors.contains("Pod/ca: dropped false (not a flag)"), "{errors}");
    let valid = run(&["validate", into], "");
    assert_eq!(valid.status.code(), Some(0), "{}", texts(&valid).1);
    let formatted = run(&["fmt", "-check", into], "");
    assert_eq!(formatted.status.code(), Some(0), "{}", texts(&formatted).0);
    let clusters = fs::read_to_string(to.path().join("clusters.hcl")).expect("written");
    assert!(clusters.contains("cluster \"shop\" {"), "{clusters}");
    let again = run(&whole, "");
    assert_eq!(again.status.code(), Some(1));
    assert!(texts(&again).1.contains("clusters.hcl: the file exists"));

    // From standard input, with flags as text.
    let flags = "--v=4 --cluster-name=shop";
    let piped = run(&["import", "--cluster-autoscaler", "-"], flags);
    let (hcl, errors) = texts(&piped);
    assert_eq!(piped.status.code(), Some(2), "{errors}");
    assert!(errors.contains("<stdin>: not needed --v ("), "{errors}");
    assert!(hcl.contains("import: missing groups ("), "{hcl}");
}

#[test]
fn file_with_a_token_is_readable_only_by_its_owner() {
    let to = TempDir::new().expect("created");
    let path = |name: &str| to.path().join(name);
    let group = json!({"AutoScalingGroups": [{
        "AutoScalingGroupName": "web",
        "LaunchTemplate": {"LaunchTemplateId": "lt-1", "Version": "1"},
    }]});
    // K3S_TOKEN=a
    let data = json!({"InstanceType": "m5.large", "UserData": "SzNTX1RPS0VOPWEK"});
    let template = json!({"LaunchTemplateVersions": [
        {"LaunchTemplateId": "lt-1", "VersionNumber": 1, "LaunchTemplateData": data},
    ]});
    fs::write(path("groups.json"), group.to_string()).expect("written");
    fs::write(path("templates.json"), template.to_string()).expect("written");
    let named = |name: &str| path(name).to_str().expect("a readable path").to_owned();
    let (groups, templates) = (named("groups.json"), named("templates.json"));
    let into = named("hcl");
    let inputs = ["--asg", &groups, "--asg", &templates, "-o", &into];
    let whole = [&["import", "--cluster-autoscaler", "-"][..], &inputs].concat();
    let imported = run(&whole, "--v=4");
    assert_eq!(imported.status.code(), Some(2), "{}", texts(&imported).1);
    let mode = |name: &str| {
        let file = fs::metadata(path(name)).expect("written");
        file.permissions().mode() & 0o777
    };
    assert_eq!(mode("hcl/node_classes.hcl"), 0o600);
    // Other files follow the umask.
    assert_eq!(mode("hcl/pools.hcl"), mode("groups.json"));
}

#[test]
fn invalid_import_arguments_exit_with_1() {
    let groups = case("managed/groups.json");
    let flags = case("flags/flags.txt");
    let folder = case("flags");
    for arguments in [
        &["--asg", &groups][..],
        &["-f", &groups, "--cluster-autoscaler", &flags],
        &["--from-cluster", "-f", &groups],
        &["--context", "a"],
        &["--frobnicate"],
        &["--cluster-autoscaler", &folder],
        &["--cluster-autoscaler", "/nowhere"],
        &["--cluster-autoscaler", &groups],
        &["--cluster-autoscaler", &flags, "--asg", &flags],
        &["--cluster-autoscaler", "-", "--asg", "-"],
        &["--from-cluster", "--kubeconfig", "/nowhere"],
    ] {
        let refused = run(&[&["import"], arguments].concat(), "");
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        let (hcl, errors) = texts(&refused);
        assert!(hcl.is_empty() && !errors.is_empty(), "{arguments:?}: {errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    }
}

/// Returns the discovery response of an API with these kinds of Karpenter.
fn kinds(plurals: &[&str]) -> Value {
    let names = plurals.iter().map(|own| json!({ "name": own }));
    json!({ "kind": "APIResourceList", "resources": names.collect::<Vec<_>>() })
}

fn from(kubeconfig: &Path) -> Output {
    let path = kubeconfig.to_str().expect("a readable path");
    run(&["import", "--from-cluster", "--kubeconfig", path], "")
}

#[test]
fn import_from_a_cluster_without_objects_gives_the_reason() {
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"requirements": [],
            "nodeClassRef": {"kind": "EC2NodeClass", "name": "web"}}}},
    });
    let own = [("v1", kinds(&["nodepools"])), ("nodepools", list(vec![pool]))];
    let api = Api::with(Manner::Well, own.clone());
    let imported = from(api.kubeconfig());
    let (hcl, errors) = texts(&imported);
    let mut asked = command(&["import", "--from-cluster"]);
    let by_environment = asked.env("KUBECONFIG", api.kubeconfig()).output();
    assert_eq!(texts(&by_environment.expect("it ends")).0, hcl);
    let mut asked = command(&["import", "--from-cluster"]);
    let several = asked.env("KUBECONFIG", "/a:/b").output().expect("it ends");
    assert_eq!(several.status.code(), Some(1));
    assert!(texts(&several).1.contains("KUBECONFIG names several"));
    // Its node class is missing.
    assert_eq!(imported.status.code(), Some(2), "{errors}");
    assert!(hcl.contains("pool \"web\" {"), "{hcl}");

    let check = |output: Output, expect: &[&str]| {
        let (hcl, errors) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert_eq!(hcl, "");
        for words in expect {
            assert!(errors.contains(words), "no {words} in {errors}");
        }
    };
    let api = Api::with(Manner::Forbids("nodepools"), own);
    let right = "--verb=list --resource=nodepools.karpenter.sh";
    check(from(api.kubeconfig()), &["forbidden (403)", right]);
    let api = Api::with(Manner::Forbids("v1"), []);
    check(from(api.kubeconfig()), &["--verb=get --non-resource-url=/apis/*"]);
    let api = Api::with(Manner::Well, [("v1", kinds(&["nodepools", "ec2nodeclasses"]))]);
    let there = "its API serves nodepools.karpenter.sh, ec2nodeclasses.karpenter.k8s.aws";
    check(from(api.kubeconfig()), &[there, "there are no objects"]);
    let api = Api::with(Manner::Well, []);
    let none = "does not serve nodepools.karpenter.sh (v1 or v1beta1), nodeoverlays.karpenter.sh";
    check(from(api.kubeconfig()), &[none, "--context"]);

    let dir = TempDir::new().expect("created");
    let nobody = dir.path().join("kubeconfig");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    fs::write(&nobody, kubeconfig_for(port, "{}")).expect("written");
    check(from(&nobody), &["reach the API at http://127.0.0.1:", "get --raw /version"]);
}
