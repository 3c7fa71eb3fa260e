//! Assertions of Karpenter and its AWS provider, row by row, with our test or the reason for which
//! it does not apply.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use crate::named_tests::{self, path, text};

/// A specification. Each of its rules and bullets has rows in the tables.
struct Specification {
    /// The folder of its tables.
    folder: &'static str,
    /// Its sections, and the minimum number of cases of each rule or bullet of a section. Bars (‖)
    /// separate the cases.
    sections: &'static [(&'static str, &'static [usize])],
    /// The prefixes of the reasons why rows do not apply; `docs/decisions/000:` names a page.
    reasons: &'static [&'static str],
    /// The number of open rows. It may only decrease.
    open: usize,
}

/// spec/aws.md.
const AWS: Specification = Specification {
    folder: "tests/it/coverage",
    sections: &[
        ("10", &[1; 105]),
        ("12.1", &[1; 15]),
        ("12.2", &[1; 4]),
        ("12.3", &[1; 8]),
        ("12.4", &[1; 8]),
        ("12.5", &[1; 6]),
        ("12.6", &[1; 13]),
        ("12.7", &[1; 11]),
        ("12.8", &[1; 5]),
        ("12.9", &[1; 6]),
        ("12.10", &[1; 7]),
        ("12.11", &[1; 13]),
        ("12.12", &[1; 5]),
    ],
    reasons: &[""],
    open: 0,
};

/// spec/disruption.md.
const DISRUPTION: Specification = Specification {
    folder: "tests/it/coverage/disruption",
    sections: &[
        ("8.1", &[1, 1, 1, 1, 2, 3, 1, 2]),
        ("8.2", &[1, 3, 2]),
        ("8.3", &[1, 2, 2, 2, 2, 2, 1, 1, 2, 1, 2, 2, 2, 4, 2, 4, 1]),
        ("8.4", &[6, 1]),
        ("8.5", &[1, 1, 1, 3, 1, 3]),
        ("8.6", &[3, 2, 3, 2, 2, 2]),
        ("8.7", &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("8.8", &[1, 1, 1, 1, 3, 2, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("8.9", &[1, 1, 1, 2, 2]),
        ("8.10", &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1]),
        ("8.11", &[1, 1, 1, 1, 1, 1]),
        ("8.12", &[1, 4, 1, 1, 1, 1]),
        ("8.13", &[1, 5, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 4, 2]),
        ("8.14", &[1, 1, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("8.15", &[2, 1, 4, 1, 1, 1, 1, 3]),
        ("8.16", &[1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("8.17", &[2, 3]),
        (
            "8.18",
            &[4, 1, 1, 1, 4, 3, 1, 3, 1, 1, 1, 1, 1, 2, 3, 3, 2, 1, 1, 1, 2, 3, 3, 2, 3, 2, 1, 1],
        ),
        ("8.19", &[1, 2, 1, 1, 1, 1, 2, 1, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3]),
        ("8.20", &[4, 2, 1, 2, 1, 1, 1, 1, 1]),
        ("8.21", &[1, 3, 1, 1, 1, 2, 2, 3, 1]),
        ("8.22", &[2]),
        ("8.23", &[2, 1, 1, 1, 2, 2, 1, 1, 1, 3, 2, 2, 5]),
        ("8.24", &[1, 2, 4, 2, 4, 1, 1, 2, 1, 1, 1, 1, 1, 4, 1, 2, 1]),
        (
            "8.25",
            &[
                2, 1, 2, 1, 2, 2, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 5, 2, 2, 1, 2, 1, 1, 1, 2, 2, 2, 1,
                6,
            ],
        ),
        ("8.26", &[2, 1, 2, 3, 2, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1]),
    ],
    // Objects that Outrigger does not have, dynamic resource allocation, details of Go programs, or
    // a decision.
    reasons: &["crd: ", "dra: ", "go: ", "docs/decisions/"],
    open: 0,
};

/// The maximum percentage of rows that do not apply.
const OMITTED_MAX: usize = 20;
/// The maximum width of a text of a row.
const COLUMNS: usize = 100;

/// A row of a table of `tests/it/coverage/`.
struct Row {
    /// The table, for messages.
    table: String,
    /// The section and the rule (`10.37`) or bullet (`12.6/3`) in it.
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

    /// The first error in the behaviour or the status of the row, if any. An open row is no error
    /// here.
    fn fault(&self) -> Option<String> {
        let wide = |text: &str| text.chars().count() > COLUMNS;
        if self.behaviour.is_empty() || wide(&self.behaviour) {
            return Some(format!("a behaviour has 1 to {COLUMNS} characters"));
        }
        let reasons = ["no: ", "open: "].map(|kind| self.status.strip_prefix(kind));
        if let Some(reason) = reasons.into_iter().flatten().next() {
            let wrong = reason.is_empty() || wide(reason);
            return wrong.then(|| format!("a reason has 1 to {COLUMNS} characters"));
        }
        let fault = |test: &str| match test.strip_prefix("test:") {
            Some(test) => named_tests::file(test).err(),
            None => Some(format!("{test:?} is neither a test nor a reason")),
        };
        self.status.split(' ').find_map(fault)
    }
}

/// Whether a text begins with the number of a page of docs/decisions.
fn is_page(text: &str) -> bool {
    let number = text.split([':', '-']).next().unwrap_or_default();
    let mut pages = fs::read_dir(path("docs/decisions")).expect("the folder can be read");
    let begins = |name: &str| name.split('-').next() == Some(number);
    pages.any(|page| {
        let name = page.expect("a page").file_name();
        name.to_str().is_some_and(begins)
    })
}

impl Specification {
    /// The rows of all tables, table by table.
    fn rows(&self) -> Vec<Row> {
        let entries = fs::read_dir(path(self.folder)).expect("the folder can be read");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("a name in UTF-8")
        };
        let is_table = |name: &String| name.ends_with(".tsv");
        let tables: BTreeSet<String> = entries.map(name).filter(is_table).collect();
        let of = |table: String| {
            let path = format!("{}/{table}", self.folder);
            let rows = named_tests::rows(&path, ["place", "behaviour", "status"]);
            rows.into_iter().map(move |[place, behaviour, status]| Row {
                table: table.clone(),
                place,
                behaviour,
                status,
            })
        };
        tables.into_iter().flat_map(of).collect()
    }

    /// The errors of single rows and of all rows together.
    fn faults(&self) -> Vec<String> {
        let rows = self.rows();
        let mut faults = Vec::new();
        let mut known = BTreeSet::new();
        let mut found: BTreeMap<(&str, usize), usize> = BTreeMap::new();
        for row in &rows {
            let mut wrong =
                |what: String| faults.push(format!("{} {}: {what}", row.table, row.place));
            match row.number() {
                Some(place) => *found.entry(place).or_default() += 1,
                None => wrong("the place is invalid".to_owned()),
            }
            if !known.insert((&row.place, &row.behaviour)) {
                wrong(format!("{:?} is listed twice", row.behaviour));
            }
            if let Some(what) = row.fault() {
                wrong(what);
            }
            if let Some(reason) = row.status.strip_prefix("no: ") {
                let known = self.reasons.iter().any(|prefix| reason.starts_with(prefix));
                let page = reason.strip_prefix("docs/decisions/");
                if !known || page.is_some_and(|page| !is_page(page)) {
                    wrong(format!("{reason:?} is not an allowed reason"));
                }
            }
        }
        for (section, cases) in self.sections {
            for (number, cases) in (1..).zip(*cases) {
                let rows = found.remove(&(*section, number)).unwrap_or_default();
                if rows < *cases {
                    faults.push(format!("{section}, {number}: {rows} rows of {cases} cases"));
                }
            }
        }
        let unknown = found.keys();
        faults.extend(unknown.map(|(section, number)| format!("{section}, {number}: unknown")));
        let count = |kind: &str| rows.iter().filter(|row| row.kind() == kind).count();
        let (no, open) = (count("no"), count("open"));
        if no * 100 > OMITTED_MAX * rows.len() {
            faults.push(format!("{no} of {} rows do not apply", rows.len()));
        }
        if open != self.open {
            faults.push(format!("{open} rows are open, not {}", self.open));
        }
        faults
    }

    /// The table of docs/CONFORMANCE.md: the number of rows of each section by status.
    fn table(&self) -> String {
        let rows = self.rows();
        let kinds = ["test", "no", "open"];
        let mut text = format!("{HEAD}|---|---|---|---|---|---|\n");
        let mut line = |name: &str, rules: usize, is_counted: &dyn Fn(&Row) -> bool| {
            let count = |of: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| of(row)).count();
            let [tested, no, open] =
                kinds.map(|kind| count(&|row| is_counted(row) && row.kind() == kind));
            let all = count(is_counted);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "| {name} | {rules} | {all} | {tested} | {no} | {open} |");
        };
        for (section, cases) in self.sections {
            line(section, cases.len(), &|row| {
                row.number().is_some_and(|(own_section, _)| own_section == *section)
            });
        }
        let rules = self.sections.iter().map(|(_, cases)| cases.len()).sum();
        line("all", rules, &|_| true);
        text
    }
}

#[test]
fn every_rule_has_rows_and_every_row_has_a_test_or_a_reason() {
    let faults = [AWS, DISRUPTION].map(|book| book.faults()).concat();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The header of each table of counts.
const HEAD: &str = "| section | rules | rows | tested | does not apply | open |\n";

#[test]
fn counts_in_the_conformance_page_match_the_rows() {
    let page = text("docs/CONFORMANCE.md");
    let mut parts = page.split(HEAD);
    let mut expect = parts.next().unwrap_or_default().to_owned();
    for (book, part) in [AWS, DISRUPTION].iter().zip(parts) {
        expect.push_str(&book.table());
        let rest = part.split_inclusive('\n');
        expect.extend(rest.skip_while(|line| line.starts_with('|')));
    }
    if option_env!("UPDATE_REFERENCE").is_some() {
        fs::write(path("docs/CONFORMANCE.md"), expect).expect("the page can be written");
        return;
    }
    assert!(
        page == expect && page.matches(HEAD).count() == 2,
        "docs/CONFORMANCE.md should say (UPDATE_REFERENCE=1 cargo test writes it):\n{expect}"
    );
}
