//! Invalid configurations: a snapshot for each error, and a case for each kind of error.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use insta::{assert_snapshot, glob, with_settings};
use outrigger::config::diagnostic::{Diagnostic, ProblemCode, Severity, render_all, report_json};
use outrigger::config::{Inputs, SourceFile, load};

use super::{Case, case_name, load_text};

fn problems(path: &Path) -> Vec<Diagnostic> {
    match Case::of(path).load() {
        Ok(config) => config.warnings,
        Err(problems) => problems,
    }
}

#[test]
fn invalid_configurations_give_the_errors_of_their_snapshots() {
    let check = |path: &Path| {
        let name = case_name(path);
        let problems = problems(path);
        assert!(!problems.is_empty(), "{name} gives no problem");
        let text = render_all(&problems).replace(env!("CARGO_PKG_VERSION"), "[version]");
        with_settings!({
            snapshot_path => "bad",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            snapshot_suffix => name,
        }, {
            assert_snapshot!("refused", text);
        });
    };
    glob!("..", "bad-config/*.{hcl,json}", check);
    glob!("..", "bad-config/*/main.hcl", check);
}

/// A setting without effect is not reported as ignored, and a rejected setting is not reported as
/// kept.
#[test]
fn unset_or_rejected_settings_give_no_ignored_warning() {
    let warned = |text: &str| {
        let problems = load_text(text).map_or_else(|problems| problems, |config| config.warnings);
        let codes = problems.iter().map(|problem| problem.code);
        codes.collect::<Vec<ProblemCode>>()
    };
    for (text, expect) in [
        ("fleet {\n  limits = null\n}\n", vec![]),
        ("fleet {\n  limits = {}\n}\n", vec![]),
        ("cluster \"demo\" {\n  placement_hints = true\n  simulated {}\n}\n", vec![]),
        ("scheduler {\n  min_values_policy = \"strict\"\n}\n", vec![]),
        ("fleet {\n  limits = { nodes = 5 }\n}\nfleets {}\n", vec![ProblemCode::UnknownBlock]),
        ("fleet {\n  limits = { nodes = -5 }\n}\n", vec![ProblemCode::InvalidQuantity]),
    ] {
        assert_eq!(warned(text), expect, "{text}");
    }
}

#[test]
fn many_warnings_do_not_hide_an_error() {
    let values: String = (0..300).map(|n| format!("v{n} = {n}\n")).collect();
    let inputs =
        Inputs { var_files: vec![SourceFile::new("x.vars.hcl", values)], ..Inputs::default() };
    let text = "cluster \"demo\" {\n  simulated {}\n}\npool \"one\" {\n  weight = -1\n}\n";
    let problems = load(&[SourceFile::new("main.hcl", text)], &inputs).expect_err("an error");
    let errors = problems.iter().filter(|it| it.severity == Severity::Error);
    let errors: Vec<ProblemCode> = errors.map(|problem| problem.code).collect();
    assert_eq!(errors, [ProblemCode::OutOfRange]);
}

#[test]
fn every_problem_code_has_a_test_case() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/bad-config");
    let mut codes = BTreeSet::new();
    let mut cases = 0;
    for entry in std::fs::read_dir(root).expect("the folder of cases") {
        let path = entry.expect("an entry").path();
        let path: PathBuf = if path.is_dir() { path.join("main.hcl") } else { path };
        codes.extend(problems(&path).iter().map(|problem| problem.code));
        cases += 1;
    }
    let missing: Vec<&str> = ProblemCode::ALL
        .iter()
        // Files are read by the shell; its cases are in door.rs.
        .filter(|code| **code != ProblemCode::Unreadable && !codes.contains(code))
        .map(|code| code.as_str())
        .collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
    assert!(cases >= 60, "{cases} cases");
}

#[test]
fn json_report_has_terraforms_format() {
    let text = "pool \"general\" {\n  wieght = 10\n}\n";
    let problems = load_text(text).expect_err("an unknown argument");
    let report = report_json(&problems);
    assert_eq!(report["format_version"], "1.0");
    assert_eq!(report["valid"], false);
    assert_eq!(report["error_count"], 1);
    let diagnostic = &report["diagnostics"][0];
    assert_eq!(diagnostic["severity"], "error");
    assert_eq!(diagnostic["summary"], "Unsupported argument");
    assert_eq!(diagnostic["range"]["filename"], "main.hcl");
    assert_eq!(diagnostic["range"]["start"]["line"], 2);
    assert_eq!(diagnostic["range"]["start"]["column"], 3);
    assert_eq!(diagnostic["range"]["end"]["byte"], 25);
    let snippet = &diagnostic["snippet"];
    assert_eq!(snippet["context"], "pool \"general\"");
    assert_eq!(snippet["code"], "  wieght = 10");
    assert_eq!(snippet["start_line"], 2);
    assert_eq!(snippet["highlight_start_offset"], 2);
    assert_eq!(snippet["highlight_end_offset"], 8);
}
