//! Serves the simulated cloud over HTTP on loopback. The cloud continues to run when a daemon that
//! uses it stops.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use kube::Client;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify};
use tokio::time::{sleep, timeout};

use crate::host::text;
use crate::kubernetes::client::{ConnectError, connect};
use crate::model::cluster::{ApiSettings, Kubeconfig};
use crate::model::id::ClusterName;
use crate::provider::{CommandResult, FailureKind};
use crate::providers::simulated::CloudHandle;
use crate::providers::wire_format::{AdoptBody, AnswerBody, LaunchBody, ListBody, TerminateBody};

/// Time for requests in flight at shutdown. The cloud responds from memory.
const STOP: Duration = Duration::from_secs(3);
/// Timeout of reading a kubeconfig. Clients wait 15 s for the response.
const HOME: Duration = Duration::from_secs(10);

/// Why the cloud cannot be served.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    #[error(
        "cannot listen on {0}: a simulated cloud has no authentication, so only loopback addresses \
         are allowed; use 127.0.0.1"
    )]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    #[error("cannot serve on {0}")]
    Serve(SocketAddr, #[source] io::Error),
}

/// Why the API server of a request cannot be used.
#[derive(Debug, Error)]
enum HomeError {
    #[error("cannot use {}: no response", .0.display())]
    NoResponse(PathBuf),
    #[error("{}", text::error_chain(.0))]
    Connect(ConnectError),
}

/// Modification time of a kubeconfig, and its context.
type HomeKey = (PathBuf, Option<String>, Option<SystemTime>);

#[derive(Clone)]
struct Served {
    cloud: CloudHandle,
    /// Clients of the API servers that nodes register with.
    homes: Arc<Mutex<BTreeMap<HomeKey, Client>>>,
}

/// A bound listener. Its port is known before it serves.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback(address));
    }
    TcpListener::bind(address).await.map_err(|error| ServeError::Listen(address, error))
}

/// Serves until `shutdown`, then waits briefly for requests in flight.
pub(crate) async fn serve(
    listener: TcpListener,
    cloud: CloudHandle,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let address = listener.local_addr().unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
    let router = Router::new()
        .route("/v1/launch", post(launch))
        .route("/v1/terminate", post(terminate))
        .route("/v1/adopt", post(adopt))
        .route("/v1/list", post(list))
        .route("/v1/instances", get(instances))
        .with_state(Served { cloud, homes: Arc::default() });
    let stopping = Arc::new(Notify::new());
    let stop = stopping.clone();
    let serving =
        axum::serve(listener, router).with_graceful_shutdown(async move { stop.notified().await });
    let late = async {
        shutdown.await;
        stopping.notify_one();
        sleep(STOP).await;
    };
    tokio::select! {
        served = serving => served.map_err(|error| ServeError::Serve(address, error)),
        () = late => Ok(()),
    }
}

fn failed_response(kind: FailureKind, why: &impl Display) -> Json<AnswerBody> {
    Json(CommandResult::Failed { kind, text: text::bounded_line(&why.to_string()) }.into())
}

async fn launch(State(served): State<Served>, Json(body): Json<LaunchBody>) -> Json<AnswerBody> {
    let home = body.home.to_kubeconfig();
    let launch = match body.into_launch() {
        Ok(launch) => launch,
        Err(error) => return failed_response(FailureKind::Invalid, &error),
    };
    let claim = launch.claim.id.clone();
    let cluster = launch.claim.cluster.clone();
    let answer = match served.client_for(&home).await {
        Ok(home) => served.cloud.launch(Box::new(launch), home).await,
        Err(error) => return failed_response(FailureKind::Invalid, &error),
    };
    if let CommandResult::Launched(instance) = &answer {
        let (id, offering) = (&instance.id, &instance.offering);
        tracing::info!(%cluster, %claim, instance = %id, %offering, "launched");
    }
    Json(answer.into())
}

impl Served {
    async fn client_for(&self, kubeconfig: &Kubeconfig) -> Result<Client, HomeError> {
        let changed = fs::metadata(&kubeconfig.path).and_then(|file| file.modified()).ok();
        let key = (kubeconfig.path.clone(), kubeconfig.context.clone(), changed);
        if let Some(home) = self.homes.lock().await.get(&key) {
            return Ok(home.clone());
        }
        // The lock is not held here, so other requests do not wait for the exec plugin of this
        // kubeconfig.
        let home = timeout(HOME, connect(kubeconfig, &ApiSettings::default()))
            .await
            .map_err(|_| HomeError::NoResponse(kubeconfig.path.clone()))?
            .map_err(HomeError::Connect)?
            .client;
        let mut homes = self.homes.lock().await;
        // A changed file replaces the client.
        homes.retain(|(path, context, _), _| (path, context) != (&key.0, &key.1));
        homes.insert(key, home.clone());
        Ok(home)
    }
}

async fn terminate(
    State(served): State<Served>,
    Json(body): Json<TerminateBody>,
) -> Json<AnswerBody> {
    tracing::info!(instance = body.instance, "terminate");
    let scope = (body.scope.installation, body.scope.cluster.into());
    let answer = served.cloud.terminate(body.instance.into(), scope).await;
    Json(answer.into())
}

async fn adopt(State(served): State<Served>, Json(body): Json<AdoptBody>) -> Json<AnswerBody> {
    let home = body.home.to_kubeconfig();
    let adoption = match body.into_adoption() {
        Ok(adoption) => adoption,
        Err(error) => return failed_response(FailureKind::Invalid, &error),
    };
    let (instance, offering) = (&adoption.instance, &adoption.offering);
    tracing::info!(%instance, %offering, "adopt");
    Json(match served.client_for(&home).await {
        Ok(home) => served.cloud.adopt(Box::new(adoption), home).await.into(),
        Err(error) => return failed_response(FailureKind::Invalid, &error),
    })
}

async fn list(State(served): State<Served>, Json(body): Json<ListBody>) -> Json<AnswerBody> {
    list_response(&served, Some((body.installation, body.cluster.into()))).await
}

async fn instances(State(served): State<Served>) -> Json<AnswerBody> {
    list_response(&served, None).await
}

async fn list_response(served: &Served, scope: Option<(String, ClusterName)>) -> Json<AnswerBody> {
    match served.cloud.list(scope).await {
        Some(instances) => Json(CommandResult::Instances(instances).into()),
        None => failed_response(FailureKind::Unknown, &"the simulated cloud stopped"),
    }
}
