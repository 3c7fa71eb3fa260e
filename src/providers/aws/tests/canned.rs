//! A fake AWS for one test: it answers each request with a reply of the test, and records all
//! requests.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::retry::RetryConfig;
use tokio::time::sleep;

use crate::providers::aws::clients::{AccountKey, AwsClients};

pub(super) const REGION: &str = "us-west-2";

/// A request.
#[derive(Clone, Debug)]
pub(super) struct RecordedRequest {
    pub(super) operation: String,
    /// Parameters as `name=value`, one per line, or JSON.
    pub(super) body: String,
}

impl RecordedRequest {
    /// Returns whether a parameter has this value, or the JSON contains this string.
    pub(super) fn contains(&self, text: &str) -> bool {
        match self.body.starts_with('{') {
            true => self.body.contains(text),
            false => self.body.lines().any(|line| line == text),
        }
    }
}

/// A response of AWS.
pub(super) enum Reply {
    /// The content of an XML response.
    Xml(String),
    /// A JSON response.
    Json(String),
    /// A JSON response after a delay.
    Delayed(Duration, String),
    /// An error code and message.
    Error(&'static str, &'static str),
    /// No response: the connection fails after this time.
    NoResponse(Duration),
}

type Answer = dyn Fn(&RecordedRequest) -> Reply + Send + Sync;

/// A fake AWS with its recorded requests.
#[derive(Clone)]
pub(super) struct FakeAws {
    answer: Arc<Answer>,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl fmt::Debug for FakeAws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Canned")
    }
}

impl FakeAws {
    /// Creates a fake AWS with this reply function.
    pub(super) fn new(answer: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), requests: Arc::default() }
    }

    /// Clients with the daemon's own identity in a region, without retries.
    pub(super) fn account(&self, region: &str) -> AwsClients {
        self.account_with_retries(region, RetryConfig::disabled())
    }

    /// Clients with this retry configuration.
    pub(super) fn account_with_retries(&self, region: &str, retries: RetryConfig) -> AwsClients {
        let canned = self.clone();
        let credentials = Credentials::new("key", "secret", None, None, "test");
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(region.to_owned()))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .retry_config(retries)
            .http_client(http_client_fn(move |_, _| SharedHttpConnector::new(canned.clone())))
            .build();
        let key = AccountKey { region: region.to_owned(), role: None, external_id: None };
        AwsClients::from_config(key, config)
    }

    /// Takes the requests recorded since the previous call.
    pub(super) fn take_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut *self.requests.lock().expect("no panic"))
    }

    /// Takes the names of the recorded requests.
    pub(super) fn operations(&self) -> String {
        let names: Vec<String> =
            self.take_requests().into_iter().map(|request| request.operation).collect();
        names.join(" ")
    }
}

impl HttpConnector for FakeAws {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let target = request.headers().get("x-amz-target");
        let target = target.and_then(|target| target.rsplit('.').next());
        let body = String::from_utf8_lossy(request.body().bytes().unwrap_or_default());
        let decoded = match target {
            Some(_) => body.clone().into_owned(),
            None => form(&body),
        };
        let action = decoded.lines().find_map(|line| line.strip_prefix("Action="));
        let operation = target.or(action).unwrap_or(request.uri()).to_owned();
        let is_json = target.is_some() || decoded.is_empty();
        let kind = match (is_json, decoded.contains("Version=2016-11-15")) {
            (true, _) => Kind::Json,
            (false, true) => Kind::Ec2,
            (false, false) => Kind::Query,
        };
        let body = decoded.clone();
        let recorded = RecordedRequest { operation, body };
        let reply = (self.answer)(&recorded);
        self.requests.lock().expect("no panic").push(recorded.clone());
        HttpConnectorFuture::new(async move {
            let (status, body) = match reply {
                Reply::Xml(inner) => {
                    let name = format!("{}Response", recorded.operation);
                    (200, format!("<{name}>{inner}</{name}>"))
                }
                Reply::Json(text) => (200, text),
                Reply::Delayed(wait, text) => {
                    sleep(wait).await;
                    (200, text)
                }
                Reply::Error(code, message) => (400, kind.error_body(code, message)),
                Reply::NoResponse(after) => {
                    sleep(after).await;
                    return Err(ConnectorError::io("broken".into()));
                }
            };
            let answer = http::Response::builder().status(status);
            let answer = answer.body(SdkBody::from(body)).expect("a response");
            Ok(HttpResponse::try_from(answer).expect("a response"))
        })
    }
}

/// The protocol of a service.
#[derive(Clone, Copy)]
enum Kind {
    Ec2,
    Query,
    Json,
}

impl Kind {
    fn error_body(self, code: &str, message: &str) -> String {
        let error = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
        match self {
            Self::Ec2 => format!("<Response><Errors>{error}</Errors></Response>"),
            Self::Query => format!("<ErrorResponse>{error}</ErrorResponse>"),
            Self::Json => format!(r#"{{"__type":"{code}","message":"{message}"}}"#),
        }
    }
}

/// Decodes a form into lines: `a=b+c&d=%2F` becomes `a=b c` and `d=/`.
fn form(body: &str) -> String {
    let mut text = Vec::new();
    let mut bytes = body.bytes();
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            b'&' => b'\n',
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next(), bytes.next()].map(|digit| digit.unwrap_or(b'0'));
                let digits = String::from_utf8_lossy(&digits).into_owned();
                u8::from_str_radix(&digits, 16).unwrap_or(b'?')
            }
            other => other,
        });
    }
    String::from_utf8_lossy(&text).into_owned()
}
