//! A small Kubernetes API on loopback that only contains the objects of the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::DATE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::stream;
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::sleep;

/// The behavior of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Responds as a real API does.
    Well,
    /// Does the same with a clock that is this many seconds behind.
    Behind(i64),
    /// Never responds.
    Hang,
    /// Denies access to this kind.
    Forbids(&'static str),
}

/// The contents and the recorded requests.
#[derive(Debug)]
struct World {
    manner: Manner,
    /// Responses by the last segment of the path: a list, or an object by its name.
    answers: BTreeMap<&'static str, Value>,
    /// Names of the created Nodes.
    nodes: Mutex<Vec<String>>,
    /// Paths and bodies of patches.
    patches: Mutex<Vec<(String, Value)>>,
    /// Watched kinds.
    watched: Mutex<BTreeSet<String>>,
    /// Outrigger's Lease: its version, and its annotations.
    lease: Mutex<Option<(u64, Map<String, Value>)>>,
}

/// A running API.
pub(crate) struct Api {
    kubeconfig: PathBuf,
    world: Arc<World>,
    _dir: TempDir,
    _runtime: Runtime,
}

impl Api {
    /// Serves on a free port.
    pub(crate) fn start(manner: Manner, pods: Vec<Value>) -> Self {
        Self::with(manner, [("pods", list(pods))])
    }

    /// Serves these responses, by the last segment of their paths.
    pub(crate) fn with<const N: usize>(
        manner: Manner,
        answers: [(&'static str, Value); N],
    ) -> Self {
        let world = Arc::new(World {
            manner,
            answers: answers.into(),
            nodes: Mutex::default(),
            patches: Mutex::default(),
            watched: Mutex::default(),
            lease: Mutex::default(),
        });
        let runtime = Runtime::new().expect("a runtime");
        let bound = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = bound.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let router = Router::new().fallback(answer).with_state(world.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        let dir = TempDir::new().expect("a directory");
        let kubeconfig = dir.path().join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_for(port, "{}")).expect("written");
        Self { kubeconfig, world, _dir: dir, _runtime: runtime }
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the Nodes created so far.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let nodes = self.world.nodes.lock();
        nodes.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the annotations of Outrigger's Lease, if it exists.
    pub(crate) fn lease(&self) -> Option<Map<String, Value>> {
        let lease = self.world.lease.lock();
        let lease = lease.unwrap_or_else(PoisonError::into_inner).clone();
        lease.map(|(_, annotations)| annotations)
    }

    /// Returns paths and bodies of the patches so far.
    pub(crate) fn patches(&self) -> Vec<(String, Value)> {
        let patches = self.world.patches.lock();
        patches.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether all of these kinds were watched so far, and whether any was.
    pub(crate) fn has_watched(&self, kinds: &[&str]) -> (bool, bool) {
        let watched = self.world.watched.lock();
        let watched = watched.unwrap_or_else(PoisonError::into_inner);
        let known = |kind: &&str| watched.contains(*kind);
        (kinds.iter().all(known), kinds.iter().any(known))
    }
}

/// Returns a kubeconfig for an API on loopback and a user.
pub(crate) fn kubeconfig_for(port: u16, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
         clusters: [{{name: it, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\n\
         contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n\
         users: [{{name: it, user: {user}}}]\n"
    )
}

/// Returns a list of these objects.
pub(crate) fn list(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"},
        "items": items})
}

async fn answer(State(world): State<Arc<World>>, request: Request) -> Response {
    let mut answer = answer_now(&world, request).await;
    if let Manner::Behind(seconds) = world.manner {
        let date = HeaderValue::from_str(&date(-seconds)).expect("a header");
        answer.headers_mut().insert(DATE, date);
    }
    answer
}

/// Returns the time by a clock that is `ahead` seconds ahead of this host's.
#[expect(
    clippy::disallowed_methods,
    reason = "the program under test compares it with the clock of this host"
)]
pub(crate) fn now(ahead: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_secs(ahead)
}

/// Returns the header `Date` of an API server whose clock is `ahead` seconds ahead.
pub(crate) fn date(ahead: i64) -> String {
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&now(ahead));
    date.expect("a time of these days")
}

async fn answer_now(world: &World, request: Request) -> Response {
    if world.manner == Manner::Hang {
        std::future::pending::<()>().await;
    }
    let watch = request.uri().query().is_some_and(|it| it.contains("watch=true"));
    let path = request.uri().path().to_owned();
    let plural = path.rsplit('/').next().unwrap_or_default();
    if *request.method() == Method::POST && plural == "nodes" {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
        let node: Value = serde_json::from_slice(&body.expect("a body")).expect("a node");
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let nodes = world.nodes.lock();
        nodes.unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        return (StatusCode::CREATED, Json(node)).into_response();
    }
    if matches!(world.manner, Manner::Forbids(kind) if kind == plural) {
        let status = json!({"kind": "Status", "status": "Failure", "reason": "Forbidden",
            "message": "no", "code": 403});
        return (StatusCode::FORBIDDEN, Json(status)).into_response();
    }
    if plural == "karpenter-leader-election" && !world.answers.contains_key(plural) {
        let status = json!({"kind": "Status", "status": "Failure", "reason": "NotFound",
            "message": "no", "code": 404});
        return (StatusCode::NOT_FOUND, Json(status)).into_response();
    }
    if path.contains("/namespaces/kube-system/leases") && !path.contains("karpenter") {
        return lease(world, request).await;
    }
    if *request.method() == Method::PATCH {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
        let patch: Value = serde_json::from_slice(&body.expect("a body")).expect("a patch");
        let patches = world.patches.lock();
        let mut patches = patches.unwrap_or_else(PoisonError::into_inner);
        patches.push((path, patch));
        return Json(json!({"kind": "Node", "metadata": {"name": "changed"}})).into_response();
    }
    if watch {
        let watched = world.watched.lock();
        let mut watched = watched.unwrap_or_else(PoisonError::into_inner);
        watched.insert(plural.to_owned());
        return Body::from_stream(stream::unfold((), |()| bookmark())).into_response();
    }
    let known = world.answers.get(plural).cloned();
    let usual = || match plural {
        // Every API server has this namespace.
        "namespaces" => list(vec![json!({"metadata": {"name": "kube-system", "uid": "it"}})]),
        _ => list(Vec::new()),
    };
    Json(known.unwrap_or_else(usual)).into_response()
}

/// Reads Outrigger's Lease, creates it, or patches it if the version matches.
async fn lease(world: &World, request: Request) -> Response {
    let method = request.method().clone();
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
    let body: Value = serde_json::from_slice(&body.expect("a body")).unwrap_or_default();
    let mut known = world.lease.lock().unwrap_or_else(PoisonError::into_inner);
    let failure = |code: StatusCode, reason: &str| {
        let status = json!({"kind": "Status", "status": "Failure", "reason": reason,
            "message": reason, "code": code.as_u16()});
        (code, Json(status)).into_response()
    };
    let meta = &body["metadata"];
    let (version, mut annotations) = match (&*known, method) {
        (None, Method::POST) => (0, Map::new()),
        (None, _) => return failure(StatusCode::NOT_FOUND, "NotFound"),
        (Some(_), Method::POST) => return failure(StatusCode::CONFLICT, "AlreadyExists"),
        (Some((version, _)), Method::PATCH)
            if meta["resourceVersion"].as_str() != Some(&version.to_string()) =>
        {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        (Some((version, own)), _) => (*version, own.clone()),
    };
    let given = meta["annotations"].as_object().cloned().unwrap_or_default();
    annotations.extend(given);
    annotations.retain(|_, value| !value.is_null());
    let version = version + u64::from(!meta.is_null());
    *known = Some((version, annotations.clone()));
    let meta = json!({"name": "outrigger", "resourceVersion": version.to_string(),
        "annotations": annotations});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta});
    Json(lease).into_response()
}

/// Sends a bookmark once a second.
async fn bookmark() -> Option<(Result<Bytes, std::io::Error>, ())> {
    sleep(Duration::from_secs(1)).await;
    let bookmark = json!({"type": "BOOKMARK",
        "object": {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}});
    Some((Ok(Bytes::from(format!("{bookmark}\n"))), ()))
}
