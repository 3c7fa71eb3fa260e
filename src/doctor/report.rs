//! The result of a doctor run: a tree of checks, rendered as text, as JSON and as an exit code.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::host::text;

/// Maximum length of a fix in characters. A fix is a rule, or a command with a few paths.
const FIX_CHARS: usize = 800;

/// Escape sequences for terminal colours.
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[1;33m";
const RED: &str = "\u{1b}[1;31m";
const PLAIN: &str = "\u{1b}[0m";

/// Status of a check, in order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckStatus {
    /// The check passed.
    Ok,
    /// The user skipped the check.
    LeftOut,
    /// The check could not run.
    Skipped,
    /// The daemon works, but the finding should be fixed.
    Warning,
    /// The daemon would not work, or only partially.
    Failed,
}

impl CheckStatus {
    /// The spelling in text and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::LeftOut | Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }

    /// The exit code of a run in which this is the worst status. Checks skipped by the user do not
    /// count.
    fn exit_code(self) -> u8 {
        match self {
            Self::Ok | Self::LeftOut => 0,
            Self::Warning => 2,
            Self::Skipped => 3,
            Self::Failed => 4,
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Ok => GREEN,
            Self::LeftOut | Self::Skipped => PLAIN,
            Self::Warning => YELLOW,
            Self::Failed => RED,
        }
    }
}

/// One check, or a group of checks.
#[derive(Clone, Debug)]
pub struct Check {
    name: String,
    state: CheckStatus,
    /// The finding in one sentence. Empty if only the parts have findings.
    said: String,
    /// The stable code of the finding, if any.
    code: Option<&'static str>,
    /// The fix, ready to paste.
    fix: Option<String>,
    parts: Vec<Check>,
}

impl Check {
    fn leaf(name: &str, state: CheckStatus, finding: &str, fix: Option<&str>) -> Self {
        Self {
            name: text::bounded_line(name),
            state,
            said: text::bounded_line(finding),
            code: None,
            fix: fix.map(|text: &str| -> String {
                text.chars()
                    .take(FIX_CHARS)
                    .map(|letter| if letter.is_control() { ' ' } else { letter })
                    .collect()
            }),
            parts: Vec::new(),
        }
    }

    /// A passed check with its result.
    pub fn ok(name: &str, finding: &str) -> Self {
        Self::leaf(name, CheckStatus::Ok, finding, None)
    }

    /// A warning. `name_and_code` is the name of the check and the code.
    pub fn warning(name_and_code: (&str, &'static str), why: &str, fix: &str) -> Self {
        Self::leaf(name_and_code.0, CheckStatus::Warning, why, Some(fix)).with_code(name_and_code.1)
    }

    /// A failure. `name_and_code` is the name of the check and the code.
    pub fn failed(name_and_code: (&str, &'static str), why: &str, fix: &str) -> Self {
        Self::leaf(name_and_code.0, CheckStatus::Failed, why, Some(fix)).with_code(name_and_code.1)
    }

    fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// A check that could not run.
    pub fn skipped(name: &str, why: &str, fix: Option<&str>) -> Self {
        Self::leaf(name, CheckStatus::Skipped, why, fix)
    }

    /// A check that the user skipped.
    pub fn left_out(name: &str, why: &str) -> Self {
        Self::leaf(name, CheckStatus::LeftOut, why, None)
    }

    /// A group of checks with the status of its worst part.
    pub fn from_parts(name: &str, finding: &str, parts: Vec<Self>) -> Self {
        let worst = parts.iter().map(|part| part.state).max();
        Self { parts, ..Self::leaf(name, worst.unwrap_or(CheckStatus::Ok), finding, None) }
    }

    /// Returns whether the check or a part failed.
    pub fn has_failed(&self) -> bool {
        self.state == CheckStatus::Failed
    }

    fn count_into(&self, counts: &mut BTreeMap<&'static str, usize>) {
        if self.parts.is_empty() {
            *counts.entry(self.state.as_str()).or_default() += 1;
        }
        for part in &self.parts {
            part.count_into(counts);
        }
    }

    fn write_to(&self, out: &mut String, depth: usize, colour: bool) {
        let indent = "  ".repeat(depth);
        let status = format!("[{}]", self.state.as_str());
        let gap = " ".repeat(10_usize.saturating_sub(status.len()));
        let status = match colour {
            true => format!("{}{status}{PLAIN}", self.state.colour()),
            false => status,
        };
        let finding = match self.said.as_str() {
            "" => String::new(),
            finding => format!(": {finding}"),
        };
        // The name of a check of the configuration is already the code of its finding.
        let code = self.code.filter(|code| *code != self.name);
        let code = code.map_or_else(String::new, |code| format!(" [{code}]"));
        let name = &self.name;
        out.push_str(&format!("{indent}{status}{gap}{name}{finding}{code}\n"));
        if let Some(fix) = &self.fix {
            out.push_str(&format!("{indent}          fix: {fix}\n"));
        }
        for part in &self.parts {
            part.write_to(out, depth + 1, colour);
        }
    }

    fn to_json(&self) -> Value {
        let parts: Vec<Value> = self.parts.iter().map(Self::to_json).collect();
        json!({
            "name": self.name,
            "state": self.state.as_str(),
            "said": self.said,
            "code": self.code,
            "fix": self.fix,
            "checks": parts,
        })
    }
}

/// All checks of a run.
#[derive(Debug)]
pub struct DoctorReport(
    /// The checks, in the order in which they ran.
    pub Vec<Check>,
);

impl DoctorReport {
    fn worst_status(&self) -> CheckStatus {
        let states = self.0.iter().map(|check| check.state);
        states.max().unwrap_or(CheckStatus::Ok)
    }

    /// The exit code of the run, which depends on the worst check.
    pub fn exit_code(&self) -> u8 {
        self.worst_status().exit_code()
    }

    fn status_counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        self.0.iter().for_each(|check| check.count_into(&mut counts));
        counts
    }

    /// Renders text.
    pub fn render_text(&self, colour: bool) -> String {
        let mut out = String::new();
        self.0.iter().for_each(|it| it.write_to(&mut out, 0, colour));
        let counts = self.status_counts();
        let all =
            [CheckStatus::Ok, CheckStatus::Skipped, CheckStatus::Warning, CheckStatus::Failed]
                .map(CheckStatus::as_str);
        out.push_str(&format!(
            "\nDoctor: {}.\n",
            all.map(|status| format!("{} {status}", counts.get(status).copied().unwrap_or(0)))
                .join(", ")
        ));
        out
    }

    /// Renders JSON.
    pub fn to_json(&self) -> Value {
        let checks: Vec<Value> = self.0.iter().map(Check::to_json).collect();
        json!({
            "format_version": "1.0",
            "state": self.worst_status().as_str(),
            "counts": self.status_counts(),
            "checks": checks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Check, DoctorReport};

    fn report() -> DoctorReport {
        let parts = vec![
            Check::ok("a", "it is\nthere"),
            Check::warning(("b", "slow"), "it is slow", "make it\u{1b}[2J faster"),
            Check::skipped("c", "nobody may look", None),
        ];
        DoctorReport(vec![
            Check::ok("host", ""),
            Check::from_parts("cluster", "", parts),
            Check::left_out("aws", "as asked"),
        ])
    }

    #[test]
    fn exit_code_follows_the_worst_check() {
        let mut report = report();
        assert_eq!(report.exit_code(), 2);
        report.0.push(Check::failed(("d", "gone"), "it is gone", "bring it"));
        assert_eq!(report.exit_code(), 4);
        assert_eq!(DoctorReport(vec![Check::skipped("e", "x", None)]).exit_code(), 3);
        assert_eq!(DoctorReport(vec![Check::left_out("e", "x")]).exit_code(), 0);
        assert_eq!(DoctorReport(Vec::new()).exit_code(), 0);
    }

    #[test]
    fn text_report_has_one_line_per_check_without_control_characters() {
        let expect = "[ok]      host\n\
                      [warning] cluster\n\
                      \x20 [ok]      a: it is there\n\
                      \x20 [warning] b: it is slow [slow]\n\
                      \x20           fix: make it [2J faster\n\
                      \x20 [skipped] c: nobody may look\n\
                      [skipped] aws: as asked\n\
                      \n\
                      Doctor: 2 ok, 2 skipped, 1 warning, 0 failed.\n";
        assert_eq!(report().render_text(false), expect);
        assert!(report().render_text(true).contains("\u{1b}[1;33m[warning]\u{1b}[0m b"));
    }

    #[test]
    fn json_report_has_the_same_tree() {
        let value = report().to_json();
        assert_eq!(value["state"], "warning");
        assert_eq!(value["counts"]["skipped"], 2);
        let fix = &value["checks"][1]["checks"][1]["fix"];
        assert_eq!(fix, "make it [2J faster");
    }
}
