//! Every code that the program reports is in docs/DIAGNOSTICS.md, with its meaning and fix.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use outrigger::config::diagnostic::ProblemCode;
use outrigger::disruption::instance_drift::InstanceDrift;
use outrigger::model::node_class::resolved::{Cause, ConditionKind};
use outrigger::model::pool::Reason;
use outrigger::provider::RefusalKind;

type Codes = BTreeSet<String>;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(path).expect("it is there")
}

/// Returns the codes in the match arms of the first function after the mark that returns a static
/// string.
fn codes_in(path: &str, mark: &str) -> Codes {
    let text = read(path);
    let (_, after) = text.split_once(mark).expect("the mark is there");
    let (_, own) = after.split_once("-> &'static str {").expect("a function");
    let (own, _) = own.split_once("\n    }\n").expect("its end");
    let arms = own.lines().filter_map(|line| line.split_once("=> \""));
    let codes: Codes =
        arms.filter_map(|(_, code)| Some(code.split_once('"')?.0.to_owned())).collect();
    assert!(!codes.is_empty(), "{path}: nothing after {mark}");
    codes
}

/// Returns the first cells of the table after a line. Each row must have a meaning and a fix.
fn documented_codes(page: &str, line: &str) -> Codes {
    let (_, after) = page.split_once(line).expect("the line is there");
    let rows = after.lines().skip_while(|own| !own.starts_with('|'));
    let rows = rows.take_while(|own| own.starts_with('|')).skip(2);
    let mut codes = Codes::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [code, why, advice] = cells[..] else {
            panic!("not three cells: {row}");
        };
        assert!(!why.is_empty() && !advice.is_empty(), "{row}");
        let code = code.strip_prefix('`').and_then(|own| own.strip_suffix('`'));
        let is_new = codes.insert(code.expect("a code in backticks").to_owned());
        assert!(is_new, "twice: {row}");
    }
    codes
}

/// Returns the event reasons: quoted words with a capital letter, except those in constants.
fn event_reasons() -> Codes {
    let text = read("src/engine/report/describe.rs");
    let (own, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
    let all = own.lines().filter(|own| !own.starts_with("const "));
    let quoted = all.flat_map(|own| own.split('"').skip(1).step_by(2));
    let is_reason = |own: &&str| {
        own.starts_with(|c: char| c.is_ascii_uppercase()) && own.chars().all(char::is_alphabetic)
    };
    quoted.filter(is_reason).map(str::to_owned).collect()
}

fn owned<'a>(all: impl IntoIterator<Item = &'a str>) -> Codes {
    all.into_iter().map(str::to_owned).collect()
}

#[test]
fn every_diagnostic_code_is_documented_with_a_fix() {
    let page = read("docs/DIAGNOSTICS.md");
    let problems = owned(ProblemCode::ALL.iter().map(|own| own.as_str()));
    let refusals = owned(RefusalKind::ALL.iter().map(|(_, name)| *name));
    let verdicts = codes_in("src/disruption/verdict.rs", "pub fn code");
    let outlooks = codes_in("src/plan/explain_node.rs", "impl ReasonOutcome");
    let blockers = codes_in("src/state/disruption_blockers.rs", "impl DisruptionBlocker");
    let holds = codes_in("src/state/disruption_blockers.rs", "impl PodBlocker");
    let cases = [
        ("## Configuration\n", problems),
        (
            "## Clusters that cannot be started\n",
            &codes_in("src/runtime/clusters/error.rs", "The stable code")
                | &codes_in("src/kubernetes/client.rs", "The stable code"),
        ),
        (
            "## API servers that cannot be used\n",
            codes_in("src/kubernetes/api_error.rs", "The stable code"),
        ),
        ("## Host and cluster checks\n", codes_in("src/doctor/codes.rs", "The stable name")),
        ("## Unschedulable pods\n", codes_in("src/scheduling.rs", "impl RejectionCode")),
        ("## Disruption reasons\n", owned(Reason::NAMES)),
        (
            "Causes of drift:\n",
            &codes_in("src/disruption/drift.rs", "impl DriftReason") | &owned(InstanceDrift::NAMES),
        ),
        ("Interruption messages", codes_in("src/provider.rs", "impl Interruption")),
        ("## Events\n", event_reasons()),
        ("## Nodes that are kept\n", &verdicts | &outlooks),
        ("Blockers of voluntary disruption:\n", &blockers | &holds),
        (
            "## Nodes that are draining\n",
            codes_in("src/state/drain_blockers.rs", "impl DrainBlocker"),
        ),
        ("## Launches that are refused\n", refusals),
        ("## Node classes that are not ready\n", owned(ConditionKind::NAMES)),
        ("Reasons for a condition that does not hold:\n", owned(Cause::NAMES)),
        (
            "## Clusters and instances that do not match\n",
            codes_in("src/state/cluster_identity.rs", "impl Mismatch"),
        ),
        ("## Commands that fail\n", codes_in("src/provider.rs", "impl FailureKind")),
    ];
    for (line, codes) in cases {
        assert_eq!(documented_codes(&page, line), codes, "{line}");
    }
}

/// Finds functions that return codes in files that the test above does not list.
#[test]
fn only_known_files_define_diagnostic_codes() {
    let mut found = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("it is text");
            let spells = ["fn code(&self) -> &'static str {", "fn code(self) -> &'static str {"];
            if spells.iter().any(|own| text.contains(own)) {
                let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR"));
                found.insert(name.expect("below it").display().to_string());
            }
        }
    }
    let known = [
        "src/disruption/verdict.rs",
        "src/plan/explain_node.rs",
        "src/doctor/codes.rs",
        "src/runtime/clusters/error.rs",
        "src/kubernetes/api_error.rs",
        "src/kubernetes/client.rs",
        "src/state/disruption_blockers.rs",
        "src/state/cluster_identity.rs",
        "src/state/drain_blockers.rs",
    ];
    assert_eq!(found, known.map(str::to_owned).into());
}
