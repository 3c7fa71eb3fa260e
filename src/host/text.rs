//! Sanitizes strings from external sources: limits the length and removes control characters for
//! terminals and logs.

use std::error::Error;

pub(crate) use crate::text::sanitize::bounded;
use crate::text::sanitize::plain;

// Messages of API server errors.
#[cfg(feature = "daemon")]
mod api_error;

/// The maximum length, in characters, of a displayed line.
const LINE: usize = 2000;

/// Formats text of Outrigger that contains external strings as one line, with a higher length
/// limit.
pub(crate) fn line(text: &str) -> String {
    plain(text).take(LINE).collect()
}

/// Formats an error and its causes. Causes that the error message already contains are left out, as
/// in errors of kube.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut causes = vec![told(error)];
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = told(error);
        if !is_repetition(error) && !causes.iter().any(|cause| cause.contains(&message)) {
            causes.push(message);
        }
        cause = error.source();
    }
    causes
}

/// Formats one error. For an API server error, the server's message.
fn told(error: &(dyn Error + 'static)) -> String {
    #[cfg(feature = "daemon")]
    if let Some(message) = api_error::said(error) {
        return message;
    }
    error.to_string()
}

/// Returns whether the cause only repeats the message of the error.
#[cfg(feature = "daemon")]
fn is_repetition(error: &(dyn Error + 'static)) -> bool {
    api_error::is_status(error)
}

/// Returns whether the cause only repeats the message of the error. Never in builds without kube.
#[cfg(not(feature = "daemon"))]
fn is_repetition(_: &(dyn Error + 'static)) -> bool {
    false
}

/// Formats an error and its causes as one short line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    bounded(&causes(error).join(": "))
}

/// Quotes an argument for a shell.
pub(crate) fn quoted(text: &str) -> String {
    if !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c))
    {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn arguments_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("a=b/c.hcl"), "a=b/c.hcl");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
