//! Runs cases by the keys of their rows.

use super::fixture::Check;

/// A case, by the key of its row in `cases.tsv`: `suite:line`.
pub(super) type Case = (&'static str, fn() -> Check);

/// Runs cases, and panics if one of them fails.
pub(super) fn run_cases(cases: &[Case]) {
    run_each_case(cases.iter().copied());
}

/// Runs cases of any form, and panics if one of them fails.
pub(super) fn run_each_case(cases: impl IntoIterator<Item = (&'static str, impl Fn() -> Check)>) {
    let mut wrong = Vec::new();
    for (key, case) in cases {
        if let Err(why) = case() {
            wrong.push(format!("{key}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{} failed:\n{}", wrong.len(), wrong.join("\n"));
}
