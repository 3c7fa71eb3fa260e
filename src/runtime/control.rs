//! What the daemon answers to the people of its host, over a socket of the file system: how its
//! clusters are doing, what is in one of them, and that it reads its configuration again.
//! It must not know how a cluster is driven, nor how an answer is shown.

pub(crate) mod client;
pub(crate) mod inventory;

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
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::engine::Engine;
use crate::engine::views::status::ClusterStatus;
use crate::host::text;
use crate::runtime::cluster_handle::{ClusterHandle, ClusterHealth, Clusters};
use crate::runtime::control::inventory::{Holds, InventoryRequest, ToldInventory};
use crate::runtime::systemd::SdNotify;
use crate::state::candidates::PendingApproval;

/// The socket in the runtime directory.
const SOCKET: &str = "admin.sock";

/// Where it is when systemd runs the daemon.
pub(crate) const DEFAULT_SOCKET: &str = "/run/outrigger/admin.sock";

/// Its owner may ask, and root.
const MODE: u32 = 0o600;

/// The paths that are served.
pub(crate) const STATUS: &str = "/v1/status";
pub(crate) const INVENTORY: &str = "/v1/inventory";
pub(crate) const RELOAD: &str = "/v1/reload";

/// Version of what is told.
const FORMAT: &str = "1.0";

/// Time for the engine of a cluster to say how that is doing: it may be in the middle of a pass.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for a daemon that holds the socket to take a connection.
const KNOCK: Duration = Duration::from_secs(1);

/// Time for the configuration to be read again: clouds are asked what they have.
const RELOADED: Duration = Duration::from_secs(280);

/// Time for engines to weigh another configuration, and how often they are asked whether they have.
const WEIGHED: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// So many may ask for a reload before the first has its answer.
const RELOADS_MAX: usize = 8;

/// Why nobody is answered.
#[derive(Debug, Error)]
pub(crate) enum ConsoleError {
    #[error("listen on {}: another daemon does", .0.display())]
    Taken(PathBuf),
    #[error("listen on {}", .0.display())]
    Listen(PathBuf, #[source] io::Error),
}

/// Somebody asks for the configuration to be read again, and waits to hear what came of it.
pub(crate) type Reload = oneshot::Sender<Result<(), String>>;

/// How all clusters are doing.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StatusResponse {
    pub(crate) format_version: String,
    /// The version of the daemon.
    pub(crate) outrigger: String,
    /// Why the configuration was not reloaded when it was last tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reload_fault: Option<String>,
    pub(crate) clusters: Vec<ClusterStatusResponse>,
}

/// How one is doing.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClusterStatusResponse {
    pub(crate) name: String,
    /// How it is driven, in a word.
    pub(crate) standing: String,
    /// Whether nobody has to look after it: decisions are made here, or by another host.
    pub(crate) is_well: bool,
    /// Who leads it, where this host does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) led_by: Option<String>,
    /// What its engine says; none where no engine drives it here, or none has answered in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<ClusterStatus>,
}

#[derive(Clone)]
struct Console {
    clusters: watch::Receiver<Clusters>,
    manager: SdNotify,
    reloads: mpsc::Sender<Reload>,
}

/// Who asks.
#[derive(Clone, Debug)]
struct Peer(Option<UCred>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self(stream.io().peer_cred().ok())
    }
}

/// Answers from here on, until the process ends, those who may open the socket in this directory.
/// Returns who asks for reloads.
pub(crate) async fn start(
    directory: &Path,
    clusters: watch::Receiver<Clusters>,
    manager: SdNotify,
) -> Result<mpsc::Receiver<Reload>, ConsoleError> {
    let path = directory.join(SOCKET);
    let listener = listen(&path).await?;
    let (reloads, asked) = mpsc::channel(RELOADS_MAX);
    let console = Console {
        clusters,
        manager,
        reloads,
    };
    let router = Router::new()
        .route(STATUS, get(status))
        .route(INVENTORY, post(inventory))
        .route(RELOAD, post(reload))
        .with_state(console)
        .into_make_service_with_connect_info::<Peer>();
    tracing::info!(socket = %path.display(), "answering status and reload");
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "answering on the socket ended");
        }
    });
    Ok(asked)
}

/// Opens the socket. One that a dead daemon has left is replaced; what is none stays.
async fn listen(path: &Path) -> Result<UnixListener, ConsoleError> {
    let failed = |error| ConsoleError::Listen(path.to_owned(), error);
    match timeout(KNOCK, UnixStream::connect(path)).await {
        Ok(Err(error)) => match error.kind() {
            ErrorKind::NotFound => {}
            ErrorKind::ConnectionRefused if is_socket(path) => {
                fs::remove_file(path).map_err(failed)?;
            }
            _ => return Err(failed(error)),
        },
        // It answers, or takes its time.
        Ok(Ok(_)) | Err(_) => return Err(ConsoleError::Taken(path.to_owned())),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(failed)?;
    Ok(listener)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|own| own.file_type().is_socket())
}

async fn status(State(console): State<Console>) -> Json<StatusResponse> {
    let clusters = console.clusters.borrow().clone();
    let clusters = clusters.iter().map(|own| told(own));
    Json(StatusResponse {
        format_version: FORMAT.to_owned(),
        outrigger: env!("CARGO_PKG_VERSION").to_owned(),
        reload_fault: console.manager.fault(),
        clusters: join_all(clusters).await,
    })
}

async fn told(cluster: &ClusterHandle) -> ClusterStatusResponse {
    let asked = cluster.ask(|engine, now| engine.status(now));
    let status = timeout(PATIENCE, asked).await.ok().flatten();
    let standing = cluster.standing();
    let is_whole = || status.as_ref().is_some_and(|own| own.held_by.is_none());
    ClusterStatusResponse {
        name: cluster.name.to_string(),
        standing: standing.as_str().to_owned(),
        is_well: match standing {
            ClusterHealth::Ready => is_whole(),
            ClusterHealth::Standby => true,
            ClusterHealth::Degraded | ClusterHealth::Unready | ClusterHealth::Ended => false,
        },
        led_by: cluster.led_by().map(|own| text::bounded(&own)),
        status,
    }
}

/// What is in one cluster. Its engine hands values over; words are made of them here.
async fn inventory(
    State(console): State<Console>,
    Json(question): Json<InventoryRequest>,
) -> Result<Json<ToldInventory>, (StatusCode, String)> {
    let Some(wanted) = question.wanted() else {
        let why = "fewer labels and resources have to be asked for";
        return Err((StatusCode::BAD_REQUEST, why.to_owned()));
    };
    let clusters = console.clusters.borrow().clone();
    let own = |front: &&Arc<ClusterHandle>| front.name.as_str() == question.cluster;
    let Some(cluster) = clusters.iter().find(own) else {
        let name = text::bounded(&question.cluster);
        let why = format!("the daemon drives no cluster {name:?}");
        return Err((StatusCode::NOT_FOUND, why));
    };
    let asked = cluster.ask(move |engine, now| engine.inventory(&wanted, now));
    let held = timeout(PATIENCE, asked).await.ok().flatten();
    Ok(Json(ToldInventory {
        format_version: FORMAT.to_owned(),
        name: cluster.name.to_string(),
        standing: cluster.standing().as_str().to_owned(),
        led_by: cluster.led_by().map(|own| text::bounded(&own)),
        holds: held.map(Holds::from),
        timeline: cluster.timeline(),
    }))
}

/// What stays of a cluster though the configuration would have it leave, in words, once its engine
/// has weighed that. One that does not know its cluster yet weighs nothing: its status tells later.
async fn held(cluster: &ClusterHandle) -> Option<String> {
    let weighed = async {
        loop {
            let ask = |engine: &Engine, _| engine.weighed().map(Option::<&PendingApproval>::cloned);
            match cluster.ask(ask).await {
                Some(Some(held)) => return held,
                Some(None) if cluster.standing() != ClusterHealth::Degraded => sleep(LOOK).await,
                Some(None) | None => return None,
            }
        }
    };
    let held = timeout(WEIGHED, weighed).await.ok().flatten()?;
    let (name, nodes, total) = (&cluster.name, held.nodes.len(), held.total);
    Some(format!(
        "cluster {name}: {nodes} of {total} nodes would leave by it, more than max_retired: they \
         stay until outrigger reload --accept {}",
        held.id
    ))
}

/// Has the configuration read again, and says why it was not, or what it does not do yet.
async fn reload(
    State(console): State<Console>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
) -> (StatusCode, String) {
    let (uid, pid) = peer.map_or((None, None), |own| (Some(own.uid()), own.pid()));
    tracing::info!(uid, pid, "a reload is asked for");
    let (reply, answer) = oneshot::channel();
    if console.reloads.try_send(reply).is_err() {
        let why = "others have asked for reloads already, or the daemon is stopping";
        return (StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
    }
    match timeout(RELOADED, answer).await {
        Ok(Ok(Ok(()))) => {
            let clusters = console.clusters.borrow().clone();
            let held = join_all(clusters.iter().map(|own| held(own))).await;
            let held: Vec<String> = held.into_iter().flatten().collect();
            (StatusCode::OK, held.join("\n"))
        }
        Ok(Ok(Err(why))) => (StatusCode::CONFLICT, text::line(&why)),
        Ok(Err(_)) => {
            let why = "the daemon is stopping";
            (StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
        }
        Err(_) => {
            let why = "it is still being read: outrigger status tells what comes of it";
            (StatusCode::GATEWAY_TIMEOUT, why.to_owned())
        }
    }
}
