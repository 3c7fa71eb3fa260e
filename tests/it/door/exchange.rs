//! Karpenter's objects come in and go out by the door: files, directories, pipes, exit codes.
//! It must not know how either is made.

use std::fs;
use std::process::Output;

use tempfile::TempDir;

use super::Config;
use super::process::run;

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
fn what_comes_in_can_be_used_and_goes_out_again() {
    let imported = run(&["import"], OBJECTS);
    let (hcl, said) = texts(&imported);
    assert_eq!(imported.status.code(), Some(0), "{said}");
    assert_eq!(said, "");
    let config = Config::new(&format!(
        "{hcl}\ncluster \"a\" {{\n  region = \"us-east-1\"\n  eks {{}}\n}}\n"
    ));
    let valid = run(&["validate", config.path()], "");
    assert_eq!(valid.status.code(), Some(0), "{}", texts(&valid).1);
    let exported = run(
        &["export", "--format", "karpenter", "--config", config.path()],
        "",
    );
    let (yaml, said) = texts(&exported);
    assert_eq!(exported.status.code(), Some(0), "{said}");
    let again = run(&["import", "-f", "-"], &yaml);
    assert_eq!(texts(&again).0, hcl);

    let file = config.0.path().join("out.yaml");
    let path = file.to_str().expect("a readable path");
    let exported = run(&["export", "--config", config.path(), "-o", path], "");
    assert_eq!(exported.status.code(), Some(0));
    assert_eq!(fs::read_to_string(&file).expect("written"), yaml);
}

#[test]
fn what_is_lost_is_said_and_ends_with_2() {
    let odd = OBJECTS.replace("role: web", "role: web\n  hibernation: true");
    let imported = run(&["import", "--cluster", "prod-*"], &odd);
    let (hcl, said) = texts(&imported);
    assert_eq!(imported.status.code(), Some(2), "{said}");
    assert_eq!(
        said,
        "EC2NodeClass/web: dropped spec.hibernation (an unknown field)\n"
    );
    assert!(
        hcl.contains("# import: dropped spec.hibernation (an unknown field)"),
        "{hcl}"
    );
    assert_eq!(hcl.matches("clusters = [\"prod-*\"]").count(), 1, "{hcl}");

    let config =
        Config::new("cluster \"a\" {\n  simulated {}\n}\npool \"a\" { launch_timeout = \"7m\" }\n");
    let exported = run(&["export", "--config", config.path()], "");
    let (yaml, said) = texts(&exported);
    assert_eq!(exported.status.code(), Some(2), "{said}");
    for line in said.lines() {
        assert!(
            yaml.contains(&format!("# export: {line}\n")),
            "{line}\n{yaml}"
        );
    }
    assert!(said.contains("dropped pool.a.launch_timeout ("), "{said}");

    for text in [
        "",
        "a: [",
        "apiVersion: v1\nkind: Secret\nmetadata: { name: a }\n",
    ] {
        let refused = run(&["import"], text);
        assert_eq!(refused.status.code(), Some(1), "{text}");
        assert!(texts(&refused).1.starts_with("Error: "), "{text}");
    }
    let elsewhere = run(&["export", "--config", config.path(), "--cluster", "b"], "");
    assert_eq!(elsewhere.status.code(), Some(1));
}

#[test]
fn a_directory_is_read_and_one_is_written_but_nothing_in_it_is_overwritten() {
    let (from, to) = (TempDir::new().expect("made"), TempDir::new().expect("made"));
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
    let mut names: Vec<String> = names
        .map(|own| own.to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["clusters.hcl", "node_classes.hcl", "pools.hcl"]);
    let formatted = run(&["fmt", "-check", &into], "");
    assert_eq!(formatted.status.code(), Some(0), "{}", texts(&formatted).0);
    let again = run(&arguments, "");
    assert_eq!(again.status.code(), Some(1));
    assert!(
        texts(&again).1.contains("node_classes.hcl"),
        "{}",
        texts(&again).1
    );
}
