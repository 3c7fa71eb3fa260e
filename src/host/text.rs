//! Texts from elsewhere, cut to a length and stripped of what could disturb a terminal or a log.
//! It must not know what they say.

use std::error::Error;

pub(crate) use crate::text::sanitize::bounded;
use crate::text::sanitize::plain;

#[cfg(feature = "daemon")]
mod api_error;

/// The maximum length, in characters, of a line that is printed for a person.
const LINE: usize = 2000;

/// A text of ours on one line, with words of others in it: longer than theirs may be.
pub(crate) fn line(text: &str) -> String {
    plain(text).take(LINE).collect()
}

/// An error and its causes. A cause that its effect has told already, as kube's errors do, is left
/// out.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut causes = vec![told(error)];
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = told(error);
        if !is_repetition(error) && !causes.iter().any(|told| told.contains(&own)) {
            causes.push(own);
        }
        cause = error.source();
    }
    causes
}

/// What one error says: an API server's answer in the server's words.
fn told(error: &(dyn Error + 'static)) -> String {
    #[cfg(feature = "daemon")]
    if let Some(said) = api_error::said(error) {
        return said;
    }
    error.to_string()
}

/// Whether the error only repeats what its effect says.
#[cfg(feature = "daemon")]
fn is_repetition(error: &(dyn Error + 'static)) -> bool {
    api_error::is_status(error)
}

/// Whether the error only repeats what its effect says: none does where kube is not there.
#[cfg(not(feature = "daemon"))]
fn is_repetition(_: &(dyn Error + 'static)) -> bool {
    false
}

/// An error and its causes, short and on one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    bounded(&causes(error).join(": "))
}

/// An argument as a shell takes it.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
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
