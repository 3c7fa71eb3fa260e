//! Runs cases by the keys of their rows, and keeps count of those that wait for the solver.
//! It must not know what a case is about.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::world::Check;

/// A case, by the key of its row in `cases.tsv`: `suite:line`.
pub(super) type Case = (&'static str, fn() -> Check);

/// Rows whose cases state what is right and do not hold yet. One that comes true has to leave.
pub(super) const PENDING: &[&str] = &[];

/// Runs cases. Nothing may be wrong, and nothing may wait that holds.
pub(super) fn judge(cases: &[Case]) {
    judge_each(cases.iter().copied());
}

/// The same for cases of any form.
pub(super) fn judge_each(cases: impl IntoIterator<Item = (&'static str, impl Fn() -> Check)>) {
    let mut wrong = Vec::new();
    let mut waiting: BTreeMap<&str, bool> = BTreeMap::new();
    for (key, case) in cases {
        if PENDING.contains(&key) {
            let holds = matches!(catch_unwind(AssertUnwindSafe(&case)), Ok(Ok(())));
            *waiting.entry(key).or_insert(true) &= holds;
        } else if let Err(why) = case() {
            wrong.push(format!("{key}: {why}"));
        }
    }
    for (key, _) in waiting.iter().filter(|(_, holds)| **holds) {
        wrong.push(format!("{key}: it holds now, so take it out of PENDING"));
    }
    if !waiting.is_empty() {
        println!("{} rows wait for the solver", waiting.len());
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
