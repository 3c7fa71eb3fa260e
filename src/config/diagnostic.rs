//! Diagnostics of a configuration: code, message, source ranges and a hint.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but probably contains a mistake.
    Warning,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident, $code:literal, $summary:literal;)*) => {
        /// Diagnostic codes of a configuration. The codes are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ProblemCode {
            $($(#[$doc])* $name,)*
        }

        impl ProblemCode {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable name, in kebab case.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// A short title.
            pub fn summary(self) -> &'static str {
                match self {
                    $(Self::$name => $summary,)*
                }
            }
        }
    };
}

codes! {
    /// The file is not valid HCL, or not valid JSON if it is a `.json` file.
    Syntax, "syntax", "Syntax error";
    /// A block type that is not supported in this place.
    UnknownBlock, "unknown-block", "Unsupported block";
    /// An argument that is not supported in this place.
    UnknownArgument, "unknown-argument", "Unsupported argument";
    /// A required block is missing.
    MissingBlock, "missing-block", "Missing block";
    /// A required argument is missing.
    MissingArgument, "missing-argument", "Missing argument";
    /// Two blocks where only one is allowed, or two with the same label.
    DuplicateBlock, "duplicate-block", "Duplicate block";
    /// The same argument is set twice.
    DuplicateArgument, "duplicate-argument", "Duplicate argument";
    /// Two objects with the same name.
    DuplicateName, "duplicate-name", "Duplicate name";
    /// A block with too many or too few labels, or with an invalid label.
    BlockLabel, "block-label", "Invalid block label";
    /// `name { … }` where `name = …` is meant.
    ArgumentExpected, "argument-expected", "Argument written as a block";
    /// `name = …` where `name { … }` is meant.
    BlockExpected, "block-expected", "Block written as an argument";
    /// A value of the wrong type.
    WrongType, "wrong-type", "Wrong type";
    /// A value that is not supported.
    InvalidValue, "invalid-value", "Invalid value";
    /// A number, duration or percentage outside its range.
    OutOfRange, "out-of-range", "Value out of range";
    /// A string that is not a duration.
    InvalidDuration, "invalid-duration", "Invalid duration";
    /// A string that is not a Kubernetes quantity.
    InvalidQuantity, "invalid-quantity", "Invalid quantity";
    /// An invalid schedule.
    InvalidSchedule, "invalid-schedule", "Invalid schedule";
    /// A string that is not a valid Kubernetes label value, label key or resource name.
    InvalidLabel, "invalid-label", "Invalid label";
    /// A label that only Kubernetes or the daemon may set.
    RestrictedLabel, "restricted-label", "Restricted label";
    /// A tag that only AWS or a launch may set, or that would expose a secret.
    RestrictedTag, "restricted-tag", "Restricted tag";
    /// Arguments that exclude each other.
    Conflict, "conflict", "Conflicting arguments";
    /// Requirements that no node can meet.
    Impossible, "impossible-requirement", "Requirements that no node can meet";
    /// A name that refers to no block, cluster, pool, variable or local value.
    UnknownReference, "unknown-reference", "Unknown reference";
    /// A reference that matches more than one object.
    AmbiguousReference, "ambiguous-reference", "Ambiguous reference";
    /// Values that depend on each other.
    Cycle, "cycle", "Dependency cycle";
    /// An expression that cannot be evaluated.
    Evaluation, "evaluation", "Expression cannot be evaluated";
    /// A function that does not exist.
    UnknownFunction, "unknown-function", "Unknown function";
    /// A function that rejected its arguments.
    FunctionCall, "function-call", "Function call failed";
    /// A configuration whose evaluation takes too much time or memory.
    LimitExceeded, "limit-exceeded", "Configuration too large";
    /// `for_each` over a value that is neither a map nor a list of strings.
    InvalidForEach, "invalid-for-each", "Invalid for_each";
    /// An invalid type expression.
    InvalidType, "invalid-type", "Invalid type";
    /// A variable without a value.
    MissingVariable, "missing-variable", "No value for a variable";
    /// A value for a variable that is not declared.
    UndeclaredVariable, "undeclared-variable", "Value for an undeclared variable";
    /// A variable's value that a validation rule rejects.
    ValidationFailed, "validation-failed", "Invalid value for a variable";
    /// A configuration that requires a different version of Outrigger.
    UnsupportedVersion, "unsupported-version", "Unsupported Outrigger version";
    /// A file or parameter that cannot be read, or a file that is not accepted.
    Unreadable, "unreadable", "Unreadable file";
    /// An address that other hosts can reach.
    Exposed, "exposed", "Address reachable from other hosts";
    /// An object that is declared but not used.
    Unused, "unused", "Declared but not used";
    /// A pattern that matches nothing.
    MatchesNothing, "matches-nothing", "Pattern matches nothing";
}

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line number, from one.
    pub line: usize,
    /// Column in characters, from one.
    pub column: usize,
    /// Offset in bytes, from zero.
    pub byte: usize,
}

/// A range in a source file, with the line to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceRange {
    /// The name of the file.
    pub file: String,
    /// The start.
    pub start: Position,
    /// The end: the position after the last character.
    pub end: Position,
    /// A label for this range; may be empty.
    pub label: String,
    /// The block around the range (`pool "general"`).
    pub context: Option<String>,
    /// The line on which the range starts. `None` if the line may contain a sensitive value.
    pub code: Option<String>,
}

/// A diagnostic of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// The code.
    pub code: ProblemCode,
    /// A short title.
    pub summary: String,
    /// The message, in full sentences.
    pub detail: String,
    /// The main range, then related ranges. Empty if the diagnostic is not about a file.
    pub ranges: Vec<SourceRange>,
    /// A hint on how to fix the problem.
    pub help: Option<String>,
    /// Names in the expression and their values (`each.key`, `is "demo"`).
    pub values: Vec<(String, String)>,
}

impl Diagnostic {
    /// An error without a range.
    pub fn error(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code,
            summary: code.summary().to_owned(),
            detail: detail.into(),
            ranges: Vec::new(),
            help: None,
            values: Vec::new(),
        }
    }

    /// A warning without a range.
    pub fn warning(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, detail) }
    }

    /// Adds a hint.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The diagnostic as text, as Terraform renders it: range, snippet, message, hint.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let severity = match self.severity {
            Severity::Error => "Error",
            Severity::Warning => "Warning",
        };
        let _ = writeln!(out, "{severity}: {} [{}]", self.summary, self.code.as_str());
        for (index, range) in self.ranges.iter().enumerate() {
            out.push('\n');
            render_range(&mut out, range, if index == 0 { "on" } else { "and" });
        }
        if !self.values.is_empty() {
            out.push('\n');
        }
        for (name, value) in &self.values {
            let _ = writeln!(out, "  {name} {value}");
        }
        let _ = writeln!(out, "\n  {}", wrap_text(&self.detail, "  "));
        if let Some(help) = &self.help {
            let _ = writeln!(out, "\n  = help: {}", wrap_text(help, "    "));
        }
        out
    }

    /// The diagnostic in the format of `terraform validate -json`, with the additional fields
    /// `code`, `help` and `related`.
    pub fn to_json(&self) -> Json {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let mut out = json!({
            "severity": severity,
            "code": self.code.as_str(),
            "summary": self.summary,
            "detail": self.detail,
        });
        if let Some(first) = self.ranges.first() {
            out["range"] = range_json(first);
            out["snippet"] = snippet_json(first, &self.values);
        }
        if let Some(help) = &self.help {
            out["help"] = json!(help);
        }
        let related: Vec<Json> = self
            .ranges
            .iter()
            .skip(1)
            .map(|range| json!({ "range": range_json(range), "label": range.label }))
            .collect();
        if !related.is_empty() {
            out["related"] = json!(related);
        }
        out
    }
}

fn error_count(problems: &[Diagnostic]) -> usize {
    let errors = problems.iter();
    errors.filter(|problem| problem.severity == Severity::Error).count()
}

/// All diagnostics in the format of `terraform validate -json`.
pub fn report_json(problems: &[Diagnostic]) -> Json {
    let errors = error_count(problems);
    json!({
        "format_version": "1.0",
        "valid": errors == 0,
        "error_count": errors,
        "warning_count": problems.len() - errors,
        "diagnostics": problems.iter().map(Diagnostic::to_json).collect::<Vec<_>>(),
    })
}

/// All diagnostics as text, with their count at the end.
pub fn render_all(problems: &[Diagnostic]) -> String {
    let mut out: String = problems.iter().map(|problem| problem.render() + "\n").collect();
    let errors = error_count(problems);
    let warnings = problems.len() - errors;
    let counts: Vec<String> = [(errors, "error"), (warnings, "warning")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, noun)| match count {
            1 => format!("1 {noun}"),
            _ => format!("{count} {noun}s"),
        })
        .collect();
    out.push_str(&counts.join(", "));
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

/// Wraps the text for a terminal and indents each line after the first.
fn wrap_text(text: &str, indent: &str) -> String {
    const COLUMNS: usize = 88;
    let mut out = String::new();
    for (index, line) in text.lines().enumerate() {
        if index > 0 {
            let _ = write!(out, "\n{indent}");
        }
        let mut column = 0;
        for word in line.split(' ') {
            let width = word.chars().count() + 1;
            if column > 0 && column + width > COLUMNS {
                let _ = write!(out, "\n{indent}");
                column = 0;
            } else if column > 0 {
                out.push(' ');
            }
            out.extend(word.chars().map(printable_char));
            column += width;
        }
    }
    out
}

/// Maximum number of characters shown of a line, and the maximum before the range.
const SHOWN_MAX: usize = 110;
const BEFORE_MAX: usize = 60;

fn render_range(out: &mut String, range: &SourceRange, word: &str) {
    let _ = write!(out, "  {word} {} line {}", range.file, range.start.line);
    match &range.context {
        Some(context) => {
            let _ = writeln!(out, ", in {context}:");
        }
        None => out.push_str(":\n"),
    }
    let number = range.start.line.to_string();
    let margin = " ".repeat(number.len());
    let Some(code) = &range.code else {
        let _ = writeln!(out, "  {number} | (not shown: it may contain a sensitive value)");
        if !range.label.is_empty() {
            let _ = writeln!(out, "  {margin} | {}", range.label);
        }
        return;
    };
    let from = range.start.column.saturating_sub(1);
    let on_line = code.chars().count().saturating_sub(from);
    let width = if range.end.line > range.start.line {
        on_line
    } else {
        range.end.column.saturating_sub(range.start.column)
    };
    let long = code.chars().count() > SHOWN_MAX;
    let skipped = if long { from.saturating_sub(BEFORE_MAX) } else { 0 };
    let line: String = code.chars().skip(skipped).take(SHOWN_MAX).map(printable_char).collect();
    let lead = if skipped > 0 { "…" } else { "" };
    let tail = if code.chars().count() > skipped + SHOWN_MAX { "…" } else { "" };
    let _ = writeln!(out, "  {number} | {lead}{}{tail}", line.trim_end());
    let room = SHOWN_MAX.saturating_sub(from - skipped).max(1);
    let carets = "^".repeat(width.clamp(1, room));
    let indent = " ".repeat(from - skipped + lead.chars().count());
    let _ =
        writeln!(out, "{}", format!("  {margin} | {indent}{carets} {}", range.label).trim_end());
}

/// Replaces control characters, which would move the underline or the cursor.
fn printable_char(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

fn range_json(range: &SourceRange) -> Json {
    json!({
        "filename": range.file,
        "start": position_json(range.start),
        "end": position_json(range.end),
    })
}

fn position_json(position: Position) -> Json {
    json!({
        "line": position.line,
        "column": position.column,
        "byte": position.byte,
    })
}

fn snippet_json(range: &SourceRange, values: &[(String, String)]) -> Json {
    let code = range.code.as_deref().unwrap_or("(sensitive value)");
    let (start, end) = match range.code {
        None => (0, code.len()),
        Some(_) => highlighted_bytes(code, range),
    };
    let values: Vec<Json> = values
        .iter()
        .map(|(name, value)| json!({ "traversal": name, "statement": value }))
        .collect();
    json!({
        "context": range.context,
        "code": code,
        "start_line": range.start.line,
        "highlight_start_offset": start,
        "highlight_end_offset": end,
        "values": values,
    })
}

/// The bytes of the line that the range covers.
fn highlighted_bytes(code: &str, range: &SourceRange) -> (usize, usize) {
    let start = column_offset(code, range.start.column);
    let end = if range.end.line > range.start.line {
        code.len()
    } else {
        column_offset(code, range.end.column)
    };
    (start, end.max(start))
}

/// The byte offset of a column of this line.
fn column_offset(code: &str, column: usize) -> usize {
    code.char_indices().nth(column.saturating_sub(1)).map_or(code.len(), |(byte, _)| byte)
}
