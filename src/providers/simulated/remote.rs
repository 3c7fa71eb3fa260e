//! Client of a simulated cloud in a separate process, over loopback.

use std::fmt::Display;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::Request;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use tokio::time::timeout;

use crate::engine::command::Command;
use crate::host::text;
use crate::model::cluster::Kubeconfig;
use crate::model::id::ClusterName;
use crate::provider::{CommandResult, FailureKind};
use crate::providers::interface::{Provider, unsupported_result};
use crate::providers::wire_format::{AdoptBody, AnswerBody, LaunchBody, ListBody, TerminateBody};

/// Timeout of one call. The cloud responds from memory.
const CALL: Duration = Duration::from_secs(15);
/// Maximum response size: some hundred thousand instances.
const ANSWER_BYTES: usize = 64 << 20;

/// The provider of one cluster in a separate process.
pub(crate) struct Remote {
    address: String,
    installation: String,
    cluster: ClusterName,
    home: Kubeconfig,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// Why a call failed.
struct RemoteError(FailureKind, String);

impl RemoteError {
    /// A failure whose outcome in the cloud is not known.
    fn unknown_outcome(why: &impl Display) -> Self {
        Self(FailureKind::Unknown, why.to_string())
    }
}

impl Remote {
    pub(crate) fn new(
        address: &str,
        installation: &str,
        cluster: &ClusterName,
        home: Kubeconfig,
    ) -> Self {
        let address = address.strip_prefix("http://").unwrap_or(address);
        Self {
            address: address.trim_end_matches('/').to_owned(),
            installation: installation.to_owned(),
            cluster: cluster.clone(),
            home,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    fn list_body(&self) -> ListBody {
        ListBody { installation: self.installation.clone(), cluster: self.cluster.to_string() }
    }

    async fn send_call(&self, path: &str, body: &impl Serialize) -> CommandResult {
        let answer = timeout(CALL, self.post(path, body)).await;
        let RemoteError(kind, why) = match answer {
            Ok(Ok(answer)) => return answer,
            Ok(Err(fault)) => fault,
            Err(_) => RemoteError::unknown_outcome(&"no response"),
        };
        let address = &self.address;
        let text =
            text::bounded_line(&format!("cannot call the simulated cloud at {address}: {why}"));
        CommandResult::Failed { kind, text }
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Result<CommandResult, RemoteError> {
        let body =
            serde_json::to_vec(body).map_err(|error| RemoteError::unknown_outcome(&error))?;
        let request = Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| RemoteError::unknown_outcome(&error))?;
        let answer = self
            .client
            .request(request)
            .await
            .map_err(|error| RemoteError::unknown_outcome(&text::error_chain(&error)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES);
        let body =
            body.collect().await.map_err(|error| RemoteError::unknown_outcome(&error))?.to_bytes();
        if !status.is_success() {
            let why = format!("{status}: {}", String::from_utf8_lossy(&body));
            // A retry would fail again.
            let kind =
                if status.is_client_error() { FailureKind::Invalid } else { FailureKind::Unknown };
            return Err(RemoteError(kind, why));
        }
        let answer: AnswerBody =
            serde_json::from_slice(&body).map_err(|error| RemoteError::unknown_outcome(&error))?;
        CommandResult::try_from(answer).map_err(|error| RemoteError::unknown_outcome(&error))
    }
}

impl Provider for Remote {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            match command {
                Command::Launch(launch) => {
                    self.send_call("/v1/launch", &LaunchBody::new(*launch, &self.home)).await
                }
                Command::Terminate { instance, .. } => {
                    let (instance, scope) = (instance.0, self.list_body());
                    let body = TerminateBody { instance, scope };
                    self.send_call("/v1/terminate", &body).await
                }
                Command::Adopt(adoption) => {
                    self.send_call("/v1/adopt", &AdoptBody::new(*adoption, &self.home)).await
                }
                Command::ListInstances => self.send_call("/v1/list", &self.list_body()).await,
                other => unsupported_result(&other),
            }
        }
        .boxed()
    }
}
