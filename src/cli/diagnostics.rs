//! Prints the problems of a configuration on stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

#[cfg(feature = "daemon")]
use crate::config::diagnostic::Severity;
use crate::config::diagnostic::{Diagnostic, render_all};
use crate::host::text;

/// Terminal escape sequences that start and end a coloured line.
const RED: &str = "\u{1b}[1;31m";
const YELLOW: &str = "\u{1b}[1;33m";
const PLAIN: &str = "\u{1b}[0m";

/// Writes problems to stderr.
pub(crate) fn print_problems(problems: &[Diagnostic], colour: bool) {
    let mut text = render_all(problems);
    if colour && io::stderr().is_terminal() {
        text = with_colours(&text);
    }
    // A failed write to stderr cannot be reported.
    io::stderr().write_all(text.as_bytes()).unwrap_or_default();
}

/// The exit code if `import` or `export` dropped something.
const DROPPED: u8 = 2;

/// Prints the dropped fields and the notes on stderr, and returns the exit code.
pub(crate) fn print_losses(
    losses: &[impl Display],
    more: impl Iterator<Item = String>,
) -> ExitCode {
    let lines = losses.iter().map(ToString::to_string).chain(more);
    let text: String = lines.map(|line| text::single_line(&line) + "\n").collect();
    io::stderr().write_all(text.as_bytes()).unwrap_or_default();
    match losses {
        [] => ExitCode::SUCCESS,
        _ => ExitCode::from(DROPPED),
    }
}

fn with_colours(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| {
            let colour = match line {
                _ if line.starts_with("Error:") => RED,
                _ if line.starts_with("Warning:") => YELLOW,
                _ => return line.to_owned(),
            };
            format!("{colour}{}{PLAIN}\n", line.trim_end())
        })
        .collect()
}

/// Formats the first error of a configuration as one line for the log.
#[cfg(feature = "daemon")]
pub(crate) fn first_error_line(problems: &[Diagnostic]) -> String {
    let mut errors = problems.iter().filter(|it| it.severity == Severity::Error);
    let Some(first) = errors.next() else {
        return "the configuration is invalid".to_owned();
    };
    let location = first
        .ranges
        .first()
        .map_or(String::new(), |range| format!("{}:{}: ", range.file, range.start.line));
    let more = match errors.count() {
        0 => String::new(),
        count => format!(" (and {count} more; run outrigger validate)"),
    };
    let code = first.code.as_str();
    text::single_line(&format!("{location}{} [{code}]{more}", first.detail))
}
