//! Formats API server errors, which kube repeats in its messages.

use std::error::Error;

use kube::core::Status;

/// The reason that kube sets if the response is not an API status.
const NO_STATUS: &str = "Failed to parse error data";

/// Returns whether the error is the API status itself, whose message is already formatted.
pub(super) fn is_status(error: &(dyn Error + 'static)) -> bool {
    error.is::<Status>() || error.is::<Box<Status>>()
}

/// The message of the API server, with the code. `None` if the error is not an API status.
pub(super) fn status_message(error: &(dyn Error + 'static)) -> Option<String> {
    let boxed = error.downcast_ref::<Box<kube::Error>>();
    let kube::Error::Api(status) = boxed.map(Box::as_ref).or(error.downcast_ref())? else {
        return None;
    };
    let words = [status.message.as_str(), &status.reason].into_iter();
    let words = words.filter(|word| !word.is_empty() && *word != NO_STATUS);
    let code = format!("HTTP {}", status.code);
    Some(words.chain([&*code]).collect::<Vec<_>>().join(": "))
}

#[cfg(test)]
mod tests {
    use thiserror::Error;

    use super::Status;
    use crate::host::text::error_chain;

    #[derive(Debug, Error)]
    #[error("ask")]
    struct RequestError(#[source] Box<kube::Error>);

    #[test]
    fn api_error_text_appears_once_with_its_code() {
        let check = |message: &str, reason: &str, code, expect: &str| {
            let status = Status::failure(message, reason).with_code(code);
            let error = || kube::Error::Api(Box::new(status.clone()));
            assert_eq!(error_chain(&error()), expect);
            let wrapped = RequestError(Box::new(error()));
            assert_eq!(error_chain(&wrapped), format!("ask: {expect}"));
        };
        let denied = "pods is forbidden";
        check(denied, "Forbidden", 403, "pods is forbidden: Forbidden: HTTP 403");
        check("", "", 502, "HTTP 502");
        check("no way", super::NO_STATUS, 502, "no way: HTTP 502");
    }
}
