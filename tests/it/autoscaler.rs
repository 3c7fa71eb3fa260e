//! Cluster Autoscaler configurations are converted to valid HCL, and dropped items are reported.

use std::fs;
use std::path::{Path, PathBuf};

use insta::{assert_snapshot, with_settings};
use outrigger::config::diagnostic::render_all;
use outrigger::config::{Config, Inputs, SourceFile, load};
use outrigger::migrate::cluster_autoscaler::import::{
    AutoscalerError, ImportOptions, Imported, import,
};
use proptest::prelude::{Strategy, any, prop_assert, prop_oneof, proptest};
use proptest::sample::Index;
use serde_json::Value;

use crate::karpenter::snapshot_text;

mod nodes;

const CASES: [&str; 5] = ["flags", "helm", "managed", "nonsense", "priority"];

fn case_folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/autoscaler").join(case)
}

/// Returns the autoscaler input of a case and the AWS responses for its groups.
fn files(case: &str) -> (SourceFile, Vec<SourceFile>) {
    let entries = fs::read_dir(case_folder(case)).expect("a folder");
    let mut paths: Vec<PathBuf> = entries.map(|own| own.expect("an entry").path()).collect();
    paths.sort();
    let (mut autoscaler, mut answers) = (None, Vec::new());
    for path in paths {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = || SourceFile::new(name.clone(), fs::read_to_string(&path).expect("UTF-8"));
        match path.extension().and_then(|end| end.to_str()) {
            Some("json") => answers.push(text()),
            Some("yaml" | "txt") => autoscaler = Some(text()),
            _ => {}
        }
    }
    (autoscaler.expect("an autoscaler"), answers)
}

fn import_case(case: &str) -> Imported {
    let (autoscaler, answers) = files(case);
    import(&autoscaler, &answers, &ImportOptions::default()).expect(case)
}

/// Imports these flags with these AWS responses.
fn import_flags(flags: &str, answers: &[&str]) -> Result<Imported, AutoscalerError> {
    let answers = answers.iter().map(|own| SourceFile::new("groups.json", *own));
    let answers: Vec<SourceFile> = answers.collect();
    let flags = SourceFile::new("flags.txt", flags);
    import(&flags, &answers, &ImportOptions::default())
}

/// Loads the imported configuration as `validate` does. Adds a cluster if the import has none.
fn load_imported(imported: &Imported) -> Config {
    let text = imported.text();
    let mut files = vec![SourceFile::new("main.hcl", text.clone())];
    if !text.lines().any(|line| line.starts_with("cluster ")) {
        let mut lines = text.lines().map(str::trim_start);
        let named = lines.find_map(|line| line.strip_prefix("clusters ")?.split('"').nth(1));
        let name = named.unwrap_or("other");
        let cluster =
            format!("cluster \"{name}\" {{\n  region = \"eu-central-1\"\n  eks {{}}\n}}\n");
        files.push(SourceFile::new("cluster.hcl", cluster));
    }
    let config = load(&files, &Inputs::default());
    config.unwrap_or_else(|problems| panic!("{}\n{text}", render_all(&problems)))
}

#[test]
fn cluster_autoscaler_is_imported_as_valid_hcl_with_dropped_items_reported() {
    for case in CASES {
        let imported = import_case(case);
        load_imported(&imported);
        let notes: String = imported.notes.iter().map(|own| format!("{own}\n")).collect();
        with_settings!({
            snapshot_path => "autoscaler",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            snapshot_suffix => case,
        }, {
            assert_snapshot!("imported", snapshot_text(&imported) + &notes);
        });
    }
}

#[test]
fn every_dropped_or_missing_item_is_noted_in_the_hcl() {
    for case in CASES {
        let imported = import_case(case);
        let text = imported.text();
        assert!(!imported.losses.is_empty(), "{case}");
        for loss in &imported.losses {
            let what = if loss.missing { "missing" } else { "dropped" };
            let note = format!("import: {what} {} ({})", loss.path, loss.why);
            let plain = |c: char| if c.is_control() { ' ' } else { c };
            let note: String = note.chars().map(plain).collect();
            assert!(text.contains(&note), "{note}\n{text}");
        }
    }
}

/// Returns an Auto Scaling group with one instance type.
fn group(name: &str, more: &str) -> String {
    format!(
        "{{\"AutoScalingGroups\": [{{\"AutoScalingGroupName\": \"{name}\", \"MaxSize\": 5, \
         \"AutoScalingGroupARN\": \"arn:aws:autoscaling:eu-west-1:1:x\", \
         \"MixedInstancesPolicy\": {{\"LaunchTemplate\": {{\"Overrides\": \
         [{{\"InstanceType\": \"m5.large\"}}]}}}}{more}}}]}}"
    )
}

/// Flags, each with text that the HCL has only if the flag is set.
const CONVERTED_FLAGS: &[(&str, &str)] = &[
    ("--cluster-name=other", "cluster \"other\" {"),
    ("--nodes=0:3:web", "limits       = { nodes = 3 }"),
    ("--cores-total=0:64", "cpu = 64"),
    ("--memory-total=0:256", "memory = \"256Gi\""),
    ("--max-nodes-total=7", "nodes = 7"),
    ("--max-total-unready-percentage=20", "max_unready = \"20%\""),
    ("--scale-down-delay-after-add=1h", "after_launch  = \"1h\""),
    ("--scale-down-delay-after-delete=30s", "after_end     = \"30s\""),
    ("--scale-down-delay-after-failure=4m", "after_failure = \"4m\""),
    ("--max-scale-down-parallelism=4", "nodes   = 4"),
    ("--max-empty-bulk-delete=4", "nodes   = 4"),
    ("--max-drain-parallelism=2", "nodes   = 2"),
    ("--expendable-pods-priority-cutoff=-3", "priority_cutoff = -3"),
    ("--allowed-scheduler-names=volcano", "schedulers      = [\"volcano\"]"),
    ("--scale-down-enabled=false", "consolidate_after     = \"never\""),
    ("--scale-down-unneeded-time=2562047h", "consolidate_after     = \"never\""),
    ("--scale-down-unneeded-time=3m", "consolidate_after     = \"3m\""),
    ("--scale-down-utilization-threshold=0.7", "utilization_threshold = 70"),
    ("--scale-down-utilization-threshold=0", "consolidation     = \"empty\""),
    ("--max-graceful-termination-sec=60", "drain_timeout         = \"3m\""),
    ("--max-pod-eviction-time=10m", "drain_timeout         = \"20m\""),
    ("--max-node-provision-time=9m", "registration_timeout = \"9m\""),
    ("--max-node-startup-time=9m", "initialization_timeout = \"9m\""),
    ("--max-node-start-up-time=9m", "initialization_timeout = \"9m\""),
    ("--scale-down-unready-enabled=false", "auto_repair  = false"),
    ("--scale-down-unready-time=9m", "after     = \"9m\""),
    ("--startup-taint=slow", "startup_taint \"slow\" {"),
    ("--ignore-taint=slow", "startup_taint \"slow\" {"),
    ("--skip-nodes-with-system-pods=false", "dropped --skip-nodes-with-system-pods=false"),
    ("--expander=priority", "missing priorities"),
    ("--cloud-provider=gce", "dropped --cloud-provider=gce"),
];

#[test]
fn each_converted_flag_changes_the_hcl() {
    let group = group(
        "web",
        ", \"Tags\": [{\"Key\": \"k8s.io/cluster-autoscaler/node-template/taint/slow\", \
         \"Value\": \"1:NoSchedule\"}]",
    );
    let text = |flags: &str| {
        let imported = import_flags(&format!("--cluster-name=shop {flags}"), &[&group]);
        let imported = imported.expect(flags);
        load_imported(&imported);
        imported.text()
    };
    let without = text("");
    for (flags, expect) in CONVERTED_FLAGS {
        let own = text(flags);
        assert!(own.contains(expect), "{flags}: no {expect} in\n{own}");
        assert!(!without.contains(expect), "{expect} exists without {flags}");
    }
    assert!(without.contains("safety                = \"conservative\""), "{without}");
    let all = "--skip-nodes-with-system-pods=false --skip-nodes-with-local-storage=false \
               --skip-nodes-with-custom-controller-pods=false";
    assert!(!text(all).contains("safety"), "{}", text(all));
}

/// Flags with invalid values, each with the default of Cluster Autoscaler that the HCL must have.
/// Outrigger's own default differs.
const DEFAULTS: &[(&str, &str)] = &[
    ("--expendable-pods-priority-cutoff=ten", "priority_cutoff = -10"),
    (
        "--max-scale-down-parallelism=all",
        "budget {\n      nodes   = 10\n      reasons = [\"empty\", \"underutilized\"]\n    }",
    ),
    ("--scale-down-unneeded-time=soon", "consolidate_after     = \"10m\""),
    (
        "--max-drain-parallelism=all",
        "budget {\n      nodes   = 1\n      reasons = [\"underutilized\"]\n    }",
    ),
];

#[test]
fn autoscaler_defaults_are_written_for_absent_and_invalid_flags() {
    let group = group("web", "");
    for (flags, expect) in DEFAULTS {
        for flags in ["", flags] {
            let imported = import_flags(&format!("--cluster-name=shop {flags}"), &[&group]);
            let imported = imported.expect(expect);
            load_imported(&imported);
            let text = imported.text();
            assert!(text.contains(expect), "{flags}: no {expect} in\n{text}");
        }
    }
}

#[test]
fn every_converted_flag_is_tested_and_documented() {
    let table = include_str!("../../src/migrate/cluster_autoscaler/flags.tsv");
    let guide = include_str!("../../docs/MIGRATION.md");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split('\t').collect();
        let [name, _, _, "carried", _] = cells[..] else {
            continue;
        };
        assert!(guide.contains(&format!("`--{name}`")), "{name} is not in the guide");
        let tried =
            CONVERTED_FLAGS.iter().any(|(flags, _)| flags.starts_with(&format!("--{name}=")));
        // Other tests cover group discovery and the common setting of all safety flags.
        let elsewhere = name == "node-group-auto-discovery" || name.starts_with("skip-nodes-");
        assert!(tried || elsewhere, "no test of {name}");
    }
}

#[test]
fn import_errors_name_the_invalid_input() {
    let two = group("a", "").replace('[', "[7, ");
    let again = format!("{0}\n{0}", group("a", ""));
    let alike = group("a b", "").replace("]}", &format!(", {}", &group("a-b", "")[23..]));
    let rows = [
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: a}", "", "there is only Secret"),
        ("--v=4", "{\"AutoScalingGroups\": [", "read groups.json: "),
        ("--v=4", "kind: Pod", "it has none of AutoScalingGroups"),
        ("--v=4", "[]", "it has none of AutoScalingGroups"),
        ("--v=4", &two, "element 1 of AutoScalingGroups has no AutoScalingGroupName"),
        ("--v=4", "nodegroup: {}", "element 1 of nodegroup has no nodegroupName"),
        ("--v=4", "LaunchTemplateVersions: [{}]", "has no LaunchTemplateData"),
        ("--v=4", &again, "an earlier file describes the group a"),
        ("--v=4", &alike, "both become node_class \"a-b\""),
    ];
    for (autoscaler, answer, expect) in rows {
        let answers: &[&str] = if answer.is_empty() { &[] } else { &[answer] };
        let error = import_flags(autoscaler, answers).expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
        assert!(error.chars().count() < 500, "{error}");
    }
}

#[test]
fn priorities_become_weights_only_if_priority_is_the_first_expander() {
    let (autoscaler, answers) = files("priority");
    for (expander, is_weighed) in
        [("priority", true), ("priority,least-waste", true), ("least-waste,priority", false)]
    {
        let flag = format!("--expander={expander}");
        let text = autoscaler.text.replace("--expander=priority,least-nodes", &flag);
        assert!(text.contains(&flag), "{text}");
        let autoscaler = SourceFile::new("autoscaler.yaml", text);
        let imported = import(&autoscaler, &answers, &ImportOptions::default());
        let text = imported.expect(expander).text();
        assert_eq!(text.contains("\n  weight "), is_weighed, "{expander}: {text}");
        let is_lost = text.contains("dropped --expander=priority (");
        assert_ne!(is_lost, is_weighed, "{expander}: {text}");
    }
}

#[test]
fn import_without_groups_notes_the_missing_groups() {
    let imported = import_flags("--cluster-name=a --node-group-auto-discovery=asg:tag=x", &[]);
    let imported = imported.expect("an autoscaler");
    let text = imported.text();
    assert!(text.contains("missing groups (the input has no groups"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("pool")), "{text}");
    load_imported(&imported);
}

/// A change of a text: removes, repeats or inserts a piece.
#[derive(Clone, Debug)]
enum Change {
    Cut(Index, usize),
    Repeat(Index, usize),
    Put(Index, String),
}

fn any_change() -> impl Strategy<Value = Change> {
    let piece = prop_oneof![
        "[\\[\\]{}:,\"'#|>&*!%@`-]{1,3}",
        "(null|true|-1|99999999999999999999|1e999|\"\"|\\[\\]|\\{\\}|~|\\$\\{a\\}|%\\{b\\})",
        any::<String>(),
    ];
    prop_oneof![
        (any::<Index>(), 1_usize..60).prop_map(|(at, length)| Change::Cut(at, length)),
        (any::<Index>(), 1_usize..60).prop_map(|(at, length)| Change::Repeat(at, length)),
        (any::<Index>(), piece).prop_map(|(at, text)| Change::Put(at, text)),
    ]
}

fn apply_changes(text: &str, changes: &[Change]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for change in changes {
        if chars.is_empty() {
            break;
        }
        match change {
            Change::Cut(at, length) => {
                let at = at.index(chars.len());
                let end = (at + length).min(chars.len());
                chars.drain(at..end);
            }
            Change::Repeat(at, length) => {
                let at = at.index(chars.len());
                let end = (at + length).min(chars.len());
                let piece: Vec<char> = chars[at..end].to_vec();
                chars.splice(at..at, piece);
            }
            Change::Put(at, text) => {
                let at = at.index(chars.len());
                chars.splice(at..at, text.chars());
            }
        }
    }
    chars.into_iter().collect()
}

/// Values of a wrong type or range.
const ODD_VALUES: [&str; 12] = [
    "null",
    "true",
    "-1",
    "0",
    "99999999999999999999",
    "1e300",
    "\"\"",
    "\"${a} %{b} \\\"\\n# \\u0007\"",
    "\"NoSchedule\"",
    "[]",
    "{}",
    "[{\"Key\": [1], \"Ebs\": 7, \"InstanceType\": {}}]",
];

/// Replaces the value with this number, in depth-first order, by `odd`.
fn replace_nth(value: &mut Value, number: &mut usize, odd: &Value) -> bool {
    if *number == 0 {
        *value = odd.clone();
        return true;
    }
    *number -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| replace_nth(item, number, odd)),
        Value::Object(items) => items.values_mut().any(|item| replace_nth(item, number, odd)),
        _ => false,
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(items) => items.values().map(count).sum(),
        _ => 0,
    }
}

proptest! {
    #[test]
    fn altered_aws_responses_give_an_error_or_a_valid_configuration(
        case in 0..CASES.len(),
        places in proptest::collection::vec((any::<Index>(), 0..ODD_VALUES.len()), 1..6),
    ) {
        let (autoscaler, mut answers) = files(CASES[case]);
        for answer in &mut answers {
            let mut value: Value = serde_json::from_str(&answer.text).expect("JSON");
            for (at, odd) in &places {
                let odd = serde_json::from_str(ODD_VALUES[*odd]).expect("JSON");
                let mut number = at.index(count(&value));
                replace_nth(&mut value, &mut number, &odd);
            }
            answer.text = value.to_string();
        }
        match import(&autoscaler, &answers, &ImportOptions::default()) {
            Ok(imported) => drop(load_imported(&imported)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn altered_input_files_give_an_error_or_a_valid_configuration(
        case in 0..CASES.len(),
        first in proptest::collection::vec(any_change(), 0..4),
        others in proptest::collection::vec(any_change(), 0..8),
    ) {
        let (mut autoscaler, mut answers) = files(CASES[case]);
        autoscaler.text = apply_changes(&autoscaler.text, &first);
        for answer in &mut answers {
            answer.text = apply_changes(&answer.text, &others);
        }
        match import(&autoscaler, &answers, &ImportOptions::default()) {
            Ok(imported) => drop(load_imported(&imported)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn arbitrary_text_gives_an_error_or_a_valid_configuration(
        text in any::<String>(),
        flags in "(--[a-z=: -]{0,40} ?){0,6}",
    ) {
        for own in [&text, &flags] {
            match import_flags(own, &[&group("a", "")]) {
                Ok(imported) => drop(load_imported(&imported)),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
            prop_assert!(import_flags("--v=4", &[own]).is_err());
        }
    }
}
