//! Collects diagnostics with source ranges, and removes duplicates.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::config::diagnostic::{Diagnostic, ProblemCode, Severity, SourceRange};
use crate::config::eval::EvalError;
use crate::config::source::{ConfigFiles, Span};

/// A diagnostic whose ranges are spans.
#[derive(Debug)]
pub(super) struct SpannedDiagnostic {
    pub(super) severity: Severity,
    pub(super) code: ProblemCode,
    pub(super) detail: String,
    /// Each span with a label.
    pub(super) places: Vec<(Span, String)>,
    /// The block around the first span.
    pub(super) context: Option<String>,
    pub(super) help: Option<String>,
    pub(super) values: Vec<(String, String)>,
    /// True to report only the first diagnostic of this code at its span, whatever the message.
    pub(super) once: bool,
}

/// Returns an error whose main range is this span.
pub(super) fn error_at(
    code: ProblemCode,
    span: Span,
    detail: impl Into<String>,
) -> SpannedDiagnostic {
    SpannedDiagnostic {
        severity: Severity::Error,
        code,
        detail: detail.into(),
        places: vec![(span, String::new())],
        context: None,
        help: None,
        values: Vec::new(),
        once: false,
    }
}

/// Returns a warning whose main range is this span.
pub(super) fn warning_at(
    code: ProblemCode,
    span: Span,
    detail: impl Into<String>,
) -> SpannedDiagnostic {
    SpannedDiagnostic { severity: Severity::Warning, ..error_at(code, span, detail) }
}

impl SpannedDiagnostic {
    /// Sets the label of the last span.
    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        if let Some(last) = self.places.last_mut() {
            last.1 = label.into();
        }
        self
    }

    /// Adds a span.
    pub(super) fn also(mut self, span: Span, label: impl Into<String>) -> Self {
        self.places.push((span, label.into()));
        self
    }

    /// Marks the diagnostic as a second definition of the object that is defined at the span
    /// `first`.
    pub(super) fn duplicate_of(self, first: Span) -> Self {
        self.label("second definition").also(first, "first definition")
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Sets the hint, if there is one.
    pub(super) fn maybe_help(mut self, help: Option<String>) -> Self {
        self.help = help.or(self.help);
        self
    }

    pub(super) fn once(mut self) -> Self {
        self.once = true;
        self
    }

    pub(super) fn within(mut self, title: &str) -> Self {
        self.context = (!title.is_empty()).then(|| title.to_owned());
        self
    }
}

/// The diagnostics found so far.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) sources: ConfigFiles,
    /// Spans of sensitive values, which must not be shown.
    hidden: RefCell<Vec<Span>>,
    found: RefCell<Vec<(Span, Diagnostic)>>,
    seen: RefCell<BTreeSet<(ProblemCode, Span, String)>>,
}

/// Maximum number of diagnostics of each severity. Warnings cannot hide an error.
const FOUND_MAX: usize = 200;

impl Reporter {
    pub(super) fn new(sources: ConfigFiles) -> Self {
        Self {
            sources,
            hidden: RefCell::default(),
            found: RefCell::default(),
            seen: RefCell::default(),
        }
    }

    /// Hides a part of the sources in all messages.
    pub(super) fn hide(&self, span: Span) {
        self.hidden.borrow_mut().push(span);
    }

    /// Adds a diagnostic, unless the same was found at the same span.
    pub(super) fn add(&self, finding: SpannedDiagnostic) {
        let Some(first) = finding.places.first().map(|(span, _)| *span) else {
            return;
        };
        let mut found = self.found.borrow_mut();
        // With for_each the same block is decoded several times; the first diagnostic is enough.
        let once = finding.once || !finding.values.is_empty();
        let detail = if once { String::new() } else { finding.detail.clone() };
        let is_new = self.seen.borrow_mut().insert((finding.code, first, detail));
        let alike = found.iter();
        let alike = alike.filter(|(_, problem)| problem.severity == finding.severity);
        if !is_new || alike.count() >= FOUND_MAX {
            return;
        }
        let mut problem = Diagnostic {
            severity: finding.severity,
            help: finding.help,
            values: finding.values,
            ..Diagnostic::error(finding.code, finding.detail)
        };
        for (span, label) in &finding.places {
            problem.ranges.push(self.source_range(*span, label));
        }
        if let Some(first) = problem.ranges.first_mut() {
            first.context = finding.context;
        }
        found.push((first, problem));
    }

    /// Adds an error of the evaluator.
    pub(super) fn add_fault(&self, fault: EvalError, title: &str) {
        if fault.silent {
            return;
        }
        let mut finding = error_at(fault.code, fault.span, fault.detail)
            .label(fault.label)
            .maybe_help(fault.help)
            .within(title);
        finding.values = fault.values;
        self.add(finding);
    }

    fn source_range(&self, span: Span, label: &str) -> SourceRange {
        let mut range = self.sources.range(span, label);
        let hidden = self.hidden.borrow().iter().any(|hidden| {
            hidden.file == span.file
                && self.sources.line_of(span.file, hidden.start) <= range.start.line
                && range.start.line <= self.sources.line_of(span.file, hidden.end)
        });
        if hidden {
            range.code = None;
        }
        range
    }

    /// Returns whether any error was found.
    pub(super) fn has_errors(&self) -> bool {
        let found = self.found.borrow();
        found.iter().any(|(_, problem)| problem.severity == Severity::Error)
    }

    /// All diagnostics, in source order.
    pub(super) fn take_problems(&self) -> Vec<Diagnostic> {
        let mut found = self.found.take();
        found.sort_by_key(|(span, _)| *span);
        found.into_iter().map(|(_, problem)| problem).collect()
    }
}
