//! The control socket of the daemon, a Unix socket: status of clusters, inventory of a cluster, and
//! reload.

// Client of the control socket.
pub(crate) mod client;

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use futures::future::join_all;
use thiserror::Error;
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::host::text;
use crate::runtime::cluster_handle::{ClusterHandle, Clusters};
use crate::runtime::cluster_health::ClusterHealth;
use crate::runtime::clusters::ReloadError;
use crate::runtime::control_inventory::{Holds, InventoryRequest, ToldInventory};
use crate::runtime::control_status::{ClusterStatusResponse, StatusResponse};
use crate::runtime::control_sweep::{self, SweepRequestBody, SweepResponse};
use crate::runtime::systemd::SdNotify;
use crate::state::candidates::PendingApproval;

/// The socket in the runtime directory.
const SOCKET: &str = "admin.sock";

/// The path of the socket when systemd runs the daemon.
pub(crate) const DEFAULT_SOCKET: &str = "/run/outrigger/admin.sock";

/// File mode of the socket: only the owner and root may connect.
const MODE: u32 = 0o600;

/// The served URL paths.
pub(crate) const STATUS: &str = "/v1/status";
pub(crate) const INVENTORY: &str = "/v1/inventory";
pub(crate) const RELOAD: &str = "/v1/reload";
pub(crate) const SWEEP: &str = "/v1/sweep";

/// Format version of the responses.
const FORMAT: &str = "1.0";

/// Time for an engine to answer. The engine may be in the middle of a pass.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for a daemon that owns the socket to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of a reload, which also reads data from cloud APIs.
const RELOADED: Duration = Duration::from_secs(280);

/// Time for engines to evaluate a changed configuration, and the interval of checks for the result.
const WEIGHED: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// Maximum number of pending reload requests.
const RELOADS_MAX: usize = 8;

/// Why the control socket is not served.
#[derive(Debug, Error)]
pub(crate) enum ControlServerError {
    #[error("cannot listen on {}: another daemon is running", .0.display())]
    Taken(PathBuf),
    #[error("cannot listen on {}", .0.display())]
    Listen(PathBuf, #[source] io::Error),
}

/// A reload request that waits for its result.
pub(crate) type Reload = oneshot::Sender<Result<(), ReloadError>>;

#[derive(Clone)]
struct ControlServer {
    clusters: watch::Receiver<Clusters>,
    manager: SdNotify,
    reloads: mpsc::Sender<Reload>,
}

impl ControlServer {
    fn find_cluster(&self, name: &str) -> Result<Arc<ClusterHandle>, (StatusCode, String)> {
        let clusters = self.clusters.borrow();
        let found = clusters.iter().find(|cluster| cluster.name.as_str() == name);
        found.cloned().ok_or_else(|| {
            let why = format!("the daemon has no cluster {:?}", text::bounded_line(name));
            (StatusCode::NOT_FOUND, why)
        })
    }
}

/// The caller.
#[derive(Clone, Debug)]
struct Peer(Option<UCred>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self(stream.io().peer_cred().ok())
    }
}

/// Serves the socket in this directory until the process ends. Returns a receiver of reload
/// requests.
pub(crate) async fn start_server(
    directory: &Path,
    clusters: watch::Receiver<Clusters>,
    manager: SdNotify,
) -> Result<mpsc::Receiver<Reload>, ControlServerError> {
    let path = directory.join(SOCKET);
    let listener = open_socket(&path).await?;
    let (reloads, requests) = mpsc::channel(RELOADS_MAX);
    let server = ControlServer { clusters, manager, reloads };
    let router = Router::new()
        .route(STATUS, get(serve_status))
        .route(INVENTORY, post(serve_inventory))
        .route(RELOAD, post(serve_reload))
        .route(SWEEP, post(serve_sweep))
        .with_state(server)
        .into_make_service_with_connect_info::<Peer>();
    tracing::info!(socket = %path.display(), "serving status and reload");
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "control socket closed");
        }
    });
    Ok(requests)
}

/// Opens the socket. Replaces the socket of a daemon that no longer runs, but no other file.
async fn open_socket(path: &Path) -> Result<UnixListener, ControlServerError> {
    let failed = |error| ControlServerError::Listen(path.to_owned(), error);
    match timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) => match error.kind() {
            ErrorKind::NotFound => {}
            ErrorKind::ConnectionRefused if is_socket(path) => {
                fs::remove_file(path).map_err(failed)?;
            }
            _ => return Err(failed(error)),
        },
        // A running daemon owns the socket, even if this daemon responds slowly.
        Ok(Ok(_)) | Err(_) => return Err(ControlServerError::Taken(path.to_owned())),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(failed)?;
    Ok(listener)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

async fn serve_status(State(server): State<ControlServer>) -> Json<StatusResponse> {
    let clusters = server.clusters.borrow().clone();
    let clusters = clusters.iter().map(|cluster| cluster_status(cluster));
    Json(StatusResponse {
        format_version: FORMAT.to_owned(),
        outrigger: env!("CARGO_PKG_VERSION").to_owned(),
        reload_fault: server.manager.reload_fault(),
        clusters: join_all(clusters).await,
    })
}

async fn cluster_status(cluster: &ClusterHandle) -> ClusterStatusResponse {
    let status = cluster.query_engine(|engine, now| engine.status(now));
    let status = timeout(PATIENCE, status).await.ok().flatten();
    let standing = cluster.health();
    ClusterStatusResponse {
        name: cluster.name.to_string(),
        standing: standing.as_str().to_owned(),
        is_well: match standing {
            ClusterHealth::Ready => status.as_ref().is_some_and(|status| {
                status.held_by.is_none() && !status.sweeps.iter().any(|sweep| sweep.overdue)
            }),
            ClusterHealth::Standby => true,
            ClusterHealth::Degraded | ClusterHealth::Unready | ClusterHealth::Ended => false,
        },
        led_by: cluster.follower_reason().map(|reason| text::bounded_line(&reason)),
        status,
    }
}

/// Returns the inventory of a cluster. The engine returns values, and this function formats them.
async fn serve_inventory(
    State(server): State<ControlServer>,
    Json(request): Json<InventoryRequest>,
) -> Result<Json<ToldInventory>, (StatusCode, String)> {
    let Some(wanted) = request.query_columns() else {
        let why = "too many labels or resources requested";
        return Err((StatusCode::BAD_REQUEST, why.to_owned()));
    };
    let cluster = server.find_cluster(&request.cluster)?;
    let inventory = cluster.query_engine(move |engine, now| engine.inventory(&wanted, now));
    let inventory = timeout(PATIENCE, inventory).await.ok().flatten();
    Ok(Json(ToldInventory {
        format_version: FORMAT.to_owned(),
        name: cluster.name.to_string(),
        standing: cluster.health().as_str().to_owned(),
        led_by: cluster.follower_reason().map(|reason| text::bounded_line(&reason)),
        holds: inventory.map(Holds::from),
        timeline: cluster.recent_activity(),
    }))
}

/// Runs a requested sweep, and returns the nodes that it found.
async fn serve_sweep(
    State(server): State<ControlServer>,
    Json(request): Json<SweepRequestBody>,
) -> Result<Json<SweepResponse>, (StatusCode, String)> {
    let cluster = server.find_cluster(&request.cluster)?;
    control_sweep::run_sweep(&cluster, request, FORMAT).await.map(Json)
}

/// Returns a message about the nodes that wait for approval, once the engine has evaluated the
/// changed configuration. An engine that is not ready does not evaluate the configuration. The
/// status of its cluster shows the result later.
async fn pending_approval(cluster: &ClusterHandle) -> Option<String> {
    let weighed = async {
        loop {
            match cluster
                .query_engine(|engine, _| {
                    engine.pending_approval().map(Option::<&PendingApproval>::cloned)
                })
                .await
            {
                Some(Some(approval)) => return approval,
                Some(None) if cluster.health() != ClusterHealth::Degraded => sleep(LOOK).await,
                Some(None) | None => return None,
            }
        }
    };
    let approval = timeout(WEIGHED, weighed).await.ok().flatten()?;
    let (name, nodes, total) = (&cluster.name, approval.nodes.len(), approval.total);
    Some(format!(
        "cluster {name}: the configuration would disrupt {nodes} of {total} nodes, more than \
         max_disrupted_per_reload; approve with outrigger reload --accept {}",
        approval.id
    ))
}

/// Reloads the configuration. Returns the error, or a message about the part that waits for
/// approval.
async fn serve_reload(
    State(server): State<ControlServer>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
) -> (StatusCode, String) {
    let (uid, pid) = peer.map_or((None, None), |peer| (Some(peer.uid()), peer.pid()));
    tracing::info!(uid, pid, "reload requested");
    let (reply, answer) = oneshot::channel();
    if server.reloads.try_send(reply).is_err() {
        let why = "other reloads are pending, or the daemon is stopping";
        return (StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
    }
    match timeout(RELOADED, answer).await {
        Ok(Ok(Ok(()))) => {
            let clusters = server.clusters.borrow().clone();
            let pending = join_all(clusters.iter().map(|cluster| pending_approval(cluster))).await;
            let pending: Vec<String> = pending.into_iter().flatten().collect();
            (StatusCode::OK, pending.join("\n"))
        }
        Ok(Ok(Err(error))) => (StatusCode::CONFLICT, text::single_line(&error.to_string())),
        Ok(Err(_)) => {
            let why = "the daemon is stopping";
            (StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
        }
        Err(_) => {
            let why = "the reload is still running; outrigger status shows the result";
            (StatusCode::GATEWAY_TIMEOUT, why.to_owned())
        }
    }
}
