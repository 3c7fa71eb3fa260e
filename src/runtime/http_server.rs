//! Serves liveness, readiness and metrics over HTTP.

use std::io;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use listenfd::ListenFd;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::host::clock;
use crate::runtime::cluster_handle::Clusters;
use crate::runtime::cluster_health::ClusterHealth;
use crate::telemetry::report_metrics::MetricsRecorder;

/// Why the server cannot start.
#[derive(Debug, Error)]
#[error(
    "cannot listen on {0} for /metrics, /livez and /readyz; set telemetry.listen to a free \
         address"
)]
pub(crate) struct AdminError(String, #[source] io::Error);

#[derive(Clone)]
struct ServedState {
    clusters: watch::Receiver<Clusters>,
    metrics: MetricsRecorder,
}

/// The socket that systemd passes, if `outrigger.socket` is active.
fn systemd_listener() -> io::Result<Option<TcpListener>> {
    let Some(listener) = ListenFd::from_env().take_tcp_listener(0)? else {
        return Ok(None);
    };
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener).map(Some)
}

/// Serves requests until the process ends, on the socket that systemd passes if there is one,
/// otherwise on the address.
pub(crate) async fn start_server(
    address: &str,
    clusters: watch::Receiver<Clusters>,
    metrics: MetricsRecorder,
) -> Result<(), AdminError> {
    let passed = systemd_listener()
        .map_err(|it| AdminError("socket of the service manager".to_owned(), it))?;
    let listener = match passed {
        Some(listener) => listener,
        None => {
            TcpListener::bind(address).await.map_err(|it| AdminError(address.to_owned(), it))?
        }
    };
    let address = listener.local_addr().map_or(address.to_owned(), |it| it.to_string());
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(serve_readiness))
        .route("/metrics", get(serve_metrics))
        .with_state(ServedState { clusters, metrics });
    tracing::info!(address, "serving /livez, /readyz and /metrics");
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "stopped serving /metrics");
        }
    });
    Ok(())
}

/// Reports ready if every cluster is ready, on standby or degraded. Reports not ready before the
/// first status, and after an engine has stopped until the next engine starts.
async fn serve_readiness(
    State(served): State<ServedState>,
    RawQuery(query): RawQuery,
) -> impl IntoResponse {
    let verbose = query.is_some_and(|query| query.split('&').any(|it| it.starts_with("verbose")));
    let clusters = served.clusters.borrow().clone();
    let mut text = String::new();
    let mut all = !clusters.is_empty();
    for cluster in &clusters {
        let standing = cluster.health();
        all &= standing.is_settled();
        if verbose {
            text.push_str(&format!("cluster {}: {}\n", cluster.name, standing.as_str()));
            let undone = cluster.prevented_actions().into_iter();
            for action in undone.filter(|_| standing != ClusterHealth::Ended) {
                text.push_str(&format!("cluster {}: {action}\n", cluster.name));
            }
        }
    }
    text.push_str(if all { "ok\n" } else { "not ready\n" });
    (if all { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

async fn serve_metrics(State(served): State<ServedState>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let clusters = served.clusters.borrow().clone();
    let now = clock::now();
    let samples: Vec<_> =
        clusters.iter().flat_map(|cluster| cluster.current_samples(now)).collect();
    let samples = samples.iter().map(|sample| &sample[..]);
    let names = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    ([(header::CONTENT_TYPE, kind)], served.metrics.render(&names, samples))
}
