//! What Karpenter's AWS provider asserts and what is easily got wrong about it, row by row: which
//! test of ours covers it, or why it does not apply to us.
//! It must not know what any row states.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use crate::named::{self, path, text};

/// How many rules or bullets each section of spec/aws.md has: all have rows.
const SECTIONS: [(&str, usize); 13] = [
    ("10", 105),
    ("12.1", 15),
    ("12.2", 4),
    ("12.3", 8),
    ("12.4", 8),
    ("12.5", 6),
    ("12.6", 13),
    ("12.7", 11),
    ("12.8", 5),
    ("12.9", 6),
    ("12.10", 7),
    ("12.11", 13),
    ("12.12", 5),
];
/// How many of a hundred rows may not apply.
const NO_MAX: usize = 20;
/// The width of what a row says.
const COLUMNS: usize = 100;

/// A row of a table of `tests/it/coverage/`.
struct Row {
    /// The table, for messages.
    table: String,
    /// The section of spec/aws.md and the rule (`10.37`) or bullet (`12.6/3`) in it.
    place: String,
    behaviour: String,
    status: String,
}

impl Row {
    /// The section, and the number of the rule or bullet.
    fn number(&self) -> Option<(&str, usize)> {
        let (section, number) = match self.place.split_once('/') {
            Some(pair) => pair,
            None => self.place.split_once('.')?,
        };
        Some((section, number.parse().ok()?))
    }

    fn kind(&self) -> &str {
        self.status.split(':').next().unwrap_or_default()
    }

    /// What is wrong with what the row says is done, if anything.
    fn fault(&self) -> Option<String> {
        let wide = |text: &str| text.chars().count() > COLUMNS;
        if self.behaviour.is_empty() || wide(&self.behaviour) {
            return Some(format!("a behaviour has 1 to {COLUMNS} characters"));
        }
        if let Some(reason) = self.status.strip_prefix("no: ") {
            let wrong = reason.is_empty() || wide(reason);
            return wrong.then(|| format!("a reason has 1 to {COLUMNS} characters"));
        }
        if self.status.starts_with("open: ") {
            return Some(self.status.clone());
        }
        let fault = |test: &str| match test.strip_prefix("test:") {
            Some(test) => named::file(test).err(),
            None => Some(format!("{test:?} is neither a test nor a reason")),
        };
        self.status.split(' ').find_map(fault)
    }
}

/// The rows of all tables, table by table.
fn rows() -> Vec<Row> {
    let folder = "tests/it/coverage";
    let entries = fs::read_dir(path(folder)).expect("our own folder");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("an entry").file_name();
        name.into_string().expect("a name in UTF-8")
    };
    let tables: BTreeSet<String> = entries.map(name).collect();
    let of = |table: String| {
        let rows = named::rows(
            &format!("{folder}/{table}"),
            ["place", "behaviour", "status"],
        );
        rows.into_iter().map(move |[place, behaviour, status]| Row {
            table: table.clone(),
            place,
            behaviour,
            status,
        })
    };
    tables.into_iter().flat_map(of).collect()
}

#[test]
fn every_rule_and_bullet_has_its_rows_and_every_row_its_test_or_reason() {
    let rows = rows();
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    let mut found: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for row in &rows {
        let mut wrong = |what: String| faults.push(format!("{} {}: {what}", row.table, row.place));
        match row.number() {
            Some((section, number)) => {
                found.entry(section).or_default().insert(number);
            }
            None => wrong("it is no place".to_owned()),
        }
        if !known.insert((&row.place, &row.behaviour)) {
            wrong(format!("{:?} is there twice", row.behaviour));
        }
        if let Some(what) = row.fault() {
            wrong(what);
        }
    }
    let wanted: BTreeMap<&str, BTreeSet<usize>> = SECTIONS
        .into_iter()
        .map(|(section, count)| (section, (1..=count).collect()))
        .collect();
    for section in wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
        let none = BTreeSet::new();
        let [wanted, found] = [&wanted, &found].map(|of| of.get(section).unwrap_or(&none));
        for (what, numbers) in [("lacks", wanted - found), ("does not have", found - wanted)] {
            if !numbers.is_empty() {
                faults.push(format!("section {section} {what} {numbers:?}"));
            }
        }
    }
    let no = rows.iter().filter(|row| row.kind() == "no").count();
    if no * 100 > NO_MAX * rows.len() {
        faults.push(format!("{no} of {} rows do not apply", rows.len()));
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// How many rows of each section are covered, as the table of docs/CONFORMANCE.md says.
fn table(rows: &[Row]) -> String {
    let mut text = "| section | rules | rows | tested | does not apply |\n".to_owned();
    text.push_str("|---|---|---|---|---|\n");
    let mut line = |name: &str, rules: usize, own: &dyn Fn(&Row) -> bool| {
        let count = |of: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| of(row)).count();
        let [tested, no] = ["test", "no"].map(|kind| count(&|row| own(row) && row.kind() == kind));
        let all = count(own);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {name} | {rules} | {all} | {tested} | {no} |");
    };
    for (section, rules) in SECTIONS {
        line(section, rules, &|row| {
            row.number().is_some_and(|(own, _)| own == section)
        });
    }
    let rules = SECTIONS.iter().map(|(_, rules)| rules).sum();
    line("all", rules, &|_| true);
    text
}

#[test]
fn the_counts_of_the_rows_are_those_of_the_page() {
    let table = table(&rows());
    println!("{table}");
    let page = text("docs/CONFORMANCE.md");
    assert!(
        page.contains(&table),
        "docs/CONFORMANCE.md should say:\n{table}"
    );
}
