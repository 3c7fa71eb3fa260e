//! Texts from elsewhere, cut to a length and stripped of what could disturb a terminal or a log.
//! It must not know what they say.

use std::error::Error;

use kube::core::Status;

use crate::model::text::disturbs;

/// The longest text that goes into an answer or a line of the log.
const CHARS: usize = 300;
/// The longest line that is told where somebody reads it.
const LINE: usize = 2000;

/// A text, short and on one line.
pub(crate) fn bounded(text: &str) -> String {
    plain(text).take(CHARS).collect()
}

/// A text of ours on one line, with words of others in it: longer than theirs may be.
pub(crate) fn line(text: &str) -> String {
    plain(text).take(LINE).collect()
}

fn plain(text: &str) -> impl Iterator<Item = char> {
    text.chars().map(|it| if disturbs(it) { ' ' } else { it })
}

/// An error and its causes. A cause that its effect has told already, as kube's errors do, is left
/// out.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut causes = vec![told(error)];
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = told(error);
        let is_status = error.is::<Status>() || error.is::<Box<Status>>();
        if !is_status && !causes.iter().any(|told| told.contains(&own)) {
            causes.push(own);
        }
        cause = error.source();
    }
    causes
}

/// What kube has for a reason where the answer was none of an API server.
const NO_STATUS: &str = "Failed to parse error data";

/// What an API server says, with the code: kube says it twice.
fn told(error: &(dyn Error + 'static)) -> String {
    let boxed = error.downcast_ref::<Box<kube::Error>>();
    let own = boxed.map(Box::as_ref).or(error.downcast_ref());
    let Some(kube::Error::Api(status)) = own else {
        return error.to_string();
    };
    let words = [status.message.as_str(), &status.reason];
    let words = words.into_iter();
    let words = words.filter(|own| !own.is_empty() && *own != NO_STATUS);
    let code = format!("HTTP {}", status.code);
    words.chain([&*code]).collect::<Vec<_>>().join(": ")
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
    use thiserror::Error;

    use super::{Status, chain, quoted};

    #[derive(Debug, Error)]
    #[error("ask")]
    struct Asked(#[source] Box<kube::Error>);

    #[test]
    fn what_an_api_server_says_is_told_once_and_with_its_code() {
        let check = |message: &str, reason: &str, code, expect: &str| {
            let status = Status::failure(message, reason).with_code(code);
            let error = || kube::Error::Api(Box::new(status.clone()));
            assert_eq!(chain(&error()), expect);
            let asked = Asked(Box::new(error()));
            assert_eq!(chain(&asked), format!("ask: {expect}"));
        };
        let denied = "pods is forbidden";
        check(
            denied,
            "Forbidden",
            403,
            "pods is forbidden: Forbidden: HTTP 403",
        );
        check("", "", 502, "HTTP 502");
        check("no way", super::NO_STATUS, 502, "no way: HTTP 502");
    }

    #[test]
    fn arguments_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("a=b/c.hcl"), "a=b/c.hcl");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
