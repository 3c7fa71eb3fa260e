//! Runs the checker on small trees and states the expected findings. It reads no file of the real
//! tree: that is left to the parent module.

use super::findings;

/// Checks that a tree of `(path, text)` has exactly these violations.
fn check(tree: &[(&str, &str)], expect: &[&str]) {
    let files = tree.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    assert_eq!(findings(&files.collect()), expect);
}

/// Checks a library with the modules `solve`, `engine` and `shell`, in that order, with this text
/// of `solve`.
fn check_solve(solve: &str, expect: &[&str]) {
    let lib = "//! L.\nmod solve;\nmod engine;\n#[cfg(feature = \"daemon\")]\npub mod shell;";
    let solve = format!("//! S.\n{solve}");
    let tree = [("src/engine.rs", "//! E.\nuse crate::solve;"), ("src/lib.rs", lib)];
    let shell = ("src/shell.rs", "//! S.\nuse crate::{engine, solve};\nuse tokio::time::Instant;");
    check(&[tree[0], tree[1], ("src/solve.rs", &solve), shell], expect);
}

#[test]
fn module_must_not_use_a_later_module() {
    let fault = "src/solve.rs:2: `solve` names `engine`, which is declared after it";
    check_solve("use crate::engine::Engine;", &[fault]);
    check_solve("use super::engine;", &[fault]);
    check_solve("fn f() { crate::engine::go::<u8>() }", &[fault]);
    check_solve("pub(in crate::engine) fn f() {}", &[fault]);
    check_solve(
        "mod inner { use super::super::engine; }",
        &["src/solve.rs:2: `solve::inner` names `engine`, which is declared after it"],
    );
}

#[test]
fn module_must_not_use_a_later_module_in_a_use_group() {
    let group = "use crate::{\n    solve::{self, A},\n    engine::{self as e, B},\n    shell,\n};";
    check_solve(
        group,
        &[
            "src/solve.rs:4: `solve` names `engine`, which is declared after it",
            "src/solve.rs:5: `solve` names `shell`, which is declared after it",
        ],
    );
    check_solve(
        "use {std::fmt, crate::engine as e};",
        &["src/solve.rs:2: `solve` names `engine`, which is declared after it"],
    );
}

#[test]
fn order_rule_ignores_comments_strings_and_test_modules() {
    check_solve("/// See [`crate::engine`].\nconst S: &str = \"crate::engine\";", &[]);
    check_solve("#[cfg(test)]\nmod tests { use crate::engine; use std::time::Instant; }", &[]);
    check_solve("use crate::Item; use super::Other; use crate::solve::Own;", &[]);
}

#[test]
fn child_module_may_use_only_earlier_siblings() {
    let tree = |pack: &'static str| {
        [
            ("src/lib.rs", "//! L.\npub mod solve;"),
            ("src/solve.rs", "//! S.\nmod problem;\nmod pack;\nmod relax;\nuse relax::R;"),
            ("src/solve/pack.rs", pack),
            ("src/solve/problem.rs", "//! P."),
            ("src/solve/relax.rs", "//! R.\nuse super::{Solve, pack};"),
        ]
    };
    check(&tree("//! P.\nuse super::problem::Problem;\nuse super::Solve;"), &[]);
    check(
        &tree("//! P.\nuse super::{Solve, relax};\nuse crate::solve::relax::R;"),
        &[
            "src/solve/pack.rs:2: `solve::pack` names `solve::relax`, which is declared after it",
            "src/solve/pack.rs:3: `solve::pack` names `solve::relax`, which is declared after it",
        ],
    );
}

#[test]
fn binary_may_use_any_module() {
    let lib = ("src/lib.rs", "//! L.\npub mod cli {}");
    check(&[lib, ("src/main.rs", "//! M.\nuse outrigger::cli;\nfn main() { cli::run() }")], &[]);
}

#[test]
fn core_module_must_not_use_io_crates_or_clocks() {
    let names = |name: &str| format!("`solve` names `{name}`, which is forbidden in the core");
    check_solve("use std::{fmt, fs::File};", &[&format!("src/solve.rs:2: {}", names("std::fs"))]);
    check_solve(
        "fn f() { ::tokio::spawn(g()); }",
        &[&format!("src/solve.rs:2: {}", names("tokio"))],
    );
    check_solve("use kube;", &[&format!("src/solve.rs:2: {}", names("kube"))]);
    check_solve(
        "fn f() { time::Instant::now() }",
        &[&format!("src/solve.rs:2: {}", names("Instant"))],
    );
    check_solve(
        "fn f() { fastrand::Rng::new() }",
        &[&format!("src/solve.rs:2: {}", names("fastrand::Rng::new"))],
    );
    check_solve(
        "fn f(kube: u8, e: std::env::VarError) { kube; }",
        &[&format!("src/solve.rs:2: {}", names("std::env"))],
    );
    check_solve("use std::time::Duration; fn f(kube: u8) { my::tokio::g(kube) }", &[]);
}

/// Checks a library with the modules `low`, `host` and `high`, of which `parent` has a
/// feature-gated child.
fn check_child(parent: &str, child: &str, expect: &[&str]) {
    let lib = "//! L.\nmod low;\nmod host;\nmod high;";
    let parent_text = format!("//! P.\n{child}");
    let (parent_file, child_file) = (format!("src/{parent}.rs"), format!("src/{parent}/a.rs"));
    let tree = [
        ("src/lib.rs", lib),
        (parent_file.as_str(), parent_text.as_str()),
        (child_file.as_str(), "//! A.\nuse tokio::sync;"),
    ];
    check(&tree, expect);
}

#[test]
fn feature_gated_child_may_use_io_only_from_the_host_module_on() {
    let fault = |module: &str| {
        format!("src/{module}/a.rs:2: `{module}` names `tokio`, which is forbidden in the core")
    };
    let with_feature = "#[cfg(feature = \"daemon\")]\nmod a;";
    check_child("low", with_feature, &[&fault("low")]);
    check_child("low", "mod a;", &[&fault("low")]);
    for module in ["host", "high"] {
        check_child(module, with_feature, &[]);
        check_child(module, "mod a;", &[&fault(module)]);
        check_child(module, "#[cfg(not(feature = \"daemon\"))]\nmod a;", &[&fault(module)]);
    }
}

#[test]
fn file_has_at_most_500_lines_of_production_code() {
    let line = "static A: u8 = 1; // One.\n\n// Nothing.\n";
    let tests = "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
    let text = |lines: usize| format!("//! L.\n{}{tests}", line.repeat(lines));
    check(&[("src/lib.rs", &text(500))], &[]);
    check(
        &[("src/lib.rs", &text(501))],
        &["src/lib.rs:1: 501 lines of production code, 500 at most"],
    );
}

#[test]
fn line_has_at_most_100_columns() {
    let text = |columns: usize| format!("//! L.\n//{}", "é".repeat(columns - 2));
    check(&[("src/lib.rs", &text(100))], &[]);
    check(&[("src/lib.rs", &text(101))], &["src/lib.rs:2: 101 columns, 100 at most"]);
}

#[test]
fn file_must_start_with_a_module_comment() {
    let text = "/// L.\nfn f() {}";
    check(
        &[("tests/it/main.rs", text)],
        &["tests/it/main.rs:1: the file does not start with `//!`"],
    );
}

#[test]
fn every_file_is_reached_by_a_mod_line() {
    let lib = ("src/lib.rs", "//! L.\npub mod a;\n#[cfg(test)]\nmod t;");
    let tree = [lib, ("src/a.rs", "//! A."), ("src/t.rs", "//! T."), ("src/b/mod.rs", "//! B.")];
    check(&tree, &["src/b/mod.rs:1: no `mod` line reaches this file"]);
    check(&[("tests/it/a.rs", "//! A.")], &["tests/it/a.rs:1: no `mod` line reaches this file"]);
}

#[test]
fn vague_file_and_module_names_are_rejected() {
    let tree = [("src/lib.rs", "//! L.\nmod utils;"), ("src/utils.rs", "//! U.")];
    check(
        &tree,
        &[
            "src/lib.rs:2: `utils` is a vague module name",
            "src/utils.rs:1: `utils` is a vague file name: name what the file contains",
        ],
    );
}

#[test]
fn unfinished_code_is_rejected() {
    let text = "//! L.\nfn f() { todo!() }\nfn g() { dbg!(1); unimplemented!() } // FIXME: h.\n";
    check(
        &[("src/lib.rs", text)],
        &[
            "src/lib.rs:2: `todo!` is unfinished work",
            "src/lib.rs:3: `FIXME` is unfinished work",
            "src/lib.rs:3: `dbg!` is unfinished work",
            "src/lib.rs:3: `unimplemented!` is unfinished work",
        ],
    );
    check(&[("src/lib.rs", "//! L.\nconst S: &str = \"todo!() FIXME #[ignore]\";")], &[]);
}

#[test]
fn doc_examples_must_be_text_blocks() {
    let text = "//! ```text\n//! a\n//! ```\n\n/// ```\n/// f();\n/// ```\nfn f() {}\n";
    check(&[("src/lib.rs", text)], &["src/lib.rs:5: no test runs this example: make it a test"]);
}

#[test]
fn allow_and_ignore_attributes_are_rejected() {
    let text = "//! L.\n#![allow(a)]\n#[cfg_attr(b, allow(c))]\n#[ignore = \"d\"]\n#[expect(e)]";
    check(
        &[("src/lib.rs", text)],
        &[
            "src/lib.rs:2: `#[allow]` does not warn when it is no longer needed: use `#[expect]`",
            "src/lib.rs:3: `#[allow]` does not warn when it is no longer needed: use `#[expect]`",
            "src/lib.rs:4: `#[ignore]` disables a test",
        ],
    );
}
