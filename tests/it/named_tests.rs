//! Tables that name tests: every named test exists.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the path of a file of this repository.
pub(crate) fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(inside)
}

/// Returns the text of a file of this repository.
pub(crate) fn text(inside: &str) -> String {
    fs::read_to_string(path(inside)).unwrap_or_else(|error| panic!("{inside}: {error}"))
}

/// Returns the rows of a tab-separated table. Its first line has the column names.
pub(crate) fn rows<const N: usize>(table: &str, columns: [&str; N]) -> Vec<[String; N]> {
    let text = text(table);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(columns.join("\t").as_str()), "first line of {table}");
    let row = |line: &str| {
        let fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
        fields.try_into().unwrap_or_else(|_| panic!("{table}: {N} fields: {line}"))
    };
    lines.map(row).collect()
}

/// Returns the file of a test, by its path in the test output.
///
/// # Errors
///
/// The file, module or test does not exist.
pub(crate) fn file(test: &str) -> Result<String, String> {
    let names: Vec<&str> = test.split("::").collect();
    let mut problem = "no such file".to_owned();
    // The unit tests and the integration tests have modules with equal names: a test of either is
    // found. An error is about the closest file.
    for length in 1..names.len() {
        for root in ["tests/it", "src"] {
            let file = format!("{root}/{}.rs", names[..length].join("/"));
            if path(&file).is_file() {
                match check_test(&file, &names[length..]) {
                    Ok(()) => return Ok(file),
                    Err(what) => problem = what,
                }
            }
        }
    }
    Err(problem)
}

/// Checks that a file has a test with this path inside it.
fn check_test(file: &str, inside: &[&str]) -> Result<(), String> {
    let source = text(file);
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let Some((name, modules)) = inside.split_last() else {
        return Err("no name of a function".to_owned());
    };
    let absent = |module: &&&str| !lines.iter().any(|line| *line == format!("mod {module} {{"));
    if let Some(module) = modules.iter().find(absent) {
        return Err(format!("{file} has no module {module}"));
    }
    let opens = [format!("fn {name}("), format!("async fn {name}(")];
    let is_test = |pair: &[&str]| {
        let named = opens.iter().any(|open| pair[1].starts_with(open.as_str()));
        named && pair[0].starts_with("#[") && pair[0].contains("test")
    };
    let found = lines.windows(2).any(is_test);
    let missing = || format!("{file} has no test {name}");
    found.then_some(()).ok_or_else(missing)
}

#[test]
fn tests_are_found_by_the_path_in_the_test_output() {
    let cases = [
        ("tidy::rules::no_such_test", Err("tests/it/tidy/rules.rs has no test no_such_test")),
        ("named_tests::rows", Err("tests/it/named_tests.rs has no test rows")),
        ("named_tests::inner::test", Err("tests/it/named_tests.rs has no module inner")),
        ("nowhere::test", Err("no such file")),
        // The unit tests and the integration tests have a module with this name.
        ("config::functions::functions_behave_as_in_terraform", Ok("tests/it/config/functions.rs")),
        (
            "config::source::tests::lines_and_columns_are_counted_in_characters",
            Ok("src/config/source.rs"),
        ),
    ];
    for (test, found) in cases {
        let found = found.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(file(test), found, "{test}");
    }
}
