//! Sanitizes strings from external sources: limits the length and removes control characters for
//! terminals and logs.

use std::error::Error;

pub use crate::text::sanitize::bounded_line;
use crate::text::sanitize::replace_unsafe;

// Messages of API server errors.
#[cfg(feature = "daemon")]
mod api_error;

/// The maximum length, in characters, of a displayed line.
const LINE: usize = 2000;

/// Formats text of Outrigger that contains external strings as one line, with a higher length
/// limit.
pub fn single_line(text: &str) -> String {
    replace_unsafe(text).take(LINE).collect()
}

/// Formats an error and its causes. Causes that the error message already contains are left out, as
/// in errors of kube.
pub fn error_causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut causes = vec![error_message(error)];
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error_message(error);
        if !is_repetition(error) && !causes.iter().any(|cause| cause.contains(&message)) {
            causes.push(message);
        }
        cause = error.source();
    }
    causes
}

/// Formats one error. For an API server error, the server's message.
fn error_message(error: &(dyn Error + 'static)) -> String {
    #[cfg(feature = "daemon")]
    if let Some(message) = api_error::status_message(error) {
        return message;
    }
    error.to_string()
}

/// Returns whether the cause only repeats the message of the error.
#[cfg(feature = "daemon")]
fn is_repetition(error: &(dyn Error + 'static)) -> bool {
    api_error::is_status(error)
}

/// Returns whether the cause only repeats the message of the error. Always false in builds without
/// kube.
#[cfg(not(feature = "daemon"))]
fn is_repetition(_: &(dyn Error + 'static)) -> bool {
    false
}

/// Formats an error and its causes as one short line.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    bounded_line(&error_causes(error).join(": "))
}

/// Quotes an argument for a shell.
pub fn quote_argument(text: &str) -> String {
    if !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c))
    {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quote_argument;

    #[test]
    fn arguments_are_quoted_only_when_the_shell_needs_it() {
        assert_eq!(quote_argument("a=b/c.hcl"), "a=b/c.hcl");
        assert_eq!(quote_argument("it's"), "'it'\\''s'");
        assert_eq!(quote_argument(""), "''");
    }
}
