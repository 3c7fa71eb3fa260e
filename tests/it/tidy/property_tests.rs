//! The filter of the campaigns matches every test with random cases.

use regex::Regex;

use super::words::sources;
use crate::named_tests::text;

/// Tests with random cases that the campaigns do not run, with the reasons.
const LEFT_OUT: &[(&str, &str)] = &[
    ("sim::random_clusters::", "some seeds show an endless consolidation, which is a known fault"),
    ("scheduling::invalid_clusters::", "one cluster takes minutes, which is a known fault"),
];

/// Returns the paths of the tests in `proptest!` blocks, as the test output has them.
fn property_tests() -> Vec<String> {
    let name = Regex::new(r"#\[test\]\s+fn (\w+)\(").expect("a pattern");
    // A block ends at the brace with its indentation.
    let block = ["", "    "].map(|indent| {
        let pattern = format!(r"(?ms)^({indent})proptest! \{{$(.*?)^{indent}\}}");
        Regex::new(&pattern).expect("a pattern")
    });
    let mut tests = Vec::new();
    for (path, source) in sources(&["src", "tests/it"]) {
        let module = path.trim_start_matches("src/").trim_start_matches("tests/it/");
        let module = module.trim_end_matches(".rs").replace('/', "::");
        for found in block.iter().flat_map(|block| block.captures_iter(&source)) {
            let inner = if path.starts_with("src/") && !module.ends_with("::tests") {
                "::tests"
            } else {
                ""
            };
            let names = name.captures_iter(&found[2]).map(|found| found[1].to_owned());
            tests.extend(names.map(|name| format!("{module}{inner}::{name}")));
        }
    }
    tests
}

#[test]
fn campaigns_run_every_property_test() {
    let script = text("tests/tools.sh");
    let (_, filter) = script.split_once("property_tests='").expect("the filter");
    let (filter, _) = filter.split_once('\'').expect("its end");
    let pattern = Regex::new(r"test\(/(.*?)/\)").expect("a pattern");
    let patterns: Vec<Regex> = pattern
        .captures_iter(filter)
        .map(|found| Regex::new(&found[1]).expect("a pattern of the filter"))
        .collect();
    let tests = property_tests();
    assert!(tests.len() >= 40 && patterns.len() >= 2, "{} {}", tests.len(), patterns.len());
    for test in tests {
        let left_out = LEFT_OUT.iter().any(|(module, _)| test.starts_with(module));
        let runs = patterns.iter().any(|pattern| pattern.is_match(&test));
        assert_eq!(runs, !left_out, "{test}");
    }
}
