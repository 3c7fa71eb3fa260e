//! A proxy between a daemon and a real API server that injects faults.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::sleep;

/// The response time of a slow API server.
const SLOW: Duration = Duration::from_secs(5);

/// The fault of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Watches end at once and fail afterwards; lists succeed.
    CutWatches,
    /// Watches break once, resumptions are refused as too old, and every list lacks two thirds.
    TruncateLists,
    /// Every request is refused.
    Refuse,
    /// Every request waits for five seconds.
    Slow,
}

/// A running proxy.
pub(crate) struct Proxy {
    fault: watch::Sender<Fault>,
    truncated: Arc<AtomicU64>,
    kubeconfig: PathBuf,
    _dir: TempDir,
}

#[derive(Clone)]
struct Passing {
    client: Client,
    fault: watch::Receiver<Fault>,
    truncated: Arc<AtomicU64>,
}

impl Proxy {
    /// Serves on a free loopback port, with the rights of `client`.
    pub(crate) async fn start(client: Client) -> Self {
        let (fault, receiver) = watch::channel(Fault::None);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let truncated = Arc::new(AtomicU64::new(0));
        let passing =
            Arc::new(Passing { client, fault: receiver, truncated: Arc::clone(&truncated) });
        let router = Router::new().fallback(pass).with_state(passing);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let dir = TempDir::new().expect("a temporary directory");
        let kubeconfig = dir.path().join("kubeconfig");
        let mut text = String::from("apiVersion: v1\nkind: Config\ncurrent-context: proxy\n");
        let _ = writeln!(
            text,
            "clusters: [{{name: proxy, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]"
        );
        text += "contexts: [{name: proxy, context: {cluster: proxy, user: none}}]\n";
        text += "users: [{name: none, user: {}}]\n";
        std::fs::write(&kubeconfig, text).expect("the kubeconfig is written");
        Self { fault, truncated, kubeconfig, _dir: dir }
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the number of truncated lists so far.
    pub(crate) fn truncated(&self) -> u64 {
        self.truncated.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

async fn pass(State(passing): State<Arc<Passing>>, request: Request) -> Response {
    let fault = *passing.fault.borrow();
    let query = request.uri().query().unwrap_or_default();
    let watches = query.contains("watch=true") || query.contains("watch=1");
    let lists = request.method() == "GET" && !watches;
    if fault == Fault::Refuse || (fault == Fault::CutWatches && watches) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    if fault == Fault::Slow {
        sleep(SLOW).await;
    }
    if fault == Fault::TruncateLists && watches {
        // An API server that has compacted its history responds like this: the watch must list
        // again.
        let text = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "reason": "Expired", "code": 410, "message": "too old resource version"});
        return (StatusCode::GONE, text.to_string()).into_response();
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let mut inner = http::Request::builder().method(parts.method).uri(parts.uri);
    for (name, value) in &parts.headers {
        if !matches!(name.as_str(), "host" | "connection" | "accept-encoding") {
            inner = inner.header(name, value);
        }
    }
    let inner = inner.body(kube::client::Body::from(body.to_bytes().to_vec()));
    let Ok(inner) = inner else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let Ok(response) = passing.client.send(inner).await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let (parts, body) = response.into_parts();
    let mut outer = Response::builder().status(parts.status);
    if let Some(kind) = parts.headers.get("content-type") {
        outer = outer.header("content-type", kind);
    }
    if fault == Fault::TruncateLists && lists {
        let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        passing.truncated.fetch_add(1, Ordering::Relaxed);
        return outer.body(Body::from(truncated(&bytes))).unwrap_or_default();
    }
    if watches {
        let mut change = passing.fault.clone();
        // It breaks in the middle, as connections do. A regular end would be harmless.
        let cut = async move {
            let _ = change.wait_for(|now| *now != Fault::None).await;
            Err(io::Error::other("cut"))
        };
        let whole = body.into_data_stream().map_err(io::Error::other);
        let stream = stream::select(whole, stream::once(cut)).scan(false, |over, item| {
            let ended = std::mem::replace(over, item.is_err());
            std::future::ready((!ended).then_some(item))
        });
        return outer.body(Body::from_stream(stream)).unwrap_or_default();
    }
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    outer.body(Body::from(bytes)).unwrap_or_default()
}

/// Returns a list with a third of its objects, and anything else unchanged.
fn truncated(bytes: &[u8]) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else {
        return bytes.to_vec();
    };
    let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) else {
        return bytes.to_vec();
    };
    items.truncate(items.len() / 3);
    serde_json::to_vec(&value).unwrap_or_default()
}
