//! Errors of AWS calls.

use std::fmt;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::operation::RequestId;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use thiserror::Error;

use crate::ec2::errors::{self, AwsFailure};
use crate::host::text;
use crate::outbound::fence::NotLeader;

/// A call that failed.
#[derive(Clone, Debug, Error)]
pub(crate) struct AwsError {
    /// The operation, such as `CreateFleet`.
    pub(crate) operation: &'static str,
    /// Error code of AWS. `None` without a response.
    pub(crate) code: Option<String>,
    /// HTTP status. `None` without a response.
    pub(crate) status: Option<u16>,
    /// Message, bounded.
    pub(crate) message: String,
    /// True if a `Fence` refused the request before it was sent.
    pub(crate) is_unsent: bool,
}

impl fmt::Display for AwsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, message, .. } = self;
        match &self.code {
            Some(code) => write!(f, "{operation}: {code}: {message}"),
            None => write!(f, "{operation}: no response: {message}"),
        }
    }
}

impl AwsError {
    /// Returns the error of a request that was not sent.
    pub(crate) fn not_sent(operation: &'static str, fenced: NotLeader) -> Self {
        Self { is_unsent: true, ..Self::without_response(operation, &fenced.to_string()) }
    }

    /// Converts an SDK error.
    pub(crate) fn new<E>(operation: &'static str, error: SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        SdkError<E, HttpResponse>: RequestId,
    {
        let request = error.request_id().map(str::to_owned);
        let status = error.raw_response().map(|response| response.status().as_u16());
        let (code, message) = match &error {
            SdkError::ServiceError(answer) => {
                let error = answer.err();
                let message = error.message().unwrap_or("no message").to_owned();
                (Some(error.code().unwrap_or("Unknown").to_owned()), message)
            }
            // The body may be an HTML page.
            other => (None, root_causes(other)),
        };
        let request = request.map_or(String::new(), |id| format!(" (request {id})"));
        Self {
            operation,
            code,
            status,
            message: text::bounded_line(&format!("{message}{request}")),
            is_unsent: sources(&error).any(|cause| cause.is::<NotLeader>()),
        }
    }

    /// Returns an error that is not from AWS.
    pub(crate) fn without_response(operation: &'static str, message: &str) -> Self {
        let message = message.to_owned();
        Self { operation, code: None, status: None, message, is_unsent: false }
    }

    /// Classifies the error for a service such as `ec2`.
    pub(crate) fn to_failure(&self, service: &str) -> AwsFailure {
        let action = format!("{service}:{}", self.operation);
        let code = self.code.as_deref().unwrap_or_default();
        errors::classify_error(&action, code, &self.message, self.status)
    }

    /// Returns whether AWS reports that the resource does not exist.
    pub(crate) fn has_code(&self, codes: &[&str]) -> bool {
        let code = self.code.as_deref();
        code.is_some_and(|code| codes.contains(&code))
    }
}

/// Converts the error of a call.
pub(crate) trait MapAwsError<T> {
    /// Converts an SDK error, if any, to the error of this operation.
    fn map_aws_error(self, operation: &'static str) -> Result<T, AwsError>;
}

impl<T, E> MapAwsError<T> for Result<T, SdkError<E, HttpResponse>>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    SdkError<E, HttpResponse>: RequestId,
{
    fn map_aws_error(self, operation: &'static str) -> Result<T, AwsError> {
        self.map_err(|error| AwsError::new(operation, error))
    }
}

/// The causes of an error, bounded in case the chain is cyclic.
fn sources(
    error: &dyn std::error::Error,
) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |cause| cause.source()).take(8)
}

/// The root cause of a missing response.
fn root_causes<E>(error: &SdkError<E, HttpResponse>) -> String
where
    E: std::error::Error + 'static,
{
    let mut text = match error {
        SdkError::ConstructionFailure(_) => "cannot build the request".to_owned(),
        SdkError::TimeoutError(_) => "timed out".to_owned(),
        SdkError::DispatchFailure(_) => "cannot reach AWS".to_owned(),
        _ => "cannot read the response".to_owned(),
    };
    for cause in sources(error) {
        text.push_str(": ");
        text.push_str(&cause.to_string());
    }
    text
}
